"""Packed sequences in an export: packing, recurrent layers over packed rows and padding stay whole, and the batch keeps its symbol.

torch asks a tensor for the number of sequences, and an export has no numbers. It is noted at the packing instead.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from foreshape.core.values.torch_private import private
from foreshape.interop.torch.jagged_tensors import first_alike, is_jagged, parts_of, plain_results, stand_ins
from foreshape.interop.torch.replaced import replaced_methods
from foreshape.interop.torch.untyped_torch import defined_operators, own_operators, pytree, torch

SCHEMAS: Final = {
    "pack": "(Tensor x, Tensor lengths, bool batch_first) -> (Tensor, Tensor)",
    "pad_packed": "(Tensor rows, Tensor sizes, SymInt sequences, bool batch_first, float value, SymInt steps) -> (Tensor, Tensor)",
}
OVER_PACKED: Final = "(Tensor rows, Tensor sizes, Tensor[] states, Tensor[] weights, bool biases, int layers, float dropout, bool train, bool both) -> Tensor[]"
_COUNT: Final = "foreshape_sequences"
"""The attribute of a tensor of batch sizes with the number of sequences."""


def packed(x: Any, lengths: Any, batch_first: bool) -> Any:
    """Return the rows and batch sizes of a packing."""
    return tuple(one.clone() for one in private.pack_padded_sequence(x, lengths, batch_first))


def packed_shapes(x: Any, lengths: Any, batch_first: bool) -> Any:
    """Return both without numbers."""
    context = own_operators().get_ctx()
    rows, steps = context.new_dynamic_size(), context.new_dynamic_size()
    return x.new_empty((rows, *x.shape[2:])), lengths.new_empty((steps,))


def padded(rows: Any, sizes: Any, sequences: Any, batch_first: bool, value: float, steps: Any) -> Any:
    """Return the padded sequences, and their lengths."""
    return tuple(one.clone() for one in private.pad_packed_sequence(rows, sizes, batch_first, value, steps))


def padded_shapes(rows: Any, sizes: Any, sequences: Any, batch_first: bool, value: float, steps: Any) -> Any:
    """Return both without numbers."""
    lead = (sequences, steps) if batch_first else (steps, sequences)
    return rows.new_empty((*lead, *rows.shape[1:])), sizes.new_empty((sequences,))


def recurrent(kind: str, rows: Any, sizes: Any, states: Any, weights: Any, *settings: Any) -> Any:
    """Return the results and last states of recurrent layers over packed rows."""
    return [one.clone() for one in getattr(torch, kind)(rows, sizes, tuple(states) if kind == "lstm" else states[0], list(weights), *settings)]


def recurrent_shapes(rows: Any, sizes: Any, states: Any, weights: Any, biases: Any, layers: Any, dropout: Any, train: Any, both: bool) -> Any:
    """Return them without numbers."""
    return [rows.new_empty((rows.shape[0], states[0].shape[-1] * (2 if both else 1))), *[torch.empty_like(one) for one in states]]


def is_packed(value: Any) -> bool:
    """Tell whether it is torch's PackedSequence."""
    return isinstance(value, importlib.import_module("torch.nn.utils.rnn").PackedSequence)


class PackedParts(NamedTuple):
    """The tensors of a PackedSequence, in the place of one among inputs: torch.export makes and reads it without its checks."""

    data: Any
    batch_sizes: Any
    sorted_indices: Any
    unsorted_indices: Any


def plain_inputs(inputs: Any) -> Any:
    """Return inputs with `PackedParts` in the place of packed sequences, and `JaggedParts` in the place of jagged tensors."""
    return _mapped(lambda value: PackedParts(*value) if is_packed(value) else parts_of(value) if is_jagged(value) else value, inputs, is_packed)


def _mapped(function: Callable[[Any], Any], tree: Any, is_leaf: Callable[[Any], bool]) -> Any:
    return pytree().tree_map(function, tree, is_leaf=is_leaf)


