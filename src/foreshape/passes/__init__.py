"""Passes: from a program to a program, each named, each verified after.

A pass never changes the program that it is given: it returns another one, and whether that differs.
"""

from foreshape.passes.data_parallel import DataParallel, ForRanks, data_parallel
from foreshape.passes.framework import Pass, apply, named
from foreshape.passes.prune import for_test, prune
from foreshape.passes.recompute import recompute_values

__all__ = ["DataParallel", "ForRanks", "Pass", "apply", "data_parallel", "for_test", "named", "prune", "recompute_values"]
