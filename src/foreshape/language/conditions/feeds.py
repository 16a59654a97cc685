"""`Feeds`: the sizes of the inputs of a program, in words, with the smallest and the nearest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from foreshape.core.dims import Size, evaluate, substitute, symbol, symbol_name, symbols_of
from foreshape.core.spec import Spec
from foreshape.errors import FeedError, ShapeError
from foreshape.language.conditions.search import find
from foreshape.language.conditions.solve import Solution, solve, text_of
from foreshape.language.operator.require import Condition

_MOST_INPUTS = 8
"""The most inputs named one by one in an error."""

_MOST_DOUBLINGS = 10
"""The doublings of failing sizes before the search gives up."""

_MOST_JOINT = 20
"""So many conditions between symbols are written one by one."""


class FeedSizes:
    """The sizes of one input.

    Attributes:
        name: of the input.
        dims: its sizes, numbers and formulas over symbols; None if unknown.
        axes: the same in words: ``["batch", "3", "height", "width"]``.
        conditions: the demands on each symbol that is a dim: word -> "multiples of 32, from 32", "at least 3", "any".
        smallest: the smallest sizes with all conditions, among the ones that the words name first; from 1 on if possible. None if none were found.
    """

    __slots__ = ("axes", "conditions", "dims", "name", "smallest")

    def __init__(self, name: str, dims: tuple[Size, ...] | None, axes: list[str], conditions: dict[str, str], smallest: list[int] | None) -> None:
        self.name, self.dims, self.axes, self.conditions, self.smallest = name, dims, axes, conditions, smallest

    @property
    def words(self) -> str:
        """Return ``x: [batch, 3, height, width]; height and width: multiples of 32, from 32``."""
        if self.dims is None:
            return f"{self.name}: nothing is known of its dims"
        groups: dict[str, list[str]] = {}
        for word, words in self.conditions.items():
            if words != "any":
                groups.setdefault(words, []).append(word)
        return "; ".join([f"{self.name}: [{', '.join(self.axes)}]", *(f"{_listed(names)}: {words}" for words, names in groups.items())])

    def __repr__(self) -> str:
        return self.words


class Feeds(Mapping[str, FeedSizes]):
    """The inputs of a program by name. ``str`` of it is a line per input, and one for each condition between inputs.

    Sizes known only in a run are left out: their conditions are in ``later``, and the run checks them. In a program with fetches, ops that no fetched value
    needs demand nothing.
    """

    __slots__ = ("_guards", "_inputs", "_runs", "_solution", "_words", "joint", "later", "version")

    def __init__(
        self, specs: Mapping[str, Spec], conditions: Sequence[Condition], words: Mapping[str, str], runs: Callable[[Mapping[str, int]], bool], version: int
    ) -> None:
        """Solve the demands on some inputs.

        Args:
            specs: input -> its spec.
            conditions: demands on the symbols of the program.
            words: symbol of an input -> its name for a person.
            runs: tells whether the network can be inferred at some sizes, for conditions without a formula over symbols.
            version: of the program.
        """
        self.version = version
        self._runs = runs
        formulas = [d for spec in specs.values() for d in spec.dims or () if not isinstance(d, int) and symbol_name(d) is None]
        self._guards = [*conditions, *(Condition(0, "<=", d, "a size is at least 0") for d in formulas)]
        self._words = words
        self._solution: Solution = solve(self._guards, list(words))
        self.joint = [text_of(c, self._words) for c in (*self._solution.joint, *self._solution.hard)]
        """Conditions between several symbols, in short form."""
        self.later = [text_of(c, self._words) for c in self._solution.later]
        """Conditions over sizes known only when the program runs."""
        self._inputs: dict[str, FeedSizes] = {}
        least = self._verified({}, [d for spec in specs.values() for d in spec.dims or ()])
        for name, spec in specs.items():
            dims = spec.dims
            axes = [] if dims is None else [self._text(d) for d in dims]
            symbols = [n for n in map(symbol_name, dims or ()) if n is not None]
            smallest = None if dims is None or least is None else [evaluate(d, least) for d in dims]
            self._inputs[name] = FeedSizes(name, dims, axes, {self._words[n]: self._conditions(n, least) for n in symbols}, smallest)

    def __getitem__(self, name: str) -> FeedSizes:
        return self._inputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def lines(self) -> list[str]:
        """Return all facts of the inputs, line by line."""
        out = [feed.words for feed in self._inputs.values()]
        out += [f"together: {text}" for text in self.joint[:_MOST_JOINT]]
        if len(self.joint) > _MOST_JOINT:
            out.append(f"together: {len(self.joint) - _MOST_JOINT} more conditions")
        if not self._solution.possible:
            out.append("no sizes were found at which all conditions hold")
        return out

    @property
    def smallest(self) -> dict[str, list[int]] | None:
        """Return the smallest sizes of every input (see `FeedSizes`); None if none were found."""
        out = {name: feed.smallest for name, feed in self._inputs.items() if feed.dims is not None}
        return {name: sizes for name, sizes in out.items() if sizes is not None} if None not in out.values() else None

    def nearest(self, shapes: Mapping[str, Sequence[int]] | None = None, /, **more: Sequence[int]) -> dict[str, list[int]] | None:
        """Return the nearest sizes of every input to the given ones with all conditions together.

        Good sizes stay; others go to the nearest sizes named first by the words, up if two are as near. A missing input gets the sizes demanded by the
        others, else its smallest ones. ``nearest(x=[1, 3, 700, 500])`` is ``{"x": [1, 3, 704, 512]}``.

        Raises:
            FeedError: a name that is no input, or another number of dims. None is returned if no such sizes were found.
        """
        values = self._verified(self._wanted({**(shapes or {}), **more}), [d for feed in self._inputs.values() for d in feed.dims or ()])
        if values is None:
            return None
        return {name: [evaluate(d, values) for d in feed.dims] for name, feed in self._inputs.items() if feed.dims is not None}

    def takes(self, shapes: Mapping[str, Sequence[int]] | None = None, /, **more: Sequence[int]) -> bool:
        """Return True if sizes of every input fit the dims and all conditions. Raise `FeedError` as `nearest` does."""
        requested = {**(shapes or {}), **more}
        values = self._wanted(requested)
        for name, sizes in requested.items():
            for dim, size in zip(self._inputs[name].dims or (), sizes, strict=False):
                try:
                    if not symbols_of(dim) <= values.keys() or evaluate(dim, values) != size:
                        return False
                except ShapeError:
                    return False
        return self._hold(values) and (not self.later or values.keys() < self._words.keys() or self._runs(values))

    def refusal(self, shapes: Mapping[str, Sequence[int]], near_ones: bool = True) -> str:
        """Return the words for refused sizes: the inputs concerned and, unless ``near_ones`` is False, their nearest sizes."""
        try:
            near = self.nearest(shapes) if near_ones else None
        except FeedError:
            near = None
        out: list[str] = []
        for name, feed in self._inputs.items():
            sizes, better = list(shapes.get(name, ())), None if near is None else near.get(name)
            if sizes and sizes != better:
                out.append(feed.words + ("" if better is None else f"; nearest to {self._shown(feed, sizes, better)}"))
        shared = [f"together: {text}" for text in self.joint] if len(out) != 1 or near is None else []
        return "\n".join(f"    {line}" for line in (*out[:_MOST_INPUTS], *shared[:_MOST_INPUTS]))

    def _shown(self, feed: FeedSizes, sizes: list[int], better: list[int]) -> str:
        """Return ``700x500: 704x512``, if only sizes with conditions differ; else whole shapes."""
        axes = [axis for axis, word in enumerate(feed.axes) if feed.conditions.get(word, "any") != "any"]
        if not axes or any(a != b for axis, (a, b) in enumerate(zip(sizes, better, strict=True)) if axis not in axes):
            return f"{sizes}: {better}"
        return f"{'x'.join(str(sizes[axis]) for axis in axes)}: {'x'.join(str(better[axis]) for axis in axes)}"

    def _text(self, size: Size) -> str:
        return str(substitute(size, {n: symbol(word) for n, word in self._words.items()}))

    def _conditions(self, name: str, least: Mapping[str, int] | None) -> str:
        size = self._solution.known.get(name)
        if size is not None:
            return f"{'equal to ' if not isinstance(size, int) else ''}{self._text(size)}"
        words = self._solution.described[name].words
        unsolved = self._solution.unsolved.get(name)
        if not unsolved:
            return words
        texts = ([] if words == "any" else [words]) + [text_of(c, self._words) for c in unsolved]
        remark = f"the smallest found is {least[name]}" if least is not None else "no size was found"
        return f"{', and '.join(texts)} ({remark})"

    def _wanted(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        values: dict[str, int] = {}
        for name, sizes in shapes.items():
            feed = self._inputs.get(name)
            if feed is None:
                raise FeedError(f"{name!r} is no input of the program; it has {', '.join(self._inputs) or 'none'}")
            if feed.dims is not None and len(feed.dims) != len(sizes):
                raise FeedError(f"{name} has {len(feed.dims)} dims, {feed.words}; given is {list(sizes)}")
            for dim, size in zip(feed.dims or (), sizes, strict=False):
                symbol = symbol_name(dim)
                if symbol is not None:
                    values.setdefault(symbol, int(size))
        return values

    def _verified(self, targets: Mapping[str, int], dims: Sequence[Size]) -> dict[str, int] | None:
        """Return values of all symbols near the wanted ones, at which every guard was asked and holds, and the dims of the inputs are sizes."""
        values = find(self._solution, targets)
        if values is not None and self.later and not self._runs(values):
            values = self._larger(values)
        if values is None or not self._hold(values):
            return None
        try:
            return values if all(evaluate(d, values) >= 0 for d in dims) else None
        except ShapeError:
            return None

    def _larger(self, values: Mapping[str, int]) -> dict[str, int] | None:
        """Return running sizes above failing ones: all are doubled until they run, then each alone is made as small as still runs."""
        high: dict[str, int] | None = dict(values)
        for _ in range(_MOST_DOUBLINGS):
            high = find(self._solution, {n: 2 * size for n, size in high.items()})
            if high is None:
                return None
            if self._runs(high):
                break
        else:
            return None
        for name, least in values.items():
            low, middle = least - 1, least  # mostly a symbol has nothing to do with it, and stays
            while high[name] - low > 1:
                tried = {**high, name: middle}
                if self._hold(tried) and self._runs(tried):
                    high = tried
                else:
                    low = middle
                middle = (low + high[name]) // 2
        return high

    def _hold(self, values: Mapping[str, int]) -> bool:
        try:
            return all(c.answer(values) is True for c in self._guards if c.symbols <= values.keys())
        except ShapeError:
            return False


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
