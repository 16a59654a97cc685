"""Scaled dot-product attention in one kernel each way. It makes the weights piece by piece and keeps one number for each row.

Before: ``out = softmax(scale * (q k') + mask) v`` of fp32, where q may be scaled instead or besides, k may come transposed, and there may be no
    mask; and the gradients of q, k and v
After: ``out, sums = attention(q, k, v, mask)``, and ``d_q, d_k, d_v = gradient(q, k, v, out, sums, d_out, mask)``; a mask that is a constant of
    -1e9 or less above the diagonal, and zero elsewhere, is not made: the kernels leave out hidden columns. Where weights are dropped before the
    product with v, ``kept = draw(q, k)`` stands where they were, and both kernels take it in the place of the sums
    Where such a constant is added to a mask that is one row for all rows of q, as for padding, the sum is not made: the kernels take that row
    In a frozen step ``where(isnan(weights), 0, weights)`` may stand before the product with v: rows that see no key are zeros
    On devices the products may be of 16 bits, with the softmax between them in fp32: the kernel sums in fp32 itself
Unless: something else reads a value between, or the gradient of the mask is wanted, or the mask is changed in its place and wanted by a gradient
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from foreshape.compiler.lowering.fusion.frozen import affine_of, equal_number
from foreshape.compiler.lowering.fusion.graph import Graph, backward_of, computes, dims_of, fused, fused_as, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, Value
from foreshape.core.data_class import data_class, field
from foreshape.core.dims import Size, equal
from foreshape.core.spec import BF16, FP16, FP32, UINT8, tensor
from foreshape.language.operator.computations import (
    Cast,
    ChosenElements,
    Computation,
    DenseAttention,
    Dropout,
    Filled,
    MatrixProduct,
    NanTest,
    Scaling,
    Softmax,
    Sum,
    Transposition,
    Triangle,
)
from foreshape.machine.kernels import attention, dropped_attention
from foreshape.machine.kernels.attention import Attention, AttentionMemory, bytes_of
from foreshape.machine.kernels.dropped_attention import DroppedAttention, dropped_bytes
from foreshape.machine.kernels.fused import FusedKernel
from foreshape.machine.targets import current_target

_FAR = -1e9


@rewrite(RewriteStage.FUSE, begins=(Softmax,))
def apply(graph: Graph) -> int:
    count = 0
    for i, computation in graph.computing(Softmax):
        match = _find(graph, i, computation) if graph.is_left(i) else None
        if match is not None:
            scaled = _with_scale_of_q(graph, match)
            both = _with_earlier_k(graph, scaled or match)
            count += any(m is not None and _rewrite(graph, m) for m in (both, scaled, match))
    return count


@data_class()
class _AttentionMatch:
    """One attention: its operands, its ops, and its gradient's if wanted."""

    q: Value
    k: Value
    v: Value
    added: Argument
    """The value added to the scores."""
    mask: Argument
    """The kernels' part of the mask."""
    later: float
    """The number added to the scores of rows of k later than the row of q; 0 for none."""
    triangle: Argument
    """The value of this mask."""
    scale: float
    turned: bool
    """True if the last two axes of k are swapped."""
    scores: KernelCall
    mix: KernelCall
    """The product of weights and values."""
    gone: list[KernelCall]
    """The replaced ops before it."""
    backward: list[KernelCall] = field(default_factory=list[KernelCall])
    """From the gradient of the product on."""
    drop: KernelCall | None = None
    """The dropout of the weights."""
    blanks: bool = False
    """True if NaN weights become 0."""
    d_q: Argument = None
    d_k: Argument = None


