"""`foreshape convert`: models for PaddlePaddle 2, as ONNX and as torch code, and parameters in another form."""

from __future__ import annotations

import os

import typer

from foreshape.apps.cli.command_options import refuse
from foreshape.apps.cli.output import broken, error_text, print_plain, printing
from foreshape.apps.cli.show import count_words, human_bytes
from foreshape.errors import ForeshapeError, FormatError
from foreshape.interop.convert import convert_parameters
from foreshape.interop.convert_models import Converted, convert_model, models_in
from foreshape.interop.inference import load_inference_model
from foreshape.interop.onnx_comparison import check_written
from foreshape.interop.onnx_files import convert_to_onnx
from foreshape.interop.onnx_session import need_onnxruntime
from foreshape.interop.parameters import Stored
from foreshape.interop.torch_files import convert_to_torch
from foreshape.language.text.literal import escape
from foreshape.runtime.engine import Scope

_FILES = (".pdmodel", ".pdiparams", ".safetensors")
_ONNX = ".onnx"
_TORCH = (".py", ".pt2")


def print_converted(model: str, source: str | None, target: str, force: bool, opset: int | None = None, check: bool = False) -> bool:
    """Convert a model or its parameters, and print what was written. Return True unless a model of a folder was refused, or a check has failed.

    Args:
        source: the parameters; None for those beside the program.
        target: a file, or a folder: for each model in a folder, or, with ``source``, for a file for each parameter.
        opset, check: of an ``.onnx``: its operator set, and True to compare it in onnxruntime.
    """
    if target.endswith(_ONNX) and not os.path.isdir(target):
        _refuse_force(force, target)
        return _print_onnx(model, source, target, opset, check)
    if target.endswith(_TORCH) and not os.path.isdir(target) and opset is None and not check:
        return _print_torch(model, source, target, force)
    if opset is not None or check:
        raise FormatError(f"{target}: --opset and --check are for a file that ends in {_ONNX}")
    if target.endswith(_FILES[0]) and not os.path.isdir(target):
        _print_model(convert_model(model, target, source, force=force))
    elif target.endswith(_FILES) or source is not None:
        _refuse_force(force, target)
        stored = convert_parameters(model, source, target)
        with printing():
            print_plain(f"{target}: {_words(stored)}")
    elif os.path.splitext(target)[1] and not os.path.isdir(target):
        raise FormatError(
            f"{target}: a model is written to a file that ends in .pdmodel, .onnx, .py or .pt2, parameters to .pdiparams or .safetensors, models to a folder, "
            "as out/"
        )
    else:
        return _convert_folder(model, target, force)
    return True


def _refuse_force(force: bool, target: str) -> None:
    if force:
        refuse("--force", "a .pdmodel, .py or .pt2, or a folder of models", f"{target} is written without")


def _print_onnx(model: str, source: str | None, target: str, opset: int | None, check: bool) -> bool:
    if check:
        need_onnxruntime("a comparison")
    written = convert_to_onnx(model, target, source, opset)
    with printing():
        print_plain(
            f"{written.path}: {count_words(written.nodes, 'node')}, operator set {written.opset}"
            + (f"; {written.data}: its parameters" if written.data else "")
        )
    right = True
    if check:
        network = load_inference_model(model, scope=Scope(), params=source)
        for comparison in check_written(written.path, network):
            sizes = ", ".join(f"{name} {dims}" for name, dims in comparison.sizes.items())
            with printing():
                print_plain(
                    f"in onnxruntime with {sizes}: {comparison.words or f'equal, the largest difference is {comparison.difference:.1e} of the largest number'}"
                )
            right = right and not comparison.words
    return right


def _print_torch(model: str, source: str | None, target: str, force: bool) -> bool:
    written = convert_to_torch(model, target, source, check=not force)
    with printing():
        contents = f"{count_words(written.ops, 'op')}, {count_words(written.tensors, 'tensor')}"
        print_plain(f"{written.path}: {contents}" + (f"; {written.weights}: its weights" if written.weights else ""))
    if written.fixed:
        _note(f"note: torch.export keeps {', '.join(written.fixed)}; a .py leaves them open")
    return True


def _convert_folder(model: str, target: str, force: bool) -> bool:
    """Convert the models in a folder, or one program, into a folder."""
    models = list(models_in(model))
    if not models:
        raise FormatError(f"{model}: there is no program in it (.pdmodel, __model__, .json of PaddlePaddle 3, .onnx, or .pt2)")
    refused = 0
    for path, place in models:
        destination = os.path.join(target, f"{place}.pdmodel")
        try:
            _print_model(convert_model(path, destination, force=force))
        except ForeshapeError as error:
            if len(models) == 1:
                raise
            refused += 1
            text = error_text(error)
            _note(text if path in text else f"{path} is not written: {text}")
    if refused:
        _note(f"{refused:,} of {len(models):,} models are not written")
    return not refused


def _print_model(converted: Converted) -> None:
    with printing():
        print_plain(
            f"{converted.model}: {count_words(converted.ops, 'op')}" + (f"; {converted.params}: {_words(converted.parameters)}" if converted.params else "")
        )
    for lack in converted.lacking:
        _note(f"note: PaddlePaddle 2.6.2 lacks {lack.words}")


def _words(parameters: dict[str, Stored]) -> str:
    return f"{count_words(len(parameters), 'parameter')}, {human_bytes(sum(len(stored.data) for stored in parameters.values()))}"


def _note(text: str) -> None:
    typer.echo(broken(escape(text), None), err=True)
