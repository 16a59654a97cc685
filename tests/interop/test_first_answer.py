"""The first answer of an opened network waits for no module that it does not need, and for no collection of garbage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import foreshape as fs
from foreshape import layer

SCRIPT = """
import gc, json, sys
import numpy, torch
collections = []
gc.callbacks.append(lambda phase, facts: collections.append(facts["generation"]) if phase == "start" else None)
import foreshape as fs
predictor = fs.Predictor(sys.argv[1])
results = predictor.run({"x": numpy.ones((2, 4), "float32")})
print(json.dumps({"modules": sorted(sys.modules), "full": collections.count(2), "results": [r.tolist() for r in results.values()]}))
"""
NOT_NEEDED = (
    "google.protobuf", "fractions", "foreshape.transforms.passes", "foreshape.optimizer", "foreshape.apps", "foreshape.interop.onnx.write.models",
    "foreshape.layer.attention", "foreshape.layer.augmentation", "foreshape.compiler.memory.arena_layout", "foreshape.compiler.lowering.fusion.bags",
    "foreshape.compiler.lowering.fusion.linear_gradient", "foreshape.core.pictures.chart", "foreshape.machine.communication.process_group",
    "foreshape.machine.kernels.compiled_chain",
)  # fmt: skip


def test_a_model_of_onnx_answers_without_other_rooms_and_without_a_full_collection(tmp_path: Path) -> None:
    x = layer.data("x", shape=["n", 4])
    out = layer.softmax(layer.fc(x, 3, "relu"))
    scope = fs.Scope()
    fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
    path = tmp_path / "net.onnx"
    fs.save_onnx(path, [x], [out], scope=scope)
    done = subprocess.run([sys.executable, "-c", SCRIPT, path], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert {name for name in seen["modules"] if name.startswith(NOT_NEEDED)} == set()
    assert seen["full"] == 0, "a full collection looks at all objects of torch"
    (expected,) = fs.Predictor(path).run({"x": np.ones((2, 4), "float32")}).values()
    assert np.allclose(seen["results"][0], expected, atol=1e-6)
