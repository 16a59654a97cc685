"""`job`: a network, its data and its updates, described for workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from foreshape.apps.training import Checkpoint
from foreshape.apps.training.checkpoint.checkpoint import as_checkpoint
from foreshape.apps.training.training_programs import training_program
from foreshape.apps.workers.jobs import Files, Job, Keep, Model
from foreshape.apps.workers.prepare import load_inferred
from foreshape.apps.workers.reply import described
from foreshape.apps.workers.strategies import Strategy, with_layers
from foreshape.errors import FormatError, SchemaError, whole
from foreshape.language.program import Program, Role, Variable, startup_of
from foreshape.language.wire import save_program
from foreshape.transforms.passes import data_parallel

Paths = str | Sequence[str]
"""The path of a .npy file; for ragged rows a list: of this file, and a file of sequence lengths for each level."""


def job(
    what: Variable | Program, data: Mapping[str, Paths], *, optimizer: Any = None, loss: Variable | str | None = None,
    metrics: Mapping[str, Variable] | None = None, validation: Mapping[str, Paths] | None = None, epochs: int = 1, batch_size: int = 32, seed: int = 0,
    shuffle: bool = True, startup: Program | None = None, ranks: Strategy | None = None, accumulate: int = 1, drop_last: bool = False,
    values: str | None = None, checkpoint: Checkpoint | str | None = None, save: str | None = None,
    model: tuple[str, Sequence[Variable | str], Sequence[Variable | str]] | None = None, on_change: Literal["refuse", "take"] = "refuse",
) -> Job:  # fmt: skip
    """Return a job with everything for workers to train a network without its code.

    All paths are on the workers' machines, within their folder.

    Args:
        what: a cost, as for `train`; or a program with updates.
        data: input -> path of a .npy file ``[examples, ...]``, opened by every worker; for a ragged input the paths of its rows and of the
            sequence lengths of each level.
        optimizer, metrics, epochs, batch_size, seed, shuffle, startup, accumulate, drop_last, on_change: as for `train`.
        loss: of a program, if its ops do not tell it.
        validation: as ``data``.
        ranks: the division of the training; by default `data_parallel`.
        values: a safetensors file of values to begin with.
        checkpoint: a folder shared by all workers, or a `Checkpoint` in one.
        save: a safetensors file for the values of the trained network.
        model: (path without ending, inputs, results): the trained network is saved for use there, as by `save_inference_model`.

    Raises:
        SchemaError: a variable of another program, or data for a name of no input. DescriptionError: a program with mistakes.
    """
    epochs = whole("epochs", epochs, 0, SchemaError)
    description = what.block.program if isinstance(what, Variable) else what
    startup = startup if startup is not None else startup_of(description)
    if isinstance(what, Variable):
        training = training_program(what, optimizer, startup=startup, epochs=max(epochs, 1))
        least, startup = training.loss, training.startup
    else:
        least = _loss_of(what, loss)
    saved = None if model is None else Model(model[0], *(tuple(_name(description, v) for v in some) for some in model[1:]))
    return checked_job(
        least, startup, [*data, *(validation or {})], data=_files(data), validation=None if validation is None else _files(validation),
        metrics={name: _name(description, metric) for name, metric in (metrics or {}).items()}, ranks=ranks, epochs=epochs, batch_size=batch_size, seed=seed,
        shuffle=shuffle, accumulate=accumulate, drop_last=drop_last, on_change=on_change, values=values, checkpoint=as_checkpoint(checkpoint), save_to=save,
        model=saved,
    )  # fmt: skip


def checked_job(
    loss: Variable, startup: Program, fed: Iterable[str], *, ranks: Strategy | None, batch_size: int, seed: int, checkpoint: Checkpoint | None, **fields: Any
) -> Job:
    """Return the job of a training program, as workers would take it.

    Args:
        loss: a variable of the program with updates.
        fed: the names of the inputs with data.
        fields: the other fields of `Job`.

    Raises:
        SchemaError: data for a name of no input, or something refused by every worker.
    """
    from foreshape.core.version import VERSION

    program = loss.block.program
    batch_size, seed = whole("batch_size", batch_size, 1, SchemaError), whole("seed", seed, 0, SchemaError)
    main_bytes, startup_bytes = save_program(program), save_program(startup)
    read = load_inferred("main", main_bytes)  # the inference of the sent program, as by the workers
    feeds: dict[str, str] = {}
    for name in fed:
        variable = read.global_block.vars.get(name)
        if variable is None or variable.persistable or variable.op is not None:
            raise SchemaError(f"there are data for {name!r}, which is no input of the program")
        feeds[name] = variable.spec.text()
    out = Job(
        main=main_bytes, startup=startup_bytes, foreshape=VERSION, random_seeds=(program.random_seed, startup.random_seed), described=described(read),
        loss=loss.name, feeds=feeds, strategy=with_layers(ranks if ranks is not None else data_parallel(), program), batch_size=batch_size, seed=seed,
        checkpoint=None if checkpoint is None else Keep(checkpoint.path, checkpoint.every, checkpoint.keep), **fields,
    )  # fmt: skip
    try:
        return Job.from_bytes(out.to_bytes())  # a job refused by every worker is refused here
    except FormatError as error:
        raise SchemaError(f"no worker would take this: {error}") from None


def _loss_of(program: Program, choice: Variable | str | None) -> Variable:
    """Return the loss minimised by a program."""
    if not any(op.role & Role.OPTIMIZE for op in program.all_ops()):
        raise SchemaError("the program has no updates: send its cost instead, or minimise it first")
    if choice is not None:
        return program.global_block.var(_name(program, choice))
    names = [n for op in program.global_block.ops if op.role & Role.LOSS and not op.role & Role.BACKWARD for n in op.output_names()]
    if len(names) != 1:
        raise SchemaError(f"the program does not say what its loss is ({', '.join(names[:5]) or 'no op is marked'}): give loss=")
    return program.global_block.var(names[0])


def _name(program: Program, variable: Variable | str) -> str:
    if isinstance(variable, Variable) and variable.block.program is not program:
        raise SchemaError(f"{variable.name} is a variable of another program")
    return program.global_block.var(variable if isinstance(variable, str) else variable.name).name


def _files(paths: Mapping[str, Paths]) -> dict[str, Files]:
    return {name: Files(entry) if isinstance(entry, str) else Files(entry[0], tuple(entry[1:])) for name, entry in paths.items()}