def _find(graph: Graph, softmax: KernelCall, computation: Softmax) -> _AttentionMatch | None:
    weights = softmax.results[0]
    spec = spec_of(weights)
    if spec is None or spec.dtype is not FP32 or spec.rank not in (3, 4) or computation.axis not in (-1, spec.rank - 1):
        return None
    drop = next((r for r in graph.readers(weights) if computes(r, Dropout) is not None), None)
    chosen = _without_nan(graph, weights) if drop is None and graph.lowered.frozen else None
    mixed = chosen.results[0] if chosen is not None else weights if drop is None else drop.results[0]
    lowered = None if drop is not None or current_target().is_processor else next((r for r in graph.readers(mixed) if _lowers(r)), None)
    mixed = mixed if lowered is None else lowered.results[0]
    mix = next((r for r in graph.readers(mixed) if computes(r, MatrixProduct) is not None and r.arguments[0] is mixed), None)
    if mix is None or computes(mix, MatrixProduct) != MatrixProduct():
        return None
    gone, mask, scale = [softmax] if lowered is None else [lowered, softmax], None, None
    blanks: list[KernelCall] = [] if chosen is None else [chosen, *(r for r in graph.readers(weights) if r is not chosen)]
    call = graph.maker(softmax.arguments[0])
    if call is not None and _adds_mask(graph, call):
        mask = call.arguments[1]
        gone.append(call)
        call = graph.maker(call.arguments[0])
    if call is not None and (scale := _scale(graph, call)) is not None:
        gone.append(call)
        call = graph.maker(call.arguments[0])
    if lowered is not None:
        if call is None or computes(call, Cast) is None:
            return None
        gone.append(call)
        call = graph.maker(call.arguments[0])
    scores = computes(call, MatrixProduct)
    if call is None or scores is None or scores.x_transposed:
        return None
    (q, k), v = call.arguments, mix.arguments[1]
    if not (isinstance(q, Value) and isinstance(k, Value) and isinstance(v, Value)):
        return None
    parts = _parts(graph, mask, softmax.arguments[0])
    if lowered is not None and not all(_is_half(x) for x in (q, k, v)):
        return None
    match = _AttentionMatch(q, k, v, mask, *parts, 1.0 if scale is None else scale, not scores.y_transposed, call, mix, [*gone, call, *blanks], drop=drop)
    match.blanks = chosen is not None
    if match.blanks:
        return match if _fits(graph, match) and not match.later and len(graph.readers(mixed)) == 1 else None
    if not _fits(graph, match) or not _with_gradient(graph, match, softmax):
        return None
    return match


def _without_nan(graph: Graph, weights: Argument) -> KernelCall | None:
    """Return the call taking 0 where weights are NaN, if nothing else reads them."""
    readers = graph.readers(weights)
    test = next((r for r in readers if computes(r, NanTest) is not None), None)
    chosen = None if test is None else graph.only_reader(test.results[0])
    if test is None or chosen is None or computes(chosen, ChosenElements) is None or graph.is_fixed(weights) or {*readers} != {test, chosen}:
        return None
    condition, zero, otherwise = chosen.arguments[:3]
    fits = condition is test.results[0] and otherwise is weights and equal_number(graph, zero) == 0.0
    return chosen if fits and dims_of(chosen.results[0]) == dims_of(weights) else None


def _is_half(value: Argument) -> bool:
    spec = spec_of(value)
    return spec is not None and spec.dtype in (FP16, BF16)


def _lowers(i: KernelCall) -> bool:
    """Return True for a cast to 16 bits."""
    return computes(i, Cast) is not None and _is_half(i.results[0])


def _scale(graph: Graph, i: KernelCall) -> float | None:
    """Return the factor of an op that only multiplies its operand by a number."""
    affine = affine_of(graph, i)
    return None if affine is None or affine[1] != 0.0 else affine[0]


def _adds_mask(graph: Graph, i: KernelCall) -> bool:
    """Return True if an op adds a value broadcast to the first operand, axis by axis from the last."""
    total = computes(i, Sum)
    if total is None:
        return False
    scores, mask = graph.dims(i.arguments[0]), graph.dims(i.arguments[1])
    if scores is None or mask is None or scores != graph.dims(i.results[0]) or not 1 <= len(mask) <= len(scores):
        return False
    return total.axis in (-1, len(scores) - len(mask))


def _parts(graph: Graph, mask: Argument, scores: Argument) -> tuple[Argument, float, Argument]:
    """Return a mask as one row for all rows of q, or None, and the number and the triangle of the causal mask. It is unchanged if no such sum."""
    dims = graph.dims(scores)
    filled = _later(graph, mask, dims)
    if filled is not None:
        return None, filled, mask
    call = graph.maker(mask)
    if call is not None and (total := computes(call, Sum)) is not None and graph.dims(mask) is not None:
        ranks = [len(graph.dims(x) or ()) for x in call.arguments[:2]]
        if total.axis in (-1, ranks[0] - ranks[1]):
            for row, triangle in (call.arguments[:2], call.arguments[1::-1]):
                filled, of_row = _later(graph, triangle, dims), spec_of(row)
                if filled is not None and of_row is not None and _is_one_row(graph.dims(row)):
                    return row, filled, triangle
    return mask, 0.0, None


def _is_one_row(dims: tuple[Size, ...] | None) -> bool:
    return dims is not None and (len(dims) == 1 or (len(dims) > 1 and equal(dims[-2], 1) is True))


