"""`quantize`: a network whose convolutions and products compute with numbers of 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar, cast, overload

from foreshape.apps.quantization.grouped_layers import Rows, Weights, grouped_layers_of, require_weights, with_groups
from foreshape.apps.quantization.points import Points, QuantizedLayer, layers_of, points_of, without
from foreshape.apps.quantization.ranges_of_values import Activations, feeds_of, run_over, scales_of
from foreshape.apps.quantization.rewrite import Values, rounded_in_training, with_bytes, with_rounding, without_rounding
from foreshape.apps.quantization.scaled_rows import attends, scaled_layers_of, with_row_scales
from foreshape.core.data_class import data_class
from foreshape.core.values.conversion import to_numpy
from foreshape.errors import FeedError, SchemaError
from foreshape.interop import InferenceModel
from foreshape.language.program import Program
from foreshape.runtime.engine import Scope
from foreshape.transforms.passes import prune
from foreshape.transforms.passes.framework import Pass
from foreshape.transforms.passes.prune import for_test

Accuracy: TypeAlias = "Callable[[InferenceModel], float] | Literal['outputs'] | None"


class PackedByItself(Protocol):
    """A model with a way of its own to packed weights, as a `LanguageModel`."""

    def quantized(self, weights: Weights, group: int, exclude: str | Sequence[str], rows: Rows) -> Self:
        """Return the model with packed weights."""
        ...


_Decoder = TypeVar("_Decoder", bound=PackedByItself)


@overload
def quantize(
    model: InferenceModel,
    data: Any = None,
    *,
    activations: Activations = "measured",
    percentile: float = 99.99,
    per_channel: bool = True,
    exclude: str | Sequence[str] = (),
    accuracy: Accuracy = None,
    within: float = 0.005,
    for_training: bool = False,
    dynamic: bool | None = None,
    weights: Weights | None = None,
    group: int = 64,
    rows: Rows = "fp32",
) -> InferenceModel: ...


@overload
def quantize(model: _Decoder, *, weights: Weights, group: int = 64, exclude: str | Sequence[str] = (), rows: Rows = "fp32") -> _Decoder: ...


def quantize(
    model: Any,
    data: Any = None,
    *,
    activations: Activations = "measured",
    percentile: float = 99.99,
    per_channel: bool = True,
    exclude: str | Sequence[str] = (),
    accuracy: Accuracy = None,
    within: float = 0.005,
    for_training: bool = False,
    dynamic: bool | None = None,
    weights: Weights | None = None,
    group: int = 64,
    rows: Rows = "fp32",
) -> Any:
    """Return a model whose convolutions and products with constant weights compute with numbers of 8 bits.

    Its program has ``quantize_linear`` and ``dequantize_linear`` around them, as PaddlePaddle's and, written as ONNX, onnxruntime's quantized networks have,
    and its weights are int8. The given model stays as it is; values left in fp32 are shared with it.

    With ``dynamic`` it has ``dynamic_int8_linear`` in the place of products with constant matrices, with a scale for each row, found in the run, and
    ``int8_lookup`` in the place of lookups in large tables. Convolutions and all else stay in fp32.

    With ``weights`` constant matrices alone have 8 or 4 bits, with a scale for each group of rows, by ``grouped_linear``. It is for networks
    that compute few rows at a time, as the next word of a text: their time is the reading of weights. A `LanguageModel` is quantized in this way only.
    Rows stay in fp32; with ``rows="int8"`` they are rounded in these products. Of several rows these take a third of the time then, where
    the processor multiplies bytes.

    Args:
        model: an opened network; a `LanguageModel`; or a model made by `quantize` for training, trained meanwhile: its scales are the trained ones, and no data
            are needed.
        data: examples of the network's inputs as they come in use, some dozens: a feed as for `InferenceModel.run`, or an iterable of feeds.
        activations: the choice of each value's range: a size not exceeded by ``percentile`` percent of its numbers ("percentile"), the largest size
            ("min_max"), or the one with the least loss of information ("entropy"). "measured": of these three the one with the least difference of the
            network's results on ``data``.
        per_channel: a scale for each channel of a weight's results; otherwise one for each weight.
        exclude: patterns of layers to leave in fp32, by the names of their results or weights, or their operators: ``"conv2d_0*"``.
        accuracy: a function from a model to its accuracy, the higher the better; or "outputs": the results on ``data`` beside the model's own, as 1 less
            their relative mean squared difference. The most costly layers are left in fp32 until no more than ``within`` is lost.
        for_training: return a model for training (`InferenceModel.for_training`) with rounding in its forward pass; the gradients pass the rounding.
        dynamic: True for scales found in the run, without data; ``exclude`` holds for it too. None: for a network with attention
            if there are no data and no training.
        weights: "int8" or "int4"; without data, and without the other settings but ``exclude``.
        group: with ``weights`` the most rows of a weight with one scale, a multiple of 4.
        rows: with ``weights``: "fp32", or "int8": each group of a row has a scale of its own, found in the run.

    Returns:
        An `InferenceModel`, or a `LanguageModel` for one.

    Raises:
        FeedError: no data, an empty feed, or one with results other than finite numbers.
        SchemaError: unknown operators, gradients, no layer to quantize, a pattern without a name, another word for a method, an ``accuracy`` that cannot
            be reached, or ``dynamic`` with data, an ``accuracy`` or for training.
    """
    patterns = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    if not isinstance(model, InferenceModel):
        return _quantized_elsewhere(model, weights, group, patterns, rows)
    work = _Parts(model)
    if weights is not None:
        if data is not None or for_training or accuracy is not None or dynamic:
            raise SchemaError("weights= packs constant matrices alone: there are no data, no training, no search by accuracy and no dynamic=")
        return work.packed(weights, group, patterns, rows)
    if rows != "fp32":
        raise SchemaError(f'rows= is for products with packed weights: give weights="int8" or "int4" too; seen rows={rows!r}')
    if dynamic or (dynamic is None and data is None and not for_training and not rounded_in_training(model.program) and attends(work.program)):
        if data is not None or for_training or accuracy is not None:
            raise SchemaError("dynamic: the scales are found in the run, so there are no data, no training and no search by accuracy")
        return work.scaled_in_run(patterns)
    if rounded_in_training(model.program):
        if for_training:
            raise SchemaError("the model is made for training with rounding already")
        return work.frozen(per_channel, patterns)
    if data is None:
        raise FeedError("calibration data are needed: examples of the network's inputs; or dynamic=True for products alone, without data")
    feeds = feeds_of(model, data)
    layers = without(layers_of(work.program), patterns)
    if not layers:
        raise _nothing("no convolution and no product of fp32 with a constant weight", patterns)
    points = points_of(work.program, layers, work.fetched)
    ranges = scales_of(work.plain, feeds, list(points.scales), activations, percentile)
    best = work.best(points, per_channel, list(ranges.values()), feeds)
    if for_training:
        return work.for_training(points)
    return best if accuracy is None else _Search(work, layers, per_channel, accuracy, within, feeds).find(best)


def _quantized_elsewhere(model: Any, weights: Any, group: int, exclude: Sequence[str], rows: Any) -> Any:
    """Return a model of another kind quantized by its own method."""
    if not hasattr(model, "quantized"):
        raise SchemaError.must("model", "an InferenceModel, as fs.load_inference_model gives, or a LanguageModel", type(model).__name__)
    if weights is None:
        raise SchemaError('a LanguageModel is quantized by its weights alone: quantize(model, weights="int8") or weights="int4"')
    return cast("PackedByItself", model).quantized(weights, group, exclude, rows)


def _nothing(lack: str, patterns: Sequence[str]) -> SchemaError:
    return SchemaError(f"there is nothing to quantize: {lack}{' is left' if patterns else ''}")


class _Parts:
    """A model as in a test, and its quantized form."""

    def __init__(self, model: InferenceModel) -> None:
        self.model = model
        self.fetched = [v.name for v in model.fetches]
        self.program = prune(for_test(model.program), model.feeds, self.fetched)
        self.plain = InferenceModel.of(self.program, model.feeds, [self.program.global_block.var(n) for n in self.fetched], model.scope, model.executor)
        self.scales: dict[str, float] = {}

    def weights(self, points: Points) -> dict[str, Any]:
        return {layer.weight: to_numpy(self.model.scope.tensor(layer.weight)) for layer in points.layers}

    def quantized(self, points: Points, per_channel: bool, program: Program | None = None) -> InferenceModel:
        """Return the model with these layers quantized."""
        values: Values = {}

        def change(copy: Program) -> bool:
            values.update(with_bytes(copy, points, self.scales, self.weights(points), per_channel))
            return True

        rewritten, _ = Pass("quantize", change)(self.program if program is None else program)
        return self._model_of(rewritten, values)

    def scaled_in_run(self, exclude: Sequence[str]) -> InferenceModel:
        """Return the model with scales of rows found in the run."""
        layers = scaled_layers_of(self.program)
        left = without(layers, exclude)
        excluded = {layer.weight for layer in layers if layer not in left}  # a weight is kept once
        left = [layer for layer in left if layer.weight not in excluded]
        if not left:
            raise _nothing("no product of fp32 rows with a constant matrix", exclude)
        values: Values = {}

        def change(copy: Program) -> bool:
            names = {layer.name for layer in left}
            copied = [layer for layer in scaled_layers_of(copy) if layer.name in names]
            weights = {layer.weight: to_numpy(self.model.scope.tensor(layer.weight)) for layer in copied}
            values.update(with_row_scales(copy, copied, weights))
            return True

        rewritten, _ = Pass("quantize", change)(self.program)
        return self._model_of(rewritten, values)

    def packed(self, weights: Weights, group: int, exclude: Sequence[str], rows: Rows) -> InferenceModel:
        """Return the model with its constant matrices packed in groups."""
        require_weights(weights, group, rows)
        values: Values = {}

        def change(copy: Program) -> bool:
            layers = grouped_layers_of(copy, exclude)
            if not layers:
                raise _nothing("no product of fp32 rows with a constant matrix", exclude)
            values.update(with_groups(copy, layers, self.model.scope.tensor, weights, group, rows))
            return True

        rewritten, _ = Pass("quantize", change)(self.program)
        return self._model_of(rewritten, values)

    def best(self, points: Points, per_channel: bool, ranges: Sequence[dict[str, float]], feeds: list[dict[str, Any]]) -> InferenceModel:
        """Return the model quantized by the first of the ranges with the least difference of the results, and keep these ranges."""
        measure = self.by_outputs(feeds) if len(ranges) > 1 else None
        candidates: list[tuple[float, InferenceModel]] = []
        for scales in ranges:
            self.scales = scales
            model = self.quantized(points, per_channel)
            candidates.append((0.0 if measure is None else measure(model), model))
        index = max(range(len(candidates)), key=lambda k: candidates[k][0])
        self.scales = ranges[index]
        return candidates[index][1]

    def by_outputs(self, feeds: list[dict[str, Any]]) -> Callable[[InferenceModel], float]:
        """Return the measure of a model by its results beside the plain one's: 1 less the largest relative mean squared difference."""
        import numpy

        names = self.fetched
        expected: Mapping[tuple[int, str], Any] = {(index, name): array for index, name, array in run_over(self.plain, feeds, names)}

        def measure(model: InferenceModel) -> float:
            losses = [0.0]
            for index, name, array in run_over(model, feeds, names):
                reference = expected[index, name]
                size = float(numpy.square(reference, dtype=numpy.float64).sum())
                losses.append(float(numpy.square(array - reference, dtype=numpy.float64).sum()) / size if size else 0.0)
            return 1.0 - max(losses)

        return measure

    def _model_of(self, program: Program, values: Values) -> InferenceModel:
        scope, block = Scope(), program.global_block
        for name, variable in block.vars.items():
            if name in values:
                scope.set(name, values[name])
            elif variable.persistable and name in self.model.scope:
                scope.defer(name, partial(self.model.scope.tensor, name))
        return InferenceModel.of(program, list(self.model.feeds), [block.var(n) for n in self.fetched], scope)

    def for_training(self, points: Points) -> InferenceModel:
        """Return the model for training, with these layers rounded."""
        values: Values = {}

        def change(copy: Program) -> bool:
            values.update(with_rounding(copy, points, self.scales))
            return True

        model = self.plain.for_training()
        program, _ = Pass("quantize for training", change)(model.program)
        for name, value in values.items():
            model.scope.set(name, value)
        return InferenceModel.of(program, model.feeds, [program.global_block.var(n) for n in self.fetched], model.scope)

    def frozen(self, per_channel: bool, exclude: Sequence[str]) -> InferenceModel:
        """Return the model trained with rounding, quantized by its trained scales."""
        program = self.program.clone()
        values, weights = without_rounding(program)
        program.touch()
        program.infer()
        layers = without([s for s in layers_of(program) if s.weight in weights], exclude)
        read = points_of(program, layers, self.fetched)
        scales = {name: name for name in read.scales if name in values}
        self.scales = {name: float(to_numpy(self.model.scope.tensor(values[name])).reshape(-1)[0]) for name in scales}
        return self.quantized(Points(tuple(layers), scales), per_channel, program)


