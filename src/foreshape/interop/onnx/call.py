"""`Call`: a node of ONNX as seen by its function of import."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from foreshape.dims import Size
from foreshape.errors import FormatError
from foreshape.interop.forms.rules import onnx_reader
from foreshape.interop.onnx.node_origins import note_origin
from foreshape.interop.onnx.unsigned import narrowed, widened
from foreshape.interop.refused import Refused
from foreshape.operator.computations import Computation, Transposition
from foreshape.program.variable import Variable
from foreshape.spec import BF16, BOOL, FP16, FP32, FP64, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, UNSIGNED, DType, Spec
from foreshape.wire.onnx_records import NodeRecord, TensorRecord
from foreshape.wire.onnx_tensors import array_of

if TYPE_CHECKING:
    from foreshape.interop.onnx.importer import Importer

_UNSIGNED = {4: UINT16, 12: UINT32, 13: UINT64}
ELEMENT_TYPES: dict[int, DType] = {1: FP32, 2: UINT8, 3: INT8, 5: INT16, 6: INT32, 7: INT64, 9: BOOL, 10: FP16, 11: FP64, 16: BF16, **_UNSIGNED}
"""ONNX's number of an element type -> ours."""
CODES = {of: code for code, of in ELEMENT_TYPES.items()}
"""Our element type -> its number in ONNX."""
_NARROW = {**dict.fromkeys((17, 18, 19, 20, 24), "float8"), 21: "uint4", 22: "int4", 23: "float4", 25: "uint2", 26: "int2"}
NAMES = {8: "string", 14: "complex64", 15: "complex128", **_NARROW}
"""The names of element types unknown here."""


