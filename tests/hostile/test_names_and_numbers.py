"""Names and numbers of Python and of files that are no good ones, in places where something else is expected: 6, 10 and 15."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.messages import attr, block, dense, fixed32, number, op, program, relu, text, var
from support.survival import assert_printable

import foreshape as fs
from foreshape import layer
from foreshape.language.wire import load_program

X = np.ones((3, 4), "float32")
NAMES = ["a\x1b[2Jb", "a\x7fb", "a\x9b31m", "a\u202eb", "a\u2028b", "a\u200bb", "a\ufeffb"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.filterwarnings("always")
def test_6_what_is_printed_of_a_name_never_moves_the_cursor(name: str, recwarn: pytest.WarningsRecorder) -> None:
    loaded = load_program(program(block(var(name, dense([-1, -1])), var("y"), relu(name, "y"))))
    loaded.infer()
    for printed in (str(loaded), str(loaded.summary()), str(loaded.var(name).shape), str(loaded.var(name))):
        assert_printable(printed)
    fs.Executor().run(loaded, {name: X.astype("float64")}, ["y"], fs.Scope())
    (warned,) = recwarn
    assert "rounded" in str(warned.message)
    assert_printable(str(warned.message))


HOLDERS = var("feed", number(1, 9), persistable=True) + var("fetch", number(1, 10), persistable=True)
FED = HOLDERS + var("x") + op("feed", [("X", ["feed"])], [("Out", ["x"])], attr("col", 0, number(3, 0)))
COLUMNS = {"text": attr("col", 2, text(5, "0")), "list": attr("col", 3, number(6, 0)), "fraction": attr("col", 1, fixed32(4, b"\0\0\x80?"))}


@pytest.mark.parametrize("of", COLUMNS)
def test_14_a_fetch_whose_column_is_no_number(of: str) -> None:
    fetches = [op("fetch", [("X", ["x"])], [("Out", ["fetch"])], column) for column in (attr("col", 0, number(3, 1)), COLUMNS[of])]
    with pytest.raises(fs.SchemaError, match="fetch: attribute col must be a 32-bit integer"):
        fs.Executor().run(load_program(program(block(FED, *fetches))), {"x": X}, scope=fs.Scope())


@pytest.mark.parametrize(
    "reads", [relu("@EMPTY@", "y"), op("sum", [("X", ["x", "@EMPTY@"])], [("Out", ["y"])]), op("fetch", [("X", ["@EMPTY@"])], [("Out", ["fetch"])])],
    ids=["one", "several", "fetch"],
)  # fmt: skip
def test_10_a_name_that_stands_for_nothing_is_nothing_where_it_is_described(reads: bytes) -> None:
    loaded = load_program(program(block(FED, var("@EMPTY@"), var("y"), relu("x", "@EMPTY@"), reads)))
    with pytest.raises(fs.SchemaError, match="the input"):
        loaded.infer()
    with pytest.raises(fs.SchemaError, match="the input"):
        fs.Executor().run(loaded, {"x": X}, ["y"], fs.Scope())


def _described(make: Callable[[Any], Any]) -> None:
    fs.reset()
    make(layer.data("x", shape=["batch", 3, 8, 8]))


def _op(x: Any) -> Any:
    return layer.relu(x).op


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "an axis of several": lambda x: layer.softmax(x, axis=np.array([1, 2])),
    "a slope of several": lambda x: layer.leaky_relu(x, np.array([1.0, 2.0])),
    "an array of nothing": lambda x: layer.conv2d(x, 2, np.array(None)),
    "an axis of more digits than are written": lambda x: layer.softmax(x, axis=10**5000),
    "a slope of more digits than are written": lambda x: layer.leaky_relu(x, 10**5000),
    "a learning rate past all numbers": lambda x: fs.optimizer.SGD(10**400),
    "a learning rate of more digits than are written": lambda x: fs.optimizer.SGD(10**5000),
    "no role": lambda x: _op(x).set_attribute("op_role", math.nan),
    "no list of names": lambda x: _op(x).set_attribute("op_role_var", None),
    "a list of no names": lambda x: _op(x).set_attribute("op_role_var", [1]),
    "no learning rate": lambda x: fs.optimizer.SGD(math.nan),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_15_numbers_of_python_that_are_none_of_ours(name: str) -> None:
    with pytest.raises(fs.SchemaError, match="seen"):
        _described(NUMBERS[name])
