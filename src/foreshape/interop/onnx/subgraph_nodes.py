"""Branches, loops and scans: graphs within nodes become blocks, or are written out where their number of rounds is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from foreshape import layer
from foreshape.errors import DescriptionError, FormatError, SchemaError, ShapeError
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.importer import RestInBranches
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.refused import Refused
from foreshape.program.rollback import counts, take_back
from foreshape.program.variable import Variable
from foreshape.spec import BOOL, INT64
from foreshape.wire.onnx_records import GraphRecord, NodeRecord

_MOST_WRITTEN_OUT = 4096
"""A loop or scan of a known number of rounds is written out up to so many nodes."""
_MOST_TRIALS = 64
"""The most branches with different numbers of dims, whose following nodes are imported in both."""
Step = Callable[[Any, list[Variable]], tuple[list[Variable], list[Variable]]]
"""A function of a round's number (int, or int64 [1]) and the state: it returns the new state, and the results of the round."""


def _truth(c: Call, x: Variable) -> Variable:
    return c.cast(x, BOOL)


def run_graph(c: Call, graph: GraphRecord, values: dict[str, Any]) -> list[Any]:
    """Import a graph within a node for the ``values`` of its inputs; returns its results."""
    with c.importer.inside(graph, values):
        c.importer.nodes(graph.nodes, [v.name for v in graph.outputs])
        return [c.importer.value(v.name) for v in graph.outputs]


@onnx("If")
def branch(c: Call) -> Any:
    """Import one branch where the condition is known before the run, otherwise both."""
    then, otherwise = c.node.attributes["then_branch"], c.node.attributes["else_branch"]
    known = c.constant(0)
    if known is not None:
        return tuple(run_graph(c, then if bool(known.reshape(-1)[0]) else otherwise, {}))

    ranks: list[list[int | None]] = []

    def made(graph: GraphRecord) -> list[Variable]:
        out = [layer.assign(c.importer.variable(v)) for v in run_graph(c, graph, {})]
        ranks.append([None if v.spec.dims is None else v.spec.rank for v in out])
        if len(ranks) == 2 and ranks[0] != ranks[1]:
            raise ShapeError("the branches have different numbers of dims")
        return out

    try:
        out = layer.cond(_truth(c, c.x(0)), lambda: made(then), lambda: made(otherwise))
    except ShapeError:
        if len(ranks) == 2 and ranks[0] != ranks[1]:
            branches = (lambda: run_graph(c, then, {}), lambda: run_graph(c, otherwise, {}))
            raise RestInBranches(lambda rest, results: with_rest(c, lambda: _truth(c, c.x(0)), branches, rest, results)) from None
        raise
    return tuple(out)


Branch = Callable[[], "list[Any]"]
"""Imports a branch of a node; returns the node's results."""


def with_rest(c: Call, condition: Callable[[], Variable], branches: tuple[Branch, Branch], rest: Sequence[NodeRecord], results: Sequence[str]) -> None:
    """Import the rest after a node in both of its branches, each with its number of dims. If one alone works, an assertion demands it of the run."""
    importer = c.importer
    importer.trials += 1
    if importer.trials > _MOST_TRIALS:
        importer.keep(c.node, SchemaError(f"{c.node.operator} ({c.node.name or c.node.place}): too many branches with different numbers of dims"))
        importer.nodes(rest, results)
        return
    values = dict(importer.scopes[-1])

    def imported(branch: Branch) -> list[Any]:
        importer.scopes[-1].clear()
        importer.scopes[-1].update(values)
        for name, value in zip(c.node.outputs, branch(), strict=True):
            importer.define(name, value, c.node.place)
        importer.nodes(rest, results)
        return [importer.value(name) for name in results]

    def works(branch: Branch) -> bool:
        """Tell whether nothing of the rest is refused."""
        before, refusals, renamed = counts(), importer.refusals, set(importer.renamed)
        try:
            for value in imported(branch):
                importer.variable(value)
            return importer.refusals == refusals
        except (Refused, DescriptionError, FormatError):  # as of an axis that this number of dims has not
            return False
        finally:
            take_back(before)
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


# --- loops


