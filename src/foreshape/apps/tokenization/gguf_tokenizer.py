"""The tokenizer and the chat template in a GGUF file, for the package tokenizers: pieces of sentencepiece with scores, and pieces of bytes with merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from foreshape.apps.tokenization.chat_template import ROLES, ChatTemplate
from foreshape.apps.tokenization.text_tokenizer import tokenizers_package
from foreshape.errors import ForeshapeError, FormatError, SchemaError
from foreshape.interop.gguf_file import GgufFile
from foreshape.interop.gguf_pre_tokenizers import PRE_TOKENIZERS

TOKENS: Final = "tokenizer.ggml.tokens"
_TEMPLATE: Final = "tokenizer.chat_template"
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE: Final = "▁"
_LONGEST: Final = 1024
"""The most letters of a piece with a score: each of its cuts is looked at."""
_NAMES: Final[Mapping[str, str]] = {"unk": "unknown", "pad": "padding", "sep": "seperator"}
"""The roles of special words, where GGUF has other names for them."""


class _Vocabulary(NamedTuple):
    """The words of a file, by number, with their types and scores, and the special ones by role."""

    words: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    special: Mapping[str, int]

    def of_type(self, kind: int) -> list[str]:
        return [word for word, of_word in zip(self.words, self.types, strict=True) if of_word == kind]


def has_gguf_tokenizer(file: GgufFile) -> bool:
    """Tell whether a file has the words of a tokenizer."""
    return TOKENS in file.texts


def read_gguf_tokenizer(file: GgufFile) -> Any:
    """Return the tokenizer of a file, of the class ``tokenizers.Tokenizer``.

    Args:
        file: with ``tokenizer.ggml`` facts.

    Raises:
        FormatError: a fact is missing or damaged. SchemaError: a kind of tokenizer without a form here. DescriptionError: no package tokenizers.
    """
    package = tokenizers_package()
    kind = file.facts.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in ("llama", "gpt2"):
        raise SchemaError.must(f"{file.path}: tokenizer.ggml.model", "'llama' (sentencepiece with scores) or 'gpt2' (bytes with merges)", repr(kind)[:60])
    vocabulary = _vocabulary(file)
    try:
        tokenizer, begins = _score_pieces(file, vocabulary) if kind == "llama" else _byte_pieces(file, vocabulary)
        for special, number in ((True, _CONTROL), (False, _USER_DEFINED)):
            tokenizer.add_tokens([package.AddedToken(word, normalized=False, special=special) for word in vocabulary.of_type(number)])
        _put_ends(file, tokenizer, vocabulary, begins)
    except ForeshapeError:
        raise
    except Exception as error:  # the package raises plain Exceptions
        raise FormatError(f"{file.path}: its tokenizer cannot be read: {str(error)[:300]}") from None
    return tokenizer


def read_gguf_template(file: GgufFile) -> ChatTemplate | None:
    """Return the chat template of a file; None without one.

    Raises:
        FormatError: it is no template. DescriptionError: no package jinja2.
    """
    source = file.facts.get(_TEMPLATE)
    if source is None:
        return None
    if not isinstance(source, str):
        raise FormatError.must(f"{file.path}: {_TEMPLATE}", "a text", type(source).__name__)
    vocabulary = _vocabulary(file)
    return ChatTemplate(source, {f"{role}_token": vocabulary.words[number] for role, number in vocabulary.special.items()}, f"{file.path}: {_TEMPLATE}")


def _vocabulary(file: GgufFile) -> _Vocabulary:
    """Return the words of a file. Raises `FormatError` if their number, types and scores do not agree."""
    if not has_gguf_tokenizer(file):
        raise FormatError(f"{file.path} has no tokenizer: {TOKENS} is missing")
    words = file.texts[TOKENS]()
    table = file.tensors.get("token_embd.weight")
    if table is not None and len(words) > table.dims[0]:
        raise FormatError(f"{file.path}: {TOKENS} has {len(words):,} words, and the network {table.dims[0]:,}")
    if len(set(words)) != len(words) or not all(words):
        seen = set[str]()
        twice = next((word for word in words if not word or word in seen or seen.add(word)), "")
        raise FormatError(f"{file.path}: {TOKENS} must have words that differ, and are not empty; seen {twice[:60]!r}" + (" twice" if twice else ""))
    types, scores = (_numbers(file, f"tokenizer.ggml.{name}", len(words), default) for name, default in (("token_type", 1), ("scores", 0.0)))
    special: dict[str, int] = {}
    for role in ROLES:
        number = file.facts.get(f"tokenizer.ggml.{_NAMES.get(role, role)}_token_id")
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(words):
            special[role] = number
    return _Vocabulary(words, types, scores, special)


def _numbers(file: GgufFile, name: str, count: int, default: float) -> Any:
    value = file.facts.get(name)
    if value is None:
        return [default] * count
    if not hasattr(value, "tolist") or len(value) != count:
        seen = f"{len(value):,}" if hasattr(value, "tolist") else "none"
        raise FormatError.must(f"{file.path}: {name}", f"an array of {count:,} numbers, one for each word", seen)
    return value.tolist()


def _truth(file: GgufFile, name: str, default: bool) -> bool:
    value = file.facts.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise FormatError.must(f"{file.path}: tokenizer.ggml.{name}", "true or false", repr(value)[:60])
    return value


def _put_ends(file: GgufFile, tokenizer: Any, vocabulary: _Vocabulary, begins: bool) -> None:
    """Let texts begin and end with the special words."""
    from tokenizers import processors

    ends = {role: _truth(file, f"add_{role}_token", role == "bos" and begins) for role in ("bos", "eos")}
    # a file without such a word can say that texts begin with it
    words = {role: vocabulary.words[vocabulary.special[role]] for role, is_there in ends.items() if is_there and role in vocabulary.special}
    form = [words[role] if role != "text" else "$A" for role in ("bos", "text", "eos") if role in words or role == "text"]
    if words:
        tokenizer.post_processor = processors.TemplateProcessing(form, special_tokens=[(word, tokenizer.token_to_id(word)) for word in words.values()])


def _score_pieces(file: GgufFile, vocabulary: _Vocabulary) -> tuple[Any, bool]:
    """Return a tokenizer of pieces with scores, letters outside them as bytes; texts begin with a special word."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    numbers = {word: number for number, word in enumerate(vocabulary.words)}
    unknown = vocabulary.special.get("unk", next((n for n, kind in enumerate(vocabulary.types) if kind == _UNKNOWN), None))
    unknown_word = None if unknown is None else vocabulary.words[unknown]
    tokenizer = Tokenizer(models.BPE(numbers, _merges_by_score(file, vocabulary, numbers), unk_token=unknown_word, fuse_unk=True, byte_fallback=True))
    begins_with_space = _truth(file, "add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE)] * begins_with_space + [normalizers.Replace(" ", _SPACE)])
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if begins_with_space else steps)
    return tokenizer, True


