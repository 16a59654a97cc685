"""Values that must not change with their memory: they are copied before an instruction changes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from foreshape.compiler.lowering.kernel_calls import Argument, FusedCall, KernelCall, OpCall, Value, values_of
from foreshape.compiler.lowering.memory_uses import Place, place_of, views_made
from foreshape.core.spec import LOD_TENSOR
from foreshape.machine.kernels.call_record import X, method
from foreshape.machine.kernels.fused import FusedKernel


def with_own_memory(instructions: list[KernelCall], fetches: Sequence[Value], new: Callable[[], int]) -> list[Value]:
    """Copy a view of memory that an instruction changes, such as a reshaped parameter, if it is needed later.

    Args:
        instructions: of a block; the copies are put in.
        new: returns an unused number for a value.

    Returns:
        The values to fetch then.
    """
    if not any(i.in_place or i.stores for i in instructions):
        return list(fetches)
    views: dict[Value, Value] = {}
    changed: set[Place] = set()
    for i in instructions:
        views.update(views_made(i))
        changed.update(place_of(v, views) for v in i.changes())
    if not any(place_of(v, views) in changed for v in views):
        return list(fetches)
    last = {v: index for index, i in enumerate(instructions) for v in i.uses()} | dict.fromkeys(fetches, len(instructions))
    views, alive, copied = {}, dict[Place, list[Value]](), dict[Value, Value]()
    out: list[KernelCall] = []
    for index, i in enumerate(instructions):
        mine = i.changes()
        for place in {place_of(v, views) for v in mine}:
            for v in alive.pop(place, ()):
                if last.get(v, -1) >= index and v not in mine:
                    copied[v] = replace(v, index=new())
                    out.append(FusedCall(i.op, [v], [copied[v]], position=i.position, kernel=FusedKernel("{op} clone", method(X, "clone"))))
        if copied:
            read_instead(i, copied)
        out.append(i)
        for v, source in views_made(i):
            views[v] = source
            if (place := place_of(v, views)) in changed and v.spec is not None and v.spec.kind is LOD_TENSOR:
                alive.setdefault(place, []).append(v)
    instructions[:] = out
    return [copied.get(v, v) for v in fetches]


def read_instead(i: KernelCall, copied: dict[Value, Value]) -> None:
    """Let an instruction read copies."""

    def instead(argument: Argument) -> Argument:
        return (
            [None if v is None else copied.get(v, v) for v in argument]
            if isinstance(argument, list)
            else None
            if argument is None
            else copied.get(argument, argument)
        )

    if any(v in copied for v in values_of(i.arguments)):
        i.arguments = [instead(a) for a in i.arguments]
    i.copies = [(copy, copied.get(source, source)) for copy, source in i.copies]
    if isinstance(i, OpCall) and i.before is not None:
        i.before = [v and copied.get(v, v) for v in i.before]
