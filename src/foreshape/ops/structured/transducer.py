"""The loss of a recurrent transducer, over all alignments of labels to the steps of a sequence.

Formulas: Graves, "Sequence transduction with recurrent neural networks", 2012; Yu et al., "FastEmit", ICASSP 2021.
"""

from __future__ import annotations

from foreshape.dims import Size
from foreshape.errors import ExecutionError, SchemaError
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import require_at_most, require_equal, require_rank
from foreshape.operator.samples import f32, i32, reject, sample
from foreshape.ops.rules.padded_sequences import check_lengths, check_numbers
from foreshape.spec import FP32, FP64, INDEX, Spec
from foreshape.values.torch_proxy import Tensor, torch


class WarpRNNT(Operator):
    """loss = -log of the sum, over all paths through ``[steps, labels + 1]``, of their probabilities in input.

    A path begins at (0, 0). From (t, u) it goes to (t + 1, u) by the blank, or to (t, u + 1) by label u, and ends with the blank after the last step. The
    operand input has logarithms of probabilities: no softmax is taken, as in PaddlePaddle's kernel for CPUs. The result warprnntgrad is the gradient of each
    loss with respect to input. Gradients of labels are 1 + ``fastemit_lambda`` times as large there, and the loss itself is as without it.
    """

    type = "warprnnt"
    input = operand((FP32, FP64), doc="[sequences, steps, labels + 1, classes]")
    label = operand(INDEX, doc="[sequences, labels]")
    input_lengths = operand(INDEX, doc="[sequences]: the number of valid steps, at least 1")
    label_lengths = operand(INDEX, doc="[sequences]: the number of valid labels")
    loss = result(doc="[sequences]")
    warprnntgrad = result(doc="as input")
    blank = attribute(AttrType.INT, 0, doc="the class of a step without a label", low=0)
    fastemit_lambda = attribute(AttrType.FLOAT, 0.0)

    def infer_shape(self, input: Spec, label: Spec, input_lengths: Spec, label_lengths: Spec) -> tuple[Spec, Spec]:
        require_rank(4, input, "input")
        require_rank(2, label, "label")
        count, steps, states, classes = input.known_dims
        require_equal(count, label.known_dims[0], "input and label must have as many sequences", input=0, label=0)
        require_equal(states, label.known_dims[1] + 1, "dim 2 of input must be one more than the labels", input=2, label=1)
        require_at_most(1, steps, "input must have steps", input=1)
        require_at_most(self.blank + 1, classes, f"blank must be one of the {classes} classes of input, not {self.blank}", input=3)
        check_lengths(input_lengths, "input_lengths", input, "input")
        check_lengths(label_lengths, "label_lengths", label, "label")
        return input.dense((count,)), input.dense()

    def workspace(self, input: Spec, label: Spec, input_lengths: Spec, label_lengths: Spec) -> Size:
        count, steps, states, _ = input.known_dims
        cells = count * (steps + states) * states
        return cells * (14 * input.known_dtype.itemsize + 8) + 64 * (steps + states) * states + 128 * count + 24 * label.elements + input.nbytes

    def kernel(self, input: Tensor, label: Tensor, input_lengths: Tensor, label_lengths: Tensor) -> tuple[Tensor, Tensor]:
        count, steps, states, classes = input.shape
        ends, last = self._lengths(input_lengths, 1, steps, "input_lengths"), self._lengths(label_lengths, 0, states - 1, "label_lengths")
        check_numbers(label.reshape(-1), classes, "a class in label")
        if self.blank >= classes:
            raise ExecutionError(f"blank must be one of the {classes} classes of input, not {self.blank}")
        u = torch.arange(states, device=input.device)
        t = torch.arange(steps + states - 1, device=input.device).unsqueeze(1) - u  # by the number of moves to each state
        at = t.clamp(0, steps - 1)
        told = torch.cat([label.long(), label.new_zeros((count, 1), dtype=torch.int64)], 1)
        blank = input[:, at, u, self.blank]
        emit = input[torch.arange(count, device=input.device)[:, None, None], at, u, told.unsqueeze(1)]
        there = (t >= 0) & (t < ends[:, None, None]) & (u <= last[:, None, None])
        final = (t == ends[:, None, None] - 1) & (u == last[:, None, None])
        never = -torch.inf
        blank, emit = blank.masked_fill(~there, never), emit.masked_fill(~there | (u >= last[:, None, None]), never)

        def beside(x: Tensor, by: int) -> Tensor:
            out = torch.full_like(x, never)
            out[..., max(by, 0) : states + min(by, 0)] = x[..., max(-by, 0) : states - max(by, 0)]
            return out

        to, back = torch.full_like(blank, never), torch.full_like(blank, never)
        to[:, 0, 0] = 0
        for n in range(1, to.shape[1]):
            to[:, n] = torch.logaddexp(to[:, n - 1] + blank[:, n - 1], beside(to[:, n - 1] + emit[:, n - 1], 1))
        following = torch.full_like(blank[:, 0], never)
        for n in range(to.shape[1] - 1, -1, -1):
            onwards = torch.logaddexp(following + blank[:, n], beside(following, -1) + emit[:, n])
            following = back[:, n] = torch.where(final[:, n], blank[:, n], onwards)
        total = back[:, 0, 0]
        after = torch.cat([back[:, 1:], torch.full_like(back[:, :1], never)], 1)
        weight = (to - total[:, None, None]).masked_fill(~there, never)
        d_blank = -(weight + blank + torch.where(final, 0.0, after)).exp()
        d_emit = (weight + emit + beside(after, -1)).exp().mul_(-1.0 - self.fastemit_lambda)
        found = input.new_zeros(input.shape)
        row = torch.arange(count, device=input.device)[:, None, None].expand(there.shape)[there]
        place = (row, t.expand(there.shape)[there], u.expand(there.shape)[there])
        found[(*place, torch.full_like(row, self.blank))] = d_blank[there]
        found.index_put_((*place, told.unsqueeze(1).expand(there.shape)[there]), d_emit[there], accumulate=True)
        return -total, found

    @staticmethod
    def _lengths(given: Tensor, least: int, most: int, slot: str) -> Tensor:
        lengths = given.reshape(-1).long()
        if len(lengths) and not (least <= int(lengths.min()) and int(lengths.max()) <= most):
            raise ExecutionError(f"{slot} must be from {least} to {most}; seen {int(lengths.min())} to {int(lengths.max())}")
        return lengths

    @gradient("input", "input_lengths", "warprnntgrad", "loss@GRAD", gives="input@GRAD")
    def backward(self, input: Tensor, input_lengths: Tensor, warprnntgrad: Tensor, d_loss: Tensor) -> Tensor:
        return warprnntgrad * d_loss.view(-1, 1, 1, 1)

    samples = [
        sample(input=f32(2, 4, 3, 5), label=i32(2, 2, data=[[1, 2], [3, 4]]), input_lengths=i32(2, data=[4, 3]), label_lengths=i32(2, data=[2, 1])),
        sample(input=f32(3, 2, 5, 6, low=-3.0, high=0.0), label=i32(3, 4, high=3), input_lengths=i32(3, data=[1, 2, 2]),
               label_lengths=i32(3, data=[4, 0, 3]), blank=5),
        sample(input=f32(2, 1, 1, 3), label=i32(2, 0), input_lengths=i32(2, data=[1, 1]), label_lengths=i32(2, data=[0, 0])),
        sample(input=f32(1, 3, 3, 4), label=i32(1, 2, data=[[1, 1]]), input_lengths=i32(1, data=[3]), label_lengths=i32(1, data=[2]),
               fastemit_lambda=0.5, differentiate=False),
    ]  # fmt: skip
    rejects = [
        reject(input=f32(2, 4, 3, 5), label=i32(2, 3), input_lengths=i32(2), label_lengths=i32(2), says="one more than the labels"),
        reject(input=f32(2, 4, 3, 5), label=i32(3, 2), input_lengths=i32(2), label_lengths=i32(2), says="as many sequences"),
        reject(input=f32(2, 4, 3, 5), label=i32(2, 2), input_lengths=i32(3), label_lengths=i32(2), says="one length for each sequence"),
        reject(input=f32(2, 4, 3, 5), label=i32(2, 2), input_lengths=i32(2), label_lengths=i32(2), blank=5, says="one of the 5 classes"),
        reject(input=f32(2, 0, 3, 5), label=i32(2, 2), input_lengths=i32(2), label_lengths=i32(2), says="must have steps"),
        reject(input=f32(2, 4, 3, 5), label=i32(2, 2), input_lengths=i32(2), label_lengths=i32(2), blank=-1, says="at least 0", error=SchemaError),
    ]
