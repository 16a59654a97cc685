"""The limits of a network's open sizes: by our rules, and by the guards of torch's trace, each with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from foreshape.core.data_class import data_class
from foreshape.core.dims import Size, symbol
from foreshape.errors import ShapeError
from foreshape.interop.torch.open_axes import Bounds
from foreshape.interop.torch.traced_guards import TracedGuard, demands_of
from foreshape.language.conditions.sets import SizeSet, between
from foreshape.language.conditions.solve import solve
from foreshape.language.conditions.steps import WorkBudget
from foreshape.language.operator.require import Condition
from foreshape.language.program import Program
from foreshape.language.program.call_site import call_site
from foreshape.language.program.guards import Guard

_BY_DIM = "its torch.export.Dim"
_STEPS = 10_000


@data_class(frozen=True)
class SizeLimit:
    """The limits of an open size.

    Attributes:
        name: of the size.
        sizes: the program's, in words, as ``0 to 64``.
        traced: those of torch's trace; torch's own doubts about 0 and 1 are left out.
        rules: the demands of our rules, each with its op and line.
        guards: the guards of torch, each with its line.
    """

    name: str
    sizes: str
    traced: str
    rules: tuple[str, ...]
    guards: tuple[str, ...]

    def __str__(self) -> str:
        both = f"{self.name}: {self.sizes}" + (", and so by torch" if self.sizes == self.traced else f"; by torch's trace {self.traced}")
        return "\n    ".join([both, *self.rules, *self.guards])

    __repr__ = __str__


class SizeLimits(Mapping[str, SizeLimit]):
    """The limits of each open size, by its name; ``str`` of it is one paragraph per size.

    Args:
        program: the network.
        names: of the open sizes.
        guards, symbols: the guards of torch's trace, and torch's symbol -> our size.
    """

    def __init__(self, program: Program, names: Sequence[str], guards: Sequence[TracedGuard], symbols: Mapping[str, Size]) -> None:
        self._program, self._names, self._given = program, list(names), (guards, symbols)
        self._found: dict[str, SizeLimit] | None = None
        self._traced: list[tuple[Condition, TracedGuard]] | None = None

    def __getitem__(self, name: str) -> SizeLimit:
        if self._found is None:
            ours, traced = self._program.guard_list(), self.traced()
            here = solve([one.condition for one in ours], self._names)
            there = solve([condition for condition, _ in traced], self._names)
            self._found = {
                n: SizeLimit(
                    n,
                    str(here.known[n]) if n in here.known else here.described[n].words,
                    str(there.known[n]) if n in there.known else there.described[n].words,
                    tuple(_rule(one) for one in ours if n in one.condition.symbols),
                    tuple(_guard(condition, one) for condition, one in traced if n in condition.symbols),
                )
                for n in self._names
            }
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __str__(self) -> str:
        return "\n".join(str(one) for one in self.values())

    __repr__ = __str__

    def traced(self) -> list[tuple[Condition, TracedGuard]]:
        """Return the conditions of torch's guards with a form here, but for the ones of sizes 0 and 1 alone."""
        if self._traced is None:
            guards, symbols = self._given
            found: dict[tuple[Size, str, Size], tuple[Condition, TracedGuard]] = {}
            for guard in guards:
                if not guard.own and type(guard.relation).__name__ == "Unequality":  # torch's doubt, whether a size is the same as another
                    continue
                for left, relation, right in demands_of(guard, symbols) or ():
                    one = Condition(left, relation, right, "")
                    from_two = {name: symbol(name) + 2 for name in one.symbols}
                    if one.answer(from_two) is not True:
                        found.setdefault((left, relation, right), (one, guard))
            self._traced = list(found.values())
        return self._traced

    def refusal(self, values: Mapping[str, int], told: str | None) -> str:
        """Return a line for each demand, ours or torch's, broken by these sizes, but the one told already."""
        out: list[str] = []
        for guard in self._program.guard_list():
            if str(guard.condition) != told and _breaks(values, guard.condition):
                out.append(_rule(guard))
        for condition, guard in self.traced():
            if _breaks(values, condition):
                out.append(_guard(condition, guard))
        return "".join(f"\n    {line}" for line in dict.fromkeys(out))

    def narrower(self, bounds: Bounds) -> list[str]:
        """Return for each size with limits of a Dim beyond ours both of them, in words."""
        conditions = {name: [one for one in self._program.guard_list() if name in one.condition.symbols] for name in bounds}
        out: list[str] = []
        for name, (least, most) in bounds.items():
            if least <= 2 and most is None:
                continue
            found = solve([one.condition for one in conditions[name]], sorted({n for one in conditions[name] for n in one.condition.symbols} | {name}))
            said = between(least, most)
            taken = found.sizes.get(name)
            if taken is None or taken.meet(said, WorkBudget(_STEPS)) != said:
                words = str(found.known[name]) if taken is None else found.described[name].words
                rules = "; ".join(_rule(one) for one in conditions[name] if _narrows(one.condition, name, said))
                told = f"{least} to {most}" if most is not None else f"at least {least}"
                out.append(f"{name} is {told} by {_BY_DIM}, and the network takes {words}: {rules}")
        return out


def _breaks(values: Mapping[str, int], condition: Condition) -> bool:
    try:
        return condition.symbols <= values.keys() and condition.answer(values) is False
    except ShapeError:  # a division by zero
        return True


def _narrows(condition: Condition, name: str, said: SizeSet) -> bool:
    """Tell whether a condition refuses some of these sizes."""
    found = solve([condition], sorted(condition.symbols)).sizes.get(name)
    return found is None or found.meet(said, WorkBudget(_STEPS)) != said


def _rule(guard: Guard) -> str:
    site = guard.call_site
    return f"{guard.op_type}: {guard.condition}" + ("" if site is None else f"    {site.short()}")


def _guard(condition: Condition, guard: TracedGuard) -> str:
    if isinstance(guard.relation, tuple):
        return f"{_BY_DIM}: {condition}"
    site = call_site(guard.site)
    return f"torch's trace: {condition}" + ("" if site is None else f", asked in {site.source_line() or site.function}    {site.short()}")
