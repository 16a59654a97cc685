"""OpenAI's routes of texts: completions and chats, whole and as events, their stops, limits and errors."""

from __future__ import annotations

import json
import random
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from support.asked import Answer, ask, save_scale
from support.waiting import until

pytest.importorskip("fastapi", reason="the extra serve")
pytest.importorskip("jinja2", reason="the extra serve")
pytest.importorskip("tokenizers", reason="the extra serve")
from support.chat_models import LLAMA, byte_tokenizer, write_chat_model

import foreshape as fs
from foreshape.apps.serving.completion_request import MAX_MESSAGES
from foreshape.apps.serving.server import BackgroundServer
from foreshape.apps.serving.server_limits import ServerLimits

TOLD = json.loads((LLAMA / "texts.json").read_text())
PROMPT, WORDS = TOLD["prompts"][0], TOLD["greedy"][0]
DECODE = byte_tokenizer().decode
TEXT = "€abcc c c c c "
"""The text of these words."""
HI = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("chats")
    write_chat_model(out / "llama")
    write_chat_model(out / "plain", chat_template=None)
    write_chat_model(out / "broken", chat_template="{% if %}")
    (write_chat_model(out / "damaged") / "tokenizer.json").write_text("{}")
    shutil.copytree(LLAMA, out / "numbers")
    save_scale(out / "m", 2.0)
    return out


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[BackgroundServer]:
    with BackgroundServer([str(folder)], ServerLimits(queue=20), watch=False) as server:
        yield server


def post(server: BackgroundServer, path: str, **fields: Any) -> Answer:
    return ask(server.address, "POST", path, json.dumps({"model": "llama", **fields}).encode())


def events_of(answer: Answer) -> list[Any]:
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream"), answer
    parts = answer.body.decode().split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""] and all(p.startswith("data: ") for p in parts[:-1])
    return [json.loads(p.removeprefix("data: ")) for p in parts[:-2]]


def chosen(events: list[Any], index: int = 0) -> tuple[str, str]:
    """The text and the reason of a choice, of a completion or a chat."""
    parts = [c for e in events for c in e["choices"] if c["index"] == index]
    assert all(p["finish_reason"] is None for p in parts[:-1])
    return "".join(p["text"] if "text" in p else p["delta"].get("content", "") for p in parts), parts[-1]["finish_reason"]


def test_completions_are_the_texts_of_the_words(server: BackgroundServer) -> None:
    answer = post(server, COMPLETIONS, prompt=PROMPT, user="someone", metadata={"a": "b"}, store=True, seed=-1).json
    assert DECODE(WORDS) == TEXT and answer["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21, "prompt_tokens_details": {"cached_tokens": 0}}
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-") and answer["model"] == "llama" and answer["created"] > 1e9
    assert post(server, COMPLETIONS, prompt=DECODE(PROMPT)).json["choices"] == answer["choices"]
    echoed = post(server, COMPLETIONS, prompt=[DECODE(PROMPT), "ab"], echo=True, max_tokens=4, n=2).json["choices"]
    assert [c["index"] for c in echoed] == [0, 1, 2, 3] and echoed[0]["text"] == echoed[1]["text"] == DECODE(PROMPT) + "€a"
    assert echoed[2]["text"].startswith("ab") and post(server, COMPLETIONS, prompt=[PROMPT], echo=True, max_tokens=4).json["choices"][0] == echoed[0]


def test_events_have_whole_letters_and_the_text_in_all(server: BackgroundServer) -> None:
    events = events_of(post(server, COMPLETIONS, prompt=PROMPT, stream=True, stream_options={"include_usage": True}))
    assert chosen(events) == (TEXT, "length") and events[0]["choices"][0]["text"] == "€"
    assert events[-1]["choices"] == [] and events[-1]["usage"]["total_tokens"] == 21 and all(e["usage"] is None for e in events[:-1])
    events = events_of(post(server, COMPLETIONS, prompt=[PROMPT, TOLD["prompts"][1]], stream=True, n=2, echo=True, max_tokens=2))
    assert [chosen(events, i)[0] for i in range(2)] == [DECODE(PROMPT) + "�"] * 2  # two of three bytes of a letter, and no more may come
    assert "usage" not in events[0] and chosen(events, 2)[0] == DECODE([*TOLD["prompts"][1], *TOLD["greedy"][1][:2]])


def test_chats_are_written_behind_the_template(server: BackgroundServer) -> None:
    messages = [{"role": "developer", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}], "name": "x"}]
    messages += [{"role": "assistant", "content": "d", "refusal": None, "tool_calls": None}, {"role": "user", "content": "e"}]
    prompt = "<s>a\n<u>b\nc\n<a>d\n<u>e\n<a>\n"
    expected = post(server, COMPLETIONS, prompt=prompt, max_tokens=8).json
    answer = post(server, CHAT, messages=messages, max_completion_tokens=8).json
    text, reason = expected["choices"][0]["text"], expected["choices"][0]["finish_reason"]
    message = {"role": "assistant", "content": text, "refusal": None}
    assert answer["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}]
    shared = {"prompt_tokens_details": {"cached_tokens": answer["usage"]["prompt_tokens"] - 1}}  # the same prompt was just written behind
    assert answer["usage"] == expected["usage"] | shared and answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    events = events_of(post(server, CHAT, messages=messages, max_tokens=8, stream=True))
    assert chosen(events) == (text, reason) and events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1]["choices"][0]["delta"] == {} and {e["object"] for e in events} == {"chat.completion.chunk"}
    assert post(server, CHAT, messages=messages).json["usage"]["total_tokens"] == 64  # to the end of the context
    unbegun = post(server, CHAT, messages=messages, add_generation_prompt=False, max_tokens=8).json
    assert unbegun["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"] - len("<a>\n")


