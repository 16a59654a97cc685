"""What goes wrong on one rank is said on every rank that lives: which rank, where it was, and why; and none of them hangs."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import launch_ranks as launch

import foreshape as fs
from foreshape.apps.training.checkpoint import container
from foreshape.machine.communication.join import backend, gpus_here, join

SCRIPT = Path(__file__).parents[1] / "support" / "rank_mishaps.py"
long = pytest.mark.long
PLAIN = "data_parallel"

GONE = r"rank {n} is gone(: its process has ended; it was| or has stopped: no sign of life since it was) (before the first step|in step \d+)"
HOLDER = "the store that the ranks meet at does not answer: rank 0, which holds it, is gone or has stopped"
OTHERS = r"the ranks are at different things: .*rank {n}: no more data"


@pytest.mark.parametrize(
    ("what", "rank", "says", "strategy"),
    [
        pytest.param("is killed in a collective", 1, GONE, PLAIN, marks=long),
        pytest.param("is killed in the forward pass", 1, GONE, PLAIN, marks=long),
        pytest.param("is killed in the forward pass", 0, HOLDER, PLAIN, marks=long),
        pytest.param("is killed while it writes", 0, HOLDER, PLAIN, marks=long),
        pytest.param("is stopped", 1, GONE, PLAIN, marks=long),
        pytest.param("is stopped", 0, HOLDER, PLAIN, marks=long),
        pytest.param("stalls in its data", 1, r"rank 1 lives, and has not come for 4 s; it is in step 3, at rank_mishaps\.py:{line}", PLAIN, marks=long),
        pytest.param("stalls in the forward pass", 0, r"rank 0 lives, and has not come for 4 s; it is in step 4, at rank_mishaps\.py:\d+", PLAIN, marks=long),
        pytest.param("is killed in a collective", 1, GONE, "shard_parameters", marks=long),
        pytest.param("is killed while it writes", 1, GONE, "shard_optimizer", marks=long),
        pytest.param(
            "stalls in the forward pass", 1, r"rank 1 lives, and has not come for 4 s; it is in step 4, at rank_mishaps\.py:\d+", "shard_parameters", marks=long
        ),
    ],
)
def test_who_does_not_come_is_named(what: str, rank: int, says: str, strategy: str, tmp_path: Path) -> None:
    line = SCRIPT.read_text().split("# the line at which it stalls")[0].count("\n") + 1
    with launch.started(3, SCRIPT, what, rank, tmp_path, strategy) as run:
        living = [n for n in range(3) if n != rank]
        assert run.wait(living) == [3, 3], run.words()
        for n in living:
            words = run.ranks[n].words
            assert re.search(rf"^STOPPED RankError: rank {n}: .*" + says.format(n=rank, line=line), words), words
            assert "it was found by" in words
            assert "rank_mishaps.py:" in words
            assert "TCPStore" not in words, "torch's own words of the store are noise"
    for path in tmp_path.rglob("*.safetensors"):
        container.read(path)  # what a rank leaves is whole


@pytest.mark.parametrize(
    ("what", "rank", "own", "others", "strategy"),
    [
        ("has other dims", 1, "FeedError: extra must have 2 dims", "rank 1 stopped in step 4: FeedError: extra must have 2 dims", PLAIN),
        pytest.param("has more columns", 1, "the ranks are at different things: rank 0: step 4 with .*9.*rank 1: step 4 with .*8", None, PLAIN, marks=long),
        pytest.param(
            "has another element type", 0, r"the ranks are at different things: rank 0: .* extra float64\[.*rank 1: .* extra float32\[", None, PLAIN, marks=long
        ),
        pytest.param("has whole numbers", 0, r"FeedError: extra must be fp32", "rank 0 stopped in step 4: FeedError: extra must be fp32", PLAIN, marks=long),
        pytest.param("has no more data", 1, OTHERS, None, PLAIN, marks=long),
        pytest.param("has no more data", 0, OTHERS, None, PLAIN, marks=long),
        pytest.param("has another program", 1, "do not run the same program with the same versions .* alike are ranks 0 | 1", None, PLAIN, marks=long),
        pytest.param("has another version", 1, "do not run the same program with the same versions .* alike are ranks 0 | 1", None, PLAIN, marks=long),
        pytest.param("has no number", 1, "ExecutionError: the loss .* is nan on rank 1 at step 4", None, PLAIN, marks=long),
        pytest.param(
            "has a full disk", 0, "FormatError: .*No space left on device", "rank 0 stopped in step 8: FormatError: .*No space left", PLAIN, marks=long
        ),
        pytest.param("raises", 1, "KeyError: .what the user's code says", "rank 1 stopped in step 3: KeyError: .what the user's code says", PLAIN, marks=long),
        pytest.param(
            "has more columns", 1, "the ranks are at different things: rank 0: step 4 with .*9.*rank 1: step 4 with .*8", None, "split_layers", marks=long
        ),
        pytest.param("has no more data", 0, OTHERS, None, "shard_parameters", marks=long),
        pytest.param("has no number", 1, "ExecutionError: the loss .* is nan on rank 1 at step 4", None, "shard_optimizer", marks=long),
        pytest.param(
            "has a full disk", 1, "FormatError: .*No space left on device", "rank 1 stopped in step 8: FormatError: .*No space", "shard_optimizer", marks=long
        ),
    ],
)
def test_what_stops_a_rank_stops_all_and_is_said_on_each(what: str, rank: int, own: str, others: str | None, strategy: str, tmp_path: Path) -> None:
    with launch.started(2, SCRIPT, what, rank, tmp_path, strategy, prepared=True) as run:
        codes = run.wait()
        assert codes[1 - rank] == 3 and codes[rank] in (1, 3), run.words()
        for n in range(2):
            words, want = run.ranks[n].words, own if n == rank or others is None else others
            assert re.search(want.format(n=rank), words), words
            assert codes[n] != 3 or "KEPT finite" in words, words  # what is no error of ours ends the script
    assert not list(tmp_path.rglob(".writing*")), "no partial file"
    for path in tmp_path.rglob("*.safetensors"):
        container.read(path)


@long
@pytest.mark.parametrize(
    ("what", "rank", "strategy"),
    [
        ("is killed in a collective", 1, PLAIN), ("is killed while it writes", 0, PLAIN), ("is killed in the forward pass", 0, PLAIN),
        ("is killed while it writes", 1, "shard_parameters"), ("is killed in a collective", 0, "split_layers"),
    ],
)  # fmt: skip
def test_a_restart_goes_on_with_the_same_bits(what: str, rank: int, strategy: str, tmp_path: Path) -> None:
    """torchrun starts all ranks again, and they go on from the last checkpoint."""

    def ended(what: str) -> set[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2", "--master-addr", "127.0.0.1", "--master-port",
                   str(launch.free_port()), str(SCRIPT), what, str(rank), str(tmp_path / what.replace(" ", "-")), strategy]  # fmt: skip
        run = subprocess.run(command, capture_output=True, text=True, timeout=launch.SAFETY, env=launch.variables())
        assert run.returncode == 0, run.stdout + run.stderr
        found = re.findall(r"ENDED rank (\d) (\w+) (\S+)", run.stdout)
        assert sorted(r for r, _, _ in found) == ["0", "1"], run.stdout + run.stderr
        return {f"{digits} {loss}" for _, digits, loss in found}

    plain = ended("nothing")
    assert len(plain) == 1
    assert ended(what) == plain


@long
def test_a_rank_that_wakes_after_a_stall_names_itself(tmp_path: Path) -> None:
    with launch.started(2, SCRIPT, "wakes after a stall", 1, tmp_path, PLAIN) as run:
        assert run.wait() == [3, 3], run.words()
        late = r"RankError: rank 1: this rank itself was late: it stood still for 1\d s, and the others wait 4 s.*it was in step 4"
        assert re.search(late, run.ranks[1].words), run.words()
        assert re.search(r"RankError: rank 0: rank 1 lives, and has not come for 4 s", run.ranks[0].words), run.words()


@long
def test_a_rank_that_a_launcher_ends_says_whom_it_misses(tmp_path: Path) -> None:
    """torchrun ends the others a moment after one has died."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port",
               str(launch.free_port()), str(SCRIPT), "is killed in the forward pass", "1", str(tmp_path), PLAIN]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=launch.SAFETY, env=launch.variables())
    assert run.returncode == 1
    told = r"rank 0( of 2 was told to end \(SIGTERM\) [^;]*;|:) rank 1 is gone: its process has ended; it was (before the first step|in step \d+)"
    assert re.search(told, run.stdout + run.stderr), run.stdout + run.stderr


