"""Distinct elements."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.node_rules import onnx
from foreshape.program.variable import Variable
from foreshape.spec import FP32, FP64, INT32, INT64


@onnx("Unique")
def unique(c: Call) -> Any:
    """The distinct elements, or entries of an axis, their first places, the place of each among them, and their counts."""
    x, axis = c.x(), c.attribute("axis")
    of = x.spec.known_dtype
    wide = of if of in (FP32, FP64, INT32, INT64) else FP32 if of.is_floating else INT32
    axes = [] if axis is None else [c.axis(int(axis), c.rank(x))]
    attrs = {"is_sorted": True, "return_index": True, "return_inverse": True, "return_counts": True, "axis": axes, "dtype": INT64.code}
    block = c.importer.block
    name = block.program.layer_name("unique")
    names = {slot: f"{name}.tmp_{at}" for at, slot in enumerate(("Out", "Indices", "Index", "Counts"))}
    block.append_op("unique", {"X": c.cast(x, wide)}, names, attrs)
    values, first, inverse, counts = (block.vars[name] for name in names.values())
    if not c.attribute("sorted", 1):
        order = _places(c, first)
        inverse = layer.gather(_places(c, order), inverse, 0)
        values = layer.gather(values, order, axes[0] if axes else 0)
        first, counts = (layer.gather(one, order, 0) for one in (first, counts))
    return tuple([c.cast(values, of), first, inverse, counts][: len(c.node.outputs)])


def _places(c: Call, x: Variable) -> Variable:
    """Return the places of the entries in rising order."""
    return c.op("argsort", {"axis": 0, "descending": False, "stable": True}, X=x)[1]
