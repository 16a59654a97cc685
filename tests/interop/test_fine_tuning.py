"""Networks that are opened, cut, given a new head, trained, saved and opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.wire import framework_pb2 as pb
from foreshape.transforms.passes import for_training


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A network as files have them: nothing in it is marked as a parameter, and all is as in a test."""
    main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
    with fs.program_guard(main, startup):
        image = layer.data("image", shape=["batch", 3, 8, 8])
        hidden = layer.relu(layer.batch_norm(layer.conv2d(image, 4, 3, padding=1)))
        hidden = layer.dropout(layer.conv2d(hidden, 5, 3), 0.5)
        pooled = layer.pool2d(hidden, global_pooling=True, pool_type="avg")
        scores = layer.softmax(layer.fc(pooled, 2, flatten_last=3))
    fs.Executor(seed=3).run(startup, scope=scope)
    path = str(tmp_path / "saved")
    fs.save_inference_model(path, [image], [scores], program=main, scope=scope)
    message = pb.ProgramDesc.FromString(Path(path + ".pdmodel").read_bytes())
    for variable in message.blocks[0].vars:
        variable.is_parameter = variable.stop_gradient = False
        variable.ClearField("extra")
    Path(path + ".pdmodel").write_bytes(message.SerializeToString())
    return path


def examples(count: int = 60) -> dict[str, Any]:
    """Images that are brightest in one of three colours, and in which."""
    random = np.random.default_rng(5)
    label = random.integers(3, size=(count, 1))
    image = random.random((count, 3, 8, 8), "float32")
    image[np.arange(count), label[:, 0]] += 1.0
    return {"image": image, "label": label}


def tuned(base: fs.InferenceModel, epochs: int = 1, rate: float = 0.02) -> fs.Variable:
    """Give it a head of three classes, and train it; returns the scores."""
    (features,) = base.fetches
    with fs.program_guard(base.program, startup := fs.Program()):
        label = layer.data("label", dims=1, dtype="int64")
        scores = layer.softmax(layer.fc(features, 3, flatten_last=3))
        cost = layer.mean(layer.cross_entropy(scores, label))
    fs.train(cost, examples(), optimizer=fs.optimizer.Adam(rate), epochs=epochs, batch_size=20, scope=base.scope, startup=startup, progress=False)
    return scores


def values(scope: fs.Scope, names: Any) -> dict[str, np.ndarray]:
    return {n: scope.get(n) for n in names}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> set[str]:
    return {n for n in a if np.array_equal(a[n], b[n])}


def test_a_loaded_network_is_cut_trained_saved_and_opened_again(saved: str, tmp_path: Path) -> None:
    model = fs.load_inference_model(saved, scope=fs.Scope())
    assert not model.program.parameters()
    data = examples()
    (before,) = model.run(data["image"]).values()
    base = model.for_training("last pool")
    assert base.feeds == ["image"] and [str(v) for v in base.fetches] == ["pool2d_0.tmp_0: f32[image.0, 5, 1, 1]"]
    statistics = {n for op in base.program.all_ops() if op.type == "batch_norm" for n in (*op.inputs["Mean"], *op.inputs["Variance"])}
    trained = {v.name for v in base.program.parameters()}
    assert len(trained) == 6 and all(v.trainable for v in base.program.parameters())
    assert not any(n.startswith("fc") for n in base.scope.names())
    held = values(base.scope, base.scope.names())
    scores = tuned(base, 12)
    after = values(base.scope, held)
    assert same(held, after) == statistics == set(held) - trained
    path = str(tmp_path / "tuned")
    fs.save_inference_model(path, base.feeds, [scores], program=base.program, scope=base.scope)
    (found,) = fs.load_inference_model(path, scope=fs.Scope()).run(data["image"]).values()
    assert found.shape == (60, 3) and (found.argmax(1) == data["label"][:, 0]).mean() > 0.9
    np.testing.assert_array_equal(next(iter(model.run(data["image"]).values())), before)  # the model that was loaded is what it was


def test_what_is_frozen_stays_and_is_shared(saved: str) -> None:
    model = fs.load_inference_model(saved, scope=fs.Scope())
    base = model.for_training("before last fc", frozen=True)
    held = values(base.scope, base.scope.names())
    assert base.program.parameters() and not any(v.trainable for v in base.program.parameters())
    assert [op.attributes.values["is_test"] for op in base.program.all_ops() if op.type == "dropout"] == [True]
    assert all(base.scope.tensor(v.name) is model.scope.tensor(v.name) for v in base.program.parameters())
    tuned(base)
    assert same(held, values(base.scope, held)) == set(held)
    first = next(v.name for v in base.program.parameters() if v.name.startswith("conv2d_0"))
    part = model.for_training("last pool", frozen="conv2d_0*")
    assert {v.name for v in part.program.parameters() if not v.trainable} >= {first}
    held = values(part.scope, part.scope.names())
    tuned(part)
    unchanged = same(held, values(part.scope, held))
    assert first in unchanged and not any(n.startswith("conv2d_1") for n in unchanged)


