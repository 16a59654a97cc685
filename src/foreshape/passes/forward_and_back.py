"""An op of the forward pass with what undoes it, as those who rewrite both at once look at them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foreshape.dims import Size
from foreshape.operator.bound_attributes import Attributes
from foreshape.operator.computations import Cast
from foreshape.program import Block, Op, Role
from foreshape.program.op import is_absent

GRAD = "@GRAD"
LATER = Role.BACKWARD | Role.OPTIMIZE | Role.LEARNING_RATE
"""The roles of what is not of the forward pass."""


@dataclass(slots=True)
class Reading:
    """An op of the forward pass with its gradient ops."""

    op: Op
    gradients: list[Op]

    def gives(self, slot: str, at: int) -> list[tuple[Op, str]]:
        """The gradient ops that give the gradient of an operand, each with what it calls that."""
        out: list[tuple[Op, str]] = []
        for op in self.gradients:
            names = op.outputs.get(slot + GRAD, ())
            if at < len(names) and not is_absent(names[at]):
                out.append((op, names[at]))
        return out


def is_gradient_of(gradient: Op, op: Op) -> bool:
    """Whether a gradient op reads what an op reads and gives, and the gradients of what it gives."""
    for slot, names in gradient.inputs.items():
        if slot in op.inputs or slot in op.outputs:
            if names and names != (op.inputs.get(slot) or op.outputs.get(slot)):
                return False
        elif slot.endswith(GRAD):
            made = op.outputs.get(slot.removesuffix(GRAD), ())
            if any(not is_absent(n) and base_of(n) not in made for n in names):
                return False
    return True


def base_of(name: str) -> str:
    """What a gradient is of."""
    return name.split(GRAD, 1)[0]


def shown(op: Op) -> str:
    site = op.call_site
    return op.type + (f" ({site.short()})" if site is not None else "")


def shape_of_part(shape: Sequence[int], before: Sequence[Size], axis: int, at: int, size: int) -> list[int] | None:
    """What a reshape asks for of a part of its operand; None where that depends on a dim that is not known.

    Args:
        shape: what it asks for of the whole.
        before: the dims of the whole operand, divided along ``axis``.
        at: the axis along which the result is divided, of which the part has ``size``.
    """
    new = list(shape)
    copied = before[axis]
    if new[at] > 0 or (new[at] == 0 and at != axis):
        new[at] = size
    if axis != at and axis < len(new) and new[axis] == 0:  # it copied the dim that is divided
        if not isinstance(copied, int):
            return None
        new[axis] = copied
    return new


def set_shape(op: Op, shape: list[int]) -> None:
    """Change the attribute of a reshape; what follows is inferred when all is done."""
    assert op.operator is not None
    value = op.operator.check_attribute("shape", shape)
    op.attributes = Attributes.of(op.type, tuple((n, t, value if n == "shape" else v) for n, t, v in op.attributes.entries))


def casts_of(block: Block, names: Iterable[str]) -> dict[str, str]:
    """Each of the names, and what casts of the forward pass make of them, such as weights in 16 bits -> the name that it is of."""
    out = {n: n for n in names}
    for op in block.ops:
        if op.computes(Cast) and not op.role & LATER and op.operand(0) in out:
            out[op.result()] = out[op.operand(0)]
    return out
