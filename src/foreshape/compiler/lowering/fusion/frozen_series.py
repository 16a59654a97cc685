"""Successive kernels of oneDNN's own library with constant parameters, as one call.

Before: ``y = kernel(x)``, ``z = function(y, w)`` and so on of fp32: products, convolutions and normalizations of rows of a frozen step, and
    oneDNN's kernels on their results: sums, products and functions of elements, pooling, means of pixels, enlarged images, tensors joined and cut, channels
    shuffled, a softmax, other dims
After: ``z, ... = series(x, w, ...)``; values inside of it lie in one piece of memory
Unless: it is only one; or oneDNN's library is not there
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from foreshape.compiler.lowering.call_text import function_of
from foreshape.compiler.lowering.fusion.frozen import activation, affine_of
from foreshape.compiler.lowering.fusion.graph import Graph, computes, dims_of, fused, fused_as, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.fusion.series_memory import SeriesStage, attention_of, give_slots, only_rounds, probed_bytes, rows_of, series_bytes
from foreshape.compiler.lowering.fusion.series_values import attending, attention_stage, in_dims, is_mean_of_pixels, same, takes_no_logarithm
from foreshape.compiler.lowering.kernel_calls import Argument, FusedCall, KernelCall, OpCall, Value, values_of
from foreshape.core.dims import equal
from foreshape.core.spec import FP32
from foreshape.language.operator.computations import (
    AttentionOverRows,
    ChannelShuffling,
    Concat,
    Constant,
    Identity,
    ImagePooling,
    NearestUpsample,
    Power,
    Product,
    Reduction,
    Relu,
    Reshape,
    Slicing,
    Softmax,
    Split,
    Sum,
)
from foreshape.machine.kernels import frozen, packed
from foreshape.machine.kernels.frozen import RELU
from foreshape.machine.kernels.onednn_attention import HeadedAttention
from foreshape.machine.kernels.onednn_chain import Series
from foreshape.machine.kernels.onednn_library import DIMS, POWERS, library
from foreshape.machine.kernels.onednn_ragged import RaggedSeries
from foreshape.machine.kernels.onednn_stages import ChainSlice, Each, Enlarged, Joined, Normalized, Paired, Pooled, Same, ShuffledChannels, mean_of_pixels
from foreshape.machine.kernels.onednn_steps import ChainKernel, is_of_bytes
from foreshape.machine.kernels.onednn_texts import Attended, AttendingSeries, TextSeries
from foreshape.machine.targets import Feature


@rewrite(RewriteStage.JOIN, needs=(Feature.ONEDNN,))
def apply(graph: Graph) -> int:
    calls, one_series = [i for place in graph.places for i in place], graph.lowered.whole
    begins = one_series or any(isinstance(i, FusedCall) and i.kernel.packed and not i.kernel.alone for i in calls)
    if not graph.lowered.frozen or not begins or library() is None:  # asked last: the library takes some ms to load
        return 0
    count = 0
    run: list[SeriesStage] = []
    results: set[Value] = {*graph.lowered.feeds} if one_series else set()  # values in the layout of the library's kernels
    for i in calls:
        if not i.reads() and not i.stores and fused_as(i, Constant) is not None:
            continue
        stages = _stages(graph, i, results)
        if not stages and run and _stands_apart(graph, i, run):
            continue
        if not stages or (run and rows_of(run[-1]) is not rows_of(stages[0])):
            count += _join(graph, run)
            run = []
        run += stages
        results.update(s.result for s in stages)
    return count + _join(graph, run)


def _stands_apart(graph: Graph, i: KernelCall, run: Sequence[SeriesStage]) -> bool:
    """Return True if a small call between stages may come before them: it reads nothing of theirs, and changes nothing."""
    if i.copies or i.stores or i.in_place or i.changes() or not {s.result for s in run}.isdisjoint(i.uses()):
        return False
    return sum(map(probed_bytes, i.writes())) <= max(probed_bytes(s.result) for s in run)


def _packed(s: SeriesStage) -> str:
    """Return the name of the packed kernel of a stage; empty if it is made of no persistables."""
    return s.of.kernel.packed if isinstance(s.of, FusedCall) else ""


def _stages(graph: Graph, i: KernelCall, results: set[Value]) -> list[SeriesStage]:
    """Return an instruction as parts of a series, given the values in its kernels' layout; none if it cannot be one."""
    attention = attention_stage(graph, i)
    if attention is None and isinstance(i, OpCall) and i.offsets is not None:
        return []
    if i.copies or i.stores or not i.results or not all(graph.unused(r) for r in i.results[1:]):
        return []
    values = values_of(i.arguments)
    if not all(map(_is_plain, (*values, *values_of(i.results[:1])))):
        return []
    if len({id(v.lod) for v in (*values, *values_of(i.results[:1]))}) > 1:
        return []  # ragged rows beside others
    if isinstance(i, FusedCall) and i.kernel.alone:
        return []
    if isinstance(i, FusedCall) and i.kernel.packed:  # rows of four dims lie otherwise than images do
        return [] if i.effects.contiguous and any(_rank(v) == 4 for v in (*values, *i.writes())) else [SeriesStage(i, values)]
    if results.isdisjoint(values):
        return []
    if attention is not None:
        return [SeriesStage(i, values, attention)]
    between = fused_as(i, AttentionOverRows)
    if between is not None:
        return [SeriesStage(i, values, HeadedAttention(between.heads, between.scale, between.parts, between.blanks))]
    parting = computes(i, Split)
    if parting is not None and values[0].lod is None:
        return _parts(graph, i, values, parting.axis)
    stage = _unpacked_stage(graph, i, values) if isinstance(i.results[0], Value) else None
    if stage is None or (rows_of(stage) is not None and not isinstance(stage.stage, (Each, Paired))):
        return []  # of ragged rows only what is done row by row
    return [stage]


