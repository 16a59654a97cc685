"""The user's own line: the first frame outside of this package."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import ParamSpec, TypeAlias, TypeVar

from foreshape.core.package_folder import PACKAGE
from foreshape.errors import DescriptionError, ForeshapeWarning
from foreshape.language.operator.require import RuleError
from foreshape.language.program.messages import CallSite, describe_failure

P = ParamSpec("P")
T = TypeVar("T")

_DEMO = os.path.join(PACKAGE, "apps", "training", "demo.py")
"""The demo is a user of the package, like any other."""
Site: TypeAlias = "tuple[str, int, str] | None"
"""A call site as it is kept: file, line, function."""
_IMPORTERS = tuple([os.path.join(PACKAGE, "interop", room, "") for room in ("forms", "onnx", "pir", "torch", "torch_backend")])
"""Folders of importers: the line of their ops is told (`telling_site`), or there is none."""
_told: Site = None
_own: dict[str, bool | None] = {}
"""File of a seen frame -> True if it belongs to this package, None if to an importer: each op of a network asks for the same few."""


def here() -> Site:
    """Return the innermost frame outside of this package. Within an importer, its told line."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        is_own = _own.get(file, _own)
        if is_own is _own:
            is_own = _own[file] = None if file.startswith(_IMPORTERS) else _is_own(file)
        if not is_own:
            return _told if is_own is None else (file, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


@contextmanager
def telling_site(site: Site) -> Generator[None]:
    """Tell the line of an importer's ops."""
    global _told
    previous, _told = _told, site
    try:
        yield
    finally:
        _told = previous


def _is_own(file: str) -> bool:
    """Tell whether a file is the package's, and not a user's."""
    return file.startswith(PACKAGE) and file != _DEMO


def caller(passes: Callable[[str], bool] | None = None) -> Site:
    """Return the innermost frame outside of this package, importers included: where one was called. Files that pass are left out too."""
    return _caller(passes)[0]


def _caller(passes: Callable[[str], bool] | None = None) -> tuple[Site, int]:
    """Return the frame that called the package, and how many frames it is above the function that asks."""
    depth = 1
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_own(file) and file != contextlib.__file__ and (passes is None or not passes(file)):  # as of `border`
            return (file, frame.f_lineno, frame.f_code.co_name), depth
        frame, depth = frame.f_back, depth + 1
    return None, depth


def warn_user(words: str) -> None:
    """Warn by Python's `warnings`, of the user's own line."""
    warnings.warn(words, ForeshapeWarning, stacklevel=_caller()[1] + 1)


def warn_at(site: Site, words: str) -> None:
    """Warn by Python's `warnings`, of the line of a call site; of the user's own line without one."""
    if site is None:
        warn_user(words)
    else:
        warnings.warn_explicit(words, ForeshapeWarning, site[0], site[1])


def call_site(site: Site) -> CallSite | None:
    """Return a call site as an object with words."""
    return None if site is None else CallSite(*site)


def line_of(site: Site, otherwise: str) -> str:
    """Return the line of a call site, as the last line of an error; ``otherwise`` if its text cannot be read. Empty without a call site."""
    call = call_site(site)
    return "" if call is None else f"\n    at {call.source_line() or otherwise}    {call.short()}"


def located(error: DescriptionError, site: Site) -> DescriptionError:
    """Return the same error with the user's line, unless it has one."""
    if site is None or error.site is not None or error.op is not None:
        return error
    return error.reworded(f"{error}{line_of(site, site[2])}").told(site=call_site(site))


def tells_line(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function for users so that its description errors have the user's line, also those without an op."""

    @functools.wraps(function)
    def telling(*args: P.args, **kw: P.kwargs) -> T:
        try:
            return function(*args, **kw)
        except DescriptionError as error:
            with_line = located(error, here())
            if with_line is error:
                raise
            raise with_line from None

    return telling


def placed_error(error: DescriptionError, type: str, site: Site) -> DescriptionError:
    """Return the same error with the op and the user's line, for mistakes found before any rule."""
    return describe_failure(RuleError(str(error), {}, error.__class__), type, {}, call_site(site))
