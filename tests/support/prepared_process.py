"""Processes that run a script, forked from one that has torch imported: a start takes a fraction of what a new interpreter takes."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch.distributed.distributed_c10d", "numpy.random"])


def _become(command: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    import numpy as np

    os.setsid()
    with open(log, "ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    np.random.seed()  # as that of a new interpreter: no other has the same
    sys.argv[:] = command
    sys.path[0:0] = [str(Path(command[0]).parent), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        runpy.run_path(command[0], run_name="__main__")
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)  # which the script may have set
        raise SystemExit(1) from None


class PreparedProcess:
    """A process of its own session that runs a script, its words going into a file; asked and told like a `subprocess.Popen`.

    Args:
        command: the script and its arguments.
        environment: all its variables. What torch reads of them as it is imported is what the first process was given.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._process = _CONTEXT.Process(target=_become, args=(command, dict(environment), str(log)))
        with mock.patch.dict(os.environ, environment, clear=True):
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended, below 0 by which signal; None where it lives."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a script", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)
