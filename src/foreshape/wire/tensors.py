"""The TensorDesc message before each tensor of a parameter file."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from foreshape.errors import FormatError
from foreshape.spec import DTYPE_OF_CODE, UNSIGNED, DType
from foreshape.wire import framework_pb2 as pb


def decode_tensor_desc(data: bytes, where: str) -> tuple[DType, tuple[int, ...]]:
    """Return the element type and dims. Raises `FormatError` if the bytes are no TensorDesc."""
    try:
        message = pb.VarType.TensorDesc.FromString(data)
    except DecodeError as error:
        raise FormatError(f"{where}: not a tensor's description: {error}") from None
    of = DTYPE_OF_CODE.get(message.data_type) if message.HasField("data_type") else None
    if of is None:
        raise FormatError(f"{where}: the element type is missing or is none of a tensor")
    return of, tuple(message.dims)


def encode_tensor_desc(of: DType, dims: tuple[int, ...]) -> bytes:
    """Return the message's bytes. Raises `FormatError` for an element type without a number in the format."""
    if of in UNSIGNED:
        raise FormatError(f"the file format has no {of.name}")
    return pb.VarType.TensorDesc(data_type=of.code, dims=dims).SerializeToString(deterministic=True)  # pyright: ignore[reportArgumentType]
