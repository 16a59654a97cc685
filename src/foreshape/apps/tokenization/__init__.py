"""Texts as numbers of words, and back: the tokenizers and chat templates in folders of the transformers library."""
