"""A module of torch, or an exported program of it, read into a program: traced, taken apart where needed, and asked again where its ways agree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from foreshape.errors import FeedError, ForeshapeError
from foreshape.interop.torch.both_ways import is_plain, of_either_way
from foreshape.interop.torch.exporting import LARGER, TracedGraph, decomposed, export, taken_apart
from foreshape.interop.torch.nesting import feed_dims, sizes_fed
from foreshape.interop.torch.open_axes import Bounds, exported_axes, size_bounds
from foreshape.interop.torch.open_loops import Unlike
from foreshape.interop.torch.state_probe import state_words
from foreshape.interop.torch.torch_importer import TorchImporter
from foreshape.interop.torch.traced_guards import traced_guards
from foreshape.interop.torch.untyped_torch import pytree, torch
from foreshape.interop.torch.writes import NotFunctional
from foreshape.language.program import Program
from foreshape.language.program.call_site import Site, warn_user

_ROUNDS: Final = 5
"""So many times at most operators without a form here are taken apart by torch; a part may have parts."""


def _run(importer: TorchImporter) -> None:
    """Import a graph; a loop with operators without a form here ends the import, and they are among the refused ones."""
    try:
        importer.run()
    except ForeshapeError:
        if not importer.loops or not importer.refused:
            raise


def _taken_apart(exported: Any, importer: TorchImporter, in_vain: set[Any]) -> tuple[Any, TorchImporter] | None:
    """Return the graph and its import with operators without a form here taken apart by torch, all of them or one; None where this gains nothing.

    Args:
        in_vain: operators taken apart into torch's own primitives, also without a form: not tried again, and added to.
    """
    wanted = [target for target in importer.refused if target not in in_vain]
    for targets in [wanted, *([one] for one in wanted)] if len(wanted) > 1 else [wanted] if wanted else []:
        graph = taken_apart(exported, targets)
        if graph is None:
            continue
        made = importer.again(graph)
        _run(made)
        if not any(name.startswith("prims.") for name in made.missing):
            return graph, made
        if len(targets) == 1:
            in_vain.update(targets)
    return None


def _imported(exported: Any, importer: TorchImporter) -> tuple[Any, TorchImporter]:
    """Return a graph and its import: as it is, else functional, and as far apart as operators without a form here demand."""
    whole, in_vain = True, set[Any]()
    try:
        _run(importer)
    except NotFunctional:
        whole = False
    if not whole or importer.refused:
        apart = _taken_apart(exported, importer, in_vain)  # both in one pass of torch, which takes as long as a trace
        exported = decomposed(exported, {}) if apart is None else apart[0]
        importer = importer.again(exported) if apart is None else apart[1]
        if apart is None:
            _run(importer)
    for _ in range(_ROUNDS):
        apart = _taken_apart(exported, importer, in_vain)
        if apart is None:
            break
        exported, importer = apart
    importer.program.mark_loaded()
    return exported, importer


def tensors_of(inputs: Sequence[Any]) -> list[Any]:
    """Return the tensors of a call."""
    return [leaf for leaf in pytree().tree_flatten(tuple(inputs))[0] if isinstance(leaf, torch.Tensor)]


def sizes_of(program: Program, feeds: Sequence[str], tensors: Sequence[Any]) -> dict[str, int]:
    """Return the open sizes of inputs. Raise `FeedError` for another number of tensors."""
    if len(tensors) != len(feeds):
        raise FeedError(f"the network takes the tensors {', '.join(feeds)}; seen {len(tensors)}")
    sizes: dict[str, int] = {}
    for name, tensor in zip(feeds, tensors, strict=True):
        for dim, n in zip(feed_dims(program, name), sizes_fed(tensor), strict=True):
            if not isinstance(dim, int):
                sizes[str(dim)] = int(n)
    return sizes


def _takes(importer: TorchImporter) -> bool:
    """Tell whether the demands of the program hold for the sizes of the example."""
    sizes = importer.sizes
    return all(guard.condition.answer(sizes) is not False for guard in importer.program.guard_list() if guard.condition.symbols <= sizes.keys())


def import_module(
    module: Any,
    inputs: Sequence[Any],
    axes: Sequence[Mapping[int, str]],
    bounds: Bounds,
    as_test: Callable[[Any, TorchImporter], Callable[..., Any]],
    inside: str = "",
    beside: str = "",
) -> tuple[Any, TorchImporter]:
    """Return the graph of a module and its import.

    Args:
        as_test: makes a network of these two, to be called as the module in torch's ``eval`` mode.
        inside, beside: as of `TorchImporter`.
    """
    fixed: dict[tuple[int, int], int] = {}
    traces: list[TracedGraph] = []

    def imported(
        larger: Sequence[int], loops: bool = True, more: Mapping[str, int] | None = None, without: Collection[Site] = (), trace: TracedGraph | None = None
    ) -> tuple[Any, TorchImporter]:
        made = trace or export(module, inputs, axes, bounds, larger=larger, loops=loops, more=more)
        traces[:] = [made]
        fixed.clear()
        fixed.update(made.fixed)
        guards = [*(one for one in made.guards if one.site not in without), *size_bounds(bounds)]
        try:
            importer = TorchImporter(made.program, axes, guards, made.reads, inside, beside, loops=made.loops)
            exported, importer = _imported(made.program, importer)
        except (Unlike, ForeshapeError):
            if not made.loops:
                raise
            return imported(larger, False, more, without)
        if made.loops and importer.missing:
            return imported(larger, False, more, without)
        importer.sizes = sizes_of(importer.program, importer.feeds, tensors_of(inputs))
        return exported, importer

    exported, importer = imported(LARGER)
    if axes and not _takes(importer):  # the code goes another way at larger sizes
        exported, importer = imported((1,))
    if axes and is_plain(inputs) and not importer.missing and not fixed:
        trace = traces[-1]
        found = of_either_way(importer, lambda more, sites: imported(LARGER, True, more, sites, None if more else trace), module, inputs, as_test)
        exported, importer = found or (exported, importer)
        if found is None:
            fixed.clear()
            traces[:] = [trace]
    if fixed:
        listed = "; ".join(f"axis {axis} of the input {importer.feeds[at]} ({axes[at][axis]}) is {size}" for (at, axis), size in fixed.items())
        warn_user(f"torch fixes sizes of the network that were to be open: {listed}")
    trace = traces[-1]
    counted, others = state_words(module, inputs, trace.changes, set(trace.program.constants), trace.drew)
    for words in (*trace.notes, *others):
        warn_user(f"in a program, {words}")
    if counted:
        shown = "; ".join(counted[:3])
        warn_user(
            f"the network's code changes numbers or tensors of Python in its calls, the program has the first ones (register tensors as buffers): {shown}"
        )
    return exported, importer


def import_exported(exported: Any, dynamic: Sequence[Any] | None = None, ends: bool = False) -> tuple[Any, TorchImporter]:
    """Return the graph of an exported program and its import; sizes have the names of ``dynamic``, else of torch's Dims, else ``batch`` and torch's own."""
    axes, bounds = exported_axes(exported, dynamic)
    return _imported(exported, TorchImporter(exported, axes, [*traced_guards(exported), *bounds], ends=ends))
