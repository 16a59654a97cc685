"""Jagged tensors of torch as ragged rows: networks beside torch's own numbers and gradients, with other lengths than in the example."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.some import each
from torch import nn

import foreshape as fs
from foreshape.errors import FeedError, SchemaError


def jagged(lengths: list[int], width: int | None = 4, seed: int = 0, like: Any = None) -> Any:
    """Return a jagged tensor of random rows, or of ids; with the offsets of another one, as torch tells equal sequences by them."""
    made = torch.Generator().manual_seed(seed)
    offsets = like.offsets() if like is not None else F.pad(torch.tensor(lengths).cumsum(0), (1, 0))
    count = int(offsets[-1])
    rows = torch.randint(0, 20, (count,), generator=made) if width is None else torch.randn(count, width, generator=made)
    return torch.nested.nested_tensor_from_jagged(rows, offsets, max_seqlen=max(lengths))


def assert_like(wanted: Any, seen: Any) -> None:
    if isinstance(wanted, (tuple, list)):
        for one, other in zip(wanted, seen, strict=True):
            assert_like(one, other)
    elif isinstance(wanted, int):
        assert wanted == int(seen)
    elif wanted.is_nested:
        assert seen.is_nested
        assert_like(wanted.offsets(), seen.offsets())
        assert_like(wanted.values(), seen.values())
    else:
        torch.testing.assert_close(seen.detach(), wanted.detach(), rtol=1e-5, atol=1e-6, equal_nan=True)


class Of(nn.Module):
    """A function of weighted jagged rows."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5, -0.5, 0.7, 2.0]))
        self.function = function

    def forward(self, x: Any, y: Any = None, z: Any = None) -> Any:
        return self.function(x * self.weight, *(one for one in (y, z) if one is not None))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: (x.sum(1), x.sum(-1), x.sum(), x.sum(dim=(0, 1))),
    "mean": lambda x: (x.mean(dim=1, keepdim=True), x.mean(-1), x.mean()),
    "amax": lambda x: (x.amax(1), x.amin(1)),
    "less its mean": lambda x: x - x.mean(1, keepdim=True),
    "softmax": lambda x: (x.softmax(1), x.softmax(-1), F.log_softmax(x, -1)),
    "weighed": lambda x: (x.sum(-1, keepdim=True).softmax(1) * x).sum(1),
    "padded": lambda x: (x.to_padded_tensor(0.5), torch.nested.to_padded_tensor(x.mean(-1), -1.0)),
    "parts": lambda x: (x.values(), x.offsets(), x.offsets().diff(), x.size(0), len(x), x.dim()),
    "columns": lambda x: (torch.cat([x, x.relu()], -1), x[..., 0], x.chunk(2, -1)[1]),
    "other sizes": lambda x: (x.view(x.size(0), -1, 2, 2).sum(-1), x.reshape(x.size(0), x.size(1), 2, 2).transpose(1, 2).transpose(1, 2)),
    "products": lambda x: (x @ torch.ones(4, 2), x.transpose(1, 2) @ x),
    "elements": lambda x: torch.where(x > 0, 1 / (2 + x), -(x**2)) + torch.sigmoid(x).sqrt() + F.gelu(x) + torch.ones(4),
    "made again": lambda x: (torch.nested.nested_tensor_from_jagged(x.values().tanh(), x.offsets()) + x, x.double()),
    "norms": lambda x: F.rms_norm(F.layer_norm(x, (4,)), (4,)),
}


@pytest.mark.quick_cases("amax")
@pytest.mark.parametrize("name", each(2, FUNCTIONS))
def test_functions_of_jagged_tensors_are_torchs_at_other_lengths(name: str) -> None:
    module = Of(FUNCTIONS[name])
    model = fs.from_torch(module, (jagged([3, 2]),))
    assert not model.missing
    for lengths in ([3, 2], [1, 4, 2, 0], [5]):
        x = jagged(lengths, seed=1)
        assert_like(module(x), model(x))


