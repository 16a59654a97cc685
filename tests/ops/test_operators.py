"""Run for every operator: the checks of its samples and rejects, which `fs.check_operator` runs for an operator of somebody's own."""

from __future__ import annotations

import pytest
from support.harness import of_each_operator, operators, rejected, sampled

import foreshape.language.wire  # noqa: F401  the codec
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Reject, Sample
from foreshape.runtime.operator_checks.gradients import check_gradient, has_gradient
from foreshape.runtime.operator_checks.sample_checks import check_file, check_kernel, check_reject, check_symbols, check_text

CASES = list(sampled())
COMMON = (
    "tanh", "sigmoid", "relu", "gelu", "swish", "softmax", "matmul", "matmul_v2", "mul", "fc", "elementwise_add", "elementwise_mul", "elementwise_sub",
    "elementwise_div", "layer_norm", "batch_norm", "conv2d", "pool2d", "cross_entropy", "softmax_with_cross_entropy", "lookup_table_v2", "reduce_mean",
    "reduce_sum", "mean", "concat", "sequence_attention", "lstm", "gru", "square", "exp", "log", "sqrt",
)  # fmt: skip
"""What most networks are made of: a wrong gradient of these is found by the operator's own test in the quick suite."""


def test_every_operator_has_samples_and_words() -> None:
    for cls in operators():
        assert cls.samples or cls.region, f"{cls.type} has no samples"  # what runs a block needs one: see tests/control
        assert (cls.__doc__ or "").strip(), f"{cls.type} has no docstring"


@of_each_operator(CASES)
def test_the_kernel_gives_what_the_rule_says(name: str, cls: type[Operator], sample: Sample) -> None:
    check_kernel(cls, sample)


@pytest.mark.quick_cases(one_in=3, turn=2)
@of_each_operator(CASES, quick=3)
def test_the_symbolic_answer_substituted_is_the_concrete_one(name: str, cls: type[Operator], sample: Sample) -> None:
    check_symbols(cls, sample)


@pytest.mark.quick_cases(one_in=3, turn=1)
@of_each_operator((c for c in CASES if c[2].exact), quick=6)
def test_the_program_runs_saves_and_reads_back(name: str, cls: type[Operator], sample: Sample) -> None:
    check_file(cls, sample)


@pytest.mark.quick_cases(one_in=2)
@of_each_operator(CASES, quick=6)
def test_the_text_form_reads_back(name: str, cls: type[Operator], sample: Sample) -> None:
    check_text(cls, sample)


@of_each_operator((c for c in CASES if has_gradient(c[1], c[2])), quick=6, always=COMMON)
def test_the_gradient_agrees_with_finite_differences(name: str, cls: type[Operator], sample: Sample) -> None:
    check_gradient(cls, sample)


@pytest.mark.quick_cases(one_in=2, turn=1)
@of_each_operator(rejected())
def test_what_it_refuses_is_refused_with_words(name: str, cls: type[Operator], reject: Reject) -> None:
    check_reject(cls, reject)