def _merges_by_score(file: GgufFile, vocabulary: _Vocabulary, numbers: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return each pair of pieces in another one, the greatest score first, of equal ones the least number."""
    merges: list[tuple[float, int, int, str, str]] = []
    for number, (word, kind, score) in enumerate(zip(vocabulary.words, vocabulary.types, vocabulary.scores, strict=True)):
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE):  # they are cut out of a text before, or stand for letters without a piece
            continue
        if len(word) > _LONGEST or not score == score:
            raise FormatError(f"{file.path}: the word {word[:40]!r} of the tokenizer has {len(word):,} letters and the score {score}")
        for cut in range(1, len(word)):
            left, right = word[:cut], word[cut:]
            if left in numbers and right in numbers:
                merges.append((-score, number, cut, left, right))
    merges.sort()
    return [(left, right) for _, _, _, left, right in merges]


def _byte_pieces(file: GgufFile, vocabulary: _Vocabulary) -> tuple[Any, bool]:
    """Return a tokenizer of pieces of bytes, and whether texts begin with a special word."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    name = file.facts.get("tokenizer.ggml.pre", "default")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise SchemaError.one_of(f"{file.path}: tokenizer.ggml.pre", sorted(PRE_TOKENIZERS), str(name)[:60])
    pre = PRE_TOKENIZERS[name]
    if "tokenizer.ggml.merges" not in file.texts:
        raise FormatError(f"{file.path}: a tokenizer of the kind 'gpt2' must have tokenizer.ggml.merges")
    lines = file.texts["tokenizer.ggml.merges"]()
    if (wrong := next((line for line in lines if line.count(" ") != 1), None)) is not None:
        raise FormatError.must(f"{file.path}: tokenizer.ggml.merges", "two words each", repr(wrong[:60]))
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(vocabulary.words)}, merges, ignore_merges=pre.whole_first))
    cuts: list[Any] = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in pre.cuts]
    begins_with_space = _truth(file, "add_space_prefix", False)
    if begins_with_space:
        raise SchemaError(f"{file.path}: a tokenizer of bytes with add_space_prefix is not known here")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre.begins