@contextmanager
def packed_inputs(module: Any, inputs: Any) -> Generator[None]:
    """Let a module take `plain_inputs`, and its code packed sequences and jagged tensors, which it may also give."""
    if isinstance(module, torch.jit.ScriptModule):
        yield  # refused by torch
        return
    before = module.forward
    shared = first_alike(inputs)
    kind = importlib.import_module("torch.nn.utils.rnn").PackedSequence

    @functools.wraps(before)
    def forward(*given: Any) -> Any:
        def packed(value: Any) -> Any:
            return kind(*value) if isinstance(value, PackedParts) else value

        made = _mapped(packed, given, lambda value: isinstance(value, PackedParts))
        for one in pytree().tree_leaves(made, is_leaf=is_packed):
            note_sequences(one)
        return plain_results(before(*stand_ins(made, shared)))

    forward.__dict__["__signature__"] = inspect.signature(before)  # functools.wraps takes a method's own one, with self
    with replaced_methods([(module, "forward", forward)]):
        yield


def _sequences(sizes: Any) -> Any:
    found = getattr(sizes, _COUNT, None)
    if found is None:
        found = sizes[0].item()
        private.check(found >= 0)
        setattr(sizes, _COUNT, found)
    return found


def note_sequences(value: Any) -> None:
    """Note the number of sequences of a packed one that holds their order."""
    if is_packed(value) and value.sorted_indices is not None:
        setattr(value.batch_sizes, _COUNT, value.sorted_indices.shape[0])


def _pack(x: Any, lengths: Any, batch_first: bool) -> Any:
    rows, sizes = defined_operators().pack(x, lengths, batch_first)
    private.check(sizes.shape[0] <= x.shape[1 if batch_first else 0])
    setattr(sizes, _COUNT, x.shape[0 if batch_first else 1])
    return rows, sizes


def _pad(rows: Any, sizes: Any, batch_first: bool, value: float, steps: Any) -> Any:
    return defined_operators().pad_packed(rows, sizes, _sequences(sizes), batch_first, float(value), steps)


FUNCTIONS: Final = {"_pack_padded_sequence": _pack, "_pad_packed_sequence": _pad}
"""Their names in torch's own functions."""


def _forward(before: Callable[..., Any]) -> Callable[..., Any]:
    sequences: Any = importlib.import_module("torch.nn.utils.rnn").PackedSequence

    def forward(module: Any, input: Any, hx: Any = None) -> Any:
        if not isinstance(input, sequences):
            return before(module, input, hx)
        rows, sizes, order, back = input
        name = module.mode.lower()
        if hx is None:
            lead = module.num_layers * (2 if module.bidirectional else 1), _sequences(sizes)
            widths = [module.proj_size or module.hidden_size, *([module.hidden_size] if name == "lstm" else [])]
            states = [torch.zeros((*lead, width), dtype=rows.dtype, device=rows.device) for width in widths]
        else:
            states = [one if order is None else one.index_select(1, order) for one in (hx if name == "lstm" else [hx])]
        function = getattr(defined_operators(), f"packed_{name}")
        settings = module.bias, module.num_layers, float(module.dropout), module.training, module.bidirectional
        out, *last = function(rows, sizes, states, list(module._flat_weights), *settings)
        last = [one if back is None else one.index_select(1, back) for one in last]
        return sequences(out, sizes, order, back), tuple(last) if name == "lstm" else last[0]

    return forward


def packed_layer(part: Any) -> Any:
    """Return a forward pass for packed sequences too, of a recurrent layer; None of another module."""
    nn: Any = importlib.import_module("torch.nn")
    kind: Any = next((kind for kind in (nn.LSTM, nn.GRU, nn.RNN) if isinstance(part, kind)), None)
    return _forward(kind.forward) if kind is not None and part.__class__.forward is kind.forward else None
