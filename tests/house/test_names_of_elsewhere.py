"""Who looks for a thing by the name that another library has for it is told what it is called here."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import callbacks, layer, optimizer
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


def test_a_training_is_told_what_its_arguments_are() -> None:
    x, label = layer.data("x", 3), layer.data("label", 1, dtype="int64")
    cost = layer.mean(layer.softmax_with_cross_entropy(layer.fc(x, 4), label))
    data = {"x": np.zeros((4, 3), "float32"), "label": np.array([0, 1, 7, 2])}
    for given, words in [
        ({"optimizer": "adam"}, r"an object, such as fs.optimizer.Adam\(0.001\); seen 'adam'"),
        ({"optimizer": fs.optimizer.Adam}, "an object, such as"),
        ({"metrics": ["accuracy"]}, r"metrics is a dict, name -> variable, .* seen \['accuracy'\]"),
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
