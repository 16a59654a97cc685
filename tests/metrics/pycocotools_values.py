"""Mean average precisions by pycocotools, of boxes drawn from seeds: writes coco.json, for the test that reads it.

In an environment with pycocotools and numpy: ``python tests/metrics/pycocotools_values.py COUNT > tests/metrics/coco.json``.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import numpy as np

CLASSES = 3
IOU = [float(x) for x in np.linspace(0.5, 0.95, 10)]


def drawn(seed: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Return found boxes, true boxes and labels of some images: true boxes that overlap, found ones near them, and scores with ties."""
    r = np.random.RandomState(seed)
    found: list[Any] = []
    boxes: list[Any] = []
    labels: list[Any] = []
    for _ in range(r.randint(1, 6)):
        count = r.randint(0, 7)
        corner, side = r.randint(0, 12, (count, 2)), r.randint(4, 12, (count, 2))
        true = np.concatenate([corner, corner + side], 1).astype("float32")
        kinds = r.randint(0, CLASSES - (seed % 2), (count, 1))
        near = r.randint(0, count, r.randint(0, 3 * count + 1)) if count else np.zeros(0, "int64")
        box = true[near] + r.randint(-1, 2, (len(near), 4))
        kind = np.where(r.rand(len(near), 1) < 0.8, kinds[near].reshape(-1, 1), r.randint(0, CLASSES, (len(near), 1)))
        score = np.round(r.rand(len(near), 1), 1 if seed % 3 else 3)
        found.append(np.concatenate([kind, score, box], 1).astype("float32"))
        boxes.append(true)
        labels.append(kinds.astype("int64"))
    return found, boxes, labels


def by_pycocotools(seed: int) -> list[float]:
    """Return the precision of the overlaps from 0.5 to 0.95, at 0.5 and at 0.75; -1 without a true box."""
    from pycocotools.coco import COCO  # pyright: ignore
    from pycocotools.cocoeval import COCOeval  # pyright: ignore

    def sides(box: Any) -> list[float]:
        return [float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])]

    found, boxes, labels = drawn(seed)
    true: list[Any] = []
    seen: list[Any] = []
    for image, (rows, corners, kinds) in enumerate(zip(found, boxes, labels, strict=True), 1):
        for box, kind in zip(corners, kinds[:, 0], strict=True):
            area = sides(box)[2] * sides(box)[3]
            true.append({"id": len(true) + 1, "image_id": image, "category_id": int(kind), "bbox": sides(box), "area": area, "iscrowd": 0})
        seen += [{"image_id": image, "category_id": int(row[0]), "score": float(row[1]), "bbox": sides(row[2:])} for row in rows]
    if not seen:
        return [0.0] * 3 if true else [-1.0] * 3
    coco: Any = COCO()
    coco.dataset = {"info": {}, "images": [{"id": n + 1} for n in range(len(found))], "categories": [{"id": n} for n in range(CLASSES)], "annotations": true}
    with contextlib.redirect_stdout(sys.stderr):
        coco.createIndex()
        run: Any = COCOeval(coco, coco.loadRes(seen), "bbox")
        run.params.iouThrs = np.array(IOU)
        run.evaluate()
        run.accumulate()
        run.summarize()
    return [float(x) for x in run.stats[:3]]


if __name__ == "__main__":
    print(json.dumps([by_pycocotools(seed) for seed in range(int(sys.argv[1]))]))
