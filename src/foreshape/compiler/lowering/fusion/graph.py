"""The queries of rewrites: an instruction's computation, the maker and the readers of a value, and the soundness of a replacement. No rewrite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from foreshape.compiler.lowering.call_memory import rule_bytes
from foreshape.compiler.lowering.fusion.attempts import Attempts
from foreshape.compiler.lowering.fusion.rewrite_order import Rewrite
from foreshape.compiler.lowering.fusion.soundness import NEEDED, unsoundness
from foreshape.compiler.lowering.kernel_calls import Argument, FusedCall, KernelCall, OpCall, Step, Value, values_of
from foreshape.compiler.lowering.memory_uses import MemoryUses
from foreshape.compiler.lowering.order import reorder
from foreshape.core.dims import Size
from foreshape.core.spec import LOD_TENSOR, Spec
from foreshape.language.operator.byte_computations import UPDATE_NOTHING
from foreshape.language.operator.computations import Computation, Constant, FrozenBatchNorm
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import layer_name
from foreshape.language.operator.traits import is_usual_gradient
from foreshape.language.program import Op
from foreshape.machine.kernels.fused import FusedKernel

_Computation = TypeVar("_Computation", bound=Computation)
_UNCHANGING = (FrozenBatchNorm, *UPDATE_NOTHING)
"""The computations of ops that update persistables to themselves."""


class _Derived(NamedTuple):
    """A constant made of persistables when the step is bound, for instructions that are not in the step yet."""

    name: str
    values: tuple[Value, ...]
    make: Callable[..., Any]
    size: Size = 0
    key: tuple[str, int] | None = None


class Graph:
    """The instructions of a step with their uses, kept true during rewrites. Each has a place, inherited by its replacements."""

    __slots__ = (
        "_changed", "_computing", "_derived", "_fixed", "_followers", "_fresh", "_makers", "_memory", "_packed", "_places", "_readers",
        "_undoing", "_unsorted", "_updated", "_waiting", "_written", "attempts", "lowered", "places",
    )  # fmt: skip

    def __init__(self, lowered: Step, attempts: Attempts | None = None) -> None:
        self.lowered, self.attempts = lowered, attempts
        self._derived: dict[tuple[str, int], str] = {}
        self._waiting: list[_Derived] = []
        self._makers: dict[Value, KernelCall] = {}
        self._readers: dict[Value, dict[KernelCall, None]] = {}
        self._unsorted: set[Value] = set()
        self._fixed: set[Value] = set(lowered.returns())
        self._written: set[str] = set()
        self._updated = {v.name for i in lowered.calls for v in _changed_by(i)} if lowered.frozen else set[str]()
        self._memory: MemoryUses | None = None
        self._fresh = self._packed = 0
        self._followers: dict[KernelCall, OpCall] = {}
        self.places: list[list[KernelCall]] = []
        for i in lowered.calls:
            if not self.places or self.places[-1][0].position != i.position:
                self.places.append([])
            self.places[-1].append(i)
        self._places = {id(i): index for index, place in enumerate(self.places) for i in place}
        self._computing: dict[type[Computation], list[tuple[OpCall, Any]]] = {}
        self._undoing: dict[type[Computation], list[tuple[OpCall, Any]]] = {}
        answers: dict[Operator, tuple[Computation | None, Computation | None]] = {}
        for i in lowered.calls:
            operator = i.op.operator
            if operator is not None and isinstance(i, OpCall):
                answer = answers.get(operator)
                if answer is None:
                    answer = answers[operator] = (operator.computation, _undone(operator))
                computed, undone = answer
                if computed is not None and not any(i.arguments[computed.operands :]):
                    self._computing.setdefault(type(computed), []).append((i, computed))
                if undone is not None:
                    self._undoing.setdefault(type(undone), []).append((i, undone))
                if isinstance(computed, _UNCHANGING) and not i.copies:  # its operand stays as it is
                    i.results, i.in_place = [None if index in i.in_place else r for index, r in enumerate(i.results)], frozenset()
            self._add(i)
            self._fixed.update(copy for copy, _ in i.copies)
            for place, value in i.stores:
                self._fixed |= {place, value}
                self._written.add(place.name)
        self._changed = {v.name for i in lowered.calls for v in i.changes()}
        """The names of values changed in place or stored."""

    def _add(self, i: KernelCall) -> None:
        for value in i.writes():
            self._makers.setdefault(value, i)
        index = self._places[id(i)]
        for value in i.uses():
            readers = self._readers.setdefault(value, {})
            if readers and self._places[id(next(reversed(readers)))] > index:
                self._unsorted.add(value)
            readers[i] = None
        if self._memory is not None:
            self._memory.add(i)

    def _drop(self, i: KernelCall) -> None:
        for value in i.writes():
            if self._makers.get(value) is i:
                del self._makers[value]
        for value in i.uses():
            self._readers[value].pop(i, None)
        if self._memory is not None:
            self._memory.drop(i)

    def finish(self) -> None:
        """Put the present instructions into the step."""
        self.lowered.calls[:] = [i for place in self.places for i in place]

    def reorder(self) -> None:
        """Reorder the calls to an order of less memory, if there is one."""
        self.places = reorder(self.lowered, self.places)
        self._places = {id(i): index for index, place in enumerate(self.places) for i in place}
        self._unsorted = set(self._readers)

    def computing(self, kind: type[_Computation]) -> list[tuple[OpCall, _Computation]]:
        """Return the original instructions of this computation, in order, with its settings."""
        return self._left(self._computing.get(kind, ()))

    def undoing(self, kind: type[_Computation]) -> list[tuple[OpCall, _Computation]]:
        """Return the gradient ops of such instructions."""
        return self._left(self._undoing.get(kind, ()))

    def may_match(self, rewrite: Rewrite) -> bool:
        """Return False if no original instruction has a computation where a rewrite begins."""
        if not rewrite.begins and not rewrite.undoes:
            return True
        return any(kind.__name__ in rewrite.begins for kind in self._computing) or any(kind.__name__ in rewrite.undoes for kind in self._undoing)

    def _left(self, pairs: Iterable[tuple[OpCall, Any]]) -> list[tuple[OpCall, Any]]:
        remaining: list[tuple[OpCall, Any]] = []
        for i, computation in pairs:
            while i in self._followers:
                i = self._followers[i]
            if self.is_left(i):
                remaining.append((i, computation))
        if self.attempts is not None:
            for i, _ in remaining:
                self.attempts.look(i.op)
        return remaining

    def plain(self) -> list[OpCall]:
        """Return all original instructions, in order."""
        return [i for place in self.places for i in place if isinstance(i, OpCall)]

    @property
    def changes_memory(self) -> bool:
        """Return True if the step changes anything in place."""
        return self._memory is not None or bool(self._changed)

    @property
    def memory(self) -> MemoryUses:
        """Return the readers and the changers of memory changed in place."""
        if self._memory is None:
            self._memory = MemoryUses([i for place in self.places for i in place])
        return self._memory

    def is_left(self, i: KernelCall) -> bool:
        """Return True if no rewrite has taken an instruction out."""
        return id(i) in self._places

    def maker(self, value: Argument) -> KernelCall | None:
        return self._makers.get(value) if isinstance(value, Value) else None

    def readers(self, value: Argument) -> list[KernelCall]:
        """Return the readers of a value, in the order of their places."""
        if not isinstance(value, Value):
            return []
        calls = self._readers.get(value, {})
        if value in self._unsorted:
            self._unsorted.discard(value)
            calls = self._readers[value] = dict.fromkeys(sorted(calls, key=self.position))
        return list(calls)

    def only_reader(self, value: Argument) -> KernelCall | None:
        """Return the only reader of a value without other uses; it may read it more than once."""
        readers = self._readers.get(value, ()) if isinstance(value, Value) else ()
        return next(iter(readers)) if len(readers) == 1 and not self.is_fixed(value) else None

    def is_fixed(self, value: Argument) -> bool:
        """Return True if a value is fetched, stored or persistable, so it must be made as it is."""
        return not isinstance(value, Value) or value.persistable or value.feed or value in self._fixed

    def unused(self, value: Argument) -> bool:
        """Return True if nobody needs a value."""
        return value is None or (not (isinstance(value, Value) and self._readers.get(value)) and not self.is_fixed(value))

    def makes_one(self, i: KernelCall) -> bool:
        """Return True if only the first result of an instruction is needed; in-place updates do not count."""
        return all(self.unused(r) for index, r in enumerate(i.results) if index and index not in i.in_place)

    def position(self, i: KernelCall) -> int:
        """Return the number of an instruction's place."""
        return self._places[id(i)]

    def order(self, i: KernelCall) -> tuple[int, ...]:
        """Return the sort key of instructions in the order of their run."""
        index = self._places[id(i)]
        return index, next(k for k, x in enumerate(self.places[index]) if x is i)

    def replace(self, replacements: Mapping[KernelCall, Sequence[KernelCall]], instead: Mapping[Value, Value] | None = None) -> bool:
        """Replace some instructions by others; return False, with nothing changed, if the step would not compute the same.

        All changes of a rewrite go through here. `unsoundness` refuses needed values without a maker, and a broken order. Values stored in the scope, or copied
        first, are stored and copied by the new instructions.

        Args:
            replacements: instruction -> its replacements, none to drop it.
            instead: values without a maker -> equal values, to be read in their place.
        """
        instead = instead or {}
        waiting, self._waiting = self._waiting, []
        unsound = unsoundness(self, replacements, instead)
        if self.attempts is not None:
            self._note(self.attempts, unsound, replacements, instead)
        if unsound:
            for entry in waiting:
                if entry.key is not None:
                    del self._derived[entry.key]
            return False
        for entry in waiting:
            self.lowered.derived.append(entry[:3])
            if entry.key is None:
                self.lowered.packs.add(entry.name)
            self.lowered.packed = self.lowered.packed + entry.size
        stores = [pair for t in replacements for pair in t.stores]
        for t, new in replacements.items():
            for i in new:
                i.position = t.position
                if i not in replacements:
                    results = i.writes()
                    i.stores = [(place, value) for place, value in stores if value in results]
            if new and new[0] is not t:
                new[0].copies = new[0].copies or list(t.copies)
                if isinstance(new[0], OpCall) and len(replacements) == 1:
                    self._followers[t] = new[0]  # the same op, with other arguments or results
            self._drop(t)
            index = self._places.pop(id(t))
            slot = self.places[index].index(t)
            self.places[index][slot : slot + 1] = new
            self._places.update(dict.fromkeys(map(id, new), index))
        for new in replacements.values():
            for i in new:
                self._add(i)
        for old, substitute in instead.items():
            self._read_instead(old, substitute)
        return True

    def _note(self, attempts: Attempts, unsound: str, replacements: Mapping[KernelCall, Sequence[KernelCall]], instead: Mapping[Value, Value]) -> None:
        """Note the replacement of some instructions, or why they are not replaced."""
        if unsound is NEEDED:
            new = {v for calls in replacements.values() for i in calls for v in (*i.writes(), *i.updates)}
            dropped = [v for t in replacements for v in t.writes() if v not in new and v not in instead]
            uses = (use for v in dropped if (use := self._use(v, replacements)))
            unsound = next(uses, unsound)
        for t, calls in replacements.items():
            if unsound:
                attempts.stop(t.op, unsound)
            elif t not in calls:
                attempts.take(t.op)

    def _use(self, value: Argument, inside: Collection[KernelCall] = ()) -> str:
        """Return a use of a value outside of some instructions, in words; empty if there is none."""
        if isinstance(value, Value) and self.is_fixed(value):
            return f"{value.name} is fetched or stored"
        reader = next((r for r in self.readers(value) if r not in inside), None)
        return "" if reader is None or not isinstance(value, Value) else f"{value.name} is read by {shown_op(reader.op)} too"

    def stopped(self, i: KernelCall, reason: str) -> bool:
        """Note why the rewrite at work leaves an instruction as it is, for whoever asks; return False."""
        if self.attempts is not None:
            self.attempts.stop(i.op, reason)
        return False

    def shared(self, i: KernelCall, value: Argument, reader: KernelCall | None = None) -> bool:
        """Note another use of a value than its ``reader``, so the rewrite at work leaves an instruction as it is; return False."""
        if self.attempts is not None:
            self.attempts.stop(i.op, self._use(value, () if reader is None else (reader,)) or "its result has no reader")
        return False

    def drop_unused(self, values: Iterable[Argument]) -> None:
        """Take out the makers of values that nobody needs any more, and so on."""
        waiting = [*values]
        while waiting:
            value = waiting.pop()
            i = self.maker(value)
            if i is not None and self.unused(value) and self.replace({i: ()}):
                waiting += values_of(i.arguments)

    def drop_constants(self) -> None:
        """Take out the constants without readers: rewrites have put their numbers into kernels."""
        self.drop_unused(v for place in self.places for i in place if fused_as(i, Constant) is not None for v in i.results)

    def _read_instead(self, old: Value, substitute: Value) -> None:
        """Read ``substitute`` wherever ``old`` was read, and write in its place the writes in place of ``old``."""

        def instead(argument: Argument) -> Argument:
            return [substitute if v is old else v for v in argument] if isinstance(argument, list) else substitute if argument is old else argument

        for i in self.readers(old):
            self._drop(i)
            i.arguments = [instead(a) for a in i.arguments]
            i.results = [instead(r) if index in i.in_place else r for index, r in enumerate(i.results)]
            i.copies = [(copy, substitute if source is old else source) for copy, source in i.copies]
            if isinstance(i, OpCall) and i.offsets is not None:
                i.offsets = [instead(a) for a in i.offsets]
            self._add(i)
        if old in self._fixed:
            self._fixed.add(substitute)
            self.lowered.fetches = [substitute if v is old else v for v in self.lowered.fetches]

    def read_dims(self, i: KernelCall, argument: int, like: Value) -> None:
        """Give an instruction another argument of equal dims, one that it reads already, for an argument whose dims alone it reads."""
        assert any(v is like for v in i.reads())
        self._drop(i)
        i.arguments = [*i.arguments[:argument], like, *i.arguments[argument + 1 :]]
        self._add(i)

    def fresh(self) -> int:
        """Return an unused number for a value."""
        self._fresh = 1 + (self._fresh or max((v.index for place in self.places for i in place for v in (*i.reads(), *i.writes())), default=0))
        return self._fresh

    def dims(self, value: Argument) -> tuple[Size, ...] | None:
        """Return the dims of a dense tensor, with all known symbols put in."""
        dims, guards = dims_of(value), self.lowered.block.program.guards
        return None if dims is None else tuple(map(guards.settled, dims))

    def derive(self, label: str, value: Value, make: Callable[[Any], Any]) -> str:
        """Return a name for a constant made of a persistable when the step is bound, such as its transposed view, for the next `replace`."""
        key = (label, id(value))
        if key not in self._derived:
            self._derived[key] = f"{value}_{label}"
            self._waiting.append(_Derived(self._derived[key], (value,), make, key=key))
        return self._derived[key]

    def pack(self, label: str, values: Sequence[Value], size: Size, make: Callable[..., Any]) -> str:
        """Return a name for a constant made of frozen persistables when the step is bound, of so many bytes beside them; for the next `replace`."""
        self._packed += 1
        name = "_".join([*map(str, values[:1]), f"{label}{self._packed}"])
        self._waiting.append(_Derived(name, tuple(values), make, size))
        return name

    def is_frozen(self, value: Argument) -> bool:
        """Return True if a persistable keeps its value for the life of the step."""
        return self.lowered.frozen and isinstance(value, Value) and value.persistable and value.name not in self._updated

    def is_constant(self, value: Argument) -> bool:
        """Return True if a persistable is only changed in place or not at all in this step."""
        return isinstance(value, Value) and value.persistable and value.name not in self._written


