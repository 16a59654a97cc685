"""Piecewise activations: relu and its variants. The base of all functions of one tensor is here."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, FP32, INT32, INT64, Spec
from foreshape.core.values.torch_proxy import F, Tensor, aten, aten_into, torch
from foreshape.language.operator import OWN, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import require, require_equal
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.operator.temporaries import copies

SHARED = {"X@GRAD": "Out@GRAD"}
"""The gradient may take over the memory of Out@GRAD."""
LIKE_OUT = {"X@GRAD": "Out"}


def times(fresh: Tensor, factor: Tensor, into: Tensor | None) -> Tensor:
    """Return ``fresh * factor``, in ``into`` if given, and otherwise in ``fresh``, the kernel's own new tensor."""
    return torch.mul(fresh, factor, out=fresh if into is None else into)


class Unary(Operator):
    """The base of the elementwise functions of one tensor."""

    abstract = True
    family = "activation"
    per_element = True
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="as X", may_share="X")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()


class FloatingFunction(Unary):
    """The base of functions that make fp32 of integers."""

    abstract = True
    X = operand((*FLOATING, INT32, INT64), doc="any shape")
    Out = result(doc="as X, fp32 for integers", may_share="X")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like() if X.dtype is None or X.dtype.is_floating or X.dtype.is_complex else X.with_dtype(FP32)


USUAL = [sample(X=f32(2, 3, 5, distinct=True)), sample(X=f32(0, 4)), sample(X=f32())]
"""Samples for every function of one tensor."""
OF_INTEGERS = [sample(X=i64(2, 3, low=1), differentiate=False)]
"""A sample for `FloatingFunction`."""


