"""Writing of operators of sequences over ragged rows: by the lengths of the sequences, padded where needed."""

from __future__ import annotations

from typing import Any, Final

from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.padded_rows import RowsWriter, levels_of
from foreshape.interop.onnx.write.recurrence_ops import recurrent_layer, recurrent_layers, weights_before_reset
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import INT32, INT64, Spec


class RaggedOperand:
    """A ragged operand: ``rows``, the ``lengths`` of its sequences at each level, and its ``spec``."""

    def __init__(self, w: WrittenOp, slot: str, at: int = 0) -> None:
        variable = w.variable(slot, at)
        self.spec: Spec = w.writer.spec(variable)
        if self.spec.lod is None:
            raise Refused(f"{slot} is not ragged")
        found = levels_of(w.writer, self.spec.lod)
        if found is None:
            raise Refused(f"nothing is known of the sequences of {slot}")
        self.rows, self.lengths, self.by = w.x(slot, at), found, RowsWriter(w.writer)

    @property
    def innermost(self) -> OnnxValue:
        return self.lengths[-1]

    def padded(self, fill: Any = 0) -> OnnxValue:
        """Return [sequences, time, *row]."""
        return self.by.padded(self.rows, self.innermost, self.spec.known_dtype, fill)

    def alone(self) -> OnnxValue:
        """Return the lengths of the only level. Raises `Refused` for several."""
        if len(self.lengths) > 1:
            raise Refused("sequences of several levels")
        return self.lengths[0]


def _new_sequences(w: WrittenOp, slot: str, lengths: list[OnnxValue]) -> None:
    """Say the lengths of the sequences of a result with sequences of its own."""
    lod = w.result(slot).lod
    if lod is not None:
        w.writer.lengths[lod.source] = lengths


def _column(w: WrittenOp, row: OnnxValue, rank: int) -> OnnxValue:
    """Return a row of numbers to go with a tensor of so many dims, one for each of its entries along the first."""
    return w.reshape(row, -1, *[1] * (rank - 1)) if rank > 1 else row


@writes("sequence_pool")
def _pool(w: WrittenOp) -> Any:
    x, of, rank = RaggedOperand(w, "X"), w.of.pooltype, len(w.writer.spec(w.variable("X")).known_dims)
    lengths, by, dtype = x.innermost, x.by, x.spec.known_dtype
    if of in ("FIRST", "LAST"):
        more, end = by.with_one_more(x.rows, dtype, w.of.pad_value)
        at = by.offsets(lengths)
        if of == "LAST":
            at = w.node("Add", at, w.node("Sub", lengths, w.ints(1)))
        return w.node("Gather", more, w.node("Where", w.node("Equal", lengths, w.ints(0)), end, at), axis=0), None
    fill = {"MAX": -float("inf"), "MIN": float("inf")}.get(of, 0.0)
    out = w.reduce({"MAX": "ReduceMax", "MIN": "ReduceMin"}.get(of, "ReduceSum"), x.padded(fill), [1], False)
    if of in ("AVERAGE", "SQRT"):
        count = w.cast(w.node("Max", lengths, w.ints(1)), INT64, dtype)
        out = w.node("Div", out, _column(w, w.node("Sqrt", count) if of == "SQRT" else count, rank))
    if w.of.pad_value or of in ("MAX", "MIN"):
        empty = _column(w, w.node("Equal", lengths, w.ints(0)), rank)
        out = w.node("Where", empty, w.number(w.of.pad_value, dtype), out)
    return out, None


@writes("sequence_softmax")
def _softmax(w: WrittenOp) -> OnnxValue:
    x = RaggedOperand(w, "X")
    return x.by.unpadded(w.node("Softmax", x.padded(-float("inf")), axis=1), x.innermost)


@writes("sequence_reverse")
def _reverse(w: WrittenOp) -> OnnxValue:
    x = RaggedOperand(w, "X")
    of_row = x.by.sequence_of_each_row(x.innermost)
    ends = w.node("Add", w.node("Mul", x.by.offsets(x.innermost), w.ints(2)), w.node("Sub", x.innermost, w.ints(1)))
    at = x.by.time(w.shape(of_row))
    return w.node("Gather", x.rows, w.node("Sub", w.node("Gather", ends, of_row, axis=0), at), axis=0)


