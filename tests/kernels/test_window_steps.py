"""Strides and dilations of convolutions: what is settled says the same, and what torch must not be asked for is told by its windows."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from foreshape.machine.kernels import pointwise, window_steps
from foreshape.machine.kernels.window_steps import as_contiguous, is_unsound, settle, settle_transposed

FAR = 2**31 - 1


def windows(size: int, window: int, stride: int, padding: int, dilation: int) -> list[list[int]]:
    """The pixels of each window along an axis, those of the padding too."""
    count = (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    return [[at * stride - padding + k * dilation for k in range(window)] for at in range(count)]


AXES = [(n, k, s, p, d) for n, k, s, p, d in product((1, 2, 5, 8), (1, 2, 3), (1, 2, 3, 5, 65, FAR), (0, 1, 2, 6, 9), (1, 2, 3, 70, FAR)) if k == 1 or d < 9]


def test_what_is_settled_has_the_same_windows_and_no_far_step() -> None:
    for n, k, s, p, d in AXES:
        if n + 2 * p - (d * (k - 1) + 1) < 0:
            continue
        (stride,), (dilation,) = settle([n], [k], [s], [p], [d])
        assert windows(n, k, stride, p, dilation) == windows(n, k, s, p, d)
        assert stride <= max(window_steps.NEAR, n + 2 * p) and dilation <= window_steps.NEAR
        assert (stride > 1, dilation > 1) == (s > 1, d > 1), "torch chooses its kernels by whether there is one"
        pixels = [x for window in windows(n, k, stride, p, dilation) for x in window if 0 <= x < n]
        one = len(windows(n, k, stride, p, dilation)) == 1
        for channels in (1, 2):
            assert is_unsound(channels, [9, n], [1, k], [2, stride], [0, p], [1, dilation]) == (stride > 1 and (not pixels or (channels == 1 and one)))


def test_a_transposed_convolution_is_settled_by_its_pixels_and_what_is_put_behind() -> None:
    assert settle_transposed([1, 2], [1, 3], [FAR, 3], [0, 2], [FAR, 1]) == ([2, 3], [2, 1])
    assert settle_transposed([1, 1], [1, 1], [FAR, 65], [5, 1], [1, 70]) == ([6, 2], [1, 2])
    assert settle_transposed([1, 1], [3, 3], [2, 2], [1, 1], [1, 1]) == ([2, 2], [1, 1])


LYING = {"rows": torch.ones(2, 3, 4, 5), "last": torch.ones(2, 4, 5, 3).movedim(-1, 1), "one channel": torch.ones(2, 4, 5, 1).movedim(-1, 1)}


@pytest.mark.parametrize("x", LYING.values(), ids=LYING)
def test_images_in_rows_have_their_channels_outermost(x: torch.Tensor) -> None:
    found = as_contiguous(x)
    assert found.stride() == torch.empty(x.shape).stride() and (found.data_ptr() == x.data_ptr()) == x.is_contiguous()


def test_images_that_torch_must_not_be_given_as_they_lie_are_given_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, brought = torch.randn(3, 4, 2, 6).movedim(-1, 1), torch.randn(6, 3, 1, 1), list[tuple[int, ...]]()
    monkeypatch.setattr(pointwise, "as_contiguous", lambda t: (brought.append(tuple(t.shape)), as_contiguous(t))[1])
    for strides, padding in (((3, 3), (0, 1)), ((3, 1), (0, 1)), ((3, 3), (0, 0))):
        wanted = torch.conv2d(x.double(), w.double(), None, strides, padding, (1, 1), 2)
        torch.testing.assert_close(pointwise.convolve(x, w, None, strides, padding, (1, 1), 2).double(), wanted, rtol=1e-5, atol=1e-5)
    assert brought == [(3, 6, 4, 2), (6, 3, 1, 1)], "windows of which all lie beside the images, and those alone"


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("last", [False, True])
def test_far_steps_along_axes_of_one_window_and_of_one_pixel(axes: int, last: bool) -> None:
    """Gradients and transposed convolutions by such steps crash in torch, whatever lies innermost."""
    images, plain = torch.randn(2, 4, 1, *(5,) * (axes - 1)), [1] * axes
    x = images.movedim(1, -1).contiguous().movedim(-1, 1) if last else images
    w, far, nothing = torch.randn(6, 4, *(1,) * axes), [FAR, *plain[1:]], [0] * axes
    given = (far, nothing, [FAR] * axes, False, nothing, 1, [True, True, False])
    y = pointwise.convolve(x, w, None, far, nothing, [FAR] * axes, 1)
    torch.testing.assert_close(y, _by_product(w, images), rtol=1e-4, atol=1e-4)
    d_x, d_w, _ = pointwise.gradients(torch.ones_like(y), x, w, None, *given)
    torch.testing.assert_close(d_x, w.sum(0).flatten().view(1, 4, *plain).expand(x.shape), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(d_w, images.sum((0, *range(2, 2 + axes))).view(1, 4, *plain).expand(w.shape), rtol=1e-4, atol=1e-4)
    back = pointwise.transpose(x, w.transpose(0, 1).contiguous(), None, far, nothing, nothing, 1, [FAR] * axes)
    torch.testing.assert_close(back, _by_product(w, images), rtol=1e-4, atol=1e-4)
    d_x, d_w, _ = pointwise.gradients(torch.ones_like(back), x, w.transpose(0, 1).contiguous(), None, far, nothing, [FAR] * axes, True, nothing, 1, given[-1])
    torch.testing.assert_close(d_x, w.sum(0).flatten().view(1, 4, *plain).expand(x.shape), rtol=1e-4, atol=1e-4)


def _by_product(w: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """What windows of one pixel compute."""
    return torch.einsum("oc,nc...->no...", w.flatten(1), images)
