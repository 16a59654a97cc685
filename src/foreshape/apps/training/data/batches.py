"""Data as batches: arrays in memory shuffled by a seed, rows read on demand, or any iterable of batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from functools import cached_property
from typing import Any, Protocol, cast, runtime_checkable

from foreshape.apps.training.checkpoint.resume_check import Scalar
from foreshape.apps.training.data.digest import digest
from foreshape.core.values.conversion import to_tensor
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import FeedError, whole
from foreshape.language.program import Program, Variable
from foreshape.runtime.engine import LoDTensor, SelectedRows
from foreshape.runtime.feeding.converted import converted
from foreshape.runtime.feeding.feed_errors import dims_advice, meant_for, not_numbers
from foreshape.runtime.feeding.ragged import as_ragged
from foreshape.runtime.feeding.tables import Complete, array_of, described, formatted, gives_lists, is_dataset, is_transformed, is_value, named, table_of

Batch = Mapping[str, Any]


@runtime_checkable
class Data(Protocol):
    """A source of the batches of an epoch, the same ones for the same epoch."""

    batches: int | None
    """The number of batches of an epoch, if known."""
    watched: bool
    """True if `first` is wanted."""
    first: str | None
    """A digest of the first batch of the epoch asked for last, of data without their own."""

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, without the first ``skip``."""
        ...

    def facts(self) -> dict[str, Scalar]:
        """Return the facts behind a data position: a run is resumed exactly only if these are equal."""
        ...


class Arrays:
    """Arrays (or ragged data, in any form that can be fed) in memory, by input, one example per row (or sequence).

    The order of epoch e is the permutation drawn by numpy's PCG64 from (seed, e), and needs no state. The last batch is
    smaller if the batch size does not divide the examples.

    Raises:
        FeedError: no examples, values of different lengths, or a batch size below 1.
    """

    def __init__(self, arrays: Batch, batch_size: int, shuffle: bool, seed: int, program: Program | None = None, *, drop_last: bool = False) -> None:
        self.arrays = {name: _whole(name, arrays[name], None if program is None else program.global_block.find(name)) for name in arrays}
        counts = {name: examples(name, a) for name, a in self.arrays.items()}
        if not counts or not min(counts.values()):
            raise FeedError(f"there are no examples: {counts or 'no arrays'}")
        if len(set(counts.values())) > 1:
            raise FeedError(f"all data must have as many examples; seen {', '.join(f'{n}: {c}' for n, c in counts.items())}")
        self.count = next(iter(counts.values()))
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self.batches: int | None = batches_of(self.count, batch_size, drop_last)
        self.watched = False
        self.first: str | None = None

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        ragged = any(isinstance(a, LoDTensor) for a in self.arrays.values())
        if not (self.shuffle or ragged):  # rows in their order need not be gathered
            for start in range(skip * self.batch_size, (self.batches or 0) * self.batch_size, self.batch_size):
                yield {name: a[start : start + self.batch_size] for name, a in self.arrays.items()}
            return
        for rows in chosen(self, number, skip):
            yield {name: rows_of(a, rows) for name, a in self.arrays.items()}

    def facts(self) -> dict[str, Scalar]:
        samples: dict[str, Scalar] = {f"sample of {name}": digest(a) for name, a in self.arrays.items()}
        return {**order_facts(self), **samples}


