"""What came of the comparisons, kept in ``docs/compatibility.json``, from which ``docs/compatibility.md`` is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sides import Outcome

KEPT = Path(__file__).parents[2] / "docs" / "compatibility.json"
SEVERAL = 3


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """How many were equal of how many, the largest error, and in words what was not: each with how many cases of it there are."""
    equal = [o.error for o in outcomes if o.state == "equal"]
    words: dict[tuple[str, str], int] = {}
    for o in outcomes:
        if o.state not in ("equal", "known"):
            words[o.state, o.words] = words.get((o.state, o.words), 0) + 1
        elif o.state == "known":
            why = o.words.split(" [")[0]
            words[o.state, why] = words.get((o.state, why), 0) + 1
    apart = [{"state": state, "cases": n, "words": said} for (state, said), n in sorted(words.items())]
    return {"equal": len(equal), "cases": len(outcomes), "error": float(f"{max(equal, default=0.0):.1e}"), "apart": apart}


def grouped(outcomes: list[Outcome], by: Any) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Outcome]] = {}
    for o in outcomes:
        groups.setdefault(by(o), []).append(o)
    return {name: summary(found) for name, found in sorted(groups.items())}


def by_program(outcomes: list[Outcome]) -> dict[str, dict[str, Any]]:
    """By the name of the program; all draws of a function together."""
    return grouped(outcomes, lambda o: o.name.split(".")[0])


def keep(section: str, found: dict[str, dict[str, Any]], anew: bool = True) -> None:
    """Write a section, or what was found of some in it."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept[section] = found if anew else {**kept.get(section, {}), **found}
    KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=1, sort_keys=True) + "\n")


def wrong(outcomes: list[Outcome]) -> str:
    """What must not be, in words."""
    return "\n".join(f"{o.name}: {o.state}: {o.words}" for o in outcomes if o.state in ("differs", "failed"))
