"""What ops that run blocks have to do with the variables around these: which they carry, and what is known of them afterwards."""

from __future__ import annotations

from functools import partial
from itertools import takewhile
from operator import is_not
from typing import Any

from foreshape.dims import Size, equal, product, symbol, symbols_of
from foreshape.errors import DescriptionError, SchemaError, ShapeError, TypeMismatchError
from foreshape.operator.require import RuleError
from foreshape.program.block import Block
from foreshape.program.messages import describe_failure
from foreshape.program.names import names_of
from foreshape.program.op import Op
from foreshape.program.variable import Variable
from foreshape.spec import LOD_TENSOR, Lod, Spec

GRAD = "@GRAD"


def sub_block(op: Op) -> Block:
    """The block that an op runs. Raises `SchemaError` where the program has no such block."""
    blocks, indices = op.block.program.blocks, op.sub_block_indices()
    if not indices or not 0 < indices[0] < len(blocks) or indices[0] == op.block.idx:
        raise refused(op, f"{op.type} runs a block of the program; there is no block {indices}", SchemaError)
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
    names = names_of(sub_block(op))
    out = dict.fromkeys(n for n in names_in(op, "Out") if n in names.outer_writes)
    out.update((n, None) for n in names.in_order if n in names.outer_writes)
    return list(out)


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


def written_before(op: Op, name: str) -> bool:
    """Whether a variable has a value when an op of its block, or of one inside of it, is reached."""
    block = op.block
    for other in block.ops:
        if other is op:
            break
        if name in other.output_names() or (other.attributes.sub_blocks and name in other.all_writes()):
            return True
    variable = block.vars.get(name)
    return variable is None or variable.persistable or variable.need_check_feed or variable.value is not None


def is_placeholder(op: Op, name: str) -> bool:
    """Whether a variable holds what an op without operands made when an op is reached: a constant, which may stand there until it has a value."""
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
    """Whether an op's block makes a dense tensor of another rank or element type out of what stood for a variable that had no value yet.

    What stood there is given up: where nothing has written the variable in a run, it has no value, and whoever reads it says so. So no op of
    the block may read it where nothing can have written it before: that would never run.
    """
    if v.persistable or is_of_one_form(entry, leave) or entry.kind is not LOD_TENSOR or leave.kind is not LOD_TENSOR:
        return False
    asked = (*names_in(op, "Condition"), *names_in(op, "Cond"))
    return v.name not in asked and v.name not in names_of(sub_block(op)).early and is_placeholder(op, v.name)


def refused(op: Op, words: str, error: type[DescriptionError] = ShapeError, slot: str = "") -> Exception:
    """The error of an op that runs a block, in terms of its slots."""
    views = {slot: [v for n in names if (v := op.block.find(n)) is not None] for slot, names in op.inputs.items()}
    return describe_failure(RuleError(words, {slot: None} if slot else {}, error), op.type, views, op.call_site)


def set_spec(variable: Variable, spec: Spec, maker: Op | None = None) -> None:
    """Let this be what is known of a variable, after the op that makes it so."""
    if maker is not None:
        note_made(maker, variable, spec)
    variable._spec = spec  # pyright: ignore[reportPrivateUsage]
    variable._known = True  # pyright: ignore[reportPrivateUsage]


def check_condition(op: Op, condition: Variable, slot: str) -> None:
    """Refuse a condition that is not one truth value."""
    spec = condition.spec
    if spec.dims is None or spec.kind is not LOD_TENSOR:
        return
    if spec.dtype is not None and spec.dtype.family != "bool":
        raise refused(op, f"{slot} must be bool, not {spec.dtype.name}", TypeMismatchError, slot)
    if equal(product(spec.dims), 1) is False:
        raise refused(op, f"{slot} must hold one truth value", slot=slot)


def note_made(op: Op, variable: Variable, spec: Spec) -> None:
    """Let the ops that write a variable know what it is where they make it, if it is written by more than one."""
    name, first = variable.name, variable.op
    before = variable._spec  # pyright: ignore[reportPrivateUsage]
    if before is not None and before is not spec and (first is None or first.type == "feed") and before.kind is LOD_TENSOR:
        changed = (before.dims, before.dtype, before.lod) != (spec.dims, spec.dtype, spec.lod)
        if changed and before.dims and variable.known and variable.block.parent_idx < 0:
            variable.block.program.inference.entry_specs.setdefault(variable, before)
    if first is op or (first is None and variable.block is op.block and variable not in op.block.program.inference.entry_specs):
        if name in op.made:
            op.made.pop(name)
        return
    op.made[name] = spec
    if first is not None and before is not None and before is not spec and name not in first.made and variable.known and not _is_within(op, first):
        first.made[name] = before


