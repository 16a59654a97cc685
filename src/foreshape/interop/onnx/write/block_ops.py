"""Writing of operators that run a block: loops, branches, recurrences; and of the choice between branches.

A loop carries the variables read by a round before it writes them, and the ones read after the loop. A variable without a value before it begins as
an empty tensor of its element type: nobody reads it before a round has written it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.infer.loop_state import carried_names, is_one_number, names_in, spec_at_the_end, sub_block
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.values import OnnxGraph, OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.program import Block, Op
from foreshape.program.names import names_of
from foreshape.spec import BOOL, FP32, INT32, LOD_TENSOR, LOD_TENSOR_ARRAY, Spec
from foreshape.wire.onnx_records import TypeRecord

_TRUTH = TypeRecord("tensor", 9, ())


def _after(op: Op, name: str) -> Spec:
    """Return the spec of a variable after an op whose block writes it."""
    variable = op.block.find(name)
    made = op.made.get(name)
    if made is None and variable is None:
        raise Refused(f"{name} is not described")
    return made if made is not None else variable.spec  # pyright: ignore[reportOptionalMemberAccess]


def _type(w: WrittenOp, name: str, spec: Spec) -> TypeRecord:
    """Return the type of a variable, without its dims. Raises `Refused` for sparse rows, ragged ones, and an unknown element type."""
    if spec.kind not in (LOD_TENSOR, LOD_TENSOR_ARRAY) or spec.lod:
        raise Refused(f"{name}, which its block writes, is {'ragged' if spec.lod else spec.kind}")
    if spec.dtype is None:
        raise Refused(f"{name}, which its block writes, has no known element type")
    tensor = TypeRecord("tensor", w.writer.code_of(spec.dtype))
    return tensor if spec.kind is LOD_TENSOR else TypeRecord("sequence", inner=tensor)


def _before(w: WrittenOp, name: str, spec: Spec) -> OnnxValue:
    """Return the value of a variable before an op whose block writes it, in its rank after it."""
    import numpy

    found = w.writer.find(name) if name not in w.op.forgets else None
    if found is not None:
        variable = w.op.block.find(name)
        return found if variable is None else _of_rank(w, found, w.writer.spec(variable), spec)
    if spec.kind is LOD_TENSOR_ARRAY:
        return w.node("SequenceEmpty", dtype=w.writer.code_of(spec.known_dtype))
    of = spec.known_dtype
    empty = numpy.zeros((0,) * len(spec.dims or ()) if spec.dims else (), "bool" if of is BOOL else "float32" if of.name == "bf16" else of.numpy_name)
    return w.cast(w.array(empty), FP32, of) if of.name == "bf16" else w.array(empty)


def _of_rank(w: WrittenOp, value: OnnxValue, seen: Spec, wanted: Spec) -> OnnxValue:
    """Return a value of one number in the rank of another spec of it."""
    if not is_one_number(wanted) or seen.dims is None or wanted.dims is None or len(seen.dims) == len(wanted.dims):
        return value
    return w.reshape(value, *[1] * len(wanted.dims))


def _at_the_end(w: WrittenOp, block: Block, name: str, spec: Spec) -> OnnxValue:
    """Return the value of a variable at the end of a block, in its rank after the op."""
    variable = block.find(name)
    return w.writer.value(name) if variable is None else _of_rank(w, w.writer.value(name), spec_at_the_end(block, variable), spec)


def _truth(w: WrittenOp, name: str, block: Block) -> OnnxValue:
    """Return a variable's truth value without dims."""
    variable = block.find(name)
    value = w.writer.value(name)
    if variable is not None and w.writer.spec(variable).dims == ():
        return value
    return w.reshape(value)


def _opened(w: WrittenOp, frame: OnnxGraph, name: str, spec: Spec, type: TypeRecord | None) -> OnnxValue:
    """Return a new input of a graph: the value of a variable in it."""
    value = OnnxValue(name)
    frame.inputs.append(value)
    frame.values[name] = value
    frame.specs[name] = Spec(spec.kind, spec.dtype, spec.dims, spec.lod)
    if type is not None:
        frame.types[value] = type
    return value


@writes("while")
def _while(w: WrittenOp) -> None:
    op, writer = w.op, w.writer
    block, asked = sub_block(op), names_in(op, "Condition")[0]
    read = names_of(block).first
    names = [n for n in carried_names(op) if n in read or writer.seen_after(op, block, n)]
    specs = [_after(op, n) for n in names]
    types = [_type(w, n, s) for n, s in zip(names, specs, strict=True)]
    initial = [_before(w, n, s) for n, s in zip(names, specs, strict=True)]
    condition = _truth(w, asked, op.block)
    with writer.inside() as body:
        for name, code in (("round", 7), ("goes_on", 9)):
            body.inputs.append(OnnxValue(name))
            body.types[body.inputs[-1]] = TypeRecord("tensor", code, ())
        for name, spec, type in zip(names, specs, types, strict=True):
            _opened(w, body, name, spec, type)
        writer.ops(block)
        writer.give([_truth(w, asked, block), *[_at_the_end(w, block, n, s) for n, s in zip(names, specs, strict=True)]])
        body.types.update(zip(body.results, (_TRUTH, *types), strict=True))
    results = writer.node("Loop", [None, condition, *initial], len(names), body=body)
    for name, value in zip(names, results, strict=True):
        writer.bind(op, name, value)


