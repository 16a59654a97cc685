"""Bytes of any length through a store of keys: in parts of bounded size, announced with their number and checksum at the end."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, Protocol

from foreshape.errors import FormatError

PART: Final = 1 << 20
"""The bytes of a part; torch's store refuses more than eight times as many."""
MAX_WORD: Final = 1 << 16
"""The bytes that fit one key."""
_TOLD: Final = re.compile(rb"([0-9]{1,15}) ([0-9a-f]{64})")


class Store(Protocol):
    """The used part of torch's stores."""

    def set(self, key: str, value: bytes) -> Any: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def delete_key(self, key: str) -> bool: ...


def put(store: Store, key: str, data: bytes) -> None:
    """Put bytes into a store. They are there for others when the last key is."""
    for start in range(0, len(data), PART):
        store.set(f"{key}/{start // PART}", data[start : start + PART])
    store.set(key, f"{len(data)} {hashlib.sha256(data).hexdigest()}".encode())


def take(store: Store, key: str, limit: int) -> bytearray | None:
    """Return the bytes under a key; None if there are none yet.

    Raises:
        FormatError: more than ``limit`` bytes, parts missing or of another length, or a wrong checksum.
    """
    if not store.check([key]):
        return None
    header = _TOLD.fullmatch(store.get(key))
    if header is None:
        raise FormatError(f"{key}: not a number of bytes and a checksum")
    size = int(header[1])
    if size > limit:
        raise FormatError(f"{key}: {size} bytes; at most {limit} are taken")
    out = bytearray()
    for start in range(0, size, PART):
        part = f"{key}/{start // PART}"
        if not store.check([part]):
            raise FormatError(f"{part}: missing, of {size} bytes in {-(-size // PART)} parts")
        data = store.get(part)
        if len(data) != min(PART, size - start):
            raise FormatError(f"{part}: {len(data)} bytes, where {min(PART, size - start)} must be")
        out += data
    if hashlib.sha256(out).hexdigest().encode() != header[2]:
        raise FormatError(f"{key}: its bytes are not those that were put there (the checksum differs)")
    return out


def drop(store: Store, key: str) -> None:
    """Remove the bytes under a key."""
    if store.check([key]):
        header = _TOLD.fullmatch(store.get(key))
        store.delete_key(key)
        for start in range(0, int(header[1]) if header is not None else 0, PART):
            if not store.delete_key(f"{key}/{start // PART}"):  # nobody has put more
                break


def word(store: Store, key: str, limit: int = MAX_WORD) -> bytes | None:
    """Return the value of one key; None without one. Raise `FormatError` for more than ``limit`` bytes."""
    if not store.check([key]):
        return None
    data = store.get(key)
    if len(data) > limit:
        raise FormatError(f"{key}: {len(data)} bytes; at most {limit} are taken")
    return data
