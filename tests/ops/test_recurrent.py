"""Recurrent nets against torch's, on packed sequences, and PaddlePaddle's packed-row operators against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

import foreshape as fs
from foreshape import layer
from foreshape.errors import ExecutionError, SchemaError, ShapeError, TypeMismatchError
from foreshape.language.ops import Offsets, Operator
from foreshape.machine.kernels import lstm_pieces
from foreshape.machine.kernels.recurrence import Cheapest, StepSchedule
from foreshape.transforms.backward import append_backward

LENGTHS = [5, 1, 9, 3, 9, 2, 7]
MODES = {"LSTM": (nn.LSTM, {}), "GRU": (nn.GRU, {}), "RNN_TANH": (nn.RNN, {}), "RNN_RELU": (nn.RNN, {"nonlinearity": "relu"})}
GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
SETTINGS = [(1, 1), (1, 2), (2, 1), (3, 2)]


def close(seen: Any, wanted: Any, what: str) -> None:
    seen, wanted = np.asarray(seen), np.asarray(wanted)
    scale = max(1.0, float(np.abs(wanted).max())) if wanted.size else 1.0
    np.testing.assert_allclose(seen, wanted, rtol=1e-4, atol=1e-5 * scale, err_msg=what)


class Peer:
    """One of torch's networks, its weights in our order, and random numbers around it."""

    def __init__(self, mode: str, layers: int, directions: int, features: int = 5, hidden: int = 6, lengths: list[int] = LENGTHS) -> None:
        torch.default_generator.manual_seed(3)
        cls, more = MODES[mode]
        self.mode, self.units, self.hidden, self.lengths = mode, layers * directions, hidden, lengths
        self.net = cls(features, hidden, layers, bidirectional=directions == 2, **more)
        units = [f"l{k}{side}" for k in range(layers) for side in ("", "_reverse")[:directions]]
        self.parameters = [getattr(self.net, f"{n}_{u}") for u in units for n in ("weight_ih", "weight_hh")]
        self.parameters += [getattr(self.net, f"{n}_{u}") for u in units for n in ("bias_ih", "bias_hh")]
        self.x = torch.randn(sum(lengths), features, requires_grad=True)
        self.states = [torch.randn(self.units, len(lengths), hidden, requires_grad=True) for _ in range(2 if mode == "LSTM" else 1)]
        self.d_out = torch.randn(sum(lengths), directions * hidden)
        self.d_states = [torch.randn(self.units, len(lengths), hidden) for _ in self.states]

    def results(self) -> list[torch.Tensor]:
        """The packed rows that come out, and the last states."""
        packed = pack_sequence(list(self.x.split(self.lengths)), enforce_sorted=False)
        out, last = self.net(packed, tuple(self.states) if self.mode == "LSTM" else self.states[0])
        padded, _ = pad_packed_sequence(out, batch_first=True)
        rows = torch.cat([padded[i, :n] for i, n in enumerate(self.lengths)])
        return [rows, *(last if self.mode == "LSTM" else [last])]

    def gradients(self, results: list[torch.Tensor], parts: tuple[bool, ...]) -> list[torch.Tensor]:
        loss = sum((r * d).sum() for r, d, part in zip(results, [self.d_out, *self.d_states], parts, strict=True) if part)
        return list(torch.autograd.grad(loss, [self.x, *self.states, *self.parameters]))


def numbers(tensor: torch.Tensor, double: bool = False) -> np.ndarray:
    out = tensor.detach().numpy()
    return out.astype(np.float64) if double else out


