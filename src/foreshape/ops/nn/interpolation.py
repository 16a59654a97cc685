"""Images in another size: nearest and bilinear interpolation, pixel shuffle."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from foreshape.dims import Size, no_less, product
from foreshape.errors import ExecutionError
from foreshape.operator import (
    FLOATING,
    INDEX,
    INTEGER,
    AttrType,
    Operator,
    aten,
    attribute,
    f32,
    gradient,
    i32,
    i64,
    operand,
    reject,
    require,
    require_at_most,
    require_divides,
    require_rank,
    result,
    sample,
    torch,
    unknown_size,
)
from foreshape.operator.temporaries import copies
from foreshape.ops.rules.size_operands import known_sizes, sizes_at_run
from foreshape.ops.rules.window import channels_first_dims
from foreshape.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor

EXACT_BITS = 12
"""A scale written with this few bits times a dim below 4096 is exact in single precision, so that it can be done with symbols."""


def scaled_size(size: int, scale: float) -> int:
    """``size`` times ``scale`` in single precision, rounded down: what the file format's other readers compute."""
    return int(struct.unpack("<f", struct.pack("<f", size * scale))[0])


def _scaled(size: Size, scale: float, axis: int) -> Size:
    if isinstance(size, int):
        return scaled_size(size, scale)
    over, under = scale.as_integer_ratio()
    if over.bit_length() > EXACT_BITS or under.bit_length() > EXACT_BITS:
        return unknown_size(str(axis))
    return size * over // under


