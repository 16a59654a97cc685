"""The lowering of a block to instructions: pruned to the fetches, with every name resolved to one value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from foreshape.compiler.lowering.block_constants import changed_names, constant_call, is_kept
from foreshape.compiler.lowering.call_memory import rule_bytes
from foreshape.compiler.lowering.expansion import expanded
from foreshape.compiler.lowering.kernel_calls import Argument, Derived, FusedCall, KernelCall, OpCall, Step, Value, kernel_operator, values_of
from foreshape.compiler.lowering.own_memory import with_own_memory
from foreshape.compiler.lowering.sizes import size_checks
from foreshape.core.dims import Size, substitute
from foreshape.core.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, DType, Lod, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_proxy import torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import ExecutionError, ForeshapeError
from foreshape.language.infer.loop_state import joined_sources
from foreshape.language.operator.byte_computations import UPDATE_NOTHING
from foreshape.language.operator.fields import DENSE_OR_ROWS
from foreshape.language.operator.operator import OwnCall
from foreshape.language.operator.schema import Schema
from foreshape.language.operator.use import Use
from foreshape.language.program import Block, Op, Role, Variable
from foreshape.language.program.call_site import line_of
from foreshape.language.program.needed import needed_ops
from foreshape.language.program.op import EMPTY
from foreshape.language.program.unknown import unknown_types, unknown_words, with_inner
from foreshape.machine.kernels.call_record import NamedConstant, X, Y, call, method
from foreshape.machine.kernels.fused import FusedKernel


class _NotKnown(ExecutionError):
    """The error for an unknown operator: the caller for the whole block names all of them."""


class Lowering:
    """The lowering of one block: every name is resolved to its value at each op.

    Args:
        region: an op of another block runs the block, so all its reads from outside come in as arguments, but for constants.
        fuse: the instructions will be rewritten, in the blocks of its ops too.
        entry_specs: the specs of values from outside, if their variables end as something else.
        may_be_missing: the names that may come in without a value.
        frozen: unchanged persistables keep their values for the step's life.
        outer: of a block, the lowering of the block of its op.
    """

    def __init__(
        self, block: Block, region: bool = False, fuse: bool = True, entry_specs: Mapping[str, Spec] | None = None, may_be_missing: Collection[str] = (),
        frozen: bool = False, outer: Lowering | None = None,
    ) -> None:  # fmt: skip
        self.block, self.region, self.fuse, self.frozen, self.outer = block, region, fuse, frozen, outer
        self.derived: list[Derived] = []
        self.packed: Size = 0
        self._changed: set[str] | None = None
        self.current: dict[str, Value] = {}
        self.sources: dict[str, Value] = {}
        """The name of some offsets in specs -> the value that holds them now."""
        self.feeds: list[Value] = []
        self.persistables: list[Value] = []
        self.calls: list[KernelCall] = []
        self._count = 0
        self._ops: list[Op] = []
        self._op: Op | None = None
        self._asked: set[str] = set()
        self._compared: set[tuple[Value, Value]] = set()
        self._known = block.program.guards.known
        self.entry_specs: Mapping[str, Spec] = entry_specs or {}
        self.may_be_missing = may_be_missing
        self._required: set[Value] = set()

    def run(self, fetches: Sequence[str]) -> Step:
        """Lower the ops that the fetches need.

        Raises:
            ExecutionError: unknown operators, all of them, or an undescribed name.
        """
        self._ops, self._asked = needed_ops(self.block, fetches), set(fetches)
        positions = {id(op): position for position, op in enumerate(self.block.ops)}
        try:
            for op in self._ops:
                begin = len(self.calls)
                try:
                    self._lower(op)
                except ForeshapeError:
                    raise
                except Exception as error:  # the last resort
                    raise ExecutionError(f"{op.type} cannot be prepared: {type(error).__name__}: {error}\n    {op}{line_of(op.site, op.type)}").told(
                        op=op.type, site=op.call_site
                    ) from error
                for i in self.calls[begin:]:
                    i.position = positions[id(op)]
        except _NotKnown:
            if self.region:
                raise
            raise ExecutionError(f"the program cannot run: {unknown_words(unknown_types(with_inner(self._ops)))}") from None
        fetched = [self.read(n) for n in fetches]
        self._finish_collectives(fetched)
        fetched = with_own_memory(self.calls, fetched, lambda: self.new("").index)
        self.current.update(zip(fetches, fetched, strict=True))
        return Step(self.block, list(self.block.ops), self.calls, self.feeds, self.persistables, fetched, self.derived, self.frozen, self.packed)

    def _finish_collectives(self, fetched: Sequence[Value]) -> None:
        """Let collectives that only start wait themselves, if a reader of their result does not wait. Other frameworks' programs wait once for all, and a
        value still under way would be wrong.
        """
        plain = [(i, i.op.operator) for i in self.calls if isinstance(i, OpCall)]
        starting = [i for i, operator in plain if operator is not None and operator.collective and i.op.attrs.get("use_calc_stream") is False]
        for i in starting:
            operator, results = i.op.operator, {id(v) for v in i.writes()}
            readers = [r for r in self.calls if r is not i and any(id(v) in results for v in r.reads())]
            awaited = bool(readers) and all(r.op.operator is not None and r.op.operator.awaits for r in readers)
            if operator is not None and (not awaited or any(id(v) in results for v in fetched)):
                values = {n: getattr(operator, n) for n in operator.schema.attributes}
                i.kernel = type(operator).with_values(values | {"use_calc_stream": True}).kernel

    def is_read(self, name: str, writer: Op) -> bool:
        """Return True if something in this step reads a result of an op."""
        return name in self._asked or any(name in op.all_reads() for op in self._ops if op is not writer)

    # --- values

    def new(self, name: str, variable: Variable | None = None, *, persistable: bool = False, feed: bool = False, levels: int = 0) -> Value:
        """Return a value with a number of its own."""
        self._count += 1
        return Value(name, self._count - 1, persistable, feed, variable, levels=levels)

    def read(self, name: str, variable: Variable | None = None) -> Value:
        """Return the present value of a name; one from outside if nothing has written it."""
        value = self.current.get(name)
        return value if value is not None else self.enter(name, variable)

    def keeps(self, name: str, variable: Variable | None = None) -> bool:
        """Return True if a name is a dense tensor of the scope that no op of a frozen step changes."""
        if self.outer is not None:
            return self.frozen and self.outer.keeps(name, variable)
        described = variable if variable is not None else self.block.find(name)
        if not self.frozen or described is None or not is_kept(described):
            return False
        if self._changed is None:
            self._changed = changed_names(self._ops)
        return name not in self._changed

    def enter(self, name: str, variable: Variable | None = None, entry: bool = False) -> Value:
        """Return a value from outside: fed, held by the scope, or given by the op of this block. A block makes small constants itself.

        Args:
            variable: of another block, if this one does not know the name: a constant in the block of a branch.
            entry: the op of this block gives it a new value at every call.
        """
        described = self.block.find(name)
        variable = described if described is not None else variable
        if variable is None:
            raise ExecutionError(f"{name!r} is not described in the program")
        if self._op is not None and variable.kind is LOD_TENSOR_ARRAY and variable.block is self.block and not variable.need_check_feed:
            value = self.current[name] = self.new(name, variable)  # nothing has been written to it yet
            make = partial(_empty_array, variable.spec)
            self.calls.append(FusedCall(self._op, [], [value], kernel=FusedKernel("{op} make", call(NamedConstant("make", make)))))
            return value
        constant = constant_call(self.outer, name) if not entry else None
        if constant is not None:
            value = self.current[name] = self.new(name, variable)
            self.calls.append(replace(constant, results=[value]))
            value.made = constant.results[0].made if isinstance(constant.results[0], Value) else None
            return value
        persistable = variable.persistable and (not self.region or (not entry and self.keeps(name, variable)))
        value = self.current[name] = self.new(name, variable, persistable=persistable, feed=not persistable)
        value.made = self.entry_specs.get(name) if self.region else variable.block.program.inference.entry_specs.get(variable)
        value.may_lack = name in self.may_be_missing
        (self.persistables if persistable else self.feeds).append(value)
        if not persistable:
            self.give_offsets(value)
        return value

    def give_offsets(self, value: Value) -> Value | None:
        """Return offsets of its own for a ragged value."""
        lod = _lod(value)
        if lod is not None:
            value.source = lod.source
            value.lod = self.sources[lod.source] = self.new(value.name, feed=value.feed, levels=len(lod.counts))
        return value.lod

    def find_offsets(self, value: Value, arguments: Sequence[Value], op: Op) -> None:
        """Give a result the offsets shared with an argument, or with another value."""
        lod = _lod(value)
        if lod is None:
            return
        value.source = lod.source
        levels = len(lod.counts)
        if lod.source in joined_sources(value.name):  # a name with sequences that change as it is written: the new value's
            candidates = [v.lod for v in arguments if v.lod is not None and v.lod.levels == levels][:1]
            self.sources.update((lod.source, v) for v in candidates)
        else:
            candidates = [v.lod for v in arguments if v.lod is not None and v.source == lod.source]
        if not candidates and lod.source in self.sources:
            candidates.append(self.sources[lod.source])
        if not candidates:
            return
        value.lod = next((v for v in candidates if v.levels == levels), None)
        if value.lod is None:
            value.lod = self.new(value.name, levels=levels)
            self.calls.append(FusedCall(op, [candidates[0]], [value.lod], kernel=FusedKernel("{op} outer", method(X, "outer", levels))))

    def results(self, op: Op, call: KernelCall, names: Sequence[str | None], operands: Sequence[Value | None]) -> list[Value | None]:
        """Return new values for the results of an op with a block, with offsets of its operands; None for None."""
        out: list[Value | None] = []
        for name in names:
            value = None if name is None else self.new(name, self.block.find(name))
            if name is not None and value is not None:
                self.find_offsets(value, [v for v in operands if v is not None], op)
                self.write(call, name, value)
            out.append(value)
        return out

    # --- ops

    def _lower(self, op: Op) -> None:
        self._op = op
        operator = kernel_operator(op)
        if operator is None:
            if op.attributes.error is not None:
                raise op.attributes.error
            raise _NotKnown(unknown_words(unknown_types([op])))
        if op.sub_block_indices():
            from foreshape.compiler.lowering.regions import lower_region_op

            lower_region_op(self, op)
            return
        schema = operator.schema
        if (own := operator.own_call) is not None:
            self._by_record(op, schema, own)
            return
        kernel = partial(operator.kernel, use=Use(op.inputs, _data_types(op))) if type(operator).kernel_use else operator.kernel
        call = OpCall(op, [self._argument(op.inputs.get(o.name), o.many) for o in schema.operands], [], kernel=kernel, declared=operator.effects)
        call.kernel_requested, call.operator = type(operator).kernel_requested, operator
        if type(operator).kernel_offsets:
            call.offsets = [[v and v.lod for v in a] if isinstance(a, list) else a and a.lod for a in call.arguments]
            persistable = next((v for v in values_of(call.arguments) if v.persistable and v.lod is None and _lod(v) is not None), None)
            if persistable is not None:
                raise ExecutionError(f"{op.type}: {persistable.name} is persistable: the sequences of its rows, which are needed, are not kept from run to run")
        if operator.accumulates:
            call.before = [self.current.get(n) for slot in operator.accumulates for n in op.outputs.get(slot, ())]
            for index, argument in enumerate(call.arguments):
                if isinstance(argument, Value) and argument.variable is not None and argument.variable.persistable:  # may be changed in place later
                    copy = call.arguments[index] = self.new(argument.name, argument.variable)
                    call.copies.append((copy, argument))
        operands = values_of(call.arguments)
        self.require(op, values_of([a for a, o in zip(call.arguments, schema.operands, strict=True) if not o.may_lack]))
        self._results(op, call, schema)
        if call.offsets is None and not op.role & Role.BACKWARD:  # a gradient has the sequences of its variable
            self._same_sequences(op, operands, values_of(call.results))
        call.results += self._offsets_of_results(op, schema, call.results, operands)
        check = size_checks(self.block.program).instruction(op, operator, call)
        self.calls += [check, call] if check is not None else [call]

    def _by_record(self, op: Op, schema: Schema, own: OwnCall) -> None:
        """Lower an op to the record of its call."""
        call = FusedCall(op, [self.read(n) for o in schema.operands for n in op.inputs.get(o.name, ())], [None] * own.results, kernel=own.kernel)
        written = [n for r in schema.results for n in op.outputs.get(r.name, ())]
        for place, name in zip((0,) if own.places is None else own.places, written, strict=True):
            changed = own.kernel.effects.in_place.get(place)
            value = call.results[place] = self.new(name, self.block.find(name)) if changed is None else call.argument(changed, 0)
            assert value is not None
            self.write(call, name, value)
        call.in_place = frozenset(own.kernel.effects.in_place)
        call.workspace = 0 if own.kernel.workspace is None else rule_bytes(call, own.kernel.workspace)
        self.calls.append(call)

    def require(self, op: Op, operands: Sequence[Value | None]) -> None:
        """Check in every run that an op's operands were made: one that no block made would count as absent."""
        for value in operands:
            if value is not None and value.may_lack and value not in self._required:
                self._required.add(value)
                check = partial(_require_value, op.type, value.name)
                self.calls.append(FusedCall(op, [value], [], kernel=FusedKernel("step check", call(NamedConstant("check", check), X))))

    def _same_sequences(self, op: Op, operands: Sequence[Value], results: Sequence[Value]) -> None:
        """Check in every run that operands with rows in common are grouped into the same sequences."""
        rows = {self._rows(v) for v in results if _lod(v) is not None}
        first: Value | None = None
        for value in operands:
            if value.lod is None or self._rows(value) not in rows:
                continue
            if first is None or first.lod is None:
                first = value
            elif value.lod is not first.lod and (pair := (first.lod, value.lod)) not in self._compared:
                self._compared.add(pair)
                check = partial(_require_same, first.name, value.name)
                self.calls.append(FusedCall(op, [first.lod, value.lod], [], kernel=FusedKernel("step check", call(NamedConstant("check", check), X, Y))))

    def _rows(self, value: Value) -> Size | None:
        dims = value.spec.dims if value.spec is not None else None
        return substitute(dims[0], self._known) if dims else None

    def _offsets_of_results(self, op: Op, schema: Schema, results: Sequence[Argument], operands: Sequence[Value]) -> list[Argument]:
        """Find or make the offsets of the results; return the ones that the kernel gives."""
        offsets: list[Argument] = []
        for result, out in zip(schema.results, results, strict=True):
            news: list[Value | None] = []
            for value in out if isinstance(out, list) else (out,):
                lod = _lod(value) if value is not None and not value.persistable else None
                if value is not None and result.new_offsets and lod is not None and all(v.source != lod.source for v in operands):
                    news.append(self.give_offsets(value))
                    continue
                news.append(None)
                if value is not None and not value.persistable:
                    self.find_offsets(value, operands, op)
            if result.new_offsets:
                offsets.append(news if isinstance(out, list) else news[0])
        return offsets

    def _argument(self, names: Sequence[str] | None, many: bool) -> Argument:
        if many:
            return [None if n == EMPTY or not n else self.read(n) for n in names or ()]
        return None if not names or names[0] == EMPTY or not names[0] else self.read(names[0])

    def _results(self, op: Op, call: KernelCall, schema: Schema) -> None:
        in_place: set[int] = set()
        for index, result in enumerate(schema.results):
            names = op.outputs.get(result.name) or ()
            if not names and result.updates is not None and all(op.computes(kind) is None for kind in UPDATE_NOTHING):
                self._protect(call, schema, result.updates)
            outs: list[Value | None] = []
            for position, name in enumerate(names):
                if name == EMPTY or not name:
                    outs.append(None)
                    continue
                variable = self.block.find(name)
                value = self.new(name, variable)
                value.made = op.made.get(name)
                if result.updates is not None:
                    operand_at = next(i for i, o in enumerate(schema.operands) if o.name == result.updates)
                    source = call.arguments[operand_at]
                    operand = source[position] if isinstance(source, list) else source
                    if operand is not None and operand.name == name and (operand.in_scope or not (self.region and operand.feed)):
                        value = operand  # changed in place, as the names say
                        in_place.add(index)
                    elif operand is not None:
                        call.copies.append((value, operand))
                        in_place.add(index)
                        if isinstance(source, list):
                            source[position] = value
                        else:
                            call.arguments[operand_at] = value
                self.write(call, name, value)
                outs.append(value)
            call.results.append(outs if result.many else outs[0] if outs else None)
        call.in_place = frozenset(in_place)

    def write(self, call: KernelCall, name: str, value: Value) -> None:
        """Give a name a new value, stored if the variable is the scope's."""
        variable = value.variable
        if variable is not None and variable.persistable and not value.persistable and not self.region:
            if variable.kind not in DENSE_OR_ROWS:
                raise ExecutionError(f"{name} is persistable: only tensors and sparse rows are kept from run to run, not a value of kind {variable.kind.name}")
            place = self.new(name, variable, persistable=True)
            call.stores.append((place, value))
            self.current[name] = place
        else:
            self.current[name] = value

    def _protect(self, i: KernelCall, schema: Schema, operand: str) -> None:
        """Let the kernel change a copy of an operand that it updates, if the op names no result for it."""
        index = next(k for k, o in enumerate(schema.operands) if o.name == operand)
        argument = i.arguments[index]
        copies: list[Value | None] = []
        for value in argument if isinstance(argument, list) else [argument]:
            copy = None if value is None else self.new(value.name, value.variable)
            if value is not None and copy is not None:
                i.copies.append((copy, value))
            copies.append(copy)
        i.arguments[index] = copies if isinstance(argument, list) else copies[0]


