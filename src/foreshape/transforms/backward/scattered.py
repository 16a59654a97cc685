"""Reshapes of a network in training that make rows of the elements of several examples."""

from __future__ import annotations

from collections.abc import Iterator

from foreshape.language.infer.example_flow import ExampleFlow
from foreshape.language.operator.computations import Computation, Reshape, Transposition
from foreshape.language.program import Op, Program, Variable
from foreshape.language.program.call_site import warn_at


def scattered_reshapes(program: Program) -> list[Op]:
    """Return the reshapes whose result has as many rows as examples, and in each row elements of several examples.

    So ``[batch, time, width]``, permuted to ``[time, batch, width]``, becomes ``[batch, time * width]`` again.
    """
    if not any(_may_scatter(program)):
        return []
    block = program.global_block
    inputs = [v.name for v in block.vars.values() if v.need_check_feed and v.op is None and v.spec.dims and not isinstance(v.spec.dims[0], int)]
    return list(dict.fromkeys(ExampleFlow(program, inputs).scattered))


def _may_scatter(program: Program) -> Iterator[bool]:
    """Yield True for each op that moves the first axis: without one, examples stay in order."""
    computed: dict[int, Computation | None] = {}  # ops of the same attributes share their operator
    for op in program.global_block.ops:
        operator = op.operator
        if operator is None:
            continue
        if id(operator) not in computed:
            computed[id(operator)] = operator.computes()
        computation = computed[id(operator)]
        if isinstance(computation, Transposition):
            yield bool(computation.axes) and computation.axes[0] != 0
        elif isinstance(computation, Reshape):
            operand, result = (op.block.find(n) for n in (op.operand(0), op.result()))
            dims = [v.spec.dims for v in (operand, result) if v is not None]
            yield len(dims) < 2 or not dims[0] or not dims[1] or dims[0][0] is not dims[1][0]


def warn_of_scattered(loss: Variable) -> None:
    """Warn of each such reshape behind a loss, at its line."""
    reshapes = scattered_reshapes(loss.block.program)
    if not reshapes:
        return
    behind = {loss.name}
    for op in reversed(loss.block.program.global_block.ops):
        if not behind.isdisjoint(op.output_names()):
            behind.update(op.all_reads())
            if op in reshapes:
                warn_at(op.site, scattered_words(op))


def scattered_words(op: Op) -> str:
    """Return the remark on a reshape found by `scattered_reshapes`."""
    source, target = (v.spec.text() if (v := op.block.find(n)) is not None else "" for n in (op.operand(0), op.result()))
    return f"{op.type} takes {source} to {target}: each row has elements of several examples; layer.transpose the axis of the examples to the front first"
