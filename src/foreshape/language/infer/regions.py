"""Inference through the blocks of ops: to a fixed point for loops, joined for branches, slice by slice for recurrences."""

from __future__ import annotations

from collections.abc import Callable

from foreshape.core.dims import Size, equal, symbol, symbols_of
from foreshape.core.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, Spec
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.infer.loop_state import (
    GRAD,
    carried_names,
    check_condition,
    forgets_placeholder,
    join,
    names_in,
    refused,
    set_spec,
    setting,
    spec_at_the_end,
    sub_block,
    written_before,
)
from foreshape.language.infer.loops import SCOPES, infer_while
from foreshape.language.infer.rules import Answer
from foreshape.language.infer.walk import Walk, walk_block
from foreshape.language.operator.require import Condition
from foreshape.language.program.block import Block
from foreshape.language.program.names import names_of
from foreshape.language.program.op import EMPTY, Op
from foreshape.language.program.variable import Variable


def infer_region(op: Op) -> Answer:
    """Infer the block of an op and set its outside results; returns the specs of the op's own results (None: set already)."""
    program = op.block.program
    walk = program.inference.walk
    if walk is not None:
        return walk.through(op, _inferred)
    program.inference.walk = Walk(program)
    try:
        return _inferred(op)
    finally:
        program.inference.walk = None


def _inferred(op: Op) -> Answer:
    operator, walk = op.operator, op.block.program.inference.walk
    assert operator is not None
    assert walk is not None
    form = _FORMS.get(operator.region)
    if form is None:
        raise SchemaError(f"{op.type}: there is no form of running a block that is called {operator.region!r}")
    specs = form(op, walk)
    return Answer(tuple(specs.get(r.name) for r in operator.schema.results), ())


# --- branches


def _infer_conditional(op: Op, walk: Walk) -> dict[str, Spec]:
    if setting(op, "is_scalar_condition"):
        if not names_in(op, "Cond"):
            raise refused(op, "the input Cond is missing", SchemaError)
        for name in names_in(op, "Cond"):
            check_condition(op, op.block.var(name), "Cond")
    carried = [op.block.var(n) for n in carried_names(op)]
    entries = {v.name: v.spec.like() for v in carried if written_before(op, v.name)}
    for v in carried:
        if v.name in entries:
            set_spec(v, entries[v.name])
    _walk_branch(sub_block(op))
    forgets: list[str] = []
    for v in carried:
        if v.name in entries and v.known:
            if forgets_placeholder(op, v, entries[v.name], v.spec):
                forgets.append(v.name)
                set_spec(v, v.spec.like(), op)
            else:
                set_spec(v, join(op, v, entries[v.name], v.spec, "either"), op)
        if v.op is None and v.block is op.block and v.name not in entries and v.name in op.output_names():
            v.op = op
    op.forgets = frozenset(forgets)
    return {"Scope": SCOPES}


def _walk_branch(block: Block) -> None:
    """Infer the ops of a block that may not run: their demands on sizes are checked when they run, not for every feed."""
    program = block.program
    guards = program.inference.guards
    program.inference.guards = guards.copy()
    try:
        walk_block(block)
    finally:
        program.inference.guards = guards


# --- recurrences


def _infer_recurrent(op: Op, walk: Walk) -> dict[str, Spec]:
    block = sub_block(op)
    sequences = [op.block.var(n) for n in names_in(op, "inputs")]
    initial = [op.block.var(n) for n in names_in(op, "initial_states")]
    previous, new = setting(op, "ex_states"), setting(op, "states")
    if not sequences:
        raise refused(op, "a recurrence needs an input with time steps", SchemaError)
    if not len(initial) == len(previous) == len(new):
        raise refused(op, f"there are {len(initial)} initial_states, {len(previous)} ex_states and {len(new)} states, which must be as many", SchemaError)
    first = sequences[0].spec
    lod = first.lod
    for v in sequences:
        if v.spec.dims is None or len(v.spec.dims) < (1 if lod is not None else 2):
            raise refused(op, f"an input of a recurrence is [time, batch, *row], or ragged rows; {v.name} is {v.spec.text()}")
        if (v.spec.lod is None) != (lod is None):
            raise refused(op, f"all inputs of a recurrence are ragged or none is; {v.name} is {v.spec.text()}, {sequences[0].name} is {first.text()}")
        for axis, unit in enumerate(("rows",) if lod is not None else ("steps", "examples")):
            _must_equal(op, v.spec.known_dims[axis], first.known_dims[axis], f"all inputs of a recurrence must have as many {unit}")
    called = (names_in(op, "outputs") or (op.type,))[0]
    alive: Size = symbol(f"{called}.alive"[:512]) if lod is not None else first.known_dims[1]
    if lod is not None:
        op.block.program.inference.guards.made.update(symbols_of(alive))
    for v in sequences:
        dims = v.spec.known_dims
        set_spec(block.var(v.name), Spec(LOD_TENSOR, v.spec.dtype, (alive, *dims[1:]) if lod is not None else dims[1:]))
    for v, name in zip(initial, previous, strict=True):
        spec = v.spec
        if lod is not None:
            if not spec.dims:
                raise refused(op, f"an initial state of a ragged recurrence has one row per sequence; {v.name} is {spec.text()}")
            _must_equal(op, spec.dims[0], lod.counts[-1], f"the initial state {v.name} must have one row per sequence")
            spec = spec.dense((alive, *spec.dims[1:]))
        set_spec(block.var(name), spec.like())
    walk_block(block)
    for ex, name in zip(previous, new, strict=True):
        entry, leave = block.var(ex).spec, block.var(name).spec
        if entry.dims is None or leave.dims is None:
            continue
        if entry.dtype is not leave.dtype or len(entry.dims) != len(leave.dims):
            raise refused(op, f"a state must keep its element type and number of dims: {ex} is {entry.text()}, the new one, {name}, is {leave.text()}")
        for axis, (a, b) in enumerate(zip(entry.dims, leave.dims, strict=True)):
            _must_equal(op, b, a, f"a state must keep its shape: {ex} is {entry.text()}, the new one, {name}, is {leave.text()}, at dim {axis}")
    for name in names_in(op, "outputs"):
        if name not in block.vars:
            raise refused(op, f"the output {name} must be a variable of the recurrence's block", SchemaError)
        spec, outer = block.vars[name].spec, op.block.vars.get(name)
        if spec.dims is None:
            continue
        result_dims: tuple[Size, ...] = (first.known_dims[0], *spec.dims)
        if lod is not None:
            if not spec.dims or equal(spec.dims[0], alive) is not True:
                raise refused(op, f"an output of a ragged recurrence has one row per sequence at each step; {name} is {spec.text()}")
            result_dims = (first.known_dims[0], *spec.dims[1:])
        result_spec = Spec(LOD_TENSOR, spec.dtype, result_dims, lod)
        if outer is None:
            outer = op.block.create_variable(name, result_spec, site=op.site)
        set_spec(outer, result_spec)
        if outer.op is None:
            outer.op = op
    return {"step_scopes": SCOPES}


