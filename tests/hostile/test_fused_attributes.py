"""Steps of programs whose attributes and dims were changed after they were inferred, as a file may have them: rewrites that join calls read
both, and take nothing for granted. Whatever is wrong is said in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering import fuse, lower
from foreshape.compiler.memory.liveness import liveness
from foreshape.core.spec import Spec
from foreshape.errors import ForeshapeError
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Op, Program
from foreshape.runtime.engine import Executor
from foreshape.transforms.backward import append_backward

INTS = (-(2**31), -2, -1, 0, 1, 3, 77, 2**31 - 1)
LISTS = ([], [0], [-1], [7, -9], [0, 0], [1, 2, 3], [2**31 - 1] * 2, [1] * 9)
VALUES: dict[AttrType, tuple[Any, ...]] = {
    AttrType.INT: INTS, AttrType.LONG: INTS, AttrType.INTS: LISTS, AttrType.LONGS: LISTS, AttrType.FLOAT: (0.0, float("nan"), float("inf"), -1.0),
    AttrType.BOOLEAN: (True, False), AttrType.STRING: ("", "SAME", "VALID", "NHWC", "sum"),
}  # fmt: skip
DIMS: tuple[tuple[int, ...], ...] = ((), (1,), (3,), (2, 3), (1, 1, 1), (2, 3, 4, 5), (0, 0, 0, 0), (1, 1, 1, 1, 1))


def rows() -> Any:
    x = layer.data("x", shape=["batch", 5])
    h = layer.fc(layer.fc(x, 4, activation="relu"), 3)
    return layer.mean(layer.softmax_with_cross_entropy(h, layer.data("label", shape=["batch", 1], dtype="int64")))


def images() -> Any:
    x = layer.data("x", shape=["batch", 2, 6, 6])
    h = layer.pool2d(layer.conv2d(x, 3, 3, activation="relu"), 2)
    return layer.mean(layer.fc(layer.batch_norm(h), 2))


def attention() -> Any:
    x = layer.data("x", shape=["batch", 4, 6])
    q, k, v = (layer.fc(x, 6, flatten_last=2) for _ in range(3))
    scores = layer.matmul(layer.scale(q, 0.5), k, transpose_y=True)
    return layer.mean(layer.matmul(layer.softmax(layer.add(scores, layer.data("mask", shape=[4, 4]))), v))


def bags() -> Any:
    ids = layer.data("ids", shape=["batch", 7], dtype="int64")
    return layer.mean(layer.fc(layer.reduce_sum(layer.embedding(ids, size=(9, 3), is_sparse=True), 1), 2))


NETWORKS: dict[str, Callable[[], Any]] = {f.__name__: f for f in (rows, images, attention, bags)}


def made(of: str, optimizer: str) -> tuple[Program, str]:
    """A training program, and its loss."""
    program = Program()
    with fs.program_guard(program, Program()):
        loss = NETWORKS[of]()
        if optimizer:
            getattr(fs.optimizer, optimizer)(0.1).minimize(loss)
        else:
            append_backward(loss)
    return program, loss.name


def changed(op: Op) -> Iterator[Attributes]:
    """The attributes of an op with each in turn of another value."""
    right = op.attributes
    for at, (name, type_, held) in enumerate(right.entries):
        if name in ("op_role", "op_role_var"):
            continue
        for value in VALUES.get(type_, ()):
            if value != held:
                value = tuple(value) if isinstance(value, list) else value
                yield Attributes.of(right.type, (*right.entries[:at], (name, type_, value), *right.entries[at + 1 :]))


def constructed(program: Program, fetch: str) -> None:
    """Make a step, by way of its executor and by its parts, where nothing is inferred again."""
    for make in (lambda: Executor().step(program, [fetch]), lambda: liveness(fuse(lower(program.global_block, [fetch])))):
        try:
            make()
        except ForeshapeError as error:
            assert str(error)


@pytest.mark.long
@pytest.mark.parametrize(("network", "optimizer"), [
    ("rows", "SGD"), ("images", "Momentum"), ("attention", "Adam"), ("bags", ""),
])  # fmt: skip
def test_an_attribute_of_another_value(network: str, optimizer: str) -> None:
    program, loss = made(network, optimizer)
    tried: set[tuple[str, Any]] = set()
    for op in program.global_block.ops:
        right = op.attributes
        for other in changed(op):
            if (key := (op.type, other.entries)) in tried:
                continue
            tried.add(key)
            op.attributes = other
            constructed(program, loss)
        op.attributes = right
    constructed(program, loss)
    assert len(tried) > 50


@pytest.mark.parametrize(("network", "dims"), [
    ("rows", DIMS[::3]), *(pytest.param(n, DIMS, marks=pytest.mark.long) for n in NETWORKS),
])  # fmt: skip
def test_a_variable_of_other_dims(network: str, dims: Sequence[tuple[int, ...]]) -> None:
    program, loss = made(network, "SGD")
    for variable in program.global_block.vars.values():
        right = variable.spec
        if right.dims is None:
            continue
        for other in dims:
            variable.inferred_spec = Spec(right.kind, right.dtype, other)
            constructed(program, loss)
        variable.inferred_spec = right
