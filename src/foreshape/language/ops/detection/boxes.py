"""Boxes coded relative to others, compared with others, cut at the edges of their images, and decoded for the most likely class."""

from __future__ import annotations

from math import prod
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import fail, require, require_at_most, require_divides, require_equal, require_rank
from foreshape.language.operator.samples import f32, f64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.detection.sample_boxes import boxes
from foreshape.language.ops.rules.image_boxes import require_boxes
from foreshape.language.ops.rules.ragged_rules import ragged, rows
from foreshape.machine.kernels.boxes import clipped, image_sizes


class BoxCoder(Operator):
    """OutputBox = boxes as their difference from priors, or back.

    encode_center_size: for each target and each prior, (tx - px) / pw / v, (ty - py) / ph / v, log|tw / pw| / v and log|th / ph| / v. Here x, y are middles, w,
    h sizes, and v the four variances.

    decode_center_size: the box of these numbers; along ``axis`` 0 the columns of TargetBox belong to the priors, along 1 its rows. Unless ``box_normalized``, a
    box is larger by one pixel. The middle of a prior, but not of a target, lies half a pixel further, as in PaddlePaddle.
    """

    type = "box_coder"
    layer_function = "detection.box_coder"
    PriorBox = operand((FP32, FP64), doc="[priors, 4]")
    PriorBoxVar = operand((FP32, FP64), same_type_as="PriorBox", optional=True, doc="[priors, 4]: variances")
    TargetBox = operand((FP32, FP64), same_type_as="PriorBox", doc="[targets, 4] to encode; [rows, columns, 4] to decode")
    OutputBox = result(doc="[targets, priors, 4]; or as TargetBox")
    code_type = attribute(AttrType.STRING, "encode_center_size", choices=("encode_center_size", "decode_center_size"))
    box_normalized = attribute(AttrType.BOOLEAN, True)
    axis = attribute(AttrType.INT, 0, choices=(0, 1))
    variance = attribute(AttrType.FLOATS, [], doc="four variances for all, instead of PriorBoxVar; none: ones")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, PriorBox: Spec, PriorBoxVar: Spec | None, TargetBox: Spec) -> Spec:
        require_boxes(PriorBox, "PriorBox", 2)
        if PriorBoxVar is not None:
            require_boxes(PriorBoxVar, "PriorBoxVar", 2)
            require_equal(PriorBox.known_dims[0], PriorBoxVar.known_dims[0], "there must be four variances for each prior", PriorBox=0, PriorBoxVar=0)
            if self.variance:
                fail("variances are given as PriorBoxVar or as the attribute variance, not as both", SchemaError)
        if self.variance and len(self.variance) != 4:
            fail(f"variance must be four numbers, or none; seen {len(self.variance)}", SchemaError)
        if self.code_type == "encode_center_size":
            require_boxes(TargetBox, "TargetBox", 2)
            return rows(TargetBox.dtype, (TargetBox.known_dims[0], PriorBox.known_dims[0], 4), TargetBox.lod)
        require_boxes(TargetBox, "TargetBox", 3)
        axis: int = 1 - self.axis
        words = f"there must be as many priors as TargetBox has {('rows', 'columns')[axis]}"
        require_equal(PriorBox.known_dims[0], TargetBox.known_dims[axis], words, PriorBox=0, TargetBox=axis)
        return TargetBox.like()

    def workspace(self, PriorBox: Spec, PriorBoxVar: Spec | None, TargetBox: Spec) -> Size:
        item = PriorBox.known_dtype.itemsize
        if self.code_type == "encode_center_size":
            return item * TargetBox.known_dims[0] * PriorBox.known_dims[0] * 8 + 4 * (PriorBox.nbytes + TargetBox.nbytes)
        return 3 * TargetBox.nbytes + 4 * PriorBox.nbytes

    def kernel(self, PriorBox: Tensor, PriorBoxVar: Tensor | None, TargetBox: Tensor) -> Tensor:
        pixel = 0.0 if self.box_normalized else 1.0
        size = PriorBox[:, 2:] - PriorBox[:, :2] + pixel
        middle = PriorBox[:, :2] + size / 2
        variance = PriorBoxVar if PriorBoxVar is not None else PriorBox.new_tensor([self.variance]) if self.variance else None
        if self.code_type == "encode_center_size":
            target = TargetBox.unsqueeze(1)
            offset = ((target[..., 2:] + target[..., :2]) / 2 - middle) / size
            scaled = ((target[..., 2:] - target[..., :2] + pixel) / size).abs_().log_()
            out = torch.cat([offset, scaled], -1)
            return out if variance is None else out.div_(variance)
        axis = 1 if self.axis else 0
        size, middle = size.unsqueeze(axis), middle.unsqueeze(axis)
        offset, scaled = TargetBox[..., :2], TargetBox[..., 2:]
        if variance is not None:
            variance = variance.unsqueeze(axis)
            offset, scaled = variance[..., :2] * offset, variance[..., 2:] * scaled
        middle = offset * size + middle
        half = scaled.exp() * size / 2
        return torch.cat([middle - half, middle + half - pixel], -1)

    samples = [
        sample(PriorBox=boxes(5), PriorBoxVar=f32(5, 4, low=0.1, high=0.5), TargetBox=boxes(3, start=7)),
        sample(PriorBox=boxes(5), TargetBox=boxes(3, start=7).ragged([1, 2]), variance=[0.1, 0.1, 0.2, 0.2], box_normalized=False),
        sample(PriorBox=boxes(5, double=True), TargetBox=boxes(3, start=7, double=True)),
        sample(PriorBox=boxes(5), PriorBoxVar=f32(5, 4, low=0.1, high=0.5), TargetBox=f32(3, 5, 4), code_type="decode_center_size"),
        sample(
            PriorBox=boxes(3), PriorBoxVar=f32(3, 4, low=0.1, high=0.5), TargetBox=f32(3, 5, 4), code_type="decode_center_size", axis=1, box_normalized=False
        ),
        sample(PriorBox=boxes(5), TargetBox=f32(3, 5, 4).ragged([3, 0]), code_type="decode_center_size", variance=[0.1, 0.1, 0.2, 0.2]),
        sample(PriorBox=boxes(5), TargetBox=f32(0, 5, 4), code_type="decode_center_size"),
    ]
    rejects = [
        reject(PriorBox=f32(5, 4), PriorBoxVar=f32(5, 4), TargetBox=f32(3, 4), variance=[1.0] * 4, says="not as both", error=SchemaError),
        reject(PriorBox=f32(5, 4), TargetBox=f32(3, 4), variance=[1.0] * 3, says="four numbers, or none", error=SchemaError),
        reject(PriorBox=f32(5, 4), TargetBox=f32(3, 4), code_type="decode_center_size", says="TargetBox must have 3 dims"),
        reject(PriorBox=f32(5, 4), TargetBox=f32(3, 7, 4), code_type="decode_center_size", says="as many priors as TargetBox has columns"),
        reject(PriorBox=f32(5, 4), TargetBox=f32(3, 5, 4), code_type="decode_center_size", axis=1, says="as many priors as TargetBox has rows"),
    ]


