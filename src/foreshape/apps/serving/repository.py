"""The models of a server, in files and folders: versions, and their exchange when files change."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from foreshape.apps.serving.served_model import ModelKind, Opening, ServedModel
from foreshape.apps.serving.server_limits import RequestError, ServerLimits
from foreshape.apps.serving.trouble import log_trouble
from foreshape.errors import ForeshapeError, FormatError
from foreshape.interop.batch_queue import Batch
from foreshape.language.text.literal import escape
from foreshape.machine.process.machine_memory import default_limit

log: Final = logging.getLogger("foreshape.serving")
_MOST_FILES: Final = 10_000
_SETTINGS: Final = ("config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json")
"""Files beside a network of texts, and no programs."""
_ENDINGS: Final = (".pdmodel", ".onnx", ".pt2", ".json", ".gguf")
Key = tuple[str, str]
"""The name of a model, and its version."""


class ServedVersion(NamedTuple):
    """A served version: the opened model, the state of its files, and its place."""

    model: ServedModel
    signature: Any
    path: str


class _Found(NamedTuple):
    kind: ModelKind
    path: str
    signature: Any


class Repository:
    """The served models.

    A model is a file or a folder; a folder may hold numbered versions of one model (``NAME/1``, ``NAME/2``), or several models.
    Each version is opened apart, and takes the place of the one before when it has answered once.

    Args:
        sources: paths, or ``NAME=PATH``.
        kinds: of models, asked in turn.
        limits: of the server.
        ran: model, version -> a listener to its batches.
        gone: is told of versions without files.
    """

    def __init__(
        self,
        sources: Sequence[str],
        kinds: Sequence[ModelKind],
        limits: ServerLimits,
        ran: Callable[[str, str], Callable[[Batch], None]],
        gone: Callable[[str, str], None] = lambda model, version: None,
    ) -> None:
        self._sources = [_source(source) for source in sources]
        self._kinds, self._limits, self._ran, self._gone = kinds, limits, ran, gone
        usual = default_limit()
        self._memory = limits.memory or (usual.size if usual is not None else 1 << 62)
        self._served: dict[str, dict[str, ServedVersion]] = {}
        self._failed: dict[Key, tuple[Any, str]] = {}
        """The state of the files, and the words for clients: neither paths nor bytes of the files."""
        self._seen: dict[Key, Any] = {}
        self._missing: set[Key] = set()

    # --- asked by requests

    def find(self, name: str, version: str | None = None) -> tuple[ServedModel, str]:
        """Return a model and its version; the newest one by default. Raises `RequestError` if there is none."""
        versions = self._served.get(name)
        if versions is None:
            failed = next((words for (n, _), (_, words) in self._failed.items() if n == name), None)
            if failed is not None:
                raise RequestError(503, f"the model {name} could not be opened; {failed}", retry_after=5)
            raise RequestError(404, f"there is no model {name[:100]!r}; there are: {', '.join(self._served) or 'none'}")
        number = max(versions, key=_order) if version is None else version
        if number not in versions:
            raise RequestError(404, f"the model {name} has no version {number[:40]!r}; it has {', '.join(self.versions(name))}")
        return versions[number].model, number

    def known(self, name: str, version: str | None) -> Key | None:
        """Return the name and version of a known model, also of a broken one; None for any other."""
        versions = [*self._served.get(name, ())] or [v for n, v in self._failed if n == name]
        number = version or max(versions, key=_order, default="")
        return (name, number) if number in versions or (name, number) in self._failed else None

    def names(self) -> list[str]:
        return sorted(self._served)

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model, the newest last."""
        return sorted(self._served.get(name, {}), key=_order)

    def index(self) -> list[dict[str, str]]:
        """Return all versions with their state, also broken ones."""
        out = [{"name": n, "version": v, "state": "READY", "reason": ""} for n in self.names() for v in self.versions(n)]
        for (name, version), (_, words) in sorted(self._failed.items()):
            old = next((entry for entry in out if (entry["name"], entry["version"]) == (name, version)), None)
            if old is not None:
                old["reason"] = f"its files have changed, and the new ones could not be opened; {words}"
            else:
                out.append({"name": name, "version": version, "state": "UNAVAILABLE", "reason": f"it could not be opened; {words}"})
        return out

    def served(self) -> list[tuple[str, str, ServedModel]]:
        return [(n, v, self._served[n][v].model) for n in self.names() for v in self.versions(n)]

    # --- changes of files

    def open_all(self) -> None:
        """Open all models.

        Raises:
            ForeshapeError: a source cannot be opened, or none of a folder.
        """
        entries = self._scan()
        self._seen = {key: entry.signature for key, entry in entries.items()}
        if not entries:
            raise FormatError("there is no model in " + ", ".join(path for _, path in self._sources))
        failed: list[str] = []
        for key, entry in entries.items():
            try:
                self._put(key, self._opened(key, entry, len(entries)))
            except ForeshapeError as error:
                if len(entries) == 1:
                    raise
                self._fail(key, entry.signature, error)
                failed.append(f"{key[0]}: {error}")
        if not self._served:
            raise FormatError("; ".join(failed))
        self._share()

    async def refresh(self) -> None:
        """Open changed files, and put them in place of the old. Files must be the same for two refreshes before they are read."""
        try:
            entries = await asyncio.to_thread(self._scan)
        except (OSError, ForeshapeError) as error:
            log.warning("the models' files cannot be listed: %s", escape(str(error)))
            return
        missing = {(name, version) for name, version, _ in self.served()} - entries.keys()
        gone, self._missing = missing & self._missing, missing  # files that are replaced are away for a moment
        for name, versions in list(self._served.items()):
            for version in list(versions):
                if (name, version) in gone:
                    log.info("%s version %s is served no more: its files are gone", name, version)
                    _leave(versions.pop(version).model)
                    self._gone(name, version)
            if not versions:
                del self._served[name]
        for key in self._failed.keys() - entries.keys():
            del self._failed[key]
            self._gone(*key)
        for key in self._seen.keys() - entries.keys() - self._missing:
            del self._seen[key]
        for key, entry in entries.items():
            previous = self._served.get(key[0], {}).get(key[1])
            settled, self._seen[key] = self._seen.get(key) == entry.signature, entry.signature
            signature = self._failed[key][0] if key in self._failed else None if previous is None else previous.signature
            if signature == entry.signature or not settled:
                continue
            try:
                opened = await asyncio.to_thread(self._opened, key, entry, len(entries))
            except Exception as error:
                self._fail(key, entry.signature, error)
                continue
            self._failed.pop(key, None)
            self._put(key, opened)
            log.info("%s version %s is %s", *key, "served" if previous is None else "served anew")
        self._share()

    def _opened(self, key: Key, entry: _Found, count: int) -> ServedVersion:
        opening = Opening(self._memory // count, self._limits, self._ran(*key))
        model = entry.kind.opened(entry.path, opening)
        for words in model.notes:
            log.info("%s version %s: %s", *key, escape(words))
        return ServedVersion(model, entry.signature, entry.path)

    def _put(self, key: Key, version: ServedVersion) -> None:
        """Let requests go to a version from now on; one before it answers its present ones."""
        versions = self._served.setdefault(key[0], {})
        previous = versions.get(key[1])
        versions[key[1]] = version
        if previous is not None:
            _leave(previous.model)

    def _fail(self, key: Key, signature: Any, error: Exception) -> None:
        words = escape(str(error) or type(error).__name__).rstrip(".")
        remark = " The one before is served on." if key[1] in self._served.get(key[0], {}) else ""
        number = log_trouble(f"{key[0]} version {key[1]} could not be opened: {words}.{remark}", None if isinstance(error, ForeshapeError) else error)
        self._failed[key] = (signature, f"the server's log says why, at trouble {number}")

    def _share(self) -> None:
        every = self.served()
        for _, _, model in every:
            model.give_memory(self._memory // len(every))

    def close(self) -> None:
        """Close all models."""
        for _, _, model in self.served():
            model.close()

    def _scan(self) -> dict[Key, _Found]:
        """Return all models in the sources. Raises `FormatError` if two have one name."""
        out: dict[Key, _Found] = {}
        for name, source in self._sources:
            for key, path in self._models_in(name, source):
                kind = self._kind(path)
                if kind is None:
                    continue
                if key in out:
                    raise FormatError(f"two models are called {key[0]}: {out[key].path} and {path}; give NAME=PATH")
                out[key] = _Found(kind, path, _signature(path))
        return out

    def _models_in(self, name: str | None, source: str) -> list[tuple[Key, str]]:
        called = name or _name_of(source)
        if not os.path.isdir(source):
            return [((called, "1"), source)]
        if numbers := _numbers_in(source):
            return [((called, n), os.path.join(source, n)) for n in numbers]
        if any(kind.fills(source) for kind in self._kinds):
            return [((called, "1"), source)]
        out: list[tuple[Key, str]] = []
        for entry in sorted(os.listdir(source)):
            path = os.path.join(source, entry)
            if os.path.isdir(path):
                out += [((entry, n), os.path.join(path, n)) for n in _numbers_in(path)] or [((entry, "1"), path)]
            elif entry not in _SETTINGS and self._kind(path) is not None and entry.endswith(_ENDINGS):
                out.append(((_name_of(path), "1"), path))
        return out

    def _kind(self, path: str) -> ModelKind | None:
        return next((kind for kind in self._kinds if kind.finds(path)), None)


def _leave(model: ServedModel) -> None:
    """Close a model for good. Its objects refer to one another, and may be of those that the server left out of the search for garbage."""
    model.close()
    gc.unfreeze()


def _source(source: str) -> tuple[str | None, str]:
    name, mark, path = source.partition("=")
    if mark and name and not os.path.exists(source) and "/" not in name:
        return name, path
    return None, source


def _name_of(path: str) -> str:
    base = os.path.basename(os.path.normpath(os.path.abspath(path)))
    return base if os.path.isdir(path) else base.rsplit(".", 1)[0] if base.endswith(_ENDINGS) else base


def _numbers_in(folder: str) -> list[str]:
    return sorted((n for n in os.listdir(folder) if n.isascii() and n.isdecimal() and os.path.isdir(os.path.join(folder, n))), key=int)


def _order(version: str) -> tuple[int, str]:
    return (int(version), version) if version.isdecimal() else (-1, version)


def _signature(path: str) -> tuple[tuple[str, int, int, int], ...]:
    """Return the names, sizes and times of the files of a model: all in its folder, or all with its name."""
    if os.path.isdir(path):
        files = [os.path.join(folder, n) for folder, _, names in os.walk(path) for n in names]
    else:
        folder, base = os.path.split(path)
        stem = _name_of(path) + "."
        files = [os.path.join(folder, n) for n in os.listdir(folder or ".") if n == base or n.startswith(stem)]
    out: list[tuple[str, int, int, int]] = []
    for file in sorted(files)[:_MOST_FILES]:
        try:
            stat = os.stat(file)
        except OSError:  # it is gone meanwhile
            continue
        out.append((file, stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return tuple(out)
