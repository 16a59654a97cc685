"""Attributes that PaddlePaddle 2 lacks: an op has one only with another value than the default, so that its file and its text stay as they were."""

from __future__ import annotations

import pytest
from support.harness import build, operators

import foreshape as fs
from foreshape import layer
from foreshape.errors import SchemaError
from foreshape.language.operator.attributes import AttrType, exact
from foreshape.language.operator.fields import attribute
from foreshape.language.operator.operator import Operator
from foreshape.language.program import Program, program_guard
from foreshape.language.wire import framework_pb2 as pb

LATER = [c for c in operators() if c.schema.later]


def written(program: Program, type: str) -> set[str]:
    """The names of the attributes in the file of a program's op."""
    return {a.name for op in pb.ProgramDesc.FromString(program.to_bytes()).blocks[0].ops if op.type == type for a in op.attrs}


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("cls", LATER, ids=[c.type for c in LATER])
def test_each_is_written_only_where_it_is_not_at_its_default(cls: type[Operator]) -> None:
    later, seen = cls.schema.later, set[str]()
    for sample in cls.samples:
        with program_guard(Program(), Program()):
            case = build(cls, sample.arguments)
        given = {n for n in later.keys() & sample.arguments.keys() if exact(cls.check_attribute(n, sample.arguments[n])) != exact(later[n].default)}
        assert written(case.program, cls.type) & later.keys() == given
        again, parsed = Program.from_bytes(case.program.to_bytes()), Program.parse(str(case.program))
        for other in (again, parsed):
            (op,) = [op for op in other.all_ops() if op.type == cls.type]
            assert op.operator is case.op.operator and op.attributes is case.op.attributes
        assert f"layout {cls.type}" not in str(case.program)
        assert {n for n in later if f"{n}=" in str(case.op)} == given
        seen |= given
    assert seen == later.keys(), "a sample for each"


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("cls", LATER, ids=[c.type for c in LATER])
def test_the_default_said_is_the_default_left_out(cls: type[Operator]) -> None:
    required = {n: v for s in cls.samples[:1] for n, v in s.arguments.items() if n in cls.schema.attributes}
    assert cls.describe({**required, **{n: a.default for n, a in cls.schema.later.items()}}) is cls.describe(required)


def test_an_op_gains_and_loses_one() -> None:
    x = layer.data("x", shape=[3, 4])
    x.stop_gradient = False
    y = fs.default_main_program().global_block.apply("cumprod", {"X": x}, {"dim": 1})
    fs.append_backward(layer.mean(y), [x])
    op = y.op
    assert op is not None
    plain, entries = str(fs.default_main_program()), op.attributes.entries
    op.set_attribute("reverse", True)
    assert "reverse=True" in repr(op.operator) and [e[0] for e in op.attributes.entries] == sorted(e[0] for e in op.attributes.entries)
    assert Program.parse(str(fs.default_main_program())).global_block.ops[0].attributes is op.attributes
    op.set_attribute("reverse", False)
    assert op.attributes.entries == entries and str(fs.default_main_program()) == plain


def test_a_gradient_op_has_it_too() -> None:
    x = layer.data("x", shape=[3, 4])
    x.stop_gradient = False
    y = fs.default_main_program().global_block.apply("cumprod", {"X": x}, {"dim": 1, "exclusive": True})
    fs.append_backward(layer.mean(y), [x])
    assert "exclusive" in written(fs.default_main_program(), "cumprod_grad")


def test_a_file_that_says_the_default_keeps_it() -> None:
    """As PaddlePaddle 3 writes; in the text such an op has its attributes in a layout, or itself."""
    fs.default_main_program().global_block.apply("cumprod", {"X": layer.data("x", shape=[3, 4])}, {"dim": 1, "exclusive": True})
    message = pb.ProgramDesc.FromString(fs.default_main_program().to_bytes())
    for op in message.blocks[0].ops:
        for a in op.attrs:
            if a.name == "exclusive":
                a.b = False
    program = Program.from_bytes(message.SerializeToString())
    assert program.to_bytes() == message.SerializeToString()
    assert [op.attributes for op in Program.parse(str(program)).all_ops()] == [op.attributes for op in program.all_ops()]
    assert ["exclusive=False" in repr(op.operator) for op in program.all_ops() if op.type == "cumprod"] == [True]


def test_one_needs_a_default() -> None:
    with pytest.raises(SchemaError, match="needs a default"):
        attribute(AttrType.INT, since=3)
