"""Many updates in one operator, as PaddlePaddle merges them: momentum and Adam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require
from foreshape.language.operator.samples import f32, f64, reject, sample
from foreshape.language.ops.update.adam import Adam
from foreshape.language.ops.update.each_element import BELOW_ONE
from foreshape.language.ops.update.layer_wise import check_lists, check_parameters, largest
from foreshape.language.ops.update.updates import Momentum, check_one_number


class Merged(Operator):
    """The base: lists of parameters, gradients and state, matched by their places."""

    abstract = True
    gradient = ZERO_GRADIENT
    Param = operand(FLOATING, many=True, doc="the parameters")
    Grad = operand(FLOATING, many=True, doc="their gradients, each as its Param")
    LearningRate = operand(FLOATING, many=True, doc="one number for each")
    MasterParam = operand(FLOATING, many=True, optional=True, doc="the parameters in full precision")
    ParamOut = result(many=True, updates="Param", doc="the parameters, changed")
    MasterParamOut = result(many=True, updates="MasterParam", doc="made if MasterParam is given")
    multi_precision = attribute(AttrType.BOOLEAN, False)


class MergedMomentum(Merged):
    """`momentum` of each parameter. There may be one LearningRate for all.

    ``regularization_method`` and ``regularization_coeff`` have one entry for each parameter, or none. (PaddlePaddle's kernels for CPUs, also of `momentum`,
    leave ``rescale_grad`` out; its kernels for GPUs have it, as here.)
    """

    type = "merged_momentum"
    Velocity = operand(FLOATING, many=True, doc="each as its Param")
    VelocityOut = result(many=True, updates="Velocity", doc="each as its Param")
    mu = attribute(AttrType.FLOAT, doc="the factor of the old velocity")
    use_nesterov = attribute(AttrType.BOOLEAN, False)
    regularization_method = attribute(AttrType.STRINGS, [], choices=["", "l2_decay"])
    regularization_coeff = attribute(AttrType.FLOATS, [])
    rescale_grad = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(
        self, Param: tuple[Spec, ...], Grad: tuple[Spec, ...], LearningRate: tuple[Spec, ...], MasterParam: tuple[Spec, ...], Velocity: tuple[Spec, ...]
    ) -> Any:
        check_lists(Param, Grad=Grad, MasterParam=MasterParam, Velocity=Velocity)
        count = len(Param)
        require(len(LearningRate) in (1, count), f"LearningRate must have one tensor, or as many as Param: {count}, not {len(LearningRate)}", Param=None)
        for name in ("regularization_method", "regularization_coeff"):
            entries: Sequence[Any] = getattr(self, name)
            require(len(entries) in (0, count), f"{name} must have no entry, or one for each Param: {count}, not {len(entries)}", Param=None)
        check_parameters(Param, Grad, MasterParam, Velocity=Velocity)
        for rate in LearningRate:
            check_one_number(rate, "LearningRate")
        return Param, MasterParam, Velocity

    def kernel(self, Param: list[Tensor], Grad: list[Tensor], LearningRate: list[Tensor], MasterParam: list[Tensor], Velocity: list[Tensor]) -> Any:
        for index, (param, grad, velocity) in enumerate(zip(Param, Grad, Velocity, strict=True)):
            rate = LearningRate[index if len(LearningRate) > 1 else 0]
            single = _single(Momentum, {
                "mu": self.mu, "use_nesterov": self.use_nesterov, "rescale_grad": self.rescale_grad,
                "regularization_method": self.regularization_method[index] if self.regularization_method else "",
                "regularization_coeff": self.regularization_coeff[index] if self.regularization_coeff else 0.0,
            })  # fmt: skip
            Momentum.kernel(single, param, grad, rate, velocity, MasterParam[index] if MasterParam else None)
        return Param, MasterParam, Velocity

    def workspace(
        self, Param: tuple[Spec, ...], Grad: tuple[Spec, ...], LearningRate: tuple[Spec, ...], MasterParam: tuple[Spec, ...], Velocity: tuple[Spec, ...]
    ) -> Size:
        return largest(Velocity, 3)

    samples = [
        sample(Param=[f32(3, 2), f32(5)], Grad=[f32(3, 2), f32(5)], Velocity=[f32(3, 2), f32(5)], LearningRate=[f32(1, low=0.1)], mu=0.9),
        sample(Param=[f32(3, 2), f32(5)], Grad=[f32(3, 2), f32(5)], Velocity=[f32(3, 2), f32(5)], LearningRate=[f32(1, low=0.1), f32(low=0.1)], mu=0.9,
               use_nesterov=True, rescale_grad=0.5, regularization_method=["l2_decay", ""], regularization_coeff=[0.1, 0.2]),
        sample(Param=[f32(4)], Grad=[f32(4)], Velocity=[f64(4)], MasterParam=[f64(4)], LearningRate=[f32(1, low=0.1)], mu=0.5, multi_precision=True),
    ]  # fmt: skip
    rejects = [
        reject(Param=[f32(3), f32(4)], Grad=[f32(3), f32(4)], Velocity=[f32(3)], LearningRate=[f32(1)], mu=0.9,
               says="Velocity must have as many tensors as Param"),
        reject(Param=[f32(3), f32(4)], Grad=[f32(3), f32(4)], Velocity=[f32(3), f32(3)], LearningRate=[f32(1)], mu=0.9,
               says="Velocity must have the dims of Param"),
        reject(Param=[f32(3), f32(4)], Grad=[f32(3), f32(4)], Velocity=[f32(3), f32(4)], LearningRate=[f32(1)], mu=0.9, regularization_method=["l2_decay"],
               says="regularization_method must have no entry, or one for each"),
        reject(Param=[f32(3)], Grad=[f32(3)], Velocity=[f32(3)], LearningRate=[f32(1), f32(1)], mu=0.9, says="LearningRate must have one tensor"),
    ]  # fmt: skip


class MergedAdam(Merged):
    """`adam` of each parameter, with its own powers of beta and its own LearningRate."""

    type = "merged_adam"
    Moment1 = operand(FLOATING, many=True, doc="each as its Param")
    Moment2 = operand(FLOATING, many=True, doc="each as its Param")
    Beta1Pow = operand(FLOATING, many=True, doc="one number for each")
    Beta2Pow = operand(FLOATING, many=True, doc="one number for each")
    Moment1Out = result(many=True, updates="Moment1", doc="each as its Param")
    Moment2Out = result(many=True, updates="Moment2", doc="each as its Param")
    Beta1PowOut = result(many=True, updates="Beta1Pow", doc="one number for each")
    Beta2PowOut = result(many=True, updates="Beta2Pow", doc="one number for each")
    beta1 = attribute(AttrType.FLOAT, 0.9, low=0.0, high=BELOW_ONE)
    beta2 = attribute(AttrType.FLOAT, 0.999, low=0.0, high=BELOW_ONE)
    epsilon = attribute(AttrType.FLOAT, 1e-8)
    use_global_beta_pow = attribute(AttrType.BOOLEAN, False)

    def infer_shape(
        self, Param: tuple[Spec, ...], Grad: tuple[Spec, ...], LearningRate: tuple[Spec, ...], MasterParam: tuple[Spec, ...],
        Moment1: tuple[Spec, ...], Moment2: tuple[Spec, ...], Beta1Pow: tuple[Spec, ...], Beta2Pow: tuple[Spec, ...],
    ) -> Any:  # fmt: skip
        numbers = {"LearningRate": LearningRate, "Beta1Pow": Beta1Pow, "Beta2Pow": Beta2Pow}
        check_lists(Param, Grad=Grad, MasterParam=MasterParam, Moment1=Moment1, Moment2=Moment2, **numbers)
        check_parameters(Param, Grad, MasterParam, Moment1=Moment1, Moment2=Moment2)
        for slot, specs in numbers.items():
            for spec in specs:
                check_one_number(spec, slot)
        return Param, MasterParam, Moment1, Moment2, Beta1Pow, Beta2Pow

    def kernel(
        self, Param: list[Tensor], Grad: list[Tensor], LearningRate: list[Tensor], MasterParam: list[Tensor], Moment1: list[Tensor],
        Moment2: list[Tensor], Beta1Pow: list[Tensor], Beta2Pow: list[Tensor],
    ) -> Any:  # fmt: skip
        single = _single(Adam, {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon, "use_global_beta_pow": self.use_global_beta_pow})
        assert isinstance(single, Adam)
        single.group_kernel(Param, Grad, LearningRate, Moment1, Moment2, Beta1Pow, Beta2Pow, None, None, None, MasterParam or None, None)
        return Param, MasterParam, Moment1, Moment2, Beta1Pow, Beta2Pow

    def workspace(
        self, Param: tuple[Spec, ...], Grad: tuple[Spec, ...], LearningRate: tuple[Spec, ...], MasterParam: tuple[Spec, ...],
        Moment1: tuple[Spec, ...], Moment2: tuple[Spec, ...], Beta1Pow: tuple[Spec, ...], Beta2Pow: tuple[Spec, ...], *, strided: frozenset[str],
    ) -> Size:  # fmt: skip
        gradients: Size = 0
        for spec in Grad if "Grad" in strided else ():
            gradients = gradients + spec.nbytes
        return gradients if not MasterParam and strided <= {"Grad"} else gradients + largest(Moment1, 3)

    samples = [
        sample(Param=[f32(3, 2), f32(5)], Grad=[f32(3, 2), f32(5)], LearningRate=[f32(1, low=0.1), f32(1, low=0.1)], Moment1=[f32(3, 2), f32(5)],
               Moment2=[f32(3, 2, low=0.0), f32(5, low=0.0)], Beta1Pow=[f32(1, data=[0.9]), f32(data=0.8)], Beta2Pow=[f32(1, data=[0.99]), f32(data=0.9)]),
        sample(Param=[f32(4)], Grad=[f32(4)], LearningRate=[f32(1, low=0.1)], MasterParam=[f64(4)], Moment1=[f64(4)], Moment2=[f64(4, low=0.0)],
               Beta1Pow=[f32(1, data=[0.9])], Beta2Pow=[f32(1, data=[0.99])], multi_precision=True, use_global_beta_pow=True),
    ]  # fmt: skip
    rejects = [
        reject(Param=[f32(3), f32(4)], Grad=[f32(3), f32(4)], LearningRate=[f32(1)], Moment1=[f32(3), f32(4)], Moment2=[f32(3), f32(4)],
               Beta1Pow=[f32(1), f32(1)], Beta2Pow=[f32(1), f32(1)], says="LearningRate must have as many tensors as Param"),
        reject(Param=[f32(3)], Grad=[f32(3)], LearningRate=[f32(1)], Moment1=[f32(3)], Moment2=[f32(4)], Beta1Pow=[f32(1)], Beta2Pow=[f32(1)],
               says="Moment2 must have the dims of Param"),
        reject(Param=[f32(3)], Grad=[f32(3)], LearningRate=[f32(1)], Moment1=[f32(3)], Moment2=[f32(3)], Beta1Pow=[f32(2)], Beta2Pow=[f32(1)],
               says="Beta1Pow must hold one number"),
    ]  # fmt: skip


def _single(cls: type[Operator], values: dict[str, Any]) -> Any:
    """Return the operator for one parameter, with these attributes and otherwise the defaults."""
    return cls.with_values({name: values.get(name, field.default) for name, field in cls.schema.attributes.items()})
