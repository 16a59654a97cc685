"""Compiled networks from anywhere: cut, flipped, and with numbers that do not fit together. Each is refused in words, or runs within its memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.survival import checked_words

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import tensor
from foreshape.interop import compiled_head
from foreshape.interop.compiled_file import CompiledFile
from foreshape.interop.compiled_head import HEAD
from foreshape.machine.kernels.onednn_library import library

sys.path.insert(0, str(Path(__file__).parent))
from compiled_mutations import parts, sealed

pytestmark = pytest.mark.skipif(library() is None, reason="oneDNN's library is not installed for this machine")


def multiplied_by_range(rows: fs.Variable, scope: fs.Scope) -> fs.Variable:
    """Describe a product of bytes, with rows by their range."""
    block = fs.default_main_program().global_block
    whole = block.create_variable("whole", tensor(fs.INT8, 3, 5), persistable=True)
    scope.set("whole", np.random.default_rng(2).integers(-127, 128, (3, 5)).astype("int8"))
    levels, scale, point = block.apply("dynamic_quantize_linear", {"X": rows})
    return layer.cast(block.apply("matmul_integer", {"X": levels, "Y": whole, "XZeroPoint": point}), "float32") * scale


@pytest.fixture(scope="module", params=["fp32", "bytes", "range"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled network of few kernels, one of most kinds, without the network itself."""
    folder = tmp_path_factory.mktemp("whole")
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", shape=["n", 3, 16, 12])
        y = layer.relu(layer.conv2d(x, 8, 3, padding=1))
        y = layer.pool2d(y * layer.conv2d(layer.reduce_mean(y, [2, 3], keepdim=True), 8, 1, activation="sigmoid"), 2, "max", 2)
        y = layer.conv2d_transpose(layer.concat([y, layer.conv2d(y, 4, 1)], axis=1), 3, kernel_size=2, stride=2)
        rows, scope = layer.layer_norm(layer.reduce_mean(y, [2, 3])), fs.Scope()
        out = layer.softmax(multiplied_by_range(rows, scope) if request.param == "range" else layer.fc(rows, 5))
        fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
        if request.param == "bytes":
            model = fs.quantize(fs.InferenceModel.of(fs.default_main_program(), [x.name], [out], scope), np.ones((1, 3, 16, 12), "float32"))
            fs.save_inference_model(folder / "net", model.feeds, model.fetches, program=model.program, scope=model.scope)
        else:
            fs.save_inference_model(folder / "net", [x], [out], scope=scope)
    fs.compile_model(folder / "net", [{"x": [1, 3, 16, 12]}])
    for ending in (".pdmodel", ".pdiparams"):
        (folder / f"net{ending}").unlink()
    return folder / "net.compiled"


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled network of ids, with small computations beside its kernels, without the network itself."""
    folder = tmp_path_factory.mktemp("steps")
    with fs.program_guard(fs.Program(), fs.Program()):
        ids, seen = layer.data("ids", shape=["n", 5], dtype="int64"), layer.data("seen", shape=["n", 5], dtype="int64")
        scope, mask = fs.Scope(), layer.unsqueeze(layer.scale(layer.cast(seen, "float32"), 100.0, -100.0), [1, 2])
        h = layer.embedding(layer.where(ids < 0, ids + 9, ids), [9, 8]) + layer.create_parameter([5, 8], "float32")
        h = layer.layer_norm(h + layer.multi_head_attention(h, heads=2, mask=mask), begin_norm_axis=2)
        out = layer.softmax(layer.fc(layer.concat([h[:, 0], layer.transpose(h, [0, 2, 1])[:, :, 1]], axis=1), 5))
        fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
        fs.save_inference_model(folder / "net", [ids, seen], [out], scope=scope)
    assert fs.compile_model(folder / "net", [{"ids": [2, 5], "seen": [2, 5]}]).kernels[0] > 5
    for ending in (".pdmodel", ".pdiparams"):
        (folder / f"net{ending}").unlink()
    return folder / "net.compiled"


def refuses(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(fs.FormatError) as found:
        CompiledFile(path)
    checked_words(found.value)
    return str(found.value)


@pytest.mark.quick_cases("fp32")
def test_a_cut_file(whole: Path, tmp_path: Path):
    data = whole.read_bytes()
    for length in {0, 1, 15, 16, 63, 64, 65, len(data) // 2, len(data) - 1, *random.Random(1).sample(range(len(data)), 40)}:
        assert "is no whole compiled network" in refuses(tmp_path / "cut.compiled", data[:length])
    assert "its head says" in refuses(tmp_path / "long.compiled", data + b"\0")


def test_a_flipped_bit(whole: Path, tmp_path: Path):
    data = whole.read_bytes()
    of = random.Random(2)
    for at in [*range(0, HEAD.size * 8, 7), *of.sample(range(HEAD.size * 8, 8 * len(data)), 100)]:
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        refuses(tmp_path / "flipped.compiled", bytes(flipped))


def changed(count: int, seed: int, whole: Path, folder: Path) -> Any:
    script = Path(__file__).parent / "compiled_mutations.py"
    done = subprocess.run([sys.executable, script, whole, str(seed), str(count), folder], capture_output=True, text=True)
    assert done.returncode == 0, f"{(folder / 'done.txt').read_text()}\n{done.stderr[-2000:]}"
    return json.loads(done.stdout)


def many_are_refused(network: Path, folder: Path) -> None:
    """Require of a hundred changed descriptions that each is refused or runs, and that both happen."""
    counts = changed(100, 1, network, folder)
    assert counts["refused"] + counts["ran"] == 100 and counts["refused"] > 40 and counts["ran"] > 2


@pytest.mark.quick_cases("fp32")
def test_changed_descriptions(whole: Path, tmp_path: Path):
    many_are_refused(whole, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 10))
def test_many_changed_descriptions(seed: int, whole: Path, tmp_path: Path):
    changed(5000, seed, whole, tmp_path)


def test_changed_steps(steps: Path, tmp_path: Path):
    many_are_refused(steps, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_changed_steps(seed: int, steps: Path, tmp_path: Path):
    changed(5000, seed, steps, tmp_path)


def of_kind(size: Any, kind: str) -> Any:
    return next(step for step in size["steps"] if step[0] == kind)


STEPS: dict[str, Any] = {
    "an unknown kind": (lambda size: of_kind(size, "sum").__setitem__(0, "savetxt"), "must be 'series' or"),
    "another function": (lambda size: of_kind(size, "compared").__setitem__(1, ["savetxt", -1]), "must be 'less' or"),
    "a later operand": (lambda size: size["steps"][0][2].__setitem__(0, len(size["values"]) - 1), "is not computed before it"),
    "a result twice": (lambda size: size["steps"][1].__setitem__(3, size["steps"][0][3]), "is there already"),
    "a result behind all values": (lambda size: size["steps"][0].__setitem__(3, [len(size["values"])]), "is there already"),
    "a wide result": (lambda size: size["values"][of_kind(size, "sum")[3][0]].__setitem__(1, [1 << 12, 1 << 12]), "it has no result"),
    "other elements": (lambda size: size["values"][of_kind(size, "compared")[3][0]].__setitem__(0, "float64"), "and not float64"),
    "a long constant": (lambda size: size["values"][size["constants"][0][0]].__setitem__(1, [1 << 20]), "bytes, and"),
    "a constant as an input": (lambda size: size["constants"][0].__setitem__(0, 0), "value 0 is no constant"),
    "no such series": (lambda size: of_kind(size, "series").__setitem__(1, [7]), "there is no series"),
    "another series": (lambda size: of_kind(size, "series")[2].reverse(), "are not those of series"),
    "an axis too many": (lambda size: of_kind(size, "transposed").__setitem__(1, [[0, 2, 1, 3]]), "does not fit its operands"),
    "a wrong axis": (lambda size: of_kind(size, "joined").__setitem__(1, [9]), "does not fit its operands"),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_that_do_not_fit(name: str, steps: Path, tmp_path: Path):
    description, constants = parts(steps.read_bytes())
    change, words = STEPS[name]
    change(description["sizes"][0])
    path = tmp_path / "changed.compiled"
    path.write_bytes(sealed(description, constants))
    ones = np.ones((2, 5), "int64")
    with pytest.raises(fs.FormatError) as found:
        fs.Predictor(path).run(ones, ones)
    checked_words(found.value)
    assert words in str(found.value), str(found.value)


OUTSIDE = {
    "a place behind the memory": lambda size: size["primitives"][0][4][0].__setitem__(2, 1 << 30),
    "a result in the input": lambda size: next(p for p in size["primitives"][0][4] if p[0] == 17).__setitem__(1, 0),
    "a constant as the result": lambda size: (p := size["primitives"][0], p[5].append([17, 0]), p[4].remove(next(x for x in p[4] if x[0] == 17))),
    "less memory": lambda size: size.__setitem__("nbytes", 64),
    "a smaller input": lambda size: size["given"][0].__setitem__(3, 1),
    "a smaller result": lambda size: size["results"][0].__setitem__(1, 1),
    "another layout of the weight": lambda size: next(p for p in size["primitives"] if p[6])[6].__setitem__(-1, 77),
    "another kernel": lambda size: size["primitives"][1].__setitem__(3, "jit:none"),
    "a tensor left out": lambda size: size["primitives"][1][4].pop(),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_would_lie_outside_of_the_memory(name: str, whole: Path, tmp_path: Path):
    description, constants = parts(whole.read_bytes())
    (series,) = description["sizes"][0]["series"]
    OUTSIDE[name](series)
    path = tmp_path / "outside.compiled"
    path.write_bytes(sealed(description, constants))
    predictor = fs.Predictor(path)
    with pytest.raises(fs.FormatError) as found:
        predictor._session._steps_for(tuple(tuple(form.dims) for form in predictor._file.description.sizes[0].given)) or predictor({"x": [[]]})
    checked_words(found.value)


def test_a_path_out_of_the_folder(whole: Path, tmp_path: Path):
    description, constants = parts(whole.read_bytes())
    for name in ("../net.pdmodel", "/etc/passwd", "..", "a/b"):
        description["sources"][0][0] = name
        assert "is no name of a file beside it" in refuses(tmp_path / "out.compiled", sealed(description, constants))


def test_constants_outside_of_the_file(whole: Path, tmp_path: Path):
    description, constants = parts(whole.read_bytes())
    for begin, nbytes in ((0, 1 << 39), (1 << 39, 4), (1, 4), (len(constants) // 64 * 64 + 64, 4)):
        description["constants"][0] = [begin, nbytes]
        assert "a constant lies at" in refuses(tmp_path / "out.compiled", sealed(description, constants))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled program, without the network itself."""
    folder = tmp_path_factory.mktemp("program")
    with fs.program_guard(fs.Program(), fs.Program()):
        x, scope = layer.data("x", shape=["batch", "time", 4]), fs.Scope()
        out = layer.softmax(layer.fc(layer.cumsum(layer.lstm(x, 3)[0], axis=1), 5, flatten_last=1))
        fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
        fs.save_inference_model(folder / "net", [x], [out], scope=scope)
    assert fs.compile_model(folder / "net").kernels == []
    for ending in (".pdmodel", ".pdiparams"):
        (folder / f"net{ending}").unlink()
    return folder / "net.compiled"


