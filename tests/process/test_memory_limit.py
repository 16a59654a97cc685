"""An executor with a limit refuses what would need more, before it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory.plan import Plan
from foreshape.machine.process.machine_memory import found_limits
from foreshape.machine.process.this_run import MemoryLimit


def network() -> Any:
    x, y = layer.data("x", shape=["batch", 32]), layer.data("y", shape=["batch", 1])
    loss = layer.mean(layer.square_error_cost(layer.fc(layer.fc(x, 64, "tanh"), 1), y))
    fs.optimizer.SGD(0.1).minimize(loss)
    return loss


def feed(batch: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((batch, 32), np.float32), "y": np.ones((batch, 1), np.float32)}


def test_a_feed_past_the_limit_changes_nothing_and_is_told_with_what_it_would_be_for() -> None:
    loss = network()
    main = fs.default_main_program()
    limit = fs.plan(main, loss).peak(batch=100)
    executor, scope = fs.Executor(seed=1, memory_limit=limit), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    before = {n: scope.get(n).copy() for n in scope.names()}
    with pytest.raises(fs.MemoryPlanError, match=r"this run needs .* for batch = 101, and it may take .* \(the executor's memory_limit\):") as caught:
        executor.run(main, feed(101), loss, scope)
    words = str(caught.value)
    for what, size in fs.plan(main, loss).breakdown(batch=101).items():
        assert (what in words) == (size > 0)
    assert "the largest is fc_0.tmp_" in words and "test_memory_limit.py:" in words and words.endswith("\n    the largest that fits is batch = 100")
    assert before.keys() == set(scope.names()) and all(np.array_equal(before[n], scope.get(n)) for n in before)
    assert np.isfinite(executor.run(main, feed(100), loss, scope)[0]).all()
    assert not all(np.array_equal(before[n], scope.get(n)) for n in before)
    with pytest.raises(fs.MemoryPlanError, match="batch = 101"):
        executor.run(main, feed(101), loss, scope)
    free = fs.Executor(memory_limit="none")
    assert free.memory_limit is None and np.isfinite(free.run(main, feed(101), loss, scope)[0]).all()


def test_the_plan_is_made_once_and_asked_once_for_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = network()
    made: list[Any] = []
    asked: list[int] = []
    make, peak = Plan.__init__, Plan.peak
    monkeypatch.setattr(Plan, "__init__", lambda self, *a, **k: (made.append(a), make(self, *a, **k))[1])
    monkeypatch.setattr(Plan, "peak", lambda self, **k: (asked.append(k["batch"]), peak(self, **k))[1] if k else peak(self))
    executor, scope = fs.Executor(memory_limit="1 GiB"), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    made.clear()
    for batch in (8, 8, 16, 8, 16, 16):
        executor.run(fs.default_main_program(), feed(batch), loss, scope)
    assert len(made) == 1 and asked == [8, 16]


@pytest.mark.parametrize("check", [False, True])
def test_ragged_programs_and_loops_are_limited_too(check: bool) -> None:
    words = layer.data("words", shape=[-1, 4], lod_level=1)
    pooled = layer.sequence_pool(words, "sum")
    i = layer.fill_constant([1], "int64", 0)
    _, out = layer.while_loop(lambda i, h: layer.less_than(i, layer.fill_constant([1], "int64", 3)), lambda i, h: [i + 1, h * 2.0], [i, pooled])
    program = fs.default_main_program()
    plan = Plan(program, [out.name], fs.Executor(check=check).step(program, out).live)  # op by op it takes more
    rest = dict.fromkeys(plan.symbols - {"words", "batch"}, 1)
    executor = fs.Executor(check=check, memory_limit=plan.peak(words=9, batch=3, **rest))
    many, few = (fs.LoDTensor(np.ones((sum(lengths), 4), np.float32), [lengths]) for lengths in ([5, 0, 5], [4, 0, 5]))
    np.testing.assert_array_equal(executor.run(feed={"words": few}, fetch=out)[0], np.repeat([[32], [0], [40]], 4, axis=1))
    with pytest.raises(fs.MemoryPlanError, match=r"words = 10"):
        executor.run(feed={"words": many}, fetch=out)


def test_the_longest_sequence_counts_where_it_is_padded_to() -> None:
    words = layer.data("words", shape=[-1, 4], lod_level=1)
    padded, _ = layer.sequence_pad(words, layer.fill_constant([1], "float32", 0.0))
    out = layer.reduce_sum(layer.exp(padded))
    plan = fs.plan(fs.default_main_program(), out)
    assert plan.symbols == {"words", "batch", "words.longest"}
    executor = fs.Executor(memory_limit=plan.peak(words=40, batch=5, **{"words.longest": 10}))
    even, uneven = (fs.LoDTensor(np.ones((40, 4), np.float32), [lengths]) for lengths in ([10, 10, 10, 5, 5], [30, 4, 3, 2, 1]))
    for _ in range(2):
        assert executor.run(feed={"words": even}, fetch=out)[0] > 0
        with pytest.raises(fs.MemoryPlanError, match=r"words\.longest = 30"):
            executor.run(feed={"words": uneven}, fetch=out)


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(fs.MemoryPlanError, match="a number of bytes is"):
        fs.Executor(memory_limit="much")


def test_without_a_word_the_limit_is_a_share_of_what_there_is() -> None:
    usual = fs.Executor().memory_limit
    assert usual is not None and 2**28 < usual < 2**45
    assert fs.Executor(memory_limit="none").memory_limit is None


def test_what_attributes_and_fed_numbers_ask_for_is_refused_before_it_is_allocated() -> None:
    """2^31 - 1 as a count: in an attribute, in a fed number that makes a size, and in what no size tells."""
    many = 2**31 - 1
    block = fs.default_main_program().global_block
    start, stop = layer.data("start", shape=[1]), layer.data("stop", shape=[1])
    number = layer.data("number", shape=[1], dtype="int32")
    fed = block.apply("linspace", {"Start": start, "Stop": stop, "Num": number})
    described = layer.fill_constant([many, 64], "float32", 1.0)
    executor = fs.Executor()
    feed = {"start": np.zeros(1, "float32"), "stop": np.ones(1, "float32"), "number": np.array([5], "int32")}
    np.testing.assert_allclose(executor.run(feed=feed, fetch=fed)[0], np.linspace(0, 1, 5))
    executor = fs.Executor(memory_limit="1 GiB")
    with pytest.raises(fs.MemoryPlanError, match=r"linspace: a result of f32\[2147483647\] takes 8,589,934,588 bytes"):
        executor.run(feed=feed | {"number": np.array([many], "int32")}, fetch=fed)
    with pytest.raises(fs.MemoryPlanError, match=r"this run needs 512 GiB, and it may take .* \(90% of the .*, as no memory_limit is set\):"):
        fs.Executor().run(fetch=described)
    executor = fs.Executor()
    with pytest.raises(fs.MemoryPlanError, match=r"takes 8,589,934,588 bytes, and this run may take 64 \(half a word\)"):
        executor._limit = MemoryLimit(64, "half a word")  # pyright: ignore[reportPrivateUsage]
        executor.run(feed=feed | {"number": np.array([many], "int32")}, fetch=fed)


def test_the_largest_sizes_that_fit_are_told_as_the_program_takes_them() -> None:
    x = layer.data("x", shape=["batch", 8])
    rows = layer.reshape(x, [-1, 16, 8])  # a multiple of 16
    out = layer.exp(layer.matmul(rows, rows, transpose_y=True))
    with pytest.raises(fs.MemoryPlanError, match=r"\n    the largest that fits is batch = 96$"):
        fs.Executor(memory_limit=10_000).run(feed={"x": np.ones((1600, 8), "float32")}, fetch=out)
    with fs.program():
        x = layer.data("x", shape=["batch", "words", 1])
        out = layer.reduce_sum(layer.matmul(x, x, transpose_y=True))
        feed = {"x": np.ones((10, 200_000, 1), "float32")}
        with pytest.raises(fs.MemoryPlanError, match=r"this run needs 1\.5 TiB for batch = 10, words = 200,000, and it may take (.*)\n") as caught:
            fs.Executor().run(feed=feed, fetch=out)
        words = str(caught.value)
        assert "as no memory_limit is set" in words and "the executor's" not in words
        length = int(words.rpartition("words = ")[2].partition(", the other")[0].replace(",", ""))
        plan, limit = fs.plan(fs.default_main_program(), out), fs.Executor().memory_limit
        assert limit is not None
        assert plan.peak(batch=10, words=length) <= limit < plan.peak(batch=10, words=length + 1)
        with pytest.raises(fs.MemoryPlanError, match=r"\n    it does not fit even with batch = 1 or words = 1$"):
            fs.Executor(memory_limit=40).run(feed=feed, fetch=out)
    with fs.program():  # as of a file: each input has a symbol of its own
        a, b = layer.data("a", shape=[-1, 8]), layer.data("b", shape=[-1, 8])
        out = layer.reduce_sum(layer.exp(a)) + layer.reduce_sum(layer.exp(b))
        with pytest.raises(fs.MemoryPlanError, match=r"\n    the largest that fits is batch = [0-9]+$"):
            fs.Executor(memory_limit=4_000).run(feed={"a": np.ones((99, 8), "float32"), "b": np.ones((99, 8), "float32")}, fetch=out)


@pytest.mark.parametrize(("files", "want"), [
    ({"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
      "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "4096\n"}, 4096),
    ({"proc/self/cgroup": "5:memory:/job\n", "proc/self/mountinfo": "1 2 0:3 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
      "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "8192\n"}, 8192),
    ({"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
      "sys/fs/cgroup/a/memory.max": "much\n"}, None),
])  # fmt: skip
def test_the_limit_of_a_container_counts(files: dict[str, str], want: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    limits = list(found_limits(tmp_path))
    assert any(one.size == want and "control group in" in one.words for one in limits) if want is not None else all(one.size > 2**28 for one in limits)
