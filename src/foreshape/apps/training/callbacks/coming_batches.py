"""The sizes of the batches that a data loader of torch will give, read without its workers and without a change of random states."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np

from foreshape.errors import SchemaError
from foreshape.interop.torch.untyped_torch import pytree, torch

_COLUMNS: Final = ("length", "lengths")
_ROWS: Final = 10_000
"""Rows that are read at once."""


class ComingBatches(NamedTuple):
    """The batches of an epoch.

    Attributes:
        example: the largest batch as the loader gives it; without lengths a first one.
        sizes: the number of examples and the greatest length of each batch; None where lengths are not known, and all batches are as the example.
        examples: for each batch the number of its longest example in the data set.
        is_ordered: the batches come in this order; otherwise in another one at random, of the same data.
        is_first_alone: lengths are not known, and may differ from the first batch's.
    """

    example: Any
    sizes: Sequence[tuple[int, int]] | None
    examples: Sequence[int]
    is_ordered: bool
    is_first_alone: bool = False

    def place(self, number: int) -> str:
        """Return the words for a batch."""
        if self.sizes is None:
            return "a batch as the first one" if not self.is_ordered else "each batch"
        if self.is_ordered:
            later = "" if number < len(self.sizes) else ", in the second epoch,"
            return f"batch {number % len(self.sizes)} of {len(self.sizes)} (from 0){later}"
        return f"a batch with an example as long as example {self.examples[number % len(self.sizes)]} of the data"


def coming_batches(loader: Any) -> ComingBatches:
    """Return the batches of a data loader.

    Raises:
        SchemaError: the data cannot be asked for an example by its number.
    """
    dataset: Any = getattr(loader, "dataset", None)
    sampler: Any = getattr(loader, "batch_sampler", None)
    if sampler is None or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or not len(dataset):
        raise SchemaError(f"the batches of {type(loader).__name__} cannot be read before the run: give example=, and lengths= where they differ")
    lengths = example_lengths(dataset)
    with kept_random_states():
        groups, is_ordered = _groups(sampler, len(dataset), with_all=lengths is not None)
        if lengths is None:
            is_first_alone = not isinstance(dataset, torch.utils.data.TensorDataset)  # its examples are equally long
            return ComingBatches(_collated(loader, groups[0]), None, [], is_ordered=False, is_first_alone=is_first_alone)
        sizes = [(len(group), max(lengths[i] for i in group)) for group in groups]
        largest = max(range(len(groups)), key=lambda n: sizes[n][0] * sizes[n][1])
        example = _collated(loader, groups[largest])
    tensor = next((value for value in pytree().tree_leaves(example) if isinstance(value, torch.Tensor)), None)
    if tensor is None or tuple(tensor.shape[:2]) != sizes[largest]:  # padded to a length of its own
        return ComingBatches(example, None, [], is_ordered=True)
    return ComingBatches(example, sizes, [max(group, key=lengths.__getitem__) for group in groups], is_ordered)


def _groups(sampler: Any, count: int, *, with_all: bool) -> tuple[list[list[int]], bool]:
    """Return the numbers of the examples of each batch, or of a first one; and whether they come in this order."""
    data = torch.utils.data
    inner = getattr(sampler, "batch_sampler", sampler)  # of a part for each rank
    is_plain = type(inner) is data.BatchSampler
    if is_plain:
        order = list(range(count))
        is_ordered = type(inner.sampler) is data.SequentialSampler and inner is sampler
        if not is_ordered:
            random.Random(0).shuffle(order)
        size = inner.batch_size
        stop = count - count % size if inner.drop_last and count >= size else count
        groups = [order[i : i + size] for i in range(0, stop if with_all else 1, size)]
        return groups, is_ordered
    if iter(sampler) is sampler:
        raise SchemaError(f"the batches of {type(sampler).__name__} can be read once alone: give example=, and lengths= where they differ")
    groups = [list(map(int, group)) for group in sampler if len(group)]
    if not groups:
        raise SchemaError("the data loader has no batch")
    return groups, True


def _collated(loader: Any, group: Sequence[int]) -> Any:
    batch: Any = loader.collate_fn([loader.dataset[i] for i in group])
    return dict(cast("Mapping[Any, Any]", batch)) if isinstance(batch, Mapping) else batch


def example_lengths(dataset: Any) -> Sequence[int] | None:
    """Return the length of each example where it costs little to read: of a column or attribute, or of examples in a list or in Arrow's columns; or None."""
    if isinstance(dataset, torch.utils.data.Subset):
        subset: Any = dataset
        lengths = example_lengths(subset.dataset)
        return None if lengths is None else [lengths[int(i)] for i in subset.indices]
    columns: Any = getattr(dataset, "column_names", None) or ()
    for name in _COLUMNS:
        values: Any = dataset[name] if name in columns else getattr(dataset, name, None)
        if values is not None and not callable(values) and len(values) == len(dataset):
            return [int(value) for value in values]
    if hasattr(dataset, "with_format") and columns:
        return _arrow_lengths(dataset)
    if not isinstance(dataset, (list, tuple)):
        return None
    out = [_length(value) for value in cast("Iterable[Any]", dataset)]
    return cast("list[int]", out) if all(out) else None


def _arrow_lengths(dataset: Any) -> Sequence[int] | None:
    """Return the lengths of a data set in Arrow's columns, as of ``datasets``: of the first column of lists; None without one, or behind a function."""
    if dataset.format["type"] == "custom":
        return None
    rows = dataset.with_format("arrow")
    kinds: Any = rows[:1].schema
    name = next((name for name in dataset.column_names if str(kinds.field(name).type).startswith(("list", "large_list"))), None)
    if name is None:
        return None
    lengths = rows.select_columns([name])
    out = [
        length
        for first in range(0, len(dataset), _ROWS)
        for part in lengths[first : first + _ROWS][name].chunks
        for length in part.value_lengths().fill_null(0).to_pylist()
    ]
    return out if all(out) else None


def _length(example: Any) -> int | None:
    """Return the length of an example: of its first part that has one."""
    if isinstance(example, Mapping):
        values: Sequence[Any] = list(cast("Mapping[Any, Any]", example).values())
    elif isinstance(example, tuple):
        values = cast("Sequence[Any]", example)
    else:
        values = [example]
    for value in values:
        if isinstance(value, (list, np.ndarray)) or (isinstance(value, torch.Tensor) and value.dim()):
            return len(cast("Sequence[Any]", value))
    return None


@contextlib.contextmanager
def kept_random_states() -> Generator[None]:
    """Put back the random states of torch's processor, numpy and Python at the end."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
