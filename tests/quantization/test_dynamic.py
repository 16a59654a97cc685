"""`fs.quantize(dynamic=True)`: rows with scales found in the run, weights and tables of bytes, and what becomes of rows that are not numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commanded import call
from support.trained_digits import trained_digits

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import tensor
from foreshape.runtime.profiling import fusion_report

WORDS, WIDTH = 700, 32


def encoder(table_elsewhere: bool = False) -> fs.InferenceModel:
    """Return an encoder of one layer with random weights, saved and opened; its input is ids ``[batch, time]``."""
    program, startup, scope = fs.Program(), fs.Program(), fs.Scope()
    with fs.program_guard(program, startup):
        ids = layer.data("ids", shape=["batch", "time"], dtype="int64")
        x = layer.layer_norm(layer.embedding(ids, [WORDS, WIDTH], padding_idx=3), begin_norm_axis=2)
        q, k, v = (layer.fc(x, WIDTH, flatten_last=1) for _ in range(3))
        scores = layer.softmax(layer.scale(layer.matmul(q, k, transpose_y=True), WIDTH**-0.5))
        x = layer.layer_norm(layer.add(x, layer.fc(layer.matmul(scores, v), WIDTH, flatten_last=1)), begin_norm_axis=2)
        x = layer.add(x, layer.fc(layer.fc(x, 4 * WIDTH, flatten_last=1, activation="gelu"), WIDTH, flatten_last=1))
        out = layer.reduce_mean(x, 1)
        if table_elsewhere:
            table = next(p for p in program.global_block.vars.values() if p.persistable and [*p.dims] == [WORDS, WIDTH])
            out = layer.add(out, layer.reduce_mean(table, 0))
    executor = fs.Executor(seed=3)
    executor.run(startup, scope=scope)
    return fs.InferenceModel.of(program, ["ids"], [out], scope)


def texts(count: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, WORDS, (count, 9))


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def types(model: fs.InferenceModel) -> list[str]:
    return [op.type for op in model.program.all_ops()]


def by_hand(x: np.ndarray, whole: np.ndarray, scale: np.ndarray) -> np.ndarray:
    steps = np.maximum(np.abs(x).max(-1, keepdims=True) / np.float32(127), np.float32(1e-30))
    return (np.rint(x / steps).astype("int64") @ whole.astype("int64")) * steps.astype("float64") * scale


def product(frozen: bool, k: int = 40, equal: bool = False) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a function of rows by the operator, with the rest of a frozen step or as the kernel alone, and its weights; ``equal``: one scale, a constant."""
    random = np.random.default_rng(1)
    whole, scale = random.integers(-127, 128, (k, 24)).astype("int8"), random.random(24, "float32") * 0.01
    program, scope = fs.Program(), fs.Scope()
    with fs.program_guard(program, fs.Program()):
        x = layer.data("x", shape=["rows", k])
        for name, array, dtype in (("W", whole, fs.INT8), ("Scale", scale, fs.FP32)):
            program.global_block.create_variable(name, tensor(dtype, *array.shape), persistable=True)
            scope.set(name, array)
        if equal:
            scale[:] = 0.003
        steps = layer.fill_constant([24], "fp32", 0.003) if equal else program.global_block.var("Scale")
        out = program.global_block.apply("dynamic_int8_linear", {"X": x, "W": program.global_block.var("W"), "Scale": steps})
    (entry,) = fusion_report(program, [out], out.name, frozen=frozen)
    assert entry.alone != frozen
    executor = fs.Executor(frozen=frozen)
    return lambda rows: executor.run(program, {"x": rows}, [out], scope)[0], whole, scale


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_rows_are_rounded_in_their_own_steps(frozen: bool, equal: bool) -> None:
    run, whole, scale = product(frozen, equal=equal)
    x = (np.random.default_rng(2).standard_normal((50, 40)) * 10.0 ** np.random.default_rng(3).integers(-6, 6, (50, 1))).astype("float32")
    expected = by_hand(x, whole, scale)
    size = np.abs(expected).max(1, keepdims=True)
    assert (np.abs(run(x) - expected) < 1e-6 * size).all()
    for count in (1, 2, 17):  # others beside it change nothing
        assert (np.abs(run(x[:count]) - expected[:count]) < 1e-6 * size[:count]).all()


