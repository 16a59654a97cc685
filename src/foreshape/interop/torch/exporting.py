"""Networks of torch as graphs: torch.export, with open sizes kept open.

The graph is the coarse one: linear, convolutions, normalization and attention stay whole.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib
import inspect
import math
import operator
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from foreshape.errors import SchemaError
from foreshape.interop.torch import packed_sequences, recorded_loops, with_loss
from foreshape.interop.torch import replaced as replaced_functions
from foreshape.interop.torch import traced_gradients as gradients_of_network
from foreshape.interop.torch.asked_values import answered_open, open_functions
from foreshape.interop.torch.export_errors import check_inputs, quiet, refused_export
from foreshape.interop.torch.finite_values import filled_sizes, finite_values
from foreshape.interop.torch.inner_gradients import InnerGradientAsked
from foreshape.interop.torch.named_sizes import long_sizes_named
from foreshape.interop.torch.node_sites import calling_site
from foreshape.interop.torch.open_axes import Axes, Bounds, input_axis
from foreshape.interop.torch.open_loops import same_loops
from foreshape.interop.torch.packed_sequences import packed_inputs, plain_inputs
from foreshape.interop.torch.python_state import ChangedValue, PythonState
from foreshape.interop.torch.recorded_loops import LONGEST, OpenLoop, round_frames
from foreshape.interop.torch.replaced import one_at_a_time, replaced
from foreshape.interop.torch.sparse_matrices import sparse_matrices
from foreshape.interop.torch.state_probe import generators
from foreshape.interop.torch.traced_gradients import traced_gradients
from foreshape.interop.torch.traced_guards import TracedGuard, traced_guards
from foreshape.interop.torch.traced_layers import make_ready, traced_layers
from foreshape.interop.torch.training_reads import Read, recorded_reads
from foreshape.interop.torch.untyped_torch import pytree, torch
from foreshape.interop.torch.writes import changed_kinds, storage_of
from foreshape.language.program.call_site import warn_user

LARGER: Final = (8, 2, 1)
"""Open sizes are traced so many times larger than the example's, lest one becomes 1 on the way: torch takes a 1 for fixed. The next one is
tried where the network takes no sizes so large."""

_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_LAYERS: Final = os.path.join(_TORCH, "nn") + os.sep
_UNSEEN: Final = (with_loss.__file__, packed_sequences.__file__, replaced_functions.__file__, contextlib.__file__)
"""No lines of a user are in these."""


class TracedGraph(NamedTuple):
    """A graph of torch.export.

    ``guards``: the demands of its trace. ``fixed``: input and axis -> the size of an axis to be open, fixed by torch. ``reads``: the lines of its code
    that ask whether it is trained. ``changes``: of Python's objects by its code in a call. ``drew``: generators of Python or NumPy drew meanwhile.
    ``loops``: over open sizes, to be rolled up. ``notes``: what its code does in torch alone, in words. ``asked``: as of `TracedGradients`.
    """

    program: Any
    guards: list[TracedGuard]
    fixed: dict[tuple[int, int], int]
    reads: Sequence[Read] = ()
    changes: Sequence[ChangedValue] = ()
    loops: Sequence[OpenLoop] = ()
    notes: Sequence[str] = ()
    drew: bool = False
    asked: bool = False


@one_at_a_time
def export(
    module: Any,
    inputs: Sequence[Any],
    axes: Sequence[Axes],
    bounds: Bounds | None = None,
    settle: bool = True,
    larger: Sequence[int] = LARGER,
    loops: bool = True,
    more: Mapping[str, int] | None = None,
    inner: bool = False,
) -> TracedGraph:
    """Return the exported program of a module for a call with ``inputs``, traced at sizes so many times larger, the first possible ones of ``larger``.

    Args:
        more: name -> what is added to a size then.
        inner: gradients within the forward pass are traced, and operators taken apart for them.

    Raises:
        SchemaError: torch.export refuses the module; its words, and the line, are in the message.
    """
    leaves, tree = pytree().tree_flatten(plain_inputs(tuple(inputs)))
    check_inputs(module, inputs, leaves)
    make_ready(module, inputs)
    shapes_of: list[Any] = []
    failed: Exception | None = None
    found: TracedGraph | None = None
    asked: tuple[dict[tuple[str, int], None], ...] = ()
    asks_traced = asks_loops = False

    def attempt(times: int, traced: bool, longest: int | None, rolls: bool) -> tuple[TracedGraph, tuple[dict[tuple[str, int], None], ...]]:
        nonlocal asks_traced, asks_loops
        told, grown = _traced_at(leaves, axes, times, bounds or {}, more or {})
        drawn = generators()
        example, shapes = pytree().tree_unflatten(grown, tree), pytree().tree_unflatten(told, tree)
        with (
            warnings.catch_warnings(),
            recorded_loops.recording(longest, rolls) as met,
            _as_wanted(module, inputs, shapes_of, traced) as asked_mode,
            recorded_reads() as reads,
            _answers() as lines,
            traced_gradients(module, inner) as gradients,
        ):
            warnings.simplefilter("ignore")
            try:
                made = _exported(module, example, shapes, axes)
            except Exception:
                asks_traced, asks_loops = asks_traced or bool(asked_mode), asks_loops or met.asked
                raise
        graph = made._replace(reads=tuple(reads), loops=tuple(met.met), notes=tuple(gradients.notes), drew=generators() != drawn, asked=gradients.asked)
        return graph, lines

    for times, traced in [*((times, True) for times in larger), *((times, False) for times in larger)]:
        if not traced and (found is not None or not asks_traced):
            break
        try:
            found, asked = attempt(times, traced, LONGEST if times > 1 else None, loops)
        except InnerGradientAsked:
            return export(module, inputs, axes, bounds, settle, larger, loops, more, True)
        except Exception as error:  # torch's own, of many classes; or the module takes no sizes so large
            failed = error
            continue
        if found.loops and not _rolls(found, functools.partial(attempt, times + 1, traced, None, True)):
            return export(module, inputs, axes, bounds, settle, larger, False, more, inner)
        if not found.fixed:
            break
    if found is None and loops and asks_loops:  # a list of rounds may be used as no list of ours can be
        return export(module, inputs, axes, bounds, settle, larger, False, more, inner)
    if found is None:
        raise refused_export(failed, _symbol_names(shapes_of[-1], module, inputs, axes) if shapes_of else None) from failed
    if found.asked and any(map(_may_require_gradient, leaves)):
        with suppress(SchemaError):  # a network that changes an input, as one with a gradient may not be
            differentiable = [leaf.detach().requires_grad_() if _may_require_gradient(leaf) else leaf for leaf in leaves]
            return export(module, pytree().tree_unflatten(differentiable, tree), axes, bounds, settle, larger, loops, more, inner)
    for lines, words, way in zip(asked, ("values are finite", "a size decided by values is zero"), ("finite ones", "others"), strict=False):
        if lines:
            places = ", ".join(f"{file}:{line}" for file, line in lines)
            warn_user(f"the network's code asks whether {words}, in {places}: the import goes the way of {way}, whatever the values are")
    if settle and "PARAMETER" in changed_kinds(found.program):
        module = copy.deepcopy(module)  # a network that makes itself ready in its first call: this one is made
        with torch.no_grad():
            module(*inputs)
        return export(module, inputs, axes, bounds, False, larger, loops, more, inner)
    return found


def _may_require_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()) and not leaf.requires_grad


def _rolls(found: TracedGraph, again: Callable[[], Any]) -> bool:
    """Tell whether a trace of other numbers of rounds is the same, its loops rolled up."""
    if found.fixed or any(one.begun != one.count for one in found.loops):
        return False
    try:
        other, _ = again()
    except Exception:  # of torch's, or of the module's
        return False
    return same_loops(found.program, found.loops, other.program, other.loops)


@one_at_a_time
def decomposed(program: Any, table: Any) -> Any:
    """Return an exported program with the operators of a table taken apart; an empty one leaves the coarse functional graph.

    Raises:
        SchemaError: torch fails at it.
    """
    with warnings.catch_warnings(), kept_stops(program), long_sizes_named():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own code
        try:
            return program.run_decompositions(table)
        except Exception as error:  # torch's own, of many classes
            raise refused_export(error, None) from error


def _exported(module: Any, example: Any, shapes: Any, axes: Sequence[Axes]) -> TracedGraph:
    with first_calls(module) as changes, written_assignments(module):
        made = torch.export.export(module, example, dynamic_shapes=_for_star(module, shapes), strict=False)
    given = [node.meta["val"] for node in made.graph.nodes if node.op == "placeholder"][-len(axes) :] if axes else []
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    axes = axes if len(tensors) == len(axes) else ()
    fixed = {(at, axis): int(tensors[at].shape[axis]) for at, said in enumerate(axes) for axis in said if _is_fixed(tensors[at].shape[axis])}
    return TracedGraph(made, traced_guards(made), fixed, changes=tuple(changes))


@contextmanager
def first_calls(module: Any) -> Generator[list[ChangedValue]]:
    """Let each call of a module within the block be its first one, by restoring its Python state. Yields the changes of the last call."""
    changes: list[ChangedValue] = []
    if isinstance(module, torch.jit.ScriptModule):
        yield changes  # refused by torch
        return
    state = PythonState(module)

    def begin(*_: Any) -> None:
        state.restore()

    def end(*_: Any) -> None:
        changes[:] = state.changes(module)

    hooks = [module.register_forward_pre_hook(begin, prepend=True), module.register_forward_hook(end)]
    try:
        yield changes
    finally:
        for hook in hooks:
            hook.remove()
        state.restore()


def _is_fixed(size: Any) -> bool:
    return isinstance(size, int) or bool(size.node.expr.is_Integer)


@one_at_a_time
def taken_apart(exported: Any, targets: Iterable[Any]) -> Any:
    """Return the graph with these operators written out by torch's own decompositions; None if there are none, or torch fails."""
    first, more = torch.export.default_decompositions(), importlib.import_module("torch._decomp").decomposition_table
    chosen = {target: table[target] for target in targets for table in (more, first) if target in table}
    with warnings.catch_warnings(action="ignore"), kept_stops(exported), long_sizes_named():
        try:
            return exported.run_decompositions(chosen) if chosen else None
        except Exception:  # torch's own, of several classes; some decompositions do what no exported graph may: the operators stay missing, and are told
            return None


