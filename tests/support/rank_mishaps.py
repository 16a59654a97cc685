"""A run to which something happens: ``python rank_mishaps.py WHAT RANK FOLDER [STRATEGY]``; the rank is the one that it happens to.

Each rank prints what stopped it, and a hash of its parameters where nothing did.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
import foreshape.core.version
from foreshape import layer
from foreshape.apps.training.checkpoint.checkpoint import Checkpoint, container
from foreshape.language.operator import FLOATING, Operator, f32, gradient, i64, operand, reject, result, sample
from foreshape.language.wire import replacing
from foreshape.machine.communication.process_group import ProcessGroup

PATIENCE = 4.0
BATCHES = 12
RESTARTS = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
OWN = int(os.environ.get("RANK", "0"))


class Mishap:
    """What is done to the rank that is chosen, where the run comes by."""

    def __init__(self, what: str, rank: int, folder: Path) -> None:
        self.what, self.chosen, self.folder = what, rank == OWN and RESTARTS == 0, folder
        self.steps = self.files = 0

    def batches(self, epoch: int) -> Iterator[dict[str, Any]]:
        r = np.random.RandomState(epoch)
        for step in range(BATCHES):
            batch: dict[str, Any] = {"x": r.rand(8, 6).astype("float32"), "y": r.rand(8, 1).astype("float32")}
            if self.chosen and step == 3 and epoch == 1:
                if self.what == "stalls in its data":
                    time.sleep(1000)  # the line at which it stalls
                elif self.what == "is stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                elif self.what == "is killed between steps":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif self.what == "has no more data":
                    return
                elif self.what == "has other dims":
                    batch["extra"] = r.rand(8, 9, 2).astype("float32")
                elif self.what == "has another element type":
                    batch["extra"] = r.rand(8, 9).astype("float64")
                elif self.what == "has whole numbers":
                    batch["extra"] = r.randint(0, 9, (8, 9))
                elif self.what == "has more columns":
                    batch["extra"] = np.zeros((8, 8), "float32")
                elif self.what == "has no number":
                    batch["x"][:] = np.nan
                elif self.what == "raises":
                    raise KeyError("what the user's code says")
            if "extra" not in batch:
                batch["extra"] = np.zeros((8, 9), "float32")
            yield batch

    def within(self) -> None:
        """In the forward pass."""
        self.steps += 1
        if not self.chosen or self.steps != 4:
            return
        if self.what == "is killed in the forward pass":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.what == "stalls in the forward pass":
            time.sleep(1000)
        elif self.what == "wakes after a stall":
            time.sleep(4 * PATIENCE)

    def place(self) -> None:
        """Let it happen in a collective, or while a file is written."""
        if not self.chosen:
            return
        if self.what == "is killed in a collective":
            whole, waits = ProcessGroup.wait, [0]

            def wait(team: Any, tensor: Any) -> None:
                waits[0] += 1
                if waits[0] == 9:
                    os.kill(os.getpid(), signal.SIGKILL)
                whole(team, tensor)

            ProcessGroup.wait = wait  # type: ignore[method-assign]
        elif self.what in ("is killed while it writes", "has a full disk"):
            container.replacing = self._replacing
        elif self.what == "unpickles nothing":
            for name in ("load", "loads", "Unpickler"):
                setattr(pickle, name, _unpickled)

    @contextmanager
    def _replacing(self, path: Any) -> Iterator[Any]:
        """The second checkpoint is the one that something happens to."""
        self.files += 1
        if self.files == 2 and self.what == "has a full disk":
            opened = os.open
            os.open = lambda at, *how: opened("/dev/full", os.O_WRONLY) if ".writing-" in str(at) else opened(at, *how)  # type: ignore[assignment]
        with replacing(path) as file:
            yield _Dying(file) if self.files == 2 and self.what == "is killed while it writes" else file


def _unpickled(*given: Any, **named: Any) -> Any:
    raise AssertionError("something was unpickled")


class _Dying:
    """A file at whose third piece the process dies."""

    def __init__(self, file: Any) -> None:
        self.file, self.pieces = file, 0

    def write(self, piece: Any) -> None:
        self.pieces += 1
        if self.pieces == 3:
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.file.write(piece)


class Passed(Operator):
    """Out = X, when it has happened."""

    type = "passed_by_a_mishap"
    X = operand(FLOATING)
    Out = result()

    def infer_shape(self, X: Any) -> Any:
        return X.like()

    def kernel(self, X: Any) -> Any:
        MISHAP.within()
        return X.clone()

    @gradient("Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out@GRAD"})
    def backward(self, d_out: Any) -> Any:
        return d_out.clone()

    samples = [sample(X=f32(3, 2))]
    rejects = [reject(X=i64(3), says="floating", error=fs.TypeMismatchError)]


WHAT, RANK, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
STRATEGIES: dict[str, Any] = {
    "data_parallel": fs.data_parallel, "shard_optimizer": fs.shard_optimizer, "shard_parameters": fs.shard_parameters,
    "split_layers": lambda patience: fs.split_layers(patience=patience, layers={"fc_0.w_0": "columns"}),
}  # fmt: skip
STRATEGY = STRATEGIES[sys.argv[4] if len(sys.argv) > 4 else "data_parallel"]
MISHAP = Mishap(WHAT, RANK, FOLDER)


def main() -> None:
    x, y, extra = layer.data("x", input_size=6), layer.data("y", input_size=1), layer.data("extra", shape=["batch", "columns"])
    size = 5 if MISHAP.chosen and WHAT == "has another program" else 4
    block = fs.default_main_program().global_block
    hidden = block.apply("passed_by_a_mishap", {"X": layer.dropout(layer.tanh(layer.fc(x, output_size=size)), 0.3)})
    predicted = layer.fc(hidden, output_size=1) + layer.reduce_sum(extra, 1, keepdim=True) * 0.0
    if MISHAP.chosen and WHAT == "has another version":
        foreshape.core.version.VERSION = "0.0.1"
    MISHAP.place()
    scope = fs.Scope()
    try:
        history = fs.train(
            layer.square(predicted - y), MISHAP.batches, optimizer=fs.optimizer.Adam(0.01), epochs=2, progress=False, scope=scope, seed=3,
            checkpoint=Checkpoint(FOLDER / "checkpoints", every=4), ranks=STRATEGY(patience=PATIENCE),
        )  # fmt: skip
    except fs.ForeshapeError as error:
        kept = "finite" if all(np.isfinite(scope.get(n)).all() for n in scope.names()) else "not finite"
        print("\n".join([f"STOPPED {type(error).__name__}: {error}", *getattr(error, "__notes__", ()), f"KEPT {kept}"]), flush=True)
        raise SystemExit(3) from None
    values = hashlib.sha256(b"".join(scope.get(n).tobytes() for n in sorted(scope.names()))).hexdigest()
    os.write(1, f"ENDED rank {OWN} {values} {history.losses[-1]}\n".encode())  # whole: both ranks write to one pipe


if __name__ == "__main__":
    main()
