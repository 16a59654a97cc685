"""Compiled networks: the same bits as the network itself, without torch, and the network itself where the file does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commanded import call

import foreshape as fs
from foreshape import layer
from foreshape.interop import compiled_head
from foreshape.interop.compiled_file import CompiledFile
from foreshape.machine.kernels.onednn_library import SOURCE, STEP_OF, SWITCH, Library, library

pytestmark = pytest.mark.skipif(library() is None, reason="oneDNN's library is not installed for this machine")
SIZES = [{"x": [1, 3, 16, 12]}, {"x": [2, 3, 8, 8]}]


def saved(folder: Path, seed: int = 1) -> Path:
    """Save a network with every kind of kernel of a series."""
    x = layer.data("x", shape=["n", 3, "height", "width"])
    y = layer.relu(layer.batch_norm(layer.conv2d(x, 8, 3, padding=1)))
    gate = layer.conv2d(layer.reduce_mean(y, [2, 3], keepdim=True), 8, 1, activation="sigmoid")
    scaled = y * gate
    pooled = layer.pool2d(scaled, 2, "max", 2)
    wide = layer.concat([layer.conv2d(pooled, 4, 3, padding=1, groups=2), pooled], axis=1)
    back = layer.conv2d_transpose(wide, 3, kernel_size=4, stride=2, padding=[1, 1, 1, 1])
    rows = layer.layer_norm(layer.reduce_mean(wide, [2, 3]))
    scores = layer.softmax(layer.fc(rows, 5))
    scope = fs.Scope()
    fs.Executor(seed=seed).run(fs.default_startup_program(), scope=scope)
    fs.save_inference_model(folder / "net", [x], [scores, back], scope=scope)
    return folder / "net"


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with fs.program_guard(fs.Program(), fs.Program()):
        path = saved(tmp_path_factory.mktemp("compiled"))
    made = fs.compile_model(path, SIZES)
    assert made.path == f"{path}.compiled" and made.nbytes == os.path.getsize(made.path) and made.difference == 0.0 and len(made.kernels) == 2
    return path


def test_a_network_of_bytes_is_the_same(net: Path, tmp_path: Path) -> None:
    model = fs.load_inference_model(net, scope=fs.Scope())
    made = fs.quantize(model, [numbers(*of["x"]) for of in SIZES])
    fs.save_inference_model(tmp_path / "bytes", made.feeds, made.fetches, program=made.program, scope=made.scope)
    assert fs.compile_model(tmp_path / "bytes", SIZES).difference == 0.0
    whole, compiled = fs.Predictor(tmp_path / "bytes"), fs.Predictor(tmp_path / "bytes.compiled")
    for of in SIZES:
        x = numbers(*of["x"])
        assert same(compiled.run(x), whole.run(x))
    primitives = CompiledFile(tmp_path / "bytes.compiled").description.sizes[0].series[0].primitives
    assert sum(STEP_OF | SOURCE in dict(p.constants) for p in primitives) > 3, "few kernels read bytes"


def numbers(*dims: int) -> Any:
    return np.random.default_rng(sum(dims)).standard_normal(dims, np.float32)


def same(found: Any, wanted: Any) -> bool:
    return list(found) == list(wanted) and all(np.array_equal(found[n], wanted[n]) and found[n].dtype == wanted[n].dtype for n in wanted)


def test_its_results_are_those_of_the_network_to_the_bit(net: Path):
    compiled, itself = fs.Predictor(f"{net}.compiled"), fs.Predictor(net)
    assert compiled.inputs == itself.inputs and compiled.outputs == itself.outputs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in SIZES:
            x = numbers(*size["x"])
            for given in (x, {"x": x}, x.astype(">f4").astype("f4"), np.asfortranarray(x)):
                assert same(compiled(given), itself(x))
        assert (compiled(x)[0] == compiled(x)["softmax_0.tmp_0"]).all()
    assert repr(compiled).endswith("compiled for x [1, 3, 16, 12]; x [2, 3, 8, 8])")


def test_threads_do_not_disturb_one_another(net: Path):
    compiled, itself = fs.Predictor(f"{net}.compiled"), fs.Predictor(net)
    given = [numbers(1, 3, 16, 12) * k for k in range(16)]
    with ThreadPoolExecutor(4) as pool:
        assert all(same(found, itself(x)) for found, x in zip(pool.map(compiled, given), given, strict=True))


def test_it_needs_neither_torch_nor_the_network(net: Path, tmp_path: Path):
    alone = tmp_path / "alone.compiled"
    alone.write_bytes(Path(f"{net}.compiled").read_bytes())
    np.save(tmp_path / "x.npy", numbers(1, 3, 16, 12))
    code = f"""
