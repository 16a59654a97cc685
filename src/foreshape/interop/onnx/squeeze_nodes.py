"""Squeeze: of all dims of 1 the run tells how many are left where few nodes follow, otherwise open dims are demanded to stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape import layer
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.importer import RestInBranches
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.onnx.subgraph_nodes import with_rest
from foreshape.program.variable import Variable
from foreshape.spec import INT64
from foreshape.wire.onnx_records import NodeRecord

_MOST_TWICE = 16
"""So many following nodes are imported twice: with an open dim and without it."""


@onnx("Squeeze")
def squeeze(c: Call) -> Any:
    x = c.x()
    given = c.computed(1) if c.opset >= 13 else None
    if given is not None:
        return computed.squeezed(c, x, given)
    axes = c.ints(1) if c.opset >= 13 else c.ints(9, "axes")
    if axes is not None:
        return _without(c, x, axes)
    dims = x.spec.known_dims
    unknown = [at for at, d in enumerate(dims) if not isinstance(d, int)]
    ones = [at for at, d in enumerate(dims) if d == 1]
    if unknown:
        raise RestInBranches(lambda rest, results: _with_rest(c, x, unknown, ones, rest, results))
    return _without(c, x, ones)


def _without(c: Call, x: Variable, axes: Sequence[int]) -> Variable:
    return c.squeeze(x, *axes) if axes else layer.assign(x)


def _with_rest(c: Call, x: Variable, unknown: list[int], ones: list[int], rest: Sequence[NodeRecord], results: Sequence[str]) -> None:
    """Import the rest after a squeeze: in branches by one open dim if the rest is short, and with the others as they are."""
    importer = c.importer
    for at in unknown[1:] if len(rest) <= _MOST_TWICE else unknown:
        stays = importer.free_name(f"dim_{at}_of_{x.name}_is_not_1")
        importer.block.append_op("not_equal", {"X": _size(c, x, at), "Y": c.full([1], INT64, 1)}, {"Out": stays})
        importer.block.append_op("assert", {"Cond": stays}, {}, {})
    if len(rest) > _MOST_TWICE:
        importer.define(c.node.outputs[0], _without(c, x, ones), c.node.place)
        importer.nodes(rest, results)
        return
    at = unknown[0]
    branches = (lambda: [_without(c, x, sorted([*ones, at]))], lambda: [_without(c, x, ones)])
    with_rest(c, lambda: layer.equal(_size(c, x, at), c.full([1], INT64, 1)), branches, rest, results)


def _size(c: Call, x: Variable, at: int) -> Variable:
    return layer.slice(c.shape_of(x), [0], [at], [at + 1])
