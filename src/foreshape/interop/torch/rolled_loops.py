"""Import of rolled loops: a loop of a network's code over an open size as one loop of the program."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

from foreshape import layer
from foreshape.core.spec import INT64
from foreshape.errors import SchemaError
from foreshape.interop.torch.import_state import ImportState
from foreshape.interop.torch.open_loops import Collected, Count, RolledLoop, has
from foreshape.interop.torch.open_size import FLOORDIV, AnySize, OpenSize, as_variable, compute, size_of
from foreshape.interop.torch.torch_call import name_of
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.interop.torch.writes import NotFunctional, written_argument
from foreshape.language.program import Variable
from foreshape.language.program.call_site import telling_site


def run_loop(importer: ImportState, rolled: RolledLoop) -> None:
    """Write a loop, and set the values of its nodes that are used behind it.

    Raises:
        SchemaError: the number of rounds, or a first value, has no form here. NotFunctional: it changes memory.
    """
    if any(written_argument(node.target) is not None for node in rolled.body):
        raise NotFunctional
    for node in rolled.sizes:
        if node not in importer.found:
            with telling_site(importer.lines.of(node)):
                importer.found[node] = importer.call(node)
    with telling_site(importer.lines.of(rolled.body[0])):
        _write(importer, rolled)


def _write(importer: ImportState, rolled: RolledLoop) -> None:
    rounds = compute(operator.sub, _size(importer, rolled.loop.rounds.node.expr), rolled.skipped)
    before, owns = list(rolled.carried), [own for own, _ in rolled.carried.values()]
    states = [importer.given(first) for _, first in rolled.carried.values()]
    for state in states:
        if not isinstance(state, Variable):
            raise SchemaError("a loop begins with a value that is no tensor")
    for read in {one for node in rolled.body for one in node.all_input_nodes}:
        made = importer.found.get(read)
        if isinstance(made, OpenSize):
            _ = made.variable  # made before the loop, that it may be used behind it too
    kept = list(dict.fromkeys([*rolled.collected, *(own for own in rolled.last.values() if own not in owns)]))
    arrays = [layer.create_array() for _ in kept]
    limit, masks = as_variable(rounds), dict(importer.masks)

    def holds(at: Variable, *_: Variable) -> Variable:
        return layer.less_than(at, limit)

    def step(at: Variable, *state: Variable) -> list[Variable]:
        importer.found.update(zip(before, state, strict=True))
        importer.counting = at
        for node in rolled.body:
            with telling_site(importer.lines.of(node)):
                importer.found[node] = importer.call(node)
        for array, node in zip(arrays, kept, strict=True):
            layer.array_write(layer.assign(importer.found[node]), at, array)
        return [layer.scale(at, 1.0, 1.0), *(layer.assign(importer.found[own]) for own in owns)]

    _, *last = layer.while_loop(holds, step, [layer.fill_constant([1], INT64, 0), *states])
    importer.counting, importer.masks = None, masks
    for array, node in zip(arrays, kept, strict=True):
        dims = importer.found[node].spec.known_dims
        stacked = layer.tensor_array_to_tensor(array, 0, use_stack=True)[0]
        importer.collected[node] = _of_length(stacked, rounds, len(dims))
    for final, own in rolled.last.items():
        at_end = last[owns.index(own)] if own in owns else layer.squeeze(layer.slice(importer.collected[own], [0], [-1], [2**31 - 1]), [0])
        importer.found[final] = at_end
    for node in rolled.nodes:
        importer.found.setdefault(node, None)


def _of_length(x: Variable, length: AnySize, rank: int) -> Variable:
    """Return the values of all rounds, their number known as the size that it is."""
    dims = [length.variable if isinstance(length, OpenSize) else length, *([0] * rank)]
    return layer.reshape(x, dims)


def _size(importer: ImportState, expression: Any) -> AnySize:
    """Return an expression of torch's symbols as a size."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        found = importer.places.get(str(importer.symbols.get(expression.name)))
        if found is None:
            raise SchemaError(f"the size {expression} is none of the inputs'")
        return size_of(*found)
    parts = [_size(importer, one) for one in expression.args]
    name = type(expression).__name__
    function: Any = {"Add": operator.add, "Mul": operator.mul, "FloorDiv": FLOORDIV, "CleanDiv": FLOORDIV, "Mod": operator.mod}.get(name)
    if function is None:
        raise SchemaError(f"the number of rounds of a loop, {expression}, has no form here")
    return reduce(lambda x, y: compute(function, x, y), parts)


def arguments_of(importer: ImportState, node: Any) -> Any:
    """Return the arguments of a node: in a loop with its counts, behind it with the values of all rounds."""
    graph = importer.rolled
    assert graph is not None
    loop = graph.of.get(node)
    if loop is None:
        return graph.behind.get(node, node.args)
    return loop.counts.get(node, node.args)


def counted(importer: ImportState, count: Count) -> OpenSize:
    """Return a number counted by the loop being written."""
    at = importer.counting
    assert at is not None
    return OpenSize(None, lambda: layer.scale(at, float(count.step), float(count.first)))


def windowed(importer: ImportState, node: Any) -> Variable | None:
    """Return a slice that moves with the rounds, of a fixed length; None for other nodes."""
    graph = importer.rolled
    arguments: Any = None if graph is None or node not in graph.of else graph.of[node].counts.get(node)
    if arguments is None or name_of(node.target)[0] != "slice" or len(arguments) != 4:
        return None
    x, dim, start, end = arguments
    if not isinstance(start, Count) or not isinstance(end, Count) or start.step != end.step or start.first < 0 or start.step < 0:
        return None
    places = layer.add(layer.range(0, end.first - start.first, 1, INT64), counted(importer, start).variable)
    held = importer.given(x)
    return layer.gather(held, places, dim % len(held.spec.known_dims))


def joined(importer: ImportState, node: Any) -> Variable | None:
    """Return the result of ``torch.stack`` or ``torch.cat`` of the values of all rounds; None for other nodes.

    Raises:
        SchemaError: another operator takes them.
    """
    graph = importer.rolled
    arguments: Any = None if graph is None else graph.behind.get(node)
    if arguments is None or not any(has(value, Collected) for value in arguments if is_list(value)):
        return None
    name = name_of(node.target)[0]
    if name == "foreshape.all_rounds":
        name, arguments = ("stack" if arguments[3] else "cat"), [arguments[0], arguments[2]]
    if name not in ("stack", "cat") or type(arguments[0]) is not list:
        raise SchemaError(f"{name} of the values of all rounds of a loop has no form here")
    parts: list[Variable] = []
    rank = len(node.meta["val"].shape) - (name == "stack")
    dim = (arguments[1] if len(arguments) > 1 else 0) % (rank + (name == "stack"))
    for one in arguments[0]:
        if not isinstance(one, Collected):
            parts.append(importer.given(one) if name == "cat" else layer.unsqueeze(importer.given(one), [dim]))
            continue
        x = importer.collected[one.node]
        x = layer.transpose(x, [*range(1, dim + 1), 0, *range(dim + 1, rank + 1)]) if dim else x
        if name == "cat":
            sizes = [size_of(x, axis) for axis in range(rank + 1)]
            merged = compute(operator.mul, sizes[dim], sizes[dim + 1])
            kept = [n.variable if isinstance(n, OpenSize) else n for n in [*sizes[:dim], merged, *sizes[dim + 2 :]]]
            x = layer.reshape(x, [-1 if k == dim else 0 if k < dim else n for k, n in enumerate(kept)])
        parts.append(x)
    return layer.concat(parts, dim) if len(parts) > 1 else parts[0]
