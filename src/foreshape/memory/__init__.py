"""Memory: what a program needs before it runs, as numbers and as a formula, and where each buffer of a run may lie."""

from foreshape.memory.arena import arena
from foreshape.memory.byte_counts import byte_text, bytes_of
from foreshape.memory.figures import Buffer, Holder
from foreshape.memory.plan import Plan, plan
from foreshape.memory.recomputation import Recomputation, recompute
from foreshape.memory.records import Unknown
from foreshape.memory.sections import lower_bound

__all__ = ["Buffer", "Holder", "Plan", "Recomputation", "Unknown", "arena", "byte_text", "bytes_of", "lower_bound", "plan", "recompute"]
