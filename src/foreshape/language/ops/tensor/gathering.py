"""Elements picked and placed by index: gather, scatter, one-hot, masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import ANY, ANY_OR_COMPLEX, BOOL, FP32, INDEX, INT64, INTEGER, LOD_TENSOR, Spec
from foreshape.core.values.late_checks import limited, within
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import element_type, torch_dtype
from foreshape.errors import ExecutionError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.computations import Picking, PlacePicking
from foreshape.language.operator.require import axis_of, fail, require, require_at_most, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies, widened
from foreshape.language.operator.traits import WHOLE, ShardingRule, axis_names
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.known_values import carry, chosen, known_axis, known_number, number_at_run, whole_dims


def check_index(index: Tensor, size: int, subject: str, low: int = 0) -> Tensor:
    """Refuse indices outside of low..size-1, and return them; on a device the refusal comes with the step's results, and they are limited until then."""
    if not index.is_cpu:
        return within(index, size, partial(_outside, size, subject, low), low)
    _least(index, size, subject, low)
    return index


def _least(index: Tensor, size: int, subject: str, low: int) -> int | None:
    """Return the least of indices on the processor; refuse those outside of low..size-1."""
    if not index.numel():
        return None
    least, largest = (int(n.item()) for n in index.aminmax())
    if least < low or largest >= size:
        raise _outside(size, subject, low, least, largest)
    return least


def _outside(size: int, subject: str, low: int, least: int, largest: int) -> ExecutionError:
    return ExecutionError(f"{subject} must be in [{low}, {size}); seen {least} to {largest}")


def picked(take: Callable[[Tensor], Tensor], index: Tensor, size: int, low: int = 0) -> Tensor:
    """Return the result of a kernel with a check of its own, but for negative indices; refuse indices outside of low..size-1 in words."""
    if not index.is_cpu:
        return take(from_front(index, size) if low else check_index(index, size, "an index"))
    try:
        return take(index)
    except (IndexError, RuntimeError):
        least = _least(index, size, "an index", low)
        if least is None or least >= 0:
            raise
        return take(from_front(index, size))


def from_front(index: Tensor, size: int) -> Tensor:
    """Return indices with negative ones counted from the front, and refuse others than -size..size-1."""
    if not index.is_cpu:
        index = check_index(index, size, "an index", -size)
        return torch.where(index < 0, index + size, index)
    least = _least(index, size, "an index", -size)
    return index.remainder(size) if least is not None and least < 0 else index


def _column(index: Spec, slot: str) -> tuple[Size, ...]:
    """Return the dims of an index: none, one, or [n, 1], counted as one."""
    dims = index.known_dims
    if len(dims) == 2:
        require_equal(dims[1], 1, f"{slot} of two dims must be a column, [n, 1]; its rows have {dims[1]}", **{slot: 1})
        return dims[:1]
    require(len(dims) < 2, f"{slot} must have one dim (or none, or be a column), not {len(dims)}", **{slot: None})
    return dims


def entries_at(X: Spec, axis: int, index: Spec) -> list[Any] | None:
    """Return the known values at the known entries of an axis; None if one is not known, or outside."""
    entries, size = index.value or (), X.known_dims[axis]
    if not isinstance(size, int) or not whole_dims(entries) or any(not -size <= k < size for k in entries):
        return None
    return chosen(X, {axis: [k % size for k in entries]})


def placed(value: Sequence[Any], places: Sequence[Any], updates: Sequence[Any]) -> list[Any] | None:
    """Return the known values of one dim with others at these places; None if one is not known, or outside."""
    out = list(value)
    for place, update in zip(places, updates, strict=True):
        if not isinstance(place, int) or not -len(out) <= place < len(out):
            return None
        out[place] = update
    return out


def _selected(X: Tensor, index: Tensor, axis: int) -> Tensor:
    """Return the entries of ``axis`` named by ``index``; for an index without dims, without the axis."""
    out = picked(partial(X.index_select, axis), index if index.dim() == 1 else index.reshape(-1), X.shape[axis])
    return out if index.dim() else out.squeeze(axis)


