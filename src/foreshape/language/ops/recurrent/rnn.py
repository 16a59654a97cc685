"""rnn: recurrent layers over dense sequences, as PaddlePaddle has it; sequence_rnn: the same over ragged rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from foreshape.core.data_class import data_class
from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, INDEX, UINT8, Spec, tensor
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import OWN, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_equal, require_rank
from foreshape.language.operator.samples import SampleTensor, f32, i32, reject, sample
from foreshape.language.operator.sequence_computations import RecurrentLayers
from foreshape.language.operator.traits import WHOLE, ShardingRule
from foreshape.language.ops.rules.ragged_rules import sequences
from foreshape.language.ops.tensor.random_state import generator_for
from foreshape.machine.kernels import lstm_pieces
from foreshape.machine.kernels.recurrence import StepGrouping, StepSchedule
from foreshape.machine.kernels.recurrent_memory import GATES, Layers
from foreshape.machine.kernels.recurrent_net import RecurrentNet, hand_on, handed_on

FLOATS = (FP32, FP64)
WEIGHTS_DOC = "for each unit (layer by layer, forward before backward) [gates hidden, features] and [gates hidden, hidden]; then two biases each"
STATE_DOC = "[units, batch, hidden]"
RESERVE_DOC = "the values for the gradient, in a form of the kernel's own; one byte to others"


class RecurrentNetworkBase(Operator):
    """The base of both: the attributes, and the checks of states and weights."""

    abstract = True
    multiplies_steps = True
    mode = attribute(AttrType.STRING, "RNN_TANH", choices=tuple(GATES), doc="the gates are in the order i, f, g, o for LSTM, and r, z, n for GRU")
    hidden_size = attribute(AttrType.INT, 100, low=1)
    num_layers = attribute(AttrType.INT, 1, low=1, high=4096)
    is_bidirec = attribute(AttrType.BOOLEAN, False, doc="in both directions, with the results side by side")
    dropout_prob = attribute(AttrType.FLOAT, 0.0, low=0.0, high=1.0, doc="in training, on the results between layers")
    seed = attribute(AttrType.INT, 0)
    is_test = attribute(AttrType.BOOLEAN, False)

    def _net(self) -> RecurrentNet:
        return RecurrentNet(self.mode, self.num_layers, 2 if self.is_bidirec else 1, self.hidden_size, 0.0 if self.is_test else self.dropout_prob)

    def draws(self) -> bool:
        return self._net().dropout > 0.0 and not self.seed

    def _layers(self, Input: Spec, full: bool, cell: bool = True) -> Layers:
        """Return the layers' form for the memory of `RecurrentNet`."""
        net, dims, dtype = self._net(), Input.known_dims, Input.dtype or FP32
        form = (net.mode, net.layers, net.directions, net.hidden, net.dropout > 0.0)
        if Input.lod is None:
            return Layers(*form, dims[2], dims[0] * dims[1], dims[1], dtype, dims[0], full)
        return Layers(*form, dims[1], dims[0], Input.lod.counts[-1], dtype, cell=cell)

    def _state_dims(self, features: Size, batch: Size, weights: Sequence[Spec], states: Sequence[tuple[str, Spec]]) -> tuple[Size, Size, Size]:
        """Return [units, batch, hidden], if states and weights fit."""
        net = self._net()
        count, gates = 4 * net.units, GATES[self.mode] * net.hidden
        words = f"WeightList must have {count} tensors: for each unit two weights, then for each two biases"
        require(len(weights) == count, f"{words}; seen {len(weights)}", WeightList=None)
        for unit, four in enumerate(net.weights(weights)):
            inner = features if unit < net.directions else net.directions * net.hidden
            for spec, dims in zip(four, ((gates, inner), (gates, net.hidden), (gates,), (gates,)), strict=True):
                words = f"the weights of unit {unit} must be [{gates}, {inner}] and [{gates}, {net.hidden}], and its biases [{gates}]"
                _require_dims(spec, dims, words, "WeightList")
        out = (net.units, batch, net.hidden)
        for slot, state in states:
            _require_dims(state, out, f"{slot} must be [{net.units}, {batch}, {net.hidden}], which is units, batch, hidden", slot)
        return out

    def _size(self, features: Size, rows: Size) -> Size:
        net = self._net()
        gates = GATES[self.mode] * net.hidden
        first = net.directions * gates * (features + net.hidden)
        return rows * (first + (net.layers - 1) * net.directions * gates * (net.directions + 1) * net.hidden)


