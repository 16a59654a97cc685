"""The commands, from show to demo. Each imports for itself: the command starts at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreshape.apps.cli import completion
from foreshape.apps.cli.arguments import (
    BANDWIDTH,
    LATENCY,
    Bandwidth,
    Device,
    File,
    FileOrFunction,
    FromTo,
    Json,
    Latency,
    Mask,
    Masked,
    Model,
    Operators,
    PadId,
    Params,
    Plot,
    Ragged,
    RowScales,
    Side,
    Sizes,
    Threads,
)
from foreshape.apps.cli.command_words import CommandGroup
from foreshape.apps.cli.embed import embed
from foreshape.apps.cli.output import drop_unprintable, fitted, plain_errors, print_json, print_plain, printing, whole_command
from foreshape.apps.cli.preflight import preflight
from foreshape.apps.cli.quantizing import quantize
from foreshape.apps.cli.rank_commands import calibrate
from foreshape.apps.cli.serve import serve

if TYPE_CHECKING:
    from foreshape.language.program import Program

app = typer.Typer(
    name="foreshape",
    help="Describe a network, know everything about it, then run and train it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=CommandGroup,
)


def run_command() -> None:
    """Run the command of ``sys.argv``, and end the process."""
    with whole_command():
        every = app.registered_commands
        selected = [
            registered for registered in every if registered.callback is not None and (registered.name or registered.callback.__name__) in sys.argv[1:2]
        ]
        app.registered_commands = selected or every  # the parser of each takes a millisecond to make
        try:
            command = fitted(typer.main.get_command(app))
        finally:
            app.registered_commands = every
        command(prog_name="foreshape")  # also of python -m foreshape: the shell completes this name


def _version(requested: bool) -> None:
    if requested:
        from foreshape.core.version import VERSION

        typer.echo(f"foreshape {VERSION}")
        raise typer.Exit()


def _opened(file: Path, sizes: dict[str, list[int | str]], operators: list[Path] | None) -> Program:
    """Open a saved program, with the user's operators and the given sizes."""
    from foreshape.apps.cli.options import with_sizes
    from foreshape.apps.cli.user_operators import import_operators
    from foreshape.interop import load_program

    import_operators(operators)
    return with_sizes(load_program(os.fspath(file)), sizes)


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:  # pyright: ignore[reportUnusedFunction]
    """Describe a network, know everything about it, then run and train it."""


@app.command(short_help="Show a program as a table: ops, shapes, types, bytes.")
def show(
    file: File,
    sizes: Sizes = None,
    operators: Operators = None,
    json: Json = False,
    tail: Annotated[bool, typer.Option("--tail", help="Show only the last layers, each with the words that select it in for_training('last pool').")] = False,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Also save the program, with the shapes of --set.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Show the layers instead of the ops: the output, parameters, bytes and work of each.")] = False,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="With --summary: the number of rows of the inputs. Default: 1.")] = None,
    depth: Annotated[int | None, typer.Option("--depth", min=1, help="With --summary: the number of levels of nested groups to open.")] = None,
) -> None:
    """Show a program as a table: ops, result shapes, types, bytes, parameters and totals; or, with --summary, its layers on one screen. Errors are
    counted, and foreshape check lists them."""
    from foreshape.apps.cli.command_options import refuse
    from foreshape.apps.cli.options import sizes_of
    from foreshape.apps.cli.show import print_tables, program_facts
    from foreshape.apps.cli.tail import print_tail, tail_facts

    if summary and tail:
        refuse("--summary", "all layers", "--tail shows the last ones")
    for option, value in (("--batch", batch), ("--depth", depth)):
        if value is not None and not summary:
            refuse(option, "a table of layers", "--summary is not there")

    shapes = sizes_of(sizes)
    with plain_errors():
        program = _opened(file, shapes, operators)
        unknown, errors = program.diagnose()
        if output is not None:
            program.save(os.fspath(output))
        if tail:
            print_json(tail_facts(program)) if json else print_tail(program)
        elif summary:
            from foreshape.apps.cli.summary import print_summary

            print_summary(program, unknown, errors, batch, depth, json)
        elif json:
            print_json(program_facts(program, unknown, errors))
        else:
            print_tables(program, unknown, errors)


