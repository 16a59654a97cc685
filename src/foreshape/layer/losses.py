"""Losses of regression and of probabilities, and the accuracy of a classification."""

from __future__ import annotations

from foreshape.layer.basic import mean
from foreshape.program.current import current_block
from foreshape.program.variable import Variable


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """(input - label)^2, elementwise; the smaller is broadcast."""
    block = current_block()
    prefix = block.program.unique_name("square_error_cost")
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


def accuracy(input: Variable, label: Variable, k: int = 1) -> Variable:
    """The part of the rows whose label is among the ``k`` largest scores, a tensor without dims.

    Args:
        input: scores ``[batch, classes]``.
        label: class numbers ``[batch, 1]``.

    Raises:
        ShapeError: a label of another minibatch, or fewer than ``k`` classes.
    """
    block = current_block()
    prefix = block.program.unique_name("accuracy")
    out, indices = block.apply("top_k_v2", {"X": input}, {"k": k, "axis": -1, "largest": True, "sorted": False}, prefix)
    found, _, _ = block.apply("accuracy", {"Out": out, "Indices": indices, "Label": label}, prefix=prefix)
    return found
