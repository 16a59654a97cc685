"""The two readers of a record leave the same: a program is the same whether the fast one takes a share of its records or none."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from support.some import one_in

import foreshape as fs

CORPUS = Path(__file__).parents[1] / "corpus"
FILES = sorted(str(p.relative_to(CORPUS)) for p in CORPUS.glob("*/*.pdmodel"))
decoding = importlib.import_module("foreshape.language.wire.decode")


@pytest.mark.parametrize("file", one_in(4, FILES))
def test_both_readers_leave_the_same(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (CORPUS / file).read_bytes()
    usual, taken = decoding.read_records, list[int]()

    def counting(data: bytes, letters: str, at: int, *rest: object) -> int:
        taken.append(usual(data, letters, at, *rest) - at)
        return at + taken[-1]

    monkeypatch.setattr(decoding, "read_records", counting)
    decoding.decode(data)  # what is distinct is kept from here on
    with_both = decoding.decode(data)
    monkeypatch.setattr(decoding, "read_records", lambda data, letters, at, *rest: at)
    careful: fs.Program = decoding.decode(data)
    assert sum(taken) > len(data) // 10 or len(data) < 10_000, "the fast one takes records of a network of some size"
    assert str(with_both) == str(careful) and with_both.to_bytes() == careful.to_bytes()
