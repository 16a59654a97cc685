"""Branches, loops and scans, in the other formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from foreshape import layer
from foreshape.core.spec import BOOL, FP32, INT32, INT64, LOD_TENSOR, LOD_TENSOR_ARRAY, Spec
from foreshape.errors import DescriptionError, FormatError, SchemaError, ShapeError
from foreshape.interop.forms.rules import from_onnx, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.importer import RestInBranches
from foreshape.interop.onnx.write.values import OnnxGraph, OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.functional_blocks import write_branch, write_loop
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.infer.loop_state import carried_names, is_one_number, names_in, spec_at_the_end, sub_block
from foreshape.language.program import Block, Op
from foreshape.language.program.names import names_of
from foreshape.language.program.rollback import counts, take_back
from foreshape.language.program.variable import Variable
from foreshape.language.wire.onnx_records import GraphRecord, NodeRecord, TypeRecord

# --- from ONNX


_MOST_WRITTEN_OUT = 4096
"""A loop or scan of a known number of rounds is written out up to so many nodes."""


_MOST_TRIALS = 64
"""The most branches with different numbers of dims, whose following nodes are imported in both."""


Step = Callable[[Any, list[Variable]], tuple[list[Variable], list[Variable]]]
"""A function of a round's number (int, or int64 [1]) and the state: it returns the new state, and the results of the round."""


def _from_onnx_truth(c: Call, x: Variable) -> Variable:
    return c.cast(x, BOOL)


def run_graph(c: Call, graph: GraphRecord, values: dict[str, Any]) -> list[Any]:
    """Import a graph within a node for the ``values`` of its inputs; returns its results."""
    with c.importer.inside(graph, values):
        c.importer.nodes(graph.nodes, [v.name for v in graph.outputs])
        return [c.importer.value(v.name) for v in graph.outputs]


@from_onnx("If")
def branch(c: Call) -> Any:
    """Import one branch where the condition is known before the run, otherwise both."""
    then, otherwise = c.node.attributes["then_branch"], c.node.attributes["else_branch"]
    condition = c.constant(0)
    if condition is not None:
        return tuple(run_graph(c, then if bool(condition.reshape(-1)[0]) else otherwise, {}))

    ranks: list[list[int | None]] = []

    def results_of(graph: GraphRecord) -> list[Variable]:
        out = [layer.assign(c.importer.variable(v)) for v in run_graph(c, graph, {})]
        ranks.append([None if v.spec.dims is None else v.spec.rank for v in out])
        if len(ranks) == 2 and ranks[0] != ranks[1]:
            raise ShapeError("the branches have different numbers of dims")
        return out

    try:
        out = layer.cond(_from_onnx_truth(c, c.x(0)), lambda: results_of(then), lambda: results_of(otherwise))
    except ShapeError:
        if len(ranks) == 2 and ranks[0] != ranks[1]:
            branches = (lambda: run_graph(c, then, {}), lambda: run_graph(c, otherwise, {}))
            raise RestInBranches(lambda nodes, results: with_rest(c, lambda: _from_onnx_truth(c, c.x(0)), branches, nodes, results)) from None
        raise
    return tuple(out)


Branch = Callable[[], "list[Any]"]
"""Imports a branch of a node; returns the node's results."""


