"""Values that the backward pass computes again: the same parameters, fetches and random numbers, in less memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.corpus import CASES, LARGE, case
from support.retrained import (
    QUICK_AND_LONG,
    STEPS,
    Network,
    Trained,
    assert_equal,
    assert_same,
    attention,
    branches,
    described,
    droppable,
    least_of,
    loss_of,
    numbers,
    sizes_of,
    state,
    trained,
)

import foreshape as fs
from foreshape import layer
from foreshape.language.program import Role
from foreshape.transforms.backward.recompute import Recomputing
from foreshape.transforms.passes import for_test, recompute_values


@pytest.fixture(params=QUICK_AND_LONG, ids=lambda n: n.__name__)
def network(request: pytest.FixtureRequest) -> Network:
    return request.param()


@pytest.mark.long
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
    assert_same(trained(network, network.main), trained(network, program), network.within)


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


@pytest.mark.long_cases("transformer_adamw")
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
    assert_same(before, after, within=1e-5)  # on some machines products of rows depend on where these lie
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


@pytest.mark.long
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
