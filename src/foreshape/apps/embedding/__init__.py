"""Vectors of texts, and scores of pairs: encoders over ragged words, with their folders' tokenizers and settings."""

from foreshape.apps.embedding.embedder import Embedder

__all__ = ["Embedder"]
