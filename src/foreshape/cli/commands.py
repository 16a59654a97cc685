"""The commands, from show to demo. Each imports for itself: the command starts at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreshape.cli.arguments import Bandwidth, Device, File, FromTo, Json, Latency, Operators, Sizes, Threads
from foreshape.cli.output import drop_unprintable, fitted, plain_errors, print_json, print_plain, printing, whole_command
from foreshape.cli.quantizing import quantize
from foreshape.cli.serve import serve

if TYPE_CHECKING:
    from foreshape.program import Program

app = typer.Typer(
    name="foreshape",
    help="Describe a network, know everything about it, then run and train it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)


def run_command() -> None:
    """Run the command of ``sys.argv``, and end the process."""
    with whole_command():
        every = app.registered_commands
        wanted = [one for one in every if one.callback is not None and (one.name or one.callback.__name__) in sys.argv[1:2]]
        app.registered_commands = wanted or every  # the parser of each takes a millisecond to make
        try:
            command = fitted(typer.main.get_command(app))
        finally:
            app.registered_commands = every
        command()


def _version(wanted: bool) -> None:
    if wanted:
        from foreshape.version import VERSION

        typer.echo(f"foreshape {VERSION}")
        raise typer.Exit()


def _opened(file: Path, sizes: dict[str, list[int | str]], operators: list[Path] | None) -> Program:
    """Open a saved program, with the user's operators and the given sizes."""
    from foreshape.cli.options import with_sizes
    from foreshape.cli.user_operators import import_operators
    from foreshape.interop import load_program

    import_operators(operators)
    return with_sizes(load_program(os.fspath(file)), sizes)


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:  # pyright: ignore[reportUnusedFunction]
    """Describe a network, know everything about it, then run and train it."""


@app.command(short_help="A program as a table: ops, shapes, types, bytes.")
def show(
    file: File,
    sizes: Sizes = None,
    operators: Operators = None,
    json: Json = False,
    tail: Annotated[bool, typer.Option("--tail", help="Only the last layers, each with the words that select it, as in for_training('last pool').")] = False,
    output: Annotated[Path | None, typer.Option("--output", help="Also save the program, with the shapes that were given.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Its layers instead of its ops: what each gives, its parameters, bytes and work.")] = False,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Of a summary: how many rows the inputs have; 1 where it is left out.")] = None,
    depth: Annotated[int | None, typer.Option("--depth", min=1, help="Of a summary: how many levels of groups are opened.")] = None,
) -> None:
    """Show a program as a table: ops, result shapes, types, bytes, parameters and totals; or, with --summary, its layers on one screen."""
    from foreshape.cli.options import sizes_of
    from foreshape.cli.show import print_tables, program_facts
    from foreshape.cli.tail import print_tail, tail_facts

    given = sizes_of(sizes)
    with plain_errors():
        program = _opened(file, given, operators)
        unknown, errors = program.diagnose()
        if output is not None:
            program.save(os.fspath(output))
        if tail:
            print_json(tail_facts(program)) if json else print_tail(program)
        elif summary:
            from foreshape.cli.summary import print_summary

            print_summary(program, unknown, errors, batch, depth, json)
        elif json:
            print_json(program_facts(program, unknown, errors))
        else:
            print_tables(program, unknown, errors)


@app.command(short_help="Every error of a network, and the sizes its inputs take.")
def check(
    file: File,
    sizes: Sizes = None,
    operators: Operators = None,
    json: Json = False,
    guards: Annotated[bool, typer.Option("--guards", help="Also list the open guards, op by op, that the sizes of the inputs are solved from.")] = False,
) -> None:
    """Check a whole network: every error, which sizes the inputs take, which operators it has and which are not known, its parameters, shapes
    that are not those of the file, variables that are read before they are written, dead ops. Exits with 1 on an error."""
    from foreshape.cli.check import print_check
    from foreshape.cli.options import sizes_of
    from foreshape.cli.user_operators import import_operators
    from foreshape.interop import load_program

    given = sizes_of(sizes)
    with plain_errors():
        import_operators(operators)
        right = print_check(load_program(os.fspath(file)), given, json, guards)
    if not right:
        raise typer.Exit(1)


