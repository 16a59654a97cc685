"""Figures of an epoch, or of a whole set: sums over batches and ranks, and the numbers made of them at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from foreshape.apps.training.checkpoint.state import Sums
from foreshape.apps.training.distributed.batch_share import Share
from foreshape.errors import ForeshapeError, SchemaError
from foreshape.language.program import Program, Variable
from foreshape.language.program.call_site import warn_user
from foreshape.metrics import Metric
from foreshape.runtime.engine import Executor, Scope
from foreshape.transforms.passes import prune
from foreshape.transforms.passes.over_examples import OverExamples, Statistic, by_example, measure, same_measure

Taken = Mapping[str, Any]
"""The fetched values of a batch, by the names of variables."""


class Figure(Protocol):
    """A figure, or several of one name."""

    fetches: list[str]
    names: list[str]

    def begin(self) -> Sums:
        """Return the sums before the first batch."""
        ...

    def add(self, sums: Sums, fetched: Taken, batch: Share) -> None:
        """Take a batch, or a rank's part of it."""
        ...

    def value(self, sums: Sums) -> Any:
        """Return the figure of the sums: a number, or the array of a metric."""
        ...

    def results(self, sums: Sums) -> dict[str, float]:
        """Return the figures of the sums as a number for each name."""
        ...


def add_mean(sums: Sums, name: str, value: Any, count: float) -> None:
    """Add a mean over ``count`` items: the sum is added, and behind it the count."""
    numbers = np.asarray(value, np.float64).reshape(-1) if count else np.zeros(np.size(value))
    new = np.append(numbers * count, count)
    previous = sums.get(name)
    sums[name] = new if previous is None else previous + new


def mean_of(sums: Sums, name: str) -> Any:
    """Return the mean counted by `add_mean`; NaN for none."""
    total = sums.get(name)
    if total is None or not total[-1]:
        return np.full(1 if total is None else len(total) - 1, np.nan)
    return total[:-1] / total[-1]


def figure_of(name: str, metric: Variable | Metric, program: Program, examples: OverExamples, executor: Executor, scope: Scope) -> Figure:
    """Return the figure of a variable or a metric of a program, without a step.

    Args:
        examples: of the program's global block.
        executor, scope: compute the figure of the sums.
    """
    if isinstance(metric, Metric):
        return _OfMetric(name, metric)
    return _OfVariable(name, metric.name, program, examples, executor, scope)


def figures_of(program: Program, loss: str, metrics: Mapping[str, Variable | Metric], executor: Executor, scope: Scope) -> list[Figure]:
    """Return the loss and the metrics whose variables a program has."""
    block, examples = program.global_block, OverExamples(program.global_block)
    shown_metrics = {"loss": block.var(loss)} | {n: m for n, m in metrics.items() if all(v in block.vars for v in fetched_of(m))}
    return [figure_of(n, metric, program, examples, executor, scope) for n, metric in shown_metrics.items()]


def fetches_of(figures: Iterable[Figure]) -> list[str]:
    """Return the fetches of figures for each batch."""
    return list(dict.fromkeys(n for figure in figures for n in figure.fetches))


def fetched_of(metric: Variable | Metric) -> list[str]:
    """Return the variables of a figure."""
    return [v.name for v in metric.inputs] if isinstance(metric, Metric) else [metric.name]


class _OfMetric:
    """The figures of a metric."""

    def __init__(self, name: str, metric: Metric) -> None:
        self.name, self.metric = name, metric
        self.fetches = [v.name for v in metric.inputs]
        self.names = [" ".join([name, *map(str, index)]) for index in np.ndindex(metric.shape)]
        self.keys = {key: f"{name}/{key}" for key in metric.begin()}

    def begin(self) -> Sums:
        return {self.keys[key]: value for key, value in self.metric.begin().items()}

    def add(self, sums: Sums, fetched: Taken, batch: Share) -> None:
        if batch.own:
            state = {key: sums[name] for key, name in self.keys.items()}
            try:
                self.metric.add(state, *(fetched[name] if self.metric.ragged else _numbers(fetched[name]) for name in self.fetches))
            except ForeshapeError as error:
                error.add_note(f"in the figure {self.name!r} of {', '.join(self.fetches)}")
                raise
            sums.update((name, state[key]) for key, name in self.keys.items())

    def value(self, sums: Sums) -> Any:
        return self.metric.value({key: sums[name] for key, name in self.keys.items()})

    def results(self, sums: Sums) -> dict[str, float]:
        return dict(zip(self.names, np.reshape(self.value(sums), -1).tolist(), strict=True))


_EXAMPLES: Final = ""
"""The name of the count if a batch counts by its examples."""


