"""ONNX's models as programs: read without the ``onnx`` package, imported node by node.

`foreshape.wire.onnx_model` reads the bytes to records. `importer` goes through them; the functions of the other files write each operator with ours, and
`registry` finds them by name and operator set.
"""

from __future__ import annotations

from typing import Any

from foreshape.interop.onnx import arithmetic, blocks, convolutions, indexing, padding, reductions, shapes
from foreshape.interop.onnx.importer import Constant, Importer
from foreshape.program.gc_pause import collector_waits
from foreshape.program.program import Program
from foreshape.wire.limits import Limits
from foreshape.wire.onnx_model import read_model

_FAMILIES = (arithmetic, blocks, convolutions, indexing, padding, reductions, shapes)
"""The modules of functions: their import fills the registry."""


@collector_waits
def read_program(source: Any, limits: Limits | None = None) -> tuple[Program, dict[str, Constant], Importer]:
    """Return the program of a model, the tensors of its parameters by name, and the import, which reads their numbers.

    Raises:
        FormatError: it is no model; the message has the path inside.
    """
    importer = Importer(read_model(source, limits))
    program = importer.run()
    return program, importer.parameters, importer
