"""`TextNetwork`: a network over ragged words with its weights, and the runs of its results."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foreshape import layer
from foreshape.apps.embedding.encoder_kinds import KINDS, normal_config
from foreshape.apps.embedding.encoder_network import EncoderNetwork
from foreshape.apps.embedding.memory_bound import MemoryBound
from foreshape.apps.generation.transformers_models import folder_weights, store_weights
from foreshape.apps.tokenization.settings_files import naming, read_settings
from foreshape.compiler.memory import Plan
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import FormatError, SchemaError
from foreshape.interop.compiled_head import is_compiled
from foreshape.interop.compiled_texts import open_compiled_texts
from foreshape.interop.mapped_weights import MappedWeights
from foreshape.interop.ragged_file import FileArrays
from foreshape.interop.row_program import StepsUnknown
from foreshape.interop.row_runner import RowRunner
from foreshape.language.program import Program, Variable, program_guard
from foreshape.machine.kernels.kept_kernels import forget_kernels, kernels_of_a_size
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.process.memory_budget import KERNEL
from foreshape.machine.process.pages import Growth, give_back
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.engine.prepared_run import repeated

_ROWS = 1024
"""The words together in a batch of torch's kernels."""
_TORCH = 224 << 20
"""Bytes of torch's libraries and modules, as measured."""
_AROUND = 64 << 10
"""The bytes of a file read by Linux around one number."""
POOLINGS: Mapping[str, str] = {
    "cls": "first",
    "max": "max",
    "mean": "average",
    "mean_sqrt_len_tokens": "sqrt",
    "weightedmean": "",
    "lasttoken": "last",
}
"""The modes of pooling of sentence-transformers, in the order of older files -> the modes of `layer.sequence_pool`."""


