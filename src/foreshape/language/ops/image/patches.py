"""Images as rows of patches, and back: unfold, fold, im2sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import F, Tensor, aten, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_divides, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.ragged_rules import new_lod, rows
from foreshape.language.ops.rules.window import check_count, count_windows, image_of
from foreshape.machine.kernels.window_steps import lacking


class Patches(Operator):
    """The base of unfold and fold: the patches of an image."""

    abstract = True
    examples = ("X",)
    kernel_sizes = attribute(AttrType.INTS, low=1, doc="height and width of a patch")
    strides = attribute(AttrType.INTS, [1, 1], low=1, doc="from patch to patch")
    paddings = attribute(AttrType.INTS, [0, 0, 0, 0], low=0, doc="zeros around an image: top, left, bottom, right")
    dilations = attribute(AttrType.INTS, [1, 1], low=1, doc="from pixel to pixel of a patch")

    def _pads(self) -> tuple[tuple[int, int], tuple[int, int]]:
        top, left, bottom, right = self.paddings
        return (top, bottom), (left, right)

    def _around(self, image: Sequence[Any]) -> tuple[tuple[int, Any], tuple[int, Any]]:
        """Return the padding before and after each axis, with what an only patch reaches beyond it."""
        parts = zip(self._pads(), image, self.kernel_sizes, self.dilations, self.strides, strict=True)
        high, wide = ((front, back + lacking(n, d * (k - 1) + 1, front + back, s)) for (front, back), n, k, d, s in parts)
        return high, wide

    def _check(self) -> None:
        for name in ("kernel_sizes", "strides", "dilations"):
            check_count(getattr(self, name), 2, name)
        check_count(self.paddings, 4, "paddings")

    def _counts(self, image: Sequence[Size], **sides: int | None) -> tuple[Size, Size]:
        """Return the number of patches along the height and along the width."""
        parts = zip(image, self.kernel_sizes, self.dilations, self._pads(), self.strides, strict=True)
        high, wide = (count_windows(size, d * (k - 1) + 1, pad, s, "a patch", False, **sides) for size, k, d, pad, s in parts)
        return high, wide

    def _even(self, image: Sequence[Any]) -> bool:
        """Tell whether torch's kernels can pad the image."""
        return all(front == back for front, back in self._around(image))

    def _apart(self, x: Tensor) -> Tensor:
        """Return the patches, ``[batch, channels * kh * kw, patches]``, of images ``[batch, channels, height, width]``."""
        (top, bottom), (left, right) = self._around(x.shape[2:])
        padding = [top, left]
        if self._even(x.shape[2:]):
            return aten.im2col(x, self.kernel_sizes, self.dilations, padding, self.strides)
        rows = aten.im2col(F.pad(x, (left, right, top, bottom)), self.kernel_sizes, self.dilations, [0, 0], self.strides)
        return rows.clone() if rows.untyped_storage().nbytes() != rows.nbytes else rows  # patches side by side are a view of the padded image

    def _together(self, rows: Tensor, image: Sequence[int]) -> Tensor:
        """Return the adjoint of `_apart`: the sum of all values of a pixel."""
        (top, bottom), (left, right) = self._around(image)
        if self._even(image):  # torch leaves the result in the memory of its columns
            return aten.col2im(rows, list(image), self.kernel_sizes, self.dilations, [top, left], self.strides).clone()
        padded = aten.col2im(rows, [image[0] + top + bottom, image[1] + left + right], self.kernel_sizes, self.dilations, [0, 0], self.strides)
        return padded[..., top : top + image[0], left : left + image[1]].clone(memory_format=torch.contiguous_format)

    def _padded(self, dims: Sequence[Size], itemsize: int) -> Size:
        """Return the bytes of images with their paddings, if these are added first, and of torch's copy."""
        if self._even(dims[2:]):
            return product(dims) * itemsize
        (top, bottom), (left, right) = self._around(dims[2:])
        return 2 * product((dims[0], dims[1], dims[2] + top + bottom, dims[3] + left + right)) * itemsize


