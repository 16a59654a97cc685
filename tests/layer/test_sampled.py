"""Losses over large vocabularies and draws from distributions: their numbers, their draws, and training with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer, optimizer
from foreshape.errors import ExecutionError, SchemaError, ShapeError
from foreshape.layer.legacy import alias_tables

CUSTOM = [0.1, 0.2, 0.05, 0.15, 0.2, 0.25, 0.05]
SHARES: dict[str, Any] = {
    "uniform": np.full(7, 1 / 7),
    "log_uniform": (np.log(np.arange(7) + 2) - np.log(np.arange(7) + 1)) / np.log(7),
    "custom_dist": np.array(CUSTOM),
}


def network(sampler: str = "uniform", seed: int = 3, **more: Any) -> tuple[fs.Program, fs.Program, Any, Any]:
    """Programs, the cost, and its op."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x, y = layer.data("x", shape=[-1, 4]), layer.data("y", shape=[-1, 2], dtype="int64")
        weight = layer.data("weight", shape=[-1, 1]) if more.pop("weighted", False) else None
        custom = CUSTOM if sampler == "custom_dist" else None
        cost = layer.nce(x, y, 7, weight, 5, sampler, custom, seed, **more)
    return main, startup, cost, next(op for op in main.global_block.ops if op.type == "nce")


def feeds(rows: int = 6) -> dict[str, Any]:
    rng = np.random.RandomState(1)
    return {"x": rng.standard_normal((rows, 4)).astype(np.float32), "y": rng.randint(0, 7, (rows, 2))}


@pytest.mark.parametrize("sampler", SHARES)
def test_the_cost_is_that_of_the_formula(sampler: str) -> None:
    main, startup, cost, op = network(sampler, weighted=True, bias=layer.Uniform(-1.0, 1.0, seed=2))
    scope, executor = fs.Scope(), fs.Executor()
    executor.run(startup, scope=scope)
    feed = feeds() | {"weight": np.random.RandomState(2).uniform(0.5, 2.0, (6, 1)).astype(np.float32)}
    got, logits, labels = executor.run(main, feed, [cost, *op.outputs["SampleLogits"], *op.outputs["SampleLabels"]], scope)
    w, b = scope.get(op.inputs["Weight"][0]), scope.get(op.inputs["Bias"][0])
    o = 1 / (1 + np.exp(-(np.einsum("nkd,nd->nk", w[labels], feed["x"]) + b[labels, 0])))
    noise = 5 * SHARES[sampler][labels]
    np.testing.assert_array_equal(labels[:, :2], feed["y"])
    np.testing.assert_allclose(logits, o, rtol=1e-5)
    each = np.concatenate([-np.log(o / (o + noise))[:, :2], -np.log(noise / (o + noise))[:, 2:]], 1)
    np.testing.assert_allclose(got, (feed["weight"] * each).sum(1, keepdims=True) / 6, rtol=1e-5)


def test_the_numbers_of_paddlepaddle() -> None:
    """PaddlePaddle 2.6.2's nce with the log-uniform sampler, whose shares are the least obvious, for the classes that it drew."""
    w = np.array([[0.007770895957946777, -0.7331231236457825, -0.2979030907154083], [0.2966485023498535, -0.5610035061836243, 0.6040904521942139],
                  [0.13042587041854858, 0.5728589296340942, 0.7700228691101074], [-0.49326539039611816, 0.12162512540817261, -0.07904273271560669],
                  [-0.6596421599388123, 0.7317126989364624, -0.43283480405807495], [0.2155659794807434, -0.6480938792228699, 0.11008810997009277],
                  [0.15403145551681519, 0.07983702421188354, -0.5991714000701904]], np.float32)  # fmt: skip
    x = np.array([[0.9500884413719177, -0.15135720372200012, -0.10321885347366333], [0.4105985164642334, 0.14404356479644775, 1.4542734622955322]], np.float32)
    o = 1 / (1 + np.exp(-np.einsum("nkd,nd->nk", w[np.array([[1, 2, 1, 0, 2, 0], [6, 0, 1, 1, 3, 1]])], x)))
    noise = 4 * SHARES["log_uniform"][np.array([[1, 2, 1, 0, 2, 0], [6, 0, 1, 1, 3, 1]])]
    cost = np.concatenate([-np.log(o / (o + noise))[:, :2], -np.log(noise / (o + noise))[:, 2:]], 1).sum(1)
    np.testing.assert_allclose(cost, [3.4554734230041504, 4.728433132171631], rtol=1e-6)


