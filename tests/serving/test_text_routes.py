"""Embedders and rerankers over HTTP: OpenAI's vectors, scores in the shapes of three services, and tokens; many clients together, and wrong requests."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.asked import Answer, ask
from support.waiting import until

pytest.importorskip("fastapi", reason="the extra serve")
pytest.importorskip("tokenizers", reason="the extra embed")

sys.path.append(str(Path(__file__).parents[1] / "embedding"))
from model_folders import write_model, write_tokenizer
from test_encoders import write_folder

import foreshape as fs
from foreshape import layer
from foreshape.apps.embedding.memory_bound import MemoryBound
from foreshape.apps.embedding.text_network import TextNetwork
from foreshape.apps.serving.served_embedder import Embedders
from foreshape.apps.serving.served_network import Networks
from foreshape.apps.serving.server import BackgroundServer
from foreshape.apps.serving.server_limits import ServerLimits

TEXTS = ["the ship left the harbour", "a", "one two three " * 12, "dawn", "A ship"]
PROMPTS = {"prompts": {"query": "query : "}, "default_prompt_name": None}


def write_reranker(folder: Path) -> Path:
    write_folder(folder, "BertForSequenceClassification", id2label={"0": "score"})
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("texts")
    write_model(out / "vectors", {"pooling_mode": "mean", "include_prompt": False}, texts=PROMPTS)
    write_reranker(out / "scores")
    return out


@pytest.fixture(scope="module")
def server(folders: Path) -> Iterator[BackgroundServer]:
    with BackgroundServer([str(folders)], watch=False) as server:
        yield server


def post(server: BackgroundServer, path: str, **fields: Any) -> Answer:
    return ask(server.address, "POST", path, json.dumps(fields).encode())


def vectors(answer: Answer) -> np.ndarray:
    assert answer.status == 200, answer
    entries = answer.json["data"]
    assert [e["index"] for e in entries] == list(range(len(entries))) and all(e["object"] == "embedding" for e in entries)
    return np.array([np.frombuffer(base64.b64decode(e["embedding"]), "<f4") if isinstance(e["embedding"], str) else e["embedding"] for e in entries])


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_vectors_are_those_of_the_embedder_in_each_form(server: BackgroundServer, folders: Path) -> None:
    model = fs.Embedder(folders / "vectors")
    expected = model.encode(TEXTS)
    answer = post(server, "/v1/embeddings", model="vectors", input=TEXTS, user="someone")
    close(vectors(answer), expected)
    tokens = [[t["id"] for t in entry] for entry in post(server, "/tokenize", model="vectors", inputs=TEXTS).json]
    count = sum(map(len, tokens))
    assert answer.json["usage"] == {"prompt_tokens": count, "total_tokens": count} and answer.json["model"] == "vectors"
    close(vectors(post(server, "/v1/embeddings", input=tokens)), expected)
    close(vectors(post(server, "/v1/embeddings", input=tokens[0])), expected[:1])
    close(vectors(post(server, "/v1/embeddings", input=TEXTS[0], encoding_format="base64")), expected[:1])
    close(vectors(post(server, "/v1/embeddings", input=TEXTS, normalize=True)), model.encode(TEXTS, normalize=True))
    close(vectors(post(server, "/v1/embeddings", input=TEXTS, dimensions=5)), model.encode(TEXTS, dims=5, normalize=True))
    close(vectors(post(server, "/v1/embeddings", input=TEXTS, dimensions=5, normalize=False)), expected[:, :5])
    close(vectors(post(server, "/v1/embeddings", input=TEXTS, prompt_name="query")), model.encode(TEXTS, prompt_name="query"))
    many = [text for k in range(300) for text in (TEXTS[k % 5], " ".join(["ship"] * (k % 25 + 1)))]
    close(vectors(post(server, "/v1/embeddings", input=many, encoding_format="base64")), model.encode(many))


def test_scores_come_in_the_shapes_of_each_service(server: BackgroundServer, folders: Path) -> None:
    model, query = fs.Embedder(folders / "scores"), "the ship"
    scores, raw = (model.predict([(query, text) for text in TEXTS], raw=raw) for raw in (False, True))
    order = model.rank(query, TEXTS)
    entries = post(server, "/rerank", query=query, texts=TEXTS, return_text=True).json
    assert [e["index"] for e in entries] == order and [e["text"] for e in entries] == [TEXTS[i] for i in order]
    close([e["score"] for e in entries], scores[order])
    assert "text" not in post(server, "/rerank", query=query, texts=TEXTS).json[0]
    close([e["score"] for e in post(server, "/rerank", query=query, texts=TEXTS, raw_scores=True).json], raw[order])
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        documents = [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]]
        answer = post(server, path, model="scores", query=query, documents=documents, top_n=2, return_documents=True).json
        assert [e["document"]["text"] for e in answer["results"]] == [TEXTS[i] for i in order[:2]] and answer["usage"]["total_tokens"] > 20
        close([e["relevance_score"] for e in answer["results"]], scores[order[:2]])


def test_tokens_tell_their_places(server: BackgroundServer) -> None:
    (tokens,) = post(server, "/tokenize", model="vectors", inputs="the  ship").json
    assert [(t["text"], t["special"], t["start"], t["stop"]) for t in tokens] == [
        ("[CLS]", True, None, None), ("the", False, 0, 3), ("ship", False, 5, 9), ("[SEP]", True, None, None),
    ]  # fmt: skip
    (plain,) = post(server, "/tokenize", model="vectors", inputs=["the  ship"], add_special_tokens=False).json
    assert plain == tokens[1:3]
    (prompted,) = post(server, "/tokenize", model="vectors", inputs=["ship"], prompt_name="query").json
    assert [t["text"] for t in prompted] == ["[CLS]", "query", ":", "ship", "[SEP]"]


def test_models_are_listed_and_described(server: BackgroundServer) -> None:
    entries = ask(server.address, "GET", "/v1/models").json["data"]
    assert [e["id"] for e in entries] == ["scores", "vectors"] and entries[0]["object"] == "model" and entries[0]["created"] > 1e9
    assert ask(server.address, "GET", "/v1/models/vectors").json == entries[1]
    assert ask(server.address, "GET", "/v1/models/nothing").json["error"]["code"] == "model_not_found"
    about = ask(server.address, "GET", "/v2/models/vectors").json
    assert about["outputs"][0]["shape"] == [-1, 16] and about["parameters"]["max_length"] == 30 and about["parameters"]["prompts"] == ["query"]
    assert ask(server.address, "GET", "/v2/models/scores").json["outputs"][0]["name"] == "score"
    refused = ask(server.address, "POST", "/v2/models/vectors/infer", b'{"inputs": []}')
    assert refused.status == 400 and "/v1/embeddings" in refused.json["error"]
    assert ask(server.address, "GET", "/models/vectors/1").status == 200


class Held:
    """The computation of an embedder, which waits to be let go; ``joined`` has the lengths of the texts of each batch."""

    def __init__(self, server: BackgroundServer, name: str, patch: pytest.MonkeyPatch) -> None:
        served: Any = server.service.repository.find(name)[0]
        self.served, self.run, self.go, self.began = served, served._runs[None], threading.Event(), threading.Event()
        self.joined = list[list[int]]()
        patch.setitem(served._runs, None, self.run._replace(compute=self.compute))

    def compute(self, texts: Any) -> Any:
        self.joined.append([len(text.ids) for text in texts])
        self.began.set()
        assert self.go.wait(60)
        return self.run.compute(texts)


def test_clients_at_the_same_time_are_joined_without_padding(server: BackgroundServer, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(server, "vectors", monkeypatch)
    monkeypatch.setattr(held.served._queue, "_is_short", lambda: False)  # its own thread runs the batch, so that the server goes on
    sentences = ["ship " * n for n in range(1, 9)]
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(post, server, "/v1/embeddings", input="a")
        assert held.began.wait(60)
        others = [pool.submit(post, server, "/v1/embeddings", input=text) for text in sentences]
        until(lambda: held.served.waiting() == 8)
        held.go.set()
        answers = [vectors(f.result(60)) for f in (first, *others)]
    assert held.joined[0] == [3] and sorted(held.joined[1]) == list(range(3, 11))
    close(np.concatenate(answers), fs.Embedder(folders / "vectors").encode(["a", *sentences]))


def test_a_large_request_lets_others_in_between(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(server, "vectors", monkeypatch)
    monkeypatch.setattr(held.served._queue, "_is_short", lambda: False)
    with ThreadPoolExecutor(2) as pool:
        large = pool.submit(post, server, "/v1/embeddings", input=["ship " * 20] * 470)  # 22 tokens each
        until(lambda: held.served.waiting() == 1)
        small = pool.submit(post, server, "/v1/embeddings", input="a")
        until(lambda: held.served.waiting() == 2)
        held.go.set()
        assert len(vectors(large.result(60))) == 470 and len(vectors(small.result(60))) == 1
    embedder = held.served._embedder
    limit = embedder._network.batch_rows(embedder._vector(False))
    assert sum(map(len, held.joined)) == 471 and max(map(sum, held.joined)) <= limit and next(i for i, part in enumerate(held.joined) if 3 in part) <= 2


@pytest.mark.long_cases("fields18-413-2,048 texts; it has 1,000,000")
@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({}, 400, "input is missing"),
        ({"input": 1}, 400, "input must be a text, a list of texts, a list of tokens"),
        ({"input": {"a": "b"}}, 400, "input must be"),
        ({"input": None}, 400, "input must be"),
        ({"input": [None]}, 400, "input must be"),
        ({"input": []}, 400, "at least one text"),
        ({"input": ""}, 400, "empty text"),
        ({"input": ["a", ""]}, 400, "empty text, at place 1"),
        ({"input": [[]]}, 400, "empty text"),
        ({"input": ["a", 1]}, 400, "input[1] must be a text"),
        ({"input": [1, "a"]}, 400, "input[1] must be a whole number"),
        ({"input": [[1], ["a"]]}, 400, "input[1][0] must be a whole number"),
        ({"input": [1.5]}, 400, "whole number"),
        ({"input": [99]}, 400, "must be in [0, 60)"),
        ({"input": [-1]}, 400, "0 or more"),
        ({"input": [10**30]}, 400, "0 or more"),
        ({"input": [1] * 31}, 400, "1 to 30 tokens; this one has 31"),
        ({"input": ["a"] * 1_000_000}, 413, "2,048 texts; it has 1,000,000"),
        ({"input": [[1]] * 1_000_000}, 413, "2,048 texts; it has 1,000,000"),
        ({"input": "a " * 5_000_000}, 413, "7,500 characters, and this one has 10,000,000"),
        ({"input": "a", "model": "x"}, 404, "no model 'x'"),
        ({"input": "a", "model": "scores"}, 404, "no model 'scores' for this"),
        ({"input": "a", "model": 1}, 400, "model must be a text"),
        ({"input": "a", "dimensions": 17}, 400, "from 1 to 16"),
        ({"input": "a", "dimensions": 0}, 400, "from 1 to 16"),
        ({"input": "a", "dimensions": True}, 400, "dimensions must be a whole number"),
        ({"input": "a", "encoding_format": "hex"}, 400, "float or base64"),
        ({"input": "a", "prompt_name": "x"}, 400, "there are query"),
    ],
)
def test_wrong_requests_for_vectors_are_refused_in_openais_form(server: BackgroundServer, fields: Any, status: int, words: str) -> None:
    answer = post(server, "/v1/embeddings", **fields)
    error = answer.json["error"]
    assert answer.status == status and words in error["message"] and len(answer.body) < 400, answer
    assert error["type"] == "invalid_request_error" and error["code"] == ("model_not_found" if status == 404 else None)
    assert error["param"] is None or error["message"].startswith(error["param"])


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"input": "\\ud800"}', b'{"input": ["a\\ud800b"]}', b'{"input": ' + b"[" * 100_000, b'{"input": NaN}']
)
def test_bodies_that_are_no_request_are_refused(server: BackgroundServer, body: bytes) -> None:
    for path in ("/v1/embeddings", "/rerank", "/tokenize"):
        answer = ask(server.address, "POST", path, body.replace(b"input", b"inputs") if path == "/tokenize" else body)
        assert answer.status == 400 and answer.json["error"], answer


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({}, 400, "documents, or texts"),
        ({"query": "a"}, 400, "documents, or texts"),
        ({"query": "a", "texts": ["b"], "documents": ["b"]}, 400, "documents, or texts"),
        ({"texts": ["b"]}, 400, "query must be"),
        ({"query": "", "texts": ["b"]}, 400, "query must be"),
        ({"query": ["a"], "texts": ["b"]}, 400, "query must be a text"),
        ({"query": "a", "texts": []}, 400, "at least one text"),
        ({"query": "a", "texts": [""]}, 400, "empty text"),
        ({"query": "a", "documents": [{"text": ""}]}, 400, "empty text"),
        ({"query": "a", "documents": [{"title": "b"}]}, 400, "documents"),
        ({"query": "a", "documents": "b"}, 400, "documents must be a list"),
        ({"query": "a", "documents": [1]}, 400, "documents[0] must be a text"),
        ({"query": "a", "documents": ["b"] * 3000}, 413, "2,048 texts"),
        ({"query": "a" * 8000, "texts": ["b"]}, 413, "7,500 characters"),
        ({"query": "a", "texts": ["b"], "top_n": 0}, 400, "top_n must be at least 1"),
        ({"query": "a", "texts": ["b"], "raw_scores": 1}, 400, "raw_scores must be true or false"),
        ({"query": "a", "texts": ["b"], "truncate": False}, 400, "truncate"),
        ({"query": "a", "texts": ["b"], "model": "vectors"}, 404, "no model 'vectors' for this"),
    ],
)
def test_wrong_requests_for_scores_are_refused(server: BackgroundServer, fields: Any, status: int, words: str) -> None:
    answer = post(server, "/rerank", **fields)
    assert answer.status == status and words in answer.json["error"] and len(answer.body) < 300, answer


def test_other_methods_and_missing_models_are_refused(server: BackgroundServer, folders: Path) -> None:
    assert ask(server.address, "GET", "/v1/embeddings").status == ask(server.address, "POST", "/v1/models", b"{}").status == 405
    assert ask(server.address, "GET", "/v1/embeddings").json["error"]["type"] == "invalid_request_error"
    answer = post(server, "/tokenize", inputs="a")
    assert answer.status == 400 and "scores, vectors" in answer.json["error"]
    with BackgroundServer([str(folders / "vectors")], watch=False) as alone:
        answer = post(alone, "/rerank", query="a", texts=["b"])
        assert answer.status == 404 and answer.json["error"] == "no reranker is served"


def test_the_figures_name_the_model_its_texts_tokens_and_waits(folders: Path) -> None:
    with BackgroundServer([str(folders)], watch=False) as server:
        assert post(server, "/v1/embeddings", input=["the ship", "a"]).status == 200
        assert post(server, "/rerank", query="the ship", texts=["a"] * 3).status == 200
        assert post(server, "/v1/embeddings", input="").status == 400
        figures = ask(server.address, "GET", "/metrics").body.decode().splitlines()
    for line in (
        'foreshape_batch_examples_sum{model="vectors",version="1"} 2.0',
        'foreshape_tokens_total{model="vectors",version="1"} 7.0',
        'foreshape_queue_seconds_count{model="vectors",version="1"} 1.0',
        'foreshape_batch_examples_sum{model="scores",version="1"} 3.0',
        'foreshape_tokens_total{model="scores",version="1"} 18.0',
        'foreshape_model_requests_total{model="vectors",status="200",version="1"} 1.0',
        'foreshape_model_requests_total{model="vectors",status="400",version="1"} 1.0',
        'foreshape_requests_total{route="/rerank",status="200"} 1.0',
    ):
        assert line in figures, line


def test_a_text_that_does_not_fit_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "open", {"pooling_mode": "mean"}, case="T5EncoderModel", tokenizer={"tokenizer_class": "T5Tokenizer", "model_max_length": 10**30})
    embedder = fs.Embedder(tmp_path / "open")
    assert embedder.max_length is None
    monkeypatch.setattr(TextNetwork, "nbytes_of_run", lambda network, variable, texts, rows, longest, skipped=0: longest)
    monkeypatch.setattr(MemoryBound, "has_room", lambda bound, nbytes: nbytes <= 200)
    monkeypatch.setattr(MemoryBound, "require", lambda bound, nbytes, subject: None)
    with BackgroundServer([str(tmp_path / "open")], ServerLimits(memory=1 << 40), watch=False) as server:
        expected = embedder.encode(["ship " * 100])
        close(vectors(post(server, "/v1/embeddings", input="ship " * 100)), expected)
        answer = post(server, "/v1/embeddings", input=["ship " * 100, "ship " * 2000])
        assert answer.status == 413 and "has 2,002 words; they take about" in answer.json["error"]["message"]
        close(vectors(post(server, "/v1/embeddings", input=["ship " * 100] * 9))[8:], expected)


def test_a_full_queue_and_a_late_answer_are_told(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BackgroundServer([str(folders / "vectors")], ServerLimits(queue=1, seconds=1.0), watch=False) as server:
        held = Held(server, "vectors", monkeypatch)
        monkeypatch.setattr(held.served._queue, "_is_short", lambda: False)
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(post, server, "/v1/embeddings", input="a")
            assert held.began.wait(60)
            second = pool.submit(post, server, "/v1/embeddings", input="a")
            until(lambda: held.served.waiting() == 1)
            full = post(server, "/v1/embeddings", input="a")
            assert full.status == 503 and full.headers["retry-after"] == "1" and full.json["error"]["type"] == "server_error"
            assert first.result(60).status == second.result(60).status == 504
            held.go.set()
        until(lambda: held.served.waiting() == 0 and server.service.pending == 0)


def test_an_onnx_file_with_its_tokenizer_is_an_embedder(tmp_path: Path) -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        ids, mask = (layer.data(name, ["batch", "time"], dtype="int64") for name in ("input_ids", "attention_mask"))
        weights = layer.cast(mask, "float32")
        total = layer.reduce_sum(layer.embedding(ids, [60, 8]) * layer.unsqueeze(weights, [2]), 1)
        fs.Executor(seed=3).run(fs.default_startup_program())
        fs.save_onnx(tmp_path / "small.onnx", [ids, mask], {"vector": total / layer.clip(layer.reduce_sum(weights, 1, keepdim=True), 1e-9, 1e9)})
    assert Networks().finds(str(tmp_path / "small.onnx")) and not Embedders(Networks()).finds(str(tmp_path / "small.onnx"))
    write_tokenizer(tmp_path)
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", ["batch", 4])
        fs.save_onnx(tmp_path / "scale.onnx", [x], {"y": layer.scale(x, 2.0)})
    with BackgroundServer([str(tmp_path)], watch=False) as server:
        close(vectors(post(server, "/v1/embeddings", input=TEXTS)), fs.Embedder(tmp_path / "small.onnx").encode(TEXTS))
        assert [e["id"] for e in ask(server.address, "GET", "/v1/models").json["data"]] == ["small"]
        notes = ask(server.address, "GET", "/v2/models/scale").json["parameters"]["notes"]
        assert any("served as a network, and not as an embedder" in note for note in notes)


def test_a_language_model_is_no_embedder(tmp_path: Path) -> None:
    kinds = Embedders(Networks())
    for model_type, names, is_embedder in (
        ("qwen3", ["Qwen3ForCausalLM"], False),
        ("qwen3", ["Qwen3Model"], True),
        ("llama", ["LlamaModel"], False),
        ("bert", None, False),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": names}))
        assert kinds.finds(str(tmp_path)) == is_embedder
    (tmp_path / "config.json").write_text("{")
    assert not kinds.finds(str(tmp_path))
    (tmp_path / "modules.json").write_text("[]")
    assert kinds.fills(str(tmp_path))


def test_openais_client_works_unchanged(server: BackgroundServer, folders: Path) -> None:
    openai = pytest.importorskip("openai", reason="make adapters has it")
    client = openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0)
    answer = client.embeddings.create(model="vectors", input=TEXTS)  # in base64, unless it is told otherwise
    close([entry.embedding for entry in answer.data], fs.Embedder(folders / "vectors").encode(TEXTS))
    assert len(client.embeddings.create(model="vectors", input="a", dimensions=4, encoding_format="float").data[0].embedding) == 4
    assert [m.id for m in client.models.list()] == ["scores", "vectors"] and client.models.retrieve("vectors").owned_by == "foreshape"
    with pytest.raises(openai.BadRequestError, match="empty text"):
        client.embeddings.create(model="vectors", input="")
    with pytest.raises(openai.NotFoundError, match="no model 'x'"):
        client.embeddings.create(model="x", input="a")
