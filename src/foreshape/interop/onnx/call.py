"""`Call`: a node of ONNX as seen by its function of import."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from foreshape.core.dims import Size
from foreshape.core.spec import BF16, BOOL, FP16, FP32, FP64, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, UNSIGNED, DType, Spec
from foreshape.errors import FormatError
from foreshape.interop.forms.rules import onnx_reader
from foreshape.interop.onnx.node_origins import note_origin
from foreshape.interop.onnx.unsigned import narrowed, widened
from foreshape.interop.refused import Refused
from foreshape.language.operator.computations import Computation, Transposition
from foreshape.language.program.variable import Variable
from foreshape.language.wire.onnx_records import NodeRecord, TensorRecord
from foreshape.language.wire.onnx_tensors import array_of

if TYPE_CHECKING:
    from foreshape.interop.onnx.importer import Importer

_UNSIGNED = {4: UINT16, 12: UINT32, 13: UINT64}
ELEMENT_TYPES: dict[int, DType] = {1: FP32, 2: UINT8, 3: INT8, 5: INT16, 6: INT32, 7: INT64, 9: BOOL, 10: FP16, 11: FP64, 16: BF16, **_UNSIGNED}
"""ONNX's number of an element type -> ours."""
CODES = {dtype: code for code, dtype in ELEMENT_TYPES.items()}
"""Our element type -> its number in ONNX."""
_NARROW = {**dict.fromkeys((17, 18, 19, 20, 24), "float8"), 21: "uint4", 22: "int4", 23: "float4", 25: "uint2", 26: "int2"}
NAMES = {8: "string", 14: "complex64", 15: "complex128", **_NARROW}
"""The names of element types unknown here."""


def element_type(code: int) -> DType:
    """Return the element type of a number in a file. Raises `Refused` for one unknown here."""
    dtype = ELEMENT_TYPES.get(code)
    if dtype is None:
        raise Refused(f"elements of the type {NAMES.get(code, code)} are not known here")
    return dtype


