"""The choice of values to keep for the backward pass, for a peak within a budget at little extra work.

There are three ways to choose, each refined. One keeps values across the borders of segments of the forward pass (Chen et al. 2016, "Training deep nets with
sublinear memory cost"). One keeps values of high work for their size besides. One drops values of low work for their size from the peak, time and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from foreshape.memory.step_model import Outcome, StepModel

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

    def evaluate(self, kept: Iterable[str], anew: Iterable[str] = ()) -> Choice:
        key = frozenset(kept), frozenset(anew)
        found = self._known.get(key)
        if found is None:
            self._left -= 1
            found = self._known[key] = self.model.evaluate(*key)
        return Choice(*key, found)

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
        found = [*low, *(self._lower(c, 0) for c in low)]
        return sorted({(c.kept, c.anew): c for c in found}.values(), key=lambda c: (c.outcome.peak, c.outcome.extra))[:_BEST]

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
        kept, passed = set[str](), 0
        for name in dear:
            passed += self.model.size(name)
            if passed > share * total:
                kept.add(name)
        return kept

    def _borders(self, limit: int) -> set[str]:
        """Return the values across the borders of segments of about ``limit`` kept bytes, each border at the least crossing."""
        model = self.model
        recomputing = model.recomputing
        last: dict[str, int] = {}
        for at, names in enumerate(recomputing.reads):
            if not recomputing.late[at] and model.needed[at]:
                for name in names:
                    last[model.root.get(name, name)] = at
        kept: set[str] = set()
        alive: dict[str, int] = {}
        held = 0
        best: tuple[int, int, set[str]] | None = None
        for at, late in enumerate(recomputing.late):
            if late or not model.needed[at]:
                continue
            for name in recomputing.writes[at]:
                root = model.root.get(name, name)
                if root == name and name in model.groups:
                    alive[name] = last.get(name, at)
                    if name in self.base:
                        held += model.size(name)
            alive = {n: end for n, end in alive.items() if end > at}
            crossing = sum(model.size(n) for n in alive)
            if alive and held > limit / 2 and (best is None or crossing <= best[0]):
                best = (crossing, at, set(alive))
            if held > limit and best is not None:
                kept |= best[2]
                held, best = 0, None
        return kept

    # --- from a choice to a better one

    def _lower(self, start: Choice, limit: int) -> Choice:
        """Drop values alive at the peak, the cheapest for their bytes first, until the peak is within the limit or nothing helps. Values computed again
        before it and read after it are then computed once more.
        """
        best = now = start
        tabu: set[str] = set()
        while now.outcome.peak > limit and self._may_go_on():
            excess = now.outcome.peak - limit
            model = self.model
            there = [n for n in (*now.outcome.alive, *now.outcome.again) if n not in tabu and n not in self.small]
            found = sorted(there, key=lambda n: model.cost_of(n, now.kept) / model.size(n))
            if not found:
                break
            chosen, freed = list[str](), 0
            for name in found:
                chosen.append(name)
                freed += model.size(name)
                if freed >= excess / 3 or len(chosen) >= max(1, len(found) // 4):
                    break
            lower = self._without(now, chosen)
            if lower.outcome.peak < now.outcome.peak:
                now = lower
            elif len(chosen) == 1:
                tabu.update(chosen)
            else:
                lower = self._without(now, chosen[:1])
                if lower.outcome.peak < now.outcome.peak:
                    now = lower
                else:
                    tabu.update(chosen[:1])
            if now.outcome.peak < best.outcome.peak:
                best = now
        return best

    def _without(self, now: Choice, chosen: Iterable[str]) -> Choice:
        return self.evaluate(now.kept.difference(chosen), now.anew.union(n for n in chosen if n not in now.kept))

    def _bring_back(self, start: Choice, limit: int) -> Choice:
        """Compute values once for all readers, and keep again the dearest for their bytes first, as long as the peak is within the limit."""
        model = self.model
        missing = sorted(self.base - start.kept, key=lambda n: (-model.cost_of(n, start.kept) / model.size(n), model.recomputing.maker[n], n))
        now = start
        for names, keep in ((sorted(start.anew), False), (missing, True)):
            waiting = [names]
            while waiting and self._may_go_on():
                names = waiting.pop()
                if not names:
                    continue
                more = self.evaluate(now.kept.union(names) if keep else now.kept, now.anew.difference(names))
                if more.outcome.peak <= limit and more.outcome.extra <= now.outcome.extra:
                    now = more
                elif len(names) > 1:
                    half = len(names) // 2
                    waiting += [names[half:], names[:half]]
        return now
