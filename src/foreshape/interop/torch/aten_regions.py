"""Import of torchvision's operators: suppressed boxes, pooled regions, deformed convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreshape import layer
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.open_size import as_variable, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.program import Variable
from foreshape.spec import INT32, INT64


@aten("torchvision.nms")
def _nms(t: TorchCall, boxes: Variable, scores: Variable, iou_threshold: float) -> Variable:
    order = t.op("argsort", {"axis": 0, "descending": True, "stable": True}, X=scores)[1]
    return layer.gather(order, layer.detection.nms(layer.gather(boxes, order), iou_threshold))


def _of_each_image(x: Variable, boxes: Variable, pooled: Callable[[Variable, Variable], Variable]) -> Variable:
    """Return the results of ``pooled(regions, count of each image)``, sorted by images there, in the order of ``boxes``: ``[regions, 5]``, the image first."""
    regions = layer.slice(boxes, [1], [1], [5])
    if x.spec.known_dims[0] == 1:
        return pooled(regions, layer.cast(as_variable(size_of(boxes, 0)), INT32))
    images = layer.cast(layer.squeeze(layer.slice(boxes, [1], [0], [1]), [1]), INT64)
    each = layer.range(0, as_variable(size_of(x, 0)), 1, dtype=INT64)
    counts = layer.reduce_sum(layer.cast(layer.equal(layer.unsqueeze(each, [1]), layer.unsqueeze(images, [0])), INT32), [1])
    order = layer.argsort(images, axis=0)[1]
    return layer.gather(pooled(layer.gather(regions, order), counts), layer.argsort(order, axis=0)[1])


@aten("torchvision.roi_align")
def _roi_align(t: TorchCall, x: Variable, boxes: Variable, scale: float, height: int, width: int, sampling_ratio: int, aligned: bool) -> Variable:
    def pooled(regions: Variable, counts: Variable) -> Variable:
        return layer.roi_align(x, regions, counts, [height, width], scale, sampling_ratio, aligned)

    return _of_each_image(x, boxes, pooled)


@aten("torchvision.roi_pool")
def _roi_pool(t: TorchCall, x: Variable, boxes: Variable, scale: float, height: int, width: int) -> Any:
    def pooled(regions: Variable, counts: Variable) -> Variable:
        return layer.roi_pool(x, regions, counts, [height, width], scale)

    return [_of_each_image(x, boxes, pooled), None]


@aten("torchvision.deform_conv2d")
def _deform_conv2d(t: TorchCall, x: Variable, weight: Variable, offset: Variable, mask: Variable, bias: Variable | None, *numbers: int) -> Variable:
    high, wide, pad_high, pad_wide, apart_high, apart_wide, groups, sets, masked = numbers
    attrs = {"strides": [high, wide], "paddings": [pad_high, pad_wide], "dilations": [apart_high, apart_wide], "groups": groups, "deformable_groups": sets}
    given = {"Input": x, "Offset": offset, "Filter": weight}
    out = t.op("deformable_conv", attrs, **given, Mask=mask) if masked else t.op("deformable_conv_v1", attrs, **given)
    return out if bias is None else t.op("elementwise_add", {"axis": 1}, X=out, Y=bias)
