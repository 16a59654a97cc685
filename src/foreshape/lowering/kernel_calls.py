"""What a step is made of: values, each written once, and the kernel calls that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.data_class import data_class, field
from foreshape.dims import Size
from foreshape.kernels.fused import NO_KERNEL, Effects, FusedKernel
from foreshape.operator.computations import Computation
from foreshape.operator.operator import Operator
from foreshape.program import Block, Op, Variable
from foreshape.spec import Spec

if TYPE_CHECKING:
    from foreshape.lowering.region import Region


@data_class(eq=False)
class Value:
    """One value of a step: written once. ``name`` is its variable's; ``persistable`` ones live in the scope.

    ``lod`` is the value that holds the offsets of its rows, where it is ragged; ``source`` the name that its spec has for them.
    ``levels`` is not 0 of a value that holds offsets itself. ``made``: what is known of a value that a rewrite made and that has no variable,
    or of one whose variable is written again and is something else then.
    """

    name: str
    index: int
    persistable: bool = False
    feed: bool = False
    variable: Variable | None = None
    lod: Value | None = None
    source: str = ""
    levels: int = 0
    made: Spec | None = None
    may_lack: bool = False
    """Whether it has no value where a block that would make it did not run."""
    in_scope: bool = False
    """Of what comes into a block: whether it is the scope's own, which kernels may change in its place."""

    @property
    def spec(self) -> Spec | None:
        """What is known of it; None where nothing is."""
        return self.made if self.made is not None or self.variable is None else self.variable.spec

    def __repr__(self) -> str:
        return f"{'p' if self.persistable else 'o' if self.levels else 'f' if self.feed else 'v'}{self.index}"


Argument = Value | list["Value | None"] | None


def _no_kernel(*given: Any) -> Any:
    raise NotImplementedError


@data_class(eq=False)
class KernelCall:
    """One kernel call of a step, in the place of an op.

    Attributes:
        op: the one that errors in it are told of.
        arguments: by operand; a list where an operand is one.
        results: by result slot, None where nobody reads it.
        copies: (copy, source) of values that it changes in place and that are copied first.
        stores: (place in the scope, value) of results that are stored there and are not written in place.
        in_place: the result slots that it writes into their operands.
        position: the op's place in the order in which the ops of the block run.
        unknown: why a part of its memory is not known, where a rule about that failed; see `foreshape.lowering.call_memory`.
        copied: the bytes of its copies of arguments that do not lie as it takes them, once `foreshape.memory.liveness` was asked.
        into: the argument whose memory the result takes over, since nothing needs that any more.
    """

    op: Op
    arguments: list[Argument]
    results: list[Argument]
    copies: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])
    stores: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])
    in_place: frozenset[int] = frozenset()
    position: int = 0
    unknown: str = ""
    copied: Size = 0
    into: Value | None = None

    def reads(self) -> list[Value]:
        """Return the values of its arguments, and all else that it is given."""
        return values_of(self.arguments)

    def uses(self) -> list[Value]:
        """Return all values that it looks at: those that it reads, and those that are copied for it first."""
        read = self.reads()
        return read + [source for _, source in self.copies] if self.copies else read

    def writes(self) -> list[Value]:
        """Return the values that it makes."""
        return values_of(self.results)

    def changes(self) -> list[Value]:
        """Return the values that it changes in place, and those of the scope that it stores."""
        if not (self.in_place or self.stores):
            return []
        return values_of([r for at, r in enumerate(self.results) if at in self.in_place]) + [place for place, _ in self.stores]

    @property
    def updates(self) -> Sequence[Value]:
        """The values that it changes in place and that are no results of it."""
        return ()

    @property
    def kernels(self) -> int:
        """How many kernels run in it."""
        return 1

    def memory(self) -> Iterator[tuple[Value, Value | None]]:
        """Yield each value that it makes with the one in whose memory that may lie, as declared; None where it has its own."""
        for copy, _ in self.copies:
            yield copy, None
        for at, out in enumerate(self.results):
            for number, value in enumerate(out if isinstance(out, list) else (out,)):
                if value is not None:
                    yield value, self._source(at, number, value)

    def _source(self, at: int, number: int, value: Value) -> Value | None:
        raise NotImplementedError

    def code(self, name: Callable[[str, Any], str], asked: tuple[bool, ...] = ()) -> str:
        """Return the Python expression of the call.

        Args:
            name: takes a constant and what it would be called, and returns its name in the text.
            asked: which results are asked for, of a kernel that wants to know.
        """
        raise NotImplementedError


