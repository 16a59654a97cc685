"""Work without garbage collection: afterwards no collection looks at its objects, and the collector goes on as before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from foreshape.core import gc_pause


@pytest.fixture(autouse=True)
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gc_pause, "_old", [0])
    gc.unfreeze()  # the objects of the session
    gc.collect()
    gc.enable()
    yield
    gc.enable()
    gc.freeze()


@gc_pause.collector_waits
def lists(count: int) -> list[list[Any]]:
    assert not gc.isenabled()
    return [[] for _ in range(count)]


def test_new_objects_are_taken_for_old() -> None:
    objects = lists(10_000)
    assert gc.isenabled() and not gc.get_freeze_count()
    young = sum(isinstance(x, list) and not x for x in gc.get_objects(generation=0))
    assert young < 1000 < len(objects)


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    lists(1000)
    assert frozen and gc.get_freeze_count() >= frozen - 100
    gc.unfreeze()


def test_objects_that_a_user_froze_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count them takes as long as to look at them: a second for the objects of a large process, at each program."""
    counts: list[int] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(1) or 1_000_000)
    for _ in range(3):
        lists(100)
    assert len(counts) == 1


def test_objects_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc_pause, "_MOST", 5000)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    gc.collect()
    first = lists(4000)
    second = lists(4000)
    assert calls == ["freeze"] and first and second


def test_garbage_among_them_is_collected() -> None:
    class Circle:
        def __init__(self) -> None:
            self.itself = self

    @gc_pause.collector_waits
    def circle() -> weakref.ref[Circle]:
        return weakref.ref(Circle())

    garbage = circle()
    assert garbage() is not None
    gc.collect()
    assert garbage() is None


def test_it_goes_on_after_an_error_and_stays_off_where_it_was_off() -> None:
    @gc_pause.collector_waits
    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        fails()
    assert gc.isenabled()
    gc.disable()
    lists(3)
    assert not gc.isenabled()
