"""Compiling a network: the work before a first answer is done once, for certain sizes, and written to one file."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from foreshape.compiler.lowering import fuse, lower
from foreshape.compiler.lowering.call_text import function_of
from foreshape.compiler.lowering.fusion.graph import computes
from foreshape.compiler.lowering.kernel_calls import FusedCall, KernelCall, OpCall, Value
from foreshape.compiler.lowering.threads import threads_for
from foreshape.core.spec import FP32, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.version import VERSION
from foreshape.errors import ExecutionError, ForeshapeError, SchemaError, border
from foreshape.interop.compiled_file import CompiledFile, CompiledModel
from foreshape.interop.compiled_head import ENDING, FORMAT, PROGRAM, SourceFile, is_compiled, rounded, write_compiled
from foreshape.interop.compiled_program import write_program
from foreshape.interop.compiled_steps import ELEMENTS, SERIES, ArrayForm, StepForm, is_by_numpy, kind_of
from foreshape.interop.compiled_texts import CompiledTexts, write_texts
from foreshape.interop.example_feed import example_feed
from foreshape.interop.inference import load_inference_model, values_of
from foreshape.interop.model import InferenceModel
from foreshape.interop.parameters import Stored, parameters_of, stored_array
from foreshape.interop.program_files import find_program, holds_onnx
from foreshape.interop.ragged_model import Ragged, unpad_settings
from foreshape.interop.row_program import StepsUnknown
from foreshape.interop.row_runner import RowRunner
from foreshape.interop.unpadding import open_unpadded
from foreshape.language.operator.computation import Computation
from foreshape.language.operator.computations import Reshape, Slicing, Transposition
from foreshape.language.program.dropping import for_step
from foreshape.machine.kernels import written_chain
from foreshape.machine.kernels.call_record import CallRecord, NumberedOperand, ObjectAttribute, StepName, Subscript
from foreshape.machine.kernels.onednn_chain import Series
from foreshape.machine.kernels.onednn_library import Library, LibraryError, library
from foreshape.machine.process.threads import Threads, threads_here
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.engine.emit import emit

_SEEN = 8
"""So many kernels besides oneDNN's are named in an error."""


class Compiled(NamedTuple):
    """A compiled network.

    Attributes:
        path: of its file.
        nbytes: of its file.
        kernels: the number of kernels of each size; of a program, whose kernels are made at the opening, none.
        difference: the largest difference to the network's own results, by their largest element; None if it took no tried feed.
        reason: of a program: the obstacle to kernels, in words.
    """

    path: str
    nbytes: int
    kernels: list[int]
    difference: float | None
    reason: str = ""


class NoKernels(ExecutionError):
    """The error for a network without kernels for all of its parts."""


@border("the network cannot be compiled", ExecutionError)
def compile_model(
    path: str | os.PathLike[str],
    shapes: Iterable[Mapping[str, Sequence[int]]] = (),
    *,
    out: str | os.PathLike[str] | None = None,
    params: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    ragged: Ragged | None = None,
) -> Compiled:
    """Write a network to one file, for `Predictor` and ``foreshape run`` to open as a network.

    For the given sizes it is written as kernels, fused and packed for this machine, if oneDNN and numpy have all of them. They run without torch. Other
    sizes, other machines, and changed files of the network open the network itself, beside the file. Any other network is kept as a program with its
    parameters, for all sizes and machines. Its steps are prepared at the opening, with torch.

    With ``ragged`` the network is an encoder of padded texts, proved to need no padding. `Embedder` opens the file without the proof and without
    torch, for texts of any length and on any machine.

    Args:
        path: as for `load_inference_model`.
        shapes: sizes: input -> dims, several of them in turn; nothing for a network of fixed sizes, or to keep the program.
        out: the file; by default the network's name with the ending ``.compiled``, beside it.
        params: the path of the parameter file, if named otherwise.
        threads: of its kernels; by default as `Executor` chooses. A program takes the number of its `Predictor`.
        ragged: of an ``.onnx`` of padded texts: the name of its mask, or the arguments of `unpad`. It has no ``shapes``, ``params`` or ``threads``.

    Raises:
        FormatError: the network cannot be read, or the file not written. SchemaError: it is compiled already; a size is of no input.
        ShapeError: the network does not take a size. ExecutionError: a parameter has no value; with ``ragged``: as `RowRunner`.
        UnpadError: with ``ragged``: a masked row reaches a text's own rows or results, or may: with the op.
    """
    if is_compiled(path):
        raise SchemaError(f"{os.fspath(path)} is compiled already; compile the network itself")
    program, default = find_program(path)
    target = os.path.splitext(program)[0] + ENDING if out is None else os.fspath(out)
    if ragged is not None:
        if params is not None or threads is not None or [*shapes]:
            raise SchemaError("an encoder of texts is compiled for texts of any length, with any number of threads: no shapes, params or threads with ragged")
        return _compile_texts(program, unpad_settings(ragged), target)
    params_path: str | None = None if params is None else os.fspath(params)
    model = load_inference_model(path, None, Scope(), params_path)
    files = [SourceFile.at(p) for p in _sources(program, default if params_path is None else params_path, model)]
    network = {"sources": files, "params": None if params_path is None else os.path.basename(params_path)}
    models = [model.with_feed_shapes(size) for size in shapes] or [model]
    try:
        return _compile_kernels(target, model, models, network, Threads(threads).most())
    except NoKernels as error:
        return _compile_program(target, models, network, str(error))


