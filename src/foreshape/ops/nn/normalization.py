"""Normalization over a batch, a layer, groups of channels, or each image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.dims import Size, product
from foreshape.errors import ExecutionError, SchemaError, TypeMismatchError
from foreshape.kernels.onednn import thread_count
from foreshape.operator import (
    FLOATING,
    AttrType,
    Operator,
    aten,
    attribute,
    f32,
    f64,
    fail,
    gradient,
    i64,
    operand,
    reject,
    require,
    require_at_most,
    require_divides,
    require_equal,
    result,
    sample,
    torch,
)
from foreshape.operator.temporaries import copies
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.ops.rules.window import IMAGE_FORMATS, channels_back, channels_first, is_channels_last
from foreshape.spec import BF16, FP16, FP32, DType, Spec, tensor

if TYPE_CHECKING:
    from torch import Tensor


def statistics_type(x: Spec) -> DType:
    """The element type of means and variances: fp32 for half precision, otherwise that of the values."""
    return FP32 if x.dtype in (FP16, BF16) else x.known_dtype


def check_per_channel(x: Spec, channels: Size, axis: int, **given: Spec | None) -> None:
    """Each given tensor must have one number per channel, in the element type of statistics (half precision also its own)."""
    for slot, spec in given.items():
        if spec is None:
            continue
        if spec.dtype is not statistics_type(x) and spec.dtype is not x.dtype:
            fail(f"{slot} must be {statistics_type(x).name}, since X is {x.known_dtype.name}", TypeMismatchError, X=None, **{slot: None})
        require(spec.rank == 1, f"{slot} must have 1 dim, not {spec.rank}", **{slot: None})
        require_equal(spec.known_dims[0], channels, f"{slot} must have one number for each channel of X", **{slot: 0, "X": axis})


def channels_of(x: Spec, last: bool, low: int = 2, high: int = 5) -> tuple[Size, int]:
    """The number of channels, of which there must be one at least, and their axis."""
    require(low <= x.rank <= high, f"X must have {low} to {high} dims, not {x.rank}", X=None)
    axis = x.rank - 1 if last else 1
    require_at_most(1, x.known_dims[axis], "X must have at least one channel", X=axis)
    return x.known_dims[axis], axis


class BatchNorm(Operator):
    """Y = Scale * (X - mean) / sqrt(variance + epsilon) + Bias, for each channel.

    In training the mean and the (biased) variance are the batch's, and the moving ones follow: ``MeanOut = momentum * Mean +
    (1 - momentum) * mean``, likewise the variance. With ``is_test`` (unless trainable_statistics) or ``use_global_stats`` the
    moving ones are used, and stay.
    """

    type = "batch_norm"
    moving = ("MeanOut", "VarianceOut")
    X = operand(FLOATING, doc="[batch, channels, ...], or the channels last where data_layout says so")
    Scale = operand(FLOATING, doc="[channels]")
    Bias = operand(FLOATING, doc="[channels]")
    Mean = operand(FLOATING, doc="[channels], the moving mean")
    Variance = operand(FLOATING, doc="[channels], the moving variance")
    MomentumTensor = operand(FLOATING, optional=True, doc="one number, instead of momentum")
    Y = result(doc="as X")
    MeanOut = result(updates="Mean")
    VarianceOut = result(updates="Variance")
    SavedMean = result(doc="[channels], the mean that was used; nothing (no dims) with is_test and use_global_stats")
    SavedVariance = result(doc="[channels], 1 / sqrt(variance + epsilon), as PaddlePaddle saves it")
    ReserveSpace = result(optional=True, doc="empty: a workspace of other makers' kernels")
    momentum = attribute(AttrType.FLOAT, 0.9)
    epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)
    data_layout = attribute(AttrType.STRING, "NCHW", choices=IMAGE_FORMATS)
    is_test = attribute(AttrType.BOOLEAN, False)
    use_global_stats = attribute(AttrType.BOOLEAN, False)
    trainable_statistics = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec, Scale: Spec, Bias: Spec, Mean: Spec, Variance: Spec, MomentumTensor: Spec | None) -> Any:
        channels, axis = channels_of(X, is_channels_last(self.data_layout))
        check_per_channel(X, channels, axis, Scale=Scale, Bias=Bias, Mean=Mean, Variance=Variance)
        if MomentumTensor is not None:
            require_equal(product(MomentumTensor.known_dims), 1, "MomentumTensor must be one number", MomentumTensor=None)
        of = statistics_type(X)
        # a file whose op was switched to is_test after it was described keeps [channels]; one described for tests says no dims
        saved = tensor(of) if self._saves_nothing() else tensor(of, channels)
        return X.like(), Mean, Variance, saved, saved, tensor(of, 0)

    def workspace(self, X: Spec, Scale: Spec, Bias: Spec, Mean: Spec, Variance: Spec, MomentumTensor: Spec | None, *, strided: frozenset[str]) -> Size:
        # a result of channels that come last is brought in a row where X does not lie so
        return (4 + thread_count()) * Scale.elements * statistics_type(X).itemsize + (copies(strided, X=X) if is_channels_last(self.data_layout) else 0)

    def _tests(self) -> bool:
        return self.is_test and not self.trainable_statistics

    def _saves_nothing(self) -> bool:
        return self._tests() and self.use_global_stats

    def kernel(
        self, X: Tensor, Scale: Tensor, Bias: Tensor, Mean: Tensor, Variance: Tensor, MomentumTensor: Tensor | None, *, wants: tuple[bool, ...]
    ) -> Any:
        last = is_channels_last(self.data_layout)
        x = channels_first(X, last)
        check_channels(x, Scale, Bias, Mean, Variance)
        of = torch.float32 if X.element_size() == 2 else X.dtype
        reserve = Mean.new_empty(0, dtype=of) if wants[5] else None
        if self.use_global_stats or self._tests():
            y, _, _ = torch.native_batch_norm(x, Scale, Bias, Mean, Variance, False, 0.0, self.epsilon)
            if self._saves_nothing():
                saved = saved_inverse = Mean.new_zeros((), dtype=of) if wants[3] or wants[4] else None
            else:
                saved, saved_inverse = Mean.to(of, copy=True) if wants[3] else None, (Variance.to(of) + self.epsilon).rsqrt_() if wants[4] else None
            return channels_back(y, last), Mean, Variance, saved, saved_inverse, reserve
        momentum = self.momentum if MomentumTensor is None else MomentumTensor.item()
        count = x.numel() // x.shape[1]
        if count > 1:
            # torch moves the variance by the unbiased one of the batch, which is count / (count - 1) times the one wanted here
            kept = Variance * (momentum / count)
            y, mean, inverse = torch.native_batch_norm(x, Scale, Bias, Mean, Variance, True, 1.0 - momentum, self.epsilon)
            Variance.mul_((count - 1) / count).add_(kept)
        elif count == 1:
            y, mean, inverse = torch.native_batch_norm(x, Scale, Bias, None, None, True, 0.0, self.epsilon)
            Mean.lerp_(mean, 1.0 - momentum)
            Variance.mul_(momentum)
        else:  # of nothing there is no mean: the moving ones stay
            y, mean, inverse = x.clone(), torch.zeros_like(Mean), torch.zeros_like(Variance)
        return channels_back(y, last), Mean, Variance, mean.to(of), inverse.to(of), reserve

    def _infer_gradient(
        self, X: Spec, Scale: Spec, Bias: Spec, mean_out: Spec, variance_out: Spec, saved_mean: Spec, saved_inverse: Spec, reserve: Spec | None, d_y: Spec
    ) -> Any:
        y, _, _, saved, _, _ = BatchNorm.infer_shape(self, X, Scale, Bias, mean_out, variance_out, None)
        check_made(SavedMean=(saved_mean, saved), SavedVariance=(saved_inverse, saved), Y_GRAD=(d_y, y))
        return X.like(), Scale.like(), Bias.like()

    def _gradient_workspace(
        self, X: Spec, Scale: Spec, Bias: Spec, mean_out: Spec, variance_out: Spec, saved_mean: Spec, saved_inverse: Spec, reserve: Spec | None, d_y: Spec,
        *, wants: tuple[bool, ...],
    ) -> Size:  # fmt: skip
        sums = (3 + 2 * thread_count()) * Scale.elements * statistics_type(X).itemsize
        return sums + (X.nbytes if wants[0] else 0)  # torch takes memory for that gradient twice

    @gradient(
        "X", "Scale", "Bias", "MeanOut", "VarianceOut", "SavedMean", "SavedVariance", "ReserveSpace", "Y@GRAD",
        gives=("X@GRAD", "Scale@GRAD", "Bias@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(
        self, X: Tensor, Scale: Tensor, Bias: Tensor, mean_out: Tensor, variance_out: Tensor, saved_mean: Tensor, saved_inverse: Tensor,
        reserve: Tensor | None, d_y: Tensor, *, wants: tuple[bool, ...],
    ) -> Any:  # fmt: skip
        last = is_channels_last(self.data_layout)
        x, d = channels_first(X, last), channels_first(d_y, last)
        if not x.numel():
            return torch.zeros_like(X), torch.zeros_like(Scale), torch.zeros_like(Bias)
        check_channels(x, Scale, mean_out, variance_out, saved_mean, saved_inverse)
        if self.use_global_stats or self._tests():
            found = aten.native_batch_norm_backward(d, x, Scale, mean_out, variance_out, None, None, False, self.epsilon, list(wants))
        else:
            found = aten.native_batch_norm_backward(d, x, Scale, None, None, saved_mean, saved_inverse, True, self.epsilon, list(wants))
        return channels_back(found[0], last) if wants[0] else None, found[1], found[2]

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
    ]
    rejects = [
        reject(X=f32(4), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3), says="X must have 2 to 5 dims"),
        reject(X=f32(4, 3), Scale=f32(4), Bias=f32(3), Mean=f32(3), Variance=f32(3), says="one number for each channel"),
        reject(X=f32(4, 3), Scale=f32(3), Bias=f32(1, 3), Mean=f32(3), Variance=f32(3), says="Bias must have 1 dim"),
        reject(X=f32(4, 0), Scale=f32(0), Bias=f32(0), Mean=f32(0), Variance=f32(0), says="at least one channel"),
        reject(X=f32(4, 3), Scale=f64(3), Bias=f32(3), Mean=f32(3), Variance=f32(3), says="Scale must be fp32", error=TypeMismatchError),
        reject(X=f32(4, 3), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3), epsilon=-1.0, says="at least 0", error=SchemaError),
        reject(X=i64(4, 3), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3), says="floating", error=TypeMismatchError),
    ]


def check_channels(x: Tensor, *given: Tensor) -> None:
    """Refuse statistics of other sizes than the channels of ``x``: torch's kernel reads and writes them unchecked."""
    channels = x.shape[1]
    for t in given:
        if t.numel() != channels:
            raise ExecutionError(f"batch_norm: Scale, Bias, Mean and Variance must have one number for each channel of X, {channels}; seen {t.numel()}")


