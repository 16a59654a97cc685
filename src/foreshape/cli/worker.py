"""The command of a worker: its options as settings, and its words on the output."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from foreshape.cli.output import print_plain


def run_worker(listen: str | None, connect: str | None, job: Path | None, folder: Path, wait: float, patience: float, keep: bool) -> None:
    """Work until the job is done."""
    if sum(one is not None for one in (listen, connect, job)) > 1:
        raise typer.BadParameter("give one of --listen, --connect and --job")
    if not wait > 0 or not patience > 0:
        raise typer.BadParameter("--wait and --patience are seconds, more than 0")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch's words on a lost connection are replaced here
    from foreshape.workers.worker import WorkerSettings, work

    def say(text: str) -> None:
        print_plain(text)

    usual = WorkerSettings()
    where = usual.listen if listen is None and connect is None and job is None else listen
    work(WorkerSettings(os.fspath(folder), where, connect, None if job is None else os.fspath(job), wait, patience, keep), say)
