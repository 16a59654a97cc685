"""Normalization over a batch, with an activation in the same operator too, as rewritten programs have it."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, Spec, tensor
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator import OWN, AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.attributes import as_written
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.require import require, require_equal
from foreshape.language.operator.samples import f32, f64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.traits import WHOLE, ShardingRule, axis_names
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.statistics import channels_of, check_per_channel, statistics_type
from foreshape.language.ops.rules.window import IMAGE_FORMATS, channels_back, channels_first, is_channels_last
from foreshape.machine.kernels.onednn import thread_count


class BatchNorm(Operator):
    """Y = Scale * (X - mean) / sqrt(variance + epsilon) + Bias, for each channel.

    In training the mean and the (biased) variance are the batch's, and the moving ones follow. ``MeanOut = momentum * Mean + (1 - momentum) * mean``, and
    likewise the variance. With ``is_test`` (unless trainable_statistics) or ``use_global_stats`` the moving ones are used, and stay. Scale is 1 by default,
    Bias 0.
    """

    type = "batch_norm"
    family = "norm"
    over_ranks = "sync_batch_norm"
    moving = ("MeanOut", "VarianceOut")
    X = operand(FLOATING, doc="[batch, channels, ...], or the channels last by data_layout")
    Scale = operand(FLOATING, optional=True, doc="[channels]")
    Bias = operand(FLOATING, optional=True, doc="[channels]")
    Mean = operand(FLOATING, doc="[channels], the moving mean")
    Variance = operand(FLOATING, doc="[channels], the moving variance")
    MomentumTensor = operand(FLOATING, optional=True, doc="one number, instead of momentum")
    Y = result(doc="as X")
    MeanOut = result(updates="Mean")
    VarianceOut = result(updates="Variance")
    SavedMean = result(doc="[channels], the mean used; nothing (no dims) with is_test and use_global_stats")
    SavedVariance = result(doc="[channels], 1 / sqrt(variance + epsilon), as PaddlePaddle saves it")
    ReserveSpace = result(optional=True, doc="empty: a workspace of other makers' kernels")
    momentum = attribute(AttrType.FLOAT, 0.9)
    epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)
    data_layout = attribute(AttrType.STRING, "NCHW", choices=IMAGE_FORMATS)
    is_test = attribute(AttrType.BOOLEAN, False)
    use_global_stats = attribute(AttrType.BOOLEAN, False)
    trainable_statistics = attribute(AttrType.BOOLEAN, False)
    unbiased = attribute(AttrType.BOOLEAN, False, since=OWN, doc="the moving variance follows the unbiased one of the batch, as in torch")

    def infer_shape(self, X: Spec, Scale: Spec | None, Bias: Spec | None, Mean: Spec, Variance: Spec, MomentumTensor: Spec | None) -> Any:
        channels, axis = channels_of(X, is_channels_last(self.data_layout))
        check_per_channel(X, channels, axis, Scale=Scale, Bias=Bias, Mean=Mean, Variance=Variance)
        if MomentumTensor is not None:
            require_equal(product(MomentumTensor.known_dims), 1, "MomentumTensor must be one number", MomentumTensor=None)
        dtype = statistics_type(X)
        # a file whose op was switched to is_test after it was described keeps [channels]; one described for tests says no dims
        saved = tensor(dtype) if self._saves_nothing() else tensor(dtype, channels)
        return X.like(), Mean, Variance, saved, saved, tensor(dtype, 0)

    def computes(self) -> computations.FrozenBatchNorm | None:
        fixed = (self.use_global_stats or self._tests()) and not is_channels_last(self.data_layout)
        return computations.FrozenBatchNorm(as_written(self.epsilon)) if fixed else None

    def sharding_rule(self, X: Spec, *operands: Any) -> ShardingRule | None:
        """Return the rule of fixed statistics; those of a batch need all of it."""
        if self.use_global_stats or self._tests():
            return super().sharding_rule(X, *operands) or ShardingRule({"X": (names := (*axis_names(X.rank - 1), WHOLE))}, {"Y": names})
        return ShardingRule({"X": (undivided := (WHOLE,) * X.rank)}, {"Y": undivided})

    def workspace(
        self, X: Spec, Scale: Spec | None, Bias: Spec | None, Mean: Spec, Variance: Spec, MomentumTensor: Spec | None, *, strided: frozenset[str]
    ) -> Size:
        return (4 + thread_count()) * Mean.elements * statistics_type(X).itemsize + copies(strided, X=X, Scale=Scale, Bias=Bias)

    def _tests(self) -> bool:
        return self.is_test and not self.trainable_statistics

    def _saves_nothing(self) -> bool:
        return self._tests() and self.use_global_stats

    def kernel(
        self, X: Tensor, Scale: Tensor | None, Bias: Tensor | None, Mean: Tensor, Variance: Tensor, MomentumTensor: Tensor | None, *,
        requested: tuple[bool, ...],
    ) -> Any:  # fmt: skip
        last = is_channels_last(self.data_layout)
        x, Scale, Bias = normal_order(X, last), in_a_row(Scale), in_a_row(Bias)
        check_channels(x, Scale, Bias, Mean, Variance)
        dtype = torch.float32 if X.element_size() == 2 else X.dtype
        reserve = Mean.new_empty(0, dtype=dtype) if requested[5] else None
        if self.use_global_stats or self._tests():
            y, _, _ = torch.native_batch_norm(x, Scale, Bias, Mean, Variance, False, 0.0, as_written(self.epsilon))
            if self._saves_nothing():
                saved = saved_inverse = Mean.new_zeros((), dtype=dtype) if requested[3] or requested[4] else None
            else:
                saved = Mean.to(dtype, copy=True) if requested[3] else None
                saved_inverse = (Variance.to(dtype) + as_written(self.epsilon)).rsqrt_() if requested[4] else None
            return own_order(y, X, last), Mean, Variance, saved, saved_inverse, reserve
        momentum = as_written(self.momentum) if MomentumTensor is None else MomentumTensor.item()
        count = x.numel() // x.shape[1]
        if count > 1:
            # torch moves the variance by the unbiased one of the batch: count / (count - 1) times the biased one
            correction = None if self.unbiased else Variance * (momentum / count)
            y, mean, inverse = torch.native_batch_norm(x, Scale, Bias, Mean, Variance, True, 1.0 - momentum, as_written(self.epsilon))
            if correction is not None:
                Variance.mul_((count - 1) / count).add_(correction)
        elif count == 1:
            y, mean, inverse = torch.native_batch_norm(x, Scale, Bias, None, None, True, 0.0, as_written(self.epsilon))
            Mean.lerp_(mean, 1.0 - momentum)
            Variance.mul_(momentum)
        else:  # without elements there is no mean: the moving statistics stay
            y, mean, inverse = x.clone(), torch.zeros_like(Mean), torch.zeros_like(Variance)
        return own_order(y, X, last), Mean, Variance, mean.to(dtype), inverse.to(dtype), reserve

    def _infer_gradient(
        self, X: Spec, Scale: Spec | None, Bias: Spec | None, mean_out: Spec, variance_out: Spec, saved_mean: Spec, saved_inverse: Spec,
        reserve: Spec | None, d_y: Spec, mean: Spec | None, variance: Spec | None,
    ) -> Any:  # fmt: skip
        y, _, _, saved, _, _ = BatchNorm.infer_shape(self, X, Scale, Bias, mean_out, variance_out, None)
        check_made(SavedMean=(saved_mean, saved), SavedVariance=(saved_inverse, saved), Y_GRAD=(d_y, y))
        return tuple(None if s is None else s.like() for s in (X, Scale, Bias))

    def _gradient_workspace(
        self, X: Spec, Scale: Spec | None, Bias: Spec | None, mean_out: Spec, variance_out: Spec, saved_mean: Spec, saved_inverse: Spec,
        reserve: Spec | None, d_y: Spec, mean: Spec | None, variance: Spec | None, *, requested: tuple[bool, ...], strided: frozenset[str],
    ) -> Size:  # fmt: skip
        sums = (3 + 2 * thread_count()) * mean_out.elements * statistics_type(X).itemsize
        copied = copies(strided, X=X, Scale=Scale, SavedMean=saved_mean, SavedVariance=saved_inverse, Y_GRAD=d_y)
        return sums + copied + (X.nbytes if requested[0] else 0)  # torch allocates this gradient twice

    # Mean and Variance are MeanOut and VarianceOut: PaddlePaddle writes and reads them where the moving statistics are used
    @gradient(
        "X", "Scale", "Bias", "MeanOut", "VarianceOut", "SavedMean", "SavedVariance", "ReserveSpace", "Y@GRAD", "Mean", "Variance",
        gives=("X@GRAD", "Scale@GRAD", "Bias@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace, absent=("Mean", "Variance"),
    )  # fmt: skip
    def backward(
        self, X: Tensor, Scale: Tensor | None, Bias: Tensor | None, mean_out: Tensor, variance_out: Tensor, saved_mean: Tensor, saved_inverse: Tensor,
        reserve: Tensor | None, d_y: Tensor, mean: Tensor | None, variance: Tensor | None, *, requested: tuple[bool, ...],
    ) -> Any:  # fmt: skip
        last = is_channels_last(self.data_layout)
        if not X.numel():
            return tuple(None if t is None else torch.zeros_like(t) for t in (X, Scale, Bias))
        x = normal_order(X, last)
        d, Scale, saved_mean, saved_inverse = normal_order(d_y, last, x), in_a_row(Scale), saved_mean.contiguous(), saved_inverse.contiguous()
        check_channels(x, Scale, mean_out, variance_out, saved_mean, saved_inverse)
        fixed = self.use_global_stats or self._tests()
        moving = (mean_out, variance_out) if fixed else (None, None)
        if Scale is None and x.is_cuda:  # without it that device gives no gradient of Bias
            Scale = mean_out.new_ones(mean_out.shape)
        gradients = aten.native_batch_norm_backward(d, x, Scale, *moving, saved_mean, saved_inverse, not fixed, as_written(self.epsilon), list(requested))
        return own_order(gradients[0], X, last) if requested[0] else None, gradients[1], gradients[2]

    samples = [
        sample(X=f32(4, 3, 5, 2), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5)),
        sample(X=f32(4, 5, 2, 3), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), data_layout="NHWC", momentum=0.7),
        sample(X=f32(4, 3), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), epsilon=1e-3),
        sample(X=f32(1, 3), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), differentiate=False),
        sample(X=f32(0, 3, 4), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), differentiate=False),
        sample(X=f32(4, 3, 5), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), MomentumTensor=f32(1, data=[0.25])),
        sample(X=f32(4, 3, 5, 2), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), is_test=True),
        sample(X=f32(4, 5, 2, 3), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), use_global_stats=True, data_layout="NHWC"),
        sample(X=f32(4, 3, 5), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), is_test=True, trainable_statistics=True),
        sample(X=f32(4, 3, 5), Mean=f32(3), Variance=f32(3, low=0.5)),
        sample(X=f32(4, 3, 5), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), unbiased=True),
        sample(X=f32(4, 3), Scale=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), is_test=True),
        sample(X=f32(4, 5, 3), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), use_global_stats=True, data_layout="NHWC"),
    ]
    rejects = [
        reject(X=f32(4, 0), Scale=f32(0), Bias=f32(0), Mean=f32(0), Variance=f32(0), says="at least one channel"),
        reject(X=f32(4, 3), Scale=f64(3), Bias=f32(3), Mean=f32(3), Variance=f32(3), says="Scale must be fp32", error=TypeMismatchError),
    ]


def normal_order(x: Tensor, last: bool, like: Tensor | None = None) -> Tensor:
    """Return images ``[batch, channels, ...]`` with the channels at axis 1, or at the end if ``last``, in torch's fast memory formats.

    They are contiguous or channels-last, as ``like`` is, and are copied if they are neither. Otherwise torch indexes element by element, up to 7 times slower.
    """
    if last and x.dim() == 3:  # torch has channels-last formats for images of 2 and 3 axes only
        x = x.unsqueeze(1)
    x = channels_first(x, last)
    innermost = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    if like is not None:
        return x.contiguous(memory_format=torch.contiguous_format if like.is_contiguous() else innermost)
    return x if x.is_contiguous() or x.is_contiguous(memory_format=innermost) else x.contiguous(memory_format=innermost if last else torch.contiguous_format)


def own_order(y: Tensor, x: Tensor, last: bool) -> Tensor:
    """Undo `normal_order` for a result of the dims of ``x``."""
    return channels_back(y, last).view(x.shape) if last else y


def in_a_row(of_channels: Tensor | None) -> Tensor | None:
    """Return the numbers of each channel side by side, as torch takes them for its fast kernels."""
    return None if of_channels is None else of_channels.contiguous()


def check_channels(x: Tensor, *statistics: Tensor | None) -> None:
    """Refuse statistics of other sizes than the channels of ``x``: torch's kernel reads and writes them unchecked."""
    channels = x.shape[1]
    for t in statistics:
        if t is not None and t.numel() != channels:
            raise ExecutionError(f"batch_norm: Scale, Bias, Mean and Variance must have one number for each channel of X, {channels}; seen {t.numel()}")


