"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.dims import product
from foreshape.ops import FLOATING, AttrType, Operator, attribute, f32, gradient, operand, reject, require, require_equal, result, sample, torch
from foreshape.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


class Mul(Operator):
    """Out = X Y, where X and Y are seen as matrices.

    The first ``x_num_col_dims`` dims of X are its rows and the others its columns; likewise Y. The result has the row dims of X
    and the column dims of Y.
    """

    type = "mul"
    X = operand(FLOATING, doc="[..., columns]")
    Y = operand(FLOATING, same_type_as="X", doc="[rows, ...]")
    Out = result(doc="the row dims of X and the column dims of Y")
    x_num_col_dims = attribute(AttrType.INT, 1, low=1)
    y_num_col_dims = attribute(AttrType.INT, 1, low=1)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        x, y, nx, ny = X.known_dims, Y.known_dims, self.x_num_col_dims, self.y_num_col_dims
        require(len(x) > nx, f"X must have more than x_num_col_dims = {nx} dims, not {len(x)}", X=None)
        require(len(y) > ny, f"Y must have more than y_num_col_dims = {ny} dims, not {len(y)}", Y=None)
        require_equal(product(x[nx:]), product(y[:ny]), "the columns of X must equal the rows of Y", X=nx, Y=0)
        return X.with_dims(x[:nx] + y[ny:])

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        if X.dim() == 2 and Y.dim() == 2:
            return torch.mm(X, Y)
        x, y = self._matrices(X, Y)
        return torch.mm(x, y).view(X.shape[: self.x_num_col_dims] + Y.shape[self.y_num_col_dims :])

    def _matrices(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = X.shape[: self.x_num_col_dims].numel(), Y.shape[self.y_num_col_dims :].numel()
        inner = Y.shape[: self.y_num_col_dims].numel()
        return X.reshape(rows, inner), Y.reshape(inner, columns)

    @gradient("X", "Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"))
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, wants: tuple[bool, ...]) -> Any:
        if X.dim() == 2 and Y.dim() == 2:
            return torch.mm(d_out, Y.t()) if wants[0] else None, torch.mm(X.t(), d_out) if wants[1] else None
        x, y = self._matrices(X, Y)
        d = d_out.reshape(x.shape[0], y.shape[1])
        return torch.mm(d, y.t()).view(X.shape) if wants[0] else None, torch.mm(x.t(), d).view(Y.shape) if wants[1] else None

    samples = [
        sample(X=f32(2, 3), Y=f32(3, 5)),
        sample(X=f32(2, 3, 5), Y=f32(15, 4)),
        sample(X=f32(2, 3, 5), Y=f32(5, 7), x_num_col_dims=2),
        sample(X=f32(2, 6), Y=f32(2, 3, 5), y_num_col_dims=2),
        sample(X=f32(0, 3), Y=f32(3, 5)),
    ]
    rejects = [
        reject(X=f32(2, 3), Y=f32(4, 5), says="the columns of X must equal the rows of Y"),
        reject(X=f32(2), Y=f32(2, 5), says="more than x_num_col_dims"),
    ]
