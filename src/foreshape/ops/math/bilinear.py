"""Products of every pair of numbers of two tensors; differences as old programs have them."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.kernels.products import bmm
from foreshape.operator import Operator, gradient, operand, result
from foreshape.operator.require import require_equal, require_rank
from foreshape.operator.samples import f32, reject, sample
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.ops.rules.ragged_rules import rows
from foreshape.spec import FLOATING, Spec
from foreshape.values.torch_proxy import Tensor, torch


class Fsp(Operator):
    """Out[b, i, j] = the mean over the image of X[b, i] * Y[b, j].

    Formula: Yim et al., "A gift from knowledge distillation", CVPR 2017.
    """

    type = "fsp"
    multiplies = True
    X = operand(FLOATING, doc="[batch, channels, height, width]")
    Y = operand(FLOATING, same_type_as="X", doc="[batch, other channels, height, width]")
    Out = result(doc="[batch, channels, other channels]")

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        require_rank(4, X, "X")
        require_rank(4, Y, "Y")
        for at in (0, 2, 3):
            require_equal(X.known_dims[at], Y.known_dims[at], "X and Y must be images of one size, and as many", X=at, Y=at)
        return rows(X.dtype, (X.known_dims[0], X.known_dims[1], Y.known_dims[1]), X.lod)

    def work(self, X: Spec, Y: Spec) -> Size:
        return X.elements * Y.known_dims[1]

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return X.nbytes + Y.nbytes

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        pixels = X.shape[2] * X.shape[3]
        return bmm(X.flatten(2), Y.flatten(2).transpose(1, 2)).div_(max(pixels, 1))

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec) -> Size:
        return X.nbytes + Y.nbytes + 3 * d_out.nbytes

    @gradient("X", "Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d = d_out / max(X.shape[2] * X.shape[3], 1)
        d_x = bmm(d, Y.flatten(2)).view(X.shape) if requested[0] else None
        return d_x, bmm(d.transpose(1, 2), X.flatten(2)).view(Y.shape) if requested[1] else None

    samples = [sample(X=f32(2, 3, 4, 5), Y=f32(2, 6, 4, 5)), sample(X=f32(1, 1, 1, 1), Y=f32(1, 2, 1, 1))]
    rejects = [
        reject(X=f32(2, 3, 4, 5), Y=f32(2, 3, 4, 6), says="images of one size"),
        reject(X=f32(2, 3, 4), Y=f32(2, 3, 4), says="X must have 4 dims"),
    ]


class BilinearTensorProduct(Operator):
    """Out[b, k] = X[b] Weight[k] Y[b]', plus Bias[k]."""

    type = "bilinear_tensor_product"
    multiplies = True
    X = operand(FLOATING, doc="[batch, m]")
    Y = operand(FLOATING, same_type_as="X", doc="[batch, n]")
    Weight = operand(FLOATING, same_type_as="X", doc="[size, m, n]")
    Bias = operand(FLOATING, optional=True, same_type_as="X", doc="[1, size]")
    Out = result(doc="[batch, size]")

    def infer_shape(self, X: Spec, Y: Spec, Weight: Spec, Bias: Spec | None) -> Spec:
        for spec, slot, rank in ((X, "X", 2), (Y, "Y", 2), (Weight, "Weight", 3)):
            require_rank(rank, spec, slot)
        require_equal(X.known_dims[0], Y.known_dims[0], "X and Y must have as many rows", X=0, Y=0)
        require_equal(X.known_dims[1], Weight.known_dims[1], "dim 1 of Weight must be the columns of X", X=1, Weight=1)
        require_equal(Y.known_dims[1], Weight.known_dims[2], "dim 2 of Weight must be the columns of Y", Y=1, Weight=2)
        if Bias is not None:
            require_rank(2, Bias, "Bias")
            require_equal(Bias.known_dims[0], 1, "Bias must have 1 row", Bias=0)
            require_equal(Bias.known_dims[1], Weight.known_dims[0], "Bias must have one number for each of Weight's matrices", Bias=1, Weight=0)
        return X.with_dims((X.known_dims[0], Weight.known_dims[0]))

    def work(self, X: Spec, Y: Spec, Weight: Spec, Bias: Spec | None) -> Size:
        return X.known_dims[0] * Weight.elements

    def workspace(self, X: Spec, Y: Spec, Weight: Spec, Bias: Spec | None) -> Size:
        item = X.known_dtype.itemsize
        return 2 * X.known_dims[0] * Weight.known_dims[0] * Weight.known_dims[2] * item + 2 * Weight.nbytes + X.nbytes + Y.nbytes

    def kernel(self, X: Tensor, Y: Tensor, Weight: Tensor, Bias: Tensor | None) -> Tensor:
        out = torch.einsum("bm,kmn,bn->bk", X.contiguous(), Weight, Y.contiguous())
        return out.contiguous() if Bias is None else out + Bias

    def _infer_gradient(self, X: Spec, Y: Spec, Weight: Spec, d_out: Spec) -> Any:
        check_made(Out_GRAD=(d_out, BilinearTensorProduct.infer_shape(self, X, Y, Weight, None)))
        return X.like(), Y.like(), Weight.like(), X.dense((1, Weight.known_dims[0]))

    def _gradient_workspace(self, X: Spec, Y: Spec, Weight: Spec, d_out: Spec) -> Size:
        return 3 * d_out.known_dims[0] * Weight.nbytes + 3 * Weight.nbytes + 4 * (X.nbytes + Y.nbytes + d_out.nbytes)

    @gradient("X", "Y", "Weight", "Out@GRAD", gives=("X@GRAD", "Y@GRAD", "Weight@GRAD", "Bias@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, Weight: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        x, y = X.contiguous(), Y.contiguous()
        d_x = torch.einsum("bk,kmn,bn->bm", d_out, Weight, y).contiguous() if requested[0] else None
        d_y = torch.einsum("bk,kmn,bm->bn", d_out, Weight, x).contiguous() if requested[1] else None
        d_w = torch.einsum("bk,bm,bn->kmn", d_out, x, y).contiguous() if requested[2] else None
        return d_x, d_y, d_w, d_out.sum(0, keepdim=True) if requested[3] else None

    samples = [
        sample(X=f32(2, 3), Y=f32(2, 4), Weight=f32(5, 3, 4), Bias=f32(1, 5)),
        sample(X=f32(7, 2), Y=f32(7, 2), Weight=f32(3, 2, 2)),
    ]
    rejects = [
        reject(X=f32(2, 3), Y=f32(2, 4), Weight=f32(5, 4, 4), says="dim 1 of Weight"),
        reject(X=f32(2, 3), Y=f32(2, 4), Weight=f32(5, 3, 3), says="dim 2 of Weight"),
        reject(X=f32(2, 3), Y=f32(3, 4), Weight=f32(5, 3, 4), says="as many rows"),
        reject(X=f32(2, 3), Y=f32(2, 4), Weight=f32(5, 3, 4), Bias=f32(1, 4), says="one number for each of Weight's matrices"),
    ]
