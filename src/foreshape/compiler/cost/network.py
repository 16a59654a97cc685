"""The time of messages on a network: bandwidth and latency of a link, and its uses by a collective."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil, log2

from foreshape.errors import SchemaError
from foreshape.language.ops.collective.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BARRIER, BROADCAST, REDUCE, REDUCE_SCATTER, SCATTER

_NUMBER = r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?(?:e[0-9]{1,2})?)\s*"
_BANDWIDTH = re.compile(_NUMBER + r"([kKMGT]?)(b|B|bit|bits)(?:/s|ps)\s*\Z")
_SECONDS = re.compile(_NUMBER + r"(s|ms|us|µs|ns)\s*\Z")
_THOUSANDS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

_DIRECT = frozenset({ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL})
"""Collectives sent directly from each rank to each other on processors, not round a ring."""


@dataclass(frozen=True, slots=True)
class Network:
    """Links between ranks, all equal.

    Args:
        bandwidth: bytes per second that a rank can send and take, both at once.
        latency: seconds until the first byte of a message arrives.
        tree: sums may go by trees if faster than the ring, as NCCL does; gloo has the ring.
        whole: the most bytes of a sum sent whole to each other rank, in one message. Unless 0, gathers, exchanges and sums by parts go from each rank to each
            other too, as on processors; 0: everything goes round a ring.
        processor: seconds of the rank's processor for each byte sent, without computing, if ranks use all processors of their machine. 0 if other processors
            bring the messages.
        handling: seconds of that processor for each message, however small.
        direct: bytes per second of messages from each rank to each other, different from a ring's on a shared machine; ``bandwidth`` if 0.
        meeting: seconds that ranks with shared processors wait for one another at each collective, however many messages it has, since each is busy when the
            others come.
    """

    bandwidth: float
    latency: float
    tree: bool = False
    whole: int = 0
    processor: float = 0.0
    handling: float = 0.0
    direct: float = 0.0
    meeting: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.bandwidth < 1e18 and 0 <= self.latency < 1e6):
            raise SchemaError(f"a network has a bandwidth above 0 and a latency of at least 0; seen {self.bandwidth} and {self.latency}")
        times = 0 <= self.processor < 1 and 0 <= self.handling < 1e6 and 0 <= self.meeting < 1e6
        if not (times and 0 <= self.whole < 1 << 63 and 0 <= self.direct < 1e18):
            values = f"{self.whole}, {self.processor}, {self.handling}, {self.direct} and {self.meeting}"
            raise SchemaError(
                "bytes that go whole, seconds of a processor for a byte and for a message, bytes per second from each to each, and "
                f"seconds to meet are 0 or more; seen {values}"
            )

    @classmethod
    def of(
        cls, bandwidth: str | float = "25Gb/s", latency: str | float = "30us", tree: bool = False, whole: int = 0, processor: float = 0.0,
        handling: float = 0.0, direct: float = 0.0, meeting: float = 0.0,
    ) -> Network:  # fmt: skip
        """Return a network from words, as ``"25Gb/s"`` or ``"3GB/s"``, and ``"30us"``; numbers are bytes per second, and seconds.

        Args:
            bandwidth, latency: those words or numbers.
            tree, whole, processor, handling, direct, meeting: as of `Network`.
        """
        return cls(bandwidth_of(bandwidth), seconds_of(latency), tree, whole, processor, handling, direct, meeting)

    def seconds(self, way: str, count: float, ranks: int) -> float:
        """Return the seconds of a collective from the arrival of all ranks on.

        Args:
            way: the collective: ``all-reduce``, ``all-gather`` ...
            count: the bytes of one rank's part.
            ranks: the number of ranks.
        """
        return self.moving(way, count, ranks) + self.waiting(way, count, ranks)

    def moving(self, way: str, count: float, ranks: int) -> float:
        """Return the seconds of moving bytes.

        Args:
            way: the collective.
            count: the bytes that each rank gives.
            ranks: the number of ranks.
        """
        return self._sent(way, count, ranks) / (self.direct if self.direct and way in _DIRECT else self.bandwidth)

    def waiting(self, way: str, count: float, ranks: int) -> float:
        """Return the seconds without moving bytes. ``way``, ``count`` and ``ranks``: as for `moving`."""
        if ranks < 2:
            return 0.0
        if self._is_whole(way, count, ranks) or (self.whole and way in _DIRECT):
            return self.meeting + self.latency
        return self.meeting + self.latency * (2 * ceil(log2(ranks)) if self._by_tree(way, count, ranks) else hops(way, ranks))

    def occupying(self, way: str, count: float, ranks: int) -> float:
        """Return the seconds of the rank's own processor. ``way``, ``count`` and ``ranks``: as for `moving`."""
        return self._sent(way, count, ranks) * self.processor + (self.handling if ranks > 1 else 0.0)

    def _sent(self, way: str, count: float, ranks: int) -> float:
        if self._is_whole(way, count, ranks):
            return (ranks - 1) * count
        return sent(way, count, ranks) if not self._by_tree(way, count, ranks) else 2 * count

    def _is_whole(self, way: str, count: float, ranks: int) -> bool:
        return way == ALL_REDUCE and ranks > 1 and (ranks - 1) * count <= self.whole

    def _by_tree(self, way: str, count: float, ranks: int) -> bool:
        if not self.tree or way != ALL_REDUCE or ranks < 2:
            return False
        ring = sent(way, count, ranks) / self.bandwidth + hops(way, ranks) * self.latency
        return 2 * count / self.bandwidth + 2 * ceil(log2(ranks)) * self.latency < ring

    def __str__(self) -> str:
        return f"{self.bandwidth * 8 / 1e9:g} Gb/s, {self.latency * 1e6:g} us"


