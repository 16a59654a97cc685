"""Losses of classes: the negative logarithm of the probability of the wanted class."""

from __future__ import annotations

from typing import Any

from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.onnx.reduce_nodes import reduce
from foreshape.program.variable import Variable
from foreshape.spec import INT64


@onnx("NegativeLogLikelihoodLoss")
def negative_log_likelihood(c: Call) -> Any:
    return _loss(c, c.x(0), c.x(1), c.optional(2))


@onnx("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(c: Call) -> Any:
    logarithms = c.op("log_softmax", {"axis": 1}, X=c.x(0))
    return _loss(c, logarithms, c.x(1), c.optional(2)), logarithms


def _loss(c: Call, x: Variable, target: Variable, weight: Variable | None) -> Variable:
    """Return the loss of logarithms [N, C, ...] for classes [N, ...], each weighted by its class; elements of ``ignore_index`` count nothing."""
    ignored, kind = c.attribute("ignore_index"), c.attribute("reduction", "mean")
    target = c.cast(target, INT64)
    place, held = target, None
    if ignored is not None:
        held = c.op("not_equal", X=target, Y=c.like(int(ignored), target))
        place = c.op("where", Condition=held, X=target, Y=c.op("fill_any_like", {"value": 0.0, "dtype": -1}, X=target))
    picked = c.squeeze(c.op("take_along_axis", {"Axis": 1}, Input=x, Index=c.unsqueeze(place, 1)), 1)
    loss = c.op("scale", {"scale": -1.0}, X=picked)
    if weight is not None:
        flat = c.op("gather", {"axis": 0}, X=weight, Index=c.reshape(place, [-1]))
        factor = c.op("reshape2", {"shape": [0]}, X=flat, Shape=c.shape_of(place))[0]
    else:
        factor = c.op("fill_any_like", {"value": 1.0, "dtype": -1}, X=loss)
    if held is not None:
        factor = c.op("where", Condition=held, X=factor, Y=c.op("fill_any_like", {"value": 0.0, "dtype": -1}, X=factor))
        loss = c.op("where", Condition=held, X=loss, Y=c.op("fill_any_like", {"value": 0.0, "dtype": -1}, X=loss))
    loss = c.binary("elementwise_mul", loss, factor) if weight is not None else loss
    if kind == "none":
        return loss
    total = reduce(c, "Sum", loss, None, False)
    return total if kind == "sum" else c.binary("elementwise_div", total, reduce(c, "Sum", factor, None, False))
