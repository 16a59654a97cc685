"""What is measured here: that there is something for every kind of kernel in small steps; how long it takes is asked nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from support.planned_networks import stack

import foreshape as fs
from foreshape import layer
from foreshape.cost import Calibration, measure, predict
from foreshape.cost.many_ranks import loss_of
from foreshape.cost.probes import Probe
from foreshape.lowering import fuse, lower


def few(most: int, large: int) -> Any:
    program = stack(16, fs.optimizer.SGD(0.1))
    loss = loss_of(program)
    yield Probe(program, loss, {"x": (64, 32), "y": (64, 1)}, {"y": 10})
    yield Probe(program, loss, {"x": (128, 32), "y": (128, 1)}, {"y": 10})
    ragged = fs.Program()
    with fs.program_guard(ragged, fs.Program()):
        ids = layer.data("ids", shape=["words"], dtype="int64", lod_level=1)
        total = layer.mean(layer.sequence_pool(layer.lstm(layer.embedding(ids, [50, 8], is_sparse=True), 8)[0], "sum"))
        fs.optimizer.Adam(0.1, lazy_mode=True).minimize(total)
    yield Probe(ragged, total.name, {"ids": (12,)}, {"ids": 50}, {"ids": [5, 4, 3]})


def test_a_machine_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(measure, "probes", few)
    monkeypatch.setattr(measure, "_STEPS", 2)
    executor, scope = fs.Executor(), fs.Scope()
    said: list[str] = []
    found = measure.calibrate(lambda program, feed, name: executor.run(program, feed, [name], scope), (1,), 1 << 12, 1 << 12, said.append)
    assert Calibration.load(found.save(tmp_path / "file")) == found
    assert said
    kernels = found.on(1)
    assert kernels.step > 0
    program = stack(16, fs.optimizer.SGD(0.1))
    step = predict(fuse(lower(program.global_block, [loss_of(program)])), {"batch": 100}, found)
    assert step.guessed == 0
    assert step.seconds > kernels.step
    assert any(kind.startswith("sequence_rnn LSTM") for kind in kernels.kinds)
    assert any(kind.startswith("adam of ") for kind in kernels.kinds)


def test_the_networks_that_are_measured_are_described_without_torch() -> None:
    """Each kind of kernel that real steps have is among them; nothing of theirs is allocated."""
    from foreshape.cost.probes import probes

    found = list(probes(1 << 22, 1 << 14))
    types = {op.type for probe in found for op in probe.program.global_block.ops}
    assert {"conv2d", "conv2d_grad", "batch_norm_grad", "sequence_rnn_grad", "lookup_table_v2", "softmax", "layer_norm_grad"} <= types
    assert {"sgd", "momentum", "adam", "adamw", "adagrad"} <= types
