"""The variables around a block: those carried by its op, and their specs after it."""

from __future__ import annotations

from functools import partial
from itertools import takewhile
from operator import is_not
from typing import Any

from foreshape.core.dims import Size, equal, product, symbol, symbols_of
from foreshape.core.spec import LOD_TENSOR, Lod, Spec
from foreshape.errors import DescriptionError, SchemaError, ShapeError, TypeMismatchError
from foreshape.language.operator.require import RuleError
from foreshape.language.program.block import Block
from foreshape.language.program.messages import describe_failure
from foreshape.language.program.names import names_of
from foreshape.language.program.op import Op
from foreshape.language.program.variable import Variable

GRAD = "@GRAD"


def sub_block(op: Op) -> Block:
    """Return the block of an op. Raises `SchemaError` if the program has no such block."""
    blocks, indices = op.block.program.blocks, op.sub_block_indices()
    if not indices or not 0 < indices[0] < len(blocks) or indices[0] == op.block.idx:
        raise refused(op, f"{op.type} runs a block of the program; there is no block {indices}", SchemaError)
    return blocks[indices[0]]


def names_in(op: Op, slot: str) -> tuple[str, ...]:
    """Return the names in an input or output slot, `EMPTY` ones included."""
    names = op.inputs.get(slot)
    return names if names is not None else op.outputs.get(slot, ())


def setting(op: Op, name: str) -> Any:
    """Return the value of an attribute, its default if a file has none."""
    return getattr(op.operator, name)


def carried_names(op: Op) -> list[str]:
    """Return the names written outside by the block of an op: Out first, in order, then others in order of writing."""
    names = names_of(sub_block(op))
    out = dict.fromkeys(n for n in names_in(op, "Out") if n in names.outer_writes)
    out.update((n, None) for n in names.in_order if n in names.outer_writes)
    return list(out)


def saved_names(forward: Block) -> list[str]:
    """Return the names read by the blocks of the backward pass: results of the block, and former values of overwritten outside variables.

    A counter raised by a block, and lowered by its backward block, is not saved: it is there.
    """
    blocks = forward.program.blocks
    undoing = [b for b in blocks if b.forward_idx == forward.idx]
    writes = forward.outer_names()[1]
    back = {n for b in undoing for n in b.outer_names()[1]}
    reads = [n for b in undoing for n in sorted(b.forward_names())]
    return [n for n in dict.fromkeys(reads) if n in forward.vars or (n in writes and n not in back)]


def written_before(op: Op, name: str) -> bool:
    """Tell whether a variable has a value before an op of its block, or of a block within it."""
    block = op.block
    for earlier in block.ops:
        if earlier is op:
            break
        if name in earlier.output_names() or (earlier.attributes.sub_blocks and name in earlier.all_writes()):
            return True
    variable = block.vars.get(name)
    return variable is None or variable.persistable or variable.need_check_feed or variable.value is not None


def is_placeholder(op: Op, name: str) -> bool:
    """Tell whether a variable holds a constant of an op without operands before an op, perhaps only as a placeholder."""
    block: Block | None = op.block
    end: Op | None = op
    while block is not None:
        writers = [o for o in takewhile(partial(is_not, end), block.ops) if name in o.all_writes()]
        if writers:
            return not writers[-1].attributes.sub_blocks and not list(writers[-1].input_names())
        if name in block.vars:
            return False
        inner, block = block.idx, block.parent
        end = next((o for o in block.ops if inner in o.attributes.sub_blocks), None) if block is not None else None  # None: it is being described
    return False


def forgets_placeholder(op: Op, v: Variable, entry: Spec, leave: Spec) -> bool:
    """Tell whether an op's block replaces a placeholder by a dense tensor of another rank or element type.

    The placeholder is given up: if a run never writes the variable, it has no value, and its readers say so. So no op of
    the block may read it before a possible write: it could never run.
    """
    if v.persistable or is_of_one_form(entry, leave) or entry.kind is not LOD_TENSOR or leave.kind is not LOD_TENSOR:
        return False
    conditions = (*names_in(op, "Condition"), *names_in(op, "Cond"))
    return v.name not in conditions and v.name not in names_of(sub_block(op)).early and is_placeholder(op, v.name)


def refused(op: Op, words: str, error: type[DescriptionError] = ShapeError, slot: str = "") -> Exception:
    """Return the error of an op with a block, in terms of its slots."""
    views = {slot: [v for n in names if (v := op.block.find(n)) is not None] for slot, names in op.inputs.items()}
    return describe_failure(RuleError(words, {slot: None} if slot else {}, error), op.type, views, op.call_site)


def set_spec(variable: Variable, spec: Spec, maker: Op | None = None) -> None:
    """Set the spec of a variable after the op that makes it so."""
    if maker is not None:
        note_made(maker, variable, spec)
    variable.inferred_spec = spec
    variable.known = True


def check_condition(op: Op, condition: Variable, slot: str) -> None:
    """Refuse a condition other than one truth value."""
    spec = condition.spec
    if spec.dims is None or spec.kind is not LOD_TENSOR:
        return
    if spec.dtype is not None and spec.dtype.family != "bool":
        raise refused(op, f"{slot} must be bool, not {spec.dtype.name}", TypeMismatchError, slot)
    if equal(product(spec.dims), 1) is False:
        raise refused(op, f"{slot} must hold one truth value", slot=slot)


