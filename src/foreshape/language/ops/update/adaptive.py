"""Updates scaled by the gradients so far: Adagrad, RMSProp, and FTRL-Proximal (McMahan et al., 2013), with parameters exactly zero at first."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, SELECTED_ROWS, Spec
from foreshape.core.values.rows import Rows, put_rows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import AttrType, attribute, operand, result
from foreshape.language.operator.require import fail, require
from foreshape.language.operator.samples import f32, f64, reject, sample
from foreshape.language.ops.update.updates import Update, number, put_updated, subtract


class Adagrad(Update):
    """MomentOut = Moment + Grad^2; ParamOut = Param - LearningRate * Grad / (sqrt(MomentOut) + epsilon) (Duchi et al., 2011).

    With sparse rows only rows of the gradient change, as in dense training.
    """

    type = "adagrad"
    elementwise_state = ("Moment",)
    Moment = operand(FLOATING, doc="as Param: the sum of the squared gradients")
    MasterParam = operand(FLOATING, optional=True, doc="the parameter in full precision")
    MomentOut = result(updates="Moment", doc="as Param")
    MasterParamOut = result(updates="MasterParam", doc="made if MasterParam is given")
    epsilon = attribute(AttrType.FLOAT, 1e-6)
    multi_precision = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, Param: Spec, Grad: Spec, LearningRate: Spec, Moment: Spec, MasterParam: Spec | None) -> Any:
        self._check(Param, Grad, LearningRate, MasterParam, Moment=Moment)
        return Param, Moment, MasterParam

    def kernel(self, Param: Tensor, Grad: Tensor | Rows, LearningRate: Tensor, Moment: Tensor, MasterParam: Tensor | None) -> Any:
        rate = number(LearningRate)
        target = Param if MasterParam is None else MasterParam
        if isinstance(Grad, Rows):
            rows = Grad.merged()
            ids = rows.rows
            param, moment = target.index_select(0, ids), Moment.index_select(0, ids)
            self._step(param, rows.values.to(moment.dtype), rate, moment)
            put_rows(Moment, ids, moment)
            put_updated(Param, MasterParam, ids, param)
        else:
            self._step(target, Grad.to(Moment.dtype), rate, Moment)
            if MasterParam is not None:
                Param.copy_(MasterParam)
        return Param, Moment, MasterParam

    def workspace(self, Param: Spec, Grad: Spec, LearningRate: Spec, Moment: Spec, MasterParam: Spec | None) -> Size:
        return 0 if Grad.kind is SELECTED_ROWS else (1 if Grad.dtype is Moment.dtype else 2) * Moment.nbytes

    def _step(self, param: Tensor, grad: Tensor, rate: Any, moment: Tensor) -> None:
        moment.addcmul_(grad, grad)
        root = moment.sqrt().add_(self.epsilon)
        if isinstance(rate, float):
            param.addcdiv_(grad, root, value=-rate)
        else:
            param.addcdiv_(grad * rate, root, value=-1.0)

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2), Moment=f32(3, 2, low=0.0)),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(), Moment=f64(4, low=0.1), MasterParam=f64(4), epsilon=1e-3, multi_precision=True),
    ]


class RMSProp(Update):
    """MeanSquareOut = decay * MeanSquare + (1 - decay) * g^2; MomentOut = momentum * Moment + LearningRate * g / sqrt(v + epsilon).

    ParamOut = Param - MomentOut, where g is Grad, and v is MeanSquareOut (Tieleman and Hinton, 2012). ``centered``: v is MeanSquareOut - MeanGradOut^2, with
    MeanGradOut = decay * MeanGrad + (1 - decay) * g. With sparse rows g is zero elsewhere, so all state decays, as in dense training and in PaddlePaddle. It
    does so in place, but in time that grows with the table. `lazy_rmsprop` changes only rows of the gradient.
    """

    type = "rmsprop"
    elementwise_state = ("MeanSquare", "Moment", "MeanGrad")
    MeanSquare = operand(FLOATING, doc="as Param")
    Moment = operand(FLOATING, doc="as Param")
    MeanGrad = operand(FLOATING, optional=True, doc="as Param, for centered")
    MasterParam = operand(FLOATING, optional=True, doc="the parameter in full precision")
    MomentOut = result(updates="Moment", doc="as Param")
    MeanSquareOut = result(updates="MeanSquare", doc="as Param")
    MeanGradOut = result(updates="MeanGrad", doc="made if MeanGrad is given")
    MasterParamOut = result(updates="MasterParam", doc="made if MasterParam is given")
    epsilon = attribute(AttrType.FLOAT, 1e-10)
    decay = attribute(AttrType.FLOAT, 0.9)
    momentum = attribute(AttrType.FLOAT, 0.0)
    centered = attribute(AttrType.BOOLEAN, False)
    multi_precision = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, Param: Spec, Grad: Spec, LearningRate: Spec, MeanSquare: Spec, Moment: Spec, MeanGrad: Spec | None, MasterParam: Spec | None) -> Any:
        self._check(Param, Grad, LearningRate, MasterParam, MeanSquare=MeanSquare, Moment=Moment, MeanGrad=MeanGrad)
        require(MeanGrad is not None or not self.centered, "a centered update needs MeanGrad", Param=None)
        if MeanGrad is not None and MeanGrad.dtype is not Moment.dtype:
            fail("MeanGrad must have the element type of Moment", TypeMismatchError, MeanGrad=None, Moment=None)
        return Param, Moment, MeanSquare, MeanGrad, MasterParam

    def kernel(
        self, Param: Tensor, Grad: Tensor | Rows, LearningRate: Tensor, MeanSquare: Tensor, Moment: Tensor, MeanGrad: Tensor | None, MasterParam: Tensor | None
    ) -> Any:
        rate = number(LearningRate)
        target = Param if MasterParam is None else MasterParam
        if isinstance(Grad, Rows):
            self._rows(target, Grad.merged(), rate, MeanSquare, Moment, MeanGrad)
        else:
            self._dense(target, Grad.to(Moment.dtype), rate, MeanSquare, Moment, MeanGrad)
        if MasterParam is not None:
            Param.copy_(MasterParam)
        return Param, Moment, MeanSquare, MeanGrad, MasterParam

    def _dense(self, param: Tensor, grad: Tensor, rate: Any, square: Tensor, moment: Tensor, mean: Tensor | None) -> None:
        decay = self.decay
        square.mul_(decay).addcmul_(grad, grad, value=1.0 - decay)
        if self.centered and mean is not None:
            mean.lerp_(grad, 1.0 - decay)
            root = torch.addcmul(square, mean, mean, value=-1.0).add_(self.epsilon)
        else:
            root = square.add(self.epsilon)
        subtract(moment.mul_(self.momentum), torch.div(grad, root.sqrt_(), out=root), rate, -1.0)
        param.sub_(moment)

    def workspace(self, Param: Spec, Grad: Spec, LearningRate: Spec, MeanSquare: Spec, Moment: Spec, MeanGrad: Spec | None, MasterParam: Spec | None) -> Size:
        return 0 if Grad.kind is SELECTED_ROWS else (1 if Grad.dtype is Moment.dtype else 2) * Moment.nbytes

    def _rows(self, param: Tensor, rows: Rows, rate: Any, square: Tensor, moment: Tensor, mean: Tensor | None) -> None:
        decay = self.decay
        ids, grad = rows.rows, rows.values.to(moment.dtype)
        square.mul_(decay).index_add_(0, ids, grad.square().mul_(1.0 - decay))
        root = square.index_select(0, ids)
        if self.centered and mean is not None:
            mean.mul_(decay).index_add_(0, ids, grad * (1.0 - decay))
            root.sub_(mean.index_select(0, ids).square_())
        moment.mul_(self.momentum).index_add_(0, ids, grad.div(root.add_(self.epsilon).sqrt_()).mul_(rate))
        param.sub_(moment)

    def _leaves_rows(self) -> bool:
        return False

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2), MeanSquare=f32(3, 2, low=0.1), Moment=f32(3, 2)),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(), MeanSquare=f32(4, low=3.0, high=5.0), Moment=f32(4), MeanGrad=f32(4, low=0.1, high=0.2),
               momentum=0.9, decay=0.8, epsilon=1.0, centered=True),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(), MeanSquare=f64(4, low=0.1), Moment=f64(4), MasterParam=f64(4), multi_precision=True),
    ]  # fmt: skip
    rejects = [reject(Param=f32(3), Grad=f32(3), LearningRate=f32(1), MeanSquare=f32(3), Moment=f32(3), centered=True, says="needs MeanGrad")]


class LazyRMSProp(RMSProp):
    """`rmsprop` with changes only to rows of a sparse gradient: their state, and their part of Param.

    Any other row keeps its state and its value. An operator of this project: no other program knows it.
    """

    type = "lazy_rmsprop"
    elementwise_state = None
    samples = RMSProp.samples
    rejects = RMSProp.rejects

    def kernel(
        self, Param: Tensor, Grad: Tensor | Rows, LearningRate: Tensor, MeanSquare: Tensor, Moment: Tensor, MeanGrad: Tensor | None, MasterParam: Tensor | None
    ) -> Any:
        if not isinstance(Grad, Rows):
            return super().kernel(Param, Grad, LearningRate, MeanSquare, Moment, MeanGrad, MasterParam)
        rows = Grad.merged()
        ids = rows.rows
        target = Param if MasterParam is None else MasterParam
        param, square, moment = (t.index_select(0, ids) for t in (target, MeanSquare, Moment))
        mean = MeanGrad.index_select(0, ids) if MeanGrad is not None else None
        self._dense(param, rows.values.to(moment.dtype), number(LearningRate), square, moment, mean)
        put_rows(MeanSquare, ids, square)
        put_rows(Moment, ids, moment)
        if MeanGrad is not None and mean is not None:
            put_rows(MeanGrad, ids, mean)
        put_updated(Param, MasterParam, ids, param)
        return Param, Moment, MeanSquare, MeanGrad, MasterParam

    def _leaves_rows(self) -> bool:
        return True


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
            for table, part in zip(wholes, (param, squares, linear), strict=True):
                put_rows(table, rows.rows, part)
        else:
            self._step(Param, Grad.to(SquaredAccumulator.dtype), rate, SquaredAccumulator, LinearAccumulator)
        return wholes

    def workspace(self, Param: Spec, Grad: Spec, LearningRate: Spec, SquaredAccumulator: Spec, LinearAccumulator: Spec) -> Size:
        return 0 if Grad.kind is SELECTED_ROWS else (4 if Grad.dtype is SquaredAccumulator.dtype else 5) * SquaredAccumulator.nbytes

    def _step(self, param: Tensor, grad: Tensor, rate: Any, squares: Tensor, linear: Tensor) -> None:
        l1, l2 = self.l1 + _TINY, self.l2 + _TINY
        previous_root = self._root(squares)
        root = self._root(squares.addcmul_(grad, grad))
        linear.add_(grad).sub_((root - previous_root).div_(rate).mul_(param))
        shrunk = torch.sub(linear.clamp(-l1, l1), linear)
        param.copy_(shrunk.div_(root.div_(rate).add_(2.0 * l2)))

    def _root(self, squares: Tensor) -> Tensor:
        return squares.sqrt() if self.lr_power == -0.5 else squares.pow(-self.lr_power)

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2), SquaredAccumulator=f32(3, 2, low=0.0),
               LinearAccumulator=f32(3, 2), l1=0.1, l2=0.2),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(low=0.1, high=0.2), SquaredAccumulator=f32(4, low=0.1), LinearAccumulator=f32(4), lr_power=-0.7),
    ]  # fmt: skip
