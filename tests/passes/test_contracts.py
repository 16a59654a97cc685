"""The contracts of all passes: what is required is refused in words, what is ensured holds, and an idempotent pass changes its result no more."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.errors import DescriptionError, SchemaError
from foreshape.language.program import Program, Role
from foreshape.transforms.passes import (
    Pass,
    accumulate,
    data_parallel,
    for_test,
    for_training,
    lower_precision,
    prune,
    recompute_values,
    scale_loss,
    shard_optimizer,
    shard_parameters,
    split_layers,
    split_tables,
)  # fmt: skip
from foreshape.transforms.passes.accumulate_distributed import _updates_last  # pyright: ignore[reportPrivateUsage]
from foreshape.transforms.passes.contract import VERIFY, Contract, ProgramCondition, contracts
from foreshape.transforms.passes.recompute import gradients_apart


class Net(NamedTuple):
    program: Program
    startup: Program
    loss: str


def described(train: bool = True, sparse: bool = False) -> Net:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        h = layer.embedding(layer.data("ids", shape=["batch", 3], dtype="int64"), size=(9, 4), is_sparse=sparse, weight="table")
        h = layer.batch_norm(layer.fc(layer.dropout(layer.reshape(h, [-1, 12]), 0.3), 8, activation="tanh", weight="first"))
        h = layer.cond(layer.reduce_sum(h) > 0.0, lambda: h * 2.0, lambda: h)
        loss = layer.mean(layer.square(layer.fc(h, 2, weight="second")))
        if train:
            fs.optimizer.Momentum(fs.optimizer.ExponentialDecay(0.1, 10, 0.5), 0.9).minimize(loss)
    return Net(main, startup, loss.name)


def plain() -> Net:
    return described(train=False)


def sparse() -> Net:
    return described(sparse=True)


def early() -> Net:
    """A program in which an op of the updates stands before the last gradient."""
    net = described()
    next(op for op in net.program.global_block.ops if op.role & Role.BACKWARD).role = Role.OPTIMIZE
    return net


def images() -> Net:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        h = layer.conv2d(layer.conv2d(layer.data("images", shape=["batch", 3, 24, 24]), 16, 3), 16, 3)
        loss = layer.mean(layer.square(h))
        fs.optimizer.SGD(0.1).minimize(loss)
    return Net(main, startup, loss.name)


def layers(net: Net) -> Program:
    return split_layers(degree=2, layers={"first": "columns"}).apply(net.program, net.loss, 2, net.startup).program


def evaluated(net: Net) -> Program:
    divided = shard_parameters().apply(net.program, net.loss, 2, net.startup)
    return shard_parameters().evaluated(for_test(net.program), divided.parts, 2)


class Case(NamedTuple):
    net: Callable[[], Net]
    apply: Callable[[Net], Program]


CASES: dict[str, Case] = {
    "prune": Case(described, lambda n: prune(n.program, None, [n.loss])),
    "for_test": Case(described, lambda n: for_test(n.program)),
    "for_training": Case(plain, lambda n: for_training(n.program, ["ids"], [n.loss])),
    "lower_precision": Case(plain, lambda n: lower_precision(n.program, "bf16")),
    "scale_loss": Case(described, lambda n: scale_loss(n.program, n.loss, n.startup)[0]),
    "accumulate": Case(described, lambda n: accumulate(n.program, 2, n.startup)[0]),
    "recompute_values": Case(described, lambda n: recompute_values(n.program, [v.name for v in n.program.all_variables() if v.op and v.op.type == "tanh"])[0]),
    "gradients_apart": Case(images, lambda n: gradients_apart(n.program)[0]),
    "data_parallel": Case(described, lambda n: data_parallel().apply(n.program, n.loss, 2, n.startup).program),
    "shard_optimizer": Case(described, lambda n: shard_optimizer().apply(n.program, n.loss, 2, n.startup).program),
    "shard_parameters": Case(described, lambda n: shard_parameters().apply(n.program, n.loss, 2, n.startup).program),
    "gather_parameters": Case(described, evaluated),
    "split_tables": Case(sparse, lambda n: split_tables().apply(n.program, n.loss, 2, n.startup).program),
    "split_layers": Case(described, layers),
    "updates_last": Case(early, lambda n: _updates_last(n.program)),
}
"""The contract's name -> a network that the pass changes, and its application."""


