"""Small folders of tokenizers without tokenizer.json, in the forms of their classes in transformers: the same here and there."""

from __future__ import annotations

import base64
import json
import string
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEXTS = [
    "The ship left the harbour at dawn",
    "",
    "  two   spaces,\n and\ttabs ",
    "na\u00efve \uff21 \ufb01ne\u2026 \u00e9t\u00e9\u00a0dawn",
    "of <mask> and [MASK] numbers</s> [SEP]<pad> <extra_id_3> query",
    "\u6570\u5b57 of 1,234.5! caf\u00e9 caf\u00e9\u3002",
    "A-ship's MASK, ``one'' and 'two'",
]
PAIRS = [("the ship", "a row of numbers"), ("one", "two three, four")]
_WORDS = ["the", "ship", "left", "harbour", "at", "dawn", "a", "row", "of", "numbers", "and", "mask", "query", "find", "text", "one", "two", "three"]
_LETTERS = string.ascii_letters + string.digits + ",.!'-`\"\u00e9"
NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4
Piece = tuple[str, float, int]
_USUAL: list[Piece] = [
    *(("\u2581" + word, -4.0 - i / 8, NORMAL) for i, word in enumerate(_WORDS)),
    *((letter, -9.0 - i / 16, NORMAL) for i, letter in enumerate("\u2581" + _LETTERS)),
    *(("er", -7.0, NORMAL), ("\u2581s", -7.5, NORMAL), ("5,", -6.0, NORMAL), ("new\u2581word", -2.0, USER)),
]


def field(number: int, value: bytes | int | float) -> bytes:
    """The bytes of one field of a protobuf message."""
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def character_map() -> bytes:
    """Rules that sentencepiece wrote: the ligature fi, a wide A, a space without break, and three dots in one."""
    return zlib.decompress(base64.b85decode(json.loads(Path(__file__).with_name("expected_tokens.json").read_text())["character_map"]))


def pieces_model(special: Sequence[Piece], *, unknown: int, rules: bytes = b"", algorithm: int = 1) -> bytes:
    """A model of sentencepiece: special pieces, then words and letters with scores."""
    out = b"".join(
        field(1, field(1, text.encode()) + field(2, score) + (field(3, kind) if kind != NORMAL else b"")) for text, score, kind in [*special, *_USUAL]
    )
    return out + field(2, field(3, algorithm) + field(40, unknown)) + field(3, field(1, b"rules") + (field(2, rules) if rules else b""))


def _special(names: str, unknown: str) -> list[Piece]:
    return [(name, 0.0, UNKNOWN if name == unknown else CONTROL) for name in names.split()]


def _words(names: str) -> str:
    parts = [*names.split(), *_WORDS, *(c for c in _LETTERS if c != c.lower() or c == c.lower()), *("##" + c for c in _LETTERS), "##er", "\u6570", "The"]
    return "\n".join(dict.fromkeys(parts)) + "\n"


def _merges(special: str) -> tuple[str, str]:
    letters = [*(c if c != " " else "\u0120" for c in string.printable[:95]), "\u0120", "\u010a", "\u0109", "\u00c3", "\u00c2", "\u00a9", "\u00af", "\u0142"]
    merges = ["t h", "th e", "\u0120 t", "\u0120 s", "h i", "\u0120 a", "o n", "on e", "\u0120 1", "1 2", "\u00c3 \u00a9", "' s"]
    words = dict.fromkeys([*special.split(), *letters, *(m.replace(" ", "") for m in merges)])
    return json.dumps({w: i for i, w in enumerate(words)}), "#version: 0.2\n" + "\n".join(merges) + "\n"


def _byte_words(special: str) -> dict[str, str]:
    return dict(zip(("vocab.json", "merges.txt"), _merges(special), strict=True))


_BERT, _ROBERTA = "[PAD] [UNK] [CLS] [SEP] [MASK]", "<s> <pad> </s> <unk> <mask>"


