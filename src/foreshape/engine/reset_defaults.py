"""A fresh start, as for a cell of a notebook that is run again."""

from __future__ import annotations

from foreshape.engine.scope import default_scope
from foreshape.program.current import begin_anew


def reset(*, values: bool = True) -> None:
    """Forget the default program's description and the default scope's values.

    This thread's default main and startup programs are new and empty ones (inside of a ``with fs.program_guard(...)`` until it ends). The user's own
    variables, programs and scopes stay as they are, and can still be run. Only new layers cannot be put on the old variables.

    Args:
        values: clear the default scope too, so that parameters of the same names begin anew. Otherwise a network described again goes on from
            their values.

    Raises:
        SchemaError: inside of a ``with fs.program()``.
    """
    begin_anew()
    if values:
        default_scope().clear()
