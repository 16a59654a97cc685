"""Operators with attributes of 2^28: whatever a run may not take is refused, and where there is little to do little memory is taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

TELLING = ["expand_v2", "hash", "sequence_enumerate", "sequence_topk_avg_pooling", "pad", "tile"]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's memory is Linux's")
@pytest.mark.parametrize("types", [TELLING, []], ids=["telling", "all"])
def test_large_attributes_take_no_more_memory_than_a_run_may(types: list[str]) -> None:
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("large_attributes.py")), *types], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-3000:]
    *told, last = [line for line in done.stdout.splitlines() if line.endswith(" cases") or any(line.startswith(f"{t}: ") for t in types or [""])][-20:]
    assert last.endswith(" cases") and int(last.split()[0]) >= 4 * len(types), done.stdout[-3000:]
    assert not [line for line in told if types or " = " in line], "\n".join(told)


def written_again() -> tuple[fs.Program, list[str]]:
    """A program that writes other dims to its input, as files do that were optimised in place."""
    x = layer.data("x", ["batch", 4])
    first = layer.relu(x)
    block = fs.default_main_program().global_block
    block.append_op("tile", {"X": x}, {"Out": x}, {"repeat_times": [1, 500]})
    return fs.default_main_program(), [first.name, layer.relu(block.var("x")).name]


@pytest.mark.parametrize("how", ["described", "inferred again", "from a file", "from its text", "with shapes", "a copy"])
def test_an_input_that_is_written_again_is_fed_as_it_comes_in(how: str) -> None:
    program, fetches = written_again()
    again = {
        "described": lambda p: p,
        "inferred again": lambda p: (p.infer(), p)[1],
        "from a file": lambda p: fs.load_program(p.to_bytes()),
        "from its text": lambda p: fs.Program.parse(str(p)),
        "with shapes": lambda p: p.with_feed_shapes({"x": [3, 4]}),
        "a copy": lambda p: p.clone(),
    }[how](program)
    batch = "3" if how == "with shapes" else "batch"
    assert str(again.feeds).startswith(f"x: [{batch}, 4]") and again.var("x").spec.text().endswith(", 2000]")
    assert again.feeds.takes(x=[3, 4]) and not again.feeds.takes(x=[3, 2000])
    before, after = fs.Executor().run(again, {"x": np.ones((3, 4), "float32")}, fetches, fs.Scope())
    assert before.shape == (3, 4) and after.shape == (3, 2000)
    with pytest.raises(fs.FeedError, match="x must be f32"):
        fs.Executor().run(again, {"x": np.ones((3, 2000), "float32")}, fetches, fs.Scope())


def test_the_plan_counts_both_sizes_of_an_input_that_is_written_again() -> None:
    program, fetches = written_again()
    plan = fs.plan(program, fetch=fetches)
    size = 4 * 1000  # of four numbers for each of a thousand
    assert plan.breakdown(batch=1000)["inputs"] == 4 * size
    assert plan.peak(batch=1000) >= 500 * 4 * size
    with pytest.raises(fs.MemoryPlanError, match="the largest is x, f32"):
        fs.Executor(memory_limit="4 MiB").run(program, {"x": np.ones((1000, 4), "float32")}, fetches, fs.Scope())
