"""Torch code of operators with a block, of arrays, and of the choice between branches."""

from __future__ import annotations

from typing import Any

from foreshape.infer.loop_state import carried_names, names_in, sub_block
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.code_rules import writes
from foreshape.interop.torch.write.functional_blocks import write_branch, write_loop
from foreshape.interop.torch.write.helpers import tensor_lists
from foreshape.interop.torch.write.helpers.own_gradients import first_ones, without_gradient
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.spec import BOOL, INT32


@writes("while")
def _while(w: PlainOp) -> None:
    asked = names_in(w.op, "Condition")[0]
    if w.writer.is_functional:
        write_loop(w)
        return
    with w.writer.inside() as body:
        if w.writer.flow != "python":
            w.writer.open_cells(carried_names(w.op))
        w.writer.ops(sub_block(w.op))
    w.writer.block([(f"while {w.writer.value(asked)}:", body)])


@writes("conditional_block", "conditional_block_infer")
def _conditional(w: PlainOp) -> None:
    asked = names_in(w.op, "Cond")
    if w.of.is_scalar_condition:
        condition = w.writer.value(asked[0])
        if w.writer.is_functional:
            write_branch(w, condition)
            return
    else:
        condition = " and ".join(f"{w.writer.value(n)}.numel() > 0" for n in asked)
    with w.writer.inside() as body:
        w.writer.ops(sub_block(w.op))
    w.writer.block([(f"if {condition}:", body)])


@writes("select_input")
def _select(w: PlainOp) -> str:
    mask, count = w.x("Mask"), w.count("X")
    if any(w.spec("X", at).lod is not None for at in range(count)):
        raise Refused("X is ragged")
    out = w.x("X", count - 1)
    if w.writer.is_functional:
        if any(w.dims("X", at) != w.dims("X") for at in range(1, count)):
            raise Refused("its operands are of different sizes, and an export holds one")
        for at in range(count - 2, -1, -1):
            is_it = f"{mask}.reshape(()) == {at}"
            out = f"torch.where({is_it}, {w.x('X', at)}, {out})"
        return out
    for at in range(count - 2, -1, -1):
        out = f"{out} if {mask} else {w.x('X', at)}" if w.dtype("Mask") is BOOL else f"{w.x('X', at)} if {mask} == {at} else {out}"
    return out


@writes("write_to_array")
def _write(w: PlainOp) -> None:
    (name,) = w.op.output_slots["Out"]
    before = w.writer.array(name)
    w.writer.bind(w.op, name, w.call(tensor_lists.with_element, before, w.x("X"), w.int("I")))


@writes("read_from_array")
def _read(w: PlainOp) -> str:
    if w.has("X_W"):
        raise Refused("it reads where nothing may have been written")
    return f"{w.x('X')}[{w.int('I')}]"


@writes("lod_array_length")
def _length(w: PlainOp) -> str:
    return f"torch.tensor([len({w.x('X')})], dtype=torch.int64, device={w.device()})"


@writes("tensor_array_to_tensor")
def _joined(w: PlainOp) -> Any:
    function = "torch.stack" if w.of.use_stack else "torch.cat"
    sizes = f"torch.tensor([{'1' if w.of.use_stack else f't.shape[{w.of.axis}]'} for t in {w.x('X')}], dtype={w.type(INT32)}, device={w.device()})"
    return f"{function}({w.x('X')}, {w.of.axis})", sizes


@writes("assert", "check_numerics", "print")
def _watched(w: PlainOp) -> Any:
    """Leave out a check."""
    return w.x("In") if w.op.type == "print" else None


@writes("with_gradient")
def _own_gradient(w: PlainOp) -> Any:
    values = w.all("Value")
    run = w.call(without_gradient, w.call(first_ones, len(values)), repr(w.op.type))
    made = w.let(f"{run}({', '.join([*values, *w.all('X')])})")
    return tuple([f"{made}[{at}]" for at in range(len(values))])


@writes("is_empty")
def _is_empty(w: PlainOp) -> str:
    made = f"torch.tensor({w.x('X')}.numel() == 0, device={w.device()})"
    return made if not w.result("Out").known_dims else f"{made}.reshape(1)"
