"""Networks ready for use: a pruned program in ``NAME.pdmodel`` and its parameters in ``NAME.pdiparams``, as in PaddlePaddle."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from foreshape.core.gc_pause import collector_waits
from foreshape.core.spec import BOOL, FEED_MINIBATCH, FETCH_LIST, LOD_TENSOR, DType, Kind, Spec
from foreshape.core.values.conversion import to_numpy, to_tensor
from foreshape.core.values.torch_proxy import torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import ExecutionError, FormatError, SchemaError, border
from foreshape.interop.model import COPIES, InferenceModel, copied_from
from foreshape.interop.parameters import Fits, Pieces, open_parameters, otherwise, parameters_of, write_parameters
from foreshape.interop.program_files import find_program, open_program
from foreshape.interop.ragged_model import Ragged, on_ragged_rows
from foreshape.interop.waiting import waiting_parameters
from foreshape.language.infer.redescribe import redescribe
from foreshape.language.program import Op, Program, Variable, default_main_program
from foreshape.language.program.call_site import Site
from foreshape.language.wire import save_program
from foreshape.runtime.engine import Executor, Scope, default_scope

Given = Sequence[Variable | str] | Variable | str


class StoredValues(Protocol):
    """Values left in files until they are written elsewhere."""

    def __contains__(self, name: object) -> bool: ...
    def pieces(self, name: str) -> Pieces: ...


def save_inference_model(
    path_prefix: str | os.PathLike[str],
    feeds: Given,
    fetches: Given | Mapping[str, Variable | str],
    executor: Executor | None = None,
    program: Program | None = None,
    scope: Scope | StoredValues | None = None,
) -> None:
    """Write a network from ``feeds`` to ``fetches``: PREFIX.pdmodel and PREFIX.pdiparams.

    The program is pruned, without backward, update and learning-rate ops, and with batch norm and dropout as in a test. The
    given program stays as it is.

    Args:
        path_prefix: the path of the files, without the ending.
        feeds, fetches: variables or their names, in the order of the loaded model. A mapping as ``fetches`` gives each result
            its name in the loaded model, ``{"scores": y}``.
        executor: not needed; accepted for calls in PaddlePaddle's form.
        program: the program of the fetches, or the default main program if these are names.
        scope: holds the parameters; the default scope if omitted. Or ``fs.Checkpoint(folder).values()``: the values of a training's newest
            checkpoint. They may be in the parts of many ranks, and are written piece by piece, none of them ever whole in memory.

    Raises:
        SchemaError: a name unknown to the program, a required input missing among the feeds, or a taken name for a result.
        ExecutionError: a parameter without a value. FormatError: a file cannot be written; a stored value differs from the parameter's dims.
    """
    if not isinstance(path_prefix, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
        words = 'save_inference_model takes the path first, then feeds and fetches, as in ("model", [x], [y])'
        raise SchemaError(f"{words}; seen {path_prefix!r:.100} as the path")
    program, out, names, results = for_inference(feeds, fetches, program)
    _add_feeds(out, {name: _described_at(program.global_block.vars[name]) for name in names})
    _add_fetches(out, results, list(fetches) if isinstance(fetches, Mapping) else [None] * len(results))
    parameters = parameters_of(out)
    values = values_of(parameters, scope if scope is not None else default_scope())
    prefix = os.fspath(path_prefix)
    write_parameters(prefix + ".pdiparams", values, {n: v.spec.known_dtype for n, v in parameters.items()})
    save_program(out, prefix + ".pdmodel")


def for_inference(feeds: Given, fetches: Given | Mapping[str, Variable | str], program: Program | None) -> tuple[Program, Program, list[str], list[str]]:
    """Return the given program, its part from feeds to fetches as in a test, and the names of both, as for `save_inference_model`."""
    fed, fetched = _as_list(feeds), _as_list(list(fetches.values()) if isinstance(fetches, Mapping) else fetches)
    if program is None:
        program = next((v.block.program for v in (*fetched, *fed) if isinstance(v, Variable)), default_main_program())
    names = [_name_in(program, v) for v in fed]
    if len(set(names)) != len(names):
        raise SchemaError(f"a variable is among the feeds twice: {', '.join(names)}")
    from foreshape.transforms.passes import for_test, prune  # not awaited by the user who opens a network

    results = [_name_in(program, v) for v in fetched]
    return program, prune(for_test(program), names, results), names, results


@border("the model cannot be read", FormatError)
@collector_waits
def load_inference_model(
    path_prefix: str | os.PathLike[str], executor: Executor | None = None, scope: Scope | None = None, params: Any = None, *, ragged: Ragged | None = None
) -> InferenceModel:
    """Open a saved network: ``program, feeds, fetches = load_inference_model(...)``, or ``load_inference_model(...).run({"x": array})``.

    Args:
        path_prefix: the path without its ending, or of the program itself, a ``.pdmodel``, PaddlePaddle 3's ``.json``, an ``.onnx`` or a ``.pt2``.
            A folder holds ``__model__`` and one file for each parameter, or one program, as ``inference.json``.
        executor: the parameters are put on its device.
        scope: takes the parameters; the default scope if omitted.
        params: the parameter file if named otherwise, its bytes, or a folder of files.
        ragged: the name of the mask of a network of padded texts, to take texts without padding, as by `unpad`; or the arguments of `unpad`,
            ``{"mask": "attention_mask", "side": "left"}``.

    From a parameter file of 64 MiB and more only the descriptions of the tensors are read. Each tensor is read at its first use, so a look at a network
    takes no memory for it.

    Raises:
        FormatError: a file cannot be read or is invalid (a large one changed since, at the first use of the tensor).
        DescriptionError: an inconsistent program. Nothing is put into the scope then.
        UnpadError: with ``ragged``: a masked row reaches a text's own rows or results, or may.
    """
    model, default = find_program(path_prefix)
    program, file_parameters = open_program(model)
    program.refresh()
    feeds = columns(program, "feed", outputs=True)
    fetches = columns(program, "fetch", outputs=False)
    parameters = parameters_of(program)
    source = default if params is None else params
    scope = scope if scope is not None else default_scope()
    device = "cpu" if executor is None else executor.device
    if file_parameters is not None and params is None:
        file_parameters.put_into(scope, device)
    elif parameters or params is not None or os.path.isfile(default):
        if params is None and not os.path.exists(default):  # another network's parameters are no remedy
            raise FormatError(f"{default!r} cannot be read: there is no such file, and {model} has {len(parameters)} parameters: give params= for another path")
        _fill(scope, source, parameters, device)
    opened = InferenceModel.of(program, feeds, [program.global_block.var(n) for n in fetches], scope, executor)
    return opened if ragged is None else on_ragged_rows(opened, ragged)


def _as_list(variables: Given) -> list[Variable | str]:
    return [variables] if isinstance(variables, (Variable, str)) else list(variables)


def _name_in(program: Program, variable: Variable | str) -> str:
    if isinstance(variable, Variable) and variable.block.program is not program:
        raise SchemaError(f"{variable.name} is a variable of another program")
    return program.global_block.var(variable if isinstance(variable, str) else variable.name).name


# --- writing


def _holder(program: Program, name: str, kind: Kind) -> Variable:
    """Return the variable read by feed ops, or written by fetch ops."""
    block = program.global_block
    if name in block.vars:
        raise SchemaError(f"the name {name!r} is taken; a saved model needs it for its own {name} ops")
    return block.create_variable(name, Spec(kind, None, None), persistable=True)


def _described_at(variable: Variable) -> Site:
    return variable.site if variable.op is None else variable.op.site


def _add_feeds(program: Program, names: Mapping[str, Site]) -> None:
    """Add a feed op for each input, with the line of the input's description, for the errors of the opened model."""
    block = program.global_block
    holder = _holder(program, "feed", FEED_MINIBATCH)
    for column, (name, site) in enumerate(names.items()):
        variable = block.vars[name]
        variable.op = op = block.append_op("feed", {"X": holder}, {"Out": variable}, {"col": column}, index=column, site=site)
        op.site = site  # None if unknown: not the line of the saving call
        variable.need_check_feed = True


