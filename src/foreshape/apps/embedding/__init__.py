"""Vectors of texts, and scores of pairs: encoders over ragged words, with the tokenizers and settings that are saved beside them."""

from foreshape.apps.embedding.embedder import Embedder

__all__ = ["Embedder"]
