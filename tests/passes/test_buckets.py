"""Which gradients travel in one message."""

from __future__ import annotations

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.optimizer import SGD


def messages(program: fs.Program) -> list[list[str]]:
    """What each sum over the ranks carries, in the order in which they begin."""
    ops = program.global_block.ops
    filled = {op.output("FusedOutput"): list(op.inputs["Input"]) for op in ops if op.type == "coalesce_tensor"}
    return [filled.get(op.input("X"), [str(op.input("X"))]) for op in ops if op.type == "c_allreduce_sum"]


def stack(*sizes: int) -> tuple[fs.Program, fs.Variable]:
    """A stack of layers of these sizes with its updates; and its loss."""
    x = layer.data("x", shape=["batch", sizes[0]])
    for size in sizes[1:]:
        x = layer.fc(x, size)
    cost = layer.mean(x)
    SGD(0.1).minimize(cost)
    return fs.default_main_program(), cost


def test_small_gradients_and_the_loss_are_one_message():
    program, cost = stack(8, 8, 8)
    sent = messages(fs.data_parallel().apply(program, cost, 2).program)
    assert sent == [[f"{cost.name}@RANK", *(f"fc_{i}.{w}_0@GRAD" for i in (1, 0) for w in "bw")]]


def test_what_fills_a_bucket_goes_alone_and_between_small_ones():
    program, cost = stack(64, 64, 64, 4)
    sent = messages(fs.data_parallel(bucket=64 * 64 * 4).apply(program, cost, 2).program)
    small = [f"{cost.name}@RANK", "fc_2.b_0@GRAD", "fc_2.w_0@GRAD", "fc_1.b_0@GRAD", "fc_0.b_0@GRAD"]
    assert sent == [["fc_1.w_0@GRAD"], small, ["fc_0.w_0@GRAD"]], "no bias has a message of its own"


@pytest.mark.parametrize("bucket", [200, 512])
def test_a_bucket_has_no_more_than_was_said(bucket: int):
    program, cost = stack(4, *[4] * 12)
    sent = messages(fs.data_parallel(bucket=bucket).apply(program, cost, 2).program)
    sizes = [sum(4 if name.endswith("@RANK") else program.global_block.var(name).spec.nbytes for name in names) for names in sent]
    assert len(sent) > 1
    assert max(sizes) <= bucket
    assert sorted(n for names in sent for n in names) == sorted({f"{cost.name}@RANK", *(f"fc_{i}.{w}_0@GRAD" for i in range(12) for w in "bw")})


def test_a_loss_of_another_element_type_goes_alone():
    x = layer.data("x", shape=["batch", 4])
    cost = layer.mean(layer.cast(layer.fc(x, 3), "float64"))
    SGD(0.1).minimize(cost)
    sent = messages(fs.data_parallel().apply(fs.default_main_program(), cost, 2).program)
    assert sent == [[f"{cost.name}@RANK"], ["fc_0.b_0@GRAD", "fc_0.w_0@GRAD"]]


def updated(program: fs.Program) -> list[str]:
    """What is updated, in order, of the matrices; of a part of several parameters its gradients' bucket."""
    found = [str(op.input("Param")) for op in program.global_block.ops if op.type == "sgd"]
    return [name for name in found if not name.startswith("fc") or name.endswith("w_0")]


def test_parameters_are_updated_in_the_order_in_which_their_gradients_come():
    program, cost = stack(64, 64, 64, 4)
    assert updated(program) == ["fc_0.w_0", "fc_1.w_0", "fc_2.w_0"]
    made = fs.data_parallel(bucket=64 * 64 * 4).apply(program, cost, 2).program
    assert updated(made) == ["fc_1.w_0", "fc_2.w_0", "fc_0.w_0"], "that of the first layer comes last: the others are updated meanwhile"
    sharded = fs.shard_optimizer(bucket=64 * 64 * 4).apply(program, cost, 2).program
    sent = [str(op.input("X")) for op in sharded.global_block.ops if op.type in ("c_reducescatter", "c_allgather")]
    assert [name.rpartition("_")[2] for name in sent] == ["0", "1", "2"] * 2, "gathered in the order in which they were summed"


def test_updates_that_need_one_another_stay_in_their_order():
    program, cost = stack(1, 1, 4)
    first, second = (op for op in program.global_block.ops if op.type == "sgd" and str(op.input("Param")).endswith("w_0"))
    second.set_input("LearningRate", str(first.output("ParamOut")))  # as no optimizer writes it
    made = fs.data_parallel(bucket=1).apply(program, cost, 2).program
    assert updated(made) == ["fc_0.w_0", "fc_1.w_0"]
