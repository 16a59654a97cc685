"""Programs whose branches and loops do what the layers never write, made by hand: a value that no block has made, a condition that is fed, loops that grow."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.messages import attr, block, dense, fixed32, number, op, program, relu, var

import foreshape as fs
from foreshape.language.wire import load_program

X = np.arange(12, dtype="float32").reshape(3, 4) - 5
ONES = np.ones(4, "float32")
HOLDERS = var("feed", number(1, 9), persistable=True) + var("fetch", number(1, 10), persistable=True) + var("kept", number(1, 11))


def fed(*names: str) -> bytes:
    """Feed ops of variables that do not say themselves that they are fed, as in older files."""
    return b"".join(op("feed", [("X", ["feed"])], [("Out", [n])], attr("col", 0, number(3, at))) for at, n in enumerate(names))


def fetched(*names: str) -> bytes:
    return b"".join(op("fetch", [("X", [n])], [("Out", ["fetch"])], attr("col", 0, number(3, at))) for at, n in enumerate(names))


def truth(name: str, dims: Sequence[int] = (1,)) -> bytes:
    return var(name, dense(dims, 0))


def set_to(name: str, to: bool) -> bytes:
    kind, value = attr("dtype", 0, number(3, 0)), attr("value", 1, fixed32(4, struct.pack("<f", to)))
    return op("fill_constant", [], [("Out", [name])], attr("shape", 11, number(15, 1)), kind, value)


def doubled(source: str, target: str) -> bytes:
    return op("scale", [("X", [source])], [("Out", [target])], attr("scale", 1, fixed32(4, struct.pack("<f", 2))))


def branch(at: int, condition: str, reads: Sequence[str], writes: Sequence[str]) -> bytes:
    attributes = attr("sub_block", 8, number(12, at)), attr("is_scalar_condition", 6, number(10, 1))
    return op("conditional_block", [("Cond", [condition]), ("Input", reads)], [("Out", writes), ("Scope", ["kept"])], *attributes)


def loop(at: int, condition: str, carried: Sequence[str]) -> bytes:
    names = [*carried, condition]
    return op("while", [("X", names), ("Condition", [condition])], [("Out", names), ("StepScopes", ["kept"])], attr("sub_block", 8, number(12, at)))


def normalised(scale: str) -> bytes:
    """An op that can do without its Scale."""
    return op("layer_norm", [("X", ["x"]), ("Scale", [scale])], [("Y", ["z"])], attr("begin_norm_axis", 0, number(3, 1)))


def run(data: bytes, feed: dict[str, Any], **how: Any) -> list[Any]:
    return fs.Executor(**how).run(load_program(data), feed, scope=fs.Scope())


def main(*parts: bytes, blocks: Sequence[bytes]) -> bytes:
    return program(block(HOLDERS, *parts), *(block(b, idx=at, parent=0) for at, b in enumerate(blocks, 1)))


VARIABLES = var("x") + truth("c") + var("s", dense([4])) + var("y", dense([4])) + var("z") + fed("x", "c", "s")
MADE = doubled("s", "y")
LACKING: dict[str, bytes] = {
    "an operand that may be absent": main(VARIABLES, branch(1, "c", ["s"], ["y"]), normalised("y"), fetched("z"), blocks=[MADE]),
    "one of several": main(VARIABLES, branch(1, "c", ["s"], ["y"]), op("sum", [("X", ["s", "y"])], [("Out", ["z"])]), fetched("z"), blocks=[MADE]),
    "in another branch": main(
        VARIABLES, truth("d"), relu("x", "z"), set_to("d", True), branch(1, "c", ["s"], ["y"]), branch(2, "d", ["x", "y"], ["z"]), fetched("z"),
        blocks=[MADE, normalised("y")],
    ),
    "in a loop": main(
        VARIABLES, truth("d"), relu("x", "z"), set_to("d", True), branch(1, "c", ["s"], ["y"]), loop(2, "d", ["z"]), fetched("z"),
        blocks=[MADE, normalised("y") + set_to("d", False)],
    ),
    "the condition of a loop": main(
        VARIABLES, truth("d"), relu("x", "z"), branch(1, "c", [], ["d"]), loop(2, "d", ["z"]), fetched("z"),
        blocks=[set_to("d", True), doubled("z", "z") + set_to("d", False)],
    ),
    "the condition of a branch": main(
        VARIABLES, truth("d"), relu("x", "z"), branch(1, "c", [], ["d"]), branch(2, "d", ["z"], ["z"]), fetched("z"),
        blocks=[set_to("d", True), doubled("z", "z")],
    ),
    "what a branch in a branch may make": program(
        block(HOLDERS, VARIABLES, branch(1, "c", ["s"], ["y"]), normalised("y"), fetched("z")),
        block(branch(2, "c", ["s"], ["y"]), idx=1, parent=0), block(MADE, idx=2, parent=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", [{}, {"check": True}, {"frozen": True}], ids=["run", "checked", "frozen"])
@pytest.mark.parametrize("name", LACKING)
def test_9_what_no_block_has_made_is_no_operand_that_is_absent(name: str, how: dict[str, Any]) -> None:
    assert run(LACKING[name], {"x": X, "c": np.array([True]), "s": ONES}, **how)[0].size
    with pytest.raises(fs.ExecutionError, match=r": (y|d) has no value: the block that makes it did not run"):
        run(LACKING[name], {"x": X, "c": np.array([False]), "s": ONES}, **how)


@pytest.mark.parametrize("begins", [True, False])
def test_11_a_condition_that_a_feed_op_alone_says_is_fed(begins: bool) -> None:
    data = main(var("x"), truth("c"), fed("x", "c"), loop(1, "c", ["x"]), fetched("x"), blocks=[doubled("x", "x") + set_to("c", False)])
    np.testing.assert_array_equal(run(data, {"x": X, "c": np.array([begins])})[0], X * 2 if begins else X)


def test_11_what_a_loop_without_a_round_leaves_of_what_is_fed() -> None:
    data = main(var("x"), truth("c"), var("z"), fed("x", "c", "z"), loop(1, "c", ["z"]), fetched("z"), blocks=[doubled("x", "z") + set_to("c", False)])
    np.testing.assert_array_equal(run(data, {"x": X, "z": X + 1, "c": np.array([False])})[0], X + 1)


def test_9_a_condition_that_nothing_gives_is_missed() -> None:
    data = main(var("x"), truth("c"), fed("x"), loop(1, "c", ["x"]), fetched("x"), blocks=[doubled("x", "x") + set_to("c", False)])
    with pytest.raises(fs.FeedError, match=r"c .* is not fed"):
        run(data, {"x": X})


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("of", ["branch", "loop"])
def test_17_conditions_of_several_truths(of: str, count: int) -> None:
    runs = branch(1, "c", ["x"], ["x"]) if of == "branch" else loop(1, "c", ["x"])
    ends = b"" if of == "branch" else op("logical_not", [("X", ["c"])], [("Out", ["c"])])
    data = main(var("x"), truth("c", [-1]), fed("x", "c"), runs, fetched("x"), blocks=[doubled("x", "x") + ends])
    np.testing.assert_array_equal(run(data, {"x": X, "c": np.array([True])})[0], X * 2)
    with pytest.raises(fs.ExecutionError, match=rf"c must hold one truth value; seen are \[{count}\]"):
        run(data, {"x": X, "c": np.ones(count, bool)})


def test_20_a_loop_that_doubles_what_it_carries_ends_before_memory_does() -> None:
    twice = op("concat", [("X", ["x", "x"])], [("Out", ["x"])], attr("axis", 0, number(3, 0)))
    data = main(var("x"), truth("c"), fed("x", "c"), loop(1, "c", ["x"]), fetched("x"), blocks=[twice + set_to("c", True)])
    with pytest.raises(fs.MemoryPlanError, match=r"while: a further round of the loop, .* memory_limit"):
        run(data, {"x": X, "c": np.array([True])}, memory_limit="16 MiB")
