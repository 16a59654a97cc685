"""The plan against liveness that is worked out again here from the ops, on every program there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.corpus import case
from support.counted import assert_calls_grow_with_size
from support.replayed import sizes

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory import Plan, byte_text, bytes_of
from foreshape.compiler.memory.formula import Formula
from foreshape.core.dims import evaluate, minimum, symbol, symbols_of
from foreshape.core.spec import FLOATING, LOD_TENSOR, LOD_TENSOR_ARRAY
from foreshape.language.ops import NOT_DIFFERENTIABLE, Operator, operand, result

TESTS = Path(__file__).parents[1]
FILES = sorted([*TESTS.glob("corpus/*/*.pdmodel"), *TESTS.glob("control/paddlepaddle/*.pdmodel")])
BATCHES = (1, 7, 64)


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def fetches(path: Path) -> list[str]:
    return list(case(path.parent.name).about["fetches"]) if path.stem == "main" else []


@pytest.fixture(params=FILES, ids=name_of)
def planned(request: pytest.FixtureRequest) -> Plan:
    return fs.plan(fs.load_program(request.param), fetches(request.param))


# --- worked out again


def needed(plan: Plan) -> list[tuple[int, fs.Op]]:
    """The ops that the fetches and what is kept from run to run depend on."""
    block = plan.program.global_block
    wanted, out = set(plan.fetch), []
    for at in range(len(block.ops) - 1, -1, -1):
        op = block.ops[at]
        if op.type in ("feed", "fetch") or op.operator is None:
            continue
        writes = op.all_writes()
        kept = any((v := block.find(n)) is not None and v.persistable for n in writes)
        if kept or op.operator.side_effects or not wanted.isdisjoint(writes):
            out.append((at, op))
            if not op.sub_block_indices():
                wanted -= writes - op.all_reads()
            wanted |= op.all_reads()
    return out[::-1]


def overlap(buffers: list[Any]) -> bool:
    """Whether two that are needed at one op share a byte."""
    first, last, low, size = (np.array([getattr(b, n) for b in buffers], np.int64) for n in ("first", "last", "offset", "size"))
    for at in range(len(buffers)):
        together = (first <= last[at]) & (first[at] <= last) & (low < low[at] + size[at]) & (low[at] < low + size) & (size > 0) & (size[at] > 0)
        together[at] = False
        if together.any():
            return True
    return False


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("batch", [*(pytest.param(n, marks=pytest.mark.long) for n in BATCHES[:-1]), BATCHES[-1]])
def test_the_numbers_agree_with_each_other(planned: Plan, batch: int) -> None:
    values = sizes(planned, batch)
    peak, held, bound = planned.peak(**values), planned.held(**values), planned.lower_bound(**values)
    buffers, timeline, formula = planned.buffers(**values), planned.timeline(**values), planned.peak_formula()
    assert formula(values) == peak == held + bound
    alive = [sum(b.size for b in buffers if b.first <= at <= b.last) for at in range(len(planned.program.global_block.ops))]
    assert timeline.tolist() == alive and bound == max(alive, default=0)
    assert len(buffers) < 2 or not overlap(buffers)
    assert all(b.offset >= 0 for b in buffers)
    assert planned.arena(**values) == max((b.offset + b.size for b in buffers), default=0) >= bound
    assert planned.arena(**values) <= 1.02 * bound
    assert sum(planned.breakdown(**values).values()) == peak
    holders = planned.holders(**values)
    assert sum(h.size for h in holders) == peak and [h.size for h in holders] == sorted((h.size for h in holders), reverse=True)
    assert not alive or alive[planned.peak_position(**values)] == bound
    kept = {v.name: evaluate(v.nbytes, values) for v in planned.program.global_block.vars.values() if v.persistable and v.kind is LOD_TENSOR}
    used = {n for _, op in needed(planned) for n in op.all_reads() | op.all_writes()} | set(planned.fetch)
    assert held == sum(size for name, size in kept.items() if name in used)


def test_the_comparisons_can_fail() -> None:
    plan = fs.plan(fs.load_program(TESTS / "corpus/resnet50/main.pdmodel"), ["linear_1.tmp_1"])
    buffers = plan.buffers(batch=2)
    assert not overlap(buffers)
    assert overlap([b._replace(offset=0) for b in buffers])
    assert len(needed(plan)) > 170


@pytest.mark.quick_cases(one_in=3)
def test_the_largest_is_what_counting_finds(planned: Plan) -> None:
    values = {n: v for n, v in sizes(planned, 1).items() if n not in planned.leading}
    if not set(planned.leading) & planned.symbols:
        with pytest.raises(fs.MemoryPlanError, match="does not depend on batch"):
            planned.largest("batch", within="1 GiB", **values)
        return
    for goal in (1, 2, 5, 11):
        limit = planned.peak(**values, batch=goal)
        found = next(n for n in range(goal, 10_000) if planned.peak(**values, batch=n + 1) > limit)
        assert planned.largest("batch", within=limit, **values) == found
        if found == goal and goal > 1:
            assert planned.largest("batch", within=limit - 1, **values) < goal
    least = planned.peak(**values, batch=1)
    with pytest.raises(fs.MemoryPlanError, match=f"with batch = 1 the program needs .*, which is more than {byte_text(least - 1)}"):
        planned.largest("batch", within=least - 1, **values)


@pytest.mark.quick_cases(one_in=3)
def test_a_symbol_without_a_value_is_named(planned: Plan) -> None:
    for name in planned.symbols:
        values = {n: v for n, v in sizes(planned, 2).items() if n != name}
        asked = [planned.peak, planned.lower_bound, planned.timeline, planned.arena, planned.buffers, planned.breakdown, planned.holders, planned.peak_position]
        if name in planned.peak_formula().symbols:
            asked.append(lambda **v: planned.peak_formula()(v))
        for ask in asked:
            with pytest.raises(fs.MemoryPlanError, match="depends on ") as caught:
                ask(**values)
            assert name in str(caught.value)


# --- small programs


def build(describe: Callable[[], Any]) -> tuple[fs.Program, Any]:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        return main, describe()


def record(plan: Plan, name: str, **values: int) -> Any:
    found = [b for b in plan.buffers(**values) if name in b.names]
    assert len(found) == 1, f"{name} is in {len(found)} records"
    return found[0]


def test_a_small_network_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes per row: x 400; the first layer's product 40, its sum and relu in the same place; the second's product 12."""
    monkeypatch.setattr("foreshape.machine.kernels.products.prefers_onednn", lambda: False)
    x = layer.data("x", shape=["batch", 100])
    hidden = layer.fc(x, 10, "relu", name="one")
    y = layer.fc(hidden, 3, name="two")
    plan = fs.plan(fs.default_main_program(), [y])
    weights = 4 * (100 * 10 + 10 + 10 * 3 + 3)
    assert plan.symbols == {"batch"} == plan.peak_formula().symbols
    assert str(plan.peak_formula()) == f"{byte_text(weights)} + 452 B*batch"
    assert plan.peak(batch=5) == weights + 452 * 5 and plan.held() == weights
    assert plan.largest("batch", within=weights + 452 * 9 + 451) == 9
    assert plan.breakdown(batch=5)["parameters"] == weights
    assert plan.holders(batch=1000)[0].name == "x" and "test_plan.py:" in plan.holders(batch=1000)[1].line
    assert record(plan, y.name, batch=5).last == len(fs.default_main_program().global_block.ops) - 1


