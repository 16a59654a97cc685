"""Normalization over groups of channels, or single channels, of each example."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.kernels.window_steps import as_contiguous
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import require_divides
from foreshape.operator.samples import f32, f64, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.ops.rules.statistics import channels_of, check_per_channel, statistics_type
from foreshape.ops.rules.window import IMAGE_FORMATS, channels_back, channels_first, is_channels_last
from foreshape.spec import FLOATING, Spec, tensor
from foreshape.values.torch_proxy import Tensor, aten, torch


class GroupNorm(Operator):
    """Y = Scale * (X - mean) / sqrt(variance + epsilon) + Bias, mean and variance over each of ``groups`` groups of channels."""

    type = "group_norm"
    family = "norm"
    X = operand(FLOATING, doc="[batch, channels, ...], or the channels last by data_layout")
    Scale = operand(FLOATING, optional=True, doc="[channels]")
    Bias = operand(FLOATING, optional=True, doc="[channels]")
    Y = result(doc="as X")
    Mean = result(doc="[batch, groups]")
    Variance = result(doc="[batch, groups], biased")
    epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)
    groups = attribute(AttrType.INT, low=1)
    data_layout = attribute(AttrType.STRING, "NCHW", choices=IMAGE_FORMATS)

    def infer_shape(self, X: Spec, Scale: Spec | None, Bias: Spec | None) -> Any:
        channels, axis = channels_of(X, is_channels_last(self.data_layout))
        require_divides(self.groups, channels, f"groups = {self.groups} must divide the channels of X", X=axis)
        check_per_channel(X, channels, axis, Scale=Scale, Bias=Bias)
        rows = tensor(statistics_type(X), X.known_dims[0], self.groups)
        return X.like(), rows, rows

    def workspace(self, X: Spec, Scale: Spec | None, Bias: Spec | None, *, strided: frozenset[str]) -> Size:
        rows = X.known_dims[0] * self.groups * statistics_type(X).itemsize
        return rows + (X.nbytes if is_channels_last(self.data_layout) else copies(strided, X=X))

    def kernel(self, X: Tensor, Scale: Tensor | None, Bias: Tensor | None, *, requested: tuple[bool, ...]) -> Any:
        last = is_channels_last(self.data_layout)
        y, mean, inverse = _grouped(channels_first(X, last), Scale, Bias, self.groups, self.epsilon)
        variance = inverse.pow(-2).sub_(self.epsilon).clamp_min_(0.0) if requested[2] else None
        return channels_back(y, last), mean, variance

    def _infer_gradient(self, X: Spec, Y: Spec, Mean: Spec, Variance: Spec, Scale: Spec | None, Bias: Spec | None, d_y: Spec) -> Any:
        y, rows, _ = GroupNorm.infer_shape(self, X, Scale, Bias)
        check_made(Y=(Y, y), Mean=(Mean, rows), Variance=(Variance, rows), Y_GRAD=(d_y, y))
        return tuple(None if s is None else s.like() for s in (X, Scale, Bias))

    def _gradient_workspace(
        self, X: Spec, Y: Spec, Mean: Spec, Variance: Spec, Scale: Spec | None, Bias: Spec | None, d_y: Spec, *, strided: frozenset[str]
    ) -> Size:
        last = is_channels_last(self.data_layout)
        return _grouped_workspace(X, last) + Variance.nbytes + (2 * X.nbytes if last else copies(strided, X=X, Y_GRAD=d_y, Mean=Mean))

    @gradient(
        "X", "Y", "Mean", "Variance", "Scale", "Bias", "Y@GRAD",
        gives=("X@GRAD", "Scale@GRAD", "Bias@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(
        self, X: Tensor, Y: Tensor, Mean: Tensor, Variance: Tensor, Scale: Tensor | None, Bias: Tensor | None, d_y: Tensor, *, requested: tuple[bool, ...]
    ) -> Any:
        last = is_channels_last(self.data_layout)
        inverse = (Variance + self.epsilon).rsqrt_()
        d_x, d_scale, d_bias = _grouped_backward(channels_first(d_y, last), channels_first(X, last), Mean, inverse, Scale, self.groups, requested)
        return None if d_x is None else channels_back(d_x, last), d_scale, d_bias

    samples = [
        sample(X=f32(2, 6, 3, 5), Scale=f32(6), Bias=f32(6), groups=3),
        sample(X=f32(2, 3, 5, 6), Scale=f32(6), Bias=f32(6), groups=2, data_layout="NHWC", epsilon=1e-3),
        sample(X=f32(3, 6, 5), groups=2),
        sample(X=f32(3, 6), Bias=f32(6), groups=2),
        sample(X=f32(3, 6, 5), Scale=f32(6), groups=2),
        sample(X=f32(0, 6, 5), Scale=f32(6), Bias=f32(6), groups=2),
    ]
    rejects = [
        reject(X=f32(2, 5, 3), groups=2, says="must divide the channels"),
        reject(X=f32(2, 5, 3), groups=2**31 - 1, says="must divide the channels"),
        reject(X=f32(5), groups=1, says="X must have 2 to 5 dims"),
        reject(X=f32(2, 6, 3), Scale=f32(3), groups=2, says="one number for each channel"),
        reject(X=f32(2, 6, 3), groups=0, says="at least 1", error=SchemaError),
    ]


class InstanceNorm(Operator):
    """Y = Scale * (X - mean) / sqrt(variance + epsilon) + Bias, mean and variance over each channel of each example."""

    type = "instance_norm"
    family = "norm"
    X = operand(FLOATING, doc="[batch, channels, ...]")
    Scale = operand(FLOATING, optional=True, doc="[channels]")
    Bias = operand(FLOATING, optional=True, doc="[channels]")
    Y = result(doc="as X")
    SavedMean = result(doc="[batch * channels]")
    SavedVariance = result(doc="[batch * channels], 1 / sqrt(variance + epsilon), as PaddlePaddle saves it")
    epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)

    def infer_shape(self, X: Spec, Scale: Spec | None, Bias: Spec | None) -> Any:
        channels, axis = channels_of(X, False)
        check_per_channel(X, channels, axis, Scale=Scale, Bias=Bias)
        saved = tensor(statistics_type(X), X.known_dims[0] * channels)
        return X.like(), saved, saved

    def workspace(self, X: Spec, Scale: Spec | None, Bias: Spec | None, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X)

    def kernel(self, X: Tensor, Scale: Tensor | None, Bias: Tensor | None) -> Any:
        y, mean, inverse = _grouped(X, Scale, Bias, X.shape[1], self.epsilon)
        return y, mean.view(-1), inverse.view(-1)

    def _infer_gradient(self, X: Spec, Scale: Spec | None, Bias: Spec | None, saved_mean: Spec, saved_inverse: Spec, d_y: Spec) -> Any:
        y, saved, _ = InstanceNorm.infer_shape(self, X, Scale, Bias)
        check_made(SavedMean=(saved_mean, saved), SavedVariance=(saved_inverse, saved), Y_GRAD=(d_y, y))
        return tuple(None if s is None else s.like() for s in (X, Scale, Bias))

    def _gradient_workspace(
        self, X: Spec, Scale: Spec | None, Bias: Spec | None, saved_mean: Spec, saved_inverse: Spec, d_y: Spec, *, strided: frozenset[str]
    ) -> Size:
        return _grouped_workspace(X) + copies(strided, X=X, Y_GRAD=d_y)

    @gradient(
        "X", "Scale", "Bias", "SavedMean", "SavedVariance", "Y@GRAD",
        gives=("X@GRAD", "Scale@GRAD", "Bias@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(
        self, X: Tensor, Scale: Tensor | None, Bias: Tensor | None, SavedMean: Tensor, SavedVariance: Tensor, d_y: Tensor, *, requested: tuple[bool, ...]
    ) -> Any:
        rows = X.shape[:2]
        return _grouped_backward(d_y, X, SavedMean.reshape(rows), SavedVariance.reshape(rows), Scale, rows[1], requested)

    samples = [
        sample(X=f32(2, 3, 4, 5), Scale=f32(3), Bias=f32(3)),
        sample(X=f32(2, 3, 5), epsilon=1e-3),
        sample(X=f32(0, 3, 5), Scale=f32(3), Bias=f32(3)),
    ]
    rejects = [
        reject(X=f32(2), says="X must have 2 to 5 dims"),
        reject(X=f32(2, 3, 5), Scale=f32(5), says="one number for each channel"),
        reject(X=f32(2, 3, 5), Bias=f64(3), says="Bias must be fp32", error=TypeMismatchError),
    ]


# --- the kernels of both, over [batch, channels, ...]


def _grouped_workspace(X: Spec, last: bool = False) -> Size:
    """Return the bytes of the sums over each channel of each example in the gradient's kernel."""
    return 2 * X.known_dims[0] * X.known_dims[-1 if last else 1] * statistics_type(X).itemsize


