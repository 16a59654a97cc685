"""The places of a network where numbers of 8 bits pay: its convolutions and products with constant weights, and the values they read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from foreshape.core.data_class import data_class
from foreshape.core.spec import FP32, LOD_TENSOR
from foreshape.errors import SchemaError
from foreshape.language.operator.computations import (
    Affine,
    Computation,
    Concat,
    FlattenedProduct,
    FrozenBatchNorm,
    ImageConvolution,
    ImagePooling,
    MatrixProduct,
    NearestUpsample,
    PaddedImageConvolution,
    Product,
    Reshape,
    Scaling,
    Sum,
)
from foreshape.language.program import Block, Op, Program
from foreshape.language.program.unknown import is_unknown


@data_class(frozen=True)
class QuantizedLayer:
    """A convolution or a product of rows with a constant fp32 weight.

    Attributes:
        name: the name of the op's result, for messages.
        x: its operand beside the weight.
        axis: the axis of the weight with the channels of the result.
    """

    op: Op
    name: str
    x: str
    weight: str
    axis: int


_Layer = TypeVar("_Layer", bound=QuantizedLayer)


@data_class(frozen=True)
class Points:
    """The layers to quantize and the values to round.

    Attributes:
        scales: value -> the name of its scale, equal for values that share one: a maximum of numbers of 8 bits is one of them.
    """

    layers: tuple[QuantizedLayer, ...]
    scales: dict[str, str]

    def shared(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return the scale of each value, from the scales measured for each alone: the largest of those that share one."""
        largest: dict[str, float] = {}
        for name, group in self.scales.items():
            largest[group] = max(largest.get(group, 0.0), measured[name])
        return {name: largest[group] for name, group in self.scales.items()}


def refuse_unquantizable(program: Program) -> None:
    """Raise `SchemaError` if the program has unknown operators, gradients or updates."""
    unknown = sorted({op.type for op in program.all_ops() if is_unknown(op)})
    if unknown:
        raise SchemaError(f"a network with operators that are not known cannot be quantized: {', '.join(unknown[:5])}")
    later = sorted({n for op in program.all_ops() for n in op.output_names() if n.endswith("@GRAD")})
    if later:
        raise SchemaError(f"a training program cannot be quantized: it has gradients, such as {later[0]}; give the network alone")


def layers_of(program: Program) -> list[QuantizedLayer]:
    """Return the layers to quantize, in order. Raises as `refuse_unquantizable`."""
    refuse_unquantizable(program)
    block = program.global_block
    layers = [layer for op in block.ops if (layer := _layer(block, op)) is not None]
    readers: dict[str, set[int]] = {}
    for op in program.all_ops():
        for name in op.input_names():
            readers.setdefault(name, set()).add(id(op))
    axes = {layer.weight: layer.axis for layer in layers}
    mine = {id(layer.op) for layer in layers}
    return [layer for layer in layers if readers[layer.weight] <= mine and axes[layer.weight] == layer.axis]  # a weight is kept once, as bytes


def _layer(block: Block, op: Op) -> QuantizedLayer | None:
    axis = _weight_axis(op)
    if axis is None:
        return None
    x, w = (block.find(op.operand(index)) for index in (0, 1))
    if x is None or w is None or not w.persistable or x.persistable or w.op is not None:
        return None
    if x.kind is not LOD_TENSOR or x.dtype is not FP32 or w.dtype is not FP32 or not all(isinstance(d, int) for d in w.spec.known_dims):
        return None
    if w.spec.rank != (4 if _convolves(op) else 2):
        return None
    return QuantizedLayer(op, op.result(), x.name, w.name, axis)


def _convolves(op: Op) -> bool:
    return op.computes(ImageConvolution) is not None or op.computes(PaddedImageConvolution) is not None


def _weight_axis(op: Op) -> int | None:
    """Return the axis of the result's channels in the weight of an op; None for an op to leave in fp32."""
    if _convolves(op):
        return 0
    matrices, flattened = op.computes(MatrixProduct), op.computes(FlattenedProduct)
    if matrices is not None:
        return None if matrices.x_transposed or matrices.y_transposed else 1
    return 1 if flattened is not None and flattened.y_rows == 1 else None


