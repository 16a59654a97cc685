"""Embedders as LangChain and Chroma take them, in the packages themselves (make adapters)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the extra embed")
from model_folders import TEXTS, write_model

import foreshape as fs
from foreshape.apps.embedding.adapters import chroma_function, langchain_embeddings

DOCUMENTS = [text for text in TEXTS if text]


@pytest.fixture
def embedder(tmp_path: Path) -> fs.Embedder:
    prompts = {"query": "query : ", "document": "text : "}
    return fs.Embedder(write_model(tmp_path / "model", {"pooling_mode": "mean"}, "Normalize", texts={"prompts": prompts, "default_prompt_name": None}))


def best(embedder: fs.Embedder, question: str) -> list[int]:
    scores = embedder.similarity(embedder.encode_query(question), embedder.encode_document(DOCUMENTS))[0]
    return [int(i) for i in np.argsort(-scores)[:3]]


def test_langchain_takes_an_embedder(embedder: fs.Embedder) -> None:
    stores = pytest.importorskip("langchain_core.vectorstores", reason="make adapters has it")
    model = langchain_embeddings(embedder)
    assert isinstance(model, pytest.importorskip("langchain_core.embeddings").Embeddings)
    np.testing.assert_allclose(model.embed_documents(DOCUMENTS), embedder.encode_document(DOCUMENTS), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.embed_query("a ship"), embedder.encode_query("a ship"), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(asyncio.run(model.aembed_query("a ship")), model.embed_query("a ship"), rtol=1e-5, atol=1e-6)
    store = stores.InMemoryVectorStore(model)
    store.add_texts(DOCUMENTS)
    assert [d.page_content for d in store.similarity_search("the ship at dawn", k=3)] == [DOCUMENTS[i] for i in best(embedder, "the ship at dawn")]


def test_chroma_takes_an_embedder_and_opens_it_again(embedder: fs.Embedder, tmp_path: Path) -> None:
    chromadb = pytest.importorskip("chromadb", reason="make adapters has it")
    client = chromadb.PersistentClient(tmp_path / "store", chromadb.Settings(anonymized_telemetry=False))
    texts = client.create_collection("texts", embedding_function=chroma_function(embedder))
    assert texts.configuration["hnsw"]["space"] == "cosine"
    texts.add(ids=[str(i) for i in range(len(DOCUMENTS))], documents=DOCUMENTS)
    stored = texts.get(ids=["0", "2"], include=["embeddings"])["embeddings"]
    np.testing.assert_allclose(stored, embedder.encode_document([DOCUMENTS[0], DOCUMENTS[2]]), rtol=1e-5, atol=1e-6)
    expected = [str(i) for i in best(embedder, "the ship at dawn")]
    assert texts.query(query_texts=["the ship at dawn"], n_results=3)["ids"] == [expected]
    again = client.get_collection("texts")  # which opens the model by its path
    assert again.query(query_texts=["the ship at dawn"], n_results=3)["ids"] == [expected]
