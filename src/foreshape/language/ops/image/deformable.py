"""Convolutions with deformed windows: each pixel of a window is read at an offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_divides, require_equal
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.window import check_count, count_windows, image_of, with_image
from foreshape.machine.kernels.deformed import DeformedWindows, moved, places, read, spread
from foreshape.machine.kernels.products import side_by_side


class Deformable(Operator):
    """The base of the deformable convolutions, with a mask and without one."""

    abstract = True
    examples = ("Input", "Offset", "Mask")
    Input = operand(FLOATING, doc="[batch, channels, height, width]")
    Offset = operand(FLOATING, same_type_as="Input", doc="[batch, 2 * deformable_groups * kh * kw, *image]: rows, then columns, of each pixel of a window")
    Filter = operand(FLOATING, same_type_as="Input", doc="[out, channels / groups, kh, kw]")
    Output = result(doc="[batch, out, *image]", layout="row")
    strides = attribute(AttrType.INTS, [1, 1], low=1)
    paddings = attribute(AttrType.INTS, [0, 0], low=0)
    dilations = attribute(AttrType.INTS, [1, 1], low=1)
    groups = attribute(AttrType.INT, 1, low=1)
    deformable_groups = attribute(AttrType.INT, 1, low=1, doc="the number of groups of channels with offsets of their own")
    im2col_step = attribute(AttrType.INT, 64, doc="the number of images PaddlePaddle takes at once (it finds no gradient of fewer); ignored here")

    def _shape(self, Input: Spec, Offset: Spec, Mask: Spec | None, Filter: Spec) -> Spec:
        batch, channels, image = image_of(Input, 4, False, "Input")
        window = Filter.known_dims
        require(len(window) == 4, f"Filter must have 4 dims, not {len(window)}", Filter=None)
        for axis, size in enumerate(window):
            require_at_most(1, size, "Filter must not be empty", Filter=axis)
        for name in ("strides", "paddings", "dilations"):
            check_count(getattr(self, name), 2, name)
        require_equal(channels, window[1] * self.groups, f"the channels of Input must be groups = {self.groups} times dim 1 of Filter", Input=1, Filter=1)
        require_divides(self.groups, window[0], f"groups = {self.groups} must divide dim 0 of Filter", Filter=0)
        require_divides(self.deformable_groups, channels, f"deformable_groups = {self.deformable_groups} must divide the channels of Input", Input=1)
        sizes: list[Size] = []
        for axis, (size, k) in enumerate(zip(image, window[2:], strict=True)):
            span, pad = self.dilations[axis] * (k - 1) + 1, self.paddings[axis]
            sizes.append(count_windows(size, span, (pad, pad), self.strides[axis], "the window of Filter", Input=axis + 2, Filter=axis + 2))
        pixels = self.deformable_groups * window[2] * window[3]
        for slot, spec, count, words in (("Offset", Offset, 2 * pixels, "two numbers"), ("Mask", Mask, pixels, "one number")):
            if spec is None:
                continue
            require(spec.rank == 4, f"{slot} must have 4 dims, not {spec.rank}", **{slot: None})
            require_equal(spec.known_dims[0], batch, f"{slot} must have the batch of Input", **{slot: 0, "Input": 0})
            require_equal(spec.known_dims[1], count, f"{slot} must have {words} for each pixel of a window of each deformable group, {count}", **{slot: 1})
            for axis, size in enumerate(sizes, 2):
                require_equal(spec.known_dims[axis], size, f"{slot} must have the image size of Output, {sizes[0]} by {sizes[1]}", **{slot: axis})
        return with_image(Input, window[0], sizes, False)

    def _windows(self, Filter: Tensor) -> DeformedWindows:
        return DeformedWindows((int(Filter.shape[2]), int(Filter.shape[3])), self.strides, self.paddings, self.dilations, self.deformable_groups)

    def _work(self, Filter: Spec, out: Spec) -> Size:
        return out.elements * product(Filter.known_dims[1:])

    def _column_bytes(self, Input: Spec, Filter: Spec, out: Spec) -> Size:
        """Return the bytes of the pixels read by one image's windows, each pixel once."""
        return Input.known_dims[1] * product(Filter.known_dims[2:]) * product(out.known_dims[2:]) * Input.known_dtype.itemsize

    def _place_bytes(self, Filter: Spec, out: Spec) -> Size:
        """Return the bytes of the windows' places, as `places` and `corners` hold them."""
        return self.deformable_groups * product(Filter.known_dims[2:]) * product(out.known_dims[2:]) * 160

    def _forward_bytes(self, Input: Spec, Filter: Spec, out: Spec) -> Size:
        return 4 * self._column_bytes(Input, Filter, out) + self._place_bytes(Filter, out) + 2 * product(out.known_dims[1:]) * Input.known_dtype.itemsize

    def _backward_bytes(self, Input: Spec, Filter: Spec, out: Spec) -> Size:
        return 6 * self._column_bytes(Input, Filter, out) + self._place_bytes(Filter, out) + 3 * Filter.nbytes

    def _forward(self, Input: Tensor, Offset: Tensor, Mask: Tensor | None, Filter: Tensor) -> Tensor:
        batch, channels, height, width = Input.shape
        windows, sets, groups = self._windows(Filter), self.deformable_groups, self.groups
        high, wide = Offset.shape[2:]
        out = Input.new_empty((batch, Filter.shape[0], high, wide))
        weight = side_by_side(Filter.reshape(groups, Filter.shape[0] // groups, -1))
        for n in range(batch):
            points = places(Offset[n], windows, (height, width))
            columns = read(Input[n].reshape(sets, channels // sets, -1), points)
            if Mask is not None:
                columns.mul_(Mask[n].reshape(sets, 1, -1))
            torch.bmm(weight, columns.view(groups, -1, high * wide), out=out[n].view(groups, -1, high * wide))
        return out

    def _backward(
        self, Input: Tensor, Offset: Tensor, Mask: Tensor | None, Filter: Tensor, d_out: Tensor, requested: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Return the requested gradients of Input, Offset, Mask and Filter."""
        batch, channels, height, width = Input.shape
        windows, sets, groups = self._windows(Filter), self.deformable_groups, self.groups
        high, wide = d_out.shape[2:]
        weight = side_by_side(Filter.reshape(groups, Filter.shape[0] // groups, -1))
        d_input = torch.zeros(Input.shape, dtype=Input.dtype, device=Input.device) if requested[0] else None
        d_offset = Offset.new_empty(Offset.shape) if requested[1] else None
        d_mask = None if Mask is None or not requested[2] else Mask.new_empty(Mask.shape)
        d_filter = torch.zeros(Filter.shape, dtype=Filter.dtype, device=Filter.device) if requested[3] else None
        for n in range(batch):
            points = places(Offset[n], windows, (height, width))
            image = Input[n].reshape(sets, channels // sets, -1)
            mask = None if Mask is None else Mask[n].reshape(sets, 1, -1)
            d = side_by_side(d_out[n].reshape(groups, -1, high * wide))
            if d_filter is not None:
                columns = read(image, points)
                if mask is not None:
                    columns.mul_(mask)
                d_filter.view(weight.shape).baddbmm_(d, columns.view(groups, -1, high * wide).transpose(1, 2))
                del columns
            d_columns = torch.bmm(weight.transpose(1, 2), d).view(sets, channels // sets, -1)
            if d_mask is not None:
                d_mask[n].view(sets, -1).copy_((read(image, points) * d_columns).sum(1))
            if mask is not None:
                d_columns.mul_(mask)
            if d_offset is not None:
                slopes = torch.stack([m.view(sets, -1, high, wide) for m in moved(image, d_columns, points)], 2)
                d_offset[n].copy_(slopes.view(Offset.shape[1:]))
            if d_input is not None:
                spread(d_columns, points, d_input[n].view(sets, channels // sets, -1))
        return d_input, d_offset, d_mask, d_filter


class DeformableConv(Deformable):
    """Output = the images in Input convolved with Filter, each pixel of a window moved by its Offset and weighted by Mask (Zhu et al., 2018).

    Between pixels there is the mean of the four around, weighted by nearness; outside there is 0.
    """

    type = "deformable_conv"
    layer_function = "deform_conv2d"
    Mask = operand(FLOATING, same_type_as="Input", doc="[batch, deformable_groups * kh * kw, *image]")

    def infer_shape(self, Input: Spec, Offset: Spec, Filter: Spec, Mask: Spec) -> Spec:
        return self._shape(Input, Offset, Mask, Filter)

    def work(self, Input: Spec, Offset: Spec, Filter: Spec, Mask: Spec) -> Size:
        return self._work(Filter, self.infer_shape(Input, Offset, Filter, Mask))

    def workspace(self, Input: Spec, Offset: Spec, Filter: Spec, Mask: Spec, *, strided: frozenset[str]) -> Size:
        out = self.infer_shape(Input, Offset, Filter, Mask)
        return self._forward_bytes(Input, Filter, out) + copies(strided, Input=Input, Offset=Offset, Filter=Filter, Mask=Mask)

    def kernel(self, Input: Tensor, Offset: Tensor, Filter: Tensor, Mask: Tensor) -> Tensor:
        return self._forward(Input, Offset, Mask, Filter)

    def _infer_gradient(self, Input: Spec, Offset: Spec, Filter: Spec, Mask: Spec, d_out: Spec) -> Any:
        check_made(Output_GRAD=(d_out, DeformableConv.infer_shape(self, Input, Offset, Filter, Mask)))
        return Input.like(), Offset.like(), Filter.like(), Mask.like()

    def _gradient_workspace(self, Input: Spec, Offset: Spec, Filter: Spec, Mask: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return self._backward_bytes(Input, Filter, d_out) + copies(strided, Input=Input, Offset=Offset, Filter=Filter, Mask=Mask, Output_GRAD=d_out)

    @gradient(
        "Input", "Offset", "Filter", "Mask", "Output@GRAD", gives=("Input@GRAD", "Offset@GRAD", "Filter@GRAD", "Mask@GRAD"), infer=_infer_gradient,
        workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(self, Input: Tensor, Offset: Tensor, Filter: Tensor, Mask: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        flags = (requested[0], requested[1], requested[3], requested[2])
        d_input, d_offset, d_mask, d_filter = self._backward(Input, Offset, Mask, Filter, d_out, flags)
        return d_input, d_offset, d_filter, d_mask

    samples = [
        sample(Input=f32(2, 3, 5, 6), Offset=f32(2, 12, 4, 4), Filter=f32(4, 3, 2, 3), Mask=f32(2, 6, 4, 4), im2col_step=1),
        sample(
            Input=f32(2, 4, 5, 6),
            Offset=f32(2, 24, 3, 4),
            Filter=f32(6, 2, 3, 2),
            Mask=f32(2, 12, 3, 4),
            groups=2,
            deformable_groups=2,
            strides=[2, 1],
            paddings=[1, 0],
            dilations=[1, 2],
            im2col_step=1,
        ),
        sample(
            Input=f32(1, 2, 3, 4), Offset=f32(1, 8, 2, 3, data=[0.0] * 48), Filter=f32(3, 2, 2, 2), Mask=f32(1, 4, 2, 3), im2col_step=1, differentiate=False
        ),
    ]
    rejects = [
        reject(Input=f32(2, 3, 5, 6), Offset=f32(2, 13, 4, 4), Filter=f32(4, 3, 2, 3), Mask=f32(2, 6, 4, 4), says="two numbers for each pixel"),
        reject(Input=f32(2, 3, 5, 6), Offset=f32(2, 12, 4, 5), Filter=f32(4, 3, 2, 3), Mask=f32(2, 6, 4, 4), says="Offset must have the image size"),
        reject(Input=f32(2, 3, 5, 6), Offset=f32(2, 12, 4, 4), Filter=f32(4, 3, 2, 3), Mask=f32(3, 6, 4, 4), says="Mask must have the batch"),
        reject(Input=f32(2, 3, 5, 6), Offset=f32(2, 12, 4, 4), Filter=f32(4, 3, 2, 3), Mask=f32(2, 7, 4, 4), says="one number for each pixel"),
        reject(Input=f32(2, 3, 5, 6), Offset=f32(2, 24, 4, 4), Filter=f32(4, 3, 2, 3), Mask=f32(2, 12, 4, 4), deformable_groups=2, says="must divide"),
        reject(Input=f32(2, 3, 5, 6), Offset=f32(2, 12, 4, 4), Filter=f32(4, 3, 7, 3), Mask=f32(2, 6, 4, 4), says="must fit into the padded image"),
    ]


class DeformableConvV1(Deformable):
    """`deformable_conv` without a mask (Dai et al., 2017)."""

    type = "deformable_conv_v1"
    layer_function = "deform_conv2d"

    def infer_shape(self, Input: Spec, Offset: Spec, Filter: Spec) -> Spec:
        return self._shape(Input, Offset, None, Filter)

    def work(self, Input: Spec, Offset: Spec, Filter: Spec) -> Size:
        return self._work(Filter, self.infer_shape(Input, Offset, Filter))

    def workspace(self, Input: Spec, Offset: Spec, Filter: Spec, *, strided: frozenset[str]) -> Size:
        out = self.infer_shape(Input, Offset, Filter)
        return self._forward_bytes(Input, Filter, out) + copies(strided, Input=Input, Offset=Offset, Filter=Filter)

    def kernel(self, Input: Tensor, Offset: Tensor, Filter: Tensor) -> Tensor:
        return self._forward(Input, Offset, None, Filter)

    def _infer_gradient(self, Input: Spec, Offset: Spec, Filter: Spec, d_out: Spec) -> Any:
        check_made(Output_GRAD=(d_out, DeformableConvV1.infer_shape(self, Input, Offset, Filter)))
        return Input.like(), Offset.like(), Filter.like()

    def _gradient_workspace(self, Input: Spec, Offset: Spec, Filter: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return self._backward_bytes(Input, Filter, d_out) + copies(strided, Input=Input, Offset=Offset, Filter=Filter, Output_GRAD=d_out)

    @gradient(
        "Input", "Offset", "Filter", "Output@GRAD", gives=("Input@GRAD", "Offset@GRAD", "Filter@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace
    )
    def backward(self, Input: Tensor, Offset: Tensor, Filter: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d_input, d_offset, _, d_filter = self._backward(Input, Offset, None, Filter, d_out, (requested[0], requested[1], False, requested[2]))
        return d_input, d_offset, d_filter

    samples = [
        sample(Input=f32(2, 3, 5, 6), Offset=f32(2, 12, 4, 4), Filter=f32(4, 3, 2, 3), im2col_step=1),
        sample(Input=f32(2, 3, 2, 5), Offset=f32(2, 12, 1, 2), Filter=f32(4, 3, 3, 2), strides=[2, 3], im2col_step=1),
        sample(
            Input=f32(2, 4, 5, 6),
            Offset=f32(2, 24, 3, 4),
            Filter=f32(6, 2, 3, 2),
            groups=2,
            deformable_groups=2,
            strides=[2, 1],
            paddings=[1, 0],
            dilations=[1, 2],
            im2col_step=1,
        ),
    ]
    rejects = [reject(Input=f32(2, 4, 5, 6), Offset=f32(2, 12, 4, 4), Filter=f32(4, 3, 2, 3), says="the channels of Input")]