@app.command(short_help="One page about a network, for any browser.")
def report(
    file: File,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Where to; beside the model, as NAME.html, where left out.")] = None,
    sizes: Sizes = None,
    operators: Operators = None,
) -> None:
    """Write one page about a network, to be opened in any browser, without a network: its layers drawn, every op with its shapes and where they
    come from, which sizes the inputs take, memory by batch, work."""
    from foreshape.cli.options import another_file, sizes_of

    given = sizes_of(sizes)
    path = another_file(html if html is not None else file.with_suffix(".html"), file, "--html")
    with plain_errors():
        from foreshape.report import write_report

        program = _opened(file, given, operators)
        write_report(program, path, file.name)
        with printing():
            print_plain(f"{path}: {path.stat().st_size:,} bytes")


@app.command(short_help="The memory that a program needs before it runs.")
def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As of show; or package:function, which makes a network of torch and an example of its inputs.")],
    fetch: Annotated[list[str] | None, typer.Option("--fetch", metavar="NAME", help="A requested output. May be repeated.")] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=0, help="How many rows (of ragged inputs, sequences) every input has: all symbols that are dim 0 of an input.")
    ] = None,
    sizes: Sizes = None,
    within: Annotated[
        str | None,
        typer.Option(
            "--within",
            metavar="BYTES",
            help="A limit, as 16GiB: exits with 1 if it does not fit; without --batch, the largest that fits is found.",
        ),
    ] = None,
    train: Annotated[
        str | None, typer.Option("--train", metavar="OPTIMIZER", help="Of a network of torch: plan a training step, by AdamW or another of fs.optimizer.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the arena into a .png, .svg or .pdf file.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page in which every box of the arena tells what it is.")] = None,
    ranks: Annotated[int | None, typer.Option("--ranks", min=1, help="Plan for so many ranks, over which --batch and the like are divided.")] = None,
    bandwidth: Bandwidth = "25Gb/s",
    latency: Latency = "30us",
    device: Device = None,
    threads: Threads = 1,
    measured: Annotated[
        Path | None, typer.Option("--measured", metavar="FILE", help="A step that a run of --ranks has measured (FORESHAPE_TIMELINE), beside the planned one.")
    ] = None,
    operators: Operators = None,
    json: Json = False,
) -> None:
    """Say what memory a program needs before it runs: the peak, its formula, what it is for, and what fits. With --ranks also what each rank
    sends and waits for, how long a step takes, and by which strategy it is best trained; a program without updates each rank uses on its part
    of the batch."""
    from foreshape.cli.factory import is_exported_file, is_factory
    from foreshape.cli.options import another_file, sizes_of, with_shapes
    from foreshape.cli.plan import print_plan
    from foreshape.cli.user_operators import import_operators
    from foreshape.interop import load_program

    given = sizes_of(sizes)
    if ranks is not None and html is not None:
        raise typer.BadParameter("is for a plan without --ranks", param_hint="--html")
    if html is not None:
        another_file(html, file, "--html")
    if ranks is None and measured is not None:
        raise typer.BadParameter("is for a plan with --ranks", param_hint="--measured")
    made = is_factory(os.fspath(file))
    factory = made or (ranks is None and not fetch and is_exported_file(os.fspath(file)))
    if made and ranks is not None:
        raise typer.BadParameter("is for saved programs", param_hint="--ranks")
    if train is not None and not factory:
        raise typer.BadParameter("is for a network of torch: package:function, or a .pt2", param_hint="--train")
    with plain_errors():
        import_operators(operators)
        if factory:
            from foreshape.cli.factory import print_network_plan

            fits = print_network_plan(os.fspath(file), list(fetch or ()), train, batch, given, within, plot, html, json)
        elif ranks is not None:
            from foreshape.cli.ranks import print_ranks_plan

            program, values = with_shapes(load_program(os.fspath(file)), given)
            names = list(fetch or ())
            fits = print_ranks_plan(program, ranks, batch, values, within, bandwidth, latency, device, threads, plot, json, names, measured)
        else:
            program, values = with_shapes(load_program(os.fspath(file)), given)
            fits = print_plan(program, list(fetch or ()), batch, values, within, plot, html, json)
    if not fits:
        raise typer.Exit(1)