def _given_back(X: Tensor, index: Tensor, axis: int, d_out: Tensor) -> Tensor:
    """Return the gradient of `_selected`: each part added at its source."""
    out = d_out.new_zeros(X.shape)
    return out.index_add_(axis, limited(index.reshape(-1), X.shape[axis]), d_out if index.dim() else d_out.unsqueeze(axis))


class Gather(Operator):
    """Out = the entries of ``axis`` of X at the indices Index."""

    type = "gather"
    gradient_reads_dims = ("X",)
    X = operand(doc="at least one dim")
    Index = operand(INDEX, doc="[n], or [n, 1], or one number")
    Axis = operand(INDEX, optional=True, doc="the axis, as a tensor of one number")
    Out = result(layout="row", doc="X with n at axis; without axis if Index is one number")
    axis = attribute(AttrType.INT, 0)

    def infer_shape(self, X: Spec, Index: Spec, Axis: Spec | None) -> Spec:
        picked = _column(Index, "Index")
        axis = known_axis(self.axis, Axis, X.rank, "Axis", "X")
        if axis is None:
            return X.dense([unknown_size(str(place)) for place in range(X.rank - 1 + len(picked))])
        dims = (*X.known_dims[:axis], *picked, *X.known_dims[axis + 1 :])
        out = X.with_dims(dims) if axis else Spec(LOD_TENSOR, X.dtype, dims, Index.lod if picked else None)
        return out if X.value is None or Index.value is None else carry(out, entries_at(X, axis, Index))

    def computes(self) -> Picking:
        return Picking(self.axis)

    def kernel(self, X: Tensor, Index: Tensor, Axis: Tensor | None) -> Tensor:
        return _selected(X, Index, number_at_run(self.axis, Axis))

    def workspace(self, X: Spec, Index: Spec, Axis: Spec | None, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X, Index=Index)

    @gradient("X", "Index", "Axis", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Index: Tensor, Axis: Tensor | None, d_out: Tensor) -> Tensor:
        return _given_back(X, Index, number_at_run(self.axis, Axis), d_out)

    samples = [
        sample(X=f32(4, 3), Index=i64(5, high=3)),
        sample(X=f32(2, 4, 3), Index=i32(5, high=3), axis=1),
        sample(X=f32(2, 4, 3), Index=i32(5, 1, high=2), axis=-1),
        sample(X=f32(4, 3), Index=i64(high=3)),
        sample(X=f32(4, 3), Index=i64(0)),
        sample(X=f32(4, 3), Index=i64(2, high=2), Axis=i32(1, data=[1])),
        sample(X=i64(4, data=[5, 6, 7, 8]), Index=i64(2, data=[3, 1])),
    ]
    rejects = [
        reject(X=f32(4, 3), Index=i64(2, 3), says="must be a column"),
        reject(X=f32(4, 3), Index=i64(2, 1, 1), says="Index must have one dim"),
    ]


class IndexSelect(Operator):
    """Out = the entries of the axis ``dim`` of X at the indices Index; a negative one counts from the back.

    PaddlePaddle 2.6 refuses negative ones.
    """

    type = "index_select"
    gradient_reads_dims = ("X",)
    X = operand(ANY_OR_COMPLEX, doc="at least one dim")
    Index = operand(INDEX, doc="[n]")
    Out = result(layout="row", doc="X with n at dim")
    dim = attribute(AttrType.INT, 0)

    def infer_shape(self, X: Spec, Index: Spec) -> Spec:
        axis = axis_of(self.dim, X.rank, "dim", X=None)
        picked = _column(Index, "Index")
        require(len(picked) == 1, "Index must have one dim", Index=None)
        dims = (*X.known_dims[:axis], picked[0], *X.known_dims[axis + 1 :])
        out = X.with_dims(dims) if axis else Spec(LOD_TENSOR, X.dtype, dims, Index.lod)
        return out if X.value is None or Index.value is None else carry(out, entries_at(X, axis, Index))

    def sharding_rule(self, X: Spec, Index: Spec) -> ShardingRule | None:
        names, axis = axis_names(X.rank, (self.dim,)), self.dim % X.rank
        return ShardingRule({"X": names, "Index": ("ids", *(WHOLE,) * (Index.rank - 1))}, {"Out": (*names[:axis], "ids", *names[axis + 1 :])})

    def kernel(self, X: Tensor, Index: Tensor) -> Tensor:
        axis: int = self.dim
        size = X.shape[axis]
        return picked(partial(X.index_select, axis), Index, size, -size)

    def workspace(self, X: Spec, Index: Spec, *, strided: frozenset[str]) -> Size:
        return Index.nbytes + copies(strided, X=X)

    def _gradient_workspace(self, X: Spec, Index: Spec, d_out: Spec) -> Size:
        return Index.nbytes

    @gradient("X", "Index", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Index: Tensor, d_out: Tensor) -> Tensor:
        axis: int = self.dim
        return _given_back(X, from_front(Index, X.shape[axis]), axis, d_out)

    samples = [
        sample(X=f32(4, 3), Index=i64(5, high=3)),
        sample(X=f32(2, 4, 3), Index=i32(5, low=-3, high=2), dim=-1),
        sample(X=f32(0, 3), Index=i64(2, high=2), dim=1),
        sample(X=c64(4, 3), Index=i64(5, high=3)),
    ]