def described(peer: Peer, levels: list[list[int]], dtype: str) -> tuple[list[fs.Variable], list[fs.Variable], dict[str, Any]]:
    """Results, sources of gradients and the feed of `sequence_rnn` in the default program."""
    double = dtype == "fp64"
    x = layer.data("x", [-1, peer.x.shape[1]], dtype, lod_level=len(levels))
    states = [layer.data(f"s{k}", list(s.shape), dtype) for k, s in enumerate(peer.states)]
    weights = [layer.data(f"w{k}", list(p.shape), dtype) for k, p in enumerate(peer.parameters)]
    feed: dict[str, Any] = {"x": fs.LoDTensor(numbers(peer.x, double), levels)}
    feed |= {v.name: numbers(t, double) for v, t in zip([*states, *weights], [*peer.states, *peer.parameters], strict=True)}
    inputs: dict[str, Any] = {"Input": x, "WeightList": weights} | dict(zip(("InitHidden", "InitCell"), states, strict=False))
    net = peer.net
    attrs = {"mode": peer.mode, "hidden_size": peer.hidden, "num_layers": net.num_layers, "is_bidirec": net.bidirectional}
    return apply(inputs, attrs), [x, *states, *weights], feed


def apply(inputs: dict[str, Any], attrs: dict[str, Any]) -> list[fs.Variable]:
    block = fs.default_main_program().global_block
    cell = {"LastCell": "last_cell"} if attrs["mode"] == "LSTM" else {}
    op = block.append_op("sequence_rnn", inputs, cell, attrs, prefix="net")
    return [block.var(op.outputs[slot][0]) for slot in ("Out", "LastHidden", *cell)]


def weighted(results: list[fs.Variable], peer: Peer, parts: tuple[bool, ...], dtype: str, feed: dict[str, Any]) -> fs.Variable:
    """The sum of the results times what their gradients are to be."""
    total = []
    for k, (r, d, part) in enumerate(zip(results, [peer.d_out, *peer.d_states], parts, strict=True)):
        if part:
            feed[f"d{k}"] = numbers(d, dtype == "fp64")
            total.append(layer.reduce_sum(r * layer.data(f"d{k}", list(d.shape) if k else ["words", d.shape[1]], dtype)))
    return total[0] if len(total) == 1 else layer.sum(total)


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("layers", "directions"), SETTINGS)
def test_ragged_rows_give_what_torch_gives_on_packed_sequences(mode: str, layers: int, directions: int, dtype: str) -> None:
    peer = Peer(mode, layers, directions)
    results, sources, feed = described(peer, [LENGTHS], dtype)
    wanted = peer.results()
    parts = (True,) * len(results)
    loss = weighted(results, peer, parts, dtype, feed)
    for v in sources:
        v.stop_gradient = False
    pairs = append_backward(loss, sources)
    fetched = fs.Executor().run(loss.block.program, feed, [*results, *(g for _, g in pairs)], fs.Scope())
    assert fetched[0].sequence_lengths == [LENGTHS]
    for seen, one in zip(fetched, wanted, strict=False):
        close(seen, one.detach(), "result")
    for (v, _), seen, one in zip(pairs, fetched[len(results) :], peer.gradients(wanted, parts), strict=True):
        close(seen, one, f"gradient of {v.name}")


@pytest.mark.parametrize("part", range(3))
def test_only_what_flows_back_is_taken(part: int) -> None:
    """The loss depends on one of the results, and on the cell although nobody fetches it."""
    peer = Peer("LSTM", 1, 2)
    results, sources, feed = described(peer, [LENGTHS], "fp32")
    parts = tuple(k == part for k in range(3))
    loss = weighted(results, peer, parts, "fp32", feed)
    for v in sources:
        v.stop_gradient = False
    pairs = append_backward(loss, sources)
    grad = next(op for op in loss.block.ops if op.type == "sequence_rnn_grad")
    assert [bool(grad.inputs.get(s)) for s in ("Out@GRAD", "LastHidden@GRAD", "LastCell@GRAD")] == list(parts)
    fetched = fs.Executor().run(loss.block.program, feed, [g for _, g in pairs], fs.Scope())
    for (v, _), seen, one in zip(pairs, fetched, peer.gradients(peer.results(), parts), strict=True):
        close(seen, one, f"gradient of {v.name}")


