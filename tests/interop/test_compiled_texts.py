"""Compiled encoders of texts: the same bits as the network itself, without torch and without the proof, and refusals of damaged files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commanded import call
from support.survival import checked_words

pytest.importorskip("tokenizers", reason="the extra embed")
sys.path += [str(Path(__file__).parents[1] / "embedding"), str(Path(__file__).parents[1] / "hostile")]
from compiled_mutations import parts, sealed
from model_folders import TEXTS, VOCABULARY, write_tokenizer

import foreshape as fs
from foreshape import layer
from foreshape.apps.serving.served_embedder import Embedders
from foreshape.apps.serving.served_network import Networks
from foreshape.interop import compiled_head
from foreshape.interop.compiled_head import HEAD, is_compiled
from foreshape.interop.compiled_texts import CompiledTexts, open_compiled_texts
from foreshape.machine.kernels.onednn_library import library

pytestmark = pytest.mark.skipif(library() is None, reason="oneDNN's library is not installed for this machine")
WIDTH = 8


def save(path: Path, change: Callable[[Any, Any], Any] = lambda h, weights: h) -> Path:
    """Save an encoder of padded texts with one attention, and the mean of its rows."""
    with fs.program_guard(fs.Program(), fs.Program()):
        ids, mask = (layer.data(name, ["batch", "time"], dtype="int64") for name in ("input_ids", "attention_mask"))
        weights = layer.cast(mask, "float32")
        h = layer.embedding(ids, [len(VOCABULARY), WIDTH])
        q, k, v = (layer.fc(h, WIDTH, flatten_last=1) for _ in range(3))
        penalty = layer.reshape((weights - 1.0) * 1e9, [0, 1, -1])
        h = layer.layer_norm(h + layer.matmul(layer.softmax(layer.matmul(q, k, transpose_y=True) + penalty), v), begin_norm_axis=2)
        h = change(h, weights)
        mean = layer.reduce_sum(h * layer.unsqueeze(weights, [2]), 1) / layer.reduce_sum(weights, 1, keepdim=True)
        scope = fs.Scope()
        fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
        fs.save_onnx(path, [ids, mask], {"vectors": mean}, scope=scope)
    return path


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    path = save(tmp_path / "encoder.onnx")
    write_tokenizer(tmp_path)
    result = fs.compile_model(path, ragged="attention_mask")
    assert result.path == str(path.with_suffix(".compiled")) and result.difference == 0.0 and is_compiled(result.path)
    return path.with_suffix(".compiled")


def test_its_vectors_are_those_of_the_network_without_torch_onnx_and_proof(encoder: Path, tmp_path: Path) -> None:
    expected = fs.Embedder(encoder.with_suffix(".onnx")).encode(TEXTS)
    encoder.with_suffix(".onnx").unlink()
    code = f"""
