"""Losses of regression and of probabilities, and the accuracy of a classification."""

from __future__ import annotations

from foreshape.layer.basic import mean
from foreshape.program.current import current_block
from foreshape.program.variable import Variable


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """(input - label)^2, elementwise; the smaller is broadcast."""
    block = current_block()
    prefix = block.program.layer_name("square_error_cost")
    difference = block.apply("elementwise_sub", {"X": input, "Y": label}, {"axis": -1}, prefix)
    return block.apply("square", {"X": difference}, prefix=prefix)


def mse_loss(input: Variable, label: Variable) -> Variable:
    """The mean of (input - label)^2, a tensor without dims."""
    return mean(square_error_cost(input, label))


def huber_loss(input: Variable, label: Variable, delta: float = 1.0) -> Variable:
    """r^2 / 2 where the residual r = label - input is within ``delta`` of 0, otherwise delta * (|r| - delta / 2); elementwise.

    Raises:
        ShapeError: a label of other dims.
    """
    _, out = current_block().apply("huber_loss", {"X": input, "Y": label}, {"delta": delta})
    return out


def sigmoid_cross_entropy_with_logits(x: Variable, label: Variable, ignore_index: int = -100, normalize: bool = False) -> Variable:
    """The cross entropy of sigmoid(x) and a label in [0, 1], elementwise.

    Args:
        x: logits of any shape.
        label: of the same shape and element type.
        ignore_index: where the label is this, the loss is 0.
        normalize: divide by the number of elements that are not ignored.

    Raises:
        ShapeError: a label of other dims. TypeMismatchError: a label of another element type.
    """
    return current_block().apply("sigmoid_cross_entropy_with_logits", {"X": x, "Label": label}, {"ignore_index": ignore_index, "normalize": normalize})


def bce_loss(input: Variable, label: Variable) -> Variable:
    """The cross entropy of probabilities and a label in [0, 1], elementwise."""
    return current_block().apply("bce_loss", {"X": input, "Label": label})


def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4) -> Variable:
    """The cross entropy of probabilities and a label of 0 or 1, elementwise, with ``epsilon`` added inside of the logarithms."""
    return current_block().apply("log_loss", {"Predicted": input, "Labels": label}, {"epsilon": epsilon})


def kldiv_loss(x: Variable, target: Variable, reduction: str = "mean") -> Variable:
    """target * (log(target) - x), where x is the logarithm of a distribution; ``reduction`` is none, sum, mean or batchmean."""
    return current_block().apply("kldiv_loss", {"X": x, "Target": target}, {"reduction": reduction})


def nll_loss(x: Variable, label: Variable, weight: Variable | None = None, ignore_index: int = -100, reduction: str = "mean") -> Variable:
    """The negative log likelihood of class numbers.

    Args:
        x: logarithms of distributions, ``[n, classes]`` or ``[n, classes, height, width]``.
        label: class numbers, ``[n]`` or ``[n, height, width]``.
        weight: of each class, ``[classes]``.
        ignore_index: a class number that does not count.
        reduction: none, sum, or mean, which is the sum over the sum of the weights.

    Raises:
        ShapeError: a label or weights of other dims.
    """
    inputs = {"X": x, "Label": label} | ({"Weight": weight} if weight is not None else {})
    out, _ = current_block().apply("nll_loss", inputs, {"ignore_index": ignore_index, "reduction": reduction})
    return out


def smooth_l1(x: Variable, y: Variable, inside_weight: Variable | None = None, outside_weight: Variable | None = None, sigma: float = 1.0) -> Variable:
    """The sum over each row of sigma^2 * d^2 / 2 where |d| < 1 / sigma^2, else |d| - 1 / (2 sigma^2); ``[rows, 1]``.

    d is inside_weight * (x - y); each summand is multiplied by outside_weight. All have the dims of x; both weights are given, or neither.
    """
    inputs = {"X": x, "Y": y, "InsideWeight": inside_weight, "OutsideWeight": outside_weight}
    _, out = current_block().apply("smooth_l1_loss", {s: v for s, v in inputs.items() if v is not None}, {"sigma": sigma})
    return out


def hinge_loss(logits: Variable, label: Variable) -> Variable:
    """max(0, 1 - logits * (2 * label - 1)) for labels of 0 and 1; both ``[n, 1]``."""
    return current_block().apply("hinge_loss", {"Logits": logits, "Labels": label})


def rank_loss(label: Variable, left: Variable, right: Variable) -> Variable:
    """The cross entropy of sigmoid(left - right) and a label that is 1 if left should be higher; all ``[n, 1]``."""
    return current_block().apply("rank_loss", {"Label": label, "Left": left, "Right": right})


def margin_rank_loss(label: Variable, left: Variable, right: Variable, margin: float = 0.1) -> Variable:
    """max(0, margin - label * (left - right)), where the label is 1 if left should be higher and otherwise -1; all ``[n, 1]``."""
    _, out = current_block().apply("margin_rank_loss", {"Label": label, "X1": left, "X2": right}, {"margin": margin})
    return out


def bpr_loss(input: Variable, label: Variable) -> Variable:
    """The mean, over the other classes, of how far their scores are above the label's: log(1 + exp(score - label's score)); ``[n, 1]``."""
    return current_block().apply("bpr_loss", {"X": input, "Label": label})


def label_smooth(label: Variable, prior: Variable | None = None, epsilon: float = 0.1) -> Variable:
    """(1 - epsilon) * label + epsilon * prior, for distributions ``[..., classes]``; the prior is uniform where it is left out."""
    inputs = {"X": label} | ({"PriorDist": prior} if prior is not None else {})
    return current_block().apply("label_smooth", inputs, {"epsilon": epsilon})


def cos_sim(x: Variable, y: Variable) -> Variable:
    """The cosine of the angle between each row of x and that of y, which may have one row for all; ``[rows, 1]``."""
    out, _, _ = current_block().apply("cos_sim", {"X": x, "Y": y})
    return out


def accuracy(input: Variable, label: Variable, k: int = 1) -> Variable:
    """The part of the rows whose label is among the ``k`` largest scores, a tensor without dims.

    Args:
        input: scores ``[batch, classes]``.
        label: class numbers ``[batch, 1]``.

    Raises:
        ShapeError: a label of another minibatch, or fewer than ``k`` classes.
    """
    block = current_block()
    prefix = block.program.layer_name("accuracy")
    out, indices = block.apply("top_k_v2", {"X": input}, {"k": k, "axis": -1, "largest": True, "sorted": False}, prefix)
    found, _, _ = block.apply("accuracy", {"Out": out, "Indices": indices, "Label": label}, prefix=prefix)
    return found
