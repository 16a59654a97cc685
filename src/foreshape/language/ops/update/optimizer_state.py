"""State of optimizers beside the parameters: the loss's scale in half precision, sums for an average of models, a decaying rate."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import BOOL, FLOATING, FP32, FP64, INT32, INT64, Spec, tensor
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import DENSE_OR_ROWS, NOT_DIFFERENTIABLE, ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require, require_equal
from foreshape.language.operator.samples import b1, f32, i32, i64, reject, sample
from foreshape.language.ops.math.pairs import same_dims
from foreshape.language.ops.update.layer_wise import largest
from foreshape.language.ops.update.updates import check_one_number


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
        infinite = torch.zeros((), dtype=torch.bool, device=Scale.device)
        for x in X:
            infinite = infinite | (x.is_finite() if isinstance(x, Rows) else x.isfinite().all()).logical_not_()
            factor = torch.where(infinite, 0.0, inverse).to(x.dtype if x.dtype == torch.float64 else torch.float32)
            if isinstance(x, Rows):
                x.become(x.scaled(factor.to(x.dtype)))
            else:
                x.mul_(factor)
        return X, infinite.reshape(1)

    samples = [
        sample(X=[f32(3, 2), f32(5)], Scale=f32(1, data=[8.0])),
        sample(X=[f32(3, 2), f32(5)], Scale=f32(data=0.5)),
        sample(X=[f32(0, 2)], Scale=f32(1, data=[8.0])),
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
        if not FoundInfinite.is_cpu:
            self._on_device(X, FoundInfinite.reshape(()), PrevLossScaling, InGoodSteps, InBadSteps, StopUpdate)
            return X, PrevLossScaling, InGoodSteps, InBadSteps
        infinite = bool(FoundInfinite.item())
        if infinite:
            for x in X:
                _ = x.become(Rows.empty(x.shape, x.dtype, x.device)) if isinstance(x, Rows) else x.zero_()
        if not (self.stop_update if StopUpdate is None else bool(StopUpdate.item())):
            self._move(infinite, PrevLossScaling, InGoodSteps, InBadSteps)
        return X, PrevLossScaling, InGoodSteps, InBadSteps

    def _on_device(self, X: list[Tensor | Rows], infinite: Tensor, scale: Tensor, good: Tensor, bad: Tensor, stop: Tensor | None) -> None:
        """Do the same without a number on the host, for which it would wait. Sparse rows stay, with values of zero."""
        for x in X:
            if isinstance(x, Rows):
                x.become(Rows(x.rows, x.values.masked_fill(infinite, 0.0), x.height))
            else:
                x.masked_fill_(infinite, 0.0)
        if stop is None and self.stop_update:
            return
        new_good, new_bad = (good + 1).masked_fill_(infinite, 0), torch.where(infinite, bad + 1, 0).to(bad.dtype)
        grows, falls = new_good == self.incr_every_n_steps, new_bad == self.decr_every_n_nan_or_inf
        larger = scale * self.incr_ratio
        new_scale = torch.where(grows & larger.isfinite(), larger, torch.where(falls, (scale * self.decr_ratio).clamp_(min=1.0), scale))
        for value, new in ((scale, new_scale), (good, new_good.masked_fill_(grows, 0)), (bad, new_bad.masked_fill_(falls, 0))):
            value.copy_(new if stop is None else torch.where(stop.reshape(()), value, new))

    def _move(self, infinite: bool, scale: Tensor, good: Tensor, bad: Tensor) -> None:
        steps, idle, limit = (bad, good, self.decr_every_n_nan_or_inf) if infinite else (good, bad, self.incr_every_n_steps)
        idle.zero_()
        steps.add_(1)
        if steps.item() != limit:
            return
        steps.zero_()
        if infinite:
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
    ]  # fmt: skip


_MOST_IN_A_SUM = 16384
"""After so many steps a sum is added to the next one, to stay exact."""


class AverageAccumulates(Operator):
    """Sums of a parameter for averages: param is added to in_sum_1. It moves on to in_sum_2 after each 16384 steps, and all to in_sum_3 at the end of a window.

    A window ends once in_num_accumulates has reached ``min_average_window``, and the lesser of ``max_average_window`` and ``average_window`` times
    in_num_updates. The average is the sum of all three over in_num_accumulates + in_old_num_accumulates steps.
    """

    type = "average_accumulates"
    gradient = NOT_DIFFERENTIABLE
    param = operand((FP32, FP64), doc="any shape")
    in_sum_1 = operand((FP32, FP64), same_type_as="param", doc="as param")
    in_sum_2 = operand((FP32, FP64), same_type_as="param", doc="as param")
    in_sum_3 = operand((FP32, FP64), same_type_as="param", doc="as param")
    in_num_accumulates = operand((INT64,), doc="[1]")
    in_old_num_accumulates = operand((INT64,), doc="[1]")
    in_num_updates = operand((INT64,), doc="[1]")
    out_sum_1 = result(updates="in_sum_1", doc="in_sum_1")
    out_sum_2 = result(updates="in_sum_2", doc="in_sum_2")
    out_sum_3 = result(updates="in_sum_3", doc="in_sum_3")
    out_num_accumulates = result(updates="in_num_accumulates", doc="in_num_accumulates")
    out_old_num_accumulates = result(updates="in_old_num_accumulates", doc="in_old_num_accumulates")
    out_num_updates = result(updates="in_num_updates", doc="in_num_updates")
    average_window = attribute(AttrType.FLOAT, 0.0)
    max_average_window = attribute(AttrType.LONG)
    min_average_window = attribute(AttrType.LONG, 10000)

    def infer_shape(self, *specs: Any) -> Any:
        param: Spec = specs[0]
        slots = [o.name for o in self.schema.operands]
        for slot, spec in zip(slots[1:4], specs[1:4], strict=True):
            same_dims(param, spec, ("param", slot))
        for slot, spec in zip(slots[4:], specs[4:], strict=True):
            require_equal(spec.elements, 1, f"{slot} must be one number", **{slot: None})
        return tuple(s.like() for s in specs[1:])

    def kernel(self, param: Tensor, in_sum_1: Tensor, in_sum_2: Tensor, in_sum_3: Tensor, in_num_accumulates: Tensor, in_old_num_accumulates: Tensor,
               in_num_updates: Tensor) -> Any:  # fmt: skip
        in_num_updates += 1
        in_num_accumulates += 1
        updates, summed = int(in_num_updates), int(in_num_accumulates)
        in_sum_1 += param
        if updates % _MOST_IN_A_SUM == 0:
            in_sum_2 += in_sum_1
            in_sum_1.zero_()
        if summed >= self.min_average_window and summed >= min(self.max_average_window, int(updates * self.average_window)):
            torch.add(in_sum_1, in_sum_2, out=in_sum_3)
            in_sum_1.zero_()
            in_sum_2.zero_()
            in_old_num_accumulates.copy_(in_num_accumulates)
            in_num_accumulates.zero_()
        return in_sum_1, in_sum_2, in_sum_3, in_num_accumulates, in_old_num_accumulates, in_num_updates

    samples = [
        sample(param=f32(2, 3), in_sum_1=f32(2, 3), in_sum_2=f32(2, 3), in_sum_3=f32(2, 3), in_num_accumulates=i64(1, data=[n]),
               in_old_num_accumulates=i64(1, data=[3]), in_num_updates=i64(1, data=[updates]), average_window=0.5, max_average_window=20,
               min_average_window=8)
        for n, updates in ((4, 7), (9, 11), (9, 90), (19, 90), (4, 16383))
    ]  # fmt: skip
    rejects = [
        reject(param=f32(2, 3), in_sum_1=f32(2, 3), in_sum_2=f32(2, 3), in_sum_3=f32(2, 3), in_num_accumulates=i64(2), in_old_num_accumulates=i64(1),
               in_num_updates=i64(1), max_average_window=20, says="must be one number"),
    ]  # fmt: skip


class Pow2DecayWithLinearWarmup(Operator):
    """Step grows by one, and LearningRate becomes the rate of this step.

    Up to ``warmup_steps`` it is base_lr * step / warmup_steps. From there to ``total_steps`` it is (base_lr - end_lr) * f^2 + end_lr, with f = 1 - (step -
    warmup_steps) / (total_steps - warmup_steps); and end_lr after them.
    """

    type = "pow2_decay_with_linear_warmup"
    gradient = NOT_DIFFERENTIABLE
    LearningRate = operand((FP32, FP64), doc="[1]")
    Step = operand((INT64,), doc="[1]")
    LearningRateOut = result(updates="LearningRate", doc="LearningRate")
    StepOut = result(updates="Step", doc="Step")
    warmup_steps = attribute(AttrType.LONG, low=0)
    total_steps = attribute(AttrType.LONG, low=0)
    base_lr = attribute(AttrType.FLOAT)
    end_lr = attribute(AttrType.FLOAT)

    def infer_shape(self, LearningRate: Spec, Step: Spec) -> tuple[Spec, Spec]:
        require_equal(LearningRate.elements, 1, "LearningRate must be one number", LearningRate=None)
        require_equal(Step.elements, 1, "Step must be one number", Step=None)
        requirement = f"warmup_steps must be at most total_steps, {self.total_steps}, not {self.warmup_steps}"
        require(self.warmup_steps <= self.total_steps, requirement, LearningRate=None)
        return LearningRate.like(), Step.like()

    def kernel(self, LearningRate: Tensor, Step: Tensor) -> tuple[Tensor, Tensor]:
        Step += 1
        step = int(Step)
        rate = self.end_lr
        if step <= self.warmup_steps and self.warmup_steps > 0:
            rate = self.base_lr * step / self.warmup_steps
        elif step < self.total_steps:
            left = 1.0 - (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
            rate = (self.base_lr - self.end_lr) * left * left + self.end_lr
        LearningRate.fill_(rate)
        return LearningRate, Step

    samples = [
        sample(LearningRate=f32(1, data=[0.1]), Step=i64(1, data=[step]), warmup_steps=warmup, total_steps=20, base_lr=0.5, end_lr=0.01)
        for step, warmup in ((0, 5), (3, 5), (4, 5), (5, 5), (11, 5), (18, 5), (19, 5), (30, 5), (0, 0), (6, 0))
    ]
    rejects = [
        reject(LearningRate=f32(2), Step=i64(1), warmup_steps=5, total_steps=9, base_lr=0.5, end_lr=0.1, says="LearningRate must be one number"),
        reject(LearningRate=f32(1), Step=i64(2), warmup_steps=5, total_steps=9, base_lr=0.5, end_lr=0.1, says="Step must be one number"),
        reject(LearningRate=f32(1), Step=i64(1), warmup_steps=5, total_steps=4, base_lr=0.5, end_lr=0.1, says="warmup_steps must be at most total_steps"),
    ]