def with_rest(c: Call, condition: Callable[[], Variable], branches: tuple[Branch, Branch], nodes: Sequence[NodeRecord], results: Sequence[str]) -> None:
    """Import the rest after a node in both of its branches, each with its number of dims. If one alone works, an assertion demands it of the run."""
    importer = c.importer
    importer.trials += 1
    if importer.trials > _MOST_TRIALS:
        importer.keep(c.node, SchemaError(f"{c.node.operator} ({c.node.name or c.node.place}): too many branches with different numbers of dims"))
        importer.nodes(nodes, results)
        return
    values = dict(importer.scopes[-1])

    def imported(branch: Branch) -> list[Any]:
        importer.scopes[-1].clear()
        importer.scopes[-1].update(values)
        for name, value in zip(c.node.outputs, branch(), strict=True):
            importer.define(name, value, c.node.place)
        importer.nodes(nodes, results)
        return [importer.value(name) for name in results]

    def works(branch: Branch) -> bool:
        """Tell whether nothing of the rest is refused."""
        counters, refusals, renamed = counts(), importer.refusals, set(importer.renamed)
        try:
            for value in imported(branch):
                importer.variable(value)
            return importer.refusals == refusals
        except (Refused, DescriptionError, FormatError):  # as of an axis that this number of dims has not
            return False
        finally:
            take_back(counters)
            importer.refusals, importer.renamed = refusals, renamed

    def described(branch: Branch) -> list[Variable]:
        return [layer.assign(importer.variable(v)) for v in imported(branch)]

    holds, second = condition(), works(branches[1])
    if second and works(branches[0]):
        out = layer.cond(holds, partial(described, branches[0]), partial(described, branches[1]))
        importer.scopes[-1].clear()
        importer.scopes[-1].update(zip(results, out, strict=True))
        return
    chosen = 1 if second else 0
    importer.block.append_op("assert", {"Cond": holds if chosen == 0 else layer.logical_not(holds)}, {}, {})
    imported(branches[chosen])


@from_onnx("Loop")
def loop(c: Call) -> Any:
    """Run the body up to a number of times, while a condition holds; its results for each round are stacked."""
    body: GraphRecord = c.node.attributes["body"]
    importer = c.importer
    state = [c.value(index) for index in range(2, len(c.node.inputs))]
    bound, first = (c.constant(index) if c.has(index) else None for index in (0, 1))
    begins = not c.has(1) or (first is not None and bool(first.reshape(-1)[0]))
    lists = any(not isinstance(v, (Variable, OnnxConstant)) for v in state)
    rounds = None if bound is None else int(bound.reshape(-1)[0])
    stacked = len(body.outputs) - 1 - len(state)
    if rounds is not None and begins and rounds * max(1, len(body.nodes)) <= _MOST_WRITTEN_OUT and (rounds > 0 or not stacked) and _goes_on(c, body):
        return _written_out(c, body, state, rounds)
    if lists:
        raise Refused("a sequence or an optional value as the state of a loop whose number of rounds is not known before the run, or large")
    state = [importer.variable(v) for v in state]
    count = len(state)
    limit = c.reshape(c.cast(c.x(0), INT64), [1]) if c.has(0) else None
    holds = c.reshape(_from_onnx_truth(c, c.x(1)), [1]) if c.has(1) else c.full([1], BOOL, True)

    def step(number: Variable, holds: Variable, values: list[Variable]) -> tuple[Variable, list[Variable], list[Variable]]:
        inputs = {body.inputs[0].name: c.reshape(number, []), body.inputs[1].name: c.reshape(holds, [])}
        inputs |= {v.name: value for v, value in zip(body.inputs[2:], values, strict=True)}
        out = [importer.variable(v) for v in run_graph(c, body, inputs)]
        return c.reshape(_from_onnx_truth(c, out[0]), [1]), out[1 : 1 + count], out[1 + count :]

    sure = begins and (rounds > 0 if rounds is not None else not c.has(0))
    return tuple(_from_onnx_while(c, limit, holds, state, step, stacked, sure))


def _goes_on(c: Call, body: GraphRecord) -> bool:
    """Tell whether a body gives its condition as it takes it, or always true."""
    name, producers = body.outputs[0].name, {out: node for node in body.nodes for out in node.outputs}
    for _ in body.nodes:
        if name in producers and producers[name].operator == "Identity":
            name = producers[name].inputs[0]
    if name == body.inputs[1].name:
        return True
    if name in producers:
        value = producers[name].attributes.get("value") if producers[name].operator == "Constant" else None
        condition = None if value is None else c.importer.numbers(OnnxConstant(name, value))
    elif name in body.initializers:
        condition = c.importer.numbers(OnnxConstant(name, body.initializers[name]))
    else:
        constant = c.importer.value(name)
        condition = c.importer.numbers(constant) if isinstance(constant, (Variable, OnnxConstant)) else None
    return condition is not None and bool(condition.reshape(-1)[0])


