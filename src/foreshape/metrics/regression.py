"""Measures of numbers: errors of a regression, and the perplexity of a language model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from foreshape.errors import ShapeError
from foreshape.metrics.metric import Metric, State, check_weight, spread
from foreshape.program import Variable


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
        """Return both as fp64 in a row, and the weight of each element."""
        x, y = (np.asarray(a, np.float64).reshape(-1) for a in (guess, truth))
        return x, y, np.ones(len(y)) if weight is None else spread(weight, len(y))

    def error(self, difference: Any) -> Any:
        """Return the error of each element."""
        return difference**2

    def mean(self, state: State) -> float:
        """Return the mean error."""
        total, count = state["errors"]
        return float(total / count) if count else math.nan


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
        ShapeError: a truth or weights of other dims.
    """

    def value(self, state: State) -> Any:
        return math.sqrt(self.mean(state))


class R2(_Errors):
    """The fraction of the variance that is explained, 1 - sum((y - x)^2) / sum((y - mean(y))^2): of several columns the mean over these.

    Args:
        guess, truth, weight: see `RMSE`.

    A column with one true number throughout gives 1 if it is guessed exactly, and 0 otherwise.
    """

    def __init__(self, guess: Variable, truth: Variable, *, weight: Variable | None = None) -> None:
        super().__init__(guess, truth, weight=weight)
        columns = truth.spec.known_dims[1:]
        self.columns = math.prod(d for d in columns if isinstance(d, int)) if all(isinstance(d, int) for d in columns) else 1

    def begin(self) -> State:
        return {key: np.zeros(self.columns) for key in ("errors", "truth", "squares", "weights")}

    def add(self, state: State, *arrays: Any) -> None:
        guess, truth, weights = (a.reshape(-1, self.columns) for a in self.flat(*arrays))
        for key, of in (("errors", (guess - truth) ** 2), ("truth", truth), ("squares", truth**2), ("weights", 1.0)):
            state[key] = state[key] + (weights * of).sum(0)

    def value(self, state: State) -> Any:
        if not state["weights"].any():
            return math.nan
        errors, spreading = state["errors"], state["squares"] - state["truth"] ** 2 / state["weights"]
        found = 1 - np.divide(errors, spreading, out=(errors > 0) * 1.0, where=spreading > 1e-12 * state["squares"])
        return float(found.mean())


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
        loss = np.asarray(arrays[0], np.float64).reshape(-1)
        weights = np.ones(len(loss)) if len(arrays) < 2 else spread(arrays[1], len(loss))
        state["loss"] = state["loss"] + [(loss * weights)[weights != 0].sum(), weights.sum()]

    def value(self, state: State) -> Any:
        total, count = state["loss"]
        return float(np.exp(total / count)) if count else math.nan
