"""Losses of regression and of probabilities: by element and by row, and the accuracy of a classification.

``sample_weight`` is the factor of each example's loss: ``[batch]``, ``[batch, 1]``, or of the dims of the loss. A mean over a batch
still divides by the number of examples, not by the sum of the weights; see `weighted_mean`.
"""

from __future__ import annotations

from typing import Any

from foreshape.errors import SchemaError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.basic import mean
from foreshape.layer.functions import softplus
from foreshape.layer.labels import same_dims
from foreshape.layer.reductions import reduce_sum
from foreshape.layer.weights import ClassWeight, by_example, class_weights


def square_error_cost(x: Variable, label: Variable, *, sample_weight: Variable | None = None) -> Variable:
    """Return sample_weight (x - label)^2, elementwise.

    Args:
        x: predictions, floats of any shape.
        label: of the dims of x.
        sample_weight: ``[batch]``, ``[batch, 1]``, or of the dims of the loss: the factor of each example's loss.

    Raises:
        ShapeError: a label of other dims than x's.
    """
    same_dims("square_error_cost", x=x, label=label)
    block = current_block()
    prefix = block.program.layer_name("square_error_cost")
    difference = block.apply("elementwise_sub", {"X": x, "Y": label}, {"axis": -1}, prefix)
    return by_example(block.apply("square", {"X": difference}, prefix=prefix), sample_weight, "square_error_cost")


def mse_loss(x: Variable, label: Variable, *, sample_weight: Variable | None = None) -> Variable:
    """Return the mean of sample_weight (x - label)^2 over all elements, a tensor without dims; the label has the dims of x.

    Args:
        x: predictions, floats of any shape.
        label: of the dims of x.
        sample_weight: ``[batch]``, ``[batch, 1]``, or of the dims of the loss: the factor of each example's loss.
    """
    return mean(square_error_cost(x, label, sample_weight=sample_weight))


def huber_loss(x: Variable, label: Variable, delta: float = 1.0, *, sample_weight: Variable | None = None) -> Variable:
    """Return r^2 / 2 where the residual r = label - x is within ``delta`` of 0, otherwise delta * (|r| - delta / 2); elementwise.

    It is multiplied by ``sample_weight``.

    Args:
        x: predictions, floats.
        label: of the dims of x.
        delta: above 0: where the square ends.
        sample_weight: ``[batch]``, ``[batch, 1]``, or of the dims of the loss: the factor of each example's loss.

    Raises:
        ShapeError: a label of other dims.
    """
    _, out = current_block().apply("huber_loss", {"X": x, "Y": label}, {"delta": delta})
    return by_example(out, sample_weight, "huber_loss")


@tells_line
def sigmoid_cross_entropy_with_logits(
    x: Variable, label: Variable, ignore_index: int = -100, normalize: bool = False, *, positive_weight: ClassWeight = None,
    class_weight: ClassWeight = None, sample_weight: Variable | None = None,
) -> Variable:  # fmt: skip
    """Return the cross entropy of sigmoid(x) and a label in [0, 1], elementwise: -w (v y log(sigmoid(x)) + (1 - y) log(1 - sigmoid(x))).

    Args:
        x: logits of any shape.
        label: of the same shape and element type.
        ignore_index: a label with a loss of 0.
        normalize: divide by the number of elements not ignored.
        positive_weight: v, one number for each column (the last axis), for rare labels: a variable, a list, or a dict of the weights other than 1;
            only without ignored labels.
        class_weight: w, as well one number for each column.
        sample_weight: ``[batch]``, ``[batch, 1]`` or of the dims of x: the factor of the loss.

    Raises:
        ShapeError: a label of other dims; mismatched weights. TypeMismatchError: a label of another element type.
        SchemaError: positive_weight with another ignore_index, or with normalize.
    """
    name = "sigmoid_cross_entropy_with_logits"
    loss = current_block().apply(name, {"X": x, "Label": label}, {"ignore_index": ignore_index, "normalize": normalize})
    if positive_weight is not None:
        if ignore_index != -100 or normalize:
            raise SchemaError(f"{name}: positive_weight goes without ignore_index and normalize; seen {ignore_index} and {normalize}")
        loss = loss + label * softplus(x * -1.0) * (class_weights(positive_weight, x, -1, name) - 1.0)
    if class_weight is not None:
        loss = loss * class_weights(class_weight, x, -1, name)
    return by_example(loss, sample_weight, name)