class IouSimilarity(Operator):
    """Out = intersection over union of each box of X and each of Y, with 1e-10 added to the union."""

    type = "iou_similarity"
    layer_function = "detection.iou_similarity"
    X = operand((FP32, FP64), doc="[boxes, 4]")
    Y = operand((FP32, FP64), same_type_as="X", doc="[others, 4]")
    Out = result(doc="[boxes, others], ragged as X")
    box_normalized = attribute(AttrType.BOOLEAN, True, doc="if false, coordinates number pixels, and a box is larger by one")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        require_boxes(X, "X", 2)
        require_boxes(Y, "Y", 2)
        return rows(X.dtype, (X.known_dims[0], Y.known_dims[0]), X.lod)

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return X.known_dtype.itemsize * (6 * X.known_dims[0] * Y.known_dims[0] + X.elements + Y.elements)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        pixel = 0.0 if self.box_normalized else 1.0
        x = X.unsqueeze(1)
        size = (torch.minimum(x[..., 2:], Y[:, 2:]) - torch.maximum(x[..., :2], Y[:, :2]) + pixel).clamp_(min=0)
        intersection = size[..., 0] * size[..., 1]
        of_x, of_y = X[:, 2:] - X[:, :2] + pixel, Y[:, 2:] - Y[:, :2] + pixel
        union = (of_x[:, :1] * of_x[:, 1:] + of_y[:, 0] * of_y[:, 1]).sub_(intersection).add_(1e-10)
        return intersection.div_(union)

    samples = [
        sample(X=boxes(3), Y=boxes(5)),
        sample(X=boxes(3).ragged([1, 2]), Y=boxes(5, start=2), box_normalized=False),
        sample(X=boxes(3, double=True), Y=boxes(0, double=True)),
    ]


