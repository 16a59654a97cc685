"""Products with weights of 8 or 4 bits, in groups of rows with a scale each."""

from __future__ import annotations

from dataclasses import replace

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, INT8, UINT8, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.language.operator import NOT_DIFFERENTIABLE, OWN, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.byte_computations import GroupedProduct
from foreshape.language.operator.require import require, require_at_most, require_divides, require_equal, require_rank
from foreshape.language.operator.samples import SampleTensor, f32, i32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.machine.kernels import grouped_weights
from foreshape.machine.kernels.grouped_weights import TILE


def _weight(tiles: int, rows: int, bits: int = 8) -> SampleTensor:
    low, high = (-127, 127) if bits == 8 else (0, 255)
    return replace(i32(tiles, rows if bits == 8 else rows // 2, TILE, low=low, high=high), dtype=INT8 if bits == 8 else UINT8)


def _scales(tiles: int, groups: int) -> SampleTensor:
    return f32(tiles, groups, TILE, low=0.001, high=0.01)


class GroupedLinear(Operator):
    """Out = X V, where V is W's numbers, each times the scale of its group of rows; W lies in tiles of 64 columns.

    Of 8 bits V[i, 64 t + j] = W[t, i, j] Scale[t, i // group, j]. Of 4 bits W[t, i // 2, j] has two numbers, of even i in its lower half and of odd i in its
    upper one, each plus 8. An Offset[t, i // group, j] is added to V, and the numbers of 4 bits lie in W as they are then, from 0 to 15.

    With rows "int8" X is rounded first: each group of a row, as the groups of W, to 127 steps of its largest magnitude to either side. Where the processor has
    instructions for it, whole numbers are multiplied, with exact sums inside a group. A group with a number that is not finite makes its row NaN.
    """

    type = "grouped_linear"
    since = OWN
    examples = ("X",)
    gradient = NOT_DIFFERENTIABLE
    X = operand((FP32,), doc="[..., k], ragged or not")
    W = operand((INT8, UINT8), doc="int8 [tiles, k, 64], or of 4 bits uint8 [tiles, k / 2, 64]")
    Scale = operand((FP32,), doc="[tiles, groups, 64]; groups divides k")
    Offset = operand((FP32,), optional=True, doc="[tiles, groups, 64]")
    Out = result(layout="row", doc="fp32, [..., columns]")
    columns = attribute(AttrType.INT, 1, low=1, doc="of the weight; those of the last tile behind it are not read")
    rows = attribute(AttrType.STRING, "fp32", choices=("fp32", "int8"), doc="the numbers of X in products")

    def infer_shape(self, X: Spec, W: Spec, Scale: Spec, Offset: Spec | None) -> Spec:
        require_rank(3, W, "W")
        require_rank(3, Scale, "Scale")
        require(X.rank > 1, f"X must have at least 2 dims, not {X.rank}", X=None)
        rows = W.known_dims[1] * (2 if W.known_dtype is UINT8 else 1)
        require_equal(X.known_dims[-1], rows, "the columns of X must equal the rows of W", X=X.rank - 1, W=1)
        require_equal(Scale.known_dims[0], W.known_dims[0], "Scale must have the tiles of W", Scale=0, W=0)
        for spec, slot in ((W, "W"), (Scale, "Scale")):
            require_equal(spec.known_dims[2], TILE, f"a tile of {slot} must have {TILE} columns", **{slot: 2})
        groups = Scale.known_dims[1]
        require_equal(W.known_dims[0], -(-self.columns // TILE), f"W must have the tiles of {self.columns} columns", W=0)
        require_at_most(1, rows, "W must have a row", W=1)
        require_at_most(1, groups, "Scale must have a group", Scale=1)
        require_divides(groups, rows, f"the groups of Scale must divide the rows of W, {rows}; seen {groups}", Scale=1, W=1)
        if Offset is not None:
            require_rank(3, Offset, "Offset")
            for axis, words in enumerate(("the tiles", "the groups", "the columns")):
                require_equal(Offset.known_dims[axis], Scale.known_dims[axis], f"Offset must have {words} of Scale", Offset=axis, Scale=axis)
        return X.with_dims((*X.known_dims[:-1], self.columns))

    def computes(self) -> GroupedProduct:
        return GroupedProduct(self.columns, self.rows == "int8")

    def work(self, X: Spec, W: Spec, Scale: Spec, Offset: Spec | None) -> Size:
        return X.elements * self.columns

    def workspace(self, X: Spec, W: Spec, Scale: Spec, Offset: Spec | None, *, strided: frozenset[str]) -> Size:
        tiles, rows = -(-self.columns // TILE), X.known_dims[-1]
        unpacked = grouped_weights.unpacked_elements(tiles, rows) if isinstance(rows, int) else tiles * rows * TILE
        results = X.dense((*X.known_dims[:-1], tiles * TILE)).nbytes
        rounding = 6 * X.dense(X.known_dims).nbytes if self.rows == "int8" else 0
        return 9 * unpacked + 2 * results + rounding + copies(strided, X=X, W=W, Scale=Scale, Offset=Offset)

    def kernel(self, X: Tensor, W: Tensor, Scale: Tensor, Offset: Tensor | None) -> Tensor:
        bits = 8 if W.element_size() == 1 and W.is_signed() else 4
        offsets = None if Offset is None else Offset.contiguous()
        x, rounds_rows = X.reshape(-1, X.shape[-1]), self.rows == "int8"
        out = grouped_weights.product(x, W.contiguous(), Scale.contiguous(), bits, self.columns, offsets, rounds_rows=rounds_rows)
        return out.view(*X.shape[:-1], self.columns)

    samples = [
        sample(X=f32(3, 8), W=_weight(2, 8), Scale=_scales(2, 2), columns=70),
        sample(X=f32(3, 8), W=_weight(1, 8, 4), Scale=_scales(1, 1), columns=64),
        sample(X=f32(2, 3, 12), W=_weight(1, 12, 4), Scale=_scales(1, 3), columns=5),
        sample(X=f32(5, 8).ragged([2, 3]), W=_weight(1, 8), Scale=_scales(1, 2), columns=9),
        sample(X=f32(3, 8), W=_weight(2, 8, 4), Scale=_scales(2, 2), Offset=_scales(2, 2), columns=70),
        sample(X=f32(5, 12), W=_weight(1, 12), Scale=_scales(1, 3), Offset=_scales(1, 3), columns=9),
        sample(X=f32(3, 8), W=_weight(2, 8), Scale=_scales(2, 2), columns=70, rows="int8"),
        sample(X=f32(5, 12).ragged([2, 3]), W=_weight(1, 12, 4), Scale=_scales(1, 3), Offset=_scales(1, 3), columns=9, rows="int8"),
        sample(X=f32(2, 3, 32), W=_weight(1, 32, 4), Scale=_scales(1, 1), columns=5, rows="int8"),
        sample(X=f32(0, 8), W=_weight(1, 8), Scale=_scales(1, 2), columns=9),
    ]
    rejects = [
        reject(X=f32(3, 6), W=_weight(1, 8), Scale=_scales(1, 2), columns=9, says="the columns of X must equal the rows of W"),
        reject(X=f32(3, 8), W=_weight(1, 8), Scale=_scales(2, 2), columns=9, says="Scale must have the tiles of W"),
        reject(X=f32(3, 8), W=_weight(1, 8), Scale=_scales(1, 3), columns=9, says="must divide the rows of W"),
        reject(X=f32(3, 8), W=_weight(2, 8), Scale=_scales(2, 2), columns=64, says="W must have the tiles of 64 columns"),
        reject(X=f32(3, 8), W=_weight(1, 8), Scale=_scales(1, 2), Offset=_scales(1, 4), columns=9, says="Offset must have the groups of Scale"),
        reject(X=f32(8), W=_weight(1, 8), Scale=_scales(1, 2), columns=9, says="at least 2 dims"),
    ]
