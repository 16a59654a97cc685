"""Times of steps by a machine whose kernels take what is easy to reckon."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.corpus import CASES, case
from support.planned_networks import machine, stack, words

import foreshape as fs
from foreshape import layer
from foreshape.compiler.cost import Roofline, device_of, predict, step_time
from foreshape.compiler.cost.calls import calls_of
from foreshape.compiler.cost.device import Machine, Slower
from foreshape.compiler.lowering import Step, fuse, lower
from foreshape.compiler.lowering.kernel_calls import FusedCall
from foreshape.compiler.memory.liveness import liveness
from foreshape.machine.kernels.call_record import NamedConstant


def lowered(program: fs.Program) -> Step:
    return fuse(lower(program.global_block, ()))


def test_a_product_takes_its_work() -> None:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        out = layer.fc(layer.data("x", input_size=64), 32)
    step = predict(fuse(lower(program.global_block, [out.name])), {"batch": 256}, machine(), 1)
    (call,) = step.calls
    assert call.call.at == (256, 64, 32)
    assert call.call.work == 256 * 64 * 32
    assert call.measured
    assert call.seconds == pytest.approx(1e-11 * 256 * 64 * 32, rel=0.01)
    assert step.seconds == pytest.approx(call.seconds + 1e-3)


def test_kinds_that_were_measured_by_other_sizes_count_as_not_measured() -> None:
    """Whatever a file has: products by one size, what moves by three."""
    given = machine()
    for kernels in given.threads.values():
        kernels.kinds = {name: [[64.0, 1e-6]] if "mm" in name else [[8.0, 8.0, 8.0, 1e-6]] for name in kernels.kinds}
    step = predict(lowered(stack()), {"batch": 64}, given, 1)
    assert step.seconds > 1e-3 and not any(c.measured for c in step.calls if c.call.work)


def test_a_step_takes_what_its_calls_take_and_what_is_besides() -> None:
    step = predict(lowered(stack()), {"batch": 64}, machine(), 1)
    assert step.seconds == pytest.approx(1e-3 + sum(c.seconds for c in step.calls))
    assert sum(step.by_kind().values()) == pytest.approx(step.seconds - step.besides)
    assert 0 < step.guessed < 1  # this machine has measured few kinds
    works = [c.call.work for c in step.calls if c.call.work]
    assert sum(works) >= 64 * (32 * 64 + 64 * 64 + 64 * 10) * 2


@pytest.mark.parametrize("program", [stack(), words()], ids=["stack", "words"])
def test_more_examples_never_take_less(program: fs.Program) -> None:
    of = lowered(program)
    times = [predict(of, {"batch": n, "words": 7 * n}, machine(), 1).seconds for n in (1, 2, 8, 64, 500, 4096)]
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_of_a_table_only_the_rows_that_are_looked_up_count() -> None:
    low, high = ([c for _, c in calls_of(lowered(words(rows)), {"batch": 4, "words": 40})] for rows in (10_000, 10**9))
    assert [c.touched for c in low] == [c.touched for c in high]
    assert max(c.touched for c in high) < 40 * 16 * 4 * 8


def test_of_a_bag_a_row_for_each_id_counts() -> None:
    def touched(words: int) -> float:
        program = fs.Program()
        with fs.program_guard(program, fs.Program()):
            out = layer.embedding_bag(layer.data("ids", shape=["batch", words], dtype="int64"), [10**6, 64])
        (call,) = (c for _, c in calls_of(fuse(lower(program.global_block, [out.name])), {"batch": 8}))
        return call.touched

    assert touched(40) - touched(30) == 8 * 10 * (64 * 4 + 8), "rows of 64 numbers, and their ids"


def test_a_call_takes_longer_among_others() -> None:
    alone, among = machine(), machine()
    among.threads[1].among = 1e-5
    steps = [predict(lowered(stack()), {"batch": 64}, of, 1) for of in (alone, among)]
    calls = sum(not c.call.kind.startswith("step ") for c in steps[0].calls)
    assert steps[1].seconds - steps[0].seconds == pytest.approx(calls * (1e-5 - 1e-9))


def test_ranks_slow_down_what_is_near_and_what_is_far_by_their_own_times() -> None:
    device = Machine(machine(), 1, Slower(3.0, near=2.0, rows=5.0))
    for batch, words_ in ((4, 40), (40_000, 400_000)):
        of, values = lowered(words(10**7)), {"batch": batch, "words": words_}
        alone, slowed = predict(of, values, machine(), 1), step_time(of, values, device)
        times = [5.0 if c.call.is_far else 2.0 if c.call.touched <= 1 << 19 else 3.0 for c in alone.calls]
        assert [b.seconds for b in slowed.calls] == pytest.approx([a.seconds * t for a, t in zip(alone.calls, times, strict=True)])
        assert slowed.besides == pytest.approx(2 * alone.besides)
        assert {2.0, 5.0} <= set(times)
    assert 3.0 in times
    assert Slower(3.0, rows=5.0).in_part(0.5) == Slower(2.0, rows=3.0)


def test_small_steps_run_on_one_thread() -> None:
    of = lowered(stack())
    assert predict(of, {"batch": 2}, machine(), 2).threads == 1
    assert predict(of, {"batch": 4096}, machine(), 2).threads == 2


def test_a_roofline_is_the_longer_of_work_and_bytes() -> None:
    of = lowered(stack())
    wide, narrow = Roofline(1e12, 1e30 / 1e13, 0.0), Roofline(1e20, 1e9, 0.0)
    calls = [c for _, c in calls_of(of, {"batch": 64})]
    assert step_time(of, {"batch": 64}, wide).seconds == pytest.approx(sum(max(2 * c.work / 1e12, c.touched / 1e17) for c in calls))
    assert step_time(of, {"batch": 64}, narrow).seconds == pytest.approx(sum(c.touched / 1e9 for c in calls), rel=1e-6)


def test_devices_in_words() -> None:
    found = device_of("150TFLOPS:2TB/s")
    assert isinstance(found, Roofline)
    assert (found.flops, found.bandwidth) == (150e12, 2e12)
    for wrong in ("150TFLOPS:", "TFLOPS:1GB/s", "-1TFLOPS:1GB/s", "nanTFLOPS:1GB/s", "1TFLOPS:1TFLOPS"):
        with pytest.raises(fs.SchemaError):
            device_of(wrong)
    with pytest.raises(fs.ForeshapeError):
        device_of("no such file")


def with_other_names(part: Any) -> Any:
    """A part of a call's record with each constant under another name."""
    if isinstance(part, NamedConstant):
        return part._replace(name=f"x_{part.name}")
    if not isinstance(part, tuple):
        return part
    parts = [with_other_names(p) for p in part]
    return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("name", CASES)
def test_no_prediction_depends_on_how_a_call_is_written(name: str) -> None:
    def calls(renamed: bool) -> list[object]:
        program = fs.load_program(case(name).path("main.pdmodel"))
        of = fuse(lower(program.global_block, [n for n in case(name).about.get("fetches", ()) if program.global_block.find(n) is not None]))
        for i in of.calls if renamed else ():
            if isinstance(i, FusedCall):
                i.kernel = replace(i.kernel, call=with_other_names(i.kernel.call), in_place=with_other_names(i.kernel.in_place))
        records = [(r.name, str(r.size), r.first, r.last, r.fixed) for r in liveness(of).records]
        return [*((c.kind, c.at, c.scaling, c.reads, c.writes, c.work) for _, c in calls_of(of, {})), *records]

    assert calls(renamed=True) == calls(renamed=False)
