"""What the rewrites ask: what an instruction computes, who makes a value, who reads it, and whether it may vanish. No rewrite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from foreshape.dims import Size
from foreshape.lowering.call_memory import rule_bytes
from foreshape.lowering.instruction import Argument, Instruction, Lowered, Value
from foreshape.lowering.order import reorder
from foreshape.operator.computations import Computation, FixedNormalization, is_usual_gradient
from foreshape.operator.operator import Operator
from foreshape.spec import LOD_TENSOR, Spec

_Computation = TypeVar("_Computation", bound=Computation)


class Graph:
    """The instructions of a step with their uses, kept true as they are rewritten: each has a place, which those that stand for it inherit."""

    __slots__ = ("_changed", "_changes", "_computing", "_derived", "_fixed", "_makers", "_places", "_readers", "_undoing", "_written", "lowered", "places")

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self._derived: dict[tuple[str, int], str] = {}
        self._makers: dict[Value, Instruction] = {}
        self._readers: dict[Value, list[Instruction]] = {}
        self._fixed: set[Value] = set(lowered.fetches)
        self._written: set[str] = set()
        self._changed = {v.name for i in lowered.instructions for v in i.changes() if computes(i, FixedNormalization) is None} if lowered.frozen else set[str]()
        self._changes: set[str] | None = None
        self.places: list[list[Instruction]] = []
        for i in lowered.instructions:
            if not self.places or self.places[-1][0].position != i.position:
                self.places.append([])
            self.places[-1].append(i)
        self._places = {id(i): at for at, place in enumerate(self.places) for i in place}
        self._computing: dict[type[Computation], list[tuple[Instruction, Any]]] = {}
        self._undoing: dict[type[Computation], list[tuple[Instruction, Any]]] = {}
        asked: dict[Operator, tuple[Computation | None, Computation | None]] = {}
        for i in lowered.instructions:
            operator = i.op.operator
            if operator is not None and i.expression is None:
                said = asked.get(operator)
                if said is None:
                    said = asked[operator] = (operator.computes(), _undone(operator))
                computed, undone = said
                if computed is not None and not any(i.arguments[computed.operands :]):
                    self._computing.setdefault(type(computed), []).append((i, computed))
                if undone is not None:
                    self._undoing.setdefault(type(undone), []).append((i, undone))
            self._add(i)
            for copy, source in i.copies:
                self._readers.setdefault(source, []).append(i)
                self._fixed.add(copy)
            for place, value in i.stores:
                self._fixed |= {place, value}
                self._written.add(place.name)

    def _add(self, i: Instruction) -> None:
        for value in i.writes():
            self._makers.setdefault(value, i)
        for value in dict.fromkeys(i.reads()):
            readers = self._readers.setdefault(value, [])
            readers.append(i)
            if len(readers) > 1 and self.position(readers[-2]) > self.position(i):
                readers.sort(key=self.position)

    def _drop(self, i: Instruction) -> None:
        for value in i.writes():
            if self._makers.get(value) is i:
                del self._makers[value]
        for value in dict.fromkeys(i.reads()):
            self._readers[value].remove(i)

    def finish(self) -> None:
        """Put the instructions that there are now into the step."""
        self.lowered.instructions[:] = [i for place in self.places for i in place]

    def reorder(self) -> None:
        """Let the calls run in an order that needs less memory, where there is one."""
        self.places = reorder(self.lowered, self.places)
        self._places = {id(i): at for at, place in enumerate(self.places) for i in place}

    def computing(self, kind: type[_Computation]) -> list[tuple[Instruction, _Computation]]:
        """The instructions that compute this, of those that no rewrite has taken yet, in order, with what exactly they compute."""
        return [pair for pair in self._computing.get(kind, ()) if self._is_left(pair[0])]

    def undoing(self, kind: type[_Computation]) -> list[tuple[Instruction, _Computation]]:
        """The gradient ops of such instructions."""
        return [pair for pair in self._undoing.get(kind, ()) if self._is_left(pair[0])]

    def _is_left(self, i: Instruction) -> bool:
        return i.expression is None and id(i) in self._places

    def plain(self) -> list[Instruction]:
        """All instructions that no rewrite has taken, in order."""
        return [i for place in self.places for i in place if i.expression is None]

    def maker(self, value: Argument) -> Instruction | None:
        return self._makers.get(value) if isinstance(value, Value) else None

    def readers(self, value: Argument) -> list[Instruction]:
        return list(self._readers.get(value, ())) if isinstance(value, Value) else []

    def only_reader(self, value: Argument) -> Instruction | None:
        """The one instruction that reads a value that nothing else needs."""
        readers = self.readers(value)
        return readers[0] if len(readers) == 1 and not self.is_fixed(value) else None

    def is_fixed(self, value: Argument) -> bool:
        """Whether a value is fetched, stored or persistable, so that it must be made as it is."""
        return not isinstance(value, Value) or value.persistable or value.feed or value in self._fixed

    def unused(self, value: Argument) -> bool:
        """Whether nobody needs a value."""
        return value is None or (not self.readers(value) and not self.is_fixed(value))

    def position(self, i: Instruction) -> int:
        """The number of an instruction's place."""
        return self._places[id(i)]

    def order(self, i: Instruction) -> tuple[int, int]:
        """What instructions sort by in the order in which they run."""
        at = self._places[id(i)]
        return at, next(k for k, x in enumerate(self.places[at]) if x is i)

    def between(self, first: Instruction, last: Instruction) -> list[Instruction]:
        """The instructions of the places after the first one's and before the last one's."""
        return [i for place in self.places[self.position(first) + 1 : self.position(last)] for i in place]

    def replace(self, old: Instruction, *new: Instruction) -> None:
        """Let other instructions stand in the place of one. What it stored in the scope, and copied for it, is stored and copied by those."""
        for i in new:
            if i is not old and not i.stores:
                i.stores = [(place, value) for place, value in old.stores if any(value is w for w in i.writes())]
        if new and new[0] is not old and not new[0].copies:
            new[0].copies = list(old.copies)
        self._drop(old)
        at = self._places.pop(id(old))
        where = self.places[at].index(old)
        self.places[at][where : where + 1] = new
        for i in new:
            i.position = old.position
            self._places[id(i)] = at
            self._add(i)

    def remove(self, gone: Iterable[Instruction]) -> None:
        """Take instructions out."""
        for i in gone:
            self.replace(i)

    def without_result(self, i: Instruction, result: int) -> None:
        """Let an instruction no longer make a result."""
        value = i.results[result]
        if isinstance(value, Value) and self._makers.get(value) is i:
            del self._makers[value]
        i.results[result] = None

    def replace_value(self, old: Value, new: Value) -> None:
        """Read ``new`` wherever ``old`` was read."""
        for i in self.readers(old):
            self.replace_argument(i, old, new)

    def replace_argument(self, i: Instruction, old: Value, new: Value) -> None:
        """Let one instruction read ``new`` instead of ``old``, and what it writes in the place of that in the place of this."""

        def instead(given: Argument) -> Argument:
            return [new if v is old else v for v in given] if isinstance(given, list) else new if given is old else given

        self._drop(i)
        i.arguments = [instead(a) for a in i.arguments]
        i.results = [instead(r) if at in i.in_place else r for at, r in enumerate(i.results)]
        self._add(i)

    def fresh(self) -> int:
        """A number that no value has."""
        return 1 + max((v.index for place in self.places for i in place for v in (*i.reads(), *i.writes())), default=0)

    def dims(self, value: Argument) -> tuple[Size, ...] | None:
        """The dims of a dense tensor, in what the symbols are known to be by all that is asked of them."""
        dims, guards = dims_of(value), self.lowered.block.program.guards
        return None if dims is None else tuple(map(guards.settled, dims))

    def derive(self, what: str, value: Value, make: Callable[[Any], Any]) -> str:
        """A name for what is made of a persistable when the step is bound, such as its transposed view."""
        key = (what, id(value))
        if key not in self._derived:
            self._derived[key] = f"{value}_{what}"
            self.lowered.derived.append((self._derived[key], (value,), make))
        return self._derived[key]

    def pack(self, what: str, values: Sequence[Value], size: Size, make: Callable[..., Any]) -> str:
        """A name for what is made of frozen persistables when the step is bound, and takes so many bytes beside them."""
        name = "_".join([*map(str, values[:1]), f"{what}{len(self.lowered.derived)}"])
        self.lowered.derived.append((name, tuple(values), make))
        self.lowered.packed = self.lowered.packed + size
        return name

    def is_frozen(self, value: Argument) -> bool:
        """Whether a persistable keeps its value for the life of the step."""
        return self.lowered.frozen and isinstance(value, Value) and value.persistable and value.name not in self._changed

    def is_changed(self, value: Argument) -> bool:
        """Whether anything changes a value in its place, or stores another there, so that it may be another where it is read later than it was."""
        if self._changes is None:
            self._changes = {v.name for i in self.lowered.instructions for v in i.changes()}
        return isinstance(value, Value) and value.name in self._changes

    def is_constant(self, value: Argument) -> bool:
        """Whether a persistable is only ever changed in place or not at all in this step."""
        return isinstance(value, Value) and value.persistable and value.name not in self._written