def test_stops_cut_the_text_also_across_words(server: BackgroundServer) -> None:
    for stop, expected in (("bc", "€a"), ("€", ""), (["xx", "cc c c"], "€ab"), ("c c ", "€abc"), (["c ", "b"], "€a"), ("zz", TEXT), ("c c  ", TEXT)):
        reason = "length" if expected == TEXT else "stop"
        answer = post(server, COMPLETIONS, prompt=PROMPT, stop=stop).json
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (expected, reason), stop
        events = events_of(post(server, COMPLETIONS, prompt=PROMPT, stop=stop, stream=True))
        assert chosen(events) == (expected, reason)
    model: Any = server.service.repository.find("llama")[0]
    assert post(server, COMPLETIONS, prompt=PROMPT, stop="bc").json["usage"]["completion_tokens"] == 6
    until(lambda: not model._running)


def test_the_word_at_the_end_of_texts_is_no_text(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = server.service.repository.find("llama")[0]
    monkeypatch.setattr(model.model, "settings", model.model.settings.but({"ends": (26,)}))
    answer = post(server, COMPLETIONS, prompt=PROMPT).json
    assert answer["choices"][0]["text"] == "€ab" and answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == 6


def test_settings_are_those_of_the_writer(server: BackgroundServer) -> None:
    model = fs.language_model(LLAMA)
    how: dict[str, Any] = {"temperature": 0.9, "top_k": 12, "top_p": 0.95}
    texts = [c["text"] for c in post(server, COMPLETIONS, prompt=PROMPT, n=3, seed=5, max_tokens=8, **how).json["choices"]]
    assert texts == [DECODE(fs.generate(model, [PROMPT], 8, seed=5 + k, **how)[0], skip_special_tokens=True) for k in range(3)]
    assert len({*texts}) == 3
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: post(server, CHAT, messages=HI, seed=7, temperature=1, n=2).json["choices"], range(4)))
    assert all(choices == answers[0] for choices in answers)


def test_models_with_texts_are_listed(server: BackgroundServer) -> None:
    entries = ask(server.address, "GET", "/v1/models").json["data"]
    assert [e["id"] for e in entries] == ["broken", "llama", "plain"] and entries[0]["created"] > 1e9
    assert ask(server.address, "GET", "/v1/models/llama").json == entries[1]
    assert ask(server.address, "GET", "/v1/models/numbers").json["error"]["code"] == "model_not_found"
    notes = ask(server.address, "GET", "/v2/models/damaged").json["parameters"]["notes"]
    assert len(notes) == 1 and "answers no texts" in notes[0] and str(LLAMA.parent) not in notes[0]
    assert "answers no chats" in ask(server.address, "GET", "/v2/models/broken").json["parameters"]["notes"][0]
    assert "/v1/chat/completions" in ask(server.address, "POST", "/v2/models/llama/infer", b'{"inputs": []}').json["error"]


