"""Files of values by name: safetensors, those of ``torch.save``, and several of them with an index, as transformers writes them."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Mapping
from typing import Any, Final, cast

from foreshape.core.values.conversion import to_tensor
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import FormatError, SchemaError, TypeMismatchError, border
from foreshape.interop import safetensors_file
from foreshape.interop.parameters import MAX_BYTES
from foreshape.language.wire.files import map_file, read_file
from foreshape.language.wire.other_formats import CHECKPOINT, SAFETENSORS, instead_of

_INDEX: Final = ".index.json"
_MAX_INDEX: Final = 100_000_000
_OF_FOLDERS: Final = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_CODE: Final = re.compile(r"(?:GLOBAL|[Uu]nsupported (?:class|operand|type)|[Tt]rying to (?:call|instantiate|access)(?: a)?) ([\w.]+)")


def read_state_dict(source: Any) -> dict[str, Tensor]:
    """Return the tensors of a source by name: a mapping, a file, an index of several files, or a folder with one of these.

    Raises:
        FormatError: no such file, or a damaged one, or one with code. SchemaError: another source; no tensors by name.
    """
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(cast("str | os.PathLike[str]", source))
        if os.path.isdir(path):
            file_name = _file_of(path)
            if file_name is None:
                raise FormatError.must(f"the folder {path}", f"one with {', '.join(_OF_FOLDERS[:-1])} or {_OF_FOLDERS[-1]}", "none of these")
            path = os.path.join(path, file_name)
        return _of_index(path) if path.endswith(_INDEX) else _tensors(_opened(path), path)
    if not isinstance(source, Mapping):
        raise SchemaError.must("the source", "name -> tensor, or the path of a file", f"{type(source).__name__}")
    return _tensors(cast("Mapping[Any, Any]", source), "the source")


def is_folder_of_weights(path: str | os.PathLike[str]) -> bool:
    """Tell whether a folder has a file, or an index of files, for `read_state_dict`."""
    return _file_of(path) is not None


def _file_of(folder: str | os.PathLike[str]) -> str | None:
    return next((name for name in _OF_FOLDERS if os.path.isfile(os.path.join(folder, name))), None)


def _of_index(path: str) -> dict[str, Tensor]:
    """Return the tensors of the files named in an index, each in the index's folder."""
    try:
        index: Any = json.loads(read_file(path, _MAX_INDEX))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: no JSON: {str(error)[:200]}") from None
    weight_map: Any = cast("dict[str, Any]", index).get("weight_map") if isinstance(index, dict) else None
    file_names = cast("dict[str, Any]", weight_map) if isinstance(weight_map, dict) else {}
    if not file_names:
        raise FormatError.must(path, 'an object with "weight_map", the file of each name', "another one")
    files: dict[str, list[str]] = {}
    for name, file in file_names.items():
        if not isinstance(file, str) or os.path.basename(file) != file or file in ("", ".", "..") or "\0" in file or "\\" in file:
            raise FormatError.must(f"{path}: the file of {name[:100]!r}", "the name of a file beside the index", f"{str(file)[:100]!r}")
        files.setdefault(file, []).append(name)
    out: dict[str, Tensor] = {}
    for file, names in files.items():
        beside = os.path.join(os.path.dirname(path), file)
        tensors = _tensors(_opened(beside), beside)
        missing = [name for name in names if name not in tensors]
        if missing:
            raise FormatError.must(beside, f"a file with {', '.join(missing[:3])}, as {os.path.basename(path)} says", f"{len(tensors)} others")
        out |= {name: tensors[name] for name in names}
    return out


def _opened(path: str) -> Mapping[Any, Any]:
    data = map_file(path, MAX_BYTES)
    head = bytes(data[:8])
    if head[:4] != b"PK\x03\x04" and head[:1] != b"\x80":
        try:
            return safetensors_file.load(path, data)[1]
        except (TypeMismatchError, FormatError) as error:
            raise FormatError(f"{path}: neither a safetensors file nor one of torch.save: {instead_of(data, SAFETENSORS, CHECKPOINT) or error}") from None
    del data
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(name.endswith(("constants.pkl", "archive_format")) for name in archive.namelist()):
                raise FormatError(f"{path}: a whole network of torch, not its values: torch.save(module.state_dict(), path) writes these")
    elif head[:4] == b"PK\x03\x04":
        raise FormatError(f"{path}: a file of torch.save that is cut off or damaged: the list of its contents, at its end, is missing")
    try:
        values: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, zip and torch, of many classes
        text = str(error).strip()
        code = _CODE.search(text)
        if code is not None:
            words = "a file of tensors by name, as torch.save(module.state_dict(), path) writes it; no code of a file is run"
            raise FormatError.must(path, words, f"one that needs {code[1][:200]}") from None
        raise FormatError(f"{path}: a file of torch.save that is damaged or cut off, or needs code to be read: {text.split(chr(10), 1)[0][:300]}") from None
    if not isinstance(values, Mapping):
        raise FormatError.must(f"{path}", "name -> tensor", f"{type(values).__name__}")
    return cast("Mapping[Any, Any]", values)


def _tensors(values: Mapping[Any, Any], source: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    inner: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            inner.append(repr(name))
        elif isinstance(value, torch.Tensor) or hasattr(value, "__array__"):
            with border(f"{name}: {type(value).__name__} is not an array of numbers", SchemaError):
                tensors[str(name)] = to_tensor(value).detach().cpu()
    if not tensors and inner:
        raise SchemaError(f"{source} holds no tensors by name, but further mappings, {', '.join(inner[:5])}: give the one with the values")
    return tensors
