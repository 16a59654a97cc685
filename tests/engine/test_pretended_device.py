"""The pretended device, which other tests count on: what it counts, and what it refuses; and the workloads on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.pretended_device import PretendedTensor, pretended

import foreshape as fs
from foreshape import layer
from foreshape.apps.serving.served_model import Opening
from foreshape.apps.serving.served_network import Networks
from foreshape.apps.serving.server_limits import ServerLimits
from foreshape.runtime.engine.fetched import HostCopies
from foreshape.runtime.feeding.feed_ahead import CopyStream

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import launches
import with_foreshape
import workloads

GOLDEN = Path(__file__).parent / "launches.json"
GPU = torch.device("cuda", 0)
long = pytest.mark.long


def test_tensors_say_that_they_are_there_and_compute_the_same_numbers() -> None:
    with pretended() as device:
        x = torch.arange(6.0, device=GPU).reshape(2, 3)
        y = x @ torch.tensor([[1.0], [2.0], [3.0]], device=GPU)
        assert isinstance(y, PretendedTensor) and y.device == GPU and y.is_cuda and not y.is_cpu
        assert y.tolist() == [[8.0], [26.0]]
        with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
            y.numpy()
        assert device.name == "cuda:0"


def test_launches_are_kernels_alone() -> None:
    with pretended() as device:
        x = torch.empty(4, 6, device=GPU)
        assert device.counts().launches == 0
        x.zero_()
        _ = x.view(24)[3:].reshape(3, 7).t(), x[1], x.detach(), x.contiguous(), torch.empty_like(x), x.to(GPU), x.float()
        assert device.counts().launches == 1
        x.add_(1).t().clone()
        torch.relu(x)
        assert device.counts().launches == 4 and device.launches_by_name["relu"] == 1
        torch.relu(x[:0])
        assert device.counts().launches == 4
        assert device.counts().syncs == device.counts().copies_in == 0


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(), lambda x: float(x[0]), lambda x: bool(x.any()), lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.tolist(),
        lambda x: x.nonzero(), lambda x: x[x > 1], lambda x: torch.equal(x, x), lambda x: torch.empty(4).copy_(x),
        lambda x: torch.repeat_interleave(x.long()), lambda x: torch.unique(x),
    ],
)  # fmt: skip
def test_a_wait_is_counted_with_its_place(wait: object) -> None:
    with pretended() as device:
        x = torch.arange(4.0, device=GPU)
        x.add_(1)
        assert device.counts().syncs == 0
        wait(x)  # pyright: ignore
        assert device.counts().syncs == 1
        (place,) = device.syncs_by_place
        assert "test_pretended_device.py" in place or "functional.py" in place


def test_copies_are_counted_with_their_bytes() -> None:
    with pretended() as device:
        x = torch.ones(3, 5).to(GPU)
        x.copy_(torch.zeros(3, 5))
        assert (device.counts().copies_in, device.counts().bytes_in, device.counts().blocking) == (2, 120, 2)
        x.cpu()
        assert (device.counts().copies_out, device.counts().bytes_out) == (1, 60)
        device.reset()
        assert device.counts().copies_in == 0


def test_live_bytes_are_those_of_memory_in_blocks() -> None:
    with pretended() as device:
        x = torch.empty(129, device=GPU)
        view = x[1:]
        assert device.counts().live == 1024
        y = x + 1
        assert device.counts().live == 2048
        del x, y
        assert device.counts().live == 1024
        del view
        assert device.counts().live == 0 and device.counts().peak == 2048


def test_tensors_of_both_sides_do_not_mix_but_for_numbers() -> None:
    with pretended():
        x, host = torch.ones(3, device=GPU), torch.ones(3)
        for mixed in (lambda: x + host, lambda: host.add_(x), lambda: torch.cat([x, host]), lambda: x.index_select(0, torch.tensor([0])), lambda: x.dot(host)):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        assert (x + torch.tensor(2.0)).tolist() == [3.0, 3.0, 3.0]
        with pytest.raises(RuntimeError, match="same device"):
            torch.ones(()).add_(x[0])


WORKLOADS = [
    "W1", "W2", pytest.param("W3", marks=long), pytest.param("W4", marks=long), "W5", "W5b", pytest.param("W6", marks=long), pytest.param("W8", marks=long),
    pytest.param("W9", marks=long), "TOWERS", pytest.param("UNET", marks=long),
]  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_trains_there_as_on_the_processor_with_as_many_launches(name: str, update: bool) -> None:
    counted = launches.counted(name)
    on_the_processor = with_foreshape.Training(workloads.load(name, launches.HEIGHT))
    np.testing.assert_allclose(counted.losses, [on_the_processor(i) for i in range(3)], rtol=2e-5)
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    c = counted.counts
    if name not in ("W4", "W5b"):  # the plan of a recurrence is a bound; that of sparse rows is of the processor's merging
        assert 0.975 < counted.planned / c.peak < 1.02
    counts = {"launches": c.launches, "syncs": c.syncs, "copies in": c.copies_in, "waiting copies in": c.blocking, "copies out": c.copies_out}
    if update:
        GOLDEN.write_text(json.dumps(golden | {name: counts}, indent=1, sort_keys=True) + "\n")
        return
    assert counts == golden[name], f"pytest {Path(__file__).name} -m '' --update writes it; it waits at {dict(counted.syncs_by_place)}"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_training_waits_once_a_step_and_stops_before_a_wrong_update(precision: str) -> None:
    x, y = np.random.RandomState(0).standard_normal((64, 20)).astype("float32"), np.arange(64)[:, None] % 4

    def losses(executor: fs.Executor, epochs: int, scope: fs.Scope) -> list[float]:
        return fs.train(loss, {"x": x, "y": y}, optimizer=fs.optimizer.Adam(0.01), epochs=epochs, precision=precision, executor=executor, scope=scope,
                        progress=False, batch_size=16).losses  # fmt: skip

    with fs.program() as described:
        hidden = layer.fc(layer.data("x", ["batch", 20]), 16, "relu")
        loss = layer.mean(layer.softmax_with_cross_entropy(layer.fc(hidden, 4), layer.data("y", ["batch", 1], dtype="int64")))
    scopes = [fs.Scope(), fs.Scope()]
    for scope in scopes:
        fs.Executor(seed=1).run(described.startup, scope=scope)
    parameters = scopes[0].names()
    expected = losses(fs.Executor(seed=1), 3, scopes[0])
    with pretended() as device:
        executor, counts = fs.Executor(device.name, seed=1), []
        seen = losses(executor, 3, scopes[1])
        np.testing.assert_allclose(seen, expected, rtol=1e-4)
        for epochs in (2, 4):  # what a run reads besides its steps is the same
            device.reset()
            losses(executor, epochs, scopes[1])
            counts.append(device.counts().syncs)
        assert counts[1] - counts[0] == 2 * (4 + 1), device.syncs_by_place  # and once an epoch for the rate that is noted
        weights = {name: scopes[1].get(name) for name in parameters}
        y[:] = 4
        with pytest.raises(fs.errors.ExecutionError, match=r"a class number must be in \[0, 4\); seen 4 to 4"):
            losses(executor, 1, scopes[1])
        changed = [name for name, value in weights.items() if not np.array_equal(scopes[1].get(name), value)]
        assert not changed


@pytest.mark.long
def test_a_language_model_writes_the_same_texts_there() -> None:
    folder = Path(__file__).parents[1] / "generation" / "data" / "llama"
    texts = json.loads((folder / "texts.json").read_text())
    with pretended() as device:
        model = fs.language_model(folder, users=4, device=device.name)
        assert fs.generate(model, texts["prompts"], 16) == texts["greedy"]
        assert fs.generate(model, texts["prompts"], 16, beams=3, length_penalty=0.7) == texts["three beams, length penalty 0.7"]
        assert all(t.is_cuda for t in model._kept) and device.counts().launches > 0


def test_a_profile_waits_for_each_call() -> None:
    with fs.program() as described:
        out = layer.fc(layer.fc(layer.data("x", ["batch", 20]), 16, "relu"), 4)
    scope = fs.Scope()
    fs.Executor(seed=1).run(described.startup, scope=scope)
    with pretended() as device:
        measured = fs.profile(described, {"x": np.ones((3, 20), "float32")}, [out], scope, executor=fs.Executor(device.name), runs=3)
        assert [c.what for c in measured.calls if "fc" in c.what] and device.counts().syncs > 3 * len(measured.calls)


def test_a_saved_network_is_served_there(tmp_path: Path) -> None:
    with fs.program() as described:
        out = layer.fc(layer.data("x", ["batch", 20]), 4)
    scope, executor, x = fs.Scope(), fs.Executor(seed=1), np.ones((3, 20), "float32")
    executor.run(described.startup, scope=scope)
    fs.save_inference_model(tmp_path / "net", ["x"], [out], executor, described, scope)
    expected = next(iter(fs.Predictor(tmp_path / "net").run({"x": x}).values()))
    with pretended() as device:
        served = Networks(device=device.name).opened(str(tmp_path / "net"), Opening(1 << 30, ServerLimits(), lambda _: None))
        seen = next(iter(served._predictor.run({"x": x}).values()))
        np.testing.assert_allclose(seen, expected, rtol=1e-5)
        assert device.counts().launches > 0


def test_a_device_that_is_pretended_is_gone_afterwards() -> None:
    with pretended() as device:
        fs.Executor(device.name)
    with pytest.raises(fs.errors.ExecutionError, match="there is no device 'cuda:0' here"):
        fs.Executor("cuda:0")


@pytest.mark.parametrize("lengths", [([3, 1, 5], [3, 1, 5]), ([2, 4], [5, 1]), ([40, 33, 64], [40, 33, 64])])
@pytest.mark.parametrize("causal", [False, True])
def test_ragged_attention_is_one_kernel_there_and_one_for_its_gradient(lengths, causal) -> None:
    draw = np.random.default_rng(0)
    with fs.program_guard(main := fs.Program(), fs.Program()):
        q, k, v, factor = (layer.data(name, ["rows" if name in "qf" else "keys", 32], lod_level=1) for name in "qkvf")
        out = layer.sequence_attention(q, k, v, heads=4, causal=causal)
        gradients = [g for _, g in fs.append_backward(layer.reduce_sum(out * factor), ["q", "k", "v"])]
    rows = {name: lengths[name in "kv"] for name in "qkvf"}
    feed = {name: fs.LoDTensor(draw.standard_normal((sum(n), 32)).astype("float32"), [n]) for name, n in rows.items()}
    expected = fs.Executor().run(main, feed, [out, *gradients])
    with pretended() as device:
        results = fs.Executor(device.name).run(main, feed, [out, *gradients])
        assert device.launches_by_name["_efficient_attention_forward"] == device.launches_by_name["_efficient_attention_backward"] == 1
    for x, y in zip(results, expected, strict=True):
        np.testing.assert_allclose(x.data, y.data, rtol=1e-5, atol=1e-5)


def test_ragged_attention_of_empty_sequences_is_taken_apart_there() -> None:
    with fs.program_guard(main := fs.Program(), fs.Program()):
        q, k = (layer.data(name, [f"rows of {name}", 32], lod_level=1) for name in "qk")
        out = layer.sequence_attention(q, k, k, heads=4)
    draw = np.random.default_rng(0)
    feed = {name: fs.LoDTensor(draw.standard_normal((sum(n), 32)).astype("float32"), [n]) for name, n in {"q": [2, 3, 0], "k": [4, 0, 1]}.items()}
    with pretended() as device:
        (result,) = fs.Executor(device.name).run(main, feed, [out])
        assert device.launches_by_name["_efficient_attention_forward"] == 1  # of the only sequence with rows and keys
    np.testing.assert_allclose(result.data, fs.Executor().run(main, feed, [out])[0].data, rtol=1e-5, atol=1e-6)


def test_what_another_stream_writes_is_refused_until_it_is_waited_for() -> None:
    with pretended():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.ones(3).pin_memory().to(GPU, non_blocking=True)
            copied = stream.record_event()
        with pytest.raises(AssertionError, match="may be writing"):
            x.add_(1)
        torch.cuda.current_stream().wait_event(copied)
        x.add_(1)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_training_copies_each_batch_of_arrays_before_the_step_of_the_one_before(ragged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    begin, run = CopyStream.begin, fs.Executor.run_step
    monkeypatch.setattr(CopyStream, "begin", lambda *a: (order.append("copy"), begin(*a))[1])
    monkeypatch.setattr(fs.Executor, "run_step", lambda *a: (order.append("step"), run(*a))[1])
    x = layer.data("x", ["rows", 3], lod_level=int(ragged))
    words = layer.sequence_pool(x, "sum") if ragged else x
    loss = layer.mean(layer.square(layer.fc(words, 1)))
    rows = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
    data = {"x": fs.LoDTensor(rows, [[4] * 6]) if ragged else rows[:6]}
    expected = fs.train(loss, data, batch_size=2, executor=fs.Executor(seed=1), scope=fs.Scope(), progress=False).losses
    assert "copy" not in order
    order.clear()
    with pretended() as device:
        seen = fs.train(loss, data, batch_size=2, executor=fs.Executor(device.name, seed=1), scope=fs.Scope(), progress=False).losses
    np.testing.assert_allclose(seen, expected, rtol=1e-5)
    assert order[-6:] == ["copy", "copy", "step", "copy", "step", "step"]


def test_a_batch_that_is_refused_ahead_is_refused_at_its_own_step() -> None:
    x = layer.data("x", ["batch", 3])
    loss = layer.mean(layer.square(layer.fc(x, 1)))
    with pretended() as device:
        executor, scope = fs.Executor(device.name), fs.Scope()
        executor.run(fs.default_startup_program(), scope=scope)
        ahead = executor.feed_ahead(loss.block.program, [loss.name], {"x": np.zeros((2, 4), "float32")})
        with pytest.raises(fs.errors.FeedError, match="x"):
            executor.run(loss.block.program, ahead, [loss], scope)


def test_an_executor_of_each_device_takes_the_values_of_a_scope_in_turn() -> None:
    y = layer.fc(layer.data("x", ["batch", 3]), 2)
    main, scope, feed = fs.default_main_program(), fs.Scope(), {"x": np.ones((2, 3), "float32")}
    fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
    with pretended() as device:
        here, there = fs.Executor(), fs.Executor(device.name)
        results = [executor.run(main, feed, [y], scope)[0] for executor in (here, there, here, there)]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-6)


def test_results_that_are_read_later_wait_for_nothing_before() -> None:
    ids = layer.data("ids", ["batch", 1], dtype="int64")
    y = layer.embedding(ids, [8, 4], weight="table")
    loss = layer.mean(layer.square(y))
    fs.optimizer.SGD(0.5).minimize(loss)
    main, startup, feed = fs.default_main_program(), fs.default_startup_program(), {"ids": np.array([[1], [7]])}

    def losses(executor: fs.Executor, later: bool) -> list[Any]:
        scope = fs.Scope()
        executor.run(startup, scope=scope)
        scope.set("table", np.arange(32, dtype="float32").reshape(8, 4))
        return [executor.run(main, feed, [loss, y], scope, later=later) for _ in range(4)]

    expected = losses(fs.Executor(), False)
    np.testing.assert_array_equal([float(value[0]) for value in losses(fs.Executor(), True)], [float(value[0]) for value in expected])
    with pretended() as device:
        executor = fs.Executor(device.name)
        losses(executor, True)
        device.reset()
        seen = losses(executor, True)
        assert all("scope.py" in place for place in device.syncs_by_place)  # which moves the learning rate to the host, once
        np.testing.assert_allclose([np.asarray(v[1]) for v in seen], [v[1] for v in expected], rtol=1e-6)
        assert float(seen[3][0]) == pytest.approx(float(expected[3][0])) and seen[0][0].get().shape == expected[0][0].shape
        executor.run(startup)
        (wrong,) = executor.run(main, {"ids": np.array([[1], [8]])}, [loss], later=True)
        with pytest.raises(fs.errors.ExecutionError, match=r"\[0, 8\)"):
            float(wrong)


@pytest.mark.parametrize("graphs", [False, True])
def test_each_value_that_is_read_later_has_the_error_of_its_own_run_at_each_reading(graphs: bool) -> None:
    ids = layer.data("ids", ["batch", 1], dtype="int64")
    loss = layer.mean(layer.embedding(ids, [8, 4], weight="table"))
    fs.optimizer.SGD(0.0).minimize(loss)
    main = fs.default_main_program()

    def outcome(value: Any) -> Any:
        try:
            return np.asarray(value).item()
        except fs.errors.ExecutionError as error:
            return str(error).splitlines()[0]

    with pretended() as device:
        executor = fs.Executor(device.name, graphs=graphs)
        executor.run(fs.default_startup_program())
        fs.default_scope().set("table", np.arange(32, dtype="float32").reshape(8, 4))

        def run(number: int, *, later: bool = True, fetch: tuple[Any, ...] = (loss, ids)) -> list[Any]:
            return executor.run(main, {"ids": np.array([[number]])}, fetch, later=later)

        numbers = [1, 1, 1, 99, 2, 77, 3]
        values = [run(n) for n in numbers]
        expected = [4 * n + 1.5 if n < 8 else f"must be in [0, 8), the rows of W; seen {n} to {n}" for n in numbers]
        for at in (5, 0, 3, 6, 3, 5, 1, 2, 4, 4, 3, 0):
            seen, want = outcome(values[at][0]), expected[at]
            assert seen == want or (isinstance(want, str) and want in seen), (at, seen)
            assert outcome(values[at][1]) == (seen if isinstance(want, str) else numbers[at])
        run(99)
        assert outcome(run(2, later=False)[0]) == expected[4]  # its values are gone, and their error with them
        device.reset()
        before = device.counts().live
        for _ in range(200):
            run(1)
        assert device.counts().live - before < 4096
        run(77, fetch=(), later=True)  # nobody can read it: the next value tells of it
        assert "seen 77 to 77" in outcome(run(1)[0])
        assert outcome(run(1)[0]) == expected[0]
        with pytest.raises(fs.errors.ExecutionError, match="seen 99 to 99"):
            for number in [99, *[1] * 100]:
                run(number, fetch=(), later=False)


def test_another_thread_may_run_the_step_while_a_value_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = layer.data("ids", ["batch", 1], dtype="int64")
    loss = layer.mean(layer.embedding(ids, [8, 4]))
    main, between = fs.default_main_program(), list[Any]()
    with pretended() as device:
        executor = fs.Executor(device.name)
        executor.run(fs.default_startup_program())
        (good,) = executor.run(main, {"ids": np.array([[1]])}, [loss], later=True)
        wait = HostCopies.wait

        def slow(copies: HostCopies) -> None:
            monkeypatch.setattr(HostCopies, "wait", wait)
            between.extend(executor.run(main, {"ids": np.array([[99]])}, [loss], later=True))
            wait(copies)

        monkeypatch.setattr(HostCopies, "wait", slow)
        assert np.isfinite(float(good))
        for _ in range(2):
            with pytest.raises(fs.errors.ExecutionError, match="seen 99 to 99"):
                float(between[0])
        assert float(good) == float(executor.run(main, {"ids": np.array([[1]])}, [loss])[0])
