"""A rule about memory that fails stops nothing: the run goes on, and the plan says of which op not all is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import foreshape as fs
from foreshape import layer
from foreshape.apps.cli.commands import app
from foreshape.core.dims import symbol
from foreshape.errors import MemoryPlanError
from foreshape.language.operator import registry
from foreshape.language.operator.operator import Operator
from foreshape.language.ops import FLOATING, NOT_DIFFERENTIABLE, operand, result
from foreshape.language.program import Program
from foreshape.language.program.current import current_block
from foreshape.machine.kernels import convolution
from foreshape.runtime.engine import Executor, Scope


def _fails(self: Any, X: Any) -> Any:
    raise KeyError("no such kernel")


def _asks_a_symbol(self: Any, X: Any) -> Any:
    return 8 if X.dims[0] else 0


RULES: dict[str, tuple[str, Callable[..., Any], str]] = {
    "fails": ("workspace", _fails, "KeyError"),
    "asks whether a symbol is zero": ("workspace", _asks_a_symbol, "is not known before values are fed"),
    "gives no number": ("workspace", lambda self, X: None, "seen None"),
    "gives a negative number": ("workspace", lambda self, X: -1, "seen -1"),
    "keeps what fails": ("retained_bytes", _fails, "KeyError"),
    "keeps no number": ("retained_bytes", lambda self, X: {"Out": 1.5}, "seen 1.5"),
}


@pytest.fixture(params=list(RULES))
def doubled(request: pytest.FixtureRequest) -> Iterator[tuple[Program, str]]:
    """A program of an operator whose rule about memory fails, and what is said of it."""
    hook, rule, says = RULES[request.param]
    name = f"doubled_in_doubt_{list(RULES).index(request.param)}"
    made: dict[str, Any] = {
        "__doc__": "Out = 2 X.", "type": name, "X": operand(FLOATING), "Out": result(), "gradient": NOT_DIFFERENTIABLE,
        "infer_shape": lambda self, X: X, "kernel": lambda self, X: 2 * X, hook: rule,
    }  # fmt: skip
    type("DoubledInDoubt", (Operator,), made)
    program = Program()
    with fs.program_guard(program):
        x = layer.data("x", shape=["batch", 3])
        program.global_block.apply(name, {"X": x})
    try:
        yield program, says
    finally:
        del registry._registry[name]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("check", [False, "fused", True])
def test_the_run_goes_on(doubled: tuple[Program, str], check: Any) -> None:
    program, _ = doubled
    out = next(iter(program.global_block.ops[-1].output_names()))
    got = Executor(check=check, memory_limit="1 GiB").run(program, {"x": np.ones((4, 3), "float32")}, [out], Scope())[0]
    np.testing.assert_array_equal(got, 2 * np.ones((4, 3)))


@pytest.mark.quick_cases("fails", "gives no number")
def test_the_plan_says_what_it_leaves_out(doubled: tuple[Program, str], tmp_path: Any) -> None:
    program, says = doubled
    plan = fs.plan(program)
    (unknown,) = plan.unknown()
    assert unknown.op.type == program.global_block.ops[-1].type and says in unknown.why
    assert plan.unknown(batch=4) == plan.unknown()
    assert plan.peak(batch=4) == 2 * 4 * 4 * 3
    assert "without what doubled_in_doubt_" in repr(plan) and "without what" in plan.peak_words(batch=4)
    out = next(iter(program.global_block.ops[-1].output_names()))
    with pytest.raises(MemoryPlanError, match="without what doubled_in_doubt_"):
        Executor(memory_limit=8).run(program, {"x": np.ones((4, 3), "float32")}, [out], Scope())
    path = tmp_path / "net.pdmodel"
    path.write_bytes(program.to_bytes())
    printed = CliRunner().invoke(app, ["plan", str(path), "--set", "batch=4"])
    assert printed.exit_code == 0 and "not in these figures is the workspace of doubled_in_doubt_" in printed.output, printed.output
    facts = json.loads(CliRunner().invoke(app, ["plan", str(path), "--set", "batch=4", "--json"]).stdout)
    assert facts["unknown"][0]["op"] == unknown.op.type and says in facts["unknown"][0]["why"]


def test_a_rule_that_has_no_number_for_some_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    with fs.program_guard(program):
        x = layer.data("x", shape=["batch", 3])
        out = layer.softmax(x)
    batch = symbol("batch")
    monkeypatch.setattr(type(program.global_block.ops[-1].operator), "workspace", lambda self, X, **named: 64 // (batch - 4) + 1)
    plan = fs.plan(program, out)
    assert not plan.unknown() and not plan.unknown(batch=5) and plan.peak(batch=5) == 2 * 5 * 12 + 65
    assert [u.op.type for u in plan.unknown(batch=4)] == ["softmax"] and plan.peak(batch=4) == 2 * 4 * 12
    got = Executor(memory_limit="1 MiB").run(program, {"x": np.zeros((4, 3), "float32")}, [out], Scope())[0]
    np.testing.assert_allclose(got, np.full((4, 3), 1 / 3), rtol=1e-6)


def test_an_op_within_a_block_and_one_that_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise ValueError("no such kernel")

    monkeypatch.setattr(convolution.onednn, "convolution", fails)
    program = Program()
    with fs.program_guard(program):
        x = layer.data("x", shape=["batch", 2, 5, 5])
        w = layer.data("w", shape=[3, 2, 3, 3])
        large = layer.greater_than(layer.reduce_sum(x), layer.fill_constant([1], "float32", 0.0))

        def convolved() -> Any:
            return current_block().apply("conv2d", {"Input": x, "Filter": w})

        def zeros() -> Any:
            return layer.scale(convolved(), 0.0)

        inner = layer.cond(large, convolved, zeros)
        outer = program.global_block.apply("conv2d", {"Input": x, "Filter": w})
        total = layer.add(inner, outer)
    found = [u.op.type for u in fs.plan(program, total).unknown()]
    assert found == ["conv2d"] * 3, found
    x_fed, w_fed = np.ones((2, 2, 5, 5), "float32"), np.ones((3, 2, 3, 3), "float32")
    got = Executor().run(program, {"x": x_fed, "w": w_fed}, [total], Scope())[0]
    np.testing.assert_allclose(got, 2 * torch.conv2d(torch.from_numpy(x_fed), torch.from_numpy(w_fed)).numpy())


def test_an_estimate_of_work_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    with fs.program_guard(program):
        x = layer.data("x", shape=["batch", 3])
        out = program.global_block.apply("matmul_v2", {"X": x, "Y": layer.data("y", shape=[3, 2])})
    for rule in (_fails, lambda self, X, Y: "many", lambda self, X, Y: 1 // (symbol("batch") - 4)):
        monkeypatch.setattr(type(program.global_block.ops[-1].operator), "work", rule)
        program.touch()
        monkeypatch.setattr("foreshape.runtime.engine.executor.threads_here", lambda: 2)
        got = Executor().run(program, {"x": np.ones((4, 3), "float32"), "y": np.ones((3, 2), "float32")}, [out], Scope())[0]
        np.testing.assert_array_equal(got, np.full((4, 2), 3))
