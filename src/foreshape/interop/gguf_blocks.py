"""The blocks of few bits in GGUF files, as llama.cpp lays them out: their numbers, scales and offsets.

A kind has a scale for each 16 or 32 numbers of a row, and some kinds an offset. Blocks of 256 numbers ("K") have scales of 4 to 8 bits, multiplied by one of
fp16. Numbers are kept as they are: a value is its number times its scale, plus its offset, in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from foreshape.core.values.conversion import to_tensor
from foreshape.core.values.torch_proxy import torch
from foreshape.machine.kernels.grouped_weights import Bits, GroupedNumbers

Parts = tuple[Any, Any, "Any | None"]
"""Numbers ``[..., blocks, k]``, scales and offsets ``[..., blocks, groups]``."""


class BlockKind(NamedTuple):
    """A kind of blocks.

    Attributes:
        block, size: the numbers of a block, and its bytes.
        bits: of a number here.
        parts: from the bytes ``[..., blocks, size]`` to the parts.
    """

    block: int
    size: int
    bits: Bits
    parts: Callable[[Any], Parts]


def unpacked(kind: BlockKind, rows: Any) -> GroupedNumbers:
    """Return the numbers of blocks, of dims ``[..., blocks * block]``.

    Args:
        kind: of the blocks.
        rows: uint8 ``[..., blocks, size]``.
    """
    with np.errstate(all="ignore"):  # scales may be any: who reads them looks at the results
        numbers, *scales = kind.parts(rows)
    out = torch.empty((*rows.shape[:-2], rows.shape[-2] * kind.block), dtype=torch.int8)
    out.numpy().reshape(numbers.shape)[...] = numbers
    groups = [None if part is None else to_tensor(np.ascontiguousarray(part.astype("float32")).reshape(*rows.shape[:-2], -1)) for part in scales]
    assert groups[0] is not None
    return GroupedNumbers(out, groups[0], kind.bits, groups[1])


def _half_floats(rows: Any, begin: int) -> Any:
    """Return a number of fp16 of each block, as fp32 ``[..., blocks, 1]``."""
    return np.ascontiguousarray(rows[..., begin : begin + 2]).view("<f2").astype("float32")


def _shares(rows: Any, begin: int, count: int, width: int, bits: int) -> Any:
    """Return numbers of few bits: each ``width`` bytes have their lowest bits, then the next ones, and so on; uint8 ``[..., blocks, k]``."""
    octets = rows[..., begin : begin + count].reshape(*rows.shape[:-1], -1, 1, width)
    shifts = np.arange(0, 8, bits, dtype="uint8").reshape(-1, 1)
    return ((octets >> shifts) & np.uint8((1 << bits) - 1)).reshape(*rows.shape[:-1], -1)


def _fifth_bits(rows: Any, begin: int) -> Any:
    return np.unpackbits(rows[..., begin : begin + 4], axis=-1, bitorder="little") << 4


def _scales_of_six_bits(rows: Any, begin: int) -> tuple[Any, Any]:
    """Return the 8 scales and the 8 offsets in 12 bytes of each block: two bits of the last four of each lie above the first four."""
    scales, offsets, halves = (rows[..., begin + 4 * i : begin + 4 * i + 4] for i in range(3))
    return (
        np.concatenate([scales & 63, halves & 15 | scales >> 2 & 48], -1).astype("float32"),
        np.concatenate([offsets & 63, halves >> 4 | offsets >> 2 & 48], -1).astype("float32"),
    )


def _q4_0(rows: Any) -> Parts:
    return _shares(rows, 2, 16, 16, 4).view("int8") - np.int8(8), _half_floats(rows, 0), None


def _q4_1(rows: Any) -> Parts:
    return _shares(rows, 4, 16, 16, 4), _half_floats(rows, 0), _half_floats(rows, 2)


def _q5_0(rows: Any) -> Parts:
    return (_shares(rows, 6, 16, 16, 4) | _fifth_bits(rows, 2)).view("int8") - np.int8(16), _half_floats(rows, 0), None


def _q5_1(rows: Any) -> Parts:
    return _shares(rows, 8, 16, 16, 4) | _fifth_bits(rows, 4), _half_floats(rows, 0), _half_floats(rows, 2)


def _q8_0(rows: Any) -> Parts:
    return rows[..., 2:].view("int8"), _half_floats(rows, 0), None


def _q2_k(rows: Any) -> Parts:
    scales = rows[..., :16]
    numbers = _shares(rows, 16, 64, 32, 2)
    return numbers, _half_floats(rows, 80) * (scales & 15), -(_half_floats(rows, 82) * (scales >> 4))


def _q3_k(rows: Any) -> Parts:
    numbers = _shares(rows, 32, 64, 32, 2).view("int8") - (np.int8(4) - (_shares(rows, 0, 32, 32, 1) << 2).view("int8"))
    scales = (_shares(rows, 96, 8, 8, 4) | _shares(rows, 104, 4, 4, 2) << 4).view("int8") - np.int8(32)
    return numbers, _half_floats(rows, 108) * scales, None


def _q4_k(rows: Any) -> Parts:
    scales, offsets = _scales_of_six_bits(rows, 4)
    return _shares(rows, 16, 128, 32, 4), _half_floats(rows, 0) * scales, -(_half_floats(rows, 2) * offsets)


def _q5_k(rows: Any) -> Parts:
    scales, offsets = _scales_of_six_bits(rows, 4)
    numbers = _shares(rows, 48, 128, 32, 4) | _shares(rows, 16, 32, 32, 1) << 4
    return numbers, _half_floats(rows, 0) * scales, -(_half_floats(rows, 2) * offsets)


def _q6_k(rows: Any) -> Parts:
    numbers = (_shares(rows, 0, 128, 64, 4) | _shares(rows, 128, 64, 32, 2) << 4).view("int8") - np.int8(32)
    return numbers, _half_floats(rows, 208) * rows[..., 192:208].view("int8"), None


BLOCKS: Final[Mapping[str, BlockKind]] = {
    "Q4_0": BlockKind(32, 18, 4, _q4_0),
    "Q4_1": BlockKind(32, 20, 4, _q4_1),
    "Q5_0": BlockKind(32, 22, 8, _q5_0),
    "Q5_1": BlockKind(32, 24, 8, _q5_1),
    "Q8_0": BlockKind(32, 34, 8, _q8_0),
    "Q2_K": BlockKind(256, 84, 4, _q2_k),
    "Q3_K": BlockKind(256, 110, 4, _q3_k),
    "Q4_K": BlockKind(256, 144, 4, _q4_k),
    "Q5_K": BlockKind(256, 176, 8, _q5_k),
    "Q6_K": BlockKind(256, 210, 8, _q6_k),
}


def equal_kind(weight: GroupedNumbers) -> str | None:
    """Return the name of the blocks with the same numbers as a weight ``[rows, k]``; None if no kind has them.

    Groups of 32 numbers, or of several times as many, have one: of 8 bits Q8_0, of 4 bits Q4_0, and with offsets Q4_1. Scales become fp16.
    """
    width, groups = weight.numbers.shape[1], weight.scales.shape[1]
    if width % 32 or not groups or width // groups % 32 or (weight.bits == 8 and weight.offsets is not None):
        return None
    return "Q8_0" if weight.bits == 8 else "Q4_0" if weight.offsets is None else "Q4_1"


def scale_change(weight: GroupedNumbers) -> float | None:
    """Return the largest relative change of a scale or an offset by its rounding to fp16; None if one is out of the bounds of fp16."""
    change = 0.0
    for part in (weight.scales, weight.offsets):
        if part is not None:
            sizes = part.abs()
            errors = (part.half().float() - part).abs()
            if not bool((errors <= sizes * 2.0**-10).all()):  # an infinity's error is NaN or infinite
                return None
            change = max(change, float((errors / sizes.where(sizes > 0, 1.0)).max()) if part.numel() else 0.0)
    return change


def stored_rows(weight: GroupedNumbers, kind: str) -> Any:
    """Return the blocks of a weight ``[rows, k]``, uint8 ``[rows, bytes]``.

    Args:
        weight: on the host, with scales in the bounds of fp16.
        kind: of `equal_kind`.
    """
    repeats = weight.numbers.shape[1] // 32 // weight.scales.shape[1]
    factors = [np.repeat(part.numpy().astype("<f2"), repeats, 1)[..., None].view("uint8") for part in (weight.scales, weight.offsets) if part is not None]
    numbers = weight.numbers.numpy().reshape(len(weight.numbers), -1, 32)
    if kind == "Q8_0":
        data = numbers.view("uint8")
    else:
        halves = (numbers + np.int8(8 if kind == "Q4_0" else 0)).view("uint8")
        data = halves[..., :16] | halves[..., 16:] << 4
    return np.concatenate([*factors, data], -1).reshape(len(numbers), -1)
