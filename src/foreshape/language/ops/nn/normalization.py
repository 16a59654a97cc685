"""Normalization over each example, over groups of channels or single ones, and of a weight by its largest singular value."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, Spec, tensor
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_divides, require_equal
from foreshape.language.operator.samples import f32, f64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.statistics import channels_of, check_per_channel, check_statistics_type, statistics_type
from foreshape.language.ops.rules.window import IMAGE_FORMATS, channels_back, channels_first, is_channels_last
from foreshape.machine.kernels.onednn import thread_count
from foreshape.machine.kernels.window_steps import as_contiguous


class LayerNorm(Operator):
    """Y = Scale * (X - mean) / sqrt(variance + epsilon) + Bias, with the mean and variance of each example.

    An example is all dims from ``begin_norm_axis`` on; Scale and Bias have a number for each of its elements.
    """

    type = "layer_norm"
    family = "norm"
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
                check_statistics_type(X, slot, spec)
                require_equal(product(spec.known_dims), elements, f"{slot} must have one number for each element of an example of X", **{slot: 0, "X": begin})
        for axis in range(begin, len(dims)):
            require_at_most(1, dims[axis], "an example of X must not be empty", X=axis)
        rows = X.with_dims(dims[:begin]).with_dtype(statistics_type(X))
        return X.like(), rows, rows

    def workspace(self, X: Spec, Scale: Spec | None, Bias: Spec | None, *, strided: frozenset[str]) -> Size:
        return product(X.known_dims[: self.begin_norm_axis]) * statistics_type(X).itemsize + copies(strided, X=X)

    def computes(self) -> computations.LayerNorm:
        return computations.LayerNorm(self.begin_norm_axis, self.epsilon)

    def kernel(self, X: Tensor, Scale: Tensor | None, Bias: Tensor | None, *, requested: tuple[bool, ...]) -> Any:
        begin = self.begin_norm_axis
        example = X.shape[begin:]
        if any(g is not None and g.shape != example for g in (Scale, Bias)):
            Scale, Bias = None if Scale is None else Scale.reshape(example), None if Bias is None else Bias.reshape(example)
        y, mean, inverse = torch.native_layer_norm(X, example, Scale, Bias, self.epsilon)
        variance = inverse.pow(-2).sub_(self.epsilon).clamp_min_(0.0) if requested[2] else None
        if mean.dtype is torch.float16 or mean.dtype is torch.bfloat16:
            mean, variance = mean.float(), None if variance is None else variance.float()
        rows = X.shape[:begin]
        return y, mean.reshape(rows) if requested[1] else None, None if variance is None else variance.reshape(rows)

    def _infer_gradient(self, X: Spec, Mean: Spec, Variance: Spec, Scale: Spec | None, Bias: Spec | None, d_y: Spec) -> Any:
        y, rows, _ = LayerNorm.infer_shape(self, X, Scale, Bias)
        check_made(Mean=(Mean, rows), Variance=(Variance, rows), Y_GRAD=(d_y, y))
        return tuple(None if s is None else s.like() for s in (X, Scale, Bias))

    def _gradient_workspace(self, X: Spec, Mean: Spec, Variance: Spec, Scale: Spec | None, Bias: Spec | None, d_y: Spec, *, strided: frozenset[str]) -> Size:
        sums = [2 * thread_count() * s.elements * statistics_type(X).itemsize for s in (Scale, Bias) if s is not None]
        return Variance.nbytes + (sums[0] if sums else 0) + copies(strided, X=X, Y_GRAD=d_y, Mean=Mean)

    @gradient(
        "X", "Mean", "Variance", "Scale", "Bias", "Y@GRAD",
        gives=("X@GRAD", "Scale@GRAD", "Bias@GRAD"), infer=_infer_gradient, layout={"X@GRAD": "row"}, workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(
        self, X: Tensor, Mean: Tensor, Variance: Tensor, Scale: Tensor | None, Bias: Tensor | None, d_y: Tensor, *, requested: tuple[bool, ...]
    ) -> Any:
        begin = self.begin_norm_axis
        example = X.shape[begin:]
        row = Mean.shape + (1,) * len(example)
        mean, inverse = Mean.reshape(row), (Variance + self.epsilon).rsqrt_().reshape(row)
        scale, bias = (None if g is None else g.reshape(example) for g in (Scale, Bias))
        half = scale if scale is not None else bias if bias is not None else X
        mean, inverse = mean.to(half.dtype).contiguous(), inverse.to(half.dtype).contiguous()  # torch wants the statistics so, unchecked
        gradients = aten.native_layer_norm_backward(d_y, X, example, mean, inverse, scale, bias, list(requested))
        return (
            gradients[0],
            gradients[1].view(Scale.shape) if requested[1] and Scale is not None else None,
            gradients[2].view(Bias.shape) if requested[2] and Bias is not None else None,
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
        reject(X=f32(4, 0), says="must not be empty"),
        reject(X=f32(4, 5), Scale=f64(5), says="Scale must be fp32", error=TypeMismatchError),
    ]


class GroupNorm(Operator):
    """Y = Scale * (X - mean) / sqrt(variance + epsilon) + Bias, mean and variance over each of ``groups`` groups of channels."""

    type = "group_norm"
    gradient_reads_dims = ("Y",)
    family = "norm"
    examples = ("X",)
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
    ]


class InstanceNorm(Operator):
    """Y = Scale * (X - mean) / sqrt(variance + epsilon) + Bias, mean and variance over each channel of each example."""

    type = "instance_norm"
    family = "norm"
    examples = ("X",)
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
    rejects = [reject(X=f32(2, 3, 5), Bias=f64(3), says="Bias must be fp32", error=TypeMismatchError)]


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
    dtype = x.dtype if scale is None else scale.dtype  # torch keeps the statistics as the parameters are
    mean, inverse, scale = mean.to(dtype).contiguous(), inverse.to(dtype).contiguous(), None if scale is None else scale.contiguous()
    native = [requested[0], requested[1], requested[2] and scale is not None]  # torch cannot do the last one alone
    d_x, d_scale, d_bias = aten.native_group_norm_backward(
        as_contiguous(d), as_contiguous(x), mean, inverse, scale, batch, channels, x.shape[2:].numel(), groups, native
    )
    return d_x, d_scale, d.sum([0, *range(2, d.dim())]) if requested[2] and scale is None else d_bias


class SpectralNorm(Operator):
    """Out = Weight / sigma with sigma = U^T W V, where W is Weight as a matrix with the rows ``dim`` (Miyato et al., 2018).

    U and V approach the first singular vectors in ``power_iters`` steps, V = W^T U / (|W^T U| + eps) and U = W V / (|W V| + eps); the new vectors are not kept.
    The gradient takes them as constants. (PaddlePaddle's CPU kernel gives ``(d - d * U V^T * sum(W) / sigma) / sigma`` as the gradient, elementwise; it is not
    the gradient of the result.)
    """

    type = "spectral_norm"
    Weight = operand(FLOATING, doc="2 to 5 dims")
    U = operand(FLOATING, same_type_as="Weight", doc="[rows]: the size of dim")
    V = operand(FLOATING, same_type_as="Weight", doc="[columns]: the product of the other dims")
    Out = result(doc="as Weight", layout="row")
    dim = attribute(AttrType.INT, 0, doc="0 or 1")
    power_iters = attribute(AttrType.INT, 1, low=0, high=1000, doc="steps of the power iteration; it converges long before the maximum")
    eps = attribute(AttrType.FLOAT, 1e-12, low=0.0)

    def infer_shape(self, Weight: Spec, U: Spec, V: Spec) -> Spec:
        require(2 <= Weight.rank <= 5, f"Weight must have 2 to 5 dims, not {Weight.rank}", Weight=None)
        require(self.dim in (0, 1), f"dim must be 0 or 1; seen {self.dim}", Weight=None)
        dims = Weight.known_dims
        for axis, size in enumerate(dims):
            require_at_most(1, size, "Weight must not be empty", Weight=axis)
        row: int = self.dim
        rows, columns = dims[row], product([d for axis, d in enumerate(dims) if axis != row])
        for slot, spec, size, part in (("U", U, rows, "row"), ("V", V, columns, "column")):
            require(spec.rank == 1, f"{slot} must have 1 dim, not {spec.rank}", **{slot: None})
            require_equal(spec.known_dims[0], size, f"{slot} must have one number for each {part} of Weight as a matrix, {size}", **{slot: 0, "Weight": None})
        return Weight.like()

    def _power_steps(self, Weight: Tensor, U: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the matrix, U and V as the steps leave them, and sigma."""
        row: int = self.dim
        matrix = Weight.movedim(row, 0).reshape(Weight.shape[row], -1)
        u, v = U, V
        for _ in range(self.power_iters):
            v = matrix.t() @ u
            v = v / ((v * v).sum().sqrt_() + self.eps)
            u = matrix @ v
            u = u / ((u * u).sum().sqrt_() + self.eps)
        return matrix, u, v, u @ (matrix @ v)

    def kernel(self, Weight: Tensor, U: Tensor, V: Tensor) -> Tensor:
        return Weight.contiguous() / self._power_steps(Weight, U, V)[3]

    def workspace(self, Weight: Spec, U: Spec, V: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * Weight.nbytes + 4 * (U.nbytes + V.nbytes) + 16384 + copies(strided, Weight=Weight, U=U, V=V)

    def _infer_gradient(self, Weight: Spec, U: Spec, V: Spec, d_out: Spec) -> Any:
        check_made(Out_GRAD=(d_out, SpectralNorm.infer_shape(self, Weight, U, V)))
        return Weight.like()

    def _gradient_workspace(self, Weight: Spec, U: Spec, V: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 5 * Weight.nbytes + 4 * (U.nbytes + V.nbytes) + 16384 + copies(strided, Weight=Weight, U=U, V=V, Out_GRAD=d_out)

    @gradient("Weight", "U", "V", "Out@GRAD", gives="Weight@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"Weight@GRAD": "row"})
    def backward(self, Weight: Tensor, U: Tensor, V: Tensor, d_out: Tensor) -> Tensor:
        matrix, u, v, sigma = self._power_steps(Weight, U, V)
        d = d_out.movedim(self.dim, 0).reshape(matrix.shape)
        along = (d * matrix).sum() / sigma
        out = (d - torch.outer(u, v) * along) / sigma
        dims: list[int] = [Weight.shape[self.dim], *(n for axis, n in enumerate(Weight.shape) if axis != self.dim)]
        return out.view(dims).movedim(0, self.dim).clone(memory_format=torch.contiguous_format)

    samples = [
        sample(Weight=f32(4, 5, 3), U=f32(4, low=0.5), V=f32(15, low=0.5), power_iters=2, eps=1e-5, differentiate=False),
        sample(Weight=f32(4, 5, 3), U=f32(5, low=0.5), V=f32(12, low=0.5), dim=1, differentiate=False),
        sample(Weight=f32(4, 5, low=0.5), U=f32(4, low=0.5), V=f32(5, low=0.5), power_iters=0),
        sample(Weight=f32(4, 3, 2, low=0.5), U=f32(3, low=0.5), V=f32(8, low=0.5), dim=1, power_iters=0),
    ]
    rejects = [
        reject(Weight=f32(4), U=f32(4), V=f32(1), says="Weight must have 2 to 5 dims"),
        reject(Weight=f32(4, 5), U=f32(5), V=f32(5), says="U must have one number for each row"),
        reject(Weight=f32(4, 5), U=f32(4), V=f32(4), says="V must have one number for each column"),
        reject(Weight=f32(4, 0), U=f32(4), V=f32(0), says="must not be empty"),
    ]
