"""The scale of a loss in half precision: gradients are unscaled and checked, and the scale goes up or down."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.operator import DENSE_OR_ROWS, ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require
from foreshape.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.ops.update.layer_wise import largest
from foreshape.ops.update.updates import check_one_number
from foreshape.spec import BOOL, FLOATING, INT32, Spec, tensor
from foreshape.values.rows import Rows
from foreshape.values.torch_proxy import Tensor, torch


class CheckFiniteAndUnscale(Operator):
    """FoundInfinite = true if X has a NaN or an infinity; Out = X / Scale, but 0 * X from the first such tensor on.

    Of sparse rows, not supported by PaddlePaddle's operator, the values are scaled.
    """

    type = "check_finite_and_unscale"
    gradient = ZERO_GRADIENT
    X = operand(FLOATING, many=True, kinds=DENSE_OR_ROWS, doc="any shapes: gradients of a scaled loss")
    Scale = operand(FLOATING, doc="one number")
    Out = result(many=True, updates="X", doc="each as its X")
    FoundInfinite = result(doc="bool [1]")

    def infer_shape(self, X: tuple[Spec, ...], Scale: Spec) -> Any:
        check_one_number(Scale, "Scale")
        return X, tensor(BOOL, 1)

    def workspace(self, X: tuple[Spec, ...], Scale: Spec) -> Size:
        return largest(X, 2)

    def kernel(self, X: list[Tensor | Rows], Scale: Tensor) -> tuple[list[Tensor | Rows], Tensor]:
        inverse = Scale.reshape(()).reciprocal()
        found = torch.zeros((), dtype=torch.bool, device=Scale.device)
        for x in X:
            found = found | (x.is_finite() if isinstance(x, Rows) else x.isfinite().all()).logical_not_()
            factor = torch.where(found, 0.0, inverse).to(x.dtype if x.dtype == torch.float64 else torch.float32)
            if isinstance(x, Rows):
                x.become(x.scaled(factor.to(x.dtype)))
            else:
                x.mul_(factor)
        return X, found.reshape(1)

    samples = [
        sample(X=[f32(3, 2), f32(5)], Scale=f32(1, data=[8.0])),
        sample(X=[f32(3, 2), f32(5)], Scale=f32(data=0.5)),
        sample(X=[f32(0, 2)], Scale=f32(1, data=[8.0])),
    ]
    rejects = [
        reject(X=[f32(3, 2)], Scale=f32(2), says="Scale must hold one number"),
        reject(X=[], Scale=f32(1), says="X is missing", error=SchemaError),
        reject(X=[i64(3)], Scale=f32(1), says="X must be", error=TypeMismatchError),
    ]


class UpdateLossScaling(Operator):
    """Out = 0 (for sparse rows: no rows) if FoundInfinite, otherwise X. The scale is multiplied by ``incr_ratio`` after ``incr_every_n_steps`` good steps, and
    by ``decr_ratio``, down to 1, after ``decr_every_n_nan_or_inf`` steps with infinite numbers.

    It stays if it would become infinite. ``stop_update``, or StopUpdate, leaves it and the counts of steps as they are.
    """

    type = "update_loss_scaling"
    gradient = ZERO_GRADIENT
    X = operand(FLOATING, many=True, kinds=DENSE_OR_ROWS, doc="any shapes: gradients")
    FoundInfinite = operand((BOOL,), doc="one truth value")
    PrevLossScaling = operand(FLOATING, doc="one number")
    InGoodSteps = operand((INT32,), doc="one number")
    InBadSteps = operand((INT32,), doc="one number")
    StopUpdate = operand((BOOL,), optional=True, doc="one truth value, in place of stop_update")
    Out = result(many=True, updates="X", doc="each as its X")
    LossScaling = result(updates="PrevLossScaling", doc="one number")
    OutGoodSteps = result(updates="InGoodSteps", doc="one number")
    OutBadSteps = result(updates="InBadSteps", doc="one number")
    incr_every_n_steps = attribute(AttrType.INT, low=1)
    decr_every_n_nan_or_inf = attribute(AttrType.INT, low=1)
    incr_ratio = attribute(AttrType.FLOAT)
    decr_ratio = attribute(AttrType.FLOAT)
    stop_update = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: tuple[Spec, ...], FoundInfinite: Spec, PrevLossScaling: Spec, InGoodSteps: Spec, InBadSteps: Spec, StopUpdate: Spec | None) -> Any:
        require(self.incr_ratio > 1.0, f"incr_ratio must be more than 1, not {self.incr_ratio}")
        require(0.0 < self.decr_ratio < 1.0, f"decr_ratio must be between 0 and 1, not {self.decr_ratio}")
        numbers = {"FoundInfinite": FoundInfinite, "PrevLossScaling": PrevLossScaling, "InGoodSteps": InGoodSteps, "InBadSteps": InBadSteps}
        for slot, spec in {**numbers, "StopUpdate": StopUpdate}.items():
            check_one_number(spec, slot)
        return X, PrevLossScaling, InGoodSteps.like(), InBadSteps.like()

    def kernel(
        self, X: list[Tensor | Rows], FoundInfinite: Tensor, PrevLossScaling: Tensor, InGoodSteps: Tensor, InBadSteps: Tensor, StopUpdate: Tensor | None
    ) -> Any:
        found = bool(FoundInfinite.item())
        if found:
            for x in X:
                _ = x.become(Rows.empty(x.shape, x.dtype, x.device)) if isinstance(x, Rows) else x.zero_()
        if not (self.stop_update if StopUpdate is None else bool(StopUpdate.item())):
            self._move(found, PrevLossScaling, InGoodSteps, InBadSteps)
        return X, PrevLossScaling, InGoodSteps, InBadSteps

    def _move(self, found: bool, scale: Tensor, good: Tensor, bad: Tensor) -> None:
        steps, other, most = (bad, good, self.decr_every_n_nan_or_inf) if found else (good, bad, self.incr_every_n_steps)
        other.zero_()
        steps.add_(1)
        if steps.item() != most:
            return
        steps.zero_()
        if found:
            scale.mul_(self.decr_ratio).clamp_min_(1.0)
        else:
            larger = scale * self.incr_ratio
            if bool(larger.isfinite().item()):
                scale.copy_(larger)

    samples = [
        sample(X=[f32(3, 2), f32(5)], FoundInfinite=b1(1, data=[False]), PrevLossScaling=f32(1, data=[8.0]), InGoodSteps=i32(1, data=[2]),
               InBadSteps=i32(1, data=[1]), incr_every_n_steps=3, decr_every_n_nan_or_inf=2, incr_ratio=2.0, decr_ratio=0.5),
        sample(X=[f32(3, 2), f32(5)], FoundInfinite=b1(1, data=[True]), PrevLossScaling=f32(1, data=[8.0]), InGoodSteps=i32(1, data=[2]),
               InBadSteps=i32(1, data=[1]), incr_every_n_steps=3, decr_every_n_nan_or_inf=2, incr_ratio=2.0, decr_ratio=0.5),
        sample(X=[f32(3, 2)], FoundInfinite=b1(data=True), PrevLossScaling=f32(data=8.0), InGoodSteps=i32(data=2), InBadSteps=i32(data=1),
               StopUpdate=b1(1, data=[True]), incr_every_n_steps=3, decr_every_n_nan_or_inf=2, incr_ratio=2.0, decr_ratio=0.5),
    ]  # fmt: skip
    rejects = [
        reject(X=[f32(3)], FoundInfinite=b1(2), PrevLossScaling=f32(1), InGoodSteps=i32(1), InBadSteps=i32(1), incr_every_n_steps=3,
               decr_every_n_nan_or_inf=2, incr_ratio=2.0, decr_ratio=0.5, says="FoundInfinite must hold one number"),
        reject(X=[f32(3)], FoundInfinite=b1(1), PrevLossScaling=f32(1), InGoodSteps=i32(1), InBadSteps=i32(1), incr_every_n_steps=3,
               decr_every_n_nan_or_inf=2, incr_ratio=1.0, decr_ratio=0.5, says="incr_ratio must be more than 1"),
        reject(X=[f32(3)], FoundInfinite=b1(1), PrevLossScaling=f32(1), InGoodSteps=i32(1), InBadSteps=i32(1), incr_every_n_steps=3,
               decr_every_n_nan_or_inf=2, incr_ratio=2.0, decr_ratio=1.5, says="decr_ratio must be between 0 and 1"),
        reject(X=[f32(3)], FoundInfinite=b1(1), PrevLossScaling=f32(1), InGoodSteps=i64(1), InBadSteps=i32(1), incr_every_n_steps=3,
               decr_every_n_nan_or_inf=2, incr_ratio=2.0, decr_ratio=0.5, says="InGoodSteps must be", error=TypeMismatchError),
    ]  # fmt: skip
