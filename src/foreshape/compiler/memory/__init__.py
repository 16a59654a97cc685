"""Memory: the needs of a program before it runs, as numbers and as a formula, and an offset for each buffer of a run.

`foreshape.compiler.memory.recomputation`, for programs with less memory, is not imported with the rest: a run needs none of it.
"""

from foreshape.compiler.memory.arena import arena
from foreshape.compiler.memory.byte_counts import byte_text, bytes_of
from foreshape.compiler.memory.figures import Buffer, Holder
from foreshape.compiler.memory.plan import Plan, plan
from foreshape.compiler.memory.records import UnknownMemory
from foreshape.compiler.memory.sections import lower_bound

__all__ = ["Buffer", "Holder", "Plan", "UnknownMemory", "arena", "byte_text", "bytes_of", "lower_bound", "plan"]