@writes("sequence_expand")
def _expand(w: WrittenOp) -> OnnxValue:
    y = RaggedOperand(w, "Y")
    lengths = y.lengths[int(w.of.ref_level)]
    of_row = y.by.sequence_of_each_row(lengths)
    if w.writer.spec(w.variable("X")).lod is None:
        return w.node("Gather", w.x("X"), of_row, axis=0)
    x = RaggedOperand(w, "X")
    repeated = w.node("Gather", x.alone(), of_row, axis=0)
    _new_sequences(w, "Out", [repeated])
    return x.by.unpadded(w.node("Gather", x.padded(), of_row, axis=0), repeated)


@writes("sequence_expand_as")
def _expand_as(w: WrittenOp) -> OnnxValue:
    y = RaggedOperand(w, "Y")
    return w.node("Gather", w.x("X"), y.by.sequence_of_each_row(y.innermost), axis=0)


@writes("sequence_conv")
def _convolution(w: WrittenOp) -> OnnxValue:
    if w.of.paddingTrainable:
        raise Refused("trained rows outside of the sequences")
    x, by = RaggedOperand(w, "X"), RowsWriter(w.writer)
    more, end = by.with_one_more(x.rows, x.spec.known_dtype, 0)
    of_row = by.sequence_of_each_row(x.innermost)
    first = w.node("Gather", by.offsets(x.innermost), of_row, axis=0)
    behind = w.node("Add", first, w.node("Gather", x.innermost, of_row, axis=0))
    rows = by.time(w.shape(of_row))
    parts: list[OnnxValue] = []
    for step in range(w.of.contextStart, w.of.contextStart + w.of.contextLength):
        at = w.node("Add", rows, w.ints(step)) if step else rows
        within = w.node("And", w.node("GreaterOrEqual", at, first), w.node("Less", at, behind))
        parts.append(w.node("Gather", more, w.node("Where", within, at, end), axis=0))
    context = w.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    return w.node("MatMul", context, w.x("Filter"))


@writes("sequence_concat")
def _concat(w: WrittenOp) -> OnnxValue:
    given = [RaggedOperand(w, "X", at) for at in range(len(w.op.input_slots["X"]))]
    by, lengths = given[0].by, [x.alone() for x in given]
    masks = [by.mask(length, by.time(by.longest(length))) for length in lengths]
    joined, mask = w.node("Concat", *[x.padded() for x in given], axis=1), w.node("Concat", *masks, axis=1)
    total = lengths[0]
    for length in lengths[1:]:
        total = w.node("Add", total, length)
    _new_sequences(w, "Out", [total])
    return by.kept(joined, mask)


@writes("sequence_pad")
def _pad(w: WrittenOp) -> Any:
    x = RaggedOperand(w, "X")
    x.alone()
    fill, count = w.x("PadValue"), int(w.of.padded_length)
    out = x.by.padded(x.rows, x.innermost, x.spec.known_dtype, fill, w.ints(count) if count > 0 else x.by.longest(x.innermost, 0))
    return out, w.node("Identity", x.innermost)


@writes("sequence_unpad")
def _unpad(w: WrittenOp) -> OnnxValue:
    if w.writer.spec(w.variable("X")).lod is not None:
        raise Refused("X is ragged")
    x, by = w.x("X"), RowsWriter(w.writer)
    lengths = w.as_int64("Length")
    _new_sequences(w, "Out", [lengths])
    return by.unpadded(x if len(w.writer.spec(w.variable("X")).known_dims) > 2 else w.unsqueeze(x, 2), lengths)


# --- recurrences

_ACTIVATIONS: Final = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "identity": "Affine", "linear": "Affine"}


def _activations(*names: str) -> dict[str, Any]:
    unknown = [n for n in names if n not in _ACTIVATIONS]
    if unknown:
        raise Refused(f"the activation {unknown[0]}")
    given = [_ACTIVATIONS[n] for n in names]
    if "Affine" in given:
        return {"activations": given, "activation_alpha": [1.0] * len(given), "activation_beta": [0.0] * len(given)}
    return {"activations": given}