class Interpolation(Operator):
    """The base of the interpolations of images.

    The size is SizeTensor (two one-number tensors), else OutSize (a tensor of two numbers), else the dims times Scale (a tensor), else
    times ``scale``, else ``out_h`` and ``out_w``.
    """

    abstract = True
    X = operand(FLOATING, doc="[batch, channels, height, width], or channels last")
    OutSize = operand(INDEX, optional=True, doc="[2]: height and width")
    SizeTensor = operand(INDEX, many=True, optional=True, doc="height and width, as tensors of one number each")
    Scale = operand(FLOATING, optional=True, doc="[1] or [2]: what the dims are multiplied with")
    Out = result(doc="as X with another height and width")
    data_layout = attribute(AttrType.STRING, "NCHW", choices=("NCHW", "NHWC"))
    out_d = attribute(AttrType.INT, 0)
    out_h = attribute(AttrType.INT, 0)
    out_w = attribute(AttrType.INT, 0)
    scale = attribute(AttrType.FLOATS, [])
    interp_method = attribute(AttrType.STRING, "bilinear")
    align_corners = attribute(AttrType.BOOLEAN, True, doc="the corner pixels of X and Out lie on each other")
    align_mode = attribute(AttrType.INT, 1, choices=(0, 1), doc="0: pixels are areas, and their centers are meant; 1: pixels are points")

    def infer_shape(self, X: Spec, OutSize: Spec | None, SizeTensor: tuple[Spec, ...], Scale: Spec | None) -> Spec:
        require_rank(4, X, "X")
        first = 2 if self.data_layout == "NCHW" else 1
        dims = list(X.known_dims)
        for axis in (first, first + 1):
            require_at_most(1, dims[axis], f"there must be a pixel: the dim at axis {axis} must be at least 1", X=axis)
        asked = self._asked(dims[first : first + 2], first, OutSize, SizeTensor, Scale)
        require(len(asked) == 2, f"the size must be two numbers, height and width, not {len(asked)}", X=None)
        for k, size in enumerate(asked):
            axis = first + k
            size = unknown_size(str(axis)) if size is None else size
            require_at_most(1, size, f"the new size must be at least 1; seen {size}: give out_h and out_w, scale, or their tensors", X=axis)
            dims[axis] = size
        return X.with_dims(dims)

    def _asked(self, sizes: Sequence[Size], first: int, OutSize: Any, SizeTensor: Any, Scale: Any) -> Sequence[Size | None]:
        if SizeTensor or OutSize is not None:
            return known_sizes((), OutSize, SizeTensor, "OutSize", "SizeTensor")
        if Scale is not None:
            return (None, None)
        if self.scale:
            require(len(self.scale) <= 2 and all(0 < s < 2.0**31 for s in self.scale), f"scale must be one or two numbers above 0; seen {list(self.scale)}")
            return [_scaled(size, s, first + k) for k, (size, s) in enumerate(zip(sizes, _both(self.scale), strict=True))]
        return (self.out_h, self.out_w)

    def _sizes(self, x: Tensor, OutSize: Any, SizeTensor: Any, Scale: Any) -> tuple[list[int], tuple[float | None, float | None]]:
        """The new height and width, and the scales that say how pixels lie on each other (None: the sizes say)."""
        scales: tuple[float | None, float | None] = (None, None)
        if SizeTensor:
            return list(sizes_at_run((), None, SizeTensor)), scales
        given: Sequence[float] = [float(s) for s in Scale.reshape(-1).tolist()] if Scale is not None else self.scale
        size = [self.out_h, self.out_w]
        if given:
            scales = _both(given)
            size = [scaled_size(int(n), s) for n, s in zip(x.shape[2:], _both(given), strict=True)]
        if OutSize is not None:
            size = list(sizes_at_run((), OutSize))
        if len(size) != 2 or min(size) < 1:
            raise ExecutionError(f"the new size must be two numbers of at least 1; seen {size}")
        return size, scales

    _resized: ClassVar[Callable[..., Tensor]]
    """Images, their new size and by how much they grow -> the images in that size."""
    _undone: ClassVar[Callable[..., Tensor]]
    """Images, the gradient of what came out, size and growth -> the gradient of the images."""

    def kernel(self, X: Tensor, OutSize: Any, SizeTensor: Any, Scale: Any) -> Tensor:
        last = self.data_layout == "NHWC"
        x = X.permute(0, 3, 1, 2) if last else X
        size, scales = self._sizes(x, OutSize, SizeTensor, Scale)
        out = self._resized(x, size, scales) if x.shape[1] else x.new_empty((*x.shape[:2], *size))  # torch wants channels
        return out.permute(0, 2, 3, 1).contiguous() if last else out

    def workspace(self, X: Spec, OutSize: Spec | None, SizeTensor: tuple[Spec, ...], Scale: Spec | None) -> Size:
        return self._workspace(X, self.infer_shape(X, OutSize, SizeTensor, Scale))

    def _gradient_workspace(self, X: Spec, OutSize: Spec | None, SizeTensor: tuple[Spec, ...], Scale: Spec | None, d_out: Spec) -> Size:
        return self._workspace(X, d_out)

    def _workspace(self, X: Spec, out: Spec) -> Size:
        """Both images with their channels last, and what it takes else."""
        last = self.data_layout == "NHWC"
        n, c, h, w = channels_first_dims(X, last)
        _, _, high, wide = channels_first_dims(out, last)
        between = no_less(product((n, c, high, w)), product((n, c, h, wide)))
        return X.nbytes + out.nbytes + (self._tables(high, h) + self._tables(wide, w) + between) * X.known_dtype.itemsize

    def _tables(self, new: Size, old: Size) -> Size:
        """How many numbers it takes to say how the pixels of two images lie on each other, along one axis."""
        return 8 * new

    @gradient("X", "OutSize", "SizeTensor", "Scale", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, OutSize: Any, SizeTensor: Any, Scale: Any, d_out: Tensor) -> Tensor:
        last = self.data_layout == "NHWC"
        x, d = (X.permute(0, 3, 1, 2), d_out.permute(0, 3, 1, 2)) if last else (X, d_out)
        size, scales = self._sizes(x, OutSize, SizeTensor, Scale)
        out = self._undone(x, d, size, scales) if x.shape[1] else torch.zeros_like(x)
        return out.permute(0, 2, 3, 1).contiguous() if last else out

    samples = [
        sample(X=f32(2, 3, 4, 5), out_h=7, out_w=8),
        sample(X=f32(2, 3, 4, 5), scale=[2.0, 2.0], align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 4, 5), scale=[1.5], align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 4, 5), scale=[0.7, 1.3], align_corners=False),
        sample(X=f32(2, 3, 4, 5), out_h=3, out_w=1, align_corners=False),
        sample(X=f32(2, 3, 4, 5), out_h=1, out_w=9),
        sample(X=f32(2, 4, 5, 3), out_h=6, out_w=7, data_layout="NHWC", align_corners=False),
        sample(X=f32(0, 3, 4, 5), out_h=2, out_w=2, align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 4, 5), OutSize=i32(2, data=[6, 7])),
        sample(X=f32(2, 3, 4, 5), SizeTensor=[i32(1, data=[6]), i32(1, data=[7])], align_corners=False),
        sample(X=f32(2, 3, 4, 5), Scale=f32(1, data=[2.0]), align_corners=False, differentiate=False),
    ]
    rejects = [
        reject(X=f32(2, 3, 4), out_h=2, out_w=2, says="X must have 4 dims"),
        reject(X=f32(2, 3, 4, 5), says="the new size must be at least 1"),
        reject(X=f32(2, 3, 4, 5), out_h=-1, out_w=4, says="the new size must be at least 1"),
        reject(X=f32(2, 3, 0, 5), out_h=2, out_w=4, says="there must be a pixel"),
        reject(X=f32(2, 3, 4, 5), scale=[0.0, 1.0], says="above 0"),
        reject(X=f32(2, 3, 4, 5), scale=[0.1, 1.0], says="at least 1"),
        reject(X=f32(2, 3, 4, 5), OutSize=i32(3, data=[2, 3, 4]), says="two numbers"),
    ]


