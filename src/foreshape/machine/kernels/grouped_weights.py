"""Weights of 8 or 4 bits in groups, each with its scale, and products of fp32 rows with them.

A weight ``[k, columns]`` lies in tiles of `TILE` columns, each read from end to end: bytes ``[tiles, k, TILE]`` of 8 bits, or of 4 bits
``[tiles, k / 2, TILE]``, where a byte has rows 2 i (its lower half) and 2 i + 1, each plus 8. The scales are ``[tiles, k / group, TILE]``, of fp32.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels import word_loop
from foreshape.machine.kernels.loop_team import run_together

Bits = Literal[4, 8]
TILE: Final = 64
_MOST: Final = 1 << 22
"""The numbers of unpacked tiles at a time."""
_CANDIDATES: Final = 16


class GroupedNumbers(NamedTuple):
    """A weight whose numbers are rounded already, as a file has them.

    Attributes:
        numbers: int8, of the weight's dims: from -128 to 127, or of 4 bits from -8 to 7.
        scales: fp32, of the same dims but one, where each serves a group: the dim summed over in a product.
        bits: 8 or 4.
    """

    numbers: Tensor
    scales: Tensor
    bits: Bits

    def floats(self) -> Tensor:
        """Return the weight in fp32."""
        axis = 0 if self.numbers.shape[0] != self.scales.shape[0] else 1
        return self.scales.repeat_interleave(self.numbers.shape[axis] // self.scales.shape[axis], axis).mul_(self.numbers)


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


def pack_numbers(numbers: Tensor, scales: Tensor, bits: Bits) -> tuple[Tensor, Tensor]:
    """Return a weight's rounded numbers ``[k, columns]`` and scales ``[groups, columns]`` as bytes and scales in tiles, as `pack` does."""
    if padding := -numbers.shape[1] % TILE:
        numbers, scales = (torch.nn.functional.pad(part, (0, padding)) for part in (numbers, scales))
    return _tiled(numbers.contiguous(), scales.contiguous(), bits)


def _tiled(numbers: Tensor, scales: Tensor, bits: Bits) -> tuple[Tensor, Tensor]:
    """Return numbers ``[k, tiles * TILE]`` and scales ``[groups, tiles * TILE]`` in tiles."""
    tiles = numbers.view(numbers.shape[0], -1, TILE).transpose(0, 1)
    if bits == 4:
        halves = (tiles + 8).to(torch.uint8)
        tiles = halves[:, 0::2] | halves[:, 1::2] << 4
    return tiles.to(torch.int8 if bits == 8 else torch.uint8).contiguous(), scales.view(scales.shape[0], -1, TILE).transpose(0, 1).contiguous()


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


def unpack(packed: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Return tiles of fp32, ``[tiles, k, TILE]``."""
    if bits == 8:
        numbers = packed.float()
    else:
        numbers = torch.empty((packed.shape[0], 2 * packed.shape[1], TILE), device=packed.device)
        numbers[:, 0::2] = packed & 15
        numbers[:, 1::2] = packed >> 4
        numbers -= 8
    tiles, rows, _ = numbers.shape
    numbers.view(tiles, scales.shape[1], -1, TILE).mul_(scales.unsqueeze(2))
    return numbers.view(tiles, rows, TILE)


def product(x: Tensor, packed: Tensor, scales: Tensor, bits: int, columns: int) -> Tensor:
    """Return rows ``[m, k]`` times a packed weight, ``[m, columns]``: in machine code with numba, otherwise some tiles are unpacked at a time."""
    tiles = packed.shape[0]
    if x.is_cpu and x.shape[0] and not x.shape[1] // scales.shape[1] % 4 and word_loop.can_compile():
        return _in_machine_code(x.contiguous(), packed, scales, bits, columns)
    out = torch.empty((x.shape[0], tiles * TILE), dtype=x.dtype, device=x.device)
    step = max(1, _MOST // max(1, x.shape[1] * TILE))
    for first in range(0, tiles, step):
        part = slice(first, min(tiles, first + step))
        results = torch.matmul(x, unpack(packed[part], scales[part], bits))
        out.view(x.shape[0], tiles, TILE)[:, part].copy_(results.transpose(0, 1))
    return out if out.shape[1] == columns else out[:, :columns].clone(memory_format=torch.contiguous_format)


def _in_machine_code(x: Tensor, packed: Tensor, scales: Tensor, bits: int, columns: int) -> Tensor:
    (rows, inner), groups = x.shape, scales.shape[1]
    out = torch.empty((rows, columns), dtype=torch.float32)
    threads = torch.get_num_threads()
    scratch = torch.empty((threads, 4 * TILE + rows * groups), dtype=torch.float32)
    code = word_loop.BYTE_PRODUCT if bits == 8 else word_loop.HALF_BYTE_PRODUCT
    table = np.zeros(word_loop.WIDTH, np.int64)
    table[0] = code
    table[2:6] = x.data_ptr(), packed.data_ptr(), out.data_ptr(), scales.data_ptr()
    begin = 2 + word_loop.OPERANDS
    table[begin : begin + 5] = rows, inner, columns, groups, scratch.data_ptr()
    run_together(table, np.zeros(word_loop.NUMBERS), 1, threads)
    return out


def unpacked_elements(tiles: int, rows: int) -> int:
    """Return the numbers unpacked at a time by `product`."""
    return min(tiles, max(1, _MOST // max(1, rows * TILE))) * rows * TILE