def test_a_gradient_of_the_cell_that_was_not_asked_for_is_right() -> None:
    peer = Peer("LSTM", 1, 1)
    results, sources, feed = described(peer, [LENGTHS], "fp32")
    given = layer.data("given", list(peer.d_states[1].shape))
    for v in sources:
        v.stop_gradient = False
    pairs = append_backward(results[2], sources, loss_gradient=given)
    fetched = fs.Executor().run(given.block.program, feed | {"given": peer.d_states[1].numpy()}, [g for _, g in pairs], fs.Scope())
    for (v, _), seen, one in zip(pairs, fetched, peer.gradients(peer.results(), (False, False, True)), strict=True):
        close(seen, one, f"gradient of {v.name}")


@pytest.mark.quick_cases("fp32")
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_long_batches_are_cut_into_pieces_and_stay_exact(dtype: str) -> None:
    """Lengths as text has them, where oneDNN pads what it does not cut."""
    rng = np.random.RandomState(5)
    lengths = np.clip(np.exp(3.6 + 0.8 * rng.standard_normal(40)), 1, 200).astype(int).tolist()
    peer = Peer("LSTM", 1, 1, 32, 64, lengths)
    schedule = StepSchedule.of(Offsets.of_lengths(torch.tensor(lengths)), cutter=lstm_pieces.PieceCutter(32, 64, True))
    assert 1 < len(schedule.pieces) < len(set(lengths)) and schedule.idle is not None
    results, sources, feed = described(peer, [lengths], dtype)
    loss = weighted(results, peer, (True,) * 3, dtype, feed)
    for v in sources:
        v.stop_gradient = False
    pairs = append_backward(loss, sources)
    fetched = fs.Executor().run(loss.block.program, feed, [*results, *(g for _, g in pairs)], fs.Scope())
    wanted = peer.results()
    for seen, one in zip(fetched, [*(w.detach() for w in wanted), *peer.gradients(wanted, (True,) * 3)], strict=True):
        close(seen, one, "value")


def test_a_last_cell_is_exact_where_inputs_are_enormous() -> None:
    """What idle places are fed must not reach the gates that are shut there."""
    lengths = [40, *[3] * 30]
    x, w = torch.randn(sum(lengths), 4) * 1e5, torch.randn(256, 4)
    v, b = torch.randn(256, 64) * 0.1, torch.randn(256)
    schedule = StepSchedule.of(Offsets.of_lengths(torch.tensor(lengths)), cutter=Cheapest(1e9, 1.0, 1.0))
    start = torch.zeros(31, 64)
    last_cell = lstm_pieces.forward(x, (w, v, b, torch.zeros(256)), start, start, schedule, out=False, cell=True, train=False)[3]
    net = nn.LSTM(4, 64)
    for name, value in zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), (w, v, b, torch.zeros(256)), strict=True):
        getattr(net, name).data = value
    wanted = net(pack_sequence(list(x.split(lengths)), enforce_sorted=False))[1][1][0]
    assert last_cell is not None
    close(schedule.unsorted(last_cell), wanted.detach(), "cell")


@pytest.mark.parametrize(("rows", "states"), [(30, 3), (7, 3), (15, 6), (15, 1)], ids=str)
def test_a_gradient_of_whole_sequences_of_other_sizes_is_refused(rows: int, states: int) -> None:
    weights, start = (torch.randn(16, 2), torch.randn(16, 4), torch.randn(16), torch.randn(16)), torch.zeros(3, 4)
    run = lstm_pieces.whole(torch.randn(15, 2), weights, start, start, 5, False, True)[3]
    assert run is not None
    d_rows, d_last, d_cell = torch.randn(15, 4), torch.randn(states, 4), torch.randn(states, 4)
    with pytest.raises(RuntimeError, match="is invalid for input of size"):  # torch's kernel would write beside its memory
        lstm_pieces.whole_gradient(run, torch.randn(rows, 2), weights, d_rows, d_last, d_cell, False)


