"""Boxes for the samples of this family's operators."""

from __future__ import annotations

from dataclasses import replace
from math import cos, pi, prod, sin
from typing import Any

from foreshape.core.spec import FP64
from foreshape.language.operator.samples import f32

_GOLDEN = 0.6180339887498949
"""A step with multiples modulo 1 that spread evenly without repeating."""


def boxes(*dims: int, size: float = 8.0, extent: float = 20.0, double: bool = False, start: int = 0) -> Any:
    """Return fp32 (or fp64) boxes ``[*dims, 4]`` of up to ``size``, some of them overlapping, with corners in [0, within + size]."""
    numbers: list[float] = []
    for index in range(start, start + prod(dims)):
        left, top, width, height = ((_GOLDEN * (index + 1) * k) % 1 for k in (1, 2.3, 5.9, 7.1))
        numbers += [left * extent, top * extent, left * extent + width * size, top * extent + height * size]
    value = f32(*dims, 4, data=numbers)
    return replace(value, dtype=FP64) if double else value


def polygons(images: int, count: int, corners: int, *, double: bool = False) -> Any:
    """Return fp32 (or fp64) polygons ``[images, count, 2 corners]`` around middles near each other; some are hollow."""
    numbers: list[float] = []
    for index in range(images * count):
        x, y = ((_GOLDEN * (index + 1) * k) % 1 * 6 for k in (1, 2.3))
        for corner in range(corners):
            angle = 2 * pi * (corner + 0.3 * ((_GOLDEN * (index + 3)) % 1)) / corners
            reach = 2 + 2 * ((_GOLDEN * (index * corners + corner + 1) * 5.9) % 1)
            numbers += [x + reach * cos(angle), y + reach * sin(angle)]
    value = f32(images, count, 2 * corners, data=[[numbers[2 * corners * (i * count + n) :][: 2 * corners] for n in range(count)] for i in range(images)])
    return replace(value, dtype=FP64) if double else value
