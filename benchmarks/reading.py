"""How long a saved network takes to be opened: ratios, each measured in turns with what it is held against, the fastest of several.

    python benchmarks/reading.py [MODEL ...] [--sizes "x=1,3,320,320"] [--repeats 7] [--threads 2]

first answer
    from the file to the first result, by onnxruntime's session start and first run (2 at most is wanted). A MODEL is as in `inference.py`: the
    path of a pair MODEL.pdmodel and MODEL.pdiparams with the same network in MODEL.onnx beside it. Each time is that of a process of its
    own in which torch and Foreshape's public names, or onnxruntime, are imported already, from bytecode, as installed packages have it. What
    Foreshape opens only when a network asks for it is counted: the modules of its operators, and oneDNN's library.
opening
    of a MODEL.onnx, which is then opened by both: the time to a program with its parameters, by onnxruntime's session start without its optimizations (3
    at most is wanted).
check
    ``foreshape check`` of a program of 5,000 ops, by the command's own start, ``foreshape --version`` (3 at most is wanted).
shapes
    from bytes to all shapes known, by ``onnx.shape_inference`` (C++) on the same chain of layers (1.5 at most is wanted).

Both the time on the clock and that of the processor are given: on a machine that does other work too, the second tells more.
Needs the extra ``bench``: ``pip install -c constraints.txt -e '.[bench]'``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

FIRST, CHECK, SHAPES, OPENING = 2.0, 3.0, 1.5, 3.0
"""What is wanted, as ratios."""
OPENS = ", opening alone"
WITH_BYTECODE = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
"""The environment in which modules are compiled once, as those of installed packages are."""


class Took(NamedTuple):
    """Seconds on the clock, and of the processor."""

    clock: float
    processor: float


def fastest(times: list[Took]) -> Took:
    return Took(min(t.clock for t in times), min(t.processor for t in times))


# --- a first answer, in a process of its own


def answer(kind: str, path: str, feeds: str, threads: str) -> None:
    from inference import fed, onnx_of

    feed = fed(feeds)
    if kind.startswith("foreshape"):
        import torch  # noqa: F401

        from foreshape import Executor, Scope, load_inference_model

        began = time.perf_counter(), time.process_time()
        scope = Scope()
        program, names, fetches = load_inference_model(path, scope=scope)
        executor = Executor(frozen=True, threads=int(threads))
        if kind.endswith(OPENS):
            return print(json.dumps((time.perf_counter() - began[0], time.process_time() - began[1])))
        executor.run(program, dict(zip(names, feed.values(), strict=True)), fetches, scope)
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = int(threads), 1, 3
        if kind.endswith(OPENS):
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        began = time.perf_counter(), time.process_time()
        session = onnxruntime.InferenceSession(onnx_of(path), options, providers=["CPUExecutionProvider"])
        if kind.endswith(OPENS):
            return print(json.dumps((time.perf_counter() - began[0], time.process_time() - began[1])))
        session.run(None, dict(zip([i.name for i in session.get_inputs()], feed.values(), strict=True)))
    print(json.dumps((time.perf_counter() - began[0], time.process_time() - began[1])))


def first_answer(kind: str, path: str, feeds: dict[str, Any], threads: int) -> Took:
    command = [sys.executable, __file__, "--answer", kind, path, json.dumps(feeds), str(threads)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**WITH_BYTECODE, "OMP_NUM_THREADS": str(threads)})
    return Took(*json.loads(found.stdout))


# --- the command


def command(*arguments: str) -> Took:
    import resource

    before, at = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "foreshape", *arguments], check=True, stdout=subprocess.DEVNULL, env=WITH_BYTECODE)
    clock, after = time.perf_counter() - at, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


# --- shapes


def timed(action: Callable[[], object]) -> Took:
    gc.collect()
    at = time.perf_counter(), time.process_time()
    kept = action()
    took = Took(time.perf_counter() - at[0], time.process_time() - at[1])
    del kept
    return took


def infer(data: bytes, last: str) -> Any:
    import foreshape as fs

    program = fs.Program.from_bytes(data)
    program.infer()
    return program.var(last).spec


def main() -> None:
    if sys.argv[1:2] == ["--answer"]:
        answer(*sys.argv[2:])
        return
    from inference import add_feeds, dims_text, given_feeds

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    add_feeds(parser)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    from describe import chain, onnx_chain
    from onnx import shape_inference

    table = Table("what", "ms", "held against", "ms", "ratio", "of processor time", "wanted at most")

    def add(what: str, against: str, pairs: list[tuple[Took, Took]], wanted: float) -> None:
        ours, theirs = fastest([p[0] for p in pairs]), fastest([p[1] for p in pairs])
        ratios = [f"{ours.clock / theirs.clock:.2f}", f"{ours.processor / theirs.processor:.2f}"]
        table.add_row(what, f"{ours.clock * 1e3:.1f}", against, f"{theirs.clock * 1e3:.1f}", *ratios, f"{wanted}")

    for path in (p.removesuffix(".pdmodel") for p in chosen.models):
        feeds = given_feeds(path, chosen)
        first_answer("foreshape", path, feeds, chosen.threads)  # after which there is bytecode of all modules
        name = "/".join(path.split(os.sep)[-2:])
        for what, more, wanted in (("first answer", "", FIRST), *((("opening", OPENS, OPENING),) if path.endswith(".onnx") else ())):
            pairs = [tuple(first_answer(k + more, path, feeds, chosen.threads) for k in ("foreshape", "onnxruntime")) for _ in range(chosen.repeats)]
            add(f"{what}: {name} {dims_text(feeds)}", "onnxruntime", pairs, wanted)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "chain.pdmodel")
        chain(1667, train=False).save(file)
        command("check", file)  # after which there is bytecode
        pairs = [(command("check", file), command("--version")) for _ in range(chosen.repeats)]
    add("foreshape check, 5,001 ops", "foreshape --version", pairs, CHECK)
    for layers in (200, 1667):
        program, model = chain(layers, train=False), onnx_chain(layers)
        data, last = program.to_bytes(), program.global_block.ops[-1].outputs["Out"][0]
        pairs = [(timed(lambda d=data, n=last: infer(d, n)), timed(lambda m=model: shape_inference.infer_shapes(m))) for _ in range(5 * chosen.repeats)]
        add(f"bytes to shapes, {layers * 3:,} ops", "onnx.shape_inference", pairs, SHAPES)
    (Console() if sys.stdout.isatty() else Console(width=150)).print(table)


if __name__ == "__main__":
    main()
