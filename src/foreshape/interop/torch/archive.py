"""torch's archives of exported programs (``.pt2``), read without a pickle of their own and without code of theirs.

torch.export.load unpickles what it finds, evaluates sizes as Python, and calls every function that the graph names. Here the archive is opened as a zip,
the graph's JSON is examined first: operators of torch alone, sizes of known functions, nothing else that is called; and tensors are raw bytes, or pickles
that torch opens with ``weights_only``.
"""

from __future__ import annotations

import importlib
import io
import math
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from foreshape.core.checked_json.bounded_json import parse
from foreshape.errors import FormatError
from foreshape.interop.torch.untyped_torch import torch
from foreshape.language.wire.files import open_file
from foreshape.language.wire.limits import DEFAULT_LIMITS, Limits

_CONTAINERS: Final = 5_000_000
"""So many objects and arrays at most has the JSON of a graph."""
_OPERATOR: Final = re.compile(r"torch\.ops\.(aten|prims|foreshape|higher_order|torchvision|transformers)\.(\w+)(?:\.(\w+))?")
_HIGHER: Final = frozenset(("cond", "while_loop", "scan", "map_impl", "wrap_with_set_grad_enabled", "wrap_with_autocast", "with_effects"))
_FILES: Final = frozenset(("from_file",))
"""Operators of torch that open files."""
_CALLED: Final = {
    "_operator": "add sub mul floordiv truediv mod neg pos pow abs eq ne lt le gt ge and_ or_ xor not_ lshift rshift getitem index",
    "math": "ceil floor trunc sqrt",
    "torch": "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum _sym_sqrt _check _check_is_size",
}
_HOST: Final = frozenset(f"{module}.{name}" for module, names in _CALLED.items() for name in names.split())
_SYMBOL: Final = re.compile(r"Symbol\('([A-Za-z]{1,8}\d{0,6})'(?:, [a-z]{1,12}=(?:True|False)){0,4}\)")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_WORDS_OF_SIZES: Final = """
    Add Mul Pow Integer Rational Float Max Min Mod PythonMod FloorDiv CleanDiv CeilDiv ModularIndexing Where CeilToInt FloorToInt TruncToInt TruncToFloat
    RoundToInt ToFloat PowByNatural FloatPow FloatTrueDiv IntTrueDiv Identity Equality Unequality StrictLessThan LessThan StrictGreaterThan GreaterThan Eq Ne
    Lt Le Gt Ge And Or Not true false True False precision int_oo oo IntInfinity NegativeIntInfinity Infinity NegativeInfinity
"""
_FUNCTIONS: Final = frozenset(_WORDS_OF_SIZES.split())
_LONGEST: Final = 4000
_REPEATED: Final = 2**24
"""So many numbers at most may a tensor have that repeats fewer of them."""
_EXPRESSION: Final = re.compile(r"[\w(), =.'<>|&~+*/-]*")
_RANGE: Final = re.compile(r"[A-Za-z]{1,8}\d{0,6}")
_KEPT: Final = ("stack_trace", "nn_module_stack")


class Archive:
    """An open archive.

    Attributes:
        shown: the file's name for errors.
    """

    def __init__(self, source: Any, limits: Limits | None = None) -> None:
        given = isinstance(source, (bytes, bytearray, memoryview))
        self.shown = "this" if given else str(source)
        most = (limits or DEFAULT_LIMITS).bytes
        file: Any = io.BytesIO(bytes(cast("bytes", source))) if given else open_file(source, max(most, 2**40))
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            size = file.seek(0, 2)
            raise self.refused(f"the archive is damaged or cut short: its list of contents, at its end, is not in the {size:,} bytes: {error}") from None
        self._entries: dict[str, zipfile.ZipInfo] = {}
        size = file.seek(0, 2)
        total = 0
        for entry in self._zip.infolist():
            root, _, name = entry.filename.partition("/")
            total += entry.file_size
            if entry.compress_type != zipfile.ZIP_STORED or total > size:
                raise self.refused(f"{entry.filename[:100]}: entries are stored as they are, and no larger than the file; this one is not")
            self._entries[name or root] = entry

    def refused(self, words: str) -> FormatError:
        """Return the error about this file."""
        return FormatError(f"{self.shown} is an exported program of torch that cannot be read: {words}")

    def names(self) -> list[str]:
        """Return the names of the entries, without the first folder."""
        return list(self._entries)

    def read(self, name: str) -> bytes:
        """Return the bytes of an entry. Raises `FormatError`: there is none, or it is damaged."""
        entry = self._entries.get(name)
        if entry is None:
            raise self.refused(f"{name[:100]} is missing")
        try:
            return self._zip.read(entry)
        except (zipfile.BadZipFile, OSError, ValueError, EOFError, RuntimeError, NotImplementedError) as error:
            raise self.refused(f"{name[:100]} is damaged: {error}") from None

    def json(self, name: str) -> dict[str, Any]:
        """Return an entry's object of JSON."""
        data = self.read(name)
        try:
            found = parse(data, _CONTAINERS, unique=False)
        except FormatError as error:
            raise self.refused(f"{name[:100]}: {error}") from None
        if not isinstance(found, dict):
            raise self.refused(f"{name[:100]} must be an object of JSON")
        return cast("dict[str, Any]", found)


