"""Whatever a layer is given in place of an argument, it works or says in this package's words what is wrong, and leaves nothing half described."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.some import one_in

import foreshape as fs
from foreshape import layer
from foreshape.errors import ForeshapeError

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{n: getattr(layer, n) for n in layer.__all__ if inspect.isfunction(getattr(layer, n))},
    **{f"detection.{n}": getattr(layer.detection, n) for n in layer.detection.__all__},
}


def usual(name: str, parameter: inspect.Parameter) -> Any:
    """Something of the kind that the annotation of a parameter says."""
    kind, named = str(parameter.annotation), f"{name}.{parameter.name}"
    if "Callable" in kind or "Branch" in kind or "Step" in kind:
        return lambda *given: given[0] if given else None
    if kind == "Activation":
        return "relu"
    if "Sequence[Variable" in kind:
        return [layer.data(f"{named}.{k}", shape=["batch", 4]) for k in range(2)]
    if "Variable" in kind or kind in ("Operand", "Shape"):
        return layer.data(named, shape=["batch", 3, 8, 8] if "2d" in name or "pool" in name else ["batch", 4])
    if "Sequence" in kind or "Sizes" in kind or "Axes" in kind:
        return [2, 2]
    return 0.5 if "float" in kind else "fp32" if "str" in kind or parameter.name in ("of", "dtype") else 2


def calls(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls of a function in which one parameter has something else: its name, and all arguments."""
    parameters = [p for p in inspect.signature(FUNCTIONS[name]).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    base = {p.name: usual(name, p) for p in parameters if p.default is p.empty}
    with fs.program():
        other = layer.data("other", shape=["batch", 4])
    for parameter in parameters:
        for given in (None, 3, 1.5, "x", [], [None], {}, np.ones(3), object(), other):
            yield parameter.name, {**base, parameter.name: given}


def described() -> list[tuple[list[str], list[str]]]:
    """What the programs have; not as text, since a flag may be one of those other things."""
    programs = (fs.default_main_program(), fs.default_startup_program())
    return [([v.name for b in p.blocks for v in b.vars.values()], [op.type for op in p.all_ops()]) for p in programs]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", one_in(8, FUNCTIONS))
def test_other_things_than_arguments(name: str) -> None:
    function = FUNCTIONS[name]
    with fs.program():
        for parameter, arguments in [*calls(name)]:
            before = described()
            try:
                function(**arguments)
            except ForeshapeError as error:
                assert described() == before, str(error)
                if error.__cause__ is not None:
                    words = str(error)
                    assert words.startswith(f"{function.__name__}:"), words
                    assert f" {parameter} must be" in words, words
                    assert "; seen " in words, words
                    assert "\n    at function(**arguments)    test_layer_borders.py:" in words, words


def refused(function: Callable[[], Any]) -> str:
    """The words of the error; nothing that was described before the call is changed by it."""
    before = described(), [str(g) for g in fs.default_main_program().guards]
    with pytest.raises(fs.SchemaError) as caught:
        function()
    assert (described(), [str(g) for g in fs.default_main_program().guards]) == before
    assert caught.value.__cause__ is not None
    return str(caught.value)


def test_the_words() -> None:
    x = layer.data("x", shape=["batch", 4])
    said = "fc: x must be a variable or a list of variables (``[..., features]``); seen 3"
    assert refused(lambda: layer.fc(3, 10)).startswith(f"{said}\n    at assert refused(lambda: layer.fc(3, 10))")
    assert "reshape: shape must be a list or a variable (" in refused(lambda: layer.reshape(x, None))
    assert "yolo_box:\n    img_size must be a variable (" in refused(lambda: layer.detection.yolo_box(x, 3, None, 2))


def test_of_arguments_that_fit_those_that_the_line_names() -> None:
    x = layer.data("x", shape=["batch", 3, 8, 8])
    words = refused(lambda: layer.detection.prior_box(x, x, [4.0], steps=[]))
    assert words.startswith("prior_box: cannot be described with these arguments: IndexError: list index out of range\n    steps must be a list of numbers (")
    assert "min_sizes" not in words


def test_parameters_and_ops_before_the_failure_are_taken_back() -> None:
    x = layer.data("x", shape=["batch", 4])
    assert "fc: activation must be a string, a function or None" in refused(lambda: layer.fc(x, 10, activation=3))
    assert fs.default_startup_program().parameter_settings == {}
    y = layer.fc(x, 10, weight=fs.ParamAttr(learning_rate=2.0))
    kept = list(fs.default_main_program().parameter_settings)
    refused(lambda: layer.fc(y, 10, activation=[], weight=fs.ParamAttr(learning_rate=2.0)))
    assert list(fs.default_main_program().parameter_settings) == kept


def test_errors_of_this_package_take_back_too() -> None:
    x = layer.data("x", shape=["batch", 4])
    before = described()
    with pytest.raises(fs.SchemaError, match="no activation"):
        layer.fc(x, 10, activation="relux")
    assert described() == before


def test_what_was_demanded_of_sizes_is_taken_back() -> None:
    x, y = layer.data("x", shape=["rows", 4]), layer.data("y", shape=["others", 4])

    def sum_of_both(x: fs.Variable) -> Any:
        layer.add(x, layer.matmul(layer.matmul(y, y, transpose_y=True), y))
        return None + 3  # pyright: ignore

    with pytest.raises(TypeError, match="unsupported operand"):
        layer.activate(x, sum_of_both)
    assert [str(g) for g in fs.default_main_program().guards] == []
    layer.add(x, y)
    assert len(fs.default_main_program().guards) == 1


def test_a_loop_that_fails_leaves_no_block() -> None:
    x = layer.data("x", shape=["batch", 4])
    refused(lambda: layer.while_loop(lambda: x, lambda v: v, [x]))

    def body(v: fs.Variable) -> fs.Variable:
        return layer.fc(v, 4, activation=3)  # pyright: ignore

    before = described()
    with pytest.raises(fs.SchemaError, match=r"(?s)^fc: activation must be .*at return layer.fc\(v, 4, activation=3\)"):
        layer.while_loop(lambda v: layer.less_than(layer.mean(v), 1.0), body, [x])
    assert described() == before
    assert len(fs.default_main_program().blocks) == 1
    layer.relu(x)
    assert [op.type for op in fs.default_main_program().all_ops()] == ["relu"]


def test_a_block_that_goes_on_keeps_what_it_had() -> None:
    x = layer.data("x", shape=["batch", 4])

    def body(v: fs.Variable) -> fs.Variable:
        out = layer.scale(v, 2.0)
        with pytest.raises(fs.SchemaError, match="activation must be"):
            layer.fc(out, 4, activation=3)  # pyright: ignore
        return out

    layer.while_loop(lambda v: layer.less_than(layer.mean(v), 1.0), body, [x])
    program = fs.default_main_program()
    assert "scale" in [op.type for op in program.blocks[1].ops]
    assert program.parameters() == []
    program.infer()


def test_errors_of_the_users_own_functions_pass() -> None:
    x = layer.data("x", shape=["batch", 4])

    def fails(v: fs.Variable) -> fs.Variable:
        layer.fc(v, 3)
        raise LookupError("mine")

    before = described()
    for call in (lambda: layer.activate(x, fails), lambda: layer.while_loop(lambda v: layer.less_than(layer.mean(v), 1.0), fails, [x])):
        with pytest.raises(LookupError, match=r"^'?mine'?$"):
            call()
        assert described() == before


def test_pythons_word_on_a_call_passes() -> None:
    with pytest.raises(TypeError, match=r"fc\(\) missing 1 required positional argument"):
        layer.fc(layer.data("x", shape=["batch", 4]))  # pyright: ignore
    with pytest.raises(TypeError, match="unexpected keyword argument 'inplace'"):
        layer.relu(layer.data("y", shape=["batch", 4]), inplace=True)  # pyright: ignore


def test_layers_are_what_they_were() -> None:
    for name, function in FUNCTIONS.items():
        assert pickle.loads(pickle.dumps(function)) is function, name
        assert function.__name__ == name.rpartition(".")[2]
        assert inspect.getdoc(function)
        assert inspect.signature(function).return_annotation is not inspect.Signature.empty


def test_tensors_in_the_place_of_a_list_and_sizes_that_are_none_are_told_by_their_argument() -> None:
    x, image = layer.data("x", ["batch", 4]), layer.data("image", ["batch", 3, 8, 8])
    cases: list[tuple[Any, str]] = [
        (lambda: layer.concat(x, x), r"concat: xs must be a list of tensors, as concat\(\[x, y\]\); seen the tensor x"),
        (lambda: layer.stack(x), r"stack: xs must be a list of tensors"),
        (lambda: layer.fc(x, -1), "fc: output_size must be a whole number, at least 0; seen -1"),
        (lambda: layer.fc(x, "10"), "fc: output_size must be a whole number, at least 0; seen '10'"),
        (lambda: layer.conv2d(image, -1, 3), r"conv2d\(image\): num_filters must be a whole number, at least 0; seen -1"),
        (lambda: layer.data("texts", "batch,8"), r"""data\("texts"\): shape must be a list of its sizes, as in \["batch", 8\]; seen 'batch,8'"""),
    ]
    for call, words in cases:
        with pytest.raises(fs.DescriptionError, match=words):
            call()