@app.command(short_help="List every error of a network, and the sizes that its inputs take.")
def check(
    file: File,
    sizes: Sizes = None,
    operators: Operators = None,
    json: Json = False,
    guards: Annotated[bool, typer.Option("--guards", help="Also list the open guards: the conditions of each op on the sizes of the inputs.")] = False,
    ragged: Ragged = False,
    mask: Mask = None,
    pad_id: PadId = None,
    side: Side = None,
    masked: Masked = None,
    row_scales: RowScales = False,
) -> None:
    """Check a whole network: list its errors, the accepted sizes of its inputs, its operators, its parameters, shapes unlike the file's, and
    dead ops. With --ragged, also say whether it can take texts without padding.

    Exits with 1 if the network has an error, an unknown operator, or a variable read before it is written; with --ragged also if padding reaches a
    result."""
    from foreshape.apps.cli.check import print_check
    from foreshape.apps.cli.options import sizes_of
    from foreshape.apps.cli.ragged_networks import ragged_facts, ragged_settings
    from foreshape.apps.cli.user_operators import import_operators
    from foreshape.interop import load_program

    shapes = sizes_of(sizes)
    settings = ragged_settings(ragged, mask, pad_id, side, masked, row_scales)
    with plain_errors():
        import_operators(operators)
        program = load_program(os.fspath(file))
        right = print_check(program, shapes, json, guards, None if settings is None else lambda: ragged_facts(os.fspath(file), settings))
    if not right:
        raise typer.Exit(1)


@app.command(short_help="Write a page about a network, for any browser.")
def report(
    file: File,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="The page to write. Default: NAME.html beside the model.")] = None,
    sizes: Sizes = None,
    operators: Operators = None,
) -> None:
    """Write a page about a network, for any browser without a connection: a drawing of its layers, every op with its shapes and their origin, the
    accepted sizes of its inputs, its work, and its memory by batch."""
    from foreshape.apps.cli.options import another_file, sizes_of

    shapes = sizes_of(sizes)
    path = another_file(html if html is not None else file.with_suffix(".html"), file, "--html")
    with plain_errors():
        from foreshape.runtime.report import write_report

        program = _opened(file, shapes, operators)
        write_report(program, path, file.name)
        with printing():
            print_plain(f"{path}: {path.stat().st_size:,} bytes")


