"""What is said of whole programs: shapes that are not the file's, variables that are read too early, ops that do nothing, unknown operators."""

import re

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.program.unknown import unknown_types
from foreshape.language.views.review import dead_ops, differences, read_before_written


def again(program):
    out = fs.Program.from_bytes(program.to_bytes())
    out.diagnose()
    return out


def test_shapes_that_are_not_the_files():
    from foreshape.language.wire import framework_pb2 as pb

    x = layer.data("x", shape=["batch", 4])
    layer.relu(layer.fc(x, 3))
    program = again(fs.default_main_program())
    assert differences(program) == []
    message = pb.ProgramDesc.FromString(fs.default_main_program().to_bytes())
    made = next(v for v in message.blocks[0].vars if v.name == "fc_0.tmp_1")
    made.type.lod_tensor.tensor.dims[1] = 7
    made.ClearField("extra")
    open_ones = next(v for v in message.blocks[0].vars if v.name == "fc_0.tmp_0")
    open_ones.type.lod_tensor.tensor.dims[1] = -1  # says less, and nothing else
    open_ones.ClearField("extra")
    (found,) = differences(again(fs.Program.from_bytes(message.SerializeToString())))
    assert (found.variable.name, found.variable.spec.text(), found.stored) == ("fc_0.tmp_1", "f32[batch, 3]", "f32[-1, 7]")


def test_variables_that_are_read_before_they_are_written(tmp_path):
    x = layer.data("x", shape=["batch", 4])
    y = layer.relu(x)
    z = layer.tanh(y)
    program = fs.default_main_program()
    assert read_before_written(program) == [] and dead_ops(program) == []
    block = program.global_block
    block.ops.reverse()
    program.touch()
    (found,) = read_before_written(program)
    assert found.name == y.name and found.reader.type == "tanh" and found.writer is not None and found.writer.type == "relu"
    block.ops.reverse()
    fs.save_inference_model(tmp_path / "m", [x], [z], scope=fs.Scope())
    loaded = fs.load_program(tmp_path / "m.pdmodel")
    block = loaded.global_block
    block.remove_op(block.ops[0])
    assert read_before_written(again(loaded)) == []  # without feed ops, x is what is fed
    loaded = fs.load_program(tmp_path / "m.pdmodel")
    relu = next(op for op in loaded.all_ops() if op.type == "relu")
    loaded.global_block.remove_op(relu)
    (found,) = read_before_written(again(loaded))
    assert (found.name, found.reader.type, found.writer) == (y.name, "tanh", None)


def test_ops_on_which_nothing_depends(tmp_path):
    x = layer.data("x", shape=["batch", 4])
    y = layer.relu(x)
    fs.save_inference_model(tmp_path / "m", [x], [y], scope=fs.Scope())
    program = fs.load_program(tmp_path / "m.pdmodel")
    assert dead_ops(program) == []
    program.global_block.append_op("tanh", {"X": "x"}, {"Out": "nobody_reads_it"})
    assert [op.type for op in dead_ops(again(program))] == ["tanh"]


def test_an_unknown_operator_in_a_loop_is_found_and_what_depends_on_it_is_marked():
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x = layer.data("x", shape=["batch", 3])
        count, most = layer.fill_constant([1], "int64", 0), layer.fill_constant([1], "int64", 4)
        start = layer.tanh(x)
        _, total = layer.while_loop(lambda i, h: layer.less_than(i, most), lambda i, h: [i + 1, layer.relu(h)], [count, start])
        after = layer.sqrt(total)
        beside = layer.sqrt(x)
    text = str(program)
    text, replaced = re.subn(r"(?m)^(\S+: \S+ 3\]) = relu\(", r"Out=\1 = unheard_of(", text)
    assert replaced == 1
    loaded = fs.Program.from_bytes(fs.Program.parse(text).to_bytes())
    unknown, errors = loaded.diagnose()
    assert errors == []
    (found,) = unknown_types(unknown)
    assert (found.type, found.count, found.first.block.idx) == ("unheard_of", 1, 1)
    assert not loaded.var(after.name).known and loaded.var(beside.name).known
    executor = fs.Executor()
    with pytest.raises(fs.ExecutionError, match=r"the operator 'unheard_of' is not known here \(op \d of block 1"):
        executor.run(loaded, {"x": np.ones((2, 3), np.float32)}, [after.name], fs.Scope())
    (value,) = executor.run(loaded, {"x": np.ones((2, 3), np.float32)}, [beside.name], fs.Scope())
    assert np.array_equal(value, np.ones((2, 3), np.float32))
