"""`predict` and `evaluate`: the outputs of a network for data, and its figures, without a step of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast, overload
from weakref import WeakKeyDictionary

from foreshape.apps.training.checkpoint.state import Sums
from foreshape.apps.training.data.batches import Batch, Data, as_data, batch_examples, check_batches, inputs_of
from foreshape.apps.training.distributed.batch_share import Share
from foreshape.apps.training.figures import fetches_of, figure_of
from foreshape.apps.training.progress import counted
from foreshape.core.hints import tells_arguments
from foreshape.errors import ExecutionError, FeedError, SchemaError, whole
from foreshape.language.program import Program, Variable
from foreshape.machine.communication.ray_session import ray_package
from foreshape.metrics import Metric
from foreshape.runtime.engine import Executor, LoDTensor, Scope, default_scope
from foreshape.runtime.engine.prepared_run import repeated
from foreshape.runtime.feeding.ray_data import ROWS, Compute, RayDataset, RaySettings, is_ray_dataset, mapped, require_columns
from foreshape.transforms.passes import for_test, prune
from foreshape.transforms.passes.over_examples import OverExamples

if TYPE_CHECKING:
    from foreshape.apps.generation import LanguageModel

Source = Mapping[str, Any] | Iterable[Batch] | Callable[..., Iterable[Batch]]


@dataclass(slots=True)
class _Pruned:
    """A program pruned for some of its variables, as in a test, and its executor."""

    version: int
    program: Program
    executor: Executor


_PRUNED: WeakKeyDictionary[Program, dict[tuple[str, ...], _Pruned]] = WeakKeyDictionary()
"""By described program: the next call compiles nothing again."""


@overload
def predict(outputs: Variable | Sequence[Variable] | Mapping[str, Variable], data: RayDataset, *, batch_size: int = ..., **settings: Any) -> Any: ...
@overload
def predict(
    outputs: Variable, data: Source, *, batch_size: int = ..., executor: Executor | None = ..., scope: Scope | None = ..., progress: bool | None = ...,
    console: Any = ...,
) -> Any: ...  # fmt: skip
@overload
def predict(
    outputs: Sequence[Variable], data: Source, *, batch_size: int = ..., executor: Executor | None = ..., scope: Scope | None = ...,
    progress: bool | None = ..., console: Any = ...,
) -> list[Any]: ...  # fmt: skip
@overload
def predict(
    outputs: Mapping[str, Variable], data: Source, *, batch_size: int = ..., executor: Executor | None = ..., scope: Scope | None = ...,
    progress: bool | None = ..., console: Any = ...,
) -> dict[str, Any]: ...  # fmt: skip
@tells_arguments
def predict(
    outputs: Variable | Sequence[Variable] | Mapping[str, Variable], data: Source | RayDataset, *, batch_size: int = 128, executor: Executor | None = None,
    scope: Scope | None = None, progress: bool | None = None, console: Any = None, on: RaySettings | None = None, keep: Sequence[str] | None = None,
) -> Any:  # fmt: skip
    """Compute outputs of a network for data, batch by batch, joined.

    Runs only the ops behind the outputs, as in a test. Dropout is off, normalisation uses the averages of training, and nothing is updated. Labels are
    needed only by outputs that depend on them.

    Args:
        outputs: variables of one program, with one row (or sequence) for each example.
        data: as for `train`; arrays not needed by the outputs are ignored. Or a data set of Ray with a column for each input, for workers of its cluster.
        batch_size: of arrays; it changes the time and the memory, not the results.
        executor: runs the program; by default one of its own, kept for the next call. A worker of Ray has one with its settings.
        scope: holds the parameters; the default scope if omitted.
        progress: a bar (True) or nothing (False); by default a bar on a terminal, for runs of more than a moment.
        console: rich's console for the bar; the terminal by default.
        on: the workers for a data set of Ray; by default as many as the cluster has room for, with a processor each.
        keep: the columns of a data set of Ray that stand beside the results; all by default.

    Returns:
        For a variable an array ``[examples, ...]``, or a `LoDTensor` if it is ragged; for a list a list, for a dict a dict. For a data set of Ray another
        one, computed when it is read, with a column for each output, by the key of the dict or the name of the variable.

    Raises:
        FeedError: data that do not fit the program. ExecutionError: a parameter without a value; an output without a row for each
        example, so that batches cannot be joined; no room for a worker of Ray.
    """
    variables = _variables(outputs)
    if is_ray_dataset(data):
        named = outputs if isinstance(outputs, Mapping) else {v.name: v for v in variables}
        scope = default_scope() if scope is None else scope
        return _on_ray(data, named, whole("batch_size", batch_size, 1, FeedError), executor, scope, on or RaySettings(), keep)
    if on is not None or keep is not None:
        raise SchemaError("predict: on and keep are for a data set of Ray, and the data are none")
    pruned, run, values, selected = _begin(variables, cast("Source", data), batch_size, executor, scope)
    parts: list[_ResultBatches] = [_ResultBatches(v) for v in variables]
    step = repeated(run, pruned.program, [v.name for v in variables], values)
    with run.notes.anew():
        for batch in counted(selected.epoch(1), selected.batches, "predict", progress, console):
            results = step(batch)
            count = batch_examples(batch)
            for part, value in zip(parts, results, strict=True):
                part.add(value, count)
    joined = [part.joined() for part in parts]
    if isinstance(outputs, Variable):
        return joined[0]
    return dict(zip(outputs, joined, strict=True)) if isinstance(outputs, Mapping) else joined


def _on_ray(
    dataset: RayDataset, outputs: Mapping[str, Variable], size: int, executor: Executor | None, scope: Scope, workers: RaySettings, keep: Sequence[str] | None
) -> Any:
    """Return a data set of Ray with outputs for its rows. The workers get the network as bytes, and its parameters."""
    from foreshape.interop.inference import values_of  # other data need no room for files of networks
    from foreshape.interop.parameters import parameters_of
    from foreshape.language.wire import save_program

    program, names = _pruned([*outputs.values()]).program, {key: v.name for key, v in outputs.items()}
    inputs, parameters = inputs_of(program, names.values()), parameters_of(program)
    settings = (executor or Executor("cuda" if workers.gpus else "cpu")).settings
    settings["threads"] = settings["threads"] or max(int(workers.cpus), 1)
    values_of(parameters, scope)  # all must have values
    require_columns(dataset, {v.name: f"numbers, {v.spec.text()}" for v in inputs}, False, keep, [*names])
    values = ray_package().put({name: scope.tensor(name).detach().cpu() for name in parameters if name in scope})
    opening = partial(_opened, save_program(program), values, [v.name for v in inputs], names, size, settings)
    return mapped(dataset, opening, workers, keep, size * max(ROWS // size, 1))


def _opened(data: bytes, values: Any, inputs: list[str], names: Mapping[str, str], batch_size: int, settings: Mapping[str, Any]) -> Compute:
    """Return what computes outputs for tables, on a worker."""
    from foreshape.language.wire import load_program

    program, scope, executor = load_program(data), Scope(), Executor(**settings)
    program.infer()
    scope.fill(ray_package().get(values))
    outputs = {key: program.global_block.var(name) for key, name in names.items()}
    return lambda table: predict(outputs, table.select(inputs), batch_size=batch_size, executor=executor, scope=scope, progress=False)


@overload
def evaluate(
    metrics: Variable | Sequence[Variable] | Mapping[str, Variable | Metric],
    data: Source,
    *,
    batch_size: int = ...,
    executor: Executor | None = ...,
    scope: Scope | None = ...,
    progress: bool | None = ...,
    console: Any = ...,
) -> dict[str, Any]: ...
@overload
def evaluate(
    metrics: LanguageModel, data: Iterable[Sequence[int]], *, stride: int | None = ..., progress: bool | None = ..., console: Any = ...
) -> dict[str, Any]: ...
@tells_arguments
def evaluate(
    metrics: Any, data: Any, *, batch_size: int | None = None, executor: Executor | None = None, scope: Scope | None = None,
    stride: int | None = None, progress: bool | None = None, console: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Compute the losses and metrics of data, without a step of training; as in a test, see `predict`.

    Each is the value for one batch of all examples, whatever ``batch_size``. Means over examples (or words, or weights) are means over all of them,
    sums are sums, and functions of them functions of these.

    With a `LanguageModel` the data are texts, lists of the numbers of words. Its perplexity is exp of the mean over all words but each text's first one of
    -log p(word | words before in its window). The first window has the first ``context`` words of a text. Each next one begins ``stride`` words
    later, and predicts the words that no window before it has. The model's cache is used: no text may be written by it meanwhile.

    Examples:
        >>> fs.evaluate({"loss": loss, "accuracy": accuracy}, data)
        >>> fs.evaluate(model, texts)["perplexity"], fs.evaluate(model.quantized("int4"), texts)["perplexity"]

    Args:
        metrics: name -> variable of one program, or a measure of `foreshape.metrics`; or variables, whose names the results get; or a language model.
        data, executor, scope, progress: as for `predict`.
        batch_size: as there, 128 by default. A language model takes as many windows as it has users.
        stride: of a language model's windows, from 1 to its context less 1; by default half of the context. With a smaller one a word has
            more words before it.
        console: rich's console for the bar; the terminal by default.

    Returns:
        The figures by name; of a language model ``perplexity``, ``loss`` (in nats, the mean) and ``words``, the number of predicted words.

    Raises:
        As `predict`. SchemaError: settings of a network for a language model, or of one for a network. FeedError: a text without words, or with a
        word out of range, or no word to predict. ExecutionError: a loss that is not finite.
    """
    if _is_language_model(metrics):
        unfit = {"batch_size": batch_size, "executor": executor, "scope": scope}
        if (name := next((n for n, value in unfit.items() if value is not None), None)) is not None:
            raise SchemaError(f"evaluate: a language model has its own {name}; seen {name}={unfit[name]!r:.60}")
        return _evaluate_texts(metrics, data, stride, progress, console)
    if stride is not None:
        raise SchemaError(f"evaluate: stride is of a language model's windows, and the metrics are those of a network; seen stride={stride!r:.60}")
    requested = cast("Variable | Sequence[Variable] | Mapping[str, Variable | Metric]", metrics)
    named_metrics = dict(requested) if isinstance(requested, Mapping) else {v.name: v for v in _variables(requested)}
    variables = _variables([v for metric in named_metrics.values() for v in (metric.inputs if isinstance(metric, Metric) else [metric])])
    pruned, run, values, selected = _begin(variables, data, 128 if batch_size is None else batch_size, executor, scope)
    examples = OverExamples(pruned.program.global_block)
    figures = {name: figure_of(name, metric, pruned.program, examples, run, values) for name, metric in named_metrics.items()}
    sums: Sums = {key: zeros for figure in figures.values() for key, zeros in figure.begin().items()}
    fetches = fetches_of(figures.values())
    step = repeated(run, pruned.program, fetches, values)
    with run.notes.anew():
        for batch in counted(selected.epoch(1), selected.batches, "evaluate", progress, console):
            fetched, count = dict(zip(fetches, step(batch), strict=True)), batch_examples(batch)
            for figure in figures.values():
                figure.add(sums, fetched, Share(batch, count, count))
    return {name: figure.value(sums) for name, figure in figures.items()}


