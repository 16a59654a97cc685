"""Parameter updates. Each changes its parameter and state in place; sparse gradients touch only their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.ops import DENSE_OR_ROWS, FLOATING, ZERO_GRADIENT, AttrType, Operator, attribute, f32, operand, reject, require, require_equal, result, sample
from foreshape.ops.rows import Rows
from foreshape.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


def check_same_shape(param: Spec, other: Spec, slot: str) -> None:
    """``other`` must have the dims of Param."""
    a, b = param.known_dims, other.known_dims
    require(len(a) == len(b), f"{slot} must have the dims of Param", Param=None, **{slot: None})
    for at, (x, y) in enumerate(zip(a, b, strict=True)):
        require_equal(x, y, f"{slot} must have the dims of Param", Param=at, **{slot: at})


class Update(Operator):
    """The base of the update operators."""

    abstract = True
    Param = operand(FLOATING, doc="the parameter")
    Grad = operand(FLOATING, same_type_as="Param", kinds=DENSE_OR_ROWS, doc="its gradient, dense or sparse rows")
    LearningRate = operand(FLOATING, doc="one number")
    ParamOut = result(updates="Param", doc="the parameter, changed")
    gradient = ZERO_GRADIENT

    def infer_var_type(self, *specs: Any) -> Any:
        return specs[0].kind


class Sgd(Update):
    """ParamOut = Param - LearningRate * Grad."""

    type = "sgd"
    MasterParam = operand(FLOATING, optional=True)
    MasterParamOut = result(updates="MasterParam", optional=True)
    multi_precision = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, Param: Spec, Grad: Spec, LearningRate: Spec, MasterParam: Spec | None) -> Any:
        check_same_shape(Param, Grad, "Grad")
        return Param, MasterParam

    def kernel(self, Param: Tensor, Grad: Tensor | Rows, LearningRate: Tensor, MasterParam: Tensor | None) -> Any:
        lr = LearningRate.item()
        if isinstance(Grad, Rows):
            Param.index_add_(0, Grad.rows, Grad.values.to(Param.dtype), alpha=-lr)
        else:
            Param.add_(Grad, alpha=-lr)
        return Param, MasterParam

    samples = [sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2))]
    rejects = [reject(Param=f32(3, 2), Grad=f32(3, 4), LearningRate=f32(1), says="the dims of Param")]
