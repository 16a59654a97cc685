"""Networks that PaddlePaddle's tools have quantized: weights are whole numbers in the file, of which their programs say nothing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support.commanded import call

import foreshape as fs
from foreshape.compiler.memory import Plan
from foreshape.core.spec import BF16, FP32, INT8
from foreshape.interop import convert_parameters, open_parameters, waiting, write_parameters
from foreshape.interop.inference import parameters_of
from foreshape.interop.parameters import described_by

FOLDER = Path(__file__).parent / "quantized"
NAMES = sorted(p.stem for p in FOLDER.glob("*.pdmodel"))
DATA = {name: dict(np.load(FOLDER / f"{name}.npz")) for name in NAMES}


def opened(path: Path) -> fs.InferenceModel:
    return fs.load_inference_model(path, scope=fs.Scope())


def agrees(found: np.ndarray, name: str) -> None:
    np.testing.assert_allclose(found, DATA[name]["out"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_paddlepaddle_does_by_every_way(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, model = DATA[name]["x"], opened(FOLDER / name)
    agrees(model.run(x)[0], name)
    agrees(fs.Predictor(FOLDER / name).run(x)[0], name)
    agrees(fs.Executor(frozen=True).run(model.program, {model.feeds[0]: x}, model.fetches, model.scope)[0], name)
    stored = {n: s.dtype for n, s in ((n, v.spec) for n, v in parameters_of(model.program).items())}
    assert list(stored.values()).count(INT8) == 2 and FP32 in stored.values()
    held = sum(v.spec.nbytes for v in parameters_of(model.program).values())
    assert held == sum(model.scope.tensor(n).nbytes for n in stored) == sum(len(p.data) for p in open_parameters(FOLDER / f"{name}.pdiparams", stored).values())
    assert Plan(model.program, model.fetches).peak(**{str(model.program.global_block.var(model.feeds[0]).shape[0]): 2}) > held
    monkeypatch.setattr(waiting, "LARGE", 1)  # each tensor is read when it is used
    agrees(opened(FOLDER / name).run(x)[0], name)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_again_says_what_its_file_has(name: str, tmp_path: Path) -> None:
    model = opened(FOLDER / name)
    fs.save_inference_model(tmp_path / "again", model.feeds, model.fetches, program=model.program, scope=model.scope)
    program = fs.load_program(tmp_path / "again.pdmodel")
    specs = {n: v.spec for n, v in parameters_of(program).items()}
    open_parameters(tmp_path / "again.pdiparams", specs, described_by(specs))
    assert (tmp_path / "again.pdiparams").read_bytes() == (FOLDER / f"{name}.pdiparams").read_bytes()
    agrees(opened(tmp_path / "again").run(DATA[name]["x"])[0], name)


@pytest.mark.quick_cases("after_training")
@pytest.mark.parametrize("name", NAMES)
def test_its_parameters_are_converted_as_they_are(name: str, tmp_path: Path) -> None:
    program, first, last = FOLDER / f"{name}.pdmodel", FOLDER / f"{name}.pdiparams", tmp_path / "last.pdiparams"
    convert_parameters(program, first, tmp_path / "p.safetensors")
    convert_parameters(program, tmp_path / "p.safetensors", f"{tmp_path}/each/")
    convert_parameters(program, tmp_path / "each", last)
    assert last.read_bytes() == first.read_bytes()
    agrees(fs.load_inference_model(FOLDER / name, scope=fs.Scope(), params=tmp_path / "each").run(DATA[name]["x"])[0], name)


@pytest.mark.quick_cases("in_training")
@pytest.mark.parametrize("name", NAMES)
def test_the_command_shows_plans_and_runs_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, feed = str(FOLDER / f"{name}.pdmodel"), opened(FOLDER / name).feeds[0]
    np.save("x.npy", DATA[name]["x"])
    for words in (["show", path], ["check", path], ["plan", path, "--batch", "2"], ["report", path, "--html", tmp_path / "page.html"]):
        code, out, err = call(*words)
        assert code == 0 and ("0 errors" in out or words[0] != "check"), (words, err)
    assert call("run", path, "--params", str(FOLDER / f"{name}.pdiparams"), "--feed", f"{feed}=x.npy", "--out", "out")[0] == 0
    agrees(np.load(Path("out") / os.listdir("out")[0]), name)


def test_what_the_ops_do_not_take_or_what_is_of_another_size_is_refused(tmp_path: Path) -> None:
    name = NAMES[0]
    values = {n: p.numbers() for n, p in open_parameters(FOLDER / f"{name}.pdiparams", parameters_of(fs.load_program(FOLDER / f"{name}.pdmodel"))).items()}
    bias, weight = values["conv2d_0.b_0"], next(n for n, v in values.items() if v.dtype == np.int8 and v.ndim == 4)
    for changed, of, says in (
        ({"conv2d_0.b_0": bias.reshape(2, 4)}, {}, r"the program says f32\[8\], and the file has f32\[2, 4\]"),
        ({"conv2d_0.b_0": bias.astype("int8")}, {}, r"and the file has i8\[8\]"),
        ({"conv2d_0.b_0": bias}, {"conv2d_0.b_0": BF16}, r"and the file has bf16\[8\]"),
        ({weight: values[weight].transpose(1, 0, 2, 3)}, {}, r"and the file has i8\[3, 8, 3, 3\]"),
        ({weight: values[weight][:4]}, {}, r"and the file has i8\[4, 3, 3, 3\]"),
        ({weight: values[weight].astype("int64")}, {}, r"and the file has i64"),
    ):
        write_parameters(tmp_path / "p", values | changed, of)
        scope = fs.Scope()
        with pytest.raises(fs.FormatError, match=says):
            fs.load_inference_model(FOLDER / name, scope=scope, params=tmp_path / "p")
        assert not scope.names()
