"""Distinct elements and their places: unique, unique_consecutive, unique_with_counts, where_index."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, INDEX, INT64, Spec
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.core.values.torch_types import element_type, torch_dtype
from foreshape.errors import ExecutionError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import axis_of, require, require_rank, unknown_size
from foreshape.language.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies, turned
from foreshape.language.ops.rules.known_values import carry, mapped, truth, whole_dims
from foreshape.language.ops.tensor.creation import DTYPE_DOC

VALUES = (FP32, FP64, *INDEX)
"""The element types of compared elements."""


class Distinct(Operator):
    """The base of operators with one of several equal elements, or entries of an axis."""

    abstract = True
    X = operand(VALUES, doc="any shape")
    dtype = attribute(AttrType.INT, INT64, choices=tuple(t.code for t in INDEX), doc=f"for the results but Out {DTYPE_DOC}")
    gradient = NOT_DIFFERENTIABLE

    def _distinct_specs(self, X: Spec, axes: Sequence[int]) -> tuple[Spec, Size]:
        """Return Out, with its size at the axis known at run time only, and the size of this axis of X."""
        require(len(axes) <= 1, f"axis must be one axis, or none; seen {list(axes)}", X=None)
        n = unknown_size("n")
        if not axes:
            return X.dense((n,)), X.elements
        axis = axis_of(axes[0], X.rank, X=None)
        dims = X.known_dims
        return (X if axis else X.dense()).with_dims((*dims[:axis], n, *dims[axis + 1 :])), dims[axis]

    def _places(self, X: Spec, size: Size, axes: Sequence[int]) -> Spec:
        """Return the spec of the place in Out of each element, or of each entry of the axis."""
        rows = not axes or axes[0] in (0, -X.rank)
        return (X if rows else X.dense()).with_dims((size,)).with_dtype(element_type(self.dtype))

    def _as_index(self, places: Tensor) -> Tensor:
        return places.to(torch_dtype(self.dtype), copy=True)  # torch may have allocated more memory than the tensor shows


def _entries(X: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the compared elements or entries; torch refuses entries without elements."""
    if axes and not X.numel():
        raise ExecutionError(f"entries of axis {axes[0]} cannot be compared: X has the dims {list(X.shape)}, and no elements")
    return X if axes else X.reshape(-1)


def _first_places(inverse: Tensor, count: int) -> Tensor:
    """Return the first place of each of the distinct ones."""
    first = inverse.new_full((count,), inverse.numel())
    return first.scatter_reduce_(0, inverse, torch.arange(inverse.numel(), device=inverse.device), "amin", include_self=True)


class Unique(Distinct):
    """Out = the distinct elements of X, or the distinct entries of its ``axis``, sorted.

    Indices = the first place of each in X; Index = the place in Out of each element (or entry) of X; Counts = their numbers. Without ``is_sorted``, as in files
    of PaddlePaddle 1, X is a vector and Out is in the order of the elements' first places.
    """

    type = "unique"
    Out = result(doc="[n], or X with n at axis")
    Indices = result(optional=True, doc="[n], with return_index")
    Index = result(optional=True, doc="[elements of X], or [dim of X at axis], with return_inverse")
    Counts = result(optional=True, doc="[n], with return_counts")
    return_index = attribute(AttrType.BOOLEAN, False)
    return_inverse = attribute(AttrType.BOOLEAN, False)
    return_counts = attribute(AttrType.BOOLEAN, False)
    axis = attribute(AttrType.INTS, [])
    is_sorted = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec) -> tuple[Spec | None, ...]:
        dtype = element_type(self.dtype)
        if not self.is_sorted:
            require(X.rank == 1, f"X must be a vector where the result is not sorted; it has {X.rank} dims", X=None)
            out, size = self._distinct_specs(X, ())
            return out, None, self._places(X, size, ()), None
        out, size = self._distinct_specs(X, self.axis)
        many = out.dense((unknown_size("n"),), dtype)
        return out, many if self.return_index else None, self._places(X, size, self.axis) if self.return_inverse else None, many if self.return_counts else None

    def kernel(self, X: Tensor) -> tuple[Tensor | None, ...]:
        if not self.is_sorted:
            out, index, _ = in_order(X)
            return out, None, self._as_index(index), None
        entries = _entries(X, self.axis)
        places = self.return_inverse or self.return_index
        if self.axis:
            out, inverse, counts = aten.unique_dim(entries, self.axis[0], True, places, self.return_counts)
        else:
            out, inverse, counts = private.unique(entries, True, places, self.return_counts)
        count: int = out.shape[self.axis[0] if self.axis else 0]
        return (
            out.clone(memory_format=torch.contiguous_format),
            self._as_index(_first_places(inverse, count)) if self.return_index else None,
            self._as_index(inverse) if self.return_inverse else None,
            self._as_index(counts) if self.return_counts else None,
        )

    def workspace(self, X: Spec) -> Size:
        return 4 * X.nbytes + 64 * X.elements

    samples = [
        sample(X=i64(7, data=[3, 1, 3, 2, 1, 1, 9])),
        sample(X=i64(7, data=[3, 1, 3, 2, 1, 1, 9]), is_sorted=True, return_index=True, return_inverse=True, return_counts=True),
        sample(X=f32(2, 3), is_sorted=True, return_inverse=True, dtype=2),
        sample(X=i32(5, 2, high=1), is_sorted=True, axis=[0], return_index=True, return_inverse=True, return_counts=True),
        sample(X=i32(2, 5, 3, high=1), is_sorted=True, axis=[-2], return_counts=True, dtype=2),
        sample(X=i64(0), is_sorted=True, return_index=True),
        sample(X=i64(0)),
    ]
    rejects = [
        reject(X=i64(2, 3), says="X must be a vector"),
        reject(X=i64(2, 3), is_sorted=True, axis=[2], says="axis must be in [-2, 2)"),
        reject(X=i64(2, 3), is_sorted=True, axis=[0, 1], says="axis must be one axis"),
    ]


