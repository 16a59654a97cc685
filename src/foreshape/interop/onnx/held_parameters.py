"""The parameters of a model: they stay in its file until a scope takes them."""

from __future__ import annotations

from typing import Any, Final

from foreshape.core.spec import BF16
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.interop.onnx.importer import Importer
from foreshape.interop.parameters import Stored
from foreshape.language.wire.files import check_unchanged, forget_pages
from foreshape.machine.kernels.pages import empty
from foreshape.runtime.engine import Scope

LARGE: Final = 1 << 23
"""From so many bytes on parameters stay in their file, mapped anyway, until their use; a frozen step packs them and keeps no others."""


class OnnxParameters:
    """The parameters of an imported model, by the names of their variables."""

    def __init__(self, importer: Importer) -> None:
        self._importer = importer

    def names(self) -> list[str]:
        """Return the names, sorted; without names of a refused branch."""
        variables = self._importer.program.global_block.vars
        return sorted(name for name in self._importer.parameters if name in variables)

    def array(self, name: str) -> Any:
        """Return a parameter as numpy's array, over the bytes of the file where they are mapped; None for bf16, unknown to numpy."""
        spec = self._importer.program.global_block.vars[name].spec
        return None if spec.dtype is BF16 else self._importer.numbers(self._importer.parameters[name])

    def read(self, name: str, device: str = "cpu") -> Tensor:
        """Return a parameter in memory of its own.

        Raises:
            FormatError: the file has other data than its dims say, or was changed since it was opened; or an external file cannot be read.
        """
        constant = self._importer.parameters[name]
        array = self._importer.numbers(constant)
        check_unchanged(array, name)
        dtype = self._importer.program.global_block.vars[name].spec.known_dtype
        out = empty(array.shape, torch_dtype(dtype))
        if dtype is BF16:
            out.view(torch.int16).numpy()[...] = array.view("int16")
        else:
            out.numpy()[...] = array  # mapped bytes may begin anywhere
        forget_pages(array)  # else a network would lie in memory twice, in its tensors and in its file
        return out if device == "cpu" else out.to(device)

    def put_into(self, scope: Scope, device: str = "cpu") -> None:
        """Put all into a scope; parameters of a large model are read at their first use."""
        sizes = 0
        for name in self.names():
            sizes += int(self._importer.program.global_block.vars[name].spec.nbytes)  # pyright: ignore[reportArgumentType]
        if sizes >= LARGE:
            for name in self.names():
                scope.defer(name, lambda name=name: self.read(name, device))
            return
        with torch.inference_mode():
            tensors = {name: self.read(name, device) for name in self.names()}  # all of them, before the first is put in
            for name, tensor in tensors.items():
                scope.store(name, tensor)

    def stored(self) -> dict[str, Stored]:
        """Return name -> the value in memory, in the order of the names."""
        import numpy

        out: dict[str, Stored] = {}
        for name in self.names():
            spec = self._importer.program.global_block.vars[name].spec
            array: Any = numpy.ascontiguousarray(self._importer.numbers(self._importer.parameters[name]))
            out[name] = Stored(spec.known_dtype, tuple([int(d) for d in array.shape]), memoryview(array.reshape(-1).view("uint8")).toreadonly())
        return out
