"""Ray: the settings of a part of its clusters, its import, only where it is used, and this process in a cluster."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

from foreshape.errors import ExecutionError, needs


@dataclass(frozen=True, slots=True)
class RaySettings:
    """A part of a Ray cluster: workers, with processors and GPUs for each. Made by `ray_cluster`; its arguments are the fields."""

    workers: int | None = None
    cpus: float = 1
    gpus: float = 0
    address: str | None = None
    fewest: int = 1
    restarts: int = 3
    patience: float = 30.0
    keep: bool = False
    folder: str = "."
    storage: str | None = None


def ray_package(name: str = "ray") -> Any:
    """Return Ray, or a module of it, whose own types are partial. Raise `ExecutionError`: it is not installed."""
    with needs("work on a cluster of Ray", "ray"):
        return importlib.import_module(name)


def joined_ray(address: str | None) -> Any:
    """Return Ray with this process in a cluster. Raise `ExecutionError`: there is none at the address."""
    ray = ray_package()
    if not ray.is_initialized():
        alone = address is None and "RAY_ADDRESS" not in os.environ
        settings: dict[str, Any] = {"address": "local", "include_dashboard": False} if alone else {"address": address}
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **settings)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            place = "here" if alone else f"at {address or os.environ.get('RAY_ADDRESS')}"
            raise ExecutionError(f"there is no Ray cluster {place}: {first_line(error)}") from error
    return ray


def cause_line(error: BaseException) -> str:
    """Return the line of the first cause of an error in a task of Ray's, after its traceback."""
    return str(error).partition("\n\nThe above exception")[0].strip().splitlines()[-1][:300]


def first_line(error: BaseException) -> str:
    """Return the first line of an error of Ray's, which may have a page."""
    return str(error).strip().partition("\n")[0].rstrip(".:")[:300]
