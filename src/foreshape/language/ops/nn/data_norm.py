"""data_norm: features normalized by sums over all batches."""

from __future__ import annotations

from typing import Any, ClassVar

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import SchemaError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require, require_divides, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made

_SHOWN = 1e-7
"""The first number of a slot is its count of shows; below this it was never shown."""


class DataNorm(Operator):
    """Y = (X - Means) * Scales, with Means = BatchSum / BatchSize and Scales = sqrt(BatchSize / BatchSquareSum), for each feature.

    With ``enable_scale_and_shift`` it is then multiplied by ``scale_w``, plus ``bias``. With ``slot_dim`` above 0 features come in slots of this size, and a
    slot with 0 as its first number gives zeros.

    The gradients of BatchSize, BatchSum and BatchSquareSum are no derivatives, but this batch's own numbers. These are the counted rows, the sum of their X,
    and the sum of (X - Means)^2 plus their number times epsilon. With slots they are divided by the rows, and the rows count as one.
    """

    type = "data_norm"
    scale_w = operand(FLOATING, optional=True, same_type_as="X", doc="[features], with enable_scale_and_shift")
    bias = operand(FLOATING, optional=True, same_type_as="X", doc="[features], with enable_scale_and_shift")
    X = operand(FLOATING, doc="[batch, features]")
    BatchSize = operand(FLOATING, same_type_as="X", doc="[features]: the counts of the sums")
    BatchSum = operand(FLOATING, same_type_as="X", doc="[features]")
    BatchSquareSum = operand(FLOATING, same_type_as="X", doc="[features]: the sums of squared distances from the mean")
    Y = result(doc="as X", layout="row")
    Means = result(doc="[features]", layout="row")
    Scales = result(doc="[features]", layout="row")
    epsilon = attribute(AttrType.FLOAT, 1e-4, low=0.0, high=0.0010000001)
    slot_dim = attribute(AttrType.INT, -1)
    summary_decay_rate = attribute(AttrType.FLOAT, 0.9999999)
    enable_scale_and_shift = attribute(AttrType.BOOLEAN, False)
    data_layout = attribute(AttrType.STRING, "NCHW")
    sync_stats = attribute(AttrType.BOOLEAN, False, doc="unused on CPU")

    def infer_shape(self, scale_w: Spec | None, bias: Spec | None, X: Spec, BatchSize: Spec, BatchSum: Spec, BatchSquareSum: Spec) -> Any:
        if self.enable_scale_and_shift and (scale_w is None or bias is None):
            fail("scale_w and bias must be given, since enable_scale_and_shift is True", SchemaError)
        out, per = self._checked_specs(X)
        statistics = {"scale_w": scale_w, "bias": bias, "BatchSize": BatchSize, "BatchSum": BatchSum, "BatchSquareSum": BatchSquareSum}
        for slot, spec in statistics.items():
            if spec is not None:
                require(spec.rank == 1, f"{slot} must have 1 dim, not {spec.rank}", **{slot: None})
                require_equal(spec.known_dims[0], X.known_dims[1], f"{slot} must have one number for each column of X", **{slot: 0, "X": 1})
        return out, per, per

    def _checked_specs(self, X: Spec) -> tuple[Spec, Spec]:
        require_rank(2, X, "X")
        if self.slot_dim > 0:
            require_divides(self.slot_dim, X.known_dims[1], f"slot_dim = {self.slot_dim} must divide the columns of X", X=1)
        return X.like(), X.dense((X.known_dims[1],))

    def _shown_slots(self, X: Tensor) -> Tensor | None:
        """Return the mask of shown slots, [batch, slots, 1]; None without slots."""
        if self.slot_dim <= 0:
            return None
        first = X[:, :: self.slot_dim]
        return (first.abs() >= _SHOWN).unsqueeze(2)

    def _masked(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return ``x`` with zeros in slots never shown, in place."""
        if mask is not None and x.numel():
            x.view(x.shape[0], -1, self.slot_dim).masked_fill_(~mask, 0.0)
        return x

    def kernel(
        self, scale_w: Tensor | None, bias: Tensor | None, X: Tensor, BatchSize: Tensor, BatchSum: Tensor, BatchSquareSum: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        means, scales = BatchSum / BatchSize, (BatchSize / BatchSquareSum).sqrt_()
        y = X.contiguous() - means
        y.mul_(scales)
        if self.enable_scale_and_shift and scale_w is not None and bias is not None:
            y.mul_(scale_w).add_(bias)
        return self._masked(y, self._shown_slots(X)), means.contiguous(), scales.contiguous()

    def workspace(
        self, scale_w: Spec | None, bias: Spec | None, X: Spec, BatchSize: Spec, BatchSum: Spec, BatchSquareSum: Spec, *, strided: frozenset[str]
    ) -> Size:
        return 2 * X.nbytes + 2 * BatchSize.nbytes + copies(strided, X=X)

    def _infer_gradient(self, scale_w: Spec | None, bias: Spec | None, X: Spec, Means: Spec, Scales: Spec, d_y: Spec) -> Any:
        out, per = self._checked_specs(X)
        check_made(Means=(Means, per), Scales=(Scales, per), Y_GRAD=(d_y, out), scale_w=(scale_w, per), bias=(bias, per))
        if self.enable_scale_and_shift and scale_w is None:
            fail("scale_w must be given, since enable_scale_and_shift is True", SchemaError)
        return None if scale_w is None else per, None if bias is None else per, out, per, per, per

    def _gradient_workspace(self, scale_w: Spec | None, bias: Spec | None, X: Spec, Means: Spec, Scales: Spec, d_y: Spec, *, strided: frozenset[str]) -> Size:
        return 5 * X.nbytes + 8 * Means.nbytes + copies(strided, X=X, Y_GRAD=d_y)

    @gradient(
        "scale_w", "bias", "X", "Means", "Scales", "Y@GRAD",
        gives=("scale_w@GRAD", "bias@GRAD", "X@GRAD", "BatchSize@GRAD", "BatchSum@GRAD", "BatchSquareSum@GRAD"),
        like={"BatchSize@GRAD": "Means", "BatchSum@GRAD": "Means", "BatchSquareSum@GRAD": "Means"}, infer=_infer_gradient, workspace=_gradient_workspace,
        layout={"X@GRAD": "row"},
    )  # fmt: skip
    def backward(self, scale_w: Tensor | None, bias: Tensor | None, X: Tensor, Means: Tensor, Scales: Tensor, d_y: Tensor) -> Any:
        mask = self._shown_slots(X)
        apart = self._masked(X.contiguous() - Means, mask)
        d_scale = d_bias = None
        d = d_y.contiguous()
        if self.enable_scale_and_shift and scale_w is not None:
            d = self._masked(d.clone(), mask)
            d_scale, d_bias = (d * apart).sum(0) * Scales, d.sum(0)
            d_x = d * (Scales * scale_w)
        else:
            d_x = d * Scales
            d_scale, d_bias = (None if s is None else torch.zeros_like(s) for s in (scale_w, bias))
        square = apart.mul_(apart).sum(0)
        if mask is None:
            size = torch.full_like(Means, X.shape[0])
            return d_scale, d_bias, d_x, size, X.sum(0), square.add_(size, alpha=self.epsilon)
        rows = mask.sum(0).expand(-1, self.slot_dim).reshape(-1).to(X.dtype)
        some = rows.clamp(min=1)
        total = self._masked(X.clone(memory_format=torch.contiguous_format), mask).sum(0)
        return d_scale, d_bias, d_x, rows.clamp(max=1), total / some, square / some + rows * self.epsilon

    _sums: ClassVar[dict[str, Any]] = {"BatchSize": f32(6, low=2.0, high=5.0), "BatchSum": f32(6), "BatchSquareSum": f32(6, low=2.0, high=9.0)}
    _slots: ClassVar[list[float]] = [0.0, 1.5, 2.0, -1.0, 0.5, 3.0, 1.0, 0.3, 0.0, 2.0, 0.0, -0.7, 1.0, 1.1, 1.0, 0.2, 0.0, 0.4]
    samples = [
        sample(X=f32(3, 6), **_sums, differentiate=False),
        sample(X=f32(3, 6), **_sums, scale_w=f32(6), bias=f32(6), enable_scale_and_shift=True, epsilon=5e-4, differentiate=False),
        sample(X=f32(3, 6, data=_slots), **_sums, slot_dim=2, differentiate=False),
        sample(X=f32(3, 6, data=_slots), **_sums, slot_dim=2, scale_w=f32(6), bias=f32(6), enable_scale_and_shift=True, differentiate=False),
    ]
    rejects = [reject(X=f32(3, 6), **_sums, enable_scale_and_shift=True, says="scale_w and bias must be given", error=SchemaError)]
