"""sequence_softmax: numbers with a sum of one in each sequence."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator import Operator, gradient, operand, result
from foreshape.language.operator.require import require_equal
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.sequence_computations import SoftmaxInSequences
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.ragged_rules import ragged


def _infer_gradient(self: Any, Out: Spec, d_out: Spec, X: Spec) -> Spec:
    check_made(Out=(Out, X), Out_GRAD=(d_out, X))
    return X.like()


class SequenceSoftmax(Operator):
    """Out = exp(X) / the sum of exp(X) over its innermost sequence."""

    type = "sequence_softmax"
    examples = ("X",)
    X = operand(FLOATING, doc="ragged rows of one number each, [rows] or [rows, 1]")
    Out = result(doc="as X, with its offsets")

    def infer_shape(self, X: Spec) -> Spec:
        ragged(X, "X")
        width = product(X.known_dims[1:])
        require_equal(width, 1, f"X must have one number in a row, not {width}", X=None)
        return X.like()

    def computes(self) -> SoftmaxInSequences:
        return SoftmaxInSequences()

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return X.nbytes + copies(strided, X=X)

    def kernel(self, X: Tensor, *, offsets: list[Offsets]) -> Tensor:
        sequences = offsets[0]
        x = X.reshape(-1)
        segments = sequences.segments
        if x.shape != segments.shape:  # torch's kernel reads rows by the offsets alone
            raise ExecutionError(f"sequence_softmax: X must have one number in each of its {len(segments)} rows; it has {len(x)} numbers")
        # an empty sequence has a largest number of minus infinity, read by no row
        largest = torch.segment_reduce(x, "max", offsets=sequences.last, axis=0)
        e = (x - largest.index_select(0, segments)).exp_()
        return e.div_(_sums(e, sequences).index_select(0, segments)).view(X.shape)

    def _gradient_workspace(self, Out: Spec, d_out: Spec, X: Spec, *, strided: frozenset[str]) -> Size:
        return X.nbytes + copies(strided, Out=Out, Out_GRAD=d_out)

    @gradient("Out", "Out@GRAD", "X", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, Out: Tensor, d_out: Tensor, X: Tensor, *, offsets: list[Offsets]) -> Tensor:
        sequences = offsets[2]
        out, d = Out.reshape(-1), d_out.reshape(-1)
        along = _sums(out * d, sequences)
        return (d - along.index_select(0, sequences.segments)).mul_(out).view(X.shape)

    samples = [
        sample(X=f32(9, 1).ragged([4, 0, 5])),
        sample(X=f32(9).ragged([4, 0, 5])),
        sample(X=f32(7, 1).ragged([2, 1], [3, 0, 4])),
        sample(X=f32(6, 1, 1).ragged([1, 1], [2, 0], [2, 4])),
        sample(X=f32(0, 1).ragged([])),
        sample(X=f32(0).ragged([0, 0])),
    ]
    rejects = [
        reject(X=f32(3, 1), says="X must be ragged", error=TypeMismatchError),
        reject(X=f32(3, 2).ragged([3]), says="X must have one number in a row, not 2"),
    ]


def _sums(numbers: Tensor, sequences: Offsets) -> Tensor:
    """Return the sum of the numbers of each sequence, ``[count]``."""
    return torch.zeros(sequences.count, dtype=numbers.dtype, device=numbers.device).index_add_(0, sequences.segments, numbers)
