"""Passes: named, on a copy, verified after; prune and for_test."""

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Op, Role
from foreshape.language.wire import framework_pb2 as pb
from foreshape.transforms.passes import Pass, apply, for_test, named, prune
from foreshape.transforms.passes.prune import for_step


@pytest.fixture
def net():
    x, label = layer.data("x", dims=7), layer.data("label", dims=1, dtype="int64")
    hidden = layer.fc(x, 6, activation="relu")
    cost = layer.mean(layer.softmax_with_cross_entropy(hidden, label))
    layer.fc(x, 9)  # nobody needs this
    fs.optimizer.SGD(0.1).minimize(cost)
    return {"program": fs.default_main_program(), "hidden": hidden.name, "cost": cost.name}


def types(program):
    return [op.type for op in program.global_block.ops]


def test_prune_keeps_what_the_fetches_need(net):
    before = net["program"].to_bytes()
    out = prune(net["program"], ["x"], [net["hidden"]])
    assert types(out) == ["mul", "elementwise_add", "relu"]
    assert set(out.global_block.vars) == {"x", "fc_0.w_0", "fc_0.b_0", "fc_0.tmp_0", "fc_0.tmp_1", "fc_0.tmp_2"}
    assert net["program"].to_bytes() == before


def test_prune_stops_at_what_is_fed(net):
    out = prune(net["program"], [net["hidden"], "label"], [net["cost"]])
    assert types(out) == ["softmax_with_cross_entropy", "mean"]
    assert "x" not in out.global_block.vars and out.var(net["hidden"]).op is None


def test_prune_without_feeds_lets_everything_be_fed(net):
    assert types(prune(net["program"], None, [net["cost"]]))[-1] == "mean"


def test_prune_names_what_is_not_fed_and_what_is_not_there(net):
    with pytest.raises(fs.SchemaError, match=r"needs label .* not among the feeds; it is described at test_prune\.py"):
        prune(net["program"], ["x"], [net["cost"]])
    with pytest.raises(fs.SchemaError, match="no variable 'nothing'"):
        prune(net["program"], ["x"], ["nothing"])
    with pytest.raises(fs.SchemaError, match="at least one"):
        prune(net["program"], ["x"], [])


def test_for_test_drops_training_and_switches_is_test(net):
    out = for_test(net["program"])
    assert all(not op.role & (Role.BACKWARD | Role.OPTIMIZE | Role.LEARNING_RATE) for op in out.all_ops())
    assert types(out)[-2:] != [] and "sgd" not in types(out) and not any(n.endswith("@GRAD") for n in out.global_block.vars)
    assert {"x", "label", net["cost"]} <= set(out.global_block.vars)
    assert for_test(out) is out  # nothing is left to change


def test_for_test_switches_dropout_and_batch_norm():
    x = layer.data("x", shape=[-1, 3, 8, 8])
    block = fs.default_main_program().global_block
    block.apply("dropout", {"X": x}, {"dropout_prob": 0.5})
    out = for_test(fs.default_main_program())
    assert out.global_block.ops[0].attrs["is_test"] is True
    assert block.ops[0].attrs["is_test"] is False


def test_for_test_switches_an_op_whose_file_leaves_is_test_at_its_default():
    x = layer.data("x", shape=[-1, 3])
    block = fs.default_main_program().global_block
    block.apply("dropout", {"X": x}, {"dropout_prob": 0.5})
    message = pb.ProgramDesc.FromString(fs.default_main_program().to_bytes())
    attrs = message.blocks[0].ops[0].attrs
    del attrs[next(i for i, a in enumerate(attrs) if a.name == "is_test")]
    loaded = fs.load_program(message.SerializeToString())
    assert for_test(loaded).global_block.ops[0].attrs["is_test"] is True


def test_a_value_that_a_block_may_leave_alone_keeps_its_earlier_writer():
    """A conditional block may not run, so that what was there before it is still needed; other blocks move up."""
    program = with_blocks()
    out = prune(program, None, ["chosen"])
    assert types(out) == ["assign", "conditional_block"]
    assert len(out.blocks) == 2 and out.global_block.ops[1].attrs["sub_block"] == 1
    assert out.blocks[1].idx == 1 and out.blocks[1].parent_idx == 0 and [op.type for op in out.blocks[1].ops] == ["assign"]
    assert {"x", "y", "cond", "chosen"} <= set(out.global_block.vars) and "other" not in out.global_block.vars
    pb.ProgramDesc.FromString(out.to_bytes())
    assert fs.Program.from_bytes(out.to_bytes()).to_bytes() == out.to_bytes()


def with_blocks():
    """x or y is assigned to ``chosen`` in block 2; block 1 is another conditional's, which nobody needs."""
    program = fs.Program()
    with fs.program_guard(program):
        x, y = layer.data("x", dims=3), layer.data("y", dims=3)
        cond = layer.data("cond", shape=[1], dtype="bool")
        block = program.global_block
        block.append_op("assign", {"X": x}, {"Out": "chosen"})
        block.append_op("assign", {"X": x}, {"Out": "other"})
        for target in ("other", "chosen"):
            inner = program.create_block()
            inner.append_op("assign", {"X": y}, {"Out": target})
            attributes = Attributes.of("conditional_block", (("sub_block", AttrType.BLOCK, inner.idx),))
            block.ops.append(Op(block, attributes, {"Cond": [cond.name], "Input": ["y"]}, {"Out": [target]}))
    return program


def test_a_pass_is_run_on_a_copy_and_verified():
    x = layer.data("x", dims=3)
    layer.relu(x)
    program = fs.default_main_program()

    @named("to_sigmoid")
    def to_sigmoid(copy):
        op = copy.global_block.ops[0]
        inputs, outputs = {s: list(n) for s, n in op.inputs.items()}, {s: list(n) for s, n in op.outputs.items()}
        copy.global_block.remove_op(op)
        copy.global_block.append_op("sigmoid", inputs, outputs)
        return True

    nothing = Pass("nothing", lambda copy: False)
    out, changed = apply(program, [nothing, to_sigmoid])
    assert changed == ["to_sigmoid"] and types(out) == ["sigmoid"] and types(program) == ["relu"]
    assert nothing(program) == (program, False) and repr(nothing) == "Pass('nothing')"


def test_what_a_pass_breaks_is_named():
    layer.relu(layer.data("x", dims=3))

    @named("careless")
    def careless(copy):
        copy.global_block.ops[0].rename_input("x", "gone")
        return True

    with pytest.raises(fs.SchemaError, match="gone") as error:
        careless(fs.default_main_program())
    assert error.value.__notes__ == ["after the pass careless"]


def test_a_step_alone_has_its_own_guards(net):
    program, x = net["program"], net["program"].var("x")
    assert for_step(program, [net["cost"]]) is program  # what nobody needs guards nothing
    with fs.program_guard(program):
        halves = layer.reshape(x, [2, -1])
        layer.mean(layer.reshape(halves, [-1, 4]))
    step = for_step(program, [net["cost"]])
    assert len(program.guards) == 2 and not list(step.guards) and "reshape2" not in types(step)
    assert {v.name for v in step.all_variables()} >= {"x", "label", "fc_1.w_0"} and halves.name not in step.global_block.vars
    assert [str(g) for g in for_step(program, [net["cost"], halves.name]).guards] == [str(program.guards.list()[0])]
