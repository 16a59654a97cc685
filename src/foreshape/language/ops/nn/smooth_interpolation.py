"""Images in another size with pixels averaged from their neighbours: linear and cubic interpolation, along one, two or three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from foreshape.core.dims import Size, less_equal
from foreshape.core.spec import FLOATING, INDEX, Spec
from foreshape.core.values.torch_proxy import Tensor, aten
from foreshape.language.operator import OWN, AttrType, attribute, operand, result
from foreshape.language.operator.require import require
from foreshape.language.operator.samples import f32, i32, reject, sample
from foreshape.language.ops.nn.interpolation import Interpolation, Scales, one_scale
from foreshape.language.ops.rules.window import channels_first_dims, is_channels_last
from foreshape.machine.kernels.resizing import cubic_weights, linear_weights, places, resampled, step


class Smooth(Interpolation):
    """The base of the linear and cubic interpolations."""

    abstract = True
    _names: ClassVar[dict[int, str]] = {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"}
    """torch's kernel by the number of axes; the name of its gradient ends in _backward."""
    centered = attribute(AttrType.BOOLEAN, False, since=OWN, doc="a single new pixel, as an area, is at the middle, as in torch; else at the beginning")

    def _areas(self) -> bool:
        """Tell whether pixels are areas, aligned at their centers."""
        return not self.align_corners and self.align_mode == 0

    def _weights(self, size: int, positions: Tensor) -> Tensor:
        return linear_weights(size, positions)

    def _by_torch(self, size: Sequence[int]) -> bool:
        """Tell whether torch's kernel has these places: not for points without aligned corners, nor for one pixel at the beginning."""
        return self.align_corners or (self._areas() and (self.centered or min(size) > 1))

    def _each_axis(self, x: Tensor, size: Sequence[int], scales: Scales) -> list[Tensor]:
        """Return for each axis the weights ``[new, old]`` of the old pixels in the new ones."""
        like = x.float() if x.element_size() == 2 else x
        out: list[Tensor] = []
        for old, new, scale in zip(x.shape[2:], size, scales, strict=True):
            positions = places(new, step(int(old), new, scale, self.align_corners), self._areas(), like)
            out.append(self._weights(int(old), positions).to(x.dtype))
        return out

    def _resized(self, x: Tensor, size: list[int], scales: Scales) -> Tensor:
        return self._sampled(x, size, scales)

    def _undone(self, x: Tensor, d: Tensor, size: list[int], scales: Scales) -> Tensor:
        return self._unsampled(x, d, size, scales)

    def _sampled(self, x: Tensor, size: list[int], scales: Scales) -> Tensor:
        """Return images made of the old pixels next to each place."""
        if self._by_torch(size):
            return getattr(aten, self._names[len(size)])(x, size, self.align_corners, *scales).contiguous()
        return resampled(x, self._each_axis(x, size, scales))

    def _unsampled(self, x: Tensor, d: Tensor, size: list[int], scales: Scales) -> Tensor:
        if self._by_torch(size):
            undo: Any = getattr(aten, self._names[len(size)] + "_backward")
            return undo(d, size, list(x.shape), self.align_corners, *scales).contiguous()
        return resampled(d, [w.t() for w in self._each_axis(x, size, scales)])

    def _workspace(self, X: Spec, out: Spec) -> Size:
        """Return the bytes, with copies of the operands in another order for matrix products."""
        needed = Interpolation._workspace(self, X, out)
        image = channels_first_dims(out, is_channels_last(self.data_layout))[2:]
        surely = self.align_corners or (self._areas() and (self.centered or all(less_equal(2, size) for size in image)))
        return needed if surely else 2 * needed

    def _tables(self, new: Size, old: Size) -> Size:
        return 32 * new if self.align_corners else new * old + 32 * new


