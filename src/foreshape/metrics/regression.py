"""Measures of numbers: errors of a regression, and the perplexity of a language model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from foreshape.errors import ShapeError
from foreshape.language.program import Variable
from foreshape.metrics.checks import NOTHING, check_numbers, same_count, undefined, weights_of
from foreshape.metrics.metric import Metric, State, check_weight


class _Errors(Metric):
    """Sums over the elements of a guess and the truth.

    Args:
        guess: numbers of any dims.
        truth: of the same dims, but for dims of 1.
        weight: of each example, ``[batch]`` or ``[batch, 1]``, or of each element.
    """

    def __init__(self, guess: Variable, truth: Variable, *, weight: Variable | None = None) -> None:
        super().__init__(guess, truth, weight)
        if [d for d in guess.spec.known_dims if d != 1] != [d for d in truth.spec.known_dims if d != 1]:
            raise ShapeError.must(f"{type(self).__name__}: guess and truth", "of one number of elements", f"{guess.spec.text()} and {truth.spec.text()}")
        check_weight(self, weight, truth)

    def begin(self) -> State:
        return {"errors": np.zeros(2)}

    def add(self, state: State, *arrays: Any) -> None:
        guess, truth, weights = self.flat(*arrays)
        state["errors"] = state["errors"] + [(weights * self.error(guess - truth)).sum(), weights.sum()]

    def flat(self, guess: Any, truth: Any, weight: Any = None) -> tuple[Any, Any, Any]:
        """Return both as fp64 in a row, 0 without a weight, and the weight of each element."""
        name, x, y = type(self).__name__, np.asarray(guess).reshape(-1), np.asarray(truth).reshape(-1)
        same_count(name, guess=x.size, truth=y.size)
        weights = weights_of(name, weight, y.size)
        x, y = (np.where(weights > 0, a, 0.0) for a in (x, y))
        return check_numbers(name, "guess", x, finite=True), check_numbers(name, "truth", y, finite=True), weights

    def error(self, difference: Any) -> Any:
        """Return the error of each element."""
        return difference**2

    def mean(self, state: State) -> float:
        """Return the mean error."""
        total, count = state["errors"]
        return float(total / count) if count else undefined(type(self).__name__, NOTHING)


class MAE(_Errors):
    """The mean absolute error.

    Args:
        guess, truth, weight: see `RMSE`.
    """

    def error(self, difference: Any) -> Any:
        return abs(difference)

    def value(self, state: State) -> Any:
        return self.mean(state)


class RMSE(_Errors):
    """The root of the mean squared error.

    Args:
        guess: numbers of any dims.
        truth: of the same dims, but for dims of 1.
        weight: of each example, ``[batch]`` or ``[batch, 1]``, or of each element; 0 leaves one out.

    Raises:
        ShapeError: a truth or weights of other dims. ExecutionError: infinite or NaN numbers, or weights below 0, in a batch.
    """

    def value(self, state: State) -> Any:
        return math.sqrt(self.mean(state))


class R2(_Errors):
    """The explained fraction of the variance, 1 - sum((y - x)^2) / sum((y - mean(y))^2): of several columns the mean over these.

    The second sum is joined from sums of parts, each around its own mean, to keep its digits far from zero (Chan, Golub and LeVeque,
    "Algorithms for computing the sample variance", The American Statistician 37, 1983).

    Args:
        guess, truth, weight: see `RMSE`.

    A column with one true number throughout gives 1 if it is guessed exactly, and 0 otherwise, as scikit-learn's ``r2_score`` does. A column with fewer than
    two numbers that count is left out; without any other the measure is NaN.
    """

    def __init__(self, guess: Variable, truth: Variable, *, weight: Variable | None = None) -> None:
        super().__init__(guess, truth, weight=weight)
        columns = truth.spec.known_dims[1:]
        self.columns = math.prod(d for d in columns if isinstance(d, int)) if all(isinstance(d, int) for d in columns) else 1

    def begin(self) -> State:
        return {"parts": np.zeros((0, 5 * self.columns)), "count": np.zeros(self.columns)}

    def add(self, state: State, *arrays: Any) -> None:
        guess, truth, weights = (a.reshape(-1, self.columns) for a in self.flat(*arrays))
        none = np.zeros_like(truth)
        elements = np.stack([weights, truth, none, none, weights * (guess - truth) ** 2], 1)
        state["count"] = state["count"] + (weights > 0).sum(0)
        state["parts"] = _joined(np.concatenate([self._parts(state), elements])).reshape(1, -1)

    def _parts(self, state: State) -> Any:
        return state["parts"].reshape(-1, 5, self.columns)

    def value(self, state: State) -> Any:
        weights, _, _, squares, errors = _joined(self._parts(state))
        if not weights.any():
            return undefined("R2", NOTHING)
        explained = 1 - np.divide(errors, squares, out=(errors > 0) * 1.0, where=squares > 0)
        several = state["count"] > 1
        return float(explained[several].mean()) if several.any() else undefined("R2", "it takes two examples, and one alone counts")


def _joined(parts: Any) -> Any:
    """Return one part of several, ``[parts, 5, columns]``.

    A part has for each column its weight, a number of it, the mean less this number, the squares around the mean, and the errors.
    """
    if not len(parts):
        return np.zeros(parts.shape[1:])
    weights, numbers, offsets, squares, errors = np.moveaxis(parts, 1, 0)
    total = weights.sum(0)
    number = numbers[(weights > 0).argmax(0), np.arange(parts.shape[2])]
    away = np.where(weights > 0, numbers - number + offsets, 0.0)
    offset = np.divide((weights * away).sum(0), total, out=np.zeros_like(total), where=total > 0)
    return np.stack([total, number, offset, squares.sum(0) + (weights * (away - offset) ** 2).sum(0), errors.sum(0)])


class Perplexity(Metric):
    """exp of the mean loss: of a language model's cross entropy of each word.

    Examples:
        >>> fs.metrics.Perplexity(layer.softmax_with_cross_entropy(scores, word))

    Args:
        loss: of each word, in nats; of any dims.
        weight: of each word, or of each example; 0 leaves one out.
    """

    def __init__(self, loss: Variable, weight: Variable | None = None) -> None:
        super().__init__(loss, weight)
        check_weight(self, weight, loss)

    def begin(self) -> State:
        return {"loss": np.zeros(2)}

    def add(self, state: State, *arrays: Any) -> None:
        loss = np.asarray(arrays[0]).reshape(-1)
        weights = weights_of("Perplexity", arrays[1] if len(arrays) > 1 else None, loss.size)
        loss = check_numbers("Perplexity", "loss", np.where(weights > 0, loss, 0.0))
        state["loss"] = state["loss"] + [(loss * weights).sum(), weights.sum()]

    def value(self, state: State) -> Any:
        total, count = state["loss"]
        return float(np.exp(total / count)) if count else undefined("Perplexity", NOTHING)
