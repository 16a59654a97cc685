"""When each value of a program needs memory, and how much: found from the description alone.

Values are given records, never renamed: a view, and a result that takes over the memory of an operand which dies there, share the
record of what they live in. What is fetched, fed or kept from run to run is never given away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from foreshape.dims import Size, evaluate, product, symbol
from foreshape.errors import MemoryPlanError
from foreshape.ops.fields import Result
from foreshape.program import Block, Op, Program, Role, Variable
from foreshape.program.needed import needed_ops
from foreshape.program.op import EMPTY
from foreshape.program.regions import GRAD, names_in, saved_names, sub_block
from foreshape.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, SELECTED_ROWS, STEP_SCOPES, Spec

PARAMETERS, STATE, INPUTS = "parameters", "optimizer state", "inputs"
GRADIENTS, KEPT, TEMPORARIES, WORKSPACE = "gradients", "kept for backward", "temporaries", "kernel workspace"
CLASSES: tuple[str, ...] = (PARAMETERS, STATE, INPUTS, GRADIENTS, KEPT, TEMPORARIES, WORKSPACE)
ID_BYTES = 8


@dataclass(slots=True, eq=False)
class Record:
    """Memory that one or more values live in: its bytes, and the ops (positions, both included) from and to which it is needed."""

    name: str
    size: Size
    first: int
    last: int
    variable: Variable | None
    op: Op | None
    what: str = TEMPORARIES
    fixed: bool = False
    """Whether no other value may take it over: it is fed or fetched."""
    shares: Record | None = None
    inner: Liveness | None = None
    """Of an op that runs a block: what happens within a round."""
    names: list[str] = field(default_factory=list[str])
    elements: list[Record] = field(default_factory=list["Record"])
    """Of an array: what was written to it, which it holds without a copy."""

    def root(self) -> Record:
        """The record that this one was merged into."""
        at = self
        while at.shares is not None:
            at = at.shares
        return at


@dataclass(slots=True)
class Liveness:
    """The records of a block's values, and what is kept from run to run."""

    records: list[Record]
    held: list[Record]
    positions: int


class _Sizes:
    """The bytes of values of which the description alone does not say it: gradients of rows."""

    def __init__(self) -> None:
        self.rows: dict[str, Size] = {}

    def of(self, op: Op | None, name: str, spec: Spec) -> Size:
        """The bytes of the value that an op gives a name."""
        if spec.kind is LOD_TENSOR:
            return spec.nbytes if spec.dims is not None and spec.dtype is not None else 0
        if spec.kind is SELECTED_ROWS:
            self.rows[name] = found = self._rows(op, spec)
            return found
        return 0

    def _rows(self, op: Op | None, spec: Spec) -> Size:
        """Rows are as many as the op was given: ids, or rows of its operands."""
        if op is None or spec.dims is None or spec.dtype is None:
            return 0
        total: Size = 0
        for name in op.input_names():
            variable = op.block.find(name)
            if variable is None:
                continue
            if name in self.rows:
                total = total + self.rows[name]
            elif variable.spec.dtype is not None and variable.spec.dtype.is_integer and variable.spec.dims is not None:
                total = total + product(variable.spec.dims) * (product(spec.dims[1:]) * spec.dtype.itemsize + ID_BYTES)
        return total


def find_liveness(program: Program, fetch: Sequence[str]) -> Liveness:
    """The records of a program that is run for these fetches.

    Raises:
        MemoryPlanError: a value of which nothing is known.
    """
    program.refresh()
    return _of_block(program.global_block, fetch, _Sizes(), ())


def _of_block(block: Block, fetch: Sequence[str], sizes: _Sizes, outside: Collection[str]) -> Liveness:
    walk = _Walk(block, sizes, outside)
    kept = {id(op) for op in needed_ops(block, fetch)}
    for position, op in enumerate(block.ops):
        if id(op) in kept:
            walk.op(position, op)
    end = max(len(block.ops) - 1, 0)
    for name in fetch:
        record = walk.read(name, end)
        if record is not None:
            record.fixed = True
    for record in walk.feeds:
        record.last = end
    walk.merge()
    _mark_parameters(block, walk.held)
    return Liveness([r for r in walk.records if r.shares is None], walk.held, len(block.ops))