class TextNetwork:
    """A network from the words of some texts to their rows.

    Attributes:
        rows: the result, ragged ``[rows, width]``; None of a network with one row a text.
        result: the result of its head, or the row of each text; None without one.
        positions: the most words of a text; None without a limit.
        padded: True if a batch costs its longest text's square for each text.
        bound: of the process's memory, or None.
    """

    bound: MemoryBound | None = None

    def __init__(
        self,
        inputs: Mapping[str, Variable],
        rows: Variable | None,
        result: Variable | None,
        scope: Callable[[], Scope],
        *,
        positions: int | None,
        padded: bool = False,
        threads: int | None = None,
        arrays: NetworkArrays | FileArrays | None = None,
    ) -> None:
        self.inputs, self.rows, self.result, self.positions, self.padded = dict(inputs), rows, result, positions, padded
        self.program = self.inputs["input_ids"].block.program
        self._scope, self._executor, self._threads, self._arrays = scope, None, threads, arrays
        self._runner: RowRunner | None = None
        self._refusals: dict[str, StepsUnknown] = {}
        self._runs: dict[str, Callable[[Any], list[Any]]] = {}
        self._pooled: dict[tuple[tuple[str, ...], bool], Variable] = {}
        self._skipped: Variable | None = None
        self._plans: dict[str, Plan] = {}

    @functools.cached_property
    def scope(self) -> Scope:
        """Return the weights as tensors of torch."""
        return self._scope()

    @functools.cached_property
    def executor(self) -> Executor:
        executor = Executor(threads=self._threads, frozen=True)
        if self.bound is not None:
            self.bound.idle += [executor.forget, forget_kernels]
        return executor

    def _without_torch(self, variable: Variable) -> RowRunner | None:
        """Return the runner of a result without torch, beside earlier ones over the same weights; None if an op of it needs torch."""
        runner = self._runner
        if self._arrays is None or library() is None:
            return None
        if variable.name in self._refusals:
            if find_spec("torch") is None:
                raise self._refusals[variable.name]
            return None
        if runner is None or variable.name not in runner.fetches:
            try:
                runner = RowRunner(self.program, [*(() if runner is None else runner.fetches), variable.name], self._arrays, self._threads, self._copying)
            except StepsUnknown as error:
                self._refusals[variable.name] = error
                return self._without_torch(variable)
            self._arrays.forget_pages()
            self._runner = runner
        return runner

    def _copying(self, nbytes: int) -> None:
        if self.bound is not None:
            self.bound.require(nbytes, "the weights")

    def bind(self, bound: MemoryBound) -> None:
        """Keep within a bound of memory from now on.

        Args:
            bound: of the process.
        """
        self.bound = bound
        bound.idle.append(lambda: None if self._runner is None else self._runner.forget())
        if self._arrays is not None:
            bound.pages.append(self._arrays.forget_pages)

    def rest(self) -> None:
        """Give memory back to the system after many texts: memory of values, and pages of tables."""
        if self._runner is not None:
            self._runner.rest()
        if self._arrays is not None:
            self._arrays.forget_pages()
        give_back()

    def open(self, variable: Variable, skipped: int = 0) -> None:
        """Open the computation of a result, by a run of one word.

        Raises:
            MemoryPlanError: it does not fit.
        """
        if self.bound is not None:
            with self.bound.opening():
                if skipped or self._without_torch(variable) is None:
                    self._copying(3 * self._weights + (0 if "torch" in sys.modules else _TORCH))
                self.run(variable, [[0]], [[0]], skipped)
            self.bound.require(0, "batches beside the model")

    @functools.cached_property
    def _weights(self) -> int:
        return sum(int(v.spec.known_dtype.itemsize) * math.prod(map(int, v.spec.known_dims)) for v in self.program.parameters())

    def batch_rows(self, variable: Variable, skipped: int = 0) -> int:
        """Return the number of words together in a batch, where memory has room for them: more gain nothing on processors.

        Args:
            variable, skipped: as for `run`.
        """
        runner = None if skipped else self._without_torch(variable)
        return _ROWS if runner is None else runner.batch_rows

    def nbytes_of_run(self, variable: Variable, texts: int, rows: int, longest: int, skipped: int = 0) -> int:
        """Return the most bytes of a run beside the bytes held.

        Args:
            variable: the result.
            texts, rows, longest: the number of texts, of all words, and of the longest text's words.
            skipped: as for `run`.
        """
        runner = None if skipped else self._without_torch(variable)
        if runner is not None:
            pages = _AROUND * rows * len(runner.feeds)  # of tables in files
            return self.batch_nbytes(variable, texts, rows, longest, skipped) + min(pages, self._weights)
        return self.batch_nbytes(variable, texts, rows, longest, skipped)

    def batch_nbytes(self, variable: Variable, texts: int, rows: int, longest: int, skipped: int = 0) -> int:
        """Return the bytes of `nbytes_of_run` without pages of tables: any batch may touch all of those, and they can go at any time."""
        runner = None if skipped else self._without_torch(variable)
        if runner is not None:
            return runner.nbytes_of_run(texts, rows, longest, [variable.name])
        plan = self.plan(variable)
        sizes = {str(name): texts if str(name) in ("batch", "texts") else longest if str(name).endswith("longest") else rows for name in plan.symbols}
        return int(plan.lower_bound(**sizes)) + kernels_of_a_size() * KERNEL

    def pooled(self, modes: Sequence[str], skipping: bool = False) -> Variable:
        """Return the rows of each text pooled, ``[texts, width * modes]``; with ``skipping`` without its first rows, whose number is fed."""
        key = tuple(modes), skipping
        if key not in self._pooled:
            assert self.rows is not None
            with program_guard(self.program):
                numbers = layer.reshape(layer.position_numbers(self.rows), [-1, 1]) + 1.0 if "weightedmean" in modes else None
                rows, weights = self.rows, numbers
                if skipping:
                    rows, weights = self._behind(rows), numbers if numbers is None else self._behind(numbers)
                parts = [_pool(rows, mode, weights) for mode in modes]
                self._pooled[key] = layer.concat(parts, 1) if len(parts) > 1 else parts[0]
        return self._pooled[key]

    def _behind(self, x: Variable) -> Variable:
        if self._skipped is None:
            self._skipped = layer.data("skipped_rows", ["texts", 1], "int64")
        last_position = layer.sequence_pool(layer.reshape(layer.position_numbers(x), [-1, 1]), "last")
        length = layer.cast(last_position, "int64") + 1 - self._skipped
        return layer.sequence_slice(x, self._skipped, length)

    def active_words(self, strategy: str = "max", activation: str = "relu") -> Variable:
        """Return the row of each text over words: the greatest log(1 + relu(score)) of its rows, or their sum (Formal et al., "SPLADE", 2021).

        Args:
            strategy: "max" or "sum".
            activation: "relu", or "log1p_relu" for another logarithm.
        """
        key = (strategy, activation), False
        if key not in self._pooled:
            assert self.result is not None
            with program_guard(self.program):
                x = layer.sequence_pool(self.result, "max") if strategy == "max" else self.result  # each step is monotonic
                x = layer.log1p(layer.relu(x))
                x = layer.log1p(x) if activation == "log1p_relu" else x
                self._pooled[key] = x if strategy == "max" else layer.sequence_pool(x, "sum")
        return self._pooled[key]

    def run(self, variable: Variable, ids: Sequence[Any], types: Sequence[Any], skipped: int = 0) -> Any:
        """Return the value of a result for some texts.

        Args:
            variable: the result.
            ids, types: for each text the numbers of its words, and of the text of a pair they are of.
            skipped: the first rows left out of pooling.
        """
        import numpy

        lengths = [len(text) for text in ids]
        packed = {
            self.inputs[name].name: numpy.concatenate([numpy.asarray(p, "int64") for p in parts])
            for name, parts in (("input_ids", ids), ("token_type_ids", types))
            if name in self.inputs
        }
        runner = None if skipped else self._without_torch(variable)
        if runner is not None:
            fed = {name: packed[name] for name in runner.feeds}
            return runner.run(fed, numpy.concatenate(([0], numpy.cumsum(lengths, dtype="int64"))), [variable.name])[variable.name]
        feed: dict[str, Any] = {name: LoDTensor.of_lengths(_int64(numbers), [lengths]) for name, numbers in packed.items()}
        if skipped and self._skipped is not None:
            feed[self._skipped.name] = numpy.array([[min(skipped, max(n - 1, 0))] for n in lengths], "int64")
        if variable.name not in self._runs:
            self._runs[variable.name] = repeated(self.executor, self.program, [variable.name], self.scope)
        if self.bound is None:
            return self._runs[variable.name](feed)[0]
        Growth.begin_apart()
        try:
            return self._runs[variable.name](feed)[0]
        finally:
            Growth.end_apart()

    def plan(self, variable: Variable) -> Plan:
        """Return the memory plan of a result by the sizes of a batch."""
        if variable.name not in self._plans:
            self._plans[variable.name] = Plan(self.program, [variable.name], frozen=True)
        return self._plans[variable.name]


