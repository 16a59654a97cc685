"""Recurrent layers as one call in machine code, beside the same by torch's kernels."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.language.ops.recurrent.rnn import Dense
from foreshape.machine.kernels import packed_recurrence
from foreshape.machine.kernels.instructions import SWITCH
from foreshape.machine.kernels.loaded_beside import FIRST_CALLS, LoadedBeside
from foreshape.machine.kernels.packed_recurrence import PackedRecurrentNet
from foreshape.machine.kernels.recurrent_net import RecurrentNet

needs_numba = pytest.mark.skipif(not packed_recurrence.can_pack(), reason="numba is not installed")


@pytest.fixture(autouse=True)
def loaded() -> None:
    """Have the loop at once: the first calls of a process do not wait for it."""
    if packed_recurrence.can_pack():
        packed_recurrence.LOOP.now()


GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
SIZES = [(1, 1, 5, 3, 1, 1), (2, 2, 20, 7, 6, 3), (3, 2, 70, 33, 5, 9), (1, 2, 128, 64, 7, 1), (3, 1, 40, 17, 4, 2)]
"""Layers, directions, hidden units, features, steps, sequences."""


def _weights(net: RecurrentNet, features: int, generator: torch.Generator) -> list[torch.Tensor]:
    gates, wide = GATES[net.mode] * net.hidden, net.directions * net.hidden
    inner = [features] * net.directions + [wide] * (net.units - net.directions)
    dims = [(gates, n) for each in inner for n in (each, net.hidden)]
    pairs = [torch.randn(pair, generator=generator) / pair[1] ** 0.5 for pair in dims]
    return [*pairs, *(torch.randn(gates, generator=generator) for _ in range(2 * net.units))]


def _networks(mode: str, sizes: tuple[int, ...], lengths: list[int] | None) -> tuple[PackedRecurrentNet, list[Any], list[torch.Tensor]]:
    """Return the packed network, its operands, and its results by torch's kernels."""
    generator = torch.Generator().manual_seed(3)
    layers, directions, hidden, features, steps, batch = sizes
    net = RecurrentNet(mode, layers, directions, hidden)
    weights, x = _weights(net, features, generator), torch.randn(steps, batch, features, generator=generator)
    states = [torch.randn(net.units, batch, hidden, generator=generator) for _ in range(2 if mode == "LSTM" else 1)]
    of = None if lengths is None else torch.tensor(lengths)
    schedules = Dense({}, steps, batch, of, x.device)
    out, h, c, _ = net.forward(x.flatten(0, 1), weights, states[0], states[1] if len(states) > 1 else None, schedules, out=True, cell=True, train=False)
    assert out is not None
    wanted = [out.view(steps, batch, -1), h, *([] if c is None else [c])]
    return PackedRecurrentNet(net, weights, _refused), [x, states, of], wanted


def _refused(*operands: Any) -> Any:
    raise AssertionError("the loop must compute it")


def _compare(results: Any, wanted: list[torch.Tensor]) -> None:
    for result, want in zip(results, wanted, strict=True):
        torch.testing.assert_close(result, want, rtol=1e-4, atol=2e-5)


