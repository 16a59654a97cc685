"""Control flow: loops and branches over values known only in the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreshape.core.spec import BOOL, INT32, LOD_TENSOR_ARRAY
from foreshape.errors import SchemaError, ShapeError, TypeMismatchError, whole
from foreshape.language.infer.loop_state import carried_names
from foreshape.language.program import Block, Variable
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block, region
from foreshape.language.program.op import Op
from foreshape.layer.creation import assign, fill_constant
from foreshape.layer.logic import equal, less_than, logical_and, logical_not
from foreshape.layer.manipulation import reshape
from foreshape.layer.math import cast


def _variables(values: Any, source: str) -> list[Variable]:
    listed: list[Any] = list(values) if isinstance(values, (list, tuple)) else [values]  # pyright: ignore[reportUnknownArgumentType]
    for variable in listed:
        if not isinstance(variable, Variable):
            raise SchemaError(f"{source} must give variables; seen {variable!r}")
    return listed


def _truth(condition: Any, name: str) -> Variable:
    """Return a bool variable of one element."""
    if not isinstance(condition, Variable):
        raise SchemaError.must(name, "a bool variable", f"{condition!r}")
    if condition.dtype is not BOOL:
        raise TypeMismatchError(f"{name} must be bool; {condition.name} is {condition.spec.text()}")
    if condition.spec.elements != 1:
        raise ShapeError(f"{name} must hold one truth value; {condition.name} is {condition.spec.text()}")
    return condition


def _function(function: Any, name: str) -> Any:
    if not callable(function):
        raise SchemaError.must(name, "a function", f"{function!r}")
    return function


def _reads(block: Block) -> list[str]:
    return sorted(n for n in block.outer_names()[0] if block.find(n) is not None)


@tells_line
def while_loop(cond: Callable[..., Variable], body: Callable[..., Any], loop_vars: Sequence[Variable], max_iterations: int | None = None) -> list[Variable]:
    """Run ``body`` while ``cond`` holds.

    Args:
        cond: takes the loop's variables, returns a bool variable of one element.
        body: takes the loop's variables, returns their new values: as many, each with the same element type and number of dims. A size that changes
            from round to round becomes a symbol.
        loop_vars: the values before the first round. They are not changed: the loop works on copies, except for arrays (`create_array`).
        max_iterations: the largest number of rounds.

    Returns:
        The values after the last round; gradients flow through them.

    Raises:
        SchemaError, TypeMismatchError, ShapeError: other results of the two.
    """
    _function(cond, "cond")
    _function(body, "body")
    variables = _variables(loop_vars, "loop_vars")
    if not variables:
        raise SchemaError("a loop needs at least one variable that changes from round to round")
    if max_iterations is not None:
        max_iterations = whole("max_iterations", max_iterations, 0, SchemaError)
    outer = current_block()
    state = [v if v.kind is LOD_TENSOR_ARRAY else _without_value(assign(v)) for v in variables]
    counter = _without_value(fill_constant([1], "int64", 0)) if max_iterations is not None else None

    def condition() -> Variable:
        holds = _truth(cond(*state), "the condition")
        if counter is None:
            return holds
        is_below_limit = less_than(counter, fill_constant([1], "int64", max_iterations or 0))
        return logical_and(holds, reshape(is_below_limit, [1] * holds.spec.rank))

    running = assign(condition())
    with region(outer) as block:
        new = _variables(body(*state), "the body of a loop")
        if len(new) != len(state):
            raise SchemaError(f"the body of a loop must give as many variables as it takes, {len(state)}; seen {len(new)}")
        for old, value in zip(state, new, strict=True):
            if value.kind is not old.kind or value.dtype is not old.dtype:
                raise TypeMismatchError(f"the body of a loop must keep kinds and element types: {old.spec.text()} became {value.spec.text()}")
        # all is read before anything is written, for variables to change places
        state_ids = {id(v) for v in state}
        new = [assign(v) if id(v) in state_ids and v is not old else v for old, v in zip(state, new, strict=True)]
        for old, value in zip(state, new, strict=True):
            if value is not old:
                assign(value, old)
        if counter is not None:
            assign(counter + 1, counter)
        assign(condition(), running)
    _run_block("while", block, outer, {"X": _reads(block), "Condition": [running.name]}, {})
    return state


def _without_value(v: Variable) -> Variable:
    """Return the same variable, with its first number hidden from inference."""
    v.inferred_spec = v.spec.like()
    return v


def _run_block(type: str, block: Block, outer: Block, inputs: Mapping[str, Sequence[str]], attrs: Mapping[str, Any]) -> Op:
    writes = block.outer_names()[1]
    probe = dict.fromkeys(n for op in block.ops for n in op.output_names() if n in writes)
    for op in block.ops:
        if op.sub_block_indices():
            probe.update(dict.fromkeys(n for n in carried_names(op) if n in writes))
    return outer.append_op(type, {k: list(v) for k, v in inputs.items()}, {"Out": list(probe)}, {**attrs, "sub_block": block.idx})


Branch = Callable[[], Any]


@tells_line
def cond(pred: Variable, true_fn: Branch | None = None, false_fn: Branch | None = None) -> Any:
    """Return ``true_fn()`` if ``pred`` holds, otherwise ``false_fn()``; only one of them runs.

    Args:
        pred: a bool variable of one element.
        true_fn, false_fn: each returns a variable, or a list (or tuple) of them, or None. Both return as many, each pair of one element type. A size that
            differs is set by the run, and so is a number of dims: such a result is passed on, fetched, and taken by `reshape`, which states its dims.

    Returns:
        In the functions' form: a variable, a list, or None. Gradients flow through the branch that ran.

    Raises:
        SchemaError, TypeMismatchError, ShapeError: the branches do not fit each other.
    """
    _truth(pred, "pred")
    for function, name in ((true_fn, "true_fn"), (false_fn, "false_fn")):
        _function(function or len, name)
    outer = current_block()
    true_out, true_form = _branch(pred, true_fn, outer)
    otherwise = logical_not(pred)
    false_out, false_form = _branch(otherwise, false_fn, outer)
    if len(true_out) != len(false_out) or true_form is not false_form:
        raise SchemaError(f"both branches must give as many variables: true_fn gives {len(true_out)}, false_fn {len(false_out)}")
    if not true_out:
        return None
    chosen = cast(pred, INT32)
    out = [outer.apply("select_input", {"X": [f, t], "Mask": chosen}) for t, f in zip(true_out, false_out, strict=True)]
    return out if true_form is list else tuple(out) if true_form is tuple else out[0]


def _branch(pred: Variable, function: Branch | None, outer: Block) -> tuple[list[Variable], Any]:
    """Describe one branch; returns its results as variables of the outer block, and their form."""
    if function is None:
        return [], None
    results: list[Variable] = []
    with region(outer) as block:
        returned = function()
        form = list if isinstance(returned, list) else tuple if isinstance(returned, tuple) else None if returned is None else Variable
        for value in [] if returned is None else _variables(returned, "a branch"):
            variable = outer.create_variable(outer.program.layer_name("branch"), value.spec.like())
            assign(value, variable)
            results.append(variable)
    _run_block("conditional_block", block, outer, {"Cond": [pred.name], "Input": _reads(block)}, {"is_scalar_condition": True})
    return results, form


def _pairs(pairs: Any, name: str) -> list[tuple[Any, Branch]]:
    if not isinstance(pairs, Sequence) or any(not isinstance(p, tuple) or len(p) != 2 for p in pairs):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        raise SchemaError.must(name, "a list of pairs", f"{pairs!r}")
    return list(pairs)  # pyright: ignore[reportUnknownArgumentType]


@tells_line
def case(pred_fn_pairs: Sequence[tuple[Variable, Branch]], default: Branch | None = None) -> Any:
    """Return the result of the function of the first true condition; if none is, ``default()`` (the last pair's, if left out).

    Args:
        pred_fn_pairs: (condition, function) pairs: one bool, and a function without arguments that returns variables; all functions return as many, of
            the same kinds and element types.
        default: such a function.
    """
    pairs = _pairs(pred_fn_pairs, "pred_fn_pairs")
    if not pairs:
        raise SchemaError("case needs at least one pair of a condition and a function")
    for _, function in pairs:
        _function(function, "the function of a pair")
    if default is not None:
        _function(default, "default")
    if default is None:
        *pairs, (_, default) = pairs
    if not pairs:
        return default()
    pred, function = pairs[0]
    remaining = pairs[1:]
    return cond(pred, function, (lambda: case(remaining, default)) if remaining else default)


@tells_line
def switch_case(branch_index: Variable, branch_fns: Mapping[int, Branch] | Sequence[Branch | tuple[int, Branch]], default: Branch | None = None) -> Any:
    """Return the result of the function of the number ``branch_index``; of another number, ``default()`` (the last function's, if left out).

    Args:
        branch_index: one int32 or int64 number.
        branch_fns: functions by their numbers, or a list of functions, numbered from 0, or of (number, function) pairs.
        default: a function, as in branch_fns.
    """
    pairs: list[tuple[int, Branch]]
    if isinstance(branch_fns, Mapping):
        pairs = list(branch_fns.items())
    elif isinstance(branch_fns, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        pairs = _pairs([f if isinstance(f, tuple) else (index, f) for index, f in enumerate(branch_fns)], "branch_fns")
    else:
        raise SchemaError.must("branch_fns", "functions, in a list or by their numbers", f"{branch_fns!r}")
    for number, function in pairs:
        _function(function, f"the branch of {number!r}")
        if isinstance(number, bool) or not isinstance(number, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SchemaError(f"a branch is chosen by a whole number; seen {number!r}")
    if not pairs and default is None:
        raise SchemaError("switch_case needs at least one branch")
    _variables(branch_index, "branch_index")
    numbers = [n for n, _ in pairs]
    if len(set(numbers)) != len(numbers):
        raise SchemaError(f"each branch has a number of its own; seen {numbers}")
    if branch_index.spec.elements != 1 or branch_index.dtype is None or not branch_index.dtype.is_integer:
        raise TypeMismatchError(f"branch_index must be one whole number; {branch_index.name} is {branch_index.spec.text()}")
    if default is None and pairs:
        *pairs, (_, default) = sorted(pairs)
    if not pairs and default is not None:
        return default()
    number = branch_index.dtype
    return case([(equal(branch_index, fill_constant(branch_index.dims, number, n)), f) for n, f in pairs], default)
