"""Programs with many ops: what is done with them takes steps in proportion, whether they stand one behind another or beside each other."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.some import each

import foreshape as fs
from foreshape import layer
from foreshape.runtime.report import report_page

FEW = {"plan": 150, "run": 120}
"""Where what grows with the square is a small part of all."""


def of_one_value(x: Any, count: int) -> Any:
    return layer.sum([layer.relu(x) for _ in range(count)])


def behind_a_layer(x: Any, count: int) -> Any:
    return of_one_value(layer.fc(x, 3), count)


def one_by_one(x: Any, count: int) -> Any:
    for _ in range(count):
        x = layer.tanh(x)
    return x


def towers(x: Any, count: int) -> Any:
    out = layer.mean(layer.sum([layer.fc(x, 3) for _ in range(count)]))
    fs.optimizer.SGD(0.1).minimize(out)
    return out


def run(main: fs.Program, startup: fs.Program, out: Any, check: bool = False) -> None:
    scope, executor = fs.Scope(), fs.Executor(check=check)
    executor.run(startup, scope=scope)
    executor.run(main, {"x": np.ones((2, 4), "float32")}, [out], scope)


DONE: dict[str, Callable[[fs.Program, fs.Program, Any], object]] = {
    "summary": lambda main, startup, out: str(main.summary()), "report": lambda main, startup, out: report_page(main),
    "plan": lambda main, startup, out: fs.plan(main, [out]).peak(batch=3), "run": run, "checked run": lambda *given: run(*given, check=True),
    "text": lambda main, startup, out: str(main), "saved and loaded": lambda main, startup, out: fs.load_program(fs.save_program(main)).infer(),
}  # fmt: skip


def steps(net: Callable[..., Any], count: int, what: str) -> int:
    """How many functions are called, of Python and of C."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        out = net(layer.data("x", ["batch", 4]), count)
    calls = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()
    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        DONE[what](main, startup, out)
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls


@pytest.mark.long_cases("of_one_value-plan", "of_one_value-run", "of_one_value-report")
@pytest.mark.parametrize("what", DONE)
@pytest.mark.parametrize("net", each(4, (of_one_value, behind_a_layer, one_by_one, towers)))
def test_twice_as_many_ops_take_twice_as_many_steps(net: Callable[..., Any], what: str) -> None:
    count = FEW.get(what, 16) if net is of_one_value else 8 if net is towers else 24
    steps(net, count, what)  # what is looked up once
    few, more, most = (steps(net, count * times, what) for times in (1, 2, 4))
    assert most - more <= 2.5 * (more - few), f"{few}, {more}, {most}"


@pytest.mark.long
def test_thousands_beside_each_other_are_shown() -> None:
    behind_a_layer(layer.data("x", ["batch", 4]), 3000)
    assert len(str(fs.default_main_program().summary()).split("\n")) < 60


def test_towers_are_one_line_each_time() -> None:
    towers(layer.data("x", ["batch", 4]), 60)
    assert "x 60 in parallel" in str(fs.default_main_program().summary())
