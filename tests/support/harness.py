"""From an operator's samples to programs, feeds and expected results: what the generic tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from foreshape.infer.rules import Key, answer
from foreshape.operator.operator import Operator
from foreshape.operator.registry import all_operators
from foreshape.operator.samples import Reject, Sample, SampleTensor
from foreshape.program import Block, Op, Program, Variable, program_guard
from foreshape.spec import COMPLEX64, COMPLEX128, FP32, FP64, INT64, LOD_RANK_TABLE, LOD_TENSOR, LOD_TENSOR_ARRAY, DType, Lod, Spec
from foreshape.values.lod_tensor import LoDTensor
from foreshape.values.tensor_array import TensorArray
from support.some import is_quick


@cache
def operators() -> tuple[type[Operator], ...]:
    """Every forward operator, by type."""
    return tuple(c for t, c in sorted(all_operators().items()) if c.forward_class is None and c.__module__.startswith("foreshape."))


@cache
def sampled() -> tuple[tuple[str, type[Operator], Sample], ...]:
    return tuple((f"{cls.type}-{at}", cls, sample) for cls in operators() for at, sample in enumerate(cls.samples))


@cache
def with_kernels() -> tuple[tuple[str, type[Operator], Sample], ...]:
    """The samples of operators that have a kernel: the others are made of these."""
    return tuple(c for c in sampled() if c[1].expand is Operator.expand)


def rejected() -> Iterator[tuple[str, type[Operator], Reject]]:
    for cls in operators():
        for at, reject in enumerate(cls.rejects):
            yield f"{cls.type}-{at}", cls, reject


def of_each_operator(cases: Iterable[tuple[Any, ...]], quick: int = 1) -> Callable[[Callable[..., None]], Callable[[str], None]]:
    """Makes a test of one case, ``(name, class, ...)``, one of all cases of a file of operators, which tells of each that fails.

    Thousands of tests of a millisecond would take longer to be handed out and reported than to be run. One operator in ``quick`` is quick;
    the others of its file are a long test of their own.
    """
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for case in cases:
        file = case[1].__module__.removeprefix("foreshape.ops.").replace(".", "/")
        groups.setdefault(file if is_quick(case[1].type, quick) else f"{file}, the others", []).append(case)

    def decorate(test: Callable[..., None]) -> Callable[[str], None]:
        def of_all(of: str) -> None:
            failures: list[Exception] = []
            for case in groups[of]:
                try:
                    with program_guard(Program(), Program()):
                        test(*case)
                except Exception as error:
                    error.add_note(f"this is {case[0]}")
                    failures.append(error)
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(groups[of])} cases of {of}: {', '.join(f.__notes__[-1] for f in failures)}", failures)

        of_all.__name__, of_all.__doc__, of_all.__module__ = test.__name__, test.__doc__, test.__module__
        given = [pytest.param(g, marks=pytest.mark.long if g.endswith(", the others") else ()) for g in groups]
        return pytest.mark.parametrize("of", given)(of_all)

    return decorate


def array(value: SampleTensor, rng: np.random.RandomState, double: bool = False) -> np.ndarray:
    """The numbers of a sample tensor."""
    numpy_name = {FP32: "float64", COMPLEX64: "complex128"}.get(value.dtype, value.dtype.numpy_name) if double else value.dtype.numpy_name
    if value.data is not None:
        return np.asarray(value.data, dtype=numpy_name).reshape(value.dims)
    if value.dtype.is_complex:
        return (rng.uniform(value.low, value.high, value.dims) + 1j * rng.uniform(value.low, value.high, value.dims)).astype(numpy_name)
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
    """A sample as a program of one op, after those that make its arrays and rank tables, which cannot be fed."""

    program: Program
    block: Block
    cls: type[Operator]
    inputs: dict[str, Any]
    feed: dict[str, Any]
    outputs: dict[str, list[str]]
    op: Op
    made: dict[str, Any]
    """By name, what arrays and rank tables are made of: a list of names (None where nothing is written), or one name."""

    def value(self, name: str) -> tuple[Any, Any]:
        """What a kernel is given for a name, and its offsets."""
        import torch

        made = self.made.get(name, name)
        if isinstance(made, list):
            elements = [self.value(n) if n is not None else (None, None) for n in made]
            return TensorArray.of([e[0] for e in elements], [e[1] for e in elements]), None
        fed = self.feed[made]
        offsets = fed.offsets_on(None) if isinstance(fed, LoDTensor) else None
        return (torch.from_numpy(np.array(fed)), offsets) if made == name else (offsets, None)


def split(cls: type[Operator], arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Slots and attributes of a sample."""
    slots = {k: v for k, v in arguments.items() if k in cls.schema.operand_names}
    return slots, {k: v for k, v in arguments.items() if k not in slots}


