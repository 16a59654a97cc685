"""Written torch code is run beside its program before it is handed out; and the code of layers that torch has with other limits or another mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foreshape as fs
from foreshape import layer
from foreshape.errors import FormatError
from foreshape.interop.forms import rules
from foreshape.interop.torch import written_check
from foreshape.interop.torch_files import convert_to_torch


def started() -> fs.Scope:
    scope = fs.Scope()
    fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
    return scope


def classifier() -> tuple[Any, Any]:
    x = layer.data("x", shape=["batch", 6])
    return x, layer.fc(layer.dropout(layer.relu(layer.fc(x, 8)), 0.5), 3)


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize(("written", "words"), [
    ("F.relu({x}) * 1.01", r"in eval\(\) with x \[1, 6\]: fc_1.tmp_1 differs by .* of its largest number; the first op that differs is relu at test_written"),
    ("F.relu({x}) * (1.01 if self.training else 1.0)", r"in train\(\) with x \[1, 6\]: fc_1.tmp_1 differs by .*; the first op that differs is relu at "),
    ("F.relu({x}.detach())", r"in train\(\) with .*: the gradient of fc_0.w_0 differs by 1.0e\+00 of its largest number$"),
    ("F.relu({x})[..., :7]", r"the torch code fails in eval\(\) with x \[1, 6\], and the program does not: mul, at .*mat1 and mat2"),
    ("F.relu({x}) + (x.shape[0] == 2)", r"in eval\(\) with x \[2, 6\]: fc_1.tmp_1 differs"),
])  # fmt: skip
def test_code_of_other_numbers_is_refused_in_words(written: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(rules._torch_writers, "relu", lambda w: written.replace("{x}", w.x("X")))  # pyright: ignore[reportPrivateUsage]
    x, scores = classifier()
    scope = started()
    with pytest.raises(FormatError, match=words):
        fs.to_torch(fs.default_main_program(), scope, fetches=scores, plain=True)
    assert "relu" in fs.to_torch(fs.default_main_program(), scope, fetches=scores, plain=True, check=False).source
    fs.save_inference_model(str(tmp_path / "m"), [x], [scores], scope=scope)
    with pytest.raises(FormatError, match=r"m.pdmodel: the torch code (gives other numbers|fails)"):
        convert_to_torch(tmp_path / "m.pdmodel", tmp_path / "net.py")
    assert not list(tmp_path.glob("net.*"))


def test_a_comparison_leaves_no_trace_and_a_large_network_is_compared_less(monkeypatch: pytest.MonkeyPatch) -> None:
    x = layer.data("x", shape=["batch", 3, "height", "width"])
    out = layer.dropout(layer.batch_norm(layer.conv2d(x, 4, 3)), 0.5)
    scope = started()
    before, state = {n: scope.get(n).copy() for n in scope.names()}, torch.get_rng_state()
    module = fs.to_torch(fs.default_main_program(), scope, fetches=out, plain=True)
    assert torch.equal(state, torch.get_rng_state()) and all(p.grad is None for p in module.parameters())
    assert all(np.array_equal(scope.get(n), value) for n, value in before.items())
    assert all(np.array_equal(value, before[n]) for n, value in module.state_dict().items())
    monkeypatch.setattr(written_check, "MOST_WORK", 0)
    monkeypatch.setitem(rules._torch_writers, "batch_norm", lambda w: (f"{w.x('X')} if self.training else {rule(w)[0]}",))  # pyright: ignore[reportPrivateUsage]
    fs.to_torch(fs.default_main_program(), scope, fetches=out, plain=True)
    monkeypatch.undo()


rule: Any = rules.torch_writer("batch_norm")


def test_an_ill_conditioned_network_is_no_wrong_one() -> None:
    """Differences of nearly equal numbers: rounding alone is as large as the result."""
    x = layer.data("x", shape=["batch", 64])
    rows = layer.softmax(layer.scale(x, 1.0, 1e4))
    fs.to_torch(fs.default_main_program(), fs.Scope(), fetches=layer.reduce_sum(rows, 1) * 1e6 - 1e6, plain=True)


def test_inputs_that_the_program_refuses_are_told_of() -> None:
    x, at = layer.data("x", shape=["batch", 4]), layer.data("at", shape=[1], dtype="int64")
    out = layer.relu(x) * layer.gather(layer.embedding(layer.cast(at, "int64") - 5, [2, 4]), layer.fill_constant([1], "int64", 0))
    scope = started()
    with pytest.warns(fs.ForeshapeWarning, match="the torch code was not compared with the program: the program refuses the inputs drawn for it: "):
        module = fs.to_torch(fs.default_main_program(), scope, feeds=[x, at], fetches=out, plain=True)
    assert module(torch.ones(1, 4), torch.tensor([5])).shape == (1, 4)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize(("window", "padding", "stride"), [([1, 2], 1, 2), (2, 2, 2), ([1, 3], 1, 1), (3, 2, 1), ([2, 1], [1, 1], 1), (1, 1, 1), (3, 1, 2)])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_a_pool_keeps_a_padding_of_more_than_half_its_window(window: Any, padding: Any, stride: int, kind: str) -> None:
    x = layer.data("x", shape=[2, 2, 5, 6])
    out = layer.pool2d(x, window, kind, stride, padding)
    given = np.random.RandomState(0).randn(2, 2, 5, 6).astype("f4")
    module = fs.to_torch(fs.default_main_program(), fs.Scope(), fetches=out, plain=True)
    np.testing.assert_allclose(module(torch.from_numpy(given)), fs.Executor().run(feed={"x": given}, fetch=out)[0], atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("window", [[1, 2], 2, [1, 3], 3, [2, 1], 1])
@pytest.mark.parametrize("dims", [[2, 2, 5, 6], ["batch", 2, "height", "width"]])
def test_a_pool_of_any_configuration(window: Any, dims: list[Any]) -> None:
    given = np.random.RandomState(0).randn(2, 2, 5, 6).astype("f4")
    for kind, padding, stride, ceil, exclusive in [
        (k, p, s, c, e) for k in ("max", "avg") for p in (0, 1, 2, [1, 0], [0, 1, 1, 0]) for s in (1, 2, 3) for c in (False, True) for e in (True, False)
    ]:
        with fs.program() as program:
            x = layer.data("x", shape=dims)
            try:
                out = layer.pool2d(x, window, kind, stride, padding, ceil_mode=ceil, exclusive=exclusive)
                wanted = fs.Executor().run(program, {"x": given}, out, fs.Scope())[0]
            except fs.ForeshapeError:
                continue
            seen = fs.to_torch(program, fs.Scope(), fetches=out, plain=True)(torch.from_numpy(given))
            np.testing.assert_allclose(seen, wanted, atol=1e-5, err_msg=f"{kind} {padding} {stride} {ceil} {exclusive}")


@pytest.mark.parametrize("dims", [[1, 3, 1, 1], ["batch", 3, "height", "width"]])
def test_an_instance_of_one_number_is_normalized_to_its_bias(dims: list[Any]) -> None:
    x = layer.data("x", shape=dims)
    out = layer.instance_norm(x)
    scope = started()
    module = fs.to_torch(fs.default_main_program(), scope, fetches=out, plain=True)
    for sizes in ((1, 3, 1, 1), (2, 3, 2, 2), (0, 3, 2, 2))[: 3 if isinstance(dims[0], str) else 1]:
        given = np.random.RandomState(0).randn(*sizes).astype("f4")
        np.testing.assert_allclose(module(torch.from_numpy(given)).detach(), fs.Executor().run(feed={"x": given}, fetch=out, scope=scope)[0], atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("trained", [True, False])
def test_each_normalization_keeps_its_own_mode(trained: bool) -> None:
    """A frozen one in a network in training, one without moving statistics, one of a cumulative mean, and one as usual."""
    torch.manual_seed(0)
    of = [nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False), nn.BatchNorm2d(4, momentum=None), nn.BatchNorm2d(4, momentum=0.3)]
    count = 4 if trained else 2  # a cumulative mean begins in training
    net = nn.Sequential(nn.Conv2d(3, 4, 3), *[part for one in of[:count] for part in (one, nn.ReLU())]).train(trained)
    of[0].eval()
    x = torch.randn(4, 3, 6, 6) * 3 + 1
    plain = fs.to_torch(fs.from_torch(net, x), plain=True)
    for _ in range(2):
        torch.testing.assert_close(plain(x), net(x), atol=1e-4, rtol=1e-4)
    moved = {n: v for n, v in net.named_buffers() if v.is_floating_point()}
    assert all(torch.allclose(v, moved[n], atol=1e-5) for n, v in plain.named_buffers() if n in moved)
    net.eval(), plain.eval()
    torch.testing.assert_close(plain(x), net(x), atol=1e-4, rtol=1e-4)
    net.train(), plain.train()
    if trained:
        of[0].eval()
    torch.testing.assert_close(plain(x), net(x), atol=1e-4, rtol=1e-4)


def test_what_a_program_freezes_stays_frozen() -> None:
    x = layer.data("x", shape=["batch", 3, 4, 4])
    out = layer.dropout(layer.batch_norm(x, is_test=True), 0.5, is_test=True)
    scope = started()
    module = fs.to_torch(fs.default_main_program(), scope, fetches=out, plain=True)
    given = np.random.RandomState(0).randn(5, 3, 4, 4).astype("f4")
    for mode in (True, False):
        np.testing.assert_allclose(
            module.train(mode)(torch.from_numpy(given)).detach(), fs.Executor().run(feed={"x": given}, fetch=out, scope=scope)[0], atol=1e-5
        )


NAMES = ("a", "ａ", "µ", "μ", "«device»", "ﬁ", "fi", "source", "ℌ", "training", "T_destination", "class")
"""Names of one form for Python, of the writer, and of torch's modules."""


