"""`fs.quantize`: the program that it makes, its accuracy, the search, bad data, and training with the rounding."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.commanded import call
from support.onnx_writer import Graph, model, node, opened, tensor, value
from support.trained_digits import Digits, trained_digits

import foreshape as fs
from foreshape import layer
from foreshape.apps.quantization.ranges_of_values import METHODS
from foreshape.apps.quantization.rewrite import as_bytes
from foreshape.compiler.lowering import lower
from foreshape.compiler.lowering.fusion import apply_all
from foreshape.compiler.lowering.kernel_calls import FusedCall, OpCall
from foreshape.machine.kernels.onednn_library import library


@pytest.fixture
def digits() -> Digits:
    return trained_digits()


def types(model: fs.InferenceModel) -> list[str]:
    return [op.type for op in model.program.all_ops()]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("activations", METHODS)
def test_digits_stay_right(digits: Digits, activations: Any, per_channel: bool) -> None:
    data = [digits.images[k : k + 32] for k in range(0, 128, 32)]
    made = fs.quantize(digits.model, data, activations=activations, per_channel=per_channel)
    assert digits.accuracy(digits.model) > 0.9
    assert digits.accuracy(made) >= digits.accuracy(digits.model) - 0.005
    assert types(made).count("dequantize_linear") == types(made).count("quantize_linear") + 5
    assert sum(made.scope.get(v.name).dtype == np.int8 for v in made.program.global_block.vars.values() if v.persistable) == 5


def test_saved_and_opened_it_is_the_same(digits: Digits, tmp_path: Path) -> None:
    made = fs.quantize(digits.model, digits.images[:64])
    want = made.run(digits.images[:50])[0]
    fs.save_inference_model(tmp_path / "bytes", made.feeds, made.fetches, program=made.program, scope=made.scope)
    fs.save_onnx(tmp_path / "bytes.onnx", made.feeds, made.fetches, program=made.program, scope=made.scope)
    fs.save_inference_model(tmp_path / "numbers", digits.model.feeds, digits.model.fetches, program=digits.model.program, scope=digits.model.scope)
    assert (tmp_path / "bytes.pdiparams").stat().st_size < 0.4 * (tmp_path / "numbers.pdiparams").stat().st_size
    rewrites = apply_all(lower(made.program.global_block, [made.fetches[0].name], frozen=True))
    assert rewrites["frozen_rounding"] == types(made).count("quantize_linear")
    step = np.abs(want).max() / 127
    for path in (tmp_path / "bytes", tmp_path / "bytes.onnx"):
        np.testing.assert_allclose(fs.load_inference_model(path, scope=fs.Scope()).run(digits.images[:50])[0], want, atol=step)
        np.testing.assert_allclose(fs.Predictor(path).run(digits.images[:50])[0], want, atol=step)


@pytest.mark.long
def test_layers_are_excluded_by_name_and_by_loss(digits: Digits) -> None:
    weights = lambda model: sum(v.dtype is fs.INT8 for v in model.program.global_block.vars.values() if v.persistable)  # noqa: E731
    data = digits.images[:64]
    assert weights(fs.quantize(digits.model, data)) == 5
    assert weights(fs.quantize(digits.model, data, exclude="fc_*")) == 3
    assert weights(fs.quantize(digits.model, data, exclude=["conv2d_0.tmp*", "fc_0.w_*"])) == 3
    with pytest.raises(fs.SchemaError, match="no layer has a result, a weight or an operator called 'nothing'"):
        fs.quantize(digits.model, data, exclude="nothing")
    a = digits.model.run(data)[0]
    loss = lambda model: np.square(a - model.run(data)[0]).sum() / np.square(a).sum()  # noqa: E731
    half = loss(fs.quantize(digits.model, data)) / 2
    found = fs.quantize(digits.model, data, accuracy="outputs", within=half)
    assert 0 < weights(found) < 5 and loss(found) <= half
    with pytest.raises(fs.SchemaError, match="even one quantized layer loses more than 0"):
        fs.quantize(digits.model, data, accuracy="outputs", within=0.0)
    seen: list[fs.InferenceModel] = []
    fs.quantize(digits.model, data, accuracy=lambda model: float(seen.append(model) or 1.0))
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "calibration data are needed"),
        ([], "at least one feed"),
        (7, "a feed, or an iterable of feeds"),
        ([np.zeros((0, 1, 8, 8), "float32")], "feed 0 has no elements for image"),
        ([np.zeros((2, 1, 8, 8), "float32"), np.full((2, 1, 8, 8), np.nan, "float32")], "feed 1 makes numbers of .* that are not finite"),
        ([np.zeros((2, 3, 8, 8), "float32")], "in feed 0 of the calibration data"),
        ([{"other": np.zeros((2, 1, 8, 8), "float32")}], "image"),
    ],
)
def test_bad_data_are_refused(digits: Digits, data: Any, told: str) -> None:
    with pytest.raises(fs.FeedError) as caught:
        fs.quantize(digits.model, data)
    assert re.search(told, "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])]))


def test_other_words_and_networks_without_layers_are_refused(digits: Digits) -> None:
    with pytest.raises(fs.SchemaError, match="activations must be one of 'measured', 'percentile', 'entropy', 'min_max'"):
        fs.quantize(digits.model, digits.images[:4], activations="most")  # pyright: ignore[reportArgumentType]
    with pytest.raises(fs.SchemaError, match="percentile must be more than 0"):
        fs.quantize(digits.model, digits.images[:4], activations="percentile", percentile=0.0)
    with fs.program() as program:
        out = layer.relu(layer.data("x", shape=["batch", 4]))
    with pytest.raises(fs.SchemaError, match="nothing to quantize"):
        fs.quantize(fs.InferenceModel.of(program, ["x"], [out], fs.Scope()), np.ones((2, 4), "float32"))


@pytest.mark.long
def test_the_ranges_are_those_that_change_the_results_least(digits: Digits) -> None:
    """By default each method is measured on the examples, and the given one is taken as it is."""
    data = [digits.images[:32], digits.images[32:64]]
    a = [digits.model.run(x)[0] for x in data]

    def loss(model: fs.InferenceModel) -> float:
        return max(float(np.square(want - model.run(x)[0]).sum() / np.square(want).sum()) for want, x in zip(a, data, strict=True))

    losses = {how: loss(fs.quantize(digits.model, data, activations=how, percentile=90.0)) for how in METHODS}
    assert len(set(losses.values())) > 1 and max(losses, key=lambda how: losses[how]) == "percentile"
    assert loss(fs.quantize(digits.model, data, percentile=90.0)) == pytest.approx(min(losses.values()))
    trained = fs.quantize(digits.model, data, percentile=90.0, for_training=True)
    best = min(losses, key=lambda how: losses[how])
    chosen = fs.quantize(digits.model, data, percentile=90.0, for_training=True, activations=best)
    scales = [n for n in trained.program.global_block.vars if n.endswith("@scale")]
    assert scales and all(np.array_equal(trained.scope.get(n), chosen.scope.get(n)) for n in scales)


@given(weight=arrays(np.float32, (3, 4), elements=st.floats(-10, 10, width=32)), axis=st.sampled_from([-1, 0, 1]))
def test_bytes_are_the_nearest(weight: Any, axis: int) -> None:
    """No byte is -128, each is the nearest on its scale, and the largest of each channel is met."""
    made, scale = as_bytes(weight, axis)
    wide = scale.reshape({-1: [], 0: [-1, 1], 1: [1, -1]}[axis])
    assert made.dtype == np.int8
    assert made.min(initial=0) >= -127
    np.testing.assert_array_less(np.abs(made * (wide / 127.0) - weight), np.broadcast_to(wide / 254.0 * 1.0001 + 1e-30, weight.shape))
    most = np.abs(made).max(axis=None if axis < 0 else 1 - axis)
    assert np.all((most == 127) | (np.abs(weight).max(axis=None if axis < 0 else 1 - axis) <= 1e-30))


def test_a_network_is_trained_with_the_rounding(digits: Digits) -> None:
    """The trained network is the same with bytes as with its rounding, and the scales have moved."""
    made = fs.quantize(digits.model, digits.images[:64], for_training=True)
    before = {n: made.scope.get(n).copy() for n in made.program.global_block.vars if n.endswith("@scale")}
    with fs.program_guard(made.program):
        label = layer.data("label", shape=["batch", 1], dtype="int64")
        loss = layer.mean(layer.softmax_with_cross_entropy(made.fetches[0], label))
    given = {"image": digits.images[digits.train], "label": digits.labels[digits.train]}
    history = fs.train(loss, given, optimizer=fs.optimizer.Adam(0.001), epochs=1, progress=False, scope=made.scope, seed=0)
    assert history.steps
    assert any(not np.array_equal(made.scope.get(n), v) for n, v in before.items())
    frozen = fs.quantize(made)
    assert types(frozen).count("dequantize_linear") == types(frozen).count("quantize_linear") + 5
    assert not any(t.startswith("fake_") for t in types(frozen))
    assert digits.accuracy(frozen) >= digits.accuracy(digits.model) - 0.005
    tested = fs.Executor().run(fs.passes.for_test(made.program), {"image": digits.images[:50]}, [made.fetches[0].name], made.scope)[0]
    got = frozen.run(digits.images[:50])[0]
    assert np.abs(tested - got).mean() < np.abs(got).max() / 127
    with pytest.raises(fs.SchemaError, match="made for training with rounding already"):
        fs.quantize(made, digits.images[:4], for_training=True)


def test_the_command_writes_what_the_function_makes(digits: Digits, tmp_path: Path) -> None:
    fs.save_inference_model(tmp_path / "numbers", digits.model.feeds, digits.model.fetches, program=digits.model.program, scope=digits.model.scope)
    (tmp_path / "examples").mkdir()
    for at in range(2):
        np.savez(tmp_path / "examples" / f"{at}.npz", image=digits.images[32 * at : 32 * at + 32])
    given = [str(tmp_path / "numbers"), "--data", str(tmp_path / "examples"), "--out"]
    want = fs.quantize(digits.model, [digits.images[:32], digits.images[32:64]]).run(digits.images[:40])[0]
    for out in ("bytes", "bytes.onnx"):
        assert call("quantize", *given, tmp_path / out) == (0, f"{tmp_path / out}: 5 weights of 8 bits\n", "")
        got = fs.load_inference_model(tmp_path / out, scope=fs.Scope()).run(digits.images[:40])[0]
        np.testing.assert_allclose(got, want, atol=np.abs(want).max() / 127)
    code, _, told = call("quantize", tmp_path / "numbers", "--data", tmp_path / "numbers.pdmodel", "--out", tmp_path / "none")
    assert code and "cannot be read as arrays" in told


@pytest.mark.parametrize(("kind", "zero", "low", "high"), [("uint8", 77, 0, 255), ("int8", 0, -128, 127), ("int8", -5, -128, 127)])
def test_rounding_written_out_in_onnx_is_one_call(kind: str, zero: int, low: int, high: int, tmp_path: Path) -> None:
    """The frozen step has one rounding for QuantizeLinear and DequantizeLinear, and its numbers are the plain step's."""
    operands = [tensor("s", np.float32(0.25)), tensor("z", np.array(zero, kind))]
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    graph = Graph(nodes, [value("x", "float32", ["n", 4])], [value("y", "float32", None)], operands)
    made = opened(model(graph, 21), tmp_path)
    assert apply_all(lower(made.program.global_block, [made.fetches[0].name], frozen=True))["frozen_rounding"] == 1
    x = np.concatenate([np.linspace(-50, 50, 396), [0.125, 0.375, -0.125, -0.375]]).astype("float32").reshape(-1, 4)
    want = (np.clip(np.rint(x / 0.25) + zero, low, high) - zero) * 0.25
    frozen = fs.Executor(frozen=True).run(made.program, {"x": x}, made.fetches, made.scope)[0]
    np.testing.assert_array_equal(made.run({"x": x})[0], want.astype("float32"))
    np.testing.assert_array_equal(frozen, want.astype("float32"))