def _mark_parameters(block: Block, held: Sequence[Record]) -> None:
    """In a saved inference model no variable is marked as a parameter: there all that is kept are parameters."""
    if not any(v.is_parameter for v in block.program.all_variables()):
        for record in held:
            record.what = PARAMETERS


class _Walk:
    def __init__(self, block: Block, sizes: _Sizes, outside: Collection[str]) -> None:
        self.block, self.sizes, self.outside = block, sizes, outside
        self.current: dict[str, Record | None] = {}
        self.records: list[Record] = []
        self.held: list[Record] = []
        self.feeds: list[Record] = []
        self._reuse: list[tuple[int, Record, Record]] = []

    def read(self, name: str, position: int) -> Record | None:
        """The record that a name's value lives in, needed at a position; None where it is not this block's to place."""
        if name not in self.current:
            self.current[name] = self._enter(name)
        record = self.current[name]
        if record is not None:
            record = record.root()
            _needed_at(record, position)
        return record

    def _enter(self, name: str) -> Record | None:
        variable = self.block.find(name)
        if variable is None or name in self.outside or variable.block is not self.block:
            return None
        size = self.sizes.of(None, name, self._spec(variable))
        if variable.persistable:
            self.held.append(Record(name, size, 0, 0, variable, None, PARAMETERS if variable.is_parameter else STATE, True, names=[name]))
            return None
        record = Record(name, size, 0, 0, variable, None, INPUTS, True, names=[name])
        self.records.append(record)
        self.feeds.append(record)
        return record

    def _spec(self, variable: Variable) -> Spec:
        spec = variable.spec
        if spec.kind is LOD_TENSOR and spec.dims is None and not variable.known:
            raise MemoryPlanError(f"nothing is known of {variable.name}, so that its memory cannot be planned; run program.infer() for the reason")
        return spec

    def op(self, position: int, op: Op) -> None:
        """Take in one op: what it reads lives to here, what it writes from here."""
        given = {n: self.read(n, position) for n in sorted(op.all_reads())}
        operator = op.operator
        if operator is None:
            raise MemoryPlanError(f"the operator {op.type!r} is not known here, so that its memory cannot be planned")
        if operator.sub_blocks:
            self._region(position, op)
            return
        for result in operator.schema.results:
            for at, name in enumerate(op.outputs.get(result.name, ())):
                if name and name != EMPTY:
                    self._write(position, op, result, at, name, given)
        need = getattr(operator, "workspace", None)
        if need is not None:
            specs = {o.name: self._operand(op, o.name) for o in operator.schema.operands}
            self.records.append(Record(f"{op.type} workspace", need(**specs), position, position, None, op, WORKSPACE))

    def _operand(self, op: Op, slot: str) -> Spec | None:
        name = op.input(slot)
        variable = self.block.find(name) if name is not None else None
        return variable.spec if variable is not None else None

    def _write(self, position: int, op: Op, result: Result, at: int, name: str, given: Mapping[str, Record | None]) -> None:
        variable = self.block.find(name)
        if variable is None:
            return
        spec = self._spec(variable)
        if variable.persistable:
            if name not in self.current:
                self.current[name] = self._enter(name)
            return
        source = self._source(op, result, at)
        lives_in = given.get(source) if source is not None else None
        if source is not None and result.updates is not None:
            self._lives_in(name, lives_in)
            return
        if source is not None and result.view_of is not None and _is_view(self.block, op, source, spec):
            self._lives_in(name, lives_in)
            return
        before = self.current.get(name)
        if result.name in (op.operator.accumulates if op.operator is not None else ()) and spec.kind is LOD_TENSOR_ARRAY:
            record = before.root() if before is not None else self._new(position, op, name, variable, 0)
            element = _element(op, result)
            held = given.get(element) if element is not None else None
            if held is not None:
                record.elements.append(held)
            elif element is not None:
                record.size = record.size + _tensor_bytes(self.block, element)
            _needed_at(record, position)
            self.current[name] = record
            return
        record = self._new(position, op, name, variable, self.sizes.of(op, name, spec))
        self.current[name] = record
        taken = self._source_of_reuse(op, result, at)
        if taken is not None:
            held = given.get(taken)
            if held is not None and sum(given.get(n) is held for n in op.input_names()) == 1:  # of two views the other is read meanwhile
                self._reuse.append((position, held, record))

    def _lives_in(self, name: str, record: Record | None) -> None:
        self.current[name] = record
        if record is not None and name not in record.names:
            record.names.append(name)

    def _new(self, position: int, op: Op, name: str, variable: Variable | None, size: Size) -> Record:
        what = GRADIENTS if _is_parameter_gradient(self.block, name) else TEMPORARIES
        record = Record(name, size, position, position, variable, op, what, names=[name])
        self.records.append(record)
        return record

    def _source(self, op: Op, result: Result, at: int) -> str | None:
        slot = result.updates or result.view_of
        names = op.inputs.get(slot, ()) if slot is not None else ()
        return names[at] if at < len(names) else names[0] if names else None

    def _source_of_reuse(self, op: Op, result: Result, at: int) -> str | None:
        names = op.inputs.get(result.may_share, ()) if result.may_share is not None else ()
        return names[at] if at < len(names) else None

    def _region(self, position: int, op: Op) -> None:
        """An op that runs a block: what a round needs, at this position; what its rounds keep, until they are undone."""
        block = sub_block(op)
        reads, writes = block.outer_names()
        results = sorted(writes) + [n for n in block.vars if n in names_in(op, "outputs")]
        inner = _of_block(block, results, self.sizes, reads | writes)
        self.held += inner.held
        inner.held = []
        self.records.append(Record(f"{op.type} block {block.idx}", 0, position, position, None, op, TEMPORARIES, inner=inner))
        scopes = op.outputs.get("StepScopes") or op.outputs.get("Scope") or op.outputs.get("step_scopes") or ()
        kept = _kept_by_rounds(op, block) if scopes else 0
        for name in dict.fromkeys((*op.output_names(), *sorted(writes))):
            variable = self.block.find(name)
            if variable is None:
                continue
            if variable.persistable:
                if name not in self.current:
                    self.current[name] = self._enter(name)
                continue
            before = self.current.get(name)
            if before is not None:  # a block may run not at all, so that what was there before is needed up to here
                before = before.root()
                _needed_at(before, position)
            spec = self._spec(variable)
            if spec.kind is LOD_TENSOR_ARRAY and before is not None:
                before.size = before.size + _array_bytes(op, name)
                continue
            size = kept if spec.kind is STEP_SCOPES else _array_bytes(op, name) if spec.kind is LOD_TENSOR_ARRAY else self.sizes.of(op, name, spec)
            self.current[name] = self._new(position, op, name, variable, size)

    def merge(self) -> None:
        """Let results take over the memory of operands that nothing needs after them; then say what each record is for."""
        taken: set[tuple[int, int]] = set()
        for position, held, record in self._reuse:
            held, record = held.root(), record.root()
            if held is record or held.fixed or held.last != position or record.first != position or not _same(held.size, record.size):
                continue
            if (position, id(held)) in taken:  # two results of one op may not both have it, even if one of them is never read
                continue
            taken.add((position, id(held)))
            record.shares = held
            held.elements += record.elements
            held.last = max(held.last, record.last)
            held.names += record.names
            held.fixed = held.fixed or record.fixed
            if record.what is GRADIENTS:
                held.what = GRADIENTS
        for record in self.records:
            if record.shares is None and record.what is TEMPORARIES and record.op is not None and not record.op.role & Role.BACKWARD:
                ops = self.block.ops
                if record.last < len(ops) and ops[record.last].role & Role.BACKWARD:
                    record.what = KEPT


