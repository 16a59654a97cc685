"""Logarithmic probabilities in OpenAI's routes, penalties and biases of requests, and the words that clients share."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.asked import ask

pytest.importorskip("fastapi", reason="the extra serve")
pytest.importorskip("jinja2", reason="the extra serve")
pytest.importorskip("tokenizers", reason="the extra serve")
from support.chat_models import LLAMA, VOCABULARY, byte_tokenizer, write_chat_model
from tokenizers import Tokenizer, decoders, models

import foreshape as fs
from foreshape.apps.serving.served_writer import LanguageModels
from foreshape.apps.serving.server import BackgroundServer
from foreshape.apps.serving.server_limits import ServerLimits
from foreshape.apps.tokenization.prompt_tokenizer import PromptTokenizer

TOLD = json.loads((LLAMA / "texts.json").read_text())
PROMPT, WORDS = TOLD["prompts"][0], TOLD["greedy"][0]
LETTERS = {number: letter for letter, number in VOCABULARY.items()}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chats") / "llama")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[BackgroundServer]:
    with BackgroundServer([f"llama={folder}"], ServerLimits(queue=20), watch=False) as server:
        yield server


def choice(server: BackgroundServer, path: str = COMPLETIONS, **fields: Any) -> Any:
    answer = ask(server.address, "POST", path, json.dumps({"model": "llama", **fields}).encode())
    assert answer.status == 200, answer
    return answer.json["choices"][0]


def streamed(server: BackgroundServer, path: str, **fields: Any) -> list[Any]:
    body = json.dumps({"model": "llama", "stream": True, **fields}).encode()
    parts = ask(server.address, "POST", path, body).body.decode().split("\n\n")[:-2]
    return [c for p in parts for c in json.loads(p.removeprefix("data: "))["choices"]]


def expected(count: int, best: int) -> list[fs.WordChoice]:
    return fs.generate(fs.language_model(LLAMA), [PROMPT], count, logprobs=best)[0]


def token(word: int) -> str:
    """The text of a word in a completion: a part of the letter € is told by its byte."""
    return {9: "bytes:\\xe2", 19: "bytes:\\x82", 35: "bytes:\\xac", 2: " ", 38: LETTERS[38].replace("Ċ", "\n")}.get(word, LETTERS[word].replace("Ċ", "\n"))


def test_completions_have_lists_of_words_places_and_probabilities(server: BackgroundServer) -> None:
    told = choice(server, prompt=PROMPT, max_tokens=8, logprobs=2)
    figures, words = told["logprobs"], expected(8, 2)
    assert told["text"] == "€abcc" + (" " if WORDS[7] == 2 else token(WORDS[7]))[: len(told["text"]) - 5]
    assert figures["tokens"] == [token(w) for w in WORDS[:8]] and figures["tokens"][:5] == ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "a", "b"]
    assert figures["text_offset"] == [0, 0, 0, 1, 2, 3, 4, 5]  # the parts of a letter begin where it does
    assert figures["token_logprobs"] == pytest.approx([c.logprob for c in words], abs=1e-5)
    for told_best, c in zip(figures["top_logprobs"], words, strict=True):
        assert told_best == pytest.approx({token(w): p for w, p in ((c.word, c.logprob), *c.best)}, abs=1e-5)
    none = choice(server, prompt=PROMPT, max_tokens=2, logprobs=0)["logprobs"]
    assert [[*best] for best in none["top_logprobs"]] == [[t] for t in none["tokens"]]
    assert choice(server, prompt=PROMPT, max_tokens=2)["logprobs"] is None


@pytest.mark.parametrize("prompt", [PROMPT, "ab c€"])
def test_an_echo_has_the_probabilities_of_the_prompt(server: BackgroundServer, prompt: Any) -> None:
    told = choice(server, prompt=prompt, max_tokens=5, logprobs=2, echo=True)
    figures, words = told["logprobs"], prompt if isinstance(prompt, list) else byte_tokenizer().encode(prompt).ids
    (known,) = fs.generate(fs.language_model(LLAMA), [words], 5, logprobs=2, echo=True)
    assert figures["tokens"] == [token(c.word) for c in known] and len(known) == len(words) + 5
    assert figures["token_logprobs"][0] is figures["top_logprobs"][0] is None
    assert figures["token_logprobs"][1:] == pytest.approx([c.logprob for c in known[1:]], abs=1e-5)
    alone = choice(server, prompt=prompt, max_tokens=5, logprobs=2)
    text = told["text"].removesuffix(alone["text"])
    assert figures["token_logprobs"][len(words) :] == pytest.approx(alone["logprobs"]["token_logprobs"], abs=1e-5)
    assert figures["text_offset"][len(words) :] == [len(text) + place for place in alone["logprobs"]["text_offset"]]
    offsets = figures["text_offset"][: len(words)]
    assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] <= len(text)
    if prompt == "ab c€":
        assert text == prompt and offsets == [0, 1, 2, 3, 4, 4, 4]
    pieces = [c["logprobs"] for c in streamed(server, COMPLETIONS, prompt=prompt, max_tokens=5, logprobs=2, echo=True)]
    assert [p for piece in pieces for p in piece["token_logprobs"]] == pytest.approx(figures["token_logprobs"], abs=1e-5)


def test_chats_have_a_list_of_words_with_bytes(server: BackgroundServer) -> None:
    told = choice(server, CHAT, messages=HI, max_tokens=6, logprobs=True, top_logprobs=3, logit_bias={"9": 100})
    content = told["logprobs"]["content"]
    assert len(content) == 6 and {*content[0]} == {"token", "logprob", "bytes", "top_logprobs"} and told["logprobs"]["refusal"] is None
    assert content[0]["token"] == "\\xe2" and content[0]["bytes"] == [0xE2] and all(len(c["top_logprobs"]) == 3 for c in content)
    for c in content:
        best = [b["logprob"] for b in c["top_logprobs"]]
        assert best == sorted(best, reverse=True) and all({*b} == {"token", "logprob", "bytes"} for b in c["top_logprobs"])
        assert c["logprob"] <= best[0] + 1e-6 and math.exp(best[0]) < 1  # of the network's own scores: the bias made the word, not its probability
    assert [*choice(server, CHAT, messages=HI, max_tokens=2, logprobs=True)["logprobs"]["content"][0]["top_logprobs"]] == []


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stop", [None, "bc", "c c"])
def test_pieces_have_the_probabilities_of_their_words(server: BackgroundServer, path: str, stop: str | None) -> None:
    """Together they are those of the whole answer, and behind a stop there is none."""
    fields: dict[str, Any] = {"max_tokens": 10, "stop": stop, "logit_bias": {"15": 2}, "echo": None}
    fields = {**fields, "prompt": PROMPT, "logprobs": 1} if path == COMPLETIONS else {**fields, "messages": HI, "logprobs": True, "top_logprobs": 1}
    if path == CHAT:
        del fields["echo"]
    whole = choice(server, path, **fields)
    pieces = [c["logprobs"] for c in streamed(server, path, **fields) if c["logprobs"] is not None]
    joined = {name: [entry for p in pieces for entry in p[name]] for name in whole["logprobs"] if name != "refusal"}
    assert joined == {name: value for name, value in whole["logprobs"].items() if name != "refusal"}
    if path == COMPLETIONS:
        assert all(place < len(whole["text"]) for place in whole["logprobs"]["text_offset"]) or stop is None
    else:
        assert b"".join(bytes(c["bytes"]) for c in whole["logprobs"]["content"]).decode(errors="ignore").startswith(whole["message"]["content"][:3])


def test_penalties_and_biases_are_those_of_the_writer(server: BackgroundServer) -> None:
    model, decode = fs.language_model(LLAMA), byte_tokenizer().decode
    for fields, settings in (
        ({"frequency_penalty": 1.5, "presence_penalty": -0.5}, None),
        ({"logit_bias": {"24": -100, "3": 1.25}}, {"logit_bias": {24: -100.0, 3: 1.25}}),
        ({"min_tokens": 9, "logit_bias": {"7": 100}}, {"min_new_tokens": 9, "logit_bias": {7: 100.0}}),
    ):
        words = fs.generate(model, [PROMPT], 12, **(settings or fields))[0]
        assert choice(server, prompt=PROMPT, max_tokens=12, **fields)["text"] == decode([w for w in words if w != 7])


def figure(server: BackgroundServer, name: str) -> float:
    lines = ask(server.address, "GET", "/metrics").body.decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "_total{"))


def test_requests_one_after_another_share_their_beginnings(folder: Path) -> None:
    system = {"role": "system", "content": "abcdefghijklmnop"}
    first = [system, {"role": "user", "content": "a"}]
    answers: dict[bool | None, list[Any]] = {}
    for shares in (None, False):
        with BackgroundServer([f"llama={folder}"], ServerLimits(), kinds=[LanguageModels(users=2, share_prefixes=shares)], watch=False) as server:
            said, told = first, []
            for question in ("b", "c"):
                answer = ask(server.address, "POST", CHAT, json.dumps({"messages": said, "max_tokens": 4, "n": 2}).encode()).json
                told.append((answer["choices"], answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["usage"]["prompt_tokens"]))
                said = [*said, {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, {"role": "user", "content": question}]
            answers[shares] = told
            tokens, shared = figure(server, "foreshape_tokens"), figure(server, "foreshape_shared_tokens")
            assert tokens + shared == 2 * sum(t[2] for t in told) + 2 * 2 * 3  # of four written words the last one is not computed
            assert (shared > 0) == (shares is None)
    assert [t[0] for t in answers[None]] == [t[0] for t in answers[False]]
    assert [t[1] for t in answers[False]] == [0, 0] and answers[None][0][1] == 0 and answers[None][1][1] >= answers[None][0][2] - 1


def test_the_bytes_of_single_words_of_sentencepiece(folder: Path, tmp_path: Path) -> None:
    assert [PromptTokenizer(folder).word_bytes(word) for word in (9, 2, 15, 7, 4000)] == [b"\xe2", b" ", b"a", b"<|end|>", b""]
    vocabulary = {"▁the": 0, "re": 1, "<0xE2>": 2, "</s>": 3, "é": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert [PromptTokenizer(tmp_path).word_bytes(word) for word in range(5)] == [b" the", b"re", b"\xe2", b"</s>", "é".encode()]
