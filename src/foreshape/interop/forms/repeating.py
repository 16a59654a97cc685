"""Repeating, turning and broadcasting, in the other formats."""

from __future__ import annotations

import operator
from typing import Any

from foreshape import layer
from foreshape.core.spec import BOOL, INT32, INT64
from foreshape.interop.forms.arithmetic import is_smaller
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.forms.shapes import axes_of
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.terms import Term, constant, count_to, image_of_rows, size_of, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import OpenSize, as_dim, as_variable, compute
from foreshape.interop.torch.open_size import size_of as torch_size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, tuple_of
from foreshape.language.program.variable import Variable

# --- from ONNX


@from_onnx("Expand")
def from_onnx_expand(c: Call) -> Any:
    """Broadcast to a shape: a 1 there keeps the size."""
    x = c.x()
    sizes, dims = c.sizes(1), x.spec.dims
    if sizes is not None and dims is not None:
        rank = max(len(sizes), len(dims))
        target_dims = [1] * (rank - len(sizes)) + [*sizes]
        source_dims = [1] * (rank - len(dims)) + [*dims]
        if all(isinstance(w, int) for w in target_dims):
            out = [-1 if w == 1 and (n != 1) else int(w) for w, n in zip(target_dims, source_dims, strict=True)]
            operand = c.unsqueeze(x, *range(rank - len(dims))) if rank > len(dims) else x
            return c.op("expand_v2", {"shape": out}, X=operand) if rank else layer.assign(x)
        if all(n == w or n == 1 for n, w in zip(source_dims, target_dims, strict=True)):
            operand = c.unsqueeze(x, *range(rank - len(dims))) if rank > len(dims) else x
            return c.op("expand_v2", {"shape": [-1]}, X=operand, Shape=c.x(1)) if len(sizes) == rank else _by_sum(c, x)
    return _by_sum(c, x)


def _by_sum(c: Call, x: Variable) -> Variable:
    """Broadcast by an elementwise op with a tensor of the shape."""
    dtype = x.spec.known_dtype
    as_number = c.cast(x, INT32) if dtype is BOOL else x
    zeros = c.op("fill_constant", {"shape": [], "dtype": as_number.spec.known_dtype.code, "value": 0.0}, ShapeTensor=c.x(1))
    pair = (zeros, as_number) if is_smaller(as_number, zeros) else (as_number, zeros)
    return c.cast(layer.add(*pair), dtype)


@from_onnx("Tile")
def from_onnx_tile(c: Call) -> Any:
    x = c.x()
    repeats = c.constant(1)
    if repeats is not None:
        times = [int(n) for n in repeats.reshape(-1)]
        if (none := [axis for axis, n in enumerate(times) if n == 0]) and len(times) == c.rank(x):  # no entries along these
            x = layer.slice(x, none, [0] * len(none), [0] * len(none))
            times = [n or 1 for n in times]
        return c.op("tile", {"repeat_times": times}, X=x) if c.rank(x) else layer.assign(x)
    return c.op("tile", {"repeat_times": []}, X=x, RepeatTimes=c.x(1))


# --- to ONNX


@to_onnx()
def _to_onnx_repeat_interleave(w: WrittenOp) -> Any:
    x, axis = term(w, "X"), int(w.of.dim) % w.rank("X")
    count = size_of(w, "X", axis)
    if w.has("RepeatsTensor"):
        times = term(w, "RepeatsTensor").cast(INT64)
        index = image_of_rows(times, times.total(0, keep=True))
    else:
        index = count_to(count * int(w.of.Repeats)) / int(w.of.Repeats) if w.of.Repeats else count_to(constant(w, [0], INT64))
    return x.taken(index, axis).value


@to_onnx()
def _to_onnx_expand(w: WrittenOp) -> Any:
    if w.has("ExpandTimes"):
        return w.node("Tile", w.x("X"), w.row("ExpandTimes"))
    if w.op.input_slots.get("expand_times_tensor"):
        return w.node("Tile", w.x("X"), w.row_of("expand_times_tensor"))
    return w.node("Tile", w.x("X"), w.ints(*[int(n) for n in w.of.expand_times]))