@pytest.mark.parametrize("name", ["after_training", "in_training_of_layers"])
def test_files_of_paddlepaddle_take_the_kernels_of_bytes(name: str) -> None:
    """No quantization is left as a call of its own in a frozen step, and the results are the plain step's up to a step of rounding."""
    path = Path(__file__).parents[1] / "interop" / "quantized" / name
    made = fs.load_inference_model(path, scope=fs.Scope())
    lowered = lower(made.program.global_block, [v.name for v in made.fetches], frozen=True)
    assert apply_all(lowered)["frozen_rounding"]
    assert not any("quantize" in i.op.type for i in lowered.calls if isinstance(i, OpCall))
    spec = made.program.global_block.var(made.feeds[0]).spec
    x = np.random.default_rng(0).standard_normal([d if isinstance(d, int) else 4 for d in spec.known_dims]).astype("float32")
    want, got = made.run(x)[0], fs.Predictor(path).run(x)[0]
    np.testing.assert_allclose(got, want, atol=np.abs(want).max() / 20)


def test_operators_of_bytes_in_onnx_take_the_kernels_of_bytes(tmp_path: Path) -> None:
    """QLinearConv and QLinearMatMul with constant weights are the whole numbers' formula, and frozen they are products of bytes."""
    random = np.random.default_rng(0)
    filters, matrix = random.integers(-127, 128, (4, 3, 3, 3), "int8"), random.integers(-127, 128, (4, 40), "int8")
    steps, bias, columns = random.uniform(0.01, 0.03, 4).astype("float32"), random.integers(-900, 900, 4, "int32"), np.float32(0.02)
    operands = [
        *(tensor(f"s{k}", np.float32(s)) for k, s in enumerate((0.04, 0.5, 0.9))),
        *(tensor(f"z{k}", np.uint8(z)) for k, z in enumerate((120, 99, 130))),
        *(tensor(n, v) for n, v in (("w", filters), ("ws", steps), ("wz", np.zeros(4, "int8")), ("b", bias))),
        *(tensor(n, v) for n, v in (("m", matrix), ("ms", columns), ("mz", np.int8(0)), ("rows", np.array([-1, 4])))),
    ]
    nodes = [
        node("QuantizeLinear", "x s0 z0", "q"),
        node("QLinearConv", "q s0 z0 w ws wz s1 z1 b", "c", pads=[1, 1, 1, 1]),
        node("Transpose", "c", "t", perm=[0, 2, 3, 1]),
        node("Reshape", "t rows", "r"),
        node("QLinearMatMul", "r s1 z1 m ms mz s2 z2", "p"),
        node("DequantizeLinear", "p s2 z2", "y"),
    ]
    graph = Graph(nodes, [value("x", "float32", ["n", 3, 6, 6])], [value("y", "float32", None)], operands)
    made = opened(model(graph, 21), tmp_path)
    applied = apply_all(lower(made.program.global_block, [made.fetches[0].name], frozen=True))
    assert (applied["frozen_convolution"], applied["frozen_linear"]) == (1, 1)
    x = random.uniform(-4, 5, (2, 3, 6, 6)).astype("float32")
    whole = np.clip(np.rint(x / np.float32(0.04)) + 120, 0, 255) - 120
    around = np.pad(whole, ((0, 0), (0, 0), (1, 1), (1, 1)))
    sums = sum(np.einsum("nchw,oc->nohw", around[:, :, i : i + 6, j : j + 6], filters[:, :, i, j].astype("float64")) for i in range(3) for j in range(3))
    conv = np.clip(np.rint((sums + bias[:, None, None]) * (0.04 * steps.astype("float64") / 0.5)[:, None, None]), -99, 156)
    want = (np.clip(np.rint(np.einsum("nchw,cd->nhwd", conv, matrix.astype("float64")) * 0.5 * columns / 0.9), -130, 125)).reshape(-1, 40) * 0.9
    for got in (made.run({"x": x})[0], fs.Executor(frozen=True).run(made.program, {"x": x}, made.fetches, made.scope)[0]):
        assert np.abs(got - want).max() <= 2 * 0.9 + 1e-4  # a half in the first rounding may go either way
        assert (np.abs(got - want) > 1e-3).mean() < 0.05


