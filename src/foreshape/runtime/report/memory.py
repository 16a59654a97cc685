"""The memory of a network for its page: every buffer with the ops of its lifetime, and its bytes as a function of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from foreshape.compiler.memory.draw import COLOURS
from foreshape.compiler.memory.figures import record_size
from foreshape.compiler.memory.plan import Plan
from foreshape.compiler.memory.records import CLASSES, unknown_words
from foreshape.core.pictures.markup import cut, escape
from foreshape.errors import ForeshapeError
from foreshape.language.program import Op, Program
from foreshape.language.views.layer_costs import SymbolNumbers
from foreshape.runtime.report.texts import BATCHES, Texts, over_batches

_LONGEST: Final = 4000


def memory_facts(program: Program, texts: Texts, numbers: Mapping[int, int], batch: Sequence[str], sizes: SymbolNumbers) -> dict[str, Any]:
    """Return the plan of a program; without one, the reason. ``numbers``: the ops of the page by their ids."""
    try:
        plan = Plan(program)
        return _facts(plan, texts, numbers, _values_at(plan, batch, sizes))
    except ForeshapeError as error:
        return {"why": texts.put(str(error).split("\n")[0])}


def _values_at(plan: Plan, batch: Sequence[str], sizes: SymbolNumbers) -> Callable[[int], dict[str, int]]:
    """Return the values of the symbols of a plan for a batch; unknown ones, told only by a run, count as 1."""
    rows = [n for n in plan.symbols if n in batch or n in plan.leading]

    def values(size: int) -> dict[str, int]:
        return {**{n: sizes.values.get(n, 1) for n in plan.symbols}, **dict.fromkeys(rows, size)}

    return values


def _facts(plan: Plan, texts: Texts, numbers: Mapping[int, int], values: Callable[[int], dict[str, int]]) -> dict[str, Any]:
    every = [values(b) for b in BATCHES]
    place = {b: index for index, b in enumerate(BATCHES)}
    cache: dict[object, Any] = {}

    def size_of(record: Any) -> Any:
        key = record.size if record.inner is None else id(record)
        entry = cache.get((record.what, key))
        if entry is None:
            entry = cache[record.what, key] = over_batches(lambda b: record_size(record, every[place[b]]))
        return entry

    ops: list[Op] = plan.ops
    buffers = [[r.first, r.last, CLASSES.index(r.what), texts.put(r.name), size_of(r)] for r in plan.live.records]
    persistent = [[CLASSES.index(r.what), texts.put(r.name), size_of(r)] for r in plan.live.held]
    formula = str(plan.peak_formula())
    return {
        "classes": [[c, COLOURS[c]] for c in CLASSES],
        "order": [numbers.get(id(op.whole), -1) for op in ops],
        "buffers": [b for b in buffers if b[4] != 0],
        "held": persistent,
        "formula": escape(cut(formula, _LONGEST)),
        "without": texts.put(unknown_words(plan.unknown())),
        "fetched": [texts.put(n) for n in plan.fetch[:20]],
    }
