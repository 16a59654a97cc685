"""Windows over images: their strides and dilations, and their pads by numbers or by an algorithm."""

from __future__ import annotations

from foreshape import layer
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import numbers, size_of
from foreshape.language.program.variable import Variable


def strides_and_dilations(c: Call, axes: int) -> tuple[list[int], list[int]]:
    """Return both, a number for each axis."""
    return [int(n) for n in c.attribute("strides") or [1] * axes], [int(n) for n in c.attribute("dilations") or [1] * axes]


def given_pads(c: Call, axes: int) -> list[int]:
    """Return the pads of an attribute, before and after each axis."""
    pads = [int(p) for p in c.attribute("pads") or [0] * (2 * axes)]
    return [n for k in range(axes) for n in (pads[k], pads[axes + k])]


def pads_of(c: Call, x: Variable, kernel: list[int], strides: list[int], dilations: list[int]) -> list[int] | None:
    """Return the pads of windows, before and after each axis; None for as many windows as strides of an image of open sizes."""
    axes = len(kernel)
    auto = c.attribute("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        return given_pads(c, axes)
    if auto == "VALID":
        return [0] * (2 * axes)
    out: list[int] = []
    for k in range(axes):
        size = x.spec.known_dims[2 + k]
        reach = (kernel[k] - 1) * dilations[k] + 1
        if isinstance(size, int):
            total = max(0, (-(-size // strides[k]) - 1) * strides[k] + reach - size)
        elif strides[k] == 1:
            total = reach - 1
        else:
            return None
        small, large = total // 2, total - total // 2
        out += [small, large] if auto == "SAME_UPPER" else [large, small]
    return out


def padded_as_same(c: Call, x: Variable, kernel: list[int], strides: list[int], dilations: list[int]) -> Variable:
    """Return images with zeros around them, in the run, for as many windows without pads as strides."""
    upper, pads = c.attribute("auto_pad", "NOTSET") == "SAME_UPPER", list[Variable]()
    for k in range(len(kernel) - 1, -1, -1):
        size, reach = size_of(c, x, 2 + k), (kernel[k] - 1) * dilations[k] + 1
        count = (size + numbers(c, strides[k] - 1)) // numbers(c, strides[k])
        spanned = count * numbers(c, strides[k]) + numbers(c, reach - strides[k])
        total = spanned - size
        total = total if reach >= strides[k] else layer.maximum(total, numbers(c, 0))
        small = total // numbers(c, 2)
        large = total - small
        pads += [small, large] if upper else [large, small]
    extra = [*range(2, 5 - len(kernel))]
    pads += [numbers(c, 0)] * (2 * len(extra))
    paddings = layer.concat(pads, 0)
    return c.squeeze(c.op("pad3d", {"paddings": [], "mode": "constant", "value": 0.0}, X=c.unsqueeze(x, *extra), Paddings=paddings), *extra)
