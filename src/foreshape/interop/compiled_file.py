"""Compiled networks: read, inferred, fused and packed for certain sizes, in one file. It is read and run without torch.

The file is a head of 64 bytes (`MAGIC`, the bytes of the description, the bytes of all, the SHA-256 of all behind the head), the description in JSON, and the
constants, each at a multiple of 64 bytes. Constants stay in the file and are mapped into memory.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from foreshape.core.checked_json.bounded_json import parse
from foreshape.core.checked_json.readers import checksum, count, document, listing, mapping, of_format, optional, series, text
from foreshape.core.gc_pause import collector_waits
from foreshape.core.version import VERSION
from foreshape.errors import FeedError, ForeshapeWarning, FormatError, MemoryPlanError, SchemaError, border
from foreshape.interop.results import Results, feed_of
from foreshape.language.wire.files import map_file, replacing
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.kernels.written_chain import LARGEST, CompiledSize, compiled_size
from foreshape.machine.process.machine_memory import default_limit

if TYPE_CHECKING:
    from foreshape.machine.kernels.compiled_chain import CompiledChain

ENDING: Final = ".compiled"
MAGIC: Final = b"\x89foreshape cmp\r\n"
FORMAT: Final = "foreshape compiled network 1"
TEXTS: Final = "foreshape compiled texts 1"
"""The format of encoders of texts; see `foreshape.interop.compiled_texts`."""
HEAD: Final = struct.Struct("<16sQQ32s")
BEGIN: Final = 64
"""Constants begin at multiples of this."""
MAX_BYTES: Final = 1 << 36
MAX_DOCUMENT: Final = 1 << 26
_PIECE: Final = 1 << 22
"""So many bytes are hashed at a time, and their pages given back, to open a large file within a bound of memory."""


class SourceFile(NamedTuple):
    """A file of the network itself: its name beside the compiled one, and its SHA-256."""

    name: str
    digest: str


class Description(NamedTuple):
    """The description in a compiled file.

    Attributes:
        package, onednn: the versions of this package and of the library, and the instructions.
        sources: the files of the network, its program first.
        params: the name of its parameter file, if not the usual one.
        inputs, outputs: their names, in order.
        asked: the name of a result at the saving -> its name.
        constants: the begin of each, behind the description, and its bytes.
        sizes: the network for each size.
        fetched: for each size, the place of each output among the results.
    """

    package: str
    onednn: str
    sources: list[SourceFile]
    params: str | None
    inputs: list[str]
    outputs: list[str]
    asked: dict[str, str]
    constants: list[tuple[int, int]]
    sizes: list[CompiledSize]
    fetched: list[list[int]]


source_file = series(SourceFile, text(1000), checksum)
_description = document(
    Description,
    package=text(),
    onednn=text(),
    sources=listing(source_file, 100_000, 1),
    params=optional(text(1000)),
    inputs=listing(text(), 1000),
    outputs=listing(text(), 1000, 1),
    asked=mapping(text()),
    constants=listing(series(lambda *pair: pair, count(0, LARGEST), count(1, LARGEST)), 1_000_000),
    sizes=listing(compiled_size, 1000, 1),
    fetched=listing(listing(count(0, 1000), 1000, 1), 1000, 1),
)


def is_compiled(path: Any, format: str = "") -> bool:
    """Tell whether a path leads to a compiled network, or to one of a format, by its content."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            begin = file.read(2 * HEAD.size)
        return begin.startswith(MAGIC) and format.encode() in begin[HEAD.size :]
    except (OSError, ValueError, TypeError):
        return False


def digest_of(path: str) -> str:
    """Return the SHA-256 of a file."""
    return _digest(map_file(path, MAX_BYTES, writable=False), 0).hexdigest()


def _digest(data: Any, begin: int) -> Any:
    """Return the SHA-256 of mapped bytes from a begin within the first page."""
    out = hashlib.sha256()
    for place in range(0, len(data), _PIECE):
        out.update(memoryview(data)[max(place, begin) : place + _PIECE])
        if isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            data.madvise(mmap.MADV_DONTNEED, place, min(_PIECE, len(data) - place))
    return out


def content_of(data: Any) -> tuple[Any, int]:
    """Return the description in a file, and the begin of the bytes behind it. Raises `FormatError`: the file is not as it was written."""
    if len(data) < HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise FormatError("it does not begin as one")
    _, length, size, digest = HEAD.unpack(data[: HEAD.size])
    if size != len(data) or length > min(size - HEAD.size, MAX_DOCUMENT):
        raise FormatError(f"it has {len(data)} bytes, and its head says {size} with a description of {length}")
    if _digest(data, HEAD.size).digest() != digest:
        raise FormatError("its SHA-256 is another than that of its content")
    return parse(data[HEAD.size : HEAD.size + length]), rounded(HEAD.size + length)


