"""Branches that give tensors of different numbers of dims, as PaddlePaddle's own programs have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer


def test_a_result_of_either_rank_is_given_on_and_fetched_and_not_computed_with() -> None:
    x = layer.data("x", shape=["batch", 4])
    given = {"X": [x * 2.0, layer.reduce_sum(x, [1])], "Mask": layer.cast(layer.mean(x) > 0, "int32")}
    found = fs.default_main_program().global_block.apply("select_input", given)
    out = layer.cast(layer.assign(found * 3.0), "fp64")
    program = fs.default_main_program()
    assert str(found).endswith("f32[?]") and out.spec.dims is None
    for loaded in (program, fs.load_program(program.to_bytes()), fs.Program.parse(str(program))):
        for check in (False, True):
            run = fs.Executor(check=check).run
            for fill, want in ((1.0, np.full(2, 12.0)), (-1.0, np.full((2, 4), -6.0))):
                np.testing.assert_array_equal(run(loaded, {"x": np.full((2, 4), fill, "float32")}, [out.name], fs.Scope())[0], want)
    assert [u.op.type for u in fs.Plan(program, [found]).unknown()] == ["select_input"]
    with pytest.raises(fs.ShapeError, match=r"relu: nothing is known of X\n +X = scale_\d.tmp_0 +f32\[\?\]|relu: nothing is known of X"):
        layer.relu(found)
    again = fs.default_main_program().global_block.apply("select_input", given | {"X": [found, x]})
    assert again.spec.dims is None


def test_a_branch_decides_the_number_of_dims_and_reshape_states_it(tmp_path: Path) -> None:
    x, flag = layer.data("x", shape=["batch", 3]), layer.data("flag", shape=[], dtype="bool")
    total = layer.reduce_sum(layer.fc(x, 1, bias=False))
    either = layer.cond(flag, lambda: total * 1.0, lambda: layer.reshape(total * 2.0, [1]))
    assert either.spec.dims is None
    loss = layer.mean(layer.reshape(either, [1]))
    with pytest.raises(fs.ShapeError, match="a 0 in shape would copy: state it"):
        layer.reshape(either, [0])
    program, scope = fs.default_main_program(), fs.Scope()
    made = fs.training_program(loss, fs.optimizer.SGD(0.1))
    assert str(fs.Program.parse(str(made.program))) == str(made.program)
    run = fs.Executor().run
    run(made.startup, scope=scope)
    (weight,) = (v.name for v in program.parameters())
    ones = np.ones((2, 3), "float32")
    for holds, dims, slope in ((True, (), 2.0), (False, (1,), 4.0)):
        feed = {"x": ones, "flag": np.array(holds)}
        assert run(program, feed, [either], scope)[0].shape == dims
        before = np.array(scope.get(weight))
        run(made.program, feed, [loss.name], scope)
        np.testing.assert_allclose((before - np.array(scope.get(weight))) / 0.1, np.full((3, 1), slope), rtol=1e-4)
    fs.save_inference_model(tmp_path / "net", [x, flag], [either], program=program, scope=scope)
    opened = fs.load_inference_model(tmp_path / "net", scope=fs.Scope())
    assert [opened.run({"x": ones, "flag": np.array(holds)})[0].shape for holds in (True, False)] == [(), (1,)]


def test_dims_that_a_branch_has_not_are_told_by_the_run() -> None:
    x, flag = layer.data("x", shape=["batch", 3]), layer.data("flag", shape=[], dtype="bool")
    out = layer.reshape(layer.cond(flag, lambda: layer.reduce_sum(x), lambda: x), [1])
    feed = {"x": np.ones((2, 3), "float32")}
    assert fs.Executor().run(feed=feed | {"flag": np.array(True)}, fetch=[out])[0].tolist() == [6.0]
    with pytest.raises(fs.ExecutionError, match="reshape2"):
        fs.Executor().run(feed=feed | {"flag": np.array(False)}, fetch=[out])


def test_what_stands_for_a_variable_that_nobody_set_says_nothing_of_the_result() -> None:
    """PaddlePaddle joins what one branch alone sets with one number of fp32, 1.77113e27, whatever the type of the other."""
    ids = layer.data("ids", shape=["batch", 3], dtype="int64")
    block = fs.default_main_program().global_block
    unset = block.apply("assign_value", {}, {"shape": [1], "dtype": 5, "fp32_values": [float(np.float32(1.77113e27))]})
    other = block.apply("assign_value", {}, {"shape": [1], "dtype": 5, "fp32_values": [2.0]})
    second = layer.cast(layer.reduce_sum(ids) > 0, "int32")
    for given in ([unset, ids], [layer.assign(unset), ids], [ids, unset]):
        out = block.apply("select_input", {"X": given, "Mask": second})
        assert out.dtype is fs.INT64 and out.dims == ids.dims
        assert (out + out).dims == ids.dims
    assert block.apply("select_input", {"X": [unset, unset], "Mask": second}).spec.dims == (1,)
    with pytest.raises(fs.TypeMismatchError, match="one element type"):
        block.apply("select_input", {"X": [other, ids], "Mask": second})
    program = fs.default_main_program()
    first = next(op for op in program.all_ops() if op.type == "select_input").outputs["Out"][0]
    value = np.arange(6).reshape(2, 3)
    for loaded in (program, fs.load_program(program.to_bytes())):
        np.testing.assert_array_equal(fs.Executor().run(loaded, {"ids": value}, [first], fs.Scope())[0], value)


def test_sizes_and_numbers_of_several_widths_are_joined_as_the_last_one() -> None:
    """As PaddlePaddle joins a size, which is int32, with a number of Python's, which is int64; one of them may be of a block that did not run."""
    x = layer.data("x", shape=["batch", 3])
    block = fs.default_main_program().global_block
    size = layer.reshape(layer.slice(layer.shape(x), [0], [0], [1]), [1])
    many = layer.fill_constant([1], "int64", -1)
    mask = layer.cast(layer.reduce_sum(x) > 0, "int32")
    sizes, numbers = (block.apply("select_output", {"X": v, "Mask": mask}, {"branches": 2}) for v in (size, many))
    for order in ([size, many], [many, size], [sizes[0], numbers[1]], [numbers[0], sizes[1]]):
        out = block.apply("select_input", {"X": order, "Mask": mask})
        assert out.dtype is order[1].dtype and out.spec.dims == (1,)
        program = fs.default_main_program()
        for loaded in (program, fs.load_program(program.to_bytes())):
            for check in (False, True):
                for at, fill in enumerate((-1.0, 1.0)):
                    (found,) = fs.Executor(check=check).run(loaded, {"x": np.full((5, 3), fill, "float32")}, [out.name], fs.Scope())
                    assert found.dtype == order[1].spec.known_dtype.name and list(found) == [5 if order[at].dtype is size.dtype else -1]
    with pytest.raises(fs.TypeMismatchError, match="or be integers"):
        block.apply("select_input", {"X": [many, layer.fill_constant([1], "float32", 1.0)], "Mask": mask})
