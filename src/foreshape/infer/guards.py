"""Guards: what had to stay open when the network was described, and is checked when values are fed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from foreshape.dims import Dim, Size, equal, evaluate, is_symbol, less_equal, substitute, symbols_of
from foreshape.errors import GuardError, ShapeError
from foreshape.infer.messages import CallSite
from foreshape.ops.require import Condition


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that depends on the fed values, the op that needs it and the user's line."""

    condition: Condition
    op_type: str
    call_site: CallSite | None

    def __str__(self) -> str:
        where = f"  # {self.call_site.short()}" if self.call_site is not None else ""
        return f"{self.op_type}: {self.condition.requirement}: {self.condition}{where}"

    def check(self, values: Mapping[str, int]) -> None:
        """Raise `GuardError` unless the condition holds for these values of the symbols."""
        c = self.condition
        if not c.holds(values):
            names = sorted(symbols_of(c.left) | symbols_of(c.right))
            seen = ", ".join(f"{n} = {values[n]}" for n in names)
            site = self.call_site
            raise GuardError(
                f"{self.op_type}: {c.requirement}\n    required: {c}\n    seen: {evaluate(c.left, values)} and {evaluate(c.right, values)}"
                f", where {seen}" + (f"\n    at {site.source_line() or self.op_type}    {site.short()}" if site is not None else "")
            )


class Guards:
    """The guards of a program, and what its symbols are known to be because of them."""

    __slots__ = ("_all", "_seen", "known")

    def __init__(self) -> None:
        self._all: list[Guard] = []
        self._seen: set[tuple[Size, str, Size]] = set()
        self.known: dict[str, Size] = {}
        """Symbol -> the size that an open equality makes it; results are inferred with it."""

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def list(self) -> list[Guard]:
        return list(self._all)

    def copy(self) -> Guards:
        out = Guards()
        out._all, out._seen, out.known = list(self._all), set(self._seen), dict(self.known)
        return out

    def add(self, condition: Condition, op_type: str, call_site: CallSite | None) -> None:
        """Record a condition unless what is known already proves it.

        Raises:
            ShapeError: what is known already contradicts it.
        """
        left, right = substitute(condition.left, self.known), substitute(condition.right, self.known)
        if condition.relation == "divides":
            remainder = right % left
            answer = remainder == 0 if isinstance(remainder, int) else None
        else:
            answer = equal(left, right) if condition.relation == "==" else less_equal(left, right)
        if answer is False:
            raise ShapeError(f"{condition.requirement}: {condition} contradicts what was required before: {self._because(condition)}")
        key = (left, condition.relation, right)
        if answer or key in self._seen:
            return
        self._seen.add(key)
        self._all.append(Guard(condition, op_type, call_site))
        if condition.relation == "==":
            self._unify(left, right)

    def _because(self, condition: Condition) -> str:
        names = symbols_of(condition.left) | symbols_of(condition.right)
        return "; ".join(str(g) for g in self._all if names & (symbols_of(g.condition.left) | symbols_of(g.condition.right)))

    def _unify(self, left: Size, right: Size) -> None:
        if not is_symbol(left) or (is_symbol(right) and isinstance(left, Dim) and str(right) > str(left)):
            left, right = right, left
        if is_symbol(left) and str(left) not in symbols_of(right):
            name = next(iter(symbols_of(left)))
            self.known = {n: substitute(s, {name: right}) for n, s in self.known.items()}
            self.known[name] = right