def placed(
    cls: type[Operator], block: Block, slots: Mapping[str, Any], variable: Callable[[str, Any], Variable], of: DType = FP32
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs of a sample: what can be fed by ``variable``, arrays and rank tables by the ops that make them (see `Case.made`)."""
    inputs: dict[str, Any] = {}
    made: dict[str, Any] = {}
    operands = {o.name: o for o in cls.schema.operands}

    def array_of(name: str, values: Sequence[Any]) -> Variable:
        out = block.create_variable(name, Spec(LOD_TENSOR_ARRAY, of, None))
        made[name] = [f"{name}.{k}" if v is not None else None for k, v in enumerate(values)]
        for k, value in enumerate(values):
            if value is not None:
                at = block.apply("fill_constant", {}, {"shape": [1], "dtype": INT64.code, "value": float(k)}, f"{name}.at")
                block.append_op("write_to_array", {"X": variable(f"{name}.{k}", value), "I": at}, {"Out": out})
        return out

    def table_of(name: str, value: Any) -> Variable:
        made[name] = f"{name}.of"
        ranked = variable(f"{name}.of", value)
        block.append_op("lod_rank_table", {"X": ranked}, {"Out": name}, {"level": max(ranked.lod_level - 1, 0)})
        return block.vars[name]

    for slot, given in slots.items():
        if given is None:
            continue
        if isinstance(given, (list, tuple)):
            is_array = not operands[slot].many and LOD_TENSOR_ARRAY in operands[slot].kinds
            inputs[slot] = array_of(slot, given) if is_array else [variable(f"{slot}.{k}", v) for k, v in enumerate(given)]
        else:
            inputs[slot] = table_of(slot, given) if LOD_RANK_TABLE in operands[slot].kinds else variable(slot, given)
    return inputs, made


def build(cls: type[Operator], arguments: Mapping[str, Any], seed: int = 7, double: bool = False, as_layers: bool = False) -> Case:
    """A program whose inputs are the sample's tensors and whose only op is the operator's.

    Args:
        as_layers: the op is written as layers and optimizers write it: what it changes in place is persistable, and the result has its
            name; and single results that may be left out are there.
    """
    program = Program()
    block = program.global_block
    rng = np.random.RandomState(seed)
    slots, attrs = split(cls, arguments)
    feed: dict[str, Any] = {}

    def variable(name: str, value: SampleTensor) -> Variable:
        numbers = array(value, rng, double)
        of = {FP32: FP64, COMPLEX64: COMPLEX128}.get(value.dtype, value.dtype) if double else value.dtype
        lod = Lod(name, tuple(len(level) for level in value.lengths)) if value.lengths else None
        spec = Spec(LOD_TENSOR, of, tuple(value.dims), lod)
        if value.data is not None and of.is_integer and numbers.size <= 64:
            spec = spec.with_value([int(x) for x in numbers.reshape(-1)])
        feed[name] = LoDTensor(numbers, value.lengths) if value.lengths else numbers
        return block.create_variable(name, spec, need_check_feed=True)

    inputs, made = placed(cls, block, slots, variable, FP64 if double else FP32)
    outputs: dict[str, list[str]] = {}
    for result in cls.schema.results if as_layers else ():
        if result.updates in inputs:
            changed = inputs[result.updates] if result.many else [inputs[result.updates]]
            outputs[result.name] = [v.name for v in changed]
            for variable_changed in changed:
                variable_changed.persistable = True
        elif result.optional and not result.many and result.updates is None:
            outputs[result.name] = [f"{result.name}_of_{cls.type}"]
    if as_layers and "infer_flags" in cls.schema.attributes and "infer_flags" not in attrs:
        attrs["infer_flags"] = [1] * len(attrs["axes"])
    if as_layers and cls.type == "expand_as_v2" and "Y" in inputs:
        attrs["target_shape"] = list(inputs["Y"].spec.known_dims)
    op = block.append_op(cls.type, inputs, outputs, _double_types(cls, attrs) if double else attrs)
    return Case(program, block, cls, inputs, feed, {s: list(n) for s, n in op.outputs.items()}, op, made)


def _double_types(cls: type[Operator], attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes that name fp32 name fp64 in a program of doubles."""
    return {k: (FP64.code if k in ("dtype", "in_dtype", "out_dtype") and v in (FP32.code, FP32) else v) for k, v in attrs.items()}


def tensors(case: Case) -> tuple[list[Any], list[Any]]:
    """What the kernel is called with: tensors and offsets, by operand."""
    out: list[Any] = []
    offsets: list[Any] = []
    for operand in case.cls.schema.operands:
        pairs = [case.value(n) for n in case.op.inputs.get(operand.name) or ()]
        for all_of, values in ((out, [p[0] for p in pairs]), (offsets, [p[1] for p in pairs])):
            all_of.append(values if operand.many else values[0] if values else None)
    return out, offsets


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


__all__ = ["Case", "answer", "array", "build", "key_of", "of_each_operator", "operators", "placed", "rejected", "sampled", "split"]
