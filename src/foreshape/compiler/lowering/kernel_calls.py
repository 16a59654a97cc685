"""The parts of a step: values, each written once, and the kernel calls that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from foreshape.core.data_class import data_class, field
from foreshape.core.dims import Size
from foreshape.core.spec import FP64, Spec
from foreshape.errors import ExecutionError
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.computations import Computation
from foreshape.language.operator.operator import Operator
from foreshape.language.program import Block, Op, Variable
from foreshape.machine.kernels.fused import NO_EFFECTS, NO_KERNEL, Effects, FusedKernel
from foreshape.machine.process.this_run import this_run
from foreshape.machine.targets import DeviceTarget, current_target


@data_class(eq=False)
class Value:
    """One value of a step: written once. ``name`` is its variable's; ``persistable`` ones live in the scope.

    ``lod`` is the value with the offsets of its rows, if ragged; ``source`` their name in its spec. ``levels`` is above 0 for offsets themselves. ``made``:
    the spec of a rewrite's value without a variable, or of one whose variable is written again as something else.
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
    """True if it has no value when the block that makes it did not run."""
    in_scope: bool = False
    """For a value into a block: True if it is the scope's own, which kernels may change in place."""
    hollow: bool = False
    """True if it has dims alone: all its elements are one, of no meaning."""

    @property
    def number(self) -> str:
        """Return the step's name of a learning rate as a number."""
        return f"{self}_number"

    @property
    def spec(self) -> Spec | None:
        """Return its spec; None if unknown."""
        return self.made if self.made is not None or self.variable is None else self.variable.spec

    def __repr__(self) -> str:
        return f"{'p' if self.persistable else 'o' if self.levels else 'f' if self.feed else 'v'}{self.index}"


Argument = Value | list["Value | None"] | None


def _no_kernel(*arguments: Any) -> Any:
    raise NotImplementedError


@data_class(eq=False)
class KernelCall:
    """One kernel call of a step, in the place of an op.

    Attributes:
        op: named in its errors.
        arguments: by operand; a list where an operand is one.
        results: by result slot, None where nobody reads it.
        copies: (copy, source) of values copied before they are changed in place.
        stores: (place in the scope, value) of results stored there, not written in place.
        in_place: the result slots written into their operands.
        position: the op's place in the running order of the block's ops.
        unknown: the reason of a failed rule, if a part of its memory is unknown; see `foreshape.compiler.lowering.call_memory`.
        copied: the bytes of its copies of arguments in another layout, once `foreshape.compiler.memory.liveness` was asked.
        into: the dead argument whose memory the result takes over.
        workspace: the bytes of its workspace; None to ask its operator's rule.
        innermost: of a convolution, these bytes where the channels of its images or filters lie innermost.
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
    workspace: Size | None = None
    innermost: Size | None = None

    @property
    def effects(self) -> Effects:
        """Return its effects on memory, but for its workspace."""
        raise NotImplementedError

    def reads(self) -> list[Value]:
        """Return the values of its arguments, and all other values read."""
        return values_of(self.arguments)

    def uses(self) -> list[Value]:
        """Return all values that it uses: its operands, and the sources of copies."""
        read = self.reads()
        return read + [source for _, source in self.copies] if self.copies else read

    def writes(self) -> list[Value]:
        """Return its results."""
        return values_of(self.results)

    def changes(self) -> list[Value]:
        """Return the values changed in place, and the scope's values stored."""
        if not (self.in_place or self.stores):
            return []
        return values_of([r for index, r in enumerate(self.results) if index in self.in_place]) + [place for place, _ in self.stores]

    @property
    def updates(self) -> Sequence[Value]:
        """Return the values changed in place without being results."""
        return ()

    @property
    def kernels(self) -> int:
        """Return the number of its kernels."""
        return 1

    def memory(self) -> Iterator[tuple[Value, Value | None]]:
        """Yield each result with the value whose memory it may be in, as declared; None for memory of its own."""
        for copy, _ in self.copies:
            yield copy, None
        for index, out in enumerate(self.results):
            for number, value in enumerate(out if isinstance(out, list) else (out,)):
                if value is not None:
                    yield value, self.source(index, number)

    def source(self, index: int, number: int) -> Value | None:
        """Return the argument in whose memory a result, or an element of it, may be, as declared; None for memory of its own."""
        effects = self.effects
        return self.argument(effects.in_place.get(index, effects.views.get(index)), number)

    def argument(self, index: int | None, number: int) -> Value | None:
        """Return the value of an operand; for a list, the element of a result, or the only one."""
        operand = None if index is None else self.arguments[index]
        if isinstance(operand, list):
            return operand[number] if number < len(operand) else operand[0] if operand else None
        return operand


