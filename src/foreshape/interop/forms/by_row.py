"""The four directions of the rows of `operators.txt`: nodes of ONNX and calls of torch, read and written."""

from __future__ import annotations

import re
from typing import Any, Final

from foreshape.interop.forms.rows import OperatorRow
from foreshape.interop.forms.rules import of_rows
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write.numbers_code import number_code
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.operator.registry import get
from foreshape.language.program import Variable

_NAME: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(=])")
"""A word of torch code for a slot or an attribute: no function, module or keyword."""


@of_rows("from onnx")
def read_node(c: Call, *, row: OperatorRow) -> Any:
    """Read a node of ONNX."""
    signature, schema = row.signatures["from onnx"], get(row.type).schema
    slots = signature.slots if signature.slots is not None else tuple(o.name for o in schema.operands)
    operands = {slot: c.x(index) if not index else c.optional(index) for index, slot in enumerate(slots)}
    results = c.op(row.type, {a.attribute: c.attribute(a.name, a.default) for a in signature.arguments}, **operands)
    return results[0] if results.__class__ is tuple else results


@of_rows("to onnx")
def write_node(w: WrittenOp, *, row: OperatorRow) -> OnnxValue:
    """Write an op as a node of ONNX. Whole numbers are cast where the result is of floats."""
    signature, schema = row.signatures["to onnx"], get(row.type).schema
    dtype_out = w.result(schema.results[0].name).known_dtype
    values: list[OnnxValue | None] = []
    for slot in signature.slots if signature.slots is not None else tuple(o.name for o in schema.operands):
        dtype = w.dtype(slot)
        values.append(w.cast(w.x(slot), dtype, dtype_out) if dtype_out.is_floating and dtype.is_integer else w.x(slot))
    return w.node(signature.name, *values, **{a.name: _number(getattr(w.of, a.attribute), a.default) for a in signature.arguments})


def _number(value: Any, default: Any) -> Any:
    return float(value) if isinstance(default, float) else int(value)


@of_rows("from torch")
def read_call(t: TorchCall, *arguments: Any, row: OperatorRow, **named: Any) -> Variable:
    """Read a call of ATen."""
    signature = row.signatures["from torch"]
    schema = get(row.type).schema
    slots = signature.slots if signature.slots is not None else (schema.operands[0].name,)
    operands = {slot: t.tensor(value, t.dtype) for slot, value in zip(slots, arguments, strict=False)}
    numbers = arguments[len(slots) :]
    attributes = {
        a.attribute: _number(numbers[index] if index < len(numbers) else named.get(a.name, a.default), a.default) for index, a in enumerate(signature.arguments)
    }
    return t.op(row.type, attributes, **operands)


@of_rows("to torch")
def write_code(w: PlainOp, *, row: OperatorRow) -> str:
    """Write an op as torch code. Whole numbers are cast where the result is of floats."""
    schema = w.operator.schema
    dtype_out = w.result(schema.results[0].name).known_dtype

    def value(match: re.Match[str]) -> str:
        word = match[0]
        if word in schema.operand_names:
            dtype = w.dtype(word)
            return w.cast(w.x(word), dtype, dtype_out) if dtype_out.is_floating and dtype.is_integer else w.x(word)
        if word not in schema.attributes:
            return word
        number = getattr(w.of, word)
        return number_code(number) if isinstance(number, float) else repr(number)

    return _NAME.sub(value, row.code)
