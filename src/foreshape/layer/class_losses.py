"""Losses of a classification: cross entropies and focal losses, with smoothed labels and with weights of classes and examples."""

from __future__ import annotations

from typing import Any

from foreshape.errors import SchemaError, ShapeError
from foreshape.language.operator.require import require_rank
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.functions import log_softmax, sigmoid
from foreshape.layer.functions import softmax as softmax_of
from foreshape.layer.labels import stating
from foreshape.layer.manipulation import one_hot, squeeze, unsqueeze
from foreshape.layer.math import cast, clip, exp
from foreshape.layer.reductions import reduce_sum
from foreshape.layer.weights import ClassWeight, by_example, class_weights, counted, of_labels


@tells_line
def cross_entropy(
    x: Variable, label: Variable, ignore_index: int = -100, *, label_smoothing: float = 0.0, class_weight: ClassWeight = None,
    sample_weight: Variable | None = None,
) -> Variable:  # fmt: skip
    """Return the cross entropy of a distribution and a label, ``[batch, 1]``: -sum over the classes c of w_c t_c log(p_c).

    Here p is ``x``, and t the label as a distribution, smoothed: (1 - s) t + s / classes (Szegedy et al., 2016, section 7). The mean of it over a
    batch divides by the number of examples, not by the sum of weights: see `weighted_mean`.

    Args:
        x: probabilities ``[batch, classes]``, such as from `softmax`.
        label: class numbers ``[batch, 1]`` (integer), or a distribution ``[batch, classes]`` (floating-point).
        ignore_index: a class number whose loss is 0.
        label_smoothing: s, from 0 to 1.
        class_weight: w, one number for each class: a variable ``[classes]``, a list, or a dict of the weights other than 1.
        sample_weight: ``[batch]`` or ``[batch, 1]``: the factor of each example's loss.

    Raises:
        ShapeError: a label of another minibatch, or of another number of classes; mismatched weights. SchemaError: another smoothing.
    """
    soft = label.dtype is not None and label.dtype.is_floating
    _check_smoothing("cross_entropy", label_smoothing)
    if not label_smoothing and (class_weight is None or not soft):
        loss = current_block().apply("cross_entropy", {"X": x, "Label": label}, {"soft_label": soft, "ignore_index": ignore_index})
        if class_weight is not None:
            loss = loss * of_labels(class_weights(class_weight, x, -1, "cross_entropy"), label, ignore_index)
        return by_example(loss, sample_weight, "cross_entropy")
    target = label
    if not soft:  # checked as class numbers if they are, with zeros for ignored ones
        if label.spec.rank != x.spec.rank - 1:
            with stating("cross_entropy", x=x, label=label):
                require_rank(x.spec.rank, label.spec, "label", like=(*x.spec.known_dims[:-1], 1))
        counted_labels = label * cast(counted(label, ignore_index), label.spec.known_dtype)
        numbers = squeeze(counted_labels, [label.spec.rank - 1]) if label.spec.rank == x.spec.rank else counted_labels
        target = one_hot(numbers, _classes("cross_entropy", x, -1), x.spec.known_dtype)
    target = _smoothed("cross_entropy", target, x, -1, label_smoothing)
    if class_weight is not None:
        target = target * class_weights(class_weight, x, -1, "cross_entropy")
    loss = current_block().apply("cross_entropy", {"X": x, "Label": target}, {"soft_label": True})
    if not soft:
        loss = loss if label.spec.rank == x.spec.rank else squeeze(loss, [label.spec.rank])
        loss = loss * cast(counted(label, ignore_index), loss.spec.known_dtype)
    return by_example(loss, sample_weight, "cross_entropy")


