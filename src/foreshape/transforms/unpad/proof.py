"""The proof that a text's own rows and results are the same in a padded batch as alone.

Each op's rule is told by what its operator declares: its computation, `per_element`, or its `ShardingRule`. An operator that declares none takes part where
its operands have neither texts nor rows; elsewhere the proof fails at it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foreshape.core.dims import Dim, Size
from foreshape.core.spec import Spec
from foreshape.language.operator import computations as c
from foreshape.language.program import Block, Op
from foreshape.transforms.unpad.contents import ANYTHING, INFINITY, Content, Extent, constant, stepped, values_of, whole
from foreshape.transforms.unpad.index_forms import TEXTS, TIME, IndexForm, Place, Side
from foreshape.transforms.unpad.mixing import (
    columns,
    convolved,
    last_largest,
    multiplied,
    picked,
    picked_along,
    picked_by_places,
    reduced,
    running_sum,
    softmaxed,
)
from foreshape.transforms.unpad.padded_values import (
    BATCH,
    REAL,
    ROWS,
    Atom,
    Axes,
    AxisReader,
    Fault,
    PaddedValue,
    Region,
    Unsupported,
    filled,
    moved_content,
    regions_of,
)
from foreshape.transforms.unpad.per_element import COMPARISONS, KEEPS_NUMBERS, PlaceFacts, combined
from foreshape.transforms.unpad.shapes import expanded, flipped, joined, reshaped, sliced, transposed

Numbers = Callable[[str], Any]
"""Returns the array of a parameter by its name; None if it has none."""
_SMALL: Final = 4096
"""The numbers of parameters with so many elements are read at once."""
_REDUCTIONS: Final = {
    "reduce_max": "MAX", "reduce_min": "MIN", "reduce_any": "ANY", "reduce_all": "ALL", "frobenius_norm": "NORM", "p_norm": "NORM", "logsumexp": "OTHER",
    "reduce_prod": "OTHER", "max": "MAX", "min": "MIN",
}  # fmt: skip


class Proof:
    """The padded values of a block, from its inputs on.

    Args:
        block: the block of the program.
        reader: the meaning of sizes.
        side: the end of a text at which its padding stands.
        numbers: of parameters.
    """

    def __init__(self, block: Block, reader: AxisReader, side: Side, numbers: Numbers) -> None:
        self.block, self.reader, self.side, self.numbers = block, reader, side, numbers
        self.values: dict[str, PaddedValue] = {}
        self.obstacles: dict[str, Fault] = {}
        """The results that no rule follows: name -> the op and the reason."""
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
        sizes = {n: v for n in names if (v := self._of_sizes(n)) is not None}
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
                for name, part in zip(op.outputs.get(slot, ()), value if isinstance(value, list) else [value], strict=False):
                    if name and name not in sizes:
                        self.values[name] = part
        except Unsupported as reason:
            fault = Fault(op, str(reason))
            self.obstacles |= {n: fault for n in names if n not in self.values}
        for name in names:
            if name not in self.values and name not in self.obstacles:
                self.obstacles[name] = Fault(op, "nothing is known of this result")

    def fault_of(self, name: str) -> Fault | None:
        """Return the reason why a fetched value is not the same alone."""
        if name in self.obstacles:
            return self.obstacles[name]
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
        variable = self.block.var(name)
        if name in self._writers or not variable.persistable:
            raise Unsupported(f"{name} is neither an input nor a parameter")
        spec = variable.spec
        dims = spec.known_dims
        if any(not isinstance(d, int) for d in dims):
            raise Unsupported(f"the parameter {name} has an open size")
        axes: Axes = tuple((d,) if isinstance(d, int) and d != 1 else () for d in dims)
        elements = math.prod(d for d in dims if isinstance(d, int))
        content = Content(extent=Extent(lambda: self._norm(name)))
        if elements <= _SMALL and (array := self.array(name)) is not None:
            of_values = values_of(array)
            content = of_values if of_values.constant is not None else Content(of_values.low, of_values.high, of_values.finite, extent=content.extent)
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

        moved = op.operator.computes()
        if isinstance(moved, (c.Reshape, c.Transposition)):  # weights in other dims
            array = self.array(op.operand(0))
            dims = self.spec(name).known_dims
            if array is None or not all(isinstance(d, int) for d in dims):
                return None
            return numpy.transpose(array, moved.axes) if isinstance(moved, c.Transposition) else numpy.reshape(array, dims)
        if op.type != "assign_value":
            return None

        values: Mapping[str, Any] = op.attributes.values
        for key in ("bool_values", "int32_values", "int64_values", "fp32_values", "fp64_values", "values"):
            if values.get(key):
                kind = "int64" if key.startswith("int") else "bool" if key.startswith("bool") else "float64"
                return numpy.asarray(values[key], kind).reshape(values["shape"])
        return None

    def _norm(self, name: str) -> float:
        import numpy

        array = self.array(name)
        return INFINITY if array is None else float(numpy.linalg.norm(numpy.asarray(array, "float64")))

    def _row_norm(self, name: str) -> Extent:
        """Return a bound of the norm of a row of a table."""

        def compute() -> float:
            import numpy

            array = self.array(name)
            if array is None:
                return INFINITY
            table = numpy.asarray(array, "float64").reshape(len(array), -1)
            return float(numpy.sqrt((table * table).sum(1)).max()) if len(table) else 0.0

        return Extent(compute)

    def _stretch(self, name: str) -> Extent | None:
        """Return the largest factor by which weights make a row longer; None for values of texts."""
        if self.value(name).per_text or self.value(name).time_places:
            return None

        def compute() -> float:
            import numpy

            array = self.array(name)
            if array is None or array.ndim < 2:
                return INFINITY
            return max(float(numpy.linalg.norm(m, 2)) for m in numpy.asarray(array, "float64").reshape(-1, *array.shape[-2:]))

        return Extent(compute)

    def window_stretch(self, name: str) -> Extent:
        """Return the largest norm of a convolution's result at a place, for rows of norm 1: the sum over the places of its window."""

        def compute() -> float:
            import numpy

            array = self.array(name)
            if array is None:
                return INFINITY
            filters = numpy.asarray(array, "float64")
            return sum(float(numpy.linalg.norm(m)) for m in numpy.moveaxis(filters.reshape(*filters.shape[:2], -1), -1, 0))

        return Extent(compute)

    def _normalized(self, op: Op) -> bool:
        """Tell whether an op divides a value by its own norm, or by its root mean square, or by something larger."""
        if op.type == "elementwise_div":
            return self._is_root(op.operand(1), op.operand(0))
        if op.type != "elementwise_mul":
            return False
        for x, y in ((op.operand(0), op.operand(1)), (op.operand(1), op.operand(0))):
            inverse = self._writers.get(y)
            if inverse is not None and inverse.type == "rsqrt" and self._is_square(inverse.operand(0), x):
                return True
            if inverse is not None and inverse.type == "reciprocal" and self._is_root(inverse.operand(0), x):
                return True
            if inverse is not None and inverse.type == "elementwise_div" and self.value(inverse.operand(0)).real.constant == 1.0:
                if self._is_root(inverse.operand(1), x):
                    return True
        return False

    def _is_root(self, name: str, x: str) -> bool:
        """Tell whether a value is at least the norm of ``x``, or its root mean square."""
        op = self._at_least(name)
        if op is None:
            return False
        if op.type in ("frobenius_norm", "p_norm"):
            return self._same(op.operand(0), x) and float(op.attributes.values.get("porder", 2.0)) == 2.0
        return op.type == "sqrt" and self._is_square(op.operand(0), x)

    def _is_square(self, name: str, x: str) -> bool:
        """Tell whether a value is at least the sum of the squares of ``x``, or their mean."""
        op = self._at_least(name)
        if op is None or op.type not in ("reduce_mean", "reduce_sum"):
            return False
        square = self._writers.get(op.operand(0))
        if square is None:
            return False
        if square.type == "elementwise_mul":
            return all(self._same(square.operand(k), x) for k in (0, 1))
        power = self.value(square.operand(1)).real.constant if square.type == "elementwise_pow" else 2.0 if square.type == "square" else 0.0
        return power == 2.0 and self._same(square.operand(0), x)

    def _at_least(self, name: str) -> Op | None:
        """Return the op of a value, behind what makes it larger alone: sums with numbers above 0, and bounds from below."""
        op = self._writers.get(name)
        while op is not None:
            values: Mapping[str, Any] = op.attributes.values
            if op.type in ("cast", "expand_v2", "assign") or (op.type == "scale" and values.get("scale", 1.0) == 1.0 and values.get("bias", 0.0) >= 0):
                op = self._writers.get(op.operand(0))
            elif op.type == "clip" and values.get("max", INFINITY) >= 3e38 and not op.input("Max"):
                op = self._writers.get(op.operand(0))
            elif op.type in ("elementwise_add", "elementwise_max"):
                first, second = op.operand(0), op.operand(1)
                number = self.value(second).real.constant
                if number is None:
                    first, number = second, self.value(first).real.constant
                if number is None or number < 0:
                    return None
                op = self._writers.get(first)
            else:
                return op
        return None

    def _same(self, name: str, other: str) -> bool:
        """Tell whether a value is another one, perhaps cast."""
        while name != other:
            op = self._writers.get(name)
            if op is None or op.type != "cast":
                return False
            name = op.operand(0)
        return True

    def _of_sizes(self, name: str) -> PaddedValue | None:
        """Return a small value known in the description: sizes of tensors, and arithmetic on them."""
        variable = self.block.find(name)
        if variable is None or variable.spec.value is None or variable.spec.dims is None:
            return None
        try:
            contents = tuple(constant(v) if isinstance(v, float) else whole(self.form(v)) for v in variable.spec.value)
        except Unsupported:
            return None
        if not contents or variable.spec.rank > 1:
            return None
        axes: Axes = () if not variable.spec.rank else ((len(contents),) if len(contents) != 1 else (),)
        content = contents[0] if all(x == contents[0] for x in contents) else Content(parts=contents)
        return filled(axes, lambda _: content)

    def form(self, size: Size | bool) -> IndexForm:
        """Return a size as a polynomial in the texts and the time."""
        if not isinstance(size, Dim):
            return IndexForm.number(int(size))
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

    def numbers_of(self, op: Op, many: str, single: str, own: Any) -> list[Size] | None:
        """Return the numbers of an attribute, or of the operands in its place; None if they are not known in the description."""
        names = op.inputs.get(many) or ()
        if names:
            several = [self.whole_numbers(n) for n in names]
            return [s[0] for s in several if s] if all(several) else None
        name = op.input(single)
        if name:
            return self.whole_numbers(name)
        return list(own) if own is not None else None

    # --- rules

    def _inputs(self, op: Op) -> list[tuple[str, str, PaddedValue]]:
        """Return (slot, name, value) of all operands, in the order of the schema."""
        operator = op.operator
        order = [o.name for o in operator.schema.operands] if operator is not None else list(op.inputs)
        return [(slot, name, self.value(name)) for slot in order for name in op.inputs.get(slot, ()) if name]

    def _results(self, op: Op) -> dict[str, Any]:
        operator = op.operator
        assert operator is not None
        if op.type in ("shape", "fill_constant", "range", "assign_value", "size"):
            return self._created(op)
        first = operator.schema.results[0].name
        rule = _BY_TYPE.get(op.type)
        if rule is not None:
            return rule(self, op, first)
        computed = operator.computes()
        by_computation = _BY_COMPUTATION.get(type(computed))
        if by_computation is not None:
            return by_computation(self, op, computed, first)
        if operator.per_element:
            return {r.name: value for r, value in zip(operator.schema.results, [self._per_element(op)], strict=False)}
        inputs = self._inputs(op)
        if not any(atom in (BATCH, ROWS) for _, _, v in inputs for axis in v.axes for atom in axis):
            return self._independent(op, inputs)
        return self._by_axis_names(op, inputs)

    def _dims(self, op: Op, slot: str, number: int = 0) -> tuple[Size, ...]:
        return self.spec(op.outputs[slot][number]).known_dims

    def _created(self, op: Op) -> dict[str, Any]:
        """Return the values of ops that read sizes alone."""
        (slot,) = [r.name for r in op.operator.schema.results[:1]] if op.operator else ["Out"]
        axes = self.reader.axes(self._dims(op, slot))
        values: Mapping[str, Any] = op.attributes.values
        if op.type == "fill_constant":
            if op.input("ValueTensor"):
                content = self.value(str(op.input("ValueTensor"))).real
                return {slot: filled(axes, lambda _: content)}
            text = str(values.get("str_value", ""))
            number = float(text) if text else float(values.get("value", 0.0))
            return {slot: filled(axes, lambda _: constant(number))}
        if op.type == "assign_value":
            array = self._written(op.outputs[slot][0])
            content = Content() if array is None else values_of(array)
            return {slot: filled(axes, lambda _: content)}
        if op.type == "range":
            start, step = (self.value(str(op.input(s))).real.index for s in ("Start", "Step"))
            if start is None or step is None:
                raise Unsupported("its numbers are not known in the description")
            form = start + step * IndexForm.factor((0, 0)) if axes[0] else start
            return {slot: filled(axes, lambda _: whole(form))}
        raise Unsupported("the sizes that it reads are not known in the description")

    def _independent(self, op: Op, inputs: Sequence[tuple[str, str, PaddedValue]]) -> dict[str, Any]:
        """Return the results of an op on values without texts and rows, such as weights."""
        fault = next((f for _, _, v in inputs if (f := v.data_fault(self.side, op)) is not None), None)
        out: dict[str, Any] = {}
        for slot, names in op.outputs.items():
            axes = [self.reader.axes(self.spec(n).known_dims) for n in names]
            if any(a in (BATCH, ROWS) for one in axes for axis in one for a in axis):
                raise Unsupported("it makes texts or rows of other values")
            finite = all(v.real.finite for _, _, v in inputs)
            out[slot] = [filled(one, lambda _: Content(finite=finite), fault) for one in axes]
        return out

    def _per_element(self, op: Op) -> PaddedValue:
        inputs = self._inputs(op)
        aligned_axis = int(op.attributes.values.get("axis", -1)) if op.type.startswith(("elementwise", "less", "greater", "equal", "not_equal")) else -1
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
        one_part = [v.without_parts() if any(c.parts for _, _, w in inputs for c in w.regions.values()) and not _same_last(inputs) else v for _, _, v in inputs]

        def operand(value: PaddedValue, shift: int, region: Region) -> Content:
            return _broadcast(value.at((a - shift, k) for a, k in region), shift, value.axes, width)

        places = [p for p in (r for region in regions_of(result) for r in region)]

        def content(region: Region) -> Content:
            contents = [operand(v, s, region) for v, s in zip(one_part, shifts, strict=True)]
            facts = PlaceFacts(op, names, self.side, set(places), region)
            return _by_part(op, contents, facts)

        regions = {region: content(region) for region in regions_of(result)}
        if self._normalized(op):  # in each of its groups of columns: a norm of 1, or a mean square of 1
            bound = Extent.number(math.sqrt(width))
            regions = {r: c if c.constant is not None else replace(c, offset=0.0, extent=bound) for r, c in regions.items()}
        return PaddedValue(result, regions, self._element_fault(op, one_part, shifts, regions[REAL], set(places), names))

    def _element_fault(
        self, op: Op, values: Sequence[PaddedValue], shifts: Sequence[int], real: Content, places: set[Place], names: Sequence[str]
    ) -> Fault | None:  # fmt: skip
        if op.type in KEEPS_NUMBERS and (real.form is not None or real.parts or real.constant is not None):
            return next((v.fault for v in values if v.fault is not None), None)
        condition = values[0].real
        if op.type == "where" and condition.constant is not None:
            chosen = values[1] if condition.constant else values[2]
            keeps = real.form is not None or bool(real.parts)
            return values[0].fault or (chosen.fault if keeps else chosen.data_fault(self.side, op))
        if op.type == "where" and _decided(condition) and all(p.index is not None for p in real.parts or (real,)):
            return next((v.fault for v in values if v.fault is not None), None)
        if op.type in COMPARISONS:
            fault = values[0].fault or values[1].fault
            a, b = (_broadcast(v.real, s, v.axes, 1).index for v, s in zip(values, shifts, strict=True))
            if fault is None and _decided(real):
                return None
            if fault is None and a is not None and b is not None:
                return None if (a - b).same_without_padding(self.side, places) else Fault(op, "it compares with the padded length, or with other texts")
            if fault is not None or real.constant is not None:
                return fault
        if op.type in ("logical_and", "logical_or") and real.constant is not None:
            decisive = [v for v in values if v.real.constant is not None and v.real.constant == (0.0 if op.type == "logical_and" else 1.0)]
            if decisive:
                return decisive[0].fault
        return next((f for v in values if (f := v.data_fault(self.side, op)) is not None), None)

    def _by_axis_names(self, op: Op, inputs: Sequence[tuple[str, str, PaddedValue]]) -> dict[str, Any]:
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
                    known = meaning.get(label, ())
                    if known and axis and known != axis:
                        raise Unsupported("its operands have texts, rows and columns along different axes")
                    meaning[label] = known or axis
        fault = next((f for _, _, v in inputs if (f := v.data_fault(self.side, op)) is not None), None)
        out: dict[str, Any] = {}
        for slot, labels in rule.results.items():
            values: list[PaddedValue] = []
            for number in range(len(op.outputs.get(slot, ()))):
                dims = self._dims(op, slot, number)
                axes = tuple(meaning.get(label) or self.reader.axis(d) for label, d in zip(labels, dims, strict=True))
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
    own = columns(axes)
    factor = math.sqrt(width / own) if width > own else 1.0
    if not shift and factor == 1.0:
        return content
    places = {(a, k): (a + shift, k) for a, axis in enumerate(axes) for k in range(len(axis))}
    moved = moved_content(content, places) if shift else content
    return replace(moved, extent=Extent(lambda: content.extent.value * factor)) if factor != 1.0 else moved


