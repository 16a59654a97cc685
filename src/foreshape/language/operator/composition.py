"""`Composition`: the argument of `Operator.expand` for operators made of others."""

from __future__ import annotations

from typing import Any, Protocol

from foreshape.core.spec import Spec


class ComposedTensor(Protocol):
    """A tensor of a composition: an operand of the operator, or a result of one of its parts."""

    @property
    def spec(self) -> Spec:
        """Return kind, element type and dims."""
        ...


class Composition(Protocol):
    """A builder of the ops in place of a composite one: ``of("mul", X=x, Y=w)`` returns the result of the op, or a tuple of several."""

    def __call__(self, type: str, attrs: dict[str, Any] | None = None, /, **operands: Any) -> Any:
        """Append an op.

        Args:
            type: of an operator.
            attrs: attribute values; the others are at their defaults.
            operands: slot -> a part, or a list of them; None if absent.

        Returns:
            The result; of an operator with several a tuple, None for missing ones.
        """
        ...
