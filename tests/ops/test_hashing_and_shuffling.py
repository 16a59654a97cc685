"""Rows made into numbers, and rows in a random order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.transforms.backward import append_backward

FIRST, SECOND, THIRD, FOURTH, FIFTH = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
MASK = 2**64 - 1


def turned(x: int, by: int) -> int:
    return (x << by | x >> 64 - by) & MASK


def taken_in(state: int, word: bytes) -> int:
    return turned(state + int.from_bytes(word, "little") * SECOND & MASK, 31) * FIRST & MASK


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 as its specification has it, byte by byte and in Python's whole numbers."""
    at, size = 0, len(data)
    out = seed + FIFTH
    if size >= 32:
        states = [seed + FIRST + SECOND & MASK, seed + SECOND & MASK, seed, seed - FIRST & MASK]
        for at in range(0, size - 31, 32):
            states = [taken_in(s, data[at + 8 * k : at + 8 * k + 8]) for k, s in enumerate(states)]
        at += 32
        out = sum(turned(s, by) for s, by in zip(states, (1, 7, 12, 18), strict=True)) & MASK
        for s in states:
            out = (out ^ taken_in(0, s.to_bytes(8, "little"))) * FIRST + FOURTH & MASK
    out = out + size & MASK
    while at + 8 <= size:
        out = turned(out ^ taken_in(0, data[at : at + 8]), 27) * FIRST + FOURTH & MASK
        at += 8
    if at + 4 <= size:
        out = turned(out ^ int.from_bytes(data[at : at + 4], "little") * FIRST & MASK, 23) * SECOND + THIRD & MASK
    for by, factor in ((33, SECOND), (29, THIRD), (32, 1)):
        out = (out ^ out >> by) * factor & MASK
    return out


def apply(type: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None) -> Any:
    return fs.default_main_program().global_block.apply(type, inputs, attrs or {})


def run(feed: dict[str, Any], fetch: list[Any]) -> list[Any]:
    return fs.Executor().run(fs.default_main_program(), feed, fetch, fs.Scope())


def test_a_hash_is_what_paddlepaddle_gives() -> None:
    x = layer.data("x", shape=["batch", 2], dtype="int64")
    (given,) = run({"x": np.array([[1, 2], [3, 4], [5, 6]])}, [apply("hash", {"X": x}, {"num_hash": 3, "mod_by": 1000})])
    assert given.tolist() == [[[524], [896], [680]], [[640], [562], [750]], [[4], [791], [947]]]
    y = layer.data("y", shape=["batch", 1], dtype="int32")
    (given,) = run({"y": np.array([[1], [3], [5]], "int32")}, [apply("hash", {"X": y}, {"num_hash": 2, "mod_by": 100000})])
    assert given.dtype == np.int32
    assert given.tolist() == [[[46897], [53218]], [[69407], [16715]], [[83481], [7475]]]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 7, 8, 9, 17])
def test_rows_of_every_length_are_hashed_as_their_bytes(dtype: str, columns: int) -> None:
    assert xxh64(b"", 0) == 0xEF46DB3751D8E999  # as the specification has it
    x = layer.data("x", shape=["batch", columns], dtype=dtype)
    numbers = np.random.RandomState(columns).randint(-(2**31), 2**31 - 1, (5, columns)).astype(dtype)
    modulus = 2**31 - 1
    (given,) = run({"x": numbers}, [apply("hash", {"X": x}, {"num_hash": 4, "mod_by": modulus})])
    assert given[..., 0].tolist() == [[xxh64(row.tobytes(), seed) % modulus for seed in range(4)] for row in numbers]


def test_shuffled_rows_are_the_rows_and_their_gradients_go_back() -> None:
    x = layer.data("x", shape=["batch", 4, 3])
    seed = layer.data("seed", shape=[1], dtype="int64")
    x.stop_gradient = False
    out, order, following = apply("shuffle_batch", {"X": x, "Seed": seed})
    weights = layer.data("weights", shape=["batch", 4, 3])
    pairs = {v.name: g for v, g in append_backward(layer.reduce_sum(layer.multiply(out, weights)), ["x"])}
    numbers, by = (np.random.RandomState(k).standard_normal((5, 4, 3)).astype("float32") for k in (1, 2))
    feed = {"x": numbers, "weights": by, "seed": np.array([5])}
    rows, at, after, gradient = run(feed, [out, order, following, pairs["x"]])
    assert sorted(at.tolist()) == list(range(20)) != at.tolist()
    np.testing.assert_array_equal(rows.reshape(20, 3)[at], numbers.reshape(20, 3))
    np.testing.assert_array_equal(gradient.reshape(20, 3), by.reshape(20, 3)[at])
    assert after.tolist() == [84035]
    again, others = run(feed, [order])[0], run(feed | {"seed": np.array([6])}, [order])[0]
    assert again.tolist() == at.tolist() != others.tolist()


@pytest.mark.parametrize(("seed", "after"), [(0, 16807), (-5, 2147466840), (2**31 + 5, 100842)])
def test_the_seed_of_the_next_step_is_paddlepaddles(seed: int, after: int) -> None:
    x = layer.data("x", shape=["batch", 3])
    of = layer.data("seed", shape=[1], dtype="int64")
    made = apply("shuffle_batch", {"X": x, "Seed": of})[2]
    assert run({"x": np.zeros((2, 3), "float32"), "seed": np.array([seed])}, [made])[0].tolist() == [after]