@to_onnx()
def _to_onnx_expand_as(w: WrittenOp) -> Any:
    x = term(w, "X")
    times = Term(w, w.shape(w.x("target_tensor")), INT64) / Term(w, x.dims(), INT64).most(1)
    return x.node("Tile", times.value).value


@to_onnx()
def _to_onnx_broadcast_tensors(w: WrittenOp) -> Any:
    operands = [term(w, "X", index) for index in range(len(w.op.input_slots["X"]))]
    results: list[OnnxValue] = []
    for index, x in enumerate(operands):
        for y in operands[:index] + operands[index + 1 :]:
            x = x.spread(y.dims())
        results.append(x.value if len(operands) > 1 else w.node("Identity", x.value))
    return (results,)


@to_onnx()
def _to_onnx_tile(w: WrittenOp) -> OnnxValue:
    x, rank = w.x("X"), w.rank("X")
    if w.has("RepeatTimes"):
        times = w.row("RepeatTimes")
        dims = w.variable("RepeatTimes").spec.known_dims
        count = dims[0] if dims else 1
    elif w.op.input_slots.get("repeat_times_tensor"):
        times, count = w.row_of("repeat_times_tensor"), len(w.op.input_slots["repeat_times_tensor"])
    else:
        times, count = w.ints(*w.of.repeat_times), len(w.of.repeat_times)
    if not isinstance(count, int):
        raise Refused("a number of repeats that is computed")
    if count < rank:
        times = w.node("Concat", w.ints(*[1] * (rank - count)), times, axis=0)
    return w.node("Tile", w.unsqueeze(x, *range(count - rank)) if count > rank else x, times)


@to_onnx()
def _to_onnx_expand_v2(w: WrittenOp) -> OnnxValue:
    if w.has("Shape"):
        shape = w.row("Shape")
    elif w.op.input_slots.get("expand_shapes_tensor"):
        shape = w.row_of("expand_shapes_tensor")
    else:
        shape = w.ints(*[1 if d == -1 else d for d in w.of.shape])
        return w.node("Expand", w.x("X"), shape)
    sizes = w.variable("Shape").spec.value if w.has("Shape") else None
    if sizes is None or any(isinstance(n, int) and n < 0 for n in sizes):  # a -1 keeps the dim
        shape = w.node("Max", shape, w.ints(1))
    return w.node("Expand", w.x("X"), shape)


@to_onnx()
def _to_onnx_expand_as_v2(w: WrittenOp) -> OnnxValue:
    if w.has("Y"):
        return w.node("Expand", w.x("X"), w.shape(w.x("Y")))
    return w.node("Expand", w.x("X"), w.ints(*[1 if d == -1 else d for d in w.of.target_shape]))


@to_onnx()
def _to_onnx_meshgrid(w: WrittenOp) -> Any:
    operands = w.all("X")
    count = len(operands)
    rows = [w.reshape(x, -1) for x in operands]
    shape = w.node("Concat", *[w.shape(x) for x in rows], axis=0)
    return ([w.node("Expand", w.unsqueeze(x, *[a for a in range(count) if a != axis]), shape) for axis, x in enumerate(rows)],)


@to_onnx()
def _to_onnx_roll(w: WrittenOp) -> OnnxValue:
    x, rank = w.x("X"), w.rank("X")
    shifts = w.known("ShiftsTensor") if w.has("ShiftsTensor") else w.of.shifts
    if shifts is None:
        raise Refused("shifts that are computed")
    axes, flat = [*w.of.axis], None
    if not axes:
        flat, axes = w.shape(x), [0]
        x = w.reshape(x, -1)
    dims = w.spec("X").known_dims
    for axis, shift in zip(axes, [int(s) for s in shifts], strict=True):
        place = axis % max(rank, 1)
        size = dims[place] if flat is None else None
        if isinstance(size, int):
            shift = shift % size if size else 0
        if shift == 0:
            continue
        x = w.node("Concat", w.slice(x, place, -shift, 2**62), w.slice(x, place, 0, -shift), axis=place)
    return w.node("Reshape", x, flat) if flat is not None else w.node("Identity", x)


