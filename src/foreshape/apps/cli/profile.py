"""``foreshape run --profile``: the time of each layer of a network."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from foreshape.apps.cli.output import columns_of, printing
from foreshape.language.program import Program
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.profiling import profile

_WIDE = 160


def print_profile(program: Program, feed: Mapping[str, Any], names: Sequence[str], scope: Scope, device: str) -> None:
    """Print where the time goes, in a network whose parameters do not change."""
    measured = profile(program, feed, names, scope, executor=Executor(device, frozen=True))
    with printing():
        typer.echo("\n" + measured.text(columns_of(sys.stdout) or _WIDE))
