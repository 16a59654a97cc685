"""The user's line of each op of a network of torch: of branches, loops, changes in place, buffers, and layers of torch alone."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foreshape as fs
from foreshape.interop.torch.torch_model import from_torch


class Everything(nn.Module):
    """Layers of torch, branches, a loop, changes in place, buffers that change, a demand on sizes by torch's layers, an operator to be taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.cumulative = nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=None)
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        from torch._higher_order_ops import while_loop

        self.seen += 1.0
        y = self.cumulative(self.norm(self.conv(x))).transpose(1, 2)
        y = self.lstm(self.attention(F.dropout(y, 0.1, self.training)))[0]
        y = torch.cond(y.sum() > 0, lambda y: torch.relu(y), lambda y: torch.tanh(y), (y,))
        z = while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, torch.tanh(h)), (torch.zeros((), dtype=torch.long), x.detach()))[1]
        z = F.pad(z, (1, 1), mode="circular").clone()
        z[:, 0] = 2.0
        z[:, 1:2] += 1.0
        w = torch.logaddexp(F.interpolate(z, scale_factor=2.0, mode="linear"), z.new_ones(()))
        return torch.logit(y.sigmoid(), 1e-3).mean() + w.mean(), x, self.norm.weight


def lines(program: fs.Program) -> dict[str, str]:
    """Return the type of each op -> the file of its line, if it is another than this one."""
    return {op.type: str(op.call_site and op.call_site.file) for op in program.all_ops() if op.call_site is None or op.call_site.file != __file__}


@pytest.mark.long
@pytest.mark.parametrize("training", [True, False])
def test_each_op_and_its_gradient_has_a_line_of_the_networks_own_code(training: bool) -> None:
    model = from_torch(Everything().train(training), torch.randn(2, 4, 8), ({0: "batch", 2: "time"},))
    assert not model.missing and len(list(model.program.all_ops())) > 40
    assert lines(model.program) == {}
    with fs.program_guard(model.program):
        fs.append_backward(model.program.global_block.var(model.fetches[0].name))
    assert lines(model.program) == {}


def test_the_layers_of_torch_alone_have_the_line_of_the_import() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 5))
    model = fs.from_torch(net, torch.randn(2, 4))
    assert {op.call_site.source_line() for op in model.program.all_ops() if op.call_site} == {"model = fs.from_torch(net, torch.randn(2, 4))"}
    assert lines(model.program) == {}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.second(y)


def test_errors_explanations_and_profiles_name_the_line() -> None:
    model = from_torch(Small().eval(), torch.randn(2, 4))
    at = Small.forward.__code__.co_firstlineno
    assert f"test_lines.py:{at + 2}" in model.program.explain(model.fetches[0])
    profile = fs.profile(model.program, {"x": torch.randn(3, 4).numpy()}, [model.fetches[0]], scope=model.scope)
    assert {call.line for call in profile.calls} == {f"test_lines.py:{at + 1}", f"test_lines.py:{at + 2}"}

    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.pixel_unshuffle(x, 2)

    model = from_torch(Halves(), torch.randn(2, 3, 4, 4), ({2: "height"},))
    with pytest.raises(fs.GuardError, match=r"at return F.pixel_unshuffle\(x, 2\)    test_lines.py"):
        model(torch.randn(2, 3, 5, 4))


def test_a_file_from_another_machine_has_the_networks_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders of torch on that machine are others."""
    exported = torch.export.export(Small().eval(), (torch.randn(2, 4),))
    for node in exported.graph.nodes:
        if "stack_trace" in node.meta:
            trace = node.meta["stack_trace"].replace(torch.__path__[0], "/opt/net/lib/python3.11/site-packages/torch")
            node.meta["stack_trace"] = trace + '  File "/opt/net/lib/python3.11/site-packages/torch/nn/functional.py", line 3, in linear\n    return linear\n'
    file = io.BytesIO()
    torch.export.save(exported, file)
    from foreshape.interop.torch.exported_file import open_exported

    program = open_exported(file.getvalue())[0]
    at = Small.forward.__code__.co_firstlineno
    seen = {op.call_site.short() for op in program.all_ops() if op.call_site and op.type != "feed"}
    assert seen == {f"test_lines.py:{at + 1}", f"test_lines.py:{at + 2}"}