@to_onnx("flip", "reverse")
def _to_onnx_flip(w: WrittenOp) -> OnnxValue:
    axes = axes_of(w, w.of.axis, w.rank("X"))
    return w.node("Slice", w.x("X"), w.ints(*[-1] * len(axes)), w.ints(*[-(2**62)] * len(axes)), w.ints(*axes), w.ints(*[-1] * len(axes)))


# --- from torch


@from_torch()
def _from_torch_expand(t: TorchCall, x: Variable, size: Any, implicit: bool = False) -> Any:
    dims = x.spec.known_dims
    lead = len(size) - len(dims)
    extents: list[Any] = []
    for axis, extent in enumerate(size):
        source_dim = dims[axis - lead] if axis >= lead else None
        dim = as_dim(extent)
        is_kept = source_dim is not None and (dim == -1 or dim is source_dim or (isinstance(dim, int) and dim == source_dim))
        extents.append(-1 if is_kept and axis >= lead else extent)
    return (
        layer.expand(x, t.sizes(extents))
        if any(w != -1 for w in extents if not isinstance(w, OpenSize)) or any(isinstance(w, OpenSize) for w in extents)
        else x
    )


@from_torch("expand_as", "broadcast_to_as")
def _from_torch_expand_as(t: TorchCall, x: Variable, y: Variable) -> Any:
    return layer.expand_as(x, y)


@from_torch("repeat", "tile")
def _from_torch_repeat(t: TorchCall, x: Variable, repeats: Any) -> Any:
    return layer.tile(x, t.sizes(repeats))


@from_torch()
def _from_torch_repeat_interleave(t: TorchCall, x: Variable, repeats: Any, dim: Any = None, **_: Any) -> Any:
    if isinstance(repeats, OpenSize):
        raise Refused("a number of repeats that is open")
    if isinstance(repeats, Variable) and repeats.spec.elements == 1:  # stands for each entry
        repeats = (
            layer.expand_as(repeats, layer.range(0, as_variable(torch_size_of(x, 0 if dim is None else t.axis(x, dim))), 1)) if dim is not None else repeats
        )
    return layer.repeat_interleave(layer.reshape(x, [-1]) if dim is None else x, repeats, 0 if dim is None else t.axis(x, dim))


@from_torch()
def _from_torch_flip(t: TorchCall, x: Variable, dims: Any) -> Any:
    return layer.flip(x, [t.axis(x, d) for d in dims])


@from_torch()
def _from_torch_roll(t: TorchCall, x: Variable, shifts: Any, dims: Any = ()) -> Any:
    listed = shifts if is_list(shifts) else [shifts]
    axes = [t.axis(x, d) for d in (dims if is_list(dims) else [dims])]
    if all(isinstance(s, int) for s in listed):
        return layer.roll(x, listed, axes or None)
    for shift, axis in zip(listed, axes, strict=True):  # by a size: the places, moved back
        size = torch_size_of(x, axis)
        offset = compute(operator.mod, compute(operator.sub, size, compute(operator.mod, shift, size)), size)
        count = as_variable(size)
        place = layer.remainder(layer.add(layer.range(0, count, 1, dtype=INT64), as_variable(offset)), count)
        x = layer.index_select(x, place, axis)
    return x


@from_torch()
def _from_torch_meshgrid(t: TorchCall, xs: Any, indexing: str = "ij") -> Any:
    if indexing == "xy" and len(xs) > 1:
        grids = list(layer.meshgrid(xs[1], xs[0], *xs[2:]))
        return [grids[1], grids[0], *grids[2:]]
    return list(layer.meshgrid(*xs))


