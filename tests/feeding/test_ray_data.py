"""Data sets of Ray: predictions and vectors by workers of a cluster of two processors on this machine, some of which are killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import foreshape as fs
from foreshape import layer
from foreshape.apps.cli.commands import app
from foreshape.runtime.feeding import ray_data
from foreshape.runtime.feeding.ray_data import RaySettings, plain_ray_errors

ray = pytest.importorskip("ray", reason="the extra ray")
pytest.importorskip("ray.data")
pytestmark = pytest.mark.ray
sys.path.insert(0, str(Path(__file__).parents[1] / "embedding"))

import pyarrow  # noqa: E402
from model_folders import write_model  # noqa: E402

TWO = RaySettings(2)
NEAR = 2e-6
"""Batches of other sizes round otherwise; the vectors have numbers below 1."""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    tests = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])  # of the workers
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=200 << 20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model", {"pooling_mode": "mean"}, "Normalize")


def some_texts(count: int) -> list[str]:
    chance, words = random.Random(3), ("the", "ship", "left", "harbour", "at", "dawn", "a", "row")
    return [" ".join(chance.choices(words, k=chance.randint(0, 20))) for _ in range(count)]


@pytest.fixture
def dying(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    from support.dying_texts import dying_text_compute

    from foreshape.apps.embedding import embedder

    notes = folder.parent / "notes"
    notes.mkdir()
    monkeypatch.setattr(embedder, "text_compute", partial(dying_text_compute, notes))
    yield notes
    shutil.rmtree(notes)


def embed(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["embed", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.stdout.split()), " ".join(done.stderr.split())


@pytest.mark.parametrize("count", [2000, pytest.param(100_000, marks=pytest.mark.long)])
def test_the_file_of_two_workers_of_which_one_dies_three_times_is_that_of_one_process(folder: Path, tmp_path: Path, dying: Path, count: int) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(some_texts(count))))
    code, _, err = embed(folder, texts, "--out", tmp_path / "one.npy")
    assert code == 0, err
    code, out, err = embed(folder, texts, "--out", tmp_path / "two.npy", "--ray", "auto", "--workers", 2, "--memory", "1GiB")
    assert code == 0 and f"{count} vectors of 16 columns" in out, err
    assert len([*dying.glob("death*")]) == 3
    one, two = np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy")
    assert one.shape == two.shape == (count, 16)
    np.testing.assert_allclose(two, one, rtol=0, atol=NEAR)


def test_rows_and_bits_stay_where_the_windows_of_texts_are_those_of_one_process(folder: Path, dying: Path) -> None:
    texts = some_texts(3 * ray_data.ROWS)
    blocks = [pyarrow.table({"id": [*range(n, n + ray_data.ROWS)], "body": texts[n : n + ray_data.ROWS]}) for n in range(0, len(texts), ray_data.ROWS)]
    embedder = fs.Embedder(folder, threads=1)
    found = embedder.encode(ray.data.from_arrow(blocks), on=TWO, column="body", keep=["id"], normalize=True).take_batch(len(texts) + 1)
    assert len([*dying.glob("death*")]) == 3
    assert [*found] == ["id", "vector"] and found["id"].tolist() == [*range(len(texts))]
    assert np.array_equal(found["vector"], embedder.encode(texts, normalize=True))


def test_a_folder_of_files_becomes_a_folder_with_all_columns(folder: Path, tmp_path: Path) -> None:
    texts, source = some_texts(300), tmp_path / "texts"
    source.mkdir()
    for part in range(3):
        rows = "".join(f'{n},"{texts[n]}"\n' for n in range(100 * part, 100 * part + 100))
        (source / f"{part}.csv").write_text("key,words\n" + rows)
    code, out, err = embed(folder, source, "--out", tmp_path / "out", "--ray", "auto", "--workers", 2, "--text-field", "words", "--dims", 4)
    assert code == 0 and "300 vectors of 4 columns" in out, err
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "out")
    order = np.argsort(table["key"].to_numpy())
    assert table.column_names == ["key", "words", "vector"] and sorted(table["key"].to_pylist()) == [*range(300)]
    vectors = np.array(table["vector"].to_pylist(), "float32")[order]
    want = fs.Embedder(folder).encode(texts, dims=4)
    np.testing.assert_allclose(vectors, want, rtol=0, atol=NEAR)
    code, _, err = embed(folder, source, "--out", tmp_path / "out", "--ray", "auto")
    assert code == 1 and "write a file .npy or a new folder" in err


def network() -> tuple[fs.Variable, fs.Variable]:
    x, words = layer.data("x", shape=["batch", 8]), layer.data("words", dims=1, data_type=fs.INT64, lod_level=1)
    embedded = layer.embedding(words, [50, 8])
    return layer.fc([x, layer.sequence_pool(embedded, "sum")], 5, "tanh"), embedded


def test_predictions_are_those_of_one_machine(tmp_path: Path) -> None:
    scores, embedded = network()
    fs.Executor(seed=1).run(fs.default_startup_program())
    chance = np.random.default_rng(0)
    x = chance.normal(size=(1000, 8)).astype("float32")
    words = [chance.integers(0, 50, chance.integers(1, 6)).tolist() for _ in x]
    want = fs.predict({"scores": scores, "rows": embedded}, {"x": x, "words": words})
    rows = [{"key": f"k{n}", "x": x[n], "words": words[n], "unused": "text"} for n in range(len(x))]
    dataset = ray.data.from_items(rows, override_num_blocks=7)
    found = fs.predict({"scores": scores, "rows": embedded}, dataset, on=TWO, keep=["key"], batch_size=64).take_all()
    assert [row["key"] for row in found] == [row["key"] for row in rows] and [*found[0]] == ["key", "scores", "rows"]
    np.testing.assert_allclose([row["scores"] for row in found], want["scores"], rtol=0, atol=NEAR)
    assert [len(row["rows"]) for row in found] == want["rows"].sequence_lengths[0]
    np.testing.assert_array_equal(
        np.concatenate([np.array(row["rows"].tolist() if hasattr(row["rows"], "tolist") else row["rows"]) for row in found]).reshape(want["rows"].data.shape),
        want["rows"].data,
    )
    alone = fs.predict(scores, dataset).take_batch(10)
    assert [*alone] == ["key", "x", "words", "unused", scores.name] and alone[scores.name].shape == (10, 5)


def test_each_worker_keeps_to_the_memory_of_the_executor() -> None:
    x = layer.data("x", shape=["batch", 1000])
    scores = layer.fc(x, 100)
    fs.Executor(seed=1).run(fs.default_startup_program())
    dataset = ray.data.from_arrow(pyarrow.table({"x": pyarrow.FixedShapeTensorArray.from_numpy_ndarray(np.ones((64, 1000), "float32"))}))
    small = fs.Executor(memory_limit="500KiB")
    with pytest.raises(fs.MemoryPlanError, match="memory_limit"):
        fs.predict(scores, dataset, batch_size=64, executor=small, on=RaySettings(1)).take_all()
    assert len(fs.predict(scores, dataset, batch_size=8, executor=small, on=RaySettings(1)).take_all()) == 64
    with pytest.raises(fs.ExecutionError, match="no machine of the cluster has room for a worker of 64 CPUs, 0 GPUs"):
        fs.predict(scores, dataset, on=RaySettings(1, cpus=64))


def test_each_worker_keeps_to_the_memory_of_the_embedder(folder: Path) -> None:
    embedder = fs.Embedder(folder, memory="300MiB")
    rows = ray.data.from_items([{"id": n, "text": text} for n, text in enumerate(["a ship", "a " * 9_000_000, "dawn"])])
    with pytest.raises(fs.MemoryPlanError, match=r"the text of the row \{'id': 1\} has 18,000,000 characters; .* memory=\"300 MiB\""):
        embedder.encode(rows, on=RaySettings(1)).take_all()
    assert len(embedder.encode(rows.filter(lambda row: row["id"] != 1), on=RaySettings(1, cpus=0.5)).take_all()) == 2
    with pytest.raises(fs.ExecutionError, match=r"no machine of the cluster has room for a worker of 1 CPUs, 0 GPUs, 4\.0 TiB"):
        fs.Embedder(folder, memory="4TiB").encode(rows)


def test_wrong_columns_and_settings_are_told_before_a_worker_starts(folder: Path) -> None:
    x = layer.data("x", shape=["batch", 2])
    scores = layer.fc(x, 3)
    fs.Executor(seed=1).run(fs.default_startup_program())
    embedder = fs.Embedder(folder)
    texts = ray.data.from_items([{"id": 1, "text": "a", "vector": 2.0}])
    numbers = ray.data.from_items([{"id": 1, "x": [1.0, 2.0]}])
    for call, words in [
        (lambda: embedder.encode(texts, column="body"), "no column 'body'; it has id, text, vector"),
        (lambda: embedder.encode(texts, column="id", keep=[]), "the column 'id' must be texts; it has the type int64"),
        (lambda: embedder.encode(texts), "has a column 'vector', so no result can have this name: keep="),
        (lambda: embedder.encode(texts, keep=["key"]), "no column 'key'"),
        (lambda: embedder.encode(texts, keep=[], dims=99), "dims must be from 1 to"),
        (lambda: embedder.encode(["a"], column="text"), "on, column and keep are for a data set of Ray"),
        (lambda: fs.predict(scores, texts), "no column 'x'; it has id, text, vector"),
        (lambda: fs.predict(scores, ray.data.from_items([{"x": "1"}])), r"'x' must be numbers, f32\[batch, 2\]; it has the type string"),
        (lambda: fs.predict({"id": scores}, numbers), "has a column 'id', so no result"),
        (lambda: fs.predict(scores, {"x": np.ones((2, 2), "float32")}, keep=["x"]), "on and keep are for a data set of Ray"),
        (lambda: fs.predict(scores, numbers, batch_size=0), "batch_size must be a whole number of at least 1"),
    ]:
        with pytest.raises(fs.ForeshapeError, match=words):
            call()


@pytest.mark.parametrize(("rows", "words"), [([[1.0, 2.0], None], "x"), ([[1.0, 2.0], [1.0]], "x is dense"), ([[1.0], [2.0]], "x")])
def test_a_bad_row_of_numbers_ends_the_run_once(rows: list[list[float] | None], words: str) -> None:
    x = layer.data("x", shape=["batch", 2])
    scores = layer.fc(x, 3)
    fs.Executor(seed=1).run(fs.default_startup_program())
    with pytest.raises(fs.ForeshapeError, match=words) as caught, plain_ray_errors():
        fs.predict(scores, ray.data.from_items([{"x": row} for row in rows]), on=RaySettings(1)).take_all()
    assert len(str(caught.value).splitlines()) < 6


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('{"id": 7, "text": null}\n{"id": 8, "text": "a"}\n', "the column 'text' must have a text in each row; seen None in the row {'id': 7}"),
        ('{"id": 7, "text": 3}\n', "the column 'text' must be texts; it has the type int64"),
        ('{"body": "a"}\n', "no column 'text'; it has body"),
        ('{"text": "a"}\n{"text": \n', "the run on Ray ended"),
    ],
)
def test_a_bad_line_of_texts_ends_the_command_in_a_line(folder: Path, tmp_path: Path, lines: str, words: str) -> None:
    texts = tmp_path / "t.jsonl"
    texts.write_text(lines)
    # the columns beside the texts are read for a folder of results
    code, _, err = embed(folder, texts, "--out", tmp_path / "out", "--ray", "auto", "--workers", 1)
    assert code == 1 and words in err and "Traceback" not in err, err


def test_rows_that_kill_each_worker_end_the_run_after_a_few_tries(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support.dying_texts import deadly_text_compute

    from foreshape.apps.embedding import embedder

    monkeypatch.setattr(embedder, "text_compute", partial(deadly_text_compute, tmp_path))
    with pytest.raises(fs.ExecutionError, match="the run on Ray ended: a worker died 5 times at the same rows"), plain_ray_errors():
        fs.Embedder(folder).encode(ray.data.from_items([{"text": "a"}]), on=RaySettings(1)).take_all()
    assert len([*tmp_path.iterdir()]) == 5


def test_other_files_are_refused(folder: Path, tmp_path: Path) -> None:
    for names, words in [(["a.xml"], "are a file .parquet"), ([], "are a file .parquet")]:
        place = tmp_path / "".join(["kinds", *names])
        place.mkdir()
        for name in names:
            (place / name).write_text("a")
        code, _, err = embed(folder, place, "--out", tmp_path / "a.npy", "--ray", "auto")
        assert code == 1 and words in err, err
    (tmp_path / "a.txt").write_text("a")
    code, _, err = embed(folder, tmp_path / "a.txt", "--out", tmp_path / "a.csv", "--ray", "auto")
    assert code == 1 and "write a file .npy or a new folder" in err, err
    assert embed(folder, tmp_path / "a.txt", "--out", tmp_path / "a.npy", "--workers", 2)[0] == 2


def test_a_model_must_be_where_all_machines_see_it(folder: Path, tmp_path: Path) -> None:
    embedder = fs.Embedder(folder)
    embedder.path = tmp_path / "other"  # as another machine may have it
    with pytest.raises(fs.FormatError, match="other"):
        embedder.encode(ray.data.from_items([{"text": "a"}]), on=RaySettings(1)).take_all()
