"""`foreshape convert`: models for PaddlePaddle 2, and parameters in another form."""

from __future__ import annotations

import os

import typer

from foreshape.cli.output import broken, error_text, print_plain, printing
from foreshape.cli.show import count_words, human_bytes
from foreshape.errors import ForeshapeError, FormatError
from foreshape.interop.convert import convert_parameters
from foreshape.interop.convert_models import Converted, convert_model, models_in
from foreshape.interop.parameters import Stored
from foreshape.text.literal import escape

_FILES = (".pdmodel", ".pdiparams", ".safetensors")


def print_converted(model: str, source: str | None, target: str, force: bool) -> bool:
    """Convert a model or its parameters, and print what was written. Return True unless a model of a folder was refused.

    Args:
        source: the parameters; None for those beside the program.
        target: a file, or a folder: for each model in a folder, or, with ``source``, for a file for each parameter.
    """
    if target.endswith(_FILES[0]) and not os.path.isdir(target):
        _print_model(convert_model(model, target, source, force=force))
    elif target.endswith(_FILES) or source is not None:
        found = convert_parameters(model, source, target)
        with printing():
            print_plain(f"{target}: {_words(found)}")
    elif os.path.splitext(target)[1] and not os.path.isdir(target):
        raise FormatError(
            f"{target}: a model is written to a file that ends in .pdmodel, parameters to .pdiparams or .safetensors, models to a folder, as out/"
        )
    else:
        return _convert_folder(model, target, force)
    return True


def _convert_folder(model: str, target: str, force: bool) -> bool:
    """Convert the models in a folder, or one program, into a folder."""
    found = list(models_in(model))
    if not found:
        raise FormatError(f"{model}: there is no program in it (.pdmodel, __model__, .json of PaddlePaddle 3, or .onnx)")
    refused = 0
    for path, place in found:
        into = os.path.join(target, f"{place}.pdmodel")
        try:
            os.makedirs(os.path.dirname(into), exist_ok=True)
            _print_model(convert_model(path, into, force=force))
        except ForeshapeError as error:
            if len(found) == 1:
                raise
            refused += 1
            text = error_text(error)
            _note(text if path in text else f"{path} is not written: {text}")
    if refused:
        _note(f"{refused:,} of {len(found):,} models are not written")
    return not refused


def _print_model(found: Converted) -> None:
    with printing():
        print_plain(f"{found.model}: {count_words(found.ops, 'op')}" + (f"; {found.params}: {_words(found.parameters)}" if found.params else ""))
    for one in found.lacking:
        _note(f"note: PaddlePaddle 2.6.2 lacks {one.words}")


def _words(found: dict[str, Stored]) -> str:
    return f"{count_words(len(found), 'parameter')}, {human_bytes(sum(len(one.data) for one in found.values()))}"


def _note(text: str) -> None:
    typer.echo(broken(escape(text), None), err=True)
