"""Losses over all alignments of labels to steps: connectionist temporal classification with its decoding, and recurrent transducers.

Formulas: Graves et al., "Connectionist temporal classification", ICML 2006. Ragged operands of several levels are, as in PaddlePaddle, the sequences of the
outermost level. Graves, "Sequence transduction with recurrent neural networks", 2012; Yu et al., "FastEmit", ICASSP 2021.
"""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, maximum
from foreshape.core.spec import FP32, FP64, INDEX, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require_at_most, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies, turned
from foreshape.language.ops.rules.ragged_rules import check_lengths, check_numbers, longest_outermost, new_lod, offsets_of, padded, places, ragged, rows


class WarpCTC(Operator):
    """Loss = -log of the probability of all alignments of Label under softmax(Logits); 0 for a label without an alignment of this length.

    WarpCTCGrad = the gradient of each sequence's loss with respect to its logits, in the padded, time-major form. ``norm_by_times`` divides the gradient (not
    the loss) by the sequence's number of steps.
    """

    type = "warpctc"
    Logits = operand((FP32, FP64), doc="ragged [steps, classes], the blank among these; or [width, sequences, classes] with the lengths")
    Label = operand(INDEX, doc="ragged [labels, 1]; or [sequences, labels] with the lengths")
    LogitsLength = operand(INDEX, optional=True, doc="[sequences] or [sequences, 1]")
    LabelLength = operand(INDEX, optional=True, doc="[sequences] or [sequences, 1]")
    Loss = result(doc="[sequences, 1]")
    WarpCTCGrad = result(doc="[longest, sequences, classes]")
    blank = attribute(AttrType.INT, 0, doc="the class of no label", low=0)
    norm_by_times = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, Logits: Spec, Label: Spec, LogitsLength: Spec | None, LabelLength: Spec | None) -> tuple[Spec, Spec]:
        if (LogitsLength is None) is not (LabelLength is None):
            fail("LogitsLength and LabelLength are given both, or neither", SchemaError)
        steps: Size
        if LogitsLength is None or LabelLength is None:
            count = ragged(Logits, "Logits").counts[0]
            labels = ragged(Label, "Label").counts[0]
            require_rank(2, Logits, "Logits")
            require_rank(2, Label, "Label")
            require_equal(Label.known_dims[1], 1, "Label must have 1 column", Label=1)
            require_equal(count, labels, "Logits and Label must have as many sequences", Logits=0, Label=0)
            steps = longest_outermost(ragged(Logits, "Logits"))
        else:
            require_rank(3, Logits, "Logits")
            require_rank(2, Label, "Label")
            steps, count, _ = Logits.known_dims
            require_equal(count, Label.known_dims[0], "Logits and Label must have as many sequences", Logits=1, Label=0)
            check_lengths(LogitsLength, "LogitsLength", Logits, "Logits", axis=1)
            check_lengths(LabelLength, "LabelLength", Label, "Label")
        classes = Logits.known_dims[-1]
        require_at_most(self.blank + 1, classes, f"blank must be one of the {classes} classes of Logits, not {self.blank}", Logits=Logits.rank - 1)
        return Logits.dense((count, 1)), Logits.dense((steps, count, classes))

    def workspace(
        self, Logits: Spec, Label: Spec, LogitsLength: Spec | None, LabelLength: Spec | None, *, requested: tuple[bool, ...], strided: frozenset[str]
    ) -> Size:
        """Return the bytes of the padded logarithms, and of the messages of 2 labels + 1 states at each step.

        The messages are forward, and for the gradient backward too.

        The longest ragged sequences have two symbols, of Logits and of Label: with their rows alone it could be many times too much.
        """
        classes, item = Logits.known_dims[-1], Logits.known_dtype.itemsize
        if LogitsLength is None:
            lod = ragged(Logits, "Logits")
            steps, count, labels = longest_outermost(lod), lod.counts[0], longest_outermost(ragged(Label, "Label"))
            copied = turned(strided, Logits=Logits) + (0 if requested[1] else Logits.nbytes + 8 * Logits.known_dims[0])
            numbers = 24 * Logits.known_dims[0] + Label.elements
        else:
            steps, count, labels = Logits.known_dims[0], Logits.known_dims[1], Label.known_dims[1]
            copied = 0 if requested[1] else copies(strided, Logits=Logits)
            numbers = (32 + Label.known_dtype.itemsize) * Label.elements + copies(strided, Label=Label)
        states = steps * count * (2 * labels + 1) * item
        fixed = steps * count * classes * (item + (1 if requested[1] else 0)) + numbers + 64 * count
        messages = 2 * states if requested[1] else states
        return messages + fixed if isinstance(copied, int) and not copied else maximum(messages + fixed, copied + fixed)

    def _gradient_workspace(self, *specs: Spec | None, strided: frozenset[str]) -> Size:
        logits, lengths, _, saved = specs
        assert logits is not None and saved is not None
        numbers = 16 * saved.known_dims[1] if self.norm_by_times else 0
        return numbers if lengths is not None else numbers + logits.known_dims[0] * logits.known_dtype.itemsize + copies(strided, WarpCTCGrad=saved)

    def kernel(self, Logits: Tensor, Label: Tensor, LogitsLength: Tensor | None, LabelLength: Tensor | None, *, offsets: list[Offsets | None],
               requested: tuple[bool, ...]) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        classes = Logits.shape[-1]
        if self.blank >= classes:
            raise ExecutionError(f"blank must be one of the {classes} classes of Logits, not {self.blank}")
        scores = torch.log_softmax(Logits, -1)
        if LogitsLength is None or LabelLength is None:
            assert offsets[0] is not None and offsets[1] is not None
            steps, labels = offsets[0].in_rows(0), offsets[1].in_rows(0)
            longest, count = steps.longest, steps.count
            scores = scores.new_zeros(longest * count, classes).index_copy_(0, _by_step(steps), scores).view(longest, count, classes)
            label = Label.reshape(-1).contiguous()  # torch's kernel reads it so, unchecked
        else:
            longest, count = scores.shape[:2]
            steps, labels = offsets_of(LogitsLength, longest, "LogitsLength"), offsets_of(LabelLength, Label.shape[1], "LabelLength")
            label = Label.reshape(-1).index_select(0, places(labels, Label.shape[1]))
        check_numbers(label, classes, "a class in Label")
        if bool((label == self.blank).any()):
            raise ExecutionError(f"Label must not contain the blank, class {self.blank}: it stands for no label")
        if not longest or not count:
            return Logits.new_zeros(count, 1), Logits.new_zeros(longest, count, classes)
        sizes = steps.host_lengths, labels.host_lengths
        cost, alpha = private.ctc_loss(scores, label, *sizes, self.blank, True)
        d_logits = None
        if requested[1]:
            d_logits = private.ctc_loss_gradient(torch.ones_like(cost), scores, label, *sizes, cost, alpha, self.blank, True)
            d_logits.masked_fill_(scores == -torch.inf, 0.0)  # for a class without a probability torch's is NaN
        return cost.masked_fill(cost == torch.inf, 0.0).unsqueeze(1), d_logits

    @gradient("Logits", "LogitsLength", "Loss@GRAD", "WarpCTCGrad", gives="Logits@GRAD", workspace=_gradient_workspace)
    def backward(self, Logits: Tensor, LogitsLength: Tensor | None, d_loss: Tensor, WarpCTCGrad: Tensor, *, offsets: list[Offsets | None]) -> Tensor:
        d = d_loss.reshape(-1)
        if LogitsLength is not None:
            d = d / LogitsLength.reshape(-1).clamp(min=1) if self.norm_by_times else d
            return WarpCTCGrad * d.unsqueeze(1)
        assert offsets[0] is not None
        steps = offsets[0].in_rows(0)
        d = d / steps.lengths.clamp(min=1) if self.norm_by_times else d
        return WarpCTCGrad.flatten(0, 1).index_select(0, _by_step(steps)).mul_(d.index_select(0, steps.segments).unsqueeze(1))

    samples = [
        sample(Logits=f32(9, 4).ragged([4, 5]), Label=i32(4, 1, data=[[1], [2], [2], [3]]).ragged([1, 3])),
        sample(Logits=f32(9, 4).ragged([6, 0, 3]), Label=i64(3, 1, data=[[0], [1], [0]]).ragged([3, 0, 0]), blank=3),
        sample(Logits=f32(9, 4).ragged([2, 1], [4, 2, 3]), Label=i32(4, 1, data=[[1], [2], [2], [3]]).ragged([2, 1], [2, 1, 1])),
        sample(Logits=f32(4, 3).ragged([4]), Label=i32(4, 1, data=[[1], [1], [2], [1]]).ragged([4])),
        sample(Logits=f32(0, 4).ragged([]), Label=i32(0, 1).ragged([])),
        sample(Logits=f32(0, 4).ragged([0, 0]), Label=i32(0, 1).ragged([0, 0])),
        sample(Logits=f32(5, 2, 4), Label=i32(2, 3, data=[[1, 0, 0], [2, 2, 3]]), LogitsLength=i64(2, data=[4, 5]), LabelLength=i64(2, data=[1, 3])),
        sample(Logits=f32(5, 2, 4), Label=i32(2, 3, data=[[1, 9, 9], [2, 1, 3]]), LogitsLength=i64(2, 1, data=[4, 5]), LabelLength=i64(2, 1, data=[1, 3])),
        sample(Logits=f32(9, 4).ragged([4, 5]), Label=i32(4, 1, low=1, high=3).ragged([1, 3]), norm_by_times=True, differentiate=False),
    ]
    rejects = [
        reject(Logits=f32(9, 4).ragged([4, 5]), Label=i32(4, 1).ragged([1, 1, 2]), says="as many sequences"),
        reject(Logits=f32(9, 4).ragged([4, 5]), Label=i32(4, 1).ragged([1, 3]), blank=4, says="one of the 4 classes"),
        reject(Logits=f32(5, 2, 4), Label=i32(2, 3), LogitsLength=i64(2), says="both, or neither", error=SchemaError),
        reject(Logits=f32(5, 2, 4), Label=i32(3, 3), LogitsLength=i64(2), LabelLength=i64(3), says="as many sequences"),
        reject(Logits=f32(5, 2, 4), Label=i32(2, 3), LogitsLength=i64(5), LabelLength=i64(2), says="one length for each sequence"),
    ]


