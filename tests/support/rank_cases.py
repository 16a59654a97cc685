"""Networks that are trained on one rank and on several, in the same way; run as a process, one per rank.

``python rank_cases.py OUT STRATEGY CASE...`` trains each case with the ranks that the environment names, in fp32, some again in fp32, and in fp64, and each
rank writes losses, figures and values into ``OUT.RANK.npz``. Names begin with the case, and ``again`` or ``fp64`` where it is such a run.
With the word ``every`` instead of cases all are run, each again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import callbacks, layer

Case = Callable[[np.random.RandomState, str], tuple[Any, Any, Any, dict[str, Any]]]
"""Numbers, and the element type of the network -> cost, data, optimizer, and what else `train` is given."""


def plain(r: np.random.RandomState, of: str) -> Any:
    x, y = layer.data("x", input_size=12, dtype=of), layer.data("y", dims=1, data_type=fs.INT64)
    hidden = layer.fc(x, output_size=9, activation=layer.relu)
    predicted = layer.fc(hidden, output_size=5, activation=layer.softmax)
    cost = layer.cross_entropy(predicted, y)
    data = {"x": r.rand(53, 12), "y": r.randint(0, 5, (53, 1))}
    return cost, data, fs.optimizer.Adam(0.01), {"batch_size": 10, "metrics": {"accuracy": layer.accuracy(predicted, y)}, "validation": data}


def wide(r: np.random.RandomState, of: str) -> Any:
    """Gradients that are larger than a bucket, clip by the norm of all, weight decay."""
    x, y = layer.data("x", input_size=300, dtype=of), layer.data("y", dims=1, data_type=fs.INT64)
    hidden = layer.fc(layer.fc(x, output_size=300, activation=layer.tanh), output_size=300, activation=layer.tanh)
    cost = layer.cross_entropy(layer.fc(hidden, output_size=5, activation=layer.softmax), y)
    optimizer = fs.optimizer.Momentum(0.05, 0.9, weight_decay=1e-3, clip=fs.optimizer.ClipByGlobalNorm(0.5))
    return cost, {"x": r.rand(40, 300), "y": r.randint(0, 5, (40, 1))}, optimizer, {"batch_size": 8}


def tiny_batches(r: np.random.RandomState, of: str) -> Any:
    """A last batch of one example, so that some ranks have none."""
    x, y = layer.data("x", input_size=4, dtype=of), layer.data("y", input_size=1, dtype=of)
    cost = layer.square(layer.fc(x, output_size=1) - y)
    return cost, {"x": r.rand(9, 4), "y": r.rand(9, 1)}, fs.optimizer.SGD(0.1), {"batch_size": 4}


def texts(r: np.random.RandomState, of: str) -> Any:
    """Sequences of uneven lengths: an embedding, an LSTM, a mean over words."""
    words, label = layer.data("words", shape=["words"], lod_level=1, dtype=fs.INT64), layer.data("label", dims=1, data_type=fs.INT64)
    embedded = layer.embedding(words, size=[30, 8], dtype=of)
    state, _ = layer.lstm(embedded, 6)
    pooled = layer.sequence_pool(state, "max")
    cost = layer.cross_entropy(layer.fc(pooled, output_size=3, activation=layer.softmax), label)
    lengths = r.randint(1, 9, 22)
    rows = [r.randint(0, 30, n) for n in lengths]
    return cost, {"words": rows, "label": r.randint(0, 3, (22, 1))}, fs.optimizer.Adam(0.02), {"batch_size": 6}


def tagged(r: np.random.RandomState, of: str) -> Any:
    """A mean over the words of all texts, of which ranks have unevenly many."""
    words, label = layer.data("words", shape=["words"], lod_level=1, dtype=fs.INT64), layer.data("label", shape=["words", 1], lod_level=1, dtype=fs.INT64)
    predicted = layer.fc(layer.embedding(words, size=[30, 8], dtype=of), output_size=4, activation=layer.softmax)
    cost = layer.cross_entropy(predicted, label)
    lengths = r.randint(1, 9, 14)
    data = {"words": [r.randint(0, 30, n) for n in lengths], "label": [r.randint(0, 4, (n, 1)) for n in lengths]}
    return cost, data, fs.optimizer.SGD(0.3), {"batch_size": 5}


def _bags(r: np.random.RandomState, of: str, optimizer: Any) -> Any:
    words, label = layer.data("words", shape=["words"], lod_level=1, dtype=fs.INT64), layer.data("label", dims=1, data_type=fs.INT64)
    pooled = layer.sequence_pool(layer.embedding(words, size=[200, 6], is_sparse=True, dtype=of), "sum")
    cost = layer.cross_entropy(layer.fc(pooled, output_size=3, activation=layer.softmax), label)
    rows = [r.randint(0, 200, n) for n in r.randint(1, 12, 25)]
    return cost, {"words": rows, "label": r.randint(0, 3, (25, 1))}, optimizer, {"batch_size": 7}


def sparse_sgd(r: np.random.RandomState, of: str) -> Any:
    return _bags(r, of, fs.optimizer.SGD(0.1))


def sparse_lazy_adam(r: np.random.RandomState, of: str) -> Any:
    return _bags(r, of, fs.optimizer.Adam(0.02, lazy_mode=True))


def sparse_exact_adam(r: np.random.RandomState, of: str) -> Any:
    return _bags(r, of, fs.optimizer.Adam(0.02))


def images(r: np.random.RandomState, of: str) -> Any:
    """A convolutional network without statistics over the batch."""
    x, y = layer.data("x", shape=[-1, 1, 8, 8], dtype=of), layer.data("y", dims=1, data_type=fs.INT64)
    hidden = layer.pool2d(layer.conv2d(x, 4, 3, activation=layer.relu), 2, "max", 2)
    cost = layer.cross_entropy(layer.fc(hidden, output_size=5, activation=layer.softmax), y)
    return cost, {"x": r.rand(21, 1, 8, 8), "y": r.randint(0, 5, (21, 1))}, fs.optimizer.Adagrad(0.05), {"batch_size": 6}


def normalised(r: np.random.RandomState, of: str) -> Any:
    """A convolutional network with batch normalisation; the last batch leaves some ranks without an example."""
    x, y = layer.data("x", shape=[-1, 2, 8, 8], dtype=of), layer.data("y", dims=1, data_type=fs.INT64)
    hidden = layer.batch_norm(layer.conv2d(x, 4, 3, bias=False), activation=layer.relu)
    hidden = layer.batch_norm(layer.conv2d(hidden, 6, 3, stride=2, bias=False), activation=layer.relu)
    cost = layer.cross_entropy(layer.fc(hidden, output_size=5, activation=layer.softmax), y)
    data = {"x": r.rand(19, 2, 8, 8) + 3, "y": r.randint(0, 5, (19, 1))}
    return cost, data, fs.optimizer.Momentum(0.05, 0.9), {"batch_size": 6, "validation": data}


apart = normalised
"""The same, where each rank normalises by its own part of the batch."""


def _transformer(r: np.random.RandomState, of: str, dropped: float) -> Any:
    width, heads = 16, 2
    h, y = layer.data("x", shape=["batch", "time", width], dtype=of), layer.data("y", dims=1, data_type=fs.INT64)

    def dense(x: Any, size: int, activation: Any = None, bias: Any = None) -> Any:
        return layer.fc(x, size, activation=activation, flatten_last=1, bias=bias)

    def added(x: Any, part: Any) -> Any:
        return layer.layer_norm(x + (layer.dropout(part, dropped) if dropped else part), begin_norm_axis=2)

    for _ in range(2):
        # without biases: that of a key moves all scores alike, so that its gradient is rounding, which Adam would divide by its own size
        q, k, v = (layer.transpose(layer.reshape(dense(h, width, bias=False), [0, 0, heads, width // heads]), [0, 2, 1, 3]) for _ in range(3))
        mixed = layer.matmul(layer.softmax(layer.matmul(q * (width // heads) ** -0.5, k, transpose_y=True)), v)
        h = added(h, dense(layer.reshape(layer.transpose(mixed, [0, 2, 1, 3]), [0, 0, width]), width))
        h = added(h, dense(dense(h, 32, "relu"), width))
    cost = layer.softmax_with_cross_entropy(layer.fc(layer.reduce_mean(h, 1), 4), y)
    return cost, {"x": r.randn(18, 5, width), "y": r.randint(0, 4, (18, 1))}, fs.optimizer.AdamW(0.003), {"batch_size": 5}


def transformer(r: np.random.RandomState, of: str) -> Any:
    return _transformer(r, of, 0.0)


def dropped(r: np.random.RandomState, of: str) -> Any:
    """Each rank draws numbers of its own."""
    return _transformer(r, of, 0.2)


def repeated(r: np.random.RandomState, of: str) -> Any:
    """A loop in the network, whose gradient is a loop."""
    x, y = layer.data("x", input_size=6, dtype=of), layer.data("y", input_size=1, dtype=of)
    weight = layer.create_parameter((6, 6), {"fp32": fs.FP32, "fp64": fs.FP64}[of], prefix="repeated")
    begin, rounds = layer.fill_constant([1], "int64", 0), layer.fill_constant([1], "int64", 3)
    _, h = layer.while_loop(lambda i, h: layer.less_than(i, rounds), lambda i, h: [i + 1, layer.tanh(layer.matmul(h, weight))], [begin, x])
    return layer.square(layer.fc(h, output_size=1) - y), {"x": r.rand(17, 6), "y": r.rand(17, 1)}, fs.optimizer.RMSProp(0.01), {"batch_size": 6}


def _perceptron(r: np.random.RandomState, of: str, sizes: tuple[int, ...], batch: int, rate: float) -> Any:
    h, y = layer.data("x", input_size=sizes[0], dtype=of), layer.data("y", dims=1, data_type=fs.INT64)
    for size in sizes[1:-1]:
        h = layer.fc(h, size, activation="relu")
    cost = layer.softmax_with_cross_entropy(layer.fc(h, sizes[-1]), y)
    return cost, {"x": r.randn(2 * batch, sizes[0]), "y": r.randint(0, sizes[-1], (2 * batch, 1))}, fs.optimizer.SGD(rate), {"batch_size": batch}


def w1(r: np.random.RandomState, of: str) -> Any:
    """The benchmarks' W1 in its own sizes."""
    return _perceptron(r, of, (64, 64, 64, 10), 32, 0.1)