def _parts(graph: Graph, i: KernelCall, values: list[Value], axis: int) -> list[SeriesStage]:
    """Return the stages of a split into parts of known sizes."""
    parts = i.results[0]
    if not isinstance(parts, list) or None in parts:
        return []
    axis %= _rank(values[0])
    out: list[SeriesStage] = []
    begin = 0
    for number, part in enumerate(parts):
        size = (graph.dims(part) or (None,) * (axis + 1))[axis]
        if not isinstance(size, int):
            return []
        if not graph.unused(part):
            out.append(SeriesStage(i, values, ChainSlice(((axis, begin, begin + size),)), number=number))
        begin += size
    return out


def _is_plain(value: Argument) -> bool:
    """Return True for a tensor of fp32 with no more dims than the library's limit, or for ragged rows."""
    spec = spec_of(value)
    return spec is not None and spec.dtype is FP32 and spec.rank <= DIMS and isinstance(value, Value) and (value.lod is None or spec.rank == 2)


def _unpacked_stage(graph: Graph, i: KernelCall, values: list[Value]) -> SeriesStage | None:
    """Return a stage without packed persistables."""
    following = RELU if fused_as(i, Relu) is not None else activation(i)
    if following is not None:
        return SeriesStage(i, values, Each(frozen.in_library(following)[0]))
    pooling, softmax, affine = computes(i, ImagePooling), computes(i, Softmax), affine_of(graph, i)
    if affine is not None and values[0] is i.arguments[0]:
        return SeriesStage(i, values[:1], Each(("linear", *affine)))
    if pooling is not None:
        return SeriesStage(i, values, Pooled(pooling.how, pooling.window, pooling.strides, pooling.before, pooling.behind, pooling.rounds_up))
    rank = len(dims_of(values[0]) or ())
    means = computes(i, Reduction)
    if means is not None and rank == 4 and is_mean_of_pixels(means):
        return SeriesStage(i, values, mean_of_pixels(means.keeps))
    if softmax is not None and rank != 4 and takes_no_logarithm(graph, i.results[0]):
        return SeriesStage(i, values, Normalized(softmax.axis))
    power = computes(i, Power)
    if power is not None and power.of in POWERS:
        return SeriesStage(i, values, Each((POWERS[power.of], 0.0, 0.0)))
    slicing = computes(i, Slicing) or fused_as(i, Slicing)
    if slicing is not None and not slicing.dropped:
        return SeriesStage(i, values, ChainSlice(tuple((axis % rank, first, last) for axis, first, last in slicing.cuts)))
    shuffling = computes(i, ChannelShuffling) or fused_as(i, ChannelShuffling)
    if shuffling is not None and rank == 4:
        return SeriesStage(i, values, ShuffledChannels(shuffling.groups))
    enlarged, joining = computes(i, NearestUpsample), computes(i, Concat)
    if enlarged is not None and rank == 4:
        return SeriesStage(i, values, Enlarged(enlarged.by))
    if joining is not None and len(values) > 1 and len(set(values)) == len(values):
        return SeriesStage(i, values, Joined(joining.axis))
    if computes(i, Identity) is not None:
        view = in_dims(graph.dims(values[0]), graph.dims(i.results[0]))
        return None if view is None else SeriesStage(i, values, view)
    if computes(i, Reshape) is not None and len(values) == 1:
        view = same(graph, values[0], i.results[0])
        return None if view is None else SeriesStage(i, values, view)
    if computes(i, Sum) is not None or computes(i, Product) is not None:
        return _pair(graph, i, values, "add" if computes(i, Sum) is not None else "multiply")
    return None


