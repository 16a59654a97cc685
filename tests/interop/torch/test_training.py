"""The training of networks of torch beside torch's own: parameters, statistics and other buffers after some steps, and the network of a test."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import launch_ranks
from torch import nn
from torch.nn import functional as F

import foreshape as fs
from foreshape import layer

CLASSES = 4


class Images(nn.Module):
    """Statistics of several kinds, a frozen layer, a frozen normalization, a tied weight, and a buffer that changes in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, bias=False)
        self.cumulative, self.fast = nn.BatchNorm2d(6, momentum=None), nn.BatchNorm2d(6, momentum=0.3)
        self.instances = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        self.fixed = nn.BatchNorm2d(6)
        self.frozen, self.out, self.again = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6), nn.Linear(6, 6)
        self.again.weight = self.out.weight
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 6), persistent=False)
        self.train()

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.fixed.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.shape[0]
        x = self.fixed(torch.relu(self.instances(self.fast(self.cumulative(self.conv(x))))))
        return self.again(torch.tanh(self.out(self.frozen(x.mean((2, 3)) * self.scale)))) * torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0, 1.0])


class Words(nn.Module):
    """A transformer with the embedding's weight as its last one, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True, bias=False)
        self.last = nn.Linear(8, 20, bias=False)
        self.last.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.words(ids)))[:, -1]


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


EXAMPLES: dict[type[nn.Module], Callable[[int], torch.Tensor]] = {
    Images: lambda n: torch.randn(n, 3, 7, 6),
    Words: lambda n: torch.randint(0, 20, (n, 5)),
    Sequences: lambda n: torch.randn(n, 4, 5),
}
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "SGD": (lambda p: torch.optim.SGD(p, 0.1), lambda: fs.optimizer.SGD(0.1)),
    "AdamW": (lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.01), lambda: fs.optimizer.AdamW(0.01, weight_decay=0.01)),
}
CASES = [(Images, "SGD"), (Words, "AdamW"), (Sequences, "AdamW")]


def data_of(of: type[nn.Module], steps: int = 5, batch: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return EXAMPLES[of](steps * batch), torch.randint(0, CLASSES, (steps * batch,))


def brought(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    """The module with the loss of classes; nothing is warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.ForeshapeWarning)
        return fs.from_torch(module, (x[:8],), loss=F.cross_entropy, targets=y[:8])


def trained(model: Any, x: torch.Tensor, y: torch.Tensor, optimizer: Any, **settings: Any) -> fs.History:
    data = {model.feeds[0]: x.numpy(), model.targets[0]: y.numpy()}
    chosen: dict[str, Any] = {"batch_size": 8, "shuffle": False, "progress": False, "scope": model.scope, **settings}
    return fs.train(model.loss, data, optimizer=optimizer, **chosen)


def check_state(seen: Mapping[str, torch.Tensor], want: Mapping[str, torch.Tensor], **within: Any) -> None:
    assert seen.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(seen[name], value, msg=lambda text, name=name: f"{name}: {text}", **within)


