"""Guards: conditions left open by the description, and checked for fed values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from foreshape.core.data_class import data_class
from foreshape.core.dims import Dim, Size, evaluate, is_symbol, only_atom, substitute, symbols_of
from foreshape.errors import GuardError, ShapeError
from foreshape.language.operator.require import Condition
from foreshape.language.program.elsewhere import elsewhere
from foreshape.language.program.messages import CallSite


@data_class(frozen=True)
class Guard:
    """A condition on the fed values, the op that needs it and the user's line."""

    condition: Condition
    op_type: str
    call_site: CallSite | None

    def __str__(self) -> str:
        line = f"  # {self.call_site.short()}" if self.call_site is not None else ""
        return f"{self.op_type}: {self.condition.requirement}: {self.condition}{line}"

    def check(self, values: Mapping[str, int]) -> None:
        """Raise `GuardError` unless the condition holds for these values of the symbols."""
        c = self.condition
        if c.answer(values) is not True:
            bindings = ", ".join(f"{n} = {values[n]}" for n in sorted(c.symbols))
            site = self.call_site
            sides = f"{evaluate(c.left, values)} and {evaluate(c.right, values)}"
            line = f"\n    at {site.source_line() or self.op_type}    {site.short()}" if site is not None else ""
            words = f"{self.op_type}: {c.requirement}\n    required: {c}\n    seen: {sides}, where {bindings}{line}"
            raise GuardError(words).told(op=self.op_type, required=c, seen=sides, site=site)


class Known(Mapping[str, Size]):
    """Symbol -> its size by open equalities. Chains are followed when asked for, and kept:
    a chain of n equalities costs n steps, in any order.
    """

    __slots__ = ("sizes",)

    def __init__(self, sizes: dict[str, Size] | None = None) -> None:
        self.sizes: dict[str, Size] = sizes if sizes is not None else {}
        """Sizes as found; their chains may not be followed yet."""

    def copy(self) -> Known:
        return Known(dict(self.sizes))

    def with_size(self, name: str, size: Size) -> Known:
        """Return an object with one more size, in place of this one."""
        self.sizes[name] = size
        return Known(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.sizes))

    def __contains__(self, name: object) -> bool:
        return name in self.sizes

    def __getitem__(self, name: str) -> Size:
        sizes = self.sizes
        if name not in sizes:
            raise KeyError(name)
        path = [name]
        while path:
            symbol = path[-1]
            size = sizes[symbol]
            bound = [n for n in symbols_of(size) if n in sizes]
            open_ones = [n for n in bound if any(m in sizes for m in symbols_of(sizes[n]))]
            if open_ones:
                path.extend(open_ones)
                continue
            if bound:
                sizes[symbol] = substitute(size, {n: sizes[n] for n in bound})
            path.pop()
        return sizes[name]


class Guards:
    """The guards of a program, and the sizes of its symbols known from them."""

    __slots__ = ("_all", "_first", "_met", "_seen", "known", "made")

    def __init__(self) -> None:
        self._all: list[Guard] = []
        self._seen: set[tuple[Size, str, Size]] = set()
        self._first: dict[str, list[Guard]] = {}
        """Symbol -> its first few guards, for error messages."""
        self._met: dict[Size, Size] = {}
        """Broadcasts made equal to one of their sizes by an open equality."""
        self.made: set[str] = set()
        """Symbols set by the run. They are not resolved: each op that depends on one is checked when it runs."""
        self.known = Known()
        """The known sizes of symbols; results are inferred with them. A new object after each change."""

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __str__(self) -> str:
        return "\n".join(map(str, self._all))

    def list(self) -> list[Guard]:
        return list(self._all)

    def copy(self) -> Guards:
        out = Guards()
        out._all, out._seen, out.known = list(self._all), set(self._seen), self.known.copy()
        out._first = {n: list(g) for n, g in self._first.items()}
        out._met, out.made = dict(self._met), self.made  # a made name is made in each copy
        return out

    def first(self, count: int) -> Guards:
        """Return the first guards with the sizes known from them."""
        out = Guards()
        out.made = self.made
        for guard in self._all[:count]:
            out.add(guard.condition, guard.op_type, guard.call_site)
        return out

    def add(self, condition: Condition, op_type: str, call_site: CallSite | None) -> None:
        """Record a condition unless known sizes already prove it. Raise `ShapeError`: known sizes already contradict it."""
        left, right = substitute(condition.left, self.known), substitute(condition.right, self.known)
        answer = condition.of(left, right)
        if answer is False:
            raise ShapeError(f"{condition.requirement}: {condition} contradicts what was required before: {self._because(condition, left, right)}")
        key = (left, condition.relation, right)
        if answer or key in self._seen:
            return
        self._seen.add(key)
        guard = Guard(condition, op_type, call_site)
        self._all.append(guard)
        for name in symbols_of(condition.left) | symbols_of(condition.right) | symbols_of(left) | symbols_of(right):
            among = self._first.setdefault(name, [])
            if len(among) < 3:
                among.append(guard)
        if condition.relation == "==":
            self._unify(left, right)

    def require(self, condition: Condition, op_type: str, call_site: CallSite | None) -> None:
        """Record a condition of an op that is being described. Raises `ShapeError` as `add`, and for an equality that no size fulfils, or 0 alone."""
        left, right = substitute(condition.left, self.known), substitute(condition.right, self.known)
        names = symbols_of(left)
        if condition.relation == "==" and len(names) == 1 and names == symbols_of(right) and left is not right:
            largest = elsewhere("language.conditions.single:largest_solution")(condition, left, right)
            if largest is not None and largest < 1:
                raise ShapeError(f"{condition.requirement}: {condition} holds for {'no size' if largest < 0 else f'{min(names)} = 0 alone'}")
        self.add(condition, op_type, call_site)

    def _because(self, condition: Condition, left: Size, right: Size) -> str:
        names = sorted(symbols_of(condition.left) | symbols_of(condition.right) | symbols_of(left) | symbols_of(right))
        guards = dict.fromkeys(g for n in names for g in self._first.get(n, ()))
        return "; ".join(str(g) for g in list(guards)[:5])

    def settled(self, size: Size) -> Size:
        """Return ``size`` in the known sizes of symbols and broadcasts."""
        out = substitute(size, self.known)
        if isinstance(out, int) or not self._met:
            return out
        return next((substitute(size_met, self.known) for met, size_met in self._met.items() if substitute(met, self.known) is out), out)

    def _unify(self, left: Size, right: Size) -> None:
        if not self._may_be_known(left) or (self._may_be_known(right) and isinstance(left, Dim) and str(right) > str(left)):
            left, right = right, left
        if self._may_be_known(left) and not symbols_of(right) & self.made:
            (name,) = symbols_of(left)
            if name not in symbols_of(right):
                self.known = self.known.with_size(name, right)
                return
        for broadcast, target in ((left, right), (right, left)):
            atom = only_atom(broadcast)
            if atom is not None and atom.op == "broadcast":
                self._met[broadcast] = target

    def _may_be_known(self, size: Size) -> bool:
        return is_symbol(size) and not symbols_of(size) & self.made
