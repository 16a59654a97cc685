"""Invalid losses: the mean of scores, unbounded below, and the mean of probabilities, a constant."""

from __future__ import annotations

from collections.abc import Collection

from foreshape.language.operator.computations import Softmax, Sum
from foreshape.language.program import Op, Variable
from foreshape.language.program.call_site import warn_user


def warn_of_no_loss(loss: Variable, trained: Collection[str]) -> None:
    """Warn if the loss is a linear function of a trained parameter, or the mean of a softmax.

    Only certain mistakes are reported: the path back leads through linear ops of one tensor to a bias or a product with a weight.
    A difference or a sum of two scores may be a loss, as for a critic with clipped weights.
    """
    variable: Variable | None = loss
    while variable is not None and variable.op is not None and variable.op.operator is not None and variable.op.operator.linear:
        inputs = [n for n in variable.op.input_names() if n not in variable.op.attributes.operands]
        if len(inputs) > 1:
            break
        variable = variable.block.find(inputs[0])
    op = variable.op if variable is not None else None
    if variable is None or op is None:
        return
    if op.computes(Softmax):
        warn_user(
            f"{loss.name} is minimised and is no loss: {variable.name} has shares that sum to 1, whatever the weights are; compare them with labels, "
            "as layer.cross_entropy(shares, label) does"
        )
        return
    name = _linear_in(op, trained)
    if name is not None:
        warn_user(
            f"{loss.name} is minimised and is no loss: it is a linear function of the parameter {name}, and falls without end; compare "
            f"{variable.name} with labels, as layer.softmax_with_cross_entropy(scores, label) or layer.mse_loss(guess, truth) do"
        )


def _linear_in(op: Op, trained: Collection[str]) -> str | None:
    """Return a trained parameter of which an op's result is a linear function; None if there is none."""
    operator = op.operator
    if operator is None or not (operator.multiplies or op.computes(Sum)):
        return None
    names = list(op.input_names())
    parameters = [n for n in names if n in trained]
    if len(names) - len(parameters) > 1:  # of two computed tensors
        return None
    return parameters[-1] if parameters else None
