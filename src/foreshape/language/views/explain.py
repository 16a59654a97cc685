"""The origin of a variable's dims: op by op, down to inputs, parameters and attributes."""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from foreshape.core.dims import Dim, Size, broadcast_symbols, equal, explain_symbols, substitute, symbol, symbols_of
from foreshape.core.spec import Lod, Spec
from foreshape.errors import ForeshapeError, SchemaError, border
from foreshape.language.infer.rules import Answer, Key, ask, replace_symbols
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import shown_type
from foreshape.language.operator.require import RuleError
from foreshape.language.program.op import Op
from foreshape.language.program.variable import Variable
from foreshape.language.text.literal import escape

MAX_LINES = 100
"""The number of steps above which only the origins of sizes are told."""
MAX_STEPS = 20_000
"""The most steps followed for one dim."""
_ATTRIBUTE_TEXT = 60
_MAX_SINGLE = 64
"""The most sizes of an op's inputs asked about one by one."""


class Place(NamedTuple):
    """One size of a variable: ``part`` is "dim" (of the packed dims), "count" (of the lod levels) or "value" (of a small integer tensor)."""

    variable: Variable
    part: str
    at: int

    def text(self) -> str:
        mark = {"dim": "", "count": ".count", "value": ".value"}[self.part]
        return f"{self.variable.name}{mark}[{self.at}]"


class SizeDerivation(NamedTuple):
    """The op and the formula of a size, over sizes of its inputs, or (no places) out of its attributes alone."""

    formula: str
    places: list[Place]
    certain: bool


@border("it cannot be explained", SchemaError)
def explain(variable: Variable) -> str:
    """Explain the origin of each dim of ``variable``, as text with one step per line.

    Each step reads ``y[0] = x[0]`` or ``y[2] = (x[2] - 1) // 2 + 1``: a dim of a result, and its formula over dims of the op's
    inputs by the shape rule; then the op and the user's line. The last steps are inputs, parameters and attributes.
    """
    spec = variable.spec
    lines = [f"{variable.name}: {spec.text()}" + _note(variable), *_precision(variable)]
    if spec.dims is None:
        lines.append("    nothing is known of its dims")
    symbol_names: set[str] = set()
    alike = Alike()
    for axis, dim in enumerate(spec.dims or ()):
        lines += _explained(Place(variable, "dim", axis), dim, f"dim {axis} is {dim}", symbol_names, alike)
    for level, count in enumerate(spec.lod.counts if spec.lod is not None else ()):
        words = f"level {level} of its rows, grouped as those of {spec.lod.source}, has {count} sequences" if spec.lod is not None else ""
        lines += _explained(Place(variable, "count", level), count, words, symbol_names, alike)
    lines += _unified(variable, symbol_names)
    for size in (*(spec.dims or ()), *(spec.lod.counts if spec.lod is not None else ())):
        lines += [f"    {x}" for x in explain_symbols(size)]
    return escape("\n".join(lines))


def _note(variable: Variable) -> str:
    if variable.known:
        return ""
    op = variable.op
    return "    (not certain: it depends on an operator that is not known" + (f", by way of {shown_type(op.type)})" if op is not None else ")")


def _precision(variable: Variable) -> list[str]:
    """Explain the precision of a recurrence, if different from the products around it."""
    op, spec = variable.op, variable.spec
    operator = op.operator if op is not None else None
    if op is None or operator is None or not type(operator).multiplies_steps or spec.dtype is None or spec.known_dtype.itemsize < 4:
        return []
    lowered = next((v.dtype for v in variable.block.vars.values() if v.dtype is not None and v.dtype.is_floating and v.dtype.itemsize == 2), None)
    if lowered is None:
        return []
    return [f"    {op.type} multiplies a few rows in each step: it computes in {spec.known_dtype.name}, and only products outside of it in {lowered.name}"]


def _explained(place: Place, size: Size, heading: str, symbol_names: set[str], alike: Alike) -> list[str]:
    rows = list(_steps(place, size, symbol_names, alike))
    widths = [max((len(r[i]) for r in rows), default=0) for i in range(2)]
    return [heading, *("    " + f"{a.ljust(widths[0])}    {b.ljust(widths[1])}    {c}".rstrip() for a, b, c in rows)]


def _steps(start: Place, size: Size, symbol_names: set[str], alike: Alike) -> Iterator[tuple[str, str, str]]:
    """Yield the steps from a size to its origin: (size, formula, the user's line)."""
    queue = deque([start])
    visited = {(start.variable.name, start.part, start.at)}
    count = left_out = 0
    while queue:
        place = queue.popleft()
        count += 1
        if count > MAX_STEPS:
            left_out += len(queue) + 1
            break
        variable = place.variable
        own_size = _size_at(variable.spec, place)
        if own_size is not None:
            symbol_names |= symbols_of(own_size)
        sources = alike.sources(place) if count > MAX_LINES else None
        if sources:  # and this is enough for the untold part
            left_out += 1
            _follow(sources, queue, visited)
            continue
        step = step_of(place)
        alike.note(place, step)
        op = variable.op
        begins = step is None or op is None or not step.places
        if count > MAX_LINES and not begins:
            left_out += 1
        else:
            site = variable.call_site
            line = site.short() if site is not None else ""
            if step is None or op is None:
                yield f"{place.text()} = {own_size}", variable.role_words, line
            else:
                yield f"{place.text()} = {step.formula}", by_words(op, step), line
        if step is not None:
            _follow(step.places, queue, visited)
    if left_out:
        yield f"(and {left_out:,} steps between that are not told)", "", ""