@tells_line
def softmax_with_cross_entropy(
    logits: Variable, label: Variable, *, soft_label: bool = False, ignore_index: int = -100, axis: int = -1, return_softmax: bool = False,
    label_smoothing: float = 0.0, class_weight: ClassWeight = None, sample_weight: Variable | None = None,
) -> Any:  # fmt: skip
    """Return the cross entropy of softmax(logits) and a label, computed together, and so exact for tiny probabilities.

    It is -sum over the classes c of w_c t_c log(softmax(logits)_c), with t the label as a distribution, smoothed: (1 - s) t + s / classes (Szegedy
    et al., 2016, section 7). The mean of it over a batch divides by the number of examples, not by the sum of weights: see `weighted_mean`.

    Examples:
        >>> scores, label = layer.data("scores", ["batch", 10]), layer.data("label", ["batch", 1], "int64")
        >>> layer.softmax_with_cross_entropy(scores, label)  # [batch, 1]

    Args:
        logits: ``[..., classes, ...]``, the classes at ``axis``.
        label: class numbers with 1 at ``axis`` (or without that axis), or with ``soft_label`` a distribution as logits.
        soft_label: label is a distribution.
        ignore_index: a class number whose loss is 0.
        axis: of the classes.
        return_softmax: give the softmax, too.
        label_smoothing: s, from 0 to 1.
        class_weight: w, one number for each class: a variable ``[classes]``, a list, or a dict of the weights other than 1.
        sample_weight: ``[batch]`` or ``[batch, 1]`` (or of the dims of the loss): the factor of each example's loss.

    Returns:
        The loss, as logits with 1 at ``axis``; with ``return_softmax`` the pair (loss, softmax).

    Raises:
        ShapeError: a label of other dims; mismatched weights. SchemaError: another smoothing.
    """
    name = "softmax_with_cross_entropy"
    _check_smoothing(name, label_smoothing)
    class_axis = axis % logits.spec.rank if -logits.spec.rank <= axis < logits.spec.rank else axis
    weights = None if class_weight is None else class_weights(class_weight, logits, class_axis, name)
    attrs = {"ignore_index": ignore_index, "axis": axis}
    if soft_label:
        target = _smoothed(name, label, logits, class_axis, label_smoothing)
        if weights is None:
            probabilities, loss = current_block().apply(name, {"Logits": logits, "Label": target}, {"soft_label": True, **attrs})
        else:
            probabilities = softmax_of(logits, class_axis) if return_softmax else None
            loss = reduce_sum(_by_class(target * log_softmax(logits, class_axis), weights, class_axis), class_axis, keepdim=True) * -1.0
    else:
        probabilities, loss = current_block().apply(name, {"Logits": logits, "Label": label}, {"soft_label": False, **attrs})
        if weights is not None:
            of_each = of_labels(weights, label, ignore_index)
            loss = loss * (of_each if label.spec.rank == logits.spec.rank else unsqueeze(of_each, [class_axis]))
        if label_smoothing:
            logs = log_softmax(logits, class_axis)
            every = reduce_sum(logs if weights is None else _by_class(logs, weights, class_axis), class_axis, keepdim=True)
            factors = cast(counted(label, ignore_index), logits.spec.known_dtype)
            every = every * (factors if label.spec.rank == logits.spec.rank else unsqueeze(factors, [class_axis]))
            loss = loss * (1.0 - label_smoothing) - every * (label_smoothing / _classes(name, logits, class_axis))
    loss = by_example(loss, sample_weight, name)
    return (loss, probabilities) if return_softmax else loss


