"""What must be true of any program: no more is held than planned, every value is in its record, and it is the same however it is run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering.call_memory import number
from foreshape.compiler.memory.records import LiveBuffer
from foreshape.core.spec import LOD_TENSOR
from support.observed import Observed, observe, planned_places
from support.replayed import Ran, Replayed, run

RELATIVE, ABSOLUTE = 1e-4, 1e-5


def check_bytes(of: Observed) -> None:
    assert of.ran is not None
    timeline = of.ran.plan.timeline(**of.symbols).tolist()
    for moment in of.moments:
        i = planned_places(of, moment)[0].instruction
        assert moment.total <= timeline[i.position], f"{i.op.type}, {moment.at}: {moment.total} bytes are held, and {timeline[i.position]} are planned"


def check_places(of: Observed) -> None:
    """Each value that is alive is in a record that is alive and large enough, and what is in two records is in two memories."""
    for moment in of.moments:
        for place, held in zip(planned_places(of, moment), moment.held, strict=True):
            what = f"{place.instruction.op.type}, {moment.at}"
            owners: dict[int, LiveBuffer] = {}
            for value, memory in held:
                record = place.live.places.get(value)
                if record is None:
                    continue
                assert record.first <= place.instruction.position <= record.last, f"{what}: {value.name} is there, and {record.name} is not"
                for at, size in memory.items():
                    if not record.elements and value.variable is not None and value.variable.kind is LOD_TENSOR:
                        assert size <= number(record.size, of.symbols), f"{what}: {value.name} has {size} bytes, and {record.name} {record.size}"
                    owner = owners.setdefault(at, record)
                    assert owner is record or may_share(owner, record), f"{what}: {owner.name} and {record.name} are in one memory"


def may_share(a: LiveBuffer, b: LiveBuffer) -> bool:
    """Whether two records are expected to hold one memory: one that of the other, or both that of a third, of which both may be views."""
    return not reached(a).isdisjoint(reached(b))


def reached(record: LiveBuffer) -> set[int]:
    """The records whose memory one may hold, its own among them."""
    waiting, met = [record], set[int]()
    while waiting:
        one = waiting.pop().root()
        if id(one) not in met:
            met.add(id(one))
            waiting += [*one.elements, *one.beside]
    return met


def bits(tensors: list[torch.Tensor]) -> list[bytes]:
    return [t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors]


def is_same(a: Ran, b: Ran) -> bool:
    """Whether all fetches and all that is kept are the same to the bit."""
    state = a.state.keys() == b.state.keys() and bits(list(a.state.values())) == bits([b.state[n] for n in a.state])
    return state and [bits(f) for f in a.fetched] == [bits(f) for f in b.fetched]


def assert_close(a: Ran, b: Ran) -> None:
    for step, (one, other) in enumerate(zip(a.fetched, b.fetched, strict=True)):
        for at, (x, y) in enumerate(zip(one, other, strict=True)):
            np.testing.assert_allclose(x.numpy(), y.numpy(), RELATIVE, ABSOLUTE, err_msg=f"fetch {at} of step {step}")
    for name, x in a.state.items():
        np.testing.assert_allclose(x.numpy(), b.state[name].numpy(), RELATIVE, ABSOLUTE, err_msg=name)


def check_ways(of: Replayed) -> Ran:
    usual, plain = run(of), run(of, fused=False)
    assert is_same(run(of, "filled"), usual), "something reads what was given away"
    assert is_same(run(of, "checked"), usual), "instruction by instruction it is not the same"
    assert is_same(run(of, reuse=False), usual), "something was written over"
    assert is_same(run(of, "filled", fused=False), plain), "op by op, something reads what was given away"
    every = run(of, "checked", fused=False, every=True)  # which asks some kernels for more, and those may take another way to it
    assert is_same(run(of, "filled", fused=False, every=True), every), "with every result, something reads what was given away"
    assert_close(usual, plain)
    assert_close(every, plain)
    return usual


X = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)


def small(fetch: list[Any], feed: dict[str, Any]) -> Replayed:
    """The default program, started by the default startup program."""
    startup = fs.default_startup_program()

    def start() -> fs.Scope:
        scope = fs.Scope()
        fs.Executor(seed=1).run(startup, scope=scope)
        return scope

    return Replayed(fs.default_main_program(), tuple(v.name for v in fetch), feed, start)


def proved(fetch: list[Any], feed: dict[str, Any] | None = None) -> list[np.ndarray]:
    """What the first step fetches, after all was found to be as planned, in every way to run it."""
    of = small(fetch, {"x": X} if feed is None else feed)
    watched = observe(of)
    check_bytes(watched)
    check_places(watched)
    return [t.numpy() for t in check_ways(of).fetched[0]]


def data() -> Any:
    return layer.data("x", shape=["batch", 4])
