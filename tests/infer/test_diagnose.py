"""A program with mistakes in it: each is told once, and again to whoever runs the program or builds on it."""

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.wire import framework_pb2 as pb


def broken():
    """x @ w + b, relu, and a second branch; w has the wrong number of rows."""
    x = layer.data("x", dims=7)
    layer.fc(x, 3, activation="relu")
    layer.relu(x)
    message = pb.ProgramDesc.FromString(fs.default_main_program().to_bytes())
    next(v for v in message.blocks[0].vars if v.name == "fc_0.w_0").type.lod_tensor.tensor.dims[0] = 5
    return fs.load_program(message.SerializeToString())


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_depends_on_a_mistake_is_unknown_and_no_mistake_of_its_own(forgotten):
    program = broken()
    if forgotten:
        program.forget()
    unknown, errors = program.diagnose()
    assert unknown == [] and len(errors) == 1 and "the columns of X must equal the rows of Y" in str(errors[0])
    known = [op.type for op in program.all_ops() if all(program.var(n).known for n in op.output_names())]
    assert known == ["relu"]


def test_showing_a_program_does_not_hide_its_mistakes():
    program = broken()
    assert "mul" in str(program)
    for ask in (program.refresh, lambda: program.guards, lambda: fs.Executor().run(program, {"x": [[0.0] * 7]}, ["fc_0.tmp_2"], scope=fs.Scope())):
        with pytest.raises(fs.ShapeError, match="the columns of X"):
            ask()
