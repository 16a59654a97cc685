"""What each collective sends is known, which way, and to how many ranks; see tests/communication/test_bytes.py for what runs send."""

from __future__ import annotations

from typing import Any

import pytest
from support.planned_networks import machine, stack

import foreshape as fs
from foreshape import layer
from foreshape.compiler.cost.collectives import given_by, messages_of
from foreshape.compiler.cost.ranks_plan import RanksPlan
from foreshape.language.operator.registry import all_operators
from foreshape.language.ops.collective.messages import NOTHING
from foreshape.language.ops.collective.shares import CountExamples
from foreshape.language.ops.collective.sums import Collective


def of_package() -> dict[str, Any]:
    return {type: cls for type, cls in all_operators().items() if cls.__module__.startswith("foreshape.")}


def test_of_every_collective_it_is_known_what_it_sends() -> None:
    silent: set[str] = set()
    for type, cls in of_package().items():
        if cls.collective:
            assert issubclass(cls, Collective)
            of = cls.forward_class or cls
            assert of.way is not None or of.sends is not Collective.sends, type
            silent |= {type} if of.way == NOTHING or (of is not cls and not of.gradient_sends) else set()
    assert silent == {
        "c_identity", "c_softmax_with_cross_entropy_grad", "c_split", "c_sync_calc_stream", "c_sync_comm_stream", "c_wait_comm", "c_wait_compute",
        "weigh_by_examples", "weigh_by_examples_grad",
    }  # fmt: skip


def test_one_that_is_not_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    program = fs.data_parallel().apply(stack(), "mean_0.tmp_0", 2).program
    monkeypatch.setattr(CountExamples, "sends", Collective.sends)
    with pytest.raises(fs.SchemaError, match="count_examples is a collective of which it is not known what it sends"):
        messages_of(program)


def divided(split: str = "columns") -> fs.Program:
    """Two layers of 12 columns and as many rows, on 6 features."""
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x, y = layer.data("x", input_size=6), layer.data("y", input_size=3)
        h = layer.fc(layer.fc(x, 12, split=split, bias=False), 3, split="rows" if split == "columns" else None, bias=False)
        fs.optimizer.SGD(0.1).minimize(layer.mean(layer.square(h - y)))
    return program


def sent(plan: RanksPlan, **sizes: int) -> list[tuple[str, str, int, int]]:
    """Type, way, bytes and bytes on the link of all but what counts examples and sums a loss alone."""
    return [(c.type, c.way, c.bytes, c.on_the_link) for c in plan.collectives(**sizes) if c.type != "count_examples" and not c.name.startswith("mean")]


def test_the_ranks_of_a_group_sum_activations_and_the_groups_gradients() -> None:
    plan = fs.plan(divided(), ranks=6, batch=12, strategies=[fs.split_layers(degree=3)], device=machine())
    # examples are divided over 2 groups, so that each rank sees 6; the weights have 4 of 12 columns and rows, each in a multiple of 64 bytes,
    # and the loss, which travels with them, in 64
    assert sent(plan) == [
        ("c_allreduce_sum", "all-reduce", 6 * 3 * 4, round(6 * 3 * 4 * 2 * 2 / 3)),
        ("c_allreduce_sum", "all-reduce", 64 + 128 + 64, 64 + 128 + 64),
    ]
    assert sent(plan, ranks=3, batch=6)[1][2:] == (0, 0), "of one group, gradients go to nobody"
    assert plan.timeline(ranks=6).members == plan.timeline().members == [6, 3, 2]


def test_columns_that_are_put_together_are_gathered_and_their_gradient_is_cut() -> None:
    plan = fs.plan(divided("rows"), ranks=2, batch=4, strategies=[fs.split_layers()], device=machine())
    assert plan.degree == 2
    types = [op.type for op in plan.program.global_block.ops]
    assert "c_split" in types
    assert "c_concat" not in types, "the gradient of what is fed is nobody's"
    assert sent(plan)[0] == ("c_allreduce_sum", "all-reduce", 4 * 12 * 4, 4 * 12 * 4)
    assert [given_by(op.block, op, {}) for op in plan.program.global_block.ops if op.type == "c_split"] == [[]]


