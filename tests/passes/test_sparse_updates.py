"""Sparse gradients that are accumulated, or of a scaled loss: equal to one step with the whole batch, planned, saved, and left out whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.measured import allocator_events, fed_bytes, most_and_last

import foreshape as fs
from foreshape import layer, optimizer
from foreshape.apps.training import Checkpoint
from foreshape.core.values.rows import Rows
from foreshape.errors import ExecutionError
from foreshape.transforms.passes import accumulate, scale_loss

DRAW = np.random.default_rng(0)
DATA = {"ids": DRAW.integers(0, 40, (48, 5)), "label": DRAW.integers(0, 2, (48, 1)).astype("float32")}
HEIGHT = 60
NAMES = ("bags", "words", "w", "b")
MAKES: dict[str, Callable[[], optimizer.Optimizer]] = {
    "sgd": lambda: optimizer.SGD(0.5),
    "adagrad": lambda: optimizer.Adagrad(0.1),
    "lazy adam": lambda: optimizer.Adam(0.05, lazy_mode=True),
    "exact adam": lambda: optimizer.Adam(0.05),
    "clipped": lambda: optimizer.Adam(0.05, lazy_mode=True, clip=optimizer.ClipByGlobalNorm(0.05), weight_decay=0.01),
}


def describe() -> fs.Variable:
    ids, label = layer.data("ids", ["batch", 5], "int64"), layer.data("label", ["batch", 1])
    bags = layer.embedding_bag(ids, size=[HEIGHT, 4], weight="bags")
    words = layer.embedding(ids, size=(HEIGHT, 4), weight="words", is_sparse=True)
    out = layer.fc(bags * layer.reduce_mean(words, [1]) + bags, 1, weight="w", bias="b")
    return layer.mean(layer.sigmoid_cross_entropy_with_logits(out, label))


def trained(make: Callable[[], optimizer.Optimizer], batch: int, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    scope = fs.Scope()
    with fs.program():
        fs.train(describe(), DATA, optimizer=make(), epochs=2, batch_size=batch, shuffle=False, scope=scope, seed=1, progress=False, **options)
    return {name: scope.get(name) for name in NAMES}


@pytest.mark.quick_cases("lazy adam", "clipped")
@pytest.mark.parametrize("name", MAKES)
def test_parts_of_a_batch_move_the_rows_that_the_whole_would(name: str) -> None:
    whole = trained(MAKES[name], 16)
    parts, scaled = trained(MAKES[name], 4, accumulate=4), trained(MAKES[name], 16, precision="fp16")
    both = trained(MAKES[name], 4, accumulate=4, precision="fp16")
    begun = trained(lambda: optimizer.SGD(0.0), 16)
    for of in NAMES:
        np.testing.assert_allclose(parts[of], whole[of], rtol=1e-4, atol=1e-6, err_msg=of)
        for half in (scaled[of], both[of]):
            np.testing.assert_allclose(half, whole[of], rtol=1e-3, atol=1e-3, err_msg=of)
    for of in ("bags", "words"):  # a row that was never looked up stays
        assert not np.array_equal(whole[of][:40], begun[of][:40])
        np.testing.assert_array_equal(parts[of][40:], begun[of][40:])


def programs(batches: int = 4, scaled: bool = False) -> tuple[fs.Program, fs.Program, str]:
    loss = describe()
    optimizer.Adam(0.05, lazy_mode=True).minimize(loss)
    main, startup = fs.default_main_program(), fs.default_startup_program()
    if scaled:
        main, startup = scale_loss(main, loss.name, startup)
    return (*accumulate(main, batches, startup), loss.name)


def batch(at: int, size: int = 4) -> dict[str, Any]:
    return {n: v[at * size : (at + 1) * size] for n, v in DATA.items()}


def test_between_updates_the_rows_wait_each_once_and_in_one_place() -> None:
    main, startup, loss = programs()
    assert str(fs.Program.parse(str(main))) == str(main)
    assert str(main.global_block.var("words_accumulated_0")).startswith("words_accumulated_0: rows f32[60, 4]")
    executor, scope = fs.Executor(seed=1), fs.Scope()
    executor.run(startup, scope=scope)
    held: Any = scope.tensor("words_accumulated_0")
    before, version = scope.get("words"), None
    for at in range(3):
        executor.run(main, batch(at), [loss], scope)
        assert version in (None, scope.version)
        version = scope.version
        assert held.rows.tolist() == sorted(np.unique(DATA["ids"][: 4 * (at + 1)]))
    np.testing.assert_array_equal(scope.get("words"), before)
    executor.run(main, batch(3), [loss], scope)
    assert not len(held.rows) and scope.tensor("words_accumulated_0") is held and scope.version == version
    moved = np.flatnonzero((scope.get("words") != before).any(1))
    assert moved.tolist() == sorted(np.unique(DATA["ids"][:16]))
    executor.run(startup, scope=scope)  # which begins anew
    assert isinstance(scope.get("words_accumulated_0"), fs.SelectedRows)


def test_an_update_that_is_not_finite_leaves_the_rows() -> None:
    main, startup, loss = programs(1, True)
    executor, scope = fs.Executor(seed=1), fs.Scope()
    executor.run(startup, scope=scope)
    scope.set("w", np.full((4, 1), 1e5, "float32"))
    before = {n: scope.get(n) for n in NAMES}
    with torch.inference_mode():
        scope.tensor("loss_scaling_0").fill_(3e38)
    executor.run(main, batch(0), [loss], scope)
    for name, value in before.items():
        np.testing.assert_array_equal(scope.get(name), value)
    assert scope.get("loss_scaling_0") < 2e38
    scope.set("w", np.ones((4, 1), "float32"))
    scope.set("loss_scaling_0", np.array([1024.0], "float32"))
    (rows,) = executor.run(main, batch(0), ["words@GRAD"], scope)
    assert len(rows.rows) == 20 and np.abs(rows.values).max() < 1.0  # the gradient, not its multiple
    assert not np.array_equal(scope.get("words"), before["words"])


def test_a_run_that_ends_between_two_updates_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    def run(epochs: int, path: Path) -> tuple[fs.Scope, list[float]]:
        scope = fs.Scope()
        with fs.program():
            history = fs.train(describe(), DATA, optimizer=optimizer.Adam(0.05, lazy_mode=True), epochs=epochs, batch_size=16, accumulate=2, scope=scope,
                               seed=1, progress=False, checkpoint=Checkpoint(path))  # fmt: skip
        return scope, history.losses

    straight, losses = run(3, tmp_path / "straight")
    stopped, _ = run(1, tmp_path / "stopped")
    assert len(stopped.get("words_accumulated_0").rows)  # three batches: one is in the sum
    resumed, again = run(3, tmp_path / "stopped")
    assert losses == again
    for name in straight.names():
        a, b = straight.get(name), resumed.get(name)
        for x, y in zip(*(((v.rows, v.values) if isinstance(v, fs.SelectedRows) else (v,)) for v in (a, b)), strict=True):
            np.testing.assert_array_equal(x, y, err_msg=name)


def test_the_plan_counts_the_rows_that_wait() -> None:
    ids = layer.data("ids", ["batch", 8], "int64")
    loss = layer.mean(layer.embedding(ids, size=(100_000, 64), weight="table", is_sparse=True))
    optimizer.SGD(0.1).minimize(loss)
    main, startup = accumulate(fs.default_main_program(), 4, fs.default_startup_program())
    plan, plain = fs.plan(main, [loss.name]), fs.plan(fs.default_main_program(), [loss])
    row = 64 * 4 + 8
    more = [plan.peak(batch=n) - plain.peak(batch=n) for n in (64, 128)]
    assert 4 * 8 * 64 * row < more[1] - more[0] < 24 * 8 * 64 * row, more
    assert plan.peak(batch=10**6) - plan.peak(batch=10**6 - 1) < 100 * 8 * row  # no more rows wait than the table has
    executor, scope = fs.Executor(seed=1), fs.Scope()
    executor.run(startup, scope=scope)
    feeds = [{"ids": DRAW.integers(0, 100_000, (256, 8))} for _ in range(8)]
    for feed in feeds[:4]:
        executor.run(main, feed, [loss.name], scope)
    for feed in feeds[4:]:
        held = sum(v.values.nbytes + v.rows.nbytes if isinstance(v, fs.SelectedRows) else v.nbytes for v in map(scope.get, scope.names()))
        most, _ = most_and_last(allocator_events(lambda f=feed: executor.run(main, f, [loss.name], scope))[0])
        assert held + fed_bytes(feed) + most <= plan.peak(batch=256)


def test_a_scope_takes_rows_for_rows_alone() -> None:
    main, startup, loss = programs()
    executor, scope = fs.Executor(seed=1), fs.Scope()
    executor.run(startup, scope=scope)
    scope.set("words_accumulated_0", fs.SelectedRows([1, 5], np.ones((2, 4), "float32"), HEIGHT))
    assert isinstance(scope.tensor("words_accumulated_0"), Rows)
    executor.run(main, batch(0), [loss], scope)
    scope.set("words_accumulated_0", np.zeros((HEIGHT, 4), "float32"))
    with pytest.raises(ExecutionError, match=r"words_accumulated_0 must be rows f32\[60, 4\]; the scope holds float32\[60, 4\]"):
        executor.run(main, batch(0), [loss], scope)
