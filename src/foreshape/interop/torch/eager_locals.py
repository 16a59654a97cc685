"""The lives of local variables in eager code, read from the frames of a trace and the text of their functions.

A value with a local name lives until the name gets another value or is deleted, or its function ends: not until its last use.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
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
    calls = _calls(frames, modules)
    return [_end(node, frames, calls, last_uses[node]) for node in range(len(frames))]


class _Activation:
    """The nodes of one call of a function, up to ``last``, as runs of the same statement."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.runs: list[tuple[int, _Statement | None]] = []
        """The last node of each run, and its statement; from the back, until `close`."""
        self.binding: dict[str, list[int]] = {}
        """Name -> the runs that bind it."""

    def put(self, node: int, statement: _Statement | None) -> None:
        if not self.runs or self.runs[-1][1] != statement:
            self.runs.append((node, statement))

    def close(self) -> None:
        self.runs.reverse()
        for number, (_, statement) in enumerate(self.runs):
            for name in statement.binds if statement is not None else ():
                self.binding.setdefault(name, []).append(number)

    def run_of(self, node: int) -> int:
        return bisect_left(self.runs, node, key=lambda run: run[0])

    def freed(self, run: int, file: str) -> int:
        """Return the node behind which one of the names that a run binds has another value; the last one if the function keeps them."""
        statement = self.runs[run][1]
        assert statement is not None
        bound = [self.binding[name] for name in statement.binds]
        again = min((runs[at] for runs in bound if (at := bisect_right(runs, run)) < len(runs)), default=None)
        dropping = [last for name in statement.binds for first, last in _changes(file).get(name, ()) if first > statement.last]
        if dropping:  # between lines that compute something
            least = min(dropping)
            for number in range(run + 1, len(self.runs) if again is None else again):
                now = self.runs[number][1]
                if now is not None and now.first > least:
                    return self.runs[number - 1][0]
        return self.last if again is None else self.runs[again][0]


def _calls(frames: Sequence[tuple[Frame, ...]], modules: Modules) -> list[list[_Activation]]:
    """Return for each node the call at each level of its frames."""
    out: list[list[_Activation]] = []
    for node in reversed(range(len(frames))):
        own, after = frames[node], out[-1] if out else []
        calls: list[_Activation] = []
        for level, (file, line, _) in enumerate(own):
            goes_on = level < len(after) and _same_call(level, own, frames[node + 1], modules[node], modules[node + 1])
            call = after[level] if goes_on else _Activation(node)
            call.put(node, _statement(file, line))
            calls.append(call)
        out.append(calls)
    out.reverse()
    for call in {id(call): call for calls in out for call in calls}.values():
        call.close()
    return out


def _same_call(level: int, own: tuple[Frame, ...], other: tuple[Frame, ...], modules: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Tell whether a node and the next one are in the same call of the function at a level of their frames."""
    (file, line, function), (next_file, next_line, next_function) = own[level], other[level]
    if other[:level] != own[:level] or (next_file, next_function) != (file, function):
        return False
    inside = sum(name == "forward" for _, _, name in own[: level + 1])
    if modules[:inside] != others[:inside]:
        return False
    before, after = _statement(file, line), _statement(file, next_line)
    if before == after:
        return True
    if before is not None and before.returns:
        return False
    return next_line >= line or (before is not None and after is not None and before.loop == after.loop != 0)


def _end(node: int, frames: Sequence[tuple[Frame, ...]], calls: list[list[_Activation]], used: int) -> int:
    end = node
    for level in range(len(frames[node]) - 1, -1, -1):
        call = calls[node][level]
        run = call.run_of(node)
        last, statement = call.runs[run]
        if statement is None:
            continue
        if node < last and used <= last:  # a part of the statement's expression
            return end
        if statement.binds:
            end = max(end, call.freed(run, frames[node][level][0]))
    return end


@cache
def _statements(file: str) -> tuple[_Statement, ...]:
    """Return the simple statements of a file's functions."""
    try:
        tree = ast.parse(code_of(file))
    except (SyntaxError, ValueError):  # not the text that ran
        return ()
    return tuple(_within(tree.body, 0))


@cache
def _changes(file: str) -> dict[str, list[tuple[int, int]]]:
    """Return name -> the lines of the statements of a file that give it another value, or none."""
    out: dict[str, list[tuple[int, int]]] = {}
    for statement in _statements(file):
        for name in statement.binds | statement.drops:
            out.setdefault(name, []).append((statement.first, statement.last))
    return out


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
