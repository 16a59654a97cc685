"""Writes docs/compatibility.md from docs/compatibility.json and the operator classes: ``python docs/make_compatibility.py``; ``--check`` compares only.

The numbers are from ``make paddle UPDATE=1``, which runs PaddlePaddle; this needs none.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foreshape.interop.pir
import foreshape.language.ops  # noqa: F401  all operators
from foreshape.interop.forms.rules import pir_operators
from foreshape.interop.pir.table import TableRow, row_of
from foreshape.interop.pir.table import operators as in_table
from foreshape.language.operator.registry import all_operators

PAGE = Path(__file__).with_name("compatibility.md")
KEPT = Path(__file__).with_name("compatibility.json")
Section = dict[str, dict[str, Any]]

HEAD = """# Compatibility with PaddlePaddle 2.6.2

What was compared with a real PaddlePaddle 2.6.2 on a CPU, and what came of it. `make paddle` compares again (it makes an environment with
PaddlePaddle, or takes the one that `PADDLE_PYTHON` names), and `make paddle UPDATE=1` keeps the figures; this page is generated from them by
`docs/make_compatibility.py`. Both sides talk over files only: `.pdmodel`, `.pdiparams` and arrays. The code is in `tests/paddle/`.

An error is the largest difference of two numbers, relative to the largest magnitude in their tensor; whole numbers and bools are equal or
not. A case is equal where the dims and element types that PaddlePaddle infers (unless its own run contradicts them), those that come out, the
sequences and the numbers agree: fp32 within 2e-5 of the largest magnitude, fp16 within 4e-3, fp64 within 1e-6. Of random operators the dims and
element types are compared alone. Workspaces that an operator keeps for its own gradient are not compared.
"""
NOT_COMPARED = """Not compared at all: GPUs; half precision and bfloat16, which PaddlePaddle's kernels for CPUs mostly lack; PaddlePaddle before 2.6.2, but
for the attributes that it does not read any more; networks with their trained parameters (those below have drawn ones)."""

REFUSED = """Samples that run here and not there: of no elements, of more levels of sequences, of other element types. A process that ended is one
that the kernel there did not survive."""
HERE = """Saved here (those for use as a pair with parameters, those for training with their startup programs), opened and run there; of training three
steps, with all state."""
BUILT = {
    "models": ("## Models of paddle.vision", "Built and saved there with weights by a formula, and small images; opened, inferred and run here."),
    "layers": ("## Layers of paddle.nn", "The same of programs with one layer."),
    "training": ("## Training with paddle.optimizer", "Built there; three steps on both sides from the same state, with all state compared."),
    "functions": ("## Public functions", "Calls with drawn attributes, each saved there as a pair, half of them with an open first dim."),
}

NETWORKS = {
    "networks: language": (
        "## Language networks of paddlenlp",
        """Small ones, of two layers, with drawn parameters, saved there by `paddle.jit` with an open batch and open lengths; opened, checked, inferred
and run here at three sizes, by a usual and a frozen executor. Whole networks agree where their numbers do within 1e-4.""",
    ),
    "networks: ocr": (
        "## PP-OCR's networks",
        "Built by its own code (the package unstructured-paddleocr has it), with drawn parameters; compared as those of paddlenlp, at two sizes.",
    ),
    "networks: classification": (
        "## Networks of paddleclas",
        "Small members of its families, built by its own code and compared in the same way; most with an open batch and open images.",
    ),
    "networks: detection": (
        "## Detectors of paddledet",
        """As it exports them, with what follows the network: boxes are decoded and chosen in the program. Boxes whose scores are as good as equal may
come in any order.""",
    ),
    "networks: segmentation": (
        "## Networks of paddleseg",
        "With an open batch; those that end in `_any` with open images too, those that end in `_fixed` with nothing open.",
    ),
    "networks: generators": ("## Networks of ppgan", "Generators, super-resolution and styles, compared in the same way."),
    "networks: training": (
        "## Training networks of packages",
        """Three steps on both sides, with all state compared within 1e-4; with dropout, and of SVTR, whose program draws
