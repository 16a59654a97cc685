"""Whatever an optimizer, a schedule, a clip, an initializer or a parameter's attributes are made of, they work or say at once what is wrong."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.some import one_in

import foreshape as fs
from foreshape import layer, optimizer
from foreshape.errors import ForeshapeError

CLASSES: dict[str, type] = {
    **{n: t for n in optimizer.__all__ if isinstance(t := getattr(optimizer, n), type)},
    **{n: t for n in layer.__all__ if isinstance(t := getattr(layer, n), type)},
}
OTHERS = (None, 3, -1, 2.5, "x", [], [None], {}, np.ones(3), object())


def constructions(name: str) -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
    """The parameter that has something else, all arguments by name, and those that have none."""
    parameters = inspect.signature(CLASSES[name]).parameters.values()
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    base = {p.name: [1, 2] if "boundaries" in p.name else [1.0, 0.5, 0.1] if p.name == "values" else 0.5 for p in plain if p.default is p.empty}
    for given in OTHERS:
        for parameter in plain:
            yield parameter.name, {**base, parameter.name: given}, []
        for parameter in (p for p in parameters if p.kind is p.VAR_POSITIONAL):
            yield parameter.name, base, [given]


def use(made: Any) -> None:
    """Put it where it belongs, and describe a training with it."""
    if isinstance(made, (layer.ParamAttr, layer.Initializer)):
        attributes = made if isinstance(made, layer.ParamAttr) else layer.ParamAttr(initializer=made)
        layer.fc(layer.data("y", shape=["batch", 4]), 3, weight=attributes)
        return
    cost = layer.mean(layer.fc(layer.data("x", shape=["batch", 4]), 1))
    if isinstance(made, optimizer.Optimizer):
        made.minimize(cost)
    elif isinstance(made, optimizer.Schedule):
        optimizer.SGD(made).minimize(cost)
    elif isinstance(made, optimizer.WeightDecay):
        optimizer.SGD(0.1, weight_decay=made).minimize(cost)
    elif isinstance(made, optimizer.Group):
        optimizer.SGD(0.1, groups=[made]).minimize(cost)
    else:
        optimizer.SGD(0.1, clip=made).minimize(cost)


@pytest.mark.parametrize("name", one_in(3, CLASSES))
def test_other_things_than_arguments(name: str) -> None:
    for _, named, unnamed in constructions(name):
        with fs.program(), contextlib.suppress(ForeshapeError):  # and no other kind of error
            use(CLASSES[name](*unnamed, **named))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: optimizer.Adam(0.1, beta1="a"), "Adam: beta1 must be a number (the decay rates of the two means); seen 'a'"),
        (lambda: optimizer.SGD(0.1, weight_decay="x"), "SGD: weight_decay must be a number, a WeightDecay or None; seen 'x'"),
        (lambda: optimizer.ClipByValue("x"), "ClipByValue: max must be a number (the upper bound); seen 'x'"),
        (lambda: fs.ParamAttr(name=3), "ParamAttr: name must be a string or None (of the parameter); seen 3"),
        (lambda: optimizer.SGD("fast"), "a learning rate is a number of at least 0, a variable or a schedule"),
    ],
)
def test_it_is_said_where_it_is_made(made: Any, words: str) -> None:
    with pytest.raises(fs.SchemaError) as raised:
        made()
    assert words in str(raised.value)
    assert "test_constructor_borders.py" in str(raised.value)


def test_a_class_of_the_user_gives_what_it_likes_to_ours() -> None:
    class Slow(optimizer.SGD):
        def __init__(self, note: str) -> None:
            super().__init__(0.5)
            self.note = note

    assert Slow("gently").note == "gently"
    with pytest.raises(TypeError, match="note"):
        Slow()  # pyright: ignore[reportCallIssue]  # Python's own word
