"""Adam and AdamW (Kingma and Ba, 2015; Loshchilov and Hutter, 2019), dense and on sparse rows."""

from __future__ import annotations

import math
from math import prod
from typing import Any

from foreshape.core.dims import Size, minimum, product
from foreshape.core.spec import BOOL, FLOATING, SELECTED_ROWS, Spec
from foreshape.core.values.rows import Rows, put_rows
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import AttrType, attribute, operand, result
from foreshape.language.operator.samples import b1, f32, f64, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.held_numbers import held
from foreshape.language.ops.update.sparse import block_bytes, in_blocks
from foreshape.language.ops.update.updates import Update, check_one_number, number, one_layout, put_updated, skipping_bytes, update_unless
from foreshape.machine.kernels.instructions import ADAM, SCALE, Instruction
from foreshape.machine.targets import current_target

ROWS_AT_ONCE = 4096
"""The rows of the table in one piece of a lazy update: they are still in the cache when they are put back."""

_BELOW_ONE = 1.0 - 2.0**-24
"""The largest single-precision number below 1: with it there is no correction."""


class Adam(Update):
    """Moment1Out = beta1 * Moment1 + (1 - beta1) * g; Moment2Out = beta2 * Moment2 + (1 - beta2) * g^2, where g is Grad.

    ParamOut = Param - rate * Moment1Out / (sqrt(Moment2Out) + epsilon * sqrt(1 - Beta2Pow)), where rate = LearningRate * sqrt(1 - Beta2Pow) / (1 - Beta1Pow).

    Beta1Pow and Beta2Pow are the powers beta^t of this step. They are multiplied by beta1 and beta2 for the next one, unless another op does so
    (``use_global_beta_pow``).

    Sparse rows, exact (``lazy_mode`` False): g is zero elsewhere, so all moments decay, as in dense training; a block of the table at a time. Lazy: only rows
    of the gradient change, and a step without rows changes nothing. PaddlePaddle 2.6's sparse kernel multiplies the powers before it uses them, so its first
    update is corrected with t = 2. The lazy mode does the same, since saved programs were trained so; the exact mode gives the result of dense training. (With
    powers that start at 1 instead of beta, as `foreshape.optimizer.Adam` sets them, the first lazy update is corrected with t = 1, here and there.)
    """

    type = "adam"
    elementwise_state = ("Moment1", "Moment2")
    Moment1 = operand(FLOATING, doc="as Param")
    Moment2 = operand(FLOATING, doc="as Param")
    Beta1Pow = operand(FLOATING, doc="one number")
    Beta2Pow = operand(FLOATING, doc="one number")
    Beta1Tensor = operand(FLOATING, optional=True, doc="beta1, as a tensor of one number")
    Beta2Tensor = operand(FLOATING, optional=True, doc="beta2, as a tensor of one number")
    EpsilonTensor = operand(FLOATING, optional=True, doc="epsilon, as a tensor of one number")
    MasterParam = operand(FLOATING, optional=True, doc="the parameter in full precision")
    SkipUpdate = operand((BOOL,), optional=True, doc="one truth value; True leaves everything as it is")
    Moment1Out = result(updates="Moment1", doc="as Param")
    Moment2Out = result(updates="Moment2", doc="as Param")
    Beta1PowOut = result(updates="Beta1Pow", doc="one number")
    Beta2PowOut = result(updates="Beta2Pow", doc="one number")
    MasterParamOut = result(updates="MasterParam", doc="made if MasterParam is given")
    beta1 = attribute(AttrType.FLOAT, 0.9, low=0.0, high=_BELOW_ONE)
    beta2 = attribute(AttrType.FLOAT, 0.999, low=0.0, high=_BELOW_ONE)
    epsilon = attribute(AttrType.FLOAT, 1e-8)
    lazy_mode = attribute(AttrType.BOOLEAN, False)
    min_row_size_to_use_multithread = attribute(AttrType.LONG, 1000, doc="a hint to PaddlePaddle")
    multi_precision = attribute(AttrType.BOOLEAN, False)
    use_global_beta_pow = attribute(AttrType.BOOLEAN, False)

    def infer_shape(
        self, Param: Spec, Grad: Spec, LearningRate: Spec, Moment1: Spec, Moment2: Spec, Beta1Pow: Spec, Beta2Pow: Spec, Beta1Tensor: Spec | None,
        Beta2Tensor: Spec | None, EpsilonTensor: Spec | None, MasterParam: Spec | None, SkipUpdate: Spec | None,
    ) -> Any:  # fmt: skip
        self._check(Param, Grad, LearningRate, MasterParam, Moment1=Moment1, Moment2=Moment2)
        numbers = {"Beta1Pow": Beta1Pow, "Beta2Pow": Beta2Pow, "Beta1Tensor": Beta1Tensor}
        numbers |= {"Beta2Tensor": Beta2Tensor, "EpsilonTensor": EpsilonTensor, "SkipUpdate": SkipUpdate}
        for slot, spec in numbers.items():
            check_one_number(spec, slot)
        return Param, Moment1, Moment2, Beta1Pow, Beta2Pow, MasterParam

    def kernel(
        self, Param: Tensor, Grad: Tensor | Rows, LearningRate: Tensor, Moment1: Tensor, Moment2: Tensor, Beta1Pow: Tensor, Beta2Pow: Tensor,
        Beta1Tensor: Tensor | None, Beta2Tensor: Tensor | None, EpsilonTensor: Tensor | None, MasterParam: Tensor | None, SkipUpdate: Tensor | None,
    ) -> Any:  # fmt: skip
        out = Param, Moment1, Moment2, Beta1Pow, Beta2Pow, MasterParam
        operands = Param, Grad, LearningRate, Moment1, Moment2, Beta1Pow, Beta2Pow, Beta1Tensor, Beta2Tensor, EpsilonTensor, MasterParam
        update_unless(SkipUpdate, Grad, out, lambda: self._update(*operands))
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
        Beta1Tensor: Tensor | None,
        Beta2Tensor: Tensor | None,
        EpsilonTensor: Tensor | None,
        MasterParam: Tensor | None,
    ) -> None:
        beta1 = self.beta1 if Beta1Tensor is None else Beta1Tensor.item()
        beta2 = self.beta2 if Beta2Tensor is None else Beta2Tensor.item()
        epsilon = self.epsilon if EpsilonTensor is None else EpsilonTensor.item()
        target = Param if MasterParam is None else MasterParam
        touched = Grad if self.lazy_mode and isinstance(Grad, Rows) else None
        if touched is not None:
            if not len(touched.rows):
                return
            self._advance(Beta1Pow, Beta2Pow, beta1, beta2)
        rate, decay = self._rates(number(LearningRate))
        rate, epsilon = corrected(rate, epsilon, number(Beta1Pow), number(Beta2Pow))
        settings = beta1, beta2, rate, epsilon, decay
        if touched is not None:
            alike = Moment1.dtype == Moment2.dtype == target.dtype == touched.dtype and Beta1Tensor is Beta2Tensor is EpsilonTensor is None
            if alike and one_layout(target, Moment1, Moment2) and not target.is_cpu:
                each = touched.repeated()
                selected = [[t.index_select(0, each.rows)] for t in (target, Moment1, Moment2)]
                self._fused_on_device(selected[0], [each.values], [LearningRate], selected[1], selected[2], [Beta1Pow], [Beta2Pow])
                put_updated(Param, MasterParam, each.rows, selected[0][0])
                put_rows(Moment1, each.rows, selected[1][0])
                put_rows(Moment2, each.rows, selected[2][0])
                return
            rows = touched.merged()
            for first in range(0, len(rows.rows), ROWS_AT_ONCE):
                ids = rows.rows[first : first + ROWS_AT_ONCE]
                param, moment1, moment2 = (t.index_select(0, ids) for t in (target, Moment1, Moment2))
                adam_step(param, rows.values[first : first + ROWS_AT_ONCE], moment1, moment2, *settings)
                put_updated(Param, MasterParam, ids, param)
                put_rows(Moment1, ids, moment1)
                put_rows(Moment2, ids, moment2)
                del param, moment1, moment2  # before the next rows are read
            return
        if isinstance(Grad, Rows):
            for grad, *parts in in_blocks(Grad.merged(), (target, Moment1, Moment2), Moment1.dtype):
                adam_step(parts[0], grad, parts[1], parts[2], *settings)
        else:
            adam_step(target, Grad, Moment1, Moment2, *settings)
        if MasterParam is not None:
            Param.copy_(MasterParam)
        self._advance(Beta1Pow, Beta2Pow, beta1, beta2)

    def workspace(
        self, Param: Spec, Grad: Spec, LearningRate: Spec, Moment1: Spec, Moment2: Spec, Beta1Pow: Spec, Beta2Pow: Spec, Beta1Tensor: Spec | None,
        Beta2Tensor: Spec | None, EpsilonTensor: Spec | None, MasterParam: Spec | None, SkipUpdate: Spec | None, *, strided: frozenset[str], rows: Size,
    ) -> Size:  # fmt: skip
        if Grad.kind is SELECTED_ROWS:
            if self.lazy_mode:  # some rows of the parameter and of both moments at a time
                if not current_target().is_processor:
                    return 3 * rows
                return 3 * minimum(rows, ROWS_AT_ONCE * product(Moment1.known_dims[1:]) * Moment1.known_dtype.itemsize)
            return block_bytes(Moment1)
        alike = Grad.dtype is Moment1.dtype and (Param if MasterParam is None else MasterParam).dtype is Moment1.dtype
        skipping = skipping_bytes(SkipUpdate, Grad, Param, Moment1, Moment2, Beta1Pow, Beta2Pow, MasterParam)
        return skipping + (copies(strided, Grad=Grad) if alike and strided <= {"Grad"} else 3 * Moment1.nbytes)

    def group_kernel(self, *slots: list[Tensor] | None) -> None:
        """Run many dense updates: in one call of torch's if they are of one step and one layout."""
        params, grads, rates, moments1, moments2, powers1, powers2, *optional = slots
        assert params and grads and rates and moments1 and moments2 and powers1 and powers2
        plain = all(o is None for o in optional) and all(map(one_layout, params, moments1, moments2))
        alike = all(g.dtype == p.dtype and g.shape == p.shape for g, p in zip(grads, params, strict=True))
        if plain and alike and not params[0].is_cpu and self._rates(1.0)[0]:
            self._fused_on_device(params, grads, rates, moments1, moments2, powers1, powers2)
            if not self.use_global_beta_pow:
                private.foreach_mul_(powers1, self.beta1)
                private.foreach_mul_(powers2, self.beta2)
            return
        steps = {(id(r), p.item(), q.item()) for r, p, q in zip(rates, powers1, powers2, strict=True)} if plain else ()
        if len(steps) != 1 or not alike:
            for index in range(len(params)):
                operands: list[Any] = [None if s is None else s[index] for s in slots]
                self.kernel(*operands)
            return
        rate, decay = self._rates(number(rates[0]))
        rate, epsilon = corrected(rate, self.epsilon, number(powers1[0]), number(powers2[0]))
        fused_step(params, [g.contiguous() for g in grads], moments1, moments2, self.beta1, self.beta2, rate, epsilon, decay)
        if not self.use_global_beta_pow:
            for powers, beta in ((powers1, self.beta1), (powers2, self.beta2)):
                private.foreach_mul_(powers, held(beta, powers[0].dtype) if powers[0].device.type == "cpu" else beta)

    def _fused_on_device(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        rates: list[Tensor],
        moments1: list[Tensor],
        moments2: list[Tensor],
        powers1: list[Tensor],
        powers2: list[Tensor],
    ) -> None:
        """Run each update in one kernel, which corrects by the number of the step: the second power of beta tells it, without waiting for the device.

        The learning rate makes up for a first power of another step.
        """
        scale, decay = self._rates(1.0)
        first, second = (torch.stack([p.reshape(()) for p in powers]).double() for powers in (powers1, powers2))
        if self.beta2:
            steps = second.log().div_(math.log(self.beta2))
        else:
            steps = torch.full_like(second, math.inf)
        ratios = (1.0 - self.beta1**steps).div_(1.0 - first).mul_(scale)
        learning_rates = torch.stack([r.reshape(()) for r in rates])
        kept = 1.0 - learning_rates * decay if decay else None
        for index, (rate, step) in enumerate(zip(ratios.to(params[0].dtype) * learning_rates, steps.float(), strict=True)):
            if kept is not None:
                params[index].mul_(kept[index])
            private.fused_adamw_(
                [params[index]],
                [grads[index].contiguous()],
                [moments1[index]],
                [moments2[index]],
                [],
                [step],
                lr=rate,
                beta1=self.beta1,
                beta2=self.beta2,
                eps=self.epsilon,
                weight_decay=0.0,
                amsgrad=False,
                maximize=False,
            )

    def instructions(self, Param: tuple[float, ...], *operands: tuple[float, ...] | None) -> list[Instruction] | None:
        """Return the instructions of a dense update in a small step."""
        scale, decay = self._rates(1.0)
        if any(o is not None for o in operands[6:]) or scale != 1.0:
            return None
        powers = [] if self.use_global_beta_pow else [(5, self.beta1), (6, self.beta2)]
        step = Instruction(ADAM, (1, 3, 0, 2, 4, 5, 6), (0, int(prod(Param))), (self.beta1, self.beta2, self.epsilon, decay))
        return [step, *(Instruction(SCALE, (slot, None, slot), (0, 1), (beta, 0.0)) for slot, beta in powers)]

    def _advance(self, power1: Tensor, power2: Tensor, beta1: float, beta2: float) -> None:
        if not self.use_global_beta_pow:
            power1.mul_(beta1)
            power2.mul_(beta2)

    def _leaves_rows(self) -> bool:
        return self.lazy_mode

    def _rates(self, rate: Any) -> tuple[Any, Any]:
        """Return the learning rate, and the part of the parameter to take away before the update."""
        return rate, 0.0

    samples = [
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, low=0.1, high=0.2), Moment1=f32(3, 2), Moment2=f32(3, 2, low=0.0),
               Beta1Pow=f32(1, data=[0.9]), Beta2Pow=f32(1, data=[0.999])),
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(low=0.1, high=0.2), Moment1=f32(3, 2), Moment2=f32(3, 2, low=0.0),
               Beta1Pow=f32(data=0.25), Beta2Pow=f32(data=0.5), Beta1Tensor=f32(1, data=[0.5]), Beta2Tensor=f32(1, data=[0.7]),
               EpsilonTensor=f32(1, data=[1e-3]), use_global_beta_pow=True, lazy_mode=True),
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1), Moment1=f64(3, 2), Moment2=f64(3, 2, low=0.0), Beta1Pow=f32(1, data=[0.9]),
               Beta2Pow=f32(1, data=[0.999]), MasterParam=f64(3, 2), SkipUpdate=b1(1, data=[False]), multi_precision=True),
        sample(Param=f32(4), Grad=f32(4), LearningRate=f32(1), Moment1=f32(4), Moment2=f32(4, low=0.0), Beta1Pow=f32(1, data=[0.9]),
               Beta2Pow=f32(1, data=[0.999]), SkipUpdate=b1(1, data=[True])),
    ]  # fmt: skip