import sys, numpy
import foreshape as fs
found = fs.Predictor({str(alone)!r})(numpy.load({str(tmp_path / "x.npy")!r}))
numpy.savez({str(tmp_path / "found.npz")!r}, *found.values())
sys.argv = ["foreshape", "run", {str(alone)!r}, "--feed", {f"x={tmp_path / 'x.npy'}"!r}, "--out", {str(tmp_path / "out")!r}]
from foreshape.apps.cli import main
try:
    main()
finally:
    assert not {{"torch", "google.protobuf", "foreshape.runtime.engine"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    itself = list(fs.Predictor(net)(numbers(1, 3, 16, 12)).values())
    with np.load(tmp_path / "found.npz") as found:
        assert all(np.array_equal(found[f"arr_{at}"], of) for at, of in enumerate(itself))
    written = sorted((tmp_path / "out").iterdir())
    assert len(written) == 2 and all(any(np.array_equal(np.load(p), of) for of in itself) for p in written)


def changed(path: Path) -> None:
    program = path.with_name("net.pdiparams")
    data = bytearray(program.read_bytes())
    data[-1] ^= 1
    program.write_bytes(data)


MISFITS = {
    "another size": (lambda path, patch: None, "not compiled for x \\[1, 3, 8, 8\\]"),
    "changed parameters": (lambda path, patch: changed(path), "net.pdiparams has changed"),
    "another version": (lambda path, patch: patch.setattr(compiled_head, "VERSION", "9.9"), "compiled by foreshape"),
    "without the library": (lambda path, patch: patch.setenv(SWITCH, "torch"), "oneDNN's library is not there"),
    "another machine": (lambda path, patch: patch.setattr(Library, "identity", lambda self: "0"), "and here is 0"),
    "another kernel": (lambda path, patch: patch.setattr(Library, "layout", lambda self, of: []), "orders the weight otherwise"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_the_network_itself_is_opened_where_the_file_does_not_fit(name: str, net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for one in net.parent.glob("net.*"):
        (tmp_path / one.name).write_bytes(one.read_bytes())
    change, reason = MISFITS[name]
    change(tmp_path / "net", monkeypatch)
    x = numbers(1, 3, 8, 8) if name == "another size" else numbers(1, 3, 16, 12)
    compiled = fs.Predictor(tmp_path / "net.compiled")
    with pytest.warns(fs.ForeshapeWarning, match=reason):
        found = compiled(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert same(compiled(x), found)
    assert same(found, fs.Predictor(tmp_path / "net")(x))
    (tmp_path / "net.pdmodel").unlink()
    if name != "changed parameters":
        with pytest.raises(fs.FormatError, match=f"{reason}.*is not there"):
            fs.Predictor(tmp_path / "net.compiled")(x)


def test_what_it_does_not_take(net: Path):
    compiled = fs.Predictor(f"{net}.compiled")
    with pytest.raises(fs.FeedError, match="for x; seen y"):
        compiled({"y": numbers(1, 3, 16, 12)})
    for settings in ({"device": "cuda"}, {"batch_queue": 4}, {"engine": "onnxruntime"}, {"threads": "adaptive"}, {"memory_limit": "1 GiB"}, {"params": "x"}):
        with pytest.raises(fs.SchemaError, match="is a compiled network"):
            fs.Predictor(f"{net}.compiled", **settings)
    assert compiled.plan().peak(n=1, height=16, width=12) > 0  # of the network itself


def test_other_numbers_go_to_the_network_itself(net: Path):
    compiled = fs.Predictor(f"{net}.compiled")
    with pytest.warns(fs.ForeshapeWarning, match="it is rounded"), pytest.warns(fs.ForeshapeWarning, match="an input is of float64"):
        assert same(compiled(np.ones((1, 3, 16, 12))), fs.Predictor(net)(np.ones((1, 3, 16, 12), np.float32)))


def test_a_network_that_is_no_series_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    x, ids = layer.data("x", shape=["n", 4]), layer.data("ids", shape=["n", 1], dtype="int64")
    hidden = layer.fc(x, 3)
    fs.Executor(seed=1).run(fs.default_startup_program())

    def reason(feeds: Any, out: Any, *sizes: dict[str, list[int]]) -> str:
        fs.save_inference_model("net", feeds, [out])
        made = fs.compile_model("net", sizes)
        assert made.kernels == [] and made.difference == 0.0
        return made.reason

    assert reason([x], layer.cumsum(hidden), {"x": [2, 4]}) == "oneDNN's library and numpy have no kernels for cumsum"
    assert "x is f32[n, 4]; kernels are chosen for sizes" in reason([x], hidden)
    assert "for one_hot" in reason([ids], layer.one_hot(ids, 3), {"ids": [2, 1]})
    tokens = layer.data("tokens", shape=["tokens"], dtype="int64", lod_level=1)
    assert "kernels are chosen for sizes" in reason([tokens], layer.one_hot(tokens, 3))
    monkeypatch.setenv(SWITCH, "torch")
    assert "oneDNN's own library is not there" in reason([x], hidden, {"x": [2, 4]})
    with pytest.raises(fs.SchemaError, match="is compiled already"):
        fs.compile_model("net.compiled")


def encoder(folder: Path) -> Path:
    """Save an encoder of padded texts of ids."""
    ids, seen = (layer.data(name, shape=["n", "words"], dtype="int64") for name in ("ids", "seen"))
    mask = layer.unsqueeze(layer.scale(layer.cast(seen, "float32"), 1e4, -1e4), [1, 2])
    h = layer.embedding(layer.where(ids < 0, ids + 30, ids), [30, 16])
    for _ in range(2):
        h = layer.layer_norm(h + layer.multi_head_attention(h, heads=2, mask=mask), begin_norm_axis=2)
        h = layer.layer_norm(h + layer.fc(layer.gelu(layer.fc(h, 32, flatten_last=1)), 16, flatten_last=1), begin_norm_axis=2)
    out, scope = layer.fc(h[:, 0], 3), fs.Scope()
    fs.Executor(seed=2).run(fs.default_startup_program(), scope=scope)
    fs.save_inference_model(folder / "encoder", [ids, seen], [h, out, ids], scope=scope)
    return folder / "encoder"


def test_an_encoder_of_ids_needs_no_torch(tmp_path: Path):
    path = encoder(tmp_path)
    made = fs.compile_model(path, [{"ids": [2, 6], "seen": [2, 6]}, {"ids": [1, 3], "seen": [1, 3]}])
    assert len(made.kernels) == 2 and made.kernels[0] >= 20 and made.difference < 1e-6
    chance = np.random.default_rng(1)
    ids, seen = chance.integers(-30, 30, (2, 6)), chance.integers(0, 2, (2, 6)) | (np.arange(6) == 0)
    for name, array in (("ids", ids), ("seen", seen)):
        np.save(tmp_path / f"{name}.npy", array)
    code = f"""
import sys, numpy
import foreshape as fs
ids, seen = (numpy.load(f"{tmp_path}/{{name}}.npy") for name in ("ids", "seen"))
predictor = fs.Predictor("{path}.compiled")
first, again = predictor(ids, seen), predictor({{"ids": ids, "seen": seen}})
assert all((first[k] == again[k]).all() for k in range(3)) and first[2] is not ids
numpy.savez("{tmp_path}/found.npz", *first.values())
try:
    predictor(ids + 100, seen)
except fs.ExecutionError as error:
    assert "must be in [0, 30" in str(error), error
else:
    raise AssertionError
assert not {{"torch", "google.protobuf", "foreshape.runtime.engine"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    itself = fs.Predictor(path)
    with np.load(tmp_path / "found.npz") as found:
        for at, wanted in enumerate(itself(ids, seen).values()):
            assert found[f"arr_{at}"].dtype == wanted.dtype
            np.testing.assert_allclose(found[f"arr_{at}"], wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(fs.ExecutionError, match=r"must be in \[0, 30\)"):
        itself(ids + 100, seen)


def test_a_result_that_is_an_input_or_a_constant_is_the_callers_own(tmp_path: Path):
    x = layer.data("x", shape=["n", 3])
    constant = layer.fill_constant([2, 3], "float32", 2.0)
    fs.save_inference_model(tmp_path / "net", [x], {"same": layer.reshape(x, [-1, 1, 3]), "fixed": constant, "more": x + constant})
    assert fs.compile_model(tmp_path / "net", [{"x": [2, 3]}]).difference == 0.0
    given = numbers(2, 3)
    compiled = fs.Predictor(tmp_path / "net.compiled")
    for _ in range(2):
        found = compiled(given.copy())
        assert np.array_equal(found["same"][:, 0], given) and (found["fixed"] == 2.0).all() and np.array_equal(found["more"], given + 2)
        for result in found.values():
            result += 1.0


def test_the_command(net: Path, tmp_path: Path):
    out = tmp_path / "own.compiled"
    code, printed, _ = call("compile", f"{net}.pdmodel", "--shape", "x=1,3,16,12", "--shape", "x=2,3,8,8", "--out", out)
    assert code == 0 and "kernels; its results are equal to the network's, bit for bit" in printed
    assert CompiledFile(out).description.sizes == CompiledFile(f"{net}.compiled").description.sizes
    np.save(tmp_path / "x.npy", numbers(2, 3, 8, 8))
    feed = ("--feed", f"x={tmp_path / 'x.npy'}", "--out", tmp_path / "out")
    code, printed, _ = call("run", out, *feed, "--fetch", "softmax_0.tmp_0")
    assert code == 0 and printed == f"{tmp_path / 'out' / 'softmax_0.tmp_0.npy'}: float32[2, 5]\n"
    assert "is no result of this compiled network" in call("run", out, *feed, "--fetch", "y")[2]
    assert "--profile: is for the network itself; a compiled network takes" in call("run", out, *feed, "--profile")[2]
    assert "has a size that is no number above 0" in call("compile", f"{net}.pdmodel", "--shape", "x=n,3,16,12")[2]