def _pair(graph: Graph, i: KernelCall, values: list[Value], kind: str) -> SeriesStage | None:
    """Return a sum or product of tensors, of one shape or broadcast: of two dims or more, with dims of 1 in one of them."""
    if len(values) != 2:
        return None
    for wide, narrow in (values, values[::-1]):
        a, b = graph.dims(wide), graph.dims(narrow)
        if a is not None and b is not None and len(a) == len(b) and all(m == 1 or (n != 1 and equal(n, m) is not False) for n, m in zip(a, b, strict=True)):
            sure = all(m == 1 or equal(n, m) is True for n, m in zip(a, b, strict=True))
            return SeriesStage(i, [wide, narrow], Paired(kind, tried=not sure))
    return None


def _merged(graph: Graph, run: list[SeriesStage]) -> list[SeriesStage]:
    """Return the same, with sums and functions fused into their operand's kernel, if it has one reader and can do them."""
    out: list[SeriesStage] = []
    makers: dict[Value, SeriesStage] = {}
    for s in run:
        x = next((v for v in s.sources if v in makers and graph.only_reader(v) is s.of and s.sources.count(v) == 1), None)
        maker = makers[x] if x is not None else None
        merged = None
        if maker is not None and maker.rounding is None and only_rounds(s) and not isinstance(maker.stage, (Same, Attended)) and not only_rounds(maker):
            out.remove(maker)
            out.append(replace(maker, rounding=s.of))
            makers[s.result] = out[-1]
            continue
        if maker is not None and isinstance(maker.stage, Each) and isinstance(s.stage, Each) and maker.rounding is None:
            merged = maker.stage._replace(then=(*maker.stage.then, s.stage.function))
        elif maker is not None and isinstance(maker.stage, Paired) and maker.rounding is None:
            if isinstance(s.stage, Each):
                merged = maker.stage._replace(functions=(*maker.stage.functions, s.stage.function))
            elif s.stage in (Paired("add"), Paired("add", tried=True)) and not maker.stage.adds and not maker.stage.functions and _alike(graph, s):
                merged = maker.stage._replace(adds=True)
        if maker is None or merged is None:
            out.append(s)
            makers[s.result] = s
            continue
        out.remove(maker)
        sources = [*maker.sources, *(v for v in s.sources if v is not x)]
        out.append(SeriesStage(s.of, sources, merged, [*maker.before, replace(maker, before=[])]))
        makers[s.result] = out[-1]
    return out


def _alike(graph: Graph, s: SeriesStage) -> bool:
    """Return True if the operands of a stage have the dims of its result."""
    dims = graph.dims(s.result)
    return dims is not None and all(graph.dims(v) == dims for v in s.sources)


def _join(graph: Graph, run: list[SeriesStage]) -> bool:
    """Replace successive instructions by one."""
    fewest = 1 if graph.lowered.whole or (graph.lowered.half and any(map(_packed, run))) else 2
    if len({id(s.of) for s in run}) < fewest:
        return False
    everything = run
    run = _merged(graph, run)
    inside = {s.result: index for index, s in enumerate(run)}
    ids = {id(s.of) for s in everything}
    out = [v for v in inside if graph.is_fixed(v) or any(id(r) not in ids for r in graph.readers(v))]
    outside = list(dict.fromkeys(v for s in run for v in s.sources if v not in inside))
    slots = give_slots(run, inside, out)
    total = series_bytes(run, slots, outside, out, graph.lowered.half)
    rows = rows_of(run[0])
    offsets = [rows] if rows is not None and any(map(attention_of, run)) else []
    name, last = _pack(graph, run, inside, outside), everything[-1].of
    inner = {_packed(s) for s in everything} - {""}
    call = fused(last, packed.series(name, [*map(_rank, outside)], [*map(_rank, out)], lambda: total, bool(offsets)), [*outside, *offsets], [*out])
    call.unknown = call.unknown or next((s.of.unknown for s in everything if s.of.unknown), "")
    call.parts = tuple(tuple([i.op for i in s.calls]) for s in run)
    if not graph.replace({**dict.fromkeys((s.of for s in everything), ()), last: [call]}):
        return False
    graph.lowered.derived[:] = [entry for entry in graph.lowered.derived if entry[0] not in inner]
    return True