def _compile_kernels(target: str, model: InferenceModel, models: Sequence[InferenceModel], network: Mapping[str, Any], threads: int) -> Compiled:
    """Compile the kernels of a network for some sizes. Raises `NoKernels`: a part has none."""
    onednn = library()
    if onednn is None:
        raise NoKernels("oneDNN's own library is not there: pip install 'foreshape[inference]'")
    constants = _Constants()
    sizes: list[dict[str, Any]] = []
    fetched: list[list[int]] = []
    for fixed in models:
        words, places = _size(fixed, onednn, constants, threads)
        sizes.append(words)
        fetched.append(places)
    description: dict[str, Any] = {
        "format": FORMAT,
        "package": VERSION,
        "onednn": onednn.identity(),
        **network,
        "inputs": model.feeds,
        "outputs": [v.name for v in model.fetches],
        "asked": dict(model.asked),
        "constants": constants.places,
        "sizes": sizes,
        "fetched": fetched,
    }
    write_compiled(target, json.dumps(description, separators=(",", ":")).encode(), constants.places, map(_bytes, constants.tensors))
    differences = [_difference(model, target, size) for size in sizes]
    kernels = [sum(len(series["primitives"]) for series in size["series"]) for size in sizes]
    return Compiled(target, os.path.getsize(target), kernels, max([d for d in differences if d is not None], default=None))


def _compile_program(target: str, models: Sequence[InferenceModel], network: Mapping[str, Any], reason: str) -> Compiled:
    """Keep the program of a network, and compare its results with the network's.

    Args:
        models: the network, for each size.
        network: its files.
        reason: the obstacle to kernels.
    """
    program, scope = models[0].open_program, models[0].scope
    parameters = {name: variable for name, variable in parameters_of(program).items() if name in scope or variable.value is None}

    def stored(name: str) -> Stored:
        (value,) = values_of({name: parameters[name]}, scope).values()
        return stored_array(value, parameters[name].spec.known_dtype)

    write_program(target, PROGRAM, network, program, [*parameters], stored)
    written_model = load_inference_model(target, None, Scope())
    differences = [_compared(frozen(fixed), frozen(written_model), example_feed(fixed, fixed.feeds)) for fixed in models]
    return Compiled(target, os.path.getsize(target), [], max([d for d in differences if d is not None], default=None), reason)


def _compared(itself: InferenceModel, compiled: InferenceModel | CompiledModel, feed: dict[str, Any] | None) -> float | None:
    """Return the largest difference of the results for a feed, by their largest element; None if the network takes no such feed."""
    try:
        references = None if feed is None else itself.run(feed)
    except ForeshapeError:  # a number of a row that is not there, or a division by 0
        references = None
    return None if feed is None or references is None else _largest(compiled.run(feed), references)


