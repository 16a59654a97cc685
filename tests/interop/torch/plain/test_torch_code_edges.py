"""Written torch code at the edges of operators: nothing along an axis, windows beyond images, ties, infinities."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer

FLOAT = "float32"
OPEN_IMAGES = (["n", 2, "h", "w"], ["n", 2, "d", "h", "w"])
PAIRS = {"ksize": [2, 2, 2], "strides": [2, 2, 2]}
FOURIER: dict[str, Any] = {"axes": [1], "normalization": "backward", "forward": True}


def ones(*dims: int, dtype: str = FLOAT) -> Any:
    return np.ones(dims, dtype)


class Edge(NamedTuple):
    type: str
    inputs: dict[str, tuple[list[Any], Any]]
    results: list[str]
    attrs: dict[str, Any]
    is_differentiated: bool = False


IMAGES = ones(1, 2, 4, 4), ones(1, 2, 4, 4, 4)
LACKING = np.arange(32, dtype=FLOAT).reshape(1, 2, 1, 4, 4)
LOWEST = np.full((1, 1, 2, 2, 2), -np.inf, FLOAT)
SYMMETRIC = np.array([[2, 1], [1, 3]], FLOAT)
BILINEAR = ones(2, 2), ones(4, 2, 0), ones(1, 4)

EDGES = {
    "pool3d-open": Edge("pool3d", {"X": (OPEN_IMAGES[1], LACKING)}, ["Out"], {**PAIRS, "pooling_type": "max"}, True),
    "pool3d-mean-open": Edge("pool3d", {"X": (OPEN_IMAGES[1], LACKING)}, ["Out"], {**PAIRS, "pooling_type": "avg"}, True),
    "max_pool3d_with_index-open": Edge("max_pool3d_with_index", {"X": (OPEN_IMAGES[1], LACKING)}, ["Out", "Mask"], PAIRS),
    "lp_pool2d-open": Edge("lp_pool2d", {"x": (OPEN_IMAGES[0], LACKING[:, :, 0, :1])}, ["out"], {"kernel_size": [2, 2], "strides": [2, 2]}, True),
    "pool3d-lowest": Edge("pool3d", {"X": ([1, 1, 2, 2, 2], LOWEST)}, ["Out"], {**PAIRS, "paddings": [1, 1, 1], "pooling_type": "max"}),
    "max_pool3d_with_index-lowest": Edge("max_pool3d_with_index", {"X": ([1, 1, 2, 2, 2], LOWEST)}, ["Out"], {**PAIRS, "paddings": [1, 1, 1]}),
    "pool2d-ties": Edge("pool2d", {"X": ([1, 2, 4, 4], IMAGES[0])}, ["Out"], {"global_pooling": True, "ksize": [1, 1], "pooling_type": "max"}, True),
    "pool3d-ties": Edge("pool3d", {"X": ([1, 2, 4, 4, 4], IMAGES[1])}, ["Out"], {"adaptive": True, "ksize": [1, 1, 1], "pooling_type": "max"}, True),
    "pool3d-last-ties": Edge(
        "pool3d",
        {"X": ([1, 2, 4, 4, 4], IMAGES[1])},
        ["Out"],
        {"global_pooling": True, "ksize": [1, 1, 1], "pooling_type": "max", "data_format": "NDHWC"},
        True,
    ),
    "lp_pool2d-ties": Edge(
        "lp_pool2d", {"x": ([1, 2, 4, 4], IMAGES[0])}, ["out"], {"global_pooling": True, "kernel_size": [1, 1], "norm_type": float("inf")}, True
    ),
    "eigvalsh-vectors": Edge("eigvalsh", {"X": ([2, 2], SYMMETRIC)}, ["Eigenvalues", "Eigenvectors"], {"is_test": False}),
    "fft_r2c": Edge("fft_r2c", {"X": (["n", 4], ones(0, 4))}, ["Out"], {**FOURIER, "onesided": True}),
    "fft_c2c": Edge("fft_c2c", {"X": (["n", 4], ones(0, 4, dtype="complex64"))}, ["Out"], FOURIER),
    "fft_c2r": Edge("fft_c2r", {"X": (["n", 4], ones(0, 4, dtype="complex64"))}, ["Out"], {**FOURIER, "forward": False}),
    "bilinear": Edge(
        "bilinear_tensor_product",
        {"X": ([2, 2], BILINEAR[0]), "Y": ([2, 0], ones(2, 0)), "Weight": ([4, 2, 0], BILINEAR[1]), "Bias": ([1, 4], BILINEAR[2])},
        ["Out"],
        {},
        True,
    ),
    "channel_shuffle": Edge("channel_shuffle", {"X": ([1, 0, 2, 2], ones(1, 0, 2, 2))}, ["Out"], {"groups": 2}, True),
    "channel_shuffle-last": Edge("channel_shuffle", {"X": ([1, 2, 2, 0], ones(1, 2, 2, 0))}, ["Out"], {"groups": 2, "data_format": "NHWC"}, True),
    "shuffle_channel": Edge("shuffle_channel", {"X": ([1, 0, 2, 2], ones(1, 0, 2, 2))}, ["Out"], {"group": 2}, True),
    "pad2d-edge": Edge("pad2d", {"X": ([1, 0, 4, 4], ones(1, 0, 4, 4))}, ["Out"], {"paddings": [1, 1, 1, 1], "mode": "edge"}, True),
    "pad2d-reflect": Edge("pad2d", {"X": ([1, 0, 4, 4], ones(1, 0, 4, 4))}, ["Out"], {"paddings": [1, 1, 1, 1], "mode": "reflect"}, True),
    "reduce_mean": Edge("reduce_mean", {"X": (["n", "k"], ones(0, 3, dtype="int64"))}, ["Out"], {"dim": [1]}),
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", EDGES)
def test_written_code_gives_what_the_program_gives(name: str) -> None:
    edge, program = EDGES[name], fs.Program()
    values = {slot.lower(): value for slot, (_, value) in edge.inputs.items()}
    with fs.program_guard(program, fs.Program()):
        slots = {slot: layer.data(slot.lower(), shape=dims, dtype=str(value.dtype)) for slot, (dims, value) in edge.inputs.items()}
        for x in slots.values():
            x.stop_gradient = not edge.is_differentiated
        block = program.global_block
        fetches = [f"result.{slot}" for slot in edge.results]
        block.append_op(edge.type, slots, dict(zip(edge.results, fetches, strict=True)), edge.attrs)
    expected: list[Any] = fs.Executor("cpu").run(program, values, fetches, fs.Scope())
    seen: list[list[Any]] = []
    for plain in (False, True):
        module = fs.to_torch(program, fs.Scope(), feeds=[*values], fetches=fetches, plain=plain)
        feeds = [torch.from_numpy(value.copy()).requires_grad_(edge.is_differentiated) for value in values.values()]
        results: Any = module(*feeds)
        results = [*results] if isinstance(results, tuple | list) else [results]
        gradients = torch.autograd.grad(results[0].sum(), feeds) if edge.is_differentiated else ()
        seen.append([part.detach().numpy() for part in (*results, *gradients)])
    for reference, written in zip([*expected, *seen[0][len(expected) :]], seen[1], strict=True):
        np.testing.assert_allclose(written, np.asarray(reference), 1e-5, 1e-6)
