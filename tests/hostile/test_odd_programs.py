"""Programs that are whole as messages and that no library writes: everything that looks at a program says what is wrong, by the op and its operands."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commanded import call
from support.crafted_programs import of_operator, use
from support.harness import operators
from support.messages import attr, block, dense, message, number, op, program, relu, var
from support.some import one_in

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering.lower import Lowering
from foreshape.compiler.memory import Plan
from foreshape.core.spec import FP32, LOD_TENSOR, Lod, Spec
from foreshape.errors import ForeshapeError
from foreshape.language.operator.operator import Operator
from foreshape.language.wire import framework_pb2
from foreshape.runtime.report.write import report_page

X = var("x", dense([-1, 3]), need_check_feed=True)
ROWS = var("x", dense([-1, 3], 5, 1), need_check_feed=True)
AT = var("i", dense([1], 3), need_check_feed=True)
ARRAY = number(1, 13) + message(4, message(1, number(1, 5) + number(2, -1 % 2**64) + number(2, 3)))
TABLE = number(1, 12)


def condition(*inputs: tuple[str, list[str]]) -> bytes:
    """A block that runs where a scalar says so."""
    runs = op("conditional_block", [("Input", ["x"]), *inputs], [("Out", ["y"]), ("Scope", ["s"])], attr("sub_block", 8, number(12, 1)),
              attr("is_scalar_condition", 6, number(10, 1)))  # fmt: skip
    return program(block(X, var("c", dense([2], 0), need_check_feed=True), var("y", dense([-1, 3])), var("s", number(1, 11)), runs),
                   block(relu("x", "y"), idx=1, parent=0))  # fmt: skip


ODD: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "a condition without Cond": (condition(), {"x": np.ones((2, 3), "f4")}, "cond (conditional_block): the input Cond is missing\n    Input = x"),
    "a condition of nothing": (condition(("Cond", [])), {"x": np.ones((2, 3), "f4")}, "the input Cond is missing"),
    "a condition of two": (condition(("Cond", ["c"])), {"x": np.ones((2, 3), "f4"), "c": np.ones(2, bool)}, "Cond must hold one truth value"),
    "an array that is kept": (
        program(block(X, AT, var("a", ARRAY, persistable=True), var("y", dense([-1, 3])), op("write_to_array", [("X", ["x"]), ("I", ["i"])], [("Out", ["a"])]),
                      op("read_from_array", [("X", ["a"]), ("I", ["i"])], [("Out", ["y"])]))),
        {"x": np.ones((2, 3), "f4"), "i": np.zeros(1, "i8")}, "a is persistable: only tensors and sparse rows are kept",
    ),
    "a table that is kept": (
        program(block(ROWS, var("t", TABLE, persistable=True), var("y", dense([-1, 3], 5, 1)), op("lod_rank_table", [("X", ["x"])], [("Out", ["t"])]),
                      op("reorder_lod_tensor_by_rank", [("X", ["x"]), ("RankTable", ["t"])], [("Out", ["y"])]))),
        {"x": fs.LoDTensor(np.ones((3, 3), "f4"), [[1, 2]])}, "t is persistable: only tensors and sparse rows are kept",
    ),
    "rows that are kept": (
        program(block(var("x", dense([7, 3], 5, 1), persistable=True), var("y", dense([-1, 3])), op("sequence_pool", [("X", ["x"])], [("Out", ["y"])]))),
        {}, "sequence_pool: x is persistable: the sequences of its rows",
    ),
    "what is ragged without dims": (
        program(block(var("x", dense([], 5, 1), need_check_feed=True), var("y", dense([-1, 3])), op("sequence_softmax", [("X", ["x"])], [("Out", ["y"])]))),
        {"x": np.ones(3, "f4")}, "sequence_softmax: nothing is known of X: the run decides its number of dims; reshape states them\n    X = x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_told_by_every_command_and_by_the_run(name: str, tmp_path: Path) -> None:
    data, feed, says = ODD[name]
    (tmp_path / "m.pdmodel").write_bytes(data)
    commands = (["show"], ["check"], ["report"], ["plan", "--batch", 2], ["plan", "--set", "x=2"])
    told = [call(word, tmp_path / "m.pdmodel", *options) for word, *options in commands]
    assert all(code in (0, 1) for code, _, _ in told)
    assert says in "".join(out + err for _, out, err in told)
    with pytest.raises(ForeshapeError, match=re.escape(says.split("\n", 1)[0])):
        fs.Executor().run(fs.load_program(data), feed, ["y"], fs.Scope())


def test_rows_that_are_as_wide_as_asked_for_keep_their_sequences() -> None:
    """The width is open in the description, and nothing is to be done in the run."""
    reshape = op("sequence_reshape", [("X", ["x"])], [("Out", ["y"])], attr("new_dim", 0, number(3, 4)))
    opened = fs.load_program(program(block(var("x", dense([-1, -1], 5, 1), need_check_feed=True), var("y", dense([-1, 4], 5, 1)), reshape)))
    for width, lengths in ((4, [1, 2]), (2, [2, 4]), (8, [1, 2])):
        numbers = np.arange(sum(lengths) * width, dtype="float32").reshape(-1, width)
        (found,) = fs.Executor().run(opened, {"x": fs.LoDTensor(numbers, [lengths])}, ["y"], fs.Scope())
        assert np.array_equal(found.data, numbers.reshape(-1, 4)) and found.sequence_lengths == [[n * width // 4 for n in lengths]]


def test_a_result_in_a_slot_that_the_operator_has_not_is_explained() -> None:
    """It has open dims, which no rule makes."""
    data = program(block(X, var("y", dense([-1, 3])), var("m", dense([-1, -1])), op("relu", [("X", ["x"])], [("Out", ["y"]), ("Mask", ["m"])])))
    opened = fs.load_program(data)
    assert "dim 1 is m.1" in opened.explain("m") and "m.1" in report_page(opened)


def _rows(kind: Any) -> None:
    kind.ClearField("lod_tensor")
    kind.type, kind.selected_rows.data_type = 8, 5


def _array(kind: Any) -> None:
    kind.ClearField("lod_tensor")
    kind.type = 13


FORMS: tuple[Callable[[Any], None], ...] = (*(lambda t, n=n: setattr(t.lod_tensor, "lod_level", n) for n in (0, 1, 2)), _rows, _array)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.long_cases("fused_attention", "fused_bn_add_activation")
@pytest.mark.parametrize("cls", one_in(24, [c for c in operators() if c.samples], lambda c: c.type))
def test_every_operand_without_dims_in_every_form(cls: type[Operator]) -> None:
    """Ragged, sparse, an array, a tensor without dims: of each operator's sample, by file."""
    sample = of_operator([c for c in operators() if c.samples].index(cls), 0)
    if sample is None:
        return
    read = framework_pb2.ProgramDesc.FromString(sample)
    names = {n for op in read.blocks[0].ops for slot in op.inputs for n in slot.arguments}
    for at, variable in enumerate(read.blocks[0].vars):
        if variable.name not in names or variable.type.type != 7:
            continue
        for form in FORMS:
            changed = framework_pb2.ProgramDesc()
            changed.CopyFrom(read)
            odd = changed.blocks[0].vars[at]
            odd.ClearField("extra")
            odd.type.lod_tensor.tensor.ClearField("dims")
            form(odd.type)
            use(changed.SerializeToString(), lambda: None)


