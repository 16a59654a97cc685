"""Inference through the blocks that ops run: to a fixed point for loops, joined for branches, slice by slice for recurrences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from foreshape.dims import Size, equal, is_symbol, product, substitute, symbol
from foreshape.errors import DescriptionError, SchemaError, ShapeError, TypeMismatchError
from foreshape.infer.messages import describe_failure
from foreshape.infer.rules import Answer
from foreshape.ops.require import Condition, RuleError
from foreshape.program.block import Block
from foreshape.program.op import EMPTY, Op
from foreshape.program.variable import Variable
from foreshape.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, STEP_SCOPES, Lod, Spec

GRAD = "@GRAD"
SCOPES = Spec(STEP_SCOPES, None, None)
MAX_ROUNDS = 200
"""A loop's shapes are stable long before this many rounds, since each dim is widened once."""


def sub_block(op: Op) -> Block:
    """The block that an op runs. Raises `SchemaError` where the program has no such block."""
    blocks, indices = op.block.program.blocks, op.sub_block_indices()
    if not indices or not 0 < indices[0] < len(blocks) or indices[0] == op.block.idx:
        raise _error(op, f"{op.type} runs a block of the program; there is no block {indices}", SchemaError)
    return blocks[indices[0]]


def names_in(op: Op, slot: str) -> tuple[str, ...]:
    """The names in an input or output slot, `EMPTY` ones included."""
    found = op.inputs.get(slot)
    return found if found is not None else op.outputs.get(slot, ())


def setting(op: Op, name: str) -> Any:
    """The value of an attribute, its default where a file does not say it."""
    return getattr(op.operator, name)


def carried_names(op: Op) -> list[str]:
    """What the block of an op writes outside: the names of Out first, in their order, then others in order of writing."""
    block = sub_block(op)
    writes = block.outer_names()[1]
    out = dict.fromkeys(n for n in names_in(op, "Out") if n in writes)
    for inner in block.ops:
        out.update(dict.fromkeys(n for n in _in_order(inner) if n in writes))
    return list(out)


def _in_order(op: Op) -> Iterator[str]:
    yield from op.output_names()
    for index in op.sub_block_indices():
        for inner in op.block.program.blocks[index].ops:
            yield from _in_order(inner)


def saved_names(forward: Block) -> list[str]:
    """What the blocks that undo a block read of it: what it made itself, and what the variables that it writes outside held before.

    A variable that a block counts on, and that the block which undoes it counts back, is not kept: it is there.
    """
    blocks = forward.program.blocks
    undoing = [b for b in blocks if b.forward_idx == forward.idx]
    writes = forward.outer_names()[1]
    back = {n for b in undoing for n in b.outer_names()[1]}
    reads = [n for b in undoing for n in sorted(b.forward_names())]
    return [n for n in dict.fromkeys(reads) if n in forward.vars or (n in writes and n not in back)]


def infer_region(op: Op) -> Answer:
    """Infer the block of an op and set what it writes outside; returns the specs of the op's own results (None: set already)."""
    operator = op.operator
    assert operator is not None
    form = _FORMS.get(operator.region)
    if form is None:
        raise SchemaError(f"{op.type}: there is no form of running a block that is called {operator.region!r}")
    given = form(op)
    return Answer(tuple(given.get(r.name) for r in operator.schema.results), ())


def _error(op: Op, words: str, error: type[DescriptionError] = ShapeError, slot: str = "") -> Exception:
    views = {slot: [v for n in names if (v := op.block.find(n)) is not None] for slot, names in op.inputs.items()}
    return describe_failure(RuleError(words, {slot: None} if slot else {}, error), op.type, views, op.call_site)


def _walk(block: Block) -> None:
    """Infer the ops of a block in order; what depends on an operator that is not known is marked so."""
    from foreshape.program.program import mark_unknown

    unknown = False
    for op in block.ops:
        if op.attributes.operator is None and op.attributes.error is None:
            mark_unknown(op)
            unknown = True
        elif unknown and any(not v.known for v in op.input_variables()):
            mark_unknown(op)
        else:
            block.infer_op(op)


def _set(variable: Variable, spec: Spec) -> None:
    variable._spec = spec  # pyright: ignore[reportPrivateUsage]
    variable._known = True  # pyright: ignore[reportPrivateUsage]


def _variables(op: Op, names: list[str]) -> list[Variable]:
    return [op.block.var(n) for n in names]


def written_before(op: Op, name: str) -> bool:
    """Whether a variable has a value when an op of its block, or of one inside of it, is reached."""
    block = op.block
    for other in block.ops:
        if other is op:
            break
        if name in other.output_names() or (other.sub_block_indices() and name in other.all_writes()):
            return True
    variable = block.vars.get(name)
    return variable is None or variable.persistable or variable.need_check_feed or variable.value is not None


