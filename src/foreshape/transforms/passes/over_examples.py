"""The sums and means over examples behind a value: over several batches or ranks they are added, and the function is applied to the sums.

The mean of an epoch, the loss of ranks and the gradients of several batches are made of them. Each equals the value for one batch of all examples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from foreshape.core.dims import Dim, Size, equal, floordiv, product, symbols_of
from foreshape.core.spec import LOD_TENSOR
from foreshape.errors import SchemaError
from foreshape.language.operator.computations import Product
from foreshape.language.program import Block, Op, Role, Variable
from foreshape.transforms.passes.buckets import data_of
from foreshape.transforms.passes.forward_and_back import GRAD, LATER, shown


@dataclass(frozen=True, slots=True)
class Statistic:
    """A sum over examples, or a mean over the elements of ``of``, or over its rows, or a quotient divided by the sum of ``by``.

    Or it is ``alike`` for all examples, as a penalty on weights, and changes only from step to step.
    """

    name: str
    of: str = ""
    rows: bool = False
    by: tuple[str, ...] = ()
    alike: bool = False

    @property
    def is_sum(self) -> bool:
        return not (self.of or self.by or self.alike)


@dataclass(slots=True)
class Summand:
    """A statistic as a summand of a loss, with factors of other origin."""

    statistic: Statistic
    factors: tuple[tuple[Op, str], ...] = ()
    """Ops that multiply or divide it by data without a gradient; and the names of these data."""


@dataclass(slots=True)
class Loss:
    """A loss as a sum of statistics and of other things."""

    summands: list[Summand] = field(default_factory=list[Summand])
    alike: set[str] = field(default_factory=set[str])
    """Summands independent of data."""
    functions: list[str] = field(default_factory=list[str])
    """Summands that are other functions of statistics than sums."""
    ops: list[Op] = field(default_factory=list[Op])
    """The ops from the summands to the loss."""
    reads: list[tuple[Op, str]] = field(default_factory=list[tuple[Op, str]])
    """The statistics, and common values, read by these ops."""


def by_example(variable: Variable | None) -> bool:
    """Tell whether a value grows with the number of examples."""
    return variable is not None and (variable.spec.dims is None or variable.spec.lod is not None or not all(isinstance(d, int) for d in variable.spec.dims))


class OverExamples:
    """The values of the forward pass as functions of sums and means over examples."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.writer: dict[str, Op] = {}
        for op in block.ops:
            if not op.role & LATER:
                for name in op.output_names():
                    self.writer[name] = op
        self._depends: dict[str, bool] = {}
        self._open: dict[str, bool] = {}
        self._leading: set[Dim] | None = None

    def depends(self, name: str) -> bool:
        """Tell whether a value depends on fed ones."""
        answer = self._depends.get(name)
        if answer is None:
            answer = self._depends[name] = any(self._is_fed(n) for n in self._before([name]))
        return answer

    def _is_fed(self, name: str) -> bool:
        variable = self.block.find(name)
        return name not in self.writer and variable is not None and not variable.persistable and variable.value is None

    def _before(self, names: Iterable[str]) -> set[str]:
        """Return names, and all names behind them."""
        pending = list(names)
        visited = set(pending)
        while pending:
            op = self.writer.get(pending.pop())
            new: set[str] = set() if op is None else op.all_reads() - visited
            visited |= new
            pending += new
        return visited

    def statistic(self, name: str) -> Statistic | None:
        """Return a value as a sum or mean over examples made by its op; None for others."""
        op, variable = self.writer.get(name), self.block.find(name)
        if op is None or op.operator is None or variable is None or by_example(variable) or variable.persistable:
            return None
        if op.operator.collective:
            return Statistic(name)
        if self._counts(variable):
            return Statistic(name)
        if not any(by_example(self.block.find(n)) for n in op.all_reads()) and (self.is_open(name) or not self.depends(name)):
            return None
        for slot, total in op.operator.totals().items():
            if op.output(slot) == name:
                averaged = self.block.find(op.input(total.of) or "") if total.of else None
                if averaged is not None and averaged.spec.dtype is not None and averaged.spec.dtype.is_integer:
                    return None  # a mean of integers is cut: it is not the mean of the parts' means
                divisors = tuple(n for n in map(op.output, total.by) if n is not None)
                return Statistic(name, op.input(total.of) or "" if total.of else "", total.rows, divisors)
        return None

    def is_open(self, name: str) -> bool:
        """Tell whether a source of a value grows with the examples; never in a program with a fixed number of them."""
        answer = self._open.get(name)
        if answer is None:
            answer = self._open[name] = any(by_example(self.block.find(n)) for n in self._before([name]))
        return answer

    def inputs_of(self, name: str) -> list[Variable]:
        """Return the fed sources of a value that grow with the examples, in the order of their description."""
        sources = self._before([name])
        return [v for n, v in self.block.vars.items() if n in sources and self._is_fed(n) and by_example(v) and v.spec.dims]

    def _counts(self, variable: Variable) -> bool:
        """Tell whether a value is a multiple of the number of examples, or of rows."""
        value = variable.spec.value
        if value is None or len(value) != 1 or not isinstance(value[0], Dim):
            return False
        if self._leading is None:
            specs = [v.spec for v in self.block.vars.values() if self._is_fed(v.name) and v.spec.dims]
            dims = [d for spec in specs for d in (spec.known_dims[0], *(spec.lod.counts if spec.lod is not None else ()))]
            self._leading = {d for d in dims if isinstance(d, Dim)}
        quotients = [(floordiv(value[0], d), d) for d in self._leading]
        return any(isinstance(n, int) and n > 0 and equal(n * d, value[0]) is True for n, d in quotients)

    def statistics(self, name: str) -> dict[str, Statistic] | None:
        """Return the statistics behind a value, by name; None if it depends on its examples otherwise, as their maximum."""
        statistics_by_name: dict[str, Statistic] = {}
        pending, visited = [name], {name}
        while pending:
            source = pending.pop()
            op, variable = self.writer.get(source), self.block.find(source)
            if not self.depends(source):
                if op is not None and variable is not None and not by_example(variable) and any(self._persists(n) for n in self._before([source])):
                    statistics_by_name[source] = Statistic(source, alike=True)
                continue
            statistic = self.statistic(source)
            if statistic is not None:
                statistics_by_name[source] = statistic
                continue
            if op is None or by_example(variable) or self._persists(source):
                return None
            reads = op.all_reads()
            if any(by_example(self.block.find(n)) for n in reads):
                return None
            pending += sorted(reads - visited)
            visited |= reads
        return statistics_by_name

    def _persists(self, name: str) -> bool:
        variable = self.block.find(name)
        return variable is not None and variable.persistable

    def loss(self, name: str) -> Loss:
        """Return the summands of a loss.

        Raises:
            SchemaError: it is no function of sums and means over examples, or does not depend on data; with the user's line.
        """
        if not self.depends(name):
            raise SchemaError(f"the loss {name} does not depend on any data")
        differentiated = {n.split(GRAD, 1)[0] for op in self.block.ops if op.role & Role.BACKWARD for n in op.output_names()}
        out = Loss()
        pending: list[tuple[str, Op | None, tuple[tuple[Op, str], ...]]] = [(name, None, ())]
        while pending:
            value, reader, factors = pending.pop()
            statistic = self.statistic(value)
            if statistic is not None or not self.depends(value):
                if statistic is None or not self.depends(value):
                    out.alike.add(value)
                else:
                    out.summands.append(Summand(statistic, factors))
                if reader is not None:
                    out.reads.append((reader, value))
                continue
            op = self.writer.get(value)
            if op is None or self.statistics(value) is None:
                raise SchemaError(self._refused(value))
            if value in out.functions or op in out.ops:
                continue
            summands, operands = self._summands(op, differentiated)
            if any(map(self.depends, summands)) and differentiated.isdisjoint(operands):
                out.ops.append(op)
                pending += [(n, op, (*factors, *((op, factor) for factor in operands))) for n in summands]
            else:
                out.functions.append(value)
        return out

    def _summands(self, op: Op, differentiated: set[str]) -> tuple[list[str], list[str]]:
        """Return the operands in which, taken together, an op is linear, and its other data-dependent operands.

        A product is linear in the factor with a gradient.
        """
        if op.computes(Product) is not None:
            x, y = op.operand(0), op.operand(1)
            if not self.depends(x) or (y in differentiated and x not in differentiated):
                x, y = y, x
            return [x], [y] if self.depends(y) else []
        slots = op.operator.linear if op.operator is not None else ()
        factors = [n for slot, names in op.inputs.items() if slot not in slots for n in names if self.depends(n)]
        return [n for slot in slots for n in op.inputs.get(slot, ())], factors

    def _refused(self, name: str) -> str:
        """Explain a value that is no function of sums and means over examples, by the first op at fault."""
        while (op := self.writer.get(name)) is not None:
            reads = [n for n in sorted(op.all_reads()) if self.depends(n) and self.statistic(n) is None]
            source = next((n for n in reads if not by_example(self.block.find(n)) and self.statistics(n) is None), None)
            if source is None or any(by_example(self.block.find(n)) for n in reads):
                return f"for ranks, the loss must be made of means and sums over examples; {name} is made by {shown(op)}"
            name = source
        return f"the loss depends on {name}, which is fed, otherwise than by a mean or sum over examples"


def measure(variable: Variable, rows: bool = False) -> Size:
    """Return the number of elements (or rows) of a value up to a fixed factor: a rank's shares of equal measures are equal."""
    dims = variable.spec.known_dims[:1] if rows else variable.spec.known_dims
    return product([d for d in dims if not isinstance(d, int)])


def counting_input(block: Block, variable: Variable, rows: bool = False) -> Variable | None:
    """Return the input with the fewest elements for each example in proportion to a value's; None if there is none."""
    size = measure(variable, rows)
    inputs = [v for v in block.vars.values() if data_of(v) and v.kind is LOD_TENSOR and v.spec.dims and same_measure(measure(v), size)]
    return min(inputs, key=lambda v: prod(d for d in v.spec.known_dims if isinstance(d, int)), default=None)


def same_measure(a: Size | str, b: Size | str) -> bool:
    """Tell whether two numbers of elements are proportional in every run."""
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return equal(a, b) is True and bool(symbols_of(a))
