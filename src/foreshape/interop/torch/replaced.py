"""Functions of torch that are others for a while."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast


@contextmanager
def replaced(of: Any, **functions: Any) -> Generator[None]:
    """Have a class or a module these functions within the block, and its own again behind it; inherited ones are inherited again."""
    held = cast("dict[str, Any]", vars(of))
    own = {name: held[name] for name in functions if name in held}
    for name, function in functions.items():
        setattr(of, name, function)
    try:
        yield
    finally:
        for name in functions:
            if name in own:
                setattr(of, name, own[name])
            else:
                delattr(of, name)