@pytest.mark.parametrize("mode", MODES)
def test_empty_sequences_keep_their_state_and_two_levels_run_over_the_inner_one(mode: str) -> None:
    lengths = [0, 4, 0, 2, 0]
    peer = Peer(mode, 2, 2, lengths=[4, 2])
    _, _, feed = described(peer, [[2, 0, 3], lengths], "fp32")
    states = [torch.randn(peer.units, 5, peer.hidden) for _ in peer.states]
    for k, s in enumerate(states):
        peer.states[k] = s[:, [1, 3]].requires_grad_()
        feed[f"s{k}"] = s.numpy()
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x = layer.data("x", [-1, 5], lod_level=2)
        given = [layer.data(f"s{k}", [peer.units, 5, peer.hidden]) for k in range(len(states))]
        weights = [layer.data(f"w{k}", list(p.shape)) for k, p in enumerate(peer.parameters)]
        inputs: dict[str, Any] = {"Input": x, "WeightList": weights} | dict(zip(("InitHidden", "InitCell"), given, strict=False))
        made = apply(inputs, {"mode": mode, "hidden_size": 6, "num_layers": 2, "is_bidirec": True})
    assert made[0].lod_level == 2
    fetched = fs.Executor().run(program, feed, made, fs.Scope())
    wanted = peer.results()
    close(fetched[0], wanted[0].detach(), "out")
    for seen, one, begun in zip(fetched[1:], wanted[1:], states, strict=True):
        close(seen[:, [1, 3]], one.detach(), "state")
        np.testing.assert_array_equal(seen[:, [0, 2, 4]], begun[:, [0, 2, 4]])


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_of_no_sequences_and_one_of_empty_ones(mode: str) -> None:
    x = layer.data("x", [-1, 3], lod_level=1)
    build = {"LSTM": layer.lstm, "GRU": layer.gru}.get(mode, layer.simple_rnn)
    out, last = build(x, 4, num_layers=2, bidirectional=True)
    loss = layer.reduce_sum(out)
    pairs = append_backward(loss)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    for lengths in ([], [0, 0]):
        feed = {"x": fs.LoDTensor(np.zeros((0, 3), np.float32), [lengths])}
        seen, *grads = executor.run(fs.default_main_program(), feed, [out, *(g for _, g in pairs)], scope)
        assert np.asarray(seen).shape == (0, 8)
        assert all(not np.asarray(g).any() for g in grads)
        (state,) = executor.run(fs.default_main_program(), feed, [last[0] if isinstance(last, tuple) else last], scope)
        assert state.shape == (4, len(lengths), 4) and not state.any()


# --- dense


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", [None, [4, 7, 1]])
def test_dense_layers_give_what_torch_gives(mode: str, lengths: list[int] | None) -> None:
    torch.default_generator.manual_seed(1)
    cls, more = MODES[mode]
    net = cls(5, 6, 2, bidirectional=True, batch_first=True, **more)
    x = layer.data("x", ["batch", 7, 5], stop_gradient=False)
    counts = None if lengths is None else layer.data("n", ["batch"], "int64")
    build = {"LSTM": layer.lstm, "GRU": layer.gru, "RNN_TANH": layer.simple_rnn}.get(mode, lambda *a, **k: layer.simple_rnn(*a, activation="relu", **k))
    units = ["l0", "l0_reverse", "l1", "l1_reverse"]
    names = {
        key: [fs.layer.ParamAttr(f"{theirs}_{u}") for u in units]
        for key, theirs in (("input_weight", "weight_ih"), ("hidden_weight", "weight_hh"), ("bias", "bias_ih"), ("hidden_bias", "bias_hh"))
    }
    out, last = build(x, 6, 2, True, length=counts, **names)
    assert out.shape[1:] == [7, 12]
    states = list(last) if isinstance(last, tuple) else [last]
    loss = layer.reduce_sum(out * out)
    for s in states:
        loss = loss + layer.reduce_sum(s * s)
    pairs = append_backward(loss, [x, *(n.name for many in names.values() for n in many)])
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    for name, value in net.named_parameters():
        scope.set(name, value.detach().numpy())
    given = torch.randn(3, 7, 5, requires_grad=True)
    feed = {"x": given.detach().numpy()} | ({} if lengths is None else {"n": np.array(lengths)})
    fetched = executor.run(fs.default_main_program(), feed, [out, *states, *(g for _, g in pairs)], scope)
    if lengths is None:
        theirs, end = net(given)
    else:
        theirs, end = net(nn.utils.rnn.pack_padded_sequence(given, torch.tensor(lengths), batch_first=True, enforce_sorted=False))
        theirs, _ = pad_packed_sequence(theirs, batch_first=True, total_length=7)
    ends = list(end) if isinstance(end, tuple) else [end]
    total = (theirs * theirs).sum() + sum((e * e).sum() for e in ends)
    alone = executor.run(fs.default_main_program(), feed, [out, *states], scope)  # no gradient is wanted
    for seen, by_itself, one in zip(fetched, alone, [theirs, *ends], strict=False):
        close(seen, one.detach(), "result")
        close(by_itself, one.detach(), "result without a gradient")
    parameters = dict(net.named_parameters())
    wanted = torch.autograd.grad(total, [given if v is x else parameters[v.name] for v, _ in pairs])
    for (v, _), seen, one in zip(pairs, fetched[1 + len(states) :], wanted, strict=True):
        close(seen, one, f"gradient of {v.name}")