def _by_part(op: Op, contents: Sequence[Content], facts: PlaceFacts) -> Content:
    count = max(len(x.parts) for x in contents)
    if not count:
        return combined(op, contents, facts)
    parts = tuple(combined(op, [x.parts[k] if x.parts else x for x in contents], facts) for k in range(count))
    return parts[0] if all(p == parts[0] for p in parts) else Content(parts=parts, finite=all(p.finite for p in parts))


# --- by computation


def _reshape(proof: Proof, op: Op, computed: Any, slot: str) -> dict[str, Any]:
    return {slot: reshaped(proof.value(op.operand(0)), proof._dims(op, slot), proof.reader)}  # pyright: ignore[reportPrivateUsage]


def _transposition(proof: Proof, op: Op, computed: c.Transposition, slot: str) -> dict[str, Any]:
    return {slot: transposed(proof.value(op.operand(0)), computed.axes)}


def _expansion(proof: Proof, op: Op, computed: Any, slot: str) -> dict[str, Any]:
    return {slot: expanded(proof.value(op.operand(0)), proof._dims(op, slot), proof.reader)}  # pyright: ignore[reportPrivateUsage]


def _sum_or_mean(proof: Proof, op: Op, computed: c.Reduction, slot: str) -> dict[str, Any]:
    x = proof.value(op.operand(0))
    over = computed.axes if computed.axes is not None else tuple(range(len(x.axes)))
    return {slot: reduced(op, x, computed.how, over, computed.keeps, proof.side)}


