"""Small networks over ragged rows, to be written as ONNX's models: their input is ``x``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import foreshape as fs
from foreshape import layer

Network = Callable[[], tuple[Any, Sequence[Any]]]
NETWORKS: dict[str, Network] = {}


def network(function: Network) -> Network:
    NETWORKS[function.__name__] = function
    return function


def rows_of(levels: int = 1) -> Any:
    return layer.data("x", [-1, 3], lod_level=levels)


def apply(type: str, place: int, attrs: dict[str, Any], **inputs: Any) -> Any:
    made = fs.default_main_program().global_block.apply(type, inputs, attrs)
    return made[place] if isinstance(made, tuple) else made


@network
def every_pool() -> Any:
    x = rows_of()
    kinds = ("SUM", "AVERAGE", "SQRT", "MAX", "MIN", "LAST", "FIRST")
    return x, [apply("sequence_pool", 0, {"pooltype": kind, "pad_value": value}, X=x) for kind in kinds for value in (0.0, 1.5)]


@network
def bag_of_words() -> Any:
    words = layer.data("x", [-1, 1], "int64", lod_level=1)
    return words, [layer.fc(layer.tanh(layer.sequence_pool(layer.embedding(words, [20, 4]), "sum")), 5)]


@network
def attention_over_rows() -> Any:
    x = rows_of()
    weight = layer.sequence_softmax(layer.fc(x, 1))
    y = layer.sequence_pool(x * weight, "sum")
    return x, [weight, y, layer.sequence_expand(y, x) + x, layer.sequence_expand_as(y, x)]


@network
def rows_moved() -> Any:
    x = rows_of()
    return x, [layer.sequence_conv(x, 4, 3), layer.sequence_reverse(x), layer.sequence_concat([x, x * 2.0])]


@network
def padded_and_unpadded() -> Any:
    x = rows_of()
    padded, lengths = layer.sequence_pad(x, layer.fill_constant([1], "float32", 0.5))
    return x, [padded, lengths, layer.sequence_unpad(padded * 2.0, lengths), layer.sequence_mask(lengths, dtype="float32")]


@network
def layers_in_both_directions() -> Any:
    x = rows_of()
    y, (hidden, cell) = layer.lstm(x, 4, num_layers=2, bidirectional=True)
    z, last = layer.gru(y, 3)
    return x, [y, hidden, cell, z, last, layer.sequence_last_step(z)]


@network
def projected_lstms() -> Any:
    x = rows_of()
    y, weight = layer.fc(x, 16), layer.create_parameter([4, 16], "float32")
    biases = {False: layer.create_parameter([1, 16], "float32"), True: layer.create_parameter([1, 28], "float32")}
    each = [(peephole, reverse) for peephole in biases for reverse in (False, True)]
    return x, [apply("lstm", 0, {"use_peepholes": p, "is_reverse": r}, Input=y, Weight=weight, Bias=biases[p]) for p, r in each]


@network
def projected_grus() -> Any:
    x = rows_of()
    y, weight, bias = layer.fc(x, 12), layer.create_parameter([4, 12], "float32"), layer.create_parameter([1, 12], "float32")
    each = [{"origin_mode": mode, "is_reverse": reverse} for mode in (False, True) for reverse in (False, True)]
    return x, [apply("gru", 3, attrs, Input=y, Weight=weight, Bias=bias) for attrs in each]


@network
def two_levels() -> Any:
    x = rows_of(2)
    parts = layer.sequence_pool(layer.fc(x, 4), "max")
    whole = layer.sequence_pool(parts, "average")
    return x, [parts, whole, layer.sequence_reverse(x), layer.sequence_expand(whole, x, 0), layer.gru(x, 3)[0], layer.lstm(parts, 3)[0]]
