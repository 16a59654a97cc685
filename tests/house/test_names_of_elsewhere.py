"""Who looks for a thing by the name that another library has for it is told what it is called here."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import callbacks, layer, optimizer
from foreshape.core.hints import ARGUMENTS_ELSEWHERE
from foreshape.layer.called_elsewhere import CALLED_ELSEWHERE

MODULES: dict[str, tuple[Any, Any]] = {
    "fs": (fs, fs._CALLED_ELSEWHERE),
    "layer": (layer, CALLED_ELSEWHERE),
    "callbacks": (callbacks, callbacks._CALLED_ELSEWHERE),
    "fs.optimizer": (optimizer, optimizer._CALLED_ELSEWHERE),
}


@pytest.mark.parametrize("module", MODULES)
def test_what_is_named_is_there_and_the_other_name_is_not(module: str) -> None:
    of, elsewhere = MODULES[module]
    for name, here in elsewhere.items():
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}: here it is {here}")):
            getattr(of, name)
        for room, thing in re.findall(r"\b(fs\.optimizer|callbacks|layer|fs)\.(\w+)", here):
            assert hasattr(MODULES[room][0], thing), here
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = of.nothing


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("layer", "sofmax", "did you mean layer.softmax?"),
        ("layer", "attention", "here it is layer.multi_head_attention"),
        ("layer", "pooling", None),
        ("layer", "crossentropy", "did you mean layer.cross_entropy?"),
        ("layer", "mask", "did you mean layer.attention_mask or layer.sequence_mask?"),
        ("fs.optimizer", "Adamm", "did you mean fs.optimizer.Adam or fs.optimizer.AdamW?"),
        ("fs.optimizer", "adam", "did you mean fs.optimizer.Adam?"),
        ("fs", "save_modell", None),
        ("fs", "save_safetensor", "did you mean fs.save_safetensors?"),
        ("callbacks", "EarlyStop", "did you mean fs.callbacks.EarlyStopping?"),
    ],
)
def test_a_name_that_is_spelled_otherwise_is_told(module: str, name: str, words: str | None) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(MODULES[module][0], name)
    assert words is None or str(raised.value).endswith(f"has no attribute {name!r}: {words}")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: optimizer.Adam(lr=0.1), "Adam() got an unexpected keyword argument 'lr': here it is learning_rate"),
        (
            lambda x: layer.fc(x, 3, num_flatten_dims=1),
            "fc() got an unexpected keyword argument 'num_flatten_dims': here it is flatten_last, which counts the dims of the features from the end",
        ),
        (lambda x: optimizer.Adam(betas=(0.9, 0.99)), "Adam() got an unexpected keyword argument 'betas': here it is beta1 and beta2"),
        (lambda x: layer.fc(x, units=3), "fc() got an unexpected keyword argument 'units': here it is output_size"),
        (lambda x: layer.fc(x, 3, activaton="relu"), "fc() got an unexpected keyword argument 'activaton': did you mean activation?"),
        (lambda x: layer.relu(x, inplace=True), "relu() got an unexpected keyword argument 'inplace': its arguments are x"),
        (lambda x: layer.Normal(stddev=0.1), "Normal() got an unexpected keyword argument 'stddev': here it is std"),
        (lambda x: fs.train(x, {}, lr=0.1), "train() got an unexpected keyword argument 'lr': here it is optimizer"),
        (lambda x: fs.predict(x, {}, batch=2), "predict() got an unexpected keyword argument 'batch': here it is batch_size"),
        (lambda x: fs.Executor(divice="cpu"), "Executor() got an unexpected keyword argument 'divice': did you mean device?"),
    ],
)
def test_an_argument_of_another_name_is_told(call: Any, words: str) -> None:
    x = layer.data("x", 3)
    with pytest.raises(TypeError) as raised:
        call(x)
    assert str(raised.value) == words
    assert [op.type for op in fs.default_main_program().all_ops()] == []


def test_what_arguments_are_called_here_there_are_somewhere() -> None:
    rooms = (layer, optimizer, callbacks, fs)
    callables = [f for room in rooms for n in room.__all__ if callable(f := getattr(room, n)) and not (isinstance(f, type) and issubclass(f, BaseException))]
    known = {p for f in callables for p in inspect.signature(f).parameters}
    assert {here for meant in ARGUMENTS_ELSEWHERE.values() for here in meant} <= known


@pytest.mark.parametrize("room", [layer, optimizer])
def test_files_are_no_names_of_a_room_and_can_be_imported(room: Any) -> None:
    files = [n for n, value in vars(room).items() if isinstance(value, ModuleType)]
    assert set(files) <= set(room.__all__)
    from foreshape.layer import attention, initializer
    from foreshape.optimizer import adam

    assert attention.multi_head_attention.__name__ == "multi_head_attention" and initializer.Normal is layer.Normal and adam.Adam is optimizer.Adam


def test_pythons_other_words_and_those_of_functions_within_pass() -> None:
    x = layer.data("x", 3)
    with pytest.raises(TypeError, match=r"^fc\(\) missing 1 required positional argument: 'output_size'$"):
        layer.fc(x)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'lr'$"):
        layer.activate(x, lambda v: (lambda: v)(lr=1))  # type: ignore[call-arg]  # of the user's own function


def test_a_training_is_told_what_its_arguments_are() -> None:
    x, label = layer.data("x", 3), layer.data("label", 1, dtype="int64")
    cost = layer.mean(layer.softmax_with_cross_entropy(layer.fc(x, 4), label))
    data = {"x": np.zeros((4, 3), "float32"), "label": np.array([0, 1, 7, 2])}
    for given, words in [
        ({"optimizer": "adam"}, r"an object, such as fs.optimizer.Adam\(0.001\); seen 'adam'"),
        ({"optimizer": fs.optimizer.Adam}, "an object, such as"),
        ({"metrics": ["accuracy"]}, r"metrics is a dict, name -> variable or a measure of fs.metrics, .* seen \['accuracy'\]"),
    ]:  # fmt: skip
        with pytest.raises(fs.SchemaError, match=words):
            fs.train(cost, data, progress=False, **given)
    with pytest.raises(fs.SchemaError, match="the cost is a variable"):
        fs.train(fs.default_main_program(), data)  # type: ignore[arg-type]
    with pytest.raises(fs.SchemaError, match=r"given as variables; seen 'fc_0.tmp_1'"):
        fs.predict("fc_0.tmp_1", data)  # type: ignore[call-overload]
    with pytest.raises(fs.ShapeError, match=r"size must be \[rows, width\]; seen 100"):
        layer.embedding(label, 100, 16)  # type: ignore[arg-type]
    with pytest.raises(fs.ExecutionError, match=r"a class number must be in \[0, 4\); seen 0 to 7"):
        fs.train(cost, data, progress=False)


def test_scores_that_are_taken_for_shares_are_found_where_the_loss_is_none() -> None:
    x, label = layer.data("x", 3), layer.data("label", 1, dtype="int64")
    cost = layer.cross_entropy(layer.fc(x, 4, weight=layer.Constant(-1.0)), label)
    with pytest.raises(fs.ExecutionError, match=r"is nan at step 1 .*takes shares that sum to 1, and fc_0.tmp_1 has scores: .* layer.softmax first"):
        fs.train(cost, {"x": np.ones((4, 3), "float32"), "label": np.zeros((4, 1), "int64")}, progress=False)
