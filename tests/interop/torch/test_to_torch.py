"""Programs as modules of torch: tiny networks beside the modules they are of, and beside the executor; and all that torch does with a module."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.some import each
from torch import nn

import foreshape as fs
from foreshape import layer
from foreshape.layer.functions import apply


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return {"scores": self.out(y), "largest": y.argmax(1), "batch": x.shape[0]}


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(30, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layer(self.words(ids)) @ self.words.weight.t()


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(5, 6, num_layers=2, batch_first=True), nn.GRU(6, 4, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, (last, _) = self.lstm(x)
        return self.gru(y)[0].reshape(-1, 8), last


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.tanh(self.first(x))
        return self.second(y), y, y.exp()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "images": (Images, lambda n: torch.randn(n, 3, 8, 8)),
    "texts": (Texts, lambda n: torch.randint(0, 30, (n, 6))),
    "sequences": (Sequences, lambda n: torch.randn(n, 7, 5)),
    "dense": (Dense, lambda n: torch.randn(n, 5)),
}


def both(name: str, train: bool = True) -> tuple[nn.Module, Any, Callable[[int], torch.Tensor]]:
    """Return a module, and the same network through a program."""
    torch.manual_seed(3)
    make, sample = NETWORKS[name]
    module = make().train(train)
    return module, fs.to_torch(fs.from_torch(module, (sample(3),))).train(train), sample


def leaves(value: Any) -> list[Any]:
    return list(torch.utils._pytree.tree_leaves(value))


def loss_of(value: Any) -> torch.Tensor:
    return sum((v.sin() * 1.3).mean() for v in leaves(value) if isinstance(v, torch.Tensor) and v.is_floating_point())  # type: ignore[return-value]


def close(seen: Any, want: Any) -> None:
    torch.testing.assert_close(seen, want, rtol=1e-4, atol=1e-6)


@pytest.mark.quick_cases("images")
@pytest.mark.parametrize("name", each(2, NETWORKS))
def test_results_gradients_and_buffers_are_those_of_the_module_step_by_step(name: str) -> None:
    module, net, sample = both(name)
    assert set(net.state_dict()) == set(module.state_dict())
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (module, net)]
    for size in (2, 4, 2):
        given = sample(size)
        losses = []
        for m, optimizer in zip((module, net), optimizers, strict=True):
            x = given.clone().requires_grad_(given.is_floating_point())
            found = m(x)
            losses.append((loss_of(found), leaves(found), x))
            optimizer.zero_grad()
            losses[-1][0].backward()
            optimizer.step()
        (want, wants, x), (seen, sees, y) = losses
        close(seen, want)
        assert [getattr(v, "requires_grad", v) for v in wants] == [getattr(v, "requires_grad", v) for v in sees]
        close(sees, wants)
        if x.grad is not None:
            close(y.grad, x.grad)
    close(dict(net.state_dict()), dict(module.state_dict()))
    module.eval(), net.eval()
    given = sample(3)
    with torch.no_grad():
        close(leaves(net(given)), leaves(module(given)))


def test_gradients_are_those_of_differences() -> None:
    with fs.program_guard(program := fs.Program(), startup := fs.Program()):
        x = layer.data("x", [None, 3], "float64")
        y = layer.fc(layer.fc(x, 4, activation="tanh"), 2)
        scope = fs.Scope()
        fs.Executor().run(startup, scope=scope)
    net = fs.to_torch(program, scope, fetches=[y])
    assert torch.autograd.gradcheck(lambda x, *_: net(x), (torch.randn(3, 3, dtype=torch.float64, requires_grad=True), *net.parameters()))


def test_values_are_one_memory_with_the_scope_and_come_back_from_files() -> None:
    module, net, sample = both("images")
    model = fs.from_torch(module, (sample(3),))
    net = fs.to_torch(model)
    with torch.no_grad():
        net.out.bias += 1.0
    assert np.allclose(model.scope.get("out.bias"), net.out.bias.detach().numpy())
    model.scope.set("out.bias", np.zeros(4, np.float32))
    assert not net.out.bias.any()
    close(fs.Executor().run(model.program, {"x": sample(2)}, ["linear"], net.scope)[0].shape, (2, 4))
    net.load_state_dict(module.state_dict())
    saved = io.BytesIO()
    torch.save(net.state_dict(), saved)
    saved.seek(0)
    given = sample(2)
    want = net.eval()(given)["scores"]
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        close(other(given)["scores"], want)
        with torch.no_grad():
            other.out.bias += 1.0
        close(other(given)["scores"], want + 1.0)
        close(net(given)["scores"], want)
        other.load_state_dict(torch.load(saved, weights_only=True))
        saved.seek(0)
        close(other(given)["scores"], want)
    moved = copy.deepcopy(net)
    moved.load_state_dict({n: v.clone() for n, v in net.state_dict().items()}, assign=True)
    with torch.no_grad():
        moved.out.bias.data = moved.out.bias.data + 1.0
    close(moved(given)["scores"], want + 1.0)


def test_tied_weights_keep_both_names_and_unread_values_theirs() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out, self.unread = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False), nn.Linear(2, 2)
            self.out.weight = self.words.weight
            self.register_buffer("shift", torch.ones(4), persistent=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(torch.tanh(self.words(ids) + self.shift))

    module, given = Tied(), torch.randint(0, 9, (3, 5))
    net = fs.to_torch(fs.from_torch(module, given))
    assert list(net.state_dict()) and set(net.state_dict()) == set(module.state_dict())
    for one in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert one.out.weight is one.words.weight and len(list(one.parameters())) == 1
        other = Tied()
        one.load_state_dict(other.state_dict())
        for m in (one, other):
            m(given).sin().sum().backward()
        close(one(given), other(given))
        close(one.out.weight.grad, other.out.weight.grad)
    module.load_state_dict(net.state_dict())


@pytest.mark.long
def test_several_runs_wait_for_their_gradients_each_with_values_of_its_own() -> None:
    for name in NETWORKS:
        module, net, sample = both(name)
        first, second = sample(2), sample(3)
        grads = []
        for m in (module, net):
            a = m(first)
            b = m(second)
            with torch.no_grad():
                m(first)
            (loss_of(a) * loss_of(b)).backward()
            grads.append({n: p.grad for n, p in m.named_parameters()})
        close(grads[1], grads[0])
        close(dict(net.state_dict()), dict(module.state_dict()))


def test_a_part_of_the_results_and_of_the_parameters_takes_gradients() -> None:
    module, net, sample = both("dense")
    given = sample(3)
    for m in (module, net):
        m.first.bias.requires_grad_(False)
        m(given)[1].sum().backward()
    assert net.second.weight.grad is None and net.first.bias.grad is None
    close(net.first.weight.grad, module.first.weight.grad)
    net.requires_grad_(False)
    assert not net(given)[0].requires_grad and net(given.requires_grad_())[0].requires_grad
    with torch.inference_mode():
        close(net(given)[0], module(given)[0])
    with torch.no_grad():
        target = net(given)[0]
    assert not target.is_inference() and not target.requires_grad


@pytest.mark.quick_cases("images")
@pytest.mark.parametrize("name", each(2, NETWORKS))
def test_a_kept_graph_gives_the_same_gradients_again_or_a_clear_error(name: str) -> None:
    _, net, sample = both(name)
    loss = loss_of(net(sample(3)))
    parameters = list(net.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    close(torch.autograd.grad(loss, parameters), first)
    with pytest.raises((RuntimeError, fs.ExecutionError), match="second time"):
        torch.autograd.grad(loss, parameters)


def test_torch_notices_changes_between_the_two_halves_and_a_second_derivative() -> None:
    _, net, sample = both("dense")
    found = net(sample(3))
    with torch.no_grad():
        net.second.weight += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found[0].sum().backward()
    x = sample(3).requires_grad_()
    (slope,) = torch.autograd.grad(net(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        slope.sum().backward()
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        torch.autograd.functional.hessian(lambda v: net(v)[0].sum(), sample(2))


def test_other_inputs_are_refused_in_words() -> None:
    _, net, sample = both("images")
    for given, words in (
        ((torch.randn(2, 4, 8, 8),), "x"),
        ((torch.randn(2, 3, 8),), "dims"),
        ((torch.randint(0, 3, (2, 3, 8, 8)).to(torch.complex64),), "x"),
        ((sample(2), sample(2)), "inputs x"),
        ((), "inputs x"),
        ((sample(2).to("meta"),), "meta"),
    ):
        with pytest.raises(fs.FeedError, match=words):
            net(*given)
    with pytest.raises(fs.ExecutionError, match=r"conv\.weight must be f32"):
        net.double()(sample(2))
    with pytest.raises(fs.SchemaError, match="fetches"):
        fs.to_torch(fs.Program())
    with pytest.raises(fs.TypeMismatchError, match="Program"):
        fs.to_torch(nn.Linear(2, 2))


def test_dropout_follows_the_seed_of_torch() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.inner(x), 0.5, self.training)

    net = fs.to_torch(fs.from_torch(Drops().train(), (torch.randn(64, 4),))).train()
    x = torch.randn(64, 4)
    torch.manual_seed(5)
    one, other = net(x), net(x)
    torch.manual_seed(5)
    assert torch.equal(net(x), one) and not torch.equal(one, other)
    one.sum().backward()
    assert torch.allclose(net.inner.bias.grad, 2.0 * (one != 0).sum(0).float())
    net.eval()
    assert torch.equal(net(x), net(x))


def of_ragged_rows() -> nn.Module:
    """A module whose input and first result are ragged rows; the second is their sums."""
    with fs.program_guard(program := fs.Program(), startup := fs.Program()):
        x = layer.data("x", [None, 4], lod_level=1)
        y = layer.fc(x, 3)
        pooled = layer.sequence_pool(y, "sum")
        scope = fs.Scope()
        fs.Executor().run(startup, scope=scope)
    return fs.to_torch(program, scope, fetches=[y, pooled])


def test_ragged_inputs_are_jagged_tensors_or_pairs() -> None:
    net = of_ragged_rows()
    parts = [torch.randn(n, 4) for n in (2, 1, 3)]
    want = torch.stack([(p @ net.get_parameter("fc_0.w_0") + net.get_parameter("fc_0.b_0")).sum(0) for p in parts])
    values = torch.cat(parts).requires_grad_()
    (rows, offsets), sums = net((values, torch.tensor([0, 2, 3, 6])))
    close(sums, want)
    assert offsets.tolist() == [0, 2, 3, 6] and rows.shape == (6, 3)
    (sums.sum() + rows.sum()).backward()
    close(values.grad, (2 * net.get_parameter("fc_0.w_0").sum(1)).expand(6, 4))
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    rows, sums = net(nested)
    close(sums, want)
    assert rows.is_nested
    (rows * 2).values().sum().backward()
    close(nested.grad.values(), (2 * net.get_parameter("fc_0.w_0").sum(1)).expand(6, 4))
    close(net(fs.LoDTensor(np.concatenate([p.numpy() for p in parts]), [[2, 1, 3]]))[1], want)
    with pytest.raises(fs.FeedError, match="sum to 3, and there are 6 rows"):
        net((values, torch.tensor([0, 2, 3])))


def test_networks_from_files_are_modules_too(tmp_path: Any) -> None:
    module, _, sample = both("images", train=False)
    model = fs.from_torch(module, (sample(3),))
    path = str(tmp_path / "net")
    fs.save_inference_model(path, model.feeds, [model.fetches[0]], fs.Executor(), model.program, scope=model.scope)
    given = sample(2)
    want = module(given)["scores"]
    for network in (fs.Predictor(path), fs.load_inference_model(path, fs.Executor(), fs.Scope())):
        net = fs.to_torch(network)
        close(net(given), want)
        close(net(x=given), want)
        close(net({"x": given}), want)
        net(given).sum().backward()
        module.zero_grad()
        module(given)["scores"].sum().backward()
        close(net.get_parameter("conv.weight").grad, module.conv.weight.grad)
        assert "norm.running_mean" in dict(net.named_buffers()) or "norm.running_mean" not in net.state_dict()


def test_rounds_of_a_loop_wait_for_their_gradients() -> None:
    with fs.program_guard(program := fs.Program(), fs.Program()):
        x = layer.data("x", [None, 3])
        x.stop_gradient = False
        y = layer.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, layer.tanh(v * 1.5)), [layer.fill_constant([1], "int64", 0), x])[1]
    net = fs.to_torch(program, fs.Scope(), fetches=[y])
    a, b = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    first, second = net(a), net(b)
    loss = first.sum() * second.sum()
    seen = torch.autograd.grad(loss, (a, b), retain_graph=True)
    again = torch.autograd.grad(loss, (a, b))
    want = torch.autograd.grad(_rounds(a).sum() * _rounds(b).sum(), (a, b))
    close(seen, want)
    close(again, want)


def _rounds(v: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        v = torch.tanh(v * 1.5)
    return v


def test_what_waits_goes_with_the_graph_and_passes_through_hooks_of_torch() -> None:
    _, net, sample = both("images")
    given = sample(4)
    packed: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t.numel()), t.clone())[1], lambda t: t):
        found = net(given)["scores"]
    found.sum().backward()
    want = [p.grad for p in net.parameters()]
    net.zero_grad()
    torch.utils.checkpoint.checkpoint(lambda x: net(x)["scores"], given, use_reentrant=False).sum().backward()
    assert packed
    close([p.grad for p in net.parameters()], want)
    with torch.autocast("cpu"):
        assert net(given)["scores"].dtype is torch.float32


def test_torch_compile_leaves_the_network_to_its_own_engine() -> None:
    _, net, sample = both("dense")
    whole = nn.Sequential(net, Second())
    given = sample(3)
    want = torch.autograd.grad(whole(given).sum(), net.first.weight)
    close(torch.autograd.grad(torch.compile(whole, backend="eager")(given).sum(), net.first.weight), want)


class Second(nn.Module):
    def forward(self, found: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return found[1] * 2.0


def test_values_of_another_call_a_lost_one_and_an_input_against_a_guard() -> None:
    _, net, sample = both("dense")
    given = sample(3)
    others = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
    assert not torch.func.functional_call(net, others, (given,))[0].any() and net(given)[0].any()
    del net.first._parameters["bias"]
    with pytest.raises(fs.ExecutionError, match="bias any more"):
        net(given)
    with fs.program_guard(program := fs.Program(), fs.Program()):
        x, y = layer.data("x", ["batch", "n"]), layer.data("y", ["batch", "n"])
        z = x * y
    net = fs.to_torch(program, fs.Scope(), fetches=[z])
    with pytest.raises((fs.FeedError, fs.GuardError), match="n"):
        net(torch.ones(2, 3), torch.ones(2, 4))


def test_gradients_of_rows_are_sparse_and_a_result_without_a_gradient_says_so_when_asked() -> None:
    with fs.program_guard(program := fs.Program(), startup := fs.Program()):
        ids = layer.data("ids", [None, 1], "int64")
        vectors = layer.embedding(ids, [10, 4], is_sparse=True)
        scope = fs.Scope()
        fs.Executor().run(startup, scope=scope)
    net = fs.to_torch(program, scope, fetches=[vectors])
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    given = torch.tensor([[3], [5], [3]])
    net(given).sum().backward()
    (parameter,) = net.parameters()
    assert parameter.grad is not None and parameter.grad.is_sparse
    torch.optim.SGD([parameter], 0.5).step()
    (was,) = before.values()
    want = was.clone()
    want[3] -= 1.0
    want[5] -= 0.5
    close(parameter.detach(), want)
    with fs.program_guard(program := fs.Program(), fs.Program()):
        x = layer.data("x", [4, 4])
        found = apply("fake_dequantize_max_abs", {"X": x, "Scale": layer.fill_constant([1], "float32", 2.0)}, max_range=127.0)
        net = fs.to_torch(program, fs.Scope(), fetches=[found, x * 2.0])
    found, twice = net(given := torch.eye(4, requires_grad=True))
    twice.sum().backward()
    assert given.grad is not None and bool((given.grad == 2.0).all())
    with pytest.raises(RuntimeError, match="fake_dequantize_max_abs has no gradient"):
        found.sum().backward()


def test_tangents_of_forward_mode_are_refused() -> None:
    from torch.autograd import forward_ad

    network, x = fs.to_torch(fs.from_torch(nn.Linear(3, 2), torch.randn(2, 3))), torch.randn(2, 3)
    with forward_ad.dual_level():
        assert network(x).shape == (2, 2)
        with pytest.raises(fs.ExecutionError, match="has a tangent of forward-mode differentiation"):
            network(forward_ad.make_dual(x, torch.ones_like(x)))


class Scaled(nn.Module):
    """A network with a buffer that is not saved, one that is, and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 3)
        self.register_buffer("scale", torch.arange(3.0), persistent=False)
        self.register_buffer("shift", torch.arange(3.0))
        self.mixed = torch.randn(3, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.out(x) * self.scale + self.shift) @ self.mixed


@pytest.mark.quick_cases("plain")
@pytest.mark.parametrize("plain", [False, True], ids=["engine", "plain"])
def test_what_a_module_does_not_save_is_not_saved_of_its_network(plain: bool) -> None:
    module, x = Scaled(), torch.ones(2, 3)
    net = fs.to_torch(fs.from_torch(module, x), plain=plain)
    assert net.state_dict().keys() == module.state_dict().keys()
    net.load_state_dict(module.state_dict())
    torch.testing.assert_close(net(x), module(x))
