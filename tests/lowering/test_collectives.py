"""Collectives that only start: what reads their results otherwise than by waiting for them makes them wait themselves."""

from __future__ import annotations

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering import lower


@pytest.mark.parametrize("type", ["c_allreduce_sum", "c_allgather", "c_reducescatter"])
@pytest.mark.parametrize("reader", ["waits", "reads", "both", "fetched"])
def test_who_does_not_wait_is_given_what_has_come(type: str, reader: str) -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = layer.data("x", shape=[4, 3])
        block = main.global_block
        block.append_op(type, {"X": x}, {"Out": "sum"}, {"nranks": 1} if type != "c_allreduce_sum" else {})
        fetch = "sum"
        if reader in ("waits", "both"):
            block.append_op("c_sync_comm_stream", {"X": ["sum"]}, {"Out": ["come"]})
            fetch = "come"
        if reader == "reads":
            fetch = layer.scale(block.var("sum"), 2.0).name
        if reader == "both":
            fetch = (block.var("sum") + block.var("come")).name
    (started,) = [i for i in lower(block, [fetch], fuse=False).calls if i.op.type == type]
    assert started.kernel.__self__.use_calc_stream is (reader != "waits")  # type: ignore[attr-defined]