def _is_within(op: Op, other: Op) -> bool:
    """Whether an op is one of a block that the other runs, so that what it writes is what that one makes."""
    runs = other.attributes.sub_blocks
    block: Block | None = op.block if runs else None
    while block is not None and block is not other.block:
        if block.idx in runs:
            return True
        block = block.parent
    return False


def spec_at_the_end(forward: Block, of: Variable) -> Spec:
    """Return what a variable is when a round of a block ends, not joined with what it was before: what the last op that writes it makes."""
    last = next((op for op in reversed(forward.ops) if of.name in op.all_writes()), None)
    return of.spec if last is None else last.made.get(of.name, of.spec)


# --- what either of two ways leaves


def joined_sources(name: str) -> tuple[str, str]:
    """What the sequences of a variable are called where those that a block gives it are not those that it had."""
    return f"{name}.loop", f"{name}.either"


def is_one_number(spec: Spec) -> bool:
    """Tell whether a value is dense and of one element, so that its rank may differ from round to round, as ``[]`` and ``[1]`` do."""
    return spec.kind is LOD_TENSOR and spec.lod is None and spec.dims is not None and all(equal(d, 1) is True for d in spec.dims)


def is_of_one_form(a: Spec, b: Spec) -> bool:
    """Whether what is known of two values differs in sizes at most, so that one spec can say it of both."""
    if a.kind is not b.kind or a.dtype is not b.dtype:
        return False
    if a.dims is None or b.dims is None:
        return True
    if len(a.dims) != len(b.dims):
        return is_one_number(a) and is_one_number(b)
    return a.lod is None or (b.lod is not None and len(a.lod.counts) == len(b.lod.counts))


def join(op: Op, v: Variable, entry: Spec, leave: Spec, what: str) -> Spec:
    """What is known of a variable that has either spec: sizes in which they differ become a symbol of its own; one number has the higher rank.

    Raises:
        ShapeError, TypeMismatchError: another rank, element type or kind, which no value may change.
    """
    if leave is entry or leave.like() is entry:
        return entry
    if entry.dims is None:
        return leave.like()
    if leave.dims is None:
        return entry
    site = writer_site(op, v.name)
    seen = f"it is {entry.text()} {'before' if what == 'loop' else 'otherwise'}, and {leave.text()} after the block{site}"
    if entry.kind is not leave.kind or entry.dtype is not leave.dtype:
        raise refused(op, f"{v.name} must keep its kind and element type: {seen}", TypeMismatchError)
    if len(entry.dims) != len(leave.dims):
        if v.persistable or not (is_one_number(entry) and is_one_number(leave)):
            raise refused(op, f"{v.name} must keep its number of dims: {seen}")
        return entry if len(entry.dims) > len(leave.dims) else leave.like()
    dims = tuple(_either(op, a, b, own_size(v.name, what, axis)) for axis, (a, b) in enumerate(zip(entry.dims, leave.dims, strict=True)))
    if v.persistable and dims != entry.dims:
        raise refused(op, f"{v.name} is kept from run to run and must stay {entry.text()}; the block makes it {leave.text()}{site}")
    lod = entry.lod
    if lod is not None and leave.lod is not lod:
        if leave.lod is None or len(leave.lod.counts) != len(lod.counts):
            raise refused(op, f"{v.name} must keep its levels of sequences: {seen}")
        counts = tuple(_either(op, a, b, own_count(v.name, what, k)) for k, (a, b) in enumerate(zip(lod.counts, leave.lod.counts, strict=True)))
        lod = Lod(f"{v.name}.{what}", counts)
    elif lod is None and leave.lod is not None:
        lod = None  # dense before the block: nothing is known of sequences after it
    return Spec(entry.kind, entry.dtype, dims, lod)


def own_size(name: str, what: str, axis: int) -> Size:
    """The symbol of a variable's own for a size that is not always the same."""
    return symbol(f"{name}.{what}{axis}"[:512])


def own_count(name: str, what: str, level: int) -> Size:
    """The same for a number of sequences."""
    return symbol(f"{name}.{what}.level{level}"[:512])


def _either(op: Op, a: Size, b: Size, own: Size) -> Size:
    if a is b or equal(a, b) is True:
        return a
    op.block.program.inference.guards.made.update(symbols_of(own))
    return own


def writer_site(op: Op, name: str) -> str:
    """Where the block of an op writes a name, for the end of a sentence."""
    found = ""
    for inner in sub_block(op).ops:
        if name in inner.output_names() and inner.call_site is not None:
            found = f", written at {inner.call_site.short()}"
    return found