@app.command(short_help="Measure this machine, so that plans know times.")
def calibrate(
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to; in the user's cache directory where left out.")] = None,
    threads: Annotated[list[int] | None, typer.Option("--threads", help="A number of threads. May be repeated; 1 and all where left out.")] = None,
    link: Annotated[bool, typer.Option("--link", help="Measure what is between the ranks in place of the kernels; torchrun starts it.")] = False,
    json: Json = False,
) -> None:
    """Measure this machine's kernels, so that plans know how long a step takes: about half a minute for each number of threads."""
    from foreshape.cli.ranks import calibrate_here, calibrate_link

    with plain_errors():
        if link:
            calibrate_link(out, json)
        else:
            calibrate_here(out, list(threads or ()), json)


@app.command(short_help="Simulate the training of a program on many ranks.")
def simulate(
    file: File,
    ranks: Annotated[list[int] | None, typer.Option("--ranks", min=1, help="A number of ranks. May be repeated; 8 to 4,096 where left out.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Of the whole step, divided over the ranks.")] = None,
    batch_per_rank: Annotated[int | None, typer.Option("--batch-per-rank", min=1, help="Of each rank, so that the whole step's grows.")] = None,
    sizes: Sizes = None,
    within: Annotated[str | None, typer.Option("--within", metavar="BYTES", help="The memory of a rank, as 16GiB.")] = None,
    bandwidth: Bandwidth = "25Gb/s",
    latency: Latency = "30us",
    tree: Annotated[bool, typer.Option("--tree", help="Sums may go by trees where that is faster, as NCCL's do, and not by rings alone.")] = False,
    device: Device = None,
    threads: Threads = 1,
    seed: Annotated[int, typer.Option("--seed", help="Of the stragglers.")] = 0,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it into a .png, .svg or .pdf file.")] = None,
    json: Json = False,
) -> None:
    """Simulate the training of a program on many ranks, with stragglers: time per step, efficiency, memory, and what holds it up."""
    from foreshape.cli.options import sizes_of, with_shapes
    from foreshape.cli.ranks import print_simulation
    from foreshape.interop import load_program

    given = sizes_of(sizes)
    if (batch is None) == (batch_per_rank is None):
        raise typer.BadParameter("give --batch or --batch-per-rank", param_hint="--batch")
    with plain_errors():
        program, values = with_shapes(load_program(os.fspath(file)), given)
        print_simulation(
            program, file.stem, list(ranks or ()), batch, batch_per_rank, values, within, bandwidth, latency, tree, device, threads, seed, plot, json
        )


@app.command(short_help="Run a saved network: feeds and results are .npy files.")
def run(
    file: File,
    params: Annotated[Path | None, typer.Option("--params", help="The parameters: a .pdiparams file, or a folder of files.")] = None,
    feed: Annotated[list[str] | None, typer.Option("--feed", metavar="NAME=FILE.npy", help="The value of an input. May be repeated.")] = None,
    lengths: Annotated[list[str] | None, typer.Option("--lengths", metavar="NAME=LISTS", help="Sequence lengths of a ragged input, as x=[[3,1,2]].")] = None,
    fetch: Annotated[list[str] | None, typer.Option("--fetch", metavar="NAME", help="A result, where the file names none. May be repeated.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where each result is written to, as a .npy file.")] = Path("."),
    device: Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda.")] = "cpu",
    operators: Operators = None,
    profile: Annotated[bool, typer.Option("--profile", help="Then run it some more times, as fast as it can, and print which layers take how long.")] = False,
) -> None:
    """Run a saved network: feeds and results are .npy files."""
    from foreshape.cli.answers import run_network

    run_network(file, params, feed, lengths, fetch, out, device, operators, profile)


@app.command(name="compile", short_help="Keep what a first answer waits for beside a network, in one file.")
def compile_network(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A saved program (.pdmodel, .json of PaddlePaddle 3, .onnx, .pt2), or its folder.")],
    params: Annotated[Path | None, typer.Option("--params", help="The parameters, if not beside it: a .pdiparams file.")] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="NAME=SIZES", help="The size of an input, as x=1,3,48,192. The same input again begins another size of the network."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The file; by default MODEL.compiled beside the network.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Of its kernels; by default as many as the work repays.")] = None,
) -> None:
    """Write a network, read, inferred, fused and packed for this machine, to one file. foreshape run and fs.Predictor open it as a network, and run it
    without waiting for any of that. Where it does not fit, on another machine or for another size, they open the network itself."""
    from foreshape.cli.answers import print_compiled

    with plain_errors():
        print_compiled(model, params, shapes, out, threads)


