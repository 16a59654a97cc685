"""Checkpoints kept in a store of objects, in place of a folder shared by all machines."""

from __future__ import annotations

import os
import posixpath
import tempfile
from typing import Any

from foreshape.apps.training import Checkpoint
from foreshape.errors import FormatError
from foreshape.machine.communication.ray_session import ray_package


class StoredCheckpoint(Checkpoint):
    """Checkpoints in a folder of this rank alone, and copied to and from a store by pyarrow's file systems.

    Args:
        storage: the address, as "s3://bucket/runs".
        folder: a relative path there.
        every, keep: as for `Checkpoint`.

    Raises:
        FormatError: the store cannot be reached, or the path leads out of it.
    """

    def __init__(self, storage: str, folder: str, every: int | None, keep: int) -> None:
        relative = posixpath.normpath(folder)
        if posixpath.isabs(relative) or relative.split("/")[0] == "..":
            raise FormatError(f"{folder!r} leads out of {storage}")
        self._own = tempfile.TemporaryDirectory(prefix="foreshape-")
        super().__init__(self._own.name, every, keep)
        self._arrow = ray_package("pyarrow.fs")
        try:
            self._store, root = self._arrow.FileSystem.from_uri(storage)
            self._folder = posixpath.join(root, relative)
            self._store.create_dir(self._folder)
            self._arrow.copy_files(self._folder, self.path, source_filesystem=self._store)
        except (OSError, ValueError) as error:
            raise FormatError(f"{storage} cannot be reached: {error}") from None

    def written(self, path: str) -> None:
        """Copy a file to the store: there it is whole or not at all."""
        place = posixpath.join(self._folder, os.path.basename(path))
        try:
            with open(path, "rb") as source, self._store.open_output_stream(place + ".writing") as target:
                while data := source.read(1 << 24):
                    target.write(data)
            self._store.move(place + ".writing", place)
        except OSError as error:
            raise FormatError(f"{place} cannot be written: {error}") from None

    def save(self, *arguments: Any, **settings: Any) -> str:
        """Write one checkpoint, as a `Checkpoint` does, and let the store have the same files."""
        path = super().save(*arguments, **settings)
        self.written(path)
        here = set(os.listdir(self.path))
        for entry in self._store.get_file_info(self._arrow.FileSelector(self._folder)):
            if entry.base_name.startswith("step-") and entry.base_name not in here and not entry.base_name.endswith(".writing"):
                self._store.delete_file(entry.path)
        return path
