"""Kernels one after another by one call: every kind of stage, memory that is shared, sizes without a kernel, threads, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from foreshape.errors import ShapeError
from foreshape.machine.kernels import onednn_chain as kernels
from foreshape.machine.kernels.frozen import RELU, convolution, linear
from foreshape.machine.kernels.normalized_rows import NormalizedRows
from foreshape.machine.kernels.onednn_chain import Series
from foreshape.machine.kernels.onednn_library import Library, Unimplemented, library
from foreshape.machine.kernels.onednn_stages import ChainSlice, Each, Enlarged, Joined, Normalized, Paired, Pooled, Same, ShuffledChannels, mean_of_pixels
from foreshape.machine.kernels.onednn_steps import ChainKernel

pytestmark = pytest.mark.skipif(library() is None, reason="oneDNN's library is not installed for this machine")


def numbers(*dims: int) -> Any:
    return torch.randn(dims, generator=torch.Generator().manual_seed(sum(dims)))


def never(*given: Any) -> Any:
    raise AssertionError("another kernel was asked")


def one(stage: Any, count: int = 1) -> Series:
    found = library()
    assert found is not None
    return Series(found, [ChainKernel(stage, never, tuple(range(count)), None)], count)


def pooled(kind: str, window: tuple[int, ...] | None = None, strides: Any = (1, 1), before: Any = (0, 0), behind: Any = (0, 0), up: bool = False) -> Pooled:
    return Pooled(kind, window, strides, before, behind, up)


F = torch.nn.functional
X = numbers(2, 16, 9, 7)
SCALE, SHIFT = numbers(20).view(4, 5), numbers(20).view(4, 5)
STAGES: dict[str, tuple[Any, Callable[..., Any], tuple[Any, ...]]] = {
    "mean of all": (pooled("mean"), lambda x: x.mean((2, 3), keepdim=True), (X,)),
    "mean of all in rows": (mean_of_pixels(False), lambda x: x.mean((2, 3)), (X,)),
    "maximum of all": (pooled("max"), lambda x: x.amax((2, 3), keepdim=True), (X,)),
    "maxima": (pooled("max", (3, 3), (2, 2), (1, 1), (1, 1)), lambda x: F.max_pool2d(x, 3, 2, 1), (X,)),
    "maxima rounded up": (pooled("max", (2, 2), (2, 2), up=True), lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True), (X,)),
    "means": (pooled("mean", (3, 2), (2, 1), (1, 0), (1, 0)), lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0), count_include_pad=False), (X,)),
    "means with padding": (pooled("mean with padding", (3, 3), (2, 2), (1, 1), (1, 1)), lambda x: F.avg_pool2d(x, 3, 2, 1), (X,)),
    "scaled channels": (Paired("multiply"), lambda x, y: x * y, (X, numbers(2, 16, 1, 1))),
    "sum": (Paired("add"), lambda x, y: x + y, (X, numbers(2, 16, 9, 7).flip(0))),
    "sum of rows": (Paired("add"), lambda x, y: x + y, (numbers(3, 5, 8), numbers(3, 5, 8).flip(0))),
    "sum of a product": (Paired("multiply", True, (("relu", 0.0, 0.0),)), lambda x, y, z: (x * y + z).relu(), (X, numbers(2, 16, 1, 1), X.flip(1))),
    "hard swish": (Each(("hardswish", 1 / 6, 0.5)), F.hardswish, (X,)),
    "scaled and shifted": (Each(("linear", 2.0, 0.5)), lambda x: 2.0 * x + 0.5, (numbers(3, 5),)),
    "softmax": (Normalized(-1), lambda x: x.softmax(-1), (numbers(3, 4, 5),)),
    "normalized rows": (NormalizedRows(1, 1e-3, numbers(20), numbers(20)), lambda x: F.layer_norm(x, (4, 5), SCALE, SHIFT, 1e-3), (numbers(3, 4, 5),)),
    "normalized rows as they are": (NormalizedRows(2, 1e-5, None, None), lambda x: F.layer_norm(x, (5,)), (numbers(3, 4, 5),)),
    "normalized and shifted rows": (NormalizedRows(1, 0.1, None, numbers(64)), lambda x: F.layer_norm(x, (64,), None, numbers(64), 0.1), (numbers(70, 64),)),
    "enlarged": (Enlarged((2, 3)), lambda x: x.repeat_interleave(2, 2).repeat_interleave(3, 3), (X,)),
    "joined": (Joined(1), lambda x, y: torch.cat([x, y], 1), (X, numbers(2, 24, 9, 7))),
    "joined rows": (Joined(-1), lambda x, y: torch.cat([x, y], -1), (numbers(3, 4), numbers(3, 5))),
    "a part of the channels": (ChainSlice(((1, 5, 9),)), lambda x: x[:, 5:9], (X,)),
    "a part from the back": (ChainSlice(((2, -3, 2**31 - 1), (3, 1, -1))), lambda x: x[:, :, -3:, 1:-1], (X,)),
    "a part of rows": (ChainSlice(((0, 1, 2), (2, 3, 99))), lambda x: x[1:2, :, 3:], (numbers(3, 4, 5),)),
    "shuffled": (ShuffledChannels(4), lambda x: x.view(2, 4, 4, 9, 7).transpose(1, 2).reshape(x.shape), (X,)),
    "shuffled in three": (ShuffledChannels(3), lambda x: x.view(1, 3, 7, 5, 3).transpose(1, 2).reshape(x.shape), (numbers(1, 21, 5, 3),)),
    "other dims": (Same((-1, 16), True), lambda x: x.flatten(1), (numbers(2, 16, 1, 1),)),
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", STAGES)
def test_a_stage_computes_what_torch_does(name: str) -> None:
    stage, by_torch, given = STAGES[name]
    run = one(stage, len(given))
    for _ in range(2):
        torch.testing.assert_close(run(*given), by_torch(*given), rtol=1e-5, atol=1e-5)
    if given[0].dim() == 4:
        last = [x.contiguous(memory_format=torch.channels_last) for x in given]
        torch.testing.assert_close(run(*last), by_torch(*given), rtol=1e-5, atol=1e-5)
        strided = [torch.cat([x, x], 3)[..., : x.shape[3]] for x in given]
        torch.testing.assert_close(run(*strided), by_torch(*given), rtol=1e-5, atol=1e-5)


WRONG: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "images": (pooled("mean"), (numbers(3, 4),), r"images must be \[n, channels"),
    "windows": (pooled("max", (10, 3)), (numbers(2, 16, 9),), r"images must be \[n, channels"),
    "pairs": (Paired("add"), (X, numbers(2, 16, 9, 6)), "does not broadcast"),
    "ranks": (Paired("add"), (X, numbers(7)), "does not broadcast"),
    "added": (Paired("add", True), (X, X, numbers(2, 16, 9, 1)), "what is added must be"),
    "enlarged": (Enlarged((2, 2)), (numbers(3, 4),), r"images must be \[n, channels"),
    "joined": (Joined(1), (X, numbers(2, 4, 9, 6)), "must be alike"),
    "axes": (ChainSlice(((4, 0, 1),)), (X,), "has no axis 4"),
    "groups": (ShuffledChannels(5), (X,), "a multiple of 5 channels"),
    "lying": (Same((-1, 1008), True), (X,), "as it lies"),
    "elements": (Same((-1, 9), True), (numbers(2, 8),), "as it lies"),
    "scale": (NormalizedRows(1, 1e-5, numbers(7), None), (numbers(3, 8),), "8 fp32 numbers in memory"),
    "type of shift": (NormalizedRows(1, 1e-5, None, numbers(8).double()), (numbers(3, 8),), "8 fp32 numbers in memory"),
    "example": (NormalizedRows(2, 1e-5, None, None), (numbers(3, 8),), "must begin at one of the dims"),
    "type": (Each(("relu", 0.0, 0.0)), (X.double(),), "must be fp32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_before_the_library_sees_it(name: str) -> None:
    stage, given, says = WRONG[name]
    with pytest.raises(ShapeError, match=says):
        one(stage, len(given))(*given)


def squeezed() -> tuple[Series, Callable[[Any], Any]]:
    """Convolutions with a squeeze and excitation between, a sum and rows behind, whose memory is shared: two outputs."""
    found = library()
    assert found is not None
    weights = [(16, 3, 3, 3), (4, 16, 1, 1), (16, 4, 1, 1), (16, 16, 1, 1)]
    made = [convolution(numbers(*w), numbers(w[0]), (1, 1), (w[2] // 2,) * 2, (1, 1), 1, RELU) for w in weights]
    rows = linear(numbers(16, 5), numbers(5), RELU)
    steps = [
        ChainKernel(made[0], never, (0,), 0),  # 1
        ChainKernel(pooled("mean"), never, (1,), 1),
        ChainKernel(made[1], never, (2,), 2),
        ChainKernel(made[2], never, (3,), 1),  # 4
        ChainKernel(Paired("multiply"), never, (1, 4), 2),  # 5
        ChainKernel(made[3], never, (5, 1), None),  # 6
        ChainKernel(pooled("mean"), never, (6,), 0),
        ChainKernel(Same((-1, 16)), never, (7,), 0),
        ChainKernel(rows, never, (8,), None),
    ]

    def plain(x: Any) -> Any:
        y = F.conv2d(x, numbers(*weights[0]), numbers(16), padding=1).relu()
        s = F.conv2d(F.conv2d(y.mean((2, 3), keepdim=True), numbers(*weights[1]), numbers(4)).relu(), numbers(*weights[2]), numbers(16)).relu()
        z = (F.conv2d(y * s, numbers(*weights[3]), numbers(16)) + y).relu()
        return z, (z.mean((2, 3)) @ numbers(16, 5) + numbers(5)).relu()

    return Series(found, steps, 1), plain


def test_steps_share_memory_and_give_what_goes_out() -> None:
    run, plain = squeezed()
    for dims in ((1, 3, 8, 8), (2, 3, 5, 6), (1, 3, 8, 8)):
        found = [run(numbers(*dims)) for _ in range(3)]  # what goes out stays good
        for got in found:
            torch.testing.assert_close(got, list(plain(numbers(*dims))), rtol=1e-4, atol=1e-4)


def test_many_threads_at_once() -> None:
    run, plain = squeezed()
    images = [numbers(1 + k % 2, 3, 8, 5 + k % 3) for k in range(48)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(run, images))
    for x, got in zip(images, found, strict=True):
        torch.testing.assert_close(got, list(plain(x)), rtol=1e-4, atol=1e-4)


def test_sizes_without_a_kernel_and_without_elements_go_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found = library()
    assert found is not None
    asked: list[int] = []

    def otherwise(x: Any) -> Any:
        asked.append(x.numel())
        return x.relu()

    def none(*given: Any) -> Any:
        raise Unimplemented("no kernel")

    run = Series(found, [ChainKernel(Each(("relu", 0.0, 0.0)), otherwise, (at,), 0 if at < 2 else None) for at in range(3)], 1)
    torch.testing.assert_close(run(X[:0]), X[:0])
    monkeypatch.setattr(Library, "elementwise", none)
    torch.testing.assert_close(run(X), X.relu())
    assert asked == [0, 0, 0, X.numel(), X.numel(), X.numel()]


def test_more_sizes_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "sizes_kept", lambda: 2)
    run = one(Each(("relu", 0.0, 0.0)))
    for size in (1, 2, 3, 1):
        torch.testing.assert_close(run(numbers(size, 5)), numbers(size, 5).relu())
    assert len(run._lines) == 2  # pyright: ignore[reportPrivateUsage]


def test_kernels_that_are_written_for_reading_are_not_taken() -> None:
    found = library()
    assert found is not None
    found_as = found.implementation
    try:
        found.implementation = lambda description: "ref:any"
        with pytest.raises(Unimplemented, match="only ref:any"):
            Each(("relu", 0.0, 0.0)).described(found, [(20, 30)])
    finally:
        found.implementation = found_as


POOLINGS = {
    "padding behind": pooled("mean with padding", (3, 3), (2, 2), (0, 0), (1, 1)),
    "padding before": pooled("mean with padding", (3, 3), (2, 2), (1, 1), (0, 0)),
    "rounded up": pooled("mean with padding", (2, 2), (2, 2), up=True),
    "rounded up where it fits": pooled("mean with padding", (3, 3), (2, 2), up=True),
    "a far step": pooled("max", (8, 6), (2**31 - 1, 2**31 - 1), (1, 0), (0, 0)),
    "a far step, rounded up": pooled("max", (8, 6), (2**31 - 1, 2**31 - 1), (1, 0), (0, 0), True),
}


@pytest.mark.parametrize("name", POOLINGS)
def test_windows_that_reach_behind_the_padding_and_far_steps(name: str) -> None:
    """A mean with padding counts the padding that is told, and nothing behind that: what the library does not count so it is not asked for."""
    stage = POOLINGS[name]
    found = library()
    assert found is not None and stage.window is not None
    if name.endswith("rounded up"):
        with pytest.raises(Unimplemented):
            stage.described(found, [tuple(X.shape)])
        return
    top, left, bottom, right = *stage.before, *stage.behind
    padded = F.pad(X, (left, right, top, bottom), value=0.0 if stage.kind != "max" else -torch.inf)
    strides = [min(s, 99) for s in stage.strides]
    by_torch = F.max_pool2d(padded, stage.window, strides) if stage.kind == "max" else F.avg_pool2d(padded, stage.window, strides)
    torch.testing.assert_close(one(stage)(X), by_torch, rtol=1e-5, atol=1e-5)


def test_tensors_of_more_dims_than_the_library_has_go_step_by_step() -> None:
    x, found = X.reshape(2, *(1,) * 12, -1), library()
    assert found is not None
    run = Series(found, [ChainKernel(Each(("relu", 0.0, 0.0)), torch.relu, (0,), None)], 1)
    torch.testing.assert_close(run(x), x.relu())
