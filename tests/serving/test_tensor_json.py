"""Tensors in JSON: the same numbers as by Python's own reader, or a refusal; read and written in small pieces."""

from __future__ import annotations

import contextlib
import json
import math
import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="the extra serve")
from foreshape.apps.serving import tensor_json
from foreshape.apps.serving.server_limits import RequestError
from foreshape.apps.serving.tensor_json import from_json, to_json

KINDS = {"BOOL": "bool", "UINT8": "u1", "UINT64": "u8", "INT8": "i1", "INT32": "i4", "INT64": "i8", "FP32": "f4", "FP64": "f8"}
TYPES = {"b": (bool,), "u": (int,), "i": (int,), "f": (int, float)}
SCALARS = [0, 1, -1, 255, 256, -128, -129, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400]
SCALARS += [True, False, None, "", "1", 0.5, -2.0, 1e39, 1e-50, 1e308, {}, {"a": [1]}]


def any_value(draw: random.Random, depth: int = 4) -> Any:
    if depth and draw.random() < 0.7:
        return [any_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    return draw.choice(SCALARS)


def expected(datatype: str, shape: list[int], data: Any) -> Any:
    """The array by plain means; None if it is to be refused."""
    kind = np.dtype(KINDS[datatype])

    def leaves(of: Any, dims: list[int]) -> list[Any]:
        if not dims:
            assert type(of) in TYPES[kind.kind]
            return [of]
        assert isinstance(of, list) and len(of) == dims[0]
        return [leaf for one in of for leaf in leaves(one, dims[1:])]

    for dims in (shape or [1], [math.prod(shape)]):
        try:
            found = leaves(data, dims)
            limits = np.iinfo(kind) if kind.kind in "iu" else np.finfo(kind) if kind.kind == "f" else None
            assert limits is None or all(int(limits.min) <= v <= int(limits.max) for v in found)
            return np.array(found, kind).reshape(shape)
        except (AssertionError, OverflowError):
            pass
    return None


def check(datatype: str, shape: list[int], data: Any) -> None:
    want = expected(datatype, shape, data)
    try:
        found = from_json("x", datatype, shape, json.dumps(data, indent=1).encode())
    except RequestError as error:
        assert want is None and error.status == 400 and str(error).startswith("x: "), (datatype, shape, data, error)
    else:
        assert want is not None and found.dtype == want.dtype and np.array_equal(found, want), (datatype, shape, data)


def test_any_value_is_read_or_refused_as_by_plain_means() -> None:
    draw = random.Random(0)
    for _ in range(400):
        check(draw.choice(sorted(KINDS)), [draw.randrange(4) for _ in range(draw.randrange(4))], any_value(draw))


def test_data_of_the_right_shape_and_its_neighbours() -> None:
    """Numbers of the shape; in half of them one element, or one list, is another."""
    draw = random.Random(1)
    for _ in range(800):
        datatype, shape = draw.choice(sorted(KINDS)), [draw.randrange(4) for _ in range(draw.randrange(5))]
        array = np.arange(math.prod(shape)).reshape(shape) % 2
        array = array == 1 if datatype == "BOOL" else array
        data: Any = array.ravel().tolist() if draw.random() < 0.3 else array.tolist()
        place, at = data, 0
        while isinstance(place, list) and place:
            at = draw.randrange(len(place))
            if not isinstance(place[at], list) or draw.random() < 0.3:
                break
            place = place[at]
        if isinstance(place, list) and draw.random() < 0.5:
            place[at : at + 1] = draw.choice([[], [[]], [[1]], [draw.choice(SCALARS)], [1, 1]])
        check(datatype, shape, data)


def test_an_empty_list_among_lists_of_one_is_refused() -> None:
    with pytest.raises(RequestError, match="nested as its shape says"):
        from_json("x", "FP32", [3, 1], b"[[1],[],[2]]")


def test_dims_past_the_data_take_no_memory() -> None:
    for shape in ([1, 1 << 40], [1 << 40, 0], [0, 1 << 40], [1, 1, 0, 1 << 40], [1 << 20, 1 << 20, 0]):
        for text in (b"[]", b"[[]]", b"[[[]]]", b"[[1]]"):
            with contextlib.suppress(RequestError):
                assert from_json("x", "FP32", shape, text).shape == (*shape,) and 0 in shape


def test_many_numbers_are_read_and_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call into a C library, in which other threads wait, has all of a large tensor."""
    array = np.random.default_rng(0).standard_normal((50, 1000)).astype("float32")
    whole, longest = json.dumps(array.tolist()).encode(), 0
    numbers = tensor_json._numbers

    def watched(name: str, datatype: str, kind: Any, text: bytes) -> Any:
        nonlocal longest
        longest = max(longest, len(text))
        return numbers(name, datatype, kind, text)

    monkeypatch.setattr(tensor_json, "_numbers", watched)
    assert np.array_equal(from_json("x", "FP32", [50, 1000], whole), array)
    assert np.array_equal(from_json("x", "FP32", [50_000], json.dumps(array.ravel().tolist()).encode()), array.ravel())
    assert len(whole) > 4 * longest > 0
    pieces = list(to_json("x", "FP32", array))
    assert np.array_equal(np.array(json.loads(b"".join(pieces)), "float32"), array.ravel()) and max(map(len, pieces)) < len(whole) / 2
