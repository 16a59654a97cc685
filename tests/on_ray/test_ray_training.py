"""Training on Ray: what ranks on a cluster train is what one process trains, whatever way the data take."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_cases import described

import foreshape as fs
from foreshape import layer
from foreshape.apps.workers import client

pytestmark = pytest.mark.ray


def test_one_rank_on_ray_is_one_process_bit_for_bit_and_a_second_call_goes_on(address: str) -> None:
    cost, data = described()
    adam, here, there, told = fs.optimizer.Adam(0.05), fs.Scope(), fs.Scope(), list[Any]()
    for epochs in (2, 1):
        settings: dict[str, Any] = {"optimizer": adam, "epochs": epochs, "batch_size": 6, "metrics": {"cost": cost}, "validation": 0.2, "progress": False}
        history = fs.train(cost, data, scope=here, **settings)
        on_ray = fs.train(cost, data, scope=there, on=fs.ray_cluster(1), callbacks=[lambda epoch, row: told.append(epoch)], **settings)
        assert on_ray.losses == history.losses
        for name in ("loss", "cost", "validation loss"):
            assert on_ray.column(name) == history.column(name)
    assert told == [1, 2, 1]
    for name in there.names():
        assert np.array_equal(there.get(name), here.get(name)), name


@pytest.mark.quick_cases("data_parallel")
@pytest.mark.parametrize("strategy", ["data_parallel", "shard_parameters", "split_tables"])
def test_two_ranks_on_ray_are_one_process_but_for_rounding(strategy: str, address: str) -> None:
    cost, data = described(dropout=0)
    scopes = [fs.Scope(), fs.Scope()]
    for scope in scopes:
        fs.Executor(seed=5).run(fs.default_startup_program(), scope=scope)
    settings: dict[str, Any] = {"optimizer": fs.optimizer.Adam(0.05), "epochs": 3, "batch_size": 6, "progress": False}
    history = fs.train(cost, data, scope=scopes[0], **settings)
    on_ray = fs.train(cost, data, scope=scopes[1], on=fs.ray_cluster(2), ranks=getattr(fs, strategy)(), **settings)
    np.testing.assert_allclose(on_ray.losses, history.losses, rtol=1e-6)
    for name in scopes[1].names():
        np.testing.assert_allclose(scopes[1].get(name), scopes[0].get(name), rtol=1e-4, atol=1e-6, err_msg=name)


def saved(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The files of the data."""
    for name, array in {"x": data["x"], "y": data["y"], "words": data["words"].data, "lengths": data["words"].sequence_lengths[0]}.items():
        np.save(folder / f"{name}.npy", array)
    return {"x": "x.npy", "y": "y.npy", "words": ("words.npy", "lengths.npy")}


