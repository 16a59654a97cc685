"""Small training programs, and a machine whose kernels take times that are easy to reckon with."""

from __future__ import annotations

import foreshape as fs
from foreshape import layer
from foreshape.compiler.cost.calibration import Calibration, Kernels


def stack(hidden: int = 64, optimizer: object = None) -> fs.Program:
    """Two layers on 32 features."""
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x, y = layer.data("x", input_size=32), layer.data("y", dims=1, data_type=fs.INT64)
        h = layer.fc(layer.fc(x, hidden, activation="relu"), hidden, activation="relu")
        loss = layer.mean(layer.softmax_with_cross_entropy(layer.fc(h, 10), y))
        (optimizer or fs.optimizer.Adam(0.01)).minimize(loss)  # type: ignore[attr-defined]
    return program


def words(rows: int = 1000) -> fs.Program:
    """Ragged words of a table with a sparse gradient."""
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        ids = layer.data("ids", shape=["words"], dtype="int64", lod_level=1)
        label = layer.data("label", dims=1, data_type=fs.INT64)
        pooled = layer.sequence_pool(layer.embedding(ids, size=[rows, 16], is_sparse=True), "sum")
        loss = layer.mean(layer.softmax_with_cross_entropy(layer.fc(pooled, 3), label))
        fs.optimizer.SGD(0.1).minimize(loss)
    return program


def machine(step: float = 1e-3) -> Calibration:
    """A byte takes a nanosecond, in the cache or out of it, and a product ten picoseconds for each multiply-add."""
    products = [[float(m), float(k), float(n), 1e-11 * m * k * n] for m in (1, 64, 4096) for k in (1, 64, 4096) for n in (1, 64, 4096)]
    moved = [[float(b), 1e-9 * b] for b in (1, 2**10, 2**20, 2**30)]
    names = ("product addmm mm onednn", "product addmm mm", "mul_grad mm onednn", "mul_grad mm", "weight gradient mm")
    kinds = {**dict.fromkeys(names, products), "elementwise_add": moved}
    return Calibration("a machine", {1: Kernels(step, 1e-9, kinds, moved), 2: Kernels(step / 2, 1e-9, kinds, moved)})
