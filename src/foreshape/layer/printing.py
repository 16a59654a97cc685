"""Printing and assertions: values that are printed, conditions that stop the run."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.program.current import current_block
from foreshape.program.variable import Variable


def print(x: Variable, message: str = "", first_n: int = -1, summarize: int = 20, phase: str = "both") -> Variable:
    """Return ``x``, whose name, dims, element type and first elements are written to the standard output in every run.

    Use what is returned in place of ``x``, or fetch it: what nobody needs does run, but its gradient does not.

    Args:
        x: what is shown.
        message: written first.
        first_n: in how many runs of a compiled step it is written; in all of them where that is not above 0.
        summarize: how many elements are written; all where that is negative.
        phase: ``forward``, ``backward`` (the gradient of ``x`` is written) or ``both``.
    """
    return current_block().apply("print", {"In": x}, {"message": message, "first_n": first_n, "summarize": summarize, "print_phase": phase.upper()})


def assert_true(condition: Variable, data: Sequence[Variable] = (), summarize: int = 20) -> None:
    """Stop a run with an error where ``condition``, one bool, does not hold; it tells the first ``summarize`` elements of ``data``.

    Args:
        condition: one bool, ``[1]``.
        data: variables that the error shows.
        summarize: how many elements of each are shown.
    """
    current_block().append_op("assert", {"Cond": condition, "Data": list(data)}, {}, {"summarize": summarize})
