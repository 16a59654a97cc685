"""What the commands print: never a traceback, and nothing from a file that could drive a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from foreshape.errors import ForeshapeError
from foreshape.program.literal import escape

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 2000
"""Columns of a table that no terminal shows: wide enough that nothing is folded."""


def console() -> Console:
    """Standard output; without markup, since names from a file may look like it."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def print_plain(text: str) -> None:
    """One line or more, with what is not printable escaped."""
    typer.echo(escape(text))


def print_json(value: Any) -> None:
    """``value`` as JSON in ASCII."""
    with printing():
        typer.echo(json.dumps(value, indent=2))


def error_text(error: BaseException) -> str:
    """``ShapeError: mul: ...``."""
    return f"{type(error).__name__}: {error}"


def stop(message: str, code: int = 1) -> NoReturn:
    """Tell what is wrong on standard error, and end with this exit code."""
    typer.echo(escape(message), err=True)
    raise typer.Exit(code)


@contextlib.contextmanager
def plain_errors() -> Generator[None]:
    """Errors of this package, and of the system, as plain text and exit code 1."""
    try:
        yield
    except ForeshapeError as error:
        stop(error_text(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        stop(f"{error.filename or 'a file'}: {error.strerror or error}")
    except MemoryError:
        stop("there is not enough memory")
    except KeyboardInterrupt:
        stop("interrupted", 130)


@contextlib.contextmanager
def printing() -> Generator[None]:
    """Whoever reads the output may stop reading, as ``head`` does: that is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
