"""Gradients of several batches in one update: as one step with a batch as large as all of them, and nothing in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.some import each_of_product

import foreshape as fs
from foreshape import layer, optimizer
from foreshape.compiler.lowering.kernel_calls import KernelCall, region_of
from foreshape.errors import SchemaError
from foreshape.optimizer import Group, Optimizer
from foreshape.transforms.passes import accumulate, lower_precision, scale_loss

BATCHES = 3
DATA = np.random.default_rng(5)
X = DATA.standard_normal((12, 7)).astype("float32")
Y = DATA.integers(0, 3, (12, 1))


class Described:
    """A network with its updates, and the same with gradients of three batches in each."""

    def __init__(self, make: Optimizer, precision: str = "fp32") -> None:
        main, self.startup = fs.Program(), fs.Program()
        with fs.program_guard(main, self.startup):
            x, y = layer.data("x", ["batch", 7]), layer.data("y", ["batch", 1], "int64")
            h = layer.fc(layer.batch_norm(layer.fc(x, 5), is_test=True), 5, "relu")
            loss = layer.mean(layer.softmax_with_cross_entropy(layer.fc(h, 3), y))
        self.main = lower_precision(main, precision)
        with fs.program_guard(self.main, self.startup):
            make.minimize(self.main.var(loss.name))
        if precision == "fp16":
            self.main, self.startup = scale_loss(self.main, loss.name, self.startup)
        self.rate = make.rate_of(main).name if precision == "fp32" else ""
        self.loss = loss.name
        self.gathered, self.begins = accumulate(self.main, BATCHES, self.startup)

    def scopes(self, executor: fs.Executor) -> tuple[fs.Scope, fs.Scope]:
        """The values that one and the other begin with, which are the same."""
        one, other = fs.Scope(), fs.Scope()
        executor.run(self.startup, scope=one)
        executor.run(self.begins, scope=other)
        for name in one.names():
            other.set(name, one.get(name))
        return one, other


def batch(at: int) -> dict[str, Any]:
    return {"x": X[at::BATCHES], "y": Y[at::BATCHES]}


OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "sgd": lambda: optimizer.SGD(0.5),
    "momentum": lambda: optimizer.Momentum(0.1, weight_decay=0.1, groups=[Group("*.b_0", weight_decay=0, learning_rate_factor=2)], freeze=["fc_1.w_0"]),
    "adam": lambda: optimizer.Adam(optimizer.cosine(0.05, steps=3, warmup=1), clip=optimizer.ClipByGlobalNorm(0.1), weight_decay=0.01),
    "adamax": lambda: optimizer.Adamax(0.05, clip=optimizer.ClipByValue(0.01)),
    "lamb": lambda: optimizer.Lamb(optimizer.ExponentialDecay(0.05, 1, 0.5)),
}


@pytest.mark.quick_cases("momentum-True", "adamax-False")
@pytest.mark.parametrize(("name", "check"), each_of_product(3, OPTIMIZERS, (False, True)))
def test_several_batches_update_as_one_as_large(name: str, check: bool) -> None:
    net = Described(OPTIMIZERS[name]())
    executor = fs.Executor(check=check)
    one, other = net.scopes(executor)
    for _ in range(2):
        whole = executor.run(net.main, {"x": X, "y": Y}, [net.loss, net.rate], one)
        parts = [executor.run(net.gathered, batch(at), [net.loss, net.rate], other) for at in range(BATCHES)]
        np.testing.assert_allclose(np.mean([p[0] for p in parts]), whole[0], rtol=1e-5)
        for part in parts:  # the rate of the update that a batch is for
            np.testing.assert_array_equal(part[1], whole[1])
    for kept in one.names():
        np.testing.assert_allclose(other.get(kept), one.get(kept), rtol=2e-4, atol=1e-6, err_msg=kept)


def test_nothing_moves_between_updates_and_no_block_is_run() -> None:
    net = Described(optimizer.Adam(0.1))
    executor = fs.Executor()
    _, scope = net.scopes(executor)
    region = next(r for i in executor.step(net.gathered, [net.loss]).emitted.lowered.calls if (r := region_of(i)) is not None)
    runs = 0
    inner = region.function

    def counted(*given: Any) -> Any:
        nonlocal runs
        runs += 1
        return inner(*given)

    region.function = counted
    held = {n: scope.get(n) for n in scope.names() if "accumulated" not in n}
    for at in range(BATCHES - 1):
        executor.run(net.gathered, batch(at), [net.loss], scope)
    assert runs == 0
    for name, value in held.items():
        np.testing.assert_array_equal(scope.get(name), value, err_msg=name)
    sums = [n for n in scope.names() if n.endswith("_accumulated_0")]
    assert len(sums) == sum(p.trainable for p in net.main.parameters()) and all(scope.get(n).any() for n in sums if "fc_2" in n)
    executor.run(net.gathered, batch(BATCHES - 1), [net.loss], scope)
    assert runs == 1 and not any(scope.get(n).any() for n in [*sums, "accumulated_batches_0"])
    assert not np.array_equal(scope.get("fc_2.w_0"), held["fc_2.w_0"])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_update_in_a_block_changes_the_scopes_own_tensors(precision: str) -> None:
    net = Described(optimizer.Adam(0.1), precision)
    step = fs.Executor().step(net.gathered, [net.loss])

    def all_of(found: list[KernelCall]) -> list[KernelCall]:
        inner = [(i, region_of(i)) for i in found]
        return [x for i, r in inner for x in ([i, *all_of(r.lowered.calls)] if r is not None else [i])]

    instructions = all_of(step.emitted.lowered.calls)
    assert sum("Moment1" in i.op.inputs for i in instructions) > 0
    assert not any(i.copies for i in instructions)
    # what is stored is numbers alone: powers of beta, the count
    assert all(any(word in place.name for word in ("pow_acc", "batches", "accumulated_weight")) for i in instructions for place, _ in i.stores)


def test_a_group_goes_on_where_it_was() -> None:
    net = Described(optimizer.Momentum(optimizer.cosine(0.1, steps=4)))
    executor = fs.Executor()
    _, straight = net.scopes(executor)
    resumed = fs.Scope()
    for name in straight.names():
        resumed.set(name, straight.get(name))
    for at in range(2 * BATCHES):
        executor.run(net.gathered, batch(at % BATCHES), [net.loss], straight)
    for at in range(2):
        executor.run(net.gathered, batch(at), [net.loss], resumed)
    again = fs.Scope()
    for name in resumed.names():
        again.set(name, resumed.get(name))
    for at in range(2, 2 * BATCHES):
        executor.run(net.gathered, batch(at % BATCHES), [net.loss], again)
    for name in straight.names():
        np.testing.assert_array_equal(again.get(name), straight.get(name), err_msg=name)


def test_sums_are_all_that_a_step_needs_more() -> None:
    net = Described(optimizer.Adam(0.1))
    plain, gathered = (fs.plan(p, [net.loss]).peak(batch=64) for p in (net.main, net.gathered))
    weights: Any = sum(p.nbytes for p in net.main.parameters())
    assert gathered - plain < 2 * weights + 2000, (plain, gathered, weights)


def test_the_program_is_read_back_and_loses_it_for_a_test() -> None:
    net = Described(optimizer.Adam(optimizer.cosine(0.1, steps=3)), "fp16")
    assert str(fs.Program.parse(str(net.gathered))) == str(net.gathered)
    assert fs.Program.from_bytes(net.gathered.to_bytes()).to_bytes() == net.gathered.to_bytes()
    evaluated = fs.passes.for_test(net.gathered)
    assert len(evaluated.blocks) == 1 and not any("accumulated" in v.name or "scaling" in v.name for v in evaluated.all_variables())
    assert len(net.main.blocks) == 2  # which is left as it was


def test_one_batch_is_a_plain_update() -> None:
    net = Described(optimizer.SGD(0.1))
    assert accumulate(net.main, 1, net.startup) == (net.main, net.startup)


def test_what_cannot_accumulate_is_refused() -> None:
    net = Described(optimizer.SGD(0.1))
    for number in (0, True, 2.5):
        with pytest.raises(SchemaError, match="the number of batches that make one update"):
            accumulate(net.main, number, net.startup)  # pyright: ignore[reportArgumentType]
    with pytest.raises(SchemaError, match="accumulate=2 requires updates of parameters; the program has no updates: minimise"):
        accumulate(net.startup, 2, fs.Program())
    with pytest.raises(SchemaError, match="do not say of which gradients"):
        accumulate(net.gathered, 2, net.begins)