@pytest.mark.parametrize("frozen", [False, True])
def test_halves_go_to_even_and_the_largest_size_to_the_end(frozen: bool) -> None:
    run, whole, scale = product(frozen, k=5)
    x = np.array([[127.0, 0.5, 1.5, -2.5, -126.5], [-127.0, 3.5, 126.5, -0.5, 0.49]], "float32")
    expected = np.array([[127, 0, 2, -2, -126], [-127, 4, 126, 0, 0]])
    np.testing.assert_allclose(run(x), expected @ whole.astype("int64") * scale.astype("float64"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("frozen", [False, True])
def test_rows_of_zeros_and_rows_that_are_not_finite(frozen: bool) -> None:
    run, *_ = product(frozen, k=5)
    x = np.ones((6, 5), "float32")
    x[0], x[1] = 0.0, 1e-38
    x[2, 3], x[3, 0], x[4, 1] = np.nan, np.inf, -np.inf
    out = run(x)
    assert not out[0].any() and np.abs(out[1]).max() < 1e-30
    assert np.isnan(out[2:5]).all()
    assert np.isfinite(out[5]).all() and out[5].any()


def test_a_network_with_attention_needs_no_examples() -> None:
    model = encoder()
    made, ids = fs.quantize(model), texts(64)
    assert types(made).count("dynamic_int8_linear") == 6 and types(made).count("int8_lookup") == 1 and not {"mul", "lookup_table_v2"} & {*types(made)}
    assert cosines(made.run(ids)[0], model.run(ids)[0]).mean() > 0.998
    assert types(model).count("mul") == 6
    alone = np.concatenate([made.run(ids[k : k + 1])[0] for k in range(8)])
    np.testing.assert_allclose(alone, made.run(ids)[0][:8], atol=1e-5)
    weights = [v for v in made.program.global_block.vars.values() if v.persistable and v.dtype is fs.FP32 and len(v.dims) > 1]
    assert not weights
    assert not {"dynamic_int8_linear"} & {*types(fs.quantize(model, {"ids": ids}))}  # with examples it is the static one, as before


def test_a_row_of_padding_stays_zeros() -> None:
    made = fs.quantize(encoder())
    lookup = next(op for op in made.program.all_ops() if op.type == "int8_lookup")
    (rows,) = fs.Executor().run(made.program, {"ids": np.array([[3, 4]])}, [lookup.result()], made.scope)
    assert not rows[0, 0].any() and rows[0, 1].any()


def test_a_table_with_another_reader_stays_as_it_is() -> None:
    made = fs.quantize(encoder(table_elsewhere=True))
    assert "int8_lookup" not in types(made) and "lookup_table_v2" in types(made) and "dynamic_int8_linear" in types(made)


def test_the_forms_of_files_have_the_same_numbers(tmp_path: Path) -> None:
    made, ids = fs.quantize(encoder()), texts()
    expected = made.run(ids)[0]
    fs.save_inference_model(tmp_path / "bytes", made.feeds, made.fetches, program=made.program, scope=made.scope)
    fs.save_onnx(tmp_path / "bytes.onnx", made.feeds, made.fetches, program=made.program, scope=made.scope)
    for name in ("bytes", "bytes.onnx"):
        np.testing.assert_allclose(fs.load_inference_model(tmp_path / name, scope=fs.Scope()).run(ids)[0], expected, atol=1e-4)
        np.testing.assert_allclose(fs.Predictor(tmp_path / name).run(ids)[0], expected, atol=1e-4)


def test_what_is_refused() -> None:
    model = encoder()
    with pytest.raises(fs.SchemaError, match="dynamic: the scales are found in the run"):
        fs.quantize(model, {"ids": texts()}, dynamic=True)
    with pytest.raises(fs.SchemaError, match="nothing to quantize: no product of fp32 rows with a constant matrix is left"):
        fs.quantize(model, dynamic=True, exclude=["mul", "lookup_table_v2"])
    with pytest.raises(fs.FeedError, match="calibration data are needed"):
        fs.quantize(trained_digits().model)
    with pytest.raises(fs.FeedError, match="calibration data are needed"):
        fs.quantize(model, dynamic=False)
    weight = next(v for v in model.program.global_block.vars.values() if v.persistable and [*v.dims] == [WIDTH, WIDTH])
    array = model.scope.get(weight.name).copy()
    array[0, 0] = np.nan
    model.scope.set(weight.name, array)
    with pytest.raises(fs.SchemaError, match=f"its weight {weight.name} has numbers that are not finite"):
        fs.quantize(model)
    assert types(fs.quantize(model, exclude=weight.name)).count("mul") == 1


def test_without_attention_it_is_made_when_asked_for() -> None:
    digits = trained_digits()
    made = fs.quantize(digits.model, dynamic=True)
    assert "dynamic_int8_linear" in types(made) and "conv2d" in types(made)
    assert digits.accuracy(made) >= digits.accuracy(digits.model) - 0.005


def test_the_command(tmp_path: Path) -> None:
    model = encoder()
    fs.save_inference_model(tmp_path / "net", model.feeds, model.fetches, program=model.program, scope=model.scope)
    for index, options in enumerate((["--dynamic"], [])):
        code, words, _ = call("quantize", tmp_path / "net.pdmodel", *options, "--out", tmp_path / f"bytes{index}")
        assert code == 0 and "7 weights of 8 bits" in words
    made = fs.load_inference_model(tmp_path / "bytes0", scope=fs.Scope())
    assert cosines(made.run(texts())[0], model.run(texts())[0]).min() > 0.99