@pytest.mark.parametrize("sampler", SHARES)
def test_classes_are_drawn_as_often_as_they_should_be(sampler: str) -> None:
    main, startup, _, op = network(sampler, seed=11)
    scope, executor, count = fs.Scope(), fs.Executor(), 20_000
    executor.run(startup, scope=scope)
    drawn = executor.run(main, feeds(count), op.outputs["SampleLabels"], scope)[0][:, 2:]
    seen = np.bincount(drawn.reshape(-1), minlength=7) / drawn.size
    want = SHARES[sampler] if sampler != "log_uniform" else np.append(SHARES[sampler][:6], 0.0)  # that one never draws the last class
    np.testing.assert_allclose(seen, want, atol=0.006)


def test_a_seed_draws_the_same_classes_and_no_seed_others() -> None:
    for sampler in SHARES:
        main, startup, _, op = network(sampler, seed=3)
        free, free_startup, _, free_op = network(sampler, seed=0)
        scope = fs.Scope()
        for program in (startup, free_startup):
            fs.Executor(seed=1).run(program, scope=scope)

        def draws(program: fs.Program, op: Any, executor: fs.Executor, scope: fs.Scope = scope) -> list[Any]:
            return [executor.run(program, feeds(50), op.outputs["SampleLabels"], scope)[0].tolist() for _ in range(2)]

        fixed = draws(main, op, fs.Executor(seed=5))
        assert fixed[0] == fixed[1] == draws(main, op, fs.Executor(seed=6))[0]
        one, again, other = draws(free, free_op, fs.Executor(seed=5)), draws(free, free_op, fs.Executor(seed=5)), draws(free, free_op, fs.Executor(seed=6))
        assert one == again and one[0] != one[1] and one[0] != other[0]


def test_the_alias_tables_draw_what_was_asked_for() -> None:
    for given in (CUSTOM, [1.0], [0.5, 0.5], [1.0, 0.0, 0.0], list(np.random.RandomState(0).dirichlet(np.ones(50)))):
        alias, keep = alias_tables(given)
        got = np.array(keep) / len(given)
        for k, (a, p) in enumerate(zip(alias, keep, strict=True)):
            assert 0.0 <= p <= 1.0 and (a >= 0 or p == 1.0)
            if a >= 0:
                got[a] += (1.0 - p) / len(given)
            del k
        np.testing.assert_allclose(got, given, atol=1e-9)


TREE = {"table": np.array([[0, 2, -1], [0, 1, 4], [3, -1, -1], [0, 2, 5]]), "code": np.array([[0, 1, -1], [1, 0, 1], [1, -1, -1], [0, 0, 1]])}


