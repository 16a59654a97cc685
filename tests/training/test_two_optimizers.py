"""Two optimizers over one scope, as a GAN has them: each has its own rates, counters, moments and sums, whichever way it is trained; beside torch."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer

STEPS, BATCH = 6, 12
numbers = np.random.RandomState(0)
REAL = numbers.randn(STEPS * BATCH, 5).astype("float32") + 1.0
NOISE = numbers.randn(STEPS * BATCH, 3).astype("float32")
WEIGHTS = {"g1": (3, 7), "g2": (7, 5), "d1": (5, 6), "d2": (6, 1)}
FIRST = {f"{name}.{of}": (numbers.randn(*(dims if of == "w" else dims[1:])) * 0.5).astype("float32") for name, dims in WEIGHTS.items() for of in "wb"}
D_RATE, D_DECAY, G_RATES = 0.02, 0.7, (0.05, 0.01)


def dense(x: Any, name: str, activation: str | None = None) -> Any:
    return layer.fc(x, WEIGHTS[name][1], activation, weight=f"{name}.w", bias=f"{name}.b")


def costs() -> tuple[Any, Any]:
    """Those of the discriminator and of the generator."""
    real, noise = layer.data("real", 5), layer.data("noise", 3)
    fake = dense(dense(noise, "g1", "tanh"), "g2")
    d_real, d_fake = (dense(dense(x, "d1", "tanh"), "d2") for x in (real, fake))
    return layer.mean(d_real * d_real - 2.0 * d_real + d_fake * d_fake), layer.mean(layer.square(d_fake - 1.0))


def optimizers(frozen: bool) -> tuple[Any, Any]:
    of_d: Any = fs.optimizer.Adam(fs.optimizer.ExponentialDecay(D_RATE, 1, D_DECAY), freeze=["g*"] if frozen else ())
    of_g: Any = fs.optimizer.Adam(fs.optimizer.PiecewiseDecay([2], list(G_RATES)), beta1=0.5, freeze=["d*"] if frozen else ())
    return of_d, of_g


def batches() -> Iterator[dict[str, Any]]:
    for at in range(0, STEPS * BATCH, BATCH):
        yield {"real": REAL[at : at + BATCH], "noise": NOISE[at : at + BATCH]}


def begin(scope: fs.Scope) -> None:
    for name, value in FIRST.items():
        scope.set(name, value)


def alternate(d: Callable[[Any], Any], g: Callable[[Any], Any]) -> None:
    for feed in batches():
        d(feed)
        d(feed)  # the counters of both go apart
        g(feed)


def by_hand(frozen: bool, scope: fs.Scope, accumulate: int = 1) -> None:
    """As the pages for those who come from PyTorch and PaddlePaddle say."""
    with fs.program():
        of_d, of_g = costs()
    a, b = optimizers(frozen)
    d, g = fs.training_program(of_d, a, accumulate=accumulate), fs.training_program(of_g, b, accumulate=accumulate)
    del a, b
    executor = fs.Executor()
    executor.run(d.startup, scope=scope)
    executor.run(g.startup, scope=scope)
    begin(scope)
    alternate(lambda feed: executor.run(d.program, feed, [d.loss], scope), lambda feed: executor.run(g.program, feed, [g.loss], scope))


def programs_alone(frozen: bool, scope: fs.Scope) -> None:
    """Of what `training_program` gives only the programs are kept."""
    with fs.program():
        of_d, of_g = costs()
    executor, made = fs.Executor(), []
    for cost, at in ((of_d, 0), (of_g, 1)):
        one = fs.training_program(cost, optimizers(frozen)[at])
        executor.run(one.startup, scope=scope)
        made.append(one.program)
        del one
    begin(scope)
    alternate(*(lambda feed, program=program: executor.run(program, feed, [], scope) for program in made))


def trained(frozen: bool, scope: fs.Scope) -> None:
    with fs.program():
        of_d, of_g = costs()
    begin(scope)
    a, b = optimizers(frozen)
    options: dict[str, Any] = {"scope": scope, "progress": False}
    alternate(lambda feed: fs.train(of_d, [feed], optimizer=a, **options), lambda feed: fs.train(of_g, [feed], optimizer=b, **options))


def trained_and_by_hand(frozen: bool, scope: fs.Scope) -> None:
    with fs.program():
        of_d, of_g = costs()
    a, b = optimizers(frozen)
    g, executor = fs.training_program(of_g, b), fs.Executor()
    executor.run(g.startup, scope=scope)
    begin(scope)
    alternate(lambda feed: fs.train(of_d, [feed], optimizer=a, scope=scope, progress=False), lambda feed: executor.run(g.program, feed, [g.loss], scope))


def described_apart(frozen: bool, scope: fs.Scope) -> None:
    """Two programs that know nothing of one another."""
    a, b = optimizers(frozen)
    with fs.program():
        of_d = costs()[0]
    with fs.program():
        of_g = costs()[1]
    begin(scope)
    options: dict[str, Any] = {"scope": scope, "progress": False}
    alternate(lambda feed: fs.train(of_d, [feed], optimizer=a, **options), lambda feed: fs.train(of_g, [feed], optimizer=b, **options))


def in_a_callback(frozen: bool, scope: fs.Scope) -> None:
    """The one is trained while the other is."""
    with fs.program():
        of_d, of_g = costs()
    begin(scope)
    a, b = optimizers(frozen)
    feeds = list(batches())

    class First(fs.callbacks.Callback):
        def on_batch_end(self, run: Any) -> None:
            if run.position.batch < STEPS:
                twice(run.position.batch)

    def twice(at: int) -> None:
        fs.train(of_d, [feeds[at]] * 2, optimizer=a, scope=scope, progress=False)

    twice(0)
    fs.train(of_g, feeds, optimizer=b, scope=scope, progress=False, callbacks=[First()])


def minimized(frozen: bool, scope: fs.Scope) -> None:
    """Two programs with one startup program, as PaddlePaddle's examples have them."""
    startup, executor = fs.Program(), fs.Executor()
    losses: list[Any] = []
    for at in range(2):
        with fs.program_guard(fs.Program(), startup):
            losses.append(costs()[at])
            optimizers(frozen)[at].minimize(losses[at])
    executor.run(startup, scope=scope)
    begin(scope)
    alternate(*(lambda feed, loss=loss: executor.run(loss.block.program, feed, [loss], scope) for loss in losses))


