"""A lookup and its sum in one kernel: the same as op by op, and only where nobody needs what is between."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from support.some import each_of_product

import foreshape as fs
from foreshape import layer

HEIGHT, WIDTH = 11, 6
RAGGED: dict[str, Any] = {
    "usual": [[3, 0, 4]], "empty": [[0, 0]], "none": [[]], "long": [[40, 1]], "two levels": [[2, 0, 1], [3, 0, 4]], "two, empty": [[0], []],
}  # fmt: skip


def run(ids: fs.Variable, feed: Any, mode: str, check: bool, padding: int | None = None, sparse: bool = True, of: str = "fp32", more: Any = None) -> Any:
    """The loss of three steps, the bags, and the table after them; and the step's text."""
    main, startup = fs.default_main_program(), fs.default_startup_program()
    bags = layer.embedding_bag(ids, [HEIGHT, WIDTH], mode, padding, sparse, weight="table", dtype=of)
    loss = layer.reduce_sum(bags * bags * bags)
    fs.optimizer.Adagrad(0.1).minimize(loss)
    executor, scope = fs.Executor(check=check), fs.Scope()
    executor.run(startup, scope=scope)
    scope.set("table", np.random.RandomState(0).standard_normal((HEIGHT, WIDTH)).astype({"fp32": "float32", "fp64": "float64"}[of]))
    fetch = [loss, bags, *(more() if more else [])]
    losses, pooled = [], None
    for _ in range(3):
        value, pooled, *_ = executor.run(main, {ids.name: feed}, fetch, scope)
        losses.append(float(value))
    pooled = pooled.data if isinstance(pooled, fs.LoDTensor) else pooled
    return losses, pooled, scope.get("table"), executor.step(main, fetch).emitted.source


