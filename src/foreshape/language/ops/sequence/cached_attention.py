"""cached_positions and cached_attention: attention of new rows to the rows before them, kept from run to run."""

from __future__ import annotations

import math
from typing import Any

from foreshape.core.dims import Size, maximum, minimum
from foreshape.core.spec import FLOATING, INDEX, INT64, Spec
from foreshape.core.values.offsets import Offsets, as_list
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import NOT_WRITTEN, OWN, ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require, require_at_most, require_divides, require_equal, require_rank
from foreshape.language.operator.samples import Sample, f32, i64, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.ragged_rules import ragged
from foreshape.language.ops.sequence.sequence_attention import rows_at_once
from foreshape.machine.kernels import flash, onednn


class CachedPositions(Operator):
    """Out = for each row its number in its text: Held, the number of its rows in the cache, and then 0, 1, 2, ..."""

    type = "cached_positions"
    layer_function = "attention_cache"
    since = OWN
    X = operand(doc="ragged, [rows, ...]; its values are not read")
    Held = operand(INDEX, doc="[sequences]")
    Out = result(doc="int64, ragged [rows]")
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec, Held: Spec) -> Spec:
        lod = ragged(X, "X")
        require_rank(1, Held, "Held")
        require_equal(lod.counts[-1], Held.known_dims[0], "Held must have a number for each sequence of X", X=None, Held=0)
        return X.with_dims([X.known_dims[0]]).with_dtype(INT64)

    def kernel(self, X: Tensor, Held: Tensor, *, offsets: list[Offsets]) -> Tensor:
        sequences = offsets[0]
        cached = Held.to(torch.int64)
        return (
            cached.clone()
            if sequences.longest == 1 and sequences.rows == sequences.count
            else cached.repeat_interleave(sequences.lengths) + sequences.positions
        )

    samples = [
        sample(X=f32(6, 2).ragged([3, 1, 2]), Held=i64(3, data=[0, 4, 2])),
        sample(X=i64(3).ragged([1, 1, 1]), Held=i64(3, data=[7, 0, 1])),
        sample(X=f32(0, 2).ragged([]), Held=i64(0)),
    ]


def _texts(lengths: list[int], width: int, key_width: int, slots: list[int], cached: list[int], cache: tuple[int, int], **attributes: Any) -> Sample:
    """Return a sample of texts with so many new rows each, at places in caches of users and rows of context."""
    q, k, v = (f32(sum(lengths), columns).ragged(lengths) for columns in (width, key_width, key_width))
    places, rows, caches = i64(len(slots), data=slots), i64(len(cached), data=cached), (*cache, key_width)
    return sample(Q=q, K=k, V=v, Slots=places, Held=rows, KeyCache=f32(*caches), ValueCache=f32(*caches), **attributes)


