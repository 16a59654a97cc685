"""What is printed and asserted while a program runs, and what cannot run at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.program import Program

X = np.arange(6, dtype="float32").reshape(2, 3) / 3


def run(feed: dict[str, Any], *fetch: Any, executor: fs.Executor | None = None) -> list[Any]:
    return (executor or fs.Executor()).run(fs.default_main_program(), feed, list(fetch), fs.Scope())


def test_a_value_and_its_gradient_are_printed_and_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    x = layer.data("x", shape=[2, 3])
    x.stop_gradient = False
    seen = layer.print(x, message="here", summarize=4)
    loss = layer.reduce_sum(layer.square(seen))
    ((_, gradient),) = fs.append_backward(loss, ["x"])
    value, d_x = run({"x": X}, loss, gradient)
    np.testing.assert_allclose(value, (X**2).sum(), rtol=1e-6)
    np.testing.assert_allclose(d_x, 2 * X, rtol=1e-6)
    forward, backward = capsys.readouterr().out.split("Variable: ")[1:]
    what = "  - message: here\n  - lod: {{}}\n  - place: Place(cpu)\n  - shape: [2, 3]\n  - dtype: float32\n  - data: [{}]\n"
    assert forward == "x\n" + what.format("0 0.333333 0.666667 1")
    assert backward == f"{seen.name}@GRAD\n" + what.format("0 0.666667 1.33333 2")


@pytest.mark.parametrize(("phase", "names"), [("forward", ["x"]), ("backward", ["print_0.tmp_0@GRAD"])])
def test_one_phase_is_printed(phase: str, names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    x = layer.data("x", shape=[2, 3])
    x.stop_gradient = False
    ((_, gradient),) = fs.append_backward(layer.reduce_sum(layer.print(x, phase=phase)), ["x"])
    run({"x": X}, gradient)
    assert [line.removeprefix("Variable: ") for line in capsys.readouterr().out.splitlines() if line.startswith("Variable")] == names


def test_each_print_counts_its_own_runs_and_is_not_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    x = layer.data("x", shape=[2, 3])
    layer.print(x, message="once", first_n=1)
    layer.print(x, message="twice", first_n=2)
    out, executor = layer.mean(x), fs.Executor()
    for _ in range(3):
        run({"x": X}, out, executor=executor)
    told = capsys.readouterr().out
    assert told.count("once") == 1 and told.count("twice") == 2


def test_the_sequences_of_rows_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = layer.data("words", shape=[-1, 1], dtype="int64", lod_level=1)
    out = layer.print(words)
    run({"words": LoDTensor(np.arange(5).reshape(5, 1), [[2, 3]])}, out)
    told = capsys.readouterr().out
    assert "  - lod: {{0, 2, 5}}\n" in told and "  - data: [0 1 2 3 4]\n" in told


def test_an_assertion_that_fails_tells_its_data_and_its_line() -> None:
    x = layer.data("x", shape=[2, 3])
    layer.assert_true(layer.reduce_all(layer.less_than(x, 5.0)), [x], summarize=2)
    out = layer.mean(x)
    assert run({"x": X}, out)[0] == pytest.approx(X.mean())
    with pytest.raises(ExecutionError) as caught:
        run({"x": X + 4}, out)
    assert "must be true, but was false\n    x = [2, 3] [4 4.33333]" in str(caught.value) and "test_watching.py" in str(caught.value)


def test_a_python_function_of_another_process_is_refused_with_the_reason() -> None:
    with pytest.raises(SchemaError, match="no file holds"):
        Program().global_block.append_op("py_func", {}, {})
    program = Program()
    with fs.program_guard(program, Program()):
        out = layer.sigmoid(layer.data("x", shape=[2, 3]))
    loaded = Program.from_bytes(program.to_bytes().replace(b"sigmoid", b"py_func"))  # a name as long
    assert [op.type for op in loaded.infer()] == ["py_func"]
    with pytest.raises(ExecutionError, match=r"'py_func' cannot run here: it calls a Python function .* an operator of your own"):
        fs.Executor().run(loaded, {"x": X}, [out.name.replace("sigmoid", "py_func")], fs.Scope())


def test_numbers_are_counted_and_what_is_none_is_told_or_stops_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    x = layer.data("x", shape=[5])
    block = fs.default_main_program().global_block
    asked = {"op_type": "pow", "var_name": "loss"}
    stats, values = block.apply("check_numerics", {"tensor": x}, asked | {"check_nan_inf_level": 1})
    bad = np.array([1.0, np.nan, 0.0, -np.inf, 3.0], "float32")
    counts, found = run({"x": bad}, stats, values)
    assert counts.tolist() == [1, 1, 1]
    np.testing.assert_array_equal(found, np.array([3.0, -np.inf, np.nan], "float32"))
    assert capsys.readouterr().out == "loss of pow: 5 numbers, NaN 1, infinite 1, 0 1, largest 3, least -inf, mean nan\n"
    assert run({"x": np.arange(5, dtype="float32")}, stats, values)[1].tolist() == [4.0, 0.0, 2.0]
    assert capsys.readouterr().out == ""
    block.apply("check_numerics", {"tensor": x}, asked)
    with pytest.raises(ExecutionError, match="loss of pow: 5 numbers, NaN 1, infinite 1"):
        run({"x": bad}, stats)  # nobody asks for what stops it
