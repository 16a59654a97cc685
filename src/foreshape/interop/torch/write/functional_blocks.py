"""Loops and branches as torch's operators of functions, for exports: a block becomes a function of the variables it writes."""

from __future__ import annotations

from foreshape.core.spec import LOD_TENSOR
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.plain_names import Statement
from foreshape.interop.torch.write.plain_op import PlainOp, tuple_of
from foreshape.language.infer.loop_state import carried_names, names_in, sub_block, written_before
from foreshape.language.program.names import names_of


def _seen_outside(w: PlainOp) -> list[str]:
    """Return the variables written by the op's block, and read by others or its next round."""
    block = sub_block(w.op)
    inside = {block.idx, *(b.idx for b in w.op.block.program.blocks if b.idx > block.idx and block in _outer(b))}
    reads = {n for b in w.op.block.program.blocks if b.idx not in inside for op in b.ops if op is not w.op for n in op.input_names()}
    results = {*names_in(w.op, "Condition"), *w.writer.results}
    return [n for n in carried_names(w.op) if n in w.writer.cells and (n in reads or n in results or (w.op.type == "while" and n in names_of(block).first))]


def _outer(block: object) -> list[object]:
    blocks: list[object] = []
    while (block := getattr(block, "parent", None)) is not None:
        blocks.append(block)
    return blocks


def _as_it_was(w: PlainOp, name: str) -> str:
    """Return the value of a variable before the op; zeros for one without."""
    variable = w.op.block.find(name)
    if variable is None or variable.spec.kind is not LOD_TENSOR or variable.spec.dims is None or variable.spec.lod is not None:
        raise Refused(f"it writes {name}, which is no dense tensor: an array grows from round to round, and an export holds one size")
    if not all(w.writer.has_size(d) for d in variable.spec.dims):
        raise Refused(f"{name} is of another size in each round or branch, and an export holds one size")
    if written_before(w.op, name):
        return w.writer.value(name)
    return f"torch.zeros({w.sizes(variable.spec.dims) if variable.spec.dims else '()'}, dtype={w.type(variable.spec.known_dtype)}, device={w.device()})"


def write_loop(w: PlainOp) -> None:
    """Write a while as ``torch.while_loop``."""
    writer = w.writer
    (condition,) = names_in(w.op, "Condition")
    carried = _seen_outside(w)
    initial = [_as_it_was(w, n) for n in carried]
    parameters = ", ".join(writer.value(n) for n in carried)
    with writer.inside() as body:
        writer.open_cells(carried)
        writer.ops(sub_block(w.op))
        body.append(Statement([], f"return {tuple_of([f'{writer.value(n)}.clone()' for n in carried])}", acts=True))
    holds, turn = writer.free("holds"), writer.free("turn")
    answer = Statement([], f"return {writer.value(condition)}.reshape(()).clone()", acts=True)
    writer.block([(f"def {holds}({parameters}):", [answer]), (f"def {turn}({parameters}):", body)])
    _bound(w, carried, f"torch.while_loop({holds}, {turn}, {tuple_of(initial)})")


def write_branch(w: PlainOp, condition: str) -> None:
    """Write a branch as ``torch.cond``: otherwise the values stay. Or run it, and choose."""
    writer = w.writer
    changed = _seen_outside(w)
    initial = [_as_it_was(w, n) for n in changed]
    if writer.flow == "selected":
        copies = {n: writer.let(f"{value}.clone()") for n, value in zip(changed, initial, strict=True) if not value.startswith("torch.zeros(")}
        with writer.inside() as body:
            writer.ops(sub_block(w.op))
        writer.statements += body
        for name, value in copies.items():
            expression = f"torch.where({condition}.reshape(()), {writer.value(name)}, {value})"
            writer.statements.append(Statement([writer.cell(name)], expression, acts=True))
        return
    carried = [n for n, value in zip(changed, initial, strict=True) if not value.startswith("torch.zeros(")]
    parameters = ", ".join(writer.value(n) for n in carried)
    with writer.inside() as body:
        writer.ops(sub_block(w.op))
        body.append(Statement([], f"return {tuple_of([f'{writer.value(n)}.clone()' for n in changed])}", acts=True))
    then, otherwise = writer.free("then"), writer.free("otherwise")
    identity = Statement([], f"return {tuple_of([f'{v}.clone()' if n in carried else v for n, v in zip(changed, initial, strict=True)])}", acts=True)
    writer.block([(f"def {then}({parameters}):", body), (f"def {otherwise}({parameters}):", [identity])])
    _bound(w, changed, f"torch.cond({condition}.reshape(()), {then}, {otherwise}, {tuple_of([writer.value(n) for n in carried]) if carried else '()'})")


def _bound(w: PlainOp, names: list[str], call: str) -> None:
    """Say the variables' values by a call."""
    numbers = [w.writer.cell(n) for n in names]
    w.writer.statements.append(Statement(numbers, call if len(numbers) > 1 else f"{call}[0]", acts=True))
