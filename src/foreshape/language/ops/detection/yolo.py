"""YOLO networks: boxes and scores decoded from the grid, and the loss of boxes, confidences and classes."""

from __future__ import annotations

from typing import NamedTuple

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, INT32, Spec
from foreshape.core.values.torch_proxy import F, Tensor, torch
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require_equal, require_rank
from foreshape.language.operator.samples import f32, f64, i32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.image_boxes import require_boxes
from foreshape.language.ops.rules.ragged_rules import rows


class YoloBox(Operator):
    """Boxes = for each anchor of each cell of X, in pixels of the image; Scores = the product of confidence and the share of each class.

    An anchor's channels are x, y, width, height, confidence and one for each class. With s the logistic function, the middle is (cell + scale_x_y s(x) -
    (scale_x_y - 1) / 2) / cells of the image, the width exp(width) anchor / (downsample_ratio cells) of it, the confidence s(confidence), the share s(class).
    With ``iou_aware`` one channel u for each anchor comes before all others, and the confidence is s(confidence)^(1 - f) s(u)^f, f the ``iou_aware_factor``. If
    it is below ``conf_thresh``, box and scores are zeros. Source: Redmon and Farhadi, "YOLOv3", 2018.
    """

    type = "yolo_box"
    layer_function = "detection.yolo_box"
    examples = ("X", "ImgSize")
    X = operand((FP32, FP64), doc="[images, anchors * (5 + classes), height, width]; with iou_aware, 6 + classes")
    ImgSize = operand((INT32,), doc="[images, 2]: height and width")
    Boxes = result(doc="[images, anchors * height * width, 4]")
    Scores = result(doc="[images, anchors * height * width, classes]")
    anchors = attribute(AttrType.INTS, [], doc="width and height of each, in pixels of the input of the network")
    class_num = attribute(AttrType.INT, 1, low=1)
    conf_thresh = attribute(AttrType.FLOAT, 0.01)
    downsample_ratio = attribute(AttrType.INT, 32, low=1, doc="the pixels of the network's input for each cell")
    clip_bbox = attribute(AttrType.BOOLEAN, True, doc="cut boxes at the edges of the image")
    scale_x_y = attribute(AttrType.FLOAT, 1.0)
    iou_aware = attribute(AttrType.BOOLEAN, False)
    iou_aware_factor = attribute(AttrType.FLOAT, 0.5, low=0, high=1)
    gradient = NOT_DIFFERENTIABLE

    def _count(self) -> int:
        """Return the number of anchors."""
        if not self.anchors or len(self.anchors) % 2 or any(a <= 0 for a in self.anchors):
            fail(f"anchors must be pairs of width and height, at least one pair, larger than 0; seen {list(self.anchors)}", SchemaError)
        return len(self.anchors) // 2

    def infer_shape(self, X: Spec, ImgSize: Spec) -> tuple[Spec, Spec]:
        require_rank(4, X, "X")
        require_rank(2, ImgSize, "ImgSize")
        images, channels, height, width = X.known_dims
        count = self._count()
        required = count * (self.class_num + (6 if self.iou_aware else 5))
        require_equal(channels, required, f"X must have {required} channels for {count} anchors and {self.class_num} classes, not {channels}", X=1)
        require_equal(images, ImgSize.known_dims[0], "there must be a size for each image", X=0, ImgSize=0)
        require_equal(ImgSize.known_dims[1], 2, "ImgSize must have 2 columns, height and width", ImgSize=1)
        boxes = count * height * width
        return X.with_dims((images, boxes, 4)), X.with_dims((images, boxes, self.class_num))

    def workspace(self, X: Spec, ImgSize: Spec, *, strided: frozenset[str]) -> Size:
        images, _, height, width = X.known_dims
        cells = images * self._count() * height * width
        return X.known_dtype.itemsize * cells * (26 + 2 * self.class_num) + 64 * (height + width) + 24 * ImgSize.elements + copies(strided, X=X)

    def kernel(self, X: Tensor, ImgSize: Tensor) -> tuple[Tensor, Tensor]:
        images, _, height, width = X.shape
        count = self._count()
        aware = count if self.iou_aware else 0
        cells = X[:, aware:].reshape(images, count, 5 + self.class_num, height, width)
        confidence = cells[:, :, 4].sigmoid()
        if aware:
            confidence = confidence.pow(1.0 - self.iou_aware_factor) * X[:, :aware].sigmoid().pow(self.iou_aware_factor)
        confident = (confidence >= self.conf_thresh).unsqueeze(-1)
        grid = torch.stack(torch.meshgrid(torch.arange(height, device=X.device), torch.arange(width, device=X.device), indexing="ij")[::-1], -1)
        image = ImgSize.flip(1).to(X.dtype).view(images, 1, 1, 1, 2)
        cell = X.new_tensor([width, height])
        middle = cells[:, :, :2].sigmoid().movedim(2, -1).mul_(self.scale_x_y).add_(grid).add_(-0.5 * (self.scale_x_y - 1.0)).mul_(image).div_(cell)
        size = cells[:, :, 2:4].exp().movedim(2, -1).mul_(X.new_tensor(self.anchors).view(count, 1, 1, 2)).mul_(image).div_(cell * self.downsample_ratio)
        half = size.div_(2)
        low, high = middle - half, middle + half
        if self.clip_bbox:
            low, high = low.clamp_(min=0), torch.minimum(high, image - 1)
        boxes = torch.cat([low, high], -1).masked_fill_(~confident, 0)
        scores = cells[:, :, 5:].sigmoid().mul_(confidence.unsqueeze(2)).movedim(2, -1).masked_fill(~confident, 0)
        total = count * height * width
        return boxes.view(images, total, 4), scores.reshape(images, total, self.class_num)

    samples = [
        sample(X=f32(2, 14, 3, 4), ImgSize=i32(2, 2, data=[[60, 50], [40, 70]]), anchors=[10, 13, 16, 30], class_num=2, conf_thresh=0.4),
        sample(X=f32(2, 16, 3, 5), ImgSize=i32(2, 2, data=[[60, 50], [40, 70]]), anchors=[10, 13, 16, 30], class_num=2, iou_aware=True, scale_x_y=1.2,
               clip_bbox=False, iou_aware_factor=0.4, downsample_ratio=16),
        sample(X=f64(1, 6, 3, 4), ImgSize=i32(1, 2, data=[[30, 40]]), anchors=[10, 13]),
        sample(X=f32(0, 6, 3, 4), ImgSize=i32(0, 2), anchors=[10, 13]),
    ]  # fmt: skip
    rejects = [
        reject(X=f32(2, 14, 3, 4), ImgSize=i32(2, 2), anchors=[10, 13], says="X must have 6 channels"),
        reject(X=f32(2, 6, 3, 4), ImgSize=i32(2, 2), anchors=[10, 13, 5], says="pairs of width and height", error=SchemaError),
        reject(X=f32(2, 6, 3, 4), ImgSize=i32(2, 2), says="pairs of width and height", error=SchemaError),
    ]


