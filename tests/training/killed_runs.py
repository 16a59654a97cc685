"""Runs that are killed and started again. Run as a script, since each run is a forked process of its own that dies by SIGKILL.

    python killed_runs.py boundaries|moments FOLDER [few]

prints a JSON list with what became of each: where it was killed, and whether the restarted run ended with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.apps.training import Checkpoint, History

EPOCHS, EXAMPLES, BATCH = 3, 37, 8
STEPS = EPOCHS * -(-EXAMPLES // BATCH)


def network(seed: int = 0) -> tuple[fs.Program, fs.Program, Any]:
    """A net that draws random numbers in each step, and with optimizer state. Returns main, startup, cost."""
    main, startup = fs.Program(), fs.Program()
    main.random_seed = startup.random_seed = seed
    with fs.program_guard(main, startup):
        x, y = layer.data("x", 12), layer.data("y", 1, "int64")
        noise = main.global_block.apply("uniform_random", {}, {"shape": [_width], "min": 0.0, "max": 2.0})
        noise.stop_gradient = True
        h = layer.dropout(layer.fc(x, _width, "relu"), 0.2) * noise
        cost = layer.softmax_with_cross_entropy(layer.fc(h, 5), y)
    return main, startup, cost


_width = 64
_started: int | None = None
"""Where a forked run says that it trains now."""


def arrays() -> dict[str, Any]:
    rng = np.random.RandomState(3)
    return {"x": rng.randn(EXAMPLES, 12).astype("float32"), "y": rng.randint(0, 5, (EXAMPLES, 1))}


def drawn() -> Iterator[dict[str, Any]]:
    """Batches that draw from numpy's and Python's global generators, as a user's augmentation would."""
    if _started is not None:
        os.write(_started, b".")
    whole = arrays()
    order = np.random.permutation(EXAMPLES)
    for start in range(0, EXAMPLES, BATCH):
        rows = order[start : start + BATCH]
        yield {"x": whole["x"][rows] + np.float32(random.gauss(0.0, 0.1)) + np.random.randn(len(rows), 12).astype("float32") * 0.1, "y": whole["y"][rows]}


def run(folder: Path | None, every: int | None = 1, data: Any = None, program_seed: int = 0, **more: Any) -> tuple[str, History]:
    """Train from the beginning, or from the folder's checkpoint. Returns a digest of all values, and the history."""
    np.random.seed(11)
    random.seed(12)
    _, startup, cost = network(program_seed)
    scope = fs.Scope()
    history = fs.train(
        cost, data if data is not None else arrays(), optimizer=fs.optimizer.Momentum(0.05, 0.9), epochs=EPOCHS, batch_size=BATCH, scope=scope,
        startup=startup, progress=False, checkpoint=Checkpoint(folder, every=every) if folder is not None else None, **more,
    )  # fmt: skip
    digest = hashlib.sha256(np.array(history.losses).tobytes())
    for name in scope.names():
        digest.update(name.encode() + scope.get(name).tobytes())
    return digest.hexdigest(), history


class Boundaries:
    """Calls ``stop`` at the nth place where a checkpoint touches the disk: before or in the middle of a write, before a flush, a
    rename, a removal, and after each."""

    NAMES = ("fsync", "replace", "unlink", "chmod")

    def __init__(self, at: int, stop: Callable[[str], None]) -> None:
        self.at, self.stop, self.count = at, stop, 0
        self.before: dict[str, Any] = {}

    def reach(self, what: str) -> None:
        self.count += 1
        if self.count == self.at:
            self.stop(what)

    def __enter__(self) -> Boundaries:
        self.before = {n: getattr(os, n) for n in (*self.NAMES, "fdopen", "open")}
        for name in self.NAMES:
            setattr(os, name, self._around(name))
        os.fdopen = self._fdopen  # type: ignore[assignment]
        os.open = self._open  # type: ignore[assignment]
        return self

    def __exit__(self, *error: object) -> None:
        for name, function in self.before.items():
            setattr(os, name, function)

    def _around(self, name: str) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            self.reach(f"before {name}")
            out = self.before[name](*args, **named)
            self.reach(f"after {name}")
            return out

        return call

    def _open(self, path: Any, flags: int, *args: Any, **named: Any) -> Any:
        if flags & os.O_CREAT:
            self.reach("before open")
        return self.before["open"](path, flags, *args, **named)

    def _fdopen(self, handle: int, mode: str = "r", *args: Any, **named: Any) -> Any:
        file = self.before["fdopen"](handle, mode, *args, **named)
        return _File(file, self) if "w" in mode else file


class _File:
    """A file whose writes can stop in the middle."""

    def __init__(self, file: Any, boundaries: Boundaries) -> None:
        self.file, self.boundaries = file, boundaries

    def __enter__(self) -> _File:
        self.file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self.file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self.file.write(data[:half])
        self.file.flush()
        self.boundaries.reach("in the middle of a write")
        self.file.write(data[half:])
        return len(data)


def kill(what: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def forked(job: Callable[[], str], out: Path, after: float | None = None) -> str | None:
    """What a job gives in a process of its own, killed ``after`` seconds of training; None where it was killed."""
    global _started
    started, _started = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            out.write_text(job())
            code = 0
        finally:
            os._exit(code)
    os.close(_started)
    _started = None
    if after is not None:
        os.read(started, 1)
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    os.close(started)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    if os.waitstatus_to_exitcode(status):
        raise SystemExit("a run failed; see above")
    return out.read_text()


FEW = (1, 7, 20, 60)


def boundaries(folder: Path, few: bool) -> list[dict[str, Any]]:
    """Kill at each of the first boundaries, and at some later ones; restart each time. ``few``: at some of all."""
    out = folder / "out"
    want = forked(lambda: run(None)[0], out)
    results: list[dict[str, Any]] = []
    for at in FEW if few else [*range(1, 37), 60, 75, 90]:
        place = folder / f"at-{at}"

        def killed(at: int = at, place: Path = place) -> str:
            with Boundaries(at, kill):
                return run(place)[0]

        first = forked(killed, out)
        again = forked(lambda place=place: run(place)[0], out)
        results.append({"at": at, "killed": first is None, "same": again == want, "left": sorted(p.name for p in place.iterdir())})
    return results


def moments(folder: Path, few: bool) -> list[dict[str, Any]]:
    """Kill at random moments, again and again, until the run has ended; with data that draw from global generators. ``few``: one
    run, with smaller checkpoints."""
    global _width
    _width = 2048 if few else 8192  # most of the time goes into writing checkpoints
    out, rng = folder / "out", random.Random(5)
    want = forked(lambda: run(None, data=drawn)[0], out)

    results: list[dict[str, Any]] = []
    for every in (1,) if few else (1, 2, 3, None):
        durations: list[float] = []
        for k in range(2):
            seconds = forked(lambda place=folder / f"timed-{every}-{k}", every=every: str(sum(run(place, every, drawn)[1].column("seconds"))), out)
            durations.append(float(seconds or 0.0))
        place, kills, got = folder / f"killed-{every}", 0, None
        while got is None:
            # up to a limit: a machine that is slow now would never let the run end
            wait = rng.uniform(0.0, 0.4) * min(durations) if kills < 12 else None
            got = forked(lambda place=place, every=every: run(place, every, drawn)[0], out, after=wait)
            kills += got is None
        results.append({"kills": kills, "same": got == want})
    return results


if __name__ == "__main__":
    import torch  # in the parent, so that the runs need not import it again

    torch.set_num_threads(1)
    print(json.dumps({"boundaries": boundaries, "moments": moments}[sys.argv[1]](Path(sys.argv[2]), "few" in sys.argv)))
