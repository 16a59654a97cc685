"""The loss of a rank's part of a batch as a summand of the loss over all of it."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, tensor
from foreshape.errors import SchemaError
from foreshape.language.ops.math.scaling import Scale
from foreshape.language.program import Block, Op, Role, Variable
from foreshape.transforms.passes.forward_and_back import GRAD, is_gradient_of, shown
from foreshape.transforms.passes.over_examples import OverExamples, Statistic, counting_input, measure, same_measure

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
        for value in sorted(loss.alike):
            if value not in self.over.writer:
                raise SchemaError(f"{value} itself is a summand of the loss; use weight_decay= of the optimizer for penalties")
            self.parts[value] = self._weigh(value, self._count_ranks())
        for op, factor in dict.fromkeys(pair for s in loss.summands for pair in s.factors):
            self._take_whole(op, factor)
        for value in loss.functions:
            writer = self.over.writer[value]
            for read in [n for n in sorted(writer.all_reads()) if self.over.depends(n)]:
                self._take_whole(writer, read)
            self._share_function(value, writer)
        for op, value in loss.reads:
            self._read(op, value, self.parts[value])
        for op in loss.ops:
            if isinstance(op.operator, Scale) and op.attrs.get("bias"):
                self._share_bias(op)
        return self.parts.get(name, name)

    # --- parts of the rank

    def _part(self, statistic: Statistic) -> str:
        """Return a statistic as the rank's part of the statistic over all ranks."""
        part = self.parts.get(statistic.name)
        if part is None:
            part = self.parts[statistic.name] = self._weigh(statistic.name, self._count(statistic), statistic.is_sum)
        return part

    def _weigh(self, name: str, counted: dict[str, str], sums: bool = False) -> str:
        block, writer, part = self.block, self.over.writer[name], f"{name}@RANK"
        takes = {slot: [n] for slot, n in counted.items()}
        index = max(i for i, op in enumerate(block.ops) if op is writer or counted["Total"] in op.output_names()) + 1
        block.append_op("weigh_by_examples", {"X": [name], **takes}, {"Out": [part]}, {"sums": sums}, role=writer.role, site=writer.site, index=index)
        readers = [op for op in self.backward if name + GRAD in op.input_names()]
        if readers:
            part_gradient, first = part + GRAD, min(map(block.ops.index, readers))
            block.append_op("weigh_by_examples_grad", {**takes, "Out@GRAD": [name + GRAD]}, {"X@GRAD": [part_gradient]}, {"sums": sums},
                            role=Role.BACKWARD, site=writer.site, index=first)  # fmt: skip
            for op in readers:
                op.rename_input(name + GRAD, part_gradient)
        return part

    def _count(self, statistic: Statistic) -> dict[str, str]:
        """Count a statistic's elements over the ranks, as soon as a value with a proportional number of elements exists."""
        block, writer, counts = self.block, self.over.writer[statistic.name], self.counts
        if statistic.by:
            weight = statistic.by[0] if len(statistic.by) == 1 else self.name("rank@WEIGHT")
            if len(statistic.by) > 1:
                block.append_op("sum", {"X": list(statistic.by)}, {"Out": [weight]}, {}, role=Role.FORWARD, site=writer.site, index=block.ops.index(writer) + 1)
            return self._counted(weight, block.var(weight), block.ops.index(writer) + 1 + (len(statistic.by) > 1), True)
        if not statistic.of:
            return self._counted("examples", counts, 0)
        mean_of = block.var(statistic.of)
        fed = counting_input(block, mean_of, statistic.rows)
        if fed is None and statistic.rows:
            raise SchemaError(f"for ranks, an input must have as many rows as {mean_of.name}, of which {shown(writer)} makes a mean")
        return self._counted(measure(mean_of, statistic.rows), fed if fed is not None else mean_of, 0 if fed is not None else block.ops.index(writer))

    def _count_ranks(self) -> dict[str, str]:
        return self._counted("ranks", self.counts, 0, ranks=True)

    def _counted(self, key: Size | str, variable: Variable, index: int, values: bool = False, ranks: bool = False) -> dict[str, str]:
        slots = next((names for counted_key, names in self.counted if same_measure(counted_key, key)), None)
        if slots is None:
            slots = {"Own": self.name("rank@OWN"), "Total": self.name("rank@TOTAL")}
            inputs = {"X": [variable.name], **({} if ranks else {"Counts": [self.counts.name]})}
            outputs = {slot: [n] for slot, n in slots.items()}
            site = variable.op.site if variable.op is not None else None
            self.block.append_op("count_examples", inputs, outputs, {"values": values}, role=Role.FORWARD, site=site, index=index)
            self.counted.append((key, slots))
        return slots

    # --- common values of all ranks

    def _take_whole(self, op: Op, name: str) -> None:
        """Let an op read a function of statistics over all ranks."""
        pending, visited = [(op, name)], set[tuple[int, str]]()
        while pending:
            reader, value = pending.pop()
            if (id(reader), value) in visited or not self.over.depends(value):
                continue
            visited.add((id(reader), value))
            statistic, writer = self.over.statistic(value), self.over.writer.get(value)
            if statistic is not None:
                self._read(reader, value, self._whole(statistic, reader))
            elif writer is None or id(writer) in self.summing or self.over.statistics(value) is None:
                raise SchemaError(f"{value}, which {shown(reader)} reads, would be needed of one rank and over all ranks")
            else:
                pending += [(writer, n) for n in sorted(writer.all_reads())]

    def _whole(self, statistic: Statistic, reader: Op) -> str:
        """Return a statistic over all ranks, awaited at its first reader."""
        total = self.wholes.get(statistic.name)
        block = self.block
        if total is None:
            part, sent = self._part(statistic), self.name(f"{statistic.name}@SENT")
            total = self.wholes[statistic.name] = self.name(f"{statistic.name}@RANKS")
            site = self.over.writer[statistic.name].site
            index = next(i for i, op in enumerate(block.ops) if part in op.output_names()) + 1
            block.append_op("c_allreduce_sum", {"X": [part]}, {"Out": [sent]}, {"ring_id": 0}, role=Role.FORWARD, site=site, index=index)
            index = block.ops.index(reader)
            block.append_op("c_sync_comm_stream", {"X": [sent]}, {"Out": [total]}, {"ring_id": 0}, role=Role.FORWARD, site=site, index=index)
        waits = next(op for op in block.ops if total in op.output_names())
        if block.ops.index(waits) > block.ops.index(reader):
            block.ops.remove(waits)
            block.ops.insert(block.ops.index(reader), waits)
        return total

    def _share_function(self, name: str, writer: Op) -> None:
        """Let each rank add its share of a common value: its gradients by the rank's operands equal the gradients by all operands."""
        block, total = self.block, self.name(f"{name}@RANKS")
        gradients = [g for g in self.backward if is_gradient_of(g, writer)]
        block.create_variable(total, block.var(name).spec).op = writer
        block.var(name).op = None
        for op in (writer, *gradients):
            if name in op.output_names():
                op.rename_output(name, total)
            if name in op.input_names():
                op.rename_input(name, total)
        takes = {slot: [n] for slot, n in self._count_ranks().items()}
        index = block.ops.index(writer) + 1
        block.append_op("weigh_by_examples", {"X": [total], **takes}, {"Out": [name]}, {}, role=writer.role, site=writer.site, index=index)

    def _share_bias(self, op: Op) -> None:
        """Let each rank add its share of the number added by a summand's scale."""
        block, name = self.block, op.outputs["Out"][0]
        spec, scaled, number, share = block.var(name).spec, *(self.name(f"{name}@{word}") for word in ("SCALED", "NUMBER", "SHARE"))
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
        for index, (type, inputs, out, attrs) in enumerate(steps, block.ops.index(op) + 1):
            block.append_op(type, inputs, {"Out": [out]}, attrs, role=op.role, site=op.site, index=index)

    def _read(self, op: Op, name: str, instead: str) -> None:
        """Let an op and its gradient ops read another variable."""
        for reader in [op, *(g for g in self.backward if is_gradient_of(g, op))]:
            if name in reader.input_names():
                reader.rename_input(name, instead)