def _softmax(proof: Proof, op: Op, computed: c.Softmax, slot: str) -> dict[str, Any]:
    x = op.operand(0)
    return {slot: softmaxed(op, proof.value(x), computed.axis, proof.side, proof.spec(x).dtype)}


def _product(proof: Proof, op: Op, computed: c.MatrixProduct, slot: str) -> dict[str, Any]:
    x, y = op.operand(0), op.operand(1)
    weights = [proof._stretch(n) for n in (x, y)]  # pyright: ignore[reportPrivateUsage]
    return {slot: multiplied(op, proof.value(x), proof.value(y), computed.x_transposed, computed.y_transposed, proof.side, weights)}


def _flattened(proof: Proof, op: Op, computed: c.FlattenedProduct, slot: str) -> dict[str, Any]:
    x, y = proof.value(op.operand(0)), proof.value(op.operand(1))
    if computed.x_rows != len(x.axes) - 1 or computed.y_rows != 1 or len(y.axes) != 2:
        return proof._by_axis_names(op, proof._inputs(op))  # pyright: ignore[reportPrivateUsage]
    weights = [None, proof._stretch(op.operand(1))]  # pyright: ignore[reportPrivateUsage]
    return {slot: multiplied(op, x, y, False, False, proof.side, weights)}


def _layer_norm(proof: Proof, op: Op, computed: c.LayerNorm, slot: str) -> dict[str, Any]:
    x = proof.value(op.operand(0)).without_parts()
    inside = x.axes[computed.begin :]
    if any(isinstance(a, str) for axis in inside for a in axis):
        raise Unsupported("it normalizes over rows")
    width = columns(inside)
    groups = columns(x.axes) // max(width, 1)
    factor, shift = op.input("Scale"), op.input("Bias")

    def extent() -> float:
        import numpy

        arrays = [proof.array(n) if n else None for n in (factor, shift)]
        if (factor and arrays[0] is None) or (shift and arrays[1] is None):
            return INFINITY
        largest = float(numpy.abs(arrays[0]).max()) if arrays[0] is not None else 1.0
        moved = float(numpy.linalg.norm(arrays[1])) if arrays[1] is not None else 0.0
        return math.sqrt(groups) * (math.sqrt(width) * largest + moved)

    bound = Extent(extent)
    out: dict[str, Any] = {slot: filled(x.axes, lambda r: Content(finite=x.at(r).finite, extent=bound), x.data_fault(proof.side, op))}
    for other in ("Mean", "Variance"):
        if op.outputs.get(other):
            axes = x.axes[: computed.begin]
            out[other] = filled(axes, lambda r: Content(finite=x.at(r).finite), x.data_fault(proof.side, op))
    return out


