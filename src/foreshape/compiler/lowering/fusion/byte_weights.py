"""Constant weights kept as bytes, for rewrites of frozen products and convolutions; no rewrite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreshape.compiler.lowering.fusion.graph import Graph, computes, fused_as, spec_of
from foreshape.compiler.lowering.kernel_calls import Argument, Value
from foreshape.core.data_class import data_class
from foreshape.core.dims import Size
from foreshape.core.spec import FP32, INT8
from foreshape.language.operator.byte_computations import Dequantization, GridRounding, RangeRounding
from foreshape.language.operator.computations import Reshape
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.kernels.onednn_packed_bytes import ByteWeight


@data_class(frozen=True, eq=False)
class FrozenWeight:
    """A weight made of frozen persistables.

    Attributes:
        values: the persistables.
        bytes: makes of their tensors the `ByteWeight`, with one step for each entry of an axis; None for a weight that is fp32.
    """

    values: tuple[Value, ...]
    bytes: Callable[..., ByteWeight] | None = None


def byte_weight(graph: Graph, value: Argument, axis: int) -> FrozenWeight | None:
    """Return a weight as made of int8 numbers with steps along an axis, or one for all."""
    maker = graph.maker(value)
    computation = computes(maker, Dequantization)
    if maker is None or computation is None or computation.axis not in (-1, axis) or not graph.makes_one(maker):
        return None
    numbers, scale = maker.arguments[:2]
    spec, narrow = spec_of(numbers), spec_of(scale)
    if spec is None or narrow is None or spec.dtype is not INT8 or narrow.dtype is not FP32 or not isinstance(numbers, Value) or not isinstance(scale, Value):
        return None
    if not graph.is_frozen(numbers) or not graph.is_frozen(scale):
        return None
    limit = computation.most

    def bytes(weight: Any, scale: Any) -> ByteWeight:
        return ByteWeight(weight, (scale * (1.0 / limit)).reshape(-1).expand(weight.shape[axis]).contiguous())

    return FrozenWeight((numbers, scale), bytes)


def packed_bytes(graph: Graph, x: Argument, elements: Size, of_bytes: bool) -> Size:
    """Return the bytes of a packed weight of so many elements for an operand x.

    Args:
        of_bytes: the weight is of bytes: it is packed as such for an operand of bytes, and as fp32 for any other.
    """
    return elements if of_bytes and _is_of_bytes(graph, x) else 4 * elements


def _is_of_bytes(graph: Graph, x: Argument) -> bool:
    """Return True if a kernel reads a value as bytes here."""
    engine, maker = library(), graph.maker(x)
    while computes(maker, Reshape) is not None and maker is not None:
        maker = graph.maker(maker.arguments[0])
    is_rounded = fused_as(maker, GridRounding) is not None or fused_as(maker, RangeRounding) is not None
    return is_rounded and engine is not None and engine.multiplies_bytes
