"""Small graphs that a compiler of torch's graphs takes wrongly with ease: hidden views, conjugates, tuples of one, sizes that no input tells."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from interop.torch_backend.test_compiled_modules import same, storages
from interop.torch_backend.test_torch_backend import measured, peaks
from torch import nn
from torch.utils._pytree import tree_flatten

import foreshape as fs


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def chunks(x: Any, w: Any) -> Any:
    h = x @ w
    first, second = torch.unsafe_chunk(h, 2, 0)  # views, though their schema does not say so
    single = torch.unsafe_split_with_sizes(h, [1, 3], 0)[0]
    return first.relu() + second.tanh(), single.exp(), h.sum(0)


def conjugates(x: Any, w: Any) -> Any:
    z = torch.complex(x @ w, x)
    return torch.view_as_real(z.conj() * z), (z.conj() * 2).imag.exp(), z.conj().imag * 2


def tuples_of_one(x: Any, w: Any) -> Any:
    (whole,) = torch.chunk(x @ w, 1)
    branch = torch.cond(whole.sum() > 0, lambda h: h.sin(), lambda h: h.cos() * 2, (whole,))
    return branch + whole.split(9)[0].tanh()


def sums(x: Any, w: Any) -> Any:
    return w + 1, x.detach() * 2  # no call in its backward pass


def writes(x: Any, w: Any) -> Any:
    index = torch.tensor([[0, 1, 2, 0, 1]])
    h = x @ w
    scattered = h.exp().scatter_add(0, index, h[:1])
    overlapping = h.sin()
    put = overlapping.index_put((torch.tensor([0, 2, 2]),), overlapping[:3], accumulate=True)
    part = h.cos()
    return scattered, put, part[1:].index_copy(0, torch.tensor([0]), part[:1]), part.sum(), x[torch.tensor([0, 2, 2])], x[:, torch.tensor([1, 1])]


def derived_sizes(x: Any, w: Any) -> Any:
    return (w.view(x.shape[1], -1)[:, : x.shape[0]].exp() * x.t()).sigmoid(), (x @ x.t()).reshape(-1).tanh()


def repeated_sizes(x: Any, w: Any) -> Any:
    return (x @ w).sum(1).expand(x.shape[0], x.shape[0]).exp(), x.new_ones(x.shape[0], x.shape[0]).tril()


GRAPHS: tuple[Callable[[Any, Any], Any], ...] = (chunks, conjugates, tuples_of_one, sums, writes, derived_sizes, repeated_sizes)


def outcome(call: Any, x: Any, w: Any) -> list[Any]:
    """Return results, and gradients of the inputs with the inputs, which nobody changes."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    results = tree_flatten(call(x, w))[0]
    torch.stack([r.double().sin().sum() for r in results if r.requires_grad]).sum().backward()
    return [*results, x.grad, w.grad, x.detach(), w.detach()]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("recompute", ["auto", 1])
@pytest.mark.parametrize("graph", GRAPHS)
def test_results_gradients_and_memory_in_common_are_eagers(graph: Callable[[Any, Any], Any], recompute: Any, dynamic: bool) -> None:
    compiled = torch.compile(graph, backend="foreshape", dynamic=dynamic, options={"recompute": recompute})
    w = torch.randn(5, 5)
    for batch in (4, 4, 5) if dynamic and graph is not chunks else (4, 4):
        x = torch.randn(batch, 5)
        results, wanted = outcome(compiled, x, w), outcome(graph, x, w)
        for got, want in zip(results, wanted, strict=True):
            same(got, want)
        assert storages(results) == storages(wanted)
    assert not [words for record in fs.torch_report(compiled).graphs for words in record.by_eager]


def test_a_graph_for_no_gradient_leaves_memory_in_common_alone() -> None:
    x, w = torch.randn(4, 5), torch.randn(5, 5)
    for graph in (chunks, conjugates, writes):
        compiled = torch.compile(graph, backend="foreshape")
        with torch.no_grad():
            for got, want in zip(compiled(x, w), graph(x, w), strict=True):
                same(got, want)


