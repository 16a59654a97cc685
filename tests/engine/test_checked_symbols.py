"""Checked runs of programs whose rounds make sizes anew: the symbols of a round are those of that round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.described import differentiable, looped

import foreshape as fs
from foreshape import layer

X = np.random.RandomState(0).randn(16, 3).astype("float32")


def halved(x: Any) -> Any:
    return layer.reduce_sum(layer.reshape(x, [-1, 2, 3]), axis=1)


def shrinks_to_what_is_known_after_it(x: Any) -> Any:
    """The sum after the loop says that two rows are left: that is no claim about the rounds, nor about what was before them."""
    (h,) = looped(lambda i, h: [halved(h)], [x * 1.0], 3)
    return h + layer.fill_constant([2, 3], "fp32", 1.0)


def grows(x: Any) -> Any:
    (h,) = looped(lambda i, h: [layer.concat([h, layer.tanh(h)], axis=0)], [x], 3)
    return layer.reduce_sum(h)


def chosen_in_every_round(x: Any) -> Any:
    """How many are chosen only each round tells."""

    def body(i: Any, h: Any, n: Any) -> Any:
        positive = layer.masked_select(h, layer.greater_than(h, layer.fill_constant([], "fp32", 0.0)))
        return [h - 0.5, n + layer.reduce_sum(layer.square(positive))]

    return layer.reduce_sum(looped(body, [x, layer.fill_constant([], "fp32", 0.0)], 3)[1])


def made_first_inside(x: Any) -> Any:
    """What is chosen in the last round is there after it."""
    block = fs.default_main_program().global_block
    kept = block.create_variable("kept", layer.fill_constant([7], "fp32", 0.0).spec.like())
    block.append_op("fill_constant", {}, {"Out": kept}, {"shape": [7], "dtype": 5, "value": 0.0})

    def body(i: Any, h: Any) -> Any:
        layer.assign(layer.masked_select(h, layer.greater_than(h, layer.fill_constant([], "fp32", 0.0))), kept)
        return [h - 0.5]

    return layer.reduce_sum(looped(body, [x], 3)[0]) + layer.reduce_sum(kept)


def loops_in_loops(x: Any) -> Any:
    (h,) = looped(lambda i, h: [layer.concat([looped(lambda j, t: [layer.concat([t, x], axis=0)], [h], 2)[0], h], axis=0)], [x], 2)
    return layer.reduce_sum(h)


def written_with_another_shape(x: Any) -> Any:
    y = layer.tanh(x)
    z = layer.reduce_sum(y)
    layer.assign(layer.reshape(layer.concat([y, y], axis=0), [-1]), y)
    return layer.reduce_sum(y) + z


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("check", [True, "fused"])
@pytest.mark.parametrize(
    "describe",
    [shrinks_to_what_is_known_after_it, grows, chosen_in_every_round, made_first_inside, loops_in_loops, written_with_another_shape],
    ids=lambda f: f.__name__,
)
def test_a_good_program_passes(describe: Callable[[Any], Any], check: Any) -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = differentiable("x", ["batch", 3])
        out = describe(x)
        gradient = fs.append_backward(layer.reduce_sum(layer.square(out)), ["x"])[0][1] if describe is not chosen_in_every_round else out
    plain = fs.Executor().run(main, {"x": X}, [out, gradient], fs.Scope())
    for a, b in zip(plain, fs.Executor(check=check).run(main, {"x": X}, [out, gradient], fs.Scope()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_what_is_looked_through_for_freed_memory_is_no_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step has bound may know its op; all of the program hangs on that, and would be walked through at every value that is dropped."""
    from foreshape.runtime.engine import freed

    looked: list[Any] = []
    parts = freed._parts  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(freed, "_parts", lambda one: looked.append(one) or parts(one))
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        out = shrinks_to_what_is_known_after_it(layer.data("x", shape=["batch", 3]))
    fs.Executor(check=True).run(main, {"x": X}, [out], fs.Scope())
    assert looked
    assert not [one for one in looked if isinstance(one, (fs.Program, fs.Variable))]


def test_a_size_that_is_not_as_inferred_is_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every round: a kernel that drops a row."""
    from foreshape.language.operator.registry import get

    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = layer.data("x", shape=["batch", 3])
        (h,) = looped(lambda i, h: [layer.concat([layer.tanh(h), h], axis=0)], [x], 3)
    kernel = get("tanh").kernel
    monkeypatch.setattr(get("tanh"), "kernel", lambda self, X: kernel(self, X)[: -1 if X.shape[0] > 40 else None])
    with pytest.raises(fs.ExecutionError, match="the kernel made"):
        fs.Executor(check=True).run(main, {"x": X}, [h], fs.Scope())