def _by_time(w: WrittenOp, x: RaggedOperand) -> tuple[OnnxValue, OnnxValue]:
    """Return [time, sequences, *row], and the lengths as int32."""
    return w.transpose(x.padded(), (1, 0, 2)), w.cast(x.innermost, INT64, INT32)


def _rows_of(w: WrittenOp, x: RaggedOperand, out: OnnxValue) -> OnnxValue:
    return x.by.unpadded(w.transpose(out, (1, 0, 2)), x.innermost)


def _state(w: WrittenOp, slot: str) -> OnnxValue | None:
    return w.unsqueeze(w.x(slot), 0) if w.has(slot) else None


@writes("gru")
def _gru(w: WrittenOp) -> Any:
    import numpy

    x, of = RaggedOperand(w, "Input"), w.of
    gates, candidate, size = weights_before_reset(w)
    negated = not of.origin_mode  # ONNX weighs the state before with its gate
    if negated and of.gate_activation != "sigmoid":
        raise Refused(f"gates with the activation {of.gate_activation}, unless origin_mode is set")
    unit = numpy.eye(3 * size, dtype=x.spec.known_dtype.numpy_name)
    if negated:
        unit[:size] *= -1
    u, r = w.slice(gates, 1, 0, size), w.slice(gates, 1, size, 2 * size)
    recurrent = w.node("Concat", *[w.transpose(m, (1, 0)) for m in (w.node("Neg", u) if negated else u, r, candidate)], axis=0)
    bias = None
    if w.has("Bias"):
        own = w.node("Mul", w.reshape(w.x("Bias"), 1, -1), w.array(unit.sum(0, keepdims=True)))
        bias = w.node("Concat", own, w.array(numpy.zeros_like(unit[:1])), axis=1)
    padded, lengths = _by_time(w, x)
    weights = (w.array(unit[None]), w.unsqueeze(recurrent, 0), bias)
    made = _activations(of.gate_activation, of.activation) | {"linear_before_reset": 0}
    out, _ = recurrent_layer(w, "GRU", padded, weights, lengths, [_state(w, "H0")], 1, of.is_reverse, size, **made)
    return None, None, None, _rows_of(w, x, out)


@writes("lstm")
def _lstm(w: WrittenOp) -> Any:
    import numpy

    x, of = RaggedOperand(w, "Input"), w.of
    size = w.writer.spec(w.variable("Weight")).known_dims[0]
    if not isinstance(size, int):
        raise Refused("Weight must have a known number of hidden units")
    order = (1, 3, 2, 0)  # ours are g, i, f, o
    unit = numpy.concatenate([numpy.eye(4 * size, dtype=x.spec.known_dtype.numpy_name)[at * size : (at + 1) * size] for at in order])
    by_gate = w.transpose(w.x("Weight"), (1, 0))
    recurrent = w.node("Concat", *[w.slice(by_gate, 0, at * size, (at + 1) * size) for at in order], axis=0)
    given = w.reshape(w.x("Bias"), 1, -1)
    bias = w.node("Concat", *[w.slice(given, 1, at * size, (at + 1) * size) for at in order], w.array(numpy.zeros((1, 4 * size), unit.dtype)), axis=1)
    peepholes = w.node("Concat", *[w.slice(given, 1, at * size, (at + 1) * size) for at in (4, 6, 5)], axis=1) if of.use_peepholes else None
    padded, lengths = _by_time(w, x)
    weights = (w.array(unit[None]), w.unsqueeze(recurrent, 0), bias)
    made = _activations(of.gate_activation, of.candidate_activation, of.cell_activation)
    out, _ = recurrent_layer(w, "LSTM", padded, weights, lengths, [_state(w, "H0"), _state(w, "C0"), peepholes], 1, of.is_reverse, size, **made)
    return _rows_of(w, x, out), None, None, None


@writes("sequence_rnn")
def _sequence_rnn(w: WrittenOp) -> Any:
    x = RaggedOperand(w, "Input")
    padded, lengths = _by_time(w, x)
    out, last = recurrent_layers(w, padded, lengths, [w.optional("InitHidden"), *([w.optional("InitCell")] if w.of.mode == "LSTM" else [])])
    return _rows_of(w, x, out), last[0], last[1] if len(last) > 1 else None, None
