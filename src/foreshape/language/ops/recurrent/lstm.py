"""PaddlePaddle's lstm and lstmp, over ragged rows already projected, and lstm_unit, one step of it."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_divides, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.rules.ragged_rules import sequences
from foreshape.machine.kernels import lstm_steps as steps
from foreshape.machine.kernels.packed_memory import Packed, of_requested
from foreshape.machine.kernels.recurrence import StepSchedule

FLOATS = (FP32, FP64)
BIAS_DOC = "[1, 4 hidden], with peepholes [1, 7 hidden]: of c, i, f, o, and the peepholes of i, f, o"
_LSTM_INPUTS = ("Input", "H0", "C0", "Weight", "Bias", "Hidden", "Cell", "BatchGate", "BatchCellPreAct", "Hidden@GRAD", "Cell@GRAD")
_LSTMP_RESULTS = ("Projection", "Cell", "BatchGate", "BatchCellPreAct", "BatchHidden")
_LSTMP_INPUTS = ("Input", "H0", "C0", "Weight", "ProjWeight", "Bias", *_LSTMP_RESULTS, "Projection@GRAD", "Cell@GRAD")


class LstmSteps(Operator):
    """The base of all LSTMs over ragged rows: the attributes, the rule and the kernels."""

    abstract = True
    multiplies_steps = True
    use_peepholes = attribute(AttrType.BOOLEAN, True)
    is_reverse = attribute(AttrType.BOOLEAN, False)
    gate_activation = attribute(AttrType.STRING, "sigmoid", choices=steps.ACTIVATIONS)
    cell_activation = attribute(AttrType.STRING, "tanh", choices=steps.ACTIVATIONS)
    candidate_activation = attribute(AttrType.STRING, "tanh", choices=steps.ACTIVATIONS)

    def _hidden(self, Input: Spec, H0: Spec | None, C0: Spec | None, Weight: Spec, Bias: Spec, state: Size | None) -> Size:
        """Return the hidden size. ``state``: the size of the state, if another."""
        count = sequences(Input, "Input")
        require_rank(2, Input, "Input")
        size = require_divides(4, Input.known_dims[1], f"the columns of Input must be 4 hidden sizes, not {Input.known_dims[1]}", Input=1)
        state = size if state is None else state
        require((H0 is None) is (C0 is None), "H0 and C0 must be given both, or none of them", H0=None, C0=None)
        expected = [("Weight", Weight, (state, 4 * size)), ("Bias", Bias, (1, (7 if self.use_peepholes else 4) * size))]
        expected += [("H0", H0, (count, state)), ("C0", C0, (count, size))] if H0 is not None and C0 is not None else []
        for slot, spec, dims in expected:
            require_rank(2, spec, slot)
            for axis, (actual, want) in enumerate(zip(spec.known_dims, dims, strict=True)):
                require_equal(actual, want, f"{slot} must be [{dims[0]}, {dims[1]}] where Input is {Input.text()}, not {spec.text()}", **{slot: axis})
        return size

    def _form(self) -> steps.LstmSettings:
        return steps.LstmSettings(self.gate_activation, self.candidate_activation, self.cell_activation)

    def _weights(self, Weight: Tensor, Bias: Tensor, projection: Tensor | None = None) -> steps.Weights:
        peephole = Bias.view(7, -1)[4:] if self.use_peepholes else None
        return steps.Weights(Weight, peephole, projection)

    def _run(
        self, Input: Tensor, H0: Tensor | None, C0: Tensor | None, Weight: Tensor, Bias: Tensor, projection: Tensor | None, offsets: Offsets
    ) -> tuple[StepSchedule, steps.StepTrace]:
        schedule = StepSchedule.of(offsets, self.is_reverse)
        columns = Input.shape[1]
        gates = schedule.to_places(Input).add_(Bias.view(-1)[:columns])
        h0, c0 = schedule.sorted(H0, Input, Weight.shape[0]), schedule.sorted(C0, Input, columns // 4)
        return schedule, steps.forward(gates, self._weights(Weight, Bias, projection), h0, c0, schedule, self._form())

    def _undo(
        self, Input: Tensor, H0: Tensor | None, C0: Tensor | None, Weight: Tensor, Bias: Tensor, projection: Tensor | None, trace: steps.StepTrace,
        d_state: Tensor, d_cell: Tensor | None, schedule: StepSchedule, requested: tuple[bool, ...],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor, Tensor | None]:  # fmt: skip
        """Return the gradients of Input, H0, C0, Weight, Bias and the projection; the first three if requested."""
        h0, c0 = schedule.sorted(H0, Input, Weight.shape[0]), schedule.sorted(C0, Input, Input.shape[1] // 4)
        d_at = schedule.to_places(d_state)
        gradients = steps.backward(
            trace, self._weights(Weight, Bias, projection), h0, c0, d_at, None if d_cell is None else schedule.to_places(d_cell), schedule, self._form()
        )
        d_bias = gradients.gates.sum(0)
        if gradients.weights.peephole is not None:
            d_bias = torch.cat((d_bias, gradients.weights.peephole.view(-1)))
        d_input = schedule.to_rows(gradients.gates) if requested[0] else None
        d_h0, d_c0 = (schedule.unsorted(x) if flag else None for x, flag in zip((gradients.h0, gradients.c0), requested[1:3], strict=True))
        return d_input, d_h0, d_c0, gradients.weights.recurrent, d_bias.view(Bias.shape), gradients.weights.projection


class PackedLstm(LstmSteps):
    """The base of LSTMs over projected rows: the common part of their schema."""

    abstract = True
    examples, example_results = ("Input", "H0", "C0"), ("Hidden", "Projection", "Cell")
    Input = operand(FLOATS, doc="ragged rows [rows, 4 hidden], the inputs' share of the candidate and of the gates i, f, o")
    H0 = operand(FLOATS, optional=True, same_type_as="Input", doc="the state before the first step, zeros where absent: [sequences, state]")
    C0 = operand(FLOATS, optional=True, same_type_as="Input", doc="the cell before the first step: [sequences, hidden]; given with H0")


class Lstm(PackedLstm):
    """An LSTM over each sequence. With g = act(x_c + h W_c) and gates i, f, o = act(x + h W): c = g i + c f, h = o act(c).

    With peepholes i and f see the cell before, o the cell after.
    """

    type = "lstm"
    Weight = operand(FLOATS, same_type_as="Input", doc="[hidden, 4 hidden]")
    Bias = operand(FLOATS, same_type_as="Input", doc=BIAS_DOC)
    Hidden = result(doc="[rows, hidden], with the offsets of Input")
    Cell = result(doc="likewise")
    BatchGate = result(doc="[rows, 4 hidden]: the gates after their activation, time step by time step")
    BatchCellPreAct = result(doc="[rows, hidden]: the cells after their activation, likewise")

    def infer_shape(self, Input: Spec, H0: Spec | None, C0: Spec | None, Weight: Spec, Bias: Spec) -> Any:
        size = self._hidden(Input, H0, C0, Weight, Bias, None)
        rows = Input.known_dims[0]
        out = Input.with_dims((rows, size))
        return out, out, Input.dense((rows, Input.known_dims[1])), Input.dense((rows, size))

    def work(self, Input: Spec, H0: Any, C0: Any, Weight: Spec, Bias: Any) -> Size:
        return Input.known_dims[0] * Weight.known_dims[0] * Weight.known_dims[1]

    def workspace(self, Input: Spec, H0: Any, C0: Any, Weight: Any, Bias: Any) -> Size:
        return Packed.of(Input, 4).lstm(None)

    def kernel(self, Input: Tensor, H0: Tensor | None, C0: Tensor | None, Weight: Tensor, Bias: Tensor, *, offsets: list[Any]) -> tuple[Any, ...]:
        schedule, trace = self._run(Input, H0, C0, Weight, Bias, None, offsets[0])
        return schedule.to_rows(trace.hidden), schedule.to_rows(trace.cell), trace.gates, trace.active

    def _gradient_workspace(self, *specs: Any, requested: tuple[bool, ...]) -> Size:
        needed, dropped = of_requested(requested, *specs[:5])
        return Packed.of(specs[0], 4).lstm_gradient(None, self.use_peepholes, False, needed, dropped)

    @gradient(*_LSTM_INPUTS, gives=("Input@GRAD", "H0@GRAD", "C0@GRAD", "Weight@GRAD", "Bias@GRAD"), absent=("Cell@GRAD",), workspace=_gradient_workspace)
    def backward(
        self, Input: Tensor, H0: Tensor | None, C0: Tensor | None, Weight: Tensor, Bias: Tensor, Hidden: Tensor, Cell: Tensor, BatchGate: Tensor,
        BatchCellPreAct: Tensor, d_hidden: Tensor, d_cell: Tensor | None, *, offsets: list[Any], requested: tuple[bool, ...],
    ) -> tuple[Any, ...]:  # fmt: skip
        schedule = StepSchedule.of(offsets[0], self.is_reverse)
        hidden = schedule.to_places(Hidden)
        trace = steps.StepTrace(BatchGate, schedule.to_places(Cell), BatchCellPreAct, hidden, hidden)
        return self._undo(Input, H0, C0, Weight, Bias, None, trace, d_hidden, d_cell, schedule, requested)[:5]

    samples = [
        sample(Input=f32(9, 12).ragged([4, 0, 5]), Weight=f32(3, 12), Bias=f32(1, 21)),
        sample(Input=f32(9, 12).ragged([4, 0, 5]), H0=f32(3, 3), C0=f32(3, 3), Weight=f32(3, 12), Bias=f32(1, 12), use_peepholes=False, is_reverse=True),
        sample(Input=f32(7, 8).ragged([2, 1], [3, 0, 4]), H0=f32(3, 2), C0=f32(3, 2), Weight=f32(2, 8), Bias=f32(1, 14), gate_activation="tanh",
               candidate_activation="identity", cell_activation="sigmoid"),
        sample(Input=f32(6, 8).ragged([5, 1]), Weight=f32(2, 8), Bias=f32(1, 8), use_peepholes=False, candidate_activation="relu"),
        sample(Input=f32(0, 8).ragged([]), Weight=f32(2, 8), Bias=f32(1, 14)),
    ]  # fmt: skip
    rejects = [
        reject(Input=f32(9, 13).ragged([4, 5]), Weight=f32(3, 12), Bias=f32(1, 21), says="must be 4 hidden sizes"),
        reject(Input=f32(9, 12).ragged([4, 5]), Weight=f32(4, 12), Bias=f32(1, 21), says="Weight must be [3, 12]"),
        reject(Input=f32(9, 12).ragged([4, 5]), Weight=f32(3, 12), Bias=f32(1, 21), H0=f32(2, 3), says="H0 and C0 must be given both"),
        reject(Input=f32(9, 12).ragged([4, 5]), Weight=f32(3, 12), Bias=f32(1, 21), H0=f32(3, 3), C0=f32(2, 3), says="H0 must be [2, 3]"),
    ]


class Lstmp(PackedLstm):
    """An LSTM with a projected state: r = act(h P) is its result, and the state of the next step.

    Cell and projection are clipped to ``cell_clip`` and ``proj_clip`` around 0, unless these are 0.
    """

    type = "lstmp"
    Weight = operand(FLOATS, same_type_as="Input", doc="[projected, 4 hidden]")
    ProjWeight = operand(FLOATS, same_type_as="Input", doc="[hidden, projected]")
    Bias = operand(FLOATS, same_type_as="Input", doc=BIAS_DOC)
    Projection = result(doc="[rows, projected], with the offsets of Input")
    Cell = result(doc="[rows, hidden], likewise")
    BatchGate = result(doc="[rows, 4 hidden]: the gates after their activation, time step by time step")
    BatchCellPreAct = result(doc="[rows, hidden]: the cells after their activation, likewise")
    BatchHidden = result(doc="[rows, hidden]: the states before projection, likewise")
    cell_clip = attribute(AttrType.FLOAT, 0.0, low=0.0)
    proj_clip = attribute(AttrType.FLOAT, 0.0, low=0.0)
    proj_activation = attribute(AttrType.STRING, "tanh", choices=steps.ACTIVATIONS)

    def _form(self) -> steps.LstmSettings:
        return steps.LstmSettings(self.gate_activation, self.candidate_activation, self.cell_activation, self.proj_activation, self.cell_clip, self.proj_clip)

    def infer_shape(self, Input: Spec, H0: Spec | None, C0: Spec | None, Weight: Spec, ProjWeight: Spec, Bias: Spec) -> Any:
        require_rank(2, ProjWeight, "ProjWeight")
        inner, projected = ProjWeight.known_dims
        size = self._hidden(Input, H0, C0, Weight, Bias, projected)
        require_equal(inner, size, f"the rows of ProjWeight must be the hidden size, {size}, not {inner}", ProjWeight=0)
        rows = Input.known_dims[0]
        cell = Input.with_dims((rows, size))
        return Input.with_dims((rows, projected)), cell, Input.dense((rows, Input.known_dims[1])), Input.dense((rows, size)), Input.dense((rows, size))

    def work(self, Input: Spec, H0: Any, C0: Any, Weight: Spec, ProjWeight: Spec, Bias: Any) -> Size:
        return Input.known_dims[0] * Weight.known_dims[0] * (Weight.known_dims[1] + ProjWeight.known_dims[0])

    def workspace(self, Input: Spec, H0: Any, C0: Any, Weight: Any, ProjWeight: Spec, Bias: Any) -> Size:
        return Packed.of(Input, 4).lstm(ProjWeight.known_dims[1])

    def kernel(
        self, Input: Tensor, H0: Tensor | None, C0: Tensor | None, Weight: Tensor, ProjWeight: Tensor, Bias: Tensor, *, offsets: list[Any]
    ) -> tuple[Any, ...]:
        schedule, trace = self._run(Input, H0, C0, Weight, Bias, ProjWeight, offsets[0])
        return schedule.to_rows(trace.state), schedule.to_rows(trace.cell), trace.gates, trace.active, trace.hidden

    def _gradient_workspace(self, *specs: Any, requested: tuple[bool, ...]) -> Size:
        needed, dropped = of_requested(requested, *specs[:6])
        return Packed.of(specs[0], 4).lstm_gradient(specs[4].known_dims[1], self.use_peepholes, self.cell_clip > 0.0, needed, dropped)

    @gradient(
        *_LSTMP_INPUTS,
        gives=("Input@GRAD", "H0@GRAD", "C0@GRAD", "Weight@GRAD", "ProjWeight@GRAD", "Bias@GRAD"),
        absent=("Cell@GRAD",),
        workspace=_gradient_workspace,
    )
    def backward(
        self, Input: Tensor, H0: Tensor | None, C0: Tensor | None, Weight: Tensor, ProjWeight: Tensor, Bias: Tensor, Projection: Tensor, Cell: Tensor,
        BatchGate: Tensor, BatchCellPreAct: Tensor, BatchHidden: Tensor, d_projection: Tensor, d_cell: Tensor | None, *, offsets: list[Any],
        requested: tuple[bool, ...],
    ) -> tuple[Any, ...]:  # fmt: skip
        schedule = StepSchedule.of(offsets[0], self.is_reverse)
        trace = steps.StepTrace(BatchGate, schedule.to_places(Cell), BatchCellPreAct, BatchHidden, schedule.to_places(Projection))
        gradients = self._undo(Input, H0, C0, Weight, Bias, ProjWeight, trace, d_projection, d_cell, schedule, requested)
        return *gradients[:4], gradients[5], gradients[4]

    samples = [
        sample(Input=f32(9, 12).ragged([4, 0, 5]), Weight=f32(2, 12), ProjWeight=f32(3, 2), Bias=f32(1, 21)),
        sample(Input=f32(9, 12).ragged([4, 0, 5]), H0=f32(3, 2), C0=f32(3, 3), Weight=f32(2, 12), ProjWeight=f32(3, 2), Bias=f32(1, 12),
               use_peepholes=False, is_reverse=True, proj_activation="identity", proj_clip=0.4, cell_clip=0.7),
        sample(Input=f32(7, 8).ragged([2, 1], [3, 0, 4]), Weight=f32(3, 8), ProjWeight=f32(2, 3), Bias=f32(1, 14), proj_activation="sigmoid", cell_clip=0.5),
        sample(Input=f32(0, 8).ragged([0]), Weight=f32(3, 8), ProjWeight=f32(2, 3), Bias=f32(1, 14), differentiate=False),
    ]  # fmt: skip
    rejects = [reject(Input=f32(9, 12).ragged([4, 5]), Weight=f32(2, 12), ProjWeight=f32(4, 2), Bias=f32(1, 21), says="the rows of ProjWeight")]


class LstmUnit(Operator):
    """One step of an LSTM, with X = i, f, o, g side by side.

    C = C_prev sigmoid(f + forget_bias) + sigmoid(i) tanh(g), H = sigmoid(o) tanh(C).
    """

    type = "lstm_unit"
    examples = ("X", "C_prev")
    X = operand(FLOATS, doc="[batch, 4 hidden]")
    C_prev = operand(FLOATS, same_type_as="X", doc="[batch, hidden]")
    C = result(doc="[batch, hidden]")
    H = result(doc="[batch, hidden]")
    forget_bias = attribute(AttrType.FLOAT, 0.0)

    def infer_shape(self, X: Spec, C_prev: Spec) -> Any:
        require_rank(2, X, "X")
        require_rank(2, C_prev, "C_prev")
        batch = require_equal(X.known_dims[0], C_prev.known_dims[0], "X and C_prev must have as many rows", X=0, C_prev=0)
        require_equal(X.known_dims[1], 4 * C_prev.known_dims[1], "X must have four times the columns of C_prev", X=1, C_prev=1)
        out = X.dense((batch, C_prev.known_dims[1]))
        return out, out

    def _parts(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        i, f, o, g = X.chunk(4, 1)
        return i.sigmoid(), (f + self.forget_bias).sigmoid_(), o.sigmoid(), g.tanh()

    def workspace(self, X: Spec, C_prev: Spec) -> Size:
        return 4 * C_prev.nbytes

    def kernel(self, X: Tensor, C_prev: Tensor) -> tuple[Tensor, Tensor]:
        i, f, o, g = self._parts(X)
        c = (i * g).addcmul_(f, C_prev)
        return c, o.mul_(c.tanh())

    def _gradient_workspace(self, X: Spec, C_prev: Spec, *specs: Any, requested: tuple[bool, ...]) -> Size:
        return 9 * C_prev.nbytes + of_requested(requested, X, C_prev)[1]

    @gradient("X", "C_prev", "C", "C@GRAD", "H@GRAD", gives=("X@GRAD", "C_prev@GRAD"), workspace=_gradient_workspace)
    def backward(self, X: Tensor, C_prev: Tensor, C: Tensor, d_c: Tensor, d_h: Tensor) -> tuple[Tensor, Tensor]:
        i, f, o, g = self._parts(X)
        active = C.tanh()
        d = d_c + d_h * o * steps.slope("tanh", active)
        parts = (d * g * steps.slope("sigmoid", i), d * C_prev * steps.slope("sigmoid", f), d_h * active * steps.slope("sigmoid", o))
        return torch.cat((*parts, d * i * steps.slope("tanh", g)), 1), d * f

    samples = [sample(X=f32(3, 8), C_prev=f32(3, 2)), sample(X=f32(5, 12), C_prev=f32(5, 3), forget_bias=1.0), sample(X=f32(0, 8), C_prev=f32(0, 2))]
    rejects = [reject(X=f32(3, 9), C_prev=f32(3, 2), says="four times the columns")]
