"""Losses of classes: the negative logarithm of the probability of the wanted class."""

from __future__ import annotations

from typing import Any

from foreshape import layer
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
    logarithms = layer.log_softmax(c.x(0), 1)
    return _loss(c, logarithms, c.x(1), c.optional(2)), logarithms


def _loss(c: Call, x: Variable, target: Variable, weight: Variable | None) -> Variable:
    """Return the loss of logarithms [N, C, ...] for classes [N, ...], each weighted by its class; elements of ``ignore_index`` count nothing."""
    ignored, kind = c.attribute("ignore_index"), c.attribute("reduction", "mean")
    target = c.cast(target, INT64)
    place, held = target, None
    if ignored is not None:
        held = layer.not_equal(target, c.like(int(ignored), target))
        place = layer.where(held, target, layer.fill_like(target, 0.0))
    picked = c.squeeze(layer.take_along_axis(x, c.unsqueeze(place, 1), 1), 1)
    loss = layer.scale(picked, -1.0)
    if weight is not None:
        flat = layer.gather(weight, c.reshape(place, [-1]), 0)
        factor = c.reshape_to(flat, c.shape_of(place))
    else:
        factor = layer.fill_like(loss, 1.0)
    if held is not None:
        factor = layer.where(held, factor, layer.fill_like(factor, 0.0))
        loss = layer.where(held, loss, layer.fill_like(loss, 0.0))
    loss = loss * factor if weight is not None else loss
    if kind == "none":
        return loss
    total = reduce(c, "Sum", loss, None, False)
    return total if kind == "sum" else layer.divide(total, reduce(c, "Sum", factor, None, False))
