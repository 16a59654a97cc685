"""The framework of passes: run by name, on a copy, and inferred again after a change."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from foreshape.language.program import Program
from foreshape.transforms.passes.contract import Change, Contract, PassResult, ProgramCondition, contract


class Pass:
    """A named change of a program, with a contract.

    Examples:
        >>> drop_dead = Pass("drop_dead", lambda program: False)
        >>> program, changed = drop_dead(Program())
        >>> changed
        False
    """

    __slots__ = ("_change", "contract")

    def __init__(self, name: str | Contract, change: Change) -> None:
        self.contract = name if isinstance(name, Contract) else Contract(name)
        self._change = change

    @property
    def name(self) -> str:
        """Return the name of its contract."""
        return self.contract.name

    def __call__(self, program: Program) -> PassResult:
        """Return the changed program and True, or the program itself and False.

        Raises:
            SchemaError: the program is not as the pass requires.
            DescriptionError: the result is inconsistent (a mistake in the pass), or the pass refuses the program.
        """
        return self.contract.run(program, self._change)

    def __repr__(self) -> str:
        return f"Pass({self.name!r})"


def named(
    name: str, *, requires: Iterable[ProgramCondition] = (), ensures: Iterable[ProgramCondition] = (), idempotent: bool = False
) -> Callable[[Change], Pass]:
    """Decorate a function on programs to make it a pass of this name; see `Contract` for the rest."""

    def make(change: Change) -> Pass:
        return Pass(contract(name, requires, ensures, idempotent), change)

    return make


def apply(program: Program, passes: Iterable[Pass]) -> tuple[Program, list[str]]:
    """Run passes one after the other; returns the program and the names of effective passes."""
    changed: list[str] = []
    for step in passes:
        program, differs = step(program)
        if differs:
            changed.append(step.name)
    return program, changed