class FusedBatchNormAddActivation(BatchNorm):
    """`batch_norm` in training with the channels last, then a sum with other images and a relu: Y = max(normalized X + Z, 0)."""

    type = "fused_bn_add_activation"
    over_ranks = ""
    data_layout = attribute(AttrType.STRING, "NHWC", choices=("NHWC",))
    use_global_stats = attribute(AttrType.BOOLEAN, False, choices=(False,))
    act_type = attribute(AttrType.STRING, "relu", choices=("relu",))
    Scale = operand(FLOATING, doc="[channels]")
    Bias = operand(FLOATING, doc="[channels]")
    Z = operand(FLOATING, same_type_as="X", doc="as X")

    def computes(self) -> None:
        return None

    def infer_shape(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, X: Spec, Scale: Spec, Bias: Spec, Mean: Spec, Variance: Spec, MomentumTensor: Spec | None, Z: Spec
    ) -> Any:
        require(Z.rank == X.rank, f"Z must have {X.rank} dims, as X, not {Z.rank}", Z=None, X=None)
        for axis, (a, b) in enumerate(zip(Z.known_dims, X.known_dims, strict=True)):
            require_equal(a, b, "Z must have the dims of X", Z=axis, X=axis)
        return BatchNorm.infer_shape(self, X, Scale, Bias, Mean, Variance, MomentumTensor)

    def _attributes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in BatchNorm.schema.attributes}

    def expand(self, of: Composition, X: Any, Scale: Any, Bias: Any, Mean: Any, Variance: Any, MomentumTensor: Any, Z: Any) -> Any:
        operands = {"X": X, "Scale": Scale, "Bias": Bias, "Mean": Mean, "Variance": Variance, "MomentumTensor": MomentumTensor}
        y, mean, variance, saved, saved_inverse, _ = of("batch_norm", self._attributes(), **operands)
        reserve = of("fill_constant", {"shape": [0], "dtype": saved.spec.known_dtype.code})
        return of("relu", X=of("elementwise_add", X=y, Y=Z)), mean, variance, saved, saved_inverse, reserve

    def _infer_fused(self, X: Spec, Scale: Spec, Bias: Spec, Y: Spec, saved_mean: Spec, saved_inverse: Spec, reserve: Spec | None, d_y: Spec) -> Any:
        y, _, _, saved, _, _ = BatchNorm.infer_shape(self, X, Scale, Bias, saved_mean, saved_inverse, None)
        check_made(Y=(Y, y), SavedMean=(saved_mean, saved), SavedVariance=(saved_inverse, saved), Y_GRAD=(d_y, y))
        return X.like(), X.like(), Scale.like(), Bias.like()

    @gradient(
        "X", "Scale", "Bias", "Y", "SavedMean", "SavedVariance", "ReserveSpace", "Y@GRAD", gives=("X@GRAD", "Z@GRAD", "Scale@GRAD", "Bias@GRAD"),
        like={"Z@GRAD": "X"}, infer=_infer_fused,
    )  # fmt: skip
    def backward(self, of: Composition, X: Any, Scale: Any, Bias: Any, Y: Any, saved_mean: Any, saved_inverse: Any, reserve: Any, d_y: Any) -> Any:
        d = of("relu_grad", **{"Out": Y, "Out@GRAD": d_y})
        variance = saved_inverse
        if self._tests():  # the gradient is not given the moving statistics, which are used then
            variance = of("scale", {"bias": -self.epsilon}, X=of("pow", {"factor": -2.0}, X=saved_inverse))
        saved = {"MeanOut": saved_mean, "VarianceOut": variance, "SavedMean": saved_mean, "SavedVariance": saved_inverse, "ReserveSpace": reserve}
        d_x, d_scale, d_bias = of("batch_norm_grad", self._attributes(), **{"X": X, "Scale": Scale, "Bias": Bias, "Y@GRAD": d}, **saved)
        return d_x, d, d_scale, d_bias

    samples = [
        sample(X=f32(4, 5, 2, 3), Z=f32(4, 5, 2, 3), Scale=f32(3, low=0.5), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5)),
        sample(X=f32(4, 3), Z=f32(4, 3), Scale=f32(3, low=0.5), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5), unbiased=True),
    ]
    rejects = ()