def _written_out(c: Call, body: GraphRecord, state: list[Any], rounds: int) -> Any:
    """Import the body for each of a known number of rounds."""
    count = len(state)
    stacked = len(body.outputs) - 1 - count
    stacks: list[list[Variable]] = [[] for _ in range(stacked)]
    for number in range(rounds):
        inputs = {body.inputs[0].name: OnnxConstant("", None, np.array(number, "int64")), body.inputs[1].name: OnnxConstant("", None, np.array(True))}
        out = run_graph(c, body, inputs | {v.name: value for v, value in zip(body.inputs[2:], state, strict=True)})
        state = out[1 : 1 + count]
        for stack, value in zip(stacks, out[1 + count :], strict=True):
            stack.append(c.importer.variable(value))
    return (*(layer.assign(v) if isinstance(v, Variable) else v for v in state), *(layer.stack(parts, 0) for parts in stacks))


def _from_onnx_while(
    c: Call, limit: Variable | None, holds: Variable, state: Sequence[Variable], step: Callable[..., Any], stacked: int, sure: bool
) -> list[Variable]:
    """Describe a loop; returns its last state and the results of its rounds, stacked. ``sure``: it has at least one round."""
    number = c.full([1], INT64, 0)
    arrays = [layer.create_array() for _ in range(stacked)]

    def condition(number: Variable, holds: Variable, *_: Variable) -> Variable:
        return holds if limit is None else layer.logical_and(holds, layer.less_than(number, limit))

    def body(number: Variable, holds: Variable, *values: Variable) -> list[Variable]:
        go, new, results = step(number, holds, list(values))
        for array, value in zip(arrays, results, strict=True):
            layer.array_write(value, number, array)
        return [layer.scale(number, 1.0, 1.0), go, *(layer.assign(v) for v in new)]

    number, _, *last = layer.while_loop(condition, body, [number, holds, *state])
    return [*last, *(_stack(c, array, None if sure else number) for array in arrays)]


def _stack(c: Call, array: Variable, rounds: Variable | None) -> Variable:
    """Return the elements of an array as one tensor; after no ``rounds`` there is none, and an open size is 0 then."""
    if rounds is None:
        return layer.tensor_array_to_tensor(array, 0, use_stack=True)[0]
    dtype, dims = array.spec.known_dtype, array.spec.dims
    if dims is None:
        raise Refused("results of rounds, stacked, whose number of dims is not known before the run")
    empty = [0, *(d if isinstance(d, int) else 0 for d in dims)]
    some = layer.greater_than(rounds, c.full([1], INT64, 0))
    return layer.cond(some, lambda: layer.tensor_array_to_tensor(array, 0, use_stack=True)[0], lambda: c.full(empty, dtype, 0))


def rounds_over(c: Call, source: Variable, axis: int, state: Sequence[Variable], step: Step, stacked: int, nodes: int) -> tuple[list[Variable], list[Variable]]:
    """Run ``step`` for each entry of an axis of ``source``: written out for a small number, a loop otherwise.

    ``nodes``: the size of a step. Returns the last state and the stacks.
    """
    carry, length = list(state), source.spec.known_dims[axis]
    if isinstance(length, int) and 0 < length * max(1, nodes) <= _MOST_WRITTEN_OUT:
        stacks: list[list[Variable]] = [[] for _ in range(stacked)]
        for index in range(length):
            carry, results = step(index, carry)
            for stack, value in zip(stacks, results, strict=True):
                stack.append(value)
        return carry, [layer.stack(parts, 0) for parts in stacks]
    limit = layer.slice(c.shape_of(source), [0], [axis], [axis + 1])

    def loop_step(number: Variable, holds: Variable, values: list[Variable]) -> Any:
        return holds, *step(number, values)

    out = _from_onnx_while(c, limit, c.full([1], BOOL, True), carry, loop_step, stacked, False)
    return out[: len(carry)], out[len(carry) :]