@pytest.mark.parametrize(("of", "optimizer"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_steps_are_those_of_torch_and_the_state_goes_back(of: type[nn.Module], optimizer: str) -> None:
    torch.manual_seed(0)
    module = of()
    (x, y), reference = data_of(of), copy.deepcopy(module)
    model = brought(module, x, y)
    theirs, losses = OPTIMIZERS[optimizer][0](reference.parameters()), []
    for part, labels in zip(x.split(8), y.split(8), strict=True):
        theirs.zero_grad()
        loss = F.cross_entropy(reference(part), labels)
        loss.backward()
        theirs.step()
        losses.append(loss.item())
    history = trained(model, x, y, OPTIMIZERS[optimizer][1]())
    assert history.losses == pytest.approx(losses, rel=2e-6)
    state = fs.state_dict(model.scope)
    module.load_state_dict(state)  # strict: names, shapes
    check_state(module.state_dict(), reference.state_dict(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model.for_test()(x), module.eval()(x), rtol=1e-4, atol=1e-5)


def test_precision_several_batches_for_an_update_and_validation_train_it_too() -> None:
    x, y = data_of(Images)
    model = brought(Images(), x, y)
    before = model.state_dict()
    for settings in ({"precision": "bf16"}, {"precision": "fp16"}, {"accumulate": 5}, {"validation": 0.2, "shuffle": True}):
        scope = copy.copy(model.scope)
        history = trained(model, x, y, fs.optimizer.SGD(0.1), scope=scope, **settings)
        assert all(np.isfinite(history.losses)) and not np.array_equal(scope["out.weight"], before["out.weight"])
        assert np.array_equal(scope["frozen.weight"], before["frozen.weight"])
        assert int(scope["fast.num_batches_tracked"]) == (4 if "validation" in settings else 5), "a test moves no statistics"


SCRIPT = """
import sys, torch
import foreshape as fs
from test_training import Images, brought, data_of, trained
torch.manual_seed(0)
x, y = data_of(Images)
model = brought(Images(), x, y)
trained(model, x, y, fs.optimizer.SGD(0.1), ranks=fs.data_parallel(synchronise_batch_norm=True))
torch.save(model.state_dict(), sys.argv[1] + sys.argv[2])
"""


@pytest.mark.long
def test_two_ranks_train_it_as_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[3])
    launch_ranks.run(2, script, tmp_path / "two", 0, environment={"PYTHONPATH": f"{root}/src:{root}/tests:{root}/tests/interop/torch"})
    launch_ranks.run(1, script, tmp_path / "one", 0, environment={"PYTHONPATH": f"{root}/src:{root}/tests:{root}/tests/interop/torch"})
    one, two = (torch.load(tmp_path / f"{n}0") for n in ("one", "two"))
    for state in (one, two):  # each rank sees its own part of a batch
        state.pop("seen")
    check_state(two, one, rtol=1e-4, atol=1e-5)


def test_layers_put_on_top_train_with_it() -> None:
    x, y = data_of(Images)
    model = fs.from_torch(Images(), (x[:8],))
    with fs.program_guard(model.program):
        label = layer.data("label", shape=["batch", 1], dtype="int64")
        scores = layer.fc(layer.relu(model.fetches[0]), CLASSES)
        loss = layer.mean(layer.softmax_with_cross_entropy(scores, label))
    before = model.state_dict()
    fs.train(loss, {"x": x.numpy(), "label": y.numpy()[:, None]}, scope=model.scope, optimizer=fs.optimizer.SGD(0.1), batch_size=8, progress=False)
    after = model.state_dict()
    assert not torch.equal(after["conv.weight"], before["conv.weight"]) and torch.equal(after["frozen.weight"], before["frozen.weight"])
    assert list(after) == list(Images().state_dict())
    assert model(x).shape == (40, 6) and fs.predict(scores, {"x": x.numpy()}, scope=model.scope, progress=False).shape == (40, CLASSES)


# --- draws, and the network of a test


class Depth(nn.Module):
    """A layer left out at random, as torchvision and timm write it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return left_out(x, self.training)


def left_out(x: torch.Tensor, training: bool) -> torch.Tensor:
    if not training:
        return x
    noise = torch.empty(x.shape[0], 1, dtype=x.dtype).bernoulli_(0.75)
    return x * noise.div_(0.75)


class Handed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(
            x,
            0.25,
            self.training,
        )


DRAWS = {
    "dropout": (nn.Dropout(0.25), (200, 50), (0.0, 4 / 3)),
    "dropout1d": (nn.Dropout1d(0.25), (60, 50, 3), (0.0, 4 / 3)),
    "dropout2d": (nn.Dropout2d(0.25), (60, 50, 2, 3), (0.0, 4 / 3)),
    "alpha": (nn.AlphaDropout(0.25), (200, 50), (-1.1435, 1.2484)),
    "feature_alpha": (nn.FeatureAlphaDropout(0.25), (60, 50, 2, 3), (-1.1435, 1.2484)),
    "rrelu": (nn.RReLU(0.2, 0.2), (60, 50), (1.0,)),
    "depth": (Depth(), (3000, 2), (0.0, 4 / 3)),
    "handed": (Handed(), (200, 50), (0.0, 4 / 3)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_takes_torchs_values_as_often_and_a_test_none(name: str) -> None:
    module, shape, values = DRAWS[name]
    x = torch.ones(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.ForeshapeWarning)
        model = fs.from_torch(nn.Sequential(nn.Identity(), module).train(), (x[:8],))
    assert not model.missing
    seen, want = model(x), module(x)
    for value in values:
        shares = [float((y - value).abs().lt(1e-4).float().mean()) for y in (seen, want)]
        assert shares[0] == pytest.approx(shares[1], abs=0.06) and shares[0] > 0
    torch.testing.assert_close(model.for_test()(x), module.eval()(x))
    module.train()


class OwnWay(nn.Module):
    """Another result in training, as nets with a second head have it."""

    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.asks, self.first, self.second = asks, nn.Linear(3, 3), nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.norm(self.first(x)) + torch.tensor([1.0, 2.0, 3.0])
        if not self.asks:
            return F.dropout(y, 0.5)  # in a test too
        if self.training:
            return y * torch.tensor([2.0, 2.0, 2.0]), self.second(y)
        return y * torch.tensor([3.0, 3.0, 3.0])


def test_a_network_that_goes_its_own_way_in_a_test_is_imported_twice_and_told() -> None:
    x = torch.randn(6, 3)
    module = OwnWay(True).train()
    with pytest.warns(fs.ForeshapeWarning, match=r"asks whether it is trained, or always drops, in \S+test_training.py:\d+:"):
        model = fs.from_torch(module, (x,))
    assert module.training and module.norm.training
    first, second = model(x)
    want = module(x)
    torch.testing.assert_close((first, second), want, rtol=1e-4, atol=1e-5)
    module.load_state_dict(fs.state_dict(model.scope))
    torch.testing.assert_close(model.for_test()(x), module.eval()(x))
    with pytest.warns(fs.ForeshapeWarning, match=r"always drops"):
        model = fs.from_torch(OwnWay(False).train(), (x,))
    assert float((model.for_test()(torch.ones(500, 3)) == 0).float().mean()) == pytest.approx(0.5, abs=0.1)


# --- the loss


class ItsOwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.out(x)
        return F.mse_loss(y, target), y


def test_forms_of_a_loss_and_errors() -> None:
    x, y = torch.randn(6, 3), torch.randn(6, 1)
    own = fs.from_torch(ItsOwnLoss(), (x, y))
    assert own.loss is own.fetches[0] and own.targets == []
    module = nn.Linear(3, 1)
    model = fs.from_torch(module, x, ({0: "rows"}, {0: "rows"}), loss=nn.SmoothL1Loss(), targets=y)
    assert repr(model) == "TorchModel(input: f32[rows, 3], target: f32[rows, 1] -> linear: f32[rows, 1]; smooth_l1_loss: f32[])"
    results, loss = model(x, y)
    torch.testing.assert_close(results, module(x))
    torch.testing.assert_close(model(x), results)
    torch.testing.assert_close(loss, nn.SmoothL1Loss()(results, y))
    assert model.gradients(x, y).keys() == {"weight", "bias"}
    weighted = fs.from_torch(nn.Linear(3, 4), x, loss=nn.CrossEntropyLoss(weight=torch.ones(4)), targets=torch.zeros(6, dtype=torch.int64))
    assert list(weighted.state_dict()) == ["weight", "bias"], "the loss's own tensors are not the module's"
    regularized = fs.from_torch(module, x, loss=lambda out: out.square().mean())
    assert regularized.gradients(x).keys() == {"weight", "bias"}
    with pytest.raises(fs.FeedError, match=r"takes the tensors input, and for the loss target; seen 3"):
        model(x, y, y)
    with pytest.raises(fs.SchemaError, match=r"a function that gives one number of floats"):
        fs.from_torch(module, x, loss=lambda out, to: out - to, targets=y)
    with pytest.raises(fs.SchemaError, match=r"give loss= too"):
        fs.from_torch(module, x, targets=y)
    with pytest.raises(fs.SchemaError, match=r"a loss; the module gives linear.*give from_torch loss="):
        fs.from_torch(module, x).gradients(x)


def test_an_input_changed_in_place_is_refused() -> None:
    class Changes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1.0)
            return x * 2.0

    with pytest.raises(fs.SchemaError, match=r"the network changes x in each call"):
        fs.from_torch(Changes(), torch.ones(2, 3))


def test_slopes_at_the_bounds_of_a_clamp_are_torchs() -> None:
    class Clamps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([-1.0, -0.5, 0.0, 0.1, 1.0, 6.0, 7.0]).repeat(5, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b, c, d, e = self.w
            return (a.clamp(-0.5, 0.1) + b.clamp(min=0.0) + c.clamp(max=1.0) + F.hardtanh(d) + F.relu6(e)).sum() * x.sum()

    module, x = Clamps(), torch.ones(2)
    module(x).backward()
    assert module.w.grad is not None
    torch.testing.assert_close(fs.from_torch(module, x).gradients(x)["w"], module.w.grad)
