"""Names that hooks and their parameters had before: an operator of one's own that has them goes on as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.operator import FLOATING, NOT_DIFFERENTIABLE, Operator, gradient, operand, registry, result, torch

HEARD: list[tuple[str, tuple[bool, ...]]] = []
OLDER = "older_names_of_hooks"


@pytest.fixture
def older() -> Iterator[type[Operator]]:
    class Halves(Operator):
        """A base that is no operator itself: its hooks are found too."""

        def workspace(self, X: Any, Y: Any, *, wants: tuple[bool, ...]) -> Any:
            HEARD.append(("workspace", wants))
            return 64 if wants[1] else 0

        def carries(self, X: Any, Y: Any, *, wants: tuple[bool, ...]) -> Any:
            return {"First": 1000 if wants[0] else 0}

    class Older(Halves):
        """First = X + Y; Second = X - Y."""

        type = OLDER
        X = operand(FLOATING)
        Y = operand(FLOATING, same_type_as="X")
        First = result()
        Second = result()

        def infer_shape(self, X: Any, Y: Any) -> Any:
            return X.like(), X.like()

        def kernel(self, X: Any, Y: Any, *, wants: tuple[bool, ...]) -> Any:
            HEARD.append(("kernel", wants))
            return X + Y, X - Y if wants[1] else None

        def _of_gradient(self, X: Any, Y: Any, d_first: Any, *, wants: tuple[bool, ...]) -> Any:
            HEARD.append(("gradient's workspace", wants))
            return 0

        @gradient("X", "Y", "First@GRAD", gives=("X@GRAD", "Y@GRAD"), workspace=_of_gradient)
        def backward(self, X: Any, Y: Any, d_first: Any, *, wants: tuple[bool, ...]) -> Any:
            HEARD.append(("gradient", wants))
            return d_first * 1 if wants[0] else None, d_first * 1 if wants[1] else None

    HEARD.clear()
    try:
        yield Older
    finally:
        for name in (OLDER, f"{OLDER}_grad"):
            del registry._registry[name]  # pyright: ignore[reportPrivateUsage]


def test_wants_is_heard(older: type[Operator]) -> None:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x, w = layer.data("x", shape=["batch", 3]), layer.create_parameter([3], fs.FP32)
        first, second = main.global_block.apply(OLDER, {"X": x, "Y": layer.add(x, w)})
        fs.optimizer.SGD(0.0).minimize(loss := layer.mean(first))
    executor, scope, feed = fs.Executor(seed=1), fs.Scope(), {"x": np.ones((4, 3), "float32")}
    executor.run(startup, scope=scope)
    executor.run(main, feed, [loss], scope)
    assert set(HEARD) == {("workspace", (True, False)), ("kernel", (True, False)), ("gradient's workspace", (False, True)), ("gradient", (False, True))}
    (got,) = executor.run(main, feed, [second], scope)
    np.testing.assert_allclose(got, np.broadcast_to(-scope.get(w.name), (4, 3)), rtol=1e-5, atol=1e-6)
    assert ("kernel", (True, True)) in HEARD


def test_what_is_called_by_the_older_name_is_called_all_the_same(older: type[Operator]) -> None:
    one = torch.ones(2)
    for named in ({"wants": (True, False)}, {"requested": (True, False)}):
        first, second = older.with_values({}).kernel(one, one, **named)
        assert first.tolist() == [2.0, 2.0] and second is None
    assert HEARD == [("kernel", (True, False))] * 2


def test_what_it_retains_is_planned(older: type[Operator]) -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x, y = layer.data("x", shape=["batch", 3]), layer.data("y", shape=["batch", 3])
        first, second = main.global_block.apply(OLDER, {"X": x, "Y": y})
    assert fs.plan(main, [first]).peak(batch=4) == 3 * 48 + 1000 and not fs.plan(main, [first]).unknown()
    assert fs.plan(main, [first, second]).peak(batch=4) == 4 * 48 + 1000 + 64


def test_the_older_hook_is_checked_as_that_of_today_is() -> None:
    hooks: dict[str, Any] = {"infer_shape": lambda self, X: X, "kernel": lambda self, X: X, "carries": lambda self, Y: {}}
    with pytest.raises(fs.SchemaError, match=r"retained_bytes must have the parameters \(self, X\); seen \(self, Y\)"):
        type("Wrong", (Operator,), {"type": "wrong_carries", "X": operand(), "Out": result(), "gradient": NOT_DIFFERENTIABLE, **hooks})
