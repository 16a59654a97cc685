"""Rows in a random order: shuffle_batch."""

from __future__ import annotations

from foreshape.dims import Size, product
from foreshape.errors import TypeMismatchError
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import require, require_equal
from foreshape.operator.samples import f32, i64, reject, sample
from foreshape.ops.tensor.random import generator_for
from foreshape.spec import FLOATING, INDEX, INT64, Spec, tensor
from foreshape.values.torch_proxy import Tensor, torch

_MODULUS, _FACTOR = 2**31 - 1, 16807


def seed_after(seed: int) -> int:
    """Return the next seed: a step of the generator of Park and Miller (1988), without a seed 0."""
    return (seed % 2**64 % _MODULUS or 1) * _FACTOR % _MODULUS


class ShuffleBatch(Operator):
    """Out = the rows of X (all but the last dim count them) in an order drawn from Seed: row i is row ShuffleIdx[i] of Out.

    A Seed of 0 draws from the executor's generator.
    """

    type = "shuffle_batch"
    random = True
    X = operand((*FLOATING, *INDEX), doc="[..., columns]")
    Seed = operand((INT64,), doc="one number")
    Out = result(layout="row", doc="as X")
    ShuffleIdx = result(doc="int64 [rows]")
    SeedOut = result(doc="int64 [1]: the seed of the next step, by Park and Miller")
    startup_seed = attribute(AttrType.INT, 0, doc="ignored: Seed must be set here")

    def infer_shape(self, X: Spec, Seed: Spec) -> tuple[Spec, Spec, Spec]:
        require(X.rank >= 1, "X must have at least 1 dim, not 0", X=None)
        require_equal(Seed.elements, 1, "Seed must hold one number", Seed=None)
        return X.like(), tensor(INT64, product(X.known_dims[:-1])), tensor(INT64, 1)

    def workspace(self, X: Spec, Seed: Spec) -> Size:
        return X.nbytes + 8 * product(X.known_dims[:-1])

    def kernel(self, X: Tensor, Seed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seed = int(Seed)
        rows, generator = X.shape[:-1].numel(), generator_for(seed)
        order = torch.randperm(rows, generator=generator, device="cpu" if generator is None else generator.device).to(X.device)
        out = torch.empty_like(X, memory_format=torch.contiguous_format)
        out.view(rows, X.shape[-1])[order] = X.reshape(rows, X.shape[-1])
        return out, order, torch.tensor([seed_after(seed)], device=X.device)

    def _gradient_workspace(self, ShuffleIdx: Spec, d_out: Spec) -> Size:
        return d_out.nbytes

    @gradient("ShuffleIdx", "Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, ShuffleIdx: Tensor, d_out: Tensor) -> Tensor:
        return d_out.reshape(ShuffleIdx.shape[0], d_out.shape[-1])[ShuffleIdx].view(d_out.shape)

    samples = [
        sample(X=f32(6, 3), Seed=i64(1, data=[5]), exact=False),
        sample(X=f32(2, 4, 3), Seed=i64(1, data=[-7]), startup_seed=3, exact=False),
        sample(X=i64(5, 2), Seed=i64(1, data=[0]), exact=False),
        sample(X=f32(5, 2).ragged([2, 3]), Seed=i64(1, data=[2**40]), exact=False),
        sample(X=f32(4), Seed=i64(1, data=[1]), exact=False),
        sample(X=f32(0, 3), Seed=i64(1, data=[1]), exact=False),
    ]
    rejects = [
        reject(X=f32(), Seed=i64(1), says="at least 1 dim"),
        reject(X=f32(2, 3), Seed=i64(2), says="Seed must hold one number"),
        reject(X=f32(2, 3), Seed=f32(1), says="Seed must be one of int64", error=TypeMismatchError),
    ]
