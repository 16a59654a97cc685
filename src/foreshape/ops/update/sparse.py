"""What SELECTED_ROWS are turned into: rows without repetitions, their values as a tensor, rows with weight decay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshape.dims import Size
from foreshape.operator import (
    DENSE_OR_ROWS,
    FLOATING,
    NUMERIC,
    ZERO_GRADIENT,
    AttrType,
    Operator,
    attribute,
    f32,
    operand,
    reject,
    result,
    sample,
    torch,
)
from foreshape.operator.require import unknown_size
from foreshape.ops.update.updates import check_same_shape
from foreshape.spec import LOD_TENSOR, SELECTED_ROWS, Kind, Spec
from foreshape.values.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor


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

    A row decays once however often it comes, and one that does not come not at all. A dense Grad decays everywhere. An operator of
    this project: no other program knows it.
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
    rejects = [reject(Param=f32(3, 2), Grad=f32(3, 4), l2=0.5, says="the dims of Param")]