def unknown() -> Net:
    net = plain()
    return net._replace(program=fs.load_program(net.program.to_bytes().replace(b"tanh", b"htan")))


def conditional() -> Net:
    net = described()
    return net._replace(program=accumulate(net.program, 2, net.startup)[0])


BREACHES: dict[str, Callable[[], Net]] = {
    "updates of parameters": plain, "a program without gradients": described, "known operators": unknown, "updates that are made in each step": conditional,
}  # fmt: skip
"""The words of a condition -> a network that does not meet it."""

ELSEWHERE = ("by_mode", "still", "no_copies", "drop_scale_by_one")
"""Passes of the rooms that write torch code, of tests and of the documentation: here where something imported them before."""
by_name = {c.name: c for c in contracts() if c.name not in ELSEWHERE}
required = [pytest.param(c, condition, id=f"{c.name}-{condition.words}") for c in by_name.values() for condition in c.requires]
ensured = [pytest.param(c, condition, id=f"{c.name}-{condition.words}") for c in by_name.values() for condition in c.ensures]


@cache
def changed(name: str) -> tuple[bytes, Program, Program]:
    net = CASES[name].net()
    before = net.program.to_bytes()
    return before, net.program, CASES[name].apply(net)


def test_each_contract_has_a_case() -> None:
    assert by_name.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_pass_changes_a_copy(name: str) -> None:
    before, program, after = changed(name)
    assert after is not program and program.to_bytes() == before and after.to_bytes() != before


@pytest.mark.parametrize(("contract", "condition"), required)
def test_what_a_pass_requires_is_refused_in_words(contract: Contract, condition: ProgramCondition) -> None:
    net = BREACHES[condition.words]()
    with pytest.raises(SchemaError, match="requires") as caught:
        CASES[contract.name].apply(net)
    seen = condition.breach(net.program)
    assert (caught.value.required, caught.value.seen) == (condition.words, seen) and f"requires {condition.words}; {seen}" in str(caught.value)


@pytest.mark.parametrize(("contract", "condition"), ensured)
def test_what_a_pass_ensures_holds_behind_it_and_not_before(contract: Contract, condition: ProgramCondition) -> None:
    _, program, after = changed(contract.name)
    assert not condition.breach(after)
    others = [described().program, unused_block()]
    assert any(map(condition.breach, (program, *others)))


def unused_block() -> Program:
    program = plain().program
    program.create_block(program.global_block)
    return program


@pytest.mark.parametrize("name", [c.name for c in by_name.values() if c.idempotent])
def test_a_second_application_of_an_idempotent_pass_changes_nothing(name: str) -> None:
    net = CASES[name].net()
    after = CASES[name].apply(net)
    assert CASES[name].apply(net._replace(program=after)) is after


# --- verified


def add(program: Program) -> bool:
    program.global_block.create_variable("surplus", fs.core.spec.tensor(fs.FP32, 3))
    return False


NO_OPS = ProgramCondition("no ops", lambda p: f"it has {len(p.global_block.ops)}" if p.global_block.ops else "")


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize(("step", "says"), [
    (Pass("silent", add), "the pass silent says that it changes nothing, and its program is another"),
    (Pass(Contract("empty", ensures=(NO_OPS,)), lambda p: True), "the pass empty ensures no ops; it has "),
])  # fmt: skip
def test_a_pass_that_breaks_its_contract_is_told_where_passes_are_verified(step: Pass, says: str, verified: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERIFY, "1" if verified else "")
    net: Any = plain()
    if not verified:
        step(net.program)
        return
    with pytest.raises(DescriptionError, match=says):
        step(net.program)
