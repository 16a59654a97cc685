"""Options of the form NAME=VALUE."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import typer


def pairs_of(given: Sequence[str] | None, option: str, example: str) -> dict[str, str]:
    """NAME=VALUE pairs; a name may have ``=`` in it, a value not. Raises `typer.BadParameter` for anything else."""
    out: dict[str, str] = {}
    for text in given or ():
        name, mark, value = text.rpartition("=")
        if not mark or not name or not value:
            raise typer.BadParameter(f"{text!r} is not of the form {example}", param_hint=option)
        if name in out:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        out[name] = value
    return out


def another_file(path: Path, model: Path, option: str) -> Path:
    """Where a page goes. Raises `typer.BadParameter` where that is the model itself, which would be lost."""
    try:
        same = os.path.samefile(path, model)
    except (OSError, ValueError):  # one of them is not there
        same = False
    if same:
        raise typer.BadParameter(f"{os.fspath(path)!r} is the model itself, which the page would replace: name another file", param_hint=option)
    return path


def shapes_of(given: Sequence[str] | None) -> dict[str, list[int | str]]:
    """``x=8,3,224,224`` as sizes: integers, names of symbols, -1 where unknown; ``x=`` with nothing is refused, ``x=[]`` has no dims."""
    out: dict[str, list[int | str]] = {}
    for name, value in pairs_of(given, "--shape", "x=8,3,224,224").items():
        inner = value.strip().removeprefix("[").removesuffix("]").strip()
        sizes: list[int | str] = []
        for part in inner.split(",") if inner else ():
            size = part.strip()
            if size.lstrip("-").isdecimal() and size.isascii() and len(size) <= 20:
                sizes.append(int(size))
            elif size.isidentifier():
                sizes.append(size)
            else:
                raise typer.BadParameter(f"{part!r} in {name}={value} is neither an integer nor a symbol's name", param_hint="--shape")
        out[name] = sizes
    return out
