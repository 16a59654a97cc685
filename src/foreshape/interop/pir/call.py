"""`PirCall`: an op of PaddlePaddle 3 as seen by its function of import."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from foreshape.core.spec import BOOL, LOD_TENSOR, DType
from foreshape.interop.pir.by_table import write_by_row
from foreshape.interop.pir.constants import KnownTensor, as_numbers, code_of, element_type_of, integer, numbers_of, real
from foreshape.interop.pir.pir_graph import GraphOp
from foreshape.interop.pir.table import row_of
from foreshape.interop.pir.translation import Translation
from foreshape.language.program.declared import Declared
from foreshape.language.program.variable import Variable


class PirCall:
    """An op in the course of its import: layers and Python's operators append to the block of the translation.

    Attributes:
        translation: the state of the whole import.
        op: as in the file.
    """

    __slots__ = ("op", "translation")

    def __init__(self, translation: Translation, op: GraphOp) -> None:
        self.translation, self.op = translation, op

    @property
    def name(self) -> str:
        """Return the operator's name, without its dialect."""
        return self.op.name

    # --- operands and results

    def x(self, index: int = 0) -> Variable:
        """Return an operand, one tensor; a constant is made. Raises `FormatError` if it is left out, or a list."""
        return self.translation.block.var(self.translation.tensor(self.op, index))

    def optional(self, index: int) -> Variable | None:
        """Return an operand, one tensor; None if it is left out."""
        name = self.translation.optional(self.op, index)
        return None if name is None else self.translation.block.var(name)

    def all(self, index: int = 0) -> list[Variable]:
        """Return an operand, a list of tensors or one."""
        return [self.translation.block.var(name) for name in self.translation.tensors(self.op, index)]

    def is_list(self, index: int) -> bool:
        """Tell whether an operand is a list."""
        return isinstance(self.translation.operand(self.op, index), tuple)

    def constant(self, index: int) -> KnownTensor | None:
        """Return an operand if it is a constant."""
        operand = self.translation.operand(self.op, index)
        return operand if isinstance(operand, KnownTensor) else None

    def numbers(self, index: int) -> KnownTensor | None:
        """Return an operand if its numbers are known from the file, also as a list of constants."""
        return as_numbers(self.translation.operand(self.op, index))

    def dtype(self, index: int = 0) -> DType:
        """Return the element type of an operand, as the file has it."""
        return self.translation.dtype_of(self.translation.operand(self.op, index))

    def is_read(self, index: int) -> bool:
        """Tell whether any op reads a result."""
        return index < len(self.op.results) and self.op.results[index] in self.translation.used

    # --- attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or ``default`` if the op does not have it."""
        return self.op.attributes.get(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is true or false."""
        return self.op.attributes.get(name, default) is True

    def real(self, name: str, default: float) -> float:
        """Return an attribute as a number. Raises `Refused` for anything else."""
        return real(self.op.attributes.get(name, default))

    def integer(self, name: str, default: int) -> int:
        """Return an attribute as a whole number. Raises `Refused` for anything else."""
        return integer(self.op.attributes.get(name, default))

    def integers(self, name: str) -> list[int]:
        """Return an attribute as a list of whole numbers, of one where it is no list; none if it is left out. Raises `Refused` for anything else."""
        values = self.op.attributes.get(name)
        return [integer(number) for number in numbers_of(values if values is None or values.__class__ is list else [values])]

    def elements(self, name: str, dtype: DType) -> list[Any]:
        """Return an attribute as a list of numbers of an element type. Raises `Refused` for anything else."""
        convert: Any = bool if dtype is BOOL else integer if dtype.is_integer else real
        return [convert(number) for number in numbers_of(self.op.attributes.get(name))]

    def element_type(self, otherwise: DType) -> DType:
        """Return the element type in the attribute dtype; ``otherwise`` if it says none."""
        return element_type_of(self.op, otherwise)

    def element_code(self) -> int:
        """Return the number of the element type in the attribute dtype; -1 if it says none."""
        return code_of(str(self.op.attributes.get("dtype") or "Undefined"))

    # --- ops

    def apply(self, type: str, attrs: Mapping[str, Any] | None = None, **inputs: Any) -> Any:
        """Append an op of ours, and return its result, or a tuple of several."""
        return self.translation.block.apply(type, {slot: operand for slot, operand in inputs.items() if operand is not None}, attrs)

    def cast(self, x: Variable, source: DType, target: DType) -> Variable:
        """Return ``x``, of the element type ``source``, in another one; itself if it has it."""
        if x.declared is None:
            x.declared = Declared(LOD_TENSOR, source, None)
        return x if source is target else self.apply("cast", {"in_dtype": source.code, "out_dtype": target.code}, X=x)

    def append(self, type: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
        """Append an op of ours with results of the op in the file."""
        self.translation.block.append_op(type, inputs, outputs, attrs)

    def output(self, index: int) -> str:
        """Make the variable of a result, one tensor, and return its name."""
        return self.translation.output(self.op, index)

    def outputs(self, index: int) -> tuple[str, ...]:
        """Make the variables of a result, a list of tensors, and return their names."""
        return self.translation.outputs(self.op, index)

    def temporaries(self, count: int, stem: str = "") -> list[Variable]:
        """Make variables for unread results; ``stem`` begins their names, by default the operator's name."""
        t = self.translation
        return [t.declare(t.fresh(stem or self.op.name), None) for _ in range(count)]

    def split(self, x: Variable, count: int, axis: int) -> list[Variable]:
        """Return ``x`` in so many equal parts along an axis; itself of one."""
        if count == 1:
            return [x]
        parts = self.temporaries(count, "split")
        self.append("split", {"X": x}, {"Out": parts}, {"num": count, "axis": axis})
        return parts

    def fill(self, dtype: DType, dims: Sequence[int], number: Any, shape: Mapping[str, Sequence[Variable]]) -> None:
        """Fill the result with a number exactly as the element type holds it, of known or computed dims."""
        self.translation.fill(dtype, dims, number, self.output(0), {slot: tuple([size.name for size in sizes]) for slot, sizes in shape.items()})

    def known(self, dtype: DType, dims: tuple[int, ...], values: list[Any], fills: bool = False) -> KnownTensor:
        """Return a constant, made by an op only where a tensor is needed; ``fills``: of one number for all elements."""
        return KnownTensor(dtype, dims, values, fills, self.translation.block.idx, self.translation.scope)

    def constant_tensor(self, dtype: DType, dims: tuple[int, ...], number: Any) -> Variable:
        """Return a tensor of equal numbers."""
        return self.translation.block.var(self.translation.constant_tensor(None, self.known(dtype, dims, [number], fills=True)))

    def by_row(
        self,
        attrs: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        type: str = "",
        without: Collection[str] = (),
        skipped: int = -1,
        in_place: bool = False,
    ) -> None:
        """Write the op by its row of the table, with its results.

        Args:
            attrs: further attributes.
            name: the operator with the row; by default its own.
            type: the operator here; by default the row's.
            without: attributes without a meaning.
            skipped: an operand not in the row.
            in_place: write new values of state where it is read, also where it is no parameter.
        """
        row = row_of(name or self.op.name)
        assert row is not None, self.op.name
        op = self.op
        if skipped >= 0:
            op = op._replace(operands=op.operands[:skipped] + op.operands[skipped + 1 :])
        write_by_row(self.translation, op, row._replace(type=type or row.type, only={**row.only, **dict.fromkeys(without)}), attrs, in_place)

    def raw(self, index: int, dtype: DType | None = None, dims: tuple[int, ...] | None = None) -> Variable:
        """Take a result written by the row under a name of its own, in this element type: the function makes the result itself of it."""
        t = self.translation
        name = str(t.value(self.op.results[index]))
        raw = t.temporary(self.op.name, None if dtype is None else Declared(LOD_TENSOR, dtype, dims))
        next(op for op in reversed(t.block.ops) if name in op.output_names()).rename_output(name, raw)
        t.drop(name)
        return t.block.var(raw)
