"""The code of emitted steps, with the op of each of its lines: for errors, and for the signs of life of a rank."""

from __future__ import annotations

from itertools import count
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

STEP_FILE = "<foreshape step>"

_lines: WeakKeyDictionary[CodeType, dict[int, Any]] = WeakKeyDictionary()
_called: WeakValueDictionary[str, CodeType] = WeakValueDictionary()
"""Codes by their unique names."""
_number = count()


def with_ops(code: CodeType, lines: dict[int, Any]) -> CodeType:
    """Return the same code, with the op of each of its lines."""
    code = code.replace(co_name=f"step {next(_number)}")  # the same text of another program is equal, and would be the same key
    _lines[code] = lines
    _called[code.co_name] = code
    return code


def op_at(code: CodeType, line: int) -> Any:
    """Return the op of a line of an emitted function; None for another line."""
    return _lines.get(code, {}).get(line)


def op_of(name: str, line: int) -> Any:
    """Return the op of a line of the emitted function of this name; None for another line."""
    code = _called.get(name)
    return None if code is None else op_at(code, line)
