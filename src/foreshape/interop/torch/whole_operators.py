"""Operators of torch kept whole in an export.

It would write out each step of a recurrent layer, and so fix the length of the sequences; and the arithmetic of an alpha dropout, which a test leaves out.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from foreshape.core.values.torch_private import private
from foreshape.interop.torch import jagged_axes, jagged_functions, jagged_tensors, packed_sequences, recorded_loops
from foreshape.interop.torch.replaced import StandIns
from foreshape.interop.torch.traced_gradients import define_gradients
from foreshape.interop.torch.untyped_torch import defined_operators, defining, is_list, own_operators, torch

_OF_JAGGED: Final = (jagged_axes, jagged_functions)
"""Imported for their rules, the functions of jagged tensors."""
_KINDS: Final = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
"""The name in torch -> the number of states."""
_RECURRENT: Final = "(Tensor x, Tensor[] states, Tensor[] weights, bool biases, int layers, float dropout, bool train, bool both, bool batch_first) -> Tensor[]"
_DROPOUTS: Final = ("alpha_dropout", "feature_alpha_dropout")
_DROPOUT: Final = "(Tensor x, float p, bool train) -> Tensor"
_CTC: Final = "(Tensor x, Tensor labels, Tensor steps, Tensor lengths, int blank, bool zero_infinity) -> Tensor"


@defining
@functools.cache
def define() -> Any:
    """Define the operators ``foreshape::lstm`` and its like in torch, once; they live as long as the returned object."""
    defining = own_operators()
    fragment = defining.Library("foreshape", "FRAGMENT")
    for kind in _KINDS:
        fragment.define(f"{kind}{_RECURRENT}")
        fragment.impl(kind, functools.partial(_computed, kind), "CompositeExplicitAutograd")
        defining.register_fake(f"foreshape::{kind}", _shaped, lib=fragment)
        fragment.define(f"packed_{kind}{packed_sequences.OVER_PACKED}")
        fragment.impl(f"packed_{kind}", functools.partial(packed_sequences.recurrent, kind), "CompositeExplicitAutograd")
        defining.register_fake(f"foreshape::packed_{kind}", packed_sequences.recurrent_shapes, lib=fragment)
    for name, run, shaped in (
        ("pack", packed_sequences.packed, packed_sequences.packed_shapes),
        ("pad_packed", packed_sequences.padded, packed_sequences.padded_shapes),
    ):
        fragment.define(name + packed_sequences.SCHEMAS[name])
        fragment.impl(name, run, "CompositeExplicitAutograd")
        defining.register_fake(f"foreshape::{name}", shaped, lib=fragment)
    for kind in _DROPOUTS:
        fragment.define(f"{kind}{_DROPOUT}")
        fragment.impl(kind, functools.partial(_dropped, kind), "CompositeExplicitAutograd")
        defining.register_fake(f"foreshape::{kind}", _as_given, lib=fragment)
    for name, schema in jagged_tensors.SCHEMAS.items():
        fragment.define(name + schema)
        defining.register_fake(f"foreshape::{name}", jagged_tensors.SHAPED[name], lib=fragment)
    fragment.define(f"all_rounds{recorded_loops.ALL_ROUNDS}")
    fragment.impl("all_rounds", recorded_loops.joined_rounds, "CompositeExplicitAutograd")
    defining.register_fake("foreshape::all_rounds", recorded_loops.shape_of_rounds, lib=fragment)
    define_gradients(fragment)
    fragment.define(f"ctc{_CTC}")
    fragment.impl("ctc", _aligned, "CompositeExplicitAutograd")
    defining.register_fake("foreshape::ctc", _for_each, lib=fragment)
    return fragment


def _computed(kind: str, x: Any, states: Any, weights: Any, *settings: Any) -> Any:
    given = tuple(states) if kind == "lstm" else states[0]
    return [one.clone() for one in getattr(torch, kind)(x, given, list(weights), *settings)]


def _shaped(x: Any, states: Any, weights: Any, biases: Any, layers: Any, dropout: Any, train: Any, both: bool, batch_first: Any) -> Any:
    width = states[0].shape[-1] * (2 if both else 1)
    return [x.new_empty((*x.shape[:-1], width)), *[torch.empty_like(one) for one in states]]


def _dropped(kind: str, x: Any, p: float, train: bool) -> Any:
    return getattr(torch, kind)(x, p, train).clone()


def _as_given(x: Any, p: float, train: bool) -> Any:
    return torch.empty_like(x)


def _aligned(x: Any, labels: Any, steps: Any, lengths: Any, blank: int, zero_infinity: bool) -> Any:
    return _CTC_LOSS(x, labels, steps, lengths, blank, 0, zero_infinity).clone()


def _for_each(x: Any, labels: Any, steps: Any, lengths: Any, blank: int, zero_infinity: bool) -> Any:
    return x.new_empty((x.shape[1],))


def _pooled(x: Any, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    """Return torch.max_pool1d as a pooling of images of one row: torch's own fixes the length."""
    given: list[Any] = [kernel, stride or kernel, padding, dilation]
    sizes, strides, pads, dilations = ([*one] if is_list(one) else [one] for one in given)
    made = torch.max_pool2d(x.unsqueeze(-2), (1, *sizes), (1, *strides), (0, *pads), (1, *dilations), ceil_mode)
    return made.squeeze(-2)


