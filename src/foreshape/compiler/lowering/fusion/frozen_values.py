"""Values of constant parameters and constants alone, computed once, when the step is bound.

Before: ``v = f(persistables, constants)`` in every run of a frozen step, after other operators of the same kind
After: ``v``, a tensor shared by every run, without the calls that only led to it
Unless: v is fetched or stored, something changes it in place, its dims are not known, it draws random numbers, or there is no room: 64 MiB are kept
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from foreshape.compiler.lowering.call_text import function_of
from foreshape.compiler.lowering.fusion.graph import Graph, fused, fused_as, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, FusedCall, KernelCall, OpCall, Value, values_of
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError, ForeshapeError
from foreshape.language.operator.computations import Constant
from foreshape.machine.kernels import elementwise

MOST = 64 << 20
"""So many bytes are kept at most."""
MEANWHILE = 4 * MOST
"""The most bytes of all results together, while they are computed; no plan counts them."""
ROUNDS = 8
"""The most rounds of leaving out values without room, and keeping their operands instead."""


@rewrite(
    RewriteStage.FUSE,
    after={
        "attention": "takes the numbers of constant masks into its kernel",
        "frozen_activation": "takes the numbers of constants into its kernel",
        "frozen_linear": "takes weights and numbers made of constants into its kernel",
        "frozen_convolution": "takes filters and numbers made of constants into its kernel",
        "frozen_normalization": "takes the numbers of constants into its kernel",
        "frozen_range": "takes the numbers of constants into its kernel",
        "frozen_recurrence": "takes weights made of constants into its kernel",
        "frozen_rounding": "takes the numbers of constants into its kernel",
    },
)
def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    candidates = [(i, values, _bytes(values)) for place in graph.places for i in place if (values := constant_results(graph, i))]
    without: set[int] = set()
    for _ in range(ROUNDS):
        calls, results = _alone(graph, candidates, without)
        values, room, too_large = _values_read(graph, calls, results)
        if not too_large:
            break
        without |= too_large
    else:
        return 0
    if not values:
        return 0
    inputs = list(dict.fromkeys(v for i in calls.values() for v in i.reads() if v.persistable))
    names = tuple(map(repr, values))
    name = graph.pack("constants", inputs, MOST - room, partial(constants_of, tuple(calls.values()), tuple(map(repr, inputs)), names))
    places = {value: index for index, value in enumerate(values)}
    new: dict[KernelCall, Sequence[KernelCall]] = {}
    for i in calls.values():
        new[i] = [fused(i, elementwise.packed_constant(name, places[value]), [], [value], fused_as(i, Constant)) for value in results[id(i)] if value in places]
    return len(calls) if graph.replace(new) else 0


def _values_read(graph: Graph, calls: dict[int, KernelCall], results: dict[int, list[Value]]) -> tuple[list[Value], int, set[int]]:
    """Return the values that others read, the bytes left then, and the values without room."""
    values: list[Value] = []
    room = MOST
    too_large: set[int] = set()
    for key in calls:
        read = [v for v in results[key] if any(id(r) not in calls for r in graph.readers(v))]
        size = _bytes(read)
        if size > room:
            too_large.add(key)
        else:
            room -= size
            values += read
    return values, room, too_large


def _bytes(values: Sequence[Value]) -> int:
    """Return the bytes of tensors of known dims."""
    return sum(size for v in values if (spec := spec_of(v)) is not None and isinstance(size := spec.nbytes, int))


def _alone(graph: Graph, candidates: Sequence[tuple[KernelCall, list[Value], int]], without: set[int]) -> tuple[dict[int, KernelCall], dict[int, list[Value]]]:
    """Return the instructions on persistables and constants alone, in order, and the results of each.

    Args:
        candidates: instructions with their results and the bytes of these, in order.
        without: the ids of instructions to leave out.
    """
    calls: dict[int, KernelCall] = {}
    results: dict[int, list[Value]] = {}
    constants: set[Value] = set()
    room = MEANWHILE
    for i, values, size in candidates:
        if size <= room and id(i) not in without and all(v in constants or graph.is_frozen(v) for v in i.reads()):
            room -= size
            calls[id(i)] = i
            results[id(i)] = values
            constants.update(values)
    return calls, results


def constant_results(graph: Graph, i: KernelCall) -> list[Value]:
    """Return the first result of an instruction, or its parts, if they are dense tensors of known dims and there are no other effects."""
    operator = i.op.operator
    if operator is None or operator.random or operator.side_effects or (isinstance(i, FusedCall) and not i.effects.outlives):
        return []
    if isinstance(i, OpCall) and (i.offsets is not None or i.before is not None or i.region is not None):
        return []
    if i.copies or i.stores or i.in_place or i.changes():
        return []
    if not i.results or not all(graph.unused(v) for r in i.results[1:] for v in values_of([r])):
        return []
    values = values_of(i.results[:1])
    return values if len(values) == _count(i.results[0]) and all(_is_known(graph, v) for v in values) else []


def _count(result: Argument) -> int:
    return len(result) if isinstance(result, list) else 1


def _is_known(graph: Graph, value: Value) -> bool:
    spec = spec_of(value)
    if value.lod is not None or value.levels or graph.is_fixed(value) or spec is None or spec.dtype is None:
        return False
    return all(isinstance(d, int) for d in spec.known_dims) and not any(value in r.writes() for r in graph.readers(value))


def constants_of(calls: Sequence[KernelCall], names: Sequence[str], result_names: Sequence[str], *tensors: Any) -> list[Any]:
    """Return kept values, each contiguous.

    Args:
        calls: in their order.
        names: of the persistables ``tensors``, as a step writes them.
        result_names: of the values.
        tensors: of these names.
    """
    values = dict(zip(names, tensors, strict=True))
    for i in calls:
        try:
            with torch.inference_mode():
                out = _computed(i, values)
            values.update(zip(map(repr, values_of(i.results[:1])), out if isinstance(i.results[0], list) else [out], strict=True))
        except ForeshapeError:
            raise
        except Exception as error:
            site = i.op.call_site
            raise ExecutionError(f"{i.op.type}: the kernel failed: {error}{f' (at {site.short()})' if site is not None else ''}") from error
    return [values[name].contiguous() for name in result_names]


def _computed(i: KernelCall, values: dict[str, Any]) -> Any:
    if isinstance(i, FusedCall):  # a constant
        return function_of(i.kernel, 0)()
    arguments = [[None if v is None else values[repr(v)] for v in a] if isinstance(a, list) else None if a is None else values[repr(a)] for a in i.arguments]
    assert isinstance(i, OpCall)
    out = i.kernel(*arguments, **({"requested": tuple(index == 0 for index in range(len(i.results)))} if i.kernel_requested else {}))
    return out[0] if len(i.results) > 1 else out
