"""``package:factory``: a network made by a function of the user's, for `foreshape plan`."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import typer

from foreshape.apps.cli.command_options import PlanOptions, refuse, require_open_rows
from foreshape.apps.cli.completion import is_optimizer, optimizers
from foreshape.apps.cli.options import with_shapes
from foreshape.apps.cli.output import print_json, print_plain, printing
from foreshape.apps.cli.plan import plan_facts, print_plan, require_picture, ways_to_set, write_pictures
from foreshape.compiler.memory import bytes_of
from foreshape.core.hints import near
from foreshape.errors import MemoryPlanError, SchemaError
from foreshape.language.program import Program

if TYPE_CHECKING:
    from foreshape.interop.torch.network_plan import LargestSize, NetworkPlan
    from foreshape.optimizer import Optimizer

_PLACE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


def is_factory(text: str) -> bool:
    """Tell whether it names a function, as ``package.module:function``, and no file."""
    return _PLACE.match(text) is not None and not os.path.exists(text)


def is_exported_file(path: str) -> bool:
    """Tell whether it is the path of a network of torch, a ``.pt2``."""
    return path.endswith(".pt2") and os.path.isfile(path)


def _values(network: NetworkPlan, sizes: Mapping[str, Sequence[int | str]]) -> dict[str, int]:
    """Return the values of open sizes: numbers alone, or in whole shapes of inputs, as ``--shape x=8,64`` gives them.

    Raises:
        SchemaError: another number of dims, another number at a place, a name for a number, or an unknown name.
    """
    values: dict[str, int] = {}
    inputs = {name: v for name, v in network.model.program.global_block.vars.items() if v.need_check_feed}
    for name, shape in sizes.items():
        if any(not isinstance(n, int) or n < 0 for n in shape):
            raise SchemaError(f"a network of torch is planned for numbers; --set gives {name} = {', '.join(map(str, shape))}")
        dims = inputs[name].spec.known_dims if name in inputs else ()
        if name in network.symbols and len(shape) == 1:
            values[name] = int(shape[0])
        elif name not in inputs:
            known = f"the inputs are: {', '.join(inputs) or 'none'}; the sizes: {', '.join(sorted(network.symbols)) or 'none'}"
            raise SchemaError(f"{name!r} is no input, and no open size of one; {known}")
        elif len(dims) != len(shape) or any(isinstance(d, int) and d != n for d, n in zip(dims, shape, strict=True)):
            raise SchemaError(f"{name} is {inputs[name].spec.text()}; the shape of --set is {', '.join(map(str, shape))}")
        else:
            values |= {str(d): int(n) for d, n in zip(dims, shape, strict=True) if not isinstance(d, int)}
    return values


def made_by(place: str, argument: str = "FILE") -> tuple[Any, Any]:
    """Call a function of no arguments, named by an argument of the command; return the network, or other result, and an example of the inputs, or None.

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
        raise typer.BadParameter(f"{place!r}: {error}", param_hint=argument) from error
    product = function()
    if product.__class__ is not tuple:
        return product, None
    if len(product) != 2:
        raise SchemaError(f"{place} must return a network, or a network and an example of its inputs; it returns {len(product)} values")
    return product


def print_network_plan(place: str, options: PlanOptions) -> bool:
    """Print the plan of a function's result, or of a ``.pt2``: of a network of torch in eager torch, and in Foreshape's step. Return True within the limit.

    Raises:
        typer.BadParameter: ``--train`` is the name of no optimizer, or an option does not apply.
    """
    from foreshape.interop.plans import is_program, plan

    product: Any = place
    example: Any = None
    if not is_exported_file(place):
        product, example = made_by(place)
    if is_program(product, "plan"):
        if options.train is not None:
            refuse("--train", "a network of torch", f"{place} makes a program, which is planned as it is")
        program, sizes = with_shapes(product if isinstance(product, Program) else product.program, options.sizes)
        fetch = options.fetch or ([] if isinstance(product, Program) else [product.loss.name])
        return print_plan(program, replace(options, fetch=fetch), sizes)
    if options.fetch:
        refuse("--fetch", "saved programs", f"{place} makes a network of torch")
    require_picture(options.plot)
    network = plan(product, example, optimizer=_optimizer(options.train))
    limit = None if options.within is None else bytes_of(options.within)
    largest = _set_sizes(network, options, limit)
    if options.json:
        eager = network.eager()
        facts = {"sizes": network.sizes, "eager": {**eager._asdict(), "peak": eager.peak}, "ours": plan_facts(network.ours, network.sizes, limit)}
        write_pictures(network.ours, options, network.sizes)
        print_json(facts | ({} if largest is None else {"largest": {"eager": largest.eager, "ours": largest.ours}}))
    else:
        with printing():
            for line in [f"{network.heading()}:", *network.lines(), *([] if largest is None else [repr(largest)]), ""]:
                print_plain(line)
        within = options.within if largest is None else None
        print_plan(network.program, replace(options, fetch=network.ours.fetch, batch=None, within=within), network.sizes)
    return limit is None or (network.ours.peak(**network.sizes) <= limit if largest is None else isinstance(largest.ours, int))


def _optimizer(name: str | None) -> Optimizer | None:
    """Return an optimizer by its name. Raise `typer.BadParameter` for another name."""
    from foreshape import optimizer

    if name is None:
        return None
    kind = getattr(optimizer, name) if name in optimizer.__all__ else None
    if kind is None or not is_optimizer(kind):
        meant = " or ".join(near(name, optimizers()))
        raise typer.BadParameter(
            f"{name!r} is no optimizer of fs.optimizer{f'; did you mean {meant}?' if meant else ', as AdamW or SGD'}", param_hint="--train"
        )
    return kind()


def _set_sizes(network: NetworkPlan, options: PlanOptions, limit: int | None) -> LargestSize | None:
    """Set the open sizes of a network; return its largest batches, where a limit and no batch is given.

    Raises:
        MemoryPlanError: an open size has no value. SchemaError: a name is no input and no open size, or a shape does not fit.
    """
    rows = network.meaning("batch")
    values = _values(network, options.sizes)
    require_open_rows(options.batch, rows, values)
    values = {**(dict.fromkeys(rows, options.batch) if options.batch is not None else {}), **values}
    network.sizes |= values
    looks = limit is not None and bool(rows) and not values.keys() & set(rows)
    missing = sorted(network.symbols - network.sizes.keys() - (set(rows) if looks else set()))
    if missing:
        ways = ways_to_set([n for n in missing if n in rows], [n for n in missing if n not in rows])
        raise MemoryPlanError(f"the memory depends on {', '.join(missing)}: give {' and '.join(ways)}")
    if limit is None or not looks:
        return None
    largest = network.largest("batch", limit)
    fitting = [n for n in (largest.ours, largest.eager) if isinstance(n, int)]
    network.sizes = {**dict.fromkeys(rows, fitting[0] if fitting else 1), **network.sizes}
    return largest