class Antialiased(Smooth):
    """The base of the interpolations of images, with or without antialiasing."""

    abstract = True
    _widened: ClassVar[str]
    antialias = attribute(AttrType.BOOLEAN, False, since=OWN, doc="new pixels that are fewer are made of all old ones in their areas, as in torch")

    def infer_shape(self, X: Spec, OutSize: Spec | None, SizeTensor: tuple[Spec, ...], Scale: Spec | None) -> Spec:
        require(not self.antialias or self.align_corners or self._areas(), "antialias wants pixels that are areas, or align_corners", X=None)
        return super().infer_shape(X, OutSize, SizeTensor, Scale)

    def _resized(self, x: Tensor, size: list[int], scales: Scales) -> Tensor:
        if not self.antialias:
            return self._sampled(x, size, scales)
        wide = x.float() if x.element_size() == 2 else x
        resize: Any = getattr(aten, self._widened)
        if size[1] == 1 < size[0]:  # one axis after the other: torch's kernel gives each row the first one's number
            wide = resize(wide, [size[0], int(x.shape[3])], self.align_corners, scales[0], None)
            scales = (None, scales[1])
        return resize(wide, size, self.align_corners, *scales).to(x.dtype).contiguous()

    def _undone(self, x: Tensor, d: Tensor, size: list[int], scales: Scales) -> Tensor:
        if not self.antialias:
            return self._unsampled(x, d, size, scales)
        wide = d.float() if d.element_size() == 2 else d
        undo: Any = getattr(aten, self._widened + "_backward")
        return undo(wide, size, list(x.shape), self.align_corners, *scales).to(x.dtype).contiguous()

    def _workspace(self, X: Spec, out: Spec) -> Size:
        needed = super()._workspace(X, out)
        return 2 * needed if self.antialias else needed

    def _tables(self, new: Size, old: Size) -> Size:
        return 32 * (new + old) if self.antialias else super()._tables(new, old)


class BilinearInterpV2(Antialiased):
    """Out = for each place the mean of the four pixels of X around it, weighted by nearness."""

    type = "bilinear_interp_v2"
    layer_function = "interpolate"
    gradient_reads_dims = ("X",)
    _widened: ClassVar[str] = "_upsample_bilinear2d_aa"

    samples = [
        *Interpolation.samples,
        sample(X=f32(2, 3, 4, 5), out_h=1, out_w=6, align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 4, 5), out_h=1, out_w=6, align_corners=False, align_mode=0, centered=True),
        sample(X=f32(2, 3, 4, 5), scale=[0.25, 1.5], align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 7, 9), out_h=3, out_w=1, align_corners=False, align_mode=0, antialias=True),
        sample(X=f32(2, 3, 7, 9), scale=[0.4], antialias=True),
        sample(X=f32(2, 3, 7, 9), out_h=3, out_w=1, align_corners=False, align_mode=0, centered=True, antialias=True),
        sample(X=f32(2, 3, 7, 9), scale=[0.6, 1.4], align_corners=False, align_mode=0, antialias=True),
    ]
    rejects = [
        *Interpolation.rejects,
        reject(X=f32(2, 3, 4, 5), out_h=2, out_w=2, align_corners=False, antialias=True, says="areas"),
        reject(X=f32(2, 3, 4, 5), out_h=2**31 - 1, out_w=2**31 - 1, says="64-bit"),
    ]


