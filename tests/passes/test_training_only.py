"""What is done in training only is not in a program for tests, in whichever block it was described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

X = np.random.RandomState(0).standard_normal((2, 3)).astype("float32")


def types(program: fs.Program) -> list[str]:
    return [op.type for op in program.all_ops()]


def changed(h: Any, by: Any) -> Any:
    """By something from outside, which nothing else reads."""
    return layer.in_training(h, lambda h: layer.dropout(h, 0.5) * layer.sqrt(layer.exp(by)) + 7.0)


def in_a_loop(x: Any, by: Any) -> Any:
    start = layer.fill_constant([1], "fp32", 0.0)
    return layer.while_loop(lambda i, h: i < 3.0, lambda i, h: (i + 1.0, changed(h, by) * 2.0), [start, x])[1]


def in_a_branch(x: Any, by: Any) -> Any:
    return layer.cond(layer.reduce_sum(x * x) > 0.0, lambda: changed(x, by) * 8.0, lambda: x * 8.0)


def in_a_branch_in_a_loop(x: Any, by: Any) -> Any:
    def body(i: Any, h: Any) -> Any:
        return i + 1.0, layer.cond(i < 9.0, lambda: changed(h * 2.0, by), lambda: h)

    return layer.while_loop(lambda i, h: i < 3.0, body, [layer.fill_constant([1], "fp32", 0.0), x])[1]


def in_the_global_block(x: Any, by: Any) -> Any:
    return changed(x, by) * 8.0


@pytest.mark.parametrize("net", [in_the_global_block, in_a_loop, in_a_branch, in_a_branch_in_a_loop], ids=lambda f: f.__name__)
def test_a_test_has_nothing_of_it(net: Any, tmp_path: Path) -> None:
    x = layer.data("x", ["batch", 3])
    out = net(x, layer.scale(x, 3.0))
    main = fs.default_main_program()
    test = fs.passes.for_test(main)
    assert {"dropout", "exp", "sqrt"} <= set(types(main)) and not {"dropout", "exp", "sqrt"} & set(types(test))
    assert types(test).count("select_input") == types(main).count("select_input") - 1
    assert not any(op.attrs.get("scale") == 3.0 for op in test.all_ops())  # what only it took in from outside is gone too
    np.testing.assert_array_equal(fs.Executor(check=True).run(test, {"x": X}, [out.name])[0], X * 8)
    fs.save_inference_model(str(tmp_path / "m"), [x], [out])
    assert set(types(fs.load_inference_model(str(tmp_path / "m")).program)) <= {*types(test), "feed", "fetch"}
    assert not np.array_equal(fs.Executor(seed=0).run(main, {"x": X}, [out])[0], X * 8)  # the description is as it was


def test_a_choice_that_is_written_again_is_read_as_it_is_then() -> None:
    x = layer.data("x", ["batch", 3])
    chosen = layer.in_training(x, lambda x: layer.dropout(x, 0.5))
    before = chosen * 2.0
    layer.assign(x * 5.0, output=chosen)
    after = chosen * 2.0
    for fetch, want in ((before, X * 2), (after, X * 10)):
        np.testing.assert_array_equal(fs.Executor().run(fs.passes.for_test(fs.default_main_program()), {"x": X}, [fetch.name])[0], want)


def test_what_a_block_needs_besides_stays() -> None:
    x = layer.data("x", ["batch", 3])
    by = layer.scale(x, 3.0)
    start = layer.fill_constant([1], "fp32", 0.0)
    _, out = layer.while_loop(lambda i, h: i < 1.0, lambda i, h: (i + 1.0, changed(h, by) + by), [start, x])
    np.testing.assert_array_equal(fs.Executor().run(fs.passes.for_test(fs.default_main_program()), {"x": X}, [out.name])[0], X + X * 3)