import sys, numpy
import foreshape as fs
numpy.save({str(tmp_path / "vectors.npy")!r}, fs.Embedder({str(encoder)!r}, memory="512MiB").encode({TEXTS!r}))
assert not {{"torch", "foreshape.interop.onnx", "foreshape.interop.unpadding", "foreshape.transforms.unpad"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert expected.shape == (len(TEXTS), WIDTH) and np.array_equal(np.load(tmp_path / "vectors.npy"), expected)


def test_its_parameters_stay_in_the_file_and_go_to_torch(encoder: Path) -> None:
    opened, itself = open_compiled_texts(encoder), fs.load_inference_model(encoder.with_suffix(".onnx"), scope=fs.Scope(), ragged="attention_mask")
    scope = opened.scope()
    assert len(opened.arrays) == len(list(opened.program.parameters())) > 8
    for name, array in opened.arrays.items():
        assert not array.flags.writeable and not array.flags.owndata
        assert np.array_equal(array, itself.scope.get(name)) and np.array_equal(scope.get(name), array)


def test_the_commands(encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.compiled"
    code, printed, _ = call("compile", encoder.with_suffix(".onnx"), "--ragged", "--mask", "attention_mask", "--out", out)
    assert code == 0 and "texts without padding; its results are equal to the network's, bit for bit" in printed
    (again, parameters), (first, same) = parts(out.read_bytes()), parts(encoder.read_bytes())
    assert parameters == same and {**again, "sources": []} == {**first, "sources": []}  # the state of a new file is not kept
    for option in (["--shape", "input_ids=1,3"], ["--threads", "2"], ["--params", "p"]):
        code, _, error = call("compile", encoder.with_suffix(".onnx"), "--ragged", *option)
        assert code == 2 and option[0] in error and "is for a network of fixed sizes" in error
    code, _, error = call("compile", encoder.with_suffix(".onnx"), "--mask", "m")
    assert code == 2 and "--ragged is not there" in error
    (tmp_path / "texts.txt").write_text("the ship left\na\n")
    code, _, error = call("embed", out, tmp_path / "texts.txt", "--out", tmp_path / "rows.npy")
    assert code == 0, error
    assert np.array_equal(np.load(tmp_path / "rows.npy"), fs.Embedder(encoder).encode(["the ship left", "a"]))
    assert Embedders(Networks()).finds(str(out))


def test_what_is_not_compiled_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "reached.onnx", lambda h, weights: h - layer.reduce_mean(h, 1, keepdim=True))
    with pytest.raises(fs.UnpadError, match="reduce_mean"):
        fs.compile_model(path, ragged="attention_mask")
    path = save(tmp_path / "unknown.onnx", lambda h, weights: layer.flip(h, [2]))
    with pytest.raises(fs.ExecutionError, match=r"all of it runs without torch; .*flip has no kernel for rows"):
        fs.compile_model(path, ragged={"mask": "attention_mask"})
    assert not list(tmp_path.glob("*.compiled"))
    with pytest.raises(fs.SchemaError, match="'masks' is not one of mask, side, masked, pad_id"):
        fs.compile_model(path, ragged={"masks": "attention_mask"})
    with pytest.raises(fs.SchemaError, match="no shapes, params or threads with ragged"):
        fs.compile_model(path, [{"input_ids": [1, 2]}], ragged="attention_mask")


def test_other_doors_name_the_right_one(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(fs.SchemaError, match="is a compiled encoder of texts"):
        fs.Predictor(encoder)
    code, _, error = call("run", encoder, "--feed", f"input_ids={tmp_path / 'x.npy'}")
    assert code == 1 and "is a compiled encoder of texts: fs.Embedder opens it" in error
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", ["n", 4])
        y = layer.fc(x, 3)
        fs.Executor(seed=1).run(fs.default_startup_program())
        fs.save_inference_model(tmp_path / "net", [x], [y])
    fs.compile_model(tmp_path / "net", [{"x": [2, 4]}])
    with pytest.raises(fs.SchemaError, match="a compiled network, and no encoder of texts"):
        fs.Embedder(tmp_path / "net.compiled")
    assert not Embedders(Networks()).finds(str(tmp_path / "net.compiled"))


@pytest.mark.parametrize("reason", ["encoder.onnx has changed since", "it was compiled by foreshape"])
def test_the_network_itself_is_opened_where_the_file_does_not_fit(reason: str, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "changed" in reason:
        save(encoder.with_suffix(".onnx"), lambda h, weights: h * 2.0)
    else:
        monkeypatch.setattr(compiled_head, "VERSION", "9.9")
    expected = fs.Embedder(encoder.with_suffix(".onnx")).encode(TEXTS)
    with pytest.warns(fs.ForeshapeWarning, match=f"{reason}.*is opened as usual"):
        assert np.array_equal(fs.Embedder(encoder).encode(TEXTS), expected)
    encoder.with_suffix(".onnx").unlink()
    if "changed" not in reason:
        with pytest.raises(fs.FormatError, match=f"{reason}.*is not there"):
            fs.Embedder(encoder)


def refused(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(fs.FormatError) as error:
        open_compiled_texts(path)
    checked_words(error.value)
    return str(error.value)


def test_damaged_files(encoder: Path, tmp_path: Path) -> None:
    data, path = encoder.read_bytes(), tmp_path / "damaged.compiled"
    for length in (0, 15, 63, 64, len(data) // 2, len(data) - 1):
        assert "is no whole compiled encoder" in refused(path, data[:length])
    for place in (20, 30, 40, HEAD.size + 5, len(data) // 2, len(data) - 3):
        flipped = bytearray(data)
        flipped[place] ^= 1
        assert "is no whole compiled encoder" in refused(path, bytes(flipped))


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "other dims": (lambda d: d["parameters"][0][2].reverse(), "in the program"),
    "other elements": (lambda d: d["parameters"][0].__setitem__(1, "object"), "in the program"),
    "no integer": (lambda d: d["parameters"][0][2].__setitem__(0, -1), "a whole number"),
    "many elements": (lambda d: d["parameters"][0].__setitem__(2, [1 << 35, 1 << 35]), "in the program"),
    "a place in the middle": (lambda d: d["parameters"][0].__setitem__(3, 1), "a constant lies at"),
    "a place behind the file": (lambda d: d["parameters"][0].__setitem__(3, 1 << 35), "a constant lies at"),
    "a parameter twice": (lambda d: d["parameters"].append(d["parameters"][0]), "there already"),
    "a parameter missing": (lambda d: d["parameters"].pop(), "is missing"),
    "a parameter too many": (lambda d: d["parameters"].append(["none", "float32", [1], 0]), "none in the program"),
    "a long program": (lambda d: d.__setitem__("program", 1 << 35), "a constant lies at"),
    "a short program": (lambda d: d.__setitem__("program", d["program"] - 7), "the SHA-256 of its program"),
    "an unknown input": (lambda d: d["inputs"].append("none"), "is no input"),
    "a parameter as a result": (lambda d: d["outputs"].append(d["parameters"][0][0]), "no result"),
    "another folder": (lambda d: d["sources"][0].__setitem__(0, "../encoder.onnx"), "is no name of a file beside it"),
    "another format": (lambda d: d.__setitem__("format", "foreshape compiled texts 2"), "compile it again"),
    "a setting too many": (lambda d: d["ragged"].__setitem__("path", "x"), "has 'path'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_descriptions(name: str, encoder: Path, tmp_path: Path) -> None:
    description, constants = parts(encoder.read_bytes())
    change, words = CHANGES[name]
    change(description)
    assert words in refused(tmp_path / "changed.compiled", sealed(description, constants))


def test_a_file_is_the_same_sealed_again(encoder: Path, tmp_path: Path) -> None:
    (again := tmp_path / "again.compiled").write_bytes(sealed(*parts(encoder.read_bytes())))
    assert CompiledTexts(again).description == CompiledTexts(encoder).description
    assert np.array_equal(fs.Embedder(again).encode(TEXTS), fs.Embedder(encoder).encode(TEXTS))