@data_class(eq=False)
class _Search:
    """The search for the layers to leave in fp32."""

    work: _Parts
    layers: list[QuantizedLayer]
    per_channel: bool
    accuracy: Any
    tolerance: float
    feeds: list[dict[str, Any]]

    def find(self, model: InferenceModel) -> InferenceModel:
        """Return the model with as many layers quantized as the accuracy allows: the most costly alone are left out first, twice as many each time."""
        measure = self.work.by_outputs(self.feeds) if self.accuracy == "outputs" else self.accuracy
        required = float(measure(self.work.plain)) - self.tolerance
        if float(measure(model)) >= required:
            return model
        alone = {s.name: float(measure(self._model([s]))) for s in self.layers}
        order = sorted(self.layers, key=lambda s: alone[s.name])
        low, high = 0, 1  # so many left out are too few, and tried
        best: InferenceModel | None = None
        while best is None:
            if high >= len(order):
                high = len(order)
                break
            candidate = self._model(order[high:])
            if float(measure(candidate)) >= required:
                best = candidate
            else:
                low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            candidate = self._model(order[middle:]) if middle < len(order) else None
            if candidate is not None and float(measure(candidate)) >= required:
                best, high = candidate, middle
            else:
                low = middle
        if best is None:
            last = order[-1].name
            raise SchemaError(f"accuracy: even one quantized layer loses more than {self.tolerance}; the least lossy one is {last}: {alone[last]}")
        return best

    def _model(self, layers: Sequence[QuantizedLayer]) -> InferenceModel:
        return self.work.quantized(points_of(self.work.program, layers, self.work.fetched), self.per_channel)
