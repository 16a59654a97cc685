"""A worker and its client, each as a thread of this process: what is trained is what is trained here, and what goes wrong is said on both sides."""

from __future__ import annotations

import dataclasses
import queue
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.apps.workers import Job, worker
from foreshape.apps.workers.talk import JOBS, Keys
from foreshape.apps.workers.worker import WorkerSettings, work
from foreshape.machine.communication.parcel import put
from foreshape.machine.communication.rendezvous import Address, Meeting, connect, listen
from foreshape.machine.process.machine_memory import FoundLimit

WITHIN = 60.0
"""Seconds for what takes one."""


class Worker:
    """A worker in a thread."""

    def __init__(self, **settings: Any) -> None:
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.lines: list[str] = []
        self.error: BaseException | None = None
        given = WorkerSettings(**{"listen": "127.0.0.1:0", "wait": WITHIN, "patience": 10.0, **settings})
        self.thread = threading.Thread(target=self._run, args=(given,), daemon=True)
        self.thread.start()

    def _run(self, settings: WorkerSettings) -> None:
        try:
            work(settings, self.said.put)
        except BaseException as error:
            self.error = error
        self.said.put("ended")

    @property
    def address(self) -> str:
        while True:
            self.lines.append(self.said.get(timeout=WITHIN))
            if found := re.search(r"waiting for a job at (\S+), in", self.lines[-1]):
                return found[1]
            assert self.lines[-1] != "ended", self.error

    def end(self) -> BaseException | None:
        self.thread.join(WITHIN)
        assert not self.thread.is_alive()
        while self.lines[-1:] != ["ended"]:
            self.lines.append(self.said.get(timeout=1))
        return self.error


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def make(**settings: Any) -> Worker:
        started.append(Worker(**{"folder": str(tmp_path), **settings}))
        return started[-1]

    yield make
    for one in started:
        one.thread.join(0.1)


def described(folder: Path, seed: int = 3) -> tuple[fs.Variable, dict[str, Any], dict[str, Any]]:
    """A network over dense and ragged data; the data; and the files that have them."""
    x, y = layer.data("x", input_size=8), layer.data("y", dims=1, data_type=fs.INT64)
    words = layer.data("words", shape=["words"], lod_level=1, dtype=fs.INT64)
    hidden = layer.fc(x, 16, "relu") + layer.sequence_pool(layer.embedding(words, size=[30, 16], is_sparse=True), "sum")
    cost = layer.softmax_with_cross_entropy(layer.fc(layer.dropout(hidden, 0.1), 4), y)
    fs.default_startup_program().random_seed = seed
    r = np.random.RandomState(seed)
    lengths = r.randint(1, 6, 20)
    data = {"x": r.rand(20, 8).astype(np.float32), "y": r.randint(0, 4, (20, 1)), "words": fs.LoDTensor(r.randint(0, 30, lengths.sum()), [lengths])}
    for name, array in {"x": data["x"], "y": data["y"], "words": data["words"].data, "lengths": lengths}.items():
        np.save(folder / f"{name}.npy", array)
    return cost, data, {"x": "x.npy", "y": "y.npy", "words": ("words.npy", "lengths.npy")}


