"""Boxes laid over an image, around each cell of a map of features: `prior_box`, `density_prior_box`, `anchor_generator`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import SchemaError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import fail, require_at_most, require_rank
from foreshape.language.operator.samples import f32, f64, reject, sample

if TYPE_CHECKING:
    from collections.abc import Sequence


def _variances(variances: Sequence[float], like: Tensor) -> Tensor:
    """Return the same four numbers for each box: ``[..., 4]``."""
    return like.new_tensor(variances).expand(like.shape).contiguous()


def _require_positive(**settings: Sequence[float]) -> None:
    for name, numbers in settings.items():
        if not numbers or any(n <= 0 for n in numbers):
            fail(f"{name} must be one or more numbers larger than 0; seen {list(numbers)}", SchemaError)


class _Priors(Operator):
    """The base of operators that lay boxes over an image: their middles, and the steps between them."""

    abstract = True
    Input = operand((FP32, FP64), doc="[images, channels, height, width] of the features")
    Image = operand((FP32, FP64), same_type_as="Input", doc="[images, channels, height, width] of the image")
    Boxes = result(doc="[height, width, priors, 4], in parts of the image")
    Variances = result(doc="as Boxes")
    variances = attribute(AttrType.FLOATS, doc="four numbers, the divisors of coded boxes")
    clip = attribute(AttrType.BOOLEAN, True, doc="cut boxes at the edges of the image")
    step_w = attribute(AttrType.FLOAT, 0.0, doc="the pixels between two cells; 0: the size of the image over the number of cells")
    step_h = attribute(AttrType.FLOAT, 0.0)
    offset = attribute(AttrType.FLOAT, 0.5, doc="the place of the middle in a cell")
    gradient = NOT_DIFFERENTIABLE

    def _cells(self, Input: Spec, Image: Spec) -> tuple[Size, Size]:
        """Return height and width of the features, after the checks of all priors."""
        require_rank(4, Input, "Input")
        require_rank(4, Image, "Image")
        if len(self.variances) != 4:
            fail(f"variances must be four numbers; seen {len(self.variances)}", SchemaError)
        if any(v <= 0 for v in self.variances):
            fail(f"variances must be larger than 0; seen {list(self.variances)}", SchemaError)
        if self.step_w < 0 or self.step_h < 0:
            fail(f"step_w and step_h must be at least 0; seen {self.step_w} and {self.step_h}", SchemaError)
        for axis in (2, 3):
            require_at_most(1, Input.known_dims[axis], "Input must have at least one cell", Input=axis)
            require_at_most(1, Image.known_dims[axis], "Image must have at least one pixel", Image=axis)
        return Input.known_dims[2], Input.known_dims[3]

    def _steps(self, Input: Tensor, Image: Tensor) -> tuple[float, float]:
        """Return the pixels between two cells, across and down."""
        if self.step_w and self.step_h:
            return self.step_w, self.step_h
        return Image.shape[3] / Input.shape[3], Image.shape[2] / Input.shape[2]

    def _middles(self, Input: Tensor, Image: Tensor) -> Tensor:
        """Return ``[height, width, 1, 2]``: the middles of the cells in pixels, x and y."""
        across, down = self._steps(Input, Image)
        x = (torch.arange(Input.shape[3], dtype=Input.dtype, device=Input.device) + self.offset) * across
        y = (torch.arange(Input.shape[2], dtype=Input.dtype, device=Input.device) + self.offset) * down
        return torch.stack([x.expand(len(y), len(x)), y.unsqueeze(1).expand(len(y), len(x))], -1).unsqueeze(2)


class PriorBox(_Priors):
    """Boxes = for each cell of Input its priors, in parts of Image.

    Each of ``min_sizes`` has one of every aspect ratio, and with ``max_sizes`` one of sqrt(min * max).

    The ratios are 1, then ``aspect_ratios``, each (with ``flip``) followed by its inverse, none of them twice. A ratio r of a size s is s sqrt(r) wide and s /
    sqrt(r) high. With ``min_max_aspect_ratios_order`` the box of ``max_sizes`` is the second of a size, otherwise the last. Source: Liu et al., "SSD: Single
    Shot MultiBox Detector", ECCV 2016.
    """

    type = "prior_box"
    layer_function = "detection.prior_box"
    min_sizes = attribute(AttrType.FLOATS, doc="pixels")
    max_sizes = attribute(AttrType.FLOATS, [], doc="pixels; none, or one for each of min_sizes and larger than it")
    aspect_ratios = attribute(AttrType.FLOATS, [])
    flip = attribute(AttrType.BOOLEAN, True)
    min_max_aspect_ratios_order = attribute(AttrType.BOOLEAN, False)

    def _sizes(self) -> list[tuple[float, float]]:
        """Return the width and height of each prior, in their order."""
        ratios = [1.0]
        for ratio in self.aspect_ratios:
            if all(abs(ratio - r) >= 1e-6 for r in ratios):
                ratios += [ratio, 1.0 / ratio] if self.flip else [ratio]
        out: list[tuple[float, float]] = []
        for index, size in enumerate(self.min_sizes):
            of_ratios = [(size * math.sqrt(r), size / math.sqrt(r)) for r in ratios]
            side = math.sqrt(size * self.max_sizes[index]) if self.max_sizes else 0.0
            middle = [(side, side)] if self.max_sizes else []
            out += [(size, size), *middle, *of_ratios[1:]] if self.min_max_aspect_ratios_order else [*of_ratios, *middle]
        return out

    def infer_shape(self, Input: Spec, Image: Spec) -> tuple[Spec, Spec]:
        height, width = self._cells(Input, Image)
        if not self.min_sizes or any(s <= 0 for s in self.min_sizes):
            fail(f"min_sizes must be one or more numbers larger than 0; seen {list(self.min_sizes)}", SchemaError)
        if not all(0 < r < math.inf and 1 / r < math.inf for r in self.aspect_ratios):
            fail(f"aspect_ratios must be finite and larger than 0, and so must be what divides by them; seen {list(self.aspect_ratios)}", SchemaError)
        if self.max_sizes and len(self.max_sizes) != len(self.min_sizes):
            fail(f"there must be as many max_sizes as min_sizes, or none; seen {len(self.max_sizes)} and {len(self.min_sizes)}", SchemaError)
        if any(high <= low for low, high in zip(self.min_sizes, self.max_sizes, strict=False)):
            fail(f"each of max_sizes must be larger than that of min_sizes; seen {list(self.max_sizes)} and {list(self.min_sizes)}", SchemaError)
        out = Input.dense((height, width, len(self._sizes()), 4))
        return out, out

    def workspace(self, Input: Spec, Image: Spec) -> Size:
        cells = Input.known_dims[2] * Input.known_dims[3]
        return Input.known_dtype.itemsize * cells * (4 + 12 * len(self._sizes()))

    def kernel(self, Input: Tensor, Image: Tensor) -> tuple[Tensor, Tensor]:
        middle = self._middles(Input, Image)
        half = Input.new_tensor(self._sizes()) / 2
        image_size = Input.new_tensor([Image.shape[3], Image.shape[2]])
        boxes = torch.cat([(middle - half) / image_size, (middle + half) / image_size], -1)
        boxes = boxes.clamp_(0, 1) if self.clip else boxes
        return boxes, _variances(self.variances, boxes)

    samples = [
        sample(Input=f32(2, 5, 3, 4), Image=f32(2, 3, 30, 60), min_sizes=[10.0, 20.0], max_sizes=[15.0, 40.0], aspect_ratios=[2.0, 3.0],
               variances=[0.1, 0.1, 0.2, 0.2]),
        sample(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 31, 47), min_sizes=[10.0], max_sizes=[15.0], aspect_ratios=[1.0, 2.0, 0.5], flip=False, clip=False,
               variances=[0.1, 0.1, 0.2, 0.2], min_max_aspect_ratios_order=True, step_w=12.0, step_h=9.0, offset=0.25),
        sample(Input=f64(1, 5, 3, 4), Image=f64(1, 3, 31, 47), min_sizes=[10.0], variances=[0.1, 0.1, 0.1, 0.1]),
    ]  # fmt: skip
    rejects = [
        reject(Input=f32(5, 3, 4), Image=f32(1, 3, 30, 60), min_sizes=[4.0], variances=[0.1] * 4, says="Input must have 4 dims"),
        reject(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 30), min_sizes=[4.0], variances=[0.1] * 4, says="Image must have 4 dims"),
        reject(Input=f32(1, 5, 0, 4), Image=f32(1, 3, 30, 60), min_sizes=[4.0], variances=[0.1] * 4, says="at least one cell"),
        reject(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 30, 60), min_sizes=[], variances=[0.1] * 4, says="one or more numbers", error=SchemaError),
        reject(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 30, 60), min_sizes=[4.0], variances=[0.1] * 3, says="four numbers", error=SchemaError),
        reject(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 30, 60), min_sizes=[4.0], max_sizes=[5.0, 6.0], variances=[0.1] * 4, says="as many max_sizes",
               error=SchemaError),
        reject(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 30, 60), min_sizes=[4.0], max_sizes=[4.0], variances=[0.1] * 4, says="larger than that of min_sizes",
               error=SchemaError),
        reject(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 30, 60), min_sizes=[4.0], aspect_ratios=[0.0], variances=[0.1] * 4, says="larger than 0",
               error=SchemaError),
        reject(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 30, 60), min_sizes=[4.0], step_w=-1.0, variances=[0.1] * 4, says="at least 0", error=SchemaError),
    ]  # fmt: skip


class DensityPriorBox(_Priors):
    """Boxes = for each cell of Input its priors, in parts of Image.

    Each of ``fixed_sizes``, with its density d, has d x d boxes for each of ``fixed_ratios``.

    Their middles are spread over the cell, a whole number of pixels apart. A ratio r of a size s is s sqrt(r) wide and s / sqrt(r) high. Left and top are at
    least 0, right and bottom at most 1, also without ``clip``. Source: Zhang et al., "FaceBoxes", IJCB 2017.
    """

    type = "density_prior_box"
    layer_function = "detection.density_prior_box"
    flatten_to_2d = attribute(AttrType.BOOLEAN, False, doc="results are [height * width * priors, 4]")
    fixed_sizes = attribute(AttrType.FLOATS, [], doc="pixels")
    fixed_ratios = attribute(AttrType.FLOATS, [])
    densities = attribute(AttrType.INTS, [], low=1, doc="one for each of fixed_sizes")

    def _count(self) -> int:
        return sum(len(self.fixed_ratios) * d * d for d in self.densities)

    def infer_shape(self, Input: Spec, Image: Spec) -> tuple[Spec, Spec]:
        height, width = self._cells(Input, Image)
        if not self.fixed_sizes or len(self.fixed_sizes) != len(self.densities):
            fail(f"there must be a density for each of fixed_sizes, at least one; seen {len(self.densities)} and {len(self.fixed_sizes)}", SchemaError)
        _require_positive(fixed_sizes=self.fixed_sizes, fixed_ratios=self.fixed_ratios)
        count = self._count()
        out = Input.dense((height * width * count, 4) if self.flatten_to_2d else (height, width, count, 4))
        return out, out

    def workspace(self, Input: Spec, Image: Spec) -> Size:
        cells = Input.known_dims[2] * Input.known_dims[3]
        return Input.known_dtype.itemsize * cells * (4 + 14 * self._count()) + 64 * self._count()

    def kernel(self, Input: Tensor, Image: Tensor) -> tuple[Tensor, Tensor]:
        average = int(sum(self._steps(Input, Image)) * 0.5)
        sizes: list[tuple[float, float]] = []
        moves: list[tuple[float, float]] = []
        for size, density in zip(self.fixed_sizes, self.densities, strict=True):
            apart = average // density
            first = apart / 2 - average / 2
            places = [(first + x * apart, first + y * apart) for y in range(density) for x in range(density)]
            for ratio in self.fixed_ratios:
                sizes += [(size * math.sqrt(ratio), size / math.sqrt(ratio))] * len(places)
                moves += places
        middle = self._middles(Input, Image) + Input.new_tensor(moves)
        half = Input.new_tensor(sizes) / 2
        image_size = Input.new_tensor([Image.shape[3], Image.shape[2]])
        low, high = (middle - half) / image_size, (middle + half) / image_size
        boxes = torch.cat([low.clamp_(min=0), high.clamp_(max=1)], -1)
        boxes = boxes.clamp_(0, 1) if self.clip else boxes
        boxes = boxes.view(-1, 4) if self.flatten_to_2d else boxes
        return boxes, _variances(self.variances, boxes)

    samples = [
        sample(Input=f32(2, 5, 3, 4), Image=f32(2, 3, 30, 60), fixed_sizes=[10.0, 20.0], densities=[2, 3], fixed_ratios=[1.0, 2.0],
               variances=[0.1, 0.1, 0.2, 0.2]),
        sample(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 31, 47), fixed_sizes=[10.0], densities=[2], fixed_ratios=[0.5], clip=False, flatten_to_2d=True,
               variances=[0.1, 0.1, 0.2, 0.2], step_w=12.0, step_h=9.0, offset=0.25),
    ]  # fmt: skip
    rejects = [
        reject(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 30, 60), fixed_sizes=[4.0], densities=[1, 2], fixed_ratios=[1.0], variances=[0.1] * 4,
               says="a density for each", error=SchemaError),
        reject(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 30, 60), fixed_sizes=[4.0], densities=[1], fixed_ratios=[], variances=[0.1] * 4,
               says="fixed_ratios must be one or more", error=SchemaError),
        reject(Input=f32(1, 5, 3, 4), Image=f32(1, 3, 30, 60), fixed_sizes=[4.0], densities=[1], fixed_ratios=[1.0], variances=[0.1] * 5,
               says="four numbers", error=SchemaError),
        reject(Input=f32(1, 5, 3), Image=f32(1, 3, 30, 60), fixed_sizes=[4.0], densities=[1], fixed_ratios=[1.0], variances=[0.1] * 4,
               says="Input must have 4 dims"),
    ]  # fmt: skip


class AnchorGenerator(Operator):
    """Anchors = for each cell of Input one box for each aspect ratio r (height to width) and each of ``anchor_sizes`` s, in pixels.

    It is s / stride times as large as the base of the ratio, w = round(sqrt(stride area / r)) wide and round(w r) high. Around the middle x stride + offset
    (stride - 1), boxes reach to half of their size minus one on each side. Source: Ren et al., "Faster R-CNN", NIPS 2015.
    """

    type = "anchor_generator"
    layer_function = "detection.anchor_generator"
    Input = operand((FP32, FP64), doc="[images, channels, height, width] of the features")
    Anchors = result(doc="[height, width, anchors, 4]")
    Variances = result(doc="as Anchors")
    anchor_sizes = attribute(AttrType.FLOATS, doc="pixels")
    aspect_ratios = attribute(AttrType.FLOATS)
    variances = attribute(AttrType.FLOATS, doc="four numbers")
    stride = attribute(AttrType.FLOATS, [16.0, 16.0], doc="the pixels between two cells, across and down")
    offset = attribute(AttrType.FLOAT, 0.5)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Input: Spec) -> tuple[Spec, Spec]:
        require_rank(4, Input, "Input")
        for name, count in (("variances", 4), ("stride", 2)):
            numbers: tuple[float, ...] = getattr(self, name)
            if len(numbers) != count or any(n <= 0 for n in numbers):
                fail(f"{name} must be {count} numbers larger than 0; seen {list(numbers)}", SchemaError)
        _require_positive(anchor_sizes=self.anchor_sizes, aspect_ratios=self.aspect_ratios)
        out = Input.dense((*Input.known_dims[2:], len(self.anchor_sizes) * len(self.aspect_ratios), 4))
        return out, out

    def workspace(self, Input: Spec) -> Size:
        cells = Input.known_dims[2] * Input.known_dims[3]
        return Input.known_dtype.itemsize * cells * (4 + 8 * len(self.anchor_sizes) * len(self.aspect_ratios))

    def kernel(self, Input: Tensor) -> tuple[Tensor, Tensor]:
        across, down = self.stride
        sizes: list[tuple[float, float]] = []
        for ratio in self.aspect_ratios:
            width = math.floor(math.sqrt(across * down / ratio) + 0.5)
            height = math.floor(width * ratio + 0.5)
            sizes += [(size / across * width, size / down * height) for size in self.anchor_sizes]
        half = (Input.new_tensor(sizes) - 1) * 0.5
        x = torch.arange(Input.shape[3], dtype=Input.dtype, device=Input.device) * across + self.offset * (across - 1)
        y = torch.arange(Input.shape[2], dtype=Input.dtype, device=Input.device) * down + self.offset * (down - 1)
        middle = torch.stack([x.expand(len(y), len(x)), y.unsqueeze(1).expand(len(y), len(x))], -1).unsqueeze(2)
        anchors = torch.cat([middle - half, middle + half], -1)
        return anchors, _variances(self.variances, anchors)

    samples = [
        sample(Input=f32(2, 5, 3, 4), anchor_sizes=[32.0, 64.0, 128.0], aspect_ratios=[0.5, 1.0], variances=[0.1, 0.1, 0.2, 0.2]),
        sample(Input=f64(1, 5, 2, 4), anchor_sizes=[32.0], aspect_ratios=[2.0], variances=[1.0] * 4, stride=[16.0, 8.0], offset=0.0),
        sample(Input=f32(1, 5, 0, 4), anchor_sizes=[32.0], aspect_ratios=[2.0], variances=[1.0] * 4),
    ]
    rejects = [
        reject(Input=f32(2, 5, 3, 4), anchor_sizes=[32.0], aspect_ratios=[1.0], variances=[0.1], says="variances must be 4", error=SchemaError),
        reject(Input=f32(2, 5, 3, 4), anchor_sizes=[32.0], aspect_ratios=[1.0], variances=[0.1] * 4, stride=[16.0], says="stride must be 2", error=SchemaError),
        reject(Input=f32(2, 5, 3, 4), anchor_sizes=[], aspect_ratios=[1.0], variances=[0.1] * 4, says="anchor_sizes must be", error=SchemaError),
        reject(Input=f32(2, 5, 3, 4), anchor_sizes=[8.0], aspect_ratios=[0.0], variances=[0.1] * 4, says="larger than 0", error=SchemaError),
    ]
