"""The command ``quantize``: a saved network with numbers of 8 bits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from foreshape.apps.cli import completion
from foreshape.apps.cli.arguments import Model
from foreshape.apps.cli.output import plain_errors, print_plain, printing
from foreshape.core.folders import require_writable
from foreshape.core.hints import did_you_mean


def quantize(
    model: Model,
    out: Annotated[str, typer.Option("--out", metavar="NAME", help="The network to write: NAME.onnx, or NAME for NAME.pdmodel and NAME.pdiparams.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Examples of the inputs: an .npz file with an array for each input, an .npy file for a single input, or a folder of such files.",
        ),
    ] = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Quantize products alone, with scales of rows found in the run, without examples; so are networks with attention.")
    ] = False,
    activations: Annotated[
        str,
        typer.Option(
            "--activations",
            metavar="METHOD",
            help="How ranges are chosen: percentile, entropy, min_max, or measured: the one of these that changes the results least.",
            autocompletion=completion.methods,
        ),
    ] = "measured",
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="PATTERN", help="Layers to leave in fp32, by the name of a result, weight or operator. Can be repeated."),
    ] = None,
    within: Annotated[
        float | None, typer.Option("--within", metavar="LOSS", help="The largest loss: as many layers are left in fp32 as are needed for it.")
    ] = None,
) -> None:
    """Quantize a network to 8-bit integers, with ranges measured on examples or found in the run."""
    if activations not in completion.METHODS:
        raise typer.BadParameter(f"is one of {', '.join(completion.METHODS)}{did_you_mean(activations, completion.METHODS)}", param_hint="--activations")
    with plain_errors():
        from foreshape.apps.quantization import quantize
        from foreshape.interop import load_inference_model, save_inference_model, save_onnx
        from foreshape.runtime.engine import Scope

        require_writable(out if out.endswith((".onnx", ".pdmodel")) else f"{out}.pdmodel")
        network = load_inference_model(os.fspath(model), scope=Scope())
        limits: dict[str, Any] = {} if within is None else {"accuracy": "outputs", "within": within}
        feeds = None if data is None else _feeds(data)
        quantized = quantize(network, feeds, activations=activations, exclude=exclude or (), dynamic=dynamic or None, **limits)
        save = save_onnx if out.endswith(".onnx") else save_inference_model
        save(out, quantized.feeds, quantized.fetches, program=quantized.program, scope=quantized.scope)
        bytes = sum(v.persistable and v.dtype is not None and v.dtype.name == "int8" for v in quantized.program.global_block.vars.values())
        from foreshape.apps.cli.show import count_words

        with printing():
            print_plain(f"{out}: {count_words(bytes, 'weight')} of 8 bits")


def _feeds(path: Path) -> list[Any]:
    """Return the feeds of a file, or of the files of a folder, by name."""
    import numpy

    from foreshape.errors import FeedError

    files = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy")) if path.is_dir() else [path]
    if not files:
        raise FeedError(f"{path} has no .npz and no .npy file")
    feeds: list[Any] = []
    for file in files:
        try:
            arrays: Any = numpy.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise FeedError(f"{file} cannot be read as arrays: {error}") from error
        feeds.append(arrays if file.suffix == ".npy" else {name: arrays[name] for name in arrays.files})
    return feeds