def _grouped(x: Tensor, scale: Tensor | None, bias: Tensor | None, groups: int, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised values, and mean and inverse deviation ``[batch, groups]``."""
    batch, channels = x.shape[:2]
    scale, bias = None if scale is None else scale.contiguous(), None if bias is None else bias.contiguous()  # torch does not check
    y, mean, inverse = torch.native_group_norm(as_contiguous(x), scale, bias, batch, channels, x.shape[2:].numel(), groups, epsilon)
    if x.dtype is torch.float16 or x.dtype is torch.bfloat16:
        mean, inverse = mean.float(), inverse.float()
    return y, mean, inverse


def _grouped_backward(
    d: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor | None, groups: int, requested: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    batch, channels = x.shape[:2]
    of = x.dtype if scale is None else scale.dtype  # torch keeps the statistics as the parameters are
    mean, inverse, scale = mean.to(of).contiguous(), inverse.to(of).contiguous(), None if scale is None else scale.contiguous()
    own = [requested[0], requested[1], requested[2] and scale is not None]  # torch cannot do the last one alone
    d_x, d_scale, d_bias = aten.native_group_norm_backward(
        as_contiguous(d), as_contiguous(x), mean, inverse, scale, batch, channels, x.shape[2:].numel(), groups, own
    )
    return d_x, d_scale, d.sum([0, *range(2, d.dim())]) if requested[2] and scale is None else d_bias