def _traced_at(leaves: Sequence[Any], axes: Sequence[Axes], times: int, bounds: Bounds, more: Mapping[str, int]) -> tuple[list[Any], list[Any]]:
    """Return for each input its open axes as torch wants them, and the example with these axes so many times larger, and ``more``."""
    left, told, grown = list(axes), list[Any](), list[Any]()
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            told.append(None)
            grown.append(leaf)
            continue
        open_axes = left.pop(0)
        told.append(dict.fromkeys(open_axes, torch.export.Dim.AUTO) or None)
        wanted = {name: leaf.shape[axis] * times + more.get(name, 0) for axis, name in open_axes.items()}
        limits = {name: bounds.get(name, (0, None))[1] for name in wanted}
        grown.append(resized(leaf, open_axes, {name: n if (most := limits[name]) is None else min(most, n) for name, n in wanted.items()}))
    return told, grown


def resized(tensor: Any, axes: Mapping[int, str], sizes: Mapping[str, int]) -> Any:
    """Return a tensor with other sizes of its open axes, its numbers repeated."""
    wanted = {axis: sizes[name] for axis, name in axes.items() if tensor.shape[axis] and name in sizes}
    repeats = [math.ceil(wanted[axis] / n) if axis in wanted else 1 for axis, n in enumerate(tensor.shape)]
    made = tensor.repeat(repeats) if any(r > 1 for r in repeats) else tensor
    for axis, n in wanted.items():
        made = made.narrow(axis, 0, n)
    return made


