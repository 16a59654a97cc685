"""Normalization over each example."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size, product
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.kernels.onednn import thread_count
from foreshape.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.operator.require import require, require_at_most, require_equal
from foreshape.operator.samples import f32, f64, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.ops.rules.statistics import check_statistics_type, statistics_type
from foreshape.spec import FLOATING, Spec
from foreshape.values.torch_proxy import Tensor, aten, torch


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
        for at in range(begin, len(dims)):
            require_at_most(1, dims[at], "an example of X must not be empty", X=at)
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
        found = aten.native_layer_norm_backward(d_y, X, example, mean, inverse, scale, bias, list(requested))
        return (
            found[0],
            found[1].view(Scale.shape) if requested[1] and Scale is not None else None,
            found[2].view(Bias.shape) if requested[2] and Bias is not None else None,
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
