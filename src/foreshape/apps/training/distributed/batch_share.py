"""A rank's share of a batch: cut by examples, in order, so that each example is on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foreshape.apps.training.data.batches import Batch, batch_examples, examples, rows_of
from foreshape.errors import FeedError
from foreshape.language.program import Program
from foreshape.runtime.engine import LoDTensor


class Share(dict[str, Any]):
    """A rank's feed of a batch with ``total`` examples, ``own`` of them this rank's.

    A rank without an example is given the first one, which must count nothing.
    """

    def __init__(self, values: Mapping[str, Any], total: int, count: int) -> None:
        super().__init__(values)
        self.total, self.own = total, count


def bounds_of(total: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the examples of a rank, of so many: from and to. The parts differ by one example at most."""
    return total * rank // ranks, total * (rank + 1) // ranks


def share_of(batch: Batch, program: Program, rank: int, ranks: int) -> Share:
    """Return a rank's share of a batch. Inputs without an example per row, by the program, go whole to every rank.

    Raises:
        FeedError: an input with one row for each example whose number of rows the program fixes.
    """
    import numpy

    total = batch_examples(batch)
    first, end = bounds_of(total, rank, ranks)
    rows = slice(first, end) if end > first else slice(0, 1)
    out: dict[str, Any] = {}
    for name, value in batch.items():
        variable = program.global_block.find(name)
        dims = None if variable is None else variable.spec.dims
        if not dims or (isinstance(dims[0], int) and variable is not None and variable.spec.lod is None):
            if dims and total == dims[0] and total > 1:
                raise FeedError(f"{name} is described with exactly {total} rows, so that no rank can be given a part of them: leave the first dim open")
            out[name] = value
        else:
            array = value if hasattr(value, "shape") or hasattr(value, "choose") else numpy.asarray(value)
            if examples(name, array) != total:
                raise FeedError(
                    f"all inputs of a batch must have as many examples, so that they can be divided over ranks: {name} has "
                    f"{examples(name, array)}, others have {total}"
                )
            out[name] = rows_of(array, numpy.arange(total)[rows]) if isinstance(array, LoDTensor) else array[rows]
    return Share(out, total, end - first)
