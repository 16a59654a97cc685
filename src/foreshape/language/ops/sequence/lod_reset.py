"""lod_reset: the same rows, grouped into other sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshape.core.dims import Size
from foreshape.core.spec import INDEX, Lod, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, SchemaError, TypeMismatchError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require, require_at_most, require_equal
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.sequence_computations import Regrouping
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.ragged_rules import new_lod, rows
from foreshape.machine.kernels.row_ranges import shown

if TYPE_CHECKING:
    from collections.abc import Sequence


class LodReset(Operator):
    """Out = X, its rows grouped as in a ragged Y, or else by the offsets in a dense Y, or else by the offsets ``target_lod``.

    Offsets rise from 0 to the number of rows. With ``append`` they become the innermost level below the levels of X. The sequences of X then count these
    sequences instead of rows, and there must be as many as rows. A ragged Y is never appended.
    """

    type = "lod_reset"
    X = operand(doc="at least one dim")
    Y = operand(optional=True, doc="ragged, with as many rows as X, or offsets, [sequences + 1]")
    Out = result(doc="as X, grouped otherwise", view_of="X", new_offsets=True)
    target_lod = attribute(AttrType.INTS, [], doc="offsets")
    append = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec, Y: Spec | None) -> Spec:
        require(X.rank >= 1, "X must have at least one dim", X=None)
        height = X.known_dims[0]
        if Y is not None and Y.lod is not None:
            require(Y.rank >= 1, "Y must have at least one dim", Y=None)
            require_equal(height, Y.known_dims[0], "Y must have as many rows as X", X=0, Y=0)
            return self._grouped(X, Y.lod)
        if Y is None:
            target: Sequence[Size] | None = self.target_lod
            words, count = "target_lod", len(self.target_lod)
            if not target:
                fail("target_lod or Y must be given", SchemaError)
        else:
            if Y.dtype not in INDEX:
                fail(f"a Y that is not ragged holds offsets, int32 or int64, not {Y.known_dtype.name}", TypeMismatchError, Y=None)
            target, words, count = Y.value, "Y", Y.elements
        require_at_most(2, count, f"{words} must hold at least two offsets, 0 and the number of rows; seen {count}")
        if target is not None:
            self._check_rising(target, height, words)
        counts = (count - 1,)
        if self.append and X.lod is not None:
            require_equal(height, count - 1, "sequences can be appended below those of X only where there are as many as rows", X=0)
            counts = (*X.lod.counts, count - 1)
        return self._grouped(X, new_lod("Out", counts))

    def _grouped(self, X: Spec, lod: Lod) -> Spec:
        return rows(X.dtype, X.known_dims, lod).with_value(X.value)

    def _check_rising(self, target: Sequence[Size], height: Size, words: str) -> None:
        require_equal(target[0], 0, f"{words} must begin with 0; seen {target[0]}")
        last: Size = 0
        for offset in target:
            require_at_most(last, offset, f"{words} must rise; seen {offset} after {last}")
            last = offset
        require_equal(height, last, f"{words} must end with the number of rows of X, {height}; seen {last}", X=0)

    def computes(self) -> Regrouping | None:
        return None if self.target_lod or self.append else Regrouping()

    def kernel(self, X: Tensor, Y: Tensor | None, *, offsets: list[Offsets | None]) -> tuple[Tensor, Offsets | None]:
        if offsets[1] is not None:
            return X.view_as(X), None
        target = torch.tensor(self.target_lod, dtype=torch.int64, device=X.device) if Y is None else Y.reshape(-1).to(torch.int64, copy=True)
        if len(target) < 2 or int(target[0]) or int(target[-1]) != X.shape[0] or bool((target.diff() < 0).any()):
            raise ExecutionError(f"lod_reset: offsets must rise from 0 to the number of rows, {X.shape[0]}; seen {shown(target)}")
        outer = offsets[0]
        if not self.append or outer is None:
            return X.view_as(X), Offsets([target])
        if len(target) != X.shape[0] + 1:
            raise ExecutionError(f"lod_reset: as many sequences must be appended as X has rows, {X.shape[0]}; seen {len(target) - 1}")
        return X.view_as(X), Offsets([*outer.levels, target])

    def _infer_gradient(self, X: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, X))
        return X.like()

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, view_of={"X@GRAD": "Out@GRAD"})
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return d_out.view_as(d_out)

    samples = [
        sample(X=f32(7, 2), target_lod=[0, 3, 3, 7]),
        sample(X=f32(7, 2).ragged([2, 1], [3, 0, 4]), target_lod=[0, 5, 7]),
        sample(X=f32(7, 2).ragged([3, 0, 4]), Y=f32(7, 3).ragged([2, 1], [1, 2, 4])),
        sample(X=f32(7, 2).ragged([3, 0, 4]), Y=f32(7, 3).ragged([2, 5]), append=True),
        sample(X=f32(7, 2), Y=i32(4, data=[0, 3, 3, 7])),
        sample(X=i64(7), Y=i64(3, data=[0, 0, 7])),
        sample(X=f32(4, 3).ragged([3, 0, 1]), target_lod=[0, 1, 2, 2, 4], append=True),
        sample(X=f32(4, 3).ragged([3, 0, 1]), Y=i32(5, data=[0, 1, 2, 3, 4]), append=True),
        sample(X=f32(4, 3).ragged([2, 1], [3, 0, 1]), target_lod=[0, 1, 2, 3, 4], append=True),
        sample(X=f32(4, 3), target_lod=[0, 1, 4], append=True),
        sample(X=f32(0, 3).ragged([]), target_lod=[0, 0, 0]),
    ]
    rejects = [
        reject(X=f32(4, 3), says="target_lod or Y must be given", error=SchemaError),
        reject(X=f32(4, 3), target_lod=[0], says="at least two offsets"),
        reject(X=f32(4, 3), target_lod=[0, 3], says="the number of rows of X, 4; seen 3"),
        reject(X=f32(4, 3), target_lod=[1, 4], says="begin with 0"),
        reject(X=f32(4, 3), target_lod=[0, 3, 2, 4], says="must rise"),
        reject(X=f32(4, 3), Y=f32(5, 3).ragged([5]), says="as many rows as X"),
        reject(X=f32(4, 3), Y=f32(2), says="int32 or int64", error=TypeMismatchError),
        reject(X=f32(4, 3), Y=i64(2, data=[0, 5]), says="the number of rows of X, 4; seen 5"),
        reject(X=f32(4, 3).ragged([4]), target_lod=[0, 1, 4], append=True, says="as many as rows"),
    ]
