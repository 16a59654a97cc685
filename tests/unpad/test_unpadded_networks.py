"""Unpadded networks are programs as any others: printed, saved, planned, served, quantized, written as ONNX, opened in one step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.commanded import call, facts
from support.padded_networks import packed, texts
from test_unpad import Pair, equal

import foreshape as fs

HERE = Path(__file__).parent


@pytest.fixture
def pair() -> Pair:
    return Pair(mask="lowest", positions="table", pooling="mean")


@pytest.fixture
def saved(pair: Pair, tmp_path: Path) -> str:
    fs.save_inference_model(tmp_path / "padded", pair.network.feeds, {"vectors": pair.network.out}, program=pair.padded, scope=pair.scope)
    return str(tmp_path / "padded.pdmodel")


def test_the_text_of_an_unpadded_program(pair: Pair, update: bool) -> None:
    text = str(pair.unpadded().program)
    path = HERE / "data" / "encoder.txt"
    if update:
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8"), "pytest tests/unpad --update writes it again"
    assert str(fs.Program.parse(text)) == text


def test_it_is_opened_saved_and_opened_again_with_the_same_answers(pair: Pair, saved: str, tmp_path: Path) -> None:
    several = texts()
    expected = [pair.alone(t) for t in several]
    model = fs.load_inference_model(saved, scope=fs.Scope(), ragged="mask")
    assert model.feeds == ["ids"]
    equal(model.run({"ids": packed(several)})["vectors"], expected)
    fs.save_inference_model(tmp_path / "ragged", model.feeds, model.fetches, program=model.program, scope=model.scope)
    predictor = fs.Predictor(tmp_path / "ragged.pdmodel")
    for lengths in ([7, 3, 12], [1], [5, 5], [2, 7, 3, 12]):
        several = texts(lengths, seed=len(lengths))
        equal(predictor(packed(several))[0], [pair.alone(t) for t in several])


def test_its_plan_grows_with_the_rows_of_the_texts_alone(pair: Pair) -> None:
    program, _, fetches = pair.unpadded()
    lengths = [20, *[1] * 15]
    ragged = fs.plan(program, fetch=fetches, lengths={"ids": lengths})
    padded = fs.plan(pair.padded, fetch=[pair.network.out])
    assert ragged.peak(texts=len(lengths), rows=sum(lengths)) < padded.peak(texts=len(lengths), time=max(lengths)) / 2


def test_arguments_of_unpad_are_a_mapping_and_others_are_refused(saved: str) -> None:
    assert fs.load_inference_model(saved, scope=fs.Scope(), ragged={"mask": "mask", "side": "right", "masked": 0}).feeds == ["ids"]
    with pytest.raises(fs.UnpadError, match="positions in the padding"):
        fs.load_inference_model(saved, scope=fs.Scope(), ragged={"mask": "mask", "side": "left"})
    with pytest.raises(fs.SchemaError, match=r"ragged: 'sides' is not one of .*did you mean 'side'"):
        fs.load_inference_model(saved, scope=fs.Scope(), ragged={"mask": "mask", "sides": "left"})
    with pytest.raises(fs.SchemaError, match="mask='attention_mask' is not an input; the inputs are: ids, mask"):
        fs.load_inference_model(saved, scope=fs.Scope(), ragged="attention_mask")


class Mean(torch.nn.Module):
    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.embedding, self.linear, self.masked = torch.nn.Embedding(32, 8), torch.nn.Linear(8, 8), masked

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h, rows = torch.tanh(self.linear(self.embedding(ids))), mask.unsqueeze(-1)
        return (h * rows).sum(1) / rows.sum(1).clamp(min=1) if self.masked else h.mean(1) + 0 * mask.sum(1, keepdim=True)


def test_a_module_of_torch_is_unpadded_in_one_step() -> None:
    example = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64)
    axes = [{0: "texts", 1: "time"}] * 2
    module, several = Mean(True).eval(), texts()
    model = fs.from_torch(module, example, axes, ragged="mask")
    assert model.feeds == ["ids"]
    with torch.no_grad():
        expected = [module(torch.tensor(t)[None], torch.ones(1, len(t), dtype=torch.int64))[0].numpy() for t in several]
    equal(model.run({"ids": packed(several)})[0], expected)
    with pytest.raises(fs.UnpadError, match="reduce_mean"):
        fs.from_torch(Mean(False).eval(), example, axes, ragged="mask")
    with pytest.raises(fs.SchemaError, match="loss= is for a padded network"):
        fs.from_torch(module, example, axes, loss=torch.nn.functional.cross_entropy, ragged="mask")  # type: ignore[call-overload]


def test_the_command_says_yes_or_no_and_why(saved: str) -> None:
    code, out, _ = call("check", saved, "--ragged", "--mask", "mask")
    assert code == 0 and "ragged: yes, padding does not reach the results: ids: i64[" in out
    code, out, _ = call("check", saved, "--ragged", "--mask", "mask", "--side", "left")
    assert code == 1 and "ragged: no: unpad: slice (" in out and "it counts positions in the padding before the text" in out
    told = facts("check", saved, "--ragged", "--mask", "mask")
    assert told["ok"] and told["ragged"]["ok"] and told["ragged"]["inputs"].keys() == {"ids"} and list(told["ragged"]["results"].values()) == ["f32[texts, 8]"]
    code, _, err = call("check", saved, "--ragged")
    assert code == 1 and "'attention_mask' is not an input" in err
    for option in (["--mask", "mask"], ["--pad-id", "0"], ["--side", "left"], ["--masked", "1"]):
        code, _, err = call("check", saved, *option)
        assert code == 2 and "--ragged is not there" in err
    assert call("check", saved, "--ragged", "--side", "middle")[0] == 2


def test_the_command_writes_the_ragged_network(pair: Pair, saved: str, tmp_path: Path) -> None:
    several = texts()
    expected = [pair.alone(t) for t in several]
    for ending in (".pdmodel", ".onnx"):
        code, out, err = call("convert", saved, tmp_path / f"ragged{ending}", "--ragged", "--mask", "mask")
        assert code == 0, err
        assert f"ragged{ending}: " in out
    equal(fs.load_inference_model(tmp_path / "ragged", scope=fs.Scope()).run({"ids": packed(several)})[0], expected)
    padded = np.zeros((3, 12), "int64")
    for row, text in zip(padded, several, strict=True):
        row[: len(text)] = text
    lengths = np.array([len(t) for t in several])
    equal(fs.load_inference_model(tmp_path / "ragged.onnx", scope=fs.Scope()).run({"ids": padded, "ids.lengths": lengths})[0], expected)
    assert call("convert", saved, tmp_path / "ragged.py", "--ragged", "--mask", "mask")[0] == 1
    assert call("convert", saved, tmp_path / "ragged.pdmodel", "--ragged", "--mask", "mask", "--force")[0] == 2
