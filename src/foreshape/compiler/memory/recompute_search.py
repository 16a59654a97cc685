"""The choice of values to keep for the backward pass, for a peak within a budget at little extra work.

There are three ways to choose, each refined. One keeps values across the borders of segments of the forward pass (Chen et al. 2016, "Training deep nets with
sublinear memory cost"). One keeps values of high work for their size besides. One drops values of low work for their size from the peak, time and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from foreshape.compiler.memory.step_model import Outcome, StepModel

_SEGMENTS = 14
"""The number of sizes of segments to try."""
_SHARES = (0.0, 0.5, 0.75, 0.9)
"""The share (by bytes) of the values within the segments to drop, the cheapest first; besides all of them."""
_BEST = 2
_WORK, _SOME = 500_000, 20
"""The ops looked at in all evaluated choices, and the least number of choices."""


class Choice(NamedTuple):
    """The kept groups, the others that are computed again for each reader, and the model's outcome."""

    kept: frozenset[str]
    anew: frozenset[str]
    outcome: Outcome


class Search:
    """A search of choices for one model; its evaluations serve every budget."""

    def __init__(self, model: StepModel) -> None:
        self.model = model
        self._left = _WORK // max(len(model.work), 1)
        """The number of choices left to evaluate: a number and no time, for equal results on every machine."""
        self._until = 0
        self._known: dict[tuple[frozenset[str], frozenset[str]], Outcome] = {}
        self.base, self.small = model.base, model.small
        self.family = self._family()

    def evaluate(self, names: Iterable[str], anew: Iterable[str] = ()) -> Choice:
        key = frozenset(names), frozenset(anew)
        outcome = self._known.get(key)
        if outcome is None:
            self._left -= 1
            outcome = self._known[key] = self.model.evaluate(*key)
        return Choice(*key, outcome)

    def _begin(self) -> None:
        """Give the next way a part of the work left, and some in any case."""
        self._until = min(self._left // 2, self._left - _SOME)

    def _may_go_on(self) -> bool:
        return self._left > self._until

    def within(self, limit: int) -> Choice | None:
        """Return the choice of the least extra work whose peak, by the model, is at most ``limit``."""
        self._begin()
        fits = sorted((c for c in self.family if c.outcome.peak <= limit), key=lambda c: (c.outcome.extra, c.outcome.peak))[:_BEST]
        low = sorted((c for c in self.family if c.outcome.peak > limit), key=lambda c: c.outcome.peak)[:_BEST] if len(fits) < _BEST else []
        for start in [self.evaluate(self.base), *low]:
            lowered = self._lower(start, limit)
            if lowered.outcome.peak <= limit:
                fits.append(lowered)
        refined = [self._bring_back(c, limit) for c in sorted(fits, key=lambda c: c.outcome.extra)[: _BEST + 1]]
        return min(refined, key=lambda c: (c.outcome.extra, c.outcome.peak), default=None)

    def least(self) -> list[Choice]:
        """Return the choices of the lowest peaks."""
        self._begin()
        low = sorted(self.family, key=lambda c: (c.outcome.peak, c.outcome.extra))[:_BEST]
        choices = [*low, *(self._lower(c, 0) for c in low)]
        return sorted({(c.kept, c.anew): c for c in choices}.values(), key=lambda c: (c.outcome.peak, c.outcome.extra))[:_BEST]

    # --- segments

    def _family(self) -> list[Choice]:
        model = self.model
        sizes = sorted((model.size(n) for n in self.base), reverse=True)
        if not sizes:
            return []
        total, largest = sum(sizes), sizes[0]
        steps = max(_SEGMENTS - 1, 1)
        limits = sorted({int(largest * (total / largest) ** (k / steps)) for k in range(_SEGMENTS)}) if total > largest else [total]
        borders = dict.fromkeys(frozenset(self._borders(limit)) for limit in limits)
        dear = sorted(self.base, key=lambda n: (model.cost_of(n, self.base) / model.size(n), model.recomputing.maker[n], n))
        out: dict[frozenset[str], Choice] = {}
        for border in borders:
            for share in (*_SHARES, 1.0):
                choice = self.evaluate(border | self.small | self._dearest(dear, share, total))
                out[choice.kept] = choice
        return list(out.values())

    def _dearest(self, dear: Sequence[str], share: float, total: int) -> set[str]:
        """Return all but the cheapest groups that make up this share of the bytes."""
        if share == 1.0:
            return set()
        names, passed = set[str](), 0
        for name in dear:
            passed += self.model.size(name)
            if passed > share * total:
                names.add(name)
        return names

    def _borders(self, limit: int) -> set[str]:
        """Return the values across the borders of segments of about ``limit`` kept bytes, each border at the least crossing."""
        model = self.model
        recomputing = model.recomputing
        last: dict[str, int] = {}
        for index, names in enumerate(recomputing.reads):
            if not recomputing.late[index] and model.needed[index]:
                for name in names:
                    last[model.root.get(name, name)] = index
        crossing_names: set[str] = set()
        alive: dict[str, int] = {}
        alive_bytes = 0
        best: tuple[int, int, set[str]] | None = None
        for index, late in enumerate(recomputing.late):
            if late or not model.needed[index]:
                continue
            for name in recomputing.writes[index]:
                root = model.root.get(name, name)
                if root == name and name in model.groups:
                    alive[name] = last.get(name, index)
                    if name in self.base:
                        alive_bytes += model.size(name)
            alive = {n: end for n, end in alive.items() if end > index}
            crossing = sum(model.size(n) for n in alive)
            if alive and alive_bytes > limit / 2 and (best is None or crossing <= best[0]):
                best = (crossing, index, set(alive))
            if alive_bytes > limit and best is not None:
                crossing_names |= best[2]
                alive_bytes, best = 0, None
        return crossing_names

    # --- from a choice to a better one

    def _lower(self, start: Choice, limit: int) -> Choice:
        """Drop values alive at the peak, the cheapest for their bytes first, until the peak is within the limit or nothing helps. Values computed again
        before it and read after it are then computed once more.
        """
        best = choice = start
        tabu: set[str] = set()
        while choice.outcome.peak > limit and self._may_go_on():
            excess = choice.outcome.peak - limit
            model = self.model
            names = [n for n in (*choice.outcome.alive, *choice.outcome.again) if n not in tabu and n not in self.small]
            candidates = sorted(names, key=lambda n: model.cost_of(n, choice.kept) / model.size(n))
            if not candidates:
                break
            chosen, freed = list[str](), 0
            for name in candidates:
                chosen.append(name)
                freed += model.size(name)
                if freed >= excess / 3 or len(chosen) >= max(1, len(candidates) // 4):
                    break
            lower = self._without(choice, chosen)
            if lower.outcome.peak < choice.outcome.peak:
                choice = lower
            elif len(chosen) == 1:
                tabu.update(chosen)
            else:
                lower = self._without(choice, chosen[:1])
                if lower.outcome.peak < choice.outcome.peak:
                    choice = lower
                else:
                    tabu.update(chosen[:1])
            if choice.outcome.peak < best.outcome.peak:
                best = choice
        return best

    def _without(self, choice: Choice, chosen: Iterable[str]) -> Choice:
        return self.evaluate(choice.kept.difference(chosen), choice.anew.union(n for n in chosen if n not in choice.kept))

    def _bring_back(self, start: Choice, limit: int) -> Choice:
        """Compute values once for all readers, and keep again the dearest for their bytes first, as long as the peak is within the limit."""
        model = self.model
        missing = sorted(self.base - start.kept, key=lambda n: (-model.cost_of(n, start.kept) / model.size(n), model.recomputing.maker[n], n))
        choice = start
        for names, keep in ((sorted(start.anew), False), (missing, True)):
            waiting = [names]
            while waiting and self._may_go_on():
                names = waiting.pop()
                if not names:
                    continue
                trial = self.evaluate(choice.kept.union(names) if keep else choice.kept, choice.anew.difference(names))
                if trial.outcome.peak <= limit and trial.outcome.extra <= choice.outcome.extra:
                    choice = trial
                elif len(names) > 1:
                    half = len(names) // 2
                    waiting += [names[half:], names[:half]]
        return choice
