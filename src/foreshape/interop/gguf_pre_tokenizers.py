"""The names of pre-tokenizers in GGUF files: the cuts of a text before pieces of bytes are joined, as the released tokenizers have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

QWEN_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3: Final = QWEN_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD: Final = rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+END|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*END"
_BETWEEN: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class PreTokenizer(NamedTuple):
    """The cuts of a text before pieces of bytes are joined.

    Attributes:
        cuts: regular expressions; each cuts the parts so far into its matches and the texts between them.
        whole_first: a part in the vocabulary is one word, whatever the merges say.
        begins: texts begin with a special word, where the file does not say.
    """

    cuts: Sequence[str]
    whole_first: bool = False
    begins: bool = False


_DIGITS: Final = PreTokenizer((r"\p{N}", GPT2))
_CLASSIC: Final = PreTokenizer((GPT2,))
_OF_LLAMA3: Final = PreTokenizer((_LLAMA3,), whole_first=True, begins=True)
_OF_QWEN: Final = PreTokenizer((QWEN_WORDS,))
_OF_GPT4O: Final = PreTokenizer((_WORD.replace("END", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?") + r"|\p{N}{1,3}" + _BETWEEN,))
PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"), _OF_LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), _OF_QWEN),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "roberta-bpe"), _CLASSIC),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    "tekken": PreTokenizer((_WORD.replace("END", "") + r"|\p{N}" + _BETWEEN,), whole_first=True, begins=True),
    **dict.fromkeys(("gpt-4o", "llama4"), _OF_GPT4O),
}
"""By ``tokenizer.ggml.pre``; the names and their meaning are llama.cpp's."""


def name_of_cuts(cuts: Sequence[str], whole_first: bool) -> str | None:
    """Return a name for these cuts; None if there is none.

    Args:
        cuts: regular expressions, one after the other.
        whole_first: as of `PreTokenizer`.
    """
    return next((name for name, pre in PRE_TOKENIZERS.items() if tuple(pre.cuts) == tuple(cuts) and pre.whole_first == whole_first), None)
