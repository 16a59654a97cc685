"""GGUF files behind HTTP: answers are those of the folder they were saved from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.asked import ask

pytest.importorskip("fastapi", reason="the extra serve")
pytest.importorskip("jinja2", reason="the extra serve")
pytest.importorskip("tokenizers", reason="the extra serve")
from support.chat_models import write_chat_model

import foreshape as fs
from foreshape.apps.serving.server import BackgroundServer
from foreshape.interop.gguf_writer import header_bytes, text, texts

QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "abc c€", "max_tokens": 12}),
    ("/v1/completions", {"prompt": ["a", "<|end|>b"], "max_tokens": 12}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}),
)


def test_answers_are_those_of_the_folder(tmp_path: Path) -> None:
    folder = write_chat_model(tmp_path / "folder")
    files = tmp_path / "files"
    files.mkdir()
    fs.language_model(folder).save_gguf(files / "llama.gguf")
    with BackgroundServer([f"folder={folder}", str(files), f"one={files / 'llama.gguf'}"], watch=False) as server:
        for path, fields in QUESTIONS:
            answers = [ask(server.address, "POST", path, json.dumps({"model": name, **fields}).encode()) for name in ("folder", "llama", "one")]
            assert [answer.status for answer in answers] == [200] * 3, answers
            assert answers[0].json["choices"] == answers[1].json["choices"] == answers[2].json["choices"]
        assert {entry["id"] for entry in ask(server.address, "GET", "/v1/models").json["data"]} == {"folder", "llama", "one"}


def test_a_file_without_a_known_tokenizer_writes_numbers(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    fs.language_model(write_chat_model(tmp_path / "folder")).save_gguf(file)
    data = file.read_bytes()
    known, other = text("gpt-2"), text("gpt-X")
    assert data.count(known) == 1
    file.write_bytes(data.replace(known, other))
    with BackgroundServer([str(file)], watch=False) as server:
        model = server.service.repository.find("model")[0]
        assert model.notes == [note for note in model.notes if "it answers no texts: " in note and "tokenizer.ggml.pre must be one of" in note] != []
        assert ask(server.address, "POST", "/v2/models/model/generate", b'{"input_ids": [1, 2], "parameters": {"max_tokens": 3}}').status == 200
        assert ask(server.address, "POST", "/v1/completions", b'{"model": "model", "prompt": "a"}').json["error"]["code"] == "no_tokenizer"


def test_a_broken_file_does_not_start_a_server(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(header_bytes({"general.architecture": text("mamba"), "tokenizer.ggml.tokens": texts(["a"])}, {}))
    with pytest.raises(fs.SchemaError, match=r"the networks of GGUF files known here are llama, .*; seen 'mamba'"):
        BackgroundServer([str(tmp_path / "model.gguf")])