def _picking(proof: Proof, op: Op, computed: c.Picking, slot: str) -> dict[str, Any]:
    x, index = op.operand(0), op.operand(1)
    return {slot: _from_table(proof, op, x, index, picked(op, proof.value(x), proof.value(index), computed.axis, proof.side, scalar=not proof.spec(index).rank))}


def _embedding(proof: Proof, op: Op, computed: c.Embedding, slot: str) -> dict[str, Any]:
    table, index = op.operand(0), op.operand(1)
    ids = proof.value(index)
    rank = len(proof._dims(op, slot))  # pyright: ignore[reportPrivateUsage]
    if len(ids.axes) == rank and not ids.axes[-1]:
        from foreshape.transforms.unpad.shapes import dropped_axes

        ids = dropped_axes(ids, [len(ids.axes) - 1])
    return {slot: _from_table(proof, op, table, index, picked(op, proof.value(table), ids, 0, proof.side), computed.padding)}


def _from_table(proof: Proof, op: Op, table: str, index: str, value: PaddedValue, padding: int = -1) -> PaddedValue:
    """Return rows of a table of parameters with what its numbers tell: zeros at a padding row, and the longest row."""
    variable = proof.block.find(table)
    if variable is None or not variable.persistable:
        return value
    numbers = proof.value(index)
    rank, longest = len(value.axes), proof._row_norm(table)  # pyright: ignore[reportPrivateUsage]
    first = len(value.axes) - (len(proof.value(table).axes) - 1) - len(numbers.axes)

    def content(region: Region) -> Content:
        inner = [(a - max(first, 0), k) for a, k in region]
        row = numbers.at(inner).constant
        if row is not None and math.isfinite(row):
            if int(row) == padding and padding >= 0:
                return constant(0.0)
            array = proof.array(table)
            if array is not None and -len(array) <= int(row) < len(array):
                return values_of(array[int(row)])
        old = value.at(region)
        return Content(old.low, old.high, old.finite, extent=longest) if old.constant is None else old

    del rank
    return filled(value.axes, content, value.fault)


