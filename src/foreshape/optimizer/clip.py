"""Gradient clipping: ops between the gradients and the updates. Sparse gradients are clipped as their merged rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foreshape.core.constructor_repr import ConstructorRepr
from foreshape.core.spec import BF16, FP16, FP32, SELECTED_ROWS, DType
from foreshape.errors import SchemaError
from foreshape.language.program import Block, Variable

Pairs = Sequence[tuple[Variable, Variable]]


class GradientClip(ConstructorRepr):
    """The base: `append` appends the ops to clip the gradients of (parameter, gradient) pairs, in place, and returns the pairs."""

    def append(self, pairs: Pairs) -> Pairs:
        """Clip the gradients of ``pairs``; returns the pairs with the clipped gradients."""
        for parameter, gradient in pairs:
            kind, attrs = self.op()
            gradient.block.append_op(kind, {"X": gradient}, {"Out": gradient}, attrs, role_variables=(parameter.name, gradient.name), site=parameter.site)
        return pairs

    def op(self) -> tuple[str, dict[str, Any]]:
        """Return type and attributes of the op for one gradient alone."""
        raise SchemaError(f"{type(self).__name__} does not say how it clips")


class ClipByValue(GradientClip):
    """Each element of each gradient is brought into [min, max].

    Args:
        max: the upper bound.
        min: the lower bound; by default -max.
    """

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max = float(max)
        self.min = -self.max if min is None else float(min)
        if not self.min <= self.max:
            raise SchemaError(f"ClipByValue needs min <= max; seen min {self.min} and max {self.max}")

    def _arguments(self) -> Mapping[str, Any]:
        return {"min": None if self.min == -self.max else self.min}

    def op(self) -> tuple[str, dict[str, Any]]:
        return "clip", {"min": self.min, "max": self.max}


class ClipByNorm(GradientClip):
    """A gradient whose L2 norm is above ``clip_norm`` is scaled down to it, each gradient by itself."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = _positive("ClipByNorm", clip_norm)

    def op(self) -> tuple[str, dict[str, Any]]:
        return "clip_by_norm", {"max_norm": self.clip_norm}


class ClipByGlobalNorm(GradientClip):
    """All gradients are scaled by clip_norm / max(clip_norm, norm), where norm is the L2 norm of all of them together
    (Pascanu et al., 2013)."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = _positive("ClipByGlobalNorm", clip_norm)

    def append(self, pairs: Pairs) -> Pairs:
        if not pairs:
            return pairs
        last = pairs[-1]
        squares: list[Variable] = []
        dtype = _common_type([g for _, g in pairs])
        for pair in pairs:
            dense = pair[1]
            if dense.kind is SELECTED_ROWS:
                dense = _apply(pair, "merge_selected_rows", {"X": dense})
                dense = _apply(pair, "get_tensor_from_selected_rows", {"X": dense})
            squares.append(_as(pair, _apply(pair, "squared_l2_norm", {"X": dense}), dtype))
        total = _apply(last, "sum", {"X": squares}, prefix="add_n")
        norm = _apply(last, "sqrt", {"X": total})
        limit = {"shape": [1], "dtype": dtype.code, "value": self.clip_norm, "str_value": repr(self.clip_norm)}
        bound = _apply(last, "fill_constant", {}, limit)
        larger = _apply(last, "elementwise_max", {"X": bound, "Y": norm})
        scale = _apply(last, "elementwise_div", {"X": bound, "Y": larger})
        for pair in pairs:
            factor = _as(pair, scale, pair[1].spec.known_dtype)
            _block(pair).append_op("elementwise_mul", {"X": pair[1], "Y": factor}, {"Out": pair[1]}, role_variables=_names(pair), site=pair[0].site)
        return pairs


def _positive(subject: str, norm: float) -> float:
    if not norm > 0:
        raise SchemaError(f"{subject} needs a norm above 0; seen {norm}")
    return float(norm)


def _common_type(gradients: Sequence[Variable]) -> DType:
    """Return the element type for the sums of norms: the gradients' own, if they share one; fp32 for mixed and 16-bit ones."""
    types = {g.spec.known_dtype for g in gradients}
    only = next(iter(types))
    return only if len(types) == 1 and only not in (FP16, BF16) else FP32


def _names(pair: tuple[Variable, Variable]) -> tuple[str, str]:
    return pair[0].name, pair[1].name


def _block(pair: tuple[Variable, Variable]) -> Block:
    return pair[1].block


def _apply(pair: tuple[Variable, Variable], kind: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None, prefix: str | None = None) -> Variable:
    """Append an op for a (parameter, gradient) pair and return its result Out."""
    block = _block(pair)
    prefix = block.program.unique_name(prefix) if prefix is not None else None
    op = block.append_op(kind, inputs, None, attrs, role_variables=_names(pair), prefix=prefix, site=pair[0].site)
    return block.vars[op.outputs["Out"][0]]


def _as(pair: tuple[Variable, Variable], value: Variable, dtype: DType) -> Variable:
    source = value.spec.known_dtype
    return value if source is dtype else _apply(pair, "cast", {"X": value}, {"in_dtype": source.code, "out_dtype": dtype.code})
