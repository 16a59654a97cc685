"""Data parallel training: each rank computes on its part of every batch, gradients are summed over the ranks, and all make the same update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foreshape.language.program import Block, Program, Role, Variable
from foreshape.transforms.passes.batch_norm import synchronise_batch_norm
from foreshape.transforms.passes.buckets import BucketGradient, Sender, gradients_of
from foreshape.transforms.passes.contract import COLLECTIVES, UPDATES, contract
from foreshape.transforms.passes.for_ranks import ForRanks, Mesh, ShardedValue
from foreshape.transforms.passes.weigh_parts import COUNTS, weigh_parts

_DATA_PARALLEL = contract("data_parallel", [UPDATES], [COLLECTIVES])


@dataclass(frozen=True, slots=True)
class DataParallel:
    """The whole model on each rank, with a part of every batch.

    Args:
        bucket: the bytes of gradients sent at once; by default chosen by their number.
        patience: the seconds that a rank waits for the others before it names the missing one.
        synchronise_batch_norm: take the statistics of batch normalisation over the examples of all ranks.
    """

    bucket: int | None = None
    patience: float = 20.0
    synchronise_batch_norm: bool = False

    def apply(self, program: Program, loss: Variable | str, ranks: int | None = None, startup: Program | None = None) -> ForRanks:
        """Return a copy of a training program for ranks.

        Args:
            program: with gradients and updates; left as it is.
            loss: its minimised loss.
            ranks: their number; by default any number.
            startup: its startup program; left as it is.

        Raises:
            SchemaError: it has no updates, or its loss is not made of means and sums over examples.
        """
        name = loss if isinstance(loss, str) else loss.name
        total = ""

        def change(copy: Program) -> bool:
            nonlocal total
            part = self.divide_examples(copy, name)
            block = copy.global_block
            update_last(block)
            sent = summed_loss(block, part, name)
            total = sent.total
            Sender(block).sum_all([sent, *gradients_of(block)], self.bucket)
            return True

        return ForRanks(_DATA_PARALLEL.run(program, change).program, total)

    def divide_examples(self, program: Program, loss: str) -> str:
        """Let a program compute on a rank's part of each batch, except for the sums of the loss and its gradients.

        Returns:
            The name of the rank's summand of the loss.

        Raises:
            SchemaError: it has no updates, or its loss is not made of means and sums over examples.
        """
        block = program.global_block
        part = weigh_parts(block, loss)
        if self.synchronise_batch_norm:
            synchronise_batch_norm(program, COUNTS)
        return part

    def evaluated(self, program: Program, parts: Sequence[ShardedValue], ranks: int) -> Program:
        """Return a program without updates over the values of the ranks: unchanged if each rank has all values."""
        return program

    def mesh(self, ranks: int) -> Mesh:
        """Return the groups of ranks for collectives, beside the group of all."""
        return {}


def update_last(block: Block) -> bool:
    """Let early readers of gradients, as sums over several batches, wait for the end of the backward pass: gradients are sent together.

    Returns:
        True if there are some.
    """
    last = max((index for index, op in enumerate(block.ops) if op.role & Role.BACKWARD), default=-1)
    early = [op for op in block.ops[: last + 1] if op.role & Role.OPTIMIZE]
    if early:
        block.ops[: last + 1] = [op for op in block.ops[: last + 1] if not op.role & Role.OPTIMIZE] + early
    return bool(early)


def summed_loss(block: Block, part: str, loss: str) -> BucketGradient:
    """Return a rank's summand of a loss, to be summed over the ranks beside its gradients: the sum is another variable."""
    index = max(index for index, op in enumerate(block.ops) if part in op.output_names())
    return BucketGradient(part, "", index, block.var(part).spec, block.program.unique_name(f"{loss}@RANKS"))


def data_parallel(bucket: int | None = None, patience: float = 20.0, synchronise_batch_norm: bool = False) -> DataParallel:
    """Train with a part of every batch on each of torchrun's ranks: ``fs.train(cost, data, ranks=fs.data_parallel())``.

    Args:
        bucket: the bytes of gradients sent at once; by default chosen by their number.
        patience: the seconds that a rank waits for the others before it names the missing one.
        synchronise_batch_norm: take the statistics of batch normalisation over the examples of all ranks, as of the whole batch, for two small messages
            each. Otherwise each rank normalises by its own part of the batch.
    """
    return DataParallel(bucket, patience, synchronise_batch_norm)
