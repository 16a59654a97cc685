"""The weights of the batches in a group with one update: the divisors of their means or quotients.

A loss S / W of one large batch is the sum of all S by the sum of all W. The gradient of each batch is multiplied by its own W, and their sum is divided by
the sum of these in the update. A scaled loss leaves no room above a gradient's size in 16 bits: there W is relative to the group's first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import BOOL, Spec, tensor
from foreshape.errors import SchemaError
from foreshape.language.operator.computations import Filled, Quotient
from foreshape.language.ops.collective.shares import WeighByExamples
from foreshape.language.program import Block, Op, Role, Variable
from foreshape.language.program.call_site import warn_user
from foreshape.transforms.passes.forward_and_back import GRAD, is_gradient_of
from foreshape.transforms.passes.over_examples import OverExamples, Statistic, Summand, counting_input, measure, same_measure

State = Callable[[str, Spec], Variable]


class Inserted:
    """A writer of ops of one role into a block, one after the other, that names their results."""

    def __init__(self, block: Block, index: int, role: int) -> None:
        self.block, self.at, self.role = block, index, role
        self.ops: list[Op] = []

    def __call__(self, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, *, out: str = "") -> str:
        out = out or self.block.program.unique_name(f"group@{type.upper()}")
        self.copy(type, inputs, {"Out": out}, attrs)
        return out

    def copy(self, type: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None) -> None:
        site = self.block.ops[min(self.at, len(self.block.ops) - 1)].site
        self.ops.append(self.block.append_op(type, inputs, outputs, attrs or {}, role=self.role, site=site, index=self.at))
        self.at += 1

    def is_zero(self, name: str) -> str:
        """Write an op for 1 if a number is 0, otherwise 0."""
        code = self.block.var(name).spec.known_dtype.code
        true = self("logical_not", {"X": self("cast", {"X": name}, {"in_dtype": code, "out_dtype": BOOL.code})})
        return self("cast", {"X": true}, {"in_dtype": BOOL.code, "out_dtype": code})

    def never_zero(self, name: str) -> str:
        """Return a number, or 1 for 0."""
        return self("elementwise_add", {"X": name, "Y": self.is_zero(name)}, {"axis": -1})


def _weighs(op: Op) -> bool:
    """Tell whether an op makes a rank's value a part of the value over all."""
    return isinstance(op.operator, WeighByExamples)


def loss_of(block: Block) -> str | None:
    """Return the loss minimised by a training program."""
    written = {n for op in block.ops if op.role & Role.BACKWARD for n in op.output_names()}
    losses = (n for op in block.ops if op.role & Role.LOSS and not op.role & Role.BACKWARD for n in op.output_names())
    return next((n for n in losses if n + GRAD in written), None)