def _is_language_model(metrics: Any) -> bool:
    if isinstance(metrics, (Variable, Mapping, Sequence)):
        return False
    from foreshape.apps.generation import LanguageModel  # a program without texts needs no room of theirs

    return isinstance(metrics, LanguageModel)


def _evaluate_texts(model: LanguageModel, texts: Iterable[Sequence[int]], stride: int | None, progress: bool | None, console: Any) -> dict[str, Any]:
    from foreshape.apps.generation.perplexity import WordLosses, batches_of, figures_of

    losses = WordLosses(model)
    return figures_of(losses.sums(batch) for batch in counted(batches_of(model, texts, stride), None, "evaluate", progress, console))


def _variables(requested: Variable | Sequence[Variable] | Mapping[str, Variable]) -> list[Variable]:
    """Return the variables asked for, all of one program."""
    if isinstance(requested, (str, Program)):
        raise SchemaError(f"what is computed is given as variables; seen {requested!r:.60}")
    if not hasattr(requested, "__iter__"):
        raise SchemaError(f"what is computed is given as variables; seen {requested!r:.60}")
    out = [requested] if isinstance(requested, Variable) else list(requested.values() if isinstance(requested, Mapping) else requested)
    if not out:
        raise SchemaError("there is nothing to compute: give a variable, or several")
    for variable in out:
        if not isinstance(cast("Any", variable), Variable):
            raise SchemaError(f"what is computed is given as variables; seen {variable!r}")
        if variable.block.program is not out[0].block.program:
            raise SchemaError(f"{variable.name} is a variable of another program than {out[0].name}")
    return out


