"""Many GPUs: the holdings of DistributedDataParallel and FSDP2 beside the module, on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from foreshape.errors import SchemaError

NCCL_BYTES: Final = 300 << 20
"""NCCL's own memory for one communicator, outside of the allocator (modelled: by channels and ranks)."""
_MIB: Final = 1 << 20


class ParallelSettings(NamedTuple):
    """A wrapper of the module.

    Attributes:
        kind: "ddp" or "fsdp".
        bucket_bytes: of DDP's buckets but the first one of 1 MiB.
        gradients_are_views: ``gradient_as_bucket_view``.
        ranks: of FSDP: each holds this part of parameters, gradients and states.
        units: names of modules gathered each at a time; empty: the blocks in lists of equal ones.
        reshards: gathered parameters are given back behind the forward pass.
    """

    kind: Literal["ddp", "fsdp"]
    bucket_bytes: int = 25 * _MIB
    gradients_are_views: bool = False
    ranks: int = 1
    units: Sequence[str] = ()
    reshards: bool = True


def parallel_settings(ddp: bool | Mapping[str, Any] | None, fsdp: int | Mapping[str, Any] | None) -> ParallelSettings | None:
    """Return the settings of ``ddp=`` or ``fsdp=``; None without both.

    Raises:
        SchemaError: both, or unknown settings.
    """
    if ddp and fsdp:
        raise SchemaError("a module is wrapped by ddp or by fsdp, not by both")
    if ddp:
        settings: dict[str, Any] = dict(ddp) if isinstance(ddp, Mapping) else {}
        bucket = settings.pop("bucket_cap_mb", 25)
        views = settings.pop("gradient_as_bucket_view", False)
        _refuse("ddp", settings, "bucket_cap_mb, gradient_as_bucket_view")
        return ParallelSettings("ddp", int(bucket * _MIB), bool(views))
    if fsdp:
        options: dict[str, Any] = dict(fsdp) if isinstance(fsdp, Mapping) else {"ranks": fsdp}
        ranks = options.pop("ranks", 1)
        units, reshards = options.pop("units", ()), options.pop("reshard", True)
        _refuse("fsdp", options, "ranks, units, reshard")
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise SchemaError.must("fsdp", "a number of ranks of at least 1", repr(ranks))
        return ParallelSettings("fsdp", ranks=ranks, units=tuple(units), reshards=bool(reshards))
    return None


def _refuse(name: str, settings: Mapping[str, Any], accepted: str) -> None:
    if settings:
        raise SchemaError.must(name, f"settings among {accepted}", ", ".join(map(str, settings)))