def test_elements_are_seen_as_those_of_another_type() -> None:
    def graph(x: Any) -> Any:
        return (x + 1).view(torch.int32), (x * 2).view(torch.int16).view(torch.float32)

    for got, want in zip(torch.compile(graph, backend="foreshape")(torch.ones(3, 4)), graph(torch.ones(3, 4)), strict=True):
        same(got, want)


def test_results_may_be_written_to_by_the_user() -> None:
    def graph(x: Any, w: Any) -> Any:
        h = x @ w
        return h + 1, h.relu(), h.view(-1) * 1  # the last one lies in the memory of a view

    outcomes: list[list[Any]] = []
    compiled = torch.compile(graph, backend="foreshape")
    for call in (graph, compiled, compiled):  # the first call of a compiled graph runs in other modes than later ones
        x, w = torch.ones(4, 5, requires_grad=True), torch.ones(5, 5, requires_grad=True)
        first, _, last = call(x, w)
        first.add_(1)
        last.mul_(3)
        (first.sum() + last.sum()).backward()
        outcomes.append([first, last, x.grad, w.grad])
    for results in outcomes[1:]:
        for got, want in zip(results, outcomes[0], strict=True):
            same(got, want)


def test_operands_in_several_layouts_and_types_give_torchs_layout() -> None:
    def graph(x: Any, y: Any) -> Any:
        return torch.div(torch.maximum(x, x), y.abs() + 1, rounding_mode="floor")

    x, y = torch.randn(6, 4, 4).permute(2, 1, 0), torch.randn(4, 4, 6, dtype=torch.float64)
    same(torch.compile(graph, backend="foreshape")(x, y), graph(x, y))


def test_sizes_that_only_a_run_tells_and_numbers_alone() -> None:
    def graph(x: Any, factor: float) -> Any:
        return (x > 0).nonzero() * 2, x[x > 0].sin() * factor

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(graph, backend="foreshape", fullgraph=True)
        for factor in (0.5, 1.5, 2.5):
            x = torch.randn(4, 6)
            for got, want in zip(compiled(x, factor), graph(x, factor), strict=True):
                same(got, want)


def lengths(x: Any) -> Any:
    """A truth about sizes, a stride, the size of complex numbers and a size computed from values."""
    torch._check(x.shape[0] > 2)
    n = (x > 0).sum().item()
    spectrum = torch.fft.rfft(x.t())
    return x.as_strided((x.shape[0],), (x.stride(0),)) * n, x.new_ones(n).cumsum(0), spectrum.reshape(-1)[: spectrum.shape[1]].abs() * spectrum.shape[1]


@pytest.mark.filterwarnings("error::foreshape.ForeshapeWarning")
def test_numbers_of_graphs_have_forms() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(lengths, backend="foreshape", dynamic=True, fullgraph=True)
        for sizes in ((4, 6), (5, 8), (7, 4)):
            for x in (torch.randn(*sizes), torch.randn(*sizes[::-1]).t()):
                for got, want in zip(compiled(x), lengths(x), strict=True):
                    same(got, want)


def test_a_false_truth_about_sizes_stops_the_run_with_torchs_words() -> None:
    def graph(x: Any) -> Any:
        n = (x > 0).sum().item()
        torch._check(n != 3, lambda: "three of them")
        return x.new_ones(n) * 2

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(graph, backend="foreshape", fullgraph=True)
        same(compiled(torch.tensor([1.0, -1.0])), torch.full((1,), 2.0))
        with pytest.raises(RuntimeError):
            compiled(torch.ones(3))


