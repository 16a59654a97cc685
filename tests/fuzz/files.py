# ruff: noqa: E501  the tables are one case a line
"""Mutates real program files, and loads, infers, prints and saves each: `python tests/hostile/fuzz.py --seconds 60 [--seed 1]`.

Ends with status 1 where anything but the package's own answers comes out, and leaves the bytes in a file.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from messages import good  # noqa: E402
from survival import survive  # noqa: E402

CORPUS = HERE.parent / "corpus"
MOST = 12_000
"""Larger files only make it slower."""
INTERESTING = [0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x08, 0x0A, 0x10, 0x12, 0x1A, 0x22, 0x62]
NUMBERS = [b"\x00", b"\x7f", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x80\x80\x80\x80\x08"]


def seeds() -> list[bytes]:
    """Small programs of the corpus, and one that is always there."""
    files = sorted(CORPUS.glob("*/*.pdmodel"), key=lambda p: (p.stat().st_size, str(p)))
    return [good(), *(p.read_bytes() for p in files if p.stat().st_size <= MOST)]


def mutate(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """One to eight changes: bits, bytes, numbers, pieces taken out, doubled, moved, exchanged or taken from another file."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if not out:
            break
        at = rng.randrange(len(out))
        size = min(rng.choice((1, 2, 4, 16, 64, 400)), len(out) - at)
        kind = rng.randrange(9)
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


def run(seconds: float, seed: int, most: int | None = None, failures: Path | None = None) -> Counter[str]:
    """Fuzz for some seconds, or until ``most`` files; the counts of how they ended."""
    rng = random.Random(seed)
    files = seeds()
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    while time.monotonic() < until and (most is None or counts.total() < most):
        data = mutate(rng.choice(files), files, rng)
        try:
            out = survive(data)
        except Exception:
            counts["FAILED"] += 1
            place = (failures or Path.cwd()) / f"fuzz-failure-{seed}-{counts.total()}.pdmodel"
            place.write_bytes(data)
            print(f"{place}:\n{traceback.format_exc()}", file=sys.stderr)
            if counts["FAILED"] >= 10:
                break
            continue
        counts["refused" if out.refused is not None else "read, with errors" if out.errors else "read"] += 1
    return counts


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=int(time.time()))
    given = arguments.parse_args()
    counts = run(given.seconds, given.seed)
    print(f"seed {given.seed}: {counts.total()} files; " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
