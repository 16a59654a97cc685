"""Networks of torch as programs: tiny ones, in several sizes, with gradients, beside torch itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.some import each
from torch import nn

import foreshape as fs
from foreshape.interop.convert_models import convert_model
from foreshape.interop.torch import exporting, module_import
from foreshape.interop.torch.torch_model import TorchModel, from_torch


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.Linear(6, 4)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        y = nn.functional.adaptive_avg_pool2d(y, 1).view(x.shape[0], -1)
        return {"scores": self.out(y) * self.scale, "place": torch.arange(x.shape[0]) * x.shape[2] // 2}


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30, 8), nn.Embedding(64, 8)
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.norm(x + self.attention(x, x, x, key_padding_mask=mask == 0, need_weights=False)[0])
        return nn.functional.gelu(x[:, 0]) @ self.words.weight.t()


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(5, 6, batch_first=True), nn.GRU(12, 4, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, (last, _) = self.lstm(x)
        return self.gru(torch.cat([y, y.flip(1)], -1))[0].softmax(-1), last


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 30, shape)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any, Any, Any]] = {
    "images": (Images, ({0: "batch", 2: "height", 3: "width"},), lambda: (torch.randn(2, 3, 16, 16),), lambda: (torch.randn(3, 3, 24, 12),)),
    "texts": (
        Texts,
        ({0: "batch", 1: "words"}, {0: "batch", 1: "words"}),
        lambda: (ids(2, 7), torch.ones(2, 7, dtype=torch.int64)),
        lambda: (ids(3, 5), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])),
    ),
    "sequences": (Sequences, ({0: "batch", 1: "time"},), lambda: (torch.randn(2, 4, 5),), lambda: (torch.randn(3, 9, 5),)),
}


def leaves(value: Any) -> list[torch.Tensor]:
    return list(torch.utils._pytree.tree_leaves(value))


@pytest.mark.quick_cases("sequences")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_gives_what_its_module_gives_in_every_size(name: str) -> None:
    make, dynamic, example, other = NETWORKS[name]
    torch.manual_seed(3)
    module = make().eval()
    model = from_torch(module, example(), dynamic)
    assert not model.missing
    for inputs in (example(), other()):
        want, seen = module(*inputs), model(*inputs)
        assert torch.utils._pytree.tree_structure(want) == torch.utils._pytree.tree_structure(seen)
        for w, s in zip(leaves(want), leaves(seen), strict=True):
            assert s.dtype == w.dtype
            torch.testing.assert_close(s, w.detach(), rtol=1e-4, atol=1e-5)


def test_symbols_names_scopes_and_lines_are_those_of_the_user() -> None:
    model = from_torch(Images().eval(), (torch.randn(2, 3, 16, 16),), ({0: "batch", 2: "height"},))
    block = model.program.global_block
    assert str(block.var("x").spec.text()) == "f32[batch, 3, height, 16]" and block.var("conv.weight").trainable and not block.var("scale").trainable
    op = next(op for op in block.ops if op.type == "conv2d")
    assert op.scope == ("conv",) and op.call_site is not None and op.call_site.source_line().strip().startswith("y = nn.functional.max_pool2d")
    with pytest.raises(fs.FeedError, match=r"x"):
        model(torch.randn(2, 4, 16, 16))


class Loss(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return sum(torch.sin(y * 1.3).mean() for y in leaves(self.network(*inputs)) if y.is_floating_point())  # type: ignore[return-value]


@pytest.mark.quick_cases("images")
@pytest.mark.parametrize("name", each(2, NETWORKS))
def test_gradients_and_statistics_are_those_of_torch(name: str) -> None:
    make, dynamic, example, _ = NETWORKS[name]
    torch.manual_seed(3)
    module = Loss(make()).train()
    inputs = example()
    model: TorchModel = from_torch(module, inputs, dynamic)
    seen = model.gradients(*inputs)
    module(*inputs).backward()
    want = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    assert seen.keys() == want.keys()
    for n, w in want.items():
        torch.testing.assert_close(seen[n], w, rtol=1e-3, atol=1e-5, msg=lambda text, n=n: f"{n}: {text}")
    for n, b in module.named_buffers():
        torch.testing.assert_close(model.state_dict()[n], b, rtol=1e-4, atol=1e-5, msg=lambda text, n=n: f"{n}: {text}")


def test_operators_without_a_form_are_listed_and_no_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(exported: Any, targets: list[Any]) -> Any:
        asked.append(len(targets))
        return exporting.taken_apart(exported, targets)

    monkeypatch.setattr(module_import, "taken_apart", counted)

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.zeta(x, x) + torch.igamma(x, x)

    model = from_torch(Odd(), (torch.ones(2, 3),))
    assert set(model.missing) == {"special_zeta.default", "igamma.default"}
    assert asked == [2, 1, 1], "a pass of torch, which takes long, is not made again in vain"
    assert "special_zeta" in str(model.program)
    with pytest.raises(fs.ExecutionError, match=r"special_zeta.default: 1 in the module itself \(test_from_torch.py:\d+\)\s+igamma.default: 1 in the module"):
        model(torch.ones(2, 3))


class Choosing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


def test_a_network_that_torch_cannot_export_is_refused_at_its_line_with_what_to_change() -> None:
    with pytest.raises(fs.SchemaError) as error:
        from_torch(Choosing(), (torch.ones(2, 3),))
    told = str(error.value)
    assert "at if x.sum() > 0:    test_from_torch.py:" in told and "torch.cond or torch.where" in told
    assert error.value.site is not None and error.value.site.line > 100


def test_the_length_of_a_pooled_sequence_stays_open() -> None:
    module = nn.Sequential(nn.MaxPool1d(3, 2, 1), nn.Conv1d(4, 2, 2)).eval()
    model = from_torch(module, torch.randn(2, 4, 16), ({0: "batch", 2: "time"},))
    for time in (16, 24, 5):
        x = torch.randn(3, 4, time)
        torch.testing.assert_close(model(x), module(x).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("trained", [True, False])
def test_the_row_of_padding_is_given_as_it_is_and_has_no_gradient(trained: bool, tmp_path: Path) -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 3, padding_idx=0)
            with torch.no_grad():
                self.words.weight[0] = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.words(x) ** 2).sum()

    module, x = Padded().train(trained), torch.tensor([[0, 1, 0], [4, 0, 1]])
    model = from_torch(module, x)
    loss = module(x)
    loss.backward()
    torch.testing.assert_close(model(x), loss.detach())
    torch.testing.assert_close(model.gradients(x)["words.weight"], module.words.weight.grad)
    plain = fs.to_torch(model, plain=True).train(trained)
    again = plain(x)
    again.backward()
    torch.testing.assert_close(again, loss)
    torch.testing.assert_close(plain.get_parameter("words.weight").grad, module.words.weight.grad)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "padded.pt2")
    convert_model(tmp_path / "padded.pt2", tmp_path / "padded.pdmodel")
    network = fs.load_inference_model(tmp_path / "padded", scope=fs.Scope())
    np.testing.assert_allclose(network.run(x.numpy())[0], loss.detach().numpy(), rtol=1e-6)


class Mixed(nn.Module):
    """A network whose layers are others in training than in a test, and whose padding row never moves."""

    def __init__(self, dropped: float) -> None:
        super().__init__()
        self.words, self.fc, self.norm = nn.Embedding(12, 8, padding_idx=0), nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.drop, self.out = nn.Dropout(dropped), nn.Linear(8, 3)
        with torch.no_grad():
            self.words.weight[0] = torch.randn(8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(torch.relu(self.norm(self.fc(self.words(ids).mean(1))))))


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("trained", [True, False])
def test_a_network_imported_in_a_mode_trains_in_it_and_is_tested_as_in_torch(trained: bool) -> None:
    torch.manual_seed(0)
    module = Mixed(0.0 if trained else 0.5).train(trained)  # without random numbers in training
    ids, classes = torch.randint(0, 12, (16, 5)), torch.randint(3, (16,))
    ids[:, 0] = 0
    model = from_torch(module, ids, loss=nn.functional.cross_entropy, targets=classes)
    data = {model.feeds[0]: np.tile(ids.numpy(), (3, 1)), model.targets[0]: np.tile(classes.numpy(), 3)}
    fs.train(model.loss, data, scope=model.scope, optimizer=fs.optimizer.SGD(0.1), batch_size=16, epochs=1, shuffle=False, progress=False)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(ids), classes).backward()
        optimizer.step()
    found = fs.state_dict(model.scope)
    for name, want in module.state_dict().items():
        torch.testing.assert_close(torch.as_tensor(found[name]), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.for_test()(ids), module.eval()(ids).detach(), rtol=1e-4, atol=1e-5)
