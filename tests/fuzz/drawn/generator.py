"""Draws whole programs: inputs, steps, a loss, an optimizer, and how they are run."""

from __future__ import annotations

import itertools
from typing import Any

from drawn.chance import Chance
from drawn.drawing import Drawing, Value
from drawn.kinds import KINDS
from drawn.program import Optimizer, Program, Step

LARGEST = 4.0
"""Values whose numbers are about larger are brought back."""


def draw(chance: Chance, most: int | None = None) -> Program:
    """A program of 5 to about 60 steps (``most`` at most)."""
    d = Drawing(chance)
    for _ in range(chance.between(1, 2)):
        shapes: list[tuple[Any, ...]] = [("batch", 3), ("batch", 4), ("batch", 1), ("batch", 2, 3), ("batch", 2, 4, 4)]
        d.input(chance.pick(shapes))
    length = chance.pick([4, 8, 12, 20, 35, 55])
    draw_steps(d, min(length, most or length))
    loss = draw_loss(d) if chance.below(8) else None
    optimizer = draw_optimizer(chance) if loss is not None and any(p.trainable for p in d.parameters) else None
    steps = tuple(d.steps)
    after = draw_after(d, optimizer) if optimizer is not None and chance.one_in(2) else ()
    batches = tuple(chance.pick([1, 2, 3, 5]) for _ in range(chance.pick([1, 2, 3, 3])))
    made = [n for s in (*steps, *after) for n in s.makes]
    fetches: list[tuple[int, ...]] = []
    for k in range(len(batches)):
        if k and chance.below(3):
            fetches.append(fetches[-1])
        else:
            fetched = {chance.recent(made) for _ in range(chance.between(1, 3))}
            fetches.append(tuple(sorted(fetched | ({loss} if loss is not None and chance.below(4) else set()))))
    return Program(tuple(d.inputs), steps, loss, optimizer, batches, tuple(fetches), tuple(d.stopped), chance.below(100), after)


def draw_after(d: Drawing, optimizer: Optimizer) -> tuple[Step, ...]:
    """A few steps behind the updates, of all values that there are."""
    d.values += d.losing
    d.steps, d.updated = [], optimizer.clip is None and optimizer.decay is None
    if d.chance.one_in(2):
        KINDS["gradient"].draw(d)
    draw_steps(d, d.chance.between(1, 5))
    return tuple(d.steps)


def draw_steps(d: Drawing, count: int) -> None:
    """Add so many steps, and those that keep values from growing. The first drawn number says whether there is one more."""
    kinds = list(itertools.chain.from_iterable([k] * k.weight for k in KINDS.values()))
    for _ in range(count):
        if d.chance.below(20) == 19 and d.depth:
            break
        before = d.count
        if not d.chance.pick(kinds).draw(d):
            continue
        for v in [v for v in d.values if v.number >= before and v.real and v.scale > LARGEST]:
            d.values.remove(v)
            d.add(d.chance.pick(["tanh", "softsign", "sigmoid"]), [v], [(v.shape, 1.0)], lod=v.lod)


LOSSES = ("square", "mean", "label", "cross_entropy", "soft_cross_entropy", "sigmoid_cross_entropy", "huber", "sum")


def draw_loss(d: Drawing) -> int | None:
    """The sum of a few losses, each of a value that was drawn late; some values stay unused."""
    count = d.chance.between(1, 3)
    parts: list[Value] = []
    for _ in range(count):
        x = d.any(lambda v: True)
        if x is None:
            continue
        d.values.remove(x)
        d.losing.append(x)
        how = d.chance.pick(LOSSES)
        reads = [x]
        rows = len(x.shape) == 2 and x.shape[0] == "batch" and x.known and x.lod is None
        if how in ("cross_entropy", "soft_cross_entropy") and not (rows and x.shape[1] > 1):
            how = "square"
        if how == "cross_entropy":
            reads.append(d.input(("batch", 1), x.shape[1]))
        elif how in ("label", "soft_cross_entropy", "sigmoid_cross_entropy", "huber"):
            if not (x.known and x.lod is None and x.shape and x.shape[0] == "batch"):
                how = "mean"
            else:
                reads.append(d.input(x.shape))
        parts += d.add("loss", reads, [((), 1.0)], how=how)
    if not parts:
        return None
    return d.add("loss_sum", parts, [((), 1.0)], weights=[d.chance.pick([1.0, 0.5]) for _ in parts])[0].number


_FALLING = {"learning_rate": 0.0625, "decay_steps": 2, "decay_rate": 0.5}
SCHEDULES: dict[str, dict[str, Any]] = {
    "ExponentialDecay": _FALLING,
    "NaturalExpDecay": _FALLING,
    "InverseTimeDecay": {**_FALLING, "staircase": True},
    "PolynomialDecay": {"learning_rate": 0.0625, "decay_steps": 2, "end_learning_rate": 0.015625, "cycle": True},
    "PiecewiseDecay": {"boundaries": [1, 2], "values": [0.0625, 0.03125, 0.015625]},
    "CosineDecay": {"learning_rate": 0.0625, "step_each_epoch": 1, "epochs": 4},
    "NoamDecay": {"d_model": 16, "warmup_steps": 4, "learning_rate": 0.5},
    "LinearWarmup": {"learning_rate": 0.0625, "warmup_steps": 2, "start_lr": 0.0, "end_lr": 0.0625},
}

EPSILON = 2.0**-20


def draw_optimizer(chance: Chance) -> Optimizer:
    """All numbers are sums of few powers of two, which single precision holds."""
    kind = chance.pick(["SGD", "Momentum", "Adam", "AdamW", "Adagrad", "RMSProp", "Ftrl"])
    lazy = {"lazy_mode": chance.one_in(2)}
    settings: dict[str, Any] = {
        "SGD": lambda: {}, "Momentum": lambda: {"momentum": chance.pick([0.875, 0.5, 0.0]), "use_nesterov": chance.one_in(2), **lazy},
        "Adam": lambda: {"beta1": chance.pick([0.875, 0.5]), "beta2": 0.96875, "epsilon": EPSILON, **lazy},
        "AdamW": lambda: {"beta1": 0.875, "beta2": 0.96875, "epsilon": EPSILON, "weight_decay": 0.125, **lazy},
        "Adagrad": lambda: {"epsilon": EPSILON, "initial_accumulator_value": chance.pick([0.0, 0.125])},
        "RMSProp": lambda: {"rho": 0.875, "epsilon": EPSILON, "momentum": chance.pick([0.0, 0.5]), "centered": chance.one_in(2), **lazy},
        "Ftrl": lambda: {"l1": chance.pick([0.0, 0.0625]), "l2": chance.pick([0.0, 0.125]), "lr_power": chance.pick([-0.5, -0.25])},
    }[kind]()  # fmt: skip
    rate: Any = chance.pick([0.0625, 0.015625, 0.25 if kind in ("SGD", "Momentum") else 0.03125])
    if chance.one_in(4):
        name = chance.pick([n for n in SCHEDULES if kind != "Ftrl" or n != "LinearWarmup"])  # Ftrl divides by the rate, which begins at 0
        rate = (name, SCHEDULES[name])
    clip = chance.pick([None, None, ("ClipByGlobalNorm", 0.5), ("ClipByNorm", 0.25), ("ClipByValue", 0.125)])
    decay = chance.pick([None, None, ("L2Decay", 0.125), ("L1Decay", 0.0625)]) if kind != "AdamW" else None
    return Optimizer(kind, rate, settings, clip, decay)