def test_ranks_that_are_no_groups_are_refused() -> None:
    plan = fs.plan(divided(), ranks=6, batch=12, strategies=[fs.split_layers(degree=3)])
    with pytest.raises(fs.SchemaError, match="4 ranks cannot be divided into groups of 3"):
        plan.peak(ranks=4)
    assert plan.smallest("1GiB") == 3
    assert plan.peak(ranks=6, batch=12) == plan.memory.peak(batch=6) == plan.peak_formula()({"batch": 12, "ranks": 6})
    assert plan.peak(ranks=3, batch=12) > plan.peak()


def table(rows: int = 1000) -> fs.Program:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        ids = layer.data("ids", shape=[-1, 5], dtype="int64")
        y = layer.data("y", input_size=8)
        fs.optimizer.SGD(0.1).minimize(layer.mean(layer.square(layer.reduce_mean(layer.embedding(ids, size=[rows, 8], is_sparse=True), 1) - y)))
    return program


def test_ids_go_to_the_ranks_that_have_the_rows_and_rows_come_back() -> None:
    for strategy in (fs.split_tables(), fs.split_tables(fs.shard_optimizer())):
        plan = fs.plan(table(), ranks=4, batch=16, strategies=[strategy])
        each = [4 * 8, 20 * 8, 20 * 8 * 4]
        for type in ("split_lookup", "split_lookup_grad"):
            found = [c for c in plan.collectives() if c.type == type]
            assert [c.bytes for c in found] == each
            assert {c.way for c in found} == {"all-to-all"}
            assert [c.on_the_link for c in found] == [size * 3 // 4 for size in each]
        assert plan.sent(ranks=2)["split_lookup"] == 2 * 8 + 40 * (8 + 32)


def test_tables_that_are_split_over_groups() -> None:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        ids, y = layer.data("ids", shape=[-1, 5], dtype="int64"), layer.data("y", input_size=8)
        found = layer.reduce_mean(layer.embedding(ids, size=[1000, 8], is_sparse=True), 1)
        fs.optimizer.SGD(0.1).minimize(layer.mean(layer.square(layer.fc(found, 8, split="columns") - y)))
    plan = fs.plan(program, ranks=8, batch=16, strategies=[fs.split_layers(fs.split_tables(), degree=2)])
    assert plan.sent()["split_lookup"] == 4 * 8 + 20 * (8 + 32), "4 groups, with 4 examples each"


def normalised(trains: bool = True) -> fs.Program:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x, y = layer.data("x", shape=[-1, 2, 8, 8]), layer.data("y", dims=1, data_type=fs.INT64)
        h = layer.batch_norm(layer.conv2d(x, 4, 3, bias=False))
        fs.optimizer.SGD(0.1).minimize(layer.mean(layer.softmax_with_cross_entropy(layer.fc(h, 3), y)))
    return program


def test_statistics_are_two_numbers_for_each_channel() -> None:
    plan = fs.plan(normalised(), ranks=4, batch=16, strategies=[fs.data_parallel(synchronise_batch_norm=True)])
    assert plan.sent()["sync_batch_norm"] == plan.sent()["sync_batch_norm_grad"] == (2 * 4 + 1) * 8
    ops = [op for op in plan.program.global_block.ops if op.type.startswith("sync_batch_norm")]
    assert [way for op in ops for way, _ in given_by(op.block, op, {})] == ["all-reduce"] * 2


def test_parts_that_are_gathered_are_on_the_way_while_others_are_computed() -> None:
    plan = fs.plan(stack(), ranks=4, batch=16, strategies=[fs.shard_optimizer()])
    ops = plan.program.global_block.ops
    (counting,) = [m for m in plan.messages if m.op.type == "count_examples"]
    assert ops[counting.needed].type == "weigh_by_examples"
    for m in plan.messages:
        if m.op.type in ("c_allgather", "c_reducescatter"):
            assert not m.waits
            assert ops[m.needed].type == "c_sync_comm_stream"


def test_what_is_read_without_waiting_is_waited_for_where_it_starts() -> None:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x = layer.data("x", input_size=4)
        block = program.global_block
        block.create_variable("sum", x.spec)
        block.append_op("c_allreduce_sum", {"X": [x.name]}, {"Out": ["sum"]}, {})
        layer.relu(block.var("sum"))
    (message,) = messages_of(program)
    assert message.waits
