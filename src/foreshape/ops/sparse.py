"""What SELECTED_ROWS are turned into: rows without repetitions, and the rows' values as a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshape.ops import DENSE_OR_ROWS, NUMERIC, ZERO_GRADIENT, Operator, f32, operand, result, sample
from foreshape.ops.require import unknown_size
from foreshape.ops.rows import Rows
from foreshape.spec import SELECTED_ROWS, Kind, Spec

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