class LayerNorm(Operator):
    """Y = Scale * (X - mean) / sqrt(variance + epsilon) + Bias, where mean and variance are those of each example.

    An example is all dims from ``begin_norm_axis`` on; Scale and Bias have a number for each of its elements.
    """

    type = "layer_norm"
    X = operand(FLOATING, doc="[*rows, *example]")
    Scale = operand(FLOATING, optional=True, doc="[elements of an example]")
    Bias = operand(FLOATING, optional=True, doc="[elements of an example]")
    Y = result(layout="row", doc="as X")
    Mean = result(doc="[*rows]")
    Variance = result(doc="[*rows], biased")
    epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)
    begin_norm_axis = attribute(AttrType.INT, 1, low=1)

    def infer_shape(self, X: Spec, Scale: Spec | None, Bias: Spec | None) -> Any:
        begin, dims = self.begin_norm_axis, X.known_dims
        require(begin < len(dims), f"begin_norm_axis must be in [1, {len(dims)}); seen {begin}", X=None)
        elements = product(dims[begin:])
        for slot, spec in (("Scale", Scale), ("Bias", Bias)):
            if spec is not None:
                if spec.dtype is not statistics_type(X) and spec.dtype is not X.dtype:
                    fail(f"{slot} must be {statistics_type(X).name}, since X is {X.known_dtype.name}", TypeMismatchError, X=None, **{slot: None})
                require_equal(product(spec.known_dims), elements, f"{slot} must have one number for each element of an example of X", **{slot: 0, "X": begin})
        for at in range(begin, len(dims)):
            require_at_most(1, dims[at], "an example of X must not be empty", X=at)
        rows = X.with_dims(dims[:begin]).with_dtype(statistics_type(X))
        return X.like(), rows, rows

    def workspace(self, X: Spec, Scale: Spec | None, Bias: Spec | None, *, strided: frozenset[str]) -> Size:
        return product(X.known_dims[: self.begin_norm_axis]) * statistics_type(X).itemsize + copies(strided, X=X)

    def kernel(self, X: Tensor, Scale: Tensor | None, Bias: Tensor | None, *, wants: tuple[bool, ...]) -> Any:
        begin = self.begin_norm_axis
        example = X.shape[begin:]
        if any(g is not None and g.shape != example for g in (Scale, Bias)):
            Scale, Bias = None if Scale is None else Scale.reshape(example), None if Bias is None else Bias.reshape(example)
        y, mean, inverse = torch.native_layer_norm(X, example, Scale, Bias, self.epsilon)
        variance = inverse.pow(-2).sub_(self.epsilon).clamp_min_(0.0) if wants[2] else None
        if mean.dtype is torch.float16 or mean.dtype is torch.bfloat16:
            mean, variance = mean.float(), None if variance is None else variance.float()
        rows = X.shape[:begin]
        return y, mean.reshape(rows) if wants[1] else None, None if variance is None else variance.reshape(rows)

    def _infer_gradient(self, X: Spec, Mean: Spec, Variance: Spec, Scale: Spec | None, Bias: Spec | None, d_y: Spec) -> Any:
        y, rows, _ = LayerNorm.infer_shape(self, X, Scale, Bias)
        check_made(Mean=(Mean, rows), Variance=(Variance, rows), Y_GRAD=(d_y, y))
        return tuple(None if s is None else s.like() for s in (X, Scale, Bias))

    def _gradient_workspace(
        self, X: Spec, Mean: Spec, Variance: Spec, Scale: Spec | None, Bias: Spec | None, d_y: Spec, *, strided: frozenset[str]
    ) -> Size:
        sums = [2 * thread_count() * s.elements * statistics_type(X).itemsize for s in (Scale, Bias) if s is not None]
        return Variance.nbytes + (sums[0] if sums else 0) + copies(strided, X=X, Y_GRAD=d_y, Mean=Mean)

    @gradient(
        "X", "Mean", "Variance", "Scale", "Bias", "Y@GRAD",
        gives=("X@GRAD", "Scale@GRAD", "Bias@GRAD"), infer=_infer_gradient, layout={"X@GRAD": "row"}, workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(
        self, X: Tensor, Mean: Tensor, Variance: Tensor, Scale: Tensor | None, Bias: Tensor | None, d_y: Tensor, *, wants: tuple[bool, ...]
    ) -> Any:
        begin = self.begin_norm_axis
        example = X.shape[begin:]
        row = Mean.shape + (1,) * len(example)
        mean, inverse = Mean.reshape(row), (Variance + self.epsilon).rsqrt_().reshape(row)
        scale, bias = (None if g is None else g.reshape(example) for g in (Scale, Bias))
        half = scale if scale is not None else bias if bias is not None else X
        mean, inverse = mean.to(half.dtype).contiguous(), inverse.to(half.dtype).contiguous()  # torch wants the statistics so, unchecked
        found = aten.native_layer_norm_backward(d_y, X, example, mean, inverse, scale, bias, list(wants))
        return (
            found[0],
            found[1].view(Scale.shape) if wants[1] and Scale is not None else None,
            found[2].view(Bias.shape) if wants[2] and Bias is not None else None,
        )

    samples = [
        sample(X=f32(4, 5), Scale=f32(5), Bias=f32(5)),
        sample(X=f32(2, 3, 5), Scale=f32(5), Bias=f32(5), begin_norm_axis=2, epsilon=1e-3),
        sample(X=f32(4, 3, 5), Scale=f32(15), Bias=f32(15)),
        sample(X=f32(4, 3, 5)),
        sample(X=f32(4, 5), Scale=f32(5)),
        sample(X=f32(4, 5), Bias=f32(5)),
        sample(X=f32(0, 5), Scale=f32(5), Bias=f32(5)),
    ]
    rejects = [
        reject(X=f32(4, 5), begin_norm_axis=2, says="begin_norm_axis must be in [1, 2)"),
        reject(X=f32(), says="begin_norm_axis must be in"),
        reject(X=f32(4, 5), begin_norm_axis=-(2**31), says="at least 1", error=SchemaError),
        reject(X=f32(4, 5), Scale=f32(4), says="one number for each element"),
        reject(X=f32(4, 0), says="must not be empty"),
        reject(X=f32(4, 5), Scale=f64(5), says="Scale must be fp32", error=TypeMismatchError),
    ]


class GroupNorm(Operator):
    """Y = Scale * (X - mean) / sqrt(variance + epsilon) + Bias, mean and variance over each of ``groups`` groups of channels."""

    type = "group_norm"
    X = operand(FLOATING, doc="[batch, channels, ...], or the channels last where data_layout says so")
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

    def kernel(self, X: Tensor, Scale: Tensor | None, Bias: Tensor | None, *, wants: tuple[bool, ...]) -> Any:
        last = is_channels_last(self.data_layout)
        y, mean, inverse = _grouped(channels_first(X, last), Scale, Bias, self.groups, self.epsilon)
        variance = inverse.pow(-2).sub_(self.epsilon).clamp_min_(0.0) if wants[2] else None
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
        self, X: Tensor, Y: Tensor, Mean: Tensor, Variance: Tensor, Scale: Tensor | None, Bias: Tensor | None, d_y: Tensor, *, wants: tuple[bool, ...]
    ) -> Any:
        last = is_channels_last(self.data_layout)
        inverse = (Variance + self.epsilon).rsqrt_()
        d_x, d_scale, d_bias = _grouped_backward(channels_first(d_y, last), channels_first(X, last), Mean, inverse, Scale, self.groups, wants)
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
        self, X: Tensor, Scale: Tensor | None, Bias: Tensor | None, SavedMean: Tensor, SavedVariance: Tensor, d_y: Tensor, *, wants: tuple[bool, ...]
    ) -> Any:
        rows = X.shape[:2]
        return _grouped_backward(d_y, X, SavedMean.reshape(rows), SavedVariance.reshape(rows), Scale, rows[1], wants)

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
    """The bytes of the sums over each channel of each example of the gradient's kernel."""
    return 2 * X.known_dims[0] * X.known_dims[-1 if last else 1] * statistics_type(X).itemsize


