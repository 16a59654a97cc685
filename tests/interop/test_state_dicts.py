"""Values of torch's modules by name in programs: what fits, what is transposed, what is refused, and that nothing is changed by halves."""

from __future__ import annotations

import copy
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foreshape as fs
from foreshape import layer


class Net(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.words, self.first = nn.Embedding(9, 4), nn.Linear(4, width)
        self.norm, self.square = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.square(self.norm(torch.relu(self.first(self.words(ids)))))


def described(width: int = 6) -> tuple[fs.Program, fs.Variable]:
    """The same network in layers of ours, with the names of torch's."""

    def named(name: str) -> fs.ParamAttr:
        return fs.ParamAttr(name=name)

    with fs.program() as program:
        x = layer.embedding(layer.data("ids", shape=["batch", 3], dtype="int64"), [9, 4], weight=named("words.weight"))
        x = layer.relu(layer.fc(x, width, flatten_last=1, weight=named("first.weight"), bias=named("first.bias")))
        x = layer.layer_norm(x, begin_norm_axis=2, weight=named("norm.weight"), bias=named("norm.bias"))
        out = layer.fc(x, width, flatten_last=1, weight=named("square.weight"), bias=named("square.bias"))
    return program, out


IDS = np.array([[1, 2, 3], [4, 0, 8]])


def answer(program: fs.Program, out: fs.Variable, scope: fs.Scope) -> Any:
    return fs.Executor().run(program, {"ids": IDS}, [out], scope)[0]


def saved(how: str, state: dict[str, torch.Tensor], path: Path) -> Any:
    if how == "mapping":
        return state
    if how == "arrays":
        return {name: value.numpy() for name, value in state.items()}
    if how == "safetensors":
        scope = fs.Scope()
        for name, value in state.items():
            scope.set(name, value)
        fs.save_safetensors(path, scope)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=how == "pt")
    return path


@pytest.mark.parametrize("how", ["mapping", "arrays", "safetensors", "pt", "old pt"])
def test_a_linear_layers_weight_is_transposed_and_said(how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, scope = Net(), fs.Scope()
    program, out = described()
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.ForeshapeWarning)
        report = fs.load_state_dict(program, saved(how, module.state_dict(), tmp_path / "values"), scope)
    assert report.complete and report.transposed == {"first.weight": "[6, 4] to [4, 6]", "square.weight": "[6, 6], square: as the others"}
    assert str(report) == "7 of 7 values fit\n  transposed: 2\n    first.weight: [6, 4] to [4, 6]\n    square.weight: [6, 6], square: as the others"
    np.testing.assert_allclose(answer(program, out, scope), module(torch.as_tensor(IDS)).detach(), rtol=1e-5, atol=1e-6)
    back = fs.state_dict(program, scope)
    assert torch.equal(back["square.weight"], module.square.weight.t()), "as the program has it"
    again = fs.Scope()
    assert not fs.load_state_dict(program, back, again).transposed, "the other weight shows the order"
    assert all(np.array_equal(again[name], scope[name]) for name in scope.names())


def test_square_weights_alone_are_taken_as_torchs_with_a_warning() -> None:
    with fs.program() as program:
        out = layer.fc(layer.data("ids", shape=["batch", 3]), 3, weight=fs.ParamAttr(name="weight"), bias=fs.ParamAttr(name="bias"))
    module, scope = nn.Linear(3, 3), fs.Scope()
    with pytest.warns(fs.ForeshapeWarning, match=r"\[out, in\], and transposed \(no other tells the order\): weight"):
        report = fs.load_state_dict(program, module.state_dict(), scope)
    assert report.transposed == {"weight": "[3, 3], square: as a product takes it"}
    x = IDS.astype("float32")
    np.testing.assert_allclose(fs.Executor().run(program, {"ids": x}, [out], scope)[0], module(torch.as_tensor(x)).detach(), rtol=1e-5)


