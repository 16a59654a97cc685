"""A lowered step cut in two: the forward pass, and the backward pass later, with the gradients of its results from outside.

The second half takes what it needs of the first one as it is, without feed and fetch: tensors, offsets, and values that only kernels understand. So each
call of the first half has memory of its own, which lives until its second half has run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from foreshape.compiler.lowering.kernel_calls import FusedCall, KernelCall, OpCall, Step, Value, region_of
from foreshape.compiler.lowering.memory_uses import Place, place_of, views_made
from foreshape.compiler.lowering.own_memory import read_instead
from foreshape.core.spec import LOD_TENSOR
from foreshape.errors import SchemaError
from foreshape.language.program import Role
from foreshape.machine.kernels.call_record import X, method, names_in
from foreshape.machine.kernels.fused import FusedKernel


@dataclass(slots=True)
class Halves:
    """The two halves of a step.

    Attributes:
        front: gives the results, their offsets, and what it hands on.
        back: takes the gradients of the results, the offsets of ragged ones, and, where there are any, the list of what is handed on; gives the gradients.
        changed: the places among the handed values of those whose memory the second half changes: it runs once with them.
        given: the places among the handed values of results themselves, each with its place among the results.
        outside: the places among the handed values of inputs and results, which others have too.
    """

    front: Step
    back: Step
    changed: list[int]
    given: list[tuple[int, int]]
    outside: list[int]


def cut(lowered: Step, results: int, gradients: Sequence[str]) -> Halves:
    """Return the halves of a step.

    Args:
        lowered: its first fetches are the results, the others gradients.
        results: the number of results.
        gradients: the names of the fed gradients of results.

    Raises:
        SchemaError: a result is not there before the backward pass begins.
    """
    fed = {v for v in lowered.feeds if v.name in gradients}
    calls = lowered.calls
    begins = next((index for index, i in enumerate(calls) if i.op.role & Role.BACKWARD or not fed.isdisjoint(i.reads())), len(calls))
    front, back = calls[:begins], calls[begins:]
    outs, grads = lowered.fetches[:results], lowered.fetches[results:]
    values = {v for i in front for v in _makes(i)}
    late = next((v for v in outs if v not in values and not v.feed and not v.persistable), None)
    if late is not None:
        raise SchemaError(f"{late.name} is made in the backward pass, and is asked for in the forward pass")
    numbers = count(1 + max((v.index for i in calls for v in (*i.uses(), *_makes(i))), default=0))
    _snapshot(front, back, numbers)
    views = {view: source for i in (*front, *back) for view, source in views_made(i)}
    later = [v for i in back for v in i.uses()] + grads
    values = {v for i in front for v in _makes(i)} | {v for v in lowered.feeds if v not in fed} | {v.lod for v in lowered.feeds if v.lod and v not in fed}
    handed = [v for v in dict.fromkeys(later) if v in values]
    results_apart = _apart(front, outs, handed, views, numbers)
    result_places = [(index, results_apart.index(v)) for index, v in enumerate(handed) if v in results_apart]
    grads = _apart(back, grads, [], views, numbers)
    changed = {place_of(v, views) for i in back for v in (*i.changes(), *((i.into,) if i.into is not None else ()))}
    feeds = [v for v in lowered.feeds if v not in fed]
    return Halves(
        replace(lowered, calls=front, feeds=feeds, fetches=results_apart, handed=handed, **_scope_parts(lowered, front, results_apart)),
        replace(lowered, calls=back, feeds=[v for v in lowered.feeds if v in fed], fetches=grads, taken=handed, **_scope_parts(lowered, back, grads)),
        [index for index, v in enumerate(handed) if place_of(v, views) in changed],
        result_places,
        [index for index, v in enumerate(handed) if v in feeds or v in results_apart],
    )


def _makes(i: KernelCall) -> Iterable[Value]:
    """Return all values that a call makes: results, copies, and the scope's new values."""
    return [*i.writes(), *(copy for copy, _ in i.copies), *(place for place, _ in i.stores)]


def _snapshot(front: list[KernelCall], back: Sequence[KernelCall], numbers: Iterator[int]) -> None:
    """Let the second half read copies of the scope's values that the first one changes: another call may change them meanwhile."""
    names = {v.name for i in front for v in i.changes() if v.persistable} | {place.name for i in front for place, _ in i.stores}
    read = [v for v in dict.fromkeys(v for i in back for v in i.uses()) if v.persistable and v.name in names]
    if not read:
        return
    copied = {v: _copy(front, v, numbers) for v in read}
    for i in back:
        read_instead(i, copied)


def _copy(calls: list[KernelCall], value: Value, numbers: Iterator[int]) -> Value:
    """Append a copy of a value to some calls."""
    copy = Value(value.name, next(numbers), variable=value.variable, made=value.made, lod=value.lod, source=value.source)
    calls.append(FusedCall(calls[-1].op, [value], [copy], position=calls[-1].position, kernel=FusedKernel("{op} clone", method(X, "clone"))))
    return copy


def _apart(calls: list[KernelCall], results: Sequence[Value], handed: Sequence[Value], views: dict[Value, Value], numbers: Iterator[int]) -> list[Value]:
    """Return results whose memory nothing else has, copies where needed: torch may change what it is given, and takes a gradient for its own."""
    unknown = {v for i in calls if region_of(i) is not None or i.effects.outlives for v in i.writes()}
    holders: dict[Place, set[Value]] = {}
    for v in handed:
        holders.setdefault(place_of(v, views), set()).add(v)
    places: set[Place] = set()
    out: list[Value] = []
    for v in results:
        place = place_of(v, views)
        outside = isinstance(place, str) or place.feed or place in unknown or v in unknown
        is_shared = place in places or not holders.get(place, set()) <= {v}
        places.add(place)
        plain = v.spec is not None and v.spec.kind is LOD_TENSOR
        out.append(_copy(calls, v, numbers) if (outside or is_shared) and plain and calls else v)
    return out


def _scope_parts(lowered: Step, calls: Sequence[KernelCall], fetched: Sequence[Value]) -> dict[str, list[object]]:
    """Return the scope's values that some calls need, and the constants made of them."""
    names = {name for i in calls if isinstance(i, FusedCall) for name in names_in(i.kernel.call)}
    derived = [entry for entry in lowered.derived if entry[0] in names]
    read = {v for i in calls for v in (*i.uses(), *i.writes())} | set(fetched) | {v for _, sources, _ in derived for v in sources}
    read |= {v for i in calls if isinstance(i, OpCall) for v in i.updated}
    return {"persistables": [v for v in lowered.persistables if v in read], "derived": [*derived]}
