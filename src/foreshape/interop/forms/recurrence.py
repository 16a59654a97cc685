"""Recurrent layers, in the other formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from foreshape import layer
from foreshape.core.spec import BOOL, FP32, FP64, INT32, INT64
from foreshape.interop.forms.blocks import entry, rounds_over
from foreshape.interop.forms.creation import to_onnx_filled
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.higher_order import scanned
from foreshape.interop.torch.open_size import OpenSize, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, number_code
from foreshape.language.program.variable import Variable

# --- from ONNX


_GATES = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2], "RNN": [0]}
"""ONNX has the gates in the orders i, o, f, c and z, r, h: the place there of each of ours, i, f, c, o and r, z, h."""


_DEFAULT = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


_NUMBERS = {"LeakyRelu": (0.01, 0.0), "HardSigmoid": (0.2, 0.5), "ScaledTanh": (1.0, 1.0), **dict.fromkeys(("ThresholdedRelu", "Elu", "Affine"), (1.0, 0.0))}
"""Activations with alpha, and their alpha and beta where none are given."""


_UNCLIPPED_CELL = "unclipped_cell"
"""An attribute of ours, for an LSTM whose new cell goes unclipped into its activation, as onnxruntime's goes. The standard clips operands of activations."""


_BETA = ("HardSigmoid", "Affine", "ScaledTanh")


Activation = Callable[[Variable], Variable]


class _Net(NamedTuple):
    """A recurrent node: its operator, directions, hidden size, activations of each direction, clip, and its input [time, batch, features]."""

    kind: str
    directions: int
    reverse: bool
    hidden: int
    activations: list[str]
    clip: float | None
    x: Variable
    lengths: Variable | None
    batch_first: bool


@from_onnx("LSTM", "GRU", "RNN")
def from_onnx_recurrent(c: Call) -> Any:
    """Operands X, W, R, B, lengths, the first state; of LSTM the first cell and peepholes."""
    kind, direction = c.node.operator, c.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    batch_first = bool(c.attribute("layout", 0))
    dtype = c.x().spec.known_dtype
    x = c.cast(c.x(), dtype if dtype in (FP32, FP64) else FP32)
    x = c.transpose(x, [1, 0, 2]) if batch_first else x
    weights = c.x(2).spec.known_dims
    hidden = int(c.attribute("hidden_size", 0)) or weights[2]
    if not isinstance(hidden, int):
        raise Refused("a hidden size that is not known before the run")
    names = c.attribute("activations") or _DEFAULT[kind] * directions
    net = _Net(kind, directions, direction == "reverse", hidden, names, c.attribute("clip"), x, c.optional(4), batch_first)
    usual = [n.lower() for n in names] == [n.lower() for n in _DEFAULT[kind] * directions] or (kind == "RNN" and {n.lower() for n in names} == {"relu"})
    plain = usual and net.clip is None and not _peepholes(c) and not c.attribute("input_forget", 0)
    if plain and (kind != "GRU" or c.attribute("linear_before_reset", 0)):
        out, states = _by_op(c, net)
    else:
        out, states = _by_steps(c, net)
    if batch_first:
        out, states = c.transpose(out, [2, 0, 1, 3]), [c.transpose(s, [1, 0, 2]) for s in states]
    return (c.cast(out, dtype), *(c.cast(s, dtype) for s in states))


@from_onnx("DynamicQuantizeLSTM", domain="com.microsoft")
def quantized_lstm(c: Call) -> Any:
    """Import an LSTM with weights of 8 bits, [directions, entries, gates]: by floats, since the input's rounding would mix the rows of a batch."""
    wide = [_wide_weights(c, index, scale) for index, scale in ((1, 8), (2, 10))]
    return c.through("LSTM", [c.value(0), *wide, *(c.value(index) for index in range(3, 8))], 14, **c.node.attributes, **{_UNCLIPPED_CELL: 1})


def _wide_weights(c: Call, index: int, scale: int) -> OnnxConstant | Variable:
    """Return weights as floats, [directions, gates, entries]; each direction has one scale and zero point, or one for each gate's row."""
    value, numbers = c.value(index), [c.constant(operand) if c.has(operand) else 0 for operand in (index, scale, scale + 1)]
    if isinstance(value, OnnxConstant) and not any(n is None for n in numbers):
        weights, factor, shift = (np.asarray(n) for n in numbers)
        factor, shift = (n.reshape(weights.shape[0], 1, -1) if n.size > 1 else n.reshape(-1) for n in (factor, shift))
        floats = (weights.astype("float32") - shift.astype("float32")) * factor
        return OnnxConstant(value.name, None, np.ascontiguousarray(floats.transpose(0, 2, 1)), uses=True)
    wide = c.cast(c.x(index), FP32)
    directions = c.x(scale).spec.known_dims[0]
    if c.has(scale + 1):
        wide = wide - c.reshape(c.cast(c.x(scale + 1), FP32), [directions, 1, -1])  # pyright: ignore[reportArgumentType]
    wide = wide * c.reshape(c.x(scale), [directions, 1, -1])  # pyright: ignore[reportArgumentType]
    return c.transpose(wide, [0, 2, 1])


