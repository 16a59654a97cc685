"""Operators on rows sent along the edges of a graph, or pooled over segments."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, INDEX, INT32, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, sample
from foreshape.language.ops.rules.ragged_rules import check_numbers
from foreshape.machine.process.this_run import require_room

_HOW = {"SUM": "sum", "MEAN": "mean", "MAX": "amax", "MIN": "amin"}


def _pooled(rows: Tensor, targets: Tensor, count: int, how: str) -> Tensor:
    """Return the pooled rows of each target, ``[count, *row]``; 0 for a target without rows."""
    index = targets.view(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
    return rows.new_zeros(count, *rows.shape[1:]).scatter_reduce_(0, index, rows, _HOW[how], include_self=False)


def _undone(rows: Tensor, targets: Tensor, out: Tensor, d_out: Tensor, how: str) -> Tensor:
    """Return the gradient of pooled rows; each row equal to the extreme has all of it, as in PaddlePaddle."""
    d = d_out.index_select(0, targets)
    if how == "MEAN":
        counts = torch.bincount(targets, minlength=len(out)).clamp_(min=1).to(d.dtype)
        return d / counts.index_select(0, targets).view(-1, *[1] * (d.dim() - 1))
    return d * (rows == out.index_select(0, targets)) if how in ("MAX", "MIN") else d


class GraphSendRecv(Operator):
    """Out[n] = the rows X[Src_index[e]] of all edges e with Dst_index[e] = n, pooled by ``reduce_op``; 0 without edges. Dst_count = the number of edges to
    each, for MEAN; ones else."""

    type = "graph_send_recv"
    X = operand(FLOATING, doc="[nodes, *row]")
    Src_index = operand(INDEX, doc="[edges]")
    Dst_index = operand(INDEX, same_type_as="Src_index", doc="[edges]")
    Out_size = operand(INDEX, optional=True, doc="one number: the rows of Out: not supported")
    Out = result(doc="[nodes or out_size, *row]")
    Dst_count = result(optional=True, doc="int32 [rows of Out]")
    reduce_op = attribute(AttrType.STRING, "SUM", choices=tuple(_HOW))
    out_size = attribute(AttrType.LONGS, [0], doc="one number: the rows of Out; 0: as many as X")

    def infer_shape(self, X: Spec, Src_index: Spec, Dst_index: Spec, Out_size: Spec | None) -> Any:
        require(Out_size is None, "a number of rows that is a tensor is not supported", Out_size=None)
        require(X.rank >= 1, "X must have rows", X=None)
        require_rank(1, Src_index, "Src_index")
        require_rank(1, Dst_index, "Dst_index")
        require_equal(Src_index.known_dims[0], Dst_index.known_dims[0], "there must be as many of Src_index as of Dst_index", Src_index=0, Dst_index=0)
        rows = self._rows() or X.known_dims[0]
        return X.dense((rows, *X.known_dims[1:])), X.dense((rows,), INT32)

    def _rows(self) -> int:
        return max(self.out_size[0], 0) if self.out_size else 0

    def workspace(self, X: Spec, Src_index: Spec, Dst_index: Spec, Out_size: Spec | None) -> Size:
        row = product(X.known_dims[1:])
        rows = self._rows() or X.known_dims[0]
        return Src_index.elements * row * (3 * X.known_dtype.itemsize + 8) + 32 * Src_index.elements + rows * row * (2 * X.known_dtype.itemsize + 8) + 16 * rows

    def kernel(self, X: Tensor, Src_index: Tensor, Dst_index: Tensor, Out_size: Tensor | None) -> Any:
        rows = self._rows() or len(X)
        check_numbers(Src_index, len(X), "a node in Src_index")
        check_numbers(Dst_index, rows, "a node in Dst_index")
        targets = Dst_index.long()
        counts = torch.bincount(targets, minlength=rows).int() if self.reduce_op == "MEAN" else torch.zeros(rows, dtype=torch.int32, device=X.device)
        return _pooled(X.index_select(0, Src_index), targets, rows, self.reduce_op), counts

    def _gradient_workspace(self, X: Spec, Src_index: Spec, Dst_index: Spec, Out: Spec, d_out: Spec) -> Size:
        row = product(X.known_dims[1:])
        return Src_index.elements * (row * 6 * X.known_dtype.itemsize + 32) + 16 * Out.elements

    @gradient("X", "Src_index", "Dst_index", "Out", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Src_index: Tensor, Dst_index: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        d = _undone(X.index_select(0, Src_index), Dst_index.long(), Out, d_out, self.reduce_op)
        return X.new_zeros(X.shape).index_add_(0, Src_index, d)

    samples = [
        sample(X=f32(4, 3), Src_index=i64(5, data=[0, 1, 2, 0, 3]), Dst_index=i64(5, data=[1, 2, 1, 0, 1])),
        sample(X=f32(4, 3), Src_index=i32(5, data=[0, 1, 2, 0, 3]), Dst_index=i32(5, data=[1, 2, 1, 0, 1]), reduce_op="MEAN"),
        sample(X=f32(4, 3), Src_index=i64(5, data=[0, 1, 2, 0, 3]), Dst_index=i64(5, data=[1, 2, 1, 0, 1]), reduce_op="MAX"),
        sample(X=f32(4, 3, 2), Src_index=i64(5, data=[0, 1, 2, 0, 3]), Dst_index=i64(5, data=[1, 2, 1, 0, 1]), reduce_op="MIN", out_size=[3]),
    ]


class SegmentPool(Operator):
    """Out[s] = the rows of X of segment s, pooled; 0 without rows. SummedIds = the number of rows."""

    type = "segment_pool"
    X = operand(FLOATING, doc="[n, *row]")
    SegmentIds = operand(INDEX, doc="[n], rising")
    Out = result(doc="[segments, *row]; segments is the last id plus 1")
    SummedIds = result(doc="[segments, 1]")
    pooltype = attribute(AttrType.STRING, "SUM", choices=tuple(_HOW))

    def infer_shape(self, X: Spec, SegmentIds: Spec) -> Any:
        require(X.rank >= 1, "X must have rows", X=None)
        require_rank(1, SegmentIds, "SegmentIds")
        require_equal(X.known_dims[0], SegmentIds.known_dims[0], "there must be a segment for each row of X", X=0, SegmentIds=0)
        count = unknown_size("segments")
        return X.dense((count, *X.known_dims[1:])), X.dense((count, 1))

    def workspace(self, X: Spec, SegmentIds: Spec) -> Size:
        return 3 * X.nbytes + 8 * X.elements + 40 * SegmentIds.elements

    def kernel(self, X: Tensor, SegmentIds: Tensor) -> Any:
        segments = SegmentIds.long()
        if not len(segments):
            raise ExecutionError("segment_pool needs a row: nothing tells how many segments there are")
        if int(segments[0]) < 0 or bool((segments[1:] < segments[:-1]).any()):
            raise ExecutionError("SegmentIds must be at least 0, and rise")
        count = int(segments[-1]) + 1
        if count > len(segments):
            check_numbers(segments, MOST_SEGMENTS, "a segment in SegmentIds")
        require_room(self.type, count * (X.numel() // len(X) * X.element_size() + 8), f"a result of {count:,} segments")
        counts = torch.bincount(segments, minlength=count).to(X.dtype).unsqueeze(1)
        return _pooled(X, segments, count, self.pooltype), counts

    def _gradient_workspace(self, X: Spec, SegmentIds: Spec, Out: Spec, d_out: Spec) -> Size:
        return 5 * X.nbytes + 24 * SegmentIds.elements + 16 * Out.elements

    @gradient("X", "SegmentIds", "Out", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, SegmentIds: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        return _undone(X, SegmentIds.long(), Out, d_out, self.pooltype)

    samples = [sample(X=f32(5, 3), SegmentIds=i64(5, data=[0, 0, 1, 1, 2]), pooltype=how) for how in _HOW] + [
        sample(X=f32(4, 3), SegmentIds=i32(4, data=[0, 2, 2, 3]))
    ]


MOST_SEGMENTS = 1 << 31
"""The first segment number beyond all files."""
