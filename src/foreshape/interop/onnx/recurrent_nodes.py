"""LSTM, GRU, RNN: the usual form is `rnn`, with the gates in its order; others are written with plain ops, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from foreshape import layer
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.onnx.subgraph_nodes import entry, rounds_over
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.spec import FP32, FP64, INT64

_GATES = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2], "RNN": [0]}
"""ONNX has the gates in the orders i, o, f, c and z, r, h: the place there of each of ours, i, f, c, o and r, z, h."""
_DEFAULT = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_NUMBERS = {"LeakyRelu": (0.01, 0.0), "HardSigmoid": (0.2, 0.5), "ScaledTanh": (1.0, 1.0), **dict.fromkeys(("ThresholdedRelu", "Elu", "Affine"), (1.0, 0.0))}
"""Activations with alpha, and their alpha and beta where none are given."""
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


@onnx("LSTM", "GRU", "RNN")
def recurrent(c: Call) -> Any:
    """Operands X, W, R, B, lengths, the first state; of LSTM the first cell and peepholes."""
    kind, direction = c.node.operator, c.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    batch_first = bool(c.attribute("layout", 0))
    of = c.x().spec.known_dtype
    x = c.cast(c.x(), of if of in (FP32, FP64) else FP32)
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
    return (c.cast(out, of), *(c.cast(s, of) for s in states))


@onnx("DynamicQuantizeLSTM", domain="com.microsoft")
def quantized_lstm(c: Call) -> Any:
    """Import an LSTM with weights of 8 bits, [directions, entries, gates]: by floats, since the input's rounding would mix the rows of a batch."""
    wide = [_wide_weights(c, at, scale) for at, scale in ((1, 8), (2, 10))]
    return c.through("LSTM", [c.value(0), *wide, *(c.value(at) for at in range(3, 8))], 14, **c.node.attributes)


def _wide_weights(c: Call, at: int, scale: int) -> OnnxConstant | Variable:
    """Return weights as floats, [directions, gates, entries]; each direction has one scale and zero point, or one for each gate's row."""
    given, numbers = c.value(at), [c.constant(operand) if c.has(operand) else 0 for operand in (at, scale, scale + 1)]
    if isinstance(given, OnnxConstant) and not any(n is None for n in numbers):
        weights, by, shift = (np.asarray(n) for n in numbers)
        by, shift = (n.reshape(weights.shape[0], 1, -1) if n.size > 1 else n.reshape(-1) for n in (by, shift))
        made = (weights.astype("float32") - shift.astype("float32")) * by
        return OnnxConstant(given.name, None, np.ascontiguousarray(made.transpose(0, 2, 1)), uses=True)
    wide = c.cast(c.x(at), FP32)
    directions = c.x(scale).spec.known_dims[0]
    if c.has(scale + 1):
        wide = wide - c.reshape(c.cast(c.x(scale + 1), FP32), [directions, 1, -1])  # pyright: ignore[reportArgumentType]
    wide = wide * c.reshape(c.x(scale), [directions, 1, -1])  # pyright: ignore[reportArgumentType]
    return c.transpose(wide, [0, 2, 1])


def _peepholes(c: Call) -> bool:
    if c.node.operator != "LSTM" or not c.has(7):
        return False
    known = c.constant(7)
    return known is None or bool(np.any(known))


def _first_state(c: Call, net: _Net, at: int) -> Variable:
    """Return the state before the first step, [directions, batch, hidden]."""
    given = c.optional(at)
    if given is not None:
        given = c.cast(given, net.x.spec.known_dtype)
        return c.transpose(given, [1, 0, 2]) if net.batch_first else given
    attrs = {"shape": [net.directions, -1, net.hidden], "input_dim_idx": 1, "output_dim_idx": 1, "dtype": net.x.spec.known_dtype.code, "value": 0.0}
    return c.op("fill_constant_batch_size_like", attrs, Input=net.x)


# --- by rnn


def _part(c: Call, net: _Net, at: int, direction: int, half: int | None = None) -> Variable:
    """Return the weights of a direction with the gates in our order; of biases the first or second ``half``.

    Weights of the file are put in order here, and are parameters; others by ops.
    """
    order, given = _GATES[net.kind], c.value(at)
    known = c.constant(at) if isinstance(given, OnnxConstant) and (given.record is None or given.record.code != 16) else None
    if isinstance(given, OnnxConstant) and known is not None:
        held = known[direction].reshape(1 if half is None else 2, len(order), net.hidden, -1)[half or 0][order]
        held = np.ascontiguousarray(held.reshape(len(order) * net.hidden, -1) if half is None else held.reshape(-1))
        name = f"{given.name}.{direction}" + ("" if half is None else f".{half}")
        return c.cast(c.importer.variable(OnnxConstant(name, None, held, uses=True)), net.x.spec.known_dtype)
    x = entry(c, c.cast(c.x(at), net.x.spec.known_dtype), 0, direction, False)
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
    turned = net.reverse and not doubled
    units = [0, 0] if doubled else [*range(net.directions)]
    x = layer.flip(net.x, [0]) if turned else net.x
    size = len(_GATES[net.kind]) * net.hidden
    weights = [_part(c, net, at, d) for d in units for at in (1, 2)]
    none = None if c.has(3) else c.full([size], x.spec.known_dtype, 0.0)
    weights += [_part(c, net, 3, d, half) if none is None else none for d in units for half in (0, 1)]
    states = [_first_state(c, net, at) for at in ((5, 6) if net.kind == "LSTM" else (5,))]
    if doubled:
        states = [layer.concat([s, s], 0) for s in states]
    mode = {"LSTM": "LSTM", "GRU": "GRU", "RNN": f"RNN_{net.activations[0].upper()}"}[net.kind]
    attrs = {"mode": mode, "hidden_size": net.hidden, "input_size": x.spec.known_dims[2], "is_bidirec": len(units) == 2, "is_test": False}
    attrs = {k: v for k, v in attrs.items() if k != "input_size" or isinstance(v, int)}
    out, _, given, *_ = c.op("rnn", attrs, Input=x, PreState=states, WeightList=weights, SequenceLength=net.lengths)
    last: list[Variable] = [given] if isinstance(given, Variable) else [*given]
    out = c.transpose(c.reshape(out, [0, 0, len(units), net.hidden]), [0, 2, 1, 3])
    if doubled:
        one = {"starts": [1], "ends": [2], "infer_flags": [1]}
        return c.op("slice", {"axes": [1], **one}, Input=out), [c.op("slice", {"axes": [0], **one}, Input=s) for s in last]
    return layer.flip(out, [0]) if turned else out, last


