"""What differs in the run that goes on from a checkpoint is named, and refused or taken; and no whole checkpoint is lost."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.some import each

import foreshape as fs
from foreshape import layer
from foreshape.apps.training import Checkpoint
from foreshape.apps.training.checkpoint import container
from foreshape.apps.training.data import digest
from foreshape.apps.training.data.digest import SAMPLE
from foreshape.optimizer import Adam, CosineDecay, ExponentialDecay, L2Decay, Momentum, PiecewiseDecay


def arrays(seed: int = 3, examples: int = 12) -> dict[str, Any]:
    rng = np.random.RandomState(seed)
    return {"x": rng.rand(examples, 4).astype("float32"), "y": rng.rand(examples, 1).astype("float32")}


class Stopped(Exception):
    pass


class Stops(Checkpoint):
    """Stops the run after a step, as if it was killed."""

    def __init__(self, path: Any, at: int, **more: Any) -> None:
        super().__init__(path, **more)
        self.at = at

    def save(self, program: Any, scope: Any, state: Any, facts: Any) -> str:
        path = super().save(program, scope, state, facts)
        if state.history.steps >= self.at:
            raise Stopped
        return path


def train(
    folder: Path | Checkpoint | None, optimizer: Any = None, data: Any = None, epochs: int = 2, width: int = 5, dropout: float = 0.1,
    scope: Any = None, **more: Any,
) -> Any:  # fmt: skip
    """The scope after a run of 4 steps an epoch."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x, y = layer.data("x", 4), layer.data("y", 1)
        hidden = layer.dropout(layer.fc(x, width, "relu"), dropout)
        cost = layer.mean(layer.square_error_cost(layer.fc(hidden, 1), y))
    scope = scope if scope is not None else fs.Scope()
    checkpoint = Checkpoint(folder, every=1) if isinstance(folder, Path) else folder
    fs.train(cost, data if data is not None else arrays(), optimizer=optimizer or Momentum(0.1, 0.9), epochs=epochs, batch_size=3, progress=False,
             scope=scope, startup=startup, checkpoint=checkpoint, **more)  # fmt: skip
    return scope


def stopped(folder: Path, at: int = 5, **more: Any) -> None:
    """Leave a run's checkpoints of its first steps."""
    with pytest.raises(Stopped):
        train(Stops(folder, at, every=1), **more)


def values(scope: fs.Scope) -> dict[str, Any]:
    return {n: scope.get(n).tolist() for n in scope.names()}


# --- what differs, and what is said of it

CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a learning rate": ({}, {"optimizer": lambda: Momentum(0.01, 0.9)}, r"learning_rate_0 was 0\.1, and is 0\.01"),
    "a momentum": ({}, {"optimizer": lambda: Momentum(0.1, 0.5)}, r"mu=0\.89.*\n.*\n.*mu=0\.5"),
    "weight decay": ({}, {"optimizer": lambda: Momentum(0.1, 0.9, weight_decay=L2Decay(0.01))}, "in the checkpoint"),
    "another optimizer": ({}, {"optimizer": lambda: Adam(0.1)}, "fc_0.w_0_velocity_0 .* is in the checkpoint, and the program has no such value"),
    "a schedule": ({}, {"optimizer": lambda: Momentum(CosineDecay(0.1, 4, 2), 0.9)}, "@LR_DECAY_COUNTER@ .* is in the program, and the checkpoint has no such"),
    "a schedule's number": (
        {"optimizer": lambda: Momentum(PiecewiseDecay([3], [0.1, 0.01]), 0.9)},
        {"optimizer": lambda: Momentum(PiecewiseDecay([3], [0.1, 0.02]), 0.9)},
        r"str_value='0\.01'(.|\n)*str_value='0\.02'",
    ),
    "a schedule's boundary": (
        {"optimizer": lambda: Momentum(PiecewiseDecay([3], [0.1, 0.01]), 0.9)},
        {"optimizer": lambda: Momentum(PiecewiseDecay([6], [0.1, 0.01]), 0.9)},
        r"str_value='3\.0'(.|\n)*str_value='6\.0'",
    ),
    "a schedule for another": (
        {"optimizer": lambda: Momentum(ExponentialDecay(0.1, 5, 0.5), 0.9)},
        {"optimizer": lambda: Momentum(CosineDecay(0.1, 4, 2), 0.9)},
        "op 21 is in the checkpoint",
    ),
    "an attribute": ({}, {"dropout": 0.4}, r"dropout_prob=0\.1(.|\n)*dropout_prob=0\.4"),
    "data": ({}, {"data": lambda: arrays(4)}, r"sample of x of the data was [0-9a-f]{16}, and is [0-9a-f]{16}"),
    "one number of the data": ({}, {"data": lambda: {**arrays(), "y": arrays()["y"] + (np.arange(12)[:, None] == 7)}}, "sample of y of the data"),
    "the order": ({}, {"seed": 9}, "seed of the data was 0, and is 9"),
    "no order": ({}, {"shuffle": False}, "shuffle of the data was True, and is False"),
    "a list of batches": ({"data": lambda: batches(3)}, {"data": lambda: batches(4)}, "sample of the data was"),
    "batches of a function": ({"data": lambda: lambda: iter(batches(3))}, {"data": lambda: lambda: iter(batches(4))}, "first batch of epoch 2 was"),
    "batches of an iterable": ({"data": lambda: Batches(3)}, {"data": lambda: Batches(4)}, "first batch of epoch 2 was"),
}  # fmt: skip


