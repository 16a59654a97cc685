"""The calls of a step before and after each rewrite, compared with files: ``pytest tests/lowering --update`` writes them again."""

from __future__ import annotations

import inspect
from difflib import unified_diff
from pathlib import Path

import pytest
from golden.test_golden import compare
from lowering import rewrite_cases

import foreshape as fs
from foreshape.compiler.lowering import lower
from foreshape.compiler.lowering.fusion import rewrites
from foreshape.compiler.lowering.fusion.graph import Graph
from foreshape.compiler.lowering.fusion.rewrite_order import Rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, FusedCall, KernelCall
from foreshape.language.program import Role
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.kernels.packed_recurrence import can_pack
from foreshape.transforms.passes import for_test

FOLDER = Path(__file__).parent / "rewrites"
CASES = {name: f for name, f in inspect.getmembers(rewrite_cases, inspect.isfunction) if not name.startswith("_") and f.__module__ == rewrite_cases.__name__}


def text_of(argument: Argument) -> str:
    """Return the text of operands or of results."""
    if isinstance(argument, list):
        return f"[{', '.join(map(text_of, argument))}]"
    return "-" if argument is None else argument.name


def lines(graph: Graph) -> list[str]:
    """Return a line for each call: its results, its kernel, its operands, and its stores in the scope."""

    def line(i: KernelCall) -> str:
        kernel = i.kernel.kind.format(op=i.op.type).strip() if isinstance(i, FusedCall) else i.op.type
        back = " (backward)" if i.op.role & Role.BACKWARD else ""
        stores = "".join(f"; {place.name} = {value.name}" for place, value in i.stores)
        return f"{', '.join(map(text_of, i.results)) or '-'} = {kernel}({', '.join(map(text_of, i.arguments))}){stores}{back}"

    return [line(i) for place in graph.places for i in place]


def applied(rewrite: Rewrite, program: fs.Program, fetches: list[str], frozen: bool) -> tuple[int, list[str]]:
    """Apply the rewrites up to one; return the number of its rewrites, and the calls that it takes (``-``) and makes (``+``)."""
    graph = Graph(lower(program.global_block, fetches, frozen=frozen))
    for earlier in rewrites()[: rewrites().index(rewrite)]:
        may_match = graph.may_match(earlier)
        assert not earlier.apply(graph) or may_match, f"{earlier.name} declares too few computations"
    before = lines(graph)
    assert graph.may_match(rewrite)
    count = rewrite.apply(graph)
    return count, [line for line in [*unified_diff(before, lines(graph), n=0, lineterm="")][2:] if line[0] != "@"]


@pytest.mark.usefixtures("on_blas")
@pytest.mark.parametrize("rewrite", rewrites(), ids=lambda r: r.name)
def test_the_calls_before_and_after_a_rewrite(rewrite: Rewrite, update: bool) -> None:
    if rewrite.name in rewrite_cases.NEEDS_LIBRARY and library() is None:
        pytest.skip("oneDNN's library is not installed for this machine")
    if rewrite.name in rewrite_cases.NEEDS_NUMBA and not can_pack():
        pytest.skip("numba is not installed")
    fetches = [v.name for v in CASES[rewrite.name]()]
    frozen, program = rewrite.name.startswith("frozen"), fs.default_main_program()
    count, text = applied(rewrite, for_test(program) if frozen else program, fetches, frozen)
    assert count and text
    compare(FOLDER / f"{rewrite.name}.txt", "\n".join(text), update)


def test_each_rewrite_has_a_network_and_a_file() -> None:
    names = {r.name for r in rewrites()}
    assert CASES.keys() == names == {p.stem for p in FOLDER.iterdir()}
