"""Files that are written into folders which are not there yet: the folders are made, or the training does not begin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.commanded import call

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory import Plan
from foreshape.interop import convert_to_torch


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A saved network, of two rows by four columns."""
    x = layer.data("x", shape=["batch", 4])
    y = layer.fc(x, 2)
    scope = fs.Scope()
    fs.Executor(seed=0).run(fs.default_startup_program(), scope=scope)
    fs.save_inference_model(tmp_path / "models" / "of" / "mine", [x], [y], scope=scope)
    return tmp_path / "models" / "of" / "mine.pdmodel"


def test_functions_that_write_a_file_make_its_folder(net: Path, tmp_path: Path) -> None:
    assert net.exists() and net.with_suffix(".pdiparams").exists()
    scope = fs.Scope()
    model = fs.load_inference_model(net, scope=scope)
    history = fs.History()
    history.losses.extend([3.0, 2.0])
    writes: dict[str, Callable[[Path], object]] = {
        "net.onnx": lambda p: fs.save_onnx(p, model.feeds, model.fetches, program=model.program, scope=scope),
        "net.safetensors": lambda p: fs.save_safetensors(p, scope),
        "net.pdmodel": model.program.save,
        "net.py": lambda p: convert_to_torch(str(net), str(p)),
        "net.compiled": lambda p: fs.compile_model(net, [{"x": [2, 4]}], out=p),
        "net.svg": lambda p: model.program.graph().save(p),
        "history.png": history.plot,
        "plan.html": lambda p: Plan(model.program).write_page(p, batch=2),
        "plan.png": lambda p: Plan(model.program).draw(p, batch=2),
    }
    for name, write in writes.items():
        path = tmp_path / "for" / name / name
        write(path)
        assert path.stat().st_size, name


def test_commands_that_write_a_file_make_its_folder(net: Path, tmp_path: Path) -> None:
    x = tmp_path / "x.npy"
    np.save(x, np.ones((2, 4), np.float32))
    for args, written in (
        (("convert", net, "to/net.onnx"), "to/net.onnx"),
        (("convert", net, "page/net.safetensors"), "page/net.safetensors"),
        (("show", net, "--output", "shown/net.pdmodel"), "shown/net.pdmodel"),
        (("report", net, "--html", "report/net.html"), "report/net.html"),
        (("plan", net, "--batch", "2", "--html", "plan/net.html"), "plan/net.html"),
        (("run", net, "--feed", f"x={x}", "--out", "results/of/x"), "results/of/x/fc_0.tmp_1.npy"),
        (("quantize", net, "--data", x, "--out", "small/net"), "small/net.pdmodel"),
    ):
        written = tmp_path / written
        given = [tmp_path / a if isinstance(a, str) and "/" in a and "=" not in a and a != str(net) else a for a in args]
        code, _, err = call(*given)
        assert code == 0 and written.exists(), err


def training(**more: object) -> fs.History:
    fs.reset()
    x = layer.data("x", shape=["batch", 4])
    return fs.train(layer.mean(layer.fc(x, 2)), {"x": np.ones((8, 4), np.float32)}, epochs=2, batch_size=4, progress=False, **more)  # type: ignore[arg-type]


def test_a_training_makes_the_folders_of_its_files(tmp_path: Path) -> None:
    best, log = tmp_path / "best" / "of" / "all.safetensors", tmp_path / "logs" / "log.csv"
    training(checkpoint=tmp_path / "runs" / "first", callbacks=[fs.callbacks.SaveBest(best, "loss"), fs.callbacks.CSVLog(log)])
    assert best.exists() and log.exists() and len(list((tmp_path / "runs" / "first").iterdir())) == 2


def test_a_training_does_not_begin_where_its_files_cannot_be_written(tmp_path: Path) -> None:
    """Otherwise the first epoch is lost, or the whole training."""
    (tmp_path / "file").touch()
    steps: list[int] = []

    class Steps(fs.callbacks.Callback):
        def on_batch_end(self, run: fs.callbacks.Run) -> None:
            steps.append(run.history.steps)

    for more in ({"checkpoint": tmp_path / "file" / "run"}, {"callbacks": [fs.callbacks.SaveBest(tmp_path / "file" / "best.safetensors", "loss"), Steps()]},
                 {"callbacks": [fs.callbacks.SaveBest(tmp_path, "loss"), Steps()]}):  # fmt: skip
        with pytest.raises(fs.FormatError, match=r"Not a directory|a folder, not a file"):
            training(**{"callbacks": [Steps()], **more})
    assert steps == []


def test_what_cannot_be_written_leaves_no_folder(tmp_path: Path) -> None:
    """A path too long has thousands of folders in it."""
    x = layer.data("x", shape=["batch", 4])
    layer.relu(x)
    with pytest.raises(fs.FormatError, match="cannot be written"):
        fs.default_main_program().save(tmp_path / ("n/" * 5000) / "net.pdmodel")
    assert list(tmp_path.iterdir()) == []


def test_a_path_in_another_place_and_missing_parameters_are_told(net: Path) -> None:
    with pytest.raises(fs.SchemaError, match="takes the path first, then feeds and fetches"):
        fs.save_inference_model(["x"], ["y"], str(net))  # type: ignore[arg-type]
    other = net.with_name("other.pdmodel")
    other.write_bytes(net.read_bytes())
    with pytest.raises(
        fs.FormatError, match=r"other\.pdiparams' cannot be read: there is no such file, and .*other\.pdmodel has 2 parameters: give params="
    ) as raised:
        fs.load_inference_model(other)
    assert "mine.pdiparams" not in str(raised.value)
    other.write_bytes(b"x")
    with pytest.raises(fs.FormatError, match="it has only 1 byte: it is cut off"):
        fs.load_inference_model(other)
