"""What a step is made of: values, each written once, and the kernel calls that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.data_class import data_class, field
from foreshape.dims import Size
from foreshape.program import Block, Op, Variable
from foreshape.spec import Spec

if TYPE_CHECKING:
    from foreshape.lowering.regions import Region
    from foreshape.operator.operator import Operator


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


@data_class(eq=False)
class Instruction:
    """One kernel call: its arguments by operand, its results by result slot, and which of them somebody reads.

    ``copies``: values that the kernel changes in place and that must be copied first; ``stores``: persistable results that
    the kernel does not write in place.
    """

    op: Op
    kernel: Callable[..., Any]
    arguments: list[Argument]
    results: list[Argument]
    kernel_requested: bool = False
    copies: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])
    stores: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])
    in_place: frozenset[int] = frozenset()
    """The result slots that the kernel writes into their operands."""
    expression: str | None = None
    """Python text that is emitted instead of a call of ``kernel``: ``{0}``, ``{1}`` are the arguments, ``{name}`` a constant."""
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    tag: str = ""
    """What a rewrite made it, for the rewrites that come after: ``product``, ``weight gradient``."""
    offsets: list[Argument] | None = None
    """The offsets of the arguments, by operand, where the kernel asks for them."""
    before: list[Value | None] | None = None
    """What the variables of accumulating results held before."""
    region: Region | None = None
    """The block that it runs."""
    position: int = 0
    """Which op's place it has in the order in which the block's ops run."""
    shares: Mapping[int, int] = field(default_factory=dict[int, int])
    """Of a rewritten one: results in the memory of an argument, views among them: number of the result -> number of the argument."""
    may_share: tuple[int, int] | None = None
    """Of a rewritten one: (result, argument) where ``in_place_expression`` would put the result into the argument's memory."""
    in_place_expression: str = ""
    workspace: Size = 0
    """Of a rewritten one: the bytes that it needs while it runs."""
    unknown: str = ""
    """Why a part of its memory is not known, where a rule about that failed; see `foreshape.lowering.call_memory`."""
    in_rows: tuple[int, ...] = ()
    """Of a rewritten one: the arguments that it copies where they do not lie in a row."""
    in_order: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """Of a rewritten one: arguments that it copies where their axes, or the innermost of them, do not lie in this order in memory; in no known order,
    as what is broadcast, where this is empty."""
    gaps: Mapping[int, Size] = field(default_factory=dict[int, Size])
    """Of a rewritten one: the bytes of its copies of arguments among these that lie in order, with gaps between their rows; without an entry it
    copies them whole."""
    lies: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """Of a rewritten one: the order in which the axes of a result lie in memory, outermost first, where that is not their own."""
    copied: Size = 0
    """The bytes of its copies of arguments that do not lie as it takes them, where `foreshape.memory.liveness` was asked."""
    joins: int = 1
    """How many kernels run in it."""
    parts: tuple[tuple[Op, ...], ...] = ()
    """Of a series: the last op of each of its steps, and those whose work that does too."""
    packed: str = ""
    """Of a rewritten one: the name of what computes all of it, which is made of persistables when the step is bound."""
    into: Value | None = None
    """The argument whose memory the result takes over, since nothing needs that any more."""
    updates: Sequence[Value] = ()
    """Of several updates in one call, which has no results: the values that it changes in place."""

    def reads(self) -> list[Value]:
        out = values_of(self.arguments)
        if self.offsets is not None:
            out += values_of(self.offsets)
        if self.before is not None:
            out += values_of([self.before])
        return out

    def uses(self) -> list[Value]:
        """All values that it looks at: what it reads, and what is copied for it first."""
        read = self.reads()
        return read + [source for _, source in self.copies] if self.copies else read

    def writes(self) -> list[Value]:
        return values_of(self.results)

    def changes(self) -> list[Value]:
        """The values that it changes in place, and those of the scope that it stores."""
        if not (self.in_place or self.stores or self.updates):
            return []
        return values_of([r for at, r in enumerate(self.results) if at in self.in_place]) + [place for place, _ in self.stores] + [*self.updates]

    def memory(self) -> Iterator[tuple[Value, Value | None]]:
        """Each value that it makes with the one in whose memory that may lie, as declared; None where it has its own."""
        operator = self.op.operator
        for copy, _ in self.copies:
            yield copy, None
        for at, out in enumerate(self.results):
            slot: str | None = None
            if self.expression is None and operator is not None and at < len(operator.schema.results):
                declared = operator.schema.results[at]
                slot = declared.updates or declared.view_of
            for number, value in enumerate(out if isinstance(out, list) else (out,)):
                if value is None:
                    continue
                if self.expression is not None:
                    given = self.arguments[self.shares[at]] if at in self.shares else value if at in self.in_place else None
                    yield value, given if isinstance(given, Value) else None
                else:
                    yield value, None if operator is None or slot is None else argument_of(self, operator, slot, number)


def argument_of(i: Instruction, operator: Operator, slot: str | None, number: int) -> Value | None:
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
    """A pruned block as instructions, with the values that come in and go out."""

    block: Block
    ops: list[Op]
    """The ops of the block in the order in which they run; those that this step does not need are among them."""
    instructions: list[Instruction]
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