class AdamW(Adam):
    """Adam (`adam`) after weight decay: Param * (1 - LearningRate * ``lr_ratio`` * ``coeff``), if ``with_decay``.

    ``lr_ratio`` multiplies the learning rate of the update as well. Lazy, on sparse rows, only rows of the gradient decay.
    """

    type = "adamw"
    lr_ratio = attribute(AttrType.FLOAT, 1.0)
    coeff = attribute(AttrType.FLOAT, 0.01)
    with_decay = attribute(AttrType.BOOLEAN, False)

    def _rates(self, rate: Any) -> tuple[Any, Any]:
        rate = rate * self.lr_ratio
        return rate, rate * self.coeff if self.with_decay else 0.0

    samples = [
        *Adam.samples,
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(1, data=[0.1]), Moment1=f32(3, 2), Moment2=f32(3, 2, low=0.0), lr_ratio=0.5,
               coeff=0.1, with_decay=True, Beta1Pow=f32(1, data=[0.9]), Beta2Pow=f32(1, data=[0.999])),
        sample(Param=f32(3, 2), Grad=f32(3, 2), LearningRate=f32(data=0.1), Moment1=f64(3, 2), Moment2=f64(3, 2, low=0.0), with_decay=True,
               MasterParam=f64(3, 2), Beta1Pow=f32(1, data=[0.9]), Beta2Pow=f32(1, data=[0.999])),
    ]  # fmt: skip


