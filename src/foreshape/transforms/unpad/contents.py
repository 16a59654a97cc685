"""The numbers at some places of a padded tensor: a constant, a whole number by its place, or anything between bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from foreshape.core.data_class import data_class, field
from foreshape.transforms.unpad.index_forms import IndexForm

INFINITY: Final = math.inf
FAR: Final = 1e30
"""A number this far below is a mask for any finite scores: no network has scores of its size."""


LARGEST: Final = 3.4028234663852886e38
"""The largest number of fp32; larger ones are taken for infinity."""


class NormBound:
    """A bound of the Euclidean norm of a row's numbers, computed when it is asked for: weights are read for it."""

    def __init__(self, compute: Callable[[], float]) -> None:
        self._compute: Callable[[], float] | None = compute
        self._value = INFINITY

    @property
    def value(self) -> float:
        if self._compute is not None:
            compute, self._compute = self._compute, None
            self._value = compute()
        return self._value

    @staticmethod
    def number(value: float) -> NormBound:
        return NormBound(lambda: value)


UNBOUNDED: Final = NormBound.number(INFINITY)


@data_class(frozen=True)
class Content:
    """The numbers at some places.

    Attributes:
        low, high: bounds; equal for a constant.
        finite: False if there may be infinities or NaN.
        masks: there may be minus infinity, put there by a mask.
        shares: the numbers of a row are at least 0, and add up to 1 at most: the weights of a softmax.
        form: for whole numbers known by their place.
        parts: the numbers at each entry of the last axis, if they differ by it.
        offset, extent: all numbers less ``offset`` have at most this norm, over a row with all its columns.
        step: two numbers by place: the first where a polynomial is at least 0, else the second.
        never: a number not among them.
        nan_source: for truth values, the variable whose NaN they tell.
        with_rows: for truth values of a text, their number if it has rows.
    """

    low: float = -INFINITY
    high: float = INFINITY
    finite: bool = True
    masks: bool = False
    shares: bool = False
    form: IndexForm | None = None
    parts: tuple[Content, ...] = ()
    offset: float = 0.0
    extent: NormBound = field(default=UNBOUNDED, compare=False)
    step: tuple[IndexForm, float, float] | None = None
    never: float | None = None
    nan_source: str = ""
    with_rows: float | None = None

    @property
    def constant(self) -> float | None:
        return self.low if self.low == self.high else None

    @property
    def index(self) -> IndexForm | None:
        """The polynomial of the number; also of a whole constant."""
        number = self.constant
        if self.form is None and number is not None and math.isfinite(number) and number == int(number):
            return IndexForm.number(int(number))
        return self.form

    def upper_bound(self) -> float:
        """Return an upper bound; weights may be read for it."""
        return self.high if self.high < INFINITY else self.offset + self.extent.value

    def lower_bound(self) -> float:
        """Return a lower bound; weights may be read for it."""
        return self.low if self.low > -INFINITY else self.offset - self.extent.value


def constant(number: float) -> Content:
    """Return the content of places with one number."""
    if number != number:
        return Content(finite=False)
    if abs(number) > LARGEST:
        number = math.copysign(INFINITY, number)
    return Content(number, number, math.isfinite(number), number == -INFINITY, offset=number if math.isfinite(number) else 0.0, extent=NormBound.number(0.0))


def index_content(form: IndexForm) -> Content:
    """Return the content of places with whole numbers by their place."""
    number = form.constant
    return constant(number) if number is not None else Content(form=form)


def either(contents: Iterable[Content]) -> Content:
    """Return the content of places with the numbers of any of these."""
    several = list(contents)
    first = several[0]
    if all(c == first for c in several):
        return first
    lowest, highest = min(c.low for c in several), max(c.high for c in several)
    return Content(lowest, highest, all(c.finite for c in several), any(c.masks for c in several))


def stepped(form: IndexForm, above: float, below: float) -> Content:
    """Return the content of places with one number where a polynomial is at least 0, and another elsewhere."""
    if above == below:
        return constant(above)
    return replace(either([constant(above), constant(below)]), step=(form, above, below))


TRUTH: Final = Content(0.0, 1.0)
ANYTHING: Final = Content(finite=False)


def array_content(array: Any) -> Content:
    """Return the content of places with any of an array's numbers."""
    import numpy

    numbers = numpy.asarray(array)
    if not numbers.size:
        return Content()
    finite = bool(numpy.isfinite(numbers).all()) if numbers.dtype.kind == "f" else True
    low, high = float(numbers.min()), float(numbers.max())
    return constant(low) if low == high else Content(low, high, finite) if low == low else ANYTHING