def _peepholes(c: Call) -> bool:
    if c.node.operator != "LSTM" or not c.has(7):
        return False
    weights = c.constant(7)
    return weights is None or bool(np.any(weights))


def _first_state(c: Call, net: _Net, index: int) -> Variable:
    """Return the state before the first step, [directions, batch, hidden]."""
    state = c.optional(index)
    if state is not None:
        state = c.cast(state, net.x.spec.known_dtype)
        return c.transpose(state, [1, 0, 2]) if net.batch_first else state
    attrs = {"shape": [net.directions, -1, net.hidden], "input_dim_idx": 1, "output_dim_idx": 1, "dtype": net.x.spec.known_dtype.code, "value": 0.0}
    return c.op("fill_constant_batch_size_like", attrs, Input=net.x)


def _part(c: Call, net: _Net, index: int, direction: int, half: int | None = None) -> Variable:
    """Return the weights of a direction with the gates in our order; of biases the first or second ``half``.

    Weights of the file are put in order here, and are parameters; others by ops.
    """
    order, value = _GATES[net.kind], c.value(index)
    constant = c.constant(index) if isinstance(value, OnnxConstant) and (value.record is None or value.record.code != 16) else None
    if isinstance(value, OnnxConstant) and constant is not None:
        array = constant[direction].reshape(1 if half is None else 2, len(order), net.hidden, -1)[half or 0][order]
        array = np.ascontiguousarray(array.reshape(len(order) * net.hidden, -1) if half is None else array.reshape(-1))
        name = f"{value.name}.{direction}" + ("" if half is None else f".{half}")
        return c.cast(c.importer.variable(OnnxConstant(name, None, array, uses=True)), net.x.spec.known_dtype)
    x = entry(c, c.cast(c.x(index), net.x.spec.known_dtype), 0, direction, False)
    size = len(order) * net.hidden
    if half is not None:
        x = layer.slice(x, [0], [half * size], [(half + 1) * size])
    if len(order) == 1:
        return x
    gates = layer.split(x, len(order), 0)
    return layer.concat([gates[g] for g in order], 0)


def _by_op(c: Call, net: _Net) -> tuple[Variable, list[Variable]]:
    """Write the net as `rnn`. In reverse alone it runs over the turned input, or, where lengths differ, as the second of two directions."""
    doubled = net.reverse and net.lengths is not None
    flipped = net.reverse and not doubled
    units = [0, 0] if doubled else [*range(net.directions)]
    x = layer.flip(net.x, [0]) if flipped else net.x
    size = len(_GATES[net.kind]) * net.hidden
    weights = [_part(c, net, index, d) for d in units for index in (1, 2)]
    none = None if c.has(3) else c.full([size], x.spec.known_dtype, 0.0)
    weights += [_part(c, net, 3, d, half) if none is None else none for d in units for half in (0, 1)]
    states = [_first_state(c, net, index) for index in ((5, 6) if net.kind == "LSTM" else (5,))]
    if doubled:
        states = [layer.concat([s, s], 0) for s in states]
    mode = {"LSTM": "LSTM", "GRU": "GRU", "RNN": f"RNN_{net.activations[0].upper()}"}[net.kind]
    attrs = {"mode": mode, "hidden_size": net.hidden, "input_size": x.spec.known_dims[2], "is_bidirec": len(units) == 2, "is_test": False}
    attrs = {k: v for k, v in attrs.items() if k != "input_size" or isinstance(v, int)}
    out, _, ends, *_ = c.op("rnn", attrs, Input=x, PreState=states, WeightList=weights, SequenceLength=net.lengths)
    last: list[Variable] = [ends] if isinstance(ends, Variable) else [*ends]
    out = c.transpose(c.reshape(out, [0, 0, len(units), net.hidden]), [0, 2, 1, 3])
    if doubled:
        bounds = {"starts": [1], "ends": [2], "infer_flags": [1]}
        return c.op("slice", {"axes": [1], **bounds}, Input=out), [c.op("slice", {"axes": [0], **bounds}, Input=s) for s in last]
    return layer.flip(out, [0]) if flipped else out, last


