"""Write the tables of measured figures in the pages from ``benchmarks/results.json``: one set of figures, wherever a page shows it.

With ``--check``, fail where a page has other figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results.json"
FEW = ("torchvision ResNet-18", "timm ViT-tiny", "transformers BERT", "transformers GPT-2", "transformers Mixtral")
"""The networks of torch that the page of comparisons shows; the other page shows all."""


def tables(results: dict[str, Any]) -> list[tuple[str, str, list[list[str]]]]:
    """Return the tables: the page, the head of the table, and its rows."""
    steps, families = results["training_steps"]["rows"], results["torch_families"]["rows"]
    shown = [[f"{name}: {r['what']}" if "what" in r else name, *_figures(r)] for name, r in steps.items()]
    every = [[name, *(f"{r[k]:.2f}" for k in ("planned", "predicted", "memory", "time"))] for name, r in families.items()]
    return [
        ("how-it-compares.md", "| workload | ms per step | PyTorch eager | faster by | page faults per step (PyTorch) |", shown),
        ("coming-from-pytorch.md", "| network | planned by measured | predicted by measured, eager | memory by eager's | time by eager's |", every),
        (
            "how-it-compares.md",
            "| module of torch | planned by measured | memory by eager's | time by eager's |",
            [r[:2] + r[3:] for r in every if r[0] in FEW],
        ),
    ]


def _figures(row: dict[str, Any]) -> list[str]:
    return [f"{row['ms']:g}", _ms(row["torch_ms"]), f"{row['faster']:.1f}", f"{row['faults']:,} ({row['torch_faults']:,})"]


def _ms(number: float) -> str:
    return f"{number:.1f}" if 1 < number == int(number) < 10 else f"{number:g}"


def with_table(text: str, head: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a page with the rows of the table that has this head."""
    before, found, after = text.partition(head + "\n")
    assert found, f"there is no table {head}"
    rule, *rest = after.split("\n")
    end = next(at for at, line in enumerate(rest) if not line.startswith("|"))
    return "\n".join([before + head, rule, *("| " + " | ".join(row) + " |" for row in rows), *rest[end:]])


def main() -> None:
    pages: dict[str, str] = {}
    for page, head, rows in tables(json.loads(RESULTS.read_text(encoding="utf-8"))):
        pages[page] = with_table(pages.get(page) or (DOCS / page).read_text(encoding="utf-8"), head, rows)
    stale = [page for page, text in pages.items() if (DOCS / page).read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        if stale:
            raise SystemExit(f"{', '.join(stale)}: other figures than benchmarks/results.json; python {Path(__file__).name} writes them")
        return
    for page in stale:
        (DOCS / page).write_text(pages[page], encoding="utf-8")


if __name__ == "__main__":
    main()