def test_what_is_fetched_or_fed_is_not_written_over() -> None:
    x = layer.data("x", shape=["batch", 8])
    a = layer.relu(x)
    b = layer.relu(a)
    c = layer.relu(b)
    plan = fs.plan(fs.default_main_program(), [c])
    assert record(plan, a.name, batch=2).names == (a.name, b.name, c.name)
    plan = fs.plan(fs.default_main_program(), [a, c])
    last = len(fs.default_main_program().global_block.ops) - 1
    assert record(plan, a.name, batch=2).names == (a.name,) and record(plan, a.name, batch=2).last == last
    plan = fs.plan(fs.default_main_program(), [b, c])  # the last op could write over it, since nothing is read later
    assert record(plan, b.name, batch=2).names == (a.name, b.name) and record(plan, c.name, batch=2).names == (c.name,)
    assert record(plan, "x", batch=2)[2:4] == (0, last) and record(plan, "x", batch=2).names == ("x",)


def test_a_value_is_not_written_over_while_a_view_of_it_is_read_in_another_slot() -> None:
    x = layer.data("x", shape=[8, 8])
    a = layer.relu(x)
    turned = layer.transpose(a, [1, 0])
    total = a + turned
    plan = fs.plan(fs.default_main_program(), [total])
    assert set(record(plan, a.name).names) == {a.name, turned.name}
    assert record(plan, total.name).names == (total.name,)


