"""grouped_matmul: a product of each group of rows with a matrix of its own, as in a mixture of experts."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, no_less, product
from foreshape.core.spec import FLOATING, FP32, INDEX, Spec
from foreshape.core.values.offsets import as_list
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import OWN, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require_equal, require_rank
from foreshape.language.operator.samples import Sample, f32, f64, i32, i64, reject, sample
from foreshape.language.operator.temporaries import turned
from foreshape.machine.kernels.products import adding_workspace, put_product


def _sample(ends: list[int], rows: int, wide: bool = True) -> Sample:
    numbers = (i64 if wide else i32)(len(ends), data=ends)
    return sample(X=f32(rows, 3), Y=f32(len(ends), 3, 5), Ends=numbers)


class GroupedMatmul(Operator):
    """Out = each row of X times the matrix in Y of the row's group. Group g has the rows from Ends[g - 1], or 0, up to Ends[g].

    The rows behind the last group are zeros in Out.
    """

    type = "grouped_matmul"
    since = OWN
    multiplies = True
    X = operand(FLOATING, doc="[rows, k]")
    Y = operand(FLOATING, same_type_as="X", doc="[groups, k, columns], or [groups, columns, k] where trans_y")
    Ends = operand(INDEX, doc="[groups], not falling, at most rows")
    Out = result(layout="row", doc="[rows, columns]")
    trans_y = attribute(AttrType.BOOLEAN, False, doc="swap the last two dims of Y first")

    def infer_shape(self, X: Spec, Y: Spec, Ends: Spec) -> Spec:
        require_rank(2, X, "X")
        require_rank(3, Y, "Y")
        require_rank(1, Ends, "Ends")
        require_equal(Y.known_dims[0], Ends.known_dims[0], "Ends must have a number for each matrix of Y", Y=0, Ends=0)
        k, columns = (2, 1) if self.trans_y else (1, 2)
        require_equal(X.known_dims[1], Y.known_dims[k], "the columns of X must equal the rows of the matrices of Y", X=1, Y=k)
        return X.with_dims((X.known_dims[0], Y.known_dims[columns]))

    def work(self, X: Spec, Y: Spec, Ends: Spec) -> Size:
        return X.elements * Y.known_dims[1 if self.trans_y else 2]

    def workspace(self, X: Spec, Y: Spec, Ends: Spec, *, strided: frozenset[str]) -> Size:
        return self._bytes(X, Y, strided)

    def kernel(self, X: Tensor, Y: Tensor, Ends: Tensor) -> Tensor:
        out = torch.empty((X.shape[0], Y.shape[1 if self.trans_y else 2]), dtype=X.dtype, device=X.device)
        groups = _groups(Ends, X.shape[0])
        for group, rows in enumerate(groups):
            put_product(out[rows], X[rows], Y[group].t() if self.trans_y else Y[group])
        _clear_rest(out, groups)
        return out

    def _gradient_workspace(self, X: Spec, Y: Spec, Ends: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return self._bytes(X, Y, strided, d_out)

    @gradient("X", "Y", "Ends", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), layout={"X@GRAD": "row", "Y@GRAD": "row"}, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, Ends: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d_x = torch.empty(X.shape, dtype=X.dtype, device=X.device) if requested[0] else None
        d_y = torch.empty(Y.shape, dtype=Y.dtype, device=Y.device) if requested[1] else None
        groups = _groups(Ends, X.shape[0])
        for group, rows in enumerate(groups):
            if d_x is not None:
                put_product(d_x[rows], d_out[rows], Y[group] if self.trans_y else Y[group].t())
            if d_y is not None and self.trans_y:
                put_product(d_y[group], d_out[rows].t(), X[rows])
            elif d_y is not None:
                put_product(d_y[group], X[rows].t(), d_out[rows])
        if d_x is not None:
            _clear_rest(d_x, groups)
        return d_x, d_y

    def _bytes(self, X: Spec, Y: Spec, strided: frozenset[str], d: Spec | None = None) -> Size:
        """Return the bytes of the largest product: one group may have all rows."""
        m, (_, k, n) = X.known_dims[0], Y.known_dims
        matrix = product((k, n)) * Y.known_dtype.itemsize if "Y" in strided else 0
        k, n = (n, k) if self.trans_y else (k, n)
        if d is None:
            largest = adding_workspace(m, k, n)
        else:
            largest = no_less(adding_workspace(m, n, k), adding_workspace(n, m, k) if self.trans_y else adding_workspace(k, m, n))
        return (largest if X.dtype is FP32 else 0) + matrix + turned(strided, X=X, Out_GRAD=d)

    samples = [
        _sample([2, 2, 6], 6),
        _sample([0, 4], 7, wide=False),
        _sample([0, 0], 0),
        _sample([], 4),
        sample(X=f32(6, 3), Y=f32(2, 5, 3), Ends=i64(2, data=[4, 5]), trans_y=True),
        sample(X=f64(4, 2), Y=f64(2, 2, 3), Ends=i64(2, data=[3, 4])),
        sample(X=f32(5, 3).ragged([2, 3]), Y=f32(2, 3, 4), Ends=i64(2, data=[1, 5])),
    ]
    rejects = [
        reject(X=f32(6, 3), Y=f32(2, 3, 5), Ends=i64(3), says="a number for each matrix"),
        reject(X=f32(6, 3), Y=f32(2, 4, 5), Ends=i64(2), says="the columns of X"),
        reject(X=f32(6, 3), Y=f32(2, 3, 5), Ends=i64(2), trans_y=True, says="the columns of X"),
        reject(X=f32(6, 3), Y=f32(3, 5), Ends=i64(2), says="Y must have 3 dims"),
    ]


def _groups(ends: Tensor, count: int) -> list[slice[int, int, None]]:
    """Return the rows of each group. Raises `ExecutionError` if the ends fall or are beyond the rows."""
    begin = 0
    groups: list[slice[int, int, None]] = []
    for end in as_list(ends):
        if not begin <= end <= count:
            raise ExecutionError.must("grouped_matmul: Ends", f"not falling, from 0 to {count}, the rows of X", f"{end} after {begin}")
        groups.append(slice(begin, end))
        begin = end
    return groups


def _clear_rest(out: Tensor, groups: list[slice[int, int, None]]) -> None:
    """Set the rows behind the last group to zeros."""
    end = groups[-1].stop if groups else 0
    if end < out.shape[0]:
        out[end:].zero_()
