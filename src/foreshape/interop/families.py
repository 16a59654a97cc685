"""Rooms of functions found by name, one module for each family: the modules are found by looking into the folder, and no list is kept."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator


def import_families(package: str, folders: Iterable[str], mark: str) -> None:
    """Import the modules of a package whose names have ``mark`` as a part between underscores: their functions register themselves."""
    for name, _ in _families(folders, mark):
        importlib.import_module(f"{package}.{name}")


def families_by_name(package: str, folders: Iterable[str], mark: str, decorator: str) -> dict[str, list[str]]:
    """Return name -> the modules with a function under a decorator with this name, as their sources say: nothing is imported.

    The names are written out in the decorator, as ``@onnx("Add", "Sub", since=7)``.
    """
    found: dict[str, list[str]] = {}
    begins = f"\n@{decorator}(".encode()
    for name, path in _families(folders, mark):
        with open(path, "rb") as file:
            decorators = file.read().split(begins)[1:]
        words = {word for one in decorators for word in one.split(b"\ndef ", 1)[0].split(b'"')[1::2]}
        for word in words:
            found.setdefault(word.decode(), []).append(f"{package}.{name}")
    return found


def _families(folders: Iterable[str], mark: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the file of each module with the mark, in the order of the names."""
    for folder in folders:
        for file in sorted(os.listdir(folder)):
            name = file.removesuffix(".py")
            if name != file and mark in name.split("_"):
                yield name, os.path.join(folder, file)
