"""The feed and fetch ops of saved models, for programs read from other formats."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.spec import FEED_MINIBATCH, FETCH_LIST, Spec
from foreshape.language.program import Block, Variable


def add_ends(block: Block, feeds: Sequence[str], fetches: Sequence[Variable]) -> None:
    """Write a feed op for each input, and a fetch op for each result."""
    feed = block.create_variable("feed", Spec(FEED_MINIBATCH, None, None), persistable=True)
    for column, name in enumerate(feeds):
        variable = block.vars[name]
        variable.op = block.append_op("feed", {"X": feed}, {"Out": variable}, {"col": column}, index=column)
        variable.need_check_feed = True
    fetch = block.create_variable("fetch", Spec(FETCH_LIST, None, None), persistable=True)
    for column, variable in enumerate(fetches):
        block.append_op("fetch", {"X": variable}, {"Out": fetch}, {"col": column})
