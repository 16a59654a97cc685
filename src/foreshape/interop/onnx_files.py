"""Networks as ONNX's models: of one's own programs, and of model files."""

from __future__ import annotations

import os
from collections.abc import Mapping

from foreshape.errors import FormatError, border
from foreshape.interop.convert_models import parameter_values, same_file
from foreshape.interop.inference import Given, StoredValues, columns, for_inference, parameters_of, values_of
from foreshape.interop.onnx.write.models import WrittenModel, write_onnx
from foreshape.interop.parameters import Stored, stored_array
from foreshape.interop.program_files import find_program, open_program
from foreshape.language.program import Program, Variable
from foreshape.runtime.engine import Executor, Scope, default_scope

Path = str | os.PathLike[str]


def save_onnx(
    path: Path,
    feeds: Given,
    fetches: Given | Mapping[str, Variable | str],
    executor: Executor | None = None,
    program: Program | None = None,
    scope: Scope | StoredValues | None = None,
    opset: int | None = None,
) -> WrittenModel:
    """Write a network from ``feeds`` to ``fetches`` as an ONNX model; the ``onnx`` package is not needed.

    The program is pruned as for `save_inference_model`. Names, symbols of open dims, and scopes (as the first part of nodes' names) stay. Parameters past 2 GiB
    go to a second one, its name with ``.data``. A ragged input ``x`` is two there: ``x``, padded to ``[sequences, time, *row]``, and ``x.lengths``, the length
    of each sequence; so is a ragged result.

    Args:
        path: the file to write.
        feeds, fetches, executor, program, scope: as for `save_inference_model`; a result keeps its variable's name, or has its key in the mapping.
        opset: the operator set, from 13 to 28; by default 18, the newer one of a model that was read, or the least newer one that the operators need.

    Raises:
        FormatError: operators without a form in ONNX (each is named, with the reason); a file cannot be written. The old one stays then.
        SchemaError, ExecutionError: as `save_inference_model`.
    """
    _, out, names, results = for_inference(feeds, fetches, program)
    result_names = list(fetches) if isinstance(fetches, Mapping) else results
    parameters = parameters_of(out)
    values = values_of(parameters, scope if scope is not None else default_scope())
    stored = {name: stored_array(values[name], variable.spec.known_dtype) for name, variable in parameters.items()}
    return write_onnx(path, out, names, dict(zip(result_names, results, strict=True)), stored, opset)


@border("the model cannot be converted", FormatError)
def convert_to_onnx(source: Path, target: Path, params: Path | None = None, opset: int | None = None) -> WrittenModel:
    """Write a model (``.pdmodel``, PaddlePaddle 3's ``.json``, ``__model__``, a ``.pt2``, another ``.onnx``) as an ONNX model.

    Args:
        source, params: as for `convert_model`.
        target: the ``.onnx`` to write.
        opset: as for `save_onnx`.

    Raises:
        FormatError: as `save_onnx`; a file cannot be read; the network has mistakes.
    """
    if same_file(find_program(source)[0], target):
        raise FormatError(f"{os.fspath(target)}: a model is not written to where it is read from")
    program, values = opened_for_onnx(source, params)
    feeds, fetches = columns(program, "feed", outputs=True), columns(program, "fetch", outputs=False)
    try:
        return write_onnx(target, program, feeds, {name: name for name in fetches}, values, opset)
    except FormatError as error:
        raise error.reworded(f"{find_program(source)[0]}: {error}") from error


def opened_for_onnx(source: Path, params: Path | None = None) -> tuple[Program, dict[str, Stored]]:
    """Return the program of a model's file, for tests, with known shapes; and the tensors of its parameters."""
    from foreshape.transforms.passes import for_test

    model, beside = find_program(source)
    program, file_parameters = open_program(model)
    program.refresh()
    values = parameter_values(parameters_of(program), file_parameters, beside, params)
    return for_test(program), values
