"""Parameter updates: the base of them all, plain gradient descent and momentum.

Each update changes its parameter and state in place. Sparse gradients make no tensor of the table's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar

from foreshape.core.dims import Size, maximum, minimum, product
from foreshape.core.spec import FLOATING, SELECTED_ROWS, Kind, Spec
from foreshape.core.values.rows import CHUNK, Rows, put_rows
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import DENSE_OR_ROWS, ZERO_GRADIENT, AttrType, Operator, attribute, computations, operand, result
from foreshape.language.operator.registry import refuse
from foreshape.language.operator.require import require, require_equal
from foreshape.language.operator.samples import f32, f64, reject, sample
from foreshape.machine.kernels.instructions import MOMENTUM, Instruction
from foreshape.machine.targets import current_target


def check_same_shape(param: Spec, spec: Spec, slot: str, reference: str = "Param") -> None:
    """Require for ``spec`` the dims of Param, or of the slot ``reference``."""
    a, b = param.known_dims, spec.known_dims
    require(len(a) == len(b), f"{slot} must have the dims of {reference}", **{reference: None, slot: None})
    for axis, (x, y) in enumerate(zip(a, b, strict=True)):
        require_equal(x, y, f"{slot} must have the dims of {reference}", **{reference: axis, slot: axis})


def check_one_number(spec: Spec | None, slot: str) -> None:
    """Require one number in ``slot``, of any rank."""
    if spec is not None:
        require_equal(spec.elements, 1, f"{slot} must hold one number", **{slot: None})


def number(tensor: Tensor) -> Any:
    """Return a tensor of one number as a float; on a device as a tensor without dims, since reading it would wait for the device."""
    return tensor.item() if tensor.is_cpu else tensor.reshape(())


def subtract(param: Tensor, value: Tensor, rate: Any, factor: float = 1.0) -> None:
    """Subtract rate * factor * value from param, in one pass; ``rate`` is a result of `number`."""
    if isinstance(rate, float):
        param.add_(value, alpha=-rate * factor)
    else:
        param.addcmul_(value, rate, value=-factor)


def update_unless(skip: Tensor | None, grad: Tensor | Rows, state: Sequence[Tensor | None], update: Callable[[], None]) -> None:
    """Update, unless ``skip``, one truth value, says not to. A device is not asked: it updates, and the state is put back there.

    For sparse rows it is asked, since the state would be a whole table.
    """
    if skip is None:
        update()
    elif skip.is_cpu or isinstance(grad, Rows):
        if not skip.item():
            update()
    else:
        before = [None if value is None else value.clone() for value in state]
        update()
        for value, was in zip(state, before, strict=True):
            if value is not None and was is not None:
                value.copy_(torch.where(skip.reshape(()), was, value))


def skipping_bytes(SkipUpdate: Spec | None, Grad: Spec, *state: Spec | None) -> Size:
    """Return the bytes of `update_unless` besides the update's own."""
    if SkipUpdate is None or Grad.kind is SELECTED_ROWS or current_target().is_processor:
        return 0
    sizes = [spec.nbytes for spec in state if spec is not None]
    return sum(sizes, start=0) + maximum(*sizes)


for _type, _why in {
    "dgc_momentum": "it sends a part of the gradients only, which trains another network than one rank does; fs.data_parallel() sends all of them",
    "dpsgd": "it adds noise that no seed of the program says, so that a run cannot be had again",
}.items():
    refuse(_type, _why)


class Update(Operator):
    """The base of the update operators. A 16-bit parameter may have a full-precision copy, MasterParam: it is updated instead."""

    abstract = True
    Param = operand(FLOATING, doc="the parameter")
    Grad = operand(FLOATING, same_type_as="Param", kinds=DENSE_OR_ROWS, doc="its gradient, dense or sparse rows")
    LearningRate = operand(FLOATING, doc="one number")
    ParamOut = result(updates="Param", doc="the parameter, changed")
    gradient = ZERO_GRADIENT
    elementwise_state: ClassVar[tuple[str, ...] | None] = None
    """The state operands of the parameter's shape, if all elements are updated independently; None if an update depends on more.

    Then any part of the parameter can be updated elsewhere.
    """

    def infer_var_type(self, *specs: Any) -> Kind:
        return specs[0].kind

    def work(self, Param: Spec, Grad: Spec, **operands: Spec | None) -> Any:
        return 0 if Grad.kind is SELECTED_ROWS and self._leaves_rows() else Param.elements

    def _leaves_rows(self) -> bool:
        """Tell whether rows without a sparse gradient stay as they are, so the table's height costs nothing."""
        return True

    def _check(self, param: Spec, grad: Spec, rate: Spec, master: Spec | None, **state: Spec | None) -> None:
        check_same_shape(param, grad, "Grad")
        check_one_number(rate, "LearningRate")
        for slot, spec in {"MasterParam": master, **state}.items():
            if spec is not None:
                check_same_shape(param, spec, slot)