def refuses_to_open(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(fs.FormatError) as found:
        fs.Predictor(path).run(np.ones((1, 2, 4), "float32"))
    checked_words(found.value)
    return str(found.value)


@pytest.mark.parametrize("least", [0, 1 << 20], ids=["compared by a thread", "compared at once"])
def test_a_damaged_program(least: int, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled_head, "_AT_ONCE", least)
    data, of = program.read_bytes(), random.Random(4)
    begin = len(data) - len(parts(data)[1])
    for length in (16, 63, 96, begin - 1, begin, begin + 1, len(data) - 1, *of.sample(range(17, len(data)), 20)):
        assert "is no whole compiled network" in refuses_to_open(tmp_path / "cut.compiled", data[:length])
    for at in [*range(8 * 16, HEAD.size * 8, 31), *of.sample(range(HEAD.size * 8, 8 * len(data)), 60), 8 * len(data) - 3]:
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        refuses_to_open(tmp_path / "flipped.compiled", bytes(flipped))


def test_changed_programs(program: Path, tmp_path: Path):
    many_are_refused(program, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_changed_programs(seed: int, program: Path, tmp_path: Path):
    changed(3000, seed, program, tmp_path)


def test_parameters_of_a_program_outside_of_the_file(program: Path, tmp_path: Path):
    description, constants = parts(program.read_bytes())
    for place in (1, 1 << 35, len(constants) // 64 * 64 + 64):
        description["parameters"][0][3] = place
        assert "a constant lies at" in refuses_to_open(tmp_path / "out.compiled", sealed(description, constants))
    description["params"] = "../net.pdiparams"
    description["parameters"][0][3] = 0
    assert "is no name of a file beside it" in refuses_to_open(tmp_path / "out.compiled", sealed(description, constants))
