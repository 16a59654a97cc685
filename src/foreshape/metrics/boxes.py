"""The mean average precision of boxes found in images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from foreshape.errors import ExecutionError, SchemaError, ShapeError
from foreshape.metrics.metric import Metric, State
from foreshape.program import Variable


class MeanAveragePrecision(Metric):
    """The mean over the classes, and over ``iou``, of the average precision of the found boxes.

    As in PASCAL VOC (Everingham et al., 2010): boxes are taken from the best score down. Each is compared with the true box of its class with the
    largest overlap (intersection over union). It is right if the overlap is at least ``iou`` and the true box has not been found yet.
    The average precision is the area under the largest precision at each recall or a higher one. It is exact: class, score and
    correctness of each found box are kept until the end.

    Args:
        found: ragged ``[boxes, 6]``, a sequence for each image: class number, score and corners (x1, y1, x2, y2), as from
            `layer.detection.multiclass_nms`; rows with a class number below 0 do not count.
        boxes: the true ones, ragged ``[boxes, 4]``: corners.
        labels: their class numbers, ragged ``[boxes, 1]``.
        classes: the number of classes.
        iou: the smallest overlap; of several numbers, as COCO's ``[0.5, 0.55, ..., 0.95]``, the mean is taken.
        points: take the precision at so many recalls from 0 to 1 instead (11 as in VOC 2007, 101 as in COCO).
        each: a number of each class, ``[classes]``, in place of their mean. It is NaN for a class without true boxes, left out of the mean.

    Raises:
        ShapeError: inputs of other dims, or not ragged. SchemaError: other numbers.
    """

    ragged: ClassVar[bool] = True

    def __init__(
        self, found: Variable, boxes: Variable, labels: Variable, *, classes: int, iou: float | Sequence[float] = 0.5, points: int | None = None,
        each: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(found, boxes, labels)
        for what, given, width in (("found", found, 6), ("boxes", boxes, 4), ("labels", labels, 1)):
            dims = list(given.spec.known_dims)
            if given.spec.lod is None or not (dims[1:] == [width] or (width == 1 and len(dims) == 1)):
                raise ShapeError(f"MeanAveragePrecision: {what} must be ragged, [boxes, {width}]; it is {given.spec.text()}")
        self.iou = [float(x) for x in (iou if isinstance(iou, Sequence) else [iou])]
        if classes < 1 or not self.iou or not all(0 < x <= 1 for x in self.iou) or (points is not None and points < 2):
            raise SchemaError.must("MeanAveragePrecision: classes", "at least 1, iou above 0 up to 1, points at least 2", f"{classes}, {iou}, {points}")
        self.classes, self.points, self.each = classes, points, each
        self.shape = (classes,) if each else ()

    def begin(self) -> State:
        return {"found": np.zeros((0, 2 + len(self.iou))), "true": np.zeros(self.classes)}

    def add(self, state: State, *arrays: Any) -> None:
        found, boxes, labels = (_images(a) for a in arrays)
        rows = [state["found"]]
        for here, truth, kinds in zip(found, boxes, labels, strict=True):
            here, kinds = here[here[:, 0] >= 0].astype(np.float64), kinds.reshape(-1).astype(np.int64)
            for numbers in (here[:, 0], kinds):
                if numbers.size and not 0 <= numbers.min() <= numbers.max() < self.classes:
                    raise ExecutionError.must("MeanAveragePrecision: a class number", f"in [0, {self.classes})", f"{numbers.min():g} to {numbers.max():g}")
            state["true"] = state["true"] + np.bincount(kinds, minlength=self.classes)
            here = here[np.argsort(-here[:, 1], kind="stable")]
            rows.append(np.concatenate([here[:, :2], self._right(here, truth.astype(np.float64), kinds)], 1))
        state["found"] = np.concatenate(rows)

    def _right(self, found: Any, truth: Any, kinds: Any) -> Any:
        """Return for each box of an image, best score first, whether it is right: ``[boxes, len(iou)]``."""
        out = np.zeros((len(found), len(self.iou)))
        if not len(truth):
            return out
        corners, others = found[:, None, 2:], truth[None]
        sides = np.clip(np.minimum(corners[..., 2:], others[..., 2:]) - np.maximum(corners[..., :2], others[..., :2]), 0, None)
        within = sides.prod(-1)
        areas = [np.clip(b[..., 2:] - b[..., :2], 0, None).prod(-1) for b in (corners, others)]
        whole = areas[0] + areas[1] - within
        overlap = np.divide(within, whole, out=np.zeros_like(within), where=whole > 0)
        overlap[found[:, None, 0] != kinds[None]] = -1.0
        best = overlap.argmax(1)
        for at, least in enumerate(self.iou):
            free = np.ones(len(truth), bool)
            for row, which in enumerate(best):
                if overlap[row, which] >= least and free[which]:
                    out[row, at], free[which] = 1.0, False
        return out

    def value(self, state: State) -> Any:
        rows, true = state["found"], state["true"]
        rows = rows[np.argsort(-rows[:, 1], kind="stable")]
        each = np.full(self.classes, np.nan)
        for kind in np.flatnonzero(true):
            right = rows[rows[:, 0] == kind, 2:]
            each[kind] = np.mean([self._average(right[:, at], true[kind]) for at in range(len(self.iou))])
        if self.each:
            return each
        return float(np.nanmean(each)) if true.any() else np.nan

    def _average(self, right: Any, true: float) -> float:
        hits = np.cumsum(right)
        recall, precision = hits / true, hits / np.arange(1, len(hits) + 1)
        highest = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)  # at each recall, or a higher one
        if self.points is None:
            return float((np.diff(recall, prepend=0.0) * highest[:-1]).sum())
        at = np.searchsorted(recall, np.linspace(0, 1, self.points) - 1e-12)
        return float(highest[at].mean())


def _images(given: Any) -> list[Any]:
    """Return the rows of each image, of a `LoDTensor` or of a list of arrays."""
    if not hasattr(given, "sequence_lengths"):
        return [np.asarray(one) for one in given]
    lengths: list[int] = given.sequence_lengths[-1]
    return np.split(np.asarray(given.data), np.cumsum(lengths)[:-1]) if lengths else []
