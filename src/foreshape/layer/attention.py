"""Attention: several heads over queries and keys, dense with masks or ragged without padding."""

from __future__ import annotations

import math
from typing import Any

from foreshape.core.constructor_repr import ConstructorRepr
from foreshape.core.dims import equal
from foreshape.core.spec import BOOL, FP16, DType
from foreshape.errors import SchemaError, ShapeError, TypeMismatchError
from foreshape.language.operator.computations import Activation, Filled, Triangle
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.scopes import name_scope
from foreshape.language.program.variable import Variable
from foreshape.layer.basic import fc
from foreshape.layer.cached_rows import AttentionCache
from foreshape.layer.creation import fill_constant
from foreshape.layer.functions import softmax, tanh
from foreshape.layer.manipulation import reshape, stack, transpose, tril, triu, unsqueeze
from foreshape.layer.math import cast, clip, scale
from foreshape.layer.normalization import dropout as drop
from foreshape.layer.normalization import rms_norm
from foreshape.layer.parameter import part_of
from foreshape.layer.positions import Rotary, rotary_positions, size_of
from foreshape.layer.reductions import matmul
from foreshape.layer.sequence_rows import sequence_attention


class QueryNorm(ConstructorRepr):
    """The settings of `rms_norm` of queries and keys, for ``query_norm=`` of attention (Henry et al., "Query-Key Normalization", 2020).

    Args:
        epsilon: of `rms_norm`.
        by_head: each head's columns alone, with one weight for all heads; otherwise all columns of a row.
    """

    __slots__ = ("by_head", "epsilon")

    def __init__(self, epsilon: float = 1e-6, by_head: bool = True) -> None:
        self.epsilon, self.by_head = float(epsilon), bool(by_head)

    def normalized(self, x: Variable, size: int, name: str) -> Variable:
        """Return ``x``, ``[..., heads * size]``, normalized; the parameter ``weight`` is in the scope ``name``."""
        if not self.by_head:
            return rms_norm(x, self.epsilon, name=name)
        *lead, columns = [0, *x.spec.known_dims[1:]] if x.spec.rank == 2 else [0, 0, x.spec.known_dims[-1]]
        by_head = reshape(x, [*lead, columns // size, size])
        return reshape(rms_norm(by_head, self.epsilon, name=name), [*lead, columns])


@tells_line
def multi_head_attention(
    query: Variable, key: Variable | None = None, value: Variable | None = None, heads: int = 8, *, causal: bool = False, mask: Variable | None = None,
    rotary: bool | Rotary = False, dropout: float = 0.0, is_test: bool = False, output_size: int | None = None, bias: Any = None, weight: Any = None,
    split: bool = False, name: str = "attention", key_heads: int | None = None, head_size: int | None = None, cache: AttentionCache | None = None,
    window: int | None = None, query_norm: QueryNorm | None = None, score_cap: float | None = None,
) -> Variable:  # fmt: skip
    """Compute attention of several heads (Vaswani et al., "Attention Is All You Need", 2017, section 3.2).

    Each head is softmax(Q K' / sqrt(width / heads) + mask) V, where Q, K and V are its columns of ``query``, ``key`` and ``value`` times their weights;
    a product with a fourth weight joins the heads. A step runs scores, softmax and mixing as one kernel each way.

    Examples:
        >>> x = layer.data("x", ["batch", "time", 512])
        >>> y = layer.multi_head_attention(x, heads=8, causal=True)                    # [batch, time, 512]
        >>> z = layer.multi_head_attention(y, memory, heads=8, mask=layer.data("is_word", ["batch", "words"], "bool"))

    Args:
        query: dense ``[batch, time, width]``, or ragged ``[rows, width]``: each sequence attends to its own rows, without padding.
        key: the rows to attend to: dense ``[batch, keys, any width]``, or ragged with as many sequences as ``query``; by default ``query``.
        value: the mixed values, with the rows of ``key``; by default ``key``.
        heads: their number; it divides the width.
        causal: row j of a sequence sees rows 0 to j of the keys only.
        mask: of dense input, the visible keys, as for `attention_mask`.
        rotary: turn queries and keys by their positions, as `rotary_positions` does; a `Rotary` has settings.
        dropout: of the weights, in training; of dense input only. The dropped ones are drawn all at once, and kept as a byte each.
        is_test: no dropout.
        output_size: the output columns; by default the width.
        weight, bias: an initializer, a name or a `ParamAttr` for the four weights and for the four biases; with a name ``shared`` they are
            ``shared.query``, ``shared.key``, ``shared.value`` and ``shared.output``, and parameters of one name are shared. ``bias=False`` leaves
            the biases out.
        split: divide the heads over ranks, as `foreshape.split_layers` does; with ``rotary`` the ranks gather queries and keys before they turn them.
        name: of the scope of the parameters ``query.weight``, ``query.bias``, ``key.weight``, ..., ``output.bias``.
        key_heads: the heads of keys and values, each shared by several heads of queries in a row (Ainslie et al., "GQA", 2023); by default as many.
        head_size: the columns of a head; by default the width divided by the heads.
        cache: of ragged rows: they are attended to in later runs too; each row sees the rows before it.
        window: row j sees no key before j - window + 1 (Beltagy et al., "Longformer", 2020); of dense input, or with a cache.
        query_norm: normalizes queries and keys before they are turned.
        score_cap: each score s becomes cap * tanh(s / cap) (Gemma Team, "Gemma 2", 2024); of dense input, or with a cache.

    Returns:
        ``[batch, time, output_size]``, or ragged rows as ``query``.

    Raises:
        ShapeError: other dims, or heads that do not divide the width. TypeMismatchError: ragged and dense input together.
        SchemaError: a mask or dropout of ragged rows, a window or a cap of ragged rows without a cache, or the name of a parameter of another shape.
    """
    key = query if key is None else key
    value = key if value is None else value
    width = _width(query, heads) if head_size is None else heads * head_size
    of_keys = heads if key_heads is None else key_heads
    if of_keys < 1 or heads % of_keys:
        raise SchemaError.must(f"multi_head_attention({query.name}): key_heads", f"a divisor of the heads, {heads}", of_keys)
    size, settings = width // heads, rotary if isinstance(rotary, Rotary) else Rotary() if rotary else None
    ragged = query.spec.lod is not None
    for role, x in (("key", key), ("value", value)):
        if (x.spec.lod is not None) != ragged:
            raise TypeMismatchError(
                f"multi_head_attention: query and {role} must both be ragged, or both dense; query is {query.spec.text()}, {role} is {x.spec.text()}"
            )
        if x.spec.rank != query.spec.rank:
            raise ShapeError(f"multi_head_attention: {role} must have {query.spec.rank} dims, as query; it is {x.spec.text()}")
    if ragged and (mask is not None or dropout):
        argument = "a mask" if mask is not None else f"dropout {dropout}"
        raise SchemaError(f"multi_head_attention({query.name}): ragged rows have no padding to mask, and one kernel without dropout; seen {argument}")
    if cache is not None and (not ragged or key is not query):
        raise SchemaError(f"multi_head_attention({query.name}): a cache is for ragged rows that attend to themselves; query is {query.spec.text()}")
    if window is not None and window < 1:
        raise SchemaError.must(f"multi_head_attention({query.name}): window", "at least 1", window)
    if score_cap is not None and score_cap <= 0:
        raise SchemaError.must(f"multi_head_attention({query.name}): score_cap", "more than 0", score_cap)
    if ragged and cache is None and (window is not None or score_cap is not None):
        raise SchemaError(f"multi_head_attention({query.name}): a window and a cap are for dense input, or for ragged rows with a cache")
    rows = query.spec.rank - 1

    def projected(x: Variable, size: int, called: str, direction: str) -> Variable:
        w, b = part_of(weight, called), part_of(bias, called)
        return fc(x, size, flatten_last=x.spec.rank - rows, weight=w, bias=b, name=called, split=direction if split else None)

    with name_scope(name):
        q = projected(query, width, "query", "columns")
        k, v = (projected(x, of_keys * size, called, "columns") for x, called in ((key, "key"), (value, "value")))
        if query_norm is not None:
            q, k = query_norm.normalized(q, size, "query_norm"), query_norm.normalized(k, size, "key_norm")
        if ragged:
            if settings is not None:
                q, k = (rotary_positions(x, n, *settings.key[:2], rates=settings.rates, cache=cache) for x, n in ((q, heads), (k, of_keys)))
            if cache is not None:
                mixed = cache.attend(q, k, v, heads, of_keys, window=window, score_cap=score_cap)
            else:
                mixed = sequence_attention(q, shared_heads(k, of_keys, size, heads), shared_heads(v, of_keys, size, heads), heads, causal)
        else:
            added = attention_mask(query, key, mask, causal, window)
            mixed = _dense(q, k, v, heads, of_keys, size, added, settings, dropout, is_test, score_cap)
        return projected(mixed, _width(query, 1) if output_size is None else output_size, "output", "rows")


def shared_heads(x: Variable, of_keys: int, size: int, heads: int) -> Variable:
    """Return ``[..., key heads * size]`` with each head as often as heads share it, ``[..., heads * size]``."""
    if of_keys == heads:
        return x
    lead = list(x.spec.known_dims[:-1])
    return reshape(stack([reshape(x, [*lead, of_keys, size])] * (heads // of_keys), -2), [*lead, heads * size])


def _width(query: Variable, heads: int) -> int:
    spec = query.spec
    rank = 3 if spec.lod is None else 2
    width = spec.known_dims[-1] if spec.rank == rank else None
    if not isinstance(width, int):
        raise ShapeError(
            f"multi_head_attention({query.name}): query must be [batch, time, width] or ragged [rows, width], of a known width; it is {spec.text()}"
        )
    if heads < 1 or width < 1 or width % heads:
        raise ShapeError(f"multi_head_attention({query.name}): heads must divide the width {width}; seen {heads}")
    return width


def _dense(
    q: Variable,
    k: Variable,
    v: Variable,
    heads: int,
    of_keys: int,
    size: int,
    mask: Variable | None,
    rotary: Rotary | None,
    dropout: float,
    is_test: bool,
    score_cap: float | None,
) -> Variable:
    def by_head(x: Variable, count: int, rotates: bool) -> Variable:
        parts = reshape(x, [0, 0, count, size])
        if rotates and rotary is not None:
            parts = rotary_positions(parts, None, *rotary.key[:2], rates=rotary.rates)
        if count != heads:
            parts = reshape(shared_heads(reshape(parts, [0, 0, count * size]), count, size, heads), [0, 0, heads, size])
        return transpose(parts, [0, 2, 1, 3])

    q, k, v = by_head(q, heads, True), by_head(k, of_keys, True), by_head(v, of_keys, False)
    scores = matmul(q * size**-0.5, k, transpose_y=True)
    if score_cap is not None:
        scores = tanh(scores * (1.0 / score_cap)) * score_cap
    weights = softmax(scores if mask is None else scores + mask)
    if dropout:
        weights = drop(weights, dropout, is_test)
    return reshape(transpose(matmul(weights, v), [0, 2, 1, 3]), [0, 0, heads * size])


@tells_line
def attention_mask(
    query: Variable, key: Variable | None = None, mask: Variable | None = None, causal: bool = False, window: int | None = None
) -> Variable | None:
    """Return the mask added to the scores of attention: 0 for visible keys, and a number far below 0 elsewhere. One mask serves many layers.

    A query without a visible key attends to all keys alike.

    Examples:
        >>> mask = layer.attention_mask(x, mask=layer.data("is_word", ["batch", "words"], "bool"), causal=True)
        >>> h = layer.multi_head_attention(layer.multi_head_attention(x, mask=mask), mask=mask)

    Args:
        query: dense ``[batch, time, ...]``.
        key: dense ``[batch, keys, ...]``; by default ``query``.
        mask: bool or integer, with True (1) for visible keys; or floating-point, added as it is, but at least -1e9 (fp16: -6e4). ``[batch, keys]`` for
            all queries and heads, ``[batch, time, keys]`` for all heads, or ``[batch, heads, time, keys]``; 1 in place of a size stands for all.
        causal: query j sees keys 0 to j only.
        window: query j sees no key before j - window + 1.

    Returns:
        Of 4 dims and the element type of ``query``; None if nothing is hidden.

    Raises:
        ShapeError: a mask of other dims.
    """
    dtype = query.spec.known_dtype
    added = None if mask is None else _added(mask, query)
    if causal or window is not None:
        far = fill_constant([1, 1, size_of(query, 1), size_of(query if key is None else key, 1)], dtype, _far(dtype))
        for hidden in ([triu(far, 1)] if causal else []) + ([] if window is None else [tril(far, -window)]):
            added = hidden if added is None else added + hidden
    return added


def _added(mask: Variable, query: Variable) -> Variable:
    spec, dtype, dims = mask.spec, query.spec.known_dtype, query.spec.known_dims
    if spec.lod is not None or spec.rank not in (2, 3, 4):
        raise ShapeError(f"attention_mask({mask.name}): a mask must be [batch, keys], [batch, time, keys] or [batch, heads, time, keys]; it is {spec.text()}")
    if spec.rank == 2 and spec.known_dims[0] not in (1, dims[0]) and equal(spec.known_dims[0], dims[1]):
        raise ShapeError(
            f"attention_mask({mask.name}): a mask of 2 dims is [batch, keys], and this one is {spec.text()}, as [time, keys]; say layer.unsqueeze(mask, [0])"
        )
    if spec.rank < 4:
        mask = unsqueeze(mask, [1, 2] if spec.rank == 2 else [1])
    if spec.dtype is BOOL or not spec.known_dtype.is_floating:
        return scale(cast(mask, dtype), -_far(dtype), -1.0, bias_after_scale=False)
    if not _is_bounded(mask):  # a row of -inf alone would have no softmax
        mask = clip(mask, _far(dtype), -_far(dtype))
    return mask if spec.dtype is dtype else cast(mask, dtype)


def _is_bounded(mask: Variable) -> bool:
    """Tell whether a mask is trained, or as from `attention_mask`, and so never -inf."""
    op = mask.op
    if op is None or not mask.spec.known_dtype.is_floating:
        return mask.is_parameter or not mask.spec.known_dtype.is_floating
    if filled := op.computes(Filled):
        return filled.number is not None and math.isfinite(filled.number)
    activation, linear = op.computes(Activation), op.operator.linear if op.operator is not None else ()
    cut_off = op.computes(Triangle) is not None or (activation is not None and activation.name == "hardtanh")
    linear_alone = bool(linear) and {slot for slot, names in op.inputs.items() if names} <= {*linear}
    return (cut_off or linear_alone) and all(map(_is_bounded, op.input_variables()))


def _far(dtype: DType) -> float:
    """Return a number far below all scores, within the element type."""
    return -6e4 if dtype is FP16 else -1e9
