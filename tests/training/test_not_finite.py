"""A batch whose loss is no finite number changes nothing, whatever the network, the optimizer and the way of training, and is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.some import each_of_product

import foreshape as fs
from foreshape import layer
from foreshape.language.program import Role
from foreshape.optimizer import SGD, Adam, ClipByGlobalNorm, ExponentialDecay, Momentum

BATCHES, BATCH, BAD = 6, 5, 4
draw = np.random.RandomState(0)
DATA: dict[str, Any] = {
    "x": draw.rand(BATCHES * BATCH, 6).astype("float32"), "id": draw.randint(0, 9, (BATCHES * BATCH, 1)), "y": draw.rand(BATCHES * BATCH, 1).astype("float32")
}  # fmt: skip


def dense(x: Any, id: Any) -> Any:
    return layer.fc(layer.fc(x, 8, "relu"), 1)


def normalized(x: Any, id: Any) -> Any:
    return layer.fc(layer.batch_norm(layer.fc(x, 8)), 1)


def sparse(x: Any, id: Any) -> Any:
    return layer.fc(layer.concat([x, layer.reshape(layer.embedding(id, [9, 4], is_sparse=True), [-1, 4])], 1), 1)


def counted(x: Any, id: Any) -> Any:
    """With a value of its own that each step changes."""
    seen = layer.create_parameter([6], "fp32", "seen", initializer=layer.Constant(0.0), trainable=False)
    layer.assign(seen * 0.5 + layer.reduce_sum(x, 0), seen)
    return layer.fc(x + seen, 1)


def mean(loss: Any) -> Any:
    return layer.mean(loss)


def minimized(loss: Any) -> Any:
    """A program that has its updates already, of a mean that is not the cost that is trained."""
    Momentum(0.1, 0.9).minimize(layer.mean(loss))
    return loss


CASES: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], Callable[[], Any], dict[str, Any]]] = {
    "descent that is fused": (dense, mean, lambda: SGD(0.1), {}),
    "a row for each example": (dense, lambda loss: loss, lambda: Adam(0.1), {}),
    "clipped, decayed, scheduled": (dense, mean, lambda: Momentum(ExponentialDecay(0.1, 2, 0.5), 0.9, weight_decay=0.01, clip=ClipByGlobalNorm(1.0)), {}),
    "averages of a normalisation": (normalized, mean, lambda: Adam(0.1), {}),
    "sparse rows": (sparse, mean, lambda: Adam(0.1), {}),
    "a value that is kept": (counted, mean, lambda: SGD(0.1), {}),
    "gathered over two": (normalized, mean, lambda: Adam(ExponentialDecay(0.1, 1, 0.5)), {"accumulate": 2}),
    "gathered over three": (sparse, mean, lambda: SGD(0.1), {"accumulate": 3}),
    "in fp16": (normalized, mean, lambda: Adam(0.1), {"precision": "fp16"}),
    "in fp16, gathered": (dense, mean, lambda: Adam(0.1), {"precision": "fp16", "accumulate": 2}),
    "op by op": (dense, mean, lambda: Adam(0.1), {"check": True}),
    "updates of its own": (dense, minimized, lambda: None, {}),
    "updates of its own, gathered": (dense, minimized, lambda: None, {"accumulate": 2}),
}


class Copies(fs.callbacks.Callback):
    """What the scope holds after each step."""

    def on_batch_end(self, run: Any) -> None:
        self.values = {n: run.scope.get(n) for n in run.scope.names()}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, fs.SelectedRows):
        return np.array_equal(a.rows, b.rows) and np.array_equal(a.values, b.values)
    return a.tobytes() == b.tobytes()


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize(("case", "bad"), each_of_product(3, CASES, (np.nan, np.inf)))
def test_the_scope_is_as_it_was_and_the_batch_is_named(case: str, bad: float) -> None:
    network, cost, optimizer, options = CASES[case]
    with fs.program():
        x, id, y = layer.data("x", 6), layer.data("id", 1, dtype="int64"), layer.data("y", 1)
        loss = cost(layer.square(network(x, id) - y))
    scope, copies = fs.Scope(), Copies()
    data = {n: v.copy() for n, v in DATA.items()}
    data["x"][BATCH * (BAD - 1) + 2, 3] = bad
    given: dict[str, Any] = {"optimizer": optimizer(), "scope": scope, "batch_size": BATCH, "shuffle": False, "progress": False, **options}
    with pytest.raises(fs.ExecutionError) as caught:
        fs.train(loss, data, callbacks=[copies], **given)
    words = str(caught.value)
    if "check" in options:
        assert "x (fed)" in words and caught.value.__notes__ == ["in step 4 (epoch 1, batch 4)"]
    else:
        assert "at step 4 (epoch 1, batch 4); check=True" in words and "not finite of what was fed: 1 of x; parameters and the optimizer's state" in words
    after = {n: scope.get(n) for n in scope.names()}
    assert after.keys() == copies.values.keys()
    assert [n for n in after if not same(after[n], copies.values[n])] == []
    assert len(fs.train(loss, DATA, **given).losses) == BATCHES, "and it can go on"


def test_a_network_that_diverges_stops_before_its_weights_are_lost() -> None:
    with fs.program():
        loss = layer.mean(layer.square(dense(layer.data("x", 6), None) - layer.data("y", 1)))
    scope = fs.Scope()
    with pytest.raises(fs.ExecutionError, match=r"is (inf|nan) at step \d+"):
        fs.train(loss, {n: DATA[n] for n in "xy"}, optimizer=SGD(1e6), epochs=99, batch_size=BATCH, scope=scope, progress=False)
    assert np.isfinite(scope.get("fc_0.w_0")).all()


def test_who_runs_steps_by_hand_gets_what_the_loss_is() -> None:
    with fs.program():
        loss = layer.mean(layer.square(dense(layer.data("x", 6), None) - layer.data("y", 1)))
    made, executor, scope = fs.training_program(loss, SGD(0.1)), fs.Executor(), fs.Scope()
    executor.run(made.startup, scope=scope)
    assert np.isnan(executor.run(made.program, {"x": DATA["x"] * np.nan, "y": DATA["y"]}, [made.loss], scope)[0])


@pytest.mark.parametrize("strategy", [fs.data_parallel, fs.shard_optimizer, fs.shard_parameters])
@pytest.mark.parametrize("network", [dense, sparse])
@pytest.mark.parametrize("clip", [None, ClipByGlobalNorm(1.0)])
def test_ranks_know_the_loss_of_all_before_they_update(network: Callable[..., Any], strategy: Any, clip: Any) -> None:
    with fs.program():
        x, id, y = layer.data("x", 6), layer.data("id", 1, dtype="int64"), layer.data("y", 1)
        loss = layer.mean(layer.square(network(x, id) - y))
    made = fs.training_program(loss, SGD(0.1, clip=clip))
    for_ranks = strategy().apply(made.program, made.loss, 2, made.startup)
    ops = for_ranks.program.global_block.ops
    told = max(at for at, op in enumerate(ops) if for_ranks.loss in op.output_names())
    assert told < min(at for at, op in enumerate(ops) if op.role & Role.OPTIMIZE)


@pytest.mark.parametrize(("optimizer", "words"), [
    (None, (r"trained by SGD\(learning_rate=0.01\), the default without optimizer=; if the loss grew before, scale the columns of x \(up to 5e\+04\), "
           r"y \(up to 1e\+05\) to a mean of 0 and a deviation of 1, or take a lower learning rate, or fs.optimizer.Adam\(0.001\); parameters")),
    (SGD(0.1), r"trained by SGD\(learning_rate=0.1\); if the loss grew before, scale the columns of x .*, or fs.optimizer.Adam\(0.001\); parameters"),
])  # fmt: skip
def test_a_network_that_diverges_on_raw_columns_says_by_which_optimizer_and_what_to_do(optimizer: Any, words: str) -> None:
    with fs.program():
        loss = layer.mean(layer.square(dense(layer.data("x", 6), None) - layer.data("y", 1)))
    x = np.linspace(0, 1, 600, dtype="float32").reshape(100, 6) * 50_000
    with pytest.raises(fs.ExecutionError, match=words):
        fs.train(loss, {"x": x, "y": 2 * x[:, -1:]}, optimizer=optimizer, epochs=9, batch_size=100, scope=fs.Scope(), progress=False)