def element_type(code: int) -> DType:
    """Return the element type of a number in a file. Raises `Refused` for one unknown here."""
    found = ELEMENT_TYPES.get(code)
    if found is None:
        raise Refused(f"elements of the type {NAMES.get(code, code)} are not known here")
    return found


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
        given = results if results.__class__ is tuple else (results,)
        return narrowed(self, given) if self.wide else given

    # --- operands

    def __len__(self) -> int:
        """Return the number of operands, with the ones left out in the middle."""
        return len(self.node.inputs)

    def has(self, at: int) -> bool:
        """Tell whether an operand is given."""
        return at < len(self.node.inputs) and self.node.inputs[at] != ""

    def value(self, at: int) -> Any:
        """Return an operand: a variable, an `OnnxConstant`, a list (of a sequence), or None for one left out."""
        return self.importer.value(self.node.inputs[at]) if self.has(at) else None

    def x(self, at: int = 0) -> Variable:
        """Return an operand as a variable; a constant is made. Raises `FormatError` if it is left out."""
        found = self.optional(at)
        if found is None:
            raise FormatError(f"{self.node.place}: {self.node.operator} needs its operand {at}")
        return found

    def optional(self, at: int) -> Variable | None:
        """Return an operand as a variable; None if it is left out."""
        found = self.value(at)
        if isinstance(found, list):
            raise Refused(f"its operand {at} is a sequence")
        if found is None:
            return None
        variable = self.importer.variable(found)
        if variable.spec.dtype not in UNSIGNED:
            return variable
        if at not in self.wide:
            self.wide[at] = widened(self, variable)
        return self.wide[at]

    def all(self, first: int = 0) -> list[Variable]:
        """Return all operands from ``first`` on as variables."""
        return [self.x(at) for at in range(first, len(self.node.inputs))]

    def constant(self, at: int) -> Any:
        """Return an operand as an array if its numbers are known before the run, otherwise None."""
        self.looked.add(at)
        found = self.value(at)
        return None if found is None or isinstance(found, list) else self.importer.numbers(found)

    def number(self, at: int) -> tuple[float, int] | None:
        """Return the one fp32 number of a constant operand, no weight, and its number of dims; None if it is something else."""
        self.looked.add(at)
        found = self.value(at)
        if found is None or isinstance(found, (list, tuple, Variable)):
            return None
        record = found.record
        if (record.code != 1 or any(d != 1 for d in record.dims)) if record is not None else (found.array.dtype != "float32" or found.array.size != 1):
            return None
        array = self.importer.numbers(found)
        if array.ndim and self.importer.role(found, 1) == "weight":
            return None
        return float(array.reshape(-1)[0]), array.ndim

    def ints(self, at: int, name: str = "") -> list[int] | None:
        """Return an operand as whole numbers; None if it is left out. With ``name`` an attribute of older operator sets stands for it.

        Raises:
            Refused: its numbers are not known before the run.
        """
        if not self.has(at):
            given = self.attribute(name) if name else None
            listed: Any = given if given.__class__ is list else [given]
            return None if given is None else [int(n) for n in listed]
        found = self.constant(at)
        if found is None:
            raise Refused(f"its operand {at} ({self.node.inputs[at][:60]}) must be known before the run")
        return [int(n) for n in found.reshape(-1)]

    def computed(self, at: int) -> Variable | None:
        """Return an operand as a variable where it is given and its numbers are not known before the run, otherwise None."""
        return self.x(at) if self.has(at) and self.constant(at) is None else None

    def sizes(self, at: int) -> tuple[Size, ...] | None:
        """Return the known numbers of an operand of whole numbers, symbols among them; None if they are not known."""
        self.looked.add(at)
        found = self.value(at)
        if isinstance(found, Variable):
            return found.spec.value
        known = None if found is None else self.importer.numbers(found)
        return None if known is None else tuple(int(n) for n in known.reshape(-1))

    # --- attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, text, list, array, or graph."""
        found = self.node.attributes.get(name, default)
        if isinstance(found, bytes):
            return found.decode("utf-8", "replace")
        if isinstance(found, TensorRecord):
            return array_of(found, self.importer.folder)
        listed: Any = found if found.__class__ is list else ()
        return [one.decode("utf-8", "replace") for one in listed] if listed and isinstance(listed[0], bytes) else found

    # --- ops

    def through(self, operator: str, values: Sequence[Any], opset: int, **attributes: Any) -> Any:
        """Import a node of another operator of ONNX, over the values of its operands (None for one left out); returns its results."""
        rule = onnx_reader("", operator, opset)
        if rule is None:
            raise Refused(f"{operator} of operator set {opset}")
        held = {f"\0{at}": value for at, value in enumerate(values) if value is not None}
        names = tuple(f"\0{at}" if value is not None else "" for at, value in enumerate(values))
        self.importer.scopes.append(held)
        try:
            block = self.importer.block
            first = len(block.ops)
            inner = Call(self.importer, self.node._replace(operator=operator, domain="", inputs=names, attributes=attributes), opset)
            results = rule(inner)
            listed = results if results.__class__ is tuple else (results,)
            inner.node = inner.node._replace(outputs=tuple(f"\0{at}" if one is not None else "" for at, one in enumerate(listed)))
            note_origin(inner, listed, block.ops[first:])
            return results
        finally:
            self.importer.scopes.pop()

    def op(self, type: str, attrs: dict[str, Any] | None = None, **inputs: Any) -> Any:
        """Append an op of ours, and return its result, or a tuple of several."""
        return self.importer.block.apply(type, {slot: v for slot, v in inputs.items() if v is not None}, attrs)

    def binary(self, type: str, x: Variable, y: Variable) -> Variable:
        """Append an elementwise op of two operands; each is broadcast to the other from the back."""
        return self.op(type, {"axis": -1}, X=x, Y=y) if type.startswith("elementwise_") else self.op(type, X=x, Y=y)

    def cast(self, x: Variable, of: DType) -> Variable:
        """Return ``x`` in an element type; itself if it has it."""
        now = x.spec.known_dtype
        return x if now is of else self.op("cast", {"in_dtype": now.code, "out_dtype": of.code}, X=x)

    def full(self, shape: Sequence[int], of: DType, number: float | bool) -> Variable:
        """Return a tensor of equal numbers."""
        exact = repr(number) if isinstance(number, float) and math.isfinite(number) else str(number) if isinstance(number, int) and abs(number) > 2**24 else ""
        return self.op("fill_constant", {"shape": [*shape], "dtype": of.code, "value": float(number), "str_value": exact if of is not BOOL else ""})

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

    def axis(self, given: int, rank: int) -> int:
        """Return an axis counted from the front. Raises `FormatError` out of range."""
        if not -rank <= given < max(rank, 1):
            raise FormatError(f"{self.node.place}: {self.node.operator}: the axis must be in [-{rank}, {rank}); seen {given}")
        return given % rank if rank else 0


def spec_of(x: Variable) -> Spec:
    """Return the spec of a variable, as far as it is known."""
    return x.spec


_Computation = TypeVar("_Computation", bound=Computation)


def made_of(x: Variable, kind: type[_Computation]) -> tuple[Variable | None, _Computation | None]:
    """Return the first operand of the op of this block that made ``x``, and its computation; two times None if it computes another kind."""
    made = x.op
    found = made.computes(kind) if made is not None and made.block is x.block else None
    return (None, None) if made is None or found is None else (made.block.find(made.operand(0)), found)


def transposed(x: Variable) -> tuple[Variable | None, list[int]]:
    """Return the tensor that an op has transposed to ``x``, and the order of its axes; None and nothing if it was not."""
    source, found = made_of(x, Transposition)
    return source, [a % len(found.axes) for a in found.axes] if found is not None else []