def w2(r: np.random.RandomState, of: str) -> Any:
    """The benchmarks' W2 in its own sizes."""
    return _perceptron(r, of, (784, 1024, 1024, 10), 128, 0.05)


CASES: dict[str, Case] = {
    "plain": plain, "wide": wide, "tiny_batches": tiny_batches, "texts": texts, "tagged": tagged, "images": images, "normalised": normalised,
    "apart": apart, "sparse_sgd": sparse_sgd, "sparse_lazy_adam": sparse_lazy_adam, "sparse_exact_adam": sparse_exact_adam,
    "transformer": transformer, "dropped": dropped, "repeated": repeated, "w1": w1, "w2": w2,
}  # fmt: skip


def divided(r: np.random.RandomState, of: str) -> Any:
    """Columns, rows, columns again that are put together for the loss; a layer that is whole. The last batch has one example."""
    x, y = layer.data("x", input_size=7, dtype=of), layer.data("y", dims=1, data_type=fs.INT64)
    hidden = layer.fc(x, output_size=12, activation=layer.tanh, split="columns")
    hidden = layer.fc(hidden, output_size=6, activation=layer.tanh, split="rows")
    hidden = layer.fc(layer.fc(hidden, output_size=5), output_size=8, activation=layer.relu, split="columns")
    predicted = layer.fc(layer.layer_norm(hidden), output_size=4, activation=layer.softmax, split="columns")
    cost = layer.cross_entropy(predicted, y)
    data = {"x": r.rand(31, 7), "y": r.randint(0, 4, (31, 1))}
    optimizer = fs.optimizer.Adam(0.01, clip=fs.optimizer.ClipByGlobalNorm(0.5))
    return cost, data, optimizer, {"batch_size": 6, "metrics": {"accuracy": layer.accuracy(predicted, y)}, "validation": data}