class Texts(nn.Module):
    """Ids to classes of texts, and the features of words."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.norm, self.outer = nn.Embedding(20, 6), nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, ids: Any) -> Any:
        features = self.norm(F.dropout(self.inner(self.table(ids)), 0.1, self.training).relu())
        return self.outer(features.mean(dim=1)), features


class Block(nn.Module):
    """A block of a transformer, over a jagged tensor or over one of equal lengths."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.norm, self.parts, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.feed_forward = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.causal = causal

    def forward(self, x: Any) -> Any:
        parts = self.parts(self.norm(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, [2, 4]).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.feed_forward(x)


@pytest.mark.long
def test_a_network_over_texts_gives_ragged_features_and_trains() -> None:
    module = Texts().eval()
    model = fs.from_torch(module, (jagged([3, 2], None),), dynamic=({0: "texts", 1: "words"},))
    assert str(model) == "TorchModel(ids: i64[words | texts] -> linear_1: f32[texts, 3], layer_norm: f32[words | texts, 5])"
    assert not any(op.type in ("lod_reset", "sequence_pad") for op in model.program.all_ops())  # rows keep their sequences
    for lengths in ([3, 2], [1, 4, 2, 0], [0, 0]):
        ids = jagged(lengths, None, 1)
        assert_like(module(ids), model(ids))
        assert_like(module(ids), fs.to_torch(model)(ids))
    features = model(ids)[1]
    assert features.offsets() is ids.offsets()

    trained = fs.from_torch(module, (jagged([3, 2], None),), loss=lambda results, y: F.cross_entropy(results[0], y), targets=torch.tensor([0, 2]))
    for lengths in ([3, 2], [2, 1, 4]):
        ids, y = jagged(lengths, None, 1), torch.arange(len(lengths))
        module.zero_grad()
        loss = F.cross_entropy(torch.cat([module(one.unsqueeze(0))[0] for one in ids.unbind()]), y)  # torch has no gradient of its jagged mean
        loss.backward()
        assert_like(loss, trained(ids, y)[1])
        assert_like([p.grad for p in module.parameters()], [trained.gradients(ids, y)[n] for n, _ in module.named_parameters()])


@pytest.mark.long
@pytest.mark.parametrize("causal", each(2, (True, False)))
def test_attention_over_jagged_tensors_is_the_one_over_each_sequence(causal: bool) -> None:
    """torch's own takes few widths on a processor, and no empty sequence: each sequence by itself is compared."""
    module = Block(causal)
    model = fs.from_torch(module, (jagged([3, 2], 8),))
    for lengths in ([3, 2], [1, 4, 0, 2], [5]):
        x = jagged(lengths, 8, 1)
        assert_like(torch.cat([module(one.unsqueeze(0))[0] for one in x.unbind()]), model(x).values())

    pooled = fs.from_torch(module, (jagged([3, 2], 8),), loss=lambda out: out.mean(1).square().sum())
    x = jagged([3, 1, 4], 8, 1)
    sum(module(one.unsqueeze(0))[0].mean(0).square().sum() for one in x.unbind()).backward()
    assert_like([p.grad for p in module.parameters()], [pooled.gradients(x)[n] for n, _ in module.named_parameters()])


def test_equal_sequences_of_two_inputs_are_told_by_their_offsets() -> None:
    module = Of(lambda x, y, z: (x + y, x.sum(1) * z.sum(1)))
    x = jagged([3, 2])
    model = fs.from_torch(module, (x, jagged([3, 2], like=x), jagged([1, 1])))
    assert [str(model.program.global_block.var(n).spec) for n in model.feeds] == ["f32[rows | batch, 4]", "f32[rows | batch, 4]", "f32[rows_1 | batch, 4]"]
    x, z = jagged([1, 4, 2], seed=1), jagged([2, 2, 0], seed=2)
    y = jagged([1, 4, 2], seed=3, like=x)
    assert_like(module(x, y, z), model(x, y, z))
    with pytest.raises(FeedError, match="must have sequences of the same lengths"):
        model(x, jagged([4, 1, 2]), z)


def test_jagged_tensors_are_made_within_a_network() -> None:
    def narrowed(x: Any, lengths: Any, of: Callable[..., Any]) -> Any:
        return of(x, 1, 0, lengths, layout=torch.jagged).contiguous()

    module = Of(lambda x, lengths: narrowed(x, lengths, torch.nested.narrow).sum(1))
    model = fs.from_torch(module, (torch.randn(2, 5, 4), torch.tensor([3, 2])), dynamic=({0: "batch", 1: "time"}, {0: "batch"}))
    x, lengths = torch.randn(3, 6, 4), torch.tensor([2, 0, 6])
    assert_like(module(x, lengths), model(x, lengths))

    module = Of(lambda x, offsets: torch.nested.nested_tensor_from_jagged(x, offsets).amax(1))
    model = fs.from_torch(module, (torch.randn(5, 4), torch.tensor([0, 3, 5])), dynamic=({0: "rows"}, {0: "ends"}))
    x, offsets = torch.randn(7, 4), torch.tensor([0, 4, 5, 7])
    assert_like(module(x, offsets), model(x, offsets))

    module = Of(lambda x: torch.nested.as_nested_tensor([x[:2], x[:3]], layout=torch.jagged))
    model = fs.from_torch(module, (torch.randn(5, 4),), dynamic=(None,))
    x = torch.randn(5, 4)
    assert_like(module(x), model(x))


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "products": (lambda x: torch.bmm(x, x), "torch.matmul of .* has no form here"),
    "sequences": (lambda x: [one.sum() for one in x], "the sequences of a jagged tensor one by one: their number is open"),
    "places": (lambda x: x.cumsum(1), "torch.cumsum over the ragged axis has no form here"),
    "a table": (lambda x: x + torch.ones(5, 4), r"torch.add of .* and a dense one \[5, 4\]: its size at the ragged axis must be 1"),
    "arithmetic": (lambda x: x.shape[1] * 2, "the size of a ragged axis is no number: x.offsets"),
    "a property": (lambda x: x.T, "Tensor.T of a jagged tensor has no form here"),
    "a layer": (lambda x: F.conv1d(x, torch.ones(1, 1, 1)), "torch.conv1d has no form here for a jagged tensor: x.values"),
    "a result": (lambda x: x.transpose(1, 2), "a result whose ragged axis is 2"),
    "one of them": (lambda x: x[0], r"x\[0\] of a jagged tensor .*: sequences and the ragged axis are taken whole"),
    "over sequences": (lambda x: x.sum(0), "torch.sum over the sequences alone has no form here"),
    "sizes": (lambda x: torch.zeros(x.shape), "RaggedSize.*\n.*\n.*the size of a ragged axis is no number"),
    "other sequences": (
        lambda x: x + torch.nested.nested_tensor_from_jagged(x.values(), x.offsets().clone()),
        "torch.add of jagged tensors with other sequences",
    ),
}


@pytest.mark.quick_cases("products", "a layer")
@pytest.mark.parametrize("name", each(3, REFUSED))
def test_other_functions_of_jagged_tensors_are_refused_at_their_line(name: str) -> None:
    function, words = REFUSED[name]
    with warnings.catch_warnings(), pytest.raises(SchemaError, match=words) as raised:
        warnings.simplefilter("ignore")
        fs.from_torch(Of(function), (jagged([3, 2]),))
    assert name == "a result" or "test_jagged_tensors.py" in str(raised.value)


def test_examples_of_another_kind_are_refused() -> None:
    for example in (torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]), jagged([3, 2]).transpose(1, 2)):
        with pytest.raises(SchemaError, match="ragged in axis 1"):
            fs.from_torch(Of(lambda x: x), (example,))
    with pytest.raises(SchemaError, match="None or a mapping of the axes 0 to 2 of a jagged tensor to names"):
        fs.from_torch(Of(lambda x: x), (jagged([3, 2]),), dynamic=({3: "batch"},))
    said = str(fs.plan(Texts(), (jagged([3, 2], None),)))
    assert "jagged tensors have no shapes without numbers" in said
    assert "Foreshape's step: " in said
