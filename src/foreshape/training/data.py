"""Training data as batches: arrays in memory that are shuffled by a seed, or whatever iterates over batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Protocol, cast

from foreshape.engine import LoDTensor
from foreshape.engine.ragged import as_ragged
from foreshape.errors import FeedError
from foreshape.program import Program, Variable
from foreshape.training.changes import Scalar
from foreshape.training.digest import digest

Batch = Mapping[str, Any]


class Data(Protocol):
    """What gives the batches of an epoch, the same ones whenever it is asked for the same epoch."""

    batches: int | None
    """How many batches an epoch has, where that is known."""
    watched: bool
    """Whether `first` is wanted."""
    first: str | None
    """A digest of the first batch of the epoch that was asked for last, of data that have none of their own."""

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, without the first ``skip``."""
        ...

    def facts(self) -> dict[str, Scalar]:
        """What a data position depends on: a run is resumed as it was only where these are equal."""
        ...


class Arrays:
    """Arrays (or ragged data, in any form that can be fed) in memory, by input, one example per row (or sequence).

    The order of epoch e is the permutation that numpy's PCG64 draws from (seed, e), so that it needs no state; the last batch is
    smaller where the examples do not divide.

    Raises:
        FeedError: no examples, values of different lengths, or a batch size below 1.
    """

    def __init__(self, arrays: Batch, batch_size: int, shuffle: bool, seed: int, program: Program | None = None) -> None:
        if batch_size < 1:
            raise FeedError(f"batch_size must be at least 1; seen {batch_size}")
        import numpy

        ragged = {} if program is None else {n: v.spec for n in arrays if (v := program.global_block.find(n)) is not None and v.spec.lod is not None}
        self.arrays = {
            name: as_ragged(name, a, ragged[name]) if name in ragged else a if isinstance(a, LoDTensor) else numpy.asarray(a) for name, a in arrays.items()
        }
        counts = {name: examples(name, a) for name, a in self.arrays.items()}
        if not counts or not min(counts.values()):
            raise FeedError(f"there is nothing to train on: {counts or 'no arrays'}")
        if len(set(counts.values())) > 1:
            raise FeedError(f"all data must have as many examples; seen {', '.join(f'{n}: {c}' for n, c in counts.items())}")
        self.count = next(iter(counts.values()))
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.batches: int | None = -(-self.count // batch_size)
        self.watched = False
        self.first: str | None = None

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        import numpy

        order = numpy.random.Generator(numpy.random.PCG64([self.seed, number])).permutation(self.count) if self.shuffle else numpy.arange(self.count)
        for start in range(skip * self.batch_size, self.count, self.batch_size):
            chosen = order[start : start + self.batch_size]
            yield {name: rows_of(a, chosen) for name, a in self.arrays.items()}

    def facts(self) -> dict[str, Scalar]:
        samples: dict[str, Scalar] = {f"sample of {name}": digest(a) for name, a in self.arrays.items()}
        return {"examples": self.count, "batch_size": self.batch_size, "shuffle": self.shuffle, "seed": self.seed if self.shuffle else None, **samples}


class Batches:
    """An iterable of batches that can be iterated once per epoch, or a function that returns one for each epoch."""

    def __init__(self, source: Iterable[Batch] | Callable[..., Iterable[Batch]]) -> None:
        self.source = source
        self.batches: int | None = len(source) if isinstance(source, Sized) else None
        self._takes_number = callable(source) and _takes_argument(source)
        self._used_up = False
        self.watched = False
        self.first: str | None = None

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """Skips at once, so that what draws random numbers has drawn those of the skipped batches when this returns."""
        source = self.source
        if self._used_up:
            raise FeedError(f"the data are an iterator, which epoch {number} finds used up; give a list, or a function that returns an iterator")
        self._used_up = isinstance(source, Iterator)
        batches = iter((source(number) if self._takes_number else source()) if callable(source) else source)
        self.first = None
        for at in range(skip):
            batch = next(batches, None)
            if batch is None:
                raise FeedError(f"the run is resumed after batch {skip} of epoch {number}, and the data end after batch {at}")
            self._look_at(batch, at)
        return self._checked(batches, number, skip)

    def facts(self) -> dict[str, Scalar]:
        out: dict[str, Scalar] = {"batches": self.batches}
        source: Any = self.source
        if isinstance(source, (list, tuple)):
            out["sample"] = digest(source)
        return out

    def _checked(self, batches: Iterator[Any], number: int, given: int) -> Iterator[Batch]:
        for batch in batches:
            if not isinstance(batch, Mapping):
                raise FeedError(f"a batch is a dict, input -> array; seen {type(batch).__name__}")
            self._look_at(batch, given)
            given += 1
            yield batch  # pyright: ignore[reportUnknownVariableType]
        if not given:
            raise FeedError(f"the data gave no batch in epoch {number}")

    def _look_at(self, batch: Any, at: int) -> None:
        if at == 0 and self.watched and not isinstance(self.source, (list, tuple)):
            self.first = digest(batch)


def _takes_argument(function: Callable[..., Any]) -> bool:
    """Whether a function must be given one thing."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def as_data(given: Any, batch_size: int, shuffle: bool, seed: int, program: Program | None = None, inputs: Sequence[Variable] | None = None) -> Data:
    """What `train` was given as data for the inputs of ``program``; of more inputs than ``inputs``, where these are given, the others are left aside.

    Raises:
        FeedError: it is no data.
    """
    if isinstance(given, Mapping) and inputs is not None:
        wanted = {v.name for v in inputs}
        given = {n: a for n, a in given.items() if n in wanted}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(given, Mapping):
        return Arrays(given, batch_size, shuffle, seed, program)  # pyright: ignore[reportUnknownArgumentType]
    if callable(given) or hasattr(given, "__iter__"):
        return Batches(cast("Iterable[Batch]", given))
    raise FeedError(f"data are a dict of arrays, an iterable of dicts, or a function that returns one; seen {type(given).__name__}")


def examples(name: str, value: Any) -> int:
    """How many examples a fed value has: rows, or sequences where ragged. Raises `FeedError` for a single number."""
    if isinstance(value, LoDTensor):
        return len(value)
    shape = getattr(value, "shape", None)
    if shape is None:
        import numpy

        shape = numpy.shape(value)
    if not len(shape):
        raise FeedError(f"{name} is a single number; data have one example per row")
    return int(shape[0])


def batch_examples(batch: Batch) -> int:
    """How many examples a batch has, by its first value that has rows; 1 where none has."""
    for name, value in batch.items():
        if isinstance(value, LoDTensor) or len(getattr(value, "shape", None) or ()):
            return examples(name, value)
    return 1


def rows_of(value: Any, chosen: Any) -> Any:
    """The chosen rows of an array, or the chosen sequences of a ragged tensor."""
    return value.choose(chosen) if isinstance(value, LoDTensor) else value[chosen]
