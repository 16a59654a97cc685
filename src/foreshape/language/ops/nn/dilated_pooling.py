"""Pooling of windows with spaces between their elements, over one to three axes, with the counts and places that ONNX has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, ceildiv, maximum, minimum, product
from foreshape.core.spec import FLOATING, INT8, INT64, UINT8, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.language.operator import OWN, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.window import check_count, image_of
from foreshape.machine.kernels.spaced_windows import DilatedAxis, divisors, largest_places, reduced, spread

ALGORITHMS = ("EXPLICIT", "SAME_UPPER", "SAME_LOWER")


class DilatedPool(Operator):
    """Out = the maximum, the mean or the sum of each window of X; Mask = the place in X of the maximum, counted over batch and channels too.

    An axis of size n has ``(n + pads - reach) // stride + 1`` windows, perhaps none, where ``reach = (window - 1) dilation + 1``. With ceil_mode their number
    is rounded up, but none begins behind the padding before the axis and the axis itself. SAME has ``ceil(n / stride)`` windows; the odd pad of it is behind
    (SAME_UPPER) or before the axis. A mean counts the elements inside the image (exclusive) or also those in its paddings. A window without elements has
    the least number of the element type as its maximum, and some place.
    """

    type = "dilated_pool"
    examples = ("X",)
    since = OWN
    X = operand((*FLOATING, INT8, UINT8), doc="[batch, channels, *image], one to three image axes; integers for maxima alone")
    Out = result(doc="[batch, channels, *windows]", layout="row")
    Mask = result(optional=True, doc="int64, as Out, with return_mask", layout="row")
    pooling_type = attribute(AttrType.STRING, choices=("max", "avg", "sum"))
    ksize = attribute(AttrType.INTS, low=1, doc="the sizes of a window")
    strides = attribute(AttrType.INTS, low=1)
    dilations = attribute(AttrType.INTS, low=1)
    paddings = attribute(AttrType.INTS, low=0, doc="before and after each axis")
    padding_algorithm = attribute(AttrType.STRING, "EXPLICIT", choices=ALGORITHMS)
    ceil_mode = attribute(AttrType.BOOLEAN, False)
    exclusive = attribute(AttrType.BOOLEAN, True)
    return_mask = attribute(AttrType.BOOLEAN, False)
    column_major = attribute(AttrType.BOOLEAN, False, doc="Mask counts along columns: the first image axis is the fastest")

    def _axes(self, image: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return padding before, padding after, and number of windows of each axis; sizes may be symbolic."""
        out: list[tuple[Any, ...]] = []
        for axis, (n, k, s, d) in enumerate(zip(image, self.ksize, self.strides, self.dilations, strict=True)):
            reach = (k - 1) * d + 1
            if self.padding_algorithm != "EXPLICIT":
                count = ceildiv(n, s)
                total = maximum((count - 1) * s + reach - n, 0)
                small = total // 2
                out.append((small, total - small, count) if self.padding_algorithm == "SAME_UPPER" else (total - small, small, count))
                continue
            front, back = self.paddings[2 * axis : 2 * axis + 2]
            room = n + front + back - reach
            count = minimum(ceildiv(room, s) + 1, ceildiv(n + front, s)) if self.ceil_mode else room // s + 1
            out.append((front, back, maximum(count, 0)))
        return out

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec | None]:
        require(3 <= X.rank <= 5, f"X must have 3, 4 or 5 dims, not {X.rank}", X=None)
        batch, channels, image = image_of(X, X.rank, False, "X")
        for name in ("ksize", "strides", "dilations"):
            check_count(getattr(self, name), len(image), name)
        check_count(self.paddings, 2 * len(image), "paddings")
        maxima, is_whole = self.pooling_type == "max", X.dtype in (INT8, UINT8)
        if is_whole and not maxima:
            fail(f"a pooling of {X.known_dtype.name} must be of the type max, not {self.pooling_type}", TypeMismatchError, X=None)
        if self.return_mask and not maxima:
            fail("only maxima have places: with return_mask the pooling_type must be max", SchemaError)
        out = X.with_dims((batch, channels, *(count for _, _, count in self._axes(image))))
        return out, out.with_dtype(INT64) if self.return_mask else None

    def _windows(self, X: Tensor) -> list[DilatedAxis]:
        image = X.shape[2:]
        parts = zip(image, self.ksize, self.dilations, self.strides, self._axes(image), strict=True)
        return [DilatedAxis(int(n), k, d, s, *numbers) for n, k, d, s, numbers in parts]

    def kernel(self, X: Tensor) -> tuple[Tensor, Tensor | None]:
        axes = self._windows(X)
        out = reduced(X, axes, self.pooling_type == "max")
        if self.pooling_type == "avg":
            out = out.div_(divisors(X, axes, self.exclusive))
        return out, self._mask(largest_places(X, axes), X) if self.return_mask else None

    def _mask(self, places: Tensor, X: Tensor) -> Tensor:
        """Return places in images as places in X."""
        image = X.shape[2:]
        if self.column_major:
            row_major = torch.zeros_like(places)
            for axis in range(len(image) - 1, -1, -1):
                row_major.add_((places % image[axis]).mul_(int(product(image[:axis]))))
                places = places // image[axis]
            places = row_major
        first = torch.arange(X.shape[0] * X.shape[1], device=X.device).mul_(int(product(image)))
        return places.add_(first.view(*X.shape[:2], *[1] * len(image)))

    def _padded(self, X: Spec) -> Size:
        """Return the elements of images padded up to the reach of the windows."""
        dims = list(X.known_dims)
        for axis, (k, s, d, (front, back, _)) in enumerate(zip(self.ksize, self.strides, self.dilations, self._axes(X.known_dims[2:]), strict=True), 2):
            dims[axis] = dims[axis] + front + back + s + (k - 1) * d
        return product(dims)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        out, _ = self.infer_shape(X)
        wide, item = self._padded(X), X.known_dtype.itemsize
        places = wide * (item if X.known_dtype.is_floating else 8) + out.elements * 48 if self.return_mask else 0
        return 3 * wide * item + 4096 + places + copies(strided, X=X)

    def _infer_gradient(self, X: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, DilatedPool.infer_shape(self, X)[0]))
        return X.like()

    def _gradient_workspace(self, X: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 4 * self._padded(X) * X.known_dtype.itemsize + d_out.elements * 48 + d_out.nbytes + 4096 + copies(strided, X=X, Out_GRAD=d_out)

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        axes = self._windows(X)
        if self.pooling_type == "max":
            out = torch.zeros(X.shape, dtype=X.dtype, device=X.device)
            out.flatten(2).scatter_add_(2, largest_places(X, axes).flatten(2), d_out.flatten(2))
            return out
        return spread(d_out / divisors(X, axes, self.exclusive) if self.pooling_type == "avg" else d_out, axes)

    samples = [
        sample(X=f32(2, 3, 7, 8, distinct=True), pooling_type="max", ksize=[3, 2], strides=[2, 1], dilations=[2, 3], paddings=[1, 2, 0, 1], return_mask=True),
        sample(X=f32(2, 3, 9, distinct=True), pooling_type="max", ksize=[2], strides=[3], dilations=[2], paddings=[1, 1], ceil_mode=True, return_mask=True),
        sample(
            X=f32(2, 3, 5, 6, 7, distinct=True),
            pooling_type="max",
            ksize=[2, 1, 3],
            strides=[2, 1, 3],
            dilations=[3, 1, 1],
            paddings=[0, 1, 0, 0, 1, 0],
            return_mask=True,
            column_major=True,
        ),
        sample(X=f32(2, 3, 7, 8), pooling_type="avg", ksize=[3, 2], strides=[2, 3], dilations=[1, 2], paddings=[1, 2, 0, 1], ceil_mode=True),
        sample(X=f32(2, 3, 7, 8), pooling_type="avg", ksize=[3, 2], strides=[2, 3], dilations=[1, 2], paddings=[1, 2, 0, 1], ceil_mode=True, exclusive=False),
        sample(X=f32(2, 3, 7, 8), pooling_type="sum", ksize=[1, 3], strides=[2, 2], dilations=[1, 2], paddings=[0] * 4, padding_algorithm="SAME_LOWER"),
        sample(
            X=f32(2, 3, 7, 8, distinct=True),
            pooling_type="max",
            ksize=[4, 3],
            strides=[2, 3],
            dilations=[1, 2],
            paddings=[0] * 4,
            padding_algorithm="SAME_UPPER",
        ),
        sample(X=f32(2, 3, 2, 8), pooling_type="max", ksize=[3, 2], strides=[1, 1], dilations=[1, 1], paddings=[0] * 4, return_mask=True),
        sample(X=f32(0, 3, 7), pooling_type="avg", ksize=[3], strides=[2], dilations=[2], paddings=[1, 0]),
    ]
    rejects = [
        reject(X=f32(2, 3, 7), pooling_type="max", ksize=[3, 3], strides=[2], dilations=[2], paddings=[1, 0], says="ksize must have 1 numbers"),
        reject(X=f32(2, 3, 7), pooling_type="max", ksize=[3], strides=[2], dilations=[2], paddings=[1], says="paddings must have 2 numbers"),
        reject(
            X=f32(2, 3, 7),
            pooling_type="avg",
            ksize=[3],
            strides=[2],
            dilations=[2],
            paddings=[1, 0],
            return_mask=True,
            says="only maxima have places",
            error=SchemaError,
        ),
    ]
