"""The framework of passes: run by name, on a copy, and inferred again after a change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from foreshape.errors import DescriptionError
from foreshape.language.program import Program

Change: TypeAlias = "Callable[[Program], bool]"
"""A function that changes its program (a copy), and returns True if it did."""


class Pass:
    """A named change of a program.

    Examples:
        >>> drop_dead = Pass("drop_dead", lambda program: False)
        >>> program, changed = drop_dead(Program())
        >>> changed
        False
    """

    __slots__ = ("_change", "name")

    def __init__(self, name: str, change: Change) -> None:
        self.name = name
        self._change = change

    def __call__(self, program: Program) -> tuple[Program, bool]:
        """Return the changed program and True, or the program itself and False.

        Raises:
            DescriptionError: the result is inconsistent (a mistake in the pass), or the pass refuses the program.
        """
        copy = program.clone()
        if not self._change(copy):
            return program, False
        copy.touch()
        try:
            copy.infer()
        except DescriptionError as error:
            error.add_note(f"after the pass {self.name}")
            raise
        return copy, True

    def __repr__(self) -> str:
        return f"Pass({self.name!r})"


def named(name: str) -> Callable[[Change], Pass]:
    """Decorate a function on programs to make it a pass of this name."""

    def make(change: Change) -> Pass:
        return Pass(name, change)

    return make


def apply(program: Program, passes: Iterable[Pass]) -> tuple[Program, list[str]]:
    """Run passes one after the other; returns the program and the names of effective passes."""
    changed: list[str] = []
    for step in passes:
        program, differs = step(program)
        if differs:
            changed.append(step.name)
    return program, changed