def test_a_module_brought_over_takes_its_own_values_as_they_are() -> None:
    class Conv1D(nn.Module):  # as in GPT-2: its weights are [in, out]
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.table = nn.Parameter(torch.randn(3, 3)), nn.Embedding(3, 3)
            self.last = nn.Linear(3, 3, bias=False)
            self.last.weight = self.table.weight
            self.unread = nn.Linear(1, 2)
            self.register_buffer("apart", torch.ones(3), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(x @ self.weight * self.apart) + self.table(torch.zeros(1, dtype=torch.int64)) * torch.tensor([1.0, 2.0, 3.0])

    module, other, x = Conv1D(), Conv1D(), torch.randn(2, 3)
    model = fs.from_torch(module, x)
    for target in (model, model.program):
        report = fs.load_state_dict(target, other.state_dict(), model.scope)
        assert report.complete and not report.transposed and report.fitting == tuple(module.state_dict())
    torch.testing.assert_close(model(x), other(x))
    one_name = {name: value for name, value in module.state_dict().items() if name != "last.weight"}
    assert fs.load_state_dict(model, one_name).complete, "one name of a tied weight is enough"
    torch.testing.assert_close(model(x), module(x))
    apart = {**one_name, "last.weight": other.last.weight}
    with pytest.raises(fs.ExecutionError, match=r"last.weight: other numbers than table.weight, with which it shares a tensor"):
        fs.load_state_dict(model, apart)
    module.load_state_dict(model.state_dict())
    scope = copy.copy(model.scope)
    for source, of in ((scope, None), (model.for_test(), None), (model.program.clone(), scope)):  # what is made of it has its names
        assert list(fs.state_dict(source, of)) == list(module.state_dict())
        assert source is scope or not fs.load_state_dict(source, other.state_dict(), of).transposed
    assert fs.to_torch(model.for_test()).state_dict().keys() == module.state_dict().keys()
    assert torch.equal(model.state_dict()["unread.bias"], other.unread.bias), "of values that nothing reads too"


def test_what_does_not_fit_is_listed_and_nothing_is_changed() -> None:
    program, _ = described()
    scope = fs.Scope()
    fs.load_state_dict(program, Net().state_dict(), scope)
    before = {name: scope[name] for name in scope.names()}
    state = Net().state_dict()
    state["first.weight"] = torch.zeros(5, 4)
    state["words.weight"] = torch.zeros(4, 9)
    state["norm.weight"] = state["norm.weight"].double()
    state["square.bias"] = state["square.bias"].to(torch.float8_e4m3fn)
    state["head.weight"] = torch.zeros(2)
    del state["norm.bias"]
    words = (
        r"2 of 7 values fit",
        r"  transposed: 1\n    square.weight",
        r"does not fit: 4",
        r"square.bias: float8_e4m3fn\[6\], an element type not known here, and the network has f32\[6\]",
        r"words.weight: f32\[4, 9\], and the network has f32\[9, 4\]; its transpose would fit, and no product takes it so",
        r"first.weight: f32\[5, 4\], and the network has f32\[4, 6\]",
        r"norm.weight: f64\[6\], and the network has f32\[6\]; convert=True takes it",
        r"missing in the source: 1\n    norm.bias",
        r"unknown to the network: 1\n    head.weight",
    )
    with (
        pytest.warns(fs.ForeshapeWarning, match="square"),
        pytest.raises(fs.ExecutionError, match=r"nothing was changed; strict=False puts in what fits") as error,
    ):
        fs.load_state_dict(program, state, scope)
    assert all(np.array_equal(scope[name], value) for name, value in before.items())
    with pytest.warns(fs.ForeshapeWarning, match="square"):
        report = fs.load_state_dict(program, state, scope, strict=False, convert=True)
    assert not report.complete and report.converted == {"norm.weight": "f64 to f32"}
    assert np.array_equal(scope["norm.bias"], before["norm.bias"]) and np.array_equal(scope["norm.weight"], state["norm.weight"].numpy().astype("float32"))
    for one in words:
        assert re.search(one, str(error.value)), one


def wrapped(name: str, at: int) -> str:
    """The name of a module's value within wrappers of it, or of a part of it."""
    first, rest = name.split(".", 1)
    return [f"module.{name}", f"_orig_mod.{name}", f"module._orig_mod.{name}", f"{first}._orig_mod.{rest}"][at]


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("of", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_names_of_wrapped_modules_and_short_floats_are_taken_and_told(at: int, of: torch.dtype) -> None:
    program, _ = described()
    scope, state = fs.Scope(), Net().to(of).state_dict()
    report = fs.load_state_dict(program, {wrapped(name, at): value for name, value in state.items()}, scope)
    assert report.complete and report.renamed == {name: wrapped(name, at) for name in state} and "under another name: 7\n" in str(report)
    assert report.converted.keys() == (set[str]() if of is torch.float32 else state.keys()) and len(report.transposed) == 2
    assert np.array_equal(scope["norm.weight"], state["norm.weight"].float().numpy())
    twice = {"module.norm.bias": state["norm.bias"], **state}
    with pytest.raises(fs.ExecutionError, match=r"unknown to the network: 1\n    module.norm.bias"):
        fs.load_state_dict(program, twice, scope)


@pytest.mark.parametrize("how", ["safetensors", "pt"])
def test_several_files_with_an_index_and_their_folder_are_one_source(how: str, tmp_path: Path) -> None:
    program, _ = described()
    scope, state = fs.Scope(), Net().state_dict()
    name = {"safetensors": "model.safetensors", "pt": "pytorch_model.bin"}[how]
    index = tmp_path / f"{name}.index.json"

    def refused(words: str) -> None:
        with pytest.raises(fs.FormatError, match=words):
            fs.load_state_dict(program, index, scope)

    with pytest.raises(fs.FormatError, match=r"must be one with model.safetensors, .*; seen none of these"):
        fs.load_state_dict(program, tmp_path, scope)
    names = list(state)
    for at, part in enumerate((names[:3], names[3:])):
        saved(how, {n: state[n] for n in part}, tmp_path / f"part{at}")
    where = {n: f"part{int(at >= 3)}" for at, n in enumerate(names)}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    for source in (index, tmp_path):
        assert fs.load_state_dict(program, source, scope).complete
    index.write_text(json.dumps({"weight_map": {**where, names[0]: "part1"}}))
    refused(rf"part1 must be a file with {names[0]}, as {index.name} says; seen 4 others")
    for text, words in (
        ("[", "no JSON"),
        ("[]", 'an object with "weight_map"'),
        ('{"weight_map": []}', 'an object with "weight_map"'),
        ('{"weight_map": {"a": "../part0"}}', r"the file of 'a' must be the name of a file beside the index; seen '../part0'"),
        ('{"weight_map": {"a": 3}}', "the name of a file"),
        ('{"weight_map": {"a": "part2"}}', "part2.*No such file"),
        ("[" * 100_000, "no JSON"),
    ):
        index.write_text(text)
        refused(words)


def test_optimizer_state_is_neither_missing_nor_given() -> None:
    program, out = described()
    with fs.program_guard(program):
        made = fs.training_program(layer.mean(out), fs.optimizer.Adam(0.1))
    scope = fs.Scope()
    executor = fs.Executor()
    executor.run(made.startup, scope=scope)
    executor.run(made.program, {"ids": IDS}, [made.loss], scope)
    assert fs.state_dict(made, scope).keys() == Net().state_dict().keys()
    assert fs.load_state_dict(made, Net().state_dict(), scope).complete


class Code:
    def __reduce__(self) -> Any:
        return print, ("this must not run",)


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, _ = described()
    scope, path = fs.Scope(), tmp_path / "values"
    state = Net().state_dict()

    def refused(words: str, error: type[fs.ForeshapeError] = fs.FormatError) -> None:
        with pytest.raises(error, match=words):
            fs.load_state_dict(program, path, scope)

    refused(r"values.*No such file")
    path.write_bytes(b"not a file of values")
    refused(r"neither a safetensors file nor one of torch.save")
    for how in ("safetensors", "pt", "old pt"):
        saved(how, state, path)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        refused(r"neither a safetensors|cut off or damaged|damaged or cut off")
    torch.save({"values": Code()}, path)
    refused(r"no code of a file is run; seen one that needs .*print")
    torch.save(Net(), path)
    refused(r"seen one that needs .*Net")
    assert "must not run" not in capsys.readouterr().out
    torch.save([torch.ones(2)], path)
    refused(r"must be name -> tensor; seen list")
    torch.save({"state_dict": state, "epoch": 3}, path)
    refused(r"no tensors by name, but further mappings, 'state_dict'", fs.SchemaError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(nn.Linear(2, 2)).save(path)
    refused(r"a whole network of torch, not its values")
    assert not scope.names()
    with pytest.raises(fs.SchemaError, match=r"a model, or a program"):
        fs.load_state_dict("network", state)
    with pytest.raises(fs.SchemaError, match=r"path of a file"):
        fs.load_state_dict(program, 3)
    with pytest.raises(fs.ExecutionError, match=r"no value for 'first.bias'|no value for"):
        fs.state_dict(program, scope)
