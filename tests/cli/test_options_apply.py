"""Every option with every kind of input: it changes the answer, or is refused by its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.commanded import call

import foreshape as fs
from foreshape import layer

FUNCTIONS = """
import torch
import foreshape as fs
from foreshape import layer

def module():
    return torch.nn.Sequential(torch.nn.Linear(12, 5), torch.nn.Tanh()), torch.rand(4, 12)

def program():
    with fs.program() as described:
        layer.fc(layer.data("input", shape=["batch", 12]), 5)
    return described
"""
RATES = ["--device", "150TFLOPS:2TB/s"]
LINES: dict[str, tuple[str, list[str]]] = {
    "program": ("plan", ["open.pdmodel"]),
    "fixed": ("plan", ["fixed.pdmodel"]),
    "onnx": ("plan", ["open.onnx"]),
    "folder": ("plan", ["folder"]),
    "ranks": ("plan", ["open.pdmodel", "--ranks", "2", *RATES]),
    "module": ("plan", ["functions_of_options:module"]),
    "function": ("plan", ["functions_of_options:program"]),
    "pt2": ("plan", ["net.pt2"]),
    "table": ("show", ["open.pdmodel"]),
    "tail": ("show", ["open.pdmodel", "--tail"]),
    "summary": ("show", ["open.pdmodel", "--summary"]),
    "fixed summary": ("show", ["fixed.pdmodel", "--summary"]),
    "compiled": ("run", ["open.compiled", "--feed", "input=in.npy"]),
}
PLANS: list[list[str]] = [
    ["--batch", "64"], ["--set", "batch=64"], ["--set", "nowhere=64"], ["--shape", "input=64,12"], ["--shape", "nowhere=64,12"], ["--within", "1MiB"],
    ["--train", "AdamW"], ["--plot", "new.svg"], ["--html", "new.html"], ["--ranks", "4"], ["--bandwidth", "1Gb/s"], ["--latency", "3ms"],
    ["--device", "1TFLOPS:1GB/s"], ["--threads", "2"], ["--measured", "none.json"], ["--fetch", "fc_0.tmp_0"], ["--json"],
]  # fmt: skip
SHOWN: list[list[str]] = [["--batch", "64"], ["--depth", "1"], ["--summary"], ["--tail"], ["--json"], ["--set", "nowhere=64"]]
OPTIONS: dict[str, list[list[str]]] = {
    "plan": PLANS,
    "show": SHOWN,
    "run": [["--params", "open.pdiparams"], ["--lengths", "input=[[1]]"], ["--device", "cuda"], ["--operators", "functions_of_options.py"], ["--profile"],
            ["--fetch", "nowhere"]],
}  # fmt: skip
CASES = [(kind, option) for kind, (command, _) in LINES.items() for option in OPTIONS[command]]
AGAIN = {
    ("summary", "--summary"),
    ("fixed summary", "--summary"),
    ("tail", "--tail"),
    ("fixed summary", "--depth"),
    ("summary", "--depth"),
}
"""An option again, and all levels of a network without groups."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options")
    x = layer.data("input", shape=["batch", 12])
    out = layer.fc(x, 5)
    fs.default_main_program().save(path / "open.pdmodel")
    fs.default_main_program().with_feed_shapes({"input": [4, 12]}).save(path / "fixed.pdmodel")
    scope = fs.Scope()
    fs.Executor().run(fs.default_startup_program(), scope=scope)
    fs.save_onnx(path / "open.onnx", [x], [out], scope=scope)
    (path / "folder").mkdir()
    fs.save_inference_model(path / "folder" / "net", [x], [out], scope=scope)
    fs.save_inference_model(path / "answers", [x], [out], scope=scope)
    np.save(path / "in.npy", np.ones((2, 12), "float32"))
    (path / "functions_of_options.py").write_text(FUNCTIONS)
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(12, 5).eval()
    torch.export.save(torch.export.export(module, (torch.rand(4, 12),), dynamic_shapes=({0: torch.export.Dim("rows")},)), path / "net.pt2")
    code, _, error = call("compile", path / "answers.pdmodel", "--shape", "input=2,12", "--out", path / "open.compiled")
    assert code == 0, error
    return path


@pytest.fixture(scope="module")
def answers_without() -> dict[tuple[str, ...], tuple[int, str, str]]:
    """The answers to lines without an option, each asked for once."""
    return {}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.long_cases(
    "module---plot new.svg",
    "pt2---plot new.svg",
    "onnx---plot new.svg",
    "function---plot new.svg",
    "folder---plot new.svg",
    "fixed---plot new.svg",
    "ranks---plot new.svg",
)
@pytest.mark.parametrize(("kind", "option"), CASES, ids=lambda value: value if isinstance(value, str) else " ".join(value))
def test_an_option_is_obeyed_or_refused_by_its_name(
    kind: str, option: list[str], folder: Path, answers_without: dict[tuple[str, ...], tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)  # pyright: ignore[reportUnknownMemberType]
    command, line = LINES[kind]
    for written in folder.glob("new.*"):
        written.unlink()
    size = ["--batch", "32"] if command == "plan" and kind != "fixed" and option[0] not in ("--batch", "--set", "--shape") else []
    without = (command, *line, *size)
    if without not in answers_without:
        answers_without[without] = call(*without)
    plain = answers_without[without]
    code, out, error = call(*without, *option)
    words = " ".join(error.replace("\u2502", " ").split())
    if code == 2:
        assert f"Invalid value for {option[0]}: " in words or "give --batch or --batch-per-rank" in words or "--summary: is for all layers" in words
        assert "; " in words or option[0] == "--batch-per-rank", words
    elif code == 1 and "Error: " in error:
        assert option[1].partition("=")[0] in words or option[0] in words, words
    else:
        files = {path.name for path in folder.glob("new.*")}
        assert option[1] in files if option[0] in ("--plot", "--html") else (out != plain[1]) or (kind, option[0]) in AGAIN, (code, out, error)


@pytest.mark.parametrize(("line", "words"), [
    (["calibrate", "--link", "--threads", "2"], "--threads: is for a measurement of kernels; --link measures the link between ranks"),
    (["convert", "open.onnx", "new.safetensors", "--force"], "--force: is for a .pdmodel, .py or .pt2, or a folder of models; new.safetensors is written"),
    (["convert", "open.onnx", "new.onnx", "--force"], "--force: is for a .pdmodel, .py or .pt2, or a folder of models; new.onnx is written"),
    (["plan", "net.pt2", "--ranks", "2", "--train", "SGD"], "package:function, or a .pt2; --ranks plans net.pt2 as a program"),
    (["plan", "open.pdmodel", "--batch", "4", "--set", "batch=8"], "--batch: is for inputs with an open number of rows; --set gives batch already"),
])  # fmt: skip
def test_a_refusal_says_for_what_an_option_is(line: list[str], words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    code, _, error = call(*line)
    assert code == 2 and words in " ".join(error.replace("\u2502", " ").split())
