"""The area under a curve of a classifier of two classes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from foreshape.errors import ExecutionError, SchemaError, ShapeError
from foreshape.language.program import Variable
from foreshape.metrics.checks import NOTHING, check_numbers, class_numbers, same_count, undefined, weights_of, whole_or_none
from foreshape.metrics.metric import Metric, State, check_weight

_MOST_THRESHOLDS = 10_000_000


class AUC(Metric):
    """The area under the curve of true over false positives ("ROC"), or the average precision ("PR": the sum of (R_n - R_n-1) P_n over the scores).

    It is exact: the scores of all examples are kept until the end, 16 bytes for each (24 with weights). With ``thresholds`` they are counted in so many
    steps from 0 to 1 instead, in memory independent of the number of examples. Scores of one step count as equal.

    Args:
        score: of class 1, ``[batch]`` or ``[batch, 1]``; or of both classes, ``[batch, 2]``.
        label: 0 or 1, ``[batch]`` or ``[batch, 1]``.
        curve: "ROC" or "PR".
        thresholds: the number of steps; all scores by default.
        ignore_index: a label left out.
        weight: of each example, ``[batch]`` or ``[batch, 1]``; 0 leaves one out.

    The area is NaN, with a warning, if all examples are of one class; the average precision if none is of class 1.

    Raises:
        ShapeError: other dims. SchemaError: another curve, or no step. ExecutionError: in a batch, another label, a NaN score, or a weight below 0.
    """

    def __init__(
        self,
        score: Variable,
        label: Variable,
        curve: Literal["ROC", "PR"] = "ROC",
        *,
        thresholds: int | None = None,
        ignore_index: int | None = None,
        weight: Variable | None = None,
    ) -> None:
        super().__init__(score, label, weight)
        dims, label_dims = list(score.spec.known_dims), list(label.spec.known_dims)
        if dims[1:] not in ([], [1], [2]) or label_dims[1:] not in ([], [1]) or not dims or dims[:1] != label_dims[:1]:
            raise ShapeError(
                f"AUC: the score must be [batch], [batch, 1] or [batch, 2], and the label [batch] or [batch, 1]; seen {score.spec.text()} "
                f"and {label.spec.text()}"
            )
        check_weight(self, weight, label)
        if curve not in ("ROC", "PR"):
            raise SchemaError.one_of("AUC: curve", ("ROC", "PR"), curve)
        thresholds = whole_or_none("AUC", "thresholds", thresholds)
        if thresholds is not None and not 1 <= thresholds <= _MOST_THRESHOLDS:
            raise SchemaError.must("AUC: thresholds", f"from 1 to {_MOST_THRESHOLDS:,}", thresholds)
        self.curve, self.thresholds, self.ignore_index = curve, thresholds, whole_or_none("AUC", "ignore_index", ignore_index)

    def begin(self) -> State:
        if self.thresholds is None:
            return {"examples": np.zeros((0, len(self.inputs)))}
        return {"counts": np.zeros(2 * (self.thresholds + 1))}

    def add(self, state: State, *arrays: Any) -> None:
        score, label = (np.asarray(a) for a in arrays[:2])
        score, label = score[:, -1] if score.ndim == 2 else score.reshape(-1), label.reshape(-1)
        same_count("AUC", score=len(score), label=len(label))
        weights = weights_of("AUC", arrays[2] if len(arrays) > 2 else None, len(label))
        counted = (weights > 0) & (label != self.ignore_index)
        score, weights = check_numbers("AUC", "score", score[counted]), weights[counted]
        label = class_numbers("AUC", "label", label[counted], 2, self.ignore_index is not None)
        if self.thresholds is None:
            state["examples"] = np.concatenate([state["examples"], np.stack([score, label, weights][: len(self.inputs)], 1)])
            return
        if score.size and not 0 <= score.min() <= score.max() <= 1:
            raise ExecutionError.must("AUC: with thresholds, a score", "from 0 to 1", f"{score.min():g} to {score.max():g}")
        bins = 2 * (score * self.thresholds).astype(np.int64) + label
        state["counts"] = state["counts"] + np.bincount(bins, weights, len(state["counts"]))

    def value(self, state: State) -> Any:
        if self.thresholds is None:
            rows = state["examples"]
            score, label = rows[:, 0], rows[:, 1].astype(np.int64)
            _, places = np.unique(score, return_inverse=True)
            counts = np.bincount(2 * places.reshape(-1) + label, rows[:, 2] if rows.shape[1] > 2 else None, 2 * (int(places.max()) + 1) if len(places) else 2)
        else:
            counts = state["counts"]
        false, true = (np.append(0.0, np.cumsum(counts[start::2][::-1])) for start in (0, 1))  # from the largest score down
        if not true[-1] or (self.curve == "ROC" and not false[-1]):
            finding = "all that count are of class 0" if false[-1] else "all that count are of class 1" if true[-1] else NOTHING
            return undefined("AUC", f"{self.curve} needs examples of {'both classes' if self.curve == 'ROC' else 'class 1'}, and {finding}")
        if self.curve == "ROC":
            return float((np.diff(false) * (true[1:] + true[:-1])).sum() / 2 / (true[-1] * false[-1]))
        predicted = true[1:] + false[1:]
        precision = np.divide(true[1:], predicted, out=np.zeros_like(predicted), where=predicted > 0)
        return float((np.diff(true) * precision).sum() / true[-1])
