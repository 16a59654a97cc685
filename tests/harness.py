"""From an operator's samples to programs, feeds and expected results: what the generic tests share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foreshape.engine.values import LoDTensor
from foreshape.infer.rules import Key, answer
from foreshape.ops.fields import Reject, Sample, Value
from foreshape.ops.operator import Operator, all_operators
from foreshape.program import Block, Program, Variable
from foreshape.spec import FP32, FP64, LOD_TENSOR, Lod, Spec


def operators() -> list[type[Operator]]:
    """Every forward operator, by type."""
    return [c for t, c in sorted(all_operators().items()) if c.forward_class is None and c.__module__.startswith("foreshape.")]


def sampled() -> Iterator[tuple[str, type[Operator], Sample]]:
    for cls in operators():
        for at, sample in enumerate(cls.samples):
            yield f"{cls.type}-{at}", cls, sample


def rejected() -> Iterator[tuple[str, type[Operator], Reject]]:
    for cls in operators():
        for at, reject in enumerate(cls.rejects):
            yield f"{cls.type}-{at}", cls, reject


def array(value: Value, rng: np.random.RandomState, double: bool = False) -> np.ndarray:
    """The numbers of a sample tensor."""
    numpy_name = "float64" if double and value.dtype is FP32 else value.dtype.numpy_name
    if value.data is not None:
        return np.asarray(value.data, dtype=numpy_name).reshape(value.dims)
    if value.dtype.is_floating:
        if value.distinct:  # well apart, and away from kinks at 0
            count = int(np.prod(value.dims))
            steps = np.linspace(value.low, value.high, count + 2)[1:-1] if count else np.zeros(0)
            steps = steps + 0.25 * (steps[1] - steps[0] if count > 1 else 0.1)
            return rng.permutation(steps).reshape(value.dims).astype(numpy_name)
        return rng.uniform(value.low, value.high, value.dims).astype(numpy_name)
    if value.dtype.family == "bool":
        return rng.randint(0, 2, value.dims).astype(bool)
    return rng.randint(int(value.low), int(value.high) + 1, value.dims).astype(numpy_name)


@dataclass
class Case:
    """A sample as a program of one op."""

    program: Program
    block: Block
    cls: type[Operator]
    inputs: dict[str, Any]
    feed: dict[str, Any]
    outputs: dict[str, list[str]]


def split(cls: type[Operator], arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Slots and attributes of a sample."""
    slots = {k: v for k, v in arguments.items() if k in cls.schema.operand_names}
    return slots, {k: v for k, v in arguments.items() if k not in slots}


def build(cls: type[Operator], arguments: Mapping[str, Any], seed: int = 7, double: bool = False) -> Case:
    """A program whose inputs are the sample's tensors and whose only op is the operator's."""
    program = Program()
    block = program.global_block
    rng = np.random.RandomState(seed)
    slots, attrs = split(cls, arguments)
    inputs: dict[str, Any] = {}
    feed: dict[str, Any] = {}
    updated = {r.updates for r in cls.schema.results}

    def variable(name: str, value: Value) -> Variable:
        numbers = array(value, rng, double)
        of = FP64 if double and value.dtype is FP32 else value.dtype
        lod = Lod(name, tuple(len(level) for level in value.lengths)) if value.lengths else None
        spec = Spec(LOD_TENSOR, of, tuple(value.dims), lod)
        if value.data is not None and of.is_integer and numbers.size <= 64:
            spec = spec.with_value([int(x) for x in numbers.reshape(-1)])
        feed[name] = LoDTensor(numbers, value.lengths) if value.lengths else numbers
        return block.create_variable(name, spec, need_check_feed=True)

    for slot, given in slots.items():
        if given is None:
            continue
        inputs[slot] = [variable(f"{slot}.{k}", v) for k, v in enumerate(given)] if isinstance(given, (list, tuple)) else variable(slot, given)
    outputs: dict[str, list[str]] = {}
    op = block.append_op(cls.type, inputs, outputs, _double_types(cls, attrs) if double else attrs)
    del updated
    return Case(program, block, cls, inputs, feed, {s: list(n) for s, n in op.outputs.items()})


def _double_types(cls: type[Operator], attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes that name fp32 name fp64 in a program of doubles."""
    return {k: (FP64.code if k in ("dtype", "in_dtype", "out_dtype") and v in (FP32.code, FP32) else v) for k, v in attrs.items()}


def key_of(case: Case) -> tuple[Operator, Key]:
    """The operator and the specs of its inputs."""
    op = case.block.ops[0]
    operator = op.operator
    assert operator is not None
    key: list[Any] = []
    for operand in case.cls.schema.operands:
        names = op.inputs.get(operand.name)
        if operand.many:
            key.append(tuple(case.block.vars[n].spec for n in names or ()))
        else:
            key.append(case.block.vars[names[0]].spec if names else None)
    return operator, tuple(key)


__all__ = ["Case", "answer", "array", "build", "key_of", "operators", "rejected", "sampled", "split"]
