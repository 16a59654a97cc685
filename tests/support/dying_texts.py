"""A worker of Ray that dies. It is imported by the workers too."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import ray

from foreshape.apps.embedding.ray_texts import TextWorker


class DyingWorker(TextWorker):
    """The first worker dies three times, with its work done and its results not delivered. Its notes are in a folder beside the model."""

    def __call__(self, table: Any) -> Any:
        out = super().__call__(table)
        notes = Path(cast("Any", self._opening).args[0]).parent / "notes"
        name = ray.get_runtime_context().get_actor_id()  # which stays when an actor is started again
        with suppress(FileExistsError):
            (notes / "first").symlink_to(name)
        deaths = len([*notes.glob("death*")])
        if os.readlink(notes / "first") == name and deaths < 3:
            (notes / f"death{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return out
