"""Tokenizers and chat templates in GGUF files: the words of hard texts, those of the tokenizers they come from, and damaged files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="the extra embed")
pytest.importorskip("jinja2", reason="the extra serve")
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

import foreshape as fs
from foreshape.apps.generation.gguf_vocabulary import vocabulary_facts
from foreshape.apps.tokenization.prompt_tokenizer import PromptTokenizer, chat_template_of, has_tokenizer
from foreshape.interop.gguf_pre_tokenizers import PRE_TOKENIZERS
from foreshape.interop.gguf_writer import header_bytes, numbers, text, texts, truth, whole, whole_numbers

TEXTS = (
    *("Hello world", " leading", "  two", "trailing  ", "a  b   c\t\td\n\n\ne", "don't WE'LL I'm", "1234567 12 3.14", "naïve Übergröße", "日本語 東京"),
    *("😀👍🏽 👨\u200d👩\u200d👧", "\0\x01x", "", " ", "\n", "x\u00a0y\u2003z", "e\u0301 é", "\U0010ffff\ue000", "<s> not </s>", "<think> a</think>"),
    *("!!!...???", "for(i=0;i<n;++i){a[i]='b';}", "CamelCASEwords_x", "a" * 40, "<0x0A>"),
)
SPECIAL = ("<s>", "</s>", "<|im_end|>")


def written(file: Path, facts: dict[str, bytes]) -> Path:
    file.write_bytes(header_bytes({"general.architecture": text("llama")} | facts, {}))
    return file


def scored(words: dict[str, float], prefix: bool = True, **further: bytes) -> dict[str, bytes]:
    """The facts of pieces with scores, with all bytes and some special words."""
    octets = [f"<0x{octet:02X}>" for octet in range(256)]
    every = ["<unk>", "<s>", "</s>", *octets, *words, "<think>", "  "]
    return {
        "tokenizer.ggml.model": text("llama"),
        "tokenizer.ggml.tokens": texts(every),
        "tokenizer.ggml.scores": numbers([0.0] * 259 + [*words.values()] + [0.0] * 2),
        "tokenizer.ggml.token_type": whole_numbers([2, 3, 3] + [6] * 256 + [1] * len(words) + [4, 4]),
        "tokenizer.ggml.bos_token_id": whole(1),
        "tokenizer.ggml.eos_token_id": whole(2),
        "tokenizer.ggml.unknown_token_id": whole(0),
        "tokenizer.ggml.add_space_prefix": truth(prefix),
    } | {f"tokenizer.ggml.{name}": fact for name, fact in further.items()}


PIECES = {"▁a": -1.0, "ab": -2.0, "▁ab": -3.0, "abc": -0.5, "bc": -4.0, "▁": -10.0, "a": -11.0, "b": -12.0, "c": -13.0}


def tokens(tokenizer: PromptTokenizer, words: list[int], every: list[str]) -> list[str]:
    return [every[word] for word in words]


def test_pieces_are_joined_by_their_scores(tmp_path: Path) -> None:
    tokenizer = PromptTokenizer(written(tmp_path / "model.gguf", scored(PIECES)))
    every = ["<unk>", "<s>", "</s>", *(f"<0x{octet:02X}>" for octet in range(256)), *PIECES, "<think>", "  "]
    for prompt, expected in {
        "abc": ["<s>", "▁ab", "c"],  # ▁a before ab, though abc has the best score of all; then ▁ab before bc
        "b abc": ["<s>", "▁", "b", "▁ab", "c"],
        "": ["<s>"],
        " a": ["<s>", "▁", "▁a"],  # a space is put before, whatever is there
        "€": ["<s>", "▁", "<0xE2>", "<0x82>", "<0xAC>"],
        "b</s>a<think>c": ["<s>", "▁", "b", "</s>", "▁a", "<think>", "▁", "c"],
        "b  c": ["<s>", "▁", "b", "  ", "▁", "c"],
    }.items():
        assert tokens(tokenizer, tokenizer.words(prompt), every) == expected, prompt
        assert tokenizer.words(prompt, special=False) == tokenizer.words(prompt)[1:]
    for prompt in TEXTS:
        assert "</s>" in prompt or "<s>" in prompt or "<think>" in prompt or "  " in prompt or tokenizer.text(tokenizer.words(prompt)) == prompt
    plain = PromptTokenizer(written(tmp_path / "model.gguf", scored(PIECES, prefix=False, add_bos_token=truth(False), add_eos_token=truth(True))))
    assert tokens(plain, plain.words("abc"), every) == ["abc", "</s>"] and plain.text(plain.words(" a")) == " a"


@pytest.mark.parametrize("name", ["default", "gpt-2", "llama-bpe", "dbrx", "qwen2", "smollm", "tekken", "gpt-4o"])
def test_pieces_of_bytes_are_those_of_the_tokenizer(name: str, tmp_path: Path) -> None:
    """A tokenizer as transformers saves it, written with the network and read back."""
    pre = PRE_TOKENIZERS[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre.whole_first))
    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in pre.cuts]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([" ".join(TEXTS)] * 3, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in SPECIAL])  # pyright: ignore[reportUnknownMemberType]
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])  # pyright: ignore[reportUnknownMemberType]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ eos_token }}!"}))
    facts = vocabulary_facts(tmp_path, tokenizer.get_vocab_size() + 3)
    file = written(tmp_path / "model.gguf", facts)
    assert has_tokenizer(file)
    own = PromptTokenizer(file)
    for prompt in TEXTS:
        assert own.words(prompt) == tokenizer.encode(prompt).ids, prompt
    template = chat_template_of(file)
    assert template is not None and template.render([]) == "</s>!"
    assert PRE_TOKENIZERS[name] is PRE_TOKENIZERS[fact_text(facts["tokenizer.ggml.pre"])]


def fact_text(fact: bytes) -> str:
    return fact[12:].decode()


def test_words_around_texts_come_over(tmp_path: Path) -> None:
    from tokenizers import processors

    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])  # pyright: ignore[reportUnknownMemberType]
    for form, expected in (("<s> $A", [3, 2]), ("$A </s>", [2, 4]), ("<s> $A </s>", [3, 2, 4])):
        tokenizer.post_processor = processors.TemplateProcessing(form, special_tokens=[("<s>", 3), ("</s>", 4)])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        assert PromptTokenizer(written(tmp_path / "model.gguf", vocabulary_facts(tmp_path, 5))).words("ab") == expected
    with pytest.raises(fs.SchemaError, match="without a form in GGUF files: one of 5 words, for a network of 4"):
        vocabulary_facts(tmp_path, 4)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(fs.SchemaError, match="with the step Whitespace before its pieces"):
        vocabulary_facts(tmp_path, 5)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece", "vocab": {}}}')
    with pytest.raises(fs.SchemaError, match="without a form in GGUF files: one of the kind 'WordPiece'"):
        vocabulary_facts(tmp_path, 5)


def test_pieces_with_scores_come_over(tmp_path: Path) -> None:
    file = written(tmp_path / "model.gguf", scored({word: score for word, score in PIECES.items() if word != "  "}))
    own = PromptTokenizer(file)
    own._tokenizer.save(str(tmp_path / "tokenizer.json"))  # pyright: ignore[reportPrivateUsage]
    again = PromptTokenizer(written(tmp_path / "again.gguf", vocabulary_facts(tmp_path, 300)))
    assert all(again.words(prompt) == own.words(prompt) for prompt in (*TEXTS, "abc ab a abcabc"))


BYTES: dict[str, bytes] = {
    "tokenizer.ggml.model": text("gpt2"),
    "tokenizer.ggml.tokens": texts(["a", "b", "ab"]),
    "tokenizer.ggml.merges": texts(["a b"]),
    "tokenizer.ggml.pre": text("gpt-2"),
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": text("bert")}, r"tokenizer.ggml.model must be 'llama' \(sentencepiece with scores\) or 'gpt2' \(bytes with merges\); seen 'bert'"),
        ({"model": whole(1)}, "must be 'llama'"),
        ({"pre": text("chameleon")}, "tokenizer.ggml.pre must be one of 'codeshell', 'command-r', .*; seen 'chameleon'"),
        ({"pre": whole(1)}, "tokenizer.ggml.pre must be one of"),
        ({"tokens": texts(["a", "b", "a"])}, "must have words that differ, and are not empty; seen 'a' twice"),
        ({"tokens": texts(["a", "", "b"])}, "must have words that differ, and are not empty; seen ''"),
        ({"merges": texts(["a b c"])}, "tokenizer.ggml.merges must be two words each; seen 'a b c'"),
        ({"merges": texts(["a x"])}, "its tokenizer cannot be read: .*"),
        ({"token_type": whole_numbers([1, 1])}, "token_type must be an array of 3 numbers, one for each word; seen 2"),
        ({"token_type": text("x")}, "token_type must be an array of 3 numbers"),
        ({"add_bos_token": whole(1)}, "add_bos_token must be true or false; seen 1"),
        ({"add_space_prefix": truth(True)}, "a tokenizer of bytes with add_space_prefix is not known here"),
        ({"tokens": struct.pack("<IIQQ1s", 9, 8, 1, 1, b"\xff")}, "a name or a word that is no UTF-8"),
        ({"merges": whole(1)}, "must have tokenizer.ggml.merges"),
        ({"tokens": whole(1)}, "has no tokenizer: tokenizer.ggml.tokens is missing"),
    ],
)
def test_tokenizers_that_are_refused(changes: dict[str, bytes], says: str, tmp_path: Path) -> None:
    file = written(tmp_path / "model.gguf", BYTES | {f"tokenizer.ggml.{name}": fact for name, fact in changes.items()})
    with pytest.raises((fs.FormatError, fs.SchemaError), match=says):
        PromptTokenizer(file)


def test_long_pieces_and_bad_templates_are_refused(tmp_path: Path) -> None:
    """A piece is cut at each of its letters: a long one would take the time of its square."""
    with pytest.raises(fs.FormatError, match="has 1,025 letters"):
        PromptTokenizer(written(tmp_path / "model.gguf", scored({"x" * 1025: 0.0})))
    with pytest.raises(fs.FormatError, match="and the score nan"):
        PromptTokenizer(written(tmp_path / "model.gguf", scored({"x": float("nan")})))
    for source, says in ((text("{% if %}"), "is no template of Jinja"), (whole(1), "tokenizer.chat_template must be a text; seen int")):
        with pytest.raises(fs.FormatError, match=says):
            chat_template_of(written(tmp_path / "model.gguf", BYTES | {"tokenizer.chat_template": source}))
    assert chat_template_of(written(tmp_path / "model.gguf", BYTES)) is None
    assert not has_tokenizer(written(tmp_path / "model.gguf", {}))
