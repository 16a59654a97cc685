"""Errors of kernels, with their op and the user's line."""

from __future__ import annotations

from foreshape.core.values.emitted_code import STEP_FILE, op_at
from foreshape.errors import ExecutionError
from foreshape.language.operator.registry import shown_type
from foreshape.language.program import Op
from foreshape.language.program.call_site import line_of


def _op_of(error: Exception) -> Op | None:
    """Return the op whose kernel raised an error."""
    op: Op | None = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == STEP_FILE:
            op = op_at(trace.tb_frame.f_code, trace.tb_lineno) or op
        trace = trace.tb_next
    return op


def placed(error: ExecutionError) -> ExecutionError:
    """Return a kernel's own error, with the user's line."""
    op = _op_of(error)
    if op is None or error.site is not None:
        return error
    return error.reworded(f"{error}{line_of(op.site, op.type)}").told(op=op.type, site=op.call_site)


def failure(error: Exception) -> ExecutionError:
    """Return the error of a kernel, with the op and the user's line."""
    op = _op_of(error)
    if op is None:
        return ExecutionError(str(error))
    return ExecutionError(f"{shown_type(op.type)}: the kernel failed: {error}\n    {op}{line_of(op.site, op.type)}").told(op=op.type, site=op.call_site)
