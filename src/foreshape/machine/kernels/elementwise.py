"""Kernels with one pass over the elements of a tensor: rectifiers, sums in place, constants, bias gradients, channel shuffles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from foreshape.core.values.torch_proxy import F, Lazy, aten, torch
from foreshape.machine.kernels.call_record import NamedConstant, Negative, StepName, Subscript, X, Y, call, method
from foreshape.machine.kernels.frozen import gelu_by_tanh
from foreshape.machine.kernels.fused import Effects, FusedKernel, Sizes
from foreshape.machine.kernels.instructions import ADD, COLUMN_SUMS, RELU, RELU_GRADIENT, Instruction
from foreshape.machine.kernels.shuffling import shuffled

_RELU = NamedConstant("relu", Lazy(lambda: torch.relu))
_IN_PLACE = Effects(in_place={0: 0})
_TAKES_OVER = Effects(takes_over=(0, 0))
_OUTLIVES = Effects(outlives=True)


def _each(code: int, *operands: int | str | None, by: float = 1.0) -> Callable[[Sizes, Sizes], list[Instruction] | None]:
    """Return the rule for the instruction of a function of each element."""

    def instructions(of: Sizes, made: Sizes) -> list[Instruction] | None:
        dims = of[0]
        return None if dims is None else [Instruction(code, operands, (0, int(prod(dims))), (by,))]

    return instructions


def _column_sums(axes: tuple[int, ...], of: Sizes, made: Sizes) -> list[Instruction] | None:
    """Return the instruction of a sum over all axes but the last."""
    dims = of[0]
    if not dims or axes != tuple(range(len(dims) - 1)):
        return None
    return [Instruction(COLUMN_SUMS, (0, None, -1), (int(prod(dims[:-1])), int(dims[-1])))]


def relu() -> FusedKernel:
    """Return the rectifier, possibly in the memory of its operand."""
    return FusedKernel("rectifier relu", call(_RELU, X), method(X, "relu_"), _TAKES_OVER, small=_each(RELU, 0, None, -1))


def activation(name: str, form: str = "") -> FusedKernel:
    """Return "swish", "hardswish" or "gelu" with its ``form`` (see `foreshape.language.operator.computations.Activation`)."""
    if name == "gelu":
        return FusedKernel("{op} gelu", call(NamedConstant("gelu", gelu_by_tanh if form == "tanh" else Lazy(lambda: F.gelu)), X))
    function = NamedConstant(name, {"swish": Lazy(lambda: F.silu), "hardswish": Lazy(lambda: F.hardswish)}[name])
    return FusedKernel(f"{{op}} {name}", call(function, X), call(function, X, inplace=True), _TAKES_OVER)


def relu_gradient() -> FusedKernel:
    """Return the gradient of a rectifier, of its result and the gradient of the result."""
    threshold = NamedConstant("threshold", Lazy(lambda: aten.threshold_backward))
    return FusedKernel("{op} threshold", call(threshold, Y, X, 0), small=_each(RELU_GRADIENT, 0, 1, -1))


def bias_gradient(axes: Sequence[int], of_channels: bool) -> FusedKernel:
    """Return the sum of a gradient over these axes."""
    over = axes[0] if len(axes) == 1 else tuple(axes)
    kind = "channel bias gradient sum" if of_channels else "{op} sum"
    return FusedKernel(kind, call(NamedConstant("sum", Lazy(lambda: torch.sum)), X, over), small=partial(_column_sums, tuple(axes)))


def descent(rate: str) -> FusedKernel:
    """Return ``{0} -= rate {1}``; ``rate`` is the name of a number."""
    return FusedKernel("{op} add_", method(X, "add_", Y, alpha=Negative(StepName(rate))), effects=_IN_PLACE, small=_each(ADD, 1, None, 0, rate, by=-1.0))


def add_in_place() -> FusedKernel:
    """Return ``{0} += {1}``."""
    return FusedKernel("{op} add_", method(X, "add_", Y), effects=_IN_PLACE)


def fill_in_place(number: float) -> FusedKernel:
    """Return ``{0} = number`` for each element."""
    return FusedKernel("{op} number", method(X, "fill_", NamedConstant("number", number)), effects=_IN_PLACE)


def affine(factor: str, shift: str) -> FusedKernel:
    """Return ``factor {0} + shift``, of the names of a number and of a tensor of one."""
    add, parts = NamedConstant("add", Lazy(lambda: torch.add)), (StepName(shift), X)
    return FusedKernel("{op} add", call(add, *parts, alpha=StepName(factor)), call(add, *parts, alpha=StepName(factor), out=X), _TAKES_OVER)


def plus_one() -> FusedKernel:
    """Return ``{0} + 1``."""
    return FusedKernel("{op} add", method(X, "add", 1.0), method(X, "add_", 1.0), _TAKES_OVER)


def constant(value: Any) -> FusedKernel:
    """Return a constant of every run, made once: a tensor, or a `Lazy` one."""
    return FusedKernel("step value", NamedConstant("value", value), effects=_OUTLIVES)


def packed_constant(name: str, place: int) -> FusedKernel:
    """Return one of several constants made when the step is bound."""
    return FusedKernel("constant ", Subscript(StepName(name), place), effects=_OUTLIVES)


def channel_shuffle(groups: int) -> FusedKernel:
    """Return the channels of images, taken from each group in turn."""
    return FusedKernel("shuffle groups shuffled", call(NamedConstant("shuffled", shuffled), X, NamedConstant("groups", groups)))
