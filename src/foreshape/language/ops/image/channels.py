"""Operators on each channel of an image, and across channels: affine_channel, maxout, local response normalization."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import F, Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import axis_of, require, require_at_most, require_divides, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.window import IMAGE_FORMATS


class AffineChannel(Operator):
    """Out = Scale * X + Bias, with a number of each for every channel. The channels are last, unless ``data_layout`` is NCHW."""

    type = "affine_channel"
    examples = ("X",)
    X = operand(FLOATING, doc="[batch, channels, height, width], or [batch, height, width, channels]; or [batch, channels]")
    Scale = operand(FLOATING, same_type_as="X", doc="[channels]")
    Bias = operand(FLOATING, same_type_as="X", doc="[channels]")
    Out = result(doc="as X")
    data_layout = attribute(AttrType.STRING, "AnyLayout", choices=IMAGE_FORMATS)

    def infer_shape(self, X: Spec, Scale: Spec, Bias: Spec) -> Spec:
        require(X.rank in (2, 4), f"X must have 2 or 4 dims, not {X.rank}", X=None)
        axis = self._axis(X.rank)
        for slot, spec in (("Scale", Scale), ("Bias", Bias)):
            require(spec.rank == 1, f"{slot} must have 1 dim, not {spec.rank}", **{slot: None})
            require_equal(spec.known_dims[0], X.known_dims[axis], f"{slot} must have one number for each channel of X", **{slot: 0, "X": axis})
        return X.like()

    def _axis(self, rank: int) -> int:
        return 1 if self.data_layout == "NCHW" else rank - 1

    def _along(self, x: Tensor, numbers: Tensor) -> Tensor:
        """Return a number for each channel, in the dims for broadcasting with images."""
        dims = [1] * x.dim()
        dims[self._axis(x.dim())] = numbers.shape[0]
        return numbers.view(dims)

    def kernel(self, X: Tensor, Scale: Tensor, Bias: Tensor) -> Tensor:
        return torch.addcmul(self._along(X, Bias.contiguous()), X, self._along(X, Scale.contiguous()))

    def workspace(self, X: Spec, Scale: Spec, Bias: Spec) -> Size:
        return Scale.nbytes + Bias.nbytes

    def _infer_gradient(self, X: Spec, Scale: Spec, d_out: Spec) -> Any:
        check_made(Out_GRAD=(d_out, AffineChannel.infer_shape(self, X, Scale, Scale)))
        return X.like(), Scale.like(), Scale.like()

    def _gradient_workspace(self, X: Spec, Scale: Spec, d_out: Spec) -> Size:
        return X.nbytes + 2 * Scale.nbytes + 4096

    @gradient(
        "X", "Scale", "Out@GRAD", gives=("X@GRAD", "Scale@GRAD", "Bias@GRAD"), like={"Bias@GRAD": "Scale"}, infer=_infer_gradient, workspace=_gradient_workspace
    )
    def backward(self, X: Tensor, Scale: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        axes = [k for k in range(X.dim()) if k != self._axis(X.dim())]
        d_x = d_out * self._along(X, Scale.contiguous()) if requested[0] else None
        return d_x, (d_out * X).sum(axes) if requested[1] else None, d_out.sum(axes) if requested[2] else None

    samples = [
        sample(X=f32(2, 3, 4, 5), Scale=f32(3), Bias=f32(3), data_layout="NCHW"),
        sample(X=f32(2, 4, 5, 3), Scale=f32(3), Bias=f32(3)),
        sample(X=f32(2, 4, 5, 3), Scale=f32(3), Bias=f32(3), data_layout="NHWC"),
        sample(X=f32(4, 3), Scale=f32(3), Bias=f32(3)),
    ]
    rejects = [reject(X=f32(2, 3, 4), Scale=f32(3), Bias=f32(3), says="X must have 2 or 4 dims")]


class Maxout(Operator):
    """Out = the maximum of each ``groups`` consecutive channels of X."""

    type = "maxout"
    examples = ("X",)
    X = operand(FLOATING, doc="four dims, with the channels at ``axis``")
    Out = result(doc="as X with channels / groups channels", layout="row")
    groups = attribute(AttrType.INT)
    axis = attribute(AttrType.INT, 1, doc="1, or 3 or -1")

    def infer_shape(self, X: Spec) -> Spec:
        require_rank(4, X, "X")
        axis = axis_of(self.axis, 4, "axis", X=None)
        require(axis in (1, 3), f"axis must be 1, 3 or -1; seen {self.axis}", X=None)
        require(self.groups >= 1, f"groups must be at least 1; seen {self.groups}", X=None)
        dims = list(X.known_dims)
        dims[axis] = require_divides(self.groups, dims[axis], f"groups = {self.groups} must divide the channels, {dims[axis]}", X=axis)
        return X.with_dims(dims)

    def _groups(self, x: Tensor) -> tuple[Tensor, int]:
        """Return ``x`` with the channels of each group along a new axis, and this axis."""
        axis = self.axis % 4
        dims: list[int] = list(x.shape)
        dims[axis : axis + 1] = [dims[axis] // self.groups, int(self.groups)]
        return x.reshape(dims), axis + 1

    def kernel(self, X: Tensor) -> Tensor:
        x, axis = self._groups(X)
        return x.amax(axis).contiguous()

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return self.infer_shape(X).nbytes + copies(strided, X=X)

    def _infer_gradient(self, X: Spec, Out: Spec, d_out: Spec) -> Spec:
        expected = Maxout.infer_shape(self, X)
        check_made(Out=(Out, expected), Out_GRAD=(d_out, expected))
        return X.like()

    def _gradient_workspace(self, X: Spec, Out: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 8 * d_out.elements + Out.nbytes + copies(strided, X=X, Out_GRAD=d_out)

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        x, axis = self._groups(X)
        out = torch.zeros(X.shape, dtype=X.dtype, device=X.device)
        if X.numel():  # the first of equal ones has it
            self._groups(out)[0].scatter_(axis, x.max(axis, keepdim=True)[1], d_out.unsqueeze(axis))
        return out

    samples = [
        sample(X=f32(2, 6, 3, 5, distinct=True), groups=2),
        sample(X=f32(2, 3, 5, 6, distinct=True), groups=3, axis=-1),
        sample(X=f32(2, 3, 5, 4, distinct=True), groups=4, axis=3),
        sample(X=f32(0, 6, 3, 5), groups=2),
    ]
    rejects = [
        reject(X=f32(2, 6), groups=2, says="X must have 4 dims"),
        reject(X=f32(2, 6, 3, 5), groups=4, says="must divide the channels, 6"),
        reject(X=f32(2, 6, 3, 5), groups=2, axis=2, says="axis must be 1, 3 or -1"),
        reject(X=f32(2, 6, 3, 5), groups=0, says="at least 1"),
    ]


class LocalResponseNorm(Operator):
    """Out = X / MidOut^beta with MidOut = k + alpha * the sum of the squares of the ``n`` channels around each (Krizhevsky et al., 2012).

    ``alpha`` is not divided by ``n``, unlike elsewhere.
    """

    type = "lrn"
    examples = ("X",)
    X = operand(FLOATING, doc="[batch, channels, height, width], or channels last")
    Out = result(doc="as X", layout="row")
    MidOut = result(doc="as X", layout="row")
    n = attribute(AttrType.INT, 5, low=1, doc="an odd number")
    k = attribute(AttrType.FLOAT, 2.0, low=0.0)
    alpha = attribute(AttrType.FLOAT, 1e-4, low=0.0)
    beta = attribute(AttrType.FLOAT, 0.75, low=0.0)
    data_format = attribute(AttrType.STRING, "AnyLayout", choices=IMAGE_FORMATS)

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        require_rank(4, X, "X")
        require(self.n % 2 == 1, f"n must be odd; seen {self.n}", X=None)
        require_at_most(1, X.known_dims[self._axis()], "X must have at least one channel", X=self._axis())
        return X.like(), X.like()

    def _axis(self) -> int:
        return 3 if self.data_format == "NHWC" else 1

    def _around(self, x: Tensor) -> Tensor:
        """Return for each channel the sum of the ``n`` around it."""
        axis, channels = self._axis(), x.shape[self._axis()]
        half = min(self.n // 2, channels)  # beyond, there are only zeros
        pads = [0, 0] * (3 - axis) + [half, half]
        padded = F.pad(x, pads)
        out = padded.narrow(axis, 0, channels).clone(memory_format=torch.contiguous_format)
        for shift in range(1, 2 * half + 1):
            out += padded.narrow(axis, shift, channels)
        return out

    def kernel(self, X: Tensor) -> tuple[Tensor, Tensor]:
        x = X.contiguous()
        middle = self._around(x * x).mul_(self.alpha).add_(self.k)
        return middle.pow(-self.beta).mul_(x), middle

    def _padded(self, X: Spec) -> Size:
        channels = X.known_dims[self._axis()]
        return X.nbytes + 2 * min(self.n // 2, channels if isinstance(channels, int) else self.n) * _per_channel(X, self._axis())

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * X.nbytes + self._padded(X) + copies(strided, X=X)

    def _infer_gradient(self, X: Spec, Out: Spec, MidOut: Spec, d_out: Spec) -> Spec:
        expected, middle = LocalResponseNorm.infer_shape(self, X)
        check_made(Out=(Out, expected), MidOut=(MidOut, middle), Out_GRAD=(d_out, expected))
        return X.like()

    def _gradient_workspace(self, X: Spec, Out: Spec, MidOut: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 3 * X.nbytes + self._padded(X) + copies(strided, X=X, Out=Out, MidOut=MidOut, Out_GRAD=d_out)

    @gradient("X", "Out", "MidOut", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, Out: Tensor, MidOut: Tensor, d_out: Tensor) -> Tensor:
        x, middle, d = X.contiguous(), MidOut.contiguous(), d_out.contiguous()
        shared = self._around((d * Out.contiguous()).div_(middle))
        return shared.mul_(x).mul_(-2.0 * self.alpha * self.beta).addcmul_(d, middle.pow(-self.beta))

    samples = [
        sample(X=f32(2, 7, 3, 4), alpha=0.2),
        sample(X=f32(2, 5, 3, 4), n=3, k=1.5, alpha=0.3, beta=0.6),
        sample(X=f32(2, 3, 4, 5), n=3, alpha=0.3, data_format="NHWC"),
        sample(X=f32(2, 2, 3, 4), n=9, alpha=0.1),
        sample(X=f32(0, 7, 3, 4)),
    ]
    rejects = [
        reject(X=f32(2, 7, 3, 4), n=4, says="n must be odd"),
        reject(X=f32(2, 0, 3, 4), says="at least one channel"),
    ]


def _per_channel(x: Spec, axis: int) -> Size:
    """Return the bytes of one channel of all images."""
    out: Size = x.known_dtype.itemsize
    for place, size in enumerate(x.known_dims):
        out = out if place == axis else out * size
    return out
