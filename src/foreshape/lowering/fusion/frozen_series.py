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

from foreshape.data_class import data_class, field
from foreshape.dims import Size, equal, evaluate, maximum, product, symbols_of
from foreshape.kernels import frozen, packed
from foreshape.kernels.frozen import RELU
from foreshape.kernels.onednn_chain import ALIGNMENT, ChainKernel, Series
from foreshape.kernels.onednn_library import DIMS, POWERS, library
from foreshape.kernels.onednn_ragged import RaggedSeries, filling_bytes
from foreshape.kernels.onednn_stages import ChainSlice, Each, Enlarged, Joined, Normalized, Paired, Pooled, Same, ShuffledChannels, mean_of_pixels
from foreshape.lowering.call_memory import workspace_of
from foreshape.lowering.fusion.frozen import activation, affine_of
from foreshape.lowering.fusion.graph import Graph, computes, dims_of, fused, fused_as, spec_of
from foreshape.lowering.fusion.series_values import in_dims, is_mean_of_pixels, same, takes_no_logarithm
from foreshape.lowering.kernel_calls import Argument, FusedCall, KernelCall, OpCall, Value, values_of
from foreshape.operator.byte_computations import GridRounding
from foreshape.operator.computations import (
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
from foreshape.spec import FP32

_TRIED = 64
"""The values of each symbol for comparing two sizes."""


@data_class()
class _Stage:
    """An instruction as a part of a series.

    ``stage``: its computation on ``sources``; None for a packed kernel (`KernelCall.packed`). ``number``: its result among the instruction's, if each of
    several has a stage.
    """

    of: KernelCall
    sources: list[Value]
    stage: Any = None
    before: list[_Stage] = field(default_factory=list["_Stage"])
    """The stages whose work it does too, in order."""
    slot: int | None = None
    number: int = 0
    rounding: KernelCall | None = None
    """The call that rounds its result."""

    @property
    def result(self) -> Value:
        return values_of(self.of.results)[self.number] if self.rounding is None else values_of(self.rounding.results)[0]

    @property
    def calls(self) -> list[KernelCall]:
        """Return the calls whose work it does."""
        return [self.of, *(of.of for of in self.before), *([] if self.rounding is None else [self.rounding])]


def apply(graph: Graph) -> int:
    if not graph.lowered.frozen or library() is None:
        return 0
    count = 0
    run: list[_Stage] = []
    whole = graph.lowered.whole
    made: set[Value] = {*graph.lowered.feeds} if whole else set()  # values in the layout of the library's kernels
    for i in [i for place in graph.places for i in place]:
        if not i.reads() and not i.stores and fused_as(i, Constant) is not None:
            continue
        found = _stages(graph, i, made)
        if not found or (run and _rows(run[-1]) is not _rows(found[0])):
            count += _join(graph, run)
            run = []
        run += found
        made.update(s.result for s in found)
    return count + _join(graph, run)


def _packed(s: _Stage) -> str:
    """Return the name of the packed kernel of a stage; empty if it is made of no persistables."""
    return s.of.kernel.packed if isinstance(s.of, FusedCall) else ""


def _stages(graph: Graph, i: KernelCall, made: set[Value]) -> list[_Stage]:
    """Return an instruction as parts of a series, given the values in its kernels' layout; none if it cannot be one."""
    if i.copies or i.stores or (isinstance(i, OpCall) and i.offsets is not None) or not i.results or not all(graph.unused(r) for r in i.results[1:]):
        return []
    values = values_of(i.arguments)
    if not all(map(_is_plain, (*values, *values_of(i.results[:1])))):
        return []
    if len({id(v.lod) for v in (*values, *values_of(i.results[:1]))}) > 1:
        return []  # ragged rows beside others
    if isinstance(i, FusedCall) and i.kernel.packed:  # rows of four dims lie otherwise than images do
        return [] if i.effects.contiguous and any(_rank(v) == 4 for v in (*values, *i.writes())) else [_Stage(i, values)]
    if made.isdisjoint(values):
        return []
    parting = computes(i, Split)
    if parting is not None and values[0].lod is None:
        return _parts(graph, i, values, parting.axis)
    found = _other(graph, i, values) if isinstance(i.results[0], Value) else None
    if found is None or (_rows(found) is not None and not isinstance(found.stage, (Each, Paired))):
        return []  # of ragged rows only what is done row by row
    return [found]


def _parts(graph: Graph, i: KernelCall, values: list[Value], axis: int) -> list[_Stage]:
    """Return the stages of a split into parts of known sizes."""
    parts = i.results[0]
    if not isinstance(parts, list) or None in parts:
        return []
    axis %= _rank(values[0])
    out: list[_Stage] = []
    begin = 0
    for number, part in enumerate(parts):
        size = (graph.dims(part) or (None,) * (axis + 1))[axis]
        if not isinstance(size, int):
            return []
        if not graph.unused(part):
            out.append(_Stage(i, values, ChainSlice(((axis, begin, begin + size),)), number=number))
        begin += size
    return out


def _is_plain(value: Argument) -> bool:
    """Return True for a tensor of fp32 with no more dims than the library's limit, or for ragged rows."""
    spec = spec_of(value)
    return spec is not None and spec.dtype is FP32 and spec.rank <= DIMS and isinstance(value, Value) and (value.lod is None or spec.rank == 2)


def _rows(s: _Stage) -> Value | None:
    """Return the offsets of the ragged rows of a stage, None for others."""
    return s.result.lod


def _other(graph: Graph, i: KernelCall, values: list[Value]) -> _Stage | None:
    """Return a stage without packed persistables."""
    following = RELU if fused_as(i, Relu) is not None else activation(i)
    if following is not None:
        return _Stage(i, values, Each(frozen.in_library(following)[0]))
    pooling, softmax, by = computes(i, ImagePooling), computes(i, Softmax), affine_of(graph, i)
    if by is not None and values[0] is i.arguments[0]:
        return _Stage(i, values[:1], Each(("linear", *by)))
    if pooling is not None:
        return _Stage(i, values, Pooled(pooling.how, pooling.window, pooling.strides, pooling.before, pooling.behind, pooling.rounds_up))
    rank = len(dims_of(values[0]) or ())
    means = computes(i, Reduction)
    if means is not None and rank == 4 and is_mean_of_pixels(means):
        return _Stage(i, values, mean_of_pixels(means.keeps))
    if softmax is not None and rank != 4 and takes_no_logarithm(graph, i.results[0]):
        return _Stage(i, values, Normalized(softmax.axis))
    power = computes(i, Power)
    if power is not None and power.of in POWERS:
        return _Stage(i, values, Each((POWERS[power.of], 0.0, 0.0)))
    slicing = computes(i, Slicing) or fused_as(i, Slicing)
    if slicing is not None and not slicing.dropped:
        return _Stage(i, values, ChainSlice(tuple((axis % rank, first, last) for axis, first, last in slicing.cuts)))
    shuffling = computes(i, ChannelShuffling) or fused_as(i, ChannelShuffling)
    if shuffling is not None and rank == 4:
        return _Stage(i, values, ShuffledChannels(shuffling.groups))
    enlarged, joining = computes(i, NearestUpsample), computes(i, Concat)
    if enlarged is not None and rank == 4:
        return _Stage(i, values, Enlarged(enlarged.by))
    if joining is not None and len(values) > 1 and len(set(values)) == len(values):
        return _Stage(i, values, Joined(joining.axis))
    if computes(i, Identity) is not None:
        kept = in_dims(graph.dims(values[0]), graph.dims(i.results[0]))
        return None if kept is None else _Stage(i, values, kept)
    if computes(i, Reshape) is not None and len(values) == 1:
        kept = same(graph, values[0], i.results[0])
        return None if kept is None else _Stage(i, values, kept)
    if computes(i, Sum) is not None or computes(i, Product) is not None:
        return _pair(graph, i, values, "add" if computes(i, Sum) is not None else "multiply")
    return None


def _pair(graph: Graph, i: KernelCall, values: list[Value], kind: str) -> _Stage | None:
    """Return a sum or product of tensors, of one shape or broadcast: of two dims or more, with dims of 1 in one of them."""
    if len(values) != 2:
        return None
    for wide, narrow in (values, values[::-1]):
        a, b = graph.dims(wide), graph.dims(narrow)
        if a is not None and b is not None and len(a) == len(b) and all(m == 1 or (n != 1 and equal(n, m) is not False) for n, m in zip(a, b, strict=True)):
            sure = all(m == 1 or equal(n, m) is True for n, m in zip(a, b, strict=True))
            return _Stage(i, [wide, narrow], Paired(kind, tried=not sure))
    return None


def _merged(graph: Graph, run: list[_Stage]) -> list[_Stage]:
    """Return the same, with sums and functions fused into their operand's kernel, if it has one reader and can do them."""
    out: list[_Stage] = []
    makers: dict[Value, _Stage] = {}
    for s in run:
        x = next((v for v in s.sources if v in makers and graph.only_reader(v) is s.of and s.sources.count(v) == 1), None)
        of = makers[x] if x is not None else None
        merged = None
        if of is not None and of.rounding is None and _rounds(s) and not isinstance(of.stage, Same) and not _rounds(of):
            out.remove(of)
            out.append(replace(of, rounding=s.of))
            makers[s.result] = out[-1]
            continue
        if of is not None and isinstance(of.stage, Each) and isinstance(s.stage, Each) and of.rounding is None:
            merged = of.stage._replace(then=(*of.stage.then, s.stage.function))
        elif of is not None and isinstance(of.stage, Paired) and of.rounding is None:
            if isinstance(s.stage, Each):
                merged = of.stage._replace(functions=(*of.stage.functions, s.stage.function))
            elif s.stage in (Paired("add"), Paired("add", tried=True)) and not of.stage.adds and not of.stage.functions and _alike(graph, s):
                merged = of.stage._replace(adds=True)
        if of is None or merged is None:
            out.append(s)
            makers[s.result] = s
            continue
        out.remove(of)
        sources = [*of.sources, *(v for v in s.sources if v is not x)]
        out.append(_Stage(s.of, sources, merged, [*of.before, replace(of, before=[])]))
        makers[s.result] = out[-1]
    return out


def _rounds(s: _Stage) -> bool:
    """Return True if a stage does nothing but round its operand."""
    return fused_as(s.of, GridRounding) is not None


def _alike(graph: Graph, s: _Stage) -> bool:
    """Return True if the operands of a stage have the dims of its result."""
    wanted = graph.dims(s.result)
    return wanted is not None and all(graph.dims(v) == wanted for v in s.sources)


def _join(graph: Graph, run: list[_Stage]) -> bool:
    """Replace successive instructions by one."""
    if len({id(s.of) for s in run}) < (1 if graph.lowered.whole else 2):
        return False
    everything = run
    run = _merged(graph, run)
    inside = {s.result: at for at, s in enumerate(run)}
    ids = {id(s.of) for s in everything}
    out = [v for v in inside if graph.is_fixed(v) or any(id(r) not in ids for r in graph.readers(v))]
    outside = list(dict.fromkeys(v for s in run for v in s.sources if v not in inside))
    slots = _give_slots(run, inside, out)
    work = maximum(*{workspace_of(s.of) for s in everything})
    pieces: Size = sum((maximum(*sizes) for sizes in slots), start=0)
    total = pieces + work + _between(run) + ALIGNMENT * (len(slots) + len(outside) + 1) + _filling(run, [*outside, *out], inside)
    name, last = _pack(graph, run, inside, outside), everything[-1].of
    inner = {_packed(s) for s in everything} - {""}
    made = fused(last, packed.series(name, [*map(_rank, outside)], [*map(_rank, out)], lambda: total), [*outside], [*out])
    made.unknown = made.unknown or next((s.of.unknown for s in everything if s.of.unknown), "")
    made.parts = tuple(tuple([i.op for i in s.calls]) for s in run)
    if not graph.replace({**dict.fromkeys((s.of for s in everything), ()), last: [made]}):
        return False
    graph.lowered.derived[:] = [entry for entry in graph.lowered.derived if entry[0] not in inner]
    return True


def _between(run: list[_Stage]) -> Size:
    """Return the most bytes for fp32 numbers made of a stage's bytes, or bytes are made of."""
    rounded = {s.result for s in run if s.rounding is not None or _rounds(s)}
    read = [[spec.nbytes + ALIGNMENT for v in (*s.sources, s.result) if v in rounded and (spec := spec_of(v)) is not None] for s in run]
    return maximum(0, *{sum(sizes, start=0) for sizes in read})


def _filling(run: list[_Stage], copied: Sequence[Value], inside: dict[Value, int]) -> Size:
    """Return the bytes for rows behind ragged ones."""
    if _rows(run[0]) is None:
        return 0
    dims = [dims_of(v) or (0,) for v in (*copied, *inside)]
    of_row = [product(d[1:]) * FP32.itemsize for d in dims]
    return filling_bytes(dims[0][0], sum(of_row[: len(copied)], start=0), sum(of_row[len(copied) :], start=0))


def _rank(value: Value) -> int:
    return len(dims_of(value) or ())


def _give_slots(run: list[_Stage], inside: dict[Value, int], out: Sequence[Value]) -> list[list[Size]]:
    """Give each inner result a part of a piece of memory; return the sizes of the results in each part."""
    root = {s.result: s.result for s in run}
    for s in run:
        if isinstance(s.stage, Same):
            of = root.get(s.sources[0])
            if of is None or s.result in out or of in out:
                s.stage = s.stage._replace(copies=True)
            else:
                root[s.result] = of
    last = {root[v]: at for at, s in enumerate(run) for v in (*s.sources, s.result) if v in root}
    slots: list[list[Size]] = []
    probe: list[int] = []
    free: set[int] = set()
    for at, s in enumerate(run):
        value = s.result
        if root[value] is not value:
            s.slot = run[inside[root[value]]].slot
        elif value not in out:
            spec = spec_of(value)
            size: Size = 0 if spec is None else spec.nbytes
            tried = evaluate(size, dict.fromkeys(symbols_of(size), _TRIED)) if not isinstance(size, int) else size
            fits = sorted((probe[k] < tried, abs(probe[k] - tried), k) for k in free)
            if fits:
                s.slot = fits[0][2]
                free.discard(s.slot)
            else:
                s.slot = len(slots)
                slots.append([])
                probe.append(0)
            probe[s.slot] = max(probe[s.slot], tried)
            if size not in slots[s.slot]:
                slots[s.slot].append(size)
        for v in {root[v] for v in (*s.sources, value) if v in root}:
            slot = run[inside[v]].slot
            if last[v] == at and slot is not None:
                free.add(slot)
    return slots


def _pack(graph: Graph, run: list[_Stage], inside: dict[Value, int], outside: Sequence[Value]) -> str:
    """Return a name for the series, in place of its products' names."""
    numbers = {v: at for at, v in enumerate((*outside, *inside))}
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
            makers.append((0, None, _by_kernels(s), s.stage, sources, s.slot, len(scales), rounds))
        all_values += scales
    return graph.pack("series", all_values, 0, partial(_made, tuple(makers), len(outside), _rows(run[0]) is not None))


def _made(makers: Sequence[tuple[Any, ...]], count: int, ragged: bool, *values: Any) -> Series:
    """Return the series, from the values of persistables."""
    found = library()
    assert found is not None
    steps: list[ChainKernel] = []
    at = 0
    for taken, make, otherwise, stage, sources, slot, more, rounds in makers:
        if make is not None:
            stage = make(*values[at : at + taken])
            at += taken
            otherwise = stage if len(sources) == 1 else stage.add
        rounding = None if rounds is None else rounds(*values[at : at + more])
        at += more
        steps.append(ChainKernel(stage, otherwise, sources, slot, rounding))
    return (RaggedSeries if ragged else Series)(found, steps, count)


def _by_kernels(s: _Stage) -> Callable[..., Any]:
    """Return the computation of a stage by the kernels of its operators."""
    calls = [(of.of, of.number, _function(of.of)) for of in (*s.before, s)]

    def run(*given: Any) -> Any:
        known = dict(zip(s.sources, given, strict=True))
        out: Any = None
        for i, number, call in calls:
            arguments = [[known[v] for v in a if v is not None] if isinstance(a, list) else None if a is None else known[a] for a in i.arguments]
            out = call(*arguments)
            out = out[0] if len(i.results) > 1 else out
            out = out[number] if isinstance(i.results[0], list) else out
            known[values_of(i.results)[number]] = out
        return out

    return run


def _function(i: KernelCall) -> Callable[..., Any]:
    """Return a call as a function from its arguments to its first result."""
    if isinstance(i, FusedCall):
        return i.kernel.function(len(i.arguments))
    assert isinstance(i, OpCall)
    return partial(i.kernel, requested=tuple(at == 0 for at in range(len(i.results)))) if i.kernel_requested else i.kernel