def _by_step(steps: Offsets) -> Tensor:
    """Return the place of each row in ``[longest * sequences]``, time-major."""
    return steps.kept("by step", lambda: steps.positions * steps.count + steps.segments)


class CTCAlign(Operator):
    """Output = Input without the blanks, and with ``merge_repeated`` without elements equal to the one before.

    Ragged: Output has offsets of its own, of one level, and no rows if nothing is left of a minibatch (PaddlePaddle gives a single -1). Padded: filled up with
    ``padding_value``, and OutputLength has the new length of each sequence.
    """

    type = "ctc_align"
    layer_function = "ctc_greedy_decoder"
    Input = operand(INDEX, doc="ragged [steps, 1]; or [sequences, width] with InputLength")
    InputLength = operand(INDEX, optional=True, doc="[sequences] or [sequences, 1]")
    Output = result(doc="ragged [rows, 1]; or as Input", new_offsets=True)
    OutputLength = result(doc="[sequences, 1]; with InputLength only")
    blank = attribute(AttrType.INT, 0)
    merge_repeated = attribute(AttrType.BOOLEAN, True)
    padding_value = attribute(AttrType.INT, 0)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Input: Spec, InputLength: Spec | None) -> tuple[Spec, Spec | None]:
        require_rank(2, Input, "Input")
        if InputLength is not None:
            check_lengths(InputLength, "InputLength", Input, "Input")
            return Input.dense(), Input.dense((Input.known_dims[0], 1))
        lod = ragged(Input, "Input")
        require_equal(Input.known_dims[1], 1, "Input must have 1 column", Input=1)
        return rows(Input.dtype, (unknown_size("rows"), 1), new_lod("Output", lod.counts[:1])), None

    def workspace(self, Input: Spec, InputLength: Spec | None) -> Size:
        return 40 * Input.elements

    def kernel(self, Input: Tensor, InputLength: Tensor | None, *, offsets: list[Offsets | None]) -> tuple[Any, ...]:
        if InputLength is None:
            assert offsets[0] is not None
            sequences, x = offsets[0].in_rows(0), Input.reshape(-1)
        else:
            sequences = offsets_of(InputLength, Input.shape[1], "InputLength")
            x = Input.reshape(-1).index_select(0, places(sequences, Input.shape[1]))
        stays = x != self.blank
        if self.merge_repeated:
            stays[1:] &= (x[1:] != x[:-1]) | (sequences.positions[1:] == 0)
        counts = torch.zeros(sequences.count, dtype=torch.int64, device=x.device).index_add_(0, sequences.segments, stays.long())
        left = Offsets.of_lengths(counts)
        if InputLength is None:
            return x[stays].unsqueeze(1), None, left
        return padded(x[stays], left, Input.shape[1], self.padding_value), counts.to(Input.dtype).unsqueeze(1), None

    samples = [
        sample(Input=i32(16, 1, data=[0, 1, 1, 0, 2, 2, 0, 4, 4, 0, 4, 5, 5, 6, 0, 0]).ragged([7, 0, 7, 2])),
        sample(Input=i64(7, 1, high=2).ragged([4, 3]), blank=1, merge_repeated=False),
        sample(Input=i64(7, 1, high=2).ragged([2, 1], [2, 2, 3])),
        sample(Input=i32(0, 1).ragged([])),
        sample(Input=i32(3, 5, high=2), InputLength=i64(3, data=[5, 0, 2]), padding_value=9),
        sample(Input=i64(3, 5, high=2), InputLength=i64(3, 1, data=[5, 0, 2]), merge_repeated=False, blank=2),
    ]
    rejects = [reject(Input=i32(3, 5), InputLength=i32(5), says="one length for each sequence")]


