"""A recurrent net's kernels: what they keep for the gradient."""

from __future__ import annotations

import pytest
import torch

from foreshape.errors import ExecutionError
from foreshape.language.ops import Offsets
from foreshape.language.ops.recurrent.rnn import Dense, Ragged
from foreshape.machine.kernels.recurrent_memory import GATES
from foreshape.machine.kernels.recurrent_net import RecurrentNet


@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN_TANH"])
def test_a_gradient_that_is_asked_for_twice_is_computed_again(mode: str) -> None:
    net, offsets = RecurrentNet(mode, 2, 1, 8), Offsets.of_lengths(torch.tensor([9, 4, 0, 4, 1, 7]))
    columns = GATES[mode] * 8
    weights = [torch.randn(columns, 8) for _ in range(4)] + [torch.randn(columns) for _ in range(4)]
    x, d_out = torch.randn(25, 8), torch.randn(25, 8)
    with torch.inference_mode():
        *_, kept = net.forward(x, weights, None, None, Ragged(offsets), out=True, cell=False, train=True)
        first, again = (net.backward(kept, x, weights, d_out, None, None, True) for _ in range(2))
    assert first[0] is not None and again[0] is not None and torch.equal(first[0], again[0])
    assert all(torch.equal(a, b) for a, b in zip(first[3], again[3], strict=True))


def test_states_of_another_batch_are_refused_before_a_kernel_reads_them() -> None:
    net = RecurrentNet("LSTM", 1, 1, 8)
    weights = [torch.randn(32, 8), torch.randn(32, 8), torch.randn(32), torch.randn(32)]
    state = torch.zeros(1, 2, 8)
    for rows, batch in ((12, 3), (11, 2)):
        with pytest.raises(ExecutionError, match=f"{12 // batch} steps of {batch} sequences must have 12 rows and {batch} states; seen {rows}, and 2 and 2"):
            net.forward(torch.randn(rows, 8), weights, state, state, Dense({}, 12 // batch, batch, None, "cpu"), out=True, cell=True, train=False)


@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (1, 5), (2, 2), (3, 1), (4, 1)])
@pytest.mark.parametrize("out", [True, False])
def test_a_few_rows_of_an_lstm_give_the_same_as_in_training(steps: int, batch: int, out: bool) -> None:
    net = RecurrentNet("LSTM", 2, 2, 8)
    weights = [torch.randn(32, n) for n in (6, 8, 6, 8, 16, 8, 16, 8)] + [torch.randn(32) for _ in range(8)]
    x, h, c = torch.randn(steps * batch, 6), torch.randn(4, batch, 8), torch.randn(4, batch, 8)
    given = [t.clone() for t in (x, h, c)]
    with torch.inference_mode():
        few, many = (net.forward(x, weights, h, c, Dense({}, steps, batch, None, "cpu"), out=out, cell=True, train=train) for train in (False, True))
    for a, b in zip(few[:3], many[:3], strict=True):
        assert (a is None) == (b is None)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip((x, h, c), given, strict=True))
