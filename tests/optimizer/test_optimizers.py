"""Optimizers in whole programs: against torch's own, in PaddlePaddle's names and order, with clip, decay and schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer, optimizer
from foreshape.errors import SchemaError
from foreshape.language.program import Role
from foreshape.optimizer import Optimizer
from foreshape.optimizer.schedule import COUNTER, Schedule

STEPS = 5
X = np.random.RandomState(1).standard_normal((6, 7)).astype("float32")
Y = np.random.RandomState(2).randint(0, 3, (6, 1))


def network() -> fs.Variable:
    x, y = layer.data("x", ["batch", 7]), layer.data("y", ["batch", 1], "int64")
    h = layer.fc(x, 5, "relu")
    return layer.mean(layer.softmax_with_cross_entropy(layer.fc(h, 3), y))


def train(make: Optimizer) -> tuple[list[float], dict[str, np.ndarray], fs.Program, dict[str, np.ndarray]]:
    """The losses of some steps, the parameters after them, the program, and the parameters before."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        loss = network()
        make.minimize(loss)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    names = [p.name for p in main.parameters()]
    before = {n: scope.get(n) for n in names}
    losses = [float(executor.run(main, {"x": X, "y": Y}, [loss], scope)[0]) for _ in range(STEPS)]
    return losses, {n: scope.get(n) for n in names}, main, before


def train_torch(make: Callable[[list[torch.Tensor]], Any], before: dict[str, np.ndarray], change: Callable[[list[torch.Tensor]], None] | None = None) -> Any:
    """The same with torch's autograd and optimizer; ``change`` changes the gradients between."""
    parameters = {n: torch.from_numpy(v.copy()).requires_grad_() for n, v in before.items()}
    held = list(parameters.values())
    stepper = make(held)
    losses: list[float] = []
    for _ in range(STEPS):
        stepper.zero_grad()
        h = torch.relu(torch.from_numpy(X) @ parameters["fc_0.w_0"] + parameters["fc_0.b_0"])
        out = h @ parameters["fc_1.w_0"] + parameters["fc_1.b_0"]
        loss = torch.nn.functional.cross_entropy(out, torch.from_numpy(Y[:, 0]))
        loss.backward()
        if change is not None:
            change(held)
        stepper.step()
        losses.append(loss.item())
    return losses, {n: p.detach().numpy() for n, p in parameters.items()}


