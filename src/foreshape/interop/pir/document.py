"""From the JSON of PaddlePaddle 3's file to a `PirGraph`: every number, type and nesting is checked on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foreshape.checked_json.bounded_json import parse
from foreshape.errors import FormatError, ShapeError
from foreshape.interop.pir.pir_graph import NOTHING, GraphBlock, GraphOp, ListType, Parameter, PirAttributes, PirGraph, Type, shown
from foreshape.program.declared import Declared
from foreshape.spec import (
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
from foreshape.wire.limits import Limits

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
    base = _of(document, "base_code", dict, "")
    if base.get("magic") != "pir":
        raise FormatError.must("base_code.magic", "'pir'", shown(base.get("magic")))
    version = _of(base, "version", int, "base_code")
    regions = _of(_of(document, "program", dict, ""), "regions", list, "program")
    reader = _Reader(limits.depth)
    return reader.graph(version, base.get("trainable") is True, regions)


def _get(given: Any, name: str) -> Any:
    """Return the field ``name`` of an object; None if there is none, and of anything else."""
    return given.get(name) if given.__class__ is dict else None


def _of(given: Any, name: str, kind: type, place: str) -> Any:
    """Return the field ``name`` of an object, of the right kind."""
    value = _get(given, name)
    if value.__class__ is not kind:
        words = {dict: "an object", list: "a list", int: "a whole number", str: "a text"}[kind]
        raise FormatError.must(f"{place}.{name}".lstrip("."), words, shown(value))
    return value


def _listed(given: dict[str, Any], name: str, place: str) -> list[Any]:
    """Return the list in the field ``name``; empty if there is none."""
    found = given.get(name, _NONE)
    return found if found.__class__ is list else _of(given, name, list, place)


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
        blocks = _of(region, "blocks", list, place)
        if len(blocks) != 1:
            raise FormatError.must(f"{place}.blocks", "one block", f"{len(blocks)}")
        block, place = blocks[0], f"{place}.blocks[0]"
        arguments: list[int] = []
        types: list[Type] = []
        for at, given in enumerate(_of(block, "args", list, place)):
            where = f"{place}.args[{at}]"
            number = _of(given, "#", int, where)
            if number >= 0:
                raise FormatError.must(f"{where}.#", "a negative number", f"{number}")
            self._define(number, where)
            arguments.append(number)
            types.append(self.type(given.get("TT"), where, "TT"))
        ops: list[GraphOp] = []
        made = [*arguments]
        for at, given in enumerate(_of(block, "ops", list, place)):
            where = f"{place}.ops[{at}]"
            if given.__class__ is not dict:
                raise FormatError.must(where, "an object", shown(given))
            if given.get("#") == "p":
                if depth:
                    raise FormatError(f"{where}: a parameter within a region")
                self._parameter(given, where)
                continue
            op = self.op(given, where, depth)
            ops.append(op)
            made += op.results
        if depth:
            for number in made:
                self.known[number] = False
        return GraphBlock(tuple(arguments), tuple(types), tuple(ops))

    def _define(self, number: int, place: str) -> None:
        if number in self.known:
            raise FormatError(f"{place}: the value {shown(number)} is made twice")
        self.known[number] = True

    def _parameter(self, given: dict[str, Any], place: str) -> None:
        result = _of(given, "O", dict, place)
        number = _of(result, "%", int, f"{place}.O")
        if number <= NOTHING:
            raise FormatError.must(f"{place}.O.%", "the number of a value, above 0", shown(number))
        self._define(number, f"{place}.O")
        facts = _of(given, "A", list, place)
        name: Any = facts[3] if len(facts) > 3 else None
        if name.__class__ is not str or not 0 < len(name) <= _LONGEST_NAME:
            raise FormatError.must(f"{place}.A[3]", "the parameter's name", shown(name))
        type = self.type(result.get("TT"), place, "O")
        if not isinstance(type, Declared) or type.kind is not LOD_TENSOR or type.dtype is None:
            raise FormatError(f"{place}.O.TT: a parameter is a tensor of a known element type")
        flags: Any = given.get("OA")
        saved, stop, trainable = 1, 0, 1
        if flags is not None:
            if flags.__class__ is not list or len(flags) < 3 or not _TRUTHS.issuperset(map(_class_of, flags[:3])):
                raise FormatError.must(f"{place}.OA", "three numbers", shown(flags))
            saved, stop, trainable = flags[:3]
        self.parameters.append(Parameter(number, name, type, bool(saved), bool(trainable), bool(stop), place))

    def op(self, given: dict[str, Any], place: str, depth: int) -> GraphOp:
        """Read an op: its operands must be made before it, and its results have new numbers."""
        full: Any = given.get("#")
        if not isinstance(full, str) or "." not in full or len(full) > _LONGEST_NAME:
            raise FormatError.must(f"{place}.#", "the name of an operator, with its dialect", shown(full))
        number_of, _, name = full.partition(".")
        dialect: str = _DIALECTS.get(number_of, number_of)
        known = self.known
        operands: list[int] = []
        for one in _listed(given, "I", place):
            number: Any = one.get("%") if one.__class__ is dict else None
            if number.__class__ is not int or (number != NOTHING and not known.get(number)):
                raise _no_operand(one, known, f"{place}.I[{len(operands)}]")
            operands.append(number)
        regions: tuple[GraphBlock, ...] = ()
        if given.get("regions"):
            regions = tuple([self.block(r, f"{place}.regions[{at}]", depth + 1) for at, r in enumerate(_listed(given, "regions", place))])
        results: list[int] = []
        types: list[Type] = []
        for one in _listed(given, "O", place):
            number: Any = one.get("%") if one.__class__ is dict else None
            if number.__class__ is not int or number < 0:
                raise FormatError.must(f"{place}.O[{len(results)}]", "the number of a value", shown(one))
            if number in known:
                raise FormatError(f"{place}.O[{len(results)}]: the value {shown(number)} is made twice")
            if number != NOTHING:
                known[number] = True
            types.append(self.type(one.get("TT"), place, "O", len(results)))
            results.append(number)
        attributes: dict[str, Any] = {}
        for one in _listed(given, "A", place):
            key: Any = one.get("N") if one.__class__ is dict else None
            if key.__class__ is not str:
                raise FormatError.must(f"{place}.A[{len(attributes)}].N", "a name", shown(key))
            attributes[key] = one.get("AT")
        return GraphOp(dialect, name, tuple(operands), tuple(results), tuple(types), PirAttributes(attributes, place), regions, place, _stops(given.get("OA")))

    def type(self, given: Any, place: str, field: str, at: int = -1, depth: int = 0) -> Type:
        """Read a type, in the field ``field`` of the object at ``place``, or in its element ``at``. Negative dims are open."""
        if given.__class__ is dict:
            kind, data = given.get("#"), given.get("D")
            of = _KINDS.get(kind) if kind.__class__ is str else None
            if of is not None and data.__class__ is list and len(data) > 1 and data[0].__class__ is dict:
                element, dims = data[0].get("#"), data[1]
                if element.__class__ is str and dims.__class__ is list and _WHOLE.issuperset(map(_class_of, dims)):
                    key = (kind, element, *dims)
                    found = self.types.get(key)
                    if found is None:
                        found = self.types[key] = _tensor(of, element, dims, f"{_path(place, field, at)}.TT.D")
                    return found
            if kind == "NULL":
                return None
            if kind == "0.t_vec" and data.__class__ is list:
                if depth > _DEEPEST_LIST:
                    raise FormatError(f"{place}: lists are nested more than {_DEEPEST_LIST} deep")
                where = f"{_path(place, field, at)}.TT"
                return ListType(tuple([self.type(one, where, "D", n, depth + 1) for n, one in enumerate(data)]))
        raise _no_type(given, f"{_path(place, field, at)}.TT")


def _path(place: str, field: str, at: int) -> str:
    return f"{place}.{field}" if at < 0 else f"{place}.{field}[{at}]"


def _no_operand(given: Any, known: Mapping[int, bool], place: str) -> FormatError:
    """Return the error of an operand without a value, or used before it is made."""
    number = _get(given, "%")
    if number.__class__ is not int:
        return FormatError.must(place, "the number of a value", shown(given))
    reason = "is made in a region that has ended" if number in known else "is not made before it is used"
    return FormatError(f"{place}: the value {shown(number)} {reason}")


def _no_type(given: Any, place: str) -> FormatError:
    """Return the error of an unknown type."""
    if given.__class__ is not dict:
        return FormatError.must(place, "a type", shown(given))
    kind = given.get("#")
    if kind == "0.t_vec":
        return FormatError.must(f"{place}.D", "a list of types", shown(given.get("D")))
    if kind.__class__ is not str or kind not in _KINDS:
        return FormatError(f"{place}: values of the type {shown(kind)} are not known here")
    return FormatError.must(f"{place}.D", "an element type and dims, whole numbers", shown(given.get("D")))


def _tensor(of: Kind, element: str, dims: list[int], place: str) -> Declared:
    name = element.partition(".")[2]
    if name == "t_undefined":
        dtype = None
    elif name in _ELEMENTS:
        dtype = _ELEMENTS[name]
    else:
        raise FormatError(f"{place}[0]: elements of the type {shown(element)} are not known here")
    if len(dims) > _MOST_DIMS or any(d >= 1 << 63 for d in dims):
        raise FormatError.must(f"{place}[1]", f"at most {_MOST_DIMS} dims of 64 bits", shown(dims))
    if of is LOD_TENSOR_ARRAY:
        return Declared(of, dtype, None)
    try:
        return Declared(of, dtype, tuple([max(d, -1) for d in dims]))
    except ShapeError as error:
        raise FormatError(f"{place}[1]: {error}") from error


def _stops(given: Any) -> tuple[bool, ...]:
    """Return ``stop_gradient`` of the results, from an op's second list of attributes."""
    for one in given if given.__class__ is list else ():
        if one.__class__ is dict and one.get("N") == "stop_gradient":
            each = _get(one.get("AT"), "D")
            return tuple([_get(e, "D") is True for e in each]) if each.__class__ is list else ()
    return ()
