"""Small constants as ops: a fill of equal numbers, or the numbers one by one."""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import BOOL, FP32, INT64, UINT64, UNSIGNED, DType
from foreshape.interop.onnx.node_origins import SmallConstant
from foreshape.language.program import Variable
from foreshape.language.program.block import Block


def write_small(block: Block, name: str, dtype: DType, dims: list[int], array: Any) -> Variable:
    """Append ops for the numbers of an array, its elements of the type ``dtype``, and return their result."""
    first, flat = len(block.ops), array.reshape(-1)
    if flat.size and dtype not in UNSIGNED and (flat == flat[0]).all():
        number = flat[0].item()
        text = repr(number) if dtype is not BOOL and number == number and abs(number) != float("inf") else ""
        value = float(number)
        attrs = {"shape": dims, "dtype": dtype.code, "value": value if not abs(value) > 3.4e38 or abs(value) == float("inf") else 0.0, "str_value": text}
        op = block.append_op("fill_constant", {}, {"Out": name}, attrs)
    else:
        field = {"bool": "bool_values", "int32": "int32_values", "int64": "int64_values", "fp32": "fp32_values", "fp64": "fp64_values"}.get(dtype.name)
        work_dtype = dtype if field is not None else INT64 if dtype.is_integer else None
        flat = flat.view("int64") if dtype is UINT64 else flat  # the same bits
        values = [int(v) for v in flat.tolist()] if dtype is BOOL or dtype.is_integer else [float(v) for v in flat.tolist()]
        if field is not None:
            op = block.append_op("assign_value", {}, {"Out": name}, {"shape": dims, "dtype": dtype.code, field: values})
        else:
            work_dtype = work_dtype or FP32
            held_as = "int64_values" if work_dtype is INT64 else "fp32_values"
            constant = block.append_op("assign_value", {}, None, {"shape": dims, "dtype": work_dtype.code, held_as: values}, prefix="constant")
            op = block.append_op("cast", {"X": constant.output("Out")}, {"Out": name}, {"in_dtype": work_dtype.code, "out_dtype": dtype.code})
    for constant in block.ops[first:]:
        constant.origin = SmallConstant(constant.attributes)
    variable = block.vars[op.output("Out") or name]
    variable.stop_gradient = True
    return variable
