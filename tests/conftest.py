"""Paths and options that all tests share."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

from support.some import examples, is_quick  # in the folder of this file

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: threads of each would wait for those of the others
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that tests ask for else keep a core busy while they wait for one that has none
os.environ.setdefault("FORESHAPE_VERIFY_PASSES", "1")  # the conditions after each pass
os.environ.pop("COLUMNS", None)  # which would say how wide the command's tables are
# A slow or busy machine is none of the faults that are looked for.
settings.register_profile("anywhere", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("anywhere")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest takes long."""
    for item in items:
        if item.get_closest_marker("longest") is not None:
            item.add_marker(pytest.mark.long)


def with_few_quick(calls: list[Any], *names: str, one_in: int = 0, turn: int = 0) -> list[Any]:
    """Cases of a test, of which the quick ones are quick that have these names, or else the one in so many whose turn it is; the others are long.
    Tests over the same cases may take turns (``turn``), so that each case is quick in one of them."""
    quick = [call.id for call in calls if not any(mark.name in ("long", "longest") for mark in call.marks)]
    if unknown := set(names) - set(quick):
        raise pytest.UsageError(f"no quick cases {sorted(unknown)}; there are {quick}")
    chosen = set(names) or {name for name in quick if is_quick(name, one_in, turn)} or {*quick[:1]}
    return [call if call.id in chosen else replace(call, marks=[*call.marks, pytest.mark.long.mark]) for call in calls]


def with_some_long(calls: list[Any], *names: str) -> list[Any]:
    """Cases of a test, of which those with these names are long and the others as they are."""
    if unknown := set(names) - {call.id for call in calls}:
        raise pytest.UsageError(f"no cases {sorted(unknown)}; there are {[call.id for call in calls]}")
    return [replace(call, marks=[*call.marks, pytest.mark.long.mark]) if call.id in names else call for call in calls]


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    """Where ``-m`` begins with "not long", no tests of long cases but for one of a function without quick ones: two thirds of all cases are long,
    and what pytest makes of each takes as long as many quick tests do. The names of the others stay."""
    yield
    calls = metafunc._calls  # pytest has no other way to leave out a case and keep the names of those after it
    for rule in metafunc.definition.iter_markers("quick_cases"):
        calls[:] = with_few_quick(calls, *rule.args, **rule.kwargs)
    for rule in metafunc.definition.iter_markers("long_cases"):
        calls[:] = with_some_long(calls, *rule.args)
    if metafunc.config.option.markexpr.startswith("not long") and calls:
        long = metafunc.definition.get_closest_marker("long") is not None
        quick = [] if long else [call for call in calls if not any(mark.name in ("long", "longest") for mark in call.marks)]
        calls[:] = quick or calls[:1]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No search for garbage while what is collected grows. Later ones are ten times as rare as usual: what torch makes to trace a network
    is much, and little of it garbage."""
    gc.disable()
    result = yield
    keep()
    gc.set_threshold(10 * gc.get_threshold()[0], *gc.get_threshold()[1:])
    gc.enable()
    return result


_kept_modules = 0


def keep() -> None:
    """What there is stays: no search for garbage, of which many tests ask for one, needs to look through it again."""
    global _kept_modules
    gc.collect()
    gc.freeze()
    _kept_modules = len(sys.modules)


_since_kept = 0
AT_A_TIME = 50
"""So many tests leave little enough to look through: torch and the caches of its traces grow all the while, and each search for garbage with them."""


def pytest_runtest_logfinish() -> None:
    """What tests have left stays too: modules, and the caches of what they call."""
    global _since_kept
    _since_kept += 1
    if len(sys.modules) > _kept_modules + 100 or _since_kept >= AT_A_TIME:
        _since_kept = 0
        keep()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the golden texts again instead of comparing")


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    """Whether golden texts are to be written again."""
    return bool(request.config.getoption("--update"))


@pytest.fixture
def on_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products by torch's BLAS, whatever the processor prefers: oneDNN takes more memory for small ones."""
    monkeypatch.setattr("foreshape.machine.kernels.products._prefers_onednn", lambda: False)


@pytest.fixture(autouse=True)
def the_same_numbers_each_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor without a seed takes a test's own, so that what fails once fails again."""
    from foreshape import Executor

    seed = crc32(request.node.nodeid.encode())
    monkeypatch.setitem(inspect.unwrap(Executor.__init__).__kwdefaults__, "seed", seed)


@pytest.fixture(autouse=True)
def fresh_default_programs():
    """Each test describes into default programs of its own, and runs in a default scope of its own."""
    from foreshape.language.program import Program, program_guard
    from foreshape.runtime.engine import scope

    scope._default.clear()
    with program_guard(Program(), Program()):
        yield
