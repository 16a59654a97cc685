"""The rules of operators in other formats, found by name.

They stand here and not beside the operators' classes: an operator knows nothing of other formats.
"""

from __future__ import annotations

import bisect
import importlib
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final

from foreshape.interop.forms import rows

OnnxReader = Callable[..., Any]
"""A function of a `foreshape.interop.onnx.call.Call`: it returns the result, several of them as a tuple, with None for one left out."""
PirReader = Callable[[Any], Any]
"""A function of a `foreshape.interop.pir.call.PirCall`: it returns the result, or several in a tuple, with None for an unread one."""
OnnxWriter = Callable[[Any], Any]
"""A function of a `foreshape.interop.onnx.write.written_op.WrittenOp`.

It returns the values of the op's results, in the schema's order; None for an unread one.
"""
TorchReader = Callable[..., Any]
"""A function of a `foreshape.interop.torch.torch_call.TorchCall` and the operator's own arguments: it returns the result, or several in a list or tuple."""
TorchWriter = Callable[[Any], Any]
"""A function of a `foreshape.interop.torch.write.plain_op.PlainOp`.

It returns an expression, or a tuple of them for the results in the schema's order (a list for a slot of several, None for an unread one), or a
`foreshape.interop.torch.write.plain_op.Several`; None if it has said the values of the variables itself.
"""
_onnx_readers: dict[tuple[str, str], list[tuple[int, OnnxReader]]] = {}
_onnx_writers: dict[str, OnnxWriter] = {}
_pir_readers: dict[str, tuple[PirReader, frozenset[str]]] = {}
"""Operator with its dialect -> the function, and the attributes that it need not read."""
_torch_readers: dict[str, TorchReader] = {}
_torch_writers: dict[str, TorchWriter] = {}
_of_two_modes: set[str] = set()
_of_rows: dict[str, Callable[..., Any]] = {}
"""Direction -> the function for all operators with a row."""
_imported: set[tuple[str, str]] = set()
"""The formats and their operators whose files are imported."""
_PACKAGE: Final = __name__.rpartition(".")[0]


# --- registering


def from_onnx(*names: str, since: int = 1, domain: str = "") -> Callable[[OnnxReader], OnnxReader]:
    """Return a decorator: the function reads the operators ``names`` from the operator set ``since`` on, up to the next registered one.

    The names are written out in the decorator: its text tells the file to import.
    """

    def register(function: OnnxReader) -> OnnxReader:
        for name in names:
            bisect.insort(_onnx_readers.setdefault((domain, name), []), (since, function), key=lambda version: version[0])
        return function

    return register


def to_onnx(*types: str) -> Callable[[OnnxWriter], OnnxWriter]:
    """Return a decorator: the function writes our operators ``types`` as nodes of ONNX; without any the one that its name says, ``_to_onnx_TYPE``."""

    def register(function: OnnxWriter) -> OnnxWriter:
        _onnx_writers.update(dict.fromkeys(types or _said_by(function, "_to_onnx_"), function))
        return function

    return register


def from_pir(*names: str, without: tuple[str, ...] = ()) -> Callable[[PirReader], PirReader]:
    """Return a decorator: the function reads PaddlePaddle 3's operators ``names``, of the dialect pd_op where no other is named.

    An op with an attribute that the function does not read is refused, but for the names in ``without``: they have no meaning here.
    """

    def register(function: PirReader) -> PirReader:
        _pir_readers.update(dict.fromkeys(map(_with_dialect, names), (function, frozenset(without))))
        return function

    return register


def _with_dialect(name: str) -> str:
    return name if "." in name else f"pd_op.{name}"


def from_torch(*names: str) -> Callable[[TorchReader], TorchReader]:
    """Return a decorator: the function reads ATen's operators ``names``, as ``add``, in all their overloads; ``max.dim`` is one of these alone.

    Without names it reads the one that its own says, ``_from_torch_NAME``.
    """

    def register(function: TorchReader) -> TorchReader:
        _torch_readers.update(dict.fromkeys(names or _said_by(function, "_from_torch_"), function))
        return function

    return register


def to_torch(*types: str, by_mode: bool = False) -> Callable[[TorchWriter], TorchWriter]:
    """Return a decorator: the function writes our operators ``types`` as torch code; without any the one that its name says, ``_to_torch_TYPE``.

    With ``by_mode`` it has another form in a test, by the module's mode.
    """

    def register(function: TorchWriter) -> TorchWriter:
        names = types or _said_by(function, "_to_torch_")
        _torch_writers.update(dict.fromkeys(names, function))
        _of_two_modes.update(names if by_mode else ())
        return function

    return register


def _said_by(function: Callable[..., Any], prefix: str) -> tuple[str]:
    """Return the operator in a function's name."""
    name: str = function.__name__
    assert name.startswith(prefix), f"{name}: its decorator has no operator, nor has its name, which begins with {prefix} then"
    return (name.removeprefix(prefix),)


