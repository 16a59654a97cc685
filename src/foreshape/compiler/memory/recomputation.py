"""`recompute`: a training program that fits a budget, since its backward pass computes some values again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from foreshape.compiler.memory.byte_counts import byte_text, bytes_of
from foreshape.compiler.memory.plan import Plan
from foreshape.compiler.memory.recompute_search import Choice, Search
from foreshape.compiler.memory.step_model import StepModel
from foreshape.errors import MemoryPlanError, SchemaError
from foreshape.language.program import Program, Role, Variable
from foreshape.language.program.call_site import tells_line
from foreshape.transforms.passes.recompute import gradients_apart, recompute_values

_TRIES, _ROUNDS = 8, 4
_CLOSE = 0.02
"""A peak this close to the budget leaves nothing to gain."""
_LEAST = 1
"""The budget below every peak."""
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The result of `recompute`. ``print`` it for a summary."""

    program: Program
    """The program to run: another one, or the given one if it fits unchanged."""
    dropped: tuple[str, ...]
    """The values of the forward pass computed again by the backward pass."""
    within: int
    """The budget, in bytes."""
    peak_before: int
    """The peak of the given program."""
    peak: int
    """The plan's peak, in bytes, for the given sizes."""
    extra_work: float
    """The share by which a step's work grows, by estimate: 0.1 is a tenth more."""

    def __str__(self) -> str:
        if not self.dropped and self.peak < self.peak_before:
            return (
                f"peak {byte_text(self.peak)} instead of {byte_text(self.peak_before)}, within {byte_text(self.within)}: nothing needs to be "
                "computed again where gradients are computed one after the other, and dims are taken from them"
            )
        if not self.dropped:
            return f"the peak is {byte_text(self.peak)}, within {byte_text(self.within)}: nothing needs to be computed again"
        names = ", ".join(self.dropped[:_SHOWN]) + (f" and {len(self.dropped) - _SHOWN} more" if len(self.dropped) > _SHOWN else "")
        return (
            f"peak {byte_text(self.peak)} instead of {byte_text(self.peak_before)}, within {byte_text(self.within)}\n"
            f"about {self.extra_work:.1%} more work in a step: {len(self.dropped)} values are computed again\n    {names}"
        )

    __repr__ = __str__


@tells_line
def recompute(program: Program, within: int | str, fetch: Iterable[Variable | str] | Variable | str = (), **symbols: int) -> Recomputation:
    """Choose values of the forward pass to compute again in the backward pass, so that the plan meets a budget.

    Args:
        program: with its backward and update ops; it is left as it is, and the result has another one, with the same parameters.
            Random numbers are drawn again identically, so that a step gives equal results.
        within: bytes, or words such as "2 GiB", for all of the plan: parameters and optimizer state too.
        fetch: the fetches of the step.
        symbols: the sizes to fit, as ``batch=64``.

    Raises:
        MemoryPlanError: no choice found meets the budget (the error tells the least peak found), or a size is missing.
        SchemaError: the program has no backward ops.
    """
    limit = bytes_of(within)
    fetched = (fetch,) if isinstance(fetch, (str, Variable)) else tuple(fetch)
    plan = Plan(program, fetched)
    peak_before = plan.peak(**symbols)
    if not any(op.role & Role.BACKWARD for op in program.global_block.ops):
        raise SchemaError("there is nothing to compute again: the program has no backward ops; call minimize or append_backward first")
    if peak_before <= limit:
        return Recomputation(program, (), limit, peak_before, peak_before, 0.0)
    values = {**dict.fromkeys(plan.leading, symbols["batch"]), **symbols} if "batch" in symbols else dict(symbols)
    lowest = peak_before
    for aim in dict.fromkeys((limit, _LEAST)):  # the second way is the same for every budget, so the least peak in the error can be asked for
        lowest, first = peak_before, set[str]()
        for _ in range(_ROUNDS):
            apart, names = gradients_apart(program, first)
            trying = _Trying(plan if apart is program else Plan(apart, fetched), values, symbols, limit, peak_before, aim)
            recomputation = trying.run()
            if recomputation is not None:
                return recomputation
            lowest = min(lowest, trying.lowest)
            results = trying.made_at_peak.intersection(names) - first
            if not results:
                break
            first |= results  # it needs its memory before the others of its op have theirs
    error = MemoryPlanError(
        f"a peak of {byte_text(limit)} cannot be reached by computing values again: the least that was found is "
        f"{byte_text(lowest)}, and without it is {byte_text(peak_before)}"
    )
    error.least = lowest
    raise error


class _Trying:
    """Choices by the model, judged by the plans of their programs; ``aim``: the wanted peak, ``limit``: a sufficient one."""

    def __init__(self, plan: Plan, values: dict[str, int], symbols: dict[str, int], limit: int, peak_before: int, aim: int) -> None:
        self.program, self.fetch, self.symbols, self.before = plan.program, plan.fetch, symbols, peak_before
        self.limit, self.aim = limit, aim
        self.search = Search(StepModel(plan.program.global_block, plan.fetch, values, plan.live))
        self.best: tuple[float, Recomputation] | None = None
        self.lowest = peak_before
        self.made_at_peak = set[str]()
        """The results of the op with the lowest peak."""
        self._seen: dict[tuple[frozenset[str], frozenset[str]], int] = {}

    def run(self) -> Recomputation | None:
        """Return the choice of the least extra work found within the limit."""
        for choice in self._choices():
            self.judge(choice)
        if self.best is None:
            for choice in self.search.least():
                self.judge(choice)
        return None if self.best is None else self.best[1]

    def _choices(self) -> Iterator[Choice]:
        """Yield choices for a limit of the model's, moved until the plan of a choice is just within the budget."""
        base = self.search.evaluate(self.search.base)  # it only lets go of values read for their dims
        yield base
        if self._peak(base) <= self.aim:
            return
        floor = min((c.outcome.peak for c in self.search.family), default=base.outcome.peak)
        target = max(self.aim - (self._peak(base) - base.outcome.peak), floor)
        fits, fails = -1, max(base.outcome.peak, target + 1)
        for _ in range(_TRIES):
            choice = self.search.within(target)
            if choice is None:
                return
            yield choice
            off = self._peak(choice) - self.aim
            if off <= 0:
                fits = max(fits, target)
                if -off <= _CLOSE * self.aim or not choice.outcome.extra:
                    return
            elif target <= floor:
                return
            else:
                fails = min(fails, choice.outcome.peak)
            if fails - fits <= _CLOSE / 10 * self.aim:
                return
            target = max(choice.outcome.peak - off, floor)
            if not fits < target < fails:
                target = max((fits + fails) // 2, floor) if fits >= 0 else floor

    def _peak(self, choice: Choice) -> int:
        return self._seen[choice.kept, choice.anew]

    def judge(self, choice: Choice) -> None:
        """Make the program of a choice and ask its plan."""
        if (choice.kept, choice.anew) in self._seen:
            return
        model = self.search.model
        program, names = recompute_values(self.program, model.dropped(choice.kept), model.members(choice.anew))
        plan = Plan(program, self.fetch)
        peak = self._seen[choice.kept, choice.anew] = plan.peak(**self.symbols)
        if peak < self.lowest:
            self.lowest = peak
            self.made_at_peak = set(plan.ops[int(plan.timeline(**self.symbols).argmax())].output_names())
        extra = choice.outcome.extra / self.search.model.total if self.search.model.total else 0.0
        if peak <= self.limit and (self.best is None or extra < self.best[0]):
            self.best = extra, Recomputation(program, tuple(names), self.limit, self.before, peak, extra)
