"""The command ``worker``: its options as settings, and its words on the output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from foreshape.apps.cli.command_options import refuse
from foreshape.apps.cli.output import plain_errors, print_plain


def worker(
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="The address where rank 0 waits for a client. Default: 127.0.0.1:29600.")
    ] = None,
    connect: Annotated[str | None, typer.Option("--connect", metavar="HOST:PORT", help="The address of a waiting client, to which rank 0 connects.")] = None,
    job: Annotated[Path | None, typer.Option("--job", metavar="FILE", help="A file with the job, instead of a client.")] = None,
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="The only folder that a job may read and write.")] = Path("."),
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", help="The time to wait for a job.")] = 3600.0,
    patience: Annotated[float, typer.Option("--patience", metavar="SECONDS", help="The time that ranks and client wait for one another.")] = 25.0,
    keep: Annotated[bool, typer.Option("--keep", help="Take further jobs after the first.")] = False,
) -> None:
    """Train jobs sent to this machine. Start it with torchrun, with a process for each rank: torchrun --nproc-per-node 4 -m foreshape
    worker."""
    if sum(option is not None for option in (listen, connect, job)) > 1:
        raise typer.BadParameter("give one of --listen, --connect and --job")
    if job is not None and keep:
        refuse("--keep", "a worker of clients", "--job has the only job")
    if not wait > 0 or not patience > 0:
        raise typer.BadParameter("--wait and --patience are seconds, more than 0")
    with plain_errors():
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch's words on a lost connection are replaced here
        from foreshape.apps.workers.worker import WorkerSettings, work

        def say(text: str) -> None:
            print_plain(text)

        usual = WorkerSettings()
        address = usual.listen if listen is None and connect is None and job is None else listen
        work(WorkerSettings(os.fspath(folder), address, connect, None if job is None else os.fspath(job), wait, patience, keep), say)
