"""Writing programs as ONNX's models, opened again here; `tests/onnx_runtime` opens them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.interop.onnx.write.models import model_of
from foreshape.language.wire.onnx_model import read_model


def image_network() -> tuple[Any, Any]:
    x = layer.data("x", [-1, 3, -1, -1])
    y = layer.relu(layer.batch_norm(layer.conv2d(x, 8, 3, padding=1)))
    return x, layer.fc(layer.flatten(layer.pool2d(y, global_pooling=True)), 5, activation="softmax")


def written(path: Path, feeds: Any, fetches: Any, **options: Any) -> fs.InferenceModel:
    fs.save_onnx(path, feeds, fetches, **options)
    return fs.load_inference_model(path, scope=fs.Scope())


def test_a_network_computes_the_same_in_every_size(tmp_path: Path) -> None:
    x, y = image_network()
    fs.Executor().run(fs.default_startup_program())
    opened = written(tmp_path / "m.onnx", [x], {"scores": y})
    program = fs.default_main_program()
    from foreshape.transforms.passes import for_test

    for batch, height in ((1, 8), (3, 12)):
        feed = {"x": np.random.RandomState(batch).standard_normal((batch, 3, height, 9)).astype("float32")}
        want = fs.Executor().run(for_test(program), feed=feed, fetch=[y.name])[0]
        np.testing.assert_allclose(opened.run(feed)["scores"], want, rtol=1e-5, atol=1e-6)


def test_symbols_names_and_the_operator_set_are_kept(tmp_path: Path) -> None:
    x, y = image_network()
    fs.Executor().run(fs.default_startup_program())
    made = fs.save_onnx(tmp_path / "m.onnx", x, {"scores": y}, opset=15)
    graph = read_model(tmp_path / "m.onnx").graph
    assert made.opset == 15 and read_model(tmp_path / "m.onnx").opsets == {"": 15}
    assert [v.name for v in graph.inputs] == ["x"] and [v.name for v in graph.outputs] == ["scores"]
    assert graph.inputs[0].type is not None and graph.outputs[0].type is not None
    assert graph.inputs[0].type.dims is not None and graph.inputs[0].type.dims[1] == 3 and graph.outputs[0].type.dims == (graph.inputs[0].type.dims[0], 5)
    assert len({n.name for n in graph.nodes}) == len(graph.nodes) and all(n.name for n in graph.nodes)
    assert {v for v in graph.initializers if not v.startswith("constant")} == {p.name for p in fs.default_main_program().parameters()} | {
        v.name for v in fs.default_main_program().global_block.vars.values() if v.persistable
    }


def test_large_tensors_go_to_a_second_file(tmp_path: Path) -> None:
    x = layer.data("x", [-1, 64])
    y = layer.fc(x, 64)
    fs.Executor().run(fs.default_startup_program())
    from foreshape.interop.inference import for_inference, parameters_of, values_of
    from foreshape.interop.onnx.write.models import write_onnx
    from foreshape.interop.parameters import stored_array

    _, program, feeds, fetches = for_inference(x, y, None)
    values = values_of(parameters_of(program), fs.default_scope())
    stored = {n: stored_array(values[n], v.spec.known_dtype) for n, v in parameters_of(program).items()}
    made = write_onnx(tmp_path / "m.onnx", program, feeds, dict(zip(fetches, fetches, strict=True)), stored, largest=4096)
    assert made.data == str(tmp_path / "m.onnx.data") and (tmp_path / "m.onnx").stat().st_size < 2000
    feed = {"x": np.ones((2, 64), "float32")}
    opened = fs.load_inference_model(tmp_path / "m.onnx", scope=fs.Scope())
    np.testing.assert_allclose(opened.run(feed)[0], fs.Executor().run(feed=feed, fetch=[y])[0], rtol=1e-6)


def test_what_has_no_form_is_listed(tmp_path: Path) -> None:
    x = layer.data("x", [4, 4])
    y = layer.exp(x)
    program = fs.default_main_program()
    for _ in range(2):
        y = program.global_block.apply("svd", {"X": y}, {})[1]
        y = layer.reshape(layer.concat([y, y, y, y], axis=0), [4, 4])
    with pytest.raises(fs.FormatError, match=r"svd \(2 ops, the first is op 1 of block 0\): ONNX decomposes no matrices"):
        fs.save_onnx(tmp_path / "m.onnx", x, y)
    assert not list(tmp_path.iterdir())
    with pytest.raises(fs.FormatError, match="the operator set must be from 13 to 28; seen 12"):
        model_of(program, ["x"], {"y": y.name}, {}, 12)


def test_a_newer_operator_set_is_taken_where_needed_unless_one_is_asked_for(tmp_path: Path) -> None:
    x, grid = layer.data("x", [1, 2, 4, 4]), layer.data("grid", [1, 3, 3, 2])
    y = layer.grid_sample(x, grid)
    assert fs.save_onnx(tmp_path / "m.onnx", [x, grid], y).opset == 18
    with pytest.raises(fs.FormatError, match=r"grid_sampler .*needs the operator set 16, and 13 was asked for"):
        fs.save_onnx(tmp_path / "m.onnx", [x, grid], y, opset=13)


@pytest.mark.quick_cases("0.7-known", "1.3-open")
@pytest.mark.parametrize("dims", [[1, 2, 5, 7], ["batch", 2, "height", "width"]], ids=["known", "open"])
@pytest.mark.parametrize("scale", [1.3, 0.7])
def test_aligned_corners_are_resized_to_sizes(dims: list[Any], scale: float, tmp_path: Path) -> None:
    """ONNX's reference takes a scaled size before it is cut, so that scales would be read in two ways."""
    x = layer.data("x", shape=dims)
    attrs = {"scale": [scale, scale], "align_corners": True}
    results = {kind: fs.default_main_program().global_block.apply(f"{kind}_interp_v2", {"X": x}, attrs) for kind in ("nearest", "bilinear", "bicubic")}
    feed = {"x": np.random.RandomState(0).standard_normal((1, 2, 5, 7)).astype("float32")}
    want = fs.Executor().run(feed=feed, fetch=list(results.values()))
    opened = written(tmp_path / "m.onnx", [x], results)
    resized = [n.inputs for n in read_model(tmp_path / "m.onnx").graph.nodes if n.operator == "Resize"]
    assert len(resized) == 3 and all(len(inputs) == 4 and not inputs[2] for inputs in resized)
    got = opened.run(feed)
    for kind, one in zip(results, want, strict=True):
        np.testing.assert_allclose(got[kind], one, rtol=1e-4, atol=1e-5, err_msg=kind)
