"""Files of other kinds, given to each reader: the words say what they are, and which call opens them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.crafted_checkpoints import whole
from support.messages import good

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.checkpoint import container
from foreshape.apps.workers import Job
from foreshape.interop import convert_parameters, load_safetensors, read_parameters, save_safetensors, write_parameters
from foreshape.interop.npy_file import map_array, read_array

ARRAYS = {"linear_0.w_0": np.ones((2, 3), "float32")}


def written(write: Callable[[io.BytesIO], Any]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def archive(*names: str) -> bytes:
    def write(file: io.BytesIO) -> None:
        with zipfile.ZipFile(file, "w") as into:
            for name in names:
                into.writestr(name, b"content")

    return written(write)


def tar() -> bytes:
    def write(file: io.BytesIO) -> None:
        with tarfile.open(fileobj=file, mode="w") as into:
            info = tarfile.TarInfo("inference.pdmodel")
            into.addfile(info, io.BytesIO())

    return written(write)


def of_torch(old: bool) -> bytes:
    import torch

    return written(lambda f: torch.save({"w": torch.ones(2)}, f, _use_new_zipfile_serialization=not old))


def a_script_of_torch() -> bytes:
    import torch

    module = torch.jit.trace(torch.nn.Linear(2, 3), torch.ones(1, 2))
    return written(lambda f: torch.jit.save(module, f))


PIR = {"base_code": {"magic": "pir", "trainable": False, "version": 4}, "program": {"regions": []}}
ONNX = b"\x08\x08\x12\x07pytorch\x1a\x052.0.0:\x0e\n\x0c\n\x01x\x12\x01y\x1a\x04ReluB\x04\n\x00\x10\x11"
OTHERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "it is empty"),
    "onnx": (lambda: ONNX, "an ONNX model"),
    "onnx, cut": (lambda: ONNX[:20], "an ONNX model"),
    "onnx, large": (lambda: b"\x08\x07\x12\x07pytorch:" + b"\xff\xff\xff\x07" + b"\x0a\x05" * 4000, "an ONNX model"),
    "torch.save": (lambda: of_torch(old=False), "an archive of PyTorch"),
    "torch.jit.save": (a_script_of_torch, "an archive of PyTorch"),
    "torch.save, old": (lambda: of_torch(old=True), "a pickle"),
    "pdparams": (lambda: pickle.dumps({**ARRAYS, "StructuredToParameterName@@": {"w": "linear_0.w_0"}}, 2), "a pickle, as PaddlePaddle's .pdparams"),
    "pickle 4": (lambda: pickle.dumps(OrderedDict(ARRAYS), 4), "a pickle"),
    "pir": (lambda: json.dumps(PIR, separators=(",", ":")).encode(), "a program of PaddlePaddle 3"),
    "pir, indented": (lambda: json.dumps(PIR, indent=2).encode(), "a program of PaddlePaddle 3"),
    "lfs": (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "a Git LFS pointer"),
    "html": (lambda: b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "a page of HTML"),
    "html behind spaces": (lambda: b"\n  <HTML><head></head></HTML>", "a page of HTML"),
    "gzip": (lambda: gzip.compress(good()), "gzip"),
    "bzip2": (lambda: bz2.compress(good()), "bzip2"),
    "xz": (lambda: lzma.compress(good()), "xz"),
    "zip": (lambda: archive("inference.pdmodel", "inference.pdiparams"), "a zip archive"),
    "zip, hardly begun": (lambda: b"PK\x03\x04" + bytes(100), "a zip archive"),
    "tar": (tar, "a tar archive"),
    "npz": (lambda: written(lambda f: np.savez(f, **ARRAYS)), "a .npz archive"),
    "hdf5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(80), "an HDF5 file"),
    "json": (lambda: b'{"blocks": []}', "it is JSON, which begins with '{\"blocks\": []}'"),
    "text": (lambda: b"Global:\n  model_name: PP-OCRv5\n", "a text, which begins with 'Global:'"),
    "text of other letters": (lambda: "模型".encode() * 3000, "a text, which begins with '模型"),
}


class Own:
    """A file of each kind that is read here: where it is, what reads it, and what others say that it is."""

    def __init__(self, folder: Path) -> None:
        scope = fs.Scope()
        scope.set("w", ARRAYS["linear_0.w_0"])
        save_safetensors(folder / "safetensors", scope)
        write_parameters(folder / "parameters", ARRAYS)
        (folder / "program").write_bytes(good())
        np.save(folder / "array.npy", ARRAYS["linear_0.w_0"])
        (folder / "array.npy").rename(folder / "array")
        found = whole(folder)
        container.write(folder / "checkpoint", found.tensors, found.facts)
        with fs.program_guard(fs.Program(), fs.Program()):
            cost = layer.square(layer.fc(layer.data("x", input_size=4), 1))
            fs.job(cost, {"x": "x.npy"}).save(folder / "job")
        self.readers: dict[str, Callable[[Any], Any]] = {
            "program": fs.load_program,
            "parameters": lambda p: read_parameters(p, ARRAYS),
            "safetensors": lambda p: load_safetensors(p, fs.Scope()),
            "array": read_array,
            "checkpoint": container.read,
            "job": Job.load,
        }
        self.others: dict[str, Callable[[Any], Any]] = {
            "program in bytes": lambda p: fs.load_program(Path(p).read_bytes()),
            "model": lambda p: fs.load_inference_model(p, scope=fs.Scope()),
            "mapped array": map_array,
            "converted": lambda p: convert_parameters(folder / "program", self._named(p), folder / "out.pdiparams"),
        }
        self.words = {
            "program": "a program (.pdmodel): fs.load_program", "parameters": "a file of parameters (.pdiparams)", "array": "an array (.npy)",
            "safetensors": "a safetensors file: fs.load_safetensors", "checkpoint": "a checkpoint of fs.train", "job": "a job for ranks on Ray",
        }  # fmt: skip

    @staticmethod
    def _named(path: Path) -> Path:
        named = path.with_name("named.safetensors")
        named.write_bytes(path.read_bytes())
        return named


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    folder = tmp_path_factory.mktemp("own")
    out = Own(folder)
    out.folder = folder  # type: ignore[attr-defined]
    return out


def refused(read: Callable[[Any], Any], path: Path) -> str:
    with pytest.raises(fs.FormatError) as caught:
        read(path)
    return str(caught.value)


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
@pytest.mark.parametrize("name", OTHERS)
def test_every_reader_says_what_another_file_is(name: str, own: Own, tmp_path: Path) -> None:
    make, words = OTHERS[name]
    (tmp_path / "file").write_bytes(make())
    for reader, read in {**own.readers, **own.others}.items():
        if (reader, name) != ("parameters", "empty"):  # which ends before its first tensor
            assert words in refused(read, tmp_path / "file"), reader


def test_each_reader_reads_its_own_and_names_those_of_the_others(own: Own, tmp_path: Path) -> None:
    folder: Path = own.folder  # type: ignore[attr-defined]
    for kind, words in own.words.items():
        for reader, read in own.readers.items():
            if reader == kind or (reader, kind) == ("safetensors", "checkpoint"):
                read(folder / kind)
            else:
                assert f"it is {words}" in refused(read, folder / kind), (reader, kind)


def test_a_file_that_is_cut_off_is_still_of_its_kind(own: Own, tmp_path: Path) -> None:
    folder: Path = own.folder  # type: ignore[attr-defined]
    for kind, read in own.readers.items():
        data = (folder / kind).read_bytes()
        for end in (len(data) // 2, len(data) - 1):
            (tmp_path / "cut").write_bytes(data[:end])
            assert "it is" not in refused(read, tmp_path / "cut"), (kind, end)


def test_a_model_is_looked_for_under_the_names_that_others_give_it(tmp_path: Path) -> None:
    (tmp_path / "inference.json").write_bytes(OTHERS["pir"][0]())
    assert "a program of PaddlePaddle 3" in refused(fs.load_inference_model, tmp_path / "inference")
    assert "a program of PaddlePaddle 3" in refused(fs.load_inference_model, tmp_path)  # the one program of a folder
    (tmp_path / "other.json").write_bytes(b"{}")
    (tmp_path / "inference.json").rename(tmp_path / "main.json")
    assert "a program of PaddlePaddle 3" in refused(fs.load_inference_model, tmp_path)  # what else is JSON is passed over
    (tmp_path / "second.pdmodel").write_bytes(good())
    assert "neither a file __model__ nor one program; give the path of one of its programs, such as main.json" in refused(fs.load_inference_model, tmp_path)
    said = "nothing cannot be read: there is no such file or folder, and no nothing.pdmodel or nothing.json"
    assert said in refused(fs.load_inference_model, tmp_path / "nothing")
    assert said in refused(fs.load_program, tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "there is no program in this folder" in refused(fs.load_program, tmp_path / "empty")
