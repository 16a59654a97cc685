"""Printing and assertions: values printed in runs, and conditions that stop them."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable


def print(x: Variable, message: str = "", first_n: int = -1, summarize: int = 20, phase: str = "both") -> Variable:
    """Return ``x``, and write its name, dims, element type and first elements to the standard output in every run.

    Use the result in place of ``x``, or fetch it: an unused result is printed, but its gradient is not.

    Args:
        x: the variable to print.
        message: written first.
        first_n: the number of runs of a compiled step with output; not above 0 for all.
        summarize: the number of elements written; negative for all.
        phase: ``forward``, ``backward`` (the gradient of ``x`` is written) or ``both``.
    """
    return current_block().apply("print", {"In": x}, {"message": message, "first_n": first_n, "summarize": summarize, "print_phase": phase.upper()})


def assert_true(condition: Variable, data: Sequence[Variable] = (), summarize: int = 20) -> None:
    """Stop a run with an error if ``condition``, one bool, does not hold; it shows the first ``summarize`` elements of ``data``.

    Args:
        condition: one bool, ``[1]``.
        data: variables shown by the error.
        summarize: the number of elements shown of each.
    """
    current_block().append_op("assert", {"Cond": condition, "Data": list(data)}, {}, {"summarize": summarize})
