"""torch's exported programs in files, as programs with feed and fetch ops, and their parameters."""

from __future__ import annotations

from typing import Any

from foreshape.core.gc_pause import collector_waits
from foreshape.core.values.conversion import to_numpy
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import FormatError, SchemaError
from foreshape.interop.parameters import Stored, stored_array
from foreshape.interop.torch.archive import read_exported
from foreshape.interop.torch.module_import import import_exported
from foreshape.language.program import Program
from foreshape.language.wire.limits import Limits
from foreshape.runtime.engine import Scope


class TorchParameters:
    """The parameters, buffers and constants of an exported program, by the names of their variables."""

    def __init__(self, program: Program, values: dict[str, Any]) -> None:
        self._program, self._values = program, values

    def put_into(self, scope: Scope, device: str = "cpu") -> None:
        """Put all into a scope."""
        with torch.inference_mode():
            for name, tensor in self._values.items():
                scope.store(name, tensor.detach().clone().to(device))

    def stored(self) -> dict[str, Stored]:
        """Return name -> the value in memory, in the order of the names."""
        variables = self._program.global_block.vars
        return {name: stored_array(to_numpy(self._values[name].detach()), variables[name].spec.known_dtype) for name in sorted(self._values)}


@collector_waits
def open_exported(source: Any, limits: Limits | None = None) -> tuple[Program, TorchParameters]:
    """Return the program of a ``.pt2``, a path or bytes, and its parameters. Operators without a form here are refused ops: a look works, a run does not.

    Raises:
        FormatError: it cannot be read, or it holds what is not opened here.
    """
    exported = read_exported(source, limits)
    try:
        importer = import_exported(exported, ends=True)[1]
    except SchemaError as error:
        shown = "this" if isinstance(source, (bytes, bytearray, memoryview)) else str(source)
        raise FormatError(f"{shown} is an exported program of torch that cannot be read: {error}") from error
    return importer.program, TorchParameters(importer.program, importer.values)
