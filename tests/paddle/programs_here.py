"""Programs described here, which PaddlePaddle is to open and to compute as they are computed here.

Each function describes one in the default programs and returns what is fetched: of a network for use the results, of one for training its loss.
Their feeds are drawn by `feeds` from what they declare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.language.program import Program, Variable

Outputs = list[Variable]
INFERENCE: dict[str, Callable[[], Outputs]] = {}
TRAINING: dict[str, Callable[[], Any]] = {}
LENGTHS = [[4, 1, 3]]
BATCH = 3


def for_use(describe: Callable[[], Outputs]) -> Callable[[], Outputs]:
    INFERENCE[describe.__name__] = describe
    return describe


def for_training(describe: Callable[[], Any]) -> Callable[[], Any]:
    TRAINING[describe.__name__] = describe
    return describe


def feeds(program: Program, seed: int) -> dict[str, Any]:
    """Numbers for what the program is fed: open sizes are 3, rows are of three sequences, integers are below 7."""
    rng = np.random.RandomState(seed)
    out: dict[str, Any] = {}
    for v in program.all_variables():
        if not v.need_check_feed:
            continue
        rows = sum(LENGTHS[0])
        dims = [d if isinstance(d, int) and d >= 0 else BATCH for d in v.packed_dims]
        if v.lod_level:
            dims[0] = rows
        of = v.spec.known_dtype
        numbers = rng.randint(0, 7, dims).astype(of.numpy_name) if of.is_integer else rng.uniform(-1, 1, dims).astype(of.numpy_name)
        out[v.name] = fs.LoDTensor(numbers, LENGTHS) if v.lod_level else numbers
    return out


def image(channels: int = 3, size: int = 16) -> Variable:
    return layer.data("image", shape=["batch", channels, size, size])


def label() -> Variable:
    return layer.data("label", shape=["batch", 1], dtype="int64")


def words(width: int = 8) -> Variable:
    return layer.embedding(layer.data("words", shape=["words"], dtype="int64", lod_level=1), [11, width])


def attention(x: Variable, heads: int, width: int) -> Variable:
    """Self-attention of ``[batch, time, width]``."""

    def apart(y: Variable) -> Variable:
        return layer.transpose(layer.reshape(y, [0, 0, heads, width // heads]), [0, 2, 1, 3])

    # what is added to all keys alike changes no weight: the gradient of such a bias is rounding alone, which Adam would make large
    query, key, value = (apart(layer.fc(x, width, flatten_last=1, bias=False)) for _ in range(3))
    weights = layer.softmax(layer.scale(layer.matmul(query, layer.transpose(key, [0, 1, 3, 2])), (width // heads) ** -0.5))
    return layer.fc(layer.reshape(layer.transpose(layer.matmul(weights, value), [0, 2, 1, 3]), [0, 0, width]), width, flatten_last=1)


def encoder(x: Variable, heads: int, width: int) -> Variable:
    x = layer.layer_norm(layer.add(x, attention(x, heads, width)), begin_norm_axis=2)
    inner = layer.fc(layer.fc(x, 2 * width, "gelu", flatten_last=1), width, flatten_last=1)
    return layer.layer_norm(layer.add(x, inner), begin_norm_axis=2)


def classified(logits: Variable) -> Variable:
    return layer.mean(layer.softmax_with_cross_entropy(logits, label()))


def projected(x: Variable, type: str, gates: int, hidden: int) -> Variable:
    """PaddlePaddle's own recurrent operators over ragged rows."""
    block = fs.default_main_program().global_block
    inputs = {"Input": layer.fc(x, gates * hidden), "Weight": layer.create_parameter([hidden, gates * hidden], fs.FP32)}
    inputs["Bias"] = layer.create_parameter([1, gates * hidden], fs.FP32, is_bias=True)
    made = block.apply(type, inputs, {"use_peepholes": False} if type == "lstm" else {})
    return next(v for v in (made if isinstance(made, (list, tuple)) else [made]) if v.op is not None and v.name in v.op.outputs["Hidden"])


# --- for use


@for_use
def convolutions_with_batch_norm() -> Outputs:
    x = image()
    for filters in (8, 12):
        x = layer.batch_norm(layer.conv2d(x, filters, 3, padding=1, bias=False), "relu")
        x = layer.pool2d(x, 2, "max", 2)
    return [layer.softmax(layer.fc(x, 5))]


