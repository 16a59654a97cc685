"""Dropout, and random activations: leaky relus of random slopes, and the softmax of logits with noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.core.dims import Size, maximum, product
from foreshape.core.spec import FLOATING, INDEX, UINT8, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.require import require, require_equal
from foreshape.language.operator.samples import f32, i32, reject, sample
from foreshape.language.operator.schema import Again
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.math.smooth_activation import OverAxis
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.tensor.random_state import generator_for
from foreshape.machine.kernels.dropping import draw_kept, drawing_bytes

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

    def _drawn_mask(self, shape: Sequence[int], device: Any, Seed: Tensor | None = None) -> Tensor:
        """Return the drawn mask: 1 where an element is kept."""
        return draw_kept(shape, 1.0 - self.dropout_prob, device, self._generator(Seed))

    def computes(self) -> computations.Dropout | computations.Scaling:
        return computations.Scaling(self._scale()) if self.is_test else computations.Dropout(self._scale(), self._drawn_mask)

    def kernel(self, X: Tensor, Seed: Tensor | None, *, requested: tuple[bool, ...], into: Tensor | None = None) -> Any:
        scale = self._scale()
        if self.is_test:
            return torch.mul(X, scale, out=into), torch.ones_like(X, dtype=torch.uint8) if requested[1] else None
        mask = self._drawn_mask(X.shape, X.device, Seed)
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


class RRelu(Operator):
    """Out = X where X >= 0, else Noise * X, with Noise drawn uniformly from [lower, upper] for each element (Xu et al., 2015).

    In a test Noise is the mean of both. It is 1 for X from 0 on.
    """

    type = "rrelu"
    family = "activation"
    random = True
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="as X")
    Noise = result(doc="as X: the slopes")
    is_test = attribute(AttrType.BOOLEAN, False)
    lower = attribute(AttrType.FLOAT, 0.125, low=0.0, high=1.0)
    upper = attribute(AttrType.FLOAT, 1.0 / 3.0, low=0.0, high=1.0)

    def infer_shape(self, X: Spec) -> Any:
        require(self.lower <= self.upper, f"lower must be at most upper; seen {self.lower} and {self.upper}")
        return X.like(), X.like()

    def draws(self) -> bool:
        return not self.is_test

    def workspace(self, X: Spec) -> Size:
        return X.elements

    def kernel(self, X: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.empty(X.shape, dtype=X.dtype, device=X.device)
        if self.is_test:
            noise.fill_((self.lower + self.upper) / 2.0)
        else:
            noise.uniform_(self.lower, self.upper, generator=generator_for(0))
        noise.masked_fill_((X < 0.0).logical_not_(), 1.0)
        return X * noise, noise

    @gradient("X", "Noise", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Noise: Tensor, d_out: Tensor) -> Tensor:
        return d_out * Noise

    samples = [
        sample(X=f32(2, 3, 5, distinct=True), is_test=True),
        sample(X=f32(3, 5, distinct=True), is_test=True, lower=0.0, upper=0.5),
        sample(X=f32(3, 5, distinct=True), lower=0.25, upper=0.25),
        sample(X=f32(2, 3, 5), exact=False, differentiate=False),
        sample(X=f32(0, 4)),
        sample(X=f32(data=-1.5), is_test=True),
    ]
    rejects = [reject(X=f32(2), lower=0.5, upper=0.25, says="lower must be at most upper")]


class GumbelSoftmax(OverAxis):
    """Out = softmax((X + g) / temperature) along ``axis``, with g drawn from Gumbel's distribution (Jang et al., 2017).

    With ``hard`` Out is 1 at the largest of these and 0 elsewhere. The gradient is, as in PaddlePaddle, the one of a softmax with the result Out. It is not
    divided by the temperature, and with ``hard`` it is 0.
    """

    type = "gumbel_softmax"
    random = True
    temperature = attribute(AttrType.FLOAT, 1.0)
    hard = attribute(AttrType.BOOLEAN, False)
    axis = attribute(AttrType.INT, -1, doc="the axis along which Out sums to one")

    def infer_shape(self, X: Spec) -> Spec:
        require(self.temperature > 0.0, f"temperature must be more than 0, not {self.temperature}")
        return OverAxis.infer_shape(self, X)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return (2 * X.nbytes + 8 * X.elements if self.hard else X.nbytes) + copies(strided, X=X)

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        noise = torch.empty(X.shape, dtype=X.dtype, device=X.device).exponential_(generator=generator_for(0)).log_()
        logits = torch.sub(X, noise, out=noise).div_(self.temperature)
        if not self.hard:
            return torch.softmax(logits, self.axis, out=into)
        out = torch.zeros(X.shape, dtype=X.dtype, device=X.device) if into is None else into.zero_()
        return out.scatter_(self.axis, logits.argmax(self.axis, keepdim=True), 1.0) if X.numel() else out

    def _undone(self, kernels: Any, Out: Tensor, d_out: Tensor, **into: Tensor) -> Tensor:
        return kernels.softmax_gradient(d_out, Out, self.axis, Out.dtype, **into)

    samples = [
        sample(X=f32(2, 3, 5), exact=False, differentiate=False),
        sample(X=f32(2, 3, 5), axis=1, temperature=0.5, exact=False, differentiate=False),
        sample(X=f32(2, 3, 5), hard=True, exact=False, differentiate=False),
        sample(X=f32(), exact=False, differentiate=False),
        sample(X=f32(0, 4), hard=True),
    ]
    rejects = [reject(X=f32(2, 3), temperature=0.0, says="temperature must be more than 0")]
