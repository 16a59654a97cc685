"""The inputs of a graph: variables to be fed, with symbols of the names of their dims."""

from __future__ import annotations

import re

from foreshape.core.dims import symbol, symbol_after
from foreshape.core.spec import LOD_TENSOR, Spec
from foreshape.errors import FormatError
from foreshape.interop.onnx.call import element_type
from foreshape.interop.refused import Refused
from foreshape.language.program import Program, Variable
from foreshape.language.wire.onnx_records import TypeRecord


def input_of(program: Program, name: str, type: TypeRecord | None) -> Variable:
    """Return a new variable for an input. Raises `FormatError` if it is no tensor of known element type and number of dims."""
    if type is None or type.kind != "tensor":
        raise FormatError(f"the input {name[:100]!r} is a {type.kind if type is not None else 'value without a type'}: tensors alone are fed here")
    try:
        dtype = element_type(type.code)
    except Refused as refused:
        raise FormatError(f"the input {name[:100]!r}: {refused}") from None
    if type.dims is None:
        raise FormatError(f"the input {name[:100]!r} has no shape: its number of dims must be known before the run")
    dims = [
        d if isinstance(d, int) else symbol(symbol_name(d)) if isinstance(d, str) and symbol_name(d) else symbol_after(f"{name}.{axis}")
        for axis, d in enumerate(type.dims)
    ]
    return program.global_block.create_variable(name, Spec(LOD_TENSOR, dtype, tuple(dims)), need_check_feed=True, stop_gradient=True)


def symbol_name(text: str) -> str:
    """Return the name of a symbol for a dim's name: letters, digits and underscores; empty where it has no letter, as "?" and "-1"."""
    name = re.sub(r"\W+", "_", text).strip("_")[:200]
    return "" if name.isdigit() else name