def test_models_without_texts_say_so(server: BackgroundServer) -> None:
    for model, path, status, code, words in (
        ("numbers", COMPLETIONS, 400, "no_tokenizer", "has no tokenizer"),
        ("damaged", CHAT, 400, "no_tokenizer", "has no tokenizer"),
        ("plain", CHAT, 400, "no_chat_template", "no chat template"),
        ("broken", CHAT, 400, "no_chat_template", "no chat template"),
        ("m", CHAT, 400, None, "is no language model"),
        ("nothing", CHAT, 404, "model_not_found", "there is no model"),
        (None, CHAT, 400, None, "model must name one of: broken, damaged, llama, numbers, plain"),
    ):
        for streams in (False, True):
            found = post(server, path, model=model, stream=streams, **({"messages": HI} if path == CHAT else {"prompt": "a"}))
            error = found.json["error"]
            assert found.status == status and words in error["message"] and error["code"] == code and error["param"] == "model", found
            assert error["type"] == "invalid_request_error"
    assert post(server, COMPLETIONS, model="plain", prompt=PROMPT).json["choices"][0]["text"] == TEXT
    number = ask(server.address, "POST", "/v2/models/numbers/generate", json.dumps({"input_ids": PROMPT, "parameters": {"max_tokens": 16}}).encode())
    assert number.json["output_ids"] == WORDS


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {"messages": None}, "messages", "must be a list of 1 to"),
    (CHAT, {"messages": []}, "messages", "must be a list of 1 to"),
    (CHAT, {"messages": "hi"}, "messages", "must be a list"),
    (CHAT, {"messages": HI * (MAX_MESSAGES + 1)}, "messages", "seen 2049"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 3000}]}, "messages", "parts"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "must be a text"),
    (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "must be a text or a list; seen a whole number"),
    (CHAT, {"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role", "must be one of system"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content", "'image_url'"),
    (CHAT, {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{"id": "x"}]}]}, "messages[0].tool_calls", "not supported"),
    (CHAT, {"messages": [*HI, {"role": "system", "content": "late"}]}, "messages", "a system message comes first"),
    (CHAT, {"messages": [{"role": "user", "content": "a" * 80}]}, "messages", "the context has 64 words"),
    (CHAT, {"messages": [{"role": "user", "content": "a" * 5000}]}, "messages", "more than 4,096 characters"),
    (CHAT, {"messages": HI, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "differ"),
    (CHAT, {"messages": HI, "max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
    (CHAT, {"messages": HI, "tools": [{"type": "function"}]}, "tools", "not supported"),
    (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, "response_format", "not supported"),
    (CHAT, {"messages": HI, "logprobs": 1}, "logprobs", "true or false"),
    (CHAT, {"messages": HI, "top_logprobs": 2}, "top_logprobs", "with logprobs true alone"),
    (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20; seen 21"),
    (CHAT, {"messages": HI, "reasoning_effort": "high"}, "reasoning_effort", "unknown field"),
    (CHAT, {"messages": HI, "prompt": "a"}, "prompt", "unknown field"),
    (COMPLETIONS, {}, "prompt", "prompt is missing"),
    (COMPLETIONS, {"prompt": ""}, "prompt", "empty"),
    (COMPLETIONS, {"prompt": []}, "prompt", "at least one text"),
    (COMPLETIONS, {"prompt": {"a": 1}}, "prompt", "prompt must be"),
    (COMPLETIONS, {"prompt": "É"}, "prompt", "at least one word"),
    (COMPLETIONS, {"prompt": [1, 40]}, "prompt", "from 0 to 39"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt", "from 0 to 39"),
    (COMPLETIONS, {"prompt": [10**400]}, "prompt", "from 0 to 39"),
    (COMPLETIONS, {"prompt": ["a"] * 40, "n": 2}, "prompt", "64 texts"),
    (COMPLETIONS, {"prompt": "a", "logprobs": True}, "logprobs", "from 0 to 20; seen True"),
    (COMPLETIONS, {"prompt": "a", "logprobs": -1}, "logprobs", "from 0 to 20"),
    (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix", "not supported"),
    (COMPLETIONS, {"prompt": "a", "best_of": 3}, "best_of", "not supported"),
    (COMPLETIONS, {"prompt": "a", "presence_penalty": 2.5}, "presence_penalty", "from -2 to 2"),
    (COMPLETIONS, {"prompt": "a", "frequency_penalty": "x"}, "frequency_penalty", "must be a number"),
    (COMPLETIONS, {"prompt": "a", "min_tokens": -1}, "min_tokens", "at least 0"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"3": 101}}, "logit_bias", "from -100 to 100; seen 3: 101"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias", "seen -1"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"40": 1}}, "logit_bias", "from 0 to 39"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"b": 1}}, "logit_bias", "key must be a whole number; seen a text"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": [1]}, "logit_bias", "a JSON object"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {str(k): 1 for k in range(1025)}}, "logit_bias", "1,024 words"),
    (COMPLETIONS, {"prompt": "a", "n": 9}, "n", "from 1 to 8"),
    (COMPLETIONS, {"prompt": "a", "n": 10**400}, "n", "1329 bits"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 1.5}, "max_tokens", "must be a whole number"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 10**400}, "max_tokens", "1329 bits"),
    (COMPLETIONS, {"prompt": "a", "temperature": "hot"}, "temperature", "must be a number"),
    (COMPLETIONS, {"prompt": "a", "temperature": -1}, "temperature", "must be"),
    (COMPLETIONS, {"prompt": "a", "top_p": 0}, "top_p", "must be"),
    (COMPLETIONS, {"prompt": "a", "seed": 1 << 64}, "seed", "64 bits"),
    (COMPLETIONS, {"prompt": "a", "stop": [""]}, "stop", "stop must be"),
    (COMPLETIONS, {"prompt": "a", "stop": ["a"] * 5}, "stop", "up to 4"),
    (COMPLETIONS, {"prompt": "a", "stop": "a" * 257}, "stop", "1 to 256"),
    (COMPLETIONS, {"prompt": "a", "stop": [3]}, "stop[0]", "must be a text"),
    (COMPLETIONS, {"prompt": "a", "stream": 1}, "stream", "true or false"),
    (COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", "with stream alone"),
    (COMPLETIONS, {"prompt": "a", "model": 3}, "model", "must be a text"),
]


