"""Rows of a table with their ids: merged, added, put where they belong, and freed at once."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from foreshape.core.values import rows as rows_module
from foreshape.core.values.rows import Rows, put_rows


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("of", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("row", [(), (3,), (2, 4), (0,)])
@pytest.mark.parametrize("spread", [False, True])
def test_merging_is_summing_by_id(of: torch.dtype, row: tuple[int, ...], spread: bool) -> None:
    rng = np.random.RandomState(1)
    for count, high in ((0, 5), (1, 5), (40, 7), (40, 2**60)):
        ids = torch.from_numpy(rng.randint(0, high, count))
        values = torch.from_numpy(rng.randint(-9, 9, (6, *row))).to(of)
        which = torch.from_numpy(rng.randint(0, 6, count))
        rows = Rows.spread(ids, values, which, high) if spread else Rows(ids, values[which], high)
        merged = rows.merged()
        assert merged.rows.tolist() == sorted(set(ids.tolist())) and merged.merged() is merged is rows.merged()
        for at, i in enumerate(merged.rows):
            assert torch.equal(merged.values[at], values[which][ids == i].sum(0).to(of))
        half = rows.scaled(2)
        assert torch.equal(half.merged().values, merged.values * 2) and torch.equal(rows.values, values[which])


def test_adding_many_spread_rows_is_done_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CHUNK", 7)
    rng = np.random.RandomState(1)
    ids, which = torch.from_numpy(rng.randint(0, 9, 30)), torch.from_numpy(rng.randint(0, 4, 30))
    values = torch.from_numpy(rng.standard_normal((4, 3)))
    table = torch.zeros(9, 3, dtype=torch.float64)
    Rows.spread(ids, values, which, 9).add_to(table, -0.5)
    torch.testing.assert_close(table, torch.zeros_like(table).index_add_(0, ids, values[which], alpha=-0.5))
    both = Rows.joined([Rows.spread(ids, values, which, 9), Rows(ids[:2], values[:2], 9)])
    torch.testing.assert_close(both.to_dense(), -2 * table + Rows(ids[:2], values[:2], 9).to_dense())


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("of", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
def test_rows_are_put_where_they_belong(of: torch.dtype, width: int) -> None:
    whole = torch.arange(10 * width).reshape(10, width).to(of)
    for table in (whole.clone(), whole.t().contiguous().t(), torch.cat([whole[:1], whole])[1:]):
        put_rows(table, torch.tensor([7, 2]), torch.full((2, width), 3.0, dtype=of))
        want = whole.clone()
        want[[7, 2]] = 3.0
        assert torch.equal(table, want)
        put_rows(table, torch.tensor([], dtype=torch.int64), torch.zeros(0, width, dtype=of))
        assert torch.equal(table, want)


def test_merged_rows_are_freed_at_once_and_not_when_garbage_is_collected() -> None:
    gc.disable()
    try:
        merged = Rows(torch.tensor([3, 1, 3]), torch.ones(3, 2), 5).merged()
        assert merged.merged() is merged
        alive = [weakref.ref(t) for t in (merged.rows, merged.values)]
        del merged
        assert [a() for a in alive] == [None, None]
    finally:
        gc.enable()
