"""A loaded block: its variables and ops as records, turned into objects at the first look.

Loads for a run, a shape, or a check look at few of a network's thousands of ops, but all have to be inferred. So they are inferred as records, without
objects; a record differs from others of its pattern
only in names.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from foreshape.core.spec import Spec
from foreshape.errors import ForeshapeError
from foreshape.language.infer.rules import Answer, Key, answer, replace_symbols
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.require import RuleError
from foreshape.language.program.block import Block
from foreshape.language.program.call_site import Site, call_site
from foreshape.language.program.declared import DeclaredForm
from foreshape.language.program.guards import Guards
from foreshape.language.program.op import EMPTY, Op
from foreshape.language.program.structure import makers
from foreshape.language.program.variable import Variable

Names = tuple[str, ...]
"""The variables of an op: its inputs, slot by slot, and then its outputs."""
Slot = tuple[str, int, int]
"""A slot, and the range of its names among the op's: begin and end."""

_filling = threading.RLock()


class NeedsObjects(Exception):
    """The signal for a case beyond records. It never leaves this room: the objects are made, and inferred op by op."""


class InferencePlan(NamedTuple):
    """The plan for inferring the ops of a pattern.

    Attributes:
        operator: with the attributes of the pattern.
        answers: the kept results of its rules.
        reads: for each operand the place of its one name; -1 if it has none.
        first: the number of operands if their names come first, one for each; otherwise -1.
        lists: for each operand with a list the range of its names, by its place among the operands.
        writes: the named results: the place of the result, the range of its names, and True if it may be without a spec.
    """

    operator: Operator
    answers: dict[Key, Answer]
    reads: tuple[int, ...]
    first: int
    lists: tuple[tuple[int, int, int], ...]
    writes: tuple[tuple[int, int, int, bool], ...]


class Pattern:
    """An op without the names of its variables; shared by ops that differ only in these."""

    __slots__ = ("attributes", "inputs", "is_target", "outputs", "plan", "role", "role_variables", "site", "unknown_fields")

    def __init__(
        self, attributes: Attributes, inputs: tuple[Slot, ...], outputs: tuple[Slot, ...], role: int, role_variables: tuple[str, ...], is_target: bool,
        site: Site, unknown_fields: bytes,
    ) -> None:  # fmt: skip
        self.attributes, self.inputs, self.outputs = attributes, inputs, outputs
        self.role, self.role_variables, self.is_target = role, role_variables, is_target
        self.site, self.unknown_fields = site, unknown_fields
        self.plan: InferencePlan | None = None
        """The plan for its ops, after the first request."""

    def op(self, block: Block, names: Names) -> Op:
        """Return the op of this pattern with these names."""
        inputs = {slot: names[first:last] for slot, first, last in self.inputs}
        outputs = {slot: names[first:last] for slot, first, last in self.outputs}
        out = Op(block, self.attributes, inputs, outputs, self.role, self.role_variables, self.site)
        out.is_target = self.is_target
        out.unknown_fields = self.unknown_fields
        return out

    def planned(self) -> InferencePlan:
        """Return the plan for its ops. Raises `NeedsObjects` if they are not inferred as records."""
        operator = self.attributes.operator
        if operator is None or operator.sub_blocks or operator.accumulates:
            raise NeedsObjects
        schema = operator.schema
        spans = {slot: (first, last) for slot, first, last in self.inputs}
        if any(first < last and slot not in schema.operand_names for slot, (first, last) in spans.items()):
            raise NeedsObjects
        reads: list[int] = []
        lists: list[tuple[int, int, int]] = []
        for index, operand in enumerate(schema.operands):
            first, last = spans.get(operand.name, (0, 0))
            if operand.many:
                lists.append((index, first, last))
            elif last - first > 1:
                raise NeedsObjects
            reads.append(first if last > first and not operand.many else -1)
        places = {result.name: (index, result) for index, result in enumerate(schema.results)}
        writes: list[tuple[int, int, int, bool]] = []
        for slot, first, last in self.outputs:
            if slot in places and last > first:
                index, result = places[slot]
                writes.append((index, first, last, result.optional))
        first = len(reads) if reads == [*range(len(reads))] else -1
        self.plan = InferencePlan(operator, operator.cache, tuple(reads), first, tuple(lists), tuple(writes))
        return self.plan


class _Specs(dict[str, Spec]):
    """Name -> the known spec of the variable: the file's, until an op makes it."""

    __slots__ = ("_forms",)

    def __init__(self, forms: dict[str, DeclaredForm]) -> None:
        super().__init__()
        self._forms = forms

    def __missing__(self, name: str) -> Spec:
        spec = self[name] = self._forms[name].declared.spec_for(name)
        return spec