def _follow(sources: Iterable[Place], queue: deque[Place], visited: set[tuple[str, str, int]]) -> None:
    for source in sources:
        key = (source.variable.name, source.part, source.at)
        if key not in visited:
            visited.add(key)
            queue.append(source)


class Alike:
    """The sources of ops' sizes by their inputs: the layers of a deep network are alike, and are asked about once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[tuple[str, int, str, int]]] = {}

    def note(self, place: Place, step: SizeDerivation | None) -> None:
        """Remember the sources of a step."""
        key = self._key(place)
        op = place.variable.op
        if key is None or op is None or step is None or key in self._known:
            return
        slots: dict[str, tuple[str, int]] = {}
        for slot, names in op.inputs.items():
            for index, name in enumerate(names):
                slots.setdefault(name, (slot, index))
        self._known[key] = [(*slots[p.variable.name], p.part, p.at) for p in step.places if p.variable.name in slots]

    def sources(self, place: Place) -> list[Place] | None:
        """Return the sources of a size; None if no like op was asked about, or it has none."""
        entries = self._known.get(key) if (key := self._key(place)) is not None else None
        op = place.variable.op
        if not entries or op is None:
            return None
        return [Place(variable, part, axis) for slot, which, part, axis in entries if (variable := op.block.find(op.inputs[slot][which])) is not None]

    @staticmethod
    def _key(place: Place) -> Hashable:
        """Return the key of the answer: the op's attributes, its inputs with their identities, and the size asked for."""
        variable, op = place.variable, place.variable.op
        if op is None or variable.persistable or not variable.known or op.attributes.sub_blocks:
            return None
        slot = next(((s, names.index(variable.name)) for s, names in op.outputs.items() if variable.name in names), None)
        first: dict[str, int] = {}
        operands = tuple(
            (s, tuple((first.setdefault(n, len(first)), operand.spec if (operand := op.block.find(n)) is not None else None) for n in names))
            for s, names in op.inputs.items()
        )
        return op.attributes, slot, place.part, place.at, variable.spec, operands


def by_words(op: Op, step: SizeDerivation) -> str:
    if step.places:
        return shown_type(op.type) if step.certain else f"{shown_type(op.type)}, which has an input of this size"
    operator = op.operator
    words: list[str] = []
    for name in operator.schema.attributes if operator is not None else ():
        value = getattr(operator, name)
        if isinstance(value, (int, tuple)) and not isinstance(value, bool):
            text = repr(list(value) if isinstance(value, tuple) else value)  # pyright: ignore[reportUnknownArgumentType]
            words.append(f"{name}={text if len(text) <= _ATTRIBUTE_TEXT else text[:_ATTRIBUTE_TEXT] + '...'}")
    return f"{shown_type(op.type)}, by its rule" + (f" and {', '.join(words[:6])}" if words else "")


def _size_at(spec: Spec, place: Place) -> Size | None:
    sizes = spec.dims if place.part == "dim" else spec.value if place.part == "value" else spec.lod.counts if spec.lod is not None else None
    return sizes[place.at] if sizes is not None and place.at < len(sizes) else None


# --- formulas of rules


def step_of(place: Place, probes: Probes | None = None) -> SizeDerivation | None:
    """Return the formula by which an op makes one of a variable's sizes; None without a rule: inputs, parameters, unknown operators.

    ``probes``: of the op, for several of its sizes.
    """
    variable, op = place.variable, place.variable.op
    operator = op.operator if op is not None else None
    if op is None or operator is None or operator.described_results or not variable.known:
        return None
    slot = next(((s, names.index(variable.name)) for s, names in op.outputs.items() if variable.name in names), None)
    own_size = _size_at(variable.spec, place)
    if slot is None or own_size is None or variable.persistable:
        return None
    probes = probes if probes is not None else Probes(op, operator)
    index = next((index for index, r in enumerate(operator.schema.results) if r.name == slot[0]), None)
    if index is None:  # a result in a slot unknown to its operator
        return None

    def found(probed: frozenset[str]) -> Size | None:
        answer = probes.ask(probed)
        result = answer.results[index] if answer is not None else None
        spec = result[slot[1]] if isinstance(result, tuple) else result
        return _size_at(spec, place) if spec is not None else None

    everything = found(frozenset(probes.telling))
    everything = None if everything is None else probes.without_repeats(everything)
    if everything is not None and probes.is_right(everything, own_size):
        used = symbols_of(everything) & probes.places.keys()
        return SizeDerivation(probes.text(everything, used), [probes.places[n] for n in sorted(used, key=list(probes.places).index)], True)
    for name in islice(probes.places, _MAX_SINGLE):
        single = found(frozenset({name}))
        if single is not None and name in symbols_of(single) and probes.is_right(single, own_size):
            return SizeDerivation(probes.text(single, {name}), [probes.places[name]], True)
    twin = next((p for n, p in probes.places.items() if probes.sizes[n] is own_size and isinstance(own_size, Dim)), None)
    if twin is not None:
        return SizeDerivation(twin.text(), [twin], False)
    return SizeDerivation(str(own_size), [], True)