def named_axes(X: Spec, Index: Spec) -> int:
    """Return how many axes of X a row of Index names."""
    require(Index.rank > 0, "Index must have at least one dim", Index=None)
    k = Index.known_dims[-1]
    if not isinstance(k, int):
        fail("how many axes a row of Index names must be known before the run", Index=Index.rank - 1)
    require(1 <= k <= X.rank, f"a row of Index must name from 1 to {X.rank} axes of X, not {k}", X=None, Index=Index.rank - 1)
    return k


class GatherNd(Operator):
    """Out = the elements (or parts) of X at the places in the rows of Index: a row of k numbers is a place in the first k axes."""

    type = "gather_nd"
    gradient_reads_dims = ("X",)
    X = operand(doc="at least k dims")
    Index = operand(INDEX, doc="[..., k]")
    Out = result(doc="[..., *dims of X from k on]")

    def infer_shape(self, X: Spec, Index: Spec) -> Spec:
        k = named_axes(X, Index)
        out = Spec(LOD_TENSOR, X.dtype, Index.known_dims[:-1] + X.known_dims[k:], Index.lod if Index.rank > 1 else None)
        return out if X.value is None or Index.value is None else carry(out, self._known_values(X, Index, k))

    def sharding_rule(self, X: Spec, Index: Spec) -> ShardingRule | None:
        count = Index.known_dims[-1]
        if not isinstance(count, int):
            return None
        names, places = axis_names(X.rank, range(count)), tuple([f"ids{axis}" for axis in range(Index.rank - 1)])
        return ShardingRule({"X": names, "Index": (*places, WHOLE)}, {"Out": (*places, *names[count:])})

    def computes(self) -> PlacePicking:
        return PlacePicking()

    def _known_values(self, X: Spec, Index: Spec, k: int) -> list[Any] | None:
        """Return the known values at the places, as far as these are known, and in X."""
        dims, places = X.dims, Index.value or ()
        if not whole_dims(dims) or not whole_dims(places):
            return None
        out: list[Any] = []
        for begin in range(0, len(places), k):
            row = places[begin : begin + k]
            if any(not -size <= place < size for size, place in zip(dims, row, strict=False)):
                return None
            out += chosen(X, {axis: (place % dims[axis],) for axis, place in enumerate(row)}) or ()
        return out

    def kernel(self, X: Tensor, Index: Tensor) -> Tensor:
        columns = Index.unbind(-1)
        if not Index.is_cpu:
            columns = self._checked(X, columns)
        try:
            out = X[tuple(columns)]
        except IndexError:
            self._checked(X, columns)
            raise
        return out if Index.dim() > 1 else out.clone()  # for one place torch returns a view

    @staticmethod
    def _checked(X: Tensor, columns: Sequence[Tensor]) -> list[Tensor]:
        return [check_index(column, X.shape[axis], f"an index into axis {axis}", -X.shape[axis]) for axis, column in enumerate(columns)]

    def workspace(self, X: Spec, Index: Spec, *, strided: frozenset[str]) -> Size:
        return widened(Index) + copies(strided, X=X)

    def _gradient_workspace(self, X: Spec, Index: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return widened(Index) + copies(strided, Out_GRAD=d_out)

    @gradient("X", "Index", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, Index: Tensor, d_out: Tensor) -> Tensor:
        columns = [limited(column, X.shape[axis], -X.shape[axis]) for axis, column in enumerate(Index.unbind(-1))]
        return d_out.new_zeros(X.shape).index_put_(tuple(columns), d_out, accumulate=True)

    samples = [
        sample(X=f32(4, 3), Index=i64(5, 2, high=2)),
        sample(X=f32(4, 3, 5), Index=i32(2, 6, 1, high=3)),
        sample(X=f32(4, 3), Index=i64(0, 2)),
        sample(X=f32(4, 3), Index=i64(1, data=[2])),
    ]
    rejects = [reject(X=f32(4, 3), Index=i64(5, 3), says="from 1 to 2 axes")]


class Scatter(Operator):
    """Out = X with its rows Ids replaced by Updates; without ``overwrite``, by the sum of all Updates for the row."""

    type = "scatter"
    gradient_reads_dims = ("Updates",)
    X = operand(doc="[rows, ...]")
    Ids = operand(INDEX, doc="[n], or [n, 1]")
    Updates = operand(ANY, same_type_as="X", doc="[n, ...]")
    Out = result(doc="as X")
    overwrite = attribute(AttrType.BOOLEAN, True)

    def infer_shape(self, X: Spec, Ids: Spec, Updates: Spec) -> Spec:
        picked = _column(Ids, "Ids")
        require(len(picked) == 1, "Ids must have one dim", Ids=None)
        alike = X.rank > 0 and Updates.rank == X.rank
        require(alike, f"Updates must have as many dims as X, {X.rank}, at least one; seen {Updates.rank}", X=None, Updates=None)
        require_equal(picked[0], Updates.known_dims[0], "there must be as many Updates as Ids", Ids=0, Updates=0)
        for axis in range(1, X.rank):
            require_equal(X.known_dims[axis], Updates.known_dims[axis], "the rows of Updates must be like those of X", X=axis, Updates=axis)
        if X.value is None or Ids.value is None or Updates.value is None or X.rank > 1 or not self.overwrite:
            return X.like()
        return carry(X, placed(X.value, Ids.value, Updates.value))

    def kernel(self, X: Tensor, Ids: Tensor, Updates: Tensor) -> Tensor:
        ids = check_index(Ids, X.shape[0], "an id").reshape(-1).long()
        if self.overwrite:
            return X.index_copy(0, ids, Updates)
        return X.index_fill(0, ids, 0).index_add_(0, ids, Updates)

    def workspace(self, X: Spec, Ids: Spec, Updates: Spec, *, strided: frozenset[str]) -> Size:
        return widened(Ids) + copies(strided, X=X, Updates=Updates)

    def _gradient_workspace(self, Ids: Spec, Updates: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return widened(Ids) + copies(strided, Out_GRAD=d_out)

    def _infer_gradient(self, Ids: Spec, Updates: Spec, d_out: Spec) -> tuple[Spec, Spec]:
        return Scatter.infer_shape(self, d_out, Ids, Updates), Updates.like()

    @gradient("Ids", "Updates", "Out@GRAD", gives=("X@GRAD", "Updates@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, Ids: Tensor, Updates: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        ids = limited(Ids.reshape(-1).long(), d_out.shape[0])
        return d_out.index_fill(0, ids, 0) if requested[0] else None, d_out.index_select(0, ids) if requested[1] else None

    samples = [
        sample(X=f32(4, 3), Ids=i64(2, data=[3, 1]), Updates=f32(2, 3)),
        sample(X=f32(4, 3), Ids=i32(3, 1, data=[3, 1, 3]), Updates=f32(3, 3), overwrite=False),
        sample(X=f32(4), Ids=i64(0), Updates=f32(0)),
    ]
    rejects = [
        reject(X=f32(4, 3), Ids=i64(2), Updates=f32(5, 3), says="as many Updates as Ids"),
        reject(X=f32(4, 3), Ids=i64(2), Updates=f32(2, 5), says="like those of X"),
        reject(X=f32(4, 3), Ids=i64(2), Updates=f32(2), says="as many dims as X"),
    ]


class OneHotV2(Operator):
    """Out = for each number in X a row of ``depth`` zeros with a one at the number. One outside of 0..depth-1 is an error, or with
    ``allow_out_of_range`` a row of zeros."""

    type = "one_hot_v2"
    layer_function = "one_hot"
    X = operand(INTEGER, doc="any shape")
    depth_tensor = operand(INDEX, optional=True, doc="depth, as a tensor of one number")
    Out = result(doc="[*dims of X, depth]")
    depth = attribute(AttrType.INT, -1)
    dtype = attribute(AttrType.INT, FP32, doc="the element type of Out, by its number in the file format")
    allow_out_of_range = attribute(AttrType.BOOLEAN, False)
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec, depth_tensor: Spec | None) -> Spec:
        depth = known_number(self.depth, depth_tensor, "depth_tensor")
        if depth is None:
            depth = unknown_size("depth")
        require_at_most(1, depth, f"depth must be at least 1; seen {depth}")
        return Spec(X.kind, element_type(self.dtype), (*X.known_dims, depth), X.lod if X.rank else None)

    def sharding_rule(self, X: Spec, depth_tensor: Spec | None) -> ShardingRule | None:
        names = axis_names(X.rank)
        return ShardingRule({"X": names}, {"Out": (*names, WHOLE)})

    def workspace(self, X: Spec, depth_tensor: Spec | None, *, strided: frozenset[str]) -> Size:
        element_bytes = 23 if self.allow_out_of_range else 0 if X.dtype is INT64 else 8
        return element_bytes * X.elements + copies(strided, X=X)

    def kernel(self, X: Tensor, depth_tensor: Tensor | None) -> Tensor:
        return self._rows(X, depth_tensor)

    def _rows(self, X: Tensor, depth_tensor: Tensor | None) -> Tensor:
        depth = number_at_run(self.depth, depth_tensor)
        if depth < 1:
            raise ExecutionError(f"{self.type}: depth must be at least 1; seen {depth}")
        out = torch.zeros((*X.shape, depth), dtype=torch_dtype(self.dtype), device=X.device)
        if not self.allow_out_of_range:
            return out.scatter_(-1, check_index(X, depth, "a number").long().unsqueeze(-1), 1)
        index = X.long().unsqueeze(-1)
        outside = (index < 0) | (index >= depth)
        return out.scatter_(-1, index.masked_fill(outside, 0), (~outside).to(out.dtype))

    samples = [
        sample(X=i64(2, 3, high=3), depth=4),
        sample(X=i32(3, data=[-1, 2, 9]), depth=5, allow_out_of_range=True),
        sample(X=i64(0), depth=4, dtype=2),
        sample(X=i64(3, high=3), depth_tensor=i32(1, data=[4])),
    ]
    rejects = [reject(X=i64(3), says="depth must be at least 1")]


class MaskedSelect(Operator):
    """Y = the elements of X where Mask is true, in row-major order; their number is known at run time only."""

    type = "masked_select"
    gradient_reads_dims = ("X",)
    X = operand(doc="any shape")
    Mask = operand((BOOL,), doc="as X")
    Y = result(doc="[n]")

    def infer_shape(self, X: Spec, Mask: Spec) -> Spec:
        require_rank(X.rank, Mask, "Mask")
        for axis, (a, b) in enumerate(zip(X.known_dims, Mask.known_dims, strict=True)):
            require_equal(a, b, "Mask must have the dims of X", X=axis, Mask=axis)
        return X.dense((unknown_size("0"),))

    def workspace(self, X: Spec, Mask: Spec, *, strided: frozenset[str]) -> Size:
        return 16 * X.elements + copies(strided, X=X)

    def kernel(self, X: Tensor, Mask: Tensor) -> Tensor:
        return torch.masked_select(X, Mask)

    @gradient("X", "Mask", "Y@GRAD", gives="X@GRAD", layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, Mask: Tensor, d_out: Tensor) -> Tensor:
        return d_out.new_zeros(X.shape).masked_scatter_(Mask, d_out)

    samples = [sample(X=f32(2, 3), Mask=b1(2, 3)), sample(X=i64(0), Mask=b1(0))]
