"""Losses that are means, quotients and other functions of sums over examples; run as a process, one per rank, they are trained over ranks.

``python mean_cases.py OUT NAME/ACCUMULATE...`` trains each in fp64 with batches that leave a rank without an example, so many in a group, and writes values
and figures into ``OUT.RANK.npz``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer, metrics

EXAMPLES = 21


def data(examples: int = EXAMPLES, of: str = "float64") -> dict[str, Any]:
    """Examples of which many count nothing, and texts of unequal lengths."""
    r = np.random.RandomState(1)
    lengths = r.randint(1, 9, examples)
    weight, label = (r.rand(examples, 1) * 3 * (r.rand(examples, 1) > 0.5)).astype(of), r.randint(0, 4, examples)
    label[r.rand(examples) < 0.5] = -100
    weight[:4], label[:4] = 0, -100
    weight[[4, -1]], label[[4, -1]] = 1.5, 2
    rows = int(lengths.sum())
    return {
        "x": r.randn(examples, 5).astype(of), "weight": weight, "label": label, "y": r.randn(examples, 1).astype(of),
        "text": fs.LoDTensor(r.randn(rows, 5).astype(of), [lengths]), "words": fs.LoDTensor(r.randn(rows, 1).astype(of), [lengths]),
    }  # fmt: skip


class Described:
    """A network of fp64 (or another element type), with all that losses are made of."""

    def __init__(self, of: str = "fp64") -> None:
        self.of = of
        self.x, self.weight, self.y = (layer.data(name, ["batch", width], of) for name, width in (("x", 5), ("weight", 1), ("y", 1)))
        self.label = layer.data("label", ["batch"], "int64")
        self.text, self.words = (layer.data(name, shape=["words", width], lod_level=1, dtype=of) for name, width in (("text", 5), ("words", 1)))
        hidden = layer.tanh(layer.fc(self.x, 4))
        self.scores, self.out = layer.fc(hidden, 4), layer.fc(hidden, 1)
        self.each = layer.square(self.out - self.y)
        self.told = layer.fc(layer.tanh(layer.fc(self.text, 4)), 1)
        self.counts = layer.cast(layer.not_equal(self.label, -100), of)

    def loss(self, name: str) -> Any:
        each, flat = self.each, layer.reshape(self.each, [-1])
        if name == "sum":
            return layer.reduce_sum(each)
        if name == "weighted":
            return layer.weighted_mean(each, self.weight)
        if name == "likelihood":
            return layer.nll_loss(layer.log_softmax(self.scores), self.label)
        if name == "masked":
            return layer.reduce_sum(flat * self.counts) / (layer.reduce_sum(self.counts) + 1e-6)
        if name == "mean by mean":
            return layer.mean(flat * self.counts) / layer.mean(self.counts)
        if name == "words":
            return layer.mean(layer.square(self.told - self.words))
        if name == "two":
            return layer.mean(each) * 2.0 + 0.5 * layer.mean(layer.square(self.scores))
        if name == "number and penalty":
            return 1.0 + layer.mean(each) + 0.1 * layer.reduce_sum(layer.square(self.x.block.program.global_block.var("fc_0.w_0")))
        if name == "divergence":
            return layer.kldiv_loss(layer.log_softmax(self.scores), layer.softmax(self.scores * 2.0), "batchmean")
        if name == "by its size":
            return layer.reduce_sum(each) / layer.cast(layer.shape(self.x)[0], self.of)
        if name == "mixed":
            return layer.mean(each) + layer.nll_loss(layer.log_softmax(self.scores), self.label)
        if name == "root":
            return layer.sqrt(layer.mean(each))
        assert name == "overlap"
        found = layer.sigmoid(self.out)
        return 1.0 - (layer.reduce_sum(found * self.weight) * 2.0 + 1.0) / (layer.reduce_sum(found) + layer.reduce_sum(self.weight) + 1.0)


ONE_WEIGHT = ("sum", "weighted", "likelihood", "masked", "mean by mean", "words", "two", "number and penalty", "divergence", "by its size")
"""Those whose batches count by one number, so that groups of batches are one large batch."""
OTHERS = ("mixed", "root", "overlap")


def train(name: str, batch_size: int, accumulate: int = 1, examples: int = EXAMPLES, epochs: int = 1, **options: Any) -> dict[str, Any]:
    """The losses, the figures and the values after training."""
    with fs.program():
        net = Described()
        loss, scope = net.loss(name), fs.Scope()
        fs.default_startup_program().random_seed = 3
        probabilities = layer.softmax(net.scores)
        f1 = metrics.F1(probabilities, net.label, ignore_index=-100)
        auc = metrics.AUC(layer.sigmoid(net.out), layer.cast(net.weight > 0.0, "int64"))
        history = fs.train(loss, data(examples), optimizer=fs.optimizer.SGD(0.1), epochs=epochs, batch_size=batch_size, accumulate=accumulate, shuffle=False,
                           progress=False, scope=scope, executor=fs.Executor(seed=0), validation=data(examples),
                           metrics={"f1": f1, "auc": auc, "loss again": loss}, **options)  # fmt: skip
    found = {n: scope.get(n) for n in scope.names() if n.startswith("fc_") and "accumulated" not in n}
    figures = {n: np.array(history.column(n)) for n in history.epochs[0] if n not in ("seconds", "learning rate")}
    return found | figures | {"losses": np.array(history.losses)}


def main() -> None:
    found: dict[str, Any] = {}
    for case in sys.argv[2:]:
        name, accumulate = case.split("/")
        made = train(name, 5, int(accumulate), epochs=2, ranks=fs.data_parallel(patience=60))
        found |= {f"{case}/{key}": value for key, value in made.items()}
    np.savez(f"{sys.argv[1]}.{os.environ.get('RANK', '0')}", **found)


if __name__ == "__main__":
    main()
