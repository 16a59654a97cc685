"""`WrittenOp`: an op of ours as seen by its function of writing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.core.spec import BOOL, FP32, INT64, DType, Spec
from foreshape.interop.onnx.write.padded_rows import levels_of
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.refused import Refused
from foreshape.interop.written_ops import DescribedOp
from foreshape.language.operator.operator import Operator
from foreshape.language.program import Op

if TYPE_CHECKING:
    from foreshape.interop.onnx.write.graph_writer import GraphWriter


class WrittenOp(DescribedOp):
    """An op in the course of its writing.

    Attributes:
        writer: the state of the whole writing.
        knows_sequences: the operator is one of sequences; to others ragged rows are rows.
    """

    __slots__ = ("knows_sequences", "writer")

    def __init__(self, writer: GraphWriter, op: Op, operator: Operator) -> None:
        super().__init__(op, operator)
        self.writer = writer
        self.knows_sequences = type(operator).kernel_offsets

    # --- operands and results

    def x(self, slot: str, index: int = 0) -> OnnxValue:
        """Return the value of an operand. Integers known before the run are a constant, whatever made them."""
        variable = self.variable(slot, index)
        if variable.spec.value is not None and variable.name not in self.writer.parameters:
            numbers = self.writer.known(variable)
            if numbers is not None:
                return self.writer.constant(numbers)
        return self.writer.value(variable.name)

    def optional(self, slot: str) -> OnnxValue | None:
        """Return the value of an operand; None if it is absent."""
        return self.x(slot) if self.has(slot) else None

    def all(self, slot: str) -> list[OnnxValue]:
        """Return the values of an operand of several."""
        return [self.x(slot, index) for index in range(self.count(slot))]

    def known(self, slot: str, index: int = 0) -> Any:
        """Return the numbers of an operand as an array if they are known before the run, otherwise None."""
        return self.writer.known(self.variable(slot, index)) if self.has(slot) else None

    def spec(self, slot: str, index: int = 0) -> Spec:
        """Return the spec of an operand. Raises `Refused` for a ragged one, if the operator knows of sequences, or nothing is known of them."""
        spec = self.writer.spec(self.variable(slot, index))
        if spec.lod and (self.knows_sequences or self.of.region or levels_of(self.writer, spec.lod) is None):
            raise Refused(f"{slot} is ragged")
        return spec

    def rank(self, slot: str) -> int:
        """Return the number of dims of an operand. Raises `Refused` if it is not known."""
        spec = self.spec(slot)
        if spec.dims is None:
            raise Refused(f"the number of dims of {slot} must be known")
        return len(spec.dims)

    def dtype(self, slot: str) -> DType:
        """Return the element type of an operand."""
        return self.spec(slot).known_dtype

    # --- nodes

    def node(self, operator: str, *inputs: OnnxValue | None, domain: str = "", **attributes: Any) -> OnnxValue:
        """Append a node with one result. Attributes of None are left out."""
        return self.writer.node(operator, inputs, 1, domain, **attributes)[0]

    def nodes(self, operator: str, count: int, *inputs: OnnxValue | None, domain: str = "", **attributes: Any) -> list[OnnxValue]:
        """Append a node with several results."""
        return self.writer.node(operator, inputs, count, domain, **attributes)

    def needs(self, opset: int) -> None:
        """Ask for an operator set."""
        self.writer.needs(opset, self.op.type)

    @property
    def opset(self) -> int:
        return self.writer.opset

    # --- constants

    def ints(self, *numbers: int) -> OnnxValue:
        """Return a row of int64 numbers."""
        import numpy

        return self.writer.constant(numpy.array(numbers, "int64"))

    def number(self, value: float | bool, dtype: DType = FP32) -> OnnxValue:
        """Return one number, without dims."""
        import numpy

        if dtype.numpy_name == "bfloat16" or dtype.name == "bf16":
            return self.cast(self.writer.constant(numpy.array(value, "float32")), FP32, dtype)
        return self.writer.constant(numpy.array(value, "bool" if dtype is BOOL else dtype.numpy_name))

    def like(self, value: float, slot: str) -> OnnxValue:
        """Return one number in the element type of an operand."""
        return self.number(value, self.dtype(slot))

    def array(self, numbers: Any) -> OnnxValue:
        """Return an array of numpy as a constant."""
        return self.writer.constant(numbers)

    # --- common forms

    def cast(self, x: OnnxValue, source: DType, target: DType) -> OnnxValue:
        """Return ``x`` in another element type; itself if it has it."""
        return x if source is target else self.node("Cast", x, to=self.writer.code_of(target))

    def as_int64(self, slot: str, index: int = 0) -> OnnxValue:
        """Return an operand of integers as int64."""
        numbers = self.known(slot, index) if index == 0 else None
        return self.array(numbers.astype("int64")) if numbers is not None else self.cast(self.x(slot, index), self.spec(slot, index).known_dtype, INT64)

    def row(self, slot: str) -> OnnxValue:
        """Return the numbers of an operand, one or several, as a row of int64."""
        numbers = self.known(slot)
        if numbers is not None:
            return self.array(numbers.astype("int64").reshape(-1))
        value = self.as_int64(slot)
        return value if self.spec(slot).dims is not None and self.rank(slot) == 1 else self.reshape(value, -1)

    def row_of(self, slot: str) -> OnnxValue:
        """Return an operand of several tensors of one number as a row of int64."""
        count = len(self.op.input_slots[slot])
        rows = [self.reshape(self.cast(self.x(slot, index), self.spec(slot, index).known_dtype, INT64), 1) for index in range(count)]
        return rows[0] if count == 1 else self.node("Concat", *rows, axis=0)

    def reshape(self, x: OnnxValue, *dims: int) -> OnnxValue:
        """Return ``x`` in other dims: 0 keeps a dim, -1 is found."""
        return self.node("Reshape", x, self.ints(*dims))

    def transpose(self, x: OnnxValue, axes: Sequence[int]) -> OnnxValue:
        """Return ``x`` with its axes in another order."""
        return x if [*axes] == [*range(len(axes))] else self.node("Transpose", x, perm=[*axes])

    def unsqueeze(self, x: OnnxValue, *axes: int) -> OnnxValue:
        """Return ``x`` with dims of 1 at axes of the result."""
        return self.node("Unsqueeze", x, self.ints(*axes)) if axes else x

    def squeeze(self, x: OnnxValue, *axes: int) -> OnnxValue:
        """Return ``x`` without dims of 1."""
        return self.node("Squeeze", x, self.ints(*axes)) if axes else x

    def slice(self, x: OnnxValue, axis: int, start: int, end: int) -> OnnxValue:
        """Return a part of ``x`` along an axis."""
        return self.node("Slice", x, self.ints(start), self.ints(end), self.ints(axis))

    def shape(self, x: OnnxValue, start: int | None = None, end: int | None = None) -> OnnxValue:
        """Return the dims of ``x`` as a row of int64, or a part of them."""
        if start is None and end is None:
            return self.node("Shape", x)
        if self.opset >= 15:
            return self.node("Shape", x, start=start, end=end)
        return self.slice(self.node("Shape", x), 0, start or 0, end if end is not None else 2**62)

    def reduce(self, operator: str, x: OnnxValue, axes: Sequence[int] | None, keep: bool) -> OnnxValue:
        """Append ReduceMean and its like: the axes are an operand from the set 18 on, of ReduceSum from 13 on."""
        if axes is None:
            return self.node(operator, x, keepdims=int(keep))
        if operator == "ReduceSum" or self.opset >= 18:
            return self.node(operator, x, self.ints(*axes), keepdims=int(keep))
        return self.node(operator, x, axes=[*axes], keepdims=int(keep))