@app.command(short_help="Compute the memory that a program needs, before it runs.")
def plan(
    file: FileOrFunction,
    fetch: Annotated[list[str] | None, typer.Option("--fetch", metavar="NAME", help="A result to compute. Can be repeated.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=0, help="The number of rows of every input; of a ragged input, of sequences.")] = None,
    sizes: Sizes = None,
    within: Annotated[
        str | None,
        typer.Option(
            "--within",
            metavar="BYTES",
            help="A memory limit, as 16GiB. Without --batch, the largest batch within it is computed. Exits with 1 if the program does not fit.",
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            "--train",
            metavar="OPTIMIZER",
            help="For a module of torch: plan a training step by this optimizer of fs.optimizer, as AdamW.",
            autocompletion=completion.optimizers,
        ),
    ] = None,
    plot: Plot = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a page that shows each tensor in memory, and when.")] = None,
    ranks: Annotated[int | None, typer.Option("--ranks", min=1, help="Plan for this many ranks, over which the batch is divided.")] = None,
    bandwidth: Bandwidth = BANDWIDTH,
    latency: Latency = LATENCY,
    device: Device = None,
    threads: Threads = 1,
    measured: Annotated[
        Path | None, typer.Option("--measured", metavar="FILE", help="With --ranks: a step measured in a run (FORESHAPE_TIMELINE), to compare with the plan.")
    ] = None,
    operators: Operators = None,
    json: Json = False,
) -> None:
    """Compute the memory that a program needs, before it runs: the peak, its formula, its parts, and the largest batch that fits.

    With --ranks: also the messages and waiting times of each rank, the time of a step, and the best strategy. A program without updates is run by
    each rank on its part of the batch."""
    from foreshape.apps.cli.command_options import PlanOptions
    from foreshape.apps.cli.options import sizes_of
    from foreshape.apps.cli.planning import print_any_plan

    options = PlanOptions(fetch or (), batch, sizes_of(sizes), within, train, plot, html, ranks, bandwidth, latency, device, threads, measured, json)
    fits = print_any_plan(file, operators, options)
    if not fits:
        raise typer.Exit(1)


app.command(short_help="Forecast whether the training of a module of torch fits on a GPU, without one.")(preflight)
app.command(short_help="Measure this machine, so that plans can predict times.")(calibrate)


@app.command(short_help="Run a saved network; inputs and results are .npy files.")
def run(
    file: File,
    params: Params = None,
    feed: Annotated[list[str] | None, typer.Option("--feed", metavar="NAME=FILE.npy", help="The value of an input. Can be repeated.")] = None,
    lengths: Annotated[
        list[str] | None, typer.Option("--lengths", metavar="NAME=LISTS", help="The sequence lengths of a ragged input, as x=[[3,1,2]]. Can be repeated.")
    ] = None,
    fetch: Annotated[
        list[str] | None, typer.Option("--fetch", metavar="NAME", help="A result to compute. Can be repeated. Default: the results that the file names.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder for the results, a .npy file for each.")] = Path("."),
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="The device to compute on: cpu or cuda.", autocompletion=completion.devices)
    ] = "cpu",
    operators: Operators = None,
    profile: Annotated[bool, typer.Option("--profile", help="Then run it several more times, and print how long each layer takes.")] = False,
    why: Annotated[
        str | None,
        typer.Option(
            "--why",
            metavar="OP",
            help="Print which rewrites looked at an op, by its number or a result's name, and what stopped each; 'alone': of all ops with a kernel call of "
            "their own. Without --profile nothing runs.",
        ),
    ] = None,
) -> None:
    """Run a saved network; inputs and results are .npy files."""
    from foreshape.apps.cli.answers import run_network
    from foreshape.apps.cli.command_options import RunOptions

    run_network(file, RunOptions(params, feed or (), lengths or (), fetch or (), out, device, operators or (), profile, why))


@app.command(name="compile", short_help="Prepare a network for this machine, so that its first answer comes at once.")
def compile_network(
    model: Model,
    params: Params = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=SIZES",
            help="The shape of an input, as x=1,3,48,192. Can be repeated; an input named again begins another size of the network.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The file to write. Default: MODEL.compiled beside the network.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="The number of threads of the kernels. Default: as many as are faster.")] = None,
    ragged: Ragged = False,
    mask: Mask = None,
    pad_id: PadId = None,
    side: Side = None,
    masked: Masked = None,
    row_scales: RowScales = False,
) -> None:
    """Write a network to one file, for foreshape run and fs.Predictor to open as a network, with an early first answer. With sizes it is fused and
    packed for this machine, and runs without PyTorch, if oneDNN and numpy have all its kernels. Other sizes and machines open the network itself then. Any
    other network is kept as a program, for all sizes and machines.

    With --ragged the network is an .onnx of padded texts. foreshape embed, foreshape serve and fs.Embedder open the file, on any machine and for texts of
    any length.
    """
    from foreshape.apps.cli.answers import print_compiled
    from foreshape.apps.cli.command_options import refuse
    from foreshape.apps.cli.ragged_networks import ragged_settings

    settings = ragged_settings(ragged, mask, pad_id, side, masked, row_scales)
    for option, value in (("--params", params), ("--shape", shapes), ("--threads", threads)):
        if settings is not None and value:
            refuse(option, "a network of fixed sizes", "--ragged takes texts of any length")
    with plain_errors():
        print_compiled(model, params, shapes, out, threads, settings)


app.command(short_help="Serve saved networks over HTTP.")(serve)
app.command(short_help="Embed texts: write the vector of each text of a file.")(embed)
app.command(short_help="Quantize a network to 8-bit integers.")(quantize)


