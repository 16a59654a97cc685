"""Elementwise updates: Adadelta, Adamax, decayed Adagrad, proximal descent and Lion."""

from __future__ import annotations

from typing import Any, ClassVar

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, SELECTED_ROWS, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator import AttrType, attribute, operand, result
from foreshape.language.operator.require import fail
from foreshape.language.operator.samples import f32, f64, reject, sample
from foreshape.language.ops.update.sparse import block_bytes, in_blocks
from foreshape.language.ops.update.updates import Update, check_one_number, number, subtract

BELOW_ONE = 1.0 - 2.0**-24
"""The largest single-precision number below 1."""


class EachElement(Update):
    """The base: an update with a gradient of zeros moves elements, too, so sparse rows are updated as in dense training.

    A block of the table at a time: in place, but in time that grows with the table. (PaddlePaddle takes no sparse rows in these.)
    """

    abstract = True
    elementwise_state: ClassVar[tuple[str, ...]] = ()  # pyright: ignore[reportIncompatibleVariableOverride]
    _numbers: ClassVar[tuple[str, ...]] = ()
    """Operands of one number, beside the learning rate."""
    _temporaries: ClassVar[int] = 0
    """The temporary tensors of the parameter's size in a step."""

    def infer_shape(self, *specs: Any) -> Any:
        by_slot: dict[str, Spec | None] = dict(zip((o.name for o in self.schema.operands), specs, strict=True))
        param, grad, rate = (by_slot[n] for n in ("Param", "Grad", "LearningRate"))
        assert param is not None and grad is not None and rate is not None
        state = {slot: by_slot[slot] for slot in self.elementwise_state}
        self._check(param, grad, rate, by_slot.get("MasterParam"), **state)
        master = by_slot.get("MasterParam")
        target = param if master is None else master
        for slot, spec in state.items():
            if spec is not None and spec.dtype is not target.dtype:
                fail(f"{slot} must have the element type of {'Param' if master is None else 'MasterParam'}", TypeMismatchError, **{slot: None})
        for slot in self._numbers:
            check_one_number(by_slot[slot], slot)
        return tuple(by_slot[r.updates] for r in self.schema.results if r.updates is not None)

    def kernel(self, *tensors: Any) -> Any:
        by_slot: dict[str, Any] = dict(zip((o.name for o in self.schema.operands), tensors, strict=True))
        grad, param, master = by_slot["Grad"], by_slot["Param"], by_slot.get("MasterParam")
        target: Tensor = param if master is None else master
        wholes = [target, *(by_slot[slot] for slot in self.elementwise_state)]
        numbers = [number(by_slot[slot]) for slot in ("LearningRate", *self._numbers)]
        if isinstance(grad, Rows):
            for part, *parts in in_blocks(grad.merged(), wholes, target.dtype):
                self._step(numbers, part, *parts)
        else:
            self._step(numbers, grad.to(target.dtype), *wholes)
        if master is not None:
            param.copy_(master)
        return tuple(by_slot[r.updates] for r in self.schema.results if r.updates is not None)

    def _step(self, numbers: list[Any], grad: Tensor, param: Tensor, *state: Tensor) -> None:
        raise NotImplementedError

    def workspace(self, *specs: Any) -> Size:
        by_slot: dict[str, Spec | None] = dict(zip((o.name for o in self.schema.operands), specs, strict=True))
        param, grad, master = by_slot["Param"], by_slot["Grad"], by_slot.get("MasterParam")
        assert param is not None and grad is not None
        target = param if master is None else master
        if grad.kind is SELECTED_ROWS:
            return (1 + self._temporaries) * block_bytes(target)
        return (self._temporaries + (grad.dtype is not target.dtype)) * target.nbytes

    def _leaves_rows(self) -> bool:
        return False