@onnx("Loop")
def loop(c: Call) -> Any:
    """Run the body up to a number of times, while a condition holds; its results for each round are stacked."""
    body: GraphRecord = c.node.attributes["body"]
    importer = c.importer
    state = [c.value(at) for at in range(2, len(c.node.inputs))]
    bound, first = (c.constant(at) if c.has(at) else None for at in (0, 1))
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
    holds = c.reshape(_truth(c, c.x(1)), [1]) if c.has(1) else c.full([1], BOOL, True)

    def step(number: Variable, holds: Variable, values: list[Variable]) -> tuple[Variable, list[Variable], list[Variable]]:
        given = {body.inputs[0].name: c.reshape(number, []), body.inputs[1].name: c.reshape(holds, [])}
        given |= {v.name: value for v, value in zip(body.inputs[2:], values, strict=True)}
        out = [importer.variable(v) for v in run_graph(c, body, given)]
        return c.reshape(_truth(c, out[0]), [1]), out[1 : 1 + count], out[1 + count :]

    sure = begins and (rounds > 0 if rounds is not None else not c.has(0))
    return tuple(_while(c, limit, holds, state, step, stacked, sure))


def _goes_on(c: Call, body: GraphRecord) -> bool:
    """Tell whether a body gives its condition as it takes it, or always true."""
    name, made = body.outputs[0].name, {out: node for node in body.nodes for out in node.outputs}
    for _ in body.nodes:
        if name in made and made[name].operator == "Identity":
            name = made[name].inputs[0]
    if name == body.inputs[1].name:
        return True
    if name in made:
        value = made[name].attributes.get("value") if made[name].operator == "Constant" else None
        known = None if value is None else c.importer.numbers(OnnxConstant(name, value))
    elif name in body.initializers:
        known = c.importer.numbers(OnnxConstant(name, body.initializers[name]))
    else:
        found = c.importer.value(name)
        known = c.importer.numbers(found) if isinstance(found, (Variable, OnnxConstant)) else None
    return known is not None and bool(known.reshape(-1)[0])


def _written_out(c: Call, body: GraphRecord, state: list[Any], rounds: int) -> Any:
    """Import the body for each of a known number of rounds."""
    count = len(state)
    stacked = len(body.outputs) - 1 - count
    found: list[list[Variable]] = [[] for _ in range(stacked)]
    for at in range(rounds):
        given = {body.inputs[0].name: OnnxConstant("", None, np.array(at, "int64")), body.inputs[1].name: OnnxConstant("", None, np.array(True))}
        out = run_graph(c, body, given | {v.name: value for v, value in zip(body.inputs[2:], state, strict=True)})
        state = out[1 : 1 + count]
        for into, value in zip(found, out[1 + count :], strict=True):
            into.append(c.importer.variable(value))
    return (*(layer.assign(v) if isinstance(v, Variable) else v for v in state), *(layer.stack(parts, 0) for parts in found))


def _while(c: Call, limit: Variable | None, holds: Variable, state: Sequence[Variable], step: Callable[..., Any], stacked: int, sure: bool) -> list[Variable]:
    """Describe a loop; returns its last state and the results of its rounds, stacked. ``sure``: it has at least one round."""
    number = c.full([1], INT64, 0)
    arrays = [layer.create_array() for _ in range(stacked)]

    def condition(number: Variable, holds: Variable, *_: Variable) -> Variable:
        return holds if limit is None else layer.logical_and(holds, layer.less_than(number, limit))

    def body(number: Variable, holds: Variable, *values: Variable) -> list[Variable]:
        go, new, found = step(number, holds, list(values))
        for array, value in zip(arrays, found, strict=True):
            layer.array_write(value, number, array)
        return [layer.scale(number, 1.0, 1.0), go, *(layer.assign(v) for v in new)]

    number, _, *last = layer.while_loop(condition, body, [number, holds, *state])
    return [*last, *(_stack(c, array, None if sure else number) for array in arrays)]


def _stack(c: Call, array: Variable, rounds: Variable | None) -> Variable:
    """Return the elements of an array as one tensor; after no ``rounds`` there is none, and an open size is 0 then."""
    if rounds is None:
        return layer.tensor_array_to_tensor(array, 0, use_stack=True)[0]
    of, dims = array.spec.known_dtype, array.spec.dims
    if dims is None:
        raise Refused("results of rounds, stacked, whose number of dims is not known before the run")
    empty = [0, *(d if isinstance(d, int) else 0 for d in dims)]
    some = layer.greater_than(rounds, c.full([1], INT64, 0))
    return layer.cond(some, lambda: layer.tensor_array_to_tensor(array, 0, use_stack=True)[0], lambda: c.full(empty, of, 0))


