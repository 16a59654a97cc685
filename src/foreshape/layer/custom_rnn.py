"""Recurrent steps of your own: `rnn`, a user's step, run over the time steps of dense or ragged input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreshape.core.spec import LOD_TENSOR, Spec
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program import Block, Variable
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block, region
from foreshape.layer.creation import assign
from foreshape.layer.manipulation import transpose

Step = Callable[..., Any]


def _list(values: Any, name: str) -> list[Variable]:
    listed: list[Any] = [] if values is None else list(values) if isinstance(values, (list, tuple)) else [values]  # pyright: ignore[reportUnknownArgumentType]
    for variable in listed:
        if not isinstance(variable, Variable):
            raise SchemaError.must(name, "variables", f"{variable!r}")
    return listed


@tells_line
def rnn(
    step_net: Step | Mapping[str, Any], inputs: Variable | Sequence[Variable] = (), memories: Variable | Sequence[Variable] = (),
    static_inputs: Variable | Sequence[Variable] = (), *, time_major: bool = False, reverse: bool = False,
) -> Any:  # fmt: skip
    """Run ``step_net`` once for every time step; it is traced once, into a block of the program.

    Args:
        step_net: called as ``step_net(inputs..., memories..., static_inputs...)`` with the inputs at one step, ``[batch, *row]``, and
            the memories after the step before; gives ``(outputs, new_memories)``: each a variable or a list of them. Or a mapping
            with the entry "step": such a function, and optionally "inputs", "memories", "static_inputs" in the place of the arguments.
        inputs: dense, ``[batch, time, *row]`` (``[time, batch, *row]`` if ``time_major``), or all ragged. Ragged sequences run in
            the order of falling length, and end one by one; nothing is padded, and rows and offsets come back in their own order.
        memories: the memories before the first step, one row for each example (of ragged input: for each sequence).
        static_inputs: the same at every step, with one row for each example, for ragged input for each sequence. Other variables, such as weights, are
            read as they are.
        time_major: dense inputs have the time first.
        reverse: from the last step to the first.

    Returns:
        ``(outputs, last_memories)``. An output is all steps: ``[batch, time, *row]`` (time first if ``time_major``), or ragged rows with
        the inputs' offsets. A last memory has one row for each example. Each is a variable if ``step_net`` returned one, otherwise a list.

    Raises:
        SchemaError, ShapeError, TypeMismatchError: invalid results of the step, a memory changes its shape, or inputs differ
        in their steps.
    """
    if isinstance(step_net, Mapping):
        arguments: dict[str, Any] = dict(step_net)  # pyright: ignore[reportUnknownArgumentType]
        names_text = ", ".join(map(repr, arguments))
        function = arguments.pop("step", None)
        inputs, memories, static_inputs = arguments.pop("inputs", inputs), arguments.pop("memories", memories), arguments.pop("static_inputs", static_inputs)
        if function is None or arguments:
            raise SchemaError(f'step_net is a function, or {{"step": function}} with "inputs", "memories" and "static_inputs"; seen {names_text}')
        step_net = function
    if not callable(step_net):
        raise SchemaError.must("step_net", "a function", f"{step_net!r}")
    sequences, first, fixed = _list(inputs, "inputs"), _list(memories, "memories"), _list(static_inputs, "static_inputs")
    if not sequences:
        raise SchemaError("rnn needs an input with time steps")
    ragged = sequences[0].spec.lod is not None
    transposes = not ragged and not time_major
    if transposes:
        sequences = [_transposed(v) for v in sequences]
    outer = current_block()
    program = outer.program
    state = [*first, *(fixed if ragged else [])]  # data of a sequence have to end with it
    with region(outer) as block:
        alive = block.program.layer_name("rnn.alive")
        slices = [_local(block, v.name, _slice(v, ragged, alive)) for v in sequences]
        previous_states = [_local(block, program.layer_name("rnn.memory"), _row(v, ragged, alive)) for v in state]
        returned = step_net(*slices, *previous_states[: len(first)], *(previous_states[len(first) :] if ragged else fixed))
        if not isinstance(returned, tuple) or len(returned) != 2:  # pyright: ignore[reportUnknownArgumentType]
            raise SchemaError(f"step_net must give (outputs, new_memories); seen {returned!r}")
        out_form, memory_form = returned  # pyright: ignore[reportUnknownVariableType]
        outs, new = _list(out_form, "outputs"), _list(memory_form, "new memories")
        if len(new) != len(first):
            raise SchemaError(f"step_net must give as many new memories as it takes, {len(first)}; seen {len(new)}")
        new_states = [assign(v) for v in (*new, *previous_states[len(first) :])]
        outputs = [assign(v) for v in (*outs, *new_states[: len(first)])]
        if not outputs:
            raise SchemaError("step_net must give an output or a memory")
    names = [v.name for v in outputs]
    reads = sorted(n for n in block.outer_names()[0] if block.find(n) is not None)
    outer.append_op(
        "recurrent",
        {"inputs": sequences, "initial_states": state, "parameters": reads},
        {"outputs": names},
        {
            "has_states": bool(state),
            "ex_states": [v.name for v in previous_states],
            "states": [v.name for v in new_states],
            "reverse": reverse,
            "sub_block": block.idx,
        },
    )
    series = [outer.vars[n] for n in names]
    last = [_last(v, ragged, reverse) for v in series[len(outs) :]]
    results = [_transposed(v) if transposes else v for v in series[: len(outs)]]
    return _as_given(results, out_form), _as_given(last, memory_form)


def _as_given(values: list[Variable], form: Any) -> Any:
    return values if isinstance(form, (list, tuple)) else values[0] if values else None


def _transposed(v: Variable) -> Variable:
    if v.spec.rank < 2:
        raise ShapeError(f"an input of rnn is [batch, time, *row]; {v.name} is {v.spec.text()}")
    return transpose(v, [1, 0, *range(2, v.spec.rank)])


def _local(block: Block, name: str, spec: Spec) -> Variable:
    return block.create_variable(name, spec)


def _slice(v: Variable, ragged: bool, alive: str) -> Spec:
    dims = v.spec.known_dims
    if len(dims) < (1 if ragged else 2):
        raise ShapeError(f"an input of rnn is [time, batch, *row], or ragged rows; {v.name} is {v.spec.text()}")
    return _row(v, True, alive) if ragged else Spec(LOD_TENSOR, v.spec.dtype, dims[1:])


def _row(v: Variable, ragged: bool, alive: str) -> Spec:
    from foreshape.core.dims import symbol

    dims = v.spec.known_dims
    return Spec(LOD_TENSOR, v.spec.dtype, (symbol(alive), *dims[1:]) if ragged else dims)


def _last(v: Variable, ragged: bool, reverse: bool) -> Variable:
    """Return the memory after the last step."""
    block = current_block()
    if ragged:
        return block.apply("sequence_pool", {"X": v}, {"pooltype": "FIRST" if reverse else "LAST"})[0]
    ends = {"starts": [0], "ends": [1]} if reverse else {"starts": [-1], "ends": [2**31 - 1]}
    return block.apply("slice", {"Input": v}, {"axes": [0], **ends, "decrease_axis": [0], "infer_flags": [1]})
