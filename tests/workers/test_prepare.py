"""A rank's answer to a job: what it needs, and what it refuses; without processes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.apps.workers import Job
from foreshape.apps.workers.jobs import Keep, Model
from foreshape.apps.workers.prepare import Inputs, Prepared, prepare
from foreshape.apps.workers.rank import packed
from foreshape.apps.workers.reply import Reply, obstacles, refusal, table, too_much


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


def answer(job: Job, folder: Path, **beside: Any) -> Prepared:
    """A job as a rank takes it: from its bytes."""
    return prepare(Job.from_bytes(job.to_bytes()), str(folder), 0, 1, **beside)


def test_what_a_rank_needs_is_what_is_planned(tmp_path: Path) -> None:
    cost, data, files = described(tmp_path)
    reply = answer(fs.job(cost, files, batch_size=6, metrics={"cost": cost}), tmp_path).reply
    assert (reply.examples, reply.share, reply.fits) == (20, 6, True)
    lengths = np.sort(data["words"].sequence_lengths[0])[::-1]
    made = fs.training_program(cost)
    assert reply.peak == fs.plan(made.program, [made.loss, cost.name]).peak(batch=6, words=int(lengths[:6].sum()))


def test_data_and_values_beside_a_job(tmp_path: Path) -> None:
    cost, data, files = described(tmp_path)
    begin = fs.Scope()
    begin.set("fc_0.w_0", np.full((8, 16), 0.25, np.float32))
    begin.set("surplus", np.zeros(3, np.float32))
    job = fs.job(cost, files)
    ready = answer(dataclasses.replace(job, data={}), tmp_path, inputs=Inputs(data), values=packed(begin, begin.names()))
    assert ready.scope.names() == ["fc_0.w_0"] and ready.reply.examples == 20
    (tmp_path / "values").write_bytes(packed(begin, begin.names()))
    assert answer(dataclasses.replace(job, values="values"), tmp_path).scope.names() == ["fc_0.w_0"]


CHANGES: dict[str, tuple[Callable[[Job], Job], str]] = {
    "another version": (lambda j: dataclasses.replace(j, foreshape="9.9"), "the job is of foreshape 9.9, and this worker has"),
    "another description": (lambda j: dataclasses.replace(j, described="0" * 64), "what is inferred of the program here is not what was inferred"),
    "no program": (lambda j: dataclasses.replace(j, main=b"\x0a\x7f\x08\x00"), "the main program: program: field 1 says 127 bytes, and 2 are left"),
    "no startup program": (lambda j: dataclasses.replace(j, startup=b""), "the startup program: "),
    "no loss": (lambda j: dataclasses.replace(j, loss="lost"), "the loss is 'lost', of which the program has no variable"),
    "no metric": (lambda j: dataclasses.replace(j, metrics={"m": "lost"}), "the metric 'm' is 'lost'"),
    "another element type": (lambda j: dataclasses.replace(j, feeds={**j.feeds, "x": "f64[batch, 8]"}), r"'x' is f32\[batch, 8\] here, and f64\[batch, 8\]"),
    "an input without data": (lambda j: dataclasses.replace(j, data={k: v for k, v in j.data.items() if k != "x"}), "x .* is not fed"),
    "writing elsewhere": (lambda j: dataclasses.replace(j, save_to="../v"), r"'../v' leads out of"),
    "a model elsewhere": (lambda j: dataclasses.replace(j, model=Model("/etc/net", ("x",), ("fc_0.tmp_0",))), "'/etc/net.pdmodel' leads out of"),
    "checkpoints elsewhere": (lambda j: dataclasses.replace(j, checkpoint=Keep("a/../../c")), "leads out of"),
    "values that are missing": (lambda j: dataclasses.replace(j, values="none"), "cannot be read: No such file"),
}  # fmt: skip


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("name", CHANGES)
def test_a_job_that_a_rank_refuses(name: str, tmp_path: Path) -> None:
    change, words = CHANGES[name]
    cost, _, files = described(tmp_path)
    with pytest.raises(fs.ForeshapeError, match=words):
        answer(change(fs.job(cost, files)), tmp_path)
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
def test_data_that_a_rank_refuses(name: str, tmp_path: Path) -> None:
    change, words = DATA[name]
    cost, _, files = described(tmp_path)
    change(tmp_path)
    with pytest.raises(fs.ForeshapeError, match=words):
        answer(fs.job(cost, files), tmp_path)


def test_what_keeps_a_job_from_its_beginning_is_told_with_the_ranks() -> None:
    needy = [Reply(rank, "node", {}, peak=3000, memory=5000) for rank in range(2)]
    assert needy[0].fits and too_much(needy[:1]) == "" and obstacles(needy) == ""
    assert too_much(needy) == "rank 0, 1 on node: 5.9 KiB are needed, and 4.9 KiB are there"
    refused = [*needy, refusal(2, fs.FormatError("no file")), refusal(3, fs.FormatError("no file"))]
    assert obstacles(refused) == "rank 2, 3: FormatError: no file"
    assert table(needy).row_count == 2


def test_a_model_is_not_written_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    cost, _, files = described(folder)
    (folder / "net.pdiparams").symlink_to(tmp_path / "elsewhere")
    job = dataclasses.replace(fs.job(cost, files), model=Model("net", ("x",), ("fc_0.tmp_0",)))
    with pytest.raises(fs.FormatError, match=r"'net\.pdiparams' leads out of"):
        answer(job, folder)


def test_without_ray_an_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cost, data, files = described(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    for ask in (lambda: fs.train(cost, data, on=fs.ray_cluster(2)), lambda: fs.send(fs.job(cost, files), to="auto")):
        with pytest.raises(fs.ExecutionError, match=r"work on a cluster of Ray needs the package ray: pip install 'foreshape\[ray\]'"):
            ask()
    with pytest.raises(fs.SchemaError, match="fewest must be at most workers, 2; seen 3"):
        fs.ray_cluster(2, fewest=3)
