"""The commands ``calibrate`` and ``simulate``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from foreshape.apps.cli.arguments import BANDWIDTH, LATENCY, Bandwidth, Device, File, Json, Latency, Plot, Sizes, Threads
from foreshape.apps.cli.output import plain_errors


def calibrate(
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The file to write. Default: a file in the user's cache directory.")] = None,
    threads: Annotated[
        list[int] | None, typer.Option("--threads", metavar="NUMBER", help="A number of threads to measure. Can be repeated. Default: 1, and all.")
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="Measure the link between ranks instead of the kernels; start this with torchrun.")] = False,
    json: Json = False,
) -> None:
    """Measure this machine's kernels, so that plans can predict the time of a step. It takes about half a minute for each number of threads."""
    from foreshape.apps.cli.command_options import refuse
    from foreshape.apps.cli.ranks import calibrate_here, calibrate_link

    if link and threads:
        refuse("--threads", "a measurement of kernels", "--link measures the link between ranks")
    with plain_errors():
        if link:
            calibrate_link(out, json)
        else:
            calibrate_here(out, list(threads or ()), json)


def simulate(
    file: File,
    ranks: Annotated[
        list[int] | None, typer.Option("--ranks", metavar="NUMBER", min=1, help="A number of ranks. Can be repeated. Default: 8 to 4,096.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="The batch of the whole step, divided over the ranks.")] = None,
    batch_per_rank: Annotated[
        int | None, typer.Option("--batch-per-rank", min=1, help="The batch of each rank; the batch of the whole step grows with the ranks.")
    ] = None,
    sizes: Sizes = None,
    within: Annotated[
        str | None,
        typer.Option("--within", metavar="BYTES", help="The memory of a rank, as 16GiB. Exits with 1 if the program fits on none of the numbers of ranks."),
    ] = None,
    bandwidth: Bandwidth = BANDWIDTH,
    latency: Latency = LATENCY,
    tree: Annotated[bool, typer.Option("--tree", help="Also sum over trees, as NCCL does, where that is faster than rings.")] = False,
    device: Device = None,
    threads: Threads = 1,
    seed: Annotated[int, typer.Option("--seed", help="The seed of the random stragglers.")] = 0,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Simulate the training of a program on many ranks, with stragglers: time per step, efficiency, memory, and the bottleneck."""
    from foreshape.apps.cli.command_options import SimulationOptions
    from foreshape.apps.cli.options import sizes_of, with_shapes
    from foreshape.apps.cli.ranks import print_simulation
    from foreshape.interop import load_program

    if (batch is None) == (batch_per_rank is None):
        raise typer.BadParameter("give --batch or --batch-per-rank", param_hint="--batch")
    options = SimulationOptions(ranks or (), batch, batch_per_rank, sizes_of(sizes), within, bandwidth, latency, tree, device, threads, seed, plot, json)
    with plain_errors():
        program, values = with_shapes(load_program(os.fspath(file)), options.sizes)
        fits = print_simulation(program, file.stem, options, values)
    if not fits:
        raise typer.Exit(1)
