"""The mean of the cross entropies of class numbers, from logarithms of probabilities."""

from __future__ import annotations

from functools import partial

from foreshape.core.dims import Size
from foreshape.core.spec import INT64, Spec
from foreshape.core.values.late_checks import classes_within, limited, no_class
from foreshape.core.values.torch_private import private_into
from foreshape.core.values.torch_proxy import Lazy, Tensor, aten, torch
from foreshape.machine.kernels.call_record import NamedConstant, X, Y, call, of_operands
from foreshape.machine.kernels.fused import Effects, FusedKernel, Sizes
from foreshape.machine.kernels.instructions import CLASS_GRADIENT, CLASS_LOSS, LOG_SOFTMAX, Instruction

_MEAN, _SUM = 1, 2


def workspace(label: Spec) -> Size:
    """Return the bytes of a label's copy in the type of torch's kernels; 0 if it has this type."""
    return 0 if label.dtype is INT64 else INT64.itemsize * label.elements


class ClassLoss:
    """The mean negative log likelihood over all rows; rows with the ignored class count as zeros, as the two ops do.

    torch's own mean leaves ignored rows out of the count; where there are any, its result is scaled. On a device, which would have to be asked for their
    number, it is the sum by the number of all rows.
    """

    __slots__ = ("ignored",)

    def __init__(self, ignored: int) -> None:
        self.ignored = ignored

    def forward(self, logs: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        if label.dim() == 2:
            label = label.view(-1)
        if label.dtype is not torch.int64:
            label = label.long()
        if not label.is_cpu:  # which waits for no number
            total, counted = aten.nll_loss_forward(logs, classes_within(label, logs.shape[1], self.ignored), None, _SUM, self.ignored)
            return total.div_(logs.shape[0]), counted
        try:
            loss, counted = aten.nll_loss_forward(logs, label, None, _MEAN, self.ignored)
        except IndexError:
            low, high = label.aminmax()
            raise no_class(logs.shape[1], low.item(), high.item()) from None
        rows = logs.shape[0]
        if counted.item() != rows:
            loss = loss.mul_(counted / rows) if counted.item() else torch.zeros_like(loss)
        return loss, counted

    def backward(self, logs: Tensor, label: Tensor, start: Tensor, counted: Tensor) -> Tensor:
        if label.dim() == 2:
            label = label.view(-1)
        if label.dtype is not torch.int64:
            label = label.long()
        rows = logs.shape[0]
        if not label.is_cpu:
            label = torch.where(label == self.ignored, label, limited(label, logs.shape[1]))
            d_logs = aten.nll_loss_backward(start / rows, logs, label, None, _SUM, self.ignored, counted)
            return private_into.log_softmax_gradient(d_logs, logs, 1, logs.dtype, into=d_logs)
        if counted.item() != rows:
            start = start * counted / rows
            if not counted.item():
                return torch.zeros_like(logs)
        d_logs = aten.nll_loss_backward(start, logs, label, None, _MEAN, self.ignored, counted)
        return private_into.log_softmax_gradient(d_logs, logs, 1, logs.dtype, into=d_logs)

    # --- its calls

    @staticmethod
    def logarithms() -> FusedKernel:
        """Return the logarithms of the probabilities of logits ``[rows, classes]``."""
        log_softmax, small = NamedConstant("log_softmax", Lazy(lambda: torch.log_softmax)), partial(_of_matrix, LOG_SOFTMAX, (0, None, -1), 0)
        return FusedKernel("{op} log_softmax", call(log_softmax, X, 1), effects=Effects(contiguous=(0,)), small=small)

    def mean(self, label: Spec) -> FusedKernel:
        """Return the mean loss and the number of counted rows, of logarithms and labels."""
        small = partial(_of_matrix, CLASS_LOSS, (0, 1, -1, -2), self.ignored)
        return FusedKernel("{op} loss", call(NamedConstant("loss", self.forward), X, Y), workspace=lambda: workspace(label), small=small)

    def gradient(self, label: Spec) -> FusedKernel:
        """Return the gradient of the logits, of logarithms, labels, the gradient of the mean, and the number of counted rows."""
        record, small = of_operands(NamedConstant("gradient", self.backward), 4), partial(_of_matrix, CLASS_GRADIENT, (0, 1, -1, 2), self.ignored)
        return FusedKernel("{op} gradient", record, workspace=lambda: workspace(label), small=small)


def _of_matrix(code: int, operands: tuple[int | None, ...], ignored: int, of: Sizes, made: Sizes) -> list[Instruction] | None:
    """Return the instruction of a kernel of logarithms ``[rows, classes]``."""
    logs = of[0]
    return None if logs is None else [Instruction(code, operands, (int(logs[0]), int(logs[1]), ignored))]
