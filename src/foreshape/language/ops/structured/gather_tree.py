"""The words of dense beams, on the way back from their ends."""

from __future__ import annotations

from foreshape.core.dims import Size, product
from foreshape.core.spec import INDEX, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import NOT_DIFFERENTIABLE, Operator, operand, result
from foreshape.language.operator.require import require_equal, require_rank
from foreshape.language.operator.samples import i32, i64, sample


class GatherTree(Operator):
    """Out[:, b, k] = the words on the way back from place k of the last step, by the Parents of each following step."""

    type = "gather_tree"
    Ids = operand(INDEX, doc="[steps, batch, beam]: the kept words")
    Parents = operand(INDEX, same_type_as="Ids", doc="as Ids: the place of each one's parent in the step before")
    Out = result(doc="as Ids")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Ids: Spec, Parents: Spec) -> Spec:
        require_rank(3, Ids, "Ids")
        require_rank(3, Parents, "Parents")
        for axis in range(3):
            require_equal(Ids.known_dims[axis], Parents.known_dims[axis], "Ids and Parents must have the same dims", Ids=axis, Parents=axis)
        return Ids.like()

    def workspace(self, Ids: Spec, Parents: Spec) -> Size:
        return 24 * product(Ids.known_dims[1:])

    def kernel(self, Ids: Tensor, Parents: Tensor) -> Tensor:
        steps, _, beam = Ids.shape
        later = Parents[1:]  # the first step has nowhere to point
        if later.numel() and not 0 <= int(later.min()) <= int(later.max()) < beam:
            raise ExecutionError(f"gather_tree: Parents must be in [0, {beam}), the places of a beam; seen {int(later.min())} to {int(later.max())}")
        out = torch.empty_like(Ids)
        place = torch.arange(beam, device=Ids.device).expand(Ids.shape[1:])
        for step in range(steps - 1, -1, -1):
            torch.gather(Ids[step], 1, place, out=out[step])
            if step:
                place = Parents[step].gather(1, place).long()
        return out

    samples = [
        sample(Ids=i64(3, 2, 2, data=[2, 2, 6, 1, 3, 9, 6, 1, 0, 1, 9, 0]), Parents=i64(3, 2, 2, data=[0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1])),
        sample(Ids=i32(4, 3, 5), Parents=i32(4, 3, 5, high=4)),
        sample(Ids=i64(1, 2, 3), Parents=i64(1, 2, 3, low=-5)),
        sample(Ids=i64(0, 2, 3), Parents=i64(0, 2, 3)),
        sample(Ids=i64(4, 0, 3), Parents=i64(4, 0, 3)),
    ]
