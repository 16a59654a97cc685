"""Logarithmic probabilities in answers, in OpenAI's two forms: of a chat a list of words, of a completion a list for each figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from foreshape.apps.generation import WordChoice
from foreshape.apps.tokenization.prompt_tokenizer import PromptTokenizer

_LOWEST: Final = -9999.0
"""The number for -inf, as of OpenAI: JSON has none."""


class PlacedChoice(NamedTuple):
    """A written word, and the place of its first letter in the text."""

    begin: int
    choice: WordChoice


def chat_logprobs(choices: Sequence[PlacedChoice], tokenizer: PromptTokenizer) -> dict[str, Any]:
    """Return the ``logprobs`` of a chat's answer, or of a piece of it."""

    def told(word: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.word_bytes(word)
        return {"token": _text(data, ""), "logprob": max(logprob, _LOWEST), "bytes": list(data)}

    content = [{**told(c.word, c.logprob), "top_logprobs": [told(*best) for best in c.best]} for _, c in choices]
    return {"content": content, "refusal": None}


def completion_logprobs(choices: Sequence[PlacedChoice], tokenizer: PromptTokenizer) -> dict[str, Any]:
    """Return the ``logprobs`` of a completion, or of a piece of it. The word is always among its ``top_logprobs``; the first one of an echo has none."""

    def text(word: int) -> str:
        return _text(tokenizer.word_bytes(word), "bytes:")

    def best(choice: WordChoice) -> dict[str, float] | None:
        return None if math.isnan(choice.logprob) else {text(word): max(logprob, _LOWEST) for word, logprob in ((choice.word, choice.logprob), *choice.best)}

    return {
        "tokens": [text(c.word) for _, c in choices],
        "token_logprobs": [None if math.isnan(c.logprob) else max(c.logprob, _LOWEST) for _, c in choices],
        "top_logprobs": [best(c) for _, c in choices],
        "text_offset": [begin for begin, _ in choices],
    }


def _text(data: bytes, mark: str) -> str:
    """Return the text of a word; of a part of a letter its bytes in escapes, behind a mark."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return mark + "".join(f"\\x{byte:02x}" for byte in data)
