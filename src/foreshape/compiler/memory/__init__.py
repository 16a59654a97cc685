"""Memory: the needs of a program before it runs, as numbers and as a formula, and an offset for each buffer of a run.

A run needs no layout, and no `foreshape.compiler.memory.recomputation`, for programs with less memory: they are not imported with the rest.
"""

from typing import TYPE_CHECKING, Any

from foreshape.compiler.memory.byte_counts import byte_text, bytes_of
from foreshape.compiler.memory.figures import Buffer, Holder
from foreshape.compiler.memory.plan import Plan, plan
from foreshape.compiler.memory.records import UnknownMemory

if TYPE_CHECKING:
    from foreshape.compiler.memory.arena_layout import arena
    from foreshape.compiler.memory.sections import lower_bound
else:

    def __getattr__(name: str) -> Any:
        if name not in ("arena", "lower_bound"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from foreshape.compiler.memory.arena_layout import arena
        from foreshape.compiler.memory.sections import lower_bound

        return arena if name == "arena" else lower_bound


__all__ = ["Buffer", "Holder", "Plan", "UnknownMemory", "arena", "byte_text", "bytes_of", "lower_bound", "plan"]