@pytest.mark.parametrize(("path", "fields", "param", "words"), WRONG)
def test_wrong_requests_are_refused_in_words(server: BackgroundServer, path: str, fields: dict[str, Any], param: str, words: str) -> None:
    for streams in [{}] if "stream" in param else [{}, {"stream": True}]:
        found = post(server, path, **fields, **streams)
        error = found.json["error"]
        assert found.status == 400 and words in error["message"] and error["param"] == param and len(found.body) < 600, found
        assert {*error} == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"


def test_neutral_values_pass(server: BackgroundServer) -> None:
    neutral: dict[str, Any] = {
        "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": False, "top_logprobs": None, "tools": [], "tool_choice": "auto",
        "n": None, "response_format": {"type": "text"}, "parallel_tool_calls": True, "stop": None, "stream": False, "service_tier": "auto",
        "user": None, "seed": None,
    }  # fmt: skip
    plain = post(server, CHAT, messages=HI).json["choices"]
    assert post(server, CHAT, messages=HI, **neutral).json["choices"] == plain == post(server, CHAT, messages=HI, stop=[]).json["choices"]


def test_any_value_in_any_field_is_answered_in_words(server: BackgroundServer) -> None:
    values: list[Any] = [0, 1, -1, 3, 1 << 63, 10**400, 0.5, 1e308, True, False, None, "", "a", "\u0000", "é" * 300, [], [[]], ["a"], [0], {}, {"a": 1}, [None]]
    names = "model prompt messages n max_tokens max_completion_tokens temperature top_p top_k min_p repetition_penalty seed stop stream stream_options echo"
    names += " presence_penalty frequency_penalty logit_bias logprobs top_logprobs min_tokens suffix best_of tools user metadata response_format x"
    draw, seen = random.Random(0), set[int]()
    for _ in range(300):
        path = draw.choice([CHAT, COMPLETIONS])
        fields: dict[str, Any] = {"model": "llama", "max_tokens": 2, **({"messages": HI} if path == CHAT else {"prompt": "a"})}
        for _ in range(draw.choice([1, 1, 2])):
            fields[draw.choice(names.split())] = draw.choice(values)
        if draw.random() < 0.3:
            fields["messages"] = [
                {"role": draw.choice(["user", *values]), "content": draw.choice(["a", *values]), draw.choice(["name", "x"]): draw.choice(values)}
            ]
        found = ask(server.address, "POST", path, json.dumps(fields).encode())
        seen.add(found.status)
        assert found.status in (200, 400, 404), (fields, found)
        if found.status != 200:
            assert len(found.json["error"]["message"]) > 10
    assert seen == {200, 400, 404}
    for path, body in ((CHAT, b'{"messages": [' + b"{}," * 60000 + b"{}]}"), (COMPLETIONS, b'{"prompt": [' + b"1," * 1000000 + b"1]}")):
        found = ask(server.address, "POST", path, body)
        assert found.status == 400 and "it has more" in found.json["error"]["message"]
    for body in (
        b"",
        b"{",
        b"[]",
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"stop": ' + b"[" * 10000,
        b'{"prompt": NaN}',
        b'{"logit_bias": {"\xff": 1}}',
    ):
        assert ask(server.address, "POST", COMPLETIONS, body).status == 400
    assert ask(server.address, "GET", COMPLETIONS).json["error"]["type"] == "invalid_request_error"


