"""Compiled networks whose checksum is right and whose description is not: opened and run in a process of their own, since the last resort of a wrong address
is the end of the process.

    python compiled_mutations.py FILE SEED COUNT FOLDER

prints how many of the COUNT changed files were refused, and how many ran. FOLDER has the last one.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from support.survival import checked_words

import foreshape as fs
from foreshape.interop.compiled_head import BEGIN, HEAD, MAGIC

NUMBERS = (-1, 0, 1, 2, 3, 4, 64, 1 << 10, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, (1 << 40) + 1, 1 << 62, 1 << 63, 1 << 200)
FRACTIONS = (0.5, -1.0, float("nan"), float("inf"))
OTHERS = (None, True, "relu", "max", "", [], {}, [1], [[1, 3, 16, 12], None])


def parts(data: bytes) -> tuple[Any, bytes]:
    """Return the description and the constants of a file."""
    length = HEAD.unpack(data[: HEAD.size])[1]
    begin = -(-(HEAD.size + length) // BEGIN) * BEGIN
    return json.loads(data[HEAD.size : HEAD.size + length]), data[begin:]


def sealed(description: Any, constants: bytes) -> bytes:
    """Return a file with a head that is right."""
    words = json.dumps(description).encode()
    padded = words.ljust(-(-(HEAD.size + len(words)) // BEGIN) * BEGIN - HEAD.size, b"\0")
    head, behind = (hashlib.sha256(part).digest() for part in (padded, constants))
    return HEAD.pack(MAGIC, len(words), HEAD.size + len(padded) + len(constants), head, behind) + padded + constants


def places(of: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value of a description."""
    if way:
        yield way
    for key, value in of.items() if isinstance(of, dict) else enumerate(of) if isinstance(of, list) else ():
        yield from places(value, (*way, key))


def change(description: Any, of: random.Random) -> str:
    """Change one value, or leave it out, give it twice, or swap it with another; return what was done."""
    changed = ("sizes", "constants", "fetched", "inputs", "outputs", "parameters", "program")
    ways = [way for way in places(description) if way[0] in changed or of.random() < 0.1]
    *head, last = way = of.choice(ways)
    parent = description
    for key in head:
        parent = parent[key]
    value = parent[last]
    kind = of.choice(("number", "number", "near", "near", "other", "without", "twice", "swapped"))
    if kind == "number":
        parent[last] = of.choice((*NUMBERS, *FRACTIONS))
    elif kind == "near" and type(value) is int:
        parent[last] = value + of.choice((-64, -4, -1, 1, 4, 64, value))
    elif kind == "other":
        parent[last] = of.choice(OTHERS)
    elif kind == "without":
        del parent[last]
    elif kind == "twice" and isinstance(parent, list):
        parent.insert(last, value)
    elif kind == "swapped" and isinstance(parent, list):
        at = of.randrange(len(parent))
        parent[last], parent[at] = parent[at], parent[last]
    return f"{kind} at {way}"


def flip(description: Any, constants: bytes, of: random.Random) -> tuple[bytes, str]:
    """Return the constants with a bit of a program flipped, and what was done."""
    out, at = bytearray(constants), of.randrange(8 * description["program"])
    out[at // 8] ^= 1 << at % 8
    return bytes(out), f"bit {at} of the program"


def main(path: str, seed: str, count: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    description, constants = parts(Path(path).read_bytes())
    refused = ran = 0
    for at in range(int(count)):
        of = random.Random(f"{seed} {at}")
        changed = json.loads(json.dumps(description))
        rest = constants
        if "program" in changed and of.random() < 0.5:
            rest, words = flip(changed, constants, of)
            done = [words]
        else:
            done = [change(changed, of) for _ in range(of.choice((1, 1, 2)))]
        if type(size := changed.get("program")) is int and "digest" in changed and 0 <= size <= len(rest):
            changed["digest"] = hashlib.sha256(rest[:size]).hexdigest()
        file = Path(folder) / "changed.compiled"
        file.write_bytes(sealed(changed, rest))
        (Path(folder) / "done.txt").write_text(f"{at}: {done}")
        try:
            predictor = fs.Predictor(file)
            if predictor._session is None:  # a program
                predictor(np.ones((1, 3, 4), np.float32))
            else:
                for size in predictor._session.sizes:
                    elements = predictor._session.elements
                    predictor({n: np.ones(dims, elements[n]) for n, dims in size.items() if np.prod([float(d) for d in dims]) < 1 << 20})
            ran += 1
        except fs.ForeshapeError as error:
            checked_words(error)
            refused += 1
    print(json.dumps({"refused": refused, "ran": ran}))


if __name__ == "__main__":
    main(*sys.argv[1:])
