"""Conversions between ragged rows and dense tensors: sequence_pad, sequence_unpad, and sequence_mask, the mask of the rows."""

from __future__ import annotations

from functools import reduce

from foreshape.core.dims import Size, maximum
from foreshape.core.spec import ANY, FP32, FP64, INDEX, INT64, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import element_type, torch_dtype
from foreshape.errors import ExecutionError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.sequence_computations import PlacesBelow, SequencePadding, SequenceUnpadding
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.known_values import known_number, number_at_run
from foreshape.language.ops.rules.ragged_rules import longest, new_lod, offsets_of, one_per_sequence, places, ragged, rows, unpadded
from foreshape.machine.process.this_run import require_room


class SequencePad(Operator):
    """Out = the sequences of X, each filled up with PadValue to one length; Length = the old length of each. With two levels, the innermost sequences are
    filled up, and stay grouped by the outer level."""

    type = "sequence_pad"
    X = operand(doc="ragged, [rows, *row], with at least 2 dims")
    PadValue = operand(ANY, same_type_as="X", doc="one number, or one row of X")
    Out = result(doc="[sequences, padded_length, *row]")
    Length = result(doc="int64 [sequences]")
    padded_length = attribute(AttrType.INT, -1, doc="at least the length of every sequence; -1: the length of the longest")

    def computes(self) -> SequencePadding:
        return SequencePadding()

    def infer_shape(self, X: Spec, PadValue: Spec) -> tuple[Spec, Spec]:
        lod = ragged(X, "X")
        require(X.rank >= 2, f"X must have at least 2 dims, not {X.rank}", X=None)
        require(self.padded_length == -1 or self.padded_length > 0, f"padded_length must be at least 1, or -1; seen {self.padded_length}")
        row, pad = X.known_dims[1:], PadValue.known_dims
        words = "PadValue must be one number or one row of X"
        if len(pad) == 1:  # either of the two, perhaps open until the run
            require_equal((pad[0] - 1) * (pad[0] - row[0]) if len(row) == 1 else pad[0] - 1, 0, words, PadValue=0, X=1)
        elif pad:
            require(len(pad) == len(row), words, PadValue=None, X=None)
            for axis, (a, b) in enumerate(zip(pad, row, strict=True)):
                require_equal(a, b, words, PadValue=axis, X=axis + 1)
        out = one_per_sequence(X, "X", (longest(lod) if self.padded_length == -1 else self.padded_length, *row))
        return out, rows(INT64, out.known_dims[:1], out.lod)

    def kernel(self, X: Tensor, PadValue: Tensor, *, offsets: list[Offsets]) -> tuple[Tensor, Tensor]:
        sequences = offsets[0]
        length = sequences.longest if self.padded_length == -1 else self.padded_length
        if sequences.longest > length:
            raise ExecutionError(f"sequence_pad: padded_length must be at least the longest sequence's, {sequences.longest}; it is {length}")
        out = X.new_empty((sequences.count * length, *X.shape[1:]))
        if sequences.rows < len(out):
            out.copy_(PadValue)
        out.index_copy_(0, places(sequences, length), X)
        return out.view(sequences.count, length, *X.shape[1:]), sequences.lengths.clone()

    def _gradient_workspace(self, X: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Out_GRAD=d_out)

    def _infer_gradient(self, X: Spec, d_out: Spec) -> Spec:
        require_rank(X.rank + 1, d_out, "Out@GRAD")
        check_made(Out_GRAD=(d_out, one_per_sequence(X, "X", (d_out.known_dims[1], *X.known_dims[1:]))))
        return X.like()

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor, *, offsets: list[Offsets]) -> Tensor:
        return unpadded(d_out, offsets[0])

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5]), PadValue=f32(1)),
        sample(X=f32(9, 2).ragged([4, 0, 5]), PadValue=f32(), padded_length=6),
        sample(X=f32(9, 2, 3).ragged([4, 0, 5]), PadValue=f32(2, 3), padded_length=7),
        sample(X=f32(7, 3).ragged([2, 1, 0], [3, 0, 4]), PadValue=f32(3)),
        sample(X=i64(4, 1).ragged([1, 3]), PadValue=i64(1), padded_length=3),
        sample(X=f32(4, 3).ragged([2, 2]), PadValue=f32(1)),
        sample(X=f32(0, 2).ragged([]), PadValue=f32(1)),
        sample(X=f32(0, 2).ragged([0, 0]), PadValue=f32(1), padded_length=3),
    ]
    rejects = [
        reject(X=f32(3).ragged([3]), PadValue=f32(1), says="at least 2 dims"),
        reject(X=f32(3, 2).ragged([3]), PadValue=f32(3), says="one number or one row of X"),
        reject(X=f32(3, 2, 5).ragged([3]), PadValue=f32(2), says="one number or one row of X"),
        reject(X=f32(3, 2, 5).ragged([3]), PadValue=f32(5, 2), says="one number or one row of X"),
        reject(X=f32(3, 2).ragged([3]), PadValue=f32(1), padded_length=0, says="padded_length must be at least 1"),
        reject(X=f32(3, 2).ragged([3]), PadValue=f32(1), padded_length=-(2**31), says="padded_length must be at least 1"),
    ]


