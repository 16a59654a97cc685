"""Functions and normalizations that are written out, in frozen steps: one call each, with the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from support.frozen_nets import Net, images, kernels_of, number

import foreshape as fs
from foreshape import layer
from foreshape.machine.kernels.onednn_library import library

__all__ = ["kernels_of"]


WRITTEN_OUT: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "swish": (1, lambda y: layer.sigmoid(y) * y),
    "hardswish": (1, lambda y: y * layer.clip(layer.scale(y, bias=3.0), 0.0, 6.0) / layer.fill_constant([1], "float32", 6.0)),
    "hardswish, divided first": (1, lambda y: layer.scale(layer.relu6(y + 3.0), 1 / 6) * y),
    "hardswish by hardsigmoid": (1, lambda y: y * layer.hard_sigmoid(y, slope=1 / 6, offset=0.5)),
    "gelu": (1, lambda y: y * (layer.erf(y / layer.fill_constant([1], "float32", math.sqrt(2.0))) + 1.0) * 0.5),
    "gelu, halved first": (1, lambda y: (0.5 * y) * (1.0 + layer.erf(y * math.sqrt(0.5)))),
    "gelu by tanh": (1, lambda y: 0.5 * y * (layer.tanh((y + y * y * y * 0.044715) * math.sqrt(2.0 / math.pi)) + 1.0)),
    "gelu by tanh of a power": (1, lambda y: 0.5 * y * (1.0 + layer.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * layer.pow(y, 3.0))))),
    "another slope": (4, lambda y: y * layer.sigmoid(1.7 * y)),
    "other ends": (5, lambda y: y * layer.clip(y * (1 / 6) + 0.5, 0.0, 1.5)),
    "another root": (5, lambda y: y * (layer.erf(y * 0.7) + 1.0)),
}
"""Functions of a tensor, and the calls of a convolution with one."""


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_an_activation_that_is_written_out_is_one(name: str) -> None:
    calls, function = WRITTEN_OUT[name]
    net = Net(lambda x: function(layer.conv2d(x, 4, 3)), 3.0 * images(2, 3, 7, 6))
    assert net.calls(net.same()) == calls


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1), (1, 0, 2)], ids=str)
def test_gelu_by_tanh_alone_takes_its_operand_as_it_lies(axes: tuple[int, ...]) -> None:
    net = Net(lambda x: fs.default_main_program().global_block.apply("gelu", {"X": layer.transpose(x, list(axes))}, {"approximate": True}), images(3, 5, 7))
    net.same()
    net.same(images(0, 5, 7))


def test_whole_numbers_known_by_inference_are_not_computed() -> None:
    def block(x: Any) -> list[Any]:
        size = layer.cast(layer.shape(x), "int64")
        places = layer.range(0, layer.squeeze(layer.slice(size, [0], [2], [3]), [0]), 1, "int64")  # of 7, whatever the batch
        return [x + layer.cast(places, "float32"), size]

    net = Net(block, images(2, 3, 7))
    assert net.calls(net.same()) == 4  # the sum and its operand, and both calls of the size, which has an open dim
    net.same(images(4, 3, 7))


def test_an_activation_that_is_read_in_between_stays_written_out() -> None:
    def block(x: Any) -> list[Any]:
        y = layer.conv2d(x, 4, 3)
        gate = layer.sigmoid(y)
        return [gate, y * gate]

    net = Net(block, images(2, 3, 7, 6))
    assert net.calls(net.same()) == 3


def written_out_norm(x: Any, divides: Callable[[Any, Any], Any], square: Callable[[Any], Any]) -> Any:
    d = x - layer.reduce_mean(x, [-1], keepdim=True)
    return divides(d, layer.reduce_mean(square(d), [-1], keepdim=True) + 1e-3)


NORMS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "root": (3, lambda x: written_out_norm(x, lambda d, v: d / layer.sqrt(v), layer.square)),
    "reciprocal root": (3, lambda x: written_out_norm(x, lambda d, v: layer.rsqrt(v) * d, lambda d: d * d)),
    "reciprocal of the root": (3, lambda x: written_out_norm(x, lambda d, v: d * layer.reciprocal(layer.sqrt(v)), lambda d: layer.pow(d, 2.0))),
    "scale and shift": (3, lambda x: written_out_norm(x, lambda d, v: d / layer.sqrt(v), layer.square) * number(0.7, (12,)) + number(0.2, (12,))),
    "scale": (3, lambda x: written_out_norm(x, lambda d, v: d / layer.sqrt(v), layer.square) * number(0.7, (12,))),
    "other axis": (1, lambda x: layer.reduce_mean(x - layer.reduce_mean(x, [1], keepdim=True), [-1], keepdim=True) + written_out_norm(
        x, lambda d, v: v / layer.sqrt(layer.abs(d)), layer.square)),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
def test_a_normalization_of_rows_that_is_written_out_is_one(name: str) -> None:
    calls, norm = NORMS[name]
    net = Net(lambda x: layer.fc(norm(layer.fc(x, 12, flatten_last=1)), 5, flatten_last=1), images(2, 7, 9), ["batch", 7, 9])
    executor = net.same()
    if library() is not None:
        most = max(i.kernels for i in executor.step(net.main, net.fetch).emitted.lowered.calls)
        assert most == calls
