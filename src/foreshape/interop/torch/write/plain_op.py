"""`PlainOp`: an op of ours as seen by its rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from foreshape.core.dims import Size
from foreshape.core.spec import BOOL, DType, Spec
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.numbers_code import is_size
from foreshape.interop.torch.write.numbers_code import number_code as number_code
from foreshape.interop.torch.write.stopped_gradients import has_gradient
from foreshape.interop.written_ops import DescribedOp
from foreshape.language.operator.operator import Operator
from foreshape.language.program import Op

if TYPE_CHECKING:
    from foreshape.interop.torch.write.plain_writer import PlainWriter

Flow = Literal["python", "folded", "functional", "selected"]
"""The form of loops and branches: Python's; Python's, with the numbers known before the run as constants, for a trace to follow them; torch's operators of
functions, ``while_loop`` and ``cond``; ``while_loop``, with both ways of a branch run, and their results chosen from."""


class Several(str):
    """An expression of a tuple: one value for each result of the schema, in its order."""


class PlainOp(DescribedOp):
    """An op in the course of its writing.

    Attributes:
        operator: its operator.
        writer: the state of the whole writing.
    """

    __slots__ = ("operator", "writer")

    def __init__(self, writer: PlainWriter, op: Op, operator: Operator) -> None:
        super().__init__(op, operator)
        self.writer, self.operator = writer, operator

    # --- operands and results

    def x(self, slot: str, index: int = 0) -> str:
        """Return the value of an operand, cut from the graph of gradients where the operator gives none."""
        name = self.variable(slot, index).name
        value = self.writer.value(name)
        return f"{value}.detach()" if name in self.writer.learning and not has_gradient(type(self.operator), slot) else value

    def optional(self, slot: str) -> str:
        """Return the value of an operand; ``None`` if it is absent."""
        return self.x(slot) if self.has(slot) else "None"

    def all(self, slot: str) -> list[str]:
        """Return the values of an operand of several."""
        return [self.x(slot, index) for index in range(self.count(slot))]

    def known(self, slot: str, index: int = 0) -> Any:
        """Return the numbers of an operand as an array if they are known before the run, otherwise None."""
        if not self.has(slot):
            return None
        import numpy

        variable = self.variable(slot, index)
        spec = variable.spec
        if self.writer.writes[variable.name] > 1 or spec.value is None or spec.dims is None or not all(isinstance(n, int) for n in (*spec.value, *spec.dims)):
            return None
        return numpy.array(spec.value, "bool" if spec.dtype is BOOL else spec.known_dtype.numpy_name).reshape(spec.dims)

    def spec(self, slot: str, index: int = 0) -> Spec:
        """Return the spec of an operand."""
        return self.writer.spec(self.variable(slot, index))

    def dims(self, slot: str, index: int = 0) -> tuple[Size, ...]:
        """Return the dims of an operand. Raises `Refused` if nothing is known of them."""
        dims = self.spec(slot, index).dims
        if dims is None:
            raise Refused(f"the number of dims of {slot} must be known")
        return dims

    def rank(self, slot: str, index: int = 0) -> int:
        return len(self.dims(slot, index))

    def dtype(self, slot: str, index: int = 0) -> DType:
        """Return the element type of an operand."""
        return self.spec(slot, index).known_dtype

    def offsets(self, slot: str, index: int = 0) -> str | None:
        """Return the sequences of an operand; None if it is not ragged. Raises `Refused` if nothing is known of them."""
        lod = self.spec(slot, index).lod if self.count(slot) > index else None
        if lod is None:
            return None
        offsets = self.writer.offsets_of(lod)
        if offsets is None:
            raise Refused(f"nothing is known of the sequences of {slot}")
        return offsets

    # --- expressions

    def let(self, expression: str) -> str:
        """Give an expression a name, to be used several times."""
        return self.writer.let(expression)

    def act(self, call: str) -> None:
        """Write a call for its effect."""
        self.writer.act(call)

    def several(self, expression: str, count: int) -> list[str]:
        """Give names to the parts of a tuple."""
        return self.writer.several(expression, count)

    def call(self, function: Callable[..., Any], *arguments: object, **settings: object) -> str:
        """Return the call of a function of plain torch code, and write it into the file. Named arguments of None are left out."""
        name = self.writer.used(function)
        parts = [*map(str, arguments), *(f"{k}={v}" for k, v in settings.items() if v is not None)]
        return f"{name}({', '.join(parts)})"

    def device(self) -> str:
        """Return the device of new tensors."""
        return self.writer.device()

    def type(self, dtype: DType) -> str:
        """Return the name of an element type in torch."""
        return f"torch.{'bfloat16' if dtype.name == 'bf16' else dtype.numpy_name}"

    def cast(self, x: str, source: DType, target: DType) -> str:
        """Return ``x`` in another element type; itself if it has it."""
        return x if source is target else f"{x}.to({self.type(target)})"

    def size(self, size: Size) -> str:
        """Return a size as an expression."""
        return self.writer.size(size)

    def sizes(self, dims: Sequence[Size]) -> str:
        """Return sizes as a tuple."""
        return tuple_of([self.size(d) for d in dims])

    def target(self, dims: Sequence[Size]) -> str:
        """Return the arguments of a ``reshape`` to these dims: one open size is -1."""
        opened = [axis for axis, d in enumerate(dims) if not isinstance(d, int)]
        free = opened[-1] if len(opened) == 1 and 0 not in dims else None
        if free is None and opened and 0 not in dims:  # the longest expression need not be written
            long = max(opened, key=lambda axis: len(str(dims[axis])))
            if any(not self.writer.has_size(dims[axis]) for axis in opened) or " " in str(dims[long]) or "/" in str(dims[long]):
                free = next((axis for axis in opened if not self.writer.has_size(dims[axis])), long)
        return ", ".join("-1" if axis == free else self.size(d) for axis, d in enumerate(dims)) if dims else "()"

    def ints(self, slot: str, index: int = 0) -> list[str] | None:
        """Return the whole numbers of an operand as expressions, if they are known up to open sizes; otherwise None."""
        if not self.has(slot):
            return None
        variable = self.variable(slot, index)
        array = self.known(slot, index)
        if array is not None:
            return [str(int(n)) for n in array.reshape(-1).tolist()]
        value = variable.spec.value
        if value is None or self.writer.writes[variable.name] > 1 or not all(is_size(n) and self.writer.has_size(n) for n in value):
            return None
        return [self.size(n) for n in value]

    def int(self, slot: str, index: int = 0) -> str:
        """Return an operand of one whole number as an ``int``."""
        numbers = self.ints(slot, index)
        return numbers[0] if numbers is not None and len(numbers) == 1 else f"int({self.x(slot, index)})"

    def list(self, slot: str) -> str:
        """Return an operand's whole numbers as a list."""
        numbers = self.ints(slot)
        if numbers is not None:
            return f"[{', '.join(numbers)}]"
        return f"{self.x(slot)}.tolist()" if self.rank(slot) == 1 else f"{self.x(slot)}.reshape(-1).tolist()"

    def number(self, value: float, dtype: DType) -> str:
        """Return a number in the words of an element type."""
        if dtype is BOOL:
            return str(bool(value))
        return number_code(float(value)) if dtype.is_floating else str(int(value))


def tuple_of(items: Sequence[str]) -> str:
    """Return a tuple of expressions."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
