"""A job: everything that workers need to train a program that they have no code of. One document of JSON and the bytes of two programs.

The document has exactly the keys of `DOCUMENT`; docs/many-machines.md says what each is. All of it is compared with that before any of it
is used, and no part of it is ever executed or unpickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from foreshape.errors import FormatError
from foreshape.wire import bounded_json, read_file, replacing
from foreshape.wire.other_formats import JOB, instead_of
from foreshape.workers.fields import checksum, count, listing, mapping, one_of, optional, record, text, truth
from foreshape.workers.strategies import Strategy, strategy_document, strategy_of

FORMAT: Final = "foreshape job 1"
MOST_BYTES: Final = 1 << 28
"""The bytes of a job, programs included."""
MOST_DOCUMENT: Final = 1 << 20
"""Those of its document."""
DOCUMENT: Final = ("format", "foreshape", "programs", "described", "loss", "feeds", "data", "validation", "metrics", "strategy", "epochs", "batch_size",
                   "seed", "shuffle", "on_change", "values", "checkpoint", "save", "model", "bring")  # fmt: skip
_MAGIC: Final = b"foreshape job\n"
_SIZES: Final = struct.Struct("<QQQ")
_SEED: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Files:
    """Where the values of an input are: a .npy file of rows and, of a ragged input, one of sequence lengths for each level."""

    rows: str
    lengths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Keep:
    """Where and when checkpoints are written, as `foreshape.training.Checkpoint` has it."""

    folder: str
    every: int | None = None
    keep: int = 2


@dataclass(frozen=True, slots=True)
class Model:
    """A network that is saved for use when it is trained."""

    path: str
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """What workers are given. Made by `foreshape.job`."""

    main: bytes = field(repr=False)
    """The program, with gradients and updates, in the file format."""
    startup: bytes = field(repr=False)
    """What makes its first values."""
    foreshape: str
    """The version of this package that described it; workers of another refuse it."""
    random_seeds: tuple[int, int]
    """``random_seed`` of both programs, for which the file format has no room."""
    described: str
    """A checksum of what was inferred of the program, which workers infer for themselves."""
    loss: str
    """The name of the variable that is made smaller."""
    feeds: dict[str, str]
    """Input -> what it is, as ``f32[batch, 64]``."""
    data: dict[str, Files]
    """Input -> files, which each worker opens itself."""
    validation: dict[str, Files] | None
    """The same of the validation data."""
    metrics: dict[str, str]
    """Name -> variable."""
    strategy: Strategy
    """How the training is divided over the ranks."""
    epochs: int
    batch_size: int
    """Of the whole step."""
    seed: int
    shuffle: bool
    on_change: str
    """This and those above as `foreshape.train` has them."""
    values: str | None
    """A safetensors file with values to begin with, which rank 0 opens."""
    checkpoint: Keep | None
    """Where and when rank 0 writes checkpoints."""
    save_to: str | None
    """Where rank 0 writes the values of the trained network to, as a safetensors file."""
    model: Model | None
    """What is saved for use when it is trained."""
    bring: bool
    """Whether the values of the trained network are sent back."""

    def document(self) -> dict[str, Any]:
        """What `from_bytes` reads, for JSON."""
        return {
            "format": FORMAT,
            "foreshape": self.foreshape,
            "programs": [
                {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "random_seed": seed}
                for data, seed in zip((self.main, self.startup), self.random_seeds, strict=True)
            ],
            "described": self.described,
            "loss": self.loss,
            "feeds": self.feeds,
            "data": _files_document(self.data),
            "validation": None if self.validation is None else _files_document(self.validation),
            "metrics": self.metrics,
            "strategy": strategy_document(self.strategy),
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "on_change": self.on_change,
            "values": self.values,
            "checkpoint": None if self.checkpoint is None else dataclasses.asdict(self.checkpoint),
            "save": self.save_to,
            "model": None if self.model is None else {"path": self.model.path, "feeds": list(self.model.feeds), "fetches": list(self.model.fetches)},
            "bring": self.bring,
        }

    def to_bytes(self) -> bytes:
        """The whole job.

        Raises:
            FormatError: it is larger than a worker takes.
        """
        words = json.dumps(self.document()).encode()
        if len(words) > MOST_DOCUMENT:
            raise FormatError(f"the job's document has {len(words)} bytes; at most {MOST_DOCUMENT} are taken")
        out = b"".join((_MAGIC, _SIZES.pack(len(words), len(self.main), len(self.startup)), words, self.main, self.startup))
        if len(out) > MOST_BYTES:
            raise FormatError(f"the job has {len(out)} bytes; at most {MOST_BYTES} are taken")
        return out

    @staticmethod
    def from_bytes(data: bytes | bytearray) -> Job:
        """The job in ``data``, of which every field has been looked at; its programs are bytes still.

        Raises:
            FormatError: it is none.
        """
        begin = len(_MAGIC) + _SIZES.size
        if len(data) > MOST_BYTES:
            raise FormatError(f"a job of {len(data)} bytes; at most {MOST_BYTES} are taken")
        if data[: len(_MAGIC)] != _MAGIC or len(data) < begin:
            raise FormatError(f"{len(data)} bytes that do not begin as a job does")
        words, main, startup = _SIZES.unpack_from(data, len(_MAGIC))
        if words > MOST_DOCUMENT or words + main + startup != len(data) - begin:
            raise FormatError(f"a job's document of {words} bytes and programs of {main} and {startup}, where {len(data) - begin} bytes are")
        view = memoryview(data)[begin:]
        document = bounded_json.parse(bytes(view[:words]))
        return job_of(document, bytes(view[words : words + main]), bytes(view[words + main :]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the job to the file ``path``, from which ``foreshape worker --job`` takes it. Raises `FormatError` where it cannot be written."""
        data = self.to_bytes()
        with replacing(path) as file:
            file.write(data)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Job:
        """The job in the file ``path``. Raises `FormatError` where there is none."""
        data = read_file(path, MOST_BYTES)
        try:
            return Job.from_bytes(data)
        except FormatError as error:
            raise FormatError(f"{os.fspath(path)}: {instead_of(data, JOB) or error}") from None