AGAINST_TORCH: dict[str, tuple[Callable[[], Optimizer], Callable[[list[torch.Tensor]], Any]]] = {
    "sgd": (lambda: optimizer.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "sgd_decay": (lambda: optimizer.SGD(0.1, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.01)),
    "momentum": (lambda: optimizer.Momentum(0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, 0.9)),
    "nesterov": (lambda: optimizer.Momentum(0.1, 0.9, use_nesterov=True), lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True)),
    "momentum_decay": (lambda: optimizer.Momentum(0.1, 0.9, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
    "adam": (lambda: optimizer.Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adam_decay": (lambda: optimizer.Adam(0.01, weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1)),
    "adamw": (lambda: optimizer.AdamW(0.01, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)),
    "adagrad": (lambda: optimizer.Adagrad(0.1, epsilon=1e-6), lambda p: torch.optim.Adagrad(p, 0.1, eps=1e-6)),
    "adadelta": (lambda: optimizer.Adadelta(1.0, 1e-6, 0.9), lambda p: torch.optim.Adadelta(p, 1.0, rho=0.9, eps=1e-6)),
    "adamax": (lambda: optimizer.Adamax(0.01), lambda p: torch.optim.Adamax(p, 0.01)),
}


@pytest.mark.parametrize("name", AGAINST_TORCH)
def test_training_goes_as_with_torch(name: str) -> None:
    ours, theirs = AGAINST_TORCH[name]
    losses, after, _, before = train(ours())
    want_losses, want = train_torch(theirs, before)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    assert losses[-1] < losses[0]
    for n, value in want.items():
        np.testing.assert_allclose(after[n], value, rtol=1e-4, atol=1e-5, err_msg=n)  # steps of 0.01 by gradients that are nearly zero


def test_state_is_named_as_in_paddlepaddles_files() -> None:
    kinds: list[tuple[Optimizer, dict[str, tuple[list[int], str]]]] = [
        (optimizer.Momentum(0.1), {"velocity_0": ([7, 5], "0.0")}),
        (
            optimizer.Adam(0.1),
            {"moment1_0": ([7, 5], "0.0"), "moment2_0": ([7, 5], "0.0"), "beta1_pow_acc_0": ([1], "0.9"), "beta2_pow_acc_0": ([1], "0.999")},
        ),
        (optimizer.Adagrad(0.1), {"moment_0": ([7, 5], "0.0")}),
        (optimizer.Adadelta(0.1), {"_avg_squared_grad_0": ([7, 5], "0.0"), "_avg_squared_update_0": ([7, 5], "0.0")}),
        (optimizer.Adamax(0.1), {"moment_0": ([7, 5], "0.0"), "inf_norm_0": ([7, 5], "0.0"), "beta1_pow_acc_0": ([1], "0.9")}),
        (optimizer.Lamb(0.1), {"moment1_0": ([7, 5], "0.0"), "moment2_0": ([7, 5], "0.0"), "beta1_pow_acc_0": ([1], "0.9")}),
        (optimizer.LarsMomentum(0.1), {"velocity_0": ([7, 5], "0.0")}),
    ]
    for make, names in kinds:
        main, startup = fs.Program(), fs.Program()
        with fs.program_guard(main, startup):
            make.minimize(network())
        made = {op.output("Out"): op for op in startup.global_block.ops}
        for what, (dims, text) in names.items():
            variable = main.global_block.vars[f"fc_0.w_0_{what}"]
            assert variable.dims == dims and variable.persistable
            assert made[variable.name].attrs["str_value"] == text
        updates = [op for op in main.global_block.ops if op.inputs.get("Param")]
        assert [op.role_variables for op in updates] == [(n, n + "@GRAD") for n in ("fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0")]
        assert all(op.role == Role.OPTIMIZE for op in updates)


def test_what_need_not_decay_does_not() -> None:
    no_decay = layer.ParamAttr(need_decay=False)
    for make, says in (
        (optimizer.Momentum(0.1, weight_decay=0.1), "regularization_method"),
        (optimizer.AdamW(0.1), "with_decay"),
        (optimizer.Lamb(0.1), "weight_decay"),
        (optimizer.Lion(0.1, weight_decay=0.1), "weight_decay"),
    ):
        with fs.program_guard(fs.Program(), fs.Program()):
            x = layer.data("x", ["batch", 7])
            make.minimize(layer.mean(layer.fc(x, 5, bias=no_decay)))
            ops = {op.input("Param"): op.attrs[says] for op in fs.default_main_program().global_block.ops if op.input("Param")}
        assert ops["fc_0.w_0"] and not ops["fc_0.b_0"]
    with fs.program_guard(fs.Program(), fs.Program()):
        make = optimizer.AdamW(0.1, apply_decay_param_fun=lambda n: n.endswith("b_0"))
        make.minimize(layer.mean(layer.fc(layer.data("x", ["batch", 7]), 5)))
        ops = {op.input("Param"): op.attrs["with_decay"] for op in fs.default_main_program().global_block.ops if op.input("Param")}
    assert ops == {"fc_0.w_0": False, "fc_0.b_0": True}


# --- clip


def by_value(grads: list[torch.Tensor]) -> None:
    for p in grads:
        p.grad.clamp_(-0.02, 0.01)  # pyright: ignore[reportOptionalMemberAccess]


def by_norm(grads: list[torch.Tensor]) -> None:
    for p in grads:
        assert p.grad is not None
        p.grad.mul_(0.05 / max(0.05, p.grad.norm().item()))


def by_global_norm(grads: list[torch.Tensor]) -> None:
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in grads if p.grad is not None))
    for p in grads:
        assert p.grad is not None
        p.grad.mul_(0.1 / max(0.1, norm))


CLIPS: list[tuple[Any, Callable[[list[torch.Tensor]], None]]] = [
    (optimizer.ClipByValue(0.01, -0.02), by_value),
    (optimizer.ClipByNorm(0.05), by_norm),
    (optimizer.ClipByGlobalNorm(0.1), by_global_norm),
]


@pytest.mark.parametrize(("clip", "change"), CLIPS, ids=lambda c: type(c).__name__)
def test_gradients_are_clipped_before_the_decay(clip: Any, change: Callable[[list[torch.Tensor]], None]) -> None:
    losses, after, _, before = train(optimizer.SGD(0.5, weight_decay=0.1, clip=clip))
    want_losses, want = train_torch(lambda p: torch.optim.SGD(p, 0.5, weight_decay=0.1), before, change)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    for n, value in want.items():
        np.testing.assert_allclose(after[n], value, rtol=1e-4, atol=1e-5, err_msg=n)  # steps of 0.01 by gradients that are nearly zero


def test_clip_and_decay_are_paddlepaddles_ops_in_its_order() -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        x, y = layer.data("x", [-1, 13]), layer.data("y", [-1, 1])
        loss = layer.mse_loss(layer.fc(x, 1), y)
        optimizer.Adam(0.05, weight_decay=1e-4, clip=optimizer.ClipByGlobalNorm(1.0)).minimize(loss)
        ops = [op for op in fs.default_main_program().global_block.ops if op.role == Role.OPTIMIZE]
    kinds = [op.type for op in ops]
    assert (
        kinds
        == ["squared_l2_norm"] * 2
        + ["sum", "sqrt", "fill_constant", "elementwise_max", "elementwise_div"]
        + ["elementwise_mul"] * 2
        + [
            "scale",
            "sum",
        ]
        * 2
        + ["adam"] * 2
    )
    scaled = [op for op in ops if op.type == "elementwise_mul"]
    assert all(op.input("X") == op.output("Out") and op.input("X").endswith("@GRAD") for op in scaled)  # pyright: ignore[reportOptionalMemberAccess]
    assert ops[4].attrs["value"] == 1.0 and ops[4].attrs["str_value"] == "1.0" and ops[4].attrs["shape"] == (1,)
    assert ops[2].output("Out") == "add_n_0.tmp_0" and ops[0].output("Out") == "squared_l2_norm_0.tmp_0"


def test_a_clip_without_sense_is_refused() -> None:
    for make in (lambda: optimizer.ClipByNorm(0), lambda: optimizer.ClipByGlobalNorm(-1.0), lambda: optimizer.ClipByValue(1.0, 2.0),
                 lambda: optimizer.ClipByGlobalNorm(float("nan"))):  # fmt: skip
        with pytest.raises(SchemaError, match="needs"):
            make()


# --- sparse gradients

IDS = np.array([[3, 11, 3, 0, 7], [7, 7, 1, 3, 19]])


def train_embedding(make: Optimizer, is_sparse: bool) -> tuple[list[float], dict[str, np.ndarray], fs.Program]:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        ids = layer.data("ids", ["batch", 5], "int64")
        table = layer.create_parameter((20, 4), fs.FP32, "table")
        found = main.global_block.apply("lookup_table_v2", {"Ids": ids, "W": table}, {"is_sparse": is_sparse})
        loss = layer.mean(layer.square_error_cost(layer.fc(found, 3), layer.data("y", ["batch", 3])))
        make.minimize(loss)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    rng = np.random.RandomState(4)
    for p in main.parameters():
        scope.set(p.name, rng.standard_normal(p.dims).astype("float32"))
    y = rng.standard_normal((2, 3)).astype("float32")
    losses = [float(executor.run(main, {"ids": IDS, "y": y}, [loss], scope)[0]) for _ in range(STEPS)]
    return losses, {p.name: scope.get(p.name) for p in main.parameters()}, main


CLIPS_OF_ROWS = [None, optimizer.ClipByValue(0.02), optimizer.ClipByNorm(0.1), optimizer.ClipByGlobalNorm(0.2)]


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("clip", CLIPS_OF_ROWS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize(
    "make",
    [
        lambda clip: optimizer.SGD(0.01, clip=clip),
        lambda clip: optimizer.Momentum(0.1, 0.9, True, weight_decay=0.1, clip=clip),
        lambda clip: optimizer.Adam(0.05, clip=clip),
        lambda clip: optimizer.AdamW(0.05, clip=clip),
        lambda clip: optimizer.Adagrad(0.1, clip=clip),
        lambda clip: optimizer.RMSProp(0.01, clip=clip),
    ],
    ids=["sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop"],
)
def test_a_sparse_embedding_trains_as_a_dense_one(make: Callable[[Any], Optimizer], clip: Any) -> None:
    losses, after, main = train_embedding(make(clip), True)
    want_losses, want, dense = train_embedding(make(clip), False)
    assert main.var("table@GRAD").kind is fs.SELECTED_ROWS and dense.var("table@GRAD").kind is fs.LOD_TENSOR
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    assert losses[-1] < losses[0]
    for n, value in want.items():
        np.testing.assert_allclose(after[n], value, rtol=1e-4, atol=1e-5, err_msg=n)


@pytest.mark.parametrize("is_sparse", [True, False])
def test_a_training_program_is_read_back_whole(is_sparse: bool) -> None:
    make = optimizer.Adam(optimizer.ExponentialDecay(0.1, 2, 0.5), lazy_mode=True, weight_decay=0.1, clip=optimizer.ClipByGlobalNorm(0.2))
    _, _, main = train_embedding(make, is_sparse)
    again = fs.Program.from_bytes(main.to_bytes())
    again.forget()
    again.infer()
    assert again.to_bytes() == main.to_bytes()
    assert {v.name: v.kind for v in again.all_variables()} == {v.name: v.kind for v in main.all_variables()}


# --- schedules


def exponential(t: int) -> float:
    return 0.5 * 0.8 ** (t / 3)


def polynomial(t: int, cycle: bool = False) -> float:
    steps = 4 * max(1, math.ceil(t / 4)) if cycle else 4
    return (0.5 - 0.1) * (1 - min(t, steps) / steps) ** 2 + 0.1


def warm(t: int, then: Callable[[int], float]) -> float:
    return 0.1 + (0.4 - 0.1) * t / 5 if t < 5 else then(t)


SCHEDULES: dict[str, tuple[Schedule, Callable[[int], float]]] = {
    "exponential": (optimizer.ExponentialDecay(0.5, 3, 0.8), exponential),
    "exponential_staircase": (optimizer.ExponentialDecay(0.5, 3, 0.8, staircase=True), lambda t: 0.5 * 0.8 ** (t // 3)),
    "natural": (optimizer.NaturalExpDecay(0.5, 3, 0.8), lambda t: 0.5 * math.exp(-0.8 * t / 3)),
    "natural_staircase": (optimizer.NaturalExpDecay(0.5, 3, 0.8, True), lambda t: 0.5 * math.exp(-0.8 * (t // 3))),
    "inverse": (optimizer.InverseTimeDecay(0.5, 3, 0.8), lambda t: 0.5 / (1 + 0.8 * t / 3)),
    "polynomial": (optimizer.PolynomialDecay(0.5, 4, 0.1, 2.0), polynomial),
    "polynomial_cycle": (optimizer.PolynomialDecay(0.5, 4, 0.1, 2.0, cycle=True), lambda t: polynomial(t, True)),
    "piecewise": (optimizer.PiecewiseDecay([3, 7], [0.5, 0.2, 0.1]), lambda t: 0.5 if t < 3 else 0.2 if t < 7 else 0.1),
    "cosine": (optimizer.CosineDecay(0.5, 3, 4), lambda t: 0.25 * (math.cos(t // 3 * math.pi / 4) + 1)),
    "noam": (optimizer.NoamDecay(64, 4, 2.0), lambda t: 2.0 * 64**-0.5 * min((t + 1) ** -0.5, (t + 1) * 4**-1.5)),
    "warmup": (optimizer.LinearWarmup(0.4, 5, 0.1, 0.4), lambda t: warm(t, lambda _: 0.4)),
    "warmup_schedule": (optimizer.LinearWarmup(optimizer.ExponentialDecay(0.5, 3, 0.8), 5, 0.1, 0.4), lambda t: warm(t, exponential)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_its_formula(name: str) -> None:
    schedule, formula = SCHEDULES[name]
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        rate = schedule.append(main)
    assert rate.dims == [1] and rate.dtype is fs.FP32
    assert all(op.role == Role.LEARNING_RATE for op in main.global_block.ops)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    seen = [float(executor.run(main, {}, [rate], scope)[0][0]) for _ in range(12)]
    np.testing.assert_allclose(seen, [formula(t) for t in range(12)], rtol=1e-5)


def test_a_schedule_drives_an_optimizer() -> None:
    losses, after, main, before = train(optimizer.SGD(optimizer.PiecewiseDecay([2], [0.5, 0.0])))
    assert losses[0] > losses[1] > losses[2] and losses[2] == losses[3] == losses[4]
    assert main.global_block.ops[0].type == "increment" and main.global_block.vars[COUNTER].persistable
    assert any((after[n] != before[n]).any() for n in before)


def test_schedules_share_the_counter_of_a_program() -> None:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        rates = [optimizer.NoamDecay(64, 4).append(main), optimizer.ExponentialDecay(1.0, 1, 0.5).append(main)]
    assert [op.type for op in main.global_block.ops].count("increment") == 1
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    seen = [[float(r[0]) for r in executor.run(main, {}, rates, scope)] for _ in range(3)]
    np.testing.assert_allclose([s[1] for s in seen], [1.0, 0.5, 0.25])


def test_a_schedule_without_sense_is_refused() -> None:
    bad = (
        lambda: optimizer.PiecewiseDecay([3, 3], [1.0, 2.0, 3.0]),
        lambda: optimizer.PiecewiseDecay([3], [1.0]),
        lambda: optimizer.ExponentialDecay(0.1, 0, 0.5),
        lambda: optimizer.CosineDecay(0.1, 1, -2),
        lambda: optimizer.NoamDecay(0, 3),
    )
    for make in bad:
        with pytest.raises(SchemaError):
            make()


@pytest.mark.parametrize(("rule", "says"), [
    (lambda: fs.optimizer.Adam(0.1, epsilon=-1.0), r"Adam: epsilon must be a finite number of at least 0; seen -1\.0"),
    (lambda: fs.optimizer.AdamW(0.1, epsilon=float("nan")), "AdamW: epsilon must be a finite number of at least 0; seen nan"),
    (lambda: fs.optimizer.Momentum(0.1, float("inf")), "Momentum: momentum must be a finite number of at least 0; seen inf"),
    (lambda: fs.optimizer.RMSProp(0.1, epsilon=-1e-9), "RMSProp: epsilon must be"),
])  # fmt: skip
def test_numbers_that_no_update_can_have_are_refused(rule: Any, says: str) -> None:
    cost = layer.mean(layer.fc(layer.data("x", shape=["batch", 3]), 2))
    with pytest.raises(fs.SchemaError, match=says):
        rule().minimize(cost)
