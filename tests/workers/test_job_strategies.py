"""Workers know every strategy, and each within each that takes it: as JSON, and as what a rank prepares for; no processes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.distributed import distributed_session as over_ranks
from foreshape.apps.workers import Job
from foreshape.apps.workers.prepare import prepare
from foreshape.apps.workers.strategies import NAMES, strategy_document, strategy_of
from foreshape.machine.process.this_run import MemoryLimit

MODELS = (fs.data_parallel, fs.shard_optimizer, fs.shard_parameters)
STRATEGIES: list[Any] = [
    *(of(bucket=4096, patience=3.5, synchronise_batch_norm=True) for of in MODELS),
    *(fs.split_tables(of()) for of in MODELS),
    fs.split_tables(tables=("embedding_0.w_0",)),
    *(fs.split_layers(of(), degree=2) for of in MODELS),
    fs.split_layers(fs.split_tables(fs.shard_parameters()), degree=2, layers={"fc_1.w_0": "rows"}, choose=True),
    fs.split_layers(),
]


def words(strategy: Any) -> str:
    return json.dumps(strategy_document(strategy))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=words)
def test_a_strategy_is_what_it_was_after_its_journey(strategy: Any) -> None:
    assert strategy_of("strategy", json.loads(words(strategy))) == strategy


def test_every_strategy_of_the_package_has_a_name() -> None:
    assert set(NAMES) == {"data_parallel", "shard_optimizer", "shard_parameters", "split_tables", "split_layers"}
    assert all(callable(getattr(fs, name)) for name in NAMES)

    class Other:
        patience = 1.0

    with pytest.raises(fs.SchemaError, match=r"workers know data_parallel, .*split_layers; seen"):
        strategy_document(Other())  # type: ignore[arg-type]


MODEL = {"name": "data_parallel", "bucket": None, "patience": 20.0, "synchronise_batch_norm": False}
TABLES = {"name": "split_tables", "rest": MODEL, "tables": None}
LAYERS = {"name": "split_layers", "rest": TABLES, "degree": 2, "layers": {}, "choose": False}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({**TABLES, "rest": TABLES}, r"strategy.rest.name must be 'data_parallel' or"),
        ({**TABLES, "rest": LAYERS}, r"strategy.rest.name must be"),
        ({**LAYERS, "rest": LAYERS}, r"strategy.rest.name must be"),
        ({**LAYERS, "rest": {**TABLES, "rest": {**MODEL, "bucket": 0}}}, r"strategy.rest.rest.bucket must be a whole number"),
        ({**LAYERS, "rest": {**TABLES, "tables": [""]}}, r"strategy.rest.tables must be a text"),
        ({**LAYERS, "degree": 0}, r"strategy.degree must be"),
        ({**LAYERS, "layers": {"w": "diagonal"}}, r"strategy.layers.w must be 'columns' or 'rows'"),
        ({**LAYERS, "choose": 1}, r"strategy.choose must be true or false"),
        ({**LAYERS, "bucket": None}, r"strategy has 'bucket'"),
        ({k: v for k, v in TABLES.items() if k != "rest"}, r"strategy lacks 'rest'"),
        ({"name": "anything"}, r"strategy.name must be"),
        ([], r"strategy must be an object"),
    ],
)
def test_what_is_no_strategy_is_refused(given: Any, says: str) -> None:
    assert strategy_document(strategy_of("strategy", LAYERS)) == LAYERS
    with pytest.raises(fs.FormatError, match=says):
        strategy_of("strategy", given)


@pytest.fixture
def cost(tmp_path: Path) -> Any:
    """A table, two layers that say that they are to be divided, and the data in files."""
    ids, y = layer.data("ids", shape=[-1, 3], dtype="int64"), layer.data("y", dims=1, data_type=fs.INT64)
    found = layer.reduce_mean(layer.embedding(ids, size=[40, 8], is_sparse=True), 1)
    hidden = layer.fc(layer.fc(found, 12, "relu", split="columns"), 6, split="rows")
    np.save(tmp_path / "ids.npy", np.arange(60).reshape(20, 3) % 40)
    np.save(tmp_path / "y.npy", np.zeros((20, 1), np.int64))
    return layer.softmax_with_cross_entropy(hidden, y)


OPTIMIZER = fs.optimizer.Momentum(0.1, 0.9)


def job(cost: Any, strategy: Any, **settings: Any) -> Job:
    return fs.job(cost, {"ids": "ids.npy", "y": "y.npy"}, optimizer=OPTIMIZER, batch_size=8, ranks=strategy, **settings)


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=words)
def test_a_rank_prepares_for_it(strategy: Any, cost: Any, tmp_path: Path) -> None:
    sent = Job.from_bytes(job(cost, strategy).to_bytes())
    if isinstance(strategy, fs.passes.SplitLayers):
        layers = dict(sent.strategy.layers)  # type: ignore[union-attr]
        assert layers == {"fc_0.w_0": "columns", "fc_1.w_0": "rows"}, "what the layers say is not in the program's file"
    else:
        assert sent.strategy == strategy
    ready = prepare(sent, str(tmp_path), 1, 4)
    groups = 1 if strategy == fs.split_layers() else 2 if isinstance(strategy, fs.passes.SplitLayers) else 4
    assert ready.reply.share == 8 // groups
    made = strategy.apply(fs.training_program(cost, OPTIMIZER).program, sent.loss, 4)
    assert ready.reply.peak == fs.plan(made.program, [made.loss, sent.loss]).peak(batch=8 // groups)


def test_ranks_that_are_no_groups_are_refused(cost: Any, tmp_path: Path) -> None:
    with pytest.raises(fs.SchemaError, match="3 ranks cannot be divided into groups of 2"):
        prepare(job(cost, fs.split_layers(degree=2)), str(tmp_path), 0, 3)


@pytest.mark.parametrize("asked", [{"save": "values"}, {"model": ("net", ["ids"], ["fc_1.tmp_1"])}, {"brings": True}])
def test_values_that_are_too_much_to_be_put_together_are_not_promised(
    asked: dict[str, Any], cost: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brings = asked.pop("brings", False)
    wanted = job(cost, fs.split_tables(), **asked)
    whole = 2 * 40 * 8 * 4  # with what Momentum keeps
    monkeypatch.setattr(over_ranks, "default_limit", lambda: MemoryLimit(4 * 2 * whole, "a test's limit"))
    prepare(wanted, str(tmp_path), 0, 4, brings=brings)
    monkeypatch.setattr(over_ranks, "default_limit", lambda: MemoryLimit(4 * 2 * whole - 2, "a test's limit"))
    with pytest.raises(fs.MemoryPlanError, match=r"together too much for this machine, .*name a folder of checkpoints"):
        prepare(wanted, str(tmp_path), 0, 4, brings=brings)
    prepare(dataclasses.replace(wanted, save_to=None, model=None), str(tmp_path), 0, 4)