def own_rows(r: np.random.RandomState, of: str) -> Any:
    """Rows of a weight for an input that is whole, columns after columns, a factor for each column, ragged rows, weight decay."""
    words, label = layer.data("words", shape=["words"], lod_level=1, dtype=fs.INT64), layer.data("label", dims=1, data_type=fs.INT64)
    embedded = layer.embedding(words, size=[30, 8], dtype=of, is_sparse=True)
    hidden = layer.fc(embedded, 12, "tanh", split="rows")
    kind = {"fp32": fs.FP32, "fp64": fs.FP64}[of]
    factor = layer.create_parameter((12,), kind, prefix="factor", initializer=layer.Uniform(0.5, 1.0))
    hidden = layer.fc(layer.fc(hidden, 12, split="columns") * factor, 4, "tanh", split="columns")
    one = layer.create_parameter((1,), kind, prefix="one", initializer=layer.Constant(0.9))
    pooled = layer.sequence_pool(hidden * one, "sum")
    cost = layer.cross_entropy(layer.fc(pooled, output_size=3, activation=layer.softmax), label)
    rows = [r.randint(0, 30, n) for n in r.randint(1, 9, 22)]
    return cost, {"words": rows, "label": r.randint(0, 3, (22, 1))}, fs.optimizer.Momentum(0.05, 0.9, weight_decay=1e-3), {"batch_size": 6}