def in_order(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct elements in the order of their first places, the place of each element among them, and their counts."""
    out, inverse, counts = private.unique(X, True, True, True)
    order = _first_places(inverse, out.numel()).argsort()
    place = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return out[order], place[inverse], counts[order]


class UniqueWithCounts(Distinct):
    """Out = the distinct elements of X in the order of their first places.

    Index = the place in Out of each element of X; Count = their numbers.
    """

    type = "unique_with_counts"
    X = operand(VALUES, doc="[elements]")
    Out = result(doc="[n]")
    Index = result(doc="[elements]")
    Count = result(doc="[n]")

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec, Spec]:
        require_rank(1, X, "X")
        out, size = self._distinct_specs(X, ())
        return out, self._places(X, size, ()), out.with_dtype(element_type(self.dtype))

    def workspace(self, X: Spec) -> Size:
        return 4 * X.nbytes + 64 * X.elements

    def kernel(self, X: Tensor) -> tuple[Tensor, ...]:
        out, index, counts = in_order(X)
        return out, self._as_index(index), self._as_index(counts)

    samples = [sample(X=i64(7, data=[3, 1, 3, 2, 1, 1, 9])), sample(X=f32(3), dtype=2), sample(X=i64(0))]


class UniqueConsecutive(Distinct):
    """Out = X without elements, or entries of its ``axis``, equal to the one before them.

    Index = the place in Out of each one of X; Counts = the length of each run.
    """

    type = "unique_consecutive"
    Out = result(doc="[n], or X with n at axis")
    Index = result(optional=True, doc="[elements of X], or [dim of X at axis], with return_inverse")
    Counts = result(optional=True, doc="[n], with return_counts")
    return_inverse = attribute(AttrType.BOOLEAN, False)
    return_counts = attribute(AttrType.BOOLEAN, False)
    axis = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec) -> tuple[Spec | None, ...]:
        out, size = self._distinct_specs(X, self.axis)
        dtype = element_type(self.dtype)
        index = self._places(X, size, self.axis) if self.return_inverse else None
        return out, index, out.dense((unknown_size("n"),), dtype) if self.return_counts else None

    def workspace(self, X: Spec) -> Size:
        return 4 * X.nbytes + 64 * X.elements

    def kernel(self, X: Tensor) -> tuple[Tensor | None, ...]:
        axis = self.axis[0] if self.axis else 0
        entries = X if self.axis else X.reshape(-1)
        rows = entries.movedim(axis, 0).flatten(1) if entries.dim() > 1 else entries.unsqueeze(1)
        first = torch.ones(len(rows), dtype=torch.bool, device=X.device)
        first[1:] = (rows[1:] != rows[:-1]).any(1)
        starts = first.nonzero().reshape(-1)
        inverse = self._as_index(first.cumsum(0).sub_(1)) if self.return_inverse else None
        ends = torch.cat((starts[1:], starts.new_tensor([len(rows)])))[: len(starts)] if self.return_counts else starts
        return entries.index_select(axis, starts), inverse, self._as_index(ends - starts) if self.return_counts else None

    samples = [
        sample(X=f32(3, 0), axis=[0], return_counts=True),
        sample(X=i64(7, data=[3, 3, 1, 1, 1, 3, 2]), return_inverse=True, return_counts=True),
        sample(X=f32(2, 3), return_counts=True, dtype=2),
        sample(X=i32(5, 2, data=[[1, 2], [1, 2], [1, 3], [1, 2], [1, 2]]), axis=[0], return_inverse=True, return_counts=True),
        sample(X=i32(2, 5, 3, high=1), axis=[-2], return_inverse=True),
        sample(X=i64(0), return_inverse=True, return_counts=True),
    ]


class WhereIndex(Operator):
    """Out = the places of the nonzero elements of Condition, in row-major order, one in each row; their number is known at run time only."""

    type = "where_index"
    layer_function = "nonzero"
    Condition = operand(doc="at least one dim")
    Out = result(doc="[n, rank], int64")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Condition: Spec) -> Spec:
        require(Condition.rank > 0, "Condition must have at least one dim", Condition=None)
        answers, dims = mapped(Condition, truth), Condition.dims
        if answers is None or None in answers or not whole_dims(dims):
            return Condition.dense((unknown_size("n"), Condition.rank), INT64)
        places = [place for place, answer in zip(product(*map(range, dims)), answers, strict=True) if answer]
        return carry(Condition.dense((len(places), Condition.rank), INT64), [k for place in places for k in place])

    def workspace(self, Condition: Spec, *, strided: frozenset[str]) -> Size:
        places = Condition.dense((Condition.elements, Condition.rank), INT64)  # torch finds them axis by axis
        return 64 + places.nbytes + turned(("Out",), Out=places) + copies(strided, Condition=Condition)

    def kernel(self, Condition: Tensor) -> Tensor:
        return torch.nonzero(Condition).contiguous()

    samples = [sample(Condition=b1(3, 4)), sample(Condition=i64(5, high=1)), sample(Condition=f32(2, 3)), sample(Condition=b1(0, 3))]