class RowDataset:
    """A data set read by row numbers, a batch at a time, in the order of `Arrays`.

    Raises:
        FeedError: no rows, or a batch size below 1.
    """

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int, selection: Taken, *, drop_last: bool = False) -> None:
        if selection.wanted is not None and not is_transformed(dataset):
            dataset = dataset.select_columns([name for name in dataset.column_names if name in selection.wanted])
        self.dataset, self.taken = Complete(formatted(dataset)), selection
        self.count = len(dataset)
        if not self.count:
            raise FeedError("there are no examples: the data set has no rows")
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self.batches: int | None = batches_of(self.count, batch_size, drop_last)
        self.watched = False
        self.first: str | None = None

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        for rows in chosen(self, number, skip):
            yield self.taken(self.dataset[rows.tolist()])

    def facts(self) -> dict[str, Scalar]:
        spread = sorted({step * (self.count - 1) // 63 for step in range(64)})
        facts: dict[str, Scalar] = {"sample": digest(self.dataset[spread])}
        return {**order_facts(self), **facts}


class Taken:
    """A function that turns batches of any form into dicts from inputs to arrays.

    Args:
        program: has the inputs; without it a batch is a mapping of arrays.
        wanted: the inputs to keep; all of a batch by default.
        needed: returns the inputs for values without names, if not all; asked only for such values.
    """

    def __init__(self, program: Program | None, wanted: Sequence[str] | None, needed: Callable[[], Sequence[str]] | None = None) -> None:
        self.program, self.wanted, self._needed = program, wanted, needed

    @cached_property
    def needed(self) -> Sequence[str]:
        """Return the inputs for values without names, if not all of the program's."""
        if self.wanted is not None:
            return self.wanted
        assert self.program is not None
        return described(self.program) if self._needed is None else self._needed()

    def __call__(self, batch: Any) -> Batch:
        """Return the batch as a dict. Raises `FeedError` for anything else."""
        by_name = self.by_input(batch)
        if all(value.__class__.__name__ in ("ndarray", "Tensor", "LoDTensor") for value in by_name.values()):
            return by_name
        return {name: self._array(name, value) for name, value in by_name.items()}

    def by_input(self, batch: Any) -> Batch:
        if not isinstance(batch, Mapping):
            if self.program is None or isinstance(batch, (int, float, str, bytes)) or batch is None:
                raise FeedError(f"a batch is a dict, input -> array; seen {type(batch).__name__}")
            batch = named(batch, self.program, self.needed)
        values = cast("Batch", batch)
        if self.wanted is None:
            return values
        for name in self.wanted:
            if name not in values:
                variable = None if self.program is None else self.program.global_block.find(name)
                site = None if variable is None else variable.call_site
                description = "" if variable is None else f" ({variable.spec.text()}" + (f", described at {site.short()})" if site is not None else ")")
                raise FeedError(f"{name}{description} is not fed; fed are: {', '.join(map(str, values)) or 'none'}{meant_for(name, values, self.wanted)}")
        return {name: values[name] for name in self.wanted}

    def _array(self, name: str, value: Any) -> Any:
        """Return a list or a column as an array, or as ragged rows; numbers and names unknown to the program stay as they are."""
        variable = None if self.program is None or isinstance(value, (int, float, SelectedRows)) else self.program.global_block.find(name)
        if variable is None or variable.persistable or variable.spec.dims is None or value is None:
            return value
        return as_ragged(name, value, variable.spec) if variable.spec.lod is not None else array_of(name, value, variable.spec)


def _whole(name: str, value: Any, variable: Variable | None) -> Any:
    """Return all examples of an input as an array, a tensor or ragged rows, checked before the run.

    Raises:
        FeedError: numbers of another kind than the input's, other dims, or no numbers.
    """
    import numpy

    spec = None if variable is None or variable.persistable or variable.spec.dims is None else variable.spec
    array: Any
    if spec is not None and spec.lod is not None:
        array = as_ragged(name, value, spec)
        first = array.data
    elif isinstance(value, LoDTensor):
        return value
    else:
        array = value if spec is None else array_of(name, value, spec)
        try:
            array = first = to_tensor(array) if array.__class__.__name__ == "Tensor" else numpy.asarray(array)
        except (TypeError, ValueError) as error:
            raise not_numbers(name, value, array, error) from None
    if spec is None:
        return array
    dims = spec.known_dims
    if spec.lod is None and 0 < len(array.shape) == len(dims) - 1 and dims[-1] == 1:
        array = first = array[..., None]
    try:
        sample = to_tensor(first[:1] if len(first.shape) else first)
    except (TypeError, ValueError) as error:
        raise not_numbers(name, value, first, error) from None
    if sample.dtype is not torch_dtype(spec.known_dtype):
        converted(name, sample, spec.known_dtype, torch_dtype(spec.known_dtype), dims_advice(spec, first.shape))
    for axis, (dim, size) in enumerate(zip(dims, first.shape, strict=False)):
        if axis and isinstance(dim, int) and dim != size and len(dims) == len(first.shape):
            raise FeedError.must(name, f"{spec.text()}", f"{list(first.shape)}: dim {axis} must be {dim}, not {size}", "fed is", dims_advice(spec, first.shape))
    return array


class Batches:
    """An iterable of batches for every epoch, or a function that returns one for each epoch."""

    def __init__(self, source: Iterable[Any] | Callable[..., Iterable[Any]], taken: Taken | None = None) -> None:
        self.source = source
        self.taken = taken if taken is not None else Taken(None, None)
        self.batches: int | None = _length(source)
        self._takes_number = callable(source) and _takes_argument(source)
        self._used_up = False
        self.watched = False
        self.first: str | None = None

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """Skip at once: random numbers for the skipped batches are drawn when this returns."""
        source = self.source
        if self._used_up:
            raise FeedError(f"the data are an iterator, which epoch {number} finds used up; give a list, or a function that returns an iterator")
        self._used_up = isinstance(source, Iterator)
        batches = iter((source(number) if self._takes_number else source()) if callable(source) else source)
        self.first = None
        for index in range(skip):
            batch = next(batches, None)
            if batch is None:
                raise FeedError(f"the run is resumed after batch {skip} of epoch {number}, and the data end after batch {index}")
            if index == 0 and self.watched:
                self._look_at(self.taken(batch), index)
        return self._checked(batches, number, skip)

    def facts(self) -> dict[str, Scalar]:
        out: dict[str, Scalar] = {"batches": self.batches}
        source: Any = self.source
        if isinstance(source, (list, tuple)):
            out["sample"] = digest(source)
        return out

    def _checked(self, batches: Iterator[Any], number: int, count: int) -> Iterator[Batch]:
        for source_batch in batches:
            batch = self.taken(source_batch)
            self._look_at(batch, count)
            count += 1
            yield batch
        if not count:
            raise FeedError(f"the data gave no batch in epoch {number}")

    def _look_at(self, batch: Any, index: int) -> None:
        if index == 0 and self.watched and not isinstance(self.source, (list, tuple)):
            self.first = digest(batch)


def _takes_argument(function: Callable[..., Any]) -> bool:
    """Tell whether a function must be given one argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _length(source: Any) -> int | None:
    """Return the number of batches, if known."""
    try:
        return len(source) if isinstance(source, Sized) else None
    except TypeError:  # a loader of rows in sequence
        return None


def as_data(
    source: Any, batch_size: int, shuffle: bool, seed: int, program: Program | None = None, inputs: Sequence[Variable] | None = None,
    needed: Callable[[], Sequence[str]] | None = None, drop_last: bool = False,
) -> Data:  # fmt: skip
    """Return the data of a training or an evaluation for the inputs of ``program``.

    Args:
        source: input -> array, ragged data, column or list; a table or a data set, by the names of its columns; a tuple with a value for
            each input, in the order of their description; the value of a single input. Or batches, each in any of these
            forms: an iterable of them (a loader of torch), or a function that returns one.
        inputs: the wanted inputs, all required; other data are left out. None feeds all data.
        needed: returns the names of the inputs for values without names, if not all.
        drop_last: leave out the examples of a last batch smaller than the others.

    Raises:
        FeedError: the data have none of these forms.
    """
    batch_size = whole("batch_size", batch_size, 1, FeedError)
    if isinstance(source, Data):
        return source
    selection = Taken(program, None if inputs is None else [v.name for v in inputs], needed)
    kind = cast("type[Any]", type(source))
    if issubclass(kind, Mapping):
        sets = [name for name, value in source.items() if is_dataset(value) or _is_streamed(value)]
        if sets:
            raise FeedError(f"a dict of data sets is given, {', '.join(map(str, sets))}: give one of them, as [{sets[0]!r}]")
        return Arrays(selection.by_input(source), batch_size, shuffle, seed, program, drop_last=drop_last)
    if program is not None:
        if is_dataset(source):
            return RowDataset(source, batch_size, shuffle, seed, selection, drop_last=drop_last)
        table = table_of(source)
        if table is not None:
            return Arrays(selection.by_input(table), batch_size, shuffle, seed, program, drop_last=drop_last)
        if _is_streamed(source):
            return Batches(lambda: source.iter(batch_size=batch_size), selection)
        if issubclass(kind, tuple) and source and not any(isinstance(part, Mapping) for part in source):
            return Arrays(selection.by_input(source), batch_size, shuffle, seed, program, drop_last=drop_last)
        if gives_lists(getattr(source, "dataset", None)) and getattr(getattr(source, "collate_fn", None), "__name__", "") == "default_collate":
            raise FeedError(
                "a DataLoader puts the lists of a data set without a format together by their elements, not by rows: give it "
                "data.with_format('torch'), or give the data set itself"
            )
        names = described(program)
        if issubclass(kind, list) and len(source) == len(names) > 1 and all(hasattr(part, "shape") for part in source):
            raise FeedError(f"a list is a list of batches, and this one has arrays: give a tuple, ({', '.join(names)})")
        if not issubclass(kind, (list, tuple, int, float, Iterator)) and is_value(source):
            return Arrays(selection.by_input(source), batch_size, shuffle, seed, program, drop_last=drop_last)
    if callable(source) or hasattr(source, "__iter__"):
        if drop_last:
            raise FeedError("drop_last is of arrays, a table or a data set; these data come in batches, and whoever makes them leaves the last one out")
        return Batches(cast("Iterable[Any]", source), selection)
    rows = ", rows without batches: put it in a torch.utils.data.DataLoader" if all(hasattr(source, n) for n in ("__getitem__", "__len__")) else ""
    raise FeedError(
        "data are a dict of arrays, a table, a tuple with an array for each input, an iterable of batches of these, or a function that "
        f"returns one; seen {type(source).__name__}{rows}"
    )


def check_batches(data: Data, program: Program, advice: str) -> None:
    """Refuse data in batches of another size than the network's, before its first step. Raises `FeedError`."""
    if isinstance(data, Arrays):
        check_sizes(data, data.arrays, program, advice)
    elif isinstance(data, RowDataset):
        check_sizes(data, data.taken.wanted or [v.name for v in inputs_of(program)], program, advice)


def _is_streamed(source: Any) -> bool:
    """Tell whether it is a data set of rows in sequence, without random access."""
    return hasattr(source, "iter") and hasattr(source, "column_names")


def inputs_of(program: Program, fetched: Iterable[str] = ()) -> list[Variable]:
    """Return the inputs read by ops or fetched unchanged, in the order of their description."""
    read = {n for op in program.all_ops() for n in op.input_names()}.union(fetched)
    return [v for v in program.global_block.vars.values() if v.name in read and v.op is None and not v.persistable]


def examples(name: str, value: Any) -> int:
    """Return the number of examples of a fed value: rows, or sequences if ragged. Raises `FeedError` for a single number."""
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
    """Return the number of examples of a batch, by its first value with rows; 1 if there is none."""
    for name, value in batch.items():
        if value.__class__.__name__ == "ndarray" and value.ndim:  # asked of each batch
            return value.shape[0]
        if isinstance(value, LoDTensor) or len(getattr(value, "shape", None) or ()):
            return examples(name, value)
    return 1


def rows_of(value: Any, chosen: Any) -> Any:
    """Return the chosen rows of an array, or the chosen sequences of a ragged tensor."""
    return value.choose(chosen) if isinstance(value, LoDTensor) else value[chosen]


def split(data: Data, share: float, program: Program) -> tuple[Data, Data]:
    """Divide examples into training and validation data.

    Args:
        data: arrays, columns or a table.
        share: the fraction of examples held out, rounded, at least one.
            They are drawn by the seed of the data, or are the last ones of data without shuffling.
        program: has the inputs.

    Raises:
        FeedError: a share not between 0 and 1 or leaving no examples; batches, or a data set read on demand.
    """
    import numpy

    if isinstance(share, bool) or not 0 < share < 1:
        raise FeedError.must("validation= as a share of the examples", "between 0 and 1", f"{share!r}")
    if not isinstance(data, Arrays):
        raise FeedError(
            "a share of the examples can be held out for validation= where the data are arrays or a table; these come in batches, or are read as "
            "they are needed: give validation data of their own"
        )
    count = max(1, round(share * data.count))
    if count == data.count:
        raise FeedError(f"validation={share!r} leaves none of the {data.count} examples to train on")
    order = numpy.random.Generator(numpy.random.PCG64(data.seed)).permutation(data.count) if data.shuffle else numpy.arange(data.count)

    def part(rows: numpy.ndarray, shuffle: bool, drop_last: bool) -> Arrays:
        arrays = {name: rows_of(a, numpy.sort(rows)) for name, a in data.arrays.items()}
        return Arrays(arrays, data.batch_size, shuffle, data.seed, program, drop_last=drop_last)

    return part(order[:-count], data.shuffle, data.drop_last), part(order[-count:], False, False)


# --- The sizes of batches: their number, the examples of each, and networks described for batches of one size.


class Ordered(Protocol):
    """Examples in an order, divided into batches."""

    count: int
    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    batches: int | None


def batches_of(count: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of batches of an epoch. Raises `FeedError` if ``drop_last`` leaves none."""
    if drop_last and count < batch_size:
        raise FeedError(f"drop_last leaves none of the {count} examples: a batch_size of {batch_size} is larger")
    return count // batch_size if drop_last else -(-count // batch_size)


def chosen(data: Ordered, number: int, skip: int) -> Iterator[Any]:
    """Yield the numbers of the examples of each batch of an epoch: in order without shuffling."""
    import numpy

    order = numpy.random.Generator(numpy.random.PCG64([data.seed, number])).permutation(data.count) if data.shuffle else numpy.arange(data.count)
    for start in range(skip * data.batch_size, (data.batches or 0) * data.batch_size, data.batch_size):
        yield order[start : start + data.batch_size]


def order_facts(data: Ordered) -> dict[str, Scalar]:
    """Return the facts of the order of the examples for a resumed run."""
    facts: dict[str, Scalar] = {"examples": data.count, "batch_size": data.batch_size, "shuffle": data.shuffle, "seed": data.seed if data.shuffle else None}
    return facts | {"drop_last": True} if data.drop_last else facts


def check_sizes(data: Ordered, fed: Collection[str], program: Program, advice: str) -> None:
    """Refuse batches of another size than a network was described for, before the first of them runs.

    Args:
        data: the examples.
        fed: the inputs with data.
        program: the network.
        advice: the remedy for a smaller last batch, besides another batch size and a description for any.

    Raises:
        FeedError: an input is of a fixed number of examples, and some batch has another.
    """
    last = 0 if data.drop_last else data.count % data.batch_size
    for variable in (v for name in fed if (v := program.global_block.find(name)) is not None and v.need_check_feed):
        spec = variable.spec
        if spec.lod is not None or not spec.dims or not isinstance(size := spec.dims[0], int):
            continue
        site = variable.call_site
        description = f"{variable.name} is {spec.text()}{f', described at {site.short()},' if site is not None else ''} for batches of exactly {size}"
        anew = f"layer.data({variable.name!r}, {['batch', *spec.dims[1:]]}) takes any"
        if data.count >= data.batch_size != size:
            raise FeedError(f"{description}; batch_size is {data.batch_size}: batch_size={size} fits, or {anew}").told(
                slot="batch_size", required=size, seen=data.batch_size
            )
        if last and last != size:
            raise FeedError(
                f"{description}, and {data.count} examples in batches of {data.batch_size} leave a last batch of {last}: {advice}, a batch_size that divides "
                f"{data.count} has none, or {anew}"
            ).told(slot=variable.name, required=size, seen=last)
