"""Texts of language models over HTTP: whole ones and word by word, many at a time, of clients that stay or go away."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from support.asked import Answer, ask, infer, save_scale, tensor
from support.waiting import until

pytest.importorskip("fastapi", reason="the extra serve")
import torch

import foreshape as fs
from foreshape.apps.serving.served_writer import LanguageModels
from foreshape.apps.serving.server import BackgroundServer
from foreshape.apps.serving.server_limits import ServerLimits

LLAMA = Path(__file__).parents[1] / "generation" / "data" / "llama"
TOLD = json.loads((LLAMA / "texts.json").read_text())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    scale = tmp_path_factory.mktemp("scale") / "m"
    save_scale(scale, 2.0)
    with BackgroundServer([f"m={scale}", f"llama={LLAMA}"], ServerLimits(queue=20), kinds=None, watch=False) as server:
        yield server


def written(server: BackgroundServer, prompt: Any, way: str = "generate", **parameters: Any) -> Answer:
    return ask(server.address, "POST", f"/v2/models/llama/{way}", json.dumps({"id": "a", "input_ids": prompt, "parameters": parameters}).encode())


def events_of(answer: Answer) -> list[Any]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = answer.body.decode().split("\n\n")
    assert parts.pop() == "" and all(p.startswith("data: ") for p in parts)
    return [json.loads(p.removeprefix("data: ")) for p in parts]


def test_texts_are_those_of_transformers_whole_and_word_by_word(server: BackgroundServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        whole = list(pool.map(lambda p: written(server, p, max_tokens=16), TOLD["prompts"]))
        streams = list(pool.map(lambda p: events_of(written(server, p, "generate_stream", max_tokens=16)), TOLD["prompts"]))
    assert [a.json["output_ids"] for a in whole] == TOLD["greedy"]
    assert [[w for e in events for w in e["output_ids"]] for events in streams] == TOLD["greedy"]
    assert whole[0].json["id"] == "a" and whole[0].json["model_name"] == "llama" and whole[0].json["model_version"] == "1"
    for answer, events, words in zip(whole, streams, TOLD["greedy"], strict=True):
        reason = "length" if len(words) == 16 else "end"
        assert answer.json["finish_reason"] == events[-1]["finish_reason"] == reason
        assert len(events) == len(words) and not any("finish_reason" in e for e in events[:-1])


def test_settings_are_those_of_the_writer(server: BackgroundServer) -> None:
    prompt, words = TOLD["prompts"][0], TOLD["greedy"][0]
    drawn = [written(server, prompt, max_tokens=8, temperature=0.9, top_k=12, top_p=0.95, seed=s).json["output_ids"] for s in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    model = fs.language_model(LLAMA)
    assert drawn[0] == fs.generate(model, [prompt], 8, temperature=0.9, top_k=12, top_p=0.95, seed=3)[0]
    stopped = written(server, prompt, max_tokens=8, stop=[words[2:4]]).json
    assert stopped["output_ids"] == words[:2] and stopped["finish_reason"] == "stop"
    beams = written(server, prompt, "generate_stream", max_tokens=16, beams=3, length_penalty=0.7)
    assert [w for e in events_of(beams) for w in e["output_ids"]] == TOLD["three beams, length penalty 0.7"][0]


def test_wrong_requests_are_refused_in_words(server: BackgroundServer) -> None:
    for prompt, parameters, status, words in (
        ([], {}, 422, "at least one word"),
        ([1 << 40], {}, 422, "must be in"),
        ([1] * 5000, {}, 422, "the context has"),
        ("the sea", {}, 400, "input_ids must be a list"),
        ([1.5], {}, 400, "whole number"),
        (None, {}, 400, "input_ids must be a list"),
        ([1], {"max_tokens": 1.0}, 400, "max_tokens must be a whole number"),
        ([1], {"temperature": "hot"}, 400, "temperature must be a number"),
        ([1], {"early_stopping": 1}, 400, "early_stopping"),
        ([1], {"stop": [[]]}, 422, "at least one"),
        ([1], {"stop": 3}, 400, "list of lists"),
        ([1], {"stop": [[1]] * 1025}, 400, "1024 words in all"),
        ([1], {"loudness": 3}, 400, "no parameter 'loudness'"),
        ([1], {"beams": 2, "temperature": 1}, 422, "beams"),
    ):
        for way in ("generate", "generate_stream"):
            found = written(server, prompt, way, **parameters)
            assert found.status == status and words in found.json["error"], found
    assert ask(server.address, "POST", "/v2/models/llama/generate", b"{").status == 400
    assert ask(server.address, "POST", "/v2/models/llama/generate", b'{"text": 1}').status == 400
    assert ask(server.address, "GET", "/v2/models/llama/generate").status == 405
    assert ask(server.address, "POST", "/v2/models/nothing/generate", b"{}").status == 404
    assert ask(server.address, "POST", "/v2/models/m/generate", b'{"input_ids": [1]}').status == 400
    assert infer(server.address, "llama", [tensor("input_ids", [1], "INT64")]).status == 400
    about = ask(server.address, "GET", "/v2/models/llama").json
    assert about["parameters"]["users"] == 16 and about["inputs"][0]["name"] == "input_ids"
    assert "generate" in ask(server.address, "GET", "/v2").json["extensions"]


def test_numbers_out_of_their_bounds_are_refused_in_words(server: BackgroundServer) -> None:
    for name, values in {
        "max_tokens": (0, -1, 10**400),
        "min_tokens": (-1, 10**400),
        "temperature": (-1, 1e308, 10**400),
        "top_k": (-1, 10**400),
        "top_p": (0, -1, 2, 10**400),
        "min_p": (-1, 1.5),
        "typical_p": (0, 1.5),
        "repetition_penalty": (0, -1, 1e308, 10**400),
        "no_repeat_ngram_size": (-1, 10**400),
        "length_penalty": (400, -400, 1e308, -(10**400)),
        "beams": (0, -1, 17, 10**400),
        "seed": (-1, 1 << 64, 10**400),
    }.items():
        for value in values:
            found = written(server, [1], **{name: value})
            assert found.status == 422 and f"{name} must be" in found.json["error"] and len(found.body) < 300, (name, value, found)
    for text in ("NaN", "Infinity", "-Infinity", "1e400", "9" * 5000):
        for name in ("temperature", "length_penalty", "top_p"):
            body = f'{{"input_ids": [1], "parameters": {{"{name}": {text}}}}}'.encode()
            assert ask(server.address, "POST", "/v2/models/llama/generate", body).status in (400, 422), (name, text)
    for prompt in ([-1], [10**400], [40]):
        assert written(server, prompt).status == 422


def test_a_client_that_goes_away_leaves_its_place(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = server.service.repository.find("llama")[0]
    step = model._writer.step
    monkeypatch.setattr(model._writer, "step", lambda: sleep(0.005) or step())  # so that the text is still being written when the client goes
    host, port = server.address.split(":")
    for way in ("generate", "generate_stream"):
        body = json.dumps({"input_ids": [1], "parameters": {"max_tokens": 100000, "stop": [[70000]]}}).encode()
        one = socket.create_connection((host, int(port)), 60)
        one.sendall(f"POST /v2/models/llama/{way} HTTP/1.1\r\nHost: m\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        if way == "generate_stream":
            assert b"200" in one.recv(100)
        else:
            until(lambda: model._running)
        one.close()
        until(lambda: not model._running and server.service.running == 0 and server.service.pending == 0)
    assert not model._writer.busy


def test_more_texts_than_places_wait_and_more_than_may_wait_are_sent_away() -> None:
    with BackgroundServer([f"llama={LLAMA}"], ServerLimits(queue=2, seconds=60), kinds=[LanguageModels(users=1)], watch=False) as server:
        model: Any = server.service.repository.find("llama")[0]
        go, step = threading.Event(), model._writer.step
        model._writer.step = lambda: go.wait(60) and step()
        with ThreadPoolExecutor(4) as pool:
            first = [pool.submit(written, server, p, max_tokens=16) for p in TOLD["prompts"][:1]]
            until(lambda: model._running)
            others = [pool.submit(written, server, p, max_tokens=16) for p in TOLD["prompts"][1:3]]
            until(lambda: model.waiting() >= 2)
            found = written(server, [1])
            assert found.status == 503 and found.headers["retry-after"] == "1"
            go.set()
            assert [f.result(60).json["output_ids"] for f in (*first, *others)] == TOLD["greedy"][:3]


def test_an_error_of_a_step_is_told_and_the_next_text_is_written(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = server.service.repository.find("llama")[0]
    run = model.model.next_words

    def fails(rows: Any, *more: Any) -> Any:
        if [1, 2, 3] in rows:
            raise fs.ExecutionError("no luck")
        return run(rows, *more)

    monkeypatch.setattr(model.model, "next_words", fails)
    found = written(server, [1, 2, 3])
    assert found.status == 500 and "no luck" in found.json["error"]
    add = model._writer.add

    def unready(prompt: Any, **more: Any) -> Any:
        if prompt == [1, 2, 4]:
            raise RuntimeError("of no kind")
        return add(prompt, **more)

    monkeypatch.setattr(model._writer, "add", unready)
    found = written(server, [1, 2, 4])
    assert found.status == 500 and found.json["error"] == "the server failed: RuntimeError"
    assert written(server, TOLD["prompts"][0], max_tokens=16).json["output_ids"] == TOLD["greedy"][0]


def test_an_error_of_a_text_ends_no_other(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = server.service.repository.find("llama")[0]
    run, steps = model.model.next_words, list[int]()

    def fails(rows: Any, *more: Any) -> Any:
        if not steps:
            until(lambda: len(model._new) == 2)  # the others come in the next step
        steps.append(len(rows))
        if [1, 2, 3] in rows:
            raise fs.ExecutionError("no luck")
        if [1, 2, 4] in rows:
            scores, words = run(rows, *more)
            at = rows.index([1, 2, 4])
            return scores.index_fill(0, torch.tensor(at), torch.nan), [*words[:at], -1, *words[at + 1 :]]
        return run(rows, *more)

    monkeypatch.setattr(model.model, "next_words", fails)
    with ThreadPoolExecutor(4) as pool:
        good = pool.submit(written, server, TOLD["prompts"][0], "generate_stream", max_tokens=16)
        until(lambda: model._running)
        bad = [pool.submit(written, server, prompt, max_tokens=16) for prompt in ([1, 2, 3], [1, 2, 4])]
        assert [w for e in events_of(good.result(60)) for w in e.get("output_ids", [])] == TOLD["greedy"][0]
        for answer, words in zip(bad, ("no luck", "NaN"), strict=True):
            assert answer.result(60).status == 500 and words in answer.result(60).json["error"]
    assert 3 in steps


def test_memory_bounds_the_texts_at_a_time() -> None:
    one = fs.language_model(LLAMA, users=1)
    least = one.plan().peak(users=1, context=one.context, batch=1, rows=513)
    with BackgroundServer([f"llama={LLAMA}"], ServerLimits(memory=least + 3 * one.context * one.word_bytes), watch=False) as server:
        assert 1 <= server.service.repository.find("llama")[0].facts()["users"] <= 4  # type: ignore[operator]
        assert written(server, TOLD["prompts"][0], max_tokens=16).json["output_ids"] == TOLD["greedy"][0]
    with pytest.raises(fs.MemoryPlanError, match="one text of"):
        BackgroundServer([f"llama={LLAMA}"], ServerLimits(memory=least // 2))


def test_too_long_and_too_slow_requests_for_texts_are_refused() -> None:
    with BackgroundServer([f"llama={LLAMA}"], ServerLimits(json=1000, body=3000, seconds=0.5), watch=False) as server:
        for size, words in ((400, "the JSON of a request may have 1,000 bytes"), (1500, "may have 3,000 bytes")):
            found = written(server, [1] * size)
            assert found.status == 413 and words in found.json["error"]
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), 60) as slow:
            slow.sendall(b"POST /v2/models/llama/generate HTTP/1.1\r\nHost: m\r\nContent-Length: 100\r\n\r\n{")
            assert b"408" in slow.recv(1000)
        until(lambda: server.service.running == 0 and server.service.pending == 0)


def test_a_client_that_asks_anew_on_one_connection_is_answered(server: BackgroundServer) -> None:
    connection = HTTPConnection(server.address, timeout=60)
    for way in ("generate_stream", "generate", "generate_stream"):
        connection.request("POST", f"/v2/models/llama/{way}", json.dumps({"input_ids": TOLD["prompts"][0], "parameters": {"max_tokens": 4}}))
        response = connection.getresponse()
        assert response.status == 200 and response.read()
    connection.close()


@pytest.mark.parametrize("rows", ["fp32", "int8"])
def test_weights_are_packed_as_they_are_read(rows: Any) -> None:
    with BackgroundServer([f"llama={LLAMA}"], kinds=[LanguageModels(users=2, weights="int8", rows=rows)], watch=False) as server:
        found = written(server, TOLD["prompts"][0], max_tokens=8)
        model = fs.language_model(LLAMA, users=2, weights="int8", rows=rows)
        assert found.json["output_ids"] == fs.generate(model, [TOLD["prompts"][0]], 8)[0]
        assert any(op.type == "grouped_linear" and op.attrs["rows"] == rows for op in server.service.repository.find("llama")[0].model.program.all_ops())
