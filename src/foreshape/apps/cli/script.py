"""The execution of a user's script, with its errors in plain words."""

from __future__ import annotations

import linecache
import os
import runpy
import sys
import traceback
from pathlib import Path

import typer

from foreshape.apps.cli.output import broken, error_text, interrupted, nobody_reads
from foreshape.core.package_folder import PACKAGE
from foreshape.errors import ForeshapeError
from foreshape.language.text.literal import escape

_MOST_CAUSES = 4


def run_script(script: Path, args: list[str]) -> int:
    """Run a script as ``python SCRIPT ARGS`` would, its folder first on ``sys.path``. Returns the exit code, 0 also if nobody reads its output."""
    path = os.fspath(script)
    if not os.path.isfile(path):
        return _tell(f"{path}: there is no such file" if not os.path.exists(path) else f"{path}: not a regular file", 2)
    previous = (sys.argv, list(sys.path))
    sys.argv = [path, *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # a console without a reader
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
        sys.argv, sys.path[:] = previous
    return 0


def _tell(message: str, code: int = 1) -> int:
    typer.echo(broken(escape(message), sys.stderr), err=True)
    return code


def _interrupted(error: KeyboardInterrupt, script: str) -> str:
    """Return a training's own words; for an interrupt elsewhere, the script's line, and the files of a training before."""
    if getattr(error, "__notes__", ()):
        return interrupted(error)
    lines = _lines(error, os.path.dirname(os.path.abspath(script)) + os.sep)[-1:]
    training = sys.modules.get("foreshape.apps.training.interrupted")  # where nothing was trained it is not there, and is not fetched
    return "\n".join([interrupted(error), *lines, *(training.after() if training is not None else ())])


def words_of(error: Exception, script: str) -> str:
    """Return the error, the lines of the user's own files behind it, the innermost last, and its causes."""
    if isinstance(error, SyntaxError):
        place = f"{os.path.relpath(error.filename)}:{error.lineno}" if error.filename else os.path.relpath(script)
        return f"{place}: not Python: {error.msg}" + (f"\n    {error.text.strip()}" if error.text else "")
    texts = [_error_words(error, os.path.dirname(os.path.abspath(script)) + os.sep)]
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ForeshapeError) and len(texts) < _MOST_CAUSES:  # this package's errors include their causes
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        if cause is not None:
            texts.append("caused by " + _error_words(cause, os.path.dirname(os.path.abspath(script)) + os.sep))
    return "\n".join(texts)


def _error_words(error: BaseException, folder: str) -> str:
    """Return one error with its lines; of a group, also its members."""
    text = error_text(error)
    lines = _lines(error, folder)[-5:]
    if isinstance(error, ForeshapeError):
        lines = [line for line in lines if line.split()[0] not in text]  # its words name the lines of the description already
    if isinstance(error, BaseExceptionGroup):
        lines += ["    " + _error_words(member, folder).replace("\n", "\n    ") for member in error.exceptions[:5]]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType, reportUnknownArgumentType]
    return "\n".join([text, *lines])


def _lines(error: BaseException, folder: str) -> list[str]:
    """Return the lines of the user's own files behind an error, the innermost last."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename, folder)]
    return [f"    {os.path.basename(f.filename)}:{f.lineno}    {linecache.getline(f.filename, f.lineno or 0).strip()}" for f in frames]


def _is_users(file: str, folder: str) -> bool:
    """Tell whether a frame is from a file beside the script, or below; not Python's own, nor installed there."""
    return not file.startswith("<") and os.path.abspath(file).startswith(folder) and "site-packages" not in file and not file.startswith(PACKAGE)
