"""Decoders with weights of 8 or 4 bits: their programs, and the values of the packed weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from foreshape.apps.quantization.grouped_layers import Rows, Weights, grouped_layers_of, require_weights, with_groups
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import SchemaError
from foreshape.language.program import Program, Variable
from foreshape.layer.cached_rows import AttentionCache
from foreshape.machine.kernels.grouped_weights import GroupedNumbers, unpack_numbers
from foreshape.runtime.engine import Scope
from foreshape.transforms.passes.framework import Pass


class PackedNetwork(NamedTuple):
    """A decoder with packed weights.

    Attributes:
        words, scores, cache: as of a `LanguageModel`, in its own program.
        values: the arrays of its packed weights and their scales, by name.
    """

    words: Variable
    scores: Variable
    cache: AttentionCache
    values: dict[str, Any]


def packed_network(
    words: Variable,
    scores: Variable,
    cache: AttentionCache,
    value_of: Callable[[str], Tensor | GroupedNumbers],
    weights: Weights,
    group: int,
    exclude: Sequence[str] = (),
    only: Collection[str] | None = None,
    rows: Rows = "fp32",
) -> PackedNetwork:
    """Return a decoder with its constant matrices packed; the given program stays.

    Args:
        words, scores, cache: of the decoder.
        value_of: from a matrix's name to its value, or to its rounded numbers, which stay as they are; asked once for each.
        weights: "int8" or "int4"; a table of words is of 8 bits.
        group: the most rows of a weight with one scale.
        exclude: patterns of layers to leave in fp32, as for `fs.quantize`.
        only: the names of the matrices to pack, if any of them can be; None for all.
        rows: "fp32", or "int8": rounded in products with packed weights.

    Raises:
        SchemaError: other weights or rows, or no layer to pack.
    """
    require_weights(weights, group, rows)
    values: dict[str, Any] = {}

    def change(copy: Program) -> bool:
        layers = grouped_layers_of(copy, exclude)
        if only is not None:
            layers = [layer for layer in layers if layer.weight in only]
        elif not layers:
            raise SchemaError("there is nothing to quantize: no product of fp32 rows with a constant matrix is left")
        values.update(with_groups(copy, layers, value_of, weights, group, rows))
        return True

    program, _ = Pass("quantize", change)(scores.block.program)
    find = program.global_block.var
    moved = AttentionCache(find(cache.slots.name), find(cache.held.name), find(cache.positions.name), cache.users, cache.context)
    moved.kept = [find(v.name) for v in cache.kept]
    return PackedNetwork(find(words.name), find(scores.name), moved, values)


class PackedValues:
    """The values of a decoder's parameters, packed or not.

    Args:
        program: of the decoder.
        scope: with its values.
    """

    def __init__(self, program: Program, scope: Scope) -> None:
        self._vars, self._scope = program.global_block.vars, scope

    def value(self, name: str) -> Tensor | GroupedNumbers:
        """Return a parameter's value on the host, in its own dims: in fp32, or as packed numbers, of a product rather than of a table."""
        if name in self._vars:
            return self._tensor(name)
        for key in (f"{name}@{bits}_bits{turned}" for bits in (8, 4) for turned in ("", "_turned")):
            if key in self._vars:
                packed, scales = self._tensor(key), self._tensor(f"{key}@scale")
                offsets = self._tensor(f"{key}@offset") if f"{key}@offset" in self._vars else None
                columns: int = next(op.attrs["columns"] for op in self._vars[key].block.ops if key in op.input_names())
                numbers = unpack_numbers(packed, scales, 8 if "@8_bits" in key else 4, columns, offsets)
                return numbers.changed(torch.t) if key.endswith("_turned") else numbers
        table = f"{name}@bytes_in_rows"
        return GroupedNumbers(self._tensor(table), self._tensor(f"{table}@scale").unsqueeze(1), 8)

    def _tensor(self, name: str) -> Tensor:
        return self._scope.tensor(name).detach().cpu()
