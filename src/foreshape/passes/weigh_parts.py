"""The loss of a rank's part of a batch as a summand of the loss over all of it."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.errors import SchemaError
from foreshape.ops.math.scaling import Scale
from foreshape.passes.forward_and_back import GRAD, is_gradient_of, shown
from foreshape.passes.over_examples import OverExamples, Statistic, counting_input, measure, same_measure
from foreshape.program import Block, Op, Role, Variable
from foreshape.spec import FP32, tensor

COUNTS = "rank@COUNTS"
"""An input of programs for ranks: 1, or 0 on a rank with an empty part of the batch, fed an example that counts nothing."""


def weigh_parts(block: Block, loss: str) -> str:
    """Make a loss a rank's summand of the loss over the examples of all ranks, and its gradients likewise.

    Each sum or mean over examples in which it is linear becomes the rank's part of the sum or mean over all. Their factors and divisors, such as a
    sum of weights, are summed over the ranks before. So are the operands of other functions: these are alike on all ranks, and each adds its share.

    Returns:
        The name of the summand. Statistics keep their names, and are the rank's own.

    Raises:
        SchemaError: it is no function of means and sums over examples; with the user's line.
    """
    return _Weighing(block).apply(loss)


class _Weighing:
    def __init__(self, block: Block) -> None:
        self.block, self.name = block, block.program.unique_name
        self.over = OverExamples(block)
        self.backward = [op for op in block.ops if op.role & Role.BACKWARD]
        self.counts = block.create_variable(COUNTS, tensor(FP32, 1), need_check_feed=True, stop_gradient=True)
        self.counted: list[tuple[Size | str, dict[str, str]]] = []
        self.parts: dict[str, str] = {}
        self.wholes: dict[str, str] = {}
        self.summing: set[int] = set()
        """The ops from the summands to the loss."""

    def apply(self, name: str) -> str:
        loss = self.over.loss(name)
        self.summing = {id(op) for op in loss.ops}
        for summand in loss.summands:
            self._part(summand.statistic)
        for one in sorted(loss.alike):
            if one not in self.over.writer:
                raise SchemaError(f"{one} itself is a summand of the loss; use weight_decay= of the optimizer for penalties")
            self.parts[one] = self._weigh(one, self._count_ranks())
        for op, factor in dict.fromkeys(pair for s in loss.summands for pair in s.factors):
            self._take_whole(op, factor)
        for one in loss.functions:
            writer = self.over.writer[one]
            for read in [n for n in sorted(writer.all_reads()) if self.over.depends(n)]:
                self._take_whole(writer, read)
            self._share_function(one, writer)
        for op, one in loss.reads:
            self._read(op, one, self.parts[one])
        for op in loss.ops:
            if isinstance(op.operator, Scale) and op.attrs.get("bias"):
                self._share_bias(op)
        return self.parts.get(name, name)

    # --- parts of the rank

    def _part(self, of: Statistic) -> str:
        """Return a statistic as the rank's part of the statistic over all ranks."""
        found = self.parts.get(of.name)
        if found is None:
            found = self.parts[of.name] = self._weigh(of.name, self._count(of), of.is_sum)
        return found

    def _weigh(self, name: str, counted: dict[str, str], sums: bool = False) -> str:
        block, writer, part = self.block, self.over.writer[name], f"{name}@RANK"
        takes = {slot: [n] for slot, n in counted.items()}
        at = max(i for i, op in enumerate(block.ops) if op is writer or counted["Total"] in op.output_names()) + 1
        block.append_op("weigh_by_examples", {"X": [name], **takes}, {"Out": [part]}, {"sums": sums}, role=writer.role, site=writer.site, index=at)
        readers = [op for op in self.backward if name + GRAD in op.input_names()]
        if readers:
            made, first = part + GRAD, min(map(block.ops.index, readers))
            block.append_op("weigh_by_examples_grad", {**takes, "Out@GRAD": [name + GRAD]}, {"X@GRAD": [made]}, {"sums": sums},
                            role=Role.BACKWARD, site=writer.site, index=first)  # fmt: skip
            for op in readers:
                op.rename_input(name + GRAD, made)
        return part

    def _count(self, of: Statistic) -> dict[str, str]:
        """Count a statistic's elements over the ranks, as soon as a value with a proportional number of elements exists."""
        block, writer, counts = self.block, self.over.writer[of.name], self.counts
        if of.by:
            weight = of.by[0] if len(of.by) == 1 else self.name("rank@WEIGHT")
            if len(of.by) > 1:
                block.append_op("sum", {"X": list(of.by)}, {"Out": [weight]}, {}, role=Role.FORWARD, site=writer.site, index=block.ops.index(writer) + 1)
            return self._counted(weight, block.var(weight), block.ops.index(writer) + 1 + (len(of.by) > 1), True)
        if not of.of:
            return self._counted("examples", counts, 0)
        mean_of = block.var(of.of)
        fed = counting_input(block, mean_of, of.rows)
        if fed is None and of.rows:
            raise SchemaError(f"for ranks, an input must have as many rows as {mean_of.name}, of which {shown(writer)} makes a mean")
        return self._counted(measure(mean_of, of.rows), fed if fed is not None else mean_of, 0 if fed is not None else block.ops.index(writer))

    def _count_ranks(self) -> dict[str, str]:
        return self._counted("ranks", self.counts, 0, ranks=True)

    def _counted(self, key: Size | str, of: Variable, at: int, values: bool = False, ranks: bool = False) -> dict[str, str]:
        found = next((names for known, names in self.counted if same_measure(known, key)), None)
        if found is None:
            found = {"Own": self.name("rank@OWN"), "Total": self.name("rank@TOTAL")}
            inputs = {"X": [of.name], **({} if ranks else {"Counts": [self.counts.name]})}
            outputs = {slot: [n] for slot, n in found.items()}
            site = of.op.site if of.op is not None else None
            self.block.append_op("count_examples", inputs, outputs, {"values": values}, role=Role.FORWARD, site=site, index=at)
            self.counted.append((key, found))
        return found

    # --- common values of all ranks

    def _take_whole(self, op: Op, name: str) -> None:
        """Let an op read a function of statistics over all ranks."""
        pending, seen = [(op, name)], set[tuple[int, str]]()
        while pending:
            reader, now = pending.pop()
            if (id(reader), now) in seen or not self.over.depends(now):
                continue
            seen.add((id(reader), now))
            one, writer = self.over.statistic(now), self.over.writer.get(now)
            if one is not None:
                self._read(reader, now, self._whole(one, reader))
            elif writer is None or id(writer) in self.summing or self.over.statistics(now) is None:
                raise SchemaError(f"{now}, which {shown(reader)} reads, would be needed of one rank and over all ranks")
            else:
                pending += [(writer, n) for n in sorted(writer.all_reads())]

    def _whole(self, of: Statistic, reader: Op) -> str:
        """Return a statistic over all ranks, awaited at its first reader."""
        found = self.wholes.get(of.name)
        block = self.block
        if found is None:
            part, sent = self._part(of), self.name(f"{of.name}@SENT")
            found = self.wholes[of.name] = self.name(f"{of.name}@RANKS")
            site = self.over.writer[of.name].site
            at = next(i for i, op in enumerate(block.ops) if part in op.output_names()) + 1
            block.append_op("c_allreduce_sum", {"X": [part]}, {"Out": [sent]}, {"ring_id": 0}, role=Role.FORWARD, site=site, index=at)
            at = block.ops.index(reader)
            block.append_op("c_sync_comm_stream", {"X": [sent]}, {"Out": [found]}, {"ring_id": 0}, role=Role.FORWARD, site=site, index=at)
        waits = next(op for op in block.ops if found in op.output_names())
        if block.ops.index(waits) > block.ops.index(reader):
            block.ops.remove(waits)
            block.ops.insert(block.ops.index(reader), waits)
        return found

    def _share_function(self, name: str, writer: Op) -> None:
        """Let each rank add its share of a common value: its gradients by the rank's operands equal the gradients by all operands."""
        block, whole = self.block, self.name(f"{name}@RANKS")
        gradients = [g for g in self.backward if is_gradient_of(g, writer)]
        block.create_variable(whole, block.var(name).spec).op = writer
        block.var(name).op = None
        for op in (writer, *gradients):
            if name in op.output_names():
                op.rename_output(name, whole)
            if name in op.input_names():
                op.rename_input(name, whole)
        takes = {slot: [n] for slot, n in self._count_ranks().items()}
        at = block.ops.index(writer) + 1
        block.append_op("weigh_by_examples", {"X": [whole], **takes}, {"Out": [name]}, {}, role=writer.role, site=writer.site, index=at)

    def _share_bias(self, op: Op) -> None:
        """Let each rank add its share of the number added by a summand's scale."""
        block, name = self.block, op.outputs["Out"][0]
        spec, scaled, number, share = block.var(name).spec, *(self.name(f"{name}@{what}") for what in ("SCALED", "NUMBER", "SHARE"))
        bias = float(op.attrs["bias"]) * (1.0 if op.attrs["bias_after_scale"] else float(op.attrs["scale"]))
        block.create_variable(scaled, spec).op = op
        block.var(name).op = None
        op.rename_output(name, scaled)
        op.set_attribute("bias", 0.0)
        takes = {slot: [n] for slot, n in self._count_ranks().items()}
        constant = {"shape": list(spec.known_dims), "dtype": spec.known_dtype.code, "value": bias, "str_value": repr(bias)}
        steps: list[tuple[str, dict[str, list[str]], str, dict[str, Any]]] = [
            ("fill_constant", {}, number, constant),
            ("weigh_by_examples", {"X": [number], **takes}, share, {}),
            ("elementwise_add", {"X": [scaled], "Y": [share]}, name, {"axis": -1}),
        ]
        for at, (type, inputs, out, attrs) in enumerate(steps, block.ops.index(op) + 1):
            block.append_op(type, inputs, {"Out": [out]}, attrs, role=op.role, site=op.site, index=at)

    def _read(self, op: Op, name: str, instead: str) -> None:
        """Let an op and its gradient ops read another variable."""
        for one in [op, *(g for g in self.backward if is_gradient_of(g, op))]:
            if name in one.input_names():
                one.rename_input(name, instead)