def _place_picking(proof: Proof, op: Op, computed: Any, slot: str) -> dict[str, Any]:
    return {slot: picked_by_places(op, proof.value(op.operand(0)), proof.value(op.operand(1)), proof.side)}


def _slice(proof: Proof, op: Op, computed: Any, slot: str) -> dict[str, Any]:
    values: Mapping[str, Any] = op.attributes.values
    name = op.operand(0)
    x = proof.value(name)
    axes: list[int] = list(values.get("axes", ()))
    begins, ends = (proof.numbers_of(op, many, single, values.get(own)) for many, single, own in (
        ("StartsTensorList", "StartsTensor", "starts"), ("EndsTensorList", "EndsTensor", "ends")))  # fmt: skip
    steps = list(values.get("strides", ())) or [1] * len(axes)
    if any(s == -1 for s in steps):
        if len(axes) == 1:
            return {slot: flipped(x, axes)}
        raise Unsupported("it takes several axes backwards")
    if any(s != 1 for s in steps):
        raise Unsupported("it leaves out rows or columns between others")
    cuts = [(a, _at(begins, k), _at(ends, k)) for k, a in enumerate(axes)]
    dropped = [a % len(x.axes) for a in values.get("decrease_axis", ())]
    dims = list(proof._dims(op, slot))  # pyright: ignore[reportPrivateUsage]
    if dropped and len(dims) == len(x.axes):
        dropped = []
    table = proof.array(name) if all(isinstance(a, int) for axis in x.axes for a in axis) else None
    return {slot: sliced(op, x, proof.spec(name).known_dims, cuts, dropped, dims, proof.reader, proof.side, table)}