class Unfold(Patches):
    """Y = the patches of the images in X, one a column: ``[batch, channels * kh * kw, patches]``, patches in rows from the top left."""

    type = "unfold"
    gradient_reads_dims = ("X",)
    X = operand(FLOATING, doc="[batch, channels, height, width]")
    Y = result(doc="[batch, channels * kh * kw, patches]", layout="row")

    def infer_shape(self, X: Spec) -> Spec:
        self._check()
        batch, channels, image = image_of(X, 4, False, "X")
        high, wide = self._counts(image, X=None)
        return X.with_dims((batch, channels * self.kernel_sizes[0] * self.kernel_sizes[1], high * wide))

    def kernel(self, X: Tensor) -> Tensor:
        return self._apart(X)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return self._padded(X.known_dims, X.known_dtype.itemsize) + copies(strided, X=X)

    def _infer_gradient(self, X: Spec, d_out: Spec) -> Spec:
        check_made(Y_GRAD=(d_out, Unfold.infer_shape(self, X)))
        return X.like()

    def _gradient_workspace(self, X: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return d_out.nbytes + X.nbytes + self._padded(X.known_dims, X.known_dtype.itemsize) + copies(strided, Y_GRAD=d_out)

    @gradient("X", "Y@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return self._together(d_out, X.shape[2:])

    samples = [
        sample(X=f32(2, 3, 5, 7), kernel_sizes=[2, 3]),
        sample(X=f32(2, 3, 5, 7), kernel_sizes=[2, 3], strides=[2, 1], paddings=[1, 2, 1, 2], dilations=[2, 3]),
        sample(X=f32(2, 3, 5, 7), kernel_sizes=[3, 2], strides=[1, 2], paddings=[0, 1, 2, 0]),
        sample(X=f32(2, 3, 2, 7), kernel_sizes=[3, 2], strides=[3, 2]),
        sample(X=f32(0, 3, 5, 7), kernel_sizes=[2, 3]),
    ]
    rejects = [
        reject(X=f32(2, 3, 5, 7), kernel_sizes=[6, 3], says="a patch must fit into the padded image"),
        reject(X=f32(2, 3, 5, 7), kernel_sizes=[2], says="kernel_sizes must have 2 numbers"),
        reject(X=f32(2, 3, 5, 7), kernel_sizes=[2, 2], strides=[1], says="strides must have 2 numbers"),
        reject(X=f32(2, 3, 5, 7), kernel_sizes=[2, 2], paddings=[1, 1], says="paddings must have 4 numbers"),
        reject(X=f32(2, 3, 0, 7), kernel_sizes=[1, 2], says="must not be empty"),
    ]


class Fold(Patches):
    """Y = images summed from patches: each is added at its place in `unfold` with these attributes."""

    type = "fold"
    gradient_reads_dims = ("X",)
    X = operand(FLOATING, doc="[batch, channels * kh * kw, patches]")
    Y = result(doc="[batch, channels, *output_sizes]", layout="row")
    output_sizes = attribute(AttrType.INTS, low=1, doc="height and width of the images")

    def infer_shape(self, X: Spec) -> Spec:
        self._check()
        check_count(self.output_sizes, 2, "output_sizes")
        even = all(front == back for front, back in self._pads())
        require(even, f"paddings of fold must be equal at both ends of an axis; seen {list(self.paddings)} (top, left, bottom, right)")
        require_rank(3, X, "X")
        batch, width, patches = X.known_dims
        pixels = self.kernel_sizes[0] * self.kernel_sizes[1]
        channels = require_divides(pixels, width, f"dim 1 of X must be the channels times the {pixels} pixels of a patch", X=1)
        require_at_most(1, channels, "there must be at least one channel", X=1)
        high, wide = self._counts(self.output_sizes)
        require_equal(patches, high * wide, f"dim 2 of X must be the {high} times {wide} patches of an image of output_sizes", X=2)
        return X.with_dims((batch, channels, *self.output_sizes))

    def kernel(self, X: Tensor) -> Tensor:
        return self._together(X, self.output_sizes)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        out = self.infer_shape(X)
        return X.nbytes + out.nbytes + self._padded(out.known_dims, X.known_dtype.itemsize) + copies(strided, X=X)

    def _infer_gradient(self, X: Spec, d_out: Spec) -> Spec:
        check_made(Y_GRAD=(d_out, Fold.infer_shape(self, X)))
        return X.like()

    def _gradient_workspace(self, X: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return self._padded(d_out.known_dims, X.known_dtype.itemsize) + copies(strided, Y_GRAD=d_out)

    @gradient("X", "Y@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return self._apart(d_out)

    samples = [
        sample(X=f32(2, 18, 20), output_sizes=[5, 7], kernel_sizes=[2, 3]),
        sample(X=f32(2, 12, 21), output_sizes=[6, 5], kernel_sizes=[2, 3], strides=[1, 2], paddings=[1, 1, 1, 1]),
        sample(X=f32(2, 12, 56), output_sizes=[7, 7], kernel_sizes=[3, 2], strides=[1, 1], paddings=[3, 2, 3, 2], dilations=[3, 3]),
        sample(X=f32(2, 18, 3), output_sizes=[2, 7], kernel_sizes=[3, 2], strides=[3, 2]),
        sample(X=f32(0, 12, 20), output_sizes=[5, 7], kernel_sizes=[2, 3]),
    ]
    rejects = [
        reject(X=f32(2, 19, 20), output_sizes=[5, 7], kernel_sizes=[2, 3], says="the channels times the 6 pixels"),
        reject(X=f32(2, 18, 21), output_sizes=[5, 7], kernel_sizes=[2, 3], says="dim 2 of X must be the 4 times 5 patches"),
        reject(X=f32(2, 18, 20), output_sizes=[5], kernel_sizes=[2, 3], says="output_sizes must have 2 numbers"),
        reject(X=f32(2, 18, 20), output_sizes=[1, 7], kernel_sizes=[2, 3], says="a patch must fit into the padded image"),
        reject(X=f32(2, 18, 30), output_sizes=[5, 7], kernel_sizes=[2, 3], paddings=[0, 0, 1, 1], says="equal at both ends"),
        reject(X=f32(2, 0, 20), output_sizes=[5, 7], kernel_sizes=[2, 3], says="at least one channel"),
    ]


class Im2Sequence(Operator):
    """Out = the patches of each image as a sequence of rows, from the top left.

    An axis of size n has ``(n + pads - kernel) // stride + 1`` patches. (PaddlePaddle describes Out with as many rows as there are images,
    and makes one for each patch.)
    """

    type = "im2sequence"
    examples = ("X",)
    X = operand(FLOATING, doc="[batch, channels, height, width]")
    Out = result(doc="ragged rows [batch * patches, channels * kh * kw], a sequence of each image", new_offsets=True, layout="row")
    kernels = attribute(AttrType.INTS, low=1, doc="height and width of a patch")
    strides = attribute(AttrType.INTS, [1, 1], low=1)
    paddings = attribute(AttrType.INTS, [0, 0, 0, 0], low=0, doc="top, left, bottom, right")
    out_stride = attribute(AttrType.INTS, [1, 1], doc="for inputs not supported here: the images' sizes in Y")

    def _counts(self, image: Sequence[Any]) -> tuple[Any, Any]:
        p = self.paddings
        parts = zip(image, self.kernels, ((p[0], p[2]), (p[1], p[3])), self.strides, strict=True)
        high, wide = (count_windows(size, k, pad, s, "a patch", X=axis) for axis, (size, k, pad, s) in enumerate(parts, 2))
        return high, wide

    def infer_shape(self, X: Spec) -> Spec:
        check_count(self.kernels, 2, "kernels")
        check_count(self.strides, 2, "strides")
        check_count(self.paddings, 4, "paddings")
        batch, channels, image = image_of(X, 4, False, "X")
        high, wide = self._counts(image)
        return rows(X.dtype, (batch * high * wide, channels * self.kernels[0] * self.kernels[1]), new_lod("Out", [batch]))

    def _around(self, image: Sequence[Any]) -> tuple[int, int, int, int]:
        """Return the padding with which torch makes the same patches: left, right, top, bottom; a negative number cuts pixels off."""
        spans = [(count - 1) * s + k for count, s, k in zip(self._counts(image), self.strides, self.kernels, strict=True)]
        top, left = self.paddings[:2]
        return left, spans[1] - image[1] - left, top, spans[0] - image[0] - top

    def kernel(self, X: Tensor) -> tuple[Tensor, Offsets]:
        image = X.shape[2:]
        high, wide = self._counts(image)
        filled = F.pad(X, self._around(image))
        out = aten.im2col(filled, self.kernels, [1, 1], [0, 0], self.strides).transpose(1, 2)
        lengths = torch.full((X.shape[0],), high * wide, device=X.device)
        patches = out.reshape(X.shape[0] * high * wide, X.shape[1] * self.kernels[0] * self.kernels[1])
        return patches.contiguous(), Offsets.of_lengths(lengths)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        out = self.infer_shape(X)
        return 2 * self._filled(X) + out.nbytes + copies(strided, X=X)

    def _filled(self, X: Spec) -> Size:
        batch, channels, image = image_of(X, 4, False, "X")
        p = self.paddings
        extra = (lacking(n, k, p[axis] + p[axis + 2], s) for axis, (n, k, s) in enumerate(zip(image, self.kernels, self.strides, strict=True)))
        high, wide = (n + p[axis] + p[axis + 2] + m for axis, (n, m) in enumerate(zip(image, extra, strict=True)))
        return product((batch, channels, high, wide)) * X.known_dtype.itemsize

    def _infer_gradient(self, X: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, Im2Sequence.infer_shape(self, X)))
        return X.like()

    def _gradient_workspace(self, X: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * d_out.nbytes + 3 * self._filled(X) + copies(strided, Out_GRAD=d_out)

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        batch, channels, height, width = X.shape
        left, right, top, bottom = self._around((height, width))
        high, wide = self._counts((height, width))
        columns = d_out.reshape(batch, high * wide, channels * self.kernels[0] * self.kernels[1]).transpose(1, 2)
        filled = aten.col2im(columns, [height + top + bottom, width + left + right], self.kernels, [1, 1], [0, 0], self.strides)
        return F.pad(filled, (-left, -right, -top, -bottom))

    samples = [
        sample(X=f32(2, 3, 5, 7), kernels=[2, 3]),
        sample(X=f32(2, 3, 5, 7), kernels=[2, 3], strides=[2, 3], paddings=[1, 0, 2, 1]),
        sample(X=f32(2, 3, 2, 7), kernels=[3, 2], strides=[2, 3]),
        sample(X=f32(2, 3, 6, 5), kernels=[5, 2], strides=[3, 4]),
    ]
    rejects = [
        reject(X=f32(2, 3, 5, 7), kernels=[7, 3], says="a patch must fit into the padded image"),
        reject(X=f32(2, 3, 5, 7), kernels=[2], says="kernels must have 2 numbers"),
        reject(X=f32(2, 3, 5, 7), kernels=[2, 2], paddings=[1, 1], says="paddings must have 4 numbers"),
    ]
