"""Ranges of rows, for kernels on some of the sequences, or in another order."""

from __future__ import annotations

from foreshape.core.values.torch_proxy import Tensor, torch


def rows_in(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the rows ``starts[i]`` to ``starts[i] + lengths[i]`` (not included) of each range, one range after the other."""
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    return torch.arange(total, device=starts.device) + (starts - ends + lengths).repeat_interleave(lengths, output_size=total)


def shown(numbers: Tensor) -> list[int]:
    """Return the first few numbers, for an error message."""
    return [int(n) for n in numbers.reshape(-1)[:20]]