def fused(
    like: Instruction, expression: str, arguments: list[Argument], results: list[Argument], tag: str = "", *, shares: Mapping[int, int] | None = None,
    may_share: tuple[int, int] | None = None, in_place: str = "", workspace: Callable[[], Size] | None = None, in_rows: tuple[int, ...] = (),
    in_order: Mapping[int, tuple[int, ...]] | None = None, gaps: Mapping[int, Size] | None = None, lies: Mapping[int, tuple[int, ...]] | None = None,
    **constants: Any,
) -> Instruction:  # fmt: skip
    """An instruction that stands for one or more others; errors in it are told of ``like``'s op.

    Args:
        shares: results that lie in the memory of an argument.
        may_share: (result, argument) where ``in_place`` is an expression that writes the result into the argument's memory.
        workspace: a rule that gives the bytes that it needs while it runs.
        in_rows: the arguments that it copies where they do not lie in a row.
        in_order, lies: of arguments and of results, the order in which their axes lie in memory; see `Instruction`.
        gaps: the bytes of the copies of arguments among these that have gaps between their rows.
    """
    made = Instruction(like.op, like.kernel, arguments, results, expression=expression, constants=dict(constants), tag=tag)
    made.shares, made.may_share, made.in_place_expression, made.in_rows = shares or {}, may_share, in_place, in_rows
    made.workspace = 0 if workspace is None else rule_bytes(made, workspace)
    made.in_order, made.gaps, made.lies = in_order or {}, gaps or {}, lies or {}
    return made


def spec_of(value: Argument) -> Spec | None:
    """What is known of a value that is a dense tensor."""
    spec = value.spec if isinstance(value, Value) else None
    if spec is not None and spec.kind is LOD_TENSOR and spec.dims is not None:
        return spec
    return None


def dims_of(value: Argument) -> tuple[Size, ...] | None:
    spec = spec_of(value)
    return spec.dims if spec is not None else None


def computes(i: Instruction | None, kind: type[_Computation]) -> _Computation | None:
    """What an instruction computes, where it is of this kind and no rewrite has taken it; None otherwise."""
    if i is None or i.expression is not None or i.op.operator is None:
        return None
    found = i.op.operator.computes()
    return found if isinstance(found, kind) and not any(i.arguments[found.operands :]) else None


def undoes(i: Instruction | None, kind: type[_Computation]) -> _Computation | None:
    """What an instruction is the usual gradient op of, where it is of this kind and no rewrite has taken it; None otherwise."""
    if i is None or i.expression is not None or i.op.operator is None:
        return None
    found = _undone(i.op.operator)
    return found if isinstance(found, kind) else None


def _undone(operator: Operator) -> Computation | None:
    found = operator.undoes()
    return found if found is not None and is_usual_gradient(type(operator), type(found)) else None
