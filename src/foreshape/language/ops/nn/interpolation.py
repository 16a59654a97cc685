"""Images in another size: the base of all interpolations, and interpolation by the nearest pixel."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar, TypeAlias

from foreshape.core.dims import Size, no_less, product, reaches
from foreshape.core.spec import FLOATING, INDEX, INTEGER, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.known_floats import exact_ratio
from foreshape.language.ops.rules.known_values import known_sizes, sizes_at_run
from foreshape.language.ops.rules.window import IMAGE_FORMATS, channels_back, channels_first, channels_first_dims, is_channels_last
from foreshape.machine.kernels.resizing import step
from foreshape.machine.process.this_run import require_room

_COUNTS = ("", "one number, the width", "two numbers, height and width", "three numbers, depth, height and width")

Scales: TypeAlias = "Sequence[float | None]"
"""The scale of each image axis; None if the sizes define it."""


def scaled_size(size: int, scale: float) -> int:
    """Return ``size`` times ``scale``, rounded down as other readers of the file format do (`exact_ratio`)."""
    ratio = exact_ratio(scale)
    return int(struct.unpack("<f", struct.pack("<f", size * scale))[0]) if ratio is None else size * ratio[0] // ratio[1]


def _scaled(size: Size, scale: float, axis: int) -> Size:
    if isinstance(size, int):
        return scaled_size(size, scale)
    ratio = exact_ratio(scale)
    return unknown_size(str(axis)) if ratio is None else size * ratio[0] // ratio[1]


class Interpolation(Operator):
    """The base of the interpolations of rows, images and volumes.

    The size is SizeTensor (a one-number tensor for each axis), else OutSize (a tensor of a number for each). Otherwise it is the dims times Scale (a tensor),
    else times ``scale``, else the last of ``out_d``, ``out_h`` and ``out_w``, one for each axis.
    """

    abstract = True
    examples = ("X",)
    _spatial: ClassVar[tuple[int, ...]] = (2,)
    """The possible numbers of image axes of X."""
    _by_scale: ClassVar[bool] = True
    """True if a given scale places the pixels, and False if the sizes always do."""
    X = operand(FLOATING, doc="[batch, channels, height, width], or channels last")
    OutSize = operand(INDEX, optional=True, doc="[2]: height and width")
    SizeTensor = operand(INDEX, many=True, optional=True, doc="height and width, as tensors of one number each")
    Scale = operand(FLOATING, optional=True, doc="[1] or [2]: the factor of the dims")
    Out = result(doc="as X with another height and width")
    data_layout = attribute(AttrType.STRING, "NCHW", choices=IMAGE_FORMATS)
    out_d = attribute(AttrType.INT, 0)
    out_h = attribute(AttrType.INT, 0)
    out_w = attribute(AttrType.INT, 0)
    scale = attribute(AttrType.FLOATS, [])
    interp_method = attribute(AttrType.STRING, "bilinear")
    align_corners = attribute(AttrType.BOOLEAN, True, doc="the corner pixels of X and Out are aligned")
    align_mode = attribute(AttrType.INT, 1, choices=(0, 1), doc="0: pixels are areas, placed by their centers; 1: pixels are points")

    def _scales(self) -> Sequence[float]:
        """Return the scales of the attribute: none, one, or one for each axis."""
        return self.scale

    def _sizes_given(self, axes: int) -> list[int]:
        return [self.out_d, self.out_h, self.out_w][3 - axes :]

    def infer_shape(self, X: Spec, OutSize: Spec | None, SizeTensor: tuple[Spec, ...], Scale: Spec | None) -> Spec:
        ranks = [axes + 2 for axes in self._spatial]
        require(X.rank in ranks, f"X must have {' or '.join(map(str, ranks))} dims, not {X.rank}", X=None)
        axes = X.rank - 2
        first = 1 if is_channels_last(self.data_layout) else 2
        dims = list(X.known_dims)
        for axis in range(first, first + axes):
            require_at_most(1, dims[axis], f"there must be a pixel: the dim at axis {axis} must be at least 1", X=axis)
        sizes = self._requested_sizes(dims[first : first + axes], first, OutSize, SizeTensor, Scale)
        require(len(sizes) == axes, f"the size must be {_COUNTS[axes]}, not {len(sizes)}", X=None)
        for k, size in enumerate(sizes):
            axis = first + k
            size = unknown_size(str(axis)) if size is None else size
            require_at_most(1, size, f"the new size must be at least 1; seen {size}: give out_h and out_w, scale, or their tensors", X=axis)
            dims[axis] = size
        return X.with_dims(dims)

    def _requested_sizes(self, sizes: Sequence[Size], first: int, OutSize: Any, SizeTensor: Any, Scale: Any) -> Sequence[Size | None]:
        if SizeTensor or OutSize is not None:
            return known_sizes((), OutSize, SizeTensor, "OutSize", "SizeTensor")
        if Scale is not None:
            return (None,) * len(sizes)
        factors = self._scales()
        if factors:
            require(
                len(factors) in (1, len(sizes)) and all(0 < s < 2.0**31 for s in factors),
                f"scale must be one number, or {_COUNTS[len(sizes)]}, above 0; seen {list(factors)}",
            )
            return [_scaled(size, s, first + k) for k, (size, s) in enumerate(zip(sizes, _per_axis(factors, len(sizes)), strict=True))]
        return self._sizes_given(len(sizes))

    def _sizes(self, x: Tensor, OutSize: Any, SizeTensor: Any, Scale: Any) -> tuple[list[int], Scales]:
        """Return the new sizes, and the scales for placing pixels (None: by the sizes)."""
        axes = x.dim() - 2
        scales: Scales = (None,) * axes
        if SizeTensor:
            size = list(sizes_at_run((), None, SizeTensor))
        else:
            factors: Sequence[float] = [float(s) for s in Scale.reshape(-1).tolist()] if Scale is not None else self._scales()
            size = self._sizes_given(axes)
            if factors:
                if len(factors) not in (1, axes):
                    raise ExecutionError(f"Scale must be one number, or {_COUNTS[axes]}; seen {list(factors)}")
                if not all(abs(s) < 2.0**31 for s in factors):
                    raise ExecutionError(f"Scale must be below 2 ** 31; seen {list(factors)}")
                scales = _per_axis(factors, axes)
                size = [scaled_size(int(n), s) for n, s in zip(x.shape[2:], _per_axis(factors, axes), strict=True)]
            if OutSize is not None:
                size = list(sizes_at_run((), OutSize))
        if len(size) != axes or min(size) < 1:
            raise ExecutionError(f"the new size must be {_COUNTS[axes]} of at least 1; seen {size}")
        return size, scales if self._by_scale else (None,) * axes

    _resized: ClassVar[Callable[..., Tensor]]
    """Images, their new size and growth -> the images in this size."""
    _undone: ClassVar[Callable[..., Tensor]]
    """Images, the gradient of the result, size and growth -> the gradient of the images."""

    def kernel(self, X: Tensor, OutSize: Any, SizeTensor: Any, Scale: Any) -> Tensor:
        last = is_channels_last(self.data_layout)
        x = channels_first(X, last)
        size, scales = self._sizes(x, OutSize, SizeTensor, Scale)
        if Scale is not None:
            dims = (*x.shape[:2], *size)
            require_room(self.type, prod(dims) * x.element_size(), f"a result of {list(dims)}")
        out = self._resized(x, size, scales) if x.shape[0] and x.shape[1] else x.new_empty((*x.shape[:2], *size))  # torch wants channels
        return channels_back(out, last)

    def workspace(self, X: Spec, OutSize: Spec | None, SizeTensor: tuple[Spec, ...], Scale: Spec | None, *, strided: frozenset[str]) -> Size:
        out = self.infer_shape(X, OutSize, SizeTensor, Scale)
        return copies(strided, X=X) + self._transposed_bytes(X, out) if self._needs_no_more(X) else self._workspace(X, out)

    def _gradient_workspace(
        self, X: Spec, OutSize: Spec | None, SizeTensor: tuple[Spec, ...], Scale: Spec | None, d_out: Spec, *, strided: frozenset[str]
    ) -> Size:
        return copies(strided, Out_GRAD=d_out) if self._needs_no_more(X) else self._workspace(X, d_out)

    def _needs_no_more(self, X: Spec) -> bool:
        """Tell whether the kernel needs only the two images, in either order of axes."""
        return False

    def _transposed_bytes(self, X: Spec, out: Spec) -> Size:
        """Return the bytes of copies with the channels last, for a kernel with no other workspace."""
        return 0

    def _workspace(self, X: Spec, out: Spec) -> Size:
        """Return the bytes of both images with their channels last, and of the tables between them."""
        last = is_channels_last(self.data_layout)
        old, new = channels_first_dims(X, last), channels_first_dims(out, last)
        between: Size = 0
        for axis in range(2, len(old) - 1):
            from_back, from_front = (*old[:axis], *new[axis:]), (*new[:axis], *old[axis:])
            between = between + no_less(product(from_back), product(from_front))
        tables: Size = 0
        for a, b in zip(old[2:], new[2:], strict=True):
            tables = tables + self._tables(b, a)
        return X.nbytes + out.nbytes + (tables + between) * X.known_dtype.itemsize

    def _tables(self, new: Size, old: Size) -> Size:
        """Return the count of numbers to place the pixels of two images, along one axis."""
        return 8 * new

    @gradient("X", "OutSize", "SizeTensor", "Scale", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, OutSize: Any, SizeTensor: Any, Scale: Any, d_out: Tensor) -> Tensor:
        last = is_channels_last(self.data_layout)
        x, d = channels_first(X, last), channels_first(d_out, last)
        size, scales = self._sizes(x, OutSize, SizeTensor, Scale)
        if tuple(d.shape) != (*x.shape[:2], *size):
            raise ExecutionError(f"{self.type}_grad: Out@GRAD must be {[*x.shape[:2], *size]}, as Out is; it is {list(d.shape)}")
        out = self._undone(x, d, size, scales) if x.shape[0] and x.shape[1] else torch.zeros_like(x)
        return channels_back(out, last)

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
        reject(X=f32(2, 3, 4, 5), says="the new size must be at least 1"),
        reject(X=f32(2, 3, 4, 5), out_h=-1, out_w=4, says="the new size must be at least 1"),
        reject(X=f32(2, 3, 0, 5), out_h=2, out_w=4, says="there must be a pixel"),
        reject(X=f32(2, 3, 4, 5), scale=[0.0, 1.0], says="above 0"),
        reject(X=f32(2, 3, 4, 5), scale=[0.1, 1.0], says="at least 1"),
    ]


def _per_axis(scale: Sequence[float], axes: int) -> tuple[float, ...]:
    return (scale[0],) * axes if len(scale) == 1 else tuple(scale)


_SMALL = 128
"""Torch's kernel for the nearest pixel turns images of so many rows and columns together, at most, and of several channels."""


