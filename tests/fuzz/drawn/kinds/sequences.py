"""Ragged rows: poolings, context, repetitions, to padded and back, recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from drawn.drawing import Drawing, Value
from drawn.kinds.base import At, Kind
from drawn.program import Step
from foreshape import layer


def parts(rows: Any, lengths: list[int]) -> Sequence[Any]:
    """Each sequence of packed rows."""
    return torch.split(rows, lengths)


def ragged(d: Drawing) -> Value:
    """Ragged rows [rows, width] among the values, or a new input."""
    return d.wanted(lambda v: len(v.shape) == 2 and v.lod == v.shape[0] and v.known, ("", d.chance.between(1, 4)), None, True)


class SequencePool(Kind):
    """One row of each sequence."""

    name = "sequence_pool"
    weight = 6
    TORCH = {
        "sum": lambda p: p.sum(0), "average": lambda p: p.mean(0), "sqrt": lambda p: p.sum(0) / len(p) ** 0.5, "max": lambda p: p.max(0)[0],
        "first": lambda p: p[0], "last": lambda p: p[-1], "min": lambda p: p.min(0)[0],
    }  # fmt: skip

    def draw(self, d: Drawing) -> bool:
        x = ragged(d)
        how = d.chance.pick(list(self.TORCH))
        d.add(self.name, [x], [(("batch", x.shape[1]), x.scale * (2 if how in ("sum", "sqrt") else 1))], how=how, of=x.lod, empty=d.chance.pick([0.0, 0.5]))
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.sequence_pool(xs[0], step.settings["how"], step.settings["empty"])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s, x = step.settings, xs[0]
        pool = self.TORCH[s["how"]]
        return [torch.stack([pool(p) if len(p) else x.new_full(x.shape[1:], s["empty"]) for p in parts(x, at.lengths[s["of"]])])]


class SequenceReverse(Kind):
    """The rows of each sequence the other way round."""

    name = "sequence_reverse"

    def draw(self, d: Drawing) -> bool:
        x = ragged(d)
        d.add(self.name, [x], [(x.shape, x.scale)], lod=x.lod)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.sequence_reverse(xs[0])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [torch.cat([p.flip(0) for p in parts(xs[0], at.lengths[step.settings["of"]])])]


class SequenceSoftmax(Kind):
    """The softmax over each sequence of one column."""

    name = "sequence_softmax"

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) == 2 and v.lod == v.shape[0] and v.shape[1] == 1)
        if x is None:
            return False
        d.add(self.name, [x], [(x.shape, 1.0)], lod=x.lod)
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.sequence_softmax(xs[0])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [torch.cat([torch.softmax(p, 0) for p in parts(xs[0], at.lengths[step.settings["of"]])])]


class SequenceExpand(Kind):
    """A dense row of each example, once for each row of its sequence."""

    name = "sequence_expand"
    weight = 4

    def draw(self, d: Drawing) -> bool:
        x = d.any(lambda v: len(v.shape) == 2 and v.shape[0] == "batch" and v.lod is None)
        if x is None:
            return False
        y = ragged(d)
        as_rows = d.chance.one_in(2)
        d.add(self.name, [x, y], [((y.shape[0], x.shape[1]), x.scale)], lod=y.lod, of=y.lod, as_rows=as_rows)
        if not as_rows:  # dense rows, as many as y has: only beside y they can be used
            plain = d.values.pop()
            d.steps.pop()
            d.add("sequence_expand_beside", [x, y], [((y.shape[0], x.shape[1]), x.scale + y.scale)] if plain.shape == y.shape else [(y.shape, y.scale)],
                  lod=y.lod, of=y.lod, alike=plain.shape == y.shape)  # fmt: skip
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.sequence_expand_as(xs[0], xs[1])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [torch.repeat_interleave(xs[0], torch.tensor(at.lengths[step.settings["of"]]), 0)]


class SequenceExpandBeside(Kind):
    """Ragged rows with the repeated rows of another added, or the sum of these."""

    name = "sequence_expand_beside"
    weight = 0

    def draw(self, d: Drawing) -> bool:
        return False

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        rows = layer.sequence_expand(xs[0], xs[1])
        return [xs[1] + (rows if step.settings["alike"] else layer.reduce_mean(rows, 1, True))]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        rows = torch.repeat_interleave(xs[0], torch.tensor(at.lengths[step.settings["of"]]), 0)
        return [xs[1] + (rows if step.settings["alike"] else rows.mean(1, True))]


class SequenceConv(Kind):
    """Each row with its neighbours, times a matrix."""

    name = "sequence_conv"
    weight = 3

    def draw(self, d: Drawing) -> bool:
        x = ragged(d)
        width, size = d.chance.between(1, 4), d.chance.between(1, 3)
        inner = x.shape[1]
        assert isinstance(inner, int)
        parameters = {"weight": d.parameter([size * inner, width], 1.0), "bias": d.parameter([width], 0.5)}
        d.add(self.name, [x], [((x.shape[0], width), x.scale * size)], parameters=parameters, lod=x.lod, width=width, size=size, start=-d.chance.below(size))
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        return [layer.sequence_conv(xs[0], s["width"], s["size"], s["start"], weight=at.parameter("weight"), bias=at.parameter("bias"))]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s, out = step.settings, []
        for p in parts(xs[0], at.lengths[step.settings["of"]]):
            zeros = p.new_zeros(s["size"], p.shape[1])
            padded = torch.cat([zeros, p, zeros])
            first = s["size"] + s["start"]
            out.append(torch.cat([padded[first + k : first + k + len(p)] for k in range(s["size"])], 1))
        return [torch.cat(out) @ at.parameter("weight") + at.parameter("bias")]


class Pad(Kind):
    """Sequences side by side with a padding, something done to all, and back to rows."""

    name = "sequence_pad"
    weight = 2

    def draw(self, d: Drawing) -> bool:
        x = ragged(d)
        d.add(self.name, [x], [((("batch", x.shape[1])), x.scale * 2), (x.shape, min(x.scale, 1.0))], lod=None, of=x.lod)
        made = d.values.pop()
        d.values.pop()
        d.values += [Value(made.number - 1, ("batch", *x.shape[1:]), x.scale * 2), Value(made.number, x.shape, 1.0, None, x.lod)]
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        padded, lengths = layer.sequence_pad(xs[0], 0.5)
        return [layer.reduce_sum(padded * padded, 1), xs[0] + layer.lod_reset(layer.sequence_unpad(layer.tanh(padded), lengths), xs[0])]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        x, lengths = xs[0], at.lengths[step.settings["of"]]
        longest = max(lengths)
        padded = torch.stack([torch.cat([p, p.new_full((longest - len(p), x.shape[1]), 0.5)]) for p in parts(x, lengths)])
        return [(padded * padded).sum(1), x + torch.tanh(x)]


class SequenceAttention(Kind):
    """Attention within each sequence."""

    name = "sequence_attention"

    def draw(self, d: Drawing) -> bool:
        q = ragged(d)
        k = d.any(lambda v: v.shape == q.shape and v.lod == q.lod) or q
        d.add(self.name, [q, k], [(q.shape, k.scale)], lod=q.lod, causal=d.chance.one_in(2))
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        return [layer.sequence_attention(xs[0], xs[1], xs[1], causal=step.settings["causal"], scale=0.5)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        lengths, out = at.lengths[step.settings["of"]], []
        for q, k in zip(parts(xs[0], lengths), parts(xs[1], lengths), strict=True):
            scores = q @ k.T * 0.5
            if step.settings["causal"]:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, float("-inf"))
            out.append(torch.softmax(scores, -1) @ k)
        return [torch.cat(out)]


class Recurrent(Kind):
    """LSTM, GRU and the plain recurrence, over ragged rows or dense sequences."""

    name = "recurrent_layer"
    weight = 4
    GATES = {"lstm": 4, "gru": 3, "simple_rnn": 1}

    def draw(self, d: Drawing) -> bool:
        if d.depth:
            return False
        if d.chance.one_in(2):
            x = ragged(d)
        else:
            x = d.wanted(lambda v: len(v.shape) == 3 and v.known and v.shape[0] == "batch", ("batch", d.chance.between(1, 3), d.chance.between(1, 3)))
        how = d.chance.pick(list(self.GATES))
        hidden, both = d.chance.between(1, 3), d.chance.one_in(3)
        features = x.shape[-1]
        assert isinstance(features, int)
        gates = self.GATES[how] * hidden
        parameters = {}
        for u in range(2 if both else 1):
            parameters |= {f"input{u}": d.parameter([gates, features], 0.75), f"hidden{u}": d.parameter([gates, hidden], 0.75)}
            parameters[f"bias{u}"] = d.parameter([gates], 0.5)
            if how == "gru":
                parameters[f"inner{u}"] = d.parameter([gates], 0.5)
        width = hidden * (2 if both else 1)
        d.add(self.name, [x], [((*x.shape[:-1], width), 1.0), ((2 if both else 1, "batch", hidden), 1.0)], parameters=parameters, lod=x.lod, how=how,
              hidden=hidden, both=both, of=x.lod)  # fmt: skip
        last = d.values.pop()  # its batch is not at the front: seen only as what is fetched
        del last
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        units = range(2 if s["both"] else 1)
        given: dict[str, Any] = {
            "input_weight": [at.parameter(f"input{u}") for u in units], "hidden_weight": [at.parameter(f"hidden{u}") for u in units],
            "bias": [at.parameter(f"bias{u}") for u in units],
        }  # fmt: skip
        if s["how"] == "gru":
            given["hidden_bias"] = [at.parameter(f"inner{u}") for u in units]
        out, last = getattr(layer, s["how"])(xs[0], s["hidden"], bidirectional=s["both"], **given)
        return [out, last[0] if s["how"] == "lstm" else last]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s, x = step.settings, xs[0]
        outs, lasts = [], []
        for p in parts(x, at.lengths[s["of"]]) if s["of"] else x.unbind(0):
            sides = [self._run(p if not u else p.flip(0), s, u, at) for u in range(2 if s["both"] else 1)]
            outs.append(torch.cat([rows if not u else rows.flip(0) for u, (rows, _) in enumerate(sides)], 1))
            lasts.append(torch.stack([last for _, last in sides]))
        return [torch.cat(outs) if s["of"] else torch.stack(outs), torch.stack(lasts, 1)]

    def _run(self, rows: Any, s: dict[str, Any], u: int, at: At) -> tuple[Any, Any]:
        w, v, b = (at.parameter(f"{n}{u}") for n in ("input", "hidden", "bias"))
        h = cell = rows.new_zeros(s["hidden"])
        out = []
        for x in rows:
            if s["how"] == "gru":
                gx, gh = w @ x + b, v @ h + at.parameter(f"inner{u}")
                (rx, zx, nx), (rh, zh, nh) = gx.chunk(3), gh.chunk(3)
                z, n = torch.sigmoid(zx + zh), torch.tanh(nx + torch.sigmoid(rx + rh) * nh)
                h = (1 - z) * n + z * h
            elif s["how"] == "lstm":
                i, f, g, o = (w @ x + b + v @ h).chunk(4)
                cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(cell)
            else:
                h = torch.tanh(w @ x + b + v @ h)
            out.append(h)
        return (torch.stack(out) if out else rows.new_zeros(0, s["hidden"])), h