def note_made(op: Op, variable: Variable, spec: Spec) -> None:
    """Note the spec of a variable at each of its writers, if there is more than one."""
    name, first = variable.name, variable.op
    previous = variable.inferred_spec
    if previous is not None and previous is not spec and (first is None or first.is_feed) and previous.kind is LOD_TENSOR:
        changed = (previous.dims, previous.dtype, previous.lod) != (spec.dims, spec.dtype, spec.lod)
        if changed and previous.dims and variable.known and variable.block.parent_idx < 0:
            variable.block.program.inference.entry_specs.setdefault(variable, previous)
    if first is op or (first is None and variable.block is op.block and variable not in op.block.program.inference.entry_specs):
        if name in op.made:
            op.made.pop(name)
        return
    op.made[name] = spec
    if first is not None and previous is not None and previous is not spec and name not in first.made and variable.known and not _is_within(op, first):
        first.made[name] = previous


def _is_within(op: Op, owner: Op) -> bool:
    """Tell whether an op is in a block of another op, so that its results are the other's, too."""
    runs = owner.attributes.sub_blocks
    block: Block | None = op.block if runs else None
    while block is not None and block is not owner.block:
        if block.idx in runs:
            return True
        block = block.parent
    return False


def spec_at_the_end(forward: Block, variable: Variable) -> Spec:
    """Return the spec of a variable at the end of a round: its last writer's result, not joined with the former spec."""
    last = next((op for op in reversed(forward.ops) if variable.name in op.all_writes()), None)
    return variable.spec if last is None else last.made.get(variable.name, variable.spec)


# --- the join of two branches


def joined_sources(name: str) -> tuple[str, str]:
    """Return the names for the sequences of a variable before a block and after it, if they differ."""
    return f"{name}.loop", f"{name}.either"


def is_one_number(spec: Spec) -> bool:
    """Tell whether a value is dense with one element, whose rank may vary between rounds, as ``[]`` and ``[1]``."""
    return spec.kind is LOD_TENSOR and spec.lod is None and spec.dims is not None and all(equal(d, 1) is True for d in spec.dims)


def is_of_one_form(a: Spec, b: Spec) -> bool:
    """Tell whether two specs differ at most in sizes, so that one spec can cover both."""
    if a.kind is not b.kind or a.dtype is not b.dtype:
        return False
    if a.dims is None or b.dims is None:
        return True
    if len(a.dims) != len(b.dims):
        return is_one_number(a) and is_one_number(b)
    return a.lod is None or (b.lod is not None and len(a.lod.counts) == len(b.lod.counts))


def join(op: Op, v: Variable, entry: Spec, leave: Spec, construct: str) -> Spec:
    """Return a spec for a variable of either spec: differing sizes become a symbol of its own; one number has the higher rank.

    Raises:
        ShapeError, TypeMismatchError: another rank, element type or kind; these are fixed for a value.
    """
    if leave is entry or leave.like() is entry:
        return entry
    if entry.dims is None:
        return leave.like()
    if leave.dims is None:
        return entry
    site = writer_site(op, v.name)
    difference = f"it is {entry.text()} {'before' if construct == 'loop' else 'otherwise'}, and {leave.text()} after the block{site}"
    if entry.kind is not leave.kind or entry.dtype is not leave.dtype:
        raise refused(op, f"{v.name} must keep its kind and element type: {difference}", TypeMismatchError)
    if len(entry.dims) != len(leave.dims):
        if v.persistable or not (is_one_number(entry) and is_one_number(leave)):
            raise refused(op, f"{v.name} must keep its number of dims: {difference}")
        return entry if len(entry.dims) > len(leave.dims) else leave.like()
    dims = tuple(_either(op, a, b, own_size(v.name, construct, axis)) for axis, (a, b) in enumerate(zip(entry.dims, leave.dims, strict=True)))
    if v.persistable and dims != entry.dims:
        raise refused(op, f"{v.name} is kept from run to run and must stay {entry.text()}; the block makes it {leave.text()}{site}")
    lod = entry.lod
    if lod is not None and leave.lod is not lod:
        if leave.lod is None or len(leave.lod.counts) != len(lod.counts):
            raise refused(op, f"{v.name} must keep its levels of sequences: {difference}")
        counts = tuple(_either(op, a, b, own_count(v.name, construct, k)) for k, (a, b) in enumerate(zip(lod.counts, leave.lod.counts, strict=True)))
        lod = Lod(f"{v.name}.{construct}", counts)
    elif lod is None and leave.lod is not None:
        lod = None  # dense before the block: nothing is known of sequences after it
    return Spec(entry.kind, entry.dtype, dims, lod)


def own_size(name: str, construct: str, axis: int) -> Size:
    """Return a variable's own symbol for a size that varies."""
    return symbol(f"{name}.{construct}{axis}"[:512])


def own_count(name: str, construct: str, level: int) -> Size:
    """Return a variable's own symbol for a number of sequences that varies."""
    return symbol(f"{name}.{construct}.level{level}"[:512])


def _either(op: Op, a: Size, b: Size, varying: Size) -> Size:
    if a is b or equal(a, b) is True:
        return a
    op.block.program.inference.guards.made.update(symbols_of(varying))
    return varying


def writer_site(op: Op, name: str) -> str:
    """Return the place at which the block of an op writes a name, for the end of a sentence."""
    words = ""
    for inner in sub_block(op).ops:
        if name in inner.output_names() and inner.call_site is not None:
            words = f", written at {inner.call_site.short()}"
    return words
