"""The mean average precision of boxes found in images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program import Variable
from foreshape.metrics.checks import check_numbers, class_numbers, number, same_count, undefined, whole_or_none
from foreshape.metrics.metric import Metric, State


class MeanAveragePrecision(Metric):
    """The mean over the classes, and over ``iou``, of the average precision of the found boxes.

    Boxes are taken from the best score down; of equal scores in the order of the images. A true box is found once, by an overlap (intersection over
    union) of at least ``iou``. The rules of matching differ where true boxes overlap:

    - "coco", the default: of the true boxes of its class not found yet a box finds the one with the largest overlap, as in COCO's own evaluation (Lin et
      al., 2014).
    - "voc": a box is compared with the true box of its class with the largest overlap alone. It is wrong if this one has been found already, as in PASCAL
      VOC (Everingham et al., 2010).

    The average precision is the area under the largest precision at each recall or a higher one. It is exact: class, score and
    correctness of each found box are kept until the end. COCO counts the best 100 boxes of an image and class, and this measure all of them.

    Args:
        found: ragged ``[boxes, 6]``, a sequence for each image: class number, score and corners (x1, y1, x2, y2), as from
            `layer.detection.multiclass_nms`; rows with a class number below 0 do not count.
        boxes: the true ones, ragged ``[boxes, 4]``: corners.
        labels: their class numbers, ragged ``[boxes, 1]``.
        classes: the number of classes.
        iou: the smallest overlap; of several numbers, as COCO's ``[0.5, 0.55, ..., 0.95]``, the mean is taken.
        points: take the precision at so many recalls from 0 to 1 instead (11 as in VOC 2007, 101 as in COCO).
        matching: "coco" or "voc".
        each: a number of each class, ``[classes]``, in place of their mean. It is NaN for a class without true boxes, left out of the mean.

    Raises:
        ShapeError: inputs of other dims, or not ragged. SchemaError: other numbers, or another rule. ExecutionError: in a batch, a class number outside of
            the classes, an infinite or NaN score or corner, or an image with different numbers of boxes and labels.
    """

    ragged: ClassVar[bool] = True

    def __init__(
        self, found: Variable, boxes: Variable, labels: Variable, *, classes: int, iou: float | Sequence[float] = 0.5, points: int | None = None,
        matching: Literal["coco", "voc"] = "coco", each: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(found, boxes, labels)
        for slot, variable, width in (("found", found, 6), ("boxes", boxes, 4), ("labels", labels, 1)):
            dims = list(variable.spec.known_dims)
            if variable.spec.lod is None or not (dims[1:] == [width] or (width == 1 and len(dims) == 1)):
                raise ShapeError(f"MeanAveragePrecision: {slot} must be ragged, [boxes, {width}]; it is {variable.spec.text()}")
        self.iou = [number("MeanAveragePrecision", "iou", x) for x in (iou if isinstance(iou, Sequence) and not isinstance(iou, str) else [iou])]
        points = whole_or_none("MeanAveragePrecision", "points", points)
        if classes < 1 or not self.iou or not all(0 < x <= 1 for x in self.iou) or (points is not None and points < 2):
            raise SchemaError.must("MeanAveragePrecision: classes", "at least 1, iou above 0 up to 1, points at least 2", f"{classes}, {iou}, {points}")
        if matching not in ("coco", "voc"):
            raise SchemaError.must("MeanAveragePrecision: matching", "'coco' or 'voc'", f"{matching!r}")
        self.classes, self.points, self.each, self.matching = classes, points, each, matching
        self.shape = (classes,) if each else ()

    def begin(self) -> State:
        return {"found": np.zeros((0, 2 + len(self.iou))), "true": np.zeros(self.classes)}

    def add(self, state: State, *arrays: Any) -> None:
        name, (images, boxes, labels) = type(self).__name__, (_images(a) for a in arrays)
        same_count(f"{name}", found=len(images), boxes=len(boxes), labels=len(labels))
        rows = [state["found"]]
        for guesses, truth, kinds in zip(images, boxes, labels, strict=True):
            guesses = guesses.reshape(-1, 6) if not guesses.size else guesses[~(guesses[:, 0] < 0)]
            same_count(f"{name}: of an image", boxes=len(truth), labels=len(kinds))
            guesses, truth = check_numbers(name, "found boxes", guesses, finite=True), check_numbers(name, "true boxes", truth, finite=True)
            class_numbers(name, "found boxes", guesses[:, 0], self.classes)
            kinds = class_numbers(name, "label", kinds.reshape(-1), self.classes)
            state["true"] = state["true"] + np.bincount(kinds, minlength=self.classes)
            guesses = guesses[np.argsort(-guesses[:, 1], kind="stable")]
            rows.append(np.concatenate([guesses[:, :2], self._right(guesses, truth, kinds)], 1))
        state["found"] = np.concatenate(rows)

    def _right(self, guesses: Any, truth: Any, kinds: Any) -> Any:
        """Return for each box of an image, best score first, whether it is right: ``[boxes, len(iou)]``."""
        out = np.zeros((len(guesses), len(self.iou)))
        if not len(truth):
            return out
        corners, true_corners = guesses[:, None, 2:], truth[None]
        sides = np.clip(np.minimum(corners[..., 2:], true_corners[..., 2:]) - np.maximum(corners[..., :2], true_corners[..., :2]), 0, None)
        intersection = sides.prod(-1)
        areas = [np.clip(b[..., 2:] - b[..., :2], 0, None).prod(-1) for b in (corners, true_corners)]
        union = areas[0] + areas[1] - intersection
        overlap = np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)
        overlap[guesses[:, None, 0] != kinds[None]] = -1.0
        largest, coco = overlap.max(1), self.matching == "coco"
        for index, least in enumerate(min(x, 1 - 1e-10) for x in self.iou):  # pycocotools takes boxes as equal that differ by rounding
            free = np.ones(len(truth), bool)
            for row in np.flatnonzero(largest >= least):
                open_to_it = np.where(free, overlap[row], -1.0) if coco else overlap[row]
                best = len(truth) - 1 - int(open_to_it[::-1].argmax()) if coco else int(open_to_it.argmax())  # of equal ones pycocotools takes the last
                if open_to_it[best] >= least and free[best]:
                    out[row, index], free[best] = 1.0, False
        return out

    def value(self, state: State) -> Any:
        rows, true = state["found"], state["true"]
        rows = rows[np.argsort(-rows[:, 1], kind="stable")]
        averages = np.full(self.classes, np.nan)
        for kind in np.flatnonzero(true):
            right = rows[rows[:, 0] == kind, 2:]
            averages[kind] = np.mean([self._average(right[:, index], true[kind]) for index in range(len(self.iou))])
        if self.each:
            return averages
        return float(np.nanmean(averages)) if true.any() else undefined(type(self).__name__, "there is no true box")

    def _average(self, right: Any, true: float) -> float:
        hits = np.cumsum(right)
        recall, precision = hits / true, hits / np.arange(1, len(hits) + 1)
        highest = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)  # at each recall, or a higher one
        if self.points is None:
            return float((np.diff(recall, prepend=0.0) * highest[:-1]).sum())
        places = np.searchsorted(recall, np.linspace(0, 1, self.points))
        return float(highest[places].mean())


def _images(rows: Any) -> list[Any]:
    """Return the rows of each image, of a `LoDTensor` or of a list of arrays."""
    if not hasattr(rows, "sequence_lengths"):
        return [np.asarray(image) for image in rows]
    lengths: list[int] = rows.sequence_lengths[-1]
    return np.split(np.asarray(rows.data), np.cumsum(lengths)[:-1]) if lengths else []
