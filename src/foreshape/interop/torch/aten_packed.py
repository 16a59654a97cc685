"""Import of packed sequences: rows step by step, of all sequences that have this step."""

from __future__ import annotations

from typing import Any, NamedTuple

from foreshape import layer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_layers import recurrent_attributes
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.open_size import OpenSize, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.program import Variable
from foreshape.spec import BOOL, INT64


class Packing(NamedTuple):
    """A packing met in the import.

    ``x``: the padded sequences, step by step; None where only the batch sizes are known. ``places``: step and sequence of each row.
    """

    sizes: Variable
    rows: Variable | None
    x: Variable | None
    places: Variable
    lengths: Variable


@aten("foreshape.pack")
def _pack(t: TorchCall, x: Variable, lengths: Variable, batch_first: bool) -> Any:
    x = layer.transpose(x, [1, 0, *range(2, t.rank(x))]) if batch_first else x
    steps = size_of(x, 0)
    there = layer.transpose(layer.sequence_mask(lengths, steps.variable if isinstance(steps, OpenSize) else steps, INT64), [1, 0])
    places = layer.nonzero(there)
    rows = layer.gather_nd(x, places)
    longest = layer.reshape(layer.reduce_max(lengths), [1])
    sizes = layer.slice(layer.reduce_sum(there, 1), [0], [0], [longest])
    t.importer.packings.append(Packing(sizes, rows, x, places, lengths))
    return [rows, sizes]


def _packing(t: TorchCall, sizes: Variable, sequences: Any) -> Packing:
    """Return the packing of some batch sizes: a former one, or one of these numbers alone."""
    for one in t.importer.packings:
        if one.sizes is sizes:
            return one
    there = layer.sequence_mask(sizes, sequences.variable if isinstance(sequences, OpenSize) else sequences, INT64)
    made = Packing(sizes, None, None, layer.nonzero(there), layer.reduce_sum(there, 0))
    t.importer.packings.append(made)
    return made


def _spread(t: TorchCall, rows: Variable, of: Packing, steps: Any, sequences: Any) -> Variable:
    """Return rows as padded sequences, ``[steps, sequences, ...]``, with zeros."""
    return layer.scatter_nd(of.places, rows, t.sizes([steps, sequences, *(size_of(rows, axis) for axis in range(1, t.rank(rows)))]))


@aten("foreshape.pad_packed")
def _pad(t: TorchCall, rows: Variable, sizes: Variable, sequences: Any, batch_first: bool, value: float, steps: Any) -> Any:
    of = _packing(t, sizes, sequences)
    made = _spread(t, rows, of, steps, sequences)
    if value:
        each = layer.fill_constant(t.sizes([size_of(of.places, 0)]), INT64, 1)
        there = layer.scatter_nd(of.places, each, t.sizes([steps, sequences]))
        there = layer.unsqueeze(layer.cast(there, BOOL), [*range(2, t.rank(made))])
        made = t.where(there, made, t.tensor(float(value), made.dtype))
    return [layer.transpose(made, [1, 0, *range(2, t.rank(made))]) if batch_first else made, layer.assign(of.lengths)]


@aten("foreshape.packed_lstm", "foreshape.packed_gru", "foreshape.packed_rnn_tanh", "foreshape.packed_rnn_relu")
def _recurrent(t: TorchCall, rows: Variable, sizes: Variable, states: Any, weights: Any, *settings: Any) -> Any:
    sequences = size_of(states[0], 1)
    of = _packing(t, sizes, sequences)
    if of.rows is rows and of.x is not None:
        x = of.x
    else:
        x = _spread(t, rows, of, size_of(sizes if of.x is None else of.x, 0), sequences)
    if t.rank(x) != 3:
        raise Refused("packed rows that are no vectors")
    attrs, ordered = recurrent_attributes(t.name.removeprefix("packed_"), x, weights, *settings)
    out, _, last, _ = t.op("rnn", attrs, Input=x, PreState=states, WeightList=ordered, SequenceLength=of.lengths)
    return [layer.gather_nd(out, of.places), *last]
