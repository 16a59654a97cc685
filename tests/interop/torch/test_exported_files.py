"""Exported programs of torch in files: opened by every reader, without a run of what they hold; damaged and hostile ones are refused in words."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foreshape as fs
from foreshape.interop.torch.torch_model import from_torch


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.register_buffer("scale", torch.linspace(1, 2, 3), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.out(self.norm(x)) * self.scale
        return y, torch.arange(x.shape[0]) * x.shape[0] + y.sum(1) + torch.tensor(0.5)


ROWS = torch.export.Dim("rows", max=64)


def exported(module: nn.Module) -> Any:
    return torch.export.export(module.eval(), (torch.randn(5, 4),), dynamic_shapes=({0: ROWS},))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    module, path = Small(), tmp_path_factory.mktemp("exported") / "small.pt2"
    torch.export.save(exported(module), path)
    return path, module


def test_every_reader_opens_an_exported_program_told_by_its_content(written: tuple[Path, nn.Module], tmp_path: Path) -> None:
    path, module = written
    other = tmp_path / "model"
    other.write_bytes(path.read_bytes())
    x = torch.randn(6, 4)
    want = [y.detach().numpy() for y in module(x)]
    for given in (path, other, str(path), path.with_suffix("")):
        assert str(fs.load_program(given).global_block.var("x").spec.text()) == "f32[batch, 4]"
    assert fs.load_program(path.read_bytes()).global_block.var("norm.running_mean").persistable
    network = fs.load_inference_model(path, scope=fs.Scope())
    for one in (list(network.run({"x": x.numpy()}).values()), [y.numpy() for y in from_torch(path)(x)]):
        for w, s in zip(want, one, strict=True):
            np.testing.assert_allclose(s, w, rtol=1e-5, atol=1e-6)
    for rows in (65, 70):
        with pytest.raises(fs.GuardError, match="exported for these sizes"):
            network.run({"x": np.zeros((rows, 4), "float32")})


def test_names_of_sizes_are_those_of_the_program_unless_others_are_given() -> None:
    program = exported(Small())
    assert str(from_torch(program).program.global_block.var("x").spec.text()) == "f32[rows, 4]"
    model = from_torch(program, dynamic=({0: "persons"},))
    assert str(model.program.global_block.var("x").spec.text()) == "f32[persons, 4]"
    with pytest.raises(fs.SchemaError, match="dynamic must have one entry for each of the 1 tensors"):
        from_torch(program, dynamic=(None, None))


def test_an_exported_program_is_converted_without_its_limits_of_sizes(written: tuple[Path, nn.Module], tmp_path: Path) -> None:
    path, module = written
    fs.interop.convert_model(path, tmp_path / "small.pdmodel")
    fs.interop.convert_to_onnx(path, tmp_path / "small.onnx")
    x = torch.randn(6, 4)
    for one in ("small.pdmodel", "small.onnx"):
        got = fs.load_inference_model(tmp_path / one, scope=fs.Scope()).run({"x": x.numpy()})
        for w, s in zip(module(x), got.values(), strict=True):
            np.testing.assert_allclose(s, w.detach().numpy(), rtol=1e-5, atol=1e-6)


class Odd(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.zeta(x, x) + torch.igamma(x, x) + x.sum()


@pytest.mark.long
def test_a_program_with_operators_missing_here_is_shown_and_not_run(tmp_path: Path) -> None:
    torch.export.save(exported(Odd()), tmp_path / "odd.pt2")
    program = fs.load_program(tmp_path / "odd.pt2")
    _, errors = program.diagnose()
    assert [e.op for e in errors] == ["aten.special_zeta.default", "aten.igamma.default"]
    assert "aten.special_zeta.default" in str(program)
    with pytest.raises(fs.DescriptionError, match="special_zeta"):
        fs.load_inference_model(tmp_path / "odd.pt2")


# --- damaged and hostile files


def rewritten(path: Path, change: Callable[[str, bytes], bytes | None], add: dict[str, bytes] | None = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(path) as given, zipfile.ZipFile(out, "w") as made:
        for name in given.namelist():
            data = change(name.partition("/")[2], given.read(name))
            if data is not None:
                made.writestr(name, data)
        for name, data in (add or {}).items():
            made.writestr(f"small/{name}", data)
    return out.getvalue()


def with_graph(path: Path, old: str, new: str) -> bytes:
    def change(name: str, data: bytes) -> bytes:
        if name.startswith("models/"):
            assert old in data.decode(), old
            return data.decode().replace(old, new).encode()
        return data

    return rewritten(path, change)


class Evil:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


def pickled(path: Path, mark: str) -> bytes:
    def change(name: str, data: bytes) -> bytes:
        if name.endswith("weights_config.json"):
            config = json.loads(data)
            for one in config["config"].values():
                one["use_pickle"] = True
            return json.dumps(config).encode()
        return pickle.dumps(Evil(mark)) if "weights/weight_" in name else data

    return rewritten(path, change)


SYMBOL = "Symbol('s77', positive=True, integer=True)"
HOSTILE: dict[str, tuple[Callable[[Path, str], bytes], str]] = {
    "a function of Python": (lambda p, m: with_graph(p, "torch.ops.aten.linear.default", "torch.os.mkdir"), r"no operators known here:\s+torch.os.mkdir: 1"),
    "a builtin": (lambda p, m: with_graph(p, "torch.ops.aten.linear.default", "_operator.attrgetter"), "_operator.attrgetter"),
    "a file": (lambda p, m: with_graph(p, "torch.ops.aten.linear.default", "torch.ops.aten.from_file.default"), "from_file"),
    "a library": (lambda p, m: with_graph(p, "torch.ops.aten.linear.default", "torch.ops.aten.__class__.mro"), "__class__"),
    "code in a size": (lambda p, m: with_graph(p, SYMBOL, f"__import__('os').mkdir('{m}')"), "is no size"),
    "code behind a size": (lambda p, m: with_graph(p, SYMBOL, "Integer(1).__class__"), "is no size"),
    "a size without end": (lambda p, m: with_graph(p, SYMBOL, "Pow(Integer(9), Pow(Integer(9), Integer(999999999)))"), "is no size"),
    "a pickle": (pickled, "pickles can run code"),
    "a name of a size": (lambda p, m: with_graph(p, '"range_constraints": {"s77"', '"range_constraints": {"u99999999999"'), "is no name of a size"),
    "a class of Python": (lambda p, m: with_graph(p, '"in_spec": "', '"in_spec": "__enum__'), "class of Python"),
    "no graph": (lambda p, m: rewritten(p, lambda n, d: None if n.startswith("models/") else d), "has no graph"),
    "no numbers": (lambda p, m: rewritten(p, lambda n, d: None if n.endswith("weight_0") else d), "weight_0 is missing"),
    "few numbers": (lambda p, m: rewritten(p, lambda n, d: d[:4] if "weights/weight_" in n else d), "does not fit its bytes"),
    "no JSON": (lambda p, m: rewritten(p, lambda n, d: b"[" if n.startswith("models/") else d), "no JSON"),
    "two graphs": (lambda p, m: rewritten(p, lambda n, d: d, {"models/other.json": b"{}"}), "2 graphs"),
    "compiled code": (
        lambda p, m: rewritten(p, lambda n, d: None if n.startswith("models/") else d, {"data/aotinductor/model/x.so": b""}), "compiled code alone"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_and_nothing_of_it_runs(name: str, written: tuple[Path, nn.Module], tmp_path: Path) -> None:
    make, words = HOSTILE[name]
    mark = tmp_path / "ran"
    data = make(written[0], str(mark))
    with pytest.raises(fs.FormatError, match=words):
        fs.load_program(data)
    path = tmp_path / "model.pt2"
    path.write_bytes(data)
    with pytest.raises(fs.FormatError, match=words):
        from_torch(path)
    assert not mark.exists()


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 200), marks=pytest.mark.long)])
def test_a_damaged_file_is_refused_or_read(seeds: range, written: tuple[Path, nn.Module]) -> None:
    whole = written[0].read_bytes()
    for seed in seeds:
        draw = random.Random(seed)
        data = bytearray(whole[: draw.randrange(4, len(whole))] if draw.random() < 0.4 else whole)
        for _ in range(draw.randrange(1, 6)):
            data[draw.randrange(len(data))] = draw.randrange(256)

        def change(name: str, graph: bytes, draw: random.Random = draw) -> bytes:
            if not name.startswith("models/"):
                return graph
            at = draw.randrange(len(graph))
            return graph[:at] + bytes(draw.randrange(32, 127) for _ in range(draw.randrange(3))) + graph[at + draw.randrange(3) :]

        for one in (bytes(data), rewritten(written[0], change)):
            try:
                fs.load_program(one)
            except fs.FormatError as error:
                assert len(str(error)) > 20