class BicubicInterpV2(Antialiased):
    """Out = for each place the sixteen pixels of X around it by cubic convolution, with the parameter -0.75. ``align_mode`` is ignored: without
    ``align_corners`` pixels are areas."""

    type = "bicubic_interp_v2"
    layer_function = "interpolate"
    gradient_reads_dims = ("X",)
    _widened: ClassVar[str] = "_upsample_bicubic2d_aa"
    interp_method = attribute(AttrType.STRING, "bicubic")
    _names: ClassVar[dict[int, str]] = {2: "upsample_bicubic2d"}

    def _areas(self) -> bool:
        return not self.align_corners

    def _weights(self, size: int, positions: Tensor) -> Tensor:
        return cubic_weights(size, positions)

    samples = [
        sample(X=f32(2, 3, 4, 5), out_h=7, out_w=8),
        sample(X=f32(2, 3, 4, 5), out_h=3, out_w=8, align_corners=False),
        sample(X=f32(2, 3, 4, 5), scale=[0.7, 2.3], align_corners=False),
        sample(X=f32(2, 3, 4, 5), out_h=1, out_w=9, align_corners=False),
        sample(X=f32(2, 3, 4, 5), out_h=1, out_w=9, align_corners=False, centered=True),
        sample(X=f32(2, 3, 9, 7), out_h=2, out_w=3, align_corners=False, antialias=True),
        sample(X=f32(2, 4, 5, 3), out_h=6, out_w=7, data_layout="NHWC", align_corners=False),
        sample(X=f32(2, 3, 4, 5), OutSize=i32(2, data=[6, 7])),
        sample(X=f32(2, 3, 4, 5), Scale=f32(2, data=[2.0, 1.5]), align_corners=False, differentiate=False),
    ]
    rejects = [*Interpolation.rejects]


class LinearInterpV2(Smooth):
    """Out = for each place the mean of the two elements of X around it along its last axis, weighted by nearness."""

    type = "linear_interp_v2"
    layer_function = "interpolate"
    gradient_reads_dims = ("X",)
    _spatial: ClassVar[tuple[int, ...]] = (1,)
    X = operand(FLOATING, doc="[batch, channels, width], or channels last")
    Out = result(doc="as X with another width")
    interp_method = attribute(AttrType.STRING, "linear")

    samples = [
        sample(X=f32(2, 3, 5), out_w=8),
        sample(X=f32(2, 3, 5), scale=[1.7], align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 5), out_w=3, align_corners=False),
        sample(X=f32(2, 3, 5), out_w=1, align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 5), out_w=1, align_corners=False, align_mode=0, centered=True),
        sample(X=f32(2, 5, 3), out_w=7, data_layout="NHWC", align_corners=False),
        sample(X=f32(2, 3, 5), OutSize=i32(1, data=[6])),
        sample(X=f32(2, 3, 5), SizeTensor=[i32(1, data=[6])], align_corners=False),
    ]
    rejects = [
        reject(X=f32(2, 3, 4), says="the new size must be at least 1"),
        reject(X=f32(2, 3, 4), OutSize=i32(2, data=[3, 4]), says="the size must be one number"),
        reject(X=f32(2, 3, 4), scale=[1.0, 2.0], says="scale must be one number"),
    ]


class TrilinearInterpV2(Smooth):
    """Out = for each place the mean of the eight elements of X around it, weighted by nearness."""

    type = "trilinear_interp_v2"
    layer_function = "interpolate"
    gradient_reads_dims = ("X",)
    _spatial: ClassVar[tuple[int, ...]] = (3,)
    X = operand(FLOATING, doc="[batch, channels, depth, height, width], or channels last")
    OutSize = operand(INDEX, optional=True, doc="[3]: depth, height and width")
    Out = result(doc="as X with another depth, height and width")
    interp_method = attribute(AttrType.STRING, "trilinear")

    samples = [
        sample(X=f32(2, 3, 2, 4, 5), out_d=3, out_h=7, out_w=8),
        sample(X=f32(2, 3, 3, 4, 5), scale=[1.7, 0.8, 2.0], align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 3, 4, 5), scale=[1.7], align_corners=False),
        sample(X=f32(2, 3, 3, 4, 5), out_d=1, out_h=7, out_w=2, align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 3, 4, 5), out_d=1, out_h=7, out_w=2, align_corners=False, align_mode=0, centered=True),
        sample(X=f32(2, 3, 4, 5, 2), out_d=2, out_h=7, out_w=6, data_layout="NHWC", align_corners=False),
        sample(X=f32(2, 3, 3, 4, 5), OutSize=i32(3, data=[4, 6, 7])),
    ]
    rejects = [
        reject(X=f32(2, 3, 3, 4, 5), out_h=2, out_w=2, says="the new size must be at least 1"),
        reject(X=f32(2, 3, 3, 4, 5), scale=[1.0, 2.0], says="scale must be one number, or three"),
    ]


