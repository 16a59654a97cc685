"""What follows a product whose weight never changes, and can be done while its result is written. What rewrites of frozen steps share; no rewrite."""

from __future__ import annotations

from dataclasses import dataclass, field

from foreshape.dims import equal
from foreshape.kernels.frozen import NOTHING, RELU, Following
from foreshape.lowering.fusion.graph import Graph, computes, dims_of, spec_of
from foreshape.lowering.instruction import Argument, Instruction, Value
from foreshape.operator.computations import Activation, FixedNormalization, Rectifier, Sum
from foreshape.spec import FP32


@dataclass(slots=True)
class Chain:
    """A product and what is done with its result alone, as far as its kernel can do that too.

    ``last`` is the instruction in whose place the kernel stands, ``gone`` the others. ``steps`` are what happens to weight and bias before
    anything is computed: a value to add to the bias, or the normalization by (scale, shift, mean, variance).
    """

    last: Instruction
    out: Argument
    gone: list[Instruction] = field(default_factory=list[Instruction])
    steps: list[tuple[float | None, tuple[Value, ...]]] = field(default_factory=list["tuple[float | None, tuple[Value, ...]]"])
    other: Argument = None
    following: Following = NOTHING

    def take(self, reader: Instruction) -> None:
        """Let the kernel do what an instruction does."""
        self.gone.append(self.last)
        self.last, self.out = reader, reader.results[0]


def is_frozen_fp32(graph: Graph, value: Argument) -> bool:
    spec = spec_of(value)
    return graph.is_frozen(value) and spec is not None and spec.dtype is FP32


def follow(graph: Graph, i: Instruction, axis: int, residuals: bool) -> Chain:
    """What follows an instruction, whose result has its channels at ``axis``.

    Args:
        residuals: a sum with another tensor of the result's dims may be a part of it.
    """
    chain = Chain(i, i.results[0])
    while (reader := graph.only_reader(chain.out)) is not None and _is_folded(graph, chain, reader, axis):
        chain.take(reader)
    reader = graph.only_reader(chain.out)
    if residuals and reader is not None and (other := _residual(graph, chain, reader)) is not None:
        chain.other = other
        chain.take(reader)
        reader = graph.only_reader(chain.out)
    found = _activation(reader) if reader is not None and reader.arguments[:1] == [chain.out] else None
    if reader is not None and found is not None and (chain.other is None or found == RELU):
        chain.following = found
        chain.take(reader)
    return chain


def _activation(i: Instruction) -> Following | None:
    if computes(i, Rectifier) is not None:
        return RELU
    found = computes(i, Activation)
    return None if found is None else Following(found.name, found.numbers, found.form)


def _is_folded(graph: Graph, chain: Chain, reader: Instruction, axis: int) -> bool:
    """Whether what the reader does can be done to the weight and the bias."""
    if reader.arguments[0] is not chain.out:
        return False
    norm = computes(reader, FixedNormalization)
    if norm is not None and axis == 1 and len(dims_of(chain.out) or ()) > 1 and all(graph.unused(r) for r in (reader.results[3:5])):
        by = [a for a in reader.arguments[1:5] if isinstance(a, Value) and is_frozen_fp32(graph, a)]
        if len(by) == 4:
            chain.steps.append((norm.epsilon, tuple(by)))
            return True
        return False
    total = computes(reader, Sum)
    if total is None:
        return False
    wide, shift = dims_of(chain.out), reader.arguments[1]
    narrow = dims_of(shift)
    if wide is None or narrow is None or not isinstance(shift, Value) or not is_frozen_fp32(graph, shift):
        return False
    at = total.axis if total.axis >= 0 else len(wide) - len(narrow)
    padded = (1,) * at + narrow + (1,) * (len(wide) - at - len(narrow))
    if len(padded) != len(wide) or any(n != 1 for k, n in enumerate(padded) if k != axis) or padded[axis] != wide[axis]:
        return False
    chain.steps.append((None, (shift,)))
    return True


def _residual(graph: Graph, chain: Chain, reader: Instruction) -> Argument:
    """The other operand of a sum of two tensors of one shape."""
    if computes(reader, Sum) is None or reader.arguments[0] is reader.arguments[1]:
        return None
    other = reader.arguments[1] if reader.arguments[0] is chain.out else reader.arguments[0]
    mine, others = graph.dims(chain.out), graph.dims(other)
    same = mine is not None and others is not None and len(mine) == len(others) and all(equal(a, b) is True for a, b in zip(mine, others, strict=True))
    spec = spec_of(other)
    return other if same and spec is not None and spec.dtype is FP32 else None