def _rank(value: Value) -> int:
    return len(dims_of(value) or ())


def _pack(graph: Graph, run: list[SeriesStage], inside: dict[Value, int], outside: Sequence[Value]) -> str:
    """Return a name for the series, in place of its products' names."""
    numbers = {v: index for index, v in enumerate((*outside, *inside))}
    derived = {name: (values, make) for name, values, make in graph.lowered.derived}
    makers: list[tuple[Any, ...]] = []
    all_values: list[Value] = []
    for s in run:
        sources = tuple(numbers[v] for v in s.sources)
        scales, rounds = derived[s.rounding.kernel.packed] if isinstance(s.rounding, FusedCall) else ((), None)
        if made_of := _packed(s):
            values, make = derived[made_of]
            makers.append((len(values), make, None, None, sources, s.slot, len(scales), rounds))
            all_values += values
        else:
            otherwise = attending(s.of) if isinstance(s.of, OpCall) and attention_of(s) is not None else _by_kernels(graph, s)
            makers.append((0, None, otherwise, s.stage, sources, s.slot, len(scales), rounds))
        all_values += scales
    return graph.pack("series", all_values, 0, partial(_series_of, tuple(makers), len(outside), rows_of(run[0]) is not None, graph.lowered.half))


def _series_of(makers: Sequence[tuple[Any, ...]], count: int, ragged: bool, half: bool, *values: Any) -> Series:
    """Return the series, from the values of persistables."""
    kernels = library()
    assert kernels is not None
    steps: list[ChainKernel] = []
    index = 0
    for value_count, make, otherwise, stage, sources, slot, scale_count, rounds in makers:
        if make is not None:
            stage = make(*values[index : index + value_count])
            index += value_count
            otherwise = stage if len(sources) == 1 else stage.add
        rounding = None if rounds is None else rounds(*values[index : index + scale_count])
        index += scale_count
        steps.append(ChainKernel(stage, otherwise, sources, slot, rounding))
    half = half and not any(map(is_of_bytes, steps))
    if any(isinstance(s.stage, HeadedAttention) for s in steps):
        return AttendingSeries(kernels, steps, count, half)
    kind = TextSeries if any(isinstance(s.stage, Attended) for s in steps) else RaggedSeries if ragged else Series
    return kind(kernels, steps, count, half)


def _by_kernels(graph: Graph, s: SeriesStage) -> Callable[..., Any]:
    """Return the computation of a stage by the kernels of its operators."""
    calls: list[tuple[KernelCall, Sequence[Argument], int, Callable[..., Any]]] = []
    for stage in (*s.before, s):
        i, affine = stage.of, affine_of(graph, stage.of)
        if affine is None or len(values_of(i.arguments)) == 1:
            calls.append((i, i.arguments, stage.number, _function(i)))
        else:  # its numbers are constants, and no operands of the series
            calls.append((i, i.arguments[:1], stage.number, partial(_affine, *affine)))

    def run(*tensors: Any) -> Any:
        values = dict(zip(s.sources, tensors, strict=True))
        out: Any = None
        for i, operands, number, call in calls:
            arguments = [[values[v] for v in a if v is not None] if isinstance(a, list) else None if a is None else values[a] for a in operands]
            out = call(*arguments)
            out = out[0] if len(i.results) > 1 else out
            out = out[number] if isinstance(i.results[0], list) else out
            values[values_of(i.results)[number]] = out
        return out

    return run


def _affine(factor: float, term: float, x: Any) -> Any:
    return x * factor + term


def _function(i: KernelCall) -> Callable[..., Any]:
    """Return a call as a function from its arguments to its first result."""
    if isinstance(i, FusedCall):
        return function_of(i.kernel, len(i.arguments))
    assert isinstance(i, OpCall)
    return partial(i.kernel, requested=tuple(index == 0 for index in range(len(i.results)))) if i.kernel_requested else i.kernel
