"""Any value in any field of any route is answered in words: 2xx, 4xx, 503, or 504 for a timeout."""

from __future__ import annotations

import json
import random
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="the extra serve")

if TYPE_CHECKING:
    from foreshape.apps.serving.server import BackgroundServer

NUMBERS: list[Any] = [0, 1, -1, 2, 3, 7, 1 << 20, 1 << 31, 1 << 32, 1 << 40, 1 << 61, 1 << 62, 1 << 63, 1 << 64, -(1 << 63), 10**400]
VALUES: list[Any] = [*NUMBERS, 0.5, -0.0, 1e39, 1e308, "HUGE", float("nan"), float("inf"), True, False, None, "", "1", "x", "\u0000", "\ud800", "a" * 5000]
VALUES += [[], [[]], [0], [1, 2], [[1], [2]], [True], ["x"], [None], {}, {"x": 1}, {"lengths": [1]}, [[0] * 3] * 3, [1 << 61, 0], [1 << 40, 0, 1 << 21], [-1]]
DATATYPES = ["BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES", "FP8"]
MODELS = {"images": ["image"], "texts": ["words"], "together": ["x"], "types": ["x_bool", "x_int64", "x_fp64"], "nothing": ["x"]}
TYPES = {"image": "FP32", "words": "INT64", "x": "FP32", "x_bool": "BOOL", "x_int64": "INT64", "x_fp64": "FP64"}


def an_input(draw: random.Random, name: str) -> dict[str, Any]:
    """An input that is right but for some fields."""
    rank = {"image": 4, "words": 1}.get(name, 2)
    shape = [draw.choice([0, 1, 2, 3, 4, 8]) for _ in range(rank)]
    if draw.random() < 0.5:
        shape = {"image": [1, 3, 8, 8], "words": [3], "x": [2, 4]}.get(name, [2, 3])
    count = 1
    for dim in shape:
        count *= dim
    out: dict[str, Any] = {"name": name, "datatype": TYPES[name], "shape": shape, "data": [True if name == "x_bool" else 1] * count}
    if name == "words" and draw.random() < 0.7:
        out["parameters"] = {"lengths": draw.choice([[1, 2], [3], [0, 3], [[1, 2]], [-1, 4], [1 << 61, 3], *VALUES])}
    for _ in range(draw.choice([0, 0, 1, 1, 2])):
        field = draw.choice(["name", "datatype", "shape", "data", "parameters"])
        usual = {"datatype": DATATYPES, "shape": [[draw.choice(NUMBERS) for _ in range(draw.randrange(5))]]}
        out[field] = draw.choice(usual.get(field, VALUES) if draw.random() < 0.7 else VALUES)
    if draw.random() < 0.1 and isinstance(out["data"], list) and out["data"]:
        out["data"] = [*out["data"]]
        out["data"][draw.randrange(len(out["data"]))] = draw.choice(VALUES)
    if draw.random() < 0.15:
        out["parameters"] = {draw.choice(["binary_data_size", "lengths", "shared_memory_offset"]): draw.choice(VALUES)}
        if draw.random() < 0.7:
            del out["data"]
    return out


def a_request(draw: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    model = draw.choice([*MODELS])
    of: dict[str, Any] = {"inputs": [an_input(draw, name) for name in MODELS[model]]}
    for field in ("id", "outputs", "inputs", "parameters"):
        if draw.random() < 0.08:
            of[field] = draw.choice(VALUES)
    if draw.random() < 0.3:
        names = ["timeout", "sequence_id", "priority", "binary_data_output", "lengths", "shared_memory_region", "x"]
        of["parameters"] = {draw.choice(names): draw.choice(VALUES)}
    if draw.random() < 0.15:
        of["outputs"] = [{"name": draw.choice(["y", "scores", *VALUES]), "parameters": draw.choice([{"binary_data": v} for v in VALUES] + VALUES)}]
    version = draw.choice(["", "", "", "/versions/1", f"/versions/{quote(str(draw.choice(VALUES))[:80], safe='', errors='replace')}"])
    way = draw.choice(["infer"] * 8 + ["generate", "generate_stream", "ready", "x"])
    body = json.dumps(of).replace('"HUGE"', "1e999").encode()
    headers: dict[str, str] = {}
    if draw.random() < 0.2:
        headers["Inference-Header-Content-Length"] = str(draw.choice([len(body), len(body), len(body) - 1, *NUMBERS, "x", ""]))
        body += bytes(draw.choice([0, 4, 16, 24, 768]))
    if draw.random() < 0.03:
        headers["Content-Encoding"] = draw.choice(["gzip", "deflate", "br", ""])
    return draw.choice(["POST"] * 9 + ["GET"]), f"/v2/models/{model}{version}/{way}", body, headers


def ask_all(server: BackgroundServer, seed: int, count: int) -> list[int]:
    draw, seen, connection = random.Random(seed), list[int](), HTTPConnection(server.address, timeout=60)
    for _ in range(count):
        method, path, body, headers = a_request(draw)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read()
        seen.append(response.status)
        what = (method, path, body[:600], headers, response.status, text[:300])
        assert 200 <= response.status < 500 or response.status in (503, 504), what
        if response.status >= 400:
            words = json.loads(text)["error"]
            assert isinstance(words, str) and len(words) > 10, what
    return seen


def test_any_value_in_a_request_is_answered_in_words(served: BackgroundServer) -> None:
    seen = ask_all(served, 0, 400)
    assert {200, 400, 404, 422} <= {*seen}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 9))
def test_any_value_in_many_requests_is_answered_in_words(served: BackgroundServer, seed: int) -> None:
    ask_all(served, seed, 5000)
