"""What the CTC loss is measured to take against what its operator says, at the sizes of real minibatches: never less, and near to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.kernel_calls import Call, backward, forward, in_a_row
from support.kernel_memory import SMALL, Measured, workspaces
from support.measured import fresh, measure, sizes_of

import foreshape as fs
from foreshape import layer
from foreshape.language.ops import f32, get, i32, i64, sample

NEAR = 1.2
"""How far above what is measured a bound may be."""
SIZES = [(20, 4, 30, 5), (20, 32, 200, 5), (60, 8, 80, 12), (200, 4, 30, 40), (200, 16, 200, 30)]
"""Steps of the longest sequence, sequences, classes, and labels of the longest."""
FORMS = ["all of one length", "of any length", "padded"]


def lengths(longest: int, count: int, form: str, seed: int) -> list[int]:
    drawn = np.random.RandomState(seed).randint(longest // 2, longest + 1, count).tolist()
    return [longest] * count if form == FORMS[0] else [longest, *drawn[1:]]


def loss(size: tuple[int, int, int, int], form: str) -> Call:
    """A call whose offsets nobody has used."""
    longest, count, classes, labels = size
    steps, words = lengths(longest, count, form, 1), lengths(labels, count, form, 2)
    if form == "padded":
        given: dict[str, Any] = {"Logits": f32(longest, count, classes), "Label": i32(count, labels, low=1, high=classes - 1)}
        given |= {"LogitsLength": i64(count, data=steps), "LabelLength": i64(count, data=words)}
    else:
        given = {"Logits": f32(sum(steps), classes).ragged(steps), "Label": i32(sum(words), 1, low=1, high=classes - 1).ragged(words)}
    return forward(get("warpctc"), sample(**given))


def measured(size: tuple[int, int, int, int], form: str) -> Iterator[tuple[str, Measured, int]]:
    """What each call takes, that being counted too which is kept with offsets until the next one."""
    call = loss(size, form)
    given = [("with the gradient", call), ("alone", replace(loss(size, form), requested=(True, False)))]
    back = backward(loss(size, form))
    assert back is not None
    given.append(("the gradient", back.laid(in_a_row)))
    for m in workspaces(given):
        yield m.name, m, m.most + m.kept


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", SIZES)
def test_the_loss_takes_no_more_than_it_says_and_not_much_less(size: tuple[int, int, int, int], form: str) -> None:
    for name, m, taken in measured(size, form):
        assert taken <= m.bound <= taken * NEAR + SMALL, f"{name} takes {taken} bytes and says {m.bound}"


@pytest.mark.parametrize("trains", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_step_with_the_loss_takes_what_is_planned(trains: bool) -> None:
    longest, count, classes, labels = 60, 8, 80, 12
    steps, words = lengths(longest, count, "of any length", 1), lengths(labels, count, "of any length", 2)
    x, y = layer.data("x", shape=[-1, 16], lod_level=1), layer.data("y", shape=[-1, 1], dtype="int32", lod_level=1)
    out = layer.mean(layer.warpctc(layer.fc(x, classes), y))
    if trains:
        fs.optimizer.SGD(0.1).minimize(out)
    rng = np.random.RandomState(3)
    feed = {
        "x": fs.LoDTensor(rng.standard_normal((sum(steps), 16)).astype(np.float32), [steps]),
        "y": fs.LoDTensor(rng.randint(1, classes, (sum(words), 1)).astype(np.int32), [words]),
    }
    executor, scope, program = fs.Executor(), fs.Scope(), fs.default_main_program()
    executor.run(fs.default_startup_program(), scope=scope)
    seen = measure(executor, program, fresh(feed), [out], scope)
    plan = fs.plan(program, [out])
    values = sizes_of(plan, executor, feed) | {"x.longest": longest, "y.longest": labels}
    assert seen.peak <= plan.peak(**values) <= seen.peak * NEAR


@pytest.mark.parametrize(("levels", "symbols"), [(1, ["x.longest", "y.longest"]), (2, ["x.longest_rows", "y.longest_rows"])])
def test_the_longest_sequences_are_symbols_of_what_is_fed(levels: int, symbols: list[str]) -> None:
    x, y = layer.data("x", shape=[-1, 16], lod_level=levels), layer.data("y", shape=[-1, 1], dtype="int32", lod_level=levels)
    padded, _ = layer.sequence_pad(x, layer.fill_constant([1], "float32", 0.0))
    out = layer.mean(layer.warpctc(x, y))
    plan = fs.plan(fs.default_main_program(), [out, padded])
    assert [n for n in sorted(plan.symbols) if "longest" in n] == sorted({*symbols, "x.longest" if levels == 1 else "x.longest2"})
