"""Pooling of volumes, and unpooling: maxima put back at their places in larger images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from foreshape.core.dims import Size, maximum, minimum, no_less, product
from foreshape.core.spec import FLOATING, INDEX, Spec
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import F, Tensor, aten, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal, unknown_size
from foreshape.language.operator.samples import f32, i32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.nn.pooling import PlacedMaxima, Pooling
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.known_values import known_sizes, sizes_at_run
from foreshape.language.ops.rules.window import (
    ALGORITHMS,
    VOLUME_FORMATS,
    channels_back,
    channels_first,
    channels_first_dims,
    image_of,
    is_channels_last,
    pads_of,
    with_image,
)
from foreshape.machine.kernels.pooling import INDEX_BYTES, Axis, are_few, slices_workspace
from foreshape.machine.kernels.volume_pooling import greatest, maxima, maxima_backward, means, means_backward
from foreshape.machine.kernels.window_steps import lacking


class VolumePooling(Pooling):
    """The base of the poolings of volumes."""

    abstract = True
    _spatial: ClassVar[int] = 3
    X = operand(FLOATING, doc="[batch, channels, depth, height, width], or the channels last by data_format")
    ksize = attribute(AttrType.INTS, doc="depth, height and width of a window; of the result if adaptive; unused with global_pooling")
    strides = attribute(AttrType.INTS, [1, 1, 1], low=1)
    paddings = attribute(AttrType.INTS, [0, 0, 0], low=0, doc="one number per axis, or two: before and after")

    def _windows(self, x: Tensor, algorithm: str = "EXPLICIT", ceil: bool = False) -> list[Axis] | None:
        """Return the windows over the volumes in ``x``; None if they are adaptive (or the whole volume)."""
        return None if self.global_pooling or self.adaptive else self._windows_of(x.shape[2:], algorithm, ceil)

    @lru_cache(1024)  # noqa: B019  the same in each step; operators of one kind are one instance
    def _windows_of(self, sizes: tuple[int, ...], algorithm: str, ceil: bool) -> list[Axis]:
        pads = pads_of(self.paddings, algorithm, sizes, self.ksize, self.strides)
        counts = self._counts(sizes, algorithm, ceil)
        parts: Any = zip(sizes, self.ksize, self.strides, pads, counts, strict=True)
        return [Axis(n, k, s, pad[0], c) for n, k, s, pad, c in parts]

    def _adapted(self) -> Any:
        return (1, 1, 1) if self.global_pooling else self.ksize

    def _bytes(self, X: Spec, out: Spec, last: bool = False, algorithm: str = "EXPLICIT", ceil: bool = False) -> Size:
        """Return the bytes of padded volumes, and of twice the windows' results with their places."""
        return 2 * self._filled(X, last, algorithm, ceil)[0] + 2 * out.nbytes + 5 * INDEX_BYTES * out.elements

    def _filled(self, X: Spec, last: bool, algorithm: str, ceil: bool) -> tuple[Size, tuple[Size, ...]]:
        """Return the bytes of padded volumes, 0 without padding, and their depth, height and width."""
        dims = channels_first_dims(X, last)
        if self.global_pooling or self.adaptive:
            return 0, tuple(dims[2:])
        pads = [(0, k - 1) for k in self.ksize] if algorithm == "SAME" else pads_of(self.paddings, algorithm, dims[2:], self.ksize, self.strides)
        extra = [front + behind + (s - 1 if ceil else 0) for (front, behind), s in zip(pads, self.strides, strict=True)]
        reaching = [lacking(n, k, m, s) for n, m, k, s in zip(dims[2:], extra, self.ksize, self.strides, strict=True)]
        sizes = tuple(n + m + r for n, m, r in zip(dims[2:], extra, reaching, strict=True))
        return product((*dims[:2], *sizes)) * X.known_dtype.itemsize * (1 if any(extra) else minimum(1, maximum(*reaching))), sizes