def test_time_major_is_the_same_the_other_way_round() -> None:
    x, y = layer.data("x", ["batch", 4, 3]), layer.data("y", [4, "batch", 3])
    settings = {"input_weight": "w", "hidden_weight": "v", "bias": "b"}
    one, (h, _) = layer.lstm(x, 5, **settings)
    two, (g, _) = layer.lstm(y, 5, time_major=True, **settings)
    assert h.packed_dims == [1, -1, 5] and two.packed_dims == [4, -1, 5]
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    data = np.random.RandomState(0).standard_normal((2, 4, 3)).astype("float32")
    a, b, c, d = executor.run(fs.default_main_program(), {"x": data, "y": data.transpose(1, 0, 2)}, [one, two, h, g], scope)
    np.testing.assert_array_equal(a, b.transpose(1, 0, 2))
    np.testing.assert_array_equal(c, d)


def test_dropout_is_between_layers_and_drawn_again_from_its_seed() -> None:
    x = layer.data("x", ["batch", 4, 3])
    settings = {"input_weight": ["w0", "w1"], "hidden_weight": ["v0", "v1"], "bias": ["b0", "b1"]}
    outs = [layer.gru(x, 50, 2, dropout=p, seed=s, is_test=t, hidden_bias=["d0", "d1"], **settings)[0]
            for p, s, t in ((0.0, 0, False), (0.5, 7, False), (0.5, 7, False), (0.5, 8, False), (0.5, 7, True), (1.0, 7, False))]  # fmt: skip
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    data = np.random.RandomState(0).standard_normal((2, 4, 3)).astype("float32")
    plain, first, again, other, test, none = executor.run(fs.default_main_program(), {"x": data}, outs, scope)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(plain, test)
    assert not np.allclose(first, plain) and not np.allclose(first, other)
    assert np.ptp(none, axis=0).max() < 1e-6  # the second layer sees nothing of the input


def test_a_sequence_length_out_of_range_is_refused() -> None:
    x, n = layer.data("x", ["batch", 4, 3]), layer.data("n", ["batch"], "int32")
    out, _ = layer.gru(x, 2, length=n)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    for wrong in (5, -1):
        with pytest.raises(ExecutionError, match="SequenceLength must be from 0 to 4"):
            executor.run(fs.default_main_program(), {"x": np.zeros((2, 4, 3), np.float32), "n": np.array([2, wrong], np.int32)}, [out], scope)


