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
    made = _NO_LETTER.sub("_", name).strip("_") or otherwise
    made = f"_{made}" if made[0].isdigit() else made
    return f"{made}_" if made in _TAKEN else made


def printable(text: str) -> str:
    """Return a text as one line of printable letters: a file's names stand in comments, and must not end them."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


class FreeNames:
    """Names given once each."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = {*_TAKEN, *taken}

    def __call__(self, wanted: str) -> str:
        name = wanted
        for at in count(1):
            if name not in self.taken:
                break
            name = f"{wanted}_{at}"
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
            for one in body:
                yield from one.reads()

    def writes(self) -> Iterator[int]:
        """Yield the values it says, with the ones of the lines below."""
        yield from self.targets
        for _, body in self.bodies:
            for one in body:
                yield from one.writes()


def drop_unread(statements: list[Statement], wanted: set[int], cells: set[int]) -> list[Statement]:
    """Return the lines whose values somebody reads; ``wanted`` grows by their own reads. Values of ``cells`` are written several times."""
    kept: list[Statement] = []
    for one in reversed(statements):
        if one.bodies:
            if not (one.acts or any(n in wanted or n in cells for n in one.writes())):
                continue
            before, whole = -1, one.bodies
            wanted.update(n for head, _ in whole for n in tokens_in(head))
            while before != len(wanted):  # what a later round reads is kept in the former one
                before = len(wanted)
                one = replace(one, bodies=[(head, drop_unread(body, wanted, cells)) for head, body in whole])
            wanted.update(tokens_in(one.text))
        elif not (one.acts or any(n in wanted for n in one.targets)):
            continue
        else:
            wanted.update(one.reads())
        kept.append(one)
    return kept[::-1]


def give_names(statements: Sequence[Statement], names: dict[int, str], ends: Iterable[int]) -> None:
    """Give a name to each value without one, the name of a value whose last reader has come wherever there is one. So no more is held than needed.

    Args:
        names: value -> its name; the given ones stay their own throughout.
        ends: the values read at the end.
    """
    pool = _pool({*_TAKEN, *names.values()})
    fixed = set(names)
    _named(statements, names, fixed, set(ends), frozenset(), pool)


def _pool(taken: set[str]) -> Callable[[set[str]], str]:
    listed: list[str] = []

    def free(used: set[str]) -> str:
        for name in listed:
            if name not in used:
                return name
        for at in count(len(listed)):
            name = _SHORT[at] if at < len(_SHORT) else f"x{at - len(_SHORT) + 1}"
            listed.append(name)
            if name not in used and name not in taken:
                return name
            if name in taken:
                listed[-1] = "\0"
                used = {*used, "\0"}
        raise AssertionError

    return lambda used: free({*used, "\0"})


def _named(
    statements: Sequence[Statement], names: dict[int, str], fixed: set[int], ends: set[int], outer: frozenset[str], pool: Callable[[set[str]], str]
) -> None:
    last: dict[int, int] = {}
    for at, one in enumerate(statements):
        for number in one.reads():
            last[number] = at
    live: dict[int, str] = {}
    for at, one in enumerate(statements):
        read = [n for n in dict.fromkeys(one.reads()) if n in live]
        if one.bodies:
            taken = frozenset({*outer, *live.values()})
            for _, body in one.bodies:
                _named(body, names, fixed, ends, taken, pool)
        dying = [live.pop(n) for n in read if last[n] == at and n not in ends]
        for number in one.targets:
            if number in fixed or (number not in last and number not in ends):
                continue
            if number in names:  # said again
                live[number] = names[number]
                continue
            names[number] = dying.pop(0) if dying else pool({*outer, *live.values()})
            live[number] = names[number]


def with_names(text: str, names: dict[int, str]) -> str:
    """Return a text with names in the places of values."""
    return _TOKEN.sub(lambda found: names[int(found[1])], text)
