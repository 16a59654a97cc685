"""What dies on Ray: a rank, a machine, the client; and what goes on."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_cases import described, no_ranks_within, rank_processes, script, seen
from support.waiting import until

import foreshape as fs

pytestmark = pytest.mark.ray


class Killer(threading.Thread):
    """Kills a random rank whenever some more checkpoints are there, so many times.

    Args:
        newest: the number of the newest checkpoint's step, 0 without one.
    """

    def __init__(self, newest: Callable[[], int], times: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.newest, self.times, self.chance, self.killed = newest, times, random.Random(seed), 0
        self.start()

    def run(self) -> None:
        last = -1
        while self.killed < self.times:
            reached = self.newest()
            ranks = rank_processes(b"ray::Rank.train")
            if reached >= last + self.chance.choice([1, 7, 15]) and len(ranks) == 2:
                time.sleep(self.chance.random() / 20)
                os.kill(self.chance.choice(ranks), signal.SIGKILL)
                self.killed, last = self.killed + 1, reached
                until(lambda: len(rank_processes(b"ray::Rank.train")) < 2)
            time.sleep(0.01)


class Told:
    """A console that keeps what is printed."""

    is_terminal = False

    def __init__(self) -> None:
        self.text = ""

    def print(self, text: Any, **settings: Any) -> None:
        self.text += f"{text}\n"


@pytest.mark.quick_cases("3 kills, 1")
@pytest.mark.parametrize(("times", "seed"), [pytest.param(n, s, id=f"{n} kills, {s}") for n, s in [(3, 1), (5, 2), (6, 3), (6, 4)]])
def test_killed_ranks_begin_again_and_end_bit_for_bit(times: int, seed: int, address: str, tmp_path: Path) -> None:
    """Twenty kills in all, the last ones with the checkpoints in a store."""
    cost, data = described()
    adam, scopes, told = fs.optimizer.Adam(0.05), [fs.Scope(), fs.Scope()], Told()
    settings: dict[str, Any] = {"optimizer": adam, "epochs": 60, "batch_size": 2}
    whole = fs.train(cost, data, scope=scopes[0], on=fs.ray_cluster(2), progress=False, **settings)
    stored = seed % 2 == 1
    checkpoint = fs.Checkpoint("runs" if stored else tmp_path / "runs", every=7)

    def newest() -> int:
        return max((int(f.stem[5:]) for f in (tmp_path / "runs").glob("step-*.safetensors")), default=0)

    killer = Killer(newest, times, seed)
    cluster = fs.ray_cluster(2, restarts=times, storage=f"file://{tmp_path}" if stored else None)
    history = fs.train(cost, data, scope=scopes[1], on=cluster, checkpoint=checkpoint, console=told, **settings)
    assert killer.killed == times and told.text.count("2 ranks begin again, of 2") == times, told.text
    assert "is gone" in told.text and "goes on after batch" in told.text
    assert history.losses == whole.losses
    for name in scopes[0].names():
        assert np.array_equal(scopes[0].get(name), scopes[1].get(name)), name


def test_one_loss_too_many_ends_the_training_and_says_so(address: str) -> None:
    cost, data = described()
    killer = Killer(lambda: 0, 1, 5)
    with pytest.raises(fs.RankError, match=r"rank \d is gone: .*; no restart is left of 0"):
        fs.train(cost, data, epochs=100_000, on=fs.ray_cluster(2, restarts=0), progress=False)
    assert killer.killed == 1 and no_ranks_within(20)


FEWER = """
from ray.cluster_utils import Cluster
import ray, threading, os
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
other = cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
def lose():
    while not os.path.isdir(sys.argv[1]) or len(os.listdir(sys.argv[1])) < 1:
        time.sleep(0.05)
    cluster.remove_node(other, allow_graceful=False)
threading.Thread(target=lose, daemon=True).start()
history = fs.train(cost, data, epochs=150, batch_size=2, optimizer=fs.optimizer.SGD(0.01), checkpoint=fs.Checkpoint(sys.argv[1], every=10),
                   on=fs.ray_cluster(2, patience=1))
print("steps", history.steps)
os._exit(0)
"""


def test_a_lost_machine_leaves_fewer_ranks(tmp_path: Path) -> None:
    process = script(FEWER.replace("sys.argv[1]", repr(str(tmp_path / "runs"))))
    out = seen(process, "steps ")
    process.wait(30)
    assert "1 ranks begin again, of 2" in out and "resumed after step" in out and "steps 1500" in out, out


CLIENT = """
print("begins", flush=True)
fs.train(cost, data, epochs={epochs}, batch_size=2, checkpoint=fs.Checkpoint({folder!r}, every=50), on=fs.ray_cluster(2, address={address!r}, keep={keep}))
"""


def client(address: str, folder: Path, epochs: int, keep: bool) -> Any:
    process = script(CLIENT.format(epochs=epochs, folder=str(folder), address=address, keep=keep))
    seen(process, "epoch 1/")
    assert len(rank_processes()) == 2
    return process


def test_ranks_end_with_a_killed_client(address: str, tmp_path: Path) -> None:
    process = client(address, tmp_path / "runs", 100_000, False)
    process.kill()
    process.wait()
    assert no_ranks_within(30)


def test_ranks_go_on_without_a_killed_client_that_keeps_them(address: str, tmp_path: Path) -> None:
    process = client(address, tmp_path / "runs", 60, True)
    process.kill()
    process.wait()
    until(lambda: (tmp_path / "runs" / "step-000000600.safetensors").exists())
    assert no_ranks_within(30)


def test_an_interrupt_ends_the_ranks(address: str, tmp_path: Path) -> None:
    process = client(address, tmp_path / "runs", 100_000, True)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode != 0 and "interrupted" in out and "Traceback" not in out, out
    assert no_ranks_within(10)