class NearestInterpV2(Interpolation):
    """Out = for each place the nearest pixel of X, or with ``align_corners`` false the one at or before it."""

    type = "nearest_interp_v2"
    layer_function = "interpolate"
    gradient_reads_dims = ("X",)
    _spatial: ClassVar[tuple[int, ...]] = (2, 3)
    X = operand((*FLOATING, *INTEGER), doc="[batch, channels, height, width], or [batch, channels, depth, height, width], or channels last")
    interp_method = attribute(AttrType.STRING, "nearest")

    def computes(self) -> computations.NearestUpsample | None:
        scales = self._scales()
        fits = scales and all(s >= 1 and s == int(s) for s in scales) and len(scales) <= 2 and self._spatial[0] == 2
        if not fits or self.align_corners or is_channels_last(self.data_layout):
            return None
        return computations.NearestUpsample(tuple(map(int, _per_axis(scales, 2))))

    def _index(self, x: Tensor, axis: int, out: int, scale: float | None) -> Tensor:
        size = int(x.shape[axis])
        positions = torch.arange(out, device=x.device, dtype=torch.float32) * step(size, out, scale, self.align_corners)
        return (positions + 0.5 if self.align_corners else positions).long().clamp_(max=size - 1)

    def _by_torch(self, x: Tensor) -> bool:
        """Tell whether torch's kernel has these places: of one new pixel too, the first."""
        return not self.align_corners and x.is_floating_point() and x.dim() == 4

    def _needs_no_more(self, X: Spec) -> bool:
        return not self.align_corners and X.dtype in FLOATING and X.rank == 4

    def _transposed_bytes(self, X: Spec, out: Spec) -> Size:
        if is_channels_last(self.data_layout):
            return 0
        _, channels, height, width = out.known_dims
        return (1 - reaches(height + width, _SMALL + 1)) * reaches(channels, 2) * (X.nbytes + out.nbytes)

    def _resized(self, x: Tensor, size: list[int], scales: Scales) -> Tensor:
        if self._by_torch(x):
            return aten.upsample_nearest2d(x, size, *scales)
        for axis, (new, scale) in enumerate(zip(size, scales, strict=True), 2):
            x = x.index_select(axis, self._index(x, axis, new, scale))
        return x

    def _undone(self, x: Tensor, d: Tensor, size: list[int], scales: Scales) -> Tensor:
        if self._by_torch(x):
            return aten.upsample_nearest2d_backward(d, size, list(x.shape), *scales)
        for axis, (new, scale) in enumerate(zip(size, scales, strict=True), 2):
            dims = (*d.shape[:axis], x.shape[axis], *d.shape[axis + 1 :])
            d = d.new_zeros(dims).index_add_(axis, self._index(x, axis, new, scale), d)
        return d

    samples = [
        *Interpolation.samples,
        sample(X=i64(2, 3, 4, 5), out_h=7, out_w=2, align_corners=False, interp_method="nearest"),
        sample(X=f32(2, 3, 4, 5, 6), out_d=3, out_h=7, out_w=8),
        sample(X=f32(2, 3, 4, 5, 6), scale=[2.0, 0.7, 1.3], align_corners=False),
        sample(X=f32(2, 3, 4, 5, 2), SizeTensor=[i32(1, data=[6]), i32(1, data=[7]), i32(1, data=[1])], align_corners=False, data_layout="NHWC"),
    ]
    rejects = [reject(X=f32(2, 3, 4), out_h=2, out_w=2, says="X must have 4 or 5 dims"), *Interpolation.rejects]


