"""`Architecture`: the description of a decoder, and the weights of its parameters in a source with other names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from foreshape import layer
from foreshape.core.data_class import data_class, field
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.program import Program, Variable, program_guard

Values = Callable[[str], "Tensor | None"]
"""The value of a name in the source; None if it is not there."""
Pick = Callable[[Tensor, "Architecture"], Tensor]
"""A part of a weight of several products, by its first dim."""


@data_class(frozen=True)
class WeightNames:
    """The names of weights in a source.

    Attributes:
        words, positions, norm, head: of the tables, the last normalization, and the output layer.
        block: the first part of the names of a block, with ``{}`` for its number.
        parts: part of a block here -> there, or a pair with the share of a joined weight.
        turned: True if the weights of products are ``[out, in]``.
    """

    words: str
    norm: str
    block: str
    parts: Mapping[str, str | tuple[str, Pick]]
    positions: str = ""
    head: str = "lm_head"
    turned: bool = True


@data_class(frozen=True)
class Architecture:
    """A decoder's description: of its blocks and their surroundings.

    Attributes:
        vocabulary, width, layers, context: its sizes; ``context`` is the longest text it was made for.
        blocks: the arguments of `layer.transformer_encoder`.
        names: of its weights.
        each: arguments of single blocks.
        positions: True if it adds a learned row for each position.
        skipped: the unused rows at the beginning of the positions' table.
        tied: True if the table of words is the output layer too.
        head_bias: True if the output layer has a bias.
        biased: the parts of blocks with biases in the source: "qkv", "output", "mlp", "norm". The others get zeros where a block has any.
        word_factor, score_factor: of the rows of words, and of the scores.
        score_cap: each score s becomes cap * tanh(s / cap).
        query_factor: of queries, beside one over the root of a head's columns.
        result_factor: of the results of attention and the small network.
        norm_shift: is added to the weights of normalizations.
        turned_columns: the turned columns, the first ones of each head, in halves; None for all.
    """

    vocabulary: int
    width: int
    layers: int
    context: int
    blocks: Mapping[str, Any]
    names: WeightNames
    each: Sequence[Mapping[str, Any]] = ()
    positions: bool = False
    skipped: int = 0
    tied: bool = False
    head_bias: bool = False
    biased: Collection[str] = field(default_factory=frozenset[str])
    word_factor: float = 1.0
    score_factor: float = 1.0
    score_cap: float | None = None
    query_factor: float = 1.0
    result_factor: float = 1.0
    norm_shift: float = 0.0
    turned_columns: int | None = None

    @property
    def heads(self) -> tuple[int, int, int]:
        """Return the numbers of heads of queries and of keys, and the columns of one."""
        heads = self.blocks["heads"]
        return heads, self.blocks.get("key_heads") or heads, self.blocks.get("head_size") or self.width // heads

    def scores(self, words: Variable, cache: Any = None) -> Variable:
        """Describe the network: from ragged words to the scores of each text's next word, ``[batch, vocabulary]``."""
        h = layer.embedding(words, [self.vocabulary, self.width], weight="words.weight")
        if self.word_factor != 1.0:
            h = h * self.word_factor
        if self.positions:
            numbers = layer.cast(layer.position_numbers(words), "int64") if cache is None else cache.positions
            h = h + layer.embedding(numbers, [self.context, self.width], weight="positions.weight")
        h = layer.transformer_encoder(h, self.layers, causal=True, cache=cache, each=self.each, **self.blocks)
        last = layer.sequence_last_step(h)
        if self.tied:
            scores = layer.matmul(last, layer.create_parameter([self.vocabulary, self.width], "fp32", "words.weight"), transpose_y=True)
        else:
            scores = layer.fc(last, self.vocabulary, weight="head.weight", bias="head.bias" if self.head_bias else False)
        if self.score_factor != 1.0:
            scores = scores * self.score_factor
        return scores if self.score_cap is None else layer.tanh(scores * (1.0 / self.score_cap)) * self.score_cap

    def parameters(self) -> dict[str, Variable]:
        """Return the parameters of the network by their names."""
        program = Program()
        with program_guard(program, Program()):
            words = layer.data("words", ["rows"], "int64", lod_level=1)
            self.scores(words, layer.attention_cache(words))
        return {v.name: v for v in program.parameters()}

    # --- weights

    def value(self, name: str, source: Values) -> Tensor | None:
        """Return the value of a parameter of `scores`; None if the source has none."""
        outside = {"words": self.names.words, "positions": self.names.positions, "encoder.norm": self.names.norm, "head": self.names.head}
        place, kind = name.rsplit(".", 1)
        if place in outside:
            value = source(f"{outside[place]}.{kind}")
            if value is None and place == "head":  # modules of newer transformers name it so, whatever their files say
                value = source(f"lm_head.{kind}")
            if value is None:
                return None
            if place == "head" and kind == "weight":
                return value.T
            return value[self.skipped :] if place == "positions" else value + self.norm_shift if place == "encoder.norm" and kind == "weight" else value
        match = re.fullmatch(r"encoder\.(\d+)\.(.+)", place)
        return None if match is None else self._of_block(int(match[1]), match[2], kind, source)

    def _of_block(self, index: int, part: str, kind: str, source: Values) -> Tensor | None:
        entry = self.names.parts.get(part)
        if entry is None:
            return None
        theirs, pick = (entry, None) if isinstance(entry, str) else entry
        product = not part.endswith("_norm")
        if kind == "bias" and not self.has_bias(part):
            weight = self._of_block(index, part, "weight", source)
            return None if weight is None else torch.zeros(weight.shape[-1])
        value = source(f"{self.names.block.format(index)}{theirs}.{kind}")
        if value is None:
            return None
        if product and kind == "weight" and not self.names.turned:
            value = value.T
        if pick is not None:
            value = pick(value, self)
        value = self._changed(value.float(), part, kind)
        return value.T if product and kind == "weight" else value

    def _changed(self, value: Tensor, part: str, kind: str) -> Tensor:
        """Return a weight whose first dim is the result's, or a bias, with factors in it and the columns of heads in our order."""
        if part.endswith("_norm"):
            value = value + self.norm_shift if kind == "weight" else value
        if part.startswith(("attention.query", "attention.key")):
            value = self._halves_apart(value)
        factor = self.factor_of(part)
        return value if factor == 1.0 else value * factor

    def factor_of(self, part: str) -> float:
        """Return the factor in the weight and the bias of a part of a block here, and not in a source."""
        if part in ("attention.output", "mlp.outer"):
            return self.result_factor
        normed = self.blocks.get("query_norm") is not None
        return self.query_factor if part == ("attention.query_norm" if normed else "attention.query") else 1.0

    def has_bias(self, part: str) -> bool:
        """Tell whether sources have a bias of a part of a block."""
        return _group(part) in self.biased

    def _halves_apart(self, value: Tensor) -> Tensor:
        """Put the halves of turned columns half a head apart, as in a head turned whole; the others stand between."""
        size, rotated = self.heads[2], self.turned_columns
        if rotated is None:
            return value
        order = list(range(size))
        first, second, remaining = order[: rotated // 2], order[rotated // 2 : rotated], order[rotated:]
        half = len(remaining) // 2
        by_head = value.reshape(-1, size, *value.shape[1:])
        return by_head[:, [*first, *remaining[:half], *second, *remaining[half:]]].reshape(value.shape)


def _group(part: str) -> str:
    """Return the group of a part of a block, for `Architecture.biased`."""
    if part.endswith("_norm"):
        return "norm"
    return "mlp" if part.startswith("mlp") else "output" if part == "attention.output" else "qkv"
