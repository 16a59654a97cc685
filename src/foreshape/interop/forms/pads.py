"""Padding, in the other formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from foreshape import layer
from foreshape.core.spec import BOOL, FP32, INT32, INT64
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.forms.shapes import END
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.computed import numbers, size_of
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.write.terms import Term, constant, joined, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import OpenSize
from foreshape.interop.torch.open_size import size_of as torch_size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, tuple_of
from foreshape.language.ops.rules.window import is_channels_last
from foreshape.language.program.variable import Variable

# --- from ONNX


MOST = 2**31 - 1


_MOST_PADS = 4096
"""The most entries before or behind an axis, but for numbers."""


@from_onnx("Pad")
def from_onnx_pad(c: Call) -> Any:
    """Whole pads by name: numbers around, the edge, a reflection, or the other side; negative ones cut."""
    x = c.x()
    rank, mode = c.rank(x), c.attribute("mode", "constant")
    amounts = c.computed(1) if c.opset >= 11 else None
    pads = None if amounts is not None else c.ints(1) if c.opset >= 11 else [int(n) for n in c.attribute("pads") or c.attribute("paddings")]
    value = c.value(2) if c.opset >= 11 else c.attribute("value", 0.0)
    if c.computed(3) is not None:
        return computed.padded(c, x, computed.spread(c, c.x(1), c.x(3), rank), mode, c.optional(2), [*range(rank)])
    axes = c.ints(3) if c.opset >= 18 and c.has(3) else None
    axes = [*range(rank)] if axes is None else [c.axis(a, rank) for a in axes]
    if amounts is not None:
        return computed.padded(c, x, amounts, mode, c.optional(2), axes)
    assert pads is not None
    count = len(axes)
    heads, tails = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        heads[axis], tails[axis] = pads[index], pads[count + index]
    return _pad_and_cut(c, x, heads, tails, mode, value)


def _pad_and_cut(c: Call, x: Variable, heads: list[int], tails: list[int], mode: str, value: Any) -> Variable:
    out, rank = x, len(heads)
    if any(n < 0 for n in (*heads, *tails)):
        cut_axes = [a for a in range(rank) if heads[a] < 0 or tails[a] < 0]
        attrs = {
            "axes": cut_axes,
            "starts": [max(0, -heads[a]) for a in cut_axes],
            "ends": [min(tails[a], 0) or MOST for a in cut_axes],
            "infer_flags": [1] * len(cut_axes),
        }
        out = c.op("slice", attrs, Input=out)
        heads, tails = [max(0, n) for n in heads], [max(0, n) for n in tails]
    if not any((*heads, *tails)):
        return out if out is not x else layer.assign(x)
    if mode == "constant":
        return _pad_with(c, out, heads, tails, value)
    if any(n > _MOST_PADS for n in (*heads, *tails)):
        raise Refused(f"pads of more than {_MOST_PADS} entries")
    for axis in range(rank):
        if heads[axis] or tails[axis]:
            out = _pad_along(c, out, axis, heads[axis], tails[axis], mode)
    return out


def _pad_with(c: Call, x: Variable, heads: list[int], tails: list[int], value: Any) -> Variable:
    dtype = x.spec.known_dtype
    if isinstance(value, (int, float)):
        number: Any = float(value)
    else:
        values = 0.0 if value is None else c.importer.numbers(value)
        number = None if values is None else float(np.asarray(values).reshape(-1)[0])
    if number is not None and (dtype is FP32 or number == 0.0):
        operand = c.cast(x, INT32) if dtype is BOOL else x
        paddings = [n for pair in zip(heads, tails, strict=True) for n in pair]
        return c.cast(c.op("pad", {"paddings": paddings, "pad_value": number}, X=operand), dtype)
    out = x
    filler = c.full([1], dtype, number) if number is not None else c.reshape(c.x(2), [1])
    for axis, (first, last) in enumerate(zip(heads, tails, strict=True)):
        parts = [out]
        for place, size in ((0, first), (len(parts), last)):
            if size:
                dims = c.shape_of(out)
                lead = layer.slice(dims, [0], [0], [axis]) if axis else None
                trail = layer.slice(dims, [0], [axis + 1], [MOST]) if axis + 1 < len(heads) else None
                shape = layer.concat([p for p in (lead, c.full([1], INT64, size), trail) if p is not None], 0)
                block = c.op("expand_v2", {"shape": [-1]}, X=c.reshape(filler, [1] * len(heads)), Shape=shape)
                parts.insert(place if place == 0 else len(parts), block)
        out = layer.concat(parts, axis) if len(parts) > 1 else out
    return out


def _pad_along(c: Call, x: Variable, axis: int, first: int, last: int, mode: str) -> Variable:
    """Pad one axis by picking entries of it: by their places where its size is known, else by slices."""
    size = x.spec.known_dims[axis]
    if not isinstance(size, int):
        return _pad_open(c, x, axis, first, last, mode)
    places = np.arange(-first, size + last)
    if mode == "edge":
        places = places.clip(0, size - 1)
    elif mode == "wrap":
        places = places % size
    elif size == 1:
        places = places * 0
    else:
        places = np.abs((places + (size - 1)) % (2 * (size - 1)) - (size - 1))
    index = c.importer.variable(OnnxConstant("places", None, places.astype("int64")))
    return layer.gather(x, index, axis)


def _pad_open(c: Call, x: Variable, axis: int, first: int, last: int, mode: str) -> Variable:
    def part(start: int, end: int) -> Variable:
        return layer.slice(x, [axis], [start], [end])

    def repeated(piece: Variable, count: int) -> list[Variable]:
        return [piece] * count

    if mode == "edge":
        head, tail = repeated(part(0, 1), first), repeated(part(-1, MOST), last)
    elif mode == "wrap":
        head, tail = [part(-first, MOST)] if first else [], [part(0, last)] if last else []
    else:
        head = [layer.flip(part(1, first + 1), [axis])] if first else []
        tail = [layer.flip(part(-last - 1, -1), [axis])] if last else []
    return layer.concat([*head, x, *tail], axis)


@from_onnx("CenterCropPad")
def center_crop_pad(c: Call) -> Any:
    """Cut axes at both ends, or surround them with zeros; the odd entry is cut or put behind."""
    x, target, axis_list = c.x(0), c.cast(c.x(1), INT64), c.attribute("axes")
    rank = c.rank(x)
    axes = [*range(rank)] if axis_list is None else [c.axis(int(a), rank) for a in axis_list]
    sizes, values = [x.spec.known_dims[a] for a in axes], c.constant(1)
    if values is not None and all(isinstance(n, int) for n in sizes):
        heads, tails = [0] * rank, [0] * rank
        for axis, length, size in zip(axes, sizes, values.reshape(-1), strict=True):
            growth = int(size) - int(length)  # pyright: ignore[reportArgumentType]
            heads[axis] = growth // 2 if growth > 0 else -(-growth // 2)
            tails[axis] = growth - heads[axis]
        return _pad_and_cut(c, x, heads, tails, "constant", None)
    lengths = layer.concat([size_of(c, x, a) for a in axes], 0)
    growth = target - lengths
    larger, smaller = (c.binary(f"elementwise_{kind}", growth, numbers(c, 0)) for kind in ("max", "min"))
    half = larger // numbers(c, 2)
    half = half - (numbers(c, 0) - smaller) // numbers(c, 2)
    pads = layer.concat([half, growth - half], 0)
    return computed.padded(c, x, pads, "constant", None, axes)


# --- to ONNX


@to_onnx("pad3d", "pad2d")
def _pad_image(w: WrittenOp) -> OnnxValue:
    rank, layout = w.rank("X"), w.of.data_format
    paddings = w.known("Paddings") if w.has("Paddings") else w.of.paddings
    if paddings is None:
        raise Refused("paddings that are computed")
    numbers = [int(n) for n in paddings]
    sides = [(numbers[index], numbers[index + 1]) for index in range(0, len(numbers), 2)]
    if w.op.type == "pad3d":
        sides = sides[::-1]  # the last axis first
    first = 1 if is_channels_last(layout) else 2
    pads = [(0, 0)] * first + sides + ([(0, 0)] if first == 1 else [])
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge", "circular": "wrap"}[w.of.mode]
    if mode == "wrap":
        w.needs(19)
    value = w.op.attributes.values.get("value", w.op.attributes.values.get("pad_value", 0.0))
    dtype = w.dtype("X")
    return padded_node(w, w.x("X"), pads[:rank], mode, w.number(value if dtype.is_floating else int(value), dtype))


@to_onnx()
def _to_onnx_pad(w: WrittenOp) -> OnnxValue:
    numbers, dtype = [int(n) for n in w.of.paddings], w.dtype("X")
    pads = [(numbers[index], numbers[index + 1]) for index in range(0, len(numbers), 2)]
    return padded_node(w, w.x("X"), pads, "constant", w.number(w.of.pad_value if dtype.is_floating else int(w.of.pad_value), dtype))


def padded_node(w: WrittenOp, x: OnnxValue, sides: Sequence[tuple[int, int]], mode: str, value: OnnxValue) -> OnnxValue:
    pads = w.ints(*[s[0] for s in sides], *[s[1] for s in sides])
    return w.node("Pad", x, pads, value if mode == "constant" else None, mode=mode)


@to_onnx()
def _to_onnx_pad_constant_like(w: WrittenOp) -> Any:
    y, rank = term(w, "Y"), w.rank("X")
    growth = Term(w, w.shape(w.x("X")), INT64) - Term(w, y.dims(), INT64)
    value = w.number(w.of.pad_value if y.of.is_floating else int(w.of.pad_value), y.of)
    return y.node("Pad", joined([constant(w, [0] * rank, INT64), growth], 0).value, value).value


# --- from torch


@from_torch("constant_pad_nd", "pad")
def _from_torch_pad(t: TorchCall, x: Variable, pad: Any, mode: Any = "constant", value: Any = None) -> Any:
    if not isinstance(mode, str):
        mode, value = "constant", mode
    if mode != "constant":
        return _mirrored(t, x, pad, mode)
    rank = t.rank(x)
    if any(isinstance(p, OpenSize) for p in pad):
        return padded_by_sizes(t, x, pad, value or 0)
    sides = [(0, 0)] * (rank - len(pad) // 2) + [(pad[index], pad[index + 1]) for index in range(len(pad) - 2, -1, -2)]
    for axis, (low, high) in enumerate(sides):
        if low < 0 or high < 0:
            x = layer.slice(x, [axis], [max(-low, 0)], [high if high < 0 else END])
    numbers = [n for low, high in sides for n in (max(low, 0), max(high, 0))]
    return layer.pad(x, numbers, pad_value=float(value or 0.0)) if any(numbers) else x


def padded_by_sizes(t: TorchCall, x: Variable, pad: Any, value: Any) -> Any:
    """Return ``x`` with equal numbers before and after, as many as computed sizes say; they must not be negative."""
    for index in range(0, len(pad), 2):
        axis = t.rank(x) - 1 - index // 2
        dims = [torch_size_of(x, a) for a in range(t.rank(x))]
        sides: list[Any] = []
        for size in (pad[index], pad[index + 1]):
            fits = isinstance(size, OpenSize) or size > 0
            sides.append(layer.fill_constant(t.sizes([*dims[:axis], size, *dims[axis + 1 :]]), t.dtype, value) if fits else None)
        parts = [part for part in (sides[0], x, sides[1]) if part is not None]
        x = layer.concat(parts, axis) if len(parts) > 1 else x
    return x


@from_torch("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d")
def _pad_by_name(t: TorchCall, x: Variable, pad: Any) -> Any:
    return _mirrored(t, x, pad, "reflect" if "reflection" in t.name else "replicate")


def _mirrored(t: TorchCall, x: Variable, pad: Any, mode: str) -> Any:
    """Return ``x`` padded with its own elements: as a volume, whose padding has all modes."""
    rank, lead = t.rank(x), 5 - t.rank(x)
    if any(isinstance(p, OpenSize) for p in pad):
        raise Refused("paddings that are open")
    count = len(pad) // 2
    if rank - count > 2:
        raise Refused(f"padding {count} axes of {rank}")
    volume = layer.unsqueeze(x, [*range(rank - count, rank - count + lead)]) if lead else x
    if rank - count == 1:
        volume, lead = layer.unsqueeze(x, [0, *range(2, 2 + lead - 1)]), lead
    out = t.op("pad3d", {"paddings": [*pad, *[0] * (6 - len(pad))], "mode": mode}, X=volume)
    dropped = [0, *range(2, 2 + lead - 1)] if rank - count == 1 else [*range(rank - count, rank - count + lead)]
    return layer.squeeze(out, dropped) if dropped else out


# --- to torch's code


@to_torch()
def _to_torch_pad(w: PlainOp) -> str:
    pads, rank = w.of.paddings, w.rank("X")
    paddings = [n for axis in reversed(range(rank)) for n in (pads[2 * axis], pads[2 * axis + 1])]
    return f"F.pad({w.x('X')}, {tuple(paddings)}, value={w.number(w.of.pad_value, w.dtype('X'))})"


@to_torch()
def _to_torch_pad3d(w: PlainOp) -> str:
    pads = w.ints("Paddings") if w.has("Paddings") else [str(n) for n in w.of.paddings]
    last = w.of.data_format != "NCDHW"
    if w.of.mode == "constant":
        first = "0, 0, " if last else ""
        listed = f"({first}{', '.join(pads)})" if pads is not None else f"[{first}*{w.list('Paddings')}]"
        return f"F.pad({w.x('X')}, {listed}, value={w.number(w.of.value, w.dtype('X'))})"
    if pads is None or last or not w.dtype("X").is_floating:
        numbers = tuple_of(pads) if pads is not None else w.list("Paddings")
        return w.call(helpers.borders.bordered, w.x("X"), numbers, f'"{w.of.mode}"', 3 if last else 4)
    return f'F.pad({w.x("X")}, {tuple_of(pads)}, mode="{w.of.mode}")'


@to_torch()
def _to_torch_pad2d(w: PlainOp) -> str:
    pads = w.ints("Paddings") if w.has("Paddings") else [str(n) for n in w.of.paddings]
    last, mode = w.of.data_format == "NHWC", {"edge": "replicate", "reflect": "reflect"}.get(w.of.mode)
    if pads is None:
        pads = w.several(w.call(helpers.borders.checked, w.list("Paddings")), 4)
    widths = ", ".join([*pads[2:], *pads[:2]])
    if mode is None:
        return f"F.pad({w.x('X')}, ({'0, 0, ' if last else ''}{widths}), value={w.number(w.of.pad_value, w.dtype('X'))})"
    channels = w.dims("X")[1]
    if last or not w.dtype("X").is_floating or not isinstance(channels, int) or not channels:  # torch pads no images without channels
        return w.call(helpers.borders.bordered, w.x("X"), f"({widths})", f'"{mode}"', 2 if last else 3)
    return f'F.pad({w.x("X")}, ({widths}), mode="{mode}")'


@to_torch()
def _to_torch_pad_constant_like(w: PlainOp) -> str:
    x, y, value = w.x("X"), w.x("Y"), w.number(w.of.pad_value, w.dtype("Y"))
    sizes = [*zip(w.dims("X"), w.dims("Y"), strict=True)]
    if all(isinstance(n, int) or n == d for n, d in sizes) and all(isinstance(d, int) or n == d for n, d in sizes):
        return f"F.pad({y}, ({', '.join(f'0, {0 if n == d else n - d}' for n, d in reversed(sizes))}), value={value})"
    return f"F.pad({y}, [n for size, d in zip({x}.shape[::-1], {y}.shape[::-1]) for n in (0, size - d)], value={value})"
