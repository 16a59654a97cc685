"""Torch code of moves of elements: shapes, parts, joins, repetitions."""

from __future__ import annotations

from typing import Any

from foreshape.interop.torch.write.code_rules import Several, writes
from foreshape.interop.torch.write.helpers import shapes
from foreshape.interop.torch.write.kernel_rules import kernel_rule
from foreshape.interop.torch.write.plain_op import PlainOp, tuple_of
from foreshape.spec import LOD_TENSOR_ARRAY

OPEN = 2**31 - 1
"""An end of a slice from here on is the axis's end."""


@writes("reshape2", "reshape")
def _reshape(w: PlainOp) -> str:
    dims = w.result("Out").known_dims
    unknown = [d for d in dims if not isinstance(d, int) and not w.writer.has_size(d)]
    if len(unknown) > 1 or (unknown and 0 in dims):
        given = f"[{', '.join(f'int({t})' for t in w.all('ShapeTensor'))}]" if w.count("ShapeTensor") else w.list("Shape") if w.has("Shape") else w.of.shape
        return w.call(shapes.reshaped, w.x("X"), given)
    return f"{w.x('X')}.reshape({w.target(dims)})"


@writes("flatten_contiguous_range")
def _flatten_range(w: PlainOp) -> str:
    if not w.rank("X"):
        return f"{w.x('X')}.reshape(1)"
    return f"{w.x('X')}.flatten({w.of.start_axis}, {w.of.stop_axis})"


@writes("flatten2", "flatten")
def _flatten(w: PlainOp) -> str:
    return f"{w.x('X')}.reshape({w.target(w.result('Out').known_dims)})"


@writes("squeeze2", "squeeze")
def _squeeze(w: PlainOp) -> str:
    dims = w.result("Out").known_dims
    if w.of.axes and len(dims) == w.rank("X") - len({a % w.rank("X") for a in w.of.axes}):
        axes = w.of.axes
        return f"{w.x('X')}.squeeze({axes[0] if len(axes) == 1 else tuple(axes)})"
    return f"{w.x('X')}.reshape({w.target(dims)})"


@writes("unsqueeze2", "unsqueeze")
def _unsqueeze(w: PlainOp) -> str:
    if len(w.of.axes) == 1 and not w.has("AxesTensor") and not w.count("AxesTensorList"):
        return f"{w.x('X')}.unsqueeze({w.of.axes[0]})"
    return f"{w.x('X')}.reshape({w.target(w.result('Out').known_dims)})"


@writes("transpose2", "transpose")
def _transpose(w: PlainOp) -> str:
    axes = tuple(w.of.axis)
    moved = [at for at, a in enumerate(axes) if a % len(axes) != at]
    if not moved:
        return w.x("X")
    return f"{w.x('X')}.transpose({moved[0]}, {moved[1]})" if len(moved) == 2 else f"{w.x('X')}.permute({', '.join(map(str, axes))})"


@writes("concat")
def _concat(w: PlainOp) -> str:
    axis = w.int("AxisTensor") if w.has("AxisTensor") else str(w.of.axis)
    given = w.all("X")
    return f"{given[0]}.clone()" if len(given) == 1 else f"torch.cat([{', '.join(given)}], {axis})"


@writes("stack")
def _stack(w: PlainOp) -> str:
    return f"torch.stack([{', '.join(w.all('X'))}], {w.of.axis})"


@writes("split")
def _split(w: PlainOp) -> Any:
    axis = w.int("AxisTensor") if w.has("AxisTensor") else str(w.of.axis)
    if w.of.num and not w.count("SectionsTensorList"):
        return Several(f"torch.tensor_split({w.x('X')}, {w.of.num}, {axis})")
    if w.count("SectionsTensorList"):
        sizes = [w.int("SectionsTensorList", at) for at in range(w.count("SectionsTensorList"))]
    else:
        sizes = [str(s) for s in w.of.sections]
    if "-1" in sizes:
        rest = [s for s in sizes if s != "-1"]
        sizes[sizes.index("-1")] = " - ".join([f"{w.x('X')}.shape[{axis}]", *rest])
    return Several(f"torch.split({w.x('X')}, [{', '.join(sizes)}], {axis})")


@writes("unbind", "unstack")
def _unbind(w: PlainOp) -> Any:
    return Several(f"torch.unbind({w.x('X')}, {w.of.axis})")


def _given(w: PlainOp, attribute: str, slot: str) -> list[str] | None:
    """Return numbers of an attribute, a tensor or a list of tensors as expressions."""
    listed = f"{slot}List"
    if w.count(listed):
        return [w.int(listed, at) for at in range(w.count(listed))]
    if w.has(slot):
        found = w.ints(slot)
        if found is not None:
            return found
        (count,) = w.dims(slot) or (1,)
        if not isinstance(count, int):
            return None
        row = w.let(f"{w.x(slot)}.reshape(-1)")
        return [f"int({row}[{at}])" for at in range(count)]
    return [str(n) for n in getattr(w.of, attribute)]