class SequenceUnpad(Operator):
    """Out = the first Length[i] rows of each X[i], one after the other, as ragged rows.

    If X is ragged, its entries are grouped sequences, and the groups become the outer levels of Out.
    """

    type = "sequence_unpad"
    X = operand(doc="[sequences, time, *row]")
    Length = operand(INDEX, doc="[sequences]")
    Out = result(doc="ragged, [rows, *row]; [rows, 1] of an X of two dims", new_offsets=True)

    def computes(self) -> SequenceUnpadding:
        return SequenceUnpadding()

    def infer_shape(self, X: Spec, Length: Spec) -> Spec:
        require(X.rank >= 2, f"X must have at least 2 dims, not {X.rank}", X=None)
        require_rank(1, Length, "Length")
        count = require_equal(X.known_dims[0], Length.known_dims[0], "Length must have one number per sequence", X=0, Length=0)
        total: Size = unknown_size("rows")
        if Length.value is not None:
            total = 0
            for length in Length.value:
                require_at_most(0, length, f"a length must be at least 0; seen {length}", Length=None)
                require_at_most(length, X.known_dims[1], f"a length must be at most the time of X, {X.known_dims[1]}; seen {length}", Length=None, X=1)
                total = total + length
        outer = X.lod.counts if X.lod is not None else ()
        return rows(X.dtype, (total, *(X.known_dims[2:] or (1,))), new_lod("Out", (*outer, count)))

    def workspace(self, X: Spec, Length: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * copies(strided, X=X) + 32 * Length.elements

    def kernel(self, X: Tensor, Length: Tensor, *, offsets: list[Offsets | None]) -> tuple[Tensor, Offsets]:
        out_offsets, outer = offsets_of(Length, X.shape[1], "Length"), offsets[0]
        if outer is not None:
            out_offsets = Offsets([*outer.levels, out_offsets.last])
        return unpadded(X if X.dim() > 2 else X.unsqueeze(2), out_offsets), out_offsets

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor, *, offsets: list[Offsets | None]) -> Tensor:
        sequences = offsets[1]
        if sequences is None:
            raise ExecutionError("sequence_unpad_grad: the gradient of Out must be ragged, as Out is")
        out = d_out.new_zeros((X.shape[0] * X.shape[1], *d_out.shape[1:]))
        return out.index_copy_(0, places(sequences, X.shape[1]), d_out).view(X.shape)

    samples = [
        sample(X=f32(3, 5, 2), Length=i64(3, data=[4, 0, 5])),
        sample(X=f32(4, 5), Length=i32(4, high=5)),
        sample(X=f32(3, 4, 2, 5).ragged([2, 0, 1]), Length=i64(3, high=4)),
        sample(X=i64(2, 3, 1), Length=i64(2, high=3)),
        sample(X=f32(0, 3, 2), Length=i64(0)),
    ]
    rejects = [
        reject(X=f32(3, 4), Length=i64(3, data=[1, 5, 0]), says="at most the time of X"),
        reject(X=f32(3, 4), Length=i64(3, data=[1, -1, 0]), says="at least 0"),
    ]


class SequenceMask(Operator):
    """Y[..., j] = 1 where j < X[...], else 0, for j in 0..maxlen-1."""

    type = "sequence_mask"
    X = operand((*INDEX, FP32, FP64), doc="lengths, any shape")
    MaxLenTensor = operand(INDEX, optional=True, doc="maxlen, as a tensor of one number")
    Y = result(doc="[*dims of X, maxlen]")
    maxlen = attribute(AttrType.INT, -1, doc="below 0: the largest of X")
    out_dtype = attribute(AttrType.INT, doc="the element type of Y, by its number in the file format")
    gradient = ZERO_GRADIENT

    def computes(self) -> PlacesBelow:
        return PlacesBelow()

    def infer_shape(self, X: Spec, MaxLenTensor: Spec | None) -> Spec:
        require(self.maxlen != 0, "maxlen must be at least 1, or less than 0 for the largest of X")
        size = known_number(self.maxlen, MaxLenTensor, "MaxLenTensor")
        if size is None or (MaxLenTensor is None and self.maxlen < 0):
            size = reduce(maximum, X.value, 0) if X.value is not None else unknown_size("longest")
        else:
            require_at_most(1, size, f"maxlen must be at least 1; seen {size}", **({} if MaxLenTensor is None else {"MaxLenTensor": None}))
        return rows(element_type(self.out_dtype), (*X.known_dims, size), X.lod if X.rank else None)

    def workspace(self, X: Spec, MaxLenTensor: Spec | None) -> Size:
        of_run = MaxLenTensor is not None or self.maxlen < 0  # its length is known at run time only
        return 8 * X.elements + (0 if of_run else (X.elements + 8) * self.maxlen)  # bools

    def kernel(self, X: Tensor, MaxLenTensor: Tensor | None) -> Tensor:
        size = number_at_run(self.maxlen, MaxLenTensor)
        if MaxLenTensor is not None and size < 1:
            raise ExecutionError(f"sequence_mask: maxlen must be at least 1; seen {size}")
        if size < 0:
            size = max(0, int(X.max())) if X.numel() else 0
        dtype = torch_dtype(self.out_dtype)
        require_room(self.type, X.numel() * size * dtype.itemsize + 8 * size, f"a result of {X.numel():,} times {size:,} numbers")
        out = torch.arange(size, device=X.device) < X.unsqueeze(-1)
        return out.to(dtype)

    samples = [
        sample(X=i64(3, high=4), maxlen=5, out_dtype=3),
        sample(X=i64(3, high=4), out_dtype=5),
        sample(X=i32(2, 3, high=9), maxlen=7, out_dtype=0),
        sample(X=f32(3, low=0, high=4), maxlen=5, out_dtype=6),
        sample(X=i64(3, high=4).ragged([1, 2]), maxlen=5, out_dtype=3),
        sample(X=i64(3, high=4), MaxLenTensor=i32(1, data=[6]), out_dtype=3),
        sample(X=i64(0), out_dtype=3),
    ]
    rejects = [
        reject(X=i64(3), maxlen=0, out_dtype=3, says="maxlen must be at least 1"),
        reject(X=i64(3), MaxLenTensor=i32(1, data=[-1]), out_dtype=3, says="maxlen must be at least 1"),
    ]
