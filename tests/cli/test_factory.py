"""``foreshape plan package:factory``: networks of torch, and programs, made by a function of the user's."""

from __future__ import annotations

import json
from pathlib import Path

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
        (of + "three", [], "it gives 3 values"), (of + "missing", [], "has no attribute 'missing'"), ("nowhere_at_all:net", [], "No module named"),
        (of + "net", ["--train", "Adamm"], "is no optimizer of fs.optimizer"), (of + "program", ["--train", "SGD"], "planned as it is"),
        (of + "net", ["--ranks", "4"], "is for saved programs"), ("net.pdmodel", ["--train", "SGD"], "made by package:function"),
    ]:  # fmt: skip
        code, _, err = call("plan", place, *option)
        assert code != 0 and words in " ".join(err.replace("│", " ").split()), err