def check_place(begin: int, nbytes: int, room: int) -> None:
    """Raise `FormatError` for a constant out of its place."""
    if begin % BEGIN or begin + nbytes > room:
        raise FormatError(f"a constant lies at {begin} to {begin + nbytes}, and there are {room} bytes")


def check_file_names(names: Iterable[str]) -> None:
    """Raise `FormatError` for a file out of the folder."""
    for name in names:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise FormatError(f"{name!r} is no name of a file beside it")


def other_version(package: str) -> str:
    """Return the words for a network compiled by another version of this package; empty if not."""
    return "" if package == VERSION else f"it was compiled by foreshape {package[:80]}, and this is {VERSION}"


def changed_source(folder: str, sources: Iterable[SourceFile]) -> str:
    """Return the words for a changed file of the network itself; empty if none."""
    for name, digest in sources:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and digest_of(path) != digest:
            return f"{name} has changed since"
    return ""


def write_compiled(target: str, description: bytes, places: Sequence[tuple[int, int]], parts: Iterable[Any]) -> None:
    """Write a file.

    Args:
        description: in JSON.
        places: the begin of each part, behind the description, and its bytes.
        parts: the bytes themselves.
    """
    begin = rounded(HEAD.size + len(description))
    size = begin + (sum(places[-1]) if places else 0)
    digest = hashlib.sha256()
    with replacing(target) as file:
        file.write(bytes(HEAD.size))

        def put(data: Any) -> None:
            digest.update(data)
            file.write(data)

        put(description.ljust(begin - HEAD.size, b"\0"))
        position = 0
        for (place, nbytes), data in zip(places, parts, strict=True):
            put(bytes(place - position))
            put(data)
            position = place + nbytes
        file.seek(0)
        file.write(HEAD.pack(MAGIC, len(description), size, digest.digest()))


class CompiledFile:
    """A compiled network in its file.

    Attributes:
        description: its own words.
        model, params: the paths of its program and parameters; the files may be missing.

    Raises:
        FormatError: it cannot be read, or is not as it was written. SchemaError: it is an encoder of texts.
    """

    @border("the compiled network cannot be read", FormatError)
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fsdecode(path)
        data = self._data = map_file(self.path, MAX_BYTES, writable=False)
        try:
            self.description = self._described(data)
        except FormatError as error:
            raise error.reworded(f"{self.path} is no whole compiled network: {error}") from None
        folder = os.path.dirname(self.path)
        self.model = os.path.join(folder, self.description.sources[0].name)
        self.params = None if self.description.params is None else os.path.join(folder, self.description.params)

    def _described(self, data: Any) -> Description:
        content, self._begin = content_of(data)
        if isinstance(content, dict) and content.get("format") == TEXTS:  # pyright: ignore[reportUnknownMemberType]
            raise SchemaError(f"{self.path} is a compiled encoder of texts: fs.Embedder opens it, and foreshape embed and serve")
        out = _description("it", of_format(content, FORMAT, "a compiled network", "; compile it again"))
        for begin, nbytes in out.constants:
            check_place(begin, nbytes, len(data) - self._begin)
        check_file_names((*(s.name for s in out.sources), *([] if out.params is None else [out.params])))
        if len(out.sizes) != len(out.fetched):
            raise FormatError("it has other results than sizes")
        for compiled, fetched in zip(out.sizes, out.fetched, strict=True):
            if len(compiled.given) != len(out.inputs) or len(fetched) != len(out.outputs) or max(fetched) >= len(compiled.results):
                raise FormatError("a size is of other inputs or outputs than the network")
        return out

    def constants(self) -> list[tuple[int, int]]:
        """Return the address and the bytes of each constant, as long as this object lives."""
        import numpy

        address = numpy.frombuffer(self._data, numpy.uint8).__array_interface__["data"][0] + self._begin
        return [(address + begin, nbytes) for begin, nbytes in self.description.constants]

    def misfit(self) -> str:
        """Return why the network must be compiled again: for this package, library or machine, or because its files changed; empty where it fits."""
        description, onednn = self.description, library()
        if words := other_version(description.package):
            return words
        if onednn is None:
            return "oneDNN's library is not there (pip install 'foreshape[inference]')"
        if (identity := onednn.identity()) != description.onednn:
            return f"it was compiled for oneDNN {description.onednn[:80]}, and here is {identity}"
        return changed_source(os.path.dirname(self.path), description.sources)


