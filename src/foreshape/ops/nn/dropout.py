"""Dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.dims import Size, maximum, product
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.kernels.dropping import draw_kept, drawing_bytes
from foreshape.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.operator.require import require_equal
from foreshape.operator.samples import f32, i32, i64, reject, sample
from foreshape.operator.schema import Again
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.ops.tensor.random import generator_for
from foreshape.spec import FLOATING, INDEX, UINT8, Spec
from foreshape.values.torch_proxy import Tensor, torch

if TYPE_CHECKING:
    from torch import Generator


class Dropout(Operator):
    """Out = X, in training with each element zero with the probability ``dropout_prob``.

    ``upscale_in_train`` divides the kept elements by the probability of keeping, in training; ``downgrade_in_infer`` multiplies by it in a test instead. A seed
    draws the same elements in every step: the tensor Seed, or ``seed`` if ``fix_seed``.
    """

    type = "dropout"
    family = "activation"
    per_element = True
    random = True
    again = Again("Out", "dropout_grad", {"Mask": "Mask", "Out@GRAD": "X"}, "X@GRAD")
    X = operand(FLOATING, doc="any shape")
    Seed = operand(INDEX, optional=True, doc="one number")
    Out = result(doc="as X", may_share="X")
    Mask = result(doc="uint8, as X: 1 for a kept element")
    dropout_prob = attribute(AttrType.FLOAT, 0.5, low=0.0, high=1.0)
    dropout_implementation = attribute(AttrType.STRING, "downgrade_in_infer", choices=("downgrade_in_infer", "upscale_in_train"))
    is_test = attribute(AttrType.BOOLEAN, False)
    fix_seed = attribute(AttrType.BOOLEAN, False)
    seed = attribute(AttrType.INT, 0)

    def infer_shape(self, X: Spec, Seed: Spec | None) -> Any:
        if Seed is not None:
            require_equal(product(Seed.known_dims), 1, "Seed must be one number", Seed=None)
        return X.like(), X.like().with_dtype(UINT8)

    def draws(self) -> bool:
        return not (self.is_test or (self.fix_seed and self.seed))

    def workspace(self, X: Spec, Seed: Spec | None) -> Size:
        return 0 if self.is_test else maximum(X.nbytes, drawing_bytes(X.elements))  # the mask in the type of X

    def _gradient_workspace(self, Mask: Spec, d_out: Spec) -> Size:
        return 0 if self.is_test else d_out.nbytes

    def _scale(self) -> float:
        """Return the factor of the kept elements."""
        keep = 1.0 - self.dropout_prob
        if self.dropout_implementation == "upscale_in_train":
            return 1.0 if self.is_test or keep == 0.0 else 1.0 / keep
        return keep if self.is_test else 1.0

    def _generator(self, Seed: Tensor | None) -> Generator | None:
        return generator_for(int(Seed.item()) if Seed is not None else self.seed if self.fix_seed else 0)

    def _kept(self, shape: Sequence[int], device: Any, Seed: Tensor | None = None) -> Tensor:
        """Return the drawn mask: 1 where an element is kept."""
        return draw_kept(shape, 1.0 - self.dropout_prob, device, self._generator(Seed))

    def computes(self) -> computations.Dropout | computations.Scaling:
        return computations.Scaling(self._scale()) if self.is_test else computations.Dropout(self._scale(), self._kept)

    def kernel(self, X: Tensor, Seed: Tensor | None, *, requested: tuple[bool, ...], into: Tensor | None = None) -> Any:
        scale = self._scale()
        if self.is_test:
            return torch.mul(X, scale, out=into), torch.ones_like(X, dtype=torch.uint8) if requested[1] else None
        mask = self._kept(X.shape, X.device, Seed)
        out = torch.mul(X, mask, out=into)
        return out if scale == 1.0 else out.mul_(scale), mask

    def _infer_gradient(self, Mask: Spec, d_out: Spec) -> Spec:
        check_made(Mask=(Mask, d_out))
        return d_out.like()

    @gradient("Mask", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, may_share={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace)
    def backward(self, Mask: Tensor, d_out: Tensor, *, into: Tensor | None = None) -> Tensor:
        scale = self._scale()
        if self.is_test:
            return torch.mul(d_out, scale, out=into)
        out = torch.mul(d_out, Mask, out=into)
        return out if scale == 1.0 else out.mul_(scale)

    samples = [
        sample(X=f32(2, 3, 5), exact=False, differentiate=False),
        sample(X=f32(2, 3, 5), dropout_prob=0.3, fix_seed=True, seed=5),
        sample(X=f32(2, 3, 5), dropout_prob=0.3, Seed=i32(1, data=[11]), dropout_implementation="upscale_in_train"),
        sample(X=f32(2, 3, 5), dropout_prob=0.3, is_test=True),
        sample(X=f32(2, 3, 5), dropout_prob=0.3, is_test=True, dropout_implementation="upscale_in_train"),
        sample(X=f32(2, 3, 5), dropout_prob=0.0, dropout_implementation="upscale_in_train"),
        sample(X=f32(2, 3, 5), dropout_prob=1.0, dropout_implementation="upscale_in_train"),
        sample(X=f32(0, 3), fix_seed=True, seed=5),
        sample(X=f32(), fix_seed=True, seed=5),
    ]
    rejects = [
        reject(X=f32(2, 3), dropout_prob=1.5, says="at most 1", error=SchemaError),
        reject(X=f32(2, 3), dropout_prob=float("nan"), says="at least 0", error=SchemaError),
        reject(X=f32(2, 3), dropout_implementation="scale", says="one of", error=SchemaError),
        reject(X=f32(2, 3), Seed=i32(2), says="Seed must be one number"),
        reject(X=i64(2, 3), says="floating", error=TypeMismatchError),
    ]
