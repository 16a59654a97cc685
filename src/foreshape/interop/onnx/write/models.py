"""Programs as ONNX's models: written without the ``onnx`` package, op by op.

A node that was read stands for its ops while they are as they were made of it (`kept_nodes`). `graph_writer` goes through the other ops; the functions of
`foreshape.interop.forms` write each with ONNX's operators. An operator that is a composition of others is written by its parts.
`foreshape.language.wire.onnx_encode` makes the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import IO, Final, NamedTuple

from foreshape.compiler.lowering.expansion import expanded
from foreshape.core.gc_pause import collector_waits
from foreshape.errors import FormatError
from foreshape.interop.forms.rules import onnx_writer
from foreshape.interop.onnx.write.graph_writer import DEFAULT, FIRST, LAST, GraphWriter, NewerSet
from foreshape.interop.onnx.write.kept_nodes import newest_set
from foreshape.interop.parameters import PIECE, Stored
from foreshape.interop.refused import Refused
from foreshape.interop.written_ops import listed
from foreshape.language.program import Program
from foreshape.language.wire import replacing
from foreshape.language.wire.onnx_encode import LARGEST, Piece, encode_model, external_tensors
from foreshape.language.wire.onnx_records import ModelRecord

_SMALL: Final = 1024
"""In a model with external data, tensors of up to so many bytes stay in the model's file."""
_ROOM: Final = 1 << 24


class WrittenModel(NamedTuple):
    """A written model: its file, its operator set, the number of its nodes, and the file of its external data (empty for none)."""

    path: str
    opset: int
    nodes: int
    data: str


def model_of(program: Program, feeds: Sequence[str], fetches: Mapping[str, str], values: Mapping[str, Stored], opset: int | None = None) -> ModelRecord:
    """Return a program as a model of ONNX.

    Args:
        program: for tests, with known shapes; it stays as it is.
        feeds: the names of its inputs, in order.
        fetches: the name of a result in the model -> its variable, in order.
        values: name of a parameter -> its tensor.
        opset: the operator set, from 13 on; by default 18, the newer one of a model that was read, or the least newer one that the operators need.

    Raises:
        FormatError: operators without a form in ONNX, all listed; an input or result that is no tensor; an unknown operator set.
    """
    if opset is not None and not FIRST <= opset <= LAST:
        raise FormatError(f"the operator set must be from {FIRST} to {LAST}; seen {opset}")
    block = expanded(program.global_block, list(fetches.values()), keep=lambda op: onnx_writer(op.type) is not None)
    number = min(max(DEFAULT, newest_set(block.program.all_ops())), LAST) if opset is None else opset
    while True:
        writer = GraphWriter(block.program, values, number, opset is None)
        try:
            model = writer.run(feeds, fetches)
        except NewerSet as newer:
            number = newer.opset
            continue
        except Refused as refused:
            raise FormatError(f"it has no form in ONNX: {refused}") from None
        if model is None:
            raise FormatError(f"it has no form in ONNX:{listed(writer.unwritten)}")
        return model


@collector_waits
def write_onnx(
    path: str | os.PathLike[str],
    program: Program,
    feeds: Sequence[str],
    fetches: Mapping[str, str],
    values: Mapping[str, Stored],
    opset: int | None = None,
    largest: int = LARGEST,
) -> WrittenModel:
    """Write a program to a file. Tensors go to a second file, its name with ``.data``, if the first would have more bytes than ``largest``.

    Raises:
        FormatError: as `model_of`; a file cannot be written. The old one stays then.
    """
    return write_model(path, model_of(program, feeds, fetches, values, opset), largest)


def write_model(path: str | os.PathLike[str], model: ModelRecord, largest: int = LARGEST) -> WrittenModel:
    """Write a model to a file, as `write_onnx`."""
    target = os.fspath(path)
    pieces = encode_model(model)
    data = ""
    if sum(map(len, pieces)) > largest - min(_ROOM, largest // 2):
        data = f"{target}.data"
        tensors, outside = external_tensors(model.graph.initializers, os.path.basename(data), _SMALL)
        with replacing(data) as file:
            for offset, piece in outside:
                file.write(b"\0" * (offset - file.tell()))
                _write(file, piece)
        pieces = encode_model(model._replace(graph=model.graph._replace(initializers=tensors)))
    with replacing(target) as file:
        for piece in pieces:
            _write(file, piece)
    return WrittenModel(target, model.opsets[""], len(model.graph.nodes), data)


def _write(file: IO[bytes], piece: Piece) -> None:
    for first in range(0, len(piece), PIECE):
        file.write(piece[first : first + PIECE])
