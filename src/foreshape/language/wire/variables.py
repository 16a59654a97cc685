"""Variables between their message and `Variable`; each distinct description is converted once.

This is the careful reader of a record: `foreshape.language.wire.fast_reader` takes variables with the bytes of an earlier `VariableForm`, and never looks into
them. The two are explained there.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from foreshape.core.dims import Size, parse
from foreshape.core.spec import BOOL, DTYPE_OF_CODE, KINDS, LOD_TENSOR, LOD_TENSOR_ARRAY, SELECTED_ROWS, UNSIGNED, Kind, Lod, Spec, kind, other_kind
from foreshape.errors import ForeshapeError, FormatError
from foreshape.language.program.call_site import Site
from foreshape.language.program.declared import Declared
from foreshape.language.wire import framework_pb2 as pb
from foreshape.language.wire.attributes import decode_site, utf8
from foreshape.language.wire.limits import FIELD_COST, FORM_COST, LARGE
from foreshape.language.wire.scan import fields

_KIND_OF_CODE = {k.code: k for k in KINDS if k.code is not None}


class VariableForm:
    """All of a VarDesc but its name."""

    __slots__ = ("data", "declared", "extra", "is_parameter", "need_check_feed", "persistable", "site", "stop_gradient", "trainable", "unknown_fields", "value")

    declared: Declared
    site: Site
    value: Any

    def __init__(self) -> None:
        self.persistable = self.need_check_feed = self.is_parameter = self.stop_gradient = False
        self.trainable = True
        self.value = None
        self.site = None
        self.extra: tuple[bytes, ...] = ()
        self.unknown_fields = b""
        self.data = b""
        """Its stored bytes."""

    def flags(self) -> tuple[Any, ...]:
        return (self.persistable, self.need_check_feed, self.is_parameter, self.stop_gradient, self.trainable)


def kind_of_code(code: int) -> Kind:
    """Return the kind of this number; one without a use in this project is kept under its own name."""
    return _KIND_OF_CODE.get(code) or other_kind(pb.VarType.Type.Name(code), code)  # pyright: ignore[reportArgumentType]


def form_cost(data: bytes, place: str) -> int:
    """Return the most memory for a read of this form."""
    if len(data) <= LARGE:
        return FORM_COST * len(data)
    cost = 0
    for number, wire_type, _, start, stop in fields(data, 0, len(data), place):
        if number == 1000 and wire_type == 2:
            for inner, _, _, s, e in fields(data, start, stop, place):
                cost += FIELD_COST + (4 if inner == 2 else FORM_COST) * (e - s)  # a constant's data are copied, not taken apart
        else:
            cost += FIELD_COST + FORM_COST * (stop - start)
    return cost


def decode_form(data: bytes, place: str, offset: int) -> VariableForm:
    """Return the form of a variable from its bytes without the name."""
    try:
        message = pb.VarDesc.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{place}: not a variable: {error}, at byte {offset}") from None
    if not message.HasField("type") or not message.type.HasField("type"):
        raise FormatError(f"{place}: the type is missing or unknown, at byte {offset}")
    if message.HasField("name"):
        raise FormatError(f"{place}: the name is given twice, at byte {offset}")
    out = VariableForm()
    out.data = data
    out.persistable, out.need_check_feed = message.persistable, message.need_check_feed
    out.is_parameter, out.stop_gradient = message.is_parameter, message.stop_gradient
    out.extra = tuple(a.SerializePartialToString() for a in message.attrs)
    try:
        out.declared = _declared(message)
        if message.HasField("extra"):
            _extra(message, out)
        out.declared.form = out
    except ForeshapeError as error:
        raise FormatError(f"{place}: {error}, at byte {offset}") from None
    if len(UnknownFieldSet(message)) or len(UnknownFieldSet(message.type)):
        keep = pb.VarDesc()
        keep.CopyFrom(message)
        for field in ("name", "type", "persistable", "need_check_feed", "is_parameter", "stop_gradient", "attrs", "extra"):
            keep.ClearField(field)
        out.unknown_fields = keep.SerializePartialToString()
    return out


def _declared(message: pb.VarDesc) -> Declared:
    type = message.type
    variable_kind = kind_of_code(type.type)
    if message.HasField("extra") and message.extra.HasField("kind"):
        return Declared(kind(message.extra.kind), None, None)
    if variable_kind is LOD_TENSOR or variable_kind is LOD_TENSOR_ARRAY:
        holder = type.lod_tensor if variable_kind is LOD_TENSOR else type.tensor_array
        if not type.HasField("lod_tensor" if variable_kind is LOD_TENSOR else "tensor_array") or not holder.HasField("tensor"):
            return Declared(variable_kind, None, None)
        tensor, level = holder.tensor, holder.lod_level
    elif variable_kind is SELECTED_ROWS and type.HasField("selected_rows"):
        tensor, level = type.selected_rows, 0
    else:
        return Declared(variable_kind, None, None)
    if not tensor.HasField("data_type") or tensor.data_type not in DTYPE_OF_CODE:
        raise FormatError("the element type is missing or is none of a tensor")
    dims = tuple(tensor.dims)
    if not 0 <= level <= 8:
        raise FormatError(f"a lod level must be from 0 to 8, not {level}")
    of_type = DTYPE_OF_CODE[tensor.data_type]
    if not dims and (variable_kind is LOD_TENSOR_ARRAY or level):  # nothing was written to it; for ragged data even its rows are not described
        return Declared(variable_kind, of_type, None)
    Spec(variable_kind, of_type, tuple(max(d, 0) for d in dims))  # refuses an invalid rank or size
    symbolic, lod = _symbols(message, dims, level)
    return Declared(variable_kind, of_type, dims, level, symbolic, lod)


def _symbols(message: pb.VarDesc, dims: tuple[int, ...], level: int) -> tuple[tuple[Size, ...] | None, Lod | None]:
    symbolic: tuple[Size, ...] | None = None
    lod: Lod | None = None
    if message.HasField("extra"):
        extra = message.extra
        if extra.HasField("dims"):
            symbolic = tuple(parse(x) for x in utf8(extra.dims, "dims", 0).split(";")) if extra.dims else ()
            agree = len(symbolic) == len(dims) and all(isinstance(s, int) == (d >= 0) and (d < 0 or s == d) for s, d in zip(symbolic, dims, strict=True))
            if not agree:
                raise FormatError(f"the named dims {extra.dims!r} are not those of {list(dims)}")
        if extra.HasField("lod") and level:
            source, *counts = utf8(extra.lod, "lod", 0).rsplit(";", level)
            if len(counts) != level:
                raise FormatError(f"the named counts {extra.lod!r} are not those of {level} levels")
            lod = Lod(source, tuple(parse(x) for x in counts))
    return symbolic, lod


def _extra(message: pb.VarDesc, out: VariableForm) -> None:
    extra = message.extra
    if extra.HasField("trainable"):
        out.trainable = extra.trainable
    if extra.HasField("call_site"):
        out.site = decode_site(extra.call_site, "extra", 0)
    name = utf8(extra.kind, "kind", 0) or out.declared.kind.name
    if name in ("STRING", "STRINGS"):
        for text in extra.texts:
            utf8(text, "texts", 0)
        if extra.texts:
            out.value = extra.texts[0] if name == "STRING" else list(extra.texts)
    elif name in ("INT", "INTS"):
        out.value = extra.integers[0] if name == "INT" and extra.integers else list(extra.integers) if name == "INTS" else None
    elif name in ("FLOAT", "FLOATS"):
        out.value = extra.numbers[0] if name == "FLOAT" and extra.numbers else list(extra.numbers) if name == "FLOATS" else None
    elif extra.HasField("value"):
        out.value = _array(extra.value, out.declared)


def _array(data: bytes, declared: Declared) -> Any:
    import numpy

    dtype = declared.dtype
    if dtype is None or declared.dims is None or not dtype.numpy_name:
        raise FormatError("a constant value needs an element type and dims")
    count = 1
    for d in declared.dims:
        count *= d
    fixed = min(declared.dims, default=0) >= 0
    if len(data) != dtype.itemsize and (not fixed or len(data) != count * dtype.itemsize):
        raise FormatError(f"a constant value of {len(data)} bytes where the dims {list(declared.dims)} need {count * dtype.itemsize}")
    if dtype is BOOL and numpy.frombuffer(data, numpy.uint8).max(initial=0) > 1:
        raise FormatError("a constant bool has a byte that is neither 0 nor 1")
    array = numpy.frombuffer(data, dtype=numpy.dtype(dtype.numpy_name).newbyteorder("<"))
    return array[0].item() if len(data) == dtype.itemsize else array.reshape(declared.dims).copy()


def encode_form(spec: Spec, declared_form: Any, *, flags: tuple[bool, bool, bool, bool, bool], value: Any, site: Site, extra: tuple[bytes, ...]) -> bytes:
    """Return a VarDesc without its name. ``flags``: persistable, need_check_feed, is_parameter, stop_gradient, trainable."""
    message = pb.VarDesc()
    encode_type(spec, message)
    message.persistable = flags[0]
    if flags[1]:
        message.need_check_feed = True
    if flags[2]:
        message.is_parameter = True
    message.stop_gradient = flags[3]
    if not flags[4]:
        message.extra.trainable = False
    for attr in extra:
        message.attrs.add().MergeFromString(attr)
    if value is not None:
        _encode_value(spec, value, message)
    if site is not None:
        message.extra.call_site.file, message.extra.call_site.line, message.extra.call_site.function = site
    return message.SerializePartialToString(deterministic=True)


def encode_type(spec: Spec, message: pb.VarDesc) -> None:
    variable_kind = spec.kind
    if variable_kind.code is None:
        message.type.type = pb.VarType.RAW
        message.extra.kind = variable_kind.name
        return
    message.type.type = variable_kind.code  # pyright: ignore[reportAttributeAccessIssue]
    if variable_kind is SELECTED_ROWS:
        tensor = message.type.selected_rows
    elif variable_kind is LOD_TENSOR or variable_kind is LOD_TENSOR_ARRAY:
        if spec.dims is None and spec.dtype is None:
            return
        holder = message.type.lod_tensor if variable_kind is LOD_TENSOR else message.type.tensor_array
        tensor = holder.tensor
        if spec.lod is not None:
            holder.lod_level = len(spec.lod.counts)
            message.extra.lod = ";".join([spec.lod.source, *map(str, spec.lod.counts)])
    else:
        return
    if spec.dtype is not None:
        if spec.dtype in UNSIGNED:
            raise FormatError(f"a variable of {spec.dtype.name} cannot be saved: the file format has no such elements")
        tensor.data_type = spec.dtype.code  # pyright: ignore[reportAttributeAccessIssue]
    tensor.dims.extend(spec.packed_dims())
    if any(not isinstance(d, int) for d in spec.dims or ()):
        message.extra.dims = ";".join(map(str, spec.dims or ()))


def _encode_value(spec: Spec, value: Any, message: pb.VarDesc) -> None:
    name = spec.kind.name
    if name in ("STRING", "STRINGS"):
        message.extra.texts.extend([value] if isinstance(value, str) else value)
    elif name in ("INT", "INTS"):
        message.extra.integers.extend([value] if isinstance(value, int) else value)
    elif name in ("FLOAT", "FLOATS"):
        message.extra.numbers.extend([value] if isinstance(value, (int, float)) else value)
    else:
        import numpy

        dtype = spec.known_dtype
        message.extra.value = numpy.asarray(value).astype(numpy.dtype(dtype.numpy_name or "float32").newbyteorder("<")).tobytes()
