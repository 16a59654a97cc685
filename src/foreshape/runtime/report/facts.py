"""The data of a network's page: its ops and values by number, its layers and drawings, conditions, memory and work."""

from __future__ import annotations

from typing import Any, Final

from foreshape.core.dims import symbols_of
from foreshape.core.gc_pause import collector_waits
from foreshape.core.pictures.figures import plural
from foreshape.errors import SchemaError, border
from foreshape.language.operator.registry import shown_type
from foreshape.language.program import Op, Program, Role, Variable
from foreshape.language.program.inputs import inputs_of, size_of
from foreshape.language.program.work import multiplications
from foreshape.language.text.literal import escape
from foreshape.language.text.writer import settings_text
from foreshape.language.views.layer_costs import Meter, SymbolNumbers
from foreshape.language.views.notebook import counts
from foreshape.language.views.outline import result_of
from foreshape.language.views.size_steps import RuleQuestions
from foreshape.language.views.summary import Summary
from foreshape.runtime.report.drawings import Drawings
from foreshape.runtime.report.memory import memory_facts
from foreshape.runtime.report.texts import BATCHES, Texts, over_batches

_QUESTIONS: Final = 6000
"""The most different ops whose rules are asked for the making of sizes; the page itself explains any others."""
_PARTS: Final = ("dim", "count", "value")
_GUARDS: Final = 500
_WIDTH: Final = 110


@border("the page cannot be made", SchemaError)
@collector_waits
def facts(program: Program, title: str) -> dict[str, Any]:
    """Return all data of the page."""
    unknown, errors = program.diagnose()
    texts = Texts()
    sizes = SymbolNumbers(program)
    ops = [op for block in program.blocks for op in block.ops]
    numbers = {id(op): index for index, op in enumerate(ops)}
    batch = _batch_symbols(program)
    drawings = Drawings(program, texts, Meter(program, sizes))
    values = _Values(program, texts, numbers, sizes, batch, bool(errors))
    listed = [_op(op, index, values, drawings, texts) for index, op in enumerate(ops)]
    memory = memory_facts(program, texts, numbers, batch, sizes) if not errors else {"why": texts.put("the network has errors")}
    layers = drawings.facts()
    return {
        "title": escape(title).replace("\n", " "),
        "about": escape(counts(program)),
        "batches": BATCHES,
        "symbols": {escape(n): v for n, v in sizes.values.items() if n not in batch},
        "batch": [escape(n) for n in batch],
        "summary": escape(Summary(program, layers=drawings.forward, meter=drawings.meter).text(_WIDTH)),
        "takes": _takes(program, texts, numbers, bool(errors)),
        "errors": [texts.put(f"{type(e).__name__}: {e}") for e in errors[:50]],
        "unknown": [texts.put(f"{plural(sum(o.type == t for o in unknown), 'op')} of {t}, which is not known") for t in dict.fromkeys(o.type for o in unknown)],
        "ops": listed,
        "values": values.listed,
        "forms": values.forms(),
        "layers": layers,
        "drawings": drawings.drawings,
        "memory": memory,
        "texts": texts.all(),
    }


def _batch_symbols(program: Program) -> list[str]:
    """Return the symbols of the inputs' numbers of rows, or sequences."""
    symbols: dict[str, None] = {}
    for variable in inputs_of(program.global_block):
        spec = variable.spec
        leading = spec.lod.counts[0] if spec.lod is not None else spec.dims[0] if spec.dims else 1
        symbols.update(dict.fromkeys(sorted(symbols_of(leading))))
    return list(symbols)


