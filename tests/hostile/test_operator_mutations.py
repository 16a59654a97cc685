# ruff: noqa: E501  the tables are one case a line
"""Every operator, asked for what it cannot do: made from its samples by mutation, so that a new operator is covered at once.

Inference comes first; only what it takes, and what is small, is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.harness import array, operators, placed, split
from support.some import one_in
from support.survival import checked_words

import foreshape.language.wire  # noqa: F401  the codec
from foreshape.core.spec import FP16, FP32, INT32, INT64, KINDS, LOD_TENSOR, SELECTED_ROWS, UINT8, Lod, Spec
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import DescriptionError, ForeshapeError
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import all_operators
from foreshape.language.operator.samples import SampleTensor
from foreshape.language.program import Op, Program
from foreshape.runtime.engine import Executor, Scope

OPERATORS = operators()
GRADIENTS = sorted(t for t, c in all_operators().items() if c.forward_class is not None and c.__module__.startswith("foreshape."))
SMALL = 20_000
"""No more elements than this are computed."""

Arguments = dict[str, Any]


def raggedness(name: str, given: SampleTensor) -> Lod | None:
    """The sequences of a sample tensor, as long as it has rows."""
    return Lod(name, tuple(len(level) for level in given.lengths)) if given.lengths and given.dims else None


def described(cls: type[Operator], arguments: Arguments, given_as: dict[str, Any] | None = None) -> tuple[Program, Op] | None:
    """A program of the op, or None where its description is refused in the right way. ``given_as`` takes what each name was given as."""
    program = Program()
    block = program.global_block
    slots, attrs = split(cls, arguments)

    def variable(name: str, given: Any) -> Any:
        if given_as is not None:
            given_as[name] = given
        spec = given if isinstance(given, Spec) else Spec(LOD_TENSOR, given.dtype, tuple(given.dims), raggedness(name, given))
        if isinstance(given, SampleTensor) and given.data is not None and given.dtype.is_integer and 0 < np.size(given.data) <= 64:
            spec = spec.with_value([int(x) for x in np.reshape(given.data, -1)])
        return block.create_variable(name, spec, need_check_feed=True)

    try:
        inputs, _ = placed(cls, block, slots, variable)
        op = block.append_op(cls.type, inputs, None, attrs)
    except DescriptionError as error:
        checked_words(error)
        return None
    for result in op.output_names():
        for dim in block.vars[result].packed_dims:
            assert dim >= -1, f"{result} has the dim {dim}"
    return program, op


MOST_BYTES = "256 MiB"


def tried(cls: type[Operator], arguments: Arguments) -> None:
    """Describe; then print, save and, where everything is small, run: the results are as inferred or an error is named."""
    given_as: dict[str, Any] = {}
    made = described(cls, arguments, given_as)
    if made is None:
        return
    program, op = made
    str(program)
    program.to_bytes()
    specs = [v.spec for v in program.all_variables()]
    if any(s.kind is not LOD_TENSOR or s.dims is None or any(not isinstance(d, int) for d in s.dims) for s in specs):
        return
    if sum(math.prod(max(int(d), 1) for d in s.known_dims) for s in specs) > SMALL or not list(op.output_names()):
        return
    run(program, op, given_as)


def run(program: Program, op: Op, given_as: dict[str, Any]) -> None:
    rng = np.random.RandomState(1)
    feed: dict[str, Any] = {}
    for name, value in given_as.items():
        fits = value.data is None or np.size(value.data) == math.prod(value.dims)
        feed[name] = array(value if fits else replace(value, data=None), rng)
        if raggedness(name, value) is not None:
            if sum(value.lengths[-1]) != value.dims[0]:
                return  # other rows than its sequences have: no such value is fed
            feed[name] = LoDTensor(feed[name], value.lengths)
    outputs = list(op.output_names())
    try:
        fetched = Executor(memory_limit=MOST_BYTES).run(program, feed, outputs, Scope())  # which is past what any sample needs, and soon touched
    except ForeshapeError as error:
        checked_words(error)
        return
    for name, got in zip(outputs, fetched, strict=True):
        spec = program.global_block.vars[name].spec
        if isinstance(got, np.ndarray) and spec.kind is LOD_TENSOR and spec.dims is not None:
            want = [d for d in spec.dims if isinstance(d, int)]
            if len(want) == len(spec.dims):
                assert list(got.shape) == want, f"{name} was inferred as {spec}"


def values_of(arguments: Arguments, cls: type[Operator]) -> Iterator[tuple[Callable[[Any], Arguments], SampleTensor]]:
    """Each sample tensor, and how to put another in its place."""
    slots, _ = split(cls, arguments)
    for slot, given in slots.items():
        if isinstance(given, SampleTensor):
            yield (lambda v, slot=slot: arguments | {slot: v}), given
        elif isinstance(given, (list, tuple)):
            for at, one in enumerate(given):
                if isinstance(one, SampleTensor):
                    yield (lambda v, slot=slot, at=at, given=given: arguments | {slot: [*given[:at], v, *given[at + 1 :]]}), one


def samples(cls: type[Operator], most: int = 4) -> list[Arguments]:
    return [dict(s.arguments) for s in cls.samples][:most]


HOW_MANY = pytest.mark.parametrize("most", [1, pytest.param(4, marks=pytest.mark.long)], ids=["first", "all"])


def with_dims(value: SampleTensor, dims: tuple[int, ...]) -> SampleTensor:
    return replace(value, dims=dims, data=None)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("cls", one_in(20, OPERATORS, lambda c: f"17-zero-{c.type}"))
def test_a_dim_of_zero_in_every_place(cls: type[Operator]) -> None:
    for arguments in samples(cls):
        for put, value in values_of(arguments, cls):
            for axis in range(len(value.dims)):
                tried(cls, put(with_dims(value, (*value.dims[:axis], 0, *value.dims[axis + 1 :]))))
        everything = {
            k: with_dims(v, (0,) * len(v.dims)) if isinstance(v, SampleTensor) else [x and with_dims(x, (0, *x.dims[1:])) for x in v] if isinstance(v, list) and v and isinstance(v[0], SampleTensor) else v
            for k, v in arguments.items()
        }  # fmt: skip
        tried(cls, everything)


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("cls", one_in(20, OPERATORS, lambda c: f"17-other-{c.type}"))
@HOW_MANY
def test_dims_and_ranks_of_all_sizes_in_every_place(cls: type[Operator], most: int) -> None:
    for arguments in samples(cls, most):
        for put, value in values_of(arguments, cls):
            for axis in range(len(value.dims)):
                for dim in (1, 2**31, 2**31 - 1, 2**62, value.dims[axis] + 1):
                    tried(cls, put(with_dims(value, (*value.dims[:axis], dim, *value.dims[axis + 1 :]))))
            for dims in ((), (0,), (1,), value.dims[1:], (*value.dims, 2), (1,) * 9, (1,) * 64, (2**31, 2**31), (2**62, 1)):
                tried(cls, put(with_dims(value, dims)))
            with pytest.raises(ForeshapeError):
                Spec(LOD_TENSOR, value.dtype, (1,) * 65)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("cls", one_in(20, OPERATORS, lambda c: f"17-symbols-{c.type}"))
@HOW_MANY
def test_symbols_kinds_and_missing_inputs_in_every_place(cls: type[Operator], most: int) -> None:
    from foreshape.core.dims import symbol

    for arguments in samples(cls, most):
        slots, _ = split(cls, arguments)
        for slot in slots:
            described(cls, {k: v for k, v in arguments.items() if k != slot})
            described(cls, arguments | {slot: []})
        for put, value in values_of(arguments, cls):
            names = tuple(symbol(f"n{k}") for k in range(len(value.dims)))
            described(cls, put(Spec(LOD_TENSOR, value.dtype, names)))
            described(cls, put(Spec(LOD_TENSOR, value.dtype, tuple(n * 2 - symbol("m") for n in names))))
            described(cls, put(Spec(LOD_TENSOR, value.dtype, (symbol("n"),) * len(value.dims))))
            described(cls, put(Spec(LOD_TENSOR, value.dtype, None)))
            described(cls, put(Spec(LOD_TENSOR, None, None)))
            described(cls, put(Spec(SELECTED_ROWS, value.dtype, tuple(value.dims))))
            for levels in (1, 2):  # of every rank that has rows
                lod = Lod("x", (symbol("batch"), symbol("parts"))[:levels])
                for dims in filter(None, ((symbol("rows"),), (symbol("rows"), symbol("n")), tuple(value.dims), names)):
                    described(cls, put(Spec(LOD_TENSOR, value.dtype, dims, lod)))
            for kind in KINDS:
                described(cls, put(Spec(kind, None, None)))
            for of in (FP16, FP32, INT32, INT64, UINT8):
                described(cls, put(replace(value, dtype=of, data=None)))


HOSTILE: dict[AttrType, list[Any]] = {
    AttrType.INT: [-(2**31), 2**31 - 1, 2**31, -1, 0, 1, 77, 2**63, 1.5, True, "1", None, [1], b"1"],
    AttrType.LONG: [-(2**63), 2**63 - 1, 2**63, -1, 0, 1.5, "1", None, [1]],
    AttrType.FLOAT: [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e300, 5e-324, -1.0, "1", None, True, [1.0], 10**400],
    AttrType.FLOAT64: [float("nan"), float("inf"), -0.0, "1", None],
    AttrType.STRING: ["", "no such choice", "\x00\x1b[2J", "x" * 100_000, b"bytes", 1, None, ["a"]],
    AttrType.BOOLEAN: [0, 1, "True", None, [True], 2],
    AttrType.INTS: [[], [0], [-1], [-1, -1], [0, 0, 0], [-(2**31)] * 2, [2**31 - 1] * 4, [2**31 - 1] * 2, [2**31], [1] * 9, [1] * 65, [1] * 3_000, [1.5], ["1"], "11", 1, None,
                    [True], [2, 2], [-7, 3], [0, 1], [1, 0], [3, 3, 3, 3]],
    AttrType.LONGS: [[], [0], [-1, -1], [-(2**63)], [2**63 - 1] * 2, [2**63], [2**62, 2], [1] * 3_000, [1.5], "1", 1, None, [2**40], [0, -1, 2**31]],
    AttrType.FLOATS: [[], [float("nan")], [float("inf")] * 3, [1e300], [0.0] * 3_000, "1", [None], 1.0],
    AttrType.FLOAT64S: [[], [float("nan")], "1", [None]],
    AttrType.STRINGS: [[], [""], ["a"] * 1000, "abc", [1], [None], None],
    AttrType.BOOLEANS: [[], [True] * 100, [0], "True", None],
    AttrType.SCALAR: [float("nan"), 2**63, -(2**63), "1", None, 1j, [1]],
    AttrType.SCALARS: [[], [2**63], [float("inf")], ["1"], None, 1, [1] * 1000],
}  # fmt: skip


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("cls", one_in(20, [c for c in OPERATORS if c.schema.attributes], lambda c: f"15-{c.type}"))
@HOW_MANY
def test_hostile_values_of_every_attribute(cls: type[Operator], most: int) -> None:
    for arguments in samples(cls, most):
        for name, field in cls.schema.attributes.items():
            for value in HOSTILE.get(field.type, [None, -1, "x"]):
                tried(cls, arguments | {name: value})
        described(cls, arguments | {"no_such_attribute": 1})


LISTS: dict[AttrType, list[Any]] = {AttrType.INTS: [1] * 10**6, AttrType.LONGS: [1] * 10**6, AttrType.FLOATS: [0.0] * 10**6}


@pytest.mark.longest
@pytest.mark.parametrize("cls", one_in(20, [c for c in OPERATORS if c.schema.attributes], lambda c: f"15-long-{c.type}"))
def test_lists_of_a_million_for_every_attribute(cls: type[Operator]) -> None:
    for arguments in samples(cls):
        for name, field in cls.schema.attributes.items():
            if field.type in LISTS:
                tried(cls, arguments | {name: LISTS[field.type]})


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("cls", one_in(20, [c for c in OPERATORS if c.schema.attributes], lambda c: f"14-{c.type}"))
def test_attributes_from_a_file_with_values_of_other_types(cls: type[Operator]) -> None:
    for arguments in samples(cls)[:1]:
        made = described(cls, arguments)
        assert made is not None, "a sample is refused"
        program, op = made
        right = op.attributes
        for at, (name, type_, _) in enumerate(right.entries):
            for value in (0, -1, 1.5, "x", True, (), (1, 2), ("a",), (float("nan"),), 2**40):
                entries = (*right.entries[:at], (name, type_, value), *right.entries[at + 1 :])
                op.attributes = Attributes.of(cls.type, entries)
                for error in program.diagnose()[1]:
                    checked_words(error)
            op.attributes = Attributes.of(cls.type, (*right.entries[:at], *right.entries[at + 1 :]))
            program.diagnose()
        op.attributes = right


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("type_", one_in(20, GRADIENTS, lambda t: f"10-{t}"))
def test_gradient_operators_with_inputs_of_all_shapes(type_: str) -> None:
    cls = all_operators()[type_]
    for dims in ((), (0,), (3,), (2, 3), (0, 3), (2, 3, 4), (1, 2, 3, 4), (1, 1, 2, 3, 4), (2**31, 2**31)):
        for of in (FP32, INT64):
            given = {o.name: [SampleTensor(of, dims, 0, 1)] if o.many else SampleTensor(of, dims, 0, 1) for o in cls.schema.operands}
            described(cls, given)
            for missing in given:
                described(cls, {k: v for k, v in given.items() if k != missing})
