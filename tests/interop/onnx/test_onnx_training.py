"""ONNX's networks fine-tuned: the constants that are trained, and their gradients beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_writer import Graph, function, model, node, opened, tensor, value

import foreshape as fs
from foreshape import layer

RNG = np.random.default_rng(11)
Net = tuple[list[bytes], dict[str, Any], Callable[..., Any]]


def some(*dims: int) -> np.ndarray:
    return (RNG.standard_normal(dims) * 0.5).astype("float32")


def convolutional() -> Net:
    """As torch exports convolutions, a normalization in use, and a linear layer: all but the statistics is trained."""
    tensors = {"conv.w": some(4, 3, 3, 3), "conv.b": some(4), "fc.w": some(2, 4), "fc.b": some(2)}
    tensors |= {"bn.w": some(4), "bn.b": some(4), "bn.mean": some(4), "bn.var": np.abs(some(4)) + 0.5}
    nodes = [
        node("Conv", "x conv.w conv.b", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", "c bn.w bn.b bn.mean bn.var", "n", epsilon=1e-5),
        node("Relu", "n", "r"),
        node("GlobalAveragePool", "r", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f fc.w fc.b", "y", transB=1),
    ]

    def forward(torch: Any, w: Any, x: Any) -> Any:
        out = torch.nn.functional.conv2d(x, w["conv.w"], w["conv.b"], 2, 1)
        out = torch.nn.functional.batch_norm(out, w["bn.mean"], w["bn.var"], w["bn.w"], w["bn.b"])
        return out.relu().mean((2, 3)) @ w["fc.w"].T + w["fc.b"]

    return nodes, tensors, forward


def transformer() -> Net:
    """As torch exports layers of texts: turned weights, a bias of one number, scales that stay, and one tensor for two biases."""
    tensors = {"words": some(9, 4), "places": some(1, 8, 4), "norm.w": some(4), "norm.b": np.zeros(4, "float32"), "dense.w": some(6, 4), "head.w": some(6, 1)}
    tensors |= {
        "half": np.float32(0.5),
        "root": np.float32([1.5]),
        "dense.b": some(6),
        "head.b": some(1),
        "from": np.int64([0]),
        "to": np.int64([5]),
        "axis": np.int64([1]),
    }
    nodes = [
        node("Gather", "words ids", "e"),
        node("Slice", "places from to axis", "s"),
        node("Add", "e s", "h"),
        node("Identity", "norm.b", "bias.b"),
        node("Add", "h bias.b", "h0"),
        node("LayerNormalization", "h0 norm.w norm.b", "h1", axis=-1),
        node("Transpose", "dense.w", "dense.t", perm=[1, 0]),
        node("MatMul", "h1 dense.t", "d"),
        node("Add", "dense.b d", "a"),
        node("Div", "a root", "q"),
        node("Erf", "q", "g"),
        node("Mul", "g half", "g1"),
        node("MatMul", "g1 head.w", "m"),
        node("Add", "m head.b", "y"),
    ]

    def forward(torch: Any, w: Any, ids: Any) -> Any:
        h = w["words"][ids] + w["places"][:, :5] + w["bias.b"]
        h = torch.nn.functional.layer_norm(h, (4,), w["norm.w"], w["norm.b"])
        return torch.erf((h @ w["dense.w"].T + w["dense.b"]) / 1.5) * 0.5 @ w["head.w"] + w["head.b"]

    return nodes, tensors, forward


def normalized() -> Net:
    """Weights that are computed of constants: a direction and a length (weight norm), of a half's numbers, in another shape, and in a function."""
    tensors = {"v": some(4, 3), "g": some(4, 1), "flat": some(20).astype("float16"), "dims": np.int64([4, 5]), "slope": some(1)}
    nodes = [
        node("ReduceL2", "v _", "length", axes=[1], keepdims=1),
        node("Div", "v length", "unit"),
        node("Mul", "unit g", "w"),
        node("Gemm", "x w", "h", transB=1),
        node("PRelu", "h slope", "r"),
        node("Cast", "flat", "wide", to=1),
        node("Reshape", "wide dims", "m"),
        node("Linear", "r m", "y", domain="own"),
    ]

    def forward(torch: Any, w: Any, x: Any) -> Any:
        h = x @ (w["v"] / w["v"].norm(dim=1, keepdim=True) * w["g"]).T
        return torch.where(h < 0, h * w["slope"], h) @ w["flat"].float().reshape(4, 5)

    return nodes, tensors, forward


