"""An op of the forward pass with its gradient ops, for passes that rewrite both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foreshape.core.dims import Size
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.computations import Cast
from foreshape.language.program import Block, Op, Role
from foreshape.language.program.op import is_empty_name

GRAD = "@GRAD"
LATER = Role.BACKWARD | Role.OPTIMIZE | Role.LEARNING_RATE
"""The roles outside of the forward pass."""


@dataclass(slots=True)
class Reading:
    """An op of the forward pass with its gradient ops."""

    op: Op
    gradients: list[Op]

    def gives(self, slot: str, index: int) -> list[tuple[Op, str]]:
        """Return the gradient ops for the gradient of an operand, each with its name there."""
        out: list[tuple[Op, str]] = []
        for op in self.gradients:
            names = op.outputs.get(slot + GRAD, ())
            if index < len(names) and not is_empty_name(names[index]):
                out.append((op, names[index]))
        return out


def is_gradient_of(gradient: Op, op: Op) -> bool:
    """Tell whether a gradient op reads an op's operands, results, and the gradients of its results."""
    for slot, names in gradient.inputs.items():
        if slot in op.inputs or slot in op.outputs:
            if names and names != (op.inputs.get(slot) or op.outputs.get(slot)):
                return False
        elif slot.endswith(GRAD):
            results = op.outputs.get(slot.removesuffix(GRAD), ())
            if any(not is_empty_name(n) and base_of(n) not in results for n in names):
                return False
    return True


def base_of(name: str) -> str:
    """Return the name behind a gradient's name."""
    return name.split(GRAD, 1)[0]


def shown(op: Op) -> str:
    site = op.call_site
    return op.type + (f" ({site.short()})" if site is not None else "")


def shape_of_part(shape: Sequence[int], dims: Sequence[Size], axis: int, divided_axis: int, size: int) -> list[int] | None:
    """Return the shape argument of a reshape for a part of its operand; None if it depends on an unknown dim.

    Args:
        shape: the argument for the whole.
        dims: the dims of the whole operand, divided along ``axis``.
        divided_axis: the divided axis of the result, ``size`` in the part.
    """
    new = list(shape)
    copied = dims[axis]
    if new[divided_axis] > 0 or (new[divided_axis] == 0 and divided_axis != axis):
        new[divided_axis] = size
    if axis != divided_axis and axis < len(new) and new[axis] == 0:  # it copied the divided dim
        if not isinstance(copied, int):
            return None
        new[axis] = copied
    return new


def set_shape(op: Op, shape: list[int]) -> None:
    """Change the attribute of a reshape; results are inferred at the end."""
    assert op.operator is not None
    value = op.operator.check_attribute("shape", shape)
    op.attributes = Attributes.of(op.type, tuple((n, t, value if n == "shape" else v) for n, t, v in op.attributes.entries))


def casts_of(block: Block, names: Iterable[str]) -> dict[str, str]:
    """Return each of the names, and the forward casts of them, such as weights in 16 bits -> the original name."""
    out = {n: n for n in names}
    for op in block.ops:
        if op.computes(Cast) and not op.role & LATER and op.operand(0) in out:
            out[op.result()] = out[op.operand(0)]
    return out