def _pruned(variables: Sequence[Variable]) -> _Pruned:
    whole_program = variables[0].block.program
    names = tuple(v.name for v in variables)
    entries = _PRUNED.setdefault(whole_program, {})
    entry = entries.get(names)
    if entry is None or entry.version != whole_program.version:
        program = prune(for_test(whole_program), None, names)
        program.random_seed = 0
        for old in [n for n, pruned in entries.items() if pruned.version != whole_program.version]:
            del entries[old]
        entry = entries[names] = _Pruned(whole_program.version, program, Executor())
    return entry


def _begin(
    variables: Sequence[Variable], source: Source, batch_size: int, executor: Executor | None, scope: Scope | None
) -> tuple[_Pruned, Executor, Scope, Data]:
    """Return the pruned program of variables, its executor and scope, and the data for its described inputs, without unused ones."""
    pruned = _pruned(variables)
    data = as_data(source, batch_size, False, 0, variables[0].block.program, inputs_of(pruned.program, [v.name for v in variables]))
    check_batches(data, variables[0].block.program, "examples appended to fill it, whose results are dropped again, keep all rows")
    return pruned, executor if executor is not None else pruned.executor, scope if scope is not None else default_scope(), data


class _ResultBatches:
    """The results of one variable, batch by batch."""

    def __init__(self, variable: Variable) -> None:
        self.variable = variable
        self.values: list[Any] = []
        self.wrong: tuple[int, Any] | None = None

    def add(self, value: Any, examples: int) -> None:
        """Take a batch's result."""
        self.values.append(value)
        rows = value.shape[0] if getattr(value, "ndim", 0) else len(value) if isinstance(value, LoDTensor) else None
        if rows != examples and self.wrong is None:
            self.wrong = (examples, value)
        if self.wrong is not None and len(self.values) > 1:
            count, result = self.wrong
            shape = list(result.shape) if hasattr(result, "shape") else type(result).__name__
            raise ExecutionError(
                f"{self.variable.name} ({self.variable.spec.text()}) has no row for each example: a batch of {count} gave {shape}, so that "
                "batches cannot be joined; fs.evaluate gives means, Executor.run each batch by itself"
            )

    def joined(self) -> Any:
        """Return one array, or one ragged tensor, of all batches."""
        import numpy

        if len(self.values) == 1:
            return self.values[0]
        if isinstance(self.values[0], LoDTensor):
            return LoDTensor.joined(self.values)
        try:
            return numpy.concatenate(self.values)
        except ValueError as error:
            raise ExecutionError(f"the batches of {self.variable.name} ({self.variable.spec.text()}) differ in more than their rows: {error}") from None
