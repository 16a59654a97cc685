"""Joining and splitting, in the other formats."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from foreshape import layer
from foreshape.core.spec import INT64
from foreshape.core.values.torch_types import element_type
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.forms.shapes import END, single
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.terms import joined, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import OpenSize, compute
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, number_code, tuple_of
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


@from_onnx("Concat")
def from_onnx_concat(c: Call) -> Any:
    operands = c.all()
    return layer.concat(operands, c.attribute("axis", 1))


@from_onnx("Split")
def from_onnx_split(c: Call) -> Any:
    x = c.x()
    count = len(c.node.outputs)
    axis = c.axis(c.attribute("axis", 0), c.rank(x))
    lengths = c.computed(1) if c.opset >= 13 else None
    if lengths is not None:
        return computed.parts(c, x, axis, lengths, count)
    sizes = c.ints(1) if c.opset >= 13 else c.ints(9, "split")
    size = x.spec.known_dims[axis]
    if sizes is None:
        count = int(c.attribute("num_outputs", count))
        if not isinstance(size, int):
            if count == 1:
                return layer.assign(x)
            if c.attribute("num_outputs") is None:
                return tuple(layer.split(x, count, axis))
            number, unit = computed.numbers(c, count), computed.numbers(c, 1)  # all parts but the last are as large, rounded up
            total = computed.size_of(c, x, axis)
            part = (total + number - unit) // number
            ends = layer.minimum(part * computed.numbers(c, *range(count + 1)), total)
            first, last = (layer.slice(ends, [0], [index], [count + index]) for index in (0, 1))
            return computed.parts(c, x, axis, last - first, count)
        part = -(-size // count)
        sizes = [max(0, min(part, size - part * index)) for index in range(count)]
    if len(sizes) == 1:
        return layer.assign(x)
    if all(sizes):
        return tuple(layer.split(x, sizes, axis))
    out: list[Variable] = []
    start = 0
    for length in sizes:
        out.append(layer.slice(x, [axis], [start], [start + length]))
        start += length
    return tuple(out)


# --- to ONNX


@to_onnx("partial_concat", "partial_sum")
def _columns(w: WrittenOp) -> Any:
    columns = w.spec("X").known_dims[1]
    start, length = int(w.of.start_index), int(w.of.length)
    if start < 0:
        if not isinstance(columns, int):
            raise Refused("columns counted from the end, and a number of columns that is open")
        start += columns
    parts = [term(w, "X", index).cut(1, start, start + length if length >= 0 else 2**62) for index in range(len(w.op.input_slots["X"]))]
    if w.op.type == "partial_concat":
        return joined(parts, 1).value
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.value


@to_onnx()
def _to_onnx_concat(w: WrittenOp) -> OnnxValue:
    return w.node("Concat", *w.all("X"), axis=single(w, "AxisTensor", w.of.axis))


@to_onnx()
def _to_onnx_stack(w: WrittenOp) -> OnnxValue:
    axis = int(w.of.axis) % (len(w.spec("X").known_dims) + 1)
    return w.node("Concat", *[w.unsqueeze(x, axis) for x in w.all("X")], axis=axis)


@to_onnx("unstack", "unbind")
def _unstack(w: WrittenOp) -> Any:
    slot = "Y" if w.op.type == "unstack" else "Out"
    count, axis = len(w.op.output_slots[slot]), int(w.of.axis) % w.rank("X")
    return ([w.node("Gather", w.x("X"), w.number(index, INT64), axis=axis) for index in range(count)],)


@to_onnx()
def _to_onnx_split(w: WrittenOp) -> Any:
    count = len(w.op.output_slots["Out"])
    axis = single(w, "AxisTensor", w.of.axis) % w.rank("X")
    if w.op.input_slots.get("SectionsTensorList"):
        sizes: OnnxValue | None = w.row_of("SectionsTensorList")
    else:
        parts = [w.result("Out", index).known_dims[axis] for index in range(count)]
        if all(isinstance(p, int) for p in parts):
            sizes = w.ints(*parts)  # pyright: ignore[reportArgumentType]
        elif w.of.sections:
            lengths = [s for s in w.of.sections if s >= 0]
            remainder = w.node("Sub", w.shape(w.x("X"), axis, axis + 1), w.ints(sum(lengths)))
            index = [*w.of.sections].index(-1)
            head, tail = w.of.sections[:index], w.of.sections[index + 1 :]
            sizes = w.node("Concat", *([w.ints(*head)] if head else []), remainder, *([w.ints(*tail)] if tail else []), axis=0)
        else:
            size = w.node("Div", w.shape(w.x("X"), axis, axis + 1), w.ints(count))
            sizes = w.node("Expand", size, w.ints(count))
    if count == 1:
        return ([w.node("Identity", w.x("X"))],)
    return (w.nodes("Split", count, w.x("X"), sizes, axis=axis),)


# --- from PaddlePaddle 3


@from_pir("split", "split_with_num")
def _from_pir_split(p: PirCall) -> None:
    """Split along an axis, by sections or a number of equal parts."""
    inputs: dict[str, Any] = {"X": p.x()}
    attrs: dict[str, Any] = {}
    last = len(p.op.operands) - 1
    axis = p.constant(last)
    if axis is not None:
        attrs["axis"] = axis.integer
    else:
        inputs["AxisTensor"] = p.x(last)
    if p.name == "split_with_num":
        attrs["num"] = p.attribute("num")
    elif (sections := p.numbers(1)) is not None:
        attrs["sections"] = sections.integers
    elif p.is_list(1):
        inputs["SectionsTensorList"] = p.all(1)
        attrs["sections"] = [-1] * len(inputs["SectionsTensorList"])
    else:
        raise Refused("its sections are computed as one tensor; in 2.x they are one tensor each")
    p.append("split", inputs, {"Out": p.outputs(0)}, attrs)


# --- from torch


@from_torch()
def _from_torch_unbind(t: TorchCall, x: Variable, dim: int = 0) -> Any:
    return list(layer.unstack(x, t.axis(x, dim)))


@from_torch("cat", "concat", "concatenate")
def _cat(t: TorchCall, xs: Any, dim: int = 0) -> Any:
    tensors = [t.cast(x, t.dtype) for x in xs if x.spec.known_dims != (0,)] or [xs[0]]
    return layer.concat(tensors, t.axis(tensors[0], dim)) if len(tensors) > 1 else tensors[0]


@from_torch()
def _from_torch_stack(t: TorchCall, xs: Any, dim: int = 0) -> Any:
    tensors = [t.cast(x, t.dtype) for x in xs]
    return layer.stack(tensors, dim % (t.rank(tensors[0]) + 1))


@from_torch()
def _from_torch_tensor_split(t: TorchCall, x: Variable, places: Any, dim: int = 0) -> Any:
    axis = t.axis(x, dim)
    if is_list(places):
        ends = [*places, END]
        return [layer.slice(x, [axis], t.sizes([0 if k == 0 else ends[k - 1]]), t.sizes([end])) for k, end in enumerate(ends)]
    size = x.spec.known_dims[axis]
    if not isinstance(places, int) or not isinstance(size, int):
        raise Refused("a number of parts, or of elements, that is open")
    return list(layer.split(x, [(size + places - 1 - k) // places for k in range(places)], axis)) if places > 1 else [x]


@from_torch("split", "split_with_sizes", "chunk")
def _from_torch_split(t: TorchCall, x: Variable, sections: Any, dim: int = 0) -> Any:
    axis, traced = t.axis(x, dim), t.node.meta["val"]
    size = x.spec.known_dims[axis]
    count = len(traced)
    if is_list(sections):
        if all(isinstance(s, int) for s in sections):
            return list(layer.split(x, sections, axis)) if count > 1 else [x]
        out: list[Any] = []
        start: Any = 0
        for length in sections:
            end = compute(operator.add, start, length) if isinstance(start, OpenSize) or isinstance(length, OpenSize) else start + length
            out.append(layer.slice(x, [axis], t.sizes([start]), t.sizes([end])))
            start = end
        return out
    if count == 1:
        return [x]
    lengths = [value.shape[axis] for value in traced]
    if isinstance(size, int):
        return list(layer.split(x, [int(n) for n in lengths], axis))
    if t.name == "split" and isinstance(sections, int):
        return [layer.slice(x, [axis], [k * sections], [(k + 1) * sections if k + 1 < count else END]) for k in range(count)]
    return list(layer.split(x, count, axis))


# --- to torch's code


@to_torch()
def _to_torch_concat(w: PlainOp) -> str:
    axis = w.int("AxisTensor") if w.has("AxisTensor") else str(w.of.axis)
    operands = w.all("X")
    return f"{operands[0]}.clone()" if len(operands) == 1 else f"torch.cat([{', '.join(operands)}], {axis})"


@to_torch()
def _to_torch_stack(w: PlainOp) -> str:
    return f"torch.stack([{', '.join(w.all('X'))}], {w.of.axis})"


@to_torch()
def _to_torch_split(w: PlainOp) -> Any:
    axis = w.int("AxisTensor") if w.has("AxisTensor") else str(w.of.axis)
    if w.of.num and not w.count("SectionsTensorList"):
        return Several(f"torch.tensor_split({w.x('X')}, {w.of.num}, {axis})")
    if w.count("SectionsTensorList"):
        sizes = [w.int("SectionsTensorList", index) for index in range(w.count("SectionsTensorList"))]
    else:
        sizes = [str(s) for s in w.of.sections]
    if "-1" in sizes:
        lengths = [s for s in sizes if s != "-1"]
        sizes[sizes.index("-1")] = " - ".join([f"{w.x('X')}.shape[{axis}]", *lengths])
    return Several(f"torch.split({w.x('X')}, [{', '.join(sizes)}], {axis})")


@to_torch("unbind", "unstack")
def _to_torch_unbind(w: PlainOp) -> Any:
    return Several(f"torch.unbind({w.x('X')}, {w.of.axis})")


@to_torch()
def _to_torch_coalesce_tensor(w: PlainOp) -> Any:
    operands, value = w.all("Input"), number_code(float(w.of.constant)) if w.of.set_constant else "0.0"
    align = 4096 if w.of.align_size == -1 else w.of.align_size
    size = element_type(w.of.dtype).itemsize if w.of.user_defined_size_of_dtype == -1 else w.of.user_defined_size_of_dtype
    fused = w.call(helpers.tensor_lists.one_after_another, tuple_of(operands), align if w.of.use_align else size, size)
    if w.of.copy_data:
        return operands, fused
    return [f"torch.full_like({x}, {value})" for x in operands], f"torch.full_like({fused}, {value}, dtype={w.type(element_type(w.of.dtype))})"