def shown_op(op: Op) -> str:
    """Return an op for words: the user's name of its operator, and its line."""
    return layer_name(op.type) + (f" ({op.call_site.short()})" if op.call_site is not None else "")


def _changed_by(i: KernelCall) -> list[Value]:
    """Return the scope's values that an instruction changes: a normalization by fixed statistics updates them to themselves."""
    return i.changes() if not any(computes(i, kind) is not None for kind in _UNCHANGING) else [place for place, _ in i.stores]


def fused(like: KernelCall, kernel: FusedKernel, arguments: list[Argument], results: list[Argument], computes: Computation | None = None) -> FusedCall:
    """Return a call of a fused kernel; its errors are told of ``like``'s op."""
    call = FusedCall(like.op, arguments, results, kernel=kernel, computes=computes)
    call.in_place = frozenset(kernel.effects.in_place)
    call.workspace = 0 if kernel.workspace is None else rule_bytes(call, kernel.workspace)
    call.innermost = None if kernel.innermost is None else rule_bytes(call, kernel.innermost)
    return call


def fused_as(i: KernelCall | None, kind: type[_Computation]) -> _Computation | None:
    """Return the computation that a rewrite gave a call, if of this kind."""
    return i.computes if isinstance(i, FusedCall) and isinstance(i.computes, kind) else None


def spec_of(value: Argument) -> Spec | None:
    """Return the spec of a dense tensor."""
    spec = value.spec if isinstance(value, Value) else None
    if spec is not None and spec.kind is LOD_TENSOR and spec.dims is not None:
        return spec
    return None


def dims_of(value: Argument) -> tuple[Size, ...] | None:
    spec = spec_of(value)
    return spec.dims if spec is not None else None


def computes(i: KernelCall | None, kind: type[_Computation]) -> _Computation | None:
    """Return the computation of an original instruction, if of this kind; None otherwise."""
    if not isinstance(i, OpCall) or i.operator is None:
        return None
    computation = i.operator.computation
    return computation if isinstance(computation, kind) and not any(i.arguments[computation.operands :]) else None


def backward_of(i: KernelCall | None, kind: type[_Computation]) -> _Computation | None:
    """Return the computation whose usual gradient op an original instruction is, if of this kind; None otherwise."""
    if not isinstance(i, OpCall) or i.operator is None:
        return None
    computation = _undone(i.operator)
    return computation if isinstance(computation, kind) else None


def _undone(operator: Operator) -> Computation | None:
    computation = operator.undone_computation
    return computation if computation is not None and is_usual_gradient(type(operator), type(computation)) else None