class CachedAttention(Operator):
    """Out = softmax(Q K^T * scale) V for the new rows of some texts over all rows of each text: its rows in the caches, and the new ones up to
    this row (Vaswani et al., "Attention Is All You Need", 2017). The new rows are put into the caches first.

    Text i has the place Slots[i] in the caches, and Held[i] rows are there. The columns are equal heads; several heads of Q in a row share one of K and V
    where Q has more (Ainslie et al., "GQA", 2023).
    """

    type = "cached_attention"
    layer_function = "multi_head_attention"
    since = OWN
    Q = operand(FLOATING, doc="ragged, [rows, heads * size]")
    K = operand(FLOATING, same_type_as="Q", doc="ragged as Q, [rows, key heads * size]")
    V = operand(FLOATING, same_type_as="Q", doc="as K")
    Slots = operand(INDEX, doc="[sequences], all different")
    Held = operand(INDEX, doc="[sequences]")
    KeyCache = operand(FLOATING, same_type_as="Q", doc="[users, context, key heads * size]")
    ValueCache = operand(FLOATING, same_type_as="Q", doc="as KeyCache")
    Out = result(doc="as Q")
    KeyCacheOut = result(updates="KeyCache", doc="KeyCache with the new rows")
    ValueCacheOut = result(updates="ValueCache", doc="ValueCache with the new rows")
    heads = attribute(AttrType.INT, 1, low=1, doc="of Q")
    key_heads = attribute(AttrType.INT, 1, low=1, doc="of K and V; divides heads")
    scale = attribute(AttrType.FLOAT, 0.0, doc="0: one over the root of a head's columns")
    window = attribute(AttrType.INT, 0, low=0, doc="the rows looked at up to a row's own; 0: all")
    score_cap = attribute(AttrType.FLOAT, 0.0, low=0.0, doc="each score s becomes cap * tanh(s / cap); 0: as it is")
    gradient = NOT_WRITTEN

    def infer_shape(self, Q: Spec, K: Spec, V: Spec, Slots: Spec, Held: Spec, KeyCache: Spec, ValueCache: Spec) -> tuple[Spec, Spec, Spec]:
        for spec, slot in ((Q, "Q"), (K, "K"), (V, "V")):
            ragged(spec, slot)
            require_rank(2, spec, slot)
        for spec, slot in ((Slots, "Slots"), (Held, "Held")):
            require_rank(1, spec, slot)
        for spec, slot in ((KeyCache, "KeyCache"), (ValueCache, "ValueCache")):
            require_rank(3, spec, slot)
        rows, width = Q.known_dims
        require_at_most(1, width, "Q must have columns", Q=1)
        require_divides(self.heads, width, f"heads must divide the columns of Q, {width}; seen {self.heads}", Q=1)
        require(self.heads % self.key_heads == 0, f"key_heads must divide heads, {self.heads}; seen {self.key_heads}")
        columns = width // self.heads * self.key_heads
        for spec, slot in ((K, "K"), (V, "V")):
            require_equal(rows, spec.known_dims[0], f"Q and {slot} must have as many rows", **{"Q": 0, slot: 0})
            require_equal(columns, spec.known_dims[1], f"{slot} must have the columns of {self.key_heads} heads of Q", **{slot: 1})
        for spec, slot in ((Slots, "Slots"), (Held, "Held")):
            require_equal(ragged(Q, "Q").counts[-1], spec.known_dims[0], f"{slot} must have a number for each sequence of Q", Q=None, **{slot: 0})
        for spec, slot in ((KeyCache, "KeyCache"), (ValueCache, "ValueCache")):
            require_equal(columns, spec.known_dims[2], f"{slot} must have the columns of K", **{slot: 2})
            for axis, part in ((0, "users"), (1, "rows of context")):
                require_equal(KeyCache.known_dims[axis], spec.known_dims[axis], f"both caches must have as many {part}", KeyCache=axis, ValueCache=axis)
        return Q.like(), KeyCache, ValueCache

    def kernel(
        self, Q: Tensor, K: Tensor, V: Tensor, Slots: Tensor, Held: Tensor, KeyCache: Tensor, ValueCache: Tensor, *, offsets: list[Offsets]
    ) -> tuple[Tensor, Tensor, Tensor]:
        plan = _plan(offsets[0], Slots, Held, KeyCache, self.window)
        out = torch.empty(Q.shape, dtype=Q.dtype, device=Q.device) if offsets[0].rows == Q.shape[0] else torch.zeros(Q.shape, dtype=Q.dtype, device=Q.device)
        if not offsets[0].rows:
            return out, KeyCache, ValueCache
        plan.store(KeyCache, K)
        plan.store(ValueCache, V)
        size, group = Q.shape[1] // self.heads, self.heads // self.key_heads
        scale = self.scale or 1 / math.sqrt(size)
        queries, keys, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (Q, KeyCache, ValueCache))
        by_head = *keys.shape[:2], self.key_heads, size
        keys, values = keys.view(by_head).transpose(1, 2), values.view(by_head).transpose(1, 2)
        for piece in plan.pieces:
            span = slice(piece.slot, piece.slot + piece.texts)
            k, v = keys[span, :, piece.first : piece.seen], values[span, :, piece.first : piece.seen]
            parts = piece.texts, piece.rows, self.key_heads, group, size
            q, into = (x[piece.begin : piece.begin + piece.texts * piece.rows].view(parts) for x in (queries, out))
            if piece.rows == 1:  # the heads that share keys are rows of one product
                into[:, 0].copy_(self._mixed(q[:, 0], k, v, piece, scale))
                continue
            for head in range(group):
                into[:, :, :, head].copy_(self._mixed(q[:, :, :, head].transpose(1, 2), k, v, piece, scale).transpose(1, 2))
        return out, KeyCache, ValueCache

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, piece: _CachedPiece, scale: float) -> Tensor:
        """Return the values mixed for heads ``[texts, heads, rows, size]``."""
        mask, causal = piece.mask(q), piece.causal
        if self.score_cap:
            return flash.capped(q, k, v, mask, causal, scale, self.score_cap)
        return flash.forward(q, k, v, mask, causal, scale)[0]

    def workspace(self, Q: Spec, K: Spec, V: Spec, Slots: Spec, Held: Spec, KeyCache: Spec, ValueCache: Spec, *, strided: frozenset[str]) -> Size:
        rows, width = Q.known_dims
        size, context = width // self.heads, KeyCache.known_dims[1]
        item = maximum(Q.known_dtype.itemsize, 4)
        buffer = onednn.thread_count() * rows_at_once(Q) * (minimum(context, 512) + 2 + size) * item
        mask = rows * context * (Q.known_dtype.itemsize + 1)
        if self.score_cap:
            buffer = buffer + rows * self.heads * context * item * 2
        return Q.nbytes + rows * self.heads * 8 + buffer + mask + 24 * rows + copies(strided, Q=Q, K=K, V=V, KeyCache=KeyCache, ValueCache=ValueCache)

    samples = [
        _texts([3, 2], 4, 4, [2, 0], [0, 0], (3, 6), heads=2, key_heads=2),
        _texts([1, 3, 1], 12, 6, [1, 3, 0], [4, 2, 0], (4, 7), heads=4, key_heads=2, scale=0.4),
        _texts([1, 1], 8, 2, [0, 1], [3, 0], (3, 5), heads=4, key_heads=1),
        _texts([1, 4, 1], 4, 4, [0, 2, 1], [5, 1, 3], (3, 6), heads=2, key_heads=2, window=3, score_cap=0.5),
    ]


