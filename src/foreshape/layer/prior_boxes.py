"""Prior boxes of object detectors: boxes laid over an image, to compare detections with."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable

_VARIANCES = (0.1, 0.1, 0.2, 0.2)


def prior_box(
    x: Variable, image: Variable, min_sizes: Sequence[float], max_sizes: Sequence[float] = (), aspect_ratios: Sequence[float] = (1.0,),
    variances: Sequence[float] = _VARIANCES, flip: bool = False, clip: bool = False, steps: Sequence[float] = (0.0, 0.0), offset: float = 0.5,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Variable, Variable]:  # fmt: skip
    """Return the boxes laid over an image by an SSD, and their variances: ``[height, width, priors, 4]`` each, in parts of the image.

    Args:
        x: the features, ``[batch, channels, height, width]``, with priors around each cell.
        image: ``[batch, channels, height, width]``.
        min_sizes, max_sizes: in pixels; of each pair one prior of sqrt(min * max).
        aspect_ratios: width to height; with ``flip`` their inverses, too.
        variances: four numbers, the same for all priors.
        flip: take the inverses of aspect_ratios, too.
        clip: cut the boxes at the edges of the image.
        steps: the pixels from cell to cell, across and down; 0: as many as the image has for each.
        offset: the place of the priors' middle in a cell.
        min_max_aspect_ratios_order: the prior of max_sizes comes second, not last.
    """
    attrs = {
        "min_sizes": list(min_sizes), "max_sizes": list(max_sizes), "aspect_ratios": list(aspect_ratios), "variances": list(variances), "flip": flip,
        "clip": clip, "step_w": steps[0], "step_h": steps[1], "offset": offset, "min_max_aspect_ratios_order": min_max_aspect_ratios_order,
    }  # fmt: skip
    return current_block().apply("prior_box", {"Input": x, "Image": image}, attrs)


def density_prior_box(
    x: Variable, image: Variable, densities: Sequence[int], fixed_sizes: Sequence[float], fixed_ratios: Sequence[float],
    variances: Sequence[float] = _VARIANCES, clip: bool = False, steps: Sequence[float] = (0.0, 0.0), offset: float = 0.5, flatten_to_2d: bool = False,
) -> tuple[Variable, Variable]:  # fmt: skip
    """Return boxes as `prior_box`: density x density boxes spread over a cell for each of ``fixed_sizes`` and ``fixed_ratios``; ``[boxes, 4]`` with
    ``flatten_to_2d``.

    Args:
        x, image, variances, clip, steps, offset: as for `prior_box`.
        densities: one for each of fixed_sizes.
        fixed_sizes: in pixels.
        fixed_ratios: width to height.
        flatten_to_2d: give ``[boxes, 4]``.
    """
    attrs = {
        "densities": list(densities), "fixed_sizes": list(fixed_sizes), "fixed_ratios": list(fixed_ratios), "variances": list(variances), "clip": clip,
        "step_w": steps[0], "step_h": steps[1], "offset": offset, "flatten_to_2d": flatten_to_2d,
    }  # fmt: skip
    return current_block().apply("density_prior_box", {"Input": x, "Image": image}, attrs)


def anchor_generator(
    x: Variable,
    anchor_sizes: Sequence[float],
    aspect_ratios: Sequence[float],
    variances: Sequence[float] = _VARIANCES,
    stride: Sequence[float] = (16.0, 16.0),
    offset: float = 0.5,
) -> tuple[Variable, Variable]:
    """Return the anchors of a Faster R-CNN in pixels, and their variances: ``[height, width, anchors, 4]`` each.

    Args:
        x: the features, ``[batch, channels, height, width]``.
        anchor_sizes: in pixels, the sides of squares.
        aspect_ratios: height to width.
        variances: four numbers, the same for all anchors.
        stride: the pixels from cell to cell, across and down.
        offset: where in a cell the middle of its anchors is.
    """
    attrs = {"anchor_sizes": list(anchor_sizes), "aspect_ratios": list(aspect_ratios), "variances": list(variances), "stride": list(stride), "offset": offset}
    return current_block().apply("anchor_generator", {"Input": x}, attrs)