@data_class(eq=False)
class OpCall(KernelCall):
    """A call of the kernel of an operator.

    Attributes:
        kernel: takes the arguments, and the other attributes.
        kernel_requested: it takes the flags of requested results.
        offsets: the offsets of the arguments, by operand, if the kernel asks for them.
        before: the old values of accumulating results.
        region: its block.
        updated: of several updates in one call without results, the values changed in place.
        declared: its effects on memory; none of its own where it runs a block.
        operator: the one with the kernel; None where it runs a block.
    """

    kernel: Callable[..., Any] = _no_kernel
    operator: Operator | None = None
    kernel_requested: bool = False
    offsets: list[Argument] | None = None
    before: list[Value | None] | None = None
    region: Region | None = None
    updated: Sequence[Value] = ()
    declared: Effects = NO_EFFECTS

    @property
    def effects(self) -> Effects:
        """Return its effects on memory, but for its workspace."""
        return self.declared

    def reads(self) -> list[Value]:
        """Return the values of its arguments, and all other values read."""
        out = values_of(self.arguments)
        if self.offsets is not None:
            out += values_of(self.offsets)
        if self.before is not None:
            out += values_of([self.before])
        return out

    def changes(self) -> list[Value]:
        """Return the values changed in place, and the scope's values stored."""
        values = KernelCall.changes(self)
        return [*values, *self.updated] if self.updated else values

    @property
    def updates(self) -> Sequence[Value]:
        """Return the values changed in place without being results."""
        return self.updated


@data_class(eq=False)
class FusedCall(KernelCall):
    """A call of a fused kernel, for one or more ops.

    Attributes:
        kernel: its record, effects, kind and work.
        computes: its computation, for later rewrites.
        parts: of a series, the last op of each of its steps, and the ops fused into it.
    """

    kernel: FusedKernel = NO_KERNEL
    computes: Computation | None = None
    parts: tuple[tuple[Op, ...], ...] = ()

    @property
    def effects(self) -> Effects:
        """Return its effects on memory, but for its workspace."""
        return self.kernel.effects

    @property
    def kernels(self) -> int:
        """Return the number of its kernels."""
        return sum(map(len, self.parts)) or 1


def kernel_operator(op: Op) -> Operator | None:
    """Return the operator with the kernel of an op: with double precision among its operands and results the one of `Operator.in_double`."""
    operator = op.operator
    if operator is None or not any(field.type is AttrType.FLOAT for field in operator.schema.attributes.values()):
        return operator
    variables = (op.block.find(name) for name in (*op.input_names(), *op.output_names()))
    return operator.in_double if any(v is not None and v.dtype is FP64 for v in variables) else operator


def region_of(i: KernelCall) -> Region | None:
    """Return the block of a call."""
    return i.region if isinstance(i, OpCall) else None


def parts_of(i: KernelCall) -> tuple[tuple[Op, ...], ...]:
    """Return the ops of the steps of a series; nothing of another call."""
    return i.parts if isinstance(i, FusedCall) else ()


def values_of(arguments: Sequence[Argument]) -> list[Value]:
    """Return all values in some arguments."""
    out: list[Value] = []
    for a in arguments:
        if type(a) is Value:
            out.append(a)
        elif isinstance(a, list):
            out += [v for v in a if v is not None]
    return out


Derived = tuple[str, tuple[Value, ...], Callable[..., Any]]
"""A name for a constant, the persistables that it is made of, and the function that makes it."""