class _CachedPiece:
    """Texts at places in a row, with the same number of new rows each.

    ``slot``, ``texts``: the places. ``begin``, ``rows``: the first new row, and each text's number of them. ``seen``: the rows of the caches looked
    at, from ``first``. ``held``: the rows before the new ones, if they are masked for each text; None where ``causal`` or nothing says it all.
    """

    __slots__ = ("_mask", "begin", "causal", "first", "held", "rows", "seen", "slot", "texts", "window")

    def __init__(self, slot: int, begin: int, rows: int, cached: list[int], window: int) -> None:
        self.slot, self.begin, self.rows, self.texts, self.window = slot, begin, rows, len(cached), window
        self.seen = max(cached) + rows
        self.first = max(min(cached) - window + 1, 0) if window else 0
        self.causal = rows > 1 and self.seen == rows and not 0 < window < rows
        self.held = cached if (rows > 1 and not self.causal) or min(cached) + rows < self.seen else None
        self._mask: Tensor | None = None

    def mask(self, like: Tensor) -> Tensor | None:
        """Return the mask of the rows after each new row and before its window, ``[texts, 1, rows, looked at]``; the same for all layers."""
        if self.held is not None and self._mask is None:
            last = torch.tensor(self.held, device=like.device).view(-1, 1, 1, 1) + torch.arange(self.rows, device=like.device).view(-1, 1)
            looked_at = torch.arange(self.first, self.seen, device=like.device)
            hidden = looked_at > last
            if self.window:
                hidden |= looked_at <= last - self.window
            self._mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)
        return self._mask


