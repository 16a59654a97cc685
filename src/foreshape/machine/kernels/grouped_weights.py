"""Weights of 8 or 4 bits in groups, each with its scale, and products of fp32 rows with them.

A weight ``[k, columns]`` lies in tiles of `TILE` columns, each read from end to end: bytes ``[tiles, k, TILE]`` of 8 bits, or of 4 bits
``[tiles, k / 2, TILE]``, where a byte has rows 2 i (its lower half) and 2 i + 1, each plus 8. The scales are ``[tiles, k / group, TILE]``, of fp32.

A weight may have offsets too, of the dims of the scales: each is added to the numbers of its group times their scale. A weight of 4 bits has numbers from
0 to 15 then, without the 8. In a product an offset is multiplied by the sum of its group of the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import numpy as np

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels import word_loop
from foreshape.machine.kernels.integer_tiles import MOST_EXACT, lanes_of_sums
from foreshape.machine.kernels.loop_team import run_together

Bits = Literal[4, 8]
TILE: Final = 64
_MOST: Final = 1 << 22
"""The numbers of unpacked tiles at a time."""
_CANDIDATES: Final = 16


class GroupedNumbers(NamedTuple):
    """A weight whose numbers are rounded already, as a file has them.

    Attributes:
        numbers: int8, of the weight's dims: from -128 to 127, or of 4 bits from -8 to 7, and with offsets from 0 to 15.
        scales: fp32, of the same dims but one, where each serves a group: the dim summed over in a product.
        bits: 8 or 4.
        offsets: fp32, of the dims of the scales: added to numbers times their scales; None without them.
    """

    numbers: Tensor
    scales: Tensor
    bits: Bits
    offsets: Tensor | None = None

    @property
    def is_finite(self) -> bool:
        """Tell whether all scales and offsets are finite."""
        return all(bool(torch.isfinite(part).all()) for part in (self.scales, self.offsets) if part is not None)

    def changed(self, change: Callable[[Tensor], Tensor]) -> GroupedNumbers:
        """Return the weight with its parts changed alike, as by a transpose."""
        return GroupedNumbers(change(self.numbers), change(self.scales), self.bits, None if self.offsets is None else change(self.offsets))

    def floats(self) -> Tensor:
        """Return the weight in fp32."""
        axis = 0 if self.numbers.shape[0] != self.scales.shape[0] else 1
        group = self.numbers.shape[axis] // self.scales.shape[axis]
        values = self.scales.repeat_interleave(group, axis).mul_(self.numbers)
        return values if self.offsets is None else values.add_(self.offsets.repeat_interleave(group, axis))


def group_of(rows: int, group: int) -> int:
    """Return the largest multiple of 4 up to a group's size among the divisors of the rows; 0: there is none."""
    return next((size for size in range(min(group, rows) // 4 * 4, 0, -4) if rows % size == 0), 0)


def pack(weight: Tensor, bits: Bits, group: int) -> tuple[Tensor, Tensor]:
    """Return a weight ``[k, columns]`` of fp32 as bytes and scales.

    Of 8 bits a scale is the largest magnitude of its group by 127. Of 4 bits, from -8 to 7, it is the one of some with the least squared error.

    Args:
        weight: of finite numbers.
        bits: 8 or 4.
        group: the rows with one scale; a multiple of 4, and a divisor of ``k``.
    """
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % TILE)).view(rows // group, group, -1)
    if bits == 8:
        scales = padded.abs().amax(1).div_(127)
        numbers = _rounded(padded, scales, -127, 127)
    else:
        scales = _least_error(padded)
        numbers = _rounded(padded, scales, -8, 7)
    return _tiled(numbers.view(rows, -1), scales, bits)


def pack_numbers(weight: GroupedNumbers) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return a weight with numbers ``[k, columns]`` and scales ``[groups, columns]`` as bytes, scales and offsets in tiles, as `pack` does."""
    padded = weight.changed(lambda part: torch.nn.functional.pad(part, (0, -part.shape[1] % TILE)).contiguous())
    packed, scales = _tiled(padded.numbers, padded.scales, weight.bits, 8 if padded.offsets is None else 0)
    return packed, scales, None if padded.offsets is None else _in_tiles(padded.offsets).contiguous()


def unpack_numbers(packed: Tensor, scales: Tensor, bits: Bits, columns: int, offsets: Tensor | None = None) -> GroupedNumbers:
    """Return the numbers ``[k, columns]``, scales and offsets of a weight in tiles: the inverse of `pack_numbers`."""
    numbers = packed
    if bits == 4:
        numbers = torch.stack([packed & 15, packed >> 4], 2).view(packed.shape[0], -1, TILE).to(torch.int8)
        if offsets is None:
            numbers -= 8
    parts = [None if part is None else part.transpose(0, 1).reshape(part.shape[1], -1)[:, :columns] for part in (numbers, scales, offsets)]
    assert parts[0] is not None and parts[1] is not None
    return GroupedNumbers(parts[0], parts[1], bits, parts[2])


def _in_tiles(rows: Tensor) -> Tensor:
    return rows.view(rows.shape[0], -1, TILE).transpose(0, 1)


def _tiled(numbers: Tensor, scales: Tensor, bits: Bits, shift: int = 8) -> tuple[Tensor, Tensor]:
    """Return numbers ``[k, tiles * TILE]`` and scales ``[groups, tiles * TILE]`` in tiles; ``shift`` is added to numbers of 4 bits."""
    tiles = _in_tiles(numbers)
    if bits == 4:
        halves = (tiles + shift).to(torch.uint8)
        tiles = halves[:, 0::2] | halves[:, 1::2] << 4
    return tiles.to(torch.int8 if bits == 8 else torch.uint8).contiguous(), _in_tiles(scales).contiguous()


def _rounded(groups: Tensor, scales: Tensor, low: int, high: int) -> Tensor:
    return groups.div(scales.where(scales != 0, 1.0).unsqueeze(1)).round_().clamp_(low, high)


def _least_error(groups: Tensor) -> Tensor:
    """Return the scales ``[groups, columns]`` of numbers from -8 to 7 with the least squared errors: of some sizes, with either sign."""
    largest = groups.abs().amax(1)
    best, least = largest / 7, torch.full(largest.shape, torch.inf)
    for number in range(_CANDIDATES):
        for sign in (-1.0, 1.0):
            scales = largest * (sign / (6.4 + 0.15 * number))
            error = _rounded(groups, scales, -8, 7).mul_(scales.unsqueeze(1)).sub_(groups).square_().sum(1)
            is_better = error < least
            best, least = torch.where(is_better, scales, best), torch.where(is_better, error, least)
    return best


def unpack(packed: Tensor, scales: Tensor, bits: int, offsets: Tensor | None = None) -> Tensor:
    """Return tiles of fp32, ``[tiles, k, TILE]``."""
    if bits == 8:
        numbers = packed.float()
    else:
        numbers = torch.empty((packed.shape[0], 2 * packed.shape[1], TILE), device=packed.device)
        numbers[:, 0::2] = packed & 15
        numbers[:, 1::2] = packed >> 4
        if offsets is None:
            numbers -= 8
    tiles, rows, _ = numbers.shape
    groups = numbers.view(tiles, scales.shape[1], -1, TILE).mul_(scales.unsqueeze(2))
    if offsets is not None:
        groups += offsets.unsqueeze(2)
    return numbers.view(tiles, rows, TILE)


def rounded(x: Tensor, groups: int) -> Tensor:
    """Return rows ``[m, k]`` of fp32 rounded to 8 bits: of each group of a row the largest magnitude is 127 steps.

    A group with a number that is not finite is NaN.
    """
    parts = x.reshape(x.shape[0], groups, x.shape[1] // groups)
    largest = parts.abs().amax(2, keepdim=True)
    lift = torch.ones_like(largest).masked_fill(largest < 2.0**-96, 2.0**64)  # 127 over the largest would be infinite
    steps = (largest / 127).masked_fill(~largest.isfinite(), torch.nan)
    whole = (parts * lift * torch.full_like(largest, 127).div(largest * lift).where(largest > 0, 0.0)).round_()
    return whole.mul_(steps).view(x.shape)


def product(x: Tensor, packed: Tensor, scales: Tensor, bits: int, columns: int, offsets: Tensor | None = None, *, rounds_rows: bool = False) -> Tensor:
    """Return rows ``[m, k]`` times a packed weight, ``[m, columns]``: in machine code with numba, otherwise some tiles are unpacked at a time.

    ``rounds_rows``: the rows are `rounded` first, in the groups of the weight. Where the processor has instructions for it, bytes are multiplied then.
    """
    tiles = packed.shape[0]
    if x.is_cpu and x.shape[0] and not x.shape[1] // scales.shape[1] % 4 and word_loop.can_compile():
        return _in_machine_code(x.contiguous(), packed, scales, bits, columns, offsets, rounds_rows)
    if rounds_rows:
        x = rounded(x, scales.shape[1])
    out = torch.empty((x.shape[0], tiles * TILE), dtype=x.dtype, device=x.device)
    step = max(1, _MOST // max(1, x.shape[1] * TILE))
    for first in range(0, tiles, step):
        part = slice(first, min(tiles, first + step))
        results = torch.matmul(x, unpack(packed[part], scales[part], bits, None if offsets is None else offsets[part]))
        out.view(x.shape[0], tiles, TILE)[:, part].copy_(results.transpose(0, 1))
    return out if out.shape[1] == columns else out[:, :columns].clone(memory_format=torch.contiguous_format)


def _in_machine_code(x: Tensor, packed: Tensor, scales: Tensor, bits: int, columns: int, offsets: Tensor | None, rounds_rows: bool) -> Tensor:
    (rows, inner), groups = x.shape, scales.shape[1]
    out = torch.empty((rows, columns), dtype=torch.float32)
    threads, in_bytes = torch.get_num_threads(), rounds_rows and multiplies_bytes(inner // groups)
    scratch = torch.empty((threads, word_loop.product_scratch(rows, inner, groups, in_bytes)), dtype=torch.float32)
    code = word_loop.BYTE_PRODUCT if bits == 8 else word_loop.HALF_BYTE_PRODUCT
    table = np.zeros((2, word_loop.WIDTH), np.int64)
    begin, place = 2 + word_loop.OPERANDS, x
    if rounds_rows:
        place = torch.empty(word_loop.rounded_numbers(rows, inner, groups) if in_bytes else rows * inner, dtype=torch.float32)
        table[0, [0, 1, 2, 4]] = word_loop.ROUNDING, word_loop.IN_PARTS, x.data_ptr(), place.data_ptr()
        table[0, begin : begin + 4] = rows, inner, groups, 0 if in_bytes else scratch.data_ptr()
    table[1, :2] = code, word_loop.BEHIND_BARRIER + word_loop.IN_PARTS
    table[1, 2:7] = place.data_ptr(), packed.data_ptr(), out.data_ptr(), scales.data_ptr(), 0 if offsets is None else offsets.data_ptr()
    table[1, begin : begin + 6] = rows, inner, columns, groups, scratch.data_ptr(), in_bytes
    first = 0 if rounds_rows else 1
    run_together(table[first:], np.zeros((2, word_loop.NUMBERS)), 2 - first, threads)
    return out


def multiplies_bytes(group: int) -> bool:
    """Return True if rounded rows in groups of so many numbers are multiplied as bytes: the processor has instructions, and sums fit into 32 bits."""
    return group < MOST_EXACT and lanes_of_sums() > 0


def unpacked_elements(tiles: int, rows: int) -> int:
    """Return the numbers unpacked at a time by `product`."""
    return min(tiles, max(1, _MOST // max(1, rows * TILE))) * rows * TILE
