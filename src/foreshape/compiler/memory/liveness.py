"""The lifetimes and bytes of a step's values, from the kernel calls of the step.

Values are given records, never renamed. A view, and a result in the memory of a dead operand, share the record of their memory. Fetches, feeds and values
kept from run to run are never given away.
"""

from __future__ import annotations

from collections.abc import Mapping

from foreshape.compiler.lowering.call_memory import (
    are_ids,
    carried_by_rounds,
    dense_bytes,
    ids_size,
    is_rows,
    may_be_view,
    requested_of,
    retained_of,
    rows_size,
    same_size,
)
from foreshape.compiler.lowering.kernel_calls import FusedCall, KernelCall, OpCall, Region, Step, Value, values_of
from foreshape.compiler.memory.layouts import AxisOrders
from foreshape.compiler.memory.records import (
    GRADIENTS,
    INPUTS,
    KEPT,
    PARAMETERS,
    STATE,
    TEMPORARIES,
    WORKSPACE,
    LiveBuffer,
    Liveness,
    UnknownMemory,
    holds,
    needed_at,
    round_up,
)
from foreshape.compiler.memory.records import complete_held as _complete_held
from foreshape.compiler.memory.rounds import added_to_array, is_of_block, kept_by_rounds, tensor_bytes
from foreshape.core.data_class import data_class
from foreshape.core.dims import Size, maximum, product
from foreshape.core.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, SELECTED_ROWS, STEP_SCOPES
from foreshape.language.infer.loop_state import GRAD, sub_block
from foreshape.language.program import Block, Role
from foreshape.machine.kernels.fused import Effects

NUMBER_BYTES = 8
"""The bytes of a value without a description, made by a rewrite: one number."""


@data_class()
class _ReuseCandidate:
    """A result that could use the memory of an argument."""

    index: int
    instruction: KernelCall
    argument: Value
    operand: LiveBuffer
    record: LiveBuffer


def liveness(lowered: Step, reuse: bool = True) -> Liveness:
    """Return the records of a step. With ``reuse``, tell instructions that their results may use the memory of an argument.

    Raises:
        MemoryPlanError: a value of unknown size.
    """
    return _liveness(lowered, {}, reuse, False)


def _liveness(lowered: Step, rows: dict[Value, Size], reuse: bool, is_inner: bool) -> Liveness:
    walk = _Walk(lowered, rows, reuse, is_inner)
    for value in lowered.persistables:
        walk.read(value, 0, 0)
    for index, i in enumerate(lowered.calls):
        walk.instruction(index, i)
    block = lowered.block
    end, last = max(len(block.ops) - 1, 0), len(lowered.calls)
    for value in lowered.fetches:
        record = walk.read(value, end, last)
        if record is not None:
            record.fixed = True
    for record in walk.feeds:
        if record.name not in lowered.owned:
            record.last = end
    walk.merge()
    if not is_inner:
        _complete_held(block, walk.held, lowered.packed)
    records = [r for r in walk.records if r.shares is None]
    if lowered.target.block > 1 and not is_inner:
        round_up([*records, *walk.held], lowered.target.block)
    names = {n for r in (*records, *walk.held) for n in r.names}
    return Liveness(records, walk.held, lowered.ops, names, {v: r and r.root() for v, r in walk.current.items()}, walk.unknown)


