"""Networks that were opened: a model that runs, and a predictor that answers."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer


@pytest.fixture
def saved(tmp_path: Path) -> str:
    image = layer.data("image", shape=["batch", 3, "height", "width"])
    y = layer.relu(layer.batch_norm(layer.conv2d(image, 8, 3, padding=1)))
    scores = layer.softmax(layer.fc(layer.reduce_mean(y, [2, 3]), 5))
    fs.Executor(seed=2).run(fs.default_startup_program())
    fs.save_inference_model(tmp_path / "net", [image], [scores, y])
    return str(tmp_path / "net")


def images(*dims: int) -> Any:
    return np.random.default_rng(1).standard_normal(dims).astype("float32")


def test_a_model_runs_in_two_lines_and_names_what_it_gives(saved: str) -> None:
    model = fs.load_inference_model(saved, scope=fs.Scope())
    x = images(2, 3, 6, 5)
    found = model.run({"image": x})
    assert list(found) == [v.name for v in model.fetches] and [v.shape for v in found.values()] == [(2, 5), (2, 8, 6, 5)]
    program, feeds, fetches = model
    assert (program, feeds, fetches) == (model.program, ["image"], model.fetches)
    for a, b in zip(fs.Executor().run(program, {"image": x}, fetches, model.scope), model.run(x).values(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert repr(model).startswith("InferenceModel(image: f32[batch, 3, height, width] -> ")


def test_a_result_is_found_by_its_place_and_by_the_name_it_was_saved_by(saved: str) -> None:
    features, scores = [op.outputs["Out"][0] for op in fs.default_main_program().global_block.ops if op.type in ("softmax", "relu")]
    for found in (fs.load_inference_model(saved, scope=fs.Scope()).run(images(2, 3, 6, 5)), fs.Predictor(saved, batch_queue=4)(images(2, 3, 6, 5))):
        first, second = found.values()
        assert found[0] is found[-2] is found[scores] is first and found[1] is found[features] is second
        for wrong in (2, "nothing", True):
            with pytest.raises(KeyError, match=rf"gives 2 results, found by their place or as save_infer_model/scale_0.tmp_0, .*{scores}"):
                found[wrong]


def test_other_sizes_share_what_is_compiled_and_the_fetches_stay_good(saved: str) -> None:
    model = fs.load_inference_model(saved, scope=fs.Scope())
    x = images(1, 3, 8, 8)
    want = model.run(x)
    fixed = model.with_feed_shapes({"image": [1, 3, 8, 8]})
    assert [list(v.dims) for v in fixed.fetches] == [[1, 5], [1, 8, 8, 8]]
    assert all(v.block.program is fixed.program for v in fixed.fetches)
    assert fixed.executor is not None and fixed.executor is model.executor
    step = model.executor.step(model.program, [v.name for v in model.fetches])
    found = fixed.run(x)
    assert model.executor.step(model.program, [v.name for v in model.fetches]) is step and len(model.executor._steps) == 1
    for name in want:
        np.testing.assert_array_equal(found[name], want[name])
    with pytest.raises(fs.FeedError, match=r"image was fixed to \[1, 3, 8, 8\], and an array of \[2, 3, 8, 8\] is fed"):
        fixed.run(images(2, 3, 8, 8))


def test_what_is_fed_must_be_the_inputs(saved: str) -> None:
    model = fs.load_inference_model(saved, scope=fs.Scope())
    with pytest.raises(fs.FeedError, match="the model has the inputs image: give one array for each"):
        model.run(images(1, 3, 4, 4), images(1, 3, 4, 4))
    with pytest.raises(fs.FeedError):
        model.run({"picture": images(1, 3, 4, 4)})


def test_a_predictor_answers_as_the_plain_network_does(saved: str) -> None:
    plain = fs.load_inference_model(saved, scope=fs.Scope())
    predictor = fs.Predictor(saved, threads=1, warm=[{"image": [1, 3, 6, 6]}, {"image": [2, 3, 4, 7]}])
    assert predictor.inputs == ["image"] and predictor.outputs == [v.name for v in plain.fetches]
    for dims in ((1, 3, 6, 6), (2, 3, 4, 7), (5, 3, 3, 3)):
        x = images(*dims)
        for name, value in predictor(x).items():
            np.testing.assert_allclose(value, plain.run(x)[name], rtol=2e-5, atol=2e-6)
    assert predictor.plan().held(batch=1, height=6, width=6) > fs.Plan(plain.program, predictor.outputs).held(batch=1, height=6, width=6)
    with pytest.raises(fs.SchemaError, match="dims for image; seen picture"):
        fs.Predictor(saved, warm=[{"picture": [1, 3, 6, 6]}])


def test_requests_from_several_threads_are_put_together(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = fs.Predictor(saved, batch_queue=8, wait=0.5)
    plain = fs.Predictor(saved)
    seen: list[int] = []
    run = predictor.model.run
    monkeypatch.setattr(fs.InferenceModel, "run", lambda self, feed: (seen.append(len(feed["image"])), run(feed))[1])
    inputs = [images(1 + k % 2, 3, 5, 5) for k in range(8)]
    found: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda k=k: found.__setitem__(k, predictor(inputs[k]))) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sum(seen) == 12 and max(seen) <= 8 and len(seen) < 8
    monkeypatch.undo()
    for k, x in enumerate(inputs):
        for name, value in plain(x).items():
            assert found[k][name].shape == value.shape
            np.testing.assert_allclose(found[k][name], value, rtol=2e-5, atol=2e-6)


def test_a_request_that_is_wrong_fails_alone(saved: str) -> None:
    predictor = fs.Predictor(saved, batch_queue=4, wait=0.0)
    with pytest.raises(fs.FeedError, match="image"):
        predictor(images(1, 4, 5, 5))
    with pytest.raises(fs.FeedError):
        predictor({"image": images(1, 3, 5, 5), "more": images(1, 3, 5, 5)})
    assert predictor(images(1, 3, 5, 5))[predictor.outputs[0]].shape == (1, 5)


def test_the_thread_of_a_queue_ends_with_its_predictor(saved: str) -> None:
    before = set(threading.enumerate())
    predictor = fs.Predictor(saved, batch_queue=4, wait=0.0)
    predictor(images(1, 3, 5, 5))
    (thread,) = set(threading.enumerate()) - before
    del predictor
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_queue_needs_results_for_each_example(saved: str, tmp_path: Path) -> None:
    x = layer.data("x", shape=["batch", 4])
    fs.save_inference_model(tmp_path / "mean", [x], [layer.mean(x)])
    with pytest.raises(fs.SchemaError, match="begin with one open dim; seen x: f32"):
        fs.Predictor(tmp_path / "mean", batch_queue=4)
    fs.save_inference_model(tmp_path / "limit", [x], [x + layer.relu(layer.reduce_max(x, 0, keepdim=True) - 100.0)])  # others change it if they are large
    with pytest.raises(fs.SchemaError, match=r"reduce_max \(test_model\.py:\d+\) computes over the examples"):
        fs.Predictor(tmp_path / "limit", batch_queue=4)
    with pytest.raises(fs.SchemaError, match="seen -1 and"):
        fs.Predictor(saved, batch_queue=-1)


def test_a_tuple_a_table_and_a_named_tuple_are_whole_feeds(tmp_path: Path) -> None:
    a, b = layer.data("a", ["batch", 3]), layer.data("b", ["batch", 3])
    fs.save_inference_model(tmp_path / "m", [a, b], [a - b])
    model, one, two = fs.load_inference_model(tmp_path / "m", scope=fs.Scope()), np.ones((2, 3), "float32"), np.full((2, 3), 2, "float32")

    class Both(NamedTuple):
        b: Any
        a: Any

    for feed in ((one, two), [one, two], Both(b=two, a=one), {"a": one, "b": two}):
        assert model.run(feed)[0].tolist() == fs.Predictor(tmp_path / "m").run(feed)[0].tolist() == (one - two).tolist()
    for wrong in ((one,), [one, two, one]):
        with pytest.raises(fs.FeedError, match="the inputs a, b: give one array for each"):
            model.run(wrong)


def test_a_mapping_names_what_a_model_gives(tmp_path: Path) -> None:
    x = layer.data("x", ["batch", 3])
    y = layer.relu(x)
    fs.save_inference_model(tmp_path / "m", [x], {"scores": y, "plain": layer.scale(x, 2.0)})
    model = fs.load_inference_model(tmp_path / "m", scope=fs.Scope())
    assert [v.name for v in model.fetches] == ["scores", "plain"]
    out = model.run(np.ones((1, 3), "float32"))
    assert out["scores"].tolist() == out[y.name].tolist() == [[1, 1, 1]] and out["plain"].tolist() == [[2, 2, 2]]
    fs.save_inference_model(tmp_path / "again", model.feeds, model.fetches, program=model.program, scope=model.scope)
    assert [v.name for v in fs.load_inference_model(tmp_path / "again", scope=fs.Scope()).fetches] == ["scores", "plain"]
    for name, words in (("x", "is the name of another variable of the network, x:"), ("", "is no name")):
        with pytest.raises(fs.SchemaError, match=words):
            fs.save_inference_model(tmp_path / "m", [x], {name: y})