def _add_fetches(program: Program, names: Sequence[str], result_names: Sequence[str | None]) -> None:
    """Append a fetch op for each variable, of a copy under its given name, or its name in a saved model."""
    block = program.global_block
    holder = _holder(program, "fetch", FETCH_LIST)
    for column, (name, result_name) in enumerate(zip(names, result_names, strict=True)):
        variable = block.vars[name]
        if result_name != name if result_name is not None else copied_from(variable) is None:
            if result_name is not None and (not result_name or result_name in block.vars):
                reason = f"is the name of another variable of the network, {block.vars[result_name]}" if result_name else "is no name"
                raise SchemaError(f"the result {name} cannot be saved as {result_name!r}, which {reason}: choose another name")
            output = result_name if result_name is not None else program.unique_name(f"{COPIES}{column}.tmp")
            if variable.dtype is BOOL:  # no number, which PaddlePaddle scales
                block.append_op("assign", {"X": variable}, {"Out": output})
            else:
                block.append_op("scale", {"X": variable}, {"Out": output}, {"scale": 1.0, "bias": 0.0, "bias_after_scale": True})
            variable = block.vars[output]
        block.append_op("fetch", {"X": variable}, {"Out": holder}, {"col": column})


def is_copy(variable: Variable) -> bool:
    """Tell whether it is a result of a saved model without a name of its own."""
    return variable.name.startswith(COPIES) and copied_from(variable) is not None


