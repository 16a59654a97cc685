"""`TextTokenizer`: the tokenizer of a folder of transformers, without its padding and cut at the network's length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from foreshape.apps.tokenization.settings_files import read_settings
from foreshape.apps.tokenization.vocabulary_files import read_vocabulary
from foreshape.errors import DescriptionError, FormatError, SchemaError

_NO_LIMIT = 1 << 20
"""Lengths from here on stand for no limit: transformers writes 10^30."""
_ASCII, _OTHER = 224, 640
"""The bytes taken by the package tokenizers for a character while it cuts texts into words, as measured: of ASCII; of others, each a word."""


def _texts(entry: Any) -> list[str]:
    """Return a text, or both of a pair, without anything else; it is refused later."""
    return [part for part in (cast("tuple[Any, ...]", entry) if isinstance(entry, tuple) else (entry,)) if isinstance(part, str)]


def length_of(entry: Any) -> int:
    """Return the characters of a text or a pair."""
    return sum(map(len, _texts(entry)))


def cut_bytes(entry: Any) -> int:
    """Return the most bytes for cutting a text or a pair into words."""
    return sum(len(text) * (_ASCII if text.isascii() else _OTHER) for text in _texts(entry))


class Tokenized(NamedTuple):
    """The numbers of a text's words, and of the text of a pair they are in: int32 and int8 ``[words]``."""

    ids: Any
    types: Any


class Token(NamedTuple):
    """A token of a text: its number, its characters' begin and end, and the text between them; of a special one its name alone."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TextTokenizer:
    """From texts, or pairs of texts, to numbers of words.

    Args:
        folder: with tokenizer.json or a vocabulary; a tokenizer_config.json beside it is read.
        max_length: the most words; None for the folder's own number.
        positions: the network's most words, or None.
        lower: texts are written in small letters first.

    Raises:
        FormatError: a file is missing or damaged. SchemaError: a tokenizer without a form here.
    """

    def __init__(self, folder: Path, max_length: int | None, positions: int | None, lower: bool = False) -> None:
        tokenizers = tokenizers_package()
        config = read_settings(folder / "tokenizer_config.json")
        self._tokenizer: Any = read_tokenizer(folder, config)
        if lower:
            normalizer, small = self._tokenizer.normalizer, tokenizers.normalizers.Lowercase()
            self._tokenizer.normalizer = small if normalizer is None else tokenizers.normalizers.Sequence([small, normalizer])
        limits = [n for n in (max_length or config.get("model_max_length"), positions) if n is not None and n < _NO_LIMIT]
        self.max_length = int(min(limits)) if limits else None
        self._tokenizer.no_padding()
        if self.max_length is None:
            self._tokenizer.no_truncation()
        else:
            try:
                self._tokenizer.enable_truncation(self.max_length, direction=config.get("truncation_side") or "right")
            except BaseException as error:  # of the package's own class, an error in Rust
                raise SchemaError(f"texts of at most {self.max_length} words have no place for the tokenizer's special words: {error}") from None
        self._typed = _has_types(config)
        self.special = {number for number, word in self._tokenizer.get_added_tokens_decoder().items() if word.special}

    def __call__(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> list[Tokenized]:
        """Return the words of each text or pair; special words are added, and words past the longest length cut.

        Args:
            texts: of Unicode characters, without half a surrogate pair.
        """
        import numpy

        encoded = self._tokenizer.encode_batch(texts)
        ids = [numpy.array(e.ids, "int32") for e in encoded]
        return [Tokenized(x, numpy.array(e.type_ids, "int8") if self._typed else numpy.zeros(len(x), "int8")) for e, x in zip(encoded, ids, strict=True)]

    def tokens(self, text: str, special: bool = True) -> list[Token]:
        """Return the tokens of a text, cut at the longest length.

        Args:
            text: of Unicode characters.
            special: with the special ones.
        """
        entry = self._tokenizer.encode(text, add_special_tokens=special)
        parts = zip(entry.ids, entry.tokens, entry.special_tokens_mask, entry.offsets, strict=True)
        return [Token(i, name, True, None, None) if is_special else Token(i, text[begin:end], False, begin, end) for i, name, is_special, (begin, end) in parts]

    def prompt_length(self, prompt: str) -> int:
        """Return the number of words of a prompt, without the special one at its end.

        Args:
            prompt: the text before a text.
        """
        ids = self([prompt])[0].ids
        return len(ids) - 1 if len(ids) and int(ids[-1]) in self.special else len(ids)


def _has_types(config: Mapping[str, Any]) -> bool:
    """Tell whether the network is fed the numbers of a pair's texts, as the class of transformers does, whatever tokenizer.json gives."""
    names = config.get("model_input_names")
    if names is not None:
        return "token_type_ids" in names
    return str(config.get("tokenizer_class") or "Bert").startswith(("Bert", "Electra", "DebertaV2"))


def tokenizers_package() -> Any:
    """Return the package tokenizers. Raises `DescriptionError` without it."""
    try:
        import tokenizers
    except ImportError:
        raise DescriptionError("texts are cut into words by the package tokenizers: pip install 'foreshape[embed]'") from None
    return tokenizers


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> Any:
    """Return the tokenizer of a folder, of the class ``tokenizers.Tokenizer``.

    Args:
        folder: with tokenizer.json or a vocabulary.
        config: its tokenizer_config.json.

    Raises:
        FormatError: a file is missing or damaged. SchemaError: a tokenizer without a form here. DescriptionError: no package tokenizers.
    """
    tokenizers = tokenizers_package()
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises plain Exceptions
            raise FormatError(f"{file} cannot be read as a tokenizer: {str(error)[:300]}") from None
    return read_vocabulary(folder, config)
