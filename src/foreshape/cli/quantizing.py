"""The command ``quantize``: a saved network with numbers of 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from foreshape.cli.output import plain_errors, print_plain, printing

_METHODS = ("min_max", "percentile", "entropy")


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A saved network, without its ending, or its .onnx.")],
    data: Annotated[Path, typer.Option("--data", metavar="PATH", help="Examples: an .npz with an array for each input, an .npy of one input, or a folder.")],
    out: Annotated[str, typer.Option("--out", metavar="NAME", help="The files to write: NAME.pdmodel and NAME.pdiparams, or NAME.onnx with that ending.")],
    activations: Annotated[str, typer.Option("--activations", help="The choice of ranges: min_max, percentile or entropy.")] = "percentile",
    exclude: Annotated[list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="Layers to leave in fp32, by result, weight or operator.")] = None,
    within: Annotated[float | None, typer.Option("--within", metavar="LOSS", help="Leave layers in fp32 until the results differ by so little.")] = None,
) -> None:
    """Quantize a network to numbers of 8 bits, with ranges measured on examples."""
    if activations not in _METHODS:
        raise typer.BadParameter(f"is one of {', '.join(_METHODS)}", param_hint="--activations")
    with plain_errors():
        from foreshape.engine import Scope
        from foreshape.interop import load_inference_model, save_inference_model, save_onnx
        from foreshape.quantization import quantize

        found = load_inference_model(model, scope=Scope())
        limits: dict[str, Any] = {} if within is None else {"accuracy": "outputs", "within": within}
        made = quantize(found, _feeds(data), activations=activations, exclude=exclude or (), **limits)
        save = save_onnx if out.endswith(".onnx") else save_inference_model
        save(out, made.feeds, made.fetches, program=made.program, scope=made.scope)
        bytes = sum(v.persistable and v.dtype is not None and v.dtype.name == "int8" for v in made.program.global_block.vars.values())
        with printing():
            print_plain(f"{out}: {bytes} weights as bytes")


def _feeds(path: Path) -> list[Any]:
    """Return the feeds of a file, or of the files of a folder, by name."""
    import numpy

    from foreshape.errors import FeedError

    files = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy")) if path.is_dir() else [path]
    if not files:
        raise FeedError(f"{path} has no .npz and no .npy")
    feeds: list[Any] = []
    for file in files:
        try:
            found: Any = numpy.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise FeedError(f"{file} cannot be read as arrays: {error}") from error
        feeds.append(found if file.suffix == ".npy" else {name: found[name] for name in found.files})
    return feeds
