"""The rules of translation by operator, and the attributes that say nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from foreshape.interop.pir.graph import GraphOp

SCOPE: Final = "struct_name"
"""The attribute with the path of an op's layer."""
IGNORED: Final = frozenset((
    SCOPE, "place", "op_role", "op_dist_attr", "op_callstack", "origin_op_desc", "dist_attr", "chunk_id", "op_chunk_id", "stop_gradient", "persistable",
    "execution_stream", "event_to_record", "events_to_wait", "force_record_event", "scheduling_priority",
))  # fmt: skip
"""Attributes of any op that say nothing of what it computes."""
Rule = Callable[[Any, GraphOp], None]
"""A function of the `Translation` and the op."""
RULES: dict[str, Rule] = {}
"""Operator, with its dialect -> the function that translates it; filled by the modules of rules."""
SAYING_NOTHING: dict[str, frozenset[str]] = {}
"""Operator, with its dialect -> the attributes that its rule need not read."""


def rule(*names: str, without: tuple[str, ...] = ()) -> Callable[[Rule], Rule]:
    """Return a decorator: the function translates the operators ``names``, of the dialect pd_op where no other is named.

    An op with an attribute that the function does not read is refused, but for those in ``without``, which say nothing.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            full = name if "." in name else f"pd_op.{name}"
            RULES[full], SAYING_NOTHING[full] = function, IGNORED.union(without)
        return function

    return register
