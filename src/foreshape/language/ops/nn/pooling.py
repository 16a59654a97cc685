"""Pooling: the maximum or the mean of windows of images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from foreshape.core.data_class import data_class
from foreshape.core.dims import Size, ceildiv, maximum, minimum, no_less, product
from foreshape.core.spec import FLOATING, INT32, INT64, Spec
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import F, Tensor, aten, torch
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.known_values import known_sizes, sizes_at_run
from foreshape.language.ops.rules.window import (
    ALGORITHMS,
    IMAGE_FORMATS,
    channels_back,
    channels_first,
    check_count,
    check_paddings,
    count_windows,
    image_of,
    is_channels_last,
    pads_of,
    with_image,
)
from foreshape.machine.kernels.pooling import INDEX_BYTES, Axes, Axis, are_few, maxima, maxima_backward, maxima_with_index, means, means_backward
from foreshape.machine.kernels.window_steps import lacking


@data_class(frozen=True)
class _Sizes:
    """The number of windows, and the bytes of padded images (0 without padding) and of the rows of windows.

    ``native``: torch's kernels pad the images; None if that depends on their sizes.
    """

    windows: Size
    filled: Size
    rows: Size
    native: bool | None


class Windows(Operator):
    """The base of operators on windows of images and volumes: the attributes and the places of the windows. ``_spatial`` is the number of image axes."""

    abstract = True
    _spatial: ClassVar[int] = 2
    ksize: Any
    """The sizes of a window, of the attribute ``_size_name`` of the subclass."""
    _size_name: ClassVar[str] = "ksize"
    global_pooling = attribute(AttrType.BOOLEAN, False, doc="one window, the whole image")
    adaptive = attribute(AttrType.BOOLEAN, False, doc="ksize windows of about equal size")
    strides = attribute(AttrType.INTS, [1, 1], low=1)
    paddings = attribute(AttrType.INTS, [0, 0], low=0, doc="one number per image axis, or two: before and after")

    def _image(self, X: Spec, last: bool, sized: bool = False, slot: str = "X") -> tuple[Size, tuple[Size, ...]]:
        """Return channels and image sizes of X, all attributes checked; ``sized``: the sizes of windows come as tensors."""
        _, channels, image = image_of(X, self._spatial + 2, last, slot)
        check_count(self.strides, self._spatial, "strides")
        check_paddings(self.paddings, self._spatial)
        if not self.global_pooling and not sized:
            check_count(self.ksize, self._spatial, self._size_name)
            require(min(self.ksize) >= 1, f"{self._size_name} must be at least 1; seen {list(self.ksize)}")
        return channels, image

    def _counts(self, image: Sequence[Any], algorithm: str = "EXPLICIT", ceil: bool = False, axis: int = 2, slot: str = "X") -> tuple[Any, ...]:
        """Return the number of windows along each axis; images may be symbolic."""
        if self.global_pooling:
            return (1,) * self._spatial
        if self.adaptive:
            return self.ksize
        if algorithm == "SAME":
            counts = [ceildiv(n, s) for n, s in zip(image, self.strides, strict=True)]
            short = zip(image, self.ksize, self.strides, counts, strict=True)  # windows shorter than their stride have another, behind the image
            return tuple(maximum(c, ceildiv(n - k, s) + 1) if ceil and k < s else c for n, k, s, c in short)
        pads = pads_of(self.paddings, algorithm, image, self.ksize, self.strides)
        parts = zip(image, self.ksize, pads, self.strides, strict=True)
        return tuple(count_windows(n, k, pad, s, "the window", ceil, **{slot: place}) for place, (n, k, pad, s) in enumerate(parts, axis))

    def _axes(self, x: Tensor, algorithm: str = "EXPLICIT", ceil: bool = False) -> Axes | None:
        """Return the windows over the images in ``x``; None if they are adaptive (or the whole image)."""
        return None if self.global_pooling or self.adaptive else self._axes_of((x.shape[2], x.shape[3]), algorithm, ceil)

    @lru_cache(1024)  # noqa: B019  the same in each step; operators of one kind are one instance
    def _axes_of(self, image: tuple[int, int], algorithm: str, ceil: bool) -> Axes:
        pads = pads_of(self.paddings, algorithm, image, self.ksize, self.strides)
        counts = self._counts(image, algorithm, ceil)
        h, w = (Axis(n, k, s, pad[0], c) for n, k, s, pad, c in zip(image, self.ksize, self.strides, pads, counts, strict=True))  # pyright: ignore[reportArgumentType]
        return h, w

    def _sizes(self, X: Spec, last: bool = False, algorithm: str = "EXPLICIT", ceil: bool = False, counts: Sequence[Size] = ()) -> _Sizes:
        batch, channels, image = image_of(X, 4, last, "X")
        counts = counts or self._counts(image, algorithm, ceil)
        windows, channel_bytes = product((channels, *counts)) * batch, channels * X.known_dtype.itemsize
        if self.global_pooling or self.adaptive:
            return _Sizes(windows, 0, 0, True)
        pads = [(0, k - 1) for k in self.ksize] if algorithm == "SAME" else pads_of(self.paddings, algorithm, image, self.ksize, self.strides)
        extra = [front + behind + (s - 1 if ceil else 0) for (front, behind), s in zip(pads, self.strides, strict=True)]
        reach = [lacking(n, k, around, s) for n, k, around, s in zip(image, self.ksize, extra, self.strides, strict=True)]
        height, width = (n + around + m for n, around, m in zip(image, extra, reach, strict=True))
        even = not ceil and all(front == behind and 2 * front <= k for (front, behind), k in zip(pads, self.ksize, strict=True))  # pyright: ignore[reportOperatorIssue]
        reaching = maximum(*reach)
        native = even and (reaching == 0 if isinstance(reaching, int) else None)
        filled = channel_bytes * height * width * batch * (1 if any(extra) else minimum(1, reaching))
        return _Sizes(windows, filled, channel_bytes * counts[0] * width * batch, native)


class Pooling(Windows):
    """The base of the poolings of one operand and one size of window."""

    abstract = True
    examples = ("X",)
    X = operand(FLOATING, doc="[batch, channels, height, width], or the channels last by data_format")
    Out = result(doc="as X, with other image sizes")
    ksize = attribute(AttrType.INTS, doc="height and width of a window; of the result if adaptive; unused with global_pooling")


class Pool2d(Pooling):
    """Out = the maximum or the mean of each window of X.

    An axis of size n has ``(n - window + pads) // stride + 1`` windows (ceil_mode rounds up), ``ceil(n / stride)`` with SAME, and at least one: it may reach
    beyond the padding by less than a stride. A mean counts the elements of a window inside the image (exclusive) or also in its padding.
    """

    type = "pool2d"
    gradient_reads_dims = ("Out",)
    KernelSizes = operand((INT32, INT64), many=True, optional=True, attribute="ksize", doc="ksize if adaptive, as tensors of one number each")
    ksize = attribute(AttrType.INTS, [], doc="height and width of a window; of the result if adaptive; unused with global_pooling")
    pooling_type = attribute(AttrType.STRING, choices=("max", "avg"))
    exclusive = attribute(AttrType.BOOLEAN, True, doc="a mean does not count the padding")
    ceil_mode = attribute(AttrType.BOOLEAN, False)
    data_format = attribute(AttrType.STRING, "NCHW", choices=IMAGE_FORMATS)
    padding_algorithm = attribute(AttrType.STRING, "EXPLICIT", choices=ALGORITHMS)

    def infer_shape(self, X: Spec, KernelSizes: tuple[Spec, ...]) -> Spec:
        last = is_channels_last(self.data_format)
        channels, image = self._image(X, last, bool(KernelSizes))
        return with_image(
            X, channels, self._requested_sizes(KernelSizes) or self._counts(image, self.padding_algorithm, self.ceil_mode, 1 if last else 2), last
        )

    def _requested_sizes(self, KernelSizes: tuple[Spec, ...]) -> tuple[Size, ...]:
        """Return the sizes of the result given as tensors; none if the attribute has them, or nothing needs them."""
        if not KernelSizes or self.global_pooling:
            return ()
        require(self.adaptive, "windows must be adaptive where ksize comes as tensors")
        require(len(KernelSizes) == 2, f"ksize must have 2 numbers; seen {len(KernelSizes)}", KernelSizes=None)
        numbers = known_sizes((), None, KernelSizes, "ksize", "KernelSizes")
        sizes = tuple(unknown_size(str(axis)) if size is None else size for axis, size in enumerate(numbers, 2))
        for size in sizes:
            require_at_most(1, size, f"ksize must be at least 1; seen {size}", KernelSizes=None)
        return sizes

    def computes(self) -> computations.ImagePooling | None:
        how = "max" if self.pooling_type == "max" else "mean" if self.exclusive else "mean with padding"
        if is_channels_last(self.data_format):
            return None
        if self.global_pooling or self.adaptive:
            return computations.ImagePooling(how) if self.global_pooling or self.ksize == (1, 1) else None
        if self.padding_algorithm == "SAME":
            return None
        pads = [0, 0] if self.padding_algorithm == "VALID" else self.paddings
        front, behind = (pads, pads) if len(pads) == 2 else (pads[::2], pads[1::2])
        if how == "mean with padding" and (self.ceil_mode or any(b > a for a, b in zip(front, behind, strict=True))):
            return None  # the zeros counted after the images are no more than before them
        return computations.ImagePooling(how, self.ksize, self.strides, tuple(front), tuple(behind), self.ceil_mode)

    def kernel(self, X: Tensor, KernelSizes: Sequence[Tensor]) -> Tensor:
        last, sizes = is_channels_last(self.data_format), self._adapted(KernelSizes)
        if self.pooling_type == "avg" and (self.global_pooling or (self.adaptive and tuple(sizes) == (1, 1))):
            return X.mean((1, 2) if last else (2, 3), keepdim=True)
        x = channels_first(X, last)
        axes = self._axes(x, self.padding_algorithm, self.ceil_mode)
        if self.pooling_type == "max":
            out = aten.adaptive_max_pool2d(x, sizes)[0] if axes is None else maxima(x, axes)
        else:
            out = F.adaptive_avg_pool2d(x, sizes) if axes is None else means(x, axes, self.exclusive)
        return channels_back(out, last)

    def workspace(self, X: Spec, KernelSizes: tuple[Spec, ...], *, strided: frozenset[str]) -> Size:
        last = is_channels_last(self.data_format)
        sizes = self._sizes(X, last, self.padding_algorithm, self.ceil_mode, self._requested_sizes(KernelSizes))
        windows, around = sizes.windows * X.known_dtype.itemsize, 0 if sizes.native else sizes.filled
        needs = copies(strided, X=X) + around + (windows if last else 0)
        if self.pooling_type == "avg":
            return windows if self.global_pooling else needs
        by_torch = needs + sizes.windows * INDEX_BYTES
        if self.global_pooling or self.adaptive or last or not are_few(self.ksize):
            return by_torch
        tall, wide = self.ksize[0] > 1, self.ksize[1] > 1
        first = sizes.filled + sizes.rows - windows if tall else 0  # the rows of windows, of the filled image
        by_slices = no_less(first, sizes.rows if tall else sizes.filled) if wide or tall else sizes.filled
        return no_less(by_slices, by_torch) if strided else by_slices

    def _adapted(self, KernelSizes: Sequence[Tensor]) -> Any:
        return (1, 1) if self.global_pooling else sizes_at_run(self.ksize, None, KernelSizes)

    def _infer_gradient(self, X: Spec, KernelSizes: tuple[Spec, ...], Out: Spec, d_out: Spec) -> Spec:
        expected = Pool2d.infer_shape(self, X, KernelSizes)
        if all(s.value is None for s in KernelSizes) and KernelSizes:  # known at run time only: Out keeps its image
            require(Out.rank == 4, f"Out must have 4 dims, not {Out.rank}", Out=None)
            last = is_channels_last(self.data_format)
            expected = with_image(X, image_of(X, 4, last, "X")[1], image_of(Out, 4, last, "Out")[2], last)
        check_made(Out=(Out, expected), Out_GRAD=(d_out, expected))
        return X.like()

    def _gradient_workspace(self, X: Spec, KernelSizes: tuple[Spec, ...], Out: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        sizes = self._sizes(X, is_channels_last(self.data_format), self.padding_algorithm, self.ceil_mode, self._requested_sizes(KernelSizes))
        size = X.known_dtype.itemsize
        if self.global_pooling or self.adaptive:
            if self.pooling_type == "avg":
                return sizes.windows * size if self.global_pooling else copies(strided, Out_GRAD=d_out)
            return copies(strided, X=X, Out_GRAD=d_out) + sizes.windows * (size + INDEX_BYTES)
        if self.pooling_type == "avg":
            return copies(strided, X=X, Out_GRAD=d_out) + (0 if sizes.native else 2 * sizes.filled + sizes.windows * size)
        place_bytes, image = sizes.windows * (size + INDEX_BYTES), X.nbytes
        by_torch, padded = no_less(image, place_bytes), no_less(2 * sizes.filled, sizes.filled - image + place_bytes)
        return by_torch if sizes.native else padded if sizes.native is False else no_less(by_torch, padded)

    @gradient("X", "KernelSizes", "Out", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, KernelSizes: Sequence[Tensor], Out: Tensor, d_out: Tensor) -> Tensor:
        last = is_channels_last(self.data_format)
        x, d = channels_first(X, last), channels_first(d_out, last)
        axes = self._axes(x, self.padding_algorithm, self.ceil_mode)
        if self.pooling_type == "max":
            if axes is None:
                out = aten.adaptive_max_pool2d_backward(d, x, aten.adaptive_max_pool2d(x, self._adapted(KernelSizes))[1])
            else:
                out = maxima_backward(x, d, axes)
        else:
            out = private.pool2d_gradient(d, x) if axes is None else means_backward(x, d, axes, self.exclusive)
        return channels_back(out, last)

    samples = [
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[3, 2], pooling_type="max", strides=[2, 2]),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[3, 3], pooling_type="max", strides=[2, 1], paddings=[1, 1], ceil_mode=True),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[2, 3], pooling_type="max", strides=[2, 3], paddings=[0, 1, 2, 0]),
        sample(X=f32(2, 3, 5, 7, distinct=True), ksize=[9, 10], pooling_type="max", paddings=[4, 3]),
        sample(X=f32(2, 3, 2, 7, distinct=True), ksize=[3, 2], pooling_type="max", strides=[2, 3]),
        sample(X=f32(2, 3, 2, 1, distinct=True), ksize=[5, 3], pooling_type="max", strides=[4, 3], paddings=[0, 1, 0, 0], ceil_mode=True),
        sample(X=f32(2, 3, 5, 3, distinct=True), ksize=[9, 10], pooling_type="max", strides=[5, 8]),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[1, 1], pooling_type="max"),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[1, 1], pooling_type="max", strides=[2, 3]),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[3, 5], pooling_type="max", adaptive=True),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[-1, -1], pooling_type="max", global_pooling=True),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[3, 4], pooling_type="max", padding_algorithm="SAME", strides=[2, 3]),
        sample(
            X=f32(2, 3, 4, 7, distinct=True), ksize=[3, 2], pooling_type="max", padding_algorithm="SAME", strides=[4, 3], ceil_mode=True, differentiate=False
        ),
        sample(X=f32(2, 7, 8, 3, distinct=True), ksize=[3, 2], pooling_type="max", strides=[2, 2], data_format="NHWC"),
        sample(X=f32(2, 3, 7, 8), ksize=[3, 2], pooling_type="avg", strides=[2, 2], paddings=[1, 1]),
        sample(X=f32(2, 3, 7, 8), ksize=[3, 2], pooling_type="avg", strides=[2, 2], paddings=[1, 1], exclusive=False),
        sample(X=f32(2, 3, 7, 9), ksize=[4, 4], pooling_type="avg", strides=[2, 2], paddings=[1, 2], exclusive=False, ceil_mode=True),
        sample(X=f32(2, 3, 7, 9), ksize=[4, 4], pooling_type="avg", strides=[3, 4], paddings=[1, 2, 0, 1], ceil_mode=True),
        sample(X=f32(2, 3, 3, 5), ksize=[1, 2], pooling_type="avg", strides=[3, 4], ceil_mode=True),
        sample(X=f32(2, 3, 2, 7), ksize=[3, 2], pooling_type="avg", strides=[3, 2]),
        sample(X=f32(2, 3, 1, 7), ksize=[4, 3], pooling_type="avg", strides=[3, 2], paddings=[1, 0], exclusive=False),
        sample(X=f32(2, 2, 1, 3), ksize=[4, 2], pooling_type="avg", strides=[3, 2], ceil_mode=True, data_format="NHWC"),
        sample(X=f32(2, 3, 7, 8), ksize=[3, 5], pooling_type="avg", adaptive=True),
        sample(X=f32(2, 3, 7, 8), KernelSizes=[i32(1, data=[3]), i32(1, data=[5])], pooling_type="avg", adaptive=True),
        sample(X=f32(2, 7, 8, 3), KernelSizes=[i64(data=2), i64(data=5)], pooling_type="avg", adaptive=True, data_format="NHWC"),
        sample(X=f32(2, 3, 7, 8, distinct=True), KernelSizes=[i32(1, data=[3]), i32(1, data=[5])], pooling_type="max", adaptive=True),
        sample(X=f32(2, 3, 7, 8), ksize=[-1, -1], pooling_type="avg", global_pooling=True),
        sample(X=f32(2, 3, 7, 8), ksize=[3, 4], pooling_type="avg", padding_algorithm="SAME", strides=[2, 3]),
        sample(X=f32(2, 3, 7, 8), ksize=[3, 4], pooling_type="avg", padding_algorithm="VALID", paddings=[1, 1]),
        sample(X=f32(2, 7, 8, 3), ksize=[3, 2], pooling_type="avg", strides=[2, 2], data_format="NHWC", paddings=[0, 1, 0, 1]),
        sample(X=f32(0, 3, 7, 8), ksize=[3, 2], pooling_type="avg"),
        sample(X=f32(0, 3, 7, 8), ksize=[3, 2], pooling_type="max"),
    ]
    rejects = [
        reject(X=f32(2, 3, 1, 7), ksize=[2, 2], pooling_type="max", says="must fit into the padded image"),
        reject(X=f32(2, 3, 0, 7), ksize=[2, 2], pooling_type="max", global_pooling=True, says="must not be empty"),
        reject(X=f32(2, 3, 7, 7), ksize=[2], pooling_type="max", says="ksize must have 2 numbers"),
        reject(X=f32(2, 3, 7, 7), ksize=[0, 2], pooling_type="avg", says="ksize must be at least 1"),
        reject(X=f32(2, 3, 7, 7), ksize=[2, -(2**31)], pooling_type="avg", adaptive=True, says="ksize must be at least 1"),
        reject(X=f32(2, 3, 7, 7), KernelSizes=[i32(1, data=[2]), i32(1, data=[2])], pooling_type="avg", says="must be adaptive where ksize comes"),
        reject(X=f32(2, 3, 7, 7), KernelSizes=[i32(1, data=[2])], pooling_type="avg", adaptive=True, says="ksize must have 2 numbers; seen 1"),
        reject(X=f32(2, 3, 7, 7), KernelSizes=[i32(1, data=[2]), i32(1, data=[0])], pooling_type="avg", adaptive=True, says="ksize must be at least 1"),
        reject(X=f32(2, 3, 7, 7), ksize=[2, 2], pooling_type="avg", paddings=[1], says="paddings must have 2 numbers, or 4"),
    ]


class PlacedMaxima(Pooling):
    """The base of the maxima of windows with their places."""

    abstract = True
    Mask = result(doc="int32, as Out")
    ceil_mode = attribute(AttrType.BOOLEAN, False, since=3, doc="the number of windows is rounded up")

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        channels, image = self._image(X, False)
        out = with_image(X, channels, self._counts(image, ceil=self.ceil_mode), False)
        return out, out.with_dtype(INT32)

    def _gradient_workspace(self, X: Spec, Mask: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return Mask.elements * INDEX_BYTES + copies(strided, Mask=Mask, Out_GRAD=d_out)

    def _infer_gradient(self, X: Spec, Mask: Spec, d_out: Spec) -> Spec:
        expected, mask = PlacedMaxima.infer_shape(self, X)
        check_made(Mask=(Mask, mask), Out_GRAD=(d_out, expected))
        return X.like()

    @gradient("X", "Mask", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Mask: Tensor, d_out: Tensor) -> Tensor:
        out = torch.zeros(X.shape, dtype=d_out.dtype, device=d_out.device)
        return out.flatten(2).scatter_add_(2, Mask.flatten(2).long(), d_out.flatten(2)).view(X.shape)


class MaxPool2dWithIndex(PlacedMaxima):
    """Out = the maximum of each window of X; Mask = its place in its image, ``row * width + column``.

    A window behind the image, of ceil_mode, has the least number of the element type, and some place.
    """

    type = "max_pool2d_with_index"
    gradient_reads_dims = ("X",)

    def kernel(self, X: Tensor) -> tuple[Tensor, Tensor]:
        axes = self._axes(X, ceil=self.ceil_mode)
        if axes is None:
            out, index = aten.adaptive_max_pool2d(X, (1, 1) if self.global_pooling else self.ksize)
        else:
            out, index = maxima_with_index(X, axes)
        return out, index.to(torch.int32)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        sizes = self._sizes(X, ceil=self.ceil_mode)
        return copies(strided, X=X) + (sizes.windows * INDEX_BYTES if sizes.native else sizes.filled + 4 * sizes.windows * INDEX_BYTES)

    samples = [
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[3, 2], strides=[2, 2]),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[3, 3], strides=[2, 1], paddings=[1, 0]),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[3, 2], strides=[2, 1], paddings=[2, 1]),
        sample(X=f32(2, 3, 2, 5, distinct=True), ksize=[4, 3], strides=[3, 2]),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[3, 5], adaptive=True),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[3, 5], global_pooling=True),
        sample(X=f32(2, 3, 7, 8, distinct=True), ksize=[3, 3], strides=[3, 2], paddings=[0, 1], ceil_mode=True),
        sample(X=f32(0, 3, 7, 8), ksize=[3, 2]),
    ]
    rejects = [
        reject(X=f32(2, 3, 1, 7), ksize=[2, 2], says="must fit into the padded image"),
        reject(X=f32(2, 3, 1, 7), ksize=[3, 2], strides=[2, 1], says="must fit into the padded image, but for less than a stride of 2"),
    ]
