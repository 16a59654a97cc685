"""The precision of the products and convolutions of frozen networks on this machine."""

from __future__ import annotations

from typing import Literal

from foreshape.errors import ExecutionError, SchemaError
from foreshape.machine.kernels.onednn_library import library

Precision = Literal["fp32", "bf16", "auto"]


def precision_here(precision: str, frozen: bool, device: str) -> Literal["fp32", "bf16"]:
    """Return the precision of an executor on this machine: "auto" is bf16 where the processor has instructions for it.

    Raises:
        SchemaError: another word; or bf16 of an executor that is not frozen, or not on the processor. ExecutionError: oneDNN's own library is missing.
    """
    if precision not in ("fp32", "bf16", "auto"):
        raise SchemaError.one_of("precision", ("fp32", "bf16", "auto"), precision)
    if precision == "fp32":
        return "fp32"
    if not frozen or device != "cpu":
        raise SchemaError.must(f"an executor with precision={precision!r}", "frozen and on the processor", f"frozen={frozen}, on {device}")
    found = library()
    if precision == "bf16":
        if found is None:
            raise ExecutionError("computing in bf16 needs oneDNN's own library: pip install 'foreshape[inference]'")
        return "bf16"
    return "bf16" if found is not None and found.multiplies_halves else "fp32"
