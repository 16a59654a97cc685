"""Elements set and added at places: index_add, index_put, scatter_nd_add."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import ANY, ANY_OR_COMPLEX, BOOL, INDEX, NUMERIC, Spec
from foreshape.core.values.late_checks import limited
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import axis_of, require, require_broadcast_to, require_equal, require_rank
from foreshape.language.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.broadcast import broadcast_dims, sum_to
from foreshape.language.ops.rules.known_values import carry, stretched
from foreshape.language.ops.tensor.gathering import check_index, named_axes, placed


class IndexAdd(Operator):
    """Out = X with the k-th entry along ``axis`` of AddValue added to the entry Index[k] of X, for each k."""

    type = "index_add"
    gradient_reads_dims = ("AddValue",)
    X = operand(NUMERIC, doc="at least one dim")
    Index = operand(INDEX, doc="[n]")
    AddValue = operand(ANY, same_type_as="X", doc="as X, with n at axis")
    Out = result(may_share="X", doc="as X")
    axis = attribute(AttrType.INT, 0)

    def infer_shape(self, X: Spec, Index: Spec, AddValue: Spec) -> Spec:
        axis = axis_of(self.axis, X.rank, X=None)
        require_rank(1, Index, "Index")
        require_rank(X.rank, AddValue, "AddValue")
        for k, (a, b) in enumerate(zip(X.known_dims, AddValue.known_dims, strict=True)):
            if k != axis:
                require_equal(a, b, f"AddValue must have the dims of X but at axis {axis}", X=k, AddValue=k)
        require_equal(Index.known_dims[0], AddValue.known_dims[axis], "AddValue must have an entry for each of Index", Index=0, AddValue=axis)
        return X.like()

    def kernel(self, X: Tensor, Index: Tensor, AddValue: Tensor, *, into: Tensor | None = None) -> Tensor:
        axis: int = self.axis
        places = check_index(Index, X.shape[axis], "an index")
        return (X.clone() if into is None else into).index_add_(self.axis, places, AddValue)

    def workspace(self, X: Spec, Index: Spec, AddValue: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Index=Index, AddValue=AddValue)

    def _infer_gradient(self, Index: Spec, AddValue: Spec, d_out: Spec) -> tuple[Spec, Spec]:
        return IndexAdd.infer_shape(self, d_out, Index, AddValue), AddValue.like()

    def _gradient_workspace(self, Index: Spec, AddValue: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Out_GRAD=d_out, Index=Index)

    @gradient(
        "Index", "AddValue", "Out@GRAD", gives=("X@GRAD", "AddValue@GRAD"), infer=_infer_gradient, view_of={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace
    )
    def backward(self, Index: Tensor, AddValue: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        axis: int = self.axis
        return d_out.view_as(d_out), d_out.index_select(axis, limited(Index, d_out.shape[axis])) if requested[1] else None

    samples = [
        sample(X=f32(4, 3), Index=i64(5, high=3), AddValue=f32(5, 3)),
        sample(X=f32(2, 4, 3), Index=i32(2, high=3), AddValue=f32(2, 2, 3), axis=-2),
        sample(X=f32(0, 3), Index=i64(2, high=2), AddValue=f32(0, 2), axis=1),
        sample(X=i64(4), Index=i64(0), AddValue=i64(0)),
    ]
    rejects = [
        reject(X=f32(4, 3), Index=i64(5), AddValue=f32(4, 3), says="an entry for each of Index"),
        reject(X=f32(4, 3), Index=i64(5), AddValue=f32(5, 2), says="the dims of X but at axis 0"),
        reject(X=f32(4, 3), Index=i64(5), AddValue=f32(5), says="AddValue must have 2 dims"),
    ]


class IndexPut(Operator):
    """out = x with x[indices] replaced by value, or with value added there (``accumulate``), as numpy indexes by a list of tensors.

    Each of indices is for one axis, from the first on, and all are broadcast to one shape. One of bools is for as many axes as it has dims, and stands for its
    true places. A negative index counts from the back.
    """

    type = "index_put"
    gradient_reads_dims = ("value",)
    x = operand(ANY_OR_COMPLEX, doc="at least the indexed axes")
    indices = operand((BOOL, *INDEX), many=True, doc="numbers of one shape, but for dims of 1; or bools, of the dims of x at their place")
    value = operand(ANY_OR_COMPLEX, same_type_as="x", doc="broadcast to [*shape of indices, *remaining dims of x]")
    out = result(may_share="x", doc="as x")
    accumulate = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, x: Spec, indices: tuple[Spec, ...], value: Spec) -> Spec:
        axis = 0
        dims: tuple[Size, ...] | None = ()
        for number, index in enumerate(indices):
            if index.dtype is not BOOL:
                axis += 1
                dims = None if dims is None else broadcast_dims(dims, index.known_dims, -1, ("indices", "indices"))
                continue
            require(index.rank > 0, "an index of bools must have at least one dim", indices=None)
            for k, size in enumerate(index.known_dims):
                if axis < x.rank:
                    says = f"indices[{number}], of bools, must have the dims of x from axis {axis - k} on"
                    require_equal(size, x.known_dims[axis], says, indices=k, x=axis)
                axis += 1
            dims = None
        require(0 < axis <= x.rank, f"indices must be for 1 to {x.rank} axes of x, not {axis}", x=None)
        if dims is None:  # the number of true bools is known at run time only
            return x.like()
        target_dims = (*dims, *x.known_dims[axis:])
        extra = value.rank - len(target_dims)
        require(extra <= 0, f"value must have at most the {len(target_dims)} dims of what is indexed; it has {value.rank}", value=None)
        for k, size in enumerate(value.known_dims):
            target = target_dims[k - extra]
            require_broadcast_to(size, target, f"value must be repeated to what is indexed: it has {size} at axis {k}, and {target} are indexed", value=k)
        places = indices[0].value
        if x.value is None or places is None or x.rank > 1 or self.accumulate or len(set(places)) < len(places):
            return x.like()
        updates = stretched(value, target_dims)
        return x.like() if updates is None else carry(x, placed(x.value, places, updates))

    def _places(self, x: Tensor, indices: list[Tensor]) -> tuple[Tensor, ...]:
        """Return one tensor of numbers for each indexed axis."""
        out: list[Tensor] = []
        for index in indices:
            if index.dtype is torch.bool:
                if tuple(index.shape) != tuple(x.shape[len(out) : len(out) + index.dim()]):
                    raise ExecutionError(f"index_put: an index of bools must have the dims of x, {list(x.shape)}; it has {list(index.shape)}")
                out.extend(index.nonzero(as_tuple=True))
            else:
                size = x.shape[len(out)]
                out.append(check_index(index, size, f"an index into axis {len(out)}", -size).long())
        return tuple(out)

    def kernel(self, x: Tensor, indices: list[Tensor], value: Tensor, *, into: Tensor | None = None) -> Tensor:
        places = self._places(x, indices)
        try:
            lead: Any = aten.broadcast_tensors(list(places))[0].shape
            expanded = value.expand((*lead, *x.shape[len(places) :]))
        except RuntimeError as error:
            shapes = [list(p.shape) for p in places]
            raise ExecutionError(f"index_put: indices of the dims {shapes} and a value of {list(value.shape)} do not fit one another") from error
        return (x.clone() if into is None else into).index_put_(places, expanded, self.accumulate)

    def workspace(self, x: Spec, indices: tuple[Spec, ...], value: Spec) -> Size:
        return self._scratch(x, indices)

    def _scratch(self, x: Spec, indices: tuple[Spec, ...]) -> Size:
        out: Size = 0
        for index in indices:
            out = out + (16 * index.rank + 1) * index.elements + 16 * index.elements
        return out + x.nbytes

    def _gradient_workspace(self, indices: tuple[Spec, ...], value: Spec, d_out: Spec) -> Size:
        return self._scratch(d_out, indices) + 2 * d_out.nbytes

    def _infer_gradient(self, indices: tuple[Spec, ...], value: Spec, d_out: Spec) -> tuple[Spec, Spec]:
        return IndexPut.infer_shape(self, d_out, indices, value), value.like()

    @gradient("indices", "value", "out@GRAD", gives=("x@GRAD", "value@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, indices: list[Tensor], value: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        places = self._places(d_out, indices)
        selected = d_out[places] if requested[1] else None
        d_value = None if selected is None else sum_to(selected, value, selected, -1).contiguous()
        if not requested[0]:
            return None, d_value
        d_x = d_out.clone()
        return d_x if self.accumulate else d_x.index_put_(places, d_out.new_zeros(())), d_value

    samples = [
        sample(x=f32(4, 3), indices=[i64(2, data=[3, 1])], value=f32(2, 3)),
        sample(x=i64(4, data=[5, 6, 7, 8]), indices=[i64(2, data=[-1, 1])], value=i64(1, data=[9])),
        sample(x=f32(4, 3, 5), indices=[i64(2, 1, data=[[3], [1]]), i32(3, data=[0, -1, 1])], value=f32(3, 5)),
        sample(x=f32(4, 3), indices=[i64(6, low=-4, high=3)], value=f32(3), accumulate=True),
        sample(x=f32(4, 3), indices=[b1(4, 3)], value=f32()),
        sample(x=c64(4, 3), indices=[i64(2, data=[3, 1])], value=c64(2, 3)),
        sample(x=f32(4, 3, 2), indices=[b1(4), i64(data=1)], value=f32(2)),
        sample(x=f32(0, 3), indices=[i64(0)], value=f32(1)),
        sample(x=i64(4), indices=[i64(2, data=[3, 1])], value=i64(2)),
    ]
    rejects = [
        reject(x=f32(4, 3), indices=[i64(2)], value=f32(5), says="value must be repeated to what is indexed"),
        reject(x=f32(4, 3), indices=[i64(2), i64(3)], value=f32(), says="equal or 1"),
        reject(x=f32(4, 3), indices=[i64(2), i64(2), i64(2)], value=f32(), says="1 to 2 axes of x, not 3"),
        reject(x=f32(4, 3), indices=[b1(3)], value=f32(), says="must have the dims of x from axis 0"),
        reject(x=f32(4, 3), indices=[i64(2)], value=f32(1, 2, 3), says="at most the 2 dims"),
    ]


class ScatterNdAdd(Operator):
    """Out = X with Updates added at the places in the rows of Index: a row of k numbers is a place in the first k axes."""

    type = "scatter_nd_add"
    gradient_reads_dims = ("Updates",)
    X = operand(NUMERIC, doc="at least k dims")
    Index = operand(INDEX, doc="[..., k]")
    Updates = operand(ANY, same_type_as="X", doc="[..., *dims of X from k on]")
    Out = result(may_share="X", doc="as X")

    def infer_shape(self, X: Spec, Index: Spec, Updates: Spec) -> Spec:
        k = named_axes(X, Index)
        required = (*Index.known_dims[:-1], *X.known_dims[k:])
        require_rank(len(required), Updates, "Updates")
        for axis, (a, b) in enumerate(zip(required, Updates.known_dims, strict=True)):
            require_equal(a, b, "Updates must have the dims of Index but the last, then those of X that no index names", Updates=axis)
        return X.like()

    def _places(self, x: Tensor, Index: Tensor) -> tuple[Tensor, ...]:
        return tuple([check_index(column, x.shape[axis], f"an index into axis {axis}") for axis, column in enumerate(Index.unbind(-1))])

    def kernel(self, X: Tensor, Index: Tensor, Updates: Tensor, *, into: Tensor | None = None) -> Tensor:
        return (X.clone() if into is None else into).index_put_(self._places(X, Index), Updates, accumulate=True)

    def workspace(self, X: Spec, Index: Spec, Updates: Spec, *, strided: frozenset[str]) -> Size:
        return 24 * Index.elements + X.nbytes + copies(strided, Updates=Updates)

    def _infer_gradient(self, Index: Spec, Updates: Spec, d_out: Spec) -> tuple[Spec, Spec]:
        return ScatterNdAdd.infer_shape(self, d_out, Index, Updates), Updates.like()

    def _gradient_workspace(self, Index: Spec, Updates: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 24 * Index.elements + copies(strided, Out_GRAD=d_out)

    @gradient(
        "Index", "Updates", "Out@GRAD", gives=("X@GRAD", "Updates@GRAD"), infer=_infer_gradient, view_of={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace
    )
    def backward(self, Index: Tensor, Updates: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        selected = d_out[self._places(d_out, Index)] if requested[1] else None
        return d_out.view_as(d_out), selected.clone() if selected is not None and Index.dim() == 1 else selected

    samples = [
        sample(X=f32(4, 3), Index=i64(5, 2, high=2), Updates=f32(5)),
        sample(X=f32(4, 3, 5), Index=i32(2, 6, 1, high=3), Updates=f32(2, 6, 3, 5)),
        sample(X=f32(4, 3), Index=i64(0, 2), Updates=f32(0)),
        sample(X=f32(4, 3), Index=i64(1, data=[2]), Updates=f32(3)),
        sample(X=i64(4), Index=i64(2, 1, high=3), Updates=i64(2)),
    ]
    rejects = [
        reject(X=f32(4, 3), Index=i64(5, 3), Updates=f32(5), says="from 1 to 2 axes"),
        reject(X=f32(4, 3), Index=i64(5, 2), Updates=f32(4), says="the dims of Index but the last"),
    ]