def test_parameters_of_any_name_are_apart() -> None:
    x = layer.data("x", shape=["batch", 2])
    block, made, scope = fs.default_main_program().global_block, x, fs.Scope()
    for at, name in enumerate(NAMES):
        made = made * 0.5 + block.create_variable(name, fs.core.spec.Spec(fs.core.spec.LOD_TENSOR, fs.core.spec.FP32, (2,)), persistable=True)
        scope.set(name, np.full(2, 3.0**at, "float32"))
    out = made + layer.fill_constant([2], "float32", 0.0)
    wanted = fs.Executor().run(feed={"x": np.zeros((1, 2), "float32")}, fetch=out, scope=scope)[0]
    module = fs.to_torch(fs.default_main_program(), scope, fetches=out, plain=True)
    np.testing.assert_allclose(module(torch.zeros(1, 2)).detach(), wanted)
    np.testing.assert_allclose(fs.to_torch(fs.default_main_program(), scope, fetches=out).eval()(torch.zeros(1, 2)).detach(), wanted)
    assert "class Network" in module.source_ and len(module.state_dict()) == len(NAMES)


@pytest.mark.quick_cases("names0")
@pytest.mark.parametrize("names", [("batch_norm", "one_each", "parameter"), ("ａ", "a", "«device»"), ("self", "torch", "device"), ("x 1", "x\n1", "class")])
def test_inputs_of_any_name_are_apart(names: tuple[str, ...]) -> None:
    inputs = [layer.data(name, shape=["batch", 4]) for name in names]
    out = layer.batch_norm(layer.fc(layer.concat([v * float(at) for at, v in enumerate(inputs, 1)], 1), 3))
    scope = started()
    module = fs.to_torch(fs.default_main_program(), scope, feeds=inputs, fetches=out, plain=True)
    feed = {name: np.random.RandomState(at).randn(3, 4).astype("f4") for at, name in enumerate(names)}
    seen = module(*map(torch.from_numpy, feed.values())).detach()
    np.testing.assert_allclose(seen, fs.Executor().run(feed=feed, fetch=out, scope=scope)[0], atol=1e-5)
