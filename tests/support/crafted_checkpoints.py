"""Checkpoints whose checksum is right and whose contents are not: every fact and every tensor, made wrong in every way."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import foreshape as fs
from foreshape import layer
from foreshape.apps.training import Checkpoint
from foreshape.apps.training.checkpoint import container

WRONG: dict[str, Any] = {
    "none": None, "true": True, "zero": 0, "one": 1, "minus-one": -1, "half": 1.5, "nan": float("nan"), "inf": float("inf"), "minus-inf": float("-inf"),
    "2-31": 2**31, "2-63": 2**63, "minus-2-63": -(2**63), "40-digits": 10**39, "empty-text": "", "text": "x", "long-text": "x" * 10_000, "nul": "a\x00b",
    "escape": "\x1b[2J", "surrogate": "\ud800", "digits": "12", "empty-list": [], "list": [1], "list-of-none": [None], "nested-list": [[[[]]]],
    "list-of-lists": [[1, 2], [3]], "many": [0] * 1000, "empty-object": {}, "object": {"a": 1}, "object-of-object": {"": {"": {}}},
}  # fmt: skip


def network() -> tuple[fs.Program, fs.Program, Any]:
    """A small network: main, startup, cost."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x, y = layer.data("x", 3), layer.data("y", 1)
        cost = layer.mean(layer.square_error_cost(layer.fc(x, 1), y))
        fs.optimizer.Momentum(0.1, 0.9).minimize(cost, startup)
    return main, startup, cost


def data() -> dict[str, Any]:
    rng = np.random.RandomState(3)
    return {"x": rng.rand(6, 3).astype("float32"), "y": rng.rand(6, 1).astype("float32")}


def train(folder: Path, scope: fs.Scope, executor: fs.Executor | None = None, epochs: int = 2, **more: Any) -> fs.training.History:
    _, startup, cost = network()
    return fs.train(
        cost, data(), batch_size=2, epochs=epochs, progress=False, scope=scope, executor=executor, startup=startup,
        checkpoint=Checkpoint(folder, every=1), **more,
    )  # fmt: skip


@dataclass
class Whole:
    """A checkpoint that is right: its tensors and facts."""

    tensors: dict[str, Any]
    facts: dict[str, Any]


def whole(folder: Path) -> Whole:
    """One that was written within the second epoch."""
    torch.manual_seed(0)  # what is crafted must be wrong wherever other tests left the generator

    class Enough(Exception):
        pass

    class Stopping(Checkpoint):
        def save(self, *given: Any) -> str:
            path = super().save(*given)
            if given[2].history.steps == 5:
                raise Enough
            return path

    _, startup, cost = network()
    with contextlib.suppress(Enough):
        fs.train(cost, data(), batch_size=2, epochs=2, progress=False, scope=fs.Scope(), startup=startup, checkpoint=Stopping(folder, every=1), seed=1)
    tensors, facts = container.read(Checkpoint(folder).files()[0])
    same = {"seconds": 0.25, "epochs": [row | {"seconds": 0.5} for row in facts["epochs"]]}  # whatever the machine took
    return Whole({n: t.clone() for n, t in tensors.items()}, facts | same)


