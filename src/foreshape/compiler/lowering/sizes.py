"""Sizes told only by the run: an op's own rule checks them, as numbers, right before its kernel is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from foreshape.compiler.lowering.kernel_calls import Argument, FusedCall, KernelCall, Value, values_of
from foreshape.core.dims import symbols_of
from foreshape.core.spec import LOD_TENSOR, MAX_VALUE_ELEMENTS, TENSOR_KINDS, Lod, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import GuardError
from foreshape.language.infer.rules import Answer, Key, Slot, ask
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.require import RuleError
from foreshape.language.program import Op, Program
from foreshape.language.program.block import Block
from foreshape.language.program.call_site import line_of
from foreshape.language.program.names import blocks_of
from foreshape.language.program.needed import is_given
from foreshape.machine.kernels.call_record import CallRecord, NamedConstant, NumberedOperand, TupleRecord
from foreshape.machine.kernels.fused import FusedKernel
from foreshape.machine.process.this_run import require_room, this_run

_KEPT = 256
_BRANCHES = ("conditional", "conditional_grad")
_checks: WeakKeyDictionary[Program, tuple[int, SizeChecks]] = WeakKeyDictionary()


def size_checks(program: Program) -> SizeChecks:
    """Return the checks of a program as it is now."""
    entry = _checks.get(program)
    if entry is None or entry[0] != program.version:
        entry = _checks[program] = program.version, SizeChecks(program)
    return entry[1]


class SizeChecks:
    """The ops of a program to be checked when they run.

    Sizes of feeds and of the scope's values are known before a step runs, and so are their guards. Sizes found by a kernel, or made by a loop's rounds, are
    not. The demands of a block that may not run are no guards.
    """

    def __init__(self, program: Program) -> None:
        inputs = [v for v in program.global_block.vars.values() if v.kind in TENSOR_KINDS and (v.persistable or v.need_check_feed or is_given(v))]
        self._decided = {n for v in inputs for n in _symbols(v.entry_spec)} - program.guards.made
        self._chosen = chosen_blocks(program)
        self._open: dict[Spec, bool] = {}

    def instruction(self, op: Op, operator: Operator, call: KernelCall) -> KernelCall | None:
        """Return the check of an op's operands, if there is any."""
        operands, results = values_of(call.arguments), values_of(call.results)
        if any(v.spec is None for v in operands):
            return None
        chosen = op.block in self._chosen
        if not ((chosen or any(map(self._is_open, operands))) and self._demands(operator, call, chosen)) and not (
            any(map(self._is_open, results)) and any(_may_be_sizes(v) for v in operands)
        ):
            return None
        sources = {id(copy): source for copy, source in call.copies}  # copies are made after the check

        def now(v: Value) -> Value:
            return sources.get(id(v), v)

        arguments: list[Argument] = [[now(v) for v in a if v is not None] if isinstance(a, list) else a and now(a) for a in call.arguments]
        offsets: list[Argument] = [[v and v.lod for v in a] if isinstance(a, list) else a and a.lod for a in arguments]
        check = SizeCheck(op, operator, [_specs(a) for a in call.arguments])
        numbers = tuple(map(NumberedOperand, range(2 * len(arguments))))
        record = CallRecord(NamedConstant("check", check), (TupleRecord(numbers[: len(arguments)]), TupleRecord(numbers[len(arguments) :])))
        return FusedCall(op, [*arguments, *offsets], [], kernel=FusedKernel("step check", record))

    def _is_open(self, value: Value) -> bool:
        spec = value.spec
        if spec is None:
            return False
        answer = self._open.get(spec)
        if answer is None:
            answer = self._open[spec] = not _symbols(spec) <= self._decided
        return answer

    def _demands(self, operator: Operator, call: KernelCall, chosen: bool) -> bool:
        """Return True if the rule leaves a dependence on sizes told only by the run; in a block ``chosen`` at run, on any size."""
        try:
            answer = ask(operator, tuple(_specs(a) for a in call.arguments))
        except RuleError:
            return True
        return any(chosen or not c.symbols <= self._decided for c in answer.conditions)


def chosen_blocks(program: Program) -> set[Block]:
    """Return the blocks that may not run, and the blocks run by these, whatever parents a file names."""
    out: set[Block] = set()
    left = [b for op in program.all_ops() if op.operator is not None and op.operator.region in _BRANCHES for b in blocks_of(op)]
    while left:
        block = left.pop()
        if block not in out:
            out.add(block)
            left.extend(b for op in block.ops for b in blocks_of(op))
    return out


