"""Measures of a classification: counts of how often each class was right, predicted and true."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program import Variable
from foreshape.metrics.checks import NOTHING, check_numbers, class_numbers, number, same_count, undefined, weights_of, whole_or_none
from foreshape.metrics.metric import Metric, State, check_weight

Average = Literal["macro", "micro", "weighted", "binary"]
_AVERAGES = ("macro", "micro", "weighted", "binary", None)


class _Classes(Metric):
    """Predicted and true classes.

    Args:
        prediction: scores or probabilities, ``[..., classes]``, the largest for the predicted class. One column predicts class 1
            above ``threshold`` and class 0 otherwise. Or class numbers (integers).
        label: class numbers, as the prediction without ``axis`` or with 1 there; or a distribution as the prediction.
        classes: the number of classes; needed if the prediction is class numbers.
        threshold: makes each column a class of its own: an example can have several or none, and the label has 0 or 1 for each. 0.5
            for one column by default.
        axis: of the classes; 1 for ``[batch, classes, height, width]``.
        ignore_index: a label left out.
        weight: of each example, ``[batch]`` or ``[batch, 1]``, or of each label.
    """

    def __init__(
        self, prediction: Variable, label: Variable, *, classes: int | None = None, threshold: float | None = None, axis: int | None = None,
        ignore_index: int | None = None, weight: Variable | None = None,
    ) -> None:  # fmt: skip
        super().__init__(prediction, label, weight)
        name, spec, dims = type(self).__name__, prediction.spec, list(prediction.spec.known_dims)
        self.axis = place = (-1 if axis is None else axis) % max(spec.rank, 1)
        if not -spec.rank <= (axis or 0) < max(spec.rank, 1):
            raise ShapeError.must(f"{name}: axis", f"one of the {spec.rank} dims of the prediction", axis)
        self.scores, self.ignore_index = spec.known_dtype.is_floating, whole_or_none(name, "ignore_index", ignore_index)
        self.least = 0.5 if threshold is None else number(type(self).__name__, "threshold", threshold)
        """The largest score of a class not predicted."""
        self.columns = self.scores and spec.rank > 1 and dims[place] != 1
        """True for a score of each class; otherwise there is one score, or a class number."""
        self.several = self.columns and threshold is not None
        count = dims[place] if self.columns else 2 if self.scores else None
        if classes is not None and isinstance(count, int) and count != classes:
            raise ShapeError(f"{name}: classes={classes}, and the prediction is {spec.text()}")
        self.classes: int = classes if classes is not None else count if isinstance(count, int) else 0
        if self.classes < 1:
            raise SchemaError(f"{name}: say how many classes=... there are; the prediction is {spec.text()}")
        alike = label.spec.known_dims == spec.known_dims
        self.soft = alike and self.columns and not self.several and label.spec.known_dtype.is_floating and (spec.rank == 2 or axis is not None)
        without = self.columns and not (self.soft or self.several)
        required = [d for i, d in enumerate(dims) if d != 1 and not (without and i == place)]
        if [d for d in label.spec.known_dims if d != 1] != required:
            raise ShapeError(
                f"{name}: the label must be of the dims of the prediction{' without its classes' if without else ''}; it is "
                f"{label.spec.text()}, and the prediction {spec.text()}"
            )
        check_weight(self, weight, label, place if self.soft or self.several else None)

    def counted(self, prediction: Any, label: Any, weight: Any = None) -> tuple[Any, Any, Any]:
        """Return predictions, labels and weights of the counted examples, checked.

        Predictions are scores ``[examples, classes]``, scores ``[examples]``, or class numbers. Labels are class numbers; with several classes for each
        example they are 0 and 1, ``[examples, classes]``, as the weights are.
        """
        name, scores, true = type(self).__name__, np.asarray(prediction), np.asarray(label)
        scores = self._rows(scores) if self.columns else scores.reshape(-1)
        true = self._rows(true) if self.soft or self.several else true.reshape(-1)
        same_count(name, prediction=len(scores), label=len(true))
        weights = weights_of(name, weight, len(true))
        if self.soft:
            check_numbers(name, "label", true[weights > 0])
            true = true.argmax(-1)
        if self.several:
            weights = np.where(true == self.ignore_index, 0.0, weights[:, None])
            chosen = (weights > 0).any(1)
        else:
            chosen = (weights > 0) & (true != self.ignore_index)
        scores, true, weights = scores[chosen], true[chosen], weights[chosen]
        if self.scores:
            check_numbers(name, "prediction", scores[weights > 0] if self.several else scores)
        else:
            scores = class_numbers(name, "prediction", scores, self.classes)
        ignores = self.ignore_index is not None
        if self.several:
            true = class_numbers(name, "label", np.where(weights > 0, true, 0), 2, ignores)
        return scores, class_numbers(name, "label", true, self.classes, ignores), weights

    def _rows(self, values: Any) -> Any:
        return np.moveaxis(values, self.axis, -1).reshape(-1, self.classes)

    def chosen(self, *arrays: Any) -> tuple[Any, Any, Any]:
        """Return the predicted and true class numbers and weights of the counted examples."""
        scores, true, weights = self.counted(*arrays)
        if self.columns:
            return scores.argmax(-1), true, weights
        return (scores > self.least).astype(np.int64) if self.scores else scores, true, weights


class _Counted(_Classes):
    """Counts for each class: right, predicted and true."""

    def begin(self) -> State:
        return {key: np.zeros(self.classes) for key in ("right", "predicted", "true")}

    def add(self, state: State, *arrays: Any) -> None:
        if self.several:
            scores, true, weights = self.counted(*arrays)
            yes, true = scores > self.least, true > 0
            for key, hit in (("right", yes & true), ("predicted", yes), ("true", true)):
                state[key] = state[key] + (hit * weights).sum(0)
            return
        predicted, true, weights = self.chosen(*arrays)
        for key, numbers, addends in (
            ("right", true[predicted == true], weights[predicted == true]),
            ("predicted", predicted, weights),
            ("true", true, weights),
        ):
            state[key] = state[key] + np.bincount(numbers, addends, self.classes)

    def average_quotient(self, part: Any, total: Any, state: State, average: Average | None) -> Any:
        """Return ``part / total`` of the classes, 0 for an undefined quotient, averaged."""
        if average == "micro":
            part, total = part.sum(), total.sum()
        quotients = np.divide(part, total, out=np.zeros_like(part), where=total != 0)
        if average == "binary":
            return float(quotients[1])
        if average is None:
            return quotients
        if average == "micro":
            return float(quotients)
        weights = state["true"] if average == "weighted" else np.ones(self.classes) if self.several else (state["predicted"] + state["true"] > 0) * 1.0
        return float((quotients * weights).sum() / weights.sum()) if weights.sum() else undefined(type(self).__name__, NOTHING)


class _Fraction(_Classes):
    """The weights of right answers, and of all."""

    def begin(self) -> State:
        return {"right": np.zeros(2)}

    def value(self, state: State) -> Any:
        right, count = state["right"]
        return float(right / count) if count else undefined(type(self).__name__, NOTHING)


class Accuracy(_Fraction):
    """The fraction of examples whose class is predicted; with several classes for each example, the fraction of right answers.

    Args:
        prediction, label, options: see `F1`.
    """

    def add(self, state: State, *arrays: Any) -> None:
        if self.several:
            scores, true, weights = self.counted(*arrays)
            right = (scores > self.least) == (true > 0)
        else:
            predicted, true, weights = self.chosen(*arrays)
            right = predicted == true
        state["right"] = state["right"] + [weights[right].sum(), weights.sum()]


class TopKAccuracy(_Fraction):
    """The part of the examples whose class is among the k with the largest scores; of equal scores the first classes count as larger.

    Args:
        prediction, label, options: see `F1`; the prediction is scores.
        k: how many.
    """

    def __init__(self, prediction: Variable, label: Variable, k: int = 5, **options: Any) -> None:
        super().__init__(prediction, label, **options)
        self.k = k
        if not self.columns or self.several or not 1 <= k <= self.classes:
            raise SchemaError(f"TopKAccuracy needs scores of at least k classes for each example, k from 1; seen k={k!r} and {prediction.spec.text()}")

    def add(self, state: State, *arrays: Any) -> None:
        scores, true, weights = self.counted(*arrays)
        own_score = np.take_along_axis(scores, true[:, None], 1)
        rank = (scores > own_score).sum(1) + ((scores == own_score) & (np.arange(self.classes) < true[:, None])).sum(1)
        state["right"] = state["right"] + [weights[rank < self.k].sum(), weights.sum()]


class _Averaged(_Counted):
    """A quotient of counts of each class, averaged."""

    def __init__(self, prediction: Variable, label: Variable, average: Average | None = "macro", **options: Any) -> None:
        super().__init__(prediction, label, **options)
        if average not in _AVERAGES:
            raise SchemaError.one_of(f"{type(self).__name__}: average", _AVERAGES, average)
        if average == "binary" and self.classes != 2:
            raise SchemaError(f"{type(self).__name__}: average 'binary' is of two classes; seen {self.classes} classes")
        self.average: Average | None = average
        self.shape = (self.classes,) if average is None else ()


class Precision(_Averaged):
    """The fraction of right predictions of each class.

    Args:
        prediction, label, average, options: see `F1`.
    """

    def value(self, state: State) -> Any:
        return self.average_quotient(state["right"], state["predicted"], state, self.average)


class Recall(_Averaged):
    """The fraction of found examples of each class.

    Args:
        prediction, label, average, options: see `F1`.
    """

    def value(self, state: State) -> Any:
        return self.average_quotient(state["right"], state["true"], state, self.average)


class F1(_Averaged):
    """The harmonic mean of precision and recall of each class, ``2 right / (predicted + true)``; 0 for a class never right.

    Examples:
        >>> fs.train(cost, data, metrics={"f1": fs.metrics.F1(probabilities, label)}, validation=validation)

    Args:
        prediction: scores or probabilities, ``[..., classes]``, the largest for the predicted class. One column predicts class 1
            above ``threshold`` and class 0 otherwise. Or class numbers (integers).
        label: class numbers, as the prediction without ``axis`` or with 1 there; or a distribution as the prediction.
        average: "macro", the mean over the classes among labels or predictions. "weighted", the mean weighted by the true counts.
            "micro", of the counts of all classes together. "binary", class 1 of two. None, a number of each class.
        options: ``classes``, their number, needed if the prediction is class numbers. ``threshold`` makes each column
            a class of its own: an example can have several or none, and the label has 0 or 1 for each. ``axis`` of the classes, 1 for
            ``[batch, classes, height, width]``. ``ignore_index``, a label left out. ``weight`` of each example or label.

    Raises:
        ShapeError: a label or weights of other dims. SchemaError: another average; an unknown number of classes.
    """

    def value(self, state: State) -> Any:
        return self.average_quotient(2 * state["right"], state["predicted"] + state["true"], state, self.average)


class IoU(_Averaged):
    """The overlap of predicted and true elements, such as pixels, of each class (Jaccard): ``right / (predicted + true - right)``.

    Examples:
        >>> fs.metrics.IoU(scores, mask, axis=1)  # [batch, classes, height, width] and [batch, height, width]

    Args:
        prediction, label, average, options: see `F1`.
    """

    def value(self, state: State) -> Any:
        return self.average_quotient(state["right"], state["predicted"] + state["true"] - state["right"], state, self.average)


class ConfusionMatrix(_Classes):
    """Counts of predictions of each class (column) for each true class (row), ``[classes, classes]``.

    Args:
        prediction, label, options: see `F1`.
    """

    def __init__(self, prediction: Variable, label: Variable, **options: Any) -> None:
        super().__init__(prediction, label, **options)
        if self.several:
            raise SchemaError("ConfusionMatrix is of one class for each example: leave threshold= out")
        self.shape = (self.classes, self.classes)

    def begin(self) -> State:
        return {"counts": np.zeros(self.classes**2)}

    def add(self, state: State, *arrays: Any) -> None:
        predicted, true, weights = self.chosen(*arrays)
        state["counts"] = state["counts"] + np.bincount(true * self.classes + predicted, weights, self.classes**2)

    def value(self, state: State) -> Any:
        return state["counts"].reshape(self.shape)
