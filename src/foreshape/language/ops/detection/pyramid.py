"""Regions of interest dealt out to the levels of a feature pyramid, and collected from them."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, minimum
from foreshape.core.spec import FP32, FP64, INDEX, INT32, Spec
from foreshape.core.values.offsets import Offsets, as_list
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import fail, require, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, f64, i32, reject, sample
from foreshape.language.ops.detection.sample_boxes import boxes
from foreshape.language.ops.rules.image_boxes import images_of, require_boxes
from foreshape.language.ops.rules.ragged_rules import new_lod, ragged, rows
from foreshape.machine.kernels.boxes import areas

MOST_LEVELS = 64
"""The most levels: an image halved so often has less than one pixel."""


class DistributeFpnProposals(Operator):
    """MultiFpnRois = the regions of each level, in their order.

    A region goes to level floor(refer_level + log2(sqrt(area) / refer_scale)), within ``min_level`` and ``max_level``. RestoreIndex is the place of each region
    in all levels one after the other; MultiLevelRoIsNum, for each level, the number of regions in each image. If RoisNum groups the regions into images, levels
    are not ragged. Source: Lin et al., "Feature Pyramid Networks", CVPR 2017.
    """

    type = "distribute_fpn_proposals"
    layer_function = "detection.distribute_fpn_proposals"
    FpnRois = operand((FP32, FP64), doc="[regions, 4], ragged by image; or dense with RoisNum")
    RoisNum = operand(INDEX, optional=True, doc="[images]: the number of regions of each image")
    MultiFpnRois = result(many=True, new_offsets=True, doc="for each level [rows, 4], ragged by image")
    RestoreIndex = result(doc="int32 [regions, 1]")
    MultiLevelRoIsNum = result(many=True, optional=True, doc="for each level int32 [images]")
    min_level = attribute(AttrType.INT)
    max_level = attribute(AttrType.INT)
    refer_level = attribute(AttrType.INT, doc="the level of regions of refer_scale")
    refer_scale = attribute(AttrType.INT, low=1, doc="in pixels, the square root of an area")
    pixel_offset = attribute(AttrType.BOOLEAN, True, doc="coordinates number pixels, so that a box is larger by one")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, FpnRois: Spec, RoisNum: Spec | None) -> Any:
        if self.max_level < self.min_level:
            fail(f"max_level must be at least min_level; seen {self.max_level} and {self.min_level}", SchemaError)
        if self.max_level - self.min_level >= MOST_LEVELS:
            fail(f"there can be {MOST_LEVELS} levels, each half as large as the one before; seen {self.min_level} to {self.max_level}", SchemaError)
        require_boxes(FpnRois, "FpnRois", 2)
        if RoisNum is not None:
            require_rank(1, RoisNum, "RoisNum")
        images = RoisNum.known_dims[0] if RoisNum is not None else ragged(FpnRois, "FpnRois", 1).counts[0]
        levels: list[Spec] = []
        for level in range(self.max_level - self.min_level + 1):
            lod = new_lod(f"level{level}", (images,)) if RoisNum is None else None
            levels.append(rows(FpnRois.dtype, (unknown_size(f"rows{level}"), 4), lod))
        numbers = tuple(FpnRois.dense((images,), INT32) for _ in levels)
        return tuple(levels), FpnRois.dense((FpnRois.known_dims[0], 1), INT32), numbers

    def workspace(self, FpnRois: Spec, RoisNum: Spec | None) -> Size:
        images = RoisNum.known_dims[0] if RoisNum is not None else ragged(FpnRois, "FpnRois", 1).counts[0]
        item = FpnRois.known_dtype.itemsize
        return (72 + 8 * item) * FpnRois.known_dims[0] + 24 * images * (self.max_level - self.min_level + 2)

    def kernel(
        self, FpnRois: Tensor, RoisNum: Tensor | None, *, offsets: list[Offsets | None]
    ) -> tuple[list[Tensor], Tensor, list[Tensor], list[Offsets | None]]:
        sequences = offsets[0] if RoisNum is None else images_of(RoisNum, len(FpnRois), "RoisNum")
        assert sequences is not None
        count = self.max_level - self.min_level + 1
        scale = areas(FpnRois, 1.0 if self.pixel_offset else 0.0).sqrt_()
        level = (scale / self.refer_scale + 1e-6).log2_().add_(self.refer_level).floor_()
        level = level.clamp_(self.min_level, self.max_level).long() - self.min_level
        order = torch.argsort(level, stable=True)
        restore = torch.empty(len(order), 1, dtype=torch.int32, device=order.device)
        restore[order, 0] = torch.arange(len(order), dtype=torch.int32, device=order.device)
        numbers = torch.bincount(level * sequences.count + sequences.segments, minlength=count * sequences.count).view(count, sequences.count)
        parts = torch.split(order, as_list(numbers.sum(1)))
        part_offsets = [Offsets.of_lengths(n) if RoisNum is None else None for n in numbers]
        return [FpnRois[part] for part in parts], restore, [n.int() for n in numbers], part_offsets

    samples = [
        sample(FpnRois=boxes(7, size=90.0).ragged([3, 4]), min_level=2, max_level=4, refer_level=3, refer_scale=40),
        sample(
            FpnRois=boxes(7, size=90.0, double=True), RoisNum=i32(2, data=[3, 4]), min_level=2, max_level=5, refer_level=4, refer_scale=50, pixel_offset=False
        ),
        sample(FpnRois=boxes(7, size=90.0), RoisNum=i32(3, data=[3, 0, 4]), min_level=3, max_level=3, refer_level=3, refer_scale=50),
        sample(FpnRois=boxes(0).ragged([0, 0]), min_level=2, max_level=4, refer_level=3, refer_scale=40),
    ]
    rejects = [
        reject(FpnRois=f32(7, 4).ragged([7]), min_level=4, max_level=2, refer_level=3, refer_scale=40, says="at least min_level", error=SchemaError),
        reject(FpnRois=f32(7, 4).ragged([7]), min_level=2, max_level=2**31 - 1, refer_level=3, refer_scale=40, says="64 levels", error=SchemaError),
    ]


class CollectFpnProposals(Operator):
    """FpnRois = the ``post_nms_topN`` best regions of all levels and images together, image by image, in each the best first.

    Of equal scores the last counts first, as in PaddlePaddle. An image may have none: it is counted all the same (PaddlePaddle leaves it out of the offsets).
    With MultiLevelRoIsNum, the numbers of regions of each image, FpnRois is not ragged and RoisNum tells its numbers.
    """

    type = "collect_fpn_proposals"
    layer_function = "detection.collect_fpn_proposals"
    MultiLevelRois = operand((FP32, FP64), many=True, doc="for each level [rows, 4], ragged by image; or dense with MultiLevelRoIsNum")
    MultiLevelScores = operand((FP32, FP64), many=True, doc="for each level [rows, 1]")
    MultiLevelRoIsNum = operand(INDEX, many=True, optional=True, doc="for each level [images]")
    FpnRois = result(new_offsets=True, doc="[regions, 4], ragged by image")
    RoisNum = result(optional=True, doc="int32 [images]")
    post_nms_topN = attribute(AttrType.INT, low=0)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, MultiLevelRois: tuple[Spec, ...], MultiLevelScores: tuple[Spec, ...], MultiLevelRoIsNum: tuple[Spec, ...]) -> tuple[Spec, Spec]:
        levels = len(MultiLevelRois)
        require(levels > 0, "there must be at least one level", MultiLevelRois=None)
        words = "there must be as many MultiLevelScores as MultiLevelRois"
        require(len(MultiLevelScores) == levels, words, MultiLevelRois=None, MultiLevelScores=None)
        words = "there must be as many MultiLevelRoIsNum as MultiLevelRois, or none"
        require(len(MultiLevelRoIsNum) in (0, levels), words, MultiLevelRois=None, MultiLevelRoIsNum=None)
        total: Size = 0
        images: Size | None = None
        for level, (regions, scores) in enumerate(zip(MultiLevelRois, MultiLevelScores, strict=True)):
            require_boxes(regions, "MultiLevelRois", 2)
            require_equal(scores.elements, regions.known_dims[0], "there must be one score for each region", MultiLevelRois=0, MultiLevelScores=None)
            require(scores.dtype is MultiLevelRois[0].dtype is regions.dtype, "regions and scores must have one element type", MultiLevelScores=None)
            for number in MultiLevelRoIsNum[level : level + 1]:
                require_rank(1, number, "MultiLevelRoIsNum")
            count = MultiLevelRoIsNum[level].known_dims[0] if MultiLevelRoIsNum else ragged(regions, "MultiLevelRois", 1).counts[0]
            images = count if images is None else require_equal(images, count, "all levels must have as many images", MultiLevelRois=None)
            total = total + regions.known_dims[0]
        assert images is not None
        lod = None if MultiLevelRoIsNum else new_lod("FpnRois", (images,))
        first = MultiLevelRois[0]
        return rows(first.dtype, (minimum(total, self.post_nms_topN), 4), lod), first.dense((images,), INT32)

    def workspace(self, MultiLevelRois: tuple[Spec, ...], MultiLevelScores: tuple[Spec, ...], MultiLevelRoIsNum: tuple[Spec, ...]) -> Size:
        total: Size = 0
        images: Size = 0
        for regions in MultiLevelRois:
            total = total + regions.known_dims[0]
        for number in MultiLevelRoIsNum:
            images = images + number.known_dims[0]
        return (80 + 8 * MultiLevelRois[0].known_dtype.itemsize) * total + 40 * images

    def kernel(
        self, MultiLevelRois: list[Tensor], MultiLevelScores: list[Tensor], MultiLevelRoIsNum: list[Tensor], *, offsets: list[list[Offsets]]
    ) -> tuple[Tensor, Tensor, Offsets | None]:
        numbers = MultiLevelRoIsNum
        sequences = [images_of(n, len(r), "MultiLevelRoIsNum") for n, r in zip(numbers, MultiLevelRois, strict=True)] if numbers else offsets[0]
        image = torch.cat([o.segments for o in sequences])
        score = torch.cat([s.reshape(-1) for s in MultiLevelScores])
        order = torch.argsort(score.flip(0), descending=True, stable=True).neg_().add_(len(score) - 1)[: self.post_nms_topN]
        order = order[torch.argsort(image[order], stable=True)]
        counts = torch.bincount(image[order], minlength=sequences[0].count)
        return torch.cat(MultiLevelRois)[order], counts.int(), None if numbers else Offsets.of_lengths(counts)

    samples = [
        sample(MultiLevelRois=[boxes(5).ragged([3, 2]), boxes(7, start=5).ragged([0, 7])],
               MultiLevelScores=[f32(5, 1).ragged([3, 2]), f32(7, 1).ragged([0, 7])], post_nms_topN=8),
        sample(MultiLevelRois=[boxes(5, double=True), boxes(2, start=5, double=True)], MultiLevelScores=[f64(5, 1), f64(2, 1)],
               MultiLevelRoIsNum=[i32(3, data=[3, 2, 0]), i32(3, data=[0, 1, 1])], post_nms_topN=20),
        sample(MultiLevelRois=[boxes(5).ragged([3, 2])], MultiLevelScores=[f32(5).ragged([3, 2])], post_nms_topN=3),
        sample(MultiLevelRois=[boxes(0).ragged([0, 0])], MultiLevelScores=[f32(0, 1).ragged([0, 0])], post_nms_topN=8),
    ]  # fmt: skip
    rejects = [
        reject(MultiLevelRois=[f32(5, 4)], MultiLevelScores=[f32(5, 1)], post_nms_topN=8, says="must be ragged", error=TypeMismatchError),
        reject(MultiLevelRois=[f32(5, 4).ragged([5])], MultiLevelScores=[f32(5, 1), f32(5, 1)], post_nms_topN=8, says="as many MultiLevelScores"),
        reject(MultiLevelRois=[f32(5, 4).ragged([5])], MultiLevelScores=[f32(4, 1)], post_nms_topN=8, says="one score for each region"),
        reject(MultiLevelRois=[f32(5, 4).ragged([5]), f32(3, 4).ragged([1, 2])], MultiLevelScores=[f32(5, 1), f32(3, 1)], post_nms_topN=8,
               says="as many images"),
        reject(MultiLevelRois=[f32(5, 4), f32(5, 4)], MultiLevelScores=[f32(5, 1), f32(5, 1)], MultiLevelRoIsNum=[i32(2)], post_nms_topN=8,
               says="as many MultiLevelRoIsNum"),
    ]  # fmt: skip
