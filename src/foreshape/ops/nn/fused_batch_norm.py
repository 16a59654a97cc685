"""Batch normalization with an activation in the same operator, as rewritten programs have it."""

from __future__ import annotations

from typing import Any

from foreshape.operator import AttrType, attribute, gradient, operand
from foreshape.operator.composition import Composition
from foreshape.operator.require import require, require_equal
from foreshape.operator.samples import f32, reject, sample
from foreshape.ops.nn.batch_norm import BatchNorm
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.spec import FLOATING, Spec


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

    def _attributes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in BatchNorm.schema.attributes}

    def expand(self, of: Composition, X: Any, Scale: Any, Bias: Any, Mean: Any, Variance: Any, MomentumTensor: Any, Z: Any) -> Any:
        given = {"X": X, "Scale": Scale, "Bias": Bias, "Mean": Mean, "Variance": Variance, "MomentumTensor": MomentumTensor}
        y, mean, variance, saved, saved_inverse, _ = of("batch_norm", self._attributes(), **given)
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
        sample(X=f32(4, 3), Z=f32(4, 3), Scale=f32(3, low=0.5), Bias=f32(3), Mean=f32(3), Variance=f32(3, low=0.5)),
    ]
    rejects = [
        reject(X=f32(4, 3), Z=f32(5, 3), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3), says="Z must have the dims of X"),
        reject(X=f32(4, 3), Z=f32(4, 3, 1), Scale=f32(3), Bias=f32(3), Mean=f32(3), Variance=f32(3), says="Z must have 2 dims"),
    ]
