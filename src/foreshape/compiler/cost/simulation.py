"""Training on more ranks than at hand: steps run through the event queue, with stragglers, and the bottleneck is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum

from foreshape.compiler.cost.events import Compute, Item, run
from foreshape.compiler.cost.ranks_plan import RanksPlan
from foreshape.compiler.cost.timeline import Timeline
from foreshape.compiler.memory import bytes_of
from foreshape.errors import SchemaError

NUMBERS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_EVENTS = 400_000
"""About so many events there are in all steps of one number of ranks."""
_SMALL = 0.05
"""The least share of a step for a bottleneck."""


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Random slowdowns: every stretch of computing takes up to ``jitter`` longer (exponentially distributed, this on average). In a step a rank is slow with
    the probability ``share``: all its computing takes ``times`` as long.
    """

    jitter: float = 0.02
    share: float = 0.001
    times: float = 1.5

    def __post_init__(self) -> None:
        if not (0 <= self.jitter < 100 and 0 <= self.share <= 1 and 1 <= self.times < 1000):
            raise SchemaError("stragglers have a jitter of at least 0, a share from 0 to 1, and take at least once as long")

    def slowdown(self, seed: str, ranks: int) -> Callable[[int, int], float]:
        """Return the factors of one step, (rank, item) -> factor; equal seeds give equal steps."""
        chance = random.Random(seed)
        slow = [self.times if chance.random() < self.share else 1.0 for _ in range(ranks)]
        rate = 1 / self.jitter if self.jitter else 0.0

        def factor(rank: int, item: int) -> float:
            return slow[rank] * (1 + chance.expovariate(rate) if rate else 1.0)

        return factor


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The outcome of a number of ranks.

    ``seconds``: of a step, on average over the simulated ones. ``efficiency``: a rank's examples in a second, as a share of one rank alone, or of one group
    of ranks with divided layers. ``computing``, ``bandwidth``, ``latency``, ``waiting``: the seconds of kernels, of waiting for bytes and for messages, and
    of waiting for slow ranks. ``peak``: bytes of a rank; ``fits``: True if it has them (None if its memory is unknown).
    """

    ranks: int
    batch: int
    seconds: float
    efficiency: float
    computing: float
    bandwidth: float
    latency: float
    waiting: float
    communicating: float
    hidden: float
    peak: int
    fits: bool | None
    events: int

    @property
    def bottleneck(self) -> str:
        """Return the bottleneck, in words."""
        if self.fits is False:
            return "memory"
        largest = max(("bandwidth", self.bandwidth), ("latency", self.latency), ("stragglers", self.waiting), key=lambda pair: pair[1])
        return "computing" if largest[1] < _SMALL * self.seconds else largest[0]


def simulate(
    plan: RanksPlan, numbers: Sequence[int] = NUMBERS, *, batch: int | None = None, batch_per_rank: int | None = None, within: int | str | None = None,
    stragglers: Stragglers | None = None, seed: int = 0, steps: int = 20,
) -> list[ScalingPoint]:  # fmt: skip
    """Simulate steps of a plan on other numbers of ranks.

    Args:
        batch: of the whole step, equal for every number; the ranks' parts get smaller.
        batch_per_rank: of each rank, so the whole step's grows. Give one of the two.
        within: the memory of a rank.
        stragglers: the usual ones by default.
        steps: the most simulated steps of each number.
    """
    if (batch is None) == (batch_per_rank is None):
        raise SchemaError("give batch, which is divided over the ranks, or batch_per_rank")
    limit = None if within is None else bytes_of(within)
    return [_point(plan, ranks, batch, batch_per_rank, limit, stragglers or Stragglers(), seed, steps) for ranks in numbers]


def _point(
    plan: RanksPlan, ranks: int, batch: int | None, batch_per_rank: int | None, limit: int | None, stragglers: Stragglers, seed: int, steps: int
) -> ScalingPoint:
    examples = batch if batch is not None else (batch_per_rank or 0) * ranks
    totals = {n: v * ranks if batch_per_rank is not None else v for n, v in plan.sizes.items() if n in plan.shared and n != "batch"}
    sizes = {**totals, "batch": examples, "ranks": ranks}
    timeline = plan.timeline(**sizes)
    few = plan.degree
    alone = plan.timeline(**{**sizes, "ranks": few, **({n: v // ranks * few for n, v in totals.items()} if batch_per_rank is not None else {}),
                             "batch": batch_per_rank * few if batch_per_rank is not None else examples})  # fmt: skip
    seconds, waiting, events = _steps(timeline, ranks, stragglers, seed, steps)
    bandwidth, latency = _shares(plan, timeline)
    peak = plan.peak(**sizes)
    done = alone.seconds if batch_per_rank is not None else alone.seconds * few / ranks
    hidden = max(0.0, 1 - timeline.exposed / timeline.communicating) if timeline.communicating else 1.0
    return ScalingPoint(ranks, examples, seconds, done / seconds if seconds else 1.0, timeline.computing, bandwidth, latency, waiting, timeline.communicating,
                        hidden, peak, None if limit is None else peak <= limit, events)  # fmt: skip


def _steps(timeline: Timeline, ranks: int, stragglers: Stragglers, seed: int, steps: int) -> tuple[float, float, int]:
    """Return the mean seconds of a step, the part due to stragglers, and the number of all events."""
    items = coarse(timeline.items, max(_EVENTS // ranks, 8))
    count = max(1, min(steps, _EVENTS // max(ranks * len(items), 1)))
    runs = [run(items, timeline.durations, ranks, stragglers.slowdown(f"{seed} {ranks} {n}", ranks)) for n in range(count)]
    seconds = fsum(r.seconds for r in runs) / count
    return seconds, max(seconds - timeline.seconds, 0.0), sum(r.events for r in runs)


def coarse(items: Sequence[Item], limit: int) -> list[Item]:
    """Return the same with successive computing as one item, and at most about so many items: short stretches are joined with the next."""
    out = list(items)
    least = 0.0
    while len(out) > limit:
        total = fsum(i.seconds for i in out if isinstance(i, Compute))
        least = max(2 * least, total / (4 * limit))
        carried, joined = 0.0, list[Item]()
        for item in out:
            if isinstance(item, Compute) and carried + item.seconds < least:
                carried += item.seconds
            elif isinstance(item, Compute):
                joined.append(Compute(carried + item.seconds))
                carried = 0.0
            else:
                joined.append(item)
        if carried:
            joined.append(Compute(carried))
        if len([i for i in joined if isinstance(i, Compute)]) <= 1:
            return joined
        out = joined
    return out


def _shares(plan: RanksPlan, timeline: Timeline) -> tuple[float, float]:
    """Split a rank's seconds of waiting for messages into bytes' and latency's."""
    sent = list(zip(plan.messages, timeline.counts, timeline.members, strict=True))
    moving = fsum(plan.network.moving(m.way, count, ranks) for m, count, ranks in sent)
    waiting = fsum(plan.network.waiting(m.way, count, ranks) for m, count, ranks in sent)
    total = moving + waiting
    return (timeline.exposed * moving / total, timeline.exposed * waiting / total) if total else (0.0, 0.0)
