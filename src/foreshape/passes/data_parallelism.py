"""Data parallel training: each rank computes on its part of every batch, gradients are summed over the ranks, and all make the same update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foreshape.errors import SchemaError
from foreshape.passes.batch_norm import synchronise_batch_norm
from foreshape.passes.buckets import Gradient, Sender, data_of, gradients_of
from foreshape.passes.for_ranks import ForRanks, Mesh, Part
from foreshape.passes.framework import Pass
from foreshape.passes.parts_of_loss import parts_of, same_share
from foreshape.program import Block, Op, Program, Role, Variable
from foreshape.program.op import is_absent
from foreshape.spec import FP32, LOD_TENSOR, tensor

COUNTS = "rank@COUNTS"
"""An input that programs for ranks have: 1, or 0 on a rank whose part of the batch is empty, and which is fed an example that counts nothing."""
GRAD = "@GRAD"


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Each rank has the whole model and a part of every batch.

    Args:
        bucket: how many bytes of gradients are sent at once; chosen by their number where it is left out.
        patience: how many seconds a rank waits for the others before it says which one does not come.
        synchronise_batch_norm: whether batch normalisation takes its statistics over the examples of all ranks.
    """

    bucket: int | None = None
    patience: float = 20.0
    synchronise_batch_norm: bool = False

    def apply(self, program: Program, loss: Variable | str, ranks: int | None = None, startup: Program | None = None) -> ForRanks:
        """A copy of a training program for ranks.

        Args:
            program: with gradients and updates; left as it is.
            loss: the loss that it minimises.
            ranks: how many there are; any number where it is left out.
            startup: what makes its first values; left as it is.

        Raises:
            SchemaError: it has no updates, or its loss is no sum of means or sums over examples.
        """
        name = loss if isinstance(loss, str) else loss.name
        total = ""

        def change(copy: Program) -> bool:
            nonlocal total
            self.divide_examples(copy, name)
            block = copy.global_block
            update_last(block)
            sent = summed_loss(block, name)
            total = sent.total
            Sender(block).sum_all([sent, *gradients_of(block)], self.bucket)
            return True

        return ForRanks(Pass("data_parallel", change)(program)[0], total)

    def divide_examples(self, program: Program, loss: str) -> None:
        """Let a program compute on a rank's part of each batch, all but the sums of the loss and its gradients.

        Raises:
            SchemaError: it has no updates, or its loss is no sum of means or sums over examples.
        """
        block = program.global_block
        if not any(op.role & Role.OPTIMIZE for op in block.ops):
            raise SchemaError("there are no updates to make over ranks: minimise the loss first")
        weigh_means(block, loss)
        if self.synchronise_batch_norm:
            synchronise_batch_norm(program, COUNTS)

    def evaluated(self, program: Program, parts: Sequence[Part], ranks: int) -> Program:
        """A program without updates over what the ranks hold: as it is, where each has all values."""
        return program

    def mesh(self, ranks: int) -> Mesh:
        """The groups of ranks that collectives go to, beside that of all."""
        return {}


def update_last(block: Block) -> None:
    """Let what takes gradients before the backward pass has ended, as sums over several batches do, wait for that: gradients are sent together."""
    last = max((at for at, op in enumerate(block.ops) if op.role & Role.BACKWARD), default=-1)
    early = [op for op in block.ops[: last + 1] if op.role & Role.OPTIMIZE]
    if early:
        block.ops[: last + 1] = [op for op in block.ops[: last + 1] if not op.role & Role.OPTIMIZE] + early


def weigh_means(block: Block, loss: str) -> None:
    """Make the means that a loss is of a rank's parts of the means over all examples, and what is alike on all ranks its part of it."""
    parts = parts_of(block, loss)
    counts = block.create_variable(COUNTS, tensor(FP32, 1), need_check_feed=True, stop_gradient=True)
    counted: list[tuple[Variable, tuple[str, str]]] = []
    for name in parts.means:
        writer = _writer(block, name)
        of = block.var(next(n for n in writer.input_names()))
        found = next((names for variable, names in counted if same_share(variable, of)), None)
        if found is None:
            found = _count(block, of, counts, writer)
            counted.append((of, found))
        _weigh(block, name, found)
    if parts.alike:
        raise SchemaError(f"a part of the loss does not depend on the data: {', '.join(parts.alike)}; use weight_decay= of the optimizer for penalties")


def _count(block: Block, of: Variable, counts: Variable, writer: Op) -> tuple[str, str]:
    """Count the elements of a value over the ranks, as early as something is there that has as many for each example."""
    fed = [v for v in block.vars.values() if data_of(v) and v.kind is LOD_TENSOR and v.spec.dims and v is not counts and same_share(v, of)]
    own, total = block.program.unique_name("rank@OWN"), block.program.unique_name("rank@TOTAL")
    at = 0 if fed else block.ops.index(writer)
    inputs = {"X": [fed[0].name if fed else of.name], "Counts": [counts.name]}
    block.append_op("count_examples", inputs, {"Own": [own], "Total": [total]}, {}, role=Role.FORWARD, site=writer.site, index=at)
    return own, total


def _weigh(block: Block, name: str, counted: tuple[str, str]) -> None:
    """Let a mean have what this rank adds to the mean over all, and its gradient likewise."""
    writer = _writer(block, name)
    local = f"{name}@RANK"
    writer.rename_output(name, local)
    block.create_variable(local, block.var(name).spec)
    takes = {"Own": [counted[0]], "Total": [counted[1]]}
    at = block.ops.index(writer) + 1
    block.append_op("weigh_by_examples", {"X": [local], **takes}, {"Out": [name]}, {}, role=writer.role, site=writer.site, index=at)
    for op in list(block.ops):
        if op.role & Role.BACKWARD and name + GRAD in op.input_names() and op.type == f"{writer.type}_grad":
            made = f"{local}{GRAD}"
            block.append_op("weigh_by_examples_grad", {**takes, "Out@GRAD": [name + GRAD]}, {"X@GRAD": [made]}, {},
                            role=Role.BACKWARD, site=writer.site, index=block.ops.index(op))  # fmt: skip
            op.rename_input(name + GRAD, made)
            if name in op.input_names():
                op.rename_input(name, local)


def summed_loss(block: Block, loss: str) -> Gradient:
    """A loss as what is to be summed over the ranks, beside its gradients: the sum is another variable."""
    at = block.ops.index(_writer(block, loss))
    return Gradient(loss, "", at, block.var(loss).spec, block.program.unique_name(f"{loss}@RANKS"))


def _writer(block: Block, name: str) -> Op:
    """The op of the forward pass that makes a value last."""
    for op in reversed(block.ops):
        if not op.role & (Role.BACKWARD | Role.OPTIMIZE) and any(n == name for n in op.output_names() if not is_absent(n)):
            return op
    raise SchemaError(f"no op makes {name}")


def data_parallel(bucket: int | None = None, patience: float = 20.0, synchronise_batch_norm: bool = False) -> DataParallel:
    """Train with a part of every batch on each of the ranks that torchrun started: ``fs.train(cost, data, ranks=fs.data_parallel())``.

    Args:
        bucket: how many bytes of gradients are sent at once; chosen by their number where it is left out.
        patience: how many seconds a rank waits for the others before it says which one does not come.
        synchronise_batch_norm: let batch normalisation take its statistics over the examples of all ranks, as one rank with the whole batch
            would, for two small messages per normalisation. Otherwise each rank normalises by its own part of the batch.
    """
    return DataParallel(bucket, patience, synchronise_batch_norm)
