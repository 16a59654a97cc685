"""Frozen steps of ragged rows: what is done row by row is one call, whatever the number of rows, and takes what is planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.frozen_nets import kernels_of
from support.measured import measure, sizes_of

import foreshape as fs
from foreshape import layer
from foreshape.kernels.onednn_library import library
from foreshape.kernels.onednn_ragged import RaggedSeries
from foreshape.lowering.kernel_calls import FusedCall

__all__ = ["kernels_of"]
WIDTH = 24


def blocks(x: Any) -> Any:
    """One block of an encoder, and other functions of rows."""
    fc = lambda y, size, **more: layer.fc(y, size, flatten_last=1, **more)  # noqa: E731
    y = layer.layer_norm(x + fc(layer.sequence_attention(fc(x, WIDTH), fc(x, WIDTH), fc(x, WIDTH), heads=3), WIDTH), begin_norm_axis=1)
    y = layer.layer_norm(y + fc(fc(y, 40, activation="gelu"), WIDTH), begin_norm_axis=1)
    return [fc(layer.relu(y * 2.0 + 1.0) * y, 5), layer.sequence_pool(fc(y, 7), "mean")]


class Ragged:
    def __init__(self) -> None:
        self.main, startup, self.scope = fs.Program(), fs.Program(), fs.Scope()
        with fs.program_guard(self.main, startup):
            self.fetch = [v.name for v in blocks(layer.data("x", ["words", WIDTH], lod_level=1))]
        fs.Executor(seed=3).run(startup, scope=self.scope)
        self.executor = fs.Executor(frozen=True)

    def feed(self, *lengths: int) -> dict[str, Any]:
        rows = np.random.default_rng(sum(lengths)).standard_normal((sum(lengths), WIDTH)).astype("float32")
        return {"x": fs.LoDTensor(rows, [list(lengths)])}

    def run(self, executor: fs.Executor, feed: dict[str, Any]) -> list[Any]:
        return executor.run(self.main, feed, self.fetch, self.scope)


@pytest.mark.parametrize("lengths", [(1,), (3, 0, 4), (0, 0), (20, 12), (33,), (400, 13, 700)], ids=str)
def test_any_number_of_rows_gives_the_same(lengths: tuple[int, ...], kernels_of: None) -> None:
    net = Ragged()
    feed = net.feed(*lengths)
    for plain, found in zip(net.run(fs.Executor(), feed), net.run(net.executor, feed), strict=True):
        a, b = (np.asarray(v.data if isinstance(v, fs.LoDTensor) else v) for v in (plain, found))
        assert isinstance(plain, fs.LoDTensor) == isinstance(found, fs.LoDTensor) and a.shape == b.shape
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5 * max(1.0, np.abs(a).max(initial=0)))


def test_what_is_done_row_by_row_is_one_call() -> None:
    if library() is None:
        pytest.skip("oneDNN's library is not installed for this machine")
    net = Ragged()
    net.run(net.executor, net.feed(4, 9))
    step = net.executor.step(net.main, net.fetch)
    parts = [len(i.parts) for i in step.emitted.lowered.calls if isinstance(i, FusedCall) and i.parts]
    assert parts[0] >= 1 and sum(parts) >= 10 and len(parts) <= 2, parts
    assert len(step.emitted.lowered.calls) <= 5


@pytest.mark.parametrize("lengths", [(40, 3), (900, 100)], ids=str)
def test_a_step_takes_no_more_than_is_planned(lengths: tuple[int, ...], kernels_of: None) -> None:
    from foreshape.memory import Plan

    net = Ragged()
    feed, plan = net.feed(*lengths), Plan(net.main, net.fetch, frozen=True)
    seen = measure(net.executor, net.main, feed, net.fetch, net.scope)
    assert seen.peak <= plan.peak(**sizes_of(plan, net.executor, feed)) + 64 * 1024


def test_rows_of_other_numbers_are_refused() -> None:
    import torch

    from foreshape.kernels.onednn_chain import ChainKernel
    from foreshape.kernels.onednn_stages import Paired

    found = library()
    if found is None:
        pytest.skip("oneDNN's library is not installed for this machine")
    series = RaggedSeries(found, [ChainKernel(Paired("add"), torch.add, (0, 1), None)], 2)
    for count in (0, 1, 5, 32, 70, 3000):
        a, b = torch.randn(count, 6), torch.randn(count, 6)
        torch.testing.assert_close(series(a, b), a + b)
    with pytest.raises(fs.ShapeError, match="operands must be of 4 rows"):
        series(torch.randn(4, 6), torch.randn(3, 6))
