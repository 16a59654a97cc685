"""Unpooling: maxima put back at their places in larger images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from foreshape.dims import Size, product
from foreshape.errors import ExecutionError, SchemaError
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import require, require_at_most, require_equal, unknown_size
from foreshape.operator.samples import f32, i32, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.ops.rules.size_operands import known_sizes, sizes_at_run
from foreshape.ops.rules.window import image_of, with_image
from foreshape.spec import FLOATING, INDEX, Spec
from foreshape.values.torch_proxy import Tensor


class Unpooling(Operator):
    """The base of unpool and unpool3d: ``_spatial`` is the number of image axes."""

    abstract = True
    _spatial: ClassVar[int] = 2
    X = operand(FLOATING, doc="[batch, channels, *image]")
    Indices = operand(INDEX, doc="as X: the place of each number in its image of output_size, counted along rows")
    OutputSizes = operand(INDEX, many=True, optional=True, attribute="output_size", doc="output_size, as tensors of one number each")
    Out = result(doc="[batch, channels, *output_size]", layout="row")
    output_size = attribute(AttrType.INTS, [], low=1, doc="the sizes of the result")

    def infer_shape(self, X: Spec, Indices: Spec, OutputSizes: tuple[Spec, ...]) -> Spec:
        axes = self._spatial
        channels = self._checked(X, Indices)
        asked = known_sizes(self.output_size, None, OutputSizes, "output_size", "OutputSizes")
        require(len(asked) == axes, f"output_size must have {axes} numbers; seen {len(asked)}", X=None)
        sizes = [unknown_size(str(at)) if size is None else size for at, size in enumerate(asked, 2)]
        for at, size in enumerate(sizes):
            require_at_most(1, size, f"output_size must be at least 1; seen {size}", X=at + 2)
        return with_image(X, channels, sizes, False)

    def _checked(self, X: Spec, Indices: Spec) -> Size:
        axes = self._spatial
        _, channels, _ = image_of(X, axes + 2, False, "X")
        require(Indices.rank == axes + 2, f"Indices must have {axes + 2} dims, as X, not {Indices.rank}", Indices=None, X=None)
        for at, (a, b) in enumerate(zip(Indices.known_dims, X.known_dims, strict=True)):
            require_equal(a, b, "Indices must have the dims of X", Indices=at, X=at)
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
        for at in (0, 1):
            require_equal(Out.known_dims[at], X.known_dims[at], "Out must have the batch and the channels of X", Out=at, X=at)
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
    rejects = [
        reject(X=f32(2, 3, 2), Indices=i32(2, 3, 2), ksize=[2, 2], output_size=[4, 4], says="X must have 4 dims"),
        reject(X=f32(2, 3, 2, 4), Indices=i32(2, 3, 2, 5), ksize=[2, 2], output_size=[4, 8], says="Indices must have the dims of X"),
        reject(X=f32(2, 3, 2, 4), Indices=i32(2, 3, 8), ksize=[2, 2], output_size=[4, 8], says="Indices must have 4 dims"),
        reject(X=f32(2, 3, 2, 4), Indices=i32(2, 3, 2, 4), ksize=[2, 2], output_size=[4], says="output_size must have 2 numbers"),
        reject(X=f32(2, 3, 2, 4), Indices=i32(2, 3, 2, 4), ksize=[2, 2], output_size=[4, 0], says="at least 1", error=SchemaError),
        reject(X=f32(2, 3, 2, 4), Indices=i32(2, 3, 2, 4), ksize=[2, 2], output_size=[4, 8], data_format="NHWC", says="one of", error=SchemaError),
    ]


class Unpool3d(Unpooling):
    """Out = volumes of output_size with the numbers of X at the places Indices, and zeros elsewhere. Of several numbers for one place one is taken."""

    type = "unpool3d"
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
    rejects = [reject(X=f32(2, 3, 2, 4), Indices=i32(2, 3, 2, 4), ksize=[2, 2, 2], output_size=[2, 4, 8], says="X must have 5 dims")]
