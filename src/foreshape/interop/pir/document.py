"""From the JSON of PaddlePaddle 3's file to a `PirGraph`: every number, type and nesting is checked on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foreshape.core.checked_json.bounded_json import parse
from foreshape.core.spec import (
    BF16,
    BOOL,
    COMPLEX64,
    COMPLEX128,
    FP16,
    FP32,
    FP64,
    INT8,
    INT16,
    INT32,
    INT64,
    LOD_TENSOR,
    LOD_TENSOR_ARRAY,
    SELECTED_ROWS,
    UINT8,
    DType,
    Kind,
)
from foreshape.errors import FormatError, ShapeError
from foreshape.interop.pir.pir_graph import NOTHING, GraphBlock, GraphOp, ListType, Parameter, PirAttributes, PirGraph, Type, excerpt
from foreshape.language.program.declared import Declared
from foreshape.language.wire.limits import Limits

_DIALECTS: Final = {"0": "builtin", "1": "pd_op", "2": "cf", "3": "custom_op", "4": "dist"}
_ELEMENTS: Final[Mapping[str, DType]] = {
    "t_bool": BOOL, "t_i8": INT8, "t_ui8": UINT8, "t_i16": INT16, "t_i32": INT32, "t_i64": INT64, "t_index": INT64, "t_f16": FP16, "t_bf16": BF16,
    "t_f32": FP32, "t_f64": FP64, "t_c64": COMPLEX64, "t_c128": COMPLEX128,
}  # fmt: skip
_KINDS: Final[Mapping[str, Kind]] = {"0.t_dtensor": LOD_TENSOR, "1.t_dense_tensor_array": LOD_TENSOR_ARRAY, "1.t_selected_rows": SELECTED_ROWS}
_BYTES_FOR_EACH: Final = 12
"""One byte of so many in a file may begin an object or array: real files have one in 14."""
_LONGEST_NAME: Final = 2**16
_DEEPEST_LIST: Final = 8
_MOST_DIMS: Final = 64
_NONE: Final[list[Any]] = []
_WHOLE: Final = frozenset((int,))
_TRUTHS: Final = frozenset((int, bool))
_class_of: Final = type


def read_graph(data: bytes, limits: Limits) -> PirGraph:
    """Read the graph in these bytes.

    Time and memory are bounded by the size of the file, and its depth by ``limits.depth``.

    Raises:
        FormatError: it is none; the message has the path in the JSON.
    """
    if len(data) > limits.bytes:
        raise FormatError(f"the file has {len(data)} bytes; the limit is {limits.bytes} (Limits.bytes)")
    document = parse(data, len(data) // _BYTES_FOR_EACH, unique=False)
    base = _field(document, "base_code", dict, "")
    if base.get("magic") != "pir":
        raise FormatError.must("base_code.magic", "'pir'", excerpt(base.get("magic")))
    version = _field(base, "version", int, "base_code")
    regions = _field(_field(document, "program", dict, ""), "regions", list, "program")
    reader = _Reader(limits.depth)
    return reader.graph(version, base.get("trainable") is True, regions)


def _get(record: Any, name: str) -> Any:
    """Return the field ``name`` of an object; None if there is none, and of anything else."""
    return record.get(name) if record.__class__ is dict else None


def _field(record: Any, name: str, kind: type, place: str) -> Any:
    """Return the field ``name`` of an object, of the right kind."""
    value = _get(record, name)
    if value.__class__ is not kind:
        words = {dict: "an object", list: "a list", int: "a whole number", str: "a text"}[kind]
        raise FormatError.must(f"{place}.{name}".lstrip("."), words, excerpt(value))
    return value


def _list_field(record: dict[str, Any], name: str, place: str) -> list[Any]:
    """Return the list in the field ``name``; empty if there is none."""
    value = record.get(name, _NONE)
    return value if value.__class__ is list else _field(record, name, list, place)


class _Reader:
    """The state of reading one file: the types seen so far, and the values readable at the place."""

    __slots__ = ("depth", "known", "parameters", "types")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.known: dict[int, bool] = {}
        """Number of a value -> False once its block has ended."""
        self.types: dict[tuple[Any, ...], Declared] = {}
        self.parameters: list[Parameter] = []

    def graph(self, version: int, trainable: bool, regions: list[Any]) -> PirGraph:
        if len(regions) != 1:
            raise FormatError.must("program.regions", "one region", f"{len(regions)}")
        block = self.block(regions[0], "program.regions[0]", 0)
        if block.arguments:
            raise FormatError("program.regions[0].blocks[0].args: the main block takes no arguments")
        return PirGraph(version, trainable, tuple(self.parameters), block)

    def block(self, region: Any, place: str, depth: int) -> GraphBlock:
        """Read a region of one block."""
        if depth > self.depth:
            raise FormatError(f"{place}: regions are nested more than {self.depth} deep (Limits.depth)")
        blocks = _field(region, "blocks", list, place)
        if len(blocks) != 1:
            raise FormatError.must(f"{place}.blocks", "one block", f"{len(blocks)}")
        block, place = blocks[0], f"{place}.blocks[0]"
        arguments: list[int] = []
        types: list[Type] = []
        for index, entry in enumerate(_field(block, "args", list, place)):
            path = f"{place}.args[{index}]"
            number = _field(entry, "#", int, path)
            if number >= 0:
                raise FormatError.must(f"{path}.#", "a negative number", f"{number}")
            self._define(number, path)
            arguments.append(number)
            types.append(self.type(entry.get("TT"), path, "TT"))
        ops: list[GraphOp] = []
        numbers = [*arguments]
        for index, entry in enumerate(_field(block, "ops", list, place)):
            path = f"{place}.ops[{index}]"
            if entry.__class__ is not dict:
                raise FormatError.must(path, "an object", excerpt(entry))
            if entry.get("#") == "p":
                if depth:
                    raise FormatError(f"{path}: a parameter within a region")
                self._parameter(entry, path)
                continue
            op = self.op(entry, path, depth)
            ops.append(op)
            numbers += op.results
        if depth:
            for number in numbers:
                self.known[number] = False
        return GraphBlock(tuple(arguments), tuple(types), tuple(ops))

    def _define(self, number: int, place: str) -> None:
        if number in self.known:
            raise FormatError(f"{place}: the value {excerpt(number)} is made twice")
        self.known[number] = True

    def _parameter(self, record: dict[str, Any], place: str) -> None:
        result = _field(record, "O", dict, place)
        number = _field(result, "%", int, f"{place}.O")
        if number <= NOTHING:
            raise FormatError.must(f"{place}.O.%", "the number of a value, above 0", excerpt(number))
        self._define(number, f"{place}.O")
        facts = _field(record, "A", list, place)
        name: Any = facts[3] if len(facts) > 3 else None
        if name.__class__ is not str or not 0 < len(name) <= _LONGEST_NAME:
            raise FormatError.must(f"{place}.A[3]", "the parameter's name", excerpt(name))
        type = self.type(result.get("TT"), place, "O")
        if not isinstance(type, Declared) or type.kind is not LOD_TENSOR or type.dtype is None:
            raise FormatError(f"{place}.O.TT: a parameter is a tensor of a known element type")
        flags: Any = record.get("OA")
        saved, stop, trainable = 1, 0, 1
        if flags is not None:
            if flags.__class__ is not list or len(flags) < 3 or not _TRUTHS.issuperset(map(_class_of, flags[:3])):
                raise FormatError.must(f"{place}.OA", "three numbers", excerpt(flags))
            saved, stop, trainable = flags[:3]
        self.parameters.append(Parameter(number, name, type, bool(saved), bool(trainable), bool(stop), place))

    def op(self, record: dict[str, Any], place: str, depth: int) -> GraphOp:
        """Read an op: its operands must be made before it, and its results have new numbers."""
        full: Any = record.get("#")
        if not isinstance(full, str) or "." not in full or len(full) > _LONGEST_NAME:
            raise FormatError.must(f"{place}.#", "the name of an operator, with its dialect", excerpt(full))
        number_of, _, name = full.partition(".")
        dialect: str = _DIALECTS.get(number_of, number_of)
        visibility = self.known
        operands: list[int] = []
        for entry in _list_field(record, "I", place):
            number: Any = entry.get("%") if entry.__class__ is dict else None
            if number.__class__ is not int or (number != NOTHING and not visibility.get(number)):
                raise _no_operand(entry, visibility, f"{place}.I[{len(operands)}]")
            operands.append(number)
        regions: tuple[GraphBlock, ...] = ()
        if record.get("regions"):
            regions = tuple([self.block(r, f"{place}.regions[{index}]", depth + 1) for index, r in enumerate(_list_field(record, "regions", place))])
        results: list[int] = []
        types: list[Type] = []
        for entry in _list_field(record, "O", place):
            number: Any = entry.get("%") if entry.__class__ is dict else None
            if number.__class__ is not int or number < 0:
                raise FormatError.must(f"{place}.O[{len(results)}]", "the number of a value", excerpt(entry))
            if number in visibility:
                raise FormatError(f"{place}.O[{len(results)}]: the value {excerpt(number)} is made twice")
            if number != NOTHING:
                visibility[number] = True
            types.append(self.type(entry.get("TT"), place, "O", len(results)))
            results.append(number)
        attributes: dict[str, Any] = {}
        for entry in _list_field(record, "A", place):
            key: Any = entry.get("N") if entry.__class__ is dict else None
            if key.__class__ is not str:
                raise FormatError.must(f"{place}.A[{len(attributes)}].N", "a name", excerpt(key))
            attributes[key] = entry.get("AT")
        return GraphOp(dialect, name, tuple(operands), tuple(results), tuple(types), PirAttributes(attributes, place), regions, place, _stops(record.get("OA")))

    def type(self, record: Any, place: str, field: str, index: int = -1, depth: int = 0) -> Type:
        """Read a type, in the field ``field`` of the object at ``place``, or in its element ``index``. Negative dims are open."""
        if record.__class__ is dict:
            kind, data = record.get("#"), record.get("D")
            variable_kind = _KINDS.get(kind) if kind.__class__ is str else None
            if variable_kind is not None and data.__class__ is list and len(data) > 1 and data[0].__class__ is dict:
                element, dims = data[0].get("#"), data[1]
                if element.__class__ is str and dims.__class__ is list and _WHOLE.issuperset(map(_class_of, dims)):
                    key = (kind, element, *dims)
                    tensor = self.types.get(key)
                    if tensor is None:
                        tensor = self.types[key] = _tensor(variable_kind, element, dims, f"{_path(place, field, index)}.TT.D")
                    return tensor
            if kind == "NULL":
                return None
            if kind == "0.t_vec" and data.__class__ is list:
                if depth > _DEEPEST_LIST:
                    raise FormatError(f"{place}: lists are nested more than {_DEEPEST_LIST} deep")
                path = f"{_path(place, field, index)}.TT"
                return ListType(tuple([self.type(part, path, "D", n, depth + 1) for n, part in enumerate(data)]))
        raise _no_type(record, f"{_path(place, field, index)}.TT")


def _path(place: str, field: str, index: int) -> str:
    return f"{place}.{field}" if index < 0 else f"{place}.{field}[{index}]"


def _no_operand(record: Any, visibility: Mapping[int, bool], place: str) -> FormatError:
    """Return the error of an operand without a value, or used before it is made."""
    number = _get(record, "%")
    if number.__class__ is not int:
        return FormatError.must(place, "the number of a value", excerpt(record))
    reason = "is made in a region that has ended" if number in visibility else "is not made before it is used"
    return FormatError(f"{place}: the value {excerpt(number)} {reason}")


def _no_type(record: Any, place: str) -> FormatError:
    """Return the error of an unknown type."""
    if record.__class__ is not dict:
        return FormatError.must(place, "a type", excerpt(record))
    kind = record.get("#")
    if kind == "0.t_vec":
        return FormatError.must(f"{place}.D", "a list of types", excerpt(record.get("D")))
    if kind.__class__ is not str or kind not in _KINDS:
        return FormatError(f"{place}: values of the type {excerpt(kind)} are not known here")
    return FormatError.must(f"{place}.D", "an element type and dims, whole numbers", excerpt(record.get("D")))


def _tensor(kind: Kind, element: str, dims: list[int], place: str) -> Declared:
    name = element.partition(".")[2]
    if name == "t_undefined":
        dtype = None
    elif name in _ELEMENTS:
        dtype = _ELEMENTS[name]
    else:
        raise FormatError(f"{place}[0]: elements of the type {excerpt(element)} are not known here")
    if len(dims) > _MOST_DIMS or any(d >= 1 << 63 for d in dims):
        raise FormatError.must(f"{place}[1]", f"at most {_MOST_DIMS} dims of 64 bits", excerpt(dims))
    if kind is LOD_TENSOR_ARRAY:
        return Declared(kind, dtype, None)
    try:
        return Declared(kind, dtype, tuple([max(d, -1) for d in dims]))
    except ShapeError as error:
        raise FormatError(f"{place}[1]: {error}") from error


def _stops(record: Any) -> tuple[bool, ...]:
    """Return ``stop_gradient`` of the results, from an op's second list of attributes."""
    for entry in record if record.__class__ is list else ():
        if entry.__class__ is dict and entry.get("N") == "stop_gradient":
            flags = _get(entry.get("AT"), "D")
            return tuple([_get(e, "D") is True for e in flags]) if flags.__class__ is list else ()
    return ()