def _grouped(x: Tensor, scale: Tensor | None, bias: Tensor | None, groups: int, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised values, and mean and inverse deviation ``[batch, groups]``."""
    batch, channels = x.shape[:2]
    scale, bias = None if scale is None else scale.contiguous(), None if bias is None else bias.contiguous()  # torch does not check
    y, mean, inverse = torch.native_group_norm(x.contiguous(), scale, bias, batch, channels, x.shape[2:].numel(), groups, epsilon)
    if x.dtype is torch.float16 or x.dtype is torch.bfloat16:
        mean, inverse = mean.float(), inverse.float()
    return y, mean, inverse


def _grouped_backward(
    d: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor | None, groups: int, wants: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    batch, channels = x.shape[:2]
    of = x.dtype if scale is None else scale.dtype  # torch keeps the statistics as the parameters are
    mean, inverse, scale = mean.to(of).contiguous(), inverse.to(of).contiguous(), None if scale is None else scale.contiguous()
    own = [wants[0], wants[1], wants[2] and scale is not None]  # torch cannot do the last one alone
    d_x, d_scale, d_bias = aten.native_group_norm_backward(
        d.contiguous(), x.contiguous(), mean, inverse, scale, batch, channels, x.shape[2:].numel(), groups, own
    )
    return d_x, d_scale, d.sum([0, *range(2, d.dim())]) if wants[2] and scale is None else d_bias
