"""Checkpoints whose checksum is right: all of one is looked at before any of it is used, whatever is wrong in it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import crafted_checkpoints as crafted
from support.some import one_in
from support.survival import checked_words

import foreshape as fs
from foreshape.apps.training import Checkpoint
from foreshape.apps.training.checkpoint import container
from foreshape.apps.training.checkpoint.schema import contents

NAMES = ("losses", "random/executor", "random/torch", "random/numpy_key", "random/numpy_rest", "random/python", "epoch_random/executor",
         "epoch_random/torch", "epoch_random/numpy_key", "epoch_random/numpy_rest", "epoch_random/python", "value/fc_0.w_0",
         "value/fc_0.w_0_velocity_0", "value/learning_rate_0")  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> crafted.Whole:
    return crafted.whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def facts(whole: crafted.Whole) -> Any:
    return whole.facts


def survives(folder: Path, tensors: dict[str, Any], facts: Any) -> bool:
    """Write it and go on from it: whether it was taken; where it was refused nothing has changed."""
    path = folder / "step-000000005.safetensors"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    try:
        crafted.write(path, tensors, facts)
    except fs.FormatError as error:
        checked_words(error)
        return False  # a name that no file can have
    for on_change in ("refuse", "take"):
        scope, executor = fs.Scope(), fs.Executor(seed=1)
        before = executor.random_state(), np.random.get_state()[1].copy(), random.getstate()
        try:
            crafted.train(folder, scope, executor, epochs=3, on_change=on_change)
        except (fs.FormatError, fs.ExecutionError) as error:
            checked_words(error)
            if " at step " in str(error):  # numbers that are right, and whose loss is none
                return True
            assert scope.names() == []
            assert (executor.random_state() == before[0]).all() and (np.random.get_state()[1] == before[1]).all() and random.getstate() == before[2]
            if "another run" in str(error) and on_change == "refuse":
                continue
            return False
        return True
    return False


def test_the_whole_one_is_taken(whole: crafted.Whole, tmp_path: Path) -> None:
    assert set(NAMES) <= set(whole.tensors) and whole.facts["position"] == [2, 2]
    assert survives(tmp_path, whole.tensors, whole.facts)


def refused_or_survived(folder: Path, cases: Iterable[tuple[dict[str, Any], dict[str, Any]]], seed: str) -> int:
    """Look at each case's tensors and facts, and go on from some of those that the schema lets through. Returns how many it refuses."""
    main, _, _ = crafted.network()
    refused, taken = 0, []
    for tensors, facts in cases:
        try:
            contents(tensors, crafted.as_read(facts), main)
        except fs.FormatError as error:
            checked_words(error)
            refused += 1
        else:
            taken.append((tensors, facts))
    for tensors, facts in random.Random(seed).sample(taken, min(len(taken), 12)):
        survives(folder, tensors, facts)
    return refused


FACTS = ("format", "values", "state", "ops", "numbers", "data", "notes", "position", "epochs", "seconds", "first")


@pytest.mark.quick_cases("notes")
@pytest.mark.parametrize("key", one_in(4, FACTS))
def test_30_every_fact_made_wrong_in_every_way(whole: crafted.Whole, key: str, tmp_path: Path) -> None:
    assert key in whole.facts
    wrong = [facts for at in crafted.places(whole.facts) if at[0] == key for _, facts in crafted.wrong_facts(whole.facts, at)]
    assert refused_or_survived(tmp_path, ((whole.tensors, facts) for facts in wrong), key) > 20


@pytest.mark.quick_cases("random/torch")
@pytest.mark.parametrize("name", one_in(4, NAMES))
def test_30_every_tensor_made_wrong_in_every_way(whole: crafted.Whole, name: str, tmp_path: Path) -> None:
    assert refused_or_survived(tmp_path, ((tensors, whole.facts) for _, tensors in crafted.wrong_tensors(whole.tensors, name)), name) > 15


