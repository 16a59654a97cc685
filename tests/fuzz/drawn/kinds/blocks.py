"""Branches, loops, arrays, and a step of one's own over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from drawn.drawing import Drawing, Value
from drawn.kinds.base import At, Kind
from drawn.kinds.sequences import parts, ragged
from drawn.program import Block, Size, Step
from foreshape import layer

DEEPEST = 3


def like(d: Drawing, shape: tuple[Size, ...], lod: str | None, else_: Value) -> Value:
    """A value of a shape, which a block may give; a copy of one where there is none that the block made."""
    return d.any(lambda v: v.shape == shape and v.lod == lod) or else_


def few(d: Drawing, most: int) -> None:
    from drawn.generator import draw_steps

    draw_steps(d, d.chance.between(0, most))


def branches(d: Drawing, number: int, most: int, results: Sequence[Value]) -> list[Block]:
    """Blocks of at most so many steps, each of which gives values like these."""
    blocks: list[Block] = []
    for _ in range(number):
        with d.block([]) as block:
            few(d, most)
            object.__setattr__(block, "gives", tuple(like(d, r.shape, None, r).number for r in results))
        blocks.append(block)
    return blocks


def truth(d: Drawing) -> dict[str, Any]:
    """How a condition is made of a value."""
    return {"test": d.chance.pick(["true", "false", "above", "below"]), "limit": d.chance.pick([0.125, -0.375, 0.875])}


def described_truth(x: Any, s: dict[str, Any]) -> Any:
    if s["test"] in ("true", "false"):
        return layer.fill_constant([1], "bool", s["test"] == "true")
    of = layer.reduce_sum(layer.tanh(x))
    return of > s["limit"] if s["test"] == "above" else of < s["limit"]


def computed_truth(x: Any, s: dict[str, Any]) -> bool:
    if s["test"] in ("true", "false"):
        return s["test"] == "true"
    of = torch.tanh(x).sum().item()
    return of > s["limit"] if s["test"] == "above" else of < s["limit"]


def joined(values: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The values; a gradient of zeros flows to what did not run, as a description that knows both ways has it."""
    return [torch.where(torch.zeros_like(v, dtype=torch.bool), o, v) for v, o in zip(values, others, strict=True)]


class Cond(Kind):
    """One of two branches. Each gives what the other gives: values made in it, or values from outside, or constants."""

    name = "cond"
    weight = 5

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: v.lod is None)
        given = d.any(lambda v: v.lod is None)
        if x is None or given is None or d.depth >= DEEPEST:
            return False
        results = [given, *([d.any(lambda v: v.lod is None) or given] if d.chance.one_in(3) else [])]
        blocks = branches(d, 2, 4, results)
        scale = max((v.scale for v in d.values), default=1.0)
        # a branch that gives what nothing has written in it gives a constant instead
        constant = [d.chance.one_in(5), d.chance.one_in(5)]
        d.add(self.name, [x], [(r.shape, min(scale, 4.0)) for r in results], blocks=blocks, constant=constant, **truth(d))
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        def branch(k: int) -> Any:
            def run() -> Any:
                out = at.run(step.blocks[k], [])
                return [layer.fill_like(v, 0.5) for v in out] if step.settings["constant"][k] else out

            return run

        return layer.cond(described_truth(xs[0], step.settings), branch(0), branch(1))

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        k = 0 if computed_truth(xs[0], step.settings) else 1
        ways = [at.run(step.blocks[j], [], dry=j != k) for j in range(2)]
        out = [[torch.full_like(v, 0.5) for v in way] if constant else way for way, constant in zip(ways, step.settings["constant"], strict=True)]
        return joined(out[k], out[1 - k])