class Pool3d(VolumePooling):
    """Out = the maximum or the mean of each window of the volumes in X, as pool2d for images."""

    type = "pool3d"
    gradient_reads_dims = ("Out",)
    pooling_type = attribute(AttrType.STRING, choices=("max", "avg"))
    exclusive = attribute(AttrType.BOOLEAN, True, doc="a mean does not count the padding")
    ceil_mode = attribute(AttrType.BOOLEAN, False)
    data_format = attribute(AttrType.STRING, "NCDHW", choices=VOLUME_FORMATS)
    padding_algorithm = attribute(AttrType.STRING, "EXPLICIT", choices=ALGORITHMS)

    def infer_shape(self, X: Spec) -> Spec:
        last = is_channels_last(self.data_format)
        channels, sizes = self._image(X, last)
        return with_image(X, channels, self._counts(sizes, self.padding_algorithm, self.ceil_mode, 1 if last else 2), last)

    def kernel(self, X: Tensor) -> Tensor:
        last = is_channels_last(self.data_format)
        x = channels_first(X, last)
        axes = self._windows(x, self.padding_algorithm, self.ceil_mode)
        if self.pooling_type == "max":
            out = aten.adaptive_max_pool3d(x, self._adapted())[0] if axes is None else greatest(x, axes)
        else:
            out = F.adaptive_avg_pool3d(x, self._adapted()) if axes is None else means(x, axes, self.exclusive)
        return channels_back(out, last)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        last = is_channels_last(self.data_format)
        out = self.infer_shape(X)
        filled, sizes = self._filled(X, last, self.padding_algorithm, self.ceil_mode)
        by_torch = filled + INDEX_BYTES * out.elements + copies(strided, X=X) + (X.nbytes + out.nbytes if last else 0)
        if self.global_pooling or self.adaptive or self.pooling_type == "avg" or last or not are_few(self.ksize):
            return by_torch
        batch, channels, *counts = out.known_dims
        by_slices = slices_workspace(filled, sizes, self.ksize, counts, batch * channels * X.known_dtype.itemsize)
        return no_less(by_slices, by_torch) if strided else by_slices

    def _infer_gradient(self, X: Spec, Out: Spec, d_out: Spec) -> Spec:
        expected = Pool3d.infer_shape(self, X)
        check_made(Out=(Out, expected), Out_GRAD=(d_out, expected))
        return X.like()

    def _gradient_workspace(self, X: Spec, Out: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        last = is_channels_last(self.data_format)
        if self.pooling_type == "avg" or self.global_pooling or self.adaptive:
            needs = self._bytes(X, Out, last, self.padding_algorithm, self.ceil_mode)
        else:  # the places are found with the channels last
            filled, _ = self._filled(X, last, self.padding_algorithm, self.ceil_mode)
            place_bytes = Out.nbytes + INDEX_BYTES * Out.elements
            needs = no_less(X.nbytes, place_bytes, 2 * filled - X.nbytes, filled - X.nbytes + place_bytes)
        return needs + copies(strided, X=X, Out_GRAD=d_out) + (2 * X.nbytes + d_out.nbytes if last else 0)

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        last = is_channels_last(self.data_format)
        x, d = channels_first(X, last), channels_first(d_out, last)
        axes = self._windows(x, self.padding_algorithm, self.ceil_mode)
        if self.pooling_type == "max":
            if axes is None:
                out = aten.adaptive_max_pool3d_backward(d, x, aten.adaptive_max_pool3d(x, self._adapted())[1])
            else:
                out = maxima_backward(x, d, axes)
        else:
            out = private.pool3d_gradient(d, x) if axes is None else means_backward(x, d, axes, self.exclusive)
        return channels_back(out, last)

    samples = [
        sample(X=f32(2, 3, 5, 6, 7, distinct=True), ksize=[2, 3, 2], pooling_type="max", strides=[2, 1, 3]),
        sample(X=f32(2, 3, 5, 6, 7, distinct=True), ksize=[3, 3, 3], pooling_type="max", strides=[2, 2, 2], paddings=[1, 0, 1], ceil_mode=True),
        sample(X=f32(2, 3, 2, 4, 3, distinct=True), ksize=[3, 2, 4], pooling_type="max", strides=[2, 1, 3]),
        sample(X=f32(2, 3, 3, 4, 5, distinct=True), ksize=[2, 3, 2], pooling_type="max", adaptive=True),
        sample(X=f32(2, 3, 3, 4, 5, distinct=True), ksize=[-1, -1, -1], pooling_type="max", global_pooling=True),
        sample(X=f32(2, 5, 6, 7, 3, distinct=True), ksize=[2, 3, 2], pooling_type="max", padding_algorithm="SAME", strides=[2, 1, 3], data_format="NDHWC"),
        sample(X=f32(2, 3, 5, 6, 7), ksize=[2, 3, 2], pooling_type="avg", strides=[2, 1, 3], paddings=[1, 1, 0]),
        sample(X=f32(2, 3, 5, 6, 7), ksize=[2, 3, 4], pooling_type="avg", strides=[2, 2, 2], paddings=[1, 1, 2], exclusive=False, ceil_mode=True),
        sample(X=f32(2, 3, 5, 6, 7), ksize=[2, 3, 2], pooling_type="avg", paddings=[0, 1, 1, 0, 1, 1]),
        sample(X=f32(2, 3, 2, 4, 3), ksize=[3, 2, 4], pooling_type="avg", strides=[2, 1, 3]),
        sample(X=f32(2, 3, 3, 4, 5), ksize=[2, 3, 2], pooling_type="avg", adaptive=True),
        sample(X=f32(2, 3, 4, 5, 6), ksize=[-1, -1, -1], pooling_type="avg", global_pooling=True, data_format="NDHWC"),
        sample(X=f32(0, 3, 5, 6, 7), ksize=[2, 3, 2], pooling_type="avg"),
    ]
    rejects = [
        reject(X=f32(2, 3, 1, 7, 8), ksize=[2, 2, 2], pooling_type="max", says="must fit into the padded image"),
        reject(X=f32(2, 3, 4, 7, 8), ksize=[2, 2], pooling_type="max", says="ksize must have 3 numbers"),
        reject(X=f32(2, 3, 4, 7, 8), ksize=[2, 2, 2], pooling_type="avg", paddings=[1, 1], says="paddings must have 3 numbers, or 6"),
    ]


class MaxPool3dWithIndex(PlacedMaxima, VolumePooling):
    """Out = the maximum of each window of X; Mask = its place in its volume, ``(plane * height + row) * width + column``.

    A window behind the volume, of ceil_mode, has the least number of the element type, and some place.
    """

    type = "max_pool3d_with_index"
    gradient_reads_dims = ("X",)

    def kernel(self, X: Tensor) -> tuple[Tensor, Tensor]:
        axes = self._windows(X, ceil=self.ceil_mode)
        out, index = aten.adaptive_max_pool3d(X, self._adapted()) if axes is None else maxima(X, axes)
        return out, index.to(torch.int32)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return self._bytes(X, self.infer_shape(X)[0], ceil=self.ceil_mode) + copies(strided, X=X)

    samples = [
        sample(X=f32(2, 3, 5, 6, 7, distinct=True), ksize=[2, 3, 2], strides=[2, 1, 3]),
        sample(X=f32(2, 3, 5, 6, 7, distinct=True), ksize=[3, 2, 2], strides=[2, 2, 1], paddings=[1, 0, 1]),
        sample(X=f32(2, 3, 2, 4, 3, distinct=True), ksize=[3, 2, 4], strides=[2, 1, 3]),
        sample(X=f32(2, 3, 3, 4, 5, distinct=True), ksize=[2, 3, 2], adaptive=True),
        sample(X=f32(2, 3, 3, 4, 5, distinct=True), ksize=[2, 3, 2], global_pooling=True),
        sample(X=f32(2, 3, 5, 6, 7, distinct=True), ksize=[2, 2, 2], strides=[2, 2, 3], paddings=[0, 1, 0], ceil_mode=True),
        sample(X=f32(0, 3, 5, 6, 7), ksize=[2, 3, 2]),
    ]
    rejects = [reject(X=f32(2, 3, 5, 1, 7), ksize=[2, 2, 2], says="must fit into the padded image")]


class Unpooling(Operator):
    """The base of unpool and unpool3d: ``_spatial`` is the number of image axes."""

    abstract = True
    examples = ("X", "Indices")
    _spatial: ClassVar[int] = 2
    X = operand(FLOATING, doc="[batch, channels, *image]")
    Indices = operand(INDEX, doc="as X: the place of each number in its image of output_size, counted along rows")
    OutputSizes = operand(INDEX, many=True, optional=True, attribute="output_size", doc="output_size, as tensors of one number each")
    Out = result(doc="[batch, channels, *output_size]", layout="row")
    output_size = attribute(AttrType.INTS, [], low=1, doc="the sizes of the result")

    def infer_shape(self, X: Spec, Indices: Spec, OutputSizes: tuple[Spec, ...]) -> Spec:
        axes = self._spatial
        channels = self._checked(X, Indices)
        requested = known_sizes(self.output_size, None, OutputSizes, "output_size", "OutputSizes")
        require(len(requested) == axes, f"output_size must have {axes} numbers; seen {len(requested)}", X=None)
        sizes = [unknown_size(str(axis)) if size is None else size for axis, size in enumerate(requested, 2)]
        for axis, size in enumerate(sizes):
            require_at_most(1, size, f"output_size must be at least 1; seen {size}", X=axis + 2)
        return with_image(X, channels, sizes, False)

    def _checked(self, X: Spec, Indices: Spec) -> Size:
        axes = self._spatial
        _, channels, _ = image_of(X, axes + 2, False, "X")
        require(Indices.rank == axes + 2, f"Indices must have {axes + 2} dims, as X, not {Indices.rank}", Indices=None, X=None)
        for axis, (a, b) in enumerate(zip(Indices.known_dims, X.known_dims, strict=True)):
            require_equal(a, b, "Indices must have the dims of X", Indices=axis, X=axis)
        return channels

    def _places(self, Indices: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the places ``[batch, channels, elements]``, int64, all inside. Raises `ExecutionError` for places outside."""
        places = Indices.flatten(2).long()
        size = int(product(sizes))
        low, high = (int(places.min()), int(places.max())) if places.numel() else (0, 0)
        if low < 0 or high >= size:
            raise ExecutionError(f"{self.type}: Indices must be from 0 and below {size}, the elements of output_size; seen {low} to {high}")
        return places

    def kernel(self, X: Tensor, Indices: Tensor, OutputSizes: Sequence[Tensor]) -> Tensor:
        sizes = sizes_at_run(self.output_size, None, OutputSizes)
        if len(sizes) != self._spatial or min(sizes) < 1:
            raise ExecutionError(f"{self.type}: output_size must be {self._spatial} numbers of at least 1; seen {list(sizes)}")
        out = X.new_zeros((*X.shape[:2], *sizes))
        out.flatten(2).scatter_(2, self._places(Indices, sizes), X.flatten(2))
        return out

    def workspace(self, X: Spec, Indices: Spec, OutputSizes: tuple[Spec, ...], *, strided: frozenset[str]) -> Size:
        return 8 * Indices.elements + copies(strided, X=X, Indices=Indices)

    def _infer_gradient(self, X: Spec, Indices: Spec, Out: Spec, d_out: Spec) -> Spec:
        self._checked(X, Indices)
        require(Out.rank == X.rank, f"Out must have {X.rank} dims, as X, not {Out.rank}", Out=None)
        for axis in (0, 1):
            require_equal(Out.known_dims[axis], X.known_dims[axis], "Out must have the batch and the channels of X", Out=axis, X=axis)
        check_made(Out_GRAD=(d_out, Out))
        return X.like()

    def _gradient_workspace(self, X: Spec, Indices: Spec, Out: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 8 * Indices.elements + copies(strided, Indices=Indices, Out_GRAD=d_out)

    @gradient("X", "Indices", "Out", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Indices: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        return d_out.flatten(2).gather(2, self._places(Indices, d_out.shape[2:])).view(X.shape)


class Unpool(Unpooling):
    """Out = images of output_size with the numbers of X at the places Indices, and zeros elsewhere. Of several numbers for one place one is taken."""

    type = "unpool"
    layer_function = "max_unpool2d"
    unpooling_type = attribute(AttrType.STRING, "max", choices=("max",))
    ksize = attribute(AttrType.INTS, doc="the windows of the inverted pooling; output_size is its image")
    strides = attribute(AttrType.INTS, [1, 1])
    paddings = attribute(AttrType.INTS, [0, 0])
    output_size = attribute(AttrType.INTS, [], low=1, doc="height and width of the result")
    data_format = attribute(AttrType.STRING, "NCHW", choices=("NCHW",))

    samples = [
        sample(X=f32(2, 1, 2, 3), Indices=i32(2, 1, 2, 3, data=[3, 0, 9, 14, 27, 6, 1, 2, 10, 11, 25, 20]), ksize=[2, 2], strides=[2, 2], output_size=[4, 7]),
        sample(X=f32(1, 2, 1, 2), Indices=i32(1, 2, 1, 2, data=[3, 0, 9, 14]), OutputSizes=[i32(1, data=[3]), i32(1, data=[5])], ksize=[2, 2]),
        sample(X=f32(0, 3, 2, 4), Indices=i32(0, 3, 2, 4), ksize=[2, 2], output_size=[4, 8]),
    ]
    rejects = [reject(X=f32(2, 3, 2, 4), Indices=i32(2, 3, 2, 4), ksize=[2, 2], output_size=[4], says="output_size must have 2 numbers")]


class Unpool3d(Unpooling):
    """Out = volumes of output_size with the numbers of X at the places Indices, and zeros elsewhere. Of several numbers for one place one is taken."""

    type = "unpool3d"
    layer_function = "max_unpool3d"
    _spatial: ClassVar[int] = 3
    unpooling_type = attribute(AttrType.STRING, "max", choices=("max",))
    ksize = attribute(AttrType.INTS, doc="the windows of the inverted pooling; output_size is its volume")
    strides = attribute(AttrType.INTS, [1, 1, 1])
    paddings = attribute(AttrType.INTS, [0, 0, 0])
    output_size = attribute(AttrType.INTS, [], low=1, doc="depth, height and width of the result")
    data_format = attribute(AttrType.STRING, "NCDHW", choices=("NCDHW",))

    samples = [
        sample(X=f32(1, 2, 1, 3, 2), Indices=i32(1, 2, 1, 3, 2, data=[3, 0, 9, 14, 39, 6, 1, 2, 10, 11, 37, 20]), ksize=[2, 2, 2], output_size=[2, 5, 4]),
    ]
