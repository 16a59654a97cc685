"""The output of the commands: never a traceback, and no control sequence from a file."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import select
import shutil
import sys
import textwrap
import warnings
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from foreshape.core.pictures.markup import escape
from foreshape.errors import ForeshapeError, ForeshapeWarning

if TYPE_CHECKING:
    from rich.console import Console

_HELP_WIDTH = 56
_LEAST_WIDTH, _USUAL_WIDTH = 20, 80
"""The smallest width of a terminal, and the width if it does not say."""
_PIPE_WIDTH = 2000
"""Columns of a table outside of terminals: wide enough without folding."""


def console() -> Console:
    """Return a console on standard output; without markup, since names from a file may look like it."""
    from rich.console import Console

    class Standard(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # known to `printing`; rich ends the process with 1

    return Standard(markup=False, highlight=False, emoji=False, width=columns_of(sys.stdout) or _PIPE_WIDTH)


def columns_of(stream: TextIO | None) -> int | None:
    """Return the line width of a stream: by COLUMNS, if a width, or by the terminal; None without either."""
    setting = os.environ.get("COLUMNS", "")
    if setting.isascii() and setting.isdecimal() and len(setting) < 6 and int(setting) >= _LEAST_WIDTH:
        return int(setting)
    if stream is None or not stream.isatty():  # None where it was closed before the start
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return _USUAL_WIDTH


def print_plain(text: str) -> None:
    """Print one line or more, with unprintable characters escaped; in a terminal, and with COLUMNS set, broken between words."""
    typer.echo(broken(escape(text), sys.stdout))


def broken(text: str, stream: TextIO | None) -> str:
    """Break lines between words for a terminal; output for another program stays as it is, unless COLUMNS sets a width."""
    width = columns_of(stream)
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _parts(line, width))


def _parts(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip(" ")) + 4)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def print_json(value: Any) -> None:
    """Print ``value`` as JSON in ASCII."""
    with printing():
        typer.echo(json.dumps(value, indent=2))


def error_text(error: BaseException) -> str:
    """Return ``ShapeError: mul: ...``, and the notes added on its way."""
    message = str(error)
    return "\n".join([f"{type(error).__name__}: {message}" if message else type(error).__name__, *getattr(error, "__notes__", ())])


def stop(message: str, code: int = 1) -> NoReturn:
    """Print an error on standard error, and end with this exit code."""
    typer.echo(broken(escape(message), sys.stderr), err=True)
    raise typer.Exit(code)


@contextlib.contextmanager
def plain_errors() -> Generator[None]:
    """Print errors of this package, and of the system, as plain text with exit code 1; its warnings as notes."""
    try:
        with _plain_warnings():
            yield
    except ForeshapeError as error:
        stop(error_text(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        stop(f"{error.filename or 'a file'}: {error.strerror or error}")
    except MemoryError:
        stop("there is not enough memory")
    except KeyboardInterrupt as error:
        stop(interrupted(error), 130)


@contextlib.contextmanager
def _plain_warnings() -> Generator[None]:
    """Show this package's warnings as one line, without a place in the command's own source; other warnings as ever."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None) -> None:
        if issubclass(category, ForeshapeWarning):
            typer.echo(broken(escape(f"note: {message}".replace("\n", " ")), sys.stderr), err=True)
        else:
            usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


def interrupted(error: KeyboardInterrupt) -> str:
    """Return the words for an interrupt by the user: of a training, two lines with its position and files."""
    return "\n".join(getattr(error, "__notes__", ())) or "interrupted"


@contextlib.contextmanager
def printing() -> Generator[None]:
    """Accept readers that stop reading the output, as ``head`` does. Output that cannot be written is an error."""
    try:
        yield
        _flush()
    except BrokenPipeError:
        _print_no_more()
        raise typer.Exit(0) from None
    except OSError as error:
        if error.filename is not None:
            raise
        _print_no_more()
        stop(f"standard output cannot be written: {error.strerror or error}")


def nobody_reads() -> bool:
    """Tell whether standard output is a pipe with its other end closed."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # there is none, it is no file, or it is closed
        return False


def drop_unprintable() -> None:
    """Drop the rest of an unwritable output, as a pipe without a reader: the end of the process would try it again."""
    try:
        _flush()
    except OSError:
        _print_no_more()


def _flush() -> None:
    if sys.stdout is not None and not sys.stdout.closed:  # pyright: ignore[reportUnnecessaryComparison]  # a script may close it
        sys.stdout.flush()


def _print_no_more() -> None:
    """Discard output at the end of the process: it would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fitted(command: Any) -> Any:
    """Return the command with its help for narrow terminals: the parser makes it at least 50 columns wide, most of them for the options' names."""
    columns = shutil.get_terminal_size().columns
    if columns >= _HELP_WIDTH:
        return command
    formats: Any = command.context_class.formatter_class

    def in_lines(self: Any, rows: Any, col_max: int = 0, col_spacing: int = 2) -> None:
        formats.write_dl(self, rows, 9, col_spacing)

    lines = type("Lines", (formats,), {"write_dl": in_lines})
    context = type("Narrow", (command.context_class,), {"formatter_class": lines})
    for group in (command, *command.commands.values()):
        group.context_class = context
    return functools.partial(command, terminal_width=max(columns, 20))


@contextlib.contextmanager
def whole_command() -> Generator[None]:
    """Handle the output of the option parser, outside of commands: help and the version.

    The parser ends with 1 for a missing reader, and with a traceback for unwritable output. Letters outside of the output's encoding are escaped.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    except SystemExit as leaving:
        context = leaving.__context__
        if context is not None and isinstance(context.__cause__, KeyboardInterrupt):  # outside of the code with words for it
            sys.stderr.write("interrupted\n")
        if isinstance(context, OSError) and context.errno == errno.EPIPE:
            _print_no_more()
            raise SystemExit(0) from None
        raise
    except OSError as error:
        _print_no_more()
        sys.stderr.write(f"standard output cannot be written: {error.strerror or error}\n")
        raise SystemExit(1) from None
