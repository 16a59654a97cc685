"""Compiled programs: every network that a predictor opens, from its file alone and in a process of its own, with the same answers and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commanded import call
from support.onnx_cases import cases
from support.some import one_in

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import tensor
from foreshape.interop import compiled_head
from foreshape.interop.compiled_head import PROGRAM, is_compiled
from foreshape.interop.compiled_program import CompiledProgram

CHANCE = np.random.default_rng(3)
ROWS = CHANCE.standard_normal((2, 5, 8)).astype("float32")
IDS = np.asarray([[1, 4, 2], [0, 0, 6]])


def lstm(scope: fs.Scope) -> tuple[Any, Any]:
    x = layer.data("x", shape=["batch", "time", 8])
    return [x], layer.lstm(x, 6)[0]


def attention(scope: fs.Scope) -> tuple[Any, Any]:
    ids = layer.data("ids", shape=["batch", "words"], dtype="int64")
    x = layer.embedding(ids, [9, 8])
    return [ids], layer.layer_norm(x + layer.multi_head_attention(x, heads=2), begin_norm_axis=2)


def bytes_by_range(scope: fs.Scope) -> tuple[Any, Any]:
    x, block = layer.data("x", shape=["n", 8]), fs.default_main_program().global_block
    whole = block.create_variable("whole", tensor(fs.INT8, 8, 5), persistable=True)
    scope.set("whole", CHANCE.integers(-127, 128, (8, 5)).astype("int8"))
    levels, scale, point = block.apply("dynamic_quantize_linear", {"X": x})
    return [x], layer.cast(block.apply("matmul_integer", {"X": levels, "Y": whole, "XZeroPoint": point}), "float32") * scale


def branch(scope: fs.Scope) -> tuple[Any, Any]:
    x = layer.data("x", shape=["n", 8])
    w = layer.create_parameter([8, 4], "float32")
    return [x], layer.cond(layer.reduce_sum(x) > 0.0, lambda: layer.matmul(x, w), lambda: layer.relu(layer.matmul(x, w)))


def loop(scope: fs.Scope) -> tuple[Any, Any]:
    x = layer.data("x", shape=["n", 4])
    w = layer.create_parameter([4, 4], "float32")
    count = layer.fill_constant([1], "int64", 3)
    return [x], layer.while_loop(lambda n, y: n > 0, lambda n, y: [n - 1, layer.tanh(layer.matmul(y, w))], [count, x])[1]


def sequences(scope: fs.Scope) -> tuple[Any, Any]:
    ids = layer.data("ids", shape=["tokens"], dtype="int64", lod_level=1)
    return [ids], layer.sequence_pool(layer.embedding(ids, [9, 4]), "sum")


def half(scope: fs.Scope) -> tuple[Any, Any]:
    x = layer.data("x", shape=["n", 8])
    return [x], layer.cast(layer.matmul(layer.cast(x, "bfloat16"), layer.create_parameter([8, 4], "bfloat16")), "float32")


NETWORKS: dict[str, tuple[Callable[[fs.Scope], tuple[Any, Any]], Any, Any]] = {
    "lstm": (lstm, ROWS, ROWS[:, :, :7]),
    "attention": (attention, IDS, IDS + 100),
    "bytes by range": (bytes_by_range, ROWS[0], ROWS[0].astype("int64")),
    "branch": (branch, -ROWS[0], ROWS),
    "loop": (loop, ROWS[0, :, :4], ROWS[0, :, :3]),
    "sequences": (sequences, fs.LoDTensor(IDS.reshape(-1), [[2, 4]]), IDS.reshape(-1)),
    "bf16": (half, ROWS[0], ROWS[0, 0]),
}
"""The description of a network, a feed, and one that it does not take."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled networks, and the networks themselves in a folder within it."""
    out = tmp_path_factory.mktemp("programs")
    (out / "itself").mkdir()
    for name, (describe, _, _) in NETWORKS.items():
        scope = fs.Scope()
        with fs.program_guard(fs.Program(), fs.Program()):
            feeds, result = describe(scope)
            fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
            fs.save_inference_model(out / "itself" / name, feeds, [result], scope=scope)
        made = fs.compile_model(out / "itself" / name, out=out / f"{name}.compiled")
        assert made.kernels == [] and made.difference in (0.0, None) and made.reason
    return out


def answers(path: Path, name: str) -> Any:
    """Return the results of a network, and the words of its refusal of another feed."""
    predictor = fs.Predictor(path)
    _, feed, other = NETWORKS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rounded numbers
        results = list(predictor.run(feed).values())
        try:
            predictor.run(other)
            words = "none"
        except fs.ForeshapeError as error:
            words = f"{type(error).__name__}: {error}"
    return [np.asarray(r).tolist() for r in results], words.replace(str(path), "FILE")