def test_a_result_that_is_larger_than_the_operand_has_memory_of_its_own() -> None:
    row = layer.relu(layer.data("row", shape=[1, 8]))
    total = row + layer.data("x", shape=["batch", 8])
    plan = fs.plan(fs.default_main_program(), [total])
    assert record(plan, total.name, batch=6).names == (total.name,) and record(plan, total.name, batch=6).size == 6 * 8 * 4


def test_what_a_block_keeps_from_run_to_run_counts_as_kept() -> None:
    x = layer.data("x", shape=["batch", 4])
    out = layer.cond(layer.reduce_sum(x) > 0.0, lambda: x + fs.Variable("twos", fs.FP32, [4], value=2.0), lambda: x * 3.0)
    plan = fs.plan(fs.default_main_program(), [out])
    assert "twos" not in fs.default_main_program().global_block.vars
    assert plan.held() == 4 * 4 and any(h.name == "twos" for h in plan.holders(batch=1))


class _Both(Operator):
    """Two results, one of which may lie where X is."""

    type = "plan_test_both"
    X = operand(FLOATING)
    First = result()
    Second = result(may_share="X")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, X: Any) -> Any:
        return X, X

    def kernel(self, X: Any, *, into: Any = None) -> Any:
        first = X + 1
        return first, X + 2 if into is None else into.add_(2)


def test_two_results_of_one_op_do_not_lie_in_the_same_place() -> None:
    """Not even where one of them is never read, since it is written all the same."""
    x = layer.relu(layer.data("x", shape=["batch", 4]))
    block = fs.default_main_program().global_block
    block.append_op("plan_test_both", {"X": x}, {"First": "first", "Second": "second"})
    for fetch in (["second"], ["first"], ["first", "second"]):
        plan = fs.plan(fs.default_main_program(), fetch)
        assert record(plan, "first", batch=2).names == ("first",)
        assert record(plan, "second", batch=2).names == (x.name, "second")


def test_a_gradient_that_is_summed_is_no_view() -> None:
    loss = layer.mean(layer.fc(layer.data("x", shape=["batch", 4]), 3))
    fs.optimizer.SGD(0.1).minimize(loss)
    plan = fs.plan(fs.default_main_program(), [loss])
    bias = record(plan, "fc_0.b_0@GRAD", batch=100)
    assert bias.names == ("fc_0.b_0@GRAD",) and bias.size == 3 * 4 and bias.what == "gradients"


def test_what_a_block_reads_is_kept_for_all_of_its_rounds() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 4])
        captured = layer.relu(x)
        zero, limit = layer.fill_constant([1], "int64", 0), layer.fill_constant([1], "int64", 5)
        _, h = layer.while_loop(lambda i, h: layer.less_than(i, limit), lambda i, h: [i + 1, layer.relu(h + captured)], [zero, x * 1.0])
        return captured, h

    main, (captured, h) = build(describe)
    plan = fs.plan(main, [h])
    loop = next(p for p, op in enumerate(main.global_block.ops) if op.type == "while")
    kept = record(plan, captured.name, batch=2)
    assert kept.last >= loop and kept.names == (captured.name,)
    assert plan.peak(batch=2) == plan.peak_formula()({"batch": 2})
    inner = [h for h in plan.holders(batch=2) if h.name not in main.global_block.vars]
    assert plan.peak_position(batch=2) != loop or inner, "at an op that runs a block, what is alive within it is told"


