"""Workers as torchrun starts them, a client as a user has it, and what each says when another dies."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.waiting import until

import foreshape as fs
from foreshape import layer

SOURCE = str(Path(fs.__file__).parents[1])
WITHIN = 150.0
"""Seconds for what takes ten where nothing else runs."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Process:
    """A process that is ended at the end, with what it has written to a file."""

    def __init__(self, log: Path, *args: str, **variables: str) -> None:
        self.log, self.meets_at = log, 0
        environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **variables}
        with log.open("wb") as file:
            self.process = subprocess.Popen([sys.executable, *args], stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def sees(self, pattern: str) -> re.Match[str]:
        """Wait until the process has written something."""
        until(lambda: re.search(pattern, self.text) or self.process.poll() is not None, lambda: self.text)
        found = re.search(pattern, self.text)
        assert found is not None, self.text
        return found

    def end(self) -> int:
        return self.process.wait(WITHIN)


@contextmanager
def processes(ranks: int, folder: Path, *options: str, folders: list[Path] | None = None) -> Iterator[list[Process]]:
    """Ranks of a worker, as torchrun starts them, each in a folder of its own where several are given."""
    port = str(free_port())
    started = [
        Process(folder / f"rank{r}.log", "-m", "foreshape", "worker", "--folder", str(folders[r] if folders else folder), *options,
                RANK=str(r), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        for r in range(ranks)
    ]  # fmt: skip
    started[0].meets_at = int(port)
    try:
        yield started
    finally:
        for one in started:
            if one.process.poll() is None:
                os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait(10)


def described(folder: Path) -> tuple[fs.Variable, dict[str, Any], dict[str, str]]:
    x, y = layer.data("x", input_size=8), layer.data("y", dims=1, data_type=fs.INT64)
    cost = layer.softmax_with_cross_entropy(layer.fc(layer.fc(x, 16, "relu"), 4), y)
    fs.default_startup_program().random_seed = 3
    r = np.random.RandomState(3)
    data = {"x": r.rand(21, 8).astype(np.float32), "y": r.randint(0, 4, (21, 1))}
    for name, array in data.items():
        np.save(folder / f"{name}.npy", array)
    return cost, data, {name: f"{name}.npy" for name in data}


@pytest.mark.long
def test_torchrun_starts_workers_and_a_client_sends_them_a_program(tmp_path: Path) -> None:
    cost, data, files = described(tmp_path)
    port = free_port()
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", f"--master-port={free_port()}", "-m", "foreshape", "worker"]
    started = Process(tmp_path / "log", *command, "--listen", f"127.0.0.1:{port}", "--folder", str(tmp_path))
    try:
        scope, here = fs.Scope(), fs.Scope()
        sent = fs.send(
            cost, files, to=f"127.0.0.1:{port}", optimizer=fs.optimizer.Adam(0.05), epochs=2, batch_size=8, scope=scope, patience=WITHIN, progress=False,
            ranks=fs.shard_optimizer(), save="values",
        )  # fmt: skip
        assert started.end() == 0, started.text
    finally:
        if started.process.poll() is None:
            os.killpg(started.process.pid, signal.SIGKILL)
    history = fs.train(cost, data, epochs=2, batch_size=8, scope=here, progress=False)
    assert sent.history is not None and [r.rank for r in sent.replies] == [0, 1] and {r.share for r in sent.replies} == {4}
    np.testing.assert_allclose(sent.history.losses, history.losses, rtol=1e-5)
    for name in scope.names():
        np.testing.assert_allclose(scope.get(name), here.get(name), rtol=1e-4, atol=1e-6)


STRATEGIES = {
    "shard_parameters": fs.shard_parameters,
    "split_tables": fs.split_tables,
    "split_tables and shard_parameters": lambda: fs.split_tables(fs.shard_parameters()),
    "split_layers": fs.split_layers,
    "split_layers in groups of 1, and shard_optimizer": lambda: fs.split_layers(fs.shard_optimizer(), degree=1),
    "split_layers and shard_parameters": lambda: fs.split_layers(fs.shard_parameters()),
}


@pytest.mark.long
def test_every_strategy_trains_what_one_rank_trains_and_gives_whole_values_back(tmp_path: Path) -> None:
    """One job after the other, each begun with values that rank 0 alone reads, those of the optimizer among them."""
    r = np.random.RandomState(4)
    given = {"ids": r.randint(0, 40, (21, 3)), "y": r.randint(0, 6, (21, 1))}
    for name, array in given.items():
        np.save(tmp_path / f"{name}.npy", array)
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 8, "progress": False}

    def network() -> tuple[fs.Variable, fs.Variable]:
        ids, y = layer.data("ids", shape=[-1, 3], dtype="int64"), layer.data("y", dims=1, data_type=fs.INT64)
        found = layer.reduce_mean(layer.embedding(ids, size=[40, 8], is_sparse=True), 1)
        out = layer.fc(layer.fc(found, 12, "relu", split="columns"), 6, split="rows")
        return ids, layer.softmax_with_cross_entropy(out, y)

    here = fs.Scope()
    with fs.program_guard(fs.Program(), fs.Program()):
        _, cost = network()
        fs.default_startup_program().random_seed = 3
        history = fs.train(cost, given, optimizer=fs.optimizer.Adam(0.05), scope=(first := fs.Scope()), **{**settings, "epochs": 1})
        fs.interop.save_safetensors(tmp_path / "begin", first)
        here.fill({name: first.tensor(name).clone() for name in first.names()})
        history = fs.train(cost, given, scope=here, **settings)
    with processes(2, tmp_path, "--listen", "127.0.0.1:0", "--keep", "--wait", "30") as ranks:
        address = ranks[0].sees(r"waiting for a job at (\S+),")[1]
        for name, strategy in STRATEGIES.items():
            with fs.program_guard(fs.Program(), fs.Program()):
                ids, cost = network()
                scope = fs.Scope()
                sent = fs.send(
                    cost, {n: f"{n}.npy" for n in given}, to=address, optimizer=fs.optimizer.Adam(0.05), ranks=strategy(), scope=scope, save="values",
                    model=("net", [ids], [cost.block.var("fc_1.tmp_1")]), values="begin", patience=WITHIN, **settings,
                )  # fmt: skip
            assert sent.history is not None
            np.testing.assert_allclose(sent.history.losses, history.losses, rtol=1e-5, err_msg=name)
            saved, opened = fs.Scope(), fs.Scope()
            fs.interop.load_safetensors(tmp_path / "values", saved)
            fs.load_inference_model(tmp_path / "net", scope=opened)
            assert set(scope.names()) == set(saved.names()) == {n for n in here.names() if n.endswith(("w_0", "b_0"))}, name
            for value in scope.names():
                np.testing.assert_allclose(scope.get(value), here.get(value), rtol=1e-4, atol=1e-6, err_msg=f"{name}: {value}")
                np.testing.assert_array_equal(saved.get(value), scope.get(value))
                np.testing.assert_array_equal(opened.get(value), scope.get(value))
        assert [one.end() for one in ranks] == [0, 0], [one.text for one in ranks]


@pytest.mark.long
def test_a_rank_that_is_killed_is_named_to_the_client_and_by_the_others(tmp_path: Path) -> None:
    cost, _, files = described(tmp_path)
    with processes(3, tmp_path, "--listen", "127.0.0.1:0", "--patience", "8") as ranks:
        address = ranks[0].sees(r"3 ranks waiting for a job at (\S+),")[1]
        for port in (ranks[0].meets_at, int(address.rpartition(":")[2])):  # neither store is at another address of the machine
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.2", port), timeout=5).close()
        sent = fs.send(cost, files, to=address, epochs=10_000_000, batch_size=9, wait=False, progress=False, patience=60)
        time.sleep(1.0)
        ranks[2].process.kill()
        with pytest.raises(fs.ExecutionError, match=r"have not done the job: .*rank 2 is gone: its process has ended; it was in step"):
            sent.wait()
        assert [one.end() for one in ranks] == [1, 1, -signal.SIGKILL]
        assert "rank 2 is gone" in ranks[0].text and "rank 2 is gone" in ranks[1].text


@pytest.mark.long
def test_a_worker_that_is_killed_is_missed_by_the_client_and_by_its_ranks(tmp_path: Path) -> None:
    cost, _, files = described(tmp_path)
    with processes(2, tmp_path, "--listen", "127.0.0.1:0", "--patience", "8") as ranks:
        address = ranks[0].sees(r"waiting for a job at (\S+),")[1]
        sent = fs.send(cost, files, to=address, epochs=10_000_000, wait=False, progress=False, patience=10)
        ranks[0].process.kill()
        with pytest.raises(fs.ExecutionError, match=rf"{address}: the other side is gone"):
            sent.wait()
        assert ranks[1].end() == 1 and "the store that the ranks meet at" in ranks[1].text and "Traceback" not in ranks[1].text


@pytest.mark.long
def test_ranks_with_other_data_are_refused_before_the_first_step_and_take_the_next_job(tmp_path: Path) -> None:
    folders = [tmp_path / f"machine{r}" for r in range(2)]
    for folder in folders:
        folder.mkdir()
        with fs.program_guard(fs.Program(), fs.Program()):
            cost, data, files = described(folder)
            same, other = (fs.job(cost, {**files, "x": name}) for name in ("x.npy", "other.npy"))
    np.save(folders[0] / "other.npy", data["x"])
    with processes(2, tmp_path, "--listen", "127.0.0.1:0", "--keep", "--wait", "15", folders=folders) as ranks:
        address = ranks[0].sees(r"waiting for a job at (\S+),")[1]
        with pytest.raises(fs.ExecutionError, match=r"have not done the job: rank 1: FormatError: .*other.npy' cannot be read"):
            fs.send(other, to=address, progress=False, patience=60)
        np.save(folders[1] / "other.npy", data["x"] + 1)
        with pytest.raises(fs.ExecutionError, match=r"the ranks do not have the same: the data differs: rank 0 \| rank 1"):
            fs.send(other, to=address, progress=False, patience=60)
        sent = fs.send(same, to=address, progress=False, patience=60)
        assert sent.history is not None and sent.history.steps == 1
        assert [one.end() for one in ranks] == [0, 0], [one.text for one in ranks]


@pytest.mark.long
def test_a_port_that_is_in_use_ends_all_ranks(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with processes(2, tmp_path, "--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--patience", "8") as ranks:
            assert ranks[0].end() == 1 and "the port is in use" in ranks[0].text and "Traceback" not in ranks[0].text
            ranks[1].end()
            assert "Traceback" not in ranks[1].text
