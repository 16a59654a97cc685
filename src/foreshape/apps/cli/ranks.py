"""Plans for many ranks, as tables and as facts for JSON; and the calibration of this machine."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import Any

import typer

from foreshape.apps.cli.command_options import PlanOptions, refuse_threads, require_open_rows
from foreshape.apps.cli.output import console, print_json, print_plain, printing
from foreshape.apps.cli.plan import ways_to_set
from foreshape.apps.cli.show import human_bytes, new_row, new_table
from foreshape.compiler.cost import Network, RanksPlan
from foreshape.compiler.cost import plan as plan_ranks
from foreshape.compiler.cost.draw import draw_timeline
from foreshape.compiler.cost.measured import Measured
from foreshape.compiler.memory import bytes_of
from foreshape.core.folders import require_writable
from foreshape.errors import ExecutionError, FormatError, MemoryPlanError, SchemaError
from foreshape.language.program import Program
from foreshape.language.text.literal import escape, name_text

_PATIENCE = 60.0
"""Seconds for ranks to wait for one another in a measurement of their link."""


def print_ranks_plan(program: Program, options: PlanOptions, sizes: Mapping[str, int]) -> bool:
    """Print the memory, messages and waiting of each of many ranks. Return True within the limit.

    Args:
        sizes: the values of open sizes; the program has the shapes of ``options.sizes`` already.
    """
    refuse_threads(options.device, options.threads)
    _require_no_parameter(sizes)
    values = {**({"batch": options.batch} if options.batch is not None else {}), **sizes}
    network = Network.of(options.bandwidth, options.latency)
    with _symbols_as_options():
        plan = plan_ranks(program, options.fetch, ranks=options.ranks or 1, within=options.within, network=network, device=options.device,
                          threads=options.threads, **values)  # fmt: skip  # pyright: ignore[reportArgumentType]
        _require_open_sizes(plan, options.batch, sizes)
        facts = ranks_facts(plan, options.within)
    step = None if options.measured is None else Measured.load(options.measured)
    if step is not None:
        facts["measured"] = measured_facts(plan, step)
    if options.plot is not None:
        draw_timeline(plan, options.plot, step)
    if options.json:
        print_json(facts)
    else:
        _print_plan(facts)
    return facts["fits"] is not False


def _require_no_parameter(sizes: Mapping[str, int]) -> None:
    """Raise `SchemaError` for an open size with the name of a parameter of `foreshape.compiler.cost.plan`."""
    for name in sorted(sizes.keys() & signature(plan_ranks).parameters.keys()):
        raise SchemaError(f"--set takes open sizes of the inputs; {name} is none")


def _require_open_sizes(plan: RanksPlan, batch: int | None, sizes: Mapping[str, int]) -> None:
    """Raise `MemoryPlanError` for a name of no open size, `typer.BadParameter` for a batch where none is open."""
    symbols, rows = plan.memory.symbols, ["batch"] if "batch" in plan.memory.symbols else plan.memory.leading
    for name in sizes:
        if name not in symbols and name not in plan.memory.leading:
            raise MemoryPlanError(f"the memory does not depend on {name}; it depends on {', '.join(sorted(symbols)) or 'nothing'}")
    require_open_rows(batch, rows, sizes)


@contextmanager
def _symbols_as_options() -> Generator[None]:
    """Name symbols without a value by their options."""
    try:
        yield
    except MemoryPlanError as error:
        if not error.missing:
            raise
        ways = ways_to_set([n for n in error.missing if n == "batch"], [n for n in error.missing if n != "batch"])
        raise MemoryPlanError(f"the memory depends on {', '.join(map(name_text, error.missing))}: give {' and '.join(ways)}") from None


def ranks_facts(plan: RanksPlan, within: str | None) -> dict[str, Any]:
    """Return a plan for JSON."""
    limit = None if within is None else bytes_of(within)
    smallest, reason = None, ""
    if limit is not None:
        try:
            smallest = plan.smallest(limit)
        except MemoryPlanError as error:
            reason = str(error)
    peak = plan.peak()
    facts: dict[str, Any] = {
        "strategy": plan.name,
        "sizes": plan.sizes,
        "shared": sorted(plan.shared),
        "network": str(plan.network),
        "device": None if plan.device is None else str(plan.device),
        "peak": peak,
        "formula": plan.peak_words(),
        "breakdown": plan.breakdown(),
        "within": limit,
        "fits": None if limit is None else peak <= limit,
        "smallest": smallest,
        "never": reason,
        "sent": plan.sent(),
        "collectives": [collective._asdict() for collective in plan.collectives()],
        "time": _time_facts(plan),
        "alternatives": [],
    }
    for strategy in plan.alternatives:
        strategy_peak = strategy.peak()
        fits = None if limit is None else strategy_peak <= limit
        facts["alternatives"].append(
            {"strategy": strategy.name, "peak": strategy_peak, "fits": fits, "sent": sum(strategy.sent().values()), "time": _time_facts(strategy)}
        )
    return facts


def measured_facts(plan: RanksPlan, step: Measured) -> dict[str, Any]:
    """Return a measured step beside the planned one, for JSON. Raise `FormatError`: it is of another number of ranks."""
    ranks = plan.sizes["ranks"]
    if len(step.ranks) != ranks:
        raise FormatError(f"a step of {len(step.ranks):,} ranks was measured, and {ranks:,} are planned: give --ranks {len(step.ranks)}")
    sent: dict[str, int] = {}
    for m in step.ranks[0].messages:
        sent[m.type] = sent.get(m.type, 0) + m.bytes
    return {
        "step": step.step,
        "steps": step.steps,
        "seconds": step.seconds,
        "sent": sent,
        "ranks": [{"seconds": r.seconds, "exposed": r.exposed, "communicating": r.communicating} for r in step.ranks],
    }


def _time_facts(plan: RanksPlan) -> dict[str, float] | None:
    if plan.device is None:
        return None
    timeline = plan.timeline()
    return {
        "seconds": timeline.seconds,
        "computing": timeline.computing,
        "communicating": timeline.communicating,
        "exposed": timeline.exposed,
        "hidden": timeline.hidden,
        "guessed": timeline.step.guessed,
    }


def _print_plan(facts: dict[str, Any]) -> None:
    out = console()
    with printing():
        sizes = ", ".join(f"{n} = {v:,}" for n, v in facts["sizes"].items())
        print_plain(f"{facts['strategy']} for {sizes}; {', '.join(facts['shared'])} divided over the ranks")
        print_plain(f"peak of a rank: {human_bytes(facts['peak'])}")
        print_plain(f"formula: {facts['formula']}")
        if facts["within"] is not None:
            print_plain(f"{'fits' if facts['fits'] else 'does not fit'} within {human_bytes(facts['within'])}")
            print_plain(facts["never"] or f"the smallest number of ranks on which it fits: {facts['smallest']:,}")
        time = facts["time"]
        if time is None:
            print_plain("times are unknown: run `foreshape calibrate`, or give --device")
        else:
            print_plain(f"step: {_ms(time['seconds'])}: {_ms(time['computing'])} of kernels, {_ms(time['exposed'])} of waiting for messages")
            print_plain(f"communication: {_ms(time['communicating'])}, of which {100 * time['hidden']:.0f} % passes while kernels run")
            if time["guessed"] > 0.1 and "FLOPS" not in facts["device"]:
                print_plain(f"{100 * time['guessed']:.0f} % of the time is estimated from bytes and work: these kernels were not measured")
            print_plain(f"device: {facts['device']}; network: {facts['network']}")
        measured = facts.get("measured")
        if measured is not None:
            waits = max(row["exposed"] for row in measured["ranks"])
            sent, planned = sum(measured["sent"].values()), sum(facts["sent"].values())
            print_plain(
                f"measured: {_ms(measured['seconds'])}, of which a rank waits at most {_ms(waits)}; step {measured['step']:,}, the median of "
                f"{measured['steps']:,}; {sent:,} bytes sent by rank 0, {planned:,} planned"
            )
        columns = ("value", "op", "bytes", "formula", "bytes on the link", "ready", "start", "end", "needed at op", "line")
        table = new_table("collectives of a step", *columns)
        for row in facts["collectives"]:
            times = [_ms(row[k]) if time is not None else "" for k in ("ready", "began", "came")]
            new_row(table, escape(row["name"]), row["type"], f"{row['bytes']:,}", _share_text(row["formula"]), f"{row['on_the_link']:,}", *times,
                    f"{row['needed']:,}" if row["needed"] != row["starts"] else "at once", row["line"])  # fmt: skip
        if facts["collectives"]:
            out.print(table)
        else:
            print_plain("nothing is sent: each rank has its part of the examples")
        table = new_table("strategies, best first", "strategy", "peak of a rank", "fits", "bytes", "step", "hidden")
        for row in facts["alternatives"]:
            when = row["time"]
            fits = "" if row["fits"] is None else "yes" if row["fits"] else "no"
            new_row(table, row["strategy"], human_bytes(row["peak"]), fits, f"{row['sent']:,}", "" if when is None else _ms(when["seconds"]),
                    "" if when is None else f"{100 * when['hidden']:.0f} %")  # fmt: skip
        out.print(table)


def _share_text(formula: str) -> str:
    """Return ``(batch + ranks - 1) // ranks`` as a person writes it."""
    return RanksPlan.shared_words(formula)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 10 else f"{seconds:.3g} s"


