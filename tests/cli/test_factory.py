"""``foreshape plan package:factory``: networks of torch, and programs, made by a function of the user's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.commanded import call

FILE = """
import torch
import foreshape as fs
from foreshape import layer

def net():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh()), torch.rand(4, 8)

def model():
    return fs.from_torch(*net())

def program():
    with fs.program() as made:
        layer.fc(layer.data("x", shape=["batch", 4]), 2)
    return made

def three():
    return 1, 2, 3
"""


@pytest.mark.long
def test_a_function_makes_what_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "networks_made_here.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    of = "networks_made_here:"
    code, out, _ = call("plan", of + "model", "--train", "AdamW", "--batch", "32")
    assert code == 0 and out.startswith("a training step with AdamW at batch = 32, on a processor:\neager torch: ") and "\nForeshape's step: " in out
    assert "peak for batch = 32: " in out and "optimizer state" in out
    code, out, _ = call("plan", of + "net", "--within", "1MiB", "--json")
    facts = json.loads(out)
    assert code == 0 and facts["eager"]["peak"] > 0 and facts["ours"]["peak"] <= 1 << 20 and facts["largest"]["ours"] > 1000
    assert call("plan", of + "model", "--batch", "100000", "--within", "1MiB")[0] == 1
    code, out, _ = call("plan", of + "program", "--batch", "3")
    assert code == 0 and out.startswith("peak for batch = 3: ")
    for place, option, words in [
        (of + "three", [], "it returns 3 values"), (of + "missing", [], "has no attribute 'missing'"), ("nowhere_at_all:net", [], "No module named"),
        (of + "net", ["--train", "Adamm"], "is no optimizer of fs.optimizer; did you mean Adam"), (of + "program", ["--train", "SGD"], "planned as it is"),
        (of + "net", ["--ranks", "4"], "is for saved programs"), ("net.pdmodel", ["--train", "SGD"], "is for a network of torch"),
    ]:  # fmt: skip
        code, _, err = call("plan", place, *option)
        assert code != 0 and words in " ".join(err.replace("│", " ").split()), err


@pytest.mark.long
def test_a_file_of_torch_is_planned_as_its_module_is_and_its_values_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    import foreshape as fs

    monkeypatch.chdir(tmp_path)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2)).eval()
    example = torch.rand(4, 8)
    torch.export.save(torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("rows")},)), "net.pt2")
    plan = fs.plan(module, example)
    for option in (["--batch", "4"], ["--shape", "input=4,8"]):
        code, out, _ = call("plan", "net.pt2", *option, "--json")
        facts = json.loads(out)
        assert code == 0 and facts["eager"]["peak"] == plan.eager().peak and facts["ours"]["peak"] == plan.ours.peak(**plan.sizes)
    code, out, _ = call("plan", "net.pt2", "--train", "AdamW", "--within", "1MiB")
    assert code == 0 and out.startswith("a training step with AdamW at batch = ") and "batch within 1.0 MiB: " in out
    for option, words in (
        ([], "the memory depends on batch: give --batch=..."),
        (["--shape", "input=4,9"], "input is f32[batch, 8]; the shape of --set is 4, 9"),
    ):
        code, _, err = call("plan", "net.pt2", *option)
        assert code != 0 and words in err
    values = {name: value.numpy() for name, value in module.state_dict().items()}
    for target in ("net.safetensors", "net.pdiparams"):
        assert call("convert", "net.pt2", target)[0] == 0
        scope = fs.Scope()
        if target.endswith(".safetensors"):
            fs.load_safetensors(target, scope)
        else:
            fs.load_inference_model("net.pt2", scope=scope, params=target)
        for name, value in values.items():
            np.testing.assert_array_equal(scope[name], value)
    assert call("convert", "net.pt2", "net.npz")[0] != 0
