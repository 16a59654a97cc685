"""sequence_attention: multi-head scaled dot-product attention within ragged sequences, without padding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from foreshape.dims import Size
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.ops import (
    FLOATING,
    AttrType,
    Offsets,
    Operator,
    aten,
    attribute,
    f32,
    gradient,
    operand,
    reject,
    require_at_most,
    require_divides,
    require_equal,
    require_rank,
    result,
    sample,
    torch,
)
from foreshape.ops.gradient_dims import check_made
from foreshape.ops.padded_sequences import same_offsets
from foreshape.ops.ragged_rules import ragged, rows, same_sequences
from foreshape.ops.row_ranges import rows_in
from foreshape.spec import FP32, FP64, Spec

if TYPE_CHECKING:
    from torch import Tensor


class _Group(NamedTuple):
    """Sequences of one length of Q and one of K: how many, the lengths, and the first of their rows when all are in order."""

    sequences: int
    q_length: int
    k_length: int
    q_begin: int
    k_begin: int


class _Order(NamedTuple):
    """The rows in order of groups, and the way back; None where they are in order already."""

    there: Tensor | None
    back: Tensor | None


class _Plan(NamedTuple):
    groups: list[_Group]
    q: _Order
    k: _Order


def _plan(q: Offsets, k: Offsets) -> _Plan:
    """Sequences of equal lengths together, so that a dense kernel takes each group at once and no row is padded."""
    return q.kept(("attention", None if k is q else k), lambda: _make_plan(q, k))


def _make_plan(q: Offsets, k: Offsets) -> _Plan:
    key = q.lengths * (k.longest + 1) + k.lengths
    order = torch.argsort(key, stable=True)
    unique: Any = torch.unique_consecutive  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    kinds, counts = unique(key[order], return_counts=True)
    groups: list[_Group] = []
    q_begin = k_begin = 0
    for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
        q_length, k_length = divmod(kind, k.longest + 1)
        groups.append(_Group(count, q_length, k_length, q_begin, k_begin))
        q_begin += count * q_length
        k_begin += count * k_length
    if bool((order.diff() > 0).all()):
        return _Plan(groups, _Order(None, None), _Order(None, None))
    q_order = _in_order(q, order)
    return _Plan(groups, q_order, q_order if k is q else _in_order(k, order))


def _in_order(at: Offsets, order: Tensor) -> _Order:
    there = rows_in(at.last[:-1][order], at.lengths[order])
    back = torch.empty_like(there)
    back[there] = torch.arange(len(there), device=there.device)
    return _Order(there, back)


def _ordered(X: Tensor, rows: Tensor | None) -> Tensor:
    if rows is not None:
        return X.index_select(0, rows)
    return X if X.stride(-1) == 1 else X.contiguous()


def _joined(parts: list[Tensor], like: Tensor, rows: Tensor | None) -> Tensor:
    """The groups' rows one after the other, back in their own order, with the columns of ``like``."""
    if not parts:
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
    whole = torch.cat(parts)
    return whole if rows is None else whole.index_select(0, rows)


