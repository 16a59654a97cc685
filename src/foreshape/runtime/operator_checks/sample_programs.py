"""An operator's samples as programs: variables for its tensors, their numbers as a feed, and the operator as the only op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from foreshape.core.data_class import data_class
from foreshape.core.spec import COMPLEX64, COMPLEX128, FP32, FP64, INT64, LOD_RANK_TABLE, LOD_TENSOR, LOD_TENSOR_ARRAY, DType, Lod, Spec
from foreshape.core.values.conversion import to_tensor
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.tensor_array import TensorArray
from foreshape.language.infer.rules import Key
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import SampleTensor
from foreshape.language.program import Block, Op, Program, Variable

if TYPE_CHECKING:
    import numpy

Prepare: TypeAlias = "Callable[[dict[str, Any], dict[str, Any]], dict[str, list[str]]] | None"
"""Takes the inputs and the attributes of an op, may change them, and returns the names of results by slot."""
SEED = 7
"""Draws the numbers of the samples."""


def numbers_of(value: SampleTensor, rng: numpy.random.RandomState, double: bool = False) -> numpy.ndarray:
    """Return the numbers of a sample tensor, with ``double`` fp64 for fp32."""
    import numpy

    name = {FP32: "float64", COMPLEX64: "complex128"}.get(value.dtype, value.dtype.numpy_name) if double else value.dtype.numpy_name
    if value.data is not None:
        return numpy.asarray(value.data, dtype=name).reshape(value.dims)
    if value.dtype.is_complex:
        return (rng.uniform(value.low, value.high, value.dims) + 1j * rng.uniform(value.low, value.high, value.dims)).astype(name)
    if value.dtype.is_floating:
        if value.distinct:  # well apart, and away from kinks at 0
            count = int(numpy.prod(value.dims))
            steps = numpy.linspace(value.low, value.high, count + 2)[1:-1] if count else numpy.zeros(0)
            steps = steps + 0.25 * (steps[1] - steps[0] if count > 1 else 0.1)
            return rng.permutation(steps).reshape(value.dims).astype(name)
        return rng.uniform(value.low, value.high, value.dims).astype(name)
    if value.dtype.family == "bool":
        return rng.randint(0, 2, value.dims).astype(bool)
    return rng.randint(int(value.low), int(value.high) + 1, value.dims).astype(name)


@data_class(eq=False)
class SampleProgram:
    """A program of one op, after the ops of its arrays and rank tables, which cannot be fed.

    Attributes:
        made: array or rank table -> the fed names of its elements (None for an element not written), or of its ragged value.
    """

    program: Program
    block: Block
    cls: type[Operator]
    inputs: dict[str, Any]
    feed: dict[str, Any]
    outputs: dict[str, list[str]]
    op: Op
    made: dict[str, Any]

    @property
    def results(self) -> list[str]:
        """Return the names of all results."""
        return [n for names in self.outputs.values() for n in names]

    def value(self, name: str) -> tuple[Any, Any]:
        """Return a kernel's operand by its name, and its offsets."""
        import numpy

        made = self.made.get(name, name)
        if isinstance(made, list):
            elements = [self.value(n) if n is not None else (None, None) for n in cast("list[str | None]", made)]
            return TensorArray.of([e[0] for e in elements], [e[1] for e in elements]), None
        fed = self.feed[made]
        offsets = fed.offsets_on(None) if isinstance(fed, LoDTensor) else None
        return (to_tensor(numpy.array(fed)), offsets) if made == name else (offsets, None)

    def tensors(self) -> tuple[list[Any], list[Any]]:
        """Return the kernel's arguments, tensors and offsets, by operand."""
        out: list[Any] = []
        offsets: list[Any] = []
        for operand in self.cls.schema.operands:
            pairs = [self.value(n) for n in self.op.inputs.get(operand.name) or ()]
            for all_of, values in ((out, [p[0] for p in pairs]), (offsets, [p[1] for p in pairs])):
                all_of.append(values if operand.many else values[0] if values else None)
        return out, offsets

    def key(self) -> tuple[Operator, Key]:
        """Return the operator and the specs of its operands."""
        operator = self.op.operator
        assert operator is not None
        key: list[Any] = []
        for slot in self.cls.schema.operands:
            specs = tuple(self.block.vars[n].spec for n in self.op.inputs.get(slot.name) or ())
            key.append(specs if slot.many else specs[0] if specs else None)
        return operator, tuple(key)


def split_arguments(cls: type[Operator], arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the slots and the attributes of a sample."""
    slots = {k: v for k, v in arguments.items() if k in cls.schema.operand_names}
    return slots, {k: v for k, v in arguments.items() if k not in slots}


def placed(
    cls: type[Operator], block: Block, slots: Mapping[str, Any], variable: Callable[[str, Any], Variable], of: DType = FP32
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of a sample, and `SampleProgram.made`: ``variable`` describes values to feed, ops make arrays and rank tables."""
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
            values = cast("Sequence[Any]", given)
            is_array = not operands[slot].many and LOD_TENSOR_ARRAY in operands[slot].kinds
            inputs[slot] = array_of(slot, values) if is_array else [variable(f"{slot}.{k}", v) for k, v in enumerate(values)]
        else:
            inputs[slot] = table_of(slot, given) if LOD_RANK_TABLE in operands[slot].kinds else variable(slot, given)
    return inputs, made


def sample_program(cls: type[Operator], arguments: Mapping[str, Any], seed: int = SEED, double: bool = False, prepare: Prepare = None) -> SampleProgram:
    """Return a program with the sample's tensors as inputs, and the operator as its only op.

    Args:
        double: fp64 in place of fp32.
    """
    import numpy

    program = Program()
    block = program.global_block
    rng = numpy.random.RandomState(seed)
    slots, attrs = split_arguments(cls, arguments)
    feed: dict[str, Any] = {}

    def variable(name: str, value: SampleTensor) -> Variable:
        numbers = numbers_of(value, rng, double)
        of = {FP32: FP64, COMPLEX64: COMPLEX128}.get(value.dtype, value.dtype) if double else value.dtype
        lod = Lod(name, tuple(len(level) for level in value.lengths)) if value.lengths else None
        spec = Spec(LOD_TENSOR, of, tuple(value.dims), lod)
        if value.data is not None and of.is_integer and numbers.size <= 64:
            spec = spec.with_value([int(x) for x in numbers.reshape(-1)])
        feed[name] = LoDTensor(numbers, value.lengths) if value.lengths else numbers
        return block.create_variable(name, spec, need_check_feed=True)

    inputs, made = placed(cls, block, slots, variable, FP64 if double else FP32)
    outputs = {} if prepare is None else prepare(inputs, attrs)
    op = block.append_op(cls.type, inputs, outputs, _double_types(attrs) if double else attrs)
    return SampleProgram(program, block, cls, inputs, feed, {s: list(n) for s, n in op.outputs.items()}, op, made)


def _double_types(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with fp64 in place of fp32 as an element type."""
    return {k: (FP64.code if k in ("dtype", "in_dtype", "out_dtype") and v in (FP32.code, FP32) else v) for k, v in attrs.items()}
