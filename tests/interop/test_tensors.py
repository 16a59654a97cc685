"""A scope in a safetensors file."""

import json

import numpy as np
import pytest

import foreshape as fs
from foreshape.interop import load_safetensors, save_safetensors

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


@pytest.fixture
def scope():
    out = fs.Scope()
    out.set("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    out.set("n", np.array([1, -2, 3], np.int64))
    out.set("half", torch.tensor([1.5, -2.5], dtype=torch.bfloat16))
    return out


def test_a_scope_goes_and_comes_back(scope, tmp_path):
    save_safetensors(tmp_path / "s", scope)
    again = fs.Scope()
    assert load_safetensors(tmp_path / "s", again) == ["half", "n", "w"] == again.names()
    for name in again.names():
        assert again.tensor(name).dtype == scope.tensor(name).dtype and torch.equal(again.tensor(name), scope.tensor(name))


def test_others_read_it_and_write_it(scope, tmp_path):
    save_safetensors(tmp_path / "s", scope, ["w"])
    seen = safetensors_torch.load_file(tmp_path / "s")
    assert list(seen) == ["w"] and torch.equal(seen["w"], scope.tensor("w"))
    safetensors_torch.save_file({"v": torch.ones(2, 2).t().contiguous()}, tmp_path / "t")
    assert load_safetensors(tmp_path / "t", scope) == ["v"] and scope.get("v").tolist() == [[1, 1], [1, 1]]


def test_a_name_without_a_value_is_refused(scope, tmp_path):
    with pytest.raises(fs.ExecutionError, match="no value for 'gone'"):
        save_safetensors(tmp_path / "s", scope, ["gone"])


def test_a_file_that_is_cut_or_something_else_is_refused(scope, tmp_path):
    save_safetensors(tmp_path / "s", scope)
    whole = (tmp_path / "s").read_bytes()
    again = fs.Scope()
    for size in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(fs.FormatError):
            load_safetensors(tmp_path / "cut", again)
    assert again.names() == []
    with pytest.raises(fs.FormatError, match="cannot be read"):
        load_safetensors(tmp_path / "nothing")


def test_an_element_type_that_no_program_has_is_refused(tmp_path):
    header = json.dumps({"w": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "s").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(fs.FormatError):
        load_safetensors(tmp_path / "s", fs.Scope())
