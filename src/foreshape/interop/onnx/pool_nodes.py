"""Pools: by an op of PaddlePaddle where one has the same windows, else by `dilated_pool`; and their inverse."""

from __future__ import annotations

import math
from typing import Any

from foreshape import layer
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import dims_of, entry, numbers, shaped
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.onnx.windows import given_pads, pads_of, strides_and_dilations
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.spec import FP32, INT64


@onnx("MaxPool", "AveragePool", "LpPool")
def pool(c: Call) -> Any:
    x, kind = c.x(), c.node.operator
    axes = c.rank(x) - 2
    kernel = [int(k) for k in c.attribute("kernel_shape")]
    if not 1 <= axes <= 3 or len(kernel) != axes:
        raise Refused(f"a pool of {axes} axes by a window of {len(kernel)}")
    power = float(c.attribute("p", 2))
    if kind != "LpPool":
        return _pooled(c, x, "max" if kind == "MaxPool" else "avg", kernel)
    made = _pooled(c, layer.pow(abs(x), power), "sum", kernel)
    return layer.pow(made, 1.0 / power)


def _pooled(c: Call, x: Variable, kind: str, kernel: list[int]) -> Any:
    axes = len(kernel)
    strides, dilations = strides_and_dilations(c, axes)
    pads, auto = pads_of(c, x, kernel, strides, dilations), c.attribute("auto_pad", "NOTSET")
    ceil = bool(c.attribute("ceil_mode", 0)) and auto in ("NOTSET", "")
    indices = len([o for o in c.node.outputs if o]) > 1
    whole = kind == "sum" or bool(c.attribute("count_include_pad", 0))
    if _is_plain(c, x, kind, kernel, strides, pads, ceil, whole) and not indices and set(dilations) == {1}:
        return _by_pool2d(c, x, kind, kernel, strides, pads, ceil, whole)
    attrs = {"pooling_type": kind, "ksize": kernel, "strides": strides, "dilations": dilations, "paddings": pads or [0] * (2 * axes)}
    attrs |= {"padding_algorithm": "EXPLICIT" if pads is not None else auto, "ceil_mode": ceil, "exclusive": not whole}
    attrs |= {"return_mask": indices, "column_major": bool(c.attribute("storage_order", 0))}
    if not indices:
        return c.op("dilated_pool", attrs, X=x)[0]
    block = c.importer.block
    names = {slot: f"{block.program.layer_name('dilated_pool')}.{slot.lower()}" for slot in ("Out", "Mask")}
    block.append_op("dilated_pool", {"X": x}, names, attrs)
    return tuple(block.vars[name] for name in names.values())


def _is_plain(c: Call, x: Variable, kind: str, kernel: list[int], strides: list[int], pads: list[int] | None, ceil: bool, whole: bool) -> bool:
    """Tell whether pool2d or pool3d has the same windows, but for dilations and places."""
    if kind != "max" and len(kernel) == 3 and x.spec.known_dtype.itemsize == 2:
        return False  # torch has no such kernel
    if pads is None:
        return c.attribute("auto_pad") == "SAME_UPPER" and (kind == "max" or not whole)
    if (kind == "sum" and (any(pads) or ceil)) or (whole and kind == "avg" and pads[::2] != pads[1::2]):
        return False  # means count the zeros behind an axis as those before it
    # rounded up, ours has another number of windows where one begins behind the image
    if ceil and (any(pads) or any(s > k for s, k in zip(strides, kernel, strict=True))):
        return False
    sizes = zip(x.spec.known_dims[2:], kernel, pads[::2], pads[1::2], strict=True)  # a window larger than the image is none here, and one there
    return all(not isinstance(n, int) or n + b + a >= k for n, k, b, a in sizes)


def _by_pool2d(c: Call, x: Variable, kind: str, kernel: list[int], strides: list[int], pads: list[int] | None, ceil: bool, whole: bool) -> Variable:
    axes, of, size = len(kernel), x.spec.known_dtype, math.prod(kernel)
    algorithm = "EXPLICIT" if pads is not None else "SAME"
    pads = pads or [0] * (2 * axes)
    x = x if of.is_floating else c.cast(x, FP32)
    if axes == 1:
        x, kernel, strides, pads = c.unsqueeze(x, 2), [1, *kernel], [1, *strides], [0, 0, *pads]
    attrs = {"pooling_type": "max" if kind == "max" else "avg", "ksize": kernel, "strides": strides, "paddings": pads, "padding_algorithm": algorithm}
    out = c.op("pool3d" if axes == 3 else "pool2d", attrs | {"ceil_mode": ceil, "exclusive": not whole}, X=x)
    out = c.squeeze(out, 2) if axes == 1 else out
    return c.cast(out if kind != "sum" else layer.scale(out, float(size)), of)


@onnx("MaxUnpool")
def max_unpool(c: Call) -> Any:
    """Put numbers at their places, counted over the whole tensor before the pool, with zeros between; up to a given shape behind it."""
    x, places = c.x(0), c.cast(c.x(1), INT64)
    axes = c.rank(x) - 2
    kernel = [int(k) for k in c.attribute("kernel_shape")]
    strides, _ = strides_and_dilations(c, axes)
    pads = given_pads(c, axes)
    sizes: list[int | Variable] = dims_of(c, x, 0, 2)
    for k, size in enumerate(dims_of(c, x, 2)):
        more = kernel[k] - strides[k] - pads[2 * k] - pads[2 * k + 1]
        if isinstance(size, int):
            sizes.append(size * strides[k] + more)
        else:
            sizes.append(size * numbers(c, strides[k]) + numbers(c, more))
    inner = layer.concat([numbers(c, s) if isinstance(s, int) else s for s in sizes], 0)
    total: Variable = numbers(c, 1)
    for at in range(axes + 2):
        total = total * entry(c, inner, at)
    flat, wanted = c.reshape(places, [-1]), sizes
    if c.has(2):  # places that do not fit into the image without it count over the given shape
        shape = c.reshape(c.cast(c.x(2), INT64), [axes + 2])
        known = c.constant(2)
        wanted = [entry(c, shape, at) for at in range(axes + 2)] if known is None else [int(n) for n in known.reshape(-1)]
        last = layer.reduce_max(layer.concat([numbers(c, 0), flat], 0), [0], True)
        moved, rest, step = layer.fill_like(flat, 0.0, INT64), flat, numbers(c, 1)
        for at in range(axes + 1, -1, -1):
            size = layer.maximum(entry(c, inner, at), numbers(c, 1))
            moved = moved + rest % size * step
            rest, step = rest // size, step * entry(c, shape, at)
        flat = layer.where(last < total, moved, flat)
        total = step
    zeros = c.op("fill_constant", {"shape": [], "dtype": x.spec.known_dtype.code, "value": 0.0}, ShapeTensor=total)
    out = layer.scatter(zeros, flat, c.reshape(x, [-1]), overwrite=True)
    return shaped(c, out, -1, *wanted[1:])  # of no images, too
