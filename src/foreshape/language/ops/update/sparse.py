"""Operators on SELECTED_ROWS: merged rows, values as a tensor, weight decay, sums; and updates by zeros but for some rows, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from foreshape.core.dims import Size, minimum
from foreshape.core.spec import FLOATING, FP32, LOD_TENSOR, NUMERIC, SELECTED_ROWS, Kind, Spec, tensor
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import element_type, torch_dtype
from foreshape.language.operator import DENSE_OR_ROWS, ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require, require_equal, unknown_size
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.tensor.creation import DTYPE_DOC
from foreshape.language.ops.update.updates import check_same_shape

ID_BYTES = 8


class MergeSelectedRows(Operator):
    """Out = X with each row once, in rising order, the values of equal rows summed. A dense X is left as it is."""

    type = "merge_selected_rows"
    X = operand(NUMERIC, kinds=DENSE_OR_ROWS, doc="sparse rows, possibly repeated")
    Out = result(view_of="X", doc="as X")
    gradient = ZERO_GRADIENT

    def infer_var_type(self, X: Spec) -> Kind:
        return X.kind

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()

    def kernel(self, X: Tensor | Rows) -> Tensor | Rows:
        return X.merged() if isinstance(X, Rows) else X

    samples = [sample(X=f32(3, 2))]


class GetTensorFromSelectedRows(Operator):
    """Out = the values of the rows of X, one after the other, ``[rows, *row]``. A dense X is left as it is."""

    type = "get_tensor_from_selected_rows"
    X = operand(NUMERIC, kinds=DENSE_OR_ROWS, doc="sparse rows")
    Out = result(view_of="X", doc="[rows, *row]")
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec) -> Spec:
        dims = X.known_dims
        return X.dense((unknown_size("rows"), *dims[1:]) if X.kind is SELECTED_ROWS else dims)

    def kernel(self, X: Tensor | Rows) -> Tensor:
        return X.values if isinstance(X, Rows) else X

    samples = [sample(X=f32(3, 2))]


class DecaySelectedRows(Operator):
    """Out = Grad + ``l2`` * Param + ``l1`` * sign(Param), on the rows of Grad: sparse rows stay sparse, each row once.

    A repeated row decays once, and an absent one not at all. A dense Grad decays everywhere. An operator of this project: no other program knows it.
    """

    type = "decay_selected_rows"
    Param = operand(FLOATING, doc="the parameter")
    Grad = operand(FLOATING, same_type_as="Param", kinds=DENSE_OR_ROWS, doc="its gradient, as Param")
    Out = result(doc="as Grad")
    l1 = attribute(AttrType.FLOAT, 0.0)
    l2 = attribute(AttrType.FLOAT, 0.0)
    gradient = ZERO_GRADIENT

    def infer_var_type(self, Param: Spec, Grad: Spec) -> Kind:
        return Grad.kind

    def infer_shape(self, Param: Spec, Grad: Spec) -> Spec:
        check_same_shape(Param, Grad, "Grad")
        return Grad.like()

    def workspace(self, Param: Spec, Grad: Spec) -> Size:
        return Param.nbytes if self.l1 and Grad.kind is LOD_TENSOR else 0

    def kernel(self, Param: Tensor, Grad: Tensor | Rows) -> Tensor | Rows:
        if not isinstance(Grad, Rows):
            return self._decayed(Grad, Param)
        rows = Grad.merged()
        return Rows.unique(rows.rows, self._decayed(rows.values, Param.index_select(0, rows.rows)), rows.height)

    def _decayed(self, grad: Tensor, param: Tensor) -> Tensor:
        out = torch.add(grad, param, alpha=self.l2)
        return out.add_(param.sign(), alpha=self.l1) if self.l1 else out

    samples = [sample(Param=f32(3, 2), Grad=f32(3, 2), l2=0.5), sample(Param=f32(4), Grad=f32(4), l1=0.25, l2=0.5)]


class AccumulateSelectedRows(Operator):
    """Sum = Sum + Grad, of sparse rows: all ids of both once, in rising order, the values of equal ones summed. A dense Sum is added to.

    Between runs at most ``batches`` gradients are held, and never more than the table: then `empty_selected_rows` starts anew. An operator of this project: no
    other program knows it.
    """

    type = "accumulate_selected_rows"
    Sum = operand(FLOATING, kinds=DENSE_OR_ROWS, doc="the sum so far")
    Grad = operand(FLOATING, same_type_as="Sum", kinds=DENSE_OR_ROWS, doc="the addend, as Sum")
    Out = result(updates="Sum", doc="as Sum")
    batches = attribute(AttrType.INT, 1, low=1, doc="the most gradients summed before the sum is emptied, for the plan of its memory")
    gradient = ZERO_GRADIENT

    def infer_shape(self, Sum: Spec, Grad: Spec) -> Spec:
        check_same_shape(Sum, Grad, "Grad", "Sum")
        require(Sum.kind is Grad.kind, "Sum and Grad must both be sparse rows, or both dense", Sum=None, Grad=None)
        return Sum

    def rows_bytes(self, Sum: Spec, Grad: Spec, *, rows: Size) -> Size:
        return minimum(self.batches * rows, Sum.nbytes + ID_BYTES * Sum.known_dims[0])

    def workspace(self, Sum: Spec, Grad: Spec, *, rows: Size) -> Size:
        return rows

    def kernel(self, Sum: Tensor | Rows, Grad: Tensor | Rows) -> Tensor | Rows:
        if isinstance(Sum, Rows):
            assert isinstance(Grad, Rows)
            return Sum.become(Rows.joined([Sum, Grad]).merged() if len(Sum.rows) else Grad.merged())
        assert not isinstance(Grad, Rows)
        return Sum.add_(Grad)

    samples = [sample(Sum=f32(3, 2), Grad=f32(3, 2), batches=4)]


class EmptySelectedRows(Operator):
    """Out = no rows of a table of ``shape``: X emptied, if given; a dense X is zeroed. An operator of this project."""

    type = "empty_selected_rows"
    X = operand(FLOATING, optional=True, kinds=DENSE_OR_ROWS, doc="the sum to empty in place")
    Out = result(updates="X", doc="sparse rows, [*shape]; as X")
    shape = attribute(AttrType.LONGS, low=0, doc="the shape of the table")
    dtype = attribute(AttrType.INT, FP32, doc=DTYPE_DOC)
    gradient = ZERO_GRADIENT

    def infer_var_type(self, X: Spec | None) -> Kind:
        return SELECTED_ROWS if X is None else X.kind

    def infer_shape(self, X: Spec | None) -> Spec:
        require(len(self.shape) > 0, "the shape of a table has at least one dim")
        out = tensor(element_type(self.dtype), *self.shape)
        if X is None:
            return out
        require_equal(X.rank, out.rank, "X must have the dims of shape", X=None)
        for axis, size in enumerate(X.known_dims):
            require_equal(size, out.known_dims[axis], "X must have the dims of shape", X=axis)
        return X

    def kernel(self, X: Tensor | Rows | None) -> Tensor | Rows:
        if isinstance(X, Rows):
            return X.become(Rows.empty(X.shape, X.dtype, X.device))
        return Rows.empty(self.shape, torch_dtype(element_type(self.dtype))) if X is None else X.zero_()

    samples = [sample(X=f32(3, 2), shape=[3, 2])]
    rejects = [reject(X=f32(3, 2), shape=[3, 4], says="the dims of shape"), reject(shape=[], says="at least one dim")]


BLOCK_ELEMENTS = 1 << 18
"""The elements of a table in one block."""


def block_bytes(spec: Spec) -> Size:
    """Return the bytes of a gradient of one block of a table, at most."""
    block = BLOCK_ELEMENTS * spec.known_dtype.itemsize
    return min(spec.nbytes, block) if isinstance(spec.nbytes, int) else block


def in_blocks(grad: Rows, wholes: Sequence[Tensor], dtype: Any) -> Iterator[tuple[Tensor, ...]]:
    """Yield for each block of a table its gradient and its part of each of ``wholes``.

    The gradient has the element type ``dtype`` and zeros in rows without one in ``grad`` (merged). It is good until the next one.
    """
    table = wholes[0]
    height, ids = table.shape[0], grad.rows
    size = max(1, min(height, BLOCK_ELEMENTS // max(1, table.shape[1:].numel())))
    block = torch.zeros((size, *table.shape[1:]), dtype=dtype, device=table.device)
    starts = range(0, height, size)
    edges = torch.tensor([min(s + size, height) for s in starts], device=ids.device)
    ends: list[int] = torch.searchsorted(ids, edges).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    values = grad.values.to(dtype)
    first = 0
    for start, last in zip(starts, ends, strict=True):
        stop = min(start + size, height)
        places = ids[first:last] - start
        block.index_copy_(0, places, values[first:last])
        yield (block[: stop - start], *(t[start:stop] for t in wholes))
        block.index_fill_(0, places, 0.0)
        first = last
