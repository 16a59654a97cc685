"""What PaddlePaddle's recurrent operators over ragged rows and attention within them are measured to take against what is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.measured import allocated, fed_bytes, fresh, held_bytes, sizes_of

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import FP32
from foreshape.layer.parameter import create_parameter
from foreshape.machine.kernels.onednn import thread_count

UNDER, OVER, SMALL = 0.01, 0.1, 1 << 18
"""Parts of the measured bytes by which the plan may be under and over, and bytes by which it may be over besides."""
OVER_ATTENTION = 0.2
"""The part for attention, whose plan has room for one long sequence where there are many short ones."""
SCORES = 4 * 256 * (2 * 512 + 1)
"""What attention may have of scores at once, in each thread: the more, the longer a sequence is."""

Lengths = Callable[[np.random.RandomState, int], list[int]]
LENGTHS: dict[str, Lengths] = {
    "as text has them": lambda rng, count: np.clip(np.exp(3.4 + 0.8 * rng.standard_normal(count)), 3, 150).astype(int).tolist(),
    "equal": lambda rng, count: [30] * count,
    "one long": lambda rng, count: [500] + [5] * (count - 1),
}


def lstm(x: fs.Variable, hidden: int, reverse: bool = False) -> fs.Variable:
    return _net("lstm", x, hidden, 4, {"Weight": [hidden, 4 * hidden], "Bias": [1, 7 * hidden]}, "Hidden", use_peepholes=True, is_reverse=reverse)


def lstmp(x: fs.Variable, hidden: int) -> fs.Variable:
    half = hidden // 2
    shapes = {"Weight": [half, 4 * hidden], "ProjWeight": [hidden, half], "Bias": [1, 4 * hidden]}
    return _net("lstmp", x, hidden, 4, shapes, "Projection", use_peepholes=False, cell_clip=3.0, proj_clip=3.0)


def gru(x: fs.Variable, hidden: int, origin: bool = False) -> fs.Variable:
    return _net("gru", x, hidden, 3, {"Weight": [hidden, 3 * hidden], "Bias": [1, 3 * hidden]}, "Hidden", origin_mode=origin)


def both_ways(x: fs.Variable, hidden: int) -> fs.Variable:
    return layer.concat([lstm(x, hidden), lstm(x, hidden, True)], 1)


def attention(x: fs.Variable, hidden: int) -> fs.Variable:
    q, k, v = (layer.fc(x, hidden) for _ in range(3))
    return layer.sequence_attention(q, k, v, heads=4)


def _net(type: str, x: fs.Variable, hidden: int, gates: int, shapes: dict[str, list[int]], out: str, **attributes: Any) -> fs.Variable:
    inputs: dict[str, Any] = {"Input": layer.fc(x, gates * hidden), **{n: create_parameter(s, FP32) for n, s in shapes.items()}}
    block = fs.default_main_program().global_block
    op = block.append_op(type, inputs, None, attributes, prefix=type)
    return block.var(op.outputs[out][0])


NETS: dict[str, Callable[[fs.Variable, int], fs.Variable]] = {
    "lstm": lstm, "lstmp": lstmp, "gru": gru, "gru, the other way": lambda x, h: gru(x, h, True), "lstm both ways": both_ways, "attention": attention,
}  # fmt: skip


def both_of(net: str, hidden: int, count: int, lengths: str, train: bool) -> tuple[int, int]:
    """The planned peak, and the measured one of a step after its first."""
    rng = np.random.RandomState(3)
    rows = LENGTHS[lengths](rng, count)
    main, start = fs.Program(), fs.Program()
    with fs.program_guard(main, start):
        x = layer.data("x", [-1, 48], lod_level=1)
        out = NETS[net](x, hidden)
        loss = layer.reduce_mean(out * out)
        if train:
            fs.optimizer.SGD(0.1).minimize(loss)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(start, scope=scope)
    feed = {"x": fs.LoDTensor(rng.standard_normal((sum(rows), 48)).astype(np.float32), [rows])}
    plan = fs.plan(main, [loss.name])
    executor.run(main, fresh(feed), [loss.name], scope)
    held = held_bytes(scope) + fed_bytes(feed)
    seen = held + allocated(lambda: executor.run(main, fresh(feed), [loss.name], scope))
    return plan.peak(**sizes_of(plan, executor, feed)), seen


TRAINED = [("lstm", 32, 64, "equal"), ("lstm", 256, 4, "equal"), ("lstmp", 128, 16, "equal"), ("gru", 32, 32, "as text has them"),
           ("gru, the other way", 256, 4, "equal"), ("lstm both ways", 32, 64, "equal"), ("attention", 32, 64, "as text has them"),
           ("attention", 128, 32, "equal"), ("attention", 256, 4, "one long")]  # fmt: skip
RUN = [("lstm both ways", 32, 64, "equal"), ("lstmp", 128, 16, "equal"), ("gru", 32, 64, "equal"), ("attention", 256, 4, "one long")]
CASES = [pytest.param(*c, train, marks=pytest.mark.long if c[1] > 32 else ()) for train, cases in ((True, TRAINED), (False, RUN)) for c in cases]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("net", "hidden", "count", "lengths", "train"), CASES)
def test_the_peak_is_the_planned_one(net: str, hidden: int, count: int, lengths: str, train: bool) -> None:
    planned, seen = both_of(net, hidden, count, lengths, train)
    over, small = (OVER_ATTENTION, SMALL + SCORES * thread_count()) if net == "attention" else (OVER, SMALL)
    assert (1 - UNDER) * seen <= planned <= (1 + over) * seen + small, f"planned {planned:,}, measured {seen:,}: {planned / seen:.3f}"
