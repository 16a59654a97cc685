"""What the signatures of kernels and memory rules say, and whether it fits the declared results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foreshape.errors import SchemaError

if TYPE_CHECKING:
    from foreshape.operator.operator import Operator


def note_keywords(cls: type[Operator], kernel: Callable[..., Any]) -> None:
    """Keep which keyword-only parameters a kernel has."""
    parameters = inspect.signature(kernel).parameters
    cls.kernel_wants = "wants" in parameters
    cls.kernel_offsets = "offsets" in parameters
    cls.kernel_into = "into" in parameters
    rule = inspect.signature(cls.workspace).parameters
    cls.workspace_wants, cls.workspace_strided, cls.workspace_rows = "wants" in rule, "strided" in rule, "rows" in rule
    cls.carries_wants = "wants" in inspect.signature(cls.carries).parameters


def check_in_place(cls: type[Operator], where: str) -> None:
    """Refuse a result that may take over an operand's memory without a kernel that can, a kernel that can for none, and two results."""
    sharing = [r.name for r in cls.schema.results if r.may_share is not None]
    if len(sharing) > 1:
        raise SchemaError(f"{where}: one result may take over an operand's memory; seen {' and '.join(sharing)}")
    if sharing and not cls.kernel_into:
        raise SchemaError(f"{where}: {sharing[0]} may share memory, so that its kernel must have the keyword-only parameter into")
    if cls.kernel_into and not sharing:
        raise SchemaError(f"{where}: its kernel has the parameter into, and no result says with may_share whose memory that is")