@data_class()
class Step:
    """A pruned block as kernel calls, with the values into and out of it."""

    block: Block
    ops: list[Op]
    """The ops of the block in running order, unneeded ones of this step included."""
    calls: list[KernelCall]
    feeds: list[Value]
    persistables: list[Value]
    fetches: list[Value]
    derived: list[Derived] = field(default_factory=list["Derived"])
    """Names for constants made of persistables once, when the step is bound: a transposed view of a weight."""
    frozen: bool = False
    """True if unchanged persistables keep their values for the step's life, so constants made of them may be copies."""
    packed: Size = 0
    """The bytes of constants made of persistables and kept beside them."""
    rates: list[Value] = field(default_factory=list["Value"])
    """Learning rates: persistables read as numbers, once a step and before all else."""
    taken: list[Value] = field(default_factory=list[Value])
    """The values of the first half of a step, in the second one (`foreshape.compiler.lowering.halves`): it takes them out of a list, and frees them one by
    one."""
    owned: frozenset[str] = frozenset()
    """The names of the inputs that nobody else holds: each is freed after its last use."""
    handed: list[Value] = field(default_factory=list[Value])
    """The values for the second half of a step, in the first one."""
    whole: bool = False
    """True if a frozen step shall become one series of kernels (`foreshape.compiler.lowering.fusion.frozen_series`), even where other kernels are as fast."""
    half: bool = False
    """True if products and convolutions of a frozen step, and the values between them, shall be bf16."""
    packs: set[str] = field(default_factory=set[str])
    """The names of constants made of frozen persistables for kernels of their own, without further need of these."""
    target: DeviceTarget = field(default_factory=current_target)
    """The device that it is made for: by default the one of `foreshape.machine.targets.compiling_for`."""

    def bound(self, *tensors: Any) -> tuple[Any, ...]:
        """Return the values that the step is bound to: the persistables' tensors, and the constants made of them."""
        by_id = {id(p): tensor for p, tensor in zip(self.persistables, tensors, strict=True)}
        return (*tensors, *(make(*(by_id[id(p)] for p in values)) for _, values, make in self.derived))

    def lent(self) -> set[str]:
        """Return the names of the persistables that the calls read only as packed constants."""
        used = {v for i in self.calls for v in (*i.uses(), *i.writes(), *(place for place, _ in i.stores))} | {*self.fetches, *self.rates}
        used |= {v for i in self.calls if isinstance(i, OpCall) for v in i.updated}
        used |= {v for name, values, _ in self.derived if name not in self.packs for v in values}
        read = {v for _, values, _ in self.derived for v in values}
        return {v.name for v in self.persistables if v in read and v not in used}

    def parameters(self) -> list[Value]:
        """Return the parameters of the step: the feeds, then the offsets of ragged ones."""
        return self.feeds + [v.lod for v in self.feeds if v.lod is not None]

    def returns(self) -> list[Value]:
        """Return the results of the step: the fetches, then the offsets of ragged ones; of a first half also what it hands on."""
        return [*self.fetches, *(v.lod for v in self.fetches if v.lod is not None), *self.handed]


def _not_compiled(*arguments: Any) -> Any:
    raise ExecutionError("this block has not been compiled")


class Region:
    """A block as a function of the values of ``entries``, then of its other values from outside.

    Attributes:
        lowered: its kernel calls.
        entries: names with new values at every call.
        results: names of the values returned at the end.
        saved: names of values for the backward pass; of an entry the incoming one.
        captured: its other values from outside, as its own values.
        used: the entries read by the block or its op.
        in_place: the results in their old place in the scope.
        held: of a block with constants, the name of the values that it is bound to.
        function: the block as one straight-line function; set by the step's compiler.
    """

    def __init__(
        self, lowered: Step, entries: Sequence[str], results: Sequence[str], saved: Sequence[str], captured: list[Value], used: set[str], in_place: list[int]
    ) -> None:
        self.lowered = lowered
        self.entries, self.results, self.saved = list(entries), list(results), list(saved)
        self.captured, self.used, self.in_place = captured, used, in_place
        self.ragged_results = [index for index, v in enumerate(lowered.fetches) if v.lod is not None]
        self.held = ""
        self.function: Callable[..., Any] = _not_compiled

    def call(self, *arguments: Any) -> tuple[list[Any], list[Any], tuple[Any, ...]]:
        """Return the results, the offsets of each of them (None if dense), and the saved values, then their offsets."""
        run = this_run.run_block
        out = self.function(*arguments) if run is None else run(self.lowered, arguments)
        fetched, offsets = len(self.lowered.fetches), [None] * len(self.lowered.fetches)
        for index, value in zip(self.ragged_results, out[fetched:], strict=True):
            offsets[index] = value
        count = len(self.results)
        return list(out[:count]), offsets[:count], (out[count:fetched], offsets[count:])
