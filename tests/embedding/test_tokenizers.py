"""Tokenizers without tokenizer.json: the numbers of tokens that transformers gives, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="the extra embed")

from tokenizer_folders import PAIRS, TEXTS, cases, field, pieces_model, write_tokenizer_folder

from foreshape.apps.tokenization.text_tokenizer import TextTokenizer
from foreshape.errors import FormatError, SchemaError

EXPECTED = json.loads(Path(__file__).with_name("expected_tokens.json").read_text())
CASES = [*cases()]


@pytest.mark.parametrize("named", [True, False], ids=["by its class", "by the network"])
@pytest.mark.parametrize("case", CASES)
def test_a_vocabulary_gives_the_numbers_of_transformers(case: str, named: bool, tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, case, named=named)
    tokenizer = TextTokenizer(tmp_path, None, None)
    assert [list(t.ids) for t in tokenizer(TEXTS)] == EXPECTED[case]["texts"]
    pairs = tokenizer(PAIRS)
    assert [list(t.ids) for t in pairs] == EXPECTED[case]["pairs"]
    assert [list(t.types) for t in pairs] == EXPECTED[case]["types"]


def refused(folder: Path, error: type[Exception], *words: str) -> None:
    with pytest.raises(error) as raised:
        TextTokenizer(folder, None, None)
    assert [word for word in words if word not in str(raised.value)] == []


def test_a_vocabulary_without_a_form_here_is_refused_with_the_way_to_tokenizer_json(tmp_path: Path) -> None:
    way = f"AutoTokenizer.from_pretrained({str(tmp_path)!r}).save_pretrained({str(tmp_path)!r})"
    write_tokenizer_folder(tmp_path, "XLMRobertaTokenizer")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    refused(tmp_path, SchemaError, str(tmp_path / "sentencepiece.bpe.model"), "GemmaTokenizer", way)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert [list(t.ids) for t in TextTokenizer(tmp_path, None, None)(TEXTS)] == EXPECTED["XLMRobertaTokenizer"]["texts"]
    (tmp_path / "config.json").write_text('{"model_type": "gemma3_text"}')
    refused(tmp_path, SchemaError, str(tmp_path / "sentencepiece.bpe.model"), "of the network 'gemma3_text'", way)
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    (tmp_path / "sentencepiece.bpe.model").write_bytes(pieces_model([("<unk>", 0.0, 2)], unknown=0, algorithm=2))
    refused(tmp_path, SchemaError, str(tmp_path / "sentencepiece.bpe.model"), "unigram", "seen number 2", way)


@pytest.mark.parametrize(
    ("case", "change", "words"),
    [
        ("BertTokenizer", lambda f: (f / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\na\n"), ["vocab.txt must have the word [SEP]"]),
        ("BertTokenizer", lambda f: (f / "vocab.txt").write_bytes(b"\xff\n"), ["vocab.txt cannot be read"]),
        ("BertTokenizer", lambda f: (f / "config.json").write_text('{"model_type": "bert", "vocab_size": 30522}'), ["30,522: the file seems to be cut"]),
        ("BertTokenizer", lambda f: (f / "vocab.txt").unlink(), ["has no tokenizer: tokenizer.json, or vocab.txt is missing"]),
        ("RobertaTokenizer", lambda f: (f / "merges.txt").unlink(), ["vocab.json with merges.txt is missing"]),
        ("RobertaTokenizer", lambda f: (f / "vocab.json").write_text("[]"), ["vocab.json cannot be read"]),
        ("RobertaTokenizer", lambda f: (f / "added_tokens.json").write_text('{"<new>": 500}'), ["'<new>' must have the number 500; here it has 119"]),
        ("T5Tokenizer", lambda f: (f / "spiece.model").write_bytes(b""), ["spiece.model is no model of sentencepiece: it has no pieces"]),
        ("T5Tokenizer", lambda f: (f / "spiece.model").write_bytes(b"\x0a\xff"), ["spiece.model is no model of sentencepiece"]),
        ("T5Tokenizer", lambda f: (f / "spiece.model").write_bytes(field(1, field(1, b"\xff"))), ["spiece.model is no model of sentencepiece"]),
        ("T5Tokenizer", lambda f: (f / "spiece.model").write_bytes(field(1, field(1, b"a"))), ["spiece.model must have the word <unk>"]),
        ("T5Tokenizer", lambda f: (f / "spiece.model").unlink(), ["one of sentencepiece.bpe.model, spiece.model, spm.model, tokenizer.model is missing"]),
        ("AlbertTokenizer", lambda f: (f / "spiece.model").write_bytes(pieces_model([("<unk>", 0.0, 2)], unknown=0)), ["must have the word [SEP]"]),
    ],
)
def test_a_damaged_or_missing_vocabulary_is_named(case: str, change: Callable[[Path], object], words: list[str], tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, case)
    change(tmp_path)
    refused(tmp_path, FormatError, *words)


def test_a_folder_without_a_class_takes_that_of_its_files(tmp_path: Path) -> None:
    for case in ("BertTokenizer", "RobertaTokenizer"):
        folder = tmp_path / case
        write_tokenizer_folder(folder, case, named=False)
        (folder / "config.json").unlink()
        assert [list(t.ids) for t in TextTokenizer(folder, None, None)(TEXTS)] == EXPECTED[case]["texts"]
    refused(tmp_path, FormatError, "has no tokenizer: tokenizer.json, vocab.txt, or vocab.json with merges.txt is missing")


def test_a_piece_defined_by_a_user_is_one_token(tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, "T5Tokenizer")
    tokenizer = TextTokenizer(tmp_path, None, None)
    assert [t.text for t in tokenizer.tokens("a new\u2581word a", False)][1] == "new\u2581word"
