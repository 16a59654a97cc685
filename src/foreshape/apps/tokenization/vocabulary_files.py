"""Tokenizers of folders without tokenizer.json, built from their vocabularies as the classes of transformers (5.24) build them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from foreshape.apps.tokenization.settings_files import read_settings
from foreshape.errors import FormatError, SchemaError
from foreshape.interop.gguf_pre_tokenizers import QWEN_WORDS

_UNUSED, _UNUSED_SHARE = 1024, 64
"""So many rows of a network's table of words, or such a part of them, may have no word: sizes are rounded up."""
_ROLES: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_PIECES: Final = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")
_WORDS: Final = ("vocab.txt",)
_MERGES: Final = ("vocab.json", "merges.txt")
TOKENIZER_FILES: Final = ("tokenizer.json", *_WORDS, _MERGES[0], *_PIECES)
"""The files with a tokenizer's vocabulary."""


class TokenizerClass(NamedTuple):
    """A class of transformers.

    Attributes:
        files: its vocabulary; of `_PIECES` any.
        special: the special words by role.
        build: from the path of the first file, the settings and the special words to a tokenizer without special words, and further special ones.
        form: special words, by role, around a text and around a pair; ":1" where words have the number of the second text.
    """

    files: Sequence[str]
    special: Mapping[str, str]
    build: Callable[[Path, Mapping[str, Any], Mapping[str, str]], tuple[Any, Sequence[Any]]]
    form: tuple[str, str]