class Relu(Unary):
    """Out = max(X, 0), elementwise."""

    type = "relu"

    def computes(self) -> computations.Relu:
        return computations.Relu()

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.relu(X) if into is None else torch.relu_(into)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT, may_share=SHARED)
    def backward(self, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.threshold_backward(d_out, Out, 0) if into is None else aten_into.threshold_backward(d_out, Out, 0, into=into)

    samples = USUAL


class Relu6(Unary):
    """Out = min(max(X, 0), threshold)."""

    type = "relu6"
    threshold = attribute(AttrType.FLOAT, 6.0)

    def computes(self) -> computations.Activation | None:
        return computations.Activation("hardtanh", (0.0, self.threshold)) if self.threshold > 0 else None

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return F.hardtanh(X, 0.0, self.threshold, into is not None) if self.threshold > 0 else torch.clamp(X, 0.0, self.threshold, out=into)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT, may_share=SHARED)
    def backward(self, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        if into is None:
            return aten.hardtanh_backward(d_out, Out, 0.0, self.threshold)
        return aten_into.hardtanh_backward(d_out, Out, 0.0, self.threshold, into=into)

    samples = [*USUAL, sample(X=f32(3, 5, low=-9.0, high=9.0, distinct=True)), sample(X=f32(3, 5, distinct=True), threshold=1.0)]


class LeakyRelu(Unary):
    """Out = X where X > 0, else alpha * X; the slope at 0 is 1, as PaddlePaddle has it, or with ``open`` alpha."""

    type = "leaky_relu"
    alpha = attribute(AttrType.FLOAT, 0.02, doc="the slope below 0")
    open = attribute(AttrType.BOOLEAN, False, since=OWN, doc="the slope at 0 is alpha, as of torch's leaky_relu")

    def computes(self) -> computations.Activation:
        return computations.Activation("leaky_relu", (self.alpha,))

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return F.leaky_relu(X, self.alpha, into is not None)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        if self.open:
            return aten.leaky_relu_backward(d_out, X, self.alpha, False)
        limits = torch.finfo(X.dtype)
        shifted = torch.add(X, limits.tiny if X.itemsize > 2 else limits.smallest_normal * limits.eps)  # so torch's kernel takes 0 as positive
        return aten_into.leaky_relu_backward(d_out, shifted, self.alpha, False, into=shifted)

    samples = [*USUAL, sample(X=f32(3, 5, distinct=True), alpha=0.3), sample(X=f32(3, 5, distinct=True), alpha=0.3, open=True)]


class Elu(Unary):
    """Out = X where X > 0, else alpha * (exp(X) - 1) (Clevert et al., 2015)."""

    type = "elu"
    alpha = attribute(AttrType.FLOAT, 1.0)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return F.elu(X, self.alpha, into is not None)

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        if into is None:
            return aten.elu_backward(d_out, self.alpha, 1.0, 1.0, False, X)
        return aten_into.elu_backward(d_out, self.alpha, 1.0, 1.0, False, X, into=into)

    samples = [*USUAL, sample(X=f32(3, 5, distinct=True), alpha=0.3), sample(X=f32(3, 5, distinct=True), alpha=-0.5)]


class Celu(Unary):
    """Out = X where X > 0, else alpha * (exp(X / alpha) - 1) (Barron, 2017)."""

    type = "celu"
    alpha = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(self, X: Spec) -> Spec:
        require(self.alpha != 0.0, "alpha must not be 0")
        return X.like()

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        alpha = self.alpha
        return aten.elu(X, alpha, 1.0, 1.0 / alpha) if into is None else aten_into.elu(X, alpha, 1.0, 1.0 / alpha, into=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        alpha = self.alpha
        if into is None:
            return aten.elu_backward(d_out, alpha, 1.0, 1.0 / alpha, False, X)
        return aten_into.elu_backward(d_out, alpha, 1.0, 1.0 / alpha, False, X, into=into)

    samples = [*USUAL, sample(X=f32(3, 5, distinct=True), alpha=0.3), sample(X=f32(3, 5, distinct=True), alpha=-0.5)]
    rejects = [reject(X=f32(2), alpha=0.0, says="alpha must not be 0")]


class Selu(Unary):
    """Out = scale * X where X > 0, else scale * alpha * (exp(X) - 1) (Klambauer et al., 2017)."""

    type = "selu"
    scale = attribute(AttrType.FLOAT, 1.0507009873554804934193349852946, low=0.0)
    alpha = attribute(AttrType.FLOAT, 1.6732632423543772848170429916717, low=0.0)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return aten.elu(X, self.alpha, self.scale, 1.0) if into is None else aten_into.elu(X, self.alpha, self.scale, 1.0, into=into)

    def _gradient_workspace(self, Out: Spec, d_out: Spec) -> Size:
        return Out.nbytes + Out.elements

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT, may_share=SHARED, workspace=_gradient_workspace)
    def backward(self, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        return times((Out + self.scale * self.alpha).masked_fill_(Out > 0, self.scale), d_out, into)

    samples = [*USUAL, sample(X=f32(3, 5, distinct=True), alpha=0.7, scale=2.0)]


class HardTanh(Unary):
    """Out = X clipped at ``t_min`` and ``t_max``."""

    type = "brelu"
    layer_function = "hard_tanh"
    t_min = attribute(AttrType.FLOAT, 0.0)
    t_max = attribute(AttrType.FLOAT, 24.0)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.clamp(X, self.t_min, self.t_max, out=into)

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        if into is None:
            return aten.hardtanh_backward(d_out, X, self.t_min, self.t_max)
        return aten_into.hardtanh_backward(d_out, X, self.t_min, self.t_max, into=into)

    samples = [*USUAL, sample(X=f32(3, 5, distinct=True), t_min=-0.9, t_max=0.7)]


class HardSigmoid(Unary):
    """Out = slope * X + offset, clipped at 0 and 1."""

    type = "hard_sigmoid"
    slope = attribute(AttrType.FLOAT, 0.2)
    offset = attribute(AttrType.FLOAT, 0.5)

    def computes(self) -> computations.Activation:
        return computations.Activation("hardsigmoid", (self.slope, self.offset))

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        return torch.mul(X, self.slope, out=into).add_(self.offset).clamp_(0.0, 1.0)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like=LIKE_OUT, may_share=SHARED)
    def backward(self, Out: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        d = aten.hardtanh_backward(d_out, Out, 0.0, 1.0) if into is None else aten_into.hardtanh_backward(d_out, Out, 0.0, 1.0, into=into)
        return d.mul_(self.slope)

    samples = [
        *USUAL,
        sample(X=f32(3, 5, low=-9.0, high=9.0, distinct=True), slope=0.15, offset=0.4),
        sample(X=f32(3, 5, low=-9.0, high=9.0, distinct=True), slope=1 / 6),
    ]


class HardSwish(Unary):
    """Out = X * min(max(X + offset, 0), threshold) / scale (Howard et al., 2019)."""

    type = "hard_swish"
    threshold = attribute(AttrType.FLOAT, 6.0)
    scale = attribute(AttrType.FLOAT, 6.0)
    offset = attribute(AttrType.FLOAT, 3.0)

    def computes(self) -> computations.Activation | None:
        return computations.Activation("hardswish") if self._is_usual() else None

    def _is_usual(self) -> bool:
        return self.threshold == 6.0 and self.scale == 6.0 and self.offset == 3.0

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        if self._is_usual():
            return F.hardswish(X, into is not None)
        return times(torch.add(X, self.offset).clamp_(0.0, self.threshold), X, into).div_(self.scale)

    def workspace(self, X: Spec) -> Size:
        return 0 if self._is_usual() else X.nbytes

    def _gradient_workspace(self, X: Spec, d_out: Spec) -> Size:
        return 0 if self._is_usual() else 2 * X.nbytes + X.elements

    @gradient("X", "Out@GRAD", gives="X@GRAD", may_share=SHARED, workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        if self._is_usual():
            return aten.hardswish_backward(d_out, X) if into is None else aten_into.hardswish_backward(d_out, X, into=into)
        gate = X + self.offset
        slope = torch.where((gate > 0) & (gate < self.threshold), X, 0.0)
        return times(gate.clamp_(0.0, self.threshold).add_(slope), d_out, into).div_(self.scale)

    samples = [
        *USUAL,
        sample(X=f32(3, 5, low=-9.0, high=9.0, distinct=True)),
        sample(X=f32(3, 5, low=-9.0, high=9.0, distinct=True), threshold=4.0, offset=1.5, scale=5.0),
    ]


class Prelu(Operator):
    """Out = X where X > 0, else Alpha * X.

    The learned slope is one for all, one per channel, or one per element (He et al., 2015).
    """

    type = "prelu"
    family = "activation"
    examples = ("X",)
    X = operand(FLOATING, doc="any shape; with channels at axis 1 (NCHW) or last (NHWC)")
    Alpha = operand(FLOATING, same_type_as="X", doc="one number; as many numbers as channels; or [1, *the dims of X but the first]")
    Out = result(doc="as X")
    mode = attribute(AttrType.STRING, "all", choices=("all", "channel", "element"))
    data_format = attribute(AttrType.STRING, "NCHW")

    def infer_shape(self, X: Spec, Alpha: Spec) -> Spec:
        check_slopes(self.mode, self._channel_axis(X.rank), X, Alpha)
        return X.like()

    def _channel_axis(self, rank: int) -> int:
        return 1 if self.data_format.startswith("NC") else rank - 1

    def _slopes(self, X: Tensor, Alpha: Tensor) -> Tensor:
        if self.mode == "all":
            return Alpha.reshape(())
        if self.mode == "element":
            return Alpha.reshape(X.shape[1:])
        axis = self._channel_axis(X.dim())
        return Alpha.reshape((-1,) + (1,) * (X.dim() - 1 - axis))

    def kernel(self, X: Tensor, Alpha: Tensor) -> Tensor:
        if self.mode == "element" or self._channel_axis(X.dim()) != 1:
            out = self._slopes(X, Alpha) * X
            return torch.where(X > 0, X, out, out=out)
        return torch.prelu(X, Alpha.reshape(-1))

    def workspace(self, X: Spec, Alpha: Spec, *, strided: frozenset[str]) -> Size:
        return X.elements + copies(strided, X=X)

    def _gradient_workspace(self, X: Spec, Alpha: Spec, d_out: Spec, *, requested: tuple[bool, ...]) -> Size:
        return X.elements + (X.nbytes if requested[1] else 0)

    @gradient("X", "Alpha", "Out@GRAD", gives=("X@GRAD", "Alpha@GRAD"), workspace=_gradient_workspace)
    def backward(self, X: Tensor, Alpha: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        slopes = self._slopes(X, Alpha)
        negative = X <= 0
        d_x = d_out * slopes if requested[0] else None
        if d_x is not None:
            torch.where(negative, d_x, d_out, out=d_x)
        if not requested[1]:
            return d_x, None
        return d_x, (d_out * X).masked_fill_(negative.logical_not_(), 0.0).sum_to_size(slopes.shape).reshape(Alpha.shape)

    samples = [
        sample(X=f32(2, 3, 5, distinct=True), Alpha=f32(1)),
        sample(X=f32(2, 3, 5, distinct=True), Alpha=f32(3), mode="channel"),
        sample(X=f32(2, 3, 5, distinct=True), Alpha=f32(1, 3, 1), mode="channel"),
        sample(X=f32(2, 3, 5, distinct=True), Alpha=f32(5), mode="channel", data_format="NHWC"),
        sample(X=f32(2, 3, 5, distinct=True), Alpha=f32(1, 3, 5), mode="element"),
        sample(X=f32(0, 3, 5), Alpha=f32(3), mode="channel"),
    ]
    rejects = [
        reject(X=f32(2, 3, 5), Alpha=f32(5), mode="channel", says="one number per channel"),
        reject(X=f32(2, 3, 5), Alpha=f32(3, 4), mode="element", says="one number per element"),
        reject(X=f32(2), Alpha=f32(2), mode="channel", says="at least 2 dims"),
    ]


def check_slopes(mode: str, channel_axis: int, x: Spec, alpha: Spec) -> None:
    """Require as many numbers in Alpha of `Prelu` as its mode says."""
    if mode == "all":
        require_equal(alpha.elements, 1, "Alpha must hold one number in mode all", Alpha=None)
        return
    require(x.rank >= 2, f"X must have at least 2 dims in mode {mode}, not {x.rank}", X=None)
    if mode == "channel":
        channels = x.known_dims[channel_axis]
        require_equal(alpha.elements, channels, "Alpha must hold one number per channel of X in mode channel", Alpha=None, X=channel_axis)
    else:
        require_equal(alpha.elements, product(x.known_dims[1:]), "Alpha must hold one number per element of a row of X in mode element", Alpha=None, X=None)
