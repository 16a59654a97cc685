"""The rewriting of a program for a rank with some columns or rows of its layers; see `foreshape.transforms.passes.tensor_parallelism`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from foreshape.core.dims import Size, equal, floordiv, product
from foreshape.core.spec import LOD_TENSOR, tensor
from foreshape.errors import SchemaError
from foreshape.language.operator.computations import Cast, FlattenedProduct
from foreshape.language.operator.traits import WHOLE, ShardingRule, is_update
from foreshape.language.ops.collective.dropout import CDropout
from foreshape.language.ops.nn.dropout import Dropout
from foreshape.language.program import Block, Op, Program, Role
from foreshape.language.program.op import is_empty_name
from foreshape.transforms.passes.contract import contract
from foreshape.transforms.passes.for_ranks import TENSOR, ShardedValue, ShardPiece
from foreshape.transforms.passes.forward_and_back import GRAD, LATER, Reading, base_of, casts_of, is_gradient_of, set_shape, shape_of_part, shown

COLUMNS, ROWS = "columns", "rows"
_SPLIT_LAYERS = contract("split_layers")


def divided(program: Program, marks: Mapping[str, str], degree: int, names: Mapping[str, str] | None = None) -> tuple[Program, list[ShardedValue]]:
    """Return a copy of a program with a rank's part of some layers, and the divided values.

    Args:
        marks: the names of weights, each with "columns" or "rows".
        degree: the number of ranks with the parts.
        names: the names of the parts, if they exist already.

    Raises:
        SchemaError: a weight not divisible so, or an unknown use, with the user's line.
    """
    dividers: list[Divider] = []

    def change(copy: Program) -> bool:
        dividers.append(Divider(copy.global_block, marks, degree, names))
        dividers[0].run()
        return True

    result = _SPLIT_LAYERS.run(program, change).program
    dividers[0].verify(result.global_block)
    return result, list(dividers[0].parts.values())


class Divider:
    """A divider of the layers of one block."""

    def __init__(self, block: Block, marks: Mapping[str, str], degree: int, names: Mapping[str, str] | None) -> None:
        self.block, self.marks, self.degree, self.names = block, marks, degree, names
        self.axes: dict[str, int] = {}
        """Value -> its divided axis; gradients are divided as their values."""
        self.parts: dict[str, ShardedValue] = {}
        """By the name of the whole."""
        self.dims = {name: v.spec.dims for name, v in block.vars.items()}
        self._made: dict[tuple[str, str], str] = {}
        """(value, operator) -> the operator's result for it."""
        self._own: set[int] = set()
        """Gradient ops of visited ops, and inserted ops."""
        self._sources = casts_of(block, marks)
        """The weights to divide, and casts of them -> the weight."""
        self._readings = self._find_readings()
        self._writers = Counter(n for op in block.ops if not op.role & LATER for n in op.all_writes())

    def run(self) -> None:
        for name, split in self.marks.items():
            self._check_mark(name, split)
            self.axes[name] = 1 if split == COLUMNS else 0
        for op in list(self.block.ops):
            if not op.role & LATER:
                self._forward(op)
        for op in list(self.block.ops):
            if op.role & Role.BACKWARD and id(op) not in self._own:
                self._backward(op)
        for op in list(self.block.ops):
            if op.role & (Role.OPTIMIZE | Role.LEARNING_RATE) and id(op) not in self._own:
                self._update(op)
        for name, axis in list(self.axes.items()):
            variable = self.block.vars[name]
            if variable.persistable and name not in self.parts:
                self._hold(name, axis)
        for op in self.block.ops:
            for name, part in self.parts.items():
                if name in op.all_reads() | op.all_writes():
                    op.rename_input(name, part.name)
                    op.rename_output(name, part.name)
            op.role_variables = tuple(self.parts[n].name if n in self.parts else n for n in op.role_variables)
        for name in self.parts:
            self.block.remove_variable(name)

    def verify(self, block: Block) -> None:
        """Check the dims of divided values."""
        for name, axis in self.axes.items():
            variable, dims = block.vars.get(name), self.dims.get(name)
            if variable is None or variable.spec.dims is None or dims is None:
                continue
            expected = [floordiv(d, self.degree) if index == axis else d for index, d in enumerate(dims)]
            if len(expected) != len(variable.spec.dims) or any(equal(a, b) is False for a, b in zip(expected, variable.spec.dims, strict=True)):
                raise SchemaError(f"{name} cannot be divided over {self.degree} ranks along axis {axis}: it would be {variable.spec.text()}")

    # --- the forward pass

    def _forward(self, op: Op) -> None:
        if op.sub_block_indices() and (read := sorted(self.axes.keys() & op.all_reads())):
            raise SchemaError(f"{read[0]} is divided over ranks and read inside {shown(op)}, which is not understood")
        weight = self._sources.get(op.operand(1), "") if op.computes(FlattenedProduct) else ""
        if weight in self.marks:
            (self._columns if self.marks[weight] == COLUMNS else self._rows)(op, weight)
            return
        if not any(n in self.axes for n in op.input_names()):
            return
        divided_results = self._through(op)
        if divided_results is None:
            for name in dict.fromkeys(n for n in op.input_names() if n in self.axes):
                self._whole(op, name)
            return
        for name, axis in divided_results.items():
            self._divide(op, name, axis)

    def _divide(self, op: Op, name: str, axis: int) -> None:
        """Note the division of an op's result."""
        if self._writers[name] > 1 or self.block.vars[name].persistable:
            raise SchemaError(f"{shown(op)} gives a part of {name}, which is also written by another op or kept: this is not understood")
        self.axes[name] = axis

    def _columns(self, op: Op, weight: str) -> None:
        """Divide a product by columns: every rank has the whole input, and gives some columns; the input's gradient is summed over the ranks."""
        (slot, _, x), out = next(_operands(op)), op.result()
        if x in self.axes:
            x = self._whole(op, x)
        if self._readings[id(op)].gives(slot, 0):
            self._convert(op, x, "c_identity", {}, "c_allreduce_sum", {})
        self._divide(op, out, self._rank(out) - 1)

    def _rows(self, op: Op, weight: str) -> None:
        """Divide a product by rows: every rank has some of the input's columns, and their rows of the weight; the results are summed."""
        x, out, product = op.operand(0), op.result(), op.computes(FlattenedProduct)
        last = self._rank(x) - 1
        if product is None or product.x_rows != last:
            raise SchemaError(f'{shown(op)}: a weight split by "rows" takes the last dim of its input alone as features; see flatten_last')
        if x in self.axes and self.axes[x] != last:
            x = self._whole(op, x)
        if x not in self.axes:
            self._convert(op, x, "c_split", {"nranks": self.degree, "axis": -1}, "c_concat", {"nranks": self.degree, "axis": -1})
        self._sum_after(op, out)

    def _through(self, op: Op) -> dict[str, int] | None:
        """Return the divided results of an op, with their axes; None if it needs its operands whole."""
        operator = op.operator
        if operator is None:
            return None
        if operator.schema.results[0].layout == "reshaped" and "shape" in operator.schema.attributes:
            return self._reshaped(op)
        rule, drops = self._rule(op), isinstance(operator, Dropout)
        name = None if rule is None else self._divided_along(op, rule)
        if rule is None or name is None or not any(name in names for names in rule.results.values()) or (operator.draws() and not drops):
            return None
        parameters: dict[str, int] = {}
        alike: list[tuple[str, int]] = []
        for slot, index, operand in _operands(op):
            names = rule.operands.get(slot, ())
            if name not in names:
                alike.append((slot, index))  # read for every part
            elif operand not in self.axes:
                if not self._is_own_parameter(op, operand):
                    return None
                parameters[operand] = names.index(name)
        self.axes |= parameters
        for gradient, operand in [pair for slot, index in alike for pair in self._readings[id(op)].gives(slot, index)]:
            self._after(gradient, operand, "c_allreduce_sum", {})
        if drops and operator.draws():
            attributes = {n: v for n, v in op.attrs.items() if n in operator.schema.attributes}
            op.attributes = CDropout.describe({**attributes, "ring_id": TENSOR})
        return {n: names.index(name) for slot, names in rule.results.items() if name in names for n in op.outputs.get(slot, ()) if not is_empty_name(n)}

    def _rule(self, op: Op) -> ShardingRule | None:
        """Return the rule from parts of an op's operands to parts of its results."""
        operator, specs = op.operator, list[Any]()
        for operand in operator.schema.operands if operator is not None else ():
            slot_specs = [self.block.var(n).spec for n in op.inputs.get(operand.name, ()) if not is_empty_name(n)]
            specs.append(tuple(slot_specs) if operand.many else slot_specs[0] if slot_specs else None)
        return None if operator is None else operator.sharding_rule(*specs)

    def _divided_along(self, op: Op, rule: ShardingRule) -> str | None:
        """Return the name of the common axis of an op's divided operands; None without one, or if it is needed whole."""
        axis_names: set[str] = set()
        for slot, _, operand in _operands(op):
            axis, names = self._axis(operand), rule.operands.get(slot, ())
            if axis is not None:
                axis_names.add(names[axis] if axis < len(names) else WHOLE)
        return axis_names.pop() or None if len(axis_names) == 1 else None

    def _is_own_parameter(self, op: Op, name: str) -> bool:
        """Tell whether a value is a parameter read by no other op of the forward pass, such as a bias."""
        variable = self.block.vars.get(name)
        if variable is None or not variable.is_parameter or name in self.marks:
            return False
        readers = [o for o in self.block.ops if name in o.all_reads() and not o.role & (Role.OPTIMIZE | Role.LEARNING_RATE)]
        return all(o is op or o in self._readings[id(op)].gradients for o in readers)

    def _reshaped(self, op: Op) -> dict[str, int] | None:
        """Return the results of a reshape that keeps the elements of each part together, behind as many elements as before."""
        x, out = op.operand(0), op.result()
        axis = self.axes.get(x)
        if axis is None or len(list(op.input_names())) > 1:
            return None
        operand_dims = self._dims(x)
        result_dims = self._dims(out)
        ahead = product(operand_dims[:axis])
        for result_axis, size in enumerate(result_dims):
            if equal(product(result_dims[:result_axis]), ahead) and isinstance(size, int) and size > 1:
                if size % self.degree:
                    raise SchemaError(f"{shown(op)}: {size} parts, such as heads, cannot be divided over {self.degree} ranks")
                shape = shape_of_part(op.attrs["shape"], operand_dims, axis, result_axis, size // self.degree)
                if shape is None:
                    return None
                for reshape in (op, *self._readings[id(op)].gradients):
                    set_shape(reshape, shape)
                return {out: result_axis}
        return None

    # --- inserted ops

    def _whole(self, op: Op, name: str) -> str:
        """Let an op read a divided value as a whole, and its gradient be cut again."""
        attrs = {"nranks": self.degree, "axis": self.axes[name]}
        if not self._readings[id(op)].gradients and self._has_gradient(op):
            raise SchemaError(f"{name} is divided over ranks and read by {shown(op)}, whose gradient is not understood")
        return self._convert(op, name, "c_concat", attrs, "c_split", attrs)

    def _convert(self, op: Op, name: str, type: str, attrs: Mapping[str, Any], back: str, back_attrs: Mapping[str, Any]) -> str:
        """Let an op read a collective's result for a value, and its gradient go back through another collective."""
        reading = self._readings[id(op)]
        converted = self._made.get((name, type))
        if converted is None or self._writers[name] > 1:
            converted = self._made[name, type] = self.block.program.unique_name(f"{name}@{type[2:].upper()}")
            self._insert(self.block.ops.index(op), type, name, converted, attrs, op, Role.FORWARD)
        for slot, names in op.inputs.items():
            for index, operand in enumerate(names):
                if operand == name:
                    for gradient, gradient_name in reading.gives(slot, index):
                        self._after(gradient, gradient_name, back, back_attrs)
        for operand in (op, *reading.gradients):
            operand.rename_input(name, converted)
        return converted

    def _after(self, op: Op, name: str, type: str, attrs: Mapping[str, Any]) -> None:
        """Let a collective replace the result of an op in the backward pass."""
        part = self.block.program.unique_name(f"{name}@RANK")
        op.rename_output(name, part)
        pairs = list(zip(op.role_variables[::2], op.role_variables[1::2], strict=False))
        self._insert(self.block.ops.index(op) + 1, type, part, name, attrs, op, Role.BACKWARD, tuple(n for p in pairs if p[1] == name for n in p))
        op.role_variables = tuple(n for p in pairs if p[1] != name for n in p)

    def _sum_after(self, op: Op, name: str) -> None:
        """Sum the results of an op over the ranks: from there on all compute alike."""
        part = self.block.program.unique_name(f"{name}@RANK")
        op.rename_output(name, part)
        self._insert(self.block.ops.index(op) + 1, "c_allreduce_sum", part, name, {"use_model_parallel": True}, op, op.role)

    def _insert(self, index: int, type: str, x: str, out: str, attrs: Mapping[str, Any], near: Op, role: int, role_variables: tuple[str, ...] = ()) -> None:
        for name in (x, out):
            if name not in self.block.vars:
                self.block.create_variable(name, self.block.vars[out if name == x else x].spec)
        attrs = {"ring_id": TENSOR, "use_calc_stream": True, **attrs}
        op = self.block.append_op(type, {"X": [x]}, {"Out": [out]}, attrs, role=role, role_variables=role_variables, site=near.site, index=index)
        self._own.add(id(op))

    # --- the backward pass and the updates

    def _find_readings(self) -> dict[int, Reading]:
        """Return the ops of the forward pass with their gradient ops, found by their operands."""
        ops = [op for op in self.block.ops if not op.role & LATER]
        out = {id(op): Reading(op, []) for op in ops}
        by_type: dict[str, list[Op]] = {}
        for op in ops:
            by_type.setdefault(f"{op.type}_grad", []).append(op)
        for gradient in self.block.ops:
            if gradient.role & Role.BACKWARD:
                matches = [op for op in by_type.get(gradient.type, ()) if is_gradient_of(gradient, op)]
                if len(matches) == 1:
                    out[id(matches[0])].gradients.append(gradient)
                    self._own.add(id(gradient))
        return out

    def _has_gradient(self, op: Op) -> bool:
        results = set(op.output_names())
        return any(o.role & Role.BACKWARD and any(GRAD in n and base_of(n) in results for n in o.input_names()) for o in self.block.ops)

    def _axis(self, name: str) -> int | None:
        axis = self.axes.get(name)
        return self.axes.get(base_of(name)) if axis is None and GRAD in name else axis

    def _backward(self, op: Op) -> None:
        """Divide an op of no single forward op, such as a sum of gradients."""
        self._through_alike(op, "in the backward pass")

    def _through_alike(self, op: Op, phase: str) -> None:
        """Check that the operands of an elementwise op are divided alike; its results are divided so."""
        axes = {self._axis(n) for n in op.input_names()}
        divided_axes = axes - {None}
        if not divided_axes and not (op.role & Role.BACKWARD and any(self._axis(n) is not None for n in op.output_names())):
            return
        numbers = all(self._axis(n) is not None or product(self.block.var(n).spec.known_dims) == 1 for n in op.input_names())
        if op.operator is None or not op.operator.per_element or len(divided_axes) != 1 or not numbers:
            read = next((n for n in (*op.input_names(), *op.output_names()) if self._axis(n) is not None), "")
            raise SchemaError(f"{read} is divided over ranks and read {phase} by {shown(op)}, which is not understood")
        axis = divided_axes.pop()
        assert axis is not None
        for name in op.output_names():
            if self._axis(name) is None:
                self.axes[name] = axis

    def _update(self, op: Op) -> None:
        operator, parameter = op.operator, op.input("Param")
        if operator is not None and is_update(type(operator)) and parameter is not None:
            axis = self.axes.get(parameter)
            gradient = op.inputs["Grad"][0]
            if axis is None:
                return
            if operator.elementwise_state is None or op.inputs.get("MasterParam"):
                raise SchemaError(f"{parameter} is divided over ranks, and its update {shown(op)} needs all of it")
            if self._axis(gradient) != axis or self.block.var(gradient).kind is not LOD_TENSOR:
                raise SchemaError(f"{parameter} is divided over ranks, and its gradient {gradient} is not")
            for slot in operator.elementwise_state:
                for name in op.inputs.get(slot, ()):
                    self.axes[name] = axis
        elif any(self._axis(n) is not None for n in op.input_names()) and (rule := self._rule(op)) and self._divided_along(op, rule) in rule.summed:
            self._sum_after(op, op.result())
        else:
            self._through_alike(op, "before the update")

    # --- kept values

    def _check_mark(self, name: str, split: str) -> None:
        dims = self._dims(name)
        if len(dims) != 2 or not all(isinstance(d, int) for d in dims):
            raise SchemaError(f"{name} must be [in, out] to be divided over ranks; it is {self.block.var(name).spec.text()}")
        axis = 1 if split == COLUMNS else 0
        size = dims[axis]
        if not isinstance(size, int) or size % self.degree:
            raise SchemaError(f"{name}: {size} {split} cannot be divided over {self.degree} ranks")
        read = [(op, n) for op in self.block.ops for n, source in self._sources.items() if source == name and n in op.all_reads()]
        for op, operand in read:
            if op.role & (Role.OPTIMIZE | Role.LEARNING_RATE) or op.computes(Cast):
                continue
            undone = op.operator.backward_of() if op.operator is not None else None
            product, slots = (undone, _forward_slots(op)) if undone is not None else (op.computes(FlattenedProduct), [s for s, _, _ in _operands(op)])
            as_weight = (
                isinstance(product, FlattenedProduct) and product.y_rows == 1 and op.inputs.get(slots[1]) == (operand,) and operand not in op.inputs[slots[0]]
            )
            if not as_weight:
                raise SchemaError(f"{name} is read by {shown(op)}, so that it cannot be divided over ranks; only products with it may read it")
            if undone is not None and id(op) not in self._own:
                raise SchemaError(f"it is not clear of which product {shown(op)} is the gradient, so that {name} cannot be divided over ranks")

    def _hold(self, name: str, axis: int) -> None:
        """Hold a rank's part of a persistable value, in place of the whole."""
        variable = self.block.vars[name]
        dims = tuple(floordiv(d, self.degree) if index == axis else d for index, d in enumerate(variable.spec.known_dims))
        if not equal(dims[axis] * self.degree, variable.spec.known_dims[axis]):
            raise SchemaError(f"{name}: its dim {variable.spec.known_dims[axis]} cannot be divided over {self.degree} ranks")
        part_name = self.names[name] if self.names is not None else self.block.program.unique_name(f"{name}@SPLIT")
        flags = {f: getattr(variable, f) for f in ("persistable", "is_parameter", "trainable", "stop_gradient")}
        self.block.create_variable(part_name, tensor(variable.spec.known_dtype, *dims), site=variable.site, **flags)
        piece = ShardPiece(name, 0, variable.spec.known_dims)
        self.parts[name] = ShardedValue(part_name, variable.spec.known_dtype, dims, (piece,), begins_whole=variable.is_parameter, axis=axis, ways=self.degree)

    def _dims(self, name: str) -> tuple[Size, ...]:
        """Return the dims of the whole."""
        dims = self.dims[name]
        assert dims is not None
        return dims

    def _rank(self, name: str) -> int:
        return len(self._dims(name))


def _operands(op: Op) -> Iterator[tuple[str, int, str]]:
    """Yield the slot, the place in it and the name of each operand, in the order of the schema."""
    for slot in op.operator.schema.operands if op.operator is not None else ():
        for index, name in enumerate(op.inputs.get(slot.name, ())):
            if not is_empty_name(name):
                yield slot.name, index, name


def _forward_slots(op: Op) -> list[str]:
    """Return the operand slots of a gradient op's forward op."""
    forward = op.operator.forward_class if op.operator is not None else None
    return [o.name for o in forward.schema.operands] if forward is not None else []
