"""Changes of bytes that nobody has thought of, drawn from a generator."""

from __future__ import annotations

import random
from collections.abc import Sequence

INTERESTING = [0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x08, 0x0A, 0x10, 0x12, 0x1A, 0x22, 0x62]
NUMBERS = [
    b"\x00", b"\x7f", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\x80\x80\x80\x80\x08",
]  # fmt: skip


def mutate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """One to eight changes: bits, bytes, numbers, pieces taken out, doubled, moved, exchanged or taken from another file."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if not out:
            break
        at = rng.randrange(len(out))
        size = min(rng.choice((1, 2, 4, 16, 64, 400)), len(out) - at)
        kind = rng.randrange(10)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice(INTERESTING)
        elif kind == 2:
            out[at : at + 1] = rng.choice(NUMBERS)
        elif kind == 3:
            del out[at : at + size]
        elif kind == 4:
            out[at:at] = out[at : at + size]
        elif kind == 5:
            piece = bytes(out[at : at + size])
            del out[at : at + size]
            to = rng.randrange(len(out) + 1)
            out[to:to] = piece
        elif kind == 6:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            out[at : at + size] = other[start : start + size]
        elif kind == 7:
            out[at : at + size] = rng.randbytes(size)
        elif kind == 8:
            _other_digits(out, rng)
        else:
            _exchange_names(out, rng)
    return bytes(out)


def _exchange_names(out: bytearray, rng: random.Random) -> None:
    """Put one short string in the place of another of the same length, so that the messages stay whole."""
    starts: dict[int, list[int]] = {}
    for at in range(len(out) - 2):
        size = out[at]
        if 1 <= size < 40 and at + 1 + size <= len(out) and all(0x20 <= c < 0x7F for c in out[at + 1 : at + 1 + size]):
            starts.setdefault(size, []).append(at + 1)
    several = [(size, places) for size, places in starts.items() if len(places) > 1]
    if several:
        size, places = rng.choice(several)
        a, b = rng.sample(places, 2)
        out[a : a + size] = out[b : b + size]


def _other_digits(out: bytearray, rng: random.Random) -> None:
    """Change one digit of a number that is written out, so that a text stays one."""
    digits = [at for at, byte in enumerate(out[:20_000]) if 0x30 <= byte <= 0x39]
    if digits:
        out[rng.choice(digits)] = rng.choice(b"0123456789-.")
