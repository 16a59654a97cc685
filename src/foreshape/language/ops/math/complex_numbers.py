"""Complex numbers: from two real ones, into two, viewed as pairs. A gradient is a complex number: the gradients of real and imaginary part."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import COMPLEX, COMPLEX64, COMPLEX128, FP32, FP64, INT32, INT64, DType, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.language.operator import Operator, gradient, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import require, require_equal
from foreshape.language.operator.samples import SampleTensor, f32, i64, sample
from foreshape.language.operator.traits import WHOLE, ShardingRule, axis_names
from foreshape.language.ops.rules.broadcast import broadcast_dims, broadcast_lod, sum_to
from foreshape.language.ops.rules.gradient_dims import check_made

REAL = (FP32, FP64)
COMPLEX_OF = {FP32: COMPLEX64, FP64: COMPLEX128}
REAL_OF = {COMPLEX64: FP32, COMPLEX128: FP64}


def c64(*dims: int, data: Any = None) -> SampleTensor:
    """Return a sample of complex numbers: random ones, or ``data``."""
    return SampleTensor(COMPLEX64, dims, -1.0, 1.0, data=data)


def real_type(spec: Spec) -> DType:
    """Return the element type of the parts of complex numbers; real ones have their own."""
    return REAL_OF.get(spec.known_dtype, spec.known_dtype)


def in_a_row(x: Tensor) -> Tensor:
    """Return a contiguous copy in memory of its own."""
    return x.clone(memory_format=torch.contiguous_format)


def conjugate(x: Tensor) -> Tensor:
    """Return the factor of a gradient for a product with ``x``: the conjugate; real numbers themselves."""
    return torch.conj_physical(x) if x.is_complex() else x


def conjugate_bytes(spec: Spec) -> Size:
    """Return the bytes of `conjugate`."""
    return spec.nbytes if spec.known_dtype.is_complex else 0


class Complex(Operator):
    """Out = X + i Y, with broadcasting."""

    type = "complex"
    per_element = True
    X = operand(REAL, doc="any shape")
    Y = operand(REAL, same_type_as="X", doc="broadcast against X")
    Out = result(layout="row", doc="complex, the broadcast shape")

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        dims = broadcast_dims(X.known_dims, Y.known_dims, ragged=(X.lod is not None, Y.lod is not None))
        return Spec(X.kind, COMPLEX_OF[X.known_dtype], dims, broadcast_lod(X, Y, dims))

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return 2 * self.infer_shape(X, Y).nbytes

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.complex(*(in_a_row(x) for x in aten.broadcast_tensors([X, Y])))

    def _infer_gradient(self, X: Spec, Y: Spec, d_out: Spec) -> tuple[Spec, Spec]:
        check_made(Out_GRAD=(d_out, Complex.infer_shape(self, X, Y)))
        return X.like(), Y.like()

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec) -> Size:
        return d_out.nbytes

    @gradient("X", "Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d_x = in_a_row(sum_to(d_out.real, X, Y, -1)) if requested[0] else None
        return d_x, in_a_row(sum_to(d_out.imag, Y, X, -1)) if requested[1] else None

    samples = [
        sample(X=f32(2, 3, 5), Y=f32(2, 3, 5)),
        sample(X=f32(2, 3, 5), Y=f32(3, 1)),
        sample(X=f32(5), Y=f32(3, 1)),
        sample(X=f32(0, 3), Y=f32(3)),
    ]


class Real(Operator):
    """Out = the real part of each number."""

    type = "real"
    per_element = True
    X = operand(COMPLEX, doc="any shape")
    Out = result(layout="row", doc="real, as X")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like().with_dtype(real_type(X))

    def kernel(self, X: Tensor) -> Tensor:
        return in_a_row(X.real)

    def _infer_gradient(self, d_out: Spec) -> Spec:
        return d_out.like().with_dtype(COMPLEX_OF[d_out.known_dtype])

    def _gradient_workspace(self, d_out: Spec) -> Size:
        return 2 * d_out.nbytes

    @gradient("Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, d_out: Tensor) -> Tensor:
        d = in_a_row(d_out)
        return torch.complex(d, torch.zeros_like(d))

    samples = [sample(X=c64(2, 3, 5)), sample(X=c64(0, 3)), sample(X=c64())]


class Imag(Operator):
    """Out = the imaginary part of each number."""

    type = "imag"
    per_element = True
    X = operand(COMPLEX, doc="any shape")
    Out = result(layout="row", doc="real, as X")
    infer_shape = Real.infer_shape

    def kernel(self, X: Tensor) -> Tensor:
        return in_a_row(X.imag)

    _infer_gradient = Real._infer_gradient  # pyright: ignore[reportPrivateUsage]
    _gradient_workspace = Real._gradient_workspace  # pyright: ignore[reportPrivateUsage]

    @gradient("Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, d_out: Tensor) -> Tensor:
        d = in_a_row(d_out)
        return torch.complex(torch.zeros_like(d), d)

    samples = [sample(X=c64(2, 3, 5)), sample(X=c64(0, 3))]


class Conj(Operator):
    """Out = the conjugate of each number: the imaginary part with the other sign. Real numbers are their own."""

    type = "conj"
    per_element = True
    X = operand((INT32, INT64, *REAL, *COMPLEX), doc="any shape")
    Out = result(layout="row", doc="as X")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()

    def kernel(self, X: Tensor) -> Tensor:
        return in_a_row(torch.conj(X).resolve_conj() if X.is_complex() else X)

    def workspace(self, X: Spec) -> Size:
        return X.nbytes

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("conj", {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")})

    samples = [sample(X=c64(2, 3, 5)), sample(X=f32(2, 3)), sample(X=i64(4)), sample(X=c64(0, 3))]


class AsComplex(Operator):
    """Out = the pairs along the last axis as complex numbers: X[..., 0] + i X[..., 1]."""

    type = "as_complex"
    X = operand(REAL, doc="[..., 2]")
    Out = result(layout="row", doc="complex [...]")

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank > 0, "X must have at least one dim", X=None)
        require_equal(X.known_dims[-1], 2, "the last dim of X must be 2, a real and an imaginary part", X=X.rank - 1)
        return (X.with_dims(X.known_dims[:-1]) if X.rank > 1 else X.dense(())).with_dtype(COMPLEX_OF[X.known_dtype])

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        names = axis_names(X.rank, (-1,))
        return ShardingRule({"X": names}, {"Out": names[:-1]})

    def workspace(self, X: Spec) -> Size:
        return X.nbytes

    def kernel(self, X: Tensor) -> Tensor:
        return torch.view_as_complex(in_a_row(X))

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("as_real", {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")})

    samples = [sample(X=f32(3, 5, 2)), sample(X=f32(2)), sample(X=f32(0, 2))]


class AsReal(Operator):
    """Out = each complex number as a pair along a new last axis: real and imaginary part."""

    type = "as_real"
    X = operand(COMPLEX, doc="any shape")
    Out = result(layout="row", doc="real [..., 2]")

    def infer_shape(self, X: Spec) -> Spec:
        dims = (*X.known_dims, 2)
        return (X.with_dims(dims) if X.rank else X.dense(dims)).with_dtype(real_type(X))

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        names = axis_names(X.rank)
        return ShardingRule({"X": names}, {"Out": (*names, WHOLE)})

    def workspace(self, X: Spec) -> Size:
        return X.nbytes

    def kernel(self, X: Tensor) -> Tensor:
        return torch.view_as_real(in_a_row(X.resolve_conj()))

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("as_complex", {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")})

    samples = [sample(X=c64(3, 5)), sample(X=c64()), sample(X=c64(0, 3))]
