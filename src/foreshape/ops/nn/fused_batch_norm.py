"""Batch normalization with an activation in the same operator, as rewritten programs have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.dims import Size
from foreshape.operator import FLOATING, AttrType, aten, attribute, f32, gradient, operand, reject, require, require_equal, sample, torch
from foreshape.operator.temporaries import copies
from foreshape.ops.nn.batch_norm import BatchNorm
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


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
        for at, (a, b) in enumerate(zip(Z.known_dims, X.known_dims, strict=True)):
            require_equal(a, b, "Z must have the dims of X", Z=at, X=at)
        return BatchNorm.infer_shape(self, X, Scale, Bias, Mean, Variance, MomentumTensor)

    def workspace(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, X: Spec, Scale: Spec, Bias: Spec, Mean: Spec, Variance: Spec, MomentumTensor: Spec | None, Z: Spec, *, strided: frozenset[str]
    ) -> Size:
        return BatchNorm.workspace(self, X, Scale, Bias, Mean, Variance, MomentumTensor, strided=strided)

    def kernel(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, X: Tensor, Scale: Tensor, Bias: Tensor, Mean: Tensor, Variance: Tensor, MomentumTensor: Tensor | None, Z: Tensor, *,
        requested: tuple[bool, ...],
    ) -> Any:  # fmt: skip
        y, *others = BatchNorm.kernel(self, X, Scale, Bias, Mean, Variance, MomentumTensor, requested=requested)
        return torch.relu_(y.add_(Z)), *others

    def _infer_fused(self, X: Spec, Scale: Spec, Bias: Spec, Y: Spec, saved_mean: Spec, saved_inverse: Spec, reserve: Spec | None, d_y: Spec) -> Any:
        y, _, _, saved, _, _ = BatchNorm.infer_shape(self, X, Scale, Bias, saved_mean, saved_inverse, None)
        check_made(Y=(Y, y), SavedMean=(saved_mean, saved), SavedVariance=(saved_inverse, saved), Y_GRAD=(d_y, y))
        return X.like(), X.like(), Scale.like(), Bias.like()

    def _fused_workspace(
        self, X: Spec, Scale: Spec, Bias: Spec, Y: Spec, saved_mean: Spec, saved_inverse: Spec, reserve: Spec | None, d_y: Spec, *,
        requested: tuple[bool, ...], strided: frozenset[str],
    ) -> Size:  # fmt: skip
        one = BatchNorm._gradient_workspace(
            self, X, Scale, Bias, saved_mean, saved_inverse, saved_mean, saved_inverse, reserve, d_y, None, None, requested=(True, True, True),
            strided=strided,
        )  # fmt: skip
        return one + 2 * X.nbytes + 2 * Scale.nbytes + copies(strided, Y=Y)

    @gradient(
        "X", "Scale", "Bias", "Y", "SavedMean", "SavedVariance", "ReserveSpace", "Y@GRAD", gives=("X@GRAD", "Z@GRAD", "Scale@GRAD", "Bias@GRAD"),
        like={"Z@GRAD": "X"}, infer=_infer_fused, workspace=_fused_workspace,
    )  # fmt: skip
    def backward(
        self, X: Tensor, Scale: Tensor, Bias: Tensor, Y: Tensor, saved_mean: Tensor, saved_inverse: Tensor, reserve: Tensor | None, d_y: Tensor, *,
        requested: tuple[bool, ...],
    ) -> Any:  # fmt: skip
        d = _through(d_y, Y)
        wanted = (requested[0], requested[2], requested[3])
        d_x, d_scale, d_bias = BatchNorm.backward.kernel(
            self, X, Scale, Bias, saved_mean, self._variance(saved_inverse), saved_mean, saved_inverse, reserve, d, None, None, requested=wanted
        )
        return d_x, d, d_scale, d_bias

    def _variance(self, saved_inverse: Tensor) -> Tensor:
        """Return the variance, used in tests alone: the gradient is not given the moving statistics."""
        return saved_inverse.pow(-2).sub_(self.epsilon) if self._tests() else saved_inverse

    samples = [
        sample(X=f32(4, 5, 2, 3), Z=f32(4, 5, 2, 3), Scale=f32(3, low=0.5), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5)),
        sample(X=f32(4, 3), Z=f32(4, 3), Scale=f32(3, low=0.5), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5)),
    ]
    rejects = [
        reject(X=f32(4, 3), Z=f32(5, 3), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3), says="Z must have the dims of X"),
        reject(X=f32(4, 3), Z=f32(4, 3, 1), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3), says="Z must have 2 dims"),
    ]


def _through(d: Tensor, y: Tensor) -> Tensor:
    """Return the gradient before a relu with the result ``y``."""
    return aten.threshold_backward(d, y, 0)