def test_an_array_that_a_loop_fills_grows_with_its_rounds() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 4])
        array = layer.create_array("float32")
        i = layer.fill_constant([1], "int64", 0)
        array = layer.array_write(x * 1.0, i, array)

        def body(i: Any) -> Any:
            layer.array_write(x * 2.0, i, array)
            return [i + 1]

        layer.while_loop(lambda i: layer.less_than(i, layer.fill_constant([1], "int64", 9)), body, [i])
        return layer.array_read(array, layer.fill_constant([1], "int64", 3)), array

    main, (out, array) = build(describe)
    plan = fs.plan(main, [out])
    rounds = next(n for n in plan.symbols if n.endswith(".rounds"))
    assert record(plan, array.name, **{"batch": 3, rounds: 10}).size == 10 * 3 * 4 * 4
    assert plan.peak(**{"batch": 3, rounds: 10}) - plan.peak(**{"batch": 3, rounds: 4}) == 6 * 3 * 4 * 4
    assert array.kind is LOD_TENSOR_ARRAY
    with pytest.raises(fs.MemoryPlanError, match=r"plan\.peak\(\*\*\{\"" + rounds.replace(".", r"\.")):
        plan.peak(batch=3)


def test_a_recurrence_and_its_gradient() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=[6, "batch", 4])
        h0 = layer.data("h0", shape=["batch", 4])

        def step(word: Any, before: Any) -> Any:
            now = layer.fc(word + before, 4, "tanh")
            return now, now

        out, _ = layer.rnn(step, x, h0, time_major=True)
        loss = layer.mean(out)
        fs.optimizer.SGD(0.1).minimize(loss)
        return loss

    main, loss = build(describe)
    plan = fs.plan(main, [loss])
    assert plan.symbols == {"batch"}
    peak = plan.peak(batch=8)
    assert peak == plan.peak_formula()({"batch": 8}) == sum(h.size for h in plan.holders(batch=8))
    scopes = next(b for b in plan.buffers(batch=8) if b.what == "kept for backward" and plan.program.global_block.var(b.name).kind.name == "STEP_SCOPES")
    assert scopes.size >= 6 * 8 * 4 * 4, "what every step keeps for its gradient"


def test_ragged_programs_have_formulas_in_words_and_sentences() -> None:
    words = layer.data("words", shape=[-1, 1], dtype="int64", lod_level=1)
    pooled = layer.sequence_pool(layer.embedding(words, size=[1000, 64]), "sum")
    loss = layer.mean(layer.cross_entropy(layer.fc(pooled, 2, "softmax"), layer.data("y", shape=["batch", 1], dtype="int64")))
    fs.optimizer.Adam(0.01).minimize(loss)
    plan = fs.plan(fs.default_main_program(), [loss])
    assert plan.symbols == {"words", "batch"}
    assert plan.largest("words", within="1 GiB", batch=100) > 1_000_000
    assert plan.peak(words=3000, batch=100) > plan.peak(words=3000, batch=10)


def test_gradients_of_rows_are_as_many_as_the_ids() -> None:
    ids = layer.data("ids", shape=["batch", 1], dtype="int64")
    rows = layer.embedding(ids, size=[50_000, 16], is_sparse=True)
    loss = layer.mean(rows)
    fs.optimizer.SGD(0.1).minimize(loss)
    plan = fs.plan(fs.default_main_program(), [loss])
    gradient = next(b for b in plan.buffers(batch=10) if b.what == "gradients")
    assert gradient.size == 10 * (16 * 4 + 8)
    assert plan.breakdown(batch=10)["parameters"] == 50_000 * 16 * 4


