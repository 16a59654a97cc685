"""Beginning anew, as a cell of a notebook does that is run again."""

from __future__ import annotations

from foreshape.engine.scope import default_scope
from foreshape.program.current import begin_anew


def reset(*, values: bool = True) -> None:
    """Forget what was described in the default program, and what the default scope holds.

    This thread's default main and startup programs are new and empty ones (inside of a ``with fs.program_guard(...)`` until it ends).
    Variables, programs and scopes that a user holds stay as they are, and can still be run; only new layers cannot be put on the old variables.

    Args:
        values: whether the default scope forgets its values too, so that parameters of the same names begin anew. Without it a network that is
            described again goes on from them.

    Raises:
        SchemaError: inside of a ``with fs.program()``.
    """
    begin_anew()
    if values:
        default_scope().clear()
