"""Triton's client talks with the server, and gets what the networks give."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.asked import ask, infer, tensor

pytest.importorskip("fastapi", reason="the extra serve")

import foreshape as fs

http = pytest.importorskip("tritonclient.http")


def given(name: str, array: Any, datatype: str, binary: bool) -> Any:
    return http.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array, binary_data=binary)


@pytest.fixture(scope="module")
def client(served: Any) -> Any:
    return http.InferenceServerClient(served.address)


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("images") and client.is_model_ready("images", "1")
    assert not client.is_model_ready("images", "2") and not client.is_model_ready("nothing")
    assert client.get_server_metadata()["name"] == "foreshape"
    assert [(m["name"], m["state"]) for m in client.get_model_repository_index()] == [(n, "READY") for n in ("images", "texts", "together", "types")]
    found = client.get_model_metadata("images")
    assert found["versions"] == ["1"] and found["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [-1, 3, -1, -1], "parameters": {"dims": ["batch", 3, "height", "width"]}}
    ]
    assert found["outputs"][0] == {"name": "scores", "datatype": "FP32", "shape": [-1, 5], "parameters": {"dims": ["batch", 5]}}
    assert "multiples of 8" in found["parameters"]["conditions"]["height"] and found["parameters"]["batched"]
    (words,) = client.get_model_metadata("texts")["inputs"]
    assert words["shape"] == [-1] and words["parameters"] == {"dims": ["words"], "lengths": ["batch"]}
    assert not client.get_model_metadata("together")["parameters"]["batched"]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("packed", [None, "gzip", "deflate"])
def test_a_network_answers_as_it_does_here(client: Any, models: Path, binary: bool, packed: str | None) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 24)).astype("float32")
    want = fs.load_inference_model(models / "images", scope=fs.Scope()).run(x)
    outputs = None if binary else [http.InferRequestedOutput("map", binary_data=False), http.InferRequestedOutput("scores", binary_data=True)]
    found = client.infer("images", [given("image", x, "FP32", binary)], outputs=outputs, request_id="a7", request_compression_algorithm=packed)
    for name in ("scores", "map"):
        np.testing.assert_allclose(found.as_numpy(name), want[name], rtol=2e-5, atol=2e-6)
    assert found.get_response()["id"] == "a7" and found.get_response()["model_version"] == "1"


def test_each_element_type_comes_back(client: Any) -> None:
    fractions, whole = np.array([[0.5, -2.0, 3.0]]), np.array([[0, 1, 5]])
    types = {
        "fp16": "FP16",
        "bf16": "BF16",
        "fp32": "FP32",
        "fp64": "FP64",
        "bool": "BOOL",
        **{k: k.upper() for k in ("uint8", "int8", "int16", "int32", "int64")},
    }
    arrays = {
        k: (fractions if t[:1] in "FB" and k != "bool" else whole).astype({"fp16": "f2", "bf16": "f4", "fp32": "f4", "fp64": "f8"}.get(k, k))
        for k, t in types.items()
    }
    for binary in (True, False):
        inputs = [given(f"x_{k}", arrays[k], t, binary or t in ("FP16", "BF16")) for k, t in types.items()]
        outputs = [http.InferRequestedOutput(f"y_{k}", binary_data=binary or t in ("FP16", "BF16")) for k, t in types.items()]
        found = client.infer("types", inputs, outputs=outputs)
        for k, array in arrays.items():
            assert np.array_equal(found.as_numpy(f"y_{k}"), array), k
            assert found.get_output(f"y_{k}")["datatype"] == types[k]


def test_ragged_texts_stand_behind_one_another(client: Any, served: Any, models: Path) -> None:
    texts = fs.LoDTensor(np.arange(9), [[4, 0, 5]])
    want = fs.load_inference_model(models / "texts", scope=fs.Scope()).run({"words": texts})
    for found in (
        infer(served.address, "texts", [tensor("words", texts.data, "INT64", lengths=[4, 0, 5])]).json,
        client.infer("texts", [given("words", texts.data, "INT64", True)], parameters={"lengths": {"words": [4, 0, 5]}}).get_response(),
    ):
        by_name = {one["name"]: one for one in found["outputs"]}
        assert by_name["text"]["shape"] == [3, 8] and by_name["rows"]["shape"] == [9, 8] and by_name["rows"]["parameters"]["lengths"] == [4, 0, 5]
    alone = infer(served.address, "texts", [tensor("words", texts.data[:4], "INT64")], outputs=[{"name": "text"}]).json
    np.testing.assert_allclose(alone["outputs"][0]["data"], want["text"][0], rtol=1e-5, atol=1e-6)


def test_pages_and_figures(served: Any) -> None:
    start = ask(served.address, "GET", "/")
    assert start.status == 200 and b'href="/models/images/1"' in start.body
    assert b"reduce_mean" in ask(served.address, "GET", "/models/images/1").body
    infer(served.address, "texts", [tensor("words", [1, 2], "INT64")])
    figures = ask(served.address, "GET", "/metrics").body.decode()
    assert 'foreshape_requests_total{route="/v2/models/{model}/infer",status="200"}' in figures
    assert 'foreshape_batch_examples_count{model="texts",version="1"}' in figures and "foreshape_open_requests 0.0" in figures
    assert {"/v2/models/{model}", "/v2/health/ready"} <= json.loads(ask(served.address, "GET", "/openapi.json").body)["paths"].keys()


IMAGE = tensor("image", np.zeros((1, 3, 8, 8)))
BYTES = {"name": "image", "shape": [1, 3, 8, 8], "datatype": "FP32", "parameters": {"binary_data_size": 768}}
REFUSED: dict[str, tuple[int, str, Any]] = {
    "no JSON": (400, "is no JSON", b"{"),
    "no UTF-8": (400, "is no JSON", b'{"id": "\xff", "inputs": []}'),
    "NaN": (400, "NaN, which is no JSON", b'{"inputs": [NaN]}'),
    "deep": (400, "nested too deeply", b'{"x":' + b"[" * 100_000),
    "no object": (400, "must be a JSON object", b"[]"),
    "no inputs": (400, "inputs must be a list of tensors; it is missing, or", {}),
    "no type": (400, "image: its datatype is missing: FP32", {"inputs": [{k: v for k, v in IMAGE.items() if k != "datatype"}]}),
    "no list": (400, "inputs must be a list", {"inputs": 3}),
    "nothing sent": (400, "the input image is missing: FP32 ['batch', 3, 'height', 'width']", {"inputs": []}),
    "unknown input": (400, "no input 'picture'; it has image", {"inputs": [{**IMAGE, "name": "picture"}]}),
    "twice": (400, "given twice", {"inputs": [IMAGE, IMAGE]}),
    "no name": (400, "must have a name", {"inputs": [{"shape": [1]}]}),
    "unknown type": (400, "datatype must be one of BOOL", {"inputs": [{**IMAGE, "datatype": "FLOAT"}]}),
    "list as type": (400, "datatype must be one of BOOL", {"inputs": [{**IMAGE, "datatype": ["FP32"]}]}),
    "another type": (400, "sent is INT64: convert it before, as by numpy's astype('float32')", {"inputs": [{**IMAGE, "datatype": "INT64"}]}),
    "a wider type": (400, "image is FP32; sent is FP64: convert it", {"inputs": [{**IMAGE, "datatype": "FP64"}]}),
    "texts": (400, "datatype must be one of BOOL", {"inputs": [{**IMAGE, "shape": [1], "datatype": "BYTES", "data": ["a"]}]}),
    "a text": (400, "an element of data is a text, which FP32 does not have", {"inputs": [{**IMAGE, "data": ["1"] * 192}]}),
    "a truth value": (400, "an element of data is true or false", {"inputs": [{**IMAGE, "data": [True] + [0.0] * 191}]}),
    "an object": (400, "an element of data is an object", {"inputs": [{**IMAGE, "data": [{}] * 192}]}),
    "null": (400, "an element of data is null", {"inputs": [{**IMAGE, "data": [None] * 192}]}),
    "too large a number": (400, "past the range of FP32", {"inputs": [{**IMAGE, "data": [1e300] * 192}]}),
    "far too large a number": (400, "past the range of FP32", {"inputs": [{**IMAGE, "data": [10**400] * 192}]}),
    "infinity": (400, "past the range of FP32", json.dumps({"inputs": [{**IMAGE, "data": [7.25] * 192}]}).replace("7.25", "1e999").encode()),
    "too few": (400, "data must have 192 elements, of shape [1, 3, 8, 8]; there are 3", {"inputs": [{**IMAGE, "data": [1, 2, 3]}]}),
    "wrongly nested": (400, "nested as shape [1, 3, 8, 8] says", {"inputs": [{**IMAGE, "data": [[1.0] * 192]}]}),
    "no shape": (400, "shape must be a list", {"inputs": [{**IMAGE, "shape": None}]}),
    "shape of truth": (400, "shape must be a list", {"inputs": [{**IMAGE, "shape": [True, 3, 8, 8]}]}),
    "negative": (400, "a dim that is negative", {"inputs": [{**IMAGE, "shape": [-1, 3, 8, 8]}]}),
    "overflow": (400, "more elements than there can be", {"inputs": [{**IMAGE, "shape": [2**32, 2**32]}]}),
    "overflow beside 0": (400, "more elements than there can be", {"inputs": [{**IMAGE, "shape": [2**40, 2**40, 0], "data": []}]}),
    "many dims": (400, "at most 32 whole numbers", {"inputs": [{**IMAGE, "shape": [1] * 100}]}),
    "fp16": (400, "image is FP32; sent is FP16", {"inputs": [{**IMAGE, "datatype": "FP16"}]}),
    "no data": (400, "neither data nor a binary_data_size", {"inputs": [{k: v for k, v in IMAGE.items() if k != "data"}]}),
    "lengths of a dense one": (400, "image is dense, and has no lengths", {"inputs": [{**IMAGE, "parameters": {"lengths": [1]}}]}),
    "lengths of nothing": (400, "lengths are given of 'words'", {"inputs": [IMAGE], "parameters": {"lengths": {"words": [1]}}}),
    "shared memory": (400, "shared memory is not supported", {"inputs": [{**IMAGE, "parameters": {"shared_memory_region": "a"}}]}),
    "classification": (400, "classification is not supported", {"inputs": [IMAGE], "outputs": [{"name": "scores", "parameters": {"classification": 3}}]}),
    "unknown result": (400, "gives no result 'labels'; it gives scores, map", {"inputs": [IMAGE], "outputs": [{"name": "labels"}]}),
    "a sequence": (400, "sequence_id", {"inputs": [IMAGE], "parameters": {"sequence_id": 4}}),
    "truncated": (400, "binary_data_size is 768, and 700 bytes are left", (BYTES, bytes(700))),
    "too many bytes": (400, "8 bytes follow the binary data", (BYTES, bytes(776))),
    "wrong size of bytes": (400, "FP32 of shape [1, 3, 8, 8] has 768 bytes; there are 700", ({**BYTES, "parameters": {"binary_data_size": 700}}, bytes(700))),
    "negative bytes": (400, "binary_data_size is -1", ({**BYTES, "parameters": {"binary_data_size": -1}}, b"")),
    "both": (400, "both data and a binary_data_size", ({**BYTES, "data": []}, bytes(768))),
    "wrong rank": (422, "image must have 4 dims", {"inputs": [tensor("image", np.zeros((3, 8, 8)))]}),
    "wrong channels": (422, "dim 1 must be 3, not 1", {"inputs": [tensor("image", np.zeros((1, 1, 8, 8)))]}),
}  # fmt: skip


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_request_is_refused_in_words(served: Any, case: str) -> None:
    status, words, sent = REFUSED[case]
    headers: dict[str, str] = {}
    if isinstance(sent, tuple):
        head = json.dumps({"inputs": [sent[0]]}).encode()
        headers, sent = {"Inference-Header-Content-Length": str(len(head))}, head + sent[1]
    body = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    found = ask(served.address, "POST", "/v2/models/images/infer", body, headers)
    assert found.status == status and words in found.json["error"], found


def test_wrong_heads_and_paths_are_refused_in_words(served: Any) -> None:
    body = json.dumps({"inputs": [IMAGE]}).encode()
    for length in ("x", "-1", "0", str(len(body) + 1), "9" * 30):
        found = ask(served.address, "POST", "/v2/models/images/infer", body, {"Inference-Header-Content-Length": length})
        assert found.status == 400 and "must be the number of bytes of JSON" in found.json["error"]
    found = ask(served.address, "POST", "/v2/models/images/infer", body, {"Content-Encoding": "br"})
    assert found.status == 415 and "gzip or deflate" in found.json["error"]
    for packed in (body, gzip.compress(body)[:-6]):
        assert ask(served.address, "POST", "/v2/models/images/infer", packed, {"Content-Encoding": "gzip"}).status == 400
    for method, path, status in (
        ("POST", "/v2/models/nothing/infer", 404),
        ("POST", "/v2/models/images/versions/2/infer", 404),
        ("GET", "/v2/models/..%2f..%2fetc", 404),
        ("GET", "/nothing", 404),
        ("GET", "/v2/models/images/infer", 405),
        ("POST", "/v2/repository/models/images/load", 400),
    ):
        found = ask(served.address, method, path, b"{}" if method == "POST" else None)
        assert found.status == status and found.json["error"], path


def test_a_wrong_size_is_told_with_the_nearest_ones(served: Any) -> None:
    found = infer(served.address, "images", [tensor("image", np.zeros((1, 3, 66, 50)))])
    assert found.status == 422 and found.json["nearest"] == {"image": [1, 3, 64, 48]}
    assert "multiples of 8" in found.json["takes"][0]
    again = infer(served.address, "images", [tensor("image", np.zeros(found.json["nearest"]["image"]))])
    assert again.status == 200


def test_a_value_out_of_range_is_the_fault_of_its_request(served: Any) -> None:
    found = infer(served.address, "texts", [tensor("words", [1, 999], "INT64")])
    assert found.status == 422 and "999" in found.json["error"]


def test_results_without_a_form_in_json_come_as_bytes(served: Any) -> None:
    x = np.full((2, 4), 3e38, "float32")
    asked = [tensor("x", x)]
    found = infer(served.address, "together", asked)
    assert found.status == 422 and "ask for it with" in found.json["error"]
    found = infer(served.address, "together", asked, parameters={"binary_data_output": True})
    head = int(found.headers["inference-header-content-length"])
    assert found.status == 200 and not np.isfinite(np.frombuffer(found.body[head:], "float32")).all()