def test_the_hierarchical_sigmoid_has_the_numbers_of_paddlepaddle() -> None:
    """Of the complete tree with 6 leaves, and of a tree of its own."""

    def run(w: Any, b: Any, x: Any, tree: bool) -> Any:
        program = fs.Program()
        with fs.program_guard(program, fs.Program()):
            slots = [layer.data("x", shape=[-1, 3]), layer.data("y", shape=[-1, 1], dtype="int64")]
            paths = [layer.data(n, shape=[-1, 3], dtype="int64") for n in ("table", "code")] if tree else []
            out = layer.hierarchical_sigmoid(*slots, 6, *paths, weight="w", bias="b")
        scope = fs.Scope()
        scope.set("w", np.array(w, np.float32).reshape(-1, 3))
        scope.set("b", np.array(b, np.float32).reshape(-1, 1))
        feed = {"x": np.array(x, np.float32).reshape(4, 3), "y": np.array([[0], [5], [2], [3]])} | (TREE if tree else {})
        return fs.Executor().run(program, feed, [out], scope)[0].reshape(-1)

    whole = run(
        [-0.46432581543922424, 0.5729603171348572, 0.7116544842720032, -0.21057653427124023, 0.44641202688217163, 0.6701223254203796, -0.17055994272232056,
         -0.005163908004760742, 0.254607617855072, 0.06348484754562378, 0.663106381893158, 0.3467521071434021, 0.8127264380455017, 0.36642104387283325,
         0.3732759356498718],
        [-0.6226703524589539, -0.495433509349823, 0.895728349685669, 0.8036012649536133, -0.8227840065956116],
        [1.764052391052246, 0.40015721321105957, 0.978738009929657, 2.2408931255340576, 1.8675580024719238, -0.9772778749465942, 0.9500884413719177,
         -0.15135720372200012, -0.10321885347366333, 0.4105985164642334, 0.14404356479644775, 1.4542734622955322], False,
    )  # fmt: skip
    np.testing.assert_allclose(whole, [2.877446413040161, 1.643829584121704, 1.7408157587051392, 2.018897533416748], rtol=1e-6)
    own = run(
        [0.09604209661483765, -0.8056468963623047, 0.7874207496643066, 0.299729585647583, -0.3689919114112854, 0.14099466800689697, -0.5046167373657227,
         0.22553086280822754, -0.2297428846359253, 0.7487783432006836, -0.5597490072250366, 0.11442321538925171, -0.366106778383255, -0.5639885663986206,
         0.218819260597229, 0.20863234996795654, 0.4143967628479004, 0.37724125385284424],
        [-0.8043933510780334, 0.21115148067474365, -0.7285917401313782, 0.5294978618621826, -0.8398198485374451, 0.7161836624145508],
        [0.7610377073287964, 0.12167501449584961, 0.44386324286460876, 0.3336743414402008, 1.4940791130065918, -0.2051582634449005, 0.3130677044391632,
         -0.8540957570075989, -2.5529897212982178, 0.653618574142456, 0.8644362092018127, -0.7421650290489197], True,
    )  # fmt: skip
    np.testing.assert_allclose(own, [2.628317356109619, 4.812333106994629, 1.7132859230041504, 0.8621578812599182], rtol=1e-6)


def test_the_paths_of_the_complete_tree_tell_all_classes_apart() -> None:
    """Without the log(2) of free places, the costs of all classes are those of a distribution: their exponentials sum to 1."""
    for classes in (2, 3, 7, 8, 13):
        program = fs.Program()
        startup = fs.Program()
        with fs.program_guard(program, startup):
            x, y = layer.data("x", shape=[-1, 3]), layer.data("y", shape=[-1, 1], dtype="int64")
            out = layer.hierarchical_sigmoid(x, y, classes, bias=layer.Uniform(-1.0, 1.0))
        scope = fs.Scope()
        fs.Executor(seed=2).run(startup, scope=scope)
        x = np.tile(np.random.RandomState(0).standard_normal((1, 3)).astype(np.float32), (classes, 1))
        cost = fs.Executor().run(program, {"x": x, "y": np.arange(classes)[:, None]}, [out], scope)[0].reshape(-1)
        free = (classes - 1).bit_length() - np.array([(c + classes).bit_length() - 1 for c in range(classes)])
        np.testing.assert_allclose(np.exp(-(cost - free * np.log(2))).sum(), 1.0, rtol=1e-5)