# --- step by step


def _activations(c: Call, net: _Net) -> list[list[Activation]]:
    """Return the activations of each direction. Alphas and betas go, in order, to the activations with such numbers."""
    alphas, betas = iter(c.attribute("activation_alpha") or ()), iter(c.attribute("activation_beta") or ())
    known = {n.lower(): n for n in ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", *_NUMBERS)}
    found: list[Activation] = []
    for given in net.activations:
        name = known.get(given.lower())
        if name is None:
            raise Refused(f"the activation {given[:60]}")
        alpha, beta = _NUMBERS.get(name, (0.0, 0.0))
        alpha = next(alphas, alpha) if name in _NUMBERS else alpha
        beta = next(betas, beta) if name in _BETA else beta
        found.append(_activation(c, name, float(alpha), float(beta), net.clip))
    each = len(found) // net.directions
    if each != len(_DEFAULT[net.kind]) or each * net.directions != len(found):
        raise Refused(f"{len(found)} activations for {net.directions} directions")
    return [found[d * each : (d + 1) * each] for d in range(net.directions)]


def _activation(c: Call, name: str, alpha: float, beta: float, clip: float | None) -> Activation:
    named: dict[str, dict[str, Any]] = {"LeakyRelu": {"alpha": alpha}, "Elu": {"alpha": alpha}, "ThresholdedRelu": {"threshold": alpha}}
    named |= {"HardSigmoid": {"slope": alpha, "offset": beta}, "Affine": {"scale": alpha, "bias": beta}, "ScaledTanh": {"scale_a": beta, "scale_b": alpha}}
    attrs = named.get(name, {})
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
    first = [_first_state(c, net, 5 + at) for at in range(count)]
    outs: list[Variable] = []
    lasts: list[list[Variable]] = [[] for _ in range(count)]
    for d in range(net.directions):
        back = net.reverse or d == 1
        out, last = _one_direction(c, net, d, back, [entry(c, s, 0, d, False) for s in first], activations[d])
        outs.append(out)
        for into, value in zip(lasts, last, strict=True):
            into.append(value)
    return layer.stack(outs, 1), [layer.stack(parts, 0) for parts in lasts]


def _one_direction(c: Call, net: _Net, d: int, back: bool, state: list[Variable], activations: list[Activation]) -> tuple[Variable, list[Variable]]:
    of = net.x.spec.known_dtype
    weight, recurrent_weight = (entry(c, c.cast(c.x(at), of), 0, d, False) for at in (1, 2))
    gates = len(_GATES[net.kind])
    biases: list[Variable] | None = None
    if c.has(3):
        biases = [*layer.split(entry(c, c.cast(c.x(3), of), 0, d, False), 2, 0)]
    products = layer.matmul(net.x, weight, transpose_y=True)
    if biases is not None:
        products = products + biases[0]
    peepholes = [*layer.split(entry(c, c.cast(c.x(7), of), 0, d, False), 3, 0)] if _peepholes(c) else []
    cell = _Cell(c, net, gates, recurrent_weight, None if biases is None else biases[1], peepholes, activations)
    steps = None
    if net.lengths is not None:
        steps = c.unsqueeze(c.cast(net.lengths, INT64), 1)

    def step(at: Any, values: list[Variable]) -> tuple[list[Variable], list[Variable]]:
        new = cell(entry(c, products, 0, at, back), values)
        if steps is None:
            return new, [new[0]]
        inside = _number(c, net, at, back) < steps  # [batch, 1]
        kept = c.cast(inside, of)
        held = [layer.where(inside, n, old) for n, old in zip(new, values, strict=True)]
        return held, [new[0] * kept]

    last, stacks = rounds_over(c, net.x, 0, state, step, 1, 20)
    return layer.flip(stacks[0], [0]) if back else stacks[0], last


def _number(c: Call, net: _Net, at: int | Variable, back: bool) -> Variable:
    """Return the place in time of a step, int64 [1]."""
    length = net.x.spec.known_dims[0]
    if isinstance(at, int):
        return c.full([1], INT64, length - 1 - at if back and isinstance(length, int) else at)
    if not back:
        return at
    last = layer.slice(c.shape_of(net.x), [0], [0], [1])
    return layer.scale(last - at, 1.0, -1.0)


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
            more = layer.split(self._times(hidden, *self.parts[0]), 2, 1)
            z, r = of_gates(self._sum(z, more[0])), of_gates(self._sum(r, more[1]))
            new = of_new(self._sum(new, self._times(self._product(r, hidden), *self.parts[1])))
        else:
            more = self._split(self._times(hidden, self.weight, self.bias))
            z, r = of_gates(self._sum(z, more[0])), of_gates(self._sum(r, more[1]))
            new = of_new(self._sum(new, self._product(r, more[2])))
        return [self._sum(new, self._product(z, hidden - new))]
