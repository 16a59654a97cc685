"""What PaddlePaddle's executor wants to see of a program, and what its files have that nothing reads. Found by running programs there (`make paddle`)."""

from __future__ import annotations

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.program import Program
from foreshape.language.program.op import EMPTY
from foreshape.language.wire import framework_pb2 as pb


def ops_of(program: Program, type: str) -> list[pb.OpDesc]:
    return [op for op in pb.ProgramDesc.FromString(program.to_bytes()).blocks[0].ops if op.type == type]


@pytest.mark.parametrize("centered", [False, True])
def test_an_update_by_rmsprop_names_the_mean_of_the_gradients(centered: bool) -> None:
    main = Program()
    with fs.program_guard(main, Program()):
        loss = layer.mean(layer.fc(layer.data("x", shape=["batch", 3]), 2, bias=False))
        fs.optimizer.RMSProp(0.1, centered=centered).minimize(loss)
    (op,) = ops_of(main, "rmsprop")
    (named,) = [list(v.arguments) for v in op.outputs if v.parameter == "MeanGradOut"]
    assert (named == [EMPTY]) is not centered
    assert ("MeanGrad" in {v.parameter for v in op.inputs}) is centered
    program = Program.from_bytes(main.to_bytes())
    program.forget()
    assert program.infer() == []


def test_a_result_that_the_inputs_do_not_give_is_refused_under_a_name() -> None:
    main = Program()
    with fs.program_guard(main, Program()):
        loss = layer.mean(layer.fc(layer.data("x", shape=["batch", 3]), 2, bias=False))
        fs.optimizer.RMSProp(0.1).minimize(loss)
    (op,) = [op for op in main.all_ops() if op.type == "rmsprop"]
    given = {slot: list(names) for slot, names in op.inputs.items()}
    with pytest.raises(fs.SchemaError, match="there is no result MeanGradOut"):
        main.global_block.append_op("rmsprop", given, {"ParamOut": op.outputs["ParamOut"][0], "MeanGradOut": "mean_grad"}, {})


def test_the_gradient_of_a_pooled_sequence_says_whether_it_is_a_test() -> None:
    main = Program()
    with fs.program_guard(main, Program()):
        x = layer.data("x", shape=["words", 3], lod_level=1)
        fs.append_backward(layer.mean(layer.fc(layer.sequence_pool(layer.fc(x, 2), "sum"), 1)))
    (op,) = ops_of(main, "sequence_pool_grad")
    assert "is_test" in {a.name for a in op.attrs}


def test_the_gradient_of_batch_norm_takes_the_moving_statistics_and_does_without() -> None:
    main = Program()
    with fs.program_guard(main, Program()):
        x = layer.data("x", shape=["batch", 3, 4, 5])
        fs.append_backward(layer.mean(layer.batch_norm(layer.conv2d(x, 2, 3), use_global_stats=True)))
    (op,) = ops_of(main, "batch_norm_grad")
    slots = {v.parameter: list(v.arguments) for v in op.inputs}
    assert slots["Mean"] == slots["MeanOut"] and slots["Variance"] == slots["VarianceOut"]
    message = pb.ProgramDesc.FromString(main.to_bytes())
    (written,) = [op for op in message.blocks[0].ops if op.type == "batch_norm_grad"]
    kept = [v for v in written.inputs if v.parameter not in ("Mean", "Variance")]  # so it is where the statistics are the batch's
    del written.inputs[:]
    written.inputs.extend(kept)
    program = fs.load_program(message.SerializeToString())
    program.forget()
    assert program.infer() == []


def saved(dims: list[int], read: bool, fed: bool = False) -> bytes:
    """A program with a variable that no op makes."""
    main = Program()
    with fs.program_guard(main, Program()):
        x = layer.data("x", shape=["batch", 3])
        layer.relu(x)
    message = pb.ProgramDesc.FromString(main.to_bytes())
    block = message.blocks[0]
    left = block.vars.add(name="left", need_check_feed=fed)
    left.type.type = pb.VarType.LOD_TENSOR
    left.type.lod_tensor.tensor.data_type = pb.VarType.FP32
    left.type.lod_tensor.tensor.dims.extend(dims)
    if read:
        block.ops[0].inputs[0].arguments[0] = "left"
    return message.SerializeToString()


def test_a_result_without_its_op_may_have_a_product_with_minus_one_as_dim() -> None:
    """Of a saved instance_norm the results SavedMean and SavedVariance are gone, and their variables are there: [-3] for batch * 3."""
    program = fs.load_program(saved([-3], read=False))
    assert program.infer() == [] and program.to_bytes() == saved([-3], read=False)
    for data in (saved([-3, 2], read=True), saved([-3], read=False, fed=True)):
        with pytest.raises(fs.FormatError, match="a dim must be at least 0"):
            fs.load_program(data)
