"""What recurrent layers are measured to take against what is planned for them, wherever their sequences end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.measured import Measured, measure, sizes_of

import foreshape as fs
from foreshape import layer
from foreshape.kernels.lstm_memory import EXTRA, PAGE, PARTS, Form, of_ragged
from foreshape.kernels.lstm_pieces import Cutter
from foreshape.kernels.recurrence import cut
from foreshape.kernels.recurrent_memory import GATES
from foreshape.kernels.recurrent_net import Net
from foreshape.ops import Offsets
from foreshape.ops.recurrent.rnn import Ragged

HIDDEN, FEATURES, BATCH = 128, 96, 32
OVER, UNDER, SMALL = 0.05, 0.01, 1 << 18
"""Parts of the measured bytes by which the plan may be over and under, and bytes by which it may be over besides."""
OVER_EQUAL = 0.13
"""The part where an LSTM's ragged sequences are all of one length: the plan has room for such as are not, which these do not need."""
OVER_DENSE = 0.13
"""Dense, what comes out in both directions may be copied or not as its gradient lies, and sequences with lengths may be shorter than planned."""

LENGTHS: dict[str, Callable[[np.random.RandomState], list[int]]] = {
    "as text has them": lambda rng: np.clip(np.exp(3.6 + 0.8 * rng.standard_normal(BATCH)), 5, 150).astype(int).tolist(),
    "uniform": lambda rng: rng.randint(5, 90, BATCH).tolist(),
    "equal": lambda rng: [50] * BATCH,
}
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
                named["sequence_length"] = layer.data("n", ["batch"], dtype="int64")
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
@pytest.mark.parametrize(("net", "layers", "both", "out"), FORMS)
def test_the_peak_is_the_planned_one(net: str, layers: int, both: bool, out: bool, data: str) -> None:
    planned, seen = both_of(net, layers, both, data, out)
    over = OVER_EQUAL if (net, data) == ("lstm", "equal") else OVER_DENSE if data not in LENGTHS and net != "lstm" else OVER
    assert (1 - UNDER) * seen.peak <= planned <= (1 + over) * seen.peak + SMALL, f"planned {planned:,}, measured {seen.peak:,}: {planned / seen.peak:.3f}"


# --- the kernel's workspace, and the pieces that must fit


@pytest.mark.parametrize(("features", "hidden"), [(64, 128), (256, 128), (17, 30), (300, 100), (20, 256)])
@pytest.mark.parametrize(("steps", "width"), [(1, 50), (25, 1), (16, 58)])
def test_the_workspace_of_onednn_is_that_of_the_formula(steps: int, width: int, features: int, hidden: int) -> None:
    state, bias = torch.zeros(width, hidden), torch.zeros(4 * hidden)
    with torch.inference_mode(), torch.set_grad_enabled(True):
        *_, workspace = torch.ops.aten.mkldnn_rnn_layer(
            torch.zeros(steps, width, features), torch.zeros(4 * hidden, features), torch.zeros(4 * hidden, hidden), bias, bias, state, state, False,
            [], 2, hidden, 1, True, False, False, True,
        )  # fmt: skip
    room = Form.of(features, hidden).room(steps, width)
    beside = 4 * hidden * width * (steps + 2)  # what comes out, and the last states
    assert isinstance(room.kept, int) and 0 <= room.kept - beside - workspace.numel() <= PARTS * PAGE


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("hidden", [64, 256])
@pytest.mark.parametrize("cell", [False, True])
def test_pieces_fit_into_the_room_that_is_planned(kind: str, hidden: int, cell: bool) -> None:
    for seed in range(10):
        lengths = LENGTHS[kind](np.random.RandomState(seed))
        alive = [sum(n > t for n in lengths) for t in range(max(lengths))]
        widths, pieces = cut(alive, Cutter(FEATURES, hidden, cell))
        room: Any = of_ragged(sum(lengths), BATCH, FEATURES + EXTRA * cell, hidden)
        kept, most, _ = Form.of(FEATURES + EXTRA * (cell and len(set(alive)) > 1), hidden).needs(pieces)
        assert kept <= room.kept and most <= room.kept + room.taken
        assert all(w >= a for w, a in zip(widths, alive, strict=True)) and [w for n, w in pieces for _ in range(n)] == widths


@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN_TANH"])
def test_a_gradient_that_is_asked_for_twice_is_computed_again(mode: str) -> None:
    net, offsets = Net(mode, 2, 1, 8), Offsets.of_lengths(torch.tensor([9, 4, 0, 4, 1, 7]))
    columns = GATES[mode] * 8
    weights = [torch.randn(columns, 8) for _ in range(4)] + [torch.randn(columns) for _ in range(4)]
    x, d_out = torch.randn(25, 8), torch.randn(25, 8)
    with torch.inference_mode():
        *_, kept = net.forward(x, weights, None, None, Ragged(offsets), out=True, cell=False, train=True)
        first, again = (net.backward(kept, x, weights, d_out, None, None, True) for _ in range(2))
    assert first[0] is not None and again[0] is not None and torch.equal(first[0], again[0])
    assert all(torch.equal(a, b) for a, b in zip(first[3], again[3], strict=True))