def entry(c: Call, x: Variable, axis: int, index: int | Variable, back: bool) -> Variable:
    """Return an entry of an axis, without it: by a number, or by a variable int64 [1]; ``back`` counts from the end."""
    length = x.spec.known_dims[axis]
    if isinstance(index, int):
        place = length - 1 - index if back and isinstance(length, int) else index
        return c.op("slice", {"axes": [axis], "starts": [place], "ends": [place + 1], "infer_flags": [1], "decrease_axis": [axis]}, Input=x)
    if back:
        last = layer.slice(c.shape_of(x), [0], [axis], [axis + 1])
        index = layer.scale(last - index, 1.0, -1.0)
    return c.squeeze(layer.gather(x, index, axis), axis)


@from_onnx("Scan", since=9)
def scan(c: Call) -> Any:
    """Run the body over the entries of its scan inputs."""
    inputs = int(c.attribute("num_scan_inputs"))
    first = len(c.node.inputs) - inputs
    state = [c.x(index) for index in range(first)]
    entries = [c.x(index) for index in range(first, len(c.node.inputs))]
    axes = [c.axis(int(a), c.rank(e)) for a, e in zip(c.attribute("scan_input_axes") or [0] * inputs, entries, strict=True)]
    last, stacks = _scanned(c, state, entries, axes, c.attribute("scan_input_directions") or [0] * inputs)
    outputs = len(stacks)
    axes_out = c.attribute("scan_output_axes") or [0] * outputs
    for index, (axis, back) in enumerate(zip(axes_out, c.attribute("scan_output_directions") or [0] * outputs, strict=True)):
        out = layer.flip(stacks[index], [0]) if back else stacks[index]
        rank = c.rank(out)
        axis = c.axis(int(axis), rank)
        order = [*range(1, rank)]
        order.insert(axis, 0)
        stacks[index] = c.transpose(out, order)
    return (*(layer.assign(v) for v in last), *stacks)


def _scanned(c: Call, state: list[Variable], entries: list[Variable], axes: list[int], directions: Sequence[int]) -> tuple[list[Variable], list[Variable]]:
    body: GraphRecord = c.node.attributes["body"]
    count = len(state)

    def step(index: Any, values: list[Variable]) -> tuple[list[Variable], list[Variable]]:
        inputs: dict[str, Any] = {v.name: value for v, value in zip(body.inputs[:count], values, strict=True)}
        for v, x, axis, back in zip(body.inputs[count:], entries, axes, directions, strict=True):
            inputs[v.name] = entry(c, x, axis, index, bool(back))
        out = [c.importer.variable(v) for v in run_graph(c, body, inputs)]
        return out[:count], out[count:]

    return rounds_over(c, entries[0], axes[0], state, step, len(body.outputs) - count, len(body.nodes))


@from_onnx("Scan")
def scan_of_batches(c: Call) -> Any:
    """Scan as operator set 8 has it: for each entry of a batch, over the second axis."""
    inputs = int(c.attribute("num_scan_inputs"))
    first = len(c.node.inputs) - inputs
    if c.has(0):
        raise Refused("a scan of operator set 8 with lengths")
    operands = c.all(1)
    batch = operands[0].spec.known_dims[0]
    if not isinstance(batch, int) or not 0 < batch <= 256:
        raise Refused("a scan of operator set 8 with an open number of sequences, with none, or with more than 256")
    results: list[list[Variable]] = []
    for index in range(batch):
        mine = [entry(c, x, 0, index, False) for x in operands]
        last, stacks = _scanned(c, mine[: first - 1], mine[first - 1 :], [0] * inputs, c.attribute("directions") or [0] * inputs)
        results.append([*last, *stacks])
    return tuple(layer.stack(list(parts), 0) for parts in zip(*results, strict=True))


# --- to ONNX


_TRUTH = TypeRecord("tensor", 9, ())


