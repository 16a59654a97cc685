"""Updates with a gradient of zeros but for some rows, a block of the table at a time, without a copy of the table's size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from foreshape.dims import Size
from foreshape.spec import Spec
from foreshape.values.rows import Rows
from foreshape.values.torch_proxy import Tensor, torch

BLOCK_ELEMENTS = 1 << 18
"""The elements of a table in one block."""


def block_bytes(of: Spec) -> Size:
    """Return the bytes of a gradient of one block of a table, at most."""
    block = BLOCK_ELEMENTS * of.known_dtype.itemsize
    return min(of.nbytes, block) if isinstance(of.nbytes, int) else block


def in_blocks(grad: Rows, wholes: Sequence[Tensor], of: Any) -> Iterator[tuple[Tensor, ...]]:
    """Yield for each block of a table its gradient and its part of each of ``wholes``.

    The gradient has the element type ``of`` and zeros in rows without one in ``grad`` (merged). It is good until the next one.
    """
    table = wholes[0]
    height, ids = table.shape[0], grad.rows
    size = max(1, min(height, BLOCK_ELEMENTS // max(1, table.shape[1:].numel())))
    block = torch.zeros((size, *table.shape[1:]), dtype=of, device=table.device)
    starts = range(0, height, size)
    edges = torch.tensor([min(s + size, height) for s in starts], device=ids.device)
    ends: list[int] = torch.searchsorted(ids, edges).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    values = grad.values.to(of)
    first = 0
    for start, last in zip(starts, ends, strict=True):
        stop = min(start + size, height)
        here = ids[first:last] - start
        block.index_copy_(0, here, values[first:last])
        yield (block[: stop - start], *(t[start:stop] for t in wholes))
        block.index_fill_(0, here, 0.0)
        first = last
