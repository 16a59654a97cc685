"""The plan for each kind of input of ``foreshape plan``, with its options."""

from __future__ import annotations

import os
from pathlib import Path

from foreshape.apps.cli.command_options import PlanOptions, refuse, refuse_changed
from foreshape.apps.cli.factory import is_exported_file, is_factory, print_network_plan
from foreshape.apps.cli.options import another_file, with_shapes
from foreshape.apps.cli.output import plain_errors
from foreshape.apps.cli.plan import print_plan
from foreshape.apps.cli.user_operators import import_operators
from foreshape.interop import load_program

_OF_RANKS = ("bandwidth", "latency", "device", "threads", "measured")


def print_any_plan(file: Path, operators: list[Path] | None, options: PlanOptions) -> bool:
    """Print the plan of a saved program, also for ranks, or of a network of torch. Return True within the limit.

    Raises:
        typer.BadParameter: an option does not apply to this input, or beside another option.
    """
    place = os.fspath(file)
    if options.html is not None:
        another_file(options.html, file, "--html")
    if options.ranks is None:
        refuse_changed(options, _OF_RANKS, "a plan with --ranks", "this one is without")
    else:
        refuse_changed(options, ["html"], "a plan without --ranks", f"this one has --ranks {options.ranks}")
    from_factory = is_factory(place)
    if from_factory and options.ranks is not None:
        refuse("--ranks", "saved programs", f"{place} is a function")
    of_program = "--ranks" if options.ranks is not None else "--fetch" if options.fetch else ""
    from_torch = from_factory or (not of_program and is_exported_file(place))
    if options.train is not None and not from_torch:
        seen = f"{of_program} plans {place} as a program" if is_exported_file(place) else f"{place} is neither"
        refuse("--train", "a network of torch: package:function, or a .pt2", seen)
    with plain_errors():
        import_operators(operators)
        if from_torch:
            return print_network_plan(place, options)
        program, sizes = with_shapes(load_program(place), options.sizes)
        if options.ranks is not None:
            from foreshape.apps.cli.ranks import print_ranks_plan

            return print_ranks_plan(program, options, sizes)
        return print_plan(program, options, sizes)
