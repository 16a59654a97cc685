"""Which implementation oneDNN chose for each of its primitives: kernels and networks run in a process whose oneDNN tells, with marks between.

``PYTHONPATH=tests python -m support.implementations`` runs them all, and `told` reads what such a process said.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

MARK = "@@@"
Told = dict[tuple[str, str], list[tuple[str, str]]]
"""(what ran, how its operands lay) -> for each primitive that ran its kind, and the name of its implementation."""


def told(**environment: str) -> Told:
    """What oneDNN said in a process of its own, of products made by oneDNN."""
    verbose = {"ONEDNN_VERBOSE": "1", "DNNL_VERBOSE": "1", "FORESHAPE_PRODUCTS": "onednn"}
    given = {**os.environ, **verbose, "PYTHONPATH": str(Path(__file__).parents[1]), **environment}
    done = subprocess.run([sys.executable, "-m", "support.implementations"], env=given, capture_output=True, text=True, check=True)
    out: Told = {}
    seen: list[tuple[str, str]] = []
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            _, what, how = line.split("|")
            seen = out[what, how] = []
        elif ",exec," in line:
            _, _, after = line.partition(",exec,")
            seen.append((after.split(",")[1], after.split(",")[2]))
    return out


def mark(what: str, how: str) -> None:
    """Say what runs from here on, past what Python keeps back."""
    os.write(1, f"{MARK}|{what}|{how}\n".encode())


# --- kernels


def kernels() -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    """Kernels of numbers alone, with operands."""
    import torch

    from foreshape.core.values.torch_proxy import aten
    from foreshape.machine.kernels import frozen, products
    from foreshape.machine.kernels.attention import Attention
    from foreshape.machine.kernels.onednn_library import library

    n = torch.randn
    yield "mm", products.mm, [n(128, 96), n(96, 128)]
    yield "linear", products.linear, [n(128, 96), n(96, 128), n(128)]
    yield "add_product_", lambda a, b: products.add_product_(n(128, 128), a, b, 0.5), [n(128, 96), n(96, 128)]
    yield "onednn_linear", lambda x, w, b: products.onednn_linear()(x, w, b, "none", [], ""), [n(4, 40, 96), n(128, 96), n(128)]
    images, weight, d, settings = n(2, 16, 12, 14), n(24, 16, 3, 3), n(2, 24, 12, 14), ([1, 1], [1, 1], [1, 1])
    yield "convolution", lambda x, w, b: torch.conv2d(x, w, b, padding=1), [images, weight, n(24)]
    back = lambda d, x, w: aten.convolution_backward(d, x, w, [24], *settings, False, [0, 0], 1, [True] * 3)  # noqa: E731
    yield "convolution gradient", back, [d, images, weight]
    yield "transposed convolution", lambda x, w, b: torch.conv_transpose2d(x, w, b, stride=2), [n(2, 24, 12, 14), n(24, 16, 2, 2), n(16)]
    yield "attention", lambda q, k, v: Attention(0.25, False).forward(q, k, v), [n(2, 4, 20, 16), n(2, 4, 24, 16), n(2, 4, 24, 16)]
    for by, found in (("torch", None), ("oneDNN itself", library())):
        if by != "torch" and found is None:
            continue
        vars(frozen)["library"] = lambda found=found: found
        yield f"frozen product by {by}", frozen.linear(n(96, 128), n(128), frozen.RELU), [n(40, 96)]
        one = frozen.convolution(weight, n(24), (1, 1), (1, 1), (1, 1), 1, frozen.RELU)
        yield f"frozen convolution by {by}", one, [images]
        yield f"frozen convolution and sum by {by}", one.add, [images, d]
        back = frozen.transposed_convolution(n(16, 24, 2, 2), n(24), (2, 2), (0, 0), (0, 0), (1, 1), frozen.RELU)
        yield f"frozen transposed convolution by {by}", back, [images]


def run_kernels() -> None:
    from support.kernel_calls import columns, entries, in_a_row, permuted, repeated, turned_columns

    layouts = {f.__name__: f for f in (columns, turned_columns, entries, permuted)} | {f"repeated {a}": partial(repeated, axis=a) for a in (0, -1, -2)}
    for what, kernel, operands in kernels():
        mark(what, "in a row")
        kernel(*operands)
        for at, of in enumerate(operands):
            for how, layout in layouts.items():
                mark(what, f"operand {at}: {how}")
                kernel(*(layout(of) if k == at else in_a_row(x) for k, x in enumerate(operands)))


# --- networks

INPUTS = {"x": (64, 256), "other": (64, 256), "steps": (4, 16, 256), "images": (2, 16, 12, 12)}


def networks() -> dict[str, Callable[[], Any]]:
    """Networks with views between their layers: what each is asked for."""
    from foreshape import layer

    def given(name: str) -> Any:
        return layer.data(name, INPUTS[name])

    def parts() -> Any:
        first, second = layer.split(layer.fc(given("x"), 512), 2, 1)
        return layer.fc(layer.concat([layer.fc(second, 256), layer.fc(first, 256)], 1), 256)

    def turned() -> Any:
        x = layer.transpose(layer.fc(given("x"), 128), [1, 0])
        return layer.matmul(x, layer.fc(given("other"), 256)[:, 64:192])

    def heads() -> Any:
        q, k, v = layer.split(layer.reshape(layer.fc(given("steps"), 768, flatten_last=1), [4, 16, 3, 4, 64]), 3, 2)
        q, k, v = (layer.transpose(layer.squeeze(x, [2]), [0, 2, 1, 3]) for x in (q, k, v))
        mixed = layer.matmul(layer.softmax(layer.matmul(q * 0.125, k, transpose_y=True)), v)
        return layer.fc(layer.reshape(layer.transpose(mixed, [0, 2, 1, 3]), [4, 16, 256]), 256, flatten_last=1)

    def both_ways() -> Any:
        return layer.fc(layer.lstm(given("steps"), 64, bidirectional=True)[0], 256, flatten_last=1)

    def unet() -> Any:
        beside = layer.conv2d(given("images"), 16, 3, padding=1)
        up = layer.conv2d_transpose(layer.conv2d(layer.pool2d(beside, 2, stride=2), 32, 3, padding=1), 16, 2, stride=2)
        return layer.conv2d(layer.batch_norm(layer.concat([beside, up], 1)), 4, 1)

    def channels() -> Any:
        first, second = layer.split(layer.conv2d(given("images"), 32, 3, padding=1), 2, 1)
        return layer.concat([layer.batch_norm(layer.conv2d(first, 16, 3, padding=1)), second], 1)

    return {f.__name__: f for f in (parts, turned, heads, both_ways, unet, channels)}


def run_networks() -> None:
    import numpy as np

    import foreshape as fs
    from foreshape import layer

    for what, build in networks().items():
        main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
        with fs.program_guard(main, startup):
            out = build()
            frozen = main.clone()
            loss = layer.mean(out)
            fs.optimizer.SGD(0.01).minimize(loss)
        fs.Executor(seed=1).run(startup, scope=scope)
        feed = {n: np.random.RandomState(0).standard_normal(dims).astype("f") for n, dims in INPUTS.items() if n in main.global_block.vars}
        mark(what, "frozen")
        fs.Executor(frozen=True).run(frozen, feed, [out.name], scope)
        mark(what, "trained")
        fs.Executor(seed=1).run(main, feed, [loss], scope)


if __name__ == "__main__":
    run_kernels()
    run_networks()
