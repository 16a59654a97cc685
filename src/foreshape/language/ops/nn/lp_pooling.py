"""Pooling by the p-norm of windows of images."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, ceildiv
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import F, Tensor, aten, torch
from foreshape.language.operator import AttrType, attribute, gradient, operand, result
from foreshape.language.operator.require import require
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.nn.pooling import Windows
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.window import ALGORITHMS, IMAGE_FORMATS, channels_back, channels_first, is_channels_last, with_image
from foreshape.machine.kernels.pooling import maxima, maxima_backward, sums, sums_backward


class LpWindows(Windows):
    """The base with the other name of the sizes of a window."""

    abstract = True
    examples = ("x",)
    kernel_size = attribute(AttrType.INTS, doc="height and width of a window; of the result if adaptive; unused with global_pooling")
    _size_name = "kernel_size"

    @property
    def ksize(self) -> Any:
        return self.kernel_size


class LpPool2d(LpWindows):
    """out = (sum of x^p)^(1/p) over each window of x, where p = ``norm_type``; the maximum if p is infinite.

    As in PaddlePaddle no absolute values are taken: with an odd p a negative sum gives NaN (for p = 1 the sum), and with a fractional one every negative x.
    The windows are those of pool2d; padding counts as 0. The gradient of a window of zeros is 0 if p > 1; PaddlePaddle has NaN.
    """

    type = "lp_pool2d"
    since = 3
    x = operand(FLOATING, doc="[batch, channels, height, width], or the channels last by data_format")
    out = result(doc="as x, with other image sizes")
    norm_type = attribute(AttrType.FLOAT, 2.0)
    pooling_type = attribute(AttrType.STRING, "lp", choices=("lp",))
    exclusive = attribute(AttrType.BOOLEAN, True, doc="ignored: a sum is no mean")
    ceil_mode = attribute(AttrType.BOOLEAN, False, doc="the number of windows is rounded up")
    data_format = attribute(AttrType.STRING, "NCHW", choices=IMAGE_FORMATS)
    padding_algorithm = attribute(AttrType.STRING, "EXPLICIT", choices=ALGORITHMS)

    def infer_shape(self, x: Spec) -> Spec:
        require(self.norm_type != 0.0 and self.norm_type > -float("inf"), f"norm_type must be a number other than 0, or infinite; seen {self.norm_type}")
        last = is_channels_last(self.data_format)
        channels, image = self._image(x, last, slot="x")
        return with_image(x, channels, self._counts(image, self.padding_algorithm, self.ceil_mode, 1 if last else 2, "x"), last)

    def _adapted(self, x: Tensor) -> tuple[tuple[int, int], Tensor]:
        """Return the numbers of adaptive windows, and the number of elements of each."""
        counts: tuple[int, int] = (1, 1) if self.global_pooling else self.kernel_size
        rows, columns = ([ceildiv((place + 1) * n, k) - place * n // k for place in range(k)] for n, k in zip(x.shape[2:], counts, strict=True))
        return counts, torch.tensor(rows, dtype=x.dtype, device=x.device)[:, None] * torch.tensor(columns, dtype=x.dtype, device=x.device)

    def kernel(self, x: Tensor) -> Tensor:
        last, power = is_channels_last(self.data_format), self.norm_type
        x = channels_first(x, last)
        axes = self._axes(x, self.padding_algorithm, self.ceil_mode)
        if power == float("inf"):
            out = aten.adaptive_max_pool2d(x, self._adapted(x)[0])[0] if axes is None else maxima(x, axes)
        elif axes is None:
            counts, elements = self._adapted(x)
            out = F.adaptive_avg_pool2d(x.pow(power), counts).mul_(elements).pow_(1.0 / power)
        else:
            out = sums(x.pow(power), axes).pow_(1.0 / power)
        return channels_back(out, last)

    def workspace(self, x: Spec) -> Size:
        sizes, out = self._sizes(x, is_channels_last(self.data_format), self.padding_algorithm, self.ceil_mode), self.infer_shape(x)
        return 3 * x.nbytes + 2 * sizes.filled + 3 * out.nbytes + 8 * out.elements

    def _infer_gradient(self, x: Spec, out: Spec, d_out: Spec) -> Spec:
        expected = LpPool2d.infer_shape(self, x)  # pyright: ignore[reportArgumentType]
        check_made(out=(out, expected), out_GRAD=(d_out, expected))
        return x.like()

    def _gradient_workspace(self, x: Spec, out: Spec, d_out: Spec) -> Size:
        sizes = self._sizes(x, is_channels_last(self.data_format), self.padding_algorithm, self.ceil_mode)
        return 4 * x.nbytes + 3 * sizes.filled + 4 * out.nbytes + 8 * out.elements

    @gradient("x", "out", "out@GRAD", gives="x@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, x: Tensor, out: Tensor, d_out: Tensor) -> Tensor:
        last, power = is_channels_last(self.data_format), self.norm_type
        x, out, d = (channels_first(t, last) for t in (x, out, d_out))
        axes = self._axes(x, self.padding_algorithm, self.ceil_mode)
        if power == float("inf"):
            if axes is None:
                d_x = aten.adaptive_max_pool2d_backward(d, x, aten.adaptive_max_pool2d(x, self._adapted(x)[0])[1])
            else:
                d_x = maxima_backward(x, d, axes)
        else:
            scale = out.pow(1.0 - power)
            d = (scale.masked_fill_(out == 0.0, 0.0) if power > 1.0 else scale).mul_(d)
            d_x = private.pool2d_gradient(d.mul_(self._adapted(x)[1]), x) if axes is None else sums_backward(x, d, axes)
            d_x = d_x * x.pow(power - 1.0)
        return channels_back(d_x, last)

    samples = [
        sample(x=f32(2, 3, 7, 8, low=0.2), kernel_size=[3, 2], strides=[2, 2]),
        sample(x=f32(2, 3, 7, 8), kernel_size=[3, 2], strides=[2, 1], paddings=[1, 0], norm_type=4.0),
        sample(x=f32(2, 3, 7, 8, low=0.2), kernel_size=[3, 3], strides=[2, 2], paddings=[1, 0, 0, 1], norm_type=2.5, ceil_mode=True),
        sample(x=f32(2, 3, 7, 8, distinct=True), kernel_size=[3, 2], strides=[2, 2], norm_type=float("inf")),
        sample(x=f32(2, 3, 7, 8), kernel_size=[3, 2], strides=[2, 2], norm_type=1.0),
        sample(x=f32(2, 3, 2, 7, low=0.2), kernel_size=[3, 2], strides=[3, 2]),
        sample(x=f32(2, 3, 5, 7, low=0.2), kernel_size=[2, 3], adaptive=True),
        sample(x=f32(2, 3, 5, 7, distinct=True), kernel_size=[2, 3], adaptive=True, norm_type=float("inf")),
        sample(x=f32(2, 3, 5, 7, low=0.2), kernel_size=[-1, -1], global_pooling=True),
        sample(x=f32(2, 7, 8, 3, low=0.2), kernel_size=[3, 4], padding_algorithm="SAME", strides=[2, 3], data_format="NHWC"),
        sample(x=f32(0, 3, 7, 8), kernel_size=[3, 2]),
    ]
    rejects = [
        reject(x=f32(2, 3, 1, 7), kernel_size=[2, 2], says="must fit into the padded image"),
        reject(x=f32(2, 3, 7, 7), kernel_size=[2, 2], norm_type=0.0, says="norm_type must be a number other than 0"),
        reject(x=f32(2, 3, 7, 7), kernel_size=[2], says="kernel_size must have 2 numbers"),
    ]
