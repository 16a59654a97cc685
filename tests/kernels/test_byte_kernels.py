"""Kernels of bytes: rounding to a grid, and series whose convolutions and products read and write bytes, beside the same in fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.live_tensors import live_bytes

from foreshape.machine.kernels.dynamic_products import DynamicRows
from foreshape.machine.kernels.frozen import NOTHING, RELU, Following, convolution, linear, transposed_convolution
from foreshape.machine.kernels.onednn_bytes import Grid, Rounded
from foreshape.machine.kernels.onednn_chain import Series
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.kernels.onednn_packed_bytes import ByteWeight
from foreshape.machine.kernels.onednn_stages import Each, Pooled
from foreshape.machine.kernels.onednn_steps import ChainKernel

needs_library = pytest.mark.skipif(library() is None, reason="oneDNN's own library is not installed")
SIGNED, UNSIGNED = (0, -128, 127), (77, 0, 255)


@given(
    numbers=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20), step=st.floats(0.0078125, 4.0, width=32), of=st.sampled_from([SIGNED, UNSIGNED])
)
def test_numbers_go_to_the_nearest_step_and_stay_in_range(numbers: list[float], step: float, of: tuple[int, int, int]) -> None:
    """Halves of exact steps go to the even one, and numbers beyond the range to its end."""
    zero, low, high = of
    halves = [step * (k + 0.5) for k in (-3, -2, -1, 0, 1, 2, 3)] if np.log2(step) % 1 == 0 else []
    x = np.array([*numbers, *halves], "float32")
    got = Rounded(Grid(step, *of))(torch.from_numpy(x)).numpy()
    whole = np.rint(x.astype("float64") / step)
    want = (np.clip(whole + zero, low, high) - zero) * step
    near = np.abs(x.astype("float64") / step - np.floor(x.astype("float64") / step) - 0.5) < 1e-3  # a rounded quotient may pass a half
    assert np.all(np.abs(got - want) <= np.where(near, step, 0.0) * 1.001 + 1e-4 * np.abs(want))
    if halves:
        np.testing.assert_array_equal(got[len(numbers) :], want[len(numbers) :].astype("float32"))


def series(kernel: Any, last: Grid, reads: Grid, adds: Grid | None, pooled: bool) -> Series:
    """Return a kernel on rounded numbers with a rounded result, as fp32 at the end."""
    found = library()
    assert found is not None
    count = 1 if adds is None else 2
    steps = [ChainKernel(Rounded(reads), Rounded(reads), (0,), 0)]
    if adds is not None:
        steps.append(ChainKernel(Rounded(adds), Rounded(adds), (1,), 1))
    sources = (count,) if adds is None else (count, count + 1)
    steps.append(ChainKernel(kernel, kernel if adds is None else kernel.add, sources, 2, Rounded(last)))
    at = count + len(steps) - 1
    if pooled:
        steps.append(ChainKernel(Pooled("max", (2, 2), (2, 2), (0, 0), (0, 0), False), lambda x: torch.max_pool2d(x, 2), (at,), 3, Rounded(last)))
        at += 1
    steps.append(ChainKernel(Each(("linear", 1.0, 0.0)), lambda x: x.clone(), (at,), None))
    return Series(found, steps, count)


def compared(of: Series, last: Grid, *given: Any) -> None:
    want = of.otherwise(given)
    got = of(*given)
    assert got.shape == want.shape
    off = (got - want).abs()
    assert off.max() <= last.step * 1.01
    assert (off > last.step / 2).sum() <= max(1, 0.01 * off.numel())  # a sum half-way between two numbers may be rounded either way


def weight(*dims: int, axis: int) -> ByteWeight:
    return ByteWeight(torch.randint(-127, 128, dims, dtype=torch.int8), torch.rand(dims[axis]) * 0.01 + 0.001)


@needs_library
@settings(deadline=None, max_examples=25)
@given(
    groups=st.sampled_from([1, 2, 16]), window=st.sampled_from([1, 3]), stride=st.sampled_from([1, 2]), adds=st.booleans(),
    of=st.sampled_from([SIGNED, UNSIGNED]),
    following=st.sampled_from([NOTHING, RELU, Following("hardswish"), Following("leaky_relu", (0.1,))]), bias=st.booleans(), columns=st.booleans(),
)  # fmt: skip
def test_convolutions_of_bytes(groups: int, window: int, stride: int, adds: bool, of: Any, following: Following, bias: bool, columns: bool) -> None:
    torch.manual_seed(0)
    wide = 1 if columns else window
    given = weight(16, 16 // groups, window, wide, axis=0)
    pads = (window // 2, wide // 2)
    kernel = convolution(given, torch.randn(16) if bias else None, (stride, 1 if columns else stride), pads, (1, 1), groups, following, columns)
    x = torch.randn(2, 16, 8, 1 if columns else 8).contiguous(memory_format=torch.channels_last)
    out = kernel(x)
    last = Grid(float(out.abs().max()) / (60 if of is UNSIGNED else 127), *of)
    second = Grid(0.03, *of)
    made = series(kernel, last, Grid(0.02, *of), second if adds else None, pooled=not columns)
    compared(made, last, x, *([torch.randn_like(out)] if adds else []))


@needs_library
@settings(deadline=None, max_examples=15)
@given(rows=st.integers(1, 5), k=st.integers(1, 40), n=st.integers(1, 40), adds=st.booleans(), of=st.sampled_from([SIGNED, UNSIGNED]), bias=st.booleans())
def test_products_of_bytes(rows: int, k: int, n: int, adds: bool, of: Any, bias: bool) -> None:
    torch.manual_seed(0)
    given = weight(k, n, axis=1)
    kernel = linear(given, torch.randn(n) if bias else None, RELU)
    x = torch.randn(3, rows, k)
    out = kernel(x)
    last = Grid(float(out.abs().max()) / 60 + 0.01, *of)
    compared(series(kernel, last, Grid(0.02, *of), Grid(0.03, *of) if adds else None, False), last, x, *([torch.randn_like(out)] if adds else []))


@needs_library
@pytest.mark.parametrize("of", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
def test_transposed_windows_side_by_side_among_bytes(of: Any) -> None:
    kernel = transposed_convolution(torch.randn(6, 2, 2, 2), torch.randn(2), (2, 2), (0, 0), (0, 0), (1, 1), RELU)
    x = torch.randn(2, 6, 5, 4).contiguous(memory_format=torch.channels_last)
    out = kernel(x)
    last = Grid(float(out.abs().max()) / (60 if of is UNSIGNED else 127), *of)
    made = series(kernel, last, Grid(0.02, *of), None, pooled=True)
    compared(made, last, x)
    assert not any(t.kernel.startswith("ref") for t in made.clocked(x)[1])


@needs_library
def test_convolutions_read_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a convolution has bytes where the processor multiplies them, and its results are the same without."""
    given = weight(16, 16, 3, 3, axis=0)
    found = library()
    assert found is not None
    x = torch.randn(1, 16, 9, 9).contiguous(memory_format=torch.channels_last)
    kernel = convolution(given, None, (1, 1), (1, 1), (1, 1), 1, RELU)
    last = Grid(0.05)
    usual = series(kernel, last, Grid(0.02), None, False)
    counts = [len(usual.clocked(x)[1])]
    monkeypatch.setattr(type(found), "multiplies_bytes", property(lambda _: False))
    plain = series(kernel, last, Grid(0.02), None, False)
    counts.append(len(plain.clocked(x)[1]))
    assert (usual(x) - plain(x)).abs().max() <= last.step * 1.01
    monkeypatch.undo()
    assert counts[1] == 6  # bytes to numbers before the convolution, and back
    assert counts[0] == (4 if found.multiplies_bytes else 6)