def _must_equal(op: Op, a: Size, b: Size, words: str) -> None:
    answer = equal(a, b)
    if answer is False:
        raise refused(op, f"{words}; seen {a} and {b}")
    if answer is None:
        try:
            op.block.program.inference.guards.add(Condition(a, "==", b, words), op.type, op.call_site)
        except ShapeError as error:
            raise refused(op, str(error)) from None


# --- backward blocks


def _infer_gradient(*slots: str, through: Callable[[Block], None] = walk_block) -> Callable[[Op, Walk], dict[str, Spec]]:
    def infer(op: Op, walk: Walk) -> dict[str, Spec]:
        block = sub_block(op)
        if not 0 <= block.forward_idx < len(op.block.program.blocks):
            raise refused(op, f"the block of {op.type} must say which block it undoes", SchemaError)
        forward = op.block.program.blocks[block.forward_idx]
        around: dict[Variable, Spec] = {}
        for name in names_in(op, "Out" + GRAD):  # the gradient of a skipped branch has the shape of the other branch's
            result_gradient, forward_variable = op.block.vars.get(name), op.block.find(name.partition(GRAD)[0])
            if (
                result_gradient is not None
                and forward_variable is not None
                and result_gradient.known
                and forward_variable.known
                and result_gradient.kind is forward_variable.kind
            ):
                set_spec(result_gradient, forward_variable.spec.like())
                if name == forward_variable.name + GRAD and name not in block.vars and name in names_of(block).outer_reads:
                    around[result_gradient] = result_gradient.spec
                    set_spec(result_gradient, spec_at_the_end(forward, forward_variable).like())
        for name in entering(block):
            variable = block.vars[name]
            forward_variable = block.find(name.removesuffix(GRAD))
            if name.endswith(GRAD) and forward_variable is not None:
                set_spec(variable, spec_at_the_end(forward, forward_variable).like())
        through(block)
        for result_gradient, spec in around.items():
            set_spec(result_gradient, spec)
        entry_specs = _in_the_beginning(forward)
        for slot in slots:
            gradients = op.outputs.get(slot + GRAD, ())
            if gradients and len(gradients) != len(names_in(op, slot)):
                raise refused(op, f"{slot}{GRAD} has {len(gradients)} names for the {len(names_in(op, slot))} of {slot}", SchemaError)
            for name, gradient in zip(names_in(op, slot), gradients, strict=False):
                forward_variable, out = op.block.find(name), op.block.find(gradient) if gradient != EMPTY else None
                if forward_variable is None or gradient == EMPTY:
                    continue
                inner, was = block.vars.get(name + GRAD), entry_specs.get(name, forward_variable.entry_spec)
                kind = inner.spec.kind if inner is not None and inner.spec.kind is not LOD_TENSOR_ARRAY else was.kind
                spec = was.like() if kind is was.kind else Spec(kind, was.dtype, was.dims)
                if out is None:
                    out = op.block.create_variable(gradient, spec, site=op.site)
                set_spec(out, spec, op)
                if out.op is None and out.block is op.block and gradient not in op.input_names():
                    out.op = op
        return {}

    return infer


def _in_the_beginning(forward: Block) -> dict[str, Spec]:
    """Return the specs of variables before the op of a block, if they change in it or later."""
    out: dict[str, Spec] = {}
    for op in forward.parent.ops if forward.parent is not None else ():
        if forward.idx in op.attributes.sub_blocks:
            break
        out.update(op.made)
    return out


def entering(block: Block) -> list[str]:
    """Return the variables of a block read before they are written: its inputs by name."""
    written: set[str] = set()
    out: dict[str, None] = {}
    for op in block.ops:
        out.update(dict.fromkeys(n for n in sorted(op.all_reads()) if n in block.vars and n not in written))
        written |= op.all_writes()
    return list(out)


_FORMS: dict[str, Callable[[Op, Walk], dict[str, Spec]]] = {
    "while": infer_while,
    "while_grad": _infer_gradient("X"),
    "conditional": _infer_conditional,
    "conditional_grad": _infer_gradient("Input", through=_walk_branch),
    "recurrent": _infer_recurrent,
    "recurrent_grad": _infer_gradient("inputs", "initial_states", "parameters"),
}