def _same(a: Size, b: Size) -> bool:
    return a == b if isinstance(a, int) or isinstance(b, int) else a is b


def _is_parameter_gradient(block: Block, name: str) -> bool:
    of = block.find(name.partition(GRAD)[0]) if GRAD in name else None
    return of is not None and of.is_parameter


def _is_view(block: Block, op: Op, source: str, spec: Spec) -> bool:
    """Whether a result that may be a view is one: a gradient of another number of elements was summed or spread instead."""
    of = block.find(source)
    operator = op.operator
    if of is None or of.spec.dims is None or spec.dims is None or operator is None:
        return False
    return type(operator).forward_class is None or _same(product(of.spec.dims), product(spec.dims))


def _needed_at(record: Record, position: int) -> None:
    """A record, and what an array in it holds, are needed at a position."""
    record.last = max(record.last, position)
    waiting = list(record.elements)
    seen = {id(record)}
    while waiting:
        one = waiting.pop().root()
        if id(one) not in seen:
            seen.add(id(one))
            one.last = max(one.last, position)
            waiting += one.elements


def _element(op: Op, result: Result) -> str | None:
    """What an op that changes an array adds to it; one that takes an element out (Rest@GRAD) adds none."""
    return None if result.name.startswith("Rest") else op.input("Out@GRAD") or op.input("X")