def _activations(c: Call, net: _Net) -> list[list[Activation]]:
    """Return the activations of each direction. Alphas and betas go, in order, to the activations with such numbers."""
    alphas, betas = iter(c.attribute("activation_alpha") or ()), iter(c.attribute("activation_beta") or ())
    names = {n.lower(): n for n in ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", *_NUMBERS)}
    functions: list[Activation] = []
    for number, activation in enumerate(net.activations):
        name = names.get(activation.lower())
        if name is None:
            raise Refused(f"the activation {activation[:60]}")
        alpha, beta = _NUMBERS.get(name, (0.0, 0.0))
        alpha = next(alphas, alpha) if name in _NUMBERS else alpha
        beta = next(betas, beta) if name in _BETA else beta
        is_unclipped = number % 3 == 2 and c.attribute(_UNCLIPPED_CELL, 0)
        functions.append(_activation(c, name, float(alpha), float(beta), None if is_unclipped else net.clip))
    count = len(functions) // net.directions
    if count != len(_DEFAULT[net.kind]) or count * net.directions != len(functions):
        raise Refused(f"{len(functions)} activations for {net.directions} directions")
    return [functions[d * count : (d + 1) * count] for d in range(net.directions)]


def _activation(c: Call, name: str, alpha: float, beta: float, clip: float | None) -> Activation:
    attributes: dict[str, dict[str, Any]] = {"LeakyRelu": {"alpha": alpha}, "Elu": {"alpha": alpha}, "ThresholdedRelu": {"threshold": alpha}}
    attributes |= {"HardSigmoid": {"slope": alpha, "offset": beta}, "Affine": {"scale": alpha, "bias": beta}, "ScaledTanh": {"scale_a": beta, "scale_b": alpha}}
    attrs = attributes.get(name, {})
    type = {"LeakyRelu": "leaky_relu", "ThresholdedRelu": "thresholded_relu", "HardSigmoid": "hard_sigmoid", "Affine": "scale"}.get(name, name.lower())

    def run(x: Variable) -> Variable:
        x = x if clip is None else layer.clip(x, -clip, clip)
        if name == "ScaledTanh":
            return layer.scale(layer.tanh(layer.scale(x, beta)), alpha)
        return c.op(type, attrs, X=x)

    return run


def _by_steps(c: Call, net: _Net) -> tuple[Variable, list[Variable]]:
    """Write the net with plain ops, one direction after the other."""
    activations = _activations(c, net)
    count = 2 if net.kind == "LSTM" else 1
    first = [_first_state(c, net, 5 + number) for number in range(count)]
    outs: list[Variable] = []
    lasts: list[list[Variable]] = [[] for _ in range(count)]
    for d in range(net.directions):
        back = net.reverse or d == 1
        out, last = _one_direction(c, net, d, back, [entry(c, s, 0, d, False) for s in first], activations[d])
        outs.append(out)
        for column, value in zip(lasts, last, strict=True):
            column.append(value)
    return layer.stack(outs, 1), [layer.stack(parts, 0) for parts in lasts]


def _one_direction(c: Call, net: _Net, d: int, back: bool, state: list[Variable], activations: list[Activation]) -> tuple[Variable, list[Variable]]:
    dtype = net.x.spec.known_dtype
    weight, recurrent_weight = (entry(c, c.cast(c.x(index), dtype), 0, d, False) for index in (1, 2))
    gates = len(_GATES[net.kind])
    biases: list[Variable] | None = None
    if c.has(3):
        biases = [*layer.split(entry(c, c.cast(c.x(3), dtype), 0, d, False), 2, 0)]
    products = layer.matmul(net.x, weight, transpose_y=True)
    if biases is not None:
        products = products + biases[0]
    peepholes = [*layer.split(entry(c, c.cast(c.x(7), dtype), 0, d, False), 3, 0)] if _peepholes(c) else []
    cell = _Cell(c, net, gates, recurrent_weight, None if biases is None else biases[1], peepholes, activations)
    steps = None
    if net.lengths is not None:
        steps = c.unsqueeze(c.cast(net.lengths, INT64), 1)

    def step(index: Any, values: list[Variable]) -> tuple[list[Variable], list[Variable]]:
        new = cell(entry(c, products, 0, index, back), values)
        if steps is None:
            return new, [new[0]]
        inside = _number(c, net, index, back) < steps  # [batch, 1]
        mask = c.cast(inside, dtype)
        states = [layer.where(inside, n, old) for n, old in zip(new, values, strict=True)]
        return states, [new[0] * mask]

    last, stacks = rounds_over(c, net.x, 0, state, step, 1, 20)
    return layer.flip(stacks[0], [0]) if back else stacks[0], last


def _number(c: Call, net: _Net, index: int | Variable, back: bool) -> Variable:
    """Return the place in time of a step, int64 [1]."""
    length = net.x.spec.known_dims[0]
    if isinstance(index, int):
        return c.full([1], INT64, length - 1 - index if back and isinstance(length, int) else index)
    if not back:
        return index
    last = layer.slice(c.shape_of(net.x), [0], [0], [1])
    return layer.scale(last - index, 1.0, -1.0)


class _Cell:
    """A step of a recurrent net: of products of the input with its weights [batch, gates hidden] and of the state to the next state."""

    def __init__(
        self, c: Call, net: _Net, gates: int, weight: Variable, bias: Variable | None, peepholes: list[Variable], activations: list[Activation]
    ) -> None:
        self.c, self.net, self.gates = c, net, gates
        self.weight, self.bias, self.peepholes, self.activations = weight, bias, peepholes, activations
        self.parts: list[tuple[Variable, Variable | None]] = []
        if net.kind == "GRU" and not c.attribute("linear_before_reset", 0):  # the last gate's product is of the state after the reset
            attrs = {"axis": 0, "sections": [2 * net.hidden, net.hidden]}
            two = c.op("split", attrs, X=weight)
            halves = (None, None) if bias is None else c.op("split", attrs, X=bias)
            self.parts = [*zip(two, halves, strict=True)]

    def __call__(self, x: Variable, state: list[Variable]) -> list[Variable]:
        return {"LSTM": self.lstm, "GRU": self.gru, "RNN": self.rnn}[self.net.kind](x, state)

    def _times(self, state: Variable, weight: Variable, bias: Variable | None) -> Variable:
        out = layer.matmul(state, weight, transpose_y=True)
        return out if bias is None else out + bias

    def _sum(self, x: Variable, y: Variable) -> Variable:
        return x + y

    def _product(self, x: Variable, y: Variable) -> Variable:
        return x * y

    def _split(self, x: Variable) -> list[Variable]:
        return [*layer.split(x, self.gates, 1)]

    def rnn(self, x: Variable, state: list[Variable]) -> list[Variable]:
        return [self.activations[0](self._sum(x, self._times(state[0], self.weight, self.bias)))]

    def lstm(self, x: Variable, state: list[Variable]) -> list[Variable]:
        hidden, cell = state
        i, o, f, new = self._split(self._sum(x, self._times(hidden, self.weight, self.bias)))
        of_gates, of_cell, of_hidden = self.activations
        if self.peepholes:
            i, f = self._sum(i, self._product(cell, self.peepholes[0])), self._sum(f, self._product(cell, self.peepholes[2]))
        i = of_gates(i)
        f = layer.scale(i, -1.0, 1.0) if self.c.attribute("input_forget", 0) else of_gates(f)
        cell = self._sum(self._product(f, cell), self._product(i, of_cell(new)))
        if self.peepholes:
            o = self._sum(o, self._product(cell, self.peepholes[1]))
        return [self._product(of_gates(o), of_hidden(cell)), cell]

    def gru(self, x: Variable, state: list[Variable]) -> list[Variable]:
        (hidden,) = state
        of_gates, of_new = self.activations
        z, r, new = self._split(x)
        if self.parts:
            products = layer.split(self._times(hidden, *self.parts[0]), 2, 1)
            z, r = of_gates(self._sum(z, products[0])), of_gates(self._sum(r, products[1]))
            new = of_new(self._sum(new, self._times(self._product(r, hidden), *self.parts[1])))
        else:
            products = self._split(self._times(hidden, self.weight, self.bias))
            z, r = of_gates(self._sum(z, products[0])), of_gates(self._sum(r, products[1]))
            new = of_new(self._sum(new, self._product(r, products[2])))
        return [self._sum(new, self._product(z, hidden - new))]


# --- to ONNX


ORDERS: Final[dict[str, tuple[str, Sequence[int]]]] = {
    "LSTM": ("LSTM", (0, 3, 1, 2)),
    "GRU": ("GRU", (1, 0, 2)),
    "RNN_TANH": ("RNN", (0,)),
    "RNN_RELU": ("RNN", (0,)),
}
"""Our mode -> ONNX's operator, and the places of our gates in its order."""


def reordered(w: WrittenOp, slot: str, units: Sequence[Sequence[int]], order: Sequence[int]) -> OnnxValue:
    """Return the weights of several units, one of several each joined along its rows, as one tensor with a unit in each row, its gates in another order."""
    import numpy

    arrays = [[w.known(slot, index) for index in unit] for unit in units]
    if all(k is not None for unit in arrays for k in unit):

        def arranged(k: Any) -> Any:
            parts = numpy.split(k, len(order))
            return numpy.concatenate([parts[place] for place in order])

        return w.array(numpy.stack([numpy.concatenate([arranged(k) for k in unit]) for unit in arrays]))
    rows: list[OnnxValue] = []
    for unit in units:
        parts: list[OnnxValue] = []
        for index in unit:
            x, size = w.x(slot, index), w.spec(slot, index).known_dims[0]
            if not isinstance(size, int):
                raise Refused(f"{slot} must have a known number of hidden units")
            step = size // len(order)
            parts += [w.slice(x, 0, gate * step, (gate + 1) * step) for gate in order]
        rows.append(w.unsqueeze(w.node("Concat", *parts, axis=0) if len(parts) > 1 else parts[0], 0))
    return w.node("Concat", *rows, axis=0) if len(rows) > 1 else rows[0]


@to_onnx()
def _to_onnx_rnn(w: WrittenOp) -> Any:
    states = [w.x("PreState", index) for index in range(len(w.op.input_slots["PreState"]))]
    dims = [d for d in w.result("Out").known_dims if isinstance(d, int)]
    if 0 in dims[:2] and len(dims) == 3:  # onnxruntime ends the process over nothing
        return to_onnx_filled(w, dims, 0.0, w.dtype("Input")), None, [w.node("Identity", s) for s in states], None
    lengths = w.cast(w.x("SequenceLength"), w.dtype("SequenceLength"), INT32) if w.has("SequenceLength") else None
    out, last = recurrent_layers(w, w.x("Input"), lengths, states)
    return out, None, last, None


def recurrent_layers(w: WrittenOp, x: OnnxValue, lengths: OnnxValue | None, states: Sequence[OnnxValue | None]) -> tuple[OnnxValue, list[OnnxValue]]:
    """Append all layers over ``x`` [time, batch, features]; return [time, batch, directions hidden], and the last states [units, batch, hidden]."""
    attrs = w.of
    if attrs.dropout_prob and not attrs.is_test and attrs.num_layers > 1:
        raise Refused("dropout in training")
    directions, layers = 2 if attrs.is_bidirec else 1, int(attrs.num_layers)
    units = directions * layers
    ends: list[list[OnnxValue]] = []
    for level in range(layers):
        level_units = range(level * directions, (level + 1) * directions)
        weights = reordered(w, "WeightList", [[2 * u] for u in level_units], ORDERS[attrs.mode][1])
        recurrent = reordered(w, "WeightList", [[2 * u + 1] for u in level_units], ORDERS[attrs.mode][1])
        biases = reordered(w, "WeightList", [[2 * units + 2 * u, 2 * units + 2 * u + 1] for u in level_units], ORDERS[attrs.mode][1])
        initial = [s if s is None or layers == 1 else w.slice(s, 0, level * directions, (level + 1) * directions) for s in states]
        x, last = recurrent_layer(w, attrs.mode, x, (weights, recurrent, biases), lengths, initial, directions)
        ends.append(last)
    return x, [w.node("Concat", *listed, axis=0) if layers > 1 else listed[0] for listed in zip(*ends, strict=True)]


def recurrent_layer(
    w: WrittenOp,
    mode: str,
    x: OnnxValue,
    weights: Sequence[OnnxValue | None],
    lengths: OnnxValue | None,
    initial: Sequence[OnnxValue | None],
    directions: int,
    reverse: bool = False,
    hidden: int = 0,
    **attributes: Any,
) -> tuple[OnnxValue, list[OnnxValue]]:
    """Append one layer over ``x`` [time, batch, features]; return [time, batch, directions hidden], and the last states [directions, batch, hidden]."""
    operator = ORDERS[mode][0]
    size = hidden or int(w.of.hidden_size)
    settings: dict[str, Any] = {"direction": "bidirectional" if directions == 2 else "reverse" if reverse else "forward", "hidden_size": size} | attributes
    if operator == "GRU":
        settings.setdefault("linear_before_reset", 1)
    elif mode == "RNN_RELU":
        settings["activations"] = ["Relu"] * directions
    y, *last = w.nodes(operator, 3 if operator == "LSTM" else 2, x, *weights, lengths, *initial, **settings)
    if directions == 1:
        return w.squeeze(y, 1), last
    return w.node("Reshape", w.transpose(y, (0, 2, 1, 3)), w.ints(0, 0, directions * size)), last


def weights_before_reset(w: WrittenOp) -> tuple[OnnxValue, OnnxValue, int]:
    """Return the matrices of u and r, and of c, from the numbers of both."""
    size = w.spec("Weight").known_dims[0]
    if not isinstance(size, int):
        raise Refused("Weight must have a known number of hidden units")
    constant = w.known("Weight")
    split = 2 * size * size
    if constant is not None:
        numbers = constant.reshape(-1)
        return w.array(numbers[:split].reshape(size, 2 * size)), w.array(numbers[split:].reshape(size, size)), size
    flat = w.reshape(w.x("Weight"), -1)
    return w.reshape(w.slice(flat, 0, 0, split), size, 2 * size), w.reshape(w.slice(flat, 0, split, split + size * size), size, size), size


_ACTIVATIONS: Final = ("Identity", "Sigmoid", "Tanh", "Relu")


@to_onnx()
def _to_onnx_gru_unit(w: WrittenOp) -> Any:
    gate_weight, candidate_weight, size = weights_before_reset(w)
    x, previous = w.x("Input"), w.x("HiddenPrev")
    if w.has("Bias"):
        x = w.node("Add", x, w.x("Bias"))
    gate, candidate = (_ACTIVATIONS[int(number)] for number in (w.of.gate_activation, w.of.activation))
    gates = w.node(gate, w.node("Add", w.slice(x, 1, 0, 2 * size), w.node("MatMul", previous, gate_weight)))
    u, r = w.slice(gates, 1, 0, size), w.slice(gates, 1, size, 2 * size)
    left = w.node("Mul", r, previous)
    c = w.node(candidate, w.node("Add", w.slice(x, 1, 2 * size, 3 * size), w.node("MatMul", left, candidate_weight)))
    old, new = (c, previous) if w.of.origin_mode else (previous, c)
    state = w.node("Add", old, w.node("Mul", u, w.node("Sub", new, old)))
    return w.node("Concat", u, r, c, axis=1), left, state


@to_onnx()
def _to_onnx_lstm_unit(w: WrittenOp) -> Any:
    size = w.spec("C_prev").known_dims[1]
    if not isinstance(size, int):
        raise Refused("C_prev must have a known number of hidden units")
    i, f, o, g = [w.slice(w.x("X"), 1, gate * size, (gate + 1) * size) for gate in range(4)]
    if w.of.forget_bias:
        f = w.node("Add", f, w.like(w.of.forget_bias, "X"))
    carried = w.node("Mul", w.x("C_prev"), w.node("Sigmoid", f))
    c = w.node("Add", carried, w.node("Mul", w.node("Sigmoid", i), w.node("Tanh", g)))
    return c, w.node("Mul", w.node("Sigmoid", o), w.node("Tanh", c))


# --- from torch


@from_torch("lstm", "gru", "rnn_tanh", "rnn_relu", "foreshape.lstm", "foreshape.gru", "foreshape.rnn_tanh", "foreshape.rnn_relu")
def _from_torch_recurrent(
    t: TorchCall,
    x: Variable,
    states: Any,
    weights: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    first = list(states) if is_list(states) else [states]
    dtype = x.spec.known_dtype
    if dtype not in (FP32, FP64):  # computed in single precision
        wide = [t.cast(tensor, FP32) for tensor in first], [t.cast(tensor, FP32) for tensor in weights]
        results = _from_torch_recurrent(t, t.cast(x, FP32), *wide, has_biases, num_layers, dropout, train, bidirectional, batch_first)
        return [t.cast(tensor, dtype) for tensor in results]
    x = layer.transpose(x, [1, 0, 2]) if batch_first else x
    if len(weights) == (5 if has_biases else 3) * num_layers * (2 if bidirectional else 1):
        out, last = _projected(t, x, first, weights, has_biases, num_layers, dropout if train else 0.0, bidirectional)
        return [layer.transpose(out, [1, 0, 2]) if batch_first else out, *last]
    attrs, ordered = from_torch_recurrent_attributes(t.name, x, weights, has_biases, num_layers, dropout, train, bidirectional)
    out, _, last, _ = t.op("rnn", attrs, Input=x, PreState=first, WeightList=ordered)
    return [layer.transpose(out, [1, 0, 2]) if batch_first else out, *last]


def _projected(
    t: TorchCall, x: Variable, states: list[Variable], weights: list[Variable], biases: bool, layers: int, dropout: float, bidirectional: bool
) -> tuple[Variable, list[Variable]]:
    """Return results and last states of an LSTM whose hidden state is projected (Sak et al., 2014), step by step."""
    count, directions = 5 if biases else 3, 2 if bidirectional else 1
    hidden, cell = (layer.unstack(state, 0) for state in states)
    last: list[tuple[Variable, Variable]] = []
    for level in range(layers):
        outs: list[Variable] = []
        for unit in range(level * directions, (level + 1) * directions):
            input_weight, state_weight, *bias, projection = weights[count * unit : count * (unit + 1)]
            inputs = layer.flip(x, [0]) if unit % directions else x
            gates = t.op("matmul_v2", {"trans_y": True}, X=inputs, Y=input_weight)
            gates = layer.add(gates, layer.add(bias[0], bias[1])) if bias else gates

            def step(
                state: Sequence[Variable], rows: Sequence[Variable], state_weight: Variable = state_weight, projection: Variable = projection
            ) -> list[Variable]:
                h, c = state
                i, f, g, o = layer.split(layer.add(rows[0], t.op("matmul_v2", {"trans_y": True}, X=h, Y=state_weight)), 4, 1)
                c = layer.add(layer.multiply(layer.sigmoid(f), c), layer.multiply(layer.sigmoid(i), layer.tanh(g)))
                h = t.op("matmul_v2", {"trans_y": True}, X=layer.multiply(layer.sigmoid(o), layer.tanh(c)), Y=projection)
                return [h, c, h]

            h, c, out = scanned(step, [hidden[unit], cell[unit]], [gates], 1)
            outs.append(layer.flip(out, [0]) if unit % directions else out)
            last.append((h, c))
        x = layer.concat(outs, 2) if bidirectional else outs[0]
        if dropout and level + 1 < layers:
            x = layer.dropout(x, float(dropout))
    return x, [layer.stack(list(column), 0) for column in zip(*last, strict=True)]


def from_torch_recurrent_attributes(
    name: str, x: Variable, weights: list[Variable], has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool
) -> tuple[dict[str, Any], list[Variable]]:
    """Return attributes and weights of an ``rnn`` op: all weights first, then all biases, layer by layer and direction by direction."""
    mode = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN_TANH", "rnn_relu": "RNN_RELU"}[name]
    directions = 2 if bidirectional else 1
    count = 4 if has_biases else 2
    if len(weights) != count * num_layers * directions:
        raise Refused("recurrent layers with projections")
    if not has_biases:
        filled: list[Variable] = []
        for index in range(0, len(weights), 2):
            zeros = layer.fill_constant([weights[index].spec.known_dims[0]], x.dtype, 0.0)
            filled += [weights[index], weights[index + 1], zeros, zeros]
        weights = filled
    ordered = [weights[4 * k + j] for k in range(num_layers * directions) for j in (0, 1)] + [
        weights[4 * k + j] for k in range(num_layers * directions) for j in (2, 3)
    ]
    attrs = {"mode": mode, "hidden_size": int(weights[1].spec.known_dims[-1]), "num_layers": num_layers, "is_bidirec": bidirectional}
    attrs |= {"dropout_prob": float(dropout), "is_test": not train, "input_size": int(x.spec.known_dims[-1])}
    return attrs, ordered


class Packing(NamedTuple):
    """A packing met in the import.

    ``x``: the padded sequences, step by step; None where only the batch sizes are known. ``places``: step and sequence of each row.
    """

    sizes: Variable
    rows: Variable | None
    x: Variable | None
    places: Variable
    lengths: Variable


@from_torch("foreshape.pack")
def _pack(t: TorchCall, x: Variable, lengths: Variable, batch_first: bool) -> Any:
    x = layer.transpose(x, [1, 0, *range(2, t.rank(x))]) if batch_first else x
    steps = size_of(x, 0)
    mask = layer.transpose(layer.sequence_mask(lengths, steps.variable if isinstance(steps, OpenSize) else steps, INT64), [1, 0])
    places = layer.nonzero(mask)
    rows = layer.gather_nd(x, places)
    longest = layer.reshape(layer.reduce_max(lengths), [1])
    sizes = layer.slice(layer.reduce_sum(mask, 1), [0], [0], [longest])
    t.importer.packings.append(Packing(sizes, rows, x, places, lengths))
    return [rows, sizes]


def _packing(t: TorchCall, sizes: Variable, sequences: Any) -> Packing:
    """Return the packing of some batch sizes: a former one, or one of these numbers alone."""
    for packing in t.importer.packings:
        if packing.sizes is sizes:
            return packing
    mask = layer.sequence_mask(sizes, sequences.variable if isinstance(sequences, OpenSize) else sequences, INT64)
    packing = Packing(sizes, None, None, layer.nonzero(mask), layer.reduce_sum(mask, 0))
    t.importer.packings.append(packing)
    return packing


def _spread(t: TorchCall, rows: Variable, packing: Packing, steps: Any, sequences: Any) -> Variable:
    """Return rows as padded sequences, ``[steps, sequences, ...]``, with zeros."""
    return layer.scatter_nd(packing.places, rows, t.sizes([steps, sequences, *(size_of(rows, axis) for axis in range(1, t.rank(rows)))]))


@from_torch("foreshape.pad_packed")
def _pad(t: TorchCall, rows: Variable, sizes: Variable, sequences: Any, batch_first: bool, value: float, steps: Any) -> Any:
    packing = _packing(t, sizes, sequences)
    padded = _spread(t, rows, packing, steps, sequences)
    if value:
        ones = layer.fill_constant(t.sizes([size_of(packing.places, 0)]), INT64, 1)
        mask = layer.scatter_nd(packing.places, ones, t.sizes([steps, sequences]))
        mask = layer.unsqueeze(layer.cast(mask, BOOL), [*range(2, t.rank(padded))])
        padded = t.where(mask, padded, t.tensor(float(value), padded.dtype))
    return [layer.transpose(padded, [1, 0, *range(2, t.rank(padded))]) if batch_first else padded, layer.assign(packing.lengths)]


@from_torch("foreshape.packed_lstm", "foreshape.packed_gru", "foreshape.packed_rnn_tanh", "foreshape.packed_rnn_relu")
def _from_torch_packed_recurrent(t: TorchCall, rows: Variable, sizes: Variable, states: Any, weights: Any, *settings: Any) -> Any:
    sequences = size_of(states[0], 1)
    packing = _packing(t, sizes, sequences)
    if packing.rows is rows and packing.x is not None:
        x = packing.x
    else:
        x = _spread(t, rows, packing, size_of(sizes if packing.x is None else packing.x, 0), sequences)
    if t.rank(x) != 3:
        raise Refused("packed rows that are no vectors")
    attrs, ordered = from_torch_recurrent_attributes(t.name.removeprefix("packed_"), x, weights, *settings)
    out, _, last, _ = t.op("rnn", attrs, Input=x, PreState=states, WeightList=ordered, SequenceLength=packing.lengths)
    return [layer.gather_nd(out, packing.places), *last]


# --- to torch's code


@to_torch(by_mode=True)
def _to_torch_rnn(w: PlainOp) -> Any:
    states, weights = w.all("PreState"), w.all("WeightList")
    directions, count = 2 if w.of.is_bidirec else 1, int(w.of.num_layers)
    if w.has("SequenceLength"):
        code = w.call(
            helpers.layers.recurrent_with_lengths,
            w.x("Input"),
            f"[{', '.join(states)}]",
            f"[{', '.join(weights)}]",
            w.x("SequenceLength"),
            f'"{w.of.mode}"',
            number_code(w.of.dropout_prob),
            str(not w.of.is_test and "self.training"),
            w.of.is_bidirec,
        )
        values = w.several(code, 1 + len(states))
        return values[0], None, values[1:], None
    units: int = directions * count
    drops = "0.0, False" if w.of.is_test else f"{number_code(w.of.dropout_prob)}, self.training"
    ordered = [t for u in range(units) for t in (weights[2 * u], weights[2 * u + 1], weights[2 * units + 2 * u], weights[2 * units + 2 * u + 1])]
    function = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}[w.of.mode]
    state = f"({', '.join(states)})" if w.of.mode == "LSTM" else states[0]
    settings = f"True, {count}, {drops}, {w.of.is_bidirec}, False"
    values = w.several(f"torch.{function}({w.x('Input')}, {state}, [{', '.join(ordered)}], {settings})", 1 + len(states))
    return values[0], None, values[1:], None


@to_torch()
def _to_torch_lstm_unit(w: PlainOp) -> Any:
    return Several(w.call(helpers.layers.lstm_unit, w.x("X"), w.x("C_prev"), number_code(w.of.forget_bias)))


@to_torch()
def _to_torch_row_conv(w: PlainOp) -> Any:
    offsets = w.offsets("X")
    if offsets is None:
        return w.call(helpers.layers.row_convolution, w.x("X"), w.x("Filter"))
    return w.call(helpers.ragged_rows.ragged_row_convolution, w.x("X"), w.x("Filter"), f"{offsets}.in_rows(-1)")