@needs_library
@settings(deadline=None, max_examples=25)
@given(rows=st.integers(1, 70), k=st.integers(1, 40), n=st.integers(1, 30), adds=st.booleans(), bias=st.booleans(), factor=st.booleans(), gelu=st.booleans())
def test_rows_in_steps_of_their_own(rows: int, k: int, n: int, adds: bool, bias: bool, factor: bool, gelu: bool) -> None:
    """Products of bytes give the numbers of those in fp32, and NaN for a row that is not finite; where the processor has none, by the library's slow kernel."""
    torch.manual_seed(0)
    found = library()
    assert found is not None
    given = ByteWeight(torch.randint(-63, 64, (k, n), dtype=torch.int8), torch.rand(n) * 0.01 + 0.001)  # sums without VNNI are exact up to this
    settings_of = (given, torch.randn(n) if bias else None, Following("gelu", form="none") if gelu else NOTHING)
    factors = torch.rand(k) + 0.5 if factor else None
    with pytest.MonkeyPatch.context() as patched:
        kernels: list[DynamicRows] = []
        for multiplies in (True, False):
            patched.setattr(type(found), "multiplies_bytes", property(lambda _, of=multiplies: of))
            kernels.append(DynamicRows(*settings_of, factors, ragged=True))
        patched.setattr(type(found), "quick", lambda _, description, dims=None: description)
        x = torch.randn(rows, k) * 10.0 ** torch.randint(-3, 3, (rows, 1))
        x[rows // 2, k // 2] = float("inf")
        operands = (x, torch.randn(rows, n)) if adds else (x,)
        of_bytes, plain = ((kernel.add(*operands) if adds else kernel(x)) for kernel in kernels)
    assert of_bytes[rows // 2].isnan().all() and plain[rows // 2].isnan().all()
    others = [row for row in range(rows) if row != rows // 2]
    size = plain[others].abs().amax() if others else torch.tensor(0.0)
    assert torch.allclose(of_bytes[others], plain[others], rtol=1e-4, atol=float(2e-6 * size))


@needs_library
def test_a_weight_of_bytes_is_held_once() -> None:
    """It was there as fp32 numbers, as bytes, and as packed bytes."""
    found = library()
    assert found is not None
    if not found.multiplies_bytes:
        pytest.skip("the processor multiplies no bytes")
    grid, size = Grid(0.02), 512
    before = live_bytes()
    given = weight(size, size, axis=1)
    numbers = given.numbers(1)
    kernel = linear(given, None, NOTHING)
    made = series(kernel, Grid(0.05), grid, None, False)
    del given
    x = torch.randn(3, 2, size)
    want = grid_rounded(x, grid) @ numbers
    del numbers
    for rows in (2, 1, 2):
        _ = made(x[:, :rows])
    held = live_bytes() - before
    assert size * size <= held < 1.5 * size * size
    rounded = grid_rounded(x, grid)
    assert torch.allclose(kernel(rounded), want, rtol=1e-4, atol=1e-4)  # of fp32 rows: the numbers are made of the packed bytes


def grid_rounded(x: Any, grid: Grid) -> Any:
    return (x / grid.step).round().clamp(-128, 127) * grid.step
