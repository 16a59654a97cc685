"""The TensorDesc message before each tensor of a parameter file."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from foreshape.core.spec import DTYPE_OF_CODE, UNSIGNED, DType
from foreshape.errors import FormatError
from foreshape.language.wire import framework_pb2 as pb


def decode_tensor_desc(data: bytes, place: str) -> tuple[DType, tuple[int, ...]]:
    """Return the element type and dims. Raises `FormatError` if the bytes are no TensorDesc."""
    try:
        message = pb.VarType.TensorDesc.FromString(data)
    except DecodeError as error:
        raise FormatError(f"{place}: not a tensor's description: {error}") from None
    dtype = DTYPE_OF_CODE.get(message.data_type) if message.HasField("data_type") else None
    if dtype is None:
        raise FormatError(f"{place}: the element type is missing or is none of a tensor")
    return dtype, tuple(message.dims)


def encode_tensor_desc(dtype: DType, dims: tuple[int, ...]) -> bytes:
    """Return the message's bytes. Raises `FormatError` for an element type without a number in the format."""
    if dtype in UNSIGNED:
        raise FormatError(f"the file format has no {dtype.name}")
    return pb.VarType.TensorDesc(data_type=dtype.code, dims=dims).SerializeToString(deterministic=True)  # pyright: ignore[reportArgumentType]