def _both(scale: Sequence[float]) -> tuple[float, float]:
    return (scale[0], scale[0]) if len(scale) == 1 else (scale[0], scale[1])


def _step(size: int, out: int, scale: float | None, align_corners: bool) -> float:
    """How many pixels of the old image one pixel of the new one is."""
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / scale if scale else size / out


class NearestInterpV2(Interpolation):
    """Out = for each place the pixel of X that is nearest, or with ``align_corners`` false the one at or before it."""

    type = "nearest_interp_v2"
    X = operand((*FLOATING, *INTEGER), doc="[batch, channels, height, width], or channels last")
    interp_method = attribute(AttrType.STRING, "nearest")

    def _index(self, x: Tensor, axis: int, out: int, scale: float | None) -> Tensor:
        size = x.shape[axis]
        at = torch.arange(out, device=x.device, dtype=torch.float32) * _step(int(size), out, scale, self.align_corners)
        return (at + 0.5 if self.align_corners else at).long().clamp_(max=size - 1)

    def _resized(self, x: Tensor, size: list[int], scales: tuple[float | None, float | None]) -> Tensor:
        if self.align_corners or not x.is_floating_point():
            return x.index_select(2, self._index(x, 2, size[0], scales[0])).index_select(3, self._index(x, 3, size[1], scales[1]))
        return aten.upsample_nearest2d(x, size, *scales)

    def _undone(self, x: Tensor, d: Tensor, size: list[int], scales: tuple[float | None, float | None]) -> Tensor:
        if not self.align_corners:
            return aten.upsample_nearest2d_backward(d, size, list(x.shape), *scales)
        rows = d.new_zeros((*x.shape[:3], size[1])).index_add_(2, self._index(x, 2, size[0], scales[0]), d)
        return d.new_zeros(x.shape).index_add_(3, self._index(x, 3, size[1], scales[1]), rows)

    samples = [*Interpolation.samples, sample(X=i64(2, 3, 4, 5), out_h=7, out_w=2, align_corners=False, interp_method="nearest")]
    rejects = Interpolation.rejects


class BilinearInterpV2(Interpolation):
    """Out = for each place the mean of the four pixels of X around it, weighted by nearness."""

    type = "bilinear_interp_v2"

    def _tables(self, new: Size, old: Size) -> Size:
        return 0 if self.align_corners or self.align_mode == 0 else new * old + 16 * new

    def _weights(self, x: Tensor, axis: int, out: int, scale: float | None) -> Tensor:
        """``[out, size]``: how much of each old pixel each new one has, where pixels are points that do not align."""
        size = int(x.shape[axis])
        at = torch.arange(out, device=x.device, dtype=x.dtype) * _step(size, out, scale, False)
        low = at.long().clamp_(max=size - 1)
        high = (low + 1).clamp_(max=size - 1)
        part = (at - low).clamp_(0, 1).unsqueeze(1)
        weights = torch.zeros((out, size), dtype=x.dtype, device=x.device)
        return weights.scatter_add_(1, low.unsqueeze(1), 1 - part).scatter_add_(1, high.unsqueeze(1), part)

    def _resized(self, x: Tensor, size: list[int], scales: tuple[float | None, float | None]) -> Tensor:
        if self.align_corners or self.align_mode == 0:
            return aten.upsample_bilinear2d(x, size, self.align_corners, *scales)
        return self._weights(x, 2, size[0], scales[0]) @ x @ self._weights(x, 3, size[1], scales[1]).t()

    def _undone(self, x: Tensor, d: Tensor, size: list[int], scales: tuple[float | None, float | None]) -> Tensor:
        if self.align_corners or self.align_mode == 0:
            return aten.upsample_bilinear2d_backward(d, size, list(x.shape), self.align_corners, *scales)
        return self._weights(x, 2, size[0], scales[0]).t() @ d @ self._weights(x, 3, size[1], scales[1])

    samples = Interpolation.samples
    rejects = [*Interpolation.rejects, reject(X=f32(2, 3, 4, 5), out_h=2**31 - 1, out_w=2**31 - 1, says="64-bit")]