def frozen(model: InferenceModel) -> InferenceModel:
    """Return a model in the executor of a `Predictor`."""
    return InferenceModel.of(model.program, model.feeds, model.fetches, model.scope, Executor(frozen=True))


def _compile_texts(program: str, settings: Mapping[str, Any], target: str) -> Compiled:
    """Compile an encoder of texts, and compare its results for two short texts."""
    import numpy

    opened = open_unpadded(program, **settings)
    names = [v.name for v in opened.fetches]
    try:
        itself = RowRunner(opened.program, names, opened.arrays)
    except StepsUnknown as error:
        raise ExecutionError(f"an encoder of texts is compiled if all of it runs without torch; {error}") from error
    write_texts(target, opened, settings, [SourceFile.at(p) for p in (program, *_external_files(program))])
    written = CompiledTexts(target).open()
    compiled = RowRunner(written.program, names, written.arrays)
    specs = {name: opened.program.global_block.var(name).spec for name in itself.feeds}
    feed: dict[str, Any] = {name: numpy.zeros([5, *map(int, spec.known_dims[1:])], spec.known_dtype.numpy_name) for name, spec in specs.items()}
    difference = _largest(compiled.run(feed, [0, 2, 5]), itself.run(feed, [0, 2, 5]))
    return Compiled(target, os.path.getsize(target), [], difference)


def _sources(program: str, params: str, model: InferenceModel) -> list[str]:
    """Return the paths of a network's files, its program first."""
    out = [program]
    if os.path.isdir(params):
        out += [os.path.join(params, name) for name in parameters_of(model.program)]
    elif os.path.isfile(params):
        out.append(params)
    if holds_onnx(program):
        out += _external_files(program)
    return [p for p in dict.fromkeys(out) if os.path.isfile(p)]


def _external_files(program: str) -> list[str]:
    """Return the paths of the files beside an ``.onnx`` with its parameters."""
    from foreshape.language.wire.onnx_model import read_model

    names = sorted({t.external.get("location", "") for t in read_model(program).graph.initializers.values() if t.external is not None})
    return [path for name in names if os.path.isfile(path := os.path.join(os.path.dirname(program), name))]


