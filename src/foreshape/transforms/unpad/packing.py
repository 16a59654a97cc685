"""The proved program on ragged rows: each value with a row for each row of a text is packed, and ops on several rows become ops on sequences.

A value of the padded program is written in one of three ways, each when it is asked for:

- packed, ``[rows, *columns]``: the axes of texts and of rows become one, and the other axes stay in their order;
- alone, for values without rows of texts: as they are, with the longest text in place of the padded time;
- padded, ``[texts, longest, ...]``: for values without an op on sequences. Its rows are packed again behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from foreshape import layer
from foreshape.core.dims import Size, symbol
from foreshape.core.spec import BOOL, INT64, LOD_TENSOR, DType, Lod, Spec
from foreshape.language.operator import computations as c
from foreshape.language.operator.computation import Computation
from foreshape.language.program import Op, Program, Variable, program_guard
from foreshape.transforms.unpad.index_forms import LENGTH, TEXTS, TIME, IndexForm
from foreshape.transforms.unpad.norm_ops import norm_over
from foreshape.transforms.unpad.padded_values import BATCH, REVERSED, ROWS, Atom, Axes, Fault, NotPacked, PaddedValue, covers
from foreshape.transforms.unpad.proof import Proof

_COMMUTATIVE: Final = (c.Sum, c.Product, c.Connective)


def _neutral(computed: Computation | None) -> float | None:
    """Return the second operand that leaves the first as it is; None if there is none."""
    match computed:
        case c.Sum() | c.Subtraction() | c.Connective(how="or"):
            return 0.0
        case c.Product() | c.Quotient() | c.Connective(how="and"):
            return 1.0
        case _:
            return None


PackedRule: TypeAlias = "Callable[[Op, Packer, str], Variable]"
"""Writes a result of an op on packed rows. Raises `NotPacked` if no op on packed rows computes it."""


class Packer:
    """Writes the program on ragged rows.

    Args:
        proof: of the padded program; its ops are the block's.
        inputs: the padded inputs -> True if they only tell the rows (a mask, lengths): the offsets replace them.
        lengths_input: the input of lengths, if it tells the rows.
        masked: the number of masked rows in the mask.
        pad_id: the number at masked rows of the first input.
        rule: writes the result of an op on packed rows.
    """

    def __init__(self, proof: Proof, program: Program, inputs: Mapping[str, bool], lengths_input: str, masked: int, pad_id: int, rule: PackedRule) -> None:
        self.proof, self.old, self.inputs = proof, proof.block, inputs
        self.lengths_input, self.masked, self.pad_id, self._rule = lengths_input, masked, pad_id, rule
        self.writers = {n: op for op in self.old.ops for n in op.output_names() if n and not self.old.var(n).persistable}
        self.new = program.clone()
        self.block = self.new.global_block
        self._empty()
        self.texts = next(n for n, only_rows in inputs.items() if not only_rows)
        self.packed: dict[str, Variable] = {}
        self._alone: dict[tuple[str, bool], Variable] = {}
        self._padded: dict[str, Variable] = {}
        self._unpacked: set[str] = set()
        self._shared_variables: dict[str, Variable] = {}
        self._reshaped: dict[str, Variable] = {}  # packed rows reshaped from others, by name

    def _empty(self) -> None:
        """Leave only the parameters."""
        block = self.block
        block.ops.clear()
        for name in [n for n, v in block.vars.items() if not v.persistable or v.spec.kind is not LOD_TENSOR]:
            del block.vars[name]
        for variable in block.vars.values():
            variable.op = None
        self.new.touch()

    def write(self, fetches: Sequence[str]) -> list[Variable]:
        """Write the ops behind the fetches; return them."""
        with program_guard(self.new):
            self._describe_inputs()
            return [self._fetched(name) for name in fetches]

    def _describe_inputs(self) -> None:
        first = self.old.var(self.texts).spec
        count = first.known_dims[0]
        for name, only_rows in self.inputs.items():
            if only_rows:
                continue
            old = self.old.var(name)
            spec = old.spec
            if ROWS in (atom for axis in self.proof.value(name).axes for atom in axis):
                spec = Spec(LOD_TENSOR, spec.dtype, (symbol("rows"), *spec.known_dims[2:]), Lod(name, (count,)))
            variable = self.block.create_variable(name, spec, site=old.site, need_check_feed=True, stop_gradient=old.stop_gradient)
            if spec.lod is not None:
                self.packed[name] = variable
            else:
                self._alone[name, True] = self._alone[name, False] = variable

    def _fetched(self, name: str) -> Variable:
        value = self.proof.value(name)
        if value.per_text and len(value.time_places) > 1:
            raise self.refusal(self.writers.get(name), "its result has a number for each two rows of a text, which ragged rows have no form for")
        joined = any(len(axis) > 1 for axis in value.axes if ROWS in axis and axis != (BATCH, ROWS))
        if joined or any(REVERSED in axis for axis in value.axes):
            words = "joins rows with columns" if joined else "has the rows of texts reversed"
            raise self.refusal(self.writers.get(name), f"its result {words}, which ragged rows have no form for")
        result = self.rows(name) if value.per_text and len(value.time_places) == 1 else self.alone(name, True)
        if result.name == name or name in self.block.vars:
            return result if result.name == name else self.block.apply("assign", {"X": result})
        op = self.block.append_op("assign", {"X": result}, {"Out": name})
        return self.block.var(op.output_slots["Out"][0])

    # --- values made once

    def shared(self, key: str, make: Any) -> Variable:
        variable = self._shared_variables.get(key)
        if variable is None:
            variable = self._shared_variables[key] = make()
        return variable

    @property
    def first(self) -> Variable:
        """The first ragged input: all rows have its offsets."""
        return self.block.var(self.texts)

    def ragged(self, x: Variable) -> Variable:
        """Return rows with the offsets of the texts."""
        return x if x.spec.lod is not None and x.spec.lod.source == self.texts else layer.lod_reset(x, self.first)

    def positions(self) -> Variable:
        """Return the place of each row in its text, int64 ``[rows]``."""
        return self.shared("positions", lambda: layer.cast(layer.position_numbers(self.first), INT64))

    def _pad_first(self) -> Variable:
        """Return the first input padded, ``[texts, longest, ...]``."""

        def make() -> Variable:
            rows = self.first if self.first.spec.rank > 1 else layer.reshape(self.first, [-1, 1])
            return layer.sequence_pad(self.ragged(rows), self.pad_id)[0]

        return self.shared("padded", make)

    def lengths(self) -> Variable:
        """Return the number of rows of each text, fp64 ``[texts, 1]``: whole numbers past 2^24 too."""

        def make() -> Variable:
            rows = layer.reshape(self.first, [0, -1])
            ones = layer.fill_like(layer.slice(rows, [1], [0], [1]), 1.0, "fp64")
            return layer.sequence_pool(self.ragged(ones), "sum")

        return self.shared("lengths", make)

    def integer_lengths(self) -> Variable:
        """Return the number of rows of each text, int64 ``[texts]``."""
        return self.shared("whole lengths", lambda: layer.cast(layer.reshape(self.lengths(), [-1]), INT64))

    def longest(self) -> Variable:
        """Return the rows of the longest text, int32 ``[1]``."""
        return self.shared("longest", lambda: layer.slice(layer.shape(self._pad_first()), [0], [1], [2]))

    def count(self) -> Variable:
        """Return the number of texts, int32 ``[1]``."""
        return self.shared("count", lambda: layer.slice(layer.shape(self.lengths()), [0], [0], [1]))

    def _flat_places(self) -> Variable:
        """Return for each row its place in a padded tensor of all rows, int64 ``[rows]``."""

        def make() -> Variable:
            starts = layer.range(0, self.count(), 1, "int32")
            starts = layer.cast(starts, INT64) * layer.cast(self.longest(), INT64)
            return layer.reshape(layer.sequence_expand_as(layer.reshape(starts, [-1, 1]), self.first), [-1]) + self.positions()

        return self.shared("places", make)

    # --- what a value is

    def _kind(self, value: PaddedValue) -> tuple[bool, int]:
        return value.per_text, len(value.time_places)

    def plain(self, name: str) -> str:
        """Return the value equal to one for texts without padding: masks are true there, and their products and choices are their operands."""
        while (source := self._plain_step(name)) is not None:
            name = source
        return name

    def _plain_step(self, name: str) -> str | None:
        op = self.writers.get(name)
        if op is None or op.operator is None or op.result(0) != name or self.number(name) is not None:
            return None
        candidates: list[str] = []
        inputs = [n for o in op.operator.schema.operands for n in op.inputs.get(o.name, ())]
        match op.computes(Computation):
            case c.Identity() | c.Expansion() | c.Cast() | c.Scaling(by=1.0):
                candidates = inputs[:1]
            case c.ChosenElements() if (truth := self.number(inputs[0])) is not None:
                candidates = [inputs[1] if truth else inputs[2]]
            case computed if (neutral := _neutral(computed)) is not None:
                if self.number(inputs[1]) == neutral:
                    candidates = inputs[:1]
                elif self.number(inputs[0]) == neutral and isinstance(computed, _COMMUTATIVE):
                    candidates = inputs[1:]
            case _:
                pass
        return next((n for n in candidates if self._stands_for(n, name) and self.element_type(n) is self.element_type(name)), None)

    def _stands_for(self, name: str, result: str) -> bool:
        """Tell whether a value has the columns of a result of the same rank; it may lack its texts and rows."""
        if name in self.proof.obstacles:
            return False
        a, b = self.proof.value(name).axes, self.proof.value(result).axes
        return len(a) == len(b) and all(x == y or (not x and all(isinstance(atom, str) for atom in y)) for x, y in zip(a, b, strict=True))

    def number(self, name: str) -> float | None:
        """Return the number in all of a text's own places; None if they differ."""
        if name in self.proof.obstacles:
            return None
        value = self.proof.value(name)
        return value.real.constant if value.fault is None else None

    def element_type(self, name: str) -> DType:
        return self.old.var(name).spec.known_dtype

    # --- packed

    def rows(self, name: str) -> Variable:
        """Return a value packed: ``[rows, *columns]``."""
        variable = self.packed.get(name)
        if variable is None:
            variable = self.packed[name] = self._pack(name)
        return variable

    def _pack(self, name: str) -> Variable:
        plain = self.plain(name)
        value = self.proof.value(plain)
        if (number := self.number(plain)) is not None:
            return self._number_rows(number, self.element_type(plain), value.axes)
        per_text, times = self._kind(value)
        if plain != name and (per_text, times) == (True, 1):
            return self.rows(plain)
        if times == 0:
            return self._spread(plain, value) if per_text else self._constant_rows(plain, value)
        if value.real.form is not None and (rows := self._index_rows(value.real.form, value, self.element_type(plain))) is not None:
            return rows
        if plain not in self._unpacked:
            op = self.writers[plain]
            try:
                return self._rule(op, self, plain)
            except NotPacked:
                self._unpacked.add(plain)
        if not per_text:
            return self._position_rows(plain, value)
        return self.unpad(self.padded(plain), value.axes, self.columns(value.axes))

    def columns(self, axes: Axes) -> list[Size]:
        """Return the sizes of the axes of a packed value: all but texts and rows."""
        out: list[Size] = []
        for axis in axes:
            size = 1
            for atom in axis:
                size *= atom if isinstance(atom, int) else 1
            if not axis or any(isinstance(a, int) for a in axis):
                out.append(size)
        return out

    def column_axes(self, axes: Axes) -> list[int]:
        """Return the numbers of the axes kept in a packed value."""
        return [n for n, axis in enumerate(axes) if not axis or any(isinstance(a, int) for a in axis)]

    def shaped(self, x: Variable, columns: Sequence[Size]) -> Variable:
        """Return packed rows with other columns; a reshape of a reshape is one of the first operand."""
        source = self._reshaped.get(x.name, x)
        for rows in (x, source):
            if [*rows.spec.known_dims[1:]] == [*columns]:
                return rows
        rows = layer.reshape(source, [0, *columns])
        self._reshaped[rows.name] = source
        return rows

    def _number_rows(self, number: float, dtype: DType, axes: Axes) -> Variable:
        zeros = layer.scale(layer.cast(self.positions(), "fp32"), 0.0, number)
        rows = layer.reshape(zeros, [0, *(1 for _ in self.columns(axes))])
        return layer.cast(layer.expand(rows, [-1, *self.columns(axes)]) if self.columns(axes) else rows, dtype)

    def _constant_rows(self, name: str, value: PaddedValue) -> Variable:
        table = layer.unsqueeze(self.alone(name, True), [0])
        rows = self._number_rows(0.0, self.element_type(name), ())
        return layer.reshape(rows, [0, *(1 for _ in self.columns(value.axes))]) + layer.reshape(table, [1, *self.columns(value.axes)])

    def _spread(self, name: str, value: PaddedValue) -> Variable:
        """Return each text's numbers at all of its rows."""
        columns = self.columns(value.axes)
        x = self.alone(name, True)
        rows = layer.sequence_expand_as(self.outermost(x, value.axes, BATCH), self.first)
        return self.shaped(rows, columns)

    def _position_rows(self, name: str, value: PaddedValue) -> Variable:
        """Return the row of each position at all rows of texts."""
        table = self.outermost(self.alone(name, True), value.axes, ROWS)
        return self.shaped(layer.gather(table, self.positions()), self.columns(value.axes))

    def outermost(self, x: Variable, axes: Axes, atom: str) -> Variable:
        """Return ``[texts or rows, columns]`` of a value whose axes have one of texts or rows."""
        number = next(n for n, axis in enumerate(axes) if atom in axis)
        if axes[number] != (atom,):
            raise NotPacked
        order = [number, *(n for n in range(len(axes)) if n != number)]
        stays = not any(axes[n] for n in range(number))
        transposed = x if stays else layer.transpose(x, order)
        return layer.reshape(transposed, [-1, _product(self.columns(axes))])

    def _index_rows(self, form: IndexForm, value: PaddedValue, dtype: DType) -> Variable | None:
        """Return whole numbers by their place in the text."""
        places = value.time_places
        alone = form.alone(self.proof.side, places)
        total: Variable | None = None
        if self.columns(value.axes):
            return None
        constant = 0
        for monomial, coefficient in alone.terms:
            if not monomial:
                constant = coefficient
                continue
            if len(monomial) != 1 or monomial[0] not in (LENGTH, places[0]):
                return None
            part = self.positions() if monomial[0] == places[0] else layer.cast(layer.reshape(layer.sequence_expand_as(self.lengths(), self.first), [0]), INT64)
            part = part if coefficient == 1 else layer.scale(part, float(coefficient))
            total = part if total is None else total + part
        if total is None:
            return None
        total = total if not constant else layer.scale(total, 1.0, float(constant))
        return layer.cast(total, dtype) if dtype is not total.spec.dtype else total

    # --- alone

    def alone(self, name: str, exact: bool = False) -> Variable:
        """Return a value without rows of texts, with the longest text in place of the time.

        Args:
            exact: with all its axes; otherwise axes of equal numbers may be 1.
        """
        key = name, exact
        variable = self._alone.get(key)
        if variable is None:
            variable = self._write_alone(name, exact)
            self._alone[key] = variable = self._with_all_entries(variable, name) if exact else variable
            if [*variable.spec.known_dims] == self._dims_alone(name):
                self._alone.setdefault((name, not exact), variable)
        return variable

    def _with_all_entries(self, x: Variable, name: str) -> Variable:
        """Return a value of equal numbers with all its texts, rows and columns."""
        axes, dims = self.proof.value(name).axes, x.spec.known_dims
        if len(dims) != len(axes) or not any(d == 1 and axis for d, axis in zip(dims, axes, strict=True)):
            return x
        sizes = [self._axis_size(axis) if d == 1 and axis else -1 for d, axis in zip(dims, axes, strict=True)]
        return layer.expand(x, sizes)

    def _dims_alone(self, name: str) -> list[Size] | None:
        """Return the dims of a value without texts and rows; None for others."""
        spec = self.old.var(name).spec
        return [*spec.known_dims] if all(isinstance(d, int) or d is self.old.var(self.texts).spec.known_dims[0] for d in spec.known_dims) else None

    def _write_alone(self, name: str, exact: bool) -> Variable:
        old = self.old.var(name)
        if name not in self.writers and old.persistable:
            return self.block.var(name)
        value = self.proof.value(name)
        sizes = self.proof.whole_numbers(name) if old.spec.rank < 2 else None
        if sizes is not None and len(sizes) > 8 and all(isinstance(s, int) for s in sizes):
            sizes = None  # a table is written by its own op
        number = self.number(name)
        if sizes is not None and all(isinstance(s, int) for s in sizes):
            number = float(sizes[0]) if len(set(sizes)) == 1 else None
        if number is not None and (not exact or not any(isinstance(a, str) for axis in value.axes for a in axis)):
            shape = [self.columns((axis,))[0] if axis and any(isinstance(a, int) for a in axis) else 1 for axis in value.axes]
            return self.filled(number, shape, old.spec.known_dtype)
        if sizes is not None:
            return self._sizes(sizes, old.spec)
        plain = self.plain(name)
        if plain != name and (not exact or self.proof.value(plain).axes == value.axes):
            return self.alone(plain, exact)
        per_text, times = self._kind(value)
        if per_text and times == 0:
            if value.real.form is not None:
                return self._text_form(value.real.form, value.axes, old.spec.known_dtype, exact)
            pooled = self._pooled(self.writers[name], name, value)
            if pooled is not None:
                return pooled
        op = self.writers[name]
        norm = op.computes(c.VectorNorm)
        if norm is not None and norm.of == 2.0:
            x = self.alone(op.operand(0), True)
            return norm_over(x, range(x.spec.rank) if norm.axes is None else norm.axes, norm.keeps)
        scaled = arithmetic_with_number(self, op, self.alone)
        return scaled if scaled is not None else self._cloned(op, name, self._alone_operand)

    def _alone_operand(self, op: Op, name: str) -> Variable:
        value = self.proof.value(name)
        if value.per_text and value.time_places:
            return self.padded(name)
        if op.operator is None or not op.operator.per_element:
            return self.alone(name, True)
        return self.alone(self._narrow(op, name))

    def _narrow(self, op: Op, name: str) -> str:
        """Return an operand before it was repeated to the columns of another operand of a per-element op."""
        operand_axes = [self.proof.value(n).axes for n in op.input_names() if n and n != name and n not in self.proof.obstacles]
        while True:
            name = self.plain(name)
            writer = self.writers.get(name)
            if writer is None or writer.operator is None or not isinstance(writer.operator.computes(), c.Expansion):
                return name
            source = writer.operand(0)
            axes, wide = self.proof.value(source).axes, self.proof.value(name).axes
            if len(axes) != len(wide) or not any(
                len(o) == len(wide) and all(a == w or b == w for a, b, w in zip(axes, o, wide, strict=True)) for o in operand_axes
            ):
                return name
            name = source

    def filled(self, number: float, shape: Sequence[Size], dtype: DType) -> Variable:
        text = str(int(number)) if dtype.is_integer and abs(number) >= 1 << 24 else ""  # a value of fp32 has smaller ones exactly
        return self.block.apply("fill_constant", {}, {"shape": [*shape], "dtype": dtype.code, "value": float(number), "str_value": text})

    def _sizes(self, sizes: Sequence[Size], spec: Spec) -> Variable:
        """Return sizes known in the description, of the run's texts and rows."""
        parts = [self._size(s, spec.known_dtype) for s in sizes]
        joined = parts[0] if len(parts) == 1 else layer.concat(parts, 0)
        return layer.reshape(joined, []) if not spec.rank else joined

    def _size(self, size: Size, dtype: DType) -> Variable:
        if isinstance(size, (int, float)):
            return self.filled(float(size), [1], dtype)
        total: Variable | None = None
        for monomial, coefficient in self.proof.form(size).terms:
            part: Variable | None = None
            for factor in monomial:
                number = layer.cast(self.count() if factor == TEXTS else self.longest(), dtype)
                part = number if part is None else part * number
            term = self.filled(float(coefficient), [1], dtype) if part is None else part if coefficient == 1 else layer.scale(part, float(coefficient))
            total = term if total is None else total + term
        return self.filled(0.0, [1], dtype) if total is None else total

    def _text_form(self, form: IndexForm, axes: Axes, dtype: DType, exact: bool) -> Variable:
        """Return whole numbers of each text: its length, or the place of its last row; columns may be 1, unless ``exact``."""
        if form == IndexForm.factor(LENGTH) and axes and axes[0] == (BATCH,):
            lying = layer.cast(self.lengths(), dtype)
            lying = lying if len(axes) == 2 else layer.reshape(lying, [-1, *(1 for _ in axes[1:])])
            return self._widened(lying, axes, exact)
        total: Variable | None = None
        for monomial, coefficient in form.terms:
            part: Variable | None = None
            for factor in monomial:
                if not isinstance(factor, str):
                    number = layer.cast(layer.range(0, self.count(), 1, "int32"), INT64)
                else:
                    number = self.integer_lengths() if factor == LENGTH else layer.cast(self.longest() if factor == TIME else self.count(), INT64)
                part = number if part is None else part * number
            term = self.filled(float(coefficient), [1], INT64) if part is None else part if coefficient == 1 else layer.scale(part, float(coefficient))
            total = term if total is None else total + term
        total = self.filled(0.0, [1], INT64) if total is None else total
        lying = layer.cast(layer.reshape(total, [-1 if BATCH in axis else 1 for axis in axes]), dtype)
        return self._widened(lying, axes, exact)

    def _widened(self, x: Variable, axes: Axes, exact: bool) -> Variable:
        """Return numbers of texts with all their columns, if ``exact``."""
        columns = [-1 if BATCH in axis else self.columns((axis,))[0] for axis in axes]
        return layer.expand(x, columns) if exact and any(c not in (-1, 1) for c in columns) else x

    def _pooled(self, op: Op, name: str, value: PaddedValue) -> Variable | None:
        """Return a number for each text from its packed rows; None if no op on sequences computes it."""
        if op.operator is not None and isinstance(op.operator.computes(), c.MatrixProduct):
            return self._weighted(op, value)
        source, how = self._pooling(op)
        if source is None:
            return None
        x = self.proof.value(source)
        if not x.per_text or len(x.time_places) != 1 or not self.element_type(source).is_floating:
            return None
        size = _product(self.columns(x.axes))
        if size != _product(self.columns(value.axes)):
            return None  # it picks a row several times, or columns too
        rows = self.ragged(self.shaped(self.rows(source), [size]))
        pooled = self.block.apply("sequence_pool", {"X": rows}, {"pooltype": how})[0]
        return layer.reshape(pooled, [-1, *self.columns(value.axes)]) if len(value.axes) != 2 or self.columns(value.axes) != [size] else pooled

    def _weighted(self, op: Op, value: PaddedValue) -> Variable | None:
        """Return the sum over rows of each row times its weight, of a product of matrices over rows; None for another product."""
        sides = [(n, self.proof.value(n)) for n in (op.operand(0), op.operand(1))]
        if not all(v.per_text and len(v.time_places) == 1 for _, v in sides):
            return None
        sizes = [_product(self.columns(v.axes)) for _, v in sides]
        if 1 not in sizes:
            return None
        factors = [self.shaped(self.rows(name), [size]) for (name, _), size in zip(sides, sizes, strict=True)]
        pooled = layer.sequence_pool(self.ragged(factors[1 - sizes.index(1)] * factors[sizes.index(1)]), "sum")
        columns = self.columns(value.axes)
        return pooled if columns == [max(sizes)] else layer.reshape(pooled, [-1, *columns])

    def _pooling(self, op: Op) -> tuple[str | None, str]:
        """Return the value pooled over rows by an op, and how."""
        if op.operator is None:
            return None, ""
        computed, source = op.operator.computes(), op.operand(0)
        if source not in self.old.vars or source in self.proof.obstacles:
            return None, ""
        x = self.proof.value(source)
        rows = [p[0] for p in x.time_places]
        if any(x.axes[a] not in ((ROWS,), (BATCH, ROWS)) for a in rows):
            return None, ""
        if isinstance(computed, c.Reduction) and computed.how == "SUM":
            reduced_axes = range(len(x.axes)) if computed.axes is None else [a % len(x.axes) for a in computed.axes]
            alike = all(a in rows or not x.axes[a] for a in reduced_axes)
            return (source, "SUM") if rows and rows[0] in reduced_axes and alike else (None, "")
        if isinstance(computed, c.ExtremeReduction) and computed.axes is not None:
            return (source, computed.how.upper()) if [a % len(x.axes) for a in computed.axes] == rows else (None, "")
        if isinstance(computed, (c.Slicing, c.SteppedSlicing, c.Picking, c.PlacePicking, c.PickingAlong)) and rows:
            first = self._first_or_last(op, x)
            return (source, first) if first else (None, "")
        return None, ""

    def _first_or_last(self, op: Op, x: PaddedValue) -> str:
        """Return "FIRST" or "LAST" for an op picking this row of each text."""
        computed = op.operator.computes() if op.operator is not None else None
        if isinstance(computed, (c.Slicing, c.SteppedSlicing)):
            (axis, begin, *_), *further_cuts = computed.cuts
            if axis != x.time_places[0][0] or further_cuts or op.input("StartsTensor") or op.inputs.get("StartsTensorList"):
                return ""
            return "FIRST" if begin == 0 else "LAST"
        index = self.proof.value(op.operand(1))
        content = index.real.parts[-1] if index.real.parts else index.real
        form = content.index
        if form is None or (isinstance(computed, c.Picking) and x.axes[0] not in ((BATCH, ROWS), (BATCH,))):
            return ""
        row = form
        texts = [(a, k) for a, axis in enumerate(index.axes) for k, atom in enumerate(axis) if atom == BATCH]
        if isinstance(computed, c.Picking):
            row = next((form - IndexForm.factor(p) * IndexForm.factor(TIME) for p in texts if (p in form.places())), form)
        row = row.alone("right", ())
        last = IndexForm.factor(LENGTH if self.proof.side == "right" else TIME) - IndexForm.number(1)
        first = IndexForm(()) if self.proof.side == "right" else IndexForm.factor(TIME) - IndexForm.factor(LENGTH)
        return "LAST" if row == last else "FIRST" if row == first else ""

    # --- padded

    def padded(self, name: str) -> Variable:
        """Return a value as in the padded program, with the longest text in place of the time."""
        variable = self._padded.get(name)
        if variable is None:
            variable = self._padded[name] = self._pad(name)
        return variable

    def _pad(self, name: str) -> Variable:
        if self.proof.side == "left":
            raise self.refusal(self.writers.get(name), "it has no form on ragged rows, and texts that are padded before them are not padded again")
        value = self.proof.values.get(name)
        if self.inputs.get(name):
            return self._row_input(name)
        if name in self.proof.widened:
            return self._cloned(self.writers[name], name, self._padded_operand)
        per_text, times = self._kind(self.proof.value(name))
        if not (per_text and times):
            return self.alone(name, True)
        if name == self.texts:
            return layer.reshape(self._pad_first(), [-1, self.longest(), *self.first.spec.known_dims[1:]])
        if value is not None and times == 1 and self._may_be_padded(name, value):
            packed = self.rows(name)
            if name not in self._unpacked:
                masked = value.content(value.time_places)
                return self.with_padding(packed, value.axes, min(max(masked.offset, masked.low), masked.high))
        op = self.writers.get(name)
        if op is None:
            raise NotPacked
        return self._cloned(op, name, self._padded_operand)

    def _padded_operand(self, op: Op, name: str) -> Variable:
        return self.padded(name)

    def _may_be_padded(self, name: str, value: PaddedValue) -> bool:
        """Tell whether packed rows may be filled up with any number allowed by the proof in masked rows: not where it knows them by their place."""
        places = any(content.form is not None or content.parts for content in value.regions.values())
        is_reversed = any(REVERSED in axis for axis in value.axes)
        return not (places or is_reversed) and name not in self._unpacked and self.number(name) is None

    def _row_input(self, name: str) -> Variable:
        spec = self.old.var(name).spec
        if name == self.lengths_input:
            return layer.cast(self.integer_lengths(), spec.known_dtype)
        mask = layer.sequence_mask(self.integer_lengths(), self.longest(), INT64)
        if self.masked:
            mask = layer.scale(mask, -1.0, 1.0)
        return layer.cast(mask, spec.known_dtype)

    def with_padding(self, rows: Variable, axes: Axes, number: float) -> Variable:
        """Return packed rows in the axes of the padded program."""
        columns = self.columns(axes)
        dtype = rows.spec.known_dtype
        flat = rows if rows.spec.rank > 1 else layer.reshape(rows, [0, 1])
        padded, _ = layer.sequence_pad(self.ragged(flat if dtype is not BOOL else layer.cast(flat, "int32")), number)
        padded = layer.cast(padded, BOOL) if dtype is BOOL else padded
        if rows.spec.rank == 1:
            padded = layer.squeeze(padded, [2])
        order: list[int] = []
        merged = False
        columns_in_order = iter(range(2, 2 + len(columns)))
        for axis in axes:
            for atom in [a for a in axis if isinstance(a, str)]:
                order.append(0 if atom == BATCH else 1)
                if atom == REVERSED:
                    raise NotPacked
            if not axis or any(isinstance(a, int) for a in axis):
                order.append(next(columns_in_order))
            merged = merged or len([a for a in axis if isinstance(a, str)]) + any(isinstance(a, int) for a in axis) > 1
        transposed = padded if order == sorted(order) else layer.transpose(padded, order)
        if not merged:
            return transposed
        return layer.reshape(transposed, [self._axis_size(axis) for axis in axes])

    def _axis_size(self, axis: Sequence[Atom]) -> Any:
        total: Any = 1
        for atom in axis:
            size: Any = atom if isinstance(atom, int) else self.count() if atom == BATCH else self.longest()
            total = size if isinstance(total, int) and total == 1 else total * size
        return total

    def unpad(self, x: Variable, axes: Axes, columns: Sequence[Size]) -> Variable:
        """Return the rows of a padded value, packed."""
        order: list[int] = []
        atoms = [(atom, n) for n, axis in enumerate(axes) for atom in (axis or (1,))]
        if any(len(axis) > 1 for axis in axes):
            x = layer.reshape(x, [a if isinstance(a, int) else self.count() if a == BATCH else self.longest() for a, _ in atoms])
        for kind in (BATCH, ROWS):
            order.append(next(k for k, (atom, _) in enumerate(atoms) if atom == kind))
        order += [k for k, (atom, _) in enumerate(atoms) if isinstance(atom, int)]
        stays = order == sorted(order)
        transposed = x if stays else layer.transpose(x, order)
        rows = layer.gather(layer.reshape(transposed, [-1, _product(columns)]), self._flat_places())
        return self.shaped(rows, columns)

    def _cloned(self, op: Op, name: str, operand: Any) -> Variable:
        """Return a result of an op, written again with other operands."""
        if op.sub_block_indices():
            raise self.refusal(op, "it has a block of its own")
        inputs = {slot: [operand(op, n) for n in names if n] for slot, names in op.inputs.items() if any(names)}
        variables = self.append(op, inputs, op.attributes.values)
        return next(v for n, v in variables if n == name)

    def append(self, op: Op, inputs: Mapping[str, Any], attributes: Mapping[str, Any]) -> list[tuple[str, Variable]]:
        """Append an op like another; return (old name, variable) of its results."""
        assert op.operator is not None
        declared = {k: v for k, v in attributes.items() if k in op.operator.schema.attributes}
        names = [n for slot in op.outputs.values() for n in slot if n]
        outputs = dict(op.outputs) if not any(n in self.block.vars for n in names) else None
        new = self.block.append_op(op.type, inputs, outputs, declared, site=op.site)
        return [(old, self.block.var(n)) for slot, names in op.outputs.items() for old, n in zip(names, new.output_slots.get(slot, ()), strict=False)]

    def refusal(self, op: Op | None, words: str) -> NotRagged:
        return NotRagged(Fault(op, words))


