"""Pooling over windows that are divided finer from level to level: spp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshape.dims import Size
from foreshape.errors import SchemaError
from foreshape.operator import FLOATING, AttrType, F, Operator, attribute, f32, gradient, operand, reject, require_at_most, require_rank, result, sample, torch
from foreshape.operator.temporaries import copies
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


class Spp(Operator):
    """Out = X pooled over windows, 1 x 1 in level 0, 2 x 2 in level 1, and so on, all levels and channels in a row (He et al., 2014).

    In a level with b x b windows these are ceil(height / b) high, from (b ceil(height / b) - height + 1) // 2 rows above the image on; in width
    likewise. Of a window outside of the image the mean is 0 (in PaddlePaddle no number), and the largest the least number there is.
    """

    type = "spp"
    X = operand(FLOATING, doc="[images, channels, height, width]")
    Out = result(layout="row", doc="[images, channels (4^pyramid_height - 1) / 3]")
    pyramid_height = attribute(AttrType.INT, low=1, high=12, doc="how many levels there are")
    pooling_type = attribute(AttrType.STRING, choices=("max", "avg"))

    def infer_shape(self, X: Spec) -> Spec:
        require_rank(4, X, "X")
        for axis in (2, 3):
            require_at_most(1, X.known_dims[axis], "the images of X must not be empty", X=axis)
        return X.with_dims((X.known_dims[0], X.known_dims[1] * ((4**self.pyramid_height - 1) // 3)))

    def _bytes(self, X: Spec) -> Size:
        images, channels, height, width = X.known_dims
        finest = 2 ** (self.pyramid_height - 1)
        return 6 * images * channels * (height + 2 * finest) * (width + 2 * finest) * max(X.known_dtype.itemsize, 8)

    def workspace(self, X: Spec) -> Size:
        return self._bytes(X) + self.infer_shape(X).nbytes

    def _windows(self, x: Tensor, bins: int, fill: float) -> tuple[Tensor, tuple[int, int]]:
        """``[images, channels, bins, bins, elements of a window]``, and how far they begin above and to the left."""
        sizes: list[int] = []
        before: list[int] = []
        for size in x.shape[2:]:
            window = -(-size // bins)
            sizes.append(window)
            before.append((window * bins - size + 1) // 2)
        (high, wide), (above, left) = sizes, before
        after = [bins * window - size - first for window, size, first in zip(sizes, x.shape[2:], before, strict=True)]
        padded = F.pad(x, (left, after[1], above, after[0]), value=fill)
        apart = padded.reshape(*x.shape[:2], bins, high, bins, wide)
        return apart.transpose(3, 4).reshape(*x.shape[:2], bins, bins, high * wide), (above, left)

    def _means(self, x: Tensor, bins: int) -> tuple[Tensor, Tensor]:
        """The sums of the windows, and how many elements of the image each has, 1 at least."""
        sums = self._windows(x, bins, 0.0)[0].sum(-1)
        inside = self._windows(x.new_ones(1, 1, *x.shape[2:]), bins, 0.0)[0].sum(-1)
        return sums, inside.clamp_(min=1.0)

    def kernel(self, X: Tensor) -> Tensor:
        levels: list[Tensor] = []
        for level in range(self.pyramid_height):
            if self.pooling_type == "max":
                pooled = self._windows(X, 2**level, torch.finfo(X.dtype).min)[0].amax(-1)
            else:
                sums, inside = self._means(X, 2**level)
                pooled = sums.div_(inside)
            levels.append(pooled.flatten(1))
        return torch.cat(levels, 1)

    def _infer_gradient(self, X: Spec, Out: Spec, d_out: Spec) -> Spec:
        made = Spp.infer_shape(self, X)
        check_made(Out=(Out, made), Out_GRAD=(d_out, made))
        return X.like()

    def _gradient_workspace(self, X: Spec, Out: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * self._bytes(X) + d_out.nbytes + copies(strided, Out_GRAD=d_out)

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        images, channels, height, width = X.shape
        d_x, first = X.new_zeros(X.shape), 0
        for level in range(self.pyramid_height):
            bins = 2**level
            count = channels * bins * bins
            d = d_out[:, first : first + count].reshape(images, channels, bins, bins, 1)
            first += count
            windows, (above, left) = self._windows(X, bins, torch.finfo(X.dtype).min)
            if self.pooling_type == "max":
                shares = torch.zeros_like(windows).scatter_(-1, windows.argmax(-1, keepdim=True), d)
            else:
                shares = (d / self._means(X, bins)[1].unsqueeze(-1)).expand(windows.shape)
            high, wide = -(-height // bins), -(-width // bins)
            whole = shares.reshape(images, channels, bins, bins, high, wide).transpose(3, 4).reshape(images, channels, bins * high, bins * wide)
            rows, columns = min(height, bins * high - above), min(width, bins * wide - left)
            d_x[:, :, :rows, :columns] += whole[:, :, above : above + rows, left : left + columns]
        return d_x

    samples = [
        sample(X=f32(2, 3, 7, 6, distinct=True), pyramid_height=3, pooling_type="max"),
        sample(X=f32(2, 3, 7, 6), pyramid_height=3, pooling_type="avg"),
        sample(X=f32(2, 3, 5, 4, distinct=True), pyramid_height=1, pooling_type="max"),
        sample(X=f32(2, 5, 3, 4, distinct=True), pyramid_height=3, pooling_type="max", differentiate=False),
        sample(X=f32(2, 5, 3, 4), pyramid_height=3, pooling_type="avg"),
        sample(X=f32(0, 3, 5, 4), pyramid_height=2, pooling_type="avg"),
    ]
    rejects = [
        reject(X=f32(2, 3, 7), pyramid_height=2, pooling_type="max", says="X must have 4 dims"),
        reject(X=f32(2, 3, 0, 4), pyramid_height=2, pooling_type="max", says="must not be empty"),
        reject(X=f32(2, 3, 7, 6), pyramid_height=0, pooling_type="max", says="at least 1", error=SchemaError),
        reject(X=f32(2, 3, 7, 6), pyramid_height=2, pooling_type="sum", says="one of", error=SchemaError),
    ]
