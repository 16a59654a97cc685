"""Every command in a process without PyTorch: descriptions need none, and the commands that run a network name the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import onnx_writer, pir_files

import foreshape as fs
from foreshape import layer
from foreshape.apps.cli.commands import app

_BLOCKED = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
_EACH = """
from support.commanded import call

print(json.dumps([call(*line) for line in json.load(sys.stdin)]))
"""
_TEXT = """
import foreshape as fs

program = fs.Program.parse(json.load(sys.stdin))
print(json.dumps([fs.plan(program).peak(batch=8), program.summary(batch=8) is not None]))
"""
DESCRIBING: dict[str, list[str]] = {
    "show": ["{file}", "--output", "{to}.pdmodel"],
    "check": ["{file}", "--guards"],
    "report": ["{file}", "--html", "{to}.html"],
    "plan": ["{file}", "--batch", "8", "--html", "{to}.html"],
    "convert": ["{file}", "{to}.onnx"],
    "ops": ["conv"],
    "train": ["{script}"],
}
"""Commands that need no torch, and a line for each. ``train`` runs a script, and this one describes."""
RUNNING: dict[str, list[str]] = {
    "run": ["{file}", "--feed", "x={array}"],
    "compile": ["{file}", "--out", "{to}.compiled"],
    "quantize": ["{file}", "--data", "{array}", "--out", "{to}"],
    "serve": ["m={file}", "--port", "0"],
    "embed": ["{file}", "-", "--out", "{to}.npy"],
    "preflight": ["textwrap:dedent"],
    "calibrate": ["--out", "{to}.json"],
    "demo": ["--out", "{to}"],
}
"""Commands that run kernels."""
MORE: list[list[str]] = [
    ["plan", "{file}", "--batch", "8", "--ranks", "2"],
    ["show", "{file}", "--summary"],
    ["show", "{file}", "--tail"],
    ["convert", "{file}", "{to}.pdmodel", "--force"],
    ["convert", "{file}", "{to}.safetensors"],
]
"""Other forms of describing commands."""


def _described() -> None:
    """A network whose sizes are computed from those of its input."""
    x = layer.data("x", shape=["batch", 12])
    rows = layer.slice(layer.shape(x), [0], [0], [1])
    ones = layer.fill_constant([rows, 5], "float32", 1.0)
    layer.fc(layer.fc(x, 5, "relu") + ones, 3, name="out")


def _of_paddle(path: Path) -> None:
    _described()
    out = fs.default_main_program().global_block.ops[-1].result()
    scope = fs.Scope()
    fs.Executor().run(fs.default_startup_program(), scope=scope)
    fs.save_inference_model(path, ["x"], [fs.default_main_program().var(out)], scope=scope)


def _of_paddle_3(path: Path) -> None:
    x = pir_files.tensor([-1, 12])
    sizes, one = pir_files.tensor([2], "i64"), pir_files.full(4, 1.0)
    ops = [pir_files.feed(1, "x", x), pir_files.op("shape64", [1], [(2, sizes)]), one]
    ops += [pir_files.op("full_with_tensor", [4, 2], [(5, x)], dtype=pir_files.dtype("float32")), pir_files.op("add", [1, 5], [(6, x)])]
    path.with_suffix(".json").write_bytes(pir_files.file(*ops, pir_files.fetch(7, 6, "out", x)))


def _of_onnx(path: Path) -> None:
    n = onnx_writer.node
    nodes = [n("Shape", "x", "s"), n("Gather", "s first", "b"), n("Concat", "b five", "to", axis=0), n("ConstantOfShape", "to", "zeros")]
    nodes += [n("MatMul", "x w", "h"), n("Add", "h zeros", "out")]
    tensors = [onnx_writer.tensor("first", np.array([0])), onnx_writer.tensor("five", np.array([5])), onnx_writer.tensor("w", np.ones((12, 5), "f4"))]
    graph = onnx_writer.Graph(nodes, [onnx_writer.value("x", "float32", ["batch", 12])], [onnx_writer.value("out", "float32", None)], tensors)
    path.with_suffix(".onnx").write_bytes(onnx_writer.model(graph))


FORMATS = {".pdmodel": _of_paddle, ".json": _of_paddle_3, ".onnx": _of_onnx}


def _without_torch(code: str, given: Any) -> Any:
    tests = os.fspath(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.fspath(Path(fs.__file__).parents[1]), tests])}
    command = [sys.executable, "-c", _BLOCKED + code]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _check(folder: Path, ending: str, lines: list[list[str]]) -> None:
    """Type lines about a network in a process without torch, and look at the answers."""
    FORMATS[ending](folder / "net")
    (folder / "net.pdiparams").touch()
    (folder / "describes.py").write_text("from foreshape import layer\n\nx = layer.data('x', shape=['batch', 3])\nprint(layer.fc(x, 2))\n")
    np.save(folder / "array.npy", np.ones((2, 12), "f4"))
    places = {"file": folder / f"net{ending}", "array": folder / "array.npy", "script": folder / "describes.py"}
    typed = [[word.format(to=folder / f"to{at}", **places) for word in line] for at, line in enumerate(lines)]
    for line, (code, out, err) in zip(typed, _without_torch(_EACH, typed), strict=True):
        if line[0] == "embed":  # it computes without torch, and none of these is an encoder of texts
            assert code == 1 and "Error: " in err and "torch" not in err, (line, err)
        elif line[0] in RUNNING:
            assert code == (2 if line[0] == "preflight" else 1) and "needs the package torch: pip install" in err, (line, err)
        else:
            assert (code, err) == (0, ""), (line, err)
            assert out, line


def test_each_command_says_whether_it_needs_torch() -> None:
    assert {one.name or one.callback.__name__ for one in app.registered_commands if one.callback} == {*DESCRIBING, *RUNNING}


def test_a_network_with_computed_sizes_is_checked_and_planned_without_torch(tmp_path: Path) -> None:
    _check(tmp_path, ".onnx", [[name, *DESCRIBING[name]] for name in ("check", "plan")] + [["run", *RUNNING["run"]]])


@pytest.mark.long
@pytest.mark.parametrize("ending", [".pdmodel", ".json", ".onnx"])
def test_every_command_describes_each_format_without_torch_or_names_it(ending: str, tmp_path: Path) -> None:
    _check(tmp_path, ending, [[name, *line] for table in (DESCRIBING, RUNNING) for name, line in table.items()] + MORE)


@pytest.mark.long
def test_a_program_of_text_is_planned_without_torch() -> None:
    _described()
    peak = fs.plan(fs.default_main_program()).peak(batch=8)
    assert _without_torch(_TEXT, str(fs.default_main_program())) == [peak, True]
