"""The rotations of positions in configurations of transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from foreshape.data_class import data_class
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
    given: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if of_layers is not None and of_layers in given:
        given = given[of_layers] or {}
    elif of_layers == "sliding_attention" and "rope_local_base_freq" in config:  # Gemma 3 before rope_parameters: scaled in the other layers alone
        given = {"rope_theta": config["rope_local_base_freq"]}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in KINDS:
        raise SchemaError(f"the positions must be of the kind {', '.join(map(repr, KINDS))}; seen {kind!r}")
    base: float = given.get("rope_theta", config.get("rope_theta", config.get("rotary_emb_base", 10000.0)))
    part: float = given.get("partial_rotary_factor", config.get("partial_rotary_factor", config.get("rotary_pct", 1.0)))
    turned = config.get("rotary_dim") or int(size * part)
    if turned % 2 or (size - turned) % 2 or not 0 < turned <= size:
        raise SchemaError(f"the turned columns of a head must be even, and up to its {size}; seen {turned}")
    rates = [base ** (-2.0 * i / turned) for i in range(turned // 2)]
    factor, context = 1.0, None
    if kind == "linear":
        rates = [r / given["factor"] for r in rates]
    elif kind == "dynamic":  # up to this length the rates are the plain ones
        context = given.get("original_max_position_embeddings") or config["max_position_embeddings"]
    elif kind == "llama3":
        rates = [_slowed(r, given) for r in rates]
    elif kind == "yarn":
        rates, factor = _yarn(rates, base, given, config)
    elif kind == "longrope":
        context = given.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
        rates = [r / by for r, by in zip(rates, given["short_factor"], strict=True)]
        factor = given.get("attention_factor") or _of_length((given.get("factor") or config["max_position_embeddings"] / context), context)
    if factor != 1.0 and turned != size:
        raise SchemaError(f"positions of the kind {kind!r} must turn all columns of a head; seen {turned} of {size}")
    still = [0.0] * ((size - turned) // 2)
    plain = kind in ("default", "dynamic") and not still
    rotary = Rotary(base, interleaved) if plain else Rotary(base, interleaved, [*rates, *still])
    return Rotation(rotary, factor, turned if still and not interleaved else None, context)


def _of_length(times: float, before: float) -> float:
    return 1.0 if times <= 1.0 else math.sqrt(1 + math.log(times) / math.log(before))


def _slowed(rate: float, given: Mapping[str, Any]) -> float:
    """Return a rate as Llama 3.1 slows it: long waves alone."""
    factor, low, high, before = (given[n] for n in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    length = 2 * math.pi / rate
    if length < before / high:
        return rate
    if length > before / low:
        return rate / factor
    part = (before / length - low) / (high - low)
    return (1 - part) * rate / factor + part * rate


def _yarn(rates: list[float], base: float, given: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[list[float], float]:
    """Return the rates between plain and slowed ones, and the factor (Peng et al., "YaRN", 2023)."""
    before = given.get("original_max_position_embeddings") or config["max_position_embeddings"]
    factor = given.get("factor") or config["max_position_embeddings"] / before
    columns = 2 * len(rates)

    def place(turns: float) -> float:
        return columns * math.log(before / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = place(given.get("beta_fast") or 32), place(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, columns - 1)
    high = high + 0.001 if low == high else high
    slowed = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(len(rates))]
    of: float | None = given.get("attention_factor")
    if of is None:
        one, all_dims = given.get("mscale"), given.get("mscale_all_dim")
        of = _sharper(factor, one) / _sharper(factor, all_dims) if one and all_dims else _sharper(factor, 1.0)
    return [r / factor * s + r * (1 - s) for r, s in zip(rates, slowed, strict=True)], of


def _sharper(factor: float, by: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0
