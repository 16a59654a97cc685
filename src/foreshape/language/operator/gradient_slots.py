"""`GradientSlots`: the argument of an operator's own rule for its gradient ops."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

_GRADIENT = "@GRAD"


@dataclass(slots=True)
class GradientSlots:
    """The argument of an operator's ``gradient_ops``: the names in its op's slots, and the needed gradients.

    A gradient op is appended with `add`; the gradient of a variable ``x`` is written by naming ``x`` itself in ``gives``.
    """

    op: Any
    """The `foreshape.language.program.Op`."""
    needed: Collection[str]
    available: Collection[str]
    added: list[tuple[str, dict[str, list[str]], dict[str, list[str]], dict[str, Any]]] = field(
        default_factory=list[tuple[str, dict[str, list[str]], dict[str, list[str]], dict[str, Any]]]
    )

    def input(self, slot: str) -> list[str]:
        """Return the names in an input slot of the forward op."""
        return list(self.op.inputs.get(slot, ()))

    def output(self, slot: str) -> list[str]:
        return list(self.op.outputs.get(slot, ()))

    def grad_of_output(self, slot: str) -> list[str]:
        """Return the names of the gradients of the results in a slot."""
        return [n + _GRADIENT for n in self.op.outputs.get(slot, ())]

    def needs(self, name: str) -> bool:
        """Tell whether the gradient of this variable is needed."""
        return name in self.needed

    def add(self, type: str, inputs: dict[str, list[str]], gives: dict[str, list[str]], attrs: dict[str, Any] | None = None) -> None:
        """Append an op: ``inputs`` and ``gives`` are its slots; in ``gives`` stand the variables whose gradients it makes."""
        self.added.append((type, inputs, gives, attrs or {}))
