"""The proof that a text's own rows and results are the same in a padded batch as alone.

Each op's rule is told by its operator's declarations: its computation, `per_element`, or its `ShardingRule`. An operator without any takes part where
its operands have neither texts nor rows; elsewhere the proof fails at it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from foreshape.core.dims import Dim, Size
from foreshape.core.spec import BOOL, Spec
from foreshape.language.operator import computations as c
from foreshape.language.operator.byte_computations import Dequantization
from foreshape.language.operator.computation import Computation
from foreshape.language.program import Block, Op
from foreshape.transforms.unpad.contents import INFINITY, Content, NormBound, array_content, constant, index_content
from foreshape.transforms.unpad.index_forms import TEXTS, TIME, IndexForm, Place, Side
from foreshape.transforms.unpad.mixing import (
    columns,
)
from foreshape.transforms.unpad.padded_values import (
    BATCH,
    REAL,
    REVERSED,
    ROWS,
    Atom,
    Axes,
    AxisReader,
    Fault,
    PaddedValue,
    Region,
    Unsupported,
    WidenedRows,
    all_regions,
    filled,
    relocated_content,
)
from foreshape.transforms.unpad.per_element import PlaceFacts, combined

Numbers = Callable[[str], Any]
"""Returns the array of a parameter by its name; None if it has none."""
Results = dict[str, Any]
"""Slot -> the value of its result, or a list of them."""


class OpRules(NamedTuple):
    """The rules of ops: by their types, and by the computations of their operators."""

    type_rules: Mapping[str, Callable[[Proof, Op, str], Results]]
    computation_rules: Mapping[type, Callable[[Proof, Op, Any, str], Results]]


_KEEP_NUMBERS: Final = (c.Sum, c.Subtraction, c.Product, c.Scaling, c.Affine, c.Cast, c.ExtremeElements)
"""The computations with whole numbers by their place as results, if their operands are such."""
_SMALL: Final = 4096
"""The numbers of parameters with so many elements are read at once."""


class Proof:
    """The padded values of a block, from its inputs on.

    Args:
        block: the block of the program.
        reader: the meaning of sizes.
        time: the padded size.
        side: the end of a text with its padding.
        numbers: of parameters.
        rules: of ops beyond functions of each element.
    """

    def __init__(self, block: Block, reader: AxisReader, time: Size, side: Side, numbers: Numbers, rules: OpRules) -> None:
        self.time = time
        self.block, self.reader, self.numbers = block, reader, numbers
        self.side: Side = side
        self._rules = rules
        self.values: dict[str, PaddedValue] = {}
        self.obstacles: dict[str, Fault] = {}
        """The results without a rule: name -> the op and the reason."""
        self.widened: dict[str, WidenedRows] = {}
        """The results with rows of zeros around those of texts."""
        self._writers: dict[str, Op] = {}
        self._parameters: dict[str, Any] = {}

    def run(self) -> None:
        """Follow all ops in order."""
        for op in self.block.ops:
            if op.is_feed or op.is_fetch:
                continue
            for name in op.output_names():
                if not self.block.var(name).persistable:  # moving averages are parameters to the others
                    self._writers[name] = op
            self._follow(op)

    def _follow(self, op: Op) -> None:
        names = [n for n in op.output_names() if n]
        unknown = next((self.obstacles[n] for n in op.input_names() if n in self.obstacles), None)
        sizes = {n: v for n in names if (v := self._size_value(n)) is not None}
        self.values |= sizes
        if len(sizes) == len(names) and names:
            return
        if unknown is not None:
            self.obstacles |= {n: unknown for n in names if n not in sizes}
            return
        try:
            if op.operator is None:
                raise Unsupported("it is not known here")
            for slot, value in self._results(op).items():
                if isinstance(value, WidenedRows):
                    self.widened[op.outputs[slot][0]] = value
                    continue
                parts: list[PaddedValue] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]
                for name, part in zip(op.outputs.get(slot, ()), parts, strict=False):
                    if name and name not in sizes:
                        if sum(axis.count(BATCH) for axis in part.axes) > 1:
                            raise Unsupported("it joins each text with every other")
                        self.values[name] = part
        except Unsupported as reason:
            fault = Fault(op, str(reason))
            self.obstacles |= {n: fault for n in names if n not in self.values}
        for name in names:
            if name not in self.values and name not in self.obstacles and name not in self.widened:
                self.obstacles[name] = Fault(op, "nothing is known of this result")

    def fetch_fault(self, name: str) -> Fault | None:
        """Return the reason why a fetched value is not the same alone."""
        if name in self.obstacles:
            return self.obstacles[name]
        if name in self.widened:
            return Fault(self._writers[name], "its result has rows of zeros around those of texts")
        value = self.value(name)
        writer = self._writers.get(name)
        return value.fault if writer is None else value.data_fault(self.side, writer)

    # --- values

    def spec(self, name: str) -> Spec:
        return self.block.var(name).spec

    def value(self, name: str) -> PaddedValue:
        """Return the padded value of a name; parameters are read when they are met first."""
        value = self.values.get(name)
        if value is None:
            value = self.values[name] = self._parameter(name)
        return value

    def _parameter(self, name: str) -> PaddedValue:
        if name in self.widened:
            raise Unsupported(f"it takes {name}, which has rows of zeros around those of texts")
        variable = self.block.var(name)
        if name in self._writers or not variable.persistable:
            raise Unsupported(f"{name} is neither an input nor a parameter")
        spec = variable.spec
        dims = spec.known_dims
        if any(not isinstance(d, int) for d in dims):
            raise Unsupported(f"the parameter {name} has an open size")
        axes: Axes = tuple((d,) if isinstance(d, int) and d != 1 else () for d in dims)
        elements = math.prod(d for d in dims if isinstance(d, int))
        content = Content(extent=NormBound(lambda: self._norm(name)))
        trained = variable.is_parameter and variable.trainable and variable.spec.rank > 0  # its numbers of today are no constants
        if elements <= _SMALL and not trained and (array := self.array(name)) is not None:
            bounds = array_content(array)
            content = bounds if bounds.constant is not None else Content(bounds.low, bounds.high, bounds.finite, extent=content.extent)
        return filled(axes, lambda _: content)

    def array(self, name: str) -> Any:
        """Return the numbers of a parameter, or of a constant of the program; None if there are none."""
        if name not in self._parameters:
            variable = self.block.find(name)
            self._parameters[name] = self.numbers(name) if variable is not None and variable.persistable else self._written(name)
        return self._parameters[name]

    def _written(self, name: str) -> Any:
        op = self._writers.get(name)
        if op is None or op.operator is None:
            return None
        import numpy

        computed = op.operator.computes()
        dims = self.spec(name).known_dims
        if isinstance(computed, c.Numbers) and computed.numbers:
            return numpy.asarray(computed.numbers).reshape(dims)
        if isinstance(computed, c.Filled) and computed.number is not None and all(isinstance(d, int) for d in dims) and not op.input("ValueTensor"):
            return numpy.full(dims, computed.number, self.spec(name).known_dtype.numpy_name or "float32")
        arrays = [self.array(n) for n in op.input_names() if n] if computed is not None else []
        if not arrays or any(a is None for a in arrays):
            return None
        match computed:  # weights in other dims, or from integers
            case c.Reshape() if all(isinstance(d, int) for d in dims):
                return numpy.reshape(arrays[0], dims)
            case c.Transposition(axes=axes):
                return numpy.transpose(arrays[0], axes)
            case c.Cast() | c.Identity():
                return arrays[0].astype(self.spec(name).known_dtype.numpy_name or "float32")
            case c.Product(axis=-1) if len(arrays) == 2:
                return arrays[0] * arrays[1]
            case Dequantization(axis=axis, most=most):
                x, factor = self.array(op.operand(0)), self.array(op.operand(1))
                shape = [1] * x.ndim
                if factor.size > 1:
                    shape[axis] = -1
                return x.astype("float64") * factor.reshape(shape) / most
            case _:
                return None

    def _norm(self, name: str) -> float:
        import numpy

        array = self.array(name)
        return INFINITY if array is None else float(numpy.linalg.norm(numpy.asarray(array, "float64")))

    def row_norm(self, name: str) -> NormBound:
        """Return a bound of the norm of a row of a table."""

        def compute() -> float:
            import numpy

            array = self.array(name)
            if array is None:
                return INFINITY
            table = numpy.asarray(array, "float64").reshape(len(array), -1)
            return float(numpy.sqrt((table * table).sum(1)).max()) if len(table) else 0.0

        return NormBound(compute)

    def stretch(self, name: str) -> NormBound | None:
        """Return the largest factor by which weights make a row longer; None for values of texts."""
        if self.value(name).per_text or self.value(name).time_places:
            return None

        def compute() -> float:
            import numpy

            array = self.array(name)
            if array is None or array.ndim < 2:
                return INFINITY
            matrices = numpy.asarray(array, "float64").reshape(-1, *array.shape[-2:])
            return math.sqrt(len(matrices)) * max((float(numpy.linalg.norm(m, 2)) for m in matrices), default=0.0)

        return NormBound(compute)

    def bytes_stretch(self, op: Op) -> NormBound:
        """Return the largest factor by which a matrix of bytes with its scales, and factors of its columns, makes a row longer."""

        def compute() -> float:
            import numpy

            weights, scales = self.array(op.operand(1)), self.array(op.operand(2))
            factors = self.array(op.operand(3)) if op.operand(3) else 1.0
            if weights is None or scales is None or factors is None:
                return INFINITY
            rows = numpy.asarray(factors, "float64").reshape(-1, 1)
            return float(numpy.linalg.norm(rows * numpy.asarray(weights, "float64") * numpy.asarray(scales, "float64").reshape(1, -1), 2))

        return NormBound(compute)

    def window_stretch(self, name: str) -> NormBound:
        """Return the largest norm of a convolution's result at a place, for rows of norm 1: the sum over the places of its window."""

        def compute() -> float:
            import numpy

            array = self.array(name)
            if array is None:
                return INFINITY
            filters = numpy.asarray(array, "float64")
            return sum(float(numpy.linalg.norm(m)) for m in numpy.moveaxis(filters.reshape(*filters.shape[:2], -1), -1, 0))

        return NormBound(compute)

    def _normalized(self, op: Op) -> bool:
        """Tell whether an op divides a value by its own norm, or by its root mean square, or by something larger."""
        if op.computes(c.Quotient) is not None:
            return self._is_root(op.operand(1), op.operand(0))
        if op.computes(c.Product) is None:
            return False
        for x, y in ((op.operand(0), op.operand(1)), (op.operand(1), op.operand(0))):
            inverse = self._writers.get(y)
            if inverse is None:
                continue
            match inverse.computes(Computation):
                case c.Power(of=-0.5) if self._is_square(inverse.operand(0), x):
                    return True
                case c.Power(of=-1.0) if self._is_root(inverse.operand(0), x):
                    return True
                case c.Quotient() if self._is_root(inverse.operand(1), x):
                    return self.value(inverse.operand(0)).real.constant == 1.0
                case _:
                    pass
        return False

    def _is_root(self, name: str, x: str) -> bool:
        """Tell whether a value is at least the norm of ``x``, or its root mean square."""
        op = self._at_least(name)
        match op.computes(Computation) if op is not None else None:
            case c.VectorNorm(of=2.0) if op is not None:
                return self._is_cast_from(op.operand(0), x)
            case c.Power(of=0.5) if op is not None:
                return self._is_square(op.operand(0), x)
            case _:
                return False

    def _is_square(self, name: str, x: str) -> bool:
        """Tell whether a value is at least the sum of the squares of ``x``, or their mean over columns."""
        op = self._at_least(name)
        total = op.computes(c.Reduction) if op is not None else None
        square = self._writers.get(op.operand(0)) if op is not None and total is not None else None
        if op is None or total is None or square is None:
            return False
        axes = self.value(op.operand(0)).axes
        reduced_axes = axes if total.axes is None else [axes[a] for a in total.axes]
        if total.how != "SUM" and any(isinstance(a, str) for axis in reduced_axes for a in axis):
            return False  # one row may have the squares of all
        match square.computes(Computation):
            case c.Product():
                return all(self._is_cast_from(square.operand(k), x) for k in (0, 1))
            case c.Power(of=2.0):
                return self._is_cast_from(square.operand(0), x)
            case c.PowerElements():
                return self.value(square.operand(1)).real.constant == 2.0 and self._is_cast_from(square.operand(0), x)
            case _:
                return False

    def _at_least(self, name: str) -> Op | None:
        """Return the op of a value, behind steps making it only larger: sums with numbers above 0, and bounds from below."""
        op = self._writers.get(name)
        while op is not None and (smaller := self._no_larger(op)):
            op = self._writers.get(smaller)
        return op

    def _no_larger(self, op: Op) -> str:
        """Return the operand no larger than its op's result; empty if it has none."""
        match op.computes(Computation):
            case c.Cast() if self._is_of_floats(op):
                return op.operand(0)
            case c.Expansion() | c.Identity() | c.Scaling(by=1.0):
                return op.operand(0)
            case c.Affine(by=1.0, shift=shift) if shift >= 0:
                return op.operand(0)
            case c.Activation(name="hardtanh", numbers=(_, high)) if high >= 3e38:
                return op.operand(0)
            case c.Sum() | c.ExtremeElements(how="max"):
                numbers = [self.value(op.operand(k)).real.constant for k in (0, 1)]
                return next((op.operand(1 - k) for k in (1, 0) if (number := numbers[k]) is not None and number >= 0), "")
            case _:
                return ""

    def _is_of_floats(self, op: Op) -> bool:
        """Tell whether an op's first operand and result are floats: a cast of them rounds, and does not cut off."""
        return all(self.spec(n).known_dtype.is_floating for n in (op.operand(0), op.result(0)))

    def _is_cast_from(self, name: str, source: str) -> bool:
        """Tell whether a value is another one, perhaps cast."""
        while name != source:
            op = self._writers.get(name)
            if op is None or op.computes(c.Cast) is None or not self._is_of_floats(op):
                return False
            name = op.operand(0)
        return True

    def at_own_key(self, name: str) -> Content:
        """Return the numbers where a row's place and a key's are one, of a value with both; of others the numbers of a text's own rows."""
        value = self.value(name)
        places = value.time_places
        op = self._writers.get(name)
        if len(places) != 2 or op is None or op.operator is None or value.real.constant is not None:
            return value.real
        first = IndexForm.factor(places[0])

        def on_diagonal(form: IndexForm) -> IndexForm:
            return form.replaced(lambda f: first if f == places[1] else IndexForm.factor(f))

        real = value.real
        if real.form is not None:
            return index_content(on_diagonal(real.form))
        if real.step is not None:
            low = on_diagonal(real.step[0]).least(self.side, places, ())
            return (
                constant(real.step[1]) if low is not None and low >= 0 else constant(real.step[2]) if on_diagonal(real.step[0]).constant is not None else real
            )
        inputs = [n for n in op.input_names() if n]
        if isinstance(op.operator.computes(), (c.Reshape, c.Transposition, c.Expansion, c.Identity)):
            return self.at_own_key(inputs[0])
        if not op.operator.per_element:
            return real
        operands = self.inputs(op)
        contents: list[Content] = []
        for _, operand, operand_value in operands:
            content = self.at_own_key(operand)
            shift = len(value.axes) - len(operand_value.axes)
            aligned = (
                relocated_content(content, {(a, k): (a + shift, k) for a, axis in enumerate(operand_value.axes) for k in range(len(axis))})
                if shift
                else content
            )
            contents.append(replace(aligned, form=on_diagonal(aligned.form)) if aligned.form is not None else aligned)
        names = [n for _, n, _ in operands]
        are_truths = all(self.spec(n).dtype is BOOL for n in names)
        facts = PlaceFacts(op, names, self.side, places, (), are_truths, self.spec(name).known_dtype)
        return _combined_parts(op, contents, facts)

    def _size_value(self, name: str) -> PaddedValue | None:
        """Return a small value known in the description: sizes of tensors, and arithmetic on them."""
        variable = self.block.find(name)
        if variable is None or variable.spec.value is None or variable.spec.dims is None:
            return None
        try:
            contents = tuple(constant(v) if isinstance(v, float) else index_content(self.form(v)) for v in variable.spec.value)
        except Unsupported:
            return None
        if not contents or variable.spec.rank > 1:
            return None
        axes: Axes = () if not variable.spec.rank else ((len(contents),) if len(contents) != 1 else (),)
        content = contents[0] if all(x == contents[0] for x in contents) else Content(parts=contents)
        return filled(axes, lambda _: content)

    def form(self, size: Size | bool) -> IndexForm:
        """Return a size as a polynomial in the texts and the time."""
        if isinstance(size, int):
            return IndexForm.number(int(size))
        if not isinstance(size, Dim):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Unsupported(f"the size {size}")
        total = IndexForm(())
        for monomial, coefficient in size.terms:
            part = IndexForm.number(coefficient)
            for factor in monomial:
                meaning = self.reader.symbol(factor.name) if not factor.op else None
                if meaning is None:
                    raise Unsupported(f"the size {size}")
                part = part * IndexForm.factor(TEXTS if meaning == BATCH else TIME)
            total = total + part
        return total

    def whole_numbers(self, name: str) -> list[Size] | None:
        """Return the numbers of a small tensor known in the description."""
        variable = self.block.find(name)
        return None if variable is None or variable.spec.value is None else list(variable.spec.value)

    def operand_numbers(self, op: Op, many: str, single: str, attribute: Any) -> list[Size] | None:
        """Return the numbers of an attribute, or of the operands in its place; None if they are not known in the description."""
        names = op.inputs.get(many) or ()
        if names:
            several = [self.whole_numbers(n) for n in names]
            return [s[0] for s in several if s] if all(several) else None
        name = op.input(single)
        if name:
            return self.whole_numbers(name)
        return list(attribute) if attribute is not None else None

    # --- rules

    def inputs(self, op: Op) -> list[tuple[str, str, PaddedValue]]:
        """Return (slot, name, value) of all operands, in the order of the schema."""
        operator = op.operator
        order = [o.name for o in operator.schema.operands] if operator is not None else list(op.inputs)
        return [(slot, name, self.value(name)) for slot in order for name in op.inputs.get(slot, ()) if name]

    def _results(self, op: Op) -> dict[str, Any]:
        operator = op.operator
        assert operator is not None
        first = operator.schema.results[0].name
        rule = self._rules.type_rules.get(op.type)
        if rule is not None:
            return rule(self, op, first)
        computed = operator.computes()
        computation_rule = self._rules.computation_rules.get(type(computed))
        if computation_rule is not None:
            return computation_rule(self, op, computed, first)
        if operator.per_element:
            return {r.name: value for r, value in zip(operator.schema.results, [self.per_element(op)], strict=False)}
        self.refuse_reversed(op)
        inputs = self.inputs(op)
        if not any(atom in (BATCH, ROWS) for _, _, v in inputs for axis in v.axes for atom in axis):
            return self._independent(op, inputs)
        return self.results_along_axes(op, inputs)

    def dims(self, op: Op, slot: str, number: int = 0) -> tuple[Size, ...]:
        return self.spec(op.outputs[slot][number]).known_dims

    def refuse_reversed(self, op: Op) -> None:
        """Refuse operands whose rows are reversed. Raises `Unsupported`."""
        for name in op.input_names():
            if name and name not in self.obstacles and name not in self.widened and any(REVERSED in axis for axis in self.value(name).axes):
                raise Unsupported(f"it takes {name}, whose rows are reversed")

    def _independent(self, op: Op, inputs: Sequence[tuple[str, str, PaddedValue]]) -> dict[str, Any]:
        """Return the results of an op on values without texts and rows, such as weights."""
        fault = next((f for _, _, v in inputs if (f := v.data_fault(self.side, op)) is not None), None)
        out: dict[str, Any] = {}
        for slot, names in op.outputs.items():
            axes = [self.reader.axes(self.spec(n).known_dims) for n in names]
            if any(a in (BATCH, ROWS) for result_axes in axes for axis in result_axes for a in axis):
                raise Unsupported("it makes texts or rows of other values")
            content = Content(finite=all(v.real.finite for _, _, v in inputs))
            out[slot] = [filled(result_axes, lambda _, content=content: content, fault) for result_axes in axes]
        return out

    def per_element(self, op: Op) -> PaddedValue:
        inputs = self.inputs(op)
        aligned_axis = int(op.attributes.values.get("axis", -1))
        rank = max(len(v.axes) for _, _, v in inputs)
        shifts = [0 if len(v.axes) == rank else rank - len(v.axes) if aligned_axis < 0 else aligned_axis for _, _, v in inputs]
        axes: list[tuple[Atom, ...]] = [()] * rank
        for (_, name, value), shift in zip(inputs, shifts, strict=True):
            for number, axis in enumerate(value.axes):
                if axis and axes[number + shift] and axis != axes[number + shift]:
                    raise Unsupported(f"{name} has texts, rows and columns along other axes than its other operands")
                axes[number + shift] = axis or axes[number + shift]
        result = tuple(axes)
        names = [name for _, name, _ in inputs]
        width = columns(result)
        one_part = [
            v.without_parts(self.side, op) if any(c.parts for _, _, w in inputs for c in w.regions.values()) and not _same_last(inputs) else v
            for _, _, v in inputs
        ]

        def operand(value: PaddedValue, shift: int, region: Region) -> Content:
            return _broadcast(value.content((a - shift, k) for a, k in region), shift, value.axes, width)

        places = {p for region in all_regions(result) for p in region}

        dtype = self.spec(op.result()).known_dtype
        are_truths = all(self.spec(n).dtype is BOOL for n in names)

        def content(region: Region) -> Content:
            contents = [operand(v, s, region) for v, s in zip(one_part, shifts, strict=True)]
            facts = PlaceFacts(op, names, self.side, places, region, are_truths, dtype)
            return _combined_parts(op, contents, facts)

        regions = {region: content(region) for region in all_regions(result)}
        if self._normalized(op):  # in each of its groups of columns: a norm of 1, or a mean square of 1
            bound = NormBound.number(math.sqrt(width))
            regions = {r: c if c.constant is not None else replace(c, offset=0.0, extent=bound) for r, c in regions.items()}
        return PaddedValue(result, regions, self._element_fault(op, one_part, shifts, regions[REAL], places, names))

    def _element_fault(
        self, op: Op, values: Sequence[PaddedValue], shifts: Sequence[int], real: Content, places: set[Place], names: Sequence[str]
    ) -> Fault | None:
        computed = op.operator.computes() if op.operator is not None else None
        if isinstance(computed, _KEEP_NUMBERS) and (real.form is not None or real.parts or real.constant is not None):
            return next((v.fault for v in values if v.fault is not None), None)
        condition = values[0].real
        match computed:
            case c.ChosenElements() if condition.constant is not None:
                chosen = values[1] if condition.constant else values[2]
                keeps = real.form is not None or bool(real.parts)
                return values[0].fault or (chosen.fault if keeps else chosen.data_fault(self.side, op))
            case c.ChosenElements() if _decided(condition) and all(p.index is not None for p in real.parts or (real,)):
                return next((v.fault for v in values if v.fault is not None), None)
            case c.ComparedElements():
                fault = values[0].fault or values[1].fault
                a, b = (_broadcast(v.real, s, v.axes, 1).index for v, s in zip(values, shifts, strict=True))
                if fault is None and _decided(real):
                    return None
                if fault is None and a is not None and b is not None:
                    return None if (a - b).same_without_padding(self.side, places) else Fault(op, "it compares with the padded length, or with other texts")
                if fault is not None or real.constant is not None:
                    return fault
            case c.Connective(how=how) if real.constant is not None:
                decisive = next((v for v in values if v.real.constant == (how == "or")), None)
                if decisive is not None:
                    return decisive.fault
            case _:
                pass
        return next((f for v in values if (f := v.data_fault(self.side, op)) is not None), None)

    def results_along_axes(self, op: Op, inputs: Sequence[tuple[str, str, PaddedValue]]) -> dict[str, Any]:
        """Return the results of an op whose operator declares the relation of its axes, or has a trait for it."""
        operator = op.operator
        assert operator is not None
        specs: list[Any] = []
        for operand in operator.schema.operands:
            names = [n for n in op.inputs.get(operand.name, ()) if n]
            specs.append(tuple(self.spec(n) for n in names) if operand.many else self.spec(names[0]) if names else None)
        rule = operator.sharding_rule(*specs)
        if rule is None:
            raise Unsupported("it is not known to leave the rows of texts apart")
        meaning: dict[str, tuple[Atom, ...]] = {}
        for slot, name, value in inputs:
            for label, axis in zip(rule.operands.get(slot, ("",) * len(value.axes)), value.axes, strict=True):
                apart = label and label not in rule.summed
                if not apart and any(isinstance(a, str) for a in axis):
                    raise Unsupported(f"it takes {name} as a whole along its {'texts' if BATCH in axis else 'rows'}")
                if apart:
                    axis_meaning = meaning.get(label, ())
                    if axis_meaning and axis and axis_meaning != axis:
                        raise Unsupported("its operands have texts, rows and columns along different axes")
                    meaning[label] = axis_meaning or axis
        fault = next((f for _, _, v in inputs if (f := v.data_fault(self.side, op)) is not None), None)
        out: dict[str, Any] = {}
        for slot, labels in rule.results.items():
            values: list[PaddedValue] = []
            for number in range(len(op.outputs.get(slot, ()))):
                dims = self.dims(op, slot, number)
                axes = tuple(meaning.get(label) or self.reader.axis(d) for label, d in zip(labels, dims, strict=True))
                if any(isinstance(a, str) and not meaning.get(label) for label, axis in zip(labels, axes, strict=True) for a in axis):
                    raise Unsupported("it makes texts or rows of columns")
                finite = all(c.finite for _, _, v in inputs for c in v.regions.values())
                values.append(filled(axes, lambda _, f=finite: Content(finite=f), fault))
            out[slot] = values
        return out

    def operand(self, op: Op, slot: str) -> PaddedValue:
        name = op.input(slot)
        if name is None:
            raise Unsupported(f"it has no {slot}")
        return self.value(name)


