"""Embedders for LangChain and for Chroma: each a class of the package's own kind around an `Embedder`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from foreshape.apps.embedding.embedder import Embedder


def langchain_embeddings(embedder: Embedder) -> Any:
    """Return LangChain's ``Embeddings`` of an embedder, with its prompts for questions and documents. Needs the package langchain-core.

    Examples:
        >>> store = InMemoryVectorStore(langchain_embeddings(fs.Embedder("all-MiniLM-L6-v2")))
    """
    return _langchain_class()(embedder)


def chroma_function(embedder: Embedder) -> Any:
    """Return Chroma's ``EmbeddingFunction`` of an embedder, with its prompts, and its similarity as the space. Needs the package chromadb.

    A collection on disk keeps the model's path, and opens it again.

    Examples:
        >>> texts = chromadb.Client().create_collection("texts", embedding_function=chroma_function(fs.Embedder("all-MiniLM-L6-v2")))
    """
    return _chroma_class()(embedder)


@cache
def _langchain_class() -> Any:
    base: Any = import_module("langchain_core.embeddings").Embeddings

    class ForeshapeEmbeddings(base):
        def __init__(self, embedder: Embedder) -> None:
            self.embedder = embedder

        def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
            return self.embedder.encode_document(list(texts)).tolist()

        def embed_query(self, text: str) -> list[float]:
            return self.embedder.encode_query(text).tolist()

    return ForeshapeEmbeddings


@cache
def _chroma_class() -> Any:
    base: Any = import_module("chromadb").EmbeddingFunction

    class ForeshapeFunction(base):
        def __init__(self, embedder: Embedder) -> None:
            self.embedder = embedder

        def __call__(self, input: Sequence[str]) -> Any:
            return [*self.embedder.encode_document(list(input))]

        def embed_query(self, input: Sequence[str]) -> Any:
            return [*self.embedder.encode_query(list(input))]

        @staticmethod
        def name() -> str:
            return "foreshape"

        def default_space(self) -> str:
            return {"cosine": "cosine", "dot": "ip"}.get(self.embedder.similarity_name, "l2")

        def get_config(self) -> dict[str, Any]:
            return {"path": os.path.abspath(self.embedder.path)}

        @staticmethod
        def build_from_config(config: Mapping[str, Any]) -> Any:
            return chroma_function(Embedder(config["path"]))

    import_module("chromadb.utils.embedding_functions").register_embedding_function(ForeshapeFunction)
    return ForeshapeFunction
