"""Options of the form NAME=VALUE."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foreshape.core.dims import substitute, symbols_of
from foreshape.errors import SchemaError

if TYPE_CHECKING:
    from foreshape.language.program import Program

_OPTION = "--set, --shape"


def pairs_of(texts: Sequence[str] | None, option: str, example: str) -> dict[str, str]:
    """Parse NAME=VALUE pairs; a name may have ``=`` in it, a value not. Raises `typer.BadParameter` for anything else."""
    out: dict[str, str] = {}
    for text in texts or ():
        name, mark, value = text.rpartition("=")
        if not mark or not name or not value:
            raise typer.BadParameter(f"{text!r} is not of the form {example}", param_hint=option)
        if name in out:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        out[name] = value
    return out


def another_file(path: Path, model: Path, option: str) -> Path:
    """Return the path for a page. Raises `typer.BadParameter` for the model itself: it would be lost."""
    try:
        equal = os.path.samefile(path, model)
    except (OSError, ValueError):  # one of them is not there
        equal = False
    if equal:
        raise typer.BadParameter(f"{os.fspath(path)!r} is the model itself, which the page would replace: name another file", param_hint=option)
    return path


def sizes_of(texts: Sequence[str] | None) -> dict[str, list[int | str]]:
    """Return ``x=8,3,224,224`` as sizes: integers, names of symbols, -1 where unknown; ``x=`` with nothing is refused, ``x=[]`` has no dims."""
    out: dict[str, list[int | str]] = {}
    for name, value in pairs_of(texts, _OPTION, "x=8,3,224,224 or words=3000").items():
        inner = value.strip().removeprefix("[").removesuffix("]").strip()
        sizes: list[int | str] = []
        for part in inner.split(",") if inner else ():
            size = part.strip()
            if size.lstrip("-").isdecimal() and size.isascii() and len(size) <= 20:
                sizes.append(int(size))
            elif size.isidentifier():
                sizes.append(size)
            else:
                raise typer.BadParameter(f"{part!r} in {name}={value} is neither an integer nor a symbol's name", param_hint=_OPTION)
        out[name] = sizes
    return out


def with_shapes(program: Program, requested: Mapping[str, Sequence[int | str]]) -> tuple[Program, dict[str, int]]:
    """Set the shapes of inputs.

    Args:
        requested: name of an input -> its sizes; or name of an open size -> its number, alone in its list.

    Returns:
        The program with these shapes, and the open sizes with numbers now.

    Raises:
        SchemaError, ShapeError: as `Program.with_feed_shapes`. typer.BadParameter: an open size below 0.
    """
    from foreshape.language.program.inputs import inputs_of  # not awaited by options of other kinds

    ranks = {v.name: len(v.spec.dims or ()) for v in inputs_of(program.global_block)}
    shapes: dict[str, Sequence[int | str]] = {}
    values: dict[str, int] = {}
    for name, sizes in requested.items():
        size = sizes[0] if len(sizes) == 1 else None
        if isinstance(size, int) and ranks.get(name) != 1:
            if size < 0:
                raise typer.BadParameter(f"{name}={size}: a size is at least 0", param_hint=_OPTION)
            values[name] = size
        else:
            shapes[name] = sizes
    return (program.with_feed_shapes(shapes) if shapes else program), values


def with_sizes(program: Program, requested: Mapping[str, Sequence[int | str]]) -> Program:
    """Set the shapes of inputs, and the numbers of their open sizes, as `with_shapes`. Raises `SchemaError` for an unknown name."""
    from foreshape.language.program.inputs import inputs_of

    program, values = with_shapes(program, requested)
    inputs = {v.name: v.spec.dims or () for v in inputs_of(program.global_block)}
    for name in values:
        if not any(name in symbols_of(dim) for dims in inputs.values() for dim in dims):
            names = ", ".join(sorted({n for dims in inputs.values() for dim in dims for n in symbols_of(dim)}))
            raise SchemaError(f"{name!r} is no input, and no open size of one; the inputs are: {', '.join(inputs) or 'none'}; the sizes: {names or 'none'}")
    changed = {n: [substitute(d, values) for d in dims] for n, dims in inputs.items() if any(symbols_of(d) & values.keys() for d in dims)}
    return program.with_feed_shapes(changed) if changed else program
