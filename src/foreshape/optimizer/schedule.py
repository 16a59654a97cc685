"""Learning rates that change with the step: each schedule appends ops to compute the rate from a counter of steps.

The counter ``@LR_DECAY_COUNTER@`` is persistable, so a resumed run continues with it; all schedules of a program share it, and
it is 0 in the first step. The counter of another program with the same startup program has a number, ``@LR_DECAY_COUNTER@_1``. A schedule is given
to an optimizer as its learning rate. Formulas are PaddlePaddle's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, count
from typing import Any

from foreshape.core.constructor_repr import ConstructorRepr
from foreshape.core.spec import FP32, INT64, tensor
from foreshape.errors import SchemaError
from foreshape.language.program import Program, Role, Variable, program_guard
from foreshape.language.program.current import current_block
from foreshape.layer.initializer import Constant
from foreshape.layer.parameter import initialise

COUNTER = "@LR_DECAY_COUNTER@"


class Schedule(ConstructorRepr):
    """The base: `append` appends a schedule's ops to a program and returns the rate, fp32 ``[1]``."""

    def append(self, program: Program) -> Variable:
        """Append the ops to ``program``; returns the rate, fp32 ``[1]``."""
        role = program.role
        program.role = Role.LEARNING_RATE
        try:
            with program_guard(program):
                return self.rate(_step(program))
        finally:
            program.role = role

    def for_run(self, epochs: float | None, steps_per_epoch: float | None) -> Schedule:
        """Return the schedule for a run of so many ``epochs`` of ``steps_per_epoch`` (None: unknown); itself if it does not depend on them.

        Raises:
            SchemaError: it depends on an unknown number; the message says how to give it.
        """
        return self

    def rate(self, step: Variable) -> Variable:
        """Return the rate at ``step``, an fp32 variable ``[1]`` counted from 0."""
        raise TypeError(f"{type(self).__name__} does not say what its rate is")


class _Decay(Schedule):
    """The base of schedules with a decay by ``decay_rate`` every ``decay_steps``; with ``staircase`` in jumps."""

    def __init__(self, learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False) -> None:
        self.learning_rate, self.decay_rate = rate_of(type(self).__name__, "learning_rate", learning_rate), float(decay_rate)
        self.decay_steps = positive(type(self).__name__, "decay_steps", decay_steps)
        self.staircase = staircase

    def _periods(self, step: Variable) -> Variable:
        periods = step / self.decay_steps
        return _floor(periods) if self.staircase else periods


class ExponentialDecay(_Decay):
    """learning_rate * decay_rate ^ (step / decay_steps)."""

    def rate(self, step: Variable) -> Variable:
        return apply("elementwise_pow", X=number(self.decay_rate), Y=self._periods(step)) * self.learning_rate


class NaturalExpDecay(_Decay):
    """learning_rate * exp(-decay_rate * step / decay_steps)."""

    def rate(self, step: Variable) -> Variable:
        return apply("exp", X=self._periods(step) * -self.decay_rate) * self.learning_rate


class InverseTimeDecay(_Decay):
    """learning_rate / (1 + decay_rate * step / decay_steps)."""

    def rate(self, step: Variable) -> Variable:
        return self.learning_rate / (self._periods(step) * self.decay_rate + 1.0)


class PolynomialDecay(Schedule):
    """(learning_rate - end_learning_rate) * (1 - step / decay_steps) ^ power + end_learning_rate.

    After ``decay_steps`` the rate stays at the end; with ``cycle`` it begins again, with twice, three times, ... as many steps.
    """

    def __init__(self, learning_rate: float, decay_steps: float, end_learning_rate: float = 0.0001, power: float = 1.0, cycle: bool = False) -> None:
        self.learning_rate, self.power, self.cycle = rate_of("PolynomialDecay", "learning_rate", learning_rate), float(power), cycle
        self.end_learning_rate = rate_of("PolynomialDecay", "end_learning_rate", end_learning_rate)
        self.decay_steps = positive("PolynomialDecay", "decay_steps", decay_steps)

    def rate(self, step: Variable) -> Variable:
        if self.cycle:
            # the number of cycles begun, rounded up, at least one; -floor(-x) is the rounding up
            periods = step / self.decay_steps
            begun = _floor(periods)
            begun = begun + apply("cast", {"in_dtype": 0, "out_dtype": FP32.code}, X=apply("greater_than", X=periods, Y=begun))
            part = periods / apply("elementwise_max", X=begun, Y=number(1.0))
        else:
            part = apply("elementwise_min", X=step, Y=number(self.decay_steps)) / self.decay_steps
        return (1.0 - part) ** self.power * (self.learning_rate - self.end_learning_rate) + self.end_learning_rate