def test_no_spec_is_ragged_without_rows() -> None:
    with pytest.raises(fs.ShapeError, match="needs at least the dim of its rows"):
        Spec(LOD_TENSOR, FP32, (), Lod("x", (2,)))


# --- the last resort: what nobody has foreseen has the op, its operands and the cause

SURPRISES = [ZeroDivisionError("by zero"), IndexError("out of range"), AttributeError("no such"), RecursionError("deep"), AssertionError()]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str, Exception], None]:
    def break_(place: type, name: str, surprise: Exception) -> None:
        def fail(*args: Any, **named: Any) -> Any:
            raise surprise

        monkeypatch.setattr(place, name, fail)

    return break_


@pytest.mark.parametrize("surprise", SURPRISES, ids=repr)
def test_a_rule_that_fails_names_op_operands_and_cause(surprise: Exception, broken: Callable[[type, str, Exception], None]) -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", shape=["batch", 3, 5])
        broken(type(layer.sigmoid(x).op.operator), "infer_shape", surprise)  # type: ignore[union-attr]
        with pytest.raises(fs.SchemaError, match=r"sigmoid: its rule fails for these operands: .*\n    X = y ") as caught:
            layer.sigmoid(layer.data("y", shape=["batch", 7]))
        assert caught.value.__cause__ is surprise
        loaded = fs.load_program(x.block.program.to_bytes())
        next(op for op in loaded.all_ops() if op.type == "sigmoid").operator.cache.clear()  # type: ignore[union-attr]
        _, errors = loaded.diagnose()
        assert [e.__cause__ for e in errors] == [surprise]


def test_a_block_whose_inference_fails_names_the_op_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from foreshape.language.infer import op_inference

    def fail(op: Any) -> Any:
        raise KeyError("nobody")

    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", shape=["batch", 3])
        layer.cond(layer.mean(x) > 0.0, lambda: x * 2.0, lambda: x)
        monkeypatch.setattr(op_inference, "infer_region", fail)
        _, errors = fs.default_main_program().diagnose()
    assert errors and "cond (conditional_block): its rule fails" in str(errors[0]) and isinstance(errors[0].__cause__, KeyError)


def test_an_op_that_cannot_be_prepared_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    surprise = IndexError("nobody")

    def fail(*args: Any) -> Any:
        raise surprise

    with fs.program_guard(fs.Program(), fs.Program()):
        out = layer.relu(layer.data("x", shape=["batch", 3]))
        monkeypatch.setattr(Lowering, "_results", fail)
        feed = {"x": np.ones((1, 3), "f4")}
        for use_it in (lambda: Plan(out.block.program, [out]), lambda: fs.Executor().run(out.block.program, feed, out, fs.Scope())):
            with pytest.raises(fs.ExecutionError, match=r"relu cannot be prepared: IndexError: nobody\n.*= relu\(X=x\)(.|\n)*test_odd_programs.py") as caught:
                use_it()
            assert caught.value.__cause__ is surprise