@writes("conditional_block", "conditional_block_infer")
def _conditional(w: WrittenOp) -> None:
    op, writer = w.op, w.writer
    block, asked = sub_block(op), names_in(op, "Cond")
    if w.of.is_scalar_condition:
        condition = _truth(w, asked[0], op.block)
    else:
        sizes = [w.node("Greater", w.node("Size", writer.value(n)), w.array(_zero())) for n in asked]
        condition = sizes[0]
        for other in sizes[1:]:
            condition = w.node("And", condition, other)
    names = [n for n in carried_names(op) if writer.seen_after(op, block, n)]
    specs = [_after(op, n) for n in names]
    types = [_type(w, n, s) for n, s in zip(names, specs, strict=True)]
    if not names:
        return
    with writer.inside() as then:
        writer.ops(block)
        writer.give([_at_the_end(w, block, n, s) for n, s in zip(names, specs, strict=True)])
        then.types.update(zip(then.results, types, strict=True))
    with writer.inside() as other:
        writer.give([_before(w, n, s) for n, s in zip(names, specs, strict=True)])
        other.types.update(zip(other.results, types, strict=True))
    results = writer.node("If", [condition], len(names), then_branch=then, else_branch=other)
    for name, value in zip(names, results, strict=True):
        writer.bind(op, name, value)


def _zero() -> Any:
    import numpy

    return numpy.array(0, "int64")


@writes("select_input")
def _select(w: WrittenOp) -> OnnxValue:
    count = len(w.op.input_slots["X"])
    out = w.result("Out")
    if out.lod:
        raise Refused("X is ragged")
    given: list[OnnxValue] = []
    for at in range(count):
        variable = w.variable("X", at)
        spec = w.writer.spec(variable)
        value = _before(w, variable.name, spec)
        given.append(value if spec.kind is not LOD_TENSOR or spec.dtype is None or out.dtype is None else w.cast(value, spec.dtype, out.dtype))
    of = w.dtype("Mask")
    mask = w.x("Mask") if w.rank("Mask") == 0 else w.reshape(w.x("Mask"))
    if count == 1:
        return w.node("Identity", given[0])
    if of is BOOL:
        return _either(w, mask, given[1], given[0])
    return _one_of(w, w.cast(mask, of, INT32), given, 0)


def _one_of(w: WrittenOp, number: OnnxValue, given: Sequence[OnnxValue], first: int) -> OnnxValue:
    if first == len(given) - 1:
        return given[first]
    is_it = w.node("Equal", number, w.number(first, INT32))
    if first == len(given) - 2:
        return _either(w, is_it, given[first], given[first + 1])
    with w.writer.inside() as then:
        w.writer.give([given[first]])
    with w.writer.inside() as other:
        w.writer.give([_one_of(w, number, given, first + 1)])
    return w.node("If", is_it, then_branch=then, else_branch=other)


def _either(w: WrittenOp, condition: OnnxValue, true: OnnxValue, false: OnnxValue) -> OnnxValue:
    with w.writer.inside() as then:
        w.writer.give([true])
    with w.writer.inside() as other:
        w.writer.give([false])
    return w.node("If", condition, then_branch=then, else_branch=other)


@writes("select_output")
def _select_output(w: WrittenOp) -> Any:
    return ([w.node("Identity", w.x("X")) for _ in w.op.output_slots["Out"]],)  # those not chosen have no reader in a run


@writes("recurrent")
def _recurrent(w: WrittenOp) -> None:
    op, writer = w.op, w.writer
    block = sub_block(op)
    sequences, initial, outputs = (list(names_in(op, slot)) for slot in ("inputs", "initial_states", "outputs"))
    for slot, names in (("inputs", sequences), ("initial_states", initial)):
        for at in range(len(names)):
            w.spec(slot, at)
    previous, new = list(w.of.ex_states), list(w.of.states)
    given = [*[w.x("initial_states", at) for at in range(len(initial))], *[w.x("inputs", at) for at in range(len(sequences))]]
    with writer.inside() as body:
        for name in (*previous, *sequences):
            spec = block.var(name).spec
            _opened(w, body, name, spec, _type(w, name, spec))
        writer.ops(block)
        writer.give([writer.value(n) for n in (*new, *outputs)])
    attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(sequences)}
    if w.of.reverse:
        attributes |= {"scan_input_directions": [1] * len(sequences), "scan_output_directions": [1] * len(outputs)}
    results = writer.node("Scan", given, len(new) + len(outputs), **attributes)
    for name, value in zip(outputs, results[len(new) :], strict=True):
        writer.bind(op, name, value)


@writes("assert", "check_numerics")
def _watched(w: WrittenOp) -> None:
    """A check is left out: a graph of ONNX cannot stop."""


@writes("is_empty")
def _is_empty(w: WrittenOp) -> OnnxValue:
    truth = w.node("Equal", w.node("Size", w.x("X")), w.array(_zero()))
    rank = len(w.result("Out").known_dims)
    return w.reshape(truth, *[1] * rank) if rank else truth