def batches(seed: int) -> list[dict[str, Any]]:
    whole = arrays(seed)
    return [{n: a[at : at + 3] for n, a in whole.items()} for at in range(0, 12, 3)]


class Batches:
    """Can be iterated again and again, and is no list."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(batches(self.seed))


def made(given: dict[str, Any]) -> dict[str, Any]:
    return {n: v() if callable(v) else v for n, v in given.items()}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", each(2, CHANGES))
def test_what_has_changed_is_named_and_refused(name: str, tmp_path: Path) -> None:
    before, after, says = CHANGES[name]
    stopped(tmp_path, **made(before))
    files = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    executor, scope = fs.Executor(seed=2), fs.Scope()
    states = executor.random_state(), np.random.get_state()[1].copy(), random.getstate()
    with pytest.raises(fs.ExecutionError, match=says) as caught:
        train(tmp_path, scope=scope, executor=executor, **made({**before, **after}))
    assert 'on_change="take"' in str(caught.value)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == files and scope.names() == []
    assert (executor.random_state() == states[0]).all() and (np.random.get_state()[1] == states[1]).all() and random.getstate() == states[2]
    assert values(train(tmp_path, **made(before))) == values(train(None, **made(before)))  # and without the change it goes on as if never stopped


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", each(3, CHANGES))
def test_what_has_changed_is_taken_where_that_is_asked_for(name: str, tmp_path: Path) -> None:
    before, after, _ = CHANGES[name]
    stopped(tmp_path, **made(before))
    parameters, _ = container.read(Checkpoint(tmp_path).files()[0])
    kept = {n: t.clone() for n, t in parameters.items()}
    scope = train(tmp_path, **made({**before, **after}), on_change="take", executor=fs.Executor(seed=1))
    unchanged = train(None, **made(before))
    assert values(scope) != values(unchanged)
    # it is what a run without checkpoints makes that begins with these parameters, this state and these generators
    assert len(Checkpoint(tmp_path).files()) == 2
    tensors, facts = container.read(Checkpoint(tmp_path).files()[0])
    assert facts["position"] == [3, 0] and len(tensors["losses"]) == 8 and (tensors["losses"][:5] == kept["losses"]).all()
    again = train(tmp_path, **made({**before, **after}), epochs=2)  # what was taken is what the checkpoints say from now on
    assert values(again) == values(scope)


def test_a_new_learning_rate_is_really_taken(tmp_path: Path) -> None:
    stopped(tmp_path, dropout=0.0)
    before, _ = container.read(Checkpoint(tmp_path).files()[0])
    frozen = {n: t.clone() for n, t in before.items() if n.startswith("value/")}
    scope = train(tmp_path, Momentum(0.0, 0.0), dropout=0.0, on_change="take")
    assert scope.get("learning_rate_0") == 0.0
    for name, value in frozen.items():
        if name.endswith((".w_0", ".b_0")):
            assert scope.get(name.removeprefix("value/")).tolist() == value.tolist(), name


def test_a_learning_rate_that_was_set_while_it_ran_is_no_change(tmp_path: Path) -> None:
    scope = fs.Scope()

    def slower(epoch: int, row: dict[str, float]) -> None:
        scope.set("learning_rate_0", np.float32(0.02))

    train(tmp_path, scope=scope, callbacks=[slower], epochs=1)
    train(Checkpoint(tmp_path), scope=scope, epochs=2)  # in the same process, with the same scope
    assert float(scope.get("learning_rate_0")) == np.float32(0.02)
    later = train(tmp_path, epochs=3)  # and in another one
    assert float(later.get("learning_rate_0")) == np.float32(0.02)


def test_another_network_is_refused_whatever_the_word(tmp_path: Path) -> None:
    stopped(tmp_path)
    for word in ("refuse", "take"):
        with pytest.raises(fs.ExecutionError, match=r"fc_0\.w_0 is f32\[4, 5\] in the checkpoint, and f32\[4, 6\] in the program") as caught:
            train(tmp_path, width=6, on_change=word)
        assert "on_change" not in str(caught.value)


def test_another_word_is_refused() -> None:
    with pytest.raises(fs.ExecutionError, match="on_change must be 'refuse' or 'take'; seen 'yes'"):
        train(None, on_change="yes")


def test_other_threads_are_said_once_and_stop_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped(tmp_path)
    newest = Checkpoint(tmp_path).files()[0]
    tensors, facts = container.read(newest)
    container.write(newest, {n: t.clone() for n, t in tensors.items()}, facts | {"notes": {"threads": 99}})
    train(tmp_path)
    assert capsys.readouterr().err.count("threads was 99, and is") == 1


@pytest.mark.quick_cases("2-3-threads was 2, and is 3")
@pytest.mark.parametrize(("before", "now", "said"), [(2, 3, "threads was 2, and is 3"), (3, 3, ""), (1, "adaptive", "threads was 1, and is adaptive")])
def test_the_threads_of_a_run_are_its_executors(tmp_path: Path, capsys: pytest.CaptureFixture[str], before: Any, now: Any, said: str) -> None:
    stopped(tmp_path, executor=fs.Executor(seed=0, threads=before))
    train(tmp_path, executor=fs.Executor(seed=0, threads=now))
    err = capsys.readouterr().err
    assert err.count("threads was") == bool(said) and said in err


# --- digests


def test_a_digest_sees_type_shape_order_and_numbers() -> None:
    whole = np.arange(12, dtype=np.float32)
    seen = [digest.digest(v) for v in (
        whole, whole.astype(np.float64), whole.reshape(3, 4), whole.reshape(4, 3), whole[::-1], whole + 1, list(whole), {"x": whole}, {"y": whole},
        [whole], [whole, whole], fs.LoDTensor(whole, [[5, 7]]), fs.LoDTensor(whole, [[6, 6]]), fs.SelectedRows([1], whole[None], 4), whole[:0],
        np.float32(3), "text", [[1, 2], [3]], [[1], [2, 3]],
    )]  # fmt: skip
    assert len(set(seen)) == len(seen)
    assert digest.digest(np.asfortranarray(whole.reshape(3, 4))) == digest.digest(whole.reshape(3, 4))


def test_of_large_data_a_sample_is_looked_at() -> None:
    rows = np.zeros((3 * SAMPLE // 1024, 256), np.float32)
    before = digest.digest(rows)
    last = rows.copy()
    last[-1, 0] = 1
    assert digest.digest(last) != before and digest.digest(rows + np.float32(1)) != before


# --- which files stay


def damage(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))


def whole_steps(folder: Path) -> list[int]:
    out: list[int] = []
    for path in Checkpoint(folder).files():
        try:
            container.read(path)
        except fs.FormatError:
            continue
        out.append(int(Path(path).name[5:14]))
    return out


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("broken", [1, 2])
def test_the_one_just_written_is_never_deleted_for_one_that_is_not_whole(tmp_path: Path, keep: int, broken: int) -> None:
    stopped(tmp_path, 6, data=batches(3))
    with pytest.raises(Stopped):
        train(Stops(tmp_path, 7, every=1, keep=5), data=batches(3))
    for path in Checkpoint(tmp_path).files()[:broken]:
        damage(path)
    counted: list[int] = []

    class Looks(Checkpoint):
        def save(self, program: Any, scope: Any, state: Any, facts: Any) -> str:
            before = whole_steps(tmp_path)
            path = super().save(program, scope, state, facts)
            newest = sorted({*before, state.history.steps}, reverse=True)[:keep]
            assert set(newest) <= set(whole_steps(tmp_path)), (before, state.history.steps)
            counted.append(state.history.steps)
            return path

    train(Looks(tmp_path, every=1, keep=keep), data=batches(3))
    assert counted[0] == 8 - broken and whole_steps(tmp_path) == [8, 7, 6][:keep]


def test_a_damaged_one_between_whole_ones_does_not_count(tmp_path: Path) -> None:
    stopped(tmp_path, 3)
    first = Checkpoint(tmp_path, keep=2)
    assert whole_steps(tmp_path) == [3, 2]
    damage(first.files()[0])
    train(Checkpoint(tmp_path, every=1, keep=2), epochs=1)
    assert whole_steps(tmp_path) == [4, 3]
    train(Stops(tmp_path, 99, every=1, keep=2), epochs=2)
    assert whole_steps(tmp_path) == [8, 7] and len(Checkpoint(tmp_path).files()) == 2


def test_whole_files_are_not_read_again_at_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    plain: Callable[[Any], Any] = container.read

    def counted(path: Any) -> Any:
        read.append(path)
        return plain(path)

    monkeypatch.setattr(container, "read", counted)
    train(Checkpoint(tmp_path, every=1, keep=3))
    assert read == []


def test_a_damaged_one_far_ahead_stays_and_counts_for_nothing(tmp_path: Path) -> None:
    stopped(tmp_path, 3)
    ahead = tmp_path / "step-000000099.safetensors"
    ahead.write_bytes(Path(Checkpoint(tmp_path).files()[0]).read_bytes())
    damage(str(ahead))
    train(Checkpoint(tmp_path, every=1, keep=1))
    assert whole_steps(tmp_path) == [8] and ahead.exists()
