"""The schema of a job: what is malformed is refused, whole."""

from __future__ import annotations

import copy
import json
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.apps.workers import Job, jobs
from foreshape.apps.workers.jobs import job_of
from foreshape.apps.workers.reply import Reply, differences


@pytest.fixture
def job() -> Job:
    x, y = layer.data("x", input_size=4), layer.data("y", input_size=1)
    predicted = layer.fc(x, output_size=1)
    cost = layer.square(predicted - y)
    return fs.job(
        cost, {"x": "x.npy", "y": ("y.npy",)}, validation={"x": "vx.npy", "y": "vy.npy"}, metrics={"error": cost}, epochs=3, batch_size=7, seed=5,
        ranks=fs.split_layers(fs.split_tables(fs.shard_optimizer(bucket=1024), tables=("t",)), degree=2, layers={"fc_0.w_0": "rows"}), values="v",
        checkpoint=fs.training.Checkpoint("c", every=10), accumulate=2, drop_last=True, save="s", model=("m", [x], [predicted]),
        optimizer=fs.optimizer.Adam(0.1),
    )  # fmt: skip


def places(given: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a document."""
    yield path
    for key in given if isinstance(given, dict) else range(len(given)) if isinstance(given, list) else ():
        yield from places(given[key], (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A document with another value at a path."""
    if not path:
        return value
    out = copy.deepcopy(document)
    at = out
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return out


OTHERS = [None, True, False, -1, 0, 1, 2**60, 10**400, 0.5, math.nan, math.inf, "", "x", "a\0b", "x" * 5000, [], [1], ["x"], ["x"] * 20_000, {},
          {"": 1}, {"x": {}}]  # fmt: skip


def checked(read: Callable[[Any], Any], document: Any, again: Callable[[Any], Any]) -> bool:
    """Whether a document is refused; one that is not must be what was read."""
    try:
        found = read(document)
    except fs.FormatError as error:
        assert len(str(error)) < 2000
        return True
    assert json.dumps(again(found)) == json.dumps(document)
    return False


def test_a_job_is_what_it_was_after_its_journey(job: Job, tmp_path: Path) -> None:
    assert Job.from_bytes(job.to_bytes()) == job
    job.save(tmp_path / "job")
    assert Job.load(tmp_path / "job") == job
    assert Job.from_bytes(bytearray(job.to_bytes())).document() == job.document()


def test_every_field_made_wrong_in_every_way(job: Job) -> None:
    document = json.loads(json.dumps(job.document()))
    refused = taken = 0
    for path in places(document):
        for value in OTHERS:
            if path[-1:] == ("patience",) and type(value) is int:
                continue  # whole numbers become seconds
            if checked(lambda d: job_of(d, job.main, job.startup), changed(document, path, value), lambda j: j.document()):
                refused += 1
            else:
                taken += 1
    assert refused > 900 and taken > 30


def test_every_key_left_out_and_one_added(job: Job) -> None:
    document = json.loads(json.dumps(job.document()))
    open_names = {("feeds",), ("data",), ("validation",), ("metrics",), ("strategy", "layers")}
    for path in places(document):
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        if path and isinstance(parent, dict) and path[:-1] not in open_names:
            out = copy.deepcopy(document)
            at = out
            for key in path[:-1]:
                at = at[key]
            del at[path[-1]]
            with pytest.raises(fs.FormatError, match=r"lacks|must be|not a job"):
                job_of(out, job.main, job.startup)
            with pytest.raises(fs.FormatError, match="has 'surplus'"):
                job_of(changed(document, (*path[:-1], "surplus"), 1), job.main, job.startup)


def test_programs_that_are_not_those_of_the_document(job: Job) -> None:
    for main, startup in ((job.main + b"x", job.startup), (job.main, job.main), (b"", job.startup), (job.main[:-1] + bytes([job.main[-1] ^ 1]), job.startup)):
        with pytest.raises(fs.FormatError, match="program is not the one that the job describes"):
            job_of(json.loads(json.dumps(job.document())), main, startup)


def test_every_cut_and_every_header_made_wrong(job: Job) -> None:
    data = job.to_bytes()
    for size in [*range(60), *range(60, len(data), 97), len(data) - 1]:
        with pytest.raises(fs.FormatError):
            Job.from_bytes(data[:size])
    with pytest.raises(fs.FormatError):
        Job.from_bytes(data + b"x")
    at = len(b"foreshape job\n")
    for field in range(3):
        for value in (0, 1, 2**20 + 1, 2**40, 2**64 - 1):
            head = data[: at + 8 * field] + struct.pack("<Q", value) + data[at + 8 * field + 8 :]
            with pytest.raises(fs.FormatError):
                Job.from_bytes(head)


def test_a_job_that_is_too_large_is_refused_by_who_sends_and_by_who_takes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    data = job.to_bytes()
    monkeypatch.setattr(jobs, "MOST_BYTES", len(data) - 1)
    with pytest.raises(fs.FormatError, match=rf"{len(data)} bytes; at most {len(data) - 1} are taken"):
        job.to_bytes()
    with pytest.raises(fs.FormatError, match=rf"{len(data)} bytes; at most {len(data) - 1} are taken"):
        Job.from_bytes(data)
    monkeypatch.setattr(jobs, "MOST_BYTES", len(data))
    monkeypatch.setattr(jobs, "MOST_DOCUMENT", 100)
    with pytest.raises(fs.FormatError, match="the job's document has"):
        job.to_bytes()
    with pytest.raises(fs.FormatError, match="a job's document of"):
        Job.from_bytes(data)


def test_a_document_that_is_no_json_or_too_deep(job: Job) -> None:
    for words in (b"", b"{", b"[" * 100_000, b'{"a":1,"a":2}', b"\xff", b"1" * 100):
        data = b"foreshape job\n" + struct.pack("<QQQ", len(words), 0, 0) + words
        with pytest.raises(fs.FormatError):
            Job.from_bytes(data)


def test_in_what_ranks_differ_is_said() -> None:
    alike = {"foreshape": "1", "torch": "2", "ops": "a", "values": "b", "feeds": "c", "collectives": "d", "data": "e"}

    def words(*changes: dict[str, str]) -> str:
        return differences([Reply(rank, "h", alike | change) for rank, change in enumerate(changes)])

    assert words({}, {}, {}) == ""
    assert words({}, {"torch": "3"}, {}) == "the version of torch differs: rank 0, 2 has 2 | rank 1 has 3"
    assert words({}, {"collectives": "x"}) == "the order of the collectives differs: rank 0 | rank 1"
    assert words({}, {"ops": "x", "data": "y"}) == "the ops of the program differs: rank 0 | rank 1; the data differs: rank 0 | rank 1"


def test_a_job_is_described_with_care(job: Job) -> None:
    x, y = layer.data("x2", input_size=4), layer.data("y2", input_size=1)
    cost = layer.square(layer.fc(x, output_size=1) - y)
    with pytest.raises(fs.SchemaError, match="'z', which is no input"):
        fs.job(cost, {"x2": "x", "z": "z"})
    with pytest.raises(fs.SchemaError, match=r"no worker would take this: data\.x2\.rows must be a text"):
        fs.job(cost, {"x2": "", "y2": "y"})
    with pytest.raises(fs.SchemaError, match="batch_size must be a whole number of at least 1; seen 0"):
        fs.job(cost, {"x2": "x", "y2": "y"}, batch_size=0)
    made = fs.job(fs.training_program(cost).program, {"x2": "x", "y2": "y"})  # which has its updates, and says what its loss is
    assert made.loss.startswith("mean_") and made.feeds == {"x2": "f32[batch, 4]", "y2": "f32[batch, 1]"}
    with pytest.raises(fs.SchemaError, match="has no updates"):
        fs.job(fs.Program(), {})
    with pytest.raises(fs.SchemaError, match="what is sent is a job"):
        fs.send(cost, to="ray://127.0.0.1:1")  # type: ignore[arg-type]