def rounded(size: int) -> int:
    """Return the first place for a constant behind so many bytes."""
    return -(-size // BEGIN) * BEGIN


class CompiledModel:
    """A compiled network. It runs for the sizes in its file.

    Args:
        file: the file.
        otherwise: opens the network itself, for other sizes and where the file does not fit; it is given the reason.

    Attributes:
        feeds, fetches: the names of its inputs and results, in order.
    """

    def __init__(self, file: CompiledFile, otherwise: Callable[[str], Any], threads: int | None = None) -> None:
        self._file, self._otherwise, self._threads = file, otherwise, threads
        description = file.description
        self.feeds, self.fetches, self.asked = description.inputs, description.outputs, description.asked
        self._at = {tuple(size.given): index for index, size in enumerate(description.sizes)}
        self._chains: dict[int, CompiledChain | None] = {}
        self._lock = Lock()
        self.misfit = file.misfit()
        """Why the network itself runs; empty where the file's does."""

    def batch_layout(self) -> Any:
        """Raise `SchemaError`: its sizes are fixed."""
        raise SchemaError("several requests can be run as one batch where the first dim is open; a compiled network has fixed sizes")

    @property
    def elements(self) -> dict[str, str]:
        """Input -> numpy's name of its elements."""
        return dict.fromkeys(self.feeds, "float32")

    @property
    def sizes(self) -> list[dict[str, tuple[int, ...]]]:
        """Its sizes: input -> dims."""
        return [dict(zip(self.feeds, size.given, strict=True)) for size in self._file.description.sizes]

    def run(self, feed: Mapping[str, Any] | Any, *more: Any) -> Results:
        """Compute the results for a feed, as `InferenceModel.run`.

        Raises:
            FeedError: an input is missing or unknown, or of another element type; or of another shape, and the network itself is not there.
        """
        inputs = feed_of(self.feeds, (feed, *more))
        arrays = [] if self.misfit else self._arrays(inputs)
        dtypes = {str(x.dtype) for x in arrays} - {"float32"}
        chain = None if self.misfit or dtypes else self._chain(tuple(x.shape for x in arrays))
        if chain is None:
            shapes = ", ".join(f"{n} {list(x.shape)}" for n, x in zip(self.feeds, arrays, strict=False))
            reason = f"an input is of {dtypes.pop()}" if dtypes else f"it was not compiled for {shapes}"
            return self._otherwise(self.misfit or reason).run(inputs)
        results = chain(arrays)
        values: dict[str, Any] = {}
        for name, place in zip(self.fetches, self._file.description.fetched[self._at[tuple(x.shape for x in arrays)]], strict=True):
            values[name] = results[place].copy("K") if any(v is results[place] for v in values.values()) else results[place]
        return Results(values, self.asked)

    def _arrays(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the inputs as contiguous arrays."""
        import numpy

        if set(inputs) != set(self.feeds):
            raise FeedError.must("a feed", f"for {', '.join(self.feeds)}", ", ".join(map(str, inputs)) or "nothing")
        arrays: list[Any] = [numpy.asarray(inputs[name]) for name in self.feeds]
        return [numpy.ascontiguousarray(x).reshape(x.shape) for x in arrays]

    def _chain(self, shapes: tuple[Any, ...]) -> CompiledChain | None:
        """Return the kernels for a size, made at its first use; None where there are none."""
        index = self._at.get(shapes)
        if index is None:
            return None
        if index not in self._chains:
            with self._lock:
                if index not in self._chains:
                    self._chains[index] = self._new_chain(self._file.description.sizes[index])
        return self._chains[index]

    @collector_waits
    def _new_chain(self, size: CompiledSize) -> CompiledChain | None:
        from foreshape.machine.kernels.compiled_chain import CompiledChain, DoesNotFit  # not for networks that are not compiled

        limit = default_limit()
        if limit is not None and size.nbytes > limit.size:
            raise MemoryPlanError(f"this size needs {size.nbytes:,} bytes, and a run may take {limit.size:,} ({limit.words})")
        onednn = library()
        assert onednn is not None
        try:
            return CompiledChain(onednn, size, self._file.constants(), self._threads)
        except DoesNotFit as error:
            self.misfit = str(error)
            return None


def open_compiled(file: CompiledFile, model: Callable[[], Any], threads: int | None = None) -> CompiledModel:
    """Open a compiled network.

    Args:
        model: opens the network itself, for all else; a `ForeshapeWarning` says so at the first time.
        threads: of its kernels; by default as it was compiled.

    Raises:
        FormatError: it does not fit here, and the network itself is not beside it.
    """
    reasons: set[str] = set()

    def otherwise(reason: str) -> Any:
        if not os.path.isfile(file.model):
            raise FormatError(f"{file.path}: {reason}; and the network itself, {file.model}, is not there")
        if reason not in reasons:
            reasons.add(reason)
            warnings.warn(f"{file.path}: {reason}; {file.model} is opened as usual", ForeshapeWarning, stacklevel=4)
        return model()

    return CompiledModel(file, otherwise, threads)


def shapes_text(sizes: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """Return sizes in words: x [1, 3, 48, 192]; x [1, 3, 48, 320]."""
    return "; ".join(", ".join(f"{n} {list(dims)}" for n, dims in shapes.items()) for shapes in sizes)