def calibrate_here(out: Path | None, threads: Sequence[int], json: bool) -> None:
    """Measure this machine, and save the result."""
    from foreshape.compiler.cost.measure import calibrate
    from foreshape.runtime.engine import Executor, Scope

    if any(n < 1 or n > 1024 for n in threads):
        raise typer.BadParameter("a number of threads is from 1 to 1024", param_hint="--threads")
    if out is not None:
        require_writable(out)
    executor, scope = Executor(), Scope()

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    messages = Console(stderr=True, quiet=json)
    messages.print("measuring this machine's kernels, about half a minute for each number of threads; other programs that run meanwhile distort the result")
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=messages, disable=not messages.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        calibration = calibrate(
            lambda program, feed, name: executor.run(program, feed, [name], scope),
            threads,
            said=lambda words, done: bar.update(task, description=words, completed=done),
        )
    path = calibration.save(out)
    if json:
        print_json(
            {"path": str(path), "machine": calibration.machine, "threads": {n: {"step": k.step, "kinds": len(k.kinds)} for n, k in calibration.threads.items()}}
        )
        return
    with printing():
        for n, k in calibration.threads.items():
            print_plain(
                f"{n} thread{'' if n == 1 else 's'}: {len(k.kinds)} kinds of kernels, {sum(map(len, k.kinds.values())):,} measurements; "
                f"{1e6 * k.step:.0f} microseconds for a step besides its kernels"
            )
        print_plain(f"{calibration.machine}: {path}")


def calibrate_link(out: Path | None, json: bool) -> None:
    """Measure the link between torchrun's ranks; the first of them reports it."""
    from foreshape.compiler.cost.link import measure_link
    from foreshape.machine.communication.join import join

    if out is not None:
        raise typer.BadParameter("the link between ranks is printed, not saved", param_hint="--out")
    with join(_PATIENCE) as ranks:
        if ranks.team is None:
            raise ExecutionError("there is only one rank: start this with torchrun --nproc-per-node 2 -m foreshape calibrate --link")
        network, slower = measure_link(ranks.team)
    if not ranks.first:
        return
    if json:
        print_json({"ranks": ranks.count, **asdict(network), "slower": slower._asdict()})
        return
    with printing():
        print_plain(f"{ranks.count:,} ranks: --bandwidth {network.bandwidth * 8 / 1e9:.3g}Gb/s --latency {network.latency * 1e6:.0f}us")
        print_plain(
            f"ranks wait {network.meeting * 1e6:.0f}us for one another at each collective; a message takes {network.handling * 1e6:.0f}us of the "
            f"processors, and {network.processor * 2**30:.2g} s for each GiB; while all ranks compute, kernels take {slower}"
        )
