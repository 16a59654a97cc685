"""Discrete Fourier transforms along some axes: of complex numbers, of real ones, and back to real ones."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.dims import Size, maximum
from foreshape.core.spec import COMPLEX, Spec
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.math.complex_numbers import COMPLEX_OF, REAL, c64, in_a_row, real_type
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.known_values import axes_of

_NORMS = ("backward", "ortho", "forward")
_DIVIDES = {"ortho": 1}
"""torch's number for a division by the root of the number of elements; 2 is one by the number itself, 0 is none."""


def transformed(x: Tensor, axes: Sequence[int], divides: int, forward: bool) -> Tensor:
    """Return the transform of complex numbers, contiguous; of an empty batch, refused by the library, an empty one."""
    positive = [a % x.dim() for a in axes]
    return in_a_row(private.fft_c2c(x.contiguous(), positive, divides, forward) if x.numel() else x)


def from_real(x: Tensor, axes: Sequence[int], divides: int, onesided: bool) -> Tensor:
    """Return the transform of real numbers, contiguous; with ``onesided`` the first half of the last of ``axes``."""
    positive = [a % x.dim() for a in axes]
    if x.numel():
        return in_a_row(private.fft_r2c(x.contiguous(), positive, divides, onesided))
    dims = list(x.shape)
    dims[positive[-1]] = dims[positive[-1]] // 2 + 1 if onesided else dims[positive[-1]]
    return torch.empty(dims, dtype=x.dtype.to_complex(), device=x.device)


def _to_real(x: Tensor, axes: Sequence[int], divides: int, size: int) -> Tensor:
    positive = [a % x.dim() for a in axes]
    if x.numel():
        return in_a_row(private.fft_c2r(x.contiguous(), positive, divides, size))
    dims = list(x.shape)
    dims[positive[-1]] = size
    return torch.empty(dims, dtype=x.dtype.to_real(), device=x.device)


class Fourier(Operator):
    """The base: the axes, and the divisor."""

    abstract = True
    works_along = "axes"
    axes = attribute(AttrType.LONGS, doc="the axes of the transform, each once; for real numbers the last of them is half as long")
    normalization = attribute(AttrType.STRING, choices=_NORMS, doc="the direction with a division by the number of elements; ortho: both, by its root")
    forward = attribute(AttrType.BOOLEAN, doc="exp has the sign minus")

    def _axes(self, X: Spec) -> tuple[int, ...]:
        require(X.rank > 0 and len(self.axes) > 0, "X must have at least one dim, and axes at least one", X=None)
        axes = axes_of(self.axes, X.rank, "axes", X=None)
        for axis in axes:
            require_at_most(1, X.known_dims[axis], "X must not be empty along the axes of the transform", X=axis)
        return axes

    def _divides(self) -> int:
        return _DIVIDES.get(self.normalization, 2 if (self.normalization == "forward") == self.forward else 0)

    def _work(self, X: Spec) -> Size:
        return 16 * X.elements


