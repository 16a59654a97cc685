"""yolo_box: boxes and scores decoded from the grid of a YOLO network."""

from __future__ import annotations

from foreshape.dims import Size
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import fail, require_equal, require_rank
from foreshape.operator.samples import f32, f64, i32, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.spec import FP32, FP64, INT32, Spec
from foreshape.values.torch_proxy import Tensor, torch


class YoloBox(Operator):
    """Boxes = for each anchor of each cell of X, in pixels of the image; Scores = the product of confidence and the share of each class.

    An anchor's channels are x, y, width, height, confidence and one for each class. With s the logistic function, the middle is (cell + scale_x_y s(x) -
    (scale_x_y - 1) / 2) / cells of the image, the width exp(width) anchor / (downsample_ratio cells) of it, the confidence s(confidence), the share s(class).
    With ``iou_aware`` one channel u for each anchor comes before all others, and the confidence is s(confidence)^(1 - f) s(u)^f, f the ``iou_aware_factor``. If
    it is below ``conf_thresh``, box and scores are zeros. Source: Redmon and Farhadi, "YOLOv3", 2018.
    """

    type = "yolo_box"
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
        wanted = count * (self.class_num + (6 if self.iou_aware else 5))
        require_equal(channels, wanted, f"X must have {wanted} channels for {count} anchors and {self.class_num} classes, not {channels}", X=1)
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
        there = (confidence >= self.conf_thresh).unsqueeze(-1)
        grid = torch.stack(torch.meshgrid(torch.arange(height, device=X.device), torch.arange(width, device=X.device), indexing="ij")[::-1], -1)
        image = ImgSize.flip(1).to(X.dtype).view(images, 1, 1, 1, 2)
        cell = X.new_tensor([width, height])
        middle = cells[:, :, :2].sigmoid().movedim(2, -1).mul_(self.scale_x_y).add_(grid).add_(-0.5 * (self.scale_x_y - 1.0)).mul_(image).div_(cell)
        size = cells[:, :, 2:4].exp().movedim(2, -1).mul_(X.new_tensor(self.anchors).view(count, 1, 1, 2)).mul_(image).div_(cell * self.downsample_ratio)
        half = size.div_(2)
        low, high = middle - half, middle + half
        if self.clip_bbox:
            low, high = low.clamp_(min=0), torch.minimum(high, image - 1)
        boxes = torch.cat([low, high], -1).masked_fill_(~there, 0)
        scores = cells[:, :, 5:].sigmoid().mul_(confidence.unsqueeze(2)).movedim(2, -1).masked_fill(~there, 0)
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
        reject(X=f32(2, 14, 3), ImgSize=i32(2, 2), anchors=[10, 13], says="X must have 4 dims"),
        reject(X=f32(2, 14, 3, 4), ImgSize=i32(2, 2), anchors=[10, 13], says="X must have 6 channels"),
        reject(X=f32(2, 6, 3, 4), ImgSize=i32(3, 2), anchors=[10, 13], says="a size for each image"),
        reject(X=f32(2, 6, 3, 4), ImgSize=i32(2, 3), anchors=[10, 13], says="2 columns"),
        reject(X=f32(2, 6, 3, 4), ImgSize=i32(2, 2), anchors=[10, 13, 5], says="pairs of width and height", error=SchemaError),
        reject(X=f32(2, 6, 3, 4), ImgSize=i32(2, 2), says="pairs of width and height", error=SchemaError),
        reject(X=f32(2, 6, 3, 4), ImgSize=f32(2, 2), anchors=[10, 13], says="int32", error=TypeMismatchError),
    ]