def test_moving_statistics_follow_the_batches(saved: str) -> None:
    base = fs.load_inference_model(saved, scope=fs.Scope()).for_training("last pool", statistics="moving")
    held = values(base.scope, base.scope.names())
    tuned(base)
    assert not same(held, values(base.scope, held))


def test_inputs_are_changed_in_training_and_not_in_a_test(saved: str, tmp_path: Path) -> None:
    model = fs.load_inference_model(saved, scope=fs.Scope())
    image = examples()["image"]
    base = model.for_training("last pool", augment=lambda image: layer.gaussian_noise(image, 0.5))
    plain = fs.predict(model.for_training("last pool").fetches[0], {"image": image}, scope=model.scope)
    np.testing.assert_array_equal(fs.predict(base.fetches[0], {"image": image}, scope=base.scope), plain)
    (seen,) = fs.Executor(seed=0).run(base.program, {"image": image}, base.fetches, base.scope)
    assert np.abs(seen - plain).max() > 1e-3
    scores = tuned(base)
    fs.save_inference_model(tmp_path / "tuned", base.feeds, [scores], program=base.program, scope=base.scope)
    assert "gaussian_random" not in {op.type for op in fs.load_inference_model(tmp_path / "tuned", scope=fs.Scope()).program.all_ops()}
    for augment, error, words in [
        ({"x": layer.relu}, fs.SchemaError, "has no input 'x'; they are: image"),
        (lambda image: None, fs.SchemaError, "must give a variable"),
        (lambda image: layer.cast(image, "float64"), fs.TypeMismatchError, "must keep the element type"),
        (lambda image: layer.reduce_mean(image, 1, keepdim=True), fs.ShapeError, "conv2d"),
    ]:  # fmt: skip
        with pytest.raises(error, match=words):
            model.for_training("last pool", augment=augment)


def test_what_is_marked_in_a_file_is_what_is_trained(saved: str) -> None:
    model = fs.load_inference_model(saved, scope=fs.Scope())
    program = model.program.clone()
    program.var("conv2d_1.w_0").is_parameter = True
    assert [v.name for v in for_training(program, ["image"], model.fetches[0].name).parameters()] == ["conv2d_1.w_0"]


def test_refusals_say_what_there_is(saved: str) -> None:
    model = fs.load_inference_model(saved, scope=fs.Scope())
    with pytest.raises(fs.SchemaError, match=r"no layer answers to 'linear'.*\n(?s:.*)last pool +pool2d_0.tmp_0: f32\[image.0, 5, 1, 1\]"):
        model.for_training("last linear")
    with pytest.raises(fs.SchemaError, match=r"2 layers answer to 'conv': say which, as 'last conv'(?s:.*)second last conv +conv2d_0"):
        model.for_training("conv")
    with pytest.raises(fs.SchemaError, match="only 2 layers answer to 'conv'"):
        model.for_training("third conv")
    with pytest.raises(fs.SchemaError, match="selected by words such as"):
        model.for_training("last pool of all")
    with pytest.raises(fs.SchemaError, match="frozen: no parameter is called 'embedding"):
        model.for_training(frozen=["embedding*"])
    with pytest.raises(fs.SchemaError, match="statistics must be 'fixed' or 'moving'; seen 'batch'"):
        model.for_training(statistics="batch")  # type: ignore[arg-type]
    with pytest.raises(fs.SchemaError, match="keeps its statistics"):
        model.for_training(frozen=True, statistics="moving")


def test_layers_answer_to_words() -> None:
    with fs.program_guard(program := fs.Program()):
        x = layer.data("x", shape=["batch", 6])
        layer.split(layer.relu(layer.fc(x, 6)), 2, axis=1)
        layer.fc(x, 3) + layer.fc(x, 3)
    answers = {w: [v.name for v in program.outputs_of(w)] for w in (
        "first fc", "second fc", "last fc", "third last fc", "fc_1", "last add", "relu", "split", "before relu", "x")}  # fmt: skip
    assert answers == {
        "first fc": ["fc_0.tmp_1"], "second fc": ["fc_1.tmp_1"], "last fc": ["fc_2.tmp_1"], "third last fc": ["fc_0.tmp_1"], "fc_1": ["fc_1.tmp_1"],
        "last add": ["elementwise_add_0.tmp_0"], "relu": ["relu_0.tmp_0"], "split": ["split_0.tmp_0", "split_0.tmp_1"], "before relu": ["fc_0.tmp_1"],
        "x": ["x"],
    }  # fmt: skip
