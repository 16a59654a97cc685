"""Writing of recurrent layers, and of single steps of them. Our gates are i, f, g, o and r, z, n; ONNX's are i, o, f, g and z, r, n.

Parameters are put in order when they are written, other weights when the model runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from foreshape.interop.onnx.write.filling_ops import filled
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import INT32

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

    known = [[w.known(slot, at) for at in unit] for unit in units]
    if all(k is not None for unit in known for k in unit):

        def arranged(k: Any) -> Any:
            parts = numpy.split(k, len(order))
            return numpy.concatenate([parts[at] for at in order])

        return w.array(numpy.stack([numpy.concatenate([arranged(k) for k in unit]) for unit in known]))
    rows: list[OnnxValue] = []
    for unit in units:
        parts: list[OnnxValue] = []
        for at in unit:
            x, size = w.x(slot, at), w.spec(slot, at).known_dims[0]
            if not isinstance(size, int):
                raise Refused(f"{slot} must have a known number of hidden units")
            step = size // len(order)
            parts += [w.slice(x, 0, gate * step, (gate + 1) * step) for gate in order]
        rows.append(w.unsqueeze(w.node("Concat", *parts, axis=0) if len(parts) > 1 else parts[0], 0))
    return w.node("Concat", *rows, axis=0) if len(rows) > 1 else rows[0]


@writes("rnn")
def _rnn(w: WrittenOp) -> Any:
    states = [w.x("PreState", at) for at in range(len(w.op.input_slots["PreState"]))]
    dims = [d for d in w.result("Out").known_dims if isinstance(d, int)]
    if 0 in dims[:2] and len(dims) == 3:  # onnxruntime ends the process over nothing
        return filled(w, dims, 0.0, w.dtype("Input")), None, [w.node("Identity", s) for s in states], None
    lengths = w.cast(w.x("SequenceLength"), w.dtype("SequenceLength"), INT32) if w.has("SequenceLength") else None
    out, last = recurrent_layers(w, w.x("Input"), lengths, states)
    return out, None, last, None


def recurrent_layers(w: WrittenOp, x: OnnxValue, lengths: OnnxValue | None, states: Sequence[OnnxValue | None]) -> tuple[OnnxValue, list[OnnxValue]]:
    """Append all layers over ``x`` [time, batch, features]; return [time, batch, directions hidden], and the last states [units, batch, hidden]."""
    of = w.of
    if of.dropout_prob and not of.is_test and of.num_layers > 1:
        raise Refused("dropout in training")
    directions, layers = 2 if of.is_bidirec else 1, int(of.num_layers)
    units = directions * layers
    ends: list[list[OnnxValue]] = []
    for layer in range(layers):
        own = range(layer * directions, (layer + 1) * directions)
        weights = reordered(w, "WeightList", [[2 * u] for u in own], ORDERS[of.mode][1])
        recurrent = reordered(w, "WeightList", [[2 * u + 1] for u in own], ORDERS[of.mode][1])
        biases = reordered(w, "WeightList", [[2 * units + 2 * u, 2 * units + 2 * u + 1] for u in own], ORDERS[of.mode][1])
        initial = [s if s is None or layers == 1 else w.slice(s, 0, layer * directions, (layer + 1) * directions) for s in states]
        x, last = recurrent_layer(w, of.mode, x, (weights, recurrent, biases), lengths, initial, directions)
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
    given: dict[str, Any] = {"direction": "bidirectional" if directions == 2 else "reverse" if reverse else "forward", "hidden_size": size} | attributes
    if operator == "GRU":
        given.setdefault("linear_before_reset", 1)
    elif mode == "RNN_RELU":
        given["activations"] = ["Relu"] * directions
    y, *last = w.nodes(operator, 3 if operator == "LSTM" else 2, x, *weights, lengths, *initial, **given)
    if directions == 1:
        return w.squeeze(y, 1), last
    return w.node("Reshape", w.transpose(y, (0, 2, 1, 3)), w.ints(0, 0, directions * size)), last


def weights_before_reset(w: WrittenOp) -> tuple[OnnxValue, OnnxValue, int]:
    """Return the matrices of u and r, and of c, from the numbers of both."""
    size = w.spec("Weight").known_dims[0]
    if not isinstance(size, int):
        raise Refused("Weight must have a known number of hidden units")
    known = w.known("Weight")
    split = 2 * size * size
    if known is not None:
        numbers = known.reshape(-1)
        return w.array(numbers[:split].reshape(size, 2 * size)), w.array(numbers[split:].reshape(size, size)), size
    flat = w.reshape(w.x("Weight"), -1)
    return w.reshape(w.slice(flat, 0, 0, split), size, 2 * size), w.reshape(w.slice(flat, 0, split, split + size * size), size, size), size


_ACTIVATIONS: Final = ("Identity", "Sigmoid", "Tanh", "Relu")


@writes("gru_unit")
def _gru_unit(w: WrittenOp) -> Any:
    gate_weight, candidate_weight, size = weights_before_reset(w)
    x, before = w.x("Input"), w.x("HiddenPrev")
    if w.has("Bias"):
        x = w.node("Add", x, w.x("Bias"))
    gate, candidate = (_ACTIVATIONS[int(number)] for number in (w.of.gate_activation, w.of.activation))
    gates = w.node(gate, w.node("Add", w.slice(x, 1, 0, 2 * size), w.node("MatMul", before, gate_weight)))
    u, r = w.slice(gates, 1, 0, size), w.slice(gates, 1, size, 2 * size)
    left = w.node("Mul", r, before)
    c = w.node(candidate, w.node("Add", w.slice(x, 1, 2 * size, 3 * size), w.node("MatMul", left, candidate_weight)))
    old, new = (c, before) if w.of.origin_mode else (before, c)
    state = w.node("Add", old, w.node("Mul", u, w.node("Sub", new, old)))
    return w.node("Concat", u, r, c, axis=1), left, state


@writes("lstm_unit")
def _lstm_unit(w: WrittenOp) -> Any:
    size = w.spec("C_prev").known_dims[1]
    if not isinstance(size, int):
        raise Refused("C_prev must have a known number of hidden units")
    i, f, o, g = [w.slice(w.x("X"), 1, at * size, (at + 1) * size) for at in range(4)]
    if w.of.forget_bias:
        f = w.node("Add", f, w.like(w.of.forget_bias, "X"))
    kept = w.node("Mul", w.x("C_prev"), w.node("Sigmoid", f))
    c = w.node("Add", kept, w.node("Mul", w.node("Sigmoid", i), w.node("Tanh", g)))
    return c, w.node("Mul", w.node("Sigmoid", o), w.node("Tanh", c))