class Sgd(Update):
    """ParamOut = Param - LearningRate * Grad."""

    type = "sgd"
    merges_rows = False
    elementwise_state = ()
    MasterParam = operand(FLOATING, optional=True, doc="the parameter in full precision")
    MasterParamOut = result(updates="MasterParam", doc="made if MasterParam is given")
    multi_precision = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, Param: Spec, Grad: Spec, LearningRate: Spec, MasterParam: Spec | None) -> Any:
        self._check(Param, Grad, LearningRate, MasterParam)
        return Param, MasterParam

    def workspace(self, Param: Spec, Grad: Spec, LearningRate: Spec, MasterParam: Spec | None, *, rows: Size) -> Size:
        if Grad.kind is SELECTED_ROWS:
            return minimum(rows, CHUNK * product(Grad.known_dims[1:]) * Grad.known_dtype.itemsize)
        return 0 if MasterParam is None else MasterParam.nbytes  # the gradient in its element type

    def computes(self) -> computations.SgdUpdate:
        return computations.SgdUpdate()

    def kernel(self, Param: Tensor, Grad: Tensor | Rows, LearningRate: Tensor, MasterParam: Tensor | None) -> Any:
        rate = number(LearningRate)
        target = Param if MasterParam is None else MasterParam
        if isinstance(Grad, Rows):
            Grad.add_to(target, -rate)
            if MasterParam is not None:
                Param.index_copy_(0, Grad.rows, MasterParam.index_select(0, Grad.rows).to(Param.dtype))
        else:
            subtract(target, Grad, rate)
            if MasterParam is not None:
                Param.copy_(MasterParam)
        return Param, MasterParam

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2)),
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(low=0.1, high=0.2), MasterParam=f64(3, 2), multi_precision=True),
        sample(Param=f32(), Grad=f32(), LearningRate=f32(1)),
    ]
    rejects = [reject(Param=f32(3, 2), Grad=f32(3, 4), LearningRate=f32(1), says="the dims of Param")]


class Momentum(Update):
    """VelocityOut = mu * Velocity + g, and ParamOut = Param - LearningRate * VelocityOut, where g is Grad.

    With ``use_nesterov`` ParamOut = Param - LearningRate * (g + mu * VelocityOut). g is rescaled by ``rescale_grad``, and ``regularization_method`` "l2_decay"
    adds ``regularization_coeff * Param``. With sparse rows g is zero elsewhere, so all velocities decay and all of the parameter moves, as in dense training
    and in PaddlePaddle. It does so in place, but in time that grows with the table. (PaddlePaddle leaves everything as it is without any rows; here velocities
    decay then, too.) `lazy_momentum` changes only rows of the gradient.
    """

    type = "momentum"
    elementwise_state = ("Velocity",)
    Velocity = operand(FLOATING, doc="as Param")
    MasterParam = operand(FLOATING, optional=True, doc="the parameter in full precision")
    VelocityOut = result(updates="Velocity", doc="as Param")
    MasterParamOut = result(updates="MasterParam", doc="made if MasterParam is given")
    mu = attribute(AttrType.FLOAT, doc="the factor of the old velocity")
    use_nesterov = attribute(AttrType.BOOLEAN, False)
    regularization_method = attribute(AttrType.STRING, "", choices=["", "l2_decay"])
    regularization_coeff = attribute(AttrType.FLOAT, 0.0)
    multi_precision = attribute(AttrType.BOOLEAN, False)
    rescale_grad = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(self, Param: Spec, Grad: Spec, LearningRate: Spec, Velocity: Spec, MasterParam: Spec | None) -> Any:
        self._check(Param, Grad, LearningRate, MasterParam, Velocity=Velocity)
        return Param, Velocity, MasterParam

    def workspace(
        self, Param: Spec, Grad: Spec, LearningRate: Spec, Velocity: Spec, MasterParam: Spec | None, *, strided: frozenset[str] = frozenset()
    ) -> Size:
        if Grad.kind is SELECTED_ROWS:
            return 0
        target = Param if MasterParam is None else MasterParam
        alike = target.dtype is Grad.dtype is Velocity.dtype
        decayed = bool(self.regularization_method and self.regularization_coeff) and not (self.mu and alike and not strided)
        return (Grad.nbytes if self.rescale_grad != 1.0 else 0) + target.nbytes * ((not alike) + decayed)

    def kernel(self, Param: Tensor, Grad: Tensor | Rows, LearningRate: Tensor, Velocity: Tensor, MasterParam: Tensor | None) -> Any:
        rate = number(LearningRate)
        target = Param if MasterParam is None else MasterParam
        decay = self.regularization_coeff if self.regularization_method else 0.0
        if isinstance(Grad, Rows):
            self._rows(target, Grad, rate, Velocity, decay)
        else:
            grad = Grad if self.rescale_grad == 1.0 else Grad * self.rescale_grad
            self._dense(target, grad, rate, Velocity, decay)
        if MasterParam is not None:
            Param.copy_(MasterParam)
        return Param, Velocity, MasterParam

    def group_kernel(self, *slots: list[Tensor] | None) -> None:
        """Run many dense updates: in one call of torch's if they have one learning rate and one layout."""
        params, grads, rates, velocities, masters = slots
        assert params and grads and rates and velocities
        alike = masters is None and all(r is rates[0] for r in rates) and all(map(one_layout, params, grads, velocities))
        if not alike or not self.mu or self.rescale_grad != 1.0:
            for index in range(len(params)):
                operands: list[Any] = [None if s is None else s[index] for s in slots]
                self.kernel(*operands)
            return
        self._fused(params, grads, number(rates[0]), velocities, self.regularization_coeff if self.regularization_method else 0.0)

    def instructions(self, Param: tuple[float, ...], *operands: tuple[float, ...] | None) -> list[Instruction] | None:
        """Return the instructions of a dense update in a small step."""
        if operands[-1] is not None or not self.mu or self.rescale_grad != 1.0 or (self.regularization_method and self.regularization_coeff):
            return None
        return [Instruction(MOMENTUM, (1, 3, 0, 2), (0, int(prod(Param)), 0, int(self.use_nesterov)), (1.0, self.mu))]

    def _fused(self, params: list[Tensor], grads: list[Tensor], rate: Any, velocities: list[Tensor], decay: float) -> None:
        private.fused_sgd_(
            params, grads, velocities, weight_decay=decay, momentum=self.mu, lr=rate, dampening=0.0, nesterov=self.use_nesterov, maximize=False,
            is_first_step=False,
        )  # fmt: skip

    def _dense(self, param: Tensor, grad: Tensor, rate: Any, velocity: Tensor, decay: float) -> None:
        mu = self.mu
        if mu and one_layout(param, grad, velocity):
            self._fused([param], [grad], rate, [velocity], decay)
            return
        if decay:
            grad = torch.add(grad, param, alpha=decay)
        velocity.mul_(mu).add_(grad)
        if self.use_nesterov:
            subtract(param, grad, rate)
            subtract(param, velocity, rate, mu)
        else:
            subtract(param, velocity, rate)

    def _leaves_rows(self) -> bool:
        return False

    def _rows(self, param: Tensor, grad: Rows, rate: Any, velocity: Tensor, decay: float) -> None:
        grad = grad.to(dtype=velocity.dtype)
        if self.rescale_grad != 1.0:
            grad = grad.scaled(self.rescale_grad)
        grad.add_to(velocity.mul_(self.mu))
        if decay:
            velocity.add_(param, alpha=decay)
        if not self.use_nesterov:
            subtract(param, velocity, rate)
            return
        if decay:
            param.mul_(1.0 - rate * decay)
        subtract(param, velocity, rate, self.mu)
        grad.add_to(param, -rate)

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2), Velocity=f32(3, 2), mu=0.9),
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(), Velocity=f32(3, 2), mu=0.9, use_nesterov=True, rescale_grad=0.5),
        sample(Param=f32(5), Grad=f32(5), LearningRate=f32(), Velocity=f32(5), mu=0.0, regularization_method="l2_decay", regularization_coeff=0.1),
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(), Velocity=f64(3, 2), MasterParam=f64(3, 2), mu=0.5, multi_precision=True),
    ]