class PixelShuffle(Operator):
    """Out = an image ``upscale_factor`` times as high and wide, whose new pixels were channels: r*r channels become an r by r square."""

    type = "pixel_shuffle"
    X = operand(FLOATING, doc="[batch, channels * r * r, height, width], or channels last")
    Out = result(doc="[batch, channels, height * r, width * r], or channels last")
    upscale_factor = attribute(AttrType.INT, 1)
    data_format = attribute(AttrType.STRING, "NCHW", choices=("NCHW", "NHWC"))

    def infer_shape(self, X: Spec) -> Spec:
        require_rank(4, X, "X")
        r = self.upscale_factor
        require(1 <= r < 2**15, f"upscale_factor must be at least 1 and below {2**15}; seen {r}", X=None)
        n, c, h, w = X.known_dims if self.data_format == "NCHW" else (X.known_dims[k] for k in (0, 3, 1, 2))
        at = 1 if self.data_format == "NCHW" else 3
        c = require_divides(r * r, c, f"the channels, {c}, must be divisible by the square of upscale_factor, {r * r}", X=at)
        return X.with_dims((n, c, h * r, w * r) if self.data_format == "NCHW" else (n, h * r, w * r, c))

    def kernel(self, X: Tensor) -> Tensor:
        if not X.numel():  # torch leaves the dims of nothing as they are
            return X.new_empty(self._dims(X.shape, into=True))
        if self.data_format == "NCHW":
            return torch.pixel_shuffle(X, self.upscale_factor)
        return torch.pixel_shuffle(X.permute(0, 3, 1, 2), self.upscale_factor).permute(0, 2, 3, 1)

    def _dims(self, dims: Sequence[int], into: bool) -> list[int]:
        """The dims of the result for those of X, or the other way round."""
        r, channels = self.upscale_factor, 1 if self.data_format == "NCHW" else 3
        return [d if k == 0 else d // (r * r) if (k == channels) is into and k == channels else d * r * r if k == channels else d * r if into else d // r
                for k, d in enumerate(dims)]  # fmt: skip

    def _before(self, d_out: Spec) -> Spec:
        require_rank(4, d_out, "Out@GRAD")
        dims = list(d_out.known_dims)
        r = self.upscale_factor
        at = 1 if self.data_format == "NCHW" else 3
        for axis in range(1, 4):
            size = dims[axis]
            dims[axis] = size * (r * r) if axis == at else require_divides(r, size, f"{r} must divide the dim at axis {axis}")
        return d_out.with_dims(dims)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X)

    def _gradient_workspace(self, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Out_GRAD=d_out)

    @gradient("Out@GRAD", gives="X@GRAD", infer=_before, workspace=_gradient_workspace)
    def backward(self, d_out: Tensor) -> Tensor:
        if not d_out.numel():
            return d_out.new_empty(self._dims(d_out.shape, into=False))
        if self.data_format == "NCHW":
            return torch.pixel_unshuffle(d_out, self.upscale_factor)
        return torch.pixel_unshuffle(d_out.permute(0, 3, 1, 2), self.upscale_factor).permute(0, 2, 3, 1)

    samples = [
        sample(X=f32(2, 8, 3, 5), upscale_factor=2),
        sample(X=f32(2, 3, 5, 9), upscale_factor=3, data_format="NHWC"),
        sample(X=f32(0, 4, 3, 5), upscale_factor=2),
    ]
    rejects = [
        reject(X=f32(2, 6, 3, 5), upscale_factor=2, says="must be divisible"),
        reject(X=f32(2, 6, 3), says="X must have 4 dims"),
        reject(X=f32(2, 6, 3, 5), upscale_factor=0, says="at least 1"),
    ]
