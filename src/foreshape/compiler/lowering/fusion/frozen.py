"""The steps after a product with a constant weight, done while its result is written. Shared by rewrites of frozen steps; no rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.compiler.lowering.fusion.graph import Graph, computes, dims_of, fused_as, spec_of
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, Value
from foreshape.core.data_class import data_class, field
from foreshape.core.dims import equal
from foreshape.core.spec import FP32
from foreshape.language.operator.computations import Activation, Affine, Constant, FrozenBatchNorm, Product, Quotient, Relu, Reshape, Scaling, Sum
from foreshape.machine.kernels.frozen import NOTHING, RELU, Fold, Following


@data_class()
class Chain:
    """A product and the steps on its result alone, as far as its kernel can do them too.

    The kernel stands in the place of the instruction ``last``; ``gone`` are the others. ``steps`` are folded into weight and bias, each with its values; see
    `foreshape.machine.kernels.frozen.folded`.
    """

    last: KernelCall
    out: Argument
    gone: list[KernelCall] = field(default_factory=list[KernelCall])
    steps: list[tuple[Fold, tuple[Value, ...]]] = field(default_factory=list["tuple[Fold, tuple[Value, ...]]"])
    other: Argument = None
    following: Following = NOTHING
    behind: list[tuple[Fold, Value | None]] = field(default_factory=list["tuple[Fold, Value | None]"])
    """The steps behind the activation, each with one number, or with a factor and a number of its own."""

    def folds(self) -> list[tuple[Fold, int]]:
        """Return the kind of each step, and the number of its values."""
        out: list[tuple[Fold, int]] = []
        for how, values in self.steps:
            out.append((how, len(values)))
        return out

    def values(self) -> list[Value]:
        """Return all values of the steps, the ones behind the activation last."""
        return [*(v for _, values in self.steps for v in values), *(v for _, v in self.behind if isinstance(v, Value))]

    def ends(self, values: Sequence[Any]) -> tuple[Sequence[Any], Following]:
        """Return the values of the steps before the activation, and the activation with its scale and shift."""
        count = sum(isinstance(v, Value) for _, v in self.behind)
        numbers = iter(float(v.item()) for v in values[len(values) - count :])
        scale, shift = 1.0, 0.0
        for how, _ in self.behind:
            factor, addend = how if isinstance(how, tuple) else (next(numbers), 0.0) if how == "multiply" else (1.0, next(numbers))
            scale, shift = scale * factor, shift * factor + addend
        return values[: len(values) - count], self.following._replace(scale=scale, shift=shift)

    def taken(self, call: KernelCall) -> dict[KernelCall, Sequence[KernelCall]]:
        """Return the argument of `Graph.replace` for one instruction in place of the chain."""
        return {**dict.fromkeys(self.gone, ()), self.last: [call]}

    def take(self, reader: KernelCall) -> None:
        """Take an instruction into the kernel."""
        self.gone.append(self.last)
        self.last, self.out = reader, reader.results[0]


def is_frozen_fp32(graph: Graph, value: Argument) -> bool:
    spec = spec_of(value)
    return graph.is_frozen(value) and spec is not None and spec.dtype is FP32


def follow(graph: Graph, i: KernelCall, axis: int, residuals: bool) -> Chain:
    """Return the steps after an instruction with its result's channels at ``axis``.

    Args:
        residuals: a sum with another tensor of the result's dims may be a part of it.
    """
    return _followed(graph, Chain(i, i.results[0]), axis, residuals)


def follow_normalization(graph: Graph, i: KernelCall) -> Chain | None:
    """Return the same for a normalization of images by fixed statistics, as the first step; None if its numbers may change."""
    chain = Chain(i, i.arguments[0])
    if not graph.makes_one(i) or not _is_folded(graph, chain, i, 1):
        return None
    chain.out = i.results[0]
    return _followed(graph, chain, 1, residuals=True)


def _followed(graph: Graph, chain: Chain, axis: int, residuals: bool) -> Chain:
    while (reader := _reader(graph, chain)) is not None and _is_folded(graph, chain, reader, axis):
        chain.take(reader)
    reader = _reader(graph, chain)
    if residuals and reader is not None and (residual := _residual(graph, chain, reader)) is not None:
        chain.other = residual
        chain.take(reader)
        reader = _reader(graph, chain)
    following = activation(reader) if reader is not None and reader.arguments[:1] == [chain.out] else None
    if reader is not None and following is not None:
        chain.following = following
        chain.take(reader)
    while (reader := _reader(graph, chain)) is not None and _is_behind(graph, chain, reader):
        chain.take(reader)
    return chain


def _reader(graph: Graph, chain: Chain) -> KernelCall | None:
    """Return the only reader of a chain's result, if only its first result is needed."""
    reader = graph.only_reader(chain.out)
    if reader is None and graph.attempts is not None:
        for i in graph.readers(chain.out):
            graph.shared(i, chain.out, i)
    return reader if reader is not None and graph.makes_one(reader) else None


def _is_behind(graph: Graph, chain: Chain, reader: KernelCall) -> bool:
    """Return True if the reader adds one number to each element, or multiplies each with one."""
    affine = affine_of(graph, reader) if reader.arguments[0] is chain.out else None
    if affine is not None:
        chain.behind.append((affine, None))
        return True
    step = by_number(graph, reader)
    if step is None or step[1] is not chain.out:
        return False
    chain.behind.append((step[0], step[2]))
    return True


