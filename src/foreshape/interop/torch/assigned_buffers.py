"""Buffers of torch modules with another tensor put in their place: ``self.mean = 0.9 * self.mean + x.mean()``.

torch.export writes it back for buffers of the outermost module alone, and loses it without a word for those of its parts.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from foreshape.errors import SchemaError
from foreshape.interop.torch.untyped_torch import pytree, torch


def _apart(results: Any, tensor: Any) -> Any:
    """Return results with a copy of a tensor in its place."""
    found: Any = pytree().tree_map(functools.partial(_copied, tensor), results)
    return found


def _copied(tensor: Any, value: Any) -> Any:
    return value.clone() if value is tensor else value


@contextmanager
def written_assignments(module: Any) -> Generator[None]:
    """Write tensors put in the place of buffers by a call of a module into these, at its end.

    Raises:
        SchemaError: a tensor of another shape or element type.
    """
    parts = {id(part): (name, part) for name, part in module.named_modules() if part is not module}
    first: dict[tuple[int, str], Any] = {}

    def note(part: Any, name: str, value: Any) -> None:
        before = part._buffers.get(name)
        if id(part) in parts and isinstance(before, torch.Tensor):
            first.setdefault((id(part), name), before)

    def write(_module: Any, _given: Any, results: Any) -> Any:
        for (of, name), before in first.items():
            path, part = parts[of]
            now = part._buffers[name]
            if now is before:
                continue
            if not isinstance(now, torch.Tensor) or now.dtype is not before.dtype or tuple(now.shape) != tuple(before.shape):
                seen = f"{now.dtype} of {list(now.shape)}" if isinstance(now, torch.Tensor) else type(now).__name__
                must = f"{before.dtype} of {list(before.shape)} in each call"
                raise SchemaError.must(f"the buffer {path}.{name}".replace(" .", " "), must, f"{seen}, put in its place")
            results = _apart(results, before)
            before.copy_(now)
            part._buffers[name] = before
        first.clear()
        return results

    hooks = [torch.nn.modules.module.register_module_buffer_registration_hook(note), module.register_forward_hook(write)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