def of_rows(direction: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: the function reads or writes the operators with a row (`rows`), given as its argument ``row``."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _of_rows[direction] = function
        return function

    return register


@cache
def _by_row(direction: str, type: str) -> Callable[..., Any]:
    importlib.import_module(f"{_PACKAGE}.by_row")
    return partial(_of_rows[direction], row=rows.row(type))


# --- finding


def onnx_reader(domain: str, name: str, opset: int) -> OnnxReader | None:
    """Return the function for an operator of ONNX in an operator set: the newest one up to the set."""
    _import_files("from_onnx", name)
    reader = None
    for since, function in _onnx_readers.get((domain, name), ()):
        if since <= opset:
            reader = function
    row = rows.row_from_onnx(name) if reader is None and not domain else None
    return _by_row("from onnx", row.type) if row is not None else reader


def onnx_writer(type: str) -> OnnxWriter | None:
    """Return the function to write an operator of ours as nodes of ONNX."""
    import_families()
    return _onnx_writers.get(type) or (_by_row("to onnx", type) if rows.row_to("to onnx", type) is not None else None)


def pir_reader(name: str) -> tuple[PirReader, frozenset[str]] | None:
    """Return the function for an operator of PaddlePaddle 3, named with its dialect, and the attributes that it need not read."""
    reader = _pir_readers.get(name)
    if reader is None and _import_files("from_pir", name.removeprefix("pd_op.")):
        reader = _pir_readers.get(name)
    return reader


def torch_reader(name: str, overload: str) -> TorchReader | None:
    """Return the function for an operator of ATen: the overload's, else the name's, else the one of the name without the mark of a change in place."""
    import_families()
    plain = name.rstrip("_")
    reader = _torch_readers.get(f"{name}.{overload}") or _torch_readers.get(name) or _torch_readers.get(plain)
    row = rows.row_from_torch(name) or rows.row_from_torch(plain)
    return reader or (_by_row("from torch", row.type) if row is not None else None)


def torch_writer(type: str) -> TorchWriter | None:
    """Return the function to write an operator of ours as torch code."""
    import_families()
    return _torch_writers.get(type) or (_by_row("to torch", type) if rows.row_to("to torch", type) is not None else None)


def follows_mode(type: str) -> bool:
    """Tell whether an operator's torch code has another form in a test."""
    return type in _of_two_modes


# --- all of them


def onnx_operators() -> list[tuple[str, str]]:
    """Return domain and name of all operators of ONNX read here."""
    import_families()
    return sorted({*_onnx_readers, *(("", name) for name in rows.names_from_onnx())})


def onnx_versions(domain: str, name: str) -> list[tuple[int, OnnxReader]]:
    """Return the functions for an operator of ONNX, each with its first operator set, in order."""
    import_families()
    row = rows.row_from_onnx(name) if not domain else None
    return [*_onnx_readers.get((domain, name), ()), *([(1, _by_row("from onnx", row.type))] if row is not None else [])]


def pir_operators() -> dict[str, PirReader]:
    """Return the operators of PaddlePaddle 3, each with its dialect -> its function."""
    import_families()
    return {name: function for name, (function, _) in _pir_readers.items()}


def types_in_onnx() -> list[str]:
    """Return the types of all our operators written as nodes of ONNX."""
    import_families()
    return sorted({*_onnx_writers, *rows.types_to("to onnx")})


def types_in_torch() -> list[str]:
    """Return the types of all our operators written as torch code."""
    import_families()
    return sorted({*_torch_writers, *rows.types_to("to torch")})


# --- the files: found by looking into the folder, and no list is kept


def modules_with(decorator: str, name: str) -> list[str]:
    """Return the modules with functions under a decorator for another format's operators of this name, in all domains."""
    return _modules(decorator).get(name, [])


def _import_files(decorator: str, name: str) -> bool:
    """Import the modules with a function for an operator of another format; return False if they are imported."""
    if (decorator, name) in _imported:
        return False
    for module in modules_with(decorator, name):
        importlib.import_module(module)
    _imported.add((decorator, name))
    return True


@cache
def import_families() -> None:
    """Import all files of this room: their functions register themselves."""
    for name, _ in _files():
        importlib.import_module(f"{_PACKAGE}.{name}")


@cache
def _modules(decorator: str) -> dict[str, list[str]]:
    """Return name -> the modules with a function under a ``decorator`` with this name, as their sources say: nothing is imported."""
    modules: dict[str, list[str]] = {}
    for name, path in _files():
        with open(path, "rb") as file:
            decorators = file.read().split(f"\n@{decorator}(".encode())[1:]
        for word in {word for text in decorators for word in text.split(b"\ndef ", 1)[0].split(b'"')[1::2]}:
            modules.setdefault(word.decode(), []).append(f"{_PACKAGE}.{name}")
    return modules


def _files() -> Iterator[tuple[str, str]]:
    """Yield the name and the path of each file of this room, in the order of the names."""
    folder = os.path.dirname(__file__)
    for file in sorted(os.listdir(folder)):
        name = file.removesuffix(".py")
        if name != file and not name.startswith("_"):
            yield name, os.path.join(folder, file)
