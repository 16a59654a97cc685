"""The sizes within a memory limit, by the plan; remembered, since planning takes time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from foreshape.compiler.memory import Plan
from foreshape.core.dims import evaluate, symbols_of
from foreshape.errors import MemoryPlanError, ShapeError


class MemoryRoom:
    """A memory plan and its limit in bytes.

    Sizes twice as large as asked for are planned: if these fit, smaller ones do.
    """

    def __init__(self, plan: Plan, limit: int) -> None:
        self._plan, self._limit = plan, limit
        self._known = plan.program.guards.known
        self._roomy: dict[str, int] | None = None

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        if limit != self._limit:
            self._limit, self._roomy = limit, None

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Tell whether a run of these sizes (symbol -> size) fits. Sizes known only to the run count as 1."""
        roomy = self._roomy
        if roomy is not None and all(size <= roomy.get(name, -1) for name, size in sizes.items()):
            return True
        twice = {name: 2 * size + 16 for name, size in sizes.items()}
        if self._is_within(twice):
            self._roomy = twice
            return True
        return self._is_within(sizes)

    def is_told_by(self, symbols: Collection[str]) -> bool:
        """Tell whether all sizes of a run follow from these symbols: not if values decide, as the ends of ranges do."""
        return all(name in symbols or ((size := self._known.get(name)) is not None and symbols_of(size) <= set(symbols)) for name in self._plan.symbols)

    def peak(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes of a run of these sizes. Raises `MemoryPlanError`, `ShapeError`: past any number."""
        values = dict(sizes)
        for name in self._plan.symbols:
            if name not in values:
                size = self._known.get(name)
                values[name] = evaluate(size, values) if size is not None and symbols_of(size) <= values.keys() else 1
        return self._plan.peak(**{n: values[n] for n in self._plan.symbols})

    def _is_within(self, sizes: Mapping[str, int]) -> bool:
        try:
            return self.peak(sizes) <= self._limit
        except (MemoryPlanError, ShapeError):  # past any number
            return False
