"""Shapes and sizes, in the other formats."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape import layer
from foreshape.core.dims import Size, less_equal
from foreshape.core.spec import COMPLEX, INT32, INT64
from foreshape.interop.forms.blocks import with_rest
from foreshape.interop.forms.creation import tensor_options
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call, transposed
from foreshape.interop.onnx.importer import RestInBranches
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import compute, size_of, value_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.operator.require import RuleError
from foreshape.language.ops.tensor.reshaping import reshaped
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.language.wire.onnx_records import NodeRecord

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


@from_onnx("Size")
def from_onnx_size(c: Call) -> Any:
    return c.cast(c.op("size", Input=c.x()), INT64)


@from_onnx("Shape")
def from_onnx_shape(c: Call) -> Any:
    x = c.x()
    dims, rank = c.shape_of(x), c.rank(x)
    first, last = (max(0, min(rank, n + rank if n < 0 else n)) for n in (c.attribute("start", 0), c.attribute("end", rank)))
    if (first, last) == (0, rank):
        return dims
    return layer.slice(dims, [0], [first], [max(first, last)])


@from_onnx("Reshape")
def from_onnx_reshape(c: Call) -> Any:
    x = c.x()
    if c.opset < 5:
        return c.reshape(x, [int(n) for n in c.attribute("shape")])
    shape, sizes = c.constant(1), c.sizes(1)
    if shape is None and sizes is not None:
        plain = _plain_shape(x.spec.known_dims, sizes, bool(c.attribute("allowzero", 0)))
        return c.reshape(x, plain) if plain is not None else c.reshape_to(x, c.x(1))
    if shape is None and c.attribute("allowzero", 0):
        return computed.exactly_reshaped(c, x, c.cast(c.x(1), INT64))
    if shape is None:
        return c.reshape_to(x, c.x(1))
    dims = [int(n) for n in shape.reshape(-1)]
    if c.attribute("allowzero", 0) and 0 in dims:
        if -1 in dims:
            raise Refused("a size to be found beside one of 0")
        return c.op("fill_constant", {"shape": dims, "dtype": x.spec.known_dtype.code, "value": 0.0})
    return c.reshape(x, dims)


def _plain_shape(dims: Sequence[Size], sizes: Sequence[Size], zeros: bool) -> list[int] | None:
    """Return sizes with symbols as a reshape's attribute: 0 for a kept dim, -1 for the rest. None if the same dims do not follow from it.

    ``zeros``: 0 is a size, and copies nothing.
    """
    plain = [s if isinstance(s, int) else 0 if axis < len(dims) and s is dims[axis] else -1 for axis, s in enumerate(sizes)]
    if plain.count(-1) > 1 or (zeros and 0 in sizes):
        return None
    try:
        return plain if reshaped(dims, plain) == reshaped(dims, sizes) else None
    except RuleError:  # the op says it
        return None


@from_onnx("Flatten")
def from_onnx_flatten(c: Call) -> Any:
    x = c.x()
    rank = c.rank(x)
    axis = c.attribute("axis", 1)
    axis = axis + rank if axis < 0 else axis
    if axis == 0:
        return c.reshape(x, [1, -1])
    if axis == rank:
        return c.reshape(x, [-1, 1])
    out = layer.flatten(x, axis, rank - 1)
    return layer.flatten(out, 0, axis - 1) if axis > 1 else out


@from_onnx("Unsqueeze")
def from_onnx_unsqueeze(c: Call) -> Any:
    x = c.x()
    variable = c.computed(1) if c.opset >= 13 else None
    if variable is not None:
        return computed.unsqueezed(c, x, variable)
    axes = (c.ints(1) if c.opset >= 13 else c.ints(9, "axes")) or []
    rank = c.rank(x) + len(axes)
    return c.unsqueeze(x, *sorted(c.axis(a, rank) for a in axes)) if axes else layer.assign(x)


@from_onnx("Transpose")
def from_onnx_transpose(c: Call) -> Any:
    x = c.x()
    rank = c.rank(x)
    axes = [int(a) for a in c.attribute("perm", [*range(rank)][::-1])]
    source, first = transposed(x)
    if source is not None and rank and [first[a] for a in axes] == [*range(rank)]:  # turned back
        return source
    return c.op("transpose2", {"axis": axes}, X=x)[0] if rank else layer.assign(x)


_MOST_TWICE = 16
"""So many following nodes are imported twice: with an open dim and without it."""


@from_onnx("Squeeze")
def from_onnx_squeeze(c: Call) -> Any:
    x = c.x()
    variable = c.computed(1) if c.opset >= 13 else None
    if variable is not None:
        return computed.squeezed(c, x, variable)
    axes = c.ints(1) if c.opset >= 13 else c.ints(9, "axes")
    if axes is not None:
        return _without(c, x, axes)
    dims = x.spec.known_dims
    unknown = [axis for axis, d in enumerate(dims) if not isinstance(d, int)]
    ones = [axis for axis, d in enumerate(dims) if d == 1]
    if unknown:
        raise RestInBranches(lambda nodes, results: _with_rest(c, x, unknown, ones, nodes, results))
    return _without(c, x, ones)


def _without(c: Call, x: Variable, axes: Sequence[int]) -> Variable:
    return c.squeeze(x, *axes) if axes else layer.assign(x)


def _with_rest(c: Call, x: Variable, unknown: list[int], ones: list[int], nodes: Sequence[NodeRecord], results: Sequence[str]) -> None:
    """Import the rest after a squeeze: in branches by one open dim if the rest is short, and with the others as they are."""
    importer = c.importer
    for axis in unknown[1:] if len(nodes) <= _MOST_TWICE else unknown:
        stays = importer.free_name(f"dim_{axis}_of_{x.name}_is_not_1")
        importer.block.append_op("not_equal", {"X": _from_onnx_size(c, x, axis), "Y": c.full([1], INT64, 1)}, {"Out": stays})
        importer.block.append_op("assert", {"Cond": stays}, {}, {})
    if len(nodes) > _MOST_TWICE:
        importer.define(c.node.outputs[0], _without(c, x, ones), c.node.place)
        importer.nodes(nodes, results)
        return
    axis = unknown[0]
    branches = (lambda: [_without(c, x, sorted([*ones, axis]))], lambda: [_without(c, x, ones)])
    with_rest(c, lambda: layer.equal(_from_onnx_size(c, x, axis), c.full([1], INT64, 1)), branches, nodes, results)


def _from_onnx_size(c: Call, x: Variable, axis: int) -> Variable:
    return layer.slice(c.shape_of(x), [0], [axis], [axis + 1])


# --- to ONNX


@to_onnx()
def _to_onnx_size_demand(w: WrittenOp) -> None:
    """Write nothing: it gives no results."""


def axes_of(w: WrittenOp, axes: Sequence[int], rank: int) -> list[int]:
    """Return axes counted from the front."""
    return [a % rank if rank else 0 for a in axes]


@to_onnx()
def _to_onnx_shape(w: WrittenOp) -> OnnxValue:
    return w.cast(w.shape(w.x("Input")), INT64, w.result("Out").known_dtype)


@to_onnx("reshape2", "reshape")
def _to_onnx_reshape(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if w.op.input_slots.get("ShapeTensor"):
        return w.node("Reshape", x, w.row_of("ShapeTensor"))
    if w.has("Shape"):
        return w.node("Reshape", x, w.row("Shape"))
    out = w.result("Out").dims
    if out is not None and all(isinstance(d, int) for d in out) and 0 in out:
        w.needs(14)
        return w.node("Reshape", x, w.ints(*[int(d) for d in out]), allowzero=1)  # pyright: ignore[reportArgumentType]
    return w.reshape(x, *w.of.shape)


@to_onnx()
def _to_onnx_flatten_contiguous_range(w: WrittenOp) -> OnnxValue:
    x, rank = w.x("X"), w.rank("X")
    if rank == 0:
        return w.reshape(x, 1)
    first, last = w.of.start_axis % rank, w.of.stop_axis % rank
    out = w.result("Out")
    if first == 1 and last == rank - 1:
        return w.node("Flatten", x, axis=1)
    if out.dims is not None and all(isinstance(d, int) for d in out.dims) and 0 in out.dims:
        w.needs(14)
        return w.node("Reshape", x, w.ints(*[int(d) for d in out.dims]), allowzero=1)  # pyright: ignore[reportArgumentType]
    if out.dims is not None and sum(not isinstance(d, int) for d in out.dims) <= 1 and 0 not in out.dims:
        return w.reshape(x, *[d if isinstance(d, int) else -1 for d in out.dims])
    if first == 0:
        behind = rank - 1 - last
        return w.node("Reshape", x, w.node("Concat", w.ints(-1), w.shape(x, last + 1, rank), axis=0)) if behind else w.reshape(x, -1)
    if last == rank - 1:
        return w.reshape(x, *[0] * first, -1)
    return w.node("Reshape", x, w.node("Concat", w.shape(x, 0, first), w.ints(-1), w.shape(x, last + 1, rank), axis=0))


@to_onnx("transpose2", "transpose")
def _to_onnx_transpose(w: WrittenOp) -> OnnxValue:
    return w.node("Transpose", w.x("X"), perm=axes_of(w, w.of.axis, w.rank("X"))) if w.rank("X") else w.node("Identity", w.x("X"))


@to_onnx("unsqueeze2", "unsqueeze")
def _to_onnx_unsqueeze(w: WrittenOp) -> OnnxValue:
    if w.op.input_slots.get("AxesTensorList"):
        return w.node("Unsqueeze", w.x("X"), w.row_of("AxesTensorList"))
    numbers = w.known("AxesTensor") if w.has("AxesTensor") else w.of.axes
    if numbers is None:
        return w.node("Unsqueeze", w.x("X"), w.row("AxesTensor"))
    x, rank, axes = w.x("X"), w.rank("X"), [int(a) for a in numbers]
    if axes and axes[0] >= 0 and axes == sorted(set(axes)):
        return w.unsqueeze(x, *axes)
    for axis in axes:  # one after another: each counts in the dims so far
        x = w.unsqueeze(x, axis if axis >= 0 else axis + rank + 1)
        rank += 1
    return x if axes else w.node("Identity", x)


@to_onnx("squeeze2", "squeeze")
def _to_onnx_squeeze(w: WrittenOp) -> OnnxValue:
    rank, dims = w.rank("X"), w.spec("X").known_dims
    if not w.of.axes:
        if not all(isinstance(d, int) for d in dims):
            raise Refused("without axes, and dims that are open")
        axes = [axis for axis, d in enumerate(dims) if d == 1]
    else:
        axes = [a for a in axes_of(w, w.of.axes, rank) if dims[a] == 1 or not isinstance(dims[a], int)]
    return w.squeeze(w.x("X"), *sorted(set(axes))) if axes else w.node("Identity", w.x("X"))


def single(w: WrittenOp, slot: str, otherwise: int) -> int:
    """Return an axis: the number of an operand that is known before the run, or of the attribute."""
    number = w.known(slot) if w.has(slot) else otherwise
    if number is None:
        raise Refused("an axis that is computed")
    return int(number if isinstance(number, int) else number.reshape(-1)[0])


@to_onnx()
def _to_onnx_size(w: WrittenOp) -> OnnxValue:
    count = w.node("Size", w.x("Input"))
    rank = len(w.result("Out").known_dims)
    return w.reshape(count, 1) if rank else count


# --- from PaddlePaddle 3


@from_pir("shape64")
def _from_pir_shape(p: PirCall) -> Any:
    """Return the dims, as int64."""
    return p.cast(layer.shape(p.x()), INT32, INT64)


# --- from torch


@from_torch()
def _from_torch_sym_size(t: TorchCall, x: Variable, dim: int) -> Any:
    size = x.spec.known_dims[dim]
    return size_of(*t.importer.place_of(size, x, dim))


@from_torch("sym_numel", "numel")
def _sym_numel(t: TorchCall, x: Variable) -> Any:
    return functools.reduce(functools.partial(compute, operator.mul), [size_of(x, axis) for axis in range(t.rank(x))], 1)


@from_torch("item", "_local_scalar_dense")
def _item(t: TorchCall, x: Variable) -> Any:
    if not x.spec.known_dtype.is_integer:
        raise Refused("a number of a tensor of floats, taken out of it")
    return value_of(x)


@from_torch(
    "_assert_scalar",
    "_assert_async",
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
    "_check_is_size",
    "sym_constrain_range_",
)
def _demand(t: TorchCall, *_: Any, **__: Any) -> Any:
    return None


END = 2**31 - 1


@from_torch("view", "reshape", "_unsafe_view")
def _view(t: TorchCall, x: Variable, size: Any) -> Any:
    if is_list(size):
        return t.reshape(x, size)
    return x if x.dtype is t.dtype else t.op("view_dtype", {"dtype": t.dtype.code}, input=x)


@from_torch()
def _from_torch_flatten(t: TorchCall, x: Variable, start_dim: int = 0, end_dim: int = -1) -> Any:
    return layer.flatten(x, start_dim, end_dim) if t.rank(x) else layer.reshape(x, [1])


@from_torch()
def _from_torch_unflatten(t: TorchCall, x: Variable, dim: int, sizes: Any) -> Any:
    axis = t.axis(x, dim)
    leading, trailing = [size_of(x, a) for a in range(axis)], [size_of(x, a) for a in range(axis + 1, t.rank(x))]
    return t.reshape(x, [*leading, *sizes, *trailing])


@from_torch("transpose", "swapaxes")
def _from_torch_transpose(t: TorchCall, x: Variable, dim0: Any, dim1: int = 0) -> Any:
    if is_list(dim0):  # of prims
        return _from_torch_permute(t, x, dim0)
    order = [*range(t.rank(x))]
    if not order:
        return x
    a, b = t.axis(x, dim0), t.axis(x, dim1)
    order[a], order[b] = order[b], order[a]
    return layer.transpose(x, order)


@from_torch()
def _from_torch_permute(t: TorchCall, x: Variable, dims: Any) -> Any:
    return layer.transpose(x, [t.axis(x, d) for d in dims]) if t.rank(x) else x


@from_torch()
def _from_torch_movedim(t: TorchCall, x: Variable, source: Any, destination: Any) -> Any:
    sources = [t.axis(x, s) for s in (source if is_list(source) else [source])]
    places = [t.axis(x, d) for d in (destination if is_list(destination) else [destination])]
    left = [a for a in range(t.rank(x)) if a not in sources]
    order = [sources[places.index(axis)] if axis in places else left.pop(0) for axis in range(t.rank(x))]
    return layer.transpose(x, order)


@from_torch("t", "numpy_T")
def _reversed_axes(t: TorchCall, x: Variable) -> Any:
    return layer.transpose(x, [*range(t.rank(x))][::-1]) if t.rank(x) > 1 else x


@from_torch("adjoint", "mT", "mH", "matrix_H")
def _turned_matrices(t: TorchCall, x: Variable) -> Any:
    matrices = layer.transpose(x, [*range(t.rank(x) - 2), t.rank(x) - 1, t.rank(x) - 2]) if t.rank(x) > 1 else x
    return layer.conj(matrices) if x.dtype in COMPLEX and t.name != "mT" else matrices


@from_torch()
def _from_torch_unsqueeze(t: TorchCall, x: Variable, dim: int) -> Any:
    return layer.unsqueeze(x, [dim % (t.rank(x) + 1)])


@from_torch()
def _from_torch_squeeze(t: TorchCall, x: Variable, dim: Any = None) -> Any:
    axes = [*range(t.rank(x))] if dim is None else t.axes(x, dim) or []
    dims = x.spec.known_dims
    for axis in (a for a in axes if not isinstance(dims[a], int) and less_equal(2, dims[a]) is not True):
        attrs = {"left": "2", "relation": "<=", "right": f"x0.{axis}", "requirement": "squeeze leaves out an axis of 1, of an open size here"}
        current_block().append_op("size_demand", {"X": [x]}, {}, attrs)
    axes = [a for a in axes if dims[a] == 1]
    return layer.squeeze(x, axes) if axes else x


# --- to torch's code


@to_torch()
def _to_torch_shape(w: PlainOp) -> str:
    return f"torch.tensor({w.x('Input')}.shape, {tensor_options(w, w.result('Out').known_dtype)})"


@to_torch()
def _to_torch_size(w: PlainOp) -> str:
    code = f"torch.tensor({w.x('Input')}.numel(), {tensor_options(w, w.result('Out').known_dtype)})"
    return code if not w.result("Out").known_dims else f"{code}.reshape(1)"


@to_torch("reshape2", "reshape")
def _to_torch_reshape(w: PlainOp) -> str:
    dims = w.result("Out").known_dims
    unknown = [d for d in dims if not isinstance(d, int) and not w.writer.has_size(d)]
    if len(unknown) > 1 or (unknown and 0 in dims):
        shape = f"[{', '.join(f'int({t})' for t in w.all('ShapeTensor'))}]" if w.count("ShapeTensor") else w.list("Shape") if w.has("Shape") else w.of.shape
        return w.call(helpers.shapes.reshaped, w.x("X"), shape)
    return f"{w.x('X')}.reshape({w.target(dims)})"


@to_torch()
def _to_torch_flatten_contiguous_range(w: PlainOp) -> str:
    if not w.rank("X"):
        return f"{w.x('X')}.reshape(1)"
    return f"{w.x('X')}.flatten({w.of.start_axis}, {w.of.stop_axis})"


@to_torch("flatten2", "flatten")
def _to_torch_flatten(w: PlainOp) -> str:
    return f"{w.x('X')}.reshape({w.target(w.result('Out').known_dims)})"


@to_torch("squeeze2", "squeeze")
def _to_torch_squeeze(w: PlainOp) -> str:
    dims = w.result("Out").known_dims
    if w.of.axes and len(dims) == w.rank("X") - len({a % w.rank("X") for a in w.of.axes}):
        axes = w.of.axes
        return f"{w.x('X')}.squeeze({axes[0] if len(axes) == 1 else tuple(axes)})"
    return f"{w.x('X')}.reshape({w.target(dims)})"


@to_torch("unsqueeze2", "unsqueeze")
def _to_torch_unsqueeze(w: PlainOp) -> str:
    if len(w.of.axes) == 1 and not w.has("AxesTensor") and not w.count("AxesTensorList"):
        return f"{w.x('X')}.unsqueeze({w.of.axes[0]})"
    return f"{w.x('X')}.reshape({w.target(w.result('Out').known_dims)})"


@to_torch("transpose2", "transpose")
def _to_torch_transpose(w: PlainOp) -> str:
    axes = tuple(w.of.axis)
    places = [place for place, a in enumerate(axes) if a % len(axes) != place]
    if not places:
        return w.x("X")
    return f"{w.x('X')}.transpose({places[0]}, {places[1]})" if len(places) == 2 else f"{w.x('X')}.permute({', '.join(map(str, axes))})"
