"""Written once, run for every operator: what its schema alone refuses, before its rule is asked, and what the words of its schema say that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.harness import build, of_each_operator, operators
from support.mutations import mutations

from foreshape.core.spec import BOOL, COMPLEX64, FP32, FP64, INT32, INT64, LOD_RANK_TABLE, LOD_TENSOR_ARRAY, DType
from foreshape.errors import SchemaError, ShapeError, TypeMismatchError
from foreshape.language.operator.fields import REQUIRED, Attribute, Operand
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import SampleTensor

TYPES = (FP32, FP64, INT32, INT64, BOOL, COMPLEX64)
TAKES_MORE = {
    "average_accumulates": ("in_num_accumulates", "in_old_num_accumulates", "in_num_updates"), "beam_search": ("pre_ids", "pre_scores", "scores"),
    "box_clip": ("ImInfo",), "cross_entropy_grad2": ("XShape",), "density_prior_box": ("Input", "Image"), "fused_elementwise_add": ("axis",),
    "fused_elementwise_div": ("axis",), "fused_elementwise_mul": ("axis",), "fused_elementwise_sub": ("axis",), "fusion_seqexpand_concat_fc": ("X",),
    "fusion_seqpool_cvm_concat": ("CVM",), "generate_proposals": ("ImInfo",), "generate_proposals_v2": ("ImShape",), "linear_interp_v2": ("OutSize",),
    "lu_unpack": ("Pivots",), "pow2_decay_with_linear_warmup": ("LearningRate", "Step"), "prior_box": ("Input", "Image"),
    "reduce_all": ("out_dtype",), "reduce_any": ("out_dtype",), "retinanet_detection_output": ("ImInfo",), "sequence_pad": ("PadValue",),
    "set_value": ("none_axes", "dtype"), "unique": ("axis",), "unsqueeze": ("axes",), "unsqueeze2": ("axes",),
}  # fmt: skip
"""What an operator takes in more forms than its words name, as PaddlePaddle does, or leaves unread."""
OPERATORS = [(c.type, c) for c in operators() if c.samples]


def of_type(given: Any, dtype: DType) -> Any:
    """The same dims with elements of another type, in each tensor of a list."""
    if isinstance(given, (list, tuple)):
        return [of_type(one, dtype) for one in given]
    return replace(given, dtype=dtype, data=None, low=0, high=1)


def given_operands(cls: type[Operator], arguments: Mapping[str, Any]) -> Iterator[Operand]:
    """The operands of a sample that are tensors with elements of their own."""
    for operand in cls.schema.operands:
        given = arguments.get(operand.name)
        if given and LOD_RANK_TABLE not in operand.kinds and (operand.many or isinstance(given, SampleTensor)):
            yield operand


def refused(cls: type[Operator], arguments: Mapping[str, Any], error: type[Exception], *says: str) -> None:
    with pytest.raises(error) as caught:
        build(cls, arguments)
    assert all(s in str(caught.value) for s in says), (says, str(caught.value))


def beyond(field: Attribute) -> Iterator[tuple[Any, str]]:
    """Values that the attribute does not take, and what it says then."""
    if field.choices is not None:
        one = field.choices[0]
        yield "none of these" if isinstance(one, str) else not one if isinstance(one, bool) else 987, "; seen "
    if field.low is not None:
        yield field.low - 1, f"at least {field.low}"
    if field.high is not None:
        yield field.high + 1, f"at most {field.high}"


@pytest.mark.quick_cases(one_in=3)
@of_each_operator(OPERATORS)
def test_operands_of_other_types_are_refused(name: str, cls: type[Operator]) -> None:
    arguments = max((s.arguments for s in cls.samples), key=lambda given: sum(1 for _ in given_operands(cls, given)))
    for operand in given_operands(cls, arguments):
        for dtype in TYPES:
            if dtype not in operand.dtypes:
                changed = {**arguments, operand.name: of_type(arguments[operand.name], dtype)}
                refused(cls, changed, TypeMismatchError, f"{operand.name} must be", dtype.name)


@pytest.mark.quick_cases(one_in=3, turn=1)
@of_each_operator(OPERATORS)
def test_operands_of_two_types_are_refused_where_they_must_have_one(name: str, cls: type[Operator]) -> None:
    arguments = cls.samples[0].arguments
    for operand in given_operands(cls, arguments):
        if operand.same_type_as in arguments:
            of = arguments[operand.same_type_as]
            held = (of[0] if isinstance(of, (list, tuple)) else of).dtype
            other = next((d for d in operand.dtypes if d is not held), None)
            if other is not None:
                refused(cls, {**arguments, operand.name: of_type(arguments[operand.name], other)}, TypeMismatchError, "must have the element type of")


@pytest.mark.quick_cases(one_in=3, turn=2)
@of_each_operator(OPERATORS)
def test_a_missing_operand_or_attribute_is_refused(name: str, cls: type[Operator]) -> None:
    arguments = cls.samples[0].arguments
    for operand in cls.schema.operands:
        if not operand.optional:
            refused(cls, {**arguments, operand.name: None}, SchemaError, f"the input {operand.name} is missing")
    for attribute in cls.schema.attributes.values():
        if attribute.default is REQUIRED:
            refused(cls, {n: v for n, v in arguments.items() if n != attribute.name}, SchemaError, f"needs the attribute {attribute.name}")


@pytest.mark.quick_cases(one_in=3)
@of_each_operator(OPERATORS)
def test_a_tensor_in_place_of_an_array_is_refused(name: str, cls: type[Operator]) -> None:
    for operand in cls.schema.operands:
        if operand.kinds == (LOD_TENSOR_ARRAY,):
            tensor = SampleTensor(FP32, (2,), 0, 1)
            refused(cls, {**cls.samples[0].arguments, operand.name: [tensor] if operand.many else tensor}, TypeMismatchError, "of kind LOD_TENSOR_ARRAY")


@pytest.mark.quick_cases(one_in=3, turn=1)
@of_each_operator(OPERATORS)
def test_an_attribute_out_of_its_range_is_refused(name: str, cls: type[Operator]) -> None:
    for attribute in cls.schema.attributes.values():
        for value, says in beyond(attribute):
            of_lists = attribute.type.name.endswith("S")
            refused(cls, {**cls.samples[0].arguments, attribute.name: [value] if of_lists else value}, SchemaError, f"attribute {attribute.name} must be", says)


@pytest.mark.quick_cases(one_in=3, turn=2)
@of_each_operator(OPERATORS)
def test_dims_and_axes_other_than_the_words_say_are_refused(name: str, cls: type[Operator]) -> None:
    for given, why, arguments in mutations(cls):
        if given not in TAKES_MORE.get(cls.type, ()):
            try:
                build(cls, arguments)
            except (ShapeError, TypeMismatchError, SchemaError) as error:
                assert error.op == cls.type and error.required is not None and error.required.split("\n")[0] in str(error), (given, why)
            else:
                pytest.fail(f"{given} is taken: {why}")


def test_words_of_most_operators_name_what_is_refused() -> None:
    """Words that name nothing would leave an operator unchecked without a failure."""
    counts = [sum(1 for _ in mutations(cls)) for _, cls in OPERATORS]
    assert sum(counts) >= 1400 and sum(map(bool, counts)) >= 0.6 * len(counts), (sum(counts), sum(map(bool, counts)), len(counts))
