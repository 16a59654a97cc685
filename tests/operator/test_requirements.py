"""Requirements of rules: what they leave open is true for the same sizes as what was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foreshape.core.dims import Size, evaluate, minimum, substitute, symbol
from foreshape.language.operator.require import Condition, collector, require_broadcast, require_broadcast_to, require_equal

WORDS, OTHERS = symbol("words"), symbol("others")
BESIDE = [minimum(WORDS, 64), minimum(WORDS, 1), minimum(WORDS + 1, 5) - 1, minimum(WORDS, OTHERS), minimum(WORDS, OTHERS + 2, 7), minimum(WORDS, 0)]
ASKED: dict[Callable[..., Size], Callable[[int, int], bool]] = {
    require_equal: lambda a, b: a == b,
    require_broadcast: lambda a, b: a == b or 1 in (a, b),
    require_broadcast_to: lambda a, b: b == a or a == 1,
}


def left_open(ask: Callable[..., Size], a: Size, b: Size) -> tuple[Size, list[Condition]]:
    """Ask, and return the common size and the open conditions."""
    before, collector.conditions = collector.conditions, []
    try:
        return ask(a, b, "they fit"), collector.conditions
    finally:
        collector.conditions = before


@pytest.mark.parametrize("least", BESIDE, ids=str)
@pytest.mark.parametrize("ask", ASKED, ids=lambda ask: ask.__name__)
def test_a_size_beside_its_minimum_asks_for_no_more_and_no_less(ask: Callable[..., Size], least: Any) -> None:
    for a, b in ((WORDS, least), (least, WORDS)):
        size, conditions = left_open(ask, a, b)
        for words in (0, 1, 2, 3, 4, 5, 6, 7, 63, 64, 65, 100):
            for others in (0, 1, 2, 3, 9):
                values = {"words": words, "others": others}
                left, right = evaluate(a, values), evaluate(b, values)
                fits = ASKED[ask](left, right)
                assert all(one.answer(values) for one in conditions) == fits, (values, conditions)
                if fits:
                    common = right if ask is require_broadcast_to or left == 1 else left
                    assert substitute(size, values) == common


def test_a_row_of_positions_beside_words_leaves_the_words() -> None:
    size, (condition,) = left_open(require_broadcast, WORDS, minimum(WORDS, 64))
    assert size is WORDS
    assert str(condition) == "words <= 64"
