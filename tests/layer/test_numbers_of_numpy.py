"""Sizes that were counted with numpy, such as ``labels.max() + 1``, are taken as Python's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

Whole = Callable[[int], Any]


def x(*dims: int | str, dtype: str = "fp32") -> fs.Variable:
    return layer.data(f"x{len(fs.default_main_program().global_block.vars)}", list(dims), dtype)


def dims_of(made: Any) -> Any:
    return [dims_of(m) for m in made] if isinstance(made, (list, tuple)) else made.dims


CASES: dict[str, Callable[[Whole], Any]] = {
    "data": lambda n: layer.data("x", [n(3), n(2)]),
    "parameter": lambda n: layer.create_parameter([n(3), n(4)], "fp32"),
    "fc": lambda n: layer.fc(x("batch", 6), n(4)),
    "embedding": lambda n: layer.embedding(x("batch", 1, dtype="int64"), [n(10), n(4)]),
    "one hot": lambda n: layer.one_hot(x("batch", 1, dtype="int64"), n(4)),
    "convolution": lambda n: layer.conv2d(x("batch", 3, 8, 8), n(4), n(3), stride=n(2), padding=n(1), groups=n(1)),
    "convolution along a line": lambda n: layer.conv1d(x("batch", 3, 8), n(4), n(3), padding=n(1)),
    "convolution along a line, padded on each side": lambda n: layer.conv1d(x("batch", 3, 8), n(4), n(3), padding=[n(1), n(2)]),
    "pooling": lambda n: layer.pool2d(x("batch", 3, 8, 8), n(2), stride=n(2)),
    "recurrence": lambda n: layer.lstm(layer.data("text", ["rows", 4], lod_level=1), n(5)),
    "heads": lambda n: layer.multi_head_attention(x("batch", 5, 8), heads=n(2)),
    "encoder": lambda n: layer.transformer_encoder(x("batch", 5, 8), n(2), n(2), n(16)),
    "parts": lambda n: layer.split(x("batch", 6), n(2), axis=n(1)),
    "parts of sizes": lambda n: layer.split(x("batch", 6), [n(2), n(4)], axis=n(1)),
    "constant": lambda n: layer.fill_constant([n(3), n(2)], "int64", n(100)),
    "random": lambda n: layer.uniform_random([n(3)]),
    "reshape": lambda n: [layer.reshape(x(6), [n(3), n(2)]), x(6).reshape(n(3), n(2))],
    "axes": lambda n: [x("batch", 3).mean(n(1)), x("batch", 3).sum((n(0), n(1))), x("batch", 1).squeeze(n(1)), layer.reduce_max(x("batch", 3), n(1))],
    "index": lambda n: [x("batch", 3)[:, n(1)], x("batch", 3)[:, n(0) : n(2)]],
    "padding": lambda n: layer.pad(x(3, 4), [n(1)] * 4),
    "larger": lambda n: layer.interpolate(x("batch", 3, 4, 4), scale=n(2), mode="nearest"),
}


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("integer", [np.int64, np.int32, np.uint8])
def test_integers_of_numpy_are_taken_as_ints(name: str, integer: Any) -> None:
    describe = CASES[name]
    texts: list[str] = []
    for n in (int, integer):
        with fs.program_guard(fs.Program(), fs.Program()):
            assert dims_of(describe(n)) is not None
            texts.append(f"{fs.default_main_program()}\n{fs.default_startup_program()}")
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("describe", "says"), [
    (lambda: layer.fc(x("batch", 6), 4.5), r"fc: output_size must be a whole number, at least 0; seen 4.5"),
    (lambda: [layer.fc(x("batch", 6), size) for size in (4, 4.0)], r"fc: output_size must be a whole number, at least 0; seen 4.0"),
    (lambda: layer.create_parameter(["4"], "fp32"), "a dim must be an integer or a symbol; seen '4' at axis 0"),
    (lambda: layer.conv2d(x("batch", 3, 8, 8), 4, 3.0), "one integer or several are wanted; seen 3.0"),
    (lambda: x("batch", 3).sum(1.0), "one integer or several are wanted; seen 1.0"),
    (lambda: layer.fill_constant([2.0]), "a size must be an int of at least 0, or a variable of one integer; seen 2.0"),
])  # fmt: skip
def test_other_numbers_are_refused_in_words(describe: Callable[[], Any], says: str) -> None:
    with pytest.raises(fs.DescriptionError, match=says):
        describe()


def test_a_large_constant_of_numpy_is_kept_to_the_last_digit() -> None:
    made = layer.fill_constant([1], "int64", np.int64(2**60 + 1))
    assert fs.Executor().run(fetch=[made])[0].tolist() == [2**60 + 1]