def _spec_after(op: Op, name: str) -> Spec:
    """Return the spec of a variable after an op whose block writes it."""
    variable = op.block.find(name)
    spec = op.made.get(name)
    if spec is None and variable is None:
        raise Refused(f"{name} is not described")
    return spec if spec is not None else variable.spec  # pyright: ignore[reportOptionalMemberAccess]


def _type(w: WrittenOp, name: str, spec: Spec) -> TypeRecord:
    """Return the type of a variable, without its dims. Raises `Refused` for sparse rows, ragged ones, and an unknown element type."""
    if spec.kind not in (LOD_TENSOR, LOD_TENSOR_ARRAY) or spec.lod:
        raise Refused(f"{name}, which its block writes, is {'ragged' if spec.lod else spec.kind}")
    if spec.dtype is None:
        raise Refused(f"{name}, which its block writes, has no known element type")
    tensor = TypeRecord("tensor", w.writer.code_of(spec.dtype))
    return tensor if spec.kind is LOD_TENSOR else TypeRecord("sequence", inner=tensor)


def _value_before(w: WrittenOp, name: str, spec: Spec) -> OnnxValue:
    """Return the value of a variable before an op whose block writes it, in its rank after it."""
    import numpy

    value = w.writer.find(name) if name not in w.op.forgets else None
    if value is not None:
        variable = w.op.block.find(name)
        return value if variable is None else _of_rank(w, value, w.writer.spec(variable), spec)
    if spec.kind is LOD_TENSOR_ARRAY:
        return w.node("SequenceEmpty", dtype=w.writer.code_of(spec.known_dtype))
    dtype = spec.known_dtype
    empty = numpy.zeros((0,) * len(spec.dims or ()) if spec.dims else (), "bool" if dtype is BOOL else "float32" if dtype.name == "bf16" else dtype.numpy_name)
    return w.cast(w.array(empty), FP32, dtype) if dtype.name == "bf16" else w.array(empty)


def _of_rank(w: WrittenOp, value: OnnxValue, spec: Spec, target: Spec) -> OnnxValue:
    """Return a value of one number in the rank of another spec of it."""
    if not is_one_number(target) or spec.dims is None or target.dims is None or len(spec.dims) == len(target.dims):
        return value
    return w.reshape(value, *[1] * len(target.dims))


def _at_the_end(w: WrittenOp, block: Block, name: str, spec: Spec) -> OnnxValue:
    """Return the value of a variable at the end of a block, in its rank after the op."""
    variable = block.find(name)
    return w.writer.value(name) if variable is None else _of_rank(w, w.writer.value(name), spec_at_the_end(block, variable), spec)


def _to_onnx_truth(w: WrittenOp, name: str, block: Block) -> OnnxValue:
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


@to_onnx()
def _to_onnx_while(w: WrittenOp) -> None:
    op, writer = w.op, w.writer
    block, condition_name = sub_block(op), names_in(op, "Condition")[0]
    reads = names_of(block).first
    names = [n for n in carried_names(op) if n in reads or writer.seen_after(op, block, n)]
    specs = [_spec_after(op, n) for n in names]
    types = [_type(w, n, s) for n, s in zip(names, specs, strict=True)]
    initial = [_value_before(w, n, s) for n, s in zip(names, specs, strict=True)]
    condition = _to_onnx_truth(w, condition_name, op.block)
    with writer.inside() as body:
        for name, code in (("round", 7), ("goes_on", 9)):
            body.inputs.append(OnnxValue(name))
            body.types[body.inputs[-1]] = TypeRecord("tensor", code, ())
        for name, spec, type in zip(names, specs, types, strict=True):
            _opened(w, body, name, spec, type)
        writer.ops(block)
        writer.give([_to_onnx_truth(w, condition_name, block), *[_at_the_end(w, block, n, s) for n, s in zip(names, specs, strict=True)]])
        body.types.update(zip(body.results, (_TRUTH, *types), strict=True))
    results = writer.node("Loop", [None, condition, *initial], len(names), body=body)
    for name, value in zip(names, results, strict=True):
        writer.bind(op, name, value)


