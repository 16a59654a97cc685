"""``package:factory``: a network made by a function of the user's, for `foreshape plan`."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from foreshape.cli.completion import is_optimizer, optimizers
from foreshape.cli.output import print_json, print_plain, printing
from foreshape.cli.plan import plan_facts, print_plan, ways_to_set
from foreshape.errors import MemoryPlanError, SchemaError
from foreshape.hints import near
from foreshape.memory import bytes_of
from foreshape.program import Program

_PLACE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


def is_factory(text: str) -> bool:
    """Tell whether it names a function, as ``package.module:function``, and no file."""
    return _PLACE.match(text) is not None and not os.path.exists(text)


def is_exported_file(path: str) -> bool:
    """Tell whether it is the path of a network of torch, a ``.pt2``."""
    return path.endswith(".pt2") and os.path.isfile(path)


def _of_shapes(program: Program, sizes: Mapping[str, Sequence[int | str]]) -> dict[str, int]:
    """Return the values of open sizes in whole shapes of inputs, as ``--shape x=8,64`` gives them.

    Raises:
        SchemaError: another number of dims, or another number at a place.
    """
    values: dict[str, int] = {}
    for name, shape in sizes.items():
        variable = program.global_block.vars.get(name)
        if variable is None or not variable.need_check_feed:
            continue
        dims = variable.spec.known_dims
        if len(dims) != len(shape) or any(isinstance(d, int) and d != n for d, n in zip(dims, shape, strict=True)):
            raise SchemaError(f"{name} is {variable.spec.text()}; the shape of --set is {', '.join(map(str, shape))}")
        values |= {str(d): n for d, n in zip(dims, shape, strict=True) if isinstance(n, int) and not isinstance(d, int)}
    return values


def made_by(place: str) -> tuple[Any, Any]:
    """Call a function of no arguments; return the network, or other result, and an example of the inputs, or None.

    Raises:
        typer.BadParameter: there is no such module or function. SchemaError: its result cannot be planned.
    """
    module, _, name = place.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the command was started from here
    try:
        function = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name != module and not module.startswith(f"{error.name}."):
            raise
        raise typer.BadParameter(f"{place!r}: {error}", param_hint="FILE") from error
    product = function()
    if product.__class__ is not tuple:
        return product, None
    if len(product) != 2:
        raise SchemaError(f"{place} must return a network, or a network and an example of its inputs; it returns {len(product)} values")
    return product


def print_network_plan(
    place: str,
    fetch: Sequence[str],
    train: str | None,
    batch: int | None,
    sizes: Mapping[str, Sequence[int | str]],
    within: str | None,
    plot: Path | None,
    html: Path | None,
    json: bool,
) -> bool:
    """Print the plan of a function's result, or of a ``.pt2``: of a network of torch in eager torch, and in Foreshape's step. Return True within the limit.

    Raises:
        typer.BadParameter: ``train`` is the name of no optimizer, or the function makes a program.
    """
    from foreshape import optimizer
    from foreshape.interop.plans import is_program, plan

    product: Any = place
    example: Any = None
    if not is_exported_file(place):
        product, example = made_by(place)
    values = {name: size for name, shapes in sizes.items() for size in shapes if isinstance(size, int) and len(shapes) == 1}
    if is_program(product, "plan"):
        if train is not None:
            raise typer.BadParameter(f"{place} makes a program, which is planned as it is", param_hint="--train")
        program = product if isinstance(product, Program) else product.program
        return print_plan(program, list(fetch) or ([] if isinstance(product, Program) else [product.loss.name]), batch, values, within, plot, html, json)
    if fetch:
        raise typer.BadParameter("is for saved programs", param_hint="--fetch")
    kind = getattr(optimizer, train) if train in optimizer.__all__ else None
    if train is not None and not is_optimizer(kind):
        meant = " or ".join(near(train, optimizers()))
        raise typer.BadParameter(
            f"{train!r} is no optimizer of fs.optimizer{f'; did you mean {meant}?' if meant else ', as AdamW or SGD'}", param_hint="--train"
        )
    network = plan(product, example, optimizer=None if kind is None else kind())
    rows = network.meaning("batch")
    values |= _of_shapes(network.model.program, sizes) | (dict.fromkeys(rows or ["batch"], batch) if batch is not None else {})
    network.sizes |= values
    limit = None if within is None else bytes_of(within)
    looks = limit is not None and bool(rows) and not values.keys() & set(rows)
    missing = sorted(network.symbols - network.sizes.keys() - (set(rows) if looks else set()))
    if missing:
        ways = ways_to_set([n for n in missing if n in rows], [n for n in missing if n not in rows])
        raise MemoryPlanError(f"the memory depends on {', '.join(missing)}: give {' and '.join(ways)}")
    largest = network.largest("batch", limit) if limit is not None and looks else None
    if largest is not None:
        fitting = [n for n in (largest.ours, largest.eager) if isinstance(n, int)]
        network.sizes = {**dict.fromkeys(rows, fitting[0] if fitting else 1), **network.sizes}
    if json:
        eager = network.eager()
        facts = {"sizes": network.sizes, "eager": {**eager._asdict(), "peak": eager.peak}, "ours": plan_facts(network.ours, network.sizes, limit)}
        print_json(facts | ({} if largest is None else {"largest": {"eager": largest.eager, "ours": largest.ours}}))
    else:
        with printing():
            for line in [f"{network.heading()}:", *network.lines(), *([] if largest is None else [repr(largest)]), ""]:
                print_plain(line)
        print_plan(network.program, network.ours.fetch, None, network.sizes, None, plot, html, False)
    return limit is None or (network.ours.peak(**network.sizes) <= limit if largest is None else isinstance(largest.ours, int))