class SizeCheck:
    """The rule of one op, asked with the present sizes of its operands."""

    def __init__(self, op: Op, operator: Operator, specs: Sequence[Slot]) -> None:
        self.op, self.operator, self.specs = op, operator, specs
        self._found: dict[Key, list[tuple[int, str]]] = {}
        flat = [s for slot in specs for s in (slot if isinstance(slot, tuple) else (slot,)) if s is not None]
        self._by_shapes = all(s.kind is LOD_TENSOR and s.lod is None and s.dtype is not None and s.dtype.family == "float" for s in flat)
        """True if dims alone decide, so that no spec need be made for a known answer."""
        self._of_shapes: dict[Any, list[tuple[int, str]]] = {}

    def __call__(self, operands: Sequence[Any], offsets: Sequence[Any]) -> None:
        """Check the operands right before the call of the kernel.

        Raises:
            GuardError: the op does not take these sizes. MemoryPlanError: a result is larger than the run may take.
        """
        shapes = tuple([_shapes(a) for a in operands]) if self._by_shapes else None
        results = self._of_shapes.get(shapes) if shapes is not None else None
        if results is None:
            results = self._look(operands, offsets)
            if shapes is not None:
                if len(self._of_shapes) >= _KEPT:
                    self._of_shapes.clear()
                self._of_shapes[shapes] = results
        limit = this_run.memory_limit
        for size, text in results:
            if limit is not None and size > limit.size:
                require_room(self.op.type, size, f"a result of {text}", line_of(self.op.site, self.op.type), self.op.call_site)

    def _look(self, operands: Sequence[Any], offsets: Sequence[Any]) -> list[tuple[int, str]]:
        """Ask the rule; return the bytes and the specs of the results."""
        key = tuple(
            tuple(_spec_of_value(s, t, o) for s, t, o in zip(spec, tensor, offset, strict=True))
            if isinstance(spec, tuple)
            else None
            if spec is None
            else _spec_of_value(spec, tensor, offset)
            for spec, tensor, offset in zip(self.specs, operands, offsets, strict=True)
        )
        entries = self._found.get(key)
        if entries is None:
            results = self._ask(key).results
            specs = [s for result in results for s in (result if isinstance(result, tuple) else (result,)) if s is not None and s.kind is LOD_TENSOR]
            entries = [(s.nbytes, s.text()) for s in specs if s.dims is not None and s.dtype is not None and isinstance(s.nbytes, int)]
            if len(self._found) >= _KEPT:
                self._found.clear()
            self._found[key] = entries
        return entries

    def _ask(self, key: Key) -> Answer:
        try:
            return ask(self.operator, key)
        except RuleError as error:
            slots = zip(self.operator.schema.operands, key, strict=True)
            specs = ", ".join(f"{o.name} {s.text()}" for o, slot in slots for s in (slot if isinstance(slot, tuple) else (slot,)) if s is not None)
            refusal = GuardError(f"{self.op.type}: {error.requirement}\n    seen: {specs}{line_of(self.op.site, self.op.type)}")
            slot = next(iter(error.sides), None)
            raise refusal.told(op=self.op.type, slot=slot, required=error.requirement, seen=specs, site=self.op.call_site) from error.__cause__


def _shapes(operand: Any) -> Any:
    """Return the dims of an operand, or of each of several; None for an absent one."""
    if operand.__class__ is tuple or operand.__class__ is list:
        return tuple([None if x is None else x.shape for x in operand])
    return None if operand is None else operand.shape


def _specs(argument: Argument) -> Slot:
    if isinstance(argument, list):
        return tuple(v.spec for v in argument if v is not None and v.spec is not None)
    return None if argument is None else argument.spec


def _symbols(spec: Spec) -> set[str]:
    sizes = (*(spec.dims or ()), *(spec.lod.counts if spec.lod is not None else ()))
    return {n for size in sizes if not isinstance(size, int) for n in symbols_of(size)}


def _may_be_sizes(value: Value) -> bool:
    """Return True for whole numbers, few enough to be the sizes of a result."""
    spec = value.spec
    if spec is None or spec.kind is not LOD_TENSOR or spec.dtype is None or spec.dtype.family not in ("int", "uint") or spec.dims is None:
        return False
    count = spec.elements
    return len(spec.dims) <= 1 and (not isinstance(count, int) or count <= MAX_VALUE_ELEMENTS)


def _spec_of_value(spec: Spec, value: Any, offsets: Any) -> Spec:
    """Return the present spec of an operand."""
    if isinstance(value, Rows):
        return Spec(spec.kind, spec.dtype, tuple(value.shape))
    if not isinstance(value, torch.Tensor):  # arrays and rank tables have sizes of their own; an absent value has none
        return spec
    lod = spec.lod if offsets is None or spec.lod is None else Lod(spec.lod.source, tuple(len(level) - 1 for level in offsets.levels))
    is_few = value.dim() <= 1 and value.numel() <= MAX_VALUE_ELEMENTS and spec.dtype is not None and spec.dtype.family in ("int", "uint")
    few = tuple(int(n) for n in value.reshape(-1)) if is_few else None
    return Spec(spec.kind, spec.dtype, tuple(value.shape), lod, few)
