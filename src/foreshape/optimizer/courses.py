"""Learning rates over epochs, over steps, or over the whole run, with the numbers known to `foreshape.train`.

`cosine`, `one_cycle`, `polynomial`, `piecewise`, `exponential` and `warmup` make a `Course`. One in epochs has no formula in steps until
`Optimizer.for_run` has set the steps of an epoch. A step is one update: it counts from 0, and the batches accumulated
for one update are one step.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from foreshape.errors import SchemaError
from foreshape.language.program import Variable
from foreshape.optimizer.schedule import Schedule, apply, number, positive, rate_of, where

Unit = Literal["epochs", "steps"]


class Course(Schedule):
    """The base: a rate over ``length`` epochs or steps (None: over the whole run), after a linear rise.

    In the first ``warmup`` epochs (or steps), step s has the fraction (s + 1) / steps of the course's first rate.
    """

    called: ClassVar[str] = "course"
    settings: ClassVar[tuple[str, ...]] = ()
    """The arguments of the constructing function except its length; their defaults are the class's attributes."""

    def __init__(self, epochs: float | None, steps: float | None, warmup: float = 0.0, steps_per_epoch: float | None = None, *, whole_run: bool = True) -> None:
        if epochs is not None and steps is not None:
            raise SchemaError(f"{self.called} is over epochs or over steps, not both; seen epochs={epochs} and steps={steps}")
        if steps is not None and steps_per_epoch is not None:
            raise SchemaError(f"{self.called} is in steps already: it has no use for steps_per_epoch")
        self.unit: Unit = "epochs" if steps is None else "steps"
        length = epochs if steps is None else steps
        self.length = None if length is None else positive(self.called, self.unit, length)
        self.warmup = float(warmup)
        if not (math.isfinite(self.warmup) and self.warmup >= 0):
            raise SchemaError(f"{self.called} needs a warmup of at least 0; seen {warmup}")
        self.whole_run = whole_run
        """True if the length is by default the run's."""
        self.each = 1.0 if steps is not None else None if steps_per_epoch is None else positive(self.called, "steps_per_epoch", steps_per_epoch)
        """The number of steps in a unit."""
        self._check_warmup()

    def __repr__(self) -> str:
        first, *optional = self.settings
        arguments = [repr(getattr(self, first)), *(f"{n}={v!r}" for n in optional if (v := getattr(self, n)) != getattr(type(self), n))]
        arguments += [f"{self.unit}={length!r}"] if (length := self._said_length()) is not None else []
        arguments += [f"warmup={self.warmup!r}"] if self.warmup else []
        arguments += [f"steps_per_epoch={self.each!r}"] if self.unit == "epochs" and self.each is not None else []
        return f"{self.called}({', '.join(arguments)})"

    def _said_length(self) -> object:
        """Return the length as the arguments of the constructing function."""
        return self.length

    def for_run(self, epochs: float | None, steps_per_epoch: float | None) -> Schedule:
        out = copy.copy(self)
        if out.each is None and steps_per_epoch is not None:
            out.each = positive(self.called, "steps_per_epoch", steps_per_epoch)
        if out.length is None and self.whole_run and epochs is not None and epochs > 0:
            out.length = float(epochs)
            out._check_warmup()
        out._check_known()
        return self if (out.each, out.length) == (self.each, self.length) else out

    def rate(self, step: Variable) -> Variable:
        self._check_known()
        assert self.each is not None
        rise = self.warmup * self.each
        main = self.rate_after_warmup(step - rise if rise else step)
        if not rise:
            return main
        return where(step < number(rise), self.rate_after_warmup(number(0.0)) * _risen(step, rise), main)

    @abstractmethod
    def rate_after_warmup(self, step: Variable) -> Variable:
        """Return the rate at a step after the warmup."""

    def part(self, step: Variable) -> Variable:
        """Return the elapsed fraction of the course, from 0 to 1."""
        assert self.length is not None
        assert self.each is not None
        steps = (self.length - self.warmup) * self.each
        return apply("elementwise_min", X=step * (1.0 / steps), Y=number(1.0))

    def _check_warmup(self) -> None:
        if self.whole_run and self.length is not None and self.warmup >= self.length:
            raise SchemaError(f"{self.called} is over {self.length:g} {self.unit}: a warmup of {self.warmup:g} leaves nothing of it")

    def _check_known(self) -> None:
        if self.each is None:
            raise SchemaError(
                f"{self.called} is in epochs, and how many steps an epoch has is not known here: give it steps_per_epoch=, or steps=; "
                "fs.train knows it where the data are arrays"
            )
        if self.length is None and self.whole_run:
            raise SchemaError(
                f"{self.called} is over the whole run, and its epochs are not known here: give it epochs= and steps_per_epoch=, "
                "or steps=; fs.train knows it where the data are arrays"
            )


class _Cosine(Course):
    called = "cosine"
    settings = ("learning_rate", "end")
    learning_rate = end = 0.0

    def rate_after_warmup(self, step: Variable) -> Variable:
        return _between(self.part(step), self.learning_rate, self.end)


