"""The command, called in this process."""

from __future__ import annotations

import contextlib
import io
import json
from functools import cache
from typing import Any

from typer.main import get_command

from foreshape.apps.cli.commands import app


@cache
def _command() -> Any:
    """The command as the parser has it: made once, since it is made from the annotations of all commands."""
    return get_command(app)


def call(*args: object) -> tuple[int, str, str]:
    """The exit code, and what was written to the output and to the errors."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", newline="") for _ in range(2))
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            _command().main([str(a) for a in args], "foreshape")
        except SystemExit as leaving:
            code = leaving.code
    texts: list[str] = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8", "surrogateescape"))  # type: ignore[attr-defined]
    return code if isinstance(code, int) else int(code is not None), texts[0], texts[1]


def facts(*args: object) -> Any:
    """What the command says as JSON."""
    code, out, err = call(*args, "--json")
    assert code == 0, err
    return json.loads(out)