@data_class(eq=False)
class OpCall(KernelCall):
    """A call of the kernel of an operator; its effects are what the operator declares.

    Attributes:
        kernel: takes the arguments, and what else is here.
        kernel_requested: whether it takes the results that are asked for.
        offsets: the offsets of the arguments, by operand, where the kernel asks for them.
        before: the values that the variables of accumulating results had before.
        region: the block that it runs.
        updated: of several updates in one call, which has no results, the values that it changes in place.
        contiguous: of such a call, the arguments that it copies unless they are contiguous.
        workspace: of such a call, the bytes that it takes while it runs.
    """

    kernel: Callable[..., Any] = _no_kernel
    kernel_requested: bool = False
    offsets: list[Argument] | None = None
    before: list[Value | None] | None = None
    region: Region | None = None
    updated: Sequence[Value] = ()
    contiguous: tuple[int, ...] = ()
    workspace: Size = 0

    def reads(self) -> list[Value]:
        """Return the values of its arguments, and all else that it is given."""
        out = values_of(self.arguments)
        if self.offsets is not None:
            out += values_of(self.offsets)
        if self.before is not None:
            out += values_of([self.before])
        return out

    def changes(self) -> list[Value]:
        """Return the values that it changes in place, and those of the scope that it stores."""
        own = KernelCall.changes(self)
        return [*own, *self.updated] if self.updated else own

    @property
    def updates(self) -> Sequence[Value]:
        """The values that it changes in place and that are no results of it."""
        return self.updated

    def _source(self, at: int, number: int, value: Value) -> Value | None:
        operator = self.op.operator
        if operator is None or at >= len(operator.schema.results):
            return None
        declared = operator.schema.results[at]
        return argument_of(self, operator, declared.updates or declared.view_of, number)

    def code(self, name: Callable[[str, Any], str], asked: tuple[bool, ...] = ()) -> str:
        """Return the Python expression of the call."""
        arguments = [text_of(a) for a in self.arguments]
        if self.kernel_requested:
            arguments.append(f"requested={name('w', asked)}")
        if self.offsets is not None:
            arguments.append(f"offsets=[{', '.join(text_of(a) for a in self.offsets)}]")
        if self.before is not None:
            arguments.append(f"before={text_of(self.before)}")
        if self.into is not None:
            arguments.append(f"into={self.into}")
        return f"{name('k', self.kernel)}({', '.join(arguments)})"


@data_class(eq=False)
class FusedCall(KernelCall):
    """A call of a kernel that stands for one or more ops.

    Attributes:
        kernel: its text, effects, kind and work.
        computes: for the rewrites that come after.
        workspace: the bytes that it takes while it runs.
        parts: of a series, the last op of each of its steps, and those whose work that does too.
    """

    kernel: FusedKernel = NO_KERNEL
    computes: Computation | None = None
    workspace: Size = 0
    parts: tuple[tuple[Op, ...], ...] = ()

    @property
    def effects(self) -> Effects:
        """Its effects on memory, but for its workspace."""
        return self.kernel.effects

    @property
    def kernels(self) -> int:
        """How many kernels run in it."""
        return sum(map(len, self.parts)) or 1

    def _source(self, at: int, number: int, value: Value) -> Value | None:
        views = self.effects.views
        given = self.arguments[views[at]] if at in views else value if at in self.in_place else None
        return given if isinstance(given, Value) else None

    def code(self, name: Callable[[str, Any], str], asked: tuple[bool, ...] = ()) -> str:
        """Return the Python expression of the call."""
        kernel = self.kernel
        text = kernel.text if self.into is None else kernel.text_in_place
        return text.format(*map(text_of, self.arguments), **{n: name(n, value) for n, value in kernel.constants.items()})


def region_of(i: KernelCall) -> Region | None:
    """Return the block that a call runs."""
    return i.region if isinstance(i, OpCall) else None


def parts_of(i: KernelCall) -> tuple[tuple[Op, ...], ...]:
    """Return the ops of the steps of a series; nothing of another call."""
    return i.parts if isinstance(i, FusedCall) else ()


def text_of(argument: Argument) -> str:
    """Return an argument as a step writes it."""
    if isinstance(argument, list):
        return "[" + ", ".join("None" if v is None else repr(v) for v in argument) + "]"
    return "None" if argument is None else repr(argument)


def argument_of(i: KernelCall, operator: Operator, slot: str | None, number: int) -> Value | None:
    """What stands in an operand slot; of a list the element that belongs to a result, or the only one."""
    if slot is None:
        return None
    given = i.arguments[next(at for at, o in enumerate(operator.schema.operands) if o.name == slot)]
    if isinstance(given, list):
        return given[number] if number < len(given) else given[0] if given else None
    return given


def values_of(arguments: Sequence[Argument]) -> list[Value]:
    """All values in some arguments."""
    out: list[Value] = []
    for a in arguments:
        if type(a) is Value:
            out.append(a)
        elif isinstance(a, list):
            out += [v for v in a if v is not None]
    return out


@data_class()
class Lowered:
    """A pruned block as kernel calls, with the values that come in and go out."""

    block: Block
    ops: list[Op]
    """The ops of the block in the order in which they run; those that this step does not need are among them."""
    calls: list[KernelCall]
    feeds: list[Value]
    persistables: list[Value]
    fetches: list[Value]
    derived: list[tuple[str, tuple[Value, ...], Callable[..., Any]]] = field(default_factory=list[tuple[str, tuple[Value, ...], "Callable[..., Any]"]])
    """Names for what is made of persistables once, when the step is bound: a transposed view of a weight."""
    frozen: bool = False
    """Whether persistables that the step does not change keep their values for its life, so that what is made of them may be another tensor."""
    packed: Size = 0
    """The bytes of what is made of persistables and kept beside them."""
    prologue: list[str] = field(default_factory=list[str])
    """Statements that stand before all others."""

    def parameters(self) -> list[Value]:
        """What the step is called with: the feeds, then the offsets of those that are ragged."""
        return self.feeds + [v.lod for v in self.feeds if v.lod is not None]

    def returns(self) -> list[Value]:
        """What the step returns: the fetches, then the offsets of those that are ragged."""
        return self.fetches + [v.lod for v in self.fetches if v.lod is not None]
