"""What is read is inferred as records; ops and variables are made when somebody looks, and are then what they would have been before."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread

import pytest

import foreshape as fs
from foreshape import layer


def deep(layers: int = 12) -> bytes:
    """Layers that repeat, so that most ops are read by the layout of one before; their names are of one digit and of two."""
    with fs.program() as program:
        x = layer.data("x", ["batch", 3, "height", 16])
        for _ in range(layers):
            x = layer.relu(layer.batch_norm(layer.conv2d(x, 4, 3, padding=1)))
        layer.concat([x, x], axis=1)
    return program.to_bytes()


def written_twice() -> bytes:
    with fs.program() as program:
        x = layer.data("x", ["batch", 4])
        y = layer.relu(x)
        program.global_block.append_op("concat", {"X": [y, y]}, {"Out": y}, {"axis": 1})
        layer.relu(y)
    return program.to_bytes()


def guarded() -> bytes:
    with fs.program() as program:
        a, b = layer.data("a", ["n", 4]), layer.data("b", ["m", 4])
        layer.relu(layer.reshape(a, [-1, 2])) + layer.reshape(b, [-1, 2])
    return program.to_bytes()


def made_by_the_run() -> bytes:
    with fs.program() as program:
        layer.relu(layer.masked_select(layer.data("x", ["n"]), layer.data("keep", ["n"], "bool")))
    return program.to_bytes()


def facts(program: fs.Program) -> list[object]:
    """All that is known of a program: the objects are made by asking."""
    variables = [(v.name, v.spec, v.known, v.persistable, v.op and v.block.ops.index(v.op), v.site) for v in program.all_variables()]
    ops = [(op.type, dict(op.inputs), dict(op.outputs), dict(op.attrs), op.site, op.made) for op in program.all_ops()]
    return [variables, ops, [str(g) for g in program.guards]]


@pytest.mark.parametrize("make", [deep, written_twice, guarded, made_by_the_run])
def test_records_and_objects_are_inferred_alike(make: Callable[[], bytes]) -> None:
    data = make()
    by_records, by_objects = fs.Program.from_bytes(data), fs.Program.from_bytes(data)
    assert by_objects.global_block.ops and by_objects.global_block.records is None
    by_records.infer()
    by_objects.infer()
    assert facts(by_records) == facts(by_objects)
    assert by_records.to_bytes() == by_objects.to_bytes() == data


def test_objects_are_made_when_somebody_looks() -> None:
    program = fs.Program.from_bytes(deep())
    block = program.global_block
    program.infer()
    assert block.records is not None, "all ops and variables were made to infer a plain network"
    last = program.var("concat_0.tmp_0")
    assert str(last.spec) == "f32[batch, 8, height, 16]"
    assert block.records is not None, "all were made for one"
    assert last is block.vars["concat_0.tmp_0"] is program.var("concat_0.tmp_0")
    assert block.records is None
    assert last.op is block.ops[-1]


def test_a_variable_that_was_made_alone_knows_its_op_and_what_is_inferred_later() -> None:
    program = fs.Program.from_bytes(deep())
    last, first = program.var("concat_0.tmp_0"), program.var("x")
    program.infer()
    assert str(last.spec) == "f32[batch, 8, height, 16]"
    assert last.op is not None and last.op.type == "concat"
    assert first.op is None


def test_threads_that_look_at_once_see_the_same_objects() -> None:
    program = fs.Program.from_bytes(deep(60))
    program.infer()
    together = Barrier(4)
    seen: list[tuple[int, int]] = []

    def look() -> None:
        together.wait()
        seen.append((id(program.global_block.ops), id(program.global_block.vars)))

    threads = [Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4 and len(set(seen)) == 1


def test_an_error_is_worded_as_ever() -> None:
    with fs.program() as program:
        layer.concat([layer.data("a", [4, 3]), layer.data("b", [4, 5])], axis=1)
    program.global_block.vars["b"].inferred_spec = fs.Program.from_bytes(deep()).var("x").spec
    broken = fs.Program.from_bytes(program.to_bytes())
    with pytest.raises(fs.ShapeError, match=r"(?s)concat: .*b.*test_records.py"):
        broken.infer()