class NearestInterp(NearestInterpV2):
    """`nearest_interp_v2` of images, with one scale for both axes; the sizes place the pixels, for any scale."""

    type = "nearest_interp"
    _spatial: ClassVar[tuple[int, ...]] = (2,)
    _by_scale: ClassVar[bool] = False
    scale = attribute(AttrType.FLOAT, 0.0, doc="the factor of height and width; 0 for none")

    def _scales(self) -> Sequence[float]:
        return one_scale(self.scale)

    samples = [
        sample(X=f32(2, 3, 4, 5), out_h=7, out_w=8),
        sample(X=f32(2, 3, 4, 5), scale=1.7, align_corners=False),
        sample(X=f32(2, 3, 4, 5), scale=2.0, align_corners=False),
        sample(X=f32(2, 4, 5, 3), scale=2.0, align_corners=False, data_layout="NHWC"),
        sample(X=f32(2, 3, 4, 5), OutSize=i32(2, data=[6, 7]), scale=2.0, align_corners=False),
        sample(X=f32(2, 3, 4, 5), Scale=f32(1, data=[1.5]), align_corners=False, differentiate=False),
    ]
    rejects = [
        reject(X=f32(2, 3, 4, 5, 6), out_h=2, out_w=2, says="X must have 4 dims"),
        reject(X=f32(2, 3, 4, 5), scale=0.1, says="at least 1"),
        reject(X=f32(2, 3, 4, 5), says="the new size must be at least 1"),
    ]


def one_scale(scale: float) -> Sequence[float]:
    """Return the scale of the older operators; 0 (or less) is none."""
    return (scale,) if scale > 0 else ()
