# ruff: noqa: E501  the tables are one case a line
"""What is fed: 23 offsets, 24 ids and labels, 25 parameters, 26 arrays of all layouts, 27 batches of nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.survival import checked_words

import foreshape as fs
from foreshape import layer
from foreshape.errors import ExecutionError, FeedError, ForeshapeError, GuardError, SchemaError

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def network() -> tuple[fs.Program, Any]:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x = layer.data("x", shape=[-1, 4])
        y = program.global_block.apply("scale", {"X": x}, {"scale": 2.0})
    return program, y


def result(value: Any, feed: dict[Any, Any] | None = None) -> Any:
    program, y = network()
    return fs.Executor().run(program, {"x": value} if feed is None else feed, [y], fs.Scope())[0]


def read_only() -> Any:
    out = X.copy()
    out.flags.writeable = False
    return out


class Subclass(np.ndarray):
    pass


RIGHT: dict[str, Callable[[], Any]] = {
    "transposed": lambda: X.T.copy().T,
    "fortran": lambda: np.asfortranarray(X),
    "strided": lambda: np.repeat(X, 2, axis=0)[::2],
    "columns-strided": lambda: np.repeat(X, 3, axis=1)[:, ::3],
    "reversed": lambda: X[::-1].copy()[::-1],
    "reversed-both": lambda: X[::-1, ::-1].copy()[::-1, ::-1],
    "read-only": read_only,
    "big-endian": lambda: X.astype(">f4"),
    "little-endian": lambda: X.astype("<f4"),
    "subclass": lambda: X.view(Subclass),
    "half": lambda: X.astype(np.float16),
    "double": lambda: X.astype(np.float64),
    "double-infinity": lambda: np.full((3, 4), np.inf),
    "broadcast": lambda: np.broadcast_to(X[:1], (3, 4)),
    "unaligned": lambda: np.frombuffer(b"\0" + X.tobytes(), dtype=np.uint8)[1:].view(np.float32).reshape(3, 4),
    "zero-rows": lambda: X[:0],
    "zero-rows-strided": lambda: X[::-1][3:],
    "nan": lambda: np.full((3, 4), np.nan, np.float32),
    "infinity": lambda: np.full((3, 4), -np.inf, np.float32),
    "negative-zero": lambda: np.full((3, 4), -0.0, np.float32),
    "denormal": lambda: np.full((3, 4), 1e-45, np.float32),
}


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", RIGHT, ids=lambda n: f"26-{n}")
def test_arrays_of_all_layouts_give_the_same_numbers(name: str) -> None:
    value = RIGHT[name]()
    before = np.array(value)
    got = result(value)
    np.testing.assert_array_equal(got, np.asarray(value).astype(np.float32) * 2)
    np.testing.assert_array_equal(np.array(value), before, "a fed array was changed")
    assert not np.shares_memory(got, np.asarray(value))


def test_26_a_memory_map_is_read(tmp_path: Path) -> None:
    file = tmp_path / "x.bin"
    X.tofile(file)
    for mode in ("r", "r+", "c"):
        np.testing.assert_array_equal(result(np.memmap(file, np.float32, mode, shape=(3, 4))), X * 2)
    assert file.read_bytes() == X.tobytes()


WRONG: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "text": lambda: "text",
    "bytes": lambda: b"bytes",
    "texts": lambda: np.array([["a"] * 4]),
    "objects": lambda: np.array([[object()] * 4]),
    "dates": lambda: np.zeros((3, 4), "datetime64[s]"),
    "records": lambda: np.zeros(3, [("a", "f4"), ("b", "f4")]),
    "complex": lambda: X.astype(np.complex64),
    "wide": lambda: X.astype(np.longdouble),
    "ragged-list": lambda: [[1.0], [1.0, 2.0]],
    "a-dict": lambda: {"x": 1},
    "a-set": lambda: {1.0},
    "a-function": lambda: len,
    "double-past-single": lambda: X.astype(np.float64) * 1e39,
    "integers": lambda: X.astype(np.int64),
    "unsigned": lambda: X.astype(np.uint16),
    "unsigned-64": lambda: X.astype(np.uint64),
    "booleans": lambda: X > 1,
    "rank-0": lambda: np.float32(1),
    "rank-1": lambda: X[0],
    "rank-3": lambda: X[None],
    "other-columns": lambda: X[:, :3],
    "no-columns": lambda: X[:, :0],
    "huge-integers": lambda: [[2**70] * 4],
    "sparse-rows": lambda: fs.SelectedRows([0], np.ones((1, 4), np.float32), 3),
    "ragged": lambda: fs.LoDTensor(X, [[1, 2]]),
    "masked": lambda: np.ma.masked_array(X, X > 3),
}


@pytest.mark.parametrize("name", WRONG, ids=lambda n: f"26-{n}")
def test_what_is_not_the_programs_is_a_feed_error(name: str) -> None:
    with pytest.raises(FeedError) as caught:
        result(WRONG[name]())
    checked_words(caught.value)
    assert "x" in str(caught.value)


@pytest.mark.parametrize(
    "feed", [{}, {"y": X}, {"x": X, "z": X}, {1: X}, {"x": X, 2: X}, {"x": X, None: X}, {"X": X}], ids=lambda f: f"26-{'-'.join(map(str, f)) or 'nothing'}"
)
def test_names_that_are_missing_or_unknown_are_a_feed_error(feed: dict[Any, Any]) -> None:
    with pytest.raises(FeedError):
        result(None, feed)


@pytest.mark.parametrize("fetch", ["nothing", ["nothing"], [""], ["x\x1b"]], ids=lambda f: f"11-{f!a}")
def test_a_fetch_of_nothing_is_a_schema_error(fetch: Any) -> None:
    program, _ = network()
    with pytest.raises(SchemaError) as caught:
        fs.Executor().run(program, {"x": X}, fetch, fs.Scope())
    checked_words(caught.value)


# --- 23: offsets

LENGTHS: dict[str, Any] = {
    "negative": [[-1, 4]],
    "too-few": [[1, 1]],
    "too-many": [[2, 2]],
    "empty-level": [[]],
    "no-level-fits": [[1], [1, 2]],
    "overflow": [[2**63, -(2**63) + 3]],
    "huge": [[2**70]],
    "text": "123",
    "flat": [1, 2],
    "levels-that-differ": [[1, 1], [1, 1, 1]],
    "words": [["a", "b"]],
    "nothing": [[None]],
    "nan": [[float("nan")]],
    "a-number": 3,
    "none": None,
}


@pytest.mark.parametrize("name", LENGTHS, ids=lambda n: f"23-{n}")
def test_lengths_that_are_none_are_a_feed_error(name: str) -> None:
    with pytest.raises(FeedError):
        fs.LoDTensor(X, LENGTHS[name])


@pytest.mark.parametrize(
    ("rows", "height"),
    [([3], 3), ([-1], 3), ([0, 1], 3), ([[0]], 3), ([0], 0), ([0], -1), ([2**62], 2**63), (["a"], 3), ([0.5], 3), (None, 3), ([0], "x"), ([0], None)],
    ids=lambda v: f"24-{v}",
)
def test_rows_that_are_none_are_a_feed_error(rows: Any, height: Any) -> None:
    if rows == [2**62]:
        assert fs.SelectedRows(rows, np.ones((1, 4), np.float32), height).height == height
        return
    with pytest.raises(FeedError):
        fs.SelectedRows(rows, np.ones((1, 4), np.float32), height)


# --- 24: ids and labels; 25: parameters; 27: batches of nothing


def trained(size: int = 5) -> tuple[fs.Program, fs.Program, Any]:
    from foreshape import optimizer

    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x = layer.data("x", shape=[-1, 4])
        label = layer.data("label", shape=[-1, 1], data_type="int64")
        block = main.global_block
        out = layer.fc(x, size)
        _, loss = block.apply("softmax_with_cross_entropy", {"Logits": out, "Label": label})[:2]
        total = block.apply("reduce_sum", {"X": loss}, {"reduce_all": True, "keep_dim": False})
        optimizer.SGD(0.1).minimize(total)
    return main, startup, total


@pytest.mark.parametrize("labels", [[-1, 0, 0], [0, 5, 0], [0, 0, 2**62], [0, -(2**63), 0], [2**31, 0, 0]], ids=lambda v: f"24-{v}")
def test_labels_past_the_classes_are_an_execution_error(labels: list[int]) -> None:
    main, startup, loss = trained()
    scope, executor = fs.Scope(), fs.Executor()
    executor.run(startup, scope=scope)
    with pytest.raises(ExecutionError) as caught:
        executor.run(main, {"x": X, "label": np.array(labels)[:, None]}, [loss], scope)
    checked_words(caught.value)


def test_27_a_batch_of_nothing_goes_forward_backward_and_updates_nothing() -> None:
    main, startup, loss = trained()
    scope, executor = fs.Scope(), fs.Executor()
    executor.run(startup, scope=scope)
    before = {n: scope.get(n) for n in scope.names()}
    got = executor.run(main, {"x": X[:0], "label": np.zeros((0, 1), np.int64)}, [loss], scope)[0]
    assert float(np.sum(got)) == 0.0
    for name, value in before.items():
        np.testing.assert_array_equal(scope.get(name), value)


def test_22_batches_that_differ_are_refused_before_anything_runs() -> None:
    main, startup, loss = trained()
    scope, executor = fs.Scope(), fs.Executor()
    executor.run(startup, scope=scope)
    with pytest.raises((FeedError, GuardError)):
        executor.run(main, {"x": X, "label": np.zeros((2, 1), np.int64)}, [loss], scope)


def test_25_a_parameter_without_a_value_is_an_execution_error() -> None:
    main, _, loss = trained()
    with pytest.raises(ExecutionError, match="startup program"):
        fs.Executor().run(main, {"x": X, "label": np.zeros((3, 1), np.int64)}, [loss], fs.Scope())


@pytest.mark.parametrize("make", [lambda a: a[:, :2], lambda a: a[0], lambda a: a.astype(np.int64), lambda a: a.astype(np.float64), lambda a: a[:0], lambda a: a[None]],
                         ids=["25-columns", "25-rank", "25-integers", "25-doubles", "25-empty", "25-rank-3"])  # fmt: skip
def test_a_parameter_of_another_shape_or_type_is_an_error(make: Callable[[Any], Any]) -> None:
    main, startup, loss = trained()
    scope, executor = fs.Scope(), fs.Executor()
    executor.run(startup, scope=scope)
    weight = next(n for n in scope.names() if scope.get(n).ndim == 2)
    scope.set(weight, make(scope.get(weight)))
    with pytest.raises(ForeshapeError) as caught:
        executor.run(main, {"x": X, "label": np.zeros((3, 1), np.int64)}, [loss], scope)
    checked_words(caught.value)


def test_25_a_nan_in_a_parameter_is_found_where_asked() -> None:
    main, startup, loss = trained()
    scope = fs.Scope()
    fs.Executor().run(startup, scope=scope)
    weight = next(n for n in scope.names() if scope.get(n).ndim == 2)
    scope.set(weight, np.full_like(scope.get(weight), np.nan))
    with pytest.raises(ExecutionError, match="NaN"):
        fs.Executor(check=True).run(main, {"x": X, "label": np.zeros((3, 1), np.int64)}, [loss], scope)


@pytest.mark.parametrize("value", ["text", None, object(), [[1], [1, 2]], np.array(["a"])], ids=["25-text", "25-none", "25-object", "25-ragged", "25-texts"])
def test_what_a_scope_cannot_hold_is_an_error_of_the_package(value: Any) -> None:
    with pytest.raises(ForeshapeError):
        fs.Scope().set("w", value)
