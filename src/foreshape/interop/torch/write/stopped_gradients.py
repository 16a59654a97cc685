"""The places where the backward pass of a program stops, so autograd stops there too."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from foreshape.core.spec import LOD_TENSOR
from foreshape.language.operator.fields import Gradient
from foreshape.language.operator.operator import Operator
from foreshape.language.program import Program, Variable


def learning_values(program: Program, parameters: Collection[Variable]) -> tuple[set[str], set[str]]:
    """Return the names of values dependent on trainable parameters with a gradient between, and of values whose gradient the program
    stops.
    """
    learning = {v.name for v in parameters if v.is_parameter and v.trainable and not v.stop_gradient and v.spec.known_dtype.is_floating}
    stopped: set[str] = set()
    count = -1
    while count != len(learning) + len(stopped):  # the rounds of a loop
        count = len(learning) + len(stopped)
        for op in program.all_ops():
            if learning.isdisjoint(op.input_names()):
                continue
            for name in op.output_names():
                variable = op.block.find(name)
                if variable is None or variable.spec.kind is not LOD_TENSOR or variable.spec.dtype is None or not variable.spec.dtype.is_floating:
                    continue
                if variable.stop_gradient:
                    stopped.add(name)
                elif name not in stopped:
                    learning.add(name)
    return learning, stopped


@cache
def has_gradient(cls: type[Operator], slot: str) -> bool:
    """Tell whether an operand of an operator takes a gradient, as far as the operator declares it."""
    declared = cls.gradient
    return not isinstance(declared, Gradient) or any(gradient.startswith(f"{slot}@") or gradient == slot for gradient in declared.gives)


def lacks_gradient(type: str) -> bool:
    """Tell whether a backward pass through an operator's torch code is refused: its own one is more than torch code."""
    return type == "with_gradient"