@from_torch()
def _from_torch_broadcast_tensors(t: TorchCall, xs: Any) -> Any:
    if all(x.spec.dims is not None and x.spec.dims == xs[0].spec.dims for x in xs):
        return list(xs)
    if len({x.dtype for x in xs}) == 1:
        return list(layer.broadcast_tensors(xs))
    return [layer.broadcast_tensors([x, *(t.cast(y, x.spec.known_dtype) for y in xs if y is not x)])[0] for x in xs]


# --- to torch's code


@to_torch()
def _to_torch_expand_v2(w: PlainOp) -> str:
    dims = w.result("Out").known_dims
    if all(w.writer.has_size(d) for d in dims):
        return f"{w.x('X')}.expand({', '.join(map(w.size, dims)) or '()'})"
    sizes = f"[{', '.join(f'int({t})' for t in w.all('expand_shapes_tensor'))}]" if w.count("expand_shapes_tensor") else w.list("Shape")
    return f"{w.x('X')}.expand({sizes})"


@to_torch()
def _to_torch_expand_as_v2(w: PlainOp) -> str:
    return f"{w.x('X')}.expand({w.x('Y')}.shape)" if w.has("Y") else f"{w.x('X')}.expand({tuple_of([str(n) for n in w.of.target_shape])})"


@to_torch()
def _to_torch_expand_as(w: PlainOp) -> str:
    x, target = w.x("X"), w.x("target_tensor")
    return f"torch.tile({x}, [size // d if d else 1 for d, size in zip({x}.shape, {target}.shape)])"


@to_torch()
def _to_torch_tile(w: PlainOp) -> str:
    if w.count("repeat_times_tensor"):
        times = [w.int("repeat_times_tensor", index) for index in range(w.count("repeat_times_tensor"))]
    elif w.has("RepeatTimes"):
        times = w.ints("RepeatTimes")
        if times is None:
            return f"torch.tile({w.x('X')}, {w.list('RepeatTimes')})"
    else:
        times = [str(n) for n in w.of.repeat_times]
    return f"torch.tile({w.x('X')}, {tuple_of(times) if times else '()'})"


@to_torch("flip", "reverse")
def _to_torch_flip(w: PlainOp) -> str:
    return f"{w.x('X')}.flip({list(w.of.axis)})"


@to_torch()
def _to_torch_roll(w: PlainOp) -> str:
    shifts = w.list("ShiftsTensor") if w.has("ShiftsTensor") else str(tuple(w.of.shifts))
    return f"torch.roll({w.x('X')}, {shifts}{f', {tuple(w.of.axis)}' if w.of.axis else ''})"


@to_torch()
def _to_torch_meshgrid(w: PlainOp) -> Any:
    return Several(f'torch.meshgrid({", ".join(w.all("X"))}, indexing="ij")')


@to_torch()
def _to_torch_broadcast_tensors(w: PlainOp) -> Any:
    return Several(f"torch.broadcast_tensors({', '.join(w.all('X'))})")


@to_torch()
def _to_torch_repeat_interleave(w: PlainOp) -> str:
    x, repeats = w.x("X"), w.of.Repeats
    if w.has("RepeatsTensor"):
        repeats = w.call(helpers.bounds.same_sizes, w.x("RepeatsTensor"), f"{x}.movedim({w.of.dim}, 0)", 1, "'RepeatsTensor and the repeated axis of X'")
    return f"torch.repeat_interleave({x}, {repeats}, {w.of.dim})"


@to_torch()
def _to_torch_expand(w: PlainOp) -> str:
    if w.count("expand_times_tensor"):
        times = tuple_of([w.int("expand_times_tensor", index) for index in range(w.count("expand_times_tensor"))])
    else:
        times = w.list("ExpandTimes") if w.has("ExpandTimes") else str(tuple(w.of.expand_times))
    return f"torch.tile({w.x('X')}, {times})"
