"""The last border: whatever goes wrong at a public entrance is one of the package's errors, which keeps what it was; nothing is swallowed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.messages import good
from support.survival import checked_words

import foreshape as fs
from foreshape import layer
from foreshape.apps.cli import arrays
from foreshape.apps.training import Checkpoint
from foreshape.apps.training.checkpoint import container
from foreshape.apps.training.data import digest
from foreshape.errors import ForeshapeError, border
from foreshape.interop import inference, load_safetensors, npy_file, parameters, read_parameters, save_safetensors, tensors, write_parameters
from foreshape.interop import safetensors_file as st
from foreshape.language.text import reader
from foreshape.runtime.engine import compiled_step, emit, scope
from foreshape.runtime.feeding import feed

decode, encode = (importlib.import_module(f"foreshape.language.wire.{name}") for name in ("decode", "encode"))  # the package has functions of these names


class Surprise(Exception):
    """What nobody has foreseen."""


def network() -> tuple[fs.Program, Any]:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        return main, layer.relu(layer.data("x", 3))


def run(given: Any = None) -> Any:
    main, out = network()
    return fs.Executor().run(main, {"x": np.ones((2, 3), "float32")} if given is None else given, out, fs.Scope())


def array_file(folder: Path) -> str:
    np.save(folder / "a.npy", np.ones(3))
    return str(folder / "a.npy")


def safetensors_file(folder: Path) -> str:
    held = fs.Scope()
    held.set("w", np.ones(3))
    save_safetensors(folder / "s", held)
    return str(folder / "s")


def parameter_file(folder: Path) -> str:
    write_parameters(folder / "p", {"w": np.ones(3)})
    return str(folder / "p")


def model(folder: Path) -> str:
    main, out = network()
    fs.save_inference_model(folder / "m", ["x"], [out.name], program=main, scope=fs.Scope())
    return str(folder / "m")


def checkpoint_file(folder: Path) -> str:
    import torch

    container.write(folder / "c", {"a": torch.ones(3)}, {})
    return str(folder / "c")


ENTRANCES: dict[str, tuple[Any, str, Callable[[Path], Any], Callable[[Any], Any]]] = {
    "load_program": (decode, "fields", lambda f: good(), fs.load_program),
    "Program.from_bytes": (decode, "fields", lambda f: good(), fs.Program.from_bytes),
    "Program.to_bytes": (encode, "_op", lambda f: fs.load_program(good()), lambda p: p.to_bytes()),
    "Program.parse": (reader, "check_structure", lambda f: str(fs.load_program(good())), fs.Program.parse),
    "read_parameters": (parameters, "_tensor", parameter_file, lambda p: read_parameters(p, ["w"])),
    "load_safetensors": (tensors, "map_file", safetensors_file, lambda p: load_safetensors(p, fs.Scope())),
    "load_safetensors, header": (st, "_described", safetensors_file, lambda p: load_safetensors(p, fs.Scope())),
    "load_inference_model": (inference, "columns", model, lambda p: fs.load_inference_model(p, scope=fs.Scope())),
    "read_array": (npy_file, "read_file", array_file, npy_file.read_array),
    "container.read": (container, "map_file", checkpoint_file, container.read),
    "Scope.set": (scope, "to_tensor", lambda f: np.ones(3), lambda a: fs.Scope().set("x", a)),
    "Executor, a fed value": (feed.Feeder, "tensors", lambda f: None, run),
    "Executor, a step": (compiled_step, "emit", lambda f: None, run),
    "Executor, binding": (emit.Emitted, "bind", lambda f: None, run),
    "digest": (digest, "_array", lambda f: np.ones(3), digest.digest),
}


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize("surprise", [Surprise("lost"), MemoryError(), RecursionError("deep"), IndexError(), AssertionError(), OSError(5, "I/O")], ids=repr)
@pytest.mark.parametrize("name", ENTRANCES)
def test_a_surprise_is_one_of_our_errors_and_keeps_what_it_was(name: str, surprise: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, inner, prepare, enter = ENTRANCES[name]
    given = prepare(tmp_path)

    def fail(*args: Any, **named: Any) -> Any:
        raise surprise

    monkeypatch.setattr(place, inner, fail)
    with pytest.raises(ForeshapeError) as caught:
        enter(given)
    checked_words(caught.value, last_resort=True)
    assert caught.value.__cause__ is surprise or type(surprise).__name__ in str(caught.value) or isinstance(surprise, (RecursionError, OSError, MemoryError))


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("passing", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("name", ENTRANCES)
def test_what_is_no_error_passes(name: str, passing: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, inner, prepare, enter = ENTRANCES[name]
    given = prepare(tmp_path)

    def fail(*args: Any, **named: Any) -> Any:
        raise passing

    monkeypatch.setattr(place, inner, fail)
    with pytest.raises(passing):
        enter(given)


def test_our_own_words_pass_as_they_are() -> None:
    mine = fs.GuardError("as it was")
    with pytest.raises(fs.GuardError) as caught, border("what", fs.FormatError):
        raise mine
    assert caught.value is mine and caught.value.__cause__ is None
    with border("what", fs.FormatError):
        pass


# --- paths and names

PATHS = {"nul": "a\x00b", "surrogate": "a\ud800b", "number": 7.5, "none": None, "list": ["a"], "long": "n" * 300, "empty": ""}
READERS: dict[str, Callable[[Any], Any]] = {
    "load_program": fs.load_program,
    "load_inference_model": lambda p: fs.load_inference_model(p, scope=fs.Scope()),
    "read_parameters": lambda p: read_parameters(p, ["w"]),
    "load_safetensors": lambda p: load_safetensors(p, fs.Scope()),
    "read_array": npy_file.read_array,
    "container.read": container.read,
    "save_program": lambda p: fs.load_program(good()).save(p),
    "save_safetensors": lambda p: save_safetensors(p, fs.Scope()),
    "write_parameters": lambda p: write_parameters(p, {}),
    "Checkpoint.files": lambda p: Checkpoint(p).files() or Checkpoint(p).save(fs.Program(), fs.Scope(), None, None),  # type: ignore[arg-type]
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", READERS)
def test_28_paths_that_are_none(name: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "save_program" and path == "none":
        pytest.skip("no path is no path to write to, and that is meant")
    if name.startswith("Checkpoint") and path in ("surrogate", "empty"):
        pytest.skip("a name that the system takes")
    with pytest.raises(ForeshapeError) as caught:
        READERS[name](PATHS[path])
    checked_words(caught.value)


@pytest.mark.parametrize("path", ["nul", "long"])
def test_28_results_go_nowhere_where_the_folder_is_none(path: str) -> None:
    with pytest.raises(fs.FormatError):
        list(arrays.write_results(Path(PATHS[path]), ["x"], [np.ones(3)]))


def test_6_names_with_half_of_a_pair() -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        layer.data("a\ud800", 3)
    with pytest.raises(fs.FormatError, match="UTF-8"):
        main.to_bytes()
    held = fs.Scope()
    held.set("a\ud800", np.ones(3))
    with pytest.raises(fs.FormatError, match="UTF-8"):
        save_safetensors("nowhere", held)


# --- values


def torch_values() -> dict[str, Any]:
    import torch

    return {
        "sparse": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "meta": torch.empty(3, device="meta"),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    }


@pytest.mark.parametrize("name", ["sparse", "csr", "meta", "quantized"])
@pytest.mark.filterwarnings("ignore")
def test_26_tensors_without_numbers(name: str) -> None:
    value = torch_values()[name]
    held = fs.Scope()
    with pytest.raises(fs.ExecutionError, match="is not an array of numbers"):
        held.set("w", value)
    assert held.names() == []
    with pytest.raises(fs.FeedError):
        run({"x": value})


def test_26_conjugates_and_negatives_are_the_numbers_that_they_show() -> None:
    import torch

    held = fs.Scope()
    held.set("w", torch.tensor([1 + 2j]).conj().imag)
    assert held.get("w").tolist() == [-2.0]


class Odd:
    def __array__(self, *args: Any, **named: Any) -> Any:
        raise Surprise("no array")


@pytest.mark.parametrize("value", [Odd(), object(), "text", b"bytes", [[1], [1, 2]], {1: 2}, None, np.array(["a"]), np.array([None]), np.zeros(3, "V8")])
def test_26_what_is_no_array(value: Any) -> None:
    with pytest.raises(fs.ExecutionError, match=r"w: .* is not an array of numbers"):
        fs.Scope().set("w", value)
    with pytest.raises(fs.FeedError):
        run({"x": value})


@pytest.mark.parametrize("given", [7, "x", [1], {3: 4}, object()])
def test_26_feeds_that_are_no_feeds(given: Any) -> None:
    with pytest.raises(fs.FeedError):
        run(given)


def test_bools_have_one_bit(tmp_path: Path) -> None:
    write_parameters(tmp_path / "p", {"w": np.array([True, False])})
    data = (tmp_path / "p").read_bytes()
    assert read_parameters(data, ["w"])["w"].tolist() == [True, False]
    with pytest.raises(fs.FormatError, match="neither 0 nor 1"):
        read_parameters(data[:-1] + b"\x02", ["w"])


def test_17_a_parameter_whose_dims_pass_64_bits_with_a_zero_among_them() -> None:
    import struct

    from foreshape.language.wire.tensors import encode_tensor_desc

    for dims in ((2**62, 8, 0), (0, 2**32, 2**33)):
        body = encode_tensor_desc(fs.FP32, dims)
        with pytest.raises(fs.FormatError, match="64-bit"):
            read_parameters(struct.pack("<IQIi", 0, 0, 0, len(body)) + body, ["w"])


# --- devices


@pytest.mark.parametrize("device", ["tpu", "cuda:77", "", "cpu:x", "meta", "\x00", "xla", 5.5, None])
def test_devices_that_are_none(device: Any) -> None:
    with pytest.raises(fs.ExecutionError, match="there is no device ") as caught:
        fs.Executor(device)
    checked_words(caught.value)


@pytest.mark.parametrize("seed", [2**80, "x", -(2**70), 1.5])
def test_seeds_that_are_none(seed: Any) -> None:
    with pytest.raises(fs.ExecutionError, match="seed"):
        fs.Executor(seed=seed)


@pytest.mark.parametrize("device", ["tpu", "cuda:77"])
def test_the_command_names_a_device_that_is_none(device: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from foreshape.apps.cli.commands import app

    path = model(tmp_path)
    result = CliRunner().invoke(app, ["run", path, "--feed", f"x={array_file(tmp_path)}", "--device", device, "--out", str(tmp_path)])
    assert result.exit_code == 1 and device in result.stderr and "Traceback" not in result.stderr


# --- an axis that is none, in a gradient op


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("type", ["elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_div", "elementwise_max", "elementwise_pow"])
@pytest.mark.parametrize("axis", [2, 7, 63, 2**31 - 1])
def test_18_an_axis_out_of_range_in_a_gradient(type: str, axis: int) -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = layer.data("x", shape=[2, 3])
        y = layer.data("y", shape=[3])
        out = layer.data("out", shape=[2, 3])
        d = layer.data("d", shape=[2, 3])
        block = main.global_block
        inputs = {"X": x, "Y": y, "Out@GRAD": d} | ({"Out": out} if type == "elementwise_div" else {})
        with pytest.raises(fs.ShapeError, match=r"axis must be -1 or in \[0, 1\]"):
            block.append_op(f"{type}_grad", inputs, {"Y@GRAD": "dy"}, {"axis": axis})


def test_a_call_with_arguments_that_there_are_not_is_told_as_python_tells_it() -> None:
    """No word of a file that could not be read, which nobody has tried."""
    load: Any = fs.load_safetensors
    with pytest.raises(TypeError, match="positional arguments"):
        load("values.safetensors", fs.Program(), fs.Scope())
