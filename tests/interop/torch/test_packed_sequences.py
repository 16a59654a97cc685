"""Packed sequences of torch: recurrent layers over them beside torch's own numbers and gradients, at other batches and lengths than traced."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import foreshape as fs


class Packed(nn.Module):
    """A recurrent layer over packed sequences, padded again."""

    def __init__(self, layer: nn.Module, ordered: bool = False, padded: dict[str, Any] | None = None, between: bool = False) -> None:
        super().__init__()
        self.layer, self.ordered, self.padded = layer, ordered, padded or {}
        self.between = nn.Linear(5, 5) if between else None

    def forward(self, x: Any, lengths: Any) -> Any:
        first = bool(self.layer.batch_first)
        packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=self.ordered)
        if self.between is not None:
            packed = PackedSequence(self.between(packed.data).tanh(), packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        out, last = self.layer(packed)
        total = {"total_length": x.shape[1 if first else 0]} if self.padded.get("total") else {}
        values, found = pad_packed_sequence(out, batch_first=first, padding_value=self.padded.get("value", 0.0), **total)
        last = last if isinstance(last, tuple) else (last,)
        loss = values.sin().mean() + sum(one.cos().mean() for one in last)
        return loss, values, found, *last


class Started(nn.Module):
    """The same from a state that is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(5, 3, batch_first=True)

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.layer(packed, x.mean(1).unsqueeze(0)[..., :3])
        return last.square().mean(), last


CASES = {
    "lstm": lambda: Packed(nn.LSTM(5, 3, batch_first=True)),
    "gru both ways": lambda: Packed(nn.GRU(5, 3, bidirectional=True)),
    "rnn of two layers": lambda: Packed(nn.RNN(5, 4, num_layers=2, batch_first=True)),
    "relu without biases": lambda: Packed(nn.RNN(5, 4, nonlinearity="relu", bias=False)),
    "in order": lambda: Packed(nn.LSTM(5, 3, batch_first=True, bidirectional=True, num_layers=2), ordered=True),
    "as long as before": lambda: Packed(nn.GRU(5, 3, batch_first=True), padded={"total": True, "value": -2.5}),
    "rows on the way": lambda: Packed(nn.LSTM(5, 3), between=True),
    "from a state": Started,
}


QUICK = ("in order", "rows on the way")
"""One of several layers both ways, of the padded time of all, and one with layers between the rows: they have parts of the others."""


@pytest.mark.quick_cases("rows on the way")
@pytest.mark.parametrize("case", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in CASES])
def test_packed_sequences_are_torchs(case: str) -> None:
    torch.manual_seed(3)
    module: Any = CASES[case]()
    first = bool(module.layer.batch_first)

    def given(batch: int, steps: int, lengths: list[int]) -> Any:
        x = torch.randn(batch, steps, 5)
        return (x if first else x.transpose(0, 1).contiguous()), torch.tensor(sorted(lengths, reverse=True) if getattr(module, "ordered", False) else lengths)

    example = given(3, 7, [7, 4, 6])
    model = fs.from_torch(copy.deepcopy(module), example, ({0 if first else 1: "batch", 1 if first else 0: "time"}, {0: "batch"}))
    assert not model.missing
    for inputs in (example, given(5, 9, [3, 8, 1, 8, 2]), given(1, 2, [2])):
        wanted = module(*inputs)
        for made, like in zip(model(*inputs), wanted, strict=True):
            assert made.dtype == like.dtype
            torch.testing.assert_close(made, like.detach(), rtol=1e-5, atol=1e-5)
        module.zero_grad()
        wanted[0].backward()
        found = model.gradients(*inputs)
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-5)


class Given(nn.Module):
    """A recurrent layer over a packed sequence that is an input; and a packed one as a result."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, packed: Any) -> Any:
        out, last = self.layer(packed)
        values, lengths = pad_packed_sequence(out, batch_first=True)
        last = last if isinstance(last, tuple) else (last,)
        return values.sin().mean() + sum(one.cos().mean() for one in last), values, lengths, out, *last


@pytest.mark.long
@pytest.mark.parametrize(("kind", "ordered"), [("LSTM", False), pytest.param("GRU", True, marks=pytest.mark.long)])
def test_packed_sequences_may_be_inputs_and_results(kind: str, ordered: bool) -> None:
    torch.manual_seed(3)
    module = Given(getattr(nn, kind)(5, 3))

    def given(*lengths: int) -> Any:
        return pack_sequence([torch.randn(n, 5) for n in (sorted(lengths, reverse=True) if ordered else lengths)], enforce_sorted=ordered)

    model = fs.from_torch(copy.deepcopy(module), given(5, 2, 3))
    assert not model.missing
    for packed in (given(5, 2, 3), given(1, 4, 4, 2, 6), given(2)):
        wanted, made = module(packed), model(packed)
        assert isinstance(made[3], PackedSequence)
        leaves = torch.utils._pytree.tree_leaves
        for seen, like in zip(leaves(made), leaves(wanted), strict=True):
            assert (seen is None) == (like is None)
            torch.testing.assert_close(seen, like if like is None else like.detach(), rtol=1e-5, atol=1e-5)
        module.zero_grad()
        wanted[0].backward()
        found = model.gradients(packed)
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_length_beyond_the_steps_is_an_error() -> None:
    model = fs.from_torch(Packed(nn.LSTM(5, 3, batch_first=True)), (torch.randn(2, 6, 5), torch.tensor([6, 2])))
    with pytest.raises(fs.ForeshapeError, match="from 0 to 6"):
        model(torch.randn(2, 6, 5), torch.tensor([7, 2]))


@pytest.mark.long
def test_cells_of_recurrent_layers_are_torchs() -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList([nn.RNNCell(4, 4), nn.RNNCell(4, 4, nonlinearity="relu"), nn.GRUCell(4, 4, bias=False), nn.LSTMCell(4, 4)])

        def forward(self, x: Any) -> Any:
            h = c = torch.zeros_like(x[0])
            for step in x:
                for cell in list(self.cells)[:3]:
                    h = cell(step, h)
                h, c = self.cells[3](step, (h, c))
            return h, c

    module, x = Cells(), torch.randn(3, 2, 4)
    model = fs.from_torch(module, x, ({1: "batch"},))
    other = torch.randn(3, 5, 4)
    for made, like in zip(model(other), module(other), strict=True):
        torch.testing.assert_close(made, like.detach(), rtol=1e-5, atol=1e-5)