class _Values:
    """The variables of a program, numbered as they are met."""

    def __init__(self, program: Program, texts: Texts, ops: dict[int, int], sizes: SymbolNumbers, batch: list[str], wrong: bool) -> None:
        self.listed: list[Any] = []
        self._texts, self._ops, self._batch = texts, ops, batch
        self._sizes = [_at_batch(sizes, batch, b) for b in BATCHES]
        self._numbers: dict[int, int] = {}
        self._steps = RuleQuestions(0 if wrong else _QUESTIONS)  # the rules of a network with errors cannot be asked
        self._known: dict[object, Any] = {}
        self._words: dict[object, int] = {}

    def over_batches(self, size: Any) -> Any:
        """Return a size as a function of the batch."""
        if size is None or isinstance(size, int):
            return size
        entry = self._known.get(size)
        if entry is None:
            entry = self._known[size] = over_batches(lambda b: self._sizes[BATCHES.index(b)].number(size))
        return entry

    def number(self, variable: Variable) -> int:
        """Return the number of a variable: name, spec, class, its op, bytes, line."""
        index = self._numbers.get(id(variable))
        if index is None:
            index = self._numbers[id(variable)] = len(self.listed)
            put, spec = self._texts.put, variable.spec
            words = self._words.get((spec, variable.known))
            if words is None:
                words = self._words[spec, variable.known] = put(spec.text() + ("" if variable.known else " ?"))
            site = variable.call_site
            self.listed.append([put(variable.name), words, put(variable.role_words), -1 if variable.op is None else self._ops.get(id(variable.op), -1),
                                self.over_batches(size_of(variable)), put(site.short()) if site is not None else -1])  # fmt: skip
        return index

    def form(self, op: Op) -> int | None:
        """Return the number of the form in which an op makes the sizes of its results; None if not asked."""
        return self._steps.of(op)

    def forms(self) -> list[Any]:
        """Return each form: the sizes of each result of an op, as the pieces of a formula with their sources (an input, a part, a place)."""
        put = self._texts.put
        return [[[[m.at, [put(t) for t in m.text], m.places, [[n, _PARTS.index(part), place] for n, part, place in m.sources], put(m.by)] for m in result]
                 for result in form] for form in self._steps.forms]  # fmt: skip

    def settings(self, op: Op) -> int:
        """Return the settings of an op; equal ops share theirs."""
        entry = self._words.get(id(op.attributes))
        if entry is None:
            entry = self._words[id(op.attributes)] = self._texts.put(settings_text(op))
        return entry


def _at_batch(sizes: SymbolNumbers, batch: list[str], size: int) -> SymbolNumbers:
    out = object.__new__(SymbolNumbers)
    out.values = {**sizes.values, **dict.fromkeys(batch, size)}
    out._known = {}  # pyright: ignore[reportPrivateUsage]
    return out


def _op(op: Op, index: int, values: _Values, drawings: Drawings, texts: Texts) -> list[Any]:
    """Return the entries of an op: operator, role, block, layer and its member, line, settings, inputs and outputs (slot, values), work, its blocks, its main
    result, its form.
    """
    put = texts.put
    role = "gradient" if op.role & Role.BACKWARD else "update" if op.role & (Role.OPTIMIZE | Role.LEARNING_RATE) else ""

    def entries_of(slots: Any) -> list[Any]:
        return [[put(slot), [values.number(v) for n in names if (v := op.block.find(n)) is not None]] for slot, names in slots.items() if names]

    site = op.call_site
    layer, member = drawings.place_of(op)
    main = result_of(op)
    called = put(shown_type(op.type))
    return [called, put(role), op.block.idx, layer, member, put(site.short()) if site is not None else -1, values.settings(op), entries_of(op.inputs),
            entries_of(op.outputs), values.over_batches(multiplications(op)), op.sub_block_indices(), -1 if main is None else values.number(main),
            values.form(op)]  # fmt: skip


def _takes(program: Program, texts: Texts, numbers: dict[int, int], wrong: bool) -> dict[str, Any]:
    """Return the sizes of the inputs, in words, and the conditions with their lines."""
    put = texts.put
    if wrong:
        return {"lines": [], "smallest": [], "later": [], "guards": []}
    feeds = program.feeds
    smallest = feeds.smallest or {}
    return {
        "lines": [put(line) for line in feeds.lines()],
        "smallest": [[put(n), s] for n, s in smallest.items()],
        "later": [put(line) for line in feeds.later[:_GUARDS]],
        "guards": [put(str(g)) for g in program.guard_list()[:_GUARDS]],
        "many": len(program.guard_list()),
    }
