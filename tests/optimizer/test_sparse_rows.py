"""Sparse gradients from the lookup to the table: against dense training where the mathematics says so, and against plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.some import one_in

import foreshape as fs
from foreshape import layer, optimizer
from foreshape.core.values.rows import Rows
from foreshape.language.ops import get
from foreshape.optimizer import Optimizer

HEIGHT, WIDTH, RATE = 23, 8, 0.05
Make = Callable[[], Optimizer]


def batches(seed: int = 0, steps: int = 6) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ids with many repeats, among rows that some steps leave alone, and labels."""
    rng = np.random.RandomState(seed)
    return [(rng.randint(0, HEIGHT - 3, (4, 5)) // 2 * 2, rng.standard_normal((4, 2)).astype("float32")) for _ in range(steps)]


def train(make: Make, is_sparse: bool, kind: str = "one", padding: int | None = None) -> tuple[list[float], dict[str, np.ndarray], fs.Program]:
    """Train a table and a linear layer; ``kind``: one lookup, two of one table, a bag, or a table that is used sparse and dense."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        ids, label = layer.data("ids", ["batch", 5], "int64"), layer.data("label", ["batch", 2])
        if kind == "bag":
            found = layer.embedding_bag(ids, [HEIGHT, WIDTH], weight="table", is_sparse=is_sparse, padding_idx=padding)
        else:
            found = layer.reduce_mean(layer.embedding(ids, [HEIGHT, WIDTH], is_sparse, padding, weight="table"), 1)
        if kind == "two":
            found = found + layer.embedding_bag(layer.data("more", ["batch", 3], "int64"), [HEIGHT, WIDTH], "mean", weight="table", is_sparse=is_sparse)
        if kind == "tied":
            table = main.global_block.var("table")
            found = found + layer.reduce_mean(table * table, 0)
        loss = layer.mean(layer.square_error_cost(layer.fc(found, 2, weight="w", bias="b"), label))
        make().minimize(loss)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    rng = np.random.RandomState(4)
    for p in main.parameters():
        scope.set(p.name, rng.standard_normal(p.dims).astype("float32"))
    losses: list[float] = []
    for given, y in batches():
        feed = {"ids": given, "label": y} | ({"more": (given[:, :3] + 1) % HEIGHT} if kind == "two" else {})
        losses.append(float(executor.run(main, feed, [loss], scope)[0]))
    return losses, {n: scope.get(n) for n in scope.names()}, main


EXACT: dict[str, Make] = {
    "sgd": lambda: optimizer.SGD(RATE),
    "momentum": lambda: optimizer.Momentum(RATE, 0.9),
    "nesterov_decay": lambda: optimizer.Momentum(RATE, 0.9, True, weight_decay=0.1),
    "adam": lambda: optimizer.Adam(RATE),
    "adamw": lambda: optimizer.AdamW(RATE),
    "adagrad": lambda: optimizer.Adagrad(RATE),
    "rmsprop": lambda: optimizer.RMSProp(RATE, momentum=0.5, centered=True),
    "adadelta": lambda: optimizer.Adadelta(1.0, 1e-3),
    "adamax": lambda: optimizer.Adamax(RATE, epsilon=1e-3),
    "decayed_adagrad": lambda: optimizer.DecayedAdagrad(RATE),
    "proximal": lambda: optimizer.ProximalGD(RATE, 0.1, 0.1),
    "lamb": lambda: optimizer.Lamb(RATE),
    "lion": lambda: optimizer.Lion(RATE, weight_decay=0.1),
    "clip_value": lambda: optimizer.SGD(RATE, clip=optimizer.ClipByValue(0.01)),
    "clip_norm": lambda: optimizer.Adagrad(RATE, clip=optimizer.ClipByNorm(0.02)),
    "clip_global": lambda: optimizer.Adam(RATE, clip=optimizer.ClipByGlobalNorm(0.05)),
}


@pytest.mark.quick_cases(one_in=6)
@pytest.mark.parametrize("kind", ["one", "two", "bag", "tied"])
@pytest.mark.parametrize("name", one_in(2, EXACT))
def test_sparse_training_is_dense_training(name: str, kind: str) -> None:
    losses, after, main = train(EXACT[name], True, kind)
    want_losses, want, dense = train(EXACT[name], False, kind)
    assert main.var("table@GRAD").kind is (fs.LOD_TENSOR if kind == "tied" else fs.SELECTED_ROWS)
    assert dense.var("table@GRAD").kind is fs.LOD_TENSOR
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    for n, value in want.items():
        rounding = 2e-6 * max(1.0, float(np.abs(value).max()))  # of the largest: small numbers are what is left of large ones
        np.testing.assert_allclose(after[n], value, rtol=1e-4, atol=rounding, err_msg=n)


def test_one_table_looked_up_twice_has_one_sparse_gradient_and_one_used_densely_a_dense_one() -> None:
    main = train(EXACT["sgd"], True, "two")[2]
    (made,) = [op for op in main.global_block.ops if op.type == "sum" and op.output("Out") == "table@GRAD"]
    assert [main.var(n).kind for n in made.inputs["X"]] == [fs.SELECTED_ROWS] * 2
    assert "table@GRAD: rows f32[23, 8] = sum(" in str(main)
    tied = train(EXACT["sgd"], True, "tied")[2]
    (made,) = [op for op in tied.global_block.ops if op.type == "sum" and op.output("Out") == "table@GRAD"]
    assert {tied.var(n).kind for n in made.inputs["X"]} == {fs.SELECTED_ROWS, fs.LOD_TENSOR}
    assert fs.Program.from_bytes(main.to_bytes()).var("table@GRAD").kind is fs.SELECTED_ROWS


@pytest.mark.parametrize("padding", [2, -HEIGHT + 4])
@pytest.mark.parametrize("kind", ["one", "bag"])
def test_the_padding_row_is_zeros_and_stays(kind: str, padding: int) -> None:
    losses, after, _ = train(EXACT["sgd"], True, kind, padding)
    want_losses, want, _ = train(EXACT["sgd"], False, kind, padding)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-6)
    np.testing.assert_allclose(after["table"], want["table"], rtol=1e-5, atol=1e-7)
    start = np.random.RandomState(4).standard_normal((HEIGHT, WIDTH)).astype("float32")
    np.testing.assert_array_equal(after["table"][padding], start[padding])
    assert losses != train(EXACT["sgd"], True, kind)[0]


# --- lazy modes and decay, against numpy


def reference(step: Callable[..., None], steps: Any = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The table after training it alone: the loss is sum(bag . label), whose gradient of a row is the sum of its bags' labels."""
    table = np.random.RandomState(4).standard_normal((HEIGHT, WIDTH))
    state: dict[str, np.ndarray] = {}
    for t, (ids, y) in enumerate(steps or wide_batches(), 1):
        grad = np.zeros_like(table)
        np.add.at(grad, ids, np.broadcast_to(y[:, None], (*ids.shape, WIDTH)))
        step(table, state, np.unique(ids), grad, t)
    return table, state


def wide_batches() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.RandomState(8)
    return [(ids, rng.standard_normal((4, WIDTH)).astype("float32")) for ids, _ in batches()]


def alone(make: Make, steps: Any = None) -> tuple[dict[str, np.ndarray], fs.Program]:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        bags = layer.embedding_bag(layer.data("ids", ["batch", 5], "int64"), [HEIGHT, WIDTH], weight="table")
        loss = layer.reduce_sum(bags * layer.data("label", ["batch", WIDTH]))
        make().minimize(loss)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    scope.set("table", np.random.RandomState(4).standard_normal((HEIGHT, WIDTH)).astype("float32"))
    for ids, y in steps or wide_batches():
        executor.run(main, {"ids": ids, "label": y}, [loss], scope)
    return {n: scope.get(n) for n in scope.names()}, main


def zeros(state: dict[str, np.ndarray], *names: str) -> list[np.ndarray]:
    return [state.setdefault(n, np.zeros((HEIGHT, WIDTH))) for n in names]


def lazy_momentum(nesterov: bool, decay: float) -> Callable[..., None]:
    def step(p: np.ndarray, state: dict[str, np.ndarray], rows: np.ndarray, grad: np.ndarray, t: int) -> None:
        (v,) = zeros(state, "velocity")
        g = grad[rows] + decay * p[rows]
        v[rows] = 0.9 * v[rows] + g
        p[rows] -= RATE * (g + 0.9 * v[rows] if nesterov else v[rows])

    return step


def lazy_adam(decay: float = 0.0) -> Callable[..., None]:
    def step(p: np.ndarray, state: dict[str, np.ndarray], rows: np.ndarray, grad: np.ndarray, t: int) -> None:
        m, v = zeros(state, "moment1", "moment2")
        g = grad[rows]
        m[rows], v[rows] = 0.9 * m[rows] + 0.1 * g, 0.999 * v[rows] + 0.001 * g * g
        p[rows] *= 1 - RATE * decay
        p[rows] -= RATE * (m[rows] / (1 - 0.9**t)) / (np.sqrt(v[rows] / (1 - 0.999**t)) + 1e-8)

    return step


def lazy_rmsprop(p: np.ndarray, state: dict[str, np.ndarray], rows: np.ndarray, grad: np.ndarray, t: int) -> None:
    square, mean, moment = zeros(state, "mean_square", "mean_grad", "momentum")
    g = grad[rows]
    square[rows], mean[rows] = 0.95 * square[rows] + 0.05 * g * g, 0.95 * mean[rows] + 0.05 * g
    moment[rows] = 0.5 * moment[rows] + RATE * g / np.sqrt(square[rows] - mean[rows] ** 2 + 1e-3)
    p[rows] -= moment[rows]


def ftrl(p: np.ndarray, state: dict[str, np.ndarray], rows: np.ndarray, grad: np.ndarray, t: int) -> None:
    n, z = zeros(state, "squared", "linear")
    g, l1, l2 = grad[rows], 0.1, 0.2
    after = n[rows] + g * g
    z[rows] += g - (np.sqrt(after) - np.sqrt(n[rows])) / RATE * p[rows]
    n[rows] = after
    p[rows] = np.where(np.abs(z[rows]) > l1, (l1 * np.sign(z[rows]) - z[rows]) / (np.sqrt(after) / RATE + 2 * l2), 0.0)


def decayed_sgd(l1: float, l2: float, clip: float | None = None) -> Callable[..., None]:
    def step(p: np.ndarray, state: dict[str, np.ndarray], rows: np.ndarray, grad: np.ndarray, t: int) -> None:
        g = grad if clip is None else np.clip(grad, -clip, clip)
        p[rows] -= RATE * (g[rows] + l2 * p[rows] + l1 * np.sign(p[rows]))

    return step


LAZY: dict[str, tuple[Make, Callable[..., None]]] = {
    "adam": (lambda: optimizer.Adam(RATE, lazy_mode=True), lazy_adam()),
    "adamw": (lambda: optimizer.AdamW(RATE, weight_decay=0.1, lazy_mode=True), lazy_adam(0.1)),
    "momentum": (lambda: optimizer.Momentum(RATE, 0.9, lazy_mode=True), lazy_momentum(False, 0.0)),
    "nesterov": (lambda: optimizer.Momentum(RATE, 0.9, True, lazy_mode=True, weight_decay=0.1), lazy_momentum(True, 0.1)),
    "rmsprop": (lambda: optimizer.RMSProp(RATE, momentum=0.5, epsilon=1e-3, centered=True, lazy_mode=True), lazy_rmsprop),
    "ftrl": (lambda: optimizer.Ftrl(RATE, 0.1, 0.2), ftrl),
    "l2_decay": (lambda: optimizer.SGD(RATE, weight_decay=0.1), decayed_sgd(0.0, 0.1)),
    "l1_decay": (lambda: optimizer.SGD(RATE, weight_decay=optimizer.L1Decay(0.1)), decayed_sgd(0.1, 0.0)),
    "clip_and_decay": (lambda: optimizer.SGD(RATE, weight_decay=0.1, clip=optimizer.ClipByValue(0.3)), decayed_sgd(0.0, 0.1, 0.3)),
}


@pytest.mark.parametrize("name", LAZY)
def test_a_lazy_step_is_its_formula_on_the_rows_of_the_gradient(name: str) -> None:
    make, formula = LAZY[name]
    after, main = alone(make)
    table, state = reference(formula)
    assert main.var("table@GRAD").kind is fs.SELECTED_ROWS
    np.testing.assert_allclose(after["table"], table, rtol=2e-5, atol=2e-6)
    for what, value in state.items():
        np.testing.assert_allclose(after[f"table_{what}_0"], value, rtol=2e-5, atol=2e-6, err_msg=what)
    never = sorted(set(range(HEIGHT)) - {int(i) for ids, _ in batches() for i in ids.reshape(-1)})
    assert never
    start = np.random.RandomState(4).standard_normal((HEIGHT, WIDTH)).astype("float32")
    np.testing.assert_array_equal(after["table"][never], start[never])


ALL_ROWS = ("adamax", "proximal", "lamb", "lion")
"""Optimizers that have no lazy mode and move what a gradient of zeros moves."""


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize("name", [*LAZY, *EXACT])
def test_a_batch_without_examples_changes_what_dense_training_would(name: str) -> None:
    make = LAZY[name][0] if name in LAZY else EXACT[name]
    steps = wide_batches()[:3]
    empty = (np.zeros((0, 5), np.int64), np.zeros((0, WIDTH), np.float32))
    with_it, _ = alone(make, [*steps, empty])
    without, _ = alone(make, steps)
    moves = name in ("momentum", "nesterov_decay", "adam", "adamw", "rmsprop", "clip_global", *ALL_ROWS) and name not in LAZY
    assert (with_it["table"] == without["table"]).all() != moves


def test_decay_of_a_dense_gradient_is_everywhere() -> None:
    for make, l1, l2 in (
        (lambda: optimizer.SGD(RATE, weight_decay=optimizer.L1Decay(0.1)), 0.1, 0.0),
        (lambda: optimizer.SGD(RATE, weight_decay=0.1), 0.0, 0.1),
    ):
        w = np.array([[1.5], [-2.0], [0.0]], np.float32)
        with fs.program_guard(fs.Program(), fs.Program()):
            loss = layer.mean(layer.fc(layer.data("x", ["batch", 3]), 1, weight="w", bias=False))
            make().minimize(loss)
            scope, executor = fs.Scope(), fs.Executor()
            executor.run(fs.default_startup_program(), scope=scope)
            scope.set("w", w)
            executor.run(feed={"x": np.ones((2, 3), np.float32)}, fetch=loss, scope=scope)
        np.testing.assert_allclose(scope.get("w"), w - RATE * (1.0 + l2 * w + l1 * np.sign(w)), rtol=1e-6)


@pytest.mark.parametrize("name", ["momentum", "rmsprop"])
def test_a_lazy_mode_is_the_usual_operator_for_dense_gradients(name: str) -> None:
    main = train({"momentum": lambda: optimizer.Momentum(0.1, lazy_mode=True), "rmsprop": lambda: optimizer.RMSProp(0.1, lazy_mode=True)}[name], True)[2]
    used = {op.input("Param"): op.type for op in main.global_block.ops if op.input("Param")}
    assert used == {"table": f"lazy_{name}", "w": name, "b": name}


# --- what PaddlePaddle 2.6.2 gives: rows 3, 1, 3 of a table of 5, two steps


PADDLE: list[tuple[str, dict[str, Any], dict[str, float], dict[str, list[list[float]]]]] = [
    (
        "ftrl", {"l1": 0.1, "l2": 0.2, "lr_power": -0.5}, {"SquaredAccumulator": 0.5, "LinearAccumulator": 0.3},
        {"Param": [[0, 0], [-0.412204, -0.585077], [0, 0], [-0.292091, -0.157910]], "SquaredAccumulator": [[0.5, 0.5], [18.5, 32.5], [0.5, 0.5], [72.5, 128.5]],
         "LinearAccumulator": [[0.3, 0.3], [-24.694183, -95.158363], [0.3, 0.3], [-56.389679, 35.281616]]},
    ),
    (
        "ftrl", {"l1": 0.1, "l2": 0.2, "lr_power": -0.7}, {"SquaredAccumulator": 0.5, "LinearAccumulator": 0.3},
        {"Param": [[0, 0], [-0.240069, -0.301629], [0, 0], [-0.131330, -0.065605]]},
    ),
    (
        "momentum", {"mu": 0.9, "use_nesterov": True, "regularization_method": "l2_decay", "regularization_coeff": 0.1, "rescale_grad": 0.5}, {"Velocity": 1.0},
        {"Param": [[-0.233047, -0.170664], [-0.883212, -1.169637], [-0.237781, -0.107661], [-1.567987, -1.974998]],
         "Velocity": [[1.133718, 0.877170], [3.807500, 4.985412], [1.153188, 0.618074], [6.623612, 8.297429]]},
    ),
    (
        "rmsprop", {"epsilon": 1e-3, "decay": 0.8, "momentum": 0.5, "centered": True}, {"MeanSquare": 1.0, "Moment": 1.0, "MeanGrad": 0.1},
        {"Param": [[-0.75, -0.75], [-1.244767, -1.280638], [-0.75, -0.75], [-1.310750, -1.321974]],
         "Moment": [[0.25, 0.25], [0.539624, 0.557955], [0.25, 0.25], [0.572883, 0.578301]]},
    ),
    ("adagrad", {"epsilon": 1e-3}, {"Moment": 1.0}, {"Param": [[0, 0], [-0.163647, -0.166610], [0, 0], [-0.168840, -0.169645]]}),
]  # fmt: skip


@pytest.mark.parametrize(("type", "attrs", "state", "want"), PADDLE, ids=[f"{p[0]}{at}" for at, p in enumerate(PADDLE)])
def test_sparse_updates_give_what_paddlepaddle_gives(type: str, attrs: dict[str, Any], state: dict[str, float], want: dict[str, list[list[float]]]) -> None:
    cls = get(type)
    operator = cls.with_values({n: cls.check_attribute(n, attrs.get(n, f.default)) for n, f in cls.schema.attributes.items()})
    slots = {n: torch.full((5, 2), v) for n, v in state.items()}
    slots["Param"] = torch.from_numpy(np.random.RandomState(0).standard_normal((5, 2)).astype("float32"))
    before = slots["Param"].clone()
    slots["LearningRate"] = torch.tensor([0.1])
    with torch.inference_mode():
        for _ in range(2):
            grad = Rows(torch.tensor([3, 1, 3]), torch.tensor([[1.0, 2], [3, 4], [5, 6]]), 5)
            cls.kernel(operator, *[(slots | {"Grad": grad}).get(o.name) for o in cls.schema.operands])
    for name, value in want.items():
        seen = slots[name] - before if name == "Param" else slots[name]
        np.testing.assert_allclose(seen[:4].numpy(), value, rtol=2e-5, atol=2e-5, err_msg=name)


def test_dense_ftrl_is_its_formula() -> None:
    table, _ = reference(lambda p, s, rows, grad, t: ftrl(p, s, np.arange(HEIGHT), grad, t))
    cls = get("ftrl")
    operator = cls.with_values({"l1": 0.1, "l2": 0.2, "lr_power": -0.5})
    p = torch.from_numpy(np.random.RandomState(4).standard_normal((HEIGHT, WIDTH)))
    n, z = torch.zeros_like(p), torch.zeros_like(p)
    for ids, y in wide_batches():
        grad = np.zeros((HEIGHT, WIDTH))
        np.add.at(grad, ids, np.broadcast_to(y[:, None], (*ids.shape, WIDTH)))
        with torch.inference_mode():
            cls.kernel(operator, p, torch.from_numpy(grad), torch.tensor(RATE, dtype=torch.float64), n, z)
    np.testing.assert_allclose(p.numpy(), table, rtol=1e-6, atol=1e-8)


# --- fed and fetched


def test_sparse_rows_are_fed_and_fetched() -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        g, d = layer.data("g", [10, 3], kind=fs.SELECTED_ROWS), layer.data("d", [10, 3])
        block = main.global_block
        merged = block.apply("merge_selected_rows", {"X": g})
        values = block.apply("get_tensor_from_selected_rows", {"X": merged})
        clipped, total = block.apply("clip", {"X": g}, {"min": -1.0, "max": 7.0}), block.apply("sum", {"X": [g, d]})
        norm = block.apply("squared_l2_norm", {"X": g})
    assert "input g: rows f32[10, 3]" in str(main) and [v.kind for v in (merged, values, clipped, total)] == [g.kind, d.kind, g.kind, d.kind]
    again = fs.Program.from_bytes(main.to_bytes())
    again.forget()
    again.infer()
    assert {v.name: v.spec.text() for v in again.all_variables()} == {v.name: v.spec.text() for v in main.all_variables()}
    assert str(fs.Program.parse(str(main))) == str(main)
    rows = fs.SelectedRows([3, 1, 3], np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], "float32"), 10)
    feed = {"g": rows, "d": np.ones((10, 3), "float32")}
    for check in (False, True):
        back, one, two, three, four, five = fs.Executor(check=check).run(main, feed, [g, merged, values, clipped, total, norm])
        assert isinstance(back, fs.SelectedRows) and back.rows.tolist() == [3, 1, 3] and back.height == 10 and (back.values == rows.values).all()
        assert one.rows.tolist() == [1, 3] and one.values.tolist() == two.tolist() == [[4, 5, 6], [8, 10, 12]]
        assert three.values.tolist() == [[4, 5, 6], [7, 7, 7]]
        np.testing.assert_array_equal(four, rows.to_dense() + 1)
        assert five.tolist() == [16 + 25 + 36 + 64 + 100 + 144]
    none = fs.SelectedRows([], np.zeros((0, 3), "float32"), 10)
    assert fs.Executor().run(main, feed | {"g": none}, [total, values])[1].shape == (0, 3)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (np.ones((10, 3), "float32"), "feed a SelectedRows"),
        (fs.SelectedRows([3], np.ones((1, 3), "float32"), 11), "dim 0 must be 10"),
        (fs.SelectedRows([3], np.ones((1, 4), "float32"), 10), "dim 1 must be 3"),
        (fs.SelectedRows([3], np.ones((1, 3), "int64"), 10), "must be fp32"),
    ],
)
def test_what_is_not_these_rows_is_refused(bad: Any, says: str) -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        g = layer.data("g", [10, 3], kind="selected_rows")
        with pytest.raises(fs.FeedError, match=says):
            fs.Executor().run(feed={"g": bad}, fetch=[g])


def test_an_input_of_another_kind_is_refused() -> None:
    for named in ({"kind": fs.SELECTED_ROWS, "lod_level": 1}, {"kind": "step_scopes"}):
        with pytest.raises(fs.SchemaError, match="SELECTED_ROWS of at least one dim"):
            layer.data("g", [10, 3], **named)


def test_a_gradient_is_fed_to_an_update() -> None:
    """As a server of parameters would: it has the table, and is sent rows."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        table = layer.create_parameter((10, 2), fs.FP32, layer.ParamAttr("table", layer.Constant(1.0)))
        optimizer.Adagrad(0.5, epsilon=0.0).apply([(table, layer.data("sent", [10, 2], kind=fs.SELECTED_ROWS))])
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    executor.run(main, {"sent": fs.SelectedRows([4, 4], np.ones((2, 2), "float32"), 10)}, scope=scope)
    want = np.ones((10, 2))
    want[4] = 0.5
    np.testing.assert_allclose(scope.get("table"), want, rtol=1e-6)