class FftC2c(Fourier):
    """Out[k] = sum_n X[n] exp(-+ 2 pi i k n / N) along each of ``axes``, with minus if ``forward`` (Cooley and Tukey, 1965).

    ``normalization`` backward divides a transform that is not ``forward`` by N, forward a ``forward`` one, ortho both by its root.
    """

    type = "fft_c2c"
    layer_function = "fft"
    X = operand(COMPLEX, doc="any shape")
    Out = result(layout="row", doc="as X")

    def infer_shape(self, X: Spec) -> Spec:
        self._axes(X)
        return X.like()

    def work(self, X: Spec) -> Size:
        return self._work(X)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return X.nbytes + copies(strided, X=X)

    def kernel(self, X: Tensor) -> Tensor:
        return transformed(X, self.axes, self._divides(), self.forward)

    def _gradient_workspace(self, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return d_out.nbytes + copies(strided, Out_GRAD=d_out)

    @gradient("Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, d_out: Tensor) -> Tensor:
        return transformed(d_out, self.axes, self._divides(), not self.forward)

    samples = [
        sample(X=c64(2, 3, 5), axes=[2], normalization="backward", forward=True),
        sample(X=c64(2, 3, 5), axes=[1, 2], normalization="backward", forward=False),
        sample(X=c64(2, 4, 5), axes=[1, 0], normalization="ortho", forward=True),
        sample(X=c64(2, 3, 5), axes=[0, 1, 2], normalization="forward", forward=True),
        sample(X=c64(7), axes=[0], normalization="forward", forward=False),
        sample(X=c64(0, 3), axes=[1], normalization="backward", forward=True),
    ]
    rejects = [
        reject(X=c64(2, 3), axes=[], normalization="backward", forward=True, says="at least one"),
        reject(X=c64(0, 3), axes=[0], normalization="backward", forward=True, says="must not be empty along the axes"),
    ]


class FftR2c(Fourier):
    """Out = the transform of real numbers, as of `fft_c2c`. With ``onesided`` the last of ``axes`` has the first N // 2 + 1 numbers alone.

    The others are their conjugates.
    """

    type = "fft_r2c"
    layer_function = "rfft"
    X = operand(REAL, doc="any shape")
    Out = result(layout="row", doc="complex, as X; with onesided the last of axes has N // 2 + 1")
    onesided = attribute(AttrType.BOOLEAN)

    def infer_shape(self, X: Spec) -> Spec:
        last = self._axes(X)[-1]
        dims = list(X.known_dims)
        if self.onesided:
            dims[last] = dims[last] // 2 + 1
        return X.with_dims(dims).with_dtype(COMPLEX_OF[X.known_dtype])

    def work(self, X: Spec) -> Size:
        return self._work(X)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return self.infer_shape(X).nbytes + copies(strided, X=X)

    def kernel(self, X: Tensor) -> Tensor:
        out = from_real(X, self.axes, self._divides(), self.onesided)
        return out if self.forward else out.conj_physical_()

    def _infer_gradient(self, X: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, FftR2c.infer_shape(self, X)))
        return X.like()

    def _gradient_workspace(self, X: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        copied = 2 * X.nbytes if self.onesided else copies(strided, Out_GRAD=d_out)
        return copied + 3 * X.nbytes  # the complex transform twice, less the real result

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        axes: list[int] = [a % X.dim() for a in self.axes]
        full = d_out
        if self.onesided:  # absent elements have no gradient
            full = d_out.new_zeros(X.shape)
            full.narrow(axes[-1], 0, d_out.shape[axes[-1]]).copy_(d_out)
        return in_a_row(transformed(full, axes, self._divides(), not self.forward).real)

    samples = [
        sample(X=f32(2, 3, 5), axes=[2], normalization="backward", forward=True, onesided=True),
        sample(X=f32(2, 3, 6), axes=[1, 2], normalization="ortho", forward=True, onesided=True),
        sample(X=f32(2, 3, 5), axes=[-1], normalization="backward", forward=True, onesided=False),
        sample(X=f32(2, 3, 6), axes=[2, 1], normalization="backward", forward=False, onesided=True),
        sample(X=f32(2, 3, 5), axes=[0, 2], normalization="forward", forward=True, onesided=False),
        sample(X=f32(0, 6), axes=[1], normalization="backward", forward=True, onesided=True),
    ]
    rejects = [reject(X=f32(2, 0), axes=[1], normalization="backward", forward=True, onesided=True, says="must not be empty along the axes")]


class FftC2r(Fourier):
    """Out = the real numbers with the transform X; the last of ``axes`` has its first N // 2 + 1 elements. The inverse of `fft_r2c`.

    N is ``last_dim_size``; if 0, twice the dim there, less 2.
    """

    type = "fft_c2r"
    layer_function = "irfft"
    X = operand(COMPLEX, doc="any shape")
    Out = result(layout="row", doc="real, as X; the last of axes has N")
    last_dim_size = attribute(AttrType.LONG, 0, low=0)

    def infer_shape(self, X: Spec) -> Spec:
        last = self._axes(X)[-1]
        dims = list(X.known_dims)
        size: Size = self.last_dim_size or (dims[last] - 1) * 2
        words = f"the last of axes must have N // 2 + 1 numbers for N = {size}" if self.last_dim_size else "the last of axes must have 2 numbers at least"
        if self.last_dim_size:
            require_equal(dims[last], self.last_dim_size // 2 + 1, words, X=last)
        else:
            require_at_most(2, dims[last], words, X=last)
        dims[last] = size
        return X.with_dims(dims).with_dtype(real_type(X))

    def work(self, X: Spec) -> Size:
        return self._work(X)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        copied = X.nbytes if self.forward else copies(strided, X=X)
        return copied + maximum(self.infer_shape(X).nbytes, X.nbytes if len(self.axes) == 1 else 2 * X.nbytes)

    def kernel(self, X: Tensor) -> Tensor:
        last: int = self.axes[-1]
        size: int = self.last_dim_size or (X.shape[last] - 1) * 2
        return _to_real(torch.conj_physical(X) if self.forward else X, self.axes, self._divides(), size)

    def _infer_gradient(self, d_out: Spec) -> Spec:
        last = self._axes(d_out)[-1]
        dims = list(d_out.known_dims)
        dims[last] = dims[last] // 2 + 1
        return d_out.with_dims(dims).with_dtype(COMPLEX_OF[d_out.known_dtype])

    def _gradient_workspace(self, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return self._infer_gradient(d_out).nbytes + copies(strided, Out_GRAD=d_out)

    @gradient("Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, d_out: Tensor) -> Tensor:
        axes: list[int] = [a % d_out.dim() for a in self.axes]
        d = from_real(d_out, axes, self._divides(), True)
        twice = d_out.shape[axes[-1]] - d.shape[axes[-1]]  # their conjugates are there too
        d.narrow(axes[-1], 1, twice).mul_(2.0)
        return d.conj_physical_() if self.forward else d

    samples = [
        sample(X=c64(2, 3, 5), axes=[2], normalization="backward", forward=False),
        sample(X=c64(2, 3, 5), axes=[1, 2], normalization="ortho", forward=False, last_dim_size=9),
        sample(X=c64(2, 3, 5), axes=[2, 0], normalization="forward", forward=False),
        sample(X=c64(2, 3, 5), axes=[2], normalization="backward", forward=True, last_dim_size=8),
        sample(X=c64(0, 4), axes=[1], normalization="backward", forward=False),
    ]
    rejects = [
        reject(X=c64(2, 1), axes=[1], normalization="backward", forward=False, says="2 numbers at least"),
        reject(X=c64(2, 3), axes=[1], normalization="backward", forward=False, last_dim_size=7, says="N // 2 + 1 numbers for N = 7"),
    ]
