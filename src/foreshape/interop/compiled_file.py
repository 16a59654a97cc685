"""Compiled networks: read, inferred, fused and packed for certain sizes, in one file. It is read and run without torch.

The file has the head of `foreshape.interop.compiled_head`, the description in JSON, and the constants.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

from foreshape.core.checked_json.readers import count, document, listing, mapping, of_format, optional, series, text
from foreshape.core.gc_pause import collector_waits
from foreshape.errors import FeedError, ForeshapeWarning, FormatError, MemoryPlanError, SchemaError, border
from foreshape.interop.compiled_head import (
    FORMAT,
    MAX_BYTES,
    TEXTS,
    SourceFile,
    changed_source,
    check_file_names,
    check_place,
    content_of,
    other_version,
    source_file,
)
from foreshape.interop.compiled_steps import ArrayForm, CompiledSteps, StepsForm, steps_form
from foreshape.interop.results import Results, feed_of
from foreshape.language.wire.files import map_file
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.kernels.written_chain import LARGEST
from foreshape.machine.process.machine_memory import default_limit


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
        fetched: for each size, the value of each output.
    """

    package: str
    onednn: str
    sources: list[SourceFile]
    params: str | None
    inputs: list[str]
    outputs: list[str]
    asked: dict[str, str]
    constants: list[tuple[int, int]]
    sizes: list[StepsForm]
    fetched: list[list[int]]


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
    sizes=listing(steps_form, 1000, 1),
    fetched=listing(listing(count(0, 100_000), 1000, 1), 1000, 1),
)


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
            raise self._damaged(error) from None
        folder = os.path.dirname(self.path)
        self.model = os.path.join(folder, self.description.sources[0].name)
        self.params = None if self.description.params is None else os.path.join(folder, self.description.params)

    def _damaged(self, error: FormatError) -> FormatError:
        return error.reworded(f"{self.path} is no whole compiled network: {error}")

    def _described(self, data: Any) -> Description:
        content, self._begin, self._check = content_of(data)
        if isinstance(content, dict) and content.get("format") == TEXTS:  # pyright: ignore[reportUnknownMemberType]
            raise SchemaError(f"{self.path} is a compiled encoder of texts: fs.Embedder opens it, and foreshape embed and serve")
        out = _description("it", of_format(content, FORMAT, "a compiled network", "; compile it again"))
        for begin, nbytes in out.constants:
            check_place(begin, nbytes, len(data) - self._begin)
        check_file_names((*(s.name for s in out.sources), *([] if out.params is None else [out.params])))
        if len(out.sizes) != len(out.fetched):
            raise FormatError("it has other results than sizes")
        for compiled, fetched in zip(out.sizes, out.fetched, strict=True):
            if compiled.inputs != len(out.inputs) or len(fetched) != len(out.outputs) or max(fetched) >= len(compiled.values):
                raise FormatError("a size is of other inputs or outputs than the network")
        return out

    def constants(self) -> list[tuple[int, int]]:
        """Return the address and the bytes of each constant, as long as this object lives. Raises `FormatError`: they are not as they were written."""
        import numpy

        try:
            self._check.wait()
        except FormatError as error:
            raise self._damaged(error) from None

        address = numpy.frombuffer(self._data, numpy.uint8).__array_interface__["data"][0] + self._begin
        return [(address + begin, nbytes) for begin, nbytes in self.description.constants]

    def array(self, constant: int, form: ArrayForm) -> Any:
        """Return a constant of this number as a read-only array over the file. Raises `FormatError`: it has fewer bytes."""
        import numpy

        begin, nbytes = self.description.constants[constant]
        if form.nbytes > nbytes:
            raise FormatError(f"constant {constant} has {nbytes} bytes, and {form.element} {list(form.dims)} has {form.nbytes}")
        return numpy.ndarray(form.dims, form.element, self._data, self._begin + begin)

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
        self._at = {tuple(form.dims for form in size.given): index for index, size in enumerate(description.sizes)}
        self._chains: dict[int, CompiledSteps | None] = {}
        self._lock = Lock()
        self.misfit = file.misfit()
        """Why the network itself runs; empty where the file's does."""

    def batch_layout(self) -> Any:
        """Raise `SchemaError`: its sizes are fixed."""
        raise SchemaError("several requests can be run as one batch where the first dim is open; a compiled network has fixed sizes")

    @property
    def elements(self) -> dict[str, str]:
        """Input -> numpy's name of its elements."""
        return {name: form.element for name, form in zip(self.feeds, self._file.description.sizes[0].given, strict=True)}

    @property
    def sizes(self) -> list[dict[str, tuple[int, ...]]]:
        """Its sizes: input -> dims."""
        return [{name: form.dims for name, form in zip(self.feeds, size.given, strict=True)} for size in self._file.description.sizes]

    def run(self, feed: Mapping[str, Any] | Any, *more: Any) -> Results:
        """Compute the results for a feed, as `InferenceModel.run`.

        Raises:
            FeedError: an input is missing or unknown, or of another element type; or of another shape, and the network itself is not there.
        """
        inputs = feed_of(self.feeds, (feed, *more))
        arrays = [] if self.misfit else self._arrays(inputs)
        dtypes = {str(x.dtype) for x, element in zip(arrays, self.elements.values(), strict=False) if x.dtype != element}
        steps = None if self.misfit or dtypes else self._steps_for(tuple(x.shape for x in arrays))
        if steps is None:
            shapes = ", ".join(f"{n} {list(x.shape)}" for n, x in zip(self.feeds, arrays, strict=False))
            reason = f"an input is of {dtypes.pop()}" if dtypes else f"it was not compiled for {shapes}"
            return self._otherwise(self.misfit or reason).run(inputs)
        results = steps(arrays)
        values: dict[str, Any] = {}
        for name, place in zip(self.fetches, self._file.description.fetched[self._at[tuple(x.shape for x in arrays)]], strict=True):
            result = results[place]
            is_own = getattr(result.base, "dtype", result.dtype) != result.dtype if result.base is not None else True  # a series' are over bytes of their own
            values[name] = result if is_own and all(x is not result for x in (*arrays, *values.values())) else result.copy("K")
        return Results(values, self.asked)

    def _arrays(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the inputs as contiguous arrays."""
        import numpy

        if set(inputs) != set(self.feeds):
            raise FeedError.must("a feed", f"for {', '.join(self.feeds)}", ", ".join(map(str, inputs)) or "nothing")
        arrays: list[Any] = [numpy.asarray(inputs[name]) for name in self.feeds]
        return [numpy.ascontiguousarray(x).reshape(x.shape) for x in arrays]

    def _steps_for(self, shapes: tuple[Any, ...]) -> CompiledSteps | None:
        """Return the steps for a size, made at its first use; None where there are none."""
        index = self._at.get(shapes)
        if index is None:
            return None
        if index not in self._chains:
            with self._lock:
                if index not in self._chains:
                    self._chains[index] = self._new_steps(index)
        return self._chains[index]

    @collector_waits
    def _new_steps(self, index: int) -> CompiledSteps | None:
        from foreshape.machine.kernels.compiled_chain import DoesNotFit  # not for networks that are not compiled

        size, fetched = self._file.description.sizes[index], self._file.description.fetched[index]
        limit = default_limit()
        if limit is not None and size.nbytes > limit.size:
            raise MemoryPlanError(f"this size needs {size.nbytes:,} bytes, and a run may take {limit.size:,} ({limit.words})")
        onednn = library()
        assert onednn is not None
        try:
            return CompiledSteps(onednn, size, self._file.constants(), self._file.array, fetched, self._threads)
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
