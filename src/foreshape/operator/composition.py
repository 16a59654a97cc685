"""`Composition`: what an operator that is made of others is given to say of which, in `Operator.expand`."""

from __future__ import annotations

from typing import Any, Protocol

from foreshape.spec import Spec


class Part(Protocol):
    """A tensor of a composition: an operand of the operator, or a result of one of its parts."""

    @property
    def spec(self) -> Spec:
        """Kind, element type and dims."""
        ...


class Composition(Protocol):
    """Appends ops in the place of one that they stand for: ``of("mul", X=x, Y=w)`` returns the first result of the op, of several a tuple."""

    def __call__(self, type: str, attrs: dict[str, Any] | None = None, /, **operands: Any) -> Any:
        """Append an op.

        Args:
            type: of an operator.
            attrs: attribute values; the others are at their defaults.
            operands: slot -> a part, or a list of them; None where it is absent.

        Returns:
            The result; a tuple of the results, None where there is none, of an operator that has several.
        """
        ...
