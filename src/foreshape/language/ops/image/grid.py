"""Images read at the points of a grid, and the grids of affine maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, INDEX, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.operator import OWN
from foreshape.language.operator.require import require, require_at_most, require_equal, unknown_size
from foreshape.language.operator.samples import f32, i32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.traits import WHOLE, ShardingRule
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.known_values import known_sizes, sizes_at_run
from foreshape.language.ops.rules.window import image_of
from foreshape.machine.kernels.sampling import read_nearest, read_nearest_backward

PADDING_MODES = ("zeros", "border", "reflection")
_FAR = 1e6
"""The farthest distance of Grid from the image in the gradient."""


class GridSampler(Operator):
    """Output = the images (or volumes) in X at the points in Grid, ``(x, y)`` or ``(x, y, z)`` from -1 to 1 across the image.

    With ``align_corners`` -1 and 1 are the middle of the outer pixels, else their outer edges. A point between pixels has the mean of the pixels around it,
    weighted by nearness (bilinear), or the nearest pixel, halves rounded away from 0 (or to even). Outside, a pixel is 0 ("zeros"), the nearest one of the
    image ("border"), or the image reflected ("reflection").
    """

    type = "grid_sampler"
    layer_function = "grid_sample"
    examples = ("X", "Grid")
    X = operand(FLOATING, doc="[batch, channels, height, width], or [batch, channels, depth, height, width]")
    Grid = operand(FLOATING, same_type_as="X", doc="[batch, *points, 2], or [batch, *points, 3] with three dims of points")
    Output = result(doc="[batch, channels, *points]", layout="row")
    mode = attribute(AttrType.STRING, "bilinear", choices=("bilinear", "nearest"))
    padding_mode = attribute(AttrType.STRING, "zeros", choices=PADDING_MODES)
    align_corners = attribute(AttrType.BOOLEAN, True)
    halves_to_even = attribute(AttrType.BOOLEAN, False, since=OWN, doc="of nearest: halves go to the even pixel, as in torch and PaddlePaddle 3")

    def infer_shape(self, X: Spec, Grid: Spec) -> Spec:
        require(X.rank in (4, 5), f"X must have 4 or 5 dims, not {X.rank}", X=None)
        batch, channels, image = image_of(X, X.rank, False, "X")
        axes = len(image)
        require(Grid.rank == X.rank, f"Grid must have {X.rank} dims, as X, not {Grid.rank}", Grid=None, X=None)
        require_equal(Grid.known_dims[-1], axes, f"a point of Grid must be {axes} numbers", Grid=axes + 1)
        batch = require_equal(Grid.known_dims[0], batch, "Grid must have the points of as many images as X has", Grid=0, X=0)
        return X.with_dims((batch, channels, *Grid.known_dims[1:-1]))

    def _settings(self) -> tuple[int, int, bool]:
        return 0, PADDING_MODES.index(self.padding_mode), self.align_corners

    def kernel(self, X: Tensor, Grid: Tensor) -> Tensor:
        if not X.shape[0] or not Grid.numel():
            return X.new_zeros((*X.shape[:2], *Grid.shape[1:-1]))
        if self.mode == "nearest":
            return read_nearest(X, Grid, self.padding_mode, self.align_corners, self.halves_to_even)
        return (aten.grid_sampler_2d if X.dim() == 4 else aten.grid_sampler_3d)(X, Grid, *self._settings()).contiguous()

    def workspace(self, X: Spec, Grid: Spec, *, strided: frozenset[str]) -> Size:
        return self._workspace(X, Grid, copies(strided, X=X, Grid=Grid))

    def _workspace(self, X: Spec, Grid: Spec, copied: Size) -> Size:
        if self.mode != "nearest":  # if an operand is not contiguous, the result need not be
            return copied + (product((*X.known_dims[:2], *Grid.known_dims[1:-1])) * X.known_dtype.itemsize if copied != 0 else 0)
        points = product(Grid.known_dims[:-1])
        return copied + points * (4 * 8 + 6 * X.known_dtype.itemsize)

    def _infer_gradient(self, X: Spec, Grid: Spec, d_out: Spec) -> tuple[Spec, Spec]:
        check_made(Output_GRAD=(d_out, GridSampler.infer_shape(self, X, Grid)))
        return X.like(), Grid.like()

    def _gradient_workspace(self, X: Spec, Grid: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        copied = copies(strided, X=X, Grid=Grid, Output_GRAD=d_out)
        spread = d_out.nbytes if self.mode == "nearest" else 0
        return self._workspace(X, Grid, 0) + spread + copied + X.nbytes + 2 * Grid.nbytes

    @gradient("X", "Grid", "Output@GRAD", gives=("X@GRAD", "Grid@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Grid: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        if not X.shape[0] or not Grid.numel():
            return X.new_zeros(X.shape), Grid.new_zeros(Grid.shape)
        if self.mode == "nearest":
            d_x = read_nearest_backward(X, Grid, d_out, self.padding_mode, self.align_corners, self.halves_to_even) if requested[0] else None
            return d_x, Grid.new_zeros(Grid.shape) if requested[1] else None
        undo = aten.grid_sampler_2d_backward if X.dim() == 4 else aten.grid_sampler_3d_backward
        finite_grid = Grid.nan_to_num(0.0).clamp_(-_FAR, _FAR)  # torch's kernel for images reads and writes out of bounds at NaN
        d_x, d_grid = undo(d_out, X, finite_grid, *self._settings(), [requested[0], True])
        return d_x.contiguous() if requested[0] else None, d_grid.contiguous() if requested[1] else None

    samples = [
        sample(X=f32(2, 3, 5, 7), Grid=f32(2, 4, 6, 2, low=-1.3, high=1.3)),
        sample(X=f32(2, 3, 5, 7), Grid=f32(2, 4, 6, 2, low=-1.6, high=1.6), padding_mode="border", align_corners=False),
        sample(X=f32(2, 3, 5, 7), Grid=f32(2, 4, 6, 2, low=-2.6, high=2.6), padding_mode="reflection"),
        sample(X=f32(2, 3, 5, 7), Grid=f32(2, 4, 6, 2, low=-2.6, high=2.6), padding_mode="reflection", align_corners=False),
        sample(X=f32(2, 3, 5, 7), Grid=f32(2, 4, 6, 2, low=-1.3, high=1.3), mode="nearest"),
        sample(
            X=f32(2, 3, 5, 4),
            Grid=f32(2, 2, 3, 2, data=[0, 1, -0.5, 0.5, 0.25, -0.25, 1, -1, 0.75, 0, -1.1, 1] * 2),
            mode="nearest",
            align_corners=False,
            differentiate=False,
        ),
        sample(X=f32(1, 2, 1, 6), Grid=f32(1, 1, 4, 2, data=[-0.8, 0, -0.4, 0, 0.0, 0, 0.4, 0]), mode="nearest", halves_to_even=True, differentiate=False),
        sample(X=f32(2, 3, 4, 5, 6), Grid=f32(2, 3, 2, 4, 3, low=-1.3, high=1.3)),
        sample(X=f32(2, 3, 4, 5, 6), Grid=f32(2, 3, 2, 4, 3, low=-1.6, high=1.6), mode="nearest", padding_mode="reflection", align_corners=False),
        sample(X=f32(0, 3, 5, 7), Grid=f32(0, 4, 6, 2)),
    ]
    rejects = [
        reject(X=f32(3, 5, 7), Grid=f32(4, 6, 2), says="X must have 4 or 5 dims"),
        reject(X=f32(2, 3, 5, 7), Grid=f32(2, 4, 6, 3), says="a point of Grid must be 2 numbers"),
        reject(X=f32(2, 3, 5, 7), Grid=f32(3, 4, 6, 2), says="as many images as X"),
        reject(X=f32(2, 3, 5, 7), Grid=f32(2, 4, 2), says="Grid must have 4 dims"),
    ]


class AffineGrid(Operator):
    """Output = for each pixel of an image (or volume) of a size its place under an affine map: ``Theta (x, y, 1)``, in [-1, 1] across the image."""

    type = "affine_grid"
    sets_dims = ("OutputShape",)
    Theta = operand(FLOATING, doc="[batch, 2, 3], or [batch, 3, 4] of volumes")
    OutputShape = operand(INDEX, optional=True, doc="[4] or [5]: batch, channels and the sizes of the image, instead of output_shape")
    Output = result(doc="[batch, height, width, 2], or [batch, depth, height, width, 3]", layout="row")
    output_shape = attribute(AttrType.INTS, [], doc="batch (or -1), channels and the sizes of the image")
    align_corners = attribute(AttrType.BOOLEAN, True, doc="-1 and 1 are the middle of the outer pixels, not their outer edges")

    def infer_shape(self, Theta: Spec, OutputShape: Spec | None) -> Spec:
        require(Theta.rank == 3, f"Theta must have 3 dims, not {Theta.rank}", Theta=None)
        batch, rows, columns = Theta.known_dims
        shape = known_sizes(self.output_shape, OutputShape, (), "OutputShape")
        require(len(shape) in (4, 5), f"output_shape must have 4 numbers, or 5 of volumes; seen {len(shape)}", Theta=None)
        axes = len(shape) - 2
        for axis, (size, required) in enumerate(zip((rows, columns), (axes, axes + 1), strict=True), 1):
            require_equal(size, required, f"Theta must be [batch, {axes}, {axes + 1}], since output_shape has {axes + 2} numbers", Theta=axis)
        if shape[0] is not None and (OutputShape is not None or shape[0] != -1):
            require_equal(shape[0], batch, "the batch of output_shape must be that of Theta", Theta=0)
        image = [unknown_size(str(axis)) if size is None else size for axis, size in enumerate(shape[2:])]
        for size in image:
            require_at_most(1, size, f"the sizes in output_shape must be at least 1; seen {size}", Theta=None)
        return Theta.with_dims((batch, *image, axes))

    def sharding_rule(self, Theta: Spec, OutputShape: Spec | None) -> ShardingRule | None:
        batch = known_sizes(self.output_shape, OutputShape, (), "OutputShape")[0]
        is_open = batch == -1 or (batch is not None and not isinstance(batch, int))
        return ShardingRule({"Theta": ("batch", WHOLE, WHOLE)}, {"Output": ("batch", *(WHOLE,) * Theta.known_dims[2])}) if is_open else None

    def _terms(self, like: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Return the places along each axis of an image, in the order of its dims, ``[size, 1]``."""
        ends = [1.0 if self.align_corners else 1 - 1 / size for size in sizes]
        return [torch.linspace(-end, end, size, dtype=like.dtype, device=like.device).unsqueeze(1) for size, end in zip(sizes, ends, strict=True)]

    def kernel(self, Theta: Tensor, OutputShape: Tensor | None) -> Tensor:
        shape = sizes_at_run(self.output_shape, OutputShape)
        axes = Theta.shape[1]
        batch = Theta.shape[0] if OutputShape is None and shape[0] == -1 else shape[0]
        if len(shape) != axes + 2 or batch != Theta.shape[0] or min(shape[2:]) < 1:
            requirement = f"the batch, {Theta.shape[0]}, the channels and {axes} sizes of at least 1"
            raise ExecutionError(f"affine_grid: OutputShape must be {requirement}; seen {list(shape)}")
        by_axis = Theta.unbind(2)
        sizes = shape[2:]
        out = by_axis[axes].view(batch, *[1] * axes, axes)
        for axis, places in enumerate(self._terms(Theta, sizes)):  # all terms but the last are far smaller than the result
            term = (places * by_axis[axes - 1 - axis].unsqueeze(1)).view(batch, *[1] * axis, len(places), *[1] * (axes - 1 - axis), axes)
            # the result lies in a row; a sum would lie as its terms do
            out = out + term if axis < axes - 1 else out.new_empty((batch, *sizes, axes)).copy_(out).add_(term)
        return out

    def workspace(self, Theta: Spec, OutputShape: Spec | None) -> Size:
        out = self.infer_shape(Theta, OutputShape)
        return self._needs(out) + 2 * product(out.known_dims[:-2]) * out.known_dims[-1] * out.known_dtype.itemsize

    def _needs(self, grid: Spec) -> Size:
        """Return the bytes of the places along each axis, and of numbers of each image for them."""
        batch, *image, axes = grid.known_dims
        lines: Size = 0
        for size in image:
            lines = lines + size
        return (lines + axes) * (2 * batch * axes + 1) * grid.known_dtype.itemsize

    def _infer_gradient(self, Theta: Spec, OutputShape: Spec | None, d_out: Spec) -> Spec:
        expected = AffineGrid.infer_shape(self, Theta, OutputShape)
        check_made(Output_GRAD=(d_out, expected))
        return Theta.like()

    def _gradient_workspace(self, Theta: Spec, OutputShape: Spec | None, d_out: Spec) -> Size:
        return self._needs(d_out)

    @gradient("Theta", "OutputShape", "Output@GRAD", gives="Theta@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, Theta: Tensor, OutputShape: Tensor | None, d_out: Tensor) -> Tensor:
        image = d_out.shape[1:-1]
        lines = [d_out.sum([k for k in range(1, len(image) + 1) if k != axis]) for axis in range(1, len(image) + 1)]  # [batch, size, axes]
        parts = [(places * line).sum(1) for places, line in zip(self._terms(d_out, image), lines, strict=True)]
        return torch.stack([*reversed(parts), lines[0].sum(1)], 2)

    samples = [
        sample(Theta=f32(2, 2, 3), output_shape=[2, 7, 4, 5]),
        sample(Theta=f32(2, 2, 3), output_shape=[2, 7, 1, 5], align_corners=False),
        sample(Theta=f32(2, 3, 4), output_shape=[2, 7, 4, 5, 6]),
        sample(Theta=f32(2, 2, 3), output_shape=[-1, 7, 4, 5]),
        sample(Theta=f32(2, 2, 3), OutputShape=i32(4, data=[2, 7, 4, 5]), align_corners=False),
        sample(Theta=f32(0, 2, 3), output_shape=[0, 7, 4, 5]),
    ]
    rejects = [
        reject(Theta=f32(2, 6), output_shape=[2, 7, 4, 5], says="Theta must have 3 dims"),
        reject(Theta=f32(2, 3, 4), output_shape=[2, 7, 4, 5], says="Theta must be [batch, 2, 3]"),
        reject(Theta=f32(2, 2, 4), output_shape=[2, 7, 4, 5], says="Theta must be [batch, 2, 3]"),
        reject(Theta=f32(2, 2, 3), output_shape=[2, 7, 4], says="output_shape must have 4 numbers"),
        reject(Theta=f32(2, 2, 3), output_shape=[3, 7, 4, 5], says="the batch of output_shape"),
        reject(Theta=f32(2, 2, 3), output_shape=[2, 7, 0, 5], says="at least 1"),
        reject(Theta=f32(2, 2, 3), output_shape=[2, 7, -1, 5], says="at least 1"),
    ]