@tells_line
def sigmoid_focal_loss(
    logits: Variable, label: Variable, alpha: float | None = 0.25, gamma: float = 2.0, *, class_weight: ClassWeight = None,
    sample_weight: Variable | None = None,
) -> Variable:  # fmt: skip
    """Return the focal loss of independent classes, elementwise: -a (1 - q)^gamma log(q) (Lin et al., "Focal Loss for Dense Object Detection", 2017).

    With p = sigmoid(logits) and a label y, q = y p + (1 - y) (1 - p) is the probability of the truth, and a = y alpha + (1 - y) (1 - alpha). Easy
    examples, with q near 1, count little. (`layer.detection.sigmoid_focal_loss` is PaddlePaddle's, of class numbers and a count of boxes.)

    Args:
        logits: ``[batch, classes]``, or of any dims.
        label: 0 or 1, of the same dims and element type.
        alpha: the share of the positive ones; None leaves a out.
        gamma: at least 0; 0 is the plain cross entropy.
        class_weight: one number for each column: a variable, a list, or a dict of the weights other than 1.
        sample_weight: ``[batch]``, ``[batch, 1]`` or of the dims of the loss: the factor of the loss.

    Raises:
        SchemaError: a gamma below 0. ShapeError: a label of other dims; mismatched weights.
    """
    entropy = current_block().apply("sigmoid_cross_entropy_with_logits", {"X": logits, "Label": label}, {})
    p = sigmoid(logits)
    loss = entropy * _power("sigmoid_focal_loss", p + label - p * label * 2.0, gamma)
    if alpha is not None:
        loss = loss * (label * (2.0 * alpha - 1.0) + (1.0 - alpha))
    if class_weight is not None:
        loss = loss * class_weights(class_weight, logits, -1, "sigmoid_focal_loss")
    return by_example(loss, sample_weight, "sigmoid_focal_loss")


@tells_line
def softmax_focal_loss(
    logits: Variable, label: Variable, gamma: float = 2.0, ignore_index: int = -100, *, class_weight: ClassWeight = None, sample_weight: Variable | None = None
) -> Variable:
    """Return the focal loss of one class of many: -w (1 - q)^gamma log(q), with q = softmax(logits) at the label's class, and w its weight.

    Source: Lin et al., "Focal Loss for Dense Object Detection", 2017, with softmax in place of sigmoid; w is their alpha.

    Args:
        logits: ``[..., classes]``.
        label: class numbers ``[..., 1]``.
        gamma: at least 0; 0 is the plain cross entropy.
        ignore_index: a class number whose loss is 0.
        class_weight: one number for each class: a variable ``[classes]``, a list, or a dict of the weights other than 1.
        sample_weight: ``[batch]`` or ``[batch, 1]``: the factor of each example's loss.

    Returns:
        ``[..., 1]``.

    Raises:
        SchemaError: a gamma below 0. ShapeError: a label of other dims; mismatched weights.
    """
    entropy: Variable = softmax_with_cross_entropy(logits, label, ignore_index=ignore_index)
    loss = entropy * _power("softmax_focal_loss", 1.0 - exp(entropy * -1.0), gamma)
    if class_weight is not None:
        of_each = of_labels(class_weights(class_weight, logits, -1, "softmax_focal_loss"), label, ignore_index)
        loss = loss * (of_each if label.spec.rank == logits.spec.rank else unsqueeze(of_each, [label.spec.rank]))
    return by_example(loss, sample_weight, "softmax_focal_loss")


def _power(layer: str, base: Variable, gamma: float) -> Variable:
    if not gamma >= 0:
        raise SchemaError.must(f"{layer}: gamma", "at least 0", gamma)
    return (clip(base, 1e-12, 1.0) if 0 < gamma < 1 else base) ** gamma  # whose slope at 0 is infinite below 1


def _check_smoothing(layer: str, smoothing: float) -> None:
    if not 0 <= smoothing <= 1:
        raise SchemaError.must(f"{layer}: label_smoothing", "from 0 to 1", smoothing)


def _classes(layer: str, x: Variable, axis: int) -> int:
    classes = x.spec.known_dims[axis]
    if not isinstance(classes, int):
        raise ShapeError(f"{layer}: the number of classes must be known to smooth labels; the input is {x.spec.text()}")
    return classes


def _smoothed(layer: str, target: Variable, x: Variable, axis: int, smoothing: float) -> Variable:
    return target * (1.0 - smoothing) + smoothing / _classes(layer, x, axis) if smoothing else target


def _by_class(x: Variable, weights: Variable, axis: int) -> Variable:
    """Return ``x`` times a number for each entry of an axis."""
    return current_block().apply("elementwise_mul", {"X": x, "Y": weights}, {"axis": axis})
