"""What arithmetic, activations, comparisons and random tensors compute, against numpy and against their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.dims import symbol
from foreshape.core.spec import FP32, INT32, INT64, SELECTED_ROWS, Spec, tensor
from foreshape.core.values.rows import Rows
from foreshape.language.program import Program


def computed(type: str, inputs: dict[str, np.ndarray], attrs: dict[str, Any] | None = None) -> np.ndarray:
    """The result of one op."""
    program = Program()
    block = program.global_block
    given = {s: block.create_variable(s, tensor(fs.core.spec.dtype(a.dtype), *a.shape), need_check_feed=True) for s, a in inputs.items()}
    out = block.apply(type, given, attrs)
    return fs.Executor().run(program, inputs, [out], fs.Scope())[0]


X = np.array([-30.0, -4.0, -1.5, -0.3, 0.0, 0.2, 0.5, 1.5, 3.5, 7.0, 30.0])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


FORMULAS: list[tuple[str, dict[str, Any], Callable[[np.ndarray], Any]]] = [
    ("relu6", {}, lambda x: np.clip(x, 0, 6)),
    ("relu6", {"threshold": 2.0}, lambda x: np.clip(x, 0, 2)),
    ("leaky_relu", {"alpha": 0.25}, lambda x: np.where(x > 0, x, 0.25 * x)),
    ("elu", {"alpha": 0.5}, lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    ("celu", {"alpha": 0.5}, lambda x: np.where(x > 0, x, 0.5 * np.expm1(x / 0.5))),
    ("hard_shrink", {"threshold": 1.5}, lambda x: np.where(np.abs(x) > 1.5, x, 0)),
    ("softshrink", {"lambda": 1.5}, lambda x: np.sign(x) * np.maximum(np.abs(x) - 1.5, 0)),
    ("thresholded_relu", {"threshold": 0.5}, lambda x: np.where(x > 0.5, x, 0)),
    ("soft_relu", {"threshold": 3.0}, lambda x: np.logaddexp(0, np.clip(x, -3, 3))),
    ("stanh", {}, lambda x: 1.7159 * np.tanh(0.67 * x)),
    ("label_smooth", {"epsilon": 0.1}, lambda x: 0.9 * x + 0.1 / len(x)),
    ("selu", {}, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
    ("brelu", {"t_min": -1.0, "t_max": 3.0}, lambda x: np.clip(x, -1, 3)),
    ("hard_sigmoid", {}, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    ("hard_swish", {}, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    ("hard_swish", {"threshold": 4.0, "scale": 5.0, "offset": 1.0}, lambda x: x * np.clip(x + 1, 0, 4) / 5),
    ("sigmoid", {}, sigmoid),
    ("logsigmoid", {}, lambda x: -np.logaddexp(0, -x)),
    ("tanh", {}, np.tanh),
    ("tanh_shrink", {}, lambda x: x - np.tanh(x)),
    ("softsign", {}, lambda x: x / (1 + np.abs(x))),
    ("gelu", {}, lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))),
    ("gelu", {"approximate": True}, lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    ("silu", {}, lambda x: x * sigmoid(x)),
    ("swish", {"beta": 0.5}, lambda x: x * sigmoid(0.5 * x)),
    ("softplus", {}, lambda x: np.logaddexp(0, x)),
    ("softplus", {"beta": 2.0, "threshold": 1.0}, lambda x: np.where(2 * x > 1, x, np.logaddexp(0, 2 * x) / 2)),
    ("mish", {}, lambda x: x * np.tanh(np.logaddexp(0, x))),
    ("mish", {"threshold": 1.0}, lambda x: x * np.tanh(np.where(x > 1, x, np.logaddexp(0, x)))),
    ("log_softmax", {}, lambda x: x - np.logaddexp.reduce(x)),
    ("round", {}, lambda x: np.trunc(x + np.copysign(0.5, x))),
    ("sign", {}, np.sign),
    ("erf", {}, np.vectorize(math.erf)),
    ("pow", {"factor": 3.0}, lambda x: x**3),
    ("scale", {"scale": 2.0, "bias": 0.5}, lambda x: 2 * x + 0.5),
    ("scale", {"scale": 2.0, "bias": 0.5, "bias_after_scale": False}, lambda x: 2 * (x + 0.5)),
    ("clip", {"min": -1.0, "max": 2.0}, lambda x: np.clip(x, -1, 2)),
]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("type", "attrs", "formula"), FORMULAS, ids=[f"{t}-{i}" for i, (t, _, _) in enumerate(FORMULAS)])
def test_a_function_of_one_tensor_is_its_formula(type: str, attrs: dict[str, Any], formula: Callable[[np.ndarray], Any]) -> None:
    np.testing.assert_allclose(computed(type, {"X": X}, attrs), formula(X), rtol=1e-6, atol=1e-9)


def test_rounding_goes_away_from_zero_and_keeps_what_is_no_number() -> None:
    x = np.array([0.5, -0.5, 2.5, 0.49999997, 8388609.0, math.inf, -math.inf, math.nan], dtype=np.float32)
    np.testing.assert_array_equal(computed("round", {"X": x}), [1, -1, 3, 0, 8388609.0, math.inf, -math.inf, math.nan])


@pytest.mark.parametrize(
    ("type", "expected"),
    [("elementwise_div", [3, -3, -3, 3, -(2**63)]), ("elementwise_floordiv", [3, -4, -4, 3, -(2**63)]), ("elementwise_mod", [1, 1, -1, -1, 0])],
)
def test_integers_are_divided_with_every_sign(type: str, expected: list[int]) -> None:
    x = np.array([7, -7, 7, -7, -(2**63)])
    y = np.array([2, 2, -2, -2, -1])
    assert computed(type, {"X": x, "Y": y}).tolist() == expected


@pytest.mark.parametrize("type", ["elementwise_div", "elementwise_floordiv", "elementwise_mod"])
def test_a_division_of_integers_by_zero_is_an_error_of_the_run(type: str) -> None:
    with pytest.raises(fs.ExecutionError):
        computed(type, {"X": np.array([1, 2]), "Y": np.array([1, 0])})


def test_where_two_numbers_are_equal_the_gradient_of_the_extremes_is_one_sides() -> None:
    for type in ("elementwise_max", "elementwise_min"):
        one = np.ones((2, 3), np.float32)
        program = Program()
        block = program.global_block
        names = {"X": "X", "Y": "Y", "Out@GRAD": "G"}
        inputs = {s: block.create_variable(n, tensor(FP32, 2, 3), need_check_feed=True) for s, n in names.items()}
        d_x, d_y = _gradients(block, f"{type}_grad", inputs)
        got = fs.Executor().run(program, dict.fromkeys(names.values(), one), [d_x, d_y], fs.Scope())
        np.testing.assert_array_equal(got[0], 0 * one)
        np.testing.assert_array_equal(got[1], one)


def _gradients(block: Any, type: str, inputs: dict[str, Any]) -> list[str]:
    block.append_op(type, inputs, {"X@GRAD": "dX", "Y@GRAD": "dY"})
    return ["dX", "dY"]


def test_known_numbers_are_carried_through_arithmetic() -> None:
    program = Program()
    block = program.global_block
    batch = symbol("batch")
    x = block.create_variable("x", tensor(INT64, 2).with_value((batch, 6)))
    two = block.apply("fill_constant", {}, {"shape": [1], "dtype": INT64.code, "value": 2.0})

    def value(type: str, y: Any = two, **attrs: Any) -> Any:
        return block.apply(type, {"X": x} | ({"Y": y} if y is not None else {}), attrs).spec.value

    assert value("elementwise_add") == (batch + 2, 8)
    assert value("elementwise_sub") == (batch - 2, 4)
    assert value("elementwise_mul") == (2 * batch, 12)
    assert value("elementwise_floordiv") == (batch // 2, 3)
    assert value("elementwise_div") == (batch // 2, 3)
    assert value("scale", None, scale=3.0, bias=-1.0) == (3 * batch - 1, 17)
    assert value("cast", None, in_dtype=INT64.code, out_dtype=INT32.code) == (batch, 6)
    assert value("cast", None, in_dtype=INT64.code, out_dtype=FP32.code) == (batch, 6.0)
    assert value("scale", None, scale=2.0**62) is None  # it would wrap
    ragged = block.apply("range", {"Start": block.apply("elementwise_sub", {"X": two, "Y": two}), "End": two, "Step": two})
    assert ragged.spec.known_dims == (1,) and ragged.spec.value == (0,)


def test_sizes_that_only_the_run_tells_belong_to_their_op() -> None:
    program = Program()
    block = program.global_block
    sizes = block.create_variable("sizes", tensor(INT64, 2), need_check_feed=True)
    first = block.apply("fill_constant", {"ShapeTensor": sizes}, {"value": 1.0})
    second = block.apply("fill_constant", {"ShapeTensor": sizes}, {"value": 2.0})
    assert not set(first.spec.known_dims) & set(second.spec.known_dims)
    assert str(first.spec.known_dims[0]).startswith(first.name)
    before = [v.spec for v in (first, second)]
    program.forget()
    program.infer()
    assert [block.vars[v.name].spec for v in (first, second)] == before
    assert fs.Executor().run(program, {"sizes": np.array([3, 4])}, [first], fs.Scope())[0].shape == (3, 4)


def test_scalars_in_a_file_are_read_and_written_as_they_were() -> None:
    program = Program()
    numbers = {"shape": [3], "dtype": fs.core.spec.FP64.code, "values": [0.1, -2.5, 1e300]}
    out = program.global_block.apply("assign_value", {}, numbers)
    again = Program.from_bytes(program.to_bytes())
    assert again.to_bytes() == program.to_bytes()
    assert again.global_block.ops[0].attrs["values"] == (0.1, -2.5, 1e300)
    assert fs.Executor().run(again, {}, [out.name], fs.Scope())[0].tolist() == numbers["values"]


def test_scaling_and_clipping_touch_only_the_rows_there_are() -> None:
    import torch

    from foreshape.language.ops import get

    rows = Rows(torch.tensor([4, 1, 4]), torch.tensor([[1.0], [2.0], [3.0]]), 6)
    spec = Spec(SELECTED_ROWS, FP32, (6, 1))
    scale = get("scale").describe({"scale": 2.0}).operator
    clip = get("clip").describe({"min": 0.0, "max": 3.0}).operator
    mul = get("elementwise_mul").describe(None).operator
    assert scale and clip and mul
    assert scale.infer_shape(spec, None) is spec and scale.infer_var_type(spec, None) is SELECTED_ROWS
    assert scale.kernel(rows, None).values.tolist() == [[2.0], [4.0], [6.0]]
    assert clip.kernel(rows, None, None).to_dense().reshape(-1).tolist() == [0, 2, 0, 0, 3, 0]
    assert mul.kernel(rows, torch.tensor([0.5])).to_dense().reshape(-1).tolist() == [0, 1, 0, 0, 2, 0]


def drawn(make: Callable[[], Any], runs: int = 1) -> list[np.ndarray]:
    program = Program()
    with fs.program_guard(program, Program()):
        out = make()
    executor = fs.Executor()
    return [executor.run(program, {}, [out], fs.Scope())[0] for _ in range(runs)]


def test_a_seed_makes_each_draw_the_same_and_no_seed_another() -> None:
    makers: list[Callable[[int], Any]] = [
        lambda seed: layer.uniform_random([50], seed=seed),
        lambda seed: layer.gaussian_random([50], seed=seed),
        lambda seed: layer.randint(0, 1000, [50], seed=seed),
    ]
    for make in makers:
        first, second = drawn(lambda make=make: make(3), 2)
        np.testing.assert_array_equal(first, second)
        assert (drawn(lambda make=make: make(4))[0] != first).any()
        free = drawn(lambda make=make: make(0), 2)
        assert (free[0] != free[1]).any()


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "fp16", "bf16"])
def test_random_tensors_have_the_moments_that_were_asked_for(dtype: str) -> None:
    code = fs.core.spec.dtype(dtype).code

    def moments(type: str, **attrs: Any) -> tuple[float, float, float, float]:
        program = Program()
        out = program.global_block.apply(type, {}, {"shape": [200, 100], "dtype": code, "seed": 5} | attrs)
        wide = program.global_block.apply("cast", {"X": out}, {"in_dtype": code, "out_dtype": fs.core.spec.FP64.code})
        x = fs.Executor().run(program, {}, [wide], fs.Scope())[0]
        return x.mean(), x.std(), x.min(), x.max()

    mean, std, low, high = moments("uniform_random", min=-1.0, max=3.0)
    assert abs(mean - 1) < 0.05 and abs(std - 4 / math.sqrt(12)) < 0.03 and low >= -1 and high <= 3
    mean, std, _, _ = moments("gaussian_random", mean=1.0, std=2.0)
    assert abs(mean - 1) < 0.07 and abs(std - 2) < 0.05
    mean, std, low, high = moments("truncated_gaussian_random", mean=1.0, std=2.0)
    assert abs(mean - 1) < 0.07 and abs(std - 2 * 0.8796) < 0.05 and low >= -3 and high <= 5  # 0.8796: the deviation within two


def test_numbers_that_single_precision_does_not_hold_are_not_rounded() -> None:
    program = Program()
    with fs.program_guard(program, Program()):
        i = layer.data("i", [2], "int64")
        d = layer.data("d", [2], "fp64")
        outs = [i + 16777217, i - 16777217, i * 16777217, d + 0.1, d * 1e300, i + 1]
        for wrong in (lambda: i + 0.5, lambda: i * 1.0, lambda: i**0.5):
            with pytest.raises(fs.TypeMismatchError, match="floating-point"):
                wrong()
    assert outs[-1].op is not None and outs[-1].op.type == "scale"
    got = fs.Executor().run(program, {"i": np.array([3, 4]), "d": np.array([1.0, 2.0])}, outs, fs.Scope())
    assert [g.tolist() for g in got] == [
        [16777220, 16777221],
        [-16777214, -16777213],
        [50331651, 67108868],
        [1.1, 2.1],
        [1e300, 2e300],
        [4, 5],
    ]


def test_an_increment_in_place_is_seen_by_what_follows() -> None:
    program = Program()
    with fs.program_guard(program, Program()):
        i = layer.fill_constant([1], "int64", 4)
        before = i + 0
        layer.increment(i, 3)
        after = i + 0
    assert after.spec.value == (7,)
    got = fs.Executor().run(program, {}, [before, after, i], fs.Scope())
    assert [g.tolist() for g in got] == [[4], [7], [7]]


def test_a_range_of_floats_is_counted_in_their_precision() -> None:
    """The counts are PaddlePaddle 2.6.2's."""
    for of, bounds, count in (
        ("fp32", (0, 0.3, 0.1), 3), ("fp64", (0, 0.3, 0.1), 3), ("fp32", (0, 0.9, 0.3), 3), ("fp32", (0.1, 0.7, 0.2), 3), ("fp32", (5, 1, -0.7), 6),
        ("fp32", (0, 100, 0.1), 1000), ("fp64", (-100, 100, 2), 100), ("fp32", (0, 0, 1), 0), ("fp32", (0, 1, -1), 0),
    ):  # fmt: skip
        with fs.program_guard(program := fs.Program()):
            numbers = [layer.fill_constant([1], of, float(b)) for b in bounds]
            out = program.global_block.apply("range", dict(zip(("Start", "End", "Step"), numbers, strict=True)))
            assert out.shape == [count], (of, bounds, out)
            (seen,) = fs.Executor().run(program, {}, [out], fs.Scope())
            np.testing.assert_allclose(seen, bounds[0] + bounds[2] * np.arange(count), rtol=1e-5, atol=1e-6)