def job_of(document: Any, main: bytes, startup: bytes) -> Job:
    """A job from its document, all of which is compared with the schema, and its programs.

    Raises:
        FormatError: a field that is missing, surplus, or not what it must be; programs that are not those of the document.
    """
    if isinstance(document, dict) and document.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise FormatError(f"not a job of a kind that is known here: {str(document.get('format'))[:80]!r}")  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    given = record("the job", document, DOCUMENT)
    seeds: list[int] = []
    for name, data, one in zip(("main", "startup"), (main, startup), listing(_anything, 2, 2)("programs", given["programs"]), strict=True):
        program = record(f"the {name} program", one, ("bytes", "sha256", "random_seed"))
        size = count(0, MOST_BYTES)(f"bytes of the {name} program", program["bytes"])
        if size != len(data) or checksum("sha256", program["sha256"]) != hashlib.sha256(data).hexdigest():
            raise FormatError(f"the {name} program is not the one that the job describes: its length or its checksum differs")
        seeds.append(count(0, _SEED)("random_seed", program["random_seed"]))
    return Job(
        main, startup, text(100)("foreshape", given["foreshape"]), (seeds[0], seeds[1]), checksum("described", given["described"]),
        text()("loss", given["loss"]), mapping(text())("feeds", given["feeds"]), mapping(_files)("data", given["data"]),
        optional(mapping(_files))("validation", given["validation"]), mapping(text())("metrics", given["metrics"]), strategy_of(given["strategy"]),
        count(0)("epochs", given["epochs"]), count(1)("batch_size", given["batch_size"]), count(0, _SEED)("seed", given["seed"]),
        truth("shuffle", given["shuffle"]), one_of("refuse", "take")("on_change", given["on_change"]), optional(text())("values", given["values"]),
        optional(_keep)("checkpoint", given["checkpoint"]), optional(text())("save", given["save"]), optional(_model)("model", given["model"]),
        truth("bring", given["bring"]),
    )  # fmt: skip


def _files_document(given: Mapping[str, Files]) -> dict[str, Any]:
    return {name: {"rows": one.rows, "lengths": list(one.lengths)} for name, one in given.items()}


def _files(what: str, given: Any) -> Files:
    found = record(what, given, ("rows", "lengths"))
    return Files(text()(f"{what}.rows", found["rows"]), tuple(listing(text(), 16)(f"{what}.lengths", found["lengths"])))


def _keep(what: str, given: Any) -> Keep:
    found = record(what, given, ("folder", "every", "keep"))
    every, keep = optional(count(1))("checkpoint.every", found["every"]), count(1)("checkpoint.keep", found["keep"])
    return Keep(text()("checkpoint.folder", found["folder"]), every, keep)


def _model(what: str, given: Any) -> Model:
    found = record(what, given, ("path", "feeds", "fetches"))
    return Model(text()("model.path", found["path"]), *(tuple(listing(text(), least=1)(f"model.{n}", found[n])) for n in ("feeds", "fetches")))


def _anything(what: str, given: Any) -> Any:
    return given