def _for_star(module: Any, shapes: Any) -> Any:
    """Return the shapes as torch wants them: one tuple more where forward takes ``*inputs``."""
    kinds = [p.kind for p in inspect.signature(module.forward).parameters.values()]
    return (shapes,) if kinds and kinds[0] is inspect.Parameter.VAR_POSITIONAL else shapes


@contextmanager
def _as_wanted(module: Any, inputs: Sequence[Any], shapes_of: list[Any], traced: bool) -> Generator[list[bool]]:
    """Have torch export as is wanted here; yields whether the code asks if it is traced, which is answered by ``traced``."""
    with (
        sparse_matrices(module),
        traced_layers(module),  # first: the network may be such a layer
        packed_inputs(module, inputs),
        answered_open(module, traced) as asked,
        _whole_traces(),
        _told_guards(shapes_of),
        long_sizes_named(),
        quiet(),
    ):
        yield asked


@contextmanager
def _answers() -> Generator[tuple[dict[tuple[str, int], None], dict[tuple[str, int], None]]]:
    with finite_values(*open_functions()) as finite, filled_sizes() as filled:
        yield finite, filled


def _frames_of_network(_: Any, stack: Any) -> Any:
    """Return the frames of the network's code and of torch's layers in a stack: torch alone would keep no function but ``forward``."""
    import traceback

    kept: list[Any] = round_frames()
    marks = len(kept)
    for frame in stack:
        own = not frame.filename.startswith(_TORCH) or frame.filename.startswith(_LAYERS)
        if own and frame.filename not in _UNSEEN and (len(kept) > marks or frame.name == "forward"):
            kept.append(frame)
    return traceback.StackSummary.from_list(kept)