class _OneScale(Smooth):
    """The base of the older operators: one scale for all axes, and pixels placed by the sizes, for any scale."""

    abstract = True
    _by_scale: ClassVar[bool] = False
    scale = attribute(AttrType.FLOAT, 0.0, doc="the factor of the sizes; 0 for none")

    def _scales(self) -> Sequence[float]:
        return one_scale(self.scale)


class BilinearInterp(_OneScale, BilinearInterpV2):
    """`bilinear_interp_v2` with one scale for both axes; the sizes place the pixels, for any scale."""

    type = "bilinear_interp"
    scale = _OneScale.scale

    samples = [
        sample(X=f32(2, 3, 4, 5), out_h=7, out_w=8),
        sample(X=f32(2, 3, 4, 5), scale=1.7, align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 4, 5), scale=1.7, align_corners=False),
        sample(X=f32(2, 3, 4, 5), out_h=1, out_w=2, align_corners=False, align_mode=0, centered=True, antialias=True),
        sample(X=f32(2, 3, 4, 5), OutSize=i32(2, data=[6, 7]), scale=2.0, align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 4, 5), Scale=f32(1, data=[1.5]), align_corners=False, differentiate=False),
    ]
    rejects = [reject(X=f32(2, 3, 4, 5), scale=0.1, says="at least 1"), reject(X=f32(2, 3, 4, 5), says="the new size must be at least 1")]


class BicubicInterp(_OneScale, BicubicInterpV2):
    """`bicubic_interp_v2` with one scale for both axes; the sizes place the pixels, for any scale."""

    type = "bicubic_interp"
    scale = _OneScale.scale

    samples = [
        sample(X=f32(2, 3, 4, 5), out_h=7, out_w=8),
        sample(X=f32(2, 3, 4, 5), scale=1.7, align_corners=False),
        sample(X=f32(2, 3, 4, 5), out_h=1, out_w=2, align_corners=False, centered=True, antialias=True),
    ]
    rejects = [reject(X=f32(2, 3, 4, 5), scale=0.1, says="at least 1"), reject(X=f32(2, 3, 4, 5), says="the new size must be at least 1")]


class LinearInterp(_OneScale, LinearInterpV2):
    """`linear_interp_v2` with elements placed by the sizes, for any scale."""

    type = "linear_interp"
    scale = _OneScale.scale

    samples = [
        sample(X=f32(2, 3, 5), out_w=8),
        sample(X=f32(2, 3, 5), scale=1.7, align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 5), out_w=1, align_corners=False, align_mode=0, centered=True),
    ]
    rejects = [reject(X=f32(2, 3, 5), scale=0.1, says="at least 1"), reject(X=f32(2, 3, 5), says="the new size must be at least 1")]


class TrilinearInterp(_OneScale, TrilinearInterpV2):
    """`trilinear_interp_v2` with one scale for all axes; the sizes place the elements, for any scale."""

    type = "trilinear_interp"
    scale = _OneScale.scale

    samples = [
        sample(X=f32(2, 3, 2, 4, 5), out_d=3, out_h=7, out_w=8),
        sample(X=f32(2, 3, 3, 4, 5), scale=1.7, align_corners=False, align_mode=0),
        sample(X=f32(2, 3, 3, 4, 5), out_d=1, out_h=7, out_w=2, align_corners=False, align_mode=0, centered=True),
    ]
    rejects = [reject(X=f32(2, 3, 2, 4, 5), scale=0.1, says="at least 1"), reject(X=f32(2, 3, 2, 4, 5), says="the new size must be at least 1")]
