"""`PromptTokenizer`: prompts of a language model as numbers of words, and its words as text while they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from foreshape.apps.tokenization.chat_template import ChatTemplate, read_chat_template
from foreshape.apps.tokenization.gguf_tokenizer import has_gguf_tokenizer, read_gguf_template, read_gguf_tokenizer
from foreshape.apps.tokenization.settings_files import read_settings
from foreshape.apps.tokenization.text_tokenizer import read_tokenizer
from foreshape.apps.tokenization.vocabulary_files import TOKENIZER_FILES
from foreshape.interop.gguf_file import GgufFile, is_gguf

_UNFINISHED: Final = "\ufffd"
_BEFORE: Final = 8
"""The words of a prompt in front of a text: the first written word may begin with a space or not by them."""
_HELD: Final = 64
"""The most words held back for a letter. It has at most four bytes, and so more words are none of it."""


_MARK: Final = "\u2581"
"""The letter of a space in words of sentencepiece."""
_BYTE: Final = re.compile("<0x([0-9A-Fa-f]{2})>")
"""A word of sentencepiece for a byte."""


def has_tokenizer(place: Path) -> bool:
    """Tell whether a folder has the file of a tokenizer, or a GGUF file the words of one."""
    return has_gguf_tokenizer(GgufFile(place)) if is_gguf(place) else any((place / name).is_file() for name in TOKENIZER_FILES)


def chat_template_of(place: Path) -> ChatTemplate | None:
    """Return the chat template of a folder or a GGUF file; None without one. Raises as `read_chat_template`."""
    return read_gguf_template(GgufFile(place)) if is_gguf(place) else read_chat_template(place)


class PromptTokenizer:
    """The tokenizer of a folder of transformers or of a GGUF file, without padding or a longest length.

    Args:
        place: a folder with tokenizer.json or a vocabulary, and its tokenizer_config.json; or a GGUF file.

    Raises:
        FormatError: a file is missing or damaged. SchemaError: a tokenizer without a form here.
    """

    def __init__(self, place: Path) -> None:
        is_file = is_gguf(place)
        self._tokenizer: Any = read_gguf_tokenizer(GgufFile(place)) if is_file else read_tokenizer(place, read_settings(place / "tokenizer_config.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        decoder = b"" if self._tokenizer.decoder is None else self._tokenizer.decoder.__getstate__()
        self._added = frozenset(self._tokenizer.get_added_tokens_decoder())
        self._bytes = _byte_letters() if b'"ByteLevel"' in decoder else None
        self._falls_back, self._has_marks = b'"ByteFallback"' in decoder, _MARK.encode() in decoder

    def words(self, text: str, special: bool = True) -> list[int]:
        """Return the numbers of a text's words.

        Args:
            text: of Unicode characters, without half a surrogate pair.
            special: add the tokenizer's special words around texts; within the text they are always known.
        """
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def word_bytes(self, word: int) -> bytes:
        """Return the bytes of a single word in a text, also of a part of a letter; of a special word its name, of an unknown number none."""
        token: str | None = self._tokenizer.id_to_token(word)
        if token is None:
            return b""
        if word in self._added:
            return token.encode()
        if self._bytes is not None:
            return b"".join(bytes([byte]) if (byte := self._bytes.get(letter)) is not None else letter.encode() for letter in token)
        if self._falls_back and (match := _BYTE.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if self._has_marks:
            return token.replace(_MARK, " ").encode()
        return self._tokenizer.decode([word], skip_special_tokens=False).encode()

    def text(self, words: Sequence[int]) -> str:
        """Return the text of words, without special ones."""
        return self._tokenizer.decode(words, skip_special_tokens=True)


def _byte_letters() -> dict[str, int]:
    """Return the letter -> byte of words of bytes: printable letters of Latin-1 are themselves, and the others follow from 256 on (as of GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


class TextPieces:
    """The text of words behind a prompt, piece by piece: a letter of several bytes comes whole.

    Args:
        decode: from words to their text.
        prompt: the words before the text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = ()) -> None:
        self._decode, self._words = decode, list(prompt[-_BEFORE:])
        self._text = decode(self._words)
        if self._text.endswith(_UNFINISHED):
            self._words, self._text = [], ""
        self._known = len(self._words)

    def add(self, words: Sequence[int], last: bool = False) -> str:
        """Return the text of further words; with ``last`` also of the words held back."""
        pieces = [self._next(word) for word in words]
        return "".join(pieces) + (self._taken(self._decode(self._words)) if last else "")

    def _next(self, word: int) -> str:
        self._words.append(word)
        text = self._decode(self._words)
        if text.endswith(_UNFINISHED) and len(self._words) - self._known < _HELD:
            return ""
        return self._taken(text)

    def _taken(self, text: str) -> str:
        """Return the new end of the text; its words stand before the next ones from now on."""
        piece = text[len(self._text) :]
        self._text = text
        if self._known < len(self._words) and (alone := self._decode(self._words[self._known :])):
            self._words, self._text = self._words[self._known :], alone
        self._known = len(self._words)
        return piece


class StopSearch:
    """The search for the ends of a text, across its pieces.

    Args:
        stops: the texts at an end, none empty.

    Attributes:
        ended: True once one was found.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held, self.ended = stops, "", False

    def add(self, piece: str, last: bool = False) -> str:
        """Return the text sure to stay: before the stop complete first, without the beginning of a possible one unless it is the ``last`` piece."""
        text = self._held + piece
        matches = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        if matches:
            self.ended = True
            return text[: min(matches)[1]]
        count = 0 if last else max((self._beginning(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - count :]
        return text[: len(text) - count]

    @staticmethod
    def _beginning(text: str, stop: str) -> int:
        return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