@needs_numba
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("ragged", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize("mode", GATES)
def test_the_loop_computes_what_the_steps_do(mode: str, ragged: bool, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_recurrence, "_THREAD_WORK", 0)
    monkeypatch.setattr(packed_recurrence, "_STEP_WORK", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for sizes in SIZES:
            lengths = [(3 * k) % (sizes[4] + 1) for k in range(sizes[5])] if ragged else None  # the first one is empty
            net, operands, wanted = _networks(mode, sizes, lengths)
            _compare(net(*operands), wanted)
    finally:
        torch.set_num_threads(before)


@needs_numba
def test_operands_with_gaps_are_copied_and_small_numbers_keep_their_digits() -> None:
    net, (x, states, _), wanted = _networks("LSTM", SIZES[1], None)
    wide = torch.empty(*x.shape[:2], 2 * x.shape[2])[..., ::2].copy_(x)
    _compare(net(wide, [s.transpose(1, 2).contiguous().transpose(1, 2) for s in states]), wanted)
    plain = RecurrentNet("RNN_TANH", 1, 1, 3)
    tiny = PackedRecurrentNet(plain, [torch.eye(3), torch.zeros(3, 3), torch.zeros(3), torch.zeros(3)], _refused)
    x = torch.tensor([1e-6, -0.3, 0.62]).view(1, 1, 3)
    torch.testing.assert_close(tiny(x, [torch.zeros(1, 1, 3)])[0], x.tanh(), rtol=1e-6, atol=0.0)


@needs_numba
def test_numbers_beyond_the_range_of_the_exponential_saturate() -> None:
    net = PackedRecurrentNet(RecurrentNet("LSTM", 1, 1, 1), [torch.full((4, 1), 1.0), torch.zeros(4, 1), torch.zeros(4), torch.zeros(4)], _refused)
    out, _, cell = net(torch.tensor([1e30, -1e30]).view(2, 1, 1), [torch.zeros(1, 1, 1)] * 2)
    torch.testing.assert_close(out.flatten(), torch.tensor([float(np.tanh(1.0)), 0.0]), rtol=1e-6, atol=1e-30)
    assert cell.item() == pytest.approx(0.0, abs=1e-30)


@needs_numba
def test_other_sizes_are_refused() -> None:
    net, (x, states, _), _ = _networks("GRU", SIZES[1], None)
    for operands in ((x[..., 1:], states), (x, [states[0][:, 1:]]), (x[:, 1:], states)):
        with pytest.raises(fs.ExecutionError, match="the features and the states of a recurrent network must be"):
            net(*operands)


@needs_numba
def test_threads_of_python_share_a_network() -> None:
    net, operands, wanted = _networks("GRU", SIZES[2], None)
    with ThreadPoolExecutor(2) as pool:
        for results in [task.result() for task in [pool.submit(net, *operands) for _ in range(20)]]:
            _compare(results, wanted)


def _network() -> tuple[list[fs.Variable], list[fs.Variable]]:
    """Return the inputs and results of a bidirectional LSTM and a GRU, of which some weights are made of parameters."""
    x, lengths = layer.data("x", shape=["time", "batch", 6]), layer.data("lengths", shape=["batch"], dtype="int32")
    block, results, inputs = fs.default_main_program().global_block, list[fs.Variable](), [x, lengths]
    for mode, directions, features in (("LSTM", 2, 6), ("GRU", 1, 8)):
        gates = GATES[mode] * 4
        pairs = [layer.create_parameter([gates, n], "float32") for _ in range(directions) for n in (features, 4)]
        halves = [layer.create_parameter([gates // 2], "float32") for _ in range(2)]
        biases = [layer.concat(halves, 0) if k else layer.create_parameter([gates], "float32") for k in range(2 * directions)]
        states = [layer.data(f"{mode}{k}", shape=[directions, "batch", 4]) for k in range(2 if mode == "LSTM" else 1)]
        attrs = {"mode": mode, "hidden_size": 4, "is_bidirec": directions == 2, "is_test": True}
        operands = {"Input": results[-1] if results else x, "PreState": states, "WeightList": [*pairs, *biases], "SequenceLength": lengths}
        out, _, last, _ = block.apply("rnn", operands, attrs)
        results += [*(last if isinstance(last, list | tuple) else [last]), out]
        inputs += states
    return inputs, results


def _feed(inputs: list[fs.Variable], time: int, lengths: list[int], seed: int) -> dict[str, Any]:
    rng, dims = np.random.default_rng(seed), {"time": time, "batch": len(lengths)}
    feed: dict[str, Any] = {}
    for v in inputs:
        sizes = [d if isinstance(d, int) else dims[str(d)] for d in v.spec.known_dims]
        feed[v.name] = np.array(lengths, "int32") if v.name == "lengths" else rng.standard_normal(sizes).astype("float32")
    return feed


@pytest.mark.parametrize("machine_code", [pytest.param(True, marks=needs_numba), False], ids=["in machine code", "by torch"])
def test_a_frozen_network_gives_the_numbers_of_the_plain_one(machine_code: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not machine_code:
        monkeypatch.setenv(SWITCH, "torch")
    inputs, results = _network()
    plain, frozen, scope = fs.Executor(), fs.Executor(frozen=True), fs.Scope()
    program = fs.default_main_program()
    plain.run(fs.default_startup_program(), scope=scope)
    kinds = [getattr(getattr(i, "kernel", None), "kind", "") for i in frozen.step(program, results).emitted.lowered.calls]
    assert kinds.count("{op} layers") == (2 if machine_code else 0)
    for seed, (time, lengths) in enumerate([(5, [5, 0, 2]), (1, [1]), (1, [0]), (7, [3, 7]), (3, [3, 1] * 20), (0, [0, 0])]):
        feed = _feed(inputs, time, lengths, seed)
        wanted = plain.run(program, feed, results, scope)
        for result, want in zip(frozen.run(program, feed, results, scope), wanted, strict=True):
            np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-6)
    with pytest.raises(fs.ExecutionError, match="SequenceLength must be from 0 to 3"):
        frozen.run(program, _feed(inputs, 3, [2, 4], 0), results, scope)


@needs_numba
@pytest.mark.parametrize("batch", [1, 3, 5])
@pytest.mark.parametrize("mode", ["LSTM", "GRU"])
def test_weights_that_are_multiples_of_a_step_are_kept_as_bytes(mode: str, batch: int) -> None:
    generator, net = torch.Generator().manual_seed(5), RecurrentNet(mode, 1, 2, 120)
    gates = GATES[mode] * 120
    weights = list[torch.Tensor]()
    for columns in (120, 120, 120, 120):
        whole = torch.randint(0, 256, (gates, columns), generator=generator)
        zeros = torch.randint(0, 256, (gates, 1), generator=generator)
        weights.append((whole - zeros) * (torch.rand(gates, 1, generator=generator) + 0.5) / 1000)
    weights += [torch.randn(gates, generator=generator) for _ in range(4)]
    for weight in weights[:4]:
        on_grid = packed_recurrence.byte_rows(weight)
        assert on_grid is not None
        torch.testing.assert_close(on_grid.steps[:, None] * (on_grid.whole + on_grid.middles[:, None]), weight, rtol=1e-6, atol=0.0)
    x, states = torch.randn(3, batch, 120, generator=generator), [torch.randn(2, batch, 120, generator=generator) for _ in range(2 if mode == "LSTM" else 1)]
    schedules = Dense({}, 3, batch, None, x.device)
    out, h, c, _ = net.forward(x.flatten(0, 1), weights, states[0], states[1] if len(states) > 1 else None, schedules, out=True, cell=True, train=False)
    assert out is not None
    _compare(PackedRecurrentNet(net, weights, _refused)(x, states), [out.view(3, batch, -1), h, *([] if c is None else [c])])


def test_other_weights_stay_as_they_are() -> None:
    generator = torch.Generator().manual_seed(6)
    on_grid = torch.randint(-128, 128, (4, 500), generator=generator) * 0.01
    assert packed_recurrence.byte_rows(torch.randn(4, 500, generator=generator)) is None
    for place, number in (((1, 7), 1.2345), ((2, 0), 5.0)):  # off the grid, and beyond 8 bits
        other = on_grid.clone()
        other[place] = number
        assert packed_recurrence.byte_rows(other) is None
    rows = packed_recurrence.byte_rows(torch.tensor([[0.0, 0.0], [3.0, 3.0], [-2.0, 2.0]]))
    assert rows is not None
    assert torch.equal(rows.steps[:, None] * (rows.whole + rows.middles[:, None]), torch.tensor([[0.0, 0.0], [3.0, 3.0], [-2.0, 2.0]]))


def test_the_first_calls_do_not_wait_and_a_fault_of_the_loading_is_told() -> None:
    begun, go = threading.Event(), threading.Event()

    def load() -> int:
        begun.set()
        go.wait(60)
        return 7

    later = LoadedBeside(load)
    assert [later.address() for _ in range(FIRST_CALLS)] == [None] * FIRST_CALLS and not begun.is_set()
    assert later.address() is None and begun.wait(60) and later.address() is None
    go.set()
    assert later.now() == later.address() == 7

    def fail() -> int:
        raise OSError("no space left")

    wrong = LoadedBeside(fail)
    with pytest.raises(OSError, match="no space left"), pytest.warns(fs.ForeshapeWarning, match="cannot be loaded"):
        wrong.now()


@needs_numba
def test_a_process_that_asks_once_loads_no_compiler_and_one_that_goes_on_ends_with_the_loop() -> None:
    words = """
import sys, numpy as np
import foreshape as fs
from foreshape import layer
from foreshape.machine.kernels import packed_recurrence

out, _ = layer.lstm(layer.data("x", shape=["batch", "time", 5]), 8, is_test=True)
executor = fs.Executor(frozen=True)
fs.Executor(seed=1).run(fs.default_startup_program())
main = fs.default_main_program()
feed = {"x": np.ones((3, 2, 5), "float32")}
first = executor.run(main, feed, [out])[0]
assert "numba" not in sys.modules
executor.run(main, feed, [out]), executor.run(main, feed, [out])
packed_recurrence.LOOP.now()
assert "numba" in sys.modules
np.testing.assert_allclose(executor.run(main, feed, [out])[0], first, rtol=1e-5, atol=1e-6)
"""
    subprocess.run([sys.executable, "-c", words], check=True, timeout=300)