def test_layers_refuse_what_does_not_fit() -> None:
    ragged, dense = layer.data("r", [-1, 3], lod_level=1), layer.data("d", ["batch", 4, 3])
    lengths = layer.data("n", ["batch"], "int64")
    with pytest.raises(ShapeError, match="must be ragged, or dense"):
        layer.lstm(layer.data("x", ["batch", 3]), 4)
    with pytest.raises(TypeMismatchError, match="length is for dense input"):
        layer.gru(ragged, 4, length=lengths)
    with pytest.raises(SchemaError, match="named, and there are 2 units"):
        layer.gru(dense, 4, bidirectional=True, input_weight="w")
    with pytest.raises(SchemaError, match="one entry for each of the 2 units"):
        layer.gru(dense, 4, num_layers=2, bias=["b"])
    with pytest.raises(SchemaError, match="the hidden state and the cell"):
        layer.lstm(dense, 4, initial_states=[dense])
    with pytest.raises(ShapeError, match="features must be known"):
        layer.lstm(layer.data("y", ["batch", 4, "features"]), 4)
    with pytest.raises(ShapeError, match="at least 1"):
        layer.lstm(dense, 0)
    with pytest.raises(SchemaError, match="'tanh' or 'relu'"):
        layer.simple_rnn(dense, 4, activation="gelu")
    with pytest.raises(ShapeError, match=r"InitHidden must be \[1, .*, 4\]"):
        layer.gru(ragged, 4, initial_states=layer.data("h", [2, 5, 4]))


def test_what_the_gradient_needs_is_computed_again_where_it_was_fed_but_for_masks() -> None:
    from foreshape.language.ops.recurrent.rnn import SequenceRnn

    reserve = torch.zeros((), dtype=torch.uint8)
    given = {n: f.default for n, f in SequenceRnn.schema.attributes.items()} | {"mode": "LSTM", "hidden_size": 3, "num_layers": 2}
    operator = SequenceRnn.with_values(given)
    rows, offsets = torch.randn(5, 2), [Offsets([torch.tensor([0, 3, 5])])]
    weights = [torch.randn(12, n) for _ in range(1) for n in (2, 3, 3, 3)] + [torch.randn(12) for _ in range(4)]
    out, _, _, kept = operator.kernel(rows, None, None, weights, requested=(True,) * 4, offsets=offsets)

    def gradients(operator: Operator, reserve: torch.Tensor) -> list[torch.Tensor]:
        x, _, _, w = SequenceRnn.grad_class.kernel(
            operator, rows, None, None, weights, reserve, torch.ones_like(out), None, None, requested=(True,) * 4, offsets=offsets * 8
        )
        return [x, *w]

    torch.testing.assert_close(gradients(operator, reserve), gradients(operator, kept))
    with pytest.raises(ExecutionError, match="Reserve must be the value that sequence_rnn gave"):
        gradients(SequenceRnn.with_values(given | {"dropout_prob": 0.5}), reserve)


# --- PaddlePaddle's packed-row operators, against loops that say what they mean


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def packed(type: str, feed: dict[str, np.ndarray], lengths: list[int], attrs: dict[str, Any], fetch: list[str]) -> list[np.ndarray]:
    inputs = {n: layer.data(n, [-1, a.shape[1]] if n == "Input" else list(a.shape), "fp64", lod_level=int(n == "Input")) for n, a in feed.items()}
    block = fs.default_main_program().global_block
    op = block.append_op(type, inputs, None, attrs, prefix="net")
    given: dict[str, Any] = dict(feed) | {"Input": fs.LoDTensor(feed["Input"], [lengths])}
    return fs.Executor().run(block.program, given, [op.outputs[slot][0] for slot in fetch], fs.Scope())


def sequences_of(lengths: list[int], reverse: bool) -> list[list[int]]:
    ends = np.cumsum(lengths)
    rows = [list(range(e - n, e)) for n, e in zip(lengths, ends, strict=True)]
    return [r[::-1] for r in rows] if reverse else rows