def read_exported(source: Any, limits: Limits | None = None) -> Any:
    """Return torch's ExportedProgram in a file, a path or bytes.

    Raises:
        FormatError: it is damaged, of another version of torch's format, or holds what is not opened here: compiled code, objects that only a pickle makes,
            functions that are no operators.
    """
    archive = Archive(source, limits)
    names = archive.names()
    models = [name for name in names if name.startswith("models/") and name.endswith(".json")]
    if not models:
        if any(name.startswith("data/aotinductor/") for name in names):
            raise archive.refused("it holds compiled code alone (AOTInductor), and no graph; torch.export.save writes one")
        raise archive.refused("it has no graph (models/*.json), as torch before 2.9 wrote it; torch.export.load there and torch.export.save anew make one")
    if len(models) > 1:
        raise archive.refused(f"it holds {len(models)} graphs, {', '.join(models[:5])}; one is needed")
    model = models[0].removeprefix("models/").removesuffix(".json")
    graph = archive.json(models[0])
    try:
        _examine(graph)
        values = {kind: _tensors(archive, kind, model) for kind in ("weights", "constants")}
    except _Unsafe as error:
        raise archive.refused(str(error)) from None
    import json

    serde: Any = importlib.import_module("torch._export.serde.serialize")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read = serde._bytes_to_dataclass(serde.ExportedProgram, json.dumps(graph).encode())
            return serde.ExportedProgramDeserializer().deserialize(read, values["weights"], values["constants"], None)
    except Exception as error:  # torch's reader raises whatever its Python raises on a damaged graph
        raise archive.refused(f"{type(error).__name__}: {str(error).strip()[:500]}") from error


class _Unsafe(Exception):
    """The file holds what is not opened here."""


# --- the graph


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    waiting: list[Any] = [value]
    while waiting:
        one: Any = waiting.pop()
        if isinstance(one, dict):
            held = cast("dict[str, Any]", one)
            yield held
            waiting.extend(held.values())
        elif isinstance(one, list):
            waiting.extend(cast("list[Any]", one))


def _examine(graph: dict[str, Any]) -> None:
    """Check whatever torch's reader looks up, evaluates or calls, and drop the rest. Raises `_Unsafe`."""
    foreign: dict[str, int] = {}
    graph["guards_code"] = []
    for found in _objects(graph):
        for key, value in list(found.items()):
            if key in ("target", "as_operator") and isinstance(value, str) and ("inputs" in found or key == "as_operator"):
                if not _is_known(value):
                    foreign[value[:80]] = foreign.get(value[:80], 0) + 1
            elif key == "expr_str":
                _check_size(value)
            elif key == "as_custom_obj" and value is not None:
                raise _Unsafe("it holds an object that only a pickle makes; tensors alone are read")
            elif key in ("in_spec", "out_spec", "treespec") and isinstance(value, str) and "__enum__" in value:
                raise _Unsafe("its inputs or results hold a class of Python")
            elif key in ("device", "as_device") and isinstance(value, dict):
                found[key] = {"type": "cpu", "index": None}
            elif key == "metadata" and isinstance(value, dict):
                found[key] = {k: v for k, v in cast("dict[str, Any]", value).items() if k in _KEPT}
    ranges = graph.get("range_constraints")
    for name in cast("dict[str, Any]", ranges) if isinstance(ranges, dict) else ():
        if not _RANGE.fullmatch(name):
            raise _Unsafe(f"{name[:60]!r} is no name of a size")
    if foreign:
        listed = "".join(f"\n    {name}: {count}" for name, count in foreign.items())
        raise _Unsafe(f"its graph calls functions that are no operators known here:{listed}")