@to_onnx("conditional_block", "conditional_block_infer")
def _to_onnx_conditional(w: WrittenOp) -> None:
    op, writer = w.op, w.writer
    block, condition_names = sub_block(op), names_in(op, "Cond")
    if w.of.is_scalar_condition:
        condition = _to_onnx_truth(w, condition_names[0], op.block)
    else:
        sizes = [w.node("Greater", w.node("Size", writer.value(n)), w.array(_zero())) for n in condition_names]
        condition = sizes[0]
        for size in sizes[1:]:
            condition = w.node("And", condition, size)
    names = [n for n in carried_names(op) if writer.seen_after(op, block, n)]
    specs = [_spec_after(op, n) for n in names]
    types = [_type(w, n, s) for n, s in zip(names, specs, strict=True)]
    if not names:
        return
    with writer.inside() as then:
        writer.ops(block)
        writer.give([_at_the_end(w, block, n, s) for n, s in zip(names, specs, strict=True)])
        then.types.update(zip(then.results, types, strict=True))
    with writer.inside() as alternative:
        writer.give([_value_before(w, n, s) for n, s in zip(names, specs, strict=True)])
        alternative.types.update(zip(alternative.results, types, strict=True))
    results = writer.node("If", [condition], len(names), then_branch=then, else_branch=alternative)
    for name, value in zip(names, results, strict=True):
        writer.bind(op, name, value)


def _zero() -> Any:
    import numpy

    return numpy.array(0, "int64")


@to_onnx()
def _to_onnx_select_input(w: WrittenOp) -> OnnxValue:
    count = len(w.op.input_slots["X"])
    out = w.result("Out")
    if out.lod:
        raise Refused("X is ragged")
    values: list[OnnxValue] = []
    for index in range(count):
        variable = w.variable("X", index)
        spec = w.writer.spec(variable)
        value = _value_before(w, variable.name, spec)
        values.append(value if spec.kind is not LOD_TENSOR or spec.dtype is None or out.dtype is None else w.cast(value, spec.dtype, out.dtype))
    dtype = w.dtype("Mask")
    mask = w.x("Mask") if w.rank("Mask") == 0 else w.reshape(w.x("Mask"))
    if count == 1:
        return w.node("Identity", values[0])
    if dtype is BOOL:
        return _either(w, mask, values[1], values[0])
    return _one_of(w, w.cast(mask, dtype, INT32), values, 0)


def _one_of(w: WrittenOp, number: OnnxValue, values: Sequence[OnnxValue], first: int) -> OnnxValue:
    if first == len(values) - 1:
        return values[first]
    is_it = w.node("Equal", number, w.number(first, INT32))
    if first == len(values) - 2:
        return _either(w, is_it, values[first], values[first + 1])
    with w.writer.inside() as then:
        w.writer.give([values[first]])
    with w.writer.inside() as alternative:
        w.writer.give([_one_of(w, number, values, first + 1)])
    return w.node("If", is_it, then_branch=then, else_branch=alternative)


def _either(w: WrittenOp, condition: OnnxValue, true: OnnxValue, false: OnnxValue) -> OnnxValue:
    with w.writer.inside() as then:
        w.writer.give([true])
    with w.writer.inside() as alternative:
        w.writer.give([false])
    return w.node("If", condition, then_branch=then, else_branch=alternative)


@to_onnx()
def _to_onnx_select_output(w: WrittenOp) -> Any:
    return ([w.node("Identity", w.x("X")) for _ in w.op.output_slots["Out"]],)  # those not chosen have no reader in a run


