"""Passes: from a program to a program, each named, with a contract, and inferred again after.

A pass never changes its argument: it returns another program, and True if it differs.
"""

from foreshape.transforms.passes.accumulate import accumulate
from foreshape.transforms.passes.data_parallelism import DataParallel, data_parallel
from foreshape.transforms.passes.for_ranks import ForRanks, ShardedValue, ShardPiece
from foreshape.transforms.passes.for_training import for_training
from foreshape.transforms.passes.framework import Pass, apply, named
from foreshape.transforms.passes.optimizer_sharding import ShardOptimizer, ShardParameters, shard_optimizer, shard_parameters
from foreshape.transforms.passes.precision import lower_precision, scale_loss
from foreshape.transforms.passes.prune import for_test, prune
from foreshape.transforms.passes.recompute import recompute_values
from foreshape.transforms.passes.table_sharding import SplitTables, split_tables
from foreshape.transforms.passes.tensor_parallelism import SplitLayers, split_layers

__all__ = [
    "DataParallel",
    "ForRanks",
    "Pass",
    "ShardOptimizer",
    "ShardParameters",
    "ShardPiece",
    "ShardedValue",
    "SplitLayers",
    "SplitTables",
    "accumulate",
    "apply",
    "data_parallel",
    "for_test",
    "for_training",
    "lower_precision",
    "named",
    "prune",
    "recompute_values",
    "scale_loss",
    "shard_optimizer",
    "shard_parameters",
    "split_layers",
    "split_tables",
]
