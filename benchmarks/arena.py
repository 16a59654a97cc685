"""Laying out the arena: the hard instances of MiniMalloc's paper, networks that are made up here, and growth to 100,000 buffers."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from foreshape.compiler.memory import arena, lower_bound
from foreshape.compiler.memory.greedy import height, in_order
from foreshape.compiler.memory.layout_searcher import can_compile
from foreshape.compiler.memory.sections import checked
from foreshape.errors import MemoryPlanError

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.arena_instances import Ints, hard, network


def greedy(triple: tuple[Ints, Ints, Ints]) -> int:
    """The better of first-fit and best-fit, the largest first."""
    buffers = checked(*triple)
    made = [in_order(buffers, np.argsort(-buffers.size, kind="stable"), best_fit) for best_fit in (False, True)]
    return min(height(buffers, offsets) for offsets in made if offsets is not None)


def row(table: Table, name: str, triple: tuple[Ints, Ints, Ints], within: int | None = None, limit: float | None = None) -> None:
    bound, usual = lower_bound(*triple), greedy(triple) if len(triple[2]) <= 10_000 else None
    times: list[float] = []
    reached = "-"
    for _ in range(2):
        at = time.perf_counter()
        try:
            reached = f"{int((arena(*triple, within=within, time_limit=limit) + triple[2]).max()) / bound:.4f}"
        except MemoryPlanError:
            reached = "not reached"
        times.append(time.perf_counter() - at)
    asked = "" if within is None else f", within {within:,}"
    table.add_row(name + asked + (f", {limit:g} s" if limit else ""), f"{len(triple[2]):,}", f"{bound:,}", f"{usual / bound:.3f}" if usual else "",
                  reached, f"{min(times):.2f}")  # fmt: skip


def main() -> None:
    console = Console() if sys.stdout.isatty() else Console(width=140)
    table = Table("buffers of", "buffers", "lower bound", "first- or best-fit", "reached", "s", title=f"the arena (numba: {can_compile()})")
    for letter in "ABCDEFGH":
        row(table, letter, hard(letter), limit=10.0)
    for letter in "ABCDEFGH":
        row(table, letter, hard(letter), within=1048576, limit=60.0)
    for layers in (250, 500, 1_750, 2_500, 25_000):
        row(table, f"a network of {layers:,} layers", network(layers, 5))
    console.print(table)


if __name__ == "__main__":
    main()
