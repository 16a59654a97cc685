"""Ragged rows in other widths: sequence_reshape regroups the numbers of every sequence, sequence_enumerate makes windows of them."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import INDEX, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_divides, require_equal
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import turned
from foreshape.language.ops.rules.ragged_rules import new_lod, ragged, rows


class SequenceReshape(Operator):
    """Out = the numbers of each innermost sequence of X in rows of ``new_dim``, a divisor of their number."""

    type = "sequence_reshape"
    examples = ("X",)
    X = operand(doc="ragged, [rows, width]")
    Out = result(doc="ragged, [rows * width / new_dim, new_dim]", view_of="X", layout="reshaped", new_offsets=True)
    new_dim = attribute(AttrType.INT, low=1)

    def infer_shape(self, X: Spec) -> Spec:
        lod = ragged(X, "X")
        require(X.rank == 2, f"X must have 2 dims, not {X.rank}", X=None)
        height, width = X.known_dims
        if isinstance(width, int) and width == self.new_dim:
            return X.like()
        count = require_divides(self.new_dim, height * width, f"new_dim must divide the numbers of every sequence; of X, {height} * {width}", X=1)
        return rows(X.dtype, (count, self.new_dim), new_lod("Out", lod.counts))

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return turned(strided, X=X)

    def kernel(self, X: Tensor, *, offsets: list[Offsets]) -> tuple[Tensor, Offsets]:
        sequences, width = offsets[0], X.shape[1]

        def make() -> Offsets:
            numbers = sequences.last * width
            if bool((numbers % self.new_dim).any()):
                lengths = sequences.host_lengths
                bad = next(i for i, n in enumerate(lengths) if n * width % self.new_dim)
                raise ExecutionError(
                    f"sequence_reshape: new_dim must divide the numbers of every sequence; sequence {bad} has "
                    f"{lengths[bad]} * {width}, and new_dim is {self.new_dim}"
                )
            return Offsets([*sequences.levels[:-1], numbers // self.new_dim])

        out_offsets = sequences if width == self.new_dim else sequences.kept(("reshaped", width, self.new_dim), make)
        return X.reshape(-1, self.new_dim), out_offsets

    def _gradient_workspace(self, X: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return turned(strided, Out_GRAD=d_out)

    @gradient("X", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "reshaped"}, workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return d_out.reshape(X.shape)

    samples = [
        sample(X=f32(9, 4).ragged([4, 0, 5]), new_dim=2),
        sample(X=f32(6, 2).ragged([2, 1], [4, 0, 2]), new_dim=4),
        sample(X=i64(4, 3).ragged([1, 3]), new_dim=1),
        sample(X=f32(4, 3).ragged([1, 3]), new_dim=3),
        sample(X=f32(0, 2).ragged([]), new_dim=5),
    ]
    rejects = [reject(X=f32(3).ragged([3]), new_dim=1, says="2 dims")]


class SequenceEnumerate(Operator):
    """Out[i] = the ``win_size`` numbers of X from row i on; ``pad_value`` past the end of its sequence."""

    type = "sequence_enumerate"
    examples = ("X",)
    X = operand(INDEX, doc="ragged, [rows, 1]")
    Out = result(doc="[rows, win_size], ragged as X")
    win_size = attribute(AttrType.INT, low=2)
    pad_value = attribute(AttrType.INT, 0)
    gradient = ZERO_GRADIENT

    def infer_shape(self, X: Spec) -> Spec:
        ragged(X, "X")
        require(X.rank == 2, f"X must have 2 dims, [rows, 1], not {X.rank}", X=None)
        require_equal(X.known_dims[1], 1, f"X must be a column, [rows, 1]; its rows have {X.known_dims[1]}", X=1)
        return X.with_dims((X.known_dims[0], self.win_size))

    def kernel(self, X: Tensor, *, offsets: list[Offsets]) -> Tensor:
        sequences = offsets[0]
        if not sequences.rows:  # a window has a size all the same
            return X.new_empty((0, self.win_size))

        def make() -> tuple[Tensor, Tensor]:
            places = torch.arange(sequences.rows, device=X.device).unsqueeze(1) + torch.arange(self.win_size, device=X.device)
            return places.clamp(max=max(sequences.rows - 1, 0)), places >= sequences.last[1:].repeat_interleave(sequences.lengths).unsqueeze(1)

        windows, past = sequences.kept(("windows", self.win_size), make)
        return X.reshape(-1)[windows].masked_fill_(past, self.pad_value)

    samples = [
        sample(X=i64(9, 1).ragged([4, 0, 5]), win_size=3, pad_value=7),
        sample(X=i32(7, 1).ragged([2, 1], [3, 0, 4]), win_size=2),
        sample(X=i64(4, 1).ragged([1, 3]), win_size=6, pad_value=-1),
        sample(X=i64(0, 1).ragged([]), win_size=3),
    ]
    rejects = [
        reject(X=i64(3).ragged([3]), win_size=2, says="2 dims"),
        reject(X=i64(3, 2).ragged([3]), win_size=2, says="a column"),
    ]
