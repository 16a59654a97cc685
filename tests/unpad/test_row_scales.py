"""Files quantized by ``DynamicQuantizeLinear``: refused for the scale of all texts together, and on request with a scale for each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commanded import call
from support.onnx_writer import Graph, model, node, tensor, value
from support.padded_networks import packed, texts

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import tensor as tensor_spec

WORDS, WIDTH, COLUMNS = 32, 12, 8
CHANCE = np.random.default_rng(3)
TABLE = CHANCE.normal(0, 1, (WORDS, WIDTH)).astype("float32") * CHANCE.choice([0.1, 1.0, 10.0], (WORDS, 1)).astype("float32")
SCALES = {"int8": np.float32(0.02), "int8 of columns": CHANCE.uniform(0.01, 0.03, COLUMNS).astype("float32"), "uint8": np.float32(0.02)}
WEIGHTS = {name: CHANCE.integers(-100, 100, (WIDTH, COLUMNS)) + (128 if name == "uint8" else 0) for name in SCALES}
POINTS = {"int8": np.int8(0), "int8 of columns": np.zeros(COLUMNS, "int8"), "uint8": np.uint8(128)}
QUANTIZED = [node("DynamicQuantizeLinear", "h", "q s z", name="quantizer"), node("MatMulInteger", "q w z p", "sums"), node("Cast", "sums", "floats", to=1)]
SCALED = [node("Mul", "s f", "scales"), node("Mul", "floats scales", "y")]


def saved(folder: Path, nodes: list[bytes], kind: str = "int8", result: str = "out", more: list[bytes] | None = None) -> Path:
    """Save a network from the rows of words ``h`` to ``y``, and from it to the mean of its rows."""
    before = [node("Gather", "table ids", "h")]
    behind = [node("Cast", "mask", "m", to=1), node("Unsqueeze", "m last", "rows"), node("Mul", "y rows", "seen"),
              node("ReduceSum", "seen one", "sum", keepdims=0), node("ReduceSum", "rows one", "count", keepdims=0),
              node("Div", "sum count", "out")]  # fmt: skip
    tensors = [tensor("table", TABLE), tensor("last", np.int64([2])), tensor("one", np.int64([1])), *(more or [])]
    tensors += [tensor("w", WEIGHTS[kind].astype(POINTS[kind].dtype)), tensor("p", POINTS[kind]), tensor("f", SCALES[kind])]
    inputs = [value(name, "int64", ["texts", "time"]) for name in ("ids", "mask")]
    path = folder / "network.onnx"
    path.write_bytes(model(Graph([*before, *nodes, *behind], inputs, [value(result, "float32", None)], tensors), 21, domains=["com.microsoft"]))
    return path


def rounded(x: Any, kind: str) -> Any:
    """Return rows as 8 bits hold them, each with a step of its own."""
    if kind == "uint8":
        low, high = np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0)
        step = (high - low) / np.float32(255)
        point = np.round(-low / step)
        return (np.clip(np.round(x / step) + point, 0, 255) - point) * step
    step = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    return np.round(x / step) * step


@pytest.mark.parametrize("form", ["cast", "to float", "one node"])
@pytest.mark.parametrize("kind", SCALES)
def test_each_row_has_a_scale_of_its_own_on_request(kind: str, form: str, tmp_path: Path) -> None:
    to_float = [QUANTIZED[0], node("MatMulIntegerToFloat", "q w s f z p", "y", "com.microsoft")]
    nodes = {"cast": [*QUANTIZED, *SCALED], "to float": to_float, "one node": [node("DynamicQuantizeMatMul", "h w f p", "y", "com.microsoft")]}
    path = saved(tmp_path, nodes[form], kind)
    with pytest.raises(fs.UnpadError, match=r"row_scales=True \(--row-scales\) gives each row a scale of its own"):
        fs.unpad(path, "mask")
    network, several = fs.unpad(path, "mask", row_scales=True), texts()
    result = network.run({"ids": packed(several)})[0]
    weights = (WEIGHTS[kind].astype("float32") - POINTS[kind]) * SCALES[kind]
    for row, text in zip(result, several, strict=True):
        np.testing.assert_allclose(row, (rounded(TABLE[text], kind) @ weights).mean(0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(row, network.run({"ids": packed([text])})[0][0], rtol=1e-6, atol=1e-6)
        exact = (TABLE[text] @ weights).mean(0)
        assert row @ exact >= 0.995 * np.linalg.norm(row) * np.linalg.norm(exact)


def test_it_is_asked_for_where_a_network_is_opened_and_by_commands(tmp_path: Path) -> None:
    path, several = saved(tmp_path, [*QUANTIZED, *SCALED]), texts()
    expected = fs.unpad(path, "mask", row_scales=True).run({"ids": packed(several)})[0]
    opened = fs.load_inference_model(path, scope=fs.Scope(), ragged={"mask": "mask", "row_scales": True})
    np.testing.assert_array_equal(opened.run({"ids": packed(several)})[0], expected)
    code, out, _ = call("check", path, "--ragged", "--mask", "mask")
    assert code == 1 and "of DynamicQuantizeLinear quantizer: " in out and "--row-scales" in out
    assert call("check", path, "--ragged", "--mask", "mask", "--row-scales")[0] == 0
    code, _, err = call("check", path, "--row-scales")
    assert code == 2 and "--ragged is not there" in err
    assert call("convert", path, tmp_path / "ragged.pdmodel", "--ragged", "--mask", "mask", "--row-scales")[0] == 0
    np.testing.assert_array_equal(fs.load_inference_model(tmp_path / "ragged", scope=fs.Scope()).run({"ids": packed(several)})[0], expected)


OTHERWISE: dict[str, tuple[str, list[bytes]]] = {
    "without the scale": ("elementwise_mul", [*QUANTIZED, node("Identity", "floats", "y")]),
    "a convolution": (
        "transpose2",
        [QUANTIZED[0], node("Transpose", "q", "turned", perm=[0, 2, 1]), node("ConvInteger", "turned filter z", "sums", pads=[1, 1]),
         node("Cast", "sums", "floats", to=1), node("Mul", "floats s", "scaled"), node("Transpose", "scaled", "y", perm=[0, 2, 1])],
    ),
    "on the right": (
        "transpose2",
        [QUANTIZED[0], node("Transpose", "q", "turned", perm=[0, 2, 1]), node("MatMulInteger", "turned_w turned _ z", "sums"),
         node("Cast", "sums", "floats", to=1),
         node("Mul", "floats s", "scaled"), node("Transpose", "scaled", "y", perm=[0, 2, 1])],
    ),
    "a scale of other rows": (
        "elementwise_mul",
        [*QUANTIZED, node("Neg", "h", "less"), node("DynamicQuantizeLinear", "less", "q2 s2 z2"), node("Mul", "floats s2", "y")],
    ),
    "a point of other rows": (
        "matmul_integer",
        [QUANTIZED[0], node("Neg", "h", "less"), node("DynamicQuantizeLinear", "less", "q2 s2 z2"), node("MatMulInteger", "q w z2 p", "sums"),
         node("Cast", "sums", "floats", to=1), *SCALED],
    ),
    "a sum before the scale": ("scale|elementwise_add", [*QUANTIZED, node("Add", "floats f", "more"), node("Mul", "more s", "y")]),
    "the scale itself": ("elementwise_mul", [*QUANTIZED, *SCALED[:1], node("Mul", "h scales", "y")]),
    "quantized before the scale": (
        "cast",
        [*QUANTIZED, node("DynamicQuantizeLinear", "floats", "q2 s2 z2"), node("MatMulInteger", "q2 square z2", "sums2"),
         node("Cast", "sums2", "floats2", to=1),
         node("Mul", "floats2 s2", "y")],
    ),
}  # fmt: skip
"""From a use of a quantization that is no product of its rows to the ops that may be named."""


@pytest.mark.parametrize("name", OTHERWISE)
def test_another_use_of_these_numbers_is_refused_by_its_op(name: str, tmp_path: Path) -> None:
    operator, nodes = OTHERWISE[name]
    more = [
        tensor("square", np.ones((COLUMNS, COLUMNS), "int8")),
        tensor("filter", np.ones((COLUMNS, WIDTH, 3), "int8")),
        tensor("turned_w", WEIGHTS["int8"].T.astype("int8")),
    ]
    path = saved(tmp_path, nodes, more=more)
    with pytest.raises(fs.UnpadError, match=rf"^unpad: ({operator}) \(.*\).*with a scale for each row otherwise than a product of these rows with a matrix"):
        fs.unpad(path, "mask", row_scales=True)


@pytest.mark.parametrize("result", ["s", "scales"])
def test_a_result_that_tells_of_scales_is_refused(result: str, tmp_path: Path) -> None:
    with pytest.raises(fs.UnpadError, match="with a scale for each row otherwise than a product of these rows with a matrix"):
        fs.unpad(saved(tmp_path, [*QUANTIZED, *SCALED], result=result), "mask", row_scales=True)


def test_another_number_of_all_texts_stays_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, [node("ReduceMax", "h", "largest", keepdims=0), node("Div", "h largest", "y")])
    with pytest.raises(fs.UnpadError, match="reduce_max") as caught:
        fs.unpad(path, "mask", row_scales=True)
    assert "row_scales" not in str(caught.value)


def attention(size: float) -> tuple[fs.Program, fs.Scope, fs.Variable]:
    """Describe attention of products of bytes with scores up to about the square of a size, masked by -10000."""
    program, scope = fs.Program(), fs.Scope()
    with fs.program_guard(program, fs.Program()):
        ids, mask = (layer.data(name, ["texts", "time"], "int64") for name in ("ids", "mask"))
        arrays = {"table": TABLE, "weights": WEIGHTS["int8"].astype("int8"), "scales": np.full(COLUMNS, size / 1000, "float32")}
        for name, array in arrays.items():
            dtype = fs.INT8 if name == "weights" else fs.FP32
            program.global_block.create_variable(name, tensor_spec(dtype, *array.shape), persistable=True, stop_gradient=True)
            scope.set(name, array)
        table, weights, scales = (program.global_block.var(n) for n in arrays)
        words = program.global_block.apply("lookup_table_v2", {"W": table, "Ids": ids})
        rows = layer.layer_norm(words, begin_norm_axis=2, weight=False, bias=False)
        h = program.global_block.apply("dynamic_int8_linear", {"X": rows, "W": weights, "Scale": scales})
        hidden = layer.unsqueeze(1.0 - layer.cast(mask, "fp32"), [1]) * -10000.0
        h = layer.matmul(layer.softmax(layer.matmul(h, h, transpose_y=True) + hidden), h)
        out = layer.slice(h, [1], [0], [1])
    return program, scope, out


def test_scores_of_products_of_bytes_are_bounded_by_their_weights() -> None:
    program, scope, out = attention(1.0)
    network, several = fs.unpad(program, "mask", fetches=out, scope=scope), texts()
    result = fs.Executor().run(network.program, {"ids": packed(several)}, network.fetches, scope)[0]
    for row, text in zip(result, several, strict=True):
        alone = fs.Executor().run(program, {"ids": text[None], "mask": np.ones((1, len(text)), "int64")}, [out], scope)[0]
        np.testing.assert_allclose(row, alone[0], rtol=1e-5, atol=1e-5)
    program, scope, out = attention(100.0)
    with pytest.raises(fs.UnpadError, match="masked keys are -10000 below the others"):
        fs.unpad(program, "mask", fetches=out, scope=scope)
