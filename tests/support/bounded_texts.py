"""Embeds random texts within a bound of memory, and prints what the process took beyond Python and numpy: ``bounded_texts.py FOLDER MEMORY TEXTS`` in JSON."""

from __future__ import annotations

import json
import sys

import numpy as np


def peak() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def main(folder: str, memory: str, count: int) -> None:
    bare, draw = peak(), np.random.default_rng(0)
    import foreshape as fs

    words = np.array(["ship", "dawn", "harbour", "row"])
    model, refused, total, number = fs.Embedder(folder, memory=memory, threads=1), list[str](), 0, 0
    while number < count:
        some = min(int(draw.integers(1, 65)), count - number)
        lengths = [int(draw.integers(1, 8191 if draw.random() < 0.01 else 40)) for _ in range(some)]
        try:
            vectors = model.encode([" ".join(words[draw.integers(0, 4, n)]) for n in lengths])
            assert vectors.shape == (some, model.width) and np.isfinite(vectors).all()
        except fs.MemoryPlanError as error:
            refused.append(str(error))
        number, total = number + some, total + sum(lengths)
    taken = peak() - bare
    print(json.dumps({"taken": taken, "refused": refused, "words": total, "torch": "torch" in sys.modules}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
