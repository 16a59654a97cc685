"""The order in which calls run: it lowers the peak where it can, and changes no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering import fusion, lower, order
from foreshape.compiler.lowering.fusion import graph
from foreshape.compiler.memory.liveness import liveness
from foreshape.compiler.memory.plan import Plan
from foreshape.language.wire import framework_pb2

Built = tuple[fs.Program, fs.Program, Any]


def built(describe: Callable[[], Any]) -> Built:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        return main, startup, describe()


def wide_branches() -> Any:
    """Branches that are wide inside and narrow at their ends, described side by side."""
    x = layer.data("x", shape=["batch", 8])
    wide = [layer.fc(x, 400, "relu") for _ in range(4)]
    narrow = [layer.fc(w, 4) for w in wide]
    return narrow[0] + narrow[1] + narrow[2] + narrow[3]


def trained() -> Any:
    x, y = layer.data("x", shape=["batch", 8]), layer.data("y", shape=["batch", 4])
    h = x
    for _ in range(4):
        h = layer.dropout(layer.fc(h, 300, "tanh"), 0.2)
    loss = layer.mean(layer.square(layer.fc(h, 4) - y))
    fs.optimizer.Adam(0.01).minimize(loss)
    return loss


def planned(program: fs.Program, fetch: Any, monkeypatch: pytest.MonkeyPatch, ordered: bool) -> Plan:
    with monkeypatch.context() as patch:
        if not ordered:
            patch.setattr(graph, "reorder", lambda lowered, places: places)
        lowered = lower(program.global_block, [fetch.name])
        fusion.fuse(lowered)
        return Plan(program, [fetch], liveness(lowered))


@pytest.mark.parametrize("describe", [wide_branches, trained], ids=lambda d: d.__name__)
def test_another_order_needs_less(describe: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    main, _, fetch = built(describe)
    own, other = (planned(main, fetch, monkeypatch, ordered) for ordered in (False, True))
    assert own.ops == main.global_block.ops != other.ops
    assert sorted(map(id, own.ops)) == sorted(map(id, other.ops))
    assert all(other.peak(batch=b) <= own.peak(batch=b) for b in (1, 64)) and other.peak(batch=1) < own.peak(batch=1)
    forward = [op for op in other.ops if not op.role]
    assert forward == [op for op in own.ops if not op.role] or describe is wide_branches


@pytest.fixture(params=["greedy", "early"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way to an order that is tried alone."""
    other = {"greedy": "early", "early": "greedy"}[request.param]
    monkeypatch.setattr(order._PrecedenceGraph, other, lambda self, *given: list(range(len(self.waits))))  # pyright: ignore[reportPrivateUsage]
    return request.param


def test_no_op_runs_before_what_it_reads_or_after_who_changes_that(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main, _, fetch = built(trained)
    ops = planned(main, fetch, monkeypatch, True).ops
    assert ops != main.global_block.ops and sorted(map(id, ops)) == sorted(map(id, main.global_block.ops)), way
    at = {id(op): k for k, op in enumerate(ops)}
    own = main.global_block.ops
    for k, op in enumerate(own):
        for later in own[k + 1 :]:
            tied = op.all_writes() & (later.all_reads() | later.all_writes()) or op.all_reads() & later.all_writes()
            if tied or all(o.operator is not None and o.operator.random for o in (op, later)):
                assert at[id(op)] < at[id(later)], f"{op} must run before {later}"


@pytest.mark.quick_cases("greedy")
@pytest.mark.usefixtures("way")
def test_the_numbers_are_those_of_the_programs_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    main, startup, loss = built(trained)
    rng = np.random.RandomState(3)
    feeds = [{"x": rng.standard_normal((16, 8)).astype("f"), "y": rng.standard_normal((16, 4)).astype("f")} for _ in range(4)]

    def run() -> tuple[list[Any], dict[str, Any]]:
        executor, scope = fs.Executor(seed=5), fs.Scope()
        executor.run(startup, scope=scope)
        losses = [executor.run(main, feed, [loss], scope)[0] for feed in feeds]
        return losses, {v.name: scope.get(v.name) for v in main.global_block.vars.values() if v.persistable and v.name in scope}

    here = run()
    monkeypatch.setattr(graph, "reorder", lambda lowered, places: places)
    there = run()
    np.testing.assert_array_equal(here[0], there[0])
    for name, value in here[1].items():
        np.testing.assert_array_equal(value, there[1][name], err_msg=name)


def test_what_is_stored_in_the_scope_waits_for_who_reads_what_was_there() -> None:
    """Adamax's power of beta is moved on by an op that reads nothing else, and could run first."""
    main, _, loss = built(lambda: _adamax(3))
    lowered = lower(main.global_block, [loss.name])
    fusion.fuse(lowered)
    places = {(i.op.type, i.op.inputs[slot][0]): at for at, i in enumerate(lowered.calls) for slot in ("Beta1Pow", "X") if i.op.inputs.get(slot)}
    powers = [name for kind, name in places if kind == "adamax"]
    assert len(powers) == 6
    assert all(places["adamax", name] < places["scale", name] for name in powers)


def _adamax(layers: int) -> Any:
    h = layer.data("x", shape=["batch", 8])
    for _ in range(layers):
        h = layer.fc(h, 8, "tanh")
    loss = layer.mean(h)
    fs.optimizer.Adamax(0.01).minimize(loss)
    return loss


def test_what_is_stored_in_the_scope_waits_for_who_changes_what_was_there() -> None:
    """One parameter's power of beta is written where another's is, which that one's update moves on in place; both are in a file as they like."""
    main, startup, loss = built(lambda: _adam(2))
    described = framework_pb2.ProgramDesc.FromString(main.to_bytes())
    updates = [op for op in described.blocks[0].ops if op.type == "adam"]
    others = next(slot for slot in updates[0].inputs if slot.parameter == "Beta2Pow").arguments[0]
    next(slot for slot in updates[1].outputs if slot.parameter == "Beta2PowOut").arguments[0] = others
    crossed, x = fs.Program.from_bytes(described.SerializeToString()), np.random.RandomState(1).rand(4, 8).astype("float32")

    def run(check: bool) -> tuple[Any, Any]:
        executor, scope = fs.Executor(seed=2, check=check), fs.Scope()
        executor.run(startup, scope=scope)
        for _ in range(3):
            (out,) = executor.run(crossed, {"x": x}, [loss.name], scope)
        return out, scope.get(others)

    for here, there in zip(run(False), run(True), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-5)


def _adam(layers: int) -> Any:
    h = layer.data("x", shape=["batch", 8])
    for _ in range(layers):
        h = layer.fc(h, 8, "tanh")
    loss = layer.mean(h * h)
    fs.optimizer.Adam(0.1, beta1=0.5, beta2=0.7).minimize(loss)
    return loss