def _empty_array(spec: Spec) -> TensorArray:
    """Return an array without elements, with the described rows of its elements."""
    row = [d for d in (spec.dims or ())[1:] if isinstance(d, int)]
    if spec.dtype is None or not spec.dims or len(row) + 1 != len(spec.dims):
        return TensorArray()
    rows = torch.empty([0, *row], dtype=torch_dtype(spec.dtype))
    return TensorArray((rows, Offsets([torch.zeros(1, dtype=torch.int64)] * spec.lod_level) if spec.lod_level else None))


def _data_types(op: Op) -> dict[str, list[DType | None]]:
    """Return the element types of an op's results by slot."""
    described = {n: op.block.find(n) for n in op.output_names()}
    return {slot: [v.dtype if (v := described.get(n)) is not None else None for n in names] for slot, names in op.outputs.items()}


def _require_same(x: str, y: str, a: Offsets | None, b: Offsets | None) -> None:
    if a is not None and b is not None and not a.same_sequences(b):  # a branch that did not run has made no value
        raise ExecutionError(f"{x} and {y} must be grouped into the same sequences; their lengths are {a.shown_lengths()} and {b.shown_lengths()}")


def _require_value(type: str, name: str, value: Any) -> None:
    if value is None:
        raise ExecutionError(f"{type}: {name} has no value: the block that makes it did not run")


def _lod(value: Value) -> Lod | None:
    """Return the raggedness of a value; only rows have offsets beside them."""
    spec = value.spec
    return None if spec is None or spec.kind is not LOD_TENSOR else spec.lod


def lower(block: Block, fetches: Sequence[str], fuse: bool = True, frozen: bool = False) -> Step:
    """Return the instructions of a block. Raise `ExecutionError` for an unknown operator, or an undescribed name.

    Args:
        fuse: they will be rewritten.
        frozen: unchanged persistables keep their values for the step's life.
    """
    return Lowering(expanded(block, fetches), fuse=fuse, frozen=frozen).run(fetches)