def cases() -> dict[str, tuple[str, dict[str, Any], dict[str, str | bytes]]]:
    """The class of transformers and what else tells the case -> the kind of the network, tokenizer_config.json, and the files."""
    rules = character_map()
    fairseq = pieces_model(_special("<unk> <s> </s>", "<unk>"), unknown=0, rules=rules)
    albert = pieces_model(_special("<pad> <unk> [CLS] [SEP] [MASK]", "<unk>"), unknown=1, rules=rules)
    deberta = pieces_model(_special("[PAD] [CLS] [SEP] [UNK]", "[UNK]"), unknown=3, rules=rules)
    t5 = pieces_model(_special("<pad> </s> <unk>", "<unk>"), unknown=2, rules=rules)
    return {
        "BertTokenizer": ("bert", {}, {"vocab.txt": _words(_BERT)}),
        "BertTokenizer cased": ("bert", {"do_lower_case": False, "tokenize_chinese_chars": False}, {"vocab.txt": _words(_BERT)}),
        "DistilBertTokenizer": ("distilbert", {"strip_accents": False}, {"vocab.txt": _words(_BERT)}),
        "BertTokenizer of other special words": (
            "bert",
            {},
            {"vocab.txt": _words("<pad> [UNK] <c> <s> [MASK]"), "special_tokens_map.json": json.dumps({"cls_token": "<c>", "sep_token": {"content": "<s>"}})},
        ),
        "MPNetTokenizer": ("mpnet", {}, {"vocab.txt": _words("<s> <pad> </s> <unk> [UNK] <mask>")}),
        "RobertaTokenizer": ("roberta", {}, _byte_words(_ROBERTA)),
        "RobertaTokenizer with a space": ("roberta", {"add_prefix_space": True}, _byte_words(_ROBERTA)),
        "RobertaTokenizer whose mask takes the space before it": (
            "roberta",
            {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}},
            _byte_words(_ROBERTA),
        ),
        "RobertaTokenizer with added words": (
            "roberta",
            {
                "added_tokens_decoder": {
                    "119": {"content": "query", "lstrip": True, "rstrip": False, "normalized": False, "single_word": True, "special": False}
                }
            },
            _byte_words(_ROBERTA),
        ),
        "Qwen2Tokenizer": ("qwen3", {}, _byte_words("<|endoftext|>")),
        "XLMRobertaTokenizer": ("xlm-roberta", {}, {"sentencepiece.bpe.model": fairseq}),
        "CamembertTokenizer": ("camembert", {}, {"sentencepiece.bpe.model": fairseq}),
        "AlbertTokenizer": ("albert", {}, {"spiece.model": albert}),
        "AlbertTokenizer with accents": ("albert", {"keep_accents": True, "do_lower_case": False}, {"spiece.model": albert}),
        "DebertaV2Tokenizer": ("deberta-v2", {}, {"spm.model": deberta}),
        "DebertaV2Tokenizer with a numbered mask": (
            "deberta-v2",
            {},
            {"spm.model": deberta, "added_tokens.json": json.dumps({"[MASK]": 4 + len(_USUAL), "ship's": 5 + len(_USUAL)})},
        ),
        "DebertaV2Tokenizer by punctuation": ("deberta-v2", {"split_by_punct": True, "do_lower_case": True}, {"spm.model": deberta}),
        "T5Tokenizer": ("t5", {}, {"spiece.model": t5}),
        "T5Tokenizer without rules": (
            "t5",
            {"extra_ids": 5},
            {"spiece.model": pieces_model(_special("<pad> </s> <unk>", "<unk>"), unknown=2)},
        ),
    }


def write_tokenizer_folder(folder: Path, case: str, *, named: bool = True) -> None:
    """Write the files of a case.

    Args:
        named: the class stands in tokenizer_config.json; otherwise the kind of the network in config.json alone tells it.
    """
    folder.mkdir(exist_ok=True)
    kind, config, files = cases()[case]
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    if named or config:
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, **({"tokenizer_class": case.split()[0]} if named else {})}))
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
