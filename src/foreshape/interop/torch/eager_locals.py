"""The lives of local variables in eager code, read from the frames of a trace and the text of their functions.

A value with a local name lives until the name gets another value or is deleted, or its function ends: not until its last use.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from foreshape.interop.torch.node_sites import Frame, code_of

Modules = Sequence[tuple[str, ...]]


class _Statement(NamedTuple):
    """A simple statement: its lines, the names that it binds, the names that it sets free, and the innermost loop around it.

    ``returns``: its value goes to the caller.
    """

    first: int
    last: int
    binds: frozenset[str] = frozenset()
    drops: frozenset[str] = frozenset()
    returns: bool = False
    loop: int = 0


def local_ends(frames: Sequence[tuple[Frame, ...]], modules: Modules, last_uses: Sequence[int]) -> list[int]:
    """Return for each node of a trace the node behind which its value's last local name is gone; the node itself for a value without one.

    Args:
        frames, modules: of each node, its frames and its modules, the innermost last.
        last_uses: of each node, the last node that reads it.
    """
    return [_end(at, frames, modules, last_uses[at]) for at in range(len(frames))]


def _end(at: int, frames: Sequence[tuple[Frame, ...]], modules: Modules, used: int) -> int:
    own, end = frames[at], at
    for level in range(len(own) - 1, -1, -1):
        statement = _statement(*own[level][:2])
        if statement is None:
            continue
        activation = [*_activation(at, level, frames, modules)]
        made = at
        while made < activation[-1] and _statement(*frames[made + 1][level][:2]) == statement:
            made += 1
        if used <= made and at < made:  # a part of the statement's expression
            return end
        if statement.binds:
            end = max(end, _rebound(made, level, frames, activation[-1], statement))
    return end


def _rebound(made: int, level: int, frames: Sequence[tuple[Frame, ...]], last: int, statement: _Statement) -> int:
    """Return the node behind which one of a statement's names has another value; the last one of the function if it keeps it."""
    file = frames[made][level][0]
    freeing = [one for one in _statements(file) if one.first > statement.last and statement.binds & (one.binds | one.drops)]
    at = made + 1
    while at <= last:
        now = _statement(*frames[at][level][:2])
        if now is not None:
            if statement.binds & now.binds:
                while at < last and _statement(*frames[at + 1][level][:2]) == now:
                    at += 1
                return at
            if any(one.last < now.first for one in freeing):  # set free between lines that compute something
                return at - 1
        at += 1
    return last


def _activation(at: int, level: int, frames: Sequence[tuple[Frame, ...]], modules: Modules) -> Iterator[int]:
    """Yield a node and the nodes behind it in the same call of the function at a level of its frames."""
    own = frames[at]
    around, (file, _, function) = own[:level], own[level]
    inside = modules[at][: sum(name == "forward" for _, _, name in own[: level + 1])]
    before = own[level][1]
    ended = False
    for other in range(at, len(frames)):
        here = frames[other]
        if len(here) <= level or here[:level] != around or (here[level][0], here[level][2]) != (file, function):
            return
        if modules[other][: len(inside)] != inside:
            return
        line = here[level][1]
        statement, former = _statement(file, line), _statement(file, before)
        if statement != former and (ended or (line < before and (statement is None or former is None or not statement.loop or statement.loop != former.loop))):
            return
        ended = former is not None and statement is not None and statement.returns
        before = line
        yield other


@cache
def _statements(file: str) -> tuple[_Statement, ...]:
    """Return the simple statements of a file's functions."""
    try:
        tree = ast.parse(code_of(file))
    except (SyntaxError, ValueError):  # not the text that ran
        return ()
    return tuple(_within(tree.body, 0))


def _within(body: Sequence[ast.stmt], loop: int) -> Iterator[_Statement]:
    for one in body:
        inner = [part for name in ("body", "orelse", "finalbody") for part in getattr(one, name, ())]
        if inner:
            yield from _within(inner, one.lineno if isinstance(one, (ast.For, ast.While)) else 0 if isinstance(one, (ast.FunctionDef, ast.ClassDef)) else loop)
            for handler in getattr(one, "handlers", ()):
                yield from _within(handler.body, loop)
            continue
        targets: list[Any] = [*getattr(one, "targets", ()), *([one.target] if isinstance(one, (ast.AnnAssign, ast.AugAssign)) else [])]
        names = frozenset(part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load))
        binds, drops = (frozenset[str](), names) if isinstance(one, ast.Delete) else (names, frozenset[str]())
        yield _Statement(one.lineno, one.end_lineno or one.lineno, binds, drops, isinstance(one, ast.Return), loop)


@cache
def _statement(file: str, line: int) -> _Statement | None:
    """Return the only statement at a line; None for a line of several."""
    there = [one for one in _statements(file) if one.first <= line <= one.last]
    return there[0] if len(there) == 1 else None
