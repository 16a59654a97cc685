"""The demonstration: a small convolutional network learns to read handwritten digits.

It goes from the description to a saved file opened by another process, written as a user would, with the package's public names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import foreshape as fs
from foreshape import layer
from foreshape.errors import needs

EPOCHS = 20
_TRAINED_ON = 1437
"""The number of training images of the 1,797; the others are the test."""


class DemoNetwork(NamedTuple):
    """The variables described by `network`."""

    main: fs.Program
    startup: fs.Program
    images: fs.Variable
    scores: fs.Variable
    loss: fs.Variable
    accuracy: fs.Variable


def digits() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return scikit-learn's images of digits, for training and for the test, always split alike.

    Returns:
        Twice ``image`` fp32 ``[examples, 1, 8, 8]`` in [0, 1] and ``label`` int64 ``[examples, 1]``.
    """
    import numpy

    with needs("the demo", "demo"):
        from sklearn.datasets import load_digits  # pyright: ignore[reportUnknownVariableType]

    bundle = cast("Any", load_digits())
    order = numpy.random.RandomState(0).permutation(len(bundle.images))
    arrays = {"image": (bundle.images[order, None] / 16).astype("float32"), "label": bundle.target[order, None].astype("int64")}
    return {n: a[:_TRAINED_ON] for n, a in arrays.items()}, {n: a[_TRAINED_ON:] for n, a in arrays.items()}


def network() -> DemoNetwork:
    """Describe the network: three convolutions, two fully connected layers."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        images = layer.data("image", shape=["batch", 1, 8, 8])
        labels = layer.data("label", shape=["batch", 1], dtype="int64")
        h = layer.conv2d(images, 32, 3, padding=1, activation="relu")
        h = layer.conv2d(h, 32, 3, padding=1, activation="relu")
        h = layer.pool2d(h, 2, "max", stride=2)
        h = layer.conv2d(h, 64, 3, padding=1, activation="relu")
        h = layer.pool2d(h, 2, "max", stride=2)
        h = layer.dropout(layer.fc(h, 64, "relu"), 0.3)
        scores = layer.softmax(layer.fc(h, 10))
        loss = layer.mean(layer.cross_entropy(scores, labels))
        accuracy = layer.accuracy(scores, labels)
    return DemoNetwork(main, startup, images, scores, loss, accuracy)


def _heading(console: Any, words: str) -> None:
    if console.is_terminal:
        console.rule(words)
    else:
        console.print(f"--- {words} ---")


def run(out_dir: Any, console: Any = None, epochs: int = EPOCHS, progress: bool | None = None) -> float:
    """Describe, show in a table, train, test, save; then classify with the saved network in a fresh process.

    Args:
        out_dir: gets digits.pdmodel, digits.pdiparams, digits.png, training.png and predictions.json.
        console: rich's, for the output; the standard output by default.

    Returns:
        The fraction of the test images classified correctly.

    Raises:
        ExecutionError: the fresh process fails, or its accuracy differs.
    """
    from rich.console import Console

    console = console if console is not None else Console()
    began = time.perf_counter()
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    net = network()
    _heading(console, "the network, known before anything runs")
    console.print(str(net.main.summary(batch=32)), markup=False, highlight=False, soft_wrap=True)

    _heading(console, "training")
    train, test = digits()
    scope = fs.Scope()
    steps = epochs * -(-len(train["image"]) // 32)
    history = fs.train(
        net.loss, train, optimizer=fs.optimizer.Adam(fs.optimizer.CosineDecay(0.002, 1, max(1, steps))), epochs=epochs, batch_size=32,
        metrics={"accuracy": net.accuracy}, validation=test, scope=scope, startup=net.startup, console=console, progress=progress,
    )  # fmt: skip
    history.plot(folder / "training.png")
    accuracy = history.epochs[-1]["validation accuracy"] if history.epochs else 0.0
    console.print(f"test accuracy {accuracy:.2%} of {len(test['image'])} images, after {history.steps} steps")

    _heading(console, "saved, and opened in a fresh process")
    fs.save_inference_model(str(folder / "digits"), [net.images], [net.scores], scope=scope)
    for name in ("digits.pdmodel", "digits.pdiparams"):
        console.print(f"{folder / name}: {(folder / name).stat().st_size:,} bytes", highlight=False, soft_wrap=True)
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8"} | ({"FORCE_COLOR": "1"} if console.is_terminal else {})
    done = subprocess.run(
        [sys.executable, "-m", "foreshape.apps.training.classify", str(folder)], capture_output=True, env=environment, encoding="utf-8", check=False
    )
    if done.returncode:
        raise fs.ExecutionError(f"the fresh process failed with exit code {done.returncode}:\n{done.stderr}")
    from rich.text import Text

    console.print(Text.from_ansi(done.stdout.rstrip("\n")), soft_wrap=True)
    again = json.loads((folder / "predictions.json").read_text(encoding="utf-8"))["accuracy"]
    if abs(again - accuracy) > 0.5 / len(test["image"]):
        raise fs.ExecutionError(f"the network that was opened again is right for {again:.2%} of the test images; before it was saved it was for {accuracy:.2%}")
    console.print(f"done in {time.perf_counter() - began:.1f} s; the files are in {folder}", highlight=False, soft_wrap=True)
    return accuracy
