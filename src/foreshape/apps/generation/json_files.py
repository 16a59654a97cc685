"""The JSON files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar, cast

from foreshape.errors import FormatError

Value = TypeVar("Value")


def json_value(file: Path, kind: type[Value], words: str) -> Value:
    """Return the value in a JSON file. Raises `FormatError` if it is damaged, or of another kind."""
    try:
        value = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file}: no JSON: {str(error)[:200]}") from None
    if not isinstance(value, kind):
        raise FormatError(f"{file} must hold {words}")
    return value


def json_object(file: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", json_value(file, dict, "an object"))