@contextmanager
def _whole_traces() -> Generator[None]:
    """Record of each node the lines of all functions that it comes from."""
    of: Any = importlib.import_module("torch.fx.proxy").TracerBase
    name = "_filter_traceback_frames"
    with replaced(of, **({name: _frames_of_network} if hasattr(of, name) else {})):
        yield


@contextmanager
def _told_guards(shapes_of: list[Any]) -> Generator[None]:
    """Record the network's line beside each guard of torch's layers: torch keeps the layer's own alone.

    The last of ``shapes_of`` becomes torch's table of sizes.
    """
    shapes: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    of, name = shapes.ShapeEnv, "_get_sloc"
    before = getattr(of, name, None)
    if before is None or not hasattr(shapes, "uninteresting_files"):
        yield
        return
    shapes.uninteresting_files().update((__file__, recorded_loops.__file__, replaced_functions.__file__, gradients_of_network.__file__))

    def located(env: Any, *given: Any, **named: Any) -> Any:
        shapes_of[:] = [env]
        found: Any = before(env, *given, **named)
        if getattr(found.framework_loc, "filename", "").startswith(_TORCH) and found.maybe_user_loc is None:
            return dataclasses.replace(found, maybe_user_loc=calling_site())
        return found

    with replaced(of, **{name: located}):
        yield


def _symbol_names(shapes: Any, module: Any, inputs: Sequence[Any], axes: Sequence[Axes]) -> dict[str, str]:
    """Return torch's symbol -> the name, the input and the axis of the size."""
    trees = pytree()
    given = trees.tree_flatten_with_path(dict(inspect.signature(module.forward).bind(*plain_inputs(tuple(inputs))).arguments))[0]
    places = [trees.keystr(path) for path, leaf in given if isinstance(leaf, torch.Tensor)]
    out: dict[str, str] = {}
    for known, sources in getattr(shapes, "var_to_sources", {}).items():
        found = input_axis(next((str(one.name if isinstance(one.name, str) else one.name()) for one in sources), ""))
        if found is not None and found[0] in places:
            name = axes[places.index(found[0])].get(found[1], str(known))
            shown = found[0][2:].replace("']", "", 1)
            out[str(known)] = f"{name}, axis {found[1]} of the input {shown}"
    return out


