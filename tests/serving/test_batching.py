"""Requests that wait are joined into batches, and each gets its own results or its own error."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.interop.batch_layout import BatchLayout, round_up
from foreshape.interop.batch_queue import Batch, BatchQueue, BatchSize, BatchTimes, Expired, QueueFull
from foreshape.machine.kernels.onednn_ragged import FILLED


class Held:
    """A network whose first run waits until it is let go, so that the next requests wait together."""

    def __init__(self, model: fs.InferenceModel) -> None:
        self.model, self.feeds, self.fetches = model, model.feeds, model.fetches
        self.go, self.began, self.seen = threading.Event(), threading.Event(), list[Any]()

    def run(self, feed: Mapping[str, Any]) -> Any:
        self.began.set()
        assert self.go.wait(60)
        self.seen.append({n: v.shape for n, v in feed.items()})
        return self.model.run(feed)


def held_queue(path: Path, most: int = 64, **more: Any) -> tuple[Held, BatchQueue, fs.InferenceModel, list[Batch]]:
    model = fs.load_inference_model(path, scope=fs.Scope())
    held, told = Held(model), list[Batch]()
    return held, BatchQueue(held, BatchLayout.of_model(model), most, ran=told.append, **more), model, told


def answered(held: Held, queue: BatchQueue, feeds: Sequence[dict[str, Any]]) -> list[Any]:
    """The answers to feeds, of which the first one runs while the others wait."""
    answers = [queue.submit(feeds[0])]
    assert held.began.wait(60)
    answers += map(queue.submit, feeds[1:])
    held.go.set()
    return [answer.result(60) for answer in answers]


def test_waiting_images_are_one_batch_for_each_size(models: Path) -> None:
    held, queue, model, told = held_queue(models / "images", most=6)
    feeds = [{"image": np.random.default_rng(k).standard_normal((1 + k % 2, 3, 8, 8 if k != 4 else 16)).astype("float32")} for k in range(8)]
    for feed, found in zip(feeds, answered(held, queue, feeds), strict=True):
        want = model.run(feed)
        for name, value in found.items():
            np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6)
    sizes = [one["image"] for one in held.seen]
    assert sizes == [(1, 3, 8, 8), (6, 3, 8, 8), (1, 3, 8, 16), (4, 3, 8, 8)]
    queue.end()
    with pytest.raises(fs.ExecutionError, match="no more requests"):
        queue.submit(feeds[0])
    assert [(b.requests, b.examples) for b in told[:3]] == [(1, 1), (4, 6), (1, 1)]


@pytest.mark.parametrize("longest", [200, 600])
def test_ragged_texts_are_joined_without_padding(models: Path, longest: int) -> None:
    held, queue, model, _ = held_queue(models / "texts")
    draw = np.random.default_rng(3)
    lengths = [[5], [3, 0, 4], [], [17], [longest], [1, 1]]
    feeds = [{"words": fs.LoDTensor(draw.integers(0, 50, sum(one)), [one])} for one in lengths]
    for feed, found in zip(feeds, answered(held, queue, feeds), strict=True):
        want = model.run(feed)
        np.testing.assert_allclose(found["text"], want["text"], rtol=1e-5, atol=1e-6)
        assert found["rows"].sequence_lengths == want["rows"].sequence_lengths
        np.testing.assert_allclose(found["rows"].data, want["rows"].data, rtol=1e-5, atol=1e-6)
    rows = sum(map(sum, lengths[1:]))
    taken = rows if rows < FILLED else round_up(rows)  # kernels fill up a few rows themselves
    assert [one["words"] for one in held.seen] == [(5,), (taken,)] and taken < 1.13 * rows


def test_two_ragged_inputs_and_a_dense_one_are_joined(tmp_path: Path) -> None:
    a = layer.data("a", ["rows", 2], lod_level=1)
    b = layer.data("b", ["others"], dtype="int64", lod_level=1)
    c = layer.data("c", ["batch", 2])
    counts = layer.sequence_pool(layer.cast(layer.reshape(b, [-1, 1]), "float32"), "sum")
    fs.save_inference_model(tmp_path / "net", [a, b, c], {"y": layer.sequence_pool(a, "sum") * counts + c, "deep": layer.scale(a, 2.0)})
    held, queue, model, _ = held_queue(tmp_path / "net")
    draw = np.random.default_rng(0)

    def request(la: list[int], lb: list[int]) -> dict[str, Any]:
        rows = draw.standard_normal((sum(la), 2)).astype("float32")
        return {"a": fs.LoDTensor(rows, [la]), "b": fs.LoDTensor(draw.integers(0, 9, sum(lb)), [lb]), "c": draw.standard_normal((len(la), 2)).astype("float32")}

    feeds = [request([2], [1]), request([3, 9], [30, 0]), request([1], [2]), request([4], [0])]
    for feed, found in zip(feeds, answered(held, queue, feeds), strict=True):
        want = model.run(feed)
        np.testing.assert_allclose(found["y"], want["y"], rtol=1e-5, atol=1e-5)
        assert found["deep"].sequence_lengths == want["deep"].sequence_lengths
    assert len(held.seen) == 2


def test_texts_of_lines_of_words_are_joined(tmp_path: Path) -> None:
    document = layer.data("document", ["tokens"], dtype="int64", lod_level=2)
    lines = layer.sequence_pool(layer.cast(layer.reshape(document, [-1, 1]), "float32"), "sum")
    fs.save_inference_model(tmp_path / "net", [document], {"lines": lines, "whole": layer.sequence_pool(lines, "max")})
    held, queue, model, _ = held_queue(tmp_path / "net")
    feeds = [{"document": fs.LoDTensor(np.arange(sum(inner)), [outer, inner])} for outer, inner in (([1], [2]), ([2, 0], [3, 1]), ([1, 1], [2, 2]))]
    for feed, found in zip(feeds, answered(held, queue, feeds), strict=True):
        want = model.run(feed)
        np.testing.assert_array_equal(found["whole"], want["whole"])
        assert found["lines"].sequence_lengths == want["lines"].sequence_lengths
    assert len(held.seen) == 2


def test_late_given_up_and_too_many_requests_are_not_run(models: Path) -> None:
    held, queue, _, _ = held_queue(models / "images", length=3)
    x = {"image": np.zeros((1, 3, 8, 8), "float32")}
    first = queue.submit(x)
    assert held.began.wait(60)
    late, gone, good = queue.submit(x, monotonic() - 1), queue.submit(x), queue.submit(x, monotonic() + 60)
    with pytest.raises(QueueFull, match="3 requests wait"):
        queue.submit(x)
    assert gone.cancel() and len(queue) == 3
    held.go.set()
    assert first.result(60) and good.result(60)
    with pytest.raises(Expired):
        late.result(60)
    assert len(held.seen) == 2


def test_a_batch_is_no_larger_than_what_fits(models: Path) -> None:
    held, queue, _, _ = held_queue(models / "images", fits=lambda sizes: sizes["batch"] <= 2)
    answers = [queue.submit({"image": np.zeros((1, 3, 8, 8), "float32")})]
    assert held.began.wait(60)
    answers += [queue.submit({"image": np.zeros((1, 3, 8, 8), "float32")}) for _ in range(5)]
    held.go.set()
    for answer in answers:
        answer.result(60)
    assert [one["image"][0] for one in held.seen] == [1, 2, 2, 1]


def test_one_wrong_request_of_a_batch_fails_alone(models: Path) -> None:
    held, queue, model, _ = held_queue(models / "texts")
    feeds = [{"words": np.array(ids)} for ids in ([1], [2, 3], [4, 77], [5])]
    feeds = [{"words": fs.LoDTensor(one["words"], [[len(one["words"])]])} for one in feeds]
    answers = [queue.submit(feeds[0])]
    assert held.began.wait(60)
    answers += map(queue.submit, feeds[1:])
    held.go.set()
    with pytest.raises(fs.ExecutionError, match="77"):
        answers[2].result(60)
    for at in (0, 1, 3):
        np.testing.assert_allclose(answers[at].result(60)["text"], model.run(feeds[at])["text"], rtol=1e-5, atol=1e-6)


def test_networks_whose_results_are_not_one_for_each_example_have_no_layout(tmp_path: Path) -> None:
    words = layer.data("words", ["words", 2], lod_level=1)
    padded, _ = layer.sequence_pad(words, 0.0)
    for name, result in (("longest", padded), ("turned", layer.transpose(words, [1, 0]))):
        fs.save_inference_model(tmp_path / name, [words], {"y": result})
        with pytest.raises(fs.SchemaError, match="begin with one open dim"):
            BatchLayout.of_model(fs.load_inference_model(tmp_path / name, scope=fs.Scope()))


def test_numbers_of_rows_are_rounded_to_few() -> None:
    rounded = {round_up(n) for n in range(1, 1 << 14)}
    assert all(n <= round_up(n) <= max(n + 8, 1.13 * n) for n in range(1, 1 << 14)) and len(rounded) < 8 * 12


def test_short_batches_run_in_the_thread_of_their_requests_and_long_ones_do_not(models: Path) -> None:
    model = fs.load_inference_model(models / "images", scope=fs.Scope())
    ran: list[tuple[threading.Thread, int]] = []

    class Noted:
        feeds, fetches = model.feeds, model.fetches

        def run(self, feed: Mapping[str, Any]) -> Any:
            ran.append((threading.current_thread(), len(feed["image"])))
            return model.run(feed)

    queue, calls = BatchQueue(Noted(), BatchLayout.of_model(model), 64), list[Any]()
    x = {"image": np.zeros((1, 3, 8, 8), "float32")}
    queue.try_out(x)
    for seconds, here in ((1e-9, True), (10.0, False)):
        ran.clear()
        queue._times = BatchTimes()
        queue._times.took(BatchSize(1, (8, 8)), seconds)
        answers = [queue.submit(x, None, calls.append) for _ in range(3)]
        assert len(calls) == here
        if here:  # all three wait for one call, and it runs them together
            assert not ran and not any(a.done() for a in answers)
            calls.pop()()
            assert [a.done() for a in answers] == [True] * 3 and ran == [(threading.current_thread(), 3)]
        assert [a.result(60)["scores"].shape for a in answers] == [(1, 5)] * 3
        assert sum(n for _, n in ran) == 3 and all((t is threading.current_thread()) == here for t, _ in ran)
    queue.end()


def test_requests_behind_a_batch_in_their_thread_are_not_left(models: Path) -> None:
    model = fs.load_inference_model(models / "images", scope=fs.Scope())
    queue, calls = BatchQueue(model, BatchLayout.of_model(model), 2), list[Any]()
    queue._times.took(BatchSize(1, (8, 8)), 1e-9)
    small, large = ({"image": np.zeros((1, 3, side, side), "float32")} for side in (8, 16))
    answers = [queue.submit(x, None, calls.append) for x in (small, small, small, large)]
    calls.pop()()
    assert [a.result(60)["scores"].shape for a in answers] == [(1, 5)] * 4 and not calls
    queue.end()


def test_the_times_of_batches_tell_those_of_other_sizes() -> None:
    times = BatchTimes()
    assert times.expected(BatchSize(1)) == float("inf")
    times.took(BatchSize(4), 1.0)
    assert [times.expected(BatchSize(n)) for n in (3, 7, 16)] == [float("inf"), 1.0, 4.0]
    for _ in range(50):
        times.took(BatchSize(4), 0.25)
    assert 0.25 <= times.expected(BatchSize(5)) < 0.26
