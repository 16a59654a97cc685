"""A network for each rewrite of a step, in which it applies: a function with the name of the rewrite returns the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer

BATCH = "batch"


def _images(channels: int = 3) -> Any:
    return layer.data("images", shape=[BATCH, channels, 6, 6])


def _rows(width: int = 5) -> Any:
    return layer.data("x", shape=[BATCH, width])


def _weight(*dims: int) -> Any:
    return layer.create_parameter(list(dims), fs.FP32)


def _size(x: Any, axis: int) -> Any:
    return layer.slice(layer.shape(x), [0], [axis], [axis + 1])


def _trained(loss: Any) -> list[Any]:
    fs.optimizer.SGD(0.1).minimize(loss)
    return [loss]


def _gradients(out: Any, *inputs: Any) -> list[Any]:
    return [out, *(g for _, g in fs.append_backward(layer.reduce_sum(layer.square(out)), list(inputs)))]


def _differentiated(name: str, *dims: Any) -> Any:
    return layer.data(name, shape=[BATCH, *dims], stop_gradient=False)


# --- any step


def known_dims() -> list[Any]:
    x = layer.data("x", shape=[BATCH, "time", 4])
    return [layer.reshape(x, [_size(x, 0), -1])]


def constant() -> list[Any]:
    return [_rows() * layer.fill_constant([5], "float32", 2.0)]


def identity() -> list[Any]:
    return [layer.tanh(layer.assign(layer.exp(_rows())))]


def views() -> list[Any]:
    return [layer.exp(layer.reshape(layer.reshape(layer.exp(_rows(6)), [-1, 2, 3]), [-1, 3, 2]))]


def bags() -> list[Any]:
    ids = layer.data("ids", shape=[BATCH, 7], dtype="int64")
    return [layer.reduce_sum(layer.embedding(ids, size=(9, 3)), 1)]


def passed_gradients() -> list[Any]:
    x, y = _differentiated("x", 5), _differentiated("y", 5)
    return _gradients(layer.tanh(x) + layer.tanh(y), x, y)


def operand_dims() -> list[Any]:
    x = _differentiated("x", 5)
    return _gradients(x * layer.data("y", shape=[BATCH, 5]), x)


def attention() -> list[Any]:
    q, k, v = (layer.data(n, shape=[BATCH, 2, "time", 4]) for n in "qkv")
    return [layer.matmul(layer.softmax(layer.scale(layer.matmul(q, k, transpose_y=True), 0.5)), v)]


def bias_gradient() -> list[Any]:
    return _gradients(_rows() + (b := _weight(5)), b)


def class_loss() -> list[Any]:
    label = layer.data("label", shape=[BATCH, 1], dtype="int64")
    return _trained(layer.mean(layer.softmax_with_cross_entropy(layer.fc(_rows(), 3), label)))


def log_of_softmax() -> list[Any]:
    x = _differentiated("x", 5)
    return _gradients(layer.log(layer.softmax(x)), x)


def linear() -> list[Any]:
    return [layer.fc(_rows(), 4)]


def linear_gradient() -> list[Any]:
    x = _differentiated("x", 5)
    return _gradients(layer.matmul(x, w := _weight(5, 4)), x, w)


def normalization() -> list[Any]:
    return _trained(layer.mean(layer.square(layer.layer_norm(_rows()))))


def convolution() -> list[Any]:
    return [layer.conv2d(_images(), 4, 3)]


def convolution_gradient() -> list[Any]:
    return _trained(layer.mean(layer.square(layer.conv2d(_images(), 4, 3))))


def rectifier() -> list[Any]:
    return [layer.relu(_rows())]


def rectifier_gradient() -> list[Any]:
    x = _differentiated("x", 5)
    return _gradients(layer.relu(x), x)


def descent() -> list[Any]:
    return _trained(layer.mean(layer.square(layer.fc(_rows(), 2))))


def read_sizes() -> list[Any]:
    x = _rows()
    is_long = layer.greater_than(_size(x, 0), layer.fill_constant([1], "int32", 7))
    return [layer.fill_constant([_size(x, 0), 5], "float32", 1.0) + x, layer.cast(is_long, "float32")]


def in_place() -> list[Any]:
    block = fs.default_main_program().global_block
    total = block.create_variable("total", fs.core.spec.tensor(fs.FP32, 3), persistable=True, stop_gradient=True)
    block.append_op("elementwise_add", {"X": total, "Y": (x := layer.data("x", shape=[3]))}, {"Out": total})
    return [x * 3.0]


def kept_dims() -> list[Any]:
    x = _differentiated("x", 64)
    return _gradients(layer.slice(x * 2.0, [1], [0], [32]), x)


def update_groups() -> list[Any]:
    loss = layer.mean(layer.square(layer.fc(_rows(), 2)))
    fs.optimizer.Adam(0.1).minimize(loss)
    return [loss]


# --- frozen steps


def frozen_rounding() -> list[Any]:
    block, scale, x = fs.default_main_program().global_block, layer.create_parameter([1], fs.FP32), _rows()
    for operator in ("quantize_linear", "dequantize_linear"):
        op = block.append_op(operator, {"X": x, "Scale": scale}, {"OutScale": scale}, {"quant_axis": -1})
        x = block.var(op.outputs["Y"][0])
    return [x]


def frozen_rows() -> list[Any]:
    return [layer.exp(layer.cast(layer.tanh(_rows()), "float32"))]


def frozen_picks() -> list[Any]:
    return [layer.exp(layer.gather(_rows(), layer.assign(np.array([2], "int64")), axis=1))]


def frozen_activation() -> list[Any]:
    x = layer.exp(_rows())
    return [x * layer.sigmoid(x)]


def frozen_attention() -> list[Any]:
    x = layer.data("x", shape=[BATCH, "time", 8])
    q, k, v = (layer.transpose(layer.reshape(layer.fc(x, 8, flatten_last=1), [0, 0, 2, 4]), [0, 2, 1, 3]) for _ in range(3))
    mixed = layer.matmul(layer.softmax(layer.scale(layer.matmul(q, k, transpose_y=True), 0.5)), v)
    return [layer.reshape(layer.transpose(mixed, [0, 2, 1, 3]), [0, 0, 8])]


def frozen_linear() -> list[Any]:
    return [layer.relu(layer.fc(_rows(40), 40))]


def frozen_dynamic() -> list[Any]:
    block = fs.default_main_program().global_block
    whole = block.create_variable("whole", fs.core.spec.tensor(fs.INT8, 40, 5), persistable=True)
    rows = block.apply("dynamic_int8_linear", {"X": _rows(40), "W": whole, "Scale": _weight(5)})
    return [layer.relu(rows + _weight(5))]


def frozen_range() -> list[Any]:
    block, x = fs.default_main_program().global_block, _rows(40)
    whole = block.create_variable("whole", fs.core.spec.tensor(fs.INT8, 40, 5), persistable=True)
    levels, scale, point = block.apply("dynamic_quantize_linear", {"X": x})
    sums = block.apply("matmul_integer", {"X": levels, "Y": whole, "XZeroPoint": point})
    return [layer.relu(layer.cast(sums, "float32") * (scale * _weight(5)) + _weight(5))]


def frozen_recurrence() -> list[Any]:
    x, states = layer.data("x", shape=["time", BATCH, 5]), [layer.data(name, shape=[1, BATCH, 4]) for name in ("h", "c")]
    weights = [_weight(16, 5), _weight(16, 4), layer.concat([_weight(8), _weight(8)], 0), _weight(16)]
    attrs = {"mode": "LSTM", "hidden_size": 4, "is_test": True}
    out, _, _, _ = fs.default_main_program().global_block.apply("rnn", {"Input": x, "PreState": states, "WeightList": weights}, attrs)
    return [out]


def frozen_convolution() -> list[Any]:
    return [layer.relu(layer.batch_norm(layer.conv2d(_images(), 4, 3)))]


def frozen_affine() -> list[Any]:
    return [_rows() * _weight(1) + _weight(1)]


def frozen_shuffle() -> list[Any]:
    x = layer.exp(_images(6))
    return [layer.reshape(layer.transpose(layer.reshape(x, [0, 2, 3, 6, 6]), [0, 2, 1, 3, 4]), [0, 6, 6, 6])]


def frozen_gate() -> list[Any]:
    x = layer.exp(_images(6))
    return [x + x * layer.sigmoid(layer.reduce_mean(x, [2, 3], keepdim=True))]


def frozen_normalization() -> list[Any]:
    return [layer.layer_norm(_rows())]


def frozen_values() -> list[Any]:
    return [_rows() * layer.exp(_weight(5))]


def frozen_series() -> list[Any]:
    return [layer.relu(layer.conv2d(layer.pool2d(layer.conv2d(_images(), 4, 3), 2, "max", 2), 4, 1))]


def frozen_direct() -> list[Any]:
    return [layer.exp(layer.transpose(_rows(), [1, 0]))]


NEEDS_LIBRARY: Sequence[str] = ("frozen_attention", "frozen_normalization", "frozen_series")
"""Rewrites for oneDNN's own library alone."""
NEEDS_NUMBA: Sequence[str] = ("frozen_recurrence",)
"""Rewrites for loops in machine code alone."""
