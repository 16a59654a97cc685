"""similarity_focus: the places of a slice's largest numbers, one in each row and column."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, Spec
from foreshape.core.values.offsets import as_list
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require, require_at_most, require_rank
from foreshape.language.operator.samples import f32, reject, sample


class SimilarityFocus(Operator):
    """Out = 1 at the places chosen in one of the slices X[:, indexes[k]] along ``axis``, at all places along ``axis``, and else 0.

    In a slice, a matrix, the largest number is chosen, then the largest in other rows and columns, and so on. (Of equal numbers the first comes first; in
    PaddlePaddle any.)
    """

    type = "similarity_focus"
    gradient = NOT_DIFFERENTIABLE
    X = operand((FP32, FP64), doc="[examples, a, b, c]")
    Out = result(layout="row", doc="as X")
    axis = attribute(AttrType.INT, choices=(1, 2, 3))
    indexes = attribute(AttrType.INTS, low=0)

    def infer_shape(self, X: Spec) -> Spec:
        require_rank(4, X, "X")
        require(len(self.indexes) > 0, "indexes must have at least one", X=None)
        axis: int = self.axis
        size = X.known_dims[axis]
        require_at_most(max(self.indexes) + 1, size, f"indexes must be less than the dim of X at axis, {size}; seen {max(self.indexes)}", X=self.axis)
        return X.like()

    def workspace(self, X: Spec) -> Size:
        return 3 * X.nbytes + 32 * X.elements

    def kernel(self, X: Tensor) -> Tensor:
        axis: int = self.axis
        size = X.shape[axis]
        if max(self.indexes) >= size:
            raise ExecutionError(f"similarity_focus: indexes must be less than the dim of X at axis, {size}; seen {max(self.indexes)}")
        matrices = X.movedim(self.axis, 1)
        rows, columns = matrices.shape[2:]
        chosen = torch.zeros((len(X), rows, columns), dtype=X.dtype, device=X.device)
        for example, mask in zip(matrices, chosen, strict=True):
            for index in self.indexes:
                order = as_list(example[index].reshape(-1).argsort(descending=True, stable=True))
                used: tuple[set[int], set[int]] = (set(), set())
                for place in order:
                    row, column = divmod(place, columns)
                    if row in used[0] or column in used[1]:
                        continue
                    used[0].add(row)
                    used[1].add(column)
                    mask[row, column] = 1.0
                    if len(used[0]) == min(rows, columns):
                        break
        return chosen.unsqueeze(1).expand(matrices.shape).movedim(1, self.axis).clone(memory_format=torch.contiguous_format)

    samples = [
        sample(X=f32(2, 3, 4, 5, distinct=True), axis=1, indexes=[0]),
        sample(X=f32(2, 3, 4, 5, distinct=True), axis=2, indexes=[1, 3]),
        sample(X=f32(2, 3, 5, 4, distinct=True), axis=3, indexes=[2]),
        sample(X=f32(0, 3, 5, 4), axis=3, indexes=[2]),
    ]
    rejects = [
        reject(X=f32(2, 3, 4, 5), axis=1, indexes=[3], says="indexes must be less than the dim of X at axis, 3"),
        reject(X=f32(2, 3, 4, 5), axis=1, indexes=[], says="at least one"),
    ]