def _of_alignments(x: Any, labels: Any, steps: Any, lengths: Any, blank: int = 0, reduction: int = 1, zero_infinity: bool = False) -> Any:
    """Return torch.ctc_loss, of padded labels and lengths in tensors whole: torch has no shapes for it."""
    if x.dim() != 3 or labels.dim() != 2 or not (isinstance(steps, torch.Tensor) and isinstance(lengths, torch.Tensor)):
        return _CTC_LOSS(x, labels, steps, lengths, blank, reduction, zero_infinity)
    x = x.float() if torch.is_autocast_enabled(x.device.type) else x
    made = defined_operators().ctc(x, labels, steps, lengths, blank, zero_infinity)
    if reduction == 1:
        return (made / lengths.clamp(min=1).to(made.dtype)).mean()
    return made if reduction == 0 else made.sum()


def _autocast(x: Any) -> Any:
    """Return a tensor in the element type of the region of torch.autocast around, as torch casts operands of its own operators."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if x.dtype == torch.float32 and torch.is_autocast_enabled(kind) else x


_CTC_LOSS: Final[Any] = torch.ctc_loss


class _Whole:
    """torch's functions, these whole."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._before, name)
        if name in packed_sequences.FUNCTIONS:
            return packed_sequences.FUNCTIONS[name]
        if name not in _KINDS:
            return function

        def call(x: Any, states: Any, weights: Any, *rest: Any, **named: Any) -> Any:
            if named or isinstance(weights, torch.Tensor) or len(rest) != 6:  # packed
                return function(x, states, weights, *rest, **named)
            given = list(states) if name == "lstm" else [states]
            if name != "gru":  # torch casts its products alone in a gru
                x, (given, weights) = _autocast(x), ([_autocast(one) for one in given], [_autocast(one) for one in weights])
            return tuple(getattr(defined_operators(), name)(x, given, list(weights), *rest))

        return call


def max_pool1d(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """Return torch.nn.functional.max_pool1d, its length open."""
    if return_indices:
        return torch.nn.functional.max_pool1d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode)
    return _pooled(x, kernel_size, stride, padding, dilation, ceil_mode)


def _alpha_dropout(x: Any, p: float, train: bool, *, name: str) -> Any:
    return getattr(defined_operators(), name)(x, p, train)


@functools.cache
def stand_ins() -> tuple[dict[Any, Any], list[Any]]:
    """Return functions of torch with the ones in their place, and the functions of torch around them."""
    functional: Any = torch.nn.functional
    library: Any = importlib.import_module("torch")
    hidden = library._VF
    whole = _Whole(hidden)
    functions = {
        library.max_pool1d: _pooled,
        functional.max_pool1d: max_pool1d,
        library.ctc_loss: _of_alignments,
        library.stack: recorded_loops.stacked,
        library.cat: recorded_loops.concatenated,
        **{getattr(hidden, name + end): functools.partial(_alpha_dropout, name=name) for name in _DROPOUTS for end in ("", "_")},
        **{getattr(hidden, name): getattr(whole, name) for name in (*_KINDS, *packed_sequences.FUNCTIONS)},
        **recorded_loops.open_entries(),
    }
    return functions, [getattr(functional, name) for name in ("ctc_loss", *_DROPOUTS)]


@contextmanager
def whole_operators() -> Generator[None]:
    """Keep recurrent layers, alpha dropouts and alignments whole, and pooled lengths open, while a module is exported."""
    with StandIns(*stand_ins()), jagged_tensors.jagged_tensors():
        yield


def _written_layer(name: str) -> Any:
    """Return a recurrent layer of written code, whole: of sequences or packed rows."""

    def call(x: Any, second: Any, third: Any, *rest: Any) -> Any:
        packed = isinstance(third, (tuple, torch.Tensor)) and isinstance(second, torch.Tensor) and is_list(rest[0])
        states, weights = (third, rest[0]) if packed else (second, third)
        given = list(states) if name == "lstm" else [states]
        if packed:
            return tuple(getattr(defined_operators(), f"packed_{name}")(x, second, given, list(weights), *rest[1:]))
        return tuple(getattr(defined_operators(), name)(x, given, list(weights), *rest))

    return call


@contextmanager
def whole_layers() -> Generator[None]:
    """Keep recurrent layers whole in an export of written code."""
    with whole_operators(), StandIns({getattr(torch, name): _written_layer(name) for name in _KINDS}):
        yield


def with_torch_layers(exported: Any) -> None:
    """Put torch's own operators in the places of the whole ones, in a graph of torch.export."""
    for node in exported.graph.nodes:
        name = str(node.target).removeprefix("foreshape.").removesuffix(".default")
        if name == str(node.target):
            continue
        args = list(node.args)
        kind = name.removeprefix("packed_")
        if kind in _KINDS:
            at = 2 if name != kind else 1
            if kind != "lstm":
                args[at] = args[at][0]
            node.target = getattr(getattr(torch.ops.aten, kind), "data" if name != kind else "input")
            node.meta["val"] = tuple(node.meta["val"])
        elif name == "pack":
            node.target = private.pack_padded
        elif name == "pad_packed":
            rows, sizes, _, batch_first, value, steps = args
            args = [rows, sizes, batch_first, value, steps]
            node.target = private.pad_packed
        node.args = tuple(args)
    exported.graph_module.recompile()
