"""Saved networks beside onnxruntime, in one run, taking turns: time of an answer, and of the first one from the file on.

    python benchmarks/inference.py [MODEL ...] [--sizes "x=1,3,320,320"] [--all "sr=16000"] [--repeats 7] [--seconds 0.5] [--threads 2]

A MODEL is a file MODEL.onnx, which both open; or the path of a pair MODEL.pdmodel and MODEL.pdiparams with the same network in MODEL.onnx beside it
(paddle2onnx writes that). Each framework runs in a process of its own, on the same feeds. Ratios count: Foreshape's time by onnxruntime's, at most
1.15 of a pair and 1.1 of an .onnx is wanted, and 0.9 in the geometric mean of several files.
Needs the extra ``bench``: ``pip install -c constraints.txt -e '.[bench]'``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WANTED, WANTED_OF_ONNX, WANTED_MEAN = 1.15, 1.1, 0.9
PAUSE = 0.2
"""Seconds before each turn, in which the threads of the one before fall asleep; onnxruntime's wait awake for a while. Two passes do not count."""


# --- in a process of its own


def with_foreshape(path: str, feed: dict[str, Any], variant: str) -> Callable[[], list[Any]]:
    import foreshape as fs

    if variant == "compiled":
        predictor = fs.Predictor(compiled_of(path))
        return lambda: list(predictor.run(feed).values())
    scope = fs.Scope()
    program, names, fetches = fs.load_inference_model(path, scope=scope)
    executor = fs.Executor(frozen=variant != "plain", precision="bf16" if variant == "bf16" else "fp32")
    given = dict(zip(names, feed.values(), strict=True))
    return lambda: executor.run(program, given, fetches, scope)


