"""Branches, loops and scans: graphs within nodes become blocks."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.interop.onnx.call import Call, Refused
from foreshape.interop.onnx.registry import onnx
from foreshape.program.variable import Variable
from foreshape.spec import BOOL, INT64
from foreshape.wire.onnx_records import GraphRecord


def _truth(c: Call, x: Variable) -> Variable:
    return c.cast(x, BOOL)


@onnx("If")
def branch(c: Call) -> Any:
    """Import one branch where the condition is known before the run, otherwise both."""
    then, otherwise = c.node.attributes["then_branch"], c.node.attributes["else_branch"]
    known = c.constant(0)
    importer = c.importer

    def run(graph: GraphRecord) -> list[Any]:
        with importer.inside(graph, {}):
            importer.nodes(graph.nodes)
            return [importer.value(v.name) for v in graph.outputs]

    if known is not None:
        return tuple(run(then if bool(known.reshape(-1)[0]) else otherwise))

    def made(graph: GraphRecord) -> list[Variable]:
        values = run(graph)
        if any(isinstance(v, list) for v in values):
            raise Refused("a sequence as the result of a branch")
        return [layer.assign(importer.variable(v)) for v in values]

    out = layer.cond(_truth(c, c.x(0)), lambda: made(then), lambda: made(otherwise))
    return tuple(out)


@onnx("Loop")
def loop(c: Call) -> Any:
    """Run the body up to a number of times, while a condition holds; what it gives for each round is stacked."""
    body: GraphRecord = c.node.attributes["body"]
    importer = c.importer
    state = [importer.variable(c.value(at)) for at in range(2, len(c.node.inputs))]
    count = len(state)
    stacked = len(body.outputs) - 1 - count
    limit = c.cast(c.x(0), INT64) if c.has(0) else None
    limit = None if limit is None else c.reshape(limit, [1])
    holds = c.reshape(_truth(c, c.x(1)), [1]) if c.has(1) else c.full([1], BOOL, True)
    number = c.full([1], INT64, 0)
    if stacked:
        return _stacking(c, body, state, limit, holds, number, stacked)

    def condition(number: Variable, holds: Variable, *_: Variable) -> Variable:
        return holds if limit is None else layer.logical_and(holds, layer.less_than(number, limit))

    def step(number: Variable, holds: Variable, *values: Variable) -> list[Variable]:
        given = {body.inputs[0].name: c.reshape(number, []), body.inputs[1].name: c.reshape(holds, [])}
        given |= {v.name: value for v, value in zip(body.inputs[2:], values, strict=True)}
        with importer.inside(body, given):
            importer.nodes(body.nodes)
            out = [importer.variable(importer.value(v.name)) for v in body.outputs]
        return [c.op("scale", {"scale": 1.0, "bias": 1.0}, X=number), c.reshape(_truth(c, out[0]), [1]), *(layer.assign(v) for v in out[1:])]

    return tuple(layer.while_loop(condition, step, [number, holds, *state])[2:])


def _stacking(c: Call, body: GraphRecord, state: list[Variable], limit: Variable | None, holds: Variable, number: Variable, stacked: int) -> Any:
    raise Refused("results of each round, stacked")


@onnx("Scan")
def scan(c: Call) -> Any:
    """A scan over a known number of entries is written out; over an open number it is refused."""
    body: GraphRecord = c.node.attributes["body"]
    if c.opset < 9:
        raise Refused("a scan of operator set 8")
    inputs = int(c.attribute("num_scan_inputs"))
    importer = c.importer
    first = len(c.node.inputs) - inputs
    state: list[Any] = [importer.variable(c.value(at)) for at in range(first)]
    entries = [c.x(at) for at in range(first, len(c.node.inputs))]
    axes = [c.axis(int(a), c.rank(e)) for a, e in zip(c.attribute("scan_input_axes") or [0] * inputs, entries, strict=True)]
    length = entries[0].spec.known_dims[axes[0]]
    if not isinstance(length, int) or length > 4096 or not length:
        raise Refused("a scan over an open number of entries, over none, or over more than 4,096")
    turned = c.attribute("scan_input_directions") or [0] * inputs
    outputs = len(body.outputs) - first
    found: list[list[Variable]] = [[] for _ in range(outputs)]
    for at in range(length):
        given: dict[str, Any] = {v.name: value for v, value in zip(body.inputs[:first], state, strict=True)}
        for v, entry, axis, back in zip(body.inputs[first:], entries, axes, turned, strict=True):
            place = length - 1 - at if back else at
            attrs = {"axes": [axis], "starts": [place], "ends": [place + 1], "infer_flags": [1], "decrease_axis": [axis]}
            given[v.name] = c.op("slice", attrs, Input=entry)
        with importer.inside(body, given):
            importer.nodes(body.nodes)
            values = [importer.variable(importer.value(v.name)) for v in body.outputs]
        state = values[:first]
        for into, value in zip(found, values[first:], strict=True):
            into.append(value)
    axes_out = c.attribute("scan_output_axes") or [0] * outputs
    back_out = c.attribute("scan_output_directions") or [0] * outputs
    stacks = [c.op("stack", {"axis": int(a)}, X=parts[::-1] if back else parts) for parts, a, back in zip(found, axes_out, back_out, strict=True)]
    return (*(c.op("assign", X=s) for s in state), *stacks)