@writes("slice")
def _slice(w: PlainOp) -> Any:
    starts = _given(w, "starts", "StartsTensor")
    if w.spec("Input").kind is LOD_TENSOR_ARRAY and starts is not None:
        return f"{w.x('Input')}[{starts[0]}]"
    ends = _given(w, "ends", "EndsTensor")
    if starts is None or ends is None:
        return kernel_rule(w)
    known = w.ints("Input") if w.writer.flow != "python" and w.rank("Input") == 1 else None
    if known is not None and starts[0].lstrip("-").isdigit() and ends[0].lstrip("-").isdigit():
        numbers = known[int(starts[0]) : int(ends[0])]
        whole = f"[{', '.join(numbers)}]" if w.result("Out").known_dims else numbers[0]
        return f"torch.tensor({whole}, dtype={w.type(w.dtype('Input'))}, device={w.device()})"
    return _cut(w, starts, ends, ["1"] * len(starts))


def _cut(w: PlainOp, starts: list[str], ends: list[str], strides: list[str]) -> str:
    """Return the entries of axes of Input, by an index of slices."""
    rank = w.rank("Input")
    index = [":"] * rank
    dropped = {a % rank for a in w.of.decrease_axis}
    for axis, start, end, stride in zip(w.of.axes, starts, ends, strides, strict=True):
        axis %= rank
        if axis in dropped and stride == "1":
            index[axis] = start
            continue
        open_end = (end.lstrip("-").isdigit() and int(end) >= OPEN) or (start == "-1" and end == "0" and axis in dropped)
        step = "" if stride == "1" else f":{stride}"
        index[axis] = f"{'' if start == '0' else start}:{'' if open_end else end}{step}"
        if axis in dropped:
            raise AssertionError
    while len(index) > 1 and index[-1] == ":":
        index.pop()
    return f"{w.x('Input')}[{', '.join(index)}]"


@writes("strided_slice")
def _strided_slice(w: PlainOp) -> Any:
    starts, ends, strides = _given(w, "starts", "StartsTensor"), _given(w, "ends", "EndsTensor"), _given(w, "strides", "StridesTensor")
    if starts is None or ends is None or strides is None or w.of.decrease_axis or not all(s.isdigit() and int(s) > 0 for s in strides):
        return kernel_rule(w)
    return _cut(w, starts, ends, strides)


@writes("expand_v2")
def _expand(w: PlainOp) -> str:
    dims = w.result("Out").known_dims
    if all(w.writer.has_size(d) for d in dims):
        return f"{w.x('X')}.expand({', '.join(map(w.size, dims)) or '()'})"
    given = f"[{', '.join(f'int({t})' for t in w.all('expand_shapes_tensor'))}]" if w.count("expand_shapes_tensor") else w.list("Shape")
    return f"{w.x('X')}.expand({given})"


@writes("expand_as_v2")
def _expand_as(w: PlainOp) -> str:
    return f"{w.x('X')}.expand({w.x('Y')}.shape)" if w.has("Y") else f"{w.x('X')}.expand({tuple_of([str(n) for n in w.of.target_shape])})"


@writes("expand_as")
def _expand_as_first(w: PlainOp) -> Any:
    return kernel_rule(w)


@writes("tile")
def _tile(w: PlainOp) -> str:
    if w.count("repeat_times_tensor"):
        times = [w.int("repeat_times_tensor", at) for at in range(w.count("repeat_times_tensor"))]
    elif w.has("RepeatTimes"):
        times = w.ints("RepeatTimes")
        if times is None:
            return f"torch.tile({w.x('X')}, {w.list('RepeatTimes')})"
    else:
        times = [str(n) for n in w.of.repeat_times]
    return f"torch.tile({w.x('X')}, {tuple_of(times) if times else '()'})"


@writes("flip", "reverse")
def _flip(w: PlainOp) -> str:
    return f"{w.x('X')}.flip({list(w.of.axis)})"


@writes("roll")
def _roll(w: PlainOp) -> str:
    shifts = w.list("ShiftsTensor") if w.has("ShiftsTensor") else str(tuple(w.of.shifts))
    return f"torch.roll({w.x('X')}, {shifts}{f', {tuple(w.of.axis)}' if w.of.axis else ''})"


@writes("tril_triu")
def _triangle(w: PlainOp) -> str:
    return f"torch.{'tril' if w.of.lower else 'triu'}({w.x('X')}, {w.of.diagonal})"


@writes("meshgrid")
def _meshgrid(w: PlainOp) -> Any:
    return Several(f'torch.meshgrid({", ".join(w.all("X"))}, indexing="ij")')


@writes("broadcast_tensors")
def _broadcast(w: PlainOp) -> Any:
    return Several(f"torch.broadcast_tensors({', '.join(w.all('X'))})")


@writes("pad")
def _pad(w: PlainOp) -> str:
    pads, rank = w.of.paddings, w.rank("X")
    listed = [n for axis in reversed(range(rank)) for n in (pads[2 * axis], pads[2 * axis + 1])]
    return f"F.pad({w.x('X')}, {tuple(listed)}, value={w.number(w.of.pad_value, w.dtype('X'))})"


@writes("pad3d")
def _pad3d(w: PlainOp) -> Any:
    known = w.ints("Paddings") if w.has("Paddings") else [str(n) for n in w.of.paddings]
    if known is None or w.of.data_format != "NCDHW":
        return kernel_rule(w)
    if w.of.mode == "constant":
        return f"F.pad({w.x('X')}, {tuple_of(known)}, value={w.number(w.of.value, w.dtype('X'))})"
    return f'F.pad({w.x("X")}, {tuple_of(known)}, mode="{w.of.mode}")' if w.dtype("X").is_floating else kernel_rule(w)
