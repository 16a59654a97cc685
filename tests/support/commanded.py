"""The command, called in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from foreshape.cli import app


def call(*args: object) -> tuple[int, str, str]:
    """The exit code, and what was written to the output and to the errors."""
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def facts(*args: object) -> Any:
    """What the command says as JSON."""
    code, out, err = call(*args, "--json")
    assert code == 0, err
    return json.loads(out)