def rounds_over(c: Call, source: Variable, axis: int, state: Sequence[Variable], step: Step, stacked: int, nodes: int) -> tuple[list[Variable], list[Variable]]:
    """Run ``step`` for each entry of an axis of ``source``: written out for a small number, a loop otherwise.

    ``nodes``: the size of a step. Returns the last state and the stacks.
    """
    now, length = list(state), source.spec.known_dims[axis]
    if isinstance(length, int) and 0 < length * max(1, nodes) <= _MOST_WRITTEN_OUT:
        found: list[list[Variable]] = [[] for _ in range(stacked)]
        for at in range(length):
            now, given = step(at, now)
            for into, value in zip(found, given, strict=True):
                into.append(value)
        return now, [layer.stack(parts, 0) for parts in found]
    limit = layer.slice(c.shape_of(source), [0], [axis], [axis + 1])

    def one(number: Variable, holds: Variable, values: list[Variable]) -> Any:
        return holds, *step(number, values)

    out = _while(c, limit, c.full([1], BOOL, True), now, one, stacked, False)
    return out[: len(now)], out[len(now) :]


def entry(c: Call, x: Variable, axis: int, at: int | Variable, back: bool) -> Variable:
    """Return an entry of an axis, without it: by a number, or by a variable int64 [1]; ``back`` counts from the end."""
    length = x.spec.known_dims[axis]
    if isinstance(at, int):
        place = length - 1 - at if back and isinstance(length, int) else at
        return c.op("slice", {"axes": [axis], "starts": [place], "ends": [place + 1], "infer_flags": [1], "decrease_axis": [axis]}, Input=x)
    if back:
        last = layer.slice(c.shape_of(x), [0], [axis], [axis + 1])
        at = layer.scale(last - at, 1.0, -1.0)
    return c.squeeze(layer.gather(x, at, axis), axis)


# --- scans


@onnx("Scan", since=9)
def scan(c: Call) -> Any:
    """Run the body over the entries of its scan inputs."""
    inputs = int(c.attribute("num_scan_inputs"))
    first = len(c.node.inputs) - inputs
    state = [c.x(at) for at in range(first)]
    entries = [c.x(at) for at in range(first, len(c.node.inputs))]
    axes = [c.axis(int(a), c.rank(e)) for a, e in zip(c.attribute("scan_input_axes") or [0] * inputs, entries, strict=True)]
    last, stacks = _scanned(c, state, entries, axes, c.attribute("scan_input_directions") or [0] * inputs)
    outputs = len(stacks)
    axes_out = c.attribute("scan_output_axes") or [0] * outputs
    for at, (axis, back) in enumerate(zip(axes_out, c.attribute("scan_output_directions") or [0] * outputs, strict=True)):
        out = layer.flip(stacks[at], [0]) if back else stacks[at]
        rank = c.rank(out)
        axis = c.axis(int(axis), rank)
        order = [*range(1, rank)]
        order.insert(axis, 0)
        stacks[at] = c.transpose(out, order)
    return (*(layer.assign(v) for v in last), *stacks)


def _scanned(c: Call, state: list[Variable], entries: list[Variable], axes: list[int], turned: Sequence[int]) -> tuple[list[Variable], list[Variable]]:
    body: GraphRecord = c.node.attributes["body"]
    count = len(state)

    def step(at: Any, values: list[Variable]) -> tuple[list[Variable], list[Variable]]:
        given: dict[str, Any] = {v.name: value for v, value in zip(body.inputs[:count], values, strict=True)}
        for v, x, axis, back in zip(body.inputs[count:], entries, axes, turned, strict=True):
            given[v.name] = entry(c, x, axis, at, bool(back))
        out = [c.importer.variable(v) for v in run_graph(c, body, given)]
        return out[:count], out[count:]

    return rounds_over(c, entries[0], axes[0], state, step, len(body.outputs) - count, len(body.nodes))


@onnx("Scan")
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
    found: list[list[Variable]] = []
    for at in range(batch):
        mine = [entry(c, x, 0, at, False) for x in operands]
        last, stacks = _scanned(c, mine[: first - 1], mine[first - 1 :], [0] * inputs, c.attribute("directions") or [0] * inputs)
        found.append([*last, *stacks])
    return tuple(layer.stack(list(parts), 0) for parts in zip(*found, strict=True))
