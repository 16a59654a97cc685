"""Lookups in tables: dense or sparse gradients, bags, of dense and ragged ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from drawn.drawing import Drawing, Value
from drawn.kinds.base import At, Kind
from drawn.kinds.sequences import parts
from drawn.program import Step
from foreshape import layer


def a_table(d: Drawing) -> tuple[int, int, Value]:
    """The rows and the width of a table, and ids of its rows, dense or ragged."""
    rows, width = d.chance.between(2, 7), d.chance.between(1, 4)
    ragged = d.chance.one_in(2)
    ids = d.wanted(lambda v: len(v.shape) == (1 if ragged else 2), ("",) if ragged else ("batch", d.chance.between(1, 3)), rows, ragged)
    return rows, width, ids


class Embedding(Kind):
    """The rows of a table that ids name."""

    name = "embedding"
    weight = 5

    def draw(self, d: Drawing) -> bool:
        rows, width, ids = a_table(d)
        sparse = d.chance.one_in(2)
        # a table whose gradients are dense and sparse is another matter: then all of its gradient is dense
        table = d.parameter([rows, width], 1.0)
        padding = d.chance.below(rows) if d.chance.one_in(4) else None
        d.add(self.name, [ids], [((*ids.shape, width), 0.6)], parameters={"weight": table}, lod=ids.lod, rows=rows, width=width, is_sparse=sparse,
              padding=padding)  # fmt: skip
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        return [layer.embedding(xs[0], [s["rows"], s["width"]], s["is_sparse"], s["padding"], weight=at.parameter("weight"), dtype=at.dtype)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        return [look_up(xs[0], s, at)]


def look_up(ids: Any, s: dict[str, Any], at: At) -> Any:
    if not s["is_sparse"]:
        out = at.parameter("weight")[ids]
    else:
        out = at.table("weight", ids, s["padding"])
    return out if s["padding"] is None else torch.where((ids != s["padding"]).unsqueeze(-1), out, 0.0)


class Bag(Kind):
    """The sums of the rows that each example's ids name."""

    name = "embedding_bag"
    weight = 3

    def draw(self, d: Drawing) -> bool:
        rows, width, ids = a_table(d)
        mode = d.chance.pick(["sum", "mean", "sqrt"] if ids.lod else ["sum", "mean"])
        padding = d.chance.below(rows) if d.chance.one_in(4) else None
        d.add(self.name, [ids], [(("batch", width), 1.5)], parameters={"weight": d.parameter([rows, width], 1.0)}, rows=rows, width=width, mode=mode,
              is_sparse=d.chance.one_in(2), padding=padding, lod=None, of=ids.lod)  # fmt: skip
        return True

    def describe(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        return [layer.embedding_bag(xs[0], [s["rows"], s["width"]], s["mode"], s["padding"], s["is_sparse"], weight=at.parameter("weight"), dtype=at.dtype)]

    def compute(self, xs: list[Any], step: Step, at: At) -> Sequence[Any]:
        s = step.settings
        rows = look_up(xs[0], s, at)
        if s["of"] is None:
            return [rows.sum(1) if s["mode"] == "sum" else rows.mean(1)]
        power = {"sum": 0.0, "mean": 1.0, "sqrt": 0.5}[s["mode"]]
        return [torch.stack([p.sum(0) / max(len(p), 1) ** power for p in parts(rows, at.lengths[s["of"]])])]