class Net(torch.nn.Module):
    """The same in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.held = torch.nn.ParameterDict({n.replace(".", "_"): torch.nn.Parameter(torch.from_numpy(v.copy())) for n, v in FIRST.items()})

    def dense(self, x: Any, name: str) -> Any:
        return x @ self.held[f"{name}_w"] + self.held[f"{name}_b"]

    def discriminate(self, x: Any) -> Any:
        return self.dense(self.dense(x, "d1").tanh(), "d2")

    def costs(self, feed: dict[str, Any]) -> tuple[Any, Any]:
        real, noise = (torch.from_numpy(feed[n]) for n in ("real", "noise"))
        fake = self.dense(self.dense(noise, "g1").tanh(), "g2")
        d_real, d_fake = self.discriminate(real), self.discriminate(fake)
        return (d_real**2 - 2 * d_real + d_fake**2).mean(), ((d_fake - 1) ** 2).mean()


def twin(frozen: bool, accumulate: int = 1) -> dict[str, Any]:
    net = Net()
    own = [[p for n, p in net.held.items() if not (frozen and n.startswith(other))] for other in "gd"]
    of = [torch.optim.Adam(own[0], betas=(0.9, 0.999)), torch.optim.Adam(own[1], betas=(0.5, 0.999))]
    rates = (lambda step: D_RATE * D_DECAY**step, lambda step: G_RATES[step >= 2])
    counts, sums = [0, 0], ([], [])

    def step(at: int, feed: dict[str, Any]) -> None:
        sums[at].append(torch.autograd.grad(net.costs(feed)[at], own[at], allow_unused=True))
        if len(sums[at]) == accumulate:
            for p, *grads in zip(own[at], *sums[at], strict=True):
                p.grad = None if grads[0] is None else torch.stack(grads).mean(0)
            for group in of[at].param_groups:
                group["lr"] = rates[at](counts[at])
            of[at].step()
            counts[at] += 1
            sums[at].clear()

    alternate(lambda feed: step(0, feed), lambda feed: step(1, feed))
    return {n.replace("_", "."): p.detach().numpy() for n, p in net.held.items()}


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("frozen", [True, pytest.param(False, marks=pytest.mark.long)], ids=["weights of its own", "all weights"])
@pytest.mark.parametrize("way", [by_hand, programs_alone, trained, trained_and_by_hand, described_apart, in_a_callback, minimized])
def test_two_optimizers_train_as_two_of_torch(way: Callable[[bool, fs.Scope], None], frozen: bool) -> None:
    scope, want = fs.Scope(), twin(frozen)
    way(frozen, scope)
    for name, value in want.items():
        np.testing.assert_allclose(scope.get(name), value, rtol=2e-4, atol=2e-5, err_msg=name)


def test_each_gathers_gradients_of_its_own() -> None:
    scope, want = fs.Scope(), twin(False, 3)
    by_hand(False, scope, 3)
    for name, value in want.items():
        np.testing.assert_allclose(scope.get(name), value, rtol=2e-4, atol=2e-5, err_msg=name)


def turns(one: bool) -> list[str]:
    """The warnings where two programs that know nothing of one another are run by turns."""
    scope, executor = fs.Scope(), fs.Executor()
    steps: list[Any] = []
    shared = optimizers(False)[0]
    for at in range(2):
        with fs.program() as program:
            loss = layer.mean(layer.square(dense(layer.data("x", 5), "d1")))
            (shared if one else optimizers(False)[at]).minimize(loss)
        executor.run(program.startup, scope=scope)
        steps.append(lambda loss=loss: executor.run(loss.block.program, {"x": REAL}, [loss], scope))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        steps[0]()
        steps[0]()
        steps[1]()
        steps[1]()
        assert not told, "the one may go on from the other"
        for _ in range(3):
            steps[0]()
            steps[1]()
    return [str(one.message) for one in told]


def test_state_that_two_share_unknowingly_is_told_once() -> None:
    (words,) = turns(one=False)
    assert "@LR_DECAY_COUNTER@, d1.b_beta1_pow_acc_0 and" in words and "one startup program" in words
    assert turns(one=True) == []


def test_state_goes_with_its_optimizer_and_the_first_has_the_usual_names() -> None:
    with fs.program():
        of_d, of_g = costs()
    scope, options = fs.Scope(), {"progress": False}
    names: list[list[str]] = []
    for cost in (of_d, of_g, of_d):
        fs.train(cost, batches, optimizer=fs.optimizer.Adam(0.1), scope=scope, **options)
        names.append(scope.names())
    assert "learning_rate_0" in names[0] and "d1.w_moment1_0" in names[0] and not any(n.endswith("_1") for of in names for n in of)
    fs.train(of_d, batches, optimizer=fs.optimizer.SGD(0.1), scope=scope, **options)
    gc.collect()
    fs.train(of_d, batches, scope=scope, **options)
    assert set(scope.names()) == {"learning_rate_0", *FIRST}, "what an optimizer kept is dropped with it"
    first = fs.training_program(of_d, fs.optimizer.Adam(0.1))
    second = fs.training_program(of_g, fs.optimizer.Adam(0.1))
    assert first.constants == ["learning_rate_0"] and second.constants == ["learning_rate_1"]
    assert "d1.w_moment1_0" in first.state and "d1.w_moment1_1" in second.state and not set(first.state) & set(second.state)
    for options in ({"accumulate": 2}, {"precision": "fp16"}, {"accumulate": 2, "precision": "fp16"}):
        both = [fs.training_program(cost, optimizers(False)[at], **options) for at, cost in enumerate((of_d, of_g))]
        assert both[0].state and not {*both[0].state, *both[0].constants} & {*both[1].state, *both[1].constants}
    del first, both
    assert fs.training_program(of_d, fs.optimizer.Adam(0.1)).constants == ["learning_rate_0"], "names that nobody has any more are given again"
