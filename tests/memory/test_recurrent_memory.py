"""What recurrent layers are measured to take against what is planned for them, wherever their sequences end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.measured import Measured, measure, sizes_of
from support.sequence_lengths import BATCH, LENGTHS

import foreshape as fs
from foreshape import layer

HIDDEN, FEATURES = 128, 96
OVER, UNDER, SMALL = 0.05, 0.01, 1 << 18
"""Parts of the measured bytes by which the plan may be over and under, and bytes by which it may be over besides."""
OVER_EQUAL = 0.13
"""The part where an LSTM's ragged sequences are all of one length: the plan has room for such as are not, which these do not need."""
OVER_DENSE = 0.13
"""Dense, what comes out in both directions may be copied or not as its gradient lies, and sequences with lengths may be shorter than planned."""

NETS: dict[str, Callable[..., Any]] = {"lstm": layer.lstm, "gru": layer.gru, "simple_rnn": layer.simple_rnn}


def trained(net: str, layers: int, both: bool, data: str, out: bool) -> tuple[fs.Program, list[str], fs.Executor, fs.Scope, dict[str, Any]]:
    rng = np.random.RandomState(3)
    main, start = fs.Program(), fs.Program()
    feed: dict[str, Any] = {}
    with fs.program_guard(main, start):
        named: dict[str, Any] = {}
        if data in LENGTHS:
            lengths = LENGTHS[data](rng)
            x = layer.data("x", [-1, FEATURES], lod_level=1)
            feed["x"] = fs.LoDTensor(rng.standard_normal((sum(lengths), FEATURES)).astype(np.float32), [lengths])
        else:
            x, named["time_major"] = layer.data("x", ["time", "batch", FEATURES]), True
            feed["x"] = rng.standard_normal((50, BATCH, FEATURES)).astype(np.float32)
            if data == "dense with lengths":
                named["length"] = layer.data("n", ["batch"], dtype="int64")
                feed["n"] = rng.randint(48, 51, BATCH)
        results, last = NETS[net](x, HIDDEN, num_layers=layers, bidirectional=both, **named)
        loss = layer.reduce_mean(results * results) if out else layer.reduce_mean(last[0] if net == "lstm" else last)
        fs.optimizer.SGD(0.1).minimize(loss)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(start, scope=scope)
    return main, [loss.name], executor, scope, feed


def both_of(*form: Any) -> tuple[int, Measured]:
    main, fetch, executor, scope, feed = trained(*form)
    plan = fs.plan(main, fetch)
    seen = measure(executor, main, feed, fetch, scope, warm=1)
    return plan.peak(**sizes_of(plan, executor, feed)), seen


FORMS = [("lstm", 1, False, False), ("lstm", 2, True, True), ("gru", 1, False, True), ("gru", 2, True, False), ("simple_rnn", 1, True, True),
         ("simple_rnn", 2, False, False)]  # fmt: skip


@pytest.mark.parametrize("data", ["as text has them", *(pytest.param(d, marks=pytest.mark.long) for d in ("dense", "uniform", "equal", "dense with lengths"))])
@pytest.mark.parametrize(("net", "layers", "both", "out"), [f if f[:2] == ("lstm", 1) else pytest.param(*f, marks=pytest.mark.long) for f in FORMS])
def test_the_peak_is_the_planned_one(net: str, layers: int, both: bool, out: bool, data: str) -> None:
    planned, seen = both_of(net, layers, both, data, out)
    over = OVER_EQUAL if (net, data) == ("lstm", "equal") else OVER_DENSE if data not in LENGTHS and net != "lstm" else OVER
    assert (1 - UNDER) * seen.peak <= planned <= (1 + over) * seen.peak + SMALL, f"planned {planned:,}, measured {seen.peak:,}: {planned / seen.peak:.3f}"


@pytest.mark.usefixtures("on_blas")
@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("net", "layers", "steps", "batch", "hidden"), [
    ("lstm", 1, 9, 32, 8), ("lstm", 1, 32, 16, 64), ("gru", 2, 6, 3, 8), ("simple_rnn", 1, 6, 3, 8), ("simple_rnn", 2, 20, 5, 16),
])  # fmt: skip
def test_small_whole_sequences_are_planned_to_their_pages(net: str, layers: int, steps: int, batch: int, hidden: int) -> None:
    main, start = fs.Program(), fs.Program()
    with fs.program_guard(main, start):
        x = layer.data("x", ["time", "batch", hidden])
        loss = layer.reduce_mean(layer.square(NETS[net](x, hidden, num_layers=layers, time_major=True)[0]))
        fs.optimizer.SGD(0.1).minimize(loss)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(start, scope=scope)
    feed = {"x": np.ones((steps, batch, hidden), np.float32)}
    plan = fs.plan(main, [loss.name])
    seen = measure(executor, main, feed, [loss.name], scope, warm=1).peak
    planned = plan.peak(**sizes_of(plan, executor, feed))
    assert (1 - UNDER) * seen <= planned <= (1 + OVER) * seen, f"planned {planned:,}, measured {seen:,}: {planned / seen:.3f}"