def _symbol_name(place: Place) -> str:
    text = place.text()
    return text if len(text) <= 300 else f"{text[:250]}...{zlib.crc32(text.encode('utf-8', 'replace'))}"


class Probes:
    """A symbol for each size of an op's inputs, to ask the op's rule for formulas."""

    def __init__(self, op: Op, operator: Operator) -> None:
        self.op, self.operator = op, operator
        self.places: dict[str, Place] = {}
        self.sizes: dict[str, Size] = {}
        self.telling: set[str] = set()
        """The symbols to be asked about together: a 1 broadcasts, and the rule treats a symbol in its place differently."""
        known_sizes = op.block.program.guards.known
        self.inputs: list[tuple[bool, list[Variable]]] = []
        self.specs: dict[str, Spec] = {}
        self._answers: dict[frozenset[str], Answer | None] = {}
        for operand in operator.schema.operands:
            variables = [v for n in op.inputs.get(operand.name, ()) if (v := op.block.find(n)) is not None]
            self.inputs.append((operand.many, variables))
            for variable in variables:
                if variable.name in self.specs:
                    continue
                spec = replace_symbols((variable.spec,), known_sizes)[0] if known_sizes else variable.spec
                assert isinstance(spec, Spec)
                self.specs[variable.name] = spec
                for part, sizes in (("dim", spec.dims), ("count", spec.lod.counts if spec.lod is not None else None), ("value", spec.value)):
                    for axis, size in enumerate(sizes or ()):
                        place = Place(variable, part, axis)
                        name = _symbol_name(place)
                        self.places[name], self.sizes[name] = place, size
                        if part == "value" or not isinstance(size, int) or size > 1:
                            self.telling.add(name)

    def key(self, probed: frozenset[str]) -> Key:
        """Return the inputs' specs, with the named sizes replaced by symbols of their own."""
        return tuple(
            tuple(self._probed(v, probed) for v in variables) if many else self._probed(variables[0], probed) if variables else None
            for many, variables in self.inputs
        )

    def _probed(self, variable: Variable, probed: frozenset[str]) -> Spec:
        spec = self.specs[variable.name]

        def each(part: str, sizes: tuple[Size, ...] | None) -> tuple[Size, ...] | None:
            if sizes is None:
                return None
            names = [_symbol_name(Place(variable, part, axis)) for axis in range(len(sizes))]
            return tuple(symbol(n) if n in probed else s for n, s in zip(names, sizes, strict=True))

        lod = spec.lod
        if lod is not None:
            lod = Lod(lod.source, each("count", lod.counts) or ())
        return Spec(spec.kind, spec.dtype, each("dim", spec.dims), lod, each("value", spec.value))

    def ask(self, probed: frozenset[str]) -> Answer | None:
        """Return the rule's answer for inputs with symbols as their named sizes; None if it needs numbers there."""
        if probed not in self._answers:
            try:
                self._answers[probed] = ask(self.operator, self.key(probed))
            except (RuleError, ForeshapeError):
                self._answers[probed] = None
        return self._answers[probed]

    def without_repeats(self, formula: Size) -> Size:
        """Return a formula with repeated broadcasts left out: only the first place of a size stays."""
        first: dict[Size, str] = {}
        replacements: dict[str, Size] = {}
        met = broadcast_symbols(formula)
        for name in (n for n in self.places if n in met):
            earliest = first.setdefault(self.sizes[name], name)
            if earliest != name:
                replacements[name] = symbol(earliest)
        return substitute(formula, replacements) if replacements else formula

    def is_right(self, formula: Size, own_size: Size) -> bool:
        """Tell whether a formula gives the size with the symbols' own values."""
        try:
            value = substitute(formula, self.sizes)
        except ForeshapeError:
            return False
        return value is own_size or equal(value, own_size) is True

    def text(self, formula: Size, used: set[str]) -> str:
        """Return the formula, its symbols written as places."""
        out = str(formula)
        for name in sorted(used, key=len, reverse=True):
            out = out.replace(json.dumps(name), name)
        return out


def _unified(variable: Variable, symbol_names: set[str]) -> list[str]:
    """Describe each symbol on the path made equal to another size by an open condition, with the condition."""
    guards = variable.block.program.guards
    out: list[str] = []
    known_sizes: Mapping[str, Size] = guards.known
    for name in sorted(symbol_names & known_sizes.keys()):
        because = next((g for g in guards if g.condition.relation == "==" and name in symbols_of(g.condition.left) | symbols_of(g.condition.right)), None)
        out.append(f"{symbol(name)} is taken to be {known_sizes[name]}" + (f", because of {because}" if because is not None else ""))
    return out
