"""Texts written word by word: networks with a cache of keys and values, the choice of words, and many texts side by side."""

from foreshape.generation.cached_model import LanguageModel
from foreshape.generation.text_writer import TextWriter, Writing, generate
from foreshape.generation.transformers_models import language_model

__all__ = ["LanguageModel", "TextWriter", "Writing", "generate", "language_model"]