class _CachePlan:
    """The way of one run through the caches, made by the first layer and used by all with its window.

    ``asked``: its case. ``places``: the row of the caches for each new row, int64.
    """

    __slots__ = ("asked", "context", "pieces", "places")

    def __init__(self, request: Any, sequences: Offsets, slots: list[int], cached: list[int], context: int, columns: int, window: int) -> None:
        self.asked, self.context = request, context
        firsts = torch.tensor([s * context + h for s, h in zip(slots, cached, strict=True)], dtype=torch.int64, device=sequences.last.device)
        lengths = sequences.host_lengths
        one_each = bool(lengths) and min(lengths) == 1 == max(lengths)
        self.places = firsts if one_each else firsts.repeat_interleave(sequences.lengths) + sequences.positions
        self.pieces = [_CachedPiece(*piece, window) for piece in _side_by_side(slots, sequences.host, lengths, cached, columns)]

    def store(self, cache: Tensor, new: Tensor) -> None:
        """Put the new rows into a cache."""
        new = new[: len(self.places)]
        if cache.is_contiguous():
            cache.view(-1, cache.shape[2]).index_copy_(0, self.places, new)
        else:
            cache.index_put_((self.places // self.context, self.places % self.context), new)


_NUMBERS_OF_A_CALL = 1 << 17
"""The numbers of keys and values looked at in about the time of a call of its own."""


def _side_by_side(slots: list[int], begins: list[int], lengths: list[int], cached: list[int], columns: int) -> list[tuple[int, int, int, list[int]]]:
    """Return the texts computed together, as (place, first row, rows of each, held of each).

    They are at places in a row. Texts with one new row each are joined where looking at the rows up to the longest one's takes less than a call.
    """
    out: list[tuple[int, int, int, list[int]]] = []
    largest = 0
    for slot, begin, rows, cached_rows in zip(slots, begins, lengths, cached, strict=False):
        if not rows:
            continue
        if out and slot == out[-1][0] + len(out[-1][3]) and rows == out[-1][2]:
            together = out[-1][3]
            padding = largest - cached_rows if cached_rows <= largest else (cached_rows - largest) * len(together)
            if padding * 2 * columns <= _NUMBERS_OF_A_CALL if rows == 1 else cached_rows == largest:
                together.append(cached_rows)
                largest = max(largest, cached_rows)
                continue
        out.append((slot, begin, rows, [cached_rows]))
        largest = cached_rows
    return out


def _plan(sequences: Offsets, slots: Tensor, cached: Tensor, cache: Tensor, window: int) -> _CachePlan:
    request = as_list(slots), as_list(cached), cache.shape
    plans = sequences.kept(("cached attention", window), lambda: [_new_plan(sequences, *request, window)])
    if plans[0].asked != request:
        plans[0] = _new_plan(sequences, *request, window)
    return plans[0]


def _new_plan(sequences: Offsets, slots: list[int], cached: list[int], cache: Any, window: int) -> _CachePlan:
    users, context, columns = cache
    _check(slots, cached, sequences.host_lengths, users, context)
    return _CachePlan((slots, cached, cache), sequences, slots, cached, context, columns, window)


def _check(slots: list[int], cached: list[int], lengths: list[int], users: int, context: int) -> None:
    """Refuse places outside of the caches, before anything is written.

    Raises:
        ExecutionError: a place out of range or taken twice, or a text longer than its part of the cache.
    """
    for slot, cached_rows, new in zip(slots, cached, lengths, strict=True):
        if not 0 <= slot < users:
            raise ExecutionError.must("cached_attention: a place in the cache", f"in [0, {users})", slot)
        if not 0 <= cached_rows <= context - new:
            raise ExecutionError(
                f"cached_attention: the cache has {context} rows for a text; {cached_rows} are held of the text at place {slot}, and {new} come"
            )
    if len(set(slots)) != len(slots):
        raise ExecutionError(f"cached_attention: two texts have one place in the cache; seen {slots[:20]}")