@pytest.mark.quick_cases("4")
@pytest.mark.parametrize("seed", one_in(4, range(8)))
def test_30_several_things_wrong_at_once(whole: crafted.Whole, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        _, tensors, facts = crafted.any_wrong(whole, rng)
        survives(tmp_path, tensors, facts)


NUMBERS = {
    "losses": [(0, float("nan")), (4, float("inf")), (2, float("-inf"))],
    "random/numpy_key": [(0, -1), (623, 2**32)],
    "random/numpy_rest": [(0, 625.0), (0, -1.0), (0, 0.5), (0, float("nan")), (1, 2.0), (1, float("nan")), (2, float("nan")), (2, float("inf"))],
    "random/python": [(0, 2.0), (0, float("nan")), (1, -1.0), (624, 2.0**32), (7, 0.5), (9, float("nan")), (625, 625.0), (625, -1.0), (626, 0.5),
                      (627, float("nan"))],
    "random/torch": [(8, 0), (9, 255), (12, 0), (12, 2), (17, 255), (23, 128)],
}  # fmt: skip


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("begun", ["", "epoch_"])
@pytest.mark.parametrize(("name", "at", "number"), [(n, at, number) for n, given in NUMBERS.items() for at, number in given])
def test_30_numbers_that_no_generator_and_no_run_has(whole: crafted.Whole, name: str, at: int, number: float, begun: str) -> None:
    key = begun + name if name != "losses" else name
    wrong = whole.tensors[key].clone()
    wrong[at] = number
    with pytest.raises(fs.FormatError, match=key):
        contents({**whole.tensors, key: wrong}, whole.facts, crafted.network()[0])


PAST = [(624, 1, 624), (2, 1, 624), (1, 1, 625), (0, 1, 0), (-1, 1, 0), (625, 1, 0), (1, 0, 0), (1, 1, 2**32), (624, 1, 2)]


@pytest.mark.parametrize(("left", "seeded", "at"), PAST)
def test_a_generator_never_reads_past_its_words(left: int, seeded: int, at: int) -> None:
    import struct

    executor = fs.Executor(seed=1)
    state = executor.random_state()
    broken = bytearray(state.tobytes())
    struct.pack_into("=iiQ", broken, 8, left, seeded, at)
    given = np.frombuffer(bytes(broken), np.uint8)
    with pytest.raises(fs.ExecutionError, match="not the state of a generator"):
        executor.set_random_state(given)
    assert (executor.random_state() == state).all()
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        kept = fs.layer.data("kept", shape=[5056], dtype="uint8")
        before = main.global_block.apply("swap_random_state", {"State": kept}, {})
    with pytest.raises(fs.ExecutionError, match="no state of the generator"):
        executor.run(main, {"kept": given}, before)


def test_what_is_no_facts_at_all(whole: crafted.Whole, tmp_path: Path) -> None:
    for facts in crafted.WRONG.values():
        assert not survives(tmp_path, whole.tensors, facts)


def test_a_file_that_was_written_otherwise(whole: crafted.Whole, tmp_path: Path) -> None:
    from foreshape.interop import safetensors_file

    path = tmp_path / "c"
    for metadata in ({}, {"facts": "{}"}, {"facts": "{", "checksum": "0" * 64}, {"facts": "{}", "checksum": "0" * 64, "more": ""}):
        head, ordered = safetensors_file.header(whole.tensors, metadata)
        data = head + b"".join(piece for t in ordered for piece in safetensors_file.pieces(t))
        at = data.find(b"0" * 64) if "checksum" in metadata else -1
        if at > 0:
            import hashlib

            data = data[:at] + hashlib.sha256(data).hexdigest().encode() + data[at + 64 :]
        path.write_bytes(data)
        with pytest.raises(fs.FormatError):
            container.read(path)


def test_a_crafted_one_is_skipped_as_one_that_is_not_whole(whole: crafted.Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crafted.write(tmp_path / "step-000000005.safetensors", whole.tensors, whole.facts)
    crafted.write(tmp_path / "step-000000006.safetensors", whole.tensors, whole.facts | {"position": [2, "2"]})
    found = Checkpoint(tmp_path).newest(crafted.network()[0], fs.Executor(), print)
    assert found is not None and found[0].endswith("step-000000005.safetensors")
    assert "position" in capsys.readouterr().out
