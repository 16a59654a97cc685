"""The FTRL-Proximal update (McMahan et al., 2013): parameters stay exactly zero until the data speak against it."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.operator import AttrType, attribute, operand, result
from foreshape.operator.samples import f32, reject, sample
from foreshape.ops.update.updates import Update, number
from foreshape.spec import FLOATING, SELECTED_ROWS, Spec
from foreshape.values.rows import Rows, put_rows
from foreshape.values.torch_proxy import Tensor, torch

_TINY = 1e-10
"""PaddlePaddle's addend to l1 and l2."""


class Ftrl(Update):
    """The FTRL-Proximal update. With g = Grad and n = SquaredAccumulator:

    SquaredAccumOut = n + g^2; sigma = (SquaredAccumOut^-lr_power - n^-lr_power) / LearningRate;
    LinearAccumOut = LinearAccumulator + g - sigma * Param;
    ParamOut = (l1 * sign(LinearAccumOut) - LinearAccumOut) / (SquaredAccumOut^-lr_power / LearningRate + 2 * l2)
    where abs(LinearAccumOut) > l1, and 0 elsewhere.

    With sparse rows only rows of the gradient change. (Dense, an element with gradients of zero so far becomes 0.)
    """

    type = "ftrl"
    elementwise_state = ("SquaredAccumulator", "LinearAccumulator")
    SquaredAccumulator = operand(FLOATING, doc="as Param: the sum of the squared gradients")
    LinearAccumulator = operand(FLOATING, doc="as Param")
    SquaredAccumOut = result(updates="SquaredAccumulator", doc="as Param")
    LinearAccumOut = result(updates="LinearAccumulator", doc="as Param")
    l1 = attribute(AttrType.FLOAT, 0.0)
    l2 = attribute(AttrType.FLOAT, 0.0)
    lr_power = attribute(AttrType.FLOAT, -0.5, doc="the power of the squared gradients' sum in the learning rate, negative")

    def infer_shape(self, Param: Spec, Grad: Spec, LearningRate: Spec, SquaredAccumulator: Spec, LinearAccumulator: Spec) -> Any:
        self._check(Param, Grad, LearningRate, None, SquaredAccumulator=SquaredAccumulator, LinearAccumulator=LinearAccumulator)
        return Param, SquaredAccumulator, LinearAccumulator

    def kernel(self, Param: Tensor, Grad: Tensor | Rows, LearningRate: Tensor, SquaredAccumulator: Tensor, LinearAccumulator: Tensor) -> Any:
        rate = number(LearningRate)
        wholes = Param, SquaredAccumulator, LinearAccumulator
        if isinstance(Grad, Rows):
            rows = Grad.merged()
            param, squares, linear = (t.index_select(0, rows.rows) for t in wholes)
            self._step(param, rows.values.to(squares.dtype), rate, squares, linear)
            for whole, part in zip(wholes, (param, squares, linear), strict=True):
                put_rows(whole, rows.rows, part)
        else:
            self._step(Param, Grad.to(SquaredAccumulator.dtype), rate, SquaredAccumulator, LinearAccumulator)
        return wholes

    def workspace(self, Param: Spec, Grad: Spec, LearningRate: Spec, SquaredAccumulator: Spec, LinearAccumulator: Spec) -> Size:
        return 0 if Grad.kind is SELECTED_ROWS else (4 if Grad.dtype is SquaredAccumulator.dtype else 5) * SquaredAccumulator.nbytes

    def _step(self, param: Tensor, grad: Tensor, rate: Any, squares: Tensor, linear: Tensor) -> None:
        l1, l2 = self.l1 + _TINY, self.l2 + _TINY
        before = self._root(squares)
        after = self._root(squares.addcmul_(grad, grad))
        linear.add_(grad).sub_((after - before).div_(rate).mul_(param))
        shrunk = torch.sub(linear.clamp(-l1, l1), linear)
        param.copy_(shrunk.div_(after.div_(rate).add_(2.0 * l2)))

    def _root(self, squares: Tensor) -> Tensor:
        return squares.sqrt() if self.lr_power == -0.5 else squares.pow(-self.lr_power)

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2), SquaredAccumulator=f32(3, 2, low=0.0),
               LinearAccumulator=f32(3, 2), l1=0.1, l2=0.2),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(low=0.1, high=0.2), SquaredAccumulator=f32(4, low=0.1), LinearAccumulator=f32(4), lr_power=-0.7),
    ]  # fmt: skip
    rejects = [
        reject(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1), SquaredAccumulator=f32(3), LinearAccumulator=f32(3, 2),
               says="SquaredAccumulator must have the dims of Param"),
        reject(Param=f32(3), Grad=f32(3), LearningRate=f32(2), SquaredAccumulator=f32(3), LinearAccumulator=f32(3),
               says="LearningRate must hold one number"),
    ]  # fmt: skip
