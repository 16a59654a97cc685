"""A learning rate with a linear rise and a quadratic decay, updated by one operator in each step."""

from __future__ import annotations

from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require, require_equal
from foreshape.operator.samples import f32, i32, i64, reject, sample
from foreshape.spec import FP32, FP64, INT64, Spec
from foreshape.values.torch_proxy import Tensor


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
        most = f"warmup_steps must be at most total_steps, {self.total_steps}, not {self.warmup_steps}"
        require(self.warmup_steps <= self.total_steps, most, LearningRate=None)
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
        reject(LearningRate=f32(1), Step=i64(1), warmup_steps=-1, total_steps=4, base_lr=0.5, end_lr=0.1, says="at least 0", error=SchemaError),
        reject(LearningRate=f32(1), Step=i32(1), warmup_steps=1, total_steps=4, base_lr=0.5, end_lr=0.1, says="int64", error=TypeMismatchError),
    ]