@long
def test_what_accepts_and_stays_silent_is_no_store() -> None:
    """In a process of its own, since torch's thread that waits there is left behind."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code = "from foreshape.machine.communication.join import join\ntry: join(0.2)\nexcept Exception as error: print(type(error).__name__, error)"
        settings = launch.variables() | environment(silent.getsockname()[1], RANK="1")
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=launch.SAFETY, env=settings)
    told = r"^ExecutionError rank 1 of 2: 127.0.0.1:\d+ accepts connections, and has not answered .*: what listens there is no store"
    assert re.match(told, run.stdout), run.stdout + run.stderr


@long
@pytest.mark.parametrize("strategy", [PLAIN, "shard_parameters", "split_layers"])
def test_nothing_that_comes_from_a_rank_is_unpickled(strategy: str, tmp_path: Path) -> None:
    for rank in range(2):  # of whose unpickling each use is an error
        words = launch.run(2, SCRIPT, "unpickles nothing", rank, tmp_path / str(rank), strategy)
        assert all("ENDED rank" in one for one in words)


@pytest.mark.parametrize(
    ("seen", "nccl"),
    [
        ([["a", "b"], ["b", "a"]], True), ([["a"], ["b"], ["c"]], True), ([["a", "b"], ["c", "d"], ["a", "b"], ["c", "d"]], True),
        ([["a"], ["a"]], False), ([["a", "b"], ["a", "b"], ["c"], ["c"]], False), ([["a"], []], False), ([[], []], False),
    ],
)  # fmt: skip
def test_what_gpus_have_goes_by_nccl_where_each_rank_has_one(seen: list[list[str]], nccl: bool) -> None:
    assert backend(seen) == ("cpu:gloo,cuda:nccl" if nccl else "gloo")


@pytest.mark.parametrize(("gpus", "nccl"), [(True, False), (False, True)])
def test_without_gpus_or_nccl_there_are_none_to_send_between(gpus: bool, nccl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
    assert gpus_here() == []


def environment(port: int, **changed: str) -> dict[str, str]:
    return {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **changed}


@pytest.mark.long_cases("changed2-says2", "changed1-rank 0 of 4 has waited 0.5 s .*: not there are ranks 1, 2, 3")
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, r"rank 0 of 2 has waited 0.5 s at 127.0.0.1:\d+: not there is rank 1"),
        ({"WORLD_SIZE": "4"}, "rank 0 of 4 has waited 0.5 s .*: not there are ranks 1, 2, 3"),
        ({"RANK": "1"}, r"rank 1 of 2 cannot reach the store of the ranks at 127.0.0.1:\d+ within 0.5 s; is rank 0 started there"),
        ({"MASTER_ADDR": "203.0.113.7"}, "rank 0 cannot listen at 203.0.113.7:.*no address of this machine"),
        ({"MASTER_ADDR": "no.such.host.invalid"}, "rank 0 cannot listen at no.such.host.invalid:"),
        pytest.param(
            {"MASTER_ADDR": "no.such.host.invalid", "RANK": "1"}, "rank 1 of 2 cannot reach the store of the ranks at no.such.host.invalid:", marks=long
        ),
        ({"MASTER_PORT": "many"}, "MASTER_PORT must be a number from 1 to 65535; seen 'many'"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT must be a number from 1 to 65535; seen '70000'"),
        ({"RANK": "2"}, r"RANK must be in 0..1"),
        ({"RANK": "x"}, "RANK and WORLD_SIZE must be numbers"),
    ],
)
def test_an_address_or_number_that_is_wrong(changed: dict[str, str], says: str) -> None:
    with pytest.raises(fs.ExecutionError, match=says):
        join(0.5, environment(launch.free_port(), **changed))


def test_a_port_that_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(fs.ExecutionError, match=rf"rank 0 cannot listen at 127.0.0.1:{port} .*: the port is in use"):
            join(0.5, environment(port))


def test_a_variable_that_is_missing() -> None:
    with pytest.raises(fs.ExecutionError, match="missing: MASTER_ADDR, MASTER_PORT"):
        join(0.5, {"RANK": "0", "WORLD_SIZE": "2"})


def test_the_store_listens_at_the_given_address_alone() -> None:
    port = launch.free_port()
    with pytest.raises(fs.ExecutionError, match="not there is rank 1"):
        join(0.2, environment(port, MASTER_ADDR="127.0.0.1"))
    socket.create_connection(("127.0.0.1", port), 5).close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", port), 5)


@long
def test_ranks_that_do_not_agree_on_how_many_they_are(tmp_path: Path) -> None:
    with launch.started(2, SCRIPT, "nothing", 0, tmp_path, each=lambda n: {"WORLD_SIZE": str(2 + n)}) as run:
        run.wait()
        assert "the ranks do not agree on how many they are (WORLD_SIZE): rank 0: 2, rank 1: 3" in run.ranks[0].words, run.words()


SETTINGS = Path(__file__).parents[1] / "support" / "rank_settings.py"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("seed", "seed: rank 0: 0 | rank 1: 1"),
        pytest.param("learning rate", r"learning_rate_0: rank 0: \[0.1\d*\] | rank 1: \[0.2\d*\]", marks=long),
        pytest.param("epochs", "epochs: rank 0: 2 | rank 1: 3", marks=long),
        pytest.param("batch_size", "batch_size of the data: rank 0: 4 | rank 1: 6", marks=long),
        pytest.param("validation", "validation: rank 0: none | rank 1: some", marks=long),
        pytest.param("metrics", "metrics: rank 0: none | rank 1: again", marks=long),
        pytest.param("checkpoint", "checkpoint: rank 0: none | rank 1: every", marks=long),
        pytest.param("order", "sample of x of the data: rank 0: ", marks=long),
        pytest.param("length", "examples of the data: rank 0: 12 | rank 1: 8", marks=long),
        pytest.param("nothing", "", marks=long),
    ],
)
def test_ranks_that_would_train_apart_are_refused_before_the_first_step(what: str, says: str) -> None:
    with launch.started(2, SETTINGS, what, prepared=True) as run:
        codes = run.wait()
        if what == "nothing":
            assert codes == [0, 0] and all("TRAINED" in r.words for r in run.ranks), run.words()
            return
        assert codes == [3, 3], run.words()
        for one in run.ranks:
            assert re.search(r"^REFUSED the ranks are to train in different ways\. .*" + says.replace(" | ", r" \| "), one.words, re.MULTILINE), run.words()