def _decided(truth: Content) -> bool:
    """Tell whether truth values are known, for texts with rows."""
    return all(p.constant is not None or p.with_rows is not None for p in truth.parts or (truth,))


def _same_last(inputs: Sequence[tuple[str, str, PaddedValue]]) -> bool:
    """Tell whether operands with contents by their last entry all have this axis last, or an axis of 1."""
    last = {v.axes[-1] for _, _, v in inputs if v.axes and v.axes[-1]}
    return len(last) <= 1


def _broadcast(content: Content, shift: int, axes: Axes, width: int) -> Content:
    """Return the content of an operand, with its coordinates and its row's norm as in the result."""
    row_width = columns(axes)
    factor = math.sqrt(width / row_width) if width > row_width else 1.0
    if not shift and factor == 1.0:
        return content
    places = {(a, k): (a + shift, k) for a, axis in enumerate(axes) for k in range(len(axis))}
    aligned = relocated_content(content, places) if shift else content
    return replace(aligned, extent=NormBound(lambda: content.extent.value * factor)) if factor != 1.0 else aligned


def _combined_parts(op: Op, contents: Sequence[Content], facts: PlaceFacts) -> Content:
    count = max(len(x.parts) for x in contents)
    if not count:
        return combined(op, contents, facts)
    parts = tuple(combined(op, [x.parts[k] if x.parts else x for x in contents], facts) for k in range(count))
    return parts[0] if all(p == parts[0] for p in parts) else Content(parts=parts, finite=all(p.finite for p in parts))
