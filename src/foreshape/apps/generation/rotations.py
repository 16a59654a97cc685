"""The rotations of positions in configurations of transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from foreshape.core.data_class import data_class
from foreshape.errors import SchemaError
from foreshape.layer.positions import Rotary

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@data_class(frozen=True)
class Rotation:
    """A rotation of the columns of heads.

    Attributes:
        rotary: the settings, for all columns of a head.
        factor: of cosines and sines.
        turned: the turned columns, the first ones; None for all.
        context: the longest text with these angles; None without a limit.
    """

    rotary: Rotary
    factor: float = 1.0
    turned: int | None = None
    context: int | None = None


def rotation_of(config: Mapping[str, Any], size: int, interleaved: bool = False, of_layers: str | None = None) -> Rotation:
    """Return the rotation for heads of ``size`` columns.

    Args:
        config: of transformers, old or new.
        size: the columns of a head.
        interleaved: columns 2i and 2i + 1 are a pair.
        of_layers: the kind of layers, where each has its own: "sliding_attention" or "full_attention".

    Raises:
        SchemaError: another kind.
    """
    rope: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if of_layers is not None and of_layers in rope:
        rope = rope[of_layers] or {}
    elif of_layers == "sliding_attention" and "rope_local_base_freq" in config:  # Gemma 3 before rope_parameters: scaled in the other layers alone
        rope = {"rope_theta": config["rope_local_base_freq"]}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in KINDS:
        raise SchemaError(f"the positions must be of the kind {', '.join(map(repr, KINDS))}; seen {kind!r}")
    base: float = rope.get("rope_theta", config.get("rope_theta", config.get("rotary_emb_base", 10000.0)))
    part: float = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", config.get("rotary_pct", 1.0)))
    rotated = config.get("rotary_dim") or int(size * part)
    if rotated % 2 or (size - rotated) % 2 or not 0 < rotated <= size:
        raise SchemaError(f"the turned columns of a head must be even, and up to its {size}; seen {rotated}")
    rates = [base ** (-2.0 * i / rotated) for i in range(rotated // 2)]
    factor, context = 1.0, None
    if kind == "linear":
        rates = [r / rope["factor"] for r in rates]
    elif kind == "dynamic":  # up to this length the rates are the plain ones
        context = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    elif kind == "llama3":
        rates = [_slowed(r, rope) for r in rates]
    elif kind == "yarn":
        rates, factor = _yarn(rates, base, rope, config)
    elif kind == "longrope":
        context = rope.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
        rates = [r / divisor for r, divisor in zip(rates, rope["short_factor"], strict=True)]
        factor = rope.get("attention_factor") or _of_length((rope.get("factor") or config["max_position_embeddings"] / context), context)
    if factor != 1.0 and rotated != size:
        raise SchemaError(f"positions of the kind {kind!r} must turn all columns of a head; seen {rotated} of {size}")
    still = [0.0] * ((size - rotated) // 2)
    plain = kind in ("default", "dynamic") and not still
    rotary = Rotary(base, interleaved) if plain else Rotary(base, interleaved, [*rates, *still])
    return Rotation(rotary, factor, rotated if still and not interleaved else None, context)


def _of_length(times: float, length: float) -> float:
    return 1.0 if times <= 1.0 else math.sqrt(1 + math.log(times) / math.log(length))


def _slowed(rate: float, rope: Mapping[str, Any]) -> float:
    """Return a rate as Llama 3.1 slows it: long waves alone."""
    factor, low, high, context = (rope[n] for n in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    length = 2 * math.pi / rate
    if length < context / high:
        return rate
    if length > context / low:
        return rate / factor
    part = (context / length - low) / (high - low)
    return (1 - part) * rate / factor + part * rate


def _yarn(rates: list[float], base: float, rope: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[list[float], float]:
    """Return the rates between plain and slowed ones, and the factor (Peng et al., "YaRN", 2023)."""
    context = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    factor = rope.get("factor") or config["max_position_embeddings"] / context
    columns = 2 * len(rates)

    def place(turns: float) -> float:
        return columns * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = place(rope.get("beta_fast") or 32), place(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, columns - 1)
    high = high + 0.001 if low == high else high
    slowed = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(len(rates))]
    scale: float | None = rope.get("attention_factor")
    if scale is None:
        mscale, all_dims = rope.get("mscale"), rope.get("mscale_all_dim")
        scale = _sharper(factor, mscale) / _sharper(factor, all_dims) if mscale and all_dims else _sharper(factor, 1.0)
    return [r / factor * s + r * (1 - s) for r, s in zip(rates, slowed, strict=True)], scale


def _sharper(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