class PiecewiseDecay(Schedule):
    """``values[i]`` until step ``boundaries[i]``, ``values[-1]`` after the last boundary.

    Raises:
        SchemaError: boundaries not rising, or not one value more than boundaries.
    """

    def __init__(self, boundaries: Sequence[int], values: Sequence[float]) -> None:
        self.boundaries, self.values = [int(b) for b in boundaries], [rate_of("PiecewiseDecay", "values", v) for v in values]
        if len(self.values) != len(self.boundaries) + 1:
            raise SchemaError(f"PiecewiseDecay needs one value more than boundaries; seen {len(self.values)} and {len(self.boundaries)}")
        if any(a >= b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise SchemaError(f"the boundaries of PiecewiseDecay must rise; seen {self.boundaries}")

    def rate(self, step: Variable) -> Variable:
        out = number(self.values[-1])
        for boundary, value in zip(reversed(self.boundaries), reversed(self.values[:-1]), strict=True):
            out = where(step < number(boundary), number(value), out)
        return out


class CosineDecay(Schedule):
    """learning_rate / 2 * (cos(epoch * pi / epochs) + 1), where epoch = floor(step / step_each_epoch) (Loshchilov and Hutter, 2017)."""

    def __init__(self, learning_rate: float, step_each_epoch: float, epochs: float) -> None:
        self.learning_rate = rate_of("CosineDecay", "learning_rate", learning_rate)
        self.step_each_epoch = positive("CosineDecay", "step_each_epoch", step_each_epoch)
        self.epochs = positive("CosineDecay", "epochs", epochs)

    def rate(self, step: Variable) -> Variable:
        epoch = _floor(step / self.step_each_epoch)
        return (apply("cos", X=epoch * (math.pi / self.epochs)) + 1.0) * (0.5 * self.learning_rate)


class NoamDecay(Schedule):
    """learning_rate * d_model^-0.5 * min(n^-0.5, n * warmup_steps^-1.5), where n counts steps from 1 (Vaswani et al., 2017)."""

    def __init__(self, d_model: float, warmup_steps: float, learning_rate: float = 1.0) -> None:
        self.learning_rate = rate_of("NoamDecay", "learning_rate", learning_rate)
        self.d_model = positive("NoamDecay", "d_model", d_model)
        self.warmup_steps = positive("NoamDecay", "warmup_steps", warmup_steps)

    def rate(self, step: Variable) -> Variable:
        n = step + 1.0
        smaller = apply("elementwise_min", X=n**-0.5, Y=n * self.warmup_steps**-1.5)
        return smaller * (self.learning_rate * self.d_model**-0.5)


class LinearWarmup(Schedule):
    """From ``start_lr`` in a line to ``end_lr`` during ``warmup_steps``, then ``learning_rate``, a number or a schedule."""

    def __init__(self, learning_rate: float | Schedule, warmup_steps: float, start_lr: float, end_lr: float) -> None:
        self.learning_rate = learning_rate if isinstance(learning_rate, Schedule) else rate_of("LinearWarmup", "learning_rate", learning_rate)
        self.warmup_steps = positive("LinearWarmup", "warmup_steps", warmup_steps)
        self.start_lr, self.end_lr = float(start_lr), float(end_lr)

    def for_run(self, epochs: float | None, steps_per_epoch: float | None) -> Schedule:
        rate = self.learning_rate
        adapted = rate.for_run(epochs, steps_per_epoch) if isinstance(rate, Schedule) else rate
        return self if adapted is rate else LinearWarmup(adapted, self.warmup_steps, self.start_lr, self.end_lr)

    def rate(self, step: Variable) -> Variable:
        schedule = self.learning_rate
        main = schedule.rate(step) if isinstance(schedule, Schedule) else number(schedule)
        warm = step * ((self.end_lr - self.start_lr) / self.warmup_steps) + self.start_lr
        return where(step < number(self.warmup_steps), warm, main)


def rate_of(schedule: str, name: str, value: float) -> float:
    """Return a learning rate of a schedule. Raises `SchemaError` for one below 0, or not finite."""
    number = float(value)
    if not 0 <= number < math.inf:
        raise SchemaError.must(f"{schedule}: {name}", "a finite number of at least 0", value)
    return number


def positive(subject: str, name: str, value: float) -> float:
    """Return a number above 0 unchanged. Raises `SchemaError` for others."""
    if not (value > 0 and math.isfinite(value)):
        raise SchemaError(f"{subject} needs {name} above 0; seen {value}")
    return float(value)


def _step(program: Program) -> Variable:
    """Return the counter as fp32 ``[1]``: 0 in the first step. Its increment is the program's first op."""
    block = program.global_block
    name = next(n for n in chain([COUNTER], (f"{COUNTER}_{number}" for number in count(1))) if n not in program.reserved)
    counter = block.vars.get(name)
    if counter is None:
        counter = block.create_variable(name, tensor(INT64, 1), persistable=True, stop_gradient=True)
        initialise(counter, Constant(-1))
        block.append_op("increment", {"X": counter}, {"Out": counter}, {"step": 1.0}, index=0)
    step = apply("cast", {"in_dtype": INT64.code, "out_dtype": FP32.code}, X=counter)
    step.stop_gradient = True
    return step


def apply(type: str, attrs: dict[str, Any] | None = None, /, **inputs: Variable) -> Variable:
    """Append an op; returns its result."""
    out: Variable = current_block().apply(type, inputs, attrs)
    return out


def number(value: float) -> Variable:
    """Return a constant, fp32 ``[1]``."""
    return apply("fill_constant", {"shape": [1], "dtype": FP32.code, "value": float(value), "str_value": repr(float(value))})


def _floor(x: Variable) -> Variable:
    """Return ``x``, not negative, rounded down."""
    return apply("floor", X=x)


def where(condition: Variable, x: Variable, y: Variable) -> Variable:
    """Return ``x`` where the condition holds, otherwise ``y``."""
    return apply("where", Condition=condition, X=x, Y=y)