weights in each step, dims and element types alone. What an optimizer keeps of
gradients is measured by the largest of its sort, since some gradients are nothing but rounding. DB's loss is without the choice of the
hardest points, which is no part of a program.""",
    ),
}


PADDLE_3 = """## Operators of PaddlePaddle 3

[Programs of PaddlePaddle 3](paddlepaddle-3.md) are read as these operators. An operand of PaddlePaddle 3 that PaddlePaddle 2 has as an attribute becomes it
where it is constant. *Also computed*: it may be a tensor here too. *Only at*: another value of this attribute is refused by name, since PaddlePaddle 2 has no
counterpart. An operator with `_` at its end, which works in place, is read as the one without it. An operator that is not in this table keeps its
own name. `foreshape show` and `foreshape check` work around it, and a run that needs it is refused. Where several operators stand, the numbers are
computed by some or all of them.
"""


def total(section: Section, what: str) -> str:
    return f"{sum(found[what] for found in section.values()):,}"


def classes() -> dict[str, Any]:
    """The forward operators by type."""
    return {t: c for t, c in sorted(all_operators().items()) if c.forward_class is None and c.__module__.startswith("foreshape.language.ops.")}


def error(found: dict[str, Any]) -> str:
    return "" if not found["equal"] else "0" if not found["error"] else f"{found['error']:.0e}"


def count(found: dict[str, Any] | None) -> str:
    return "" if found is None else f"{found['equal']} of {found['cases']}"


def remarks(*found: dict[str, Any] | None) -> str:
    """How many were not equal, by the reason why."""
    counts: dict[str, int] = {}
    for one in found:
        for apart in one["apart"] if one else []:
            counts[apart["state"]] = counts.get(apart["state"], 0) + apart["cases"]
    words = {"known": "differ as below", "refused": "refused there", "missing": "without an operator", "differs": "**differ**", "failed": "**failed here**"}
    return ", ".join(f"{n} {words[state]}" for state, n in sorted(counts.items()))


def compared(section: Section, of: str) -> bool:
    return of in section and not all(a["state"] == "missing" for a in section[of]["apart"] or [{"state": ""}])


def operators(section: Section) -> list[str]:
    out = ["## Operators", "", "Each sample of an operator, run as a program of one op; and its gradient, run after it.", "",
           "| operator | samples equal | error | gradients equal | error | others |", "|---|---|---|---|---|---|"]  # fmt: skip
    for of in classes():
        own, gradient = section.get(of), section.get(f"{of}_grad")
        if compared(section, of) and own is not None:
            cells = [f"`{of}`", count(own), error(own), count(gradient), error(gradient) if gradient else "", remarks(own, gradient)]
            out.append(f"| {' | '.join(cells)} |")
    return out


def not_compared(section: Section) -> list[str]:
    """The operators of which nothing was compared, by the reason."""
    why: dict[str, list[str]] = {}
    for of, cls in classes().items():
        if compared(section, of):
            continue
        if cls.__module__.removeprefix("foreshape.language.ops.").split(".")[0] == "collective":
            reason = "They compute with several processes"
        elif not cls.samples:
            reason = "They run a block, and are compared in the programs below that have loops and branches"
        elif of in ("feed", "fetch"):
            reason = "They are in each program below"
        elif of in section or cls.since > 2:
            reason = "PaddlePaddle 2.6.2 has no such operator"
        else:
            reason = "They are newer than the figures"
        why.setdefault(reason, []).append(of)
    return ["", "### Not compared by themselves", "", *[f"- {reason}: {', '.join(f'`{t}`' for t in types)}." for reason, types in sorted(why.items())]]


def differences(section: Section, state: str, heading: str, words: str) -> list[str]:
    rows = [(of, a) for of, found in section.items() for a in found["apart"] if a["state"] == state]
    merged: dict[str, dict[str, int]] = {}
    for of, apart in rows:
        merged.setdefault(apart["words"], {})[of] = apart["cases"]
    out = ["", heading, "", words, ""]
    return out + [f"- {', '.join(f'`{of}` ({n})' for of, n in of_all.items())}: {said}." for said, of_all in merged.items()] if merged else []


def programs(section: Section, heading: str, words: str) -> list[str]:
    out = ["", heading, "", words, "", "| program | equal | error | others |", "|---|---|---|---|"]
    for name, found in section.items():
        missing = sorted({a["words"].removeprefix("no operator here: ") for a in found["apart"] if a["state"] == "missing"})
        others = f"not here: {', '.join(missing)}" if missing else remarks(found)
        out.append(f"| {name} | {count(found)} | {error(found)} | {others} |")
    return out


def paddle_3() -> list[str]:
    """The operators of PaddlePaddle 3, each with those that it is read as."""
    cells = dict(sorted({**dict(_in_table()), **dict(_by_functions())}.items(), key=lambda one: one[0].lower()))
    return ["", PADDLE_3, "| PaddlePaddle 3 | here | operands that become attributes | also computed | only at |", "|---|---|---|---|---|",
            *(f"| `{name}` | {' | '.join(of)} |" for name, of in cells.items())]  # fmt: skip


def _in_table() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name in in_table():
        row = row_of(name)
        if row is None or (name.endswith("_") and (plain := row_of(name[:-1])) is not None and plain == row):
            continue
        yield name, (f"`{row.type}`", *_attributes(row))


def _attributes(row: TableRow) -> tuple[str, str, str]:
    constant = [o.attribute for o in row.operands if o.attribute]
    computed = [o.attribute for o in row.operands if o.attribute and o.slot]
    only = [f"{name} = {'any' if at is None else json.dumps(at)}" for name, at in row.only.items()]
    return ", ".join(constant), ", ".join(computed), ", ".join(only)


def _by_functions() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The operators with functions: the operator of their row, or the function's words."""
    for full, function in pir_operators().items():
        name = full.removeprefix("pd_op.")
        row = row_of(name.removesuffix("_bias"))
        words = (inspect.getdoc(function) or "").partition("\n")[0].removeprefix("Return ").rstrip(".")
        yield name, (f"`{row.type}`" if row is not None else words[:1].lower() + words[1:], *(_attributes(row) if row is not None else ("", "", "")))


