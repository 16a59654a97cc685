"""Regions of images pooled to one size: roi_align, roi_pool, psroi_pool."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, INDEX, INT64, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require, require_equal, require_rank
from foreshape.language.operator.samples import f32, i32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.ragged_rules import divide
from foreshape.language.ops.rules.window import image_of
from foreshape.machine.kernels.regions import (
    AT_ONCE,
    BUDGET,
    MOST_POINTS,
    aligned_weights,
    in_parts,
    listed,
    maxima,
    maxima_backward,
    means,
    means_backward,
    own_means,
    own_means_backward,
    whole_weights,
)
from foreshape.machine.process.this_run import require_room


class RegionPooling(Operator):
    """The base of the poolings of regions: their images and sizes."""

    abstract = True
    examples = ("X", "ROIs", "RoisNum")
    X = operand(FLOATING, doc="[batch, channels, height, width]")
    ROIs = operand(FLOATING, same_type_as="X", doc="[regions, 4]: left, top, right, bottom; a sequence for each image, or with RoisNum")
    RoisNum = operand(INDEX, optional=True, doc="[batch]: the number of regions of each image; needed unless ROIs is ragged")
    Out = result(doc="[regions, channels, pooled_height, pooled_width]", layout="row")
    pooled_height = attribute(AttrType.INT, 1, low=1)
    pooled_width = attribute(AttrType.INT, 1, low=1)
    spatial_scale = attribute(AttrType.FLOAT, 1.0, doc="the factor from regions to pixels of X")

    def _checked(self, X: Spec, ROIs: Spec, RoisNum: Spec | None) -> tuple[Size, Size]:
        """Return the channels of X and the number of regions."""
        batch, channels, _ = image_of(X, 4, False, "X")
        require_rank(2, ROIs, "ROIs")
        require_equal(ROIs.known_dims[1], 4, "a region must be four numbers: dim 1 of ROIs must be 4", ROIs=1)
        if RoisNum is not None:
            require(RoisNum.rank == 1, f"RoisNum must have 1 dim, not {RoisNum.rank}", RoisNum=None)
            require_equal(RoisNum.known_dims[0], batch, "RoisNum must have one number for each image of X", RoisNum=0, X=0)
        elif ROIs.lod is None:
            fail("ROIs must be ragged, or RoisNum must say how many regions each image has", SchemaError, ROIs=None)
        else:
            require_equal(ROIs.lod.counts[-1], batch, "ROIs must have one sequence for each image of X", ROIs=0, X=0)
        return channels, ROIs.known_dims[0]

    def _pooled(self, X: Spec, channels: Size, regions: Size) -> Spec:
        return X.dense((regions, channels, self.pooled_height, self.pooled_width))

    def _image_of_each(self, X: Tensor, ROIs: Tensor, RoisNum: Tensor | None, sequences: Offsets | None) -> Tensor:
        """Return the number of the image for each region. Raises `ExecutionError` if the counts do not fit the regions and the images."""
        if RoisNum is not None:
            counts = RoisNum.long()
        elif sequences is not None:
            counts = sequences.lengths
        else:
            raise ExecutionError(f"{self.type}: ROIs has no sequences, and RoisNum is not given")
        batch, regions = X.shape[0], ROIs.shape[0]
        if counts.shape[0] != batch or not divide(counts, regions):
            first_counts = [int(n) for n in counts[:8]]
            raise ExecutionError(f"{self.type}: the {regions} regions must be divided among the {batch} images of X; seen {first_counts}")
        return torch.repeat_interleave(counts)

    def _ends(self, ROIs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        left, top, right, bottom = (ROIs if ROIs.element_size() > 2 else ROIs.float()).unbind(1)
        return left, top, right, bottom

    def _list_bytes(self, X: Spec, ROIs: Spec) -> Size:
        """Return the bytes of the tables of weights, and of the pixels listed at once."""
        _, _, (height, width) = image_of(X, 4, False, "X")
        regions = ROIs.known_dims[0]
        tables = regions * (self.pooled_height * height + self.pooled_width * width) * 64
        return tables + (BUDGET + self.pooled_height * height * self.pooled_width * width) * 40 + regions * 256

    samples = []
    rejects = [
        reject(X=f32(2, 3, 9, 8), ROIs=f32(5, 5), RoisNum=i32(2, data=[2, 3]), says="a region must be four numbers"),
        reject(X=f32(2, 3, 9, 8), ROIs=f32(5, 4).ragged((2, 2, 1)), says="one sequence for each image"),
        reject(X=f32(2, 3, 9, 8), ROIs=f32(5, 4), says="ROIs must be ragged, or RoisNum", error=SchemaError),
    ]


REGIONS = [0.3, 1.2, 5.1, 6.6, 2.0, 0.4, 7.9, 3.3, 1.1, 1.4, 1.3, 1.8, -2.2, 3.1, 4.4, 12.6, 3.3, 4.6, 6.2, 5.7]
"""Five regions of an image of nine by eight: large, flat, less than a pixel, partly outside, small."""

LARGER = [*REGIONS[:8], 1.1, 1.4, 4.3, 4.8, *REGIONS[12:16], 3.3, 2.6, 6.2, 5.7]
"""The same without regions of less than a pixel."""


_POINT_BYTES = 48
"""The bytes of places, pixels, shares and masks while the weights of a point are made."""


class RoiAlign(RegionPooling):
    """Out = for each part of each region the mean of evenly spaced points, each interpolated between its four pixels (He et al., 2017).

    A region is at least one pixel high and wide unless ``aligned``, with which coordinates are half a pixel less. A point more than one pixel outside the image
    is 0. (If an ``aligned`` region is smaller than a pixel, PaddlePaddle has the gradient of a larger one.)
    """

    type = "roi_align"
    gradient_reads_dims = ("X",)
    sampling_ratio = attribute(AttrType.INT, -1, doc="the number of points of a part along each axis; if not above 0, its length in pixels, rounded up")
    aligned = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec, ROIs: Spec, RoisNum: Spec | None) -> Spec:
        return self._pooled(X, *self._checked(X, ROIs, RoisNum))

    def _weights(self, X: Tensor, ROIs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of rows and of columns, ``[regions, parts, pixels]`` each."""
        shift = 0.5 if self.aligned else 0.0
        left, top, right, bottom = (e * self.spatial_scale - shift for e in self._ends(ROIs))
        out: list[Tensor] = []
        for start, end, count, pixels in ((top, bottom, self.pooled_height, X.shape[2]), (left, right, self.pooled_width, X.shape[3])):
            size = end - start
            size = size if self.aligned else size.clamp(min=1.0)
            longest = float(size.max()) if size.numel() else 0.0
            points = longest + count if self.sampling_ratio <= 0 else float(self.sampling_ratio) * count
            if not points * size.shape[0] < MOST_POINTS:
                raise ExecutionError(f"{self.type}: {size.shape[0]} regions of up to {longest:g} pixels have too many points to be looked at")
            require_room(self.type, int(points) * size.shape[0] * _POINT_BYTES, f"reading {size.shape[0]} regions at {int(points):,} points each way")
            out.append(aligned_weights(start, size, count, self.sampling_ratio, int(pixels)).to(X.dtype))
        return out[0], out[1]

    def kernel(self, X: Tensor, ROIs: Tensor, RoisNum: Tensor | None, *, offsets: list[Any]) -> Tensor:
        image = self._image_of_each(X, ROIs, RoisNum, offsets[1])
        rows, columns = self._weights(X, ROIs)
        return means(X, image, listed(rows), listed(columns))

    def workspace(self, X: Spec, ROIs: Spec, RoisNum: Spec | None, *, strided: frozenset[str]) -> Size:
        out = self.infer_shape(X, ROIs, RoisNum)
        return X.nbytes + out.nbytes + self._list_bytes(X, ROIs) + copies(strided, X=X, ROIs=ROIs)

    def _infer_gradient(self, X: Spec, ROIs: Spec, RoisNum: Spec | None, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, RoiAlign.infer_shape(self, X, ROIs, RoisNum)))
        return X.like()

    def _gradient_workspace(self, X: Spec, ROIs: Spec, RoisNum: Spec | None, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return X.nbytes + 2 * d_out.nbytes + self._list_bytes(X, ROIs) + copies(strided, ROIs=ROIs, Out_GRAD=d_out)

    @gradient("X", "ROIs", "RoisNum", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, ROIs: Tensor, RoisNum: Tensor | None, d_out: Tensor, *, offsets: list[Any]) -> Tensor:
        image = self._image_of_each(X, ROIs, RoisNum, offsets[1])
        rows, columns = self._weights(X, ROIs)
        return means_backward(X, image, listed(rows), listed(columns), d_out)

    samples = [
        sample(X=f32(2, 3, 9, 8), ROIs=f32(5, 4, data=REGIONS), RoisNum=i32(2, data=[2, 3]), pooled_height=2, pooled_width=3),
        sample(X=f32(2, 3, 9, 8), ROIs=f32(5, 4, data=LARGER).ragged((4, 1)), pooled_height=3, pooled_width=2, aligned=True, spatial_scale=0.7),
        sample(X=f32(2, 3, 9, 8), ROIs=f32(5, 4, data=REGIONS), RoisNum=i32(2, data=[0, 5]), pooled_height=2, sampling_ratio=2),
        sample(X=f32(2, 3, 9, 8), ROIs=f32(0, 4), RoisNum=i32(2, data=[0, 0]), pooled_height=2),
    ]
    rejects = RegionPooling.rejects


class RoiPool(RegionPooling):
    """Out = for each part of each region the maximum of its pixels; Argmax = its place in its image, ``row * width + column``.

    Regions are rounded to pixels, both ends are inside, and parts reach from pixel to pixel, so they may share some. A part without pixels has 0, and -1 as its
    place (Girshick, 2015).
    """

    type = "roi_pool"
    Argmax = result(doc="int64, as Out", layout="row")

    def infer_shape(self, X: Spec, ROIs: Spec, RoisNum: Spec | None) -> tuple[Spec, Spec]:
        out = self._pooled(X, *self._checked(X, ROIs, RoisNum))
        return out, out.with_dtype(INT64)

    def _weights(self, X: Tensor, ROIs: Tensor) -> tuple[Tensor, Tensor]:
        left, top, right, bottom = (_rounded(e * self.spatial_scale) for e in self._ends(ROIs))
        out: list[Tensor] = []
        for start, end, count, pixels in ((top, bottom, self.pooled_height, X.shape[2]), (left, right, self.pooled_width, X.shape[3])):
            part = in_parts((end - start + 1).clamp(min=1), count)
            positions = torch.arange(count, dtype=part.dtype, device=part.device)
            first, behind = (positions * part[:, None]).floor() + start[:, None], ((positions + 1) * part[:, None]).ceil() + start[:, None]
            out.append(whole_weights(first, behind, int(pixels)).to(X.dtype))
        return out[0], out[1]

    def kernel(self, X: Tensor, ROIs: Tensor, RoisNum: Tensor | None, *, offsets: list[Any]) -> tuple[Tensor, Tensor]:
        image = self._image_of_each(X, ROIs, RoisNum, offsets[1])
        rows, columns = self._weights(X, ROIs)
        return maxima(X, image, listed(rows), listed(columns))

    def workspace(self, X: Spec, ROIs: Spec, RoisNum: Spec | None, *, strided: frozenset[str]) -> Size:
        _, channels, (height, width) = image_of(X, 4, False, "X")
        read_bytes = (BUDGET + self.pooled_height * height * self.pooled_width * width * channels) * X.known_dtype.itemsize
        parts = (BUDGET + self.pooled_height * self.pooled_width * channels) * 32
        return X.nbytes + 2 * read_bytes + parts + self._list_bytes(X, ROIs) + copies(strided, X=X, ROIs=ROIs)

    def _infer_gradient(self, X: Spec, ROIs: Spec, RoisNum: Spec | None, Argmax: Spec, d_out: Spec) -> Spec:
        out, places = RoiPool.infer_shape(self, X, ROIs, RoisNum)
        check_made(Argmax=(Argmax, places), Out_GRAD=(d_out, out))
        return X.like()

    def _gradient_workspace(self, X: Spec, ROIs: Spec, RoisNum: Spec | None, Argmax: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 40 * d_out.elements + ROIs.known_dims[0] * 64 + copies(strided, Argmax=Argmax, Out_GRAD=d_out)

    @gradient("X", "ROIs", "RoisNum", "Argmax", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, ROIs: Tensor, RoisNum: Tensor | None, Argmax: Tensor, d_out: Tensor, *, offsets: list[Any]) -> Tensor:
        image = self._image_of_each(X, ROIs, RoisNum, offsets[1])
        area = X.shape[2] * X.shape[3]
        if Argmax.numel() and int(Argmax.max()) >= area:
            raise ExecutionError(f"{self.type}_grad: Argmax must be below {area}, the pixels of an image; seen {int(Argmax.max())}")
        return maxima_backward(X, image, Argmax, d_out)

    samples = [
        sample(X=f32(2, 3, 9, 8, distinct=True), ROIs=f32(5, 4, data=REGIONS), RoisNum=i32(2, data=[2, 3]), pooled_height=2, pooled_width=3),
        sample(X=f32(2, 3, 9, 8, distinct=True), ROIs=f32(5, 4, data=REGIONS).ragged((4, 1)), pooled_height=3, pooled_width=2, spatial_scale=0.7),
    ]
    rejects = RegionPooling.rejects


class PositionSensitiveRoiPool(RegionPooling):
    """Out = for each part of each region the mean of its pixels, each part in channels of its own.

    Part (i, j) of channel c of the result is in channel ``(c * pooled_height + i) * pooled_width + j`` (Dai et al., 2016). Regions are rounded, then scaled,
    and reach one pixel further; parts reach from pixel to pixel. A part without pixels has 0.
    """

    type = "psroi_pool"
    X = operand(FLOATING, doc="[batch, output_channels * pooled_height * pooled_width, height, width]")
    Out = result(doc="[regions, output_channels, pooled_height, pooled_width]", layout="row")
    output_channels = attribute(AttrType.INT, low=1)

    def infer_shape(self, X: Spec, ROIs: Spec, RoisNum: Spec | None) -> Spec:
        channels, regions = self._checked(X, ROIs, RoisNum)
        required = self.output_channels * self.pooled_height * self.pooled_width
        require_equal(channels, required, f"the channels of X must be output_channels times pooled_height times pooled_width, {required}", X=1)
        return self._pooled(X, self.output_channels, regions)

    def _weights(self, X: Tensor, ROIs: Tensor) -> tuple[Tensor, Tensor]:
        left, top, right, bottom = self._ends(ROIs)
        out: list[Tensor] = []
        for first, last, count, pixels in ((top, bottom, self.pooled_height, X.shape[2]), (left, right, self.pooled_width, X.shape[3])):
            start, end = _rounded(first) * self.spatial_scale, (_rounded(last) + 1) * self.spatial_scale
            part = in_parts((end - start).clamp(min=0.1), count)[:, None]
            positions = torch.arange(count, dtype=part.dtype, device=part.device)
            out.append(whole_weights((positions * part + start[:, None]).floor(), ((positions + 1) * part + start[:, None]).ceil(), int(pixels)).to(X.dtype))
        return out[0], out[1]

    def kernel(self, X: Tensor, ROIs: Tensor, RoisNum: Tensor | None, *, offsets: list[Any]) -> Tensor:
        image = self._image_of_each(X, ROIs, RoisNum, offsets[1])
        return own_means(X.contiguous(), image, *self._weights(X, ROIs), self.output_channels)

    def _needs(self, X: Spec, ROIs: Spec, out: Spec) -> Size:
        """Return the bytes of the tables of weights, of sums along rows for a few regions, and of the images and products in another order."""
        _, _, (height, width) = image_of(X, 4, False, "X")
        sums = product(out.known_dims[1:]) * (height + width)
        tables = ROIs.known_dims[0] * (self.pooled_height * height + self.pooled_width * width) * 16
        return tables + (AT_ONCE * 3 * sums + 2 * product(X.known_dims[1:])) * X.known_dtype.itemsize + ROIs.known_dims[0] * 256 + 2 * out.nbytes

    def workspace(self, X: Spec, ROIs: Spec, RoisNum: Spec | None, *, strided: frozenset[str]) -> Size:
        return self._needs(X, ROIs, self.infer_shape(X, ROIs, RoisNum)) + copies(strided, X=X, ROIs=ROIs)

    def _infer_gradient(self, X: Spec, ROIs: Spec, RoisNum: Spec | None, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, PositionSensitiveRoiPool.infer_shape(self, X, ROIs, RoisNum)))
        return X.like()

    def _gradient_workspace(self, X: Spec, ROIs: Spec, RoisNum: Spec | None, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return self._needs(X, ROIs, d_out) + copies(strided, ROIs=ROIs, Out_GRAD=d_out)

    @gradient("X", "ROIs", "RoisNum", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, ROIs: Tensor, RoisNum: Tensor | None, d_out: Tensor, *, offsets: list[Any]) -> Tensor:
        image = self._image_of_each(X, ROIs, RoisNum, offsets[1])
        return own_means_backward(X, image, *self._weights(X, ROIs), d_out)

    samples = [
        sample(X=f32(2, 12, 9, 8), ROIs=f32(5, 4, data=REGIONS), RoisNum=i32(2, data=[2, 3]), pooled_height=2, pooled_width=3, output_channels=2),
        sample(X=f32(2, 12, 9, 8), ROIs=f32(5, 4, data=REGIONS).ragged((4, 1)), pooled_height=3, pooled_width=2, output_channels=2, spatial_scale=0.7),
    ]
    rejects = [
        reject(X=f32(2, 11, 9, 8), ROIs=f32(5, 4), RoisNum=i32(2, data=[2, 3]), pooled_height=2, pooled_width=3, output_channels=2, says="the channels of X"),
        reject(X=f32(2, 1, 9, 8), ROIs=f32(5, 4), output_channels=1, says="ROIs must be ragged, or RoisNum", error=SchemaError),
    ]


def _rounded(x: Tensor) -> Tensor:
    """Return ``x`` rounded to whole numbers, halves away from 0."""
    return (x.abs() + 0.5).floor().copysign(x)