def affine_of(graph: Graph, i: KernelCall) -> tuple[float, float] | None:
    """Return factor and sum of an instruction that multiplies its first operand by a number, and adds one; a constant second operand counts."""
    scaling, affine = computes(i, Scaling), computes(i, Affine) or fused_as(i, Affine)
    if scaling is not None or affine is not None:
        return (scaling.by, 0.0) if scaling is not None else None if affine is None else (affine.by, affine.shift)
    kind = next((kind for kind in (Sum, Product, Quotient) if computes(i, kind) is not None), None)
    number = None if kind is None else constant_number(graph, i.arguments[1])
    if number is None or (kind is Quotient and not number) or dims_of(i.arguments[0]) != dims_of(i.results[0]):
        return None
    return (1.0, number) if kind is Sum else (number if kind is Product else 1.0 / number, 0.0)


def constant_number(graph: Graph, value: Argument) -> float | None:
    """Return the one number of an fp32 constant of one element."""
    dims = dims_of(value)
    return None if dims is None or any(d != 1 for d in dims) else equal_number(graph, value)


def equal_number(graph: Graph, value: Argument) -> float | None:
    """Return the number that all elements of an fp32 constant are."""
    maker = graph.maker(value)
    constant, spec = fused_as(maker, Constant) or computes(maker, Constant), spec_of(value)
    return None if constant is None or spec is None or spec.dtype is not FP32 else constant.number


def by_number(graph: Graph, i: KernelCall) -> tuple[Fold, Argument, Value] | None:
    """Return the kind, the other operand and the number of a sum or a product of fp32 numbers with a frozen number."""
    total = computes(i, Sum)
    if total is None and computes(i, Product) is None:
        return None
    x, y = i.arguments[:2]
    for operand, number in ((x, y), (y, x)):
        dims, wide = dims_of(number), spec_of(operand)
        if not isinstance(number, Value) or not is_frozen_fp32(graph, number) or dims is None or any(d != 1 for d in dims):
            continue
        if wide is not None and wide.dtype is FP32 and wide.dims == dims_of(i.results[0]):
            return "add" if total is not None else "multiply", operand, number
    return None


def activation(i: KernelCall) -> Following | None:
    """Return the activation computed by an instruction."""
    if computes(i, Relu) is not None:
        return RELU
    computation = computes(i, Activation) or fused_as(i, Activation)
    return None if computation is None else Following(computation.name, computation.numbers, computation.form)


def _is_folded(graph: Graph, chain: Chain, reader: KernelCall, axis: int) -> bool:
    """Return True if the reader's step can be folded into the weight and the bias."""
    number = by_number(graph, reader)
    if number is not None and number[1] is chain.out:
        chain.steps.append((number[0], (number[2],)))
        return True
    if reader.arguments[0] is not chain.out:
        return False
    by_numbers = affine_of(graph, reader)
    if by_numbers is not None:
        chain.steps.append((by_numbers, ()))
        return True
    norm = computes(reader, FrozenBatchNorm)
    if norm is not None:
        statistics = [a for a in reader.arguments[1:5] if isinstance(a, Value) and is_frozen_fp32(graph, a)]
        if axis != 1 or len(dims_of(chain.out) or ()) < 2 or len(statistics) != 4:
            return False
        chain.steps.append((norm.epsilon, tuple(statistics)))
        return True
    total, times = computes(reader, Sum), computes(reader, Product)
    by_channel = total or times
    if by_channel is None or not _is_by_channel(chain.out, reader.arguments[1], by_channel.axis, axis):
        return False
    numbers = frozen_numbers(graph, reader.arguments[1])
    if numbers is None:
        return False
    chain.steps.append(("add" if total is not None else "multiply", (numbers,)))
    maker = graph.maker(reader.arguments[1])
    if maker is not None and graph.only_reader(maker.results[0]) is reader and graph.makes_one(maker):
        chain.gone.append(maker)
    return True


def frozen_numbers(graph: Graph, value: Argument) -> Value | None:
    """Return the frozen fp32 numbers of a value, possibly reshaped."""
    maker = graph.maker(value)
    numbers = maker.arguments[0] if maker is not None and computes(maker, Reshape) is not None else value
    return numbers if isinstance(numbers, Value) and is_frozen_fp32(graph, numbers) else None


def _is_by_channel(value: Argument, numbers: Argument, begin: int, axis: int) -> bool:
    """Return True if a value broadcast from the axis ``begin`` on has one number for each channel, or one for all."""
    wide, narrow = dims_of(value), dims_of(numbers)
    if wide is None or narrow is None or len(narrow) > len(wide):
        return False
    first = begin if begin >= 0 else len(wide) - len(narrow)
    padded = (*(1,) * first, *narrow, *(1,) * (len(wide) - first - len(narrow)))
    return len(padded) == len(wide) and all(n == 1 or (k == axis and n == wide[axis]) for k, n in enumerate(padded))


def _residual(graph: Graph, chain: Chain, reader: KernelCall) -> Argument:
    """Return the other operand of a sum of two tensors of one shape."""
    if computes(reader, Sum) is None or reader.arguments[0] is reader.arguments[1]:
        return None
    operand = reader.arguments[1] if reader.arguments[0] is chain.out else reader.arguments[0]
    mine, operand_dims = graph.dims(chain.out), graph.dims(operand)
    fits = (
        mine is not None
        and operand_dims is not None
        and len(mine) == len(operand_dims)
        and all(equal(a, b) is True for a, b in zip(mine, operand_dims, strict=True))
    )
    spec = spec_of(operand)
    return operand if fits and spec is not None and spec.dtype is FP32 else None
