"""The training of networks of torch: settings, layers on top, draws, the network of a test, and forms of a loss."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from support.torch_training import CLASSES, Images, brought, data_of, trained
from torch import nn
from torch.nn import functional as F

import foreshape as fs
from foreshape import layer


@pytest.mark.long
def test_precision_several_batches_for_an_update_and_validation_train_it_too() -> None:
    x, y = data_of("images", 5)
    model = brought(Images(), x, y)
    before = model.state_dict()
    for settings in ({"precision": "bf16"}, {"precision": "fp16"}, {"accumulate": 5}, {"validation": 0.2, "shuffle": True}):
        scope = copy.copy(model.scope)
        history = trained(model, x, y, fs.optimizer.SGD(0.1), scope=scope, **settings)
        assert all(np.isfinite(history.losses)) and not np.array_equal(scope["out.weight"], before["out.weight"])
        assert np.array_equal(scope["frozen.weight"], before["frozen.weight"])
        assert int(scope["fast.num_batches_tracked"]) == (4 if "validation" in settings else 5), "a test moves no statistics"


@pytest.mark.long
def test_layers_put_on_top_train_with_it() -> None:
    x, y = data_of("images", 5)
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


@pytest.mark.long_cases("depth")
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


@pytest.mark.long
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