# --- loops


def _infer_while(op: Op) -> dict[str, Spec]:
    block, program = sub_block(op), op.block.program
    condition = op.block.var(names_in(op, "Condition")[0]) if names_in(op, "Condition") else None
    if condition is None:
        raise _error(op, "the input Condition is missing", SchemaError)
    _check_condition(op, condition, "Condition")
    carried = _variables(op, carried_names(op))
    if not any(v is condition for v in carried):
        raise _error(op, f"the loop's block must write its condition, {condition.name}, or it would never end", SchemaError, "Condition")
    begun = {v.name: written_before(op, v.name) for v in carried}
    before = program._guards  # pyright: ignore[reportPrivateUsage]
    for _ in range(MAX_ROUNDS):
        program._guards = before.copy()  # pyright: ignore[reportPrivateUsage]
        entries: dict[str, Spec] = {}
        for v in carried:
            if begun[v.name]:
                _set(v, v.spec.like())
                entries[v.name] = v.spec
        _walk(block)
        changed = False
        leaves = {v.name: v.spec for v in carried}
        for v in carried:
            if v.name not in entries:
                entries[v.name], begun[v.name] = v.spec.like(), True
                changed = True
            widened = join(op, v, entries[v.name], v.spec, "loop")
            changed = changed or widened is not entries[v.name]
            _set(v, widened)
        if not changed:
            for v in carried:
                _check_every_round(op, v, entries[v.name], leaves[v.name])
            _check_guards_every_round(op, carried, entries, leaves, len(before))
            return {"StepScopes": SCOPES}
    raise _error(op, "the shapes of the loop's variables do not settle")


def _check_every_round(op: Op, v: Variable, entry: Spec, leave: Spec) -> None:
    """What the block requires of a variable when a round begins must hold of what the round before has made of it."""
    known = op.block.program._guards.known  # pyright: ignore[reportPrivateUsage]
    for axis, (a, b) in enumerate(zip(entry.dims or (), leave.dims or (), strict=False)):
        if not isinstance(a, int) and a is not b:
            required = substitute(a, known)
            if required is not a and equal(required, substitute(b, known)) is False:
                words = f"dim {axis} of {v.name} must be {required} in every round, as the block needs it; a round makes it {b}"
                raise _error(op, words + _writer_site(op, v.name))


def _check_guards_every_round(op: Op, carried: Sequence[Variable], entries: Mapping[str, Spec], leaves: Mapping[str, Spec], begin: int) -> None:
    """The conditions that the block left open must not be broken by what a round makes of what it began with."""
    made: dict[str, tuple[Variable, int, Size]] = {}
    for v in carried:
        for axis, (a, b) in enumerate(zip(entries[v.name].dims or (), leaves[v.name].dims or (), strict=False)):
            if is_symbol(a) and a is not b:
                made[str(a)] = v, axis, b
    becomes = {name: size for name, (_, _, size) in made.items()}
    for guard in islice(op.block.program._guards, begin, None) if made else ():  # pyright: ignore[reportPrivateUsage]
        touched = sorted(guard.condition.symbols & becomes.keys())
        if touched and guard.condition.answer(becomes) is False:
            v, axis, size = made[touched[0]]
            words = f"{guard.op_type}: {guard.condition.requirement} in every round: {guard.condition}; a round makes dim {axis} of {v.name} {size}"
            raise _error(op, words + _writer_site(op, v.name))


def _check_condition(op: Op, condition: Variable, slot: str) -> None:
    spec = condition.spec
    if spec.dims is None or spec.kind is not LOD_TENSOR:
        return
    if spec.dtype is not None and spec.dtype.family != "bool":
        raise _error(op, f"{slot} must be bool, not {spec.dtype.name}", TypeMismatchError, slot)
    if equal(product(spec.dims), 1) is False:
        raise _error(op, f"{slot} must hold one truth value", slot=slot)


def joined_sources(name: str) -> tuple[str, str]:
    """What the sequences of a variable are called where those that a block gives it are not those that it had."""
    return f"{name}.loop", f"{name}.either"


