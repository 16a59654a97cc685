"""Runs a user's script, and tells in plain words what went wrong in it."""

from __future__ import annotations

import linecache
import os
import runpy
import sys
import traceback
from pathlib import Path

import typer

from foreshape.cli.output import broken, error_text, interrupted, nobody_reads
from foreshape.errors import ForeshapeError
from foreshape.text.literal import escape

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MOST_CAUSES = 4


def run_script(script: Path, args: list[str]) -> int:
    """Run a script as ``python SCRIPT ARGS`` would, its folder first on ``sys.path``. Returns the exit code: 0 also where nobody reads on what
    it prints, which ends it."""
    path = os.fspath(script)
    if not os.path.isfile(path):
        return _tell(f"{path}: there is no such file" if not os.path.exists(path) else f"{path}: not a regular file", 2)
    before = (sys.argv, list(sys.path))
    sys.argv = [path, *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # a console that has found that nobody reads it
            return 0
        code = leaving.code
        return code if isinstance(code, int) else _tell(str(code)) if code is not None else 0
    except KeyboardInterrupt as error:
        return _tell(_interrupted(error, path), 130)
    except BrokenPipeError as error:
        return 0 if nobody_reads() else _tell(words_of(error, path))
    except Exception as error:
        return _tell(words_of(error, path))
    finally:
        sys.argv, sys.path[:] = before
    return 0


def _tell(message: str, code: int = 1) -> int:
    typer.echo(broken(escape(message), sys.stderr), err=True)
    return code


def _interrupted(error: KeyboardInterrupt, script: str) -> str:
    """What a training says of itself; of an interrupt elsewhere, the line of the script, and what a training before it has left."""
    if getattr(error, "__notes__", ()):
        return interrupted(error)
    lines = _lines(error, os.path.dirname(os.path.abspath(script)) + os.sep)[-1:]
    training = sys.modules.get("foreshape.training.interrupted")  # where nothing was trained it is not there, and is not fetched
    return "\n".join([interrupted(error), *lines, *(training.after() if training is not None else ())])


def words_of(error: Exception, script: str) -> str:
    """The error, the lines of the user's own files that led to it, the innermost last, and what caused it."""
    if isinstance(error, SyntaxError):
        where = f"{os.path.relpath(error.filename)}:{error.lineno}" if error.filename else os.path.relpath(script)
        return f"{where}: not Python: {error.msg}" + (f"\n    {error.text.strip()}" if error.text else "")
    told = [_told(error, os.path.dirname(os.path.abspath(script)) + os.sep)]
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ForeshapeError) and len(told) < _MOST_CAUSES:  # this package's errors say what came before
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        if seen is not None:
            told.append("caused by " + _told(seen, os.path.dirname(os.path.abspath(script)) + os.sep))
    return "\n".join(told)


def _told(error: BaseException, folder: str) -> str:
    """One error with its lines; of a group, those in it too."""
    text = error_text(error)
    lines = _lines(error, folder)[-5:]
    if isinstance(error, ForeshapeError):
        lines = [line for line in lines if line.split()[0] not in text]  # its words name the lines of the description already
    if isinstance(error, BaseExceptionGroup):
        lines += ["    " + _told(one, folder).replace("\n", "\n    ") for one in error.exceptions[:5]]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType, reportUnknownArgumentType]
    return "\n".join([text, *lines])


def _lines(error: BaseException, folder: str) -> list[str]:
    """The lines of the user's own files that led to an error, the innermost last."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename, folder)]
    return [f"    {os.path.basename(f.filename)}:{f.lineno}    {linecache.getline(f.filename, f.lineno or 0).strip()}" for f in frames]


def _is_users(file: str, folder: str) -> bool:
    """Whether a frame is of a file beside the script, or below; not of Python itself, nor of what is installed there."""
    return not file.startswith("<") and os.path.abspath(file).startswith(folder) and "site-packages" not in file and not file.startswith(_PACKAGE)
