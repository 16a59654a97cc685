"""The refusal of a run past its memory limit: the need, the limit and its origin, and the largest fitting sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from foreshape.compiler.memory import Plan, byte_text
from foreshape.compiler.memory.records import unknown_words
from foreshape.core.dims import symbol_name
from foreshape.errors import MemoryPlanError, ShapeError
from foreshape.machine.process.this_run import MemoryLimit

_MOST_SHOWN = 3
_TRIES = 8
"""The most sizes tried below the largest of the plan, for one within the program's conditions."""


def past_limit(plan: Plan, limit: MemoryLimit, symbol_sizes: Mapping[str, int], values: Mapping[str, int]) -> MemoryPlanError:
    """Return the refusal of a run.

    Args:
        plan: with a peak past the limit.
        symbol_sizes: a value for each symbol of the plan.
        values: the symbols with a value before the run, by the shapes of its inputs and state.
    """
    parts = "".join(f"\n    {part:18} {byte_text(size):>9}" for part, size in plan.breakdown(**symbol_sizes).items() if size)
    sizes = ", ".join(f"{n} = {v:,}" for n, v in sorted(symbol_sizes.items()))
    largest = plan.holders(**symbol_sizes)[0]
    needs = byte_text(plan.peak(**symbol_sizes)) + (f" for {sizes}" if sizes else "") + unknown_words(plan.unknown(**symbol_sizes))
    return MemoryPlanError(
        f"this run needs {needs}, and it may take {byte_text(limit.size)} ({limit.words}):"
        f"{parts}\n    the largest is {largest.name}, {largest.spec}, {byte_text(largest.size)}    {largest.line}{_fitting(plan, limit, symbol_sizes, values)}"
    )


def _fitting(plan: Plan, limit: MemoryLimit, symbol_sizes: Mapping[str, int], values: Mapping[str, int]) -> str:
    """Return in words the largest fitting value of each size of an input, the other sizes as they are."""
    fitting, too_large = list[str](), list[str]()
    for name, symbols in _adjustable(plan, symbol_sizes, values):
        remaining = {n: v for n, v in symbol_sizes.items() if n not in symbols}
        with suppress(MemoryPlanError, ShapeError):  # the memory rises and falls with it, or sizes are past any number
            if plan.peak(**remaining, **dict.fromkeys(symbols, 1)) > limit.size:
                too_large.append(name)
                continue
            bound = _allowed(plan, symbols, plan.largest(name, limit.size, **remaining), values)
            if bound is not None and plan.peak(**remaining, **dict.fromkeys(symbols, bound)) <= limit.size:
                fitting.append(f"{name} = {bound:,}")
    if fitting:
        return f"\n    the largest that fits is {', or '.join(fitting[:_MOST_SHOWN])}{', the other sizes as they are' if len(symbol_sizes) > 1 else ''}"
    return f"\n    it does not fit even with {' or '.join(f'{name} = 1' for name in too_large[:_MOST_SHOWN])}" if too_large else ""


def _adjustable(plan: Plan, symbol_sizes: Mapping[str, int], values: Mapping[str, int]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the sizes to ask for, each with its symbols: the rows of all inputs together where they are equal, then others."""
    rows = tuple([n for n in plan.leading if n in symbol_sizes and n in values])
    if len(rows) > 1 and "batch" not in plan.symbols and len({symbol_sizes[n] for n in rows}) == 1:
        yield "batch", rows
    else:
        yield from ((n, (n,)) for n in rows)
    yield from ((n, (n,)) for n in sorted(symbol_sizes) if n in values and n not in rows)


def _allowed(plan: Plan, symbols: tuple[str, ...], bound: int, values: Mapping[str, int]) -> int | None:
    """Return the largest value up to ``bound`` within the program's conditions, among a few nearest ones; None if there is none."""
    feeds = plan.program.feeds
    wished, size = {**values}, bound
    for _ in range(_TRIES):
        wished.update(dict.fromkeys(symbols, size))
        near = feeds.nearest({name: [wished.get(symbol_name(d) or "", 0) for d in entry.dims] for name, entry in feeds.items() if entry.dims is not None})
        places = [(name, axis) for name, entry in feeds.items() for axis, d in enumerate(entry.dims or ()) if symbol_name(d) in symbols]
        if near is None or not places:
            return bound
        nearest = max(near[name][axis] for name, axis in places)
        if nearest <= bound:
            return nearest if nearest > 0 else None
        size -= max(1, nearest - size)
        if size < 1:
            return None
    return None