def trained(kind: str, is_sparse: bool, steps: int = 30) -> tuple[list[float], dict[str, Any], Any]:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x, y = layer.data("x", shape=[-1, 4]), layer.data("y", shape=[-1, 1], dtype="int64")
        if kind == "nce":
            cost = layer.nce(x, y, 7, num_neg_samples=5, seed=3, is_sparse=is_sparse)
        else:
            cost = layer.hierarchical_sigmoid(x, y, 7, is_sparse=is_sparse)
        loss = layer.mean(cost)
        optimizer.SGD(0.5).minimize(loss)
    scope, executor = fs.Scope(), fs.Executor(seed=4)
    executor.run(startup, scope=scope)
    rng = np.random.RandomState(0)
    y_values = rng.randint(0, 7, (32, 1))
    feed = {"x": (np.eye(7, 4)[y_values[:, 0]] + 0.1 * rng.standard_normal((32, 4))).astype(np.float32), "y": y_values}
    losses = [float(executor.run(main, feed, [loss], scope)[0]) for _ in range(steps)]
    return losses, {n: scope.get(n) for n in scope.names()}, main


@pytest.mark.parametrize("kind", ["nce", "hierarchical_sigmoid"])
def test_they_train_and_sparse_rows_train_to_the_same(kind: str) -> None:
    dense, weights, _ = trained(kind, False)
    sparse, rows, main = trained(kind, True)
    assert dense[-1] < (0.95 if kind == "nce" else 0.8) * dense[0]
    np.testing.assert_allclose(dense, sparse, rtol=1e-5)
    for name, value in weights.items():
        np.testing.assert_allclose(value, rows[name], rtol=1e-4, atol=1e-6)
    kinds = {v.name: v.spec.kind.name for v in main.all_variables() if v.name.endswith("@GRAD")}
    assert kinds[f"{kind}_0.w_0@GRAD"] == "SELECTED_ROWS" and kinds[f"{kind}_0.b_0@GRAD"] == "LOD_TENSOR"


def test_a_file_that_names_the_table_as_a_result_trains_it_alike() -> None:
    """PaddlePaddle writes W_Out, which is W itself."""

    def run(named: bool) -> Any:
        main, startup = fs.Program(), fs.Program()
        with fs.program_guard(main, startup):
            x, y = layer.data("x", shape=[-1, 4]), layer.data("y", shape=[-1, 1], dtype="int64")
            w = layer.create_parameter([6, 4], fs.FP32, layer.Uniform(seed=2), prefix="t")
            op = main.global_block.append_op("hierarchical_sigmoid", {"X": x, "W": w, "Label": y}, {"W_Out": w} if named else {}, {"num_classes": 7})
            loss = layer.mean(main.global_block.var(op.outputs["Out"][0]))
            optimizer.SGD(0.5).minimize(loss)
        scope, executor = fs.Scope(), fs.Executor()
        executor.run(startup, scope=scope)
        rng = np.random.RandomState(0)
        feed = {"x": rng.standard_normal((8, 4)).astype(np.float32), "y": rng.randint(0, 7, (8, 1))}
        losses = [float(executor.run(main, feed, [loss], scope)[0]) for _ in range(5)]
        return losses, scope.get(w.name)

    (a, table), (b, other) = run(True), run(False)
    assert a == b and a[-1] < a[0]
    np.testing.assert_array_equal(table, other)