@app.command(short_help="Convert a model to PaddlePaddle 2, ONNX or torch code, or its parameters to another kind of file.")
def convert(
    model: Model,
    paths: FromTo,
    force: Annotated[
        bool, typer.Option("--force", help="Also write a model with operators that PaddlePaddle 2.6.2 lacks, or torch code that was not compared.")
    ] = False,
    opset: Annotated[
        int | None, typer.Option("--opset", metavar="NUMBER", help="For .onnx: the operator set, 13 to 28. Default: 18, or the first newer one that suffices.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="For .onnx: compare its results in onnxruntime with those here, at two sizes. Exits with 1 if they differ.")
    ] = False,
    ragged: Ragged = False,
    mask: Mask = None,
    pad_id: PadId = None,
    side: Side = None,
    masked: Masked = None,
    row_scales: RowScales = False,
) -> None:
    """Convert a model, or its parameters. The ending of the last PATH says to what:

    \b
    NAME.pdmodel             for PaddlePaddle 2.6.2, with NAME.pdiparams
    NAME.onnx                for ONNX
    NAME.py, NAME.pt2        torch code, which does not need Foreshape
    NAME.pdiparams           the parameters alone
    NAME.safetensors         the parameters alone
    NAME                     a folder: each model in the folder MODEL, for
                             PaddlePaddle; of two paths, a file per parameter

    With --ragged a network of padded texts is written on ragged rows, to a .pdmodel, or to an .onnx with padded texts and their lengths.

    Element types and values do not change. Exits with 1 if a model has operators that its new format lacks; they are listed, and it is not written."""
    from foreshape.apps.cli.command_options import refuse
    from foreshape.apps.cli.model_conversion import print_converted
    from foreshape.apps.cli.ragged_networks import print_ragged_converted, ragged_settings

    if len(paths) > 2:
        raise typer.BadParameter(f"{len(paths)} paths follow MODEL: give the path to write, or the parameters' path and the path to write", param_hint="PATH")
    settings, source = ragged_settings(ragged, mask, pad_id, side, masked, row_scales), None if len(paths) == 1 else paths[0]
    if settings is not None and (force or check):
        refuse("--check" if check else "--force", "a network as it is", "--ragged changes it")
    with plain_errors():
        right = True
        if settings is None:
            right = print_converted(os.fspath(model), source, paths[-1], force, opset, check)
        else:
            print_ragged_converted(os.fspath(model), source, paths[-1], settings, opset)
    if not right:
        raise typer.Exit(1)


@app.command(short_help="List the operators, or those with a word in their description.")
def ops(
    word: Annotated[
        str | None,
        typer.Argument(metavar="WORD", help="List only operators with this in their name, family, file or line of help.", autocompletion=completion.operators),
    ] = None,
    json: Json = False,
) -> None:
    """List the operators by family. Exits with 1 if no operator has the word."""
    from foreshape.apps.cli.operators import print_operators

    with plain_errors(), printing():
        matches = print_operators(word, json)
    if not matches:
        raise typer.Exit(1)


@app.command(
    short_help="Run a training script, and report its errors without a traceback.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def train(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python script that describes a network and trains it.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARG", help="The arguments of the script, in its sys.argv.")] = None,
) -> None:
    """Run a Python script, for example a training. Errors are reported by the lines of the script, without a traceback. Exits as the script
    does."""
    from foreshape.apps.cli.script import run_script

    code = run_script(script, list(args or ()))
    if code == 0:
        with printing():  # the script's output goes out now, while a failure can still be reported
            return
    drop_unprintable()
    raise typer.Exit(code)


@app.command(short_help="Train, save and use a small network of handwritten digits.")
def demo(out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder for the files that are written.")] = Path("out")) -> None:
    """Describe, train, save, open again and use a network that reads handwritten digits."""
    from foreshape.apps.cli.output import console

    with plain_errors():
        from foreshape.apps.training import demo as demonstration

        os.makedirs(out, exist_ok=True)
        demonstration.run(out, console())
