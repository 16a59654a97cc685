"""Import of attention, in the form that becomes one kernel each way."""

from __future__ import annotations

import math
from typing import Any

from foreshape import layer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.open_size import size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.program import Variable
from foreshape.program.current import current_block
from foreshape.spec import BOOL, FP16, DType


@aten("scaled_dot_product_attention")
def _attention(
    t: TorchCall,
    query: Variable,
    key: Variable,
    value: Variable,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    width, of = query.spec.known_dims[-1], query.spec.known_dtype
    if not isinstance(width, int):
        raise Refused("attention over an open number of features")
    by = 1.0 / math.sqrt(width) if scale is None else float(scale)
    if enable_gqa:
        heads, own = query.spec.known_dims[-3], key.spec.known_dims[-3]
        if not isinstance(heads, int) or not isinstance(own, int):
            raise Refused("an open number of heads")
        key, value = (layer.repeat_interleave(v, heads // own, t.rank(v) - 3) if heads != own else v for v in (key, value))
    scores = t.scale(t.op("matmul_v2", {"trans_y": True}, X=query, Y=key), by)
    seen: Variable | None = None
    if is_causal:  # each row sees the first column
        sizes = t.sizes([*[1] * (t.rank(scores) - 2), size_of(query, -2), size_of(key, -2)])
        scores = layer.add(scores, layer.triu(layer.fill_constant(sizes, of, _far(of)), 1))
    if mask is not None:
        added, seen = _mask(t, mask, of)
        scores = layer.add(scores, added)
    weights = layer.softmax(scores, t.rank(scores) - 1)
    if dropout_p:
        weights = layer.dropout(weights, float(dropout_p))
    made = t.op("matmul_v2", None, X=weights, Y=value)
    return made if seen is None else layer.multiply(made, seen)


def _far(of: DType) -> float:
    """Return a number whose exponential is zero beside that of any score."""
    return -6e4 if of is FP16 else -1e9


def _mask(t: TorchCall, mask: Variable, of: DType) -> tuple[Variable, Variable | None]:
    """Return the numbers added to scores, made once for all layers, and 0 for rows without a visible column: torch gives zeros there.

    A learned mask is added as it is.
    """
    if mask.dtype is not BOOL and not mask.stop_gradient:
        return t.cast(mask, of), None
    block, known = current_block(), t.importer.masks
    key = mask.name, of.name
    if block is t.importer.program.global_block and key in known:
        return known[key]
    last = t.rank(mask) - 1
    if mask.dtype is BOOL:
        visible = layer.cast(mask, of)
        added = layer.scale(visible, -_far(of), -1.0, bias_after_scale=False)
        seen = layer.reduce_max(visible, [last], True)
    else:
        mask = t.cast(mask, of)
        added = layer.clip(mask, _far(of), -_far(of))
        seen = layer.cast(layer.greater_than(layer.reduce_max(mask, [last], True), layer.fill_constant([], of, -math.inf)), of)
    added.stop_gradient = seen.stop_gradient = True
    if block is t.importer.program.global_block:
        known[key] = added, seen
    return added, seen