def test_answers_in_a_process_of_its_own(folder: Path) -> None:
    script = f"""
import json, sys
sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parent)]!r}
import foreshape
assert "torch" not in sys.modules
from test_compiled_programs import NETWORKS, answers
from pathlib import Path
print(json.dumps({{name: answers(Path({str(folder)!r}) / f"{{name}}.compiled", name) for name in NETWORKS}}))
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    fresh = json.loads(done.stdout)
    for name in NETWORKS:
        results, words = answers(folder / "itself" / name, name)
        assert len(fresh[name][0]) == len(results), name
        for a, b in zip(fresh[name][0], results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # the first answers of a process may come from other kernels
        assert fresh[name][1] == words and words != "none", name


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_a_network_as_any_other(name: str, folder: Path) -> None:
    compiled, itself = fs.Predictor(folder / f"{name}.compiled"), fs.Predictor(folder / "itself" / name)
    assert (compiled.inputs, compiled.outputs, repr(compiled)) == (itself.inputs, itself.outputs, repr(itself))
    assert str(compiled.model.program) == str(itself.model.program)
    assert compiled.model.asked == itself.model.asked


def test_other_sizes_settings_and_doors(folder: Path, tmp_path: Path) -> None:
    path, itself = folder / "lstm.compiled", folder / "itself" / "lstm"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (ROWS[:1, :2], np.concatenate([ROWS] * 3)):
            assert np.array_equal(fs.Predictor(path, threads=1, batch_queue=4)(x)[0], fs.Predictor(itself, threads=1)(x)[0])
    assert 0 < fs.Predictor(path).plan().peak(batch=2, time=3) <= fs.Predictor(itself).plan().peak(batch=2, time=3)  # its parameters stay in the file
    np.save(tmp_path / "x.npy", ROWS)
    for one in (path, itself):
        code, printed, error = call("run", one, "--feed", f"x={tmp_path / 'x.npy'}", "--out", tmp_path / one.name)
        assert code == 0, (printed, error)
    found, wanted = (np.load(next((tmp_path / one.name).glob("*.npy"))) for one in (path, itself))
    assert np.array_equal(found, wanted)
    code, _, _ = call("convert", path, tmp_path / "again.onnx")
    assert code == 0 and np.allclose(fs.Predictor(tmp_path / "again.onnx")(ROWS)[0], wanted, atol=1e-6)


def test_the_command_says_why_torch_is_needed(folder: Path, tmp_path: Path) -> None:
    code, printed, _ = call("compile", folder / "itself" / "loop.pdmodel", "--shape", "x=2,4", "--out", tmp_path / "loop.compiled")
    assert code == 0 and "a program; its results are equal to the network's, bit for bit" in printed
    assert "it is run with torch, since oneDNN's library and numpy have no kernels for while" in printed


def beside(folder: Path, tmp_path: Path, name: str = "lstm") -> Path:
    """Return a compiled network beside the network itself."""
    for ending in (".pdmodel", ".pdiparams"):
        (tmp_path / f"{name}{ending}").write_bytes((folder / "itself" / f"{name}{ending}").read_bytes())
    fs.compile_model(tmp_path / name)
    return tmp_path / f"{name}.compiled"


@pytest.mark.parametrize("reason", ["lstm.pdiparams has changed since", "it was compiled by foreshape"])
def test_the_network_itself_is_opened_where_the_file_does_not_fit(reason: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = beside(folder, tmp_path)
    if "changed" in reason:
        data = bytearray((tmp_path / "lstm.pdiparams").read_bytes())
        data[-2] ^= 1
        (tmp_path / "lstm.pdiparams").write_bytes(data)
    else:
        monkeypatch.setattr(compiled_head, "VERSION", "9.9")
    with pytest.warns(fs.ForeshapeWarning, match=f"{reason}.*is opened as usual"):
        found = fs.Predictor(path)(ROWS)[0]
    assert np.array_equal(found, fs.Predictor(tmp_path / "lstm")(ROWS)[0])
    (tmp_path / "lstm.pdmodel").unlink()
    with pytest.raises(fs.FormatError, match=f"{reason}.*is not there"):
        fs.Predictor(path)


def test_a_settled_file_is_not_read_again_and_a_changed_one_is(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = beside(folder, tmp_path)
    assert [s.state for s in CompiledProgram(path).description.sources] == [None, None], "another change might leave the times of a new file as they are"
    now = time.time_ns()
    monkeypatch.setattr(compiled_head.time, "time_ns", lambda: now + 10**10)
    fs.compile_model(tmp_path / "lstm")
    read: list[str] = []
    digest_of = compiled_head.digest_of
    monkeypatch.setattr(compiled_head, "digest_of", lambda path: (read.append(os.path.basename(path)), digest_of(path))[1])
    assert CompiledProgram(path).misfit() == "" and read == []
    old = os.stat(tmp_path / "lstm.pdiparams")
    data = bytearray((tmp_path / "lstm.pdiparams").read_bytes())
    os.utime(tmp_path / "lstm.pdiparams")
    assert CompiledProgram(path).misfit() == "" and read == ["lstm.pdiparams"], "touched, and the same"
    data[-1] ^= 1
    (tmp_path / "other").write_bytes(data)
    os.utime(tmp_path / "other", ns=(old.st_atime_ns, old.st_mtime_ns))  # as tools do that pack folders
    os.replace(tmp_path / "other", tmp_path / "lstm.pdiparams")
    assert CompiledProgram(path).misfit() == "lstm.pdiparams has changed since"


@pytest.mark.parametrize("letter", one_in(6, sorted({name.split("_")[1][:1] for name in cases()})))
def test_operators_of_onnx(letter: str, tmp_path: Path) -> None:
    """Each model is opened again as it is, if the format of programs has its element types."""
    failed: list[str] = []
    for name, case in cases().items():
        if name.split("_")[1][:1] != letter:
            continue
        (path := tmp_path / "case.onnx").write_bytes(case["model"].tobytes())
        try:
            itself = fs.Predictor(path)
            feed = [case[f"in{at}"] for at in range(len(itself.inputs))]
            wanted = itself.run(dict(zip(itself.inputs, feed, strict=True)))
        except fs.ForeshapeError:
            continue
        try:
            made = fs.compile_model(path)
        except fs.FormatError as error:
            assert "uint" in str(error) and "the file format has no such elements" in str(error)
            continue
        if not is_compiled(made.path, PROGRAM):
            continue
        found = fs.Predictor(made.path).run(dict(zip(itself.inputs, feed, strict=True)))
        if list(found) != list(wanted) or any(
            not np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc") for a, b in zip(found.values(), wanted.values(), strict=True)
        ):
            failed.append(name)
    assert not failed
