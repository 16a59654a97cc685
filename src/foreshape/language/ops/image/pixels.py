"""Pixels moved to channels, channels moved to pixels, and channels in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.computations import ChannelShuffling
from foreshape.language.operator.require import require, require_divides, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.machine.kernels.shuffling import shuffled

MOST = 2**15
"""The largest factor: its square stays below 32 bits."""


class Shuffled(Operator):
    """The base of pixel_shuffle and pixel_unshuffle: r * r channels are an r by r square of pixels."""

    abstract = True
    examples = ("X",)
    X = operand(FLOATING, doc="[batch, channels, height, width], or channels last")
    data_format = attribute(AttrType.STRING, "NCHW", choices=("NCHW", "NHWC"))

    _factor_name: ClassVar[str]
    _grows: ClassVar[bool]

    def _factor(self) -> int:
        return getattr(self, self._factor_name)

    def _first(self) -> bool:
        return self.data_format == "NCHW"

    def _grown(self, x: Spec, slot: str) -> Spec:
        """Return the spec of larger images with fewer channels."""
        require_rank(4, x, slot)
        r = self._checked(slot)
        n, c, h, w = x.known_dims if self._first() else (x.known_dims[k] for k in (0, 3, 1, 2))
        words = f"the channels, {c}, must be divisible by the square of {self._factor_name}, {r * r}"
        c = require_divides(r * r, c, words, **{slot: 1 if self._first() else 3})
        return x.with_dims((n, c, h * r, w * r) if self._first() else (n, h * r, w * r, c))

    def _shrunk(self, x: Spec, slot: str) -> Spec:
        """Return the spec of smaller images with more channels."""
        require_rank(4, x, slot)
        r = self._checked(slot)
        channels = 1 if self._first() else 3
        dims = list(x.known_dims)
        for axis in range(1, 4):
            size = dims[axis]
            words = f"{self._factor_name}, {r}, must divide the dim at axis {axis}, {size}"
            dims[axis] = size * (r * r) if axis == channels else require_divides(r, size, words, **{slot: axis})
        return x.with_dims(dims)

    def _checked(self, slot: str) -> int:
        r = self._factor()
        require(1 <= r < MOST, f"{self._factor_name} must be at least 1 and below {MOST}; seen {r}", **{slot: None})
        return r

    def _dims(self, dims: Sequence[int], grow: bool) -> list[int]:
        r, channels = self._factor(), 1 if self._first() else 3
        area = [d // (r * r) if grow else d * r * r for d in dims]
        side = [d * r if grow else d // r for d in dims]
        return [dims[0], *(area[k] if k == channels else side[k] for k in (1, 2, 3))]

    def _shuffled(self, x: Tensor, grow: bool) -> Tensor:
        if not x.numel():  # torch keeps the dims of an empty tensor
            return x.new_empty(self._dims(x.shape, grow))
        shuffle = torch.pixel_shuffle if grow else torch.pixel_unshuffle
        if self._first():
            return shuffle(x, self._factor())
        return shuffle(x.permute(0, 3, 1, 2), self._factor()).permute(0, 2, 3, 1)

    def infer_shape(self, X: Spec) -> Spec:
        return self._grown(X, "X") if self._grows else self._shrunk(X, "X")

    def kernel(self, X: Tensor) -> Tensor:
        return self._shuffled(X, self._grows)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X)

    def _input_spec(self, d_out: Spec) -> Spec:
        return self._shrunk(d_out, "Out@GRAD") if self._grows else self._grown(d_out, "Out@GRAD")

    def _gradient_workspace(self, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Out_GRAD=d_out)

    @gradient("Out@GRAD", gives="X@GRAD", infer=_input_spec, workspace=_gradient_workspace)
    def backward(self, d_out: Tensor) -> Tensor:
        return self._shuffled(d_out, not self._grows)


class PixelShuffle(Shuffled):
    """Out = an image ``upscale_factor`` times as high and wide, with channels as new pixels: r*r channels become an r by r square."""

    type = "pixel_shuffle"
    X = operand(FLOATING, doc="[batch, channels * r * r, height, width], or channels last")
    Out = result(doc="[batch, channels, height * r, width * r], or channels last")
    upscale_factor = attribute(AttrType.INT, 1)
    _factor_name = "upscale_factor"
    _grows = True

    samples = [
        sample(X=f32(2, 8, 3, 5), upscale_factor=2),
        sample(X=f32(2, 3, 5, 9), upscale_factor=3, data_format="NHWC"),
        sample(X=f32(0, 4, 3, 5), upscale_factor=2),
    ]
    rejects = [
        reject(X=f32(2, 6, 3, 5), upscale_factor=2, says="must be divisible"),
        reject(X=f32(2, 6, 3, 5), upscale_factor=0, says="at least 1"),
    ]


class PixelUnshuffle(Shuffled):
    """Out = an image with its squares of ``downscale_factor`` by ``downscale_factor`` pixels as channels: the inverse of pixel_shuffle."""

    type = "pixel_unshuffle"
    X = operand(FLOATING, doc="[batch, channels, height * r, width * r], or channels last")
    Out = result(doc="[batch, channels * r * r, height, width], or channels last")
    downscale_factor = attribute(AttrType.INT, 1)
    _factor_name = "downscale_factor"
    _grows = False

    samples = [
        sample(X=f32(2, 3, 4, 10), downscale_factor=2),
        sample(X=f32(2, 6, 9, 5), downscale_factor=3, data_format="NHWC"),
        sample(X=f32(0, 3, 4, 10), downscale_factor=2),
    ]
    rejects = [
        reject(X=f32(2, 3, 5, 4), downscale_factor=2, says="must divide the dim at axis 2"),
        reject(X=f32(2, 6, 3, 5), downscale_factor=0, says="at least 1"),
        reject(X=f32(2, 6, 3, 5), downscale_factor=2**16, says="below"),
    ]


class ChannelShuffle(Operator):
    """Out = X with its channels in another order: of ``groups`` groups first the first of each, then the second of each, and so on."""

    type = "channel_shuffle"
    examples = ("X",)
    X = operand(FLOATING, doc="[batch, channels, height, width], or channels last")
    Out = result(doc="as X", layout="row")
    groups = attribute(AttrType.INT, 1)
    data_format = attribute(AttrType.STRING, "NCHW", choices=("NCHW", "NHWC"))

    def infer_shape(self, X: Spec) -> Spec:
        return self._checked(X, "X")

    def _checked(self, x: Spec, slot: str) -> Spec:
        require_rank(4, x, slot)
        require(self.groups >= 1, f"groups must be at least 1; seen {self.groups}", **{slot: None})
        axis = 1 if self.data_format == "NCHW" else 3
        require_divides(self.groups, x.known_dims[axis], f"groups = {self.groups} must divide the channels, {x.known_dims[axis]}", **{slot: axis})
        return x.like()

    def computes(self) -> ChannelShuffling | None:
        return ChannelShuffling(self.groups) if self.data_format == "NCHW" else None

    def kernel(self, X: Tensor) -> Tensor:
        return shuffled(X, self.groups, 1 if self.data_format == "NCHW" else 3)

    def _infer_gradient(self, d_out: Spec) -> Spec:
        return self._checked(d_out, "Out@GRAD")

    @gradient("Out@GRAD", gives="X@GRAD", infer=_infer_gradient, layout={"X@GRAD": "row"})
    def backward(self, d_out: Tensor) -> Tensor:
        axis = 1 if self.data_format == "NCHW" else 3
        return shuffled(d_out, d_out.shape[axis] // self.groups, axis)

    samples = [
        sample(X=f32(2, 6, 3, 5), groups=3),
        sample(X=f32(2, 3, 5, 8), groups=2, data_format="NHWC"),
        sample(X=f32(0, 6, 3, 5), groups=2),
    ]
    rejects = [
        reject(X=f32(2, 6, 3, 5), groups=4, says="must divide the channels, 6"),
        reject(X=f32(2, 6, 3, 5), groups=0, says="at least 1"),
    ]