class _Walk:
    def __init__(self, lowered: Step, rows: dict[Value, Size], reuse: bool, is_inner: bool) -> None:
        self.lowered, self.block, self.is_inner, self.reuse_allowed = lowered, lowered.block, is_inner, reuse
        self.rows = rows
        """The bytes of sparse rows."""
        self.shared: dict[Value, Size] = {}
        """The bytes of the distinct values of sparse rows with shared ones."""
        self.used = {v for i in lowered.calls for v in (*i.reads(), *(s for _, s in i.copies), *(s for _, s in i.stores))} | set(lowered.fetches)
        self.current: dict[Value, LiveBuffer | None] = {}
        self.arrays: dict[str, LiveBuffer] = {}
        self.layouts = AxisOrders()
        self.strided = self.layouts.strided
        self.records: list[LiveBuffer] = []
        self.unknown: list[UnknownMemory] = []
        self.held: list[LiveBuffer] = []
        self.feeds: list[LiveBuffer] = []
        self._held_names: set[str] = set()
        self._reuse: list[_ReuseCandidate] = []
        self._taken: LiveBuffer | None = None
        self._workspaces: dict[int, Size] = {}

    # --- values

    def read(self, value: Value, position: int, index: int) -> LiveBuffer | None:
        """Return the record of a value, needed at a position; None if it is not this step's to place."""
        if value not in self.current:
            self.current[value] = self._enter(value)
        record = self.current[value]
        if record is not None:
            record = record.root()
            needed_at(record, position, index)
        return record

    def _enter(self, value: Value) -> LiveBuffer | None:
        if value.levels or self.is_inner:
            return None
        variable, size = value.variable, self._size(value, None)
        if value.persistable:
            self._hold(value, size)
            return None
        record = LiveBuffer(value.name, size, 0, 0, variable, None, INPUTS, True, names=[value.name])
        self.records.append(record)
        self.feeds.append(record)
        return record

    def _hold(self, value: Value, size: Size) -> None:
        if value.name not in self._held_names:
            self._held_names.add(value.name)
            parameter = value.variable is not None and value.variable.is_parameter
            self.held.append(LiveBuffer(value.name, size, 0, 0, value.variable, None, PARAMETERS if parameter else STATE, True, names=[value.name]))

    def _size(self, value: Value, i: KernelCall | None) -> Size:
        """Return the bytes of a value; for sparse rows an upper bound: the count of ids or rows of the instruction."""
        spec = value.spec
        if spec is None:
            return 0 if i is None else NUMBER_BYTES
        if spec.kind is SELECTED_ROWS:
            self.rows[value] = size = rows_size(i, spec, self.rows)
            if i is not None and i.effects.rows_of is not None:
                return self._copied_rows(i, value, i.effects.rows_of)
            return size
        if spec.kind is LOD_TENSOR and spec.dims is None and i is not None:
            self.unknown.append(UnknownMemory(i.op, f"how many dims {value.name} has is known when it runs"))
        return dense_bytes(value, spec)

    def _copied_rows(self, i: KernelCall, rows: Value, values: int) -> Size:
        """Return the bytes of sparse rows with shared values, without their operands' own."""
        held_values = [v for index in i.effects.rows_hold if (v := i.argument(index, 0)) is not None]
        size = 0 if any(v.spec is not None and are_ids(v.spec) for v in held_values) else ids_size(i)
        source = i.argument(values, 0)
        if source is None or source.spec is None:
            return size
        self.shared[rows] = source.spec.nbytes
        return size if source in held_values else size + source.spec.nbytes

    def _new(self, i: KernelCall, index: int, value: Value, size: Size) -> LiveBuffer:
        category = GRADIENTS if _is_parameter_gradient(self.block, value.name) else TEMPORARIES
        record = LiveBuffer(value.name, size, i.position, i.position, value.variable, i.op, category, names=[value.name], until=index)
        self.records.append(record)
        self.current[value] = record
        return record

    def _lives_in(self, value: Value, record: LiveBuffer | None) -> None:
        self.current[value] = record
        if record is not None and value.name not in record.names:
            record.names.append(value.name)

    # --- instructions

    def instruction(self, index: int, i: KernelCall) -> None:
        """Take in one kernel call: its operands live to here, its results from here."""
        position = i.position
        for copy, source in i.copies:
            self.read(source, position, index)
            self._new(i, index, copy, self._size(source, i))
        operands = {v: self.read(v, position, index) for v in i.reads()}
        for value in operands:
            if value in self.rows and i.effects.merges_rows:
                self._workspace(index, i, self.rows[value])  # the merged rows
            elif value in self.shared:
                self._workspace(index, i, self.shared[value])  # these values times a factor, each once
        if isinstance(i, OpCall) and i.region is not None:
            self._region(index, i, i.region, operands)
        else:
            self._call(index, i, operands)
        if i.unknown:
            self.unknown.append(UnknownMemory(i.op, i.unknown))
        for place, value in i.stores:
            record = self.read(value, position, index)
            if record is not None:
                record.fixed = True
            self._hold(place, self._size(place, i))
            self.current[place] = None

    def _call(self, index: int, i: KernelCall, operands: dict[Value, LiveBuffer | None]) -> None:
        requested = requested_of(i, self.used)
        retained = retained_of(i, requested)
        for n, out in enumerate(i.results):
            for number, value in enumerate(out if isinstance(out, list) else (out,)):
                if value is not None and n in i.in_place and is_rows(value):
                    self._other_rows(index, i, value, operands)
                elif value is not None and value not in self.current:
                    self._result(index, i, n, number, value, operands, requested[n] or not (isinstance(i, OpCall) and i.kernel_requested), retained)
        needs, i.copied = self.layouts.needs(i, requested, self.rows, lambda value: self._size(value, i))
        self.layouts.results(i)
        self._workspace(index, i, needs)

    def _result(
        self,
        index: int,
        i: KernelCall,
        n: int,
        number: int,
        value: Value,
        operands: dict[Value, LiveBuffer | None],
        is_computed: bool,
        retained: Mapping[Value, Size],
    ) -> None:
        if value.levels:
            self.current[value] = None
            return
        spec, effects = value.spec, i.effects
        if n in effects.elements and spec is not None and spec.kind is LOD_TENSOR_ARRAY:
            self._array(index, i, i.argument(effects.elements[n], 0), value, operands)
            return
        source, layout = i.source(n, number), effects.layouts.get(n)
        if source is not None and (n in effects.in_place or self._is_view(effects, layout, source, value)):
            self._lives_in(value, operands.get(source))
            self.layouts.view(i, source, value, layout)
            return
        if spec is not None and spec.kind is LOD_TENSOR_ARRAY:
            self._array_of(index, i, value, operands)
            return
        record = self._new(i, index, value, self._size(value, i) if is_computed else 0)
        record.fixed = effects.outlives
        if is_rows(value) or (source is not None and may_be_view(source, value)):
            holds(record, operands)
            for slot in effects.rows_hold:
                argument = i.argument(slot, 0)
                record.elements += [operand] if argument is not None and (operand := operands.get(argument)) is not None else []
        if value in retained and is_computed:
            record.size = record.size + retained[value]
            holds(record, {**operands, **{v: self.current.get(v) for v in i.writes()}})
        if layout == "reshaped" and source in self.strided:
            if self.layouts.reshaped(source, value) is None:  # it may be a view after all, which lies as its base
                self.strided[value] = None
        elif self.strided and (layout == "same" or (isinstance(i, FusedCall) and n not in effects.result_order)):
            self.layouts.same(i, value)
        if effects.takes_over is not None and effects.takes_over[0] == n:
            self._offer(index, i, i.argument(effects.takes_over[1], number), value, operands, record)

    def _other_rows(self, index: int, i: KernelCall, value: Value, operands: dict[Value, LiveBuffer | None]) -> None:
        """Note sparse rows that replace others: the scope's old ones have at most their size."""
        spec = value.spec
        assert spec is not None
        alone = len([v for v in i.writes() if is_rows(v)]) == 1
        size = self.rows[value] = rows_size(i, spec, self.rows) if alone else self.rows.get(value, 0)
        if not value.persistable and not value.in_scope:
            holds(self._new(i, index, value, size), operands)
        for record in self.held if value.persistable else ():
            if value.name in record.names:
                record.size = maximum(record.size, size)

    def _is_view(self, effects: Effects, layout: str | None, source: Value, value: Value) -> bool:
        """Return True if a possible view is one: non-contiguous elements are copied, and a gradient of another number of elements was summed."""
        if layout == "strided":
            return True
        if layout == "reshaped" and source in self.strided:
            return bool(self.layouts.reshaped(source, value))
        a, b = source.spec, value.spec
        return not effects.may_sum or (
            a is not None and b is not None and a.dims is not None and b.dims is not None and same_size(product(a.dims), product(b.dims))
        )

    def _offer(self, index: int, i: KernelCall, argument: Value | None, result: Value, operands: dict[Value, LiveBuffer | None], record: LiveBuffer) -> None:
        """Note that a result could use the memory of an argument, if it is alone there and of equal size."""
        operand = None if argument is None else operands.get(argument)
        a, b = None if argument is None else argument.spec, result.spec
        if argument is None or operand is None or a is None or b is None or a.dims is None or a.dims != b.dims or a.dtype is not b.dtype:
            return
        if not a.kind is b.kind is LOD_TENSOR or argument in self.strided or argument.hollow:  # several of its elements may be one number in memory
            return
        read = [operands.get(v) for v in i.reads()]
        alone = sum(r is operand or (r is not None and operand in r.beside) for r in read) == 1  # of two views the other is read meanwhile
        if alone and same_size(operand.size, dense_bytes(argument, a)):
            self._reuse.append(_ReuseCandidate(index, i, argument, operand, record))

    def _array(self, index: int, i: KernelCall, element: Value | None, value: Value, operands: dict[Value, LiveBuffer | None]) -> None:
        """Note a write to an array: it holds the value without a copy, and each write gives the whole array a new value."""
        record = self.arrays.get(value.name)
        if record is None:
            record = self.arrays[value.name] = self._new(i, index, value, 0)
        self.current[value] = record
        operand = operands.get(element) if element is not None else None
        if operand is not None:
            record.elements.append(operand)
        elif element is not None and element.variable is not None:
            record.size = record.size + tensor_bytes(self.block, element.name)
        needed_at(record, i.position, index)

    def _array_of(self, index: int, i: KernelCall, value: Value, operands: dict[Value, LiveBuffer | None]) -> None:
        """Note an array made at once: of the elements of other arrays, and of copied parts of tensors."""
        record = self._new(i, index, value, 0)
        for source, operand in operands.items():
            spec = source.spec
            if spec is not None and spec.kind is LOD_TENSOR_ARRAY:
                record.elements += [operand] if operand is not None else []
            elif spec is not None and not source.levels:
                record.size = record.size + dense_bytes(source, spec)
        holds(record, operands)
        needed_at(record, i.position, index)

    def _workspace(self, index: int, i: KernelCall, size: Size) -> None:
        """Note the workspace of a call; of several calls in one place only one runs at a time."""
        if isinstance(size, int) and not size:
            return
        record = self._taken
        if record is None or record.first != i.position:
            record = self._taken = LiveBuffer(f"{i.op.type} workspace", 0, i.position, i.position, None, i.op, WORKSPACE)
            self.records.append(record)
            self._workspaces = {}
        self._workspaces[index] = self._workspaces.get(index, 0) + size
        record.size, record.until = maximum(*self._workspaces.values()) if len(self._workspaces) > 1 else self._workspaces[index], index

    def _region(self, index: int, i: OpCall, region: Region, operands: dict[Value, LiveBuffer | None]) -> None:
        """Note an op with a block: the needs of a round, at this position; and the values of its rounds, until its gradient."""
        op, position = i.op, i.position
        by_name = {v.name: self.rows[v] for v in operands if v in self.rows}
        self.rows.update((v, by_name[v.name]) for v in region.lowered.feeds if v.name in by_name)
        inner = _liveness(region.lowered, self.rows, self.reuse_allowed, True)
        self.unknown += inner.unknown
        self.records.append(LiveBuffer(f"{op.type} block {sub_block(op).idx}", 0, position, position, None, op, TEMPORARIES, inner=inner, until=index))
        carried = carried_by_rounds(i, region.lowered.fetches[: len(region.results)])
        if not isinstance(carried, int) or carried:
            self.records.append(LiveBuffer(f"{op.type} carried", carried, position, position, None, op, TEMPORARIES, fixed=True, until=index))
        for value in values_of(i.results):
            spec = value.spec
            if value.levels or spec is None or value in self.current:
                self.current.setdefault(value, None)
            elif spec.kind is STEP_SCOPES:
                holds(self._new(i, index, value, kept_by_rounds(op, sub_block(op))), operands)
            elif spec.kind is LOD_TENSOR_ARRAY:
                record = self.arrays.get(value.name)
                if record is None:
                    record = self.arrays[value.name] = self._new(i, index, value, 0)
                self.current[value] = record
                record.size = record.size + added_to_array(op, value.name)
                holds(record, operands)
                needed_at(record, position, index)
            else:  # an operand may be a result again: of a block that did not run, all are
                record = self._new(i, index, value, maximum(self._size(value, i), self._came(i, region, value)))
                record.handed_on = is_of_block(i, value, inner)
                holds(record, operands)
                self.strided[value] = None
            operands = {**operands, value: self.current.get(value)}

    def _came(self, i: OpCall, region: Region, value: Value) -> Size:
        """Return the bytes of an operand of a round in the place of a result: views keep all of its memory alive."""
        first = i.results[0]
        if not isinstance(first, list) or value not in first or first.index(value) >= len(region.results):
            return 0
        name = region.results[first.index(value)]
        entry = next((v for v in region.lowered.feeds if v.name == name and not v.levels), None)
        spec = entry.spec if entry is not None else None
        return spec.nbytes if spec is not None and spec.kind is LOD_TENSOR and spec.dims is not None and spec.dtype is not None else 0

    # --- afterwards

    def merge(self) -> None:
        """Let results use the memory of dead arguments; then set the class of each record."""
        for candidate in self._reuse if self.reuse_allowed else ():
            operand, record = candidate.operand.root(), candidate.record.root()
            if operand is record or operand.fixed or operand.until != candidate.index or candidate.instruction.into is not None:
                continue
            candidate.instruction.into = candidate.argument
            record.shares = operand
            operand.elements += record.elements
            operand.beside += record.beside
            operand.last, operand.until = max(operand.last, record.last), record.until
            operand.names += record.names
            operand.fixed = operand.fixed or record.fixed
            if record.what is GRADIENTS:
                operand.what = GRADIENTS
        ops = self.lowered.ops
        for record in self.records:
            forward = record.what is TEMPORARIES and record.op is not None and not record.op.role & Role.BACKWARD
            if forward and record.last < len(ops) and ops[record.last].role & Role.BACKWARD:
                record.what = KEPT


def _is_parameter_gradient(block: Block, name: str) -> bool:
    variable = block.find(name.partition(GRAD)[0]) if GRAD in name else None
    return variable is not None and variable.is_parameter
