"""A measured step: its file, what is refused, and the drawing of it below the planned one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commanded import call, facts
from support.planned_networks import machine, stack

import foreshape as fs
from foreshape.apps.training.distributed.stopwatch import FIRST, KEPT, Stopwatch
from foreshape.compiler.cost.draw import draw_timeline
from foreshape.compiler.cost.measured import Measured, MeasuredMessage, MeasuredStep, joined, measured_of
from foreshape.machine.communication.join import alone
from foreshape.machine.communication.process_group import ProcessGroup, set_team


def message(started: float, waited: float, done: float, came: float, **given: Any) -> MeasuredMessage:
    return MeasuredMessage(**{"type": "c_allreduce_sum", "ring": 0, "bytes": 400, **given}, started=started, waited=waited, done=done, came=came)


STEP = MeasuredStep(0.01, (message(0.001, 0.004, 0.003, 0.004, type="count_examples", bytes=24), message(0.002, 0.006, 0.008, 0.008)))
MEASURED = Measured(7, 20, (STEP, MeasuredStep(0.011, (message(0.001, 0.001, 0.005, 0.005),))))


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    MEASURED.save(tmp_path / "step.json")
    assert Measured.load(tmp_path / "step.json") == MEASURED


def test_what_is_waited_for_and_what_is_under_way() -> None:
    assert STEP.exposed == pytest.approx(0.002)
    assert STEP.communicating == pytest.approx(0.007), "messages that overlap count once"
    assert MEASURED.seconds == 0.011
    assert joined([(2, 3), (0, 1), (1, 1.5), (2.5, 2.7)]) == [(0, 1.5), (2, 3)]


def places(given: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    for key in given if isinstance(given, dict) else range(len(given)) if isinstance(given, list) else ():
        yield from places(given[key], (*path, key))


def test_every_field_made_wrong(tmp_path: Path) -> None:
    MEASURED.save(tmp_path / "step.json")
    text = (tmp_path / "step.json").read_text()
    refused = 0
    for path in places(json.loads(text)):
        for value in (None, True, -1, 1e300, math.nan, "x" * 300, "", [], {}, [1], {"a": 1}):
            found: Any = json.loads(text)
            if path:
                at = found
                for key in path[:-1]:
                    at = at[key]
                at[path[-1]] = value
            else:
                found = value
            try:
                measured_of(found)
            except fs.FormatError:
                refused += 1
            else:
                assert path and (path[-1] == "messages" and value == []), (path, value)
    assert refused > 200
    floats = "[" + ",".join(["[1.5]"] * 400_001) + "]"  # which would take fifty times its bytes
    for broken in (floats, text[:-2], "[" * 100_000, "", text.replace("timeline 1", "timeline 2")):
        (tmp_path / "broken.json").write_text(broken)
        with pytest.raises(fs.FormatError, match=r"broken.json"):
            Measured.load(tmp_path / "broken.json")
    with pytest.raises(fs.FormatError, match="No such file"):
        Measured.load(tmp_path / "none.json")


def test_a_file_that_is_larger_than_any_step_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "step.json", "wb") as file:
        file.truncate(1 << 26)
    with pytest.raises(fs.FormatError, match=r"step.json: 67108864 bytes; the limit is 33554432"):
        Measured.load(tmp_path / "step.json")


def test_the_planned_step_is_drawn_above_the_measured_one(tmp_path: Path) -> None:
    plan = fs.plan(stack(), ranks=2, batch=512, device=machine())
    draw_timeline(plan, tmp_path / "planned.svg")
    draw_timeline(plan, tmp_path / "both.svg", MEASURED)
    alone, both = ((tmp_path / f"{name}.svg").read_text() for name in ("planned", "both"))
    assert "measured" not in alone
    for words in ("planned: rank", "planned: link", "measured, rank 0: rank", "measured, rank 1: link", "measured: 11 ms"):
        assert words in both
    heights: dict[str, float] = {}
    for words in ("planned: rank", "measured, rank 1: link"):
        heights[words] = float(both.split(f"<!-- {words} -->")[1].split("translate(")[1].split(")")[0].split()[1])
    assert heights["planned: rank"] < heights["measured, rank 1: link"], "from the top of the page"


def test_the_command_shows_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESHAPE_CALIBRATION", str(tmp_path / "none"))
    stack().save(tmp_path / "net.pdmodel")
    MEASURED.save(tmp_path / "step.json")
    given = ("plan", tmp_path / "net.pdmodel", "--ranks", 2, "--batch", 64, "--measured", tmp_path / "step.json")
    code, out, _ = call(*given, "--device", "1TFLOPS:100GB/s", "--plot", tmp_path / "both.svg")
    assert code == 0
    assert "measured: 11 ms, of which a rank waits at most 4 ms; step 7, the median of 20; 424 bytes sent by rank 0, " in out
    assert "measured, rank 1: rank" in (tmp_path / "both.svg").read_text()
    assert facts(*given)["measured"]["sent"] == {"count_examples": 24, "c_allreduce_sum": 400}
    assert "measured: 11 ms" in call(*given)[1], "where times are not known, too"
    code, out, err = call("plan", tmp_path / "net.pdmodel", "--ranks", 3, "--batch", 64, "--measured", tmp_path / "step.json")
    assert code == 1 and "a step of 2 ranks was measured, and 3 are planned" in out + err
    code, out, err = call("plan", tmp_path / "net.pdmodel", "--measured", tmp_path / "step.json")
    assert code != 0 and "--ranks" in out + err


def test_a_stopwatch_keeps_the_last_steps_and_writes_that_of_median_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    team = ProcessGroup(0, 2, None)
    set_team(0, team)
    try:
        watch = Stopwatch(alone(), str(tmp_path / "step.json"))

        def step(seconds: float) -> None:
            passage = team._count("c_allreduce_sum", torch.zeros(3))
            now[0] += seconds
            if passage is not None:
                passage.end()

        for number in range(FIRST + KEPT + 5):
            watch.step(lambda number=number: step(float(number % 10)))
    finally:
        set_team(0, None)
    watch.write()
    found = Measured.load(tmp_path / "step.json")
    assert found.steps == KEPT
    (one,) = found.ranks
    assert one.seconds in (4.0, 5.0) and found.step % 10 == one.seconds + 1
    assert [(m.type, m.bytes, m.started, m.came) for m in one.messages] == [("c_allreduce_sum", 12, 0.0, one.seconds)]
    assert team.passages is None


def test_without_a_file_nothing_is_measured(tmp_path: Path) -> None:
    watch = Stopwatch(alone())
    assert [watch.step(lambda k=k: k) for k in range(5)] == list(range(5))
    watch.write()
    assert list(tmp_path.iterdir()) == []