def _tensor_bytes(block: Block, name: str) -> Size:
    variable = block.find(name)
    return variable.spec.nbytes if variable is not None and variable.spec.dims is not None and variable.spec.dtype is not None else 0


def _array_bytes(op: Op, name: str) -> Size:
    """What the rounds of an op's block add to an array."""
    total: Size = 0
    block = sub_block(op)
    for inner in block.ops:
        operator = inner.operator
        if operator is None:
            continue
        if operator.sub_blocks:
            total = total + _array_bytes(inner, name)
            continue
        for result in operator.schema.results:
            element = _element(inner, result)
            if result.name in operator.accumulates and element is not None and name in inner.outputs.get(result.name, ()):
                total = total + _tensor_bytes(block, element)
    return total if isinstance(total, int) and not total else total * rounds_of(op)


def rounds_of(op: Op) -> Size:
    """How often an op runs its block: a symbol where only the run tells."""
    operator = op.operator
    assert operator is not None
    if operator.region.startswith("conditional"):
        return 1
    if operator.region.startswith("recurrent"):
        first = op.block.var(names_in(op, "inputs")[0]).spec
        if first.lod is None:
            return first.known_dims[0]
    scopes = next((n for slot in ("StepScopes", "step_scopes") for n in (op.output(slot), op.input(slot)) if n), op.type)
    return symbol(f"{scopes}.rounds"[:512])


def _kept_by_rounds(op: Op, block: Block) -> Size:
    total: Size = 0
    inputs = names_in(op, "inputs")
    first = op.block.var(inputs[0]).spec if inputs else None
    for name in saved_names(block):
        variable = block.find(name)
        if variable is None or variable.spec.kind is not LOD_TENSOR or variable.spec.dims is None or variable.spec.dtype is None:
            continue
        dims = variable.spec.dims
        if first is not None and first.lod is not None and dims and not isinstance(dims[0], int):
            total = total + product((first.known_dims[0], *dims[1:])) * variable.spec.dtype.itemsize  # as many rows as all steps have together
        else:
            total = total + variable.spec.nbytes * rounds_of(op)
    return total


def number(size: Size, values: Mapping[str, int]) -> int:
    """A size as a number, where every symbol has a value."""
    found = evaluate(size, values)
    if found < 0:
        raise MemoryPlanError(f"with these values {size} bytes would be {found}, which no tensor has")
    return found