def draws(**dims: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.RandomState(8)
    return {n: rng.uniform(-1, 1, d) for n, d in dims.items()}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("peepholes", [False, True])
@pytest.mark.parametrize("projected", [False, True])
def test_packed_lstm(reverse: bool, peepholes: bool, projected: bool) -> None:
    lengths, size = [3, 0, 5, 1], 3
    state = 2 if projected else size
    feed = draws(Input=(9, 12), Weight=(state, 12), Bias=(1, 21 if peepholes else 12), H0=(4, state), C0=(4, size))
    attrs: dict[str, Any] = {"use_peepholes": peepholes, "is_reverse": reverse}
    if projected:
        feed |= draws(ProjWeight=(size, state))
        attrs |= {"cell_clip": 0.625, "proj_clip": 0.5}
    out, cell = np.zeros((9, state)), np.zeros((9, size))
    bias, peep = feed["Bias"][0, :12], feed["Bias"][0, 12:].reshape(3, size) if peepholes else np.zeros((3, size))
    for s, rows in enumerate(sequences_of(lengths, reverse)):
        h, c = feed["H0"][s], feed["C0"][s]
        for row in rows:
            g, i, f, o = np.split(feed["Input"][row] + bias + h @ feed["Weight"], 4)
            c = np.tanh(g) * sigmoid(i + c * peep[0]) + c * sigmoid(f + c * peep[1])
            c = np.clip(c, -0.625, 0.625) if projected else c
            h = sigmoid(o + c * peep[2]) * np.tanh(c)
            h = np.clip(np.tanh(h @ feed["ProjWeight"]), -0.5, 0.5) if projected else h
            out[row], cell[row] = h, c
    seen = packed("lstmp" if projected else "lstm", feed, lengths, attrs, ["Projection" if projected else "Hidden", "Cell"])
    np.testing.assert_allclose(seen[0], out, rtol=1e-12)
    np.testing.assert_allclose(seen[1], cell, rtol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("origin", [False, True])
def test_packed_gru(reverse: bool, origin: bool) -> None:
    lengths, size = [3, 0, 5, 1], 3
    feed = draws(Input=(9, 9), Weight=(3, 9), Bias=(1, 9), H0=(4, 3))
    flat = feed["Weight"].ravel()
    gate, candidate = flat[:18].reshape(3, 6), flat[18:].reshape(3, 3)
    out = np.zeros((9, size))
    for s, rows in enumerate(sequences_of(lengths, reverse)):
        h = feed["H0"][s]
        for row in rows:
            x = feed["Input"][row] + feed["Bias"][0]
            u, r = np.split(sigmoid(x[:6] + h @ gate), 2)
            c = np.tanh(x[6:] + (r * h) @ candidate)
            h = u * h + (1 - u) * c if origin else (1 - u) * h + u * c
            out[row] = h
    (seen,) = packed("gru", feed, lengths, {"is_reverse": reverse, "origin_mode": origin}, ["Hidden"])
    np.testing.assert_allclose(seen, out, rtol=1e-12)


PADDLE_LSTM = {
    False: [[-0.09196254, -0.10586552], [-0.17685370, -0.19585346], [-0.12138867, -0.09944896], [-0.13752088, -0.05989130], [0.02423252, 0.17517853]],
    True: [[-0.06877038, -0.07609082], [-0.12807049, -0.13720031], [-0.09938599, -0.08913396], [-0.10710377, -0.06481215], [0.04399213, 0.13754156]],
}


def test_packed_lstm_as_paddlepaddle_computes_it() -> None:
    """Numbers that PaddlePaddle 2.6.2 gave, with peepholes and without."""
    x = np.linspace(-1, 1, 5 * 8, dtype=np.float32).reshape(5, 8)
    w = np.linspace(0.5, -0.5, 2 * 8, dtype=np.float32).reshape(2, 8)
    for peepholes, wanted in PADDLE_LSTM.items():
        b = np.linspace(-0.3, 0.4, 14 if peepholes else 8, dtype=np.float32)[None]
        with fs.program_guard(fs.Program(), fs.Program()):
            inputs = {"Input": layer.data("i", [-1, 8], lod_level=1), "Weight": layer.data("w", [2, 8]), "Bias": layer.data("b", list(b.shape))}
            op = fs.default_main_program().global_block.append_op("lstm", inputs, None, {"use_peepholes": peepholes}, prefix="net")
            feed = {"i": fs.LoDTensor(x, [[2, 3]]), "w": w, "b": b}
            (seen,) = fs.Executor().run(fs.default_main_program(), feed, [op.outputs["Hidden"][0]], fs.Scope())
        np.testing.assert_allclose(np.asarray(seen), np.array(wanted), rtol=1e-5, atol=1e-6)
