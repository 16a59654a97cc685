"""sequence_attention: multi-head scaled dot-product attention within ragged sequences, without padding."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from foreshape.core.dims import Size, ceildiv, maximum, minimum, reaches
from foreshape.core.spec import FLOATING, FP32, FP64, Spec
from foreshape.core.values.conversion import on_device
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator import OWN, AttrType, Operator, attribute, gradient, operand, result, sequence_computations
from foreshape.language.operator.require import require_at_most, require_divides, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.ragged_rules import ragged, rows, same_offsets, same_sequences
from foreshape.machine.kernels import flash, onednn, ragged_flash

_PIECES, _LEAST = 16, 1 << 13
"""The largest piece of sequences taken together: this part of all elements, or at least so many elements.

So copies and temporary results are small, wherever sequences end.
"""


class _RowSpan(NamedTuple):
    """The rows of some sequences: ``height`` rows from ``begin``, or the ``picked`` ones, if not contiguous."""

    begin: int
    height: int
    picked: Tensor | None


class _Piece(NamedTuple):
    """Some sequences of one length of Q and one of K, and the number of heads taken at once."""

    sequences: int
    q: _RowSpan
    k: _RowSpan
    heads: int


class _AttentionPieces:
    """The rows that are attended to together.

    Attributes:
        whole: all sequences with all heads, where each is as long as the others and has rows; otherwise None.
    """

    def __init__(self, q: Offsets, k: Offsets, width: int, heads: int) -> None:
        self._given = q, k, width, heads
        q_rows, k_rows = _equal_rows(q), _equal_rows(k)
        self.whole = _Piece(q.count, q_rows, k_rows, heads) if q_rows is not None and k_rows is not None else None

    @property
    def pieces(self) -> list[_Piece]:
        """Sequences of equal lengths together, so a dense kernel takes many at once and no row is padded; those without rows in Q or K are left out."""
        return self._divided[0]

    @property
    def leaves_out(self) -> bool:
        """Tell whether some sequences are left out, so that their rows stay zeros."""
        return self._divided[1]

    @functools.cached_property
    def _divided(self) -> tuple[list[_Piece], bool]:
        return _divide(*self._given)


def _equal_rows(sequences: Offsets) -> _RowSpan | None:
    """Return all rows, of sequences that are as long as each other."""
    length = sequences.rows // sequences.count if sequences.count else 0
    return _RowSpan(0, sequences.rows, None) if length and sequences.host == [*range(0, sequences.rows + 1, length)] else None


def _plan(q: Offsets, k: Offsets, width: int, heads: int) -> _AttentionPieces:
    return q.kept(("attention", None if k is q else k, width, heads), lambda: _AttentionPieces(q, k, width, heads))


def _divide(q: Offsets, k: Offsets, width: int, heads: int) -> tuple[list[_Piece], bool]:
    import numpy

    begins = [numpy.asarray(o.host, "int64") for o in (q, k)]
    key = numpy.diff(begins[0]) * (k.longest + 1) + numpy.diff(begins[1])
    order = numpy.argsort(key, kind="stable")
    kinds = key[order]
    ends = [*(numpy.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist(), len(kinds)] if len(kinds) else []
    pieces: list[_Piece] = []
    limit, begin, leaves_out = max(max(q.rows, k.rows) * width // _PIECES, _LEAST), 0, False
    for end in ends:
        q_length, k_length = divmod(int(kinds[begin]), k.longest + 1)
        if q_length and k_length:
            numbers = max(q_length, k_length) * width
            step = max(limit // numbers, 1)
            for i in range(begin, end, step):
                some = order[i : min(i + step, end)]
                of_q = _rows_of(begins[0], some, q_length, q)
                of_k = of_q if k is q else _rows_of(begins[1], some, k_length, k)
                pieces.append(_Piece(len(some), of_q, of_k, min(max(heads * limit // numbers, 1), heads)))
        else:
            leaves_out = leaves_out or bool(q_length or k_length)
        begin = end
    return pieces, leaves_out


def _rows_of(begins: Any, sequences: Any, length: int, owner: Offsets) -> _RowSpan:
    """Return the rows of some sequences of one length."""
    import numpy

    first, count = begins[sequences], len(sequences)
    if count == 1 or (first[1:] - first[:-1] == length).all():
        return _RowSpan(int(first[0]), count * length, None)
    rows = (first[:, None] + numpy.arange(length)).reshape(-1)
    return _RowSpan(int(first[0]), count * length, on_device(torch.from_numpy(rows), owner.last.device))  # pyright: ignore[reportUnknownMemberType]


def _piece_rows(X: Tensor, rows: _RowSpan) -> Tensor:
    if rows.picked is not None:
        return X.index_select(0, rows.picked)
    return X if rows.height == X.shape[0] else X[rows.begin : rows.begin + rows.height]


def _parts(X: Tensor, piece: _Piece, heads: int) -> tuple[Tensor, ...]:
    """Return ``[rows, width]`` of a piece as ``[sequences, heads, length, width / heads]``, some heads at a time, without a copy."""
    viewed: Any = X.view(piece.sequences, X.shape[0] // piece.sequences, heads, -1).transpose(1, 2)
    return (viewed,) if piece.heads == heads else viewed.split(piece.heads, 1)


def _by_row(results: Tensor, height: int) -> Tensor:
    """Return ``[sequences, heads, length, width / heads]`` as ``[rows, width]``."""
    return results.transpose(1, 2).reshape(height, -1)


def _put(into: Tensor, rows: _RowSpan, piece: _Piece, heads: int, first: int, results: Tensor) -> None:
    """Write ``[sequences, heads, length, width / heads]`` of a piece into its rows, from head ``first`` on."""
    end = rows.begin + rows.height
    if rows.picked is not None:
        into.index_copy_(0, rows.picked, _by_row(results, rows.height))
    elif piece.heads == heads:
        into[rows.begin : end] = _by_row(results, rows.height)
    else:
        place = into[rows.begin : end].view(piece.sequences, rows.height // piece.sequences, heads, -1)
        place[:, :, first : first + results.shape[1]] = results.transpose(1, 2)


def _new(X: Tensor, columns: int, dtype: Any, plan: _AttentionPieces, sequences: Offsets) -> Tensor:
    """Return memory for the pieces' results for each row of ``X``; zeros if they leave some out."""
    make = torch.zeros if plan.leaves_out or sequences.rows < X.shape[0] else torch.empty
    return make(X.shape[0], columns, dtype=dtype, device=X.device)


