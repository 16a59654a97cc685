"""Names of Python: of values in a function, few of them in use at once, and of a module's parameters."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

_TOKEN = re.compile("\x01(\\d+)\x02")
DEVICE: Final = "\x03"
"""The place of the device of new tensors in a text."""
_NO_LETTER = re.compile(r"\W+", re.ASCII)
_TAKEN: Final = frozenset({*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self", "torch", "F", "nn", "math", "Tensor", "aten", "device", "numpy"})
_SHORT: Final = ("x", "y", "z", "u", "v", "w")


def token(number: int) -> str:
    """Return the place of a value in a text, until it has a name."""
    return f"\x01{number}\x02"


def tokens_in(text: str) -> list[int]:
    """Return the values in a text, in order."""
    return [int(n) for n in _TOKEN.findall(text)]


def is_one_token(text: str) -> bool:
    """Tell whether a text is a value alone."""
    return _TOKEN.fullmatch(text) is not None


def identifier(name: str, otherwise: str = "value") -> str:
    """Return a name as an identifier of Python, unlike its own words."""
    word = _NO_LETTER.sub("_", name).strip("_") or otherwise
    word = f"_{word}" if word[0].isdigit() else word
    return f"{word}_" if word in _TAKEN else word


def printable(text: str) -> str:
    """Return a text as one line of printable letters: a file's names stand in comments, and must not end them."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


class FreeNames:
    """Names given once each."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self.taken = {*_TAKEN, *reserved}

    def __call__(self, base: str) -> str:
        name = base
        for number in count(1):
            if name not in self.taken:
                break
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

    def keep_apart(self, names: dict[int, str], called: set[str]) -> dict[str, str]:
        """Give other names to values with the name of a function of the file; return old name -> new one."""
        self.taken |= called
        renamed = {name: self(f"{name}_") for name in names.values() if name in called}
        names.update({number: renamed[name] for number, name in names.items() if name in renamed})
        return renamed


@dataclass(eq=False)
class Statement:
    """A line of a function: ``targets = text``, or the text alone; or a head with the lines below it.

    Attributes:
        targets: the numbers of the values it says.
        text: the expression, with tokens for values.
        comment: behind it.
        bodies: head -> its lines, as ``while x:``.
        scope: of its op.
        acts: it is written though nobody reads its values.
    """

    targets: Sequence[int]
    text: str
    comment: str = ""
    bodies: list[tuple[str, list[Statement]]] = field(default_factory=list["tuple[str, list[Statement]]"])
    scope: str = ""
    acts: bool = False

    def reads(self) -> Iterator[int]:
        """Yield the values it reads, with the ones of the lines below."""
        yield from tokens_in(self.text)
        for head, body in self.bodies:
            yield from tokens_in(head)
            for statement in body:
                yield from statement.reads()

    def writes(self) -> Iterator[int]:
        """Yield the values it says, with the ones of the lines below."""
        yield from self.targets
        for _, body in self.bodies:
            for statement in body:
                yield from statement.writes()


def drop_unread(statements: list[Statement], needed: set[int], cells: set[int]) -> list[Statement]:
    """Return the lines whose values somebody reads; ``needed`` grows by their own reads. Values of ``cells`` are written several times."""
    lines: list[Statement] = []
    for statement in reversed(statements):
        if statement.bodies:
            if not (statement.acts or any(n in needed or n in cells for n in statement.writes())):
                continue
            size, bodies = -1, statement.bodies
            needed.update(n for head, _ in bodies for n in tokens_in(head))
            while size != len(needed):  # what a later round reads is kept in the former one
                size = len(needed)
                statement = replace(statement, bodies=[(head, drop_unread(body, needed, cells)) for head, body in bodies])
            needed.update(tokens_in(statement.text))
        elif not (statement.acts or any(n in needed for n in statement.targets)):
            continue
        else:
            needed.update(statement.reads())
        lines.append(statement)
    return lines[::-1]


def give_names(statements: Sequence[Statement], names: dict[int, str], ends: Iterable[int]) -> None:
    """Give a name to each value without one, the name of a value whose last reader has come wherever there is one. So no more is held than needed.

    Args:
        names: value -> its name; the given ones stay their own throughout.
        ends: the values read at the end.
    """
    pool = _pool({*_TAKEN, *names.values()})
    fixed = set(names)
    _name_values(statements, names, fixed, set(ends), frozenset(), pool)


def _pool(reserved: set[str]) -> Callable[[set[str]], str]:
    listed: list[str] = []

    def free(used: set[str]) -> str:
        for name in listed:
            if name not in used:
                return name
        for number in count(len(listed)):
            name = _SHORT[number] if number < len(_SHORT) else f"x{number - len(_SHORT) + 1}"
            listed.append(name)
            if name not in used and name not in reserved:
                return name
            if name in reserved:
                listed[-1] = "\0"
                used = {*used, "\0"}
        raise AssertionError

    return lambda used: free({*used, "\0"})


def _name_values(
    statements: Sequence[Statement], names: dict[int, str], fixed: set[int], ends: set[int], outer: frozenset[str], pool: Callable[[set[str]], str]
) -> None:
    last: dict[int, int] = {}
    for index, statement in enumerate(statements):
        for number in statement.reads():
            last[number] = index
    live: dict[int, str] = {}
    for index, statement in enumerate(statements):
        read = [n for n in dict.fromkeys(statement.reads()) if n in live]
        if statement.bodies:
            outer_names = frozenset({*outer, *live.values()})
            for _, body in statement.bodies:
                _name_values(body, names, fixed, ends, outer_names, pool)
        dying = [live.pop(n) for n in read if last[n] == index and n not in ends]
        for number in statement.targets:
            if number in fixed or (number not in last and number not in ends):
                continue
            if number in names:  # said again
                live[number] = names[number]
                continue
            names[number] = dying.pop(0) if dying else pool({*outer, *live.values()})
            live[number] = names[number]


def with_names(text: str, names: dict[int, str]) -> str:
    """Return a text with names in the places of values."""
    return _TOKEN.sub(lambda match: names[int(match[1])], text)
