"""Quantization and the scaling of losses against their formulas in numpy, as PaddlePaddle's kernels compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape.core.spec import dtype, tensor
from foreshape.language.program import Program
from foreshape.transforms.backward import append_backward

RNG = np.random.RandomState(3)
X = (RNG.standard_normal((4, 3, 5)) * 2).astype("float32")
TIES = np.array([0.5, 1.5, 2.5, -0.5, -2.5, 127.0], dtype="float32")


def computed(type: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None, asked: tuple[str, ...] = ()) -> dict[str, Any]:
    """All results of one op, by slot; those that are optional where they are ``asked`` for."""
    program = Program()
    block = program.global_block
    given: dict[str, Any] = {}
    feed: dict[str, np.ndarray] = {}
    for slot, value in inputs.items():
        arrays = value if isinstance(value, list) else [value]
        names = [f"{slot}.{k}" for k in range(len(arrays))]
        given[slot] = [block.create_variable(n, tensor(dtype(a.dtype), *a.shape), need_check_feed=True) for n, a in zip(names, arrays, strict=True)]
        feed |= {n: a.copy() for n, a in zip(names, arrays, strict=True)}
    op = block.append_op(type, given, {s: s for s in asked}, attrs)
    made = {s: names for s, names in op.outputs.items() if all(n in block.vars for n in names)}
    values = iter(fs.Executor().run(program, feed, [n for names in made.values() for n in names], fs.Scope()))
    return {s: [next(values) for _ in names] if len(names) > 1 else next(values) for s, names in made.items()}


def grid(x: np.ndarray, scale: Any, most: int) -> np.ndarray:
    """Of two whole numbers as near the one away from 0."""
    v = np.clip(x, -scale, scale) / scale * most
    return np.trunc(v + np.copysign(0.5, v))


def one(value: float) -> np.ndarray:
    return np.array([value], dtype="float32")


@pytest.mark.parametrize("bits", [8, 4])
def test_numbers_on_the_grid_of_their_largest(bits: int) -> None:
    most = 2 ** (bits - 1) - 1
    for x in (X, TIES):
        scale = np.abs(x).max()
        made = computed("fake_quantize_abs_max", {"X": x}, {"bit_length": bits})
        np.testing.assert_array_equal(made["Out"], grid(x, scale, most))
        assert made["OutScale"].tolist() == [scale]
        made = computed("fake_quantize_dequantize_abs_max", {"X": x}, {"bit_length": bits})
        np.testing.assert_allclose(made["Out"], grid(x, scale, most) * scale / most, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_channels_have_scales_of_their_own(axis: int) -> None:
    scale = np.abs(X).max(axis=tuple({0, 1, 2} - {axis}), keepdims=True)
    made = computed("fake_channel_wise_quantize_abs_max", {"X": X}, {"quant_axis": axis})
    np.testing.assert_array_equal(made["Out"], grid(X, scale, 127))
    np.testing.assert_array_equal(made["OutScale"], scale.reshape(-1))
    back = computed("fake_channel_wise_dequantize_max_abs", {"X": made["Out"], "Scales": [made["OutScale"]]}, {"quant_axis": axis})["Out"]
    both = computed("fake_channel_wise_quantize_dequantize_abs_max", {"X": X}, {"quant_axis": axis})["Out"]
    np.testing.assert_allclose(back, both, rtol=1e-6)
    assert np.abs(back - X).max() <= scale.max() / 127 / 2 + 1e-6


def test_two_scales_multiply() -> None:
    scales = [np.array([0.5, 1, 2, 3, 4], "float32"), one(3.0)]
    made = computed("fake_channel_wise_dequantize_max_abs", {"X": X, "Scales": scales}, {"x_num_col_dims": 2, "quant_bits": [8, 4]})
    np.testing.assert_allclose(made["Out"], X * scales[0] / 127 * 3 / 7, rtol=1e-6)


@pytest.mark.parametrize("type", ["fake_quantize_moving_average_abs_max", "fake_quantize_dequantize_moving_average_abs_max"])
def test_a_scale_that_is_an_average(type: str) -> None:
    back = 2.0 / 127 if "dequantize" in type else 1.0
    np.testing.assert_allclose(computed(type, {"X": X, "InScale": one(2)}, {"is_test": True})["Out"], grid(X, 2.0, 127) * back, rtol=1e-6)
    made = computed(type, {"X": X, "InScale": one(2), "InAccum": one(3), "InState": one(1.5)}, {"moving_rate": 0.75})
    total, count = 0.75 * 3 + np.abs(X).max(), 0.75 * 1.5 + 1
    assert made["OutAccum"] == pytest.approx(total) and made["OutState"] == pytest.approx(count) and made["OutScale"] == pytest.approx(total / count)
    seen = computed("moving_average_abs_max_scale", {"X": X, "InAccum": one(3), "InState": one(1.5)}, {"moving_rate": 0.75}, ("OutScale",))
    assert seen["OutScale"] == made["OutScale"] and (seen["Out"] == X).all()


@pytest.mark.parametrize("round_type", [0, 1])
def test_whole_numbers_and_back(round_type: int) -> None:
    attrs = {"quant_axis": -1, "round_type": round_type}
    made = computed("quantize_linear", {"X": TIES, "Scale": one(127), "ZeroPoint": one(0)}, attrs)["Y"]
    assert made.tolist() == [[0, 2, 2, 0, -2, 127], [1, 2, 3, -1, -3, 127]][round_type]
    far = computed("quantize_linear", {"X": one(-500), "Scale": one(127)}, attrs)["Y"]
    assert far.tolist() == [[-128.0], [-127.0]][round_type]
    scale = np.array([1, 2, 3, 4], "float32")
    back = computed("dequantize_linear", {"X": np.arange(12, dtype="int8").reshape(4, 3), "Scale": scale}, {"quant_axis": 0})["Y"]
    np.testing.assert_allclose(back, np.arange(12).reshape(4, 3) * scale[:, None] / 127, rtol=1e-6)
    assert back.dtype == np.float32
    trained = computed("quantize_linear", {"X": X, "Scale": one(2), "InAccum": one(3), "InState": one(1.5)}, {"quant_axis": -1, "is_test": False})
    assert trained["OutScale"] == pytest.approx((2.7 + np.abs(X).max()) / 2.35)


def test_the_gradient_passes_straight_through() -> None:
    program = Program()
    block = program.global_block
    x = block.create_variable("x", tensor(fs.FP32, 4, 3, 5), need_check_feed=True)
    given = block.create_variable("g", tensor(fs.FP32, 4, 3, 5), need_check_feed=True)
    x.stop_gradient = False
    out, _ = block.apply("fake_quantize_dequantize_abs_max", {"X": x})
    ((_, gradient),) = append_backward(out, ["x"], loss_gradient=given)
    assert block.ops[-1].type == "stright_throuth_estimator_grad"
    np.testing.assert_array_equal(fs.Executor().run(program, {"x": X, "g": -X}, [gradient], fs.Scope())[0], -X)


def test_a_scale_that_is_not_made_in_a_test_does_not_stop_a_program() -> None:
    program = Program()
    block = program.global_block
    x = block.create_variable("x", tensor(fs.FP32, 4, 3, 5), need_check_feed=True)
    block.create_variable("scale", tensor(fs.FP32, 1), persistable=True)
    block.append_op("moving_average_abs_max_scale", {"X": x}, {"Out": "out", "OutScale": "scale"}, {"is_test": True})
    again = Program.from_bytes(program.to_bytes())
    scope = fs.Scope()
    scope.set("scale", one(7.0))
    np.testing.assert_array_equal(fs.Executor().run(again, {"x": X}, ["out"], scope)[0], X)
    assert scope.get("scale").tolist() == [7.0]


# --- the scaling of losses


@pytest.mark.parametrize("bad", [1.0, np.inf, np.nan])
def test_gradients_are_freed_of_the_scale_and_looked_at(bad: float) -> None:
    first, second = np.array([8.0, -4.0], "float32"), np.array([2.0, bad], "float32")
    made = computed("check_finite_and_unscale", {"X": [first, second], "Scale": one(8)})
    assert made["FoundInfinite"].tolist() == [not np.isfinite(bad)]
    np.testing.assert_array_equal(made["Out"][0], first / 8)
    np.testing.assert_array_equal(made["Out"][1], [0.25, 0.125] if bad == 1.0 else [0.0, np.nan])


def test_a_scale_goes_up_after_good_steps_and_down_after_bad_ones() -> None:
    attrs = {"incr_every_n_steps": 3, "decr_every_n_nan_or_inf": 2, "incr_ratio": 2.0, "decr_ratio": 0.5}
    scale, good, bad = one(4), np.array([0], "int32"), np.array([0], "int32")
    seen: list[tuple[float, int, int]] = []
    for found in (0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1):
        given = {"X": [one(3), one(5)], "FoundInfinite": np.array([bool(found)]), "PrevLossScaling": scale, "InGoodSteps": good, "InBadSteps": bad}
        made = computed("update_loss_scaling", given, attrs)
        assert [x.tolist() for x in made["Out"]] == ([[0.0], [0.0]] if found else [[3.0], [5.0]])
        scale, good, bad = made["LossScaling"], made["OutGoodSteps"], made["OutBadSteps"]
        seen.append((float(scale[0]), int(good[0]), int(bad[0])))
    assert seen == [
        (4, 1, 0), (4, 2, 0), (8, 0, 0), (8, 0, 1), (4, 0, 0), (4, 1, 0), (4, 0, 1), (2, 0, 0), (2, 0, 1), (1, 0, 0), (1, 0, 1), (1, 0, 0),
    ]  # fmt: skip
    huge = {"X": [one(3)], "FoundInfinite": np.array([False]), "PrevLossScaling": one(3e38), "InGoodSteps": np.array([2], "int32"), "InBadSteps": bad}
    assert computed("update_loss_scaling", huge, attrs)["LossScaling"] == one(3e38)
    stopped = huge | {"PrevLossScaling": one(4), "StopUpdate": np.array([True])}
    made = computed("update_loss_scaling", stopped, attrs)
    assert made["LossScaling"] == one(4) and made["OutGoodSteps"].tolist() == [2]