def _at(numbers: Sequence[Size] | None, index: int) -> Size | None:
    return numbers[index] if numbers is not None and index < len(numbers) else None


def _concat(proof: Proof, op: Op, computed: c.Concat, slot: str) -> dict[str, Any]:
    return {slot: joined(op, [proof.value(n) for n in op.inputs["X"]], computed.axis, proof.side)}


def _split(proof: Proof, op: Op, computed: c.Split, slot: str) -> dict[str, Any]:
    x = proof.value(op.operand(0)).without_parts()
    number = computed.axis % len(x.axes)
    if any(isinstance(a, str) for a in x.axes[number]):
        raise Unsupported("it divides texts or rows")
    parts: list[PaddedValue] = []
    for name in op.outputs[slot]:
        size = proof.spec(name).known_dims[number]
        axes = (*x.axes[:number], proof.reader.axis(size), *x.axes[number + 1 :])
        parts.append(filled(axes, x.at, x.fault))
    return {slot: parts}


def _stack(proof: Proof, op: Op, computed: c.Stacking, slot: str) -> dict[str, Any]:
    several = [proof.value(n) for n in op.inputs["X"]]
    rank = len(several[0].axes) + 1
    place = computed.axis % rank
    lifted = [v.moved((*v.axes[:place], (), *v.axes[place:]), {(a, k): (a + (a >= place), k) for a, x in enumerate(v.axes) for k in range(len(x))}) for v in several]
    return {slot: joined(op, lifted, place, proof.side)}