def test_columns_are_drawn_from_distributions() -> None:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x = layer.data("x", shape=[-1, 4])
        one, fixed = layer.sampling_id(x), layer.sampling_id(x, min=0.5, max=0.50001, seed=1)
        several = layer.multinomial(x, 3, replacement=True)
        apart = layer.multinomial(x, 2)
    share = np.array([0.1, 0.4, 0.3, 0.2], np.float32)
    many = np.tile(share, (20_000, 1))
    a, b, c = fs.Executor(seed=1).run(program, {"x": many}, [one, several, apart], fs.Scope())
    assert a.shape == (20_000,) and a.dtype == np.int64 and b.shape == (20_000, 3) and c.shape == (20_000, 2)
    for drawn in (a, b):
        np.testing.assert_allclose(np.bincount(drawn.reshape(-1), minlength=4) / drawn.size, share, atol=0.01)
    assert (c[:, 0] != c[:, 1]).all()
    few = np.array([[0.25, 0.25, 0.25, 0.25], [0.1, 0.1, 0.1, 0.1], [0, 0, 1, 0], [0.6, 0, 0, 0.4]], np.float32)  # PaddlePaddle 2.6.2 gives these:
    assert fs.Executor().run(program, {"x": few}, [fixed], fs.Scope())[0].tolist() == [2, 3, 2, 0]


def test_classes_that_are_none_are_refused_when_they_are_fed() -> None:
    main, startup, cost, _ = network()
    scope = fs.Scope()
    fs.Executor().run(startup, scope=scope)
    for wrong in (7, -1, 2**62):
        feed = feeds()
        feed["y"][2, 1] = wrong
        with pytest.raises(ExecutionError, match=r"nce: Label must be in \[0, 7\), the classes; seen"):
            fs.Executor().run(main, feed, [cost], scope)
    program, startup = fs.Program(), fs.Program()
    with fs.program_guard(program, startup):
        paths = [layer.data(n, shape=[-1, 3], dtype="int64") for n in ("table", "code")]
        tree = layer.hierarchical_sigmoid(layer.data("x", shape=[-1, 3]), layer.data("y", shape=[-1, 1], dtype="int64"), 6, *paths)
        plain = layer.hierarchical_sigmoid(layer.data("x2", shape=[-1, 3]), layer.data("y2", shape=[-1, 1], dtype="int64"), 6)
    fs.Executor().run(startup, scope=scope)
    x, y = np.ones((4, 3), np.float32), np.array([[0], [5], [2], [6]])
    with pytest.raises(ExecutionError, match=r"Label must be in \[0, 6\), the classes; seen 0 to 6"):
        fs.Executor().run(program, {"x2": x, "y2": y}, [plain], scope)
    with pytest.raises(ExecutionError, match=r"PathTable must be in \[0, 6\), the rows of W, or negative past the end; seen 6"):
        fs.Executor().run(program, {"x": x, "y": y, "table": TREE["table"] + (TREE["table"] == 5), "code": TREE["code"]}, [tree], scope)


def test_what_is_described_wrongly_is_refused_with_words() -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        x, y = layer.data("x", shape=[-1, 4]), layer.data("y", shape=[-1, 2], dtype="int64")
        wide = layer.data("wide", shape=[-1, "width"])
        with pytest.raises(SchemaError, match="sampler must be one of 'uniform', 'log_uniform', 'custom_dist'; seen 'other'"):
            layer.nce(x, y, 7, sampler="other")
        with pytest.raises(SchemaError, match="takes the argument custom_dist"):
            layer.nce(x, y, 7, sampler="custom_dist")
        with pytest.raises(SchemaError, match="takes the argument custom_dist"):
            layer.nce(x, y, 7, custom_dist=CUSTOM)
        for wrong in (CUSTOM[:6], [*CUSTOM[:6], -0.1], [0.5] * 7, [float("nan")] * 7):
            with pytest.raises(SchemaError, match="custom_dist must have 7 probabilities whose sum is 1"):
                layer.nce(x, y, 7, sampler="custom_dist", custom_dist=wrong)
        with pytest.raises(ShapeError, match="with a known width"):
            layer.nce(wide, y, 7)
        with pytest.raises(SchemaError, match="come together"):
            layer.hierarchical_sigmoid(x, y, 7, path_table=y)
        with pytest.raises(ShapeError, match="Label must have one number for each row of X"):
            layer.hierarchical_sigmoid(x, y, 7)