def with_onnxruntime(path: str, feed: dict[str, Any], variant: str) -> Callable[[], list[Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = int(os.environ["OMP_NUM_THREADS"]), 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(onnx_of(path), options, providers=["CPUExecutionProvider"])
    given = dict(zip([i.name for i in session.get_inputs()], feed.values(), strict=True))
    return lambda: session.run(None, given)


def with_openvino(path: str, feed: dict[str, Any], variant: str) -> Callable[[], list[Any]]:
    import openvino

    core, settings = openvino.Core(), {"INFERENCE_NUM_THREADS": int(os.environ["OMP_NUM_THREADS"]), "PERFORMANCE_HINT": "LATENCY"}
    model = core.read_model(onnx_of(path))
    given = dict(zip([i.any_name for i in model.inputs], feed.values(), strict=True))
    model.reshape({name: list(value.shape) for name, value in given.items()})
    request = core.compile_model(model, "CPU", {**settings, **({"INFERENCE_PRECISION_HINT": "f32"} if variant == "fp32" else {})}).create_infer_request()
    return lambda: [tensor.copy() for tensor in request.infer(given).values()]


WITH: dict[str, Callable[[str, dict[str, Any], str], Callable[[], list[Any]]]] = {
    "foreshape": with_foreshape, "onnxruntime": with_onnxruntime, "openvino": with_openvino,
}  # fmt: skip


def compiled_of(path: str) -> str:
    """The compiled network beside a file."""
    return f"{path.removesuffix('.onnx')}.compiled"


def onnx_of(path: str) -> str:
    """The file that onnxruntime opens."""
    return path if path.endswith(".onnx") else path + ".onnx"


def fed(feeds: str) -> dict[str, Any]:
    """The arrays of feeds, which are said as JSON: input -> dims, element type, and the number in all places, or None for random ones."""
    chance = np.random.default_rng(0)

    def array(dims: list[int], of: str, number: float | None) -> Any:
        if number is not None:
            return np.full(dims, number, of)
        return (chance.standard_normal(dims) if of.startswith("f") else chance.integers(1, 30, dims)).astype(of)

    return {name: array(*given) for name, given in json.loads(feeds).items()}


def work(kind: str, path: str, feeds: str, variant: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    feed = fed(feeds)
    import torch  # noqa: F401  # which the one needs and the other does not

    began = time.perf_counter()
    run = WITH[kind](path, feed, variant)
    found = run()
    first = time.perf_counter() - began
    for _ in range(3):
        run()
    some = [np.asarray(r).reshape(-1)[:: max(1, np.size(r) // 2048)].astype("float64").tolist() for r in found]
    print(json.dumps({"first": first, "results": some}), file=out, flush=True)
    for line in sys.stdin:
        time.sleep(PAUSE)
        run()
        run()
        until = time.perf_counter() + float(line)
        passes: list[float] = []
        while time.perf_counter() < until or not passes:
            at = time.perf_counter()
            run()
            passes.append((time.perf_counter() - at) * 1e3)
        print(json.dumps(passes), file=out, flush=True)


# --- side by side


class Peer:
    def __init__(self, kind: str, path: str, feeds: dict[str, Any], variant: str, threads: int) -> None:
        command = [sys.executable, __file__, "--worker", kind, path, json.dumps(feeds), variant]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        self.ready = self.read()
        self.times: list[float] = []
        self.fastest: list[float] = []

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a worker stopped")
        return json.loads(line)

    def measure(self, seconds: float) -> None:
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        passes = self.read()
        self.times.append(statistics.median(passes))
        self.fastest.append(min(passes))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def feeds_of(path: str, sizes: dict[str, list[int]], numbers: dict[str, float]) -> dict[str, Any]:
    """What `fed` takes of each input; open dims are 1, or what is said."""
    import foreshape as fs

    program, names, _ = fs.load_inference_model(path, scope=fs.Scope())
    specs = {n: program.global_block.var(n).spec for n in names}
    return {n: (sizes.get(n, [d if isinstance(d, int) else 1 for d in s.known_dims]), s.known_dtype.numpy_name, numbers.get(n)) for n, s in specs.items()}


def add_feeds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", action="append", default=[], help="of an open input, as x=1,3,320,320")
    parser.add_argument("--all", action="append", default=[], help="the number in all places of an input, as sr=16000; random ones if it is left out")


def given_feeds(path: str, chosen: argparse.Namespace) -> dict[str, Any]:
    sizes = {name: [int(n) for n in dims.split(",") if n] for name, _, dims in (s.partition("=") for s in chosen.sizes)}
    return feeds_of(path, sizes, {name: float(number) for name, _, number in (s.partition("=") for s in chosen.all)})


def dims_text(feeds: dict[str, Any]) -> str:
    return " ".join("x".join(map(str, dims)) for dims, _, _ in feeds.values())


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    add_feeds(parser)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plain", action="store_true", help="also as an executor that is not frozen")
    chosen = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    console = Console() if sys.stdout.isatty() else Console(width=150)
    table = Table(
        "network", "feeds", "variant", "ms", "onnxruntime ms", "ratio of medians", "of the fastest", "wanted", "first answer: ratio", "largest difference"
    )
    means: list[float] = []
    for path in chosen.models:
        path = path.removesuffix(".pdmodel")
        feeds = given_feeds(path, chosen)
        other = Peer("onnxruntime", path, feeds, "", chosen.threads)
        ours = {v: Peer("foreshape", path, feeds, v, chosen.threads) for v in (("frozen", "plain") if chosen.plain else ("frozen",))}
        for _ in range(chosen.repeats):
            for peer in (*ours.values(), other):
                peer.measure(chosen.seconds)
        for variant, peer in ours.items():
            ratio = statistics.median(a / b for a, b in zip(peer.times, other.times, strict=True))
            difference = max(
                float(np.abs(np.subtract(a, b)).max() / max(np.abs(b).max(), 1e-30)) if len(b) else 0.0
                for a, b in zip(peer.ready["results"], other.ready["results"], strict=True)
            )  # fmt: skip
            name = "/".join(path.split(os.sep)[-2:])
            wanted = WANTED_OF_ONNX if path.endswith(".onnx") else WANTED
            if variant == "frozen":
                means.append(ratio)
            times = [f"{statistics.median(t):.2f}" for t in (peer.times, other.times)]
            ratios = [f"{ratio:.2f}", f"{min(peer.fastest) / min(other.fastest):.2f}", f"{wanted}", f"{peer.ready['first'] / other.ready['first']:.1f}"]
            table.add_row(name, dims_text(feeds), variant, *times, *ratios, f"{difference:.0e}")
        for peer in (*ours.values(), other):
            peer.close()
    console.print(table)
    console.print(f"geometric mean of the ratios: {statistics.geometric_mean(means):.2f}; {WANTED_MEAN} at most is wanted of files in .onnx")


if __name__ == "__main__":
    main()