class Switch(Kind):
    """One of three branches by a number."""

    name = "switch_case"
    weight = 1

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: v.lod is None)
        given = d.any(lambda v: v.lod is None)
        if x is None or given is None or d.depth >= DEEPEST:
            return False
        blocks = branches(d, 3, 2, [given])
        d.add(self.name, [x], [(given.shape, 2.0)], blocks=blocks, default=d.chance.one_in(2), **truth(d))
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        of = layer.cast(described_truth(xs[0], step.settings), "int32") + 1
        branches = {k: (lambda k=k: at.run(step.blocks[k], [])) for k in range(2)}
        last = lambda: at.run(step.blocks[2], [])  # noqa: E731
        return layer.switch_case(of, branches, last) if step.settings["default"] else layer.switch_case(of, {**branches, 2: last})

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        k = 1 + computed_truth(xs[0], step.settings)
        ways = [at.run(b, [], dry=j != k) for j, b in enumerate(step.blocks)]
        return joined(joined(ways[k], ways[k - 1]), ways[k - 2])


class While(Kind):
    """A loop over some values: carried, exchanged, handed on as they are, constants; the rounds are counted, or a value ends them."""

    name = "while_loop"
    weight = 5

    def draw(self, d: Drawing) -> bool:
        first = d.any(lambda v: v.lod is None)
        if first is None or d.depth >= DEEPEST:
            return False
        start = [first, *(d.any(lambda v: v.lod is None) or first for _ in range(d.chance.below(3)))]
        constant = [d.chance.one_in(5) for _ in start]
        state = [Value(d.number(), v.shape, 1.0) for v in start]
        with d.block(state) as block:
            few(d, 4)
            gives: list[int] = []
            for of in state:
                found = d.find(lambda v, of=of: v.real and v.shape == of.shape and v.lod is None)
                new = d.chance.recent(found)
                if new.scale > 2:
                    (new,) = d.add("tanh", [new], [(new.shape, 1.0)])
                gives.append(new.number)
            object.__setattr__(block, "gives", tuple(gives))
        d.add(self.name, start, [(v.shape, 2.0) for v in start], blocks=[block], constant=constant, rounds=d.chance.below(4),
              most=d.chance.pick([None, 2]), ends=d.chance.one_in(3), **truth(d))  # fmt: skip
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        start = [layer.fill_like(x, 0.25) if c else x for x, c in zip(xs, s["constant"], strict=True)]
        limit = layer.fill_constant([1], "int64", s["rounds"])

        def goes_on(i: Any, *state: Any) -> Any:
            within = layer.less_than(i, limit)
            return layer.logical_and(within, layer.reshape(described_truth(state[0], s), [1])) if s["ends"] else within

        begin = [layer.fill_constant([1], "int64", 0), *start]
        return layer.while_loop(goes_on, lambda i, *state: [i + 1, *at.run(step.blocks[0], state)], begin, s["most"])[1:]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        state: Sequence[Any] = [torch.full_like(x, 0.25) if c else x for x, c in zip(xs, s["constant"], strict=True)]
        for _ in range(min(s["rounds"], 3 if s["most"] is None else s["most"])):
            if s["ends"] and not computed_truth(state[0], s):
                break
            state = at.run(step.blocks[0], state)
        other = state
        for _ in state:
            other = at.run(step.blocks[0], other, dry=True)
            state = joined(state, other)
        return state