def test_ranges_by_entropy_are_no_worse_where_many_numbers_are_equal() -> None:
    """Margins of one number once made the least divergence a range that cuts off what counts."""
    random = np.random.default_rng(0)
    x = np.maximum(random.standard_normal((64, 40)), -0.3).astype("float32")
    x[:, 10:] = np.float32(0.0123)
    with fs.program_guard(fs.Program(), fs.Program()):
        given = layer.data("x", ["batch", 40])
        out = layer.fc(given, 16, bias=False)
        fs.Executor(seed=1).run(fs.default_startup_program(), scope=(scope := fs.Scope()))
        plain = fs.InferenceModel.of(fs.default_main_program(), ["x"], [out], scope)
    want = plain.run(x)[0]
    errors = {how: np.square(fs.quantize(plain, x, activations=how).run(x)[0] - want).mean() for how in METHODS}
    assert errors["entropy"] < 2 * errors["min_max"]


def test_functions_and_sums_between_roundings_are_one_call_of_bytes(tmp_path: Path) -> None:
    """A convolution with few weights, and a hardswish written out with each step rounded, on grids with zero points."""
    random = np.random.default_rng(0)
    operands = [tensor("w", random.integers(-127, 128, (8, 3, 1, 1), "int8")), tensor("ws", np.float32(0.01)), tensor("three", np.uint8(150))]
    operands += [tensor("s3", np.float32(0.02)), tensor("six", np.float32(6.0)), tensor("low", np.float32(0.0)), tensor("top", np.float32(6.0))]
    grids = {"x": (0.04, 120), "c": (0.05, 100), "h": (0.02353, 0), "m": (0.2, 3), "y": (0.04, 20)}
    nodes: list[Any] = []
    for name, (step, zero) in grids.items():
        operands += [tensor(f"s_{name}", np.float32(step)), tensor(f"z_{name}", np.uint8(zero))]

    def rounded(name: str, at: str) -> str:
        nodes.extend([node("QuantizeLinear", f"{name} s_{at} z_{at}", f"{at}_q"), node("DequantizeLinear", f"{at}_q s_{at} z_{at}", f"{at}_r")])
        return f"{at}_r"

    x = rounded("x", "x")
    nodes += [node("DequantizeLinear", "w ws", "w_r"), node("DequantizeLinear", "three s3", "three_r"), node("Conv", f"{x} w_r", "c")]
    c = rounded("c", "c")
    nodes += [node("Add", f"{c} three_r", "a"), node("Clip", "a low top", "h")]
    nodes += [node("Mul", f"{c} {rounded('h', 'h')}", "m")]
    nodes += [node("Div", f"{rounded('m', 'm')} six", "d")]
    last = rounded("d", "y")
    made = opened(model(Graph(nodes, [value("x", "float32", ["n", 3, 5, 7])], [value(last, "float32", None)], operands), 21), tmp_path)
    lowered = lower(made.program.global_block, [made.fetches[0].name], frozen=True)
    applied = apply_all(lowered)
    assert applied["frozen_rounding"] == 5
    if library() is not None:
        (series,) = lowered.calls
        assert isinstance(series, FusedCall) and len(series.parts) == 5, "the input's rounding, the convolution, and one for each of the others"
    given = random.uniform(-4, 5, (2, 3, 5, 7)).astype("float32")
    want, got = made.run({"x": given})[0], fs.Executor(frozen=True).run(made.program, {"x": given}, made.fetches, made.scope)[0]
    assert np.abs(got - want).max() <= 3 * 0.04 + 1e-4  # a half in a rounding may go either way
    assert (np.abs(got - want) > 1e-3).mean() < 0.1