def test_a_bound_of_a_range_is_the_value_it_has_there_and_a_fed_one_is_not_known() -> None:
    with fs.program_guard(program := fs.Program()):
        start, step = (layer.fill_constant([1], "fp32", v) for v in (0.0, 1.0))
        end = layer.data("end", shape=[1])
        assert program.global_block.apply("range", {"Start": start, "End": end, "Step": step}).dims == [-1]
        twice = layer.fill_constant([1], "fp32", 3.0)
        program.global_block.append_op("scale", {"X": twice}, {"Out": twice}, {"scale": 2.0})
        out = program.global_block.apply("range", {"Start": start, "End": twice, "Step": step})
        assert out.dims == [6] and len(fs.Executor().run(program, {"end": np.ones(1, "float32")}, [out], fs.Scope())[0]) == 6
        with pytest.raises(fs.ShapeError, match="no number of steps"):
            program.global_block.apply("range", {"Start": start, "End": layer.fill_constant([1], "fp32", 3e38), "Step": layer.fill_constant([1], "fp32", 1e-9)})


@pytest.mark.parametrize("compare", ["allclose", "isclose"])
@pytest.mark.parametrize("slot", ["Rtol", "Atol"])
def test_a_tolerance_below_nothing_is_refused_in_words(compare: str, slot: str) -> None:
    x, tolerance = layer.data("x", shape=[3]), layer.data("tolerance", shape=[1], dtype="float64")
    program = fs.default_main_program()
    program.global_block.append_op(compare, {"Input": x, "Other": x, slot: tolerance}, {"Out": "out"})
    feed = {"x": np.ones(3, np.float32), "tolerance": np.array([0.5])}
    assert fs.Executor().run(program, feed, ["out"])[0].all()
    for wrong in (-0.25, np.nan):
        with pytest.raises(fs.ExecutionError, match=f"{compare}: {slot} must be at least 0; seen {wrong}"):
            fs.Executor().run(program, {**feed, "tolerance": np.array([wrong])}, ["out"])