class Call:
    """A node in the course of its import.

    Attributes:
        node: as in the file.
        opset: the version of its operator set.
        importer: the state of the whole import.
        looked: the operands whose numbers were asked for.
    """

    __slots__ = ("importer", "looked", "node", "opset", "wide")

    def __init__(self, importer: Importer, node: NodeRecord, opset: int) -> None:
        self.importer, self.node, self.opset = importer, node, opset
        self.wide: dict[int, Variable] = {}
        self.looked: set[int] = set()

    def done(self, results: Any) -> tuple[Any, ...]:
        """Return the results of the node's function, as the file has their element types."""
        values = results if results.__class__ is tuple else (results,)
        return narrowed(self, values) if self.wide else values

    # --- operands

    def __len__(self) -> int:
        """Return the number of operands, with the ones left out in the middle."""
        return len(self.node.inputs)

    def has(self, index: int) -> bool:
        """Tell whether an operand is given."""
        return index < len(self.node.inputs) and self.node.inputs[index] != ""

    def value(self, index: int) -> Any:
        """Return an operand: a variable, an `OnnxConstant`, a list (of a sequence), or None for one left out."""
        return self.importer.value(self.node.inputs[index]) if self.has(index) else None

    def x(self, index: int = 0) -> Variable:
        """Return an operand as a variable; a constant is made. Raises `FormatError` if it is left out."""
        variable = self.optional(index)
        if variable is None:
            raise FormatError(f"{self.node.place}: {self.node.operator} needs its operand {index}")
        return variable

    def optional(self, index: int) -> Variable | None:
        """Return an operand as a variable; None if it is left out."""
        value = self.value(index)
        if isinstance(value, list):
            raise Refused(f"its operand {index} is a sequence")
        if value is None:
            return None
        variable = self.importer.variable(value)
        if variable.spec.dtype not in UNSIGNED:
            return variable
        if index not in self.wide:
            self.wide[index] = widened(self, variable)
        return self.wide[index]

    def all(self, first: int = 0) -> list[Variable]:
        """Return all operands from ``first`` on as variables."""
        return [self.x(index) for index in range(first, len(self.node.inputs))]

    def constant(self, index: int) -> Any:
        """Return an operand as an array if its numbers are known before the run, otherwise None."""
        self.looked.add(index)
        value = self.value(index)
        return None if value is None or isinstance(value, list) else self.importer.numbers(value)

    def number(self, index: int) -> tuple[float, int] | None:
        """Return the one fp32 number of a constant operand, no weight, and its number of dims; None if it is something else."""
        self.looked.add(index)
        value = self.value(index)
        if value is None or isinstance(value, (list, tuple, Variable)):
            return None
        record = value.record
        if (record.code != 1 or any(d != 1 for d in record.dims)) if record is not None else (value.array.dtype != "float32" or value.array.size != 1):
            return None
        array = self.importer.numbers(value)
        if array.ndim and self.importer.role(value, 1) == "weight":
            return None
        return float(array.reshape(-1)[0]), array.ndim

    def ints(self, index: int, name: str = "") -> list[int] | None:
        """Return an operand as whole numbers; None if it is left out. With ``name`` an attribute of older operator sets stands for it.

        Raises:
            Refused: its numbers are not known before the run.
        """
        if not self.has(index):
            attribute = self.attribute(name) if name else None
            elements: Any = attribute if attribute.__class__ is list else [attribute]
            return None if attribute is None else [int(n) for n in elements]
        array = self.constant(index)
        if array is None:
            raise Refused(f"its operand {index} ({self.node.inputs[index][:60]}) must be known before the run")
        return [int(n) for n in array.reshape(-1)]

    def computed(self, index: int) -> Variable | None:
        """Return an operand as a variable where it is given and its numbers are not known before the run, otherwise None."""
        return self.x(index) if self.has(index) and self.constant(index) is None else None

    def sizes(self, index: int) -> tuple[Size, ...] | None:
        """Return the known numbers of an operand of whole numbers, symbols among them; None if they are not known."""
        self.looked.add(index)
        value = self.value(index)
        if isinstance(value, Variable):
            return value.spec.value
        array = None if value is None else self.importer.numbers(value)
        return None if array is None else tuple(int(n) for n in array.reshape(-1))

    # --- attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, text, list, array, or graph."""
        value = self.node.attributes.get(name, default)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, TensorRecord):
            return array_of(value, self.importer.folder)
        elements: Any = value if value.__class__ is list else ()
        return [text.decode("utf-8", "replace") for text in elements] if elements and isinstance(elements[0], bytes) else value

    # --- ops

    def through(self, operator: str, values: Sequence[Any], opset: int, **attributes: Any) -> Any:
        """Import a node of another operator of ONNX, over the values of its operands (None for one left out); returns its results."""
        rule = onnx_reader("", operator, opset)
        if rule is None:
            raise Refused(f"{operator} of operator set {opset}")
        scope = {f"\0{index}": value for index, value in enumerate(values) if value is not None}
        names = tuple(f"\0{index}" if value is not None else "" for index, value in enumerate(values))
        self.importer.scopes.append(scope)
        try:
            block = self.importer.block
            first = len(block.ops)
            inner = Call(self.importer, self.node._replace(operator=operator, domain="", inputs=names, attributes=attributes), opset)
            results = rule(inner)
            outputs = results if results.__class__ is tuple else (results,)
            inner.node = inner.node._replace(outputs=tuple(f"\0{index}" if result is not None else "" for index, result in enumerate(outputs)))
            note_origin(inner, outputs, block.ops[first:])
            return results
        finally:
            self.importer.scopes.pop()

    def op(self, type: str, attrs: dict[str, Any] | None = None, **inputs: Any) -> Any:
        """Append an op of ours, and return its result, or a tuple of several."""
        return self.importer.block.apply(type, {slot: v for slot, v in inputs.items() if v is not None}, attrs)

    def binary(self, type: str, x: Variable, y: Variable) -> Variable:
        """Append an elementwise op of two operands; each is broadcast to the other from the back."""
        return self.op(type, {"axis": -1}, X=x, Y=y) if type.startswith("elementwise_") else self.op(type, X=x, Y=y)

    def cast(self, x: Variable, dtype: DType) -> Variable:
        """Return ``x`` in an element type; itself if it has it."""
        source = x.spec.known_dtype
        return x if source is dtype else self.op("cast", {"in_dtype": source.code, "out_dtype": dtype.code}, X=x)

    def full(self, shape: Sequence[int], dtype: DType, number: float | bool) -> Variable:
        """Return a tensor of equal numbers."""
        exact = repr(number) if isinstance(number, float) and math.isfinite(number) else str(number) if isinstance(number, int) and abs(number) > 2**24 else ""
        return self.op("fill_constant", {"shape": [*shape], "dtype": dtype.code, "value": float(number), "str_value": exact if dtype is not BOOL else ""})

    def like(self, number: float, x: Variable) -> Variable:
        """Return one number in the element type of ``x``, to be broadcast."""
        return self.full([1] if x.spec.dims else [], x.spec.known_dtype, number)

    def reshape(self, x: Variable, dims: Sequence[int]) -> Variable:
        """Return ``x`` in other dims: 0 keeps a dim, -1 is found."""
        return self.op("reshape2", {"shape": [*dims]}, X=x)[0]

    def reshape_to(self, x: Variable, dims: Variable) -> Variable:
        """Return ``x`` in computed dims, a row of whole numbers."""
        return self.op("reshape2", {"shape": [0]}, X=x, Shape=dims)[0]

    def transpose(self, x: Variable, axes: Sequence[int]) -> Variable:
        """Return ``x`` with its axes in another order."""
        return x if [*axes] == [*range(len(axes))] else self.op("transpose2", {"axis": [*axes]}, X=x)[0]

    def unsqueeze(self, x: Variable, *axes: int) -> Variable:
        """Return ``x`` with dims of 1 at axes of the result."""
        return self.op("unsqueeze2", {"axes": [*axes]}, X=x)[0] if axes else x

    def squeeze(self, x: Variable, *axes: int) -> Variable:
        """Return ``x`` without dims of 1."""
        return self.op("squeeze2", {"axes": [*axes]}, X=x)[0] if axes else x

    def shape_of(self, x: Variable) -> Variable:
        """Return the dims of ``x``, int64."""
        return self.cast(self.op("shape", Input=x), INT64)

    @staticmethod
    def rank(x: Variable) -> int:
        """Return the number of dims. Raises `Refused` if it is not known before the run."""
        if x.spec.dims is None:
            raise Refused(f"the number of dims of {x.name} is not known before the run")
        return x.spec.rank

    def axis(self, number: int, rank: int) -> int:
        """Return an axis counted from the front. Raises `FormatError` out of range."""
        if not -rank <= number < max(rank, 1):
            raise FormatError(f"{self.node.place}: {self.node.operator}: the axis must be in [-{rank}, {rank}); seen {number}")
        return number % rank if rank else 0


def spec_of(x: Variable) -> Spec:
    """Return the spec of a variable, as far as it is known."""
    return x.spec


_Computation = TypeVar("_Computation", bound=Computation)


def made_of(x: Variable, kind: type[_Computation]) -> tuple[Variable | None, _Computation | None]:
    """Return the first operand of the op of this block that made ``x``, and its computation; two times None if it computes another kind."""
    op = x.op
    computation = op.computes(kind) if op is not None and op.block is x.block else None
    return (None, None) if op is None or computation is None else (op.block.find(op.operand(0)), computation)


def transposed(x: Variable) -> tuple[Variable | None, list[int]]:
    """Return the tensor that an op has transposed to ``x``, and the order of its axes; None and nothing if it was not."""
    source, transposition = made_of(x, Transposition)
    return source, [a % len(transposition.axes) for a in transposition.axes] if transposition is not None else []
