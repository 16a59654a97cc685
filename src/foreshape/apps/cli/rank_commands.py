"""The command ``calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foreshape.apps.cli.arguments import Json
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
