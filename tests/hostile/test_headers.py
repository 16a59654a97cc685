"""Headers of safetensors and .npy files, and .npz archives: refused within limits that have names, or what they say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import crafted_headers as crafted
from support.some import one_in
from support.survival import checked_words

import foreshape as fs
from foreshape.core.checked_json import bounded_json
from foreshape.interop import load_safetensors
from foreshape.interop import safetensors_file as st
from foreshape.interop.npy_file import map_array, read_array


def loaded(path: Path, data: bytes) -> fs.Scope | None:
    """What a safetensors file puts into a scope; None where it is refused, and then nothing."""
    path.write_bytes(data)
    scope = fs.Scope()
    try:
        names = load_safetensors(path, scope)
    except fs.FormatError as error:
        checked_words(error)
        assert scope.names() == []
        return None
    assert names == scope.names()
    for name, tensor in st.load_bytes(data).items():  # by the other way the same
        assert np.array_equal(tensor.numpy(), scope.get(name), equal_nan=True)
    return scope


def test_the_good_one_is_loaded(tmp_path: Path) -> None:
    import json

    scope = loaded(tmp_path / "s", crafted.safetensors(json.dumps(crafted.GOOD), crafted.DATA))
    assert scope is not None and scope.names() == ["e", "n", "w"] and scope.get("e").shape == (0, 4)


@pytest.mark.parametrize("name", one_in(2, crafted.LARGE))
def test_17_what_nobody_can_hold_is_refused_before_it_is_counted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    multiplied: list[int] = []

    def prod(dims: Any) -> int:
        multiplied.append(len(dims))
        return math.prod(dims)

    monkeypatch.setattr(st, "math", type("m", (), {"prod": staticmethod(prod)}))
    assert loaded(tmp_path / "s", crafted.LARGE[name]()) is None
    assert max(multiplied, default=0) <= 64


@pytest.mark.parametrize("name", crafted.OTHER)
def test_17_what_is_no_header_is_refused(name: str, tmp_path: Path) -> None:
    assert loaded(tmp_path / "s", crafted.OTHER[name]()) is None


def test_17_every_field_made_wrong_in_every_way(tmp_path: Path) -> None:
    refused = sum(loaded(tmp_path / "s", data) is None for _, data in crafted.wrong_headers())
    assert refused > 300


def test_limits_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = crafted.many_tensors(11)
    monkeypatch.setattr(st, "MAX_TENSORS", 10)
    assert loaded(tmp_path / "s", data) is None
    monkeypatch.setattr(st, "MAX_TENSORS", 11)
    scope = loaded(tmp_path / "s", data)
    assert scope is not None and len(scope.names()) == len(st.load_bytes(data)) == 11


def test_json_is_counted_without_its_strings() -> None:
    text = '{"' + "[{:" * 500_000 + '": "\\"[[[\\\\"}'
    assert list(bounded_json.parse(text.encode())) == ["[{:" * 500_000]
    assert bounded_json.parse('{"\\ud83d\\ude00": "😀", "n": -1.5e-300}'.encode()) == {"😀": "😀", "n": -1.5e-300}


def array_of(path: Path, data: bytes) -> Any:
    path.write_bytes(data)
    try:
        found = read_array(str(path))
    except fs.FormatError as error:
        checked_words(error)
        with pytest.raises(fs.FormatError):
            map_array(str(path))
        return None
    assert np.array_equal(map_array(str(path)), found, equal_nan=found.dtype.kind in "fc")
    return found


def test_26_npy_headers_made_wrong_in_every_way(tmp_path: Path) -> None:
    counts = {True: 0, False: 0}
    for name, data in crafted.wrong_arrays():
        found = array_of(tmp_path / "a.npy", data)
        counts[found is None] += 1
        if found is not None:
            assert found.nbytes <= len(data), name
            assert np.array_equal(found, np.load(tmp_path / "a.npy", allow_pickle=False), equal_nan=found.dtype.kind in "fc"), name
    assert counts[True] > 300 and counts[False] > 5


def test_26_archives_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    for _, data in crafted.archives():
        assert array_of(tmp_path / "a.npz", data) is None


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("of", ["?", "i1", "u1", "<i2", ">i4", "<i8", ">u8", "<f2", ">f4", "<f8", "<c8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4), (2, 3, 4)])
def test_arrays_of_all_types_and_orders_are_read(of: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    for order in "CF":
        array = np.asarray(np.arange(math.prod(shape)).reshape(shape) % 2, dtype=of, order=order)
        np.save(tmp_path / "a.npy", array)
        found = array_of(tmp_path / "a.npy", (tmp_path / "a.npy").read_bytes())
        assert found.dtype == array.dtype and np.array_equal(found, array)


@pytest.mark.parametrize(
    ("limit", "text"),
    [("MAX_CONTAINERS", "[[],[],[]]"), ("MAX_CONTAINERS", '[{},{"a":[]}]'), ("MAX_KEYS", '{"a":1,"b":2,"c":3,"d":4}'), ("MAX_STRINGS", '["","","",""]'),
     ("MAX_DIGITS", "[1234]"), ("MAX_DIGITS", "[0.1234]"), ("MAX_DIGITS", "[1e1234]")],
)  # fmt: skip
def test_each_limit_of_json_by_its_name(limit: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded_json.parse(text.encode())
    monkeypatch.setattr(bounded_json, limit, 3)
    with pytest.raises(fs.FormatError, match=limit):
        bounded_json.parse(text.encode())