@for_use
def residual_blocks() -> Outputs:
    x = layer.conv2d(image(), 8, 3, padding="SAME")
    for stride in (1, 2):
        inner = layer.batch_norm(layer.conv2d(x, 8, 3, stride, 1), "relu")
        inner = layer.batch_norm(layer.conv2d(inner, 8, 3, 1, 1))
        x = layer.relu(layer.add(x if stride == 1 else layer.conv2d(x, 8, 1, stride), inner))
    return [layer.fc(layer.adaptive_pool2d(x, 1, "avg"), 4), x]


@for_use
def depthwise_with_squeeze() -> Outputs:
    x = layer.conv2d(image(), 8, 3, 2, 1, activation="hard_swish")
    x = layer.relu6(layer.conv2d(x, 8, 3, 1, 1, groups=8))
    weight = layer.conv2d(layer.relu(layer.conv2d(layer.adaptive_pool2d(x, 1, "avg"), 2, 1)), 8, 1, activation="hard_sigmoid")
    return [layer.multiply(x, weight)]


@for_use
def upsampling() -> Outputs:
    x = layer.conv2d_transpose(image(4, 8), 6, kernel_size=3, stride=2, padding=1)
    x = layer.interpolate(layer.leaky_relu(layer.group_norm(x, 3)), scale=2, mode="bilinear")
    return [layer.sigmoid(layer.instance_norm(x)), layer.pixel_shuffle(layer.conv2d(x, 8, 1), 2)]


@for_use
def transformer_of_padded_words() -> Outputs:
    ids = layer.data("ids", shape=["batch", 6], dtype="int64")
    x = layer.embedding(ids, [11, 8])
    for _ in range(2):
        x = encoder(x, 2, 8)
    return [layer.fc(layer.reduce_mean(x, 1), 3), x]


@for_use
def ragged_text_by_lstm() -> Outputs:
    hidden = projected(words(), "lstm", 4, 5)
    return [layer.fc(layer.sequence_pool(hidden, "max"), 3, "softmax"), hidden]


@for_use
def ragged_text_by_gru() -> Outputs:
    hidden = projected(words(), "gru", 3, 5)
    return [layer.fc(layer.sequence_last_step(hidden), 3, "softmax"), layer.sequence_reverse(hidden)]


@for_use
def dense_lstm_in_both_directions() -> Outputs:
    x = layer.data("x", shape=["batch", 5, 4])
    out, (last, _) = layer.lstm(x, 6, num_layers=2, bidirectional=True)
    return [layer.fc(layer.reshape(out, [0, 60]), 3), last]


@for_use
def convolutions_of_sequences() -> Outputs:
    x = layer.sequence_conv(words(), 6, 3, activation="tanh")
    pooled = layer.concat([layer.sequence_pool(x, kind) for kind in ("average", "sqrt", "sum", "first")], 1)
    return [layer.fc(pooled, 2), layer.sequence_softmax(layer.fc(x, 1))]


@for_use
def a_while_loop() -> Outputs:
    x = layer.data("x", shape=["batch", 4])
    count = layer.fill_constant([1], "int64", 0)
    limit = layer.fill_constant([1], "int64", 4)

    def body(i: Variable, value: Variable) -> list[Variable]:
        return [layer.increment(i, 1, in_place=False), layer.tanh(layer.scale(value, 1.5, 0.1))]

    return layer.while_loop(lambda i, value: layer.less_than(i, limit), body, [count, x])


@for_use
def a_branch() -> Outputs:
    x = layer.data("x", shape=["batch", 4])
    positive = layer.greater_than(layer.reduce_sum(x), layer.fill_constant([], "float32", 0.0))
    return [layer.cond(positive, lambda: layer.fc(x, 3), lambda: layer.fc(layer.exp(x), 3))]


@for_use
def surgery() -> Outputs:
    x = layer.data("x", shape=["batch", 6, 4])
    first, second = layer.split(x, 2, 1)
    stacked = layer.stack([first, layer.flip(second, [2])], 1)
    values, places = layer.topk(layer.reshape(stacked, [0, 24]), 5)
    others = [layer.pad(first, [0, 0, 1, 2, 0, 1]), layer.cumsum(second, 1), layer.strided_slice(x, [1], [0], [6], [2])]
    return [values, places, *others, layer.squeeze(layer.unsqueeze(x, [1]), [1])]


