"""Kernels with one pass over the elements of a tensor: rectifiers, sums in place, constants, bias gradients, channel shuffles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from foreshape.core.values.torch_proxy import F, Lazy, aten, torch
from foreshape.machine.kernels.frozen import gelu_by_tanh
from foreshape.machine.kernels.fused import Effects, FusedKernel, Sizes
from foreshape.machine.kernels.instructions import ADD, COLUMN_SUMS, RELU, RELU_GRADIENT, Instruction
from foreshape.machine.kernels.shuffling import shuffled

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
    return FusedKernel("rectifier relu", "{relu}({0})", {"relu": Lazy(lambda: torch.relu)}, "{0}.relu_()", _TAKES_OVER, small=_each(RELU, 0, None, -1))


def activation(name: str, form: str = "") -> FusedKernel:
    """Return "swish", "hardswish" or "gelu" with its ``form`` (see `foreshape.language.operator.computations.Activation`)."""
    if name == "gelu":
        return FusedKernel("{op} gelu", "{gelu}({0})", {"gelu": gelu_by_tanh if form == "tanh" else Lazy(lambda: F.gelu)})
    function = {"swish": Lazy(lambda: F.silu), "hardswish": Lazy(lambda: F.hardswish)}[name]
    return FusedKernel(f"{{op}} {name}", f"{{{name}}}({{0}})", {name: function}, f"{{{name}}}({{0}}, inplace=True)", _TAKES_OVER)


def relu_gradient() -> FusedKernel:
    """Return the gradient of a rectifier, of its result and the gradient of the result."""
    threshold = {"threshold": Lazy(lambda: aten.threshold_backward)}
    return FusedKernel("{op} threshold", "{threshold}({1}, {0}, 0)", threshold, small=_each(RELU_GRADIENT, 0, 1, -1))


def bias_gradient(axes: Sequence[int], of_channels: bool) -> FusedKernel:
    """Return the sum of a gradient over these axes."""
    over = axes[0] if len(axes) == 1 else tuple(axes)
    kind = "channel bias gradient sum" if of_channels else "{op} sum"
    return FusedKernel(kind, f"{{sum}}({{0}}, {over})", {"sum": Lazy(lambda: torch.sum)}, small=partial(_column_sums, tuple(axes)))


def descent(rate: str) -> FusedKernel:
    """Return ``{0} -= rate {1}``; ``rate`` is the name of a number."""
    return FusedKernel("{op} add_", f"{{0}}.add_({{1}}, alpha=-{rate})", effects=_IN_PLACE, small=_each(ADD, 1, None, 0, rate, by=-1.0))


def add_in_place() -> FusedKernel:
    """Return ``{0} += {1}``."""
    return FusedKernel("{op} add_", "{0}.add_({1})", effects=_IN_PLACE)


def fill_in_place(number: float) -> FusedKernel:
    """Return ``{0} = number`` for each element."""
    return FusedKernel("{op} number", "{0}.fill_({number})", {"number": number}, effects=_IN_PLACE)


def affine(by: str, shift: str) -> FusedKernel:
    """Return ``by {0} + shift``, of the names of a number and of a tensor of one."""
    text = f"{{add}}({shift}, {{0}}, alpha={by}"
    return FusedKernel("{op} add", f"{text})", {"add": Lazy(lambda: torch.add)}, f"{text}, out={{0}})", _TAKES_OVER)


def constant(value: Any) -> FusedKernel:
    """Return a constant of every run, made once: a tensor, or a `Lazy` one."""
    return FusedKernel("step value", "{value}", {"value": value}, effects=_OUTLIVES)


def packed_constant(name: str, place: int) -> FusedKernel:
    """Return one of several constants made when the step is bound."""
    return FusedKernel("constant ", f"{name}[{place}]", effects=_OUTLIVES)


def channel_shuffle(groups: int) -> FusedKernel:
    """Return the channels of images, taken from each group in turn."""
    return FusedKernel("shuffle groups shuffled", "{shuffled}({0}, {groups})", {"shuffled": shuffled, "groups": groups})