def without(layers: Sequence[_Layer], exclude: Iterable[str]) -> list[_Layer]:
    """Return the layers whose result, weight or operator no pattern names. Raises `SchemaError` for a pattern without a name."""
    left = list(layers)
    for pattern in exclude:
        hit = [s for s in layers if any(fnmatchcase(n, pattern) for n in (s.name, s.weight, s.op.type))]
        if not hit:
            names = ", ".join(s.name for s in layers[:8]) + (", ..." if len(layers) > 8 else "")
            raise SchemaError(f"exclude: no layer has a result, a weight or an operator called {pattern!r}; the layers' results are: {names or 'none'}")
        left = [s for s in left if s not in hit]
    return left


def points_of(program: Program, layers: Sequence[QuantizedLayer], fetched: Collection[str]) -> Points:
    """Return the values to be rounded for these layers: their operands, and the other terms of sums with their results.

    Values from which one is made by maxima, in another shape or by joining are rounded too, with its scale.
    """
    block = program.global_block
    makers = {n: op for op in block.ops for n in op.output_names()}
    scales: dict[str, str] = {}

    def add(name: str) -> None:
        if name in scales:
            return
        scales[name] = name
        for part in _made_of(block, makers.get(name), fetched):
            add(part)
            first = scales[part]
            scales.update({n: scales[name] for n, group in scales.items() if group == first})

    for layer in layers:
        add(layer.x)
    for term in _terms(block, layers, makers):
        add(term)
    return Points(tuple(layers), scales)


def _made_of(block: Block, op: Op | None, fetched: Collection[str]) -> tuple[str, ...]:
    """Return the values whose numbers the results of an op are, if they can be rounded."""
    if op is None or op.operator is None or not _keeps_grid(op):
        return ()
    read = op.input_slots[op.operator.schema.operands[0].name]
    return () if any(n in fetched or not _is_fp32(block, n) for n in read) else tuple(read)


def _is_fp32(block: Block, name: str) -> bool:
    variable = block.find(name)
    return variable is not None and variable.kind is LOD_TENSOR and variable.dtype is FP32 and not variable.persistable


_FOLDED: tuple[type[Computation], ...] = (FrozenBatchNorm, Scaling, Affine, Sum, Product)
"""The ops behind a layer done by its kernel too, with constant numbers."""
_FOLLOWING = 6
"""So many of them are looked through at most."""
_SHAPES: tuple[type[Computation], ...] = (Reshape, NearestUpsample, Concat)


def _keeps_grid(op: Op) -> bool:
    """Tell whether the results of an op are some of its operand's numbers."""
    pooling = op.computes(ImagePooling)
    return (pooling is not None and pooling.how == "max") or any(op.computes(kind) is not None for kind in _SHAPES)


def _terms(block: Block, layers: Sequence[QuantizedLayer], makers: dict[str, Op]) -> list[str]:
    """Return the values added to a layer's result while it is written: of two layers' results the later one's."""
    ends = {layer.name: index for index, layer in enumerate(layers)}
    fused: Callable[[str], int | None] = lambda name: _behind(block, name, makers, ends)  # noqa: E731
    out: list[str] = []
    for op in block.ops:
        if op.computes(Sum) is None:
            continue
        x, y = op.operand(0), op.operand(1)
        if not (_is_fp32(block, x) and _is_fp32(block, y)) or block.var(x).spec.dims != block.var(y).spec.dims:
            continue
        first, second = fused(x), fused(y)
        if first is not None or second is not None:
            out.append(y if second is None or (first is not None and first < second) else x)
    return out


def _behind(block: Block, name: str, makers: dict[str, Op], ends: dict[str, int]) -> int | None:
    """Return the number of the layer whose result, up to sums and factors of persistables and a normalization, a value is."""
    for _ in range(_FOLLOWING):
        op = makers.get(name)
        if name in ends or op is None:
            return ends.get(name)
        if not any(op.computes(kind) is not None for kind in _FOLDED):
            return None
        if not all((v := block.find(n)) is not None and v.persistable for n in op.input_names() if n != op.operand(0)):
            return None
        name = op.operand(0)
    return None
