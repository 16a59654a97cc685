"""The parameters, results and work of a program's layers, for given sizes of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from foreshape.core.dims import Size, evaluate, symbol_name, symbols_of
from foreshape.core.dims.text import symbol_text
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program.inputs import inputs_of, kept_variables, size_of
from foreshape.language.program.op import Op
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable
from foreshape.language.program.work import multiplications


class Measure(NamedTuple):
    """The parameters, results and work of some ops.

    Attributes:
        parameters: the numbers in the parameters first read by them.
        parameter_bytes: the bytes of these parameters.
        result_bytes: the bytes of their results, each value once.
        work: multiply-adds, of the ops that count them.
    """

    parameters: int
    parameter_bytes: int
    result_bytes: int
    work: int

    def __add__(self, measure: object) -> Measure:
        if not isinstance(measure, Measure):
            return NotImplemented
        return Measure(*(a + b for a, b in zip(self, measure, strict=True)))


class SymbolNumbers:
    """Numbers for the symbols of a program's inputs: the given ones, else ``batch`` (by default 1), else the smallest accepted.

    Sizes set by the run count as 1.
    """

    def __init__(self, program: Program, batch: int | None = None, given: Mapping[str, int] | None = None) -> None:
        inputs = inputs_of(program.global_block)
        self.values: dict[str, int] = {}
        rows: list[str] = []
        for variable in inputs:
            spec = variable.spec
            for size in (*(spec.dims or ()), *(spec.lod.counts if spec.lod is not None else ())):
                for name in sorted(symbols_of(size)):
                    self.values.setdefault(name, 1)
            leading = spec.lod.counts[0] if spec.lod is not None else spec.dims[0] if spec.dims else 1
            rows += sorted(symbols_of(leading))
        for name in given or {}:
            if name not in self.values:
                raise SchemaError(f"no input has a size {name!r}; sizes that are open are: {', '.join(self.values) or 'none'}")
        for name, value in {**(given or {}), **({} if batch is None else {"batch": batch})}.items():
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
                raise SchemaError(f"a size is a whole number of at least 0; seen {name}={value!r}")
        self.given: dict[str, int] = {**(dict.fromkeys(rows, batch) if batch is not None else {}), **(given or {})}
        """The chosen sizes: they are shown in place of their symbols."""
        chosen = {**dict.fromkeys(rows, 1), **self.given}
        self.values.update(chosen)
        if self.values.keys() - chosen.keys():
            self._find_others(program, inputs, chosen)
        self._known: dict[Size, int] = {}

    def _find_others(self, program: Program, inputs: Iterable[Variable], chosen: Mapping[str, int]) -> None:
        """Set other sizes to the smallest with which the network can run; if none are found, as they are."""
        smallest = program.feeds.smallest
        for variable in inputs if smallest is not None else ():
            for dim, size in zip(variable.spec.dims or (), (smallest or {}).get(variable.name, ()), strict=False):
                name = symbol_name(dim)
                if name is not None and name not in chosen:
                    self.values[name] = size

    def number(self, size: Size | None) -> int | None:
        """Return a size as a number; None if unknown, or invalid with these values."""
        if size is None or isinstance(size, int):
            return size
        value = self._known.get(size)
        if value is None:
            try:
                value = max(evaluate(size, {n: self.values.get(n, 1) for n in symbols_of(size)}), 0)
            except ShapeError:
                return None
            self._known[size] = value
        return value

    def words(self) -> str:
        """Return ``for batch = 1, height = 32``; empty if no size is open."""
        values = [f"{symbol_text(n)} = {v:,}" for n, v in self.values.items()]
        return f"for {', '.join(values[:6])}{' and more' if len(values) > 6 else ''}" if values else ""


class Meter:
    """A measurement of one program's ops. A parameter and a result count with their first op."""

    def __init__(self, program: Program, sizes: SymbolNumbers) -> None:
        self.sizes = sizes
        self.parameters, self.state = kept_variables(program)
        self._parameters = {id(v) for v in self.parameters}
        self._first: dict[int, Op] = {}
        self.uncounted = 0
        """The number of values of unknown sizes, left out of all sums."""
        for op in program.all_ops():
            for variable in op.input_variables():
                self._first.setdefault(id(variable), op)
        for op in program.all_ops():
            for name in op.output_names():
                variable = op.block.find(name)
                if variable is not None:
                    self._first.setdefault(-id(variable), op)
        self._found: dict[int, Measure] = {}

    def op(self, op: Op) -> Measure:
        """Measure one op."""
        measure = self._found.get(id(op))
        if measure is None:
            measure = self._found[id(op)] = self._measured(op)
        return measure

    def all(self, ops: Iterable[Op]) -> Measure:
        """Measure several ops together."""
        parameters = size = results = work = 0
        for op in ops:
            measure = self.op(op)
            parameters, size, results, work = parameters + measure[0], size + measure[1], results + measure[2], work + measure[3]
        return Measure(parameters, size, results, work)

    def _measured(self, op: Op) -> Measure:
        number = self.sizes.number
        parameters = parameter_bytes = results = 0
        for variable in dict.fromkeys(op.input_variables()):
            if id(variable) in self._parameters and self._first.get(id(variable)) is op:
                elements = number(variable.spec.elements) if variable.spec.dims is not None else None
                parameters += elements or 0
                parameter_bytes += number(size_of(variable)) or 0
        for name in dict.fromkeys(op.output_names()):
            variable = op.block.find(name)
            if variable is not None and not variable.persistable and self._first.get(-id(variable)) is op:
                size = number(size_of(variable))
                self.uncounted += size is None
                results += size or 0
        return Measure(parameters, parameter_bytes, results, number(multiplications(op)) or 0)
