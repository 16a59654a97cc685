"""Memory: what a program needs before it runs, as numbers and as a formula, and where each buffer of a run may lie."""

from foreshape.memory.arena import arena
from foreshape.memory.formula import byte_text
from foreshape.memory.plan import Buffer, Holder, Plan, bytes_of, plan
from foreshape.memory.recomputation import Recomputation, recompute
from foreshape.memory.records import Unknown
from foreshape.memory.sections import lower_bound

__all__ = ["Buffer", "Holder", "Plan", "Recomputation", "Unknown", "arena", "byte_text", "bytes_of", "lower_bound", "plan", "recompute"]
