"""Bytes through a store: in parts, whole or not at all."""

from __future__ import annotations

import hashlib

import pytest
import torch

import foreshape as fs
from foreshape.machine.communication import parcel
from foreshape.machine.communication.parcel import drop, put, take, word


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> torch.distributed.HashStore:
    monkeypatch.setattr(parcel, "PART", 10)
    return torch.distributed.HashStore()


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 95])
def test_what_is_put_is_taken_and_dropped(store: torch.distributed.HashStore, size: int) -> None:
    data = bytes(range(size))
    assert take(store, "job", 100) is None
    put(store, "job", data)
    assert take(store, "job", size) == data
    assert all(len(store.get(f"job/{at}")) <= 10 for at in range(-(-size // 10)))
    before = store.num_keys()
    drop(store, "job")
    assert take(store, "job", 100) is None and before - store.num_keys() == 1 + -(-size // 10)


def test_more_than_is_allowed_is_refused_before_any_of_it_is_read(store: torch.distributed.HashStore) -> None:
    put(store, "job", bytes(30))
    for at in range(3):
        store.delete_key(f"job/{at}")
    with pytest.raises(fs.FormatError, match=r"job: 30 bytes; at most 29 are taken"):
        take(store, "job", 29)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("job", b"", "not a number of bytes and a checksum"),
        ("job", b"25", "not a number of bytes and a checksum"),
        ("job", b"-5 " + b"0" * 64, "not a number of bytes and a checksum"),
        ("job", b"9" * 16 + b" " + b"0" * 64, "not a number of bytes and a checksum"),
        ("job", b"25 " + b"0" * 64, "the checksum differs"),
        ("job", b"35 " + hashlib.sha256(bytes(25)).hexdigest().encode(), "job/2: 5 bytes, where 10 must be"),
        ("job", b"20 " + hashlib.sha256(bytes(25)).hexdigest().encode(), "the checksum differs"),
        ("job/1", None, "job/1: missing, of 25 bytes in 3 parts"),
        ("job/1", bytes(9), "job/1: 9 bytes, where 10 must be"),
        ("job/1", bytes(11), "job/1: 11 bytes, where 10 must be"),
        ("job/2", b"other", "the checksum differs"),
        ("job/2", bytes(10), "job/2: 10 bytes, where 5 must be"),
    ],
)
def test_what_is_not_what_was_put_is_refused(store: torch.distributed.HashStore, key: str, value: bytes | None, words: str) -> None:
    put(store, "job", bytes(25))
    if value is None:
        store.delete_key(key)
    else:
        store.set(key, value)
    with pytest.raises(fs.FormatError, match=words):
        take(store, "job", 100)


def test_dropping_what_lies_about_its_size_ends(store: torch.distributed.HashStore) -> None:
    store.set("job", b"999999999999999 " + b"0" * 64)
    drop(store, "job")
    assert not store.check(["job"])


def test_a_word_has_a_limit(store: torch.distributed.HashStore) -> None:
    assert word(store, "say") is None
    store.set("say", b"12345")
    assert word(store, "say", 5) == b"12345"
    with pytest.raises(fs.FormatError, match="say: 5 bytes; at most 4 are taken"):
        word(store, "say", 4)