def _is_known(target: str) -> bool:
    if target in _HOST:
        return True
    found = _OPERATOR.fullmatch(target)
    if found is None:
        return False
    space, name, overload = found.groups()
    if space == "higher_order":
        return name in _HIGHER and overload is None
    operators: Any = importlib.import_module("torch._ops")
    packet: Any = getattr(getattr(torch.ops, space), name, None)
    return name not in _FILES and isinstance(packet, operators.OpOverloadPacket) and (overload is None or overload in packet.overloads())


def _check_size(text: Any) -> None:
    if not isinstance(text, str) or len(text) > _LONGEST or not _EXPRESSION.fullmatch(text):
        raise _Unsafe(f"{str(text)[:80]!r} is no size")
    words = set(_WORD.findall(_SYMBOL.sub("0", text)))
    if words - _FUNCTIONS or "**" in text or re.search(r"\d{25}", text) or text.count("Pow(") > 4 or re.search(r"Pow\([^,]*, *Integer\(\d{3,}", text):
        raise _Unsafe(f"{text[:80]!r} is no size of torch's own functions")


# --- tensors


def _tensors(archive: Archive, kind: str, model: str) -> dict[str, Any]:
    """Return name -> the tensor of parameters and buffers, or of constants; tensors of the same bytes share them."""
    listed = archive.json(f"data/{kind}/{model}_{kind}_config.json").get("config")
    if not isinstance(listed, dict):
        raise _Unsafe(f"the list of its {kind} is missing")
    held: dict[str, Any] = {}
    out: dict[str, Any] = {}
    for name, about in cast("dict[str, Any]", listed).items():
        try:
            path, meta = str(about["path_name"]), about["tensor_meta"]
            if about["use_pickle"] or meta is None:
                out[name] = _unpickled(archive, f"data/{kind}/{path}", name)
                continue
            if path not in held:
                held[path] = _flat(archive.read(f"data/{kind}/{path}"), meta)
            tensor = _strided(held[path], meta)
            out[name] = torch.nn.Parameter(tensor, requires_grad=bool(meta["requires_grad"])) if about["is_param"] else tensor
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
            raise _Unsafe(f"{name[:100]} does not fit its bytes: {str(error)[:300]}") from None
    return out


def _strided(flat: Any, meta: Mapping[str, Any]) -> Any:
    sizes, strides = ([_number(n) for n in meta[key]] for key in ("sizes", "strides"))
    count = math.prod(sizes)
    if count > max(flat.numel(), _REPEATED):
        raise ValueError(f"{count} numbers of {flat.numel()}")
    return torch.as_strided(flat, sizes, strides, _number(meta["storage_offset"])) if count else torch.zeros(sizes, dtype=flat.dtype)


def _number(said: Mapping[str, Any]) -> int:
    value = said["as_int"]
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value


def _flat(data: bytes, meta: Mapping[str, Any]) -> Any:
    types: Mapping[Any, Any] = importlib.import_module("torch._export.serde.serialize")._SERIALIZE_TO_TORCH_DTYPE
    of = types[meta["dtype"]]
    return torch.frombuffer(bytearray(data), dtype=of) if data else torch.zeros(0, dtype=of)


def _unpickled(archive: Archive, path: str, name: str) -> Any:
    """Return a tensor that torch opens as data alone."""
    load: Callable[..., Any] = torch.load
    try:
        value = load(io.BytesIO(archive.read(path)), map_location="cpu", weights_only=True)
    except FormatError:
        raise
    except Exception as error:  # torch's and pickle's, of many classes
        raise _Unsafe(f"{name[:100]} is an object that only a pickle makes, and pickles can run code; tensors alone are read ({str(error)[:200]})") from None
    if not isinstance(value, torch.Tensor):
        raise _Unsafe(f"{name[:100]} is no tensor")
    return value