class Adadelta(EachElement):
    """AvgSquaredGradOut = rho * AvgSquaredGrad + (1 - rho) * g^2, where g is Grad.

    step = g * sqrt((AvgSquaredUpdate + epsilon) / (AvgSquaredGradOut + epsilon));
    AvgSquaredUpdateOut = rho * AvgSquaredUpdate + (1 - rho) * step^2; ParamOut = Param - LearningRate * step (Zeiler, 2012). (Before PaddlePaddle 2.5 the
    learning rate was ignored there, as in the paper.)
    """

    type = "adadelta"
    elementwise_state = ("AvgSquaredGrad", "AvgSquaredUpdate")
    _temporaries = 2
    AvgSquaredGrad = operand(FLOATING, doc="as Param: the mean of the squared gradients")
    AvgSquaredUpdate = operand(FLOATING, doc="as Param: the mean of the squared steps")
    MasterParam = operand(FLOATING, optional=True, doc="the parameter in full precision")
    AvgSquaredGradOut = result(updates="AvgSquaredGrad", doc="as Param")
    AvgSquaredUpdateOut = result(updates="AvgSquaredUpdate", doc="as Param")
    MasterParamOut = result(updates="MasterParam", doc="made if MasterParam is given")
    rho = attribute(AttrType.FLOAT, 0.95)
    epsilon = attribute(AttrType.FLOAT, 1e-6)
    multi_precision = attribute(AttrType.BOOLEAN, False)

    def _step(self, numbers: list[Any], grad: Tensor, param: Tensor, *state: Tensor) -> None:
        squares, steps = state
        squares.mul_(self.rho).addcmul_(grad, grad, value=1.0 - self.rho)
        step = steps.add(self.epsilon).div_(squares.add(self.epsilon)).sqrt_().mul_(grad)
        steps.mul_(self.rho).addcmul_(step, step, value=1.0 - self.rho)
        subtract(param, step, numbers[0])

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2), AvgSquaredGrad=f32(3, 2, low=0.0),
               AvgSquaredUpdate=f32(3, 2, low=0.0)),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(), AvgSquaredGrad=f64(4, low=0.0), AvgSquaredUpdate=f64(4, low=0.0), MasterParam=f64(4),
               rho=0.8, epsilon=1e-3, multi_precision=True),
    ]  # fmt: skip
    rejects = [
        reject(Param=f32(3), Grad=f32(3), LearningRate=f32(1), AvgSquaredGrad=f32(3), AvgSquaredUpdate=f64(3),
               says="AvgSquaredUpdate must have the element type of Param", error=TypeMismatchError),
    ]  # fmt: skip


class Adamax(EachElement):
    """MomentOut = beta1 * Moment + (1 - beta1) * g, where g is Grad; InfNormOut = max(|g|, beta2 * InfNorm + epsilon).

    ParamOut = Param - LearningRate / (1 - Beta1Pow) * MomentOut / InfNormOut (Kingma and Ba, 2015). Beta1Pow is beta1^t of this step; another op multiplies it
    by beta1 for the next one, in PaddlePaddle's programs a `scale`.
    """

    type = "adamax"
    elementwise_state = ("Moment", "InfNorm")
    _numbers = ("Beta1Pow",)
    _temporaries = 1
    Moment = operand(FLOATING, doc="as Param: the mean of the gradients")
    InfNorm = operand(FLOATING, doc="as Param: the decaying largest gradient")
    Beta1Pow = operand(FLOATING, doc="one number")
    MasterParam = operand(FLOATING, optional=True, doc="the parameter in full precision")
    MomentOut = result(updates="Moment", doc="as Param")
    InfNormOut = result(updates="InfNorm", doc="as Param")
    MasterParamOut = result(updates="MasterParam", doc="made if MasterParam is given")
    beta1 = attribute(AttrType.FLOAT, 0.9, low=0.0, high=BELOW_ONE)
    beta2 = attribute(AttrType.FLOAT, 0.999, low=0.0, high=BELOW_ONE)
    epsilon = attribute(AttrType.FLOAT, 1e-8)
    multi_precision = attribute(AttrType.BOOLEAN, False)

    def _step(self, numbers: list[Any], grad: Tensor, param: Tensor, *state: Tensor) -> None:
        moment, norm = state
        rate, power = numbers
        if isinstance(power, float) and not power < 1.0:
            raise ExecutionError(f"Beta1Pow must be below 1; seen {power}")
        moment.lerp_(grad, 1.0 - self.beta1)
        torch.maximum(norm.mul_(self.beta2).add_(self.epsilon), grad.abs(), out=norm)
        subtract(param, moment / norm, rate / (1.0 - power))

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2), Moment=f32(3, 2), InfNorm=f32(3, 2, low=0.1),
               Beta1Pow=f32(1, data=[0.9])),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(), Moment=f64(4), InfNorm=f64(4, low=0.1), Beta1Pow=f32(data=0.5), MasterParam=f64(4),
               beta1=0.5, beta2=0.75, epsilon=1e-3, multi_precision=True),
    ]  # fmt: skip


