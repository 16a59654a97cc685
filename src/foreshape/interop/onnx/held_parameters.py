"""The parameters of a model: they stay in its file until a scope takes them."""

from __future__ import annotations

from typing import Any

from foreshape.engine import Scope
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.importer import Importer
from foreshape.interop.parameters import LARGE, Stored
from foreshape.values.conversion import to_tensor
from foreshape.values.torch_proxy import Tensor, torch


class OnnxParameters:
    """The parameters of an imported model, by the names of their variables."""

    def __init__(self, importer: Importer) -> None:
        self._importer = importer

    def names(self) -> list[str]:
        """Return the names, sorted; without names of a refused branch."""
        variables = self._importer.program.global_block.vars
        return sorted(name for name in self._importer.parameters if name in variables)

    def read(self, name: str, device: str = "cpu") -> Tensor:
        """Return a parameter in memory of its own.

        Raises:
            FormatError: the file has other data than its dims say, or an external file cannot be read.
        """
        import numpy

        constant = self._importer.parameters[name]
        array: Any = numpy.array(self._importer.numbers(constant))  # a copy: mapped bytes are read-only, and may begin anywhere
        if self._is_bfloat16(constant):
            return to_tensor(array.view("int16")).view(torch.bfloat16).to(device)
        return to_tensor(array).to(device)

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
            read = {name: self.read(name, device) for name in self.names()}  # all of them, before the first is put in
            for name, tensor in read.items():
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

    @staticmethod
    def _is_bfloat16(constant: OnnxConstant) -> bool:
        return constant.record is not None and constant.record.code == 16