def _later(graph: Graph, mask: Argument, scores: tuple[Size, ...] | None) -> float | None:
    """Return the number of a mask above the diagonal, if it is a constant far below all scores, and zero elsewhere."""
    call = graph.maker(mask)
    if call is None or computes(call, Triangle) != Triangle(False, 1):
        return None
    of_mask, filled = graph.dims(mask), _filled(graph, call)
    if filled is None or filled > _FAR or scores is None or of_mask is None or len(of_mask) < 2:
        return None
    return filled if _have_equal_sizes(scores[-2:], of_mask[-2:]) else None


def _filled(graph: Graph, triangle: KernelCall) -> float | None:
    """Return the number in all elements before a triangle is taken; made in each run, or once."""
    maker = graph.maker(triangle.arguments[0])
    filled = computes(maker, Filled) or fused_as(maker, Filled)
    return None if filled is None else filled.number


def _fits(graph: Graph, match: _AttentionMatch) -> bool:
    """Return True if the operands have one batch and one width."""
    q, k, v = graph.dims(match.q), graph.dims(match.k), graph.dims(match.v)
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) or len(q) not in (3, 4):
        return False
    time, width = (k[-1], k[-2]) if match.turned else (k[-2], k[-1])
    return _have_equal_sizes((*q[:-2], q[-1]), (*k[:-2], width)) and _have_equal_sizes((*k[:-2], time, width), v)


def _have_equal_sizes(a: Sequence[Size], b: Sequence[Size]) -> bool:
    return all(equal(x, y) for x, y in zip(a, b, strict=True))


def _with_gradient(graph: Graph, match: _AttentionMatch, softmax: KernelCall) -> bool:
    """Find the gradient ops. Return False for unusual ones."""
    weights = softmax.results[0]
    mixed = weights if match.drop is None else match.drop.results[0]
    mixed = match.gone[0].results[0] if match.gone[0] is not softmax else mixed  # of 16 bits
    readers = [r for r in graph.readers(mixed) if r is not match.mix]
    if not readers:
        return match.drop is None or graph.only_reader(weights) is match.drop
    call = next((r for r in readers if backward_of(r, MatrixProduct) == MatrixProduct()), None)
    if call is None or call.arguments[0] is not mixed or call.arguments[1] is not match.v:
        return False
    match.backward.append(call)
    undone = [i for i in match.gone if computes(i, Sum) is None]
    for i in undone if match.drop is None else [match.drop, *undone]:
        d, computation = call.results[0], computes(i, Computation)
        call = graph.only_reader(d)
        if call is None or computation != (computes if isinstance(computation, (Scaling, Cast)) else backward_of)(call, Computation):
            return False
        operands = i.arguments if i is match.scores else i.results[1:] if i is match.drop else i.results if i is softmax else []
        if any(a is not b for a, b in zip(call.arguments, (*operands, d), strict=False)):
            return False
        match.backward.append(call)
    match.d_q, match.d_k = call.results
    return True


def _with_scale_of_q(graph: Graph, match: _AttentionMatch) -> _AttentionMatch | None:
    """Return the same with a factor of q, if any, as a part of the kernels' scale."""
    maker = graph.maker(match.q)
    factor = _scale(graph, maker) if maker is not None else None
    if maker is None or factor is None or not isinstance(maker.arguments[0], Value):
        return None
    backward, d_q = match.backward, match.d_q
    if backward and not graph.unused(d_q):
        back = graph.only_reader(d_q)
        if back is None or _scale(graph, back) != factor:
            return None
        backward, d_q = [*backward, back], back.results[0]
    return replace(match, q=maker.arguments[0], scale=match.scale * factor, gone=[*match.gone, maker], backward=backward, d_q=d_q)


def _with_earlier_k(graph: Graph, match: _AttentionMatch) -> _AttentionMatch | None:
    """Return the same with k before a factor and before a swap of its last axes, as the kernels do them; None without them, or with gradients."""
    earlier = match
    while not match.backward and (maker := graph.maker(earlier.k)) is not None and isinstance(source := maker.arguments[0], Value):
        factor, axes = _scale(graph, maker), computes(maker, Transposition)
        if factor is not None:
            earlier = replace(earlier, k=source, scale=earlier.scale * factor, gone=[*earlier.gone, maker])
        elif axes is not None and _swaps_last(axes.axes):
            earlier = replace(earlier, k=source, turned=not earlier.turned, gone=[*earlier.gone, maker])
        else:
            break
    return None if earlier is match else earlier