class Records:
    """The variables and ops of a block, by name and in order."""

    __slots__ = ("_block", "_made", "_specs", "forms", "names", "patterns")

    def __init__(self, block: Block) -> None:
        self._block = block
        self._made: dict[str, Variable] = {}
        self._specs: dict[str, Spec] = {}
        """The inferred specs."""
        self.forms: dict[str, DeclaredForm] = {}
        """Name of a variable -> all else of it."""
        self.patterns: list[Pattern] = []
        """For each op its shared pattern,"""
        self.names: list[Names] = []
        """and its own names."""

    # --- objects

    def fill(self) -> None:
        """Make the objects, unless done before."""
        block = self._block
        with _filling:
            if block.records is not self:
                return
            variables = {name: self._variable(name) for name in self.forms}
            ops = [pattern.op(block, names) for pattern, names in zip(self.patterns, self.names, strict=True)]
            made_by = makers(ops)
            for name, variable in variables.items():
                variable.op = made_by.get(name)
            block.vars, block.ops = variables, ops
            block.records = None

    def variable(self, name: str) -> Variable:
        """Return the variable of this name, made once; its op is linked on demand. Raises `KeyError` for an unknown name."""
        with _filling:
            return self._variable(name)

    def _variable(self, name: str) -> Variable:
        variable = self._made.get(name)
        if variable is None:
            variable = self._made[name] = Variable.from_form(name, self._block, self.forms[name])
            variable.inferred_spec = self._specs.get(name)
        return variable

    # --- inference

    def infer(self, guards: Guards) -> bool:
        """Infer all ops, and add their open conditions to ``guards``. False if objects are needed: the added conditions are then void."""
        if EMPTY in self.forms:  # stands for nothing, and is described here
            return False
        specs = _Specs(self.forms)
        try:
            self._infer(specs, guards)
        except (NeedsObjects, KeyError, RuleError, ForeshapeError):
            return False
        with _filling:
            if self._block.records is not self:
                return False
            self._specs = specs
            for name, variable in self._made.items():
                variable.inferred_spec = specs.get(name)
        return True

    def _infer(self, specs: _Specs, guards: Guards) -> None:
        forms, spec_of = self.forms, specs.__getitem__
        values = guards.known or None
        for pattern, names in zip(self.patterns, self.names, strict=True):
            operator, answers, reads, first, lists, writes = pattern.plan or pattern.planned()
            key: Key
            if first >= 0:
                key = tuple(map(spec_of, names[:first]))
            else:
                key = tuple([specs[names[index]] if index >= 0 else None for index in reads])
                if lists:
                    key = _with_lists(key, lists, specs, names)
            if values is not None:
                key = replace_symbols(key, values)
            inferred = answers.get(key) or answer(operator, key)
            if inferred.conditions or inferred.unknown:
                inferred = _settled(pattern, key, inferred, guards)
                values = guards.known or None
            for place, index, end, optional in writes:
                outcome: Any = inferred.results[place]
                if outcome is None:
                    if not optional and any(n != EMPTY for n in names[index:end]):
                        raise NeedsObjects
                    continue
                several: Any = outcome if outcome.__class__ is tuple else (outcome,)
                if len(several) != end - index:
                    raise NeedsObjects
                for spec in several:
                    name = names[index]
                    index += 1
                    form = forms[name]
                    if form.persistable and form.declared.dims is not None:
                        if specs[name] is not spec:
                            raise NeedsObjects
                    elif name in specs:  # written twice, or read before
                        raise NeedsObjects
                    else:
                        specs[name] = spec


def _settled(pattern: Pattern, key: Key, inferred: Answer, guards: Guards) -> Answer:
    """Return the answer when its conditions are known."""
    if inferred.unknown:
        raise NeedsObjects
    values = guards.known
    for condition in inferred.conditions:
        guards.add(condition, pattern.attributes.type, call_site(pattern.site))
    if guards.known is values:
        return inferred
    assert pattern.attributes.operator is not None
    inferred = answer(pattern.attributes.operator, replace_symbols(key, guards.known))
    if inferred.unknown:
        raise NeedsObjects
    return inferred


def _with_lists(key: Key, lists: tuple[tuple[int, int, int], ...], specs: _Specs, names: Names) -> Key:
    out = list(key)
    for index, first, last in lists:
        out[index] = tuple([specs[n] for n in names[first:last]])
    return tuple(out)
