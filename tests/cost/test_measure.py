"""What is measured here: that there is something for every kind of kernel in small steps; how long it takes is asked nowhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.planned_networks import stack

import foreshape as fs
from foreshape import layer
from foreshape.compiler.cost import Calibration, measure, predict
from foreshape.compiler.cost.calls import calls_of
from foreshape.compiler.cost.probes import HEIGHTS, Probe
from foreshape.compiler.cost.ranks_plan import loss_of
from foreshape.compiler.cost.runner import offsets, timed_calls
from foreshape.compiler.lowering import fuse, lower
from foreshape.compiler.memory.liveness import liveness
from foreshape.machine.kernels import lstm_pieces
from foreshape.machine.kernels.recurrent_net import RecurrentNet


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
    found = measure.calibrate(
        lambda program, feed, name: executor.run(program, feed, [name], scope), (1,), 1 << 12, 1 << 12, lambda words, done: said.append(words)
    )
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
    from foreshape.compiler.cost.probes import probes

    found = list(probes(1 << 22, 1 << 14))
    types = {op.type for probe in found for op in probe.program.global_block.ops}
    assert {"conv2d", "conv2d_grad", "batch_norm_grad", "sequence_rnn_grad", "lookup_table_v2", "softmax", "layer_norm_grad"} <= types
    assert {"sgd", "momentum", "adam", "adamw", "adagrad"} <= types


def ragged_lstm() -> Probe:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        ids = layer.data("ids", shape=["words"], dtype="int64", lod_level=1)
        total = layer.mean(layer.sequence_pool(layer.lstm(layer.embedding(ids, [50, 16]), 16)[0], "sum"))
        fs.optimizer.SGD(0.1).minimize(total)
    return Probe(program, total.name, {"ids": (12,)}, {"ids": 50}, {"ids": [5, 4, 3]})


def test_a_gradient_is_measured_with_what_the_forward_pass_has_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which it uses up: a second one computes it again, and takes as long as both."""
    gradients, again = [0], [0]
    forward, backward = lstm_pieces.forward, RecurrentNet.backward

    def noted_forward(*given: Any, **named: Any) -> Any:
        again[0] += gradients[0] % 2
        return forward(*given, **named)

    def noted_backward(*given: Any, **named: Any) -> Any:
        gradients[0] += 1
        made = backward(*given, **named)
        gradients[0] += 1
        return made

    monkeypatch.setattr(lstm_pieces, "forward", noted_forward)
    monkeypatch.setattr(RecurrentNet, "backward", noted_backward)
    probe = ragged_lstm()
    lowered = fuse(lower(probe.program.global_block, [probe.loss]))
    liveness(lowered)
    given = {v.name: measure.tensor_of(v.variable, probe) for v in (*lowered.feeds, *lowered.persistables)}
    given["ids@LOD"] = offsets(probe.lengths["ids"])
    with torch.inference_mode():
        found = list(timed_calls(lowered, given, lambda i: i.op.type == "sequence_rnn_grad"))
    assert len(found) == 1
    assert gradients[0] >= 6
    assert not again[0]


def test_rows_of_large_tables_are_measured_apart() -> None:
    """Whatever made them: rows of lookups, and those that owners of a table's parts are given, are updated alike."""
    far: dict[int, set[str]] = {}
    for height in HEIGHTS:
        program = fs.Program()
        with fs.program_guard(program, fs.Program()):
            loss = layer.mean(layer.embedding(layer.data("ids", shape=["n"], dtype="int64"), [height, 64], is_sparse=True))
            fs.optimizer.Adam(0.1, lazy_mode=True).minimize(loss)
        calls = [call for _, call in calls_of(fuse(lower(program.global_block, [loss.name])), {"n": 100})]
        far[height] = {call.kind for call in calls if call.is_far}
    assert not far[HEIGHTS[0]]
    assert "adam of rows" in far[HEIGHTS[1]]
