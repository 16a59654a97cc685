"""Sparse rows of all ranks add up, however each rank has them. Ranks are threads here."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from foreshape.core.values.rows import Rows
from foreshape.language.ops.collective.sums import bytes_merged, bytes_shared, sum_rows
from foreshape.machine.communication.process_group import ProcessGroup

HEIGHT, WIDTH = 50, 3


class Met(ProcessGroup):
    """Of ranks that are threads: what one gives, all have."""

    given: dict[tuple[int, int], torch.Tensor]
    meeting: threading.Barrier

    def gather(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        self._messages += 1
        self.sent[what] = self.sent.get(what, 0) + tensor.numel() * tensor.element_size()
        self.given[self._messages, self.rank] = tensor
        self.meeting.wait(60)
        return torch.cat([self.given[self._messages, r] for r in range(self.ranks)])


def met(ranks: int) -> list[Met]:
    """The teams of so many ranks."""
    given: dict[tuple[int, int], torch.Tensor] = {}
    meeting, teams = threading.Barrier(ranks), [Met(r, ranks, None) for r in range(ranks)]
    for one in teams:
        one.given, one.meeting = given, meeting
    return teams


def own(kind: str, rank: int) -> Rows:
    """What a rank has."""
    made = torch.Generator().manual_seed(rank)
    count = {"few": 4, "no": 0}.get(kind, 10 + rank)
    ids = torch.randint(HEIGHT, (count,), generator=made)
    values = torch.rand((2 + rank if kind in ("bags", "no") else count, WIDTH), generator=made, dtype=torch.float64)
    return Rows.spread(ids, values, torch.arange(count) % len(values), HEIGHT) if kind in ("bags", "no") else Rows(ids, values, HEIGHT)


@pytest.mark.parametrize("kinds", [("bags",), ("bags", "bags", "bags"), ("rows", "rows"), ("bags", "rows"), ("rows", "bags", "few"),
                                   ("bags", "no"), ("no", "no"), ("no", "rows")], ids=" ".join)  # fmt: skip
def test_rows_add_up_however_a_rank_has_them(kinds: tuple[str, ...]) -> None:
    teams = met(len(kinds))
    given = [own(kind, rank) for rank, kind in enumerate(kinds)]
    want = sum(one.clone().to_dense() for one in given)
    with ThreadPoolExecutor(len(kinds)) as threads:
        found: list[Any] = list(threads.map(sum_rows, given, teams))
    for one in found:
        torch.testing.assert_close(one.to_dense(), want)
        torch.testing.assert_close(one.to_dense(), found[0].to_dense(), rtol=0, atol=0)  # every rank has the same bits
        ids, _, _ = one.merged().kept
        assert ids.tolist() == sorted(set(ids.tolist()))


@pytest.mark.parametrize(("ids", "bags"), [(40, 2), (40, 39), (400, 4)])
def test_the_shorter_way_is_sent(ids: int, bags: int) -> None:
    (team,) = met(1)
    rows = torch.arange(ids) % HEIGHT
    sum_rows(Rows.spread(rows, torch.ones(bags, WIDTH), torch.arange(ids) % bags, HEIGHT), team)
    apart, shared = bytes_merged(ids, HEIGHT, 4 * WIDTH), bytes_shared(ids, bags, 4 * WIDTH)
    assert team.sent == {"c_allreduce_sum": 16 + min(int(apart), int(shared))}
    assert (shared < apart) == (bags == 2)
