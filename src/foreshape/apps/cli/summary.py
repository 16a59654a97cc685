"""`foreshape show --summary`: the layers of a program as a table, and as facts for JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from foreshape.apps.cli.command_options import require_open_rows
from foreshape.apps.cli.output import columns_of, print_json, print_plain, printing
from foreshape.apps.cli.show import count_words
from foreshape.errors import DescriptionError
from foreshape.language.program import Op, Program
from foreshape.language.program.unknown import unknown_types
from foreshape.language.views.summary import Row, Summary

_WIDTH, _WIDEST = 80, 120


def print_summary(program: Program, unknown: Sequence[Op], errors: Sequence[DescriptionError], batch: int | None, depth: int | None, json: bool) -> None:
    """Print the layers: as wide as the terminal is (or COLUMNS says), at most 120 columns; 80 where there is none."""
    summary = Summary(program, batch, depth)
    require_open_rows(batch, list(summary.sizes.given), {})
    if json:
        print_json({"sizes": summary.sizes.values, "layers": [_facts(r) for r in summary.rows], "besides": [_facts(r) for r in summary.more],
                    "total": summary.total._asdict()})  # fmt: skip
        return
    with printing():
        print_plain(summary.text(min(columns_of(sys.stdout) or _WIDTH, _WIDEST)))
        for kind in unknown_types(unknown):
            print_plain(f"{kind.words}; results that depend on it are marked ?")
        if errors:
            print_plain(f"{count_words(len(errors), 'error')}: foreshape check lists them")


def _facts(row: Row) -> dict[str, Any]:
    return {"name": row.name, "depth": row.depth, "operators": row.types, "times": row.times, "output": row.output, "layers_within": row.hidden,
            **row.measure._asdict()}  # fmt: skip
