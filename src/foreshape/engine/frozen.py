"""What a step must not do whose parameters never change."""

from __future__ import annotations

from foreshape.errors import ExecutionError
from foreshape.lowering.instruction import Lowered
from foreshape.operator.computations import FixedNormalization


def refuse_updates(lowered: Lowered) -> None:
    """Raise `ExecutionError` where a step changes what the scope holds."""
    for i in lowered.instructions:
        operator = i.op.operator
        changed = [v.name for v in i.changes() if v.persistable]
        if changed and not (operator is not None and isinstance(operator.computes(), FixedNormalization)):
            site = i.op.call_site
            raise ExecutionError(
                f"this executor is frozen, and runs what changes nothing in the scope; {i.op.type} changes {', '.join(changed[:3])}"
                f"{f' (at {site.short()})' if site is not None else ''}. Run the network without its training, or with another executor"
            )