NETS = {"convolutional": convolutional, "transformer": transformer, "normalized": normalized}
FEEDS = {"convolutional": some(6, 3, 6, 6), "transformer": RNG.integers(0, 9, (6, 5)), "normalized": some(6, 3)}
FIXED = {"convolutional": {"bn.mean", "bn.var"}, "transformer": {"half", "root", "from", "to", "axis"}, "normalized": {"dims"}}


@pytest.mark.parametrize("name", NETS)
def test_weights_are_trained_with_the_gradients_of_torch(name: str, tmp_path: Path) -> None:
    import torch

    nodes, tensors, forward = NETS[name]()
    x = FEEDS[name]
    fed = value("ids" if name == "transformer" else "x", str(x.dtype), ["batch", *x.shape[1:]])
    graph = Graph(nodes, [fed], [value("y", "float32", None)], [tensor(n, a) for n, a in tensors.items()])
    linear = function("Linear", "a b", "c", [node("MatMul", "a b", "c")])
    base = opened(model(graph, 17, [linear], ["own"]), tmp_path).for_training()
    trained = {n for n in tensors if n not in FIXED[name]} | ({"bias.b"} if name == "transformer" else set())
    assert {p.name for p in base.program.parameters() if p.trainable} == trained
    weights = {n: torch.from_numpy(np.array(base.scope.get(n))).requires_grad_() for n in trained}
    fixed = {n: torch.from_numpy(np.array(a)) for n, a in tensors.items() if n in FIXED[name]}

    target = some(1, base.fetches[0].spec.known_dims[-1])
    rate, losses = 0.05, []
    for _ in range(4):
        loss = (forward(torch, weights | fixed, torch.from_numpy(x)) - torch.from_numpy(target)).square().mean()
        gradients = torch.autograd.grad(loss, [*weights.values()])
        losses.append(loss.item())
        for weight, gradient in zip(weights.values(), gradients, strict=True):
            weight.data -= rate * gradient
    with fs.program_guard(base.program, startup := fs.Program()):
        cost = layer.mean(layer.square(base.fetches[0] - layer.assign(target)))
    options = {"epochs": 4, "batch_size": 6, "shuffle": False, "progress": False}
    history = fs.train(cost, {base.feeds[0]: x}, optimizer=fs.optimizer.SGD(rate), scope=base.scope, startup=startup, **options)
    assert np.allclose(history.column("loss"), losses, rtol=1e-4) and losses[-1] < losses[0]
    for n, weight in weights.items():
        assert np.allclose(base.scope.get(n), weight.detach().numpy(), rtol=1e-3, atol=1e-5), n


def test_a_scale_of_sizes_stays_a_constant(tmp_path: Path) -> None:
    """The numbers of a size's factors look like a scale for each channel: the size would not be known before the run."""
    nodes = [node("Shape", "x", "s"), node("Cast", "s", "f", to=1), node("Mul", "f by", "m"), node("Cast", "m", "i", to=7), node("Expand", "one i", "y")]
    tensors = [tensor("by", np.float32([1, 2])), tensor("one", np.float32([[1]]))]
    net = opened(model(Graph(nodes, [value("x", "float32", ["n", 3])], [value("y", "float32", None)], tensors)), tmp_path)
    assert not net.program.parameters() and net.run(np.ones((2, 3), "float32"))["y"].shape == (2, 6)


@pytest.mark.parametrize("operator", ["ReduceL2", "LpNormalization"])
def test_the_gradient_of_a_length_of_zero_is_a_number(operator: str, tmp_path: Path) -> None:
    import torch

    x = np.float32([[0, 0, 0], [1, 2, 2]])
    made = node(operator, "x", "y", **({"axes": [1], "keepdims": 0} if operator == "ReduceL2" else {"axis": 1}))
    net = opened(model(Graph([made], [value("x", "float32", [2, 3])], [value("y", "float32", None)]), 13), tmp_path)
    net.program.global_block.vars["x"].stop_gradient = False
    with fs.program_guard(net.program):
        ((_, gradient),) = fs.append_backward(layer.reduce_sum(layer.square(net.fetches[0] + 1.0)), ["x"])
    (got,) = fs.Executor().run(net.program, {"x": x}, [gradient], scope=net.scope)
    t = torch.from_numpy(x).requires_grad_()
    length = t.norm(dim=1, keepdim=True)
    out = length[:, 0] if operator == "ReduceL2" else t / torch.where(length == 0, 1.0, length)
    (out + 1).square().sum().backward()
    assert t.grad is not None and np.allclose(got, t.grad.numpy(), atol=1e-5)