def heads(r: np.random.RandomState, of: str, dropped: float = 0.0) -> Any:
    """An attention whose heads are divided, and the layers after it."""
    width, count = 16, 4
    x, y = layer.data("x", shape=["batch", "time", width], dtype=of), layer.data("y", dims=1, data_type=fs.INT64)

    def dense(x: Any, size: int, split: str, activation: Any = None, bias: Any = None) -> Any:
        return layer.fc(x, size, activation=activation, flatten_last=1, bias=bias, split=split)

    h = x
    for _ in range(2):
        q, k, v = (layer.transpose(layer.reshape(dense(h, width, "columns", bias=False), [0, 0, count, width // count]), [0, 2, 1, 3]) for _ in range(3))
        mixed = layer.matmul(layer.softmax(layer.matmul(q * 0.5, k, transpose_y=True)), v)
        h = layer.layer_norm(h + dense(layer.reshape(layer.transpose(mixed, [0, 2, 1, 3]), [0, 0, width]), width, "rows"), begin_norm_axis=2)
        inner = dense(h, 32, "columns", "relu")
        h = h + dense(layer.dropout(inner, dropped) if dropped else inner, width, "rows")
        h = layer.layer_norm(layer.dropout(h, dropped) if dropped else h, begin_norm_axis=2)
    cost = layer.softmax_with_cross_entropy(layer.fc(layer.reduce_mean(h, 1), 4), y)
    return cost, {"x": r.randn(18, 5, width), "y": r.randint(0, 4, (18, 1))}, fs.optimizer.AdamW(0.003), {"batch_size": 5}


def dropped_heads(r: np.random.RandomState, of: str) -> Any:
    """Dropout of what each rank has a part of, and of what is alike on the ranks of a group."""
    return heads(r, of, 0.2)


SPLIT: dict[str, Case] = {"divided": divided, "own_rows": own_rows, "heads": heads, "dropped_heads": dropped_heads}
"""Cases with layers that can be divided."""
SETTINGS: dict[str, dict[str, Any]] = {"normalised": {"synchronise_batch_norm": True}, "wide": {"bucket": 400_000}}
"""What the strategy is given beside."""


def called_back(r: np.random.RandomState, of: str) -> Any:
    """Callbacks that change what is trained, and how long."""
    cost, data, _, settings = plain(r, of)
    called = [
        callbacks.ReduceOnPlateau("loss", factor=0.5, patience=0, min_change=1e9), callbacks.MovingAverage(0.8),
        callbacks.EarlyStopping("validation loss", patience=0, restore_best=True, min_change=1e9),
    ]  # fmt: skip
    return cost, data, fs.optimizer.SGD(0.1), settings | {"callbacks": called}


def gathered(r: np.random.RandomState, of: str) -> Any:
    """Gradients of three batches in one update, which do not end with the epochs; a schedule over the run, clip by the norm of all."""
    cost, data, _, settings = plain(r, of)
    optimizer = fs.optimizer.Adam(fs.optimizer.cosine(0.02, warmup=0.5), weight_decay=1e-3, clip=fs.optimizer.ClipByGlobalNorm(0.1))
    return cost, data, optimizer, settings | {"batch_size": 7, "accumulate": 3}


def half(r: np.random.RandomState, of: str) -> Any:
    """Products in fp16 with a loss that is scaled, and two batches in one update."""
    cost, data, _, settings = plain(r, of)
    return cost, data, fs.optimizer.SGD(0.1), settings | {"accumulate": 2, "precision": "fp16"}


WHOLE: dict[str, Case] = {"called_back": called_back, "gathered": gathered, "half": half}
"""Cases whose values no strategy may divide, or that say how a strategy is to go on."""


def gathered_parts(r: np.random.RandomState, of: str) -> Any:
    """Gradients of four batches in one update, of layers that are divided and of such as are not, and nothing between sums and updates."""
    cost, data, _, settings = divided(r, of)
    return cost, data, fs.optimizer.Adam(0.01), settings | {"accumulate": 4}


def gathered_and_clipped(r: np.random.RandomState, of: str) -> Any:
    """The same with the norm of all gradients and weight decay between sums and updates."""
    cost, data, _, settings = divided(r, of)
    optimizer = fs.optimizer.Momentum(0.05, 0.9, weight_decay=1e-3, clip=fs.optimizer.ClipByGlobalNorm(0.1))
    return cost, data, optimizer, settings | {"accumulate": 2}


def gathered_rows(r: np.random.RandomState, of: str) -> Any:
    """Sparse gradients of three batches in one update, by the update that is of rows alone; the last groups wait in sums of rows."""
    cost, data, optimizer, settings = _bags(r, of, fs.optimizer.Adam(0.02, lazy_mode=True))
    return cost, data, optimizer, settings | {"accumulate": 3}


def gathered_exact_rows(r: np.random.RandomState, of: str) -> Any:
    """The same with an update of every row."""
    cost, data, optimizer, settings = _bags(r, of, fs.optimizer.Adam(0.02))
    return cost, data, optimizer, settings | {"accumulate": 3}


def scaled(r: np.random.RandomState, of: str) -> Any:
    """Products in fp16; the gradient of one weight is too large at first, so that updates are left out while the scale falls; two batches in one
    update."""
    cost, data, _, settings = divided(r, of)
    large = layer.fc(cost.block.program.global_block.var("x") * 10.0, output_size=1, bias=False)
    return layer.mean(cost) + layer.mean(large), data, fs.optimizer.Momentum(1e-4, 0.9), settings | {"accumulate": 2, "precision": "fp16"}


def wider(r: np.random.RandomState, of: str) -> Any:
    """What "brain" is without bf16."""
    cost, data, _, settings = divided(r, of)
    return cost, data, fs.optimizer.SGD(0.1), settings


def brain(r: np.random.RandomState, of: str) -> Any:
    """Products in bf16."""
    cost, data, optimizer, settings = wider(r, of)
    return cost, data, optimizer, settings | {"precision": "bf16"}


GATHERED: dict[str, Case] = {"gathered_parts": gathered_parts, "gathered_and_clipped": gathered_and_clipped}
LOWERED: dict[str, Case] = {"scaled": scaled, "brain": brain}
ROWS: dict[str, Case] = {"gathered_rows": gathered_rows, "gathered_exact_rows": gathered_exact_rows}
EVERY: dict[str, Case] = CASES | SPLIT | WHOLE | GATHERED | ROWS | LOWERED | {"wider": wider}


UNEQUAL = ("apart", "dropped", "dropped_heads", "half", *LOWERED)
"""Cases that are not the same on another number of ranks: statistics of parts of a batch, random numbers, and sums in 16 bits."""


STRATEGIES: dict[str, Callable[..., Any]] = {
    "data_parallel": fs.data_parallel,
    "shard_optimizer": fs.shard_optimizer,
    "shard_parameters": fs.shard_parameters,
    "split_tables": fs.split_tables,
    "split_tables and shard_optimizer": lambda **settings: fs.split_tables(fs.shard_optimizer(**settings)),
    "split_tables and shard_parameters": lambda **settings: fs.split_tables(fs.shard_parameters(**settings)),
    "split_layers": fs.split_layers,
    "split_layers_2": lambda **settings: fs.split_layers(degree=2, **settings),
    "split_layers_2_tables": lambda **settings: fs.split_layers(fs.split_tables(**settings), degree=2),
    "split_layers_2_optimizer": lambda **settings: fs.split_layers(fs.shard_optimizer(**settings), degree=2),
    "split_layers_2_parameters": lambda **settings: fs.split_layers(fs.shard_parameters(**settings), degree=2),
    "split_layers_2_all": lambda **settings: fs.split_layers(fs.split_tables(fs.shard_parameters(**settings)), degree=2),
}
"""Ways to divide a training; those of layers divide only what layers say."""


REPEATED = ("texts", "sparse_lazy_adam", "dropped", "normalised", "dropped_heads")
"""Cases that are run again unless ``every`` one is."""


def run(
    name: str, of: str = "fp32", strategy: str = "data_parallel", epochs: int = 2, checkpoint: str | None = None, device: str = "cpu",
) -> dict[str, Any]:  # fmt: skip
    """Train one case with the ranks that there are; the losses, the figures and the values."""
    first = _values(name, "fp32")
    main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
    with fs.program_guard(main, startup):
        cost, data, optimizer, settings = EVERY[name](np.random.RandomState(5), of)
        fs.Executor().run(startup, scope=scope)
        for n, value in first.items():  # the same numbers in either element type
            scope.set(n, value.astype(scope.get(n).dtype))
        given = {n: cast(value, of) for n, value in data.items()}
        if "validation" in settings:
            settings["validation"] = given
        ranks = STRATEGIES[strategy](patience=60, **SETTINGS.get(name, {}))
        history = fs.train(cost, given, optimizer=optimizer, epochs=epochs, progress=False, ranks=ranks, scope=scope, startup=startup,
                           checkpoint=checkpoint, executor=fs.Executor(device, seed=0), **settings)  # fmt: skip
    out: dict[str, Any] = {}
    for n in scope.names():
        held = scope.get(n)
        out |= {f"value/{n}": held} if isinstance(held, np.ndarray) else {f"value/{n}/rows": held.rows, f"value/{n}/values": held.values}
    out["losses"] = np.array(history.losses)
    for key in history.epochs[0]:
        if key != "seconds":
            out[f"figure/{key}"] = np.array([row[key] for row in history.epochs])
    return out


@cache
def _values(name: str, of: str) -> dict[str, Any]:
    """The first values of a case."""
    main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
    startup.random_seed = 7
    with fs.program_guard(main, startup):
        EVERY[name](np.random.RandomState(5), of)
    fs.Executor().run(startup, scope=scope)
    return {n: scope.get(n) for n in scope.names()}


def cast(value: Any, of: str) -> Any:
    return value.astype({"fp32": np.float32, "fp64": np.float64}[of]) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


def main() -> None:
    out, strategy, *names = sys.argv[1:]
    every = names == ["every"]
    if every:
        names = list(CASES)
    found: dict[str, Any] = {}
    for name in names or CASES:
        for which, of in (("", "fp32"), ("again/", "fp32"), ("fp64/", "fp64")):
            if (which == "fp64/" and name in UNEQUAL) or (which == "again/" and not (every or name in REPEATED)):
                continue
            found |= {f"{name}/{which}{key}": value for key, value in run(name, of, strategy).items()}
    np.savez(f"{out}.{os.environ.get('RANK', '0')}", **found)


if __name__ == "__main__":
    main()