@tells_line
def bce_loss(x: Variable, label: Variable, *, class_weight: ClassWeight = None, sample_weight: Variable | None = None) -> Variable:
    """Return the cross entropy of probabilities and a label in [0, 1], elementwise.

    It is multiplied by ``class_weight``, one number for each column (the last axis), and by ``sample_weight``.

    Args:
        x: the probabilities, of any shape.
        label: numbers in [0, 1], as x.
        class_weight: a variable, a list, or a dict of the weights other than 1.
        sample_weight: a number for each example, ``[batch]`` or ``[batch, 1]``.
    """
    loss = current_block().apply("bce_loss", {"X": x, "Label": label})
    if class_weight is not None:
        loss = loss * class_weights(class_weight, x, -1, "bce_loss")
    return by_example(loss, sample_weight, "bce_loss")


def log_loss(x: Variable, label: Variable, epsilon: float = 1e-4, *, sample_weight: Variable | None = None) -> Variable:
    """Return the cross entropy of probabilities and a label of 0 or 1, elementwise, with ``epsilon`` added inside of the logarithms.

    It is multiplied by ``sample_weight``.

    Args:
        x: the probabilities, of any shape.
        label: 0 or 1, floats as x.
        epsilon: keeps the logarithms finite.
        sample_weight: a number for each example, ``[batch]`` or ``[batch, 1]``.
    """
    return by_example(current_block().apply("log_loss", {"Predicted": x, "Labels": label}, {"epsilon": epsilon}), sample_weight, "log_loss")


def kldiv_loss(x: Variable, label: Variable, reduction: str = "mean", *, log_target: bool = False, sample_weight: Variable | None = None) -> Variable:
    """Return label * (log(label) - x), where x is the logarithm of a distribution; ``reduction`` is none, sum, mean or batchmean.

    With ``sample_weight`` each element is multiplied by its example's weight first.

    Args:
        x: logarithms of a distribution, floats of any shape.
        label: a distribution, of the dims of x.
        reduction: none, sum, mean, or batchmean, the sum divided by the first dim.
        log_target: label has logarithms of a distribution, too: exp(label) * (label - x).
        sample_weight: ``[batch]``, ``[batch, 1]``, or of the dims of the loss: the factor of each example's loss.
    """
    operands = {"X": x, "Target": label}
    if sample_weight is None:
        return current_block().apply("kldiv_loss", operands, {"reduction": reduction, "log_target": log_target})
    loss = by_example(current_block().apply("kldiv_loss", operands, {"reduction": "none", "log_target": log_target}), sample_weight, "kldiv_loss")
    if reduction == "batchmean":
        return mean(reduce_sum(loss, list(range(1, loss.spec.rank))))
    return _reduced("kldiv_loss", loss, reduction)


@tells_line
def nll_loss(
    x: Variable, label: Variable, class_weight: Variable | None = None, ignore_index: int = -100, reduction: str = "mean", *,
    sample_weight: Variable | None = None,
) -> Variable:  # fmt: skip
    """Return the negative log likelihood of class numbers.

    Args:
        x: logarithms of distributions, ``[n, classes]`` or ``[n, classes, height, width]``.
        label: class numbers, ``[n]`` or ``[n, height, width]``.
        class_weight: of each class, ``[classes]``.
        ignore_index: a class number left out.
        reduction: none, sum, or mean, the sum over the sum of the weights.
        sample_weight: ``[n]`` or of the dims of the label: the factor of the loss. The mean divides by the same as without it.

    Raises:
        ShapeError: a label or weights of other dims. SchemaError: another reduction.
    """
    inputs = {"X": x, "Label": label} | ({"Weight": class_weight} if class_weight is not None else {})
    attrs: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}
    out, total = current_block().apply("nll_loss", inputs, attrs)
    if sample_weight is None:
        return out
    total.stop_gradient = True
    losses, _ = current_block().apply("nll_loss", inputs, attrs | {"reduction": "none"})
    weighted = by_example(losses, sample_weight, "nll_loss")
    return reduce_sum(weighted) / total if reduction == "mean" else _reduced("nll_loss", weighted, reduction)


def _reduced(layer: str, loss: Variable, reduction: str) -> Variable:
    if reduction not in ("none", "sum", "mean"):
        raise SchemaError.one_of(f"{layer}: reduction", ("none", "sum", "mean"), reduction)
    return loss if reduction == "none" else reduce_sum(loss) if reduction == "sum" else mean(loss)


def smooth_l1(
    x: Variable, label: Variable, inside_weight: Variable | None = None, outside_weight: Variable | None = None, sigma: float = 1.0, *,
    sample_weight: Variable | None = None,
) -> Variable:  # fmt: skip
    """Return the sum over each row of sigma^2 * d^2 / 2 where |d| < 1 / sigma^2, else |d| - 1 / (2 sigma^2); ``[rows, 1]``.

    d is inside_weight * (x - label); each summand is multiplied by outside_weight. All have the dims of x; both weights are given, or neither.

    Args:
        x, label: floats ``[rows, ...]`` of the same dims.
        inside_weight, outside_weight: as of the formula.
        sigma: sets the end of the square.
        sample_weight: the factor of each row's cost, ``[rows]`` or ``[rows, 1]``.
    """
    inputs = {"X": x, "Y": label, "InsideWeight": inside_weight, "OutsideWeight": outside_weight}
    _, out = current_block().apply("smooth_l1_loss", {s: v for s, v in inputs.items() if v is not None}, {"sigma": sigma})
    return by_example(out, sample_weight, "smooth_l1")