def join(op: Op, v: Variable, entry: Spec, leave: Spec, what: str) -> Spec:
    """What is known of a variable that has either spec: sizes in which they differ become a symbol of its own.

    Raises:
        ShapeError, TypeMismatchError: another rank, element type or kind, which no value may change.
    """
    if leave is entry or leave.like() is entry:
        return entry
    if entry.dims is None:
        return leave.like()
    if leave.dims is None:
        return entry
    site = _writer_site(op, v.name)
    seen = f"it is {entry.text()} {'before' if what == 'loop' else 'otherwise'}, and {leave.text()} after the block{site}"
    if entry.kind is not leave.kind or entry.dtype is not leave.dtype:
        raise _error(op, f"{v.name} must keep its kind and element type: {seen}", TypeMismatchError)
    if len(entry.dims) != len(leave.dims):
        raise _error(op, f"{v.name} must keep its number of dims: {seen}")
    dims = tuple(_either(a, b, f"{v.name}.{what}{axis}") for axis, (a, b) in enumerate(zip(entry.dims, leave.dims, strict=True)))
    if v.persistable and dims != entry.dims:
        raise _error(op, f"{v.name} is kept from run to run and must stay {entry.text()}; the block makes it {leave.text()}{site}")
    lod = entry.lod
    if lod is not None and leave.lod is not lod:
        if leave.lod is None or len(leave.lod.counts) != len(lod.counts):
            raise _error(op, f"{v.name} must keep its levels of sequences: {seen}")
        counts = tuple(_either(a, b, f"{v.name}.{what}.level{k}") for k, (a, b) in enumerate(zip(lod.counts, leave.lod.counts, strict=True)))
        lod = Lod(f"{v.name}.{what}", counts)
    elif lod is None and leave.lod is not None:
        lod = None  # dense before the block: nothing is known of sequences after it
    return Spec(entry.kind, entry.dtype, dims, lod)


def _either(a: Size, b: Size, name: str) -> Size:
    return a if a is b or equal(a, b) is True else symbol(name[:512])


def _writer_site(op: Op, name: str) -> str:
    found = ""
    for inner in sub_block(op).ops:
        if name in inner.output_names() and inner.call_site is not None:
            found = f", written at {inner.call_site.short()}"
    return found


# --- branches


def _infer_conditional(op: Op) -> dict[str, Spec]:
    for name in names_in(op, "Cond"):
        if setting(op, "is_scalar_condition"):
            _check_condition(op, op.block.var(name), "Cond")
    carried = _variables(op, carried_names(op))
    entries = {v.name: v.spec.like() for v in carried if written_before(op, v.name)}
    for v in carried:
        if v.name in entries:
            _set(v, entries[v.name])
    _walk(sub_block(op))
    for v in carried:
        if v.name in entries and v.known:
            _set(v, join(op, v, entries[v.name], v.spec, "either"))
        if v.op is None and v.block is op.block and v.name not in entries and v.name in op.output_names():
            v.op = op
    return {"Scope": SCOPES}


# --- recurrences


def _infer_recurrent(op: Op) -> dict[str, Spec]:
    block = sub_block(op)
    sequences = [op.block.var(n) for n in names_in(op, "inputs")]
    initial = [op.block.var(n) for n in names_in(op, "initial_states")]
    previous, new = setting(op, "ex_states"), setting(op, "states")
    if not sequences:
        raise _error(op, "a recurrence needs an input with time steps", SchemaError)
    if not len(initial) == len(previous) == len(new):
        raise _error(op, f"there are {len(initial)} initial_states, {len(previous)} ex_states and {len(new)} states, which must be as many", SchemaError)
    first = sequences[0].spec
    lod = first.lod
    for v in sequences:
        if v.spec.dims is None or len(v.spec.dims) < (1 if lod is not None else 2):
            raise _error(op, f"an input of a recurrence is [time, batch, *row], or ragged rows; {v.name} is {v.spec.text()}")
        if (v.spec.lod is None) != (lod is None):
            raise _error(op, f"all inputs of a recurrence are ragged or none is; {v.name} is {v.spec.text()}, {sequences[0].name} is {first.text()}")
        for axis, what in enumerate(("rows",) if lod is not None else ("steps", "examples")):
            _must_equal(op, v.spec.known_dims[axis], first.known_dims[axis], f"all inputs of a recurrence must have as many {what}")
    called = (names_in(op, "outputs") or (op.type,))[0]
    alive: Size = symbol(f"{called}.alive"[:512]) if lod is not None else first.known_dims[1]
    for v in sequences:
        dims = v.spec.known_dims
        _set(block.var(v.name), Spec(LOD_TENSOR, v.spec.dtype, (alive, *dims[1:]) if lod is not None else dims[1:]))
    for v, name in zip(initial, previous, strict=True):
        spec = v.spec
        if lod is not None:
            if not spec.dims:
                raise _error(op, f"an initial state of a ragged recurrence has one row per sequence; {v.name} is {spec.text()}")
            _must_equal(op, spec.dims[0], lod.counts[-1], f"the initial state {v.name} must have one row per sequence")
            spec = spec.dense((alive, *spec.dims[1:]))
        _set(block.var(name), spec.like())
    _walk(block)
    for ex, name in zip(previous, new, strict=True):
        entry, leave = block.var(ex).spec, block.var(name).spec
        if entry.dims is None or leave.dims is None:
            continue
        if entry.dtype is not leave.dtype or len(entry.dims) != len(leave.dims):
            raise _error(op, f"a state must keep its element type and number of dims: {ex} is {entry.text()}, the new one, {name}, is {leave.text()}")
        for axis, (a, b) in enumerate(zip(entry.dims, leave.dims, strict=True)):
            _must_equal(op, b, a, f"a state must keep its shape: {ex} is {entry.text()}, the new one, {name}, is {leave.text()}, at dim {axis}")
    for name in names_in(op, "outputs"):
        if name not in block.vars:
            raise _error(op, f"the output {name} must be a variable of the recurrence's block", SchemaError)
        spec, outer = block.vars[name].spec, op.block.vars.get(name)
        if spec.dims is None:
            continue
        whole: tuple[Size, ...] = (first.known_dims[0], *spec.dims)
        if lod is not None:
            if not spec.dims or equal(spec.dims[0], alive) is not True:
                raise _error(op, f"an output of a ragged recurrence has one row per sequence at each step; {name} is {spec.text()}")
            whole = (first.known_dims[0], *spec.dims[1:])
        made = Spec(LOD_TENSOR, spec.dtype, whole, lod)
        if outer is None:
            outer = op.block.create_variable(name, made, site=op.site)
        _set(outer, made)
        if outer.op is None:
            outer.op = op
    return {"step_scopes": SCOPES}