def _swaps_last(axes: Sequence[int]) -> bool:
    rank = len(axes)
    return [axis % rank for axis in axes] == [*range(rank - 2), rank - 1, rank - 2]


def _rewrite(graph: Graph, match: _AttentionMatch) -> bool:
    """Replace it by the kernels. Return False if impossible."""
    new: dict[KernelCall, Sequence[KernelCall]] = dict.fromkeys((*match.gone, *match.backward), ())
    new.update(_undropped(graph, match) if match.drop is None else _dropped(graph, match, match.drop))
    if not graph.replace(new):
        return False
    if match.later:
        graph.drop_unused([match.added, match.triangle])
    return True


def _undropped(graph: Graph, match: _AttentionMatch) -> dict[KernelCall, list[KernelCall]]:
    q, k, v, mix = match.q, match.k, match.v, match.mix
    masks = [] if match.mask is None else [match.mask]
    kernel, dims = Attention(match.scale, match.turned, match.later, match.blanks), dims_of(q)
    assert dims is not None
    rank = len(dims)
    out = mix.results[0]
    heads = dims[:-2] if rank == 4 else (dims[0], 1)
    sums = Value("log_sum_exp", graph.fresh(), made=tensor(FP32, *heads, dims[-2])) if match.backward else None

    def needs() -> Size:
        memory = _memory(match)
        return memory.forward + (memory.sums if sums is None else 0)

    forward = attention.forward_call(kernel, rank, bool(masks), sums is not None, needs)
    back = partial(attention.gradient_call, kernel, rank, bool(masks))
    form = DenseAttention(match.scale, match.turned, match.later, match.blanks)
    return {
        mix: [fused(mix, forward, [q, k, v, *masks], [out] if sums is None else [out, sums], form)],
        **_gradient(match, back, [out, sums], lambda: _memory(match).backward),
    }


def _dropped(graph: Graph, match: _AttentionMatch, drop: KernelCall) -> dict[KernelCall, list[KernelCall]]:
    """Return the calls with dropout. The mask is drawn in the dropout's place, so it is the same; the rest is one call each way."""
    q, k, v, mix = match.q, match.k, match.v, match.mix
    computed, dims, of_v = computes(drop, Dropout), dims_of(q), dims_of(v)
    assert computed is not None and dims is not None and of_v is not None
    kernel = DroppedAttention(match.scale, match.turned, computed.by, match.later)
    dropout_mask = drop.results[1] if len(drop.results) > 1 else None
    dropout_mask = dropout_mask if isinstance(dropout_mask, Value) else Value("kept", graph.fresh(), made=tensor(UINT8, *dims[:-1], of_v[-2]))
    masks = [] if match.mask is None else [match.mask]
    draw = fused(drop, dropped_attention.drawing_call(kernel, computed.draw, (*dims[:-1], of_v[-2])), [q, k], [dropout_mask])
    needs = dropped_bytes(dims, of_v, match.later != 0.0)
    forward = dropped_attention.forward_call(kernel, len(dims), bool(masks), lambda: needs[0])
    back = partial(dropped_attention.gradient_call, kernel, len(dims), bool(masks))
    return {
        drop: [draw],
        mix: [fused(mix, forward, [q, k, v, dropout_mask, *masks], [mix.results[0]])],
        **_gradient(match, back, [dropout_mask], lambda: needs[1]),
    }


def _gradient(
    match: _AttentionMatch, call: Callable[[Callable[[], Size]], FusedKernel], between: list[Argument], needs: Callable[[], Size]
) -> dict[KernelCall, list[KernelCall]]:
    """Return the call of the gradients, if they are wanted, of q, k, v, the values ``between``, the gradient of the result, and a mask."""
    if not match.backward:
        return {}
    first, operands = match.backward[0], [match.q, match.k, match.v]
    results = [match.d_q, match.d_k, first.results[1]]
    dropped = [x for x, d_x in zip(operands, results, strict=True) if d_x is None]  # they are made all the same
    arguments = [*operands, *between, first.arguments[2], *([] if match.mask is None else [match.mask])]
    return {first: [fused(first, call(lambda: sum((bytes_of(dims_of(x) or ()) for x in dropped), start=needs())), arguments, results)]}


def _memory(match: _AttentionMatch) -> AttentionMemory:
    q, v = dims_of(match.q), dims_of(match.v)
    assert q is not None and v is not None
    return AttentionMemory(q, v, dims_of(match.mask), match.later != 0.0)