def hinge_loss(logits: Variable, label: Variable, *, sample_weight: Variable | None = None) -> Variable:
    """Return sample_weight * max(0, 1 - logits * (2 * label - 1)) for labels of 0 and 1; both ``[n, 1]``.

    Args:
        logits: scores ``[n, 1]``, floats.
        label: 0 or 1, ``[n, 1]``, of the element type of logits.
        sample_weight: ``[n]`` or ``[n, 1]``: the factor of each row's loss.
    """
    return by_example(current_block().apply("hinge_loss", {"Logits": logits, "Labels": label}), sample_weight, "hinge_loss")


def rank_loss(label: Variable, left: Variable, right: Variable, *, sample_weight: Variable | None = None) -> Variable:
    """Return the cross entropy of sigmoid(left - right) and a label that is 1 if left should be higher, times sample_weight; all ``[n, 1]``.

    Args:
        label: 1 or 0 (or between), ``[n, 1]``, floats.
        left, right: scores ``[n, 1]``, floats.
        sample_weight: ``[n]`` or ``[n, 1]``: the factor of each row's loss.
    """
    return by_example(current_block().apply("rank_loss", {"Label": label, "Left": left, "Right": right}), sample_weight, "rank_loss")


def margin_rank_loss(label: Variable, left: Variable, right: Variable, margin: float = 0.1, *, sample_weight: Variable | None = None) -> Variable:
    """Return sample_weight * max(0, margin - label * (left - right)), where the label is 1 if left should be higher and otherwise -1; all ``[n, 1]``.

    Args:
        label: 1 or -1, ``[n, 1]``, floats.
        left, right: scores ``[n, 1]``, floats.
        margin: how far apart the scores should be.
        sample_weight: ``[n]`` or ``[n, 1]``: the factor of each row's loss.
    """
    _, out = current_block().apply("margin_rank_loss", {"Label": label, "X1": left, "X2": right}, {"margin": margin})
    return by_example(out, sample_weight, "margin_rank_loss")


def bpr_loss(x: Variable, label: Variable, *, sample_weight: Variable | None = None) -> Variable:
    """Return the mean, over the other classes, of how far their scores are above the label's: log(1 + exp(score - label's score)); ``[n, 1]``.

    It is multiplied by ``sample_weight``.

    Args:
        x: scores, ``[n, classes]``.
        label: the true class of each row, int32 or int64 ``[n, 1]``.
        sample_weight: a number for each row, ``[n]`` or ``[n, 1]``.
    """
    return by_example(current_block().apply("bpr_loss", {"X": x, "Label": label}), sample_weight, "bpr_loss")


def label_smooth(label: Variable, prior: Variable | None = None, label_smoothing: float = 0.1) -> Variable:
    """Return (1 - s) * label + s * prior, where s is ``label_smoothing``, for distributions ``[..., classes]``; by default the prior is uniform.

    Args:
        label: distributions ``[..., classes]``, floats.
        prior: ``[1, classes]``, a distribution.
        label_smoothing: s, from 0 to 1.
    """
    inputs = {"X": label} | ({"PriorDist": prior} if prior is not None else {})
    return current_block().apply("label_smooth", inputs, {"epsilon": label_smoothing})


def cos_sim(x: Variable, y: Variable) -> Variable:
    """Return the cosine of the angle between each row of x and of y (or the one row of y); ``[rows, 1]``.

    Args:
        x: ``[rows, features]``, floats.
        y: the same, or one row ``[1, features]``.
    """
    out, _, _ = current_block().apply("cos_sim", {"X": x, "Y": y})
    return out


def accuracy(x: Variable, label: Variable, k: int = 1) -> Variable:
    """Return the part of the rows whose label is among the ``k`` largest scores, a tensor without dims.

    Args:
        x: scores ``[batch, classes]``.
        label: class numbers ``[batch, 1]``.
        k: how many of the largest scores count.

    Raises:
        ShapeError: a label of another minibatch, or fewer than ``k`` classes.
    """
    block = current_block()
    prefix = block.program.layer_name("accuracy")
    out, indices = block.apply("top_k_v2", {"X": x}, {"k": k, "axis": -1, "largest": True, "sorted": False}, prefix)
    ratio, _, _ = block.apply("accuracy", {"Out": out, "Indices": indices, "Label": label}, prefix=prefix)
    return ratio
