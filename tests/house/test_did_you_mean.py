"""A name that is in no list of names is told with those that it may be, by one helper, wherever a list is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer, metrics
from foreshape.core.hints import did_you_mean, near_path
from foreshape.errors import SchemaError
from foreshape.transforms.passes.for_training import for_training
from foreshape.transforms.passes.precision import checked_precision


def x() -> fs.Variable:
    return layer.data("x", shape=["batch", 3, 8, 8])


def scores() -> tuple[fs.Variable, fs.Variable]:
    return layer.fc(layer.data("rows", 4), 3), layer.data("label", 1, dtype="int64")


def run(**how: Any) -> Any:
    y = layer.fc(layer.data("image", 4), 3, name="head")
    executor = fs.Executor()
    executor.run(fs.default_startup_program())
    return executor.run(None, {"image": np.zeros((2, 4), "float32"), **how.get("feed", {})}, how.get("fetch", [y]))


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "activation": (lambda: layer.fc(layer.data("rows", 4), 3, "rleu"), "there is no activation 'rleu': did you mean 'relu'?"),
    "activation of a block": (
        lambda: layer.transformer_encoder_block(layer.data("words", shape=[-1, 3, 4]), 2, 8, activation="gleu"), "no activation 'gleu': did you mean 'gelu'",
    ),
    "activation in capitals": (lambda: layer.conv2d(x(), 3, 3, activation="ReLU"), "did you mean 'relu'?"),
    "no activation": (lambda: layer.fc(layer.data("rows", 4), 3, "linear"), "there is no activation 'linear': None, the default, is none"),
    "nothing like it": (lambda: layer.fc(layer.data("rows", 4), 3, "xyzzy"), "no activation 'xyzzy': it is a name, as 'relu' or 'softmax', or a function"),
    "element type": (lambda: layer.data("x", shape=[3], dtype="flaot32"), "seen 'flaot32': did you mean 'float32'?"),
    "element type elsewhere": (lambda: layer.cast(x(), "long"), "seen 'long': did you mean 'int64'?"),
    "attribute": (lambda: layer.pool2d(x(), 2, pool_type="average"), "must be 'max' or 'avg'; seen 'average': did you mean 'avg'?"),
    "reduction": (lambda: layer.nll_loss(*scores(), reduction="smu"), "seen 'smu': did you mean 'sum'?"),
    "padding": (lambda: layer.conv2d(x(), 4, 3, padding="smae"), "seen 'SMAE': did you mean 'SAME'?"),
    "layout": (lambda: layer.conv2d(x(), 4, 3, data_format="channels_last"), "seen 'channels_last': did you mean 'NHWC'?"),
    "mode": (lambda: layer.interpolate(x(), [4, 4], mode="biliner"), "seen 'biliner': did you mean 'bilinear'"),
    "outside": (lambda: layer.grid_sample(v := x(), v, padding_mode="zero"), "seen 'zero': did you mean 'zeros'?"),
    "average of a metric": (lambda: metrics.F1(*scores(), average="marco"), "did you mean 'macro'?"),
    "precision": (lambda: checked_precision("bfloat16"), "precision= must be one of 'fp32', 'bf16', 'fp16'; seen 'bfloat16': did you mean 'bf16'?"),
    "statistics": (lambda: for_training(fs.default_main_program(), [], [], statistics="movin"), "did you mean 'moving'?"),
    "engine": (lambda: fs.Predictor("net", engine="onnxruntme"), "engine must be 'foreshape' or 'onnxruntime'; seen 'onnxruntme': did you mean"),  # type: ignore[arg-type]
    "device": (lambda: fs.Executor("cdua"), "there is no device 'cdua' here: it can be cpu"),
    "device elsewhere": (lambda: fs.Executor("gpu"), "did you mean 'cuda'?" if torch.cuda.is_available() else "it can be cpu"),
    "fetch": (lambda: run(fetch=["head.tmp"]), "there is no variable 'head.tmp' in block 0 or its parents: did you mean 'head.tmp_0' or 'head.tmp_1'?"),
    "fetch by a word": (lambda: run(fetch=["head"]), "did you mean 'head.b_0' or 'head.tmp_0' or 'head.tmp_1' or 'head.w_0'?"),
    "variable": (lambda: (x(), fs.default_main_program().var("X")), "the program has no variable 'X': did you mean 'x'?"),
    "value": (lambda: (fs.default_scope().set("weight", np.ones(1)), fs.default_scope().get("wieght")), "did you mean 'weight'?"),
    "operator": (lambda: x().block.apply("sofmax", {}), "there is no operator 'sofmax': did you mean softmax"),
    "mode of a callback": (lambda: fs.callbacks.EarlyStopping("f", mode="mni"), "must be 'min' or 'max'; seen 'mni': did you mean 'min'?"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_name_of_no_list_is_told_with_those_that_are_like_it(name: str) -> None:
    act, words = CASES[name]
    with pytest.raises(fs.ForeshapeError) as raised:
        act()
    assert words in str(raised.value)


def test_the_requirement_and_the_value_are_fields() -> None:
    error = SchemaError.one_of("mode", ("zeros", "border"), "bordr")
    assert str(error) == "mode must be 'zeros' or 'border'; seen 'bordr': did you mean 'border'?"
    assert (error.slot, error.required, error.seen) == ("mode", "'zeros' or 'border'", "'bordr'")
    assert str(SchemaError.one_of("mode", ("zeros", "border", None), 3)) == "mode must be one of 'zeros', 'border', None; seen 3"


def test_a_value_of_another_kind_has_no_name_like_it() -> None:
    assert did_you_mean(3, ["3"]) == did_you_mean(None, ["None"]) == did_you_mean("relu", []) == ""


def test_a_long_name_and_many_names_are_compared_soon() -> None:
    many = [f"layer_{k}.w_0" for k in range(20_000)]
    assert did_you_mean("x" * 1_000_000, many) == ""
    assert "'layer_7.w_0'" in did_you_mean("layer_7.w", ["a", *many[:9]])


def test_an_element_type_of_torch_is_taken() -> None:
    assert layer.data("x", shape=[3], dtype=torch.bfloat16).dtype is fs.BF16


def test_a_path_of_nothing_is_told_with_those_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("classifier.onnx", "classifier.onnx.data", "other.txt"):
        (tmp_path / "models" / name).write_bytes(b"")
    folder = tmp_path / "models"
    assert near_path(str(folder / "clasifier.onnx")) == f": did you mean {str(folder / 'classifier.onnx')!r}?"
    assert near_path(str(folder / "clasifier")) == f": did you mean {str(folder / 'classifier')!r}?"
    assert near_path(str(tmp_path / "model" / "classifier.onnx")) == f": did you mean {str(folder)!r}?"
    assert near_path(str(folder / "other")) == f": did you mean {str(folder / 'other.txt')!r}?"
    assert near_path(str(folder / "nothing")) == near_path("\0") == near_path("") == ""
