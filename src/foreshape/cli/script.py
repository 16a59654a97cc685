"""Runs a user's script, and tells in plain words what went wrong in it."""

from __future__ import annotations

import linecache
import os
import runpy
import sys
import traceback
from pathlib import Path

import typer

from foreshape.cli.output import error_text
from foreshape.errors import ForeshapeError
from foreshape.program.literal import escape


def run_script(script: Path, args: list[str]) -> int:
    """Run a script as ``python SCRIPT ARGS`` would, its folder first on ``sys.path``. Returns the exit code."""
    path = os.fspath(script)
    if not os.path.isfile(path):
        return _tell(f"{path}: there is no such file" if not os.path.exists(path) else f"{path}: not a regular file", 2)
    before = (sys.argv, list(sys.path))
    sys.argv = [path, *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        runpy.run_path(path, run_name="__main__")
    except ForeshapeError as error:
        return _tell(error_text(error))
    except SystemExit as leaving:
        code = leaving.code
        return code if isinstance(code, int) else _tell(str(code)) if code is not None else 0
    except KeyboardInterrupt:
        return _tell("interrupted", 130)
    except Exception as error:
        return _tell(words_of(error, path))
    finally:
        sys.argv, sys.path[:] = before
    return 0


def _tell(message: str, code: int = 1) -> int:
    typer.echo(escape(message), err=True)
    return code


def words_of(error: Exception, script: str) -> str:
    """The error, and the lines of the user's own files that led to it, the innermost last."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}" if error.filename else script
        return f"{where}: not Python: {error.msg}" + (f"\n    {error.text.strip()}" if error.text else "")
    folder = os.path.dirname(os.path.abspath(script)) + os.sep
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.abspath(f.filename).startswith(folder) and "site-packages" not in f.filename]
    lines = [f"    {os.path.basename(f.filename)}:{f.lineno}    {linecache.getline(f.filename, f.lineno or 0).strip()}" for f in frames[-5:]]
    return "\n".join([error_text(error), *lines])