app.command(short_help="Serve saved networks over HTTP.")(serve)
app.command(short_help="Quantize a network to numbers of 8 bits.")(quantize)


@app.command(short_help="Write a model for PaddlePaddle 2, as ONNX or torch code, or its parameters in another form.")
def convert(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A saved program (.pdmodel, .json of PaddlePaddle 3, .onnx, .pt2), or its folder.")],
    paths: FromTo,
    force: Annotated[bool, typer.Option("--force", help="Write also a model that needs what PaddlePaddle 2.6.2 lacks: it opens here alone.")] = False,
    opset: Annotated[int | None, typer.Option("--opset", help="Of an .onnx: its operator set, 13 to 28. By default 18, or the least newer one.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Of an .onnx: compare its results in onnxruntime with those here, at two sizes.")] = False,
) -> None:
    """Convert a model to the pair NAME.pdmodel and NAME.pdiparams for PaddlePaddle 2.6.2, to NAME.onnx, to torch code without a need of Foreshape
    (NAME.py and NAME.safetensors, or NAME.pt2), or its parameters to another form of file. To a folder, each model in the folder MODEL is written; with
    FROM, a file for each parameter. Element types and numbers stay as they are.

    A model with operators missing in PaddlePaddle 2.6.2, ONNX or torch code is not written: they are listed, and the command exits with 1."""
    from foreshape.cli.model_conversion import print_converted

    if len(paths) > 2:
        raise typer.BadParameter(f"{len(paths)} paths follow MODEL; it is TO, or FROM and TO", param_hint="[FROM] TO")
    with plain_errors():
        right = print_converted(os.fspath(model), None if len(paths) == 1 else paths[0], paths[-1], force, opset, check)
    if not right:
        raise typer.Exit(1)


@app.command(short_help="List the operators by family, or those with a word.")
def ops(
    word: Annotated[str | None, typer.Argument(metavar="[WORD]", help="Only operators with this in their name, family, file or line of help.")] = None,
    json: Json = False,
) -> None:
    """List the operators by family: the file of each, whether it has a gradient, reads ragged values or sparse rows, and what it does."""
    from foreshape.cli.operators import print_operators

    with plain_errors(), printing():
        print_operators(word, json)


@app.command(
    short_help="Run a script; its mistakes are told in plain words.", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def train(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python script that describes a network and trains it.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="What the script finds in sys.argv.")] = None,
) -> None:
    """Run a script that describes and trains a network; a mistake is told in plain words."""
    from foreshape.cli.script import run_script

    code = run_script(script, list(args or ()))
    if code == 0:
        with printing():  # the script's output goes out now, while a failure can still be reported
            return
    drop_unprintable()
    raise typer.Exit(code)


@app.command(short_help="Train what is sent here: a process for each rank.")
def worker(
    listen: Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where rank 0 waits for a client; 127.0.0.1:29600 if not given.")] = None,
    connect: Annotated[str | None, typer.Option("--connect", metavar="HOST:PORT", help="Where a client waits for rank 0, which goes there.")] = None,
    job: Annotated[Path | None, typer.Option("--job", metavar="FILE", help="A file with the job, which rank 0 reads; no client then.")] = None,
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="What a job reads and writes is in here, and nowhere else.")] = Path("."),
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for a job.")] = 3600.0,
    patience: Annotated[float, typer.Option("--patience", metavar="SECONDS", help="How long ranks and client wait for one another.")] = 25.0,
    keep: Annotated[bool, typer.Option("--keep", help="Take another job after the first.")] = False,
) -> None:
    """Train what is sent here: run it with torchrun, a process for each rank, as torchrun --nproc-per-node 4 -m foreshape worker."""
    from foreshape.cli.worker import run_worker

    with plain_errors():
        run_worker(listen, connect, job, folder, wait, patience, keep)


@app.command(short_help="A network from its description to its use.")
def demo(out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files are written to.")] = Path("out")) -> None:
    """Describe, train, save, open again and use a network that reads handwritten digits."""
    from foreshape.cli.output import console

    with plain_errors():
        from foreshape.training import demo as demonstration

        os.makedirs(out, exist_ok=True)
        demonstration.run(out, console())
