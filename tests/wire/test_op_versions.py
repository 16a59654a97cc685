"""What a file's op_version_map says of ops whose operator computed something else before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.wire import framework_pb2 as pb
from foreshape.language.wire.versions import versions_of

X = np.array([-2, -1, -0.5, 0, 0.5, 1, 2], "float32")


def saved(type: str, attrs: dict[str, Any], versions: dict[str, int] | None, dims: tuple[int, ...] = (7,)) -> tuple[pb.ProgramDesc, str]:
    """A program of one op, and its result."""
    with fs.program_guard(program := fs.Program()):
        out = program.global_block.apply(type, {"Input" if type == "trace" else "X": layer.data("x", shape=dims)}, attrs)
    message = pb.ProgramDesc.FromString(program.to_bytes())
    if versions is not None:
        message.op_version_map.SetInParent()
        for name, version in versions.items():
            pair = message.op_version_map.pair.add(op_name=name)
            pair.op_version.version = version
    return message, out.name


def computed(message: pb.ProgramDesc, name: str, x: np.ndarray = X) -> Any:
    return fs.Executor().run(fs.load_program(message.SerializeToString()), {"x": x}, [name], fs.Scope())[0]


BOTH = {"leaky_relu": 3.0, "hard_shrink": -1.0}
ATTRIBUTE = {"leaky_relu": "alpha", "hard_shrink": "threshold"}
FORMULAS = {
    ("leaky_relu", 0): np.maximum(X, 3 * X),
    ("leaky_relu", 1): np.where(X > 0, X, 3 * X),
    ("hard_shrink", 0): X * ((X < 1).astype(int) + (X > -1)),
    ("hard_shrink", 1): X * ((X < 1) | (X > -1)),
}


@pytest.mark.parametrize("type", list(BOTH))
def test_an_op_computes_what_it_did_in_its_version(type: str) -> None:
    attrs = {ATTRIBUTE[type]: BOTH[type]}
    for versions, version in ((None, 1), ({}, 0), ({"conv2d": 1}, 0), ({type: 1}, 1)):
        message, out = saved(type, attrs, versions)
        np.testing.assert_array_equal(computed(message, out), FORMULAS[type, version])
        program = fs.load_program(message.SerializeToString())
        program.infer()
        again = fs.load_program(program.to_bytes())
        assert [o.type for o in again.all_ops()] == [o.type for o in program.all_ops()] and versions_of(program) == versions
    for value in (0.5, 1.0):  # where the versions do not differ, what is read stays
        message, out = saved(type, {ATTRIBUTE[type]: value}, {})
        assert fs.load_program(message.SerializeToString()).to_bytes() == message.SerializeToString()


def test_versions_that_cannot_be_read_matter_where_they_are_asked_for() -> None:
    broken = b"\x2a\x02\x0a\x05"
    fine, hurt = (saved("leaky_relu", {"alpha": alpha}, None)[0].SerializeToString() + broken for alpha in (0.1, 2.0))
    assert fs.load_program(fine).to_bytes() == fine
    with pytest.raises(fs.FormatError, match="op_version_map"):
        fs.load_program(hurt)


def test_attributes_are_read_by_their_older_names() -> None:
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    for type, attrs, older, want in (
        ("flip", {"axis": [1]}, {"axis": "dims"}, x[:, ::-1]),
        ("roll", {"shifts": [1], "axis": [2]}, {"axis": "dims"}, np.roll(x, 1, 2)),
        ("trace", {"axis1": 1, "axis2": 2}, {"axis1": "dim1", "axis2": "dim2"}, x.trace(0, 1, 2)),
    ):
        message, out = saved(type, attrs, {}, (2, 3, 4))
        for attr in message.blocks[0].ops[-1].attrs:
            attr.name = older.get(attr.name, attr.name)
        data = message.SerializeToString()
        np.testing.assert_array_equal(computed(message, out, x), want)
        assert fs.load_program(data).to_bytes() == data