class _OneCycle(Course):
    called = "one_cycle"
    settings = ("peak", "rising", "start", "end")
    peak = start = end = 0.0
    rising = 0.3

    def rate_after_warmup(self, step: Variable) -> Variable:
        part = self.part(step)
        up = _between(part * (1.0 / self.rising), self.start, self.peak)
        down = _between((part - self.rising) * (1.0 / (1.0 - self.rising)), self.peak, self.end)
        return where(part < number(self.rising), up, down)


class _Polynomial(Course):
    called = "polynomial"
    settings = ("learning_rate", "end", "power")
    learning_rate = end = 0.0
    power = 1.0

    def rate_after_warmup(self, step: Variable) -> Variable:
        left = 1.0 - self.part(step)
        return (left if self.power == 1.0 else left**self.power) * (self.learning_rate - self.end) + self.end


class _Piecewise(Course):
    called = "piecewise"
    settings = ("rates",)
    rates: tuple[float, ...] = ()
    boundaries: tuple[float, ...] = ()

    def _said_length(self) -> object:
        return self.boundaries

    def rate_after_warmup(self, step: Variable) -> Variable:
        assert self.each is not None
        out = number(self.rates[-1])
        for boundary, rate in zip(reversed(self.boundaries), reversed(self.rates[:-1]), strict=True):
            # a step at the boundary has the next rate: a thousandth less, so that rounding does not leave it behind
            out = where(step < number((boundary - self.warmup) * self.each - 1e-3), number(rate), out)
        return out


class _Exponential(Course):
    called = "exponential"
    settings = ("learning_rate", "factor", "staircase")
    learning_rate = factor = 0.0
    staircase = False

    def rate_after_warmup(self, step: Variable) -> Variable:
        assert self.each is not None
        assert self.length is not None
        periods = step * (1.0 / (self.length * self.each))
        if self.staircase:
            periods = apply("floor", X=periods + 1e-5)  # rounding must not leave it below a whole number
        return apply("elementwise_pow", X=number(self.factor), Y=periods) * self.learning_rate


class _Warmup(Course):
    called = "warmup"
    settings = ("learning_rate",)
    learning_rate: float | Schedule = 0.0

    def for_run(self, epochs: float | None, steps_per_epoch: float | None) -> Schedule:
        out = super().for_run(epochs, steps_per_epoch)
        rate = self.learning_rate
        then = rate.for_run(epochs, steps_per_epoch) if isinstance(rate, Schedule) else rate
        if then is not rate and isinstance(out, _Warmup):
            out = copy.copy(out)
            out.learning_rate = then
        return out

    def rate(self, step: Variable) -> Variable:
        self._check_known()
        assert self.each is not None
        assert self.length is not None
        return _risen(step, self.length * self.each) * self.rate_after_warmup(step)

    def rate_after_warmup(self, step: Variable) -> Variable:
        rate = self.learning_rate
        return rate.rate(step) if isinstance(rate, Schedule) else number(rate)


def cosine(
    learning_rate: float, *, epochs: float | None = None, steps: float | None = None, end: float = 0.0, warmup: float = 0.0,
    steps_per_epoch: float | None = None,
) -> Schedule:  # fmt: skip
    """Return a schedule from ``learning_rate`` along half a cosine to ``end``: end + (learning_rate - end) * (1 + cos(pi * part)) / 2 (Loshchilov and
    Hutter, 2017).

    Args:
        epochs, steps: the length, including the warmup; by default the whole run. After it the rate stays ``end``.
        warmup: the first epochs, or steps, with a linear rise to ``learning_rate``.
        steps_per_epoch: the number of updates of an epoch, if unknown to `foreshape.train`.

    Raises:
        SchemaError: both epochs and steps, a length not above 0, a warmup as long as the whole. When its ops are appended: it is in epochs of an
            unknown number of steps.
    """
    out = _Cosine(epochs, steps, warmup, steps_per_epoch)
    out.learning_rate, out.end = rate_of("cosine", "learning_rate", learning_rate), rate_of("cosine", "end", end)
    return out


def one_cycle(
    peak: float, *, epochs: float | None = None, steps: float | None = None, rising: float = 0.3, start: float | None = None,
    end: float | None = None, steps_per_epoch: float | None = None,
) -> Schedule:  # fmt: skip
    """Return a schedule up from ``start`` to ``peak``, and down to ``end``, each along half a cosine (Smith and Topin, 2019).

    Args:
        epochs, steps: the length; by default the whole run.
        rising: the fraction of the length for the rise, between 0 and 1.
        start: by default a 25th of the peak.
        end: by default a 10,000th of the start.
        steps_per_epoch: as for `cosine`.

    Raises:
        SchemaError: as `cosine`; a fraction not between 0 and 1.
    """
    if not 0.0 < rising < 1.0:
        raise SchemaError(f"one_cycle rises for a part of the run between 0 and 1; seen rising={rising}")
    out = _OneCycle(epochs, steps, 0.0, steps_per_epoch)
    out.peak, out.rising = rate_of("one_cycle", "peak", peak), float(rising)
    out.start = float(peak) / 25.0 if start is None else float(start)
    out.end = out.start / 1e4 if end is None else float(end)
    return out


