"""``foreshape preflight package:function``: its answers, its exit codes, and every mistake in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commanded import call

FILE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 32)
        self.out = torch.nn.Linear(32, 50)

    def forward(self, words):
        return self.out(self.table(words))

class Bad(Net):
    def forward(self, words):
        scores = super().forward(words)
        return scores if scores.sum() > 0 else -scores

def example(batch, length):
    return torch.zeros(batch, length, dtype=torch.long)

def net():
    print("a word of the function's own")
    return Net, example

def settings():
    return {"module": Net(), "example": example, "precision": "bf16", "lengths": [(2, 8)], "advice": False}

def wrong_name():
    return {"module": Net, "example": example, "batchs": 8}

def no_module():
    return {"example": example}

def no_example():
    return Net()

def unforeseeable():
    return Bad(), example

def fails():
    return torch.nn.Linear(3, 4)(torch.zeros(2, 5)), example

def leaves():
    raise SystemExit(0)
"""
LINES = FILE.splitlines()


def line_number(text: str) -> int:
    return next(i for i, line in enumerate(LINES, 1) if text in line)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets_to_forecast.py").write_text(FILE)
    (tmp_path / "lengths.txt").write_text("# batch size, length\n8 100\n\n2,400\n16\t4000\n8 200\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_run_that_fits_ends_with_0_and_one_that_does_not_with_1_and_the_batch_that_dies() -> None:
    line = ("preflight", "nets_to_forecast:net", "--lengths", "lengths.txt")
    code, out, err = call(*line)
    assert code == 0 and out.startswith("fits on H100-80GB: ") and err == "a word of the function's own\n"
    assert "the peak is at batch 2 of 4 (from 0): 16 examples of length 4000" in out and "dies" not in out and "note: " in out
    assert f"nets_to_forecast.py:{line_number('self.out(self.table')}" in out
    code, out, _ = call(*line, "--limit", "100MiB", "--optimizer", "sgd")
    assert code == 1 and out.startswith("does not fit on H100-80GB: 100 MiB are free")
    assert "  batch 2 dies first: 16 examples of length 4000" in out and "what would help" in out and "accumulate 4 batches, each 1/4 of these" in out
    assert "the largest that fits: " in out


@pytest.mark.usefixtures("folder")
def test_json_has_the_forecast_and_options_go_before_the_functions_own() -> None:
    code, out, _ = call("preflight", "nets_to_forecast:settings", "--json", "--device", "24GiB")
    facts = json.loads(out)
    assert code == 0 and facts["fits"] is True and [(s["batch"], s["length"]) for s in facts["steps"]] == [(2, 8)] * 3 and facts["card"]["name"] == "24.0 GiB"
    changed = json.loads(call("preflight", "nets_to_forecast:settings", "--json", "--lengths", "lengths.txt", "--precision", "fp32", "--optimizer", "none")[1])
    assert len(changed["steps"]) == 4 and not any(tensor["kind"] in ("optimizer", "gradient") for tensor in changed["peak_tensors"])
    table = next(t["bytes"] for t in changed["peak_tensors"] if t["name"] == "table.weight")
    assert table == 4 * 50 * 32
    assert 2 * next(t["bytes"] for t in facts["peak_tensors"] if t["name"] == "table.weight") == table  # bf16


@pytest.mark.parametrize(("arguments", "words"), [
    ("nets_to_forecast:wrong_name", "with 'batchs', which is no argument of fs.forecast: did you mean 'batch'?"),
    ("nets_to_forecast:no_module", "needs the module under 'module'"),
    ("nets_to_forecast:no_example", "forecast needs an example"),
    ("nets_to_forecast:unforeseeable", f"at nets_to_forecast.py:{line_number('scores.sum() > 0')}: "),
    ("nets_to_forecast:fails", f"nets_to_forecast.py:{line_number('torch.zeros(2, 5)')}    return torch.nn.Linear(3, 4)"),
    ("nets_to_forecast:leaves", "nets_to_forecast:leaves cannot be called: it exits with 0"),
    ("nets_to_forecast:absent", "has no attribute 'absent'"),
    ("nowhere_at_all:net", "No module named 'nowhere_at_all'"),
    ("nets_to_forecast.py", "is no function, as package.module:function"),
    ("nets_to_forecast:net --device H100-80G", "did you mean 'H100-80GB'?"),
    ("nets_to_forecast:net --optimizer AdamV", "did you mean 'Adam' or 'AdamW'"),
    ("nets_to_forecast:net --precision bf61", "did you mean 'bf16'"),
    ("nets_to_forecast:net --limit much", "much"),
    ("nets_to_forecast:net --lengths absent.txt", "absent.txt: No such file"),
    ("nets_to_forecast:net --lengths damaged.txt", "damaged.txt:2: a line has a length, or a batch size and a length, of at least 1; seen '8 12x'"),
    ("nets_to_forecast:net --lengths zero.txt", "zero.txt:1: a line has a length"),
    ("nets_to_forecast:net --lengths empty.txt", "empty.txt has no lengths"),
    ("nets_to_forecast:net --lengths bytes.txt", "bytes.txt:1: a line has a length"),
    ("nets_to_forecast:net --lengths alone.txt", "--batch gives all lengths a batch size"),
])  # fmt: skip
def test_a_mistake_ends_with_2_and_in_words(arguments: str, words: str, folder: Path) -> None:
    for name, text in (("damaged", b"8 100\n8 12x\n"), ("zero", b"0 8\n"), ("empty", b"\n# none\n"), ("bytes", b"\xff\xfe8 100"), ("alone", b"100\n")):
        (folder / f"{name}.txt").write_bytes(text)
    own = [] if "--lengths" in arguments else ["--lengths", "lengths.txt"]
    code, out, err = call("preflight", *arguments.split(), *own)
    assert (code, out) == (2, "") and words in " ".join(err.replace("│", " ").split(" ")), err
    assert "Traceback" not in err