class LazyMomentum(Momentum):
    """`momentum` with changes only to rows of a sparse gradient: their velocities, their decay, their part of Param.

    Any other row keeps its velocity and its value. An operator of this project: no other program knows it.
    """

    type = "lazy_momentum"
    elementwise_state = None
    samples = Momentum.samples
    rejects = Momentum.rejects

    def kernel(self, Param: Tensor, Grad: Tensor | Rows, LearningRate: Tensor, Velocity: Tensor, MasterParam: Tensor | None) -> Any:
        if not isinstance(Grad, Rows):
            return super().kernel(Param, Grad, LearningRate, Velocity, MasterParam)
        target = Param if MasterParam is None else MasterParam
        decay = self.regularization_coeff if self.regularization_method else 0.0
        rows = Grad.merged().to(dtype=Velocity.dtype)
        values = rows.values if self.rescale_grad == 1.0 else rows.values * self.rescale_grad
        param, velocity = target.index_select(0, rows.rows), Velocity.index_select(0, rows.rows)
        self._dense(param, values, number(LearningRate), velocity, decay)
        put_rows(Velocity, rows.rows, velocity)
        put_updated(Param, MasterParam, rows.rows, param)
        return Param, Velocity, MasterParam

    def _leaves_rows(self) -> bool:
        return True


def put_updated(param: Tensor, master: Tensor | None, ids: Tensor, values: Tensor) -> None:
    """Write rows of the parameter, or of its full-precision copy and of the parameter."""
    if master is not None:
        put_rows(master, ids, values)
        values = values.to(param.dtype)
    put_rows(param, ids, values)


def one_layout(param: Tensor, *tensors: Tensor) -> bool:
    """Tell whether all are packed, of one shape and one element type on the CPU or a GPU of CUDA: torch's fused updates need it without a check."""
    dtype, shape = param.dtype, param.shape
    return (param.is_cpu or param.is_cuda) and param.is_contiguous() and all(t.dtype == dtype and t.shape == shape and t.is_contiguous() for t in tensors)
