"""Ragged rows: sequences of their own lengths, in the other formats."""

from __future__ import annotations

import math
from typing import Any, Final

from foreshape import layer
from foreshape.core.spec import FLOATING, FP16, FP64, INT32, INT64, Spec
from foreshape.interop.forms.recurrence import recurrent_layer, recurrent_layers, weights_before_reset
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.padded_rows import RowsWriter, levels_of
from foreshape.interop.onnx.write.terms import Term, constant, count_to, joined, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import as_dim, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, number_code, tuple_of
from foreshape.language.program import Variable

# --- from ONNX


@from_onnx("ReverseSequence")
def reverse_sequence(c: Call) -> Any:
    x, lengths = c.x(0), c.x(1)
    time, batch = c.attribute("time_axis", 0), c.attribute("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise Refused("axes other than the first two")
    lengths = c.unsqueeze(c.cast(lengths, INT64), 0 if time == 0 else 1)
    size = layer.slice(c.shape_of(x), [0], [time], [time + 1])
    steps = layer.range(c.full([1], INT64, 0), size, c.full([1], INT64, 1))
    steps = c.unsqueeze(steps, 1 if time == 0 else 0)
    mirror = layer.scale(lengths, 1.0, -1.0) - steps
    identity = steps + (lengths - lengths)
    place = layer.where(steps < lengths, mirror, identity)
    row_rank = c.rank(x) - 2
    place = c.unsqueeze(place, *range(2, 2 + row_rank)) if row_rank else place
    zeros = layer.fill_like(x, 0.0, INT64)
    return layer.take_along_axis(x, zeros + place, time)


# --- to ONNX


@to_onnx()
def _to_onnx_sequence_mask(w: WrittenOp) -> Any:
    x, dtype = term(w, "X"), w.result("Y").known_dtype
    if w.has("MaxLenTensor"):
        size = Term(w, w.row("MaxLenTensor"), INT64)
    elif w.of.maxlen >= 0:
        size = constant(w, [int(w.of.maxlen)], INT64)
    else:
        size = joined([x.cast(INT64).shaped(-1), constant(w, [0], INT64)], 0).largest(0, keep=True)
    return (count_to(size).cast(x.of) < x.with_dims(w.rank("X"))).cast(dtype).value


class RaggedOperand:
    """A ragged operand: ``rows``, the ``lengths`` of its sequences at each level, and its ``spec``."""

    def __init__(self, w: WrittenOp, slot: str, index: int = 0) -> None:
        variable = w.variable(slot, index)
        self.spec: Spec = w.writer.spec(variable)
        if self.spec.lod is None:
            raise Refused(f"{slot} is not ragged")
        lengths = levels_of(w.writer, self.spec.lod)
        if lengths is None:
            raise Refused(f"nothing is known of the sequences of {slot}")
        self.rows, self.lengths, self.writer = w.x(slot, index), lengths, RowsWriter(w.writer)

    @property
    def innermost(self) -> OnnxValue:
        return self.lengths[-1]

    def padded(self, fill: Any = 0) -> OnnxValue:
        """Return [sequences, time, *row]."""
        return self.writer.padded(self.rows, self.innermost, self.spec.known_dtype, fill)

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


@to_onnx()
def _to_onnx_sequence_pool(w: WrittenOp) -> Any:
    x, kind, rank = RaggedOperand(w, "X"), w.of.pooltype, len(w.writer.spec(w.variable("X")).known_dims)
    lengths, writer, dtype = x.innermost, x.writer, x.spec.known_dtype
    if kind in ("FIRST", "LAST"):
        table, end = writer.with_one_more(x.rows, dtype, w.of.pad_value)
        places = writer.offsets(lengths)
        if kind == "LAST":
            places = w.node("Add", places, w.node("Sub", lengths, w.ints(1)))
        return w.node("Gather", table, w.node("Where", w.node("Equal", lengths, w.ints(0)), end, places), axis=0), None
    fill = {"MAX": -float("inf"), "MIN": float("inf")}.get(kind, 0.0)
    out = w.reduce({"MAX": "ReduceMax", "MIN": "ReduceMin"}.get(kind, "ReduceSum"), x.padded(fill), [1], False)
    if kind in ("AVERAGE", "SQRT"):
        count = w.cast(w.node("Max", lengths, w.ints(1)), INT64, dtype)
        out = w.node("Div", out, _column(w, w.node("Sqrt", count) if kind == "SQRT" else count, rank))
    if w.of.pad_value or kind in ("MAX", "MIN"):
        empty = _column(w, w.node("Equal", lengths, w.ints(0)), rank)
        out = w.node("Where", empty, w.number(w.of.pad_value, dtype), out)
    return out, None


@to_onnx()
def _to_onnx_sequence_attention(w: WrittenOp) -> Any:
    q, keys, values = RaggedOperand(w, "Q"), RaggedOperand(w, "K"), RaggedOperand(w, "V")
    writer, dtype, width = q.writer, q.spec.known_dtype, q.spec.known_dims[1]
    if not isinstance(width, int):
        raise Refused("an open number of columns")
    heads = int(w.of.heads)
    rows, seen = writer.longest(q.innermost, 0), writer.longest(keys.innermost, 0)

    def by_head(x: RaggedOperand, longest: OnnxValue) -> OnnxValue:
        """Return [sequences, heads, time, columns]."""
        padded = writer.padded(x.rows, x.innermost, dtype, 0, longest)
        return w.transpose(w.node("Reshape", padded, w.ints(0, 0, heads, width // heads)), (0, 2, 1, 3))

    scores = w.node("MatMul", by_head(q, rows), w.transpose(by_head(keys, seen), (0, 1, 3, 2)))
    scores = w.node("Mul", scores, w.number(w.of.scale or 1 / math.sqrt(width // heads), dtype))
    if w.has("Bias"):
        scores = w.node("Add", scores, w.node("Slice", w.x("Bias"), w.ints(0, 0), w.node("Concat", rows, seen, axis=0), w.ints(1, 2)))
    visible = w.unsqueeze(writer.mask(keys.innermost, writer.time(seen)), 1, 2)
    if w.of.causal:
        visible = w.node("And", visible, w.node("LessOrEqual", w.unsqueeze(writer.time(seen), 0), w.unsqueeze(writer.time(rows), 1)))
    lowest = -65504.0 if dtype is FP16 else -3e38  # finite: where all keys are hidden, the sum over rows of zeros is zero
    shares = w.node("Softmax", w.node("Where", visible, scores, w.number(lowest, dtype)), axis=-1)
    mixed = w.transpose(w.node("MatMul", shares, by_head(values, seen)), (0, 2, 1, 3))
    return writer.unpadded(w.node("Reshape", mixed, w.ints(0, 0, width)), q.innermost), None


@to_onnx()
def _to_onnx_sequence_softmax(w: WrittenOp) -> OnnxValue:
    x = RaggedOperand(w, "X")
    return x.writer.unpadded(w.node("Softmax", x.padded(-float("inf")), axis=1), x.innermost)


@to_onnx()
def _to_onnx_sequence_reverse(w: WrittenOp) -> OnnxValue:
    x = RaggedOperand(w, "X")
    of_row = x.writer.sequence_of_each_row(x.innermost)
    ends = w.node("Add", w.node("Mul", x.writer.offsets(x.innermost), w.ints(2)), w.node("Sub", x.innermost, w.ints(1)))
    time = x.writer.time(w.shape(of_row))
    return w.node("Gather", x.rows, w.node("Sub", w.node("Gather", ends, of_row, axis=0), time), axis=0)


@to_onnx()
def _to_onnx_sequence_expand(w: WrittenOp) -> OnnxValue:
    y = RaggedOperand(w, "Y")
    lengths = y.lengths[int(w.of.ref_level)]
    of_row = y.writer.sequence_of_each_row(lengths)
    if w.writer.spec(w.variable("X")).lod is None:
        return w.node("Gather", w.x("X"), of_row, axis=0)
    x = RaggedOperand(w, "X")
    repeated = w.node("Gather", x.alone(), of_row, axis=0)
    _new_sequences(w, "Out", [repeated])
    return x.writer.unpadded(w.node("Gather", x.padded(), of_row, axis=0), repeated)


@to_onnx()
def _to_onnx_sequence_expand_as(w: WrittenOp) -> OnnxValue:
    y = RaggedOperand(w, "Y")
    return w.node("Gather", w.x("X"), y.writer.sequence_of_each_row(y.innermost), axis=0)


@to_onnx()
def _to_onnx_sequence_conv(w: WrittenOp) -> OnnxValue:
    if w.of.paddingTrainable:
        raise Refused("trained rows outside of the sequences")
    x, writer = RaggedOperand(w, "X"), RowsWriter(w.writer)
    table, end = writer.with_one_more(x.rows, x.spec.known_dtype, 0)
    of_row = writer.sequence_of_each_row(x.innermost)
    first = w.node("Gather", writer.offsets(x.innermost), of_row, axis=0)
    behind = w.node("Add", first, w.node("Gather", x.innermost, of_row, axis=0))
    rows = writer.time(w.shape(of_row))
    parts: list[OnnxValue] = []
    for step in range(w.of.contextStart, w.of.contextStart + w.of.contextLength):
        place = w.node("Add", rows, w.ints(step)) if step else rows
        inside = w.node("And", w.node("GreaterOrEqual", place, first), w.node("Less", place, behind))
        parts.append(w.node("Gather", table, w.node("Where", inside, place, end), axis=0))
    context = w.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    return w.node("MatMul", context, w.x("Filter"))


@to_onnx()
def _to_onnx_sequence_concat(w: WrittenOp) -> OnnxValue:
    operands = [RaggedOperand(w, "X", index) for index in range(len(w.op.input_slots["X"]))]
    writer, lengths = operands[0].writer, [x.alone() for x in operands]
    masks = [writer.mask(length, writer.time(writer.longest(length))) for length in lengths]
    joined, mask = w.node("Concat", *[x.padded() for x in operands], axis=1), w.node("Concat", *masks, axis=1)
    total = lengths[0]
    for length in lengths[1:]:
        total = w.node("Add", total, length)
    _new_sequences(w, "Out", [total])
    return writer.kept(joined, mask)


@to_onnx()
def _to_onnx_sequence_pad(w: WrittenOp) -> Any:
    x = RaggedOperand(w, "X")
    x.alone()
    fill, count = w.x("PadValue"), int(w.of.padded_length)
    out = x.writer.padded(x.rows, x.innermost, x.spec.known_dtype, fill, w.ints(count) if count > 0 else x.writer.longest(x.innermost, 0))
    return out, w.node("Identity", x.innermost)


@to_onnx()
def _to_onnx_sequence_unpad(w: WrittenOp) -> OnnxValue:
    if w.writer.spec(w.variable("X")).lod is not None:
        raise Refused("X is ragged")
    x, writer = w.x("X"), RowsWriter(w.writer)
    lengths = w.as_int64("Length")
    _new_sequences(w, "Out", [lengths])
    return writer.unpadded(x if len(w.writer.spec(w.variable("X")).known_dims) > 2 else w.unsqueeze(x, 2), lengths)


_ACTIVATIONS: Final = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "identity": "Affine", "linear": "Affine"}


def _activations(*names: str) -> dict[str, Any]:
    unknown = [n for n in names if n not in _ACTIVATIONS]
    if unknown:
        raise Refused(f"the activation {unknown[0]}")
    functions = [_ACTIVATIONS[n] for n in names]
    if "Affine" in functions:
        return {"activations": functions, "activation_alpha": [1.0] * len(functions), "activation_beta": [0.0] * len(functions)}
    return {"activations": functions}


def _by_time(w: WrittenOp, x: RaggedOperand) -> tuple[OnnxValue, OnnxValue]:
    """Return [time, sequences, *row], and the lengths as int32."""
    return w.transpose(x.padded(), (1, 0, 2)), w.cast(x.innermost, INT64, INT32)


def _rows_of(w: WrittenOp, x: RaggedOperand, out: OnnxValue) -> OnnxValue:
    return x.writer.unpadded(w.transpose(out, (1, 0, 2)), x.innermost)


def _state(w: WrittenOp, slot: str) -> OnnxValue | None:
    return w.unsqueeze(w.x(slot), 0) if w.has(slot) else None


@to_onnx()
def _to_onnx_gru(w: WrittenOp) -> Any:
    import numpy

    x, attrs = RaggedOperand(w, "Input"), w.of
    gates, candidate, size = weights_before_reset(w)
    negated = not attrs.origin_mode  # ONNX weighs the state before with its gate
    if negated and attrs.gate_activation != "sigmoid":
        raise Refused(f"gates with the activation {attrs.gate_activation}, unless origin_mode is set")
    unit = numpy.eye(3 * size, dtype=x.spec.known_dtype.numpy_name)
    if negated:
        unit[:size] *= -1
    u, r = w.slice(gates, 1, 0, size), w.slice(gates, 1, size, 2 * size)
    recurrent = w.node("Concat", *[w.transpose(m, (1, 0)) for m in (w.node("Neg", u) if negated else u, r, candidate)], axis=0)
    bias = None
    if w.has("Bias"):
        input_bias = w.node("Mul", w.reshape(w.x("Bias"), 1, -1), w.array(unit.sum(0, keepdims=True)))
        bias = w.node("Concat", input_bias, w.array(numpy.zeros_like(unit[:1])), axis=1)
    padded, lengths = _by_time(w, x)
    weights = (w.array(unit[None]), w.unsqueeze(recurrent, 0), bias)
    settings = _activations(attrs.gate_activation, attrs.activation) | {"linear_before_reset": 0}
    out, _ = recurrent_layer(w, "GRU", padded, weights, lengths, [_state(w, "H0")], 1, attrs.is_reverse, size, **settings)
    return None, None, None, _rows_of(w, x, out)


@to_onnx()
def _to_onnx_lstm(w: WrittenOp) -> Any:
    import numpy

    x, attrs = RaggedOperand(w, "Input"), w.of
    size = w.writer.spec(w.variable("Weight")).known_dims[0]
    if not isinstance(size, int):
        raise Refused("Weight must have a known number of hidden units")
    order = (1, 3, 2, 0)  # ours are g, i, f, o
    unit = numpy.concatenate([numpy.eye(4 * size, dtype=x.spec.known_dtype.numpy_name)[gate * size : (gate + 1) * size] for gate in order])
    by_gate = w.transpose(w.x("Weight"), (1, 0))
    recurrent = w.node("Concat", *[w.slice(by_gate, 0, gate * size, (gate + 1) * size) for gate in order], axis=0)
    row = w.reshape(w.x("Bias"), 1, -1)
    bias = w.node("Concat", *[w.slice(row, 1, gate * size, (gate + 1) * size) for gate in order], w.array(numpy.zeros((1, 4 * size), unit.dtype)), axis=1)
    peepholes = w.node("Concat", *[w.slice(row, 1, gate * size, (gate + 1) * size) for gate in (4, 6, 5)], axis=1) if attrs.use_peepholes else None
    padded, lengths = _by_time(w, x)
    weights = (w.array(unit[None]), w.unsqueeze(recurrent, 0), bias)
    settings = _activations(attrs.gate_activation, attrs.candidate_activation, attrs.cell_activation)
    out, _ = recurrent_layer(w, "LSTM", padded, weights, lengths, [_state(w, "H0"), _state(w, "C0"), peepholes], 1, attrs.is_reverse, size, **settings)
    return _rows_of(w, x, out), None, None, None


@to_onnx()
def _to_onnx_sequence_rnn(w: WrittenOp) -> Any:
    x = RaggedOperand(w, "Input")
    padded, lengths = _by_time(w, x)
    out, last = recurrent_layers(w, padded, lengths, [w.optional("InitHidden"), *([w.optional("InitCell")] if w.of.mode == "LSTM" else [])])
    return _rows_of(w, x, out), last[0], last[1] if len(last) > 1 else None, None


# --- from torch


def _ragged(t: TorchCall, rows: Variable, lengths: Variable) -> Variable:
    """Return rows as ragged ones with sequences of these lengths."""
    holders = t.importer.jagged.holders
    holder = holders.get(lengths.name)
    if holder is None:
        ends = layer.cumsum(t.cast(lengths, INT64), 0)
        holders[lengths.name] = variable = layer.lod_reset(rows, layer.concat([layer.fill_constant([1], INT64, 0), ends], 0))
        return variable
    return rows if rows.spec.lod is holder.spec.lod else layer.lod_reset(rows, holder)


@from_torch("foreshape.jagged")
def _jagged(t: TorchCall, rows: Variable, lengths: Variable) -> Any:
    return _ragged(t, rows, lengths)


@from_torch("foreshape.jagged_pool")
def _from_torch_pool(t: TorchCall, rows: Variable, lengths: Variable, kind: str, empty: float) -> Any:
    dtype = rows.spec.known_dtype
    x = _ragged(t, rows if dtype in FLOATING else layer.cast(rows, FP64), lengths)
    pooled = layer.sequence_pool(x, {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min"}[kind], empty)
    return t.cast(pooled, dtype)


@from_torch("foreshape.jagged_softmax")
def _from_torch_softmax(t: TorchCall, rows: Variable, lengths: Variable, log: bool) -> Any:
    x = _ragged(t, rows, lengths)
    dims = x.spec.known_dims
    if not log and (len(dims) == 1 or (len(dims) == 2 and dims[1] == 1)):
        return layer.sequence_softmax(x)
    peaks = layer.sequence_pool(x, "max")
    peaks.stop_gradient = True
    differences = layer.subtract(x, layer.sequence_expand_as(peaks, x))
    powers = _ragged(t, layer.exp(differences), lengths)
    total = layer.sequence_pool(powers, "sum")
    return layer.subtract(differences, layer.sequence_expand_as(layer.log(total), x)) if log else layer.divide(powers, layer.sequence_expand_as(total, x))


@from_torch("foreshape.jagged_expand")
def _from_torch_expand(t: TorchCall, each: Variable, lengths: Variable, rows: Variable) -> Any:
    return layer.sequence_expand_as(each, _ragged(t, rows, lengths))


@from_torch("foreshape.jagged_pad")
def _from_torch_pad(t: TorchCall, rows: Variable, lengths: Variable, value: float) -> Any:
    flat = t.rank(rows) == 1
    x = _ragged(t, layer.reshape(rows, [-1, 1]) if flat else rows, lengths)
    padded, _ = layer.sequence_pad(x, t.tensor(value, x.spec.known_dtype))
    return layer.squeeze(padded, [2]) if flat else padded


@from_torch("foreshape.jagged_attention")
def _from_torch_attention(t: TorchCall, q: Variable, k: Variable, v: Variable, lengths: Variable, key_lengths: Variable, causal: bool, scale: float) -> Any:
    heads, width = (int(as_dim(size_of(q, axis)) or 0) for axis in (1, 2))
    operands = [_ragged(t, layer.reshape(x, [-1, heads * width]), counts) for x, counts in ((q, lengths), (k, key_lengths), (v, key_lengths))]
    out = t.op("sequence_attention", {"heads": heads, "causal": causal, "scale": scale}, Q=operands[0], K=operands[1], V=operands[2])[0]
    return layer.reshape(out, [-1, heads, width])


# --- to torch's code


def sequences(w: PlainOp, slot: str) -> str:
    """Return the offsets of an operand's sequences. Raises `Refused` if nothing is known of them."""
    lod = w.spec(slot).lod
    offsets = w.writer.offsets_of(lod) if lod is not None else None
    if offsets is None:
        raise Refused(f"nothing is known of the sequences of {slot}")
    return offsets


@to_torch("lstm", "lstmp")
def _to_torch_lstm(w: PlainOp) -> Any:
    names = [f'"{n}"' for n in (w.of.gate_activation, w.of.cell_activation, w.of.candidate_activation)]
    arguments = [
        w.x("Input"),
        w.optional("H0"),
        w.optional("C0"),
        w.x("Weight"),
        w.x("Bias"),
        sequences(w, "Input"),
        w.of.use_peepholes,
        w.of.is_reverse,
        *names,
    ]
    if w.op.type == "lstmp":
        arguments += [w.x("ProjWeight"), f'"{w.of.proj_activation}"', number_code(w.of.cell_clip), number_code(w.of.proj_clip)]
    state, cell = w.several(w.call(helpers.ragged_steps.ragged_lstm, *arguments), 2)
    return state, cell


@to_torch()
def _to_torch_gru(w: PlainOp) -> Any:
    names = [f'"{n}"' for n in (w.of.gate_activation, w.of.activation)]
    arguments = [w.x("Input"), w.optional("H0"), w.x("Weight"), w.optional("Bias"), sequences(w, "Input"), w.of.is_reverse, *names, w.of.origin_mode]
    return None, None, None, w.call(helpers.ragged_steps.ragged_gru, *arguments)


@to_torch()
def _to_torch_gru_unit(w: PlainOp) -> Any:
    kinds = ("identity", "sigmoid", "tanh", "relu")
    x = f"{w.x('Input')} + {w.x('Bias')}" if w.has("Bias") else w.x("Input")
    names = [f'"{kinds[n]}"' for n in (w.of.gate_activation, w.of.activation)]
    return None, None, w.call(helpers.ragged_steps.gru_step, x, w.x("HiddenPrev"), w.x("Weight"), *names, w.of.origin_mode)


@to_torch()
def _to_torch_sequence_pool(w: PlainOp) -> Any:
    return w.call(helpers.ragged_steps.ragged_pool, w.x("X"), sequences(w, "X"), f'"{w.of.pooltype}"', number_code(w.of.pad_value)), None


@to_torch()
def _to_torch_sequence_pad(w: PlainOp) -> Any:
    out, lengths = w.several(w.call(helpers.ragged_steps.ragged_pad, w.x("X"), w.x("PadValue"), sequences(w, "X"), w.of.padded_length), 2)
    return out, lengths


@to_torch()
def _to_torch_sequence_rnn(w: PlainOp) -> Any:
    arguments = [w.x("Input"), w.optional("InitHidden"), w.optional("InitCell"), f"[{', '.join(w.all('WeightList'))}]", sequences(w, "Input"), f'"{w.of.mode}"']
    arguments += [str(w.of.hidden_size), number_code(w.of.dropout_prob), "self.training", str(w.of.is_bidirec)]
    values = w.several(w.call(helpers.ragged_steps.ragged_recurrent, *arguments), 3 if w.of.mode == "LSTM" else 2)
    return values[0], values[1], values[2] if len(values) > 2 else None, None


@to_torch()
def _to_torch_sequence_attention(w: PlainOp) -> Any:
    arguments = [
        w.x("Q"),
        w.x("K"),
        w.x("V"),
        w.optional("Bias"),
        sequences(w, "Q"),
        sequences(w, "K"),
        w.of.heads,
        w.of.causal,
        number_code(w.of.scale),
        w.op.output("LogSumExp") in w.writer.wanted,
    ]
    out, sums = w.several(w.call(helpers.ragged_attention.ragged_attention, *arguments), 2)
    return out, sums


@to_torch()
def _to_torch_lod_reset(w: PlainOp) -> Any:
    x = w.x("X")
    if w.has("Y") and w.spec("Y").lod is not None:
        return Several(f"({x}, None)")
    target = f"{w.x('Y')}.reshape(-1).long()" if w.has("Y") else f"torch.tensor({list(w.of.target_lod)}, device={x}.device)"
    outer = w.offsets("X") if w.of.append else None
    return Several(f"({x}, {w.call(helpers.ragged_rows.regrouped, f'{x}.shape[0]', target, outer)})")


@to_torch()
def _to_torch_sequence_concat(w: PlainOp) -> Several:
    offsets = tuple_of([str(w.offsets("X", index)) for index in range(w.count("X"))])
    return Several(w.call(helpers.ragged_rows.joined, tuple_of(w.all("X")), offsets))


@to_torch()
def _to_torch_sequence_expand(w: PlainOp) -> Several:
    return Several(w.call(helpers.ragged_rows.repeated, w.x("X"), w.offsets("X"), sequences(w, "Y"), w.of.ref_level))


@to_torch()
def _to_torch_sequence_expand_as(w: PlainOp) -> str:
    return f"{w.x('X')}.index_select(0, {sequences(w, 'Y')}.segments)"


@to_torch()
def _to_torch_sequence_unpad(w: PlainOp) -> Several:
    return Several(w.call(helpers.ragged_rows.unpadded, w.x("X"), w.x("Length"), w.offsets("X")))


@to_torch()
def _to_torch_sequence_pool_grad(w: PlainOp) -> str:
    operands = w.x("X"), w.optional("MaxIndex"), w.x("Out@GRAD"), sequences(w, "X")
    return w.call(helpers.ragged_rows.shares_of_rows, *operands, f'"{w.of.pooltype}"')


@to_torch()
def _to_torch_sequence_topk_avg_pooling(w: PlainOp) -> Several:
    offsets = [sequences(w, slot) for slot in ("X", "ROW", "COLUMN")]
    return Several(w.call(helpers.ragged_rows.best_averages, w.x("X"), *offsets, list(w.of.topks), w.of.channel_num))


@to_torch()
def _to_torch_sequence_enumerate(w: PlainOp) -> str:
    return w.call(helpers.ragged_rows.numbered_windows, w.x("X"), sequences(w, "X"), w.of.win_size, w.of.pad_value)


@to_torch()
def _to_torch_sequence_reshape(w: PlainOp) -> Several:
    return Several(w.call(helpers.ragged_rows.in_rows_of, w.x("X"), sequences(w, "X"), w.of.new_dim))


@to_torch()
def _to_torch_sequence_erase(w: PlainOp) -> Several:
    return Several(w.call(helpers.ragged_rows.without_tokens, w.x("X"), sequences(w, "X"), list(w.of.tokens)))


@to_torch()
def _to_torch_sequence_reverse(w: PlainOp) -> str:
    return f"{w.x('X')}.index_select(0, {sequences(w, 'X')}.reversal)"


@to_torch()
def _to_torch_sequence_scatter(w: PlainOp) -> str:
    operands = w.x("X"), w.x("Ids"), w.x("Updates"), sequences(w, "Ids"), sequences(w, "Updates")
    return w.call(helpers.ragged_rows.added_at, *operands)


@to_torch()
def _to_torch_sequence_slice(w: PlainOp) -> Several:
    return Several(w.call(helpers.ragged_rows.sliced, w.x("X"), sequences(w, "X"), w.x("Offset"), w.x("Length")))


@to_torch()
def _to_torch_sequence_softmax(w: PlainOp) -> str:
    return w.call(helpers.ragged_rows.ragged_softmax, w.x("X"), sequences(w, "X"))


@to_torch()
def _to_torch_sequence_conv(w: PlainOp) -> str:
    start, length = w.of.contextStart, w.of.contextLength
    trained = w.of.paddingTrainable and max(0, -start) + max(0, start + length - 1) > 0 and w.has("PaddingData")
    operands = w.x("X"), w.x("PaddingData") if trained else None, w.x("Filter"), sequences(w, "X")
    return w.call(helpers.ragged_rows.context_convolution, *operands, start, length)


@to_torch()
def _to_torch_cached_positions(w: PlainOp) -> str:
    offsets = sequences(w, "X")
    return f"{w.x('Held')}.long().repeat_interleave({offsets}.lengths) + {offsets}.positions"


@to_torch()
def _to_torch_split_lod_tensor(w: PlainOp) -> Several:
    return Several(w.call(helpers.ragged_rows.split_by, w.x("X"), w.x("Mask"), w.offsets("X"), w.of.level))


@to_torch()
def _to_torch_merge_lod_tensor(w: PlainOp) -> Several:
    offsets = w.offsets("X"), w.offsets("InTrue"), w.offsets("InFalse")
    return Several(w.call(helpers.ragged_rows.merged_by, w.x("Mask"), w.x("InTrue"), w.x("InFalse"), *offsets, w.of.level))


@to_torch()
def _to_torch_select_output(w: PlainOp) -> Any:
    out = w.let(w.call(helpers.ragged_rows.selected_output, w.x("X"), w.x("Mask"), w.of.branches))
    return ([f"{out}[{number}]" for number in range(len(w.op.output_slots["Out"]))],)


@to_torch()
def _to_torch_edit_distance(w: PlainOp) -> Several:
    operands = w.x("Hyps"), w.x("Refs"), w.optional("HypsLength"), w.optional("RefsLength")
    return Several(w.call(helpers.alignments.edit_distances, *operands, w.offsets("Hyps"), w.offsets("Refs"), w.of.normalized))


@to_torch()
def _to_torch_ctc_align(w: PlainOp) -> Any:
    o, x = w.of, w.x("Input")
    if w.has("InputLength"):
        out, lengths = w.several(w.call(helpers.alignments.aligned, x, w.x("InputLength"), o.blank, o.merge_repeated, o.padding_value), 2)
        return Several(f"({out}, {lengths}, None)")
    out, offsets = w.several(w.call(helpers.alignments.aligned_rows, x, f"{sequences(w, 'Input')}.in_rows(0)", o.blank, o.merge_repeated), 2)
    return Several(f"({out}, None, {offsets})")


@to_torch()
def _to_torch_warpctc(w: PlainOp) -> Several:
    operands = w.x("Logits"), w.x("Label"), w.optional("LogitsLength"), w.optional("LabelLength"), w.offsets("Logits"), w.offsets("Label")
    reads_gradient = w.op.output("WarpCTCGrad") in w.writer.wanted
    return Several(w.call(helpers.alignments.ctc_loss, *operands, w.of.blank, w.of.norm_by_times, reads_gradient))


@to_torch()
def _to_torch_warprnnt(w: PlainOp) -> Several:
    operands = [w.x(slot) for slot in ("input", "label", "input_lengths", "label_lengths")]
    return Several(w.call(helpers.alignments.transducer_loss, *operands, w.of.blank, number_code(w.of.fastemit_lambda)))


@to_torch()
def _to_torch_linear_chain_crf(w: PlainOp) -> Several:
    operands = w.x("Emission"), w.x("Transition"), w.x("Label"), w.optional("Length")
    return Several(w.call(helpers.chain_fields.chain_costs, *operands, w.offsets("Emission"), w.offsets("Label")))


@to_torch()
def _to_torch_crf_decoding(w: PlainOp) -> str:
    operands = w.x("Emission"), w.x("Transition"), w.optional("Label"), w.optional("Length")
    return w.call(helpers.chain_fields.best_tags, *operands, w.offsets("Emission"), w.offsets("Label") if w.has("Label") else None)


@to_torch()
def _to_torch_viterbi_decode(w: PlainOp) -> Several:
    return Several(w.call(helpers.chain_fields.viterbi, w.x("Input"), w.x("Transition"), w.x("Length"), w.of.include_bos_eos_tag))


@to_torch()
def _to_torch_beam_search(w: PlainOp) -> Several:
    o, slots = w.of, ("scores", "ids", "pre_scores", "pre_ids")
    grouped = next((offsets for slot in slots if w.has(slot) and (offsets := w.offsets(slot)) is not None), None)
    sources = f"{grouped}.in_rows({o.level})" if grouped is not None else None
    operands = w.x("pre_ids"), w.x("pre_scores"), w.optional("ids"), w.x("scores"), sources
    words, scores, parent, offsets = w.several(w.call(helpers.beams.beam_step, *operands, o.beam_size, o.end_id, o.is_accumulated), 4)
    return Several(f"({words}, {scores}, {parent}, {offsets}, {offsets})")
