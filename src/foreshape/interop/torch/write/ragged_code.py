"""Torch code of recurrences and pooling over ragged rows."""

from __future__ import annotations

from typing import Any

from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.code_rules import writes
from foreshape.interop.torch.write.helpers import ragged_attention, ragged_steps
from foreshape.interop.torch.write.plain_op import PlainOp, number_code


def sequences(w: PlainOp, slot: str) -> str:
    """Return the offsets of an operand's sequences. Raises `Refused` if nothing is known of them."""
    lod = w.spec(slot).lod
    found = w.writer.offsets_of(lod) if lod is not None else None
    if found is None:
        raise Refused(f"nothing is known of the sequences of {slot}")
    return found


@writes("lstm", "lstmp")
def _lstm(w: PlainOp) -> Any:
    names = [f'"{n}"' for n in (w.of.gate_activation, w.of.cell_activation, w.of.candidate_activation)]
    given = [w.x("Input"), w.optional("H0"), w.optional("C0"), w.x("Weight"), w.x("Bias"), sequences(w, "Input"), w.of.use_peepholes, w.of.is_reverse, *names]
    if w.op.type == "lstmp":
        given += [w.x("ProjWeight"), f'"{w.of.proj_activation}"', number_code(w.of.cell_clip), number_code(w.of.proj_clip)]
    state, cell = w.several(w.call(ragged_steps.ragged_lstm, *given), 2)
    return state, cell


@writes("gru")
def _gru(w: PlainOp) -> Any:
    names = [f'"{n}"' for n in (w.of.gate_activation, w.of.activation)]
    given = [w.x("Input"), w.optional("H0"), w.x("Weight"), w.optional("Bias"), sequences(w, "Input"), w.of.is_reverse, *names, w.of.origin_mode]
    return None, None, None, w.call(ragged_steps.ragged_gru, *given)


@writes("gru_unit")
def _gru_unit(w: PlainOp) -> Any:
    kinds = ("identity", "sigmoid", "tanh", "relu")
    x = f"{w.x('Input')} + {w.x('Bias')}" if w.has("Bias") else w.x("Input")
    names = [f'"{kinds[n]}"' for n in (w.of.gate_activation, w.of.activation)]
    return None, None, w.call(ragged_steps.gru_step, x, w.x("HiddenPrev"), w.x("Weight"), *names, w.of.origin_mode)


@writes("sequence_pool")
def _pool(w: PlainOp) -> Any:
    return w.call(ragged_steps.ragged_pool, w.x("X"), sequences(w, "X"), f'"{w.of.pooltype}"', number_code(w.of.pad_value)), None


@writes("sequence_pad")
def _pad(w: PlainOp) -> Any:
    out, lengths = w.several(w.call(ragged_steps.ragged_pad, w.x("X"), w.x("PadValue"), sequences(w, "X"), w.of.padded_length), 2)
    return out, lengths


@writes("sequence_rnn")
def _recurrent(w: PlainOp) -> Any:
    given = [w.x("Input"), w.optional("InitHidden"), w.optional("InitCell"), f"[{', '.join(w.all('WeightList'))}]", sequences(w, "Input"), f'"{w.of.mode}"']
    given += [str(w.of.hidden_size), number_code(w.of.dropout_prob), "self.training", str(w.of.is_bidirec)]
    found = w.several(w.call(ragged_steps.ragged_recurrent, *given), 3 if w.of.mode == "LSTM" else 2)
    return found[0], found[1], found[2] if len(found) > 2 else None, None


@writes("sequence_attention")
def _attention(w: PlainOp) -> Any:
    given = [
        w.x("Q"),
        w.x("K"),
        w.x("V"),
        sequences(w, "Q"),
        sequences(w, "K"),
        w.of.heads,
        w.of.causal,
        number_code(w.of.scale),
        w.op.output("LogSumExp") in w.writer.wanted,
    ]
    out, sums = w.several(w.call(ragged_attention.ragged_attention, *given), 2)
    return out, sums
