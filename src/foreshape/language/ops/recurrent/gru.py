"""PaddlePaddle's gru, over ragged rows already projected, and gru_unit, one step of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require_at_most, require_divides, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.ragged_rules import sequences
from foreshape.machine.kernels.gru_steps import ResetBefore
from foreshape.machine.kernels.lstm_steps import ACTIVATIONS
from foreshape.machine.kernels.packed_memory import Packed, gru_unit, gru_unit_gradient, of_requested
from foreshape.machine.kernels.recurrence import StepSchedule

FLOATS = (FP32, FP64)
WEIGHT_DOC = "the numbers, as [hidden, 3 hidden], of a matrix [hidden, 2 hidden] for u and r, then of one [hidden, hidden] for c"


class ResetBeforeGru(Operator):
    """The base of both: the rule, and the layout of weights and gradients."""

    abstract = True
    multiplies_steps = True
    origin_mode = attribute(AttrType.BOOLEAN, False, doc="h = u h + (1 - u) c instead of h = (1 - u) h + u c")

    def _hidden(self, Input: Spec, state: Spec | None, state_slot: str, count: Size, Weight: Spec, Bias: Spec | None) -> Size:
        require_rank(2, Input, "Input")
        size = require_divides(3, Input.known_dims[1], f"the columns of Input must be 3 hidden sizes, not {Input.known_dims[1]}", Input=1)
        require_at_most(1, size, "there must be at least one hidden unit", Input=1)
        expected: list[tuple[str, Spec | None, Sequence[Size]]] = [("Weight", Weight, (size, 3 * size)), ("Bias", Bias, (1, 3 * size))]
        for slot, spec, dims in (*expected, (state_slot, state, (count, size))):
            if spec is not None:
                require_rank(2, spec, slot)
                for axis, (actual, want) in enumerate(zip(spec.known_dims, dims, strict=True)):
                    require_equal(actual, want, f"{slot} must be [{dims[0]}, {dims[1]}] where Input is {Input.text()}, not {spec.text()}", **{slot: axis})
        return size

    def _steps(self, Weight: Tensor, gate: str, candidate: str) -> ResetBefore:
        size = Weight.shape[0]
        numbers, split = Weight.reshape(-1), 2 * size * size
        return ResetBefore(numbers[:split].view(size, 2 * size), numbers[split:].view(size, size), gate, candidate, self.origin_mode)

    def _join(self, gate_weight: Tensor, candidate_weight: Tensor) -> Tensor:
        size = candidate_weight.shape[0]
        return torch.cat((gate_weight.reshape(-1), candidate_weight.reshape(-1))).view(size, 3 * size)


class Gru(ResetBeforeGru):
    """A GRU over each sequence: u, r = act(x + h W), c = act(x_c + (r h) W_c), h = (1 - u) h + u c, or the reverse."""

    type = "gru"
    examples, example_results = ("Input", "H0"), ("Hidden",)
    Input = operand(FLOATS, doc="ragged rows [rows, 3 hidden], the inputs' share of u, r and c")
    H0 = operand(FLOATS, optional=True, same_type_as="Input", doc="the state before the first step, zeros where absent: [sequences, hidden]")
    Weight = operand(FLOATS, same_type_as="Input", doc=WEIGHT_DOC)
    Bias = operand(FLOATS, optional=True, same_type_as="Input", doc="[1, 3 hidden]")
    BatchGate = result(doc="[rows, 3 hidden]: u, r and c, time step by time step")
    BatchResetHiddenPrev = result(doc="[rows, hidden]: r h, likewise")
    BatchHidden = result(doc="[rows, hidden]: Hidden, likewise")
    Hidden = result(doc="[rows, hidden], with the offsets of Input")
    activation = attribute(AttrType.STRING, "tanh", choices=ACTIVATIONS)
    gate_activation = attribute(AttrType.STRING, "sigmoid", choices=ACTIVATIONS)
    is_reverse = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, Input: Spec, H0: Spec | None, Weight: Spec, Bias: Spec | None) -> Any:
        size = self._hidden(Input, H0, "H0", sequences(Input, "Input"), Weight, Bias)
        rows = Input.known_dims[0]
        return Input.dense((rows, Input.known_dims[1])), Input.dense((rows, size)), Input.dense((rows, size)), Input.with_dims((rows, size))

    def work(self, Input: Spec, H0: Any, Weight: Spec, Bias: Any) -> Size:
        return Input.known_dims[0] * Weight.known_dims[0] * Weight.known_dims[1]

    def workspace(self, Input: Spec, H0: Any, Weight: Spec, Bias: Any, *, strided: frozenset[str]) -> Size:
        return Packed.of(Input, 3).gru() + copies(strided, Weight=Weight)

    def _gradient_workspace(self, *specs: Any, requested: tuple[bool, ...], strided: frozenset[str]) -> Size:
        needed, _ = of_requested(requested, *specs[:4])
        return Packed.of(specs[0], 3).gru_gradient(self.origin_mode, needed) + copies(strided, Weight=specs[2])

    def kernel(self, Input: Tensor, H0: Tensor | None, Weight: Tensor, Bias: Tensor | None, *, offsets: list[Any]) -> tuple[Any, ...]:
        schedule = StepSchedule.of(offsets[0], self.is_reverse)
        gates = schedule.to_places(Input)
        if Bias is not None:
            gates.add_(Bias.view(-1))
        form = self._steps(Weight, self.gate_activation, self.activation)
        state, left = form.forward(gates, schedule.sorted(H0, Input, Weight.shape[0]), schedule)
        return gates, left, state, schedule.to_rows(state)

    @gradient(
        "Input", "H0", "Weight", "Bias", "BatchGate", "BatchResetHiddenPrev", "BatchHidden", "Hidden", "Hidden@GRAD",
        gives=("Input@GRAD", "H0@GRAD", "Weight@GRAD", "Bias@GRAD"), workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(
        self, Input: Tensor, H0: Tensor | None, Weight: Tensor, Bias: Tensor | None, BatchGate: Tensor, BatchResetHiddenPrev: Tensor, BatchHidden: Tensor,
        Hidden: Tensor, d_hidden: Tensor, *, offsets: list[Any], requested: tuple[bool, ...],
    ) -> tuple[Any, ...]:  # fmt: skip
        schedule = StepSchedule.of(offsets[0], self.is_reverse)
        form = self._steps(Weight, self.gate_activation, self.activation)
        d_gates, d_h0, d_gate, d_candidate = form.backward(
            BatchGate, BatchResetHiddenPrev, BatchHidden, schedule.sorted(H0, Input, Weight.shape[0]), schedule.to_places(d_hidden), schedule
        )
        d_bias = d_gates.sum(0, keepdim=True) if requested[3] else None
        d_input = schedule.to_rows(d_gates) if requested[0] else None
        return d_input, schedule.unsorted(d_h0) if requested[1] else None, self._join(d_gate, d_candidate) if requested[2] else None, d_bias

    samples = [
        sample(Input=f32(9, 12).ragged([4, 0, 5]), Weight=f32(4, 12), Bias=f32(1, 12)),
        sample(Input=f32(9, 12).ragged([4, 0, 5]), H0=f32(3, 4), Weight=f32(4, 12), is_reverse=True, origin_mode=True),
        sample(Input=f32(7, 6).ragged([2, 1], [3, 0, 4]), H0=f32(3, 2), Weight=f32(2, 6), Bias=f32(1, 6), activation="sigmoid", gate_activation="tanh"),
        sample(Input=f32(6, 6).ragged([5, 1]), Weight=f32(2, 6), activation="identity", origin_mode=True),
        sample(Input=f32(0, 6).ragged([]), Weight=f32(2, 6), Bias=f32(1, 6)),
    ]
    rejects = [
        reject(Input=f32(9, 13).ragged([4, 5]), Weight=f32(4, 12), says="must be 3 hidden sizes"),
        reject(Input=f32(9, 12).ragged([4, 5]), Weight=f32(3, 12), says="Weight must be [4, 12]"),
        reject(Input=f32(9, 12).ragged([4, 5]), Weight=f32(4, 12), H0=f32(3, 4), says="H0 must be [2, 4]"),
    ]


BY_NUMBER: Sequence[str] = ("identity", "sigmoid", "tanh", "relu")
"""The activations of gru_unit by their numbers."""


class GruUnit(ResetBeforeGru):
    """One step of `Gru`."""

    type = "gru_unit"
    examples = ("Input", "HiddenPrev")
    Input = operand(FLOATS, doc="[batch, 3 hidden], the inputs' share of u, r and c")
    HiddenPrev = operand(FLOATS, same_type_as="Input", doc="[batch, hidden]")
    Weight = operand(FLOATS, same_type_as="Input", doc=WEIGHT_DOC)
    Bias = operand(FLOATS, optional=True, same_type_as="Input", doc="[1, 3 hidden]")
    Gate = result(doc="[batch, 3 hidden]: u, r and c")
    ResetHiddenPrev = result(doc="[batch, hidden]: r h")
    Hidden = result(doc="[batch, hidden]")
    activation = attribute(AttrType.INT, 2, choices=(0, 1, 2, 3), doc="0 identity, 1 sigmoid, 2 tanh, 3 relu")
    gate_activation = attribute(AttrType.INT, 1, choices=(0, 1, 2, 3))

    def infer_shape(self, Input: Spec, HiddenPrev: Spec, Weight: Spec, Bias: Spec | None) -> Any:
        require_rank(2, Input, "Input")
        batch, columns = Input.known_dims
        size = self._hidden(Input, HiddenPrev, "HiddenPrev", batch, Weight, Bias)
        return Input.dense((batch, columns)), Input.dense((batch, size)), Input.dense((batch, size))

    def work(self, Input: Spec, HiddenPrev: Any, Weight: Spec, Bias: Any) -> Size:
        return Input.known_dims[0] * Weight.known_dims[0] * Weight.known_dims[1]

    def _numbered(self, Weight: Tensor) -> ResetBefore:
        gate: int = self.gate_activation
        candidate: int = self.activation
        return self._steps(Weight, BY_NUMBER[gate], BY_NUMBER[candidate])

    def workspace(self, Input: Spec, HiddenPrev: Spec, Weight: Spec, Bias: Any, *, strided: frozenset[str]) -> Size:
        return gru_unit(HiddenPrev) + copies(strided, Weight=Weight)

    def _gradient_workspace(self, *specs: Any, requested: tuple[bool, ...], strided: frozenset[str]) -> Size:
        needed, _ = of_requested(requested, *specs[:4])
        return gru_unit_gradient(specs[1], self.origin_mode, needed) + copies(strided, Weight=specs[2])

    def kernel(self, Input: Tensor, HiddenPrev: Tensor, Weight: Tensor, Bias: Tensor | None) -> tuple[Any, ...]:
        gates = Input.clone(memory_format=torch.contiguous_format) if Bias is None else Input + Bias
        form = self._numbered(Weight)
        state, left = form.forward(gates, HiddenPrev, StepSchedule.dense(1, Input.shape[0], None, Input.device))
        return gates, left, state

    @gradient(
        "Input", "HiddenPrev", "Weight", "Bias", "Gate", "ResetHiddenPrev", "Hidden@GRAD",
        gives=("Input@GRAD", "HiddenPrev@GRAD", "Weight@GRAD", "Bias@GRAD"), workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(
        self, Input: Tensor, HiddenPrev: Tensor, Weight: Tensor, Bias: Tensor | None, Gate: Tensor, ResetHiddenPrev: Tensor, d_hidden: Tensor
    ) -> tuple[Any, ...]:
        form = self._numbered(Weight)
        schedule = StepSchedule.dense(1, Input.shape[0], None, Input.device)
        d_gates, d_h0, d_gate, d_candidate = form.backward(Gate, ResetHiddenPrev, ResetHiddenPrev, HiddenPrev, d_hidden, schedule)
        return d_gates, d_h0, self._join(d_gate, d_candidate), None if Bias is None else d_gates.sum(0, keepdim=True)

    samples = [
        sample(Input=f32(5, 12), HiddenPrev=f32(5, 4), Weight=f32(4, 12), Bias=f32(1, 12)),
        sample(Input=f32(5, 6), HiddenPrev=f32(5, 2), Weight=f32(2, 6), origin_mode=True, activation=1, gate_activation=2),
        sample(Input=f32(0, 6), HiddenPrev=f32(0, 2), Weight=f32(2, 6)),
    ]
