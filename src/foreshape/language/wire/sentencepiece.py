"""The reader of sentencepiece's models: the fields of ``sentencepiece_model.proto`` for building a tokenizer."""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from foreshape.errors import FormatError
from foreshape.language.wire.files import read_file

UNIGRAM: Final = 1
CONTROL: Final = 3
USER_DEFINED: Final = 4
_LIMIT: Final = 2**28
_PACKAGE: Final = "foreshape.sentencepiece"
_MESSAGES: Final = {
    "Piece": (("text", 1, "BYTES"), ("score", 2, "FLOAT"), ("kind", 3, "INT32")),
    "Trainer": (("algorithm", 3, "INT32"),),
    "Normalizer": (("character_map", 2, "BYTES"),),
    "Model": (("pieces", 1, "Piece"), ("trainer", 2, "Trainer"), ("normalizer", 3, "Normalizer")),
}


class Piece(NamedTuple):
    """A piece of words: its text, the logarithm of its frequency, and its kind, such as `CONTROL`."""

    text: str
    score: float
    kind: int


class PieceModel(NamedTuple):
    """A model: its pieces, its algorithm (`UNIGRAM` or another), and the compiled table of its replaced characters."""

    pieces: list[Piece]
    algorithm: int
    character_map: bytes


def read_pieces(path: Any) -> PieceModel:
    """Read a model of sentencepiece. Raises `FormatError`: the file cannot be read, or is none."""
    message = _model_class()()
    try:
        message.ParseFromString(read_file(path, _LIMIT))
        pieces = [Piece(p.text.decode(), p.score, p.kind or 1) for p in message.pieces]
    except (DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is no model of sentencepiece: {error}") from None
    if not pieces:
        raise FormatError(f"{path} is no model of sentencepiece: it has no pieces")
    return PieceModel(pieces, message.trainer.algorithm or UNIGRAM, message.normalizer.character_map)


@functools.cache
def _model_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="foreshape/sentencepiece.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            entry = message.field.add(name=field, number=number, label="LABEL_REPEATED" if field == "pieces" else "LABEL_OPTIONAL")
            if kind in _MESSAGES:
                entry.type, entry.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                entry.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Model"))
