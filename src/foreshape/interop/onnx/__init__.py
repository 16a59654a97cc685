"""ONNX's models as programs: read without the ``onnx`` package, imported node by node.

`foreshape.language.wire.onnx_model` reads the bytes to records. `importer` goes through them; the functions of `foreshape.interop.forms` write each operator
with ours.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from foreshape.core.gc_pause import collector_waits
from foreshape.errors import FormatError
from foreshape.interop.onnx.declared_shapes import warn_of_contradictions
from foreshape.interop.onnx.importer import Importer
from foreshape.language.program.program import Program
from foreshape.language.wire.limits import Limits
from foreshape.language.wire.onnx_model import read_model

if TYPE_CHECKING:
    from foreshape.interop.onnx.held_parameters import OnnxParameters


@collector_waits
def open_model(source: Any, limits: Limits | None = None) -> tuple[Program, OnnxParameters]:
    """Return the program of a model, a path or bytes, and its parameters, whose numbers stay in the file.

    Declared shapes in contradiction to inference give a `ForeshapeWarning`.

    Raises:
        FormatError: it is no model; the message has the path inside.
    """
    from foreshape.interop.onnx.held_parameters import OnnxParameters  # with the engine: whoever imports a module of this folder alone needs none

    try:
        importer = Importer(read_model(source, limits))
        program = importer.run()
        warn_of_contradictions(program, importer.model.graph)
        return program, OnnxParameters(importer)
    except FormatError as error:
        label = "this" if isinstance(source, (bytes, bytearray, memoryview)) else os.fsdecode(source)
        raise error.reworded(f"{label} is an ONNX model that cannot be read: {error}") from error
