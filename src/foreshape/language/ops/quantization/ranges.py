"""Numbers as bytes by their range, found in the run, and products of bytes with exact sums, as ONNX's dynamic quantization has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, INT8, INT32, UINT8, DType, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import NOT_DIFFERENTIABLE, OWN, Operator, operand, result
from foreshape.language.operator.byte_computations import IntegerProduct, RangeQuantization
from foreshape.language.operator.require import require
from foreshape.language.operator.samples import SampleTensor, f32, i32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.math.matmul import BatchedProduct, product_of_matrices
from foreshape.machine.kernels.rows_of_bytes import by_range

_BYTES = (INT8, UINT8)
_EXACT = 2**24 // 255**2
"""So many products of numbers of 8 bits have a sum held exactly by fp32."""


def _bytes(*dims: int, signed: bool = False) -> SampleTensor:
    low, high = (-128, 127) if signed else (0, 255)
    return replace(i32(*dims, low=low, high=high), dtype=INT8 if signed else UINT8)


class DynamicQuantizeLinear(Operator):
    """Y = round(X / Scale) + ZeroPoint, from 0 to 255, by the range of X with 0 in it, found in the run: ONNX's DynamicQuantizeLinear.

    Scale = (high - low) / 255, 1 where this is 0, and ZeroPoint = round(-low / Scale), with high = max(X, 0) and low = min(X, 0). Halves are rounded to even.
    Of X without numbers the range is 0. A number that is not finite makes Scale NaN.
    """

    type = "dynamic_quantize_linear"
    since = OWN
    examples = ()
    gradient = NOT_DIFFERENTIABLE
    X = operand((FP32,), doc="any shape")
    Y = result(doc="uint8, as X")
    Scale = result(doc="fp32, []")
    ZeroPoint = result(doc="uint8, []")

    def infer_shape(self, X: Spec) -> Any:
        scale = X.dense(())
        return X.like().with_dtype(UINT8), scale, scale.with_dtype(UINT8)

    def computes(self) -> RangeQuantization:
        return RangeQuantization()

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return X.nbytes + 64 + copies(strided, X=X)

    def kernel(self, X: Tensor) -> Any:
        return by_range(X)

    samples = [
        sample(X=f32(4, 7)),
        sample(X=f32(2, 3, 7, low=0.5, high=100.0)),
        sample(X=f32(3, 4, high=-0.5, low=-2.0)),
        sample(X=f32(2, 2, data=[[0.0, 0.0], [0.0, 0.0]])),
        sample(X=f32()),
        sample(X=f32(0, 7)),
    ]


class MatmulInteger(BatchedProduct):
    """Out = (X - XZeroPoint) (Y - YZeroPoint), the exact product of matrices of bytes, less their zero points: ONNX's MatMulInteger.

    The dims before the last two are a batch, and broadcast. A sum of more than 32 bits is cut to them.
    """

    type = "matmul_integer"
    since = OWN
    examples = ("X",)
    reads_transposed = False
    gradient = NOT_DIFFERENTIABLE
    X = operand(_BYTES, doc="[..., rows, k], or [k]")
    Y = operand(_BYTES, doc="[..., k, columns], or [k]")
    XZeroPoint = operand(_BYTES, optional=True, same_type_as="X", doc="one number, or of rows: [rows], or [..., rows, 1]")
    YZeroPoint = operand(_BYTES, optional=True, same_type_as="Y", doc="one number, or of columns: [columns], or [..., 1, columns]")
    Out = result(layout="row", doc="int32, [..., rows, columns]")

    def _transposed(self) -> tuple[bool, bool]:
        return False, False

    def sharding_rule(self, X: Spec, Y: Spec, *zeros: Spec | None) -> None:
        return None

    def infer_shape(self, X: Spec, Y: Spec, XZeroPoint: Spec | None, YZeroPoint: Spec | None) -> Spec:
        for spec, zero, slot, axis in ((X, XZeroPoint, "XZeroPoint", -2), (Y, YZeroPoint, "YZeroPoint", -1)):
            if zero is None or zero.rank == 0 or zero.known_dims == (1,):
                continue
            dims = zero.known_dims
            has_one = [*spec.known_dims[:-1], 1] if axis == -2 else [*spec.known_dims[:-2], 1, *spec.known_dims[-1:]]
            fits = spec.rank > 1 and ((zero.rank == 1 and dims[0] == spec.known_dims[axis]) or [*dims] == has_one)
            require(fits, f"{slot} must be one number, or one for each {'row' if axis == -2 else 'column'}; its dims are {list(dims)}", **{slot: None})
        return product_of_matrices(X, Y, False, False).with_dtype(INT32)

    def computes(self) -> IntegerProduct:
        return IntegerProduct()

    def work(self, X: Spec, Y: Spec, *zeros: Spec | None) -> Size:
        return super().work(X, Y)

    def workspace(self, X: Spec, Y: Spec, XZeroPoint: Spec | None, YZeroPoint: Spec | None, *, strided: frozenset[str]) -> Size:
        wide = _wide(X.known_dims[-1])
        x, y, out = X.with_dtype(wide), Y.with_dtype(wide), product_of_matrices(X, Y, False, False).with_dtype(wide)
        return 2 * (x.nbytes + y.nbytes + out.nbytes) + self._bytes(x, y, out, frozenset()) + copies(strided, X=X, Y=Y)

    def kernel(self, X: Tensor, Y: Tensor, XZeroPoint: Tensor | None, YZeroPoint: Tensor | None) -> Tensor:
        wide = torch.float32 if _wide(X.shape[-1]) is FP32 else torch.float64
        x, y = X.to(wide), Y.to(wide)
        if XZeroPoint is not None:
            zero = XZeroPoint.to(wide)
            x.sub_(zero.unsqueeze(1) if zero.dim() == 1 and len(zero) > 1 else zero)
        if YZeroPoint is not None:
            y.sub_(YZeroPoint.to(wide))
        out = self._product(x, y)
        return out.to(torch.int32) if wide is torch.float32 else out.to(torch.int64).to(torch.int32)

    samples = [
        sample(X=_bytes(4, 7), Y=_bytes(7, 5, signed=True)),
        sample(X=_bytes(4, 7), Y=_bytes(7, 5), XZeroPoint=_bytes(), YZeroPoint=_bytes(1)),
        sample(X=_bytes(4, 7, signed=True), Y=_bytes(7, 5, signed=True), XZeroPoint=_bytes(4, signed=True), YZeroPoint=_bytes(5, signed=True)),
        sample(X=_bytes(2, 3, 7), Y=_bytes(7, 5), XZeroPoint=_bytes(2, 3, 1), YZeroPoint=_bytes(1, 5)),
        sample(X=_bytes(2, 3, 7), Y=_bytes(2, 7, 5)),
        sample(X=_bytes(3, 300), Y=_bytes(300, 2), XZeroPoint=_bytes(), YZeroPoint=_bytes()),
        sample(X=_bytes(7), Y=_bytes(7, 5)),
        sample(X=_bytes(0, 7), Y=_bytes(7, 5)),
    ]
    rejects = [
        reject(X=_bytes(4, 6), Y=_bytes(7, 5), says="the columns of X must equal the rows of Y"),
        reject(X=_bytes(4, 7), Y=_bytes(7, 5), XZeroPoint=_bytes(7), says="one for each row"),
        reject(X=_bytes(4, 7), Y=_bytes(7, 5), YZeroPoint=_bytes(7), says="one for each column"),
        reject(X=_bytes(7), Y=_bytes(7, 5), XZeroPoint=_bytes(7), says="one for each row"),
    ]


def _wide(terms: Size) -> DType:
    """Return the element type of exact sums of so many products."""
    return FP32 if isinstance(terms, int) and terms <= _EXACT else FP64