class WarpRNNT(Operator):
    """loss = -log of the sum, over all paths through ``[steps, labels + 1]``, of their probabilities in input.

    A path begins at (0, 0). From (t, u) it goes to (t + 1, u) by the blank, or to (t, u + 1) by label u, and ends with the blank after the last step. The
    operand input has logarithms of probabilities: no softmax is taken, as in PaddlePaddle's kernel for CPUs. The result warprnntgrad is the gradient of each
    loss with respect to input. Gradients of labels are 1 + ``fastemit_lambda`` times as large there, and the loss itself is as without it.
    """

    type = "warprnnt"
    layer_function = "rnnt_loss"
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
        time = t.clamp(0, steps - 1)
        labels = torch.cat([label.long(), label.new_zeros((count, 1), dtype=torch.int64)], 1)
        blank = input[:, time, u, self.blank]
        emit = input[torch.arange(count, device=input.device)[:, None, None], time, u, labels.unsqueeze(1)]
        inside = (t >= 0) & (t < ends[:, None, None]) & (u <= last[:, None, None])
        final = (t == ends[:, None, None] - 1) & (u == last[:, None, None])
        never = -torch.inf
        blank, emit = blank.masked_fill(~inside, never), emit.masked_fill(~inside | (u >= last[:, None, None]), never)

        def beside(x: Tensor, shift: int) -> Tensor:
            out = torch.full_like(x, never)
            out[..., max(shift, 0) : states + min(shift, 0)] = x[..., max(-shift, 0) : states - max(shift, 0)]
            return out

        forward, back = torch.full_like(blank, never), torch.full_like(blank, never)
        forward[:, 0, 0] = 0
        for n in range(1, forward.shape[1]):
            forward[:, n] = torch.logaddexp(forward[:, n - 1] + blank[:, n - 1], beside(forward[:, n - 1] + emit[:, n - 1], 1))
        following = torch.full_like(blank[:, 0], never)
        for n in range(forward.shape[1] - 1, -1, -1):
            onwards = torch.logaddexp(following + blank[:, n], beside(following, -1) + emit[:, n])
            following = back[:, n] = torch.where(final[:, n], blank[:, n], onwards)
        total = back[:, 0, 0]
        back_next = torch.cat([back[:, 1:], torch.full_like(back[:, :1], never)], 1)
        weight = (forward - total[:, None, None]).masked_fill(~inside, never)
        d_blank = -(weight + blank + torch.where(final, 0.0, back_next)).exp()
        d_emit = (weight + emit + beside(back_next, -1)).exp().mul_(-1.0 - self.fastemit_lambda)
        d_input = input.new_zeros(input.shape)
        row = torch.arange(count, device=input.device)[:, None, None].expand(inside.shape)[inside]
        place = (row, t.expand(inside.shape)[inside], u.expand(inside.shape)[inside])
        d_input[(*place, torch.full_like(row, self.blank))] = d_blank[inside]
        d_input.index_put_((*place, labels.unsqueeze(1).expand(inside.shape)[inside]), d_emit[inside], accumulate=True)
        return -total, d_input

    @staticmethod
    def _lengths(numbers: Tensor, least: int, limit: int, slot: str) -> Tensor:
        lengths = numbers.reshape(-1).long()
        if len(lengths) and not (least <= int(lengths.min()) and int(lengths.max()) <= limit):
            raise ExecutionError(f"{slot} must be from {least} to {limit}; seen {int(lengths.min())} to {int(lengths.max())}")
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
        reject(input=f32(2, 4, 3, 5), label=i32(2, 2), input_lengths=i32(2), label_lengths=i32(2), blank=5, says="one of the 5 classes"),
        reject(input=f32(2, 0, 3, 5), label=i32(2, 2), input_lengths=i32(2), label_lengths=i32(2), says="must have steps"),
    ]
