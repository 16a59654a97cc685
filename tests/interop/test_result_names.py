"""A result of a saved network is shown by the name that its writer knows."""

from __future__ import annotations

from pathlib import Path

import foreshape as fs
from foreshape import layer


def test_a_loaded_network_shows_the_results_by_their_own_names(tmp_path: Path) -> None:
    x = layer.data("x", 4)
    shares = layer.softmax(layer.fc(x, 3))
    fs.Executor().run(fs.default_startup_program())
    fs.save_inference_model(tmp_path / "net", [x], [shares])
    model = fs.load_inference_model(tmp_path / "net", scope=fs.Scope())
    assert repr(model) == f"InferenceModel(x: f32[batch, 4] -> {shares.name}: f32[batch, 3])"
    assert [v.name for v in model.fetches] == ["save_infer_model/scale_0.tmp_0"] and "save_infer_model" in str(model.program)
