"""``foreshape run --profile`` and ``--why``: the time of each layer of a network, and the ops with a kernel call of their own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from foreshape.apps.cli.output import columns_of, printing
from foreshape.language.program import Program
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.profiling import fusion_report, profile

_WIDE = 160
_ALONE = "alone"


def print_profile(program: Program, feed: Mapping[str, Any], names: Sequence[str], scope: Scope, device: str) -> None:
    """Print where the time goes, in a network whose parameters do not change."""
    measured = profile(program, feed, names, scope, executor=Executor(device, frozen=True))
    with printing():
        typer.echo("\n" + measured.text(columns_of(sys.stdout) or _WIDE))
        half = Executor(frozen=True, precision="auto") if device == "cpu" else None
        if half is not None and half.precision == "bf16":
            took = profile(program, feed, names, scope, executor=half).step
            typer.echo(f'\nwith precision="auto", in bf16, a run takes {took * 1e3:.3g} ms: {took / measured.step:.2f} of this')


def print_fusion(program: Program, names: Sequence[str], op: str) -> None:
    """Print the attempts of rewrites at an op of a network with fixed parameters, or at all ops with a call of their own.

    Raises:
        SchemaError: no such op.
    """
    width = columns_of(sys.stdout) or _WIDE
    report = fusion_report(program, names, None if op == _ALONE else op, frozen=True)
    with printing():
        typer.echo("\n".join(entry.text(width) for entry in report) or "every op is fused")