@to_onnx()
def _to_onnx_recurrent(w: WrittenOp) -> None:
    op, writer = w.op, w.writer
    block = sub_block(op)
    sequences, initial, outputs = (list(names_in(op, slot)) for slot in ("inputs", "initial_states", "outputs"))
    for slot, names in (("inputs", sequences), ("initial_states", initial)):
        for index in range(len(names)):
            w.spec(slot, index)
    previous, new = list(w.of.ex_states), list(w.of.states)
    operands = [*[w.x("initial_states", index) for index in range(len(initial))], *[w.x("inputs", index) for index in range(len(sequences))]]
    with writer.inside() as body:
        for name in (*previous, *sequences):
            spec = block.var(name).spec
            _opened(w, body, name, spec, _type(w, name, spec))
        writer.ops(block)
        writer.give([writer.value(n) for n in (*new, *outputs)])
    attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(sequences)}
    if w.of.reverse:
        attributes |= {"scan_input_directions": [1] * len(sequences), "scan_output_directions": [1] * len(outputs)}
    results = writer.node("Scan", operands, len(new) + len(outputs), **attributes)
    for name, value in zip(outputs, results[len(new) :], strict=True):
        writer.bind(op, name, value)


@to_onnx("assert", "check_numerics")
def _to_onnx_watched(w: WrittenOp) -> None:
    """A check is left out: a graph of ONNX cannot stop."""


@to_onnx()
def _to_onnx_is_empty(w: WrittenOp) -> OnnxValue:
    truth = w.node("Equal", w.node("Size", w.x("X")), w.array(_zero()))
    rank = len(w.result("Out").known_dims)
    return w.reshape(truth, *[1] * rank) if rank else truth


# --- to torch's code


@to_torch()
def _to_torch_while(w: PlainOp) -> None:
    condition = names_in(w.op, "Condition")[0]
    if w.writer.is_functional:
        write_loop(w)
        return
    with w.writer.inside() as body:
        if w.writer.flow != "python":
            w.writer.open_cells(carried_names(w.op))
        w.writer.ops(sub_block(w.op))
    w.writer.block([(f"while {w.writer.value(condition)}:", body)])


@to_torch("conditional_block", "conditional_block_infer")
def _to_torch_conditional(w: PlainOp) -> None:
    condition_names = names_in(w.op, "Cond")
    if w.of.is_scalar_condition:
        condition = w.writer.value(condition_names[0])
        if w.writer.is_functional:
            write_branch(w, condition)
            return
    else:
        condition = " and ".join(f"{w.writer.value(n)}.numel() > 0" for n in condition_names)
    with w.writer.inside() as body:
        w.writer.ops(sub_block(w.op))
    w.writer.block([(f"if {condition}:", body)])


@to_torch()
def _to_torch_select_input(w: PlainOp) -> str:
    mask, count = w.x("Mask"), w.count("X")
    if any(w.spec("X", index).lod is not None for index in range(count)):
        raise Refused("X is ragged")
    out = w.x("X", count - 1)
    if w.writer.is_functional:
        if any(w.dims("X", index) != w.dims("X") for index in range(1, count)):
            raise Refused("its operands are of different sizes, and an export holds one")
        for index in range(count - 2, -1, -1):
            is_it = f"{mask}.reshape(()) == {index}"
            out = f"torch.where({is_it}, {w.x('X', index)}, {out})"
        return out
    for index in range(count - 2, -1, -1):
        out = f"{out} if {mask} else {w.x('X', index)}" if w.dtype("Mask") is BOOL else f"{w.x('X', index)} if {mask} == {index} else {out}"
    return out


@to_torch("assert", "check_numerics", "print")
def _to_torch_watched(w: PlainOp) -> Any:
    """Leave out a check."""
    return w.x("In") if w.op.type == "print" else None


@to_torch()
def _to_torch_with_gradient(w: PlainOp) -> Any:
    values = w.all("Value")
    run = w.call(helpers.own_gradients.without_gradient, w.call(helpers.own_gradients.first_ones, len(values)), repr(w.op.type))
    results = w.let(f"{run}({', '.join([*values, *w.all('X')])})")
    return tuple([f"{results}[{index}]" for index in range(len(values))])


@to_torch()
def _to_torch_is_empty(w: PlainOp) -> str:
    code = f"torch.tensor({w.x('X')}.numel() == 0, device={w.device()})"
    return code if not w.result("Out").known_dims else f"{code}.reshape(1)"