def corrected(rate: Any, epsilon: float, power1: Any, power2: Any) -> tuple[Any, Any]:
    """Return the learning rate and epsilon with Adam's bias correction in them, for the powers of beta of the step.

    Raises:
        ExecutionError: powers not below one.
    """
    if not isinstance(power2, float) or not isinstance(power1, float):  # on a device: tensors, and no waiting for their values
        on_device: Any = (1.0 - power2) ** 0.5
        return rate * on_device / (1.0 - power1), epsilon * on_device
    if not (power1 < 1.0 and power2 <= 1.0):
        raise ExecutionError(f"Beta1Pow and Beta2Pow must be below 1; seen {power1} and {power2}")
    root = math.sqrt(1.0 - power2)
    return rate * root / (1.0 - power1), epsilon * root


def adam_step(param: Tensor, grad: Tensor, moment1: Tensor, moment2: Tensor, beta1: float, beta2: float, rate: Any, epsilon: Any, decay: Any) -> None:
    """Run one update in place, with the bias correction already in ``rate`` and ``epsilon``."""
    if one_layout(param, moment1, moment2) and grad.dtype == param.dtype and grad.shape == param.shape and isinstance(rate, float):
        fused_step([param], [grad.contiguous()], [moment1], [moment2], beta1, beta2, rate, epsilon, decay)
        return
    if not isinstance(decay, float) or decay:
        param.mul_(1.0 - decay)
    grad = grad.to(moment1.dtype)
    moment1.lerp_(grad, 1.0 - beta1)
    moment2.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    param.addcdiv_(moment1 * rate, moment2.sqrt().add_(epsilon), value=-1.0)


def fused_step(
    params: list[Tensor], grads: list[Tensor], moments1: list[Tensor], moments2: list[Tensor], beta1: float, beta2: float, rate: float, epsilon: float,
    decay: float,
) -> None:  # fmt: skip
    """Run `adam_step` on packed tensors of one element type on the CPU, in one pass over each."""
    if decay and not rate:
        for param in params:
            param.mul_(1.0 - decay)
    # at step infinity torch's own bias correction is one; its decay is rate * weight_decay
    private.fused_adamw_(
        params, grads, moments1, moments2, [], [_infinity()] * len(params), lr=rate, beta1=beta1, beta2=beta2, eps=epsilon,
        weight_decay=decay / rate if decay and rate else 0.0, amsgrad=False, maximize=False,
    )  # fmt: skip


_infinite: list[Tensor] = []


def _infinity() -> Tensor:
    if not _infinite:
        _infinite.append(torch.tensor(math.inf))
    return _infinite[0]
