"""Blocks in blocks, 4 to 60 deep, valid and invalid: each is accepted or refused in words, with work that grows as the file does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from nested import INVALID, VALID, nest
from support.some import one_in
from support.survival import use

from foreshape.errors import DescriptionError
from foreshape.language.infer import op_inference
from foreshape.language.infer.inference import Inference
from foreshape.language.program import Block, Program, names
from foreshape.language.wire import load_program

DEPTHS = (4, 8, 16, 32, 60)
EVERY = VALID | INVALID


class Work:
    """How many ops were inferred, and the names of how many blocks gathered."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ops = self.blocks = 0
        infer, gather = op_inference.infer, names._gathered  # pyright: ignore[reportPrivateUsage]

        def counted(block: Block, *args: Any, **kw: Any) -> None:
            self.ops += 1
            infer(block, *args, **kw)

        def gathered(block: Block) -> Any:
            self.blocks += 1
            return gather(block)

        patch.setattr(op_inference, "infer", counted)
        patch.setattr(Inference, "infer", staticmethod(counted))
        patch.setattr(names, "_gathered", gathered)


@pytest.mark.long_cases("a-variable-that-grows-in-each")
@pytest.mark.parametrize("name", one_in(2, EVERY))
def test_inference_is_linear_in_depth(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ops that are inferred, for each op of the file: no more of a deep nest than of a shallow one."""
    work = Work(monkeypatch)
    visits: list[float] = []
    for depth in DEPTHS:
        program = load_program(nest(EVERY[name], depth))
        work.ops = work.blocks = 0
        _, errors = program.diagnose()
        assert bool(errors) == bool(EVERY[name].refused), errors
        for error in errors:
            assert isinstance(error, DescriptionError)
            assert EVERY[name].refused in str(error)
        visits.append(work.ops / sum(1 for _ in program.all_ops()))
        assert work.blocks <= 2 * len(program.blocks)
    assert max(visits) < 8, visits
    assert visits[-1] < 1.3 * visits[1] + 0.1, visits


@pytest.mark.long_cases("a-variable-that-grows-in-each-60", "a-placeholder-that-grows-60", "a-rank-that-changes-in-a-branch-60")
@pytest.mark.parametrize("depth", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 5)), pytest.param(13, marks=pytest.mark.long), 60])
@pytest.mark.parametrize("name", one_in(2, EVERY))
def test_a_nest_survives_what_every_program_must(name: str, depth: int) -> None:
    errors = use(load_program(nest(EVERY[name], depth)))
    assert bool(errors) == bool(EVERY[name].refused), errors


@pytest.mark.parametrize("name", ["while-in-while", "a-variable-that-grows-in-each", "a-variable-that-is-handed-on", "branch-in-while-that-grows"])
def test_a_nest_infers_to_the_same_again(name: str) -> None:
    program = load_program(nest(VALID[name], 7))
    program.infer()
    first = str(program)
    program.infer()
    assert str(program) == first


def calls(do: Callable[[], Any]) -> int:
    """How many Python functions are called, which is work that no other process has a say in."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        do()
    finally:
        sys.setprofile(before)
    return count


PHASES: dict[str, tuple[float, Callable[[Program], Any]]] = {
    "read": (1.3, lambda p: Program.from_bytes(p.to_bytes())),
    "print": (1.3, str),
    "parse": (1.3, lambda p: Program.parse(str(p))),
    "clone": (1.3, lambda p: p.clone()),
    "names": (1.3, lambda p: [op.all_reads() | op.all_writes() for op in p.all_ops()]),
    "infer": (1.7, lambda p: p.infer()),
}
"""What is done with a program, and the power of its depth with which its calls may grow: 1, and what looking up names through the blocks adds."""


@pytest.mark.quick_cases(one_in=4, turn=2)
@pytest.mark.parametrize("phase", one_in(2, PHASES))
@pytest.mark.parametrize("name", ["while-in-while", "a-variable-that-grows-in-each", "branch-in-while"])
def test_what_is_done_with_a_nest_grows_as_it_does(name: str, phase: str) -> None:
    power, do = PHASES[phase]
    counts: list[int] = []
    for depth in (16, 16, 32):  # the first time modules are imported
        program = load_program(nest(VALID[name], depth))
        program.infer()
        counts.append(calls(lambda program=program: do(program)))
    assert counts[2] < counts[1] * 2**power, counts
