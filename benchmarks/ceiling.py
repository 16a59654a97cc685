"""Texts of 1 to 8,192 tokens through an encoder with a bound of memory, and the peak of the process: python benchmarks/ceiling.py --texts 100000"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory import byte_text, bytes_of
from foreshape.machine.process.pages import resident


def save(folder: str, layers: int, width: int) -> str:
    """Save an encoder of random weights with the mean of each text, and return its path."""
    with fs.program() as program:
        ids = layer.data("ids", shape=["rows"], dtype="int64", lod_level=1)
        x = layer.transformer_encoder(layer.embedding(ids, [30_000, width]), layers, heads=width // 32)
        mean = layer.sequence_pool(x, "average")
    fs.Executor(seed=1).run(program.startup)
    fs.save_inference_model(str(Path(folder) / "encoder"), [ids], [mean])
    return str(Path(folder) / "encoder")


def peak() -> int:
    """Return the most bytes of this process in memory since the peak was cleared."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def main() -> None:
    """Texts of 8,000 words cost most: 10,000 texts of the smallest network take some minutes of a processor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--longest", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=16, help="the most texts of a request")
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = save(folder, options.layers, options.width)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        start, clock = resident(), time.process_time()
        predictor = fs.Predictor(path, memory=options.memory, threads=options.threads)
        texts = tokens = refused = requests = 0
        told = time.monotonic()
        while texts < options.texts:
            count = min(int(draw.integers(1, options.batch + 1)), options.texts - texts)
            lengths = np.exp(draw.uniform(0, np.log(options.longest + 1), count)).astype(int).clip(1, options.longest)  # as many short ones as long ones
            try:
                (vectors,) = predictor.run(fs.LoDTensor(draw.integers(0, 30_000, lengths.sum()), [lengths.tolist()])).values()
                assert vectors.shape == (count, options.width) and np.isfinite(vectors).all()
            except fs.MemoryPlanError as error:
                if not refused:
                    print(error)
                refused += count
            texts, tokens, requests = texts + count, tokens + int(lengths.sum()), requests + 1
            if time.monotonic() - told > 10:
                told = time.monotonic()
                print(f"{texts:,} texts: {byte_text(peak() - start)} at most, {byte_text(resident() - start)} now", flush=True)
        seconds = time.process_time() - clock
        taken = peak() - start
    print(f"{texts:,} texts in {requests:,} requests, {tokens:,} tokens, {refused:,} refused: {seconds:.0f} s of processor, {tokens / seconds:,.0f} tokens/s")
    print(f"{byte_text(taken)} taken of {options.memory}: {'kept' if taken <= bytes_of(options.memory) else 'PASSED'}")


if __name__ == "__main__":
    main()