def sent(way: str, count: float, ranks: int) -> float:
    """Return the bytes that a rank sends over its link, for a collective with ``count`` bytes of each; on a ring.

    A sum goes round twice, a part of it at a time: 2 (n - 1) / n of the bytes. A gather goes round whole: n - 1 times.
    """
    if ranks < 2:
        return 0.0
    others_count = ranks - 1
    parts = others_count / ranks
    times = {ALL_REDUCE: 2 * parts, ALL_GATHER: others_count, REDUCE_SCATTER: parts, ALL_TO_ALL: parts, BROADCAST: 1, REDUCE: 1, SCATTER: parts, BARRIER: 0}
    return count * times[way]


def hops(way: str, ranks: int) -> int:
    """Return the number of successive messages of a collective."""
    if ranks < 2:
        return 0
    if way in (BROADCAST, REDUCE, SCATTER, BARRIER):
        return ceil(log2(ranks)) * (2 if way == BARRIER else 1)
    return (ranks - 1) * (2 if way == ALL_REDUCE else 1)


def bandwidth_of(rate: str | float) -> float:
    """Return bytes per second: ``"25Gb/s"`` are bits, ``"3GB/s"`` bytes, in thousands; a number is bytes. Raise `SchemaError` for anything else."""
    if isinstance(rate, str):
        match = _BANDWIDTH.match(rate)
        if match is not None:
            number, prefix, unit = match.groups()
            return float(number) * _THOUSANDS[prefix] / (1 if unit == "B" else 8)
    elif not isinstance(rate, bool) and 0 < rate < 1e18:
        return float(rate)
    raise SchemaError(f'a bandwidth is written as "25Gb/s" (bits) or "3GB/s" (bytes); seen {rate!r}')


def seconds_of(time: str | float) -> float:
    """Return seconds: ``"30us"``, ``"1.5ms"``; a number is seconds. Raise `SchemaError` for anything else."""
    if isinstance(time, str):
        match = _SECONDS.match(time)
        if match is not None:
            return float(match[1]) * _UNITS[match[2]]
    elif not isinstance(time, bool) and 0 <= time < 1e6:
        return float(time)
    raise SchemaError(f'a time is written as "30us" or "1.5ms"; seen {time!r}')
