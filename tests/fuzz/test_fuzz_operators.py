"""A short run of the operators' fuzzer, and the faults that it found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import operator_cases
import operators as fuzzer
import pytest
import torch
from support.harness import answer
from support.kernel_calls import backward, forward

from foreshape.core.spec import FP16, FP32, FP64, INT64, tensor
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import registry
from foreshape.language.operator.samples import Sample, SampleTensor

CASES = 480


def test_random_cases_of_operators() -> None:
    counts = fuzzer.fuzz(0, 5, (), CASES)
    assert counts.kinds["cases"] == CASES and len(counts.types) > 200
    assert counts.kinds["compared with a reference"] > 60 and counts.kinds["gradients compared with autograd"] > 5


def test_a_fault_is_found_and_can_be_seen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fuzzer.REFERENCES, "exp", lambda op, a: {"Out": a.X.exp() + 1e-3})
    with pytest.raises(fuzzer.Fault, match=r"--seed 1 --case \d+ exp") as caught:
        fuzzer.fuzz(0, 1, ["exp"], 50)
    case = int(str(caught.value).rpartition("--case ")[2].split()[0])
    with pytest.raises(fuzzer.Fault, match=f"--case {case} exp"):
        fuzzer.fuzz(0, 1, ["exp"], None, case)


def value(of: Any, *dims: int, low: float = -2.0, high: float = 2.0, data: Any = None) -> SampleTensor:
    return SampleTensor(of, dims, low, high, False, data)


@pytest.mark.parametrize("more", [{}, {"is_test": True}, {"use_global_stats": True}, {"is_test": True, "use_global_stats": True}])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_statistics_of_half_precision_are_in_the_type_that_is_inferred(rows: int, more: dict[str, Any]) -> None:
    stats = {n: value(FP16, 3, low=0.5) for n in ("Scale", "Bias", "Mean", "Variance")}
    call = forward(registry.get("batch_norm"), Sample({"X": value(FP16, rows, 3, 2), **stats, **more}))
    for spec, made in zip(answer(call.operator, call.specs).results, call.run(), strict=True):
        assert spec is not None and made.dtype is getattr(torch, {"fp16": "float16", "fp32": "float32"}[spec.dtype.name]), spec


def test_the_gradient_of_an_extreme_that_is_handed_on_with_fewer_digits() -> None:
    call = forward(registry.get("reduce_max"), Sample({"X": value(FP64, 3, 5), "dim": [1], "out_dtype": FP32.code}))
    back = backward(call)
    assert back is not None
    (grad,) = back.run()
    assert int((grad != 0).sum()) == 3, "each row's largest gets its gradient"


def test_a_probability_of_zero_in_half_precision() -> None:
    arguments = {"X": value(FP16, 2, 3, data=[[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]), "Label": value(INT64, 2, 1, data=[[0], [0]])}
    (loss,) = forward(registry.get("cross_entropy"), Sample(arguments)).run()
    np.testing.assert_array_equal(loss.numpy(), np.array([[65504.0], [0.0]], "float16"))


@pytest.mark.parametrize(("type_", "dims", "more"), [
    ("bilinear_interp_v2", (2, 0, 4, 5), {"out_h": 3, "out_w": 2}), ("nearest_interp_v2", (2, 0, 4, 5), {"out_h": 3, "out_w": 2}),
    ("pad3d", (2, 0, 4, 5, 6), {"paddings": [1, 1, 1, 1, 1, 1], "mode": "replicate"}), ("pixel_shuffle", (0, 4, 3, 5), {"upscale_factor": 2}),
    ("pixel_shuffle", (2, 3, 5, 0), {"upscale_factor": 2, "data_format": "NHWC"}),
])  # fmt: skip
def test_images_of_nothing_have_the_dims_that_are_inferred(type_: str, dims: tuple[int, ...], more: dict[str, Any]) -> None:
    call = forward(registry.get(type_), Sample({"X": value(FP32, *dims), **more}))
    (spec,), (made,) = answer(call.operator, call.specs).results, call.run()
    assert tuple(made.shape) == spec.dims  # type: ignore[union-attr]
    back = backward(call)
    assert back is not None and tuple(back.run()[0].shape) == dims


@pytest.mark.parametrize(("type_", "attributes"), [
    ("adam", {"beta2": 2.5}), ("adam", {"beta1": -0.1}), ("adam", {"beta1": 1.0}), ("selu", {"alpha": -1.0}), ("selu", {"scale": -1.0}),
])  # fmt: skip
def test_numbers_with_which_a_formula_has_no_answer_are_refused(type_: str, attributes: dict[str, float]) -> None:
    with pytest.raises(SchemaError, match=r"must be at least 0\.0"):
        registry.get(type_).describe(attributes)


def test_labels_that_lie_apart_are_read_as_labels() -> None:
    arguments = {
        "Logits": replace(value(FP64, 9, 4), lengths=((4, 5),)), "Label": replace(value(INT64, 4, 1, data=[[1], [2], [2], [3]]), lengths=((1, 3),)),
    }  # fmt: skip
    call = forward(registry.get("warpctc"), Sample(arguments))
    for plain, apart in zip(call.run(), call.laid(operator_cases.sliced, "Label").run(), strict=True):
        np.testing.assert_array_equal(plain.numpy(), apart.numpy())


def test_one_number_in_any_dims_scales_an_example_of_one() -> None:
    arguments = {"X": value(FP64, 4, 1), "Scale": value(FP64), "Bias": value(FP64, 1, 1)}
    made = forward(registry.get("layer_norm"), Sample(arguments)).run()
    assert tuple(made[0].shape) == (4, 1)


def test_an_element_of_an_array_is_as_it_is_described() -> None:
    arguments = {"X": [None, value(FP32, 1, 3)], "I": value(INT64, 1, data=[1]), "X_W": value(FP32, 2, 3)}
    with pytest.raises(ExecutionError, match="must have the dims of X_W"):
        forward(registry.get("read_from_array"), Sample(arguments)).run()


def test_a_gradient_is_of_the_dims_and_the_type_of_what_it_is_the_gradient_of() -> None:
    from foreshape.language.operator.require import RuleError

    product = registry.get("matmul_v2").grad_class
    assert product is not None
    operator = product.with_values({"trans_x": False, "trans_y": False})
    x, y = tensor(FP32, 2, 3), tensor(FP32, 3, 5)
    answer(operator, (x, y, tensor(FP32, 2, 5)))
    for wrong in (tensor(FP32, 2, 4), tensor(FP32, 5), tensor(FP64, 2, 5)):
        with pytest.raises(RuleError, match="Out@GRAD must have the"):
            answer(operator, (x, y, wrong))
