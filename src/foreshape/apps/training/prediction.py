"""`predict` and `evaluate`: the outputs of a network for data, and its figures, without a step of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, overload
from weakref import WeakKeyDictionary

from foreshape.apps.training.checkpoint.state import Sums
from foreshape.apps.training.data.batches import Batch, Data, as_data, batch_examples, check_batches, inputs_of
from foreshape.apps.training.distributed.batch_share import Share
from foreshape.apps.training.figures import fetches_of, figure_of
from foreshape.apps.training.progress import counted
from foreshape.core.hints import tells_arguments
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.program import Program, Variable
from foreshape.metrics import Metric
from foreshape.runtime.engine import Executor, LoDTensor, Scope, default_scope
from foreshape.runtime.engine.prepared_run import repeated
from foreshape.transforms.passes import for_test, prune
from foreshape.transforms.passes.over_examples import OverExamples

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
    outputs: Variable | Sequence[Variable] | Mapping[str, Variable], data: Source, *, batch_size: int = 128, executor: Executor | None = None,
    scope: Scope | None = None, progress: bool | None = None, console: Any = None,
) -> Any:  # fmt: skip
    """Compute outputs of a network for data, batch by batch, joined.

    Runs only the ops behind the outputs, as in a test. Dropout is off, normalisation uses the averages of training, and nothing is updated. Labels are
    needed only by outputs that depend on them.

    Args:
        outputs: variables of one program, with one row (or sequence) for each example.
        data: as for `train`; arrays not needed by the outputs are ignored.
        batch_size: of arrays; it changes the time and the memory, not the results.
        executor: runs the program; by default one of its own, kept for the next call.
        scope: holds the parameters; the default scope if omitted.
        progress: a bar (True) or nothing (False); by default a bar on a terminal, for runs of more than a moment.
        console: rich's console for the bar; the terminal by default.

    Returns:
        For a variable an array ``[examples, ...]``, or a `LoDTensor` if it is ragged; for a list a list, for a dict a dict.

    Raises:
        FeedError: data that do not fit the program. ExecutionError: a parameter without a value; an output without a row for each
        example, so that batches cannot be joined.
    """
    variables = _variables(outputs)
    pruned, run, values, selected = _begin(variables, data, batch_size, executor, scope)
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


@tells_arguments
def evaluate(
    metrics: Variable | Sequence[Variable] | Mapping[str, Variable | Metric], data: Source, *, batch_size: int = 128, executor: Executor | None = None,
    scope: Scope | None = None, progress: bool | None = None, console: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Compute the losses and metrics of data, without a step of training; as in a test, see `predict`.

    Each is the value for one batch of all examples, whatever ``batch_size``. Means over examples (or words, or weights) are means over all of them,
    sums are sums, and functions of them functions of these.

    Args:
        metrics: name -> variable of one program, or a measure of `foreshape.metrics`; or variables, whose names the results get.
        data, batch_size, executor, scope, progress: as for `predict`.
        console: rich's console for the bar; the terminal by default.

    Raises:
        As `predict`.
    """
    named_metrics = dict(metrics) if isinstance(metrics, Mapping) else {v.name: v for v in _variables(metrics)}
    variables = _variables([v for metric in named_metrics.values() for v in (metric.inputs if isinstance(metric, Metric) else [metric])])
    pruned, run, values, selected = _begin(variables, data, batch_size, executor, scope)
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
