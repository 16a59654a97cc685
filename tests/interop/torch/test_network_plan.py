"""The memory of a network of torch in one line: eager torch's, predicted, beside what eager torch is measured to take; and that of the own step."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.measured import allocated, measure, storage_bytes
from torch import nn

import foreshape as fs
from foreshape import layer
from foreshape.errors import MemoryPlanError, SchemaError
from foreshape.machine.kernels import lstm_memory

F = nn.functional


class Residual(nn.Module):
    """Changes in place, which say what autograd keeps, and values that live on in a frame."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1), nn.Linear(32, 5)
        self.norm = nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm(self.one(x)), inplace=True)
        y = F.relu(self.two(y) + y, inplace=True)
        return self.out(F.dropout(y.mean((2, 3)), 0.3, self.training))


class Branch(nn.Module):
    """Keeps the input of a block over the block."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Sigmoid(), nn.Linear(256, 64))
        self.frozen = nn.Linear(64, 64).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        z = y * 2.0
        z += x
        return F.gelu(self.frozen(z)).softmax(-1)


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layer(self.words(ids)) @ self.words.weight.t()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(24, 32, 2, batch_first=True, bidirectional=True), nn.GRU(64, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(self.lstm(x)[0])[0].square().mean()


Given = Callable[[int], tuple[Any, ...]]
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Given]] = {
    "residual": (Residual, lambda n: (torch.randn(n, 16, 12, 12),)),
    "branch": (Branch, lambda n: (torch.randn(n, 64),)),
    "text": (Text, lambda n: (torch.randint(0, 50, (n, 12)),)),
    "recurrent": (Recurrent, lambda n: (torch.randn(n, 20, 24),)),
}


def measured(module: nn.Module, inputs: tuple[Any, ...], optimizer: torch.optim.Optimizer | None) -> int:
    """The most bytes of a call, or of a training step, in eager torch."""

    def step() -> object:
        if optimizer is None:
            with torch.no_grad():
                return module(*inputs)
        optimizer.zero_grad()
        result = module(*inputs)
        loss = result if result.numel() == 1 else result.mean()
        loss.backward()
        optimizer.step()
        return loss

    step()
    if optimizer is not None:
        optimizer.zero_grad()  # the gradients of a step are none of what is there before the next
    state = [t for of in (optimizer.state.values() if optimizer is not None else ()) for t in of.values()]
    return allocated(step) + storage_bytes([*module.parameters(), *module.buffers(), *inputs, *state])


@functools.cache
def brought(name: str, trains: bool) -> tuple[nn.Module, Any]:
    """A network and its model, made once."""
    make, given = NETWORKS[name]
    module = make().train(trains)
    return module, fs.from_torch(module, given(4))


@pytest.mark.quick_cases("residual-training")
@pytest.mark.parametrize("trains", [pytest.param(False, marks=pytest.mark.long), True], ids=["call", "training"])
@pytest.mark.parametrize("name", [n if n in ("residual", "branch") else pytest.param(n, marks=pytest.mark.long) for n in NETWORKS])
def test_eager_torch_takes_what_is_predicted(name: str, trains: bool) -> None:
    module, model = brought(name, trains)
    given = NETWORKS[name][1]
    for n in (8, 32):
        plan = fs.plan(model, optimizer=fs.optimizer.AdamW(0.001) if trains else None)
        optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], 0.001) if trains else None
        most, predicted = measured(module, given(n), optimizer), plan.eager(batch=n)
        assert 0.9 * most <= predicted.peak <= 1.12 * most, (predicted, most)


OPTIMIZERS: list[tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = [
    (fs.optimizer.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    (fs.optimizer.SGD(0.1, weight_decay=0.1), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1)),
    (fs.optimizer.Momentum(0.1, 0.9, use_nesterov=True), lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True)),
    (fs.optimizer.Adam(0.1), lambda p: torch.optim.Adam(p, 0.1)),
    (fs.optimizer.Adam(0.1, weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1)),
    (fs.optimizer.RMSProp(0.1), lambda p: torch.optim.RMSprop(p, 0.1)),
    (fs.optimizer.RMSProp(0.1, momentum=0.9), lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9)),
    (fs.optimizer.Adagrad(0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
    (fs.optimizer.Adadelta(0.1), lambda p: torch.optim.Adadelta(p, 0.1)),
    (fs.optimizer.Adamax(0.1), lambda p: torch.optim.Adamax(p, 0.1)),
]


@pytest.mark.long
def test_the_updates_of_each_optimizer_are_in_the_prediction() -> None:
    module, x = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 10)), torch.randn(2, 200)
    model = fs.from_torch(module, x)
    found = {
        type(ours).__name__: fs.plan(model, optimizer=ours).eager().peak / measured(module, (x,), theirs(module.parameters())) for ours, theirs in OPTIMIZERS
    }
    assert all(0.97 <= ratio <= 1.03 for ratio in found.values()), found
    predicted = fs.plan(model, optimizer=fs.optimizer.SGD(0.1)).eager()
    assert predicted.gradients == predicted.parameters


@pytest.mark.parametrize("name", [n if n == "residual" else pytest.param(n, marks=pytest.mark.long) for n in NETWORKS])
def test_own_steps_take_what_is_planned(name: str) -> None:
    given = NETWORKS[name][1]
    plan = fs.plan(brought(name, True)[1], given(16), optimizer=fs.optimizer.AdamW(0.001))
    executor = fs.Executor()
    executor.run(plan.startup, scope=plan.model.scope)
    feed = dict(zip(plan.model.feeds, [x.numpy() for x in given(16)], strict=True))
    seen = measure(executor, plan.program, feed, plan.ours.fetch, plan.model.scope)
    assert 0.97 * seen.peak <= plan.ours.peak(batch=16) <= 1.15 * seen.peak


def test_one_line_tells_both_apart() -> None:
    module, x = brought("residual", True)[1], torch.randn(4, 16, 12, 12)
    text = repr(fs.plan(module, x, optimizer=fs.optimizer.AdamW(0.001, freeze=["one.*"])))
    assert text.startswith("NetworkPlan: a training step with AdamW at batch = 4, on a processor\n  eager torch: ")
    assert "\n  Foreshape's step: " in text and "predicted" in text and "planned" in text and "test_network_plan.py:" in text
    table = str(fs.summary(module, x))
    assert "two" in table and "the memory of a call at batch = 4, on a processor\neager torch: " in table


def test_frozen_parameters_have_no_gradient_in_either() -> None:
    module, x = brought("branch", True)[1], torch.randn(4, 64)
    one, two = (fs.plan(module, x, optimizer=fs.optimizer.AdamW(0.001, freeze=freeze)) for freeze in ((), ("body.*.weight",)))
    assert two.eager().gradients < 0.1 * one.eager().gradients and two.eager().state < 0.1 * one.eager().state
    assert two.ours.peak(batch=4) < one.ours.peak(batch=4)


@pytest.mark.long
@pytest.mark.parametrize("trains", [False, True], ids=["call", "training"])
def test_the_largest_batch_is_the_last_that_fits(trains: bool) -> None:
    module, x, limit = brought("branch", True)[1], torch.randn(4, 64), 3 << 20
    optimizer = fs.optimizer.AdamW(0.001) if trains else None
    found = fs.largest_batch(module, x, within="3 MiB", optimizer=optimizer)
    plan = fs.plan(module, x, optimizer=optimizer)
    assert isinstance(found.eager, int) and isinstance(found.ours, int)
    assert plan.eager(batch=found.eager).peak <= limit < plan.eager(batch=found.eager + 1).peak
    assert plan.ours.peak(batch=found.ours) <= limit < plan.ours.peak(batch=found.ours + 1)
    assert repr(found) == f"batch within 3.0 MiB: {found.eager:,} in eager torch, {found.ours:,} in Foreshape's step on a processor"
    small = fs.largest_batch(module, x, within="100 KiB")
    assert isinstance(small.eager, str) and "more than 100" in small.eager and "not told" in repr(small)
    with pytest.raises(MemoryPlanError, match="no open size words; its open sizes are: batch"):
        fs.largest_batch(module, x, within="1 GiB", name="words")


@pytest.mark.long
def test_a_graph_and_its_file_are_planned_as_the_module_is(tmp_path: Path) -> None:
    module, x = brought("residual", False)[0], torch.randn(4, 16, 12, 12)
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    torch.export.save(exported, tmp_path / "net.pt2")
    want = fs.plan(brought("residual", False)[1])
    for one in ((exported,), (tmp_path / "net.pt2", x), (str(tmp_path / "net.pt2"), x)):
        plan: Any = fs.plan(*one)
        assert plan.eager().peak == want.eager().peak and plan.ours.peak(batch=9) == want.ours.peak(batch=9)
    untold = fs.plan(tmp_path / "net.pt2")  # the example is a pickle, which is not opened
    assert untold.eager(batch=4).peak == want.eager().peak and repr(untold).count("not told") == 2
    with pytest.raises(MemoryPlanError, match=r"depends on batch: give an example of the inputs, or sizes, as in plan.eager\(batch=...\)"):
        untold.eager()


@pytest.mark.long
def test_operators_without_a_form_here_are_in_eagers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from foreshape.interop.forms import rules

    monkeypatch.delitem(rules._torch_readers, "softmax")
    monkeypatch.delitem(rules._torch_readers, "_softmax", raising=False)
    monkeypatch.setattr("foreshape.interop.torch.module_import.taken_apart", lambda *_: None)
    plan = fs.plan(Branch(), torch.randn(4, 64))
    assert plan.model.missing and plan.eager().peak > 0 and "not told: the memory of Foreshape's step cannot be told" in repr(plan)
    with pytest.raises(MemoryPlanError, match="no form here: softmax"):
        _ = plan.ours
    assert "eager torch: " in str(fs.summary(Branch(), torch.randn(4, 64)))


def test_what_eager_torch_tells_by_numbers_alone_is_not_predicted() -> None:
    class Found(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[torch.nonzero(x[:, 0] > 0).squeeze(1)] * 2.0

    plan = fs.plan(Found(), torch.randn(6, 3))
    assert "eager torch: not told: the memory of eager torch cannot be told: DynamicOutputShape" in repr(plan)


def test_a_loss_of_alignments_is_not_predicted_and_says_so() -> None:
    class Aligned(nn.Module):
        def forward(self, x: torch.Tensor, labels: torch.Tensor, steps: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            return F.ctc_loss(x.log_softmax(-1), labels, steps, lengths)

    example = torch.randn(9, 2, 5), torch.ones(2, 3, dtype=torch.int64), torch.full((2,), 9), torch.full((2,), 3)
    plan = fs.plan(Aligned(), example, dynamic=({1: "batch"}, {0: "batch"}, {0: "batch"}, {0: "batch"}))
    assert plan.ours.peak(batch=2) > 0
    with pytest.raises(MemoryPlanError, match="no shapes without numbers for ctc_loss"):
        plan.eager()


def test_wrong_uses_are_told() -> None:
    with pytest.raises(SchemaError, match="needs an example of its inputs"):
        fs.plan(Branch())
    with pytest.raises(SchemaError, match=r"plan takes a program, or a network of torch.*seen int"):
        fs.plan(3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(SchemaError, match=r"torch\.export refuses the module"):
        fs.summary(Branch(), torch.randn(4, 65))
    with pytest.raises(MemoryPlanError, match="no result depends on a parameter"):
        fs.plan(nn.ReLU(), torch.randn(2, 3)).model.eager.at({"batch": 2}, fs.optimizer.SGD(0.1))


@pytest.mark.long
def test_programs_are_planned_as_before_and_without_torch() -> None:
    code = """
