"""A job: everything for workers to train a program without its code, as one document of JSON and the bytes of two programs.

The document has exactly the keys of `_DOCUMENT`; docs/many-machines.md explains them. All of it is checked before any of it
is used, and no part of it is ever executed or unpickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
from dataclasses import dataclass, field
from typing import Any, Final

from foreshape.apps.workers.strategies import Strategy, strategy_document, strategy_of
from foreshape.core.checked_json import bounded_json
from foreshape.core.checked_json.readers import checksum, count, document, listing, mapping, of_format, one_of, optional, record, text, truth, tupled
from foreshape.errors import FormatError
from foreshape.language.wire import read_file, replacing
from foreshape.language.wire.other_formats import JOB, instead_of

FORMAT: Final = "foreshape job 1"
MOST_BYTES: Final = 1 << 28
"""The bytes of a job, programs included."""
MOST_DOCUMENT: Final = 1 << 20
"""The largest size of its document, in bytes."""
_MAGIC: Final = b"foreshape job\n"
_SIZES: Final = struct.Struct("<QQQ")
_SEED: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Files:
    """The files of an input's values: a .npy file of rows and, for a ragged input, one of sequence lengths for each level."""

    rows: str
    lengths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Keep:
    """The place and times of checkpoints, as in `foreshape.apps.training.Checkpoint`."""

    folder: str
    every: int | None = None
    keep: int = 2


@dataclass(frozen=True, slots=True)
class Model:
    """A network to be saved for use after its training."""

    path: str
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]

    @property
    def files(self) -> tuple[str, str]:
        """Return the paths of its two files."""
        return f"{self.path}.pdmodel", f"{self.path}.pdiparams"


@dataclass(frozen=True, slots=True)
class Job:
    """A job for workers. Made by `foreshape.job`."""

    main: bytes = field(repr=False)
    """The program, with gradients and updates, in the file format."""
    startup: bytes = field(repr=False)
    """The program of its first values."""
    foreshape: str
    """The version of this package at the client; workers of another version refuse it."""
    random_seeds: tuple[int, int]
    """``random_seed`` of both programs, missing in the file format."""
    described: str
    """A checksum of the inferred program; workers infer it themselves."""
    loss: str
    """The name of the minimised variable."""
    feeds: dict[str, str]
    """Input -> its spec, as ``f32[batch, 64]``."""
    data: dict[str, Files]
    """Input -> files, opened by each worker."""
    validation: dict[str, Files] | None
    """The same of the validation data."""
    metrics: dict[str, str]
    """Name -> variable."""
    strategy: Strategy
    """The division of the training over the ranks."""
    epochs: int
    batch_size: int
    """The batch size of the whole step."""
    seed: int
    shuffle: bool
    accumulate: int
    drop_last: bool
    on_change: str
    """This and the fields above as for `foreshape.train`."""
    values: str | None
    """A safetensors file with values to begin with, opened by rank 0."""
    checkpoint: Keep | None
    """The place and times of rank 0's checkpoints."""
    save_to: str | None
    """The path for the values of the trained network, a safetensors file written by rank 0."""
    model: Model | None
    """The network to save for use after its training."""

    def document(self) -> dict[str, Any]:
        """Return the document read by `from_bytes`, for JSON."""
        fields = dataclasses.asdict(self)
        programs, seeds, save = (fields.pop("main"), fields.pop("startup")), fields.pop("random_seeds"), fields.pop("save_to")
        described = [{"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "random_seed": seed} for data, seed in zip(programs, seeds, strict=True)]
        return {"format": FORMAT, **fields, "programs": described, "strategy": strategy_document(self.strategy), "save": save}

    def to_bytes(self) -> bytes:
        """Return the whole job.

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
        """Return the job in ``data``, with every field checked; its programs are still bytes.

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
        return job_of(bounded_json.parse(bytes(view[:words])), bytes(view[words : words + main]), bytes(view[words + main :]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the job to the file ``path``, to be sent later. Raises `FormatError` if it cannot be written."""
        data = self.to_bytes()
        with replacing(path) as file:
            file.write(data)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Job:
        """Return the job in the file ``path``. Raises `FormatError` if there is none."""
        data = read_file(path, MOST_BYTES)
        try:
            return Job.from_bytes(data)
        except FormatError as error:
            raise FormatError(f"{os.fspath(path)}: {instead_of(data, JOB) or error}") from None


def job_of(words: Any, main: bytes, startup: bytes) -> Job:
    """Return a job from its document, all checked against the schema, and its programs.

    Raises:
        FormatError: a field that is missing, surplus, or invalid; programs of another document.
    """
    fields = _DOCUMENT("the job", of_format(words, FORMAT, "a job"))
    for name, data, description in zip(("main", "startup"), (main, startup), fields["programs"], strict=True):
        if description["bytes"] != len(data) or description["sha256"] != hashlib.sha256(data).hexdigest():
            raise FormatError(f"the {name} program is not the one that the job describes: its length or its checksum differs")
    seeds = tuple(description["random_seed"] for description in fields.pop("programs"))
    return Job(main, startup, random_seeds=seeds, save_to=fields.pop("save"), **fields)


_FILES = mapping(record(Files, rows=text(), lengths=tupled(text(), 16)))
_PROGRAM = record(dict[str, Any], bytes=count(0, MOST_BYTES), sha256=checksum, random_seed=count(0, _SEED))
_NAMES = tupled(text(), least=1)
_DOCUMENT = document(
    dict[str, Any], foreshape=text(100), programs=listing(_PROGRAM, 2, 2), described=checksum, loss=text(), feeds=mapping(text()),
    data=_FILES, validation=optional(_FILES), metrics=mapping(text()), strategy=strategy_of, epochs=count(), batch_size=count(1), seed=count(0, _SEED),
    shuffle=truth, accumulate=count(1), drop_last=truth, on_change=one_of("refuse", "take"), values=optional(text()),
    checkpoint=optional(record(Keep, folder=text(), every=optional(count(1)), keep=count(1))), save=optional(text()),
    model=optional(record(Model, path=text(), feeds=_NAMES, fetches=_NAMES)),
)  # fmt: skip
