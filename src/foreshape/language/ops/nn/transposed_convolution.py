"""Transposed convolutions of images and volumes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from foreshape.core.dims import Size, maximum, no_less, product
from foreshape.core.spec import FLOATING, INDEX, Spec
from foreshape.core.values.torch_proxy import F, Tensor
from foreshape.language.operator import AttrType, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_divides, require_equal, unknown_size
from foreshape.language.operator.samples import f32, i32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.nn.convolution import Windowed
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.known_values import known_sizes, sizes_at_run
from foreshape.language.ops.rules.window import (
    IMAGE_FORMATS,
    channels_back,
    channels_first,
    channels_first_dims,
    check_count,
    image_of,
    is_channels_last,
    with_image,
)
from foreshape.machine.kernels import onednn, pointwise


class TransposedConvolution(Windowed):
    """The base of the convolutions from smaller to larger images."""

    abstract = True
    examples = ("Input",)
    Bias = operand(FLOATING, optional=True, same_type_as="Input", doc="[out]")
    OutputSizes = operand(INDEX, many=True, optional=True, attribute="output_size", doc="output_size, as tensors of one number each")
    Output = result(doc="[batch, out, *image], in the format of Input")
    output_padding = attribute(AttrType.INTS, [], low=0)
    output_size = attribute(AttrType.INTS, [], low=1)

    def infer_shape(self, Input: Spec, Filter: Spec, Bias: Spec | None, OutputSizes: tuple[Spec, ...]) -> Spec:
        channels, image, window = self._checked(Input, Filter)
        last = is_channels_last(self.data_format)
        require_equal(channels, Filter.known_dims[0], "the channels of Input must equal dim 0 of Filter", Input=3 if last else 1, Filter=0)
        require_divides(self.groups, channels, f"groups = {self.groups} must divide the channels of Input", Input=3 if last else 1)
        out = Filter.known_dims[1] * self.groups
        if Bias is not None:
            require(Bias.rank == 1, f"Bias must have 1 dim, not {Bias.rank}", Bias=None)
            require_equal(Bias.known_dims[0], out, "Bias must have one number for each channel of Output", Bias=0)
        return with_image(Input, out, self._sizes(image, window, self._requested_sizes(OutputSizes)), last)

    def _requested_sizes(self, OutputSizes: tuple[Spec, ...]) -> tuple[Size | None, ...]:
        """Return output_size for each axis, None for sizes known at run time only; nothing if it is not given."""
        return known_sizes(self.output_size, None, OutputSizes, "output_size", "OutputSizes")

    def work(self, Input: Spec, Filter: Spec, Bias: Spec | None, OutputSizes: tuple[Spec, ...]) -> Size:
        return Input.elements * product(Filter.known_dims[1:])

    def computes(self) -> computations.ImageTransposedConvolution | None:
        of_images = self._axes == 2 and not is_channels_last(self.data_format)
        if not of_images or self.padding_algorithm != "EXPLICIT" or len(self.paddings) not in (2, 4) or self.output_size:
            return None
        pads = self._pads((0, 0), (0, 0))
        if any(front != back for front, back in pads):
            return None
        output_padding = self.output_padding or (0, 0)
        return computations.ImageTransposedConvolution(self.strides, tuple([front for front, _ in pads]), output_padding, self.dilations, self.groups)

    def _sizes(self, image: Sequence[Size], window: Sequence[Size], requested: Sequence[Size | None]) -> list[Any]:
        for name, numbers in (("output_size", requested), ("output_padding", self.output_padding)):
            if numbers:
                check_count(numbers, self._axes, name)
        dilations, pads = self._dilations(), self._pads(image, window)
        sizes: list[Size] = []
        for axis, (size, k) in enumerate(zip(image, window, strict=True)):
            stride = self.strides[axis]
            base = (size - 1) * stride - pads[axis][0] - pads[axis][1] + dilations[axis] * (k - 1) + 1
            if requested:
                target = requested[axis]
                if target is not None:
                    require_at_most(base, target, f"output_size must be at least {base}, which the windows cover; seen {target}", Input=axis + 2)
                    least = f"{base} and one stride, {base + stride}"
                    require_at_most(target, base + stride - 1, f"output_size must be less than {least}; seen {target}", Input=axis + 2)
                base = unknown_size(str(axis + 2)) if target is None else target
            elif self.output_padding:
                extra = self.output_padding[axis]
                require(extra < max(stride, dilations[axis]), f"output_padding must be less than the stride or the dilation; seen {extra}")
                base = base + extra
            require_at_most(1, base, "nothing is left of the images after the paddings are taken off", Input=axis + 2)
            sizes.append(base)
        return sizes

    def _plain(self, image: Sequence[Any], window: Sequence[Any], sizes: Sequence[Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:
        """Return the cuts (negative: padding) at both ends of torch's result without padding to get these sizes, and the uncut sizes."""
        dilations, pads = self._dilations(), self._pads(image, window)
        full = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(image, self.strides, dilations, window, strict=True)]
        return [(front, f - front - size) for (front, _), f, size in zip(pads, full, sizes, strict=True)], full

    @lru_cache(1024)  # noqa: B019  the same in each step; operators of one kind are one instance
    def _cut(self, image: tuple[int, ...], window: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[list[tuple[int, int]], tuple[list[int], list[int]] | None]:
        """Return the cuts of `_plain`, and those of torch's own."""
        cut, _ = self._plain(image, window, sizes)
        return cut, self._native(cut)

    @lru_cache(1024)  # noqa: B019  the same in each step; operators of one kind are one instance
    def _sizes_at_run(self, image: tuple[int, ...], window: tuple[int, ...], requested: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._sizes(image, window, requested))

    def _native(self, cut: Sequence[tuple[Any, Any]]) -> tuple[list[int], list[int]] | None:
        """Return the padding and output padding for torch's own cut, if it can: it cuts both ends alike."""
        extra = [front - back for front, back in cut]
        if not all(isinstance(m, int) for m in extra):
            return None
        limits = [max(s, d) for s, d in zip(self.strides, self._dilations(), strict=True)]
        return ([front for front, _ in cut], extra) if all(0 <= m < limit for m, limit in zip(extra, limits, strict=True)) else None

    def workspace(self, Input: Spec, Filter: Spec, Bias: Spec | None, OutputSizes: tuple[Spec, ...], *, strided: frozenset[str]) -> Size:
        out = self.infer_shape(Input, Filter, Bias, OutputSizes)
        return self._workspace_in_rows(Input, Filter, out, None, Bias is not None) + copies(strided, Input=Input, Filter=Filter)

    def _workspace_in_rows(self, Input: Spec, Filter: Spec, out: Spec, requested: Sequence[bool] | None, bias: bool = False) -> Size:
        """Return the bytes for contiguous operands; with ``requested``, the bytes of its gradients: a convolution the other way."""
        last, w, size = is_channels_last(self.data_format), Filter.known_dims, Input.known_dtype.itemsize
        x, y = channels_first_dims(Input, last), channels_first_dims(out, last)
        dilations = self._dilations()
        pads, full = self._plain(x[2:], w[2:], y[2:])
        full_dims, cut = y, Input.nbytes + 2 * out.nbytes if last else 0
        if self._native(pads) is None:
            full_dims = (*y[:2], *(no_less(f, n) for f, n in zip(full, y[2:], strict=True)))
            cut = cut + 2 * product(full_dims) * size
        settings = size, self.groups, self.strides, dilations
        if requested is None:
            return onednn.convolution_transpose(x, w, full_dims, *settings, bias) + cut
        back = (onednn.convolution(full_dims, w, x, *settings), onednn.convolution_backward(full_dims, w, x, *settings, (False, True, False)))
        copied = 0 if self._axes == 2 and not last and self._native(pads) is not None else Filter.nbytes + Input.nbytes
        return maximum(*back) + cut + copied

    def kernel(self, Input: Tensor, Filter: Tensor, Bias: Tensor | None, OutputSizes: Sequence[Tensor]) -> Tensor:
        last = is_channels_last(self.data_format)
        x = channels_first(Input, last)
        image, window = x.shape[2:], Filter.shape[2:]
        cut, native = self._cut(image, window, self._sizes_at_run(image, window, tuple(sizes_at_run(self.output_size, None, OutputSizes))))
        if native is not None:
            out = pointwise.transpose(x, Filter, Bias, self.strides, native[0], native[1], self.groups, self._dilations())
        else:
            nothing = (0,) * self._axes
            out = pointwise.transpose(x, Filter, None, self.strides, nothing, nothing, self.groups, self._dilations())
            out = F.pad(out, [-c for pair in reversed(cut) for c in pair])
            if Bias is not None:
                out += Bias.view(-1, *[1] * self._axes)
        return channels_back(out, last)

    def _infer_gradient(self, Input: Spec, Filter: Spec, Bias: Spec | None, OutputSizes: tuple[Spec, ...], d_out: Spec) -> Any:
        if None in self._requested_sizes(OutputSizes):  # known at run time only: the gradient keeps its image
            _, image, window = self._checked(Input, Filter)
            last = is_channels_last(self.data_format)
            output_image = image_of(d_out, self._axes + 2, last, "Output@GRAD")[2]
            expected = with_image(Input, Filter.known_dims[1] * self.groups, self._sizes(image, window, output_image), last)
        else:
            expected = TransposedConvolution.infer_shape(self, Input, Filter, Bias, OutputSizes)
        check_made(Output_GRAD=(d_out, expected))
        return Input.like(), Filter.like(), None if Bias is None else Bias.like()

    def _gradient_workspace(
        self, Input: Spec, Filter: Spec, Bias: Spec | None, OutputSizes: tuple[Spec, ...], d_out: Spec, *, requested: tuple[bool, ...], strided: Collection[str]
    ) -> Size:
        return self._workspace_in_rows(Input, Filter, d_out, requested) + copies(strided, Input=Input, Filter=Filter, Output_GRAD=d_out)

    @gradient(
        "Input", "Filter", "Bias", "OutputSizes", "Output@GRAD", gives=("Input@GRAD", "Filter@GRAD", "Bias@GRAD"), infer=_infer_gradient,
        workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(self, Input: Tensor, Filter: Tensor, Bias: Tensor | None, OutputSizes: Sequence[Tensor], d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        last = is_channels_last(self.data_format)
        x, d = channels_first(Input, last), channels_first(d_out, last)
        cut, native = self._cut(x.shape[2:], Filter.shape[2:], d.shape[2:])
        d_bias = d.sum((0, *range(2, 2 + self._axes))) if requested[2] else None
        padding, extra = native or ((0,) * self._axes, (0,) * self._axes)
        if native is None:
            d = F.pad(d, [c for pair in reversed(cut) for c in pair])
        d_x, d_filter, _ = pointwise.gradients(
            d, x, Filter, None, self.strides, padding, self._dilations(), True, extra, self.groups, [requested[0], requested[1], False]
        )
        if last and d_filter is not None:
            d_filter = d_filter.contiguous()
        return None if d_x is None else channels_back(d_x, last), d_filter, d_bias


class Conv2dTranspose(TransposedConvolution):
    """Output = the images in Input spread by Filter: the gradient of a conv2d with respect to its input.

    An axis of size n becomes ``(n - 1) * stride - pads + dilation * (window - 1) + 1`` long, plus ``output_padding``; or exactly ``output_size``, less than one
    stride above it.
    """

    type = "conv2d_transpose"
    multiplies = True

    samples = [
        sample(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 2), Bias=f32(6)),
        sample(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 4), strides=[2, 3], paddings=[1, 2]),
        sample(Input=f32(2, 4, 5, 3), Filter=f32(4, 3, 3, 2), groups=2, strides=[2, 2], output_padding=[1, 1]),
        sample(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 3), strides=[3, 2], paddings=[1, 1], output_size=[12, 10]),
        sample(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 3), strides=[3, 2], OutputSizes=[i32(1, data=[14]), i32(1, data=[11])]),
        sample(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 3), strides=[2, 2], paddings=[0, 1, 2, 0], Bias=f32(6), dilations=[2, 1]),
        sample(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 4, 3), strides=[2, 2], padding_algorithm="SAME"),
        sample(Input=f32(2, 4, 5, 3), Filter=f32(3, 6, 3, 2), data_format="NHWC", strides=[2, 1]),
        sample(Input=f32(0, 3, 4, 5), Filter=f32(3, 6, 3, 2)),
    ]
    rejects = [
        reject(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 2), groups=2, says="must divide the channels"),
        reject(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 2), output_size=[20, 20], says="output_size must be less"),
        reject(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 2), output_size=[2, 6], says="output_size must be at least"),
        reject(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 2), OutputSizes=[i32(1, data=[6]), i32(1, data=[9])], says="output_size must be less"),
        reject(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 2), OutputSizes=[i32(1, data=[6])], says="output_size must have 2 numbers"),
        reject(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 2), output_padding=[1, 1], says="output_padding must be less"),
        reject(Input=f32(2, 3, 4, 5), Filter=f32(3, 6, 3, 2), output_size=[6], says="output_size must have 2 numbers"),
        reject(Input=f32(2, 3, 1, 5), Filter=f32(3, 6, 3, 2), paddings=[2, 0], says="nothing is left"),
    ]


