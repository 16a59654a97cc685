"""Convolutions of images and volumes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from foreshape.core.dims import Size, ceildiv, product
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import F, Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.fields import PartialGradient
from foreshape.language.operator.require import require, require_at_most, require_divides, require_equal
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.window import (
    ALGORITHMS,
    IMAGE_FORMATS,
    VOLUME_FORMATS,
    channels_back,
    channels_first,
    channels_first_dims,
    check_count,
    check_paddings,
    count_windows,
    image_of,
    is_channels_last,
    pads_of,
    with_image,
)
from foreshape.machine.kernels import onednn, pointwise
from foreshape.machine.kernels.window_steps import behind, copy_bytes, lacking


class Windowed(Operator):
    """The base of convolutions: their attributes and shared checks. ``_axes`` is the number of image axes."""

    abstract = True
    _axes: ClassVar[int] = 2
    Input = operand(FLOATING, doc="[batch, channels, *image], or [batch, *image, channels] by data_format")
    Filter = operand(FLOATING, same_type_as="Input", doc="[out, channels / groups, *window]; transposed: [channels, out / groups, *window]")
    strides = attribute(AttrType.INTS, [1, 1], low=1)
    paddings = attribute(AttrType.INTS, [0, 0], low=0, doc="one number per image axis, or two: before and after")
    padding_algorithm = attribute(AttrType.STRING, "EXPLICIT", choices=ALGORITHMS)
    dilations = attribute(AttrType.INTS, [1, 1], low=1)
    groups = attribute(AttrType.INT, 1, low=1)
    data_format = attribute(AttrType.STRING, "NCHW", choices=IMAGE_FORMATS)

    def _checked(self, Input: Spec, Filter: Spec) -> tuple[Size, tuple[Size, ...], tuple[Size, ...]]:
        """Return channels, image and window sizes."""
        axes = self._axes
        _, channels, image = image_of(Input, axes + 2, is_channels_last(self.data_format), "Input")
        window = Filter.known_dims
        require(len(window) == axes + 2, f"Filter must have {axes + 2} dims, not {len(window)}", Filter=None)
        for axis, size in enumerate(window):
            require_at_most(1, size, "Filter must not be empty", Filter=axis)
        check_count(self.strides, axes, "strides")
        check_count(self.dilations, axes, "dilations")
        check_paddings(self.paddings, axes)
        return channels, image, window[2:]

    def _dilations(self) -> tuple[int, ...]:
        return (1,) * self._axes if self.padding_algorithm == "SAME" else self.dilations  # as PaddlePaddle does

    def _pads(self, image: Sequence[Size], window: Sequence[Size]) -> tuple[Any, ...]:
        return pads_of(self.paddings, self.padding_algorithm, image, window, self.strides)


class Convolution(Windowed):
    """The base of the convolutions from larger to smaller images.

    Bias is for rewritten inference programs of PaddlePaddle before 2.6; others add it by another operator.
    """

    abstract = True
    examples = ("Input",)
    Bias = operand(FLOATING, optional=True, same_type_as="Input", doc="[out]")
    Output = result(doc="[batch, out, *image], in the format of Input")

    def infer_shape(self, Input: Spec, Filter: Spec, Bias: Spec | None) -> Spec:
        channels, image, window = self._checked(Input, Filter)
        last = is_channels_last(self.data_format)
        axis = self._axes + 1 if last else 1
        out, per_group = Filter.known_dims[:2]
        if Bias is not None:
            require(Bias.rank == 1, f"Bias must have 1 dim, not {Bias.rank}", Bias=None)
            require_equal(Bias.known_dims[0], out, "Bias must have one number for each channel of Output", Bias=0, Filter=0)
        require_equal(channels, per_group * self.groups, f"the channels of Input must be groups = {self.groups} times dim 1 of Filter", Input=axis, Filter=1)
        require_divides(self.groups, out, f"groups = {self.groups} must divide dim 0 of Filter", Filter=0)
        if self.padding_algorithm == "SAME":
            return with_image(Input, out, [ceildiv(size, s) for size, s in zip(image, self.strides, strict=True)], last)
        pads = Windowed._pads(self, image, window)
        sizes: list[Size] = []
        for place, (size, k) in enumerate(zip(image, window, strict=True)):
            span = self.dilations[place] * (k - 1) + 1
            sizes.append(
                count_windows(size, span, pads[place], self.strides[place], "the window of Filter", Input=place + (1 if last else 2), Filter=place + 2)
            )
        return with_image(Input, out, sizes, last)

    def _pads(self, image: Sequence[Size], window: Sequence[Size]) -> tuple[Any, ...]:
        """Return the padding before and after each axis, with what an only window reaches beyond it."""
        pads = super()._pads(image, window)
        if self.padding_algorithm == "SAME":
            return pads
        windows = zip(pads, image, window, self.dilations, self.strides, strict=True)
        return tuple((front, back + lacking(n, d * (k - 1) + 1, front + back, s)) for (front, back), n, k, d, s in windows)

    def work(self, Input: Spec, Filter: Spec, Bias: Spec | None) -> Size:
        return Convolution.infer_shape(self, Input, Filter, Bias).elements * product(Filter.known_dims[1:])

    def computes(self) -> computations.ImageConvolution | computations.PaddedWindows | None:
        if self._axes != 2 or len(self.paddings) not in (2, 4) or not len(self.strides) == len(self.dilations) == 2:
            return None
        if is_channels_last(self.data_format):
            return computations.ChannelsLastConvolution(self.strides, self._dilations(), self.groups, self._pads)
        if self.padding_algorithm == "SAME":
            return computations.PaddedImageConvolution(self.strides, self._dilations(), self.groups, self._pads)
        pads = self._pads((0, 0), (0, 0))
        if any(front != back for front, back in pads):
            return computations.PaddedImageConvolution(self.strides, self.dilations, self.groups, self._pads)
        return computations.ImageConvolution(self.strides, tuple(front for front, _ in pads), self.dilations, self.groups)

    def kernel(self, Input: Tensor, Filter: Tensor, Bias: Tensor | None) -> Tensor:
        last = is_channels_last(self.data_format)
        x, padding, _ = self._padded(channels_first(Input, last), Filter)
        return channels_back(pointwise.convolve(x, Filter, Bias, self.strides, padding, self._dilations(), self.groups), last)

    def workspace(self, Input: Spec, Filter: Spec, Bias: Spec | None, *, strided: frozenset[str]) -> Size:
        out = Convolution.infer_shape(self, Input, Filter, Bias)
        return self._workspace_in_rows(Input, Filter, out, None) + copies(strided, Input=Input, Filter=Filter)

    def _workspace_in_rows(self, Input: Spec, Filter: Spec, out: Spec, requested: Sequence[bool] | None) -> Size:
        """Return the bytes for contiguous operands; with ``requested``, the bytes of its gradients."""
        last, w, size = is_channels_last(self.data_format), Filter.known_dims, Input.known_dtype.itemsize
        x, y = channels_first_dims(Input, last), channels_first_dims(out, last)
        padded: Size = 0
        if self.padding_algorithm == "SAME" or len(self.paddings) != self._axes:
            pads = [(k - 1, 0) for k in w[2:]] if self.padding_algorithm == "SAME" else self._pads(x[2:], w[2:])
            x = (*x[:2], *(n + front + back for n, (front, back) in zip(x[2:], pads, strict=True)))
            padded = product(x) * size
        else:
            extra = behind(x[2:], w[2:], self.strides, self.paddings, self.dilations)
            padded, x = copy_bytes(x, extra, size), (*x[:2], *(n + m for n, m in zip(x[2:], extra, strict=True)))
        settings = size, self.groups, self.strides, self._dilations()
        if requested is None:
            return onednn.convolution(x, w, y, *settings) + padded + (Input.nbytes + out.nbytes if last else 0)
        return onednn.convolution_backward(x, w, y, *settings, (*requested, False)) + 2 * padded + (Input.nbytes + Filter.nbytes if last else 0)

    def _padded(self, x: Tensor, Filter: Tensor) -> tuple[Tensor, Sequence[int], tuple[Any, ...] | None]:
        """Return the images, the padding torch is to add, and the padding added here since torch pads both ends alike."""
        if self.padding_algorithm == "EXPLICIT" and len(self.paddings) == self._axes:
            return x, self.paddings, None
        pads = self._pads(x.shape[2:], Filter.shape[2:])
        if all(front == back for front, back in pads):
            return x, [front for front, _ in pads], None
        return F.pad(x, [p for pad in reversed(pads) for p in pad]), (0,) * self._axes, pads

    def _infer_gradient(self, Input: Spec, Filter: Spec, Bias: Spec | None, d_out: Spec) -> Any:
        check_made(Output_GRAD=(d_out, Convolution.infer_shape(self, Input, Filter, Bias)))
        return Input.like(), Filter.like(), None if Bias is None else Bias.like()

    def _gradient_workspace(self, Input: Spec, Filter: Spec, Bias: Spec | None, d_out: Spec, *, requested: tuple[bool, ...], strided: Collection[str]) -> Size:
        return self._workspace_in_rows(Input, Filter, d_out, requested) + copies(strided, Input=Input, Filter=Filter, Output_GRAD=d_out)

    def _input_apart(self, Input: Spec, Filter: Spec, Bias: Spec | None, d_out: Spec) -> PartialGradient | None:
        """Return the gradient of the images as a transposed convolution, independent of the images."""
        image = image_of(Input, self._axes + 2, is_channels_last(self.data_format), "Input")[2]
        if self._axes != 2 or self.padding_algorithm != "EXPLICIT" or len(self.paddings) != 2:
            return None
        settings = {name: getattr(self, name) for name in ("strides", "paddings", "dilations", "groups", "data_format")}
        if any(s != 1 for s in self.strides):  # images of several sizes become one
            if not all(isinstance(n, int) for n in image) or any(behind(image, Filter.known_dims[2:], self.strides, self.paddings, self.dilations)):
                return None
            settings["output_size"] = list(image)
        return PartialGradient("Input@GRAD", "conv2d_transpose", {"Input": "Output@GRAD", "Filter": "Filter"}, "Output", settings)

    @gradient(
        "Input", "Filter", "Bias", "Output@GRAD", gives=("Input@GRAD", "Filter@GRAD", "Bias@GRAD"), infer=_infer_gradient,
        workspace=_gradient_workspace, apart=_input_apart,
    )  # fmt: skip
    def backward(self, Input: Tensor, Filter: Tensor, Bias: Tensor | None, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        last = is_channels_last(self.data_format)
        first = channels_first(Input, last)
        x, padding, added = self._padded(first, Filter)
        d_x, d_filter, d_bias = pointwise.gradients(
            channels_first(d_out, last), x, Filter, None if Bias is None else [len(Bias)], self.strides, padding, self._dilations(), False,
            (0,) * self._axes, self.groups, requested,
        )  # fmt: skip
        if d_x is not None and added is not None:
            for axis, (front, _) in enumerate(added, 2):
                d_x = d_x.narrow(axis, front, first.shape[axis])
            d_x = torch.empty_like(first).copy_(d_x)
        if last and d_filter is not None:
            d_filter = d_filter.contiguous()
        return None if d_x is None else channels_back(d_x, last), d_filter, d_bias


class Conv2d(Convolution):
    """Output = the images in Input convolved with Filter (cross-correlated, as usual), plus Bias if given.

    An axis of size n becomes ``(n + pads - dilation * (window - 1) - 1) // stride + 1`` long, and ``ceil(n / stride)`` with SAME. An only window may reach
    beyond the padding by less than a stride, into zeros.
    """

    type = "conv2d"
    multiplies = True

    samples = [
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2)),
        sample(Input=f32(2, 4, 7, 8), Filter=f32(6, 2, 3, 2), groups=2, strides=[2, 1], paddings=[1, 0]),
        sample(Input=f32(2, 3, 7, 9), Filter=f32(4, 3, 2, 3), dilations=[3, 2], paddings=[0, 1, 2, 1]),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 4, 3), padding_algorithm="SAME", strides=[2, 3], dilations=[2, 2]),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 3), padding_algorithm="SAME"),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 1, 2), padding_algorithm="SAME", strides=[4, 1]),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), padding_algorithm="VALID", paddings=[1, 1]),
        sample(Input=f32(2, 7, 8, 3), Filter=f32(5, 3, 3, 2), data_format="NHWC", paddings=[0, 1, 2, 1]),
        sample(Input=f32(2, 3, 2, 7), Filter=f32(5, 3, 4, 2), strides=[3, 2]),
        sample(Input=f32(2, 3, 2, 4), Filter=f32(5, 3, 3, 4), strides=[2, 3], paddings=[0, 0, 1, 0], dilations=[1, 2]),
        sample(Input=f32(0, 3, 7, 8), Filter=f32(5, 3, 3, 2)),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(5, 3, 3, 2), Bias=f32(5), paddings=[1, 0]),
        sample(Input=f32(2, 7, 8, 3), Filter=f32(5, 3, 3, 2), Bias=f32(5), data_format="NHWC"),
    ]
    rejects = [
        reject(Input=f32(2, 3, 7), Filter=f32(5, 3, 3, 3), says="Input must have 4 dims"),
        reject(Input=f32(), Filter=f32(5, 3, 3, 3), says="Input must have 4 dims"),
        reject(Input=f32(2, 4, 7, 7), Filter=f32(5, 3, 3, 3), says="the channels of Input"),
        reject(Input=f32(2, 6, 7, 7), Filter=f32(5, 3, 3, 3), groups=2, says="must divide dim 0 of Filter"),
        reject(Input=f32(2, 3, 2, 7), Filter=f32(5, 3, 3, 3), says="must fit into the padded image"),
        reject(Input=f32(2, 3, 7, 7), Filter=f32(5, 3, 3, 3), dilations=[2**31 - 1, 1], says="must fit into the padded image"),
        reject(Input=f32(2, 3, 7, 7), Filter=f32(5, 3, 0, 3), says="Filter must not be empty"),
        reject(Input=f32(2, 3, 0, 7), Filter=f32(5, 3, 3, 3), padding_algorithm="SAME", says="must not be empty"),
        reject(Input=f32(2, 3, 7, 7), Filter=f32(5, 3, 3, 3), strides=[1], says="strides must have 2 numbers"),
        reject(Input=f32(2, 3, 7, 7), Filter=f32(5, 3, 3, 3), paddings=[1, 1, 1], says="paddings must have 2 numbers, or 4"),
    ]


class DepthwiseConv2d(Convolution):
    """A conv2d with filters for every channel: groups is the number of channels."""

    type = "depthwise_conv2d"
    multiplies = True

    samples = [
        sample(Input=f32(2, 3, 7, 8), Filter=f32(3, 1, 3, 2), groups=3, paddings=[1, 1]),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(6, 1, 3, 2), groups=3, strides=[2, 2], padding_algorithm="SAME"),
        sample(Input=f32(2, 7, 8, 3), Filter=f32(3, 1, 3, 2), groups=3, data_format="NHWC"),
        sample(Input=f32(2, 2, 5, 3), Filter=f32(3, 1, 3, 2), groups=3, data_format="NHWC", strides=[2, 3]),
        sample(Input=f32(2, 3, 7, 8), Filter=f32(3, 1, 3, 2), Bias=f32(3), groups=3),
    ]
    rejects = [reject(Input=f32(2, 4, 7, 8), Filter=f32(3, 1, 3, 2), groups=3, says="the channels of Input")]


class Conv3d(Convolution):
    """Output = the volumes in Input convolved with Filter; each axis as in conv2d."""

    type = "conv3d"
    multiplies = True
    _axes: ClassVar[int] = 3
    strides = attribute(AttrType.INTS, [1, 1, 1], low=1)
    paddings = attribute(AttrType.INTS, [0, 0, 0], low=0, doc="one number per axis, or two: before and after")
    dilations = attribute(AttrType.INTS, [1, 1, 1], low=1)
    data_format = attribute(AttrType.STRING, "NCDHW", choices=VOLUME_FORMATS)

    samples = [
        sample(Input=f32(2, 3, 4, 5, 6), Filter=f32(5, 3, 2, 3, 2), paddings=[1, 0, 1]),
        sample(Input=f32(2, 4, 5, 6, 3), Filter=f32(2, 3, 2, 3, 2), strides=[1, 2, 1], data_format="NDHWC", padding_algorithm="SAME"),
        sample(Input=f32(2, 3, 1, 5, 2), Filter=f32(5, 3, 2, 3, 4), strides=[2, 1, 3]),
        sample(Input=f32(2, 3, 4, 5, 6), Filter=f32(5, 3, 2, 3, 2), Bias=f32(5)),
    ]
    rejects = [reject(Input=f32(2, 3, 5, 6), Filter=f32(5, 3, 2, 3, 2), says="Input must have 5 dims")]