def test_a_batch_is_that_of_all_inputs_where_none_is_called_so() -> None:
    plan = fs.plan(fs.load_program(TESTS / "corpus/mlp_momentum/main.pdmodel"))
    assert plan.leading == ("x.0", "y.0") and plan.symbols == {"x.0", "y.0"}
    assert plan.peak(batch=9) == plan.peak(**{"x.0": 9, "y.0": 9})
    assert plan.peak(**{"batch": 9, "y.0": 4}) == plan.peak(**{"x.0": 9, "y.0": 4})
    one = plan.largest("x.0", within="64MB", **{"y.0": 9})
    assert plan.peak(**{"x.0": one, "y.0": 9}) <= 64_000_000 < plan.peak(**{"x.0": one + 1, "y.0": 9})
    other = layer.data("q", shape=["q", 3])
    layer.data("x", shape=["batch", 3])
    named = fs.plan(fs.default_main_program(), [layer.relu(other)])
    assert named.symbols == {"q"} and named.peak(batch=5) == named.peak(q=5)
    both = fs.plan(fs.default_main_program(), [layer.relu(layer.concat([other, fs.default_main_program().var("x")]))])
    with pytest.raises(fs.MemoryPlanError, match=r"depends on q: give it a value, as in plan\.peak\(q=\.\.\.\)"):
        both.peak(batch=5)


def test_what_is_planned_where_nothing_is_fetched() -> None:
    x = layer.data("x", shape=["batch", 4])
    a = layer.relu(x)
    layer.softmax(a)
    last = layer.mean(a)
    plan = fs.plan(fs.default_main_program())
    assert last.name in plan.fetch and a.name not in plan.fetch and len(plan.fetch) == 2
    assert fs.plan(fs.default_main_program(), a).fetch == (a.name,)
    with pytest.raises(fs.SchemaError, match="there is no variable 'nothing'"):
        fs.plan(fs.default_main_program(), "nothing")
    empty = fs.plan(fs.Program())
    assert empty.peak() == 0 == empty.arena() and empty.buffers() == [] == empty.holders() and str(empty.peak_formula()) == "0 B"
    assert empty.peak_op() is None and empty.timeline().tolist() == []


def test_an_operator_that_is_not_known_is_told() -> None:
    layer.relu(layer.data("x", shape=["batch", 4]))
    text = str(fs.default_main_program()) + "\nOut=c?: f32[batch, 3] = no_such_operator(X=x) {}\n"
    with pytest.raises(fs.MemoryPlanError, match="'no_such_operator' is not known"):
        fs.plan(fs.Program.parse(text), "c")


# --- values, words, limits


@pytest.mark.parametrize("value", [-1, 2.5, "64", True, None, 2**63])
def test_a_size_that_is_none_is_refused(value: Any) -> None:
    y = layer.relu(layer.data("x", shape=["batch", 4]))
    with pytest.raises(fs.MemoryPlanError, match="a size is a whole number of at least 0; seen batch="):
        fs.plan(fs.default_main_program(), y).peak(batch=value)


def test_sizes_past_64_bits_and_below_0_are_errors_not_other_numbers() -> None:
    x = layer.data("x", shape=["batch", 3, 2**20])
    plan = fs.plan(fs.default_main_program(), [layer.relu(x), layer.sigmoid(x)])
    assert plan.peak(batch=np.int64(3)) == 3 * 3 * 2**20 * 4 * 3
    for ask in (plan.peak, plan.arena, plan.breakdown, plan.timeline):
        with pytest.raises(fs.ForeshapeError, match="64-bit"):
            ask(batch=2**39)
    assert plan.largest("batch", within="1 PiB") == 2**50 // (9 * 2**22)
    y = layer.data("y", shape=["n", 4])
    cut = layer.conv2d(layer.data("image", shape=["batch", 1, "n", 8]), 2, 3)
    plan = fs.plan(fs.default_main_program(), [cut, layer.relu(y)])
    with pytest.raises(fs.MemoryPlanError, match="which no tensor has"):
        plan.peak(batch=1, n=1)