def _bytes(spec: Spec) -> Size:
    return spec.nbytes


def _require_dims(spec: Spec, dims: Sequence[Size], words: str, slot: str) -> None:
    require(spec.rank == len(dims), f"{words}; one is {spec.text()}", **{slot: None})
    for axis, (actual, want) in enumerate(zip(spec.known_dims, dims, strict=True)):
        require_equal(actual, want, words, **{slot: axis})


def _weights(mode: str, hidden: int, features: int, units: int = 1, directions: int = 1) -> list[SampleTensor]:
    gates = GATES[mode] * hidden
    pairs = [(f32(gates, features if u < directions else directions * hidden), f32(gates, hidden)) for u in range(units)]
    return [*(w for pair in pairs for w in pair), *(f32(gates) for _ in range(2 * units))]


class Rnn(RecurrentNetworkBase):
    """``num_layers`` recurrent layers over Input [time, batch, features]: LSTM, GRU, or h = tanh or relu of (W x + b + V h + c).

    A sequence ends after its SequenceLength steps. Its last state is the one of its last step, results after it are zero, and the backward direction begins
    there.
    """

    type = "rnn"
    random = True
    Input = operand(FLOATS, doc="[time, batch, features]")
    PreState = operand(FLOATS, many=True, same_type_as="Input", doc=f"the hidden state before the first step, for LSTM also the cell: {STATE_DOC}")
    WeightList = operand(FLOATS, many=True, same_type_as="Input", doc=WEIGHTS_DOC)
    SequenceLength = operand(INDEX, optional=True, doc="[batch], from 0 to time")
    Out = result(doc="[time, batch, directions hidden], of the last layer")
    DropoutState = result(optional=True, doc="one byte, for other programs")
    State = result(many=True, doc=f"as PreState after the last step: {STATE_DOC}")
    Reserve = result(doc=RESERVE_DOC)
    input_size = attribute(AttrType.INT, 10, doc="ignored: the features of Input count")

    def infer_shape(self, Input: Spec, PreState: tuple[Spec, ...], WeightList: tuple[Spec, ...], SequenceLength: Spec | None) -> Any:
        require_rank(3, Input, "Input")
        time, batch, features = Input.known_dims
        states = 2 if self.mode == "LSTM" else 1
        require(len(PreState) == states, f"PreState must have {states} tensor{'s' if states > 1 else ''} for {self.mode}, not {len(PreState)}", PreState=None)
        dims = self._state_dims(features, batch, WeightList, [("PreState", s) for s in PreState])
        if SequenceLength is not None:
            _require_dims(SequenceLength, (batch,), f"SequenceLength must be [{batch}], one number for each sequence", "SequenceLength")
        net, token = self._net(), tensor(UINT8)
        return Input.dense((time, batch, net.directions * net.hidden)), token, (Input.dense(dims),) * states, token

    def computes(self) -> RecurrentLayers | None:
        net = self._net()
        return None if net.drops else RecurrentLayers(net.mode, net.layers, net.directions, net.hidden)

    def sharding_rule(self, Input: Spec, PreState: Any, WeightList: Any, SequenceLength: Spec | None) -> ShardingRule | None:
        batch = (WHOLE, "batch", WHOLE)
        return ShardingRule({"Input": batch, "PreState": batch, "SequenceLength": ("batch",)}, {"Out": batch, "State": batch})

    def work(self, Input: Spec, PreState: Any, WeightList: Any, SequenceLength: Spec | None) -> Size:
        time, batch, features = Input.known_dims
        return self._size(features, time * batch)

    def retained_bytes(self, Input: Spec, PreState: Any, WeightList: Any, SequenceLength: Spec | None) -> dict[str, Size]:
        return {"Reserve": self._layers(Input, SequenceLength is None).kept}

    def workspace(
        self, Input: Spec, PreState: Any, WeightList: Any, SequenceLength: Spec | None, *, requested: tuple[bool, ...], strided: frozenset[str]
    ) -> Size:
        layers = self._layers(Input, SequenceLength is None)
        return layers.forward(requested[3]) + (_bytes(Input) if "Input" in strided else 0)

    def _schedules(self, Input: Tensor, SequenceLength: Tensor | None) -> Any:
        time, batch, _ = Input.shape
        lengths = None
        if SequenceLength is not None:
            lengths = SequenceLength.to(Input.device, dtype=torch.int64)
            if batch and not bool(((lengths >= 0) & (lengths <= time)).all()):
                raise ExecutionError(
                    f"rnn: SequenceLength must be from 0 to {time}, the time steps of Input; seen {int(lengths.min())} to {int(lengths.max())}"
                )
        return Dense({}, time, batch, lengths, Input.device)

    def kernel(
        self, Input: Tensor, PreState: list[Tensor], WeightList: list[Tensor], SequenceLength: Tensor | None, *, requested: tuple[bool, ...]
    ) -> tuple[Any, ...]:
        time, batch, features = Input.shape
        alone = self.mode == "LSTM" and self.num_layers == 1 and not self.is_bidirec and SequenceLength is None and not requested[3]
        if alone and lstm_pieces.are_few(time, batch):  # of a network that answers step by step: all the rest would take as long again
            rows = Input.reshape(time * batch, features)
            y, last, cell = lstm_pieces.few_steps(rows, WeightList, PreState[0][0], PreState[1][0], time, False, requested[0])
            states = [last.unsqueeze(0), cell.unsqueeze(0)]
            return None if y is None else y.view(time, batch, -1), hand_on(None) if requested[1] else None, states, None
        out, h, c, trace = self._run(Input, PreState, WeightList, SequenceLength, requested)
        state = [h] if self.mode != "LSTM" else [h, c]
        reserves = [hand_on(reserve) if flag else None for reserve, flag in ((None, requested[1]), (trace, requested[3]))]
        return None if out is None else out.view(time, batch, out.shape[-1]), reserves[0], state, reserves[1]

    def _run(self, Input: Tensor, PreState: list[Tensor], WeightList: list[Tensor], SequenceLength: Tensor | None, requested: tuple[bool, ...]) -> Any:
        net = self._net()
        generator = generator_for(self.seed) if net.dropout > 0.0 else None
        return net.forward(
            Input.flatten(0, 1), WeightList, PreState[0], PreState[1] if len(PreState) > 1 else None, self._schedules(Input, SequenceLength),
            out=requested[0], cell=requested[2], train=requested[3], generator=generator,
        )  # fmt: skip

    def _gradient_workspace(
        self, Input: Spec, PreState: Any, WeightList: Any, SequenceLength: Spec | None, DropoutState: Any, Reserve: Any, Out: Any, d_out: Spec, d_state: Any,
        *, requested: tuple[bool, ...], strided: frozenset[str],
    ) -> Size:  # fmt: skip
        layers = self._layers(Input, SequenceLength is None)
        copied = "Out@GRAD" in strided and (layers.whole or not layers.full or layers.directions > 1)
        return layers.backward(requested[0]) + (_bytes(Input) if "Input" in strided else 0) + (_bytes(d_out) if copied else 0)

    @gradient(
        "Input", "PreState", "WeightList", "SequenceLength", "DropoutState", "Reserve", "Out", "Out@GRAD", "State@GRAD",
        gives=("Input@GRAD", "PreState@GRAD", "WeightList@GRAD"), workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(
        self, Input: Tensor, PreState: list[Tensor], WeightList: list[Tensor], SequenceLength: Tensor | None, DropoutState: Any, Reserve: Tensor,
        Out: Tensor, d_out: Tensor, d_state: list[Tensor], *, requested: tuple[bool, ...],
    ) -> tuple[Any, ...]:  # fmt: skip
        again = partial(self._run, Input, PreState, WeightList, SequenceLength, (False, False, len(PreState) > 1, True))
        trace = handed_on(Reserve, "rnn", None if self._net().drops and not self.seed else again)
        rows = d_out.flatten(0, 1)
        d_x, d_h, d_c, grads = self._net().backward(
            trace, Input.flatten(0, 1), WeightList, rows, d_state[0], d_state[1] if len(d_state) > 1 else None, requested[0],
            own=rows.numel() > 0 and rows.data_ptr() != d_out.data_ptr(),
        )  # fmt: skip
        return None if d_x is None else d_x.view(Input.shape), [d_h] if d_c is None else [d_h, d_c], grads

    samples = [
        sample(Input=f32(5, 3, 2), PreState=[f32(1, 3, 4), f32(1, 3, 4)], WeightList=_weights("LSTM", 4, 2), mode="LSTM", hidden_size=4),
        sample(Input=f32(4, 3, 2), PreState=[f32(4, 3, 2), f32(4, 3, 2)], WeightList=_weights("LSTM", 2, 2, 4, 2), SequenceLength=i32(3, data=[2, 4, 0]),
               mode="LSTM", hidden_size=2, num_layers=2, is_bidirec=True, dropout_prob=0.5, seed=3),
        sample(Input=f32(4, 3, 5), PreState=[f32(2, 3, 2)], WeightList=_weights("GRU", 2, 5, 2, 2), SequenceLength=i32(3, data=[1, 4, 2]), mode="GRU",
               hidden_size=2, is_bidirec=True),
        sample(Input=f32(4, 2, 3), PreState=[f32(2, 2, 5)], WeightList=_weights("RNN_TANH", 5, 3, 2), hidden_size=5, num_layers=2),
        sample(Input=f32(3, 2, 4), PreState=[f32(1, 2, 5)], WeightList=_weights("RNN_RELU", 5, 4), hidden_size=5, mode="RNN_RELU"),
        sample(Input=f32(3, 0, 4), PreState=[f32(1, 0, 2)], WeightList=_weights("GRU", 2, 4), hidden_size=2, mode="GRU"),
        sample(Input=f32(0, 3, 4), PreState=[f32(1, 3, 2)], WeightList=_weights("GRU", 2, 4), hidden_size=2, mode="GRU"),
    ]  # fmt: skip
    rejects = [
        reject(Input=f32(5, 3, 2), PreState=[f32(1, 3, 4)], WeightList=_weights("LSTM", 4, 2), hidden_size=4, mode="LSTM", says="PreState must have 2 tensors"),
        reject(Input=f32(5, 3, 2), PreState=[f32(1, 3, 4)], WeightList=_weights("GRU", 4, 2)[:3], hidden_size=4, mode="GRU", says="must have 4 tensors"),
        reject(Input=f32(5, 3, 6), PreState=[f32(1, 3, 4)], WeightList=_weights("GRU", 4, 2), hidden_size=4, mode="GRU", says="the weights of unit 0"),
        reject(Input=f32(5, 3, 2), PreState=[f32(2, 3, 4)], WeightList=_weights("GRU", 4, 2), hidden_size=4, mode="GRU", says="PreState must be [1, 3, 4]"),
    ]


class SequenceRnn(RecurrentNetworkBase):
    """`Rnn` over ragged rows: each innermost sequence is one, and no step is computed after its end.

    The last state of an empty sequence is its initial one.
    """

    type = "sequence_rnn"
    examples, example_results = ("Input",), ("Out",)
    since = OWN
    random = True
    Input = operand(FLOATS, doc="ragged rows [rows, features]")
    InitHidden = operand(FLOATS, optional=True, same_type_as="Input", doc=f"before the first step, zeros where absent: {STATE_DOC}")
    InitCell = operand(FLOATS, optional=True, same_type_as="Input", doc="for LSTM, likewise")
    WeightList = operand(FLOATS, many=True, same_type_as="Input", doc=WEIGHTS_DOC)
    Out = result(doc="[rows, directions hidden], of the last layer, with the offsets of Input")
    LastHidden = result(doc=f"after the last step: {STATE_DOC}")
    LastCell = result(optional=True, doc="for LSTM, likewise")
    Reserve = result(doc=RESERVE_DOC)

    def infer_shape(self, Input: Spec, InitHidden: Spec | None, InitCell: Spec | None, WeightList: tuple[Spec, ...]) -> Any:
        batch = sequences(Input, "Input")
        require_rank(2, Input, "Input")
        rows, features = Input.known_dims
        cell = self.mode == "LSTM"
        require(cell or InitCell is None, f"InitCell is of LSTM, and the mode is {self.mode}", InitCell=None)
        states = [(slot, s) for slot, s in (("InitHidden", InitHidden), ("InitCell", InitCell)) if s is not None]
        state = Input.dense(self._state_dims(features, batch, WeightList, states))
        return Input.with_dims((rows, self._net().directions * self.hidden_size)), state, state if cell else None, tensor(UINT8)

    def work(self, Input: Spec, InitHidden: Any, InitCell: Any, WeightList: Any) -> Size:
        return self._size(Input.known_dims[1], Input.known_dims[0])

    def retained_bytes(self, Input: Spec, InitHidden: Any, InitCell: Any, WeightList: Any, *, requested: tuple[bool, ...]) -> dict[str, Size]:
        return {"Reserve": self._layers(Input, False, requested[2]).kept}

    def workspace(self, Input: Spec, InitHidden: Any, InitCell: Any, WeightList: Any, *, requested: tuple[bool, ...]) -> Size:
        return self._layers(Input, False, requested[2]).forward(requested[3])

    def kernel(
        self, Input: Tensor, InitHidden: Tensor | None, InitCell: Tensor | None, WeightList: list[Tensor], *, requested: tuple[bool, ...], offsets: list[Any]
    ) -> tuple[Any, ...]:
        out, h, c, trace = self._run(Input, InitHidden, InitCell, WeightList, offsets[0], requested)
        return out, h, c, hand_on(trace)

    def _run(self, Input: Tensor, InitHidden: Any, InitCell: Any, WeightList: list[Tensor], offsets: Any, requested: tuple[bool, ...]) -> Any:
        net = self._net()
        generator = generator_for(self.seed) if net.dropout > 0.0 else None
        return net.forward(
            Input, WeightList, InitHidden, InitCell, Ragged(offsets), out=requested[0], cell=requested[2], train=requested[3], generator=generator
        )

    def _gradient_workspace(
        self, Input: Spec, InitHidden: Any, InitCell: Any, WeightList: Any, Reserve: Any, d_out: Any, d_h: Any, d_c: Any, *, requested: tuple[bool, ...]
    ) -> Size:
        return self._layers(Input, False, d_c is not None).backward(requested[0], d_out is not None)

    @gradient(
        "Input", "InitHidden", "InitCell", "WeightList", "Reserve", "Out@GRAD", "LastHidden@GRAD", "LastCell@GRAD",
        gives=("Input@GRAD", "InitHidden@GRAD", "InitCell@GRAD", "WeightList@GRAD"), absent=("Out@GRAD", "LastHidden@GRAD", "LastCell@GRAD"),
        workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(
        self, Input: Tensor, InitHidden: Any, InitCell: Any, WeightList: list[Tensor], Reserve: Tensor, d_out: Tensor | None, d_h: Tensor | None,
        d_c: Tensor | None, *, requested: tuple[bool, ...], offsets: list[Any],
    ) -> tuple[Any, ...]:  # fmt: skip
        again = partial(self._run, Input, InitHidden, InitCell, WeightList, offsets[0], (False, False, d_c is not None, True))
        trace = handed_on(Reserve, "sequence_rnn", None if self._net().drops and not self.seed else again)
        return self._net().backward(trace, Input, WeightList, d_out, d_h, d_c, requested[0])

    samples = [
        sample(Input=f32(9, 2).ragged([4, 0, 5]), WeightList=_weights("LSTM", 3, 2), mode="LSTM", hidden_size=3),
        sample(Input=f32(7, 3).ragged([2, 1], [3, 0, 4]), InitHidden=f32(4, 3, 2), InitCell=f32(4, 3, 2), WeightList=_weights("LSTM", 2, 3, 4, 2),
               mode="LSTM", hidden_size=2, num_layers=2, is_bidirec=True, dropout_prob=0.4, seed=7),
        sample(Input=f32(9, 2).ragged([4, 0, 5]), InitHidden=f32(2, 3, 4), WeightList=_weights("GRU", 4, 2, 2, 2), mode="GRU", hidden_size=4, is_bidirec=True),
        sample(Input=f32(8, 3).ragged([5, 1, 2]), WeightList=_weights("RNN_RELU", 4, 3, 2), mode="RNN_RELU", hidden_size=4, num_layers=2),
        sample(Input=f32(0, 3).ragged([0, 0]), WeightList=_weights("GRU", 4, 3), mode="GRU", hidden_size=4),
        sample(Input=f32(0, 3).ragged([]), WeightList=_weights("LSTM", 4, 3), mode="LSTM", hidden_size=4),
    ]  # fmt: skip
    rejects = [
        reject(Input=f32(9, 2).ragged([4, 5]), WeightList=_weights("GRU", 3, 4), hidden_size=3, mode="GRU", says="the weights of unit 0"),
        reject(Input=f32(9, 2).ragged([4, 5]), InitCell=f32(1, 2, 3), WeightList=_weights("GRU", 3, 2), hidden_size=3, mode="GRU", says="InitCell is of LSTM"),
        reject(Input=f32(9, 2).ragged([4, 5]), InitHidden=f32(1, 3, 3), WeightList=_weights("GRU", 3, 2), hidden_size=3, mode="GRU",
               says="InitHidden must be [1, 2, 3]"),
    ]  # fmt: skip


@data_class(frozen=True)
class Dense:
    """The schedules of dense sequences, for one run."""

    made: dict[Any, StepSchedule]
    time: int
    batch: int
    lengths: Tensor | None
    device: Any

    @property
    def within(self) -> tuple[int, int] | None:
        return self.time, self.batch

    @property
    def full(self) -> tuple[int, int] | None:
        return None if self.lengths is not None else self.within

    def __call__(self, reverse: bool, cutter: StepGrouping | None) -> StepSchedule:
        key = (reverse, cutter)
        schedule = self.made.get(key)
        if schedule is None:
            schedule = self.made[key] = StepSchedule.dense(self.time, self.batch, self.lengths, self.device, reverse, cutter)
        return schedule


@data_class(frozen=True)
class Ragged:
    """The schedules of ragged rows, kept with their offsets."""

    offsets: Offsets
    within: tuple[int, int] | None = None
    full: tuple[int, int] | None = None

    def __call__(self, reverse: bool, cutter: StepGrouping | None) -> StepSchedule:
        return StepSchedule.of(self.offsets, reverse, cutter)
