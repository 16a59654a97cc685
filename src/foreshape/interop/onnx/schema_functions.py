"""Functions of the package ``onnx`` for operators of the standard without a function of import here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from foreshape.interop.onnx.call import ELEMENT_TYPES
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.refused import Refused
from foreshape.language.program.variable import Variable
from foreshape.language.wire.onnx_encode import encode_node, encode_type, tensor_of
from foreshape.language.wire.onnx_model import read_attribute, read_function
from foreshape.language.wire.onnx_records import FunctionRecord, GraphRecord, NodeRecord, TensorRecord, TypeRecord
from foreshape.language.wire.onnx_tensors import array_of

_DOMAINS = ("", "ai.onnx.preview")


def function_of(node: NodeRecord, opset: int, values: Sequence[Any], folder: str | None) -> FunctionRecord | None:
    """Return the function of an operator in an operator set, for operands of these types; None if it has none.

    Raises:
        Refused: the package is not installed.
    """
    if node.domain not in _DOMAINS:
        return None
    try:
        definitions: Any = getattr(importlib.import_module("onnx"), "defs", None)
    except ModuleNotFoundError as error:
        if error.name != "onnx":  # it is there, and lacks something itself
            raise
        definitions = None
    if definitions is None:  # a folder of this name is a module without anything in it
        raise Refused("it is not known here; the package onnx may have its function: pip install 'foreshape[onnx]'")
    if not definitions.has(node.operator, domain=node.domain):
        return None
    try:
        schema = definitions.get_schema(node.operator, opset, node.domain)
    except definitions.SchemaError:  # newer than the operator set
        return None
    data: bytes = b""
    if schema.has_function:
        data = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, opset))
    elif schema.has_context_dependent_function:
        types = [encode_type(_type_of(value)) if value is not None else b"" for value in values]
        record = encode_node(node._replace(attributes=_with_raw_tensors(node.attributes, folder)))
        data = schema.get_context_dependent_function_with_opset_version(_newest(schema.context_dependent_function_opset_versions, opset), record, types)
    if not data:
        return None
    function = read_function(data)
    defaults = {name: attribute.default_value.SerializeToString() for name, attribute in schema.attributes.items()}
    return function._replace(domain=node.domain, defaults={name: read_attribute(attribute) for name, attribute in defaults.items() if attribute})


def _newest(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def _type_of(value: Any) -> TypeRecord:
    if isinstance(value, OnnxConstant) and value.record is not None:
        return TypeRecord("tensor", value.record.code, value.record.dims)
    codes = {dtype: code for code, dtype in ELEMENT_TYPES.items()}
    if isinstance(value, Variable):
        dims = None if value.spec.dims is None else tuple(d if isinstance(d, int) else str(d) for d in value.spec.dims)
        return TypeRecord("tensor", codes[value.spec.known_dtype], dims)
    if isinstance(value, OnnxConstant):
        return TypeRecord("tensor", next(code for dtype, code in codes.items() if dtype.numpy_name == str(value.array.dtype)), value.array.shape)
    raise Refused("a sequence or an optional value as an operand of a function")


def _with_raw_tensors(attributes: Mapping[str, Any], folder: str | None) -> dict[str, Any]:
    """Return attributes whose tensors, in graphs too, have bytes of their own in the form for writing."""

    def raw(tensor: TensorRecord) -> TensorRecord:
        return tensor_of(tensor.name, tensor.code, tensor.dims, numpy.ascontiguousarray(array_of(tensor, folder)).tobytes())

    def graph(record: GraphRecord) -> GraphRecord:
        nodes = tuple(node._replace(attributes=_with_raw_tensors(node.attributes, folder)) for node in record.nodes)
        return record._replace(nodes=nodes, initializers={name: raw(tensor) for name, tensor in record.initializers.items()})

    return {n: raw(v) if isinstance(v, TensorRecord) else graph(v) if isinstance(v, GraphRecord) else v for n, v in attributes.items()}