class DecayedAdagrad(EachElement):
    """MomentOut = decay * Moment + (1 - decay) * g^2, where g is Grad; ParamOut = Param - LearningRate * g / (sqrt(MomentOut) + epsilon)."""

    type = "decayed_adagrad"
    elementwise_state = ("Moment",)
    _temporaries = 1
    Moment = operand(FLOATING, doc="as Param: the mean of the squared gradients")
    MomentOut = result(updates="Moment", doc="as Param")
    decay = attribute(AttrType.FLOAT, 0.95)
    epsilon = attribute(AttrType.FLOAT, 1e-6)

    def _step(self, numbers: list[Any], grad: Tensor, param: Tensor, *state: Tensor) -> None:
        (moment,) = state
        root = moment.mul_(self.decay).addcmul_(grad, grad, value=1.0 - self.decay).sqrt().add_(self.epsilon)
        subtract(param, torch.div(grad, root, out=root), numbers[0])

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2), Moment=f32(3, 2, low=0.0)),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(), Moment=f32(4, low=0.1), decay=0.5, epsilon=1e-3),
    ]


class Proximal(EachElement):
    """The base of updates with a step and then a shrinkage by an L1 and an L2 penalty."""

    abstract = True
    _temporaries = 1
    l1 = attribute(AttrType.FLOAT, 0.0, low=0.0)
    l2 = attribute(AttrType.FLOAT, 0.0, low=0.0)

    def _shrink(self, param: Tensor, rate: Any) -> None:
        if self.l1:
            param.sub_(param.clamp(-rate * self.l1, rate * self.l1))
        if self.l2:
            param.div_(1.0 + rate * self.l2)


class ProximalGD(Proximal):
    """ParamOut = sign(p) * max(|p| - LearningRate * l1, 0) / (1 + LearningRate * l2), where p = Param - LearningRate * Grad
    (Duchi and Singer, 2009)."""

    type = "proximal_gd"

    def _step(self, numbers: list[Any], grad: Tensor, param: Tensor, *state: Tensor) -> None:
        subtract(param, grad, numbers[0])
        self._shrink(param, numbers[0])

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2)),
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(low=0.1, high=0.2), l1=2.0, l2=0.5),
    ]
    rejects = [reject(Param=f32(3, 2), Grad=f32(3, 4), LearningRate=f32(1), says="Grad must have the dims of Param")]


class Lion(EachElement):
    """ParamOut = (1 - LearningRate * weight_decay) * Param - LearningRate * sign(beta1 * Moment + (1 - beta1) * Grad);
    MomentOut = beta2 * Moment + (1 - beta2) * Grad (Chen et al., 2023).

    An operator of this project: no other program knows it.
    """

    type = "lion"
    elementwise_state = ("Moment",)
    _temporaries = 1
    Moment = operand(FLOATING, doc="as Param: the mean of the gradients")
    MasterParam = operand(FLOATING, optional=True, doc="the parameter in full precision")
    MomentOut = result(updates="Moment", doc="as Param")
    MasterParamOut = result(updates="MasterParam", doc="made if MasterParam is given")
    beta1 = attribute(AttrType.FLOAT, 0.9, low=0.0, high=1.0)
    beta2 = attribute(AttrType.FLOAT, 0.99, low=0.0, high=1.0)
    weight_decay = attribute(AttrType.FLOAT, 0.0)

    def _step(self, numbers: list[Any], grad: Tensor, param: Tensor, *state: Tensor) -> None:
        (moment,) = state
        rate = numbers[0]
        if self.weight_decay:
            param.mul_(1.0 - rate * self.weight_decay)
        subtract(param, torch.lerp(moment, grad, 1.0 - self.beta1).sign_(), rate)
        moment.lerp_(grad, 1.0 - self.beta2)

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2), Moment=f32(3, 2)),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(low=0.1, high=0.2), Moment=f64(4), MasterParam=f64(4), weight_decay=0.5),
    ]
