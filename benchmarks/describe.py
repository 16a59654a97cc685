"""Costs of describing: microseconds per op, growth with the number of ops, and the time from bytes to all shapes known.

onnx's shape inference, in C++, is measured beside it where onnx is installed, on the same chain of fully connected layers. An op is compared
with the last release by its quotient to objects of plain Python, which `describe.json` keeps: ``--record`` writes it, when a release is made.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import foreshape as fs
from foreshape import layer

RECORDED = Path(__file__).with_suffix(".json")


def chain(layers: int, train: bool = True, label: bool = True) -> fs.Program:
    """Fully connected layers of width 64 with a symbolic batch."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x = layer.data("x", shape=["batch", 64])
        for _ in range(layers):
            x = layer.fc(x, 64, activation="relu")
        if train:
            fs.optimizer.SGD(0.1).minimize(layer.mean(layer.softmax_with_cross_entropy(x, layer.data("y", shape=["batch", 1], dtype="int64"))))
    return main


def wide(count: int) -> fs.Program:
    """So many rectifiers of one value, and their sum."""
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = layer.data("x", shape=["batch", 64])
        layer.sum([layer.relu(x) for _ in range(count)])
    return main


def of_wide() -> Table:
    """Costs of looking at wide programs and of making their steps, which are to grow as the ops do."""
    table = Table("action", "ops", "ms", "microseconds per op", title="many ops that read one value")
    for count in (2000, 8000):
        main = wide(count)
        out = next(iter(main.global_block.ops[-1].output_names()))
        actions: dict[str, Callable[[], object]] = {
            "plan": lambda: fs.plan(main, [out]),  # noqa: B023  is called before the next
            "step": lambda: fs.Executor().step(main, [out]),  # noqa: B023
            "summary": lambda: str(main.summary()),  # noqa: B023
        }
        for words, action in actions.items():
            seconds = timed(action, 3)
            table.add_row(words, str(count + 1), f"{seconds * 1e3:.0f}", f"{seconds / (count + 1) * 1e6:.1f}")
    return table


def timed(action: Callable[[], object], repeats: int) -> float:
    """The median of several runs, in seconds, each after a collection of garbage."""
    times: list[float] = []
    for _ in range(repeats):
        gc.collect()
        at = time.perf_counter()
        kept = action()
        times.append(time.perf_counter() - at)
        del kept
    return statistics.median(times)


def onnx_chain(layers: int) -> bytes:
    from onnx import TensorProto, helper

    nodes, inputs, at = [], [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])], "x"
    for k in range(layers):
        inputs.append(helper.make_tensor_value_info(f"w{k}", TensorProto.FLOAT, [64, 64]))
        inputs.append(helper.make_tensor_value_info(f"b{k}", TensorProto.FLOAT, [64]))
        nodes += [
            helper.make_node("MatMul", [at, f"w{k}"], [f"m{k}"]),
            helper.make_node("Add", [f"m{k}", f"b{k}"], [f"a{k}"]),
            helper.make_node("Relu", [f"a{k}"], [f"r{k}"]),
        ]
        at = f"r{k}"
    graph = helper.make_graph(nodes, "chain", inputs, [helper.make_tensor_value_info(at, TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def from_bytes(data: bytes) -> fs.Program:
    program = fs.Program.from_bytes(data)
    program.infer()
    return program


class _Thing:
    """An object as programs are made of."""

    __slots__ = ("a", "b", "c", "d", "name", "of", "parts")

    def __init__(self, name: str, of: object, parts: dict[str, tuple[str, ...]]) -> None:
        self.name, self.of, self.parts = name, of, parts
        self.a = self.b = self.c = self.d = None


def yardstick(things: int = 5000) -> dict[str, _Thing]:
    """Make and find objects by names, in plain Python: what a machine and a Python take for that is the unit of `describing`."""
    known: dict[str, _Thing] = {}
    answers: dict[object, int] = {}
    for at in range(things):
        name = f"thing_{at}"
        made = _Thing(name, yardstick, {"X": (name,), "Y": (f"thing_{at - 1}",)})
        key = tuple([(slot, len(names)) for slot, names in made.parts.items()])
        answers[key] = answers.get(key, 0) + 1
        known[name] = made
    return known


def describing(pairs: int = 25) -> dict[str, float]:
    """The time of an op of a chain of 200 layers over that of an object of the yardstick, measured in turns: the middle of the quotients.

    A machine that is busy, or is another one, changes both alike, so that figures of different days can be compared, to some per cent.
    """
    out: dict[str, float] = {}
    for train, words in ((False, "described"), (True, "described with its training")):
        ops = len(chain(200, train).global_block.ops)
        out[words] = statistics.median(timed(lambda train=train: chain(200, train), 1) / ops / (timed(yardstick, 1) / 5000) for _ in range(pairs))
    return out


def against_recorded(record: bool) -> Table:
    """The quotients of `describing` beside those of the last release."""
    now = describing()
    if record:
        RECORDED.write_text(json.dumps({"version": fs.__version__, "python": sys.version.split()[0], "quotients": now}, indent=1) + "\n")
    last = json.loads(RECORDED.read_text())
    title = f"an op in objects of plain Python, beside {last['version']} on Python {last['python']}"
    table = Table("", "now", "then", "times", title=title)
    for words, quotient in now.items():
        then = last["quotients"][words]
        table.add_row(words, f"{quotient:.2f}", f"{then:.2f}", f"{quotient / then:.2f}")
    return table


def main() -> None:
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(against_recorded("--record" in sys.argv[1:]))
    table = Table("what", "ops", "ms", "microseconds per op", title="describing and inferring (fc, relu; symbolic batch)")
    chain(2)
    for layers in (200, 125, 1250, 12500):
        ops = sum(len(b.ops) for b in chain(layers).blocks)
        seconds = timed(lambda layers=layers: chain(layers), 7 if layers < 2000 else 3)
        table.add_row("describe, infer, differentiate, update", str(ops), f"{seconds * 1e3:.2f}", f"{seconds / ops * 1e6:.2f}")
    data = chain(200, train=False).to_bytes()
    from_bytes(data)
    ours = timed(lambda: from_bytes(data), 15)
    table.add_row("from bytes to all shapes known", "600", f"{ours * 1e3:.2f}", f"{ours / 600 * 1e6:.2f}")
    try:
        from onnx import shape_inference
    except ImportError:
        console.print(table)
        console.print("onnx is not installed: pip install onnx puts its shape inference beside")
    else:
        model = onnx_chain(200)
        theirs = timed(lambda: shape_inference.infer_shapes(model), 15)
        table.add_row("the same in onnx.shape_inference (C++)", "600", f"{theirs * 1e3:.2f}", f"{theirs / 600 * 1e6:.2f}")
        console.print(table)
        console.print(f"from bytes to all shapes known: {ours / theirs:.2f} times onnx's time")
    console.print(of_wide())
    at = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    bare = time.perf_counter() - at
    at = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import foreshape"], check=True)
    console.print(f"import foreshape: {(time.perf_counter() - at - bare) * 1e3:.0f} ms more than Python alone")


if __name__ == "__main__":
    main()
