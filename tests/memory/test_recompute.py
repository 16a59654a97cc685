"""Values that the backward pass computes again: the same parameters, fetches and random numbers, in less memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.backward.recompute import Recomputing
from foreshape.passes import for_test, recompute_values
from foreshape.program import Role

sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from reference import CASES, LARGE, case

STEPS = 10


class Network(NamedTuple):
    """A training program, its startup program, what is fetched, and the feed of a step."""

    main: fs.Program
    startup: fs.Program
    fetch: list[str]
    feed: Callable[[np.random.Generator], dict[str, Any]]
    within: float = 0.0


def described(inputs: Callable[[], Any], optimizer: Any, feed: Callable[[np.random.Generator], dict[str, Any]]) -> Network:
    main, startup = fs.Program(), fs.Program()
    main.random_seed = 0
    startup.random_seed = 11
    with fs.program_guard(main, startup):
        out, loss = inputs()
        optimizer.minimize(loss)
    return Network(main, startup, [loss.name, out.name], feed)


def numbers(seen: np.random.Generator, *dims: int) -> np.ndarray:
    return seen.standard_normal(dims).astype(np.float32)


def loss_of(logits: fs.Variable) -> Any:
    return logits, layer.mean(layer.softmax_with_cross_entropy(logits, layer.data("y", shape=["batch", 1], dtype="int64")))


def images() -> Network:
    """Convolutions, batch norm, dropout before and behind them, residual sums."""

    def net() -> Any:
        h = layer.conv2d(layer.data("x", shape=["batch", 3, 10, 10]), 8, 3, padding=1)
        for _ in range(6):
            r = layer.dropout(layer.relu(layer.batch_norm(layer.conv2d(h, 8, 3, padding=1))), 0.2)
            h = layer.relu(h + layer.batch_norm(layer.conv2d(r, 8, 3, padding=1)))
        return loss_of(layer.fc(layer.dropout(h, 0.5), 10))

    return described(net, fs.optimizer.Momentum(0.01, 0.9), lambda r: {"x": numbers(r, 4, 3, 10, 10), "y": r.integers(0, 10, (4, 1))})


def attention() -> Network:
    """An encoder with dropout, with views, and with numbers that are drawn behind it."""

    def net() -> Any:
        width, heads = 32, 4
        h = layer.data("x", shape=["batch", "time", width])
        for _ in range(4):
            q, k, v = (layer.transpose(layer.reshape(layer.fc(h, width, num_flatten_dims=1), [0, 0, heads, width // heads]), [0, 2, 1, 3]) for _ in "qkv")
            mixed = layer.matmul(layer.dropout(layer.softmax(layer.matmul(q, k, transpose_y=True)), 0.1), v)
            mixed = layer.fc(layer.reshape(layer.transpose(mixed, [0, 2, 1, 3]), [0, 0, width]), width, num_flatten_dims=1)
            h = layer.layer_norm(h + layer.dropout(mixed, 0.1), begin_norm_axis=2)
            inner = layer.fc(layer.gelu(layer.fc(h, 64, num_flatten_dims=1)), width, num_flatten_dims=1)
            h = layer.layer_norm(h + layer.dropout(inner, 0.1), begin_norm_axis=2)
        pooled = layer.reduce_mean(h, 1)
        return loss_of(layer.fc(pooled * layer.uniform_random([1], "float32", 0.9, 1.1), 10))

    return described(net, fs.optimizer.Adam(0.001), lambda r: {"x": numbers(r, 3, 7, 32), "y": r.integers(0, 10, (3, 1))})


def sequences() -> Network:
    """Ragged LSTM layers with dropout between them, in two levels of depth, pooled."""

    def net() -> Any:
        h = layer.embedding(layer.data("x", shape=[-1], dtype="int64", lod_level=1), [50, 16])
        for _ in range(3):
            h, _ = layer.lstm(layer.tanh(layer.fc(h, 16)), 12, num_layers=2, dropout=0.3)
            h = layer.dropout(h, 0.2)
        return loss_of(layer.fc(layer.sequence_pool(h, "max"), 10))

    def feed(r: np.random.Generator) -> dict[str, Any]:
        lengths = [40, 0, 61, *[30] * 10]
        return {"x": fs.LoDTensor(r.integers(0, 50, (sum(lengths),)), [lengths]), "y": r.integers(0, 10, (len(lengths), 1))}

    return described(net, fs.optimizer.SGD(0.1), feed)._replace(within=1e-4)


def branches() -> Network:
    """What a branch captures and gives is kept; around it is computed again."""

    def net() -> Any:
        h = layer.data("x", shape=["batch", 16])
        for _ in range(3):
            h = layer.tanh(layer.fc(layer.dropout(layer.gelu(layer.fc(h, 24)), 0.2), 16))
        positive = layer.greater_than(layer.reduce_mean(h), layer.fill_constant([], "float32", 0.0))
        g = layer.cond(positive, lambda: layer.tanh(h) * 2.0, lambda: h * h)
        return loss_of(layer.fc(layer.sigmoid(g + h), 10))

    return described(net, fs.optimizer.SGD(0.1), lambda r: {"x": numbers(r, 300, 16), "y": r.integers(0, 10, (300, 1))})


NETWORKS = [images, attention, sequences, branches]


@pytest.fixture(params=NETWORKS, ids=lambda n: n.__name__)
def network(request: pytest.FixtureRequest) -> Network:
    return request.param()


class Trained(NamedTuple):
    fetched: list[list[Any]]
    kept: dict[str, Any]
    random: Any


def trained(network: Network, program: fs.Program, steps: int = STEPS) -> Trained:
    executor, scope = fs.Executor(seed=5), fs.Scope()
    executor.run(network.startup, scope=scope)
    chance = np.random.default_rng(0)
    fetched = [executor.run(program, network.feed(chance), network.fetch, scope) for _ in range(steps)]
    return Trained(fetched, state(program, scope), executor.random_state())


def state(program: fs.Program, scope: fs.Scope) -> dict[str, Any]:
    return {v.name: np.array(scope.get(v.name)) for v in program.all_variables() if v.persistable and v.name in scope}


def assert_same(a: Trained, b: Trained, within: float = 0.0) -> None:
    """Bit by bit: every step is made of the same kernels with the same numbers. ``within``: of the largest, for kernels that
    compute otherwise when only their result is wanted."""
    for before, after in zip(a.fetched, b.fetched, strict=True):
        for x, y in zip(before, after, strict=True):
            assert_equal(np.asarray(x), np.asarray(y), within, "what is fetched")
    assert a.kept.keys() <= b.kept.keys()
    for name, value in a.kept.items():
        assert_equal(value, b.kept[name], within, name)
    np.testing.assert_array_equal(a.random, b.random, err_msg="where the random numbers go on")


def assert_equal(a: np.ndarray, b: np.ndarray, within: float, what: str) -> None:
    if within and a.size and a.dtype.kind == "f":
        np.testing.assert_allclose(a, b, rtol=0, atol=within * float(np.abs(a).max()), err_msg=what)
    else:
        np.testing.assert_array_equal(a, b, err_msg=what)


def sizes_of(network: Network) -> dict[str, int]:
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(network.startup, scope=scope)
    executor.run(network.main, network.feed(np.random.default_rng(0)), network.fetch, scope)
    (seen,) = executor.step(network.main, network.fetch).seen.values()
    return {n: seen.values[n] for n in fs.plan(network.main, network.fetch).symbols if n in seen.values}


def least_of(program: fs.Program, fetch: list[str], sizes: dict[str, int]) -> int:
    """The least peak that is reached, found as a user would."""
    with pytest.raises(fs.MemoryPlanError, match=r"the least that was found is .*, and without it is") as error:
        fs.recompute(program, within=1, fetch=fetch, **sizes)
    return getattr(error.value, "least")  # noqa: B009


def droppable(program: fs.Program) -> set[str]:
    """All that can be computed again, but what the backward pass begins with, whose kernels are fused with it."""
    can = Recomputing(program.global_block)
    return set(can.maker) - can.beginning()


def test_budgets_are_met_and_a_step_computes_what_it_did(network: Network) -> None:
    sizes = sizes_of(network)
    peak = fs.plan(network.main, network.fetch).peak(**sizes)
    text, version = str(network.main), network.main.version
    least = least_of(network.main, network.fetch, sizes)
    assert least < peak
    assert (str(network.main), network.main.version) == (text, version)
    expected = trained(network, network.main)
    work = 0.0
    for within in (least + (peak - least) * 3 // 4, (least + peak) // 2, least):
        found = fs.recompute(network.main, within=within, fetch=network.fetch, **sizes)
        assert found.program is not network.main and str(network.main) == text
        assert found.peak == fs.plan(found.program, network.fetch).peak(**sizes) <= within
        again = fs.recompute(network.main, within=within, fetch=network.fetch, **sizes)
        assert str(again.program) == str(found.program), "the same answer every time"
        assert found.peak_before == peak and found.extra_work >= 0 and "instead of" in str(found)
        assert_same(expected, trained(network, found.program), network.within)
        work = max(work, found.extra_work)
    assert 0 < work < 1, "what is computed again is a part of the step"


def test_all_that_can_be_is_computed_again(network: Network) -> None:
    program, names = recompute_values(network.main, droppable(network.main))
    assert len(names) > 10
    assert_same(trained(network, network.main), trained(network, program), network.within)
    # what is fetched is the first value, whoever reads a copy
    forward = [n for n in names if network.main.var(n).dtype is fs.FP32][:6]
    executor, values = fs.Executor(seed=5), []
    for one in (network.main, program):
        scope, executor = fs.Scope(), fs.Executor(seed=5)
        executor.run(network.startup, scope=scope)
        values.append(executor.run(one, network.feed(np.random.default_rng(0)), forward, scope))
    for a, b in zip(*values, strict=True):
        assert_equal(np.asarray(a), np.asarray(b), network.within, "what is fetched")


def test_masks_are_kept_and_the_rest_is_computed_again() -> None:
    network = attention()
    masks = {n for op in network.main.all_ops() if op.type == "dropout" for n in op.outputs["Mask"]}
    drawn = {n for op in network.main.all_ops() if op.type == "uniform_random" for n in op.output_names()}
    program, names = recompute_values(network.main, droppable(network.main) - masks - drawn)
    kinds = [op.type for op in program.all_ops() if any(n.endswith("@RECOMPUTE") for n in op.output_names())]
    assert "dropout_grad" in kinds and "dropout" not in kinds and not any(op.type == "random_state" for op in program.all_ops())
    assert masks.isdisjoint(names)
    assert_same(trained(network, network.main), trained(network, program))


def test_a_rewritten_program_is_a_program_like_others(network: Network) -> None:
    program, _ = recompute_values(network.main, droppable(network.main))
    assert str(fs.Program.parse(str(program))) == str(program)
    again = fs.load_program(program.to_bytes())
    assert again.to_bytes() == program.to_bytes()
    again.forget()
    again.infer()
    assert_same(trained(network, program, 3), trained(network, again, 3))
    copies = [op for op in program.all_ops() if any(n.endswith("@RECOMPUTE") for n in op.output_names())]
    sites = {(op.type, op.site) for op in network.main.all_ops()} | {("assign", op.site) for op in network.main.all_ops()}
    assert copies and all(op.role == Role.BACKWARD and (op.type.removesuffix("_grad"), op.site) in sites for op in copies)
    assert not any("@RECOMPUTE" in n for op in for_test(program).all_ops() for n in (*op.input_names(), *op.output_names()))
    executor, scope = fs.Executor(seed=5, check=True), fs.Scope()
    executor.run(network.startup, scope=scope)
    executor.run(program, network.feed(np.random.default_rng(0)), network.fetch, scope)


def trains(name: str) -> bool:
    path = case(name).path("main.pdmodel")
    return path.exists() and any(op.role & Role.BACKWARD for op in fs.load_program(path).global_block.ops)


@pytest.mark.parametrize("name", [n for n in CASES if n not in LARGE and trains(n)])
def test_programs_of_paddlepaddle(name: str) -> None:
    of = case(name)
    main = fs.load_program(of.path("main.pdmodel"))
    program, names = recompute_values(main, droppable(main))

    def run(one: fs.Program) -> Trained:
        executor = fs.Executor(seed=3)
        scope = of.start(executor)
        fetched = [executor.run(one, of.feed, list(of.about["fetches"]), scope) for _ in range(STEPS)]
        return Trained(fetched, state(main, scope), executor.random_state())

    before, after = run(main), run(program)
    assert_same(before, after)
    assert names or len(main.global_block.ops) < 25


# --- scopes


def scoped(scope: Callable[[], Any]) -> Network:
    def net() -> Any:
        h = layer.data("x", shape=["batch", 3, 8, 8])
        for _ in range(3):
            with scope():
                h = layer.relu(layer.batch_norm(layer.conv2d(h, 6, 3, padding=1)))
                with scope():
                    h = layer.relu(layer.conv2d(layer.dropout(h, 0.2), 6, 3, padding=1))
        return loss_of(layer.fc(h, 10))

    return described(net, fs.optimizer.SGD(0.05), lambda r: {"x": numbers(r, 4, 3, 8, 8), "y": r.integers(0, 10, (4, 1))})


def test_a_budget_after_scopes() -> None:
    network = scoped(layer.recompute_scope)
    sizes = {"batch": 4}
    peak = fs.plan(network.main, network.fetch).peak(**sizes)
    least = least_of(network.main, network.fetch, sizes)
    found = fs.recompute(network.main, within=(least + peak) // 2, fetch=network.fetch, **sizes)
    assert found.peak < peak and str(fs.Program.parse(str(found.program))) == str(found.program)
    assert_same(trained(network, network.main), trained(network, found.program))


def test_what_is_made_in_a_scope_is_computed_again() -> None:
    plain, marked = scoped(contextlib.nullcontext), scoped(layer.recompute_scope)
    assert_same(trained(plain, plain.main), trained(marked, marked.main))
    assert fs.plan(marked.main, marked.fetch).peak(batch=64) < fs.plan(plain.main, plain.fetch).peak(batch=64)
    relus = [op.output("Out") for op in marked.main.all_ops() if op.type == "relu" and not op.role & Role.BACKWARD]
    again = [f"{n}@RECOMPUTE" in marked.main.global_block.vars for n in relus]
    assert again == [True, False] * 3, "the last of each scope leaves it, and is kept"


def test_the_marks_of_a_scope_are_kept_in_files() -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = layer.data("x", shape=["batch", 4])
        with layer.recompute_scope():
            h = layer.fc(layer.tanh(layer.fc(x, 8)), 4)
        loss = layer.mean(h * h)
    for again in (fs.load_program(main.to_bytes()), fs.Program.parse(str(main)), main.clone()):
        fs.append_backward(again.var(loss.name))
        assert any(n.endswith("@RECOMPUTE") for n in again.global_block.vars)


def test_a_scope_within_a_branch_is_refused_with_the_line() -> None:
    x = layer.data("x", shape=["batch", 4])

    def branch() -> fs.Variable:
        with layer.recompute_scope():
            return layer.tanh(x)

    with pytest.raises(fs.SchemaError, match="around a loop or a branch, not within it") as error:
        layer.cond(layer.greater_than(layer.reduce_mean(x), layer.fill_constant([], "float32", 0.0)), branch, lambda: x * 2.0)
    assert "test_recompute.py" in str(error.value)


# --- what cannot be


def test_what_fits_is_left_as_it_is() -> None:
    network = branches()
    found = fs.recompute(network.main, within="1 GiB", batch=4)
    assert found.program is network.main and not found.dropped and "nothing needs to be computed again" in str(found)


def test_mistakes_are_told() -> None:
    network = branches()
    with pytest.raises(fs.MemoryPlanError, match="batch"):
        fs.recompute(network.main, within="1 KiB")
    with pytest.raises(fs.MemoryPlanError, match="a number of bytes"):
        fs.recompute(network.main, within="much", batch=4)
    forward = for_test(network.main)
    with pytest.raises(fs.SchemaError, match=r"no backward ops(.|\n)*test_recompute.py"):
        fs.recompute(forward, within="1 KiB", batch=4)


def test_values_that_must_be_kept_are() -> None:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x = layer.data("x", shape=[-1, 4], lod_level=1)
        picked = layer.masked_select(x, layer.greater_than(x, layer.fill_constant([1], "float32", 0.0)))  # only the run tells how many
        counter = layer.create_parameter([1], fs.FP32, "counter")
        main.global_block.append_op("increment", {"X": counter}, {"Out": counter})
        scaled = picked * counter
        loss = layer.mean(scaled * scaled)
        fs.optimizer.SGD(0.1).minimize(loss)
    can = Recomputing(main.global_block).maker
    assert picked.name not in can and counter.name not in can and scaled.name in can
    program, names = recompute_values(main, [*main.global_block.vars])
    assert "x" not in names and counter.name not in names and scaled.name in names
    fs.Executor().run(startup)
    assert np.isfinite(fs.Executor().run(program, {"x": fs.LoDTensor(np.ones((3, 4), np.float32), [[2, 1]])}, loss.name)[0])
