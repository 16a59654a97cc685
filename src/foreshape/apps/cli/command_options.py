"""Options of commands as records, and the refusal of an option out of place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NoReturn

import typer

from foreshape.apps.cli.arguments import BANDWIDTH, LATENCY
from foreshape.core.data_class import data_class, field


@data_class(frozen=True)
class PlanOptions:
    """Options of ``foreshape plan``."""

    fetch: Sequence[str] = ()
    batch: int | None = None
    sizes: Mapping[str, Sequence[int | str]] = field(default_factory=dict[str, Sequence[int | str]])
    within: str | None = None
    train: str | None = None
    plot: Path | None = None
    html: Path | None = None
    ranks: int | None = None
    bandwidth: str = BANDWIDTH
    latency: str = LATENCY
    device: str | None = None
    threads: int = 1
    measured: Path | None = None
    json: bool = False


@data_class(frozen=True)
class RunOptions:
    """Options of ``foreshape run``."""

    params: Path | None = None
    feed: Sequence[str] = ()
    lengths: Sequence[str] = ()
    fetch: Sequence[str] = ()
    out: Path = Path(".")
    device: str = "cpu"
    operators: Sequence[Path] = ()
    profile: bool = False
    why: str | None = None


@data_class(frozen=True)
class ServeOptions:
    """Options of ``foreshape serve``."""

    port: int
    host: str
    batch: int
    memory: str | None
    body: str
    seconds: float
    queue: int
    connections: int
    threads: int | None
    users: int
    context: int | None
    device: str
    precision: Literal["fp32", "bf16", "auto"]
    weights: Literal["int8", "int4"] | None
    rows: Literal["fp32", "int8"]
    ragged: Literal["auto", "always", "never"]
    mask: str
    quiet: bool
    row_scales: bool
    shared_prefixes: bool


def refuse(option: str, scope: str, seen: str) -> NoReturn:
    """Raise `typer.BadParameter` for an option out of place.

    Args:
        option: as ``--html``.
        scope: its inputs and options.
        seen: the input or option beside it.
    """
    raise typer.BadParameter(f"is for {scope}; {seen}", param_hint=option)


def refuse_changed(options: Any, names: Iterable[str], scope: str, seen: str) -> None:
    """Refuse, of these options of a record, the first with another value than its default; see `refuse`."""
    defaults = {entry.name: entry.default for entry in fields(options)}
    for name in names:
        value = getattr(options, name)
        if value != defaults[name] and value != []:
            refuse(f"--{name.replace('_', '-')}", scope, seen)


def require_open_rows(batch: int | None, rows: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Refuse a number of rows where none is open, or all are set already.

    Args:
        rows: the open sizes set by ``--batch``.
        sizes: the open sizes with values by ``--set``.
    """
    if batch is None:
        return
    scope = "inputs with an open number of rows"
    if not rows:
        refuse("--batch", scope, "here no size depends on it")
    if all(name in sizes for name in rows):
        refuse("--batch", scope, f"--set gives {', '.join(rows)} already")


def refuse_threads(device: str | None, threads: int) -> None:
    """Refuse a number of threads for a device without a calibration."""
    from foreshape.compiler.cost.device import Machine, device_of

    if threads != 1 and not isinstance(on := device_of(device, threads), Machine):
        seen = "this machine is not calibrated" if on is None else f"the device is {device}"
        refuse("--threads", "a calibrated machine", seen)
