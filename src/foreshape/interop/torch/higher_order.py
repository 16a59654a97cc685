"""Import of torch's operators of functions: branches, loops, scans, and regions without gradients or in another precision."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from foreshape import layer
from foreshape.core.spec import INT64
from foreshape.errors import SchemaError
from foreshape.interop.torch.import_state import ImportState
from foreshape.interop.torch.open_size import Compared, OpenSize, as_variable, size_of, value_of
from foreshape.interop.torch.writes import NotFunctional
from foreshape.language.program import Variable


@functools.cache
def _kind() -> Any:
    return importlib.import_module("torch._ops").HigherOrderOperator


def is_higher_order(target: Any) -> bool:
    """Tell whether it is one of torch's operators of functions."""
    return isinstance(target, _kind())


def higher_order(importer: ImportState, node: Any, arguments: Sequence[Any]) -> Any:
    """Return the results of an operator of functions. Raises `SchemaError` for one without a form here."""
    name = str(node.target.name())
    function = _FUNCTIONS.get(name)
    if function is None:
        raise SchemaError(f"torch's operator {name} has no form here; the forms are {', '.join(_FUNCTIONS)}")
    return function(importer, *arguments)


def _variable(value: Any) -> Variable:
    if isinstance(value, Variable):
        return value
    return as_variable(value) if isinstance(value, (OpenSize, int)) and not isinstance(value, bool) else layer.fill_constant([1], "bool", bool(value))


def _branch(importer: ImportState, condition: Any, true: Any, false: Any, operands: Sequence[Any] = ()) -> Any:
    if isinstance(condition, bool):
        return importer.run_graph(true if condition else false, operands)
    holds = condition.variable if isinstance(condition, Compared) else layer.reshape(condition, [1])

    def run(graph: Any) -> Callable[[], list[Variable]]:
        return lambda: [_variable(value) for value in importer.run_graph(graph, operands)]

    return layer.cond(holds, run(true), run(false))


def _as_carried(like: Any, value: Variable) -> Any:
    """Return a variable of a loop as the graph takes it: a size where it is one."""
    return value if isinstance(like, Variable) else value_of(value)


def _loop(importer: ImportState, condition: Any, body: Any, carried: Sequence[Any], more: Sequence[Any] = ()) -> Any:
    def holds(*state: Variable) -> Variable:
        (found,) = importer.run_graph(condition, [*map(_as_carried, carried, state), *more])
        return layer.reshape(found.variable if isinstance(found, Compared) else _variable(found), [1])

    def step(*state: Variable) -> list[Variable]:
        return [_variable(value) for value in importer.run_graph(body, [*map(_as_carried, carried, state), *more])]

    return list(map(_as_carried, carried, layer.while_loop(holds, step, [_variable(value) for value in carried])))


def _scan(importer: ImportState, body: Any, first: Sequence[Variable], entries: Sequence[Variable], more: Sequence[Any] = ()) -> Any:
    return scanned(lambda state, rows: importer.run_graph(body, [*state, *rows, *more]), first, entries, _results_of(body) - len(first))


def scanned(body: Callable[[Sequence[Variable], Sequence[Variable]], list[Any]], first: Sequence[Variable], entries: Sequence[Variable], results: int) -> Any:
    """Return the last state and the stacked results of a body, run for each entry of the first axis.

    Args:
        body: takes the state and the entries, returns the next state and so many results.
        first: the state before the first entry.
        entries: tensors whose first axes are equal.
        results: the number of results beside the state.
    """
    length = size_of(entries[0], 0)
    count = len(first)

    def run(at: Variable, state: Sequence[Variable]) -> list[Any]:
        return body(state, [layer.squeeze(layer.gather(x, at, 0), [0]) for x in entries])

    if isinstance(length, int) and length <= _WRITTEN_OUT:
        state, found = list(first), list[list[Variable]]()
        for at in range(length):
            made = run(layer.fill_constant([1], INT64, at), state)
            state = made[:count]
            found.append(made[count:])
        return [*state, *(layer.stack(list(column), 0) for column in zip(*found, strict=True))]
    arrays = [layer.create_array() for _ in range(results)]
    limit = as_variable(length)

    def holds(at: Variable, *_: Variable) -> Variable:
        return layer.less_than(at, limit)

    def step(at: Variable, *state: Variable) -> list[Variable]:
        made = run(at, state)
        for array, value in zip(arrays, made[count:], strict=True):
            layer.array_write(layer.assign(value), at, array)
        return [layer.scale(at, 1.0, 1.0), *(layer.assign(value) for value in made[:count])]

    _, *last = layer.while_loop(holds, step, [layer.fill_constant([1], INT64, 0), *first])
    return [*last, *(layer.tensor_array_to_tensor(array, 0, use_stack=True)[0] for array in arrays)]


_WRITTEN_OUT: Final = 8
"""So many rounds at most are written out."""


def _results_of(graph: Any) -> int:
    return len(next(node for node in graph.graph.nodes if node.op == "output").args[0])


def _map(importer: ImportState, body: Any, entries: Sequence[Variable], more: Sequence[Any] = ()) -> Any:
    return _scan(importer, body, [], entries, more)


def _without_gradients(importer: ImportState, enabled: bool, body: Any, *operands: Any) -> Any:
    found = importer.run_graph(body, operands)
    if enabled:
        return found
    out: list[Any] = []
    for value in found:
        made = layer.assign(value) if isinstance(value, Variable) else value
        if isinstance(made, Variable):
            made.stop_gradient = True
        out.append(made)
    return out


def _precision(importer: ImportState, device: Any, dtype: Any, enabled: Any, cache: Any, body: Any, *operands: Any) -> Any:
    if not importer.functional:
        raise NotFunctional  # torch writes its casts in its own pass
    return importer.run_graph(body, operands)


def _with_effects(importer: ImportState, token: Any, operator: Any, *operands: Any) -> Any:
    """Leave out a check of matrices, made by ours too. Raises `SchemaError` for other effects."""
    if operator.__name__.split(".")[0] != "_linalg_check_errors":
        raise SchemaError(f"the effect {operator.__name__} has no form here")
    return [None, None]


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "cond": _branch,
    "while_loop": _loop,
    "scan": _scan,
    "map_impl": _map,
    "wrap_with_set_grad_enabled": _without_gradients,
    "wrap_with_autocast": _precision,
    "with_effects": _with_effects,
}