def test_a_job_with_files_is_sent(address: str, tmp_path: Path) -> None:
    cost, data = described()
    x, predicted = cost.block.var("x"), cost.block.var("fc_0.tmp_0")
    job = fs.job(
        cost, saved(tmp_path, data), optimizer=fs.optimizer.Adam(0.05), epochs=3, batch_size=6, save="out/values.safetensors",
        model=("out/net", [x], [predicted]), checkpoint="runs",
    )  # fmt: skip
    scope, here = fs.Scope(), fs.Scope()
    sent = fs.send(job, to=fs.ray_cluster(1, folder=tmp_path), scope=scope, progress=False)
    history = fs.train(cost, data, optimizer=fs.optimizer.Adam(0.05), epochs=3, batch_size=6, scope=here, progress=False)
    assert sent.history is not None and sent.history.losses == history.losses
    assert scope.names() == ["embedding_0.w_0", "fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]  # and no state of the optimizer
    for name in scope.names():
        assert np.array_equal(scope.get(name), here.get(name))
    assert sent.files == [str(tmp_path / "out" / n) for n in ("values.safetensors", "net.pdmodel", "net.pdiparams")]
    assert [r.examples for r in sent.replies] == [20] and (tmp_path / "runs").is_dir()


def test_a_run_is_stopped_by_its_client(address: str, tmp_path: Path) -> None:
    cost, data = described()
    job = fs.job(cost, saved(tmp_path, data), epochs=100_000, batch_size=1)
    sent = fs.send(job, to=fs.ray_cluster(1, folder=tmp_path), progress=False, wait=False)
    sent.stop()
    history = sent.wait()
    assert 1 <= len(history.epochs) < 100_000 and history.steps == 20 * len(history.epochs) and sent.wait() is history


def test_what_a_rank_refuses_is_told(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cost, data = described()
    job = fs.job(cost, saved(tmp_path, data))
    cluster = fs.ray_cluster(1, folder=tmp_path)
    with pytest.raises(fs.ExecutionError, match=r"the ranks refuse the job: rank 0: FormatError: .* leads out of"):
        fs.send(dataclasses.replace(job, save_to="../v"), to=cluster, progress=False)
    (tmp_path / "x.npy").unlink()
    with pytest.raises(fs.ExecutionError, match="No such file"):
        fs.send(job, to=cluster, progress=False)
    np.save(tmp_path / "x.npy", np.full((20, 8), np.nan, np.float32))
    with pytest.raises(fs.ExecutionError, match=r"the loss \S+ is nan at step 1"):
        fs.send(job, to=cluster, progress=False)
    with pytest.raises(fs.ExecutionError, match="was not agreed to"):
        fs.send(job, to=cluster, progress=False, agree=lambda replies: False)
    monkeypatch.setattr(type(job), "to_bytes", lambda self: b"not a job")
    with pytest.raises(fs.ExecutionError, match="9 bytes that do not begin as a job does"):
        fs.send(job, to=cluster, progress=False)


def test_what_does_not_fit_is_not_begun(address: str, tmp_path: Path) -> None:
    x = layer.data("x", input_size=1_000_000)
    cost = layer.mean(layer.fc(x, 1_000_000))  # four terabytes, of which nothing is made
    np.save(tmp_path / "x.npy", np.zeros((2, 1_000_000), np.float32))
    with pytest.raises(fs.MemoryPlanError, match=r"rank 0 on \S+: .* TiB are needed, and .* are there"):
        fs.send(fs.job(cost, {"x": "x.npy"}), to=fs.ray_cluster(1, folder=tmp_path), progress=False)
    with pytest.raises(fs.ExecutionError, match=r"there is no room for 3 ranks of 1 processors each within 0.1 s; the machines have room for 2"):
        fs.send(fs.job(cost, {"x": "x.npy"}), to=fs.ray_cluster(3, folder=tmp_path, patience=0.1), progress=False)


def test_data_larger_than_the_object_store_go_to_disk_or_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def full(value: Any) -> Any:
        raise ray.exceptions.ObjectStoreFullError("no room for 10 bytes")

    cost, data = described()
    monkeypatch.setattr(ray, "put", full)
    with pytest.raises(fs.ExecutionError, match="do not fit into the object store of Ray: give paths of files, or a larger store"):
        fs.train(cost, data, on=fs.ray_cluster(1), progress=False)


def test_what_cannot_be_sent_is_refused(address: str) -> None:
    cost, data = described()
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"augment": lambda batch, random: batch}, "augment= cannot be sent"),
        ({"executor": fs.Executor()}, "executor= cannot be sent"),
        ({"callbacks": [fs.callbacks.EarlyStopping(patience=1)]}, "a callback is a function"),
        ({"precision": "fp16"}, "take 'bf16'"),
    ]
    for settings, words in refusals:
        with pytest.raises(fs.SchemaError, match=words):
            fs.train(cost, data, on=fs.ray_cluster(1), progress=False, **settings)
    with pytest.raises(fs.FeedError, match="data are arrays or a table"):
        fs.train(cost, [data], on=fs.ray_cluster(1), progress=False)


def test_shards_of_a_parquet_file_of_ray_data(address: str, tmp_path: Path) -> None:
    """A batch of all rows: the shards of two ranks are the whole, whatever rows each has."""
    import pandas
    import ray

    cost, data = described(dropout=0)
    offsets = np.concatenate([[0], np.cumsum(data["words"].sequence_lengths[0])])
    rows = {"x": list(data["x"]), "y": data["y"][:, 0], "words": [data["words"].data[a:b] for a, b in pairwise(offsets)]}
    pandas.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 20, "progress": False, "optimizer": fs.optimizer.SGD(0.1)}
    scopes = [fs.Scope(), fs.Scope()]
    history = fs.train(cost, data, scope=scopes[0], **settings)
    dataset = ray.data.read_parquet(str(tmp_path / "rows.parquet"))
    on_ray = fs.train(cost, dataset, scope=scopes[1], on=fs.ray_cluster(2, cpus=0.5), **settings)
    np.testing.assert_allclose(on_ray.losses, history.losses, rtol=1e-6)
    assert on_ray.steps == 3


def test_the_client_asks_for_the_answers_of_a_living_controller(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    cost, data = described()
    begin = client.Sent.begin

    def lost(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        ray.kill(self._controller)

    monkeypatch.setattr(client.Sent, "begin", lost)
    with pytest.raises(fs.ExecutionError, match="the controller of the run is lost"):
        fs.train(cost, data, on=fs.ray_cluster(1), progress=False)
