"""Convolutions of images ``[images, channels, height, width]`` with filters, with a bias in one kernel, and their gradients in one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from foreshape.core.dims import Size
from foreshape.core.spec import Spec
from foreshape.core.values.torch_proxy import Lazy, aten, torch
from foreshape.machine.kernels import onednn, pointwise
from foreshape.machine.kernels.call_record import NamedConstant, X, Y, Z, call
from foreshape.machine.kernels.fused import Effects, FusedKernel, Sizes, Work
from foreshape.machine.kernels.window_steps import behind, copy_bytes

_MANY = 5
"""The least places along a row of a filter for a kind of its own."""
_STRIDED = 2
"""The factor of places in images over places in results from which on a convolution counts as strided."""


class ConvolutionCalls:
    """A convolution of images ``x`` with filters ``w`` to ``y``, given as specs.

    Args:
        by_window: settle its strides and dilations as torch needs; see `foreshape.machine.kernels.pointwise`.
    """

    __slots__ = ("by_window", "dilations", "groups", "paddings", "strides", "w", "x", "y")

    def __init__(
        self, x: Spec, w: Spec, y: Spec, strides: Sequence[int], paddings: Sequence[int], dilations: Sequence[int], groups: int, by_window: bool
    ) -> None:
        self.x, self.w, self.y, self.groups = x, w, y, groups
        self.strides, self.paddings, self.dilations = list(strides), list(paddings), list(dilations)
        self.by_window = by_window or tuple(w.known_dims[2:]) == (1, 1)

    def forward(self, bias: bool) -> FusedKernel:
        """Return the convolution, with a bias as the third operand."""
        conv = pointwise.convolve if self.by_window else Lazy(lambda: torch.conv2d)
        record = call(NamedConstant("conv", conv), X, Y, Z if bias else None, self.strides, self.paddings, self.dilations, self.groups)
        rules = lambda: self._workspace(None, False), lambda: self._workspace(None, True)
        return FusedKernel("product conv", record, None, Effects(contiguous=(0,)), *rules, work=_forward_work)

    def gradients(self, requested: Sequence[bool], channels: int | None) -> FusedKernel:
        """Return the gradients of images, filters and bias, of the operands x, w and d, each where it is requested.

        Args:
            channels: of the bias; None where its gradient is not requested.
        """
        back = pointwise.gradients if self.by_window else Lazy(lambda: aten.convolution_backward)
        sizes = None if channels is None else [channels]
        settings = (self.strides, self.paddings, self.dilations, False, [0, 0], self.groups, list(requested))
        record = call(NamedConstant("back", back), Z, X, Y, sizes, *settings)
        work = _filter_gradient_work if not requested[0] else _gradient_work
        rules = lambda: self._workspace(requested, False), lambda: self._workspace(requested, True)
        return FusedKernel("{op} back", record, None, Effects(contiguous=(0, 2)), *rules, work=work)

    def _workspace(self, requested: Sequence[bool] | None, innermost: bool) -> Size:
        """Return the bytes of its workspace, with its channels innermost or not; with ``requested``, its gradients' workspace."""
        if self.y.dtype is None:
            return 0
        x, w, y = self.x.known_dims, self.w.known_dims, self.y.known_dims
        given = (self.y.dtype.itemsize, self.groups, self.strides, self.dilations)
        more = behind(x[2:], w[2:], self.strides, self.paddings, self.dilations)
        copied, x = copy_bytes(x, more, self.y.dtype.itemsize), (*x[:2], *(n + m for n, m in zip(x[2:], more, strict=True)))
        if requested is None:
            return copied + (onednn.innermost_convolution if innermost else onednn.convolution)(x, w, y, *given)
        return 2 * copied + (onednn.innermost_convolution_backward if innermost else onednn.convolution_backward)(x, w, y, *given, requested)


def _forward_work(operands: Sizes, results: Sizes) -> Work | None:
    return _work(operands[0], operands[1], results[0], 1)


def _gradient_work(operands: Sizes, results: Sizes) -> Work | None:
    return _work(operands[0], operands[1], operands[2], 2)


def _filter_gradient_work(operands: Sizes, results: Sizes) -> Work | None:
    work = _work(operands[0], operands[1], operands[2], 2)
    return None if work is None else work._replace(kind=f"{work.kind} of the filter")


def _work(x: tuple[float, ...] | None, w: tuple[float, ...] | None, y: tuple[float, ...] | None, times: int) -> Work | None:
    """Return the work as of a product: images, places of each, the width summed over for a place, and channels out. Windows and strides are a kind."""
    if x is None or w is None or y is None or len(y) != 4:
        return None
    window = int(max(w[2:], default=1))
    kind = "1" if window == 1 else "some" if window < _MANY else "many"
    if window < _MANY and x[2] * x[3] > _STRIDED * y[2] * y[3]:
        kind += " strided"
    coordinates = (y[0], y[2] * y[3], prod(w[1:]), w[0])
    return Work(coordinates, prod(coordinates) * times, kind)