class SequenceAttention(Operator):
    """Out = softmax(Q K^T * scale) V within each innermost sequence, for each of ``heads`` equal parts of the columns
    (Vaswani et al., 2017). Sequence i of Q looks at sequence i of K and V; a row of Q whose sequence of K has no rows gives zeros.

    With ``causal``, row j of a sequence of Q sees rows 0..j of the sequence of K. LogSumExp = log(sum(exp(Q K^T * scale))), for the
    gradient.
    """

    type = "sequence_attention"
    Q = operand(FLOATING, doc="ragged, [rows, width]")
    K = operand(FLOATING, same_type_as="Q", doc="ragged, [key rows, width], as many sequences as Q")
    V = operand(FLOATING, same_type_as="Q", doc="as K")
    Out = result(doc="as Q")
    LogSumExp = result(doc="[rows, heads], fp64 of fp64, otherwise fp32")
    heads = attribute(AttrType.INT, 1, low=1, doc="divides width")
    causal = attribute(AttrType.BOOLEAN, False)
    scale = attribute(AttrType.FLOAT, 0.0, doc="0: one over the root of width / heads")

    def infer_shape(self, Q: Spec, K: Spec, V: Spec) -> tuple[Spec, Spec]:
        lod = ragged(Q, "Q")
        for spec, slot in ((K, "K"), (V, "V")):
            ragged(spec, slot)
            require_rank(2, spec, slot)
        require_rank(2, Q, "Q")
        width = Q.known_dims[1]
        require_at_most(1, width, "Q must have columns", Q=1)
        require_divides(self.heads, width, f"heads must divide the columns of Q, {width}; seen {self.heads}", Q=1)
        require_equal(width, K.known_dims[1], "Q and K must have as many columns", Q=1, K=1)
        require_equal(width, V.known_dims[1], "Q and V must have as many columns", Q=1, V=1)
        require_equal(K.known_dims[0], V.known_dims[0], "K and V must have as many rows", K=0, V=0)
        same_sequences(Q, K, "Q", "K")
        same_sequences(K, V, "K", "V")
        return Q.like(), rows(FP64 if Q.dtype is FP64 else FP32, (Q.known_dims[0], self.heads), lod)

    def work(self, Q: Spec, K: Spec, V: Spec) -> Size:
        sequences = ragged(K, "K").counts[-1]  # as if all were of one length
        return 2 * Q.elements * (K.known_dims[0] // sequences) if isinstance(sequences, int) and sequences else 2 * Q.elements

    def _heads_of(self, X: Tensor, begin: int, count: int, length: int) -> Tensor:
        """``[count, heads, length, width / heads]``, without a copy."""
        return X[begin : begin + count * length].view(count, length, self.heads, -1).transpose(1, 2)

    def _scale_of(self, Q: Tensor) -> float:
        return self.scale or 1 / math.sqrt(Q.shape[1] // self.heads)

    def kernel(self, Q: Tensor, K: Tensor, V: Tensor, *, offsets: list[Offsets]) -> tuple[Tensor, Tensor]:
        same_offsets(offsets[1], offsets[2], "sequence_attention: K and V must have the same sequences")
        plan = _plan(offsets[0], offsets[1])
        q, k, v = _ordered(Q, plan.q.there), _ordered(K, plan.k.there), _ordered(V, plan.k.there)
        scale = self._scale_of(Q)
        outs: list[Tensor] = []
        sums: list[Tensor] = []
        of_sums = torch.float64 if Q.dtype is torch.float64 else torch.float32
        for g in plan.groups:
            rows = g.sequences * g.q_length
            if not rows:
                continue
            if not g.k_length:
                outs.append(Q.new_zeros(rows, Q.shape[1]))
                sums.append(torch.zeros(rows, self.heads, dtype=of_sums, device=Q.device))
                continue
            out, total = aten._scaled_dot_product_flash_attention_for_cpu(
                self._heads_of(q, g.q_begin, g.sequences, g.q_length), self._heads_of(k, g.k_begin, g.sequences, g.k_length),
                self._heads_of(v, g.k_begin, g.sequences, g.k_length), 0.0, self.causal, scale=scale)  # fmt: skip
            outs.append(out.transpose(1, 2).reshape(rows, -1))
            sums.append(total.transpose(1, 2).reshape(rows, -1))
        return _joined(outs, Q, plan.q.back), _joined(sums, torch.empty(Q.shape[0], self.heads, dtype=of_sums, device=Q.device), plan.q.back)

    def _given_back(self, Q: Spec, K: Spec, V: Spec, Out: Spec, LogSumExp: Spec, d_out: Spec) -> tuple[Spec, Spec, Spec]:
        out, sums = SequenceAttention.infer_shape(self, Q, K, V)
        check_made(Out=(Out, out), LogSumExp=(LogSumExp, sums), Out_GRAD=(d_out, out))
        return Q.like(), K.like(), V.like()

    @gradient("Q", "K", "V", "Out", "LogSumExp", "Out@GRAD", gives=("Q@GRAD", "K@GRAD", "V@GRAD"), infer=_given_back)
    def backward(
        self, Q: Tensor, K: Tensor, V: Tensor, Out: Tensor, LogSumExp: Tensor, d_out: Tensor, *, offsets: list[Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        plan = _plan(offsets[0], offsets[1])
        q, out, d, sums = (_ordered(x, plan.q.there) for x in (Q, Out, d_out, LogSumExp))
        k, v = _ordered(K, plan.k.there), _ordered(V, plan.k.there)
        scale = self._scale_of(Q)
        d_q: list[Tensor] = []
        d_k: list[Tensor] = []
        d_v: list[Tensor] = []
        for g in plan.groups:
            q_rows, k_rows = g.sequences * g.q_length, g.sequences * g.k_length
            if not q_rows or not k_rows:
                d_q.append(Q.new_zeros(q_rows, Q.shape[1]))
                d_k.append(K.new_zeros(k_rows, K.shape[1]))
                d_v.append(d_k[-1])
                continue
            of_q, of_k = (g.q_begin, g.sequences, g.q_length), (g.k_begin, g.sequences, g.k_length)
            parts = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                self._heads_of(d, *of_q), self._heads_of(q, *of_q), self._heads_of(k, *of_k), self._heads_of(v, *of_k), self._heads_of(out, *of_q),
                self._heads_of(sums, *of_q).squeeze(-1), 0.0, self.causal, scale=scale)  # fmt: skip
            for into, part, height in zip((d_q, d_k, d_v), parts, (q_rows, k_rows, k_rows), strict=True):
                into.append(part.transpose(1, 2).reshape(height, -1))
        return _joined(d_q, Q, plan.q.back), _joined(d_k, K, plan.k.back), _joined(d_v, V, plan.k.back)

    samples = [
        sample(Q=f32(9, 4).ragged([4, 0, 5]), K=f32(9, 4).ragged([4, 0, 5]), V=f32(9, 4).ragged([4, 0, 5])),
        sample(Q=f32(6, 4).ragged([2, 0, 1, 3]), K=f32(10, 4).ragged([5, 2, 0, 3]), V=f32(10, 4).ragged([5, 2, 0, 3]), heads=2, scale=0.3),
        sample(Q=f32(7, 6).ragged([2, 1], [3, 0, 4]), K=f32(7, 6).ragged([2, 1], [3, 0, 4]), V=f32(7, 6).ragged([2, 1], [3, 0, 4]), heads=3, causal=True),
        sample(Q=f32(8, 2).ragged([3, 2, 3]), K=f32(8, 2).ragged([2, 4, 2]), V=f32(8, 2).ragged([2, 4, 2]), causal=True),
        sample(Q=f32(0, 2).ragged([]), K=f32(0, 2).ragged([]), V=f32(0, 2).ragged([])),
        sample(Q=f32(0, 2).ragged([0, 0]), K=f32(3, 2).ragged([3, 0]), V=f32(3, 2).ragged([3, 0]), differentiate=False),
    ]
    rejects = [
        reject(Q=f32(4, 2), K=f32(4, 2).ragged([4]), V=f32(4, 2).ragged([4]), says="Q must be ragged", error=TypeMismatchError),
        reject(Q=f32(4, 2).ragged([4]), K=f32(4, 2).ragged([4]), V=f32(4, 2), says="V must be ragged", error=TypeMismatchError),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 6).ragged([4]), V=f32(4, 6).ragged([4]), heads=4, says="heads must divide"),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 6).ragged([4]), V=f32(4, 6).ragged([4]), heads=0, says="at least 1", error=SchemaError),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 5).ragged([4]), V=f32(4, 6).ragged([4]), says="Q and K must have as many columns"),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 6).ragged([4]), V=f32(4, 5).ragged([4]), says="Q and V must have as many columns"),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 6).ragged([4]), V=f32(5, 6).ragged([5]), says="K and V must have as many rows"),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 6).ragged([1, 3]), V=f32(4, 6).ragged([1, 3]), says="Q and K must have as many sequences"),
        reject(Q=f32(4, 0).ragged([4]), K=f32(4, 0).ragged([4]), V=f32(4, 0).ragged([4]), says="Q must have columns"),
    ]