def _must_equal(op: Op, a: Size, b: Size, words: str) -> None:
    answer = equal(a, b)
    if answer is False:
        raise _error(op, f"{words}; seen {a} and {b}")
    if answer is None:
        try:
            op.block.program._guards.add(Condition(a, "==", b, words), op.type, op.call_site)  # pyright: ignore[reportPrivateUsage]
        except ShapeError as error:
            raise _error(op, str(error)) from None


# --- what undoes them


def _infer_gradient(*slots: str) -> Callable[[Op], dict[str, Spec]]:
    def infer(op: Op) -> dict[str, Spec]:
        block = sub_block(op)
        if not 0 <= block.forward_idx < len(op.block.program.blocks):
            raise _error(op, f"the block of {op.type} must say which block it undoes", SchemaError)
        for name in names_in(op, "Out" + GRAD):  # a branch that did not run leaves its gradient with the shape of the one that did
            given, of = op.block.vars.get(name), op.block.find(name.partition(GRAD)[0])
            if given is not None and of is not None and given.known and of.known and given.kind is of.kind:
                _set(given, of.spec.like())
        for name in entering(block):
            variable = block.vars[name]
            of = block.find(name.removesuffix(GRAD))
            if name.endswith(GRAD) and of is not None:
                _set(variable, of.spec.like())
        _walk(block)
        for slot in slots:
            gradients = op.outputs.get(slot + GRAD, ())
            if gradients and len(gradients) != len(names_in(op, slot)):
                raise _error(op, f"{slot}{GRAD} has {len(gradients)} names for the {len(names_in(op, slot))} of {slot}", SchemaError)
            for name, gradient in zip(names_in(op, slot), gradients, strict=False):
                of, out = op.block.find(name), op.block.find(gradient) if gradient != EMPTY else None
                if of is None or gradient == EMPTY:
                    continue
                inner = block.vars.get(name + GRAD)
                kind = inner.spec.kind if inner is not None and inner.spec.kind is not LOD_TENSOR_ARRAY else of.spec.kind
                spec = of.spec.like() if kind is of.spec.kind else Spec(kind, of.spec.dtype, of.spec.dims)
                if out is None:
                    out = op.block.create_variable(gradient, spec, site=op.site)
                _set(out, spec)
                if out.op is None and out.block is op.block and gradient not in op.input_names():
                    out.op = op
        return {}

    return infer


def entering(block: Block) -> list[str]:
    """The variables of a block that its ops read before they write them: what comes in by name when it is run."""
    written: set[str] = set()
    out: dict[str, None] = {}
    for op in block.ops:
        out.update(dict.fromkeys(n for n in sorted(op.all_reads()) if n in block.vars and n not in written))
        written |= op.all_writes()
    return list(out)


_FORMS: dict[str, Callable[[Op], dict[str, Spec]]] = {
    "while": _infer_while,
    "while_grad": _infer_gradient("X"),
    "conditional": _infer_conditional,
    "conditional_grad": _infer_gradient("Input"),
    "recurrent": _infer_recurrent,
    "recurrent_grad": _infer_gradient("inputs", "initial_states", "parameters"),
}
