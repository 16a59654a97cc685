"""From an operator's samples to programs, feeds and expected results: what the generic tests share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foreshape.engine.values import LoDTensor
from foreshape.infer.rules import Key, answer
from foreshape.ops.fields import NOT_WRITTEN, Operand, Reject, Sample, Value, operand, result
from foreshape.ops.operator import Operator, all_operators
from foreshape.ops.tensor_array import TensorArray
from foreshape.program import Block, Op, Program, Variable
from foreshape.spec import FP32, FP64, LOD_TENSOR, LOD_TENSOR_ARRAY, Kind, Lod, Spec


class MakeArray(Operator):
    """Out = the array of all X: how a sample's array, which cannot be fed, comes into a program."""

    type = "array_of_a_sample"
    X = operand(many=True)
    Out = result()
    gradient = NOT_WRITTEN

    def infer_var_type(self, X: tuple[Spec, ...]) -> Kind:
        return LOD_TENSOR_ARRAY

    def infer_shape(self, X: tuple[Spec, ...]) -> Spec:
        return X[0].like()

    def kernel(self, X: list[Any], *, offsets: list[list[Any]]) -> TensorArray:
        out = TensorArray()
        for at, (tensor, where) in enumerate(zip(X, offsets[0], strict=True)):
            out.write(at, tensor, where)
        return out


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
    """A sample as a program of one op, after those that make its arrays."""

    program: Program
    block: Block
    cls: type[Operator]
    inputs: dict[str, Any]
    feed: dict[str, Any]
    outputs: dict[str, list[str]]

    @property
    def op(self) -> Op:
        """The one op (before gradients are appended)."""
        return next(op for op in self.block.ops if op.type != MakeArray.type)

    def array(self, name: str) -> TensorArray | None:
        """The array of this name, if it is one."""
        import torch

        made = next((op for op in self.block.ops if op.type == MakeArray.type and name in op.output_names()), None)
        if made is None:
            return None
        fed = [self.feed[n] for n in made.input_names()]
        return MakeArray.kernel(
            made.operator, [torch.from_numpy(np.array(f)) for f in fed], offsets=[[f.offsets_on(None) if isinstance(f, LoDTensor) else None for f in fed]]
        )


def _is_array(of: Operand) -> bool:
    return not of.many and LOD_TENSOR_ARRAY in of.kinds


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
        if isinstance(given, (list, tuple)) and _is_array(next(o for o in cls.schema.operands if o.name == slot)):
            block.append_op(MakeArray.type, {"X": inputs[slot]}, {"Out": slot})
            inputs[slot] = block.vars[slot]
    outputs: dict[str, list[str]] = {}
    op = block.append_op(cls.type, inputs, outputs, _double_types(cls, attrs) if double else attrs)
    del updated
    return Case(program, block, cls, inputs, feed, {s: list(n) for s, n in op.outputs.items()})


def _double_types(cls: type[Operator], attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes that name fp32 name fp64 in a program of doubles."""
    return {k: (FP64.code if k in ("dtype", "in_dtype", "out_dtype") and v in (FP32.code, FP32) else v) for k, v in attrs.items()}


def key_of(case: Case) -> tuple[Operator, Key]:
    """The operator and the specs of its inputs."""
    op = case.op
    operator = op.operator
    assert operator is not None
    key: list[Any] = []
    for slot in case.cls.schema.operands:
        names = op.inputs.get(slot.name)
        if slot.many:
            key.append(tuple(case.block.vars[n].spec for n in names or ()))
        else:
            key.append(case.block.vars[names[0]].spec if names else None)
    return operator, tuple(key)


__all__ = ["Case", "answer", "array", "build", "key_of", "operators", "rejected", "sampled", "split"]
