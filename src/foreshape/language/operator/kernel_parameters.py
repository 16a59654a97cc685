"""The signatures of kernels and memory rules, checked against the declared results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from foreshape.errors import SchemaError

if TYPE_CHECKING:
    from foreshape.language.operator.operator import Operator


def note_keywords(cls: type[Operator]) -> None:
    """Note the keyword-only parameters of its kernel and its memory rules."""
    keywords, rule = _keywords(cls.kernel), _keywords(cls.workspace)
    cls.kernel_requested, cls.kernel_offsets, cls.kernel_into = "requested" in keywords, "offsets" in keywords, "into" in keywords
    cls.kernel_use = "use" in keywords
    cls.workspace_requested, cls.workspace_strided, cls.workspace_rows = "requested" in rule, "strided" in rule, "rows" in rule
    cls.retained_bytes_requested = "requested" in _keywords(cls.retained_bytes)


def _plain_code(function: Callable[..., Any]) -> CodeType | None:
    """Return the code of a function, for its parameters: many times faster than its signature, and asked for every class."""
    code = getattr(function, "__code__", None)
    return None if hasattr(function, "__signature__") or hasattr(function, "__wrapped__") else code


def positional(function: Callable[..., Any]) -> int:
    """Return the number of parameters possible by position or by name."""
    code = _plain_code(function)
    if code is not None:
        return code.co_argcount - code.co_posonlyargcount
    return sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in inspect.signature(function).parameters.values())


def _keywords(function: Callable[..., Any]) -> set[str]:
    code = _plain_code(function)
    if code is not None:
        return set(code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])
    return {p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}


def check_in_place(cls: type[Operator], label: str) -> None:
    """Refuse a result with ``may_share`` and a kernel without ``into``, the reverse, and two such results."""
    sharing = [r.name for r in cls.schema.results if r.may_share is not None]
    if len(sharing) > 1:
        raise SchemaError(f"{label}: one result may take over an operand's memory; seen {' and '.join(sharing)}")
    if sharing and not cls.kernel_into:
        raise SchemaError(f"{label}: {sharing[0]} may share memory, so that its kernel must have the keyword-only parameter into")
    if cls.kernel_into and not sharing:
        raise SchemaError(f"{label}: its kernel has the parameter into, and no result says with may_share whose memory that is")
