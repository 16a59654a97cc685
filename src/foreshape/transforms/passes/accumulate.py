"""Gradients of several batches in one update: they are added to sums kept between runs, and their means are used once per group.

A step of a group updates as one with all its batches in one. In a mean, or a quotient of sums, each batch counts by its number of elements
(`foreshape.transforms.passes.group_weights`).

Groups of batches do not end with epochs. An unfinished group continues in the next epoch, and the sums left
after the last epoch wait for a resumed run. The learning rate of a schedule is the same in all batches of a group. The sum of
sparse gradients is sparse rows, too, each once: it takes the memory of the rows looked up by several batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import BOOL, INT64, SELECTED_ROWS, DType, Spec, tensor
from foreshape.errors import SchemaError, whole
from foreshape.language.ops.math.scaling import Increment
from foreshape.language.program import Op, Program, Role, Variable, program_guard
from foreshape.layer.initializer import Constant, Initializer
from foreshape.layer.parameter import initialise
from foreshape.transforms.passes.contract import CONDITIONAL_UPDATES, UPDATES, contract
from foreshape.transforms.passes.group_weights import GroupWeights, Inserted
from foreshape.transforms.passes.update_section import move_under, rename, update_section

COUNTER = "accumulated_batches"
_ACCUMULATE = contract("accumulate", [UPDATES], [CONDITIONAL_UPDATES])


def accumulate(program: Program, batches: int, startup: Program) -> tuple[Program, Program]:
    """Return a copy of a training program with one update for so many batches, and a copy of its startup program.

    Args:
        program: with gradients and updates; left as it is.
        batches: the number of batches of one update. With 1 both programs are returned as they are.
        startup: left as it is.

    Raises:
        SchemaError: ``batches`` is no whole number above 0; the program has no updates.
    """
    if checked_batches(batches) == 1:
        return program, startup
    begins = startup.clone()

    def change(copy: Program) -> bool:
        with program_guard(copy, begins):
            _Accumulation(copy, batches).apply()
        return True

    return _ACCUMULATE.run(program, change, f"accumulate={batches}").program, begins


def checked_batches(count: object) -> int:
    """Return the number of batches of one update. Raises `SchemaError` unless it is a whole number."""
    return whole("accumulate=, the number of batches that make one update,", count, 1, SchemaError)


class _NoRows(Initializer):
    """Sparse rows without a row."""

    def op(self, shape: Sequence[Size], of: DType) -> tuple[str, dict[str, Any]]:
        return "empty_selected_rows", {"shape": list(shape), "dtype": of.code}


class _Accumulation:
    """The rewriting of one program to accumulate; it appends to the default programs."""

    def __init__(self, program: Program, batches: int) -> None:
        self.program, self.batches, self.block = program, batches, program.global_block
        self.section = update_section(self.block, f"accumulate={batches}")
        self.at = 0
        """The position of the next op outside of the backward pass."""

    def apply(self) -> None:
        section = self.section
        counter = self._state(self.program.unique_name(COUNTER), tensor(INT64, 1))
        self._count_updates(counter)
        weights = GroupWeights(self.block, lambda name, spec: self._state(self.program.unique_name(name), spec))
        sums = {gradient: self._sum(gradient) for gradient in section.gradients}
        names = {gradient: self.program.unique_name(f"{gradient}@MEAN") for gradient in sums}
        for op in section.ops:
            rename(op, names)
            op.role_variables = tuple(names.get(n, n) for n in op.role_variables)
        self.at = self.block.ops.index(section.ops[-1]) + 1
        self._put("increment", {"X": counter}, {"Out": counter}, {"step": 1.0})
        full = self._equal(counter, self.batches)
        factor, inputs, attrs = Inserted(self.block, self.at, Role.OPTIMIZE), {}, {"scale": 1.0 if weights.is_sum else 1.0 / self.batches}
        if weights.factor is not None:
            inputs, attrs = {"ScaleTensor": weights.factor(factor)}, {}
            self.at = factor.at
        means = [self._put("scale", {"X": total, **inputs}, {"Out": names[g]}, attrs, (section.gradients[g], names[g])) for g, total in sums.items()]
        resets = [self._empty(v) if v.kind is SELECTED_ROWS else self._fill(v) for v in (*sums.values(), counter, *weights.kept)]
        move_under(self.block, [*factor.ops, *means, *section.ops, *resets], self.block.var(full), section.site)

    def _state(self, name: str, spec: Spec) -> Variable:
        variable = self.block.create_variable(name, spec, site=self.section.site, persistable=True, stop_gradient=True)
        if spec.kind is SELECTED_ROWS:
            initialise(variable, _NoRows())
        elif all(isinstance(d, int) for d in spec.known_dims):  # a part of one of any number of ranks is planned, and not run
            initialise(variable, Constant(0.0 if spec.known_dtype.is_floating else 0))
        return variable

    def _count_updates(self, counter: Variable) -> None:
        """Let the step counter of a learning rate count only the first batch of each group."""
        steps = [op for op in self.block.ops if op.role & Role.LEARNING_RATE and isinstance(op.operator, Increment) and op.input("X") == op.output("Out")]
        if not steps:
            return
        role, site, zero = Role.LEARNING_RATE, steps[0].site, self.program.unique_name(f"{counter.name}@ZERO")
        attrs = {"shape": [1], "dtype": INT64.code, "value": 0.0, "str_value": "0"}
        begins, step = (self.program.unique_name(f"{counter.name}@{word}") for word in ("BEGINS", "STEP"))
        add = self.block.append_op
        add("fill_constant", {}, {"Out": zero}, attrs, role=role, site=site, index=0)
        add("equal", {"X": counter, "Y": zero}, {"Out": begins}, role=role, site=site, index=1)
        for op in steps:
            increment, number = float(op.attrs.get("step", 1.0)), self.block.var(op.input("X") or "")
            index = self.block.ops.index(op)
            cast = {"in_dtype": BOOL.code, "out_dtype": number.spec.known_dtype.code}
            add("cast", {"X": begins}, {"Out": step}, cast, role=role, site=op.site, index=index)
            if increment != 1.0:
                add("scale", {"X": step}, {"Out": step}, {"scale": increment}, role=role, site=op.site, index=index + 1)
            self.block.remove_op(op)
            add("elementwise_add", {"X": number, "Y": step}, {"Out": number}, role=role, site=op.site, index=index + 1 + (increment != 1.0))

    def _sum(self, gradient: str) -> Variable:
        """Add a gradient to its sum kept between runs, as soon as it is there."""
        parameter, spec = self.section.gradients[gradient], self.block.var(gradient).spec
        rows = spec.kind is SELECTED_ROWS
        total = self._state(self.program.unique_name(f"{parameter}_accumulated"), spec if rows else tensor(spec.known_dtype, *spec.known_dims))
        ours = {id(op) for op in self.section.ops}
        index = max(n for n, op in enumerate(self.block.ops) if id(op) not in ours and gradient in op.all_writes())
        maker = self.block.ops[index]
        type, inputs = ("accumulate_selected_rows", ("Sum", "Grad")) if rows else ("elementwise_add", ("X", "Y"))
        attrs = {"batches": self.batches} if rows else {}
        operands = dict(zip(inputs, (total, gradient), strict=True))
        self.block.append_op(type, operands, {"Out": total}, attrs, role=Role.OPTIMIZE, site=maker.site, index=index + 1)
        return total

    def _put(self, type: str, inputs: dict[str, Any], outputs: dict[str, Any], attrs: dict[str, Any], role_variables: tuple[str, ...] = ()) -> Op:
        op = self.block.append_op(type, inputs, outputs, attrs, role=Role.OPTIMIZE, role_variables=role_variables, site=self.section.site, index=self.at)
        self.at += 1
        return op

    def _fill(self, variable: Variable) -> Op:
        if not all(isinstance(d, int) for d in variable.spec.known_dims):  # of one of any number of ranks
            return self._put("fill_any_like", {"X": variable}, {"Out": variable}, {"value": 0.0})
        attrs = {"shape": list(variable.spec.known_dims), "dtype": variable.spec.known_dtype.code, "value": 0.0, "str_value": "0"}
        return self._put("fill_constant", {}, {"Out": variable}, attrs)

    def _empty(self, variable: Variable) -> Op:
        return self._put("empty_selected_rows", {"X": variable}, {"Out": variable}, _NoRows().op(variable.spec.known_dims, variable.spec.known_dtype)[1])

    def _equal(self, counter: Variable, count: int) -> str:
        number, full = (self.program.unique_name(f"{counter.name}@{word}") for word in ("ALL", "FULL"))
        self._put("fill_constant", {}, {"Out": number}, {"shape": [1], "dtype": INT64.code, "value": float(count), "str_value": str(count)})
        self._put("equal", {"X": counter, "Y": number}, {"Out": full}, {})
        return full