def _triangle(proof: Proof, op: Op, computed: c.Triangle, slot: str) -> dict[str, Any]:
    x = proof.value(op.operand(0))
    row, column = len(x.axes) - 2, len(x.axes) - 1
    both = x.axes[row] == (ROWS,) and x.axes[column] == (ROWS,)

    def content(region: Region) -> Content:
        old = x.at(region)
        if both:
            beyond = IndexForm.factor((column, 0)) - IndexForm.factor((row, 0)) - IndexForm.number(computed.diagonal)
            beyond = beyond if computed.lower else beyond.times(-1)
            places = [(row, 0), (column, 0)]
            least, most = beyond.least(proof.side, places, region), beyond.times(-1).least(proof.side, places, region)
            if least is not None and least > 0:
                return constant(0.0)
            if most is not None and most >= 0:
                return old
            if old.constant is not None:
                return stepped(beyond.times(-1), old.constant, 0.0)
        return Content(min(old.low, 0.0), max(old.high, 0.0), old.finite)

    return {slot: filled(x.axes, content, x.data_fault(proof.side, op))}


def _convolution(proof: Proof, op: Op, computed: c.ImageConvolution, slot: str) -> dict[str, Any]:
    x = proof.value(op.operand(0))
    if any(isinstance(a, str) for a in x.axes[1]):
        raise Unsupported("it adds over rows as channels")
    dims, weights = proof._dims(op, slot), proof.spec(op.operand(1)).known_dims  # pyright: ignore[reportPrivateUsage]
    axes: list[tuple[Atom, ...]] = [x.axes[0], proof.reader.axis(dims[1])]
    reach: list[int] = []
    for k, dilation in enumerate(computed.dilations):
        size = weights[k + 2]
        window = (size - 1) * dilation + 1 if isinstance(size, int) else 2
        is_rows = ROWS in x.axes[k + 2]
        if is_rows and (computed.strides[k] != 1 or 2 * computed.paddings[k] != window - 1):
            raise Unsupported("its result has not a row for each row")
        axes.append(x.axes[k + 2] if is_rows else proof.reader.axis(dims[k + 2]))
        reach.append(window)
    along = [2 + k for k in range(len(reach))]
    return {slot: convolved(op, x, along, tuple(axes), proof.side, reach, proof.window_stretch(op.operand(1)))}