def page() -> str:
    kept: dict[str, Section] = json.loads(KEPT.read_text(encoding="utf-8"))
    samples, here = kept["operators"], kept["described here"]
    ran = [v for of, v in samples.items() if not of.endswith("_grad") or of in classes()]
    built = ", ".join(f"{total(kept[k], 'equal')} of {total(kept[k], 'cases')} ({k})" for k in BUILT)
    short = f"In short: {sum(v['equal'] for v in ran):,} samples of operators are equal, {total(samples, 'equal')} with their gradients; "
    lines = [HEAD, f"{short}{total(here, 'equal')} of {len(here)} programs described here; and of those built there {built}."]
    lines += ["", NOT_COMPARED, "", *operators(samples), *not_compared(samples)]
    lines += differences(samples, "known", "### What differs, and stays", "In brackets: how many samples show it.")
    lines += differences(samples, "refused", "### What PaddlePaddle refuses", REFUSED)
    lines += programs(here, "## Programs described here", HERE)
    for kind, (heading, words) in BUILT.items():
        lines += programs(kept[kind], heading, words)
    for kind, (heading, words) in NETWORKS.items():
        lines += programs(kept[kind], heading, words)
        lines += [f"- {name}: {a['words']}." for name, found in kept[kind].items() for a in found["apart"] if a["state"] == "known"]
    lines += paddle_3()
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()
        sys.exit(0 if same else f"{PAGE.name} is not what {KEPT.name} and the operator classes say; run docs/make_compatibility.py")
    PAGE.write_text(page(), encoding="utf-8")
