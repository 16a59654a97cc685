"""Parameters from one form of file to another: a combined ``.pdiparams``, a folder with a file each, and ``.safetensors``.

The bytes of the tensors go over as they are, a piece at a time; element types and dims stay the program's.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Final

from foreshape.core.spec import BOOL
from foreshape.errors import FormatError, ShapeError, TypeMismatchError, border
from foreshape.interop.inference import as_stored, parameters_of
from foreshape.interop.parameters import MAX_BYTES, PIECE, Fits, Stored, inside, open_parameters, write_combined, write_stored
from foreshape.interop.program_files import find_program, open_program
from foreshape.interop.safetensors_file import contents, header_of
from foreshape.language.program import Variable
from foreshape.language.wire import replacing
from foreshape.language.wire.files import map_file
from foreshape.language.wire.other_formats import CHECKPOINT, SAFETENSORS, instead_of

_TENSORS, _COMBINED = ".safetensors", ".pdiparams"
_SHOWN: Final = 5

Path = str | os.PathLike[str]


@border("the parameters cannot be converted", FormatError)
def convert_parameters(model: Path, source: Path | None, target: Path) -> dict[str, Stored]:
    """Write the parameters of a program in another form.

    Args:
        model: the program with the names, element types and dims; a combined file has no names. It is named as for `load_inference_model`.
        source: the parameters: a folder with a file for each, a ``.safetensors`` file, or else a combined file; None for those in the program's file (an
            ``.onnx``, a ``.pt2``), or beside it.
        target: ``.safetensors``, ``.pdiparams``, or a folder: an existing one, or a path with a slash at its end. Files are written to
            temporary names and renamed when all are complete; other files in the folder stay.

    Returns:
        Name -> the written tensor.

    Raises:
        FormatError: a file cannot be read or written, is cut off, or has other tensors than the program's parameters; the message has the
        tensor's name. Nothing is written then.
    """
    path, beside = find_program(model)
    program, file_parameters = open_program(path)
    target_path, source_path = os.fspath(target), os.fspath(beside if source is None else source)
    folder = os.path.isdir(target_path) or target_path.endswith(("/", os.sep))
    if not folder and not target_path.endswith((_TENSORS, _COMBINED)):
        raise FormatError(f"{target_path}: parameters are written to a file that ends in {_TENSORS} or {_COMBINED}, or to a folder, as {target_path}/")
    if os.path.exists(target_path) and os.path.exists(source_path) and os.path.samefile(source_path, target_path):
        raise FormatError(f"{target_path}: parameters are not written to where they are read from")
    values = file_parameters.stored() if file_parameters is not None and source is None else stored_parameters(source_path, parameters_of(program))
    if folder:
        _write_folder(target_path, values)
    elif target_path.endswith(_COMBINED):
        write_combined(target_path, values)
    else:
        _write_safetensors(target_path, values)
    return values


def stored_parameters(path: str, parameters: Mapping[str, Variable]) -> dict[str, Stored]:
    """Return the parameters of a program in a ``.safetensors`` file, a folder with a file for each, or a combined file.

    Raises:
        FormatError: as `convert_parameters`.
    """
    fits = as_stored(parameters)
    return _read_safetensors(path, parameters, fits) if path.endswith(_TENSORS) else open_parameters(path, parameters, fits)


def _read_safetensors(path: str, parameters: Mapping[str, Variable], fits: Fits) -> dict[str, Stored]:
    data = map_file(path, MAX_BYTES, writable=False)
    try:
        _, places = contents(path, data)
    except (FormatError, TypeMismatchError) as error:
        raise FormatError(f"{path}: not a safetensors file of parameters: {instead_of(data, SAFETENSORS, CHECKPOINT) or error}") from None
    for relation, names in (("has no", parameters.keys() - places.keys()), ("has, and the program has not,", places.keys() - parameters.keys())):
        if names:
            listing = ", ".join(repr(n[:100]) for n in sorted(names)[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
            raise FormatError(f"{path} {relation} parameter {listing}")
    out: dict[str, Stored] = {}
    for name, (dtype, dims, begin, end) in places.items():
        mistake = fits(name, dtype, dims)
        if mistake:
            raise FormatError(f"{path}: the parameter {name[:100]!r}: {mistake}")
        out[name] = Stored(dtype, dims, memoryview(data)[begin:end].toreadonly())
        if dtype is BOOL and out[name].data.nbytes and int(out[name].bits().max()) > 1:
            raise FormatError(f"{path}: the parameter {name[:100]!r}: a bool has a byte that is neither 0 nor 1")
    return out


def _write_safetensors(path: str, values: Mapping[str, Stored]) -> None:
    try:
        head, names = header_of({name: (value.dtype, value.dims) for name, value in values.items()})
    except (TypeMismatchError, ShapeError) as error:
        raise FormatError(f"{path} cannot be written: {error}") from None
    with replacing(path) as file:
        file.write(head)
        for name in names:
            data = values[name].data
            for first in range(0, len(data), PIECE):
                file.write(data[first : first + PIECE])


def _write_folder(folder: str, values: Mapping[str, Stored]) -> None:
    """Write a file for each value; all are complete in a temporary folder before the first takes its place."""
    is_new = not os.path.isdir(folder)
    try:
        os.makedirs(folder, exist_ok=True)
        waiting = tempfile.mkdtemp(prefix=".writing-", dir=folder)
    except OSError as error:
        raise FormatError(f"{folder} cannot be written to: {error.strerror or error}") from None
    try:
        for name, value in values.items():
            path, last = inside(waiting, name), inside(folder, name)
            if os.path.isdir(last):
                raise FormatError(f"the parameter {name[:100]!r}: {last} is a folder, not a file")
            with replacing(path) as file:
                write_stored(file, value)
        for name in values:
            last = inside(folder, name)
            os.makedirs(os.path.dirname(last), exist_ok=True)
            os.replace(inside(waiting, name), last)
    except OSError as error:
        raise FormatError(f"{error.filename or folder} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(waiting, ignore_errors=True)
        if is_new and not os.listdir(folder):
            os.rmdir(folder)
