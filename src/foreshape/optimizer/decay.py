"""Weight decay: terms added to the gradients, between the clip and the updates."""

from __future__ import annotations

import math

from foreshape.core.constructor_repr import ConstructorRepr
from foreshape.core.spec import SELECTED_ROWS
from foreshape.errors import SchemaError
from foreshape.language.operator.attributes import shown
from foreshape.language.program import Variable


class WeightDecay(ConstructorRepr):
    """The base: adds ``coefficient`` times the gradient of a penalty on the parameter to each gradient.

    With a sparse gradient the penalty is on its rows, and the sum stays sparse; other rows do not decay.
    """

    l1 = False

    def __init__(self, coefficient: float) -> None:
        if not _is_coefficient(coefficient):
            raise SchemaError(f"{type(self).__name__} needs a coefficient of at least 0; seen {shown(coefficient)}")
        self.coefficient = float(coefficient)

    def append(self, parameter: Variable, gradient: Variable) -> Variable:
        """Append the ops for the decay of one parameter. Returns the gradient with the decay in it."""
        block, roles = parameter.block, (parameter.name, gradient.name)
        if gradient.kind is SELECTED_ROWS:
            attrs = {"l1" if self.l1 else "l2": self.coefficient}
            block.append_op("decay_selected_rows", {"Param": parameter, "Grad": gradient}, {"Out": gradient}, attrs, role_variables=roles)
            return gradient
        source = parameter
        if self.l1:
            source = block.program.unique_name("_generated_var")
            block.append_op("sign", {"X": parameter}, {"Out": source}, role_variables=roles)
        name = block.program.unique_name("_generated_var")
        block.append_op("scale", {"X": source}, {"Out": name}, {"scale": self.coefficient}, role_variables=roles)
        block.append_op("sum", {"X": [gradient.name, name]}, {"Out": gradient.name}, role_variables=roles)
        return gradient


class L2Decay(WeightDecay):
    """The penalty coefficient / 2 * sum(parameter^2): coefficient * parameter is added to the gradient."""


class L1Decay(WeightDecay):
    """The penalty coefficient * sum(|parameter|): coefficient * sign(parameter) is added to the gradient."""

    l1 = True


def _is_coefficient(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < math.inf


def as_decay(given: float | WeightDecay | None) -> WeightDecay | None:
    """Return the decay of an optimizer's argument ``weight_decay``: a number is `L2Decay`'s coefficient; None and 0 are no decay."""
    if not (given is None or isinstance(given, WeightDecay) or _is_coefficient(given)):
        raise SchemaError.must("weight_decay", "a number of at least 0, an L1Decay or L2Decay, or None", shown(given))
    decay = given if given is None or isinstance(given, WeightDecay) else L2Decay(given)
    return decay if decay is not None and decay.coefficient else None
