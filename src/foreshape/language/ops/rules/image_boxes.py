"""The common rules of operators over boxes: boxes of four numbers, and rows divided among images."""

from __future__ import annotations

from foreshape.core.spec import Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import ExecutionError
from foreshape.language.operator.require import require_equal, require_rank
from foreshape.language.ops.rules.ragged_rules import divide


def require_boxes(spec: Spec, slot: str, rank: int) -> None:
    """Require boxes ``[..., 4]`` of ``rank`` dims in ``slot``."""
    require_rank(rank, spec, slot)
    require_equal(spec.known_dims[-1], 4, f"{slot} must be boxes of 4 numbers, not {spec.known_dims[-1]}", **{slot: rank - 1})


def images_of(numbers: Tensor, rows: int, slot: str) -> Offsets:
    """Return the rows of each image, from their numbers.

    Raises:
        ExecutionError: a number is below 0, or they do not sum to the rows.
    """
    images = Offsets.of_lengths(numbers.reshape(-1).long())
    if not divide(images.lengths, rows):
        raise ExecutionError(f"{slot} must say how many of {rows} rows are of each image; seen {images.shown_lengths()}")
    return images


def require_scored(BBoxes: Spec, Scores: Spec) -> None:
    """Require boxes ``[images, boxes, 4]``, and a score of each class for each box, ``[images, classes, boxes]``."""
    require_boxes(BBoxes, "BBoxes", 3)
    require_rank(3, Scores, "Scores")
    require_equal(BBoxes.known_dims[0], Scores.known_dims[0], "BBoxes and Scores must have as many images", BBoxes=0, Scores=0)
    require_equal(BBoxes.known_dims[1], Scores.known_dims[2], "there must be one score of each class for each box", BBoxes=1, Scores=2)
