"""The memory plan of a program as tables, and as facts for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from foreshape.apps.cli.command_options import PlanOptions, require_open_rows
from foreshape.apps.cli.output import console, print_json, print_plain, printing
from foreshape.apps.cli.show import human_bytes, new_row, new_table
from foreshape.compiler.memory import Plan, bytes_of
from foreshape.errors import MemoryPlanError
from foreshape.language.program import Program
from foreshape.language.text.literal import escape, name_text

_MOST_ROWS, _MOST_UNKNOWN = 20, 5
_PICTURES = (".png", ".svg", ".pdf")


def print_plan(
    program: Program,
    options: PlanOptions,
    sizes: Mapping[str, int],
) -> bool:
    """Print the plan, and write the files asked for. Return True within the limit.

    Args:
        sizes: the values of open sizes; the program has the shapes of ``options.sizes`` already.
    """
    require_picture(options.plot)
    limit = None if options.within is None else bytes_of(options.within)
    plan = Plan(program, options.fetch)
    require_open_rows(options.batch, plan.leading, sizes)
    for name in sizes:
        if name not in plan.symbols and name not in plan.leading:
            raise MemoryPlanError(f"the memory does not depend on {name}; it depends on {', '.join(sorted(plan.symbols)) or 'nothing'}")
    values = {**(dict.fromkeys(plan.leading, options.batch) if options.batch is not None else {}), **sizes}
    values = {n: v for n, v in values.items() if n in plan.symbols or n in sizes}
    fitting = _values_within(plan, values, limit)
    fits = limit is None or plan.peak(**fitting) <= limit
    facts = plan_facts(plan, fitting, limit)
    if fitting != values:
        facts["largest"] = {n: v for n, v in fitting.items() if n not in values}
    write_pictures(plan, options, fitting)
    if options.json:
        print_json(facts)
    else:
        _print(facts)
    return fits


def require_picture(path: Path | None) -> None:
    """Raise `typer.BadParameter` for a file of another kind than a picture."""
    if path is not None and path.suffix.lower() not in _PICTURES:
        raise typer.BadParameter(f"{str(path)!r} must end in {', '.join(_PICTURES)}", param_hint="--plot")


def write_pictures(plan: Plan, options: PlanOptions, sizes: Mapping[str, int]) -> None:
    """Write the drawing and the page of a plan, where their options name files."""
    if options.plot is not None:
        plan.draw(options.plot, **sizes)
    if options.html is not None:
        plan.write_page(options.html, **sizes)


def _values_within(plan: Plan, values: dict[str, int], limit: int | None) -> dict[str, int]:
    """Return all values; with a limit, a missing one is the largest with a plan within it."""
    missing = sorted(plan.symbols - values.keys())
    if not missing:
        return values
    rows = [n for n in missing if n in plan.leading]
    remaining = [n for n in missing if n not in plan.leading]
    if limit is not None and not remaining:
        return {**values, **dict.fromkeys(rows, plan.largest("batch" if "batch" not in plan.symbols else rows[0], within=limit, **values))}
    if limit is not None and len(missing) == 1:
        return {**values, missing[0]: plan.largest(missing[0], within=limit, **values)}
    words = ", ".join(map(name_text, missing))
    ways = ways_to_set(rows, remaining)
    if limit is not None:
        left = "all of them but one" if not rows else "all of them but the batch"
        raise MemoryPlanError(f"the memory depends on {words}: to find the largest, give {left}: {' '.join(ways[1 if rows else 0 :])}")
    raise MemoryPlanError(f"the memory depends on {words}: give {' and '.join(ways)}")


def ways_to_set(rows: Sequence[str], symbols: Sequence[str]) -> list[str]:
    """Return the options for values of symbols: for numbers of examples, and others."""
    ways = ["--batch=..." + ("" if len(rows) == 1 else f" (which sets {', '.join(map(name_text, rows))})")] if rows else []
    return ways + [f"--set {name_text(n)}=..." for n in symbols]


def plan_facts(plan: Plan, values: dict[str, int], limit: int | None) -> dict[str, Any]:
    """Return the whole plan for JSON."""
    peak, op, line = plan.peak(**values), plan.peak_op(**values), None
    if op is not None and op.call_site is not None:
        line = op.call_site.short()
    holders = plan.holders(**values)
    return {
        "sizes": values,
        "fetch": list(plan.fetch),
        "peak": peak,
        "formula": str(plan.peak_formula()),
        "formula_here": plan.peak_words(**values),
        "within": limit,
        "fits": None if limit is None else peak <= limit,
        "breakdown": plan.breakdown(**values),
        "position": plan.peak_position(**values),
        "op": None if op is None else op.type,
        "line": line,
        "ops": plan.live.positions,
        "held": plan.held(**values),
        "unknown": [{"op": u.op.type, "line": "" if u.op.call_site is None else u.op.call_site.short(), "why": u.why} for u in plan.unknown(**values)],
        "arena": plan.arena(**values),
        "lower_bound": plan.lower_bound(**values),
        "alive": [{"name": h.name, "type": h.spec, "bytes": h.size, "for": h.what, "line": h.line} for h in holders],
    }


def _print(facts: dict[str, Any]) -> None:
    out = console()
    with printing():
        sizes = ", ".join(f"{name_text(n)} = {v:,}" for n, v in facts["sizes"].items())
        if "largest" in facts:
            largest = ", ".join(f"{name_text(n)} = {v:,}" for n, v in facts["largest"].items())
            print_plain(f"largest within {human_bytes(facts['within'])}: {largest}")
        print_plain(f"peak{' for ' + sizes if sizes else ''}: {human_bytes(facts['peak'])}")
        if facts["within"] is not None and "largest" not in facts:
            excess, limit = facts["peak"] - facts["within"], human_bytes(facts["within"])
            print_plain(f"does not fit within {limit}: {human_bytes(excess)} too much" if excess > 0 else f"fits within {limit}")
        print_plain(f"formula: {facts['formula_here']}")
        for entry in facts["unknown"][:_MOST_UNKNOWN]:
            print_plain(f"not in these figures is the workspace of {entry['op']}, which is unknown: {escape(entry['why'])}    {entry['line']}".rstrip())
        if len(facts["unknown"]) > _MOST_UNKNOWN:
            print_plain(f"nor are the workspaces of {len(facts['unknown']) - _MOST_UNKNOWN:,} other ops")
        if facts["op"] is not None:
            place = f"    {facts['line']}" if facts["line"] else ""
            print_plain(f"the peak is at op {facts['position']} of {facts['ops']}, {facts['op']}{place}")
        bound = facts["lower_bound"]
        times = "the lower bound" if facts["arena"] == bound else f"{facts['arena'] / bound:.3f} times the lower bound"
        print_plain(f"arena: {human_bytes(facts['arena'])}, {times}; besides, kept between runs: {human_bytes(facts['held'])}")
        if facts["fetch"]:
            print_plain(f"fetched: {', '.join(map(name_text, facts['fetch']))}")
        table = new_table("at the peak", "for", "bytes", "share")
        for part, size in facts["breakdown"].items():
            if size:
                new_row(table, part, f"{size:,}", f"{100 * size / facts['peak']:.1f} %")
        out.print(table)
        alive = facts["alive"]
        title = f"the largest of {len(alive):,} at the peak" if len(alive) > _MOST_ROWS else "alive at the peak"
        table = new_table(title, "name", "type and shape", "bytes", "for", "line")
        for holder in alive[:_MOST_ROWS]:
            new_row(table, escape(holder["name"]), holder["type"], f"{holder['bytes']:,}", holder["for"], holder["line"])
        out.print(table)