def read_vocabulary(folder: Path, config: Mapping[str, Any]) -> Any:
    """Return the tokenizer of a folder, of the class ``tokenizers.Tokenizer``.

    Args:
        folder: with a vocabulary.
        config: tokenizer_config.json.

    Raises:
        FormatError: a file is missing or damaged. SchemaError: a class without a form here.
    """
    texts = read_settings(folder / "special_tokens_map.json")
    settings = {**texts, **{name: value for name, value in config.items() if value is not None}}
    name = _class_name(folder, config)
    kind = _CLASSES[name]
    files = [folder / n for n in kind.files if (folder / n).is_file()]
    if not files or (kind.files is _MERGES and len(files) < 2):
        needed = f"one of {', '.join(_PIECES)}" if kind.files is _PIECES else " with ".join(kind.files)
        raise FormatError(f"{str(folder)[:300]} has no tokenizer: tokenizer.json, or {needed} is missing")
    special = {role: _content(settings.get(f"{role}_token"), kind.special[role]) for role in _ROLES if role in kind.special}
    try:
        tokenizer, added = kind.build(files[0], settings, special)
    except (FormatError, SchemaError):
        raise
    except Exception as error:  # the package raises plain Exceptions
        raise FormatError(f"{files[0]} cannot be read as a vocabulary: {str(error)[:300]}") from None
    for role in ("unk", "sep", "cls", "eos"):
        if (role == "unk" or role in kind.form[0]) and tokenizer.token_to_id(special[role]) is None:
            raise FormatError(f"{files[0]} must have the word {special[role]}")
    words = [_added_word(word, settings.get(f"{role}_token"), special=True, normalized=False) for role, word in special.items()]
    tokenizer.add_tokens([word for word in (*words, *added) if tokenizer.token_to_id(word.content) is not None])
    _add_words(tokenizer, folder, settings)
    _put_special_words(tokenizer, kind, special, settings)
    size: Any = read_settings(folder / "config.json").get("vocab_size")
    if isinstance(size, int) and size - tokenizer.get_vocab_size() > max(_UNUSED, size // _UNUSED_SHARE):
        raise FormatError(f"{files[0]} has {tokenizer.get_vocab_size():,} words, and the network in config.json {size:,}: the file seems to be cut")
    return tokenizer


def _class_name(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the class by its own name, else by the network's kind, else by its files."""
    network = str(read_settings(folder / "config.json").get("model_type") or "")
    written = str(config.get("tokenizer_class") or "")
    by_name, by_network = (re.sub("[-_]|tokenizer(fast)?$", "", name.lower()) for name in (written, network))
    any_class = by_name in ("", "pretrained", "tokenizersbackend")
    name = by_network.replace("qwen3", "qwen2") if any_class else by_name
    if name in _CLASSES:
        return name
    by_files = [name for name, kind in _CLASSES.items() if all((folder / n).is_file() for n in kind.files)]
    if any_class and by_files:
        return by_files[0]
    file = next((folder / n for n in TOKENIZER_FILES if (folder / n).is_file()), None)
    if file is None:
        raise FormatError(f"{str(folder)[:300]} has no tokenizer: tokenizer.json, vocab.txt, or vocab.json with merges.txt is missing")
    raise _refusal(file, f"the tokenizer {f'of the network {network!r}' if any_class else written} is not known here without tokenizer.json")


def _add_words(tokenizer: Any, folder: Path, settings: Mapping[str, Any]) -> None:
    """Add the words of added_tokens.json and of ``added_tokens_decoder``, by their numbers."""
    table: Any = settings.get("added_tokens_decoder") or {}
    words = {number: {"content": word} for word, number in read_settings(folder / "added_tokens.json").items()}
    words |= {int(number): entry if isinstance(entry, dict) else {"content": entry} for number, entry in cast("dict[str, Any]", table).items()}
    for number, entry in sorted(words.items()):
        word = str(entry.get("content"))
        tokenizer.add_tokens([_added_word(word, entry)])
        if tokenizer.token_to_id(word) != number:
            raise FormatError(f"{folder}: the added word {word!r} must have the number {number}; here it has {tokenizer.token_to_id(word)}")


def _put_special_words(tokenizer: Any, kind: TokenizerClass, special: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    """Put special words around texts and pairs."""
    from tokenizers import processors

    single, pair = ([re.sub("[a-z]+", lambda role: special[role[0]], part) for part in form.split()] for form in kind.form)
    words = [(special[role], tokenizer.token_to_id(special[role])) for role in ("cls", "sep", "eos") if role in kind.form[0]]
    template: Any = processors.TemplateProcessing(single, pair, words)
    if kind.build is _byte_pieces:
        space = bool(settings.get("add_prefix_space", False))
        template = processors.Sequence([processors.ByteLevel(add_prefix_space=space, trim_offsets=True, use_regex=True), template])
    tokenizer.post_processor = template


# --- the classes


def _word_pieces(file: Path, settings: Mapping[str, Any], special: Mapping[str, str]) -> tuple[Any, Sequence[Any]]:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(models.WordPiece.read_file(str(file)), unk_token=special["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        strip_accents=settings.get("strip_accents"),
        lowercase=bool(settings.get("do_lower_case", True)),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer, ()


def _byte_pieces(file: Path, settings: Mapping[str, Any], special: Mapping[str, str]) -> tuple[Any, Sequence[Any]]:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    words, merges = models.BPE.read_file(str(file), str(file.with_name("merges.txt")))
    tokenizer = Tokenizer(models.BPE(words, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    space = bool(settings.get("add_prefix_space", False))
    if "cls" in special:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
        return tokenizer, ()
    tokenizer.normalizer = normalizers.NFC()
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated"), bytes_of_words])
    return tokenizer, ()


Scores = list[tuple[str, float]]
"""Pieces with their scores."""


def _unigrams(
    vocabulary: Callable[[Scores, Mapping[str, Any], Mapping[str, str]], Scores],
    normalizers_of: Callable[[Mapping[str, Any], Sequence[Any]], Sequence[Any]] = lambda settings, rules: rules,
    splits: bool = True,
) -> Callable[[Path, Mapping[str, Any], Mapping[str, str]], tuple[Any, Sequence[Any]]]:
    """Return the builder of a class over sentencepiece's pieces.

    Args:
        vocabulary: from the file's pieces to the class's.
        normalizers_of: the normalizers of a class, by the settings and the file's own.
        splits: texts are split at white space first.
    """

    def build(file: Path, settings: Mapping[str, Any], special: Mapping[str, str]) -> tuple[Any, Sequence[Any]]:
        from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

        from foreshape.language.wire.sentencepiece import CONTROL, UNIGRAM, USER_DEFINED, read_pieces

        model = read_pieces(file)
        if model.algorithm != UNIGRAM:
            raise _refusal(file, f"pieces of sentencepiece are known here of its algorithm unigram (1) alone; seen number {model.algorithm}")
        pieces = vocabulary([(p.text, p.score) for p in model.pieces], settings, special)
        words = [text for text, _ in pieces]
        if special["unk"] not in words:
            raise FormatError(f"{file} must have the word {special['unk']}")
        tokenizer = Tokenizer(models.Unigram(pieces, words.index(special["unk"]), byte_fallback=False))
        rules = [normalizers.Precompiled(model.character_map)] if model.character_map else []
        steps = normalizers_of(settings, rules)
        if steps:
            tokenizer.normalizer = normalizers.Sequence([*steps])
        before: list[Any] = [pre_tokenizers.WhitespaceSplit()] if splits else []
        if settings.get("split_by_punct"):
            before.append(pre_tokenizers.Punctuation("isolated"))
        scheme = "always" if settings.get("add_prefix_space", True) else "never" if splits else "first"
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, pre_tokenizers.Metaspace(prepend_scheme=scheme)])
        added = [AddedToken(p.text, normalized=False, special=p.kind == CONTROL) for p in model.pieces if p.kind in (CONTROL, USER_DEFINED)]
        return tokenizer, [*added, *(AddedToken(w, special=True) for w in words if w.startswith("<extra_id_"))]

    return build


def _albert_normalizers(settings: Mapping[str, Any], rules: Sequence[Any]) -> Sequence[Any]:
    from tokenizers import normalizers

    out: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        out += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", True):
        out.append(normalizers.Lowercase())
    return [*out, *rules]


def _deberta_normalizers(settings: Mapping[str, Any], rules: Sequence[Any]) -> Sequence[Any]:
    from tokenizers import Regex, normalizers

    small = [normalizers.Lowercase()] if settings.get("do_lower_case", False) else []
    return [*small, normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(left=False, right=True)]


def _scored(*words: str) -> Scores:
    return [(word, 0.0) for word in words]


def _camembert(pieces: Scores, settings: Mapping[str, Any], special: Mapping[str, str]) -> Scores:
    first = _scored("<s>NOTUSED", special["pad"], "</s>NOTUSED", special["unk"])
    return [*first, ("<unk>NOTUSED", -100.0), *pieces[1:], (special["mask"], 0.0)]


def _t5(pieces: Scores, settings: Mapping[str, Any], special: Mapping[str, str]) -> Scores:
    return [*pieces, *_scored(*(f"<extra_id_{i}>" for i in reversed(range(settings.get("extra_ids", 100)))))]


_BERT: Final = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA: Final = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
_BERT_FORM: Final = ("cls $A sep", "cls $A sep $B sep")
_TYPED_FORM: Final = ("cls $A sep", "cls $A sep $B:1 sep:1")
_ROBERTA_FORM: Final = ("cls $A sep", "cls $A sep sep $B sep")
_CLASSES: Final[Mapping[str, TokenizerClass]] = {
    "bert": TokenizerClass(_WORDS, _BERT, _word_pieces, _TYPED_FORM),
    "distilbert": TokenizerClass(_WORDS, _BERT, _word_pieces, _BERT_FORM),
    "electra": TokenizerClass(_WORDS, _BERT, _word_pieces, _TYPED_FORM),
    "mpnet": TokenizerClass(_WORDS, {**_ROBERTA, "unk": "[UNK]"}, _word_pieces, _ROBERTA_FORM),
    "roberta": TokenizerClass(_MERGES, _ROBERTA, _byte_pieces, _ROBERTA_FORM),
    "qwen2": TokenizerClass(_MERGES, dict.fromkeys(("eos", "unk", "pad"), "<|endoftext|>"), _byte_pieces, ("$A", "$A $B")),
    "xlmroberta": TokenizerClass(
        _PIECES,
        _ROBERTA,
        _unigrams(lambda pieces, settings, s: [*_scored(s["bos"], s["pad"], s["eos"], s["unk"]), *pieces[3:], (s["mask"], 0.0)]),
        _ROBERTA_FORM,
    ),
    "camembert": TokenizerClass(_PIECES, _ROBERTA, _unigrams(_camembert), _ROBERTA_FORM),
    "albert": TokenizerClass(
        _PIECES, {**_BERT, "unk": "<unk>", "pad": "<pad>"}, _unigrams(lambda pieces, settings, special: pieces, _albert_normalizers), _BERT_FORM
    ),
    "debertav2": TokenizerClass(
        _PIECES,
        _BERT,
        _unigrams(lambda pieces, settings, s: pieces if (s["mask"], 0.0) in pieces else [*pieces, (s["mask"], 0.0)], _deberta_normalizers, splits=False),
        _TYPED_FORM,
    ),
    "t5": TokenizerClass(_PIECES, {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, _unigrams(_t5), ("$A eos", "$A eos $B eos")),
}
"""The class by its name in small letters, without "Tokenizer"; the first with a folder's files is its default."""


def _refusal(file: Path, reason: str) -> SchemaError:
    folder = str(file.parent)[:300]
    return SchemaError(f"{file}: {reason}; transformers writes tokenizer.json: AutoTokenizer.from_pretrained({folder!r}).save_pretrained({folder!r})")


def _added_word(word: str, entry: Any, **flags: bool) -> Any:
    """Return an indivisible word, with the flags of its entry in a configuration."""
    from tokenizers import AddedToken

    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    written = {name: bool(fields[name]) for name in ("single_word", "lstrip", "rstrip", "normalized", "special") if name in fields}
    return AddedToken(word, **{**written, **flags})


def _content(word: Any, default: str) -> str:
    """Return a special word of a configuration: a text, or an object with it."""
    content: Any = cast("dict[str, Any]", word).get("content", default) if isinstance(word, dict) else word
    return default if content is None else str(content)