def test_a_client_that_goes_away_leaves_its_places(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = server.service.repository.find("llama")[0]
    step = model._writer.step
    monkeypatch.setattr(model._writer, "step", lambda: sleep(0.005) or step())
    host, port = server.address.split(":")
    for streams in (True, False):
        body = json.dumps({"model": "llama", "messages": HI, "n": 4, "stream": streams}).encode()
        one = socket.create_connection((host, int(port)), 60)
        one.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: m\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        if streams:
            assert b"200" in one.recv(100)
        else:
            until(lambda: len(model._running) == 4)
        one.close()
        until(lambda: not model._running and server.service.running == 0 and server.service.pending == 0)


def test_errors_of_the_writer_end_the_events(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = server.service.repository.find("llama")[0]
    run, steps = model.model.next_words, list[int]()

    def fails(*more: Any) -> Any:
        steps.append(1)
        if len(steps) == 5:
            raise fs.ExecutionError("no luck")
        return run(*more)

    monkeypatch.setattr(model.model, "next_words", fails)
    events = events_of(post(server, COMPLETIONS, prompt=PROMPT, stream=True))
    assert "no luck" in events[-1]["error"]["message"] and events[-1]["error"]["type"] == "server_error" and events[0]["choices"][0]["text"] == "€"
    steps[:] = [1] * 4
    found = post(server, COMPLETIONS, prompt=PROMPT)
    assert found.status == 500 and found.json["error"]["type"] == "server_error"
    assert post(server, COMPLETIONS, prompt=PROMPT).json["choices"][0]["text"] == TEXT


def test_more_texts_than_may_wait_and_too_large_requests_are_sent_away(folder: Path) -> None:
    with BackgroundServer([f"llama={folder / 'llama'}"], ServerLimits(queue=3, json=2000, body=5000), watch=False) as server:
        model: Any = server.service.repository.find("llama")[0]
        monkey = model.waiting
        model.waiting = lambda: len(model._new) + len(model._running)
        found = post(server, COMPLETIONS, prompt="a", n=8)
        assert found.status == 503 and found.headers["retry-after"] == "1" and found.json["error"]["type"] == "server_error"
        model.waiting = monkey
        until(lambda: not model._running and not model._new)
        assert post(server, COMPLETIONS, prompt="a" * 3000).status == post(server, COMPLETIONS, prompt="a" * 6000).status == 413
        assert post(server, COMPLETIONS, model=None, prompt=PROMPT).json["model"] == "llama"


def test_openai_client_asks_for_texts(server: BackgroundServer) -> None:
    openai = pytest.importorskip("openai", reason="make adapters")
    client = openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0)
    assert client.completions.create(model="llama", prompt=DECODE(PROMPT)).choices[0].text == TEXT
    chat = client.chat.completions.create(model="llama", messages=HI, max_completion_tokens=8)
    parts = list(client.chat.completions.create(model="llama", messages=HI, max_tokens=8, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].delta.content or "" for p in parts[:-1]) == chat.choices[0].message.content and parts[-1].usage == chat.usage
    told = client.chat.completions.create(model="llama", messages=HI, max_tokens=3, logprobs=True, top_logprobs=2).choices[0].logprobs
    assert [len(t.top_logprobs) for t in told.content] == [2, 2, 2]
    with pytest.raises(openai.BadRequestError, match="suffix is not supported") as raised:
        client.completions.create(model="llama", prompt="a", suffix="b")
    assert raised.value.param == "suffix" and raised.value.code == "unsupported_parameter"