import sys
import foreshape as fs
from foreshape import layer
x = layer.data("x", shape=["batch", 8])
y = layer.fc(x, 4)
assert fs.plan(fs.default_main_program(), y).peak(batch=3) == fs.plan(fs.default_main_program(), [y.name]).peak(batch=3)
assert fs.largest_batch(fs.default_main_program(), y, within="1 MiB") == fs.plan(fs.default_main_program(), y).largest("batch", within="1 MiB")
assert str(fs.summary(fs.default_main_program(), batch=3)) == str(fs.default_main_program().summary(3))
assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr == ""
    loss = layer.mean(layer.fc(layer.data("x", shape=["batch", 8]), 4))
    made = fs.training_program(loss, fs.optimizer.AdamW(0.001))
    assert fs.largest_batch(made, within="1 MiB") == fs.plan(made).largest("batch", within="1 MiB")


@pytest.mark.parametrize(("steps", "width", "features", "hidden"), [(9, 2, 6, 8), (30, 16, 64, 128), (30, 16, 300, 64), (7, 3, 17, 30), (5, 8, 40, 256)])
def test_the_workspace_of_onednns_lstm_is_known_to_the_byte(steps: int, width: int, features: int, hidden: int) -> None:
    state, bias = torch.zeros(width, hidden), torch.zeros(4 * hidden)
    with torch.inference_mode(), torch.set_grad_enabled(True):
        *_, workspace = torch.ops.aten.mkldnn_rnn_layer(
            torch.zeros(steps, width, features), torch.zeros(4 * hidden, features), torch.zeros(4 * hidden, hidden), bias, bias, state, state, False,
            [], 2, hidden, 1, True, False, False, True,
        )  # fmt: skip
    assert lstm_memory.workspace(steps, width, features, hidden) == workspace.numel()