class Arrays(Kind):
    """Values written to an array, in a loop or before one, read again in another order, joined."""

    name = "array"
    weight = 2

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: v.lod is None and len(v.shape) >= 2 and v.known and not str(v.shape[0]).startswith("alive"))
        if x is None:
            return False  # nor what has as many rows as sequences go on: an array does not say that its elements have
        y = d.any(lambda v: v.shape == x.shape) or x
        how = d.chance.pick(["read", "loop", "join"])
        shape = (x.shape[0], 1, *x.shape[2:]) if how == "join" else x.shape
        d.add(self.name, [x, y], [(shape, x.scale + y.scale)], how=how)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        x, y = xs
        zero, one = (layer.fill_constant([1], "int64", n) for n in range(2))
        array = layer.array_write(x, zero)
        match step.settings["how"]:
            case "read":
                layer.array_write(y, one, array)
                return [layer.array_read(array, one) + layer.tanh(layer.array_read(array, zero))]
            case "join":
                layer.array_write(y, one, array)
                return [layer.reduce_mean(layer.tensor_array_to_tensor(array, 1)[0], 1, True)]  # how many were joined only the run tells
            case _:
                end = layer.fill_constant([1], "int64", 3)

                def body(i: Any, of: Any) -> Any:
                    layer.array_write(layer.tanh(layer.array_read(of, i) + y), i + 1, of)
                    return [i + 1, of]

                _, array = layer.while_loop(lambda i, of: layer.less_than(i, end), body, [layer.fill_constant([1], "int64", 0), array])
                return [layer.array_read(array, end) + layer.array_read(array, one)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        x, y = xs
        match step.settings["how"]:
            case "read":
                return [y + torch.tanh(x)]
            case "join":
                return [torch.cat([x, y], 1).mean(1, True)]
            case _:
                first = torch.tanh(x + y)
                return [torch.tanh(torch.tanh(first + y) + y) + first]


class Rnn(Kind):
    """A step that is drawn, over the time of [batch, time, width] or of ragged rows, with a memory."""

    name = "rnn"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        if d.depth >= DEEPEST - 1:
            return False
        memory = d.any(lambda v: len(v.shape) == 2 and v.known and v.shape[0] == "batch" and v.lod is None)
        if memory is None:
            return False
        over = d.chance.one_in(2)
        x = ragged(d) if over else d.wanted(lambda v: len(v.shape) == 3 and v.known and v.shape[0] == "batch", ("batch", 1 + d.chance.below(3), 2))
        alive = f"alive{d.number()}" if over else "batch"
        inner = [Value(d.number(), (alive, x.shape[-1]), x.scale), Value(d.number(), (alive, memory.shape[1]), 1.0)]
        with d.block(inner, only=over) as block:
            few(d, 4)
            new = d.chance.recent(d.find(lambda v: v.real and v.shape == inner[1].shape and v.lod is None))
            if new.scale > 1:
                (new,) = d.add("tanh", [new], [(new.shape, 1.0)])
            out = d.chance.recent(d.find(lambda v: v.real and len(v.shape) == 2 and v.known and v.shape[0] == alive and v.lod is None))
            object.__setattr__(block, "gives", (out.number, new.number))
        width = out.shape[1]
        shape = (x.shape[0], width) if over else (*x.shape[:2], width)
        made = [Value(d.number(), shape, out.scale, None, x.lod), Value(d.number(), memory.shape, 1.0)]
        settings = {"of": x.lod, "reverse": d.chance.one_in(3), "width": width}
        d.steps.append(Step(self.name, (x.number, memory.number), tuple(v.number for v in made), tuple(v.shape for v in made), settings, {}, (block,)))
        d.values += made
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        def one(x: Any, memory: Any) -> Any:
            return tuple(at.run(step.blocks[0], [x, memory]))

        return layer.rnn(one, xs[0], xs[1], reverse=step.settings["reverse"])

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s, (x, memory) = step.settings, xs
        if not s["of"]:
            outs: list[Any] = [None] * x.shape[1]
            for t in range(x.shape[1])[:: -1 if s["reverse"] else 1]:
                outs[t], memory = at.run(step.blocks[0], [x[:, t], memory])
            return [torch.stack(outs, 1), memory]
        lengths = at.lengths[s["of"]]
        rows = [list(p.unbind(0)) for p in parts(x, lengths)]
        last = list(memory.unbind(0))
        made: list[list[Any]] = [[None] * n for n in lengths]
        for step_number in range(max(lengths, default=0)):
            alive = [i for i, n in enumerate(lengths) if n > step_number]
            place = [lengths[i] - 1 - step_number if s["reverse"] else step_number for i in alive]
            out, new = at.run(step.blocks[0], [torch.stack([rows[i][t] for i, t in zip(alive, place, strict=True)]), torch.stack([last[i] for i in alive])])
            for k, (i, t) in enumerate(zip(alive, place, strict=True)):
                made[i][t], last[i] = out[k], new[k]
        ended = [last[i] if lengths[i] else torch.zeros_like(last[i]) for i in range(len(lengths))]
        flat = [r for of in made for r in of]
        width = step.settings["width"]
        return [torch.stack(flat) if flat else x.new_zeros(0, width), torch.stack(ended)]
