"""`RaggedNetwork`: a saved network of padded texts, proved to need no padding, and run on ragged rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from foreshape.compiler.memory import Plan
from foreshape.core.values.conversion import to_numpy
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import SchemaError, UnpadError
from foreshape.interop.inference import columns, load_inference_model
from foreshape.interop.model import InferenceModel
from foreshape.interop.onnx.held_parameters import OnnxParameters
from foreshape.interop.packed_texts import PackedTexts
from foreshape.interop.program_files import find_program, open_program
from foreshape.interop.ragged_file import FileArrays, NamedArrays
from foreshape.interop.ragged_model import node_words
from foreshape.interop.row_padding import TextSizes
from foreshape.interop.row_program import StepsUnknown
from foreshape.interop.row_runner import RowRunner
from foreshape.language.program import Program, Variable
from foreshape.language.wire.files import forget_pages
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.process.pages import give_back
from foreshape.runtime.engine import Executor, Scope
from foreshape.transforms.unpad import unpad_program
from foreshape.transforms.unpad.padded_values import BATCH, ROWS, AxisReader, Unsupported

_ROWS = 1024
"""The rows together in a batch of torch's kernels."""


class RaggedNetwork:
    """A saved network of padded texts on ragged rows.

    Its weights are in memory once: packed for the kernels, and tables as they are. It runs without torch where all its ops have such steps.

    Args:
        path: as for `load_inference_model`.
        mask: the input with 1 for the rows of texts, ``[texts, time]``; or with their lengths, ``[texts]``.
        threads: as for `Executor`.

    Attributes:
        inputs, outputs: of the padded network, by name and in order.
        mask: its name.
        row_results: the results with a row for each of a text, ``[texts, time, ...]``; others have one for each text.
        asked: name of a result at the saving -> its name.
        sizes: the accepted sizes of the padded network, in words.

    Raises:
        UnpadError: the proof fails, or a result has another form. SchemaError: there is no such mask, or another kind of input beside texts.
        FormatError: a file cannot be read.
    """

    def __init__(self, path: str, mask: str = "attention_mask", threads: int | None = None) -> None:
        program, parameters = open_program(find_program(path)[0])
        program.refresh()
        feeds, fetches = columns(program, "feed", outputs=True), columns(program, "fetch", outputs=False)
        if mask not in feeds:  # said before the parameters are read
            raise SchemaError(f"it has no input {mask}, which would be the mask of padded texts; its inputs are: {', '.join(feeds)}")
        values: Scope | OnnxParameters = parameters if isinstance(parameters, OnnxParameters) else load_inference_model(path, scope=Scope()).scope
        arrays = FileArrays(values) if isinstance(values, OnnxParameters) else _scope_arrays(program, values)
        self.mask = mask
        block = program.global_block
        self.inputs, self.outputs = ({n: block.var(n).spec for n in names} for names in (feeds, fetches))
        self.sizes = program.feeds.lines()
        self.asked = dict(InferenceModel.of(program, feeds, [block.var(n) for n in fetches], Scope()).asked)
        network = unpad_program(program, feeds, fetches, mask, arrays.get, source=node_words)
        self._names = {v.name: name for v, name in zip(network.fetches, fetches, strict=True)}
        self.row_results = frozenset(self._names[v.name] for v in network.fetches if v.spec.lod is not None)
        self._check_form()
        self.program = network.program
        for name in network.feeds:
            spec = self.program.global_block.var(name).spec
            if spec.lod is None or not all(isinstance(size, int) for size in spec.known_dims[1:]):
                raise SchemaError.must(f"the input {name}", "with a row for each of a text", self.inputs[name].text())
        self._feeds, self._threads = network.feeds, threads
        self._runner: RowRunner | None = None
        self._model: InferenceModel | None = None
        self._open(network.fetches, arrays, values)
        if isinstance(arrays, FileArrays):
            arrays.forget_pages()
        give_back()  # what the reading and the packing left

    def _open(self, fetches: list[Variable], arrays: NamedArrays, values: Scope | OnnxParameters) -> None:
        if library() is not None:
            try:
                self._runner = RowRunner(self.program, fetches, _copies(arrays), self._threads)
                return
            except StepsUnknown:
                pass
        if isinstance(values, OnnxParameters):
            values.put_into(scope := Scope())
        else:
            scope = values
        self._model = InferenceModel.of(self.program, self._feeds, fetches, scope, Executor(threads=self._threads, frozen=True))

    def _check_form(self) -> None:
        """Raise `UnpadError` unless each result begins with the axes of texts, or of texts and rows."""
        texts = [spec.known_dims for name, spec in self.inputs.items() if name != self.mask]
        reader = AxisReader([dims[0] for dims in texts], [dims[1] for dims in texts if len(dims) > 1])
        for name, spec in self.outputs.items():
            expected = ((BATCH,), (ROWS,)) if name in self.row_results else ((BATCH,),)
            try:
                axes = reader.axes(spec.known_dims)
            except Unsupported as reason:
                raise UnpadError(f"the result {name} is {spec.text()}: {reason}") from None
            inner = [atom for axis in axes[len(expected) :] for atom in axis]
            if axes[: len(expected)] != expected or any(not isinstance(atom, int) for atom in inner):
                raise UnpadError.must(f"the result {name}", "[texts, ...] or [texts, time, ...]", spec.text())

    @cached_property
    def _plan(self) -> Plan:
        return Plan(self.program, [*self._names], frozen=True)

    @property
    def batch_rows(self) -> int:
        """Return the number of rows from which more together gain nothing."""
        return _ROWS if self._runner is None else self._runner.batch_rows

    @property
    def is_without_torch(self) -> bool:
        """Return True if it runs without torch."""
        return self._runner is not None

    def nbytes_of_run(self, texts: int, rows: int, longest: int) -> int:
        """Return the most bytes of a run.

        Args:
            texts, rows, longest: the number of texts, of all rows, and of the longest text's rows.
        """
        if self._runner is not None:
            return self._runner.nbytes_of_run(texts, rows, longest)
        kinds = TextSizes(self.program)
        sizes = {name: texts if name in kinds.texts else longest if name.endswith(".longest") else rows for name in map(str, self._plan.symbols)}
        return int(self._plan.peak(**sizes))

    def run(self, packed: PackedTexts) -> dict[str, Any]:
        """Return results by their names in the padded network, ``[rows, ...]`` or ``[texts, ...]``.

        Raises:
            FeedError: other rows or dims. ExecutionError: an id is not in its table.
        """
        import numpy

        if self._runner is not None:
            begins = numpy.concatenate(([0], numpy.cumsum(packed.lengths)))
            results: Mapping[str, Any] = self._runner.run({name: packed.rows[name] for name in self._runner.feeds}, begins)
        else:
            assert self._model is not None
            levels = [packed.lengths.tolist()]
            results = self._model.run({name: LoDTensor(packed.rows[name], levels) for name in self._feeds})
        return {self._names[n]: numpy.asarray(value.data if isinstance(value, LoDTensor) else value) for n, value in results.items()}

    def example(self) -> PackedTexts:
        """Return a text of two rows of zeros."""
        import numpy

        dims = {name: self.program.global_block.var(name).spec for name in self._feeds}
        rows = {name: numpy.zeros((2, *spec.known_dims[1:]), spec.known_dtype.numpy_name) for name, spec in dims.items()}  # pyright: ignore[reportArgumentType]
        return PackedTexts(rows, numpy.array([2]), 2)


def _copies(arrays: Mapping[str, Any]) -> NamedArrays:
    """Return parameters copied out of their file: a server outlives a file written over in its place, whose mapped bytes would end the process."""

    def copied(name: str) -> Any:
        array = arrays[name]
        out = array.copy()
        forget_pages(array)
        return out

    return NamedArrays({*arrays}, copied)


def _scope_arrays(program: Program, scope: Scope) -> NamedArrays:
    """Return the parameters in a scope."""
    names = {v.name for v in program.parameters() if v.name in scope and v.spec.known_dtype.numpy_name}
    return NamedArrays(names, lambda name: to_numpy(scope.tensor(name)))