class _Constants:
    """The constants of all sizes, each once."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []
        self.tensors: list[Tensor] = []
        self._end = 0
        self._known: dict[bytes, int] = {}

    def number(self, constant: Any) -> int:
        """Return the number of a constant, a tensor or a number of C."""
        tensor: Tensor = (
            constant
            if isinstance(constant, torch.Tensor)
            else torch.tensor([constant.value], dtype=torch.int32 if isinstance(constant.value, int) else torch.float32)
        )
        data = memoryview(_bytes(tensor))
        key = hashlib.sha256(data).digest()
        index = self._known.get(key)
        if index is None:
            index = self._known[key] = len(self.places)
            self.places.append((self._end, data.nbytes))
            self.tensors.append(tensor)
            self._end += rounded(data.nbytes)
        return index


def _bytes(tensor: Tensor) -> Any:
    """Return the bytes of a tensor as they lie in memory."""
    flat = tensor if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1)
    return flat.reshape(-1).view(torch.uint8).numpy()


def _size(fixed: InferenceModel, onednn: Library, constants: _Constants, thread_limit: int) -> tuple[dict[str, Any], list[int]]:
    """Return the steps of a network for one size in words of JSON, and the values of its results."""
    for name in fixed.feeds:
        spec = fixed.program.global_block.var(name).spec
        if spec.lod is not None or _form_of(spec) is None:
            raise NoKernels(f"its input {name} is {spec.text()}; kernels are chosen for sizes, as {name}=1,3,48,192")
    names = [v.name for v in fixed.fetches]
    lowered = lower(for_step(fixed.program, tuple(names)).global_block, names, True, True)
    threads = min(threads_for(replace(lowered, calls=list(lowered.calls)), {}, threads_here()), thread_limit)
    lowered.whole = True
    fuse(lowered)
    bound = emit(lowered).bind(fixed.scope).values
    values = {id(p): value for p, value in zip(lowered.persistables, bound, strict=False)}
    derived = {name: value for (name, _, _), value in zip(lowered.derived, bound[len(lowered.persistables) :], strict=True)}
    try:
        with onednn.using(threads), torch.inference_mode():
            steps = _WrittenSteps(fixed, onednn, constants, values, derived)
            steps.add_all(lowered.calls)
            return steps.words(), [steps.number(v) for v in lowered.fetches]
    except LibraryError as error:
        raise NoKernels(f"oneDNN's library has no kernel for a part of it: {error}") from error


def _form_of(spec: Spec | None) -> ArrayForm | None:
    """Return the form of a dense value of known dims, none of them 0; None of another value."""
    if spec is None or spec.dtype is None or spec.dims is None or spec.dtype.numpy_name not in ELEMENTS:
        return None
    dims = [d for d in spec.dims if isinstance(d, int) and d > 0]
    return ArrayForm(spec.dtype.numpy_name, tuple(dims)) if len(dims) == len(spec.dims) else None


class _WrittenSteps:
    """The steps of a network for one size, call by call.

    Args:
        fixed: the network.
        constants: takes the constants.
        held: the tensors of persistables, by the ``id`` of their values.
        derived: the constants made of them, by name.
    """

    def __init__(self, fixed: InferenceModel, onednn: Library, constants: _Constants, held: Mapping[int, Any], derived: Mapping[str, Any]) -> None:
        self._onednn, self._keep, self._derived = onednn, constants, derived
        self._held: dict[int, Any] = dict(held)
        self._feeds = fixed.feeds
        forms = [_form_of(fixed.program.global_block.var(name).spec) for name in fixed.feeds]
        self._forms: list[ArrayForm] = [form for form in forms if form is not None]
        self._numbers: dict[int, int] = {}
        self._constants: list[tuple[int, int]] = []
        self._series: list[dict[str, Any]] = []
        self._steps: list[StepForm] = []

    def words(self) -> dict[str, Any]:
        """Return the steps in words of JSON."""
        return {"inputs": len(self._feeds), "values": self._forms, "constants": self._constants, "series": self._series, "steps": self._steps}

    def number(self, value: Value) -> int:
        """Return the number of a value: of an input, of a result of a step, or of a constant, kept from now on."""
        if value.feed:
            return self._feeds.index(value.name)
        number = self._numbers.get(id(value))
        if number is None:
            tensor = self._held.get(id(value))
            if tensor is None:
                raise NoKernels(f"{value.name} is not computed from its inputs")
            form = ArrayForm(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            if form.element not in ELEMENTS:
                raise NoKernels(f"its constant {value.name} has elements of {form.element}")
            number = self._new(value, form)
            self._constants.append((number, self._keep.number(tensor.contiguous())))
        return number

    def _new(self, value: Value, form: ArrayForm) -> int:
        number = self._numbers[id(value)] = len(self._forms)
        self._forms.append(form)
        return number

    def add_all(self, calls: Sequence[KernelCall]) -> None:
        """Add the steps of calls. Raises `NoKernels`: some have no kernel."""
        torch_kernels = Counter[str]()
        for i in calls:
            if not i.reads() and not i.stores:
                self._held.update({id(v): _constant(i, self._derived) for v in i.writes()})
            elif isinstance(i, FusedCall) and isinstance(series := self._derived.get(i.kernel.packed), Series):
                if not torch_kernels:
                    self._add_series(i, series)
            elif (small := self._small(i)) is not None:
                if not torch_kernels:
                    self._add_small(i, *small)
            else:
                torch_kernels[i.op.type] += 1
        if counts := torch_kernels:
            words = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in counts.most_common(_SEEN))
            remainder = f" and {len(counts) - _SEEN} kinds more" if len(counts) > _SEEN else ""
            raise NoKernels(f"oneDNN's library and numpy have no kernels for {words}{remainder}")

    def _small(self, i: KernelCall) -> tuple[str, list[Any], ArrayForm] | None:
        """Return the kind, the arguments and the result of a small computation; None of another call."""
        computation = (i.computes or _view_of(i.kernel.call)) if isinstance(i, FusedCall) else computes(i, Computation)
        kind, results = kind_of(computation, 1), [r for r in i.results if r is not None]
        form = _form_of(results[0].spec) if len(results) == 1 and isinstance(results[0], Value) else None
        if kind is None or form is None or i.copies or i.stores or not is_by_numpy(*kind, form):
            return None
        return *kind, form

    def _add_small(self, i: KernelCall, kind: str, arguments: list[Any], form: ArrayForm) -> None:
        (result,) = i.writes()
        operands = [[self.number(v) for v in x if v is not None] if isinstance(x, list) else self.number(x) for x in i.arguments if x]
        self._steps.append(StepForm(kind, arguments, operands, [self._new(result, form)]))

    def _add_series(self, i: FusedCall, series: Series) -> None:
        given: list[Value] = []
        operands: list[Any] = []
        for v in i.reads():
            constant = self._held.get(id(v))
            if constant is None and v not in given:
                given.append(v)
            operands.append(given.index(v) if constant is None else _lying(constant))
        numbers = [self.number(v) for v in given]
        forms = [self._forms[n] for n in numbers]
        if any(form.element != FP32.numpy_name or not form.dims for form in forms):
            raise NoKernels(f"{i.op.type} reads other elements than fp32")
        dims = [form.dims for form in forms]
        line = series.line(self._onednn, [torch.empty(dims[operand]) if isinstance(operand, int) else operand for operand in operands])
        words = written_chain.write(line, self._onednn, dims, operands, self._keep.number)
        results = [self._new(v, ArrayForm(FP32.numpy_name, tuple(out))) for v, out in zip(i.writes(), words["results"], strict=True)]
        self._steps.append(StepForm(SERIES, [len(self._series)], numbers, results))
        self._series.append(words)


def _view_of(record: Any) -> Computation | None:
    """Return the computation of a record of a view of its only operand; None of another record."""
    match record:
        case CallRecord(ObjectAttribute(NumberedOperand(0), "reshape" | "squeeze" | "unsqueeze")):
            return Reshape()
        case CallRecord(ObjectAttribute(NumberedOperand(0), "permute"), arguments, ()):
            return Transposition(tuple(arguments))  # pyright: ignore[reportArgumentType]
        case CallRecord(ObjectAttribute(NumberedOperand(0), "narrow"), (int(axis), int(begin), int(count)), ()):
            return Slicing(((axis, begin, begin + count),))
        case CallRecord(ObjectAttribute(NumberedOperand(0), "select"), (int(axis), int(entry)), ()):
            return Slicing(((axis, entry, entry + 1),), (axis,))
        case _:
            return None


def _constant(i: KernelCall, derived: Mapping[str, Any]) -> Tensor:
    """Return the constant of a call without operands."""
    if not isinstance(i, FusedCall):
        assert isinstance(i, OpCall)
        return i.kernel()
    record = i.kernel.call
    if isinstance(record, Subscript) and isinstance(record.owner, StepName):  # one of several, made when the step is bound
        return derived[record.owner.name][record.place]
    return function_of(i.kernel, 0)()


def _lying(constant: Tensor) -> Tensor:
    """Return a constant as the library's kernels read it: images with their channels innermost."""
    return constant.contiguous(memory_format=torch.channels_last) if constant.dim() == 4 else constant.contiguous()


def _difference(model: InferenceModel, path: str, size: Mapping[str, Any]) -> float | None:
    """Return the largest difference between the results of a compiled network and of its own, by their largest element, for random inputs."""
    import numpy

    numbers: Any = numpy.random.default_rng(1)
    feed: dict[str, Any] = {
        name: numbers.standard_normal(dims).astype(element) if element.startswith("float") else numbers.integers(0, 2, dims).astype(element)
        for name, (element, dims) in zip(model.feeds, size["values"], strict=False)
    }

    def stop(reason: str) -> Any:
        raise ExecutionError(f"{path} does not run here: {reason}")

    return _compared(frozen(model), CompiledModel(CompiledFile(path), stop), feed)


def _largest(results: Mapping[str, Any], references: Mapping[str, Any]) -> float:
    """Return the largest difference of arrays, by their largest element."""
    import numpy

    out = 0.0
    for name, array in results.items():
        expected = references[name]
        if not numpy.array_equal(array, expected, equal_nan=True):
            out = max(out, float(numpy.abs(array - expected).max() / (numpy.abs(expected).max() or 1.0)))
    return out
