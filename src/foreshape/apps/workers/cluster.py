"""A cluster of Ray, as the place of a training: a plain value, and the way to Ray itself."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

from foreshape.apps.training import History
from foreshape.core.hints import tells_arguments
from foreshape.errors import ExecutionError, SchemaError, needs, whole


@dataclass(frozen=True, slots=True)
class RayCluster:
    """The part of a Ray cluster that a training takes. Made by `ray_cluster`, which explains the fields."""

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

    def train(self, cost: Any, data: Any, **settings: Any) -> History:
        """Train for `foreshape.train`, with its arguments."""
        from foreshape.apps.workers.train_on import train_on

        return train_on(self, cost, data, **settings)


@tells_arguments
def ray_cluster(
    workers: int | None = None, cpus: float = 1, gpus: float = 0, address: str | None = None, *, fewest: int = 1, restarts: int = 3, patience: float = 30.0,
    keep: bool = False, folder: str | os.PathLike[str] = ".", storage: str | None = None,
) -> RayCluster:  # fmt: skip
    """Return a place for `train` and `send`: ranks on a Ray cluster.

    Args:
        workers: the number of ranks; by default as many as the cluster has room for.
        cpus, gpus: of each rank. A rank computes on as many threads, and on its GPU if it has one.
        address: of the cluster, as "ray://host:10001" from outside of it, or "auto" on one of its machines. By default the cluster that this process has
            joined already, or the one named by ``RAY_ADDRESS``, or a new one on this machine.
        fewest: after a loss the training goes on with at least so many ranks.
        restarts: the number of losses survived; the next one ends the training.
        patience: seconds to wait for room for all ranks, before the training goes on with fewer of them.
        keep: let the training go on when its client ends other than by Ctrl-C. Its results are in files then.
        folder: of the workers' machines: the paths of a `Job` lead into it and not out of it. All machines see the same files there.
        storage: an address of pyarrow's file systems, as "s3://bucket/runs", in place of a folder shared by all machines: checkpoints are copied there.

    Raises:
        SchemaError: a number out of its range.
    """
    count = None if workers is None else whole("workers", workers, 1, SchemaError)
    fewest, restarts = whole("fewest", fewest, 1, SchemaError), whole("restarts", restarts, 0, SchemaError)
    if cpus < 0 or gpus < 0 or not cpus + gpus > 0:
        raise SchemaError.must("cpus and gpus", "at least 0, and one of them more", f"{cpus!r} and {gpus!r}")
    if count is not None and fewest > count:
        raise SchemaError.must("fewest", f"at most workers, {count}", fewest)
    if not patience >= 0:
        raise SchemaError.must("patience", "seconds, at least 0", repr(patience))
    return RayCluster(count, cpus, gpus, address, fewest, restarts, patience, keep, os.fspath(folder), storage)


def ray_package(name: str = "ray") -> Any:
    """Return Ray, or a module of it, whose own types are partial. Raise `ExecutionError`: it is not installed."""
    with needs("training on Ray", "ray"):
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


def first_line(error: BaseException) -> str:
    """Return the first line of an error of Ray's, which may have a page."""
    return str(error).strip().partition("\n")[0].rstrip(".:")[:300]
