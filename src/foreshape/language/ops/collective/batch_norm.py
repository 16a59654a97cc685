"""Batch normalisation over the examples of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, FP64, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.language.operator import computations, gradient, operand
from foreshape.language.operator.attributes import as_written
from foreshape.language.operator.require import require_equal
from foreshape.language.operator.samples import f32, sample
from foreshape.language.ops.collective.messages import ALL_REDUCE, Given, Messages
from foreshape.language.ops.collective.sums import Collective
from foreshape.language.ops.nn.batch_norm import BatchNorm, check_channels, normal_order, own_order
from foreshape.language.ops.rules.window import is_channels_last
from foreshape.machine.communication.process_group import ProcessGroup

if TYPE_CHECKING:
    from torch import Tensor


class SyncBatchNorm(Collective, BatchNorm):
    """`batch_norm` with mean and variance in training over the examples of all ranks.

    Two sums of two numbers per channel pass between the ranks, one forward and one backward. A rank with an empty part of a batch is fed one example with the
    weight 0: ``Counts`` is 0 there.
    """

    type = "sync_batch_norm"
    gradient_sends = True
    Counts = operand(FLOATING, optional=True, doc="one number, 1, or 0 if nothing of this rank counts")

    def computes(self) -> computations.FrozenBatchNorm | None:
        return BatchNorm.computes(self)

    def sends(self, given: Given) -> Messages:
        """Return the messages: two fp64 numbers per channel and the number of examples.

        There are none if the moving statistics are used, or if no gradient of X is asked for.
        """
        undone = self.forward_class is not None and "X@GRAD" not in given.requested
        (moving,) = given.specs["Mean" if self.forward_class is None else "MeanOut"]
        return [] if undone or self.use_global_stats or self._tests() else [(ALL_REDUCE, (2 * moving.elements + 1) * FP64.itemsize)]

    # one operand more than in the base class
    def infer_shape(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, X: Spec, Scale: Spec | None, Bias: Spec | None, Mean: Spec, Variance: Spec, MomentumTensor: Spec | None, Counts: Spec | None
    ) -> Any:
        if Counts is not None:
            require_equal(product(Counts.known_dims), 1, "Counts must be one number", Counts=None)
        return BatchNorm.infer_shape(self, X, Scale, Bias, Mean, Variance, MomentumTensor)

    def workspace(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        X: Spec,
        Scale: Spec | None,
        Bias: Spec | None,
        Mean: Spec,
        Variance: Spec,
        MomentumTensor: Spec | None,
        Counts: Spec | None,
        *,
        strided: frozenset[str],
    ) -> Size:
        wide = X.elements * 4 if X.known_dtype.itemsize == 2 else 0  # statistics of half precision are taken in fp32
        return BatchNorm.workspace(self, X, Scale, Bias, Mean, Variance, MomentumTensor, strided=strided) + (8 * Mean.elements + 1) * FP64.itemsize + wide

    def kernel(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, X: Tensor, Scale: Tensor | None, Bias: Tensor | None, Mean: Tensor, Variance: Tensor, MomentumTensor: Tensor | None, Counts: Tensor | None, *,
        requested: tuple[bool, ...],
    ) -> Any:  # fmt: skip
        team = self._team()
        if team is None or self.use_global_stats or self._tests():
            return BatchNorm.kernel(self, X, Scale, Bias, Mean, Variance, MomentumTensor, requested=requested)
        last = is_channels_last(self.data_layout)
        x = normal_order(X, last)
        check_channels(x, Scale, Bias, Mean, Variance)
        dtype = torch.float32 if X.element_size() == 2 else X.dtype
        reserve = Mean.new_empty(0, dtype=dtype) if requested[5] else None
        count, mean, variance = self._statistics(x, Mean, Counts, team)
        if not count:  # without elements there is no mean: the moving statistics stay
            return X.clone(), Mean, Variance, torch.zeros_like(Mean, dtype=dtype), torch.zeros_like(Variance, dtype=dtype), reserve
        momentum = as_written(self.momentum) if MomentumTensor is None else MomentumTensor.item()
        y, _, _ = torch.native_batch_norm(x, Scale, Bias, mean.to(Mean.dtype), variance.to(Mean.dtype), False, 0.0, as_written(self.epsilon))
        Mean.lerp_(mean.to(Mean.dtype), 1.0 - momentum)
        followed = variance * (count / (count - 1)) if self.unbiased and count > 1 else variance
        Variance.lerp_(followed.to(Variance.dtype), 1.0 - momentum)
        return own_order(y, X, last), Mean, Variance, mean.to(dtype), variance.add_(as_written(self.epsilon)).rsqrt_().to(dtype), reserve

    def _statistics(self, x: Tensor, moving: Tensor, Counts: Tensor | None, team: ProcessGroup) -> tuple[float, Tensor, Tensor]:
        """Return the number of elements of a channel on all ranks, their mean and their biased variance, fp64.

        Sums are of differences to the moving mean, the same on all ranks, so a large mean takes no digits from the variance.
        """
        channels = x.shape[1]
        local = _own_count(x, Counts)
        sums = torch.zeros(2 * channels + 1, dtype=torch.float64, device=x.device)
        from_moving = moving.to(torch.float64)
        if local:
            mean, variance = (t.to(torch.float64) for t in aten.batch_norm_update_stats(x.float() if x.element_size() == 2 else x, None, None, 0.0))
            mean -= from_moving
            sums[0] = local
            torch.mul(mean, local, out=sums[1 : channels + 1])
            torch.mul(variance.addcmul_(mean, mean), local, out=sums[channels + 1 :])
        team.sum(sums, self.type)
        count = float(sums[0])
        if not count:
            return 0.0, from_moving, from_moving
        mean = sums[1 : channels + 1].div_(count)
        variance = sums[channels + 1 :].div_(count).addcmul_(mean, mean, value=-1.0).clamp_min_(0.0)
        return count, mean + from_moving, variance

    def _infer_sums(
        self,
        X: Spec,
        Scale: Spec | None,
        Bias: Spec | None,
        mean_out: Spec,
        variance_out: Spec,
        saved_mean: Spec,
        saved_inverse: Spec,
        Counts: Spec | None,
        d_y: Spec,
    ) -> Any:
        return BatchNorm._infer_gradient(self, X, Scale, Bias, mean_out, variance_out, saved_mean, saved_inverse, None, d_y, None, None)

    def _sums_workspace(
        self, X: Spec, Scale: Spec | None, Bias: Spec | None, mean_out: Spec, variance_out: Spec, saved_mean: Spec, saved_inverse: Spec,
        Counts: Spec | None, d_y: Spec, *, requested: tuple[bool, ...], strided: frozenset[str],
    ) -> Size:  # fmt: skip
        operands = (X, Scale, Bias, mean_out, variance_out, saved_mean, saved_inverse, None, d_y, None, None)
        return BatchNorm._gradient_workspace(self, *operands, requested=requested, strided=strided) + (8 * mean_out.elements + 1) * FP64.itemsize

    @gradient(
        "X", "Scale", "Bias", "MeanOut", "VarianceOut", "SavedMean", "SavedVariance", "Counts", "Y@GRAD",
        gives=("X@GRAD", "Scale@GRAD", "Bias@GRAD"), infer=_infer_sums, workspace=_sums_workspace,
    )  # fmt: skip
    def backward(
        self, X: Tensor, Scale: Tensor | None, Bias: Tensor | None, mean_out: Tensor, variance_out: Tensor, saved_mean: Tensor, saved_inverse: Tensor,
        Counts: Tensor | None, d_y: Tensor, *, requested: tuple[bool, ...],
    ) -> Any:  # fmt: skip
        team = self._team()
        if team is None or self.use_global_stats or self._tests():
            operands = (X, Scale, Bias, mean_out, variance_out, saved_mean, saved_inverse, None, d_y, None, None)
            return BatchNorm.backward.kernel(self, *operands, requested=requested)
        last = is_channels_last(self.data_layout)
        x = normal_order(X, last)
        d = normal_order(d_y, last, x)
        channels, local = x.shape[1], _own_count(x, Counts)
        check_channels(x, Scale, mean_out, variance_out, saved_mean, saved_inverse)
        if x.numel():
            statistics = (None, None, saved_mean, saved_inverse, True, as_written(self.epsilon))
            _, d_scale, d_bias = aten.native_batch_norm_backward(d, x, Scale, *statistics, [False, True, True])
        else:
            d_scale, d_bias = torch.zeros_like(mean_out), torch.zeros_like(mean_out)
        if not requested[0]:
            return None, d_scale, d_bias
        sums = torch.empty(2 * channels + 1, dtype=torch.float64, device=x.device)
        sums[0], sums[1 : channels + 1], sums[channels + 1 :] = local, d_scale, d_bias
        team.sum(sums, self.type)
        if not local:  # no element in the mean, no part in its gradient
            return torch.zeros_like(X), d_scale, d_bias
        inverse = saved_inverse.to(torch.float64)
        slope = inverse if Scale is None else Scale * inverse
        means = sums[1:] / -sums[0]
        # slope * (d - mean of d - (x - mean) * inverse * mean of d * normalised x)
        dims = (1, channels, *[1] * (x.dim() - 2))
        dtype = saved_mean.dtype
        terms = [t.to(dtype).reshape(dims) for t in (saved_mean, slope * inverse * means[:channels], slope, slope * means[channels:])]
        out = x - terms[0]
        out.mul_(terms[1]).addcmul_(d.to(dtype), terms[2]).add_(terms[3])
        return own_order(out.to(X.dtype), X, last), d_scale, d_bias

    samples = [  # gradients are compared in tests/communication, over ranks
        sample(X=f32(4, 3, 5, 2), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), differentiate=False),
        sample(X=f32(4, 5, 2, 3), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), data_layout="NHWC", momentum=0.7, differentiate=False),
        sample(X=f32(4, 3), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), Counts=f32(1, data=[1.0]), differentiate=False),
        sample(X=f32(4, 3, 5, 2), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), is_test=True, differentiate=False),
        sample(X=f32(4, 3, 5), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), unbiased=True, differentiate=False),
        sample(X=f32(4, 3, 5), Mean=f32(3), Variance=f32(3, low=0.5), differentiate=False),
    ]


def _own_count(x: Tensor, Counts: Tensor | None) -> float:
    """Return the number of elements of a channel counted on this rank."""
    return x.numel() // x.shape[1] * (1.0 if Counts is None else float(Counts.item()))