def values_of(parameters: Mapping[str, Variable], scope: Scope | StoredValues) -> dict[str, Any]:
    """Return the arrays of parameters, or their pieces in a checkpoint. Raises `ExecutionError` for one without a value."""
    import numpy

    out: dict[str, Any] = {}
    missing: list[str] = []
    for name, variable in parameters.items():
        if name in scope:
            out[name] = to_numpy(scope.tensor(name)) if isinstance(scope, Scope) else _stored(scope.pieces(name), variable)
        elif variable.value is not None:
            dtype = variable.spec.known_dtype
            sizes = [d if isinstance(d, int) else 1 for d in variable.spec.known_dims]
            out[name] = numpy.broadcast_to(numpy.asarray(variable.value, dtype=dtype.numpy_name or "float32"), sizes)
        else:
            missing.append(name)
    if missing:
        listing = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ExecutionError(f"not initialised: {listing}; run the startup program first, or load parameters into the scope")
    return out


def _stored(value: Pieces, variable: Variable) -> Pieces:
    mistake = otherwise(value.dtype, value.dims, variable.spec)
    if mistake:
        raise FormatError(f"the parameter {variable.name[:100]!r}: {mistake}")
    return value


# --- reading


def columns(program: Program, type: str, outputs: bool) -> list[str]:
    """Return the names written by feed ops, or read by fetch ops, in the order of their columns."""
    names: dict[int, str] = {}
    for op in program.global_block.ops:
        if op.type != type:
            continue
        column = _column(op)
        if column in names:
            raise FormatError(f"two {type} ops have the column {column}")
        name = op.output("Out") if outputs else op.input("X")
        if name is None or program.global_block.find(name) is None:
            raise FormatError(f"the {type} op of column {column} names no variable")
        names[column] = name
    return [names[c] for c in sorted(names)]


def _column(op: Op) -> int:
    column = op.attributes.values.get("col", 0)
    if not isinstance(column, int) or column < 0:
        raise FormatError.must(f"the column of a {op.type} op", "at least 0", f"{column!r}")
    return column


def _fill(scope: Scope, source: Any, parameters: Mapping[str, Variable], device: str) -> None:
    fits = as_stored(parameters)
    waiting = waiting_parameters(source, parameters, fits, device)
    if waiting is not None:
        if waiting.large:
            for name, make in waiting.parameters.items():
                scope.defer(name, make)
            return
        with torch.inference_mode():
            read = {name: make() for name, make in waiting.parameters.items()}  # all of them, before the first is put in
            for name, tensor in read.items():
                scope.store(name, tensor)
        return
    values = open_parameters(source, parameters, fits)
    with torch.inference_mode():
        for name, value in values.items():
            tensor = to_tensor(value.numbers())  # a copy, since the bytes are read-only (or, of bf16, its numbers as fp32)
            scope.store(name, tensor.to(device, torch_dtype(value.dtype)))


def as_stored(parameters: Mapping[str, Variable]) -> Fits:
    """Return a check of a file's tensors against a program's parameters that accepts harmless differences.

    PaddlePaddle's quantizing tools put whole numbers into weights, and other dims into scales, without a word to the program. The file is right about a
    tensor with as many numbers as in the program, if all ops accept it with unchanged results. Its variable is described anew. Any other tensor is refused.
    """

    def fits(name: str, dtype: DType, dims: tuple[int, ...]) -> str:
        variable = parameters[name]
        mistake = otherwise(dtype, dims, variable.spec)
        return "" if mistake and redescribe(variable, Spec(LOD_TENSOR, dtype, dims)) else mistake

    return fits
