"""Cases of an operator: a sample with other dims, element types and attributes, and operands that lie in memory in other ways."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from support.kernel_calls import Call, in_a_row, mapped, part, permuted
from torch import Tensor

from foreshape.core.spec import FP16, FP32, FP64, INT32, INT64, DType, Spec
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample, SampleTensor

SMALL = 4000
"""No operand or result of more elements is made."""


def changed(cls: type[Operator], sample: Sample, rng: random.Random) -> dict[str, Any]:
    """The arguments of a sample with some of them changed."""
    out = dict(sample.arguments)
    to: DType | None = rng.choice((FP64, FP64, FP64, FP32, None, FP16))
    if to is not None:
        out = {k: _each(v, lambda one: replace(one, dtype=to) if one.dtype in (FP32, FP64) else one) for k, v in out.items()}
    if rng.random() < 0.1:
        other = rng.choice((INT32, INT64))
        out = {k: _each(v, lambda one: replace(one, dtype=other) if one.dtype in (INT32, INT64) else one) for k, v in out.items()}
    values = _values(out)
    sizes = sorted({d for v in values for d in v.dims})
    for _ in range(rng.choice((0, 1, 1, 2)) if sizes else 0):
        size, new = rng.choice(sizes), rng.choice((0, 1, 1, 2, 3, 4, 5, 6, 7, 9, 16, 17))
        if rng.random() < 0.8:
            out = {k: _each(v, lambda one, s=size, n=new: _resized(one, s, n, rng)) for k, v in out.items()}
        else:
            chosen = rng.choice(values)
            out = {k: _each(v, lambda one, c=chosen, s=size, n=new: _resized(one, s, n, rng) if one is c else one) for k, v in out.items()}
        values = _values(out)
    if rng.random() < 0.04 and values:
        chosen = rng.choice(values)
        dims = rng.choice(((), chosen.dims[1:], (*chosen.dims, 2), (1, *chosen.dims)))
        out = {k: _each(v, lambda one: replace(one, dims=dims, data=None, lengths=()) if one is chosen else one) for k, v in out.items()}
    attributes = list(cls.schema.attributes.values())
    for _ in range(rng.choice((0, 0, 1, 2)) if attributes else 0):
        chosen_attribute = rng.choice(attributes)
        out[chosen_attribute.name] = _attribute(chosen_attribute, out.get(chosen_attribute.name, chosen_attribute.default), rng)
    return out


def _attribute(declared: Any, held: Any, rng: random.Random) -> Any:
    if declared.name in ("dtype", "out_dtype", "in_dtype") and rng.random() < 0.8:
        return rng.choice((FP32, FP64, INT32, INT64)).code
    if declared.choices and rng.random() < 0.9:
        return rng.choice(declared.choices)
    number = lambda: rng.choice((-7, -3, -2, -1, -1, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 8))  # noqa: E731
    if declared.type in (AttrType.INT, AttrType.LONG):
        return number()
    if declared.type in (AttrType.INTS, AttrType.LONGS):
        count = len(held) if isinstance(held, (list, tuple)) and held and rng.random() < 0.8 else rng.randrange(5)
        return [number() for _ in range(count)]
    if declared.type in (AttrType.FLOAT, AttrType.FLOAT64):
        return rng.choice((0.0, 0.5, 1.0, -1.0, 0.1, 2.5, 6.0, 1e-3))
    if declared.type is AttrType.BOOLEAN:
        return rng.random() < 0.5
    return held if isinstance(held, (str, list, tuple)) else ""


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, (list, tuple)) and any(isinstance(v, SampleTensor) for v in value):
        return [_each(v, change) for v in value]
    return change(value) if isinstance(value, SampleTensor) else value


def _values(arguments: dict[str, Any]) -> list[SampleTensor]:
    return [v for a in arguments.values() for v in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(v, SampleTensor)]


def _resized(value: SampleTensor, size: int, to: int, rng: random.Random) -> SampleTensor:
    """Every dim of one size made another; the numbers of given data repeat."""
    if size not in value.dims:
        return value
    dims = tuple(to if d == size else d for d in value.dims)
    data = value.data
    if data is not None:
        data = np.asarray(data).reshape(value.dims)
        for axis, d in enumerate(value.dims):
            if d == size:
                data = data.take(np.arange(to) % size, axis) if size else np.zeros([to if k == axis else n for k, n in enumerate(data.shape)], data.dtype)
    lengths = value.lengths
    if lengths and value.dims and value.dims[0] == size:
        lengths = (*lengths[:-1], _lengths(len(lengths[-1]), to, rng))
    return replace(value, dims=dims, data=data, lengths=lengths)


def _lengths(count: int, rows: int, rng: random.Random) -> tuple[int, ...]:
    if not count:
        return ()
    ends = sorted(rng.randint(0, rows) for _ in range(count - 1))
    return tuple(b - a for a, b in zip([0, *ends], [*ends, rows], strict=True))


def too_large(arguments: dict[str, Any]) -> bool:
    return any(int(np.prod([max(d, 1) for d in v.dims])) > SMALL for v in _values(arguments))


# --- where operands lie


def sliced(x: Tensor) -> Tensor:
    """Every other element of a larger tensor."""
    if not x.dim():
        return x
    whole = torch.zeros([*x.shape[:-1], 2 * x.shape[-1]], dtype=x.dtype)
    whole[..., ::2] = x
    return whole[..., ::2]


def expanded(x: Tensor) -> Tensor:
    """A first entry that stands for all."""
    return x.narrow(0, 0, 1).clone().expand(x.shape) if x.dim() and x.shape[0] else x


LAYOUTS = (in_a_row, in_a_row, permuted, part, sliced)


def laid(call: Call, rng: random.Random, with_expanded: bool) -> Call:
    """The call with each operand in memory in a way of its own; what is updated in place lies in a row."""
    updated = {r.updates for r in call.cls.schema.results}
    out: list[Any] = []
    for operand, value, spec in zip(call.cls.schema.operands, call.arguments, call.specs, strict=True):
        known = any(s is not None and s.value is not None for s in flat([spec]))  # other numbers would not be those that the rule knows
        layout = in_a_row if operand.name in updated else rng.choice((*LAYOUTS, expanded) if with_expanded and not known else LAYOUTS)
        out.append(mapped(value, layout))
    return replace(call, arguments=out)


def flat(results: Any) -> list[Spec | None]:
    """What is known of results, those in lists one by one."""
    return [s for r in results for s in (r if isinstance(r, (tuple, list)) else [r])]
