"""The options of ``torch.compile(..., backend="foreshape", options={...})``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from foreshape.compiler.memory import bytes_of
from foreshape.core.hints import did_you_mean
from foreshape.errors import SchemaError

_NAMES: Final = ("memory", "recompute", "precision")
_PRECISIONS: Final = ("fp32", "eager", "bf16")


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The options.

    Attributes:
        memory: the most bytes of a graph's plan, its inputs and parameters included; None for no limit.
        recompute: the bytes beside the inputs to come down to by values computed again; None for all of little time; 0 for nothing at all.
        precision: "bf16" for products as under ``torch.autocast``; "eager" for torch's own kernels alone, with eager's bits.
    """

    memory: int | None = None
    recompute: int | None = None
    keeps: bool = False
    precision: str = "fp32"

    @classmethod
    def parsed(cls, options: Mapping[str, Any] | None, mode: str | None) -> CompileOptions:
        """Return the settings of ``torch.compile``'s arguments. Raises `SchemaError` for unknown names and values."""
        if mode is not None and mode != "default":
            raise SchemaError(f"the mode {mode!r} of torch.compile is inductor's; here options={{...}} takes {', '.join(_NAMES)}")
        values = dict(options or {})
        for name in values:
            if name not in _NAMES:
                raise SchemaError(f"torch.compile's option {name!r} is not known here{did_you_mean(name, _NAMES)}; the options are {', '.join(_NAMES)}")
        precision = values.get("precision", "fp32")
        if precision not in _PRECISIONS:
            raise SchemaError.one_of("the option precision", _PRECISIONS, precision)
        wish = values.get("recompute", "auto")
        memory = values.get("memory")
        return cls(
            None if memory is None else bytes_of(memory),
            None if wish in ("auto", "never") else bytes_of(wish),
            wish == "never",
            precision,
        )