_NONE = 1e-6
"""The least width and height of a truth."""


class _Truths(NamedTuple):
    """The truths of a cell, ``[n]`` each."""

    image: Tensor
    anchor: Tensor
    down: Tensor
    across: Tensor
    target: Tensor
    """``[n, 4]``: the targets of x, y, width and height."""
    weight: Tensor
    """The weight of the four."""
    classes: Tensor
    """``[n, classes]``: the targets of the classes' shares."""
    score: Tensor


class Yolov3Loss(Operator):
    """Loss = the loss of each image's boxes, confidences and classes.

    A truth belongs to the cell of its middle, and to the one of all ``anchors`` with the most similar shape. It counts here if this anchor is in
    ``anchor_mask``. There x and y have the cross entropy of their logistic function, and width and height the difference of their logarithms. Both are
    multiplied by 2 - the truth's area. Each class has its cross entropy, and the confidence its cross entropy with 1; all times GTScore. Elsewhere the
    confidence has its cross entropy with 0, unless the predicted box overlaps a truth by more than ``ignore_thresh``. With ``use_label_smooth`` the targets of
    classes are 1 - d and d instead of 1 and 0, d = min(1 / classes, 1 / 40).

    ObjectnessMask = the target of a confidence: a score, 0, or -1 where it does not count. GTMatchMask = the place in ``anchor_mask`` of each truth's anchor,
    or -1. If several truths meet in one cell and anchor, the gradient is of all of them (in PaddlePaddle of the last). Source: Redmon and Farhadi, "YOLOv3",
    2018.
    """

    type = "yolov3_loss"
    layer_function = "detection.yolo_loss"
    X = operand((FP32, FP64), doc="[images, len(anchor_mask) * (5 + classes), height, width], as high as wide")
    GTBox = operand((FP32, FP64), same_type_as="X", doc="[images, truths, 4]: middle, width and height in parts of the image; zeros: none")
    GTLabel = operand((INT32,), doc="[images, truths]")
    GTScore = operand((FP32, FP64), same_type_as="X", optional=True, doc="[images, truths]; ones by default")
    Loss = result(doc="[images]")
    ObjectnessMask = result(doc="[images, len(anchor_mask), height, width]")
    GTMatchMask = result(doc="int32 [images, truths]")
    anchors = attribute(AttrType.INTS, [], doc="width and height of each, in pixels of the input of the network")
    anchor_mask = attribute(AttrType.INTS, [], doc="the anchors X predicts")
    class_num = attribute(AttrType.INT, 1, low=1)
    ignore_thresh = attribute(AttrType.FLOAT, 0.7)
    downsample_ratio = attribute(AttrType.INT, 32, low=1, doc="the pixels of the network's input for each cell")
    use_label_smooth = attribute(AttrType.BOOLEAN, True)
    scale_x_y = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(self, X: Spec, GTBox: Spec, GTLabel: Spec, GTScore: Spec | None) -> tuple[Spec, Spec, Spec]:
        if not self.anchors or len(self.anchors) % 2 or any(a <= 0 for a in self.anchors):
            fail(f"anchors must be pairs of width and height, at least one pair, larger than 0; seen {list(self.anchors)}", SchemaError)
        if not self.anchor_mask or any(not 0 <= m < len(self.anchors) // 2 for m in self.anchor_mask):
            fail(f"anchor_mask must name one or more of {len(self.anchors) // 2} anchors; seen {list(self.anchor_mask)}", SchemaError)
        require_rank(4, X, "X")
        require_boxes(GTBox, "GTBox", 3)
        images, channels, height, width = X.known_dims
        require_equal(height, width, "X must be as high as it is wide", X=2)
        count = len(self.anchor_mask)
        required = count * (5 + self.class_num)
        require_equal(channels, required, f"X must have {required} channels for {count} anchors and {self.class_num} classes, not {channels}", X=1)
        require_equal(images, GTBox.known_dims[0], "X and GTBox must have as many images", X=0, GTBox=0)
        for slot, spec in (("GTLabel", GTLabel), ("GTScore", GTScore)):
            if spec is not None:
                require_rank(2, spec, slot)
                for axis in (0, 1):
                    require_equal(spec.known_dims[axis], GTBox.known_dims[axis], f"{slot} must have one number for each truth", **{slot: axis, "GTBox": axis})
        return X.with_dims((images,)), X.with_dims((images, count, height, width)), rows(INT32, (images, GTBox.known_dims[1]), X.lod)

    def _anchors(self, like: Tensor, size: int) -> Tensor:
        """Return ``[anchors, 2]``: width and height in parts of the network's input."""
        return like.new_tensor(self.anchors).view(-1, 2) / size

    def _ignored(self, cells: Tensor, GTBox: Tensor, valid: Tensor) -> Tensor:
        """Return the mask ``[images, anchors, height, width]`` of predicted boxes overlapping a truth by more than the threshold."""
        height, width = cells.shape[-2:]
        step = torch.stack(torch.meshgrid(torch.arange(height, device=cells.device), torch.arange(width, device=cells.device), indexing="ij")[::-1])
        middle = cells[:, :, :2].sigmoid().mul_(self.scale_x_y).add_(step).add_(-0.5 * (self.scale_x_y - 1.0)).div_(height)
        anchors = self._anchors(cells, self.downsample_ratio * height)[list(self.anchor_mask)]
        size = cells[:, :, 2:4].exp().mul_(anchors.view(-1, 2, 1, 1))
        best = torch.zeros_like(cells[:, :, 0])
        for truth, counts in zip(GTBox.unbind(1), valid.unbind(1), strict=True):  # all cells at once, for one truth of each image
            center, its = truth[:, None, :2, None, None], truth[:, None, 2:, None, None]
            side = torch.minimum(middle + size / 2, center + its / 2).sub_(torch.maximum(middle - size / 2, center - its / 2))
            intersection = side[:, :, 0].mul(side[:, :, 1]).masked_fill_((side < 0).any(2), 0)
            overlap = intersection / (size[:, :, 0] * size[:, :, 1] + its[:, :, 0] * its[:, :, 1] - intersection)
            best = torch.where((overlap > best) & counts[:, None, None, None], overlap, best)
        return best > self.ignore_thresh

    def _match(self, GTBox: Tensor, valid: Tensor, height: int) -> Tensor:
        """Return the place of each truth's anchor in ``anchor_mask``, or -1: int32 ``[images, truths]``."""
        shape, size = self._anchors(GTBox, self.downsample_ratio * height), GTBox[..., None, 2:]
        intersection = torch.minimum(shape, size).prod(-1)
        best = (intersection / (shape.prod(-1) + size.prod(-1) - intersection)).argmax(-1)
        place = [self.anchor_mask.index(a) if a in self.anchor_mask else -1 for a in range(len(self.anchors) // 2)]
        return torch.tensor(place, dtype=torch.int32, device=best.device)[best].masked_fill_(~valid, -1)

    def _truths(self, X: Tensor, GTBox: Tensor, GTLabel: Tensor, GTScore: Tensor | None, match: Tensor) -> _Truths:
        height, width = X.shape[2:]
        image, truth = (match >= 0).nonzero().unbind(1)
        box, anchor = GTBox[image, truth], match[image, truth].long()
        across, down = (box[:, 0] * width).long(), (box[:, 1] * height).long()
        if bool(((across < 0) | (across >= width) | (down < 0) | (down >= height)).any()):
            low, high = (float(x) for x in box[:, :2].aminmax())
            raise ExecutionError(f"yolov3_loss: the middle of a truth in GTBox must be in the image, from 0 to below 1; seen {low:g} to {high:g}")
        shape = GTBox.new_tensor(self.anchors).view(-1, 2)[list(self.anchor_mask)][anchor]
        place = box[:, :2] * height - torch.stack([across, down], 1)
        target = torch.cat([place, (box[:, 2:] * (self.downsample_ratio * height) / shape).log_()], 1)
        score = GTScore[image, truth] if GTScore is not None else GTBox.new_ones(len(image))
        smoothing = min(1.0 / self.class_num, 1.0 / 40) if self.use_label_smooth else 0.0
        is_class = GTLabel[image, truth].unsqueeze(1) == torch.arange(self.class_num, device=X.device)
        classes = torch.where(is_class, GTBox.new_tensor(1.0 - smoothing), GTBox.new_tensor(smoothing))
        return _Truths(image, anchor, down, across, target, (2.0 - box[:, 2] * box[:, 3]) * score, classes, score)

    def workspace(self, X: Spec, GTBox: Spec, GTLabel: Spec, GTScore: Spec | None) -> Size:
        return self._needed_bytes(X, GTBox)

    def _needed_bytes(self, X: Spec, GTBox: Spec) -> Size:
        item = X.known_dtype.itemsize
        cells = X.known_dims[0] * len(self.anchor_mask) * X.known_dims[2] * X.known_dims[3]
        truths = GTBox.known_dims[0] * GTBox.known_dims[1]
        of_cells = (24 * item + 16) * cells + 32 * X.known_dims[2] * X.known_dims[3]
        of_truths = (item * (40 + 8 * self.class_num + 6 * len(self.anchors)) + 120 + 2 * self.class_num) * truths
        return X.nbytes + of_cells + of_truths + 8 * item * len(self.anchors)

    def kernel(self, X: Tensor, GTBox: Tensor, GTLabel: Tensor, GTScore: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        images, _, height, width = X.shape
        count = len(self.anchor_mask)
        cells = X.reshape(images, count, 5 + self.class_num, height, width)
        valid = ~(GTBox[..., 2:] < _NONE).any(-1)
        match = self._match(GTBox, valid, height)
        t = self._truths(X, GTBox, GTLabel, GTScore, match)
        mask = self._ignored(cells, GTBox, valid).to(X.dtype).contiguous().neg_()
        cell = ((t.image * count + t.anchor) * height + t.down) * width + t.across
        number = torch.arange(len(cell), device=cell.device)
        last = torch.full((mask.numel(),), -1, dtype=torch.int64, device=cell.device).scatter_reduce_(0, cell, number, "amax")[cell] == number
        mask.view(-1)[cell[last]] = t.score[last]
        predicted = cells[t.image, t.anchor, :, t.down, t.across]
        of_box = F.binary_cross_entropy_with_logits(predicted[:, :2], t.target[:, :2], reduction="none").sum(1)
        of_box += (predicted[:, 2:4] - t.target[:, 2:]).abs().sum(1)
        of_class = F.binary_cross_entropy_with_logits(predicted[:, 5:], t.classes, reduction="none").sum(1)
        confidence, weight, objectness = cells[:, :, 4], *_confidences(mask)
        loss = (F.binary_cross_entropy_with_logits(confidence, objectness, reduction="none") * weight).sum((1, 2, 3))
        loss.index_add_(0, t.image, of_box * t.weight + of_class * t.score)
        return loss, mask, match

    def _gradient_workspace(self, X: Spec, GTBox: Spec, GTLabel: Spec, GTScore: Spec | None, mask: Spec, match: Spec, d_loss: Spec) -> Size:
        return self._needed_bytes(X, GTBox)

    @gradient("X", "GTBox", "GTLabel", "GTScore", "ObjectnessMask", "GTMatchMask", "Loss@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(
        self, X: Tensor, GTBox: Tensor, GTLabel: Tensor, GTScore: Tensor | None, ObjectnessMask: Tensor, GTMatchMask: Tensor, d_loss: Tensor
    ) -> Tensor:
        images, _, height, width = X.shape
        cells = X.reshape(images, len(self.anchor_mask), 5 + self.class_num, height, width)
        t = self._truths(X, GTBox, GTLabel, GTScore, GTMatchMask)
        out = torch.zeros(cells.shape, dtype=X.dtype, device=X.device)
        weight, objectness = _confidences(ObjectnessMask)
        out[:, :, 4] = (cells[:, :, 4].sigmoid() - objectness) * weight * d_loss.view(-1, 1, 1, 1)
        predicted = cells[t.image, t.anchor, :, t.down, t.across]
        d = torch.zeros_like(predicted)
        d[:, :2] = (predicted[:, :2].sigmoid() - t.target[:, :2]) * t.weight.unsqueeze(1)
        d[:, 2:4] = torch.where(predicted[:, 2:4] > t.target[:, 2:], 1.0, -1.0) * t.weight.unsqueeze(1)
        d[:, 5:] = (predicted[:, 5:].sigmoid() - t.classes) * t.score.unsqueeze(1)
        out.movedim(2, -1).index_put_((t.image, t.anchor, t.down, t.across), d * d_loss[t.image].unsqueeze(1), accumulate=True)
        return out.view(X.shape)

    samples = [
        sample(X=f32(2, 14, 4, 4), GTBox=f32(2, 3, 4, data=[[0.3, 0.4, 0.2, 0.3], [0.8, 0.1, 0.5, 0.4], [0, 0, 0, 0], [0.1, 0.9, 0.1, 0.12],
                                                            [0.6, 0.6, 0.7, 0.9], [0.55, 0.3, 0.3, 0.2]]),
               GTLabel=i32(2, 3, high=1), anchors=[10, 13, 33, 23, 60, 80], anchor_mask=[1, 2], class_num=2),
        sample(X=f32(1, 8, 3, 3), GTBox=f32(1, 2, 4, data=[[0.3, 0.4, 0.2, 0.3], [0.8, 0.1, 0.5, 0.4]]), GTLabel=i32(1, 2, high=2),
               GTScore=f32(1, 2, low=0.3, high=0.9), anchors=[30, 23], anchor_mask=[0], class_num=3, use_label_smooth=False, ignore_thresh=0.3, scale_x_y=1.2),
        sample(X=f32(1, 6, 5, 5), GTBox=f32(1, 0, 4), GTLabel=i32(1, 0), anchors=[30, 23], anchor_mask=[0]),
    ]  # fmt: skip
    rejects = [
        reject(X=f32(1, 6, 3, 5), GTBox=f32(1, 2, 4), GTLabel=i32(1, 2), anchors=[30, 23], anchor_mask=[0], says="as high as it is wide"),
        reject(X=f32(1, 7, 3, 3), GTBox=f32(1, 2, 4), GTLabel=i32(1, 2), anchors=[30, 23], anchor_mask=[0], says="X must have 6 channels"),
        reject(X=f32(1, 6, 3, 3), GTBox=f32(1, 2, 4), GTLabel=i32(1, 2), anchors=[30, 23], anchor_mask=[1], says="one or more of 1 anchors", error=SchemaError),
        reject(X=f32(1, 6, 3, 3), GTBox=f32(1, 2, 4), GTLabel=i32(1, 2), anchors=[30], anchor_mask=[0], says="pairs of width and height", error=SchemaError),
    ]


def _confidences(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight and the target of each confidence."""
    is_true = mask > 1e-5
    return torch.where(is_true, mask, (mask > -0.5).to(mask.dtype)), is_true.to(mask.dtype)
