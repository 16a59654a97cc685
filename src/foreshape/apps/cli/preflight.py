"""The command ``preflight``: whether the training of a module of torch fits on a card, told without one."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from foreshape.apps.cli import completion
from foreshape.apps.cli.arguments import Json
from foreshape.apps.cli.output import console, error_text, plain_errors, print_json, print_plain, printing, stop
from foreshape.core.hints import did_you_mean
from foreshape.errors import ForeshapeError, FormatError, SchemaError, needs

if TYPE_CHECKING:
    from foreshape.apps.forecast import Forecast

_ARGUMENT = re.compile(r"\b(device|lengths|precision|optimizer|batch|limit)=(?:8\b)?")
"""Arguments of `fs.forecast` in an error: options here."""
_SIZES = re.compile(r"[1-9]\d{0,17}(?:[\s,]+[1-9]\d{0,17})?\Z", re.ASCII)


def preflight(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE:FUNCTION",
            help="A function that returns a module of torch and an example of its batches; or the arguments of fs.forecast as a dict.",
        ),
    ],
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="CARD", help="A card, as H100-80GB, or its bytes, as 24GiB. Default: H100-80GB.", autocompletion=completion.cards),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option("--lengths", metavar="FILE", help="The batches in their order: a line has a length, or a batch size and a length, as 16 512."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option("--precision", metavar="TYPE", help="fp32, tf32, bf16, fp16, amp-bf16 or amp-fp16. Default: fp32.", autocompletion=completion.precisions),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", metavar="NAME", help="A class of torch.optim, or AdamW8bit; none: no training. Default: AdamW.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, metavar="N", help="The number of examples of a batch, where --lengths has lengths alone.")
    ] = None,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="BYTES", help="The most bytes that torch may reserve, as 24GiB. Default: those that the card has free.")
    ] = None,
    json: Json = False,
) -> None:
    """Forecast whether the training of a module of torch fits on a card: the memory of eager torch, the first batch that dies, the largest that fits,
    the largest tensors by line, and changes that help. No GPU is needed.

    Exits with 0 if the run fits, with 1 if it does not, and with 2 for every mistake: of the options, of a file, or of the function."""
    with _mistakes_end_with_2(place):
        from foreshape.apps.cli.factory import is_factory, made_by
        from foreshape.apps.forecast import forecast

        if not is_factory(place):
            raise typer.BadParameter(f"{place!r} is no function, as package.module:function", param_hint="PACKAGE:FUNCTION")
        batches = None if lengths is None else read_lengths(lengths)
        with needs("preflight"):
            importlib.import_module("torch")  # before the function is asked, which may take long
        with contextlib.redirect_stdout(sys.stderr):  # the function's own words are no part of the report
            arguments = _arguments(place, made_by(place, "PACKAGE:FUNCTION"))
        options = {"device": device, "precision": precision, "batch": batch, "limit": limit}
        arguments |= {name: value for name, value in options.items() if value is not None}
        if optimizer is not None:
            arguments["optimizer"] = None if optimizer.lower() == "none" else optimizer
        if batches is not None:
            arguments["lengths"] = batches
        with contextlib.redirect_stdout(sys.stderr):
            prediction = forecast(**arguments)
        with printing():
            if json:
                print_json(prediction.to_dict())
            else:
                _print(prediction)
    if not prediction.fits:
        raise typer.Exit(1)


@contextlib.contextmanager
def _mistakes_end_with_2(place: str) -> Generator[None]:
    """End with 2 and in words for every error: 1 is the answer that the run does not fit."""
    try:
        with plain_errors():
            try:
                yield
            except ForeshapeError as error:
                stop(_ARGUMENT.sub(r"--\1", error_text(error)), 2)
    except typer.Exit as leaving:
        raise typer.Exit(2 if leaving.exit_code == 1 else leaving.exit_code) from None
    except (typer.BadParameter, typer.Abort, BrokenPipeError):
        raise
    except SystemExit as leaving:
        stop(f"{place} cannot be called: it exits with {leaving.code}", 2)
    except Exception as error:
        from foreshape.apps.cli.script import words_of

        stop(f"{place} cannot be called: {words_of(error, _file(place))}", 2)


def _file(place: str) -> str:
    """Return the file of a function's package, or a name beside the files of the working folder."""
    spec = importlib.util.find_spec(re.split(r"[.:]", place)[0])
    return (spec and spec.origin) or os.path.join(os.getcwd(), place)


def _arguments(place: str, product: tuple[Any, Any]) -> dict[str, Any]:
    """Return the arguments of `forecast` of a function's result.

    Raises:
        SchemaError: it is a dict without the module, or with names that are no arguments.
    """
    from foreshape.apps.forecast import forecast

    module, example = product
    if not isinstance(module, Mapping):
        return {"module": module, "example": example}
    arguments = {str(name): value for name, value in cast("Mapping[Any, Any]", module).items()}
    parameters = inspect.signature(forecast).parameters
    for name in arguments:
        if name not in parameters:
            raise SchemaError(f"{place} returns a dict with {name!r}, which is no argument of fs.forecast{did_you_mean(name, parameters)}")
    if "module" not in arguments:
        raise SchemaError(f"the dict that {place} returns needs the module under 'module'; seen {', '.join(arguments) or 'nothing'}")
    return arguments


def read_lengths(path: Path) -> list[int | tuple[int, int]]:
    """Return the batches of a file: a length, or a batch size and a length, in each line; empty lines and those that begin with # are passed over.

    Raises:
        FormatError: another line, whose number it has, or no batch at all. OSError: the file cannot be read.
    """
    out: list[int | tuple[int, int]] = []
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if not _SIZES.match(text):
                raise FormatError(f"{os.fspath(path)}:{number}: a line has a length, or a batch size and a length, of at least 1; seen {text!r:.60}")
            first, *second = map(int, re.split(r"[\s,]+", text))
            out.append((first, second[0]) if second else first)
    if not out:
        raise FormatError(f"{os.fspath(path)} has no lengths: a line has a length, or a batch size and a length")
    return out


def _print(prediction: Forecast) -> None:
    from foreshape.apps.cli.show import human_bytes, new_row, new_table

    lines = prediction.text(tensors=0).split("\n")
    for line in itertools.takewhile(lambda line: not line.startswith(("  what would help", "  note: ")), lines):
        print_plain(line)
    out = console()
    table = new_table("the largest tensors at the peak", "bytes", "for", "name", "largest shape", "line")
    for tensor in prediction.peak_tensors:
        times = f" x{tensor.number}" if tensor.number > 1 else ""
        new_row(table, f"{tensor.bytes:,}", tensor.kind, f"{tensor.name}{times}", "x".join(map(str, tensor.shape)), tensor.line)
    out.print(table)
    if prediction.advice:
        table = new_table("what would help, over the whole run", "change", "fits", "reserved", "safe")
        for advice in prediction.advice:
            new_row(table, advice.change, "yes" if advice.fits else "no", human_bytes(advice.reserved), human_bytes(advice.safe))
        out.print(table)
    for note in prediction.notes:
        print_plain(f"note: {note}")