class DepthwiseConv2dTranspose(TransposedConvolution):
    """A conv2d_transpose with filters for every channel: groups is the number of channels."""

    type = "depthwise_conv2d_transpose"
    multiplies = True

    samples = [
        sample(Input=f32(2, 3, 4, 5), Filter=f32(3, 1, 3, 2), groups=3, strides=[2, 2], paddings=[1, 0]),
        sample(Input=f32(2, 3, 4, 5), Filter=f32(3, 1, 3, 3), groups=3, strides=[2, 3], padding_algorithm="SAME"),
        sample(Input=f32(2, 4, 5, 3), Filter=f32(3, 1, 3, 2), groups=3, data_format="NHWC", output_padding=[1, 0], strides=[2, 1]),
    ]
    rejects = [reject(Input=f32(2, 4, 4, 5), Filter=f32(3, 1, 3, 2), groups=3, says="the channels of Input must equal dim 0")]


class Conv3dTranspose(TransposedConvolution):
    """Output = the volumes in Input spread by Filter; each axis as in conv2d_transpose. Its format names say images too: NHWC has the channels last."""

    type = "conv3d_transpose"
    multiplies = True
    _axes: ClassVar[int] = 3
    strides = attribute(AttrType.INTS, [1, 1, 1], low=1)
    paddings = attribute(AttrType.INTS, [0, 0, 0], low=0, doc="one number per axis, or two: before and after")
    dilations = attribute(AttrType.INTS, [1, 1, 1], low=1)
    data_format = attribute(AttrType.STRING, "NCHW", choices=(*IMAGE_FORMATS, "NCDHW"))

    samples = [
        sample(Input=f32(2, 3, 4, 5, 2), Filter=f32(3, 4, 2, 3, 2), strides=[1, 2, 2], paddings=[1, 0, 1]),
        sample(Input=f32(2, 4, 2, 3, 2), Filter=f32(4, 3, 3, 2, 2), groups=2, strides=[2, 2, 1], output_padding=[1, 1, 0]),
        sample(Input=f32(2, 3, 4, 2, 2), Filter=f32(3, 4, 2, 3, 2), strides=[2, 2, 2], paddings=[0, 1, 1, 1, 0, 0], dilations=[2, 1, 1]),
        sample(Input=f32(2, 3, 2, 4, 3), Filter=f32(3, 4, 2, 3, 2), strides=[2, 1, 1], data_format="NHWC"),
        sample(Input=f32(2, 3, 2, 4, 2), Filter=f32(3, 4, 3, 2, 2), strides=[2, 3, 2], output_size=[6, 11, 5]),
    ]
    rejects = [
        reject(Input=f32(2, 3, 4, 5), Filter=f32(3, 4, 2, 3, 2), says="Input must have 5 dims"),
        reject(Input=f32(2, 4, 4, 5, 2), Filter=f32(3, 4, 2, 3, 2), says="the channels of Input must equal dim 0"),
        reject(Input=f32(2, 3, 4, 5, 2), Filter=f32(3, 4, 2, 3, 2), output_size=[6, 7], says="output_size must have 3 numbers"),
    ]
