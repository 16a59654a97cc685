"""Workers of Ray that die. They are imported by the workers too."""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from foreshape.apps.embedding.ray_texts import text_compute
from foreshape.runtime.feeding.ray_data import Compute


def dying_text_compute(notes: Path, *arguments: Any) -> Compute:
    """The first worker dies three times, with its work done and its results not delivered.

    Args:
        notes: a folder for its notes.
        arguments: of `text_compute`.
    """
    compute = text_compute(*arguments)

    def dying(table: Any) -> Any:
        out = compute(table)
        name = ray.get_runtime_context().get_actor_id()  # which stays when an actor is started again
        with suppress(FileExistsError):
            (notes / "first").symlink_to(name)
        deaths = len([*notes.glob("death*")])
        if os.readlink(notes / "first") == name and deaths < 3:
            (notes / f"death{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return out

    return dying


def deadly_text_compute(notes: Path, *_: Any) -> Compute:
    """Each table kills its worker.

    Args:
        notes: a folder for a note of each death.
    """

    def deadly(table: Any) -> Any:
        (notes / uuid.uuid4().hex).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    return deadly
