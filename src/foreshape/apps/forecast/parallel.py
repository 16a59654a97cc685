"""Many GPUs: the holdings of DistributedDataParallel and FSDP2 beside the module, on one rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, Final, Literal, NamedTuple, cast

from foreshape.errors import SchemaError
from foreshape.interop.torch.untyped_torch import is_of

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
    if not is_of(ddp, (bool, Mapping, type(None))):
        raise SchemaError.must("ddp", "True, or a dict of bucket_cap_mb and gradient_as_bucket_view", repr(ddp)[:100])
    has_ddp, has_fsdp = ddp is not None and ddp is not False, fsdp is not None and fsdp is not False
    if has_ddp and has_fsdp:
        raise SchemaError("a module is wrapped by ddp or by fsdp, not by both")
    if has_ddp:
        settings: dict[str, Any] = dict(ddp) if isinstance(ddp, Mapping) else {}
        bucket: Any = settings.pop("bucket_cap_mb", 25)
        views = settings.pop("gradient_as_bucket_view", False)
        _refuse("ddp", settings, "bucket_cap_mb, gradient_as_bucket_view")
        if isinstance(bucket, bool) or not isinstance(bucket, (int, float)) or not 0 < bucket < math.inf:
            raise SchemaError.must("bucket_cap_mb of ddp", "a positive number of MiB", repr(bucket)[:100])
        return ParallelSettings("ddp", int(bucket * _MIB), bool(views))
    if has_fsdp:
        options: dict[str, Any] = dict(fsdp) if isinstance(fsdp, Mapping) else {"ranks": fsdp}
        ranks: Any = options.pop("ranks", 1)
        units, reshards = options.pop("units", ()), options.pop("reshard", True)
        _refuse("fsdp", options, "ranks, units, reshard")
        if isinstance(ranks, bool) or not hasattr(ranks, "__index__") or ranks < 1:
            raise SchemaError.must("fsdp", "a number of ranks of at least 1", repr(ranks)[:100])
        if isinstance(units, str) or not is_names(units):
            raise SchemaError.must("units of fsdp", "a list of names of modules", repr(units)[:100])
        return ParallelSettings("fsdp", ranks=index(ranks), units=tuple(units), reshards=bool(reshards))
    return None


def positive(slot: str, number: Any) -> None:
    """Refuse all but a whole number of at least 1.

    Raises:
        SchemaError: another value.
    """
    if isinstance(number, bool) or not hasattr(number, "__index__") or number < 1:
        raise SchemaError.must(slot, "at least 1, a whole number", repr(number)[:100])


def is_names(value: Any) -> bool:
    """Tell whether a value has names one after the other."""
    return isinstance(value, Iterable) and all(isinstance(name, str) for name in cast("Iterable[Any]", value))


def _refuse(name: str, settings: Mapping[str, Any], accepted: str) -> None:
    if settings:
        raise SchemaError.must(name, f"settings among {accepted}", ", ".join(map(str, settings)))