def is_exported(given: Any) -> bool:
    """Tell whether it is torch's ExportedProgram."""
    return isinstance(given, torch.export.ExportedProgram)


# --- Regions of torch's graphs without gradients (``torch.no_grad``), kept through torch's own pass, which writes them out.


@contextmanager
def kept_stops(program: Any) -> Generator[None]:
    """Detach the operands of regions without gradients for the time of a pass, but for written buffers."""
    made: list[Any] = []
    modules = [module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    for module in modules:
        for node in module.graph.nodes:
            if node.op == "call_function" and getattr(node.target, "__name__", "") == "wrap_with_set_grad_enabled" and node.args[0] is False:
                made += _detached(getattr(module, str(node.args[1].target)))
    try:
        yield
    finally:
        for node in made:
            node.replace_all_uses_with(node.args[0])
            node.graph.erase_node(node)
        for graph in {id(node.graph): node.graph for node in made}.values():
            graph.owning_module.recompile()


def _detached(region: Any) -> list[Any]:
    nodes = list(region.graph.nodes)
    written = {storage_of(value) for node in nodes if node.op == "call_function" for value in _written(node)}
    made: list[Any] = []
    for node in nodes:
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor) and storage_of(node) not in written and node.users:
            with region.graph.inserting_after(node):
                found = region.graph.call_function(torch.ops.aten.detach.default, (node,))
            found.meta = dict(node.meta)
            node.replace_all_uses_with(found, delete_user_cb=functools.partial(operator.is_not, found))
            made.append(found)
    if made:
        region.recompile()
    return made


def _written(node: Any) -> list[Any]:
    """Return the nodes written by an operator."""
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
    places = [(at, a.name) for at, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
    return [node.args[at] if at < len(node.args) else node.kwargs.get(name) for at, name in places]


# --- Buffers of torch modules with another tensor put in their place: ``self.mean = 0.9 * self.mean + x.mean()``.
#
# torch.export writes it back for buffers of the outermost module alone, and loses it without a word for those of its parts.


def _apart(results: Any, tensor: Any) -> Any:
    """Return results with a copy of a tensor in its place."""
    found: Any = pytree().tree_map(functools.partial(_copied, tensor), results)
    return found


def _copied(tensor: Any, value: Any) -> Any:
    return value.clone() if value is tensor else value


@contextmanager
def written_assignments(module: Any) -> Generator[None]:
    """Write tensors put in the place of buffers by a call of a module into these, at its end.

    Raises:
        SchemaError: a tensor of another shape or element type.
    """
    parts = {id(part): (name, part) for name, part in module.named_modules() if part is not module}
    first: dict[tuple[int, str], Any] = {}

    def note(part: Any, name: str, value: Any) -> None:
        before = part._buffers.get(name)
        if id(part) in parts and isinstance(before, torch.Tensor):
            first.setdefault((id(part), name), before)

    def write(_module: Any, _given: Any, results: Any) -> Any:
        for (of, name), before in first.items():
            path, part = parts[of]
            now = part._buffers[name]
            if now is before:
                continue
            if not isinstance(now, torch.Tensor) or now.dtype is not before.dtype or tuple(now.shape) != tuple(before.shape):
                seen = f"{now.dtype} of {list(now.shape)}" if isinstance(now, torch.Tensor) else type(now).__name__
                must = f"{before.dtype} of {list(before.shape)} in each call"
                raise SchemaError.must(f"the buffer {path}.{name}".replace(" .", " "), must, f"{seen}, put in its place")
            results = _apart(results, before)
            before.copy_(now)
            part._buffers[name] = before
        first.clear()
        return results

    hooks = [torch.nn.modules.module.register_module_buffer_registration_hook(note), module.register_forward_hook(write)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