def _product(columns: Sequence[Size]) -> int:
    """Return the product of the sizes that are numbers."""
    return math.prod(n for n in columns if isinstance(n, int))


class NotRagged(Exception):
    """A program without a form on ragged rows."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.words)
        self.fault = fault


def arithmetic_with_number(packer: Packer, op: Op, operand: Callable[[str], Variable]) -> Variable | None:
    """Return arithmetic of floats with one number as one op; None for others."""
    computed = op.computes(Computation)
    if not isinstance(computed, (c.Sum, c.Subtraction, c.Product, c.Quotient)):
        return None
    first, second = op.operand(0), op.operand(1)
    number = packer.number(second)
    if number is None and isinstance(computed, _COMMUTATIVE):
        first, number = second, packer.number(first)
    operand_axes = packer.proof.value(first).axes
    name = op.result(0)
    if number is None or not math.isfinite(number) or not packer.element_type(name).is_floating or not covers(operand_axes, packer.proof.value(name).axes):
        return None
    match computed:
        case c.Sum():
            return layer.scale(operand(first), 1.0, number)
        case c.Subtraction():
            return layer.scale(operand(first), 1.0, -number)
        case c.Product():
            return layer.scale(operand(first), number)
        case c.Quotient():
            return layer.scale(operand(first), 1.0 / number) if number else None
