"""Ragged rows through a product and the following operators in one, as in programs rewritten for a CPU."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.fused.parts import with_bias
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.ragged_rules import new_lod, ragged, rows, sequences
from foreshape.language.ops.sequence.sequence_conv import MAX_CONTEXT, SequenceConv
from foreshape.language.ops.sequence.sequence_pool import SequencePool

FLOATS = (FP32, FP64)
NOT_MADE = "not made here"


def _logarithms(out: Tensor) -> None:
    """Replace in each row [shows, clicks, ...], in place, shows by log(1 + shows) and clicks by log(1 + clicks) minus it."""
    first = out[..., :2].add_(1.0).log_()
    first[..., 1].sub_(first[..., 0])


class FusionSeqconvEltaddRelu(Operator):
    """Out = max(0, the product of each row and its neighbours in its sequence with Filter, plus Bias): `sequence_conv` without trained padding."""

    type = "fusion_seqconv_eltadd_relu"
    examples = ("X",)
    gradient = NOT_WRITTEN
    X = operand(FLOATS, doc="ragged rows [rows, width]")
    Filter = operand(FLOATS, same_type_as="X", doc="[contextLength * width, columns]")
    Bias = operand(FLOATS, same_type_as="X", doc="columns numbers")
    Out = result(doc="[rows, columns], with the offsets of X")
    ColMat = result(optional=True, doc=NOT_MADE)
    contextLength = attribute(AttrType.INT, low=1, high=MAX_CONTEXT, doc="the number of rows multiplied together")
    contextStart = attribute(AttrType.INT, 0, low=-MAX_CONTEXT, high=MAX_CONTEXT, doc="the first of these rows, from the row itself")
    contextStride = attribute(AttrType.INT, 1, choices=(1,), doc="1")

    def _product(self) -> Any:
        return SequenceConv.with_values({"contextLength": self.contextLength, "contextStart": self.contextStart, "contextStride": 1, "paddingTrainable": False})

    def infer_shape(self, X: Spec, Filter: Spec, Bias: Spec) -> Any:
        out = self._product().infer_shape(X, None, Filter)
        require_equal(Bias.elements, Filter.known_dims[1], "Bias must have one number for each column of Filter", Bias=None, Filter=1)
        return out, None

    def work(self, X: Spec, Filter: Spec, Bias: Spec) -> Size:
        return X.known_dims[0] * Filter.elements

    def expand(self, of: Composition, X: Any, Filter: Any, Bias: Any) -> Any:
        attrs = {name: getattr(self, name) for name in ("contextLength", "contextStart", "contextStride")}
        return of("relu", X=with_bias(of, of("sequence_conv", attrs, X=X, Filter=Filter), Bias)), None

    samples = [
        sample(X=f32(7, 3).ragged([4, 0, 3]), Filter=f32(9, 4), Bias=f32(4), contextLength=3, contextStart=-1),
        sample(X=f32(7, 3).ragged([4, 3]), Filter=f32(6, 4), Bias=f32(1, 4), contextLength=2),
    ]
    rejects = [
        reject(X=f32(7, 3).ragged([4, 3]), Filter=f32(8, 4), Bias=f32(4), contextLength=3, says="contextLength times the columns"),
        reject(X=f32(7, 3).ragged([4, 3]), Filter=f32(9, 4), Bias=f32(3), contextLength=3, says="one number for each column"),
    ]


class FusionSeqpoolCvmConcat(Operator):
    """Out = the sums, averages, or sums over the roots of the lengths of each X's sequences, side by side; zeros for an empty sequence.

    The first two columns of each are as in `cvm`. The numbers of CVM are ignored.
    """

    type = "fusion_seqpool_cvm_concat"
    examples = ("X", "CVM")
    gradient = NOT_WRITTEN
    X = operand(FLOATS, many=True, doc="ragged rows, each [rows, width] with shows and clicks first, of as many sequences")
    CVM = operand(FLOATS, doc="[sequences, 2]")
    Out = result(new_offsets=True, doc="[sequences, width of all], each row a sequence")
    pooltype = attribute(AttrType.STRING, "SUM", choices=("AVERAGE", "SUM", "SQRT"))
    axis = attribute(AttrType.INT, 1, choices=(1,), doc="1")
    use_cvm = attribute(AttrType.BOOLEAN, True, choices=(True,), doc="true")

    def infer_shape(self, X: tuple[Spec, ...], CVM: Spec) -> Any:
        require(len(X) > 0, "X must have one tensor at least", X=None)
        count, width = sequences(X[0], "X"), X[0].known_dims[-1]
        for x in X:
            require_rank(2, x, "X")
            require(x.dtype is X[0].dtype, "X must be of one element type", X=None)
            require_equal(sequences(x, "X"), count, "each of X must have as many sequences", X=None)
            require_equal(x.known_dims[1], width, "each of X must have as many columns", X=None)
        require_at_most(2, width, f"X must have two columns at least, not {width}", X=None)
        return rows(X[0].dtype, (count, width * len(X)), new_lod("Out", [count]))

    def workspace(self, X: tuple[Spec, ...], CVM: Spec) -> Size:
        return 3 * self.infer_shape(X, CVM).nbytes + 3 * sum((x.nbytes for x in X), 0)

    def kernel(self, X: list[Tensor], CVM: Tensor, *, offsets: list[Any]) -> tuple[Tensor, Offsets]:
        pool = SequencePool.with_values({"pooltype": self.pooltype, "pad_value": 0.0, "is_test": True})
        parts = [pool.kernel(x, offsets=[o], requested=(True, False))[0] for x, o in zip(X, offsets[0], strict=True)]
        for part in parts:
            _logarithms(part)
        return torch.cat(parts, 1), Offsets.of_lengths(torch.ones(parts[0].shape[0], dtype=torch.int64, device=parts[0].device))

    samples = [
        sample(X=[f32(7, 3, low=0.0).ragged([4, 3]), f32(5, 3, low=0.0).ragged([2, 3])], CVM=f32(2, 2)),
        sample(X=[f32(7, 4, low=0.0).ragged([4, 3])], CVM=f32(2, 2), pooltype="AVERAGE"),
        sample(X=[f32(7, 3, low=0.0).ragged([4, 3])], CVM=f32(2, 2), pooltype="SQRT"),
    ]
    rejects = [
        reject(X=[f32(7, 3).ragged([4, 3]), f32(5, 3).ragged([5])], CVM=f32(2, 2), says="as many sequences"),
        reject(X=[f32(7, 3).ragged([4, 3]), f32(5, 2).ragged([2, 3])], CVM=f32(2, 2), says="as many columns"),
        reject(X=[f32(7, 3)], CVM=f32(2, 2), says="X must be ragged", error=TypeMismatchError),
        reject(X=[f32(7, 1).ragged([4, 3])], CVM=f32(2, 2), says="two columns at least"),
    ]


class Cvm(Operator):
    """Y = X with log(1 + shows) in column 0 and log(1 + clicks) - log(1 + shows) in column 1; X without these columns if not ``use_cvm``.

    PaddlePaddle's gradient of X is not the slope of this: its first two columns are CVM, so a table of them counts shows and clicks.
    """

    type = "cvm"
    examples = ("X", "CVM")
    X = operand(FLOATS, doc="[rows, width]: shows, clicks, and more")
    CVM = operand(FLOATS, same_type_as="X", doc="[rows, 2], or of ragged X [sequences, 2]: shows and clicks")
    Y = result(doc="as X, or [rows, width - 2]")
    use_cvm = attribute(AttrType.BOOLEAN, True)

    def infer_shape(self, X: Spec, CVM: Spec) -> Spec:
        require_rank(2, X, "X")
        require_rank(2, CVM, "CVM")
        rows, width = X.known_dims
        require_at_most(2, width, f"X must have two columns at least, not {width}", X=1)
        require_equal(CVM.known_dims[0], rows if X.lod is None else X.lod.counts[-1], "CVM must have a row for each of X, or of its sequences", CVM=0)
        require_equal(CVM.known_dims[1], 2, "CVM must have two columns", CVM=1)
        return X.with_dims((rows, width if self.use_cvm else width - 2))

    def kernel(self, X: Tensor, CVM: Tensor) -> Tensor:
        if not self.use_cvm:
            return X[:, 2:].clone(memory_format=torch.contiguous_format)
        out = X.clone(memory_format=torch.contiguous_format)
        _logarithms(out)
        return out

    def _infer_gradient(self, X: Spec, CVM: Spec, d_y: Spec) -> Spec:
        check_made(Y_GRAD=(d_y, Cvm.infer_shape(self, X, CVM)))
        return X.like()

    @gradient("X", "CVM", "Y@GRAD", gives="X@GRAD", infer=_infer_gradient)
    def backward(self, X: Tensor, CVM: Tensor, d_y: Tensor, *, offsets: list[Any]) -> Tensor:
        first = CVM if offsets[0] is None else CVM.index_select(0, offsets[0].segments)
        return torch.cat((first, d_y[:, 2:] if self.use_cvm else d_y), 1)

    samples = [
        sample(X=f32(3, 5, low=0.0), CVM=f32(3, 2), differentiate=False),
        sample(X=f32(3, 5, low=0.0), CVM=f32(3, 2), use_cvm=False, differentiate=False),
        sample(X=f32(7, 4, low=0.0).ragged([4, 3]), CVM=f32(2, 2), differentiate=False),
    ]
    rejects = [
        reject(X=f32(3, 5), CVM=f32(2, 2), says="a row for each of X"),
        reject(X=f32(3, 5), CVM=f32(3, 3), says="CVM must have two columns"),
        reject(X=f32(3, 1), CVM=f32(3, 2), says="two columns at least"),
    ]


class FusionSeqexpandConcatFc(Operator):
    """Out = activation([X_0, X_1, ...] FCWeight + FCBias), where each row of the sequence s of X_0 stands beside row s of the others."""

    type = "fusion_seqexpand_concat_fc"
    examples = ("X",)
    gradient = NOT_WRITTEN
    X = operand(FLOATS, many=True, doc="ragged rows [rows, width], and others, each [sequences, width]; PaddlePaddle requires sequences of one row there")
    FCWeight = operand(FLOATS, doc="[width of all, columns]")
    FCBias = operand(FLOATS, optional=True, same_type_as="FCWeight", doc="columns numbers")
    Out = result(doc="[rows, columns], with the offsets of X_0")
    FCOut = result(optional=True, doc=NOT_MADE)
    fc_activation = attribute(AttrType.STRING, "identity", choices=("identity", "relu", "sigmoid", "tanh"))

    def infer_shape(self, X: tuple[Spec, ...], FCWeight: Spec, FCBias: Spec | None) -> Any:
        require(len(X) > 1, f"X must have two tensors at least, not {len(X)}", X=None)
        count = ragged(X[0], "X", 1).counts[-1]
        width: Size = 0
        for index, x in enumerate(X):
            require_rank(2, x, "X")
            require(x.dtype is FCWeight.dtype, "X and FCWeight must be of one element type", X=None, FCWeight=None)
            if index:
                require_equal(x.known_dims[0], count, "each of X after the first must have a row for each sequence of the first", X=None)
            width = width + x.known_dims[1]
        require_rank(2, FCWeight, "FCWeight")
        require_equal(FCWeight.known_dims[0], width, "FCWeight must have as many rows as all of X have columns", FCWeight=0)
        columns = FCWeight.known_dims[1]
        if FCBias is not None:
            require_equal(FCBias.elements, columns, "FCBias must have one number for each column of FCWeight", FCBias=None, FCWeight=1)
        return X[0].with_dims((X[0].known_dims[0], columns)), None

    def work(self, X: tuple[Spec, ...], FCWeight: Spec, FCBias: Spec | None) -> Size:
        return X[0].known_dims[0] * FCWeight.elements

    def expand(self, of: Composition, X: Any, FCWeight: Any, FCBias: Any) -> Any:
        first, per_sequence = X[0], X[1:]
        width = first.spec.known_dims[1]
        parts = [of("slice", {"axes": [0], "starts": [a], "ends": [b]}, Input=FCWeight) for a, b in ((0, width), (width, 2**31 - 1))]
        shared = of("mul", X=of("concat", {"axis": 1}, X=per_sequence) if len(per_sequence) > 1 else per_sequence[0], Y=parts[1])
        rows = of("sequence_expand_as", X=with_bias(of, shared, FCBias), Y=first)  # what stands beside a whole sequence is multiplied once
        out = of("elementwise_add", X=of("mul", X=first, Y=parts[0]), Y=rows)
        return out if self.fc_activation == "identity" else of(self.fc_activation, X=out), None

    samples = [
        sample(X=[f32(7, 3).ragged([4, 3]), f32(2, 2).ragged([1, 1])], FCWeight=f32(5, 4), FCBias=f32(1, 4), fc_activation="relu"),
        sample(X=[f32(7, 3).ragged([4, 3]), f32(2, 2).ragged([1, 1]), f32(2, 1).ragged([1, 1])], FCWeight=f32(6, 4), fc_activation="tanh"),
    ]
    rejects = [
        reject(X=[f32(7, 3).ragged([4, 3])], FCWeight=f32(3, 4), says="two tensors at least"),
        reject(X=[f32(7, 3).ragged([4, 3]), f32(3, 2)], FCWeight=f32(5, 4), says="a row for each sequence"),
        reject(X=[f32(7, 3).ragged([4, 3]), f32(2, 2)], FCWeight=f32(6, 4), says="as many rows as all of X"),
        reject(X=[f32(7, 3).ragged([4, 3]), f32(2, 2)], FCWeight=f32(5, 4), FCBias=f32(3), says="one number for each column"),
        reject(X=[f32(7, 3), f32(2, 2)], FCWeight=f32(5, 4), says="X must be ragged", error=TypeMismatchError),
    ]
