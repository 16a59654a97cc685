"""Frozen steps of ragged rows: what is done row by row is one call, whatever the number of rows, and takes what is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frozen_nets import kernels_of
from support.measured import measure, sizes_of

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering.kernel_calls import FusedCall
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.kernels.onednn_ragged import RaggedSeries

__all__ = ["kernels_of"]
WIDTH = 24


def blocks(x: Any) -> Any:
    """One block of an encoder, and other functions of rows."""
    fc = lambda y, size, **more: layer.fc(y, size, flatten_last=1, **more)  # noqa: E731
    y = layer.layer_norm(x + fc(layer.sequence_attention(fc(x, WIDTH), fc(x, WIDTH), fc(x, WIDTH), heads=3), WIDTH), begin_norm_axis=1)
    y = layer.layer_norm(y + fc(fc(y, 40, activation="gelu"), WIDTH), begin_norm_axis=1)
    return [fc(layer.relu(y * 2.0 + 1.0) * y, 5), layer.sequence_pool(fc(y, 7), "mean")]


def encoder(x: Any) -> Any:
    """Three blocks of an encoder, post-norm."""
    fc = lambda y, size, **more: layer.fc(y, size, flatten_last=1, **more)  # noqa: E731
    for scale in (0.0, 0.3, 0.0):
        x = layer.layer_norm(x + fc(layer.sequence_attention(fc(x, WIDTH), fc(x, WIDTH), fc(x, WIDTH), heads=4, scale=scale), WIDTH), begin_norm_axis=1)
        x = layer.layer_norm(x + fc(fc(x, 40, activation="gelu"), WIDTH), begin_norm_axis=1)
    return [fc(x, 5), layer.sequence_pool(x, "mean")]


class Ragged:
    def __init__(self, describe: Any = blocks) -> None:
        self.main, startup, self.scope = fs.Program(), fs.Program(), fs.Scope()
        with fs.program_guard(self.main, startup):
            self.fetch = [v.name for v in describe(layer.data("x", ["words", WIDTH], lod_level=1))]
        fs.Executor(seed=3).run(startup, scope=self.scope)
        self.executor = fs.Executor(frozen=True)

    def feed(self, *lengths: int) -> dict[str, Any]:
        rows = np.random.default_rng(sum(lengths)).standard_normal((sum(lengths), WIDTH)).astype("float32")
        return {"x": fs.LoDTensor(rows, [list(lengths)])}

    def run(self, executor: fs.Executor, feed: dict[str, Any]) -> list[Any]:
        return executor.run(self.main, feed, self.fetch, self.scope)


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize("lengths", [(1,), (3, 0, 4), (0, 0), (20, 12), (33,), (400, 13, 700)], ids=str)
def test_any_number_of_rows_gives_the_same(lengths: tuple[int, ...], kernels_of: None) -> None:
    net = Ragged()
    feed = net.feed(*lengths)
    for plain, found in zip(net.run(fs.Executor(), feed), net.run(net.executor, feed), strict=True):
        a, b = (np.asarray(v.data if isinstance(v, fs.LoDTensor) else v) for v in (plain, found))
        assert isinstance(plain, fs.LoDTensor) == isinstance(found, fs.LoDTensor) and a.shape == b.shape
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5 * max(1.0, np.abs(a).max(initial=0)))


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("lengths", [(2,), (32,), (100,), (100, 0), (0, 100), (511,), (512,), (77, 5, 200), (400, 300)], ids=str)
def test_an_encoder_gives_the_same_for_a_lone_text_and_for_several(lengths: tuple[int, ...], kernels_of: None) -> None:
    net = Ragged(encoder)
    for _ in range(2):
        feed = net.feed(*lengths)
        for plain, found in zip(net.run(fs.Executor(), feed), net.run(net.executor, feed), strict=True):
            a, b = (np.asarray(v.data if isinstance(v, fs.LoDTensor) else v) for v in (plain, found))
            np.testing.assert_allclose(b, a, rtol=5e-5, atol=5e-5 * max(1.0, np.abs(a).max(initial=0)))
        lengths = tuple(n + 1 for n in lengths)  # kernels of the one before serve again


def test_an_encoder_is_one_call() -> None:
    if library() is None:
        pytest.skip("oneDNN's library is not installed for this machine")
    net = Ragged(encoder)
    net.run(net.executor, net.feed(9))
    calls = net.executor.step(net.main, net.fetch).emitted.lowered.calls
    assert len(calls) == 2 and len([op for part in calls[0].parts for op in part if op.type == "sequence_attention"]) == 3


def test_attention_to_other_texts_is_a_call_of_its_own(kernels_of: None) -> None:
    def crossed(x: Any) -> Any:
        y = layer.data("y", ["others", WIDTH], lod_level=1)
        fc = lambda z, **more: layer.fc(z, WIDTH, flatten_last=1, **more)  # noqa: E731
        seen = layer.sequence_attention(fc(x), fc(y), fc(y), heads=2)
        return [fc(layer.sequence_attention(fc(seen), fc(seen), fc(seen), causal=True) + x)]

    net = Ragged(crossed)
    feed = {**net.feed(40), "y": fs.LoDTensor(np.random.default_rng(1).standard_normal((30, WIDTH)).astype("float32"), [[30]])}
    plain, found = (net.run(e, feed)[0].data for e in (fs.Executor(), net.executor))
    np.testing.assert_allclose(found, plain, rtol=5e-5, atol=5e-5)


def test_what_is_done_row_by_row_is_one_call() -> None:
    if library() is None:
        pytest.skip("oneDNN's library is not installed for this machine")
    net = Ragged()
    net.run(net.executor, net.feed(4, 9))
    step = net.executor.step(net.main, net.fetch)
    parts = [len(i.parts) for i in step.emitted.lowered.calls if isinstance(i, FusedCall) and i.parts]
    assert parts[0] >= 1 and sum(parts) >= 10 and len(parts) <= 2, parts
    assert len(step.emitted.lowered.calls) <= 5


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("describe", [blocks, encoder], ids=lambda f: f.__name__)
@pytest.mark.parametrize("lengths", [(40, 3), (900, 100), (500,), (300, 200)], ids=str)
def test_a_step_takes_no_more_than_is_planned(lengths: tuple[int, ...], describe: Any, kernels_of: None) -> None:
    from foreshape.compiler.memory import Plan

    net = Ragged(describe)
    feed, plan = net.feed(*lengths), Plan(net.main, net.fetch, frozen=True)
    seen = measure(net.executor, net.main, feed, net.fetch, net.scope)
    assert seen.peak <= plan.peak(**sizes_of(plan, net.executor, feed)) + 64 * 1024


def test_rows_of_other_numbers_are_refused() -> None:
    import torch

    from foreshape.machine.kernels.onednn_stages import Paired
    from foreshape.machine.kernels.onednn_steps import ChainKernel

    found = library()
    if found is None:
        pytest.skip("oneDNN's library is not installed for this machine")
    series = RaggedSeries(found, [ChainKernel(Paired("add"), torch.add, (0, 1), None)], 2)
    for count in (0, 1, 5, 32, 70, 3000):
        a, b = torch.randn(count, 6), torch.randn(count, 6)
        torch.testing.assert_close(series(a, b), a + b)
    with pytest.raises(fs.ShapeError, match="operands must be of 4 rows"):
        series(torch.randn(4, 6), torch.randn(3, 6))


@pytest.mark.parametrize("lengths", [[50], [50, 20]], ids=str)
def test_a_profile_of_an_encoder_has_each_attention(lengths: list[int], tmp_path: Path) -> None:
    if library() is None:
        pytest.skip("oneDNN's library is not installed for this machine")
    x = layer.data("x", ["words", WIDTH], lod_level=1)
    rows, _ = encoder(x)
    fs.Executor(seed=1).run(fs.default_startup_program())
    fs.save_inference_model(tmp_path / "encoder", [x], [rows])
    words = fs.LoDTensor(np.ones((sum(lengths), WIDTH), "float32"), [lengths])
    rows = [line for line in str(fs.Predictor(tmp_path / "encoder").profile({"x": words}, runs=3)).splitlines() if f"[{sum(lengths)}, {WIDTH}]" in line]
    assert sum("sequence_attention_" in line for line in rows) == 3
