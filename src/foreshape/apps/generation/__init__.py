"""Texts written word by word: networks with a cache of keys and values, the choice of words, and many texts side by side."""

from foreshape.apps.generation.cached_model import LanguageModel
from foreshape.apps.generation.choice import WordChoice
from foreshape.apps.generation.text_writer import TextWriter, Writing, generate
from foreshape.apps.generation.transformers_models import language_model

__all__ = ["LanguageModel", "TextWriter", "WordChoice", "Writing", "generate", "language_model"]
