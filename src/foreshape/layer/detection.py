"""Operations of object detectors: ``layer.detection.yolo_box``, ``layer.detection.multiclass_nms`` and the like.

A box is four numbers: left, top, right, bottom. The numbers decide on the boxes that stay, so their count is a symbol of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.errors import SchemaError
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.argument_errors import close
from foreshape.layer.legacy import bipartite_match, mine_hard_examples, target_assign
from foreshape.layer.prior_boxes import anchor_generator, density_prior_box, prior_box

__all__ = [
    "anchor_generator", "bipartite_match", "box_clip", "box_coder", "collect_fpn_proposals", "density_prior_box", "distribute_fpn_proposals",
    "generate_proposals", "iou_similarity", "matrix_nms", "mine_hard_examples", "multiclass_nms", "nms", "polygon_box_transform", "prior_box",
    "retinanet_detection_output", "sigmoid_focal_loss", "target_assign", "yolo_box", "yolo_loss",
]  # fmt: skip


def box_coder(
    prior_box: Variable,
    prior_box_var: Variable | Sequence[float] | None,
    target_box: Variable,
    code_type: str = "encode_center_size",
    normalized: bool = True,
    axis: int = 0,
) -> Variable:
    """Return boxes as their difference from priors ("encode_center_size"), or back ("decode_center_size").

    Args:
        prior_box: ``[priors, 4]``.
        prior_box_var: as prior_box; or four numbers; or None for ones.
        target_box: ``[targets, 4]`` to encode, ``[rows, columns, 4]`` to decode.
        code_type: "encode_center_size" or "decode_center_size".
        normalized: otherwise coordinates number pixels.
        axis: to decode: 0 where the columns belong to the priors, 1 where the rows do.

    Returns:
        ``[targets, priors, 4]``, or as target_box.
    """
    slots = {"PriorBox": prior_box, "TargetBox": target_box}
    attrs: dict[str, Any] = {"code_type": code_type, "box_normalized": normalized, "axis": axis}
    if isinstance(prior_box_var, Variable):
        slots["PriorBoxVar"] = prior_box_var
    elif prior_box_var is not None:
        attrs["variance"] = list(prior_box_var)
    return current_block().apply("box_coder", slots, attrs)


def iou_similarity(x: Variable, y: Variable, normalized: bool = True) -> Variable:
    """Return the intersection over union of each of the boxes x, ``[n, 4]``, and each of y, ``[m, 4]``: ``[n, m]``.

    Args:
        x: ``[n, 4]``, left, top, right and bottom, floats.
        y: ``[m, 4]``, likewise.
        normalized: otherwise coordinates number pixels, so a box is larger by one.
    """
    return current_block().apply("iou_similarity", {"X": x, "Y": y}, {"box_normalized": normalized})


def box_clip(x: Variable, im_info: Variable) -> Variable:
    """Return boxes, ragged ``[rows, 4]``, cut at the edges of their images; im_info is ``[images, 3]`` of height, width and scale.

    Args:
        x: the boxes, left, top, right and bottom.
        im_info: floats.
    """
    return current_block().apply("box_clip", {"Input": x, "ImInfo": im_info})


def polygon_box_transform(x: Variable) -> Variable:
    """Convert the offsets of corners from each pixel, ``[batch, 2 * corners, height, width]``, to places in an image four times as large.

    Args:
        x: floats.
    """
    return current_block().apply("polygon_box_transform", {"Input": x})


def yolo_box(
    x: Variable, img_size: Variable, anchors: Sequence[int], num_classes: int, conf_threshold: float = 0.01, downsample_ratio: int = 32, clip_bbox: bool = True,
    scale_x_y: float = 1.0, iou_aware: bool = False, iou_aware_factor: float = 0.5,
) -> tuple[Variable, Variable]:  # fmt: skip
    """Return boxes in pixels and scores from a YOLO network's output.

    Args:
        x: ``[batch, anchors * (5 + num_classes), height, width]``; with ``iou_aware``, 6 + num_classes.
        img_size: int32 ``[batch, 2]``, height and width of the images.
        anchors: width and height of each, in pixels of the network's input.
        num_classes: the number of classes.
        conf_threshold: boxes of less confidence become zeros, with scores of zero.
        downsample_ratio: the pixels of the network's input for each cell.
        clip_bbox: cut the boxes at the edges of the images.
        scale_x_y: lets a middle lie outside of its cell: scale * sigmoid(x) - (scale - 1) / 2.
        iou_aware: x also has the overlap of each box.
        iou_aware_factor: a: confidence ** (1 - a) * overlap ** a.

    Returns:
        (boxes, scores), ``[batch, boxes, 4]`` and ``[batch, boxes, num_classes]``.
    """
    attrs = {
        "anchors": list(anchors), "class_num": num_classes, "conf_thresh": conf_threshold, "downsample_ratio": downsample_ratio, "clip_bbox": clip_bbox,
        "scale_x_y": scale_x_y, "iou_aware": iou_aware, "iou_aware_factor": iou_aware_factor,
    }  # fmt: skip
    return current_block().apply("yolo_box", {"X": x, "ImgSize": img_size}, attrs)


def yolo_loss(
    x: Variable, gt_box: Variable, gt_label: Variable, anchors: Sequence[int], anchor_mask: Sequence[int], num_classes: int, ignore_threshold: float,
    downsample_ratio: int, gt_score: Variable | None = None, use_label_smooth: bool = True, scale_x_y: float = 1.0,
) -> Variable:  # fmt: skip
    """Return the loss of the boxes, confidences and classes of a YOLO network, ``[batch]``.

    Args:
        x: ``[batch, len(anchor_mask) * (5 + num_classes), height, width]``.
        gt_box: the truths, ``[batch, truths, 4]``: middle, width and height in parts of the image; zeros where there are fewer.
        gt_label: int32 ``[batch, truths]``.
        anchors: width and height of all anchors, in pixels of the network's input.
        anchor_mask: the anchors predicted by x.
        num_classes: the number of classes.
        ignore_threshold: the confidence of a box with a larger overlap with a truth is not punished.
        downsample_ratio: the pixels of the network's input for each cell.
        gt_score: the weight of each truth, ``[batch, truths]``; by default one.
        use_label_smooth: class targets are 1 - d and d instead of 1 and 0, with d = min(1 / num_classes, 1 / 40).
        scale_x_y: as for `yolo_box`.
    """
    slots = {"X": x, "GTBox": gt_box, "GTLabel": gt_label} | ({} if gt_score is None else {"GTScore": gt_score})
    attrs = {
        "anchors": list(anchors), "anchor_mask": list(anchor_mask), "class_num": num_classes, "ignore_thresh": ignore_threshold,
        "downsample_ratio": downsample_ratio, "use_label_smooth": use_label_smooth, "scale_x_y": scale_x_y,
    }  # fmt: skip
    return current_block().apply("yolov3_loss", slots, attrs)[0]


def multiclass_nms(
    boxes: Variable, scores: Variable, score_threshold: float, nms_top_k: int, keep_top_k: int, nms_threshold: float = 0.3, normalized: bool = True,
    nms_eta: float = 1.0, background_label: int = -1, boxes_num: Variable | None = None,
) -> tuple[Variable, Variable, Variable]:  # fmt: skip
    """Drop boxes that overlap better ones in each class of each image, and keep the ``keep_top_k`` best of all classes.

    Args:
        boxes: ``[batch, boxes, 4]``; or, with boxes_num, ``[rows, classes, 4]``.
        scores: ``[batch, classes, boxes]``; or ``[rows, classes]``.
        score_threshold: only boxes of a larger score count.
        nms_top_k, keep_top_k: -1 for all.
        nms_threshold: the largest overlap with a better box (intersection over union).
        normalized: otherwise coordinates number pixels, so a box is larger by one.
        nms_eta: below 1, multiplies ``nms_threshold`` after each kept box, while it is above a half.
        background_label: a class left out.
        boxes_num: ``[batch]``: the number of rows of each image.

    Returns:
        (detections ``[rows, 6]`` of class, score and box; int32 ``[rows, 1]``, their indices among all boxes; int32 ``[batch]``, their number for each image).

    Example:
        >>> boxes, scores = layer.detection.yolo_box(features, img_size, [10, 13, 16, 30], num_classes=80)
        >>> found, _, numbers = layer.detection.multiclass_nms(boxes, layer.transpose(scores, [0, 2, 1]), 0.01, 1000, 100, 0.45)
    """
    slots = {"BBoxes": boxes, "Scores": scores} | ({} if boxes_num is None else {"RoisNum": boxes_num})
    attrs = {
        "score_threshold": score_threshold, "nms_top_k": nms_top_k, "keep_top_k": keep_top_k, "nms_threshold": nms_threshold, "normalized": normalized,
        "nms_eta": nms_eta, "background_label": background_label,
    }  # fmt: skip
    return _all("multiclass_nms3", slots, attrs, ("Out", "Index", "NmsRoisNum"))


def matrix_nms(
    boxes: Variable, scores: Variable, score_threshold: float, post_threshold: float, nms_top_k: int, keep_top_k: int, use_gaussian: bool = False,
    gaussian_sigma: float = 2.0, background_label: int = 0, normalized: bool = True,
) -> tuple[Variable, Variable, Variable]:  # fmt: skip
    """Return boxes as `multiclass_nms`, but overlaps with better boxes reduce scores, and boxes with more than ``post_threshold`` left stay.

    Args:
        boxes, scores, score_threshold, nms_top_k, keep_top_k, background_label, normalized: as for `multiclass_nms`.
        post_threshold: of the reduced score.
        use_gaussian: a score falls as exp(-gaussian_sigma * overlap^2) does; otherwise as 1 - overlap.
        gaussian_sigma: of that formula.
    """
    attrs = {
        "score_threshold": score_threshold, "post_threshold": post_threshold, "nms_top_k": nms_top_k, "keep_top_k": keep_top_k,
        "use_gaussian": use_gaussian, "gaussian_sigma": gaussian_sigma, "background_label": background_label, "normalized": normalized,
    }  # fmt: skip
    return _all("matrix_nms", {"BBoxes": boxes, "Scores": scores}, attrs, ("Out", "Index", "RoisNum"))


def nms(boxes: Variable, iou_threshold: float = 0.3) -> Variable:
    """Return the indices of the boxes ``[boxes, 4]``, the best first, without larger overlaps with better ones: int64 ``[rows]``.

    Args:
        boxes: left, top, right and bottom.
        iou_threshold: intersection over union.
    """
    return current_block().apply("nms", {"Boxes": boxes}, {"iou_threshold": iou_threshold})


def generate_proposals(
    scores: Variable, bbox_deltas: Variable, img_size: Variable, anchors: Variable, variances: Variable, pre_nms_top_n: int = 6000,
    post_nms_top_n: int = 1000, nms_threshold: float = 0.5, min_size: float = 0.1, nms_eta: float = 1.0, pixel_offset: bool = False,
) -> tuple[Variable, Variable, Variable]:  # fmt: skip
    """Return the boxes proposed by a region proposal network.

    Args:
        scores: ``[batch, anchors, height, width]``.
        bbox_deltas: ``[batch, 4 * anchors, height, width]``.
        img_size: ``[batch, 2]``, height and width.
        anchors, variances: as from `anchor_generator`.
        pre_nms_top_n, post_nms_top_n: the number of best boxes examined in each image, and the most boxes kept.
        nms_threshold: the largest overlap with a better box (intersection over union).
        min_size: boxes less wide or high, in pixels, are dropped, and boxes of less than one pixel.
        nms_eta: below 1, multiplies ``nms_threshold`` after each kept box, while it is above a half.
        pixel_offset: coordinates number pixels, so a box is larger by one.

    Returns:
        (boxes ``[rows, 4]``, scores ``[rows, 1]``, int32 ``[batch]``, their number for each image).
    """
    slots = {"Scores": scores, "BboxDeltas": bbox_deltas, "ImShape": img_size, "Anchors": anchors, "Variances": variances}
    attrs = {
        "pre_nms_topN": pre_nms_top_n,
        "post_nms_topN": post_nms_top_n,
        "nms_thresh": nms_threshold,
        "min_size": min_size,
        "eta": nms_eta,
        "pixel_offset": pixel_offset,
    }
    return _all("generate_proposals_v2", slots, attrs, ("RpnRois", "RpnRoiProbs", "RpnRoisNum"))


def distribute_fpn_proposals(
    fpn_rois: Variable, min_level: int, max_level: int, refer_level: int, refer_scale: int, pixel_offset: bool = False, boxes_num: Variable | None = None
) -> tuple[list[Variable], Variable, list[Variable]]:
    """Distribute regions to the levels of a pyramid: an area of ``refer_scale`` squared goes to ``refer_level``, one twice as wide a level up.

    Args:
        fpn_rois: ``[regions, 4]``, ragged; or dense with boxes_num, ``[batch]``, the number for each image.
        min_level, max_level: the lowest and the highest level.
        refer_level: the level of regions of the size ``refer_scale``.
        refer_scale: the root of an area, in pixels.
        pixel_offset: coordinates number pixels, so a box is larger by one.
        boxes_num: int32 ``[batch]``, the number of regions of each image.

    Returns:
        (of each level its regions; int32 ``[regions, 1]``, the place of each in all levels one after the other; of each level int32 ``[batch]``, the
        number for each image).
    """
    if max_level < min_level:
        raise SchemaError.must("distribute_fpn_proposals: max_level", "at least min_level", f"{max_level} and {min_level}")
    block = current_block()
    prefix = block.program.layer_name("distribute_fpn_proposals")
    levels = range(min_level, max_level + 1)
    outputs = {
        "MultiFpnRois": [f"{prefix}.rois{level}" for level in levels],
        "RestoreIndex": [f"{prefix}.restore"],
        "MultiLevelRoIsNum": [f"{prefix}.number{level}" for level in levels],
    }
    slots = {"FpnRois": fpn_rois} | ({} if boxes_num is None else {"RoisNum": boxes_num})
    attrs = {"min_level": min_level, "max_level": max_level, "refer_level": refer_level, "refer_scale": refer_scale, "pixel_offset": pixel_offset}
    block.append_op("distribute_fpn_proposals", slots, outputs, attrs)
    rois, restore, numbers = ([block.vars[n] for n in names] for names in outputs.values())
    return rois, restore[0], numbers


def collect_fpn_proposals(
    multi_rois: Sequence[Variable], multi_scores: Sequence[Variable], post_nms_top_n: int, rois_num_per_level: Sequence[Variable] = ()
) -> tuple[Variable, Variable]:
    """Return the best ``post_nms_top_n`` regions of all levels, image by image, and how many are of each image, int32 ``[batch]``.

    Args:
        multi_rois, multi_scores: of each level ``[rows, 4]`` and ``[rows, 1]``, ragged; or dense with rois_num_per_level, ``[batch]`` of each.
        post_nms_top_n: how many regions are kept.
        rois_num_per_level: of each level int32 ``[batch]``, how many regions each image has.
    """
    slots = {"MultiLevelRois": list(multi_rois), "MultiLevelScores": list(multi_scores)}
    if rois_num_per_level:
        slots["MultiLevelRoIsNum"] = list(rois_num_per_level)
    return _all("collect_fpn_proposals", slots, {"post_nms_topN": post_nms_top_n}, ("FpnRois", "RoisNum"))


def retinanet_detection_output(
    boxes: Sequence[Variable], scores: Sequence[Variable], anchors: Sequence[Variable], im_info: Variable, score_threshold: float = 0.05,
    nms_top_k: int = 1000, keep_top_k: int = 100, nms_threshold: float = 0.3, nms_eta: float = 1.0,
) -> Variable:  # fmt: skip
    """Return the detections of a RetinaNet, ``[rows, 6]`` of class (from 1), score and box, ragged by image.

    Args:
        boxes, scores, anchors: of each level ``[batch, boxes, 4]``, coded, ``[batch, boxes, classes]`` and ``[boxes, 4]``.
        im_info: ``[batch, 3]``, height, width and scale.
        score_threshold, nms_top_k, keep_top_k, nms_threshold, nms_eta: as for `multiclass_nms`.
    """
    slots = {"BBoxes": list(boxes), "Scores": list(scores), "Anchors": list(anchors), "ImInfo": im_info}
    attrs = {"score_threshold": score_threshold, "nms_top_k": nms_top_k, "keep_top_k": keep_top_k, "nms_threshold": nms_threshold, "nms_eta": nms_eta}
    return current_block().apply("retinanet_detection_output", slots, attrs)


def sigmoid_focal_loss(x: Variable, label: Variable, fg_num: Variable, gamma: float = 2.0, alpha: float = 0.25) -> Variable:
    """Return the focal loss of each class of each example, as x: easy examples count little.

    Args:
        x: logits, ``[examples, classes]``.
        label: int32 ``[examples, 1]``, classes from 1; 0 is of none, and -1 does not count.
        fg_num: int32 ``[1]``, the divisor of the loss.
        gamma, alpha: of the formula of Lin et al., "Focal Loss for Dense Object Detection", 2017: -alpha (1 - p)^gamma log(p).
    """
    return current_block().apply("sigmoid_focal_loss", {"X": x, "Label": label, "FgNum": fg_num}, {"gamma": gamma, "alpha": alpha})


def _all(type: str, slots: dict[str, Any], attrs: dict[str, Any], results: tuple[str, ...]) -> Any:
    """Return the results of an op, including optional ones."""
    block = current_block()
    prefix = block.program.layer_name(type)
    op = block.append_op(type, slots, {slot: f"{prefix}.{slot}" for slot in results}, attrs)
    return tuple(block.vars[op.outputs[slot][0]] for slot in results)


close(globals(), __all__)