def polynomial(
    learning_rate: float, *, epochs: float | None = None, steps: float | None = None, end: float = 0.0, power: float = 1.0, warmup: float = 0.0,
    steps_per_epoch: float | None = None,
) -> Schedule:  # fmt: skip
    """Return a schedule from ``learning_rate`` to ``end``: end + (learning_rate - end) * (1 - part)^power; a line for a power of 1.

    Args:
        epochs, steps, warmup, steps_per_epoch: as for `cosine`.

    Raises:
        SchemaError: as `cosine`; a power not above 0.
    """
    out = _Polynomial(epochs, steps, warmup, steps_per_epoch)
    out.learning_rate, out.end = rate_of("polynomial", "learning_rate", learning_rate), rate_of("polynomial", "end", end)
    out.power = positive("polynomial", "power", power)
    return out


def piecewise(
    rates: Sequence[float],
    *,
    epochs: Sequence[float] | None = None,
    steps: Sequence[float] | None = None,
    warmup: float = 0.0,
    steps_per_epoch: float | None = None,
) -> Schedule:
    """Return a schedule of ``rates``, from each of the boundaries on the next one: ``piecewise([0.1, 0.01, 0.001], epochs=[30, 60])``.

    Args:
        epochs, steps: the boundaries, rising; one less than rates. They count from the beginning, including the warmup.
        warmup, steps_per_epoch: as for `cosine`.

    Raises:
        SchemaError: boundaries not rising, not one less than rates, or not after the warmup; when its ops are appended, as `cosine`.
    """
    if (epochs is None) == (steps is None):
        raise SchemaError("piecewise takes its boundaries as epochs= or as steps=: one of the two")
    boundaries = tuple(float(b) for b in (epochs if epochs is not None else steps) or ())
    if not boundaries or len(rates) != len(boundaries) + 1:
        raise SchemaError(f"piecewise needs one rate more than boundaries, of which there is at least one; seen {len(rates)} and {len(boundaries)}")
    if any(a >= b for a, b in zip((warmup, *boundaries), boundaries, strict=False)):
        raise SchemaError(f"the boundaries of piecewise must rise, and come after the warmup; seen {list(boundaries)} and a warmup of {warmup}")
    last = boundaries[-1]
    out = _Piecewise(last if epochs is not None else None, last if steps is not None else None, warmup, steps_per_epoch)
    out.rates, out.boundaries = tuple(rate_of("piecewise", "rates", r) for r in rates), boundaries
    return out


def exponential(
    learning_rate: float, factor: float, *, epochs: float | None = None, steps: float | None = None, staircase: bool = False, warmup: float = 0.0,
    steps_per_epoch: float | None = None,
) -> Schedule:  # fmt: skip
    """Return a schedule of learning_rate * factor^(time / period): ``exponential(0.1, 0.9)`` falls to nine tenths with every epoch.

    Args:
        epochs, steps: the period; by default one epoch.
        staircase: fall at the end of each period, and not within.
        warmup, steps_per_epoch: as for `cosine`; the warmup is in epochs, or in steps like the period.

    Raises:
        SchemaError: as `cosine`; a factor not above 0.
    """
    out = _Exponential(1.0 if epochs is None and steps is None else epochs, steps, warmup, steps_per_epoch, whole_run=False)
    out.learning_rate = rate_of("exponential", "learning_rate", learning_rate)
    out.factor, out.staircase = positive("exponential", "factor", factor), staircase
    return out


def warmup(learning_rate: float | Schedule, *, epochs: float | None = None, steps: float | None = None, steps_per_epoch: float | None = None) -> Schedule:
    """Return a learning rate with a rise: of the first steps, step s has (s + 1) / steps of it.

    Args:
        learning_rate: a number, or any schedule, which begins with the warmup.
        epochs, steps: the length of the rise.
        steps_per_epoch: as for `cosine`.

    Raises:
        SchemaError: neither epochs nor steps; as `cosine`.
    """
    if epochs is None and steps is None:
        raise SchemaError("warmup needs epochs= or steps=: how long the rate rises")
    out = _Warmup(epochs, steps, 0.0, steps_per_epoch)
    out.learning_rate = learning_rate if isinstance(learning_rate, Schedule) else rate_of("warmup", "learning_rate", learning_rate)
    return out


def _risen(step: Variable, steps: float) -> Variable:
    """Return the fraction of its rate for a step of a warmup."""
    return apply("elementwise_min", X=(step + 1.0) * (1.0 / steps), Y=number(1.0))


def _between(part: Variable, first: float, last: float) -> Variable:
    """Return a variable from ``first`` to ``last`` along half a cosine, as ``part`` goes from 0 to 1."""
    return (apply("cos", X=part * math.pi) + 1.0) * (0.5 * (first - last)) + last