# --- for training


@for_training
def perceptron_by_sgd() -> Variable:
    x = layer.data("x", shape=["batch", 6])
    loss = classified(layer.fc(layer.fc(x, 8, "relu"), 7))
    fs.optimizer.SGD(0.1).minimize(loss)
    return loss


@for_training
def convolutions_by_momentum() -> Variable:
    x = layer.batch_norm(layer.conv2d(image(3, 8), 4, 3, padding=1, bias=False), "relu")
    loss = classified(layer.fc(layer.pool2d(x, 2, "avg", 2), 7))
    fs.optimizer.Momentum(0.05, 0.9, weight_decay=fs.optimizer.L2Decay(1e-3)).minimize(loss)
    return loss


@for_training
def transformer_by_adam() -> Variable:
    ids = layer.data("ids", shape=["batch", 6], dtype="int64")
    loss = classified(layer.fc(layer.reduce_mean(encoder(layer.embedding(ids, [11, 8]), 2, 8), 1), 7))
    fs.optimizer.Adam(0.01).minimize(loss)
    return loss


@for_training
def ragged_text_by_adam() -> Variable:
    loss = classified(layer.fc(layer.sequence_pool(projected(words(), "gru", 3, 5), "max"), 7))
    fs.optimizer.Adam(0.01).minimize(loss)
    return loss


@for_training
def bag_of_sparse_rows_by_sgd() -> Variable:
    ids = layer.data("words", shape=["words"], dtype="int64", lod_level=1)
    loss = classified(layer.fc(layer.sequence_pool(layer.embedding(ids, [11, 8], is_sparse=True), "sum"), 7))
    fs.optimizer.SGD(0.1).minimize(loss)
    return loss


@for_training
def clipped_regression_by_rmsprop() -> Variable:
    x, y = layer.data("x", shape=["batch", 6]), layer.data("y", shape=["batch", 1])
    loss = layer.mean(layer.square_error_cost(layer.fc(layer.fc(x, 8, "tanh"), 1), y))
    fs.optimizer.RMSProp(0.01, clip=fs.optimizer.ClipByGlobalNorm(0.5)).minimize(loss)
    return loss


@for_training
def decayed_rate_by_adamw() -> Variable:
    x = layer.data("x", shape=["batch", 6])
    loss = classified(layer.layer_norm(layer.fc(x, 7, "gelu")))
    fs.optimizer.AdamW(fs.optimizer.CosineDecay(0.01, 2, 5), weight_decay=0.02).minimize(loss)
    return loss


@for_training
def tagger_by_adagrad() -> Variable:
    tags = layer.data("tags", shape=["words", 1], dtype="int64", lod_level=1)
    loss = layer.mean(layer.linear_chain_crf(layer.fc(words(), 7), tags))
    fs.optimizer.Adagrad(0.05).minimize(loss)
    return loss


@for_training
def gathered_by_adam() -> Any:
    h = layer.fc(layer.data("x", shape=["batch", 6]), 8, "tanh")
    loss = classified(layer.fc(h, 7))
    optimizer = fs.optimizer.Adam(fs.optimizer.cosine(0.05, steps=4, warmup=1), weight_decay=0.01, clip=fs.optimizer.ClipByGlobalNorm(0.5))
    made = fs.training_program(loss, optimizer, accumulate=2)
    return made.program, made.startup, made.loss


@for_training
def scaled_and_gathered_by_momentum() -> Any:
    loss = classified(layer.fc(layer.data("x", shape=["batch", 6]), 7))
    fs.optimizer.Momentum(0.1).minimize(loss)
    main, startup = fs.passes.scale_loss(fs.default_main_program(), loss.name, fs.default_startup_program())
    main, startup = fs.passes.accumulate(main, 2, startup)
    return main, startup, main.var(loss.name)


def described(describe: Callable[[], Any]) -> tuple[Program, Program, Any]:
    """The main and the startup program, and what the function gives; or what it has made of these, with a third."""
    main, startup = Program(), Program()
    with fs.program_guard(main, startup):
        made = describe()
    return made if isinstance(made, tuple) else (main, startup, made)
