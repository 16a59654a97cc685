"""Programs over ragged rows, written as ONNX's models of padded ones with lengths."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.ragged_networks import NETWORKS
from support.some import each

import foreshape as fs
from foreshape import layer
from foreshape.interop import onnx_comparison
from foreshape.interop.onnx_session import with_padding, without_padding
from foreshape.language.wire.onnx_model import read_model
from foreshape.transforms.passes import for_test

LENGTHS = ([[4, 2, 5]], [[1]], [[3, 0, 2]])
NESTED = ([[2, 1, 0], [3, 0, 4]], [[1], [2]])


def cases(name: str) -> Any:
    """Yield the network's variables, each feed with what it gives, and levels."""
    x, fetches = NETWORKS[name]()
    executor = fs.Executor()
    executor.run(fs.default_startup_program())
    program, found = for_test(fs.default_main_program()), []
    for levels in NESTED if x.spec.lod_level == 2 else LENGTHS:
        draw, count = np.random.RandomState(sum(levels[-1])), sum(levels[-1])
        rows = draw.randint(0, 20, (count, 1)) if x.dtype.is_integer else draw.standard_normal((count, 3)).astype("float32")
        fed = fs.LoDTensor(rows, levels)
        found.append((fed, executor.run(program, feed={"x": fed}, fetch=[f.name for f in fetches])))
    return x, fetches, found


def require_same(got: Any, want: Any) -> None:
    if isinstance(want, fs.LoDTensor):
        assert isinstance(got, fs.LoDTensor) and got.sequence_lengths == want.sequence_lengths
        got, want = np.asarray(got.data), np.asarray(want.data)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.quick_cases("every_pool", "attention_over_rows")
@pytest.mark.parametrize("name", each(2, NETWORKS))
def test_a_padded_model_computes_the_same(name: str, tmp_path: Path) -> None:
    x, fetches, found = cases(name)
    fs.save_onnx(tmp_path / "m.onnx", x, fetches)
    opened = fs.load_inference_model(tmp_path / "m.onnx", scope=fs.Scope())
    for fed, want in found:
        levels = fed.sequence_lengths
        padded = with_padding(fed.data, levels)
        behind = np.full_like(padded[:, :1], 7)  # never read
        feed = {"x": np.concatenate([padded, behind], axis=1) if len(levels) == 1 else padded}
        feed |= {"x.lengths" + (f".{at}" if at else ""): with_padding(np.array(level), levels[:at]) for at, level in enumerate(levels)}
        got = opened.run(feed)
        for variable, one in zip(fetches, want, strict=True):
            lod = variable.spec.lod
            require_same(got[variable.name] if lod is None else without_padding(variable.name, got, len(lod.counts)), one)


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_a_predictor_in_onnxruntime_takes_and_gives_ragged_rows(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    x, fetches, found = cases(name)
    fs.save_inference_model(tmp_path / "m", x, fetches)
    predictor = fs.Predictor(tmp_path / "m", engine="onnxruntime")
    assert predictor.inputs == ["x"] and len(predictor.outputs) == len(fetches)
    for fed, want in found:
        got = predictor.run({"x": fed})
        for at, one in enumerate(want):
            require_same(got[at], one)


def test_inputs_and_results_are_described(tmp_path: Path) -> None:
    x, fetches = NETWORKS["two_levels"]()
    fs.Executor().run(fs.default_startup_program())
    fs.save_onnx(tmp_path / "m.onnx", x, {"parts": fetches[0]})
    graph = read_model(tmp_path / "m.onnx").graph
    assert [(v.name, v.type.dims) for v in graph.inputs if v.type is not None] == [
        ("x", ("batch", "x.time", "x.time.1", 3)), ("x.lengths", ("batch",)), ("x.lengths.1", ("batch", "x.time"))
    ]  # fmt: skip
    assert [v.name for v in graph.outputs] == ["parts", "parts.lengths"]


def test_what_has_no_padded_form_is_refused_by_operator(tmp_path: Path) -> None:
    x = layer.data("x", [-1, 3], lod_level=1)
    y = layer.sequence_enumerate(layer.data("k", [-1, 1], "int64", lod_level=1), 2)
    with pytest.raises(fs.FormatError, match=r"sequence_enumerate \(op 0 of block 0\)"):
        fs.save_onnx(tmp_path / "m.onnx", ["k"], y)
    with pytest.raises(fs.FormatError, match=r"lod_reset"):
        fs.save_onnx(tmp_path / "m.onnx", x, layer.lod_reset(x, target_lod=[0, 2]))


def test_a_comparison_is_of_dense_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, fetches = NETWORKS["rows_moved"]()
    fs.save_inference_model(tmp_path / "m", x, fetches, scope=started())
    monkeypatch.setattr(onnx_comparison, "need_onnxruntime", lambda what: SimpleNamespace(InferenceSession=lambda *_, **__: SimpleNamespace(get_outputs=list)))
    with pytest.raises(fs.FormatError, match="x is ragged: only networks of dense inputs are compared"):
        list(onnx_comparison.check_written("m.onnx", fs.load_inference_model(tmp_path / "m", scope=fs.Scope())))


def started() -> fs.Scope:
    scope = fs.Scope()
    fs.Executor().run(fs.default_startup_program(), scope=scope)
    return scope