class GroupWeights:
    """The weights of the batches in a group: ops before the backward pass, and a factor in the update.

    Args:
        state: makes a variable kept between runs, with zeros at first, from a name and a spec.
    """

    def __init__(self, block: Block, state: State) -> None:
        self.block, self.state = block, state
        self.over = OverExamples(block)
        self.weights: dict[str, str] = {}
        self.added: dict[str, str] = {}
        self.kept: list[Variable] = []
        """The variables that begin anew with each group."""
        self.factor: Callable[[Inserted], str] | None = None
        """Writes the factor of the gradient sums; None if it is ``constant``."""
        self.is_sum = False
        """True if the gradients of the batches are added, and not averaged."""
        loss = loss_of(block)
        seed = next((op for op in block.ops if op.role & Role.BACKWARD and loss is not None and loss + GRAD in op.output_names()), None)
        if loss is not None and seed is not None:
            self._weigh(loss, seed)

    def _weigh(self, loss: str, seed: Op) -> None:
        summands, key = list[Summand](), ""
        with suppress(SchemaError):
            summands, key = self._weighed(loss)
        if not key:
            warn_user(
                f"accumulate=: the loss {loss} is not a sum or mean over examples alone, or a sum of means over different things: each batch counts as "
                "much as any, and where they are unequal an update is not that of one large batch"
            )
            return
        self.is_sum = key == "sum"
        if key in ("sum", "fixed"):
            return
        weight, divided = self._weight_of(summands)
        spec = self.block.var(weight).spec
        first = self.state("accumulated_unit", tensor(spec.known_dtype, *spec.known_dims)) if seed.computes(Filled) is None else None
        self.kept += [first] if first is not None else []
        self._scale_seed(seed, loss + GRAD, weight, first)

        def factor(put: Inserted) -> str:
            total = divided(put)
            safe = total if key == "mean" else put.never_zero(total)
            return put("reciprocal", {"X": safe}) if first is None else put("elementwise_div", {"X": first, "Y": safe}, {"axis": -1})

        self.factor = factor

    # --- the weights

    def _weighed(self, loss: str) -> tuple[list[Summand], str]:
        """Return the data-dependent summands and their kind of weight: "mean", "quotient", "sum", "fixed" sizes; "" for a mixture."""
        summed = self.over.loss(loss)
        of_ranks = {s.statistic.name: self._of_ranks(s.statistic) for s in summed.summands}
        summands = [s for s in summed.summands if (n := of_ranks[s.statistic.name]) is None or self.over.depends(n)]
        first = summands[0] if summands else None
        if first is None or summed.functions or any(of_ranks[s.statistic.name] for s in summands) or not all(self._is_alike(first, s) for s in summands):
            return summands, ""
        key = self._key(first.statistic)
        if first.factors:
            return summands, "quotient" if self._is_divisor(*first.factors[0]) and len(first.factors) == 1 and key != "fixed" else ""
        if key in ("sum", "fixed"):
            return summands, str(key)
        weigher = self._weigher(first.statistic)
        counts = not first.statistic.by and (weigher is None or not self.over.writer[weigher.inputs["Own"][0]].attrs["values"])
        return summands, "mean" if counts else "quotient"

    def _is_alike(self, a: Summand, b: Summand) -> bool:
        """Tell whether two summands have the same weight."""
        return same_measure(self._key(a.statistic), self._key(b.statistic)) and [n for _, n in a.factors] == [n for _, n in b.factors]

    def _key(self, statistic: Statistic) -> Size | str:
        """Return a key of a statistic's weight, equal for equal weights."""
        weigher = self._weigher(statistic)
        if weigher is not None:
            return "sum" if weigher.attrs["sums"] else f"of {weigher.inputs['Own'][0]}"
        if statistic.is_sum or statistic.by:
            return f"by {' '.join(statistic.by)}" if statistic.by else "sum"
        size = measure(self.block.var(statistic.of), statistic.rows)
        return "fixed" if isinstance(size, int) else size

    def _is_divisor(self, op: Op, name: str) -> bool:
        """Tell whether an op divides by one number that is a function of sums and means."""
        statistics, single = self.over.statistics(name), all(d == 1 for d in self.block.var(name).spec.known_dims)
        return op.computes(Quotient) is not None and single and bool(statistics) and not any(s.alike or self._of_ranks(s) for s in (statistics or {}).values())

    def _weigher(self, statistic: Statistic) -> Op | None:
        """Return the op between a rank's part of a statistic and the statistic over all; None without ranks."""
        writer = self.over.writer[statistic.name]
        while writer.operator is not None and writer.operator.collective and not _weighs(writer):
            writer = self.over.writer[writer.operand(0)]
        return writer if _weighs(writer) else next((op for op in self.block.ops if _weighs(op) and op.input("X") == statistic.name), None)

    def _of_ranks(self, statistic: Statistic) -> str | None:
        """Return the common value of all ranks, if a rank adds its share of it."""
        weigher = self.over.writer[statistic.name]
        counted = self.over.writer[weigher.inputs["Own"][0]] if _weighs(weigher) else None
        return weigher.input("X") if counted is not None and not counted.inputs.get("Counts") else None

    # --- the written ops

    def _weight_of(self, summands: list[Summand]) -> tuple[str, Callable[[Inserted], str]]:
        """Return a batch's weight, and a writer of the whole group's weight."""
        block, summand = self.block, summands[0]
        weight = self._weight(summand.statistic)
        total = None if weight is None else self._added(weight)
        if not summand.factors:
            assert weight is not None and total is not None
            return weight, lambda put: total
        divisor = divided = summand.factors[0][1]
        of_group = self._divisor_of_group(divisor)
        for op in dict.fromkeys(op for s in summands for op, _ in s.factors):
            put = Inserted(block, block.ops.index(op), Role.FORWARD)
            divided = put.never_zero(divisor)
            for reader in (op, *(g for g in block.ops if is_gradient_of(g, op))):
                reader.rename_input(divisor, divided)
        if weight is None:
            return divided, of_group
        index = max(i for i, op in enumerate(block.ops) if weight in op.output_names() or divided in op.output_names()) + 1
        product = Inserted(block, index, Role.FORWARD)("elementwise_mul", {"X": divided, "Y": weight}, {"axis": -1})
        return product, lambda put: put("elementwise_mul", {"X": of_group(put), "Y": total}, {"axis": -1})

    def _weight(self, statistic: Statistic) -> str | None:
        """Return the divisor of a mean in this batch; None for a sum."""
        weight = self.weights.get(statistic.name)
        weigher = self._weigher(statistic)
        if weight is None and not (statistic.is_sum if weigher is None else weigher.attrs["sums"]):
            if weigher is not None:
                weight = self._with_count(weigher)
            elif statistic.by:
                put = Inserted(self.block, self.block.ops.index(self.over.writer[statistic.name]) + 1, Role.FORWARD)
                weight = statistic.by[0] if len(statistic.by) == 1 else put("sum", {"X": list(statistic.by)})
            else:
                weight = self._counted(statistic)
            self.weights[statistic.name] = weight
        return weight

    def _counted(self, statistic: Statistic) -> str:
        """Count the elements of a statistic's mean."""
        block, mean_of = self.block, self.block.var(statistic.of)
        fed = counting_input(block, mean_of, statistic.rows)
        if fed is None and statistic.rows:
            raise SchemaError(f"no input has as many rows as {statistic.of}")
        put = Inserted(block, 0 if fed is not None else block.ops.index(self.over.writer[statistic.name]), Role.FORWARD)
        number = put("size", {"Input": fed if fed is not None else mean_of})
        return put("cast", {"X": number}, {"in_dtype": block.var(number).spec.known_dtype.code, "out_dtype": block.var(statistic.name).spec.known_dtype.code})

    def _with_count(self, weigher: Op) -> str:
        """Return the weight of a rank's part, over all ranks."""
        count = weigher.output("Count")
        if count is None:
            block, count = self.block, self.block.program.unique_name("rank@COUNT")
            attrs = {n: v for n, v in weigher.attrs.items() if n in ("alike", "sums", "ring_id")}
            index = block.ops.index(weigher)
            block.remove_op(weigher)
            op = block.append_op(weigher.type, weigher.inputs, {**weigher.outputs, "Count": (count,)}, attrs, role=weigher.role, site=weigher.site, index=index)
            self.over.writer[op.outputs["Out"][0]] = op
        return count

    def _scale_seed(self, seed: Op, gradient: str, weight: str, first: Variable | None) -> None:
        """Let the backward pass begin with a batch's weight; or with its ratio to the weight of the group's ``first`` nonempty batch."""
        block, spec = self.block, self.block.var(gradient).spec
        unscaled = block.program.unique_name(f"{gradient}@ONE")
        block.create_variable(unscaled, spec).op = seed
        block.var(gradient).op = None
        seed.rename_output(gradient, unscaled)
        put = Inserted(block, block.ops.index(seed) + 1, Role.BACKWARD)
        if first is not None:
            begun = put("elementwise_mul", {"X": put.is_zero(first.name), "Y": put.never_zero(weight)}, {"axis": -1})
            put("elementwise_add", {"X": first, "Y": begun}, {"axis": -1}, out=first.name)
            weight = put("elementwise_div", {"X": weight, "Y": first}, {"axis": -1})
        dtype = block.var(weight).spec.known_dtype
        if spec.dtype is not dtype:
            weight = put("cast", {"X": weight}, {"in_dtype": dtype.code, "out_dtype": spec.known_dtype.code})
        put("elementwise_mul", {"X": unscaled, "Y": weight}, {"axis": -1}, out=gradient)

    def _added(self, name: str) -> str:
        """Add a number of each batch to one kept between runs."""
        total_name = self.added.get(name)
        if total_name is not None:
            return total_name
        spec = self.block.var(name).spec
        total = self.state("accumulated_weight", tensor(spec.known_dtype, *spec.known_dims))
        self.kept.append(total)
        put = Inserted(self.block, max(i for i, op in enumerate(self.block.ops) if name in op.output_names()) + 1, Role.BACKWARD)
        self.added[name] = total.name
        return put("elementwise_add", {"X": total, "Y": name}, {"axis": -1}, out=total.name)

    def _divisor_of_group(self, divisor: str) -> Callable[[Inserted], str]:
        """Return a writer of a divisor, a function of sums and means, for the group's sums and means."""
        sums, means = dict[str, str](), dict[str, tuple[str, str]]()
        for name, statistic in (self.over.statistics(divisor) or {}).items():
            weight = self._weight(statistic)
            if weight is None:
                sums[name] = self._added(name)
                continue
            index = max(i for i, op in enumerate(self.block.ops) if name in op.output_names() or weight in op.output_names()) + 1
            part = Inserted(self.block, index, Role.FORWARD)("elementwise_mul", {"X": name, "Y": weight}, {"axis": -1})
            means[name] = self._added(part), self._added(weight)
        tail, pending = set[Op](), [divisor]
        while pending:
            op = None if (pending_name := pending.pop()) in sums or pending_name in means else self.over.writer.get(pending_name)
            if op is not None and op not in tail:
                tail.add(op)
                pending += op.input_names()

        def write(put: Inserted) -> str:
            names = dict(sums)
            for name, (total, weight) in means.items():
                names[name] = put("elementwise_div", {"X": total, "Y": put.never_zero(weight)}, {"axis": -1})
            for op in [op for op in self.block.ops if op in tail]:
                assert op.operator is not None
                names.update((n, self.block.program.unique_name(f"{n}@GROUP")) for n in op.output_names())
                inputs, outputs = (
                    {slot: [names.get(n, n) for n in slot_names] for slot, slot_names in operands.items() if slot_names} for operands in (op.inputs, op.outputs)
                )
                put.copy(op.type, inputs, outputs, {n: v for n, v in op.attrs.items() if n in op.operator.schema.attributes})
            return names[divisor]

        return write
