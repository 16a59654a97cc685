"""Sums over the sequences of ragged values, and their first and last rows, shared by the sequence operators."""

from __future__ import annotations

from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch


def segment_sum(values: Tensor, offsets: Offsets) -> Tensor:
    """Return the sum of the rows of each innermost sequence, ``[count, *row]``; zeros for an empty one."""
    if values.dtype is torch.float64 or not values.is_floating_point():
        out = torch.zeros((offsets.count, *values.shape[1:]), dtype=values.dtype, device=values.device)
        return out.index_add_(0, offsets.segments, values)
    if not values.numel():  # the kernel below looks at rows without columns as if they had some
        return values.new_zeros((offsets.count, *values.shape[1:]))
    if offsets.count == 1 and offsets.rows == len(values):
        return values.sum(0, keepdim=True)
    # a bag of all rows in order: a third of the time of index_add on 2500 rows of 64, since each sum stays in registers
    flat = values if values.dim() == 2 else values.reshape(values.shape[0], -1)
    bags = private.bag_sums(flat, all_rows(offsets), offsets.last, False, 0, False, None, True, -1)
    return bags[0] if values.dim() == 2 else bags[0].view(offsets.count, *values.shape[1:])


def all_rows(offsets: Offsets) -> Tensor:
    """Return 0, 1, ... to the number of rows: int64 ``[rows]``."""
    return offsets.kept("all rows", lambda: torch.arange(offsets.rows, device=offsets.last.device))


def empty_sequences(offsets: Offsets) -> Tensor | None:
    """Return the innermost sequences without rows, int64; None if there is none."""

    def make() -> tuple[Tensor | None]:
        empty = (offsets.lengths == 0).nonzero().view(-1)
        return (empty if len(empty) else None,)

    return offsets.kept("empty", make)[0]


def ends(offsets: Offsets, last: bool) -> tuple[Tensor | None, Tensor]:
    """Return the sequences with rows (None: all have), and the first or last row of each of them."""

    def make() -> tuple[Tensor | None, Tensor]:
        rows = offsets.last[1:] - 1 if last else offsets.last[:-1]
        if empty_sequences(offsets) is None:
            return None, rows
        full = offsets.lengths.nonzero().view(-1)
        return full, rows[full]

    return offsets.kept(("ends", last), make)


def column(numbers: Tensor, rank: int) -> Tensor:
    """Return ``[n]`` as ``[n, 1, ...]`` of ``rank`` dims, to multiply rows by."""
    return numbers.view(-1, *(1,) * (rank - 1))