def _identity(proof: Proof, op: Op, computed: Any, slot: str) -> dict[str, Any]:
    return {slot: proof.value(op.operand(0))}


_BY_COMPUTATION: Final[Mapping[type, Callable[[Proof, Op, Any, str], dict[str, Any]]]] = {
    c.Reshape: _reshape, c.Transposition: _transposition, c.Expansion: _expansion, c.Reduction: _sum_or_mean, c.Softmax: _softmax,
    c.MatrixProduct: _product, c.FlattenedProduct: _flattened, c.LayerNorm: _layer_norm, c.Picking: _picking, c.Embedding: _embedding,
    c.PlacePicking: _place_picking, c.Slicing: _slice, c.Concat: _concat, c.Split: _split, c.Stacking: _stack, c.Triangle: _triangle,
    c.ImageConvolution: _convolution, c.Identity: _identity,
}  # fmt: skip


# --- by type


def _reduction(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
    values: Mapping[str, Any] = op.attributes.values
    x = proof.value(op.operand(0))
    axes = values.get("dim", values.get("axis", [-1]))
    over = list(axes) if isinstance(axes, (list, tuple)) else [axes]
    if values.get("reduce_all") or values.get("asvector") or not over:
        over = list(range(len(x.axes)))
    keeps = bool(values.get("keep_dim", values.get("keepdim", False)))
    return {slot: reduced(op, x, _REDUCTIONS[op.type], over, keeps, proof.side)}


def _along(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
    return {slot: picked_along(op, proof.value(op.operand(0)), proof.value(op.operand(1)), int(op.attributes.values.get("Axis", 0)), proof.side)}


def _argmax(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
    values: Mapping[str, Any] = op.attributes.values
    if values.get("flatten"):
        raise Unsupported("it compares all rows")
    return {slot: last_largest(op, proof.value(op.operand(0)), int(values.get("axis", -1)), bool(values.get("keepdims")), proof.side)}


def _running(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
    values: Mapping[str, Any] = op.attributes.values
    if values.get("flatten"):
        raise Unsupported("it adds over texts")
    x = proof.value(op.operand(0))
    return {slot: running_sum(op, x, int(values.get("axis", -1)), bool(values.get("exclusive")), bool(values.get("reverse")), proof.side)}


def _flip(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
    axes = op.attributes.values.get("axis", ())
    return {slot: flipped(proof.value(op.operand(0)), list(axes) if isinstance(axes, (list, tuple)) else [axes])}


def _expand_as(proof: Proof, op: Op, slot: str) -> dict[str, Any]:
    return _expansion(proof, op, None, slot)


_BY_TYPE: Final[Mapping[str, Callable[[Proof, Op, str], dict[str, Any]]]] = {
    **dict.fromkeys(_REDUCTIONS, _reduction), "take_along_axis": _along, "arg_max": _argmax, "cumsum": _running, "flip": _flip, "slice": lambda p, o, s: _slice(p, o, None, s),
    "strided_slice": lambda p, o, s: _slice(p, o, None, s), "expand_as_v2": _expand_as, "cast": lambda p, o, s: {s: p._per_element(o)},  # pyright: ignore[reportPrivateUsage]
}  # fmt: skip


def all_names(op: Op) -> Iterator[str]:
    """Yield all names of an op."""
    yield from op.input_names()
    yield from op.output_names()


__all__ = ["ANYTHING", "Numbers", "Proof"]