def _straight(X: Tensor) -> Tensor:
    """Return ``X``, copied if the elements of a row are not contiguous."""
    return X if X.stride(-1) == 1 else X.contiguous()


def _check_bias(Bias: Tensor | None, offsets: list[Offsets]) -> None:
    """Require an entry of ``Bias`` for each row of the longest sequences."""
    for axis, slot in ((1, "Q"), (2, "K")):
        if Bias is not None and offsets[axis - 1].rows and Bias.shape[axis] < offsets[axis - 1].longest:
            required = f"sequence_attention: dim {axis} of Bias must be at least the longest sequence of {slot}"
            raise ExecutionError(f"{required}, {offsets[axis - 1].longest}; seen {Bias.shape[axis]}")


def _mask(Bias: Tensor | None, q: Tensor, k: Tensor, first: int) -> Tensor | None:
    """Return the part of ``Bias`` for the heads from ``first`` on, ``[sequences, heads, length, key length]``, without a copy."""
    if Bias is None:
        return None
    part = (Bias if Bias.shape[0] == 1 else Bias[first : first + q.shape[1]])[:, : q.shape[2], : k.shape[2]]
    return part.expand(q.shape[0], q.shape[1], -1, -1)


def _add_score_gradients(into: Tensor, operands: tuple[Tensor, ...], mask: Tensor | None, causal: bool, scale: float) -> None:
    """Add the gradients of scores, summed over sequences, and over heads where ``into`` has one entry: some sequences and heads at a time."""
    sequences, heads, length, _ = operands[1].shape
    area = length * operands[2].shape[2]
    step = min(max(_LEAST // max(area, 1), 1), heads)
    some = max(_LEAST // max(area * step, 1), 1)
    for head in range(0, heads, step):
        target = into if into.shape[0] == 1 else into[head : head + step]
        for i in range(0, sequences, some):
            d, q, k, v, out, sums = (x[i : i + some, head : head + step] for x in operands)
            moved = flash.score_gradient(d, q, k, v, out, sums, None if mask is None else mask[i : i + some, head : head + step], causal, scale)
            target.add_(moved.sum((0, 1)) if into.shape[0] == 1 else moved.sum(0))
            del moved


def rows_at_once(Q: Spec) -> Size:
    """Return the number of rows of scores a thread makes at once: the longer a sequence of Q, the more."""
    rows = Q.known_dims[0]
    return minimum(rows, 32 + 32 * reaches(rows, 192) + 192 * reaches(rows, 768))


class SequenceAttention(Operator):
    """Out = softmax(Q K^T * scale) V within each innermost sequence, for each of ``heads`` equal parts of the columns (Vaswani et al., 2017). Sequence i of Q
    attends to sequence i of K and V; a row of Q with an empty sequence of K gives zeros.

    With ``causal``, row j of a sequence of Q sees rows 0..j of the sequence of K. Bias[head, i, j] is added to the scaled score of row i of a sequence of Q
    and row j of its sequence of K; -inf hides the row of K, and each row of Q must see one at least. LogSumExp = log(sum(exp(Q K^T * scale + Bias))), for
    the gradient.
    """

    type = "sequence_attention"
    examples = ("Q", "K", "V")
    since = OWN
    Q = operand(FLOATING, doc="ragged, [rows, width]")
    K = operand(FLOATING, same_type_as="Q", doc="ragged, [key rows, width], as many sequences as Q")
    V = operand(FLOATING, same_type_as="Q", doc="as K")
    Bias = operand(
        FLOATING, optional=True, same_type_as="Q", doc="[1 or heads, at least the longest sequence of Q, at least the longest of K]; the same for all sequences"
    )
    Out = result(doc="as Q")
    LogSumExp = result(doc="[rows, heads], fp64 for fp64, otherwise fp32")
    heads = attribute(AttrType.INT, 1, low=1, doc="divides width")
    causal = attribute(AttrType.BOOLEAN, False)
    scale = attribute(AttrType.FLOAT, 0.0, doc="0: one over the root of width / heads")

    def infer_shape(self, Q: Spec, K: Spec, V: Spec, Bias: Spec | None) -> tuple[Spec, Spec]:
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
        if Bias is not None:
            require_rank(3, Bias, "Bias")
            entries = Bias.known_dims[0]
            allowed = 1 + (self.heads - 1) * reaches(entries, self.heads)
            require_equal(allowed, entries, f"Bias must have one entry, or one for each of {self.heads} heads", Bias=0)
        return Q.like(), rows(FP64 if Q.dtype is FP64 else FP32, (Q.known_dims[0], self.heads), lod)

    def computes(self) -> sequence_computations.AttentionInSequences:
        return sequence_computations.AttentionInSequences(self.heads, self.causal, self.scale)

    def work(self, Q: Spec, K: Spec, V: Spec, Bias: Spec | None) -> Size:
        sequences = ragged(K, "K").counts[-1]  # as if all were of one length
        return 2 * Q.elements * (K.known_dims[0] // sequences) if isinstance(sequences, int) and sequences else 2 * Q.elements

    def _scale_of(self, Q: Tensor) -> float:
        return self.scale or 1 / math.sqrt(Q.shape[1] // self.heads)

    def kernel(
        self, Q: Tensor, K: Tensor, V: Tensor, Bias: Tensor | None, *, offsets: list[Offsets], requested: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor | None]:
        same_offsets(offsets[1], offsets[2], "sequence_attention: K and V must have the same sequences")
        _check_bias(Bias, offsets)
        q, k, v = _straight(Q), _straight(K), _straight(V)
        scale = self._scale_of(Q)
        if ragged_flash.fits(Q, self.heads, offsets, Bias):
            return ragged_flash.forward(q, k, v, self.heads, offsets, self.causal, scale)
        plan = _plan(offsets[0], offsets[1], Q.shape[1], self.heads)
        single = plan.whole
        if single is not None and single.q.height == Q.shape[0]:  # the kernel's results are these: nothing is copied
            query, key, value = (_parts(_piece_rows(x, span), single, self.heads)[0] for x, span in ((q, single.q), (k, single.k), (v, single.k)))
            results, total = flash.forward(query, key, value, _mask(Bias, query, key, 0), self.causal, scale)
            return _by_row(results, Q.shape[0]), _by_row(total.unsqueeze(-1), Q.shape[0]) if requested[1] else None
        out = _new(Q, Q.shape[1], Q.dtype, plan, offsets[0])
        sums = _new(Q, self.heads, torch.float64 if Q.dtype is torch.float64 else torch.float32, plan, offsets[0])
        for piece in plan.pieces:
            first = 0
            operands = (_piece_rows(q, piece.q), _piece_rows(k, piece.k), _piece_rows(v, piece.k))
            for parts in zip(*(_parts(x, piece, self.heads) for x in operands), strict=True):
                results, total = flash.forward(parts[0], parts[1], parts[2], _mask(Bias, parts[0], parts[1], first), self.causal, scale)
                _put(out, piece.q, piece, self.heads, first, results)
                _put(sums, piece.q, piece, self.heads, first, total.unsqueeze(-1))
                first += piece.heads
                del parts, results, total  # or they would be there beside the next
            del operands
        return out, sums

    def workspace(self, Q: Spec, K: Spec, V: Spec, Bias: Spec | None, *, strided: frozenset[str]) -> Size:
        pieces, piece_size, tables = self._sizes(Q, K)
        item = Q.known_dtype.itemsize
        buffer = onednn.thread_count() * rows_at_once(Q) * (minimum(K.known_dims[0], 512) + 2 + Q.known_dims[1] // self.heads)
        sums = 2 * Q.known_dims[0] * 8
        return maximum(4 * pieces, piece_size) * item + buffer * maximum(item, 4) + sums + tables + copies(strided, Q=Q, K=K, V=V)

    def _sizes(self, Q: Spec, K: Spec) -> tuple[Size, Size, Size]:
        """Return the elements of several sequences at most, and of one with the heads taken at once; and the bytes of tables."""
        rows, keys = Q.known_dims[0], K.known_dims[0]
        count = Q.lod.counts[-1] if Q.lod is not None else rows
        every = maximum(rows, keys) * Q.known_dims[1]
        several = minimum(every, maximum(every // _PIECES, _LEAST))
        return several, maximum(several, ceildiv(every, self.heads)), 24 * (rows + keys) + 64 * count

    def _infer_gradient(self, Q: Spec, K: Spec, V: Spec, Bias: Spec | None, Out: Spec, LogSumExp: Spec, d_out: Spec) -> tuple[Spec, Spec, Spec, Spec | None]:
        out, sums = SequenceAttention.infer_shape(self, Q, K, V, Bias)
        check_made(Out=(Out, out), LogSumExp=(LogSumExp, sums), Out_GRAD=(d_out, out))
        return Q.like(), K.like(), V.like(), None if Bias is None else Bias.like()

    def _gradient_workspace(
        self, Q: Spec, K: Spec, V: Spec, Bias: Spec | None, Out: Spec, LogSumExp: Spec, d_out: Spec, *, requested: tuple[bool, ...], strided: frozenset[str]
    ) -> Size:
        pieces, piece_size, tables = self._sizes(Q, K)
        item = Q.known_dtype.itemsize
        buffer = onednn.thread_count() * rows_at_once(Q) * (2 * minimum(K.known_dims[0], 512) + 1)
        copied = copies(strided, Q=Q, K=K, V=V, Out=Out, LogSumExp=LogSumExp, Out_GRAD=d_out)
        copy = 1 if self.heads > 1 else 0  # torch's kernel makes the gradient of some heads contiguous
        scores: Size = 0
        if Bias is not None and requested[3]:
            scores = (4 * maximum(Bias.known_dims[1] * Bias.known_dims[2], _LEAST) + 4 * maximum(pieces, piece_size)) * maximum(item, 4)
        return maximum((8 + copy) * pieces, (3 + copy) * piece_size) * item + buffer * maximum(item, 4) + LogSumExp.nbytes + tables + copied + scores

    @gradient(
        "Q",
        "K",
        "V",
        "Bias",
        "Out",
        "LogSumExp",
        "Out@GRAD",
        gives=("Q@GRAD", "K@GRAD", "V@GRAD", "Bias@GRAD"),
        infer=_infer_gradient,
        workspace=_gradient_workspace,
    )
    def backward(
        self,
        Q: Tensor,
        K: Tensor,
        V: Tensor,
        Bias: Tensor | None,
        Out: Tensor,
        LogSumExp: Tensor,
        d_out: Tensor,
        *,
        offsets: list[Any],
        requested: tuple[bool, ...],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        _check_bias(Bias, offsets)
        if ragged_flash.fits(Q, self.heads, offsets, Bias):
            d, q, k, v, out, sums = (_straight(x) for x in (d_out, Q, K, V, Out, LogSumExp))
            d_q, d_k, d_v = ragged_flash.backward(d, q, k, v, out, sums, self.heads, offsets, self.causal, self._scale_of(Q))
            return d_q, d_k, d_v, None
        plan = _plan(offsets[0], offsets[1], Q.shape[1], self.heads)
        of_q, of_k = [_straight(x) for x in (d_out, Q, Out, LogSumExp)], [_straight(x) for x in (K, V)]
        d_q, d_k, d_v = (_new(x, x.shape[1], x.dtype, plan, o) for x, o in zip((Q, K, V), offsets, strict=False))
        d_bias = torch.zeros(Bias.shape, dtype=Bias.dtype, device=Bias.device) if Bias is not None and requested[3] else None
        scale = self._scale_of(Q)
        for piece in plan.pieces:
            first = 0
            operands = [_piece_rows(x, piece.q) for x in of_q] + [_piece_rows(x, piece.k) for x in of_k]
            for d, q, out, sums, k, v in zip(*(_parts(x, piece, self.heads) for x in operands), strict=True):
                mask = _mask(Bias, q, k, first)
                gradients = flash.backward(d, q, k, v, out, sums.squeeze(-1), mask, self.causal, scale)
                _put(d_q, piece.q, piece, self.heads, first, gradients[0])
                _put(d_k, piece.k, piece, self.heads, first, gradients[1])
                _put(d_v, piece.k, piece, self.heads, first, gradients[2])
                if d_bias is not None:
                    into = d_bias if d_bias.shape[0] == 1 else d_bias[first : first + q.shape[1]]
                    _add_score_gradients(into[:, : q.shape[2], : k.shape[2]], (d, q, k, v, out, sums.squeeze(-1)), mask, self.causal, scale)
                first += piece.heads
                del d, q, out, sums, k, v, gradients
            del operands
        return d_q, d_k, d_v, d_bias

    samples = [
        sample(Q=f32(9, 4).ragged([4, 0, 5]), K=f32(9, 4).ragged([4, 0, 5]), V=f32(9, 4).ragged([4, 0, 5])),
        sample(Q=f32(6, 4).ragged([2, 0, 1, 3]), K=f32(10, 4).ragged([5, 2, 0, 3]), V=f32(10, 4).ragged([5, 2, 0, 3]), heads=2, scale=0.3),
        sample(Q=f32(7, 6).ragged([2, 1], [3, 0, 4]), K=f32(7, 6).ragged([2, 1], [3, 0, 4]), V=f32(7, 6).ragged([2, 1], [3, 0, 4]), heads=3, causal=True),
        sample(Q=f32(6, 4).ragged([3, 3]), K=f32(4, 4).ragged([2, 2]), V=f32(4, 4).ragged([2, 2]), heads=2),
        sample(Q=f32(5, 6).ragged([5]), K=f32(5, 6).ragged([5]), V=f32(5, 6).ragged([5]), heads=3, causal=True),
        sample(Q=f32(8, 2).ragged([3, 2, 3]), K=f32(8, 2).ragged([2, 4, 2]), V=f32(8, 2).ragged([2, 4, 2]), causal=True),
        sample(Q=f32(0, 2).ragged([]), K=f32(0, 2).ragged([]), V=f32(0, 2).ragged([])),
        sample(Q=f32(6, 4).ragged([2, 0, 1, 3]), K=f32(10, 4).ragged([5, 2, 0, 3]), V=f32(10, 4).ragged([5, 2, 0, 3]), Bias=f32(2, 4, 7), heads=2),
        sample(Q=f32(5, 6).ragged([5]), K=f32(5, 6).ragged([5]), V=f32(5, 6).ragged([5]), Bias=f32(1, 5, 6), heads=3, causal=True),
        sample(Q=f32(8, 4).ragged([3, 2, 3]), K=f32(8, 4).ragged([3, 2, 3]), V=f32(8, 4).ragged([3, 2, 3]), Bias=f32(1, 3, 4), heads=2, scale=0.3),
        sample(Q=f32(0, 2).ragged([0, 0]), K=f32(3, 2).ragged([3, 0]), V=f32(3, 2).ragged([3, 0]), differentiate=False),
    ]
    rejects = [
        reject(Q=f32(4, 2).ragged([4]), K=f32(4, 2).ragged([4]), V=f32(4, 2), says="V must be ragged", error=TypeMismatchError),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 6).ragged([4]), V=f32(4, 6).ragged([4]), heads=4, says="heads must divide"),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 5).ragged([4]), V=f32(4, 6).ragged([4]), says="Q and K must have as many columns"),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 6).ragged([4]), V=f32(5, 6).ragged([5]), says="K and V must have as many rows"),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 6).ragged([1, 3]), V=f32(4, 6).ragged([1, 3]), says="Q and K must have as many sequences"),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 6).ragged([4]), V=f32(4, 6).ragged([4]), Bias=f32(4, 4), says="Bias must have 3 dims"),
        reject(Q=f32(4, 6).ragged([4]), K=f32(4, 6).ragged([4]), V=f32(4, 6).ragged([4]), Bias=f32(2, 4, 5), heads=3, says="one for each of 3 heads"),
        reject(Q=f32(4, 0).ragged([4]), K=f32(4, 0).ragged([4]), V=f32(4, 0).ragged([4]), says="Q must have columns"),
    ]