def places(facts: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every fact; of a long list its first and last."""
    if at:
        yield at
    if isinstance(facts, dict):
        for key in facts:
            yield from places(facts[key], (*at, key))
    elif isinstance(facts, list):
        for index in dict.fromkeys((0, len(facts) - 1)) if facts else ():
            yield from places(facts[index], (*at, index))


def replaced(facts: Any, at: tuple[Any, ...], value: Any) -> Any:
    out = copy.deepcopy(facts)
    inner = out
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return out


def without(facts: Any, at: tuple[Any, ...]) -> Any:
    out = copy.deepcopy(facts)
    inner = out
    for key in at[:-1]:
        inner = inner[key]
    del inner[at[-1]]
    return out


def with_more(facts: Any, at: tuple[Any, ...], value: Any) -> Any:
    """One thing more in a list or an object; the same facts where it is neither."""
    out = copy.deepcopy(facts)
    inner = out
    for key in at:
        inner = inner[key]
    if isinstance(inner, list):
        inner.append(value)
    elif isinstance(inner, dict):
        inner["surplus"] = value
    return out


def wrong_facts(facts: dict[str, Any], at: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Every way in which one fact can be wrong."""
    for name, value in WRONG.items():
        yield f"is-{name}", replaced(facts, at, value)
        yield f"and-{name}", with_more(facts, at, value)
    yield "missing", without(facts, at)


def wrong_tensors(tensors: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way in which one tensor can be wrong: type, rank, count, numbers."""
    import torch

    value = tensors[name]
    rest = {n: t for n, t in tensors.items() if n != name}
    yield "missing", rest
    for other in ("", "surplus", name + "x", "value/", "value/surplus", "random/surplus", "x" * 1000, "\x00", name.upper()):
        yield f"called-{other[:20]}", {**rest, other: value}
        yield f"and-{other[:20]}", {**tensors, other: value}
    for of in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        if of is not value.dtype:
            yield f"of-{of}", {**rest, name: value.to(of)}
    flat = value.reshape(-1)
    for what, other in {
        "one-dim": flat, "no-dims": flat[:1].reshape(()), "empty": flat[:0], "one-more-dim": value[None], "ten-dims": value.reshape(*value.shape, *[1] * 9),
        "shorter": flat[:-1], "longer": torch.cat([flat, flat[:1]]), "twice": torch.cat([flat, flat]),
        "no-rows": value[:0] if value.dim() else flat[:0], "transposed": value.mT.contiguous() if value.dim() == 2 else value,
    }.items():  # fmt: skip
        if other.shape != value.shape:
            yield what, {**rest, name: other}
    numbers = [0, 1, 2, 255, 624, 625] if value.dtype is torch.uint8 else [0, -1, 1, 624, 625, 2**31, -(2**31), 2**32, 2**53]
    if value.is_floating_point():
        numbers += [float("nan"), float("inf"), float("-inf"), 0.5, 1e300, -0.0]
    for number in numbers:
        if value.is_floating_point() or value.dtype is torch.bool:
            with_number = torch.full_like(value, number, dtype=torch.float64).to(value.dtype)
        else:
            held = torch.iinfo(value.dtype)
            with_number = torch.full_like(value, min(max(number, held.min), held.max))
        yield f"all-{number}", {**rest, name: with_number}
        for at in dict.fromkeys((0, 1, 8, 12, 16, 17, 624, 625, 626, len(flat) - 1)):
            if at < len(flat):
                one = flat.clone()
                one[at] = with_number.reshape(-1)[0]
                yield f"{number}-at-{at}", {**rest, name: one.reshape(value.shape)}


def any_wrong(given: Whole, rng: random.Random) -> tuple[str, dict[str, Any], Any]:
    """One of all of them, or several at once: its name, the tensors and the facts."""
    tensors, facts = given.tensors, given.facts
    names: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if rng.random() < 0.5 and isinstance(facts, dict) and facts:
            at = rng.choice(list(places(facts)))
            what, facts = rng.choice(list(wrong_facts(facts, at)))
            names.append(f"{'.'.join(map(str, at))}-{what}")
        elif tensors:
            name = rng.choice(sorted(tensors))
            if tensors[name].numel():
                what, tensors = rng.choice(list(wrong_tensors(tensors, name)))
                names.append(f"{name}-{what}")
    return "; ".join(names), tensors, facts


def write(path: Path, tensors: dict[str, Any], facts: Any) -> None:
    """With the right checksum, whatever the facts are."""
    container.write(path, tensors, facts)


def as_read(facts: Any) -> Any:
    """What comes back from a file."""
    return json.loads(json.dumps(facts))
