"""Convolutions with windows of one place: torch's numbers, by oneDNN on one thread too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from foreshape.machine.kernels import pointwise

NOTHING_ADDED = (False, (0, 0))
FORMS = {
    "two images": (2, 24, 40, 1, (1, 1), (0, 0), torch.float32),
    "one image": (1, 24, 40, 1, (1, 1), (0, 0), torch.float32),
    "one small image": (1, 3, 4, 1, (1, 1), (0, 0), torch.float32),
    "fifteen images": (15, 24, 40, 1, (1, 1), (0, 0), torch.float32),
    "sixteen images": (16, 24, 40, 1, (1, 1), (0, 0), torch.float32),
    "no image": (0, 24, 40, 1, (1, 1), (0, 0), torch.float32),
    "in groups": (2, 24, 40, 4, (1, 1), (0, 0), torch.float32),
    "each channel alone": (2, 24, 24, 24, (1, 1), (0, 0), torch.float32),
    "strided": (2, 24, 40, 1, (2, 1), (0, 0), torch.float32),
    "padded": (2, 24, 40, 1, (1, 1), (1, 2), torch.float32),
    "strided and padded": (2, 24, 40, 1, (2, 3), (2, 1), torch.float32),
    "float64": (2, 24, 40, 1, (1, 1), (0, 0), torch.float64),
}


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("form", FORMS)
def test_computes_what_torch_does(form: str, threads: int) -> None:
    images, channels, out, groups, strides, padding, dtype = FORMS[form]
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(images, channels, 30, 31, generator=generator, dtype=dtype)
    w = torch.randn(out, channels // groups, 1, 1, generator=generator, dtype=dtype)
    b = torch.randn(out, generator=generator, dtype=dtype)
    settings = (strides, padding, (1, 1))
    y = torch.conv2d(x.double(), w.double(), b.double(), *settings, groups)
    found = pointwise.convolve(x, w, b, *settings, groups)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), y, rtol=1e-4, atol=1e-4)
    d = torch.randn(y.shape, generator=generator, dtype=dtype)
    wide = [t.double() for t in (d, x, w)]
    expected = torch.ops.aten.convolution_backward(*wide, [out], *settings, *NOTHING_ADDED, groups, [True, True, True])
    gradients = pointwise.gradients(d, x, w, [out], *settings, *NOTHING_ADDED, groups, [True, True, True])
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=2e-3)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("form", ["one image", "two images", "fifteen images", "sixteen images", "padded", "strided"])
@pytest.mark.parametrize("preferred", [True, False])
def test_leaves_large_ones_to_blas_only_where_that_is_faster(form: str, threads: int, preferred: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "prefers_onednn", lambda: preferred)
    images, channels, out, groups, strides, padding, dtype = FORMS[form]
    x, w = torch.ones(images, channels, 30, 31, dtype=dtype), torch.ones(out, channels // groups, 1, 1, dtype=dtype)
    with torch.profiler.profile() as profile:
        y = pointwise.convolve(x, w, None, strides, padding, (1, 1), groups)
        pointwise.gradients(y, x, w, None, strides, padding, (1, 1), *NOTHING_ADDED, groups, [True, True, False])
    called = {event.name for event in profile.events() or []}
    blas = bool(called & {"aten::thnn_conv2d", "aten::_slow_conv2d_forward", "aten::_slow_conv2d_backward"})
    assert blas is not ("aten::mkldnn_convolution" in called), called
    assert blas is (not preferred and threads == 1 and images < 16 and strides == (1, 1)), called