class BoxClip(Operator):
    """Output = the boxes of each image cut at its edges: coordinates at least 0, and at most width - 1 and height - 1.

    ImInfo has the image as fed to the network; divided by its scale and rounded it is the image of the boxes.
    """

    type = "box_clip"
    layer_function = "detection.box_clip"
    Input = operand((FP32, FP64), doc="[rows, ..., 4], ragged: the boxes of each image")
    ImInfo = operand((FP32, FP64), same_type_as="Input", doc="[images, 3]: height, width, scale")
    Output = result(doc="as Input")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Input: Spec, ImInfo: Spec) -> Spec:
        require(Input.rank >= 2, f"Input must have at least 2 dims, not {Input.rank}", Input=None)
        require_boxes(Input, "Input", Input.rank)
        count = ragged(Input, "Input", 1).counts[0]
        require_rank(2, ImInfo, "ImInfo")
        require_at_most(3, ImInfo.known_dims[1], "ImInfo must have 3 columns: height, width and scale", ImInfo=1)
        require_equal(count, ImInfo.known_dims[0], "there must be a row of ImInfo for each image", Input=0, ImInfo=0)
        return Input.like()

    def workspace(self, Input: Spec, ImInfo: Spec, *, strided: frozenset[str]) -> Size:
        return Input.nbytes + (16 + 2 * Input.known_dtype.itemsize) * Input.known_dims[0] + 8 * ImInfo.nbytes + copies(strided, Input=Input)

    def kernel(self, Input: Tensor, ImInfo: Tensor, *, offsets: list[Offsets]) -> Tensor:
        sizes = image_sizes(ImInfo)[offsets[0].segments]
        return clipped(Input.reshape(len(Input), prod(Input.shape[1:-1]), 4), sizes.unsqueeze(1) - 1).reshape(Input.shape)

    samples = [
        sample(Input=boxes(5).ragged([3, 2]), ImInfo=f32(2, 3, data=[[12, 15, 1], [40, 31, 2]])),
        sample(Input=boxes(5, 3, double=True).ragged([3, 2]), ImInfo=f64(2, 3, low=10.0, high=15.0)),
        sample(Input=boxes(0).ragged([0, 0]), ImInfo=f32(2, 3, low=10.0, high=15.0)),
    ]
    rejects = [
        reject(Input=f32(5, 4).ragged([3, 2]), ImInfo=f32(3, 3), says="for each image"),
        reject(Input=f32(5, 4).ragged([3, 2]), ImInfo=f32(2, 2), says="3 columns"),
    ]


class PolygonBoxTransform(Operator):
    """Output = 4 x - Input in the even channels and 4 y - Input in the odd ones, where x and y number columns and rows.

    Distances of corners from a pixel become their places, in an image four times as large.
    """

    type = "polygon_box_transform"
    layer_function = "detection.polygon_box_transform"
    Input = operand((FP32, FP64), doc="[images, channels, height, width], an even number of channels")
    Output = result(doc="as Input")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Input: Spec) -> Spec:
        require_rank(4, Input, "Input")
        require_divides(2, Input.known_dims[1], f"Input must have an even number of channels, not {Input.known_dims[1]}", Input=1)
        return Input.like()

    def workspace(self, Input: Spec) -> Size:
        return 8 * (Input.known_dims[2] + Input.known_dims[3])

    def kernel(self, Input: Tensor) -> Tensor:
        out = torch.empty(Input.shape, dtype=Input.dtype, device=Input.device)
        x = torch.arange(0, 4 * Input.shape[3], 4, dtype=Input.dtype, device=Input.device)
        y = torch.arange(0, 4 * Input.shape[2], 4, dtype=Input.dtype, device=Input.device).unsqueeze(1)
        torch.sub(x, Input[:, 0::2], out=out[:, 0::2])
        torch.sub(y, Input[:, 1::2], out=out[:, 1::2])
        return out

    samples = [sample(Input=f32(2, 4, 3, 5)), sample(Input=f64(1, 2, 3, 0))]
    rejects = [reject(Input=f32(2, 3, 4, 5), says="even number of channels", error=ShapeError)]