class _OfVariable:
    """The mean, the sum, or a function of these, of a variable over the examples."""

    def __init__(self, name: str, variable: str, program: Program, examples: OverExamples, executor: Executor, scope: Scope) -> None:
        self.name, self.of, self.names = name, variable, [name]
        self.program, self.over, self.executor, self.scope = program, examples, executor, scope
        self.statistics = self._statistics()
        self.counted = {statistic.name: self._counted(statistic) for statistic in self.statistics}
        self.fetches = list(dict.fromkeys(n for s in self.statistics for n in (s.name, *s.by, *self.counted[s.name][1])))
        self._tail: Program | None = None

    def _statistics(self) -> list[Statistic]:
        """Return the statistics of the variable; itself if it depends on the examples otherwise, and each batch counts by its examples."""
        examples, variable = self.over, self.program.global_block.var(self.of)
        if by_example(variable):
            return [Statistic(self.of, of=self.of)]
        statistics = examples.statistics(self.of)
        if statistics is None and examples.is_open(self.of):
            op = examples.writer.get(self.of)
            site = None if op is None else op.call_site
            origin = "" if op is None else f", made by {op.type}{f' ({site.short()})' if site is not None else ''},"
            warn_user(
                f"the figure {self.name!r} is a mean over batches, and depends on these: {self.of}{origin} is no function of sums and means over "
                "examples; fs.metrics has measures of a whole set"
            )
        return list(statistics.values()) if statistics else [Statistic(self.of, alike=True)]

    def _counted(self, statistic: Statistic) -> tuple[str, Sequence[str]]:
        """Return the input that counts the items of a statistic's mean, or nothing if they are the examples; and the fetches to count it."""
        if statistic.alike or statistic.by or statistic.is_sum:
            return _EXAMPLES, ()
        examples, variable = self.over, self.program.global_block.var(statistic.of)
        rows = measure(variable, statistic.rows)
        if isinstance(rows, int):
            return _EXAMPLES, ()
        for fed in examples.inputs_of(statistic.name):
            dims, lod = fed.spec.known_dims, fed.spec.lod
            if same_measure(lod.counts[0] if lod is not None else dims[0], rows):
                return _EXAMPLES, ()
            if same_measure(measure(fed), rows):
                return fed.name, ()
        if statistic.rows:
            raise SchemaError(f"the figure {self.name!r}: no input has as many rows as {statistic.of}")
        return statistic.of, (statistic.of,)

    def begin(self) -> Sums:
        block = self.program.global_block
        sizes = {s: 1 if s.name == s.of else math.prod(d for d in block.var(s.name).spec.known_dims if isinstance(d, int)) for s in self.statistics}
        return {self._key(s): np.zeros(size + 1) for s, size in sizes.items()}

    def _key(self, statistic: Statistic) -> str:
        return self.name if statistic.name == self.of else f"{self.name}/{statistic.name}"

    def add(self, sums: Sums, fetched: Taken, batch: Share) -> None:
        for statistic in self.statistics:
            value, (counted, is_fetched) = _numbers(fetched[statistic.name]), self.counted[statistic.name]
            if statistic.is_sum:
                count = 1.0
            elif statistic.by:
                count = float(sum(fetched[n].sum() for n in statistic.by))
            elif counted is _EXAMPLES:
                count = batch.own
            else:
                count = _size(_numbers(fetched[counted] if is_fetched else batch[counted]))
            if statistic.of == statistic.name:
                value = value.mean() if value.size else 0.0
            add_mean(sums, self._key(statistic), value, count if batch.own else 0)

    def results(self, sums: Sums) -> dict[str, float]:
        return {self.name: self.value(sums)}

    def value(self, sums: Sums) -> float:
        block, values = self.program.global_block, dict[str, Any]()
        for statistic in self.statistics:
            numbers = sums[self._key(statistic)]
            mean = numbers[:-1] if statistic.is_sum else mean_of(sums, self._key(statistic))
            values[statistic.name] = np.zeros_like(mean) if statistic.by and not numbers[-1] else mean  # as such an operator has it
        if self.of in values:
            return float(values[self.of].mean())
        if self._tail is None:
            self._tail = prune(self.program, list(values), [self.of])
            self._tail.random_seed = 0
        feed: dict[str, Any] = {}
        for name, numbers in values.items():
            spec = block.var(name).spec
            feed[name] = numbers.reshape([int(d) for d in spec.known_dims if isinstance(d, int)]).astype(spec.known_dtype.numpy_name)
        (value,) = self.executor.run(self._tail, feed, [self.of], self.scope)
        return float(value.mean())


def _numbers(value: Any) -> Any:
    """Return the elements of a fed or fetched value: of ragged data the packed rows."""
    return value.data if hasattr(value, "sequence_lengths") else value


def _size(value: Any) -> int:
    return math.prod(int(d) for d in value.shape)
