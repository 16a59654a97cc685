"""Signatures of the layers: one spelling for one thing, ``input`` beside it where PaddlePaddle has it, and every parameter documented."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import foreshape as fs
from foreshape import layer

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{n: getattr(layer, n) for n in layer.__all__ if inspect.isfunction(getattr(layer, n))},
    **{f"detection.{n}": getattr(layer.detection, n) for n in layer.detection.__all__},
}
SPELLED = {
    "x": ("input", "X"), "xs": ("inputs",), "dtype": ("data_type", "out_dtype", "of"), "kernel_size": ("filter_size", "pool_size", "kernel_sizes", "ksize"),
    "padding": ("paddings", "pads"), "stride": ("strides",), "dilation": ("dilations",), "epsilon": ("eps",), "min": ("low", "lower", "minimum"),
    "max": ("high", "upper", "maximum"), "output_size": ("output_sizes", "out_size"), "axis": ("dim",), "axis1": ("dim1",), "axis2": ("dim2",),
    "keepdim": ("keep_dim", "keepdims"), "pad_value": ("padding_value",), "length": ("lengths", "seq_length", "sequence_length"),
    "num_classes": ("class_num", "class_number", "num_total_classes"), "label": ("target", "targets", "labels"), "repeats": ("repeat_times",),
    "boxes": ("bboxes",), "nms_threshold": ("nms_thresh",), "rank_table": ("table",), "boxes_num": ("rois_num",), "match_indices": ("matched_indices",),
}  # fmt: skip
"""Name of a parameter -> other spellings of it, which no layer has."""
OTHERS = {
    ("data", "data_type"): "the design documents write it",
    ("rnn", "inputs"): "what is read at each step, beside static_inputs",
    ("strided_slice", "strides"): "one for each of axes, as starts and ends",
    **{(name, "upper"): "the upper triangle of a matrix" for name in ("cholesky", "cholesky_solve", "eigh", "eigvalsh", "triangular_solve")},
}
"""Function and parameter -> why it is spelled so."""


def test_one_thing_is_spelled_one_way() -> None:
    instead = {other: name for name, others in SPELLED.items() for other in others}
    seen = {(name, p) for name, function in {**FUNCTIONS, "Uniform": layer.Uniform}.items() for p in inspect.signature(function).parameters if p in instead}
    assert seen == set(OTHERS), {pair: instead[pair[1]] for pair in seen - set(OTHERS)}


def test_the_operand_may_be_given_as_input() -> None:
    def described(call: Callable[[fs.Variable], Any]) -> list[str]:
        with fs.program() as program:
            call(layer.data("x", ["batch", 3, 8, 8]))
            return [str(op) for op in program.all_ops()]

    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (layer.fc, (10,)), (layer.conv2d, (4, 3)), (layer.softmax, ()), (layer.reduce_mean, (1,)), (layer.batch_norm, ()), (layer.hinge_loss, (1,)),
    ]  # fmt: skip
    for function, others in calls:
        named = dict(zip([*inspect.signature(function).parameters][1:], others, strict=False))
        if function is layer.hinge_loss:
            with fs.program():
                x, label = layer.data("x", ["batch", 1]), layer.data("label", ["batch", 1])
                assert function(input=x, label=label).spec is function(x, label).spec
            continue
        assert described(lambda x: function(input=x, **named)) == described(lambda x: function(x, **named))  # noqa: B023
    x, ids = layer.data("x", ["batch", 4]), layer.data("ids", ["batch", 1], "int64")
    assert layer.sum(input=[x, x]).spec is x.spec  # type: ignore[call-arg]
    assert layer.embedding(input=ids, size=[10, 4]).spec.rank == 3  # type: ignore[call-arg]


def test_an_operand_that_is_given_twice_is_refused() -> None:
    x = layer.data("x", ["batch", 4])
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        layer.fc(x, 3, input=x)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'input'"):
        layer.fc(x=x, output_size=3, input=x)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'input'"):
        layer.gaussian_random(input=[2])  # type: ignore[call-arg]
    with pytest.raises(fs.SchemaError, match="fc: x must be a variable"):
        layer.fc(input=3, output_size=3)  # type: ignore[call-arg]


def explained(function: Callable[..., Any]) -> set[str]:
    """The names in the Args section of a docstring, each followed by a text."""
    found = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", inspect.getdoc(function) or "", re.MULTILINE)
    return {name for names in re.findall(r"^ {4}(\w+(?:, \w+)*): \S", found[1], re.MULTILINE) for name in names.split(", ")} if found is not None else set()


def test_args_explain_every_parameter() -> None:
    """Of functions of two parameters or more."""
    missing: dict[str, list[str]] = {}
    for name, function in FUNCTIONS.items():
        parameters = [*inspect.signature(function).parameters]
        if len(parameters) > 1:
            gone = [p for p in parameters if p not in explained(function)]
            if gone:
                missing[name] = gone
    assert missing == {}
