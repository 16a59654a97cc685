"""viterbi_decode: the best sequence of tags, given scores of tags at each step and of transitions between them."""

from __future__ import annotations

from foreshape.dims import Size
from foreshape.errors import ExecutionError
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import require_at_most, require_equal, require_rank, unknown_size
from foreshape.operator.samples import f32, i64, reject, sample
from foreshape.spec import FP32, FP64, INT64, Spec, tensor
from foreshape.values.torch_proxy import Tensor, torch


class ViterbiDecode(Operator):
    """The tags of each padded sequence with the highest sum of scores and transitions (Viterbi, 1967), and the sum.

    With ``include_bos_eos_tag`` the last tag stands before each sequence: its row of Transition is added to the first step. The row of the last tag but one is
    added to the last step, as in PaddlePaddle.
    """

    type = "viterbi_decode"
    Input = operand((FP32, FP64), doc="scores of the tags, [batch, time, tags]")
    Transition = operand((FP32, FP64), same_type_as="Input", doc="from the tag of a row to the tag of a column, [tags, tags]")
    Length = operand((INT64,), doc="steps of each sequence, [batch], from 1 to time")
    Scores = result(doc="the best sums, [batch]")
    Path = result(doc="int64 tags, [batch, longest length]; 0 after a sequence's end")
    include_bos_eos_tag = attribute(AttrType.BOOLEAN, True)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Input: Spec, Transition: Spec, Length: Spec) -> tuple[Spec, Spec]:
        require_rank(3, Input, "Input")
        require_rank(2, Transition, "Transition")
        require_rank(1, Length, "Length")
        batch, _, tags = Input.known_dims
        for axis, size in enumerate(Transition.known_dims):
            require_equal(tags, size, "Transition must have a row and a column for each tag of Input", Input=2, Transition=axis)
        require_equal(batch, Length.known_dims[0], "Length must have one number for each sequence of Input", Input=0, Length=0)
        least = 2 if self.include_bos_eos_tag else 1
        require_at_most(least, tags, f"there must be at least {least} tags; seen {tags}", Input=2)
        return Input.dense([batch]), tensor(INT64, batch, unknown_size("longest"))

    def workspace(self, Input: Spec, Transition: Spec, Length: Spec) -> Size:
        batch, _, tags = Input.known_dims
        return 8 * Input.elements + batch * tags * (tags * Input.known_dtype.itemsize + 32)

    def kernel(self, Input: Tensor, Transition: Tensor, Length: Tensor) -> tuple[Tensor, Tensor]:
        batch, time, _ = Input.shape
        if not batch:
            return Input.new_zeros(0), Length.new_zeros((0, 0))
        low, longest = int(Length.min()), int(Length.max())
        if low < 1 or longest > time:
            raise ExecutionError(f"Length must be from 1 to {time}, the steps of Input; seen {low} to {longest}")
        tags = self.include_bos_eos_tag
        best = Input[:, 0] + Transition[-1] if tags else Input[:, 0]
        ends = Length.unsqueeze(1)
        if tags:
            best = torch.where(ends == 1, best + Transition[-2], best)
        came: list[Tensor] = []
        for t in range(1, longest):
            highest, where = (best.unsqueeze(2) + Transition).max(1)
            new = highest + Input[:, t]
            if tags:
                new = torch.where(ends == t + 1, new + Transition[-2], new)
            best = torch.where(ends > t, new, best)
            came.append(where)
        scores, tag = best.max(1)
        path = Length.new_zeros((batch, longest))
        for t in range(longest - 1, -1, -1):
            alive = Length > t
            path[:, t] = torch.where(alive, tag, 0)
            if t:
                tag = torch.where(alive, came[t - 1].gather(1, tag.unsqueeze(1)).squeeze(1), tag)
        return scores, path

    samples = [
        sample(Input=f32(3, 5, 4), Transition=f32(4, 4), Length=i64(3, data=[5, 1, 3]), include_bos_eos_tag=False),
        sample(Input=f32(3, 5, 4), Transition=f32(4, 4), Length=i64(3, data=[4, 1, 3])),
        sample(Input=f32(0, 5, 4), Transition=f32(4, 4), Length=i64(0)),
    ]
    rejects = [
        reject(Input=f32(3, 5, 4), Transition=f32(4, 5), Length=i64(3), says="a row and a column for each tag"),
        reject(Input=f32(3, 5, 4), Transition=f32(4, 4), Length=i64(2), says="one number for each sequence"),
        reject(Input=f32(3, 4), Transition=f32(4, 4), Length=i64(3), says="Input must have 3 dims"),
        reject(Input=f32(3, 5, 1), Transition=f32(1, 1), Length=i64(3), says="at least 2 tags"),
    ]
