"""A callback that measures the time of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from foreshape.apps.training.callbacks.base import Callback, Run
from foreshape.errors import ExecutionError


class Timer(Callback):
    """A callback that reports the time of a step and the waiting for data at the end of a run, and traces some steps.

    Args:
        trace: the file for the trace of torch's profiler, for chrome://tracing or Perfetto; none by default.
        steps: the first step of the trace, from 2, and the last.
    """

    def __init__(self, trace: str | os.PathLike[str] | None = None, steps: tuple[int, int] = (5, 10)) -> None:
        if not 1 < steps[0] <= steps[1]:
            raise ExecutionError.must("steps", "the first, from 2, and the last that are traced", steps)
        self.trace, self.traced = trace, steps
        self.steps = 0
        self.waiting = self.computing = 0.0
        """Seconds for data, and in steps."""
        self._profiler: Any = None
        self._traced = False

    def _arguments(self) -> Mapping[str, Any]:
        return {"steps": self.traced}

    def on_train_begin(self, run: Run) -> None:
        self.steps, self._profiler = 0, None

    def on_batch_end(self, run: Run) -> None:
        self.steps += 1
        if self.trace is None or not run.first:
            return
        if self.steps == self.traced[0] - 1:
            from torch.profiler import profile

            self._profiler = profile()
            self._profiler.start()
        elif self.steps == self.traced[1]:
            self._write(run)

    def on_train_end(self, run: Run) -> None:
        self.waiting, self.computing = run.seconds
        if self._profiler is not None:  # the run was shorter
            self._write(run)
        if self.steps and run.first:
            run.say(str(self))

    def files_written(self) -> Sequence[str | os.PathLike[str]]:
        return [self.trace] if self.trace is not None and self._traced else []

    def _write(self, run: Run) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler.export_chrome_trace(os.fspath(self.trace or ""))
            self._profiler = None
            self._traced = True
            run.say(f"a trace of the steps up to {self.steps} is in {os.fspath(self.trace or '')}")

    def __str__(self) -> str:
        total = self.waiting + self.computing
        share = self.waiting / total if total else 0.0
        milliseconds = self.computing / self.steps * 1e3 if self.steps else 0.0
        return f"{self.steps} steps, {milliseconds:.3g} ms each, and {self.waiting:.3g} s ({share:.0%}) waiting for data"
