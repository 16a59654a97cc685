"""Notes of the attempts of rewrites, for whoever asks why an op has a kernel of its own. No rewrite."""

from __future__ import annotations

from foreshape.core.data_class import data_class, field
from foreshape.language.program import Op


@data_class()
class Attempts:
    """The attempts of the rewrites of one step.

    Attributes:
        rewrite: the name of the rewrite at work.
        notes: op -> rewrite -> the reasons why it left the op as it is; none if it looked at the op and noted nothing. Ops are compared by identity.
        applied: op -> the rewrites with another call in the place of its call.
    """

    rewrite: str = ""
    notes: dict[Op, dict[str, list[str]]] = field(default_factory=dict[Op, "dict[str, list[str]]"])
    applied: dict[Op, list[str]] = field(default_factory=dict[Op, "list[str]"])

    def look(self, op: Op) -> list[str]:
        """Note a look of the rewrite at an op; return its reasons so far."""
        return self.notes.setdefault(op, {}).setdefault(self.rewrite, [])

    def stop(self, op: Op, reason: str) -> None:
        """Note why the rewrite leaves an op as it is."""
        reasons = self.look(op)
        if reason not in reasons:
            reasons.append(reason)

    def take(self, op: Op) -> None:
        """Note another call of the rewrite in the place of the op's."""
        names = self.applied.setdefault(op, [])
        if self.rewrite not in names:
            names.append(self.rewrite)
