"""Data classes whose methods are shared: what they do as Python's do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from foreshape.core.data_class import data_class, field


@data_class(frozen=True)
class Point:
    kind: ClassVar[str] = "point"
    x: int
    y: int = 2
    note: str = field(default="", compare=False, repr=False)


@data_class(frozen=True)
class Named(Point):
    kind: ClassVar[str] = "named"
    name: str = "a"


@data_class(frozen=True)
class Empty:
    pass


@data_class()
class Bag:
    size: int
    held: list[int] = field(default_factory=list[int])


@data_class(eq=False)
class Same:
    size: int


@data_class(repr=False)
class Shown:
    size: int

    def __repr__(self) -> str:
        return f"<{self.size}>"


def test_values_are_given_by_place_by_name_and_by_default() -> None:
    assert [(p.x, p.y, p.note) for p in (Point(1), Point(1, 3), Point(y=4, x=5), Point(1, 2, "n"))] == [(1, 2, ""), (1, 3, ""), (5, 4, ""), (1, 2, "n")]
    assert Named(1, name="b") == Named(1, 2, "", "b") and Named.kind == "named" and Named(1).kind == "named"
    one, other = Bag(1), Bag(1)
    one.held.append(7)
    assert other.held == [] and one != other


@pytest.mark.parametrize(
    ("given", "named", "says"),
    [((), {}, "Point needs x"), ((1, 2, "", 4), {}, "takes 3 values; seen 4"), ((1,), {"x": 2}, "given x twice"), ((1,), {"z": 2}, "has no z")],
)
def test_values_that_do_not_fit_are_refused(given: Any, named: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Point(*given, **named)


def test_objects_are_compared_by_value_within_a_class() -> None:
    assert Point(1) == Point(1, 2, "another") and Point(1) != Point(2) and Point(1) != Named(1) and Empty() == Empty()
    assert hash(Point(1)) == hash(Point(1, 2, "another")) and {Point(1): 3}[Point(1)] == 3 and hash(Empty()) == hash(Empty())
    assert Same(1) != Same(1) and len({Same(1), Same(1)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Bag(1))


def test_what_is_frozen_refuses_to_change() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        point.x = 2  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del point.x
    with pytest.raises(AttributeError):
        Bag(1).other = 2  # pyright: ignore[reportAttributeAccessIssue]
    bag = Bag(1)
    bag.size = 2
    assert bag == Bag(2)


def test_objects_are_shown_copied_and_pickled() -> None:
    assert repr(Named(1, name="b")) == "Named(x=1, y=2, name='b')" and repr(Shown(3)) == "<3>" and repr(Empty()) == "Empty()"
    for value in (Named(1, 2, "n", "b"), Bag(1, [2]), Empty()):
        for other in (copy.deepcopy(value), copy.copy(value), pickle.loads(pickle.dumps(value))):
            assert other == value and other is not value and repr(other) == repr(value)
    assert copy.copy(Named(1, 2, "n")).note == "n"


def test_they_are_data_classes_of_python() -> None:
    assert dataclasses.replace(Named(1, name="b"), y=5) == Named(1, 5, name="b")
    assert [f.name for f in dataclasses.fields(Named)] == ["x", "y", "note", "name"]
    assert dataclasses.asdict(Bag(1, [2])) == {"size": 1, "held": [2]}
    match Named(4, 5):
        case Point(x, y):
            assert (x, y) == (4, 5)
