"""Ray: its import, which only a program that uses it needs, and this process in one of its clusters."""

from __future__ import annotations

import importlib
import os
from typing import Any

from foreshape.errors import ExecutionError, needs


def ray_package(name: str = "ray") -> Any:
    """Return Ray, or a module of it, whose own types are partial. Raises `ExecutionError` if it is not installed."""
    with needs("work on a cluster of Ray", "ray"):
        return importlib.import_module(name)


def joined_ray(address: str | None) -> Any:
    """Return Ray with this process in a cluster: the one joined already, the one at the address or at ``RAY_ADDRESS``, or a new one on this machine.

    Raises:
        ExecutionError: there is no cluster, or Ray is not installed.
    """
    ray = ray_package()
    if not ray.is_initialized():
        alone = address in (None, "local") and "RAY_ADDRESS" not in os.environ
        settings: dict[str, Any] = {"include_dashboard": False} if alone else {"address": address}
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **settings)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            place = "here" if alone else f"at {address or os.environ.get('RAY_ADDRESS')}"
            raise ExecutionError(f"there is no Ray cluster {place}: {str(error).strip().partition(chr(10))[0][:300]}") from error
    return ray