@pytest.mark.parametrize(("words", "number"), [
    ("16 GiB", 16 * 2**30), ("16GiB", 16 * 2**30), ("500MB", 500_000_000), ("2g", 2 * 2**30), ("1.5 KiB", 1536), ("7", 7), ("7 b", 7), (12, 12), (0, 0),
    ("2 Ti", 2 * 2**40), ("0.1KB", 100), (" 3 k ", 3072), ("1PB", 10**15), ("123456789012345678901", 123456789012345678901),
])  # fmt: skip
def test_bytes_in_words(words: int | str, number: int) -> None:
    assert bytes_of(words) == number


@pytest.mark.parametrize("words", ["", "GiB", "-3", "3 XB", "1e5", "3 iB", "3 bits", "٣", "nan", -1, 2.5, None, True, "9" * 400 + "GB", "1 GiB 2"])
def test_what_is_no_number_of_bytes(words: Any) -> None:
    with pytest.raises(fs.MemoryPlanError, match="a number of bytes is"):
        bytes_of(words)


def test_a_formula_is_the_largest_of_its_pieces() -> None:
    a, b = symbol("a"), symbol("b")
    formula = Formula([a * 100, b * 7, 4096, (a + 5) // 2], [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 1, 0, 0], [1, 1, 0, 0]])
    assert formula.symbols == {"a", "b"} and len(formula) == 3
    for x in range(0, 90, 3):
        for y in (0, 1, 50, 900):
            assert formula({"a": x, "b": y}) == max(100 * x + 7 * y, 4096, (x + 5) // 2)
    assert str(formula).startswith("max(") and "4.0 KiB" in str(formula) and formula.at({"a": 1, "b": 1}) == "4.0 KiB"
    least = Formula([minimum(a * 264, 1114112) * 2, a * minimum(b, 9)], [[1, 3], [1, 3]])
    assert str(least) == "min(528 B*a, 2.1 MiB) + 3 B*a*min(b, 9)", "of equal pieces one is shown"
    assert all(n in str(formula) for n in ("100 B*a", "7 B*b"))
    assert symbols_of(a * b) == {"a", "b"}


@pytest.mark.long
def test_a_deep_program_is_planned_in_proportion_to_its_depth() -> None:
    assert_calls_grow_with_size(planned_to, 40, 110, 330)


def planned_to(depth: int) -> Callable[[], None]:
    """Plans a program of so many layers, and asks for the largest batch."""
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x = layer.data("x", shape=["batch", 32])
        for _ in range(depth):
            x = layer.fc(x, 32, "tanh")
        loss = layer.mean(x)
        fs.optimizer.SGD(0.1).minimize(loss)

    def work() -> None:
        plan = fs.plan(program, [loss])
        found = plan.largest("batch", within="1 GiB")
        assert plan.peak(batch=found) <= 2**30 < plan.peak(batch=found + 1)

    return work


def test_a_formula_is_the_largest_of_its_sums_wherever_it_is_asked() -> None:
    """Sums that are the largest nowhere are left out: of hundreds of lines a few are left."""
    rng, batch, words = np.random.RandomState(4), symbol("batch"), symbol("words")
    for count in (3, 9, 40, 400):
        drawn = zip(rng.randint(0, 10**6, count).tolist(), rng.randint(0, 999, count).tolist(), rng.randint(0, 2, count).tolist(), strict=True)
        sizes = [c + b * batch + w * words for c, b, w in drawn]
        formula = Formula(sizes, np.eye(count, dtype=np.int64))
        for at in (0, 1, 2, 7, 50, 999, 10**5):
            for other in (0, 3, 10**6):
                values = {"batch": at, "words": other}
                assert formula(values) == max(evaluate(s, values) for s in sizes)
        assert count < 40 or len(formula) < count / 2
