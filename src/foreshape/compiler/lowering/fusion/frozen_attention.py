"""Attention between products of a frozen step, over rows as the products have them, so that it can be a stage of a series.

Before: ``transpose(reshape(q))``, likewise k and v, ``out = attention(q, k, v, mask)``, and ``reshape(transpose(out))``, with heads side by side in each row
After: ``attention_of_rows(q, k, v, mask)`` over ``[batch, time, heads * columns]``
Unless: something else reads a value between; later rows are hidden; or the mask has numbers of its own for each head
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, computes, fused, fused_as
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, FusedCall, KernelCall, Value
from foreshape.core.dims import Size, equal, product
from foreshape.language.operator.computations import AttentionOverRows, DenseAttention, Reshape, Slicing, Softmax, Transposition
from foreshape.machine.kernels.attention import AttentionMemory
from foreshape.machine.kernels.call_record import NamedConstant, of_operands
from foreshape.machine.kernels.fused import FusedKernel
from foreshape.machine.kernels.onednn_attention import HeadedAttention, scores_bytes
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.targets import Feature

_HEADS_FIRST, _TURNED = (0, 2, 1, 3), (0, 2, 3, 1)


@rewrite(
    RewriteStage.FUSE,
    begins=(Softmax,),
    after={"attention": "finds the kernels of attention", "frozen_linear": "makes one product of those of Q, K and V"},
    needs=(Feature.ONEDNN,),
)
def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    calls = [i for place in graph.places for i in place if fused_as(i, DenseAttention) is not None]
    return sum(_rewrite(graph, i) for i in calls) if calls and library() is not None else 0


def _rewrite(graph: Graph, i: KernelCall) -> bool:
    computation, masks = fused_as(i, DenseAttention), i.arguments[3:]
    if not isinstance(i, FusedCall) or computation is None or computation.later or len(i.results) != 1 or not all(_is_of_all_heads(graph, m) for m in masks):
        return False
    rows: list[Value] = []
    gone: list[KernelCall] = []
    heads: int | None = None
    for index, operand in enumerate(i.arguments[:3]):
        found = _rows_of(graph, operand, i, _TURNED if computation.turned and index == 1 else _HEADS_FIRST)
        if found is None or heads not in (None, found[1]):
            return False
        rows.append(found[0])
        heads = found[1]
        gone += found[2]
    turned = graph.only_reader(i.results[0])
    shaped = None if turned is None else graph.only_reader(turned.results[0])
    if turned is None or shaped is None or _axes(turned) != _HEADS_FIRST or computes(shaped, Reshape) is None or heads is None:
        return False
    before, after = graph.dims(i.results[0]), graph.dims(shaped.results[0])
    of_q, of_k, of_v = (graph.dims(r) for r in rows)
    if before is None or after is None or of_q is None or of_k is None or of_v is None or len(after) != 3:
        return False
    if not all(equal(a, b) for a, b in zip(after, (before[0], before[2], before[1] * before[3]), strict=True)):
        return False
    sources: list[Value] = []
    parts: list[tuple[int, int, int]] = []
    for value, of_value in zip(rows, (of_q, of_k, of_v), strict=True):
        width = of_value[2]
        assert isinstance(width, int)
        source, begin = value, 0
        cut = graph.maker(value)
        slicing = fused_as(cut, Slicing)
        if cut is not None and slicing is not None and isinstance(cut.arguments[0], Value) and graph.only_reader(value) in gone:
            source, begin = cut.arguments[0], slicing.cuts[0][1]
            gone.append(cut)
        if source not in sources:
            sources.append(source)
        parts.append((sources.index(source), begin, width))
    kernel, sizes = HeadedAttention(heads, computation.scale, tuple(parts), computation.blanks), (of_q, of_k, of_v)

    def workspace() -> Size:
        q, v = ((d[0], heads, d[1], _part(d[2], heads)) for d in (sizes[0], sizes[2]))
        mask = graph.dims(masks[0]) if masks else None
        return AttentionMemory(q, v, mask).forward + AttentionMemory(q, v, None).sums + scores_bytes(heads, of_q, of_k) + 4 * product(of_q)

    record = of_operands(NamedConstant("attention", kernel), len(sources) + len(masks))
    form = AttentionOverRows(heads, computation.scale, tuple(parts), computation.blanks)
    call = fused(i, FusedKernel("attention", record, workspace=workspace), [*sources, *masks], [shaped.results[0]], form)
    return graph.replace({**dict.fromkeys((*gone, i, turned), ()), shaped: [call]})


def _part(width: Size, heads: int) -> Size:
    return width // heads


def _rows_of(graph: Graph, operand: Argument, reader: KernelCall, axes: tuple[int, ...]) -> tuple[Value, int, list[KernelCall]] | None:
    """Return the rows of an operand with heads, the number of heads, and the calls between."""
    turned = graph.maker(operand)
    shaped = None if turned is None else graph.maker(turned.arguments[0])
    if turned is None or shaped is None or graph.only_reader(operand) is not reader or _axes(turned) != axes:
        return None
    rows, between = shaped.arguments[0], shaped.results[0]
    a, b = graph.dims(rows), graph.dims(between)
    if computes(shaped, Reshape) is None or graph.only_reader(between) is not turned or not isinstance(rows, Value) or a is None or b is None:
        return None
    if len(a) != 3 or len(b) != 4 or not all(isinstance(n, int) for n in (a[2], *b[2:])) or a[2] != b[2] * b[3]:
        return None
    if not equal(a[0], b[0]) or not equal(a[1], b[1]) or not isinstance(b[2], int):
        return None
    return rows, b[2], [turned, shaped]


def _axes(i: KernelCall) -> tuple[int, ...] | None:
    computation = computes(i, Transposition)
    return None if computation is None else tuple(axis % len(computation.axes) for axis in computation.axes)


def _is_of_all_heads(graph: Graph, mask: Argument) -> bool:
    """Return True for a mask that is alike for all heads."""
    dims = graph.dims(mask)
    return dims is not None and len(dims) == 4 and dims[1] == 1