def test_what_workers_train_is_what_is_trained_here_bit_for_bit(tmp_path: Path, start: Callable[..., Worker]) -> None:
    cost, data, files = described(tmp_path)
    one, scope = start(), fs.Scope()
    x, predicted = cost.block.var("x"), cost.block.var("fc_0.tmp_0")
    sent = fs.send(
        cost, files, to=one.address, optimizer=fs.optimizer.Adam(0.05), epochs=3, batch_size=6, metrics={"cost": cost}, validation=files, scope=scope,
        save="out/values.safetensors", model=("out/net", [x], [predicted]), checkpoint="runs", progress=False,
    )  # fmt: skip
    assert one.end() is None
    here = fs.Scope()
    history = fs.train(cost, data, epochs=3, batch_size=6, metrics={"cost": cost}, validation=data, scope=here, progress=False)
    assert sent.history is not None and sent.history.losses == history.losses
    for name in ("loss", "cost", "validation loss"):
        assert sent.history.column(name) == history.column(name)
    assert scope.names() == ["embedding_0.w_0", "fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]  # and no state of the optimizer
    saved = fs.Scope()
    fs.interop.load_safetensors(tmp_path / "out/values.safetensors", saved)
    assert saved.names() == scope.names()
    for name in scope.names():
        assert np.array_equal(scope.get(name), here.get(name)) and np.array_equal(saved.get(name), here.get(name))
    opened = fs.Scope()
    program, _, fetches = fs.load_inference_model(tmp_path / "out/net", scope=opened)
    out = fs.Executor().run(program, {"x": data["x"]}, fetches, opened)[0]
    assert np.allclose(out, data["x"] @ here.get("fc_0.w_0"), atol=1e-5)
    assert (tmp_path / "runs").is_dir() and sent.files == [str(tmp_path / "out" / n) for n in ("values.safetensors", "net.pdmodel", "net.pdiparams")]
    (reply,) = sent.replies
    assert reply.examples == 20 and reply.share == 6 and reply.fits and str(reply.rank) in str(sent)
    lengths = np.sort(data["words"].sequence_lengths[0])[::-1]
    made = fs.training_program(cost)
    assert reply.peak == fs.plan(made.program, [made.loss, cost.name]).peak(batch=6, words=int(lengths[:6].sum()))


def test_a_job_in_a_file_and_one_that_goes_on_from_a_checkpoint(tmp_path: Path, start: Callable[..., Worker]) -> None:
    cost, data, files = described(tmp_path)
    settings: dict[str, Any] = {"optimizer": fs.optimizer.SGD(0.1), "batch_size": 6, "checkpoint": "runs"}
    for epochs in (1, 2):
        fs.job(cost, files, epochs=epochs, save="v", **settings).save(tmp_path / "job")
        one = start(listen=None, job=str(tmp_path / "job"))
        assert one.end() is None, one.error
    here, got = fs.Scope(), fs.Scope()
    fs.train(cost, data, epochs=2, batch_size=6, scope=here, progress=False)
    for name in fs.interop.load_safetensors(tmp_path / "v", got):
        assert np.array_equal(got.get(name), here.get(name))


def test_values_to_begin_with(tmp_path: Path, start: Callable[..., Worker]) -> None:
    cost, data, files = described(tmp_path)
    begin, here, scope = fs.Scope(), fs.Scope(), fs.Scope()
    begin.set("fc_0.w_0", np.full((8, 16), 0.25, np.float32))
    begin.set("surplus", np.zeros(3, np.float32))
    fs.interop.save_safetensors(tmp_path / "begin", begin)
    here.set("fc_0.w_0", begin.get("fc_0.w_0"))
    sent = fs.send(cost, files, to=start().address, values="begin", scope=scope, progress=False)
    history = fs.train(cost, data, scope=here, progress=False)
    assert sent.history is not None and sent.history.losses == history.losses
    assert np.array_equal(scope.get("fc_0.w_0"), here.get("fc_0.w_0"))


def test_a_client_that_waits_for_its_workers(tmp_path: Path, start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    cost, _, files = described(tmp_path)
    with_port = listen(Address("127.0.0.1", 0), 5)
    port = with_port.address
    assert port is not None
    with_port.close()
    seen, ended, drop, close = threading.Event(), threading.Event(), worker.drop, Meeting.close

    def drop_late(*args: Any) -> None:
        """Forget a job when the client, and the store that it holds, has gone."""
        seen.set()
        assert ended.wait(WITHIN)
        drop(*args)

    def close_late(meeting: Meeting) -> None:
        """Close the store when the worker has seen that the client has its results."""
        assert seen.wait(WITHIN)
        close(meeting)

    monkeypatch.setattr(worker, "drop", drop_late)
    monkeypatch.setattr(Meeting, "close", close_late)
    one = start(listen=None, connect=str(port), patience=30.0)
    sent = fs.send(cost, files, at=str(port), progress=False, patience=30.0)
    ended.set()
    assert sent.history is not None and sent.history.steps == 1
    assert one.end() is None


@pytest.mark.long
def test_a_client_may_see_what_it_takes_and_not_agree_and_another_is_taken(tmp_path: Path, start: Callable[..., Worker]) -> None:
    cost, _, files = described(tmp_path)
    one = start(keep=True, wait=5.0)
    address, seen = one.address, list[Any]()

    def no(replies: Any) -> bool:
        seen.extend(replies)
        return False

    with pytest.raises(fs.ExecutionError, match="was not agreed to"):
        fs.send(cost, files, to=address, agree=no, progress=False)
    assert [r.rank for r in seen] == [0]
    bad = dataclasses.replace(fs.job(cost, files), data={})
    with pytest.raises(fs.ExecutionError, match="have not done the job: rank 0: FeedError: there are no examples"):
        fs.send(bad, to=address, progress=False)
    sent = fs.send(cost, files, to=address, progress=False, epochs=2)
    assert sent.history is not None and sent.history.steps == 2
    assert one.end() is None
    assert any("the client does not want the job to begin" in line for line in one.lines)


def test_a_run_is_stopped_by_the_client(tmp_path: Path, start: Callable[..., Worker]) -> None:
    cost, _, files = described(tmp_path)
    sent = fs.send(cost, files, to=start().address, epochs=100_000, batch_size=1, progress=False, wait=False)
    assert sent.history is None
    sent.stop()
    history = sent.wait()
    assert 1 <= len(history.epochs) < 100_000 and history.steps == 20 * len(history.epochs)
    assert sent.wait() is history


def refused(tmp_path: Path, start: Callable[..., Worker], change: Callable[[Job], Job], files: Any = None, described_by: Any = None) -> str:
    """What the client is told of a job that the worker refuses; the worker says the same and fails."""
    cost, _, usual = described(tmp_path) if described_by is None else described_by
    one = start()
    with pytest.raises(fs.ExecutionError) as caught:
        fs.send(change(fs.job(cost, files or usual)), to=one.address, progress=False)
    error = one.end()
    assert error is not None and str(error) in str(caught.value)
    return str(caught.value)


CHANGES: dict[str, tuple[Callable[[Job], Job], str]] = {
    "another version": (lambda j: dataclasses.replace(j, foreshape="9.9"), "the job is of foreshape 9.9, and this worker has"),
    "another description": (lambda j: dataclasses.replace(j, described="0" * 64), "what is inferred of the program here is not what was inferred"),
    "no program": (lambda j: dataclasses.replace(j, main=b"\x0a\x7f\x08\x00"), "the main program: program: field 1 says 127 bytes, and 2 are left"),
    "no startup program": (lambda j: dataclasses.replace(j, startup=b""), "the startup program: "),
    "no loss": (lambda j: dataclasses.replace(j, loss="lost"), "the loss is 'lost', of which the program has no variable"),
    "no metric": (lambda j: dataclasses.replace(j, metrics={"m": "lost"}), "the metric 'm' is 'lost'"),
    "another element type": (lambda j: dataclasses.replace(j, feeds={**j.feeds, "x": "f64[batch, 8]"}), r"'x' is f32\[batch, 8\] here, and f64\[batch, 8\]"),
    "an input without data": (lambda j: dataclasses.replace(j, data={k: v for k, v in j.data.items() if k != "x"}), "x .* is not fed"),
    "writing elsewhere": (lambda j: dataclasses.replace(j, save_to="../v"), r"'../v' leads out of .*\(--folder\)"),
    "a model elsewhere": (lambda j: dataclasses.replace(j, model=worker_model("/etc/net")), "'/etc/net' leads out of"),
    "checkpoints elsewhere": (lambda j: dataclasses.replace(j, checkpoint=fs.apps.workers.jobs.Keep("a/../../c")), "leads out of"),
    "values that are missing": (lambda j: dataclasses.replace(j, values="none"), "cannot be read: No such file"),
}  # fmt: skip


def worker_model(path: str) -> Any:
    return fs.apps.workers.jobs.Model(path, ("x",), ("fc_0.tmp_0",))


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("name", CHANGES)
def test_a_job_that_a_worker_refuses(name: str, tmp_path: Path, start: Callable[..., Worker]) -> None:
    change, words = CHANGES[name]
    assert re.search(words, refused(tmp_path, start, change))
    assert not (tmp_path.parent / "v").exists()


DATA: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file that is missing": (lambda f: (f / "x.npy").unlink(), "No such file"),
    "a file of another kind": (lambda f: (f / "x.npy").write_bytes(b"PK\x03\x04"), "a zip archive"),
    "a pickle": (lambda f: np.save(f / "x.npy", np.array([{}] * 20), allow_pickle=True), "not a .npy file"),
    "another element type": (lambda f: np.save(f / "x.npy", np.zeros((20, 8), np.int64)), "x must be fp32; fed is int64"),
    "other dims": (lambda f: np.save(f / "x.npy", np.zeros((20, 9), np.float32)), r"x must be f32\[batch, 8\]; fed is \[\d+, 9\]"),
    "fewer examples": (lambda f: np.save(f / "x.npy", np.zeros((19, 8), np.float32)), "all data must have as many examples"),
    "lengths that are none": (lambda f: np.save(f / "lengths.npy", np.ones(20)), "sequence lengths are whole numbers in one dim"),
    "lengths of others": (lambda f: np.save(f / "lengths.npy", np.ones(20, np.int64)), "the lengths of level 0 sum to 20"),
    "a link that leads out": (lambda f: ((f / "x.npy").unlink(), (f / "x.npy").symlink_to("/etc/hostname")), "leads out of"),
}  # fmt: skip


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("name", DATA)
def test_data_that_a_worker_refuses(name: str, tmp_path: Path, start: Callable[..., Worker]) -> None:
    change, words = DATA[name]
    case = described(tmp_path)
    change(tmp_path)
    assert re.search(words, refused(tmp_path, start, lambda j: j, described_by=case))


def test_what_fails_while_it_runs_is_said_on_both_sides(tmp_path: Path, start: Callable[..., Worker]) -> None:
    cost, _, files = described(tmp_path)
    np.save(tmp_path / "x.npy", np.full((20, 8), np.nan, np.float32))
    one = start(keep=True)
    with pytest.raises(fs.ExecutionError, match=r"have not done the job: the loss mean_0.tmp_0 is nan at step 1"):
        fs.send(cost, files, to=one.address, progress=False)
    assert isinstance(one.end(), fs.ExecutionError)


def test_what_does_not_fit_is_not_begun(tmp_path: Path, start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    cost, _, files = described(tmp_path)
    monkeypatch.setattr("foreshape.apps.workers.prepare.found_limits", lambda: iter([FoundLimit(5000, "a test's limit")]))
    one = start()
    with pytest.raises(fs.MemoryPlanError, match=r"rank 0 on \S+: [\d.]+ KiB are needed, and 4.9 KiB are there"):
        fs.send(cost, files, to=one.address, progress=False)
    assert "the client does not want" in str(one.end())


def test_a_worker_takes_one_job_unless_it_is_told_otherwise(tmp_path: Path, start: Callable[..., Worker]) -> None:
    cost, _, files = described(tmp_path)
    one = start()
    address = one.address
    sent = fs.send(cost, files, to=address, progress=False, wait=False, epochs=100_000)
    with pytest.raises(fs.ExecutionError, match="have a job already, and take no other"):
        fs.send(cost, files, to=address, progress=False)
    sent.stop()
    sent.wait()
    assert one.end() is None


def test_bytes_that_are_no_job(tmp_path: Path, start: Callable[..., Worker]) -> None:
    one = start()
    client = connect(Address.of(one.address), 10)
    keys = Keys(client.add(JOBS, 1))
    put(client, keys.job, b"not a job")
    client.set(keys.taken, b"yes")
    error = one.end()
    assert "the job cannot be taken: 9 bytes that do not begin as a job does" in str(error)


def test_a_worker_without_a_job_and_one_without_a_folder(tmp_path: Path, start: Callable[..., Worker]) -> None:
    assert "no job has come within 0.2 s" in str(start(wait=0.2).end())
    assert "is no folder" in str(start(folder=str(tmp_path / "none")).end())
    assert "cannot be read" in str(start(listen=None, job=str(tmp_path / "none")).end())


@pytest.mark.long
def test_a_client_that_goes_before_its_job_is_there_is_passed_over(tmp_path: Path, start: Callable[..., Worker]) -> None:
    cost, _, files = described(tmp_path)
    one = start(keep=True, patience=1.0, wait=4.0)
    address = one.address
    connect(Address.of(address), 10).add(JOBS, 1)
    sent = fs.send(cost, files, to=address, progress=False)
    assert sent.history is not None and one.end() is None
    assert any("job 1 was announced and has not come" in line for line in one.lines)


@pytest.mark.long  # it waits for twelve seconds
def test_a_client_that_goes_before_it_says_whether_to_begin_ends_no_worker_that_is_kept(tmp_path: Path, start: Callable[..., Worker]) -> None:
    cost, _, files = described(tmp_path)
    one = start(keep=True, patience=1.0, wait=6.0)
    address = one.address
    with pytest.raises(ZeroDivisionError):
        fs.send(cost, files, to=address, progress=False, agree=lambda replies: bool(1 // 0))
    sent = fs.send(cost, files, to=address, progress=False)
    assert sent.history is not None and one.end() is None
    assert any("the client gives no sign of life for 1 s" in line for line in one.lines)


def test_nobody_works_at_a_store(tmp_path: Path) -> None:
    cost, _, files = described(tmp_path)
    empty = listen(Address("127.0.0.1", 0), 5)
    with pytest.raises(fs.ExecutionError, match=r"no worker has come within 0\.5 s"):
        fs.send(cost, files, to=str(empty.address), progress=False, patience=0.5)
    empty.set("worker", b'{"foreshape": "9.9", "ranks": 1, "keeps": false}')
    with pytest.raises(fs.ExecutionError, match=r"the workers have foreshape 9\.9, and here is"):
        fs.send(cost, files, to=str(empty.address), progress=False, patience=5)
    empty.set("worker", b"hello")
    with pytest.raises(fs.ExecutionError, match="who is there is no worker"):
        fs.send(cost, files, to=str(empty.address), progress=False, patience=5)
    empty.close()


def test_a_worker_that_gives_no_sign_of_life(tmp_path: Path) -> None:
    cost, _, files = described(tmp_path)
    store = listen(Address("127.0.0.1", 0), 5)
    store.set("worker", f'{{"foreshape": "{fs.__version__}", "ranks": 1, "keeps": false}}'.encode())
    with pytest.raises(fs.ExecutionError, match=r"the worker at 127.0.0.1:\d+ gives no sign of life for 1 s"):
        fs.send(cost, files, to=str(store.address), progress=False, patience=1)
    store.close()


def test_too_large_values_are_for_a_file(tmp_path: Path, start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    cost, _, files = described(tmp_path)
    monkeypatch.setattr(worker, "MOST_VALUES", 100)
    with pytest.raises(fs.ExecutionError, match=r"the values have \d+ bytes, more than are sent back \(100\)"):
        fs.send(cost, files, to=start().address, progress=False, scope=fs.Scope())
