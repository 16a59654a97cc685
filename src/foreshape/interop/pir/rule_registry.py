"""The rules of translation by operator, and the attributes without a meaning here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from foreshape.interop.pir.pir_graph import GraphOp

SCOPE: Final = "struct_name"
"""The attribute with the path of an op's layer."""
_RUNNING: Final = ("execution_stream", "event_to_record", "events_to_wait", "force_record_event", "scheduling_priority")
_DISTRIBUTED: Final = ("op_dist_attr", "dist_attr", "chunk_id", "op_chunk_id")
_DESCRIPTIVE: Final = (SCOPE, "place", "op_role", "op_callstack", "origin_op_desc", "stop_gradient", "persistable")
IGNORED: Final = frozenset((*_RUNNING, *_DISTRIBUTED, *_DESCRIPTIVE))
"""Attributes of any op without influence on its results."""
Rule = Callable[[Any, GraphOp], None]
"""A function of the `Translation` and the op."""
RULES: dict[str, Rule] = {}
"""Operator, with its dialect -> its function of translation; filled by the modules of rules."""
SAYING_NOTHING: dict[str, frozenset[str]] = {}
"""Operator, with its dialect -> the attributes its rule need not read."""


def rule(*names: str, without: tuple[str, ...] = ()) -> Callable[[Rule], Rule]:
    """Return a decorator: the function translates the operators ``names``, of the dialect pd_op where no other is named.

    An op with an attribute unread by the function is refused, but for the names in ``without``: they have no meaning here.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            full = name if "." in name else f"pd_op.{name}"
            RULES[full], SAYING_NOTHING[full] = function, IGNORED.union(without)
        return function

    return register
