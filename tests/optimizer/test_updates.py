"""The update operators against their formulas in numpy, several steps long; sparse rows against dense gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from foreshape.core.values.rows import Rows
from foreshape.errors import ExecutionError
from foreshape.language.ops import get
from foreshape.language.ops.update import adam as adam_module
from foreshape.language.ops.update import adaptive as adaptive_module
from foreshape.language.ops.update import each_element as each_element_module
from foreshape.language.ops.update import layer_wise as layer_wise_module
from foreshape.language.ops.update import sparse as exact_rows_module
from foreshape.language.ops.update import updates as updates_module

State = dict[str, Any]
STEPS, HEIGHT, WIDTH = 5, 13, 3
RATE = 0.05


def update(type: str, slots: dict[str, Any], **attrs: Any) -> None:
    """Run an update op's kernel on torch tensors by slot; what it changes, it changes in them."""
    cls = get(type)
    values = {n: attrs.get(n, f.default) for n, f in cls.schema.attributes.items()}
    operator = cls.with_values({n: cls.check_attribute(n, v) for n, v in values.items()})
    with torch.inference_mode():
        cls.kernel(operator, *[slots.get(o.name) for o in cls.schema.operands])


def gradients(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.RandomState(seed)
    return [rng.standard_normal((HEIGHT, WIDTH)) for _ in range(STEPS)]


def sparse_gradients(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Row ids with repetitions, and their values; the last step has none."""
    rng = np.random.RandomState(seed)
    out = [(rng.randint(0, HEIGHT, 6), rng.standard_normal((6, WIDTH))) for _ in range(STEPS - 1)]
    return [*out, (np.zeros(0, dtype=np.int64), np.zeros((0, WIDTH)))]


def dense(ids: np.ndarray, values: np.ndarray) -> np.ndarray:
    table = np.zeros((HEIGHT, WIDTH))
    np.add.at(table, ids, values)
    return table


def as_rows(ids: np.ndarray, values: np.ndarray, of: torch.dtype = torch.float64) -> Rows:
    return Rows(torch.from_numpy(ids), torch.from_numpy(values).to(of), HEIGHT)


def start(names: tuple[str, ...], of: torch.dtype = torch.float64) -> State:
    rng = np.random.RandomState(9)
    state: State = {"Param": torch.from_numpy(rng.standard_normal((HEIGHT, WIDTH))).to(of), "LearningRate": torch.tensor(RATE, dtype=of)}
    state |= {n: torch.zeros(HEIGHT, WIDTH, dtype=of) for n in names}
    if "InfNorm" in names or "Moment2" in names:
        state |= {"Beta1Pow": torch.tensor([0.9], dtype=of), "Beta2Pow": torch.tensor([0.99], dtype=of)}
    return state


# --- the formulas: parameter, state and gradient in; both changed


def sgd(p: np.ndarray, s: dict[str, np.ndarray], g: np.ndarray, t: int) -> None:
    p -= RATE * g


def momentum(nesterov: bool = False, decay: float = 0.0, scale: float = 1.0) -> Callable[..., None]:
    def step(p: np.ndarray, s: dict[str, np.ndarray], g: np.ndarray, t: int) -> None:
        g = g * scale + decay * p
        s["Velocity"] = 0.9 * s["Velocity"] + g
        p -= RATE * (g + 0.9 * s["Velocity"] if nesterov else s["Velocity"])

    return step


def adam(decay: float = 0.0, ratio: float = 1.0) -> Callable[..., None]:
    def step(p: np.ndarray, s: dict[str, np.ndarray], g: np.ndarray, t: int) -> None:
        s["Moment1"] = 0.9 * s["Moment1"] + 0.1 * g
        s["Moment2"] = 0.99 * s["Moment2"] + 0.01 * g * g
        p *= 1 - RATE * ratio * decay
        p -= RATE * ratio * (s["Moment1"] / (1 - 0.9**t)) / (np.sqrt(s["Moment2"] / (1 - 0.99**t)) + 1e-3)

    return step


def adagrad(p: np.ndarray, s: dict[str, np.ndarray], g: np.ndarray, t: int) -> None:
    s["Moment"] = s["Moment"] + g * g
    p -= RATE * g / (np.sqrt(s["Moment"]) + 1e-3)


def rmsprop(centered: bool) -> Callable[..., None]:
    def step(p: np.ndarray, s: dict[str, np.ndarray], g: np.ndarray, t: int) -> None:
        s["MeanSquare"] = 0.8 * s["MeanSquare"] + 0.2 * g * g
        v = s["MeanSquare"]
        if centered:
            s["MeanGrad"] = 0.8 * s["MeanGrad"] + 0.2 * g
            v = v - s["MeanGrad"] ** 2
        s["Moment"] = 0.5 * s["Moment"] + RATE * g / np.sqrt(v + 1e-3)
        p -= s["Moment"]

    return step


def adadelta(p: np.ndarray, s: dict[str, np.ndarray], g: np.ndarray, t: int) -> None:
    s["AvgSquaredGrad"] = 0.8 * s["AvgSquaredGrad"] + 0.2 * g * g
    step = g * np.sqrt((s["AvgSquaredUpdate"] + 1e-3) / (s["AvgSquaredGrad"] + 1e-3))
    s["AvgSquaredUpdate"] = 0.8 * s["AvgSquaredUpdate"] + 0.2 * step * step
    p -= RATE * step


def adamax(p: np.ndarray, s: dict[str, np.ndarray], g: np.ndarray, t: int) -> None:
    """Its power of beta1 is not its own to change: these tests leave it as it is."""
    s["Moment"] = 0.9 * s["Moment"] + 0.1 * g
    s["InfNorm"] = np.maximum(np.abs(g), 0.99 * s["InfNorm"] + 1e-3)
    p -= RATE / (1 - 0.9) * s["Moment"] / s["InfNorm"]


def decayed_adagrad(p: np.ndarray, s: dict[str, np.ndarray], g: np.ndarray, t: int) -> None:
    s["Moment"] = 0.8 * s["Moment"] + 0.2 * g * g
    p -= RATE * g / (np.sqrt(s["Moment"]) + 1e-3)


def proximal_gd(p: np.ndarray, s: dict[str, np.ndarray], g: np.ndarray, t: int) -> None:
    p -= RATE * g
    p[:] = np.sign(p) * np.maximum(np.abs(p) - RATE * 0.5, 0.0) / (1 + RATE * 0.25)


def lion(p: np.ndarray, s: dict[str, np.ndarray], g: np.ndarray, t: int) -> None:
    p *= 1 - RATE * 0.1
    p -= RATE * np.sign(0.9 * s["Moment"] + 0.1 * g)
    s["Moment"] = 0.95 * s["Moment"] + 0.05 * g


def lamb(decay: float, adapts: bool) -> Callable[..., None]:
    def step(p: np.ndarray, s: dict[str, np.ndarray], g: np.ndarray, t: int) -> None:
        s["Moment1"] = 0.9 * s["Moment1"] + 0.1 * g
        s["Moment2"] = 0.99 * s["Moment2"] + 0.01 * g * g
        step = s["Moment1"] / (1 - 0.9**t) / (np.sqrt(s["Moment2"] / (1 - 0.99**t)) + 1e-3) + decay * p
        p -= RATE * (np.linalg.norm(p) / np.linalg.norm(step) if adapts else 1.0) * step

    return step


ADAM = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3}
CASES: dict[str, tuple[str, tuple[str, ...], Callable[..., None], dict[str, Any]]] = {
    "sgd": ("sgd", (), sgd, {}),
    "momentum": ("momentum", ("Velocity",), momentum(), {"mu": 0.9}),
    "nesterov": ("momentum", ("Velocity",), momentum(nesterov=True), {"mu": 0.9, "use_nesterov": True}),
    "momentum_decay": ("momentum", ("Velocity",), momentum(decay=0.1), {"mu": 0.9, "regularization_method": "l2_decay", "regularization_coeff": 0.1}),
    "nesterov_decay": (
        "momentum",
        ("Velocity",),
        momentum(nesterov=True, decay=0.1, scale=0.5),
        {"mu": 0.9, "use_nesterov": True, "regularization_method": "l2_decay", "regularization_coeff": 0.1, "rescale_grad": 0.5},
    ),
    "adam": ("adam", ("Moment1", "Moment2"), adam(), ADAM),
    "adamw": ("adamw", ("Moment1", "Moment2"), adam(0.1, 0.5), {**ADAM, "coeff": 0.1, "lr_ratio": 0.5, "with_decay": True}),
    "adamw_without_decay": ("adamw", ("Moment1", "Moment2"), adam(), {**ADAM, "coeff": 0.1}),
    "adagrad": ("adagrad", ("Moment",), adagrad, {"epsilon": 1e-3}),
    "rmsprop": ("rmsprop", ("MeanSquare", "Moment"), rmsprop(False), {"decay": 0.8, "momentum": 0.5, "epsilon": 1e-3}),
    "rmsprop_centered": (
        "rmsprop",
        ("MeanSquare", "Moment", "MeanGrad"),
        rmsprop(True),
        {"decay": 0.8, "momentum": 0.5, "epsilon": 1e-3, "centered": True},
    ),
    "adadelta": ("adadelta", ("AvgSquaredGrad", "AvgSquaredUpdate"), adadelta, {"rho": 0.8, "epsilon": 1e-3}),
    "adamax": ("adamax", ("Moment", "InfNorm"), adamax, {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3}),
    "decayed_adagrad": ("decayed_adagrad", ("Moment",), decayed_adagrad, {"decay": 0.8, "epsilon": 1e-3}),
    "proximal_gd": ("proximal_gd", (), proximal_gd, {"l1": 0.5, "l2": 0.25}),
    "lion": ("lion", ("Moment",), lion, {"beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1}),
    "lamb": ("lamb", ("Moment1", "Moment2"), lamb(0.1, True), {**ADAM, "weight_decay": 0.1}),
    "lamb_adapts": ("lamb", ("Moment1", "Moment2"), lamb(0.0, True), {**ADAM, "weight_decay": 0.0, "always_adapt": True}),
    "lamb_without_decay": ("lamb", ("Moment1", "Moment2"), lamb(0.0, False), {**ADAM, "weight_decay": 0.0}),
}
BY_BLOCKS = ("adadelta", "adamax", "decayed_adagrad", "proximal_gd", "lion", "lamb")
"""Operators that update a table with sparse rows block by block, as adam does where it is exact."""
WITHOUT_MASTER = ("decayed_adagrad", "proximal_gd")


def expected(name: str, grads: list[np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    _, names, formula, _ = CASES[name]
    p = start(names)["Param"].numpy().copy()
    state = {n: np.zeros((HEIGHT, WIDTH)) for n in names}
    for t, g in enumerate(grads, 1):
        formula(p, state, g, t)
    return p, state


def compare(state: State, want: tuple[np.ndarray, dict[str, np.ndarray]], tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(state["Param"].double().numpy(), want[0], rtol=tolerance, atol=tolerance)
    for n, value in want[1].items():
        np.testing.assert_allclose(state[n].double().numpy(), value, rtol=tolerance, atol=tolerance, err_msg=n)


@pytest.mark.parametrize("of", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_a_dense_update_is_its_formula(name: str, of: torch.dtype) -> None:
    type, names, _, attrs = CASES[name]
    state = start(names, of)
    for g in gradients():
        update(type, state | {"Grad": torch.from_numpy(g).to(of)}, **attrs)
    compare(state, expected(name, gradients()), 1e-6 if of is torch.float64 else 2e-5)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_a_gradient_that_is_a_view_gives_the_same(name: str) -> None:
    type, names, _, attrs = CASES[name]
    state = start(names)
    for g in gradients():
        update(type, state | {"Grad": torch.from_numpy(np.ascontiguousarray(g.T)).t()}, **attrs)
    compare(state, expected(name, gradients()))


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_a_parameter_that_is_a_view_gives_the_same(name: str) -> None:
    type, names, _, attrs = CASES[name]
    state = start(names)
    for n in ("Param", *names):
        state[n] = state[n].t().contiguous().t()
    for g in gradients():
        update(type, state | {"Grad": torch.from_numpy(g)}, **attrs)
    compare(state, expected(name, gradients()))


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_sparse_rows_give_what_the_dense_gradient_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_rows_module, "BLOCK_ELEMENTS", 4 * WIDTH)  # so that the table is several blocks, the last one smaller
    type, names, _, attrs = CASES[name]
    state = start(names)
    for ids, values in sparse_gradients():
        update(type, state | {"Grad": as_rows(ids, values)}, **attrs)
    compare(state, expected(name, [dense(*s) for s in sparse_gradients()]))


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_way_of_a_device_gives_the_same(name: str, sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device the learning rate stays a tensor, so that no step waits for its value."""
    for module in (updates_module, adam_module, adaptive_module, each_element_module, layer_wise_module):
        monkeypatch.setattr(module, "number", lambda t: t.reshape(()))
    type, names, _, attrs = CASES[name]
    state = start(names)
    for ids, values in sparse_gradients():
        update(type, state | {"Grad": as_rows(ids, values) if sparse else torch.from_numpy(dense(ids, values))}, **attrs)
    compare(state, expected(name, [dense(*s) for s in sparse_gradients()]))


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", [n for n in CASES if CASES[n][0] not in WITHOUT_MASTER])
def test_the_full_precision_copy_is_what_is_trained(name: str) -> None:
    type, names, _, attrs = CASES[name]
    for sparse in (False, True):
        state = start(names)
        state["MasterParam"] = state["Param"].clone()
        state["Param"] = state["Param"].to(torch.bfloat16)
        grads = [dense(*s) for s in sparse_gradients()]
        grads = [torch.from_numpy(g).bfloat16().double().numpy() for g in grads]
        for (ids, _), g in zip(sparse_gradients(), grads, strict=True):
            rows = np.unique(ids)
            grad = as_rows(rows, g[rows], torch.bfloat16) if sparse else torch.from_numpy(g).bfloat16()
            update(type, state | {"Grad": grad}, **attrs)
        want = expected(name, grads)
        np.testing.assert_allclose(state["MasterParam"].numpy(), want[0], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(state["Param"].float().numpy(), state["MasterParam"].to(torch.bfloat16).float().numpy())


def test_adam_multiplies_its_powers_for_the_next_step() -> None:
    state = start(("Moment1", "Moment2"))
    update("adam", state | {"Grad": torch.ones(HEIGHT, WIDTH, dtype=torch.float64)}, **ADAM)
    assert state["Beta1Pow"].item() == pytest.approx(0.81) and state["Beta2Pow"].item() == pytest.approx(0.9801)
    update("adam", state | {"Grad": torch.ones(HEIGHT, WIDTH, dtype=torch.float64)}, **ADAM, use_global_beta_pow=True)
    assert state["Beta1Pow"].item() == pytest.approx(0.81) and state["Beta2Pow"].item() == pytest.approx(0.9801)


def test_adam_takes_its_settings_from_tensors() -> None:
    state = start(("Moment1", "Moment2"))
    given = {"Beta1Tensor": torch.tensor([0.9]), "Beta2Tensor": torch.tensor([0.99]), "EpsilonTensor": torch.tensor([1e-3])}
    for g in gradients():
        update("adam", state | given | {"Grad": torch.from_numpy(g)}, beta1=0.1, beta2=0.2, epsilon=0.3)
    compare(state, expected("adam", gradients()))


@pytest.mark.parametrize("sparse", [False, True])
def test_adam_leaves_everything_when_told_to_skip(sparse: bool) -> None:
    state = start(("Moment1", "Moment2"))
    before = {n: t.clone() for n, t in state.items()}
    ids, values = sparse_gradients()[0]
    grad = as_rows(ids, values) if sparse else torch.from_numpy(dense(ids, values))
    update("adam", state | {"Grad": grad, "SkipUpdate": torch.tensor([True])})
    assert all(torch.equal(before[n], state[n]) for n in before)


@pytest.mark.parametrize("type", ["adam", "adamw"])
def test_lazy_adam_changes_only_its_rows_and_corrects_one_step_ahead(type: str) -> None:
    """PaddlePaddle's sparse kernel has multiplied the powers when it uses them."""
    decay = {"adam": {}, "adamw": {"with_decay": True, "coeff": 0.1}}[type]
    state = start(("Moment1", "Moment2"))
    p = state["Param"].numpy().copy()
    m, v = np.zeros((HEIGHT, WIDTH)), np.zeros((HEIGHT, WIDTH))
    steps = sparse_gradients()[:-1]
    for t, (ids, values) in enumerate(steps, 1):
        update(type, state | {"Grad": as_rows(ids, values)}, lazy_mode=True, **ADAM, **decay)
        rows, g = np.unique(ids), dense(ids, values)[np.unique(ids)]
        m[rows], v[rows] = 0.9 * m[rows] + 0.1 * g, 0.99 * v[rows] + 0.01 * g * g
        p[rows] *= 1 - RATE * decay.get("coeff", 0.0)
        p[rows] -= RATE * (m[rows] / (1 - 0.9 ** (t + 1))) / (np.sqrt(v[rows] / (1 - 0.99 ** (t + 1))) + 1e-3)
    compare(state, (p, {"Moment1": m, "Moment2": v}))
    assert state["Beta1Pow"].item() == pytest.approx(0.9 ** (len(steps) + 1))
    never = sorted(set(range(HEIGHT)) - {int(i) for ids, _ in steps for i in ids})
    assert never
    assert torch.equal(state["Param"][never], start(())["Param"][never])


def test_lazy_adam_without_rows_changes_nothing() -> None:
    state = start(("Moment1", "Moment2"))
    before = {n: t.clone() for n, t in state.items()}
    update("adam", state | {"Grad": as_rows(*sparse_gradients()[-1])}, lazy_mode=True)
    assert all(torch.equal(before[n], state[n]) for n in before)


def group(state: list[State], type: str, **attrs: Any) -> None:
    cls = get(type)
    operator = cls.with_values({n: cls.check_attribute(n, attrs.get(n, f.default)) for n, f in cls.schema.attributes.items()})
    columns = [[s[o.name] for s in state] if o.name in state[0] else None for o in cls.schema.operands]
    with torch.inference_mode():
        operator.group_kernel(*columns)  # pyright: ignore


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("unlike", ["nothing", "rate", "layout", "type"])
@pytest.mark.parametrize("name", [n for n in CASES if hasattr(get(CASES[n][0]), "group_kernel")])
def test_many_updates_at_once_are_the_same_updates(name: str, unlike: str) -> None:
    type, names, _, attrs = CASES[name]
    alone, together = [start(names) for _ in range(3)], [start(names) for _ in range(3)]
    for states in (alone, together):
        rate = torch.tensor(RATE, dtype=torch.float64)
        for at, state in enumerate(states):
            state["LearningRate"] = torch.tensor(0.01) if unlike == "rate" and at == 1 else rate
            for n in ("Param", *names):
                state[n] = state[n].t().contiguous().t() if unlike == "layout" and at == 1 else state[n]
                state[n] = state[n].float() if unlike == "type" and at == 1 else state[n]
    for step, g in enumerate(gradients()):
        grads = [torch.from_numpy(g * (at + 1)).to(s["Param"].dtype) for at, s in enumerate(alone)]
        for state, grad in zip(alone, grads, strict=True):
            update(type, state | {"Grad": grad}, **attrs)
        group([s | {"Grad": g if step % 2 else g.t().contiguous().t()} for s, g in zip(together, grads, strict=True)], type, **attrs)
    for a, b in zip(alone, together, strict=True):
        for n in a:
            torch.testing.assert_close(b[n], a[n], rtol=1e-6, atol=1e-7)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.known = {t.untyped_storage().data_ptr() for t in known}
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in self.known:
                self.elements = max(self.elements, t.numel())
        return out


@pytest.mark.parametrize(
    ("name", "attrs"), [(n, {}) for n in CASES if not n.startswith(("adam", *BY_BLOCKS))] + [("adam", {"lazy_mode": True}), ("adamw", {"lazy_mode": True})]
)
def test_sparse_rows_make_nothing_of_the_tables_size(name: str, attrs: dict[str, Any]) -> None:
    type, names, _, settings = CASES[name]
    height = 1000
    state = start(names)
    state |= {n: torch.zeros(height, WIDTH, dtype=torch.float64) for n in ("Param", *names)}
    rows = Rows(torch.tensor([3, 999, 3]), torch.ones(3, WIDTH, dtype=torch.float64), height)
    cls = get(type)
    operator = cls.with_values({n: cls.check_attribute(n, {**settings, **attrs}.get(n, f.default)) for n, f in cls.schema.attributes.items()})
    with torch.no_grad(), Largest(list(state.values())) as seen:
        cls.kernel(operator, *[(state | {"Grad": rows}).get(o.name) for o in cls.schema.operands])
    assert seen.elements <= 3 * WIDTH
    assert state["Param"][3].abs().sum() > 0
    with Largest([]) as seen:
        rows.to_dense()
    assert seen.elements == height * WIDTH


def test_powers_of_one_are_refused() -> None:
    state = start(("Moment1", "Moment2")) | {"Beta1Pow": torch.ones(1), "Grad": torch.zeros(HEIGHT, WIDTH, dtype=torch.float64)}
    with pytest.raises(ExecutionError, match="must be below 1"):
        update("adam", state)


def test_a_row_outside_of_the_table_is_refused() -> None:
    for bad in (-1, HEIGHT):
        rows = Rows(torch.tensor([bad]), torch.ones(1, WIDTH, dtype=torch.float64), HEIGHT)
        with pytest.raises(ExecutionError, match="row ids must be in"):
            update("adam", start(("Moment1", "Moment2")) | {"Grad": rows})
        for type, names, attrs in (("sgd", (), {}), ("adagrad", ("Moment",), {}), ("adam", ("Moment1", "Moment2"), {"lazy_mode": True})):
            state = start(names)
            with pytest.raises((IndexError, RuntimeError, ExecutionError)):
                update(type, state | {"Grad": rows}, **attrs)
