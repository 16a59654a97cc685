"""Words of a language model as text, piece by piece: whole letters, the text of all words together, and stops across pieces."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="the extra serve")
from support.chat_models import VOCABULARY, byte_tokenizer, write_chat_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from foreshape.apps.tokenization.prompt_tokenizer import PromptTokenizer, StopSearch, TextPieces, has_tokenizer

TEXTS = ["Grüße, 世界! 👩‍👩‍👧 naïve\n", "a € b", "  two  spaces ", "�", "x" * 200, "👍" * 50]
Words = Callable[[Sequence[int]], str]


def of_bytes() -> tuple[Tokenizer, Words]:
    """Bytes as letters, as of GPT-2 and Qwen."""
    tokenizer = byte_tokenizer({letter: number for number, letter in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|end|>"])})
    return tokenizer, lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


def of_fallback() -> tuple[Tokenizer, Words]:
    """Pieces with marks for spaces, and bytes for other letters, as of Llama 2."""
    words = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abdeiopstuw", "▁a", "▁b"]
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [("▁", "a"), ("▁", "b")], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer, lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", [of_bytes, of_fallback])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_whole_letters_and_together_the_text(kind: Callable[[], tuple[Tokenizer, Words]], text: str) -> None:
    tokenizer, decode = kind()
    words = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = TextPieces(decode)
    out = [pieces.add([word]) for word in words]
    out.append(pieces.add([], last=True))
    assert "".join(out) == decode(words) == (text.removeprefix(" ") if kind is of_fallback else text)
    assert text == "�" or not any("�" in piece for piece in out)
    assert TextPieces(decode).add(words, last=True) == decode(words)


@pytest.mark.parametrize("kind", [of_bytes, of_fallback])
def test_any_words_make_one_text_however_they_are_cut(kind: Callable[[], tuple[Tokenizer, Words]]) -> None:
    tokenizer, decode = kind()
    draw, same = random.Random(0), 0
    for _ in range(200):
        words = [draw.randrange(tokenizer.get_vocab_size()) for _ in range(draw.randrange(1, 40))]
        one, single = TextPieces(decode), TextPieces(decode)
        whole = one.add(words, last=True)
        assert "".join([*(single.add([word]) for word in words), single.add([], last=True)]) == whole
        same += whole == decode(words)
        whole.encode()
    assert same == 200 or kind is of_fallback  # there a wrong byte makes those before it wrong, too


def test_a_text_goes_on_behind_its_prompt() -> None:
    tokenizer, decode = of_fallback()
    prompt, words = tokenizer.encode("a").ids, [tokenizer.token_to_id("▁b"), tokenizer.token_to_id("▁a")]
    assert TextPieces(decode, prompt).add(words, last=True) == " b a"
    assert TextPieces(decode).add(words, last=True) == "b a"
    _, decode = of_bytes()
    half = of_bytes()[0].encode("€").ids
    assert TextPieces(decode, half[:1]).add(half, last=True) == "€"  # a prompt of words that ends within a letter


def test_words_without_an_end_of_a_letter_are_not_held_forever() -> None:
    _, decode = of_bytes()
    broken = of_bytes()[0].encode("é").ids[:1]
    pieces = TextPieces(decode)
    count = sum(bool(pieces.add(broken)) for _ in range(1000))
    assert count == 1000 // 64


def test_the_words_of_a_folder(tmp_path: Path) -> None:
    assert not has_tokenizer(tmp_path)
    tokenizer = PromptTokenizer(write_chat_model(tmp_path / "m"))
    assert has_tokenizer(tmp_path / "m")
    words = tokenizer.words("ab€<|end|>")
    assert words == [15, 24, 9, 19, 35, VOCABULARY["<|end|>"]] and tokenizer.text(words) == "ab€"


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", ["three", "two"], "one "),
        ("ababac", ["abac"], "ab"),
        ("aaab", ["aab", "b"], "a"),
        ("abcd", ["abcd", "bc"], "a"),
        ("abc", ["abcd"], "abc"),
        ("€uro", ["u"], "€"),
        ("x", ["x"], ""),
        ("abc", [], "abc"),
    ],
)
def test_stops_cut_a_text_wherever_its_pieces_end(text: str, stops: list[str], expected: str) -> None:
    for cuts in range(1 << (len(text) - 1) if len(text) < 12 else 1, 1 << min(len(text), 12)):
        bounds = [0, *(i for i in range(1, len(text)) if cuts >> (i - 1) & 1), len(text)]
        search, out = StopSearch(stops), ""
        for begin, end in pairwise(bounds):
            piece = search.add(text[begin:end], last=end == len(text))
            out += piece
            assert expected.startswith(out)
            if search.ended:
                break
        assert out == expected and search.ended == (out != text)
