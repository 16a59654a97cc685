"""Whole numbers of a padded batch as polynomials in coordinates and sizes: a position, ``batch * time + key``, the length of a text less one.

A coordinate is the place along an atom of a tensor's axes, counted in the padded tensor. The sizes are the number of texts, the padded time, and the length
of the text at hand. An inequality of two numbers is proved by writing each coordinate as a bound plus something not negative.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import product
from typing import Final, Literal, TypeAlias

from foreshape.core.data_class import data_class

Side: TypeAlias = "Literal['right', 'left']"
"""The end of a text with its padding."""
Place: TypeAlias = "tuple[int, int]"
"""An atom of a tensor's axes: the number of the axis, and the place within it."""
Factor: TypeAlias = "str | Place"
Monomial: TypeAlias = "tuple[Factor, ...]"

TEXTS: Final = "texts"
TIME: Final = "time"
LENGTH: Final = "length"


def _ordered(factors: tuple[Factor, ...]) -> Monomial:
    return tuple(sorted(factors, key=str))


@data_class(frozen=True)
class IndexForm:
    """A polynomial with whole coefficients: (monomial, coefficient) in order."""

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def from_terms(terms: Mapping[Monomial, int]) -> IndexForm:
        """Return the polynomial with these terms."""
        return IndexForm(tuple(sorted(((m, c) for m, c in terms.items() if c), key=str)))

    @staticmethod
    def number(value: int) -> IndexForm:
        return IndexForm.from_terms({(): value})

    @staticmethod
    def factor(factor: Factor) -> IndexForm:
        return IndexForm.from_terms({(factor,): 1})

    def __add__(self, addend: IndexForm) -> IndexForm:
        terms = dict(self.terms)
        for monomial, coefficient in addend.terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return IndexForm.from_terms(terms)

    def times(self, number: int) -> IndexForm:
        return IndexForm.from_terms({m: c * number for m, c in self.terms})

    def __sub__(self, subtrahend: IndexForm) -> IndexForm:
        return self + subtrahend.times(-1)

    def __mul__(self, multiplier: IndexForm) -> IndexForm:
        terms: dict[Monomial, int] = {}
        for (a, c), (b, d) in product(self.terms, multiplier.terms):
            monomial = _ordered((*a, *b))
            terms[monomial] = terms.get(monomial, 0) + c * d
        return IndexForm.from_terms(terms)

    @property
    def constant(self) -> int | None:
        """The number, if it has no factors."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    def factors(self) -> set[Factor]:
        return {f for monomial, _ in self.terms for f in monomial}

    def places(self) -> set[Place]:
        """Return the coordinates in it."""
        return {f for f in self.factors() if not isinstance(f, str)}

    def replaced(self, replacement: Callable[[Factor], IndexForm]) -> IndexForm:
        """Return the polynomial with another one in place of each factor."""
        total = IndexForm(())
        for monomial, coefficient in self.terms:
            part = IndexForm.number(coefficient)
            for factor in monomial:
                part = part * replacement(factor)
            total = total + part
        return total

    def relocated(self, places: Mapping[Place, Place]) -> IndexForm:
        """Return it for a tensor with the atoms at other places."""
        return self.replaced(lambda f: IndexForm.factor(f if isinstance(f, str) else places.get(f, f)))

    def alone(self, side: Side, time_places: Collection[Place]) -> IndexForm:
        """Return it in the coordinates of a text without its padding: coordinates of `TIME` are counted from the text's first row."""
        if side == "right":
            return self
        shift = IndexForm.factor(TIME) - IndexForm.factor(LENGTH)
        return self.replaced(lambda f: IndexForm.factor(f) + shift if f in time_places else IndexForm.factor(f))

    def same_without_padding(self, side: Side, time_places: Collection[Place]) -> bool:
        """Tell whether a text without its padding has the same number there, whatever the others in the batch."""
        alone = self.alone(side, time_places)
        return not {TIME, TEXTS} & {f for f in alone.factors() if isinstance(f, str)} and alone.places() <= {*time_places}

    def least(self, side: Side, time_places: Collection[Place], masked: Collection[Place], has_rows: bool = False) -> int | None:
        """Return a proved lower bound for coordinates in masked rows, or else in a text's own; None if none is seen.

        Args:
            has_rows: the text has rows; so it has where a coordinate lies in one.
        """
        places = sorted(self.places())
        choices = [_bounds(p, side, p in masked) if p in time_places else _batch_bounds(p) for p in places]
        rows = [p for p in time_places if p not in masked]
        length = IndexForm.number(1 if rows or has_rows else 0) + IndexForm.factor("length-")
        padding = IndexForm.number(1 if masked else 0) + IndexForm.factor("padding-")
        sizes = {LENGTH: length, TIME: length + padding, TEXTS: IndexForm.number(1) + IndexForm.factor("texts-")}
        best: int | None = None
        for choice in product(*choices):
            picked = dict(zip(places, choice, strict=True))
            bounded = self.replaced(lambda f, bounds=picked: IndexForm.factor(f) if isinstance(f, str) else bounds[f])
            bounded = bounded.replaced(lambda f: sizes[f] if isinstance(f, str) and f in sizes else IndexForm.factor(f))
            if all(c >= 0 for m, c in bounded.terms if m):
                low = dict(bounded.terms).get((), 0)
                best = low if best is None else max(best, low)
        return best


def _bounds(place: Place, side: Side, masked: bool) -> Iterator[IndexForm]:
    """Yield a coordinate of `TIME` as each of its bounds and a slack."""
    slack, unit = IndexForm.factor(f"slack{place}"), IndexForm.number(1)
    length, time = IndexForm.factor(LENGTH), IndexForm.factor(TIME)
    first, end = (length, time) if masked else (IndexForm(()), length)
    if side == "left":
        first, end = (IndexForm(()), time - length) if masked else (time - length, time)
    yield first + slack
    yield end - unit - slack


def _batch_bounds(place: Place) -> Iterator[IndexForm]:
    slack = IndexForm.factor(f"slack{place}")
    yield slack
    yield IndexForm.factor(TEXTS) - IndexForm.number(1) - slack
