"""Updates with each step scaled by the parameter's norm: LAMB and LARS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import BOOL, FLOATING, SELECTED_ROWS, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import fail, require
from foreshape.language.operator.samples import b1, f32, f64, reject, sample
from foreshape.language.ops.update.adam import corrected
from foreshape.language.ops.update.each_element import BELOW_ONE
from foreshape.language.ops.update.sparse import block_bytes, in_blocks
from foreshape.language.ops.update.updates import Update, check_one_number, check_same_shape, number, skipping_bytes, subtract, update_unless


class Lamb(Update):
    """Moment1Out = beta1 * Moment1 + (1 - beta1) * g; Moment2Out = beta2 * Moment2 + (1 - beta2) * g^2, where g is Grad.

    step = Moment1Out / (1 - Beta1Pow) / (sqrt(Moment2Out / (1 - Beta2Pow)) + epsilon) + weight_decay * Param;
    ParamOut = Param - LearningRate * ratio * step, where ratio = norm(Param) / norm(step) (You et al., 2020).

    The ratio is 1 if one of the norms is 0, and without a weight decay, unless ``always_adapt``. Sparse rows: g is zero elsewhere, so all of the parameter
    moves, as in dense training and in PaddlePaddle; a block of the table at a time.
    """

    type = "lamb"
    Moment1 = operand(FLOATING, doc="as Param")
    Moment2 = operand(FLOATING, doc="as Param")
    Beta1Pow = operand(FLOATING, doc="one number: beta1^t of this step")
    Beta2Pow = operand(FLOATING, doc="one number: beta2^t of this step")
    MasterParam = operand(FLOATING, optional=True, doc="the parameter in full precision")
    SkipUpdate = operand((BOOL,), optional=True, doc="one truth value; True leaves everything as it is")
    Moment1Out = result(updates="Moment1", doc="as Param")
    Moment2Out = result(updates="Moment2", doc="as Param")
    Beta1PowOut = result(updates="Beta1Pow", doc="one number, for the next step")
    Beta2PowOut = result(updates="Beta2Pow", doc="one number, for the next step")
    MasterParamOut = result(updates="MasterParam", doc="made if MasterParam is given")
    weight_decay = attribute(AttrType.FLOAT)
    beta1 = attribute(AttrType.FLOAT, 0.9, low=0.0, high=BELOW_ONE)
    beta2 = attribute(AttrType.FLOAT, 0.999, low=0.0, high=BELOW_ONE)
    epsilon = attribute(AttrType.FLOAT, 1e-6)
    always_adapt = attribute(AttrType.BOOLEAN, False)
    multi_precision = attribute(AttrType.BOOLEAN, False)

    def infer_shape(
        self, Param: Spec, Grad: Spec, LearningRate: Spec, Moment1: Spec, Moment2: Spec, Beta1Pow: Spec, Beta2Pow: Spec, MasterParam: Spec | None,
        SkipUpdate: Spec | None,
    ) -> Any:  # fmt: skip
        self._check(Param, Grad, LearningRate, MasterParam, Moment1=Moment1, Moment2=Moment2)
        for slot, spec in {"Beta1Pow": Beta1Pow, "Beta2Pow": Beta2Pow, "SkipUpdate": SkipUpdate}.items():
            check_one_number(spec, slot)
        _check_alike(Param, MasterParam, Moment1=Moment1, Moment2=Moment2)
        return Param, Moment1, Moment2, Beta1Pow, Beta2Pow, MasterParam

    def kernel(
        self, Param: Tensor, Grad: Tensor | Rows, LearningRate: Tensor, Moment1: Tensor, Moment2: Tensor, Beta1Pow: Tensor, Beta2Pow: Tensor,
        MasterParam: Tensor | None, SkipUpdate: Tensor | None,
    ) -> Any:  # fmt: skip
        out = Param, Moment1, Moment2, Beta1Pow, Beta2Pow, MasterParam
        update_unless(SkipUpdate, Grad, out, lambda: self._update(Param, Grad, LearningRate, Moment1, Moment2, Beta1Pow, Beta2Pow, MasterParam))
        return out

    def _update(
        self,
        Param: Tensor,
        Grad: Tensor | Rows,
        LearningRate: Tensor,
        Moment1: Tensor,
        Moment2: Tensor,
        Beta1Pow: Tensor,
        Beta2Pow: Tensor,
        MasterParam: Tensor | None,
    ) -> None:
        target = Param if MasterParam is None else MasterParam
        scale, epsilon = corrected(1.0, self.epsilon, number(Beta1Pow), number(Beta2Pow))
        if isinstance(Grad, Rows):
            self._rows(Grad.merged(), target, Moment1, Moment2, scale, epsilon, LearningRate)
        else:
            self._moments(Grad.to(target.dtype), Moment1, Moment2)
            step = self._direction(target, Moment1, Moment2, scale, epsilon)
            rate = self._rate(LearningRate, target.square().sum(), step.square().sum()) if self._adapts() else number(LearningRate)
            subtract(target, step, rate)
        if MasterParam is not None:
            Param.copy_(MasterParam)
        Beta1Pow.mul_(self.beta1)
        Beta2Pow.mul_(self.beta2)

    def _adapts(self) -> bool:
        return self.weight_decay > 0.0 or self.always_adapt

    def _moments(self, grad: Tensor, moment1: Tensor, moment2: Tensor) -> None:
        moment1.lerp_(grad, 1.0 - self.beta1)
        moment2.mul_(self.beta2).addcmul_(grad, grad, value=1.0 - self.beta2)

    def _direction(self, param: Tensor, moment1: Tensor, moment2: Tensor, scale: Any, epsilon: Any) -> Tensor:
        """Return the step without its ratio; the corrections of both moments are in ``scale`` and ``epsilon``."""
        step = moment2.sqrt().add_(epsilon)
        torch.div(moment1, step, out=step).mul_(scale)
        return step.add_(param, alpha=self.weight_decay) if self.weight_decay else step

    def _rate(self, rate: Tensor, param: Tensor, step: Tensor) -> Any:
        """Return the learning rate times the ratio of two norms, given their squares."""
        ratio = torch.where((param > 0.0) & (step > 0.0), (param / step).sqrt_(), 1.0)
        return number(ratio * rate.reshape(()))

    def _rows(self, grad: Rows, param: Tensor, moment1: Tensor, moment2: Tensor, scale: Any, epsilon: Any, rate: Tensor) -> None:
        """Update by sparse rows, in two passes over the table: the ratio is known after the first."""
        norms = param.new_zeros(2)
        wholes = param, moment1, moment2
        for part, p, m, v in in_blocks(grad, wholes, param.dtype):
            self._moments(part, m, v)
            if self._adapts():
                norms += torch.stack([p.square().sum(), self._direction(p, m, v, scale, epsilon).square().sum()])
        scaled = self._rate(rate, norms[0], norms[1]) if self._adapts() else number(rate)
        nothing = Rows.unique(grad.rows[:0], grad.values[:0], grad.height)
        for _, p, m, v in in_blocks(nothing, wholes, param.dtype):
            subtract(p, self._direction(p, m, v, scale, epsilon), scaled)

    def _leaves_rows(self) -> bool:
        return False

    def workspace(
        self, Param: Spec, Grad: Spec, LearningRate: Spec, Moment1: Spec, Moment2: Spec, Beta1Pow: Spec, Beta2Pow: Spec, MasterParam: Spec | None,
        SkipUpdate: Spec | None,
    ) -> Size:  # fmt: skip
        target = Param if MasterParam is None else MasterParam
        if Grad.kind is SELECTED_ROWS:
            return 3 * block_bytes(target)
        skipping = skipping_bytes(SkipUpdate, Grad, Param, Moment1, Moment2, Beta1Pow, Beta2Pow, MasterParam)
        return (2 + (Grad.dtype is not target.dtype)) * target.nbytes + skipping

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2), Moment1=f32(3, 2), Moment2=f32(3, 2, low=0.0),
               Beta1Pow=f32(1, data=[0.9]), Beta2Pow=f32(1, data=[0.999]), weight_decay=0.1),
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(low=0.1, high=0.2), Moment1=f32(3, 2), Moment2=f32(3, 2, low=0.0),
               Beta1Pow=f32(data=0.5), Beta2Pow=f32(data=0.75), weight_decay=0.0, beta1=0.5, beta2=0.75, epsilon=1e-3),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(1), Moment1=f64(4), Moment2=f64(4, low=0.0), Beta1Pow=f32(1, data=[0.9]),
               Beta2Pow=f32(1, data=[0.999]), MasterParam=f64(4), SkipUpdate=b1(1, data=[False]), weight_decay=0.0, always_adapt=True,
               multi_precision=True),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(1), Moment1=f32(4), Moment2=f32(4, low=0.0), Beta1Pow=f32(1, data=[0.9]),
               Beta2Pow=f32(1, data=[0.999]), SkipUpdate=b1(1, data=[True]), weight_decay=0.1),
    ]  # fmt: skip
    rejects = [
        reject(Param=f32(3), Grad=f32(3), LearningRate=f32(1), Moment1=f64(3), Moment2=f32(3), Beta1Pow=f32(1), Beta2Pow=f32(1), weight_decay=0.1,
               says="Moment1 must have the element type of Param", error=TypeMismatchError),
    ]  # fmt: skip


class LarsMomentum(Operator):
    """For each parameter, with g = rescale_grad * Grad and its own decay from ``lars_weight_decay``: VelocityOut = mu * Velocity + rate * (g + decay * Param),
    and ParamOut = Param - VelocityOut.

    rate = LearningRate * lars_coeff * norm(Param) / (norm(g) + decay * norm(Param) + epsilon) (You et al., 2017). If the decay or one of the norms is 0, rate
    is LearningRate.
    """

    type = "lars_momentum"
    gradient = ZERO_GRADIENT
    Param = operand(FLOATING, many=True, doc="the parameters")
    Grad = operand(FLOATING, many=True, doc="their gradients, each as its Param")
    Velocity = operand(FLOATING, many=True, doc="each as its Param")
    LearningRate = operand(FLOATING, many=True, doc="one number for each")
    MasterParam = operand(FLOATING, many=True, optional=True, doc="the parameters in full precision")
    ParamOut = result(many=True, updates="Param", doc="the parameters, changed")
    VelocityOut = result(many=True, updates="Velocity", doc="each as its Param")
    MasterParamOut = result(many=True, updates="MasterParam", doc="made if MasterParam is given")
    mu = attribute(AttrType.FLOAT, doc="the factor of the old velocity")
    lars_coeff = attribute(AttrType.FLOAT, 0.001)
    lars_weight_decay = attribute(AttrType.FLOATS, [0.0005], doc="one for each parameter")
    epsilon = attribute(AttrType.FLOAT, 0.0)
    multi_precision = attribute(AttrType.BOOLEAN, False)
    rescale_grad = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(
        self, Param: tuple[Spec, ...], Grad: tuple[Spec, ...], Velocity: tuple[Spec, ...], LearningRate: tuple[Spec, ...], MasterParam: tuple[Spec, ...]
    ) -> Any:
        check_lists(Param, Grad=Grad, Velocity=Velocity, LearningRate=LearningRate, MasterParam=MasterParam)
        check_parameters(Param, Grad, MasterParam, Velocity=Velocity)
        for rate in LearningRate:
            check_one_number(rate, "LearningRate")
        decays: Sequence[float] = self.lars_weight_decay
        require(len(decays) == len(Param), f"lars_weight_decay must have one number for each Param: {len(Param)}, not {len(decays)}", Param=None)
        return Param, Velocity, MasterParam

    def kernel(self, Param: list[Tensor], Grad: list[Tensor], Velocity: list[Tensor], LearningRate: list[Tensor], MasterParam: list[Tensor]) -> Any:
        for index, (param, grad, velocity, rate, decay) in enumerate(zip(Param, Grad, Velocity, LearningRate, self.lars_weight_decay, strict=True)):
            target = MasterParam[index] if MasterParam else param
            self._update_parameter(target, grad.to(target.dtype), velocity, rate, decay)
            if MasterParam:
                param.copy_(target)
        return Param, Velocity, MasterParam

    def _update_parameter(self, param: Tensor, grad: Tensor, velocity: Tensor, rate: Tensor, decay: float) -> None:
        scaled: Any = number(rate)
        if decay > 0.0:
            of_param, of_grad = param.square().sum().sqrt_(), grad.square().sum().sqrt_().mul_(abs(self.rescale_grad))
            ratio = of_param * self.lars_coeff / (of_grad + of_param * decay + self.epsilon)
            scaled = number(torch.where((of_param > 0.0) & (of_grad > 0.0), ratio, 1.0) * rate.reshape(()))
        subtract(velocity.mul_(self.mu), grad, scaled, -self.rescale_grad)
        if decay:
            subtract(velocity, param, scaled, -decay)
        param.sub_(velocity)

    def workspace(
        self, Param: tuple[Spec, ...], Grad: tuple[Spec, ...], Velocity: tuple[Spec, ...], LearningRate: tuple[Spec, ...], MasterParam: tuple[Spec, ...]
    ) -> Size:
        return largest(Velocity, 2)

    samples = [
        sample(Param=[f32(3, 2), f32(5)], Grad=[f32(3, 2), f32(5)], Velocity=[f32(3, 2), f32(5)], LearningRate=[f32(1, low=0.1), f32(low=0.1)],
               mu=0.9, lars_coeff=0.5, lars_weight_decay=[0.1, 0.0]),
        sample(Param=[f32(3, 2)], Grad=[f32(3, 2)], Velocity=[f32(3, 2)], LearningRate=[f32(1, low=0.1)], mu=0.5, epsilon=0.1, rescale_grad=0.5),
        sample(Param=[f32(4)], Grad=[f32(4)], Velocity=[f64(4)], LearningRate=[f32(1, low=0.1)], MasterParam=[f64(4)], mu=0.5, multi_precision=True),
    ]  # fmt: skip
    rejects = [
        reject(Param=[f32(3)], Grad=[f32(3), f32(3)], Velocity=[f32(3)], LearningRate=[f32(1)], mu=0.9, says="Grad must have as many tensors as Param"),
        reject(Param=[f32(3)], Grad=[f32(3)], Velocity=[f32(4)], LearningRate=[f32(1)], mu=0.9, says="Velocity must have the dims of Param"),
        reject(Param=[f32(3)], Grad=[f32(3)], Velocity=[f32(3)], LearningRate=[f32(2)], mu=0.9, says="LearningRate must hold one number"),
        reject(Param=[f32(3), f32(4)], Grad=[f32(3), f32(4)], Velocity=[f32(3), f32(4)], LearningRate=[f32(1), f32(1)], mu=0.9,
               says="lars_weight_decay must have one number for each Param"),
        reject(Param=[f32(3)], Grad=[f64(3)], Velocity=[f32(3)], LearningRate=[f32(1)], mu=0.9, says="Grad must have the element type of Param",
               error=TypeMismatchError),
    ]  # fmt: skip


def check_lists(param: Sequence[Spec], **lists: Sequence[Spec]) -> None:
    """Require lists as long as Param; MasterParam may be left out."""
    for slot, specs in lists.items():
        if specs or slot != "MasterParam":
            require(len(specs) == len(param), f"{slot} must have as many tensors as Param: {len(param)}, not {len(specs)}", **{slot: None})


def check_parameters(param: Sequence[Spec], grad: Sequence[Spec], master: Sequence[Spec], **state: Sequence[Spec]) -> None:
    """Require gradients, full-precision copies and states like their parameters."""
    for index, (p, g) in enumerate(zip(param, grad, strict=True)):
        check_same_shape(p, g, "Grad")
        if g.dtype is not p.dtype:
            fail("Grad must have the element type of Param", TypeMismatchError, Grad=None, Param=None)
        full = master[index] if master else None
        if full is not None:
            check_same_shape(p, full, "MasterParam")
        states = {slot: specs[index] for slot, specs in state.items()}
        for slot, spec in states.items():
            check_same_shape(p, spec, slot)
        _check_alike(p, full, **states)


def _check_alike(param: Spec, master: Spec | None, **state: Spec) -> None:
    """Require the element type of the updated tensor from its state."""
    target = param if master is None else master
    for slot, spec in state.items():
        if spec.dtype is not target.dtype:
            fail(f"{slot} must have the element type of {'Param' if master is None else 'MasterParam'}", TypeMismatchError, **{slot: None})


def largest(specs: Sequence[Spec], times: int) -> Size:
    """Return ``times`` the bytes of the largest; of all, if none is known to be it."""
    sizes = [spec.nbytes for spec in specs]
    numbers = [size for size in sizes if isinstance(size, int)]
    out: Size = 0
    for size in sizes if len(numbers) < len(sizes) else [max(numbers, default=0)]:
        out = out + times * size
    return out