def _int64(numbers: Any) -> Any:
    from foreshape.core.values.conversion import to_tensor

    return to_tensor(numbers)


def _pool(rows: Variable, mode: str, numbers: Variable | None) -> Variable:
    if mode != "weightedmean":
        return layer.sequence_pool(rows, POOLINGS[mode])
    assert numbers is not None
    return layer.sequence_pool(rows * numbers, "sum") / layer.sequence_pool(numbers, "sum")


def open_encoder(folder: Path, head: str | None = None, threads: int | None = None) -> tuple[TextNetwork, dict[str, Any]]:
    """Return the encoder of a folder of the transformers library, and its configuration.

    Args:
        folder: with config.json and weights.
        head: "score", "labels" or "words", for the result beside the rows; None for the rows alone.
        threads: as for `Executor`.

    Raises:
        FormatError: a file is missing or damaged, or a weight is missing or has other dims. SchemaError: a kind or a setting without a form here.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise FormatError(f"{str(folder)[:300]} must have config.json, the configuration of the network")
    settings = read_settings(file)
    with naming(file), program_guard(main := Program(), Program()):
        config = normal_config(settings)
        kind = KINDS[config["model_type"]]
        network = EncoderNetwork(kind, config)
        result = None
        if head is not None:
            if head not in kind.heads:
                raise SchemaError(f"a network of the kind {config['model_type']} with {config.get('architectures')} is not known here")
            result = kind.heads[head](network, len(config.get("id2label") or {}) or config.get("num_labels") or 2)

    def scope() -> Scope:
        out, weights = Scope(), folder_weights(folder)

        def value(name: str) -> Tensor | None:
            tensor = _value(weights, network, name, lambda x, count: x.chunk(count))
            if tensor is not None and not tensor.is_floating_point():
                raise SchemaError.must(f"the weight {name}", "in floats", str(tensor.dtype))
            return None if tensor is None else tensor.float() + 1.0 if name in network.shifted else tensor

        store_weights(main, out, value)
        return out

    files = sorted(folder.glob("*.safetensors"))
    arrays = NetworkArrays(main, network, MappedWeights(files)) if files and not (folder / "adapter_config.json").is_file() else None
    limit = config.get("max_position_embeddings")
    if kind.pad_positions and limit:
        limit -= network.size("pad_token_id", default=1) + 1
    return TextNetwork(network.inputs, network.rows, result, scope, positions=limit, padded=kind.padded, threads=threads, arrays=arrays), config


class NetworkArrays(Mapping[str, Any]):
    """The parameters of a network by name as numpy's arrays, over the files of its folder.

    Raises:
        FormatError: one is missing, or has other dims. SchemaError: one is not in floats.
    """

    def __init__(self, program: Program, network: EncoderNetwork, weights: MappedWeights) -> None:
        self._network, self._weights = network, weights
        self._specs = {v.name: v.spec for v in program.parameters()}
        self.forget_pages = weights.forget_pages
        missing = [name for name in self._specs if self._value(name) is None]
        if missing:
            raise FormatError(f"{len(missing)} weights of config.json are missing in the source, such as {', '.join(missing[:4])}")

    def _value(self, name: str) -> Any:
        import numpy

        return _value(self._weights, self._network, name, numpy.array_split)

    def __getitem__(self, name: str) -> Any:
        spec, value = self._specs[name], self._value(name)
        if value.dtype.kind != "f":
            raise SchemaError.must(f"the weight {name}", "in floats", str(value.dtype))
        if list(value.shape) != list(spec.known_dims):
            raise FormatError(f"{name} must be {spec.text()} by config.json, and is {list(value.shape)} in the source")
        return value.astype("float32") + 1.0 if name in self._network.shifted else value.astype("float32", copy=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def _value(weights: Mapping[str, Any], network: EncoderNetwork, name: str, split: Callable[[Any, int], Sequence[Any]]) -> Any:
    """Return the weight of a parameter, or None."""
    base = network.kind.base
    value = _weight(weights, base, name)
    if value is None:
        for checkpoint_name, part in network.kind.renamed(name):
            value = _weight(weights, base, checkpoint_name)
            if value is not None:
                value = value if part is None else split(value, part[1])[part[0]]
                break
    return value.T if value is not None and name in network.turned else value


def _weight(weights: Mapping[str, Any], base: str, name: str) -> Any:
    """Return the weight of a name, with or without the first part; older files name the parts of normalizations gamma and beta."""
    names = [base + name, name]
    if "norm" in name.lower():
        names += [n.removesuffix(".weight") + ".gamma" if n.endswith(".weight") else n.removesuffix(".bias") + ".beta" for n in names]
    return next((weights[n] for n in names if n in weights), None)


def open_file(path: str | os.PathLike[str], threads: int | None = None, row_scales: bool = False) -> TextNetwork:
    """Return the network of a compiled file, or of an ``.onnx`` file of padded texts, over ragged rows.

    Args:
        path: of the file.
        threads: as for `Executor`.
        row_scales: of an ``.onnx``, as for `unpad`.

    Raises:
        SchemaError: padding may reach a result, or other inputs and results. FormatError: the compiled file is damaged.
    """
    if is_compiled(path):
        opened = open_compiled_texts(path)
    else:
        from foreshape.interop.unpadding import open_unpadded  # the proof and ONNX, not awaited by other files

        opened = open_unpadded(path, row_scales=row_scales)
    block = opened.program.global_block
    inputs = {name: block.var(name) for name in opened.feeds}
    fetched = opened.fetches
    rows = next((v for v in fetched if v.spec.lod is not None and v.spec.rank == 2), None)
    result = next((v for v in fetched if v.spec.lod is None and v.spec.rank == 2), None)
    return TextNetwork(inputs, rows, result, opened.scope, positions=None, threads=threads, arrays=opened.arrays)
