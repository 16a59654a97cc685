"""The cache of attention: keys and values of the rows before, kept from run to run, for networks that write a text word by word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.core.spec import INT64, LOD_TENSOR, Spec
from foreshape.errors import ShapeError
from foreshape.language.program import current_block
from foreshape.language.program.call_site import here, tells_line
from foreshape.language.program.scopes import current_scope, scoped_name
from foreshape.language.program.variable import Variable, dims_of

if TYPE_CHECKING:
    from foreshape.layer.positions import Rotary


class AttentionCache:
    """Keys and values of earlier rows, for each of some users' texts; `attention_cache` describes one.

    Attributes:
        slots: the input ``cache.slots``, int64 ``[batch]``: the place in the cache of each text of this run.
        held: the input ``cache.held``, int64 ``[batch]``: the number of its rows there already.
        positions: int64, ragged ``[rows]``: the number of each new row in its text.
        users, context: the sizes of the cache: texts, and rows for each.
        kept: the persistable variables ``[users, context, columns]`` made so far, two for each attention.
    """

    def __init__(self, slots: Variable, held: Variable, positions: Variable, users: Any, context: Any) -> None:
        self.slots, self.held, self.positions = slots, held, positions
        self.users, self.context = users, context
        self.kept: list[Variable] = []
        self._turns: dict[Any, Any] = {}

    def attend(
        self,
        query: Variable,
        key: Variable,
        value: Variable,
        heads: int = 1,
        key_heads: int | None = None,
        scale: float | None = None,
        window: int | None = None,
        score_cap: float | None = None,
    ) -> Variable:
        """Compute attention of new rows to the rows of their texts: earlier ones in the cache, and the new ones up to their own.

        Args:
            query: ragged ``[rows, heads * size]``, as the input of the cache.
            key, value: ragged ``[rows, key_heads * size]``. They are put into the cache.
            heads: the equal parts of the columns of ``query``.
            key_heads: those of ``key`` and ``value``, by default as many; they divide ``heads``, and several heads in a row share one.
            scale: the factor of the products; by default one over the root of a head's columns.
            window, score_cap: as for `multi_head_attention`.

        Returns:
            Ragged rows as ``query``.
        """
        key_heads = heads if key_heads is None else key_heads
        columns = key.spec.known_dims[-1]
        caches = [self._persistable(role, columns, key) for role in ("keys", "values")]
        inputs = {"Q": query, "K": key, "V": value, "Slots": self.slots, "Held": self.held, "KeyCache": caches[0], "ValueCache": caches[1]}
        outputs = {"KeyCacheOut": caches[0], "ValueCacheOut": caches[1]}
        attrs = {"heads": heads, "key_heads": key_heads, "scale": scale or 0.0, "window": window or 0, "score_cap": score_cap or 0.0}
        op = current_block().append_op("cached_attention", inputs, outputs, attrs)
        self.kept += caches
        return current_block().vars[op.output_slots["Out"][0]]

    def turn(self, rotary: Rotary, size: int, like: Variable) -> tuple[Variable, Variable]:
        """Return the cosines and sines of `Rotary` at the new rows, described once for all layers of a network.

        Args:
            rotary, size, like: as for `Rotary.turn`.
        """
        key = rotary.key, size, like.spec.dtype
        if key not in self._turns:
            self._turns[key] = rotary.turn(self.positions, size, like)
        return self._turns[key]

    def __repr__(self) -> str:
        return f"AttentionCache(users={self.users}, context={self.context}, of {len(self.kept) // 2} attentions)"

    def _persistable(self, role: str, columns: Any, like: Variable) -> Variable:
        block = current_block().program.global_block
        name = scoped_name(block.program, role) if current_scope() else block.program.unique_name(role)
        spec = Spec(LOD_TENSOR, like.spec.dtype, (self.users, self.context, columns))
        return block.create_variable(name, spec, site=here(), persistable=True, stop_gradient=True)


@tells_line
def attention_cache(words: Variable, users: int | str = "users", context: int | str = "context", name: str = "cache") -> AttentionCache:
    """Describe a cache of keys and values, so each run computes new rows alone, and attention looks at all rows of their texts.

    The cache is part of the program's plan, by the symbols of its sizes: ``plan.largest("users", within="16 GiB", context=4096)``.
    Its values are no parameters: `foreshape.LanguageModel` makes them, and feeds ``cache.slots`` and ``cache.held``.

    Examples:
        >>> words = layer.data("words", ["rows"], "int64", lod_level=1)
        >>> cache = layer.attention_cache(words)
        >>> h = layer.transformer_encoder(layer.embedding(words, [5000, 64]), layers=2, heads=4, causal=True, rotary=True, cache=cache)

    Args:
        words: a ragged input of one level: the new rows of each text.
        users: the most texts at a time: a number, or the name of a symbol.
        context: the most rows of a text.
        name: the first part of the names of the inputs ``cache.slots`` and ``cache.held``.

    Raises:
        ShapeError: dense words, or several levels. SchemaError: the name of an input is taken.
    """
    from foreshape.layer.basic import data

    lod = words.spec.lod
    if lod is None or len(lod.counts) != 1:
        raise ShapeError.must(f"attention_cache({words.name}): words", "ragged, of one level", words.spec.text())
    sizes: Sequence[Any] = dims_of(name, [users, context])[0]
    slots, held_counts = (data(f"{name}.{role}", [lod.counts[0]], INT64) for role in ("slots", "held"))
    positions = current_block().apply("cached_positions", {"X": words, "Held": held_counts}, prefix=f"{name}.positions")
    return AttentionCache(slots, held_counts, positions, *sizes)