@pytest.mark.parametrize("loss", [F.binary_cross_entropy_with_logits, F.binary_cross_entropy, F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_losses_left_to_their_default_are_means(loss: Any) -> None:
    def graph(x: Any, w: Any) -> Any:
        return loss((x @ w).sigmoid(), x.sigmoid())

    x, w = torch.randn(4, 5), torch.randn(5, 5)
    for got, want in zip(outcome(torch.compile(graph, backend="foreshape"), x, w), outcome(graph, x, w), strict=True):
        same(got, want)


def test_copies_of_a_value_go_to_its_later_readers_alone() -> None:
    """An operator of the chain that gives a value again has readers in the backward pass before those of the value."""

    def graph(x: Any, w: Any) -> Any:
        h = x @ w
        ranks = h.sort(1)[0].topk(5, 1)[0]
        return (F.layer_norm(h, (60,)) * torch.var_mean(h, 1)[0][:, None]).exp().clamp(max=9), ranks.sin() * 2

    x, w = torch.randn(60, 60), torch.randn(60, 60)
    compiled = torch.compile(graph, backend="foreshape", options={"recompute": 1})
    for got, want in zip(outcome(compiled, x, w), outcome(graph, x, w), strict=True):
        same(got, want)


class Bags(nn.Module):
    """Its gradient writes into zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.words = nn.EmbeddingBag(500, 64), nn.Embedding(500, 64)

    def forward(self, x: Any) -> Any:
        return (self.bag(x) + self.words(x).max(1)[0]).tanh().mean()


class MaskedAttention(nn.Module):
    """Its gradient comes in another layout than its operands."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(64, 192)

    def forward(self, x: Any) -> Any:
        q, k, v = self.heads(x).view(8, 64, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(64, 64, dtype=torch.bool).tril()).square().mean()


class Volumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv3d(3, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(16, 16, 3, padding=1))

    def forward(self, x: Any) -> Any:
        return self.layers(x).square().mean()


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (Bags, lambda: torch.randint(0, 500, (64, 20))),
        (MaskedAttention, lambda: torch.randn(8, 64, 64)),
        (Volumes, lambda: torch.randn(2, 3, 8, 16, 16)),
    ],
)
def test_the_plan_counts_workspaces_and_is_no_more_than_eagers(network: Any, inputs: Any) -> None:
    eager, ours, report = peaks(network(), inputs())
    assert abs(report.graphs[0].peak() / ours - 1) < 0.05
    assert ours <= 1.01 * eager


def test_the_plan_counts_the_masks_of_dropout() -> None:
    attention, x = nn.MultiheadAttention(64, 4, batch_first=True, dropout=0.1), torch.randn(8, 64, 64)
    compiled = torch.compile(lambda: (x + attention(x, x, x, need_weights=True)[0]).square().mean(), backend="foreshape")
    compiled().backward()
    attention.zero_grad(set_to_none=True)
    peak = measured(lambda: compiled().backward())
    assert abs(fs.torch_report(compiled).graphs[0].peak() / peak - 1) < 0.05


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "nearest"},
        {"mode": "nearest-exact"},
        {"mode": "bilinear", "align_corners": False},
        {"mode": "bicubic"},
        {"mode": "bilinear", "antialias": True},
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_interpolations_are_single_calls(settings: dict[str, Any], dynamic: bool) -> None:
    torch.compiler.reset()

    def enlarged(x: Any) -> Any:
        return F.interpolate(x.sin(), scale_factor=2, **settings)

    compiled = torch.compile(enlarged, backend="foreshape", dynamic=dynamic)
    for shape in ((2, 3, 8, 8), (3, 3, 6, 7)):
        inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True) for _ in range(2)]
        results = [function(x) for function, x in zip((enlarged, compiled), inputs, strict=True)]
        for result in results:
            result.cos().sum().backward()
        assert torch.equal(*results) and torch.equal(inputs[0].grad, inputs[1].grad)
    (first, *_) = fs.torch_report(compiled).graphs
    assert [text.count('call="aten.upsample') + text.count('call="aten._upsample') for text in map(str, first.programs())] == [1, 1]