def both(make: Any, feed: Any, mode: str, **more: Any) -> str:
    """Compare the fused step with the checked one; returns the fused one's text."""
    out: list[Any] = []
    for check in (False, True):
        with fs.program_guard(fs.Program(), fs.Program()):
            out.append(run(make(), feed, mode, check, **more))
    fused, plain = out
    for a, b in zip(fused[:3], plain[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    assert "bag" not in plain[3]
    return fused[3]


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize(("name", "mode", "padding", "column"), each_of_product(7, RAGGED, ("sum", "mean", "sqrt"), (None, 2, -1), (False, True)))
def test_ragged_bags(name: str, mode: str, padding: int | None, column: bool) -> None:
    lengths = RAGGED[name]
    count = sum(lengths[-1])
    ids = np.random.RandomState(1).randint(0, HEIGHT, (count, 1) if column else count)

    def make() -> fs.Variable:
        return layer.data("ids", ["words", 1] if column else ["words"], "int64", lod_level=len(lengths))

    assert "= bag" in both(make, fs.LoDTensor(ids, lengths), mode, padding=padding)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("mode", "padding", "of", "index", "shape"),
    [
        (*how, shape)
        for how in (("sum", None, "fp32", "int64"), ("mean", 3, "fp32", "int32"), ("sum", 3, "fp64", "int32"))
        for shape in ((4, 5), (0, 5), (4, 0), (1, 70))
        if how[0] == "sum" or shape[1]  # the mean of no rows is not a number
    ],
)
def test_dense_bags(mode: str, padding: int | None, of: str, index: str, shape: tuple[int, int], sparse: bool) -> None:
    ids = np.random.RandomState(1).randint(0, HEIGHT, shape).astype(index)
    assert "= bag" in both(lambda: layer.data("ids", ["batch", shape[1]], index), ids, mode, padding=padding, of=of, sparse=sparse)


def test_bags_of_other_sizes_come_to_one_step() -> None:
    main, startup = fs.default_main_program(), fs.default_startup_program()
    bags = layer.embedding_bag(layer.data("ids", ["batch", "n"], "int64"), [HEIGHT, WIDTH], weight="table")
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    table, steps = scope.get("table"), set()
    for shape in ((2, 3), (3, 2), (2, 3), (5, 1), (1, 0)):
        ids = np.random.RandomState(1).randint(0, HEIGHT, shape)
        np.testing.assert_allclose(executor.run(main, {"ids": ids}, bags, scope)[0], table[ids].sum(1), rtol=1e-5)
        steps.add(id(executor.step(main, bags)))
    assert len(steps) == 1


@pytest.mark.parametrize("what", ["looked up", "its gradient"])
def test_what_is_fetched_is_made(what: str) -> None:
    def more() -> list[str]:
        ops = fs.default_main_program().global_block.ops
        lookup = next(op for op in ops if op.type == "lookup_table_v2")
        return [lookup.outputs["Out"][0] + ("" if what == "looked up" else "@GRAD")]

    ids = np.random.RandomState(1).randint(0, HEIGHT, (4, 5))
    assert "= bag" not in both(lambda: layer.data("ids", ["batch", 5], "int64"), ids, "sum", more=more)


def test_a_lookup_that_something_else_reads_stays() -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        found = layer.embedding(layer.data("ids", ["batch", 5], "int64"), [HEIGHT, WIDTH], True)
        loss = layer.reduce_sum(layer.reduce_sum(found, 1)) + layer.reduce_sum(layer.reduce_max(found, 1))
        fs.optimizer.SGD(0.1).minimize(loss)
        executor = fs.Executor()
        executor.run(fs.default_startup_program())
        assert "= bag" not in executor.step(fs.default_main_program(), loss).emitted.source


@pytest.mark.parametrize("bad", [-1, HEIGHT, 2**40])
@pytest.mark.parametrize("padding", [None, 2])
def test_an_id_that_is_no_row_is_refused(bad: int, padding: int | None) -> None:
    bags = layer.embedding_bag(layer.data("ids", ["batch", 3], "int64"), [HEIGHT, WIDTH], padding_idx=padding)
    executor = fs.Executor()
    executor.run(fs.default_startup_program())
    with pytest.raises(fs.ExecutionError, match=rf"Ids must be in \[0, {HEIGHT}\).*{bad}"):
        executor.run(feed={"ids": [[1, bad, 2]]}, fetch=bags)


def test_ids_of_other_dims_and_other_modes_are_refused() -> None:
    for shape, level in ((["batch"], 0), (["batch", 2, 3], 0), (["words", 2], 1)):
        with pytest.raises(fs.ShapeError, match="ids must be"):
            layer.embedding_bag(layer.data(f"ids{len(shape)}{level}", shape, "int64", lod_level=level), [HEIGHT, WIDTH])
    ids = layer.data("ids", ["batch", 2], "int64")
    for mode in ("max", "sqrt"):
        with pytest.raises(fs.SchemaError, match="pool_type must be one of sum, mean"):
            layer.embedding_bag(ids, [HEIGHT, WIDTH], mode)
    with pytest.raises(fs.ShapeError, match="size must be"):
        layer.embedding_bag(ids, [HEIGHT])
    with pytest.raises(fs.ShapeError, match="padding_idx must be"):
        layer.embedding_bag(ids, [HEIGHT, WIDTH], padding_idx=HEIGHT)


# --- memory, in processes of their own

_SCRIPT = """
import sys
import numpy as np, torch
import foreshape as fs
from foreshape import layer

def mib(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what)) / 1024

rows, kind, initializer, folder = int(sys.argv[1]), *sys.argv[2:]
start = {"uniform": layer.Uniform(-0.1, 0.1), "normal": layer.Normal(0.0, 0.1), "constant": layer.Constant(0.1)}[initializer]
def build(height):
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        bags = layer.embedding_bag(layer.data("ids", ["batch", 32], "int64"), [height, 64], weight=layer.ParamAttr("table", start))
        loss = layer.mean(layer.square_error_cost(layer.fc(bags, 1), layer.data("y", ["batch", 1])))
        {"sgd": lambda: fs.optimizer.SGD(0.1, clip=fs.optimizer.ClipByGlobalNorm(1.0), weight_decay=0.01),
         "adam": lambda: fs.optimizer.Adam(0.001, lazy_mode=True)}[kind]().minimize(loss)
    return main, startup, bags, loss

def train(executor, scope, main, loss, height):
    rng = np.random.RandomState(0)
    for _ in range(5):
        executor.run(main, {"ids": rng.randint(0, height, (64, 32)), "y": np.ones((64, 1), "float32")}, loss, scope)

executor = fs.Executor()
for height in (100, rows):  # the first warms up
    main, startup, bags, loss = build(height)
    scope, before = fs.Scope(), mib("VmRSS")
    executor.run(startup, scope=scope)
    train(executor, scope, main, loss, height)
trained = mib("VmHWM") - before
if folder:
    fs.save_inference_model(folder + "/m", ["ids"], [bags], executor, main, scope)
    fs.interop.save_safetensors(folder + "/s", scope)
    saved = mib("VmHWM") - before
    anonymous = mib("RssAnon")
    fs.interop.load_safetensors(folder + "/s", scope)
    print(trained, saved, mib("RssAnon") - anonymous)
else:
    print(trained)
"""
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def measured(rows: int, kind: str, initializer: str, folder: str = "") -> list[float]:
    done = subprocess.run([sys.executable, "-c", _SCRIPT, str(rows), kind, initializer, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [float(x) for x in done.stdout.split()]


@linux
@pytest.mark.long
@pytest.mark.parametrize(("kind", "initializer", "tables"), [("sgd", "uniform", 1), ("sgd", "normal", 1), ("adam", "constant", 3)])
def test_a_table_and_its_state_are_in_memory_once(kind: str, initializer: str, tables: int, tmp_path: Any) -> None:
    rows = 200_000
    size = rows * 64 * 4 / 2**20
    trained, saved, loaded = measured(rows, kind, initializer, str(tmp_path))
    assert tables * size * 0.9 < trained < tables * size + 0.4 * size
    assert saved < trained + 0.3 * size
    assert loaded < 0.3 * size


@linux
@pytest.mark.long
@pytest.mark.parametrize(("kind", "tables"), [("sgd", 1), ("adam", 3)])
def test_a_table_of_ten_million_rows_is_in_memory_once(kind: str, tables: int) -> None:
    rows = 10_000_000
    size = rows * 64 * 4 / 2**20
    (trained,) = measured(rows, kind, "uniform")
    assert tables * size * 0.9 < trained < tables * size + 100