class BoxDecoderAndAssign(Operator):
    """DecodeBox = for each region and class the box of TargetBox, coded as differences from PriorBox.

    With v = PriorBoxVar and the middle and size of a prior, the box is v_0 tx w + x, v_1 ty h + y, exp(min(v_2 tw, box_clip)) w, exp(min(v_3 th, box_clip)) h,
    as corners.

    OutputAssignBox = for each region the box of the class with the largest score, the first of equal ones. The first class, the background, does not count; the
    box is PriorBox if there is no class but the background. Boxes are larger by one pixel than their corners tell.
    """

    type = "box_decoder_and_assign"
    gradient = NOT_DIFFERENTIABLE
    PriorBox = operand((FP32, FP64), doc="[regions, 4]")
    PriorBoxVar = operand((FP32, FP64), same_type_as="PriorBox", doc="[4]: variances")
    TargetBox = operand((FP32, FP64), same_type_as="PriorBox", doc="[regions, 4 classes]")
    BoxScore = operand((FP32, FP64), same_type_as="PriorBox", doc="[regions, classes]")
    DecodeBox = result(layout="row", doc="as TargetBox")
    OutputAssignBox = result(layout="row", doc="as PriorBox")
    box_clip = attribute(AttrType.FLOAT, 4.135166556742356)

    def infer_shape(self, PriorBox: Spec, PriorBoxVar: Spec, TargetBox: Spec, BoxScore: Spec) -> Any:
        for slot, spec in (("PriorBox", PriorBox), ("TargetBox", TargetBox), ("BoxScore", BoxScore)):
            require_rank(2, spec, slot)
            require_equal(spec.known_dims[0], PriorBox.known_dims[0], f"{slot} must have a row for each of PriorBox", **{slot: 0})
        require_equal(PriorBox.known_dims[1], 4, "PriorBox must have 4 columns", PriorBox=1)
        require_rank(1, PriorBoxVar, "PriorBoxVar")
        require_equal(PriorBoxVar.known_dims[0], 4, "PriorBoxVar must have 4 numbers", PriorBoxVar=0)
        words = "TargetBox must have 4 columns for each of BoxScore"
        require_equal(TargetBox.known_dims[1], 4 * BoxScore.known_dims[1], words, TargetBox=1, BoxScore=1)
        return (PriorBox if PriorBox.lod is not None else TargetBox).with_dims(TargetBox.known_dims), PriorBox.like()

    def workspace(self, PriorBox: Spec, PriorBoxVar: Spec, TargetBox: Spec, BoxScore: Spec) -> Size:
        return 8 * PriorBox.nbytes + 6 * TargetBox.nbytes + 3 * BoxScore.nbytes

    def kernel(self, PriorBox: Tensor, PriorBoxVar: Tensor, TargetBox: Tensor, BoxScore: Tensor) -> Any:
        count, classes = BoxScore.shape
        size = (PriorBox[:, 2:] - PriorBox[:, :2] + 1.0).unsqueeze(1)
        middle = PriorBox[:, :2].unsqueeze(1) + size / 2
        deltas = TargetBox.reshape(count, classes, 4) * PriorBoxVar
        middle = deltas[..., :2] * size + middle
        half = deltas[..., 2:].clamp(max=self.box_clip).exp() * size / 2
        boxes = torch.cat((middle - half, middle + half - 1.0), -1)
        if classes < 2:
            return boxes.view(count, 4 * classes), PriorBox.clone(memory_format=torch.contiguous_format)
        best = BoxScore[:, 1:].argmax(1) + 1
        return boxes.view(count, 4 * classes), boxes[torch.arange(count, device=best.device), best]

    samples = [
        sample(PriorBox=f32(3, 4, data=[[0, 0, 4, 6], [2, 1, 9, 5], [3, 3, 4, 8]]), PriorBoxVar=f32(4, low=0.1, high=0.3), TargetBox=f32(3, 8),
               BoxScore=f32(3, 2, low=0.0)),
        sample(PriorBox=f32(2, 4, data=[[0, 0, 4, 6], [2, 1, 9, 5]]), PriorBoxVar=f32(4, low=0.1, high=0.3), TargetBox=f32(2, 12), BoxScore=f32(2, 3, low=0.0),
               box_clip=0.1),
        sample(PriorBox=f32(2, 4, data=[[0, 0, 4, 6], [2, 1, 9, 5]]), PriorBoxVar=f32(4, low=0.1, high=0.3), TargetBox=f32(2, 4), BoxScore=f32(2, 1, low=0.0)),
    ]  # fmt: skip
    rejects = [reject(PriorBox=f32(3, 4), PriorBoxVar=f32(4), TargetBox=f32(3, 8), BoxScore=f32(3, 3), says="4 columns for each of BoxScore")]
